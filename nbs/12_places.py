# %% [markdown]
# # Colab, Kaggle or your machine
#
# > Where the notebook runs, and what that means: folders, the length of a session, Google Drive.
#
# On Colab a run of ten hours is gone with the session, unless it was copied to Google Drive. Kaggle keeps one folder, and only if you save a version. Folders and time limits differ, too. This page has everything that depends on the service:
#
# | | data sets by name are searched in | run folders | kept after the session |
# |---|---|---|---|
# | Colab | `/content` | `/content/runs` | nothing, but Google Drive (the backup) |
# | Kaggle | `/kaggle/input` | `/kaggle/working/runs` | `/kaggle/working`, when the version is saved |
# | your machine | `data` | `runs` | everything |

# %%
#| hide
#| default_exp places
from mshnet.core import Config
from mshnet.places import run_folder, session_hours, where

# %%
#| export
import contextlib
import glob
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from mshnet.core import Settings, UserError, reason, run_name, shown

# %% [markdown]
# ## The same settings on three machines
#
# Both services set an environment variable in every session. Here we pretend to be on each machine in turn, on Kaggle with a TPU. Where would mshnet put a run with these settings, and after how many hours would it stop? (`here` is your machine.)

# %%
kaggle = {"KAGGLE_KERNEL_RUN_TYPE": "Batch", "TPU_WORKER_ID": "0"}
for environ in ({"COLAB_RELEASE_TAG": "x"}, kaggle, {}):
    place = where(environ)
    folder, hours = run_folder(Config(seed=1), place), session_hours(place, environ)
    print(f"{place.name}:{folder}, {hours} hours")


# %% [markdown]
# ## The machinery: where does the notebook run?
#
# A progress bar is drawn only where a person watches. Colab is always interactive. Kaggle reports whether a session is interactive or runs a saved version. On other machines Jupyter and Voila each set a variable in their kernels; a headless papermill sets neither. torchrun numbers its processes, and only the first one writes and prints (`say`). Later pages use the other helpers: `installed` for optional packages, `heartbeat` for lines during a long wait, `megabytes` for sizes.

# %%
#| export
@dataclass(frozen=True)
class Place:
    "A kind of machine and its folders."

    name: str  # "colab", "kaggle" or "here"
    data: Path  # where data sets are looked for by name
    runs: Path  # where run folders are made
    note: str  # one line for the user, printed by the doctor
    tpu: str = "a Google Cloud TPU VM has one"  # how to get a TPU there
    local: Path = Path("data")  # where data sets are unpacked and downloaded, on the local disk
    hours: float = math.inf  # length of a session, less half an hour to end it well
    tpu_hours: float = math.inf  # the same with a TPU, if shorter


DRIVE = Path("/content/drive")  # Google Drive in Colab, once it is mounted
MY_DRIVE = DRIVE / "MyDrive"
MOUNT = "run `from mshnet.places import mount_drive; mount_drive()` in a cell, and allow it"

COLAB = Place(
    name="colab",
    data=Path("/content"),
    runs=Path("/content/runs"),
    note="Colab: /content is deleted with the session; copy what you want to keep",
    tpu="choose Runtime, Change runtime type, v5e-1 TPU",
    local=Path("/content/data"),
    hours=11.5,
)
KAGGLE = Place(
    name="kaggle",
    data=Path("/kaggle/input"),
    runs=Path("/kaggle/working/runs"),
    note="Kaggle: /kaggle/working is kept as the notebook's output when it is saved",
    tpu="choose Session options, Accelerator, TPU v5e-8",
    local=Path("/tmp/mshnet-data"),
    hours=11.5,
    tpu_hours=8.5,
)
HERE = Place("here", Path("data"), Path("runs"), "this machine: folders begin where you started")


def where(environ: Mapping[str, str] = os.environ) -> Place:
    "The kind of machine that this process runs on."
    if "KAGGLE_KERNEL_RUN_TYPE" in environ:  # checked first: Kaggle's image is built on Colab's
        return KAGGLE
    return COLAB if "COLAB_RELEASE_TAG" in environ or "COLAB_GPU" in environ else HERE


