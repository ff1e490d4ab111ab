"A trained network: other weights, its recurrences, its pictures."

import json
from argparse import Namespace

import pytest
import torch

from mshnet.cli import main, parse
from mshnet.events.events_config import EventsConfig
from mshnet.events.networks import MambaSpike, scan
from mshnet.events.recognition import Events
from mshnet.train import train
from mshnet.weights import load_weights

TINY = {"recordings": 40, "dt": "60ms", "width": 4, "features": 8, "d_model": 8, "layers": 1}
TINY |= {"epochs": 2, "eval_every": 1, "batch_size": 8, "tau": "300ms", "lr": 0.01}
TINY |= {"device": "cpu", "precision": "fp32", "log_every": 1000}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    "A finished run."
    folder = tmp_path_factory.mktemp("events") / "run"
    return train(EventsConfig(**TINY, output_dir=str(folder)))


def test_weights_named_by_a_pattern_or_in_a_file_decide_about_the_task(run, tmp_path):
    "So that a command line knows the flags of the task."
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"weight_path": str(run.folder)}))
    for words in (["--weight-path", f"{run.folder.parent}/ru*"], ["--config", str(file)]):
        assert parse(["test", *words, "--noise", "9"])[1]["noise"] == "9"


def test_published_files_load(tmp_path):
    "With settings of neurons among the weights, and an argparse.Namespace beside them."
    sizes = {"shape": (2, 12, 12), "width": 4, "features": 8, "d_model": 16, "layers": 1}
    model, again = MambaSpike(**sizes), MambaSpike(**sizes)
    state = model.state_dict() | {"spiking_frontend.lif1.beta": torch.tensor(0.97)}
    content = {"model_state_dict": state, "args": Namespace(lr=1e-3), "epoch": 3, "acc": 0.9}
    torch.save(content, tmp_path / "checkpoint_best.pth")
    load_weights(again, tmp_path / "checkpoint_best.pth")
    assert all(map(torch.equal, again.parameters(), model.parameters()))
    state["norm.lif"] = torch.ones(1)
    torch.save(content, tmp_path / "other.pth")
    with pytest.raises(ValueError, match=r"norm.lif is \(1,\), not known"):
        load_weights(again, tmp_path / "other.pth")


def test_a_preset_names_the_network_of_published_weights(run, tmp_path, capsys):
    "They record no settings; a run has its own, and then the preset has no effect."
    simple = "test --task events --device cpu --batch-size 50"
    state = Events(EventsConfig(preset="quick")).model().state_dict()
    torch.save(state, tmp_path / "published.pth")
    assert not main(f"{simple} --preset quick --weight-path {tmp_path}/published.pth".split())
    assert "how they were chosen: not known" in capsys.readouterr().out
    assert main(f"{simple} --weight-path {tmp_path}/published.pth".split()) == 2
    assert main(f"{simple} --preset quik --weight-path {tmp_path}/published.pth".split()) == 2
    assert "did you mean 'quick'?" in capsys.readouterr().err
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
    pairs = zip(
        *(torch.autograd.grad((x * weight).sum(), [a, b]) for x in (want, have)), strict=True
    )
    assert all((one - other).abs().max() < 1e-5 * steps for one, other in pairs)


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


def test_a_run_has_its_pictures(run):
    "Confusions, rasters of recordings, and their evidence on one sheet."
    Events(run.config).report(run.folder)
    names = sorted(path.name.split("-")[-1] for path in (run.folder / "figures").iterdir())
    assert names.count("raster.png") == 3 and {"confusion.png", "gallery.png"} < set(names)
