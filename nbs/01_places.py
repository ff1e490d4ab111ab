# %% [markdown]
# # places
#
# > Where the notebook runs, and which folders that means: Colab, Kaggle, or the machine in front of you.

# %%
#| default_exp places

# %%
#| hide
import http.server
import io

from fastcore.test import expect_fail, test_close, test_eq

from mshnet.core import Config

# %%
#| export
import contextlib
import errno
import glob
import hashlib
import http.client
import json
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
import urllib.error
import urllib.request
import uuid
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any, BinaryIO

from mshnet.core import (
    PlaceFields,
    Settings,
    UserError,
    can_be_a_name,
    did_you_mean,
    run_name,
    shown,
)


# %% [markdown]
# Colab and Kaggle are Linux machines with two habits. Their fixed folders differ, and what is not written to the right one is gone after the session. Everything that depends on this is in this notebook; the rest of the suite asks here.

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
    local: Path = Path("data")  # where data sets are unpacked and fetched to, on the local disk
    hours: float = math.inf  # that a session lasts, less half an hour to end it well
    tpu_hours: float = math.inf  # the same with a TPU
    drive: Path | None = None  # where Google Drive is once it is mounted


# %% [markdown]
# The three kinds:

# %%
#| export
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
# Both services set a variable of their own in every session:

# %%
#| export
def where(
    environ: Mapping[str, str] = os.environ,
) -> Place:
    "The place this process runs in."
    if "KAGGLE_KERNEL_RUN_TYPE" in environ:  # asked first: Kaggle's image is built on Colab's
        return KAGGLE
    if "COLAB_RELEASE_TAG" in environ or "COLAB_GPU" in environ:
        return COLAB
    return HERE


# %%
test_eq(where({"COLAB_RELEASE_TAG": "release"}), COLAB)
test_eq(where({"KAGGLE_KERNEL_RUN_TYPE": "Interactive", "COLAB_RELEASE_TAG": "release"}), KAGGLE)
test_eq(where({}), HERE)
assert isinstance(where(), Place)
where().note


# %% [markdown]
# The same notebook runs with somebody before it and headless under papermill. Colab is always watched; Kaggle says whether a session is interactive or a saved version being run; Jupyter tells its kernels the session they belong to, Voila (which shows a notebook as a page) where its pages are, and papermill neither.

# %%
#| export
def interactive(
    environ: Mapping[str, str] = os.environ,
) -> bool:
    "Whether somebody sits before this notebook."
    if where(environ) == KAGGLE:
        return environ["KAGGLE_KERNEL_RUN_TYPE"] == "Interactive"
    told = ("JPY_SESSION_NAME", "VOILA_BASE_URL")
    return where(environ) == COLAB or any(name in environ for name in told)


# %%
test_eq(
    [interactive({name: "x"}) for name in ("A", "JPY_SESSION_NAME", "VOILA_BASE_URL", "COLAB_GPU")],
    [False, True, True, True],
)


# %% [markdown]
# Kaggle's TPU machines set two variables of an older kind of TPU, and with them the runtime waits for workers that do not exist ("Expected 4 worker addresses, got 1"). They must go before the runtime starts. On a real TPU pod the same variables are right and hold addresses; so they are removed on Kaggle, and wherever they only say "local". Beside it stand two more questions about the surroundings of this process: what is installed, and whether it is alone.

# %%
#| export
def installed(
    package: str,
) -> str | None:  # None if it is not installed
    "Version of an installed package, without importing it."
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def forget_stale_tpu(
    environ: MutableMapping[str, str] = os.environ,
) -> list[str]:  # names of what was removed
    "Remove stale TPU variables; leave those of a pod."
    stale = ("TPU_PROCESS_ADDRESSES", "CLOUD_TPU_TASK_ID")
    if where(environ) != KAGGLE and environ.get("TPU_PROCESS_ADDRESSES") != "local":
        return []
    return [name for name in stale if environ.pop(name, None) is not None]


def first_process(
    environ: Mapping[str, str] = os.environ,
) -> bool:
    "Whether this process is the one that writes and speaks; others exist under torchrun only."
    return environ.get("RANK", "0") == "0"


# %%
kaggle_tpu = {"KAGGLE_KERNEL_RUN_TYPE": "Batch", "TPU_PROCESS_ADDRESSES": "local"}
test_eq(forget_stale_tpu(kaggle_tpu), ["TPU_PROCESS_ADDRESSES"])
test_eq(forget_stale_tpu({"TPU_PROCESS_ADDRESSES": "10.0.0.1:8476"}), [])
assert installed("torch") and installed("no-such-package") is None
test_eq([first_process(e) for e in ({}, {"RANK": "0"}, {"RANK": "3"})], [True, True, False])


# %% [markdown]
# What takes a while is said in plain lines, by one process alone:

# %%
#| export
def say(
    text: str,
) -> None:
    "A line for the user, from the first process only."
    if first_process():
        print(text, flush=True)


def megabytes(
    size: float,  # in bytes
) -> str:
    "A size as people say it."
    return f"{size / 1e6:.0f} MB" if size >= 1e7 else f"{size / 1e6:.1f} MB"


def error_text(
    error: object,
) -> str:
    "What an error says, without line breaks; its kind if it says nothing."
    return " ".join(str(error).split()) or type(error).__name__


# %%
say(f"data    {megabytes(14_658_415)}")
test_eq(error_text(ValueError("mount\n failed")), "mount failed")
test_eq(error_text(EOFError()), "EOFError")

# %% [markdown]
# ## Google Drive
#
# Colab's own disk ends with the session; Google Drive stays. Mounting it asks the user for permission in a window, and there is no end to what can happen then: the window is closed, the account is a company's that forbids it, nobody is there. `google.colab.drive.mount` answers with exceptions of several kinds (`ValueError('mount failed')`, a `MessageError` of its own), and in the version that was read it waits for the window without an end, whatever its `timeout_ms` says: that counts for what comes after. So an alarm clock stands beside it. It needs signals, which Python delivers to the main thread, where a notebook's cells run; elsewhere, and on Windows, there is none.

# %%
#| export


@contextlib.contextmanager
def at_most(
    seconds: float,
) -> Iterator[None]:
    "Raise TimeoutError in work that takes longer, where signals can."
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


# %%
with expect_fail(TimeoutError, contains="no answer"), at_most(0.01):
    time.sleep(5)


# %% [markdown]
# Even the question whether it is there may wait for ever, if its connection hangs. One that does not answer counts as not mounted.

# %%
#| export
def is_mounted(
    drive: Path,  # the user's own part of it
    patience: float = 20.0,  # seconds
) -> bool:
    "Whether Google Drive is there, and answers."
    with contextlib.suppress(TimeoutError), at_most(patience):
        return os.path.isdir(drive)
    return False


def on_drive(
    path: Path,
) -> bool:
    "Whether a path leads to Google Drive."
    return Path(os.path.abspath(path)).is_relative_to(DRIVE)


# %%
test_eq([is_mounted(Path(name)) for name in (".", "no/such/folder")], [True, False])
assert on_drive(MY_DRIVE / "set.zip") and not on_drive(Path("data"))


# %% [markdown]
# Whatever happens, the answer is one line, and training can go on: it only means that nothing is kept there. (Colab itself was not at hand. The contract was read in its public source, and the tests have a stand-in that keeps it.)

# %%
#| export
@dataclass(frozen=True)
class Mounted:
    "What came of mounting Google Drive."

    folder: Path | None  # the user's own part of it; None: it is not there
    line: str  # what that means, and what to do

    def __str__(self) -> str:
        "The line."
        return self.line


def mount_drive(
    place: Place | None = None,
    timeout: float = 120.0,  # seconds that the user has to allow it
) -> Mounted:
    "Mount Google Drive in Colab; elsewhere, and if it fails, say so and go on."
    if (place or where()).name != "colab":
        return Mounted(None, "Google Drive is mounted in Colab only; here nothing is done")
    if is_mounted(MY_DRIVE):
        return Mounted(MY_DRIVE, f"Google Drive is mounted already: {MY_DRIVE}")
    try:
        with at_most(1.2 * timeout):  # its own limit first
            from google.colab import drive

            drive.mount(str(DRIVE), timeout_ms=int(1000 * timeout))
        if not is_mounted(MY_DRIVE):
            raise OSError(f"there is no {MY_DRIVE}")
    except Exception as error:  # it raises many kinds
        what = "nothing can be read or kept there, and Colab deletes its own disk in the end"
        todo = "run `from mshnet.places import mount_drive; mount_drive()` in a cell, and allow it"
        return Mounted(None, f"Google Drive is not mounted ({error_text(error)}): {what}; {todo}")
    return Mounted(MY_DRIVE, f"Google Drive is mounted: {MY_DRIVE}")


# %%
assert mount_drive(HERE).folder is None and Mounted(MY_DRIVE, "").folder == MY_DRIVE
print(mount_drive(HERE))

# %% [markdown]
# ## Data on the local disk
#
# A data set of this field is a thousand small files. From a mounted Drive each takes a good part of a second to open, every epoch; an archive of them takes one. So archives are unpacked to the local disk, once, and loose files on Drive are copied there, once. Where is that? Not beside the archive, which may be on Drive or on a disk that cannot be written. On Colab, `/content/data`. On Kaggle not below `/kaggle/working`, which is kept as the notebook's output, a thousand files and all, but `/tmp/mshnet-data`. Elsewhere `data`. There it goes to a folder of its own, `unpacked`, into which no search by name looks: what lies there is a part of an archive, or half of it while another process is at work, or what a folder on Drive held last week.
#
# Something is made once by filling a folder under another name and renaming it: a rename happens or does not. If the process dies halfway, the next one throws the half away and begins again. Several processes that share a machine (one per GPU) all come here at the same time, so they queue at a lock, which the system takes from a dead process. (Windows has another kind of lock; there is none then, and no several processes either.)

# %%
#| export
UNPACKED = "unpacked"  # the folder of its own, below the place's local one


