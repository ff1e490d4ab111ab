# %% [markdown]
# # Backup of a run
#
# > A backup of a run on a second disk, copied while it trains, and restored where the first disk is gone.
#
# Colab deletes its disk with the session, and a run of ten hours with it. Copying the checkpoint to Google Drive inside the loop is the usual remedy, and a Drive that hangs then stops the training. Here a thread copies the run while it trains, to a second folder, its **backup** (`mirror` in settings and messages): on Google Drive (`mirror_dir=drive`), a network disk or a USB stick.
#
# ```
# /content/runs/NAME  --copied in the background, verified-->  MyDrive/mshnet/NAME
#         ^                                                            |
#         +------------  a new session restores the run  <-------------+
# ```

# %%
#| hide
#| default_exp mirror
import shutil
import tempfile

from mshnet.mirror import Mirror, bring_back

# %%
#| export
import contextlib
import os
import threading
import uuid
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import is_zipfile

from mshnet.core import PlaceFields, UserError, read_record, reason
from mshnet.files import ChangedMeanwhile, Stamp, copy_file, digest, stamp
from mshnet.places import has_checkpoint, megabytes, say

# %% [markdown]
# ## A run and its backup
#
# A run writes its log and a checkpoint in two epochs, and each is copied. `flush` reports what the backup contains. The backup also keeps the checkpoint before the last. Then the session ends, its disk is deleted, and the next session restores the run:

# %%
with tempfile.TemporaryDirectory() as tmp:
    source, target = Path(tmp) / "run", Path(tmp) / "drive" / "run"
    source.mkdir()
    with Mirror(source, target) as backup:
        for text in ("epoch 1", "epoch 2"):
            (source / "log.jsonl").write_text(1000 * text)
            (source / "last.pt").write_text(text)
            backup.notify()
            print(backup.flush(timeout=60).replace(tmp, ""))
    print({file.name: file.read_text() for file in sorted(target.glob("*.pt"))})
    shutil.rmtree(source)
    with contextlib.redirect_stdout(None):  # a line that names the temporary folder
        bring_back(source, [target])
    print("restored:", *sorted(file.name for file in source.iterdir()))

# %% [markdown]
# ## The machinery: which files are copied, and what they may replace
#
# The backup gets every file but temporary ones and `previous.pt`, which it makes for itself. The small records come first, because they are copied in a moment; but scores come after the weights that they belong to. `status.json` comes last, and is not copied if `last.pt` failed: copies are compared by it, and it must not promise epochs that are missing. (It may be ahead by the epochs that passed while `last.pt` was copied.)
#
# A backup never replaces another run of the same name, and never a copy with more epochs: if the backup cannot be reached and a run begins anew, its old copy survives until the new run has as many epochs.

# %%
#| export
_LATE = ("best.pt", "last.pt", "details.json", "scores.json", "status.json")


def run_files(folder: Path) -> list[str]:
    "The names of the files of a run to copy, relative to its folder, in this order."
    found = []
    for top, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name[0] != "."]
        files = [Path(top, n) for n in names if n[0] != "." and n != "previous.pt"]
        found += [f.relative_to(folder).as_posix() for f in files if f.is_file()]
    return sorted(found, key=lambda name: (_LATE.index(name) if name in _LATE else -1, name))


def _epochs_done(folder: Path) -> int:
    "The epochs of a run, by its status.json; 0 without one."
    found = read_record(folder / "status.json").get("epochs_done")
    return found if isinstance(found, int) else 0


def _is_another(run: Path, copy: Path) -> bool:
    "Whether a copy is of another run, as their settings say."
    ours, theirs = (read_record(folder / "config.json") for folder in (run, copy))
    for of in (ours, theirs):  # lists may have moved
        of |= {k: Path(str(v)).name for k, v in of.items() if k.endswith("_list")}
    free = {*PlaceFields.model_fields, "precision"}
    free |= {"epochs"} if ours.get("schedule") == "constant" else set()
    starts = {bool(of.get("weight_path")) for of in (ours, theirs) if of}
    paths = [str(of.get("dataset_dir", "")) for of in (ours, theirs) if of]
    data = {Path(p[:-4] if p.lower().endswith(".zip") else p).name for p in paths}
    differ = any(ours[name] != theirs[name] for name in ours.keys() & theirs.keys() - free)
    return differ or len(data) > 1 or len(starts) > 1


