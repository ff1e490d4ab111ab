"Event cameras on 1 and on 8 virtual devices."

import pytest
from started import trained

from mshnet.places import installed

if installed("torch_xla") is None:
    pytest.skip("needs torch_xla: make test-xla", allow_module_level=True)

SCRIPT = "events.py"


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    "On the CPU."
    return trained(SCRIPT, tmp_path_factory.mktemp("cpu"), "cpu", 0)


@pytest.mark.parametrize(("count", "micro", "programs"), [(1, 0, 3), (8, 0, 3), (8, 8, 4)])
def test_it_trains_like_plain_pytorch(plain, tmp_path, count, micro, programs):
    """Equal losses and scores, also where a batch is computed in parts.

    No operation is on the host, and no program is compiled twice: one of training (in parts: two),
    one of scoring, one that makes the model.
    """
    seen = trained(SCRIPT, tmp_path, "xla", micro, count=count)
    assert seen["losses"] == pytest.approx(plain["losses"], rel=1e-3)
    for name in ("loss", "spikes", "spike_rate_1", "spike_rate_2", "spike_rate_3"):
        assert seen["scores"][name] == pytest.approx(plain["scores"][name], rel=5e-3, abs=1e-4)
    assert seen["scores"]["accuracy"] == pytest.approx(plain["scores"]["accuracy"], abs=0.011)
    assert seen["again"] == [] and seen["host"] == []
    assert seen["programs"] <= programs
