# %% [markdown]
# # places
#
# > Where the notebook runs, which folders that means, and how a run survives the end of its session: Colab, Kaggle, or your machine.

# %%
#| default_exp places

# %%
#| hide
import tempfile

from fastcore.test import expect_fail, test_eq

from mshnet.core import Config

# %%
#| export
import contextlib
import errno
import glob
import math
import os
import signal
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from mshnet.core import PlaceFields, Settings, UserError, read_record, run_name
from mshnet.files import ChangedMeanwhile, Stamp, copy_file, digest, stamp


# %% [markdown]
# ## Where does the notebook run?
#
# Colab and Kaggle are Linux machines with two habits. Their fixed folders differ, and at the end of a session they delete every file outside the right folder. Everything that depends on this is in this notebook.
#
# | | data by name | run folders | kept after the session |
# |---|---|---|---|
# | Colab | `/content` | `/content/runs` | nothing, but Google Drive (the mirror below) |
# | Kaggle | `/kaggle/input` | `/kaggle/working/runs` | `/kaggle/working`, when the version is saved |
# | your machine | `data` | `runs` | everything |
#
# Both services set a variable in every session. Colab is always interactive. Kaggle reports whether a session is interactive or runs a saved version. On other machines Jupyter and Voila (which shows a notebook as a page) each set a variable in their kernels; a headless papermill sets neither. torchrun numbers its processes, and only the first one writes and prints.

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


def where(environ: Mapping[str, str] = os.environ) -> Place:
    "The place this process runs in."
    if "KAGGLE_KERNEL_RUN_TYPE" in environ:  # checked first: Kaggle's image is built on Colab's
        return KAGGLE
    if "COLAB_RELEASE_TAG" in environ or "COLAB_GPU" in environ:
        return COLAB
    return HERE


def interactive(environ: Mapping[str, str] = os.environ) -> bool:
    "Whether a person watches this notebook."
    if where(environ) == KAGGLE:
        return environ["KAGGLE_KERNEL_RUN_TYPE"] == "Interactive"
    servers = ("JPY_SESSION_NAME", "VOILA_BASE_URL")
    return where(environ) == COLAB or any(name in environ for name in servers)


def installed(package: str) -> str | None:
    "Version of a package, without importing it; None if it is not installed."
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def first_process(environ: Mapping[str, str] = os.environ) -> bool:
    "Whether this process writes and prints; there are others under torchrun only."
    return environ.get("RANK", "0") == "0"


def say(text: str) -> None:
    "Print a line for the user, from the first process only."
    if first_process():
        print(text, flush=True)


@contextlib.contextmanager
def heartbeat(
    report: Callable[[float], object],  # called with the seconds so far
    first: float = 5.0,  # seconds until the first call
    every: float = 5.0,  # seconds between two calls
) -> Iterator[None]:
    "Report from time to time how long something has taken, while it runs."
    done, start = threading.Event(), time.monotonic()

    def speak() -> None:
        wait = first
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
    if size < 1e6:
        return f"{size / 1e3:.0f} kB" if size >= 1e4 else f"{size / 1e3:.1f} kB"
    return f"{size / 1e6:.0f} MB" if size >= 1e7 else f"{size / 1e6:.1f} MB"


# %%
test_eq(where({"COLAB_RELEASE_TAG": "release"}), COLAB)
test_eq(where({"KAGGLE_KERNEL_RUN_TYPE": "Interactive", "COLAB_RELEASE_TAG": "release"}), KAGGLE)
names = ("A", "JPY_SESSION_NAME", "VOILA_BASE_URL", "COLAB_GPU")
test_eq([interactive({name: "x"}) for name in names], [False, True, True, True])
test_eq([first_process(e) for e in ({}, {"RANK": "0"}, {"RANK": "3"})], [True, True, False])
test_eq([megabytes(n) for n in (512, 31_400, 2e6)], ["0.5 kB", "31 kB", "2.0 MB"])
say(f"torch {installed('torch')}, {megabytes(14_658_415)}")
with heartbeat(lambda seconds: print(f"{seconds:.1f} s so far"), first=0.05):
    time.sleep(0.1)
where({}).note


# %% [markdown]
# ## The run folder
#
# A run has one folder: `output_dir`, or the folder of the run to resume, or a folder that is named after the recipe and lies where this place keeps runs.

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
test_eq(run_folder(Config(resume="old/last.pt")), Path("old"))
run_folder(Config(), KAGGLE)


