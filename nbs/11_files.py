# %% [markdown]
# # Files: whole or absent
#
# > A file is whole or absent: written under a temporary name, then renamed. Also verified copies, locks, free memory, and reading ahead.
#
# Sessions end without notice, disks fill up, the power fails. A checkpoint that is overwritten in place can be lost at any of these moments, together with its predecessor. `torch.save(state, "last.pt")` overwrites in place. We write a file in three steps:
#
# ```
# 1  write   .last.pt.4711.tmp      last.pt is the old file
# 2  flush to the disk              last.pt is the old file
# 3  rename  to last.pt             last.pt is the new file
# ```
#
# A rename happens or does not happen, so a file is the old one or the new one, never half of one. (If the old file is kept as `previous.pt`, there is a moment at which only `previous.pt` exists.) All pages write, copy, find and lock files with these functions. The page ends with reading ahead.

# %%
#| hide
#| default_exp files
import tempfile
import threading

from mshnet.files import replacing, write_atomic, write_json

# %%
#| export
import contextlib
import csv
import errno
import glob
import hashlib
import io
import json
import os
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, BinaryIO

from mshnet.core import UserError, counted, quoted, read_record, reason, shown

# %% [markdown]
# ## A disk that is full
#
# A file is written, and after half of it the disk is full. The old file is still there, and nothing else. The second write succeeds, and keeps the old content as a second file:

# %%
with tempfile.TemporaryDirectory() as tmp:
    path, old = Path(tmp) / "status.json", Path(tmp) / "old.json"
    write_json(path, {"state": "running"})
    with contextlib.suppress(OSError), replacing(path) as file:
        file.write(b"half of a")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    print(read_record(path), sorted(os.listdir(tmp)))
    write_atomic(path, "new", previous=old)
    print(path.read_text(), read_record(old))


# %% [markdown]
# ## The machinery: writing, and its errors
#
# A disk that is full, read-only or gone raises an `OSError` with a number. Everything else comes from damaged bytes or from a library, which may raise any exception. `explain_failure` turns the first kind into a `UserError` of one line, with the reason and the next step. With `damaged=True` it turns the second kind instead, because the remedy differs: downloading an archive again does not help against a full disk.

# %%
#| export
@contextlib.contextmanager
def replacing(
    path: Path,
    previous: Path | None = None,  # gets the old file
    durable: bool = True,  # False: not flushed to the disk, for thousands of files
) -> Iterator[BinaryIO]:
    "Open a new file that replaces `path` at the end of the block, unless the block raises."
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            yield file
            if durable:
                to_disk(file)
        moved = previous if previous and path.exists() else None
        if moved:
            move(path, moved)
        try:
            move(temporary, path)
        except OSError:
            if moved:
                move(moved, path)
            raise
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if durable:
            _sync_folder(path.parent)


_TRIES = 200 if os.name == "nt" else 0  # there a file that somebody has open cannot be replaced


def move(old: Path, new: Path) -> None:
    "Rename a file; on Windows wait up to ten seconds for whoever has one of the two open."
    for _ in range(_TRIES):
        with contextlib.suppress(PermissionError):
            return os.replace(old, new)
        time.sleep(0.05)
    os.replace(old, new)


def to_disk(file: IO[bytes]) -> None:
    "Flush an open file to the disk, as far as its file system supports that."
    file.flush()
    try:
        os.fsync(file.fileno())
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
            raise


def _sync_folder(folder: Path) -> None:
    "Flush the names in a folder to the disk too, where the system can."
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


_BAD_BYTES = (None, errno.EINVAL, errno.EEXIST, errno.EISDIR, errno.ENOTDIR)  # not the disk's fault


@contextlib.contextmanager
def explain_failure(
    what: str,  # failed
    todo: str = "free space, permit it, or mount the disk again",
    damaged: bool = False,  # every error but a disk's; False: an OSError alone
) -> Iterator[None]:
    "Turn an exception into a UserError of what failed, why, and what to do."
    try:
        yield
    except Exception as error:
        of_disk = isinstance(error, OSError) and error.errno not in _BAD_BYTES
        meant = not of_disk if damaged else isinstance(error, OSError)
        if isinstance(error, UserError) or not meant:
            raise
        raise UserError(f"{what} ({reason(error)}); {todo}") from None


