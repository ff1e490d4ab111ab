# %% [markdown]
# # doctor
#
# > What machine is this, what can it do, and is anything wrong with it? One line each, with the remedy.

# %%
#| default_exp doctor

# %%
#| hide
import tempfile
import warnings
from unittest.mock import patch

from fastcore.test import test_eq

# %%
#| export
import contextlib
import json
import math
import os
import platform
import re
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import torch

from mshnet.core import Config, UserError, counted
from mshnet.data import report
from mshnet.device import XLA_PACKAGES, Cores, Device, open_device, tpu_chips, why_no_xla
from mshnet.places import (
    installed,
    is_mounted,
    mirror_folder,
    run_folder,
    session_hours,
    wants_drive,
    where,
)
from mshnet.run import PACKAGES

# %% [markdown]
# Most questions about a failed run are questions about its machine: which GPU, which torch, was there any memory left. So the first cell of every runner asks all of them, before an hour is spent. A finding is one line. If it is no good one, the same line says what to do.

# %%
#| export
LEVELS = ("ok", "warning", "error")  # a script's exit status is the place in this list


@dataclass(frozen=True)
class Line:
    "One finding."

    level: str  # one of LEVELS
    subject: str
    text: str  # what was found and, unless it is ok, what to do

    def __str__(self) -> str:
        "The line as it is printed."
        return f"{self.level:8}{self.subject:12}{self.text}"


@dataclass(frozen=True)
class Report:
    "All findings."

    lines: tuple[Line, ...]

    @property
    def worst(self) -> str:
        "The worst level found."
        return LEVELS[self.status]

    @property
    def status(self) -> int:
        "0: all is well, 1: there is a warning, 2: there is an error."
        return max(LEVELS.index(line.level) for line in self.lines)

    def to_json(self) -> str:
        "The same for programs."
        lines = [asdict(line) for line in self.lines]
        return json.dumps({"worst": self.worst, "lines": lines}, indent=1)

    def __str__(self) -> str:
        "One line each."
        return "\n".join(map(str, self.lines))


# %%
mixed = Report(
    (Line("ok", "torch", "2.13.0"), Line("warning", "disk", "1 GB free; delete old runs"))
)
test_eq((mixed.worst, mixed.status), ("warning", 1))
test_eq(json.loads(mixed.to_json())["lines"][1]["subject"], "disk")
print(mixed)


# %% [markdown]
# ## Looking behind torch
#
# torch says what it can use. What it cannot use and why, it does not say: a GPU that the system has and torch was not built for looks like no GPU at all. So the system is asked itself. NVIDIA's tool `nvidia-smi` knows the GPUs and the driver; where it is missing, the driver's folder in `/proc` does, and else the driver's library. A broken driver can keep the tool waiting, so it gets five seconds.

# %%
#| export
@dataclass(frozen=True)
class Nvidia:
    "What the system knows of NVIDIA GPUs, whatever torch thinks of them."

    gpus: tuple[str, ...] = ()  # their names
    driver: str = ""  # its version; empty: none, or not known
    trouble: str = ""  # why nvidia-smi does not answer


def first_line(text: object) -> str:
    "A long text's beginning, as one line."
    lines = [line.strip() for line in str(text).splitlines() if line.strip()]
    return lines[0][:300] if lines else "no reason given"


def number(version: str) -> tuple[int, int]:
    "The first two numbers of a version."
    found = [int(digits) for digits in re.findall(r"\d+", version.split("+")[0])]
    return (*found, 0, 0)[0], (*found, 0, 0)[1]


# %% [markdown]
# The tool prints one line per GPU. Where it is there and fails, its first line says why; a tool that finds no device is right on a machine without one.

