"""Judge weights on frames that were held out; see README.md beside this file.

    python judged.py DATA FOLDER OUTPUT.json TITLE=WEIGHTS ...

FOLDER is that of `continued.py`. The held-out images of its continued/data are scored, and of
IRSTD-1k, which is not in it, every tenth image of the training list.
"""

import itertools
import json
import sys
from pathlib import Path

from continued import APART, group  # first: it finds tools/
from judge import boxed, judge, line, masked
from pretrain import MULTISCALE, without_target

from mshnet.data import splits
from mshnet.evaluate import Detector
from mshnet.recipe import Config

EVERY = 20  # frames of a clip


def frames(kind, data, folder):
    "Frames with their masks, or with their boxes; background frames whole."
    if kind == "clips":
        return boxed(data / "drone-ir", APART, EVERY)
    if kind == "irstd":
        return itertools.islice(masked(data, "irstd-1k"), 9, None, 10)
    split = splits(Config(dataset_dir=str(folder / "continued" / "data")))["test"]
    if kind == "clutter":
        held = {group(name) for name in split.names if name.startswith(kind)}
        return (pair for name, *pair in without_target(data) if name in held)
    pairs = zip(split.names, split.pairs, strict=True)
    return (pair for name, pair in pairs if name.startswith(kind))


if __name__ == "__main__":
    data, folder, output = map(Path, sys.argv[1:4])
    results = {}
    for title, weights in (word.split("=", 1) for word in sys.argv[4:]):
        detector = Detector(weights)
        detector.multiscale = MULTISCALE
        results[title] = {}
        for kind in ("clips", "irstd", "nudt", "nuaa", "clutter"):
            found = judge(detector, frames(kind, data, folder), kind)
            results[title][kind] = found
            print(title, line(kind, found), flush=True)
    output.write_text(json.dumps(results) + "\n")
