# %% [markdown]
# # The training loop
#
# > One call trains and scores a model, and resumes an interrupted run: plain functions, read from top to bottom.
#
# A loop of ten lines trains a network. This one also survives an interrupt, finds a NaN without waiting for the device in each step, and resumes exactly.

# %%
#| hide
#| default_exp train
import matplotlib.pyplot as plt

from mshnet.core import Config
from mshnet.train import train

# %%
#| export
import contextlib
import copy
import json
import math
import os
import random
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mshnet.core import TIME_OVER, Settings, UserError, counted
from mshnet.device import (
    Device,
    best_device,
    core_count,
    device_for,
    explained,
    open_device,
    parts_of,
    share_cores,
    started_processes,
    update,
)
from mshnet.files import digest
from mshnet.mirror import Mirror, bring_back
from mshnet.places import Site, first_process, megabytes, on_drive, session_seconds, site_of, where
from mshnet.run import (
    Background,
    Folder,
    Interrupted,
    State,
    Stop,
    Stopped,
    best_or_last,
    find_checkpoint,
    prepare,
    restore,
    say_status,
    snapshot,
    write_checkpoint,
    write_log,
)
from mshnet.session import alone, bar, duration, written_down
from mshnet.task import Task, chosen_by, count_seen, make_task, origin_of, scales_of, score_split
from mshnet.weights import has_record, load_weights, settings_of_weights, weights_file

# %% [markdown]
# ## The course of a run
#
# Twelve epochs on small scenes. In epochs 0 to 3 the prediction is empty (the IoU is 0), because the outputs start far below zero. Epoch 0 is the warm-up of the heads: its loss is that of one output, and from epoch 1 on it is the mean over all five. So it rises in epoch 1. It then falls, apart from two small rises. The IoU is best in epoch 8. Then the false alarms nearly double (Fa in the lines below), although the loss still falls: 24 scenes of 32x32 pixels are too few for a good detector. The cosine lowers the learning rate from epoch to epoch, close to zero at the end, so the last epochs change the scores little.

# %%
small = {"base_size": 32, "crop_size": 32, "warm_epoch": 0, "device": "cpu", "precision": "fp32"}
with tempfile.TemporaryDirectory() as tmp:
    history = train(Config(scenes=24, epochs=12, output_dir=f"{tmp}/run", **small)).history

figure, (above, below) = plt.subplots(2, 1, sharex=True, figsize=(7, 4.5), layout="constrained")
above.plot([1000 * entry["lr"] for entry in history], "k.-")
above.set(ylabel="learning rate\nin thousandths", ylim=0, title="a run of 12 epochs")
below.plot([entry["loss"] for entry in history], "C3.-", label="mean training loss")
below.plot([entry["scores"]["iou"] for entry in history], "C0s-", ms=4, label="IoU on test")
below.legend()
below.set(xlabel="epoch", ylabel="loss, IoU", ylim=0);


# %% [markdown]
# ## A run
#
# `train` is what the notebooks and `mshnet train` call. It returns a `Run`, whose results are read from the folder, so that memory and disk cannot differ. A `Run` stands for its folder wherever a path is expected, as in `evaluate(run)`. The functions below share one value, the `Job`. Four nested functions make a run:
#
# | function | what it repeats | what it does each time |
# |---|---|---|
# | `train` | nothing | opens the folder, trains, evaluates the selected epoch, records how the run ended |
# | `fit` | epochs | train, score, log, write a checkpoint |
# | `train_epoch` | batches | set the rate, make a step, check whether to stop |
# | `train_step` | parts of a batch | forward and backward pass; one update at the end |

# %%
#| export
@dataclass(frozen=True)
class Run:
    "A run: its folder, and what is in it. It can be given wherever a run folder can."

    folder: Path
    config: Settings

    @property
    def ended(self) -> str:
        "Why it ended."
        return str(Folder(self.folder).read_json("status.json").get("reason", ""))

    @property
    def history(self) -> list[dict[str, Any]]:
        "One entry per epoch."
        return Folder(self.folder).history()

    @property
    def finished(self) -> bool:
        "Whether all epochs are done, or `patience` ended it; if not, the same settings resume it."
        return Folder(self.folder).read_json("status.json").get("state") == "finished"

    @property
    def scores(self) -> dict[str, Any]:
        "Content of scores.json: the score line, the scores and their protocol; empty: none yet."
        return Folder(self.folder).read_json("scores.json")

    def __str__(self) -> str:
        "The score line."
        return str(self.scores.get("line", "no scores yet"))

    def __repr__(self) -> str:
        "The folder and the score line."
        return f"<Run {self.folder}: {self}>"

    def __fspath__(self) -> str:
        "The path of the folder."
        return str(self.folder)

    def listing(self) -> str:
        "The run's files, with their sizes."
        files = sorted(p for p in self.folder.rglob("*") if p.is_file())
        lines = [f"{megabytes(p.stat().st_size):>8}  {p.relative_to(self.folder)}" for p in files]
        return "\n".join([str(self.folder), *lines])