# %% [markdown]
# ## How long a session lasts
#
# Colab ends a session after at most 12 hours; Kaggle after 12, and after 9 with a TPU. These are the services' numbers of 2025, which may change and were not tried here; `max_hours` overrules them. Half an hour is left for the time before this process and for a good end. The variables of a TPU's runtime show whether Kaggle gave one.
#
# We count from the start of this process, as the system reports it, because the clock on the wall may jump. A restarted kernel counts from zero although its session does not: write `max_hours` then. Those count from the beginning of a run, and if they are more than the place has, they are the hours of its session.

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
test_eq(session_hours(Config(max_hours=2), KAGGLE), 2)
f"{session_seconds():.1f} of {3600 * session_hours(Config(), COLAB, {}):.0f} seconds are over"


# %% [markdown]
# ## The mirror
#
# Colab deletes its disk with the session. Therefore a thread can copy a run, while it trains, to a second folder, its **mirror**: on Google Drive (`mirror_dir=drive`), a network disk or a USB stick. Each run has a folder there, with the name of the run folder.
#
# ```
# /content/runs/NAME  --copied in the background, verified-->  MyDrive/mshnet/NAME
#         ^                                                            |
#         +----------  a new session brings the run back  <-----------+
# ```
#
# If the Drive is not mounted, we copy nothing and report that, because a folder made in its place would lie on the disk that is deleted. In Colab a run starts in the folder in which the Drive is mounted, and `drive/MyDrive/copies` means a folder of the Drive too.

# %%
#| export
def _mirror_parent(config: Settings, place: Place) -> Path | None:
    "The folder of all mirrors; None without `mirror_dir`, or if there is no Drive."
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
    say: Callable[[str], object] = print,  # gets the line that reports why there is no mirror
) -> Path | None:
    "The mirror of this run, or None; UserError if it is the run folder itself."
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
stick = Config(mirror_dir="/media/stick", output_dir="runs/mine")
test_eq((mirror_folder(stick), wants_drive(stick)), (Path("/media/stick/mine"), False))
test_eq(mirror_folder(Config(mirror_dir="drive"), HERE), None)
with expect_fail(UserError, contains="the run itself is there"):
    mirror_folder(Config(mirror_dir="runs", output_dir="runs/mine"))


# %% [markdown]
# The mirror gets every file but temporary ones, TensorBoard's (they grow all the time) and `previous.pt`, which the mirror makes for itself. The small records come first, because they hold most per byte. `status.json` comes last: copies are compared by it, and it must not promise an epoch that is missing.
#
# The mirror never replaces another run of the same name, and never a copy with more epochs: a run that could not be brought back begins anew, and its old copy must survive that. A new session has no list of what the mirror holds, and a file of the same size and digest counts as copied. An error with one file does not stop the others, because a disk may be too full for a checkpoint but not for the log.
#
# An unmounted Drive leaves an empty folder of the local disk in its place. Therefore the first round claims the mirror by a marker file, and nothing is written where the marker is missing. The marker differs from session to session. Of two sessions that copy the same run, the later one continues; the earlier one stops copying and reports it.

# %%
#| export
def _run_files(
    folder: Path,
) -> list[str]:  # relative to the folder
    "The files of a run to copy, in this order."
    found = []
    for top, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name[0] != "." and name != "tensorboard"]
        files = [Path(top, n) for n in names if n[0] != "." and n != "previous.pt"]
        found += [f.relative_to(folder).as_posix() for f in files if f.is_file()]
    late = ["best.pt", "last.pt", "status.json"]
    return sorted(found, key=lambda name: (late.index(name) if name in late else -1, name))


def _epochs_done(folder: Path) -> int:
    "The epochs of a run, by its status.json; 0 without one."
    found = read_record(folder / "status.json").get("epochs_done")
    return found if isinstance(found, int) else 0


def _worth_more(target: Path, source: Path) -> str:
    "Why the source must not replace the copy in the target; empty: it may."
    ours, theirs = (read_record(folder / "config.json") for folder in (source, target))
    recipe = ours.keys() & theirs.keys() - PlaceFields.model_fields.keys() - {"epochs", "precision"}
    data = {Path(str(of.get("dataset_dir", ""))).name.split(".")[0] for of in (ours, theirs) if of}
    if any(ours[name] != theirs[name] for name in recipe) or len(data) > 1:
        return "it holds another run; name another mirror_dir or output_dir"
    here, there = _epochs_done(source), _epochs_done(target)
    return f"it holds {there} epochs, and this run has {here}" if there > here else ""


