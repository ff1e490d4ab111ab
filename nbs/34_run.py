# %% [markdown]
# # A run is a folder
#
# > Its settings, its machine, its log, and a checkpoint from which it resumes exactly (on a GPU with `--deterministic`; with three processes or more, up to rounding).
#
# Sessions end without notice. So a run keeps in one folder all that its next step depends on. The same command resumes it from its checkpoint, on a new machine too. A run that is killed repeats one epoch, at most two. Only the checkpoint is needed to resume; the other files are for reading, and a damaged one counts as missing.
#
# | file | content |
# |---|---|
# | `last.pt`, `best.pt` | the checkpoint of the last epoch, and of the selected one |
# | `previous.pt` | the `last.pt` before, in case `last.pt` is damaged |
# | `config.json`, `env.json` | the settings; the kind of machine and the versions |
# | `log.jsonl`, `train.log` | one JSON object per epoch; what the run printed |
# | `status.json` | the state of the run, for programs that watch it |
# | `scores.json`, `details.json`, `figures/` | the scores with their protocol, and what is drawn from them |

# %%
#| hide
#| default_exp run
import tempfile

from mshnet import run
from mshnet.core import Config

# %%
#| export
import contextlib
import io
import json
import math
import os
import platform
import signal
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from zipfile import is_zipfile

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor, nn

from mshnet.core import (
    RETIRED_RECIPE,
    Settings,
    UserError,
    is_record,
    of_earlier_release,
    quoted,
    read_record,
    shown,
)
from mshnet.device import each_tensor, started_processes
from mshnet.files import cannot_be_written, copy_file, move, to_disk, write_atomic, write_json
from mshnet.places import has_checkpoint, installed
from mshnet.weights import PRETRAINED, checksum, find_weights, fit_weights, read_file
from mshnet.xla import XLA_PACKAGES


# %% [markdown]
# ## What the next step depends on
#
# The weights are not enough: an optimizer has a memory. We train a small model for four steps. A second one makes two, is stored, and a restored copy makes two more. The copy ends at the same weights to the last bit. A model with only the weights ends elsewhere, because Adagrad divides by the root of the sum of all squared gradients so far, and this model begins the sum anew:

# %%
def train(steps, state=None):
    "A model and its optimizer after some steps, or after some more."
    if state is None:
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        state = run.State(model, torch.optim.Adagrad(model.parameters(), lr=0.1))
    for _ in range(steps):
        state.optimizer.zero_grad()
        state.model(torch.ones(1, 3)).square().sum().backward()
        state.optimizer.step()
    return state


with tempfile.TemporaryDirectory() as tmp:
    path, restored, weights_alone = Path(tmp) / "last.pt", train(0), train(0)
    run.write_checkpoint(run.snapshot(train(2), Config(), {}), path)
    run.restore(restored, run.read_checkpoint(path))
    weights_alone.model.load_state_dict(run.read_checkpoint(path)["model"])
for name, state in {"restored": restored, "weights alone": weights_alone}.items():
    apart = train(2, state).model.weight - train(4).model.weight
    print(f"{name}: {apart.abs().max():.3g} from four steps at once")

# %% [markdown]
# A checkpoint contains everything that the next step depends on, with the configuration and the data's hashes, so that no other run can resume from it. It consists of tensors and plain values only: it loads without running code. Tensors are stored from the CPU, so a run can be resumed on a different device.
#
# With averaged weights (`ema`) a checkpoint has two sets: `model`, the averaged ones, which are evaluated and exported, and `trained`, from which training continues. No random state is stored, and no sampler. The order and the crops of an epoch follow from the seed, the epoch and the image's number, and the random numbers of a step from the seed, the step and the process. A run that is stopped within an epoch also stores how many of its steps are done, and the sum of their losses. It resumes with the next step.
#
# ## Resuming
#
# We compare every recipe setting and the hashes of the data, because a run whose halves differ is a result that nobody can repeat. With a constant learning rate `epochs` may grow. With a cosine it may not, because the rate of every step depends on the number of epochs. For `precision` we compare the type that the run computes in, not the setting: "auto" means bfloat16 on one chip and float32 on another. With `auto` a run that moves to a different machine keeps the precision it began with.
#
# If `last.pt` and `previous.pt` are damaged, the run cannot resume, but the weights in `best.pt` may start a new one. Here a run is resumed with a different learning rate, then with different data:

