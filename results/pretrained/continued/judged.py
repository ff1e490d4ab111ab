"""Judge weights on frames that were held out; see README.md beside this file.

    python judged.py DATA FOLDER OUTPUT.json TITLE=WEIGHTS ...

FOLDER is that of `continued.py`. The held-out images of its continued/data are scored, and of
IRSTD-1k, which is not in it, every tenth image of the training list.
"""

import itertools
import json
import sys
from pathlib import Path

import numpy as np
from PIL import Image

TOP = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(TOP / "tools"))
import judge
from continued import APART
from pretrain import MULTISCALE

from mshnet.evaluate import Detector
from mshnet.frames import frames_of

EVERY = 20  # frames of a clip


def frames(kind, data, folder):
    "Frames with their masks, or with their boxes; background frames whole."
    if kind == "clips":
        boxes = judge.boxes_of(data / "drone-ir")
        for i, clip in enumerate(sorted((data / "drone-ir").glob("*.mp4"))):
            for frame in frames_of(clip) if i % judge.PARTS in APART else ():
                if frame.number % EVERY == 0:
                    yield frame.pixels, boxes[clip.name, frame.number]
        return
    if kind == "irstd":
        yield from itertools.islice(judge.masked(data, "irstd-1k"), 9, None, 10)
        return
    folder = folder / "continued" / "data"
    names = [n for n in (folder / "test.txt").read_text().split() if n.startswith(kind)]
    if kind == "clutter":
        for name in sorted({n.removeprefix("clutter_").rsplit("_", 1)[0] for n in names}):
            file = data / "clutter" / "images" / f"{name}.png"
            pixels = np.asarray(Image.open(file).convert("L"))
            yield pixels, np.zeros(pixels.shape, bool)
        return
    for name in names:
        places = [folder / part / f"{name}.png" for part in ("images", "masks")]
        pixels, mask = (np.asarray(Image.open(place)) for place in places)
        yield pixels, mask > 0


if __name__ == "__main__":
    data, folder, output = map(Path, sys.argv[1:4])
    results = {}
    for title, weights in (word.split("=", 1) for word in sys.argv[4:]):
        detector = Detector(weights)
        detector.multiscale = MULTISCALE
        results[title] = {}
        for kind in ("clips", "irstd", "nudt", "nuaa", "clutter"):
            found = judge.judge(detector, frames(kind, data, folder), kind)
            results[title][kind] = found
            print(title, judge.line(kind, found), flush=True)
    output.write_text(json.dumps(results) + "\n")
