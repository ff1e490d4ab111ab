"""Measure what padding and tiles change in predictions, and write it into summary.json beside this.

python results/predict-tiles/tiles.py nuaa-sirst RUN/best.pt ../shared/data/nuaa-sirst
python results/predict-tiles/tiles.py scenes demo/run/best.pt large.png

RUN is that of results/nuaa-sirst-paper, large.png that of results/predict-large.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
from PIL import Image

from mshnet.core import Config
from mshnet.data import read_dataset
from mshnet.export import open_detector
from mshnet.predict import against_one_pass
from mshnet.run import environment

PROTOCOL = {
    "first": "one pass, without the rows and columns that are too many for a multiple of 16",
    "second": "as mshnet predict does it: padded by its mirror image and, above the tile, cut up",
    "lost and gained": "detections without one of the other prediction nearer than 3 pixels; "
    "threshold 0.5",
    "function": "mshnet.predict.against_one_pass, added up over the frames larger than the tile; "
    "tile 512 of nuaa-sirst: over all, which are smaller, so padding alone",
}
SUMMARY = Path(__file__).with_name("summary.json")


def test_list(folder: str) -> list[np.ndarray]:
    "Every image of the test list, at its own size."
    split = read_dataset(Config(dataset_dir=folder), ["test"])[0]["test"]
    return [split.pairs[i][0] for i in range(len(split))]


def four_parts(path: str) -> list[np.ndarray]:
    "Four parts of 1500x1500 pixels of a large frame."
    Image.MAX_IMAGE_PIXELS = None
    frame = np.asarray(Image.open(path))
    corners = ((0, 0), (0, 5000), (4000, 3000), (8000, 8000))
    return [frame[row : row + 1500, col : col + 1500] for row, col in corners]


SETS = {"nuaa-sirst": (test_list, (512, 256)), "scenes": (four_parts, (1024, 512))}
name, weights, source = sys.argv[1:]
read, tiles = SETS[name]
frames, detector = read(source), open_detector(weights)
found = {"environment": environment(detector.why)}
for tile in tiles:
    larger = [frame for frame in frames if max(frame.shape[:2]) > tile] or frames
    each = [against_one_pass(detector, frame, tile) for frame in larger]
    whole = sum(each[1:], each[0])
    found[f"tile {tile}"] = asdict(whole) | {"mean": whole.total / whole.pixels}
    print(f"tile {tile}: {whole}")
summary = json.loads(SUMMARY.read_text()) if SUMMARY.exists() else {}
SUMMARY.write_text(json.dumps(summary | {"protocol": PROTOCOL, name: found}, indent=1) + "\n")