def write_atomic(
    path: Path, content: bytes | str, previous: Path | None = None, durable: bool = True
) -> None:
    "Write a file in one step; if that fails, the old file stays and a UserError reports why."
    with cannot_be_written(path), replacing(path, previous, durable) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def write_json(path: Path, value: Any) -> None:
    "Write a JSON file in one step, indented for people; ValueError for NaN or infinity."
    write_atomic(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def claim(folder: Path, name: str, record: dict[str, Any]) -> None:
    "Record in a file how a data set is made; UserError if the folder holds anything else."
    if read_record(folder / name) != json.loads(json.dumps(record)):
        if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
            raise UserError(f"{folder}: holds other data; use a new or an empty folder")
        make_folder(folder)
        write_json(folder / name, record)


def write_table(path: Path, rows: Iterable[Iterable[object]]) -> None:
    "Write a table as a CSV file in one step."
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    content = text.getvalue().encode(errors="surrogateescape")  # of names that are not UTF-8
    write_atomic(path, content.decode(errors="backslashreplace"))


def write_arrays(path: Path, **arrays: Any) -> None:
    "Write numpy arrays as an npz file in one step."
    import numpy as np  # imported here: `mshnet --help` needs none

    with cannot_be_written(path), replacing(path) as file:
        np.savez(file, **arrays)


def make_folder(path: Path) -> None:
    "Make a folder and those above it, where they are missing; UserError if that fails."
    with cannot_be_written(path):
        path.mkdir(parents=True, exist_ok=True)
        (probe := path / f".{os.getpid()}.tmp").write_bytes(b"")  # tempfile hangs on Windows
        probe.unlink(missing_ok=True)


def cannot_be_written(
    path: Path, todo: str = "repair that and run the same command again"
) -> contextlib.AbstractContextManager[None]:
    "Turn the system's error (a full disk, a read-only folder) into a UserError."
    kept = "the old file is unchanged; " if os.path.isfile(path) else ""
    return explain_failure(f"{path}: cannot be written", kept + todo)


# %% [markdown]
# ### Copies
#
# A copy is read back and compared by its digest before it replaces the target. (The system may read it from this machine's memory instead of a far disk; no program can prevent that.) The source is opened once and read whole. If another process *replaces* it, we copy the old content whole; if another process *writes to* it, we raise `ChangedMeanwhile` and keep the old copy. A `stamp` shows whether a file has changed since. A copy can also keep its predecessor, as `previous`. An older `previous` is emptied before it is replaced, because Google Drive's trash keeps replaced files and counts them.

# %%
#| export
Stamp = tuple[int, int, int]  # size, time of the last change, number on the disk


def stamp(file: Path | int) -> Stamp | None:
    "Three numbers that differ after a file, or an open one by its number, has changed."
    with contextlib.suppress(OSError):
        found = os.stat(file)
        return found.st_size, found.st_mtime_ns, found.st_ino
    return None


def digest(file: Path) -> str:
    "SHA-256 of a file's content."
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


class ChangedMeanwhile(OSError):
    "Another process wrote to a file while it was copied."


def copy_file(
    old: Path,
    new: Path,
    previous: Path | None = None,  # gets the file that `new` was
    write: Callable[[BinaryIO, bytes], object] = lambda file, piece: file.write(piece),
) -> Stamp | None:  # of the content that was copied
    "Copy a file and verify the copy; OSError if that fails, and `new` stays as it was."
    with open(old, "rb") as source:  # not for long: see `move`
        before, content = stamp(source.fileno()), source.read()
        changed = stamp(source.fileno()) != before
    with replacing(new, previous) as target:
        for start in range(0, len(content), 1_000_000):
            write(target, content[start : start + 1_000_000])
        to_disk(target)
        if changed:
            raise ChangedMeanwhile(f"{old.name} is being written to")
        if digest(Path(target.name)) != hashlib.sha256(content).hexdigest():
            raise OSError("a copy differs from its original")
        if previous and new.exists():  # else `previous` is the only one
            with contextlib.suppress(FileNotFoundError):
                os.truncate(previous, 0)  # else Google Drive's trash keeps all of it
    return before


# %% [markdown]
# ### Files that a user names
#
# An input is a file, a folder or a pattern such as `"day/*.npz"`, or `"day/**"` for all folders below, behind links too. Of a folder we take the files whose suffix fits, in capitals or not. Hidden files are left out, and so are results of `mshnet predict` in folders below the named one: they would be predicted again (`out` below). A file that is named twice is returned once. The order is that of the inputs.
#
# Existing folders at the beginning of a pattern are taken literally, so `set[1]/*.png` finds the files in a folder of this name. A named file of a different kind is left out with a warning, because a shell expands `*` to whatever is there.

# %%
#| export
SUMMARY = "summary.json"  # in a folder of results


def _holds_results(folder: Path) -> bool:
    "Whether a folder was written by `mshnet predict`, of images or of events."
    pairs = (SUMMARY, "frames.csv"), ("recordings.csv", "evidence.npz")
    return any(all(os.path.isfile(folder / name) for name in pair) for pair in pairs)


def expect_folder(folder: Path) -> None:
    "UserError unless this is a folder."
    if not folder.is_dir():
        what = "is a file; unpack it" if folder.is_file() else "there is no such folder"
        raise UserError(f"{folder}: {what}")


def folders_below(top: Path) -> Iterator[Path]:
    "A folder and all folders below it, those behind links last, each once; nothing hidden."
    seen, waiting, links = set[str](), [top], list[Path]()
    while waiting or links:
        folder = (waiting or links).pop(0)
        if (real := os.path.realpath(folder)) not in seen:  # two loops of links: 2^40 folders
            seen.add(real)
            if not os.access(folder, os.R_OK | os.X_OK):
                warnings.warn(f"{shown(str(folder))}: may not be read, left out", stacklevel=2)
                continue
            yield folder
            with contextlib.suppress(PermissionError, FileNotFoundError):
                for each in sorted(os.scandir(folder), key=lambda entry: entry.name):
                    linked = each.is_symlink()
                    if each.name[0] != "." and (os.path.isdir(each) if linked else each.is_dir()):
                        (links if linked else waiting).append(folder / each.name)


def _fitting(folder: Path, pattern: str) -> list[Path]:
    "What fits a pattern in a folder; `**` stands for all folders below, behind links too."
    before, deep, after = f"/{pattern}/".partition("/**/")
    if not deep:
        return list(folder.glob(pattern))
    tops = list(folder.glob(before[1:])) if before else [folder]
    below = [near for top in tops if top.is_dir() for near in folders_below(top)]
    return [p for near in below for p in _fitting(near, after[:-1])] if after else below


def _inside(folder: Path, pattern: str) -> list[Path]:
    "What fits a pattern in a folder, sorted; nothing hidden, and no results in folders below it."
    try:
        os.listdir(folder)  # glob passes over a folder that cannot be read
        found = sorted(set(_fitting(folder, pattern)))
    except (OSError, ValueError) as error:  # a disk that fails; a pattern such as a**b
        raise UserError(f"{shown(str(folder / pattern))}: cannot be searched ({error})") from None
    found = [p for p in found if not any(name[0] == "." for name in p.relative_to(folder).parts)]
    near = {near for path in found for near in (path, *path.parents[:2]) if folder in near.parents}
    results = {each for each in near if _holds_results(each)}
    if _holds_results(folder):  # beside its own images
        results |= {folder / "masks", folder / "overlays"}
    return [path for path in found if results.isdisjoint((path, *path.parents[:2]))]


def _named(text: str) -> list[Path]:
    "The file or folder of a name, or those that fit a pattern; UserError if there are none."
    path = Path(text)
    if not text:
        raise UserError("an input is empty: name files, folders or patterns")
    if os.path.lexists(path):
        return [path]
    if not glob.has_magic(text):
        raise UserError(f"{shown(text)}: there is no such file or folder")
    top = next((each for each in path.parents if os.path.isdir(each)), Path(path.anchor))
    if found := _inside(top, path.relative_to(top).as_posix()):
        return found
    raise UserError(f"{shown(text)}: nothing fits this pattern")


def _left_below(top: str, found: dict[Path, Path], suffixes: Sequence[str]) -> str:
    "A hint at files in folders below a named one that were not found; empty: there are none."
    with warnings.catch_warnings(action="ignore"):  # of folders that nobody asked for
        deeper = [p for p in _inside(Path(top), "*/**/*") if p.suffix.lower() in suffixes]
    taken = {*found.values()}
    left = {p.parent.resolve() / p.name for p in deeper if p.parent not in taken} - found.keys()
    pictures = (f"{top}/{name}" for name in ("images", "IRSTD1k_Img"))  # without their masks
    better = next(filter(os.path.isdir, pictures), f"{top}/**")
    count = f"{counted(len(left), 'file')} left out; " if found else ""
    return f"{count}for folders below {shown(top)}: {quoted(better)}" if left else ""


def find_inputs(
    inputs: str | Path | Iterable[str | Path],  # files, folders, patterns
    suffixes: Sequence[str],  # of the files that are wanted, in small letters, such as (".npz",)
    whole: Callable[[Path], bool] = lambda folder: False,  # whether a folder is one input
) -> list[Path]:
    "The files that are named and those of named folders, each once; UserError if there are none."
    given = [inputs] if isinstance(inputs, str | Path) else inputs
    texts = [os.path.expanduser(each) for each in given]
    for text in texts:
        run = any(os.path.isfile(f"{text}/{name}.pt") for name in ("best", "last"))
        if run or text.endswith((".pt", ".pth", ".safetensors")):
            raise UserError(f"{shown(text)}: is a run or weights, no input; use --weight-path")
    found, others, named = dict[Path, Path](), list[Path](), {*map(Path, texts)}
    for path in (path for text in texts for path in _named(text)):
        folder = os.path.isdir(path) and not whole(path)
        fit = [
            each
            for each in (_inside(path, "*") if folder else [path])
            if (each.suffix.lower() in suffixes and os.path.isfile(each))
            or (os.path.isdir(each) and whole(each))
        ]
        for each in fit:
            found.setdefault(each.parent.resolve() / each.name, each)  # two links are two inputs
        if not fit and (not folder or (path in named and not [*path.glob("*/")])):
            others.append(path)
    endings = ", ".join(suffixes)
    tops = (text for text in texts if os.path.isdir(text) and not whole(Path(text)))
    hints = [hint for top in tops if (hint := _left_below(top, found, suffixes))]
    if not found:
        what = ", ".join(shown(text) for text in texts[:3]) or "no input"
        todo = f"name files that end in {endings}, or their folders"
        raise UserError(f"{what}: {'; '.join([todo, *hints])}")
    for hint in hints:
        warnings.warn(hint, stacklevel=2)
    if others:
        some = f"{counted(len(others), 'input')} left out (such as {shown(str(others[0]))})"
        warnings.warn(f"{some}: use files that end in {endings}", stacklevel=2)
    return list(found.values())


# %%
with tempfile.TemporaryDirectory() as tmp:
    results = ("out/summary.json", "out/frames.csv", "out/e.npz")
    for name in ("b.npz", "a.NPZ", ".c.npz", "notes.txt", "set[1]/d.npz", *results):
        (Path(tmp) / name).parent.mkdir(exist_ok=True)
        (Path(tmp) / name).touch()
    for inputs in ("", "/**", "/set[1]/*"):
        print(f"folder{inputs}:", *(p.name for p in find_inputs(tmp + inputs, (".npz",))))


# %% [markdown]
# ### Locks, memory, reading ahead
#
# Two processes that must not do the same thing at the same time queue at a lock, or give up at once. The lock belongs to the operating system: it ends with the process, even if that is killed. A file that marks the lock would stay. `free_memory` decides whether pixels are kept in memory. It also reads the limit of a container, which may have less than its machine.
#
# An accelerator should not wait for its next batch, so a few threads read files and make batches ahead. Results come in order, and the number of threads changes nothing but the time. At most two results per thread are made ahead, which bounds the memory. We use threads and not processes because Pillow and numpy release Python's lock, nothing has to be pickled, and a notebook cell can be interrupted.

# %%
#| export
@contextlib.contextmanager
def locked(
    file: Path,  # any name that the processes agree on; the file stays
    wait: bool = True,  # False: TimeoutError if another process holds the lock
) -> Iterator[bool]:  # False: this disk has no locks
    "Hold a lock that the system releases when this process ends."
    from filelock import FileLock  # imported here: `mshnet --help` needs none

    lock = FileLock(file, fallback_to_soft=False)  # versions without this option ignore it
    try:
        lock.acquire(timeout=-1 if wait else 0)
    except (NotImplementedError, OSError) as error:
        unsupported = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP)
        if isinstance(error, OSError) and error.errno not in unsupported:
            raise
    try:
        yield lock.is_locked
    finally:
        with contextlib.suppress(OSError):  # such as a disk that has vanished
            lock.release()


