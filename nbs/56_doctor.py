# %% [markdown]
# # doctor
#
# > What machine is this, what can it do, and what is wrong with it? Nine checks, one line each, with the remedy.

# %%
#| default_exp doctor

# %%
#| hide
from fastcore.test import test_eq

# %%
#| export
import json
import math
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils import collect_env

from mshnet.core import Config, Settings, UserError, counted, first_line, quoted
from mshnet.device import USUAL_THREADS, Cores, Device, open_device
from mshnet.places import installed, mirror_folder, run_folder, session_hours, where
from mshnet.run import PACKAGES
from mshnet.task import make_task
from mshnet.xla import XLA_PACKAGES, tpu_chips, why_no_xla

# %% [markdown]
# Most questions about a failed run are questions about its machine: which GPU, which torch, how much memory. The first cell of every runner checks all of them, before an hour is spent. Each check reports one line, and a line that is not `ok` includes the remedy.

# %%
#| export
LEVELS = ("ok", "warning", "error")  # the index is the exit status


@dataclass(frozen=True)
class Line:
    "The report of one check."

    level: str  # one of LEVELS
    subject: str
    text: str  # the finding and, unless it is ok, the remedy

    def __str__(self) -> str:
        "The line as it is printed."
        return f"{self.level:8}{self.subject:12}{self.text}"


@dataclass(frozen=True)
class Report:
    "The lines of all checks."

    lines: tuple[Line, ...]

    @property
    def status(self) -> int:
        "0: all is well, 1: a warning, 2: an error."
        return max(LEVELS.index(line.level) for line in self.lines)

    def to_json(self) -> str:
        "The lines as JSON, with the worst level."
        lines = [asdict(line) for line in self.lines]
        return json.dumps({"worst": LEVELS[self.status], "lines": lines}, indent=1)

    def __str__(self) -> str:
        "One line each."
        return "\n".join(map(str, self.lines))


# %%
mixed = Report((Line("ok", "build", "fits"), Line("warning", "disk", "1 GB free; delete old runs")))
print(mixed)


# %% [markdown]
# ## What the checks share
#
# Several checks need the device, and opening one can take seconds. We open it once, and collect torch's warnings meanwhile.
#
# torch reports what it can use. It is silent about a GPU that it was not built for. So we also ask the system, through NVIDIA's tool `nvidia-smi`, where torch's own `collect_env` looks for it. A broken driver can block the tool; after five seconds we stop waiting.

# %%
#| export
def _find_nvidia(timeout: float = 5.0) -> tuple[list[str], str]:
    "The NVIDIA GPUs with their driver, and the error of `nvidia-smi`."
    [tool] = shlex.split(collect_env.get_nvidia_smi())
    words = [tool, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=timeout)
    except FileNotFoundError:
        return [], ""
    except (OSError, subprocess.SubprocessError) as error:
        return [], first_line(error)
    if done.returncode and "No devices were found" not in done.stdout:
        return [], first_line(done.stdout + done.stderr)
    found = [line.rsplit(", ", 1) for line in done.stdout.splitlines() if ", " in line]
    return [f"{name} (driver {driver})" for name, driver in found], ""


class _Checkup:
    "The settings of a run, and the device that it would use."

    def __init__(self, config: Any) -> None:  # the settings of any task
        self.config = config
        self.device: Device | None = None
        self.problem = ""  # why there is no device
        chosen = config.device, config.precision, config.num_devices, config.debug_xla
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                self.device = open_device(*chosen)
            except UserError as error:
                self.problem = str(error)
            except Exception as error:  # of a driver or a runtime; a run would fail alike
                self.problem = (
                    f"device={config.device} does not start ({type(error).__name__}: "
                    f"{first_line(error)}); restart the machine, or write --device cpu"
                )
        self.warned = [first_line(warning.message) for warning in caught]


# %%
checkup = _Checkup(Config(device="cpu"))
print(_find_nvidia())

# %% [markdown]
# ## The machine and the device
#
# Other programs on the same cores slow down training by more than their share, because threads wait for each other (the device notebook has the measurement).

