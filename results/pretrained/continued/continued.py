"""Continue the weights of tools/pretrain.py on clips; see README.md beside this file.

    python continued.py DATA FOLDER [SETTING=VALUE ...]

FOLDER is that of tools/pretrain.py, and DATA holds drone-ir/, too (see tools/judge.py). The weights
FOLDER/pretrained.safetensors are continued. FOLDER/continued gets the training sets and the runs,
and for each step the mean of its two trainings. Run it again to resume.
"""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image
from scipy import ndimage

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools"))
import pretrain
from judge import PARTS, Box, boxes_of

from mshnet.core import configure
from mshnet.evaluate import Detector, trained_model
from mshnet.export import safetensors_bytes
from mshnet.frames import frames_of
from mshnet.run import write_atomic
from mshnet.scenes import scene
from mshnet.task import Trained
from mshnet.train import average, train

FRAMES = 12  # of a clip
PIECE = 342  # pixels, the longest side of a piece of a background frame: twelve of 1280x1024
SMALL = 240  # more scenes, of 128 to 256 pixels, so that patches do not cost dim targets
APART = 5, 9  # of ten clips, these two are not trained on
CUT = 0.3  # of the contrast between a target and its surroundings: its edge
RECIPE = {"augment": "robust", "crop": "native", "target_share": 0.8, "batch_size": 8}
STEPS = (  # seeds, whose mean is taken; epochs, rate; every which frame of clips, small scene; copies
    ("run", (0, 1), 6, 0.0005, 1, 1, ()),
    ("again", (0, 1), 3, 0.0003, 2, 1, (2,)),  # one number more: patches around false alarms of now
    ("third", (2, 3), 3, 0.0005, 1, 1, (2,)),
    ("fourth", (4, 5), 7, 0.0005, 1, 3, (1, 2)),
    ("fifth", (6, 7), 2, 0.0003, 2, 3, (1, 2, 2)),
)
FAINT = 0.3  # the threshold of those false alarms
SKIPPED = "drone-ir"  # not searched: clips have birds without a box


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


def names_of(folder: Path, part: str = "trainval") -> list[str]:
    "A list of a folder."
    return (folder / f"{part}.txt").read_text().split()


def write_set(here: Path, data: Path, mined: list[Path], step: tuple) -> None:
    "Write the training set of a step: NUAA-SIRST's images twice, and copies of patches."
    *_, clips, small, copies = step
    shutil.rmtree(here, ignore_errors=True)
    for kind in ("images", "masks"):
        (here / kind).mkdir(parents=True)
    names = names_of(data)
    for start, every in (("drone-ir", clips), ("small", small)):
        alike = [name for name in names if name.startswith(start)]
        left_out = {*alike} - {*alike[::every]}
        names = [name for name in names if name not in left_out]
    rows = [(data, name, 1 + name.startswith("nuaa")) for name in names]
    for folder, count in zip(mined, copies, strict=True):
        patches = sorted({*names_of(folder)} - {*names_of(data)})
        rows += [(folder, name, count) for name in patches]
    tests = names_of(data, "test")
    listed = []
    for folder, name, count in [*rows, *((data, name, 1) for name in tests)]:
        for i in range(count):
            listed.append(f"{folder.name}-{i}-{name}")
            for kind in ("images", "masks"):
                target = (folder / kind / f"{name}.png").resolve()
                (here / kind / f"{listed[-1]}.png").symlink_to(target)
    held = len(listed) - len(tests)
    for part, chosen in (("trainval", listed[:held]), ("test", listed[held:])):
        (here / f"{part}.txt").write_text("".join(f"{name}\n" for name in chosen))


def mean(files: list[Path]) -> Trained:
    "Trained weights, as the mean of several."
    trained = trained_model(files[0])
    for count, file in enumerate(files[1:], 2):
        average(trained.model, trained_model(file).model, 1 / count)
    return trained


def main(words: list[str]) -> int:
    "Train the steps, each from the mean of the one before."
    data, first = (Path(word) for word in words[:2])
    settings, folder = dict(word.split("=", 1) for word in words[2:]), first / "continued"
    pretrain.write_pictures(lambda: pictures(data), folder / "data", group)
    weights, mined = first / "pretrained.safetensors", list[Path]()
    for step in STEPS:
        name, seeds, epochs, lr, *_, copies = step
        if len(copies) > len(mined):
            mined.append(folder / f"patches-{name}")
            detector = Detector(weights)
            detector.threshold = FAINT
            pretrain.write_hard(detector, folder / "data", mined[-1], (SKIPPED,))
        if not (folder / f"{name}-{seeds[0]}").exists():
            write_set(folder / f"data-{name}", folder / "data", mined, step)
        found = []
        for seed in seeds:
            own = {"epochs": epochs, "eval_every": epochs, "lr": lr, "seed": seed}
            own |= {"dataset_dir": folder / f"data-{name}", "weight_path": weights}
            own |= {"output_dir": folder / f"{name}-{seed}"}
            run = train(configure(RECIPE | {k: str(v) for k, v in own.items()} | settings))
            if not run.finished:
                return 75  # as the status of `mshnet train`
            found.append(run.folder / "best.pt")
        weights = folder / f"{name}.safetensors"
        write_atomic(weights, safetensors_bytes(mean(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
