"""Continue the shipped weights on clips; see README.md beside this file.

    python continued.py DATA FOLDER [all] [SETTING=VALUE ...]

`all`: on IRSTD-1k too, which else is the camera that was never seen. A second training on false
alarms takes FOLDER/run/best.pt and the patches of `write_hard` in tools/pretrain.py.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

TOP = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(TOP / "tools"), str(TOP / "results" / "pretrained" / "second-edition")]
import edition
import pretrain

from mshnet.core import configure
from mshnet.train import train

FRAMES = 14  # of a clip
APART = 5, 9  # of ten clips, these two are not trained on
RECIPE = {"augment": "robust", "crop": "native", "target_share": 0.8, "weight_path": "pretrained"}
RECIPE |= {"batch_size": 8, "lr": 0.0005, "epochs": 16, "eval_every": 16}


def pictures(data: Path, sets: tuple[str, ...]) -> Iterator[pretrain.Picture]:
    "Every training image; a background frame in twelve pieces, so that an epoch has twelve crops."
    yield from pretrain.listed(data, sets)
    yield from edition.clips(data / "drone-ir", FRAMES, APART)
    for name, pixels, mask in pretrain.without_target(data):
        if not name.startswith("clutter"):
            yield name, pixels, mask
            continue
        height, width = -(-pixels.shape[0] // 3), -(-pixels.shape[1] // 4)
        for k, (i, j) in enumerate(np.ndindex(3, 4)):
            cut = np.s_[i * height : (i + 1) * height, j * width : (j + 1) * width]
            yield f"{name}_{k:02d}", pixels[cut], mask[cut]


def group(name: str) -> str:
    "What is held out together: an image, the frames of a clip, the pieces of a frame."
    return name.rsplit("_", 1)[0] if name.startswith(("drone-ir", "clutter")) else name


if __name__ == "__main__":
    data, folder, *more = sys.argv[1:]
    sets = edition.SETS if "all" in more else pretrain.SETS
    pretrain.write_pictures(lambda: pictures(Path(data), sets), Path(folder) / "data", group)
    own = {"dataset_dir": f"{folder}/data", "output_dir": f"{folder}/run"}
    given = dict(word.split("=", 1) for word in more if "=" in word)
    sys.exit(0 if train(configure({**RECIPE, **own, **given})).finished else 75)