# %%
#| export
_Finding = tuple[str, str]  # level and text


def _machine(checkup: _Checkup) -> _Finding:
    "System, cores, memory, place, and the load by other programs."
    cores = Cores()
    taken = cores.others(least=0.3)
    memory = ""
    if hasattr(os, "sysconf"):  # not on Windows
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        memory = f", {size / 2**30:.0f} GB memory in all"
    system = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    text = f"{system}{memory}; {where().note}; other programs keep {taken:.1f} of "
    text += f"{counted(cores.count, 'core')} busy"
    alone = cores.free(taken) >= USUAL_THREADS  # each thread has a core
    if alone or not checkup.device or checkup.device.kind != "cpu":
        return "ok", text
    slow = "training is slower beside them, and its steps may stall; stop them, or wait"
    return "warning", f"{text}; {slow}"


def _accelerator(checkup: _Checkup) -> _Finding:
    "The device that a run would use, and the reason."
    device = checkup.device
    if not device:
        return "error", checkup.problem
    if device.precision == "bf16" and not device.has_bf16():
        slow = "this chip only emulates bf16; write --precision fp32 (or auto)"
        return "warning", f"{device.why}; {slow}"
    if checkup.warned:
        return "warning", f"{device.why}; it warns: {'; '.join(checkup.warned)} (see build below)"
    if device.kind == "cpu" and checkup.config.device == "auto":
        return "ok", f"{device.why} (torch finds no GPU; a first look needs none)"
    return "ok", device.why


# %%
print(*_machine(checkup), *_accelerator(checkup))


# %% [markdown]
# ## Does this torch fit this machine?
#
# A build of torch without CUDA sees no GPU, and one for CUDA may hold no programs for an old one (then the device cannot be opened). There are other reasons why torch does not see a GPU. The driver may be of an earlier generation of CUDA than torch; within a generation they agree. A variable of a different experiment may hide the GPU. On an Apple computer, Rosetta may translate a Python for Intel processors, which has no GPU. (We tested missing GPUs, old drivers and Rosetta with imitations, because no such machine was available.)
#
# The settings decide how bad a problem is. A run on the CPU ignores a GPU that torch cannot use. With `--device auto` the run is slow, and with the device named there is no run at all.

# %%
#| export
def _old_driver() -> str:  # empty: it is recent enough, or there is no driver
    "The remedy for an NVIDIA driver that is too old for this torch."
    version = getattr(torch._C, "_cuda_getDriverVersion", lambda: 0)()  # such as 12040 for 12.4
    if not torch.version.cuda or not version or version // 1000 >= _number(torch.version.cuda)[0]:
        return ""
    return (
        f"the NVIDIA driver (CUDA {version // 1000}.{version % 1000 // 10}) is too old for torch "
        f"for CUDA {torch.version.cuda}; update the driver, or install torch for an older CUDA"
    )


def _number(version: str) -> tuple[int, int]:
    "The first two numbers of a version."
    found = [int(digits) for digits in re.findall(r"\d+", version.split("+")[0])]
    return (*found, 0, 0)[0], (*found, 0, 0)[1]


def _unseen_gpu(gpus: list[str]) -> str:  # empty: torch sees them
    "The remedy for NVIDIA GPUs that the system has and torch does not see."
    if not gpus or torch.cuda.is_available():
        return ""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    first = (hidden or "").split(",")[0].strip()  # a number, or the name of a GPU with hyphens
    hides = hidden is not None and first not in map(str, range(len(gpus))) and "-" not in first[1:]
    if not torch.version.cuda:
        why = "is built without CUDA; install the build for CUDA that pytorch.org names instead"
    elif hides:
        why = f"may not use it: CUDA_VISIBLE_DEVICES={hidden!r}; remove that variable"
    else:
        why = "does not get it; restart the machine, then install torch again if it stays so"
    return f"this machine has {', '.join(dict.fromkeys(gpus))}, but torch {torch.__version__} {why}"


