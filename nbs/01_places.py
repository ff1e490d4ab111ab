# %% [markdown]
# # places
#
# > Where the notebook runs, and which folders that means: Colab, Kaggle, or the machine in front of you.

# %%
#| default_exp places

# %%
#| hide
import io

from fastcore.test import expect_fail, test_eq

from mshnet.core import Config

# %%
#| export
import contextlib
import errno
import glob
import hashlib
import math
import os
import re
import shutil
import signal
import stat
import sys
import tarfile
import tempfile
import threading
import time
import uuid
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from tqdm import tqdm

from mshnet.core import (
    ChangedMeanwhile,
    PlaceFields,
    Settings,
    Stamp,
    UserError,
    copy_file,
    did_you_mean,
    digest,
    locked,
    read_record,
    run_name,
    shown,
    stamp,
)


# %% [markdown]
# Colab and Kaggle are Linux machines with two habits. Their fixed folders differ, and they delete what is not in the right folder when the session ends. Everything that depends on this is in this notebook, and the rest of the suite asks here.

# %%
#| export
@dataclass(frozen=True)
class Place:
    "A kind of machine and its folders."

    name: str  # "colab", "kaggle" or "here"
    data: Path  # where data sets are looked for by name
    runs: Path  # where run folders are made
    note: str  # what the user should know about it
    tpu: str = "a Google Cloud TPU VM has one"  # how to get a TPU there
    local: Path = Path("data")  # where data sets are unpacked and downloaded, on the local disk
    hours: float = math.inf  # that a session lasts, less half an hour to end it well
    tpu_hours: float = math.inf  # the same with a TPU
    drive: Path | None = None  # where Google Drive is once it is mounted


DRIVE = Path("/content/drive")
MY_DRIVE = DRIVE / "MyDrive"

COLAB = Place(
    "colab",
    Path("/content"),
    Path("/content/runs"),
    "Colab: /content is deleted with the session; copy what you want to keep",
    "choose Runtime, Change runtime type, v5e-1 TPU",
    Path("/content/data"),
    hours=11.5,
    tpu_hours=11.5,
    drive=MY_DRIVE,
)
KAGGLE = Place(
    "kaggle",
    Path("/kaggle/input"),
    Path("/kaggle/working/runs"),
    "Kaggle: /kaggle/working is kept as the notebook's output when it is saved",
    "choose Session options, Accelerator, TPU v5e-8",
    Path("/tmp/mshnet-data"),
    hours=11.5,
    tpu_hours=8.5,
)
HERE = Place(
    "here", Path("data"), Path("runs"), "this machine: folders are relative to where you started"
)


# %% [markdown]
# Both services set a variable of their own in every session. The same notebook runs with somebody before it and headless under papermill. Colab is always watched. Kaggle reports whether a session is interactive or a saved version being run. Jupyter names the session to its kernels, and Voila (which shows a notebook as a page) its address. Under papermill both are missing.

# %%
#| export
def where(environ: Mapping[str, str] = os.environ) -> Place:
    "The place this process runs in."
    if "KAGGLE_KERNEL_RUN_TYPE" in environ:  # checked first: Kaggle's image is built on Colab's
        return KAGGLE
    if "COLAB_RELEASE_TAG" in environ or "COLAB_GPU" in environ:
        return COLAB
    return HERE


def interactive(environ: Mapping[str, str] = os.environ) -> bool:
    "Whether somebody sits before this notebook."
    if where(environ) == KAGGLE:
        return environ["KAGGLE_KERNEL_RUN_TYPE"] == "Interactive"
    servers = ("JPY_SESSION_NAME", "VOILA_BASE_URL")
    return where(environ) == COLAB or any(name in environ for name in servers)


# %%
test_eq(where({"COLAB_RELEASE_TAG": "release"}), COLAB)
test_eq(where({"KAGGLE_KERNEL_RUN_TYPE": "Interactive", "COLAB_RELEASE_TAG": "release"}), KAGGLE)
test_eq(where({}), HERE)
names = ("A", "JPY_SESSION_NAME", "VOILA_BASE_URL", "COLAB_GPU")
test_eq([interactive({name: "x"}) for name in names], [False, True, True, True])
where().note


# %% [markdown]
# Kaggle's TPU machines set two variables of an older kind of TPU. With them the runtime waits for workers that do not exist ("Expected 4 worker addresses, got 1"), so we remove them before the runtime starts. On a real TPU pod the same variables hold addresses and are right. We therefore remove them on Kaggle, and elsewhere only if they hold the word "local". Two more functions describe the surroundings of this process: which packages are installed, and whether torchrun started several processes, of which the first alone writes and prints.

# %%
#| export
def forget_stale_tpu(environ: MutableMapping[str, str] = os.environ) -> list[str]:
    "Remove stale TPU variables, and return their names; leave those of a pod."
    stale = ("TPU_PROCESS_ADDRESSES", "CLOUD_TPU_TASK_ID")
    if where(environ) != KAGGLE and environ.get("TPU_PROCESS_ADDRESSES") != "local":
        return []
    return [name for name in stale if environ.pop(name, None) is not None]


def installed(package: str) -> str | None:
    "Version of a package, without importing it; None if it is not installed."
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def first_process(environ: Mapping[str, str] = os.environ) -> bool:
    "Whether this process is the one that writes and prints; others exist under torchrun only."
    return environ.get("RANK", "0") == "0"


def say(text: str) -> None:
    "Print a line for the user, from the first process only."
    if first_process():
        print(text, flush=True)


def megabytes(size: float) -> str:
    "A number of bytes for people."
    return f"{size / 1e6:.0f} MB" if size >= 1e7 else f"{size / 1e6:.1f} MB"


# %%
kaggle_tpu = {"KAGGLE_KERNEL_RUN_TYPE": "Batch", "TPU_PROCESS_ADDRESSES": "local"}
test_eq(forget_stale_tpu(kaggle_tpu), ["TPU_PROCESS_ADDRESSES"])
test_eq(forget_stale_tpu({"TPU_PROCESS_ADDRESSES": "10.0.0.1:8476"}), [])
assert installed("torch") and installed("no-such-package") is None
test_eq([first_process(e) for e in ({}, {"RANK": "0"}, {"RANK": "3"})], [True, True, False])
say(f"data    {megabytes(14_658_415)}")

# %% [markdown]
# ## Errors that are not ours
#
# The work of this notebook is done by disks, archives and servers, and each fails in its own way. The user needs two things: the reason, and what to do next. A disk that is full, read-only or gone raises an `OSError` with a number. Everything else comes from bytes that make no sense or from a library, which may raise any exception. So we have two translators. Both raise a `UserError` of one line, and the second lets the errors of disks pass to the first, because downloading an archive again does not help against a full disk.

# %%
#| export
BAD_BYTES = (None, errno.EINVAL, errno.EEXIST, errno.EISDIR, errno.ENOTDIR)  # no disk's fault


def _reason(error: Exception) -> str:
    "The reason in an exception, in one line; its kind if it gives none."
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return "the disk is full"
    return " ".join(str(error).split(":\n")[0].split()) or type(error).__name__  # no list below it


@contextlib.contextmanager
def disk_errors(what: str) -> Iterator[None]:
    "Turn what a disk refuses into a UserError, which begins with what failed."
    try:
        yield
    except OSError as error:
        todo = "make room, permit it, or mount the disk again"
        raise UserError(f"{what} ({_reason(error)}); {todo}") from None


