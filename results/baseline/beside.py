"""The library beside a plain PyTorch script: first the same results, then the times, in turns.

    python results/baseline/beside.py --dataset-dir data/NUAA-SIRST --output DIR

`plain.py`, in this folder, trains and scores MSHNet as most published scripts do, and shares no
line with the library. Both run here in one process, in turns, so that a machine that slows down
slows both; the medians count. The recipe is the paper's, and both get the same pixels: the images
as PNG files, and our crops, mirrors and blurs.

**How equal is equal?** Two programs that add the same float32 numbers in different orders differ,
and by how much depends on the CPU, on its libraries, on the weights and on the sizes. A fixed limit
holds on one machine and fails on the next. So the limit is measured, too. The plain script computes
each result in float64, which we take for exact, and in float32 in three orders of summation: as it
is written, with the batch reversed, and in the memory layout of the library (channels last). The
largest distance of these from the exact result is its rounding. The library computes in float32,
and may be FACTOR times as far from the exact result, with a rounding of at least one float32
epsilon. Compared are, each relative to its size:

- the loss of three training steps, which begin with the same weights and optimizer;
- what each of these steps adds to the weights, by its median. (By the median, because Adagrad's
  first step moves a weight by the whole learning rate in the direction of its gradient, however
  small that is, and so rounding turns the few weights with a gradient near 0 the other way.);
- the logits of test images, by their largest distance.

How far that is, measured on one core of an AMD EPYC without AVX-512: at 256x256 the first loss of
the plain script is off by 5e-8 as written and by 6e-7 in channels last, that of the library by
6e-7, too. At 64x64 an update is off by 5e-8 in the first step and by 2e-6 to 2e-5 in the next two,
in both; a learning rate that is wrong by a thousandth puts the library off by 1e-3.

The counts of the scores are whole numbers, and must be equal for every image, on the same logits,
by the rule of the published scripts. If anything differs, nothing is timed and the status is 1.
"""

import argparse
import contextlib
import ctypes
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import mshnet  # noqa: F401  before torch, which reads once how its threads are to wait

# isort: split
import numpy as np
import plain
import torch
from PIL import Image

from mshnet.analyse import evaluate_split
from mshnet.augment import sample_params
from mshnet.bench import fresh_state, measure_memory, some, take_turns
from mshnet.detection import Detection
from mshnet.device import MMAP_FROM, MMAP_MAX, TRIM, _hold_memory, device_for
from mshnet.files import write_json
from mshnet.recipe import Config
from mshnet.run import environment
from mshnet.task import Origin, predictions, score_split, trained_model
from mshnet.train import Job, train_epoch
from mshnet.weights import PRETRAINED

FACTOR = 8  # times the rounding of the plain script
EPSILON = torch.finfo(torch.float32).eps
STEPS = 3
WRITTEN, LAST = torch.contiguous_format, torch.channels_last
ORDERS = ({"layout": WRITTEN}, {"layout": LAST}, {"reverse": True})  # of summation
COUNTS = ("inter", "pred", "mask", "targets", "matched", "false_pixels")


# The same input


def samples(folder, config, data, epoch=None):
    "The input of the plain script: of each image its file, its mask's file, its augmentation."
    found, kind = [], "test" if epoch is None else "train"
    for i in range(len(data)):
        image, mask = (folder / f"{kind}_{len(data)}_{i}{end}.png" for end in ("", "_mask"))
        if not mask.exists():
            pixels, truth = data.pairs[i]
            Image.fromarray(pixels).save(image)
            Image.fromarray(truth * np.uint8(255)).save(mask)
        drawn = None if epoch is None else list(sample_params(config, epoch, i)[:5])
        found.append([str(image), str(mask), drawn])
    return found


def batches(folder, task, data, epoch):
    "The input of an epoch."
    files = samples(folder, task.config, data, epoch)
    return [[files[i] for i in rows] for rows in task.plan(data, epoch)]


def let_memory_go():
    "Let glibc give freed memory back to the system, as it does without the library."
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library or system
        tune = ctypes.CDLL(None).mallopt
        for option, value in ((MMAP_MAX, 65_536), (MMAP_FROM, 2**25), (TRIM, 2**26)):
            tune(option, value)


@contextlib.contextmanager
def usual_torch(usual):
    "torch's own allocator and TF32 for the plain script; for the check no TF32 at all."
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = usual
    if usual:
        let_memory_go()
    yield
    _hold_memory()
    torch.backends.cudnn.allow_tf32 = before


# The same results


def weights_of(model):
    "All weights in one row, in float64."
    rows = [p.detach().cpu().double().contiguous().flatten() for p in model.parameters()]
    return torch.cat(rows).numpy()


