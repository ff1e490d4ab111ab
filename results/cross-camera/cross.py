"""How weights do on images of a camera that they were not trained on.

python cross.py write DATA SET         the training images of tools/pretrain.py, one list an origin
python cross.py score SET RUN LIST...  a run's weights on the images of a list, at their own size

Prints a line for each list: IoU, Pd, Fa and false alarms a frame without a target, threshold 0.5.
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

ORIGINS = {"nuaa-sirst": "nuaa", "nudt-sirst": "nudt"}


def write(data: Path, folder: Path) -> None:
    "Images, masks, a list for each origin (nuaa, nudt, clutter, scene), and all without one set."
    names: dict[str, list[str]] = {}
    for kind in ("images", "masks"):
        (folder / kind).mkdir(parents=True)
    for name, pixels, mask in pretrain.pictures(data):
        pretrain.save_pair(folder, name, pixels, mask)
        origin = name.split("_")[0]
        names.setdefault(ORIGINS.get(origin, origin), []).append(name)
    for left_out in ORIGINS.values():
        others = [*(kept for kept in ORIGINS.values() if kept != left_out), "clutter", "scene"]
        names[f"without_{left_out}"] = [name for origin in others for name in names[origin]]
    names["few"] = names["scene"][:8]  # what `mshnet train` scores at its end; it says nothing
    for origin, listed in names.items():
        (folder / f"{origin}.txt").write_text("".join(f"{name}\n" for name in listed))


def score(folder: Path, weights: Path, listed: str) -> None:
    "One line of scores."
    lists = {"train_list": "few.txt", "test_list": f"{listed}.txt"}
    split = splits(Config(dataset_dir=str(folder), **lists))["test"]
    detector, found = Detector(weights, "cpu"), Found(0, 0, 0)
    both = either = pixels = empty = alarms = 0
    for i in range(len(split)):
        image, mask = split.pairs[i]
        prob, truth = predict_frame(detector, image).astype(np.float64), mask > 0
        found += pd_fa(prob[None], [objects(truth)], [0.5], "exact")[0]
        both += int(((prob > 0.5) & truth).sum())
        either += int(((prob > 0.5) | truth).sum())
        pixels += prob.size
        if not truth.any():
            empty, alarms = empty + 1, alarms + len(objects(prob > 0.5))
    rates = f"IoU {both / max(either, 1):.3f}  Pd {found.matched / max(found.targets, 1):.3f}"
    print(f"{listed}  {rates}  Fa {found.false_pixels * 1e6 / pixels:.1f}", end="  ")
    print(f"alarms an empty frame {alarms / max(empty, 1):.2f} of {empty}")


if sys.argv[1] == "write":
    write(Path(sys.argv[2]), Path(sys.argv[3]))
else:
    for name in sys.argv[4:]:
        score(Path(sys.argv[2]), Path(sys.argv[3]), name)
