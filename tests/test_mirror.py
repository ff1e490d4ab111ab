"""The copy of a run on another disk: slow, full, hanging, vanishing, rotten, and brought back.

The other disk is a folder here, and what goes wrong with it is made: no real Drive was at hand.
"""

import errno
import json
import os
import re
import subprocess
import sys
import threading
import time
import warnings
import zipfile
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
from conftest import TOP, put_drive, refused

from mshnet import mirror, places
from mshnet.core import UserError, run_name
from mshnet.files import write_atomic
from mshnet.mirror import Mirror, bring_back
from mshnet.places import COLAB, HERE, KAGGLE, Place, session_hours, site_of
from mshnet.recipe import Config

FILES = ["config.json", "env.json", "figures/curves.png", "log.jsonl"]
FILES += ["best.pt", "last.pt", "scores.json", "status.json"]


def write(folder, name, content):
    "A file as a run writes it: under another name, then renamed."
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    temporary = folder / f"{name}.new"
    temporary.write_text(content)
    temporary.replace(folder / name)


@pytest.fixture
def run(tmp_path):
    "The folder of a run of three epochs."
    folder = tmp_path / "runs" / "mine"
    for name in FILES:
        write(folder, name, f"{name} of epoch 3")
    write(folder, "status.json", json.dumps({"epochs_done": 3}))
    write(folder, "config.json", json.dumps(Config().model_dump()))
    return folder


class Disk:
    "A mirror whose other disk does what a test demands; a list gets its lines."

    def __init__(self, run, target, **options):
        self.said = []
        self.mirror = Mirror(run, target, **{"pause": 0.01, "say": self.said.append, **options})
        self.target, self.copy_once = target, self.mirror.copy_once
        self.put, self.missing = self.mirror.write, self.mirror.missing
        self.mirror.write = self.write
        self.faults = []  # called before each piece, with the file and the piece

    def write(self, file, piece):
        for fault in self.faults:
            piece = fault(file, piece)
        self.put(file, piece)


@pytest.fixture
def disk(run, tmp_path):
    "A mirror in a folder that stands for another disk."
    (tmp_path / "drive").mkdir()
    return Disk(run, tmp_path / "drive" / "mshnet" / "mine")


def full(file, piece):
    "A disk on which everything fits but a last checkpoint and the scores."
    if "last.pt" in str(file.name) or "scores" in str(file.name):
        raise OSError(errno.ENOSPC, "No space left on device")
    return piece


def contents(folder):
    "What is in a folder's files, hidden ones left out."
    found = [p for p in folder.rglob("*") if p.is_file() and p.name[0] != "."]
    return {p.relative_to(folder).as_posix(): p.read_text() for p in found}


def real_name(file):
    "The name that an open copy will have."
    return re.fullmatch(r"\.(.+)\.\d+\.tmp", Path(file.name).name)[1]


def until(condition):
    "Wait for another thread, but not for ever."
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < 60, "it did not happen"
        time.sleep(0.01)


def hidden(folder):
    "The names of hidden files but for the marker."
    return [p.name for p in folder.rglob(".*") if p.name != ".mirror"]


def test_a_file_that_somebody_has_open_is_replaced_later(tmp_path, monkeypatch):
    "Windows refuses it meanwhile, such as to a virus scanner."
    rename, tries = os.replace, []

    def refuse_twice(old, new):
        tries.append(new)
        if len(tries) < 3:
            raise PermissionError(errno.EACCES, "used by another process")
        rename(old, new)

    monkeypatch.setattr(os, "replace", refuse_twice)
    monkeypatch.setattr("mshnet.files._TRIES", 5)
    write_atomic(tmp_path / "last.pt", "epoch 2")
    assert (tmp_path / "last.pt").read_text() == "epoch 2"


# Where