# %% [markdown]
# ### The copying thread
#
# The first round writes a marker file into the backup, and later rounds write nothing where it is missing. If a Drive is unmounted, an empty folder of the local disk is left in its place: it has no marker, so it stays empty. The marker differs from session to session: of two sessions that copy the same run, the later one continues; the earlier one stops copying and reports it, until it has more epochs than the backup. A new session has no list of what the backup contains; a file of the same size and digest counts as copied.
#
# After each write of the run the thread copies the changed files and rests for a minute; after failures it rests longer, up to five minutes. As a daemon it blocks neither the training nor the end of the process if a disk hangs. It raises no error, but reports when a problem begins and when it is over. An error with one file does not stop the others, because a disk may be too full for a checkpoint but not for the log.
#
# Three rounds of copying; the disk of the backup is gone in the second, and back in the third:

# %%
with tempfile.TemporaryDirectory() as tmp:
    run, drive, away = (Path(tmp, name) for name in ("run", "drive", "away"))
    run.mkdir(), drive.mkdir()
    backup = Mirror(run, drive / "run", say=lambda line: print(line.replace(tmp, "")))
    for epoch, (old, new) in enumerate([(drive, drive), (drive, away), (away, drive)]):
        old.rename(new)
        (run / "last.pt").write_text(f"epoch {epoch}")
        backup.copy_once()


