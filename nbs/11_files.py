# %% [markdown]
# # files
#
# > Files that are whole or absent: written beside their place and renamed, copied with a digest, locked, and read ahead.

# %%
#| default_exp files

# %%
#| hide
import tempfile

from fastcore.test import expect_fail, test_eq

from mshnet.core import read_record

# %%
#| export
import contextlib
import errno
import hashlib
import inspect
import json
import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, BinaryIO

from mshnet.core import UserError


# %% [markdown]
# ## Files
#
# Sessions end without notice, disks fill up, the power goes. Every notebook writes, copies, reads and locks files by the few functions of this section. A file is written under a temporary name, flushed to the disk, and renamed. A rename happens or does not happen, so at any moment there is the old file or the new one, never half of one.

# %%
#| export
def to_disk(file: IO[bytes]) -> None:
    "Flush an open file to the disk, as far as its file system can promise that."
    file.flush()
    try:
        os.fsync(file.fileno())
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
            raise


def _temporary(path: Path) -> Path:
    "The name under which this process writes what will become a file."
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


@contextlib.contextmanager
def replacing(
    path: Path,
    previous: Path | None = None,  # keeps what was there before
) -> Iterator[BinaryIO]:
    "A new file, which takes the place of `path` at the end of the block, unless that raises."
    temporary = _temporary(path)
    try:
        with open(temporary, "wb") as file:
            yield file
            to_disk(file)
        moved = previous if previous and path.exists() else None
        if moved:
            os.replace(path, moved)
        try:
            os.replace(temporary, path)
        except OSError:
            if moved:
                os.replace(moved, path)
            raise
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    "Flush the names in a folder to the disk too, where the system can."
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


# %% [markdown]
# Most files are small enough to be written at once. A disk that is full or read-only is the user's to mend:

# %%
#| export
@contextlib.contextmanager
def cannot_be_written(path: Path) -> Iterator[None]:
    "Turn the system's refusal to write (a full disk, a folder that is read-only) into a UserError."
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{path}: cannot be written ({error.strerror}); what was there is unchanged; mend that "
            "and run the same command again"
        ) from None


def write_atomic(path: Path, content: bytes | str, previous: Path | None = None) -> None:
    "Write a file in one step; UserError, and the old file is still there, if that is impossible."
    data = content.encode() if isinstance(content, str) else content
    with cannot_be_written(path), replacing(path, previous) as file:
        file.write(data)