def test_the_mirror_has_a_folder_for_each_run(tmp_path, monkeypatch):
    "Two runs with one mirror_dir do not meet; a relative one stays where it was meant."
    one, two = (Config(mirror_dir=str(tmp_path), seed=seed) for seed in (1, 2))
    found = [site_of(config).mirror for config in (one, two)]
    assert found == [tmp_path / run_name(one), tmp_path / run_name(two)]
    assert found[0] != found[1]
    monkeypatch.chdir(tmp_path)
    near = site_of(Config(mirror_dir="copies", output_dir="a/run"))
    assert near.mirror == tmp_path / "copies/run" and "is on the disk of the run" in near.note
    with monkeypatch.context() as lost:  # nothing can be reached
        lost.setattr(Path, "stat", Mock(side_effect=OSError(107, "not connected")))
        assert "is on the disk of the run" in site_of(Config(mirror_dir="/lost/drive")).note
    monkeypatch.setattr(places, "_disk_of", lambda path: path)  # each folder on its own
    assert site_of(Config(mirror_dir="copies", output_dir="a/run")).note == ""


@pytest.fixture
def colab(tmp_path, monkeypatch):
    "Colab, with its folders in another place."
    put_drive(monkeypatch, tmp_path / "drive")
    monkeypatch.chdir(tmp_path)  # as in Colab
    return Place("colab", tmp_path, tmp_path / "runs", "")


@pytest.mark.parametrize(
    "asked", ["drive", "{}/drive/MyDrive/mine", "{}/drive", "drive/MyDrive/mine", "./x/../drive"]
)
def test_without_a_mounted_drive_there_is_no_mirror(tmp_path, colab, asked, monkeypatch, capsys):
    "A folder made in its place would be deleted with the session, and its owner would believe."
    config = Config(mirror_dir=asked.format(tmp_path))
    site = site_of(config, colab)
    assert site.mirror is None and site.copies == []
    assert "not mounted" in site.note and str(tmp_path / "runs") in site.note
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(places, "where", lambda: colab)
    commands = "train --resume, train --output-dir, test --output-dir, bench --output-dir"
    for command in (*commands.split(", "), f"predict {TOP}/mshnet/examples --output-dir"):
        line = refused(capsys, command, f"{tmp_path}/drive/MyDrive/a", "--device=cpu")
        assert "MyDrive/a: Google Drive is not mounted; run" in line
    assert "deleted with the session" in site_of(Config(mirror_dir="Drive"), colab).note
    (tmp_path / "drive" / "MyDrive").mkdir(parents=True)
    with monkeypatch.context() as unmounted:  # a folder of that name is no Drive
        unmounted.setattr("os.path.ismount", lambda path: False)
        assert site_of(config, colab).mirror is None
    site = site_of(config, colab)
    assert site.mirror.is_relative_to(tmp_path / "drive") and site.note == ""
    for site in (site_of(Config(mirror_dir="drive"), place) for place in (HERE, KAGGLE)):
        assert site.mirror is None and "Colab only" in site.note


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [("drive", True), ("drive/MyDrive/a", True), ("{}/drive/a", True), ("copies", False), ("", 0)],
)
def test_a_mirror_on_drive_mounts_it(tmp_path, monkeypatch, colab, asked, wanted):
    "The word and a folder alike, in Colab; elsewhere a folder of that name is a folder."
    config = Config(mirror_dir=asked.format(tmp_path))
    asked = []
    monkeypatch.setattr(places, "_drive_refused", [])
    monkeypatch.setattr(places, "mount_drive", lambda: asked.append(1) or "asked")
    site_of(config)
    assert asked == []
    monkeypatch.setattr(places, "where", lambda *_: colab)
    site_of(config)
    site_of(config)  # a Drive that is refused is not asked for again
    assert len(asked) == wanted
    places.ask_for_drive(Config(dataset_dir="drive/MyDrive/set"))  # its data lie there
    assert len(asked) == wanted + 1


