"""The copy of a run on another disk: slow, full, hanging, vanishing, rotten, and brought back.

The other disk is a folder here, and what goes wrong with it is made: no real Drive was at hand.
"""

import errno
import io
import json
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest

from mshnet import places, train
from mshnet.core import Config, UserError, run_name
from mshnet.places import (
    COLAB,
    HERE,
    KAGGLE,
    Mirror,
    Mounted,
    Pace,
    Place,
    bring_back,
    copies_of,
    mirror_folder,
    run_files,
    session_hours,
    session_seconds,
    wants_drive,
)
from mshnet.run import Folder

FILES = ["config.json", "env.json", "figures/curves.png", "log.jsonl", "scores.json"]
FILES += ["best.pt", "last.pt", "status.json"]


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
    "A mirror whose other disk does as it is told; it says what it says into a list."

    def __init__(self, run, target, **options):
        self.said = []
        self.mirror = Mirror(run, target, **{"pause": 0.01, "say": self.said.append, **options})
        self.put = self.mirror.pace.write
        self.mirror.pace.write = self.write
        self.faults = []  # asked before each piece, with the file and the piece

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


def until(condition):
    "Wait for another thread, but not for ever."
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < 60, "it did not happen"
        time.sleep(0.01)


def hidden(folder):
    "The names of hidden files but for the marker."
    return [p.name for p in folder.rglob(".*") if p.name != ".mirror"]


# Where


def test_the_mirror_has_a_folder_for_each_run(tmp_path):
    "Two runs with one mirror_dir do not meet."
    one, two = (Config(mirror_dir=str(tmp_path), seed=seed) for seed in (1, 2))
    found = [mirror_folder(config, HERE) for config in (one, two)]
    assert found == [tmp_path / run_name(one), tmp_path / run_name(two)]
    assert found[0] != found[1]


def test_a_relative_mirror_stays_where_it_was_meant(tmp_path, monkeypatch):
    "The working directory may change afterwards."
    monkeypatch.chdir(tmp_path)
    assert mirror_folder(Config(mirror_dir="copies", output_dir="a/run")) == tmp_path / "copies/run"


def colab(tmp_path):
    "Colab, with its folders in another place."
    drive = tmp_path / "drive" / "MyDrive"
    return Place("colab", tmp_path, tmp_path / "runs", "", drive=drive)


@pytest.mark.parametrize(
    "asked", ["drive", "{}/drive/MyDrive/mine", "{}/drive", "drive/MyDrive/mine", "./x/../drive"]
)
def test_without_a_mounted_drive_there_is_no_mirror(tmp_path, monkeypatch, asked):
    "A folder made in its place would be deleted with the session, and its owner would believe."
    monkeypatch.chdir(tmp_path)  # as in Colab
    said, config = [], Config(mirror_dir=asked.format(tmp_path))
    assert mirror_folder(config, colab(tmp_path), said.append) is None
    assert len(said) == 1 and "not mounted" in said[0] and str(tmp_path / "runs") in said[0]
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "drive" / "MyDrive").mkdir(parents=True)
    assert mirror_folder(config, colab(tmp_path), said.append).parent.parent.name
    assert len(said) == 1


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [("drive", True), ("drive/MyDrive/a", True), ("{}/drive/a", True), ("copies", False), ("", 0)],
)
def test_a_mirror_on_drive_mounts_it(tmp_path, monkeypatch, asked, wanted):
    "The word and a folder alike, in Colab; elsewhere a folder of that name is a folder."
    monkeypatch.chdir(tmp_path)
    config = Config(mirror_dir=asked.format(tmp_path))
    assert wants_drive(config, colab(tmp_path)) == bool(wanted)
    assert not wants_drive(config, HERE)
    monkeypatch.setattr(places, "where", lambda *_: colab(tmp_path))
    asked = []
    monkeypatch.setattr(train, "mount_drive", lambda: asked.append(1) or Mounted(None, "asked"))
    train.look_back(Folder(tmp_path / "run"), config)
    assert len(asked) == wanted


