# %% [markdown]
# # run
#
# > A run is a folder: what was asked, where it ran, what happened, and a checkpoint from which it goes on as if nothing had happened.

# %%
#| default_exp run

# %%
#| hide
import tempfile

from fastcore.test import expect_fail, test_eq

# %%
#| export
import contextlib
import importlib.util
import io
import json
import os
import platform
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mshnet.core import Config, UserError, as_user_error
from mshnet.device import XLA_PACKAGES
from mshnet.model import find_weights, fit_weights, read_file
from mshnet.places import first_process, installed, interactive


# %% [markdown]
# Sessions end without notice. So nothing of value lives in memory for longer than an epoch, and nothing on the disk is ever half-written: a file is written under another name, flushed to the disk, and renamed. A rename happens or does not.

# %%
#| export
def write_atomic(
    path: Path,
    content: bytes | str,
) -> None:
    "Write a file so that it is the old one or the new one at any moment, whatever happens."
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(
    path: Path,
    value: Any,
) -> None:
    "Write a JSON file, atomically, to be read by people too."
    write_atomic(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


# %%
with tempfile.TemporaryDirectory() as tmp:
    path = Path(tmp) / "status.json"
    write_json(path, {"state": "running"})
    with expect_fail(ValueError):
        write_json(path, {"loss": float("nan")})
    write_atomic(path, path.read_bytes())
    test_eq(json.loads(path.read_text()), {"state": "running"})
    test_eq(len(list(Path(tmp).iterdir())), 1)


# %% [markdown]
# ## What happened, line by line
#
# The log has one JSON object per epoch. A run that is killed between its log line and its checkpoint repeats that epoch when it goes on; the repeated line says so, and readers take the last line of an epoch. A line that was being written when the power went is ignored.

# %%
#| export
@dataclass(frozen=True)
class Folder:
    "The files of a run: settings, machine, log, status, checkpoints, scores and figures."

    path: Path

    def file(self, name: str) -> Path:
        "Path of one of the run's files."
        return self.path / name

    def read_json(self, name: str) -> Any:
        "Content of a JSON file of the run; None if there is none."
        path = self.file(name)
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    def history(self) -> list[dict[str, Any]]:
        "The log, one entry per epoch, the last line of each."
        path, entries = self.file("log.jsonl"), {}
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
            try:
                entry = json.loads(line)
                entries[entry["epoch"]] = entry
            except (ValueError, KeyError, TypeError):
                continue
        return [entries[epoch] for epoch in sorted(entries)]

    def log(self, entry: dict[str, Any]) -> None:
        "Append one epoch's entry; marked if that epoch is there already."
        if any(old["epoch"] == entry["epoch"] for old in self.history()):
            entry = {**entry, "repeated": True}
        with open(self.file("log.jsonl"), "a", encoding="utf-8") as file:
            file.write(json.dumps(entry, allow_nan=False) + "\n")
            file.flush()

    def status(self, state: str, epoch: int, reason: str = "") -> None:
        "Say how the run is: running, finished, stopped or failed, and why."
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        entry = {"state": state, "epochs_done": epoch + 1, "reason": reason, "time": now}
        write_json(self.file("status.json"), entry)


# %%
with tempfile.TemporaryDirectory() as tmp:
    folder = Folder(Path(tmp))
    for epoch, loss in ((0, 1.0), (1, 0.9), (1, 0.8)):
        folder.log({"epoch": epoch, "loss": loss})
    with open(folder.file("log.jsonl"), "a") as file:
        file.write('{"epoch": 2, "lo')
    test_eq([e["loss"] for e in folder.history()], [1.0, 0.8])
    assert folder.history()[1]["repeated"]
    folder.status("stopped", 1, "asked to")
    test_eq(folder.read_json("status.json")["epochs_done"], 2)
    test_eq(folder.read_json("scores.json"), None)

# %% [markdown]
# ## The machine it ran on
#
# A number without its versions cannot be repeated. What is recorded names the machine's kind, never its owner.

# %%
#| export
PACKAGES = (
    *("mshnet", "torch", "numpy", "pillow", "scikit-image", "matplotlib", "pydantic"),
    *XLA_PACKAGES,
)


def environment(
    device: str,  # a device's `why`
) -> dict[str, Any]:
    "Kind of machine, device and versions."
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": device,
        "packages": {name: v for name in PACKAGES if (v := installed(name))},
    }