@pytest.mark.parametrize("mirror", ["{}/runs", "{}/runs/mine", "{}/runs/mine/copy", "{}/link"])
def test_a_run_is_no_mirror_of_itself(run, tmp_path, mirror):
    "Copies into the run's own folder would be copied in turn; a link to the folder is the folder."
    (tmp_path / "link").symlink_to(run.parent)
    config = Config(mirror_dir=mirror.format(tmp_path), output_dir=f"{tmp_path}/runs/mine")
    with pytest.raises(UserError, match="is the run folder; use another"):
        site_of(config)
    with pytest.raises(UserError, match="use another, or leave out resume to restore it"):
        site_of(config.model_copy(update={"resume": config.output_dir}))
    disk, before = Disk(run, tmp_path / "link" / "mine"), contents(run)
    assert "is the run folder" in disk.mirror.flush(60)
    assert contents(run) == before and not (run / ".mirror").exists()


# What


def test_everything_worth_keeping_is_copied_small_files_first(run, disk):
    "A session that ends early has kept the records; large files go in pieces."
    for name in (".last.pt.7.tmp", ".lock", "figures/.a.png.tmp"):
        write(run, name, "not this one")
    write(run, "previous.pt", "the mirror makes its own")
    write(run, "last.pt", "x" * 2_500_000)
    os.mkfifo(run / "pipe")  # opening one would wait for ever
    order, target = [], disk.target
    disk.faults.append(lambda file, piece: order.append((real_name(file), len(piece))) or piece)
    line = disk.mirror.flush(60)
    assert contents(target) == {name: (run / name).read_text() for name in FILES}
    assert list(dict(order)) == [Path(name).name for name in FILES]
    assert [size for name, size in order if name == "last.pt"] == [1_000_000, 1_000_000, 500_000]
    assert line == f"mirror  all 8 files (2.5 MB) are in {target}" and disk.said == []
    assert not hidden(target)


def test_what_did_not_change_is_not_copied_again(run, disk):
    """An epoch changes three files of a dozen; a file that vanishes is no problem. In a new session
    a file of the same size may be different; what a killed one left is of no harm."""
    disk.mirror.flush(60)
    copied = []
    disk.faults.append(lambda file, piece: copied.append(real_name(file)) or piece)
    assert disk.copy_once() and copied == []
    write(run, "log.jsonl", "two lines")
    assert disk.missing() == ["log.jsonl"]
    assert disk.copy_once() and copied == ["log.jsonl"]
    write(disk.target, "scores.json", (run / "scores.json").read_text()[::-1])
    write(disk.target, ".last.pt.7.tmp", "half")
    again = Disk(run, disk.target)
    again.faults.extend(disk.faults)
    again.mirror.flush(60)
    assert copied == ["log.jsonl", "scores.json"]
    assert contents(disk.target) == contents(run) and not hidden(disk.target)
    write(run, "log.jsonl", "three lines")
    write(run, "env.json", "new")
    again.faults.append(lambda file, piece: (run / "log.jsonl").unlink(missing_ok=True) or piece)
    assert "all 7 files" in again.mirror.flush(60) and again.said == []


def checkpoints(folder):
    "The epochs of the checkpoints in a folder, the last one first; an empty file has none."
    found = contents(folder)
    return "".join(found.get(name, "")[-1:] for name in ("last.pt", "previous.pt"))


@pytest.mark.parametrize(("steps", "there"), [*enumerate(["43", "4", "4", "54"])])
def test_a_whole_checkpoint_is_there_wherever_it_stops(run, disk, monkeypatch, steps, there):
    "The oldest is emptied (a Drive's trash counts) only while two others are whole."
    for epoch in (4, 5):
        disk.mirror.flush(60)
        write(run, "last.pt", f"last.pt of epoch {epoch}")
    left, real = [steps], {"truncate": os.truncate, "replace": os.replace}

    def count(name, *paths):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.EIO, "Input/output error")
        real[name](*paths)

    for name in real:
        monkeypatch.setattr(os, name, partial(count, name))
    assert disk.copy_once() == (steps == 3)
    assert checkpoints(disk.target) == there
    left[0] = 99
    assert disk.copy_once() and checkpoints(disk.target) == "54"


