"""What do tracks do for a clip? python tools/tracks.py DATA WEIGHTS OUTPUT.json

DATA holds drone-ir/. Every frame of each tenth clip is predicted: part 9 of ten (the settings of
the tracker may be chosen on it) and part 5, which no weights were trained on. OUTPUT
gets for both parts, by threshold, before (each detection counts) and after (those of confirmed
tracks): alarms a minute, which are detections beside all boxes; Pd by frame, at once and at the end
(when a confirmed track has its first detections back); and Pd by clip.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from judge import PARTS, Box, boxes_of, in_boxes

from mshnet.evaluate import Detector
from mshnet.frames import frames_of
from mshnet.metrics import objects
from mshnet.predict import predict_frame
from mshnet.tracks import Tracker

CLIPS = {"held out": 9, "unseen": 5}
THRESHOLDS = (0.1, 0.3, 0.5, 0.7, 0.9)
RATE = 30 * 60  # frames a minute
Clip = tuple[list[list[Box]], dict[float, list[np.ndarray]]]  # boxes; centroids by threshold


def read(data: Path, detector: Detector, rest: int) -> list[Clip]:
    "The clips of a part."
    boxes, clips = boxes_of(data / "drone-ir"), []
    for i, file in enumerate(sorted((data / "drone-ir").glob("*.mp4"))):
        if i % PARTS != rest:
            continue
        found: dict[float, list[np.ndarray]] = {t: [] for t in THRESHOLDS}
        for frame in frames_of(file):
            prob = predict_frame(detector, frame.pixels)
            for threshold, places in found.items():
                places.append(objects(prob > threshold).centroid)
        clips.append(([boxes[file.name, n] for n in range(len(found[0.5]))], found))
        print(file.name, flush=True)
    return clips


def rates(clips: list[Clip], threshold: float, **how: Any) -> dict[str, float]:
    "Alarms a minute, and Pd, before and after."
    words = "alarms", "alarms with tracks", "pd", "pd at once", "pd at the end"
    total, frames, targets = dict.fromkeys(words, 0), 0, 0
    seen = {"pd by clip": 0, "pd by clip with tracks": 0}
    for boxes, found in clips:
        tracker = Tracker(**how)
        frames += len(boxes)
        rows, any_found = [], np.zeros(2, bool)
        for here, places in zip(boxes, found[threshold], strict=True):
            numbers = tracker.update(places)
            rows.append((here, places, numbers, [n in tracker.confirmed for n in numbers]))
        for here, places, numbers, at_once in rows:
            kept = [n in tracker.confirmed for n in numbers]
            sets = {"": places, "at once": places[at_once], "at the end": places[kept]}
            hits = {word: in_boxes(here, where) for word, where in sets.items()}
            targets += len(here)
            for word, (held, _) in hits.items():
                total[f"pd {word}".strip()] += len(held)
            total["alarms"] += sum(hits[""][1])
            total["alarms with tracks"] += sum(hits["at once"][1])
            any_found |= [bool(hits[""][0]), bool(hits["at once"][0])]
        for word, value in zip(seen, any_found, strict=True):
            seen[word] += int(value)
    shares = {k: n / (targets if k.startswith("pd") else frames / RATE) for k, n in total.items()}
    return {
        k: round(v, 4)
        for k, v in {**shares, **{k: n / len(clips) for k, n in seen.items()}}.items()
    }


def main(words: list[str]) -> int:
    "Measure both parts."
    if len(words) != 3:
        sys.exit("tracks.py DATA WEIGHTS OUTPUT.json")
    detector, result = Detector(words[1]), {"weights": words[1]}
    for part, rest in CLIPS.items():
        clips = read(Path(words[0]), detector, rest)
        result[part] = {str(t): rates(clips, t) for t in THRESHOLDS}
        for threshold, row in result[part].items():
            print(part, threshold, row)
        Path(words[2]).write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
