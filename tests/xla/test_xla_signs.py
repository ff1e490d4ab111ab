"Sign language on 1 and on 8 virtual devices."

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mshnet.places import installed

if installed("torch_xla") is None:
    pytest.skip("needs torch_xla: make test-xla", allow_module_level=True)

SCRIPT = Path(__file__).parent / "signs.py"


def trained(folder, device, count=1):
    "What the script saw."
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
def test_it_trains_like_plain_pytorch(plain, tmp_path, count):
    """Equal losses and scores; no operation on the host: CTC, BiLSTM and all.

    Each of two buckets has a program of training and one of scoring; one makes the model. None is
    compiled twice.
    """
    seen = trained(tmp_path, "xla", count)
    assert seen["losses"] == pytest.approx(plain["losses"], rel=1e-3)
    assert seen["scores"]["wer"] == pytest.approx(plain["scores"]["wer"], abs=0.09)
    assert seen["again"] == [] and seen["host"] == []
    assert seen["programs"] <= 5