@dataclass
class Job:
    "A task with its data, its device and its folder."

    task: Task
    parts: dict[str, Any]  # splits by name
    device: Device
    folder: Folder = field(default_factory=lambda: Folder(Path(os.devnull)))  # nothing is written
    stop: Stop = field(default_factory=Stop)  # whether the run is to stop
    record: dict[str, str] = field(default_factory=dict)  # of data and start, for checkpoints
    mirror: Mirror = field(default_factory=lambda: Mirror(Path(os.devnull), None))  # none

    @property
    def config(self) -> Settings:
        "The settings of the run."
        return self.task.config  # type: ignore[no-any-return]

    def rank_zero(self, work: Callable[[], Any]) -> Any:
        "Do only in the first process, such as everything that writes; all get the result."
        return self.device.ranks.rank_zero(work)


@torch.inference_mode(False)  # where gradients are switched off
def train(config: Settings, task: Task | None = None) -> Run:
    """Train and score a model, or resume its run; a finished run is only reported.

    The settings are a `Config`; without `task`, they name it. Raises UserError for a mistake in
    the settings or the data, or a NaN or infinite loss, and Stopped after a signal, or where the
    time ended before there were any scores.
    """
    if not isinstance(config, Settings):
        raise UserError(f"settings of type {type(config).__name__} are not possible: use Config()")
    if task and task.config != config.model_copy(update={"output_dir": task.config.output_dir}):
        raise UserError("train: the task has other settings; use train(config, MyTask(config))")
    if processes_to_start(config):
        return _launch(config, task)
    device, task = device_for(config), task or make_task(config)
    rank_zero, begun = device.ranks.rank_zero, time.monotonic()
    site = rank_zero(lambda: site_of(config))
    folder = Folder(site.folder)
    device.cache_programs(site.folder.parent / "xla_cache")
    with contextlib.ExitStack() as held:  # left at the end: lock, log, stop signals, backup
        rank_zero(lambda: held.enter_context(alone(folder.path)))
        rank_zero(lambda: bring_back(site.folder, site.copies))
        job = Job(task, task.splits(), device, folder)
        state = beginning(job)
        rank_zero(lambda: prepare(folder, config, device.description, not _all_done(config, state)))
        _begin_session(job, state, site, begun, held)
        with _failure_recorded(job):
            _announce(job, state)
            stopped = fit(job, state)
            reason = stopped.reason if stopped else "all epochs done"
            if not stopped and state.epoch + 1 < config.epochs:
                reason = f"no better score for {counted(config.patience, 'epoch')}"
                print(f"end     {reason}")
            if state.best:
                finish(job, state)
            end = "stopped" if stopped else "finished"
            rank_zero(lambda: say_status(folder, end, state.epoch, reason))
        rank_zero(lambda: _end_session(job, stopped))
        if stopped and (stopped.number or not folder.file("scores.json").exists()):
            raise stopped
        return Run(folder.path, config)


def processes_to_start(config: Settings) -> bool:
    "Whether this run needs processes that are not started yet: not on a TPU, not under torchrun."
    kind = best_device() if config.device == "auto" else config.device
    return config.num_devices > 1 and kind != "xla" and not started_processes()


# %% [markdown]
# ## The epochs
#
# `fit` trains, scores and logs each epoch, writes its checkpoint, and prints one line with the time that is left. All processes record the epoch in their state. The first one writes the files: the log line, then the checkpoint. This is the last log line of the run above, without its times:

# %%
for key in ("epoch", "phase", "loss", "lr", "split", "line"):
    value = history[-1][key]
    print(f"{key:6}", f"{value:.3g}" if isinstance(value, float) else value)


# %%
#| export
def fit(job: Job, state: State) -> Stopped | None:  # the request that stopped it, if one did
    "Train the epochs that are not done yet."
    config, task, device, folder = job.config, job.task, job.device, job.folder
    judged = job.parts[judge_split(config)]
    with Background() as background:
        while not _all_done(config, state):
            epoch, start = state.epoch + 1, time.monotonic()
            job.rank_zero(partial(say_status, folder, "running", state.epoch))
            try:
                loss = train_epoch(job, state, epoch)
                device.ranks.assert_in_sync(state.model)
                trained = time.monotonic() - start
                scores = None  # an epoch that is not scored
                if epoch == config.epochs - 1 or not (epoch + 1) % config.eval_every:
                    scores = score_split(task, state.scored, judged, device, task.phase(epoch))
            except Stopped as stopped:  # within the epoch
                device.ranks.assert_in_sync(state.model)
                job.rank_zero(partial(_keep, job, state, background))
                return stopped.with_traceback(None)  # ends the threads that make batches
            entry = _log_entry(job, state, loss, scores, trained, time.monotonic() - start)
            _end_epoch(task, state, entry)
            job.rank_zero(partial(_keep, job, state, background, entry))
            _print_epoch(job, entry)
            if not _all_done(config, state) and (
                reason := device.ranks.any_rank(job.stop.reason, True)
            ):
                return Stopped(reason, job.stop.number)
        job.rank_zero(background.finish)
    return None