def _in_short(error: Exception) -> str:
    "An error in a few words."
    words = getattr(error, "strerror", None) or str(error)
    return words if isinstance(error, OSError) else f"{type(error).__name__}: {words}"


class _Copies:
    "A run folder and its mirror, and which files are copied."

    def __init__(self, source: Path, target: Path, rate: float) -> None:
        self.source, self.target, self.rate = source, target, rate
        self.copied: dict[str, Stamp | None] = {}  # what the target holds
        self.token, self.claimed = uuid.uuid4().hex.encode(), False
        self.parent: os.stat_result | None = None  # of the target, as it was at first
        self.closed = threading.Event()

    def missing(self) -> list[str]:
        "Files that are not in the target as they are now."
        names = _run_files(self.source)
        return [name for name in names if stamp(self.source / name) != self.copied.get(name)]

    def copy_missing(self) -> str:
        "Copy what is missing and return the first problem. OSError if the target is not ours."
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
        if _run_files(self.source):
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
        if not self.parent:  # made only once, never in place of a disk that has vanished
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
        "Write a piece and wait as long as the rate demands, or until the mirror is closed."
        if self.closed.is_set():
            raise OSError("the mirror is closed")
        done = time.monotonic() + len(piece) / (1e6 * self.rate)
        file.write(piece)
        self.closed.wait(max(0.0, done - time.monotonic()))


# %% [markdown]
# The mirror is a thread. After each write of the run it copies the changed files and rests for a minute; after failures it rests longer, up to five minutes. The thread is a daemon: a disk that hangs blocks neither the training nor the end of the process. It raises no error. It reports a problem once, reports once more when the problem is over, and the training continues.
#
# At the end `flush` copies the rest without pauses, waits a limited time, and returns a line that reports where every file is, because the user may have to copy some by hand before the session is deleted.

# %%
#| export
class Mirror:
    "A copy of a run folder that a thread keeps up to date; with target None it does nothing."

    def __init__(
        self,
        source: Path,
        target: Path | None,
        rate: float = 20.0,  # most megabytes per second
        pause: float = 60.0,  # seconds between two rounds
        say: Callable[[str], object] = print,  # gets one line for a problem and one for its end
    ) -> None:
        self.copies, self.wanted = _Copies(source, target or source, rate), target is not None
        self.pause, self.say = pause, say
        self.problem, self.reported = "", ""  # of the last round; the last reported one
        self.busy, self.changed = threading.Lock(), threading.Event()
        self.closed = self.copies.closed
        self.thread = threading.Thread(target=self.rounds, name="mirror", daemon=True)

    def __enter__(self) -> "Mirror":
        if self.wanted:
            self.wake()
            self.thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        "End the thread after its current piece; a thread that hangs is left behind."
        self.closed.set()
        self.wake()
        if self.thread.is_alive():
            self.thread.join(1.0)

    def wake(self) -> None:
        "Note that the run wrote a file; this never waits."
        self.changed.set()

    def flush(self, timeout: float) -> str:  # seconds
        "Copy the missing files within the timeout, and return one line of where every file is."
        if not self.wanted:
            return ""
        worker = threading.Thread(target=self.hurry, daemon=True)
        worker.start()
        worker.join(timeout)
        late = f"not done after {timeout:.0f} s" if worker.is_alive() else ""
        why = ", ".join(filter(None, (self.problem, late))) or "they changed meanwhile"
        return _what_is_where(self.copies, why)

    def state(self) -> dict[str, Any]:
        "The same facts for status.json; empty without a mirror."
        if not self.wanted:
            return {}
        missing, folder = self.copies.missing(), str(self.copies.target)
        there = len(_run_files(self.copies.source)) - len(missing)
        return {"folder": folder, "files": there, "missing": missing, "problem": self.problem}

    def rounds(self) -> None:
        "Copy in rounds, until the mirror is closed."
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
        "Copy the missing files as far as possible, and report a change."
        with self.busy:
            try:
                self.problem = self.copies.copy_missing()
            except Exception as error:  # whatever it is, the training continues
                self.copies.copied.clear()  # the state of the target is unknown now
                self.problem = _in_short(error)
            with contextlib.suppress(Exception):  # such as a closed output
                self.report()
        return not self.problem

    def report(self) -> None:
        "Report a new problem, or the end of the last one."
        if self.problem != self.reported and not self.closed.is_set():
            self.reported, target = self.problem, self.copies.target
            if self.problem:
                self.say(f"mirror  {target}: {self.problem}; tried again later, the run continues")
            else:
                self.say(f"mirror  {target}: works again")


