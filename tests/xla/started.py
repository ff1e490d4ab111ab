"A script of this folder in a process of its own, as XLA needs one for each number of devices."

import json
import os
import subprocess
import sys
from pathlib import Path


def trained(script, folder, device, *more, count=1):
    "What the script wrote to seen.json in the folder, on so many virtual devices."
    env = {**os.environ, "PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": str(count)}
    words = [sys.executable, Path(__file__).with_name(script), folder, device, *more]
    done = subprocess.run(list(map(str, words)), env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads((folder / "seen.json").read_text())
