"""Train and score on XLA and write down what was seen: `python observe.py OUT.json`.

Started by test_xla.py with 8 virtual devices, where steps are compared with the CPU's, and with 1,
where a run travels: their number is fixed when the runtime starts. XLA comes first: torch's
autograd must not have run before torch_xla is loaded.
"""

import json
import sys
import tempfile
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from mshnet.data import Split
from mshnet.detection import NETWORKS, Detection
from mshnet.device import OPTIMIZERS, open_device, update
from mshnet.recipe import Config
from mshnet.run import Folder, State, each_tensor, read_checkpoint
from mshnet.task import score_split
from mshnet.train import Job, beginning, prepare_step, train
from mshnet.xla import host_operations, xla, xla_counts

SIZE = {"scenes": 80, "base_size": 64, "crop_size": 64, "batch_size": 8, "epochs": 2}
CONFIG = Config(**SIZE, warm_epoch=0, lr=0.05, lr_end=0.4, loss="sls", head_bias=0)


class One(NamedTuple):
    "A batch of images alone."

    image: torch.Tensor


class Thin(nn.Module):
    "A network that is compiled in seconds, where that of the paper takes a minute."

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.single, self.fused = nn.Conv2d(8, 1, 1), nn.Conv2d(8, 1, 3, padding=1)

    def forward(self, image, deep=True):
        "As MSHNet is called."
        found = self.stem(image)
        mask = self.single(found)
        return ([mask], self.fused(found)) if deep else ([], mask)


NETWORKS["thin"] = Thin


class Calm(Detection):
    "Adagrad with sums of squares that begin at 0.1: see the test that compares losses."

    def optimizer(self, model):
        "Adagrad, whose rate may be a 0-d tensor."
        return OPTIMIZERS["adagrad"](model.parameters(), lr=0.05, initial_accumulator_value=0.1)


def ten_steps(device, shake=0.0):
    "Ten steps with all heads, and a scoring; what was seen after each of them."
    task = Calm(CONFIG)
    parts, model = task.splits(), task.model()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1 + shake * torch.randn(p.shape, generator=generator))
    model = device.to_device(model)
    state = State(model, task.optimizer(model), ema=device.to_device(task.model()))
    job, plan = Job(task, parts, device), task.plan(parts["train"], 0)
    model.train()
    step = device.begin("full", model, state.optimizer)
    seen = {"rows": [look(device)]}
    for number, indices in enumerate(plan[:10]):
        prepare_step(job, state, number, len(plan))  # another rate each time
        batch = device.transfer_batch(task.batch(parts["train"], indices, 0))
        with device.autocast():
            loss = task.loss(step, batch, "full")
        update(device, loss, state.optimizer, clip=10.0)
        seen["rows"].append(look(device) | {"loss": device.read(loss).item()})
    reads = device.reads
    scores = score_split(task, state.scored, parts["test"], device, "full")
    seen["rows"].append(look(device) | {"reads": device.reads - reads})
    seen["scores"] = scores.as_dict()
    batch = device.transfer_batch(task.batch(parts["train"], plan[0], 0))
    with torch.no_grad():
        seen["averaged"] = device.read(task.loss(state.ema.eval(), batch, "full")).item()
    if device.kind == "xla":
        same = task.model()
        same.load_state_dict(each_tensor(state.ema.state_dict(), torch.Tensor.cpu))
        again = score_split(task, same, parts["test"], open_device("cpu", "fp32"), "full")
        seen["same weights"] = again.as_dict()
    return seen


def look(device):
    "Programs compiled so far, and operations that left the device so far."
    if device.kind != "xla":
        return {}
    return {"programs": xla_counts()["programs"], "host": sorted(host_operations())}


def native(device):
    "Images of three sizes, two when padded, scored at their own size twice; as on the CPU."
    rng, sizes = np.random.default_rng(0), ((40, 52), (80, 64), (33, 60))
    pairs = [[rng.integers(0, n, size, dtype=np.uint8) for n in (256, 2)] for size in sizes]
    split = Split("test", ("a", "b", "c"), tuple(map(tuple, pairs)), "sizes")
    task = Detection(Config(**SIZE, network="thin").model_copy(update={"base_size": "native"}))
    model, seen = device.to_device(task.model()), []
    for _ in range(2):
        before = xla_counts()["programs"]
        score_split(task, model, split, device, "full")
        seen.append(xla_counts()["programs"] - before)
    cpu = score_split(task, task.model(), split, open_device("cpu", "fp32"), "full")
    xla_ = score_split(task, model, split, device, "full")
    return {"programs": seen, "scores": xla_.as_dict(), "on the CPU": cpu.as_dict()}


