"""One of two processes, started by torchrun from test_ranks.py: writes OUT/RANK.json.

torchrun --nproc-per-node=2 ranks_worker.py OUT
"""

import json
import os
import sys
from pathlib import Path

import torch

from mshnet.analyse import evaluate_split
from mshnet.core import UserError
from mshnet.detection import Detection
from mshnet.device import open_device
from mshnet.recipe import Config
from mshnet.run import State
from mshnet.task import Origin, score_split
from mshnet.train import Job, Losses, train, train_epoch, train_step

CONFIG = Config(
    scenes=12, base_size=32, crop_size=32, batch_size=4, choose="last", warm_epoch=0, epochs=2
)


def gradients(device, model, task, batch, phase):
    "Gradients of a batch, of which each process takes its rows."
    optimizer = task.optimizer(model)
    step = device.begin(phase, model, optimizer)
    model.zero_grad()
    task.loss(step, batch, phase).backward()
    return {k: None if p.grad is None else p.grad.clone() for k, p in model.named_parameters()}


def compare_gradients(device):
    "Largest difference to the gradients of the whole batch in one process, for both phases."
    task, alone = Detection(CONFIG), Detection(CONFIG)
    split, seen = task.splits()["train"], {}
    whole = [7, 3, 11, 0]
    [rows] = device.ranks.shard([whole])
    for phase in ("warm-up", "full"):
        mine = task.batch(split, rows, 0)
        one = open_one()
        models = [device.to_device(task.model()), one.to_device(alone.model())]
        have = gradients(device, models[0], task, mine, phase)
        want = gradients(one, models[1], alone, alone.batch(split, whole, 0), phase)
        assert [k for k in have if have[k] is None] == [k for k in want if want[k] is None]
        pairs = [(have[k], want[k]) for k in want if want[k] is not None]
        least = 1e-3 * max(b.norm() for _, b in pairs)  # a bias before batch norm has but rounding
        seen[phase] = max(((a - b).norm() / b.norm().clamp(min=least)).item() for a, b in pairs)
        buffers = [torch.cat([b.flatten() for b in m.buffers()]) for m in models]
        seen[f"{phase} statistics"] = (buffers[0] - buffers[1]).abs().max().item()
        seen[f"{phase} unused"] = sum(v is None for v in have.values())
    return seen


def compare_parts(device):
    "Largest difference of the weights after a step in parts to one of the whole batch alone."
    task, models = Detection(CONFIG), []
    split = task.splits()["train"]
    for where, micro in ((device, 2), (open_one(), 0)):
        where.micro_batch = micro
        model = where.to_device(task.model()).eval()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        [rows] = where.ranks.shard([[7, 3, 11, 0]])
        batch = where.transfer_batch(task.batch(split, rows, 0))
        step = where.begin("parts", model, optimizer)
        job, state = Job(task, {"train": split}, where), State(model, optimizer)
        train_step(job, state, step, batch, "full", Losses(where))
        models.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
        where.micro_batch = 0
    return (models[0] - models[1]).abs().max().item()


def open_one():
    "The device of a process that knows of no others."
    hidden = {k: os.environ.pop(k) for k in ("RANK", "WORLD_SIZE")}
    try:
        return open_device("cpu", "fp32")
    finally:
        os.environ.update(hidden)


LISTS = ("images", "curves", "targets")


def equal(one, other):
    "Equal, but for the last digits of what is no whole number."
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(equal, one, other))
    return one == other or (type(one) is type(other) is float and abs(one - other) < 2e-4)


def compare_scores(device):
    "Scores and details of the test split, by both processes and by one."
    task, one = Detection(CONFIG), open_one()
    model, split = task.model(), task.splits()["train"]
    seen = []
    for count in (4, 3, 2, 1):  # remainders that leave the last process less, or nothing
        part = split.part("some", list(range(count)))
        scores = [score_split(task, model, part, d, "full").as_dict() for d in (device, one)]
        close = [evaluate_split(task, model, part, d, "full", Origin("x")) for d in (device, one)]
        same = all(equal(*(one.details[name] for one in close)) for name in LISTS)
        seen.append(scores[0] == scores[1] and same and scores[0]["images"] == count)
    return seen


def main(out):
    "Look at everything, then train."
    config = CONFIG.model_copy(update={"output_dir": str(out / "run"), "device": "cpu"})
    device = open_device("cpu", "fp32")
    seen = {"gradients": compare_gradients(device), "scores": compare_scores(device)}
    seen["parts"] = compare_parts(device)
    seen["rows"] = device.ranks.shard([[4, 9, 2, 7], [1, 0, 8, -1]])
    seen["mean"] = device.ranks.mean(torch.tensor(float(device.ranks.rank))).item()
    seen["random"] = []
    for seed in (3, 3, 4):
        device.seed(seed, 0)
        seen["random"].append(torch.rand(2).tolist())
    task = Detection(CONFIG)
    model = device.to_device(task.model())
    state = State(model, task.optimizer(model), ema=device.to_device(task.model()))
    seen["loss"] = train_epoch(Job(task, task.splits(), device), state, 0)
    device.ranks.assert_in_sync(model)
    device.ranks.assert_in_sync(state.ema)
    with torch.no_grad():
        model.final.bias += device.ranks.rank
    try:
        device.ranks.assert_in_sync(model)
    except UserError as error:
        seen["unlike"] = str(error)
    try:
        device.ranks.rank_zero(lambda: 1 / 0)
    except ZeroDivisionError as error:
        seen["error of the first"] = str(error)
    train(config)
    (out / f"{device.ranks.rank}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