def _unfit_xla() -> str:  # empty: nothing is wrong
    "The remedy for a TPU without its package, or with the package of a different torch."
    chips, version = len(tpu_chips()), installed(XLA_PACKAGES[0])
    if not chips and not version:
        return ""
    environ = {**os.environ, "PJRT_DEVICE": "CPU"}  # only the versions matter here
    return why_no_xla(environ, chips, torch.__version__, version)


def _translated() -> str:  # empty: no translation
    "The remedy for a Python that Apple's Rosetta translates."
    if platform.machine() != "x86_64" or "ARM64" not in platform.version():  # of Darwin's kernel
        return ""
    return "Rosetta translates this Python, so torch has no Apple GPU; install Python for arm64"


def _build(checkup: _Checkup) -> _Finding:
    "Whether this torch was built for what this machine has."
    (gpus, problem), asked = _find_nvidia(), checkup.config.device.partition(":")[0]

    def level(kind: str, auto: str) -> str:  # an error if this kind of device was asked for
        return {"auto": auto, kind: "error"}.get(asked, "ok")

    broken = f"nvidia-smi: {problem}; restart the machine, then install the driver again"
    cuda = f"CUDA {torch.version.cuda}" if torch.version.cuda else "no CUDA"
    answers = (
        (level("cuda", "warning"), _old_driver() or (broken if problem else _unseen_gpu(gpus))),
        (level("xla", "error"), _unfit_xla()),
        (level("mps", "warning"), _translated()),
        ("ok", f"torch {torch.__version__}, {cuda}; NVIDIA GPUs: {', '.join(gpus) or 'none'}"),
    )
    return max((a for a in answers if a[1]), key=lambda answer: LEVELS.index(answer[0]))


# %%
print(*_build(checkup))
print(_unseen_gpu(["NVIDIA T4"]))


# %% [markdown]
# ## Versions that belong together
#
# Versions that do not match are the most frequent fault: one package was installed over another. In a notebook the old version stays loaded until the kernel restarts. We do not need torchvision, but a torchvision for a different torch shows that torch was replaced. Some packages are optional, and one line lists what each of them is for.

# %%
#| export
def _mismatch(
    torch_version: str,  # that is loaded
    have: dict[str, str | None],  # versions by package; None: not installed
) -> _Finding:  # the text is empty if it is ok
    "Whether versions belong together."
    loaded, there, vision = _number(torch_version), have.get("torch"), have.get("torchvision")
    if there and _number(there) != loaded:
        return "error", f"torch {torch_version} is loaded and {there} installed; restart the kernel"
    if vision and loaded[0] == 2 and _number(vision) != (0, loaded[1] + 15):
        own = f"torchvision==0.{loaded[1] + 15}.*"
        return "warning", f"torchvision {vision} is for another torch; install {own}, or remove it"
    return "ok", ""


def _versions(checkup: _Checkup) -> _Finding:
    "Versions of the packages that matter, and whether they belong together."
    have = {name: installed(name) for name in (*PACKAGES, "torchvision")}
    text = ", ".join(f"{name} {version}" for name, version in have.items() if version)
    level, remedy = _mismatch(torch.__version__, have)
    return level, f"{text}; {remedy}" if remedy else text


_OPTIONAL = {  # packages by what they are for
    "videos": ("av",),
    "ONNX files": ("onnx", "onnxruntime", "onnxscript"),
    "widgets of explore": ("ipywidgets",),
    "notebooks without a browser": ("papermill", "ipykernel"),
    "TensorBoard": ("tensorboard",),
}


def _optional(checkup: _Checkup) -> _Finding:
    "The optional packages, each with its use: the version, or how to install it."
    lines = []
    for use, names in _OPTIONAL.items():
        have = {name: installed(name) for name in names}
        missing = [name for name in names if not have[name]]
        there = ", ".join(f"{name} {version}" for name, version in have.items() if version)
        todo = f"not installed (pip install {' '.join(missing)})" if missing else ""
        lines.append(f"{use}: {', '.join(filter(None, (there, todo)))}")
    return "ok", "; ".join(lines)


# %%
test_eq(_mismatch("2.8.0+cu126", {"torchvision": "0.23.0+cu126"}), ("ok", ""))
for has in ({"torchvision": "0.20.1"}, {"torch": "2.13.0"}):
    print(*_mismatch("2.9.0", has))

