# %% [markdown]
# # doctor
#
# > What machine is this, what can it do, and is anything wrong with it? One line each, with the remedy.

# %%
#| default_exp doctor

# %%
#| hide
from fastcore.test import test_eq

# %%
#| export
import os
import platform
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from mshnet.core import Config, UserError
from mshnet.data import report
from mshnet.device import DeviceSteps, open_device
from mshnet.places import installed, run_folder, where
from mshnet.run import PACKAGES


# %% [markdown]
# Most questions about a failed run are questions about its machine: which GPU, which torch, was there any memory left. So the first cell of every runner asks all of them, before an hour is spent.

# %%
#| export
@dataclass(frozen=True)
class Line:
    "One finding."

    level: str  # "ok", "warning" or "error"
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
        levels = {line.level for line in self.lines}
        return next(level for level in ("error", "warning", "ok") if level in levels)

    def __str__(self) -> str:
        "One line each."
        return "\n".join(map(str, self.lines))


# %%
mixed = Report(
    (Line("ok", "torch", "2.13.0"), Line("warning", "disk", "1 GB free; delete old runs"))
)
test_eq(mixed.worst, "warning")
print(mixed)


# %% [markdown]
# ## The questions
#
# Each is a small function that answers with one line. A question that cannot be answered (no `sysconf` on Windows) is no error.

# %%
#| export
def machine(config: Config) -> Line:
    "System, cores and memory."
    cores = f"{os.cpu_count()} cores"
    try:
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
        memory = f", {size:.0f} GB memory"
    except (AttributeError, ValueError, OSError):
        memory = ""
    system = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    return Line("ok", "machine", f"{system}, {cores}{memory}")


def place(config: Config) -> Line:
    "Colab, Kaggle or here."
    return Line("ok", "place", where().note)


# %%
config = Config(device="cpu")
print(machine(config))
print(place(config))


# %% [markdown]
# The accelerator is what most people want to know about, and `auto` explains itself.

# %%
#| export
def accelerator(config: Config) -> Line:
    "The device that a run would take, and why it is none better."
    try:
        device = opened(config)
    except UserError as error:
        return Line("error", "accelerator", str(error))
    if device.precision == "bf16" and not device.has_bf16():
        slow = "this chip only emulates bf16; write --precision fp32 (or auto)"
        return Line("warning", "accelerator", f"{device.why}; {slow}")
    if device.kind == "cpu" and config.device == "auto":
        built = "torch is built without CUDA" if not torch.version.cuda else "torch finds no GPU"
        hint = f"{device.why} ({built}; 400 epochs take a GPU, a first look does not)"
        return Line("ok", "accelerator", hint)
    return Line("ok", "accelerator", device.why)


def batch(config: Config) -> Line:
    "How many images of a batch each device gets, or that it cannot be cut so."
    try:
        device = opened(config)
    except UserError:  # said already
        return Line("ok", "batch", f"{config.batch_size} images per step")
    world = device.world if device.compiles else max(config.num_devices, 1)
    text = f"{config.batch_size} images per step"
    if config.batch_size % world:
        return Line("warning", "batch", f"{text}, and {world} devices; write a multiple of {world}")
    shared = f", {config.batch_size // world} for each of {world} devices" if world > 1 else ""
    return Line("ok", "batch", text + shared)


def opened(config: Config) -> DeviceSteps:
    "The device of a run in one process."
    return open_device(config.device, config.precision, config.num_devices, config.debug_xla)


# %% [markdown]
# Versions that do not belong together are the most frequent fault of all.

# %%
#| export
def versions(config: Config) -> Line:
    "Versions of the packages that matter, and whether torch is recent enough."
    have = {name: installed(name) for name in PACKAGES}
    text = ", ".join(f"{name} {v}" for name, v in have.items() if v)
    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    if (major, minor) < (2, 8):
        return Line("warning", "versions", f"{text}; tested with torch 2.8 and newer")
    return Line("ok", "versions", text)


# %%
print(accelerator(config))
print(batch(config))
print(versions(config))
test_eq(batch(Config(device="cpu", num_devices=3, batch_size=8)).level, "warning")
test_eq(opened(config).kind, "cpu")


# %% [markdown]
# Space and data are the two things that fail late, so they are looked at early.

# %%
#| export
def disk(config: Config) -> Line:
    "Space where the run's folder will be; a run writes about 70 MB."
    folder = run_folder(config).resolve()
    there = next(p for p in (folder, *folder.parents) if p.exists())
    free = shutil.disk_usage(there).free / 2**30
    if free < 1:
        return Line("warning", "disk", f"{free:.1f} GB free; delete something or use --output-dir")
    return Line("ok", "disk", f"{free:.0f} GB free for {run_folder(config)}")


def data(config: Config) -> Line:
    "Whether the data set can be trained on."
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
print(disk(config))
print(data(config))
test_eq(data(Config(dataset_dir="no-such-folder")).level, "error")

# %% [markdown]
# ## All of them

# %%
#| export
QUESTIONS: tuple[Callable[[Config], Line], ...] = (
    machine,
    place,
    accelerator,
    batch,
    versions,
    disk,
    data,
)


def doctor(
    config: Config,
) -> Report:
    "Answer every question about this machine, for this configuration."
    return Report(tuple(question(config) for question in QUESTIONS))


# %%
found = doctor(Config(scenes=8, device="cpu"))
test_eq(len(found.lines), len(QUESTIONS))
print(found)

# %% [markdown]
# A device that is not there is an error with its remedy, and decides the exit status of `mshnet doctor`:

# %%
if not torch.cuda.is_available():
    test_eq(doctor(Config(device="cuda")).worst, "error")
    print(accelerator(Config(device="cuda")))