def test_drive_outside_colab_is_a_word_of_advice(tmp_path):
    "The same settings work on every machine."
    for place in (HERE, KAGGLE):
        said = []
        assert mirror_folder(Config(mirror_dir="drive"), place, said.append) is None
        assert "Colab only" in said[0]


@pytest.mark.parametrize("mirror", ["{}/runs", "{}/runs/mine", "{}/runs/mine/copy"])
def test_a_run_is_no_mirror_of_itself(tmp_path, mirror):
    "Copies into the run's own folder would be copied in turn."
    config = Config(mirror_dir=mirror.format(tmp_path), output_dir=f"{tmp_path}/runs/mine")
    with pytest.raises(UserError, match="the run itself is there"):
        mirror_folder(config)


def test_nor_by_a_link(run, tmp_path):
    "A link to the folder is the folder."
    (tmp_path / "link").symlink_to(run.parent)
    with pytest.raises(UserError, match="the run itself is there"):
        mirror_folder(Config(mirror_dir=f"{tmp_path}/link", output_dir=str(run)))
    disk, before = Disk(run, tmp_path / "link" / "mine"), contents(run)
    assert "own folder" in disk.mirror.flush(60)
    assert contents(run) == before and not (run / ".mirror").exists()


# What


def test_everything_worth_keeping_is_copied_small_files_first(run, disk):
    "A session that ends early has kept the records; the last checkpoint needs most time."
    for name in (".last.pt.7.tmp", ".lock", "tensorboard/events", "figures/.a.png.tmp"):
        write(run, name, "not this one")
    write(run, "previous.pt", "the mirror makes its own")
    order = []
    disk.faults.append(lambda file, piece: order.append(Path(file.name).name[1:-4]) or piece)
    line = disk.mirror.flush(60)
    assert contents(disk.mirror.target) == {name: (run / name).read_text() for name in FILES}
    assert order == [Path(name).name for name in FILES]
    assert line.startswith("mirror  all 8 files (0.0 MB) are in ")
    assert str(disk.mirror.target) in line and disk.said == []
    assert not hidden(disk.mirror.target)


def test_what_did_not_change_is_not_copied_again(run, disk):
    "An epoch changes three files of a dozen."
    disk.mirror.flush(60)
    copied = []
    disk.faults.append(lambda file, piece: copied.append(Path(file.name).name) or piece)
    assert disk.mirror.attempt() and copied == []
    write(run, "log.jsonl", "two lines")
    assert disk.mirror.missing() == ["log.jsonl"]
    assert disk.mirror.attempt() and copied == [".log.jsonl.tmp"]


def test_a_new_session_trusts_what_is_the_same_and_only_that(run, disk, tmp_path):
    "A file of the same size may be another one."
    disk.mirror.flush(60)
    write(disk.mirror.target, "scores.json", (run / "scores.json").read_text()[::-1])
    again, copied = Disk(run, disk.mirror.target), []
    again.faults.append(lambda file, piece: copied.append(Path(file.name).name) or piece)
    again.mirror.flush(60)
    assert copied == [".scores.json.tmp"]
    assert contents(disk.mirror.target) == contents(run)


def test_the_last_but_one_checkpoint_is_kept(run, disk):
    "Should the newest one be unreadable on the other disk, an epoch is lost and not the run."
    for epoch in (4, 5):
        disk.mirror.flush(60)
        write(run, "last.pt", f"last.pt of epoch {epoch}")
    disk.mirror.flush(60)
    found = contents(disk.mirror.target)
    assert [found[n] for n in ("last.pt", "previous.pt")] == [f"last.pt of epoch {n}" for n in "54"]


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
    left, target = [steps], disk.mirror.target

    def count(real):
        def act(*paths):
            left[0] -= 1
            if left[0] < 0:
                raise OSError(errno.EIO, "Input/output error")
            real(*paths)

        return act

    for name in ("truncate", "replace"):
        monkeypatch.setattr(places.os, name, count(getattr(places.os, name)))
    assert disk.mirror.attempt() == (steps == 3)
    assert checkpoints(target) == there
    left[0] = 99
    assert disk.mirror.attempt() and checkpoints(target) == "54"