# %%
with tempfile.TemporaryDirectory() as tmp:
    folder = run.Folder(Path(tmp))
    run.write_checkpoint(run.snapshot(train(0), Config(), {"train": "012"}), folder.file("last.pt"))
    for config, data in ((Config(lr=0.1), "012"), (Config(), "345")):
        try:
            run.find_checkpoint(folder, config, {"train": data})
        except UserError as error:
            print(str(error).replace(tmp, "runs/mine"))

# %% [markdown]
# ## The log
#
# The log line of an epoch is written before its checkpoint. If a run is killed between the two, it repeats the epoch and marks the second line. Readers take the last line of each epoch. A line that was cut off by a power failure is ignored:

# %%
with tempfile.TemporaryDirectory() as tmp:
    folder = run.Folder(Path(tmp))
    for epoch, loss in ((0, 1.0), (1, 0.9), (1, 0.8)):
        run.write_log(folder, {"epoch": epoch, "loss": loss})
    with open(folder.file("log.jsonl"), "a") as file:
        file.write('{"epoch": 2, "lo')
    run.write_log(folder, {"epoch": 2, "loss": 0.7})
    print(*folder.history(), sep="\n")


# %% [markdown]
# ## The machinery: the folder
#
# A score without its versions cannot be repeated. `env.json` names the kind of machine, never its owner. It and `config.json` are written only after the settings were compared with the checkpoint, so a refused run leaves no trace.

# %%
#| export
@dataclass(frozen=True)
class Folder:
    "The files of a run: settings, machine, log, status, checkpoints, scores and figures."

    path: Path

    def file(self, name: str) -> Path:
        "Path of one of the run's files."
        return self.path / name

    def read_json(self, name: str) -> dict[str, Any]:
        "Content of a JSON file of the run; empty if it is missing or unreadable."
        with contextlib.suppress(OSError):
            return read_record(self.file(name))
        return {}

    def history(self) -> list[dict[str, Any]]:
        "The log, one entry per epoch: the last line of each."
        entries, lines = {}, list[bytes]()
        with contextlib.suppress(OSError):
            lines = self.file("log.jsonl").read_bytes().splitlines()
        for line in lines:
            with contextlib.suppress(ValueError, RecursionError):
                entry = json.loads(line)
                if isinstance(entry, dict) and type(entry.get("epoch")) is int:
                    entries[entry["epoch"]] = entry
        return [entries[epoch] for epoch in sorted(entries)]


def write_log(folder: Folder, entry: dict[str, Any]) -> None:
    "Append the entry of an epoch; mark it as repeated if the log has that epoch already."
    if any(old["epoch"] == entry["epoch"] for old in folder.history()):
        entry = {**entry, "repeated": True}
    path, line = folder.file("log.jsonl"), json.dumps(entry, allow_nan=False) + "\n"
    with cannot_be_written(path), open(path, "ab+") as file:
        file.seek(-min(1, file.tell()), os.SEEK_END)
        if file.read(1) not in (b"", b"\n"):  # a torn line
            line = "\n" + line
        file.write(line.encode())
        to_disk(file)


def say_status(folder: Folder, state: str, epoch: int, reason: str = "") -> None:
    "Write status.json: running, finished, stopped or failed, and the last complete epoch."
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    entry = {"state": state, "epochs_done": epoch + 1, "reason": reason, "time": now}
    write_json(folder.file("status.json"), entry | {"results": str(folder.path)})


PACKAGES = ("mshnet", "torch", "numpy", "pillow", "scikit-image", "matplotlib", "pydantic")


def environment(device: str) -> dict[str, Any]:
    "Kind of machine, device (its description) and versions."
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": device,
        "packages": {n: v for n in (*PACKAGES, *XLA_PACKAGES) if (v := installed(n))},
    }


