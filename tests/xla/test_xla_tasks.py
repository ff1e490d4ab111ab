"""Tasks that are not images with masks, on 1 and on 8 virtual devices."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mshnet.places import installed

if installed("torch_xla") is None:
    pytest.skip("needs torch_xla: make test-xla", allow_module_level=True)

SCRIPT = Path(__file__).parent / "tasks.py"


def trained(folder, device, count=1):
    "What the script saw of each toy."
    env = {**os.environ, "PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": str(count)}
    words = [sys.executable, str(SCRIPT), str(folder), device]
    done = subprocess.run(words, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads((folder / "seen.json").read_text())


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    "On the CPU."
    return trained(tmp_path_factory.mktemp("cpu"), "cpu")


@pytest.mark.parametrize("count", [1, 8])
def test_toys_have_the_losses_of_plain_pytorch(plain, tmp_path, count):
    "Averaged weights, a rate that changes in every step, and no program is compiled twice."
    for name, seen in trained(tmp_path, "xla", count).items():
        assert seen["losses"] == pytest.approx(plain[name]["losses"], rel=1e-3), name
        for score, value in plain[name]["scores"].items():
            assert seen["scores"][score] == pytest.approx(value, abs=0.11), name
        assert seen["again"] == [], name
