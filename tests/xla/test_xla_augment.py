"Whole batches on an XLA device: the same pixels as on the host, by one program."

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mshnet.places import installed

if installed("torch_xla") is None:
    pytest.skip("needs torch_xla: make test-xla", allow_module_level=True)


def test_batches_equal_those_of_the_host_and_are_one_program():
    "XLA's `>>` rounds towards zero, which is how a blur once was six grey levels off."
    env = {**os.environ, "PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "1"}
    words = [sys.executable, str(Path(__file__).with_name("augment.py"))]
    done = subprocess.run(words, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
