"Tasks other than detection, on 1 and on 8 virtual devices."

import json
import tempfile
from functools import cache
from pathlib import Path

import pytest
from started import trained

from mshnet.places import installed

if installed("torch_xla") is None:
    pytest.skip("needs torch_xla: make test-xla", allow_module_level=True)

TOYS = {name: {"batch_size": 8} for name in ("ring", "frames", "sentences")}
EIT = {"tanks": 32, "size": 16, "patch": 2, "scales": 1, "width": 16, "heads": 2, "hints": 1}
EIT |= {"eval_every": 1, "samples": 2, "sampling_steps": 2, "batch_size": 16}
EVENTS = {"recordings": 40, "dt": "60ms", "tau": "300ms", "width": 4, "features": 8, "d_model": 8}
EVENTS |= {"layers": 1, "eval_every": 1, "batch_size": 16}
SIGNS = {"hidden": 16, "signs": 4, "sentences": 16, "dropout": 0.0, "eval_every": 1, "buckets": 1}
SIGNS |= {"batch_size": 8, "rescale": 0.0, "max_frames": 48, "scale": 8.0, "distil_weight": 1.0}
SIGNS |= {"lr": 2e-4, "ema": 0.5}
RATES = ("loss", "spikes", "spike_rate_1", "spike_rate_2", "spike_rate_3")
CLOSE = {  # how close a score must be
    "eit": {"cc": {"abs": 2e-3}, "rmse": {"abs": 2e-3}},
    "events": {"accuracy": {"abs": 0.011}} | {name: {"rel": 5e-3, "abs": 1e-4} for name in RATES},
    "signs": {"wer": {"abs": 0.09}},
}


@cache
def plain(words):
    "What the same settings, as JSON, reach without XLA."
    with tempfile.TemporaryDirectory() as folder:
        return trained("tasks.py", Path(folder), "cpu", words)


def compare(folder, task, settings, count, micro=0):
    "What a task's training reports on XLA, after a comparison with plain PyTorch."
    want = plain(json.dumps({task: settings}))[task]
    words = json.dumps({task: settings | {"micro_batch": micro}})
    seen = trained("tasks.py", folder, "xla", words, count=count)[task]
    assert seen["losses"] == pytest.approx(want["losses"], rel=1e-3)
    for name, close in CLOSE[task].items():
        assert seen["scores"][name] == pytest.approx(want["scores"][name], **close), name
    assert seen["again"] == [] and seen["host"] == []
    return seen


@pytest.mark.parametrize(("count", "micro", "programs"), [(1, 0, 3), (8, 0, 3), (8, 8, 4)])
@pytest.mark.parametrize(("task", "settings"), [("eit", EIT), ("events", EVENTS)])
def test_a_task_trains_like_plain_pytorch(tmp_path, task, settings, count, micro, programs):
    """Equal losses and scores, also where a batch is computed in parts.

    No operation is on the host, and no program is compiled twice: one of training (in parts: two),
    one of scoring, one that makes the model.
    """
    assert compare(tmp_path, task, settings, count, micro)["programs"] <= programs


@pytest.mark.parametrize(
    ("count", "network"),
    [(1, {"network": "tracks"}), (8, {"network": "tfnet", "backbone": "small"})],
)
def test_signs_train_like_plain_pytorch(tmp_path, count, network):
    "CTC, BiLSTM, spectrum and all; all clips have one length."
    assert compare(tmp_path, "signs", SIGNS | network, count)["programs"] <= 3


@pytest.mark.parametrize("count", [1, 8])
def test_toys_have_the_losses_of_plain_pytorch(tmp_path, count):
    "Averaged weights, a rate that changes in every step, and no program is compiled twice."
    words = json.dumps(TOYS)
    for name, seen in trained("tasks.py", tmp_path, "xla", words, count=count).items():
        want = plain(words)[name]
        assert seen["losses"] == pytest.approx(want["losses"], rel=1e-3), name
        for score, value in want["scores"].items():
            assert seen["scores"][score] == pytest.approx(value, abs=0.11), name
        assert seen["again"] == [], name
