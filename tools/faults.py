"""Faults: runs that are killed or cut off, and whether anything is lost. `make faults`.

    python tools/faults.py [--rounds 200] [--seed 1] [--only KIND ...]

Each round disturbs a tiny run on the CPU, checks what is left on the disk, repeats the command
until the run is done, and compares it with an undisturbed run: checkpoints, log and scores, to the
last bit. `KINDS` lists the faults that need a process at places that vary; tests/ has the others:
signals, damaged checkpoints, a backup that fails.

A disturbed run is `mshnet.cli.main` in a process that is forked from this one, because importing
torch takes longer than the run. The faults are made from outside: the library has no hooks. A power
cut is imitated (what was not flushed is cut off, a rename holds), and a Drive is a folder.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch: a process with threads must not be forked

import argparse
import builtins
import contextlib
import errno
import importlib
import io
import json
import math
import multiprocessing
import random
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TOP))
with contextlib.suppress(ImportError):
    importlib.import_module("torch._inductor")  # slow; by each run as it begins

import torch.optim.optimizer as optimizers  # noqa: E402
from torch import nn  # noqa: E402

from mshnet import cli, run, show  # noqa: E402
from mshnet.core import UserError  # noqa: E402
from mshnet.detection import NETWORKS  # noqa: E402
from mshnet.weights import checksum  # noqa: E402

COMMAND = "train --deterministic --base-size 32 --crop-size 32 --batch-size 4 --epochs 3"
COMMAND += " --device cpu --warm-epoch 0 --choose test --precision fp32 --num-workers 0 --seed 4"
COMMAND += " --scenes 8 --network small --output-dir run"
STEPS, ALL_STEPS = 2, 6  # of an epoch, of the run
LIMIT = 180  # seconds for a process
LOGGED = ("epoch", "phase", "loss", "lr", "split", "line", "scores")
FORK = multiprocessing.get_context("fork")

# A run in a process of its own


class Small(nn.Module):
    "A network whose checkpoint has a few kilobytes, so that a round takes seconds."

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 1))

    def forward(self, image: Any, deep: bool = True) -> Any:
        "No logits of coarser scales, and those of the image's size."
        return [], self.layers(image)


NETWORKS["small"] = Small


class Lost(Exception):
    "Something that was complete is gone, or the end is not that of the undisturbed run."


@dataclass
class Ended:
    "A process that ended: its status (negative: by a signal), its output, the points it reached."

    status: int
    output: str
    points: Counter[str]


@dataclass
class Fault:
    "How a run is disturbed; nothing is by default."

    spot: tuple[str, int] = ("", 0)  # it is killed at this point, at which of its times
    share: float = 1.0  # of what was not flushed then, this much is on the disk
    room: float = math.inf  # bytes that fit on the disk
    seconds: float = LIMIT  # until it is killed


def start(box: Path, words: list[str], fault: Fault) -> Ended:
    "Run a command in a folder for it alone, and wait for its end."
    (box / "points.txt").write_text("")
    process = FORK.Process(target=forked, args=(box, words, fault))
    process.start()
    process.join(fault.seconds)
    hung = process.is_alive() and fault.seconds == LIMIT
    process.kill()
    process.join()
    assert not hung, f"it hung for {LIMIT} s"
    points = Counter((box / "points.txt").read_text().splitlines())
    return Ended(process.exitcode or 0, (box / "output.txt").read_text(errors="replace"), points)


def forked(box: Path, words: list[str], fault: Fault) -> None:
    "What the process does."
    os.setpgid(0, 0)  # Ctrl-C is for the tool
    signal.signal(signal.SIGINT, signal.default_int_handler)
    output = os.open(box / "output.txt", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(output, stream.fileno())
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.chdir(box)
    for figure in ("learning_curves", "trade_offs", "gallery"):  # three seconds, no bit of a run
        setattr(show, figure, lambda folder, config=None: None)
    wait = threading.Event.wait  # shorter: a mirror copies within a run of a few seconds
    threading.Event.wait = lambda self, most=None: wait(self, most and min(most, 0.02))  # type: ignore
    Watch(box, fault)
    sys.exit(cli.main(words))


# Points: where a run touches its files, and its steps


class Watch:
    "Names what a run does with its files, from within its process, and makes the fault."

    def __init__(self, box: Path, fault: Fault) -> None:
        self.folder, self.fault, self.room = box / "run", fault, fault.room
        self.counts: Counter[str] = Counter()
        self.safe_sizes: dict[str, int] = {}  # of files that are not flushed: what is safe
        self.notes = os.open(box / "points.txt", os.O_WRONLY | os.O_APPEND)
        self.open = builtins.open
        builtins.open = io.open = self.opened  # type: ignore[assignment]
        self.watch_names()
        optimizers.register_optimizer_step_pre_hook(lambda *_: self.reach("step: before"))
        optimizers.register_optimizer_step_post_hook(lambda *_: self.reach("step: after"))

    def reach(self, name: str) -> None:
        "Note a point, and end there if that is the fault."
        os.write(self.notes, f"{name}\n".encode())
        self.counts[name] += 1
        if (name, self.counts[name]) == self.fault.spot:
            self.end()

    def end(self) -> None:
        "End as kill -9 does, or as a power cut: what was not flushed is not all on the disk."
        for path, safe in list(self.safe_sizes.items()) if self.fault.share < 1 else ():
            with contextlib.suppress(OSError):
                os.truncate(path, safe + int(self.fault.share * (os.path.getsize(path) - safe)))
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(LIMIT)

    def around(self, what: str, path: Any, work: Callable[[], object]) -> None:
        "Do something with a file between two points."
        path = Path(path).absolute()
        if not path.is_relative_to(self.folder):
            work()
            return
        name = "the folder" if path == self.folder else plain(path)
        self.reach(f"{what} {name}: before")
        work()
        self.reach(f"{what} {name}: after")

    def watch_names(self) -> None:
        "Make points of renames and flushes."
        replace, fsync = os.replace, os.fsync

        def replaced(old: Any, new: Any, **how: Any) -> None:
            self.around("replace", new, lambda: replace(old, new, **how))
            safe = self.safe_sizes.pop(os.path.abspath(old), None)
            self.safe_sizes.pop(os.path.abspath(new), None)
            if safe is not None:
                self.safe_sizes[os.path.abspath(new)] = safe

        def flushed(number: int) -> None:
            path = os.readlink(f"/proc/self/fd/{number}") if sys.platform == "linux" else "/file"
            self.around("fsync", path, lambda: fsync(number))
            self.safe_sizes.pop(path, None)

        os.replace, os.fsync = replaced, flushed  # type: ignore[assignment]

    def opened(self, file: Any, mode: str = "r", *more: Any, **how: Any) -> Any:
        "Open a file; the writes to one of the run are watched."
        opened = self.open(file, mode, *more, **how)
        if not isinstance(file, str | Path) or not set(mode) & set("wax+"):
            return opened
        path = Path(file).absolute()
        if path.is_relative_to(self.folder):
            self.safe_sizes.setdefault(str(path), os.path.getsize(path))
            opened.write = partial(self.write, opened.write, opened.flush, plain(path))
        return opened

    def write(self, write: Any, flush: Any, name: str, content: Any) -> int:
        "Write in two halves, or as much as there is room for."
        half = len(content) // 2
        for part, stage in ((content[:half], "half"), (content[half:], "all")):
            fits = int(min(len(part), max(self.room, 0)))
            write(part[:fits])
            flush()
            self.room -= len(part)
            if fits < len(part):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.reach(f"write {name}: {stage}")
        return len(content)


def plain(path: Path) -> str:
    "The name of a file, or of the file that a temporary one becomes."
    found = re.fullmatch(r"\.(.+?)(\.\d+)?\.tmp", path.name)
    return found[1] if found else path.name


# What is left of a run


def look(folder: Path) -> dict[str, Any]:
    "The checkpoints as digests (None: unreadable), the log without repetitions, scores, status."
    found: dict[str, Any] = {}
    for name in ("last.pt", "previous.pt", "best.pt"):
        if name == "previous.pt" and isinstance(found["last.pt"], dict):
            continue  # nobody reads it then
        try:
            content = run.read_checkpoint(folder / name)
        except UserError:
            found[name] = None if (folder / name).exists() else "missing"
            continue
        state = {key: content[key] for key in content if key not in ("config", "checksum")}
        found[name] = {"at": [content["epoch"], content["step"]], "state": checksum(state)}
    log, lines = folder / "log.jsonl", set()
    for line in log.read_bytes().splitlines() if log.exists() else []:
        with contextlib.suppress(ValueError):  # a line that was cut off
            lines.add(json.dumps([json.loads(line).get(key) for key in LOGGED]))
    records = run.Folder(folder)
    found |= {"log": sorted(lines), "scores": records.read_json("scores.json")}
    found["state"] = records.read_json("status.json").get("state")
    return found | {"left behind": [path.name for path in folder.rglob("*.tmp")]}


def steps_done(found: dict[str, Any]) -> int:
    "The training steps after which a run resumes."
    last = found.get("previous.pt", found["last.pt"])  # where last.pt can be read it is alone
    epoch, step = last["at"] if isinstance(last, dict) else (-1, 0)
    return STEPS * (epoch + 1) + step


# Rounds


@dataclass
class Round:
    "One round: a run, its fault, and what must hold."

    kind: str
    seed: int
    box: Path
    reference: dict[str, Any]  # what the undisturbed run left
    points: Counter[str]  # that it reached
    seconds: float  # that it took
    what: str = ""

    def __post_init__(self) -> None:
        self.rng = random.Random(f"{self.kind} {self.seed}")
        self.folder = self.box / "run"
        self.words, self.epochs = COMMAND.split(), 0  # that were kept

    def draw_point(self, *kinds: str) -> tuple[str, int]:
        "A point of the undisturbed run, and at which of its times the fault is made."
        names = sorted(name for name in self.points if any(k in name for k in kinds or ("",)))
        name = self.rng.choice(names)
        self.what += f"{name} "
        return name, self.rng.randint(1, self.points[name])

    def run(self, fault: Fault, *statuses: int) -> Ended:
        "Run the command; it ends with one of these statuses, and without a traceback."
        end = start(self.box, self.words, fault)
        assert end.status in statuses, f"status {end.status}, not {statuses}: {end.output[-700:]}"
        for bad in ("Traceback", "Exception ignored"):
            assert bad not in end.output, f"a traceback: {end.output[-700:]}"
        if end.status == 2:
            errors = [ln for ln in end.output.splitlines() if ln.startswith("mshnet: ")]
            assert len(errors) == 1, f"{len(errors)} errors: {end.output[-700:]}"
        return end

    def check_left(self, end: Ended) -> None:
        "What was complete when a run ended is on the disk."
        logged = self.epochs + end.points["fsync log.jsonl: after"]
        kept = self.epochs + end.points["replace last.pt: after"]
        found = look(self.folder)
        self.epochs = steps_done(found) // STEPS
        if self.epochs < kept or len(found["log"]) < logged:
            raise Lost(f"{kept} epochs were kept, {logged} logged; there are {found}")
        if unreadable := [name for name in ("last.pt", "best.pt") if found[name] is None]:
            raise Lost(f"{' and '.join(unreadable)} cannot be read")
        if (self.folder / "scores.json").exists() and not found["scores"]:
            raise Lost("scores.json cannot be read")

    def disturb(self, fault: Fault, *statuses: int) -> Ended:
        "A run that ends by its fault with one of these statuses, and what it leaves."
        end = self.run(fault, *statuses)
        self.check_left(end)
        return end

    def finish(self) -> Ended:
        "Resume until the run is done; it is the undisturbed run, to the last bit."
        end, found = self.run(Fault(), 0), look(self.folder)
        for name in found:
            if found[name] != self.reference.get(name):
                raise Lost(f"{name} is not as in the undisturbed run")
        return end


# The kinds


def point(this: Round) -> None:
    "kill -9 before, in the middle of and after each write, flush, rename and step."
    names = sorted(this.points)
    name = names[this.seed % len(names)]  # one after the other
    spot = name, this.rng.randint(1, this.points[name])
    this.what = f"{name} ({spot[1]}) "
    this.disturb(Fault(spot), -9)
    if this.seed % 4 == 0:  # and the resumed run is killed too, if it reaches the second point
        spot = this.draw_point("best.pt", "last.pt", "replace previous.pt", "log.jsonl")
        this.disturb(Fault(spot), -9, 0)
    this.finish()


def moment(this: Round) -> None:
    "kill -9 after a random time."
    seconds = this.rng.uniform(0, this.seconds)
    this.what = f"after {seconds:.2f} s"
    this.disturb(Fault(seconds=seconds), -9, 0)
    this.finish()


def power_cut(this: Round) -> None:
    "As if the power went: of what was not flushed, none, half or nearly all is on the disk."
    spot, share = this.draw_point(), this.rng.choice([0.0, 0.5, 0.99])
    this.disturb(Fault(spot, share), -9)
    this.finish()


def disk_full(this: Round) -> None:
    "So many bytes fit, and no more."
    room = int(10 ** this.rng.uniform(2, 5.5))  # the run writes some 200 kB
    this.what = f"after {room} bytes"
    end = this.disturb(Fault(room=room), 0, 2)
    assert not end.status or "No space left on device" in end.output, end.output[-300:]
    this.finish()


def new_machine(this: Round) -> None:
    "Killed, and the disk is gone: the run comes back from the mirror and resumes."
    spot = this.draw_point("step", "last.pt", "status")
    drive = this.box / "drive"
    drive.mkdir()
    this.words += ["--mirror-dir", str(drive)]
    this.disturb(Fault(spot), -9)
    copied = steps_done(look(drive / "run"))
    shutil.rmtree(this.folder)
    steps = this.finish().points["step: after"]
    assert steps == ALL_STEPS - copied, f"resuming from step {copied} took {steps} steps"


KINDS = {point: 0.45, moment: 0.15, power_cut: 0.15, disk_full: 0.1, new_machine: 0.15}  # shares


# All rounds


def prepare(top: Path) -> tuple[dict[str, Any], Counter[str], float]:
    "The undisturbed run: what it leaves, the points it reaches, its seconds."
    begun = time.monotonic()
    end = start(top, COMMAND.split(), Fault())
    if end.status:
        raise SystemExit(f"the undisturbed run failed:\n{end.output}")
    return look(top / "run"), end.points, time.monotonic() - begun


def make_round(top: Path, known: tuple[Any, ...], kind: Callable[[Round], None], seed: int) -> str:
    "One round: its fault, and how it ended, in a line."
    box, end = top / f"{kind.__name__}-{seed}", "ok"
    box.mkdir()
    this = Round(kind.__name__, seed, box, *known)
    try:
        kind(this)
    except Exception as error:
        end = "lost" if isinstance(error, Lost) else "wrong"
        this.what += f" {type(error).__name__}: {error}".replace(str(box), "BOX")
    shutil.rmtree(box, ignore_errors=True)
    return f"{end:5}  {kind.__name__:11}  seed {seed:<4}  {this.what}"


def plan(rounds: int, seed: int, only: list[str]) -> list[tuple[Callable[[Round], None], int]]:
    "The kind and the seed of each round: by the kinds' shares, at least one of each."
    kinds = {k: share for k, share in KINDS.items() if not only or k.__name__ in only}
    counts = {k: max(1, round(rounds * s / sum(kinds.values()))) for k, s in kinds.items()}
    return [(kind, seed + i) for kind, count in counts.items() for i in range(count)]


def main(words: list[str] | None = None) -> int:
    "Make the rounds, a line for each; 0 if nothing is lost and nothing is wrong."
    names = [kind.__name__ for kind in KINDS]
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=200, help="of all kinds, by their shares")
    parser.add_argument("--seed", type=int, default=1, help="of the first round of each kind")
    parser.add_argument("--only", nargs="*", default=[], choices=names, metavar="KIND")
    given = parser.parse_args(words)
    planned, ends = plan(given.rounds, given.seed, given.only), Counter[str]()
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        known = prepare(Path(folder))
        for number, one in enumerate(planned, 1):
            line = make_round(Path(folder), known, *one)
            print(f"{number:4}/{len(planned)}  {line}", flush=True)
            ends[line.split()[0]] += 1
    print(f"{len(planned)} rounds: {ends['lost']} lost, {ends['wrong']} wrong")
    return 1 if ends["lost"] or ends["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
