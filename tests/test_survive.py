"What a run survives: signals, budgets, faults of memory, numbers, images, disks and checkpoints."

import contextlib
import dataclasses
import errno
import json
import os
import pty
import random
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from functools import cache, partial
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from conftest import TINY, full, make_dataset, refused, tiny, until_it_trains
from torch import nn
from warm import Python, own_terminal

from mshnet import run as run_module
from mshnet.cli import main
from mshnet.core import UserError, run_name
from mshnet.detection import Detection
from mshnet.device import device_for, open_device
from mshnet.files import write_atomic
from mshnet.places import COLAB, KAGGLE
from mshnet.recipe import Config
from mshnet.run import Folder, Interrupted, State, Stop, Stopped, read_checkpoint, write_checkpoint
from mshnet.task import chosen_by, predictions, score_split, trained_model
from mshnet.train import Job, Losses, beginning, train, train_step
from mshnet.weights import checksum

tiny = partial(tiny, batch_size=2)  # epochs of four steps


class Small(Detection):
    "A task that trains in no time, with all that a run must keep: batch norm, Adagrad's sums."

    at, then = 0, staticmethod(lambda: None)  # step in which something is done, counted from 1
    steps = 0

    def model(self):
        "One layer and its batch norm."
        torch.manual_seed(self.config.seed)
        return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Conv2d(4, 1, 1))

    def predict(self, model, batch, phase):
        "Bright or not."
        return model(batch.image.float() / 255).float()

    def loss(self, model, batch, phase):
        "Cross entropy with the mask; before it, what this task was told to do."
        self.steps += 1
        if self.steps == self.at:
            self.then()
        logits = self.predict(model, batch, phase)
        return nn.functional.binary_cross_entropy_with_logits(logits, batch.mask.float())


class Dice(Small):
    "A task whose loss throws dice of every kind."

    def loss(self, model, batch, phase):
        "A loss with three random weights."
        weight = torch.rand(1).item() + np.random.rand() + random.random() + np.random.randn()
        return super().loss(model, batch, phase) * weight