# %%
#| export
def find_nvidia(
    proc: Path = Path("/proc/driver/nvidia"),
    patience: float = 5.0,  # seconds
) -> Nvidia:
    "Ask nvidia-smi, else the driver's folder, else its library."
    tool = shutil.which("nvidia-smi")
    if not tool:
        return find_driver(proc)
    try:
        words = [tool, "--query-gpu=name,driver_version", "--format=csv,noheader"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=patience)
    except subprocess.TimeoutExpired:
        return Nvidia(find_driver(proc).gpus, trouble=f"no answer within {patience:g} seconds")
    except OSError as error:
        return Nvidia(find_driver(proc).gpus, trouble=first_line(error))
    found = [line.rsplit(", ", 1) for line in done.stdout.splitlines() if ", " in line]
    if done.returncode == 0 or "No devices were found" in done.stdout:
        driver = found[0][1].strip() if found else ""
        return Nvidia(tuple(name for name, _ in found), driver)
    said = first_line(done.stdout + done.stderr)
    return Nvidia(find_driver(proc).gpus, trouble=said)


# %% [markdown]
# In a container the tool may be missing while the GPUs are there:

# %%
#| export
UNNAMED = "an NVIDIA GPU"


def find_driver(
    proc: Path,  # where the driver shows itself
) -> Nvidia:
    "The GPUs and the driver's version without nvidia-smi."
    texts = [file.read_text() for file in sorted(proc.glob("gpus/*/information"))]
    names = [found[1] if (found := re.search(r"Model:\s*(.+)", t)) else UNNAMED for t in texts]
    version = proc / "version"
    told = re.search(r"\s(\d+(\.\d+)+)\s", version.read_text()) if version.exists() else None
    return Nvidia(tuple(names) or (UNNAMED,) * count_by_library(), told[1] if told else "")


def count_by_library() -> int:
    "NVIDIA GPUs that the driver's library counts; torch has a way to it, built for CUDA or not."
    with warnings.catch_warnings(), contextlib.suppress(OSError, AttributeError):
        warnings.simplefilter("ignore")
        return max(torch.cuda._raw_device_count_nvml(), 0)
    return 0


# %%
with tempfile.TemporaryDirectory() as tmp, patch.dict(os.environ, PATH=tmp):
    test_eq(find_driver(Path(tmp)).driver, "")
    card = Path(tmp) / "gpus" / "0000:01:00.0"
    card.mkdir(parents=True)
    (card / "information").write_text("Model: \t\t NVIDIA T4\nIRQ: 10\n")
    (Path(tmp) / "version").write_text("NVRM version: NVIDIA Kernel Module  535.104.05  Sat\n")
    test_eq(find_nvidia(Path(tmp)), Nvidia(("NVIDIA T4",), "535.104.05"))
print(find_nvidia(), count_by_library(), first_line("\n a reason\nand more"))
test_eq([number(v) for v in ("2.13.0+cpu", "0.24", "3", "?")], [(2, 13), (0, 24), (3, 0), (0, 0)])


# %% [markdown]
# ## One examination
#
# Several questions look at the device, and opening one can take seconds: so it is opened once, and the questions share it. What torch warns of meanwhile belongs to the findings and not between them.

# %%
#| export
class Patient:
    "A machine and what is to run on it; what several questions need is found once."

    def __init__(self, config: Config) -> None:
        self.config = config
        self.device: Device | None = None  # that a run would take
        self.trouble = ""  # why there is none
        chosen = config.device, config.precision, config.num_devices, config.debug_xla
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                self.device = open_device(*chosen)
            except UserError as error:
                self.trouble = str(error)
            except Exception as error:  # of a driver or a runtime, which a run would meet too
                what = f"{type(error).__name__}: {first_line(error)}"
                self.trouble = f"device={config.device} does not start ({what}); restart the "
                self.trouble += "kernel or the machine, or write --device cpu"
        self.warned = [first_line(warning.message) for warning in said]

    @cached_property
    def nvidia(self) -> Nvidia:
        "What the system knows of NVIDIA GPUs."
        return find_nvidia()

    @property
    def world(self) -> int:
        "Devices that share a batch."
        return max(self.device.world if self.device else 1, self.config.num_devices)

    def level(self, kind: str, auto: str = "warning") -> str:
        "How bad it is that a kind of device cannot be used: it depends on what was asked for."
        asked = self.config.device.partition(":")[0]
        return {"auto": auto, kind: "error"}.get(asked, "ok")


