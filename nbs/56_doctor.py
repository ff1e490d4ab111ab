# %% [markdown]
# # Check the machine
#
# > What machine is this, what can it do, and what is wrong with it? Six checks, one line each, with the remedy.
#
# Most questions about a failed run are questions about its machine: which GPU, which torch, how much memory. `mshnet doctor` checks all of them, and so do the notebooks in `nbs/run` before they train. Each check reports one line, and a line that is not `ok` includes the remedy.

# %%
#| export
#| default_exp doctor
import contextlib
import os
import platform
import shutil
import subprocess
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import torch

from mshnet.core import Settings, UserError, counted, one_line, quoted, reason
from mshnet.device import USUAL_THREADS, Device, busy_cores, core_count, open_device
from mshnet.files import explain_failure, free_memory
from mshnet.places import HERE, MOUNT, installed, run_folder, session_hours, site_of, where
from mshnet.recipe import Config
from mshnet.run import PACKAGES
from mshnet.task import make_task
from mshnet.xla import XLA_PACKAGES, tpu_chips, why_no_xla

# %% [markdown]
# ## A report
#
# A report of `mshnet doctor`. The first word of a line is its level. Other programs use both cores, hence the warning:
#
# ```
# warning machine     Linux x86_64, Python 3.11.7, 24 GB memory in all; other programs keep 2.0 of 2 cores busy, and training is slower: stop them, or wait
# ok      accelerator cpu, bf16: AMD EPYC, 1 thread (torch finds no GPU; a trial run needs none); 20.0 GB of memory free
# ok      build       mshnet 0.1.0, torch 2.13.0+cpu, ..., no CUDA; NVIDIA GPUs: none
# ok      disk        45 GB free for runs/scenes-1a697d3e
# ok      data        scenes (no dataset_dir)
# ok      session     no limit of time; no backup (--mirror-dir DIR makes one)
# ```
#
# Programs find the levels and texts in `doctor(config).lines`. The worst line decides the exit status: 0 for `ok`, 1 for a warning, 2 for an error, as here for a data set that is not there.

# %%
from mshnet.doctor import doctor

report = doctor(Config(dataset_dir="nowhere", device="cpu"))
print(report.lines[4], f"status {report.status}", sep="\n")

# %% [markdown]
# ## The machinery: what the checks share
#
# Several checks need the device, and opening one can take seconds. We open it once, and collect torch's warnings meanwhile.
#
# torch reports what it can use. It is silent about a GPU that it was not built for. So we also ask the system, through NVIDIA's tool `nvidia-smi`. A broken driver can block the tool; after five seconds we stop waiting.

# %%
#| export
LEVELS = ("ok", "warning", "error")  # the index is the exit status


class Line(NamedTuple):
    "The report of one check."

    level: str  # one of LEVELS
    subject: str
    text: str  # the finding and, unless it is ok, the remedy

    def __str__(self) -> str:
        return f"{self.level:8}{self.subject:12}{self.text}"


class Report(NamedTuple):
    "The lines of all checks."

    lines: tuple[Line, ...]

    @property
    def status(self) -> int:
        "0: all is well, 1: a warning, 2: an error."
        return max(LEVELS.index(line.level) for line in self.lines)

    def __str__(self) -> str:
        return "\n".join(map(str, self.lines))


def _find_nvidia() -> list[str]:
    "The NVIDIA GPUs of the system; none without its tool, or if that fails."
    words = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(words, capture_output=True, text=True, timeout=5, check=True)
        return done.stdout.splitlines()
    return []


class _Checkup:
    "The settings of a run, and the device that it would use."

    def __init__(self, config: Any) -> None:  # the settings of any task
        self.config = config
        self.problem = ""  # why there is no device
        self.device: Device | None = None
        with warnings.catch_warnings(record=True, action="always") as caught:
            try:
                self.device = open_device(config.device, config.precision, config.num_devices)
            except UserError as error:
                self.problem = str(error)
            except Exception as error:  # of a driver or a runtime; a run would fail alike
                why = f"{type(error).__name__}: {reason(error)}"
                todo = "restart the machine, or use --device cpu"
                self.problem = f"device={config.device} does not start ({why}); {todo}"
        self.warned = [reason(warning.message) for warning in caught]


# %% [markdown]
# ### The machine and the device
#
# Other programs on the same cores slow down training by more than their share, because threads wait for each other. With torch's defaults and two threads, one busy program made a training step 67 times as long; with as many threads as there are free cores, which a run chooses, 1.5 times as long ([measured](../results/busy-machine/README.md)).
#
# The batch decides how much memory training needs, and only a trial shows whether it fits: `mshnet bench`. Here we report what is free. On a CPU that is the smaller of the free memory of the system and of its container.
#
# A build of torch without CUDA sees no GPU. torch itself warns of a driver that is too old, and of a GPU that it was not compiled for; the line `accelerator` repeats these warnings. If another torch was installed meanwhile, a notebook keeps the old one loaded until its kernel restarts. (These machines were not available; we tested with mock objects.)
#
# The settings decide how bad a problem is. A GPU that torch cannot use is ok with `--device cpu`, because the run needs none; a warning with `auto`, because the run is slow; and an error with `cuda`, because the run does not start.