class Drawn(Small):
    "A task whose batches throw dice."

    def batch(self, data, rows, epoch):
        "Training images, darker by chance."
        batch = super().batch(data, rows, epoch)
        return batch._replace(image=batch.image // torch.randint(1, 5, (), dtype=torch.uint8))


def run_it(config, kind=Small, at=0, then=None):
    "Train a task that does something in a step."
    task = kind(config)
    task.at, task.then = at, then
    return train(config, task)


def ask(number=signal.SIGTERM, times=1):
    "What sends this process a signal."
    return lambda: [signal.raise_signal(number) for _ in range(times)]


def result(folder):
    "All a run ends with: one sum for both sets of weights, optimizer and places; its losses."
    content = read_checkpoint(folder / "last.pt")
    names = ("model", "trained", "optimizer", "scaler", "epoch", "phase", "best", "step", "total")
    losses = [entry["loss"] for entry in Folder(folder).history()]
    return checksum({name: content[name] for name in names}), losses


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    "How an undisturbed run of a task ends; each is trained once."
    place = tmp_path_factory.mktemp("whole")
    return cache(lambda kind: result(run_it(tiny(place / kind.__name__), kind).folder))


def status(folder):
    "What status.json says."
    return json.loads((folder / "status.json").read_text())


WAYS = {
    "clipped": (Small, {"clip_grad": 0.01}),
    "drawn in the batch": (Drawn, {}),
    "fp16": (Small, {"precision": "fp16"}),
    "in parts": (Dice, {"batch_size": 4, "micro_batch": 3, "scenes": 16}),
    "streamed by threads": (Dice, {"num_workers": 2, "deterministic": True}),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_run_stopped_within_an_epoch_ends_as_if_it_had_not_been(tmp_path, way):
    "The same weights, optimizer and losses to the last bit."
    kind, changes = WAYS[way]
    whole = result(run_it(tiny(tmp_path / "whole", **changes), kind).folder)
    config = tiny(tmp_path / "stopped", **changes)
    with pytest.raises(Stopped, match="SIGTERM") as stopped:
        run_it(config, kind, 3 * (2 if config.micro_batch else 1), ask())
    assert stopped and not [t for t in threading.enumerate() if "ThreadPool" in t.name]
    assert status(tmp_path / "stopped")["epochs_done"] == 0
    run = run_it(config, kind)
    assert result(run.folder) == whole
    assert run.history[0]["begun_at_step"] == 3


def test_a_run_stopped_again_and_again_ends_as_if_it_had_not_been(tmp_path, whole):
    "After every single step; who is asked to stop in the last one has finished."
    config, stops = tiny(tmp_path / "run"), 0
    while stops < 20:
        try:
            run = run_it(config, Dice, 1, ask(signal.SIGHUP))
            break
        except Stopped:
            stops += 1
            assert status(tmp_path / "run")["epochs_done"] == stops // 4
    assert (stops, run.ended) == (11, "all epochs done")
    assert result(run.folder) == whole(Dice)


def test_who_asks_twice_is_obeyed_at_once_and_nothing_is_lost(tmp_path, whole):
    "In the middle of a step: what is on the disk is the last place that was whole."
    config = tiny(tmp_path / "run")
    for step, done in ((3, 0), (6, 1), (6, 2)):  # the sixth step that is trained
        task = Dice(config)
        task.at, task.then = step, ask(signal.SIGINT, 2)
        with pytest.raises(KeyboardInterrupt, match="SIGINT"):
            train(config, task)
        assert task.steps == step
        told = status(tmp_path / "run")
        assert (told["state"], told["reason"], told["epochs_done"]) == ("stopped", "SIGINT", done)
        assert not (tmp_path / "run" / "scores.json").exists()  # it was of other weights
        if done:
            (tmp_path / "run" / "scores.json").write_text("{}")
    assert result(run_it(config, Dice).folder) == whole(Dice)


def test_listening_ends_with_the_run(tmp_path):
    "Whatever ended it, signals do afterwards what they did before."
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(n) for n in numbers]
    run_it(tiny(tmp_path / "a", epochs=1))
    with pytest.raises(Stopped):
        run_it(tiny(tmp_path / "b", epochs=1), at=1, then=ask())
    assert [signal.getsignal(n) for n in numbers] == before


QUICK = TINY | {"batch_size": 8, "scenes": 8, "lr": 0.05, "log_every": 1}
FLAGS = [f"--{k.replace('_', '-')}={v}" for k, v in QUICK.items()]


def start(folder, *more, **how):
    "A real `mshnet train` with its folder."
    return Python("-m", "mshnet", "train", *FLAGS, f"--output-dir={folder}", *more, **how)


@contextlib.contextmanager
def ended(*processes):
    "End processes whatever happens."
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_a_signal_stops_a_command_which_then_goes_on(tmp_path, monkeypatch):
    "SIGTERM, SIGHUP, Ctrl-C: checkpoint, scores, the line that goes on, the status of shells."
    numbers = {"SIGTERM": 143, "SIGHUP": 129, "SIGINT": 130}
    runs = {name: start(tmp_path / name, "--epochs=400") for name in numbers}
    with ended(*runs.values()):
        for name, process in runs.items():
            until_it_trains(tmp_path / name)
            process.send_signal(getattr(signal, name))
        for name, process in runs.items():
            out, err = process.communicate(timeout=600)
            assert (process.returncode, "Traceback" in err) == (numbers[name], False), err
            assert err.splitlines()[-1] == "mshnet: stopped; run the same command again to resume"
            told, folder = status(tmp_path / name), tmp_path / name
            assert (told["state"], told["reason"]) == ("stopped", name)
            assert told["epochs_done"] >= 1
            assert folder.joinpath("scores.json").exists()
            assert f"stopped  {name}; its checkpoint is written. Run the same command again" in out
            assert folder.joinpath("train.log").read_text().splitlines() == out.splitlines()
            assert read_checkpoint(folder / "last.pt")["epoch"] + 1 == told["epochs_done"]
    monkeypatch.setattr(Detection, "report", lambda *_: None)  # pictures
    last = f"--epochs={status(tmp_path / 'SIGTERM')['epochs_done'] + 1}"
    assert main(["train", *FLAGS, last, f"--resume={tmp_path / 'SIGTERM'}"]) == 0
    assert status(tmp_path / "SIGTERM")["state"] == "finished"


EARLY = """
import signal, sys

class Ask:
    def find_spec(self, name, *_):
        if name == "{module}":
            signal.raise_signal(signal.{signal})

sys.meta_path.insert(0, Ask())
from mshnet.__main__ import start
sys.exit(start())
"""


@pytest.mark.parametrize(
    ("module", "name", "number", "line"),
    [
        ("pydantic", "SIGINT", 130, "mshnet: stopped before anything was begun"),
        ("torch", "SIGTERM", 143, "mshnet: stopped; run the same command again to resume"),
        ("mshnet.train", "SIGHUP", 129, "mshnet: stopped; run the same command again to resume"),
    ],
)
def test_a_signal_before_a_run_listens_is_one_line(tmp_path, module, name, number, line):
    "While Python imports: at once, with the status of shells, and without a trace on the disk."
    program = EARLY.format(module=module, signal=name)
    words = [sys.executable, "-c", program, "train", *FLAGS, f"--output-dir={tmp_path / 'run'}"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout, done.stderr) == (number, "", f"{line}\n")
    assert list(tmp_path.iterdir()) == []


def test_a_signal_before_the_first_step_leaves_the_run_as_it_was(tmp_path, monkeypatch):
    "Its status too: no process is at work that would be `running`."
    run_it(tiny(tmp_path / "run", epochs=1))
    before = {p.name: p.read_bytes() for p in (tmp_path / "run").glob("*.*")}
    monkeypatch.setattr("mshnet.train._begin_session", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        run_it(tiny(tmp_path / "run", epochs=1, log_every=2))
    assert {p.name: p.read_bytes() for p in (tmp_path / "run").glob("*.*")} == before


def test_a_run_whose_terminal_is_gone(tmp_path):
    "nohup: it finishes. A pipe that nobody reads: it finishes. Neither: it stops and is whole."
    told, tell = os.pipe()
    master, terminal = pty.openpty()
    deaf = partial(signal.signal, signal.SIGHUP, signal.SIG_IGN)
    nohup = start(tmp_path / "nohup", first=deaf)
    words = ["train", *FLAGS, f"--output-dir={tmp_path / 'pipe'}"]
    pipe = subprocess.Popen([sys.executable, "-m", "mshnet", *words], stdout=tell, stderr=tell)
    name = os.ttyname(terminal)
    closed = start(tmp_path / "closed", "--epochs=400", first=own_terminal, outputs=(name, name))
    os.close(tell), os.close(told), os.close(terminal)
    with ended(nohup, pipe, closed):
        until_it_trains(tmp_path / "nohup")
        nohup.send_signal(signal.SIGHUP)
        until_it_trains(tmp_path / "closed")
        while select.select([master], [], [], 0)[0]:
            os.read(master, 10_000)
        os.close(master)
        _, err = nohup.communicate(timeout=600)
        assert (nohup.returncode, status(tmp_path / "nohup")["state"]) == (0, "finished"), err
        pipe.wait(600)
        assert status(tmp_path / "pipe")["state"] == "finished"
        assert (tmp_path / "pipe" / "figures" / "learning.png").exists()
        lines = [(tmp_path / name / "train.log").read_text() for name in ("pipe", "nohup")]
        assert [len(re.findall("(?m)^epoch ", text)) for text in lines] == [3, 3]
        scores = Folder(tmp_path / "pipe").read_json("scores.json")
        assert lines[0].splitlines()[-1] == scores["line"]
        assert pipe.returncode in (0, 141)
        assert closed.wait(600) == 129
        assert status(tmp_path / "closed")["reason"] == "SIGHUP"


def test_two_runs_in_one_folder(tmp_path, capsys):
    "The second is refused while the first trains; one that was killed leaves no lock."
    folder, first = tmp_path / "run", start(tmp_path / "run", "--epochs=400")
    words = ["train", *FLAGS, f"--output-dir={folder}"]
    with ended(first):
        until_it_trains(folder)
        assert "another process works in this folder" in refused(capsys, *words)
        assert first.returncode is None
        first.kill()
    done = Folder(folder).history()[-1]["epoch"] + 1
    config = Config(**QUICK | {"epochs": done + 1, "output_dir": str(folder)})
    assert len(train(config).history) == done + 1


def clock_ahead():
    "The time module with a monotonic clock that can be put `ahead` by seconds."
    clock = Mock(wraps=time, ahead=0.0)
    clock.monotonic = lambda: time.monotonic() + clock.ahead
    return clock


def test_a_session_ends_before_its_time_with_all_in_place(tmp_path, monkeypatch, capsys, whole):
    "Scores, mirror, the line that goes on; and that line goes on to the same end."
    clock, mirror = clock_ahead(), tmp_path / "drive"
    monkeypatch.setattr(run_module, "time", clock)
    config = tiny(tmp_path / "run", max_hours=10, mirror_dir=str(mirror))
    run = run_it(config, at=6, then=lambda: setattr(clock, "ahead", 36_000.0))
    assert run.ended == "the session's 10 hours are over"
    told, said = status(run.folder), capsys.readouterr().out
    assert (told["state"], told["reason"], told["epochs_done"]) == ("stopped", run.ended, 1)
    assert told["results"] == str(run.folder)
    assert run.scores["protocol"]["chosen"] == "epoch 0, the last"
    going, kept = said.splitlines()[-2:]
    assert going.startswith("stopped  ") and going.endswith("Run the same command again to resume")
    assert kept.startswith("mirror  all") and str(mirror / "run") in kept
    for name in ("last.pt", "best.pt", "status.json", "scores.json", "log.jsonl", "train.log"):
        assert (mirror / "run" / name).read_bytes() == (run.folder / name).read_bytes(), name
    clock.ahead = 0.0
    again = run_it(config.model_copy(update={"output_dir": "", "resume": str(run.folder)}))
    assert again.folder == run.folder
    assert (result(run.folder), status(run.folder)["state"]) == (whole(Small), "finished")


def test_no_time_at_all_is_one_step_and_no_error(tmp_path, capsys, monkeypatch):
    "Each session takes the run a step further, and its status stops `train && next` till the end."
    monkeypatch.setattr(Detection, "report", lambda *_: None)  # pictures
    words = ["train", *FLAGS, "--batch-size=4", f"--output-dir={tmp_path / 'run'}"]
    with monkeypatch.context() as there:
        there.setattr("mshnet.train.where", lambda: COLAB)
        assert main([*words, "--epochs=1", "--max-hours=1e-6"]) == 75
    content = read_checkpoint(tmp_path / "run" / "last.pt")
    assert (content["epoch"], content["step"]) == (-1, 1)
    with pytest.raises(UserError, match="its run was stopped in the first epoch; resume it"):
        trained_model(tmp_path / "run" / "last.pt")
    said, end = capsys.readouterr().out, "download the run. Run the same command again to resume"
    assert f"over; Colab deletes this disk: {end}" in said
    assert not (tmp_path / "run" / "scores.json").exists()
    assert main([*words, "--epochs=1"]) == 0
    monkeypatch.setattr("mshnet.train.where", lambda: KAGGLE)
    assert main([*words, "--epochs=2", "--max-hours=1e-6"]) == 75  # although there are scores
    assert (
        "is written; in a new session first attach its saved output. Run" in capsys.readouterr().out
    )


def test_hours_of_a_run_count_from_its_beginning(tmp_path, monkeypatch):
    "Not from that of a notebook that has been open for days; those of a place do."
    monkeypatch.setattr("mshnet.places.session_seconds", lambda: 400_000.0)
    assert run_it(tiny(tmp_path / "run", max_hours=10)).finished
    begin, clock = beginning, clock_ahead()
    later = lambda job: setattr(clock, "ahead", 36_000.0) or begin(job)  # noqa: E731
    line = r"session's 10 hours are over$"
    with monkeypatch.context() as slow, pytest.raises(Stopped, match=line):
        slow.setattr("mshnet.train.time", clock)
        slow.setattr("mshnet.train.beginning", later)  # as when the data load for ten hours
        run_it(tiny(tmp_path / "slow", max_hours=10))
    monkeypatch.setattr("mshnet.places.session_hours", lambda *_: 11.5)
    for own, over in ((10, r"11\.5"), (23, "23"), (0, r"11\.5")):
        line = rf"session's {over} hours are over \(if it has more, set"
        with pytest.raises(Stopped, match=line):
            run_it(tiny(tmp_path / str(own), max_hours=own))
    assert run_it(tiny(tmp_path / "long", max_hours=120)).finished  # a session of 120 hours


def test_a_run_killed_between_log_and_checkpoint_repeats_the_epoch_and_marks_it(
    tmp_path, monkeypatch
):
    "The log is written first, so nothing is lost."
    config = tiny(tmp_path / "run", epochs=1)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("mshnet.train.snapshot", Mock(side_effect=KeyboardInterrupt))
        run_it(config)
    assert [entry["repeated"] for entry in run_it(config).history] == [True]


def test_an_epoch_that_is_repeated_is_scored_again(tmp_path):
    "Its scores may be of weights that are gone; lists may have moved."
    made = make_dataset(tmp_path / "a")
    first = dict(dataset_dir=str(made), epochs=1, schedule="constant")
    run = run_it(tiny(tmp_path / "run", **first, train_list=str(made / "trainval.txt")))
    run_it(tiny(tmp_path / "run", **{**first, "epochs": 2}, train_list=str(made / "trainval.txt")))
    (run.folder / "last.pt").write_bytes(b"damaged")
    (run.folder / "scores.json").write_text('{"line": "of weights that are gone"}')
    made.rename(tmp_path / "b")
    moved = first | {"epochs": 2, "dataset_dir": str(tmp_path / "b")}
    with pytest.warns(UserWarning, match=r"last.pt: .*previous"):
        again = run_it(tiny(tmp_path / "run", **moved, train_list=str(tmp_path / "b/trainval.txt")))
    assert again.scores["line"].startswith("IoU")


def test_processes_end_with_the_one_that_started_them(monkeypatch):
    "A kernel that is restarted cannot tell them to."
    assert Stop().reason == ""
    monkeypatch.setenv("MSHNET_STARTED_BY", "1000000000")
    assert Stop().reason == "the process that started this one is gone"


def test_a_run_resumes_in_its_own_folder(tmp_path, whole):
    "Named by its folder or by last.pt; another folder or another checkpoint is refused."
    first = run_it(tiny(tmp_path / "first", epochs=1)).folder
    before = (first / "last.pt").read_bytes()
    for folder, source, line in (
        (tmp_path / "other", first, "a run resumes in its own folder, .*first; leave out"),
        ("", first / "best.pt", "use a run folder or its last.pt"),
        ("", tmp_path / "none", "none: no run to resume here"),
        ("", first, "use its settings or another --output-dir without --resume"),
    ):
        with pytest.raises(UserError, match=line):
            run_it(tiny(folder, resume=str(source), lr=1e-4))
        assert (first / "last.pt").read_bytes() == before
    for epochs, folder, source in ((2, "", first), (3, first, first / "last.pt")):
        asked = tiny(folder, resume=str(source), epochs=epochs, num_workers=3, log_every=1)
        assert len(run_it(asked).history) == epochs
    assert result(first) == whole(Small)  # threads and log lines change nothing
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("epochs", [2, 3])
def test_the_best_epoch_is_kept(tmp_path, monkeypatch, epochs):
    "By its held-out score. No later epoch need be better, and there may be none left to train."
    scores, real = iter([0.6, 0.4, 0.3]), score_split
    staged = lambda *args: dataclasses.replace(real(*args), iou=next(scores))  # noqa: E731
    monkeypatch.setattr("mshnet.train.score_split", staged)
    chosen = {"choose": "val", "val_fraction": 0.5}
    run_it(tiny(tmp_path / "a", epochs=2, **chosen))
    run = run_it(tiny(tmp_path / "a", epochs=epochs, **chosen))
    kept = run.scores["protocol"]["chosen"]
    assert kept.startswith("epoch 0, by iou") and "held-out" in kept
    assert (read_checkpoint(run.folder / "best.pt")["epoch"], len(run.history)) == (0, epochs)
    assert {e["split"] for e in run.history} == {"val"}


def test_another_precision_is_another_run(tmp_path, monkeypatch, capsys):
    "If it is left to the device, a run keeps its own; where a device lacks it, there is a line."
    run_it(tiny(tmp_path / "run", epochs=1))
    with pytest.raises(UserError, match="precision fp32 -> bf16"):
        run_it(tiny(tmp_path / "run", epochs=2, precision="bf16"))
    for epochs, precision in ((2, "auto"), (3, "fp32")):
        again = run_it(tiny(tmp_path / "run", epochs=epochs, precision=precision))
    assert [", fp32" in entry["device"] for entry in again.history] == [True] * 3
    run_it(tiny(tmp_path / "l4", precision="bf16", epochs=1))
    monkeypatch.setattr("mshnet.device.Device.fastest", lambda self: "fp32")
    run_it(tiny(tmp_path / "l4", precision="auto", epochs=2))
    assert "computes in bf16, which this chip may only emulate, slowly" in capsys.readouterr().out
    run_it(tiny(tmp_path / "cpu", precision="fp32", epochs=1))
    monkeypatch.setattr("mshnet.device.Device.fastest", lambda self: "bf16")
    run_it(tiny(tmp_path / "cpu", precision="auto", epochs=2))
    assert "with another --output-dir, computes in bf16" in capsys.readouterr().out
    run_it(tiny(tmp_path / "t4", precision="fp16", epochs=1))
    monkeypatch.setattr("mshnet.device.Device.precisions", ("bf16", "fp32"))  # those of a TPU
    line = "this run computes in fp16, which cpu cannot; resume it on a GPU, or begin again"
    with pytest.raises(UserError, match=line):
        run_it(tiny(tmp_path / "t4", precision="auto"))


def test_another_start_is_another_run(tmp_path):
    "With other weights, or without: else a score would be reported as that of another start."
    first = run_it(tiny(tmp_path / "first", epochs=1))
    plain = tiny(tmp_path / "run", epochs=1)
    began = tiny(tmp_path / "began", epochs=1, weight_path=str(first.folder))
    assert run_name(plain) != run_name(began)
    for config, start, line in ((plain, str(first.folder), "'' -> "), (began, "", "first -> ''")):
        run_it(config)
        with pytest.raises(UserError, match=f"weight_path .*{line}"):
            run_it(config.model_copy(update={"weight_path": start}))
    run_it(tiny(first.folder, epochs=2))
    named = {"epochs": 2, "resume": began.output_dir, "weight_path": str(first.folder / "best.pt")}
    with pytest.raises(UserError, match=r"another run .starting weights"):
        run_it(began.model_copy(update=named))
    with pytest.raises(UserError, match=r"starting weights .*--resume .* takes them"):
        run_it(began.model_copy(update={"epochs": 2}))
    assert run_it(began.model_copy(update={"epochs": 2, "resume": began.output_dir})).finished
    shutil.rmtree(first.folder)  # the checkpoint has the weights
    assert run_it(began.model_copy(update={"epochs": 3})).finished


def test_scores_without_a_checkpoint_are_not_taken_for_those_of_a_new_run(tmp_path):
    "Weights that were deleted to save room; nor are a user's own files replaced by those of a run."
    run = run_it(tiny(tmp_path / "run", epochs=1))
    steps = {"last.pt": "scores", "scores.json log.jsonl": "best", "config.json": "best.*env"}
    for gone, held in steps.items():
        for name in gone.split():
            (run.folder / name).unlink()
        with pytest.raises(UserError, match=f"holds {held}.* without a checkpoint to resume; use"):
            run_it(tiny(run.folder, epochs=1))


def test_the_status_is_whole_at_any_moment(tmp_path, monkeypatch):
    "Whoever reads it while it is written reads the one or the other, with all that belongs in it."
    seen, real = [], os.replace

    def watched(old, new):
        if new == tmp_path / "run" / "status.json":
            seen.extend(json.loads(p.read_text()) for p in (new, old) if p.exists())
        real(old, new)

    monkeypatch.setattr(os, "replace", watched)
    run_it(tiny(tmp_path / "run", mirror_dir=str(tmp_path / "drive")))
    assert {entry["state"] for entry in seen} == {"running", "finished"}
    assert all({"state", "epochs_done", "reason", "time", "results"} <= set(e) for e in seen)
    assert [e["epochs_done"] for e in seen] == sorted(e["epochs_done"] for e in seen)


class Large(Small):
    "A task that has room for few images at once."

    room = 2

    def predict(self, model, batch, phase):
        "Or a want of memory."
        if len(batch.image) > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return super().predict(model, batch, phase)


@pytest.mark.parametrize(
    ("changes", "room", "said"),
    [
        ({}, 2, "batch_size=8: does not fit .* use --batch-size 4, .* --micro-batch 4"),
        ({"micro_batch": 4}, 2, "micro_batch=4: does not fit .* use --micro-batch 2"),
        ({"micro_batch": 1}, 0, "micro_batch=1: does not fit .* a smaller --base-size"),
    ],
)
def test_a_want_of_memory_is_one_line_with_what_to_write(tmp_path, changes, room, said):
    "What was written is named, and what would be smaller."
    config = tiny(tmp_path / "run", batch_size=8, **changes)
    task = Large(config)
    task.room = room
    with pytest.raises(UserError, match=said):
        train(config, task)
    assert status(tmp_path / "run")["state"] == "failed"


def test_a_scoring_that_does_not_fit_names_what_it_takes():
    "As a training does."
    task, device = Large(tiny(batch_size=8, scenes=32)), open_device("cpu", "fp32")
    with pytest.raises(UserError, match="use --batch-size 4"):
        list(predictions(task, task.model(), task.splits()["test"], device, "full"))


def test_one_request_that_comes_twice_is_one(monkeypatch):
    "From shell and kernel, or from the system and torchrun. Ctrl-C twice is two."
    for number in (signal.SIGHUP, signal.SIGINT):
        with Stop() as stop:
            ask(number, 2)()
            assert stop.reason == number.name
            stop.asked -= 5
            with pytest.raises(Interrupted):
                ask(number)()
        for name, value in (("WORLD_SIZE", "2"), ("RANK", "0"), ("LOCAL_RANK", "0")):
            monkeypatch.setenv(name, value)


def test_a_run_that_stops_in_an_older_checkpoint_counts_its_own_epochs(tmp_path):
    "Its log is ahead of it."
    folder = run_it(tiny(tmp_path / "run")).folder
    shutil.copy(folder / "previous.pt", folder / "last.pt")
    with pytest.raises(Stopped):
        run_it(tiny(folder), at=2, then=ask())
    assert read_checkpoint(folder / "last.pt")["epoch"] + 1 == status(folder)["epochs_done"] == 2
    assert len(Folder(folder).history()) == 3


@pytest.mark.parametrize("micro", [1, 2, 3])
def test_the_gradient_of_the_parts_is_that_of_the_batch(micro):
    "With batch norm's means held, also where the last part is smaller."
    gradients = []
    for parts in (0, micro):
        task, device = Small(tiny(batch_size=4)), open_device("cpu", "fp32")
        device.micro_batch = parts
        model = device.to_device(task.model()).eval()
        before = [p.detach().clone() for p in model.parameters()]
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        split = task.splits()["train"]
        batch = device.transfer_batch(task.batch(split, [0, 1, 2, 3], 0))
        losses = Losses(device)
        job, state = Job(task, {"train": split}, device), State(model, optimizer)
        train_step(job, state, model, batch, "full", losses)
        moved = [a - b for a, b in zip(before, model.parameters(), strict=True)]
        gradients.append([losses.total, *moved])
    for whole, added in zip(*gradients, strict=True):
        torch.testing.assert_close(added, whole, rtol=1e-4, atol=1e-6)


def test_devices_share_each_part(monkeypatch):
    "As they share a batch: every one gets the same number of images."
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.broadcast_object_list", lambda values: None)
    with pytest.raises(UserError, match="micro_batch=3 cannot be shared by 2 devices: use 2 or"):
        device_for(tiny(batch_size=4, micro_batch=3))


class Nan(Small):
    "A task whose loss is no number in one step."

    def loss(self, model, batch, phase):
        "NaN when it is time."
        loss = super().loss(model, batch, phase)
        return loss * (torch.nan if self.steps == 7 else 1)


def test_a_loss_that_is_no_number_names_its_batch_and_keeps_the_last_good_epoch(tmp_path):
    "The third step of the second epoch; also when it is noticed only at the epoch's end."
    before = run_it(tiny(tmp_path / "before", epochs=1)).folder
    for folder, every in ((tmp_path / "a", 20), (tmp_path / "b", 1)):
        config = tiny(folder, log_every=every)
        task = Nan(config)
        with pytest.raises(UserError, match="epoch 1, step 2: the loss is NaN or infinite; images"):
            train(config, task)
        reason = status(folder)["reason"]
        assert "checkpoint is kept; begin a new run " in reason and "precision" not in reason
        split = task.splits()["train"]
        assert all(split.names[i] in reason for i in task.plan(split, 1)[2])
        assert result(folder) == result(before)
        assert status(folder)["state"] == "failed"
        assert len(run_it(config, type("Nan", (Small,), {})).history) == 3  # mended, it goes on


def test_weights_that_are_no_numbers_are_one_line(tmp_path, capsys):
    "In the scoring of an epoch and in mshnet test."

    def spoil(model):
        with torch.no_grad():
            next(model.parameters()).fill_(torch.nan)

    class Spoiled(Small):
        def predict(self, model, batch, phase):
            if phase == "full" and not model.training:
                spoil(model)
            return super().predict(model, batch, phase)

    config = tiny(tmp_path / "run")
    with pytest.raises(UserError, match="the prediction is NaN or infinite"):
        train(config, Spoiled(config))
    assert status(tmp_path / "run")["state"] == "failed"
    model = Detection(config).model()
    spoil(model)
    torch.save(model.state_dict(), tmp_path / "nan.pt")
    words = [f"--weight-path={tmp_path / 'nan.pt'}", "--device=cpu", "--scenes=8"]
    assert "the prediction is NaN or infinite" in refused(capsys, "test", *words, "--base-size=32")


@pytest.fixture
def images(tmp_path):
    "A small data set, and how one of its files is damaged and mended."
    folder = make_dataset(tmp_path / "data", train=8, test=2)
    file = folder / "images" / "train_3.png"
    good = file.read_bytes()
    return folder, lambda: file.write_bytes(good[:60]), lambda: file.write_bytes(good)


def streamed(tmp_path, name="run", **changes):
    "A run on images that stay in their files."
    config = {"dataset_dir": str(tmp_path / "data"), "cache": "stream"}
    return tiny(tmp_path / name, **config | changes)


def test_an_image_damaged_in_the_middle_stops_the_run_until_it_is_mended(tmp_path, images):
    "It is named; the same command goes on to the same end."
    _, damage, mend = images
    whole = result(run_it(streamed(tmp_path, "whole")).folder)
    line = "train_3: unreadable image in images/; repair the file and run"
    with pytest.raises(UserError, match=line):
        run_it(streamed(tmp_path), at=5, then=damage)
    assert "train_3" in status(tmp_path / "run")["reason"]
    mend()
    assert result(run_it(streamed(tmp_path)).folder) == whole


def test_a_run_whose_image_was_damaged_is_another_run(tmp_path, images):
    "Left out on request, but not of a run that has learned from it; mended, that run resumes."
    folder, damage, mend = images
    config = tiny(tmp_path / "run", dataset_dir=str(folder), log_every=1)
    with pytest.raises(Stopped):
        run_it(config, at=6, then=ask())
    damage()
    with pytest.raises(UserError, match="repair it, or use --on-bad-image skip"):
        run_it(config)
    skipping = config.model_copy(update={"on_bad_image": "skip"})
    refused = pytest.raises(UserError, match=r"holds another run .*train data")
    with pytest.warns(UserWarning, match="skipped: unreadable image"), refused:
        run_it(skipping)
    mend()
    assert run_it(config).finished


def test_a_bad_image_at_the_start(tmp_path, images, capsys):
    "Listed with what leaves it out; left out and counted; a wrong list is never left out."
    folder, damage, _ = images
    damage()
    words = ["train", *FLAGS, f"--dataset-dir={folder}", f"--output-dir={tmp_path / 'run'}"]
    line = refused(capsys, *words)
    assert "train_3" in line and "--on-bad-image skip" in line
    assert not (tmp_path / "run").exists()
    assert main(["data", str(folder)]) == 2 and "unreadable image" in capsys.readouterr().out
    config = streamed(tmp_path, on_bad_image="skip", batch_size=7, epochs=1)
    with pytest.warns(UserWarning, match=r"skipped: unreadable image in images/: 1 \(train_3\)"):
        names = Small(config).splits()["train"].names
    assert names == tuple(f"train_{i}" for i in (0, 1, 2, 4, 5, 6, 7))
    (folder / "test.txt").write_text("")
    with pytest.raises(UserError, match="list without names"):
        run_it(config)
    for file in (folder / "images").iterdir():
        file.write_bytes(b"no image")
    (folder / "test.txt").write_text("test_0\n")
    with warnings.catch_warnings(), pytest.raises(UserError, match="no train image can be read"):
        warnings.simplefilter("ignore")
        run_it(config)


@pytest.mark.parametrize("at", [6, 8])  # within an epoch, and between two
def test_a_disk_that_is_full_when_a_run_is_stopped_is_said(tmp_path, monkeypatch, capsys, at):
    "The promise of a checkpoint is not made; what was complete before is there."
    write, config = run_module.write_checkpoint, tiny(tmp_path / "run")

    def fills_up(content, *paths):
        if content["epoch"] * 4 + content["step"] + 4 >= at:
            full()
        write(content, *paths)

    monkeypatch.setattr("mshnet.train.write_checkpoint", fills_up)
    with pytest.raises(OSError, match="No space left"):
        run_it(config, at=at, then=ask())
    assert "its checkpoint is written" not in capsys.readouterr().out
    assert status(tmp_path / "run")["state"] == "failed"
    assert read_checkpoint(tmp_path / "run" / "last.pt")["epoch"] == at // 4 - 1 - (at == 8)


def test_a_folder_that_cannot_be_made_or_vanishes_is_one_line(tmp_path, capsys):
    "With status 2. But a full train.log ends no run: what is printed is no part of it."
    (tmp_path / "file").write_text("")
    said = refused(capsys, "train", *FLAGS, f"--output-dir={tmp_path / 'file' / 'run'}")
    assert "cannot be written (Not a directory)" in said
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "train.log").symlink_to("/dev/full")
    assert run_it(tiny(tmp_path / "run", epochs=1)).ended == "all epochs done"
    with pytest.raises(UserError, match="cannot be written"):
        run_it(tiny(tmp_path / "run"), at=2, then=lambda: shutil.rmtree(tmp_path / "run"))


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK])
def test_a_disk_without_locks_is_warned_of_and_trained_on(tmp_path, monkeypatch, number):
    "And no file is left that a later run would take for a lock."
    monkeypatch.setattr("fcntl.flock", Mock(side_effect=OSError(number, os.strerror(number))))
    for epochs in (1, 2):
        with pytest.warns(UserWarning, match="a disk without locks"):
            run_it(tiny(tmp_path / "run", epochs=epochs))