# %%
patient = Patient(Config(device="cpu"))
test_eq((patient.device.kind, patient.trouble, patient.world), ("cpu", "", 1))
test_eq([patient.level("cuda"), Patient(Config(device="cuda:9")).level("cuda")], ["ok", "error"])
patient.nvidia


# %% [markdown]
# ## The questions
#
# Each is a small function that answers with one line. A question that cannot be answered (no `sysconf` on Windows) is no error. A container may allow less memory than the machine has, and ends a process that takes more without a word; where that limit stands depends on the age of the system.

# %%
#| export
def machine(patient: Patient) -> Line:
    "System, cores and memory."
    cores = f"{os.cpu_count()} cores"
    try:
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        memory = f", {size / 2**30:.0f} GB memory"
        if (limit := container_limit()) < size:
            memory += f" (this container may take {limit / 2**30:.1f} GB)"
    except (AttributeError, ValueError, OSError):
        memory = ""
    system = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    return Line("ok", "machine", f"{system}, {cores}{memory}")


def container_limit(
    group: Path = Path("/sys/fs/cgroup"),
) -> float:  # bytes; infinite: none
    "The memory that this process's container may take."
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # no file, or the word "max"
            return float((group / name).read_text())
    return math.inf


def place(patient: Patient) -> Line:
    "Colab, Kaggle or here."
    return Line("ok", "place", where().note)


# %% [markdown]
# Other programs on the same cores slow a training down by more than their share, because threads wait for each other (the device notebook has the measurement).

# %%
#| export
def neighbours(patient: Patient) -> Line:
    "How busy other programs keep the cores."
    cores = Cores()
    taken = cores.others(least=0.3)
    text = f"other programs keep {taken:.1f} of {counted(cores.count, 'core')} busy"
    if taken < 0.5:
        return Line("ok", "neighbours", text)
    if not patient.device or patient.device.kind != "cpu":
        return Line("ok", "neighbours", text)
    slow = "training is slower beside them, and its steps may stall; stop them, or wait"
    return Line("warning", "neighbours", f"{text}; {slow}")


# %%
print(neighbours(patient))
print(machine(patient))
print(place(patient))
with tempfile.TemporaryDirectory() as tmp:
    test_eq(container_limit(Path(tmp)), math.inf)
    (Path(tmp) / "memory.max").write_text("max\n")
    test_eq(container_limit(Path(tmp)), math.inf)
    (Path(tmp) / "memory.max").write_text("4294967296\n")
    test_eq(container_limit(Path(tmp)), 2**32)


# %% [markdown]
# The accelerator is what most people want to know about, and `auto` explains itself.

# %%
#| export
def accelerator(patient: Patient) -> Line:
    "The device that a run would take, and why it is none better."
    device = patient.device
    if not device:
        return Line("error", "accelerator", patient.trouble)
    if device.precision == "bf16" and not device.has_bf16():
        slow = "this chip only emulates bf16; write --precision fp32 (or auto)"
        return Line("warning", "accelerator", f"{device.why}; {slow}")
    if patient.warned:
        said = "; ".join(patient.warned)
        return Line(
            "warning", "accelerator", f"{device.why}; it warns: {said} (see build and driver below)"
        )
    if device.kind == "cpu" and patient.config.device == "auto":
        built = "torch finds no GPU" if gpu_build() else "torch is built without CUDA"
        hint = f"{device.why} ({built}; a first look needs none)"
        return Line("ok", "accelerator", hint)
    return Line("ok", "accelerator", device.why)


def gpu_build() -> str:  # empty: none
    "The kind of GPU that this torch was built for."
    builds = {"CUDA": torch.version.cuda, "ROCm": torch.version.hip}
    found = [f"{name} {version}" for name, version in builds.items() if version]
    return (found or ["Apple's GPUs" if torch.backends.mps.is_built() else ""])[0]


