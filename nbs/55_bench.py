# %% [markdown]
# # Measure speed and memory
#
# > How fast does this device train and score, and how much memory does that take? Measured in minutes, before a device is rented for days.
#
# `mshnet bench data/NUAA-SIRST --weight-path runs/NAME` prints a table like this one, of the paper's recipe on a CPU with two cores ([measurement](../results/bench-cpu/README.md)):

# %%
#| export
#| default_exp bench
import contextlib
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch

from mshnet.core import UserError
from mshnet.data import Split
from mshnet.detection import Detection, normalise
from mshnet.device import Device, device_for, share_cores
from mshnet.files import make_folder, write_json
from mshnet.places import run_folder
from mshnet.recipe import Config
from mshnet.run import environment
from mshnet.session import working
from mshnet.task import Trained, even_steps, score_split, trained_model
from mshnet.train import Job, check_data, fresh_state, train_epoch
from mshnet.weights import PRETRAINED

# %%
from mshnet.bench import table

print(table(json.loads(Path("../results/bench-cpu/bench.json").read_text())))


# %% [markdown]
# A step of 4 images takes 0.42 seconds, of which 1% is data. Batches of 16 are no faster on this CPU, and need 2.5 times the memory. A plain PyTorch script takes 2.3 times as long for a step of 4 images, the script in float32 and mshnet in bf16 ([script](../results/baseline/beside.py), [numbers](../results/bench-cpu/beside.json)). [The guide](guides/devices.ipynb) shows all measurements so far.
#
# ## What is measured, and how to read it
#
# A time means little until we know what was done in it, on which machine, and what else that machine did meanwhile. Three rules:
#
# - **All of it.** A step is measured with its data, and an evaluation with its metrics, because a person waits for all of it.
# - **Interleaved.** The speed of a machine drifts: clocks fall as it warms up, other programs come and go. We measure the programs in turns, so a slow minute slows all of them, and the median counts.
# - **Your recipe.** We measure a training by your settings, with their data, sizes and precision. `--preset paper` measures the paper's recipe.
#
# A turn uses images evenly spread over the list, because neighbours are often alike. **Train** is the whole step, after the warm-up: reading, augmenting, copying, forward, loss, backward, update. **Data alone** is the reading, augmenting and copying in it. **Score** is the forward pass and all scores, by the weights of `weight_path` or by the pretrained ones. (Untrained weights predict nothing, or the whole image, so their objects take no time.)
#
# First compare *data alone* with the whole step. On a CPU the data are a part of the step. On an accelerator threads prepare the next batches meanwhile, so it waits only if *data alone* takes about as long as the whole step. Then read the memory, which decides the batch size. The time of an epoch is that of its training images plus that of its scored images. All epochs together are the training, without start and checkpoints. For the table above, whose epochs score 43 held-out training images: 170 x 0.104 + 43 x 0.032 = 19 seconds an epoch. The examples below use images of 32x32, which are too small for any conclusion.
#
# ## The machinery: the clock
#
# An accelerator queues its operations and works through them later. A clock that is read after the last call measures how fast we can queue. We synchronize before both readings.
#
# The order is reversed in every second turn. The first turn of each is not counted, because it reads files and wakes threads. After the code, the order in which A and B take four turns; then four images of a list, and the number of images of a small measurement.

# %%
#| export
def _synchronize(device: Device) -> None:
    "Wait until the device has finished its work: until it gives a number that was put there last."
    device.read(device.transfer(torch.zeros(())))


def take_turns(
    ways: dict[str, Callable[[int], Any]],  # by name; called with the number of the turn
    repeats: int,
    device: Device,
) -> dict[str, list[float]]:  # seconds of each way, turn by turn
    "Measure several ways alternately, after one turn of each that is not counted."
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(repeats + 1):
        for name in list(ways)[:: 1 if turn % 2 else -1]:
            _synchronize(device)
            start = time.perf_counter()
            ways[name](turn)
            _synchronize(device)
            times[name].append(time.perf_counter() - start)
    return {name: found[1:] for name, found in times.items()}


