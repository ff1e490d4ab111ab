"One step of training at the published size, and the memory that it takes."

import json
import subprocess
import sys

import pytest

SCRIPT = """
import copy, json, resource, sys, time
from mshnet.core import configure
from mshnet.device import open_device
from mshnet.eit.reconstruction import Eit
from mshnet.eit.tanks import simulated_tanks
from mshnet.run import State
from mshnet.train import Job, Losses, prepare_step, train_step

config = configure({"task": "eit", "preset": "paper", "batch_size": 1, "tanks": 8, "device": "cpu"})
task, device = Eit(config), open_device("cpu", "fp32")
data = simulated_tanks("train", 8, seed=0, size=128)
start = task.model()
ema, model = copy.deepcopy(start), device.to_device(start)
state = State(model, task.optimizer(model), device.scaler, ema)
job, losses, began = Job(task, {"train": data}, device), Losses(device), time.perf_counter()
for step in range(2):  # the second has Adam's averages from the beginning
    prepare_step(job, state, step, 8)
    compute = lambda batch: task.loss(model, batch, "full")
    train_step(job, state, compute, task.batch(data, [step], 0), losses)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB; bytes on macOS
print(json.dumps({
    "peak_gb": peak * (1 if sys.platform == "darwin" else 1024) / 1e9,
    "seconds_a_step": (time.perf_counter() - began) / 2,
    "losses": losses.mean(),
}))
"""


@pytest.mark.nightly
def test_a_step_at_the_published_size_fits_into_4500_megabytes():
    "107,621,956 trained weights, with Adam and averaged weights; batch 1, without 16 bits."
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    print(found)
    assert found["peak_gb"] < 4.5
