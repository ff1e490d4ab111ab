# %% [markdown]
# # train
#
# > One call trains, scores, keeps and resumes a run: plain functions, read from top to bottom.

# %%
#| default_exp train

# %%
#| hide
from fastcore.test import expect_fail, test_eq

# %%
#| export
import hashlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mshnet.core import Config, UserError, as_user_error
from mshnet.data import Split
from mshnet.device import DeviceSteps, best_device, device_for, open_device, started_processes
from mshnet.evaluate import chosen_by, look_closely, score_split
from mshnet.model import load_weights
from mshnet.places import first_process, run_folder
from mshnet.run import (
    Background,
    Folder,
    Scalars,
    State,
    bar,
    duration,
    earlier,
    keep,
    load,
    note,
    prepare,
    profiled,
    restore,
)
from mshnet.task import Detection, Task, training_batches, where_pixels


# %% [markdown]
# ## One epoch
#
# The loop never waits for the device: the loss is summed there and read at log lines and at the end. It does not know what kind of device it runs on, and, but for the task, not what it trains.

# %%
#| export
def train_epoch(
    task: Task,
    state: State,
    split: Split,
    device: DeviceSteps,
    epoch: int,
) -> float:  # mean loss of the epoch
    "Train for one epoch."
    config, phase, rate = task.config, task.phase(epoch), task.rate(epoch)
    for group in state.optimizer.param_groups:
        group["lr"] = rate
    device.seed(config.seed, epoch)
    state.model.train()
    grows = rate != task.rate(config.epochs)  # a rate is a constant of a compiled program
    name = f"{phase}, lr {rate:.4g}" if grows else phase
    model = device.begin(name, state.model, state.optimizer)
    plan = device.share(task.plan(split, epoch))
    batches = training_batches(device, task, split, plan, epoch)
    total, steps = device.send(torch.zeros(())), bar(batches, len(plan), f"epoch {epoch}")
    with profiled(config.profile) as watch, device.in_memory(config.batch_size):
        for step, batch in enumerate(steps, 1):
            with device.autocast():
                loss = task.loss(model, batch, phase)
            total += loss.detach()
            device.update(loss, state.optimizer, config.clip_grad)
            watch()
            if step % config.log_every == 0 and step < len(plan):
                mean = device.read(device.mean(total)).item() / step
                note(steps, f"epoch {epoch}, step {step}/{len(plan)}", f"loss {mean:.4f}")
    return device.read(device.mean(total)).item() / len(plan)


# %%
config = Config(
    scenes=8, base_size=32, crop_size=32, choose="last", device="cpu", epochs=3, warm_epoch=0
)
task, device = Detection(config), open_device("cpu")
parts, model = task.splits(), device.place(task.model())
state = State(model, task.optimizer(model))
losses = [train_epoch(task, state, parts["train"], device, 0) for _ in range(2)]
test_eq(device.reads, 2)
losses


# %% [markdown]
# ## Which epoch is kept
#
# `best.pt` is the last epoch with `choose="last"`; otherwise the one with the best IoU on the held-out part or, on request, on the test list. The first warm-up epochs can win too; the checkpoint knows which head to use.

# %%
#| export
def judge_split(
    config: Config,
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
judge = Detection(Config(choose="val"))
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
    parts: dict[str, Split],
    device: DeviceSteps,
    epoch: int,
) -> dict[str, Any]:  # the epoch's line in the log
    "Train and score one epoch."
    config, start = task.config, time.perf_counter()
    loss = train_epoch(task, state, parts["train"], device, epoch)
    if not math.isfinite(loss):
        raise UserError(
            f"epoch {epoch}: the loss is {loss}; the last good checkpoint is kept; "
            "try --clip-grad 1, a smaller --lr or --precision fp32"
        )
    trained = time.perf_counter() - start
    phase, name = task.phase(epoch), judge_split(config)
    entry = {"epoch": epoch, "phase": phase, "loss": loss, "lr": task.rate(epoch), "split": name}
    due = (epoch + 1) % config.eval_every == 0 or epoch == config.epochs - 1
    if due:
        scores = score_split(task, state.model, parts[name], device, phase)
        entry |= {"line": str(scores), "scores": scores.as_dict()}
    seconds = time.perf_counter() - start
    times = {"train_seconds": round(trained, 2), "seconds": round(seconds, 2)}
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
# ## A known trap
#
# The end of the warm-up can kill the fused prediction. Three heads join that have never been trained, and Adagrad's first step moves each of their weights by the whole learning rate, however small the gradient: their logits fall to where the sigmoid is flat, and the fused map, which adds them up, is empty or full from then on. It happens with the paper's own recipe, for some seeds, and can last a dozen epochs. Nobody should stare at zeros for that long without being told.

