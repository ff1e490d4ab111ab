"""How do weights do on four sensors? python tools/judge.py DATA WEIGHTS OUTPUT.json [SENSOR ...]

DATA holds nuaa-sirst/, nudt-sirst/, irstd-1k/ (masks) and drone-ir/ (clips and boxes.csv). Frames
are scored at their own size: the training lists, because this is for choices and a test list is
opened once, and every tenth frame of each clip, if it has a box: where it has none, birds and
drones fly all the same. A target with a mask is found by a detection whose centre is less than 3
pixels away; one with a box by one whose centre is in the box or at most 3 pixels beside it. All
other detections are alarms. A sensor is unseen only if weights were trained without it: name those.

OUTPUT.json gets a curve for each sensor, by threshold: Pd, alarms a frame, Pd by size of the target
(below 9 pixels, to 80, above); IoU and Fa at 0.5 where there are masks; and the counts of each
image or clip at 0.5, because the frames of a clip are much alike. A line for each is printed.
"""

import csv
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from mshnet.data import splits
from mshnet.evaluate import Detector
from mshnet.frames import frames_of
from mshnet.metrics import Objects, match_exact, objects
from mshnet.predict import predict_frame
from mshnet.recipe import Config

MASKED = ("nuaa-sirst", "nudt-sirst", "irstd-1k")
SENSORS = (*MASKED, "drone-ir")
PARTS = 10  # of the clips: two are apart from training, see results/pretrained/continued
THRESHOLDS = (0.01, 0.02, 0.05, *np.arange(0.1, 1, 0.1).round(1).tolist(), 0.95, 0.98, 0.99, 0.999)
SIZES = ("below 9", "9 to 80", "above 80")  # pixels of a target, or of its box
EVERY, BESIDE = 10, 3  # frames of a clip; pixels beside a box
COUNTED = "frames", "targets", "found", "alarms", "intersection", "union"
ALARMS = 0.1  # a frame, of the printed line

Box = tuple[float, float, float, float]  # least and largest row, least and largest column
Frames = Iterable[tuple[str, np.ndarray, Any]]  # name of image or clip; a mask, or a list of boxes


def masked(data: Path, sensor: str) -> Frames:
    "Images and masks of a training list."
    config = Config(dataset_dir=str(data / sensor), train_list=f"{sensor}-trainval")
    split = splits(config, ["train"])["train"]
    return ((name, *pair) for name, pair in zip(split.names, split.pairs, strict=True))


def boxes_of(folder: Path) -> dict[tuple[str, int], list[Box]]:
    "The boxes of each frame, by the name of its clip and its number."
    boxes: dict[tuple[str, int], list[Box]] = defaultdict(list)
    with (folder / "boxes.csv").open() as file:
        for row in csv.DictReader(file):
            if row["x"]:
                x, y, width, height = (float(row[key]) for key in ("x", "y", "width", "height"))
                boxes[row["video"], int(row["frame"])].append((y, y + height, x, x + width))
    return boxes


def boxed(folder: Path, parts: Sequence[int] = range(PARTS), every: int = EVERY) -> Frames:
    "Some frames of the clips of some parts, with their boxes; only frames with a box."
    boxes = boxes_of(folder)
    for i, clip in enumerate(sorted(folder.glob("*.mp4"))):
        for number, frame in enumerate(frames_of(clip) if i % PARTS in parts else ()):
            if number % every == 0 and (here := boxes[clip.name, number]):
                yield clip.stem, frame.pixels, here


def in_boxes(
    boxes: list[Box],
    centroids: Iterable[Sequence[float]],  # row and column of each detection
) -> tuple[list[int], list[bool]]:
    "Boxes that hold the centre of a detection, and of each detection whether it is in none."
    held, alarms = set[int](), []
    for row, column in centroids:
        hit = [
            i
            for i, (top, bottom, left, right) in enumerate(boxes)
            if top - BESIDE <= row <= bottom + BESIDE and left - BESIDE <= column <= right + BESIDE
        ]
        held.update(hit)
        alarms.append(not hit)
    return sorted(held), alarms


