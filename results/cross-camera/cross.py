"""How weights do on a camera that they were not trained on.

python cross.py write DATA SET       the set of tools/pretrain.py, with a list for each camera
python cross.py score SET WEIGHTS    on NUAA-SIRST, and on what is held out of the other sets

Prints a line for each list, images at their own size: IoU, Pd, Fa, and false alarms in frames
without a target; threshold 0.5.
"""

import sys
from pathlib import Path

import numpy as np

from mshnet.core import Config
from mshnet.data import splits
from mshnet.evaluate import Detector
from mshnet.metrics import Found, objects, pd_fa
from mshnet.predict import predict_frame

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import pretrain


def write(data: Path, folder: Path) -> None:
    "others.txt is trained on; few.txt is what `mshnet train` scores at its end: it says nothing."
    pretrain.write_set(data, folder)
    trained, held = ((folder / f"{part}.txt").read_text().split() for part in ("trainval", "test"))
    lists = {
        "others": [name for name in trained if not name.startswith("nuaa")],
        "nuaa": [name for name in [*trained, *held] if name.startswith("nuaa")],
        "nudt": [name for name in held if name.startswith("nudt")],
        "clutter": [name for name in held if name.startswith("clutter")],
    }
    for name, listed in (lists | {"few": lists["nudt"][:4]}).items():
        (folder / f"{name}.txt").write_text("".join(f"{key}\n" for key in listed))


def score(folder: Path, weights: str, name: str) -> str:
    "One line of scores."
    lists = {"train_list": "few.txt", "test_list": f"{name}.txt"}
    split = splits(Config(dataset_dir=str(folder), **lists))["test"]
    detector, found = Detector(weights, "cpu"), Found(0, 0, 0)
    both = either = pixels = alarms = 0
    for i in range(len(split)):
        image, mask = split.pairs[i]
        prob, truth = predict_frame(detector, image).astype(np.float64), mask > 0
        found += pd_fa(prob[None], [objects(truth)], [0.5], "exact")[0]
        both += int(((prob > 0.5) & truth).sum())
        either += int(((prob > 0.5) | truth).sum())
        pixels += prob.size
        alarms += len(objects(prob > 0.5)) * (not truth.any())
    rates = f"IoU {both / max(either, 1):.3f}  Pd {found.matched / max(found.targets, 1):.3f}"
    return f"{name:8}{rates}  Fa {found.false_pixels * 1e6 / pixels:.1f}  alarms {alarms}"


if sys.argv[1] == "write":
    write(Path(sys.argv[2]), Path(sys.argv[3]))
else:
    for name in ("nuaa", "nudt", "clutter"):
        print(score(Path(sys.argv[2]), sys.argv[3], name), flush=True)