# %% [markdown]
# ## Memory
#
# The batch decides how much memory training needs. The forward pass stores about 1,540 bytes for each pixel of the crop, 2,970 in float32, and at its peak training takes up to twice that (`mshnet bench` measures it). With less than the first number a batch does not fit; between the two, try it. The device reports its free memory. On a CPU that is the smaller of the free memory of the system and of its container.

# %%
#| export
_KEPT = {"bf16": 1540, "fp16": 1540, "fp32": 2970}  # bytes per pixel, for the backward pass
# Bytes of weights, gradients and Adagrad's sums (33 MB more with AdamW and averages)
_FIXED = 55 * 2**20


def needed(images: int, side: int, precision: str) -> float:  # GB
    "The least memory that training takes on a device; twice as much is always enough."
    return (_FIXED + images * side**2 * _KEPT[precision]) / 2**30


def _least(config: Any, images: int, precision: str) -> float | None:  # GB; None: unknown
    "The least memory that training takes, by the task."
    if config.task == "detect":
        return needed(images, config.crop_size, precision)
    memory = make_task(config).memory
    return memory(images, precision) if memory else None


def _memory(checkup: _Checkup) -> _Finding:
    "Whether the devices can share a batch, and whether it fits into the memory that is free."
    config, device = checkup.config, checkup.device
    world = max(device.world if device else 1, config.num_devices)
    if config.batch_size % world:
        text = f"batch_size={config.batch_size} cannot be shared by {world} devices"
        return "warning", f"{text}; write a multiple of {world}"
    each = math.ceil(min(config.micro_batch or config.batch_size, config.batch_size) / world)
    precision = device.precision if device else config.precision.replace("auto", "fp32")
    least = _least(config, each, precision)
    if least is None:
        return "ok", f"what a batch of task {config.task} takes is not known"
    need = f"a batch of {each} takes {least:.1f} to {2 * least:.1f} GB (estimated)"
    free = device.free() / 2**30 if device else math.inf
    if math.isinf(free):
        return "ok", f"{need}; how much is free is not known"
    on_host = device is not None and device.kind in ("cpu", "mps")
    text = f"{free:.1f} GB free{'' if on_host else ' on each device'}; {need}"
    if free >= 2 * least:
        return "ok", text
    fit = [n for n in range(1, each) if 2 * (_least(config, n, precision) or 0) < free]
    most = fit[-1] * world if fit else 0
    less = f"write --batch-size {most} (or --micro-batch {most})"
    less = less if fit else f"use a smaller {config.smaller}"
    return "error" if free < least else "warning", f"{text}; {less}, or free some"


# %%
print([round(needed(4, 256, precision), 2) for precision in _KEPT], "GB")
test_eq(_memory(_Checkup(Config(device="cpu", batch_size=60_000)))[0], "error")


# %% [markdown]
# ## Disk, data and session
#
# A full disk, damaged data and the end of a session stop a run late, so we check them early. A session may end before its run, and its disk may be lost with it. So a run can be copied to Google Drive in Colab, and to a folder anywhere (`mirror_dir`). We did not verify that a real Drive behaves like a folder.
#
# To check whether a folder is writable, we write into it: rights, quotas and read-only file systems then fail in the same way, and nothing stays behind. For a folder that does not exist yet we try the nearest one above it.

# %%
#| export
def _nearest(folder: Path) -> Path:
    "The folder itself, or the nearest one above it that exists."
    folder = folder.resolve()
    return next(p for p in (folder, *folder.parents) if os.path.exists(p))


def _why_not_writable(folder: Path) -> str:  # empty: it is writable
    "Why an existing folder is not writable."
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"written")
    except OSError as error:
        return error.strerror or first_line(error)
    return ""