# %%
#| export
_Finding = tuple[str, str]  # level and text


def _machine(checkup: _Checkup) -> _Finding:
    "System, cores, memory, place, and the load by other programs."
    cores, taken = core_count(), busy_cores(0.3)
    system = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    memory = f"{psutil.virtual_memory().total / 2**30:.0f} GB memory in all"
    note = "" if where() == HERE else f"{where().note}; "
    load = f"other programs keep {taken:.1f} of {counted(cores, 'core')} busy"
    text = f"{system}, {memory}; {note}{load}"
    alone = cores - round(taken) >= min(USUAL_THREADS, cores)  # each thread has a core
    if alone or not checkup.device or checkup.device.kind != "cpu":
        return "ok", text
    return "warning", f"{text}, and training is slower: stop them, or wait"


def _accelerator(checkup: _Checkup) -> _Finding:
    "The device that a run would use, the reason, and its free memory."
    device, warned = checkup.device, "; ".join(checkup.warned)
    if not device:
        return "error", "; ".join(filter(None, (checkup.problem, warned)))
    cuda, text = device.kind == "cuda", device.description
    host = float("inf") if device.kind == "xla" else free_memory()  # a TPU has its own
    free = (torch.cuda.mem_get_info(device.name)[0] if cuda else host) / 2**30
    if device.kind == "cpu" and checkup.config.device == "auto":
        text += " (torch finds no GPU; a trial run needs none)"
    if 0 < free < float("inf"):  # else it is not known
        text += f"; {free:.1f} GB of memory free"
    if device.precision == "bf16" and device.fastest() != "bf16":
        return "warning", f"{text}; this chip only emulates bf16; use --precision fp32 (or auto)"
    if warned:
        return "warning", f"{text}; it warns: {warned} (see build below)"
    if 0 < free < 1:
        return "warning", f"{text}; free some, or use a smaller --batch-size or --micro-batch"
    if device.kind == "cpu" and checkup.config.device == "auto" and where() != HERE:
        return "warning", f"{text}; for a long run choose a GPU in the settings of the session"
    return "ok", text


def _build(checkup: _Checkup) -> _Finding:
    "Whether this torch was built for what this machine has, and is the one that is installed."
    asked, version = checkup.config.device.partition(":")[0], installed(XLA_PACKAGES[0])
    chips, environ = len(tpu_chips()), {**os.environ, "PJRT_DEVICE": "CPU"}  # for the versions
    why = why_no_xla(environ, chips, torch.__version__, version) if chips or version else ""
    if why and asked in ("auto", "xla"):
        return "error", why
    have = {name: version for name in (*PACKAGES, *XLA_PACKAGES) if (version := installed(name))}
    if have.get("torch", torch.__version__).split("+")[0] != torch.__version__.split("+")[0]:
        text = f"torch {torch.__version__} is loaded, {have['torch']} is installed"
        return "error", f"{text}; restart the kernel"
    gpus = ", ".join(dict.fromkeys(_find_nvidia()))
    if gpus and not torch.cuda.is_available() and asked in ("auto", "cuda"):
        why = "does not get it; restart the machine, then install torch again if it stays so"
        if not torch.version.cuda:
            why = "is built without CUDA; install the build for CUDA that pytorch.org names instead"
        text = f"this machine has {gpus}, but torch {torch.__version__} {why}"
        return "warning" if asked == "auto" else "error", text
    cuda = f"CUDA {torch.version.cuda}" if torch.version.cuda else "no CUDA"
    text = ", ".join(f"{name} {version}" for name, version in have.items())
    return "ok", f"{text}, {cuda}; NVIDIA GPUs: {gpus or 'none'}"


# %% [markdown]
# ### Disk, data and session
#
# A full disk, damaged data and the end of a session stop a run late, so we check them early. A session may end before its run, and its disk may be lost with it. So a run can be copied to Google Drive in Colab, and to a folder anywhere (`mirror_dir`). We did not verify that a real Drive behaves like a folder.
#
# To check whether a folder is writable, we write into it: rights, quotas and read-only file systems then fail in the same way, and nothing stays behind. For a folder that does not exist yet we try the nearest one above it. A check raises the error that a run would raise, such as one for a wrong folder. A strange machine is where the doctor is needed most: if a check fails in an unforeseen way, that is a warning with the reason, and the other checks continue. After the code, such a check:

# %%
#| export
def _room(folder: Path, name: str, todo: str) -> float:
    "GB that are free for a folder (or the nearest one above it); UserError if it is not writable."
    folder = folder.resolve()
    there = next(p for p in (folder, *folder.parents) if os.path.exists(p))
    with explain_failure(f"{name} cannot be written", todo):
        (probe := there / f".{os.getpid()}.tmp").write_bytes(b"written")
        probe.unlink(missing_ok=True)
    return shutil.disk_usage(there).free / 2**30


def _disk(checkup: _Checkup) -> _Finding:
    "Space where the run's folder will be, and whether it can be written; a run takes 200 MB."
    folder = run_folder(checkup.config)
    free = _room(folder, str(folder), "use another --output-dir")
    if free >= 1:
        return "ok", f"{free:.0f} GB free for {folder}"
    text = f"{free:.1f} GB free for {folder}; delete something or use --output-dir"
    return "error" if free < 0.2 else "warning", text


def _data(checkup: _Checkup) -> _Finding:
    "Whether the data set can be trained on."
    config, task = checkup.config, make_task(checkup.config)
    task.model()  # whether its settings fit one another
    if not config.dataset_dir:
        return "ok", f"{config.synthetic_name} (no dataset_dir)"
    if config.task != "detect":  # whether these settings read this data set
        task.splits(["test"])
    text, usable = task.describe_data()
    lines = text.splitlines()
    levels = ("error", "skipped", "warning")
    wrong = [one_line(line, 200) for line in lines if line.startswith(levels)]
    if not usable:
        return "error", f"{wrong[0]}; `mshnet data {quoted(config.dataset_dir)}` lists all"
    if config.task == "detect":  # cheap by now: the report has read them
        with warnings.catch_warnings(action="ignore"):  # they are in the report
            task.splits()
    counts = [line for line in lines if line.startswith(("train", "val", "test"))]
    return "warning" if wrong else "ok", "; ".join([*counts, *wrong])


def _session(checkup: _Checkup) -> _Finding:
    "When the session ends, and where the run is copied to."
    site = site_of(checkup.config, mount=False)
    colab, usual = where().name == "colab", session_hours()
    ends = site.seconds < float("inf")
    time = f"stops by itself after {site.hours:g} hours" if ends else "no limit of time"
    if site.seconds < 0:
        todo = "if it has more, use --max-hours with all of them"
        return "warning", f"its {site.hours:g} hours are over; {todo}"
    if ends and site.hours > usual:
        return "warning", f"{time}; this place may end it before, use --max-hours {usual:g}"
    wrong = site.note.removeprefix("mirror").strip()
    if site.mirror:
        free = _room(site.mirror, f"mirror_dir={site.mirror}", "use another")
        text = f"{time}; copies go to {site.mirror}: {free:.0f} GB free"
        return ("warning", f"{text}; {wrong}") if wrong else ("ok", text)
    if checkup.config.mirror_dir:  # it is not mounted, perhaps because it was not allowed
        return "warning", f"{time}; {wrong}; {MOUNT if colab else 'use --mirror-dir DIR'}"
    if colab:
        return "warning", f"{time}, and the run goes with it; use --mirror-dir drive"
    if where().name == "kaggle":
        return "ok", f"{time}; Save & Run All keeps what is in {where().runs.parent}"
    return "ok", f"{time}; no backup (--mirror-dir DIR makes one)"


_ALL = (_machine, _accelerator, _build, _disk, _data, _session)
_CHECKS: dict[str, Callable[[_Checkup], _Finding]] = {check.__name__[1:]: check for check in _ALL}


def _line(checkup: _Checkup, subject: str) -> Line:
    "The report of one check, whatever happens."
    try:
        level, text = _CHECKS[subject](checkup)
    except UserError as error:
        level, text = "error", str(error)
    except Exception as error:
        why, todo = f"{type(error).__name__}: {reason(error)}", "try a run all the same"
        level, text = "warning", f"this check failed ({why}); {todo}, and report this line"
    return Line(level, subject, text)


def doctor(config: Settings) -> Report:
    "Run all checks of this machine, for these settings."
    checkup = _Checkup(config)
    return Report(tuple(_line(checkup, subject) for subject in _CHECKS))


# %%
_CHECKS["disk"] = lambda checkup: 1 / 0
report: Report = doctor(Config(scenes=8, device="cpu"))
line: Line = report.lines[3]
print(line)

# %% [markdown]
# ## Questions
#
# 1. <code>mshnet doctor &amp;&amp; mshnet train</code> does not train, although no line is an error. Why?
#    <details><summary>Answer</summary>The worst line decides the exit status, and a warning is 1. The shell continues after <code>&amp;&amp;</code> only if the status is 0.</details>