def free_memory(group: Path = Path("/sys/fs/cgroup")) -> float:
    "Bytes that this process may still take, by the system and by its container."
    import psutil  # imported here: `mshnet --help` needs none

    free = float(psutil.virtual_memory().available)
    with contextlib.suppress(OSError, ValueError):  # no file, or the word "max"
        most, used = (float((group / f"memory.{name}").read_text()) for name in ("max", "current"))
        counts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        cached = float(counts.get("inactive_file", 0))  # the system's file cache
        free = min(free, most - used + cached)
    return free


def prefetch(
    make: Callable[[Any], Any],  # makes one result from one plan, such as a batch
    plans: Iterable[Any],
    workers: int,  # threads; 0: each result is made when it is asked for
) -> Iterator[Any]:  # the results, in the order of the plans
    "Make results a little before they are needed, at most two per thread."
    if workers == 0:
        yield from map(make, plans)
        return
    pool, waiting = ThreadPoolExecutor(workers), deque[Future[Any]]()
    try:
        for plan in plans:
            waiting.append(pool.submit(make, plan))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


# %% [markdown]
# Reading ahead: four threads make eight results. The barrier opens only when four of them are being made at the same time, and yet they come in order.

# %%
def make(plan):
    "A result, once four threads are making one."
    barrier.wait(timeout=60)
    return 10 * plan


barrier = threading.Barrier(4)
print("in order:", list(prefetch(make, range(8), workers=4)))

# %% [markdown]
# ## Questions
#
# 1. Why is the temporary file in the folder of the target, and not in `/tmp`?
#    <details><summary>Answer</summary>A rename works only within a disk. Between two disks only a copy is possible, which can break off.</details>
# 2. Why must step 2 come before step 3?
#    <details><summary>Answer</summary>The system may rename before it has written the content. After a power failure <code>last.pt</code> would have its new name and no bytes.</details>
