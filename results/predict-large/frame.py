"""Make the frame: 10,000x10,000 pixels of synthetic scenes with 668 targets.

python results/predict-large/frame.py large.png
"""

import sys

import numpy as np
from PIL import Image

from mshnet.metrics import objects
from mshnet.scenes import scene

rng = np.random.default_rng(0)
scenes = [scene(np.random.default_rng(i), 500) for i in range(25)]
frame, targets = np.zeros((10_000, 10_000), np.uint8), 0
for row in range(0, 10_000, 500):
    for col in range(0, 10_000, 500):
        pair = scenes[rng.integers(25)]
        turns = rng.integers(4)
        image, mask = (np.rot90(part, turns) for part in pair)
        frame[row : row + 500, col : col + 500] = image
        targets += len(objects(mask > 0))
Image.fromarray(frame).save(sys.argv[1])
print(targets)
