"Sign language in two processes, and its weights as a file for other programs."

import pytest
import torch
from conftest import train_in_two_processes

from mshnet.export import export
from mshnet.places import installed
from mshnet.signs.signing import Signs
from mshnet.signs.signs_config import SignsConfig
from mshnet.train import train

SMALL = {"network": "tracks", "hidden": 16, "signs": 4, "sentences": 32, "dropout": 0.0}
SMALL |= {"epochs": 3, "eval_every": 1, "batch_size": 8, "buckets": 2, "scale": 8.0}
SMALL |= {"precision": "fp32", "device": "cpu", "max_frames": 120, "lr": 1e-3, "distil_weight": 1.0}
TFNET = {"network": "tfnet", "backbone": "small", "max_frames": 48}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    "Three epochs on simulated tracks, without pictures."
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Signs, "report", lambda *_: None)
        return train(SignsConfig(**SMALL, output_dir=str(tmp_path_factory.mktemp("run"))))


@pytest.mark.parametrize("network", [{}, TFNET])
def test_a_loss_is_the_mean_over_the_parts_of_a_batch(network):
    "Processes and micro-batches rely on it; batch norm aside, which is in evaluation mode here."
    task = Signs(SignsConfig(**SMALL | network))
    data = task.splits()["train"]
    model = task.model().eval()
    whole = task.batch(data, list(range(8)), 0)
    parts = [type(whole)(*(x[i : i + 2] for x in whole)) for i in range(0, 8, 2)]
    with torch.no_grad():
        want = task.loss(model, whole, "full")
        each = [task.loss(model, part, "full") for part in parts]
    assert any(name.startswith("distil") for name in want)
    for name, value in want.items():
        torch.testing.assert_close(torch.stack([x[name] for x in each]).mean(), value)


def test_two_processes_train_like_one(run, tmp_path):
    "The losses of one process."
    two = train_in_two_processes(tmp_path, {"task": "signs"} | SMALL)
    have, want = ([entry["loss"] for entry in x] for x in (two.history(), run.history))
    assert have == pytest.approx(want, rel=1e-3)
    scores = two.read_json("scores.json")["scores"]
    assert scores["words"] == run.scores["scores"]["words"]
    assert scores["known_sentences"] == run.scores["scores"]["known_sentences"]


def test_weights_of_shared_layers_are_exported(tmp_path):
    "TFNet has one classifier under two names."
    task = Signs(SignsConfig(**SMALL | TFNET))
    task.splits()
    record = {"phase": "full", "epoch": 0, "config": task.config.model_dump()}
    record["best"] = {"epoch": 0, "score": 1.0, "choose": "last"}
    torch.save({"model": task.model().state_dict(), **record}, tmp_path / "w.pt")
    if installed("safetensors") is None:
        pytest.skip("needs safetensors: pip install mshnet[export]")
    assert export(tmp_path / "w.pt").is_file()
