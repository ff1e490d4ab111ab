"""Faults: runs that are killed, cut off and lied to, and whether anything is lost. `make faults`.

    python tools/faults.py [--rounds 200] [--each 5] [--fuzz 2000] [--seed 1] [--only KIND ..]

Each round takes a tiny run on the CPU, disturbs it, looks at what is left, starts it again until it
is done, and compares it with a run that nobody disturbed: weights, optimizer, kept epoch, log and
scores, to the last bit. What is disturbed is a real run: `mshnet.cli.main` in a process of its own,
forked from this one so that torch need not be imported each time; the run that all are compared
with, and every tenth that is killed at a random moment, is `python -m mshnet train`. The faults are
made from outside, in that process alone: the library has no hooks for them.

Not made here: a power cut is imitated (what was not flushed is cut off, a rename is taken to hold),
a Drive is a folder, and no accelerator takes part.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch: a process with threads must not be forked

import argparse
import builtins
import contextlib
import ctypes
import errno
import importlib
import io
import json
import multiprocessing
import random
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import traceback
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TOP), str(TOP / "tests")]
for slow in ("torch.utils.tensorboard", "torch._inductor"):  # what a run imports when it begins
    with contextlib.suppress(ImportError):
        importlib.import_module(slow)

import torch  # noqa: E402

from mshnet import cli, places, run, show, train  # noqa: E402
from mshnet.core import UserError  # noqa: E402
from mshnet.model import checksum  # noqa: E402

TINY = "train --deterministic --base-size 32 --crop-size 32 --batch-size 4 --epochs 3 --device cpu"
TINY += " --warm-epoch 0 --choose test --precision fp32 --num-workers 0 --seed 4"
SCENES = [*TINY.split(), "--scenes", "8"]
STEPS, EPOCHS = 2, 3  # steps of an epoch, epochs
PATIENCE = 180  # seconds that a process may take
SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
FILES = ("last.pt", "previous.pt", "best.pt", "log.jsonl", "status.json", "scores.json")

# A run in a process of its own


@dataclass
class Ended:
    "How a process ended: its status (below zero: by a signal) and what it said."

    status: int
    said: str
    points: list[str] = field(default_factory=list)  # that it passed

    @property
    def last(self) -> str:
        "What it said last."
        return (self.said.strip().splitlines() or [""])[-1]


def inside(box: Path, words: list[str], arm: Callable[["Points"], object]) -> None:
    "What the forked process does: never returns."
    status = 1
    try:
        os.setpgid(0, 0)  # Ctrl-C is for the tool
        for number in (*SIGNALS, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.chdir(box)
        said = os.open(box / "said.txt", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(said, stream)
        sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
        for draw in ("learning_curves", "trade_offs", "gallery"):  # three seconds, no bit of a run
            setattr(show, draw, lambda folder: None)
        points = Points(box)
        arm(points)
        status = cli.main(words)
        threading._shutdown()  # type: ignore[attr-defined]  # as at the end of Python
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def begin(box: Path, words: list[str], arm: Callable[["Points"], object] = lambda _: None) -> int:
    "Start a run in a box, a folder of its own; the number of its process."
    (box / "points.txt").write_text("")
    sys.stdout.flush()
    if pid := os.fork():
        return pid
    return inside(box, words, arm)  # type: ignore[func-returns-value, return-value]


def ended(box: Path, pid: int, after: list[tuple[float, int]] | None = None) -> Ended:
    "Wait for a process, sending it signals after so many seconds each."
    start, left = time.monotonic(), list(after or [])
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        passed = time.monotonic() - start
        if passed > PATIENCE:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return Ended(-1000, f"it hung for {PATIENCE} seconds", passed_points(box))
        if left and passed > left[0][0]:
            os.kill(pid, left.pop(0)[1])
        time.sleep(0.002)
    said = (box / "said.txt").read_text(errors="replace")
    return Ended(os.waitstatus_to_exitcode(status), said, passed_points(box))


def go(box: Path, words: list[str], arm: Callable[["Points"], object] = lambda _: None) -> Ended:
    "Start a run in a box and wait for its end."
    return ended(box, begin(box, words, arm))


def real(box: Path, words: list[str], after: float = PATIENCE) -> Ended:
    "The same as a command, killed after so many seconds."
    (box / "points.txt").write_text("")
    environ = {**os.environ, "PYTHONPATH": str(TOP)}
    with open(box / "said.txt", "w") as said:
        started = subprocess.Popen(
            [sys.executable, "-m", "mshnet", *words],
            cwd=box,
            env=environ,
            stdout=said,
            stderr=subprocess.STDOUT,
        )
        try:
            started.wait(after)
        except subprocess.TimeoutExpired:
            started.kill()
        return Ended(started.wait(), (box / "said.txt").read_text())


def passed_points(box: Path) -> list[str]:
    "The points that the last process in a box passed."
    return (box / "points.txt").read_text().splitlines()


# Points: where a run touches its files, and each step


class Points:
    "Watches a run from within its process: names what it does, and does something at one of them."

    def __init__(self, box: Path) -> None:
        self.box, self.run = box, box / "run"
        self.counts: Counter[str] = Counter()
        self.at: dict[tuple[str, int], Callable[[], object]] = {}
        self.always: list[Callable[[str], object]] = []
        self.synced: dict[str, int] = {}  # how much of an unflushed file is safe
        self.room = float("inf")  # bytes that fit on the disk
        self.notes = os.open(box / "points.txt", os.O_WRONLY | os.O_APPEND)
        self.watch_system()
        self.watch_run()

    def reach(self, name: str) -> None:
        "Note a point, and do what is asked for there."
        os.write(self.notes, f"{name}\n".encode())
        self.counts[name] += 1
        for ask in self.always:
            ask(name)
        if act := self.at.get((name, self.counts[name])):
            act()

    def own(self, path: Any) -> bool:
        "Whether a file is one of the run's."
        return isinstance(path, str | Path) and Path(path).is_relative_to(self.run)

    def watch_system(self) -> None:
        "Make points of what the system is asked for."
        self.open = builtins.open
        builtins.open = io.open = self.opened  # type: ignore[assignment]
        replace, link, fsync = os.replace, os.link, os.fsync

        def replaced(old: Any, new: Any, **how: Any) -> None:
            self.around("replace", new, lambda: replace(old, new, **how))
            if str(old) in self.synced:
                self.synced[str(new)] = self.synced.pop(str(old))
            else:
                self.synced.pop(str(new), None)

        def linked(old: Any, new: Any, **how: Any) -> None:
            self.around("link", new, lambda: link(old, new, **how))

        def flushed(number: int) -> None:
            path = os.readlink(f"/proc/self/fd/{number}") if sys.platform == "linux" else "/file"
            self.around("fsync", path, lambda: fsync(number))
            self.synced.pop(path, None)

        os.replace, os.link, os.fsync = replaced, linked, flushed  # type: ignore[assignment]

    def around(self, what: str, path: Any, work: Callable[[], object]) -> None:
        "Do something with a file between two points."
        if not self.own(path) and Path(path) != self.run:
            work()
            return
        name = f"{what} {plain(path)}" if Path(path) != self.run else f"{what} the folder"
        self.reach(f"{name}: before")
        work()
        self.reach(f"{name}: after")

    def opened(self, file: Any, mode: str = "r", *more: Any, **how: Any) -> Any:
        "Open a file; one of the run's that is written to is watched."
        made = self.open(file, mode, *more, **how)
        if not self.own(file) or not set(mode) & set("wax+"):
            return made
        self.synced.setdefault(str(file), os.path.getsize(file))
        return Watched(made, plain(file), self)

    def watch_run(self) -> None:
        "Make points of the steps and of what is kept."
        step, checkpoint, log = train.train_step, run.write_checkpoint, run.write_log

        def stepped(*args: Any) -> Any:
            self.reach("step: before")
            done = step(*args)
            self.reach("step: after")
            return done

        def kept(content: dict[str, Any], *paths: Path) -> None:
            self.reach("checkpoint: before")
            checkpoint(content, *paths)
            self.reach("checkpoint: after")
            os.write(self.notes, f"kept {content['epoch']} {content['step']}\n".encode())

        def logged(folder: Any, entry: dict[str, Any]) -> None:
            log(folder, entry)
            os.write(self.notes, f"logged {entry['epoch']}\n".encode())
            self.reach("between log and checkpoint")

        train.train_step, run.write_log = stepped, logged  # type: ignore[assignment]
        run.write_checkpoint = train.write_checkpoint = kept  # type: ignore[attr-defined]

    def kill(self) -> None:
        "End as kill -9 does."
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(PATIENCE)

    def power_cut(self, share: float) -> None:
        "End, and of what was not flushed only a share is on the disk."
        for path, safe in list(self.synced.items()):
            with contextlib.suppress(OSError):
                os.truncate(path, safe + int(share * (os.path.getsize(path) - safe)))
        self.kill()


class Watched:
    "An open file that names its writes, in the middle too, and whose disk can be full."

    def __init__(self, file: Any, name: str, points: Points) -> None:
        self.file, self.name, self.points = file, name, points

    def write(self, content: Any) -> int:
        "Write in two halves, or as much as there is room for."
        half = len(content) // 2
        for part, stage in ((content[:half], "half"), (content[half:], "all")):
            fits = int(min(len(part), max(self.points.room, 0)))
            self.file.write(part[:fits])
            self.file.flush()
            self.points.room -= len(part)
            if fits < len(part):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.points.reach(f"write {self.name}: {stage}")
        return len(content)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def __enter__(self) -> "Watched":
        return self

    def __exit__(self, *_: Any) -> None:
        self.file.close()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.file)


def plain(path: Any) -> str:
    "The name of a file, that of a temporary one too."
    found = re.fullmatch(r"\.(.+?)(\.\d+)?\.tmp", Path(path).name)
    return found[1] if found else Path(path).name


# What is left of a run


def look(folder: Path, whole: bool = True) -> dict[str, Any]:
    "What a run's folder holds, as digests; or only how far it is. Read in a process of its own."
    reader, writer = os.pipe()
    sys.stdout.flush()
    if not (pid := os.fork()):
        try:
            os.write(writer, json.dumps(digests(folder, whole)).encode())
        except BaseException:
            traceback.print_exc()
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        found = pipe.read()
    os.waitpid(pid, 0)
    return json.loads(found)


def digests(folder: Path, whole: bool) -> dict[str, Any]:
    "The state of each checkpoint, the log, the scores."
    found: dict[str, Any] = {}
    for name in ("last.pt", "previous.pt", "best.pt"):
        if name == "previous.pt" and usable(found["last.pt"]):
            continue  # nobody reads it then
        try:
            content = run.load(folder / name)
        except UserError as error:
            found[name] = None if (folder / name).exists() else "missing"
            found[f"why {name}"] = str(error)
            continue
        found[name] = {"at": [content["epoch"], content["step"]]}
        if whole:
            names = ("model", "optimizer", "scaler", "phase", "best", "total", "random", "threads")
            found[name] |= {key: checksum(content[key]) for key in names}
    log = folder / "log.jsonl"
    lines = []
    for line in log.read_bytes().splitlines() if log.exists() else []:
        with contextlib.suppress(ValueError):
            lines.append(json.loads(line))
    found["log"] = [{k: e.get(k) for k in LOGGED} | {"epoch": e["epoch"]} for e in lines]
    found["unmarked"] = [e["epoch"] for i, e in enumerate(lines) if unmarked(e, lines[:i])]
    found["scores"] = run.Folder(folder).read_json("scores.json")
    found["status"] = run.Folder(folder).read_json("status.json")
    found["litter"] = [p.name for p in folder.rglob("*.tmp")]
    return found


LOGGED = ("phase", "loss", "lr", "split", "line", "scores")


def unmarked(entry: dict[str, Any], before: list[dict[str, Any]]) -> bool:
    "Whether a line repeats an epoch without saying so."
    return any(old["epoch"] == entry["epoch"] for old in before) and not entry.get("repeated")


def position(found: dict[str, Any]) -> list[int]:
    "Where a run would go on: the last epoch that is complete, and steps after it."
    good = [name for name in ("last.pt", "previous.pt") if usable(found.get(name))]
    return found[good[0]]["at"] if good else [-1, 0]


def usable(state: Any) -> bool:
    "Whether a checkpoint could be read."
    return isinstance(state, dict)


# Rounds


@dataclass
class Round:
    "One round: what it did, and all that is wrong."

    kind: str
    seed: int
    box: Path
    reference: dict[str, Any]
    points: list[str]  # of the undisturbed run
    seconds: float  # that it took
    what: str = ""
    lost: list[str] = field(default_factory=list)  # was complete, and is gone
    wrong: list[str] = field(default_factory=list)  # anything else

    def __post_init__(self) -> None:
        self.draw = random.Random(f"{self.kind} {self.seed}")
        self.run, self.kept = self.box / "run", [-1, 0]
        self.logged: set[int] = set()

    @property
    def words(self) -> list[str]:
        "The command."
        return [*SCENES, "--output-dir", str(self.run)]

    def expect(self, true: object, said: str) -> None:
        "Note what is wrong unless it is true."
        if not true:
            self.wrong.append(said)

    def one_line(self, end: Ended, *contains: str, status: int = 2) -> None:
        "A mistake or an error: the status, one line of its own, and the cause in it."
        self.expect(end.status == status, f"status {end.status}, not {status}: {end.last}")
        lines = [ln for ln in end.said.splitlines() if ln.startswith("mshnet: ")]
        self.expect(len(lines) == 1, f"{len(lines)} lines of errors: {end.said[-300:]!r}")
        for text in contains:
            self.expect(text in "".join(lines), f"{text!r} is not in {lines}")
        self.clean(end)

    def clean(self, end: Ended) -> None:
        "No process says a traceback."
        bad = "Traceback" in end.said or "Exception ignored" in end.said
        self.expect(not bad, f"a traceback: {end.said[-700:]!r}")

    def after(self, end: Ended) -> dict[str, Any]:
        "What a disturbed run must have left."
        self.clean(end)
        for words in (point.split() for point in end.points):
            if words[0] == "kept":
                self.kept = max(self.kept, [int(words[1]), int(words[2])])
            if words[0] == "logged":
                self.logged.add(int(words[1]))
        found = look(self.run, whole=False)
        self.held(found)
        return found

    def held(self, found: dict[str, Any]) -> None:
        "What was complete is there."
        if position(found) < self.kept:
            self.lost.append(f"kept was {self.kept}, and {position(found)} is there")
        if gone := self.logged - {entry["epoch"] for entry in found["log"]}:
            self.lost.append(f"log lines of epochs {sorted(gone)}")
        if found["best.pt"] is None:
            self.lost.append(f"best.pt: {found['why best.pt']}")
        scores = self.run / "scores.json"
        if scores.exists() and not found["scores"]:
            self.lost.append("scores.json cannot be read")

    def finish(self, words: list[str] | None = None, **how: Any) -> Ended:
        "Go on until it is done, and compare."
        end = go(self.box, words or self.words, **how)
        self.expect(end.status == 0, f"going on: status {end.status}: {end.last}")
        self.clean(end)
        self.same(look(self.run))
        return end

    def same(self, found: dict[str, Any], skip: tuple[str, ...] = ()) -> None:
        "Is it the undisturbed run, to the last bit?"
        for name in ("last.pt", "best.pt"):
            if name not in skip and found[name] != self.reference[name]:
                self.lost.append(f"{name} differs from that of the undisturbed run")
        wanted = {entry["epoch"]: entry for entry in self.reference["log"]}
        for entry in found["log"]:
            if entry != wanted.get(entry["epoch"]):
                self.lost.append(f"log line of epoch {entry['epoch']} differs")
        if {entry["epoch"] for entry in found["log"]} != set(wanted):
            self.lost.append("epochs are missing in the log")
        self.expect(not found["unmarked"], f"repeated and not marked: {found['unmarked']}")
        if "scores" not in skip and found["scores"] != self.reference["scores"]:
            self.lost.append("scores.json differs from that of the undisturbed run")
        self.expect(found["status"].get("state") == "finished", f"status {found['status']}")
        self.expect(not found["litter"], f"left behind: {found['litter']}")

    def point(self, *kinds: str) -> tuple[str, int]:
        "A point of the undisturbed run: first its name is drawn, then the time it is passed."
        names = [p for p in self.points if any(kind in p for kind in kinds or ("",))]
        name = self.draw.choice(sorted(set(names)))
        return name, self.draw.randint(1, names.count(name))

    def half(self) -> None:
        "The folder of a run that was killed after two epochs."
        shutil.copytree(self.box.parent / "half", self.run)

    def one_process(self, arm: Callable[[Points], object]) -> Ended:
        "The run with a fault."
        return go(self.box, self.words, arm)


ROUNDS: dict[str, Callable[[Round], None]] = {}


def fault(work: Callable[[Round], None]) -> Callable[[Round], None]:
    "Name a kind of fault."
    ROUNDS[work.__name__.replace("_", " ")] = work
    return work


# Killed


def killed_at(this: Round, name: str, count: int, cut: float | None = None) -> None:
    "Kill a run at a point; one that goes on need not come there."
    again, this.what = bool(this.what), f"{this.what}{name} ({count}) "

    def arm(points: Points) -> None:
        act = points.kill if cut is None else lambda: points.power_cut(cut)
        points.at[name, count] = act

    end = this.one_process(arm)
    this.expect(end.status in (-9, 0), f"status {end.status}: {end.last}")
    this.expect(end.status == -9 or again, f"{name} was not reached")
    this.after(end)


@fault
def kill_at_a_point(this: Round) -> None:
    "kill -9 before, in the middle of and after each write, flush, link, rename and step."
    names = sorted(set(this.points))
    name = names[this.seed % len(names)]  # one after the other: each has its turn
    killed_at(this, name, this.draw.randint(1, this.points.count(name)))
    this.finish()


@fault
def kill_at_a_moment(this: Round) -> None:
    "kill -9 after a random time; every tenth a command, and not a fork."
    if this.seed % 10 == 9:
        moment = this.draw.uniform(3, 7 + this.seconds)
        this.what = f"a command, after {moment:.2f} s"
        this.after(real(this.box, this.words, moment))
    else:
        moment = this.draw.uniform(0, this.seconds)
        this.what = f"after {moment:.2f} s"
        this.after(ended(this.box, begin(this.box, this.words), [(moment, signal.SIGKILL)]))
    this.finish()


@fault
def kill_twice_and_more(this: Round) -> None:
    "kill -9 at a point, and those that go on are killed too."
    for _ in range(3):
        killed_at(this, *this.point())
    this.finish()


@fault
def kill_in_the_best_epoch(this: Round) -> None:
    "kill -9 while best.pt is written, or between it and last.pt."
    killed_at(this, *this.point("best.pt", "replace previous.pt", "checkpoint: "))
    this.finish()


@fault
def power_cut(this: Round) -> None:
    "As if the power went: of what was not flushed, none, half or nearly all is on the disk."
    name, count = this.point()
    killed_at(this, name, count, this.draw.choice([0.0, 0.5, 0.99]))
    this.finish()


KILLS = {
    "kill at a point": 0.5,
    "kill at a moment": 0.2,
    "kill twice and more": 0.1,
    "kill in the best epoch": 0.1,
    "power cut": 0.1,
}

# Asked to stop


@fault
def signal_in_a_step(this: Round) -> None:
    "SIGTERM, SIGHUP or SIGINT: it stops after the step, says so, and goes on from there."
    number, at = SIGNALS[this.seed % 3], this.draw.randint(1, STEPS * EPOCHS - 1)
    this.what = f"{number.name} in step {at}"

    def arm(points: Points) -> None:
        points.at["step: before", at] = lambda: os.kill(os.getpid(), number)

    end = this.one_process(arm)
    this.expect(end.status == 128 + number, f"status {end.status}: {end.last}")
    this.expect("mshnet: stopped; the same command goes on" in end.said, end.said[-200:])
    found = this.after(end)
    wanted = ("stopped", number.name)
    state = found["status"]
    this.expect((state.get("state"), state.get("reason")) == wanted, f"status.json: {state}")
    epoch, step = position(found)
    if (epoch + 1) * STEPS + step != at:
        this.lost.append(f"stopped after step {at}, and {[epoch, step]} is there")
    again = this.finish()
    steps = again.points.count("step: after")
    this.expect(steps == STEPS * EPOCHS - at, f"going on took {steps} steps")


@fault
def signal_at_a_moment(this: Round) -> None:
    "A signal at any time: before it listens it ends as any program does."
    number, moment = SIGNALS[this.seed % 3], this.draw.uniform(0, this.seconds)
    this.what = f"{number.name} after {moment:.2f} s"
    end = ended(this.box, begin(this.box, this.words), [(moment, number)])
    this.expect(end.status in (128 + number, -number, 0), f"status {end.status}: {end.last}")
    this.after(end)
    this.finish()


@fault
def signal_twice(this: Round) -> None:
    "Asked twice, it ends at once, wherever it is; nothing is lost."
    number, at = SIGNALS[this.seed % 3], this.draw.randint(1, STEPS * EPOCHS - 1)
    more = this.draw.randint(1, 25)
    this.what = f"{number.name} in step {at}, again {more} points later"

    def arm(points: Points) -> None:
        def begin_to_count() -> None:
            os.kill(os.getpid(), number)
            left = [more]

            def again(name: str) -> None:
                left[0] -= 1
                if not left[0]:
                    os.kill(os.getpid(), number)

            points.always.append(again)

        points.at["step: before", at] = begin_to_count

    end = this.one_process(arm)
    this.expect(end.status == 128 + number, f"status {end.status}: {end.last}")
    this.after(end)
    this.finish()


@fault
def signal_that_is_ignored(this: Round) -> None:
    "A signal that was set to be ignored, as nohup does, changes nothing."
    this.what = "SIGHUP"

    def arm(points: Points) -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        points.at["step: before", 3] = lambda: os.kill(os.getpid(), signal.SIGHUP)

    this.expect(this.one_process(arm).status == 0, "it stopped")
    this.same(look(this.run))


# Disks


@fault
def disk_full(this: Round) -> None:
    "So many bytes fit, and no more."
    room = int(this.draw.choice([1e3, 1e5, 4e7, 1e8, 1.5e8, 2e8]) * this.draw.uniform(0.1, 1.1))
    this.what = f"after {room / 1e6:.3f} MB"
    end = this.one_process(lambda points: setattr(points, "room", room))
    if end.status:
        this.one_line(end, "No space left on device")
    this.after(end)
    this.finish()


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[str]:
    "A disk in memory of so many megabytes; yields why there is none, or nothing."
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "none", str(folder)]
    try:
        done = subprocess.run(words, capture_output=True, text=True)
        why = "" if done.returncode == 0 else " ".join(done.stderr.split())
    except OSError as error:
        why = str(error)
    try:
        yield why and f"skipped: a disk in memory cannot be mounted ({why})"
    finally:
        if not why:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def remount(folder: Path, how: str) -> None:
    "Change such a disk."
    subprocess.run(["mount", "-o", f"remount,{how}", str(folder)], check=True)


@fault
def disk_in_memory_full(this: Round) -> None:
    "A real small disk, which grows then."
    size = this.draw.randint(1, 150)
    this.run = this.box / "disk" / "run"
    with small_disk(this.box / "disk", size) as skipped:
        this.what = skipped or f"{size} MB"
        if skipped:
            return
        end = this.one_process(lambda _: None)
        if end.status:
            this.one_line(end, "No space left on device")
        this.after(end)
        remount(this.box / "disk", "size=400m")
        this.finish()


@fault
def read_only_from_a_point_on(this: Round) -> None:
    "A disk that had an error is made read-only by the system."
    name, count = this.point("fsync", "step")
    this.what = f"{name} ({count})"

    def arm(points: Points) -> None:
        def refuse() -> None:
            opened, replace, link, mkdir = points.opened, os.replace, os.link, os.mkdir
            error = OSError(errno.EROFS, os.strerror(errno.EROFS))

            def refused(real: Any, place: int) -> Any:
                def call(*args: Any, **how: Any) -> Any:
                    mode = args[1] if real == opened and len(args) > 1 else how.get("mode", "r")
                    writes = real != opened or set(mode) & set("wax+")
                    if points.own(args[place]) and writes:
                        raise error
                    return real(*args, **how)

                return call

            builtins.open = io.open = refused(opened, 0)
            os.replace, os.link = refused(replace, 1), refused(link, 1)
            os.mkdir = refused(mkdir, 0)

        points.at[name, count] = refuse

    end = this.one_process(arm)
    if end.status:
        this.one_line(end, "Read-only file system")
    this.after(end)
    this.finish()


@fault
def read_only_folder(this: Round) -> None:
    "A disk that may only be read: refused before anything is done."
    this.run = this.box / "disk" / "run"
    with small_disk(this.box / "disk", 400) as skipped:
        this.what = skipped or "a disk in memory, read-only"
        if skipped:
            return
        later = this.seed % 2 == 1
        if later:  # a run that was begun
            this.half()
        remount(this.box / "disk", "ro")
        end = this.one_process(lambda _: None)
        this.one_line(end, "cannot be written (Read-only file system)")
        this.expect("step: before" not in end.points, "it trained first")
        remount(this.box / "disk", "rw")
        this.finish()


# Mirrors


def quick_mirror(hang: bool = False) -> None:
    "A mirror that tries again at once, and that nobody waits for long."
    begin_, flush = places.Mirror.__init__, places.Mirror.flush

    def made(self: Any, *args: Any, **how: Any) -> None:
        begin_(self, *args, **how)
        self.pause = 0.01

    places.Mirror.__init__ = made  # type: ignore[method-assign]
    if hang:
        places.Mirror.flush = lambda self, timeout: flush(self, min(timeout, 1.0))  # type: ignore[method-assign]


@fault
def mirror_in_trouble(this: Round) -> None:
    "It hangs, vanishes, is full or returns errors: the run is the same, and what is where is told."
    how = ("hangs", "vanishes", "returns errors", "is full")[this.seed % 4]
    at, drive = this.draw.randint(1, 12), this.box / "drive"
    this.what = f"{how} at piece {at}"
    drive.mkdir()
    words = [*this.words, "--mirror-dir", str(drive), "--mirror-rate", "10000"]
    copy = drive / "run"

    def arm(points: Points) -> None:
        quick_mirror(how == "hangs")
        put, count = places._Copies.write, [0]

        def write(self: Any, file: Any, piece: bytes) -> None:
            count[0] += 1
            if count[0] >= at and how == "hangs":
                threading.Event().wait()
            if count[0] == at and how == "vanishes":
                shutil.rmtree(drive)
            if count[0] >= at and how == "returns errors":
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            if count[0] >= at and how == "is full":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            put(self, file, piece)

        places._Copies.write = write  # type: ignore[method-assign]

    end = go(this.box, words, arm)
    this.expect(end.status == 0, f"status {end.status}: {end.last}")
    this.clean(end)
    this.expect(end.points.count("step: before") == STEPS * EPOCHS, "another number of steps")
    told = [ln for ln in end.said.splitlines() if ln.startswith("mirror  ") and "missing" in ln]
    this.expect(told, f"nobody said what is missing: {end.said[-300:]!r}")
    this.same(look(this.run))
    drive.mkdir(exist_ok=True)
    again = this.finish(words, arm=lambda _: quick_mirror())  # it works again
    this.expect("files (" in again.said, again.said[-300:])
    this.expect(
        look(copy)["last.pt"] == this.reference["last.pt"],
        f"the mirror's copy differs: {again.said[-400:]!r}",
    )
    shutil.rmtree(this.run)  # a new machine
    back = this.finish(words, arm=lambda _: quick_mirror())
    this.expect("brought back from" in back.said, back.said[:300])
    this.expect("step: before" not in back.points, "it trained again")


@fault
def new_machine(this: Round) -> None:
    "Killed, and its disk is gone: it is brought back from the mirror and goes on."
    drive = this.box / "drive"
    drive.mkdir()
    words = [*this.words, "--mirror-dir", str(drive), "--mirror-rate", "10000"]
    copy = drive / "run"
    name, count = this.point("step", "last.pt", "status")
    this.what = f"killed at {name} ({count})"

    def arm(points: Points) -> None:
        quick_mirror()
        points.at[name, count] = points.kill

    end = go(this.box, words, arm)
    this.expect(end.status == -9, f"status {end.status}: {end.last}")
    this.after(end)
    there = look(copy) if copy.exists() else {}
    shutil.rmtree(this.run)
    back = this.finish(words, arm=lambda _: quick_mirror())
    if there and position(there) != [-1, 0]:
        this.expect("brought back from" in back.said, f"{back.said[:300]} {there}")
        epoch, step = position(there)
        steps = STEPS * EPOCHS - (epoch + 1) * STEPS - step
        taken = back.points.count("step: after")
        this.expect(taken == steps, f"{taken} steps and not {steps}")


# Damaged files


def damage(this: Round, path: Path) -> None:
    "Cut a file off, or turn a bit."
    size = path.stat().st_size
    place = this.draw.choice([this.draw.randrange(size), this.draw.randrange(min(size, 3000))])
    if this.draw.random() < 0.5:
        os.truncate(path, place)
        this.what += f"{path.name} cut off at {place} of {size} "
        return
    with open(path, "r+b") as file:
        file.seek(place)
        byte = file.read(1)[0] ^ 1 << this.draw.randrange(8)
        file.seek(place)
        file.write(bytes([byte]))
    this.what += f"{path.name} a bit at {place} of {size} "


@fault
def last_checkpoint_damaged(this: Round) -> None:
    "The previous one is gone on from, with a warning."
    this.half()
    damage(this, this.run / "last.pt")
    harmless = usable(look(this.run, whole=False)["last.pt"])  # a bit that means nothing
    this.what += "harmless" if harmless else ""
    end = this.finish()
    said = "warning: " in end.said and "going on from previous.pt" in end.said
    this.expect(said != harmless, f"the warning: {end.said[:400]!r}")


@fault
def both_checkpoints_damaged(this: Round) -> None:
    "One clear line, and nothing is touched."
    this.half()
    for name in ("last.pt", "previous.pt"):
        os.truncate(this.run / name, this.draw.randrange((this.run / name).stat().st_size))
    before = {name: (this.run / name).read_bytes() for name in FILES[:4]}
    this.what = "both cut off"
    this.one_line(this.one_process(lambda _: None), "last.pt", "damaged")
    if before != {name: (this.run / name).read_bytes() for name in FILES[:4]}:
        this.lost.append("a refused run changed its files")


@fault
def best_checkpoint_damaged(this: Round) -> None:
    "The training is the same; at the end the last epoch stands in, and the protocol says so."
    this.half()
    damage(this, this.run / "best.pt")
    harmless = usable(look(this.run, whole=False)["best.pt"])
    end = this.one_process(lambda _: None)
    this.expect(end.status == 0, f"status {end.status}: {end.last}")
    this.clean(end)
    found = look(this.run)
    mended = harmless or usable(found["best.pt"])  # a later epoch was better
    this.same(found, () if mended else ("best.pt", "scores"))
    told = "the last epoch is scored instead" in end.said
    this.expect(told != mended, f"nothing said: {end.said[-300:]!r}")
    if not mended:
        chosen = found["scores"].get("protocol", {}).get("chosen", "")
        this.expect("is damaged" in chosen, f"chosen: {chosen}")


class Evil:
    "Makes a file when it is unpickled."

    def __reduce__(self) -> Any:
        return os.mkdir, ("code-ran",)


@fault
def checkpoint_that_runs_code(this: Round) -> None:
    "As weights, as last.pt alone, and as last.pt with a good one before it."
    how = ("weights", "last.pt alone", "last.pt")[this.seed % 3]
    this.what = how
    evil = this.box / "evil.pt"
    look_alike = {"optimizer": Evil(), "data": {}, "model": {}, "format": 2}
    torch.save(look_alike, evil, _use_new_zipfile_serialization=this.draw.random() < 0.5)
    if how == "weights":
        end = go(this.box, [*this.words, "--weight-path", str(evil)])
        this.one_line(end, "refused, it would run code")
    else:
        this.half()
        shutil.copy(evil, this.run / "last.pt")
        if how == "last.pt alone":
            (this.run / "previous.pt").unlink()
            this.one_line(this.one_process(lambda _: None), "refused, it would run code")
        else:
            this.expect("going on from previous.pt" in this.finish().said, "no warning")
    this.expect(not (this.box / "code-ran").exists(), "the code ran")


# Images


@fault
def image_damaged(this: Round) -> None:
    "Before the run, or in the middle of an epoch: named, or left out and counted."
    from conftest import make_dataset

    folder = make_dataset(this.box / "set", train=8, test=2)
    how, later = ("stop", "skip")[this.seed % 2], this.seed // 2 % 2 == 1
    name = f"train_{this.draw.randrange(8)}"
    path = folder / "images" / f"{name}.png"
    whole = path.read_bytes()
    words = [*TINY.split(), "--dataset-dir", str(folder), "--on-bad-image", how]
    words += ["--cache", "stream", "--output-dir", str(this.run)]
    undisturbed = go(this.box, [*words[:-2], "--output-dir", str(this.box / "undisturbed")])
    this.expect(undisturbed.status == 0, undisturbed.last)
    this.reference = look(this.box / "undisturbed")
    spoilt, place = bytearray(whole), this.draw.randrange(8, len(whole) - 30)
    if this.draw.random() < 0.5:
        del spoilt[place:]
    else:
        spoilt[place] ^= 1 << this.draw.randrange(8)
    kind = "a bit" if len(spoilt) == len(whole) else "cut off"
    at = this.draw.randint(1, STEPS * 2)
    when = f"in step {at}" if later else "before the run"
    this.what = f"{how}, {when}: {name} {kind} at {place}"
    if not later:
        path.write_bytes(spoilt)

    def arm(points: Points) -> None:
        if later:
            points.at["step: before", at] = lambda: path.write_bytes(spoilt)

    end = go(this.box, words, arm)
    if how == "stop":
        this.one_line(end, name)
        if later:
            this.after(end)
            path.write_bytes(whole)
            this.finish(words)
    else:
        this.expect(end.status == 0, f"status {end.status}: {end.last}")
        this.clean(end)
        this.expect("warning: " in end.said and name in end.said, f"not named: {end.said[:400]!r}")
        entries = run.Folder(this.run).history()
        counted = any(name in entry.get("replaced", []) for entry in entries)
        # left out before the run, another image takes its place in the last batch
        this.expect(counted or not later, f"not counted: {entries[-1]}")


# Other things


@fault
def clock_jumps_back(this: Round) -> None:
    "The time of day is no measure of anything that counts."
    at, back = this.draw.randint(1, STEPS * EPOCHS), this.draw.choice([3600, 1e6, 1.7e9])
    this.what = f"{back:.0f} s in step {at}"

    def arm(points: Points) -> None:
        now, gone = time.time, [0.0]
        time.time = lambda: now() - gone[0]
        gmtime, local = time.gmtime, time.localtime
        time.gmtime = lambda s=None: gmtime(time.time() if s is None else s)
        time.localtime = lambda s=None: local(time.time() if s is None else s)
        points.at["step: before", at] = lambda: gone.__setitem__(0, back)

    end = this.one_process(arm)
    this.expect(end.status == 0, f"status {end.status}: {end.last}")
    this.clean(end)
    this.same(look(this.run))


@fault
def two_runs_in_one_folder(this: Round) -> None:
    "The second is refused, and the first does not notice."
    at = this.draw.randint(1, STEPS * EPOCHS)
    this.what = f"the second starts in step {at} of the first"
    gate, second = this.box / "go-on", this.box / "second"
    second.mkdir()

    def wait() -> None:
        (this.box / "reached").touch()
        while not gate.exists():
            time.sleep(0.005)

    def arm(points: Points) -> None:
        points.at["step: before", at] = wait

    first = begin(this.box, this.words, arm)
    start = time.monotonic()
    while not (this.box / "reached").exists() and time.monotonic() - start < PATIENCE:
        time.sleep(0.005)
    refused = go(second, this.words)
    gate.touch()
    this.one_line(refused, "another process trains in this folder")
    end = ended(this.box, first)
    this.expect(end.status == 0, f"the first: status {end.status}: {end.last}")
    this.clean(end)
    this.same(look(this.run))


DANGEROUS = [f"{kind}.{form}" for kind in ("dots", "absolute") for form in ("zip", "tar.gz")]
DANGEROUS += ["symbolic-link.tar", "hard-link.tar", "bomb.zip"]


def dangerous(name: str, target: Path) -> bytes:
    "An archive that would write into a folder beside its own."
    buffer = io.BytesIO()
    member = f"{target}/escaped.txt" if "absolute" in name else "../../../outside/escaped.txt"
    if name.endswith(".zip"):
        with zipfile.ZipFile(buffer, "w") as packed:
            packed.writestr("images/a.png", b"x")
            packed.writestr(member, b"escaped")
        return buffer.getvalue()
    with tarfile.open(fileobj=buffer, mode="w:gz" if name.endswith("gz") else "w") as tar:
        if "link" in name:
            info, member = tarfile.TarInfo("images"), "images/escaped.txt"
            info.type = tarfile.SYMTYPE if "symbolic" in name else tarfile.LNKTYPE
            info.linkname = str(target)
            tar.addfile(info)
        info = tarfile.TarInfo(member)
        info.size = 7
        tar.addfile(info, io.BytesIO(b"escaped"))
    return buffer.getvalue()


def write_bomb(path: Path) -> None:
    "A megabyte that becomes more than a gigabyte."
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as packed,
        packed.open("images/a.png", "w", force_zip64=True) as member,
    ):
        for _ in range(1100):
            member.write(bytes(2**20))


@fault
def dangerous_archive(this: Round) -> None:
    "Refused with its member's name, and nothing is written outside, or at all."
    this.what = name = DANGEROUS[this.seed % len(DANGEROUS)]
    target = this.box / "outside"
    target.mkdir()
    if name == "bomb.zip":
        os.link(this.box.parent / name, this.box / name)
    else:
        (this.box / name).write_bytes(dangerous(name, target))
    words = [*TINY.split(), "--dataset-dir", name, "--output-dir", str(this.run)]
    this.one_line(go(this.box, words), name, "refused")
    escaped = [p for p in this.box.parent.rglob("escaped.txt")]
    this.expect(not escaped and not list(target.iterdir()), "it wrote outside")
    written = [p for p in this.box.glob("data/**/*") if p.is_file() and p.suffix != ".lock"]
    this.expect(not written, "it wrote something")
    this.expect(not this.run.exists(), "a refused run left a folder")


# All rounds


@dataclass
class Known:
    "What all rounds share."

    top: Path
    reference: dict[str, Any]
    points: list[str]
    seconds: float


def prepare(top: Path) -> Known:
    "The undisturbed run: as a command and as a fork, which must be equal; and half a run."
    folders = [top / name for name in ("command", "fork", "halved")]
    for folder in folders:
        folder.mkdir()
    command, fork, halved = folders
    began = real(command, [*SCENES, "--output-dir", str(command / "run")])
    reference = look(command / "run")
    start = time.monotonic()
    end = go(fork, [*SCENES, "--output-dir", str(fork / "run")])
    seconds = time.monotonic() - start
    if (
        began.status
        or end.status
        or look(fork / "run") != {**reference, "status": look(fork / "run")["status"]}
    ):
        raise SystemExit(f"the undisturbed runs differ or failed:\n{began.said}\n{end.said}")
    points = [p for p in end.points if not p.startswith(("kept", "logged"))]

    def arm(points: Points) -> None:
        points.at["checkpoint: after", 2] = points.kill

    if go(halved, [*SCENES, "--output-dir", str(halved / "run")], arm).status != -9:
        raise SystemExit("a run could not be killed")
    os.replace(halved / "run", top / "half")
    write_bomb(top / "bomb.zip")
    return Known(top, reference, points, seconds)


def one(known: Known, kind: str, seed: int) -> dict[str, Any]:
    "One round, in one of the processes that make rounds."
    start = time.monotonic()
    box = known.top / f"{kind.replace(' ', '-')}-{seed}"
    box.mkdir()
    this = Round(kind, seed, box, known.reference, known.points, known.seconds)
    try:
        ROUNDS[kind](this)
    except Exception as error:  # of the tool, or of what it did not expect
        where = traceback.extract_tb(error.__traceback__)[-1]
        this.wrong.append(f"{type(error).__name__}: {error} ({where.name}:{where.lineno})")
    shutil.rmtree(box, ignore_errors=True)
    told = {"kind": kind, "seed": seed, "what": this.what.strip()}
    taken = round(time.monotonic() - start, 1)
    lost, wrong = ([line.replace(str(box), "BOX") for line in x] for x in (this.lost, this.wrong))
    return {**told, "lost": lost, "wrong": wrong, "seconds": taken}


def plan(rounds: int, each: int, seed: int, only: list[str]) -> list[tuple[str, int]]:
    "Which rounds to make."
    asked = [kind for kind in ROUNDS if not only or any(word in kind for word in only)]
    kills = [kind for kind in asked if kind in KILLS]
    weight = sum(KILLS[kind] for kind in kills)
    counts = {kind: round(rounds * KILLS[kind] / weight) for kind in kills}
    if kills:
        counts[kills[0]] += rounds - sum(counts.values())
    counts |= {kind: each for kind in asked if kind not in KILLS}
    return [(kind, seed + i) for kind in asked for i in range(counts[kind])]


def quiet() -> None:
    "Ctrl-C is heard by the process that the user sees, which ends the others."
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":  # and they end with it
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def rounds(known: Known, planned: list[tuple[str, int]], jobs: int) -> list[dict[str, Any]]:
    "Make all rounds, a line for each."
    found = []
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(jobs, fork, quiet) as pool:
        try:
            for told in pool.map(one, *zip(*((known, *p) for p in planned), strict=True)):
                found.append(told)
                bad = [*told["lost"], *told["wrong"]]
                word = "LOST" if told["lost"] else "WRONG" if bad else "ok"
                print(
                    f"{len(found):4}/{len(planned)}  {word:5}  {told['kind']:26}"
                    f"seed {told['seed']:<4}  {told['seconds']:5.1f} s  {told['what']}",
                    flush=True,
                )
                for line in bad:
                    print(f"      {line}", flush=True)
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            raise
    return found


def summary(found: list[dict[str, Any]], seed: int, fuzzed: dict[str, Any]) -> dict[str, Any]:
    "What is kept of it."
    kinds: dict[str, dict[str, int]] = {}
    for told in found:
        sums = kinds.setdefault(told["kind"], Counter(rounds=0, skipped=0, lost=0, wrong=0))
        skipped = told["what"].startswith("skipped")
        sums["skipped" if skipped else "rounds"] += 1
        for name in ("lost", "wrong"):
            sums[name] += bool(told[name])
    sums = {name: sum(kind[name] for kind in kinds.values()) for name in ("rounds", "lost")}
    sums["wrong"] = sum(kind["wrong"] for kind in kinds.values())
    sums["killed"] = sum(kinds[kind]["rounds"] for kind in KILLS if kind in kinds)
    sums["seconds"] = round(sum(told["seconds"] for told in found))
    return {
        "command": shown(),
        "seed": seed,
        "machine": run.environment("cpu"),
        "run": " ".join(SCENES),
        **sums,
        "kinds": kinds,
        "bad": [told for told in found if told["lost"] or told["wrong"]],
        "points": sorted({told["what"] for told in found if told["kind"] == "kill at a point"}),
        "fuzz": fuzzed,
    }


def shown() -> str:
    "The command as it was written, without folders."
    return " ".join(["tools/faults.py", *(word for word in sys.argv[1:] if "/" not in word)])


def report(told: dict[str, Any]) -> str:
    "The summary for people."
    lines = ["| fault | rounds | lost | wrong |", "|---|---|---|---|"]
    for kind, n in told["kinds"].items():
        skipped = f" ({n['skipped']} skipped)" if n["skipped"] else ""
        lines.append(f"| {kind} | {n['rounds']}{skipped} | {n['lost']} | {n['wrong']} |")
    fuzzed = ["| reader | inputs | results | clear errors | failures |", "|---|---|---|---|---|"]
    for r in told["fuzz"].get("readers", []):
        counts = (r["inputs"], r["results"], r["clear_errors"], len(r["failures"]))
        fuzzed.append(f"| {r['name']} | {' | '.join(map(str, counts))} |")
    machine = told["machine"]
    versions = ", ".join(f"{name} {v}" for name, v in machine["packages"].items())
    about = (
        "Each round disturbs a tiny run on the CPU, looks at what is left, starts it again until "
        "it is done, and compares it with one that nobody disturbed: weights, optimizer, kept "
        "epoch, log and scores, to the last bit. *Lost*: something that was complete is gone, or "
        "the end is another one. *Wrong*: another status or another message than is promised. "
        "A power cut is imitated, a Drive is a folder, no accelerator took part."
    )
    return "\n".join(
        [
            f"# Faults\n\n`{told['command']}`, {machine['system']}, {machine['cores']} cores, "
            f"Python {machine['python']}, {versions}.\n\n{about}\n",
            f"{told['rounds']} rounds ({told['killed']} killed), {told['lost']} lost, "
            f"{told['wrong']} wrong.\n",
            *lines,
            "",
            *(fuzzed if told["fuzz"] else []),
            "",
        ]
    )


def arguments(words: list[str] | None) -> argparse.Namespace:
    "The command line."
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=200, help="of runs that are killed")
    parser.add_argument("--each", type=int, default=7, help="rounds of each other fault")
    parser.add_argument("--fuzz", type=int, default=2000, help="inputs for each reader; 0: none")
    parser.add_argument("--seed", type=int, default=1, help="of the first round of each fault")
    parser.add_argument("--only", nargs="*", default=[], metavar="KIND", help="words of its name")
    parser.add_argument("--jobs", type=int, default=2, help="rounds at a time")
    parser.add_argument(
        "--output", default=str(TOP / "results" / "faults"), help="folder; empty: write nothing"
    )
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> int:
    "Make the rounds; 0 if nothing is lost and nothing else is wrong."
    asked = arguments(words)
    planned = plan(asked.rounds, asked.each, asked.seed, asked.only)
    if not planned:
        print(f"no such fault; there are: {', '.join(ROUNDS)}")
        return 2
    try:
        with tempfile.TemporaryDirectory(prefix="faults-") as folder:
            found = rounds(prepare(Path(folder)), planned, asked.jobs)
        fuzzed: dict[str, Any] = {}
        if asked.fuzz:
            import fuzz

            fuzzed = fuzz.main(asked.fuzz, asked.seed)
    except KeyboardInterrupt:
        print("stopped; nothing is written")
        return 130
    told = summary(found, asked.seed, fuzzed)
    if asked.output:
        Path(asked.output).mkdir(parents=True, exist_ok=True)
        (Path(asked.output) / "summary.json").write_text(json.dumps(told, indent=1) + "\n")
        (Path(asked.output) / "README.md").write_text(report(told))
    failed = fuzzed.get("failures", 0)
    print(
        f"{told['rounds']} rounds, {told['killed']} killed: {told['lost']} lost, "
        f"{told['wrong']} wrong; {fuzzed.get('inputs', 0)} invented inputs: {failed} failures"
    )
    return 1 if told["lost"] or told["wrong"] or failed else 0


if __name__ == "__main__":
    sys.exit(main())