@contextlib.contextmanager
def foreign_errors(what: str, todo: str) -> Iterator[None]:
    "Turn whatever a library raises into a UserError of what failed and what to do."
    try:
        yield
    except Exception as error:
        from_disk = isinstance(error, OSError) and error.errno not in BAD_BYTES
        if from_disk or isinstance(error, UserError):
            raise
        raise UserError(f"{what} ({_reason(error)}); {todo}") from None


# %%
with expect_fail(UserError, contains="data (the disk is full); make room"), disk_errors("data"):
    raise OSError(errno.ENOSPC, "No space left on device")
with expect_fail(UserError, contains="(EOFError); copy it"), foreign_errors("a.zip", "copy it"):
    raise EOFError


# %% [markdown]
# ## Google Drive
#
# Colab deletes its own disk with the session; Google Drive stays. A Drive whose connection hangs can block even the question whether it is there. That question waits in the kernel, where no signal of Python reaches it, so we ask in a daemon thread and wait for its answer for a limited time. A Drive that does not answer counts as not mounted.
#
# Mounting asks the user for permission in a window. The user may close the window, the account may belong to a company that forbids it, or nobody may be there. `google.colab.drive.mount` raises exceptions of several kinds for that. In the version that we read it also waits for the window without end, whatever its `timeout_ms`. This wait is a loop in Python, so an alarm ends it (in the main thread, where the cells of a notebook run).
#
# Whatever happens, the result is one line, and training continues without the Drive. (We had no Colab. We read the contract in its public source, and the tests have a stand-in that keeps it.)

# %%
#| export
def is_mounted(drive: Path, patience: float = 20.0) -> bool:
    "Whether Google Drive is there, and answers within so many seconds."
    answers: list[bool] = []
    asked = threading.Thread(target=lambda: answers.append(os.path.isdir(drive)), daemon=True)
    asked.start()
    asked.join(patience)
    return answers == [True]


def _on_drive(path: Path) -> bool:
    "Whether a path leads to Google Drive."
    return Path(os.path.abspath(path)).is_relative_to(DRIVE)


class Mounted(NamedTuple):
    "The result of mounting Google Drive."

    folder: Path | None  # the user's own part of it; None: it is not there
    line: str  # what that means, and what to do


@contextlib.contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    "Raise TimeoutError in Python code that takes longer, where an alarm can be set."
    main = threading.current_thread() is threading.main_thread()
    if not main or not hasattr(signal, "setitimer"):
        yield
        return

    def ring(*_: Any) -> None:
        raise TimeoutError(f"no answer in {seconds:.0f} seconds")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def mount_drive(place: Place | None = None, timeout: float = 120.0) -> Mounted:
    "Mount Google Drive in Colab, if the user allows it within so many seconds; else report why."
    if (place or where()).name != "colab":
        return Mounted(None, "Google Drive is mounted in Colab only; here nothing is done")
    if is_mounted(MY_DRIVE):
        return Mounted(MY_DRIVE, f"Google Drive is mounted already: {MY_DRIVE}")
    try:
        with _at_most(1.2 * timeout):  # its own limit first
            from google.colab import drive

            drive.mount(str(DRIVE), timeout_ms=int(1000 * timeout))
        if not is_mounted(MY_DRIVE):
            raise OSError(f"there is no {MY_DRIVE}")
    except Exception as error:  # it raises many kinds
        what = "nothing can be read or kept there, and Colab deletes its own disk in the end"
        todo = "run `from mshnet.places import mount_drive; mount_drive()` in a cell, and allow it"
        return Mounted(None, f"Google Drive is not mounted ({_reason(error)}): {what}; {todo}")
    return Mounted(MY_DRIVE, f"Google Drive is mounted: {MY_DRIVE}")


# %%
test_eq([is_mounted(Path(name)) for name in (".", "no/such/folder")], [True, False])
mounted: Mounted = mount_drive(HERE)
mounted.line

# %% [markdown]
# ## Data on the local disk
#
# A data set of this field is a thousand small files. From a mounted Drive each takes a good part of a second to open, in every epoch; an archive of them takes that time once. So we unpack archives to the local disk, and copy loose files on Drive there, once. On Colab that disk is `/content/data`. On Kaggle it is `/tmp/mshnet-data`, because everything below `/kaggle/working` is kept as the notebook's output, a thousand files and all. Elsewhere it is `data`. The results go to a folder `unpacked` in it, which the search by name leaves out: it may hold a part of an archive, or what a folder on Drive held last week.
#
# Several processes that share a machine (one per GPU) all come here at the same time. The first gets the lock and fills a scratch folder; the rename at the end happens or does not. If a process is killed halfway, the system releases its lock, and the next process throws the half away and begins again.

# %%
#| export
UNPACKED = "unpacked"  # the folder of its own, below the place's local one
BLOCK = 4096  # bytes that the smallest file takes on a disk


