"""Tasks that are not images with masks, on 1 and on 8 virtual devices."""

import pytest
from started import trained

from mshnet.places import installed

if installed("torch_xla") is None:
    pytest.skip("needs torch_xla: make test-xla", allow_module_level=True)

SCRIPT = "tasks.py"


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    "On the CPU."
    return trained(SCRIPT, tmp_path_factory.mktemp("cpu"), "cpu")


@pytest.mark.parametrize("count", [1, 8])
def test_toys_have_the_losses_of_plain_pytorch(plain, tmp_path, count):
    "Averaged weights, a rate that changes in every step, and no program is compiled twice."
    for name, seen in trained(SCRIPT, tmp_path, "xla", count=count).items():
        assert seen["losses"] == pytest.approx(plain[name]["losses"], rel=1e-3), name
        for score, value in plain[name]["scores"].items():
            assert seen["scores"][score] == pytest.approx(value, abs=0.11), name
        assert seen["again"] == [], name
