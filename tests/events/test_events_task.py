"Event cameras as a task: it trains, is scored, and recognises files."

import csv
import json
import math
from argparse import Namespace
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from conftest import ctrl_c_at_second, data_folder, refused

from mshnet.cli import main, parse
from mshnet.core import UserError, configure
from mshnet.events.events_config import EventsConfig
from mshnet.events.networks import MambaSpike, scan
from mshnet.events.recognition import Events, load_recordings
from mshnet.events.recordings import Frames
from mshnet.events.simulator import simulate
from mshnet.task import make_task
from mshnet.train import train
from mshnet.weights import load_weights

TINY = {"recordings": 40, "dt": "30ms", "width": 4, "features": 4, "d_model": 8, "layers": 1}
TINY |= {"epochs": 2, "eval_every": 1, "batch_size": 8, "device": "cpu", "log_every": 1000}
tiny = partial(EventsConfig, **TINY)  # the settings of a short run


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


def test_beta_comes_from_bin_and_tau():
    "exp(-dt / tau): the neurons forget at the same speed in bins of any width."
    for dt in ("500us", "1ms", "20ms", "0.1s"):
        config = tiny(dt=dt, tau="33ms")
        assert config.beta == pytest.approx(math.exp(-config.bin_ms / 33))
    for dataset, steps, count in (("nmnist", 300, 1_026_506), ("ntidigits", 1000, 633_131)):
        paper = configure({"task": "events", "preset": "paper", "dataset": dataset})
        assert (paper.steps, round(paper.beta, 4)) == (steps, 0.97)
        assert sum(w.numel() for w in make_task(paper).model().parameters()) == count


@pytest.mark.parametrize("preset", list(EventsConfig.presets))
def test_presets_are_possible(preset):
    "Each makes a network for a sensor; those for 128x128 fit into 64 steps or are published."
    config = EventsConfig(preset=preset, dataset="dvsgesture" if "128" in preset else "nmnist")
    with torch.device("meta"):
        count = sum(w.numel() for w in make_task(config).model().parameters())
    if preset == "sensor-128":
        assert config.steps <= 64 and count < 3e6
    if preset == "paper-128":
        assert count == 36_250_059


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--dt", "10"], "dt=10 is not possible: use a time with its unit, such as 10ms"),
        (["--dt", "1s"], "use a bin above 0 and at most time_window=300ms"),
        (["--dt", "1us"], "dt=1us is not possible: use at most 10,000 bins in a time_window"),
        (["--dt", "1.5us"], "dt=1.5us is not possible: use whole microseconds"),
        (["--tau", ""], "tau='' is not possible: use a time with its unit, such as 33ms"),
        (["--dataset", "dvsgesture"], "dataset=dvsgesture needs dataset_dir"),
        (["--pool", "3"], "pool=3"),
        (["--preset", "t4"], "is retired: use --batch-size 32 --lr 0.00424 --precision auto"),
        (["--dataset-dir", "nowhere"], "nowhere: there is no such folder"),
        (["--checkpoint", "x.pth"], "is retired: use --weight-path FILE"),
    ],
)
def test_mistakes_are_one_line(flags, line, capsys):
    "With the value and the remedy; status 2."
    assert line in refused(capsys, "train --task events --device cpu", *flags)