def batch(patient: Patient) -> Line:
    "How many images of a batch each device gets, or that it cannot be cut so."
    size, world = patient.config.batch_size, patient.world
    text = f"{size} images per step"
    if size % world:
        return Line("warning", "batch", f"{text}, and {world} devices; write a multiple of {world}")
    shared = f", {size // world} for each of {world} devices" if world > 1 else ""
    return Line("ok", "batch", text + shared)


# %%
print(accelerator(patient))
print(batch(patient), gpu_build())
test_eq(batch(Patient(Config(device="cpu", num_devices=3, batch_size=8))).level, "warning")


# %% [markdown]
# ## Does this torch fit this machine?
#
# torch is built for certain chips. There is a build without CUDA, which sees no GPU. A build for CUDA holds programs for some generations of GPUs ("compute capabilities") and not for others: a program for 8.0 runs on 8.6 too, never on 9.0, unless it is there in the portable form that the driver translates (`compute_80`). Old generations went first: from torch 2.8 on, GPUs before 7.0 are in the builds for CUDA 12.6 alone, later those before 7.5 too. (Missing GPUs, old drivers and Rosetta were tried with pretended ones; no such machine was at hand.)

# %%
#| export
def runs_on(
    capability: tuple[int, int],  # of a GPU, such as (8, 6)
    builds: list[str],  # as torch lists them, such as sm_80 or compute_90
) -> bool:
    "Whether a torch that holds these programs has one for this GPU."
    for form, digits, variant in re.findall(r"(sm|compute)_(\d+)([a-z]?)", " ".join(builds)):
        built = (int(digits[:-1]), int(digits[-1]))
        if variant == "a" and built == capability:  # made for this one alone
            return True
        same = form == "compute" or built[0] == capability[0]
        if variant != "a" and same and built <= capability:
            return True
    return False


def unsupported_gpu(patient: Patient) -> str:  # empty: it is supported
    "What to do about a GPU that this torch holds no programs for."
    device, builds = patient.device, torch.cuda.get_arch_list()
    if not device or device.kind != "cuda" or not torch.version.cuda or not builds:
        return ""
    capability = torch.cuda.get_device_capability(device.index or 0)
    if runs_on(capability, builds):
        return ""
    name = torch.cuda.get_device_name(device.index or 0)
    older = "one for CUDA 12.6, which has older GPUs" if capability < (7, 5) else "a newer one"
    return (
        f"{name} has compute capability {capability[0]}.{capability[1]}, and torch "
        f"{torch.__version__} is built for {' '.join(builds)}; install {older}, choose another "
        "GPU, or write --device cpu"
    )


# %%
new = ["sm_75", "sm_80", "sm_90", "sm_120", "compute_120"]
test_eq([runs_on(c, new) for c in ((7, 5), (8, 6), (9, 0), (12, 1))], [True] * 4)
test_eq([runs_on(c, new) for c in ((6, 0), (7, 0), (10, 0), (11, 0))], [False] * 4)
test_eq([runs_on(c, ["sm_90a"]) for c in ((9, 0), (9, 1))], [True, False])
test_eq(unsupported_gpu(patient), "")

# %% [markdown]
# A driver is older than torch if it comes from an earlier generation of CUDA. Within a generation they get along.

# %%
#| export
NEEDS = {11: 450, 12: 525, 13: 580}  # generation of CUDA: first driver for it, as NVIDIA lists them


def old_driver(patient: Patient) -> str:  # empty: it is recent enough, or there is none
    "What to do about an NVIDIA driver that is too old for this torch."
    if not torch.version.cuda:
        return ""
    wants, driver = number(torch.version.cuda)[0], patient.nvidia.driver
    known = getattr(torch._C, "_cuda_getDriverVersion", lambda: 0)()  # such as 12040 for 12.4
    has = f"CUDA {known // 1000}.{known % 1000 // 10}" if known else ""
    came = number(driver)[0] if driver else 0
    too_old = known // 1000 < wants if known else 0 < came < NEEDS.get(wants, 0)
    if not too_old:
        return ""
    first = f"to {NEEDS[wants]} or newer" if wants in NEEDS else "to the newest"
    what = " for ".join(word for word in (driver, has) if word)
    return (
        f"the NVIDIA driver ({what}) is too old for torch {torch.__version__} (CUDA "
        f"{torch.version.cuda}); update the driver {first}, or install torch for an older CUDA"
    )