def _keep(job: Job, state: State, writer: Background, entry: dict[str, Any] | None = None) -> None:
    "Log an epoch that has ended, and begin to write the checkpoints."
    if entry:
        write_log(job.folder, entry)
    best = entry and state.best and state.best["epoch"] == state.epoch
    files = map(job.folder.file, ["best.pt", "last.pt"] if best else ["last.pt"])
    content = snapshot(state, job.config, job.record)
    writer.submit(partial(write_checkpoint, content, *files), job.mirror.notify)


def _all_done(config: Settings, state: State) -> bool:
    "Whether all epochs are done, or as many without a better score as the patience allows."
    if state.epoch >= config.epochs - 1:
        return True
    waited = state.epoch - state.best["epoch"] if state.best else 0
    return 0 < config.patience <= waited and (state.epoch + 1) % config.eval_every == 0


def _log_entry(
    job: Job, state: State, loss: float, scores: Any | None, trained: float, seconds: float
) -> dict[str, Any]:
    "The line of an epoch in the log, from the state before it; `trained`: seconds of training."
    task, device, train = job.task, job.device, job.parts["train"]
    epoch, split = state.epoch + 1, judge_split(job.config)
    steps = len(task.plan(train, epoch))
    lr = task.rate((epoch + 1) * steps - 1, steps)  # of the last step
    entry = {"epoch": epoch, "phase": task.phase(epoch), "loss": loss, "lr": lr, "split": split}
    if scores is not None:
        entry |= {"line": str(scores), "scores": scores.as_dict()}
    unusual = {"begun_at_step": state.step, "micro_batch": device.micro_batch}
    entry |= {name: value for name, value in unusual.items() if value}
    entry |= {"train_seconds": round(trained, 2), "seconds": round(seconds, 2)}
    return entry | {"device": device.description} | device.facts()


def _end_epoch(task: Task, state: State, entry: dict[str, Any]) -> None:
    "Record an epoch in the state, and as the best one if it is the best so far."
    state.epoch, state.phase = entry["epoch"], entry["phase"]
    state.step, state.total = 0, []
    scores, name = entry.get("scores"), task.better[0]
    if scores and name not in scores:
        there = ", ".join(scores)
        raise UserError(f"{type(task).__name__}.better: no score is called {name}; use {there}")
    if is_best(task, state, scores):
        state.best = {"epoch": state.epoch, "name": name, "score": scores[name] if scores else None}


def _print_epoch(job: Job, entry: dict[str, Any]) -> None:
    "Print an epoch in one line, and what the task advises."
    last = job.config.epochs - 1
    scored = f"  {entry['split']}: {entry['line']}" if "line" in entry else ""
    text = f"epoch {entry['epoch']}/{last}  loss {entry['loss']:.4f}{scored}"
    left = duration(entry["seconds"] * (last - entry["epoch"]))
    print(f"{text}  {duration(entry['seconds'])}, {left} left", flush=True)
    if scored:  # the log of a run that was resumed may hold later epochs
        history = [old for old in job.folder.history() if old["epoch"] <= entry["epoch"]]
        if advice := job.task.advice(history):
            print(f"  {advice}", flush=True)


# %% [markdown]
# ## The machinery: one epoch
#
# Before each step the random generators are seeded with its number, so it draws the same random numbers in a resumed run. After each step the loop checks whether it is to stop (several processes check at log lines, where they can agree).

# %%
#| export
def fresh_state(task: Task, device: Device) -> State:
    "The state of a training that has made no step: with the weights of the seed."
    start = task.model()
    ema = device.to_device(copy.deepcopy(start)) if task.config.ema else None
    model = device.to_device(start)
    return State(model, task.optimizer(model), device.scaler, ema)