def _what_is_where(copies: _Copies, why: str) -> str:
    "The line that reports which files are in the mirror, and why others are missing."
    names, missing = _run_files(copies.source), copies.missing()
    if not missing:
        size = sum(found[0] for n in names if (found := stamp(copies.source / n)))
        return f"mirror  all {len(names)} files ({megabytes(size)}) are in {copies.target}"
    some = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if missing[5:] else "")
    there = f"{len(names) - len(missing)} of {len(names)} files are in {copies.target}"
    return f"mirror  {there}; missing: {some} ({why}); they are in {copies.source}"


# %% [markdown]
# Two epochs are copied here. The checkpoint of the first becomes `previous.pt`. A run that begins anew under the name of one with nine epochs leaves that copy as it is:

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
    test_eq(_run_files(source), ["log.jsonl", "last.pt", "status.json"])
    with Mirror(source, target) as mirror:
        print(mirror.flush(timeout=60).replace(tmp, ""))
        write_run(source, last_pt="epoch 2")
        mirror.wake()
        print(mirror.flush(timeout=60).replace(tmp, ""))
    test_eq((target / "previous.pt").read_text(), "epoch 1")
    new = write_run(Path(tmp) / "new" / "run", status_json='{"epochs_done": 1}')
    write_run(target, status_json='{"epochs_done": 9}')
    print(Mirror(new, target, pause=0, say=str).flush(timeout=60).replace(tmp, ""))
    test_eq(read_record(target / "status.json"), {"epochs_done": 9})


# %% [markdown]
# ## Resume in a new session
#
# A new session has an empty disk. Therefore `bring_back` copies the run before training looks for it: from the mirror, or on Kaggle from an earlier output that is attached as input; of several copies it takes the one with the most epochs. The checkpoint is copied last, and an interrupted copy is made again. Only the spare checkpoint comes after it, and replaces it if it is unreadable. A copy without a readable checkpoint is skipped with a warning, and nothing of it stays.

# %%
#| export
def copies_of(config: Settings, place: Place | None = None) -> list[Path]:
    "Folders that may hold a copy of this run: its mirror, and outputs attached on Kaggle."
    place = place or where()
    mirror = mirror_folder(config, place, say=lambda _: None)
    folder = Path(os.path.abspath(run_folder(config, place)))
    kept = place.runs.parent  # on Kaggle the output of a notebook
    name = folder.relative_to(kept) if folder.is_relative_to(kept) else Path("runs", folder.name)
    tops = ("*", "*/*", "notebooks/*/*") if place.name == "kaggle" else ()
    attached = {p for top in tops for p in place.data.glob(f"{top}/{glob.escape(str(name))}")}
    return [*([mirror] if mirror else []), *sorted(attached)]


def has_checkpoint(folder: Path) -> bool:
    "Whether this folder holds a checkpoint; OSError if it cannot be reached."
    return any((folder / name).is_file() for name in ("last.pt", "previous.pt"))


def bring_back(
    folder: Path,
    copies: list[Path],
) -> Path | None:  # the copy that was taken
    "Copy a run back into its folder, unless the folder has a checkpoint."
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
    "Turn an error of a copy into a warning."
    try:
        yield
    except OSError as error:
        warnings.warn(f"{copy} is skipped: {_in_short(error)}", stacklevel=3)


_RECORDS = ("config.json", "log.jsonl", "status.json", "scores.json", "details.json", "best.pt")


def _take_files(copy: Path, folder: Path) -> None:
    """Copy the files of a run, checkpoints last. A picture or a log that fails is left out.

    OSError without a checkpoint, or without its records; then nothing stays.
    """
    names = [name for name in _run_files(copy) if name != "last.pt"]
    checkpoints = [name for name in ("last.pt", "previous.pt") if (copy / name).is_file()]
    new = [folder / name for name in (*names, *checkpoints) if not (folder / name).exists()]
    try:
        for name in names:
            with contextlib.nullcontext() if name in _RECORDS else _skipped(copy / name):
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
    test_eq(bring_back(folder, copies), None)  # the folder has it now