def write_json(path: Path, value: Any) -> None:
    "Write a JSON file in one step, indented for people."
    write_atomic(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


# %%
with tempfile.TemporaryDirectory() as tmp:
    path, old = Path(tmp) / "status.json", Path(tmp) / "old.json"
    write_json(path, {"state": "running"})
    with expect_fail(ValueError):
        write_json(path, {"loss": float("nan")})
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    refused = expect_fail(UserError, contains="No space left")
    with refused, cannot_be_written(path), replacing(path, old) as file:
        file.write(b"half of a")
        to_disk(file)
        raise full
    test_eq((read_record(path), read_record(old)), ({"state": "running"}, {}))
    write_atomic(path, "new", previous=old)
    test_eq((path.read_text(), read_record(old)), ("new", {"state": "running"}))
    test_eq(len(list(Path(tmp).iterdir())), 2)

# %% [markdown]
# A copy is verified: read back, and compared by its digest before it takes its place. (What is read back may come from this machine's memory and not from a far disk; more cannot be had from here.) The source stays open meanwhile, so a file that is *replaced* is copied as it was. A file that is *written to* is left for another time. Whether a file has changed since it was copied shows its stamp.

# %%
#| export
Stamp = tuple[int, int, int]  # size, time of the last change, number on the disk


def stamp(
    file: Path | int,  # a file, or the number of an open one
) -> Stamp | None:  # None: there is no such file
    "What differs after a file was changed."
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns, found.st_ino


def digest(file: Path) -> str:
    "SHA-256 of a file's content."
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


class ChangedMeanwhile(OSError):
    "A file that was written to while it was copied."


def copy_file(
    old: Path,
    new: Path,
    previous: Path | None = None,  # keeps what was there before
    write: Callable[[BinaryIO, bytes], object] = lambda file, piece: file.write(piece),
) -> Stamp | None:  # of what was copied
    "Copy a file and verify the copy; OSError, and `new` as it was, if that is impossible."
    seen = hashlib.sha256()
    with open(old, "rb") as source, replacing(new, previous) as target:
        before = stamp(source.fileno())
        while piece := source.read(1_000_000):
            seen.update(piece)
            write(target, piece)
        to_disk(target)
        if stamp(source.fileno()) != before:
            raise ChangedMeanwhile(f"{old.name} is being written to")
        if digest(_temporary(new)) != seen.hexdigest():
            raise OSError("a copy differs from its original")
        if previous and new.exists():  # else `previous` is the only one
            with contextlib.suppress(FileNotFoundError):
                os.truncate(previous, 0)  # Google Drive's trash counts, and keeps what is replaced
    return before


# %%
with tempfile.TemporaryDirectory() as tmp:
    old, new = Path(tmp) / "old", Path(tmp) / "new"
    old.write_text("epoch 1")
    test_eq(copy_file(old, new), stamp(old))
    test_eq(digest(old), digest(new))

    def growing(file, piece):
        "Write to the copy, and to the original too."
        file.write(piece)
        old.write_text("epochs 1 and 2")

    with expect_fail(ChangedMeanwhile, contains="old is being written to"):
        copy_file(old, new, write=growing)
    test_eq((new.read_text(), len(list(Path(tmp).iterdir()))), ("epoch 1", 2))


# %% [markdown]
# Processes that must not do something at the same time queue at a lock, or give up at once. The lock is the system's: it ends with the process, however that ends, and a killed process leaves none behind.

# %%
#| export
@contextlib.contextmanager
def locked(
    file: Path,  # any name that the processes agree on; it is made, and stays
    wait: bool = True,  # False: TimeoutError if another process holds the lock
) -> Iterator[bool]:  # False: this disk has no locks
    "Hold a lock that the system takes back when this process ends."
    from filelock import FileLock, Timeout  # imported here: `mshnet --help` needs none

    known = inspect.signature(FileLock.__init__).parameters  # of the installed version
    strict: dict[str, Any] = {"fallback_to_soft": False} if "fallback_to_soft" in known else {}
    lock, held = FileLock(file, **strict), True
    try:
        lock.acquire(timeout=-1 if wait else 0)
    except Timeout:
        raise TimeoutError(f"{file} is held by another process") from None
    except NotImplementedError:
        held = False
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP):
            raise
        held = False
    try:
        yield held
    finally:
        with contextlib.suppress(OSError):  # such as a disk that is gone
            lock.release()


# %%
with tempfile.TemporaryDirectory() as tmp:
    lock, refused = Path(tmp) / "lock", expect_fail(TimeoutError, contains="another process")
    with locked(lock), refused, locked(lock, wait=False):
        pass


# %% [markdown]
# How much memory is free decides where pixels are kept. A container may have less than its machine:

# %%
#| export
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


# %%
assert free_memory() > 0


# %% [markdown]
# Files are read by a few threads, and so are batches made later: an accelerator should not wait for its next one. Results come in order, so the number of threads changes nothing but the time, and only a few are made ahead, so memory is bounded. Threads and not processes: Pillow and numpy let go of Python's lock, nothing needs to be pickled, and a notebook cell can be stopped.

# %%
#| export
def prefetch(
    make: Callable[[Any], Any],  # makes one result from one plan, such as a batch
    plans: Iterable[Any],
    workers: int,  # threads; 0: made when asked for
) -> Iterator[Any]:  # the results, in the order of the plans
    "Make results a little before they are needed, at most two per thread."
    if workers == 0:
        yield from map(make, plans)
        return
    with ThreadPoolExecutor(workers) as pool:
        waiting: deque[Future[Any]] = deque()
        try:
            for plan in plans:
                waiting.append(pool.submit(make, plan))
                if len(waiting) > 2 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


# %%
for workers in (0, 1, 3):
    test_eq(list(prefetch(lambda x: x * x, range(9), workers)), [x * x for x in range(9)])