@contextlib.contextmanager
def made_once(target: Path) -> Iterator[Path | None]:
    """Make a file or a folder as a whole or not at all, in one process of this machine.

    Yields the path to make it at, in a scratch folder, or None if the target is there already.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = target.with_name(f".{target.name}.partial")
    with locked(target.with_name(f".{target.name}.lock")):
        if target.exists():
            yield None
            return
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        try:
            yield scratch / target.name
            os.replace(scratch / target.name, target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _make_room(folder: Path, size: float, what: str) -> None:
    "UserError unless so many bytes are free on the disk of a folder, which need not exist yet."
    there = next(p for p in (folder.absolute(), *folder.absolute().parents) if p.exists())
    free = shutil.disk_usage(there).free
    if size > free:
        raise UserError(
            f"{what}: needs {megabytes(size)} and {folder} has {megabytes(free)} free; make room"
        )


def _watched() -> bool:
    "Whether somebody sees a progress bar of this process."
    return first_process() and (interactive() or sys.stderr.isatty())


# %%
with tempfile.TemporaryDirectory() as tmp:
    target = Path(tmp) / "set"
    with expect_fail(KeyboardInterrupt), made_once(target) as new:
        new.mkdir()
        raise KeyboardInterrupt
    assert not target.exists()
    with made_once(target) as new:
        new.mkdir()
    with made_once(target) as new:
        test_eq((new, target.is_dir()), (None, True))

# %% [markdown]
# ## Archives
#
# Python's `zipfile` and `tarfile` unpack, and `zipfile` compares every checksum. But an archive is a stranger's word on how much to write, and where. A kilobyte can hold a terabyte of zeros, and a member can be called `../../.bashrc` or be a link to elsewhere through which the next member is written. So we look at all members before any is written, and refuse the archive as a whole: nobody makes such members by mistake in a data set. Images hardly shrink; masks do, but they are small. An archive that would grow to a hundred times its size and beyond a gigabyte is no data set. tarfile's own `data` filter stands behind this as a second check.
#
# To the first look `.zip` and `.tar` come to the same: members with a name, a size, and perhaps a fault. It writes nothing, and it leaves out the files that macOS adds for itself (`__MACOSX/`, `.DS_Store`).

# %%
#| export
ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz")
MOST_FILES = 1_000_000
MOST_GROWTH, GROWN = 100, 1_000_000_000  # times the archive, where that is more than these bytes


class _Header(tarfile.TarInfo):
    "The header of a tar's member; an impossible size neither loops nor fills the memory."

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_Header":
        header = super().frombuf(buf, encoding, errors)
        if header.size < 0 or (not header.isreg() and header.size > 1 << 20):
            raise tarfile.ReadError("impossible size")
        return header


def _open_archive(file: Path) -> zipfile.ZipFile | tarfile.TarFile:
    "Open an archive by its first bytes, whatever it is called."
    with open(file, "rb") as start:
        zipped = start.read(4) in (b"PK\3\4", b"PK\5\6")
    zipped = zipped or (file.suffix.lower() == ".zip" and zipfile.is_zipfile(file))
    return zipfile.ZipFile(file) if zipped else tarfile.open(file, tarinfo=_Header)


def _zip_members(box: zipfile.ZipFile) -> Iterator[tuple[Any, str, int, str]]:
    "Each member of a .zip, its name, its size and its fault, if it has one."
    for info in box.infolist():
        info.filename = info.filename.replace("\\", "/")  # as some tools of Windows write
        form, fault = stat.S_IFMT(info.external_attr >> 16), ""  # form 0: no Unix made it
        if not info.is_dir() and form not in (0, stat.S_IFREG, stat.S_IFDIR):
            fault = "is a link or a device"
        if info.flag_bits & 1 or info.compress_type not in (0, zipfile.ZIP_DEFLATED):
            fault = "is encrypted or packed in an unusual way"
        yield info, info.filename, info.file_size, fault


def _tar_members(box: tarfile.TarFile) -> Iterator[tuple[Any, str, int, str]]:
    "Each member of a .tar, its name, its size and its fault; damaged ends raise ReadError."
    for header in box:
        fault = "" if header.isreg() or header.isdir() else "is a link or a device"
        if header.size < 0:  # an extended header may state it
            fault = "has an impossible size"
        header.name = header.name.replace("\\", "/")
        yield header, header.name, header.size, fault
    rest: Any = box.fileobj
    rest.seek(end := box.offset)  # type: ignore[attr-defined]
    if rest.read(512) != bytes(512):  # tarfile takes a damaged header for the end
        raise tarfile.ReadError(f"damaged after {end} bytes")
    if len(rest.read(1 << 24)) == 1 << 24:  # gzip compares its checksum at the very end
        raise tarfile.ReadError(f"it does not end after its last member, at {end} bytes")


def _is_junk(name: str) -> bool:
    "Whether macOS put a file there for itself."
    parts = name.rstrip("/").split("/")
    return "__MACOSX" in parts or parts[-1] == ".DS_Store" or parts[-1].startswith("._")


def _why_refused(name: str) -> str:
    "What is wrong with the name of a member; empty: nothing."
    parts = name.split("/")
    if name.startswith("/") or re.match("[A-Za-z]:", name):
        return "has an absolute path"
    if ".." in parts:
        return "leads out of its folder"
    if any(len(part.encode("utf-8", "replace")) > 255 for part in parts):
        return "has a name that no file can have"
    return "lies in more than 50 folders" if len(parts) > 51 else ""


def _look_through(archive: Path, box: zipfile.ZipFile | tarfile.TarFile) -> tuple[list[Any], int]:
    "The members to unpack, and the bytes that they fill; UserError if one is dangerous."
    kept, filled, packed = [], 0, archive.stat().st_size
    members = _zip_members(box) if isinstance(box, zipfile.ZipFile) else _tar_members(box)
    for count, (member, name, size, why) in enumerate(members, 1):
        filled += size + BLOCK  # a file fills its last block
        why = why or _why_refused(name)
        if count > MOST_FILES or filled > max(GROWN, MOST_GROWTH * packed):
            why = f"is too much: {megabytes(packed)} would become {megabytes(filled)} or more"
        if why:
            what = f"{archive.name}: refused, its member {shown(name)} {why}"
            raise UserError(f"{what}; unpack it by hand if you trust it")
        if not _is_junk(name):
            kept.append(member)
    if not kept:
        raise UserError(f"{archive.name}: holds no file")
    return kept, filled


# %% [markdown]
# The folder is named after the archive and eight digits that stand for its path, size and time, so that another archive of the same name gets another folder. Many archives wrap everything in one folder (`sirst-master/`): then that folder is the data set. An archive on Drive is copied first, because it would be read twice there, and the Drive may be gone before the second time.

# %%
#| export
def unpack(archive: Path, local: Path) -> Path:
    "The data set in an archive, unpacked below `local` the first time; UserError if it is bad."
    name = re.sub(r"(\.zip|\.tar|\.tar\.gz|\.tgz)$", "", archive.name, flags=re.I) or "archive"
    with disk_errors(f"{archive}: cannot be unpacked to {local}"):
        about = archive.stat()
        identity = f"{archive.resolve()} {about.st_size} {about.st_mtime_ns}"
        digits = hashlib.sha256(identity.encode()).hexdigest()[:8]
        target = local / UNPACKED / f"{name}-{digits}"
        with made_once(target) as new:
            if new:
                near = archive
                if _on_drive(archive):
                    _make_room(local, about.st_size, archive.name)
                    say(f"data    copying {archive.name} from Google Drive")
                    near = Path(shutil.copyfile(archive, new.with_name(archive.name)))
                damaged = f"{archive}: damaged, or no archive"
                with foreign_errors(damaged, "copy or fetch it again, or unpack it by hand"):
                    _extract(near, new / name, local)
                say(f"data    unpacked {archive.name} to {target}; the next start finds it there")
    return _innermost(target)


def _extract(archive: Path, folder: Path, local: Path) -> None:
    "Look through an archive and unpack it."
    with _open_archive(archive) as box:
        members, size = _look_through(archive, box)
        _make_room(local, size, archive.name)
        say(f"data    unpacking {archive.name}: {len(members)} members, {megabytes(size)}")
        if isinstance(box, tarfile.TarFile):  # Python 3.11.3 and older have no filter
            box.extraction_filter = getattr(tarfile, "data_filter", None)
        box.extractall(folder, tqdm(members, disable=not _watched(), leave=False))


def _innermost(folder: Path) -> Path:
    "The folder itself, or the only folder in the only folder in it."
    while True:
        inside = [path for path in folder.iterdir() if not _is_junk(path.name)]
        if len(inside) != 1 or not inside[0].is_dir():
            return folder
        folder = inside[0]


# %%
with tempfile.TemporaryDirectory() as tmp:
    archive = Path(tmp) / "sirst.zip"
    with zipfile.ZipFile(archive, "w") as box:
        box.writestr("sirst-master/images/a.png", "a")
        box.writestr("sirst-master/masks/a.png", "b")
        box.writestr("__MACOSX/._a.png", "c")
    found = unpack(archive, Path(tmp) / "data")
    test_eq(sorted(p.name for p in found.rglob("*.png")), ["a.png", "a.png"])
    test_eq((unpack(archive, Path(tmp) / "data"), found.name), (found, "sirst-master"))

# %% [markdown]
# An archive that would write elsewhere is refused as a whole, and so is a file that is no archive:

# %%
with tempfile.TemporaryDirectory() as tmp:
    evil, page = Path(tmp) / "evil.tar.gz", Path(tmp) / "page.zip"
    with tarfile.open(evil, "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("images/a.png"), io.BytesIO())
        tar.addfile(tarfile.TarInfo("../../.bashrc"), io.BytesIO())
    with expect_fail(UserError, contains="'../../.bashrc' leads out of its folder"):
        unpack(evil, Path(tmp) / "data")
    page.write_text("<html>a web page</html>")
    with expect_fail(UserError, contains="page.zip: damaged, or no archive"):
        unpack(page, Path(tmp) / "data")
    test_eq(list(Path(tmp).rglob("*.png")), [])


# %% [markdown]
# ## Loose files on Drive
#
# They are copied once, several at a time, since each waits for the network. The names, sizes and times of the files make the name of the copy, so a changed folder is copied anew.

# %%
#| export
def _copy_from_drive(folder: Path, local: Path) -> Path:
    "A copy of a folder on the local disk, made the first time; UserError if any part is missing."
    with disk_errors(f"{folder}: cannot be copied to {local}"):
        files = _files_below(folder)
        listed = [f"{name} {about.st_size} {about.st_mtime_ns}" for name, about in files.items()]
        digits = hashlib.sha256("\n".join(listed).encode()).hexdigest()[:8]
        size = sum(about.st_size + BLOCK for about in files.values())
        target = local / UNPACKED / f"{folder.name}-{digits}"
        with made_once(target) as new:
            if new:
                _make_room(local, size, folder.name)
                say(
                    f"data    copying {folder.name} from Google Drive: {len(files)} files, "
                    f"{megabytes(size)}, to {target}; a .zip of them would be much faster"
                )
                copy = new / folder.name
                for parent in {(copy / file).parent for file in files} | {copy}:
                    parent.mkdir(parents=True, exist_ok=True)
                with ThreadPoolExecutor(8) as pool:
                    copied = pool.map(lambda f: shutil.copyfile(folder / f, copy / f), files)
                    list(tqdm(copied, total=len(files), disable=not _watched(), leave=False))
    return target / folder.name


def _files_below(folder: Path) -> dict[Path, os.stat_result]:
    "The files of a folder by their paths in it; OSError if any part of it cannot be read."

    def stop(error: OSError) -> None:  # os.walk would leave the part out
        raise error

    walked = os.walk(folder, onerror=stop)
    found = sorted(Path(top) / name for top, _, names in walked for name in names)
    return {p.relative_to(folder): p.stat() for p in found if p.is_file()}


# %% [markdown]
# ## Downloaded by name
#
# Three data sets are known by name. We read where each lies from public pages, in stored copies of them. **Nothing was downloaded here**, so no checksum is known beforehand. Instead the checksum of the first download is stored beside it (`NAME.zip.sha256`), and every later download must have the same.
#
# - **NUAA-SIRST**, also called SIRST: the authors' repository YimianDai/sirst, as GitHub packs it, at the commit 84302ab that added the lists `idx_427` (its files are those in the index of that repository). These are the authors' own 341 and 86 images; the 213 and 214 that most papers use are not among them.
# - **IRSTD-1k**: the number on Google Drive in the README of the authors' repository RuiZhang97/ISNet at commit 89eb28e. (An older README, at 14c6bc8, has another number.) The README names the MIT licence.
# - **NUDT-SIRST**: the authors' README (YeRen123455/Infrared-Small-Target-Detection, 21584be) leads to Baidu, which asks for an account. The toolbox XinyiYing/BasicIRSTD packs three data sets with their lists in one file on Google Drive, whose number is in its README at 08185ad; NUDT-SIRST is taken out of that.
#
# None of them has a name on Kaggle that could be traced to its authors. Somebody's copy there is attached by the notebook's Add Input, and found by its folder's name.

# %%
#| export
@dataclass(frozen=True)
class Published:
    "A data set that others publish, at an address or on Google Drive."

    name: str
    page: str  # for people: what it is, how to get it by hand, its licence
    url: str = ""  # of an archive
    drive: str = ""  # number of an archive on Google Drive, where there is no url
    sha256: str = ""  # of the archive; empty: not known here
    inside: str = ""  # folder in the archive, where that holds more
    note: str = ""  # what to know before training on it
    other_names: tuple[str, ...] = ()

    @property
    def by_hand(self) -> str:
        "What to do where it cannot be downloaded."
        return f"get it by hand from {self.page} and write --dataset-dir FILE.zip"


KNOWN = (
    Published(
        "NUAA-SIRST",
        "https://github.com/YimianDai/sirst",
        url="https://github.com/YimianDai/sirst/archive/84302ab351af09dde227aa13ee9887f081bc3d4f.zip",
        note="if no lists are found, write --train-list idx_427/trainval.txt "
        "--test-list idx_427/test.txt (the authors' own, not the 213 and 214 of most papers)",
        other_names=("SIRST",),
    ),
    Published(
        "IRSTD-1k",
        "https://github.com/RuiZhang97/ISNet",
        drive="1JoGDGF96v4CncKZprDnoIor0k1opaLZa",
    ),
    Published(
        "NUDT-SIRST",
        "https://github.com/YeRen123455/Infrared-Small-Target-Detection",
        drive="1LscYoPnqtE32qxv5v_dB4iOF4dW3bxL2",
        inside="NUDT-SIRST",
        note="packed with two others by https://github.com/XinyiYing/BasicIRSTD",
    ),
)


def known(text: str) -> Published | None:
    "The published data set of this name, in capitals or not."
    names = {name.lower(): p for p in KNOWN for name in (p.name, *p.other_names)}
    return names.get(text.lower())


# %%
test_eq([known(name).name for name in ("sirst", "irstd-1K")], ["NUAA-SIRST", "IRSTD-1k"])
found: Published | None = known("NUDT-SIRST")
test_eq((found.page, known("my-images")), (KNOWN[2].page, None))


# %% [markdown]
# `pooch` downloads: it retries, shows a bar, compares the checksum, and gives the file its name only when it is whole. (A trial against a server that breaks off, hangs and refuses is in LOG.md.) For Google Drive, which has no plain address for a large file, it calls `gdown`. Colab has gdown; elsewhere the user installs it for these two data sets.
#
# A page that reports "too many downloads" also arrives without an error, so we open what came. An archive that is there already, from the last time or put there by hand under that name, is not downloaded again; it belongs to the user, and stays where it is even if it is damaged.

# %%
#| export
def download(published: Published, local: Path) -> Path:
    "The folder of a published data set, downloaded to `local` the first time, or a UserError."
    file = local / f"{published.name}.zip"
    with disk_errors(f"{file}: cannot be written"), made_once(file) as new:
        if new:
            source = published.url or f"Google Drive ({published.drive})"
            say(f"data    downloading {published.name} from {source} (licence: {published.page})")
            _fetch(published, new, file.with_name(f"{file.name}.sha256"))
            if published.note:
                say(f"data    {published.note}")
    return _part_of(unpack(file, local), published.inside)


def _fetch(published: Published, file: Path, record: Path) -> None:
    "Download an archive and compare its checksum, the record of which is made the first time."
    first = record.read_text("utf-8", "replace").split() if record.exists() else []
    if not published.url and not installed("gdown"):
        todo = f"`pip install gdown` and try again, or {published.by_hand}"
        raise UserError(f"{published.name} is fetched from Google Drive: {todo}")
    todo = f"see whether Internet is on, or {published.by_hand}"
    if first and not published.sha256:
        todo += f" (if its owner has changed it, delete {record})"
    with foreign_errors(f"{published.name}: cannot be fetched", todo):
        import pooch

        pooch.get_logger().setLevel("WARNING")
        checksum: Any = published.sha256 or (first[0] if first else None)
        by_url = pooch.HTTPDownloader(progressbar=_watched())
        downloader: Any = by_url if published.url else _from_drive
        box = pooch.Pooch(
            path=str(file.parent),
            base_url="",
            registry={file.name: checksum},
            urls={file.name: published.url or published.drive},
            retry_if_failed=2,
        )
        box.fetch(file.name, downloader=downloader)
        digest = pooch.file_hash(str(file))
    what = f"{published.name}: what came is no archive, perhaps a web page"
    with foreign_errors(what, f"try again tomorrow, or {published.by_hand}"):
        _open_archive(file).close()
    record.write_text(f"{digest}  {record.stem}\n", encoding="utf-8")


def _from_drive(number: str, file: str, _: Any) -> None:
    "Download from Google Drive; called by pooch, with a file's number there for its address."
    import gdown

    if not gdown.download(id=number, output=str(file), quiet=not _watched()):
        raise RuntimeError("Google Drive gave nothing, perhaps too many people fetch it")


def _part_of(folder: Path, name: str) -> Path:
    "The least deep folder of this name in a folder, or that folder itself."
    walked = ((Path(top), names) for top, names, _ in os.walk(folder))
    found = [top / n for top, names in walked for n in names if n.lower() == name.lower()]
    if found:
        return min(found, key=lambda path: (len(path.parts), path))
    if name and folder.name.lower() != name.lower():
        raise UserError(f"{folder}: has no folder {name}; write the one you mean as --dataset-dir")
    return folder


# %% [markdown]
# Put there by hand, an archive of several sets needs no network:

# %%
with tempfile.TemporaryDirectory() as tmp:
    with zipfile.ZipFile(f"{tmp}/NUDT-SIRST.zip", "w") as box:
        for name in ("NUAA-SIRST", "NUDT-SIRST"):
            box.writestr(f"datasets/{name}/images/{name}.png", "a")
    found = download(known("NUDT-SIRST"), Path(tmp))
    test_eq([path.name for path in found.rglob("*.png")], ["NUDT-SIRST.png"])


# %% [markdown]
# ## Where is the data set?
#
# All of this has one door. A data set is named by its folder or its archive, or by its bare name where this place keeps data. Kaggle mounts an attached data set in `/kaggle/input/NAME`, and the folder inside often repeats the name, so we also search one level below, and a second one, where the user's own files begin on a mounted Drive. We leave out folders that begin with a dot, and everything in `unpacked`: of several sets in one archive that would be any of them. A folder that holds nothing but one archive stands for it. Names of published data sets come last: a folder of that name, in capitals or not, is taken as it is.

# %%
#| export
def find_dataset(
    text: str,  # folder or archive, the name of one in `place.data`, or a known name; empty: none
    place: Place | None = None,
) -> Path | None:
    "The folder of a data set, or None for the synthetic scenes. Raises UserError if it is missing."
    if not text:
        return None
    place = place or where()
    written = Path(os.path.expanduser(text))
    if place.name == "colab" and _on_drive(written) and not is_mounted(MY_DRIVE):
        mounted = mount_drive(place)  # to name a folder there is to ask for it
        if not mounted.folder:
            raise UserError(f"dataset_dir={text!r}: {mounted.line}")
    for path in _candidates(text, place):
        if os.path.isdir(path):
            return _at_hand(path, place.local)
        if os.path.isfile(path) and path.name.lower().endswith(ARCHIVES):
            return unpack(path, place.local)
    if published := known(text):
        return download(published, place.local)
    near = _names_beside(written) + [published.name for published in KNOWN]
    kind = "there is no such folder"
    if os.path.isfile(written):
        kind = f"is a file, not a folder or an archive ({', '.join(ARCHIVES)})"
    raise UserError(f"dataset_dir={text!r}: {kind}{did_you_mean(written.name, near)}")


def _candidates(text: str, place: Place) -> Iterator[Path]:
    "The paths that a name may stand for, the likeliest first."
    written = Path(os.path.expanduser(text))
    yield written
    if written.is_absolute():
        return
    yield place.data / text
    with contextlib.suppress(OSError, ValueError, RecursionError):  # a folder that is not readable
        for deep in ("[!.]*", "[!.]*/[!.]*"):
            found = sorted(place.data.glob(f"{deep}/{glob.escape(text)}"))
            yield from (path for path in found if place.local / UNPACKED not in path.parents)
    if known(text):
        for folder in dict.fromkeys((place.data, place.local, Path())):
            with contextlib.suppress(OSError):
                yield from (p for p in sorted(folder.iterdir()) if p.name.lower() == text.lower())


def _names_beside(path: Path) -> list[str]:
    "The names in the folder of a path, to suggest one of them."
    with contextlib.suppress(OSError, ValueError):
        return [beside.name for beside in path.parent.iterdir() if beside.name != path.name]
    return []


def _at_hand(folder: Path, local: Path) -> Path:
    "The folder to read a data set from: itself, what its only archive holds, or a local copy."
    inside: list[Path] = []
    with contextlib.suppress(OSError):  # reported when it is read
        inside = [path for path in folder.iterdir() if not _is_junk(path.name)]
    if len(inside) == 1 and inside[0].is_file() and inside[0].name.lower().endswith(ARCHIVES):
        return unpack(inside[0], local)
    return _copy_from_drive(folder, local) if _on_drive(folder) else folder


# %%
with tempfile.TemporaryDirectory() as tmp:
    (Path(tmp) / "input" / "irstd" / "IRSTD-1k").mkdir(parents=True)
    kaggle = Place("kaggle", Path(tmp) / "input", Path(tmp) / "runs", "", "", Path(tmp) / "local")
    found = [find_dataset(name, kaggle).name for name in ("irstd", "IRSTD-1k")]
    test_eq(found, ["irstd", "IRSTD-1k"])
    with expect_fail(UserError, contains="did you mean irstd?"):
        find_dataset(f"{tmp}/input/irst", kaggle)
test_eq(find_dataset(""), None)

# %% [markdown]
# ## A run in one file
#
# To keep a run, or to take it along, we pack it into one file: a copy of its folder without what is only of use while it runs (locks, files being written) and without TensorBoard's copy of the log. The run may still be training, because each of its files is complete at any moment. tar stores who packed it, so we write root instead, where the system knows it. The copy is made on the local disk, and the archive alone goes to where it shall be.
#
# The output may be named by hand, and then it may be anything: a folder, the checkpoint itself, a name that no file can have. Its ending decides the format, and nothing in the run's own folder is replaced. In Colab the browser offers the file for download. That takes the process of the notebook: `!mshnet pack` only writes the file and prints its name.

# %%
#| export
ENDINGS = {"": (".tar.gz", ".tgz", ".zip"), "tar.gz": (".tar.gz", ".tgz"), "zip": (".zip",)}
PASSING = shutil.ignore_patterns(".*.tmp", "lock", "*.lock", "tensorboard")
OLDEST = 400_000_000  # seconds; zip cannot store a time before 1980, and such a one is no real one


def pack(
    folder: str | Path,  # of a run
    format: str = "",  # zip or tar.gz; empty: as the output is called, or else tar.gz
    output: str | Path = "",  # file to write; empty: beside the run, named after it
    place: Place | None = None,
) -> Path:  # of the archive
    "Put a run into one file; UserError if it is none, or the file cannot be written."
    if format not in ENDINGS:
        raise UserError(f"format={format!r}: write zip or tar.gz (mshnet export: the weights)")
    run = _run_named(folder)
    path = _output_file(run, output, format)
    name = run.resolve().name
    kind = "zip" if path.name.lower().endswith(".zip") else "gztar"
    with (
        disk_errors(f"{path}: cannot be written"),
        tempfile.TemporaryDirectory(prefix="mshnet-pack-") as tmp,
    ):
        shutil.copytree(run, f"{tmp}/{name}", ignore=_left_out, copy_function=_copy_if_there)
        for copied in Path(tmp).rglob("*"):
            if copied.stat().st_mtime < OLDEST:
                os.utime(copied)
        made = shutil.make_archive(f"{tmp}/run", kind, tmp, name, owner="root", group="root")
        copy_file(Path(made), path)
    offer_download(path, place)
    return path


def offer_download(path: Path, place: Place | None = None) -> bool:
    "Let the browser offer a file for download, if this is a notebook of Colab."
    if (place or where()).name != "colab":
        return False
    try:
        from google.colab import files

        files.download(str(path))
    except Exception:  # not in the notebook's process
        say(f"{path} is not offered for download; in a cell, `from mshnet.places import pack` does")
        return False
    return True


def _left_out(folder: str, names: list[str]) -> set[str]:
    "What is not packed of a folder; links to folders neither, which may lead anywhere."
    links = {n for n in names if os.path.islink(p := os.path.join(folder, n)) and os.path.isdir(p)}
    return PASSING(folder, names) | links


def _copy_if_there(old: str, new: str) -> None:
    "Copy a file, unless the run has removed it meanwhile."
    with contextlib.suppress(FileNotFoundError):
        shutil.copy2(old, new)


def _run_named(text: str | Path) -> Path:
    "The folder of a run; UserError if it is none."
    run = Path(os.path.expanduser(text))
    if os.path.isfile(run / "config.json"):
        return run
    if os.path.exists(run):
        raise UserError(f"{text}: is no run, it has no config.json")
    near = did_you_mean(run.name, _names_beside(run))
    raise UserError(f"{text}: is no run, there is no such folder{near}")


def _output_file(run: Path, output: str | Path, format: str) -> Path:
    "The file that a run is packed into; UserError if it must not be."
    run, endings = run.resolve(), ENDINGS[format]
    if not output:
        return run.with_name(run.name + endings[0])
    what, path = f"output={shown(str(output))}", Path(os.path.expanduser(output))
    if os.path.isdir(path):
        raise UserError(f"{what}: is a folder, write the name of a file in it")
    if not path.name.lower().endswith(endings):
        raise UserError(f"{what}: write a name that ends in {' or '.join(endings)}")
    if os.path.exists(path) and Path(os.path.realpath(path)).is_relative_to(run):
        raise UserError(f"{what}: is a file of the run itself, write another name")
    if not os.path.isdir(path.parent):
        raise UserError(f"{what}: there is no folder {path.parent}; make it first")
    return path


# %%
with tempfile.TemporaryDirectory() as tmp:
    run = Path(tmp) / "sirst-1f0c2a9b"
    (run / "tensorboard").mkdir(parents=True)
    for name in ("config.json", "last.pt", ".last.pt.7.tmp", "tensorboard/events"):
        (run / name).touch()
    packed = pack(run)
    with tarfile.open(packed) as tar:
        test_eq(sorted(tar.getnames())[1:], [f"{run.name}/config.json", f"{run.name}/last.pt"])
    test_eq((pack(run, "zip").name, offer_download(packed, HERE)), (f"{run.name}.zip", False))
    with expect_fail(UserError, contains="is no run"):
        pack(tmp)


# %% [markdown]
# ## The folder of a run
#
# A run has one folder: the one asked for, the one of the run that is resumed, or one named after its recipe where this place keeps runs.

# %%
#| export
def run_folder(config: Settings, place: Place | None = None) -> Path:
    "The folder of this run."
    if config.output_dir:
        return Path(config.output_dir).expanduser()
    if config.resume:
        start = Path(config.resume).expanduser()
        return start if start.is_dir() else start.parent
    return (place or where()).runs / run_name(config)


def program_folder(config: Settings) -> Path:
    "The folder of programs compiled for a TPU, which the runs beside it share."
    return run_folder(config).parent / "xla_cache"


# %%
test_eq(run_folder(Config(output_dir="mine")), Path("mine"))
test_eq(program_folder(Config(output_dir="my/run")), Path("my/xla_cache"))
test_eq(run_folder(Config(resume="old/last.pt")), Path("old"))
test_eq(run_folder(Config(), KAGGLE), Path("/kaggle/working/runs") / run_name(Config()))


# %% [markdown]
# ## Results that outlive the session
#
# Colab deletes its disk with the session. So a run can be copied, while it trains, to a second folder, its **mirror**: on Google Drive (`mirror_dir=drive`), on a network disk, on a stick. Each run has its own folder there, with the name of the run's folder. Where the Drive is not mounted we copy nothing and report that, because a folder made in its place would lie on the disk that is deleted. In Colab a run starts in the folder in which the Drive is mounted, so `drive/MyDrive/copies` is a folder of the Drive too.

# %%
#| export
def _mirror_parent(config: Settings, place: Place) -> Path | None:
    "The folder in which runs have their copies; None: none is asked for, or there is no Drive."
    if config.mirror_dir == "drive":
        return place.drive / "mshnet" if place.drive else None
    folder = Path(config.mirror_dir).expanduser()
    return Path(os.path.abspath(folder)) if config.mirror_dir else None


def wants_drive(config: Settings, place: Place | None = None) -> bool:
    "Whether a run's copies go to a Google Drive that can be mounted here."
    place = place or where()
    parent = _mirror_parent(config, place)
    return bool(parent and place.drive and parent.is_relative_to(place.drive.parent))


def mirror_folder(
    config: Settings,
    place: Place | None = None,
    say: Callable[[str], object] = print,  # gets the line that reports why there is none
) -> Path | None:
    "The folder of this run's copies; None if there is none; UserError if it is the run itself."
    if not config.mirror_dir:
        return None
    place = place or where()
    folder = Path(os.path.abspath(run_folder(config, place)))
    parent = _mirror_parent(config, place)
    if not parent:
        say(f"mirror  Google Drive is mounted in Colab only: results stay in {folder}")
        return None
    if place.drive and wants_drive(config, place) and not is_mounted(place.drive):
        say(f"mirror  Google Drive is not mounted: results stay in {folder}")
        return None
    target = parent / folder.name
    real, own = (Path(os.path.realpath(path)) for path in (target, folder))
    if folder in (target, *target.parents) or own in (real, *real.parents):
        raise UserError(f"mirror_dir={config.mirror_dir!r}: the run itself is there; name another")
    return target


# %%
with tempfile.TemporaryDirectory() as tmp:
    colab = Place("colab", Path(tmp), Path(tmp) / "runs", "", drive=Path(tmp) / "drive" / "MyDrive")
    asked = Config(mirror_dir="drive", output_dir="runs/mine")
    test_eq([mirror_folder(asked, place) for place in (HERE, colab)], [None, None])
    colab.drive.mkdir(parents=True)
    test_eq(mirror_folder(asked, colab), colab.drive / "mshnet" / "mine")
    test_eq([wants_drive(asked, place) for place in (HERE, colab)], [False, True])
with expect_fail(UserError, contains="the run itself is there"):
    mirror_folder(Config(mirror_dir="runs", output_dir="runs/mine"))


# %% [markdown]
# What is copied? Everything but temporary files, TensorBoard's (they grow all the time) and `previous.pt`, of which the mirror makes its own. The small records come first, because they hold most per byte. `status.json` comes last: copies are compared by it, and it must not promise an epoch that is not there.
#
# What may a mirror replace? Not another run of the same name, and not more epochs of this one: a run that could not be brought back begins anew, and its old copy must outlive that.

# %%
#| export
def run_files(
    folder: Path,
) -> list[str]:  # relative to the folder
    "The files of a run that are worth a copy, in the order in which they are copied."
    found = []
    for top, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name[0] != "." and name != "tensorboard"]
        files = [Path(top, n) for n in names if n[0] != "." and n != "previous.pt"]
        found += [f.relative_to(folder).as_posix() for f in files if f.is_file()]
    late = ["best.pt", "last.pt", "status.json"]
    return sorted(found, key=lambda name: (late.index(name) if name in late else -1, name))


def _epochs_done(folder: Path) -> int:
    "How many epochs a run has, by its status.json; 0 without one."
    found = read_record(folder / "status.json").get("epochs_done")
    return found if isinstance(found, int) else 0


def _worth_more(target: Path, source: Path) -> str:
    "Why the copy in the target must not be replaced by the source; empty: it may be."
    ours, theirs = (read_record(folder / "config.json") for folder in (source, target))
    recipe = ours.keys() & theirs.keys() - PlaceFields.model_fields.keys() - {"epochs", "precision"}
    if any(ours[name] != theirs[name] for name in recipe):
        return "it holds another run; name another mirror_dir or output_dir"
    here, there = _epochs_done(source), _epochs_done(target)
    return f"it holds {there} epochs of this run, and here are {here}" if there > here else ""


def _in_short(error: Exception) -> str:
    "An error in a few words."
    words = getattr(error, "strerror", None) or str(error)
    return words if isinstance(error, OSError) else f"{type(error).__name__}: {words}"


# %% [markdown]
# Two folders can be mistaken for each other. When a Drive is unmounted, an empty folder of the local disk is left in its place. So the first round claims the mirror by a marker file, and nothing is written where the marker is missing. The marker differs from session to session: of two sessions that copy the same run the later one continues, and the earlier one reports that.
#
# After a new start we do not know what the mirror holds, and a file of the same size and digest counts as copied. An error with one file does not keep the others back: a disk may be too full for a checkpoint and not for the log.

# %%
#| export
class _Copies:
    "A run's folder and its mirror: what is copied, and what is missing."

    def __init__(self, source: Path, target: Path, rate: float) -> None:
        self.source, self.target, self.rate = source, target, rate
        self.copied: dict[str, Stamp | None] = {}  # what the target holds
        self.token, self.claimed = uuid.uuid4().hex.encode(), False
        self.parent: os.stat_result | None = None  # of the target, as it was at first
        self.closed = threading.Event()

    def missing(self) -> list[str]:
        "Files that are not in the target as they are now."
        names = run_files(self.source)
        return [name for name in names if stamp(self.source / name) != self.copied.get(name)]

    def copy_missing(self) -> str:
        "Copy what is missing; the first problem, or nothing. OSError if the target is not ours."
        problem = ""
        for name in self.missing():
            self.check()
            try:
                self.copy(name)
            except ChangedMeanwhile:
                continue  # it stays missing until the next round
            except OSError as error:
                if (self.source / name).exists():  # else it was removed meanwhile
                    problem = problem or _in_short(error)
        if run_files(self.source):
            self.check()
        return problem

    def check(self) -> None:
        "OSError unless the target is there and may be written; the first time, claim it."
        marker = self.target / ".mirror"
        if self.claimed:
            found = marker.read_bytes() if marker.is_file() else b""
            if found != self.token:
                raise OSError("another session copies to it now" if found else "it is gone")
            return
        if not self.parent:  # made only once: a disk that vanishes is not made anew
            self.target.parent.mkdir(parents=True, exist_ok=True)
            self.parent = os.stat(self.target.parent)
        elif not os.path.samestat(self.parent, os.stat(self.target.parent)):
            raise OSError("it is gone")
        if self.target.exists() and os.path.samefile(self.source, self.target):
            raise OSError("it is the run's own folder")
        if reason := _worth_more(self.target, self.source):
            raise OSError(reason)
        self.target.mkdir(exist_ok=True)
        for left in self.target.rglob(".*.tmp"):  # by a session that was killed
            left.unlink(missing_ok=True)
        marker.write_bytes(self.token)
        self.claimed = True

    def copy(self, name: str) -> None:
        "Copy one file, unless it is there."
        old, new = self.source / name, self.target / name
        for folder in reversed(Path(name).parents[:-1]):
            (self.target / folder).mkdir(exist_ok=True)
        now, there = stamp(old), stamp(new)
        unknown = now and there and now[0] == there[0] and name not in self.copied
        if not unknown or digest(old) != digest(new) or stamp(old) != now:
            previous = new.with_name("previous.pt") if name == "last.pt" else None
            now = copy_file(old, new, previous, self.write)
        self.copied[name] = now

    def write(self, file: BinaryIO, piece: bytes) -> None:
        "Write a piece, and wait as long as the rate demands, or until the mirror is closed."
        if self.closed.is_set():
            raise OSError("the mirror is closed")
        done = time.monotonic() + len(piece) / (1e6 * self.rate)
        file.write(piece)
        self.closed.wait(max(0.0, done - time.monotonic()))


# %% [markdown]
# The mirror itself is a thread. Whenever something was written it copies what has changed, and then rests for a minute; after failures it rests longer, up to five minutes. The thread is a daemon: a disk that does not answer blocks neither the training nor the end of the process. No error leaves it. A problem is reported once, and once more when it is over, and the training continues.
#
# At the end `flush` copies the rest without a rest, waits for it a limited time, and returns a line that reports where everything is: somebody may have to act on it before the session is deleted.

# %%
#| export
class Mirror:
    "A copy of a run's folder, kept up by a thread; with target None it does nothing."

    def __init__(
        self,
        source: Path,
        target: Path | None,
        rate: float = 20.0,  # most megabytes per second
        pause: float = 60.0,  # seconds between two rounds
        say: Callable[[str], object] = print,  # gets a line for a problem, and for its end
    ) -> None:
        self.copies, self.wanted = _Copies(source, target or source, rate), target is not None
        self.pause, self.say = pause, say
        self.problem, self.reported = "", ""  # of the last round; the last one that was reported
        self.busy, self.changed = threading.Lock(), threading.Event()
        self.closed = self.copies.closed
        self.thread = threading.Thread(target=self.rounds, name="mirror", daemon=True)

    def __enter__(self) -> "Mirror":
        if self.wanted:
            self.wake()
            self.thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        "End the thread after the piece that it is writing; one that hangs is left behind."
        self.closed.set()
        self.wake()
        if self.thread.is_alive():
            self.thread.join(1.0)

    def wake(self) -> None:
        "Note that something was written; this never waits."
        self.changed.set()

    def flush(self, timeout: float) -> str:  # seconds
        "Copy what is missing, wait for that at most so long, and return what is where, in a line."
        if not self.wanted:
            return ""
        worker = threading.Thread(target=self.hurry, daemon=True)
        worker.start()
        worker.join(timeout)
        late = f"not done after {timeout:.0f} s" if worker.is_alive() else ""
        why = ", ".join(filter(None, (self.problem, late))) or "they changed meanwhile"
        return _what_is_where(self.copies, why)

    def state(self) -> dict[str, Any]:
        "The same for status.json; empty if there is no mirror."
        if not self.wanted:
            return {}
        missing, folder = self.copies.missing(), str(self.copies.target)
        there = len(run_files(self.copies.source)) - len(missing)
        return {"folder": folder, "files": there, "missing": missing, "problem": self.problem}

    def rounds(self) -> None:
        "What the thread does."
        failures = 0
        while self.changed.wait() and not self.closed.is_set():
            self.changed.clear()
            failures = 0 if self.round() else failures + 1
            if failures or self.copies.missing():
                self.wake()
            self.closed.wait(self.pause * min(5, 2**failures))

    def hurry(self) -> None:
        "Three rounds at most, without a rest."
        for _ in range(3):
            if self.closed.is_set() or (self.round() and not self.copies.missing()):
                return
            self.closed.wait(min(1.0, self.pause))

    def round(self) -> bool:  # whether it went well
        "Copy what is missing, as far as that is possible, and report what is new about that."
        with self.busy:
            try:
                self.problem = self.copies.copy_missing()
            except Exception as error:  # whatever it is, the training continues
                self.copies.copied.clear()  # nobody knows what is there now
                self.problem = _in_short(error)
            with contextlib.suppress(Exception):  # nobody may be there to read it
                self.report()
        return not self.problem

    def report(self) -> None:
        "Report a problem that is new, or that the last one is over."
        if self.problem != self.reported and not self.closed.is_set():
            self.reported, target = self.problem, self.copies.target
            if self.problem:
                self.say(f"mirror  {target}: {self.problem}; tried again later, the run continues")
            else:
                self.say(f"mirror  {target}: works again")


def _what_is_where(copies: _Copies, why: str) -> str:
    "Which files of a run are in its mirror, and why others are not."
    names, missing = run_files(copies.source), copies.missing()
    if not missing:
        size = sum(found[0] for n in names if (found := stamp(copies.source / n))) / 1e6
        return f"mirror  all {len(names)} files ({size:,.1f} MB) are in {copies.target}"
    some = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if missing[5:] else "")
    there = f"{len(names) - len(missing)} of {len(names)} files are in {copies.target}"
    return f"mirror  {there}; missing: {some} ({why}); they are in {copies.source}"


# %%
def write_run(folder, **files):
    "A folder with a few small files."
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    return folder


with tempfile.TemporaryDirectory() as tmp:
    source, target = Path(tmp) / "run", Path(tmp) / "drive" / "run"
    write_run(source, status_json='{"epochs_done": 1}', last_pt="epoch 1", log_jsonl="{}")
    test_eq(run_files(source), ["log.jsonl", "last.pt", "status.json"])
    with Mirror(source, target) as mirror:
        print(mirror.flush(timeout=60).replace(tmp, ""))
        write_run(source, last_pt="epoch 2")
        mirror.wake()
        print(mirror.flush(timeout=60).replace(tmp, ""))
    test_eq((target / "previous.pt").read_text(), "epoch 1")

# %% [markdown]
# A run that begins anew, under the name of one with nine epochs, leaves its copy as it is:

# %%
with tempfile.TemporaryDirectory() as tmp:
    new = write_run(Path(tmp) / "run", status_json='{"epochs_done": 1}')
    old = write_run(Path(tmp) / "drive" / "run", status_json='{"epochs_done": 9}')
    print(Mirror(new, old, pause=0, say=str).flush(timeout=60).replace(tmp, ""))
    test_eq(read_record(old / "status.json"), {"epochs_done": 9})


# %% [markdown]
# ## Resume in a new session
#
# A new session has an empty disk. So we bring the run back before we look for it: from the mirror, or on Kaggle from an earlier output that was attached as input; of several copies, from the one with the most epochs. The checkpoint is copied last, so that an interrupted copy is made again. Only the spare checkpoint comes after it, and takes its place if it cannot be read. A copy without a readable checkpoint is skipped with a warning, and nothing of it stays.

# %%
#| export
def copies_of(config: Settings, place: Place | None = None) -> list[Path]:
    "Folders in which there may be a copy of this run."
    place = place or where()
    mirror = mirror_folder(config, place, say=lambda _: None)
    folder = Path(os.path.abspath(run_folder(config, place)))
    kept = place.runs.parent  # what is in it becomes the output of a notebook
    name = folder.relative_to(kept) if folder.is_relative_to(kept) else Path("runs", folder.name)
    tops = ("*", "*/*", "notebooks/*/*") if place.name == "kaggle" else ()
    attached = {p for top in tops for p in place.data.glob(f"{top}/{glob.escape(str(name))}")}
    return [*([mirror] if mirror else []), *sorted(attached)]


def has_checkpoint(folder: Path) -> bool:
    "Whether a run can be resumed from this folder; OSError if it cannot be reached."
    return any((folder / name).is_file() for name in ("last.pt", "previous.pt"))


def bring_back(
    folder: Path,
    copies: list[Path],
) -> Path | None:  # the copy that was taken
    "Copy a run back into its folder, unless it is there."
    if has_checkpoint(folder):
        return None
    found: list[tuple[int, Path]] = []
    for copy in copies:
        with _skipped(copy):
            if has_checkpoint(copy):
                found.append((_epochs_done(copy), copy))
    for _, copy in sorted(found, key=lambda pair: -pair[0]):
        with _skipped(copy):
            _take_files(copy, folder)
            return copy
    return None


@contextlib.contextmanager
def _skipped(copy: Path) -> Iterator[None]:
    "Turn what is wrong with a copy into a warning."
    try:
        yield
    except OSError as error:
        warnings.warn(f"{copy} is skipped: {_in_short(error)}", stacklevel=3)


def _take_files(copy: Path, folder: Path) -> None:
    "Copy the files of a run, checkpoints last; OSError, and nothing stays, without one of them."
    names = [name for name in run_files(copy) if name != "last.pt"]
    checkpoints = [name for name in ("last.pt", "previous.pt") if (copy / name).is_file()]
    new = [folder / name for name in (*names, *checkpoints) if not (folder / name).exists()]
    try:
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            copy_file(copy / name, folder / name)
        for name in checkpoints:
            with _skipped(copy / name):
                folder.mkdir(parents=True, exist_ok=True)
                copy_file(copy / name, folder / name)
        if not has_checkpoint(folder):
            raise OSError("it has no checkpoint that can be read")
    except OSError:
        for file in new:
            file.unlink(missing_ok=True)
        raise


# %%
with tempfile.TemporaryDirectory() as tmp:
    kaggle = Place("kaggle", Path(tmp) / "input", Path(tmp) / "working" / "runs", "")
    config = Config()
    for place in ("input/version-2", "input/notebooks/me/version-3"):
        copy = Path(tmp) / place / "runs" / run_name(config)
        write_run(copy, last_pt="", status_json=f'{{"epochs_done": {place[-1]}}}')
    folder, copies = run_folder(config, kaggle), copies_of(config, kaggle)
    test_eq([has_checkpoint(f) for f in (folder, *copies)], [False, True, True])
    took = bring_back(folder, copies)
    assert "version-3" in str(took)
    test_eq(bring_back(folder, copies), None)  # it is there now


# %% [markdown]
# ## How long a session lasts
#
# Colab ends a session after at most 12 hours; Kaggle after 12, and after 9 with a TPU. These are the services' numbers of 2025, which may change and were not tried here; `max_hours` overrules them. Half an hour of them is left for what came before this process and for a good end. Whether Kaggle gave a TPU is read from the variables of a TPU's runtime.
#
# We count from the start of this process, which the system knows, and not by the clock on the wall, which may jump. A kernel that is restarted counts from zero, and its session does not: write `max_hours` then.

# %%
#| export
def session_hours(
    config: Settings,
    place: Place | None = None,
    environ: Mapping[str, str] = os.environ,
) -> float:  # infinite where sessions do not end
    "Hours after which a session should end by itself."
    if config.max_hours > 0:
        return config.max_hours
    place = place or where(environ)
    signs = ("TPU_WORKER_ID", "TPU_ACCELERATOR_TYPE", "TPU_NAME", "TPU_PROCESS_ADDRESSES")
    return place.tpu_hours if any(name in environ for name in signs) else place.hours


IMPORTED = time.monotonic()


def session_seconds() -> float:
    "Seconds since this process began; where the system does not report it, since this import."
    imported = time.monotonic() - IMPORTED
    try:
        after_name = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        running = float(Path("/proc/uptime").read_text().split()[0])
        begun = int(after_name[19]) / os.sysconf("SC_CLK_TCK")
        return max(imported, running - begun)  # a container may count the two from different days
    except (OSError, ValueError, IndexError):
        return imported


# %%
kaggle_tpu = {"KAGGLE_KERNEL_RUN_TYPE": "Batch", "TPU_WORKER_ID": "0"}
test_eq(session_hours(Config(), environ=kaggle_tpu), 8.5)
test_eq([session_hours(Config(), place, {}) for place in (COLAB, KAGGLE)], [11.5, 11.5])
test_eq(session_hours(Config(max_hours=2), KAGGLE), 2)
assert 0 < session_seconds() <= session_seconds()
