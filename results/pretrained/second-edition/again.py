"""Train the second edition on its false alarms, and judge it at two sizes beside the first.

    python again.py FOLDER DATA OUTPUT.json

FOLDER is that of edition.py. False alarms are collected on all training images but those of the
clips, whose birds and other drones have no box. `WIDE_JITTER` in mshnet.augment was 0.5, 2.0, 1.3.
Judged on what neither edition was trained on: each fortieth frame of each tenth clip, held-out
images (of two data sets each second one), and held-out frames without a target.
"""

import json
import shutil
import sys
from pathlib import Path

import edition  # first: it finds tools/
import judge
import numpy as np
import pretrain
from PIL import Image

from mshnet.core import configure
from mshnet.evaluate import Detector, trained_model
from mshnet.frames import frames_of
from mshnet.train import average, train

MOST = {"epochs": 4, "eval_every": 4}
EVERY = {"clutter": 1, "irstd": 2, "nuaa": 1, "nudt": 2}

folder, data = Path(sys.argv[1]), Path(sys.argv[2])
best, hard, mine = folder / "run" / "best.pt", folder / "hard", folder / "mine"
shutil.copytree(folder / "data", mine, dirs_exist_ok=True)
names = (mine / "trainval.txt").read_text().split()
clips = {name for name in names if name.startswith("drone-ir")}
(mine / "trainval.txt").write_text("".join(f"{n}\n" for n in names if n not in clips))
pretrain.write_hard(Detector(best), mine, hard)
with (hard / "trainval.txt").open("a") as file:
    file.writelines(f"{name}\n" for name in sorted(clips))
own = {"dataset_dir": str(hard), "output_dir": str(folder / "again"), "weight_path": str(best)}
run = train(configure({**edition.RECIPE, **pretrain.AGAIN, **MOST, **own}))


def frames(kind):
    "Frames with their masks, or with their boxes."
    if kind == "clips":
        boxes = judge.boxes_of(data / "drone-ir")
        for clip in sorted((data / "drone-ir").glob("*.mp4"))[edition.UNSEEN :: judge.PARTS]:
            for frame in frames_of(clip):
                if frame.number % 40 == 0:
                    yield frame.pixels, boxes[clip.name, frame.number]
        return
    held = [n for n in (hard / "test.txt").read_text().split() if n.startswith(kind)]
    for name in held[:: EVERY[kind]]:
        pair = [np.asarray(Image.open(hard / part / f"{name}.png")) for part in ("images", "masks")]
        yield pair[0], pair[1] > 0


def detector(share):
    "The first edition, or a mean of the trainings of the second."
    if share is None:
        return Detector("pretrained")
    model = trained_model(best).model
    average(model, trained_model(run.folder).model, share)
    found = Detector(model)
    found.multiscale = pretrain.MULTISCALE
    return found


results = {}
for title, share in {
    "trained on false alarms": 1.0,
    "first edition": None,
    "mean of both trainings": 0.5,
}.items():
    results[title] = {}
    for kind in ("clips", *EVERY):
        results[title][kind] = judge.judge(detector(share), frames(kind), kind)
        print(title, judge.line(kind, results[title][kind]), flush=True)
Path(sys.argv[3]).write_text(json.dumps(results) + "\n")