def train_epoch(job: Job, state: State, epoch: int) -> float:  # the mean loss of the epoch
    "Train for one epoch, or for the rest of it; Stopped if the run is asked to stop."
    task, device, config, data = job.task, job.device, job.config, job.parts["train"]
    phase = task.phase(epoch)
    share_cores(device)
    if device.message:
        print(f"  {device.message}", flush=True)
        device.message = ""
    state.model.train()
    model = device.begin(phase, state.model, state.optimizer)
    plan = device.ranks.shard(task.plan(data, epoch))
    losses, first = Losses(device, state), epoch * len(plan)
    device.seed(config.seed, first + losses.step)  # before the batch, which may draw, too
    batches = task.batches(device, data, plan[state.step :], epoch)
    steps = bar(batches, len(plan) - state.step, f"epoch {epoch}/{config.epochs - 1}")
    try:
        with explained(device, config):
            for batch in steps:
                prepare_step(job, state, first + losses.step, len(plan))
                train_step(job, state, model, batch, phase, losses)
                device.seed(config.seed, first + losses.step)
                if losses.step == len(plan):
                    break
                if pause := losses.step % config.log_every == 0:
                    text = f"loss {losses.mean():.4f}"
                    if hasattr(steps, "set_postfix_str"):  # a bar, which shows the step itself
                        steps.set_postfix_str(text)
                    else:
                        where = f"epoch {epoch}, step {losses.step}/{len(plan)}"
                        print(f"  {where}: {text}", flush=True)
                if reason := device.ranks.any_rank(job.stop.reason, pause):
                    losses.mean()  # raises where the loss is not finite
                    own = device.read(losses.total).item()
                    state.step, state.total = losses.step, device.ranks.all_gather(own)
                    raise Stopped(reason, job.stop.number)
            return losses.mean()  # here the device may notice what failed before
    except _NotFinite as error:
        raise _not_finite(job, state, epoch, error.args[0]) from None


# %% [markdown]
# To read a loss the host must wait for the device. So the losses are summed on the device, and the sum is read only at log lines and at the end (in float16 the gradient scaler of torch waits in every step). A sum that is NaN stays NaN, so the number of steps with a finite sum is the index of the first bad step.
#
# A run that is asked to stop stores its place in the state: how many steps are done, and the sums of their losses in each process. With a different number of processes it resumes with the mean of the sums. A loss is counted before the update, because a TPU then computes both in one program.

# %%
#| export
class _NotFinite(ArithmeticError):
    "A loss that is NaN or infinite, with the number of its step."


class Losses:
    "The sums of an epoch's losses, on the device; after an interrupt they continue."

    def __init__(self, device: Device, state: State | None = None) -> None:
        sums, ranks = state.total if state else [], device.ranks
        mean = sum(sums) / max(len(sums), 1)  # if there were more or fewer processes
        own = sums[ranks.rank] if len(sums) == ranks.count else mean
        self.device, self.step = device, state.step if state else 0
        self.total = device.transfer(torch.tensor(own))
        self.finite = device.transfer(torch.tensor(float(self.step)))  # steps with a finite total

    def add(self, loss: torch.Tensor) -> None:
        "Count the loss of a step."
        self.step += 1
        self.total = self.total + loss
        self.finite = self.finite + self.total.isfinite()

    def mean(self) -> float:
        "Mean loss of the steps so far; _NotFinite with the step that spoiled it."
        ranks = self.device.ranks
        total = self.device.read(ranks.mean(self.total)).item()
        if not math.isfinite(total):
            raise _NotFinite(min(ranks.all_gather(int(self.device.read(self.finite).item()))))
        return float(total / self.step)


# %% [markdown]
# ## One step
#
# A step is a forward pass, a backward pass and an update. A batch larger than the memory is computed in micro-batches, whose gradients add up to that of the batch. (Batch norm is the exception: it takes its means over a micro-batch.) Several devices share each micro-batch. On a TPU each micro-batch is one program, whose memory is freed before the next begins.

# %%
#| export
def train_step(
    job: Job,
    state: State,
    model: Any,  # that of the state, as `Device.begin` returned it
    batch: Any,  # on the device
    phase: str,  # such as "full"
    losses: Losses,
) -> None:
    "Update the weights by a batch, and add its mean loss to `losses`."
    device, found = job.device, list[torch.Tensor]()
    *others, last = parts_of(device, batch)
    for part in (*others, last):
        with device.autocast():
            loss = job.task.loss(model, part, phase)
            if not isinstance(loss, torch.Tensor) or loss.numel() > 1:
                name = type(job.task).__name__
                raise UserError(f"{name}.loss: return one number, the sum of the parts of the loss")
            if others:
                loss = loss * (len(part[0]) / len(batch[0]))
        found.append(loss.detach())
        if part is not last:  # `update` makes the backward pass of the last part
            device.scaler.scale(loss).backward()
            device.end_part(state.model)
    losses.add(reduce(torch.add, found))
    update(device, loss, state.optimizer, job.config.clip_grad)


# %% [markdown]
# With `ema` an exponential moving average $\bar w$ of the trained weights $w$ is evaluated and kept. Before step $t$ of the run it moves towards the weights that the previous step left. The decay $d_t$ grows to `ema`, because an average over a thousand steps would contain the random start for a long time:
#
# $$\bar w \leftarrow \bar w + (1 - d_t)(w - \bar w), \quad d_t = \min\left(\mathrm{ema}, \frac{1 + t}{10 + t}\right)$$
#
# Before the first step both are equal, and averaging changes nothing. Batch norm's statistics are averaged too, and its counters copied: they belong to the weights that made them. The average and the learning rate are set before the step, not after it, so that on a TPU they belong to the step's program.

