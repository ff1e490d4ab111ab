"Event cameras as a task: it trains, resumes, is shared by processes, and recognises files."

import csv
import json
import math
import os
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import SHARED, train_and_kill, train_in_two_processes

from mshnet.cli import main
from mshnet.core import configure
from mshnet.events.events_config import EventsConfig
from mshnet.events.recognition import Events, load_recordings
from mshnet.events.recordings import Frames
from mshnet.events.simulator import simulate
from mshnet.run import load
from mshnet.task import make_task, trained_task
from mshnet.train import train

TINY = {"recordings": 40, "dt": "30ms", "width": 4, "features": 4, "d_model": 8, "layers": 1}
TINY |= {"epochs": 2, "eval_every": 1, "batch_size": 8, "device": "cpu", "log_every": 1000}


def tiny(**more):
    "The settings of a short run."
    return EventsConfig(**TINY | more)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    "A finished run, whose epoch was chosen on held-out recordings."
    return train(tiny(choose="val", output_dir=str(tmp_path_factory.mktemp("events") / "run")))


@pytest.fixture
def files(tmp_path):
    "Three recordings."
    folder = tmp_path / "files"
    folder.mkdir()
    for i, recording in enumerate(simulate(3, 5)):
        np.savez(folder / f"{i}.npz", **{name: getattr(recording, name) for name in "xytp"})
    return folder


def refused(words, line, capsys):
    "Status 2 and one line that holds this text."
    assert main(words) == 2
    said = capsys.readouterr().err
    assert line in said and len(said.splitlines()) == 1, said


# Training


def test_a_run_is_scored_with_its_protocol(run):
    "The loss falls; the interval and the spikes; the confusion and all answers."
    assert run.history[-1]["loss"] < run.history[0]["loss"]
    scores, protocol = run.scores["scores"], run.scores["protocol"]
    assert next(iter(scores)) == "accuracy" and str(run).startswith("accuracy 0.")
    assert scores["accuracy_low"] < scores["accuracy"] < scores["accuracy_high"]
    assert all(0 <= scores[f"spike_rate_{i}"] < 1 for i in (1, 2, 3))
    assert protocol["task"] == "events" and protocol["samples"] == 200
    assert (protocol["dataset"], protocol["bin_ms"], protocol["window_ms"]) == ("nmnist", 30, 300)
    assert "a held-out part of the training list" in protocol["chosen"]
    assert {entry["split"] for entry in run.history} == {"val"}
    details = json.loads((run.folder / "details.json").read_text())
    right = sum(np.equal(details["labels"], details["predicted"]))
    assert right == np.trace(details["confusion"]) == round(200 * scores["accuracy"])
    assert np.sum(details["confusion"]) == 200


def test_a_killed_run_resumes_to_the_same_bits(run, tmp_path):
    "Within an epoch; the run is named by a pattern, and the newest that fits is taken."
    config = tiny(choose="val", output_dir=str(tmp_path / "runs/nmnist_1"))
    train_and_kill(config, step=5)  # in the second epoch
    old = tmp_path / "runs/nmnist_0/last.pt"
    old.parent.mkdir()
    old.write_bytes(b"an older run")
    os.utime(old, (1, 1))
    asked = configure({"resume": str(tmp_path / "runs/nmnist_*/last.pt"), "device": "cpu"})
    assert (asked.task, asked.resume) == ("events", str(tmp_path / "runs/nmnist_1/last.pt"))
    again = train(asked)
    mine, whole = (load(r.folder / "last.pt")["model"] for r in (again, run))
    assert all(torch.equal(value, whole[key]) for key, value in mine.items())
    assert [e["loss"] for e in again.history] == [e["loss"] for e in run.history]
    assert again.scores["scores"] == run.scores["scores"]


