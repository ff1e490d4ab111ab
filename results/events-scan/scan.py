"""Three ways to compute the recurrence of Mamba: a loop, mambapy (pip install mambapy), ours.

python results/events-scan/scan.py writes scan.json beside it: seconds of a forward and backward
pass, the best of five on one thread, and the largest difference from the loop's gradients.
"""

import json
import time
from pathlib import Path

import torch
from mambapy.pscan import pscan

from mshnet.events.networks import scan


def loop(a, b):
    "The recurrence as it is written."
    found = [b[0]]
    for step in range(1, len(a)):
        found.append(a[step] * found[-1] + b[step])
    return torch.stack(found)


def tree(a, b):
    "mambapy, which has the batch first."
    return pscan(a.transpose(0, 1), b.transpose(0, 1)).transpose(0, 1)


def measured(method, a, b, weight):
    "Seconds and gradients."
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        grads = torch.autograd.grad((method(a, b) * weight).sum(), [a, b])
        best = min(best, time.perf_counter() - start)
    return best, grads


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    shape = (300, 4, 256, 16)  # steps, samples, channels, states
    a, b = torch.rand(shape).requires_grad_(), torch.randn(shape).requires_grad_()
    weight, found, kept = torch.randn(shape), {}, {}
    for name, method in {"loop": loop, "mambapy": tree, "mshnet": scan}.items():
        seconds, grads = measured(method, a, b, weight)
        kept.setdefault("loop", grads)
        apart = max((x - y).abs().max().item() for x, y in zip(grads, kept["loop"], strict=True))
        found[name] = {"seconds": round(seconds, 4), "difference": apart}
    table = {"shape": shape, "torch": torch.__version__, **found}
    Path(__file__).with_name("scan.json").write_text(json.dumps(table, indent=1) + "\n")