# %%
#| export
def average(ema: torch.nn.Module, model: torch.nn.Module, share: float | torch.Tensor) -> None:
    "Move averaged weights and buffers by a share (0..1) of the way to those of the model."
    values = [[*each.parameters(), *each.buffers()] for each in (ema, model)]  # shared ones once
    with torch.no_grad():
        for old, new in zip(*values, strict=True):
            if old.is_floating_point():
                old.lerp_(new, share)
            elif not new.ndim:  # a counter; other integers are tables that never change
                old.copy_(new)


def prepare_step(job: Job, state: State, step: int, per_epoch: int) -> None:
    "Average the weights before a step of the run, and set its learning rate in every group."
    task, device = job.task, job.device
    if state.ema is not None:
        average(state.ema, state.model, device.number(1 - task.decay(step)))
    factor = task.rate(step, per_epoch) / job.config.lr
    for group in state.optimizer.param_groups:
        group["lr"] = device.number(group.setdefault("initial_lr", group["lr"]) * factor)


# %% [markdown]
# We train a small model for three epochs. In each, the host waits for the device once, to read the mean loss. Then we make four steps on one batch, from new weights:

# %%
config = Config(scenes=16, epochs=3, lr=0.01, **small)
task, device = make_task(config), open_device("cpu", "fp32")
job, state = Job(task, task.splits(), device), fresh_state(task, device)
for epoch in range(3):
    print(f"epoch {epoch}: mean loss {train_epoch(job, state, epoch):.2f}")
print(f"the host read {device.reads} times")

state, batch = fresh_state(task, device), task.batch(job.parts["train"], [0, 1, 2, 3], None)
for step in range(4):
    losses = Losses(device)
    prepare_step(job, state, step, 50)
    train_step(job, state, state.model, batch, "full", losses)
    print(f"step {step}: loss {losses.mean():.2f}")


# %% [markdown]
# ## Which epoch is kept
#
# `best.pt` is the last epoch with `choose="last"`; otherwise the one with the best score on the validation split or, on request, on the test list. `Task.better` names that score (for detection, IoU). A warm-up epoch can win too; the checkpoint records the phase, which decides the head to use. At the end the selected epoch is evaluated on the test list in full, with its curves, unless that was done before. If its file has been damaged meanwhile, the last epoch is scored instead, and the protocol records that.

# %%
#| export
def judge_split(config: Settings) -> str:
    "The split that is scored after an epoch: val where it chooses, else test."
    return "val" if config.choose == "val" else "test"


def is_best(task: Task, state: State, scores: dict[str, Any] | None) -> bool:
    "Whether the epoch that just ended, with these scores (None: not scored), is the best so far."
    if task.config.choose == "last" or scores is None:
        return task.config.choose == "last"
    name, direction = task.better
    best, new = state.best["score"] if state.best else None, scores[name]
    return best is None or (new is not None and new * direction > best * direction)


def finish(job: Job, state: State) -> None:
    "Evaluate the selected epoch on the test list, unless that is done, and print the score line."
    scores = job.rank_zero(lambda: job.folder.read_json("scores.json"))
    if scores.get("protocol", {}).get("chosen") != chosen_by(job.config.choose, state.best):
        best = job.rank_zero(lambda: best_or_last(job.folder))
        seen = count_seen(job.task, job.parts["test"], best["data"], "scored")
        origin = replace(origin_of(best), seen=seen)
        model = job.task.model()
        model.load_state_dict(best["model"])
        model = job.device.to_device(model)
        evaluation = job.task.evaluate(model, job.parts["test"], job.device, best["phase"], origin)
        job.rank_zero(lambda: evaluation.save(job.folder.path))
        scores = job.rank_zero(lambda: job.folder.read_json("scores.json"))
    rule = f", rule {scores['protocol']['rule']}" if "rule" in scores["protocol"] else ""
    print(f"test    {scores['protocol']['chosen']}{rule}")
    print(scores["line"])


# %% [markdown]
# ## Where a run begins
#
# Once the data are loaded we know the number of steps and the splits, and reject impossible settings early. A run then begins with the seed's weights, with those of a file, or where it was left. The recipe, the data and the starting weights of a resumed run must match. With `precision=auto` it keeps the precision it began with, whatever this device would have chosen.

# %%
#| export
def check_data(job: Job) -> None:
    "UserError if the data have no split to score, or no whole batch."
    config, judge = job.config, judge_split(job.config)
    for name in ("train", "test", judge):
        if name not in job.parts:
            todo = "; use --choose last" if name == "val" else ", which every task needs"
            raise UserError(f"task {config.task} has no {name} split{todo}")
    if config.patience and config.choose != "val":
        why = "needs a validation split, as the test list must not end a run; use --choose val"
        raise UserError(f"patience={config.patience} {why}")
    count = len(job.parts["train"])
    if not job.task.plan(job.parts["train"], 0):
        what = f"batch_size={config.batch_size}: there are only {counted(count, 'training sample')}"
        todo = f"--batch-size {count} or less" if count else "--choose last"
        raise UserError(f"{what}; use {todo}")