def test_a_file_replaced_meanwhile_is_copied_as_it_was_and_then_as_it_is(run, disk):
    "Training writes a checkpoint while the one before is under way."
    half = {"last.pt": "newer"}

    def replace(file, piece):
        if "last.pt" in file.name and half:
            write(run, *half.popitem())
        return piece

    disk.faults.append(replace)
    assert disk.mirror.attempt()
    assert contents(disk.mirror.target)["last.pt"] == "last.pt of epoch 3"
    assert disk.mirror.missing() == ["last.pt"]
    assert "all 8 files" in disk.mirror.flush(60)
    assert contents(disk.mirror.target)["last.pt"] == "newer"


def test_a_file_written_to_meanwhile_waits(run, disk):
    "Half of one version and half of another is neither."

    def grow(file, piece):
        if "curves" in file.name:
            (run / "figures" / "curves.png").write_text("other and longer content")
            disk.faults.clear()
        return piece

    disk.faults.append(grow)
    assert disk.mirror.attempt()
    assert not (disk.mirror.target / "figures" / "curves.png").exists()
    assert disk.mirror.missing() == ["figures/curves.png"] and not hidden(disk.mirror.target)
    assert disk.mirror.attempt() and disk.mirror.missing() == []


def test_a_file_that_vanishes_is_no_problem(run, disk):
    "Figures are drawn anew, folders tidied."

    def remove(file, piece):
        (run / "log.jsonl").unlink(missing_ok=True)
        return piece

    disk.faults.append(remove)
    assert "all 7 files" in disk.mirror.flush(60)
    assert disk.said == []


def test_a_pipe_in_the_folder_is_left_alone(run, disk):
    "Opening one would wait for ever."
    places.os.mkfifo(run / "pipe")
    assert "all 8 files" in disk.mirror.flush(60)


# What goes wrong


def test_a_full_disk_keeps_what_fits_and_says_what_does_not(run, disk):
    "The line at the end is what somebody acts on before the session is deleted."
    disk.faults.append(full)
    line = disk.mirror.flush(60)
    target = disk.mirror.target
    assert line == (
        f"mirror  6 of 8 files are in {target}; missing: scores.json, last.pt "
        f"(No space left on device); they are in {run}"
    )
    assert contents(target).keys() == set(FILES) - {"scores.json", "last.pt"}
    assert not hidden(target)
    assert len(disk.said) == 1 and "No space left" in disk.said[0]
    state = disk.mirror.state()
    assert state["missing"] == ["scores.json", "last.pt"] and state["files"] == 6
    assert state["problem"] == "No space left on device" and state["folder"] == str(target)


def test_a_full_disk_keeps_the_checkpoint_that_was_there(run, disk):
    "What is good is replaced by what is better, never by nothing."
    disk.mirror.flush(60)
    disk.faults.append(full)
    write(run, "last.pt", "last.pt of epoch 4")
    assert not disk.mirror.attempt()
    assert contents(disk.mirror.target)["last.pt"] == "last.pt of epoch 3"


def test_a_problem_is_said_once_and_so_is_its_end(run, disk):
    "A line per minute would bury the epochs."
    disk.faults.append(full)
    assert not any([disk.mirror.attempt() for _ in range(5)])
    assert len(disk.said) == 1
    disk.faults.clear()
    assert all([disk.mirror.attempt() for _ in range(3)])
    assert len(disk.said) == 2 and "works again" in disk.said[1]
    disk.faults.append(full)  # the same again is not said again, nor is its end
    write(run, "last.pt", "new")
    assert not disk.mirror.attempt()
    disk.faults.clear()
    assert disk.mirror.attempt() and len(disk.said) == 2


def test_errors_for_a_while_end_with_everything_copied(run, disk):
    "The thread tries again by itself, without being woken."
    left = [7]

    def flaky(file, piece):
        left[0] -= 1
        if left[0] > 0:
            raise OSError(errno.EIO, "Input/output error")
        return piece

    disk.faults.append(flaky)
    with disk.mirror:
        until(lambda: not disk.mirror.state()["missing"])
        line = disk.mirror.flush(60)
    assert "all 8 files" in line and contents(disk.mirror.target) == contents(run)
    assert len(disk.said) == 2