def test_epochs_that_are_shorter_than_a_copy_reach_the_backup(run, disk):
    "The weights are as new as last.pt or newer, and no scores of other weights lie beside them."
    disk.mirror.flush(60)
    epochs = iter(range(4, 99))

    def train(file, piece):
        if "best.pt" in file.name:
            epoch = next(epochs)
            (run / "scores.json").unlink(missing_ok=True)
            for name in ("best.pt", "last.pt"):
                write(run, name, f"{name} of epoch {epoch}")
        return piece

    write(run, "best.pt", "newer weights")
    disk.faults.append(train)
    assert disk.copy_once() and disk.copy_once()
    found = contents(disk.target)
    assert found["last.pt"] == "last.pt of epoch 5" and found["best.pt"] == "best.pt of epoch 5"
    assert "scores.json" not in found and disk.missing() == ["best.pt", "last.pt"]


@pytest.mark.parametrize("name", ["last.pt", "figures/curves.png"])
def test_a_file_that_changes_meanwhile_is_copied_whole(run, disk, name):
    "As it was, then as it is: half of each version is neither."
    write(run, "last.pt", "last.pt of epoch 3" * 100_000)  # in two pieces
    before = (run / name).read_text()

    def change(file, piece):
        if Path(name).name in file.name:
            disk.faults.clear()
            if name == "last.pt":
                write(run, name, "newer")
            else:
                (run / name).write_text("newer, and longer")
        return piece

    disk.faults.append(change)
    assert disk.copy_once()
    assert contents(disk.target)[name] == before
    assert disk.missing() == [name] and not hidden(disk.target)
    assert "all 8 files" in disk.mirror.flush(60)
    assert contents(disk.target)[name] == (run / name).read_text()


# What goes wrong


def test_damaged_weights_do_not_replace_a_good_copy(run, disk):
    "A run is started again with a file that was cut off since."
    disk.target.mkdir(parents=True)
    zipfile.ZipFile(disk.target / "best.pt", "w").close()
    good = (disk.target / "best.pt").read_bytes()
    assert "(best.pt is damaged in the run, so its copy is kept)" in disk.mirror.flush(60)
    assert (disk.target / "best.pt").read_bytes() == good


def test_a_full_disk_keeps_what_fits_and_says_once_what_does_not(run, disk):
    "The line at the end is acted on. What is good is never replaced by nothing."
    disk.faults.append(full)
    line, target = disk.mirror.flush(60), disk.target
    assert line == (
        f"mirror  5 of 8 files are in {target}; missing: last.pt, scores.json, status.json "
        f"(No space left on device); they are in {run}"
    )
    assert contents(target).keys() == set(FILES) - {"scores.json", "last.pt", "status.json"}
    assert not hidden(target) and contents(target)["best.pt"] == contents(run)["best.pt"]
    write(target, "last.pt", "last.pt of epoch 2")
    assert not any([disk.copy_once() for _ in range(5)])
    assert contents(target)["last.pt"] == "last.pt of epoch 2"
    assert len(disk.said) == 1 and "No space left" in disk.said[0]
    disk.faults.clear()
    assert all([disk.copy_once() for _ in range(3)])
    assert len(disk.said) == 2 and "works again" in disk.said[1]
    assert contents(target)["last.pt"] == "last.pt of epoch 3"


def test_errors_for_a_while_end_with_everything_copied(run, disk):
    "The thread tries again by itself; later it copies whenever it is woken."
    left = [True] * 6

    def flaky(file, piece):
        if left and left.pop():
            raise OSError(errno.EIO, "Input/output error")
        return piece

    disk.faults.append(flaky)
    with disk.mirror:
        until(lambda: not disk.mirror.missing())
        for text in ("one", "two", "three"):
            write(run, "log.jsonl", text)
            disk.mirror.notify()
            until(lambda text=text: contents(disk.target).get("log.jsonl") == text)
        line = disk.mirror.flush(60)
    assert "all 8 files" in line and contents(disk.target) == contents(run)
    assert len(disk.said) == 2


