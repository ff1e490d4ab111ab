"Sign language on 1 and on 8 virtual devices."

import pytest
from started import trained

from mshnet.places import installed

if installed("torch_xla") is None:
    pytest.skip("needs torch_xla: make test-xla", allow_module_level=True)

SCRIPT = "signs.py"


@pytest.mark.parametrize(("network", "count"), [("tracks", 1), ("tfnet", 8)])
def test_it_trains_like_plain_pytorch(tmp_path, network, count):
    """Equal losses and scores; no operation on the host: CTC, BiLSTM, spectrum and all.

    All clips have one length. It has a program of training and one of scoring; one makes the model.
    """
    for device in ("cpu", "xla"):
        (tmp_path / device).mkdir()
    plain = trained(SCRIPT, tmp_path / "cpu", "cpu", network)
    seen = trained(SCRIPT, tmp_path / "xla", "xla", network, count=count)
    assert seen["losses"] == pytest.approx(plain["losses"], rel=1e-3)
    assert seen["scores"]["wer"] == pytest.approx(plain["scores"]["wer"], abs=0.09)
    assert seen["again"] == [] and seen["host"] == []
    assert seen["programs"] <= 3
