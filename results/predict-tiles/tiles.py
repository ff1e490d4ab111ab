"""Measure what padding and tiles change in predictions, and write it into summary.json beside this.

python results/predict-tiles/tiles.py nuaa-sirst RUN/best.pt ../shared/data/nuaa-sirst
python results/predict-tiles/tiles.py scenes demo/run/best.pt large.png

RUN is that of results/nuaa-sirst-paper, large.png that of results/predict-large.
"""

import json
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from mshnet.data import load_data
from mshnet.evaluate import Detector
from mshnet.metrics import match_exact
from mshnet.predict import detections, predict_frame
from mshnet.recipe import Config
from mshnet.run import environment

PROTOCOL = {
    "first": "one pass, without the rows and columns that are too many for a multiple of 16",
    "second": "as mshnet predict does it: padded by its mirror image and, above the tile, cut up",
    "lost and gained": "detections without one of the other prediction nearer than 3 pixels; "
    "threshold 0.5",
    "function": "against_one_pass of tiles.py, added up over the frames larger than the tile; "
    "tile 512 of nuaa-sirst: over all, which are smaller, so padding alone",
}
SUMMARY = Path(__file__).with_name("summary.json")


def test_list(folder: str) -> list[np.ndarray]:
    "Every image of the test list, at its own size."
    split = load_data(Config(dataset_dir=folder), ["test"])[0]["test"]
    return [split.pairs[i][0] for i in range(len(split))]


def four_parts(path: str) -> list[np.ndarray]:
    "Four parts of 1500x1500 pixels of a large frame."
    Image.MAX_IMAGE_PIXELS = None
    frame = np.asarray(Image.open(path))
    corners = ((0, 0), (0, 5000), (4000, 3000), (8000, 8000))
    return [frame[row : row + 1500, col : col + 1500] for row, col in corners]


def against_one_pass(detector, pixels: np.ndarray, tile: int) -> dict[str, float]:
    "What padding and tiles change in the prediction of a frame that fits into one pass."
    height, width = (n // 16 * 16 for n in pixels.shape[:2])
    one = predict_frame(detector, pixels[:height, :width], 8192)
    other = predict_frame(detector, pixels, tile)[:height, :width]
    apart, first, second = np.abs(one - other), detections(one), detections(other)
    same = len(match_exact(first, second))
    return {
        "frames": 1,
        "pixels": one.size,
        "largest": float(apart.max()),
        "total": float(apart.sum(dtype=float)),
        "before": len(first),
        "lost": len(first) - same,
        "gained": len(second) - same,
    }


SETS = {"nuaa-sirst": (test_list, (512, 256)), "scenes": (four_parts, (1024, 512))}
name, weights, source = sys.argv[1:]
read, tiles = SETS[name]
frames, detector = read(source), Detector(weights)
found = {"environment": environment(detector.device.description)}
for tile in tiles:
    larger = [frame for frame in frames if max(frame.shape[:2]) > tile] or frames
    each = [against_one_pass(detector, frame, tile) for frame in larger]
    whole = {name: sum(one[name] for one in each) for name in each[0]}
    whole |= {"largest": max(one["largest"] for one in each)}
    whole |= {"mean": whole["total"] / whole["pixels"]}
    found[f"tile {tile}"] = whole
    print(f"tile {tile}: {whole}")
summary = json.loads(SUMMARY.read_text()) if SUMMARY.exists() else {}
SUMMARY.write_text(json.dumps(summary | {"protocol": PROTOCOL, name: found}, indent=1) + "\n")