def test_moved_weights_are_scored_with_their_bins(run, tmp_path, capsys):
    "A checkpoint that left its folder is not binned with the default, and its task is known."
    moved = shutil.copy(run.folder / "best.pt", tmp_path)
    assert main(["test", "--weight-path", moved, "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"bin_ms +30", said) and said.splitlines()[-1].startswith(str(run)[:14])


def test_two_processes_are_one(run, tmp_path):
    "The same losses and scores, up to rounding: the model has no float buffers."
    two = train_in_two_processes(tmp_path, {"task": "events", "choose": "val"} | TINY)
    have, want = ([e["loss"] for e in x] for x in (two.history(), run.history))
    assert have == pytest.approx(want, rel=1e-3)
    have, want = two.read_json("scores.json")["scores"], run.scores["scores"]
    assert have["samples"] == want["samples"] == 200
    assert have["spikes"] == pytest.approx(want["spikes"], rel=0.01)


def test_an_answer_does_not_depend_on_its_batch(run):
    "Alone, with others, and with filler."
    task, model = trained_task(run.folder, run.config)
    test = task.splits(["test"])["test"]
    with torch.no_grad():
        whole = task.predict(model.eval(), task.batch(test, list(range(8)), None), "full")
        alone = task.predict(model, task.batch(test, [3, -1], None), "full")
    assert (whole["evidence"][3] - alone["evidence"][0]).abs().max() < 1e-5
    assert whole["spikes"][3].tolist() == alone["spikes"][0].tolist()


def test_weight_decay_is_kept_off_time_constants():
    "Of A_log and D; all other weights shrink."
    task = Events(tiny(weight_decay=0.5, lr=0.1))
    model = task.model()
    groups = task.optimizer(model).param_groups
    free = {id(w) for w in groups[1]["params"]}
    names = {name for name, w in model.named_parameters() if id(w) in free}
    assert names == {f"mamba_blocks.0.mamba.{name}" for name in ("A_log", "D")}
    assert [group["weight_decay"] for group in groups] == [0.5, 0.0]
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))


def test_training_recordings_are_moved_and_test_recordings_are_not():
    "By at most `shift` pixels, another way in every epoch, the same way in every repetition."
    task = Events(tiny(shift=3, warp=0.0))
    data = load_recordings(task.config, ["train"])["train"]
    plain = task.batch(data, [1, 2], None).frames
    assert torch.equal(plain[0], torch.from_numpy(data.frames(1)))
    moved = [task.batch(data, [1, 2], epoch).frames for epoch in (0, 0, 1)]
    assert torch.equal(moved[0], moved[1]) and not torch.equal(moved[0], moved[2])
    wide = torch.zeros(2, 10, 2, 40, 40, dtype=torch.uint8)
    wide[..., 3:37, 3:37] = moved[0]
    shifts = [(y, x) for y in range(7) for x in range(7)]
    inner = plain[0, :, :, 6:28, 6:28]
    fits = [torch.equal(wide[0, :, :, 6 + y : 28 + y, 6 + x : 28 + x], inner) for y, x in shifts]
    assert sum(fits) == 1


def test_training_recordings_are_warped():
    "In another way in each epoch; no number of events appears that was not there."
    task = Events(tiny(shift=0, warp=0.2))
    counts = np.zeros((1, 2, 2, 35, 35), np.uint8)
    counts[..., 16:19, 16:19], counts[..., 16:19, 26:29] = 1, 2
    data = Frames("train", "set", counts, np.arange(1), [0], ["a"], "")
    found = [task.batch(data, [0], epoch).frames[0, 0, 0] for epoch in (*range(20), 0)]
    assert torch.equal(found[0], found[-1])
    for value, column, most in ((1, 17, 4), (2, 27, 8)):  # further from the middle, it moves more
        places = np.array([np.argwhere(frame.numpy() == value).mean(0) for frame in found])
        assert len(np.unique(places, axis=0)) > 10 and np.abs(places - (17, column)).max() < most
    sound = replace(data, counts=counts[..., 17:18])
    assert set(task.batch(sound, [0], 0).frames.unique().tolist()) == {0, 1}


# Settings


