# %% [markdown]
# # What a task is
#
# > The training loop's whole view of a problem: data, model, loss, prediction, scores.
#
# The training loop moves batches, updates weights, scores epochs and keeps checkpoints. None of that depends on what an image or a mask is. The rest is behind one class, `Task`. Detection with MSHNet is one subclass. Tomography, event cameras and sign language are others, without a changed line in `device`, `run` or `train`.

# %%
#| hide
#| default_exp task
from typing import NamedTuple

import matplotlib.pyplot as plt

from mshnet.core import Config
from mshnet.device import open_device
from mshnet.task import Task

# %%
#| export
import contextlib
import copy
import hashlib
import itertools
import math
import os
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mshnet.core import TASKS, Settings, UserError, counted, resolve, settings_class, settings_from
from mshnet.device import (
    Device,
    OneProcess,
    each_tensor,
    explained,
    infer,
    make_optimizer,
    parts_of,
    workers,
)
from mshnet.files import prefetch, write_json
from mshnet.places import assert_mounted, installed, where
from mshnet.session import alone, bar
from mshnet.weights import PRETRAINED, has_record, load_weights, read_file, weights_file


# %% [markdown]
# ## A toy task
#
# The problem: find the line y = 3x - 1 from 64 points. The class says what the data are, which network computes y, and what its error is. The loop below the class trains it. It mentions neither the line nor its points, so it would train a detector as well. (`train` also asks for names and scores; the guide [your own task](guides/task.ipynb) has a complete class.)

# %%
class Points(NamedTuple):
    "A batch: places and values of some points."

    x: torch.Tensor
    y: torch.Tensor


class Line(Task):
    "Find the line y = 3x - 1."

    def splits(self, names=("train",)):
        return {"train": torch.linspace(-1, 1, 64)[:, None]}

    def batch(self, data, rows, epoch):
        return Points(data[rows], 3 * data[rows] - 1)

    def model(self):
        torch.manual_seed(self.config.seed)
        return nn.Linear(1, 1)

    def loss(self, model, batch, phase):
        return (model(batch.x) - batch.y).square().mean()

    def predict(self, model, batch, phase):
        return model(batch.x)

    def tally(self):
        "Nothing is scored here; see the section on evaluation."


task = Line(Config(batch_size=16))
data, model = task.splits()["train"], task.model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
for epoch in range(5):
    for rows in task.plan(data, epoch):
        loss = task.loss(model, task.batch(data, rows, epoch), task.phase(epoch))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.4f}")
print(f"y = {model.weight.item():.2f}x {model.bias.item():+.2f}")

# %% [markdown]
# ## The learning rate
#
# The gradients of an untrained network are large and differ from batch to batch, so the first steps are small. Towards the end a small learning rate lets the weights converge; the cosine lowers it smoothly. Below is `Task.rate` in four epochs of 50 steps. The constant rate is reached after one epoch. With a cosine the warm-up takes a tenth of the run, at most one epoch (here 20 steps), and the rate has begun to fall by then:

# %%
plt.figure(figsize=(7, 2.4), layout="constrained")
for schedule in ("constant", "cosine"):
    task = Line(Config(epochs=4, schedule=schedule))
    plt.plot([task.rate(step, 50) for step in range(200)], label=schedule)
plt.gca().set(xlabel="step", ylabel="learning rate")
plt.legend();


# %% [markdown]
# ## The class `Task`
#
# A subclass writes the six abstract methods. All others have a default; the ones to override first are `phase`, `optimizer` and `report`. Augmentation takes its random numbers from `rng`, on the host.