@pytest.mark.parametrize("name", ["fsync", "replace"])
def test_a_disk_that_fills_up_ends_the_run_and_nothing_is_lost(tmp_path, monkeypatch, whole, name):
    "One line with what to do; with room again it goes on to the same end."
    config = tiny(tmp_path / "run")
    error = pytest.raises(UserError, match=r"cannot be written \(No space left on device\)")
    with monkeypatch.context() as patch, error:
        run_it(config, at=10, then=lambda: patch.setattr(os, name, full))
    assert read_checkpoint(tmp_path / "run" / "last.pt")["epoch"] in (0, 1)  # 1 may be on its way
    assert result(run_it(config).folder) == whole(Small)
    assert not list((tmp_path / "run").glob(".*.tmp"))


def test_a_file_that_cannot_take_its_place_leaves_the_one_before(tmp_path, monkeypatch):
    "The first rename, which keeps the one before under another name, is undone."
    path, rename = tmp_path / "last.pt", os.replace
    path.write_text("epoch 1")

    def refuse(old, new):
        if str(old).endswith(".tmp"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        rename(old, new)

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(UserError, match="the old file is unchanged"):
        write_atomic(path, "epoch 2", previous=tmp_path / "previous.pt")
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"last.pt": "epoch 1"}


def flipped(file):
    "The content of a checkpoint with one bit of a tensor changed, for every tensor and some bits."
    good, content = file.read_bytes(), read_checkpoint(file)
    for value in [*content["model"].values(), content["optimizer"]["state"][0]["exp_avg"]]:
        pixels = bytes(value.untyped_storage())
        if len(pixels) < 16:  # may stand elsewhere in the file too
            continue
        for place, bit in ((0, 1), (len(pixels) - 1, 64)):
            bad = bytearray(good)
            bad[good.index(pixels) + place] ^= bit
            yield bytes(bad)