def test_a_copy_that_differs_is_made_again(run, disk):
    "A flipped bit is found by reading back, before the good checkpoint is replaced."
    disk.mirror.flush(60)
    flips = [True] * 3

    def flip(file, piece):
        if "last.pt" in file.name and flips and flips.pop():
            return bytes([piece[0] ^ 1]) + piece[1:]
        return piece

    disk.faults.append(flip)
    write(run, "last.pt", "last.pt of epoch 4")
    assert "differs from its original" in disk.mirror.flush(60)
    assert contents(disk.target)["last.pt"] == "last.pt of epoch 3"
    assert "all 8 files" in disk.mirror.flush(60)
    assert contents(disk.target)["last.pt"] == "last.pt of epoch 4"


LEVELS = ["drive", "drive/mshnet", "drive/mshnet/mine"]
VANISHED = [(when, level) for when in ("after a copy", "within a round") for level in LEVELS]
VANISHED += [("before the first", level) for level in LEVELS[:2]]


@pytest.mark.parametrize(("when", "level"), VANISHED)
def test_a_disk_that_vanished_is_not_made_anew(run, disk, tmp_path, when, level):
    "An unmounted Drive leaves an empty folder, and what is written there is deleted with it."
    place, aside = tmp_path / level, tmp_path / "aside"
    if when == "before the first":
        write(disk.target, "status.json", json.dumps({"epochs_done": 9}))
        assert not disk.copy_once()  # it holds more
    if when == "after a copy":
        disk.mirror.flush(60)

    def vanish(file, piece):
        disk.faults.clear()
        place.rename(aside)
        place.mkdir()
        return piece

    if when == "within a round":
        disk.faults.append(vanish)
        assert not disk.copy_once()
    else:
        vanish(None, b"")
    write(run, "last.pt", "last.pt of epoch 4")
    line = disk.mirror.flush(60)
    assert "0 of 8 files" in line and str(run) in line and len(disk.said) <= 2
    assert list(place.iterdir()) == []
    place.rmdir()
    write(run, "status.json", json.dumps({"epochs_done": 9}))
    aside.rename(place)  # it is mounted again
    assert "all 8 files" in disk.mirror.flush(60)
    assert "works again" in disk.said[-1]


CHANGES = [{"lr": 0.1}, {"dataset_dir": "/data/sirst.v2.zip"}, {"weight_path": "a"}, {"epochs": 9}]


@pytest.mark.parametrize("changes", CHANGES)
def test_another_run_is_not_overwritten(run, disk, changes):
    "Two runs that were both called `mine`: other settings, data, start or schedule."
    mine = Config(preset="steady").model_dump() | {"dataset_dir": "/drive/sirst.v1"}
    write(run, "config.json", json.dumps(mine))
    other = json.dumps(mine | changes)
    write(disk.target, "config.json", other)
    assert "another run" in disk.mirror.flush(60)
    assert contents(disk.target) == {"config.json": other}


def test_more_epochs_and_a_later_session_are_not_overwritten(run, disk):
    "A run that could not be brought back begins anew; a forgotten session mixes nothing in."
    write(disk.target, "status.json", json.dumps({"epochs_done": 50}))
    assert "it holds 50 epochs, and this run has 3" in disk.mirror.flush(60)
    assert contents(disk.target).keys() == {"status.json"}
    write(run, "status.json", json.dumps({"epochs_done": 50}))
    for each in (disk.mirror, Disk(run, disk.target).mirror):
        assert "all 8 files" in each.flush(60)
    write(run, "last.pt", "of the earlier one")
    assert "another session" in disk.mirror.flush(60)
    assert contents(disk.target)["last.pt"] == "last.pt of epoch 3"
    write(run, "status.json", json.dumps({"epochs_done": 51}))
    assert "all 8 files" in disk.mirror.flush(60)  # the backup has the most epochs