def shards(device):
    "Where a batch and a weight lie: a description, and the rows that each device holds."
    from torch_xla.distributed.spmd import XLAShardedTensor

    rows = torch.arange(16.0)[:, None, None, None].expand(16, 1, 2, 2)
    batch = device.transfer(rows)
    weight = device.to_device(nn.Conv2d(1, 1, 3)).weight
    spec = xla()._XLAC._get_xla_sharding_spec
    held = [s.data[:, 0, 0, 0].tolist() for s in XLAShardedTensor(batch).local_shards]
    return {"batch": spec(batch), "weight": spec(weight), "rows": held}


def detector(device):
    "What is said of a batch of another shape, and of a read in the middle of a step."
    model = device.to_device(nn.Conv2d(1, 1, 3))
    optimizer, seen = torch.optim.SGD(model.parameters(), lr=0.1), {}
    phases = {"odd": (8, 8, 8, 16), "read": (8, 8, 8, 8), "other": (8, 8, 8, 8)}
    for phase, sizes in phases.items():
        step = device.begin(phase, model, optimizer)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for number, size in enumerate(sizes):
                loss = step(device.transfer_batch(One(torch.ones(size, 1, 4, 4))).image).sum()
                if phase != "odd" and number == 3:
                    loss = loss * (loss.item() if phase == "read" else loss)
                update(device, loss, optimizer)
        seen[phase] = [str(w.message) for w in caught]
    return seen | {"host": sorted(host_operations())}


def travel(folder):
    """A run that begins on xla, goes on at the cpu and comes back; whether its state arrived.
    The default recipe, but with a warm-up of two epochs and a rate constant after three steps."""
    seen, warm = {}, {"scenes": 24, "warm_epoch": 1, "log_every": 1, "output_dir": str(folder)}
    warm |= {"network": "thin", "schedule": "constant", "warmup_steps": 3}
    Detection.report = lambda *_: None  # pictures take long
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for epochs, kind in ((4, "xla"), (5, "cpu"), (6, "xla")):
            config = Config(**SIZE).model_copy(update=warm | {"device": kind, "epochs": epochs})
            before = Folder(folder).file("last.pt")
            if before.exists():
                want, task = read_checkpoint(before), Detection(config)
                state = beginning(Job(task, task.splits(), open_device(kind), Folder(folder)))
                seen[kind] = equal(want, state)
            run = train(config)
    return seen | {"history": run.history, "warnings": [str(w.message) for w in caught]}


def equal(want, state):
    "Whether both sets of weights and the optimizer equal a checkpoint's to the last bit."
    have = {"optimizer": state.optimizer.state_dict()["state"]}
    pairs = [(want["model"], state.ema.state_dict()), (want["trained"], state.model.state_dict())]
    pairs += [(v, have["optimizer"][k]) for k, v in want["optimizer"]["state"].items()]
    return all(
        torch.equal(each_tensor(b, torch.Tensor.cpu)[k].float(), v.float())
        for a, b in pairs
        for k, v in a.items()
    )


if __name__ == "__main__":
    device = open_device("xla", "fp32")
    found = {"why": device.description}
    if device.world == 1:
        with tempfile.TemporaryDirectory() as tmp:
            found["travel"] = travel(Path(tmp) / "run")
    else:
        found |= {"shards": shards(device), "xla": ten_steps(device)}
        found["facts"] = device.facts()["xla"]
        found |= {"detector": detector(device), "native": native(device)}
        cpu = open_device("cpu", "fp32")
        found["cpu"] = ten_steps(cpu)
        found["shaken"] = [ten_steps(cpu, shake) for shake in (1e-7, -1e-7, 2e-7)]
    Path(sys.argv[1]).write_text(json.dumps(found))