def test_a_bit_that_flipped_is_found_wherever_it_is(tmp_path, capsys):
    "By whoever resumes, and by mshnet test."
    run = run_it(tiny(tmp_path / "run", epochs=1))
    for bad in flipped(run.folder / "last.pt"):
        (tmp_path / "bad.pt").write_bytes(bad)
        with pytest.raises(UserError, match="damaged"):
            read_checkpoint(tmp_path / "bad.pt")
    assert "damaged" in refused(capsys, "test --device=cpu --weight-path", tmp_path / "bad.pt")


@pytest.mark.parametrize("how", ["flipped", "cut off", "missing"])
def test_the_previous_checkpoint_stands_in_for_a_damaged_one(tmp_path, whole, how):
    "With a warning; the end is the same. The damaged one is kept; a refusal changes no file."
    config, last = tiny(tmp_path / "run"), tmp_path / "run" / "last.pt"
    run_it(config.model_copy(update={"epochs": 2}))
    bad = {"flipped": lambda: last.write_bytes(next(flipped(last))), "missing": last.unlink}
    bad.get(how, lambda: os.truncate(last, 1000))()
    before = {path: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()}
    with pytest.warns(UserWarning), pytest.raises(UserError, match=r"lr .* -> 0.5"):
        run_it(config.model_copy(update={"lr": 0.5}))
    assert before == {x: x.read_bytes() for x in (tmp_path / "run").iterdir() if x.is_file()}
    with pytest.warns(UserWarning, match=r"last.pt: .* resuming from previous.pt, epoch 0"):
        run = run_it(config)
    assert result(run.folder) == whole(Small)
    damaged = run.folder / "damaged.pt"
    assert (damaged.read_bytes() if damaged.exists() else None) == before.get(last)