def found_in(targets: Objects | list[Box], preds: Objects) -> tuple[list[int], list[bool]]:
    "The targets that detections find, and of each detection whether it is an alarm."
    if not isinstance(targets, Objects):
        return in_boxes(targets, preds.centroid)
    pairs = match_exact(targets, preds)
    hits = {pred for _, pred in pairs}
    return [target for target, _ in pairs], [i not in hits for i in range(len(preds))]


def judge(detector: Detector, frames: Frames, name: str) -> dict[str, Any]:
    "Counts of a sensor by threshold, as rates; at 0.5, counts by image or clip, as in COUNTED."
    pixels, false, targets = 0, 0, np.zeros(3)
    found, alarms = np.zeros((len(THRESHOLDS), 3)), np.zeros(len(THRESHOLDS))
    counted = defaultdict[str, Any](lambda: np.zeros(len(COUNTED), int))
    for group, image, truth in tqdm(frames, name, leave=False):
        prob = predict_frame(detector, image)
        by_mask = isinstance(truth, np.ndarray)
        real = objects(truth > 0) if by_mask else truth
        areas = real.area if by_mask else [(b - t) * (r - left) for t, b, left, r in truth]
        groups = [int(area >= 9) + int(area > 80) for area in areas]  # of SIZES
        pixels += prob.size
        np.add.at(targets, groups, 1)
        for k, threshold in enumerate(THRESHOLDS):
            preds = objects(prob > threshold)
            hit, beside = found_in(real, preds)
            np.add.at(found[k], [groups[t] for t in hit], 1)
            alarms[k] += sum(beside)
            if threshold == 0.5:
                both = (prob > 0.5, truth > 0) if by_mask else np.zeros((2, 0))
                overlap = [np.logical_and(*both).sum(), np.logical_or(*both).sum()]
                counted[group] += [1, len(real), len(hit), sum(beside), *overlap]
                false += int(preds.area[beside].sum())
    count, *_, inter, union = sum(counted.values(), np.zeros(len(COUNTED), int)).tolist()
    result: dict[str, Any] = {"frames": count, "targets": int(targets.sum())}
    result["thresholds"] = list(THRESHOLDS)
    result["pd"] = (found.sum(1) / max(targets.sum(), 1)).round(4).tolist()
    result["alarms a frame"] = (alarms / max(count, 1)).round(4).tolist()
    shares = (found / np.maximum(targets, 1)).round(4).T.tolist()
    result["pd by size"] = dict(zip(SIZES, shares, strict=True))
    result["targets by size"] = dict(zip(SIZES, targets.astype(int).tolist(), strict=True))
    if union:
        result |= {"iou": round(inter / union, 4), "fa": round(1e6 * false / pixels, 2)}
    return result | {"counts": {key: value.tolist() for key, value in counted.items()}}


def line(sensor: str, result: dict[str, Any]) -> str:
    "The scores at 0.5, and Pd at the first threshold with few alarms."
    half = result["thresholds"].index(0.5)
    few = [k for k, value in enumerate(result["alarms a frame"]) if value <= ALARMS]
    pd = f"{result['pd'][few[0]]:.3f} at {result['thresholds'][few[0]]:g}" if few else "none"
    own = f"IoU {result['iou']:.3f}  Fa {result['fa']:.1f}  " if "iou" in result else ""
    both = f"Pd {result['pd'][half]:.3f}  alarms {result['alarms a frame'][half]:.2f}"
    return f"{sensor:12}{own}{both}  Pd with {ALARMS} alarms: {pd}"


def main(words: list[str]) -> None:
    "Judge weights on some sensors, and write their curves."
    if len(words) < 3 or (unknown := set(words[3:]) - set(SENSORS)):
        what = f"unknown sensor {', '.join(sorted(unknown))}; " if len(words) > 3 else ""
        sys.exit(f"{what}judge.py DATA WEIGHTS OUTPUT.json [{' '.join(SENSORS)}]")
    data, detector, results = Path(words[0]), Detector(words[1]), {}
    if Path(words[2]).exists():
        sys.exit(f"{words[2]}: exists; name another file")
    for sensor in words[3:] or SENSORS:
        frames = boxed(data / sensor) if sensor == "drone-ir" else masked(data, sensor)
        results[sensor] = judge(detector, frames, sensor)
        print(line(sensor, results[sensor]), flush=True)
        Path(words[2]).write_text(json.dumps({"weights": words[1], **results}, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
