# %% [markdown]
# # bench
#
# > How fast does this device train and score, how much memory does that take, and which batch still fits? Measured in minutes, before a device is rented for days.

# %%
#| default_exp bench

# %%
#| hide
import tempfile

from fastcore.test import expect_fail, test_eq

# %%
#| export
import contextlib
import copy
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mshnet.core import UserError
from mshnet.data import Split
from mshnet.detection import Detection, normalise
from mshnet.device import Device, check_batch, device_for
from mshnet.files import make_folder, write_json
from mshnet.places import run_folder
from mshnet.recipe import Config
from mshnet.run import State, environment
from mshnet.session import working
from mshnet.show import even_steps
from mshnet.task import Trained, score_split, trained_model
from mshnet.train import Job, train_epoch
from mshnet.weights import PRETRAINED


# %% [markdown]
# A time means little until we know what was done in it, on which machine, and what else that machine did meanwhile. Three rules:
#
# - **All of it.** A step is measured with its data, and a scoring with its metrics, because a person waits for all of it.
# - **In turns.** The speed of a machine drifts: clocks fall as it warms up, other programs come and go. What we compare takes turns, so a slow minute slows all of it, and the median counts.
# - **Your recipe.** What is measured is a training by the settings, with their data, sizes and precision. `--preset paper` measures the paper's recipe.
#
# How fast a plain PyTorch script is on the same device is measured by [a script of the repository](../results/baseline/beside.py), in turns with the library, after a check that both compute the same.
#
# ## The clock
#
# An accelerator queues its operations and works through them later. A clock that is read after the last call measures how fast we can queue. We synchronize before both readings.

# %%
#| export
def _synchronize(device: Device) -> None:
    "Wait until the device has finished its work."
    if device.kind == "cuda":
        torch.cuda.synchronize(device.name)
    else:
        device.read(device.transfer(torch.zeros(())))


def seconds(work: Callable[[], Any], device: Device) -> float:
    "The time that some work takes, until its last operation is done."
    _synchronize(device)
    start = time.perf_counter()
    work()
    _synchronize(device)
    return time.perf_counter() - start


# %% [markdown]
# Each way goes first every other time. The first turn of each is not counted, because it reads files and wakes threads.

# %%
#| export
def take_turns(
    ways: dict[str, Callable[[int], Any]],  # by name; called with the number of the turn
    repeats: int,
    device: Device,
) -> dict[str, list[float]]:  # seconds of each way, turn by turn
    "Measure several ways in turns, after one turn of each that is not counted."
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(repeats + 1):
        for name in list(ways)[:: 1 if turn % 2 else -1]:
            times[name].append(seconds(partial(ways[name], turn), device))
    return {name: found[1:] for name, found in times.items()}


# %%
small = {"scenes": 8, "base_size": 32, "crop_size": 32, "device": "cpu", "batch_size": 2}
config, order = Config(**small), []
cpu = device_for(config)
times = take_turns({"a": lambda t: order.append("a"), "b": lambda t: order.append("b")}, 2, cpu)
test_eq("".join(order), "ba" + "ab" + "ba")
assert seconds(lambda: time.sleep(0.01), cpu) >= 0.01
{name: len(found) for name, found in times.items()}


# %% [markdown]
# ## What is measured
#
# A few options belong to the bench alone; everything else is a setting.

# %%
#| export
@dataclass(frozen=True)
class Options:
    "The options of a bench, beside the settings of a run."

    repeats: int = 5  # turns of each measurement; the median counts
    batch_sizes: str = ""  # of training, such as "4,16"; empty: batch_size and four times that
    images: int = 32  # of each turn
    largest_batch: bool = False  # find the largest batch that fits, and nothing else

    def __post_init__(self) -> None:
        for name in ("repeats", "images"):
            if (value := getattr(self, name)) < 1:
                raise UserError(f"{name}={value}: write a whole number of at least 1")
        words = self.batch_sizes.split(",") if self.batch_sizes else []
        if not all(word.strip().isdecimal() and int(word) for word in words):
            raise UserError(
                f"batch_sizes={self.batch_sizes!r}: write whole numbers with commas, such as 4,16"
            )

    def sizes(
        self,
        usual: int,  # the batch size of the settings
        images: int,  # to train with
    ) -> list[int]:
        "The batch sizes to train with; UserError for one that is larger than the data."
        if not self.batch_sizes:
            return [size for size in (usual, 4 * usual) if size <= images]
        found = list(dict.fromkeys(map(int, self.batch_sizes.split(","))))
        if max(found) > images:
            raise UserError(
                f"batch_sizes={max(found)}: there are only {images} training images; "
                "write smaller ones, such as --batch-sizes 4"
            )
        return found