# %%
#| export
class Mirror:
    "A backup of a run folder that a thread keeps up to date; with target None it does nothing."

    def __init__(
        self,
        source: Path,
        target: Path | None,
        pause: float = 60.0,  # seconds between two rounds
        say: Callable[[str], object] = print,  # gets one line for a problem and one for its end
    ) -> None:
        self.source, self.target, self.enabled = source, target or source, target is not None
        self.pause, self.say = pause, say
        self.copied: dict[str, Stamp | None] = {}  # what the target holds
        self.token, self.claimed = uuid.uuid4().hex.encode(), False
        self.parent: os.stat_result | None = None  # of the target, as it was at first
        self.problem, self.reported = "", ""  # of the last round; the last reported one
        self.lock, self.changed = threading.Lock(), threading.Event()
        self.closed = threading.Event()
        self.thread = threading.Thread(target=self.copy_loop, name="mirror", daemon=True)

    def __enter__(self) -> "Mirror":
        if self.enabled:
            self.notify()
            self.thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        "End the thread after its current piece; a thread that hangs is left behind."
        self.closed.set()
        self.notify()
        if self.thread.is_alive():
            self.thread.join(1.0)

    def notify(self) -> None:
        "Note that the run wrote a file; this never waits."
        self.changed.set()

    def flush(self, timeout: float) -> str:  # seconds
        "Copy the missing files within the timeout, and return one line of where every file is."
        if not self.enabled:
            return ""
        worker = threading.Thread(target=self.copy_now, daemon=True)
        worker.start()
        worker.join(timeout)
        late = f"not done after {timeout:.0f} s" if worker.is_alive() else ""
        names, missing = run_files(self.source), self.missing()
        if not missing:
            size = sum(found[0] for n in names if (found := stamp(self.source / n)))
            return f"mirror  all {len(names)} files ({megabytes(size)}) are in {self.target}"
        why = ", ".join(filter(None, (self.problem, late))) or "they changed meanwhile"
        there = f"{len(names) - len(missing)} of {len(names)} files are in {self.target}"
        return f"mirror  {there}; missing: {', '.join(missing)} ({why}); they are in {self.source}"

    def copy_loop(self) -> None:
        "Copy in rounds, until the backup is closed."
        failures = 0
        while self.changed.wait() and not self.closed.is_set():
            self.changed.clear()
            failures = 0 if self.copy_once() else failures + 1
            if failures or self.missing():
                self.notify()
            self.closed.wait(self.pause * min(5, 2**failures))

    def copy_now(self) -> None:
        "Three rounds at most."
        for _ in range(3):
            if self.closed.is_set() or (self.copy_once() and not self.missing()):
                return
            self.closed.wait(min(1.0, self.pause))

    def copy_once(self) -> bool:  # whether it went well
        "Copy the missing files as far as possible, and report a new problem or the end of one."
        with self.lock:
            try:
                self.problem = self.copy_missing()
            except Exception as error:  # whatever it is, the training continues
                self.copied.clear()  # the state of the target is unknown now
                self.problem = reason(error)
            if self.problem != self.reported and not self.closed.is_set():
                self.reported = self.problem
                later = f"{self.problem}; tried again later, the run continues"
                with contextlib.suppress(Exception):  # such as a closed output
                    self.say(f"mirror  {self.target}: {later if self.problem else 'works again'}")
        return not self.problem

    def missing(self) -> list[str]:
        "Files that are not in the target as they are now."
        names = run_files(self.source)
        return [name for name in names if stamp(self.source / name) != self.copied.get(name)]

    def copy_missing(self) -> str:
        "Copy what is missing and return the first problem. OSError if the target is not ours."
        problem = ""
        for name in self.missing():
            self.check()
            try:
                self.copy(name)
            except OSError as error:
                wrong = (self.source / name).exists()  # else it was removed meanwhile
                if wrong and not isinstance(error, ChangedMeanwhile):  # then later
                    problem = problem or reason(error)
                if name == "last.pt":
                    break
        if run_files(self.source):
            self.check()
        return problem

    def check(self) -> None:
        "OSError unless the target is there and may be written; the first time, claim it."
        marker = self.target / ".mirror"
        if self.claimed:
            found = marker.read_bytes() if marker.is_file() else b""
            if found == self.token:
                return
            if not found or _epochs_done(self.source) <= _epochs_done(self.target):
                raise OSError("another session copies to it now" if found else "it is gone")
            self.copied.clear()  # the session with more epochs continues
        if not self.parent:  # made only once, never in place of a disk that has vanished
            self.target.parent.mkdir(parents=True, exist_ok=True)
            self.parent = os.stat(self.target.parent)
        elif not os.path.samestat(self.parent, os.stat(self.target.parent)):
            raise OSError("it is gone")
        if self.target.exists() and os.path.samefile(self.source, self.target):
            raise OSError("it is the run folder")
        if _is_another(self.source, self.target):
            raise OSError("it holds another run; name another mirror_dir or output_dir")
        here, there = _epochs_done(self.source), _epochs_done(self.target)
        if there > here:
            raise OSError(f"it holds {there} epochs, and this run has {here}")
        self.target.mkdir(exist_ok=True)
        for left in self.target.rglob(".*.tmp"):  # by a session that was killed
            left.unlink(missing_ok=True)
        marker.write_bytes(self.token)
        self.claimed = True

    def copy(self, name: str) -> None:
        "Copy one file, unless it is there; before `last.pt` is written, its log and weights."
        old, new = self.source / name, self.target / name
        for folder in reversed(Path(name).parents[:-1]):
            (self.target / folder).mkdir(exist_ok=True)
        now, there = stamp(old), stamp(new)
        if old.suffix == ".pt" and is_zipfile(new) and not is_zipfile(old):
            raise OSError(f"{name} is damaged in the run, so its copy is kept")
        parts = ("log.jsonl", "best.pt") if name == "last.pt" else ()

        def write(file: BinaryIO, piece: bytes) -> None:
            for part in parts if file.tell() == 0 else ():  # before the first piece: `old` is read
                if stamp(self.source / part) != self.copied.get(part):
                    self.copy(part)
            self.write(file, piece)

        # of the same size, from an earlier session: compare the digests
        unknown = now and there and now[0] == there[0] and name not in self.copied
        if not unknown or digest(old) != digest(new) or stamp(old) != now:
            previous = new.with_name("previous.pt") if name == "last.pt" else None
            now = copy_file(old, new, previous, write)
            for scored in ("details.json", "scores.json") if name == "best.pt" else ():
                (self.target / scored).unlink(missing_ok=True)  # of other weights
                self.copied.pop(scored, None)
        self.copied[name] = now

    def write(self, file: BinaryIO, piece: bytes) -> None:
        "Write a piece, unless the backup is closed."
        if self.closed.is_set():
            raise OSError("the backup is closed")
        file.write(piece)