# %%
#| export
def stuck(
    history: list[dict[str, Any]],  # of a run's log
) -> str:  # advice, at the third scored epoch of nothing after the warm-up; else ""
    "What to do about a prediction that died with the end of the warm-up."
    scored = [e["scores"]["iou"] or 0 for e in history if e["phase"] == "full" and "scores" in e]
    dead = [iou < 0.01 for iou in scored]
    if not (len(dead) >= 3 and all(dead[-3:]) and (len(dead) == 3 or not dead[-4])):
        return ""
    return (
        "  the prediction has been empty or full for three epochs: a known trap at the end of the "
        "warm-up. It may recover; if it does not, try another --seed or --lr 0.02"
    )


# %%
zeros = [{"phase": "full", "scores": {"iou": iou}} for iou in (0.3, 0, 0, 0, 0)]
test_eq([bool(stuck(zeros[:n])) for n in range(1, 6)], [False, False, False, True, False])
test_eq(stuck([{"phase": "warm-up", "scores": {"iou": 0}}] * 5), "")


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
    config: Config
    ended: str  # why it ended

    @property
    def history(self) -> list[dict[str, Any]]:
        "One entry per epoch."
        return Folder(self.folder).history()

    @property
    def scores(self) -> dict[str, Any]:
        "Content of scores.json: the score line, the scores and their protocol."
        return Folder(self.folder).read_json("scores.json")

    def __str__(self) -> str:
        "The score line."
        return str(self.scores["line"])

    def listing(self) -> str:
        "The run's files, with their sizes."
        files = sorted(p for p in self.folder.rglob("*") if p.is_file())
        lines = [f"{p.stat().st_size / 1e6:8.2f} MB  {p.relative_to(self.folder)}" for p in files]
        return "\n".join([str(self.folder), *lines])

    def _repr_html_(self) -> str:
        "A table for the notebook."
        rows = {**self.scores["scores"], **self.scores["protocol"], "folder": self.folder}
        cells = [f"<tr><th>{k}</th><td>{v}</td></tr>" for k, v in rows.items()]
        return f"<table>{''.join(cells)}</table>"


# %% [markdown]
# Why a run ended is in its `status.json`. Of several processes that fail the first to say so is the one with the reason; the others fail because it did.

# %%
#| export
def ended(
    folder: Folder,
    epoch: int,  # the last one that is complete
    error: BaseException,
) -> None:
    "Say in the run's folder why it ended, unless it is said."
    last = folder.read_json("status.json")
    if last and last["state"] == "running":
        stopped = isinstance(error, KeyboardInterrupt)
        reason = "interrupted" if stopped else f"{type(error).__name__}: {error}"
        folder.status("stopped" if stopped else "failed", epoch, reason)


# %%
with tempfile.TemporaryDirectory() as tmp:
    folder = Folder(Path(tmp))
    folder.status("running", 2)
    for error in (ValueError("first"), ConnectionError("because of the first")):
        ended(folder, 2, error)
    test_eq(folder.read_json("status.json")["reason"], "ValueError: first")


# %% [markdown]
# ## On several GPUs
#
# Several GPUs need several processes, and `torchrun` starts them. From a terminal that is `torchrun --nproc-per-node=2 -m mshnet train ...`; a notebook cell, or `mshnet train --num-devices 2`, has it started here. What the first process prints is passed on as it comes, so that a cell shows the epochs. The one line of a mistake is passed on too, without torchrun's own pages around it.

# %%
#| export
def processes_to_start(
    config: Config,
) -> bool:
    "Whether this run needs processes that nobody has started: not on a TPU, and not in torchrun."
    kind = best_device() if config.device == "auto" else config.device
    return config.num_devices > 1 and kind != "xla" and not started_processes()