@contextlib.contextmanager
def alone(
    file: Path,  # any name that the processes agree on; the file stays, empty
) -> Iterator[None]:
    "Be the only process of this machine within."
    try:
        import fcntl
    except ImportError:
        yield
        return
    with open(file, "w") as lock:
        with contextlib.suppress(OSError):  # a disk without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def made_once(
    target: Path,  # a folder
) -> Iterator[Path | None]:  # what to fill; None: it is there already
    "A folder that is there as a whole or not at all."
    target.parent.mkdir(parents=True, exist_ok=True)
    with alone(target.with_name(f".{target.name}.lock")):
        if target.is_dir():
            yield None
            return
        half = target.with_name(f".{target.name}.partial")
        shutil.rmtree(half, ignore_errors=True)
        half.mkdir()
        try:
            yield half
            os.replace(half, target)
        finally:
            shutil.rmtree(half, ignore_errors=True)


# %%
with tempfile.TemporaryDirectory() as tmp:
    target = Path(tmp) / "set"
    with expect_fail(KeyboardInterrupt), made_once(target) as half:
        (half / "a.png").touch()
        raise KeyboardInterrupt
    assert not target.exists()
    with made_once(target) as half:
        (half / "a.png").touch()
    with made_once(target) as half:
        test_eq(half, None)
    with alone(Path(tmp) / "lock"):
        test_eq([p.name for p in target.iterdir()], ["a.png"])


# %% [markdown]
# A disk that is full, or cannot be written, is the user's to mend. So is one that cannot be read, such as a Drive that was unmounted; but there it would not help to make room. When one disk is copied to another, each gets its own wrapper:

# %%
#| export
@contextlib.contextmanager
def writing_to(
    folder: Path,
) -> Iterator[None]:
    "Turn what a disk refuses into a UserError."
    try:
        yield
    except (OSError, UnicodeError) as error:  # the second: a name that this disk cannot write
        what = error_text(error)
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            what = "the disk is full"
        raise UserError(f"{folder}: cannot be filled ({what}); make room, or permit it") from None


@contextlib.contextmanager
def reading_from(
    path: Path,
) -> Iterator[None]:
    "Turn what a disk does not give into a UserError."
    try:
        yield
    except OSError as error:
        todo = "mount Google Drive again" if on_drive(path) else "permit it, or copy it anew"
        raise UserError(f"{path}: cannot be read ({error_text(error)}); {todo}") from None


# %% [markdown]
# Room is asked for before the work:

# %%
#| export
def make_room(
    folder: Path,  # need not exist yet
    size: float,  # bytes
    what: str,  # that needs them
) -> None:
    "UserError unless so much is free where the folder will be."
    there = next(p for p in (folder.absolute(), *folder.absolute().parents) if p.exists())
    free = shutil.disk_usage(there).free
    if size > free:
        raise UserError(
            f"{what}: needs {megabytes(size)} and {folder} has {megabytes(free)} free; make room"
        )


# %%
make_room(Path("no/such/folder"), 1, "a byte")
with expect_fail(UserError, contains="make room"):
    make_room(Path("data"), 1e30, "everything")
with expect_fail(UserError, contains="the disk is full"), writing_to(Path("data")):
    raise OSError(errno.ENOSPC, "No space left on device")
with expect_fail(UserError, contains="permit it"), reading_from(Path("set.zip")):
    raise OSError(errno.EACCES, "Permission denied")

# %% [markdown]
# ## Archives
#
# `.zip` and `.tar` come to the same: members with a name, a size, a kind, and bytes. Both libraries were made in a trusting age, so their members are looked at before any is written. What they raise for damaged bytes is of a dozen kinds; to the user it is one. It stands around everything that is read of an archive and around nothing that is written, for a disk that refuses is another thing to mend.

# %%
#| export
ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz")


@contextlib.contextmanager
def whole(
    archive: Path,
) -> Iterator[None]:
    "Turn what reading a damaged archive raises into a UserError."
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # bytes of strangers raise many kinds
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            with reading_from(archive):  # the disk, not the bytes
                raise
        why = error_text(str(error).split(":\n")[0] or type(error).__name__)  # without its details
        raise UserError(
            f"{archive.name}: damaged, or no archive ({why}); copy or fetch it again"
        ) from None


@dataclass(frozen=True)
class Member:
    "What an archive says of one of its members."

    archive: Path
    name: str
    size: int  # bytes
    kind: str  # "file" or "folder", else what it is
    open: Callable[[], IO[bytes] | None]


# %% [markdown]
# A member's bytes come in pieces, as many as were declared, no more and no less; a zip's sum is compared by the library when the last one is read.

# %%
#| export
def content(
    member: Member,  # to be read before the next one is asked for
) -> Iterator[bytes]:
    "The bytes of a member, in pieces; UserError if they are damaged."
    with whole(member.archive):
        source, left = member.open(), member.size
        if source is None:
            raise EOFError(f"{member.name} cannot be read")
        with source:
            while left:
                piece = source.read(min(left, 1 << 20))
                if not piece:
                    raise EOFError(f"{member.name} ends early")
                left -= len(piece)
                yield piece
            if source.read(1):
                raise EOFError(f"{member.name} is longer than it says")


# %% [markdown]
# tar keeps no sum over its content, and Python's reader takes a damaged header in the middle for the end: files would be missing without a word. `Header` refuses that, and names so long that reading them would fill the memory.

# %%
#| export
class Header(tarfile.TarInfo):
    "The header of a member; one that is damaged is never taken for the end of the archive."

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "Header":
        "Read it from its bytes; a name of a megabyte, or less than nothing, is damage too."
        header = super().frombuf(buf, encoding, errors)
        label = header.type in (
            *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
            *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
        )
        if header.size < 0 or (label and header.size > 1 << 20):
            raise tarfile.HeaderError("impossible size")
        return header

    @classmethod
    def fromtarfile(cls, box: tarfile.TarFile) -> "Header":
        "Read the next header."
        try:
            return super().fromtarfile(box)
        except tarfile.HeaderError as error:
            if type(error).__name__ == "EOFHeaderError":  # the proper end
                raise
            what = f"damaged after {box.offset} bytes" if box.offset else "neither zip nor tar"
            raise tarfile.ReadError(what) from None


# %% [markdown]
# An archive is a stranger's word on how much there is to do, too. A kilobyte can hold a terabyte of zeros; so what the headers declare is added up first, and these are the limits: no more than the disk has free, and no more than a hundred times the archive once it is beyond a gigabyte, or beyond many members, each of which fills a block of the disk even if it is empty. (Images hardly shrink; masks do, but they are small.)
#
# What costs without being declared is refused as well. bzip2 and lzma in a zip are undone by the library in one go, whatever comes out, so a zip may use its usual method only, and a tar may be plain or gzip. A compressed tar has a sum at its very end, which counts only if one reads so far; but behind the last member there is room for some zeros, not for a gigabyte of them. And tarfile keeps every header that it has read, unless it is made to forget.

# %%
#| export
MOST_MEMBERS, MANY_MEMBERS = 1_000_000, 20_000  # never more; beyond this not so small ones
MOST_GROWTH, GROWN = 100, 1_000_000_000  # times the archive, beyond this many bytes
BLOCK = 4096  # bytes that the smallest file takes on a disk


def zip_members(
    archive: Path,
) -> Iterator[Member]:
    "The members of a .zip."
    with zipfile.ZipFile(archive) as box:
        for info in box.infolist():
            if info.flag_bits & 1:
                raise UserError(f"{archive.name}: is encrypted; unpack it by hand")
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise UserError(f"{archive.name}: is packed in an unusual way; unpack it by hand")
            form = stat.S_IFMT(info.external_attr >> 16)
            known = {0: "file", stat.S_IFREG: "file", stat.S_IFDIR: "folder"}
            kind = "folder" if info.is_dir() else known.get(form, "link or device")
            yield Member(archive, info.filename, info.file_size, kind, partial(box.open, info))


def tar_members(
    archive: Path,
) -> Iterator[Member]:
    "The members of a .tar, plain or gzip, and whatever else it ends with."
    with open_tar(archive) as tar:
        while header := tar.next():
            tar.members.clear()  # type: ignore[attr-defined]
            kind = "file" if header.isreg() else "folder" if header.isdir() else "link or device"
            size = header.size if kind == "file" else 0
            yield Member(archive, header.name, size, kind, partial(tar.extractfile, header))
        left = GROWN // MOST_GROWTH
        while tar.fileobj and (rest := tar.fileobj.read(1 << 20)):
            left -= len(rest)
            if left < 0:
                raise UserError(
                    f"{archive.name}: refused, it goes on and on behind its last member"
                )


# %% [markdown]
# So the members of both kinds. What a file is, its first bytes tell:

# %%
#| export
def members(
    archive: Path,
) -> Iterator[Member]:
    "The members of an archive, one after the other; UserError if it is damaged."
    with whole(archive):
        yield from zip_members(archive) if is_zip(archive) else tar_members(archive)


def is_zip(
    archive: Path,
) -> bool:
    "Whether a file is a .zip by its first bytes, or by its name and its last ones."
    with open(archive, "rb") as file:
        if file.read(4) == b"PK\3\4":
            return True
    return archive.suffix.lower() == ".zip" and zipfile.is_zipfile(archive)