def test_commands_take_the_run(run, files, tmp_path, capsys, monkeypatch):
    "test, predict, export, compare, doctor."
    assert main(["test", "--weight-path", str(run.folder), "--device", "cpu"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(run)
    noisy = ["test", "--weight-path", str(run.folder), "--noise", "20", "--device", "cpu"]
    assert main(noisy) == 0 and capsys.readouterr().out.splitlines()[-1] != str(run)
    out = files / "out"
    words = f"predict --weight-path {run.folder} --output-dir {out} --device cpu".split()
    (files / "2.npz").rename(files / "2$_{$\udcba.npz")
    assert main([*words, str(files)]) == 0 and "3 recordings" in capsys.readouterr().out
    rows = list(csv.DictReader((out / "recordings.csv").read_text().splitlines()))
    assert [r["file"] for r in rows] == [f"{files}/{i}.npz" for i in (0, 1, "2$_{$\\xba")]
    arrays = np.load(out / "evidence.npz")
    assert arrays["probability"].shape == (3, 10, 10) and arrays["bin_ms"] == 30
    np.testing.assert_allclose(arrays["probability"].sum(2), 1, atol=1e-5)
    for row, curve in zip(rows, arrays["probability"], strict=True):
        when = float(row["decided_ms"])
        assert row["class"] == str(curve[-1].argmax()) and 30 <= when <= 300
        late = curve[round(when / 30) - 1 :].argmax(1)
        assert set(late.tolist()) == {int(row["class"])} and int(row["events"]) > 500
    assert len(list(out.glob("*.png"))) == 3
    ctrl_c_at_second(monkeypatch, "mshnet.events.recognition._answer")
    assert main([*words, f"--output-dir={tmp_path}/two", str(files)]) == 130  # out is no input
    assert len((tmp_path / "two/recordings.csv").read_text().splitlines()) == 2
    assert len(np.load(tmp_path / "two/evidence.npz")["probability"]) == 1
    assert main(["export", folder := str(run.folder)]) == main(["compare", folder]) == 0
    assert main(["doctor", "--task", "events", "--device", "cpu"]) in (0, 1)
    monkeypatch.delattr("mshnet.events.recognition.predict_each")  # nothing is computed in vain
    assert main([*words, "--output-dir", str(out / "recordings.csv/x"), str(files)]) == 2


def test_weights_of_another_data_set_are_refused(run, tmp_path, capsys):
    "In a test with another sensor, and in a prediction of its recordings."
    for part in ("Train", "Test"):
        folder = tmp_path / "set" / part / "arm_roll"
        folder.mkdir(parents=True)
        np.savez(folder / "0.npz", x=[100, 90], y=[100, 90], t=[0, 1000], p=[0, 1])
    words = ["--weight-path", str(run.folder), "--device", "cpu"]
    named = ["--dataset", "dvsgesture", "--dataset-dir", str(tmp_path / "set")]
    assert "trained on another data set" in refused(capsys, "test", *words, *named)
    words += ["--output-dir", str(tmp_path / "o")]
    assert main(["predict", *words, str(tmp_path / "set")]) == 2 and not (tmp_path / "o").exists()
    assert "outside of the sensor" in capsys.readouterr().err
    small = {"task": "events", "pool": "4"}  # as many weights for each sensor of ten classes
    for more in ({"dataset": "cifar10dvs"}, {"dt": "10ms"}, {"tau": "30ms"}, {"rate_window": 4}):
        model, other = (make_task(configure(small | each)) for each in ({}, more))
        with pytest.raises(UserError, match=r"trained on another data set, .*, dt or tau; use"):
            other.evaluate(model.model(), None, None, "full", None)


def test_data_are_described(run, tmp_path, capsys):
    "Its parts and classes; a run on them names their folder, and has its figures."
    for i, recording in enumerate(simulate(30, 0)):
        file = tmp_path / f"set/{'Test' if i < 10 else 'Train'}/{i % 10}/{i // 10}$_{{$\udcba.npz"
        file.parent.mkdir(parents=True, exist_ok=True)
        np.savez(file, **{name: getattr(recording, name) for name in "xytp"})
    folder = str(tmp_path / "set")
    assert main(["data", "--task", "events", folder]) == 0
    assert "train: 20 recordings of set (0 2, 1 2" in capsys.readouterr().out
    assert "task events has no data" in refused(capsys, "data --task events --write", folder)
    config = tiny(denoise="9ms", dataset_dir=folder, epochs=1, output_dir=f"{tmp_path}/runs/run")
    protocol = (own := train(config)).scores["protocol"]
    (tmp_path / "set").rename(tmp_path / "moved")
    moved = config.model_copy(update={"dataset_dir": str(tmp_path / "moved")})
    Events(moved).report(own.folder)  # confusions, rasters, and their evidence on one sheet
    names = sorted(path.name.split("-")[-1] for path in (own.folder / "figures").iterdir())
    assert names.count("raster.png") == 3 and {"confusion.png", "gallery.png"} < set(names)
    assert (protocol["data"], protocol["denoise_ms"], len(protocol["content"])) == ("set", 9, 12)
    assert not {"content", "denoise_ms"} & run.scores["protocol"].keys()  # split_hash has the first
    assert list((tmp_path / "runs/frames_cache").glob("*.frames"))


def test_published_files_load(tmp_path):
    "With settings of neurons among the weights, and a Namespace beside them; beta must agree."
    sizes = {"shape": (2, 12, 12), "width": 4, "features": 8, "d_model": 16, "layers": 1}
    model, again = MambaSpike(**sizes), MambaSpike(**sizes)
    state = model.state_dict() | {"spiking_frontend.lif1.beta": torch.tensor(0.97)}
    content = {"model_state_dict": state, "args": Namespace(lr=1e-3), "epoch": 3, "acc": 0.9}
    torch.save(content, tmp_path / "checkpoint_best.pth")
    load_weights(again, tmp_path / "checkpoint_best.pth")
    assert all(map(torch.equal, again.parameters(), model.parameters()))
    with pytest.raises(ValueError, match=r"neurons have beta 0.97, the settings 0.717; set --tau"):
        load_weights(MambaSpike(beta=0.717, **sizes), tmp_path / "checkpoint_best.pth")
    parse(["test", "x.pth", "--task", "events", "--preset", "paper-128", "--tau", "328ms"])
    state["norm.lif"] = torch.ones(1)
    torch.save(content, tmp_path / "other.pth")
    with pytest.raises(ValueError, match=r"norm.lif is \(1,\) in the file, missing"):
        load_weights(again, tmp_path / "other.pth")


def test_a_preset_names_the_network_of_published_weights(run, tmp_path, capsys):
    "They record no settings; a run has its own, and then the preset has no effect."
    simple = "test --task events --device cpu --batch-size 50"
    state = Events(EventsConfig(preset="quick")).model().state_dict()
    torch.save(state, tmp_path / "published.pth")
    assert not main(f"{simple} --preset quick --weight-path {tmp_path}/published.pth".split())
    assert "how they were chosen: not known" in capsys.readouterr().out
    assert main(f"{simple} --weight-path {tmp_path}/published.pth".split()) == 2
    said = refused(capsys, f"{simple} --preset quik --weight-path {tmp_path}/published.pth")
    assert "did you mean 'quick'?" in said
    assert not main(f"{simple} --preset quick --weight-path {run.folder}".split())
    assert "preset is not used" in capsys.readouterr().err


@pytest.mark.parametrize("steps", [1, 2, 3, 16, 17, 300])
def test_the_scan_is_the_loop(steps):
    "Values and gradients, for every number of steps, squares or not."
    torch.manual_seed(steps)
    a, b = torch.rand(steps, 2, 5, requires_grad=True), torch.randn(steps, 2, 5, requires_grad=True)
    found, h = [], torch.zeros(2, 5)
    for step in range(steps):
        h = a[step] * h + b[step]
        found.append(h)
    want, have = torch.stack(found), scan(a, b)
    assert (want - have).abs().max() < 1e-5
    weight = torch.randn(steps, 2, 5)
    grads = [torch.autograd.grad((x * weight).sum(), [a, b]) for x in (want, have)]
    assert all((g - h).abs().max() < 1e-5 * steps for g, h in zip(*grads, strict=True))


def test_half_precision_computes_the_recurrences_in_float32():
    "Spikes and states are those of float32 but for what the convolutions round."
    torch.manual_seed(0)
    model = MambaSpike((2, 20, 20), 10, 8, 8, 16, 1)
    x = torch.poisson(torch.full((2, 8, 2, 20, 20), 0.4))
    with torch.no_grad():
        want = model.look(x).spikes[0]
        with torch.autocast("cpu", torch.bfloat16):
            seen = model.look(x)
    assert {s.dtype for s in seen.spikes} == {torch.float32}
    assert (seen.spikes[0] != want).float().mean() < 0.02
    with torch.autocast("cpu", torch.bfloat16):
        model(x).sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.nightly
def test_simulated_digits_are_recognised(tmp_path):
    "At least 94% in half a minute of a CPU; 0.5 to 20% of the neurons fire in a bin."
    config = EventsConfig(preset="quick", device="cpu", output_dir=str(tmp_path / "run"))
    scores = train(config).scores["scores"]
    assert scores["accuracy"] >= 0.94
    assert all(0.005 < scores[f"spike_rate_{i}"] < 0.2 for i in (1, 2, 3))


@pytest.mark.nightly
def test_real_digits_are_recognised_better_than_without_a_network(tmp_path):
    "On held-out training recordings, in 8 of the 20 epochs; the test list is not touched."
    where = {"dataset_dir": str(data_folder("nmnist-small")), "output_dir": str(tmp_path / "run")}
    config = EventsConfig(choose="val", epochs=8, device="cpu", **where)
    task = Events(config)
    parts = task.splits(["train"])
    task.splits = lambda names=(): {**parts, "test": parts["val"]}
    scores = train(config, task).scores["scores"]
    assert scores["accuracy"] > 0.9 and scores["samples"] == 199
