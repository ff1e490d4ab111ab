"""The second edition of the weights, which does not ship; see README.md beside this file.

    python edition.py DATA [FOLDER] [without=SENSOR] [SETTING=VALUE ...]

As tools/pretrain.py, with three differences: IRSTD-1k and frames of drone-ir are trained on, too;
the training continues from the first edition; nothing is trained twice. `without=drone-ir` leaves
the clips out. `WIDE_JITTER` in mshnet.augment was 0.5, 2.0, 1.3.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from scipy import ndimage

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools"))
import pretrain
from judge import PARTS, Box, boxes_of

from mshnet.core import configure
from mshnet.evaluate import trained_model
from mshnet.frames import frames_of
from mshnet.train import train

SETS = (*pretrain.SETS, "irstd-1k")
FRAMES = 6  # of a clip
UNSEEN = 5  # of ten clips, this one is not used here
RECIPE = {"augment": "robust", "crop": "native", "target_share": 0.9, "weight_path": "pretrained"}
RECIPE |= {"batch_size": 8, "lr": 0.0005, "epochs": 5, "eval_every": 5}
ORIGINS = "nuaa", "nudt", "irstd", "drone", "clutter", "scene"


def pictures(data: Path, without: str) -> Iterator[pretrain.Picture]:
    "Every training image. Test lists are not read."
    yield from pretrain.listed(data, [name for name in SETS if name != without])
    if without != "drone-ir":
        yield from clips(data / "drone-ir")
    yield from pretrain.without_target(data)


def clips(
    folder: Path,
    count: int = FRAMES,
    unseen: Sequence[int] = (UNSEEN,),
) -> Iterator[pretrain.Picture]:
    "Some frames of the clips that are used, whose targets have a mask grown in their boxes."
    boxes = boxes_of(folder)
    for i, clip in enumerate(sorted(folder.glob("*.mp4"))):
        if i % PARTS in unseen:
            continue
        frames = [frame.pixels for frame in frames_of(clip)]
        for number in np.linspace(0, len(frames) - 1, count).round().astype(int):
            pixels = np.asarray(Image.fromarray(frames[number]).convert("L"))
            masks = [grown(pixels, box) for box in boxes[clip.name, number]]
            if all(mask.any() for mask in masks):
                mask = np.any([np.zeros(pixels.shape, bool), *masks], axis=0)
                yield f"drone-ir_{clip.stem}_{number:04d}", pixels, np.uint8(mask)


def grown(pixels: np.ndarray, box: Box) -> np.ndarray:
    "The pixels of a box above half the contrast to its surroundings; none where it is weak."
    top, bottom, left, right = (round(edge) for edge in box)
    inside, near = np.zeros((2, *pixels.shape), bool)
    inside[max(top, 0) : bottom, max(left, 0) : right] = True
    near[max(top - 6, 0) : bottom + 6, max(left - 6, 0) : right + 6] = True
    around, within = pixels[near & ~inside], pixels[inside]
    if not around.size or not within.size:
        return np.zeros_like(inside)
    low, high = np.median(around), within.max()
    if high - low < max(8, 3 * around.std()):
        return np.zeros_like(inside)
    parts, _ = ndimage.label(inside & (pixels >= (low + high) / 2), np.ones((3, 3)))
    sizes = np.bincount(parts.ravel())
    sizes[0] = 0
    return ndimage.binary_fill_holes(np.isin(parts, np.flatnonzero(sizes >= sizes.max() / 4)))


def clip_of(name: str) -> str:
    "What is held out together: an image, or the frames of a clip."
    return name.rsplit("_", 1)[0] if name.startswith("drone-ir") else name


def main(words: list[str]) -> int:
    "Train, choose the threshold, score the test lists, write the file."
    data, *more = [Path(word) for word in words if "=" not in word]
    folder = more[0] if more else Path("runs/second-edition")
    settings = dict(word.split("=", 1) for word in words if "=" in word)
    without = settings.pop("without", "")
    pretrain.write_pictures(lambda: pictures(data, without), folder / "data", clip_of)
    own = {"dataset_dir": str(folder / "data"), "output_dir": str(folder / "run")}
    config = configure({**RECIPE, **own, **settings})
    run = train(config)
    if not run.finished:
        return 75  # as the status of `mshnet train`
    numbers = pretrain.counts(folder / "data", ORIGINS)
    pretrain.finish(trained_model(run.folder), config, data, folder, numbers, SETS)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
