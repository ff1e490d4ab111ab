"""Judge weights on frames that were held out; see README.md beside this file.

    python judged.py DATA FOLDER OUTPUT.json TITLE=WEIGHTS ...

FOLDER is that of `continued.py`. The held-out images of its continued/data are scored; of IRSTD-1k,
every tenth image of the training list, and others that step seven and later train on; and
background frames that were trained on. Prints how the other weights differ from the first at
threshold 0.5, with 90% intervals: a bootstrap over images and clips.
"""

import itertools
import json
import sys
from pathlib import Path

import numpy as np
from continued import APART, group  # first: it finds tools/
from judge import boxed, judge, line, masked
from pretrain import MULTISCALE, without_target

from mshnet.data import splits
from mshnet.evaluate import Detector
from mshnet.recipe import Config

KINDS = ("clips", "irstd", "nudt", "nuaa", "clutter", "known clutter", "last")
EVERY = 20  # frames of a clip
DRAWS = 10_000


def frames(kind, data, folder):
    "Frames with their masks, or with their boxes; background frames whole."
    if kind == "clips":
        return boxed(data / "drone-ir", APART, EVERY)
    if kind == "irstd":
        return itertools.islice(masked(data, "irstd-1k"), 9, None, 10)
    if kind == "last":
        images = enumerate(masked(data, "irstd-1k"))
        return (frame for i, frame in images if i % 2 and i % 10 != 9)
    split = splits(Config(dataset_dir=str(folder / "continued" / "data")))["test"]
    if kind.endswith("clutter"):
        held = {group(name) for name in split.names if name.startswith("clutter")}
        real = (frame for frame in without_target(data) if frame[0].startswith("clutter"))
        return (frame for frame in real if (frame[0] in held) == (kind == "clutter"))
    pairs = zip(split.names, split.pairs, strict=True)
    return ((name, *pair) for name, pair in pairs if name.startswith(kind))


def differences(old, new):
    "Of Pd, alarms a frame and IoU, new minus old: the value, and the ends of its 90% interval."
    pairs = np.array([[old[name], new[name]] for name in old]).transpose(1, 0, 2)
    drawn = np.random.default_rng(0).multinomial(len(old), [1 / len(old)] * len(old), DRAWS)
    sums = np.concatenate([pairs.sum(1)[:, None], drawn @ pairs], axis=1).astype(float)
    shares = {"pd": (2, 1), "alarms": (3, 0), "iou": (4, 5)}  # of judge.COUNTED
    for name, (part, whole) in shares.items():
        if sums[..., whole].all():
            value, *others = np.subtract(*(sums[..., part] / sums[..., whole])[::-1])
            low, high = np.quantile(others, [0.05, 0.95])
            yield f"{name} {value:+.3f} ({low:+.3f} to {high:+.3f})"


if __name__ == "__main__":
    data, folder, output = map(Path, sys.argv[1:4])
    results = {}
    for title, weights in (word.split("=", 1) for word in sys.argv[4:]):
        detector = Detector(weights)
        detector.multiscale = MULTISCALE
        results[title] = {}
        for kind in KINDS:
            found = judge(detector, frames(kind, data, folder), kind)
            results[title][kind] = found
            first = next(iter(results.values()))[kind]
            print(
                title, line(kind, found), *differences(first["counts"], found["counts"]), flush=True
            )
    output.write_text(json.dumps(results) + "\n")