def test_two_damaged_checkpoints_leave_the_best_weights_as_a_start(tmp_path):
    "The line names them, and they start another run."
    config, best = tiny(tmp_path / "run", epochs=2), tmp_path / "run" / "best.pt"
    run_it(config)
    for name in ("last.pt", "previous.pt"):
        os.truncate(tmp_path / "run" / name, 1000)
    line = f"with a backup, rename .* another --output-dir, .* --weight-path {best}"
    with pytest.raises(UserError, match=line) as refused:
        run_it(config)
    assert str(refused.value).startswith(str(tmp_path / "run" / "last.pt"))
    assert len(run_it(tiny(tmp_path / "again", weight_path=str(best), epochs=1)).history) == 1


def test_checkpoints_of_the_format_before_go_on_and_of_the_next_are_refused(tmp_path, whole):
    "The first one had no place within an epoch and no checksum."
    config, last = tiny(tmp_path / "run"), tmp_path / "run" / "last.pt"
    run_it(config.model_copy(update={"epochs": 2}))
    (tmp_path / "run" / "previous.pt").unlink()
    content = read_checkpoint(last)
    newer = content["format"] + 1
    write_checkpoint(content | {"format": newer}, tmp_path / "new.pt")
    with pytest.raises(UserError, match=f"newer mshnet .format {newer}.; update mshnet"):
        read_checkpoint(tmp_path / "new.pt")
    old = {name: value for name, value in content.items() if name not in ("step", "total")}
    torch.save(old | {"format": 1, "random": torch.get_rng_state()}, last)
    assert result(run_it(config).folder) == whole(Small)
    torch.save(content, tmp_path / "bare.pt")
    with pytest.raises(UserError, match="damaged"):  # this format has a checksum
        read_checkpoint(tmp_path / "bare.pt")