# %% [markdown]
# ## Google Drive, and how it hangs
#
# A Drive whose connection hangs blocks even a check whether its folder exists. The check waits in the kernel, where no signal of Python reaches it. Therefore a daemon thread makes the check, and we wait a limited time. A Drive that does not respond counts as not mounted.
#
# Mounting opens a window that asks for permission. The user may close it, a company's account may forbid it, or nobody may be there. `google.colab.drive.mount` raises several kinds of exceptions for that, and in the version that we read it waits for the window without end, whatever its `timeout_ms`. This wait is a loop in Python, which an alarm ends (in the main thread, where the cells of a notebook run).
#
# The result is always one line, and training continues without the Drive. (We had no Colab. We read the contract in its public source, and a stand-in in the tests keeps it.)

# %%
#| export
def is_mounted(drive: Path, timeout: float = 20.0) -> bool:
    "Whether Google Drive is there and answers within so many seconds."
    answers: list[bool] = []
    asked = threading.Thread(target=lambda: answers.append(os.path.isdir(drive)), daemon=True)
    asked.start()
    asked.join(timeout)
    return answers == [True]


def on_drive(path: Path) -> bool:
    "Whether a path leads to Google Drive."
    return Path(os.path.abspath(path)).is_relative_to(DRIVE)


class Mounted(NamedTuple):
    "The result of mounting Google Drive."

    folder: Path | None  # the user's part of the Drive; None: not mounted
    line: str  # what that means, and what to do


@contextlib.contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    "Raise TimeoutError in Python code that takes longer, if an alarm can be set."
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
        return Mounted(None, "Google Drive is mounted in Colab only")
    if is_mounted(MY_DRIVE):
        return Mounted(MY_DRIVE, f"Google Drive is mounted already: {MY_DRIVE}")
    try:
        with _at_most(1.2 * timeout):  # its own limit first
            from google.colab import drive

            drive.mount(str(DRIVE), timeout_ms=int(1000 * timeout))
        if not is_mounted(MY_DRIVE):
            raise OSError(f"there is no {MY_DRIVE}")
    except Exception as error:  # it raises many kinds
        what = "no data or results there, and Colab deletes its disk after the session"
        todo = "run `from mshnet.places import mount_drive; mount_drive()` in a cell, and allow it"
        return Mounted(None, f"Google Drive is not mounted ({_reason(error)}): {what}; {todo}")
    return Mounted(MY_DRIVE, f"Google Drive is mounted: {MY_DRIVE}")


def ask_for_drive(config: Settings) -> None:
    "Mount Google Drive in Colab if the data or the copies of a run lie there."
    data = bool(config.dataset_dir) and on_drive(Path(config.dataset_dir))
    asked = where().name == "colab" and (data or wants_drive(config))
    if asked and not is_mounted(MY_DRIVE):
        print(mount_drive().line)


# %%
test_eq([is_mounted(Path(name)) for name in (".", "no/such/folder")], [True, False])
with tempfile.TemporaryDirectory() as tmp:
    colab = Place("colab", Path(tmp), Path(tmp) / "runs", "", drive=Path(tmp) / "drive" / "MyDrive")
    asked = Config(mirror_dir="drive", output_dir="runs/mine")
    test_eq((mirror_folder(asked, colab), wants_drive(asked, colab)), (None, True))
    colab.drive.mkdir(parents=True)
    test_eq(mirror_folder(asked, colab), colab.drive / "mshnet" / "mine")
test_eq(mount_drive(HERE), Mounted(None, "Google Drive is mounted in Colab only"))

# %% [markdown]
# ## Errors of disks and libraries
#
# Disks, archives and servers fail, each in a different way, and the user needs the reason and the next step. A disk that is full, read-only or gone raises an `OSError` with a number. Everything else comes from damaged bytes or from a library, which may raise any exception. So there are two translators. Both raise a `UserError` of one line. `foreign_errors` lets the errors of disks pass to `disk_errors`, because downloading an archive again does not help against a full disk.