def some(split: Split, images: int, batch: int = 1) -> Split:
    "Images of a split, evenly spread: whole batches, at least one."
    count = max(1, min(images, len(split)) // batch) * batch
    return split.part("some", even_steps(len(split), count))


def measure(
    config: Config,
    parts: dict[str, Split],
    trained: Trained,  # weights to score with
    device: Device,
    repeats: int,  # turns of each measurement
    images: int,  # of each turn
) -> list[dict[str, Any]]:
    "Seconds of training, of its data alone, and of evaluation: a row each, with every turn."
    task, first = Detection(config), config.warm_epoch + 1
    data, test = (some(parts[name], images, config.batch_size) for name in ("train", "test"))
    state, model = fresh_state(task, device), device.to_device(trained.model)
    job = Job(task, {"train": data}, device)
    share_cores(device, every=-math.inf)  # now, and not within what is timed
    device.last_check = math.inf

    def read(turn: int) -> None:
        for batch in task.batches(device, data, task.plan(data, first + turn), first + turn):
            normalise(batch.image)

    ways: dict[str, Callable[[int], Any]] = {
        "train": lambda turn: train_epoch(job, state, first + turn),
        "data alone": read,
        "score": lambda turn: score_split(task, model, test, device, trained.phase),
    }
    rows = []
    for what, found in take_turns(ways, repeats, device).items():
        count = len(test if what == "score" else data)
        row = {"what": what, "batch": config.batch_size, "images": count, "raw_seconds": found}
        rows.append(row | {"seconds_per_image": statistics.median(found) / count})
    return rows


# %%
config = Config(scenes=8, base_size=32, crop_size=32, device="cpu", batch_size=2)
cpu, task = device_for(config), Detection(config)
order = list[str]()
take_turns({name: lambda turn, name=name: order.append(name) for name in "AB"}, 3, cpu)
print(*order)
parts = task.splits()
print(some(parts["train"], 4, batch=2).names)
rows = measure(config, parts, trained_model(PRETRAINED), cpu, repeats=1, images=2)
{row["what"]: row["images"] for row in rows}


# %% [markdown]
# ### Memory
#
# The peak of memory can be measured only once per process. Each batch size gets a fresh process, which trains two steps and prints its result as the last line. Out of memory is a result too, and the bench continues. On a TPU only one process can hold the chips, and there is no such measurement.
#
# `ru_maxrss`, the usual measure of peak memory, survives `exec` on Linux: a small program that a large one starts reports the memory of the large one. `VmHWM`, which Linux reports, begins anew. After the code, the memory of two small steps, and settings that the fresh process refuses:

# %%
#| export
def _peak(device: Device) -> int:  # bytes
    "The peak memory of this process, on the GPU or on the host."
    if device.kind == "cuda":
        return torch.cuda.max_memory_allocated(device.name)
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def train_two_steps(config: Config) -> int:  # bytes
    "Train two steps; the peak memory of this process."
    device, task = device_for(config), Detection(config)
    data = some(task.splits()["train"], 2 * config.batch_size, config.batch_size)
    job = Job(task, {"train": data}, device)
    train_epoch(job, fresh_state(task, device), config.warm_epoch + 1)
    return _peak(device)


_CHILD = """import json, sys
from mshnet.bench import Config, UserError, train_two_steps
try:
    print(train_two_steps(Config(**json.load(sys.stdin))))
except UserError as error:
    sys.exit(str(error))"""


def measure_memory(config: Config) -> dict[str, Any]:  # batch, and peak (bytes) or error
    "Train two steps in a fresh process."
    settings = json.dumps(config.model_dump())
    program = [sys.executable, "-c", _CHILD]
    done = subprocess.run(program, input=settings, capture_output=True, text=True)
    if done.returncode:
        what = f"batch_size={config.batch_size}: ended with status {done.returncode}"
        error = f"{what}, perhaps for want of memory; use a smaller one"
        if done.returncode > 0 and (lines := done.stderr.strip().splitlines()):
            error = lines[-1]
        return {"batch": config.batch_size, "error": error}
    return {"batch": config.batch_size, "peak": int(done.stdout.split()[-1])}


# %%
print("more than 100 MB:", train_two_steps(config) > 100e6)
print(measure_memory(config.model_copy(update={"epochs": 0})))


# %% [markdown]
# ### The whole bench
#
# Memory comes first, while this process is still small. The file has the names of folders without their paths, and no name of a machine. Its content can be printed again as a table, on a different machine, a year later.

# %%
#| export
def bench(
    config: Config,
    repeats: int = 5,  # turns of each measurement; the median counts
    images: int = 32,  # of each turn
) -> dict[str, Any]:  # the content of bench.json
    "Measure at batch_size and four times that; write bench.json into output_dir (or runs/bench)."
    if min(repeats, images) < 1:
        raise UserError(f"repeats={repeats}, images={images}: use whole numbers of at least 1")
    if config.task != "detect":
        raise UserError(f"task={config.task}: bench measures detection; leave out task")
    folder = run_folder(config) if config.output_dir else run_folder(config).with_name("bench")
    config = config.model_copy(update={"log_every": 1_000_000})  # no reading between steps
    device, task = device_for(config), Detection(config)
    parts, sizes = task.splits(), (config.batch_size, 4 * config.batch_size)
    check_data(Job(task, parts, device))
    trained = trained_model(config.weight_path or PRETRAINED, config)
    each = [config.model_copy(update={"batch_size": n}) for n in sizes if n <= len(parts["train"])]
    make_folder(folder)
    memory, rows = list[dict[str, Any]](), list[dict[str, Any]]()
    for one in each if device.kind != "xla" else ():
        with working(f"memory, batch {one.batch_size}"):
            memory.append(measure_memory(one))
    fitting = [c for c, room in zip(each, memory, strict=False) if "peak" in room]
    if memory and not fitting:
        raise UserError(memory[0]["error"])
    for one in fitting if memory else each:
        with working(f"time, batch {one.batch_size}"):
            rows += measure(one, parts, trained, device, repeats, images)
    content = {
        "format": 2,
        "data": task.about(parts, device)["data"],
        "config": {k: Path(v).name if isinstance(v, str) else v for k, v in config},
        "options": {"repeats": repeats, "images": images},
        "environment": environment(device.description),
        "memory_of": "GPU" if device.kind == "cuda" else "host",
        "memory": memory,
        "rows": rows,
    }
    write_json(folder / "bench.json", content)
    return content


def table(content: dict[str, Any]) -> str:
    "A bench, the content of bench.json, as text."
    settings = content["config"]
    crop, size = settings["crop_size"], settings["base_size"]
    native = size == "native"
    lines = [
        f"device  {content['environment']['device']}",
        f"data    {content['data']}",
        f"sizes   trained on {crop}x{crop} pixels, scored at {size}{'' if native else f'x{size}'}",
        f"weights {settings['weight_path'] or PRETRAINED} (for scoring)",
        f"times   medians of {content['options']['repeats']} repetitions",
        f"\n{'':24}{'ms/image':>10}{'images/s':>10}",
    ]
    for row in content["rows"]:
        each, what = row["seconds_per_image"], f"{row['what']}, batch {row['batch']}"
        lines.append(f"{what:24}{1e3 * each:10.2f}{1 / each:10.1f}")
    lines.append(f"\npeak memory of the {content['memory_of']}, in training:")
    for row in content["memory"]:
        text = row.get("error") or f"{row['peak'] / 2**20:.0f} MiB"
        lines.append(f"batch {row['batch']:5}: {text}")
    return "\n".join(lines)

# %% [markdown]
# ## Questions
#
# 1. On a GPU a step takes 14 ms per image, and <em>data alone</em> 12 ms. Does the GPU wait for the data?
#    <details><summary>Answer</summary>No. Threads make the next batches while the GPU computes, and 12 is less than 14. A GPU of twice the speed would wait: its step would take 12 ms, not 7.</details>