def test_it_waits_longer_after_each_failure_but_not_for_ever(run, disk):
    "A dead disk costs next to nothing, and a living one is found again."
    mirror = Mirror(run, disk.mirror.target, pause=60)
    assert [mirror.rest(n) for n in (0, 1, 2, 3, 9, 10**6)] == [60, 120, 240, 300, 300, 300]


def test_a_copy_that_differs_is_made_again(run, disk):
    "A flipped bit is found by reading back, before the good checkpoint is replaced."
    disk.mirror.flush(60)
    flips = [3]

    def flip(file, piece):
        if "last.pt" in file.name and flips[0]:
            flips[0] -= 1
            return bytes([piece[0] ^ 1]) + piece[1:]
        return piece

    disk.faults.append(flip)
    write(run, "last.pt", "last.pt of epoch 4")
    assert "differs from its original" in disk.mirror.flush(60)
    assert contents(disk.mirror.target)["last.pt"] == "last.pt of epoch 3"
    assert "all 8 files" in disk.mirror.flush(60)
    assert contents(disk.mirror.target)["last.pt"] == "last.pt of epoch 4"


@pytest.mark.parametrize("level", ["drive", "drive/mshnet", "drive/mshnet/mine"])
def test_a_disk_that_vanished_is_not_made_anew(run, disk, tmp_path, level):
    "An unmounted Drive leaves an empty folder, and what is written there is deleted with it."
    disk.mirror.flush(60)
    place, aside = tmp_path / level, tmp_path / "aside"
    place.rename(aside)
    write(run, "last.pt", "last.pt of epoch 4")
    for empty in (False, True):
        if empty:
            place.mkdir()
        line = disk.mirror.flush(60)
        assert "0 of 8 files" in line and "gone" in line and str(run) in line
        assert len(disk.said) == 1
    assert list(place.iterdir()) == []
    place.rmdir()
    aside.rename(place)  # it is mounted again
    assert "all 8 files" in disk.mirror.flush(60)
    assert "works again" in disk.said[-1]


def test_a_disk_that_vanishes_before_the_first_file_is_not_made_anew(run, tmp_path):
    "The numbers of the nearest folder are remembered before anything is written."
    (tmp_path / "drive").mkdir()
    disk = Disk(run, tmp_path / "drive" / "mshnet" / "mine")
    (run / "config.json").rename(tmp_path / "config.json")
    write(tmp_path / "drive" / "mshnet" / "mine", "status.json", json.dumps({"epochs_done": 9}))
    assert not disk.mirror.attempt()  # it holds more
    (tmp_path / "drive" / "mshnet").rename(tmp_path / "unmounted")
    assert not disk.mirror.attempt() and disk.mirror.problem == "it is gone"
    assert list((tmp_path / "drive").iterdir()) == []


def test_a_disk_that_vanishes_within_a_round(run, disk, tmp_path):
    "Every path is checked before it is written, and no folder is made on the way."

    def vanish(file, piece):
        if "log" in file.name:
            disk.faults.clear()
            (tmp_path / "drive").rename(tmp_path / "unmounted")
            (tmp_path / "drive").mkdir()
        return piece

    disk.faults.append(vanish)
    assert "gone" in disk.mirror.flush(60)
    assert list((tmp_path / "drive").iterdir()) == []


def test_another_run_is_not_overwritten(run, disk):
    "Two runs that were both called `mine` on two machines."
    other = json.dumps(Config(lr=0.1).model_dump())
    write(disk.mirror.target, "config.json", other)
    write(disk.mirror.target, "last.pt", "of another run")
    assert "another run" in disk.mirror.flush(60)
    assert contents(disk.mirror.target) == {"config.json": other, "last.pt": "of another run"}


def test_more_epochs_are_not_overwritten_by_fewer(run, disk):
    "A run that could not be brought back begins anew: its old copy must outlive that."
    write(disk.mirror.target, "status.json", json.dumps({"epochs_done": 50}))
    write(disk.mirror.target, "last.pt", "of epoch 50")
    assert "it holds 50 epochs of this run, and here are 3" in disk.mirror.flush(60)
    assert contents(disk.mirror.target)["last.pt"] == "of epoch 50"
    write(run, "status.json", json.dumps({"epochs_done": 50}))
    assert "all 8 files" in disk.mirror.flush(60)