def prepare(folder: Folder, config: Settings, device: str, unfinished: bool = True) -> None:
    "Make a run folder and its records, with the device's description; UserError if that fails."
    with cannot_be_written(folder.path):
        tops = (folder.path, folder.file("figures"))
        for left in (file for top in tops for file in top.glob(".*.tmp")):  # of a killed process
            left.unlink(missing_ok=True)
        if not unfinished and folder.file("last.pt").exists():
            return  # a finished run keeps its records
        folder.file("figures").mkdir(parents=True, exist_ok=True)
    weights = config.weight_path or folder.read_json("config.json").get("weight_path", "")
    again = {"resume": "", "output_dir": str(folder.path), "weight_path": weights}
    write_json(folder.file("config.json"), config.model_dump() | (again if config.resume else {}))
    write_json(folder.file("env.json"), environment(device))


# %% [markdown]
# ### A checkpoint: saving and reading
#
# A pydantic model lists what a checkpoint must contain. A value that an older format lacked has a default. `restore` puts everything back: weights, the optimizer's sums, and the place in the run.

# %%
#| export
FORMAT = 3  # of checkpoints; raised when an older release could not read them
PROGRESS = ("epoch", "phase", "best", "step", "total")  # of a State


@dataclass
class State:
    "All that training changes; a checkpoint adds the settings and the hashes of the data."

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler | None = None  # of the device
    ema: nn.Module | None = None  # the averaged weights; None: there are none
    epoch: int = -1  # the last one that is complete
    phase: str = ""  # of that epoch
    best: dict[str, Any] | None = None  # epoch, score and its name of the best one so far
    step: int = 0  # steps that are done of the epoch after it
    total: list[float] = field(default_factory=list)  # sum of their losses, of each process

    @property
    def scored(self) -> nn.Module:
        "The model that is scored and kept: the averaged one, if any."
        return self.model if self.ema is None else self.ema


def snapshot(state: State, config: Settings, data: dict[str, str]) -> dict[str, Any]:
    "The content of a checkpoint, which no later step changes; `data` as for `find_checkpoint`."
    content = {
        "format": FORMAT,
        "config": config.model_dump(),
        "data": data,
        "model": state.scored.state_dict(),
        "trained": {} if state.ema is None else state.model.state_dict(),
        "optimizer": state.optimizer.state_dict(),
        "scaler": state.scaler.state_dict() if state.scaler else {},
    } | {name: getattr(state, name) for name in PROGRESS}
    _Content.model_validate(content)  # now, not when the run is over and it is read
    at_once = ("xla", "mps")  # XLA has only recorded it; MPS is not for two threads
    return each_tensor(content, lambda t: t.cpu() if t.device.type in at_once else t.clone())


def write_checkpoint(content: dict[str, Any], *paths: Path) -> None:
    "Write a snapshot with its checksum to each path; an old `last.pt` becomes `previous.pt`."
    content = each_tensor(content, Tensor.cpu)
    buffer = io.BytesIO()
    torch.save(content | {"checksum": checksum(content)}, buffer)
    for path in paths:
        for name in ("scores.json", "details.json") if path.name == "best.pt" else ():
            with cannot_be_written(path):  # they are of the weights before
                path.with_name(name).unlink(missing_ok=True)
        previous = path.with_name("previous.pt") if path.name == "last.pt" else None
        write_atomic(path, buffer.getvalue(), previous)


# %%
#| export
class _Content(BaseModel):
    "The fields of a checkpoint."

    model_config = ConfigDict(strict=True, arbitrary_types_allowed=True)

    format: int
    config: dict[str, Any]
    data: dict[str, str]
    epoch: int = Field(ge=-1)
    phase: str
    best: dict[str, str | int | float | None] | None
    model: dict[str, Tensor]
    trained: dict[str, Tensor] = {}
    optimizer: dict[str, Any]
    scaler: dict[str, Any] = {}
    step: int = Field(0, ge=0)
    total: list[float] = []


