"""How weights do on a camera that they were not trained on.

python cross.py write DATA FOLDER       the set of tools/pretrain.py without NUAA-SIRST
python tools/pretrain.py DATA FOLDER    (trains on it, as for the weights that ship)
python cross.py score FOLDER WEIGHTS [SIZE ...]    on NUAA-SIRST and what is held out of the others

Prints a line for each list: IoU, Pd, Fa, and false alarms in frames without a target; threshold
0.5. SIZE is relative to the images' own size (default: 1); of several the largest probability
counts.
"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image

from mshnet.data import splits
from mshnet.evaluate import Detector
from mshnet.metrics import Found, objects, pd_fa
from mshnet.predict import predict_frame
from mshnet.recipe import Config

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import pretrain

BILINEAR = Image.Resampling.BILINEAR


def write(data: Path, folder: Path) -> None:
    "Leave NUAA-SIRST out of both lists; nuaa.txt, nudt.txt and clutter.txt are scored."
    pretrain.write_pictures(lambda: pretrain.pictures(data), folder)
    files = [folder / "trainval.txt", folder / "test.txt"]
    trained, held = (file.read_text().split() for file in files)
    if not any(name.startswith("nuaa") for name in trained):  # it is left out already
        return
    lists = {"nuaa": [name for name in [*trained, *held] if name.startswith("nuaa")]}
    lists |= {
        kind: [name for name in held if name.startswith(kind)] for kind in ("nudt", "clutter")
    }
    for file, names in zip(files, (trained, held), strict=True):
        lists[file.stem] = [name for name in names if not name.startswith("nuaa")]
    for name, listed in lists.items():
        (folder / f"{name}.txt").write_text("".join(f"{key}\n" for key in listed))


def predict(detector: Detector, image: np.ndarray, size: float) -> np.ndarray:
    "Probabilities of an image that is resized first, at the image's own size."
    if size == 1:
        return predict_frame(detector, image)
    height, width = image.shape[:2]
    resized = Image.fromarray(image).resize((round(width * size), round(height * size)), BILINEAR)
    prob = Image.fromarray(predict_frame(detector, np.asarray(resized)))
    return np.asarray(prob.resize((width, height), BILINEAR))


def score(folder: Path, weights: str, name: str, sizes: list[float]) -> str:
    "One line of scores."
    split = splits(Config(dataset_dir=str(folder), test_list=f"{name}.txt"))["test"]
    detector, found = Detector(weights, "cpu"), Found(0, 0, 0)
    both = either = pixels = alarms = 0
    for i in range(len(split)):
        image, mask = split.pairs[i]
        prob = np.max([predict(detector, image, size) for size in sizes], 0).astype(np.float64)
        truth = mask > 0
        found += pd_fa(prob[None], [objects(truth)], [0.5], "exact")[0]
        both += int(((prob > 0.5) & truth).sum())
        either += int(((prob > 0.5) | truth).sum())
        pixels += prob.size
        alarms += len(objects(prob > 0.5)) * (not truth.any())
    rates = f"IoU {both / max(either, 1):.3f}  Pd {found.matched / max(found.targets, 1):.3f}"
    return f"{name:8}{rates}  Fa {found.false_pixels * 1e6 / pixels:.1f}  alarms {alarms}"


if sys.argv[1] == "write":
    write(Path(sys.argv[2]), Path(sys.argv[3]) / "data")
else:
    sizes = [float(word) for word in sys.argv[4:]] or [1.0]
    for name in ("nuaa", "nudt", "clutter"):
        print(score(Path(sys.argv[2]) / "data", sys.argv[3], name, sizes), flush=True)
