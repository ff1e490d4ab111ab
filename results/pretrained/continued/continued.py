"""Continue the weights of tools/pretrain.py on clips; see README.md beside this file.

    python continued.py DATA FOLDER [SETTING=VALUE ...]

FOLDER is that of tools/pretrain.py, and DATA holds drone-ir/, too (see tools/judge.py). The weights
FOLDER/pretrained.safetensors are continued. FOLDER/continued gets the training sets and the runs,
for each step the mean of its two trainings, and at the end pretrained.safetensors, the mean of the
steps of `SHIPS`, with pretrained.json. Run it again to resume.
"""

import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image
from scipy import ndimage

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools"))
import pretrain
from judge import PARTS, Box, boxes_of
from pretrain import MULTISCALE

from mshnet.core import configure
from mshnet.data import splits
from mshnet.evaluate import Detector, trained_model
from mshnet.export import safetensors_bytes
from mshnet.frames import frames_of
from mshnet.recipe import Config
from mshnet.run import write_atomic
from mshnet.scenes import scene
from mshnet.task import Trained
from mshnet.train import average, train

FRAMES = 12  # of a clip
LISTS = (*pretrain.SETS, "irstd-1k", "drone-ir")
PIECE = 342  # pixels, the longest side of a piece of a background frame: twelve of 1280x1024
SMALL = 240  # more scenes, of 128 to 256 pixels, so that patches do not cost dim targets
APART = 5, 9  # of ten clips, these two are not trained on
CUT = 0.3  # of the contrast between a target and its surroundings: its edge
RECIPE = {"augment": "robust", "crop": "native", "target_share": 0.8, "batch_size": 8}
FAINT = 0.3  # the threshold of a search for false alarms
LEAST = {"images": 1, "frames": 1, "clips": 4}  # pixels of one; on a clip, 3 may be a bird

LIGHTER = 0.3, 0.15, 1.6, 2.0  # for a search: the half size weighs less
NONE = (0,) * 6  # copies of the patches of the first six searches


class Step(NamedTuple):
    "Two trainings from the weights of the step before, and their mean."

    name: str
    seeds: tuple[int, int]
    epochs: int  # with crops of 128 pixels; fewer with larger ones
    lr: float
    searches: tuple[str, ...] = ()  # for false alarms of the weights before; see `searched`
    copies: tuple[int, ...] = ()  # of the patches of each search until now
    clips: int = 1  # every which frame of clips
    small: int = 1  # every which small scene
    multiscale: tuple[float, ...] = ()  # of the searches
    lists: tuple[int, ...] = (2, 1, 0, 1)  # copies of the images of LISTS
    sides: tuple[int, int] = (128, 128)  # of the crops of both trainings, in pixels
    begins: tuple[str, ...] = ()  # steps with whose mean it begins; empty: the one before


STEPS = (
    Step("run", (0, 1), 6, 0.0005),
    Step("again", (0, 1), 3, 0.0003, ("images",), (2,), clips=2),
    Step("third", (2, 3), 3, 0.0005, (), (2,)),
    Step("fourth", (4, 5), 7, 0.0005, ("images",), (1, 2), 1, 3),
    Step("fifth", (8, 9), 3, 0.0003, ("images", "clips"), (1, 2, 2, 1), 1, 3, MULTISCALE),
    Step("sixth", (10, 11), 2, 0.0003, ("frames", "clips"), (1, 2, 2, 1, 4, 1), 1, 3, MULTISCALE),
    Step(
        "seventh",
        (12, 13),
        10,
        0.001,
        searches=("images", "frames", "clips"),
        copies=(*NONE, 2, 3, 1),
        small=3,
        multiscale=MULTISCALE,
        lists=(2, 2, 2, 1),
        sides=(128, 192),
        begins=("fifth", "sixth"),
    ),
    Step(
        "eighth",
        (14, 15),
        7,
        0.0005,
        searches=("frames", "clips", "images"),
        copies=(*NONE, 0, 2, 0, 4, 1, 1),
        small=3,
        multiscale=LIGHTER,
        lists=(2, 1, 1, 2),
        sides=(192, 192),
    ),
    Step(
        "ninth",
        (16, 17),
        7,
        0.0007,
        copies=(*NONE, 1, 4, 1, 4, 1, 1),
        small=3,
        lists=(2, 2, 1, 1),
        sides=(192, 192),
        begins=("fifth", "sixth", "seventh", "eighth"),
    ),
    Step(
        "tenth",
        (18, 19),
        14,
        0.0007,
        copies=(*NONE, 0, 4, 0, 4, 0, 1),
        small=3,
        lists=(2, 2, 1, 2),
        sides=(192, 192),
    ),
)
SHIPS = (*4 * ("tenth",), "fifth", "sixth", "seventh", "eighth")  # so half of it is step ten


def pictures(data: Path) -> Iterator[pretrain.Picture]:
    "Every training image; a background frame in twelve pieces, so that an epoch has twelve crops."
    yield from pretrain.listed(data, pretrain.SETS)
    yield from clips(data / "drone-ir")
    for i in range(SMALL):
        rng = np.random.default_rng([7, i])
        yield f"small_{i:03d}", *scene(rng, int(rng.integers(128, 257)))
    for name, pixels, mask in pretrain.without_target(data):
        if not name.startswith("clutter"):
            yield name, pixels, mask
            continue
        for k, cut in enumerate(pretrain.pieces(*mask.shape, PIECE)):
            yield f"{name}_{k:02d}", pixels[cut], mask[cut]
    yield from pretrain.listed(data, LISTS[2:3])


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
            if masks and all(mask.any() for mask in masks):
                yield f"drone-ir_{clip.stem}_{number:04d}", pixels, np.uint8(np.any(masks, axis=0))


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