def _disk(checkup: _Checkup) -> _Finding:
    "Space where the run's folder will be, and whether it can be written; a run takes 200 MB."
    folder = run_folder(checkup.config)
    there = _nearest(folder)
    if reason := _why_not_writable(there):
        return "error", f"{folder} cannot be written ({reason}); write another --output-dir"
    free = shutil.disk_usage(there).free / 2**30
    if free < 1:
        text = f"{free:.1f} GB free for {folder}; delete something or use --output-dir"
        return "error" if free < 0.2 else "warning", text
    return "ok", f"{free:.0f} GB free for {folder}"


def _data(checkup: _Checkup) -> _Finding:
    "Whether the data set can be trained on."
    config = checkup.config
    if not config.dataset_dir:
        what = "synthetic scenes" if config.task == "detect" else f"{config.synthetic_name} data"
        return "ok", f"{what} (no dataset_dir)"
    try:
        if config.task != "detect":  # whether these settings read this data set
            make_task(config).splits(["test"])
        text, usable = make_task(config).describe_data()
    except UserError as error:
        return "error", str(error)
    bad = ("error", "skipped", "warning")
    first = [line for line in text.splitlines() if line.startswith(bad)]
    if not usable:
        return "error", f"{first[0]}; `mshnet data {quoted(config.dataset_dir)}` lists all"
    parts = ("train", "val", "test")
    counts = [line for line in text.splitlines() if line.partition(":")[0].startswith(parts)]
    return "warning" if first else "ok", "; ".join([*counts, *first])


def _session(checkup: _Checkup) -> _Finding:
    "When the session ends, and where the run is copied to."
    config, place, notes = checkup.config, where(), list[str]()
    hours, usual = (session_hours(c) for c in (config, Config()))
    time = "no limit of time" if math.isinf(hours) else f"stops by itself after {hours:g} hours"
    if hours > usual:
        return "warning", f"{time}; this place may end it before, write --max-hours {usual:g}"
    if not config.mirror_dir:
        if place.drive:
            return "warning", f"{time}, and the run goes with it; write --mirror-dir drive"
        return "ok", f"{time}; no copies (--mirror-dir DIR copies the run there meanwhile)"
    try:
        folder = mirror_folder(config, place, say=notes.append)
    except UserError as error:
        return "error", str(error)
    if not folder:
        reason = notes[0].removeprefix("mirror").strip()
        if place.drive:
            return "ok", f"{time}; {reason}; training asks for your permission to mount it"
        return "warning", f"{time}; {reason}; write --mirror-dir DIR"
    there = _nearest(folder)
    if reason := _why_not_writable(there):
        return "error", f"mirror_dir={str(folder)!r} cannot be written ({reason}); write another"
    free = shutil.disk_usage(there).free / 2**30
    return "ok", f"{time}; copies go to {folder}: {free:.0f} GB free"


# %%
bad = {"output_dir": "/dev/null/run", "dataset_dir": "no-such-folder", "mirror_dir": "drive"}
for settings in ({}, bad):
    for check in (_disk, _data, _session):
        print(*check(_Checkup(Config(device="cpu", **settings))))

# %% [markdown]
# ## All checks
#
# A strange machine is where the doctor is needed most. If a check fails in an unforeseen way, it becomes a warning with the reason, and the other checks continue.

# %%
#| export
_CHECKS: dict[str, Callable[[_Checkup], _Finding]] = {
    "machine": _machine,
    "accelerator": _accelerator,
    "build": _build,
    "versions": _versions,
    "optional": _optional,
    "memory": _memory,
    "disk": _disk,
    "data": _data,
    "session": _session,
}


def doctor(config: Settings) -> Report:
    "Run all checks of this machine, for these settings."
    checkup, lines = _Checkup(config), []
    for subject, check in _CHECKS.items():
        try:
            level, text = check(checkup)
        except Exception as error:
            why = f"{type(error).__name__}: {first_line(error)}"
            level, text = "warning", f"this check failed ({why})"
        lines.append(Line(level, subject, text))
    return Report(tuple(lines))


# %%
found = doctor(Config(scenes=8, device="cpu"))
test_eq([line.subject for line in found.lines], list(_CHECKS))
print(found)

# %% [markdown]
# The worst line decides the exit status of `mshnet doctor`. For programs, `mshnet doctor --json` prints the same lines as JSON.