def beginning(job: Job) -> State:
    "The state with which a run begins or is resumed."
    check_data(job)
    config, device, same = job.config, job.device, identity(job)
    old = job.rank_zero(lambda: find_checkpoint(job.folder, config, same))
    if old and (computed := old["data"].get("precision", device.precision)) != device.precision:
        if computed not in device.precisions:
            what = f"{job.folder.path}: this run computes in {computed}, which {device.name} cannot"
            todo = "resume it on a GPU, or begin again with another --output-dir"
            raise UserError(f"{what}; {todo}")
        device.set_precision(computed)
        if computed == "bf16" != device.fastest():
            print("  this run computes in bf16, which this chip may only emulate, slowly")
        elif computed == "fp32" != device.fastest() and config.precision == "auto":
            faster = f"a new one, with another --output-dir, computes in {device.fastest()}"
            print(f"  this run computes in fp32, as it began; {faster}")
    state = fresh_state(job.task, device)
    job.record = same | {"precision": device.precision}
    if old:
        restore(state, old)
        if config.weight_path or "starting weights" in old["data"]:
            began = {"starting weights", "training images", "multiscale"}  # as the run began
            job.record = {k: v for k, v in job.record.items() if k not in began}
            job.record |= {k: v for k, v in old["data"].items() if k in began}
    elif config.weight_path:
        _begin_with_weights(job, state)
    return state


def _begin_with_weights(job: Job, state: State) -> None:
    "Begin with the weights of a file; record their training images and their two sizes."
    config, record = job.config, job.record
    file = weights_file(config.weight_path, config.task)
    if (own := settings_of_weights(file).get("task", config.task)) != config.task:
        raise UserError(f"{file}: weights of task {own}, not of task {config.task}")
    content = load_weights(state.model, file)
    if state.ema is not None:
        load_weights(state.ema, file, content)
    content = content if has_record(content) else {}
    earlier = content.get("data", {})
    if (scales := scales_of(content)) and scales[0]:  # two sizes
        record["multiscale"] = " ".join(map(str, scales[:3]))
    judge = judge_split(config)
    remedy = "; use --choose last" if judge == "val" else ""
    count_seen(job.task, job.parts[judge], earlier, judge, remedy)
    images = [record.pop("training images", None), earlier.get("training images")]
    if None not in images:  # else nobody knows all of them
        record["training images"] = " ".join(sorted({*" ".join(images).split()}))


def identity(job: Job) -> dict[str, str]:
    "Facts that a resumed run must repeat besides its recipe: data, starting weights, precision."
    same = job.task.identity(job.parts) | {"task": type(job.task).__name__}
    start = weights_file(job.config.weight_path, job.config.task)
    if job.config.weight_path and start.is_file():
        same["starting weights"] = digest(start)[:12]
    return same | {"precision": job.device.precision}


# %% [markdown]
# A checkpoint records these facts. A resumed run must repeat the hashes of the data. The training images are listed, so that an evaluation can count how many of its images are among them:

# %%
for name, fact in identity(job).items():
    print(f"{name}: {fact[:25]}")


# %% [markdown]
# While it trains, a run has three companions: `Stop` listens for requests to stop, a backup copies its files to storage that outlives the session, and `train.log` keeps what is printed. Of several processes only the first makes a backup. If the last session ended with its machine, this one restores the run from the backup or, on Kaggle, from a previous output that is attached as input. Running the same notebook again is all it takes, on a new machine too.

# %%
#| export
def _begin_session(
    job: Job, state: State, site: Site, begun: float, held: contextlib.ExitStack
) -> None:
    "Start what accompanies a run until the stack is left."
    gpus = range(torch.cuda.device_count()) if job.device.kind == "cuda" else ()
    held.enter_context(torch.random.fork_rng(gpus))  # the caller's random numbers are left
    if job.device.kind == "mps":
        held.callback(torch.mps.set_rng_state, torch.mps.get_rng_state())
    held.callback(np.random.set_state, np.random.get_state())
    held.callback(random.setstate, random.getstate())
    first = first_process()
    if first:
        held.enter_context(written_down(job.folder))
        if site.note:
            print(site.note)
    over = f"the session's {site.hours:.4g} hours are over"
    if site.seconds < 0:  # before the run began
        over += " (if it has more, set max_hours to all of them)"
    left = begun + site.seconds - time.monotonic()  # loading the data has taken some
    job.stop = held.enter_context(Stop(left, over))
    job.rank_zero(lambda: say_status(job.folder, "running", state.epoch))  # the mirror reads it
    job.mirror = held.enter_context(Mirror(job.folder.path, site.mirror if first else None))


def _announce(job: Job, state: State) -> None:
    "Print settings, device, data and folder before a run, and how much of it is done."
    lines = {"config": str(job.config), "device": job.device.description}
    lines |= job.task.about(job.parts, job.device) | {"folder": str(job.folder.path)}
    for name, text in lines.items():
        print(f"{name:8}{textwrap.indent(text, ' ' * 8).lstrip()}")
    if state.epoch >= 0 or state.step:
        steps = f" and {state.step} steps" if state.step else ""
        print(f"resume  {state.epoch + 1} of {job.config.epochs} epochs{steps} are done")


