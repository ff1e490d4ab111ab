"Weights that the published code wrote, and files for other software."

from argparse import Namespace

import pytest
import torch

from mshnet.events.networks import MambaSpike
from mshnet.weights import load_weights

SIZES = {"shape": (2, 12, 12), "width": 4, "features": 8, "d_model": 16, "layers": 1}


def test_published_files_load(tmp_path):
    "With settings of neurons among the weights, and an argparse.Namespace beside them."
    model, again = MambaSpike(**SIZES), MambaSpike(**SIZES)
    state = model.state_dict() | {"spiking_frontend.lif1.beta": torch.tensor(0.97)}
    content = {"model_state_dict": state, "args": Namespace(lr=1e-3), "epoch": 3, "acc": 0.9}
    torch.save(content, tmp_path / "checkpoint_best.pth")
    load_weights(again, tmp_path / "checkpoint_best.pth")
    assert all(map(torch.equal, again.parameters(), model.parameters()))
    state["norm.lif"] = torch.ones(1)
    torch.save(content, tmp_path / "other.pth")
    with pytest.raises(ValueError, match=r"norm.lif is \(1,\), not known"):
        load_weights(again, tmp_path / "other.pth")