def test_of_two_sessions_the_later_one_stays(run, disk):
    "A forgotten session must not mix its checkpoints into those of the one that goes on."
    disk.mirror.flush(60)
    later = Disk(run, disk.mirror.target)
    assert "all 8 files" in later.mirror.flush(60)
    write(run, "last.pt", "of the earlier one")
    assert "another session" in disk.mirror.flush(60)
    assert contents(disk.mirror.target)["last.pt"] == "last.pt of epoch 3"


def test_whatever_is_raised_the_training_hears_nothing(run, disk):
    "Not only disks fail; and nobody may be there to hear of it."

    def fault(file, piece):
        raise ValueError("odd")

    def deaf(line):
        raise BrokenPipeError

    disk.faults.append(fault)
    disk.mirror.say = deaf
    assert "(ValueError: odd)" in disk.mirror.flush(60)


def test_a_mirror_that_is_a_file_is_a_problem_and_no_error(run, tmp_path):
    "A typo is told like any other problem."
    (tmp_path / "drive").write_text("a file")
    disk = Disk(run, tmp_path / "drive" / "mine")
    line = disk.mirror.flush(60)
    assert "0 of 8 files" in line and len(disk.said) == 1
    assert (tmp_path / "drive").read_text() == "a file"
    (tmp_path / "drive").unlink()
    assert "all 8 files" in disk.mirror.flush(60)


def hanging(disk):
    "The other disk stops to answer at the first checkpoint; returns what ends that."
    reached, released = threading.Event(), threading.Event()

    def hang(file, piece):
        if "best.pt" in file.name:
            reached.set()
            released.wait()
        return piece

    disk.faults.append(hang)
    return reached, released


def test_a_disk_that_hangs_blocks_nobody(run, disk):
    "Waking, asking and closing return while the thread waits; the end waits as long as told."
    reached, released = hanging(disk)
    with disk.mirror as mirror:
        assert reached.wait(60)
        for _ in range(100):
            mirror.wake()
        assert mirror.state()["missing"] == ["best.pt", "last.pt", "status.json"]
        line = mirror.flush(0.1)
        assert "5 of 8 files" in line and "missing: best.pt, last.pt, status.json" in line
        assert "(not done after 0 s)" in line and str(run) in line
    assert mirror.thread.is_alive() and mirror.thread.daemon
    released.set()
    mirror.thread.join(60)
    assert not mirror.thread.is_alive()
    assert "best.pt" not in contents(mirror.target)  # closed is closed


def test_a_disk_that_answers_again_is_caught_up_with(run, disk):
    "A hang is not the end."
    reached, released = hanging(disk)
    with disk.mirror as mirror:
        assert reached.wait(60)
        released.set()
        assert "all 8 files" in mirror.flush(60)