def test_beta_comes_from_bin_and_tau():
    "exp(-dt / tau): the neurons forget at the same speed in bins of any width."
    for dt in ("500us", "1ms", "20ms", "0.1s"):
        config = tiny(dt=dt, tau="33ms")
        assert config.beta == pytest.approx(math.exp(-config.bin_ms / 33))
    paper = configure({"task": "events", "preset": "paper"})
    assert (paper.steps, round(paper.beta, 4)) == (300, 0.97)
    assert sum(w.numel() for w in make_task(paper).model().parameters()) == 1_026_506


@pytest.mark.parametrize("preset", list(EventsConfig.presets))
def test_presets_are_possible(preset):
    "Each makes a network for a sensor; those for 128x128 fit into 64 steps or are published."
    large = "128" in preset
    config = EventsConfig(preset=preset, dataset="dvsgesture" if large else "nmnist")
    with torch.device("meta"):
        count = sum(w.numel() for w in make_task(config).model().parameters())
    if preset == "sensor-128":
        assert config.steps <= 64 and count < 3e6
    if preset == "paper-128":
        assert count == 36_250_059


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--dt", "10"], "dt='10' is not possible: use a time with its unit, such as 10ms"),
        (["--dt", "1s"], "use a bin above 0 and at most time_window=300ms"),
        (["--dataset", "dvsgesture"], "dataset=dvsgesture needs dataset_dir"),
        (["--pool", "3"], "pool=3"),
        (["--preset", "t4"], "is retired: use --batch-size 32 --lr 0.00424 --precision auto"),
        (["--dataset-dir", "nowhere"], "nowhere: there is no such folder"),
        (["--checkpoint", "x.pth"], "is retired: use --weight-path FILE"),
    ],
)
def test_mistakes_are_one_line(flags, line, capsys):
    "With the value and the remedy; status 2."
    refused(["train", "--task", "events", "--device", "cpu", *flags], line, capsys)


# Commands