# %%
environment("cpu")["packages"]["torch"]

# %% [markdown]
# ## Checkpoints
#
# A checkpoint holds everything that the next epoch depends on, with the configuration and the data's hashes, so that it cannot go on with something else. It is tensors and plain values alone: it loads without running code. Tensors are stored from the CPU, so that a run begun on one device goes on at another.

# %%
#| export
FORMAT = 1  # of checkpoints; raised when an older release could not read them


@dataclass
class State:
    "What training changes: exactly what a checkpoint holds."

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler | None = None  # of the device
    epoch: int = -1  # the last one that is complete
    phase: str = ""  # of that epoch
    best: dict[str, Any] | None = None  # epoch, score and its name of the best one so far


# %% [markdown]
# Writing one takes two steps, so that training need not wait. A snapshot copies all that will change, on the device, wherever it hides in the optimizer's nested state: that is quick. Then a thread brings the copies to the host and writes them while the next epoch trains. A run that is killed within that moment repeats one epoch more. (What XLA has only recorded is brought to the host at once.)

# %%
#| export
def each_tensor(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    "The same nested value with its tensors changed."
    if isinstance(value, Tensor):
        return change(value.detach())
    if isinstance(value, dict):
        return {k: each_tensor(v, change) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(each_tensor(v, change) for v in value)
    return value


# %% [markdown]
# The snapshot:

# %%
#| export
def snapshot(
    state: State,
    config: Config,
    data: dict[str, str],  # hash of each split and of the starting weights, and the precision
) -> dict[str, Any]:
    "The content of a checkpoint, which no later step changes."
    content = {
        "format": FORMAT,
        "config": config.model_dump(),
        "data": data,
        "epoch": state.epoch,
        "phase": state.phase,
        "best": state.best,
        "model": state.model.state_dict(),
        "optimizer": state.optimizer.state_dict(),
        "scaler": state.scaler.state_dict() if state.scaler else {},
        "random": torch.get_rng_state(),
    }
    return each_tensor(content, lambda t: t.cpu() if t.device.type == "xla" else t.clone())


# %% [markdown]
# The writing itself:

# %%
#| export
def write_checkpoint(
    content: dict[str, Any],  # a snapshot
    *paths: Path,
) -> None:
    "Write a checkpoint, atomically, under one name or several."
    buffer = io.BytesIO()
    torch.save(each_tensor(content, Tensor.cpu), buffer)
    for path in paths:
        write_atomic(path, buffer.getvalue())


# %% [markdown]
# The thread writes one checkpoint at a time, in order. If it cannot, the training hears of it when it brings the next one, or at the end.

# %%
#| export
class Background:
    "A thread that does one thing after another, and tells of its errors."

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(1)
        self.last = self.pool.submit(lambda: None)

    def __enter__(self) -> "Background":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        "Finish what was begun; its error counts unless there is another."
        self.pool.shutdown()
        if error is None:
            self.finish()

    def do(self, work: Callable[[], None]) -> None:
        "Begin some work when the one before is done; an error of that one is raised."
        self.finish()
        self.last = self.pool.submit(work)

    def finish(self) -> None:
        "Wait until all is done; an error is raised."
        self.last.result()


# %%
with expect_fail(OSError, contains="disk full"), Background() as background:
    background.do(lambda: write_atomic(Path(tempfile.gettempdir()) / "mshnet-test", "1"))

    def fail():
        raise OSError("disk full")

    background.do(fail)
(Path(tempfile.gettempdir()) / "mshnet-test").unlink()


# %% [markdown]
# So an epoch is kept like this, the log first: a run that is killed in between repeats an epoch and does not lose one.

# %%
#| export
def keep(
    folder: Folder,
    config: Config,
    state: State,
    entry: dict[str, Any],
    data: dict[str, str],
    background: Background,
) -> None:
    "Log an epoch, and begin to write its checkpoints."
    folder.log(entry)
    best = ["best.pt"] if state.best and state.best["epoch"] == state.epoch else []
    files = [folder.file(name) for name in (*best, "last.pt")]
    background.do(partial(write_checkpoint, snapshot(state, config, data), *files))


# %% [markdown]
# Reading one back is suspicious: a file may be of something else, of a newer release, or cut off.

# %%
#| export
def load(
    path: Path,
) -> dict[str, Any]:  # the checkpoint's content
    "Read a checkpoint of this suite; UserError if it is none."
    with as_user_error():
        content = read_file(path)
    keys = {"format", "config", "data", "epoch", "model", "optimizer"}
    if not isinstance(content, dict) or not keys <= content.keys():
        raise UserError(f"{path}: not a checkpoint to resume from (weights go to --weight-path)")
    if content["format"] > FORMAT:
        raise UserError(
            f"{path}: written by a newer mshnet (format {content['format']}); update mshnet"
        )
    return content


# %% [markdown]
# Restoring puts everything back where it was: weights, the sums of Adagrad, the random numbers, and where the run stands.

# %%
#| export
def restore(
    state: State,
    content: dict[str, Any],  # from `load`
) -> None:
    "Put a checkpoint into the state of a run."
    try:
        fit_weights(state.model, find_weights(content))
    except ValueError as error:
        raise UserError(f"checkpoint: {error}") from None
    state.optimizer.load_state_dict(content["optimizer"])
    if state.scaler and (scale := content.get("scaler")):
        state.scaler.load_state_dict(scale)
    torch.set_rng_state(content["random"])
    state.epoch, state.phase, state.best = (content[k] for k in ("epoch", "phase", "best"))


# %% [markdown]
# A small model, trained a step, saved and restored, has the same weights and the same optimizer state:

# %%
def small():
    "A model with an optimizer that has made one step."
    model = nn.Linear(3, 1)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return State(model, optimizer)


with tempfile.TemporaryDirectory() as tmp:
    old, new, path = small(), small(), Path(tmp) / "last.pt"
    old.epoch = 4
    write_checkpoint(snapshot(old, Config(), {"train": "0123"}), path)
    with Background() as background:
        keep(Folder(Path(tmp)), Config(), old, {"epoch": 4}, {"train": "0123"}, background)
    restore(new, load(path))
    with expect_fail(UserError, contains="no such file"):
        load(Path(tmp) / "none.pt")
test_eq(new.epoch, 4)
assert torch.equal(new.model.weight, old.model.weight)
test_eq(each_tensor({"a": [torch.ones(1)]}, torch.neg), {"a": [-torch.ones(1)]})
new.optimizer.state_dict()["state"][0]["sum"]


# %% [markdown]
# ## Beginning, or going on
#
# The same command again goes on with the same run. It must be the same run: every recipe setting and the data's hashes are compared, and what differs is named. `epochs` may grow. Of `precision` what was really computed in is compared: "auto" is bfloat16 on one chip and float32 on another, and a run that moves goes on in its own.

# %%
#| export
def differences(
    old: dict[str, Any],  # settings of the run as it stands
    new: Config,
) -> list[str]:  # such as "lr 0.05 -> 0.1"
    "Recipe settings in which a run would change."
    names = [n for n in new.recipe_names() if n not in ("epochs", "precision") and n in old]
    return [f"{n} {old[n]!r} -> {getattr(new, n)!r}" for n in names if old[n] != getattr(new, n)]


# %% [markdown]
# The comparison comes first, and the folder is made after it: a refused run leaves no trace.

# %%
#| export
def earlier(
    folder: Folder,
    config: Config,
    data: dict[str, str],  # hash of each split and of the starting weights, and the precision
) -> dict[str, Any] | None:  # the checkpoint to go on from
    "Find the run that this one goes on with; UserError if it is another run."
    old = read_old(folder, config)
    if not old:
        return None
    changed = differences(old["config"], config)
    both = sorted(old["data"].keys() & data.keys())
    if config.precision == "auto":  # it goes on in its own
        both = [name for name in both if name != "precision"]
    changed += [f"{k} {old['data'][k]} -> {data[k]}" for k in both if old["data"][k] != data[k]]
    if changed:
        raise UserError(
            f"{config.resume or folder.path} holds another run ({'; '.join(changed)}); "
            "write its settings or another --output-dir"
        )
    if config.epochs <= old["epoch"]:
        done = old["epoch"] + 1
        raise UserError(f"epochs={config.epochs}: the run has {done} already; write {done} or more")
    return old


# %% [markdown]
# Then the folder is made, with the records of the run: what was asked and where it ran.

# %%
#| export
def prepare(
    folder: Folder,
    config: Config,
    device: str,  # its `why`
    unfinished: bool = True,
) -> None:
    "Make the folder of a run and its records; UserError if it cannot be written."
    if not unfinished and folder.file("last.pt").exists():
        return  # a finished run keeps its records
    try:
        folder.file("figures").mkdir(parents=True, exist_ok=True)
        bring_along(folder, config)
        write_json(folder.file("config.json"), config.model_dump())
        write_json(folder.file("env.json"), environment(device))
    except OSError as error:
        raise UserError(
            f"output_dir={str(folder.path)!r}: cannot be written ({error.strerror})"
        ) from None


# %% [markdown]
# Which checkpoint is it? The folder's own, or the one that `resume` names, and then the folder must not hold another.

# %%
#| export
def read_old(
    folder: Folder,
    config: Config,
) -> dict[str, Any] | None:
    "The checkpoint that this run goes on from, if there is one."
    here = folder.file("last.pt")
    if not here.exists():
        return load(resume_file(config)) if config.resume else None
    before = folder.read_json("config.json") or {}
    again = config.resume in ("", before.get("resume"))  # the same command once more
    if again or here.resolve() == resume_file(config).resolve():
        return load(here)
    raise UserError(
        f"{folder.path} holds a run of its own already; write another --output-dir, "
        "or leave out --resume to go on with that run"
    )


def resume_file(config: Config) -> Path:
    "The checkpoint that `resume` names: a file, or the last one of a folder."
    asked = Path(config.resume).expanduser()
    return asked / "last.pt" if asked.is_dir() else asked


def bring_along(folder: Folder, config: Config) -> None:
    "When a run goes on in another folder, take its log, its best and its last epoch there."
    source = resume_file(config).parent if config.resume else folder.path
    for name in ("log.jsonl", "best.pt", "last.pt"):
        if (source / name).exists() and not folder.file(name).exists():
            shutil.copyfile(source / name, folder.file(name))


# %%
with tempfile.TemporaryDirectory() as tmp:
    folder, config = Folder(Path(tmp) / "run"), Config(lr=0.05)
    test_eq(earlier(folder, config, {"train": "0123"}), None)
    prepare(folder, config, "cpu")
    write_checkpoint(snapshot(old, config, {"train": "0123"}), folder.file("last.pt"))
    test_eq(read_old(folder, config)["epoch"], 4)
    test_eq(earlier(folder, Config(lr=0.05, device="cpu"), {"train": "0123"})["epoch"], 4)
    with expect_fail(UserError, contains="lr 0.05 -> 0.1"):
        earlier(folder, Config(lr=0.1), {"train": "0123"})
    with expect_fail(UserError, contains="train 0123 -> 4567"):
        earlier(folder, config, {"train": "4567"})
    bring_along(folder, config)
    test_eq(resume_file(Config(resume=str(folder.path))), folder.file("last.pt"))
differences(Config().model_dump(), Config(seed=3, epochs=500))


# %% [markdown]
# ## Where the time goes
#
# `profile` names a folder. torch's profiler watches the third to the fifth step of the first epoch that is trained and leaves two files there: `trace.json`, for chrome://tracing or ui.perfetto.dev, and `operations.txt`, the operations that took longest. A folder that has a trace is left alone: the run that goes on is not profiled again.

# %%
#| export
@contextlib.contextmanager
def profiled(
    folder: str,  # empty: not profiled
) -> Iterator[Callable[[], None]]:  # to be called after each step
    "Watch a few steps."
    path = Path(folder).expanduser()
    if not folder or (path / "trace.json").exists() or not first_process():
        yield lambda: None
        return

    def write(found: torch.profiler.profile) -> None:
        path.mkdir(parents=True, exist_ok=True)
        found.export_chrome_trace(str(path / "trace.json"))
        order = "self_cuda_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
        text = found.key_averages(group_by_input_shape=True).table(sort_by=order, row_limit=60)
        (path / "operations.txt").write_text(text)

    steps = torch.profiler.schedule(wait=1, warmup=1, active=3, repeat=1)
    with torch.profiler.profile(
        schedule=steps, on_trace_ready=write, record_shapes=True
    ) as watching:
        yield watching.step


# %%
with tempfile.TemporaryDirectory() as tmp:
    for _ in range(2):
        with profiled(tmp) as step:
            for _ in range(6):
                torch.ones(8, 8) @ torch.ones(8, 8)
                step()
    assert "aten::mm" in (Path(tmp) / "operations.txt").read_text()
    test_eq(len(list(Path(tmp).iterdir())), 2)


# %% [markdown]
# ## Being watched
#
# A terminal or a notebook gets a bar with the time left. A log file gets plain lines: a bar there is a megabyte of carriage returns.

# %%
#| export
def watched() -> bool:
    "Whether somebody sees a progress bar: a terminal, or a notebook with widgets."
    if not first_process():
        return False
    if "ipykernel" in sys.modules:
        return interactive() and importlib.util.find_spec("ipywidgets") is not None
    return sys.stderr.isatty()


def bar(
    items: Iterable[Any],
    total: int,
    text: str,
) -> Iterable[Any]:
    "The items, with a progress bar and the time left where somebody sees it."
    if not watched():
        return items
    from tqdm.auto import tqdm  # imported here: in a notebook without widgets it complains

    return tqdm(items, total=total, desc=text, leave=False)


def note(
    items: Iterable[Any],  # from `bar`
    where: str,  # such as "epoch 3, step 20/53"; the bar shows that itself
    text: str,  # such as "loss 0.5312"
) -> None:
    "Say something beside the bar, or as a line of its own."
    if hasattr(items, "set_postfix_str"):
        items.set_postfix_str(text)
    else:
        print(f"  {where}: {text}", flush=True)


# %% [markdown]
# Times are said as people say them.

# %%
#| export
def duration(
    seconds: float,
) -> str:  # such as "2 h 05 min", "3 min 20 s", "9 s"
    "A time as a person says it."
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


# %%
test_eq([duration(s) for s in (9.4, 200, 7500)], ["9 s", "3 min 20 s", "2 h 05 min"])
test_eq(list(bar(range(3), 3, "counting")), [0, 1, 2])
note(range(3), "epoch 3, step 20/53", "loss 0.5312")
assert watched() in (True, False)


# %% [markdown]
# TensorBoard gets the same scalars, if it is installed. One writer serves a whole run: each makes a file of its own.

# %%
#| export
def open_tensorboard(
    folder: Folder,
) -> Any:  # a SummaryWriter; None where TensorBoard is not installed
    "Begin to write scalars for TensorBoard."
    if importlib.util.find_spec("tensorboard") is None:
        return None
    try:
        from torch.utils.tensorboard import SummaryWriter
    except Exception as error:  # a TensorBoard that does not fit its protobuf raises many kinds
        warnings.warn(f"TensorBoard is installed but does not load: {error}", stacklevel=2)
        return None
    return SummaryWriter(str(folder.file("tensorboard")))


class Scalars:
    "TensorBoard's file of one run; nothing where it is not wanted or not installed."

    def __init__(self, folder: Folder, wanted: bool = True) -> None:
        self.writer = open_tensorboard(folder) if wanted else None

    def __enter__(self) -> "Scalars":
        return self

    def __exit__(self, *_: Any) -> None:
        if self.writer:
            self.writer.close()

    def write(self, entry: dict[str, Any]) -> None:  # of the log; at most one level deep
        "Write an epoch's numbers."
        if not self.writer:
            return
        for key, value in entry.items():
            nested = value.items() if isinstance(value, dict) else [("", value)]
            for name, number in nested:
                if isinstance(number, int | float) and key != "epoch":
                    self.writer.add_scalar(f"{key}/{name}".rstrip("/"), number, entry["epoch"])
        self.writer.flush()


# %%
with tempfile.TemporaryDirectory() as tmp, warnings.catch_warnings():
    warnings.simplefilter("ignore")
    with Scalars(Folder(Path(tmp))) as scalars:
        scalars.write({"epoch": 0, "loss": 0.5, "scores": {"iou": 0.3}})
    written = [p.name[:6] for p in Path(tmp).rglob("events*")]
    open_tensorboard(Folder(Path(tmp) / "other"))
written
