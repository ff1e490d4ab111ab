"""Continue the weights of tools/pretrain.py on clips; see README.md beside this file.

    python continued.py DATA FOLDER [SETTING=VALUE ...]

FOLDER is that of tools/pretrain.py, and DATA holds drone-ir/, too (see tools/judge.py). The weights
FOLDER/pretrained.safetensors are continued. FOLDER/continued gets the training sets, the runs, the
mean of the last two and its numbers. Run it again to resume.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image
from scipy import ndimage

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools"))
import pretrain
from judge import PARTS, Box, boxes_of

from mshnet.core import configure
from mshnet.evaluate import Detector, trained_model
from mshnet.frames import frames_of
from mshnet.train import average, train

FRAMES = 14  # of a clip
PIECE = 342  # pixels, the longest side of a piece of a background frame: twelve of 1280x1024
APART = 5, 9  # of ten clips, these two are not trained on
CUT = 0.3  # of the contrast between a target and its surroundings: its edge
RECIPE = {"augment": "robust", "crop": "native", "target_share": 0.8}
RECIPE |= {"batch_size": 8, "lr": 0.0005, "epochs": 12, "eval_every": 12}
AGAIN = {"lr": 0.0003, "epochs": 4, "eval_every": 4}
STEPS = ("run", "data", {}), ("again", "hard", AGAIN), ("third", "harder", AGAIN)  # and their data
SHARE = 0.5  # of the last training's weights in the file, beside those of the one before
SKIPPED = "drone-ir", "again", "hard"  # not searched: clips have birds without a box


def pictures(data: Path) -> Iterator[pretrain.Picture]:
    "Every training image; a background frame in twelve pieces, so that an epoch has twelve crops."
    yield from pretrain.listed(data, pretrain.SETS)
    yield from clips(data / "drone-ir")
    for name, pixels, mask in pretrain.without_target(data):
        if not name.startswith("clutter"):
            yield name, pixels, mask
            continue
        for k, cut in enumerate(pretrain.pieces(*mask.shape, PIECE)):
            yield f"{name}_{k:02d}", pixels[cut], mask[cut]


def clips(folder: Path) -> Iterator[pretrain.Picture]:
    "Some frames of the clips that are used, whose targets have a mask grown in their boxes."
    boxes = boxes_of(folder)
    for i, clip in enumerate(sorted(folder.glob("*.mp4"))):
        if i % PARTS in APART:
            continue
        frames = [frame.pixels for frame in frames_of(clip)]
        for number in np.linspace(0, len(frames) - 1, FRAMES).round().astype(int):
            pixels = np.asarray(Image.fromarray(frames[number]).convert("L"))
            masks = [grown(pixels, box) for box in boxes[clip.name, number]]
            if all(mask.any() for mask in masks):
                mask = np.any([np.zeros(pixels.shape, bool), *masks], axis=0)
                yield f"drone-ir_{clip.stem}_{number:04d}", pixels, np.uint8(mask)


def grown(pixels: np.ndarray, box: Box, cut: float = CUT) -> np.ndarray:
    "The pixels of a box with this share of its contrast and more; none where it is weak."
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
    parts, _ = ndimage.label(inside & (pixels >= low + (high - low) * cut), np.ones((3, 3)))
    sizes = np.bincount(parts.ravel())
    sizes[0] = 0
    return ndimage.binary_fill_holes(np.isin(parts, np.flatnonzero(sizes >= sizes.max() / 4)))


def group(name: str) -> str:
    "What is held out together: an image, the frames of a clip, the pieces of a frame."
    return name.rsplit("_", 1)[0] if name.startswith(("drone-ir", "clutter")) else name


def reweigh(folder: Path, before: Path | None) -> None:
    "Repeat NUAA-SIRST's images and new patches; in the last list, halve the frames of clips."
    listed = folder / "trainval.txt"
    names = listed.read_text().split()
    old = (before / "trainval.txt").read_text().split() if before else names
    copies = dict.fromkeys(sorted({*names} - {*old}), 3)
    if folder.name == "harder":
        left_out = set([name for name in names if name.startswith("drone-ir")][1::2])
        names = [name for name in names if name not in left_out]
    if folder.name != "hard":
        copies |= dict.fromkeys([n for n in names if n.startswith("nuaa")], 2 if before else 1)
    for name, count in copies.items():
        for again in (f"again-{folder.name}-{i}-{name}" for i in range(count)):
            for kind in ("images", "masks"):
                (folder / kind / f"{again}.png").symlink_to(f"{name}.png")
            names.append(again)
    listed.write_text("".join(f"{name}\n" for name in names))


def main(words: list[str]) -> int:
    "Train three times, score the test lists, write the file."
    data, first = (Path(word) for word in words[:2])
    settings, folder = dict(word.split("=", 1) for word in words[2:]), first / "continued"
    weights, before = [first / "pretrained.safetensors"], None
    for name, part, own in STEPS:
        here = folder / part
        if not (folder / name).exists():
            if before:
                pretrain.write_hard(Detector(weights[-1]), before, here, SKIPPED)
            else:
                pretrain.write_pictures(lambda: pictures(data), here, group)
            reweigh(here, before)
        places = {"dataset_dir": here, "output_dir": folder / name, "weight_path": weights[-1]}
        config = configure(RECIPE | own | {k: str(v) for k, v in places.items()} | settings)
        run = train(config)
        if not run.finished:
            return 75  # as the status of `mshnet train`
        weights.append(run.folder / "best.pt")
        before = here
    model, trained = trained_model(weights[-2]).model, trained_model(weights[-1])
    average(model, trained.model, SHARE)
    numbers = pretrain.counts(here, group)
    pretrain.finish(replace(trained, model=model), config, data, first / "data", folder, numbers)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