def test_a_process_ends_while_its_mirror_hangs(tmp_path):
    "A pool's thread would be waited for at the end, for ever."
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "last.pt").write_text("x")
    program = f"""
import threading
from pathlib import Path
from mshnet.places import Mirror
reached = threading.Event()
mirror = Mirror(Path({str(tmp_path / "run")!r}), Path({str(tmp_path / "drive")!r}))
mirror.pace.write = lambda file, piece: (reached.set(), threading.Event().wait())
with mirror:
    assert reached.wait(60)
    print(mirror.flush(0.1))
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert b"missing: last.pt" in ended.stdout and not ended.stderr


# How fast


def test_a_rate_is_kept_whatever_the_disk_takes(monkeypatch):
    "The time that writing takes counts; a disk that is slower than the rate is not slowed."
    now, slept, pace = [0.0], [], Pace(rate=10.0)

    class File(io.BytesIO):
        def write(self, piece):
            now[0] += 0.05 if len(slept) < 4 else 0.5
            return super().write(piece)

    def sleep(seconds):
        slept.append(seconds)
        now[0] += seconds

    pace.clock, pace.sleep = lambda: now[0], sleep
    file = File()
    for _ in range(4):
        pace.write(file, bytes(1_000_000))
    assert now[0] == pytest.approx(0.4) and slept == pytest.approx([0.05] * 4)
    pace.write(file, bytes(1_000_000))
    assert slept[-1] == 0 and len(file.getvalue()) == 5_000_000
    now[0] += 100  # a rest is no credit
    del slept[:]
    for _ in range(3):
        pace.write(file, bytes(1_000_000))
    assert now[0] == pytest.approx(100.9 + 0.3)


def test_large_files_go_in_pieces(run, disk):
    "A pause after fifty megabytes is no limited rate."
    write(run, "last.pt", "x" * 2_500_000)
    sizes = []
    disk.mirror.pace.rate = 1e9
    disk.faults.append(lambda file, piece: sizes.append(len(piece)) or piece)
    disk.mirror.flush(60)
    assert [n for n in sizes if n > 1000] == [1_000_000, 1_000_000, 500_000]
    assert max(sizes) == 1_000_000


def test_closing_ends_a_slow_copy(run, tmp_path):
    "At a rate of a byte a second nobody waits for the rest of the file."
    mirror = Mirror(run, tmp_path / "drive", rate=1e-6)
    with mirror:
        until((tmp_path / "drive" / ".config.json.tmp").exists)
    mirror.thread.join(60)
    assert not mirror.thread.is_alive()


def test_a_thread_sleeps_until_it_is_woken(run, disk):
    "And each time it is woken it copies what is new."
    with disk.mirror as mirror:
        for text in ("one", "two", "three"):
            write(run, "log.jsonl", text)
            mirror.wake()
            until(lambda text=text: contents(mirror.target).get("log.jsonl") == text)
    assert disk.said == []


def test_without_a_mirror_nothing_happens(run):
    "The training need not ask."
    before, threads = contents(run), threading.active_count()
    with Mirror(run, None) as mirror:
        mirror.wake()
        assert mirror.flush(60) == "" and mirror.state() == {}
        assert threading.active_count() == threads
    assert contents(run) == before


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
    assert bring_back(tmp_path / "new", [disk.mirror.target]) == disk.mirror.target
    found = contents(tmp_path / "new")
    assert found.pop("previous.pt") == "last.pt of epoch 3"
    assert found == contents(run) and not hidden(tmp_path / "new")
    assert not (tmp_path / "new" / ".mirror").exists()


@pytest.mark.parametrize("name", ["last.pt", "previous.pt"])
def test_a_run_that_is_here_is_left_alone(tmp_path, name):
    "The files of this disk are newer or as new."
    copy_at(tmp_path / "here", 3, name)
    before = contents(tmp_path / "here")
    assert bring_back(tmp_path / "here", [copy_at(tmp_path / "copy", 9)]) is None
    assert contents(tmp_path / "here") == before


def test_the_copy_with_most_epochs_is_taken(tmp_path):
    "An unreadable status.json counts as none; of equals the first is taken."
    copies = [copy_at(tmp_path / str(n), n) for n in (2, 7, 5)]
    write(copy_at(tmp_path / "torn", 99), "status.json", '{"epochs_done": 9')
    write(copy_at(tmp_path / "odd", 99), "status.json", '{"epochs_done": "99"}')
    others = [tmp_path / "torn", tmp_path / "odd", tmp_path / "none", tmp_path / "0"]
    (tmp_path / "0").mkdir()
    taken = bring_back(tmp_path / "new", [*others, *copies, copy_at(tmp_path / "also 7", 7)])
    assert taken == tmp_path / "7" and (tmp_path / "new" / "last.pt").read_text() == "epoch 7"


def test_a_copy_with_only_the_checkpoint_before_is_a_copy(tmp_path):
    "The mirror may have been left between its two renames."
    copy = copy_at(tmp_path / "copy", 3, "previous.pt")
    assert bring_back(tmp_path / "new", [copy]) == copy
    assert contents(tmp_path / "new") == contents(copy)


def test_bringing_back_that_was_interrupted_is_done_again(tmp_path, monkeypatch):
    "Wherever it ends, the next start brings a whole run, and never a checkpoint cut in half."
    copy = copy_at(tmp_path / "copy", 3)
    write(copy, "previous.pt", "epoch 2")
    write(copy, "best.pt", "epoch 1")
    replace, left = places.os.replace, [0]

    def killed(old, new):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        replace(old, new)

    monkeypatch.setattr(places.os, "replace", killed)
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


def test_a_copy_that_cannot_be_read_is_passed_over(tmp_path, monkeypatch):
    "The Drive does not answer, and the attached output does."
    bad, good = copy_at(tmp_path / "bad", 9), copy_at(tmp_path / "good", 3)
    stat = Path.stat

    def dead(self, **options):
        if bad in (self, *self.parents):
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")
        return stat(self, **options)

    monkeypatch.setattr(Path, "stat", dead)
    with pytest.warns(UserWarning, match="bad is passed over: Transport endpoint"):
        assert bring_back(tmp_path / "new", [bad, good]) == good
    assert (tmp_path / "new" / "last.pt").read_text() == "epoch 3"


def test_a_copy_that_fails_half_way_is_passed_over(tmp_path, monkeypatch):
    "The next best one is taken, whole."
    bad, good = copy_at(tmp_path / "bad", 9), copy_at(tmp_path / "good", 3)
    copy_file = places.copy_file

    def fails(old, new, write):
        if old == bad / "last.pt":
            raise OSError(errno.EIO, "Input/output error")
        return copy_file(old, new, write)

    monkeypatch.setattr(places, "copy_file", fails)
    with (
        pytest.warns(UserWarning, match="bad/last.pt is passed over: Input/output error"),
        pytest.warns(UserWarning, match="bad is passed over: it has no checkpoint"),
    ):
        assert bring_back(tmp_path / "new", [bad, good]) == good
    assert contents(tmp_path / "new") == contents(good)


def broken_files(monkeypatch, *broken):
    "Copies whose files of these names cannot be read."
    copy_file = places.copy_file

    def fails(old, new, write):
        if old.name in broken:
            raise OSError(errno.EIO, "Input/output error")
        return copy_file(old, new, write)

    monkeypatch.setattr(places, "copy_file", fails)


@pytest.mark.parametrize(
    ("broken", "there"), [("last.pt", "previous.pt"), ("previous.pt", "last.pt")]
)
def test_of_two_checkpoints_one_is_enough(tmp_path, monkeypatch, broken, there):
    "An epoch is lost, not the run; the training says that it goes on from the previous one."
    copy = copy_at(tmp_path / "copy", 9)
    write(copy, "previous.pt", "epoch 8")
    broken_files(monkeypatch, broken)
    with pytest.warns(UserWarning, match=f"copy/{broken} is passed over: Input/output error"):
        assert bring_back(tmp_path / "new", [copy]) == copy
    expected = contents(copy)
    del expected[broken]
    assert contents(tmp_path / "new") == expected
    assert there in expected


@pytest.mark.filterwarnings("ignore:.*pt is passed over")
@pytest.mark.parametrize("broken", [("last.pt", "previous.pt"), ("status.json",)])
def test_a_copy_that_fails_leaves_nothing_of_itself(tmp_path, monkeypatch, broken):
    "A run that begins anew must not find the settings and the weights of half a copy."
    copy = copy_at(tmp_path / "copy", 9)
    write(copy, "previous.pt", "epoch 8")
    write(copy, "best.pt", "epoch 7")
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "train.log").write_text("mine")
    broken_files(monkeypatch, *broken)
    with pytest.warns(UserWarning, match="copy is passed over"):
        assert bring_back(tmp_path / "new", [copy]) is None
    assert contents(tmp_path / "new") == {"train.log": "mine"}


def test_a_record_nested_too_deep_is_none(tmp_path):
    "A damaged status.json in a mirror must not end a training."
    copy = copy_at(tmp_path / "copy", 9)
    write(copy, "status.json", "[" * 100_000)
    assert places.epochs_done(copy) == 0
    assert bring_back(tmp_path / "new", [copy]) == copy


def test_without_copies_nothing_is_made(tmp_path):
    "A first session."
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert bring_back(tmp_path / "new", [tmp_path / "none"]) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("top", ["name", "me/name", "notebooks/me/name"])
@pytest.mark.parametrize("inside", ["runs/{}", "mine"])
def test_kaggle_looks_into_attached_outputs(tmp_path, top, inside):
    "Where they are mounted has changed over the years; a run lies there as it lay in its output."
    kaggle = Place("kaggle", tmp_path / "input", tmp_path / "working" / "runs", "")
    config = Config() if "runs" in inside else Config(output_dir=f"{tmp_path}/working/mine")
    copy = copy_at(tmp_path / "input" / top / inside.format(run_name(config)), 3)
    copy_at(tmp_path / "input" / top / "runs" / "another-run", 9)
    assert copies_of(config, kaggle) == [copy]
    mirrored = config.model_copy(update={"mirror_dir": str(tmp_path / "disk")})
    assert copies_of(mirrored, kaggle) == [mirror_folder(mirrored, kaggle), copy]


def test_elsewhere_the_mirror_is_the_only_copy(tmp_path, capsys):
    "And where there is none, nothing is said about it a second time."
    assert copies_of(Config(), HERE) == []
    assert copies_of(Config(mirror_dir="drive"), HERE) == []
    assert copies_of(Config(mirror_dir=str(tmp_path)), HERE) == [tmp_path / run_name(Config())]
    assert capsys.readouterr().out == ""


# How long


@pytest.mark.parametrize(
    ("place", "environ", "hours"),
    [
        (COLAB, {}, 11.5),
        (COLAB, {"TPU_WORKER_ID": "0"}, 11.5),
        (KAGGLE, {}, 11.5),
        (KAGGLE, {"TPU_WORKER_ID": "0"}, 8.5),
        (KAGGLE, {"TPU_ACCELERATOR_TYPE": "v5e-8"}, 8.5),
        (HERE, {}, float("inf")),
        (HERE, {"TPU_NAME": "mine"}, float("inf")),
    ],
)
def test_a_session_ends_before_the_service_ends_it(place, environ, hours):
    "Half an hour is left to score the kept epoch and to copy; what is asked for goes first."
    assert session_hours(Config(), place, environ) == hours
    assert session_hours(Config(max_hours=0.1), place, environ) == 0.1


def test_the_age_of_a_session_is_that_of_its_process(monkeypatch):
    "Imports count, and the clock on the wall may jump to and fro."
    program = "import time; time.sleep(0.3); from mshnet.places import session_seconds as s; "
    jump = "t = time.time; time.time = lambda: t() - 1e6; a = s(); print(0.25 < a < 100, s() >= a)"
    ended = subprocess.run([sys.executable, "-c", program + jump], capture_output=True, text=True)
    assert ended.stdout.split() == ["True", "True"], ended.stderr


def test_without_proc_the_age_is_counted_from_the_import(monkeypatch):
    "A Mac, and Windows."

    def none(self, *_, **__):
        raise FileNotFoundError(self)

    monkeypatch.setattr(Path, "read_text", none)
    monkeypatch.setattr(places, "IMPORTED", time.monotonic() - 1000)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert 1000 <= session_seconds() < 2000


def test_an_age_is_never_less_than_the_time_since_the_import(monkeypatch):
    "A container may have an uptime of its own, and its processes the starts of the machine."
    texts = {"/proc/uptime": "5.0 5.0", "/proc/self/stat": f"1 (a) {'9000000 ' * 30}"}
    monkeypatch.setattr(Path, "read_text", lambda self, *_, **__: texts[str(self)])
    monkeypatch.setattr(places, "IMPORTED", time.monotonic() - 1000)
    assert 1000 <= session_seconds() < 2000


def test_run_files_of_a_folder_that_is_not_there(tmp_path):
    "The mirror may begin before the run has written."
    assert run_files(tmp_path / "none") == []
    disk = Disk(tmp_path / "none", tmp_path / "drive")
    assert "all 0 files" in disk.mirror.flush(60) and not (tmp_path / "drive").exists()