# %% [markdown]
# ## Where a run ends
#
# However a run ends, `status.json` records it. If an error ended it, the caller gets this error, even if the record cannot be written. A signal or the notebook's stop button raises `Stopped` after everything is written, so that the cells below do not run, unless all epochs are done. At the end the backup gets the remaining files. Figures are drawn later; the notebooks copy them by `keep_copies`.
#
# A loss that is NaN or infinite ends the run before anything is overwritten: the last good checkpoint stays.

# %%
#| export
@contextlib.contextmanager
def _failure_recorded(job: Job) -> Iterator[None]:
    "Record in the run folder, and in the backup, why a run failed."
    try:
        yield
    except BaseException as error:
        if first_process():
            last = job.folder.read_json("status.json")
            end, reason = "failed", f"{type(error).__name__}: {error}"
            if isinstance(error, KeyboardInterrupt):
                end, reason = "stopped", str(error) or "interrupted"
            if last.get("state") == "running":  # else the end is recorded
                with contextlib.suppress(UserError):
                    say_status(job.folder, end, last["epochs_done"] - 1, reason)
            if copied := job.mirror.flush(30):
                print(copied, flush=True)
        raise


def _end_session(job: Job, stopped: Stopped | None) -> None:
    "Finish the backup, and print how to resume."
    if stopped:
        kept = job.mirror.enabled or where().name != "colab" or on_drive(job.folder.path)
        end = "its checkpoint is written" if kept else "Colab deletes this disk: download the run"
        if where().name == "kaggle":
            end += "; in a new session first attach its saved output"
        print(f"stopped  {stopped.reason}; {end}. Run the same command again to resume", flush=True)
    if copied := job.mirror.flush(60 if stopped and stopped.number else 600):
        print(copied, flush=True)
        job.mirror.flush(10)  # what was just printed


def keep_copies(config: Settings) -> str:  # which files are where; empty: there is no backup
    "Copy files to the backup that were written after the training, such as figures."
    site = site_of(config)
    with Mirror(site.folder, site.mirror if first_process() else None) as mirror:
        return mirror.flush(600)


def _not_finite(job: Job, state: State, epoch: int, step: int) -> UserError:
    "The error of a loss that is first NaN or infinite in this step."
    split = job.parts["train"]
    names = [split.names[i] for i in job.task.plan(split, epoch)[step]]
    kept = "; the last good checkpoint is kept" if state.epoch >= 0 or state.step else ""
    more = "" if job.device.precision == "fp32" else ", or --precision fp32"
    what = f"epoch {epoch}, step {step}: the loss is NaN or infinite; images"
    more += "" if job.config.clip_grad else ", or --clip-grad 1"
    todo = f"begin a new run with a smaller --lr{more}"
    return UserError(f"{what} {', '.join(names[:16])}{kept}; {todo}")


# %%
task.loss = lambda *_: torch.tensor(math.nan, requires_grad=True)
try:
    train_epoch(job, fresh_state(task, device), 0)
except UserError as error:
    print(error)

# %%
#| hide
with tempfile.TemporaryDirectory() as tmp:
    job = replace(job, task=make_task(config), folder=Folder(Path(tmp)))
    state = beginning(job)
    assert fit(job, state) is None and is_best(job.task, state, None)
    finish(job, state)
    average(state.model, job.task.model(), 0.25)
    assert Run(Path(tmp), config).scores["line"] and judge_split(config) == "test"


# %% [markdown]
# ## On several GPUs
#
# Several GPUs need several processes. From a terminal, `torchrun --nproc-per-node=2 -m mshnet train ...` starts them. For a notebook cell, or `mshnet train --num-devices 2`, `_launch` starts them, with the same variables. These processes can only import the tasks and networks of the library.
#
# Their output is printed here, so that a cell shows the epochs. A signal reaches only this process (an interrupted cell interrupts the kernel), so it is passed on. If one process fails, the others lose their connection to it and end too; one that still hangs after two minutes is killed. A user's mistake is one line, raised as an error of this process.

# %%
#| export
def all_gpus(config: Settings) -> Settings:
    "The settings, with the number of this machine's NVIDIA GPUs where they have none."
    count = torch.cuda.device_count() if config.device in ("auto", "cuda") else 0
    if config.num_devices or count < 2:
        return config
    return config.model_copy(update={"num_devices": count})


