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
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial, reduce
from pathlib import Path
from typing import Any

import torch

from mshnet.core import OF_ITS_MACHINE, STOPPED, Settings, UserError, as_user_error, counted
from mshnet.device import (
    Device,
    TooLarge,
    best_device,
    device_for,
    explained,
    open_device,
    parts_of,
    random_states,
    release,
    set_random_states,
    started_processes,
    update,
)
from mshnet.files import digest, write_json
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
from mshnet.run import (
    Background,
    Folder,
    Interrupted,
    State,
    Stop,
    Stopped,
    find_checkpoint,
    good,
    keep,
    load,
    prepare,
    restore,
    say_status,
    snapshot,
    write_checkpoint,
)
from mshnet.session import alone, bar, duration, note, profiled, tensorboard, written_down
from mshnet.task import Task, chosen_by, make_task, origin_of, score_split
from mshnet.weights import load_weights, weights_file


# %% [markdown]
# ## One step
#
# A step is a forward pass, a backward pass and an update. A batch that is larger than the memory is computed in parts, whose gradients add up to those of the batch. (Not quite: batch norm takes its means over a part.)
#
# The loop never waits for the device: losses are summed there and read at log lines and at the end. A sum that is NaN stays NaN, so the count of the steps in which it was finite points to the step that spoiled it. A loss is counted before the update: a TPU runs with an update what was recorded before it, so that a step is one program.

# %%
#| export
class Losses:
    "The sums of an epoch's losses, on the device."

    def __init__(self, device: Device, total: float = 0.0, step: int = 0) -> None:
        self.device, self.step = device, step
        self.total = device.transfer(torch.tensor(total))
        self.fine = device.transfer(torch.tensor(float(step)))  # steps after which it was finite
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
        ranks = self.device.ranks
        total = self.device.read(ranks.mean(self.total)).item()
        if not math.isfinite(total):
            raise ArithmeticError(min(ranks.all_gather(int(self.device.read(self.fine).item()))))
        return float(total / self.step)


def train_step(
    task: Task,
    model: Any,  # as `device.begin` gave it
    batch: Any,  # on the device
    phase: str,
    optimizer: torch.optim.Optimizer,
    device: Device,
    losses: Losses,  # to which the batch's mean loss is added
) -> None:
    "One update of the weights."
    *others, last = parts_of(device, batch)
    counted: dict[str, torch.Tensor] = {}  # the loss and its named parts
    for part in (*others, last):
        loss, named = _loss_of(task, model, part, phase, device, len(part[0]) / len(batch[0]))
        counted = {k: counted[k] + v for k, v in named.items()} if counted else named
        if part is not last:
            device.scaler.scale(loss).backward()
    losses.add(counted.pop(""), counted)
    update(device, loss, optimizer, task.config.clip_grad)


