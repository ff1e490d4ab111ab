"Tasks other than detection, on 1 and on 8 virtual devices, beside plain PyTorch."

import json

import pytest
import tasks
from test_xla import python

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
WANTED = {  # by the number of devices
    1: [("eit", EIT), ("signs", SIGNS | {"network": "tracks"})],
    8: [
        ("eit", EIT | {"micro_batch": 8}),
        ("events", EVENTS),
        ("signs", SIGNS | {"network": "tfnet", "backbone": "small"}),
    ],
}


@pytest.mark.parametrize("count", WANTED)
def test_tasks_train_like_plain_pytorch(tmp_path, count):
    """Equal losses and scores, also where a batch is computed in parts.

    No operation is on the host, and no program is compiled twice: one of training (in parts: two),
    one of scoring, one that makes the model. Signs is CTC, BiLSTM and spectrum, with a rate that
    changes in every step and averaged weights; all clips have one length.
    """
    words = json.dumps(WANTED[count])
    done = python(tasks.__file__, tmp_path, "xla", words, CPU_NUM_DEVICES=str(count))
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads((tmp_path / "seen.json").read_text())
    plain = tasks.trained(tmp_path, "cpu", [(n, s | {"micro_batch": 0}) for n, s in WANTED[count]])
    for (task, settings), seen, want in zip(WANTED[count], found, plain, strict=True):
        assert seen["losses"] == pytest.approx(want["losses"], rel=1e-3), task
        for name, close in CLOSE[task].items():
            assert seen["scores"][name] == pytest.approx(want["scores"][name], **close), name
        assert seen["again"] == [] and seen["host"] == [], task
        assert seen["programs"] <= (4 if "micro_batch" in settings else 3), task