def driver(patient: Patient) -> Line:
    "The NVIDIA driver, if there is one, and whether it is recent enough."
    nvidia = patient.nvidia
    if text := old_driver(patient):
        return Line(patient.level("cuda"), "driver", text)
    if nvidia.trouble:
        text = f"nvidia-smi: {nvidia.trouble}; restart the machine, then install the driver again"
        return Line(patient.level("cuda"), "driver", f"{text} if it stays so")
    if not nvidia.driver:
        return Line("ok", "driver", "no NVIDIA driver" if not nvidia.gpus else "version not known")
    return Line("ok", "driver", f"NVIDIA {nvidia.driver}: {', '.join(nvidia.gpus) or 'no GPU'}")


# %%
print(driver(patient), old_driver(patient))


# %% [markdown]
# The other ways in which a GPU is there and torch does not see it. On an Apple computer there is one more: a Python for Intel's processors runs on Apple's too, translated (Rosetta), and torch has no GPU then.

# %%
#| export
def unseen_gpu(patient: Patient) -> str:  # empty: there is none
    "What to do about an NVIDIA GPU that the system has and torch does not see."
    gpus = patient.nvidia.gpus
    if not gpus or torch.cuda.is_available() or old_driver(patient):  # the last is told elsewhere
        return ""
    there = f"this machine has {', '.join(dict.fromkeys(gpus))}, but torch {torch.__version__}"
    if not torch.version.cuda:
        return (
            f"{there} is built without CUDA; install the build for CUDA that pytorch.org names "
            "for this system, in place of this one"
        )
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    first = (hidden or "").split(",")[0].strip()
    if hidden is not None and first not in map(str, range(len(gpus))) and "-" not in first[1:]:
        return f"{there} may not use it: CUDA_VISIBLE_DEVICES={hidden!r}; remove that variable"
    return f"{there} does not get it; restart the machine, then install torch again if it stays so"


def translated() -> str:  # empty: it is not
    "What to do about a Python that Apple's Rosetta translates."
    if (platform.system(), platform.machine()) != ("Darwin", "x86_64"):
        return ""
    words = ["sysctl", "-in", "sysctl.proc_translated"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=5)
    if done.stdout.strip() != "1":
        return ""
    return (
        "this Python is made for Intel's processors and translated by Rosetta, so torch has no "
        "Apple GPU; install Python for arm64, and torch in it"
    )


# %%
with patch.object(patient, "nvidia", Nvidia(("NVIDIA T4",)), create=True):
    print(unseen_gpu(patient))
test_eq(translated(), "")


# %% [markdown]
# A TPU needs torch_xla beside torch, of the same version: the device notebook knows the words. All of these are answers to one question. How bad they are depends on what was asked for. A run on the CPU does not care about a GPU that torch cannot use; where the device is left to `auto`, it makes a slow run; where it was named, no run at all.

# %%
#| export
def unfit_xla() -> str:  # empty: nothing is wrong
    "What to do about a TPU without its package, or a package that does not belong to this torch."
    chips, version = len(tpu_chips()), installed(XLA_PACKAGES[0])
    if not chips and not version:
        return ""
    environ = {**os.environ, "PJRT_DEVICE": "CPU"}  # only the versions are asked for here
    return why_no_xla(environ, chips, torch.__version__, version)


def build(patient: Patient) -> Line:
    "Whether this torch was built for what this machine has."
    found = (
        (unsupported_gpu(patient), patient.level("cuda", "error")),
        (unseen_gpu(patient), patient.level("cuda")),
        (unfit_xla(), patient.level("xla", "error")),
        (translated(), patient.level("mps")),
    )
    for text, level in found:
        if text:
            return Line(level, "build", text)
    return Line("ok", "build", f"torch {torch.__version__}, for {gpu_build() or 'CPUs'}")