def test_whatever_is_raised_the_training_hears_nothing(run, disk, tmp_path):
    "Not only disks fail; nobody may be there to read of it; a typo is a problem like any other."
    disk.faults.append(Mock(side_effect=ValueError("odd")))
    disk.mirror.say = Mock(side_effect=BrokenPipeError)
    assert "(odd)" in disk.mirror.flush(60)
    (tmp_path / "file").write_text("a file")
    other = Disk(run, tmp_path / "file" / "mine")
    assert "0 of 8 files" in other.mirror.flush(60) and len(other.said) == 1
    (tmp_path / "file").unlink()
    assert "all 8 files" in other.mirror.flush(60)


def test_a_disk_that_hangs_blocks_nobody(run, disk):
    "Waking, asking and closing return while the thread waits; the end waits a limited time."
    reached, released = threading.Event(), threading.Event()

    def hang(file, piece):
        if "best.pt" in file.name:
            reached.set()
            released.wait()
        return piece

    disk.faults.append(hang)
    with disk.mirror as mirror:
        assert reached.wait(60)
        for _ in range(100):
            mirror.notify()
        assert mirror.missing() == ["best.pt", "last.pt", "scores.json", "status.json"]
        line = mirror.flush(0.1)
        assert "4 of 8 files" in line and "missing: best.pt, last.pt, scores.json, st" in line
        assert "(not done after 0 s)" in line and str(run) in line
    assert mirror.thread.is_alive() and mirror.thread.daemon
    released.set()
    mirror.thread.join(60)
    assert not mirror.thread.is_alive()
    assert "best.pt" not in contents(disk.target)  # closed is closed


def test_without_a_mirror_or_files_nothing_happens(run, tmp_path):
    "The training need not ask."
    before, threads = contents(run), threading.active_count()
    with Mirror(run, None) as mirror:
        mirror.notify()
        assert mirror.flush(60) == ""
        assert threading.active_count() == threads
    assert contents(run) == before
    empty = Disk(tmp_path / "none", tmp_path / "drive")  # it may begin before the run has written
    assert "all 0 files" in empty.mirror.flush(60) and not (tmp_path / "drive").exists()


# Going on


def copy_at(folder, epochs, name="last.pt"):
    "A copy of a run with some epochs."
    write(folder, name, f"epoch {epochs}")
    write(folder, "status.json", json.dumps({"epochs_done": epochs}))
    write(folder, "figures/curves.png", "picture")
    return folder


def test_a_mirrored_run_comes_back_as_it_was(run, disk, tmp_path):
    "What the next session finds is what this one left."
    disk.mirror.flush(60)
    write(run, "last.pt", "last.pt of epoch 4")
    disk.mirror.flush(60)
    assert bring_back(tmp_path / "new", [disk.target]) == disk.target
    found = contents(tmp_path / "new")
    assert found.pop("previous.pt") == "last.pt of epoch 3"
    assert found == contents(run) and not hidden(tmp_path / "new")
    assert not (tmp_path / "new" / ".mirror").exists()