def test_a_run_with_a_retired_recipe_is_refused_by_its_name(tmp_path):
    "Its rates would be others from here on; a run with the usual value resumes."
    config = tiny(tmp_path / "run", epochs=3)
    run_it(config.model_copy(update={"epochs": 2}))
    last = tmp_path / "run" / "last.pt"
    content = read_checkpoint(last)
    content["config"]["lr_rule"] = "sqrt"
    torch.save(content | {"checksum": checksum(content)}, last)
    with pytest.raises(UserError, match="lr_rule sqrt, a setting of before"):
        run_it(config)
    content["config"]["lr_rule"] = "fixed"
    torch.save(content | {"checksum": checksum(content)}, last)
    assert run_it(config).finished


def test_the_scores_of_a_finished_run_outlive_its_best_epoch(tmp_path):
    "A file that is damaged later changes no number; that of the last epoch is written again."
    for choose in ("test", "last"):
        config = tiny(tmp_path / choose, choose=choose)
        before, best = run_it(config).scores, tmp_path / choose / "best.pt"
        os.truncate(best, 1000)
        assert run_it(config).scores == before
    assert read_checkpoint(best)["epoch"] == config.epochs - 1
    text = chosen_by("last", {"epoch": 2, "name": None})
    assert text.endswith("the one that was chosen is damaged")