def names_of(folder: Path, part: str = "trainval") -> list[str]:
    "A list of a folder."
    return (folder / f"{part}.txt").read_text().split()


def copies(name: str, step: Step) -> int:
    "How often a step trains on an image."
    of = dict(zip(LISTS, step.lists, strict=True))
    return of.get(name.split("_")[0], 1)


def searched(kind: str, data: Path, here: Path, step: Step) -> Iterator[list[np.ndarray]]:
    "What is searched: training frames of clips, whole background frames, or all other images."
    split = splits(Config(dataset_dir=str(here)))["train"]
    if kind == "frames":
        known = {name.rsplit("_", 2)[0] for name in split.names if name.startswith("clutter")}
        yield from (pair for name, *pair in pretrain.without_target(data) if name in known)
        return
    for name, pair in zip(split.names, split.pairs, strict=True):
        if copies(name, step) and name.startswith("drone-ir") == (kind == "clips"):
            yield pair


def write_set(here: Path, data: Path, searches: list[Path], step: Step) -> None:
    "Write the training set of a step, with copies of images and of patches."
    shutil.rmtree(here, ignore_errors=True)
    for kind in ("images", "masks"):
        (here / kind).mkdir(parents=True)
    names = names_of(data)
    for start, every in (("drone-ir", step.clips), ("small", step.small)):
        alike = [name for name in names if name.startswith(start)]
        left_out = {*alike} - {*alike[::every]}
        names = [name for name in names if name not in left_out]
    rows = [(data, name, copies(name, step)) for name in names]
    for folder, count in zip(searches, step.copies, strict=True):
        rows += [(folder, name, count) for name in names_of(folder)]
    tests = names_of(data, "test")
    listed = []
    for folder, name, count in [*rows, *((data, name, 1) for name in tests)]:
        for i in range(count):
            listed.append(f"{name}-{folder.name}-{i}")
            for kind in ("images", "masks"):
                target = (folder / kind / f"{name}.png").resolve()
                (here / kind / f"{listed[-1]}.png").symlink_to(target)
    held = len(listed) - len(tests)
    for part, chosen in (("trainval", listed[:held]), ("test", listed[held:])):
        (here / f"{part}.txt").write_text("".join(f"{name}\n" for name in chosen))


def of_steps(folder: Path, names: Iterable[str]) -> list[Path]:
    "The weights of steps."
    return [folder / f"{name}.safetensors" for name in names]


def mean(files: list[Path]) -> Trained:
    "Trained weights, as the mean of several."
    trained = trained_model(files[0])
    for count, file in enumerate(files[1:], 2):
        average(trained.model, trained_model(file).model, 1 / count)
    return trained


def main(words: list[str]) -> int:
    "Train the steps, each from the mean of the one before; score the test lists, write the file."
    data, first = (Path(word) for word in words[:2])
    settings = dict(word.split("=", 1) for word in words[2:])
    folder = first / "continued"
    pretrain.write_pictures(lambda: pictures(data), folder / "data", group)
    means, searches = [first / "pretrained.safetensors"], list[Path]()
    for step in STEPS:
        weights = means[-1]
        if step.begins:
            weights = folder / f"before-{step.name}.safetensors"
            write_atomic(weights, safetensors_bytes(mean(of_steps(folder, step.begins))))
        for kind in step.searches:
            searches.append(folder / f"patches-{step.name}-{kind}")
            if not (searches[-1] / "trainval.txt").exists():
                detector = Detector(weights)
                detector.threshold, detector.multiscale = FAINT, step.multiscale
                searches[-1].mkdir(parents=True, exist_ok=True)
                pairs = searched(kind, data, folder / "data", step)
                pretrain.write_patches(detector, pairs, searches[-1], LEAST[kind])
        here = folder / f"data-{step.name}"
        if not (folder / f"{step.name}-{step.seeds[0]}").exists():
            write_set(here, folder / "data", searches, step)
        runs = []
        for seed, side in zip(step.seeds, step.sides, strict=True):
            epochs = round(step.epochs * (128 / side) ** 2)  # as many pixels
            own = {"epochs": epochs, "eval_every": epochs, "lr": step.lr, "seed": seed}
            own |= {"dataset_dir": here, "weight_path": weights, "crop_size": side}
            own |= {"output_dir": folder / f"{step.name}-{seed}"}
            config = configure(RECIPE | {k: str(v) for k, v in own.items()} | settings)
            run = train(config)
            if not run.finished:
                return 75  # as the status of `mshnet train`
            runs.append(run.folder / "best.pt")
        means.append(folder / f"{step.name}.safetensors")
        write_atomic(means[-1], safetensors_bytes(mean(runs)))
    numbers = pretrain.counts(folder / "data", group)
    numbers["hard_trained"] = sum(len(names_of(search)) for search in searches)
    ships = mean(of_steps(folder, SHIPS))
    pretrain.finish(ships, config, data, first / "data", folder, numbers)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