def all_gpus(
    config: Config,
) -> Config:  # with their number, unless one is written or there is but one
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
    config: Config,
    processes: int,  # one per GPU
) -> Run:
    "Train in several processes of this machine; UserError with their line if they made a mistake."
    if processes > (there := torch.cuda.device_count()) > 0 and config.device != "cpu":
        raise UserError(f"num_devices={processes}: this machine has {there} GPUs; write {there}")
    threads = str(max(1, (os.cpu_count() or 1) // processes))
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder) / "config.json"
        settings.write_text(json.dumps(config.model_dump() | {"num_devices": processes}))
        started = subprocess.Popen(
            [
                *(sys.executable, "-u", "-m", "torch.distributed.run", "--standalone"),
                *(f"--nproc-per-node={processes}", "-m", "mshnet", "train", "--config", settings),
            ],
            env={"OMP_NUM_THREADS": threads, **os.environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            mistakes = pass_on(started.stdout or ())
        except BaseException:
            stop(started, Folder(run_folder(config)))
            raise
    if mistakes:
        raise UserError(mistakes[0])
    if status := started.wait():
        raise RuntimeError(f"a process ended with an error (status {status}): see the lines above")
    run = Folder(run_folder(config))
    return Run(run.path, config, run.read_json("status.json")["reason"])


# %% [markdown]
# An interrupted cell interrupts the kernel alone, so the processes are told here.

# %%
#| export
def stop(started: subprocess.Popen[str], folder: Folder) -> None:
    "Stop torchrun and its processes, and say in the run's folder that it was stopped."
    started.send_signal(signal.SIGTERM if os.name == "nt" else signal.SIGINT)
    started.wait()
    if last := folder.read_json("status.json"):
        ended(folder, last["epochs_done"] - 1, KeyboardInterrupt())


# %%
#| export
def pass_on(
    lines: Iterable[str],  # as they come from the processes
) -> list[str]:  # the mistakes among them, which are not printed
    "Print what the processes say, up to torchrun's own report of a failure."
    mistakes, over = [], False
    for line in lines:
        over = over or bool(
            re.match(r"[EW]\d+ .*elastic.*(failed \(exitcode|Sending process)", line)
        )
        if found := re.match(r"mshnet(, process \d+)?: (.*)", line):
            mistakes.append(found[2])
        elif not over:
            print(line, end="", flush=True)
    return mistakes


# %%
end = "E1121 06:08 1 torch/distributed/elastic/multiprocessing/api.py:1] failed (exitcode: 2)\n"
said = ["W1 1 torch/distributed/elastic/redirects.py:35] NOTE: on a Mac\n", "epoch 0\n"]
test_eq(pass_on([*said, "mshnet, process 1: epochs=0\n", end, "Traceback\n"]), ["epochs=0"])
test_eq(all_gpus(Config(device="cpu")).num_devices, 0)
with tempfile.TemporaryDirectory() as tmp:
    folder, sleeper = Folder(Path(tmp)), [sys.executable, "-c", "import time; time.sleep(60)"]
    folder.status("running", 2)
    with subprocess.Popen(sleeper, text=True, stderr=subprocess.DEVNULL) as started:
        stop(started, folder)
    test_eq(folder.read_json("status.json")["state"], "stopped")
with expect_fail(UserError, contains="data is no folder of this machine"):
    launch(Config(device="cpu", dataset_dir="data is no folder of this machine", epochs=7), 2)
assert not processes_to_start(Config(device="cpu"))


# %% [markdown]
# Whatever ends a run, `status.json` says so, and the error goes on to whoever started it.

# %%
#| export
def train(
    config: Config,
    task: Task | None = None,  # None: detection with MSHNet
) -> Run:
    "Train, score and keep a run, or go on with it; a finished one is only reported."
    if processes_to_start(config):
        if task:
            raise UserError("a task of your own on several devices: start your script by torchrun")
        return launch(config, config.num_devices)
    device, task = device_for(config), task or Detection(config)
    folder, parts = Folder(run_folder(config)), task.splits()
    state = beginning(folder, task, parts, device)
    data, unfinished = identity(config, parts, device), state.epoch < config.epochs - 1
    device.once(lambda: prepare(folder, config, device.why, unfinished))
    announce(folder, task, device, parts, state)
    try:
        device.once(lambda: folder.status("running", state.epoch))
        fit(folder, task, state, parts, device, data)
        finish(folder, task, parts, device)
    except BaseException as error:
        device.report()
        ended(folder, state.epoch, error)
        raise
    device.once(lambda: folder.status("finished", state.epoch, "all epochs done"))
    return Run(folder.path, config, "all epochs done")


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
    parts: dict[str, Split],
    device: DeviceSteps,
) -> State:
    "The state that a run begins or goes on with."
    config, model = task.config, device.place(task.model())
    old = device.once(lambda: earlier(folder, config, identity(config, parts, device)))
    if old:
        device.set_precision(old["data"].get("precision", device.precision))
    state = State(model, task.optimizer(model), device.scaler)
    if old:
        restore(state, old)
    elif config.weight_path:
        with as_user_error():
            load_weights(model, config.weight_path)
    return state


# %% [markdown]
# Before anything is spent, it says what is about to happen.

# %%
#| export
def identity(
    config: Config,
    parts: dict[str, Split],
    device: DeviceSteps,
) -> dict[str, str]:
    "What a resumed run must agree on besides its recipe: pixels, starting weights, arithmetic."
    same = {f"{name} data": split.hash for name, split in parts.items()}
    start = Path(config.weight_path)
    if config.weight_path and start.is_file():
        same["starting weights"] = hashlib.sha256(start.read_bytes()).hexdigest()[:12]
    return same | {"precision": device.precision}


def announce(
    folder: Folder,
    task: Task,
    device: DeviceSteps,
    parts: dict[str, Split],
    state: State,
) -> None:
    "Say what is about to happen."
    config = task.config
    counts = ", ".join(f"{len(split)} {name}" for name, split in parts.items())
    preset = f", preset {config.preset}" if config.preset else ""
    kind = "synthetic scenes" if not config.dataset_dir else parts["train"].source
    print(f"device  {device.why}")
    print(f"data    {kind}: {counts} images{preset}")
    print(f"pixels  {where_pixels(device, task, parts['train'])}")
    print(f"folder  {folder.path}")
    if state.epoch >= 0:
        print(f"resume  {state.epoch + 1} of {config.epochs} epochs are done")


# %% [markdown]
# The epochs, one line each, with the time that is left:

# %%
#| export
def fit(
    folder: Folder,
    task: Task,
    state: State,
    parts: dict[str, Split],
    device: DeviceSteps,
    data: dict[str, str],
) -> None:
    "Train the epochs that are not done yet."
    epochs, last = range(state.epoch + 1, task.config.epochs), task.config.epochs - 1
    with Scalars(folder, bool(epochs) and first_process()) as scalars, Background() as background:
        for epoch in epochs:
            device.once(lambda: folder.status("running", state.epoch))
            entry = epoch_entry(task, state, parts, device, epoch)
            advance(task, state, entry)
            device.once(lambda: keep(folder, task.config, state, entry, data, background))  # noqa: B023
            scalars.write(entry)
            print(told(entry, last), flush=True)
            if "scores" in entry and (advice := stuck(folder.history())):
                print(advice, flush=True)
        device.once(background.finish)
    device.alike(state.model)


# %% [markdown]
# At the end the kept epoch is scored on the test list, with curves and all, unless that was done before.

# %%
#| export
def finish(
    folder: Folder,
    task: Task,
    parts: dict[str, Split],
    device: DeviceSteps,
) -> None:
    "Score the kept epoch on the test list, unless that is done, and print the score line."
    best = device.once(lambda: load(folder.file("best.pt")))
    chosen = chosen_by(task.config.model_dump(), best["best"])
    scores = device.once(lambda: folder.read_json("scores.json"))
    if not scores or scores["protocol"]["chosen"] != chosen:
        model = task.model()
        model.load_state_dict(best["model"])
        model = device.place(model)
        seen = look_closely(
            task, model, parts["test"], device, best["phase"], chosen, task.config.seed
        )
        device.once(lambda: seen.save(folder.path))
        scores = device.once(lambda: folder.read_json("scores.json"))
    if report := device.report():
        print(f"device  {report}")
    print(f"test    {chosen}, rule {scores['protocol']['rule']}")
    print(scores["line"])


# %%
with tempfile.TemporaryDirectory() as tmp:
    config = config.model_copy(update={"output_dir": f"{tmp}/run", "warm_epoch": 0, "epochs": 2})
    run = train(config)
    again = train(config)
    longer = train(config.model_copy(update={"epochs": 3}))
    test_eq([len(r.history) for r in (run, longer)], [3, 3])
    test_eq(json.loads((run.folder / "status.json").read_text())["state"], "finished")
    with expect_fail(UserError, contains="lr 0.05 -> 0.1"):
        train(config.model_copy(update={"lr": 0.1}))
    test_eq(beginning(Folder(run.folder), Detection(longer.config), parts, device).epoch, 2)
    print(longer.listing().split("\n", 1)[1])
    assert "nIoU" in str(longer) and "<table>" in longer._repr_html_()
assert isinstance(again, Run)
test_eq(again.ended, run.ended)

# %% [markdown]
# The steps of `train` can be called by hand, to look at them one by one:

# %%
print(identity(task.config, parts, device))
with tempfile.TemporaryDirectory() as tmp:
    folder = Folder(Path(tmp))
    state = State(model, task.optimizer(model))
    announce(folder, task, device, parts, state)
    fit(folder, task, state, parts, device, {})
    finish(folder, task, parts, device)
