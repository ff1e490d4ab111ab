"The workloads in two processes: losses and scores are those of one, up to rounding."

import pytest
from conftest import in_two_processes

from mshnet.core import configure
from mshnet.run import Folder
from mshnet.task import make_task
from mshnet.train import train

SHORT = {"device": "cpu", "precision": "fp32", "batch_size": 8, "eval_every": 1, "epochs": 2}
TASKS = {
    "eit": {"tanks": 16, "size": 16, "patch": 2, "width": 16, "heads": 2, "hints": 1}
    | {"samples": 2, "sampling_steps": 2},
    "events": {"recordings": 40, "dt": "30ms", "width": 4, "features": 4, "d_model": 8}
    | {"layers": 1, "choose": "val"},
    "signs": {"network": "tracks", "hidden": 16, "signs": 4, "sentences": 32, "dropout": 0.0}
    | {
        "epochs": 3,
        "buckets": 2,
        "scale": 8.0,
        "max_frames": 120,
        "lr": 1e-3,
        "distil_weight": 1.0,
    },
}
SCRIPT = """
import sys
from test_two_processes import train_all
train_all(sys.argv[1])
"""


def train_all(folder):
    "Train each task without pictures; the runs by their task."
    found = {}
    for name, settings in TASKS.items():
        config = configure({"task": name, **SHORT, **settings, "output_dir": f"{folder}/{name}"})
        task = make_task(config)
        task.report = lambda *_: None
        found[name] = train(config, task)
    return found


def test_two_processes_are_one(tmp_path):
    "Of all three tasks, in one start of torchrun."
    one = train_all(tmp_path / "one")
    done = in_two_processes(tmp_path, SCRIPT, tmp_path / "two")
    assert done.returncode == 0, done.stderr[-4000:]
    for name, run in one.items():
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