def test_the_copy_with_most_epochs_is_taken(tmp_path):
    """An unreadable status.json counts as none; of equals the first is taken; once is enough.
    A run here that has none resumes from its checkpoint: it may have more than a copy."""
    copies = [copy_at(tmp_path / str(n), n) for n in (2, 7, 5)]
    for name, text in (("torn", '{"epochs_done": 9'), ("odd", '{"epochs_done": "9"}')):
        write(copy_at(tmp_path / name, 99), "status.json", text)
    write(copy_at(tmp_path / "deep", 99), "status.json", "[" * 100_000)
    (tmp_path / "0").mkdir()
    others = [tmp_path / name for name in ("torn", "odd", "deep", "none", "0")]
    copies = [*others, *copies, copy_at(tmp_path / "also 7", 7)]
    assert bring_back(tmp_path / "new", copies) == tmp_path / "7"
    assert (tmp_path / "new" / "last.pt").read_text() == "epoch 7"
    with pytest.raises(UserError, match="it holds 7 epochs, and this run has 3; delete "):
        bring_back(copy_at(tmp_path / "old", 3), copies)  # begun before the disk was there
    (tmp_path / "old/status.json").unlink()
    assert bring_back(tmp_path / "old", copies) is None
    for name in ("last.pt", "previous.pt"):  # the files of this disk are as new
        before = contents(copy_at(tmp_path / f"here {name}", 7, name))
        assert bring_back(tmp_path / f"here {name}", copies) is None
        assert contents(tmp_path / f"here {name}") == before
    for n, folder in enumerate((tmp_path / "of another", tmp_path / "7")):
        write(folder, "config.json", json.dumps({"seed": n}))
    assert bring_back(tmp_path / "of another", [tmp_path / "7"]) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert bring_back(tmp_path / "nothing", [tmp_path / "none"]) is None
    assert not (tmp_path / "nothing").exists()


def test_bringing_back_that_was_interrupted_is_done_again(tmp_path, monkeypatch):
    "Wherever it ends, the next start brings a whole run, and never a checkpoint cut in half."
    copy = copy_at(tmp_path / "copy", 3)
    write(copy, "previous.pt", "epoch 2")
    write(copy, "best.pt", "epoch 1")
    replace, left = os.replace, [0]

    def killed(old, new):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        replace(old, new)

    monkeypatch.setattr(os, "replace", killed)
    for after in range(5):
        folder, left[0] = tmp_path / f"new {after}", after
        with pytest.raises(KeyboardInterrupt):
            bring_back(folder, [copy])
        whole = (folder / "last.pt").exists()
        assert whole == (after == 4)
        left[0] = 99
        assert bring_back(folder, [copy]) == (None if whole else copy)
        assert (folder / "last.pt").read_text() == "epoch 3"
        missing = contents(copy).keys() - contents(folder).keys()
        assert missing == ({"previous.pt"} if whole else set())


def test_a_copy_that_cannot_be_read_is_skipped(tmp_path, monkeypatch):
    "The Drive does not answer, and the attached output does."
    bad, good = copy_at(tmp_path / "bad", 9), copy_at(tmp_path / "good", 3)
    stat = Path.stat

    def dead(self, **options):
        if bad in (self, *self.parents):
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")
        return stat(self, **options)

    monkeypatch.setattr(Path, "stat", dead)
    with pytest.warns(UserWarning, match="bad is skipped: Transport endpoint"):
        assert bring_back(tmp_path / "new", [bad, good]) == good
    assert (tmp_path / "new" / "last.pt").read_text() == "epoch 3"


def broken_files(monkeypatch, *broken):
    "Copies whose files of these names cannot be read."
    copy_file = mirror.copy_file

    def fails(old, new):
        if old.name in broken and old.parent.name != "good":
            raise OSError(errno.EIO, "Input/output error")
        return copy_file(old, new)

    monkeypatch.setattr(mirror, "copy_file", fails)


@pytest.mark.parametrize("broken", ["last.pt", "previous.pt", "figures/gallery.png"])
def test_of_two_checkpoints_one_is_enough_and_no_picture(tmp_path, monkeypatch, broken):
    "An epoch is lost, not the run; the training reports that it resumes from the previous one."
    copy = copy_at(tmp_path / "copy", 9)
    for name in ("previous.pt", "figures/gallery.png"):
        write(copy, name, "epoch 8")
    broken_files(monkeypatch, Path(broken).name)
    with pytest.warns(UserWarning, match=f"copy/{broken} is skipped: Input/output error"):
        assert bring_back(tmp_path / "new", [copy]) == copy
    assert contents(tmp_path / "new").keys() == contents(copy).keys() - {broken}
    only = copy_at(tmp_path / "only", 3, "previous.pt")  # left between two renames
    assert broken == "previous.pt" or bring_back(tmp_path / "other", [only]) == only