def test_commands_take_the_run(run, files, tmp_path, capsys):
    "test, predict, export, compare, doctor, pack."
    assert main(["test", "--weight-path", str(run.folder), "--device", "cpu"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(run)
    noisy = ["test", "--weight-path", str(run.folder), "--noise", "20", "--device", "cpu"]
    assert main(noisy) == 0 and capsys.readouterr().out.splitlines()[-1] != str(run)
    out = tmp_path / "out"
    words = ["predict", "--weight-path", str(run.folder), "--output-dir", str(out)]
    words += ["--device", "cpu"]
    assert main([*words, str(files)]) == 0
    assert "3 recordings" in capsys.readouterr().out
    rows = list(csv.DictReader((out / "recordings.csv").read_text().splitlines()))
    assert [row["file"] for row in rows] == [(files / f"{i}.npz").as_posix() for i in range(3)]
    arrays = np.load(out / "evidence.npz")
    assert arrays["probability"].shape == (3, 10, 10) and arrays["bin_ms"] == 30
    np.testing.assert_allclose(arrays["probability"].sum(2), 1, atol=1e-5)
    for row, curve in zip(rows, arrays["probability"], strict=True):
        when = float(row["decided_ms"])
        assert row["class"] == str(curve[-1].argmax()) and 30 <= when <= 300
        late = curve[round(when / 30) - 1 :].argmax(1)
        assert set(late.tolist()) == {int(row["class"])} and int(row["events"]) > 500
    assert len(list(out.glob("*.png"))) == 3
    assert main(["export", "--weight-path", str(run.folder)]) == 0
    assert main(["compare", str(run.folder)]) == 0
    assert main(["doctor", "--task", "events", "--device", "cpu"]) in (0, 1)
    assert main(["pack", str(run.folder)]) == 0


def test_files_that_cannot_be_read_are_skipped(run, files, tmp_path, capsys):
    "With a line each and status 1; if there is no other file, status 2."
    (files / "1.npz").write_bytes(b"broken")
    out = tmp_path / "out"
    words = ["predict", "--weight-path", str(run.folder), "--output-dir", str(out)]
    words += ["--device", "cpu"]
    assert main([*words, str(files / "*.npz")]) == 1
    said = capsys.readouterr()
    assert "2 recordings, 1 skipped" in said.out and "1.npz: not a readable recording" in said.err
    refused([*words, str(files / "1.npz")], "1.npz: not a readable recording", capsys)
    shutil.copy(files / "1.npz", files / "2.npz")
    assert main([*words, str(files / "1.npz"), str(files / "2.npz")]) == 2
    assert "none of the 2 files can be read" in capsys.readouterr().err
    refused([*words, str(tmp_path / "nothing")], "there is no such file", capsys)
    refused([*words, "--tile", "64", str(files)], "task events has no option --tile", capsys)


def test_weights_of_another_data_set_are_refused(run, tmp_path, capsys):
    "In a test with another sensor, and in a prediction of its recordings."
    for part in ("Train", "Test"):
        folder = tmp_path / "set" / part / "arm_roll"
        folder.mkdir(parents=True)
        np.savez(folder / "0.npz", x=[100, 90], y=[100, 90], t=[0, 1000], p=[0, 1])
    words = ["--weight-path", str(run.folder), "--device", "cpu"]
    named = ["--dataset", "dvsgesture", "--dataset-dir", str(tmp_path / "set")]
    refused(["test", *words, *named], "trained on another data set", capsys)
    words += ["--output-dir", str(tmp_path / "o")]
    assert main(["predict", *words, str(tmp_path / "set")]) == 2
    assert "outside of the sensor" in capsys.readouterr().err


def test_data_are_described(run, tmp_path, capsys):
    "Its parts and classes; a run on them names their folder, and what their files hold."
    for i, recording in enumerate(simulate(30, 0)):
        file = tmp_path / "set" / ("Test" if i < 10 else "Train") / str(i % 10) / f"{i}.npz"
        file.parent.mkdir(parents=True, exist_ok=True)
        np.savez(file, **{name: getattr(recording, name) for name in "xytp"})
    folder = str(tmp_path / "set")
    assert main(["data", "--task", "events", folder]) == 0
    said = capsys.readouterr().out
    assert "train: 20 recordings of set (0 2, 1 2" in said
    refused(["data", "--task", "events", "--write", folder], "task events has none", capsys)
    config = tiny(dataset_dir=folder, epochs=1, output_dir=str(tmp_path / "runs/run"))
    protocol = train(config).scores["protocol"]
    assert protocol["data"] == "set" and len(protocol["content"]) == 12
    assert "content" not in run.scores["protocol"]  # of simulated recordings: split_hash has it
    assert list((tmp_path / "runs/frames_cache").glob("*.frames"))


# Measured


@pytest.mark.nightly
def test_simulated_digits_are_recognised(tmp_path):
    "At least 94% in half a minute of a CPU; 0.5 to 20% of the neurons fire in a bin."
    config = EventsConfig(preset="quick", device="cpu", output_dir=str(tmp_path / "run"))
    scores = train(config).scores["scores"]
    assert scores["accuracy"] >= 0.94
    assert all(0.005 < scores[f"spike_rate_{i}"] < 0.2 for i in (1, 2, 3))


@pytest.mark.nightly
def test_real_digits_are_recognised_better_than_without_a_network(tmp_path):
    "On held-out training recordings; the test list is not touched."
    folder = SHARED / "data" / "nmnist-small"
    if not folder.is_dir():
        pytest.skip("needs data/nmnist-small; set MSHNET_SHARED to the folder that holds data/")
    config = EventsConfig(
        dataset_dir=str(folder), choose="val", device="cpu", output_dir=str(tmp_path / "run")
    )
    task = Events(config)
    parts = task.splits(["train"])
    task.splits = lambda names=(): {**parts, "test": parts["val"]}
    scores = train(config, task).scores["scores"]
    assert scores["accuracy"] > 0.9 and scores["samples"] == 199