def open_tar(
    archive: Path,
) -> tarfile.TarFile:
    "Open a .tar, plain or gzip; the library's own guess would take slower kinds as well."
    with open(archive, "rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return tarfile.open(archive, "r:gz" if packed else "r:", tarinfo=Header)


def is_tar(
    file: Path,
) -> bool:
    "Whether a file begins as a .tar, plain or gzip."
    with contextlib.suppress(Exception), open_tar(file):
        return True
    return False


# %% [markdown]
# An archive is a stranger's word on where to write as well. `../../.bashrc`, an absolute path, a link to elsewhere through which the next member is written: one such member, and the whole archive is refused, for nobody makes them by mistake in a data set.

# %%
#| export
def parts_of(
    name: str,  # of a member
) -> list[str]:
    "The folders of a member and its own name."
    return [part for part in name.replace("\\", "/").split("/") if part not in ("", ".")]


def why_refused(
    member: Member,
) -> str:  # empty: harmless
    "Why an archive with such a member is refused."
    path, parts = member.name.replace("\\", "/"), parts_of(member.name)
    if path.startswith("/") or re.match("[A-Za-z]:", path):
        return "has an absolute path"
    if ".." in parts:
        return "leads out of its folder"
    if len(parts) > 50:
        return "lies in more than 50 folders"
    if "\0" in path or any(len(part.encode("utf-8", "replace")) > 255 for part in parts):
        return "has a name that no file can have"
    if member.kind not in ("file", "folder"):
        return "is a link or a device"
    return "has no possible size" if member.size < 0 else ""


# %% [markdown]
# The first look writes nothing:

# %%
#| export
def look_through(
    archive: Path,
) -> tuple[int, int]:  # files and bytes
    "Count what an archive would write, without writing; UserError if it is dangerous."
    packed, files, size = archive.stat().st_size, 0, 0
    for count, member in enumerate(members(archive), 1):
        if why := why_refused(member):
            raise UserError(f"{archive.name}: refused, its member {shown(member.name)} {why}")
        files += member.kind == "file" and not is_junk(member.name)
        size += member.size
        if count > MOST_MEMBERS:
            raise UserError(f"{archive.name}: refused, it has more than {MOST_MEMBERS} members")
        filled = size + BLOCK * count
        if filled > MOST_GROWTH * packed and (filled > GROWN or count > MANY_MEMBERS):
            grown = f"{megabytes(packed)} would become {megabytes(filled)} or more"
            raise UserError(f"{archive.name}: refused, {grown}; unpack it by hand if it is right")
    if not files:
        raise UserError(f"{archive.name}: holds no file")
    return files, size


# %% [markdown]
# macOS adds files of its own (`__MACOSX/`, `.DS_Store`), which are left out. Of two members with one name the later one stays: so does tar, which appends a file that has changed.

# %%
#| export
def is_junk(
    name: str,  # of a member
) -> bool:
    "Whether macOS put it there for itself."
    parts = name.replace("\\", "/").rstrip("/").split("/")
    return "__MACOSX" in parts or parts[-1] == ".DS_Store" or parts[-1].startswith("._")


def write_member(
    member: Member,
    folder: Path,
) -> None:
    "Write a member below a folder; UserError if it is not right, OSError if the disk refuses."
    name = f"{member.archive.name}: refused, its member {shown(member.name)}"
    if why := why_refused(member):  # a second look: the file may have changed since the first
        raise UserError(f"{name} {why}")
    path = folder.joinpath(*parts_of(member.name))
    try:
        if member.kind == "folder":
            path.mkdir(parents=True, exist_ok=True)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb") as file:
            for piece in content(member):
                file.write(piece)
    except (FileExistsError, IsADirectoryError, NotADirectoryError):
        raise UserError(f"{name} is a file and a folder; unpack it by hand") from None


# %% [markdown]
# The folder it is unpacked to is named after the archive and eight digits that stand for its name, size, time and last bytes (where zip has its table of contents and gzip its sum), so that another archive of the same name is not mistaken for this one. Many archives wrap everything in one folder (`sirst-master/`): that folder is the data set.

# %%
#| export
def target_of(
    archive: Path,
    local: Path,
) -> Path:
    "The folder that an archive is unpacked to."
    about = archive.stat()
    with open(archive, "rb") as file:
        file.seek(max(0, about.st_size - 65536))
        digest = hashlib.sha256(file.read())
    digest.update(f"{archive.name} {about.st_size} {about.st_mtime_ns}".encode())
    return local / UNPACKED / f"{without_suffix(archive)}-{digest.hexdigest()[:8]}"


def without_suffix(
    archive: Path,
) -> str:
    "The name of an archive without its suffix."
    name = archive.name
    for suffix in ARCHIVES:
        if name.lower().endswith(suffix):
            return name[: -len(suffix)] or "archive"
    return name


def innermost(
    folder: Path,
) -> Path:
    "The folder itself, or the only folder in the only folder in it."
    while True:
        inside = [path for path in folder.iterdir() if not is_junk(path.name)]
        if len(inside) != 1 or not inside[0].is_dir():
            return folder
        folder = inside[0]


# %% [markdown]
# What takes minutes shows how far it is:

# %%
#| export
@contextlib.contextmanager
def progress(
    total: int | None,  # bytes; None: not known
    have: int = 0,  # of them
) -> Iterator[Callable[[int], Any]]:  # to be told how many more have come
    "A bar, where somebody sees it."
    from tqdm import tqdm

    seen = first_process() and (interactive() or sys.stderr.isatty())
    form: dict[str, Any] = {"unit": "B", "unit_scale": True, "leave": False}
    with tqdm(total=total, initial=have, disable=not seen, **form) as bar:
        yield bar.update


def copy_here(
    old: Path,  # a file of a disk that may be far
    new: Path,
    more: Callable[[int], Any] = lambda _: None,  # told how many bytes have come
) -> None:
    "Copy a file; UserError if it cannot be read, OSError if the copy cannot be written."
    with reading_from(old):
        source = open(old, "rb")  # noqa: SIM115
    with source, open(new, "wb") as file:
        while True:
            with reading_from(old):
                piece = source.read(1 << 20)
            if not piece:
                return
            file.write(piece)
            more(len(piece))


# %%
with progress(10) as more:
    more(3)


# %% [markdown]
# Together. An archive on Drive is copied first and then read here: it is read twice, to look and to unpack, and the Drive may be gone before the second time. All of it happens behind the lock of `made_once`, so that of several processes one alone works, and none looks at a disk that another is filling.

# %%
#| export
def unpack(
    archive: Path,
    local: Path,  # where folders of data sets are made
) -> Path:
    "The data set in an archive, unpacked the first time; UserError if that cannot or may not be."
    with whole(archive):
        target = target_of(archive, local)
    with writing_to(local), made_once(target) as half:
        if half:
            near = half / archive.name if on_drive(archive) else archive
            if near != archive:
                with reading_from(archive):
                    size = archive.stat().st_size
                make_room(local, size, archive.name)
                say(f"data    copying {archive.name} from Google Drive: {megabytes(size)}")
                with progress(size) as more:
                    copy_here(archive, near, more)
            unpack_here(near, half / without_suffix(archive), target)
            if near != archive:
                near.unlink()
            say(f"data    unpacked {archive.name}; it will be found there from now on")
    return innermost(target)


def unpack_here(
    archive: Path,
    folder: Path,  # that is filled
    target: Path,  # as which the user will know it
) -> None:
    "Look through an archive and unpack it; UserError if it is not right, OSError if the disk is."
    with whole(archive):
        files, size = look_through(archive)
    make_room(target.parent, size + BLOCK * files, archive.name)  # a file fills its last block
    say(f"data    unpacking {archive.name}: {files} files, {megabytes(size)}, to {target}")
    with progress(size) as more:
        for member in members(archive):
            if not is_junk(member.name):
                write_member(member, folder)
                more(member.size)


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
    test_eq(found.parents[1], target_of(archive, Path(tmp) / "data"))
    test_eq([why_refused(m) for m in members(archive)], ["", "", ""])
    test_eq(look_through(archive), (2, 3))
    for member in zip_members(archive):
        assert isinstance(member, Member)
        write_member(member, Path(tmp) / member.name[:2])
    test_eq([b"".join(content(m)) for m in members(archive)], [b"a", b"b", b"c"])
    test_eq(innermost(Path(tmp) / "si").name, "sirst-master")
    assert is_zip(archive) and is_junk(".DS_Store") and without_suffix(archive) == "sirst"
    unpack_here(archive, Path(tmp) / "more" / "sirst", Path(tmp) / "more")
    copy_here(archive, Path(tmp) / "copy.zip")
    test_eq(len(list(members(Path(tmp) / "copy.zip"))), 3)
test_eq(parts_of("./images\\a.png"), ["images", "a.png"])

# %% [markdown]
# An archive that would write elsewhere is refused as a whole, and so is one that is none:

# %%
with tempfile.TemporaryDirectory() as tmp:
    evil, none = Path(tmp) / "evil.tar.gz", Path(tmp) / "none.zip"
    with tarfile.open(evil, "w:gz") as tar:
        tar.addfile(Header("images/a.png"), io.BytesIO())
        tar.addfile(Header("../../.bashrc"), io.BytesIO())
    with expect_fail(UserError, contains="'../../.bashrc' leads out of its folder"):
        unpack(evil, Path(tmp) / "data")
    test_eq([m.name for m in tar_members(evil)], ["images/a.png", "../../.bashrc"])
    none.write_text("a web page")
    with expect_fail(UserError, contains="none.zip: damaged, or no archive"), whole(none):
        look_through(none)
    with expect_fail(tarfile.ReadError, contains="neither zip nor tar"):
        open_tar(none)
    test_eq([is_tar(path) for path in (evil, none)], [True, False])
    test_eq(list(Path(tmp).rglob("*.png")), [])


# %% [markdown]
# ## Loose files on Drive
#
# They are copied once, several at a time, since each waits for the network. Which files they are, their sizes and times make the name of the copy: a changed folder is copied anew.

# %%
#| export
def files_below(
    folder: Path,
) -> dict[Path, os.stat_result]:  # by their paths in it
    "The files of a folder; UserError if any part of it cannot be read."

    def stop(error: OSError) -> None:  # os.walk would leave the part out
        raise error

    with reading_from(folder):
        walked = os.walk(folder, onerror=stop)
        found = sorted(Path(top) / name for top, _, names in walked for name in names)
        return {p.relative_to(folder): p.stat() for p in found if p.is_file()}


# %% [markdown]
# The copy:

# %%
#| export
def copy_from_drive(
    folder: Path,
    local: Path,  # where folders of data sets are made
) -> Path:
    "A copy of a folder on the local disk, made the first time."
    files = files_below(folder)
    listed = [f"{name} {about.st_size} {about.st_mtime_ns}" for name, about in files.items()]
    digits = hashlib.sha256("\n".join(listed).encode()).hexdigest()[:8]
    size = sum(about.st_size for about in files.values())
    target = local / UNPACKED / f"{folder.name}-{digits}"
    with writing_to(local), made_once(target) as half:
        if half:
            make_room(local, size + BLOCK * len(files), folder.name)
            say(
                f"data    copying {folder.name} from Google Drive: {len(files)} files, "
                f"{megabytes(size)}, to {target}; a .zip of them would be much faster"
            )
            copy = half / folder.name
            for name in {(copy / file).parent for file in files} | {copy}:
                name.mkdir(parents=True, exist_ok=True)
            with ThreadPoolExecutor(8) as pool, progress(size) as more:
                copied = pool.map(lambda file: copy_here(folder / file, copy / file), files)
                for about, _ in zip(files.values(), copied, strict=True):
                    more(about.st_size)
            say(f"data    copied {folder.name}; it will be found there from now on")
    return target / folder.name


# %%
with tempfile.TemporaryDirectory() as tmp:
    (Path(tmp) / "drive" / "set" / "images").mkdir(parents=True)
    (Path(tmp) / "drive" / "set" / "images" / "a.png").touch()
    copy = copy_from_drive(Path(tmp) / "drive" / "set", Path(tmp) / "data")
    test_eq(list(files_below(copy)), [Path("images/a.png")])


# %% [markdown]
# ## Fetched by name
#
# Three data sets are known by name. Where each lies was read from public pages, in stored copies of them; **nothing was downloaded here**, so no size and no sum is known, and none is written down. Instead the sum of the first download is told, kept beside it (`NAME.zip.sha256`) and compared with every later one.
#
# - **NUAA-SIRST**, also called SIRST: the authors' repository YimianDai/sirst, as GitHub packs it, at the commit 84302ab that added the lists `idx_427` (its files are those in the index of that repository). These are the authors' own 341 and 86 images; the 213 and 214 that most papers use are not among them.
# - **IRSTD-1k**: the number on Google Drive in the README of the authors' repository RuiZhang97/ISNet at commit 89eb28e. (An older README, at 14c6bc8, has another number.) The README names the MIT licence.
# - **NUDT-SIRST**: the authors' README (YeRen123455/Infrared-Small-Target-Detection, 21584be) leads to Baidu, which asks for an account. The toolbox XinyiYing/BasicIRSTD packs three data sets with their lists in one file on Google Drive, whose number is in its README at 08185ad; NUDT-SIRST is taken out of that.
#
# None of them has a name on Kaggle that could be traced to its authors. Somebody's copy there is attached by the notebook's Add Input, and found by its folder's name. `gdown` (which Colab has) is used where it is installed, and not required. So is `kagglehub`, for a row with a name on Kaggle; the table has none yet.

# %%
#| export
@dataclass(frozen=True)
class Published:
    "A data set that others publish: its address is one of `url`, `drive` and `kaggle`."

    name: str
    page: str  # for people: what it is, how to get it by hand, its licence
    url: str = ""  # of an archive
    drive: str = ""  # number of an archive on Google Drive
    kaggle: str = ""  # owner and name on Kaggle
    size: int | None = None  # bytes of the archive; None: not known here
    sha256: str = ""  # of the archive; empty: not known here
    inside: str = ""  # folder in the archive, where that holds more
    note: str = ""  # what to know before training on it
    other_names: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        "Where it is fetched from; empty: it is not."
        drive = f"Google Drive ({self.drive})" if self.drive else ""
        return self.url or drive or (f"Kaggle ({self.kaggle})" if self.kaggle else "")

    @property
    def by_hand(self) -> str:
        "What to do where it is not fetched."
        return f"get it by hand from {self.page} and write --dataset-dir FILE.zip"


# %% [markdown]
# The table:

# %%
#| export
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


def known(
    text: str,  # as written by the user
    table: tuple[Published, ...] = KNOWN,
) -> Published | None:
    "The published data set of this name, in capitals or not."
    names = {name.lower(): p for p in table for name in (p.name, *p.other_names)}
    return names.get(text.lower())


# %%
test_eq([known(name).name for name in ("sirst", "irstd-1K")], ["NUAA-SIRST", "IRSTD-1k"])
test_eq(known("my-images"), None)
known("NUDT-SIRST").source


# %% [markdown]
# A download breaks off more often than it fails. What has come stays, and the next request asks for the rest (`Range`) of the same version (`If-Range`); a server that sends the whole again is believed, and one that does not name its versions is asked for the whole.

# %%
#| export
@dataclass
class Download:
    "A file on its way."

    url: str
    file: Path
    timeout: float  # seconds without a byte
    version: str = ""  # of which the file is the beginning; empty: the server does not say

    def go_on(self) -> None:
        "Get the file, or the rest of it; OSError or HTTPException if it ends early."
        have = self.file.stat().st_size if self.version and self.file.exists() else 0
        request = urllib.request.Request(self.url, headers={"User-Agent": "mshnet"})
        if have:
            request.add_header("Range", f"bytes={have}-")
            request.add_header("If-Range", self.version)
        with urllib.request.urlopen(request, timeout=self.timeout) as reply:
            part = reply.headers.get("Content-Range", "") if reply.status == 206 else ""
            have = have if part.startswith(f"bytes {have}-") else 0
            if reply.status == 206 and not have:
                self.version = ""  # begin again
                raise OSError(f"asked for the rest, the server sent {part or 'something else'}")
            self.version = reply.headers.get("ETag", "")
            self.write(reply, have)

    def write(self, reply: http.client.HTTPResponse, have: int) -> None:
        "Write what comes behind what there is."
        length = reply.headers.get("Content-Length")
        total = have + int(length) if length else None
        make_room(self.file.parent, int(length or 0), self.url)
        with open(self.file, "ab" if have else "wb") as out, progress(total, have) as more:
            while chunk := reply.read(1 << 16):
                out.write(chunk)
                more(len(chunk))
        if total is not None and (size := self.file.stat().st_size) != total:
            raise OSError(f"it ended after {size} of {total} bytes")


# %% [markdown]
# An address that does not exist is not asked twice; everything else is tried a few times, after longer and longer pauses.

# %%
#| export
def fetch(
    url: str,
    file: Path,
    timeout: float = 30.0,  # seconds without a byte
    tries: int = 5,
    pause: float = 1.0,  # seconds before the second try; doubled before each further one
) -> None:
    "Download a file; UserError, and no file, if that is not possible."
    file.unlink(missing_ok=True)
    download = Download(url, file, timeout)
    why = ""
    for left in reversed(range(tries)):
        try:
            return download.go_on()
        except UserError:
            raise
        except (OSError, http.client.HTTPException, ValueError) as error:  # the last: odd headers
            why = error_text(error)
            code = getattr(error, "code", 0)  # of an HTTP answer
            hopeless = 400 <= code < 500 and code not in (408, 416, 429)
            if hopeless or getattr(error, "errno", None) == errno.ENOSPC or not left:
                break
            if code == 416:  # more than there is: begin again
                file.unlink(missing_ok=True)
            say(f"data    {why}; trying again in {pause:.0f} s ({left} tries left)")
            time.sleep(pause)
            pause *= 2
    file.unlink(missing_ok=True)
    off = "; switch Internet on in the session's options" if where() == KAGGLE else ""
    raise UserError(f"{url}: cannot be fetched ({why}){off}")


# %% [markdown]
# A server that breaks off in the middle, here in a few lines; the tests have a worse one.

# %%
class Broken(http.server.BaseHTTPRequestHandler):
    "Sends five bytes of ten, and the rest when asked for it."

    def do_GET(self):
        begin = 5 if self.headers.get("Range") else 0
        self.send_response(206 if begin else 200)
        self.send_header("ETag", '"1"')
        self.send_header("Content-Length", str(10 - begin))
        self.send_header("Content-Range", f"bytes {begin}-9/10")
        self.end_headers()
        self.wfile.write(b"0123456789"[begin : begin + 5])

    def log_message(self, *_):
        "Be quiet."


with (
    http.server.ThreadingHTTPServer(("127.0.0.1", 0), Broken) as server,
    tempfile.TemporaryDirectory() as tmp,
):
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address, file = f"http://127.0.0.1:{server.server_port}/", Path(tmp) / "a"
    fetch(address, file, pause=0)
    test_eq(file.read_bytes(), b"0123456789")
    Download(address, file, 5, '"1"').version
    server.shutdown()


# %% [markdown]
# Google Drive and Kaggle have libraries of their own:

# %%
#| export
def fetch_from_drive(
    published: Published,
    file: Path,
) -> None:
    "Download an archive with gdown; UserError if that is not possible."
    try:
        import gdown
    except ImportError:
        todo = f"`pip install gdown` and try again, or {published.by_hand}"
        raise UserError(f"{published.name} is fetched from Google Drive: {todo}") from None
    try:
        got = gdown.download(id=published.drive, output=str(file), quiet=not interactive())
        why = "" if got and file.is_file() else "it gave nothing"
    except Exception as error:  # its own and those of requests
        why = error_text(error)
    if why:
        busy = "Google Drive refuses files that many people fetch; try tomorrow"
        raise UserError(f"{published.name}: not fetched ({why}). {busy}, or {published.by_hand}")


def fetch_from_kaggle(
    published: Published,
) -> Path:  # a folder
    "Download a data set with kagglehub; UserError if that is not possible."
    try:
        import kagglehub
    except ImportError:
        todo = f"`pip install kagglehub` and try again, or {published.by_hand}"
        raise UserError(f"{published.name} is fetched from Kaggle: {todo}") from None
    try:
        return Path(kagglehub.dataset_download(published.kaggle))
    except Exception as error:  # its own and those of requests
        why = error_text(error)
        raise UserError(f"{published.name}: not fetched ({why}); {published.by_hand}") from None


# %%
with tempfile.TemporaryDirectory() as tmp:
    nothing = Published("A", "https://example.org", drive="no-number", kaggle="nobody/nothing")
    if not installed("gdown"):
        with expect_fail(UserError, contains="pip install gdown"):
            fetch_from_drive(nothing, Path(tmp) / "a.zip")
    if not installed("kagglehub"):
        with expect_fail(UserError, contains="pip install kagglehub"):
            fetch_from_kaggle(nothing)


# %% [markdown]
# What came is compared before it gets its name: size, sum, and whether it is an archive at all (a page that says "too many downloads" also arrives without an error).

# %%
#| export
def wrong_with(
    published: Published,
    file: Path,  # what came
    record: Path,  # holds the sum of the first download, or does not exist yet
) -> str:  # empty: nothing, and from now on its sum is in the record
    "What is wrong with an archive, which is left as it is."
    with open(file, "rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    first = record.read_text("utf-8", "replace").split() if record.exists() else []
    wanted, size = published.sha256 or "".join(first[:1]) or found, file.stat().st_size
    if published.size not in (None, size):
        return f"has {size} bytes, and should have {published.size}"
    if found != wanted:
        old = "" if published.sha256 else f", as the first time (it may be new: delete {record})"
        return f"has the sha256 {found}, and should have {wanted}{old}"
    if not (is_zip(file) or is_tar(file)):
        return "is no archive, perhaps a web page"
    if not record.exists():
        with writing_to(record):
            record.write_text(f"{found}  {record.stem}\n", encoding="utf-8")
        say(f"data    sha256 {found}, kept in {record} to be compared with")
    return ""


def wrong_with_kept(
    published: Published,
    file: Path,
) -> str:  # empty: nothing, or it is unpacked already
    "What is wrong with an archive that is there already."
    with reading_from(file):
        if target_of(file, file.parent).is_dir():
            return ""
        return wrong_with(published, file, file.with_name(f"{file.name}.sha256"))


# %% [markdown]
# Together. An archive that is there already, from the last time or put there by hand under that name, is not fetched again. It is the user's: if it is not right that is said, and it stays where it is.

# %%
#| export
def bring(
    published: Published,
    local: Path,  # where folders of data sets are made
    **how: Any,  # to `fetch`
) -> Path:  # its folder
    "Fetch a published data set, the first time; UserError if that is not possible."
    if not published.source:
        raise UserError(f"{published.name} is not fetched by name; {published.by_hand}")
    licence = f"for its licence see {published.page}"
    size = f"size {megabytes(published.size) if published.size else 'not known'}"
    told = f"data    fetching {published.name} from {published.source}, {size}; {licence}"
    if published.kaggle and not (published.url or published.drive):
        say(told)
        return part_of(innermost(fetch_from_kaggle(published)), published.inside)
    file = local / f"{published.name}.zip"
    with writing_to(local):
        local.mkdir(parents=True, exist_ok=True)
        with alone(file.with_name(f".{file.name}.lock")):
            if not file.exists():
                say(told)
                fetch_checked(published, file, **how)
                say(f"data    fetched{'; ' * bool(published.note)}{published.note}")
            elif wrong := wrong_with_kept(published, file):
                todo = "move it away to have it fetched again"
                raise UserError(f"{file}: {wrong}; {todo}, or {published.by_hand}")
    return part_of(unpack(file, local), published.inside)


# %% [markdown]
# The rest of it:

# %%
#| export
def fetch_checked(
    published: Published,
    file: Path,
    **how: Any,  # to `fetch`
) -> None:
    "Fetch an archive under another name, and rename it when it is whole and right."
    half = file.with_name(f".{file.name}.partial")
    shutil.rmtree(half, ignore_errors=True)
    half.mkdir()
    try:
        if published.url:
            fetch(published.url, half / file.name, **how)
        else:
            fetch_from_drive(published, half / file.name)
        record = file.with_name(f"{file.name}.sha256")
        if wrong := wrong_with(published, half / file.name, record):
            raise UserError(f"{published.name}: what came {wrong}; {published.by_hand}")
        os.replace(half / file.name, file)
    finally:
        shutil.rmtree(half, ignore_errors=True)


def part_of(
    folder: Path,
    name: str,  # of a folder in it; empty: the folder itself
) -> Path:
    "The folder of this name in a folder, the least deep one, or that folder itself."
    if not name:
        return folder
    walked = ((Path(top), names) for top, names, _ in os.walk(folder))
    found = [top / n for top, names in walked for n in names if n.lower() == name.lower()]
    if found:
        return min(found, key=lambda path: (len(path.parts), path))
    if folder.name.lower() == name.lower():  # as it is called after its archive, asked last
        return folder
    raise UserError(f"{folder}: has no folder {name}; write the one you mean as --dataset-dir")


# %% [markdown]
# With files instead of a network:

# %%
with tempfile.TemporaryDirectory() as tmp:
    with zipfile.ZipFile(f"{tmp}/all.zip", "w") as box:
        box.writestr("all/A/images/a.png", "a")
        box.writestr("all/B/images/b.png", "b")
    some = Published("some", "https://example.org", url=f"file://{tmp}/all.zip", inside="B")
    found = bring(some, Path(tmp) / "data")
    test_eq([p.name for p in found.iterdir()], ["images"])
    test_eq(bring(some, Path(tmp) / "data"), part_of(found.parent, "b"))
    page = Path(tmp) / "page.zip"
    page.write_text("<html>")
    wrong = wrong_with(some, page, page.with_suffix(".sha256"))
    test_eq([wrong, wrong_with_kept(some, page)], ["is no archive, perhaps a web page"] * 2)
    with expect_fail(UserError, contains="cannot be fetched"):
        fetch_checked(Published("none", "", url=f"file://{tmp}/x"), Path(tmp) / "x", tries=1)


# %% [markdown]
# ## Where is the data set?
#
# All of this has one door. A data set is named by its folder or its archive, or by its bare name where this place keeps data: Kaggle mounts an attached data set in `/kaggle/input/NAME`, and the folder inside often repeats the name, so one level below is searched too, and a second one, where the user's own files begin on a mounted Drive. What begins with a dot is nobody's data set, and what was unpacked here is found by way of its archive, not by a folder's name: of several sets in one archive that would be any of them. A folder that holds nothing but one archive stands for it. Names of published data sets come last: a folder of that name, in capitals or not, is taken as it is.

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
    if place.name == "colab" and on_drive(written) and not is_mounted(MY_DRIVE):
        mounted = mount_drive(place)  # to name a folder there is to ask for it
        if not mounted.folder:
            raise UserError(f"dataset_dir={text!r}: {mounted}")
    for path in could_be(text, place):
        if os.path.isdir(path):
            return at_hand(path, place.local)
        if os.path.isfile(path) and path.name.lower().endswith(ARCHIVES):
            return unpack(path, place.local)
    if published := known(text):
        return bring(published, place.local)
    near: list[str] = []
    with contextlib.suppress(OSError, ValueError):
        near = [path.name for path in written.parent.iterdir() if path.name != written.name]
    near += [published.name for published in KNOWN]
    kind = "there is no such folder"
    if os.path.isfile(written):
        kind = f"is a file, not a folder or an archive ({', '.join(ARCHIVES)})"
    raise UserError(f"dataset_dir={text!r}: {kind}{did_you_mean(written.name, near)}")


# %% [markdown]
# Its parts:

# %%
#| export
def could_be(
    text: str,  # as written by the user
    place: Place,
) -> Iterator[Path]:
    "The paths that a name may stand for, the likeliest first."
    written = Path(os.path.expanduser(text))
    yield written
    if written.is_absolute():
        return
    yield place.data / text
    with contextlib.suppress(OSError, ValueError, RecursionError):  # one that may not be read
        for deep in ("[!.]*", "[!.]*/[!.]*"):
            found = sorted(place.data.glob(f"{deep}/{glob.escape(text)}"))
            yield from (path for path in found if place.local / UNPACKED not in path.parents)
    if known(text):
        for folder in dict.fromkeys((place.data, place.local, Path())):
            with contextlib.suppress(OSError):
                yield from (p for p in sorted(folder.iterdir()) if p.name.lower() == text.lower())


def at_hand(
    folder: Path,
    local: Path,  # where folders of data sets are made
) -> Path:
    "The folder to read a data set from: itself, what its only archive holds, or a local copy."
    inside: list[Path] = []
    with contextlib.suppress(OSError):  # told when it is read
        inside = [path for path in folder.iterdir() if not is_junk(path.name)]
    if len(inside) == 1 and inside[0].is_file() and inside[0].name.lower().endswith(ARCHIVES):
        return unpack(inside[0], local)
    return copy_from_drive(folder, local) if on_drive(folder) else folder


# %%
with tempfile.TemporaryDirectory() as tmp:
    (Path(tmp) / "input" / "irstd" / "IRSTD-1k").mkdir(parents=True)
    kaggle = Place("kaggle", Path(tmp) / "input", Path(tmp) / "runs", "", "", Path(tmp) / "local")
    assert find_dataset("irstd", kaggle) and find_dataset("IRSTD-1k", kaggle)
    with zipfile.ZipFile(Path(tmp) / "input" / "irstd" / "more.zip", "w") as box:
        box.writestr("images/a.png", "a")
        box.writestr("trainval.txt", "a")
    found = find_dataset("more.zip", kaggle)
    test_eq((found.name, len(list(found.iterdir()))), ("more", 2))
    test_eq(next(could_be("irstd", kaggle)), Path("irstd"))
    test_eq(at_hand(found, kaggle.local), found)
    with expect_fail(UserError, contains="did you mean irstd?"):
        find_dataset(f"{tmp}/input/irst", kaggle)
test_eq(find_dataset(""), None)


# %% [markdown]
# ## A run in one file
#
# To take a run along, or to keep it, it becomes one file: everything in its folder but what is only of use while it runs (locks, files being written) and TensorBoard's copy of the log. It may still be training: each file is complete at any moment, and the checkpoint is the latest one. Who packed it is not told: tar would keep the user's name.

# %%
#| export
def is_passing(
    path: Path,  # of a file, within a run's folder
) -> bool:
    "Whether a file of a run is not worth keeping."
    busy = path.name.startswith(".") and path.name.endswith(".tmp")
    lock = path.name == "lock" or path.name.endswith(".lock")
    return busy or lock or path.parts[0] == "tensorboard"


def write_archive(
    stream: IO[bytes],
    files: Mapping[str, Path],  # by their names in the archive
    format: str,  # zip or tar.gz
) -> None:
    "Write files as an archive; those that vanish meanwhile are left out."
    if format == "zip":
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as box:
            for name, path in files.items():
                with contextlib.suppress(FileNotFoundError):
                    box.write(path, name)
        return
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, path in files.items():
            with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
                header = tar.gettarinfo(arcname=name, fileobj=file)
                header.uid = header.gid = 0
                header.uname = header.gname = ""
                tar.addfile(header, file)


# %% [markdown]
# What is named by hand may be anything: a folder, the checkpoint itself, a name that no file can have. What a file is called says what it is, so its ending decides the format, and nothing else is written under it. Nothing in the run's own folder is replaced.

# %%
#| export
def run_named(
    text: str | Path,  # as written by the user
) -> Path:
    "The folder of a run; UserError if it is none."
    if not can_be_a_name(str(text)):
        raise UserError(f"{shown(str(text))}: is no run, no folder can be called that")
    run = Path(text).expanduser()
    if not os.path.isfile(run / "config.json"):
        why, near = "it has no config.json", list[str]()
        if not os.path.exists(run):
            with contextlib.suppress(OSError):
                near = [path.name for path in run.parent.iterdir()]
            why = f"there is no such folder{did_you_mean(run.name, near)}"
        raise UserError(f"{text}: is no run, {why}")
    return run


def output_file(
    run: Path,  # its folder
    output: str | Path,  # as written by the user; empty: beside the run, named after it
    endings: Sequence[str],  # that the file may have, such as .zip; the first where it is free
) -> Path:
    "The file that something of a run is written to; UserError if it must not be."
    if not output:
        return run.resolve().with_name(f"{run.resolve().name}{endings[0]}")
    what = f"output={shown(str(output))}"
    if not can_be_a_name(str(output)):
        raise UserError(f"{what}: no file can be called that, write another name")
    path = Path(output).expanduser()
    if path.is_dir():
        raise UserError(f"{what}: is a folder, write the name of a file in it")
    if not path.name.lower().endswith(tuple(endings)):
        raise UserError(f"{what}: write a name that ends in {' or '.join(endings)}")
    if path.exists() and Path(os.path.realpath(path)).is_relative_to(run.resolve()):
        raise UserError(f"{what}: is a file of the run itself, write another name")
    if not path.parent.is_dir():
        raise UserError(f"{what}: there is no folder {path.parent}; make it first")
    return path


# %% [markdown]
# In Colab the browser then offers the file for download. That takes a notebook's own process: `!mshnet pack` writes the file and says where it is.

# %%
#| export
ENDINGS = {"tar.gz": (".tar.gz", ".tgz"), "zip": (".zip",)}  # of each format


def pack(
    folder: str | Path,  # of a run
    format: str = "",  # zip or tar.gz; empty: as the output is called, or else tar.gz
    output: str | Path = "",  # file to write; empty: beside the run, named after it
    place: Place | None = None,
) -> Path:  # of the archive
    "Put a run into one file; UserError if it is none, or the file cannot be written."
    if format not in ("", *ENDINGS):
        raise UserError(
            f"format={format!r} is not possible: write zip or tar.gz (mshnet export: the weights)"
        )
    run = run_named(folder)
    endings = ENDINGS[format] if format else [end for some in ENDINGS.values() for end in some]
    path = output_file(run, output, endings)
    format = "zip" if path.name.lower().endswith(".zip") else "tar.gz"
    found = [p.relative_to(run) for p in sorted(run.rglob("*")) if p.is_file()]
    name = run.resolve().name
    files = {f"{name}/{p.as_posix()}": run / p for p in found if not is_passing(p)}
    half = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with writing_to(path):
            with open(half, "wb") as stream:
                write_archive(stream, files, format)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(half, path)
    finally:
        with contextlib.suppress(OSError):
            half.unlink(missing_ok=True)
    offer_download(path, place)
    return path


# %% [markdown]
# The offer:

# %%
#| export
def offer_download(
    path: Path,
    place: Place | None = None,
) -> bool:  # whether it could be
    "Let the browser offer a file for download, in a notebook of Colab."
    if (place or where()).name != "colab":
        return False
    try:
        from google.colab import files

        files.download(str(path))
    except Exception:  # not in the notebook's process
        say(f"{path} is not offered for download; in a cell, `from mshnet.places import pack` does")
        return False
    return True


# %%
with tempfile.TemporaryDirectory() as tmp:
    run = Path(tmp) / "sirst-1f0c2a9b"
    (run / "tensorboard").mkdir(parents=True)
    for name in ("config.json", "last.pt", ".last.pt.7.tmp", "tensorboard/events"):
        (run / name).touch()
    packed = pack(run)
    with tarfile.open(packed) as tar:
        test_eq(tar.getnames(), [f"{run.name}/config.json", f"{run.name}/last.pt"])
    test_eq(pack(run, "zip").name, f"{run.name}.zip")
    test_eq(run_named(run), run)
    test_eq(output_file(run, "", [".zip", ".tgz"]), Path(f"{run}.zip").resolve())
    with expect_fail(UserError, contains="is no run"):
        pack(tmp)
    with expect_fail(UserError, contains="write a name that ends in .zip"):
        pack(run, "zip", run / "last.pt")
    assert is_passing(Path("run.lock")) and not offer_download(packed, HERE)
    write_archive(io.BytesIO(), {"a": packed}, "zip")


# %% [markdown]
# And a run has one folder: the one asked for, the one of the run that goes on, or one named after its recipe where this place keeps runs.

# %%
#| export
def run_folder(
    config: Settings,
    place: Place | None = None,
) -> Path:
    "The folder of this run."
    if config.output_dir:
        return Path(config.output_dir).expanduser()
    if config.resume:
        start = Path(config.resume).expanduser()
        return start if start.is_dir() else start.parent
    return (place or where()).runs / run_name(config)


def free_memory(
    groups: Path = Path("/sys/fs/cgroup"),
) -> float:  # bytes; infinite where it cannot be known
    "Memory that this process may still take, by the system and by its container."
    found = [math.inf]
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found.append(1024 * float(next(x for x in lines if "MemAvailable" in x).split()[1]))
    for limit, used in (("max", "current"), ("limit_in_bytes", "usage_in_bytes")):
        folder = groups if limit == "max" else groups / "memory"  # as older systems have it
        with contextlib.suppress(OSError, ValueError):  # no file, or the word "max"
            room = float((folder / f"memory.{limit}").read_text())
            room -= float((folder / f"memory.{used}").read_text())
            stat = (folder / "memory.stat").read_text().splitlines()
            counts = dict(line.split() for line in stat)
            found.append(room + float(counts.get("inactive_file", 0)))  # given up when asked
    return min(found)


def program_folder(config: Settings) -> Path:
    "The folder of programs compiled for a TPU, which the runs beside it share."
    return run_folder(config).parent / "xla_cache"


# %%
test_eq(run_folder(Config(output_dir="mine")), Path("mine"))
test_eq(program_folder(Config(output_dir="my/run")), Path("my/xla_cache"))
assert free_memory() > 0
test_eq(run_folder(Config(resume="old/last.pt")), Path("old"))
test_eq(run_folder(Config(), KAGGLE), Path("/kaggle/working/runs") / run_name(Config()))


# %% [markdown]
# ## Results that outlive the session
#
# Colab deletes its disk with the session. So a run's files can be copied meanwhile to a second folder, their **mirror**: on Google Drive (`mirror_dir=drive`), on a network disk, on a stick. Each run has its own folder there, with the name of the run's folder. Where the Drive is not mounted nothing is copied, and that is said: a folder made where it should be would lie on the disk that is deleted. In Colab a run starts in the folder in which the Drive is mounted, so `drive/MyDrive/copies` is a folder of the Drive too.

# %%
#| export
def mirror_parent(
    config: Settings,
    place: Place | None = None,
) -> Path | None:  # None: none is asked for, or Drive where there is none
    "The folder in which runs have their copies."
    if config.mirror_dir == "drive":
        drive = (place or where()).drive
        return drive / "mshnet" if drive else None
    folder = Path(config.mirror_dir).expanduser()
    return Path(os.path.abspath(folder)) if config.mirror_dir else None


def wants_drive(
    config: Settings,
    place: Place | None = None,
) -> bool:
    "Whether a run's copies go to a Google Drive that can be mounted here."
    parent, drive = mirror_parent(config, place), (place or where()).drive
    return bool(parent and drive and parent.is_relative_to(drive.parent))

# %% [markdown]
# Each run's own:

# %%
#| export


def mirror_folder(
    config: Settings,
    place: Place | None = None,
    say: Callable[[str], object] = print,  # told why there is none
) -> Path | None:
    "The folder of this run's copies; None if there is none."
    if not config.mirror_dir:
        return None
    place = place or where()
    folder = Path(os.path.abspath(run_folder(config, place)))
    parent = mirror_parent(config, place)
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
    test_eq(
        [mirror_parent(asked, place) for place in (HERE, colab)], [None, colab.drive / "mshnet"]
    )
test_eq(mirror_folder(Config()), None)
with expect_fail(UserError, contains="the run itself is there"):
    mirror_folder(Config(mirror_dir="runs", output_dir="runs/mine"))

# %% [markdown]
# What is copied? Everything but temporary files, TensorBoard's (they grow all the time) and `previous.pt`, of which the mirror makes its own. The small records come first, for they say most per byte. `status.json` comes last: copies are compared by it, and it shall not promise an epoch that is not there. A file has changed when its stamp has.

# %%
#| export
Stamp = tuple[int, int, int]  # size, time of the last change, number on the disk


def stamp(
    file: Path | int,  # a file, or the number of an open one
) -> Stamp | None:  # None if there is no such file
    "What is different after a file was changed."
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns, found.st_ino


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


# %% [markdown]
# A copy is written under another name, read back, compared, and renamed; so a file in the mirror is whole. (What is read back may come from this machine's memory and not from the far disk; better cannot be had from here. All of this was tried with local disks that filled up, hung and vanished, and not with a real Drive.) A file that is replaced meanwhile is copied as it was, since it stays open; one that is written to meanwhile is left for the next time.

# %%
#| export
def digest(file: Path) -> str:
    "SHA-256 of a file's content."
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def to_disk(file: BinaryIO) -> None:
    "Have an open file written to the disk, as far as its file system can promise that."
    file.flush()
    try:
        os.fsync(file.fileno())
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
            raise


def cause(error: Exception) -> str:
    "An error in a few words."
    words = getattr(error, "strerror", None) or str(error)
    return words if isinstance(error, OSError) else f"{type(error).__name__}: {words}"


# %% [markdown]
# The copy itself. The checkpoint that was there becomes `previous.pt`, and the one before is emptied first: Google Drive keeps what is deleted in its trash, and the trash counts.

# %%
#| export
def copy_file(
    old: Path,
    new: Path,
    write: Callable[[BinaryIO, bytes], object],  # puts a piece into an open file
) -> Stamp | None:  # of what was copied; None if it was written to meanwhile
    "Copy a file, or leave everything as it was; OSError if it cannot be done."
    temporary, read = new.with_name(f".{new.name}.tmp"), hashlib.sha256()
    try:
        with open(old, "rb") as source, open(temporary, "wb") as target:
            before = stamp(source.fileno())
            while piece := source.read(1_000_000):
                read.update(piece)
                write(target, piece)
            to_disk(target)
            if stamp(source.fileno()) != before:
                return None
        if digest(temporary) != read.hexdigest():
            raise OSError("a copy differs from its original")
        if new.name == "last.pt" and new.exists():
            previous = new.with_name("previous.pt")
            with contextlib.suppress(FileNotFoundError):
                os.truncate(previous, 0)
            os.replace(new, previous)
        os.replace(temporary, new)
        return before
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


# %%
def write_run(folder, **files):
    "A folder with a few small files."
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    return folder


with tempfile.TemporaryDirectory() as tmp:
    old, new = write_run(Path(tmp) / "a", last_pt="epoch 1"), write_run(Path(tmp) / "b")
    for text in ("epoch 1", "epoch 2"):
        (old / "last.pt").write_text(text)
        copied = copy_file(old / "last.pt", new / "last.pt", lambda file, piece: file.write(piece))
        test_eq(copied, stamp(old / "last.pt"))
    contents = {p.name: p.read_text() for p in new.iterdir()}
    test_eq(contents, {"last.pt": "epoch 2", "previous.pt": "epoch 1"})
    assert digest(new / "last.pt") == digest(old / "last.pt")
    with open(new / "note.txt", "wb") as file:
        to_disk(file)
    write_run(old, status_json="", best_pt="", log_jsonl="", _last_pt_tmp="")
    test_eq(run_files(old), ["log.jsonl", "best.pt", "last.pt", "status.json"])


# %% [markdown]
# Two folders can be mistaken for the mirror. When a Drive is unmounted, an empty folder of the local disk is left in its place. So before the first file the nearest folder that exists must still be the one it was at the start, by its numbers on the disk; then a marker is written beside the copies, and nothing goes where the marker is not. (Numbers alone would not do: a mounted Drive may give a folder another one later.) The marker differs from session to session: of two that copy the same run the later one stays, and the earlier one says so.
#
# And the mirror may hold something that is worth more than what would replace it: another run of the same name, or more epochs of this one.

# %%
#| export
def read_record(
    file: Path,
) -> dict[str, Any]:
    "Content of a JSON file; empty if there is none or it is no record."
    try:
        found = json.loads(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def epochs_done(folder: Path) -> int:
    "How many epochs a run has, by its status.json; 0 if that does not say."
    found = read_record(folder / "status.json").get("epochs_done")
    return found if isinstance(found, int) else 0


def worth_keeping(
    source: Path,
    target: Path,
) -> str:  # empty if the target may be written
    "Why what the target holds must not be replaced by what is in the source."
    ours, theirs = (read_record(folder / "config.json") for folder in (source, target))
    same = ours.keys() & theirs.keys() - PlaceFields.model_fields.keys() - {"epochs", "precision"}
    if any(ours[name] != theirs[name] for name in same):
        return "it holds another run; name another mirror_dir or output_dir"
    here, there = epochs_done(source), epochs_done(target)
    return f"it holds {there} epochs of this run, and here are {here}" if there > here else ""


# %% [markdown]
# Which folder is it, and may it be written?

# %%
#| export
def nearest_folder(
    path: Path,
) -> tuple[Path, tuple[int, int]]:  # with its device and its number there
    "The nearest folder on the way to a path that exists."
    for folder in (path, *path.parents):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            found = os.stat(folder)
            if stat.S_ISDIR(found.st_mode):
                return folder, (found.st_dev, found.st_ino)
    raise OSError("there is no such disk")


class Claim:
    "The right of this session to write in a folder, and the proof that it is still the same."

    def __init__(self, target: Path) -> None:
        self.target, self.token, self.made = target, uuid.uuid4().hex, False
        self.start: tuple[Path, tuple[int, int]] | None = None

    def check(self, source: Path) -> None:
        "Raise OSError unless files of the source may be written there."
        marker = self.target / ".mirror"
        if self.made:
            found = marker.read_bytes() if marker.is_file() else b""
            if found != self.token.encode():
                raise OSError("another session copies to it now" if found else "it is gone")
            return
        self.start = self.start or nearest_folder(self.target)
        if nearest_folder(self.start[0]) != self.start:
            raise OSError("it is gone")
        if self.target.exists() and os.path.samefile(source, self.target):
            raise OSError("it is the run's own folder")
        if reason := worth_keeping(source, self.target):
            raise OSError(reason)
        self.target.mkdir(parents=True, exist_ok=True)
        marker.write_text(self.token)
        self.made = True


# %%
with tempfile.TemporaryDirectory() as tmp:
    source, target = write_run(Path(tmp) / "run", log_jsonl=""), Path(tmp) / "disk" / "run"
    target.parent.mkdir()
    test_eq(nearest_folder(target)[0], target.parent)
    claim = Claim(target)
    claim.check(source)
    target.parent.rename(Path(tmp) / "unmounted")
    with expect_fail(OSError, contains="it is gone"):
        claim.check(source)
    write_run(target, status_json='{"epochs_done": 9}', config_json='{"lr": 0.05}')
    test_eq([epochs_done(f) for f in (source, target)], [0, 9])
    write_run(source, config_json='{"lr": 0.1}')
    assert "another run" in worth_keeping(source, target)
    test_eq(read_record(source / "config.json"), {"lr": 0.1})
worth_keeping(Path("nowhere"), Path("nowhere"))


# %% [markdown]
# One round copies every file that has changed since it was copied. After a new start nothing is remembered, and a file that is there with the same content is taken as copied. An error with one file does not keep the others back: a disk may be too full for a checkpoint and not for the log.

# %%
#| export
class Copies:
    "A run's folder and its copy: what is there, and what is missing."

    def __init__(self, source: Path, target: Path) -> None:
        self.source, self.target, self.claim = source, target, Claim(target)
        self.done: dict[str, Stamp] = {}  # what is in the target, as it was then

    def missing(self) -> list[str]:
        "Files that are not in the target as they are now."
        old = self.source
        return [name for name in run_files(old) if stamp(old / name) != self.done.get(name)]

    def copy(self, name: str, write: Callable[[BinaryIO, bytes], object]) -> None:
        "Copy one file, unless it is there."
        old, new = self.source / name, self.target / name
        for folder in reversed(Path(name).parents[:-1]):
            (self.target / folder).mkdir(exist_ok=True)
        found, there = stamp(old), stamp(new)
        alike = found and there and found[0] == there[0] and name not in self.done
        if not alike or digest(old) != digest(new) or stamp(old) != found:
            found = copy_file(old, new, write)
        self.done |= {name: found} if found else {}

    def copy_missing(self, write: Callable[[BinaryIO, bytes], object]) -> str:
        "Copy what is missing; return the first problem, or nothing."
        problem = ""
        for name in [*self.missing(), ""] if run_files(self.source) else []:
            try:
                self.claim.check(self.source)
            except OSError as error:
                self.done.clear()  # who knows what is there now?
                return cause(error)
            try:
                if name:
                    self.copy(name, write)
            except OSError as error:
                if (self.source / name).exists():  # else it was removed meanwhile
                    problem = problem or cause(error)
        return problem


# %%
def put(file, piece):
    "Write, on a disk where everything fits but checkpoints."
    if "last.pt" in file.name:
        raise OSError(28, "No space left on device")
    file.write(piece)


with tempfile.TemporaryDirectory() as tmp:
    source = write_run(Path(tmp) / "run", last_pt="epoch 1", log_jsonl="{}", env_json="{}")
    copies = Copies(source, Path(tmp) / "disk" / "run")
    test_eq(copies.copy_missing(put), "No space left on device")
    test_eq(copies.missing(), ["last.pt"])
    test_eq(run_files(copies.target), ["env.json", "log.jsonl"])
cause(ValueError("odd"))


# %% [markdown]
# ## Beside the training
#
# Copying must not be felt, so it is done at a limited rate, piece by piece.

# %%
#| export
class Pace:
    "Writes pieces at a limited rate."

    def __init__(self, rate: float) -> None:  # most megabytes per second
        self.rate, self.due, self.closed = rate, 0.0, threading.Event()
        self.clock: Callable[[], float] = time.monotonic
        self.sleep: Callable[[float], object] = self.closed.wait  # which closing ends

    def write(self, file: BinaryIO, piece: bytes) -> None:
        "Put a piece into an open file, and wait until the next may follow; OSError when closed."
        if self.closed.is_set():
            raise OSError("the mirror is closed")
        self.due = max(self.due, self.clock()) + len(piece) / (1e6 * self.rate)
        file.write(piece)
        self.sleep(max(0.0, self.due - self.clock()))


# %%
pace, slept, clock = Pace(rate=2.0), [], [0.0]
pace.clock, pace.sleep = lambda: clock[0], slept.append
for clock[0] in (0.0, 0.5, 0.6, 10.0):
    pace.write(io.BytesIO(), bytes(1_000_000))
test_close(slept, [0.5, 0.5, 0.9, 0.5])


# %% [markdown]
# And no error comes out of it: a problem is said once in a line, and when it is over that is said too.

# %%
#| export
class PatientCopies(Copies):
    "Copies made at a limited rate, whose problems are told and not raised."

    def __init__(
        self,
        source: Path,
        target: Path,
        rate: float,  # most megabytes per second
        say: Callable[[str], object],
    ) -> None:
        super().__init__(source, target)
        self.pace, self.say, self.problem = Pace(rate), say, ""
        self.told: set[str] = set()  # problems that were said, each of them once
        self.over = True  # whether the last that was said is over
        self.closed, self.busy = self.pace.closed, threading.Lock()

    def attempt(self) -> bool:  # whether it went well
        "Copy what is missing, as far as that is possible."
        with self.busy:
            try:
                self.problem = self.copy_missing(self.pace.write)
            except Exception as error:  # whatever it is, the training goes on
                self.problem = cause(error)
            with contextlib.suppress(Exception):  # nobody may be there to hear it
                self.tell()
        return not self.problem

    def tell(self) -> None:
        "Say a problem that is new, and that one is over."
        if self.closed.is_set():
            return
        if self.problem and self.problem not in self.told:
            self.told.add(self.problem)
            self.over = False
            self.say(f"mirror  {self.target}: {self.problem}; tried again later, the run goes on")
        elif not self.problem and not self.over:
            self.over = True
            self.say(f"mirror  {self.target}: works again")


# %%
with tempfile.TemporaryDirectory() as tmp:
    source, said = write_run(Path(tmp) / "run", log_jsonl="{}"), []
    patient = PatientCopies(source, Path(tmp) / "disk" / "run", 20.0, said.append)
    (Path(tmp) / "disk").write_text("no folder")
    test_eq([patient.attempt() for _ in range(3)], [False] * 3)
    (Path(tmp) / "disk").unlink()
    assert patient.attempt()
said = [line.replace(tmp, "") for line in said]
said


# %% [markdown]
# A thread makes a round when it was woken, because something was written, and then rests for a minute; after a failure for longer and longer, up to five minutes. A disk that does not answer blocks this thread alone. Being a daemon, it does not hold the process either. (The threads of a pool would: Python waits for those at the end.)

# %%
#| export
class BackgroundCopies(PatientCopies):
    "A thread that copies what has changed, beside whatever else happens."

    def __init__(
        self,
        source: Path,
        target: Path | None,  # None: nothing is copied
        rate: float = 20.0,  # most megabytes per second
        pause: float = 60.0,  # seconds between two rounds
        say: Callable[[str], object] = print,
    ) -> None:
        super().__init__(source, target or source, rate, say)
        self.wanted, self.pause, self.woken = target is not None, pause, threading.Event()
        self.thread: threading.Thread | None = None

    def start(self) -> None:
        "Begin, with what is there already."
        if self.wanted and not self.thread:
            self.wake()
            self.thread = threading.Thread(target=self.rounds, name="mirror", daemon=True)
            self.thread.start()

    def wake(self) -> None:
        "Say that something was written; this never waits."
        self.woken.set()

    def rounds(self) -> None:
        "What the thread does."
        failures = 0
        while self.woken.wait() and not self.closed.is_set():
            self.woken.clear()
            failures = 0 if self.attempt() else failures + 1
            if failures or self.missing():
                self.wake()
            self.closed.wait(self.rest(failures))

    def rest(self, failures: int) -> float:  # seconds
        "How long to wait after so many failures in a row."
        return max(self.pause, min(300.0, self.pause * 2.0 ** min(failures, 9)))


# %%
test_eq([BackgroundCopies(Path(), None).rest(n) for n in range(5)], [60, 120, 240, 300, 300])


# %% [markdown]
# At the end a line says where everything is, since somebody may have to act on it before the session is deleted:

# %%
#| export
def whereabouts(
    copies: PatientCopies,
    late: str = "",  # why not all was waited for
) -> str:
    "What of a run is where, in one line."
    names, missing = run_files(copies.source), copies.missing()
    size = sum(found[0] for n in names if (found := stamp(copies.source / n))) / 1e6
    if not missing:
        return f"mirror  all {len(names)} files ({size:,.1f} MB) are in {copies.target}"
    some = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if missing[5:] else "")
    why = ", ".join(filter(None, (copies.problem, late))) or "they changed meanwhile"
    there = f"{len(names) - len(missing)} of {len(names)} files are in {copies.target}"
    return f"mirror  {there}; missing: {some} ({why}); they are in {copies.source}"


# %%
with tempfile.TemporaryDirectory() as tmp:
    source = write_run(Path(tmp) / "run", last_pt="", log_jsonl="{}", env_json="")
    print(whereabouts(PatientCopies(source, Path("drive"), 20, print), "so far").replace(tmp, ""))


# %% [markdown]
# `flush` copies the rest without resting, waits a limited time for it, and says that. It tries three times.

# %%
#| export
class Mirror(BackgroundCopies):
    "A copy of a run's folder, kept up in the background; with target None it does nothing."

    def __enter__(self) -> "Mirror":
        self.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        "End the thread after the piece that it is writing; one that hangs is left behind."
        self.closed.set()
        self.wake()
        if self.thread:
            self.thread.join(1.0)

    def flush(self, timeout: float) -> str:  # seconds
        "Copy what is missing, wait for that at most so long, and say what is where."
        if not self.wanted:
            return ""
        worker = threading.Thread(target=self.hurry, daemon=True)
        worker.start()
        worker.join(timeout)
        return whereabouts(self, f"not done after {timeout:.0f} s" if worker.is_alive() else "")

    def hurry(self) -> None:
        "Three attempts."
        for _ in range(3):
            if self.closed.is_set() or (self.attempt() and not self.missing()):
                return
            self.closed.wait(min(1.0, self.pause))

    def state(self) -> dict[str, Any]:
        "The same for status.json; empty if there is no mirror."
        if not self.wanted:
            return {}
        missing, folder = self.missing(), str(self.target)
        there = {"folder": folder, "files": len(run_files(self.source)) - len(missing)}
        return {**there, "missing": missing, "problem": self.problem}


# %%
with tempfile.TemporaryDirectory() as tmp:
    source = write_run(Path(tmp) / "run", last_pt="epoch 1", log_jsonl="{}")
    with Mirror(source, Path(tmp) / "drive" / "run", rate=20) as mirror:
        (source / "last.pt").write_text("epoch 2")
        mirror.wake()
        print(mirror.flush(timeout=60).replace(tmp, ""))
    test_eq(
        mirror.state() | {"folder": ""}, {"folder": "", "files": 2, "missing": [], "problem": ""}
    )
    test_eq((Path(tmp) / "drive" / "run" / "last.pt").read_text(), "epoch 2")
test_eq([Mirror(source, None).flush(1), Mirror(source, None).state()], ["", {}])


# %% [markdown]
# ## Going on in a new session
#
# A new session has an empty disk. The run is brought back before it is looked for: from the mirror, or on Kaggle from an earlier output that was attached as input; if there are several copies, from the one with the most epochs. The checkpoint comes last, so that what was interrupted is done again; only the spare one comes after it, and takes its place if it cannot be read. A copy without a checkpoint that can be read is passed over with a warning, and leaves nothing. (The mirror then keeps its epochs: see above.)

# %%
#| export
def copies_of(
    config: Settings,
    place: Place | None = None,
) -> list[Path]:
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
    "Whether a run can go on from this folder; OSError if it cannot be reached."
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
        with passed_over(copy):
            if has_checkpoint(copy):
                found.append((epochs_done(copy), copy))
    for _, copy in sorted(found, key=lambda pair: -pair[0]):
        with passed_over(copy):
            take_files(copy, folder)
            return copy
    return None


# %% [markdown]
# How the files are taken:

# %%
#| export
@contextlib.contextmanager
def passed_over(copy: Path) -> Iterator[None]:
    "Turn what is wrong with a copy into a warning."
    try:
        yield
    except OSError as error:
        warnings.warn(f"{copy} is passed over: {cause(error)}", stacklevel=3)


def take_file(old: Path, new: Path) -> None:
    "Copy one file of a run; OSError if that cannot be done."
    new.parent.mkdir(parents=True, exist_ok=True)
    if not copy_file(old, new, lambda file, piece: file.write(piece)):
        raise OSError(f"{old.name} is being written to")


def take_files(copy: Path, folder: Path) -> None:
    "Copy the files of a run, its checkpoints after all others; OSError, and nothing, without one."
    names = [name for name in run_files(copy) if name != "last.pt"]
    late = [name for name in ("last.pt", "previous.pt") if (copy / name).is_file()]
    new = [name for name in [*names, *late] if not (folder / name).exists()]
    try:
        for name in names:
            take_file(copy / name, folder / name)
        for name in late:
            with passed_over(copy / name):
                take_file(copy / name, folder / name)
        if not has_checkpoint(folder):
            raise OSError("it has no checkpoint that can be read")
    except OSError:
        for name in new:
            (folder / name).unlink(missing_ok=True)
        raise


# %%
with tempfile.TemporaryDirectory() as tmp:
    kaggle = Place("kaggle", Path(tmp) / "input", Path(tmp) / "working" / "runs", "")
    config = Config()
    for place in ("input/version-2", "input/notebooks/me/version-3"):
        copy = Path(tmp) / place / "runs" / run_name(config)
        write_run(copy, last_pt="", status_json=f'{{"epochs_done": {place[-1]}}}')
    copies = copies_of(config, kaggle)
    test_eq(len(copies), 2)
    test_eq([has_checkpoint(f) for f in (run_folder(config, kaggle), *copies)], [False, True, True])
    took = bring_back(run_folder(config, kaggle), copies)
    assert "version-3" in str(took)
    test_eq(bring_back(run_folder(config, kaggle), copies), None)
    take_files(copies[0], Path(tmp) / "again")
    take_file(copies[0] / "last.pt", Path(tmp) / "last.pt")
with warnings.catch_warnings(record=True) as caught, passed_over(Path("drive")):
    warnings.simplefilter("always")
    raise OSError(107, "Transport endpoint is not connected")
str(caught[0].message)


# %% [markdown]
# ## How long a session lasts
#
# Colab ends a session after at most 12 hours; Kaggle after 12, and after 9 with a TPU. These are the services' numbers of 2025, which may change and were not tried here; `max_hours` overrules them. Whether Kaggle gave a TPU is read from the variables of a TPU's runtime; which of them it really sets could not be seen.
#
# The time is counted from the start of this process, which the system knows, without the clock on the wall: that one jumps. What a session did before (another notebook, a long installation) is not in it; half an hour is left for that, and for the end. A kernel that is restarted counts from zero, and its session does not: write `max_hours` then. (The age of the container's first process might tell, if containers are never started ahead of their sessions. That could not be seen from here, and to stop hours too early would be worse.)

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
    "Seconds since this process began; where the system does not say, since this was imported."
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
test_eq(session_hours(Config(), HERE), math.inf)
assert 0 < session_seconds() <= session_seconds()