@pytest.mark.filterwarnings("ignore:.*pt is skipped")
@pytest.mark.parametrize("broken", [("last.pt", "previous.pt"), ("status.json",)])
def test_a_copy_that_fails_leaves_nothing_of_itself(tmp_path, monkeypatch, broken):
    "A run that begins anew must not find the settings and the weights of half a copy."
    copy = copy_at(tmp_path / "copy", 9)
    write(copy, "previous.pt", "epoch 8")
    write(copy, "best.pt", "epoch 7")
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "train.log").write_text("mine")
    broken_files(monkeypatch, *broken)
    with (
        pytest.warns(UserWarning, match="copy is skipped"),
        pytest.raises(UserError, match="later"),
    ):
        bring_back(tmp_path / "new", [copy])
    assert contents(tmp_path / "new") == {"train.log": "mine"}
    good = copy_at(tmp_path / "good", 3)
    assert bring_back(tmp_path / "new", [copy, good]) == good  # the next best one, whole
    assert contents(tmp_path / "new") == contents(good) | {"train.log": "mine"}


@pytest.mark.parametrize("top", ["name", "me/name", "notebooks/me/name"])
@pytest.mark.parametrize("inside", ["runs/{}", "{}", "mine"])  # the second: a packed run
def test_kaggle_looks_into_attached_outputs(tmp_path, top, inside):
    "Where they are mounted has changed over the years; a run lies there as it lay in its output."
    kaggle = Place("kaggle", tmp_path / "input", tmp_path / "working" / "runs", "")
    config = Config() if "{}" in inside else Config(output_dir=f"{tmp_path}/working/mine")
    copy = copy_at(tmp_path / "input" / top / inside.format(run_name(config)), 3)
    copy_at(tmp_path / "input" / top / "runs" / "another-run", 9)
    assert site_of(config, kaggle).copies == [copy]
    mirrored = config.model_copy(update={"mirror_dir": str(tmp_path / "disk")})
    for place, attached in ((kaggle, [copy]), (HERE, [])):
        site = site_of(mirrored, place)
        assert site.copies == [site.mirror, *attached]


def test_a_session_ends_before_the_service_ends_it():
    "Half an hour is left to score the kept epoch and to copy; what is asked for goes first."
    tpu, other, mine = {"TPU_WORKER_ID": "0"}, {"TPU_ACCELERATOR_TYPE": "v5e-8"}, {"TPU_NAME": "a"}
    assert [session_hours(COLAB, x) for x in ({}, tpu)] == [11.5, 11.5]
    assert [session_hours(KAGGLE, x) for x in ({}, tpu, other)] == [11.5, 8.5, 8.5]
    assert session_hours(KAGGLE, {"PJRT_DEVICE": "TPU"}) == 8.5  # whose variables were removed
    assert [session_hours(HERE, x) for x in ({}, mine)] == [float("inf")] * 2
    for place in (COLAB, KAGGLE, HERE):
        assert site_of(Config(max_hours=0.1), place).hours == 0.1


def test_the_age_of_a_session_is_that_of_its_process():
    "Imports count, and the clock on the wall may jump to and fro."
    program = "import time; time.sleep(0.3); from mshnet.places import session_seconds as s; "
    program += "t = time.time; time.time = lambda: t() - 1e6; a = s(); print({}<a<99, s() >= a)"
    for least, env in ((0.25, {}), (50, {"MSHNET_BEGUN": str(time.time() - 50)})):  # of a starter
        words, env = [sys.executable, "-c", program.format(least)], os.environ | env
        ended = subprocess.run(words, capture_output=True, text=True, env=env)
        assert ended.stdout.split() == ["True"] * 2, ended.stderr