def plain_step(state, batch, size, device, dtype=torch.float32, layout=WRITTEN, reverse=False):
    "A step of the plain script from the library's state: its loss, and what it adds to weights."
    network = plain.MSHNet()
    network.load_state_dict(state.model.state_dict())
    network = network.to(device, dtype, memory_format=layout).train()
    optimizer, before = plain.make_optimizer(network), weights_of(network)
    for ours, own in zip(state.model.parameters(), network.parameters(), strict=True):
        if "sum" in state.optimizer.state[ours]:  # after the first step
            optimizer.state[own]["sum"].copy_(state.optimizer.state[ours]["sum"])
    image, mask = plain.load_batch(batch[::-1] if reverse else batch, size, device)
    image, mask = image.to(dtype, memory_format=layout), mask.to(dtype)
    loss = plain.mshnet_loss(*network(image), mask)
    loss.backward()
    optimizer.step()
    return loss.item(), weights_of(network) - before


def library_step(task, state, data, device, epoch):
    "The same of the library."
    before = weights_of(state.model)
    loss = train_epoch(Job(task, {"train": data}, device), state, epoch)
    return loss, weights_of(state.model) - before


def check(what, exact, ours, others, over=np.max):
    "Whether the library is as near to the exact values as the plain script in its orders."
    size = over(np.abs(exact))
    off, *rounding = (float(over(np.abs(each - exact)) / size) for each in (ours, *others))
    allowed = FACTOR * max(EPSILON, *rounding)
    found = {"what": what, "library": off, "plain": max(rounding), "allowed": allowed}
    return found | {"equal": off <= allowed}  # not if one of them is NaN


def check_training(config, train, folder):
    "Losses and updates of some steps, each from the library's weights."
    device, task, size, found = device_for(config), Detection(config), config.crop_size, []
    state, data = fresh_state(task, device), some(train, config.batch_size, config.batch_size)
    for step in range(STEPS):
        epoch = config.warm_epoch + 1 + step
        [batch] = batches(folder, task, data, epoch)
        results = [plain_step(state, batch, size, "cpu", torch.float64)]
        orders = [plain_step(state, batch, size, device.name, **each) for each in ORDERS]
        results += [library_step(task, state, data, device, epoch), *orders]
        (exact, ours, *others), (moved, our_move, *moves) = zip(*results, strict=True)
        found.append(check(f"loss of step {step}", exact, ours, others))
        found.append(check(f"update of step {step}", moved, our_move, moves, over=np.median))
    return found


def plain_logits(model, files, size, device, deep, dtype=torch.float32, layout=WRITTEN):
    "The logits of the plain script for some images, one by one."
    network = plain.MSHNet()
    network.load_state_dict(model.state_dict())
    network = network.to(device, dtype, memory_format=layout).eval()
    found = []
    for file in files:
        image = plain.load(file, size)[0][None].to(device, dtype, memory_format=layout)
        with torch.no_grad():
            found.append(network(image, deep=deep)[1][0, 0].cpu().double().numpy())
    return np.stack(found)


def check_scoring(config, test, folder):
    "Logits, and on the same logits the counts of each image."
    task = Detection(config.model_copy(update={"rule": "reference"}))
    device, trained = device_for(config), trained_model(config.weight_path or PRETRAINED, config)
    files, deep, size = samples(folder, config, test), trained.phase == "full", config.base_size
    how = {"size": size, "deep": deep}
    exact = plain_logits(trained.model, files, device="cpu", dtype=torch.float64, **how)
    others = [
        plain_logits(trained.model, files, device=device.name, layout=layout, **how)
        for layout in (WRITTEN, LAST)
    ]
    model = device.to_device(trained.model)
    pairs = predictions(task, model, test, device, trained.phase)
    logits = torch.cat([logits[batch.row >= 0, 0].float() for logits, batch in pairs])
    scores = plain.Scores()
    for file, ours in zip(files, logits, strict=True):
        scores.add(ours, plain.load(file, size)[1][0].numpy() > 0)
    found = evaluate_split(task, model, test, device, trained.phase, Origin("beside"))
    counts = {"what": "counts of each image"}
    counts["library"] = [[row[name] for name in COUNTS] for row in found.details["images"]]
    counts["plain"] = scores.images
    counts["equal"] = counts["library"] == counts["plain"]
    return [check("logits", exact, logits.double().numpy(), others), counts]


# The times