WRITER = """
import os, sys
from functools import partial
from pathlib import Path

import mshnet
import torch

from mshnet.recipe import Config
from mshnet.device import open_device
from mshnet.run import Background, State, snapshot, write_checkpoint

model = open_device("cpu").to_device(mshnet.MSHNet())
torch.ones(1000, 1000).sum()  # so torch's own threads are there
with Background() as background:
    background.submit(lambda: None)
    background.finish()
    before = len(os.listdir("/proc/self/task"))
    state = State(model, torch.optim.AdamW(model.parameters()))
    background.submit(partial(write_checkpoint, snapshot(state, Config(), {}), Path(sys.argv[1])))
    background.finish()
    print(before, len(os.listdir("/proc/self/task")))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_the_thread_that_writes_checkpoints_gets_no_threads_of_torch(tmp_path):
    "With more threads than cores OpenMP's waiting ones sleep, and each step takes a third longer."
    line = [sys.executable, "-c", WRITER, str(tmp_path / "last.pt")]
    two = os.environ | {"OMP_NUM_THREADS": "2"}
    done = subprocess.run(line, env=two, capture_output=True, text=True, check=True)
    before, after = done.stdout.split()
    assert before == after


def test_a_run_whose_machine_is_gone_comes_back_from_its_mirror(tmp_path, capsys, whole):
    "With all that was there, and goes on to the same end; pictures are copied too."
    drive = tmp_path / "drive"
    config = tiny(tmp_path / "run", mirror_dir=str(drive))
    shutil.rmtree(run_it(config.model_copy(update={"epochs": 2})).folder)
    assert result(run_it(config).folder) == whole(Small)
    assert f"mirror  restored from {drive / 'run'}" in capsys.readouterr().out


def test_a_mirror_with_errors_changes_nothing_in_the_run(tmp_path, monkeypatch, capsys, whole):
    "What is missing, and why, stands in the last line."
    monkeypatch.setattr("mshnet.mirror.Mirror.copy", full)
    run = run_it(tiny(tmp_path / "run", mirror_dir=str(tmp_path / "drive")))
    assert (result(run.folder), run.ended) == (whole(Small), "all epochs done")
    said = capsys.readouterr().out.splitlines()[-1]
    assert "0 of 9 files" in said and "No space left" in said
    assert f"they are in {run.folder}" in said


def test_a_report_that_nobody_reads_on_is_no_traceback(tmp_path):
    "mshnet data DIR | head -1"
    folder = make_dataset(tmp_path / "data")
    told, tell = os.pipe()
    os.close(told)
    words = [sys.executable, "-m", "mshnet", "data", str(folder)]
    done = subprocess.run(words, stdout=tell, stderr=subprocess.PIPE, text=True, check=False)
    os.close(tell)
    assert (done.returncode, done.stderr) == (141, "")


def test_closed_outputs_are_no_traceback(tmp_path):
    "`>&- 2>&-`: their numbers go to no file of the run, which ends as it does elsewhere."
    words = ["train", *FLAGS, "--epochs=1", f"--output-dir={tmp_path / 'run'}"]
    shell = shlex.join([sys.executable, "-m", "mshnet", *words]) + " >&- 2>&-"
    assert subprocess.run(["sh", "-c", shell], check=False).returncode == 0
    assert status(tmp_path / "run")["state"] == "finished"
    shell = shlex.join([sys.executable, "-m", "mshnet", "train", "--epochz", "3"]) + " >&-"
    done = subprocess.run(["sh", "-c", shell], stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