# %% [markdown]
# ### Resume in a new session
#
# A new session has an empty disk. Therefore `bring_back` restores the run before training looks for it: from the backup, or on Kaggle from an earlier output that is attached as input; of several copies it takes the one with the most epochs. All files but the spare checkpoint `previous.pt` are copied before `last.pt`, so an interrupted copy has no checkpoint and is made again. A run on this disk whose `status.json` is more than one epoch behind a copy is an error, because training would repeat epochs. A copy without a checkpoint, or of another run than the files on this disk, is ignored. A copy that cannot be read is skipped with a warning, and no new file of it stays; if no other is left, training does not begin.

# %%
#| export
def bring_back(folder: Path, copies: list[Path]) -> Path | None:
    "Restore a run from a copy, unless its folder has a checkpoint; return the copy, and print it."
    done, found = _epochs_done(folder), list[tuple[int, Path]]()
    for copy in copies:
        with _skipped(copy):
            if has_checkpoint(copy) and not _is_another(folder, copy):
                found.append((_epochs_done(copy), copy))
    if has_checkpoint(folder):
        epochs, copy = max(found, default=(0, folder))
        if epochs > 1 + done and read_record(folder / "status.json"):  # else nobody knows
            todo = f"delete {folder} to resume the copy; or leave out its mirror_dir, or detach it"
            raise UserError(f"{copy}: it holds {epochs} epochs, and this run has {done}; {todo}")
        return None
    for _, copy in sorted(found, key=lambda pair: -pair[0]):
        with _skipped(copy):
            _take_files(copy, folder)
            say(f"mirror  restored from {copy}")
            return copy
    if found:
        todo = "try again later; to begin anew, name another --output-dir"
        raise UserError(f"{found[0][1]}: the run cannot be restored from it; {todo}")
    return None


@contextlib.contextmanager
def _skipped(copy: Path) -> Iterator[None]:
    "Turn an error of a copy into a warning."
    try:
        yield
    except OSError as error:
        warnings.warn(f"{copy} is skipped: {reason(error)}", stacklevel=3)


_RECORDS = ("config.json", "log.jsonl", "status.json", "scores.json", "details.json", "best.pt")


def _take_files(copy: Path, folder: Path) -> None:
    """Copy the files of a run, checkpoints last. A figure or a log that fails is left out.

    OSError without a checkpoint, or without its records; then no new file stays.
    """
    names = [name for name in run_files(copy) if name != "last.pt"]
    names += [name for name in ("last.pt", "previous.pt") if (copy / name).is_file()]
    new = [folder / name for name in names if not (folder / name).exists()]
    try:
        for name in names:
            with contextlib.nullcontext() if name in _RECORDS else _skipped(copy / name):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                copy_file(copy / name, folder / name)
        if not has_checkpoint(folder):
            raise OSError("it has no checkpoint that can be read")
    except OSError:
        for file in new:
            file.unlink(missing_ok=True)
        raise

# %% [markdown]
# ## Questions
#
# 1. Google Drive hangs for an hour while a run trains. What happens to the run, and what to its backup?
#    <details><summary>Answer</summary>The run continues, because a thread copies its files. The backup gets no new files in this hour. At its end the run waits a limited time, ten minutes in training, and then reports which files are missing.</details>