def _loss_of(
    task: Task,
    model: Any,
    batch: Any,
    phase: str,
    device: Device,
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


# %%
losses = Losses(open_device("cpu"))
for value in (0.5, 0.25):
    losses.add(torch.tensor(value))
test_eq(losses.mean(), 0.375)
losses.add(torch.tensor(torch.nan), {"nan": torch.tensor(1.0)})
with expect_fail(ArithmeticError, contains="2"):
    losses.mean()


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
    device: Device,
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
# ## One epoch
#
# The epoch does not know what kind of device it runs on, and, but for the task, not what it trains. After each step it checks whether it is to stop (several processes check at log lines, where they can agree), and leaves its place in the state. Each of several processes has a sum and random numbers of its own there. A run that is resumed with a different number of processes has only the mean of the sums, and random numbers from the epoch's start.

# %%
#| export
def train_epoch(
    task: Task,
    state: State,
    split: Any,  # the training data
    device: Device,
    epoch: int,
    stop: Stop | None = None,  # None: nobody asks
) -> tuple[float, dict[str, float]]:  # mean loss of the epoch, and of its named parts
    "Train for one epoch, or for what is left of it; Stopped if it is asked to stop."
    model, config, phase = _begin_epoch(task, state, device, epoch), task.config, task.phase(epoch)
    plan = device.ranks.shard(task.plan(split, epoch))
    losses = Losses(device, _own_total(state, device), state.step)
    batches = task.batches(device, split, plan[state.step :], epoch)
    steps = bar(batches, len(plan) - state.step, f"epoch {epoch}")
    try:
        with profiled(config.profile) as watch, explained(device, config.batch_size):
            for batch in steps:
                prepare_step(task, state, device, epoch * len(plan) + losses.step, len(plan))
                train_step(task, model, batch, phase, state.optimizer, device, losses)
                watch()
                if losses.step == len(plan):
                    break
                if pause := losses.step % config.log_every == 0:
                    _adapt(device)
                    where = f"epoch {epoch}, step {losses.step}/{len(plan)}"
                    note(steps, where, f"loss {losses.mean():.4f}")
                if stop and (reason := device.ranks.any_rank(stop.reason, pause)):
                    _leave_place(state, losses)
                    raise Stopped(reason, stop.number)
        sums = _part_sums(losses, state)
        return losses.mean(), {name: value / losses.step for name, value in sums.items()}
    except ArithmeticError as error:
        raise _not_finite(task, state, split, epoch, error.args[0]) from None


def _begin_epoch(task: Task, state: State, device: Device, epoch: int) -> Any:
    "Prepare an epoch, or the rest of one; the model as a step calls it."
    _adapt(device)
    device.seed(task.config.seed, epoch)
    if state.step and len(state.random) == device.ranks.count:
        set_random_states(device, state.random[device.ranks.rank])
    state.model.train()
    state.optimizer.zero_grad(set_to_none=True)
    return device.begin(task.phase(epoch), state.model, state.optimizer)


def _adapt(device: Device) -> None:
    "Let a CPU use the cores that other programs leave, and print what changes."
    if device.cores and (changed := device.cores.adapt()):
        print(f"  {changed}", flush=True)


def _own_total(state: State, device: Device) -> float:
    "The sum of losses with which this process begins."
    if len(state.total) == device.ranks.count:
        return state.total[device.ranks.rank]
    return sum(state.total) / max(len(state.total), 1)


def _leave_place(state: State, losses: Losses) -> None:
    "Keep in the state where an epoch was left."
    losses.mean()  # no place in an epoch that is spoiled
    device = losses.device
    state.step = losses.step
    state.total = device.ranks.all_gather(device.read(losses.total).item())
    state.parts = _part_sums(losses, state)
    state.random = device.ranks.all_gather(random_states(device))


def _part_sums(losses: Losses, state: State) -> dict[str, float]:
    "Sums of the named losses of an epoch, also of before an interruption; mean of all processes."
    device = losses.device
    own = {name: device.read(value).item() for name, value in losses.parts.items()}
    each = device.ranks.all_gather(own)
    names = sorted(state.parts.keys() | own.keys())
    now = {name: sum(sums.get(name, 0.0) for sums in each) / len(each) for name in names}
    return {name: state.parts.get(name, 0.0) + now[name] for name in names}


# %% [markdown]
# A NaN or infinite loss ends the run before anything is overwritten: the last good checkpoint stays. What is worth knowing of the batch is written to the run's folder: its images, their numbers, and the weights that are not finite.

# %%
#| export
class NotFinite(UserError):
    "A NaN or infinite loss, with what is known of its batch."

    def __init__(self, text: str, facts: dict[str, Any]) -> None:
        super().__init__(text)
        self.facts = facts


def _not_finite(
    task: Task,
    state: State,
    split: Any,  # the training data
    epoch: int,
    step: int,  # the first whose loss is not finite, from 0
) -> NotFinite:
    "The error of a NaN or infinite loss."
    plan = task.plan(split, epoch)
    names = [split.names[i] for i in plan[step]]
    batch = task.batch(split, plan[step], epoch)
    facts = {"epoch": epoch, "step": step, "names": names}
    facts |= {"lr": task.rate(epoch * len(plan) + step, len(plan))}
    for name, value in batch._asdict().items():
        if value.ndim > 1:  # as text: JSON knows no NaN
            rows = [(x.min(), x.mean(), x.max()) for x in value.float().flatten(1)]
            facts[f"{name}: least, mean, most"] = [[f"{n:.6g}" for n in row] for row in rows]
    bad = [k for k, v in state.model.state_dict().items() if not v.isfinite().all()]
    return NotFinite(
        f"epoch {epoch}, step {step}: the loss is no number; images {', '.join(names[:4])} (all in "
        "not_finite.json); the last good checkpoint is kept; try --clip-grad 1, a smaller --lr or "
        "--precision fp32",
        facts | {"weights that are no numbers now": bad},
    )


# %%
config = Config(
    scenes=8, base_size=32, crop_size=32, choose="last", device="cpu", epochs=3, warm_epoch=0
)
task, device = make_task(config), open_device("cpu")
parts, model = task.splits(), device.to_device(task.model())
state = State(model, task.optimizer(model))
losses = [train_epoch(task, state, parts["train"], device, 0)[0] for _ in range(2)]
test_eq(device.reads, 2)
test_eq(state.optimizer.param_groups[0]["lr"], task.rate(1, per_epoch=2))
losses

# %% [markdown]
# Averaged weights by hand, a step by hand, and a loss that is NaN from its first step:

# %%
ema = task.model()
average(ema, model, 0.25)
test_close(ema.final.bias.item(), 0.25 * model.final.bias.item())
prepare_step(task, State(model, state.optimizer, ema=ema), device, 1, 2)
test_close(ema.final.bias.item(), model.final.bias.item() * (1 - 0.75 * 2 / 11))
batch, summed = task.batch(parts["train"], [0, 1], 0), Losses(device)
train_step(task, model, batch, "full", state.optimizer, device, summed)
spoiled = State(task.model(), state.optimizer)
spoiled.model.final.bias.data.fill_(torch.nan)
with expect_fail(NotFinite, contains="epoch 1, step 0: the loss is no number"):
    train_epoch(task, spoiled, parts["train"], device, 1)
summed.mean()

# %% [markdown]
# Asked to stop after its first step, it leaves its place, and resumes from there:

# %%
with expect_fail(Stopped, contains="over"):
    train_epoch(task, state, parts["train"], device, 1, Stop(seconds=-1, why="time is over"))
test_eq(state.step, 1)
loss, _ = train_epoch(task, state, parts["train"], device, 1)
state.step, state.total = 0, []
loss


# %% [markdown]
# ## Which epoch is kept
#
# `best.pt` is the last epoch with `choose="last"`; otherwise the one with the best IoU on the validation split or, on request, on the test list. The first warm-up epochs can win too; the checkpoint knows which head to use.

# %%
#| export
def judge_split(config: Settings) -> str:
    "The split that is scored after an epoch: val, which chooses, or test, to look at."
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
state.best = None


# %% [markdown]
# ## The whole run
#
# `train` is what the runners and `mshnet train` call. It returns a `Run`, whose parts are read from the folder: there is one truth, and it is on the disk. What the functions of a run need is one value, the `Job`.

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


@dataclass
class Job:
    "What is trained, on which data and device, and where it is kept."

    task: Task
    parts: dict[str, Any]  # splits by name
    device: Device
    folder: Folder
    stop: Stop = field(init=False)  # while it trains: whether it is to stop
    mirror: Mirror = field(init=False)  # and what copies the folder to where it is safe

    @property
    def config(self) -> Settings:
        "The settings of the run."
        return self.task.config  # type: ignore[no-any-return]

    def once(self, work: Callable[[], Any]) -> Any:
        "What the first process alone does, such as all that is written."
        return self.device.ranks.rank_zero(work)


def train(config: Settings, task: Task | None = None) -> Run:
    """Train, score and keep a run, or resume it; a finished one is only reported.

    Without a task, the one that the settings name.
    """
    if processes_to_start(config):
        if task or not _known_elsewhere(config):
            raise UserError(
                "a task or a network of your own on several devices: start your script by torchrun"
            )
        return _launch(config)
    device, task = device_for(config), task or make_task(config)
    folder, once = Folder(run_folder(config)), device.ranks.rank_zero
    with contextlib.ExitStack() as held:
        once(lambda: held.enter_context(alone(folder.path)))
        once(lambda: _look_back(folder, config))
        job = Job(task, task.splits(), device, folder)
        _check_data(job)
        state = beginning(job)
        unfinished = state.epoch < config.epochs - 1
        once(lambda: prepare(folder, config, device.why, unfinished))
        _begin_session(job, state, config, held)
        return _to_its_end(job, state)


# %% [markdown]
# How many steps a run has, and which splits, is known with its data. What does not fit is an error before anything is spent. Then a run begins with the seed's weights, or with those of a file, or where it was left: with the precision it began with, whatever this device would have chosen. What a resumed run must agree on besides its recipe is known by the task, but for the starting weights and the precision.

# %%
#| export
def _check_data(job: Job) -> None:
    "UserError if the data have no split to score, or if the rate would grow to the end of the run."
    config, judge = job.config, judge_split(job.config)
    if lacking := {"train", "test"} - job.parts.keys():
        raise UserError(f"task {config.task} has no {min(lacking)} split, which every task needs")
    if judge not in job.parts:
        raise UserError(
            f"choose={config.choose}: task {config.task} has no {judge} split; write --choose last"
        )
    steps = config.epochs * len(job.task.plan(job.parts["train"], 0))
    if config.warmup_steps >= steps:
        raise UserError(
            f"warmup_steps={config.warmup_steps}: the run has {counted(steps, 'step')}; write "
            f"--warmup-steps {steps // 10} or fewer, or more --epochs"
        )


def beginning(job: Job) -> State:
    "The state with which a run begins or is resumed."
    config, device, start = job.config, job.device, job.task.model()
    ema = device.to_device(copy.deepcopy(start)) if config.ema else None
    model = device.to_device(start)
    same = identity(job.task, job.parts, device)
    old = job.once(lambda: find_checkpoint(job.folder, config, same))
    if old and (computed := old["data"].get("precision", device.precision)) != device.precision:
        if computed not in device.precisions:
            raise UserError(
                f"{job.folder.path} computes in {computed}, which {device.name} does not; go on "
                "with --device cuda or cpu, or begin anew in another --output-dir"
            )
        device.set_precision(computed)
    state = State(model, job.task.optimizer(model), device.scaler, ema)
    if old:
        restore(state, old)
    elif config.weight_path:
        file = weights_file(config.weight_path)
        with as_user_error():
            content = load_weights(model, file)
            if ema is not None:
                load_weights(ema, file, content)
    if config.on_out_of_memory == "halve" and not device.micro:
        device.micro = state.micro  # as before it was interrupted
    state.micro = device.micro
    return state


def identity(task: Task, parts: dict[str, Any], device: Device) -> dict[str, str]:
    "What a resumed run must agree on besides its recipe: data, starting weights, precision."
    same = task.identity(parts)
    start = weights_file(task.config.weight_path)
    if task.config.weight_path and start.is_file():
        same["starting weights"] = digest(start)[:12]
    return same | {"precision": device.precision}


# %% [markdown]
# While it trains, a run has three companions: `Stop` listens for the wish to stop, a mirror copies its files to where they outlive the session, and a file keeps what was printed. Of several processes only the first has a mirror. Where the last session ended with its machine, this one brings the run back from the mirror or, on Kaggle, from a previous output that is attached as input. So running the same notebook again is all it takes, on a new machine too.

# %%
#| export
def _look_back(folder: Folder, config: Settings) -> None:
    "Bring a run back that is not here any more, if there is a copy."
    if wants_drive(config):
        print(mount_drive().line)
    if not config.resume and (took := bring_back(folder.path, copies_of(config))):
        print(f"mirror  brought back from {took}")


def _begin_session(job: Job, state: State, config: Settings, held: contextlib.ExitStack) -> None:
    "Accompany a run until the stack is left."
    hours, first = session_hours(config), first_process()
    left = 3600 * hours - session_seconds()
    if first:
        held.enter_context(written_down(job.folder))
    target = mirror_folder(config) if first else None
    job.stop = held.enter_context(Stop(left, f"the session's {hours:.4g} hours are over"))
    job.once(lambda: say_status(job.folder, "running", state.epoch))  # the mirror reads it
    job.mirror = held.enter_context(Mirror(job.folder.path, target, config.mirror_rate))


def keep_copies(config: Settings) -> str:  # what is where; empty: there is no mirror
    "Copy to the mirror what was written after the training, such as pictures."
    target = mirror_folder(config, say=lambda _: None) if first_process() else None
    with Mirror(run_folder(config), target, config.mirror_rate) as mirror:
        return mirror.flush(600)


# %% [markdown]
# The epochs, one line each, with the time that is left. Each is trained, scored, logged and kept. All processes take note of an epoch; one of them writes it, the log line before the checkpoint: a run that is killed between the two repeats the epoch and marks it, and nothing is lost. A run that is stopped within an epoch writes where it stands.

# %%
#| export
def fit(job: Job, state: State) -> None:
    "Train the epochs that are not done yet; Stopped if it is asked to stop."
    config, folder = job.config, job.folder
    data, epochs = identity(job.task, job.parts, job.device), range(state.epoch + 1, config.epochs)
    with (
        tensorboard(folder, bool(epochs) and first_process()) as write_scalars,
        Background(job.mirror.wake) as background,
    ):
        for epoch in epochs:
            job.once(lambda: say_status(folder, "running", state.epoch))
            try:
                entry = _epoch_entry(job, state, epoch)
            except Stopped:
                last = partial(write_checkpoint, snapshot(state, config, data))
                job.once(lambda: background.do(partial(last, folder.file("last.pt"))))  # noqa: B023
                raise
            _end_epoch(job.task, state, entry)
            job.once(lambda: keep(folder, config, state, entry, data, background))  # noqa: B023
            write_scalars(entry)
            print(_epoch_line(entry, config.epochs - 1), flush=True)
            if "scores" in entry and (advice := job.task.advice(folder.history())):
                print(f"  {advice}", flush=True)
            if epoch != epochs[-1] and (reason := job.device.ranks.any_rank(job.stop.reason, True)):
                raise Stopped(reason, job.stop.number)
        job.once(background.finish)
    job.device.ranks.assert_in_sync(state.model)


def _epoch_entry(job: Job, state: State, epoch: int) -> dict[str, Any]:
    "Train and score one epoch; its line in the log."
    config, task, device, start = job.config, job.task, job.device, time.monotonic()
    train, begun = job.parts["train"], state.step
    loss, named = train_epoch(task, state, train, device, epoch, job.stop)
    trained = time.monotonic() - start
    phase, name, steps = task.phase(epoch), judge_split(config), len(task.plan(train, epoch))
    lr = task.rate((epoch + 1) * steps - 1, steps)  # of the last step
    entry = {"epoch": epoch, "phase": phase, "loss": loss, "lr": lr, "split": name}
    if (epoch + 1) % config.eval_every == 0 or epoch == config.epochs - 1:
        scores = score_split(task, state.scored, job.parts[name], device, phase)
        entry |= {"line": str(scores), "scores": scores.as_dict()}
    unusual = {"begun_at_step": begun, "micro_batch": device.micro, "losses": named}
    entry |= {name: value for name, value in unusual.items() if value} | task.facts(train)
    entry |= {"train_seconds": round(trained, 2), "seconds": round(time.monotonic() - start, 2)}
    return entry | {"device": device.why} | device.facts()


def _end_epoch(task: Task, state: State, entry: dict[str, Any]) -> None:
    "Take an epoch into the state, as the best one where it is."
    state.epoch, state.phase = entry["epoch"], entry["phase"]
    state.step, state.total, state.parts, state.random = 0, [], {}, []
    scores, name = entry.get("scores"), task.better[0]
    if is_best(task, state, scores):
        value = scores[name] if scores else None
        state.best = {"epoch": state.epoch, "name": name, "score": value}


def _epoch_line(entry: dict[str, Any], last: int) -> str:
    "An epoch in one line: loss, scores, time, time left."
    scored = f"  {entry['split']}: {entry['line']}" if "line" in entry else ""
    left = duration(entry["seconds"] * (last - entry["epoch"]))
    text = f"epoch {entry['epoch']}/{last}  loss {entry['loss']:.4f}{scored}"
    return f"{text}  {duration(entry['seconds'])}, {left} left"


# %% [markdown]
# At the end the kept epoch is scored on the test list, with curves and all, unless that was done before. If its file has been damaged meanwhile, the last epoch stands in for it, and the protocol records that.

# %%
#| export
def finish(job: Job) -> None:
    "Score the kept epoch on the test list, unless that is done, and print the score line."
    scores = job.once(lambda: job.folder.read_json("scores.json"))
    scored = scores.get("protocol", {}).get("chosen")
    best = job.once(lambda: _best_or_last(job.folder, scored))
    origin = origin_of(best)
    if scored != origin.chosen:
        model = job.task.model()
        model.load_state_dict(best["model"])
        model = job.device.to_device(model)
        seen = job.task.evaluate(model, job.parts["test"], job.device, best["phase"], origin)
        job.once(lambda: seen.save(job.folder.path))
        scores = job.once(lambda: job.folder.read_json("scores.json"))
    if report := job.device.report():
        print(f"device  {report}")
    rule = f", rule {scores['protocol']['rule']}" if "rule" in scores["protocol"] else ""
    print(f"test    {origin.chosen}{rule}")
    print(scores["line"])


def _best_or_last(
    folder: Folder,
    scored: str | None = None,  # what scores.json has of the epoch that was kept
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
# Whatever ends a run, `status.json` records it, and the error reaches whoever started it. A session whose time is over has done what it should: `train` returns. A signal, or the notebook's stop button, is passed on after everything is written, so that the cells below do not run.
#
# A batch that does not fit can be computed in halves, with `on_out_of_memory = halve`. What the failed step had begun to change (batch norm's statistics) is unknown then, so the epoch begins again from the last checkpoint.

# %%
#| export
def _to_its_end(job: Job, state: State) -> Run:
    "Train and score a run until it is done or asked to stop, and print where everything is."
    asked, patience = None, 600.0  # seconds that a mirror may take at the end
    try:
        _announce(job, state)
        try:
            _fit_in_memory(job, state)
        except Stopped as stopped:
            asked, patience = stopped, 60.0 if stopped.number else 600.0
        if job.once(lambda: job.folder.file("best.pt").exists()):
            finish(job)
        done = job.once(lambda: job.folder.history())[-1:]
        how = ("stopped", asked.reason) if asked else ("finished", "all epochs done")
        job.once(lambda: say_status(job.folder, how[0], done[0]["epoch"] if done else -1, how[1]))
    except BaseException as error:
        job.device.report()
        if first_process():
            _failed_end(job, error)
        raise
    job.once(lambda: _last_words(job, patience, asked))
    if asked and (asked.number or not job.folder.file("scores.json").exists()):
        raise asked
    return Run(job.folder.path, job.config, how[1])


def _fit_in_memory(job: Job, state: State) -> None:
    "Train, in smaller and smaller parts of a batch where the memory ends and that is wanted."
    device, config = job.device, job.config
    while True:
        try:
            return fit(job, state)
        except TooLarge as error:
            now = device.micro or config.batch_size
            may = config.on_out_of_memory == "halve" and device.world == 1 < now
            if not may or device.compiles:
                raise
            device.micro = (now + 1) // 2
            print(f"  {str(error).split(';')[0]}: going on with micro_batch {device.micro}")
        release(device)
        state = beginning(job)


def _announce(job: Job, state: State) -> None:
    "Print what is about to happen."
    about = job.task.about(job.parts, job.device)
    for name, line in {"device": job.device.why, **about, "folder": job.folder.path}.items():
        print(f"{name:8}{line}")
    if state.epoch >= 0 or state.step:
        steps = f" and {state.step} steps" if state.step else ""
        print(f"resume  {state.epoch + 1} of {job.config.epochs} epochs{steps} are done")


# %% [markdown]
# Of several processes that fail the first to write its error is the one with the reason; the others fail because it did. If not even this can be written, the error itself is still raised. The last lines of a session come after the mirror has all there is:

# %%
#| export
def _ended(folder: Folder, error: BaseException) -> None:
    "Write into the run's folder why it ended, unless it is written."
    last = folder.read_json("status.json")
    if last.get("state") == "running":
        stopped = isinstance(error, KeyboardInterrupt)
        reason = str(error) or "interrupted" if stopped else f"{type(error).__name__}: {error}"
        with contextlib.suppress(UserError):
            say_status(folder, "stopped" if stopped else "failed", last["epochs_done"] - 1, reason)


def _failed_end(job: Job, error: BaseException) -> None:
    "Write why a run failed, and have that in the mirror too."
    _ended(job.folder, error)
    if isinstance(error, NotFinite):
        with contextlib.suppress(UserError):
            write_json(job.folder.file("not_finite.json"), error.facts)
    if said := job.mirror.flush(30):
        print(said, flush=True)


def _last_words(job: Job, patience: float, asked: Stopped | None) -> None:
    "Finish the mirror, and print where the results are and how to resume."
    if asked:
        print(f"stopped  {asked.reason}; nothing is lost. Go on: run the same again, or here")
        print(f"  {_resume_command(job.folder, job.config)}", flush=True)
    if said := job.mirror.flush(patience):
        print(said, flush=True)
        job.mirror.flush(10)  # what was just printed
        entry = job.folder.read_json("status.json")
        write_json(job.folder.file("status.json"), entry | {"mirror": job.mirror.state()})
        job.mirror.flush(10)


def _resume_command(folder: Folder, config: Settings) -> str:
    "The command that resumes a run on this machine, with its settings of place."
    words = ["mshnet", "train", "--resume", str(folder.path)]
    for name, setting in type(config).model_fields.items():
        value = getattr(config, name)
        left = name == "max_hours" and started_processes()  # what is left of this session's
        of_place = name in OF_ITS_MACHINE - {"output_dir", "resume", "profile"}
        if value != setting.default and of_place and not left:
            words += [f"--{name.replace('_', '-')}", str(value)]
    return shlex.join(words)


# %% [markdown]
# ## On several GPUs
#
# Several GPUs need several processes, and `torchrun` starts them. From a terminal that is `torchrun --nproc-per-node=2 -m mshnet train ...`; a notebook cell, or `mshnet train --num-devices 2`, has it started here. The settings travel to the processes in a file. Processes that are started here know the tasks and the networks of the library alone.

# %%
#| export
def processes_to_start(config: Settings) -> bool:
    "Whether this run needs processes that nobody has started: not on a TPU, and not in torchrun."
    kind = best_device() if config.device == "auto" else config.device
    return config.num_devices > 1 and kind != "xla" and not started_processes()


def all_gpus(config: Settings) -> Settings:
    "The settings with the number of this machine's NVIDIA GPUs, unless they have a number."
    count = torch.cuda.device_count() if config.device in ("auto", "cuda") else 0
    if config.num_devices or count < 2:
        return config
    return config.model_copy(update={"num_devices": count})


def _known_elsewhere(config: Settings) -> bool:
    "Whether another process would train the same model for these settings."
    task = make_task(config)
    return all(type(x).__module__.startswith("mshnet.") for x in (task, task.model()))


def _launch(config: Settings) -> Run:
    "Train in several processes of this machine; UserError with their line if they made a mistake."
    processes = config.num_devices
    if processes > (there := torch.cuda.device_count()) > 0 and config.device != "cpu":
        raise UserError(f"num_devices={processes}: this machine has {there} GPUs; write {there}")
    threads = str(max(1, (os.cpu_count() or 1) // processes))
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder) / "config.json"
        left = max(session_hours(config) - session_seconds() / 3600, 1e-6)
        hours = {"max_hours": left if math.isfinite(left) else 0.0}
        settings.write_text(json.dumps(config.model_dump() | hours))
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
        mistakes, asked = _accompany(started, run)
    if asked.number:
        raise Interrupted(asked.reason, asked.number)
    if mistakes:
        raise UserError(mistakes[0])
    if status := started.wait():
        raise RuntimeError(f"a process ended with an error (status {status}): see the lines above")
    return Run(run.path, config, run.read_json("status.json")["reason"])


# %% [markdown]
# A signal reaches this process alone (an interrupted cell interrupts the kernel), so it is passed on: the first one is a wish, and all that the processes print until they have ended is printed here, so that a cell shows the epochs. A second signal does not wait for that; they end after their step.
#
# The one line of a mistake is passed on as an error of this process. What torchrun prints itself is left out: its pages about a process that failed, and its own traceback when it is asked to stop.

# %%
#| export
class _StopAll(Stop):
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


def _accompany(started: subprocess.Popen[str], run: Folder) -> tuple[list[str], _StopAll]:
    "Print what torchrun's processes print until they end; their mistakes, and who asked to stop."
    asked = _StopAll(started)
    with asked:
        try:
            mistakes = _pass_on(_without_its_signal(started.stdout or ()), asked)
        except BaseException:
            started.terminate()  # nobody waits for its processes, which end after their step
            _ended(run, KeyboardInterrupt())
            raise
        started.wait()
        if asked.number:
            _ended(run, Interrupted(asked.reason))
    return mistakes, asked


def _without_its_signal(lines: Iterable[str]) -> Iterator[str]:
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


def _pass_on(lines: Iterable[str], asked: Stop) -> list[str]:  # the mistakes, which are not printed
    "Print lines as they come from the processes, up to torchrun's own report of a failure."
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
test_eq(all_gpus(Config(device="cpu")).num_devices, 0)
assert not processes_to_start(Config(device="cpu"))

# %% [markdown]
# ## A run from its first line to its last
#
# The same call again reports what is finished; more epochs resume it; other settings are refused.

# %%
with tempfile.TemporaryDirectory() as tmp:
    config = config.model_copy(
        update={"output_dir": f"{tmp}/run", "epochs": 2, "schedule": "constant"}
    )
    run = train(config)
    again = train(config)
    longer = train(config.model_copy(update={"epochs": 3}))
    test_eq([len(r.history) for r in (run, longer)], [3, 3])
    with expect_fail(UserError, contains="lr 0.001 -> 0.1"):
        train(config.model_copy(update={"lr": 0.1}))
    print(longer.listing().split("\n", 1)[1])
    assert "nIoU" in str(longer) and "<table>" in longer._repr_html_()
assert isinstance(again, Run)
test_eq(again.ended, run.ended)

# %% [markdown]
# The parts of `train` can be called by hand, to look at them one by one:

# %%
print(identity(task, parts, device))
with tempfile.TemporaryDirectory() as tmp:
    job = Job(task, parts, device, Folder(Path(tmp)))
    job.stop, job.mirror = Stop(), Mirror(job.folder.path, None)
    state = beginning(job)
    fit(job, state)
    finish(job)
    test_eq((state.epoch, _best_or_last(job.folder)["epoch"]), (2, 2))
    test_eq(keep_copies(task.config), "")
