"What holds for all workloads: exact resume, and two processes that train like one."

import os

import pytest
import torch
from conftest import in_two_processes, train_and_kill

from mshnet.core import configure
from mshnet.run import Folder, load
from mshnet.task import make_task
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
    "Train each task without pictures; the runs by their task."
    found = {}
    for name in TASKS:
        task = make_task(settings(name, f"{folder}/{name}"))
        task.report = lambda *_: None
        found[name] = train(task.config, task)
    return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    "A finished run of each task."
    return train_all(tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize("name", TASKS)
def test_a_killed_run_resumes_to_the_same_bits(runs, name, tmp_path):
    "Within the second epoch; the run is named by a pattern, and the newest that fits is taken."
    train_and_kill(settings(name, tmp_path / "run_1"), step=4 if name == "eit" else 6)
    old = tmp_path / "run_0/last.pt"
    old.parent.mkdir()
    old.write_bytes(b"an older run")
    os.utime(old, (1, 1))
    asked = configure({"resume": str(tmp_path / "run_*/last.pt"), "device": "cpu"})
    assert (asked.task, asked.resume) == (name, str(tmp_path / "run_1/last.pt"))
    again, run = train(asked), runs[name]
    mine, whole = (load(each.folder / "last.pt")["model"] for each in (again, run))
    assert mine.keys() == whole.keys() and all(torch.equal(mine[k], whole[k]) for k in whole)
    assert [e["loss"] for e in again.history] == [e["loss"] for e in run.history]
    assert again.scores["scores"] == run.scores["scores"]


def test_two_processes_are_one(runs, tmp_path):
    "Losses and scores of all three tasks, up to rounding, in one start of torchrun."
    done = in_two_processes(tmp_path, SCRIPT, tmp_path / "two")
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
