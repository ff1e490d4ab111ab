"""What do tracks do for a clip? python tools/tracks.py DATA WEIGHTS OUTPUT.json

DATA holds drone-ir/. Every frame of each tenth clip, which no weights were trained on, is
predicted; frames with a box count. OUTPUT gets by threshold, before (each detection counts) and
after (those of confirmed tracks): alarms a minute, which are detections beside all boxes; Pd by
frame, at once and at the end (when a confirmed track has its first detections back); Pd by clip.
"""

import json
import sys
from pathlib import Path

import numpy as np
from judge import PARTS, Box, boxes_of, in_boxes

from mshnet.evaluate import Detector
from mshnet.frames import frames_of
from mshnet.metrics import objects
from mshnet.predict import predict_frame
from mshnet.tracks import Tracker

THRESHOLDS = (0.1, 0.3, 0.5, 0.7, 0.9)
RATE = 30 * 60  # frames a minute
Clip = tuple[list[list[Box]], dict[float, list[np.ndarray]]]  # boxes; centroids by threshold


def read(data: Path, detector: Detector) -> list[Clip]:
    "The clips."
    folder, clips = data / "drone-ir", []
    boxes = boxes_of(folder)
    for file in sorted(folder.glob("*.mp4"))[5::PARTS]:
        found: dict[float, list[np.ndarray]] = {t: [] for t in THRESHOLDS}
        for frame in frames_of(file):
            prob = predict_frame(detector, frame.pixels)
            for threshold, places in found.items():
                places.append(objects(prob > threshold).centroid)
        clips.append(([boxes[file.name, n] for n in range(len(found[0.5]))], found))
        print(file.name, flush=True)
    return clips


def rates(clips: list[Clip], threshold: float) -> dict[str, float]:
    "Alarms a minute, and Pd, before and after."
    alarms, held, clips_held = np.zeros(3), np.zeros(3), np.zeros(3)  # before, at once, at the end
    for boxes, found in clips:
        tracker, rows, held_before = Tracker(), [], held.copy()
        for places in found[threshold]:
            numbers = tracker.update(places)
            rows.append((places, numbers, [n in tracker.confirmed for n in numbers]))
        for here, (places, numbers, at_once) in zip(boxes, rows, strict=True):
            at_the_end = [n in tracker.confirmed for n in numbers]
            for i, kept in enumerate((places, places[at_once], places[at_the_end]) if here else ()):
                hit, beside = in_boxes(here, kept)
                held[i] += len(hit)
                alarms[i] += sum(beside)
        clips_held += held > held_before
    targets = sum(len(here) for boxes, _ in clips for here in boxes)
    minutes = sum(bool(here) for boxes, _ in clips for here in boxes) / RATE
    values = {
        "alarms": alarms[0] / minutes,
        "alarms with tracks": alarms[1] / minutes,
        "pd": held[0] / targets,
        "pd at once": held[1] / targets,
        "pd at the end": held[2] / targets,
        "pd by clip": clips_held[0] / len(clips),
        "pd by clip with tracks": clips_held[1] / len(clips),
    }
    return {name: round(float(value), 4) for name, value in values.items()}


def main(words: list[str]) -> None:
    "Measure, print and write."
    if len(words) != 3:
        sys.exit("tracks.py DATA WEIGHTS OUTPUT.json")
    clips = read(Path(words[0]), Detector(words[1]))
    found = {str(t): rates(clips, t) for t in THRESHOLDS}
    for threshold, row in found.items():
        print(threshold, row)
    Path(words[2]).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
