"Sign language on 1 and on 8 virtual devices."

import pytest
from started import trained

from mshnet.places import installed

if installed("torch_xla") is None:
    pytest.skip("needs torch_xla: make test-xla", allow_module_level=True)

SCRIPT = "signs.py"


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    "On the CPU."
    return trained(SCRIPT, tmp_path_factory.mktemp("cpu"), "cpu")


@pytest.mark.parametrize("count", [1, 8])
def test_it_trains_like_plain_pytorch(plain, tmp_path, count):
    """Equal losses and scores; no operation on the host: CTC, BiLSTM and all.

    All clips fit into one bucket. It has a program of training and one of scoring; one makes the
    model.
    """
    seen = trained(SCRIPT, tmp_path, "xla", count=count)
    assert seen["losses"] == pytest.approx(plain["losses"], rel=1e-3)
    assert seen["scores"]["wer"] == pytest.approx(plain["scores"]["wer"], abs=0.09)
    assert seen["again"] == [] and seen["host"] == []
    assert seen["programs"] <= 3