def time_both(config, parts, options, folder):
    "Training and scoring by both, in turns: a row each."
    device, task, batch = device_for(config), Detection(config), config.batch_size
    data, test = some(parts["train"], options.images, batch), some(parts["test"], options.images)
    trained = trained_model(config.weight_path or PRETRAINED, config)
    first, size = config.warm_epoch + 1, config.crop_size
    epochs = [batches(folder, task, data, first + k) for k in range(options.repeats + 1)]
    files, deep = samples(folder, config, test), trained.phase == "full"
    network, scorer, state = plain.MSHNet(), plain.MSHNet(), fresh_state(task, device)
    network.load_state_dict(state.model.state_dict())
    scorer.load_state_dict(trained.model.state_dict())
    network, scorer = network.to(device.name), scorer.to(device.name)
    optimizer, model = plain.make_optimizer(network), device.to_device(trained.model)

    def plain_train(turn):
        with usual_torch(True):
            plain.train(network, optimizer, epochs[turn], size, device.name)

    def plain_score(turn):
        with usual_torch(True):
            plain.score(scorer, files, size, device.name, deep)

    job = Job(task, {"train": data}, device)
    training = {
        "library": lambda turn: train_epoch(job, state, first + turn),
        "plain": plain_train,
    }
    scoring = {
        "library": lambda turn: score_split(task, model, test, device, trained.phase),
        "plain": plain_score,
    }
    found = []
    for what, ways, images in (("train", training, data), ("score", scoring, test)):
        times = take_turns(ways, options.repeats, device)
        each = {way: statistics.median(t) / len(images) for way, t in times.items()}
        row = {"what": what, "batch": batch, "images": len(images), "raw_seconds": times}
        found.append(row | {"seconds_per_image": each, "ratio": each["plain"] / each["library"]})
    return found


def memory_of_both(config, parts, folder):
    "Peak memory in training, each in a fresh process."
    task, data = Detection(config), some(parts["train"], 2 * config.batch_size, config.batch_size)
    request = {"batches": batches(folder, task, data, config.warm_epoch + 1), "start": 0}
    request |= {"size": config.crop_size, "device": device_for(config).name}
    program = [sys.executable, plain.__file__]
    done = subprocess.run(program, input=json.dumps(request), capture_output=True, text=True)
    done.check_returncode()
    ours = measure_memory(config)
    peaks = {"library": ours.get("peak"), "plain": json.loads(done.stdout)["peak"]}
    return {"what": "memory", "batch": config.batch_size, "peak": peaks}


# The program


def read_options():
    "The flags."
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset-dir", default="", help="default: synthetic scenes")
    parser.add_argument("--weight-path", default="", help="to score with; default: pretrained")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--size", type=int, default=256, help="side of the images")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--images", type=int, default=16, help="of each turn")
    parser.add_argument("--repeats", type=int, default=5, help="turns; the median counts")
    parser.add_argument("--output", default="", help="folder to write beside.json into")
    return parser.parse_args()


def line_of(row):
    "A row as text."
    if "ratio" in row:
        ms = {way: f"{1e3 * value:.4g}" for way, value in row["seconds_per_image"].items()}
        what = f"{row['what']}, batch {row['batch']}"
        return f"{what}: {ms['library']} ms an image, plain {ms['plain']}: {row['ratio']:.2f}x"
    if "peak" in row:
        peaks = {way: f"{(peak or 0) / 2**20:.0f}" for way, peak in row["peak"].items()}
        return f"memory, batch {row['batch']}: {peaks['library']} MiB, plain {peaks['plain']}"
    word = "equal" if row["equal"] else "NOT EQUAL"
    if "allowed" not in row:
        return f"{word}: {row['what']}"
    off, rounding, allowed = (f"{row[name]:.0e}" for name in ("library", "plain", "allowed"))
    return f"{word}: {row['what']}, off by {off}; plain script by {rounding}; allowed {allowed}"


def main():
    "Compare, then measure."
    options = read_options()
    same = {"base_size": options.size, "crop_size": options.size, "choose": "last"}
    named = {name: getattr(options, name) for name in ("dataset_dir", "weight_path", "device")}
    config = Config(preset="paper", batch_size=options.batch_size, log_every=10**6, **same, **named)
    parts, content = Detection(config).splits(), {"data": "", "checks": [], "rows": []}
    with tempfile.TemporaryDirectory() as tmp:
        with usual_torch(False):
            content["checks"] += check_training(config, parts["train"], Path(tmp))
            content["checks"] += check_scoring(config, some(parts["test"], 4), Path(tmp))
        for row in content["checks"]:
            print(line_of(row), flush=True)
        equal = all(row["equal"] for row in content["checks"])
        if equal:
            fast = config.model_copy(update={"precision": "auto"})
            content["rows"] = time_both(fast, parts, options, Path(tmp))
            content["rows"].append(memory_of_both(fast, parts, Path(tmp)))
            content["environment"] = environment(device_for(fast).description)
    counts = ", ".join(f"{len(parts[name])} {name}" for name in ("train", "test"))
    content |= {"data": f"{parts['train'].source}: {counts}", "size": options.size}
    for row in content["rows"]:
        print(line_of(row))
    if options.output:
        Path(options.output).mkdir(parents=True, exist_ok=True)
        write_json(Path(options.output) / "beside.json", content)
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
