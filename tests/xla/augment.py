"Compare batches made on an XLA device with those of the host; run by test_xla_augment.py."

import numpy as np
import torch
import torch_xla
import torch_xla.debug.metrics as met

from mshnet.augment import (
    augment_batch,
    sample_params,
    scoring_numbers,
    store_pixels,
    training_numbers,
)
from mshnet.core import Config
from mshnet.data import Split

SIZES = [(96, 96), (61, 97), (131, 40), (128, 128)]

rng = np.random.default_rng(0)
images = [rng.integers(0, 256, (*s, 3) if s[1] == 97 else s, dtype=np.uint8) for s in SIZES]
masks = [(rng.random(s) < 0.2).astype(np.uint8) for s in SIZES]
store = store_pixels(Split("train", tuple("abcd"), tuple(zip(images, masks, strict=True)), "noise"))
there = store.through(lambda pixels: pixels.to(torch_xla.device()))
config = Config(base_size=96, augment="flips", clutter_share=0.5)
draws = [[sample_params(config, epoch, i) for i in range(4)] for epoch in (0, 1)]
batches = [training_numbers(store, range(4), each, 96) for each in draws]
batches.append(scoring_numbers(store, [0, 1, 2, -1], 96))
for numbers in batches:
    have, want = augment_batch(there, numbers.to(torch_xla.device())), augment_batch(store, numbers)
    torch_xla.sync()
    apart = (have.image.cpu().int() - want.image.int()).abs()
    assert apart.max() <= 1, apart.max()
    assert (apart > 0).float().mean() < 1e-3
    assert torch.equal(have.mask.cpu(), want.mask)
    assert torch.equal(have.real.cpu(), want.real)
assert met.metric_data("CompileTime")[0] == 1, met.metric_data("CompileTime")
assert not [name for name in met.counter_names() if name.startswith("aten::")]