# %%
print(build(patient))
print(unfit_xla() or "no TPU, or one with what it needs")


# %% [markdown]
# ## Versions that belong together
#
# They are the most frequent fault of all: something was installed over something else. A notebook has a further way to it, an installation while the kernel runs: the old version stays loaded until it is restarted. torchvision is none of our needs, but whoever has both has them for a reason, and its version tells that torch was replaced without it. ipywidgets only makes progress bars prettier.

# %%
#| export
def mismatch(
    torch_version: str,  # that is loaded
    have: dict[str, str | None],  # versions by package; None: not installed
) -> tuple[str, str]:  # level and, unless it is ok, what to do
    "Whether versions belong together."
    torch_number, numpy, vision = number(torch_version), have.get("numpy"), have.get("torchvision")
    if (there := have.get("torch")) and number(there) != torch_number:
        return "error", f"torch {torch_version} is loaded and {there} installed; restart the kernel"
    if numpy and number(numpy) >= (2, 0) and torch_number < (2, 3):
        return "error", f"torch {torch_version} knows no numpy 2; pip install 'numpy<2'"
    if torch_number < (2, 8):
        return "warning", "tested with torch 2.8 and newer; install a newer torch"
    if vision and torch_number[0] == 2 and number(vision) != (0, torch_number[1] + 15):
        own = f"torchvision==0.{torch_number[1] + 15}.*"
        return "warning", f"torchvision {vision} is for another torch; install {own}, or remove it"
    return "ok", ""


def versions(patient: Patient) -> Line:
    "Versions of the packages that matter, and whether they belong together."
    have = {name: installed(name) for name in (*PACKAGES, "torchvision", "ipywidgets")}
    text = ", ".join(f"{name} {version}" for name, version in have.items() if version)
    level, remedy = mismatch(torch.__version__, have)
    return Line(level, "versions", f"{text}; {remedy}" if remedy else text)


# %%
print(versions(patient))
test_eq(mismatch("2.8.0+cu126", {"torchvision": "0.23.0+cu126"}), ("ok", ""))
for has in ({"torchvision": "0.20.1"}, {"torch": "2.13.0"}):
    print(mismatch("2.9.0", has))

# %% [markdown]
# ## Memory
#
# What training needs follows from the batch: the forward pass keeps some 1,540 bytes for each pixel of the crop, 2,970 in float32, and at the peak it takes up to twice that (the bench notebook computes and measures it, [the speed guide](guide_speed.ipynb) has the table). With less than the first it does not fit; between the two nobody knows before trying. On a CPU the free memory is that of the system or of the container, whichever is less.

# %%
#| export
KEPT = {"bf16": 1540, "fp16": 1540, "fp32": 2970}  # bytes per pixel, for the backward pass
FIXED = 55 * 2**20  # bytes: weights, gradients, Adagrad's sums (33 MB more with AdamW and averages)


def needed(
    images: int,  # computed at once on a device
    side: int,  # of the crop
    precision: str,
) -> tuple[float, float]:  # bytes: not without, and surely enough
    "Memory that training takes on a device."
    kept = float(images * side**2 * KEPT[precision])
    return FIXED + kept, 2 * (FIXED + kept)


def memory(patient: Patient) -> Line:
    "Whether a batch of the training fits into the memory that is free."
    config, device = patient.config, patient.device
    at_once = min(config.micro_batch or config.batch_size, config.batch_size)
    each = math.ceil(at_once / patient.world)
    precision = device.precision if device else config.precision.replace("auto", "fp32")
    least, most = (x / 2**30 for x in needed(each, config.crop_size, precision))
    need = f"a batch of {each} takes {least:.1f} to {most:.1f} GB"
    if not device:
        return Line("ok", "memory", f"{need} (estimated) on a device")
    on_host = device.kind in ("cpu", "mps")
    free = min(device.free(), container_limit() if on_host else math.inf) / 2**30
    if math.isinf(free):
        return Line("ok", "memory", f"{need} (estimated); how much is free is not known")
    text = f"{free:.1f} GB free{'' if on_host else ' on the device'}; {need} (estimated)"
    if free >= most:
        return Line("ok", "memory", text)
    fit = [n for n in range(1, each) if needed(n, config.crop_size, precision)[1] < free * 2**30]
    less = f"write --batch-size {fit[-1] * patient.world}" if fit else "use a smaller --crop-size"
    return Line("error" if free < least else "warning", "memory", f"{text}; {less}, or free some")


