# %% [markdown]
# # train
#
# > One call trains, scores, keeps and resumes a run: plain functions, read from top to bottom.

# %%
#| default_exp train

# %%
#| hide
from fastcore.test import expect_fail, test_close, test_eq

from mshnet.core import Config

# %%
#| export
import contextlib
import copy
import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path
from typing import Any

import torch

# %% [markdown]
# From the notebooks before this one:

# %%
#| export
from mshnet.core import (
    OF_ITS_MACHINE,
    STOPPED,
    Settings,
    UserError,
    as_user_error,
    counted,
    digest,
)
from mshnet.device import (
    DeviceSteps,
    TooLarge,
    best_device,
    device_for,
    open_device,
    started_processes,
)
from mshnet.evaluate import chosen_by, origin_of
from mshnet.model import load_weights, weights_file
from mshnet.places import (
    Mirror,
    bring_back,
    copies_of,
    first_process,
    mirror_folder,
    mount_drive,
    run_folder,
    session_hours,
    session_seconds,
    wants_drive,
)
from mshnet.task import Task, make_task, score_split

# %% [markdown]
# A run's files and their safety:

# %%
#| export
from mshnet.run import (
    Background,
    Folder,
    Interrupted,
    State,
    Stop,
    Stopped,
    alone,
    bar,
    duration,
    earlier,
    good,
    keep,
    load,
    note,
    prepare,
    profiled,
    restore,
    say_status,
    snapshot,
    tensorboard,
    write_checkpoint,
    write_json,
    written_down,
)


# %% [markdown]
# ## The losses of an epoch
#
# The loop never waits for the device: losses are summed there and read at log lines and at the end. A sum that is no number stays none, so the count of the steps in which it was one points to the step that spoiled it.

# %%
#| export
class NotFinite(UserError):
    "A loss that is no number, with what is known of its batch."

    def __init__(self, text: str, facts: dict[str, Any]) -> None:
        super().__init__(text)
        self.facts = facts


class Losses:
    "The sums of an epoch's losses, on the device."

    def __init__(self, device: DeviceSteps, total: float = 0.0, step: int = 0) -> None:
        self.device, self.step = device, step
        self.total = device.send(torch.tensor(total))
        self.fine = device.send(torch.tensor(float(step)))  # steps after which it was a number
        self.parts: dict[str, torch.Tensor] = {}  # sums of the named parts of a loss

    def add(self, loss: torch.Tensor, parts: dict[str, torch.Tensor] | None = None) -> None:
        "Count the loss of a step, and its parts if they have names."
        self.step += 1
        self.total = self.total + loss
        self.fine = self.fine + self.total.isfinite()
        for name, value in (parts or {}).items():
            self.parts[name] = self.parts.get(name, 0.0) + value

    def mean(self) -> float:
        "Mean loss of the steps so far; ArithmeticError with the step that spoiled it."
        sum_of_all = self.device.read(self.device.mean(self.total)).item()
        if not math.isfinite(sum_of_all):
            fine = self.device.gather(int(self.device.read(self.fine).item()))
            raise ArithmeticError(min(fine))
        return float(sum_of_all / self.step)

    def sums(self) -> dict[str, float]:
        "Sum of each named part so far, in this process."
        return {name: self.device.read(value).item() for name, value in self.parts.items()}


# %%
losses = Losses(open_device("cpu"))
for value in (0.5, 0.25):
    losses.add(torch.tensor(value))
test_eq(losses.mean(), 0.375)
losses.add(torch.tensor(torch.nan), {"nan": torch.tensor(1.0)})
test_eq(losses.sums(), {"nan": 1.0})
with expect_fail(ArithmeticError, contains="2"):
    losses.mean()


# %% [markdown]
# What is worth knowing of the batch that did it is written to the run's folder: its images, their numbers, and the weights that were no number already.

# %%
#| export
def spoiled(
    task: Task,
    state: State,
    split: Any,  # the training data
    epoch: int,
    step: int,  # the first whose loss is no number, from 0
) -> NotFinite:
    "The error of a loss that is no number."
    rows = task.plan(split, epoch)[step]
    names = [split.names[i] for i in rows]
    batch = task.batch(split, rows, epoch)
    values = {k: v.float().flatten(1) for k, v in batch._asdict().items() if v.ndim > 1}
    images = {
        k: [[f"{n:.6g}" for n in (x.min(), x.mean(), x.max())] for x in v]
        for k, v in values.items()  # as text: JSON knows no NaN
    }
    bad = [k for k, v in state.model.state_dict().items() if not v.isfinite().all()]
    steps = len(task.plan(split, epoch))
    facts = {"epoch": epoch, "step": step, "names": names}
    facts |= {"lr": task.rate(epoch * steps + step, steps)}
    return NotFinite(
        f"epoch {epoch}, step {step}: the loss is no number; images {', '.join(names[:4])} (all in "
        "not_finite.json); the last good checkpoint is kept; try --clip-grad 1, a smaller --lr or "
        "--precision fp32",
        facts
        | {f"{k}: least, mean, most": v for k, v in images.items()}
        | {"weights that are no numbers now": bad},
    )


# %% [markdown]
# ## One step, one epoch
#
# A step is a forward pass, a backward pass and an update. A batch that is larger than the memory is computed in parts, whose gradients add up to those of the batch. (Not quite: batch norm takes its means over a part.) The loss is counted before the update: a TPU runs with an update what was recorded before it, so that a step is one program.

