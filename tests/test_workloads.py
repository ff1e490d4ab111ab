"What holds for all workloads: exact resume, and two processes that train like one."

import pytest
import torch
import warm
from conftest import same, train_and_kill

from mshnet.core import configure
from mshnet.run import Folder, read_checkpoint
from mshnet.task import trained_task
from mshnet.train import train

SHORT = {"device": "cpu", "precision": "fp32", "batch_size": 8, "eval_every": 1, "epochs": 2}
TASKS = {
    "eit": {"tanks": 16, "size": 16, "patch": 2, "width": 16, "heads": 2, "hints": 1}
    | {"samples": 2, "sampling_steps": 2},
    "events": {"recordings": 40, "dt": "30ms", "width": 4, "features": 4, "d_model": 8}
    | {"layers": 1, "choose": "val"},
    "signs": {"network": "tracks", "hidden": 16, "signs": 4, "sentences": 32, "dropout": 0.0}
    | {"epochs": 3, "buckets": 2, "scale": 8.0, "max_frames": 120, "lr": 1e-3},
}
SCRIPT = """
import sys
from test_workloads import train_all
train_all(sys.argv[1])
"""


def settings(name, folder):
    "The settings of a short run of a task."
    return configure({"task": name, **SHORT, **TASKS[name], "output_dir": str(folder)})


def train_all(folder):
    "Train each task; the runs by their task."
    return {name: train(settings(name, f"{folder}/{name}")) for name in TASKS}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    "A finished run of each task."
    return train_all(tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize(("name", "step"), [("eit", 3), ("events", 5), ("signs", 6)])
def test_a_killed_run_resumes_to_the_same_bits(runs, name, step, tmp_path):
    "Within the second epoch; the run names its task."
    train_and_kill(settings(name, tmp_path / "run"), step=step)
    asked = configure({"resume": str(tmp_path / "run/last.pt"), "device": "cpu"})
    assert asked.task == name
    again, run = train(asked), runs[name]
    mine, whole = (read_checkpoint(each.folder / "last.pt")["model"] for each in (again, run))
    assert same(mine, whole)
    assert [e["loss"] for e in again.history] == [e["loss"] for e in run.history]
    assert again.scores["scores"] == run.scores["scores"]


@pytest.mark.parametrize("name", TASKS)
def test_a_prediction_does_not_depend_on_its_batch(runs, name):
    "Nor on padding and filler; the noise of a tank comes from the seed and its row."
    task, model = trained_task(runs[name].folder, runs[name].config)
    data, found = task.splits(["test"])["test"], []
    for rows in ([0, 1, 2, 3], [2, -1], [2]):
        with torch.no_grad():
            x = task.predict(model.eval(), task.batch(data, rows, None), "full")
        parts = x.values() if isinstance(x, dict) else [x]
        found.append([part[rows.index(2)].float() for part in parts])
    steps = -(-data.clips[2].frames // 4) if name == "signs" else None
    for whole, *alone in zip(*found, strict=True):
        for one in alone:
            torch.testing.assert_close(one[:steps], whole[:steps], atol=1e-5, rtol=1e-4)


def test_two_processes_are_one(runs, tmp_path):
    "Losses and scores of all three tasks, up to rounding, in one start of both."
    done = warm.in_two_processes("-c", SCRIPT, tmp_path / "two")
    assert done.returncode == 0, done.stderr[-4000:]
    for name, run in runs.items():
        two = Folder(tmp_path / "two" / name)
        have, want = ([entry["loss"] for entry in x] for x in (two.history(), run.history))
        assert have == pytest.approx(want, rel=1e-4 if name == "eit" else 1e-3), name
        have, want = two.read_json("scores.json")["scores"], run.scores["scores"]
        if name == "eit":
            assert have == pytest.approx(want, rel=1e-3, abs=1e-4)
        for key in {"samples", "words", "known_sentences"} & want.keys():
            assert have[key] == want[key], key
        if name == "events":
            assert have["spikes"] == pytest.approx(want["spikes"], rel=0.01)