# %%
print(memory(patient))
test_eq(memory(Patient(Config(device="cpu", batch_size=60_000))).level, "error")
least, most = needed(16, 256, "bf16")
assert 1.5 < least / 2**30 < most / 2**30 < 3.2


# %% [markdown]
# ## Space and data
#
# They are the things that fail late, so they are looked at early. Whether a folder can be written is not asked but tried: rights, quotas and file systems that were mounted for reading all answer the same way then, and nothing stays behind. A folder that does not exist yet will be made in the nearest one that does.

# %%
#| export
def nearest(folder: Path) -> Path:
    "The folder itself, or the nearest one above it that exists."
    folder = folder.resolve()
    return next(p for p in (folder, *folder.parents) if os.path.exists(p))


def no_writing(folder: Path) -> str:  # empty: it can be written
    "Why nothing can be written in a folder that exists."
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"written")
    except OSError as error:
        return error.strerror or first_line(error)
    return ""


def disk(patient: Patient) -> Line:
    "Space where the run's folder will be, and whether it can be written; a run takes 70 MB."
    folder = run_folder(patient.config)
    there = nearest(folder)
    if reason := no_writing(there):
        remedy = "write --output-dir DIR, a folder that can be"
        return Line("error", "disk", f"{folder} cannot be written ({reason}); {remedy}")
    free = shutil.disk_usage(there).free / 2**30
    if free < 1:
        text = f"{free:.1f} GB free for {folder}; delete something or use --output-dir"
        return Line("error" if free < 0.2 else "warning", "disk", text)
    return Line("ok", "disk", f"{free:.0f} GB free for {folder}")


# %%
print(disk(patient))
with tempfile.TemporaryDirectory() as tmp:
    test_eq(nearest(Path(tmp) / "a" / "b"), Path(tmp).resolve())
    test_eq((no_writing(Path(tmp)), list(Path(tmp).iterdir())), ("", []))
    (Path(tmp) / "file").touch()
    below = Patient(Config(device="cpu", output_dir=f"{tmp}/file/run"))
    test_eq((disk(below).level, disk(patient).subject), ("error", "disk"))
    print(no_writing(Path(tmp) / "file"))


# %% [markdown]
# What a session leaves on its own disk may go with it. In Colab there is Google Drive, if it has been mounted, and everywhere there can be a folder that a run is copied to (`mirror_dir`). (Whether a real Drive behaves like the folder that it looks like was not verified.)

# %%
#| export
def drive(patient: Patient) -> Line:
    "In Colab, whether Google Drive is mounted."
    folder = where().drive
    if not folder:
        return Line("ok", "drive", "only in Colab")
    if is_mounted(folder):
        return Line("ok", "drive", "mounted; mirror_dir = drive keeps the run there")
    if wants_drive(patient.config, where()):
        return Line("ok", "drive", "not mounted yet; training asks for your permission")
    text = "not mounted, so the run goes with the session; mirror_dir = drive keeps it there"
    return Line("warning", "drive", text)


def mirror(patient: Patient) -> Line:
    "Whether the folder that a run is copied to can be reached and written."
    name, place = patient.config.mirror_dir, where()
    if not name:
        return Line("ok", "mirror", "none (--mirror-dir DIR copies the run there meanwhile)")
    if place.drive and wants_drive(patient.config, place) and not is_mounted(place.drive):
        return Line("ok", "mirror", "on Google Drive, when it is mounted (see drive)")
    try:
        folder = mirror_folder(patient.config, place, say=lambda _: None)  # as training asks
    except UserError:
        text = f"mirror_dir={name!r} is where the run itself is; write another folder"
        return Line("error", "mirror", text)
    if not folder:
        text = "mirror_dir=drive is for Colab, so there will be none; write a folder"
        return Line("warning", "mirror", text)
    there, run = nearest(folder), run_folder(patient.config)
    if reason := no_writing(there):
        text = f"mirror_dir={name!r} cannot be written ({reason}); write a folder that can be"
        return Line("error", "mirror", text)
    free = f"{shutil.disk_usage(there).free / 2**30:.0f} GB free"
    same = "; the run's own disk" if there.stat().st_dev == nearest(run).stat().st_dev else ""
    return Line("ok", "mirror", f"{name}: {free}{same}")