class _Processes(Stop):
    "Processes of one command, started as torchrun does; a signal is passed on to them."

    def __init__(self, config: Settings, command: Sequence[str]) -> None:
        super().__init__()
        count, there = config.num_devices, torch.cuda.device_count()
        if count > there > 0 and config.device != "cpu":
            raise UserError(f"num_devices={count}: this machine has {there} GPUs; use {there}")
        read, write = os.pipe()
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        own = {"OMP_NUM_THREADS": str(max(1, core_count() // count)), **os.environ}
        own |= {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        own |= {"PYTHONIOENCODING": "utf-8", "MSHNET_BEGUN": str(time.time() - session_seconds())}
        own |= {"MSHNET_STARTED_BY": str(os.getpid())} if os.name != "nt" else {}  # venv's starter
        words = [sys.executable, "-u", "-m", "mshnet", *command]
        how: Any = {"stdout": write, "stderr": subprocess.STDOUT}
        how["start_new_session"] = True  # a terminal's Ctrl-C comes from here, and once
        ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]
        self.started = [subprocess.Popen(words, env=own | rank, **how) for rank in ranks]
        os.close(write)
        self.read, self.errors = read, list[str]()  # the last words of each process

    def on_signal(self, number: int, frame: Any) -> None:
        "Note a signal, and pass it on."
        for process in self.started:
            if os.name != "nt":  # there the console has sent it
                process.send_signal(number)
        super().on_signal(number, frame)

    def show(self) -> None:
        "Print the lines of all processes but their last words."
        with os.fdopen(self.read, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.startswith("mshnet"):
                    self.errors.append(line.partition(": ")[2].strip())
                else:
                    print(line, end="", flush=True)

    def __exit__(self, *_: Any) -> None:
        super().__exit__()
        ends = time.monotonic() + 10  # after a second request, to record it
        for process in self.started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, ends - time.monotonic()))
            process.kill()

    def wait(self, patience: float = 120.0) -> list[int]:  # the statuses of failed processes
        "Print until all have ended; kill what still hangs so many seconds after a failure."
        shown = threading.Thread(target=self.show, daemon=True)
        shown.start()
        while shown.is_alive():
            shown.join(0.2)
            failed = [s for p in self.started if (s := p.poll()) not in (None, 0, TIME_OVER)]
            patience -= 0.2 if failed and not self.number else 0.0
            for process in self.started if patience < 0 else ():
                process.kill()
        return [s for p in self.started if (s := p.wait()) not in (0, TIME_OVER)]


def run_in_processes(config: Settings, words: Sequence[str]) -> list[int]:
    "Statuses of the processes of a command that failed; UserError: a mistake, or one was killed."
    with _Processes(config, words) as processes:
        failed = processes.wait()
    if mistakes := [line for line in processes.errors if not line.startswith("stopped")]:
        raise UserError(mistakes[0])
    if processes.number:
        raise Interrupted(processes.reason, processes.number)
    if min(failed, default=0) < 0:
        how = "killed (is memory short?)" if -9 in failed else f"ended by signal {-min(failed)}"
        todo = "run it again (what is done stays), perhaps with fewer --num-devices"
        raise UserError(f"a process was {how}: {todo}")
    return failed


def _launch(config: Settings, task: Task | None) -> Run:
    "Train in several processes of this machine; UserError with the line of a user's mistake."
    task = task or make_task(config)
    if not all(type(x).__module__.startswith("mshnet.") for x in (task, task.model())):
        todo = "start your script by torchrun, or use --num-devices 1"
        raise UserError(f"own tasks and networks on several devices: {todo}")
    run = Folder(site_of(config).folder)
    before = run.read_json("status.json")
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder, "config.json")
        settings.write_text(json.dumps(config.model_dump()))
        try:
            failed = run_in_processes(config, ["train", "--config", str(settings)])
        except UserError as mistake:
            last = run.read_json("status.json")
            if last != before and str(mistake) not in last["reason"]:  # not of the first process
                with contextlib.suppress(UserError), alone(run.path):  # no other run's status
                    say_status(run, "failed", last["epochs_done"] - 1, f"UserError: {mistake}")
            raise
    last = run.read_json("status.json")
    if failed:
        raise UserError(f"a process failed (status {max(failed)}): see above; run it again")
    if last["state"] == "stopped" and not run.file("scores.json").exists():
        raise Stopped(last["reason"])
    return Run(run.path, config)


# %%
print("starts processes:", processes_to_start(all_gpus(Config(device="cpu", num_devices=2))))

# %% [markdown]
# ## Questions
#
# 1. With a cosine schedule a longer run is a new run, and not a resumed one. Why? And with a constant learning rate?
#    <details><summary>Answer</summary>The cosine depends on the number of all steps, so every step of the longer run has a different learning rate. With a constant rate the first epochs of both are the same, and the longer run resumes the shorter one.</details>
# 2. An epoch in bfloat16 has 100 steps, and `log_every` is 20. The loss of step 37 (counted from 0) is NaN. When does the run notice, and which images does the error name?
#    <details><summary>Answer</summary>After 40 steps, when the sum is read. 37 sums were finite, so the error names step 37 and the images of its batch. The weights are useless by then, but they are not written: the last checkpoint stays.</details>
