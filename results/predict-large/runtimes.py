"""Does another runtime of PyTorch predict faster? python runtimes.py OUTPUT.json

A frame of 640x512 pixels in float32 at one size, one thread, the least processor time of five
passes: plain modules, channels-last, the detector of `mshnet predict`, TorchScript's
`optimize_for_inference`, `torch.compile` with frozen weights (needs a C++ compiler).
"""

import copy
import json
import sys
import time
from pathlib import Path

import torch
import torch._inductor.config

from mshnet import MSHNet
from mshnet.evaluate import Detector

torch.set_num_threads(1)
torch._inductor.config.freezing = True
torch.manual_seed(0)
image = torch.randint(0, 255, (1, 3, 512, 640), dtype=torch.uint8)
last = {"memory_format": torch.channels_last}


class Whole(torch.nn.Module):
    "The network with all heads, as one tensor."

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        made = self.model(x, deep=True)
        return made[1] if isinstance(made, tuple) else made


def seconds(call):
    "The least processor time of five calls, after two."
    found = []
    for _ in range(7):
        start = time.process_time()
        call()
        found.append(time.process_time() - start)
    return round(min(found[2:]), 3)


plain = Whole(MSHNet.pretrained()).eval()
tail, x = copy.deepcopy(plain).to(**last), image.float()
detector = Detector("pretrained", "cpu", "fp32")
detector.multiscale = ()
with torch.no_grad():
    traced = torch.jit.freeze(torch.jit.trace(tail, x.to(**last)))
    traced, compiled = torch.jit.optimize_for_inference(traced), torch.compile(tail)
    found = {
        "plain": seconds(lambda: plain(x)),
        "channels-last": seconds(lambda: tail(x.to(**last))),
        "mshnet predict": seconds(lambda: detector(image)),
        "TorchScript": seconds(lambda: traced(x.to(**last))),
        "torch.compile": seconds(lambda: compiled(x.to(**last))),
    }
Path(sys.argv[1]).write_text(json.dumps(found, indent=1) + "\n")
print(found)
