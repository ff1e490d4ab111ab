"""The passes of nbs/40_cpu.py beside the same lines in plain PyTorch, in turns, in this process.

    python results/bench-cpu/passes.py OUTPUT.json

Medians in ms of nine turns: the end of a block of 16 channels (forward and backward, four images of
256x256), a step of MSHNet (four images), and a forward pass of a frame of 640x512.
"""

import json
import sys
from pathlib import Path

import mshnet  # noqa: F401  before torch, which reads once how its threads are to wait

# isort: split
import torch

from mshnet.bench import take_turns
from mshnet.cpu import attend_on_cpu, use_cpu_passes
from mshnet.device import open_device
from mshnet.model import ChannelAttention, MSHNet, SpatialAttention, attend


def images(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    "Noise, channels-last."
    return torch.randn(*shape).to(dtype).contiguous(memory_format=torch.channels_last)


def block_end(how, dtype):
    "A forward and a backward pass of the end of a block."
    ca, sa = ChannelAttention(16), SpatialAttention()
    y, shortcut, grad = (images(4, 16, 256, 256, dtype=dtype) for _ in range(3))

    def measure(_turn: int):
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            out = how(y.requires_grad_(), shortcut.requires_grad_(), ca, sa)
        torch.autograd.grad(out, [y, shortcut, *ca.parameters(), *sa.parameters()], grad)

    return measure


def network(model, frame):
    "A step without an optimizer, or the forward pass of a frame."
    model = model.to(memory_format=torch.channels_last).train(frame is None)
    batch = images(4, 3, 256, 256) if frame is None else frame

    def measure(_turn: int):
        with torch.set_grad_enabled(frame is None):
            maps, logits = model(batch)
        if frame is None:
            model.zero_grad()
            sum(x.square().mean() for x in (*maps, logits)).backward()

    return measure


def main(output: str) -> None:
    "Measure, print and write."
    device, frame = open_device("cpu", "fp32"), images(1, 3, 512, 640)
    pairs = {
        "block end, float32": [block_end(how, torch.float32) for how in (attend, attend_on_cpu)],
        "block end, bf16": [block_end(how, torch.bfloat16) for how in (attend, attend_on_cpu)],
        "step": [network(how(MSHNet()), None) for how in (lambda m: m, use_cpu_passes)],
        "frame": [network(how(MSHNet()), frame) for how in (lambda m: m, use_cpu_passes)],
    }
    found = {"cpu": torch.backends.cpu.get_cpu_capability(), "torch": torch.__version__}
    found["threads"] = torch.get_num_threads()
    for name, (plain, by_hand) in pairs.items():
        times = take_turns({"plain": plain, "by hand": by_hand}, 9, device)
        medians = {way: round(1000 * sorted(kept)[4], 1) for way, kept in times.items()}
        found[name] = {**medians, "ratio": round(medians["by hand"] / medians["plain"], 3)}
        print(name, found[name], flush=True)
    Path(output).write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
