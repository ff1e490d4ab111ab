"""Three steps of a small model on XLA: `python small.py CACHE`."""

import os
import sys
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from mshnet.device import open_device, update


class One(NamedTuple):
    "A batch of images alone."

    image: torch.Tensor


device = open_device("xla", "fp32")
device.cache_programs(Path(sys.argv[1]))
print(device.description)
model = device.to_device(nn.Conv2d(1, 1, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
step = device.begin("full", model, optimizer)
for _ in range(3):
    image = device.transfer_batch(One(torch.ones(8, 1, 4, 4))).image
    update(device, step(image).sum(), optimizer)
print(device.facts()["xla"])
device.begin("random", model)
masks = []
for _ in range(2):
    device.seed(3, 0)
    masks.append(device.read(nn.functional.dropout(device.transfer(torch.ones(64)))))
print("seeded" if torch.equal(*masks) else "not seeded")
print([name for name in ("TPU_PROCESS_ADDRESSES", "CLOUD_TPU_TASK_ID") if name in os.environ])