# %%
#| export
def train_step(
    task: Task,
    model: Any,  # as `device.begin` gave it
    batch: Any,  # on the device
    phase: str,
    optimizer: torch.optim.Optimizer,
    device: DeviceSteps,
    losses: Losses,  # to which the batch's mean loss is added
) -> None:
    "One update of the weights."
    *others, last = device.parts(batch)
    done = dict[str, Any]()  # the loss and its named parts, of the parts of the batch so far
    for part in others:
        loss, named = loss_of(task, model, part, phase, device, len(part[0]) / len(batch[0]))
        done = {name: value + done.get(name, 0.0) for name, value in named.items()}
        device.add_gradients(loss)
    share = len(last[0]) / len(batch[0]) if others else 1.0
    loss, named = loss_of(task, model, last, phase, device, share)
    if others:
        named = {name: done[name] + value for name, value in named.items()}
    losses.add(named.pop(""), named)
    device.update(loss, optimizer, task.config.clip_grad)


def loss_of(
    task: Task,
    model: Any,
    batch: Any,
    phase: str,
    device: DeviceSteps,
    share: float,  # of the whole batch
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:  # to be trained; to be counted, the sum as ""
    "The loss of a batch or of a part of one, and its named parts."
    with device.autocast():
        found = task.loss(model, batch, phase)
        parts = found if isinstance(found, dict) else {}
        loss = reduce(torch.add, parts.values()) if isinstance(found, dict) else found
        if share < 1:
            loss = loss * share
    return loss, {"": loss.detach()} | {k: v.detach() * share for k, v in parts.items()}


# %% [markdown]
# Before a step its learning rate is set, and the weights that the steps before it left are averaged. Averaging comes first so that on a TPU it belongs to the step's program. The decay grows to `ema`, because an average over a thousand steps would remember the random start for long:
#
# $$\bar w \leftarrow \bar w + (1 - d_t)(w - \bar w), \quad d_t = \min\left(\mathrm{ema}, \frac{1 + t}{10 + t}\right)$$
#
# Before the first step both are equal, so that averaging changes nothing. Batch norm's statistics are averaged too, and its counters copied: they belong to the weights that made them.

# %%
#| export
def average(
    ema: torch.nn.Module,
    model: torch.nn.Module,
    share: float | torch.Tensor,  # of the model's weights in the new average, 0..1
) -> None:
    "Move averaged weights and buffers towards those of the model."
    with torch.no_grad():
        pairs = zip(ema.state_dict().values(), model.state_dict().values(), strict=True)
        for old, new in pairs:
            if old.is_floating_point():
                old.lerp_(new, share)
            else:
                old.copy_(new)


def prepare_step(
    task: Task,
    state: State,
    device: DeviceSteps,
    step: int,  # of the run, from 0
    per_epoch: int,
) -> None:
    "Average the weights before a step, and set the step's learning rate in every group."
    if state.ema is not None:
        decay = min(task.config.ema, (1 + step) / (10 + step))
        average(state.ema, state.model, device.number(1 - decay))
    factor = task.rate(step, per_epoch) / task.config.lr
    for group in state.optimizer.param_groups:
        group["lr"] = device.number(group.setdefault("initial_lr", group["lr"]) * factor)


# %% [markdown]
# The epoch does not know what kind of device it runs on, and, but for the task, not what it trains. After each step it looks whether it is asked to stop (several processes look at log lines, where they can agree), and leaves its place in the state.

# %%
#| export
def train_epoch(
    task: Task,
    state: State,
    split: Any,  # the training data
    device: DeviceSteps,
    epoch: int,
    stop: Stop | None = None,  # None: nobody asks
) -> tuple[float, dict[str, float]]:  # mean loss of the epoch, and of its named parts
    "Train for one epoch, or for what is left of it; Stopped if it is asked to stop."
    model, plan = begin_epoch(task, state, split, device, epoch), task.plan(split, epoch)
    plan, config, phase = device.share(plan), task.config, task.phase(epoch)
    losses = Losses(device, own_total(state, device), state.step)
    batches = task.batches(device, split, plan[state.step :], epoch)
    steps = bar(batches, len(plan) - state.step, f"epoch {epoch}")
    try:
        with profiled(config.profile) as watch, device.in_memory(config.batch_size):
            for batch in steps:
                prepare_step(task, state, device, epoch * len(plan) + losses.step, len(plan))
                train_step(task, model, batch, phase, state.optimizer, device, losses)
                watch()
                if losses.step == len(plan):
                    break
                if pause := losses.step % config.log_every == 0:
                    adapt(device)
                    where = f"epoch {epoch}, step {losses.step}/{len(plan)}"
                    note(steps, where, f"loss {losses.mean():.4f}")
                if stop and (reason := device.agree(stop.reason, pause)):
                    losses.mean()  # no place in an epoch that is spoiled
                    state.step = losses.step
                    state.total = device.gather(device.read(losses.total).item())
                    state.parts = part_sums(losses, state, device)
                    state.random = device.gather(device.random_states())
                    raise Stopped(reason, stop.number)
        sums = part_sums(losses, state, device)
        return losses.mean(), {name: value / losses.step for name, value in sums.items()}
    except ArithmeticError as error:
        raise spoiled(task, state, split, epoch, error.args[0]) from None


# %% [markdown]
# Its beginning, or its beginning again: each of several processes has a sum and random numbers of its own. With another number of processes than before there is only the mean to go on with, and random numbers from the epoch's start.

# %%
#| export
def own_total(state: State, device: DeviceSteps) -> float:
    "The sum of losses that this process goes on with."
    if len(state.total) == device.processes:
        return state.total[device.rank]
    return sum(state.total) / max(len(state.total), 1)


def part_sums(losses: Losses, state: State, device: DeviceSteps) -> dict[str, float]:
    "Sums of the named losses of an epoch, also of before an interruption; mean of all processes."
    each = device.gather(losses.sums())
    names = sorted(state.parts.keys() | each[0].keys())
    now = {name: sum(sums.get(name, 0.0) for sums in each) / len(each) for name in names}
    return {name: state.parts.get(name, 0.0) + now[name] for name in names}


def begin_epoch(task: Task, state: State, split: Any, device: DeviceSteps, epoch: int) -> Any:
    "Get ready for an epoch, or for the rest of one; the model as a step calls it."
    adapt(device)
    device.seed(task.config.seed, epoch)
    if state.step and len(state.random) == device.processes:
        device.set_random_states(state.random[device.rank])
    state.model.train()
    state.optimizer.zero_grad(set_to_none=True)
    return device.begin(task.phase(epoch), state.model, state.optimizer)


def adapt(device: DeviceSteps) -> None:
    "Let a CPU use the cores that other programs leave, and print what changes."
    if changed := device.adapt():
        print(f"  {changed}", flush=True)


# %%
config = Config(
    scenes=8, base_size=32, crop_size=32, choose="last", device="cpu", epochs=3, warm_epoch=0
)
task, device = make_task(config), open_device("cpu")
parts, model = task.splits(), device.place(task.model())
state = State(model, task.optimizer(model))
adapt(device)  # prints a line where another program came or went
losses = [train_epoch(task, state, parts["train"], device, 0)[0] for _ in range(2)]
test_eq(device.reads, 2)
test_eq(state.optimizer.param_groups[0]["lr"], task.rate(1, per_epoch=2))
ema = task.model()
average(ema, model, 0.25)
test_close(ema.final.bias.item(), 0.25 * model.final.bias.item())
prepare_step(task, State(model, state.optimizer, ema=ema), device, 1, 2)
test_close(ema.final.bias.item(), model.final.bias.item() * (1 - 0.75 * 2 / 11))
assert begin_epoch(task, state, parts["train"], device, 0) is model
batch, summed = task.batch(parts["train"], [0, 1], 0), Losses(device)
train_step(task, model, batch, "full", state.optimizer, device, summed)
assert spoiled(task, state, parts["train"], 0, 1).facts["names"] and summed.mean() > 0
losses

# %% [markdown]
# Asked to stop after its first step, it leaves its place, and goes on from there:

# %%
with expect_fail(Stopped, contains="over"):
    train_epoch(task, state, parts["train"], device, 1, Stop(seconds=-1, why="time is over"))
test_eq(state.step, 1)
loss, _ = train_epoch(task, state, parts["train"], device, 1)
state.step, state.total = 0, []
test_eq(part_sums(Losses(device, step=1), State(model, state.optimizer), device), {})
test_eq(loss_of(task, model, batch, "full", device, 0.5)[1].keys(), {""})
test_eq(own_total(State(model, state.optimizer, total=[1.0, 3.0]), device), 2.0)
assert issubclass(NotFinite, UserError)


# %% [markdown]
# ## Which epoch is kept
#
# `best.pt` is the last epoch with `choose="last"`; otherwise the one with the best IoU on the held-out part or, on request, on the test list. The first warm-up epochs can win too; the checkpoint knows which head to use.

# %%
#| export
def judge_split(
    config: Settings,
) -> str:  # "val" or "test"
    "The split that is scored after an epoch: the one that chooses, or the test list to look at."
    return "val" if config.choose == "val" else "test"


def is_best(
    task: Task,
    state: State,
    scores: dict[str, Any] | None,  # of the epoch that just ended; None if it was not scored
) -> bool:
    "Whether the epoch that just ended is to be kept."
    if task.config.choose == "last":
        return True
    if scores is None:
        return False
    name, direction = task.better
    if state.best is None or state.best["score"] is None:  # anything is better than nothing
        return True
    return scores[name] is not None and scores[name] * direction > state.best["score"] * direction


# %%
state.best = {"epoch": 0, "name": "iou", "score": 0.4}
judge = make_task(Config(choose="val"))
test_eq(
    [is_best(judge, state, s) for s in ({"iou": 0.5}, {"iou": 0.3}, None)], [True, False, False]
)
test_eq([judge_split(Config(choose=c)) for c in ("val", "last", "test")], ["val", "test", "test"])


# %% [markdown]
# ## An epoch from end to end
#
# Train, score, log, keep. A loss that is no number ends the run before anything is overwritten: the last good checkpoint stays.

# %%
#| export
def epoch_entry(
    task: Task,
    state: State,
    parts: dict[str, Any],
    device: DeviceSteps,
    epoch: int,
    stop: Stop | None = None,
) -> dict[str, Any]:  # the epoch's line in the log
    "Train and score one epoch."
    config, start, begun = task.config, time.monotonic(), state.step
    loss, named = train_epoch(task, state, parts["train"], device, epoch, stop)
    trained = time.monotonic() - start
    phase, name = task.phase(epoch), judge_split(config)
    steps = len(task.plan(parts["train"], epoch))
    lr = task.rate((epoch + 1) * steps - 1, steps)  # of the last step
    entry = {"epoch": epoch, "phase": phase, "loss": loss, "lr": lr, "split": name}
    due = (epoch + 1) % config.eval_every == 0 or epoch == config.epochs - 1
    if due:
        scores = score_split(task, state.scored, parts[name], device, phase)
        entry |= {"line": str(scores), "scores": scores.as_dict()}
    seconds = time.monotonic() - start
    times = {"train_seconds": round(trained, 2), "seconds": round(seconds, 2)}
    unusual = {
        "begun_at_step": begun,
        "micro_batch": device.micro,
        "losses": named,
    }
    entry |= {name: value for name, value in unusual.items() if value}
    entry |= task.facts(parts["train"])
    return entry | times | {"device": device.why} | device.facts()


# %% [markdown]
# All processes take note of the epoch; one of them writes it. The log line is written before the checkpoint: a run that is killed between the two repeats the epoch and marks it, and nothing is lost.

# %%
#| export
def advance(
    task: Task,
    state: State,
    entry: dict[str, Any],  # of the epoch that just ended
) -> None:
    "Take an epoch into the state, as the best one where it is."
    state.epoch, state.phase = entry["epoch"], entry["phase"]
    state.step, state.total, state.parts, state.random = 0, [], {}, []
    scores, name = entry.get("scores"), task.better[0]
    if is_best(task, state, scores):
        value = scores[name] if scores else None
        state.best = {"epoch": state.epoch, "name": name, "score": value}


# %%
entry = epoch_entry(task, state, parts, device, 1)
advance(task, state, entry)
with tempfile.TemporaryDirectory() as tmp:
    folder = Folder(Path(tmp))
    with Background() as background:
        keep(folder, task.config, state, entry, {}, background)
    test_eq(load(folder.file("best.pt"))["epoch"], 1)
    test_eq(len(folder.history()), 1)
entry["line"]


# %% [markdown]
# How many steps a run has, and which splits, is known with its data. What does not fit is refused before anything is spent:

# %%
#| export
def check_data(
    task: Task,
    parts: dict[str, Any],
) -> None:
    "UserError if the data have no split to score, or if the rate would grow to the end of the run."
    config = task.config
    if lacking := {"train", "test"} - parts.keys():
        raise UserError(f"task {config.task} has no {min(lacking)} split, which every task needs")
    if judge_split(config) not in parts:
        raise UserError(
            f"choose={config.choose}: task {config.task} has no {judge_split(config)} split; "
            "write --choose last"
        )
    per_epoch = len(task.plan(parts["train"], 0))  # steps of an epoch
    steps = config.epochs * per_epoch
    if config.warmup_steps >= steps:
        raise UserError(
            f"warmup_steps={config.warmup_steps}: the run has {counted(steps, 'step')}; write "
            f"--warmup-steps {steps // 10} or fewer, or more --epochs"
        )


# %%
with expect_fail(UserError, contains="the run has 4 steps; write --warmup-steps 0"):
    check_data(make_task(Config(warmup_steps=20, epochs=2)), parts)
with expect_fail(UserError, contains="task detect has no val split; write --choose last"):
    check_data(judge, parts)


# %% [markdown]
# ## The whole run
#
# `train` is what the runners and `mshnet train` call. It returns a `Run`, whose parts are read from the folder: there is one truth, and it is on the disk.

# %%
#| export
@dataclass(frozen=True)
class Run:
    "A run: its folder, and what is in it."

    folder: Path
    config: Settings
    ended: str  # why it ended

    @property
    def history(self) -> list[dict[str, Any]]:
        "One entry per epoch."
        return Folder(self.folder).history()

    @property
    def scores(self) -> dict[str, Any]:
        "Content of scores.json: the score line, the scores and their protocol; empty: none yet."
        return Folder(self.folder).read_json("scores.json")

    def __str__(self) -> str:
        "The score line."
        return str(self.scores.get("line", "no scores yet"))

    def listing(self) -> str:
        "The run's files, with their sizes."
        files = sorted(p for p in self.folder.rglob("*") if p.is_file())
        lines = [f"{p.stat().st_size / 1e6:8.2f} MB  {p.relative_to(self.folder)}" for p in files]
        return "\n".join([str(self.folder), *lines])

    def _repr_html_(self) -> str:
        "A table for the notebook."
        found = [self.scores.get(part, {}) for part in ("scores", "protocol")]
        rows = {**found[0], **found[1], "folder": self.folder, "ended": self.ended}
        cells = [f"<tr><th>{k}</th><td>{v}</td></tr>" for k, v in rows.items()]
        return f"<table>{''.join(cells)}</table>"


# %% [markdown]
# Why a run ended is in its `status.json`. Of several processes that fail the first to say so is the one with the reason; the others fail because it did. If not even this can be written, the error itself is still told.

# %%
#| export
def ended(
    folder: Folder,
    error: BaseException,
) -> None:
    "Say in the run's folder why it ended, unless it is said."
    last = folder.read_json("status.json")
    if last.get("state") == "running":
        stopped = isinstance(error, KeyboardInterrupt)
        reason = str(error) or "interrupted" if stopped else f"{type(error).__name__}: {error}"
        with contextlib.suppress(UserError):
            say_status(folder, "stopped" if stopped else "failed", last["epochs_done"] - 1, reason)


# %%
with tempfile.TemporaryDirectory() as tmp:
    folder = Folder(Path(tmp))
    say_status(folder, "running", 2)
    for error in (ValueError("first"), ConnectionError("because of the first")):
        ended(folder, error)
    test_eq(folder.read_json("status.json")["reason"], "ValueError: first")


# %% [markdown]
# ## On several GPUs
#
# Several GPUs need several processes, and `torchrun` starts them. From a terminal that is `torchrun --nproc-per-node=2 -m mshnet train ...`; a notebook cell, or `mshnet train --num-devices 2`, has it started here. What the first process prints is passed on as it comes, so that a cell shows the epochs. The one line of a mistake is passed on too, without torchrun's own pages around it.

# %%
#| export
def processes_to_start(
    config: Settings,
) -> bool:
    "Whether this run needs processes that nobody has started: not on a TPU, and not in torchrun."
    kind = best_device() if config.device == "auto" else config.device
    return config.num_devices > 1 and kind != "xla" and not started_processes()


def all_gpus(
    config: Settings,
) -> Settings:  # with their number, unless one is written or there is but one
    "The settings for all NVIDIA GPUs of this machine."
    count = torch.cuda.device_count() if config.device in ("auto", "cuda") else 0
    if config.num_devices or count < 2:
        return config
    return config.model_copy(update={"num_devices": count})


# %% [markdown]
# The settings travel to the processes in a file.

# %%
#| export
def launch(
    config: Settings,
    processes: int,  # one per GPU
) -> Run:
    "Train in several processes of this machine; UserError with their line if they made a mistake."
    if processes > (there := torch.cuda.device_count()) > 0 and config.device != "cpu":
        raise UserError(f"num_devices={processes}: this machine has {there} GPUs; write {there}")
    threads = str(max(1, (os.cpu_count() or 1) // processes))
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder) / "config.json"
        left = max(session_hours(config) - session_seconds() / 3600, 1e-6)
        own = {"num_devices": processes, "max_hours": left if math.isfinite(left) else 0.0}
        settings.write_text(json.dumps(config.model_dump() | own))
        started = subprocess.Popen(
            [
                *(sys.executable, "-u", "-m", "torch.distributed.run", "--standalone"),
                *(f"--nproc-per-node={processes}", "-m", "mshnet", "train", "--config", settings),
            ],
            env={"OMP_NUM_THREADS": threads, **os.environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # a terminal's Ctrl-C comes from here, and once
        )
        run = Folder(run_folder(config))
        mistakes, asked = accompany(started, run)
    if asked.number:
        raise Interrupted(asked.reason, asked.number)
    if mistakes:
        raise UserError(mistakes[0])
    if status := started.wait():
        raise RuntimeError(f"a process ended with an error (status {status}): see the lines above")
    return Run(run.path, config, run.read_json("status.json")["reason"])


# %% [markdown]
# A signal reaches this process alone (an interrupted cell interrupts the kernel), so it is passed on: the first one is a wish, and everything is said that the processes say until they have ended. Who asks again does not wait for that; they end after their step.

# %%
#| export
class StopAll(Stop):
    "A Stop that passes on to other processes that it was asked."

    def __init__(self, started: subprocess.Popen[str]) -> None:
        super().__init__()
        self.started = started

    def hear(self, number: int, frame: Any) -> None:
        "Take note of a signal, and pass it on."
        if self.number:
            self.started.kill()
        else:
            self.started.send_signal(signal.SIGTERM if os.name == "nt" else number)
        super().hear(number, frame)


def accompany(started: subprocess.Popen[str], run: Folder) -> tuple[list[str], StopAll]:
    "Pass on what torchrun's processes say until they end: their mistakes, and who asked to stop."
    asked = StopAll(started)
    with asked:
        try:
            mistakes = pass_on(without_its_signal(started.stdout or ()), asked)
        except BaseException:
            started.terminate()  # nobody waits for its processes, which end after their step
            ended(run, KeyboardInterrupt())
            raise
        started.wait()
        if asked.number:
            ended(run, Interrupted(asked.reason))
    return mistakes, asked


# %% [markdown]
# What torchrun says itself is left out: its pages about a process that failed, and its own traceback when it is asked to stop.

# %%
#| export
def without_its_signal(lines: Iterable[str]) -> Iterator[str]:
    "The lines without the traceback that torchrun makes of a signal."
    block: list[str] = []
    for line in lines:
        if not block and not line.startswith("Traceback (most recent call last)"):
            yield line
            continue
        block.append(line)
        if len(block) > 1 and not line.startswith((" ", "\n")):  # the exception itself
            yield from block if "SignalException" not in line else ()
            block = []
    yield from block


def pass_on(
    lines: Iterable[str],  # as they come from the processes
    asked: Stop,
) -> list[str]:  # the mistakes among them, which are not printed
    "Print what the processes say, up to torchrun's own report of a failure."
    mistakes, over = [], False
    for line in lines:
        report = re.match(r"[EWI]\d+ .*elastic.*(failed \(exitcode|Sending process|signal)", line)
        over = over or bool(report and not asked.number)
        if found := re.match(r"mshnet(, process \d+)?: (.*)", line):
            mistakes += [found[2]] if found[2] != STOPPED else []
        elif not over and not report:
            print(line, end="", flush=True)
    return mistakes


# %%
end = "E1121 06:08 1 torch/distributed/elastic/multiprocessing/api.py:1] failed (exitcode: 2)\n"
said = ["W1 1 torch/distributed/elastic/redirects.py:35] NOTE: on a Mac\n", "epoch 0\n"]
lines = [*said, f"mshnet: {STOPPED}\n", "mshnet, process 1: epochs=0\n", end, "Traceback\n"]
test_eq(pass_on(lines, Stop()), ["epochs=0"])
trace = ["Traceback (most recent call last):\n", "  File x\n", "a.SignalException: got 15\n"]
test_eq([*without_its_signal(["a\n", *trace, "b\n", *trace[:2]])], ["a\n", "b\n", *trace[:2]])
test_eq(all_gpus(Config(device="cpu")).num_devices, 0)
with tempfile.TemporaryDirectory() as tmp:
    folder, text = (
        Folder(Path(tmp)),
        "import os, signal, time; print(1, flush=True)\ntime.sleep(60)",
    )
    say_status(folder, "running", 2)
    with subprocess.Popen(
        [sys.executable, "-c", text], stdout=subprocess.PIPE, text=True
    ) as started:
        threading.Timer(1, lambda: signal.raise_signal(signal.SIGTERM)).start()
        mistakes, asked = accompany(started, folder)
    assert not mistakes and isinstance(asked, StopAll)
    test_eq((asked.reason, folder.read_json("status.json")["reason"]), ("SIGTERM", "SIGTERM"))
with expect_fail(UserError, contains="data is no folder of this machine"):
    launch(Config(device="cpu", dataset_dir="data is no folder of this machine", epochs=7), 2)
assert not processes_to_start(Config(device="cpu"))


# %% [markdown]
# ## A session of a run
#
# While it trains, a run has three companions: somebody who listens for the wish to stop, a mirror that copies its files to where they outlive the session, and a file that keeps what was printed. Of several processes only the first has a mirror.

# %%
#| export
@dataclass(frozen=True)
class Session:
    "What accompanies a run while it trains."

    stop: Stop
    mirror: Mirror


@contextlib.contextmanager
def session_of(folder: Folder, config: Settings) -> Iterator[Session]:
    "Accompany a run that has its folder."
    hours = session_hours(config)
    left = 3600 * hours - session_seconds()
    first = first_process()
    with contextlib.ExitStack() as held:
        if first:
            held.enter_context(written_down(folder))
        target = mirror_folder(config) if first else None
        mirror = held.enter_context(Mirror(folder.path, target, config.mirror_rate))
        stop = held.enter_context(Stop(left, f"the session's {hours:.4g} hours are over"))
        yield Session(stop, mirror)


# %% [markdown]
# Where the last session ended with its machine, this one brings the run back from the mirror or, on Kaggle, from a previous output that is attached as input. So running the same notebook again is all it takes, on a new machine too.

# %%
#| export
def look_back(folder: Folder, config: Settings) -> None:
    "Bring a run back that is not here any more, if there is a copy."
    if wants_drive(config):
        print(mount_drive().line)
    if not config.resume and (took := bring_back(folder.path, copies_of(config))):
        print(f"mirror  brought back from {took}")


def keep_copies(config: Settings) -> str:  # what is where; empty: there is no mirror
    "Copy to the mirror what was written after the training, such as pictures."
    target = mirror_folder(config, say=lambda _: None) if first_process() else None
    with Mirror(run_folder(config), target, config.mirror_rate) as mirror:
        return mirror.flush(600)


# %% [markdown]
# Processes that are started here know the tasks and the networks of the library alone:

# %%
#| export
def known_elsewhere(config: Settings) -> bool:
    "Whether another process would train the same model for these settings."
    task = make_task(config)
    return all(type(x).__module__.startswith("mshnet.") for x in (task, task.model()))


# %%
assert known_elsewhere(Config())


# %% [markdown]
# Whatever ends a run, `status.json` says so, and the error goes on to whoever started it. A session whose time is over has done what it should: `train` returns. A signal, or the notebook's stop button, is passed on after everything is written, so that the cells below do not run.

# %%
#| export
def train(
    config: Settings,
    task: Task | None = None,  # None: the one that the settings name
) -> Run:
    "Train, score and keep a run, or go on with it; a finished one is only reported."
    if processes_to_start(config):
        if task or not known_elsewhere(config):
            raise UserError(
                "a task or a network of your own on several devices: start your script by torchrun"
            )
        return launch(config, config.num_devices)
    device, task = device_for(config), task or make_task(config)
    folder = Folder(run_folder(config))
    with contextlib.ExitStack() as held:
        device.once(lambda: held.enter_context(alone(folder.path)))
        device.once(lambda: look_back(folder, config))
        parts = task.splits()
        check_data(task, parts)
        state = beginning(folder, task, parts, device)
        unfinished = state.epoch < config.epochs - 1
        device.once(lambda: prepare(folder, config, device.why, unfinished))
        with session_of(folder, config) as session:
            return to_its_end(folder, task, state, parts, device, session)


# %% [markdown]
# The end of it, whichever:

# %%
#| export
def to_its_end(
    folder: Folder,
    task: Task,
    state: State,
    parts: dict[str, Any],
    device: DeviceSteps,
    session: Session,
) -> Run:
    "Train and score a run until it is done or asked to stop, and say where everything is."
    announce(folder, task, device, parts, state)
    asked, patience = None, 600.0  # seconds that a mirror may take at the end
    try:
        try:
            state = fit_in_memory(folder, task, state, parts, device, session)
        except Stopped as stopped:
            asked, patience = stopped, 60.0 if stopped.number else 600.0
        if device.once(lambda: folder.file("best.pt").exists()):
            finish(folder, task, parts, device)
        done = device.once(lambda: folder.history())[-1:]
        how = ("stopped", asked.reason) if asked else ("finished", "all epochs done")
        device.once(lambda: say_status(folder, how[0], done[0]["epoch"] if done else -1, how[1]))
    except BaseException as error:
        device.report()
        failed_end(folder, session, error)
        raise
    device.once(lambda: last_words(folder, task.config, session, patience, asked))
    if asked and (asked.number or not folder.file("scores.json").exists()):
        raise asked
    return Run(folder.path, task.config, how[1])


# %% [markdown]
# What each end leaves to say:

# %%
#| export
def failed_end(folder: Folder, session: Session, error: BaseException) -> None:
    "What is left to do for a run that failed: say why, and have that in the mirror too."
    if first_process():
        ended(folder, error)
        if isinstance(error, NotFinite):
            with contextlib.suppress(UserError):
                write_json(folder.file("not_finite.json"), error.facts)
        if said := session.mirror.flush(30):
            print(said, flush=True)


def going_on(folder: Folder, config: Settings) -> str:
    "The command that goes on with a run on this machine, with its settings of place."
    words = ["mshnet", "train", "--resume", str(folder.path)]
    for name, field in type(config).model_fields.items():
        value, usual = getattr(config, name), field.default
        left = name == "max_hours" and started_processes()  # what is left of this session's
        of_place = name in OF_ITS_MACHINE - {"output_dir", "resume", "profile"}
        if value != usual and of_place and not left:
            words += [f"--{name.replace('_', '-')}", str(value)]
    return shlex.join(words)


# %% [markdown]
# The last of a session's words come after the mirror has all there is:

# %%
#| export
def last_words(
    folder: Folder,
    config: Settings,
    session: Session,
    patience: float,  # seconds that the mirror may take
    asked: Stopped | None,
) -> None:
    "Finish the mirror, and say where the results are and how to go on."
    if asked:
        print(f"stopped  {asked.reason}; nothing is lost. Go on: run the same again, or here")
        print(f"  {going_on(folder, config)}", flush=True)
    if said := session.mirror.flush(patience):
        print(said, flush=True)
        session.mirror.flush(10)  # what was just printed
        entry = folder.read_json("status.json")
        write_json(folder.file("status.json"), entry | {"mirror": session.mirror.state()})
        session.mirror.flush(10)


# %% [markdown]
# What is printed of an epoch:

# %%
#| export
def told(
    entry: dict[str, Any],  # of the log
    last: int,  # epoch of the run
) -> str:
    "An epoch in one line: loss, scores, time, time left."
    scored = f"  {entry['split']}: {entry['line']}" if "line" in entry else ""
    left = duration(entry["seconds"] * (last - entry["epoch"]))
    text = f"epoch {entry['epoch']}/{last}  loss {entry['loss']:.4f}{scored}"
    return f"{text}  {duration(entry['seconds'])}, {left} left"


# %%
told({"epoch": 3, "loss": 0.5, "seconds": 61.0}, last=9)


# %% [markdown]
# A run begins with the seed's weights, or with those of a file, or where it was left: with its own arithmetic then, whatever this device would have chosen.

# %%
#| export
def beginning(
    folder: Folder,
    task: Task,
    parts: dict[str, Any],
    device: DeviceSteps,
) -> State:
    "The state that a run begins or goes on with."
    config, start = task.config, task.model()
    ema = device.place(copy.deepcopy(start)) if config.ema else None
    model = device.place(start)
    old = device.once(lambda: earlier(folder, config, identity(task, parts, device)))
    if old and (computed := old["data"].get("precision", device.precision)) != device.precision:
        if computed not in device.precisions:
            raise UserError(
                f"{folder.path} computes in {computed}, which {device.name} does not; go on with "
                "--device cuda or cpu, or begin anew in another --output-dir"
            )
        device.set_precision(computed)
    state = State(model, task.optimizer(model), device.scaler, ema)
    if old:
        restore(state, old)
    elif config.weight_path:
        file = weights_file(config.weight_path)
        with as_user_error():
            content = load_weights(model, file)
            if ema is not None:
                load_weights(ema, file, content)
    if config.on_out_of_memory == "halve" and not device.micro:
        device.micro = state.micro  # it goes on as it went
    state.micro = device.micro
    return state


# %% [markdown]
# What a resumed run must agree on besides its recipe is known by the task, but for the starting weights and the arithmetic. Before anything is spent, the run prints what is about to happen.

# %%
#| export
def identity(
    task: Task,
    parts: dict[str, Any],
    device: DeviceSteps,
) -> dict[str, str]:
    "What a resumed run must agree on besides its recipe: data, starting weights, arithmetic."
    same = task.identity(parts)
    start = weights_file(task.config.weight_path)
    if task.config.weight_path and start.is_file():
        same["starting weights"] = digest(start)[:12]
    return same | {"precision": device.precision}


def announce(
    folder: Folder,
    task: Task,
    device: DeviceSteps,
    parts: dict[str, Any],
    state: State,
) -> None:
    "Say what is about to happen."
    config = task.config
    lines = {"device": device.why, **task.about(parts, device), "folder": folder.path}
    for name, line in lines.items():
        print(f"{name:8}{line}")
    if state.epoch >= 0 or state.step:
        steps = f" and {state.step} steps" if state.step else ""
        print(f"resume  {state.epoch + 1} of {config.epochs} epochs{steps} are done")


# %% [markdown]
# The epochs, one line each, with the time that is left. A run that is stopped within an epoch writes where it stands:

# %%
#| export
def fit(
    folder: Folder,
    task: Task,
    state: State,
    parts: dict[str, Any],
    device: DeviceSteps,
    session: Session,
) -> None:
    "Train the epochs that are not done yet; Stopped if it is asked to stop."
    data, epochs = identity(task, parts, device), range(state.epoch + 1, task.config.epochs)
    with (
        tensorboard(folder, bool(epochs) and first_process()) as write_scalars,
        Background(session.mirror.wake) as background,
    ):
        for epoch in epochs:
            device.once(lambda: say_status(folder, "running", state.epoch))
            try:
                entry = epoch_entry(task, state, parts, device, epoch, session.stop)
            except Stopped:
                last = partial(write_checkpoint, snapshot(state, task.config, data))
                device.once(lambda: background.do(partial(last, folder.file("last.pt"))))  # noqa: B023
                raise
            advance(task, state, entry)
            device.once(lambda: keep(folder, task.config, state, entry, data, background))  # noqa: B023
            write_scalars(entry)
            print(told(entry, task.config.epochs - 1), flush=True)
            if "scores" in entry and (advice := task.advice(folder.history())):
                print(f"  {advice}", flush=True)
            if epoch != epochs[-1] and (reason := device.agree(session.stop.reason, True)):
                raise Stopped(reason, session.stop.number)
        device.once(background.finish)
    device.alike(state.model)


# %% [markdown]
# A batch that does not fit can be computed in halves, if the user said so. What the failed step had begun to change (batch norm's statistics) is unknown then, so the epoch begins again from the last checkpoint.

# %%
#| export
def fit_in_memory(
    folder: Folder,
    task: Task,
    state: State,
    parts: dict[str, Any],
    device: DeviceSteps,
    session: Session,
) -> State:  # at the end: of the last attempt
    "Train, in smaller and smaller parts of a batch where the memory ends and that is wanted."
    while True:
        try:
            fit(folder, task, state, parts, device, session)
            return state
        except TooLarge as error:
            now = device.micro or task.config.batch_size
            may = task.config.on_out_of_memory == "halve" and device.world == 1 < now
            if not may or device.compiles:
                raise
            device.micro = (now + 1) // 2
            print(f"  {str(error).split(';')[0]}: going on with micro_batch {device.micro}")
        device.release()
        state = beginning(folder, task, parts, device)


# %% [markdown]
# At the end the kept epoch is scored on the test list, with curves and all, unless that was done before. If its file has been damaged meanwhile, the last epoch stands in for it, and the protocol says so.

# %%
#| export
def best_or_last(
    folder: Folder,
    scored: str | None = None,  # what scores.json says of the epoch that was kept
) -> dict[str, Any]:
    "The checkpoint of the epoch that is kept; of the last one, with a warning, if it is damaged."
    try:
        return load(folder.file("best.pt"))
    except UserError as error:
        _, last = good(folder.file("last.pt"))
        if last["best"] and scored == chosen_by(last["config"], last["best"]):
            warnings.warn(f"{error}: its scores are kept, its weights are not", stacklevel=2)
        elif not last["best"] or last["best"]["epoch"] != last["epoch"]:
            warnings.warn(f"{error}: the last epoch is scored instead", stacklevel=2)
            last["best"] = {"epoch": last["epoch"], "name": None}
        return last


# %% [markdown]
# And then:

# %%
#| export
def finish(
    folder: Folder,
    task: Task,
    parts: dict[str, Any],
    device: DeviceSteps,
) -> None:
    "Score the kept epoch on the test list, unless that is done, and print the score line."
    scores = device.once(lambda: folder.read_json("scores.json"))
    scored = scores.get("protocol", {}).get("chosen")
    best = device.once(lambda: best_or_last(folder, scored))
    origin = origin_of(best)
    if scored != origin.chosen:
        model = task.model()
        model.load_state_dict(best["model"])
        model = device.place(model)
        seen = task.evaluate(model, parts["test"], device, best["phase"], origin)
        device.once(lambda: seen.save(folder.path))
        scores = device.once(lambda: folder.read_json("scores.json"))
    if report := device.report():
        print(f"device  {report}")
    rule = f", rule {scores['protocol']['rule']}" if "rule" in scores["protocol"] else ""
    print(f"test    {origin.chosen}{rule}")
    print(scores["line"])


# %%
with tempfile.TemporaryDirectory() as tmp:
    config = config.model_copy(
        update={"output_dir": f"{tmp}/run", "epochs": 2, "schedule": "constant"}
    )
    run = train(config)
    again = train(config)
    longer = train(config.model_copy(update={"epochs": 3}))
    test_eq([len(r.history) for r in (run, longer)], [3, 3])
    test_eq(json.loads((run.folder / "status.json").read_text())["state"], "finished")
    with expect_fail(UserError, contains="lr 0.001 -> 0.1"):
        train(config.model_copy(update={"lr": 0.1}))
    test_eq(beginning(Folder(run.folder), make_task(longer.config), parts, device).epoch, 2)
    print(longer.listing().split("\n", 1)[1])
    assert "nIoU" in str(longer) and "<table>" in longer._repr_html_()
assert isinstance(again, Run)
test_eq(again.ended, run.ended)

# %% [markdown]
# The steps of `train` can be called by hand, to look at them one by one:

# %%
print(identity(task, parts, device))
with tempfile.TemporaryDirectory() as tmp:
    folder = Folder(Path(tmp))
    state = State(model, task.optimizer(model))
    announce(folder, task, device, parts, state)
    session = Session(Stop(), Mirror(folder.path, None))
    state = fit_in_memory(folder, task, state, parts, device, session)
    fit(folder, task, state, parts, device, session)  # nothing is left to do
    finish(folder, task, parts, device)
    test_eq(best_or_last(folder)["epoch"], 2)
    look_back(folder, config)
    last_words(folder, config, session, 1.0, Stopped("SIGTERM", 15))
    assert going_on(folder, config).endswith("--device cpu")
    say_status(folder, "running", 2)
    failed_end(folder, session, ValueError("an example"))
    print(folder.read_json("status.json")["reason"])
    with session_of(folder, config) as session:
        assert to_its_end(folder, task, state, parts, device, session).ended == "all epochs done"
    test_eq(keep_copies(config), "")