# %%
test_eq(Options().sizes(8, 100), [8, 32])
test_eq(Options(batch_sizes="4, 16").sizes(8, 100), [4, 16])
for wrong in ({"batch_sizes": "4;16"}, {"repeats": 0}):
    with expect_fail(UserError, contains="write"):
        Options(**wrong)


# %% [markdown]
# A turn takes some images, evenly spread over their list, where neighbours tend to be alike. **Train** is whole steps, as an epoch after the warm-up makes them: reading, augmenting, copying, forward, loss, backward, update. **Data alone** is the reading, augmenting and copying in it; compared with a step it shows whether the device waits for the data. **Score** is the forward pass and all scores, by the weights of `weight_path` or by the pretrained ones. (Untrained weights take longer: they predict thousands of objects, each of which must be found, measured and compared.)

# %%
#| export
def some(split: Split, images: int, batch: int = 1) -> Split:
    "Images of a split, evenly spread: whole batches, at least one."
    count = max(1, min(images, len(split)) // batch) * batch
    return split.part("some", even_steps(len(split), count))


def fresh_state(task: Detection, device: Device) -> State:
    "The state with which a training begins."
    start = task.model()
    ema = device.to_device(copy.deepcopy(start)) if task.config.ema else None
    model = device.to_device(start)
    return State(model, task.optimizer(model), device.scaler, ema)


def train_on(task: Detection, state: State, data: Split, device: Device, epoch: int) -> float:
    "Train on some images for an epoch; the mean loss."
    return train_epoch(Job(task, {"train": data}, device), state, epoch)[0]


def _ways(
    config: Config,
    data: Split,  # to train with
    test: Split,  # to score
    trained: Trained,  # to score with
    device: Device,
) -> dict[str, Callable[[int], Any]]:
    "What is measured: each is called with the number of its turn."
    task, first = Detection(config), config.warm_epoch + 1
    state, model = fresh_state(task, device), device.to_device(trained.model)

    def train(turn: int) -> None:
        train_on(task, state, data, device, first + turn)

    def read(turn: int) -> None:
        for batch in task.batches(device, data, task.plan(data, first + turn), first + turn):
            normalise(batch.image)

    def score(turn: int) -> None:
        score_split(task, model, test, device, trained.phase)

    return {"train": train, "data alone": read, "score": score}


def measure(
    config: Config,
    options: Options,
    parts: dict[str, Split],
    trained: Trained,  # weights to score with
    device: Device,
) -> list[dict[str, Any]]:
    "Seconds of training, of its data alone, and of scoring: a row each, with every turn."
    batch, rows = config.batch_size, []
    data, test = some(parts["train"], options.images, batch), some(parts["test"], options.images)
    times = take_turns(_ways(config, data, test, trained, device), options.repeats, device)
    for what, found in times.items():
        images = len(test if what == "score" else data)
        row = {"what": what, "batch": batch, "images": images, "raw_seconds": found}
        rows.append(row | {"seconds_per_image": statistics.median(found) / images})
    return rows


# %%
task = Detection(config)
parts, state = task.splits(), fresh_state(task, cpu)
test_eq([len(some(parts["train"], images, 4)) for images in (1, 4, 7, 99)], [4, 4, 4, 8])
assert 0 < train_on(task, state, some(parts["train"], 4, batch=2), cpu, epoch=0) < 10
trained = trained_model(PRETRAINED)
rows = measure(config, Options(repeats=2, images=4), parts, trained, cpu)
assert all(min(row["raw_seconds"]) > 0 for row in rows)
{row["what"]: row["images"] for row in rows}


# %% [markdown]
# ## Memory
#
# The peak of memory can be measured only once per process. Each batch size gets a fresh process, which trains two steps and prints its result as the last line. Out of memory is a result too, and the bench continues. On a TPU only one process can hold the chips, and there is no such measurement.
#
# There is one trap. `ru_maxrss`, the usual measure of peak memory, survives `exec` on Linux: a small program that a large one starts reports the memory of the large one. `VmHWM` does not.

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
    import resource  # not on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def train_two_steps(config: Config) -> dict[str, int]:  # bytes: before the steps, at the peak
    "Train two steps in this process."
    device, task = device_for(config), Detection(config)
    data = some(task.splits()["train"], 2 * config.batch_size, config.batch_size)
    state, before = fresh_state(task, device), _peak(device)
    train_on(task, state, data, device, config.warm_epoch + 1)
    _synchronize(device)
    return {"before": before, "peak": _peak(device)}


_CHILD = """import json, sys
from mshnet.bench import Config, train_two_steps
print(json.dumps(train_two_steps(Config(**json.load(sys.stdin)))))"""


def measure_memory(config: Config) -> dict[str, Any]:  # before and peak (bytes), or error
    "Train two steps in a fresh process."
    settings = json.dumps(config.model_dump())
    program = [sys.executable, "-c", _CHILD]
    done = subprocess.run(program, input=settings, capture_output=True, text=True)
    lines = (done.stderr if done.returncode else done.stdout).strip().splitlines()
    if not done.returncode:
        return {"batch": config.batch_size} | json.loads(lines[-1])
    text = re.sub(r"^mshnet(\.\w+)+: ", "", lines[-1]) if lines else ""  # not the class
    text = re.sub(r" \(`mshnet bench[^)]*\)", "", text)  # which is this command
    return {"batch": config.batch_size, "error": text or f"ended with status {done.returncode}"}


# %%
room = train_two_steps(config)
assert 0 < room["before"] <= room["peak"]
assert "error" in measure_memory(config.model_copy(update={"epochs": 0}))
sorted(room)


# %% [markdown]
# **The largest batch.** We try batches of doubled size until one is out of memory. On a GPU that is an ordinary error. On a host the system kills the process, so there we stop as soon as the growth so far shows that the next size cannot fit.

# %%
#| export
def largest_batch(
    config: Config,  # its batch_size is tried first
) -> list[dict[str, Any]]:  # per size: batch, and before and peak (bytes), or error
    "Train two steps with growing batches; UserError if the first does not fit."
    device, images = device_for(config), len(Detection(config).splits()["train"])
    if device.kind == "xla" or device.ranks.count > 1:
        raise UserError(f"largest_batch: not on {device.name}, which one process holds")
    rows: list[dict[str, Any]] = []
    batch, room = config.batch_size, device.free()
    while batch <= images:
        with working(f"batch {batch}"):
            rows.append(measure_memory(config.model_copy(update={"batch_size": batch})))
        if "error" in rows[-1]:
            break
        grows = rows[-1]["peak"] - rows[-1]["before"]
        if device.kind == "cpu" and rows[-1]["peak"] + grows > 0.9 * room:
            rows.append({"batch": 2 * batch, "error": "would not fit into the free memory"})
            break
        batch *= 2
    if "error" in rows[0]:
        raise UserError(f"batch_size={config.batch_size} does not run: {rows[0]['error']}")
    return rows


def _memory_text(rows: list[dict[str, Any]]) -> str:
    "The peak of each batch size, or its error."
    found = [(row["batch"], row.get("error") or f"{row['peak'] / 2**20:.0f} MiB") for row in rows]
    return "\n".join(f"batch {batch:5}: {text}" for batch, text in found)


def largest_text(rows: list[dict[str, Any]]) -> str:
    "The tried batch sizes, and the flag to write."
    most = max(row["batch"] for row in rows if "error" not in row)
    return f"{_memory_text(rows)}\nwrite --batch-size {most}"


# %%
print(largest_text([{"batch": 4, "peak": 2**30}, {"batch": 8, "error": "out of memory"}]))
[row["batch"] for row in largest_batch(config.model_copy(update={"batch_size": 8}))]


# %% [markdown]
# ## The whole bench
#
# Memory comes first, while this process is still small. The file has the names of folders without their paths, and no name of a machine. Its content can be printed again as a table, on a different machine, a year later.

# %%
#| export
def bench(
    config: Config,
    options: Options,
) -> dict[str, Any]:  # the content of bench.json
    "Measure, and write bench.json into output_dir (runs/bench if empty)."
    named = Path(config.output_dir).expanduser()
    folder = named if config.output_dir else run_folder(config).parent / "bench"
    config = config.model_copy(update={"log_every": 1_000_000})  # no reading between steps
    device, parts = device_for(config), Detection(config).splits()
    sizes = options.sizes(config.batch_size, len(parts["train"]))
    for size in sizes:
        check_batch(device, size)
    trained = trained_model(config.weight_path or PRETRAINED, config)
    if trained.task != "detect":
        raise UserError(f"weight_path={config.weight_path!r}: weights of task {trained.task}")
    each = [config.model_copy(update={"batch_size": size}) for size in sizes]
    memory, rows = [], []
    for one in each if device.kind != "xla" else []:
        with working(f"memory, batch {one.batch_size}"):
            memory.append(measure_memory(one))
    for one in each:
        with working(f"time, batch {one.batch_size}"):
            rows += measure(one, options, parts, trained, device)
    names = ("dataset_dir", "weight_path", "output_dir")
    counts = ", ".join(f"{len(parts[name])} {name}" for name in ("train", "test"))
    content = {
        "format": 2,
        "data": f"{parts['train'].source}: {counts}",
        "config": config.model_dump() | {name: Path(getattr(config, name)).name for name in names},
        "options": asdict(options),
        "environment": environment(device.why),
        "memory_of": "GPU" if device.kind == "cuda" else "host",
        "memory": memory,
        "rows": rows,
    }
    make_folder(folder)
    write_json(folder / "bench.json", content)
    return content


def table(
    content: dict[str, Any],  # of bench.json
) -> str:
    "A bench as text."
    settings, lines = content["config"], []
    for row in content["rows"]:
        each, what = row["seconds_per_image"], f"{row['what']}, batch {row['batch']}"
        lines.append(f"{what:24}{1e3 * each:10.2f}{1 / each:10.1f}")
    crop, size = settings["crop_size"], settings["base_size"]
    return "\n".join(
        [
            f"device  {content['environment']['device']}",
            f"data    {content['data']}",
            f"sizes   trained on {crop}x{crop} pixels, scored at {size}x{size}",
            f"weights {settings['weight_path'] or PRETRAINED} (for scoring)",
            f"turns   median of {content['options']['repeats']}",
            f"\n{'':24}{'ms/image':>10}{'images/s':>10}",
            *lines,
            f"\npeak memory of the {content['memory_of']}, in training:",
            _memory_text(content["memory"]),
        ]
    )


# %%
with tempfile.TemporaryDirectory() as tmp:
    here = config.model_copy(update={"output_dir": f"{tmp}/bench"})
    content = bench(here, Options(repeats=1, batch_sizes="2", images=2))
    test_eq(json.loads(Path(tmp, "bench/bench.json").read_text()), content)
assert "train, batch 2" in table(content)
sorted(content)

# %% [markdown]
# Compare the data with the whole step first: above a few percent the device waits for them. Then read the memory, which decides the batch size. The time of an epoch is that of its training images plus that of its scored images, and the epochs of a recipe times that is a projection of a training, without its start and its checkpoints. On images of 32x32 none of these numbers means anything.
#
# On the command line: `mshnet bench --dataset-dir data/NUAA-SIRST --weight-path runs/NAME/best.pt`. [The guide](guides/speed.ipynb) shows all measurements so far.