def read_checkpoint(path: Path) -> dict[str, Any]:
    "The content of a checkpoint; UserError if the file is something else, or damaged."
    content = read_file(path)
    if not isinstance(content, dict) or "optimizer" not in content or "data" not in content:
        raise UserError(f"{path}: not a checkpoint to resume from (weights go to --weight-path)")
    form = content.get("format")
    if type(form) is int and form > FORMAT:  # it may even be a tensor
        raise UserError(f"{path}: written by a newer mshnet (format {shown(form)}); update mshnet")
    try:
        return _Content.model_validate(content).model_dump()
    except (ValidationError, RecursionError) as error:
        what = error.errors()[0]["loc"] if isinstance(error, ValidationError) else "nested"
        raise UserError(f"{path}: not a checkpoint to resume from ({shown(what)})") from None


def restore(state: State, content: dict[str, Any]) -> None:
    "Put a checkpoint into a state; UserError if the model or the optimizer is different."
    groups = state.optimizer.param_groups
    rates = [group.get("initial_lr", group["lr"]) for group in groups]
    own = [{k: g[k] for k in ("capturable", "foreach", "fused") if k in g} for g in groups]
    try:
        old = content["optimizer"]["param_groups"]
        saved = [g | {"initial_lr": r} | mine for g, r, mine in zip(old, rates, own, strict=True)]
        state.optimizer.load_state_dict({**content["optimizer"], "param_groups": saved})
        for weight, values in state.optimizer.state.items():
            whole = [v for k, v in values.items() if v.dim() and k not in ("row_var", "col_var")]
            if any(v.shape != weight.shape for v in whole):  # those two: of Adafactor
                raise ValueError("the optimizer's sums have other shapes")
        if state.scaler and content["scaler"]:
            state.scaler.load_state_dict(content["scaler"])
        scored = find_weights(content)
        fit_weights(state.model, content["trained"] or scored)
        if state.ema is not None:
            fit_weights(state.ema, scored)
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise UserError(f"checkpoint: {error}") from None
    for name in PROGRESS:
        setattr(state, name, content[name])


# %% [markdown]
# ### Finding the run to resume

# %%
#| export
def _last_checkpoint(folder: Folder) -> tuple[dict[str, Any], Path]:  # its content and its file
    "The last checkpoint: `last.pt`, or with a warning `previous.pt`; UserError without one."
    last, previous = folder.file("last.pt"), folder.file("previous.pt")
    try:
        return read_checkpoint(last), last
    except UserError as error:
        with contextlib.suppress(UserError):
            content = read_checkpoint(previous)
            text = f"{error}: resuming from {previous.name}, epoch {content['epoch']}"
            warnings.warn(text, stacklevel=2)
            return content, previous
        todo = "with a backup, rename this folder and run it again; or use another --output-dir"
        with contextlib.suppress(UserError):
            read_checkpoint(folder.file("best.pt"))
            todo += f", and the weights that are kept: --weight-path {quoted(folder.path)}/best.pt"
        raise UserError(f"{error}, and previous.pt cannot replace it; {todo}") from None


def best_or_last(folder: Folder) -> dict[str, Any]:
    "The checkpoint of the selected epoch; if it is damaged, of the last one, with a warning."
    try:
        return read_checkpoint(folder.file("best.pt"))
    except UserError as error:
        last, _ = _last_checkpoint(folder)
        if not last["best"] or last["best"]["epoch"] != last["epoch"] or last["step"]:
            warnings.warn(f"{error}: the last epoch is scored instead", stacklevel=2)
            last["best"] = {"epoch": last["epoch"], "name": None}
        return last


def _mend(folder: Folder, content: dict[str, Any], file: Path) -> None:
    "Replace a damaged `last.pt` by this file, then a damaged `best.pt` of its epoch by `last.pt`."
    last, best = folder.file("last.pt"), folder.file("best.pt")
    if file != last:  # previous.pt
        if last.exists():
            move(last, folder.file("damaged.pt"))  # or good, and a disk had a hiccup
        folder.file("scores.json").unlink(missing_ok=True)  # perhaps of the epoch that is repeated
        move(file, last)
    kept = content["best"] and not content["step"] and content["best"]["epoch"] == content["epoch"]
    if kept and not is_zipfile(best):
        with cannot_be_written(best):
            copy_file(last, best)


