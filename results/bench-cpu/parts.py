"""The operations that nbs/40_cpu.py replaces, beside its replacements, in turns, in this process.

    OMP_NUM_THREADS=1 python results/bench-cpu/parts.py OUTPUT.json

Ratios of the shortest of 25 turns, four images of 16x128x128, channels-last.
"""

import json
import sys
from pathlib import Path

import torch
from torch.nn import functional as F

from mshnet.bench import take_turns
from mshnet.cpu import attend_on_cpu
from mshnet.device import open_device
from mshnet.model import ChannelAttention, SpatialAttention, attend

C, SIDE = 16, 128


def images(dtype, channels=C):
    "Noise, channels-last."
    noise = torch.randn(4, channels, SIDE, SIDE).to(dtype)
    return noise.contiguous(memory_format=torch.channels_last)


def pairs(dtype):
    "Each operation by torch, and by hand."
    x, grad, other = images(dtype).requires_grad_(), images(dtype), images(dtype)
    plain_grad, of_maximum = grad.contiguous(), torch.randn(4, C, 1, 1).to(dtype)
    rows, weight = other.permute(0, 2, 3, 1).flatten(1, 2), torch.rand(4, SIDE * SIDE, 1).to(dtype)
    maps, of_maps = images(dtype, 2), images(dtype, 1)
    kernel = torch.randn(1, 2, 7, 7).to(dtype)
    ca, sa, shortcut = ChannelAttention(C), SpatialAttention(), images(dtype).requires_grad_()

    def of_kernel(maps):
        return torch.ops.aten.convolution_backward(
            *(of_maps, maps, kernel, None, [1, 1], [3, 3], [1, 1], False, [0, 0], 1),
            [True, True, False],
        )

    def end(how):
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype != torch.float32):
            out = how(x, shortcut, ca, sa)
        torch.autograd.grad(out, [x, shortcut, *ca.parameters(), *sa.parameters()], grad)

    def of_peak(peak):
        torch.autograd.grad(peak, x, of_maximum)

    apart = maps.contiguous()
    return {
        "maximum over pixels": (
            lambda _: of_peak(x.amax((2, 3), keepdim=True)),
            lambda _: of_peak(F.adaptive_max_pool2d(x, 1, return_indices=True)[0]),
        ),
        "gradient of the 7x7 kernel": (lambda _: of_kernel(apart), lambda _: of_kernel(maps)),
        "sum of two gradients": (lambda _: plain_grad + other, lambda _: grad + other),
        "product with one number per pixel": (
            lambda _: rows * weight,
            lambda _: rows * weight.expand_as(rows).contiguous(),
        ),
        "maximum over channels": (
            lambda _: rows.amax(2),
            lambda _: rows.mT.contiguous().mT.amax(2),
        ),
        "all of a block's end": (lambda _: end(attend), lambda _: end(attend_on_cpu)),
    }


def main(output: str) -> None:
    "Measure, print and write."
    found = {"cpu": torch.backends.cpu.get_cpu_capability(), "torch": torch.__version__}
    found["threads"] = torch.get_num_threads()
    for dtype in (torch.float32, torch.bfloat16):
        for name, (plain, by_hand) in pairs(dtype).items():
            kept = take_turns({"plain": plain, "by hand": by_hand}, 25, open_device("cpu", "fp32"))
            ratio = round(min(kept["by hand"]) / min(kept["plain"]), 2)
            found.setdefault(str(dtype).removeprefix("torch."), {})[name] = ratio
            print(dtype, name, ratio, flush=True)
    Path(output).write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