def interactive() -> bool:
    "Whether a person watches this notebook."
    if where() == KAGGLE:
        return os.environ["KAGGLE_KERNEL_RUN_TYPE"] == "Interactive"
    return where() == COLAB or bool(os.environ.keys() & {"JPY_SESSION_NAME", "VOILA_BASE_URL"})


def installed(package: str) -> str | None:
    "Version of a package, without importing it; None if it is not installed."
    with contextlib.suppress(PackageNotFoundError):
        return version(package)
    return None


def first_process() -> bool:
    "Whether this process writes and prints; of several processes only one does."
    return os.environ.get("RANK", "0") == "0"


def say(text: str, file: Any = None) -> None:  # None: on stdout
    "Print a line, from the first process only; nothing if the terminal is gone."
    if first_process():
        with contextlib.suppress(OSError, ValueError):
            print(text, file=file, flush=True)


@contextlib.contextmanager
def heartbeat(
    report: Callable[[float], object],  # called with the seconds so far
    every: float,  # seconds between two calls; the first comes after 5 at most
) -> Iterator[None]:
    "Report from time to time how long something has taken, while it runs."
    done, start = threading.Event(), time.monotonic()

    def speak() -> None:
        wait = min(every, 5.0)
        while not done.wait(wait):
            report(time.monotonic() - start)
            wait = every

    thread = threading.Thread(target=speak, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def megabytes(size: float) -> str:
    "A number of bytes as text: in megabytes, or in kilobytes where it is less than one."
    number, unit = (size / 1e6, "MB") if size >= 1e6 else (size / 1e3, "kB")
    return f"{number:.0f} {unit}" if number >= 10 else f"{number:.1f} {unit}"


# %% [markdown]
# A run has one folder: `output_dir`, else that of the run to resume, else one that is named after the recipe, in the run folders of the table above.
#
# Colab ends a session after at most 12 hours; Kaggle after 12, and after 9 with a TPU. These are the services' numbers of 2025, which may change and were not tried here; `max_hours` overrules them. The variables of a TPU's runtime show whether Kaggle gave one.
#
# | `max_hours` | a run stops |
# |---|---|
# | not set | half an hour before the service's limit, counted from the start of this process |
# | earlier than this limit | after these hours of this command, at the latest as in the first row |
# | later than this limit | after these hours, counted from the start of this process |
#
# A restarted kernel counts from zero although its session does not: set `max_hours` to the remaining hours minus 0.5.

# %%
#| export
def run_folder(config: Settings, place: Place | None = None) -> Path:
    "The folder of this run; UserError if `resume` names no run, or one in another folder."
    assert_mounted(config.output_dir, config.resume, place=place)
    asked, start = Path(config.output_dir).expanduser(), Path(config.resume).expanduser()
    if not config.resume:
        return asked if config.output_dir else (place or where()).runs / run_name(config)
    folder = start if start.is_dir() else start.parent
    if not has_checkpoint(folder) or not os.access(folder, os.W_OK):
        todo = "(copy a read-only one first); leave out --resume: the same settings find a run"
        raise UserError(f"resume={shown(config.resume)}: no run to resume here {todo}")
    if start.name != "last.pt" and folder != start:
        raise UserError(f"resume={shown(config.resume)}: use a run folder or its last.pt")
    if config.output_dir and asked.resolve() != folder.resolve():
        what = f"output_dir={shown(config.output_dir)}: a run resumes in its own folder, {folder}"
        raise UserError(f"{what}; leave out --output-dir, or copy the run and resume the copy")
    return folder


def has_checkpoint(folder: Path) -> bool:
    "Whether this folder holds a checkpoint; OSError if it cannot be reached."
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return not {"last.pt", "previous.pt"}.isdisjoint(os.listdir(folder))
    return False


def session_hours(place: Place | None = None, environ: Mapping[str, str] = os.environ) -> float:
    "Hours after which a session should end by itself; infinite where sessions do not end."
    place = place or where(environ)
    signs = ("TPU_WORKER_ID", "TPU_ACCELERATOR_TYPE", "TPU_NAME", "TPU_PROCESS_ADDRESSES")
    tpu = environ.get("PJRT_DEVICE") == "TPU" or any(name in environ for name in signs)
    return min(place.hours, place.tpu_hours) if tpu else place.hours


BEGUN = time.monotonic()  # of this process; time of day is used only here
with contextlib.suppress(Exception):  # a system that does not report it
    began = float(os.environ.get("MSHNET_BEGUN") or psutil.Process().create_time())
    BEGUN -= max(0, time.time() - began)


def session_seconds() -> float:
    "Seconds since this process began."
    return time.monotonic() - BEGUN


# %% [markdown]
# ### Google Drive, and how it hangs
#
# If the connection to the Drive hangs, even the check whether it is mounted blocks, in a system call that Python cannot interrupt. Therefore a daemon thread makes the check, and we wait a limited time. A Drive that does not respond counts as not mounted.
#
# Mounting opens a window that asks for permission. If the user closes it, or a company's account forbids it, `google.colab.drive.mount` raises one of several exceptions. The notebook's stop button ends the wait. The result is one line, and training continues if only the backup is on the Drive. (We had no Colab. The tests use a mock object that behaves as its public source does.)

# %%
#| export
def is_mounted(timeout: float = 20.0) -> bool:
    "Whether Google Drive is there and answers within so many seconds."
    answers: list[bool] = []
    asked = threading.Thread(target=lambda: answers.append(os.path.ismount(DRIVE)), daemon=True)
    asked.start()
    asked.join(timeout)
    return answers == [True]


def on_drive(path: Path) -> bool:
    "Whether a path leads to Google Drive."
    return Path(os.path.abspath(path)).is_relative_to(DRIVE)


def assert_mounted(*paths: str | Path, place: Place | None = None) -> None:
    "UserError if one of these is on a Google Drive that is not mounted."
    for path in [Path(path) for path in paths if path]:
        if on_drive(path) and (place or where()).name == "colab" and not is_mounted():
            raise UserError(f"{path}: Google Drive is not mounted; {MOUNT}")


def mount_drive(place: Place | None = None, timeout: float = 120.0) -> str:
    "Mount Google Drive in Colab, if the user allows it within so many seconds; one line of it."
    if (place or where()).name != "colab":
        return "Google Drive is mounted in Colab only"
    if is_mounted():
        return f"Google Drive is mounted already: {MY_DRIVE}"
    try:
        from google.colab import drive

        drive.mount(str(DRIVE), timeout_ms=int(1000 * timeout))
        if not is_mounted():
            raise OSError(f"there is no {MY_DRIVE}")
    except Exception as error:  # it raises many kinds
        what = "no data or results there, and Colab deletes its disk after the session"
        return f"Google Drive is not mounted ({reason(error)}): {what}; {MOUNT}"
    return f"Google Drive is mounted: {MY_DRIVE}"


# %% [markdown]
# ### The folders of a run
#
# With `mirror_dir` a run is copied to a second folder, its backup ([backup](15_mirror.ipynb)). If the Drive is not mounted, we copy nothing and report that, because a folder made in its place would lie on the disk that is deleted. In Colab a notebook starts in `/content`, where the Drive is mounted, so `drive/MyDrive/copies` lies on the Drive. On Kaggle a copy may also lie in an earlier output that is attached as input. The example below the code has a run with a backup on a USB stick, and one in Colab whose user closed the window of the Drive.

# %%
#| export
class Site(NamedTuple):
    "Where a run lies, where it is copied to, and how long it may take here."

    folder: Path
    mirror: Path | None  # folder of its backup; None: its files are not copied
    copies: list[Path]  # folders that may hold a copy of it, to restore it from
    seconds: float  # that the run may still take; infinite where sessions do not end
    hours: float  # the limit that ends the run, for its message
    note: str = ""  # what is wrong with the backup that is wanted


def site_of(config: Settings, place: Place | None = None, mount: bool = True) -> Site:
    "The site of a run, after mounting the Drive if it needs one; UserError for a wrong mirror."
    place = place or where()
    if mount and not _drive_refused:
        ask_for_drive(config)
    folder = run_folder(config, place)
    mirror, note = _backup_folder(config, place, Path(os.path.abspath(folder)))
    attached = _attached(place, Path(os.path.abspath(folder)))
    copies = [] if config.resume else [*filter(None, [mirror]), *attached]
    session = max(session_hours(place), config.max_hours)  # more hours replace those of the service
    asked, left = 3600 * config.max_hours or math.inf, 3600 * session - session_seconds()
    seconds, hours = (asked, config.max_hours) if asked <= left else (left, session)
    return Site(folder, mirror, copies, seconds, hours, note)


_drive_refused: list[str] = []  # why the Drive was not mounted; training does not ask again


def ask_for_drive(config: Settings) -> None:
    "Mount Google Drive in Colab if the data, the run, its weights or its backup lie there."
    place = where()
    named = (config.dataset_dir, config.weight_path, config.output_dir, config.resume)
    folders = filter(None, (*map(Path, named), _backup_root(config, place)))
    if place.name == "colab" and any(map(on_drive, folders)) and not is_mounted():
        say(line := mount_drive())
        _drive_refused[:] = [] if is_mounted() else [line]


def _backup_root(config: Settings, place: Place) -> Path | None:
    "The folder of all backups; None if there is no Drive."
    if config.mirror_dir == "drive":
        return MY_DRIVE / "mshnet" if place.name == "colab" else None
    return Path(os.path.abspath(os.path.expanduser(config.mirror_dir)))


def _backup_folder(config: Settings, place: Place, folder: Path) -> tuple[Path | None, str]:
    "The backup folder of a run, and what is wrong with it; UserError if it is the run folder."
    if not config.mirror_dir:
        return None, ""
    parent = _backup_root(config, place)
    if not parent or (on_drive(parent) and not is_mounted()):
        why = "is not mounted" if parent else "is mounted in Colab only"
        return None, f"mirror  Google Drive {why}: results stay in {folder}"
    target = parent / folder.name
    real, own = (Path(os.path.realpath(path)) for path in (target, folder))
    if folder in (target, *target.parents) or own in (real, *real.parents):
        todo = "use another" + (", or leave out resume to restore it" if config.resume else "")
        raise UserError(f"mirror_dir={shown(config.mirror_dir)}: is the run folder; {todo}")
    lost, disk = "is on the disk of the run; if you meant another, mount that one", own
    if place.name == "colab":
        lost, disk = "is deleted with the session; use --mirror-dir drive", place.runs
    kept = on_drive(parent) or _disk_of(parent) != _disk_of(disk)
    return target, "" if kept else f"mirror  {parent} {lost}"


def _disk_of(path: Path) -> int:
    "The disk of a path that may not exist yet."
    for folder in (path, *path.parents):
        with contextlib.suppress(OSError):  # not there, or not reachable: as if not mounted
            return folder.stat().st_dev
    return -1


def _attached(place: Place, folder: Path) -> list[Path]:
    "The folders of a run in outputs that are attached on Kaggle."
    kept = place.runs.parent  # the output of a notebook
    name = folder.relative_to(kept) if folder.is_relative_to(kept) else Path("runs", folder.name)
    tops = ("*", "*/*", "notebooks/*/*") if place.name == "kaggle" else ()
    names = [glob.escape(str(each)) for each in (name, folder.name)]  # or of a packed run
    return sorted({p for top in tops for each in names for p in place.data.glob(f"{top}/{each}")})


# %%
stick = Config(mirror_dir="/media/stick", output_dir="runs/mine", max_hours=2)
ask_for_drive(stick)  # asks nothing: neither the data nor the backup are on the Drive
site = site_of(stick)
print(f"{site.folder} is copied to {site.mirror}, and stops after {site.hours} hours")
drive = Config(mirror_dir="drive", output_dir="/content/runs/mine")
colab = site_of(drive, COLAB, mount=False)
hours = (colab.seconds + session_seconds()) / 3600
print(f"Colab, {hours:.1f} hours from the start:", colab.note.split(":")[0])

# %% [markdown]
# ## Questions
#
# 1. On Kaggle with a TPU, a run has `max_hours=20`. What happens after 9 hours, and what would happen without `max_hours`?
#    <details><summary>Answer</summary>Kaggle ends the session while the run trains, and may drop its files: <code>max_hours</code> overrules the hours of the service. Without it the run saves and stops after 8.5 hours, and the same command resumes it.</details>