# %%
#| export
_BAD_BYTES = (None, errno.EINVAL, errno.EEXIST, errno.EISDIR, errno.ENOTDIR)  # not the disk's fault


def _reason(error: Exception) -> str:
    "The reason in an exception, in one line; its kind if it gives none."
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return "the disk is full"
    words = str(error).split(":\n")[0].split()  # without a list below it
    return " ".join(words) or type(error).__name__


@contextlib.contextmanager
def disk_errors(what: str) -> Iterator[None]:
    "Turn the error of a disk into a UserError that begins with what failed."
    try:
        yield
    except OSError as error:
        todo = "make room, permit it, or mount the disk again"
        raise UserError(f"{what} ({_reason(error)}); {todo}") from None


@contextlib.contextmanager
def foreign_errors(what: str, todo: str) -> Iterator[None]:
    "Turn any exception of a library into a UserError of what failed and what to do."
    try:
        yield
    except Exception as error:
        from_disk = isinstance(error, OSError) and error.errno not in _BAD_BYTES
        if from_disk or isinstance(error, UserError):
            raise
        raise UserError(f"{what} ({_reason(error)}); {todo}") from None


# %%
with expect_fail(UserError, contains="data (the disk is full); make room"), disk_errors("data"):
    raise OSError(errno.ENOSPC, "No space left on device")
with expect_fail(UserError, contains="(EOFError); copy it"), foreign_errors("a.zip", "copy it"):
    raise EOFError


# %% [markdown]
# ## Stale TPU variables
#
# Kaggle's TPU machines set two variables of an older kind of TPU. With them the runtime waits for workers that do not exist ("Expected 4 worker addresses, got 1"), and we remove them before the runtime starts. On a real TPU pod the same variables hold valid addresses. Therefore we remove them on Kaggle, and elsewhere only if they hold the word "local".

# %%
#| export
def forget_stale_tpu(environ: MutableMapping[str, str] = os.environ) -> list[str]:
    "Remove stale TPU variables, and return their names; leave those of a pod."
    stale = ("TPU_PROCESS_ADDRESSES", "CLOUD_TPU_TASK_ID")
    if where(environ) != KAGGLE and environ.get("TPU_PROCESS_ADDRESSES") != "local":
        return []
    return [name for name in stale if environ.pop(name, None) is not None]


# %%
kaggle_tpu = {"KAGGLE_KERNEL_RUN_TYPE": "Batch", "TPU_PROCESS_ADDRESSES": "local"}
test_eq(forget_stale_tpu(kaggle_tpu), ["TPU_PROCESS_ADDRESSES"])
test_eq(forget_stale_tpu({"TPU_PROCESS_ADDRESSES": "10.0.0.1:8476"}), [])


# %% [markdown]
# ## The site of a run
#
# Where a run lies, where it is copied to and how long it may take follow from the settings and the place. We work it out once, when a command begins, and hand it down. In Colab this is also the moment to ask for the Drive.

# %%
#| export
class Site(NamedTuple):
    "Where a run lies, where it is copied to, and how long it may take here."

    folder: Path
    mirror: Path | None  # None: its files are not copied
    copies: list[Path]  # folders that may hold a copy of it
    programs: Path  # folder of programs compiled for a TPU
    seconds: float  # that are left for it; infinite where sessions do not end
    hours: float  # that will be over then
    note: str = ""  # why there is no mirror, although one is wanted


def site_of(config: Settings, mount: bool = True) -> Site:
    "The site of a run, after mounting the Drive if it needs one; UserError for a wrong mirror."
    if mount:
        ask_for_drive(config)
    notes: list[str] = []
    mirror = mirror_folder(config, say=notes.append)
    copies = [] if config.resume else copies_of(config)
    usual = session_hours(config.model_copy(update={"max_hours": 0.0}))
    session = max(usual, config.max_hours)  # who writes more knows of a longer session
    own = (3600 * config.max_hours or math.inf, config.max_hours)
    seconds, hours = min(own, (3600 * session - session_seconds(), session))
    folder, programs = run_folder(config), program_folder(config)
    return Site(folder, mirror, copies, programs, seconds, hours, " ".join(notes))


# %%
ask_for_drive(Config())  # there is nothing to ask for here
site: Site = site_of(Config(output_dir="runs/mine", max_hours=2))
test_eq((site.folder, site.mirror, site.seconds), (Path("runs/mine"), None, 7200))
site