# %%
#| export
def _differences(old: dict[str, Any], new: Settings) -> list[str]:
    "Recipe settings that would change within a run, such as lr 0.05 -> 0.1."
    retired = [
        f"{n} {shown(old[n])}, a setting of before that cannot be continued"
        for n, usual in RETIRED_RECIPE.items()
        if n not in new.defaults() and old.get(n, usual) != usual
    ]
    old = new.defaults() | of_earlier_release(old)  # a missing setting had its default
    may_differ = ["precision", "train_list", "test_list"]  # the hashes of lists are compared
    may_differ += ["epochs"] if new.schedule == "constant" else []
    pairs = [(n, old[n], v) for n, v in new.recipe().items() if n not in may_differ]
    why = {"epochs": f" with schedule={new.schedule}, which ends where its run ends"}
    changed = [f"{n} {shown(a)} -> {shown(b)}{why.get(n, '')}" for n, a, b in pairs if a != b]
    return retired + changed


def find_checkpoint(
    folder: Folder,
    config: Settings,
    data: dict[str, str],  # hash of each split and of the starting weights, and the precision
) -> dict[str, Any] | None:  # the checkpoint to resume from
    "Find the run that this one resumes; UserError if it is another run."
    if not config.resume and not has_checkpoint(folder.path):
        would_be_lost = ["scores.json"]
        if not is_record(folder.read_json("config.json")):
            would_be_lost += ["best.pt", "config.json", "env.json", "log.jsonl", "status.json"]
        elif len(folder.history()) not in (1, 2):  # killed while the first last.pt was written
            would_be_lost += ["best.pt"]
        if held := [name for name in would_be_lost if folder.file(name).exists()]:
            todo = "without a checkpoint to resume; use another --output-dir"
            raise UserError(f"{folder.path} holds {', '.join(held)} {todo}")
        return None
    old, file = _last_checkpoint(folder)
    changed = _differences(old["config"], config)
    free = {"training images", "statistics"}  # hashes cover the first; CPUs round the second
    free |= {"precision"} if config.precision == "auto" else set()  # the run keeps its own
    began, begins = old["config"].get("weight_path", ""), config.weight_path
    if began == begins == PRETRAINED or (config.resume and begins in ("", began)):  # of any release
        free.add("starting weights")  # the checkpoint has what became of them
    if bool(began) != bool(begins) and (begins or not config.resume):
        changed.append(f"weight_path {shown(began)} -> {shown(begins)}")
    moved = sorted(k for k in old["data"].keys() & data.keys() - free if old["data"][k] != data[k])
    if changed or moved:
        offered = not config.resume and (changed or {*moved} <= {"starting weights", "precision"})
        takes = f" (--resume {quoted(folder.path)} takes them)" if offered else ""
        changed += [f"{k} {old['data'][k]} -> {data[k]}" for k in moved]
        what = f"{config.resume or folder.path} holds another run ({'; '.join(changed)})"
        new = " without --resume" if config.resume else ""
        raise UserError(f"{what}; use its settings{takes} or another --output-dir{new}")
    if config.epochs < (done := old["epoch"] + 1):
        raise UserError(f"epochs={config.epochs}: the run has {done} already; use {done} or more")
    _mend(folder, old, file)
    return old


# %% [markdown]
# ### Interrupts
#
# A session's time is over, a scheduler sends SIGTERM, a terminal is closed (SIGHUP), the user presses Ctrl-C or the notebook's stop button. Each of these is a request, which the run obeys after the step in progress: it writes its checkpoint with its place in the epoch, evaluates the selected epoch, and prints how to resume it. A second one ends it at once (a second SIGTERM or SIGHUP within two seconds counts as the first, because shell and kernel both send a SIGHUP). An ignored signal, as under `nohup`, stays ignored.

