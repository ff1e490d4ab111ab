"""Judge weights on frames that were held out; see README.md beside this file.

    python judged.py DATA FOLDER OUTPUT.json TITLE=WEIGHTS ...

FOLDER is that of `continued.py ... all`, whose held-out images are scored. Threshold 0.5.
"""

import json
import sys
from pathlib import Path

import numpy as np
from PIL import Image

TOP = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(TOP / "tools"))
import judge
from pretrain import MULTISCALE

from mshnet.evaluate import Detector
from mshnet.frames import frames_of
from mshnet.metrics import match_exact, objects
from mshnet.predict import predict_frame

EVERY, LARGE = 20, 400  # frames of a clip; pixels of a box


def frames(kind, data, folder):
    "Frames with their masks, or with their boxes."
    if kind.startswith("clips"):
        boxes = judge.boxes_of(data / "drone-ir")
        for clip in sorted((data / "drone-ir").glob("*.mp4"))[int(kind[-1]) :: judge.PARTS]:
            for frame in frames_of(clip):
                if frame.number % EVERY == 0:
                    pixels = np.asarray(Image.fromarray(frame.pixels).convert("L"))
                    yield pixels, boxes[clip.name, frame.number]
        return
    names = [n for n in (folder / "data" / "test.txt").read_text().split() if n.startswith(kind)]
    for name in sorted({n.rsplit("_", 1)[0] for n in names} if kind == "clutter" else names):
        if kind == "clutter":
            file = data / "clutter" / "images" / f"{name.removeprefix('clutter_')}.png"
            pixels = np.asarray(Image.open(file).convert("L"))
            yield pixels, np.zeros(pixels.shape, bool)
        else:
            places = [folder / "data" / part / f"{name}.png" for part in ("images", "masks")]
            pixels, mask = (np.asarray(Image.open(place)) for place in places)
            yield pixels, mask > 0


def scores(detector, kind, data, folder):
    "Rates of one kind of frames."
    count = {"frames": 0, "targets": 0, "found": 0, "alarms": 0, "large": 0, "large found": 0}
    inter = union = false = pixels = 0
    for image, truth in frames(kind, data, folder):
        pred = predict_frame(detector, image) > 0.5
        spots, count["frames"] = objects(pred), count["frames"] + 1
        if isinstance(truth, np.ndarray):
            real = objects(truth)
            pairs = match_exact(real, spots)
            hit, alarms, areas = [t for t, _ in pairs], len(spots) - len(pairs), [0] * len(real)
            inter, union = inter + (pred & truth).sum(), union + (pred | truth).sum()
            false += spots.area.sum() - spots.area[[p for _, p in pairs]].sum()
            pixels += pred.size
        else:
            hit, beside = judge.in_boxes(truth, spots.centroid)
            alarms, areas = sum(beside), [(b - t) * (r - left) for t, b, left, r in truth]
        large = [i for i, area in enumerate(areas) if area > LARGE]
        new = len(areas), len(hit), alarms, len(large), len({*large} & {*hit})
        for name, number in zip([*count][1:], new, strict=True):
            count[name] += int(number)
    found = {"pd": count["found"] / max(count["targets"], 1)}
    found["alarms a frame"] = count["alarms"] / count["frames"]
    if count["large"]:
        found["pd above 400 pixels"] = count["large found"] / count["large"]
    if inter:
        found |= {"iou": inter / union, "fa": 1e6 * false / pixels}
    return count | {name: round(float(value), 4) for name, value in found.items()}


data, folder, output = map(Path, sys.argv[1:4])
results = {}
for title, weights in (word.split("=", 1) for word in sys.argv[4:]):
    detector = Detector(weights)
    detector.multiscale = MULTISCALE
    results[title] = {}
    for kind in ("clips 5", "clips 9", "nuaa", "nudt", "irstd", "clutter"):
        results[title][kind] = scores(detector, kind, data, folder)
        print(title, kind, results[title][kind], flush=True)
output.write_text(json.dumps(results, indent=1) + "\n")