# %%
#| export
class Task(ABC):
    """A problem to train on. A subclass writes splits, batch, model, loss, predict and tally.

    `epoch` is the number of a training epoch; None stands for an evaluation. A batch is a named
    tuple of tensors that share their first dimension.
    """

    better = ("score", 1)  # the score that chooses an epoch; 1 if more is better, else -1

    def __init__(self, config: Any) -> None:  # the settings of this task
        self.config = config

    @abstractmethod
    def splits(self, names: Sequence[str] = ("train", "test")) -> dict[str, Any]:
        """The parts of the data that are asked for, and val where `choose` is val.

        Each has a length, its `name`, the `names` of its samples, a `source` (name of the data
        set), a `hash` (digits of names, sizes and labels, and of bytes in memory) and, where the
        samples lie in files, `content` (by `content_of`).
        """

    @abstractmethod
    def batch(self, data: Any, rows: list[int], epoch: int | None) -> Any:
        "The batch of these samples, a named tuple of tensors on the host; row -1 is padding."

    @abstractmethod
    def model(self) -> nn.Module:
        "A model with the starting weights of the seed, on the CPU."

    @abstractmethod
    def loss(self, model: Any, batch: Any, phase: str) -> Tensor:
        "Mean loss of a batch, computed by `model(...)` itself."

    @abstractmethod
    def predict(self, model: Any, batch: Any, phase: str) -> Any:
        "The prediction: a tensor on the device, or tensors in a tuple, list or dictionary."

    @abstractmethod
    def tally(self) -> Any:
        """An empty count: `add(prediction, batch)` on the host, `gather(ranks)` takes in the counts
        of the other processes, `scores()` returns `Values` or an object with `as_dict()`."""

    def rng(self, row: int, epoch: int | None) -> np.random.Generator:
        "Random numbers of a sample, the same in every evaluation and new in every epoch."
        when = 0 if epoch is None else epoch + 1
        return np.random.default_rng([self.config.seed, when, max(row, 0)])

    def plan(self, data: Any, epoch: int | None) -> list[list[int]]:
        "The rows of each batch, all of one size: shuffled for an epoch, else in order."
        count, size = len(data), self.config.batch_size
        if epoch is None:
            rows = [list(range(i, min(i + size, count))) for i in range(0, count, size)]
            return [row + [-1] * (size - len(row)) for row in rows]
        shuffled = np.random.default_rng([self.config.seed, epoch]).permutation(count).tolist()
        return [shuffled[i : i + size] for i in range(0, count - size + 1, size)]

    def batches(
        self, device: Device, data: Any, plan: Sequence[list[int]], epoch: int
    ) -> Iterator[Any]:
        "The batches of a training epoch, on the device, in order."
        threads = workers(device, self.config.num_workers)
        made = prefetch(lambda rows: self.batch(data, rows, epoch), plan, threads)
        yield from map(device.transfer_batch, made)

    def phase(self, epoch: int) -> str:
        "Name of the part of the training that an epoch belongs to."
        return "full"

    def rate(self, step: int, per_epoch: int) -> float:
        "The learning rate of a step of the run: linear warm-up, then constant or a cosine."
        config, rate = self.config, float(self.config.lr)
        steps = config.epochs * per_epoch
        usual = min(per_epoch, steps // 10) if config.schedule == "cosine" else per_epoch
        grows = usual if config.warmup_steps < 0 else config.warmup_steps
        if step < grows:
            rate *= (step + 1) / grows
        if config.schedule == "cosine":
            fallen = (1 - math.cos(math.pi * step / max(steps - 1, 1))) / 2
            rate *= 1 - (1 - config.lr_end) * fallen
        return rate

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        "The optimizer that the settings name, for all weights of the model."
        groups = [{"params": list(model.parameters()), "lr": self.config.lr}]
        return make_optimizer(self.config.optimizer, groups, self.config.weight_decay)

    def decay(self, step: int) -> float:
        "The decay of the averaged weights before a step of the run: it grows up to `ema`."
        return min(float(self.config.ema), (1 + step) / (10 + step))

    def for_scoring(self, model: Any, device: Device) -> Any:
        "The model as an evaluation calls it, such as a faster copy."
        return model

    def identity(self, parts: dict[str, Any]) -> dict[str, str]:
        "Hashes that a resumed run must repeat: of each split, and of all training names."
        names = [name for k in ("train", "val") if k in parts for name in parts[k].names]
        same = {f"{k} data": v.hash for k, v in parts.items()} | {"training list": digits(names)}
        held = {k: getattr(v, "content", "") for k, v in parts.items()}
        return same | {f"{k} content": content for k, content in held.items() if content}

    def protocol(self, data: Any, scores: Any) -> dict[str, Any]:
        "The facts that must agree before two scores of this task may be compared."
        held = {"content": data.content} if getattr(data, "content", "") else {}
        return {"task": self.config.task, "samples": len(data)} | held

    def evaluate(
        self, model: nn.Module, data: Any, device: Device, phase: str, origin: "Origin"
    ) -> "Evaluation":
        "The final scores of a split, with their protocol."
        scores = score_split(self, model, data, device, phase, "batches")
        whole = protocol(self, data, scores, device, origin)
        return Evaluation(scores, whole, self.config.model_dump())

    def seen(self, data: Any, recorded: dict[str, str]) -> int | None:  # None: unknown
        "How many of these samples the weights were trained on, by the `data` of their checkpoint."
        return None

    @staticmethod
    def warn_of_copies(files: dict[str, dict[str, Path]]) -> None:  # by split and sample
        "Warn of samples of val and test with the name and the content of a training sample."
        for split in [name for name in files if name != "train"]:
            own, train = files[split], files.get("train", {})
            both = [(own[name], train[name]) for name in own if name in train][:1024]
            held = [[content_of(sorted(p.glob("*"))[::9] or [p]) for p in pair] for pair in both]
            if same := sum(one == other for one, other in held):
                found = f"{same} of the {len(own)} samples of {split} are training samples, too"
                warnings.warn(f"{found}; the score does not hold for new data", stacklevel=3)

    def report(self, folder: Path) -> None:  # noqa: B027 - a default
        "Draw a finished run's figures into its folder."

    def advice(self, history: list[dict[str, Any]]) -> str:  # one line; empty: none
        "Advice on a run, judged by its log after a scored epoch."
        return ""

    def about(self, parts: dict[str, Any], device: Device) -> dict[str, str]:
        "The lines on the data that are printed before a run, each with its heading."
        counts = ", ".join(f"{len(data)} {name}" for name, data in parts.items())
        return {"data": f"{parts['train'].source}: {counts}"}

    def describe_data(self) -> tuple[str, bool]:  # several lines; whether it can be used
        "What the data set holds and what is wrong with it, as `mshnet data` prints it."
        return "\n".join(f"{k}: {len(v)} of {v.source}" for k, v in self.splits().items()), True

    def write_data(self, folder: Path) -> str:  # one line on what was written
        "Write a simulated data set; UserError from a task that has none to write."
        raise UserError(f"write={folder}: task {self.config.task} has no data to write")

    def predict_files(self, weights: str, inputs: list[str], **how: Any) -> "Written":
        "Predict files, as `mshnet predict` does; UserError from a task that has no such command."
        raise UserError(f"task={self.config.task}: predicts no files, without `predict_files`")


def digits(names: Sequence[str]) -> str:
    "Twelve digits of a hash of names, in any order, by which a resumed run knows its data."
    text = "\n".join(sorted(names)).encode(errors="surrogateescape")
    return hashlib.sha256(text).hexdigest()[:12]


def even_steps(length: int, count: int) -> list[int]:  # at most `count`
    "Indices at even steps through a list, with the first and the last."
    return np.linspace(0, length - 1, min(count, length)).round().astype(int).tolist()


def content_of(files: Sequence[Path]) -> str:
    "Twelve digits of what files hold: both ends of up to 1,024 of them; empty: there are none."
    found, most, end = hashlib.sha256(), 1024, 16_384  # files, and bytes of each of their ends
    if not files:
        return ""
    for file in files[:: -(-len(files) // most)]:
        with contextlib.suppress(OSError), open(file, "rb") as data:  # reading it reports it
            found.update(data.read(end))
            data.seek(max(data.seek(0, os.SEEK_END) - end, 0))
            found.update(data.read())
    return found.hexdigest()[:12]


def make_task(config: Settings) -> Any:
    "The `Task` of these settings; UserError if it is unknown."
    settings_class(config.task)
    kind = resolve(TASKS[config.task][1])
    if missing := sorted(getattr(kind, "__abstractmethods__", ())):
        raise UserError(f"{kind.__name__}: a task needs the methods {', '.join(missing)}, too")
    return kind(config)


# %% [markdown]
# All planned batches have the same shape, because a new shape is a new program for a compiler. So training drops the remainder of an epoch; padding it would distort the statistics of batch norm. An evaluation must not drop a sample, so its last batch is filled with rows of -1. Two epochs and an evaluation, of five samples in batches of two:

# %%
for epoch in (0, 1, None):
    print(f"epoch {epoch}:", Line(Config(batch_size=2)).plan(range(5), epoch))


# %% [markdown]
# ## The machinery: evaluation
#
# Two programs that score the same training run report different numbers if they differ in the resize, the threshold, the matching rule or the choice of the epoch. There is one evaluation loop, used after every epoch, at the end of a run and by `mshnet test`.
#
# An accelerator need not wait while the host counts. A batch is counted in a thread while the next one is predicted. It is one thread, so batches are counted in order. An error in the thread is raised here, and the thread ends with the loop. On a CPU there is no thread: each batch is predicted, then counted.

# %%
#| export
def predictions(
    task: Task,
    model: nn.Module,  # on the device
    data: Any,
    device: Device,
    phase: str,  # of the training, such as "full"
    unit: str = "",  # of progress, for `bar`
) -> Generator[tuple[Any, Any]]:  # the prediction and its batch; on the host
    "Predict this process's share of a split in batches, in order."
    model.eval()
    step = device.begin("scoring", task.for_scoring(model, device))
    plan = device.ranks.shard(task.plan(data, None))
    if not device.compiles:  # no program depends on the shape of a batch
        plan = [real for rows in plan if (real := [row for row in rows if row >= 0])]
    threads = workers(device, task.config.num_workers)
    batches = prefetch(lambda rows: task.batch(data, rows, None), plan, threads)
    with explained(device, task.config):
        for batch in bar(batches, len(plan), f"score {data.name}", unit):
            found = []
            for part in parts_of(device, batch):
                there = device.transfer_batch(part)
                found.append((infer(device, partial(task.predict, step, there, phase)), part))
            yield from found


def count_predictions(
    count: Callable[[Any, Any], object],  # of a prediction and its batch, on the host
    task: Task,
    model: nn.Module,
    data: Any,
    device: Device,
    phase: str,
    unit: str = "",  # of progress, for `bar`
) -> None:
    "Call `count` with each prediction; beside an accelerator, in a thread."
    with contextlib.closing(predictions(task, model, data, device, phase, unit)) as predicted:
        for _ in prefetch(lambda pair: count(*pair), predicted, min(workers(device, -1), 1)):
            pass


def score_split(
    task: Task, model: nn.Module, data: Any, device: Device, phase: str, unit: str = ""
) -> Any:
    "The scores of a split, as the task's tally returns them."
    tally = task.tally()
    count_predictions(tally.add, task, model, data, device, phase, unit)
    tally.gather(device.ranks)
    return tally.scores()


class RowTally:
    """A value of each sample, by its row in the data: for scores that need all of them.

    A subclass writes `count` and `scores`. Its batches have `row`: the row of each sample, -1 for
    padding, which is not counted.
    """

    def __init__(self, task: Any = None) -> None:  # if `count` or `scores` need it
        self.task, self.rows = task, dict[int, Any]()

    def count(self, prediction: Any, batch: Any) -> Iterable[Any]:
        "A value for each sample of a batch, padding included."
        raise NotImplementedError

    @property
    def values(self) -> list[Any]:
        "The values that were counted, in the order of the rows."
        return list(self.rows.values())

    def add(self, prediction: Any, batch: Any) -> None:
        "Count a batch, without its padding."
        pairs = zip(batch.row.tolist(), self.count(prediction, batch), strict=True)
        self.rows |= {row: value for row, value in pairs if row >= 0}

    def gather(self, ranks: OneProcess) -> None:
        "Join the samples of all processes, in the order of their rows."
        parts = ranks.all_gather(self.rows)
        self.rows = dict(sorted(pair for part in parts for pair in part.items()))


class Values(dict[str, Any]):
    "Scores by name, for a task without a class of its own for them."

    line = ""  # format of the score line; empty: each name with its value
    details: Any = None  # what the scores were counted from, for `Task.evaluate`

    def as_dict(self) -> dict[str, Any]:
        "The form of scores.json; None stands for NaN and infinity."
        plain = {k: v.item() if hasattr(v, "item") else v for k, v in self.items()}  # of numpy
        return {k: None if str(v) in ("nan", "inf", "-inf") else v for k, v in plain.items()}

    def __str__(self) -> str:
        "The score line."
        if self.line:
            return self.line.format(**self).replace("nan", "-")
        texts = {k: f"{v:.3f}" if isinstance(v, float) else str(v) for k, v in self.items()}
        return "  ".join(f"{k} {'-' if v == 'nan' else v}" for k, v in texts.items())


# %% [markdown]
# A network predicts two images, in batches of four. On a CPU, where a batch may have any shape, the one batch has two rows, as printed. A TPU computes two rows of padding as well, and the tally does not count them.

# %%
task = make_task(Config(scenes=8, base_size=32, crop_size=32, batch_size=4))
model, test, device = task.model(), task.splits()["test"], open_device("cpu", "fp32")
print("rows:", [len(batch.mask) for _, batch in predictions(task, model, test, device, "full")])


# %% [markdown]
# Scores count objects, and a fraction of few objects is uncertain. A 95% interval shows how much: it contains the true fraction in about 95 of 100 cases. Wilson's interval is nearly right for small counts too. The usual one (Wald's) reaches beyond 1 there, and has no width if all were found:

# %%
#| export
def wilson(right: int, count: int) -> tuple[float, float]:  # NaN if the count is 0
    "The 95% interval of a fraction (Wilson, 1927)."
    if not count:
        return math.nan, math.nan
    z, p = 1.959964, right / count
    middle = (p + z * z / (2 * count)) / (1 + z * z / count)
    half = z * math.sqrt(p * (1 - p) / count + z * z / (4 * count**2)) / (1 + z * z / count)
    return max(middle - half, 0.0), min(middle + half, 1.0)


# %%
for p in (0.9, 1.0):
    half = 1.96 * (p * (1 - p) / 10) ** 0.5
    both = *wilson(round(10 * p), 10), p - half, p + half
    print(f"{10 * p:.0f} of 10: Wilson", "{:.3f} to {:.3f}, usual {:.3f} to {:.3f}".format(*both))


# %% [markdown]
# ## The protocol
#
# Two scores can be compared only if the images, their size and the matching rule agree. Each score is saved with these facts, its protocol. `Origin` records how the weights were selected: a score whose epoch was chosen on the test list is better than it should be. Below the code is a part of the protocol of such a model:

# %%
#| export
@dataclass(frozen=True)
class Origin:
    "How weights came about; None: unknown."

    chosen: str  # such as "epoch 399, the last"
    seed: int | None = None
    trained_on: str | None = None  # hashes of the training list: its names, and what its files hold
    seen: int | None = None  # scored samples that are among the training samples
    task: str | None = None  # class of the task that trained them


@dataclass(frozen=True, repr=False)
class Evaluation:
    "Scores of a split with their protocol."

    scores: Any  # with `as_dict()`; its text is the score line
    protocol: dict[str, Any]
    settings: dict[str, Any]  # with which it was scored
    details: dict[str, Any] = field(default_factory=dict)  # for curves and figures

    def __str__(self) -> str:
        "The score line."
        return str(self.scores)

    def __repr__(self) -> str:
        "The kind and the score line."
        return f"<{type(self).__name__}: {self}>"

    def save(self, folder: Path) -> None:
        "Write scores.json and details.json."
        scores = {"line": str(self), "scores": self.scores.as_dict(), "protocol": self.protocol}
        write_json(folder / "details.json", {**self.details, "settings": self.settings})
        write_json(folder / "scores.json", scores)


def _own_class(task: str, name: str | None) -> str | None:
    "The name of the class of a task, unless it is the library's."
    return None if TASKS.get(task, ("", ""))[1].endswith(f":{name}") else name


def protocol(task: Task, data: Any, scores: Any, device: Device, weights: Origin) -> dict[str, Any]:
    "How scores came about: data, weights, device and versions."
    own = _own_class(task.config.task, weights.task or type(task).__name__)
    return ({"class": own} if own else {}) | {
        "data": data.source,
        "split": data.name,
        "split_hash": data.hash,
        **task.protocol(data, scores),
        "chosen": weights.chosen,
        "seed": weights.seed,
        "trained_on": weights.trained_on,
        "trained_on_scored_images": weights.seen,
        "device": device.description,
        "precision": device.precision,
        "mshnet": installed("mshnet"),
        "torch": torch.__version__,
    }


def chosen_by(choose: str, best: Any) -> str:  # of a checkpoint
    "Which epoch was kept, and by what, in one phrase for the protocol."
    if best.get("name", "") is None:
        return f"epoch {best['epoch']}, the last one, as the one that was chosen is damaged"
    if choose == "last":
        return f"epoch {best['epoch']}, the last"
    where = {"val": "a held-out part of the training list", "test": "the TEST list itself"}
    return f"epoch {best['epoch']}, by {best['name']} on {where[choose]}"


def origin_of(checkpoint: dict[str, Any]) -> Origin:
    "How a checkpoint's best epoch came about."
    config, data = checkpoint["config"], checkpoint["data"]
    chosen = chosen_by(config["choose"], checkpoint["best"])
    held = config["choose"] != "val" and data.get("train content")  # val: held out by the seed
    parts = [data.get("training list"), *([data.get("train data"), held] if held else [])]
    trained = " ".join(filter(None, parts)) or None
    return Origin(chosen, int(config["seed"]), trained, task=data.get("task"))


def count_seen(
    task: Task,
    data: Any,  # a split
    recorded: dict[str, str],  # the `data` of the weights' checkpoint
    which: str,  # what its samples are for
    remedy: str = "",
) -> int | None:
    "How many of `data` the weights were trained on (None: unknown); warns of any."
    if seen := task.seen(data, recorded):
        what = f"{seen} of the {len(data)} {which} images are among the training images of these"
        text = f"{what} weights; the score does not hold for new images{remedy}"
        warnings.warn(text, stacklevel=3)
    return seen


# %%
past = {"config": {"choose": "test", "seed": 3}, "best": {"epoch": 7, "name": "iou"}, "data": {}}
facts = task.evaluate(model, test, device, "full", origin_of(past)).protocol
for name in ("split", "images", "targets", "size", "threshold", "rule", "chosen"):
    print(f"{name}: {facts[name]}")


# %% [markdown]
# ## A file of weights
#
# Our checkpoints record their task, their network, their epoch, and how that epoch was chosen. Published weights record nothing; we assume that they belong to the requested task and were trained to the end.

# %%
#| export
@dataclass(frozen=True)
class Trained:
    "A model with weights from a file, and the file's record of them."

    model: nn.Module  # on the CPU
    phase: str  # the phase it was trained to
    origin: Origin
    task: str = "detect"  # of TASKS
    record: dict[str, Any] = field(default_factory=dict)  # of the file; {}: published weights
    threshold: float = 0.5  # of the probability, for detections
    multiscale: tuple[float, ...] = ()  # full, reduced, constant, reduction; (): its own size


def scales_of(content: Mapping[str, Any]) -> tuple[float, ...]:
    "The `multiscale` numbers of a file, or those that its run recorded; (): at its own size."
    data = content.get("data", {})
    alone = (0, 1, 0) if "reduction" in data else ()  # at the size of the training
    numbers = content.get("multiscale") or data.get("multiscale", "").split() or alone
    return (*map(float, numbers), float(data.get("reduction", 2)))[:4] if numbers else ()


def trained_model(path: str | os.PathLike[str], config: Settings | None = None) -> Trained:
    "A model with weights (`config`: if the file records none); UserError if of another task."
    path = weights_file(path, config.task if config else "detect")
    content = read_file(path)
    if not has_record(content):
        origin = Origin(f"weights {path.name}; how they were chosen: not known")
        config = config or settings_class("detect")()
        return Trained(_fitted(config, content, path), "full", origin, config.task)
    try:
        record = {name: content[name] for name in ("phase", "epoch", "best", "config")}
        record["data"] = content.get("data", {})  # exported weights of before have none
        if not record["phase"]:
            raise UserError("its run was stopped in the first epoch; resume it")
        record["best"] = record["best"] or {"epoch": None, "name": None}
        origin, threshold = origin_of(record), float(content.get("threshold", 0.5))
        multiscale = scales_of(content)
        if record["epoch"] != record["best"]["epoch"] or content.get("step"):  # steps beyond it
            chosen = f"epoch {record['epoch']}, named by its file {path.name}"
            origin = replace(origin, chosen=chosen)
        made = settings_from(record["config"])
    except UserError as error:  # such as a setting of before, with its remedy
        raise UserError(f"{path}: {error}") from None
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError):
        raise UserError(f"{path}: its record of training is damaged; use another file") from None
    if config and made.task != config.task:
        what = f"{path}: weights of task {made.task}, not of task {config.task}"
        raise UserError(f"{what}; name others, or use task {made.task}")
    if own := _own_class(made.task, origin.task):
        warnings.warn(f"{path}: trained by class {own}, not by {TASKS[made.task][1]}", stacklevel=2)
    model = _fitted(made, content, path)
    return Trained(model, str(record["phase"]), origin, made.task, record, threshold, multiscale)


def _fitted(config: Settings, content: Any, path: Path) -> nn.Module:
    "The model of these settings with the weights of a file; UserError if they do not fit."
    model: nn.Module = make_task(config).model()
    load_weights(model, path, content)
    return model


def trained_task(
    weights: str | os.PathLike[str],  # a run, its folder, a file; empty: the pretrained ones
    usual: Settings,  # of the task that is asked for; used for weights that record none
    **changed: Any,  # settings that differ from those of the training
) -> tuple[Any, Any]:
    "The task that weights were trained for, and their model; UserError for another task."
    trained = trained_model(weights or PRETRAINED, usual)
    config = settings_from(trained.record["config"]) if trained.record else usual
    return make_task(type(config)(**config.model_dump() | changed)), trained.model


# %% [markdown]
# ## Files
#
# With `mshnet predict` a task predicts files. How a file is read and what is written differs from task to task. The rest is the same for the tasks other than detection: a file that cannot be read is reported and skipped (a single one is an error), and the last line counts what was written. The exit status is 1 if a file was skipped.

# %%
#| export
@dataclass(frozen=True)
class Written:
    "What a prediction wrote."

    folder: Path
    line: str  # such as "3 tanks of 2 files"
    skipped: int = 0  # files that cannot be read

    def __str__(self) -> str:
        "The last line of the command, or its last lines."
        joint = "\n" if "\n" in self.line else ", "
        return f"{self.line}{joint}{self.skipped} skipped" if self.skipped else self.line


def read_each(files: Sequence[Path], read: Callable[[Path], Any]) -> Iterator[Any]:
    "What files hold; one for which `read` raises UserError is skipped, UserError if all are."
    skipped = 0
    for file in bar(files, len(files), "predict", "files"):
        try:
            found = read(file)
        except UserError as error:
            if len(files) == 1:
                raise
            warnings.warn(f"skipped: {error}", stacklevel=2)
            skipped += 1
            continue
        yield found
    if skipped == len(files):
        raise UserError(f"none of the {counted(len(files), 'file')} can be read")


def predict_each(
    task: Task,
    model: nn.Module,  # on the device
    samples: Iterable[Any],  # of any kind
    as_data: Callable[[list[Any]], Any],  # some of them as a part of a data set
    device: Device,
    batch_size: int,  # for speed
    at_once: int = 256,  # samples that are read before they are predicted
) -> Iterator[tuple[Any, Any]]:  # a sample and its prediction; without those found unreadable
    "Predict samples in their order, some hundred at a time; batches have `row`, as of `RowTally`."
    rest, one = iter(samples), copy.copy(task)
    while some := list(itertools.islice(rest, at_once)):
        size = -(-min(batch_size, len(some)) // device.world) * device.world
        one.config = task.config.model_copy(update={"batch_size": size})
        found, done = dict[int, Any](), 0  # a plan may have another order than the samples
        for prediction, batch in predictions(one, model, as_data(some), device, "full"):
            rows = enumerate(batch.row.tolist())
            found |= {row: each_tensor(prediction, itemgetter(i)) for i, row in rows if row >= 0}
            while done in found:
                yield some[done], found.pop(done)
                done += 1
        yield from ((some[row], found[row]) for row in sorted(found))


@contextlib.contextmanager
def predictions_folder(
    weights: str | Path,  # a run folder or a file; empty: the pretrained ones
    output_dir: str | Path,  # empty: predictions/NAME, of the run or the file, or NAME-2 ...
    task: str,
    is_same: Callable[[Path], bool] = lambda folder: False,  # whether it holds this prediction
) -> Iterator[Path]:
    "Lock a folder that is empty or holds this prediction; UserError if the given one does not."
    file = weights_file(weights or PRETRAINED, task)
    name = file.resolve().parent.name if file.stem in ("best", "last", "previous") else file.stem
    top = where().runs.with_name("predictions")
    usual = (top / (f"{name}-{i}" if i > 1 else name) for i in itertools.count(1))

    def fits(folder: Path) -> bool:
        return not any(folder.glob("[!.]*")) or is_same(folder)

    assert_mounted(output_dir)
    folder = Path(os.path.expanduser(output_dir)) if output_dir else next(filter(fits, usual))
    if not fits(folder):
        text = "holds something else than this prediction; use another --output-dir"
        raise UserError(f"output_dir={folder}: {text}")
    with alone(folder):
        yield folder


def new_png(folder: Path, given: str) -> tuple[str, Path]:
    "A name that no picture of the folder has yet, by a number if needed, and the picture's file."
    name, number = given, 2
    while (file := folder / re.sub(r'[/\\:*?"<>|]', "-", f"{name}.png")).exists():
        name, number = f"{given}-{number}", number + 1
    return name, file


# %%
print(Written(Path("predictions/mine"), "3 tanks of 2 files", skipped=1))

# %% [markdown]
# ## Questions
#
# 1. The random numbers of a sample depend on the epoch in training, but not in an evaluation. Why?
#    <details><summary>Answer</summary>In training each epoch should show a new variant of the sample. In an evaluation only the weights should differ. Otherwise two scores of the same weights would differ, and epochs could not be compared.</details>
# 2. One detector finds 40 of 50 targets, a second one finds 39. Is the first one better?
#    <details><summary>Answer</summary>These counts do not show it: one target decides. Both saw the same targets, so count those that only one of the two finds. 1 against 0 proves nothing, and neither does 11 against 10.</details>