# %%
#| export
class Interrupted(KeyboardInterrupt):
    "Raised on the second stop request: the run ends at once, within a step or a file."

    def __init__(self, reason: str, number: int = 0) -> None:
        super().__init__(reason)
        self.reason, self.number = reason, number  # of the signal; 0: the time is over

    def _render_traceback_(self) -> list[str]:
        "One line in a notebook."
        return [f"{type(self).__name__}: {self.reason}"]


class Stopped(Interrupted):
    "Raised after a stop request, at a place from which the run resumes exactly."


class Stop:
    "Listens for requests to stop this process."

    def __init__(self, seconds: float = math.inf, why: str = "the time is over") -> None:
        self.ends, self.why, self.number = time.monotonic() + seconds, why, 0
        self.asked = 0.0  # when the first signal came
        self.before: dict[int, Any] = {}  # the handler of each signal before

    def __enter__(self) -> Self:
        main = threading.current_thread() is threading.main_thread()
        for name in ("SIGINT", "SIGTERM", "SIGHUP") if main else ():
            number = getattr(signal, name, None)
            if number and signal.getsignal(number) not in (signal.SIG_IGN, None):
                self.before[number] = signal.signal(number, self.on_signal)
        return self

    def __exit__(self, *_: Any) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def on_signal(self, number: int, frame: Any) -> None:
        "Note a signal; raise Interrupted on the second one."
        if self.number:
            several = started_processes() > 1 or number != signal.SIGINT
            if several and time.monotonic() - self.asked < 2:
                return  # one request, sent by shell and kernel, or by the system and torchrun
            raise Interrupted(signal.Signals(number).name, number)
        self.number, self.asked = number, time.monotonic()
        with contextlib.suppress(OSError):  # the terminal is gone
            os.write(2, b"\nstopping after this step (asked again: at once)\n")

    @property
    def reason(self) -> str:
        "Why the run is to stop; empty: it is not."
        if self.number:
            return signal.Signals(self.number).name
        if os.environ.get("MSHNET_STARTED_BY", str(os.getppid())) != str(os.getppid()):
            return "the process that started this one is gone"
        return self.why if time.monotonic() > self.ends else ""


# %%
with run.Stop() as stop:
    signal.raise_signal(signal.SIGINT)
    print("asked once:", stop.reason)
    try:
        signal.raise_signal(signal.SIGINT)
    except run.Interrupted as error:
        print("asked again:", type(error).__name__)

# %% [markdown]
# ### Writing in the background
#
# Training need not wait for the disk. `snapshot` copies everything that will change, on the device, wherever it is in the optimizer's nested state: that is quick. Then a thread brings the copies to the host and writes them while the next epoch trains. A kill in that time costs one more epoch. (On XLA and MPS the snapshot is brought to the host first.) The thread writes one checkpoint at a time, in order. Its errors reach the training with the next checkpoint, or at the end. Below, a job divides by zero, and the training continues until the end:

# %%
try:
    with run.Background() as background:
        background.submit(lambda: 1 / 0)
        print("training continues")
except ZeroDivisionError as error:
    print("raised at the end:", error)


# %%
#| export
class Background(contextlib.AbstractContextManager["Background"]):
    "A thread that runs jobs in order; the next call raises their errors."

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(1)
        self.last: Future[Any] = self.pool.submit(lambda: None)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        "Finish the last job; raise its error unless the run failed for another reason."
        self.pool.shutdown()
        if error is None:
            self.finish()

    def submit(self, *steps: Callable[[], object]) -> None:
        "Run some functions as one job, when the job before is done."
        self.finish()
        self.last = self.pool.submit(lambda: [step() for step in steps])

    def finish(self) -> None:
        "Wait for the last job, and raise its error."
        self.last.result()

# %% [markdown]
# ## Questions
#
# 1. `last.pt` is damaged, and the run resumes from `previous.pt`. Is its result the same as without the damage?
#    <details><summary>Answer</summary>Yes, with the same number of threads, on a GPU with <code>--deterministic</code>. It trains one epoch a second time, with the same batches, crops and random numbers, so only time is lost. The log has the epoch twice, the second time with <code>"repeated": true</code>.</details>