# %%
for folder in ("", "~", "drive"):
    print(mirror(Patient(Config(device="cpu", mirror_dir=folder))))
print(drive(patient))


# %% [markdown]
# Then the time that the session has, and the data:

# %%
#| export
def time(patient: Patient) -> Line:
    "When the session stops by itself."
    hours, usual = (session_hours(c) for c in (patient.config, Config()))
    if math.isinf(hours):
        return Line("ok", "time", "no limit (max_hours=0)")
    text = f"stops by itself {hours:g} hours after its start, with all written"
    if hours > usual:
        return Line("warning", "time", f"{text}; this place may end it before, write {usual:g}")
    if hours < 0.1:
        return Line("warning", "time", f"{text}; an epoch may take longer, write more")
    return Line("ok", "time", text)


def data(patient: Patient) -> Line:
    "Whether the data set can be trained on."
    config = patient.config
    if not config.dataset_dir:
        return Line("ok", "data", "synthetic scenes (no dataset_dir)")
    try:
        text, usable = report(config)
    except UserError as error:
        return Line("error", "data", str(error))
    first = [line for line in text.splitlines() if line.startswith(("error", "warning"))]
    counts = "; ".join(line for line in text.splitlines() if " targets, " in line)
    if not usable:
        return Line(
            "error", "data", f"{first[0]}; `mshnet data {Path(config.dataset_dir)}` lists all"
        )
    return Line("warning" if first else "ok", "data", "; ".join([counts, *first]))


# %%
print(time(patient))
print(data(patient))
test_eq(time(Patient(Config(device="cpu", max_hours=0.01))).level, "warning")
test_eq(data(Patient(Config(device="cpu", dataset_dir="no-such-folder"))).level, "error")

# %% [markdown]
# ## All of them
#
# A doctor that falls ill at a strange machine is of no use there, where it is needed most. So a question that fails in a way nobody thought of becomes a warning with the reason, and the others are answered.

# %%
#| export
QUESTIONS: tuple[Callable[[Patient], Line], ...] = (
    machine,
    neighbours,
    place,
    accelerator,
    build,
    driver,
    versions,
    batch,
    memory,
    disk,
    drive,
    mirror,
    time,
    data,
)


def ask(question: Callable[[Patient], Line], patient: Patient) -> Line:
    "The answer to a question, or a warning that there is none."
    try:
        return question(patient)
    except Exception as error:
        why = f"{type(error).__name__}: {first_line(error)}"
        text = f"this question could not be answered ({why}); the others were"
        return Line("warning", question.__name__, text)


def doctor(
    config: Config,
) -> Report:
    "Answer every question about this machine, for this configuration."
    patient = Patient(config)
    return Report(tuple(ask(question, patient) for question in QUESTIONS))


# %%
found = doctor(Config(scenes=8, device="cpu"))
test_eq(len(found.lines), len(QUESTIONS))
print(found)


# %%
def broken(patient):
    "A question that nobody has tried on this machine."
    return patient.config.no_such_setting


print(ask(broken, patient))
test_eq(ask(broken, patient).level, "warning")

# %% [markdown]
# A device that is not there is an error with its remedy. The worst line decides the exit status of `mshnet doctor`, and `mshnet doctor --json` prints all of it for programs.

# %%
if not torch.cuda.is_available():
    test_eq(doctor(Config(device="cuda")).status, 2)
    print(accelerator(Patient(Config(device="cuda"))))
