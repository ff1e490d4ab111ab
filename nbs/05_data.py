# %% [markdown]
# # data
#
# > Find, read, check, split, augment, batch: from a folder of messy images to batches that any device can take, and synthetic scenes for when there is no folder.

# %%
#| default_exp data

# %%
#| hide
import tempfile

from fastcore.test import expect_fail, test_close, test_eq

# %%
#| export
import hashlib
import os
import warnings
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path, PureWindowsPath
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageFilter
from torch import Tensor

from mshnet.core import Config, UserError
from mshnet.metrics import objects
from mshnet.places import find_dataset


# %% [markdown]
# ## A split in memory
#
# A benchmark of this field is a few hundred small images: it fits in memory as 8-bit pixels, read once. Grey images are stored once and not three times.

# %%
#| export
@dataclass(frozen=True)
class Split:
    "Images and masks of one part of a data set, as 8-bit pixels, in list order."

    name: str  # "train", "val" or "test"
    names: tuple[str, ...]
    images: tuple[np.ndarray, ...]  # each [H,W] grey or [H,W,3], uint8
    masks: tuple[np.ndarray, ...]  # each [H,W] uint8, 0 or 1
    source: str  # data set's name

    def __len__(self) -> int:
        "Number of images."
        return len(self.names)

    @property
    def hash(self) -> str:
        "Twelve digits that stand for the names and every pixel, in list order."
        digest = hashlib.sha256()
        for name, image, mask in zip(self.names, self.images, self.masks, strict=True):
            digest.update(f"{name}{image.shape}{mask.shape}".encode())
            digest.update(image.tobytes())
            digest.update(mask.tobytes())
        return digest.hexdigest()[:12]

    def part(self, name: str, indices: Sequence[int]) -> "Split":
        "The images at these places, as a split of its own."
        names = tuple(self.names[i] for i in indices)
        images = tuple(self.images[i] for i in indices)
        masks = tuple(self.masks[i] for i in indices)
        return Split(name, names, images, masks, self.source)


# %%
dots = Split(
    "train",
    ("a", "b"),
    (np.zeros((4, 6), np.uint8),) * 2,
    (np.eye(4, 6, dtype=np.uint8),) * 2,
    "dots",
)
test_eq((len(dots), dots.part("val", [1]).names), (2, ("b",)))
assert dots.hash == dots.part("train", [0, 1]).hash != dots.part("train", [1, 0]).hash
dots.hash

# %% [markdown]
# ## Reading
#
# Published infrared sets hold grey, RGB, RGBA and palette files, sometimes mixed in one folder. All become what Pillow's conversion to RGB makes of them, as the official code does; where the three channels agree, one is kept. A camera's 16-bit frame has no such conversion that keeps its contrast (Pillow clips at 255), so it is stretched from its own minimum and maximum, and the user is told.

# %%
#| export
DEEP = ("I", "F")  # beginnings of Pillow's modes with more than 8 bits


def read_image(
    path: Path,
) -> tuple[np.ndarray, str]:  # [H,W] or [H,W,3] uint8; the file's mode, such as "L" or "RGBA"
    "Read an image as 8-bit grey or colour. Raises OSError if the file is no readable image."
    with Image.open(path) as file:
        if file.mode.startswith(DEEP):
            values = np.asarray(file, np.float64)
            low, high = values.min(), values.max()
            stretched = np.round((values - low) * 255 / max(high - low, 1))
            return stretched.astype(np.uint8), file.mode
        rgb, mode = np.asarray(file.convert("RGB")), file.mode
    grey = (rgb == rgb[..., :1]).all()
    return np.ascontiguousarray(rgb[..., 0] if grey else rgb), mode


def read_mask(
    path: Path,
    size: tuple[int, int],  # height and width of its image
) -> tuple[np.ndarray, set[str]]:  # [H,W] uint8, 0 or 1; what had to be done to it
    "Read a mask as 0 and 1, resized as labels to its image's size and cut at half if it is grey."
    done = set()
    with Image.open(path) as file:
        grey = file.convert("L")
    if grey.size != size[::-1]:
        done.add("mask of another size than its image, resized as labels")
        grey = grey.resize(size[::-1], Image.Resampling.NEAREST)
    values = np.asarray(grey)
    if values.max() <= 1:
        return values.astype(np.uint8), done
    if not np.isin(values, (0, 255)).all():
        done.add("grey mask, cut at half of 255")
    return (values > 127).astype(np.uint8), done


# %%
with tempfile.TemporaryDirectory() as tmp:
    path = Path(tmp) / "frame.png"
    Image.fromarray(np.array([[1000, 5000]], np.uint16)).save(path)
    pixels, mode = read_image(path)
    Image.fromarray(np.array([[0, 90, 200, 255]], np.uint8)).save(path)
    labels, done = read_mask(path, (1, 4))
test_eq((pixels.tolist(), mode.startswith(DEEP)), ([[0, 255]], True))
test_eq(labels.tolist(), [[0, 0, 1, 1]])
done

# %% [markdown]
# ## Finding
#
# The layouts in use differ in folder and list names, nothing else. A data set is recognised by what is in its folder; anything ambiguous is an error that says how to decide.

# %%
#| export
FOLDERS = [("images", "masks"), ("IRSTD1k_Img", "IRSTD1k_Label")]
LISTS = [("trainval.txt", "test.txt"), ("train.txt", "test.txt"), ("train.txt", "val.txt")]
SUFFIXES = (".png", ".bmp", ".jpg", ".jpeg", ".tif", ".tiff")


@dataclass(frozen=True)
class Layout:
    "Where the parts of a data set lie."

    root: Path
    images: Path
    masks: Path
    lists: dict[str, Path]  # by part: "train", "test"


def find_layout(
    root: Path,
    config: Config,
    parts: Sequence[str] = ("train", "test"),  # whose lists are needed
) -> Layout:
    "Recognise the layout of a data set's folder; UserError if it has none that is known."
    pairs = [(root / i, root / m) for i, m in FOLDERS]
    pair = next(((i, m) for i, m in pairs if i.is_dir() and m.is_dir()), None)
    if not pair:
        known = " or ".join(f"{i}/ and {m}/" for i, m in FOLDERS)
        inside = [p.parent.name for i, _ in FOLDERS for p in sorted(root.glob(f"*/{i}"))]
        hint = f"; did you mean {root / inside[0]}?" if inside else ""
        raise UserError(f"dataset_dir={str(root)!r}: has no {known}{hint}")
    lists, wrong = {}, []
    for name in parts:
        try:
            lists[name] = find_list(root, name, getattr(config, f"{name}_list"))
        except UserError as error:
            wrong.append(str(error))
    if wrong:
        raise UserError("; ".join(wrong))
    return Layout(root, *pair, lists)


# %% [markdown]
# A pair of lists counts before single ones, because `train.txt` and `trainval.txt` may stand side by side and only their partner tells which is meant.

# %%
#| export
def find_list(
    root: Path,
    name: str,  # "train" or "test"
    asked: str,  # the file named by the user; empty: found
) -> Path:
    "The file that lists the names of one part."
    if asked:
        if (root / asked).is_file():
            return root / asked
        raise UserError(f"{name}_list={asked!r}: there is no such file in {root}")
    for pair in LISTS:
        if all((root / file).is_file() for file in pair):
            return root / dict(zip(("train", "test"), pair, strict=True))[name]
    found = sorted((root / "img_idx").glob(f"{name}_*.txt"))
    if not found:  # one list may have been named by the user, and the other one lie here
        single = dict.fromkeys(
            dict(zip(("train", "test"), pair, strict=True))[name] for pair in LISTS
        )
        found = [root / file for file in single if (root / file).is_file()]
    if len(found) == 1:
        return found[0]
    seen = ", ".join(p.relative_to(root).as_posix() for p in found)
    what = f"several lists ({seen})" if found else f"no list of {name} names such as {name}.txt"
    raise UserError(f"dataset_dir={str(root)!r}: {what}; name one with --{name}-list")


# %%
with tempfile.TemporaryDirectory() as tmp:
    root = Path(tmp)
    for folder in ("images", "masks", "img_idx"):
        (root / folder).mkdir()
    for name in ("train_A", "test_A", "test_B"):
        (root / "img_idx" / f"{name}.txt").write_text("one\n")
    test_eq(find_list(root, "train", "").name, "train_A.txt")
    layout = find_layout(root, Config(test_list="img_idx/test_B.txt"))
    assert isinstance(layout, Layout)
    test_eq(layout.lists["test"].name, "test_B.txt")
    with expect_fail(UserError, contains="several lists"):
        find_layout(root, Config())


# %% [markdown]
# ## Checking: everything wrong, all of it at once
#
# Someone who prepares a data set does not want the first error but all of them. So reading collects problems, each with the names it concerns, and the caller decides: a report prints them all, training stops at errors and warns of the rest once, with counts.

# %%
#| export
@dataclass
class Findings:
    "What is wrong with a data set, by kind, the names concerned under each; and its file modes."

    errors: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    warnings: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    modes: Counter[str] = field(default_factory=Counter)

    @staticmethod
    def lines(kinds: dict[str, list[str]]) -> list[str]:
        "One line a kind: how many, which."
        lines = []
        for kind, names in kinds.items():
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            lines.append(f"{kind}: {len(names)} ({', '.join(names[:3])}{more})")
        return lines

    def settle(self) -> None:
        "Raise UserError if there are errors; warn of the rest."
        if self.errors:
            first, *rest = self.lines(self.errors)
            more = f"; {len(rest)} more kinds of errors" if rest else ""
            raise UserError(f"{first}{more}; `mshnet data DIR` lists everything")
        for line in self.lines(self.warnings):
            warnings.warn(line, stacklevel=2)


# %%
findings = Findings()
findings.errors["name without an image"] += list("vwxyz")
with expect_fail(UserError, contains="v, w, x and 2 more"):
    findings.settle()


# %% [markdown]
# Lists are written by all sorts of scripts: with or without suffixes, with slashes of either kind, with the paths of another person's computer. A name is only a name here. What leads out of the folder is cut down to its last part, so a list with absolute paths works, and no list can make us read a file from elsewhere.

# %%
#| export
def bare_name(
    line: str,  # such as "Misc_1", "Misc_1.png" or "C:\\sirst\\images\\Misc_1.png"
) -> str:  # such as "Misc_1"; a folder below the images stays, as in "night/001"
    "A line of a list as the name of an image, without suffix."
    path = PureWindowsPath(line)  # knows both kinds of slashes
    if path.anchor or ".." in path.parts:
        path = PureWindowsPath(path.name)
    text = path.as_posix()
    return text[: -len(path.suffix)] if path.suffix.lower() in SUFFIXES else text


def read_names(
    file: Path,
    findings: Findings,
) -> list[str]:  # without suffix, in file order
    "The names in a list."
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file}: not a readable list of names ({error})") from None
    names = Counter(bare_name(line.strip()) for line in text.splitlines() if line.strip())
    for name, count in names.items():
        if count > 1:
            findings.warnings[f"name more than once in {file.name}, kept once"].append(name)
    if not names:
        findings.errors["list without names"].append(file.name)
    return list(names)


# %%
with tempfile.TemporaryDirectory() as tmp:
    (Path(tmp) / "train.txt").write_text("a.png\nb\n\na\n/elsewhere/c.bmp\n")
    test_eq(read_names(Path(tmp) / "train.txt", findings), ["a", "b", "c"])
test_eq([bare_name(n) for n in (r"C:\x\d.png", "../d", "night/d.v2")], ["d", "d", "night/d.v2"])
Findings.lines({**findings.errors, **findings.warnings})


# %% [markdown]
# Masks go by their image's name; in the first release of SIRST they end in `_pixels0`.

# %%
#| export
def find_file(
    folder: Path,
    name: str,
    endings: tuple[str, ...] = ("",),  # what may follow the name
) -> Path | None:
    "The file of a name, whatever its suffix."
    for ending in endings:
        for suffix in (*SUFFIXES, *(s.upper() for s in SUFFIXES)):
            path = folder / f"{name}{ending}{suffix}"
            if os.path.isfile(path):  # unlike Path.is_file, False for a name that cannot be
                return path
    return None


# %%
with tempfile.TemporaryDirectory() as tmp:
    (Path(tmp) / "Misc_1_pixels0.PNG").touch()
    test_eq(find_file(Path(tmp), "Misc_1"), None)
    test_eq(find_file(Path(tmp), "Misc_1", ("", "_pixels0")).name, "Misc_1_pixels0.PNG")

# %% [markdown]
# Pillow raises many kinds of exceptions for files that are broken in different ways. Whatever it is, it concerns this one file, and the next one is read all the same.

# %%
#| export
Pair = tuple[np.ndarray, np.ndarray]


class Reading(NamedTuple):
    "One image with its mask, or why there is none."

    pair: Pair | None
    mode: str = ""  # of the image's file
    errors: frozenset[str] = frozenset()  # their kinds
    notes: frozenset[str] = frozenset()  # kinds of warnings


def read_pair(
    layout: Layout,
    name: str,
) -> Reading:
    "Read one image and its mask; what is wrong is returned, not raised."
    paths = find_file(layout.images, name), find_file(layout.masks, name, ("", "_pixels0"))
    missing = [k for k, p in zip(("an image", "a mask"), paths, strict=True) if not p]
    if missing:
        return Reading(None, errors=frozenset({f"name without {' and '.join(missing)}"}))
    image_path, mask_path = (path for path in paths if path)
    errors, size = set(), (1, 1)
    try:
        image, mode = read_image(image_path)
        size = image.shape[:2]
    except Exception:  # Pillow raises many kinds for bytes that make no sense
        errors.add(f"unreadable image in {layout.images.name}/")
    try:
        mask, notes = read_mask(mask_path, size)
    except Exception:
        errors.add(f"unreadable mask in {layout.masks.name}/")
    if errors:
        return Reading(None, errors=frozenset(errors))
    if mode.startswith(DEEP):
        notes.add("16-bit image, stretched to 8 bits from its own minimum and maximum")
    return Reading((image, mask), mode, notes=frozenset(notes))


# %% [markdown]
# A list is read by a few threads, since Pillow spends its time outside of Python's lock.

# %%
#| export
def read_split(
    layout: Layout,
    part: str,  # "train" or "test"
    names: list[str],
    findings: Findings,
) -> Split:
    "Read the images of a list; what is wrong goes into `findings`."
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda name: read_pair(layout, name), names))
    for name, reading in zip(names, results, strict=True):
        for kind in reading.errors:
            findings.errors[kind].append(name)
        for kind in reading.notes:
            findings.warnings[kind].append(name)
    findings.modes.update(reading.mode for reading in results if reading.pair)
    good = [(name, r.pair) for name, r in zip(names, results, strict=True) if r.pair]
    images, masks = (tuple(pair[i] for _, pair in good) for i in (0, 1))
    return Split(part, tuple(name for name, _ in good), images, masks, layout.root.resolve().name)


# %% [markdown]
# Of three names one is in order; the second has no mask and the file of the third is not an image:

# %%
with tempfile.TemporaryDirectory() as tmp:
    layout = Layout(Path(tmp), Path(tmp) / "images", Path(tmp) / "masks", {})
    for folder, names in ((layout.images, "ab"), (layout.masks, "ac")):
        folder.mkdir()
        for name in names:
            Image.new("L", (4, 4)).save(folder / f"{name}.png")
    (layout.images / "c.png").write_text("no image")
    test_eq(read_pair(layout, "b"), Reading(None, errors=frozenset({"name without a mask"})))
    findings = Findings()
    test_eq(read_split(layout, "train", ["a", "b", "c"], findings).names, ("a",))
dict(findings.errors)


# %% [markdown]
# ## The splits of a run
#
# `read_dataset` reads both lists of a folder. `splits` turns them into what a run needs: with `choose="val"` a part of the training list, drawn by the seed, is held out, so that the kept epoch is not chosen on the images that judge it.

# %%
#| export
def read_dataset(
    config: Config,
    parts: Sequence[str] = ("train", "test"),  # what is needed of it
) -> tuple[dict[str, Split], Findings]:  # the parts, and what is wrong with them
    "Read the data set of a run, or make its synthetic scenes."
    root, findings = find_dataset(config.dataset_dir), Findings()
    if root is None:
        count = {"train": config.scenes, "test": max(config.scenes // 4, 1)}
        return {name: scenes(name, count[name], config.base_size) for name in parts}, findings
    layout = find_layout(root, config, parts)
    names = {part: read_names(file, findings) for part, file in layout.lists.items()}
    both = set.intersection(*map(set, names.values())) if len(names) > 1 else set()
    for name in [name for name in names.get("train", []) if name in both]:
        findings.warnings["name in both lists, so the test is not independent"].append(name)
    return {part: read_split(layout, part, names[part], findings) for part in names}, findings


# %% [markdown]
# At least one image stays on each side of the cut, and a training list shorter than a batch is refused at once: it would end every epoch before its first step.

# %%
#| export
def splits(
    config: Config,
) -> dict[str, Split]:  # "train", "test", and "val" with choose="val"
    "The splits of a run; UserError if the data cannot be used as configured."
    parts, findings = read_dataset(config)
    findings.settle()
    train = parts["train"]
    if config.choose == "val":
        if len(train) < 2:
            raise UserError("choose='val': one training image cannot be parted; write last instead")
        order = np.random.default_rng(config.seed).permutation(len(train)).tolist()
        held = min(max(1, round(config.val_fraction * len(train))), len(train) - 1)
        parts["val"] = train.part("val", sorted(order[:held]))
        parts["train"] = train.part("train", sorted(order[held:]))
    count = len(parts["train"])
    if count < config.batch_size:
        raise UserError(
            f"batch_size={config.batch_size}: there are only {count} training images; "
            f"write --batch-size {count} or less"
        )
    return parts


# %% [markdown]
# ## Synthetic scenes
#
# A new user should see the whole path without a download. These scenes are made to be hard in the way real ones are: clouds, sea and ground have 1/f spectra of different slopes, horizons and cloud edges imitate targets' contrast, warm clutter imitates targets themselves but is larger, longer or a single pixel, and targets are point spreads of a few pixels. Noise is the sensor's. Everything follows from a seed, so the scenes are the same every time.

# %%
#| export
def clutter(
    rng: np.random.Generator,
    size: int,
    slope: float,  # of the amplitude spectrum: 1 is rough, 2 is smooth
    stretch: float = 1.0,  # how much longer structures are from left to right
) -> np.ndarray:  # [size,size] mean 0, deviation 1
    "A random field with a 1/f^slope spectrum."
    fy, fx = np.fft.fftfreq(size)[:, None], np.fft.rfftfreq(size)[None]
    radius = np.hypot(fy, fx * stretch)
    radius[0, 0] = 1
    wave = rng.normal(size=radius.shape) + 1j * rng.normal(size=radius.shape)
    texture = np.fft.irfft2(wave / radius**slope, s=(size, size))
    return (texture - texture.mean()) / texture.std()


def blob(
    size: int,
    row: float,
    col: float,
    radius: tuple[float, float],  # deviation along and across, in pixels
    angle: float = 0.0,
) -> np.ndarray:  # [size,size] 1 at the centre
    "A Gaussian spot, round or elongated."
    y, x = np.mgrid[:size, :size]
    u = (x - col) * np.cos(angle) + (y - row) * np.sin(angle)
    v = (y - row) * np.cos(angle) - (x - col) * np.sin(angle)
    return np.exp(-0.5 * ((u / radius[0]) ** 2 + (v / radius[1]) ** 2))


# %%
field_ = clutter(np.random.default_rng(0), 64, 1.5)
test_close([field_.mean(), field_.std()], [0, 1])
test_close(blob(9, 4, 4, (1, 1))[4, 4], 1)


# %% [markdown]
# These are the bricks: a field that is rough or smooth, and a spot. A background is two or three fields:

# %%
#| export
def background(
    rng: np.random.Generator,
    size: int,
) -> np.ndarray:  # [size,size] grey levels
    "Cloud, sea or ground, or two of them with a horizon between."
    sky = rng.uniform(50, 90) + rng.uniform(4, 12) * clutter(rng, size, rng.uniform(1.4, 1.9))
    if rng.random() < 0.5:  # broken cloud has bright, sharp edges
        layer = clutter(rng, size, 1.7)
        sky += rng.uniform(15, 40) / (1 + np.exp(-12 * (layer - rng.uniform(0, 1))))
    if rng.random() < 0.5:
        return sky
    low = rng.uniform(50, 110) + rng.uniform(3, 8) * clutter(rng, size, rng.uniform(0.8, 1.2), 2.5)
    horizon = rng.uniform(0.3, 0.8) * size + rng.uniform(1, 5) * clutter(rng, size, 1.8)[0]
    return np.where(np.arange(size)[:, None] < horizon, sky, low)


# %%
views = [background(np.random.default_rng(seed), 128) for seed in range(4)]
Image.fromarray(np.hstack(views).clip(0, 255).astype(np.uint8))


# %% [markdown]
# Then come the things that are no targets but warm: large spots, thin streaks, and pixels of the sensor that are always bright. A top-hat filter, which looks for what is small and bright, takes the last two for targets.

# %%
#| export
def warm(
    rng: np.random.Generator,
    size: int,
) -> np.ndarray:  # [size,size] grey levels to add
    "Hot things that are no targets: large spots, thin streaks, defective pixels of the sensor."
    extra = np.zeros((size, size))
    for _ in range(rng.integers(0, 3)):
        across = rng.uniform(5, 10)
        shape = (across * rng.uniform(1, 2), across)
        row, col = rng.uniform(0, size, 2)
        extra += rng.uniform(20, 60) * blob(size, row, col, shape, rng.uniform(0, np.pi))
    for _ in range(rng.integers(0, 3)):
        shape = (rng.uniform(8, 20), rng.uniform(0.7, 1.2))
        row, col = rng.uniform(0, size, 2)
        extra += rng.uniform(30, 80) * blob(size, row, col, shape, rng.uniform(0, np.pi))
    hot = rng.random((size, size)) < rng.uniform(0, 0.001)
    return extra + hot * rng.uniform(30, 90, (size, size))


# %%
views = [warm(np.random.default_rng(seed), 128) for seed in range(4)]
Image.fromarray(np.hstack(views).clip(0, 255).astype(np.uint8))


# %% [markdown]
# Last come one to three targets, apart from each other. How bright one is follows from how uneven its surroundings are, so that none is easy and none is hidden; its mask ends where it has fallen below 0.4 of its peak.

# %%
#| export
def target_places(
    rng: np.random.Generator,
    size: int,
    count: int,
) -> list[np.ndarray]:  # row and column of each
    "Places of targets: inside, and too far apart to touch; fewer than `count` where it is crowded."
    found: list[np.ndarray] = []
    for _ in range(4 * count):
        place = rng.uniform(8, size - 8, 2)
        if len(found) < count and all(np.hypot(*(place - p)) > 16 for p in found):
            found.append(place)
    return found


def scene(
    rng: np.random.Generator,
    size: int,
) -> Pair:  # image and mask, [size,size] uint8
    "One infrared scene: background, warm clutter, one to three small targets, sensor noise."
    image, mask = background(rng, size) + warm(rng, size), np.zeros((size, size), np.uint8)
    for row, col in target_places(rng, size, int(rng.integers(1, 4))):
        across = rng.uniform(1.4, 2.1)
        shape = (across * rng.uniform(1, 1.4), across)
        spot = blob(size, row, col, shape, rng.uniform(0, np.pi))
        around = image[int(row) - 6 : int(row) + 7, int(col) - 6 : int(col) + 7]
        image += (rng.uniform(45, 80) + around.std()) * spot
        mask |= (spot > 0.4).astype(np.uint8)
    image += rng.normal(scale=rng.uniform(1, 3), size=image.shape)
    return np.clip(image, 0, 255).astype(np.uint8), mask


# %%
spots = target_places(np.random.default_rng(3), 64, 3)
assert all(np.hypot(*(a - b)) > 16 for i, a in enumerate(spots) for b in spots[:i])
Image.fromarray(np.hstack(scene(np.random.default_rng(3), 128)) * np.uint8(1))


# %% [markdown]
# Training and test scenes are drawn from seeds of their own.

# %%
#| export
def scenes(
    name: str,  # "train" or "test": they never share a scene
    count: int,
    size: int,  # side in pixels
) -> Split:
    "A split of synthetic scenes; the same arguments give the same scenes."
    kind = sum(name.encode())
    pairs = [scene(np.random.default_rng([kind, i]), size) for i in range(count)]
    images, masks = zip(*pairs, strict=True)
    return Split(name, tuple(f"{name}_{i:04d}" for i in range(count)), images, masks, "scenes")


# %%
made = scenes("train", 4, 128)
test_eq(made.hash, scenes("train", 4, 128).hash)
assert made.hash != scenes("test", 4, 128).hash and all(m.any() for m in made.masks)
assert scene(np.random.default_rng(0), 64)[0].std() > 3
Image.fromarray(np.hstack(made.images))

# %% [markdown]
# Their targets, in the same places:

# %%
Image.fromarray(255 * np.hstack(made.masks))

# %% [markdown]
# Without a data set, a run takes its splits from here, and the held-out part follows the seed:

# %%
parts = splits(Config(scenes=20, base_size=64, crop_size=64))
test_eq({k: len(v) for k, v in parts.items()}, {"train": 16, "test": 5, "val": 4})
assert splits(Config(scenes=20, base_size=64, seed=1))["val"].names != parts["val"].names
with expect_fail(UserError, contains="write --batch-size 16 or less"):
    splits(Config(scenes=20, base_size=64, batch_size=32))
test_eq(read_dataset(Config(scenes=8, base_size=32))[1].errors, {})


# %% [markdown]
# ## Augmentation
#
# The official training transform draws five things for each image. Here drawing and doing are apart: the draws of an image depend on the seed, the epoch and its index and on nothing else, so neither the number of workers nor the batch size nor a resumed run changes them.

# %%
#| export
class Draw(NamedTuple):
    "What is drawn for one training image."

    mirror: bool
    long_side: int  # of the resized image, in pixels
    top: float  # place of the crop within what is left, 0..1
    left: float
    blur: float  # radius of the Gaussian blur in pixels; 0: none


def draw(
    seed: int,
    epoch: int,
    index: int,  # of the image in its split
    base_size: int,
) -> Draw:
    "The draws of one image in one epoch."
    rng = np.random.default_rng([seed, epoch, index])
    return Draw(
        mirror=bool(rng.random() < 0.5),
        long_side=int(rng.integers(base_size // 2, base_size * 2 + 1)),
        top=float(rng.random()),
        left=float(rng.random()),
        blur=float(rng.random() * (rng.random() < 0.5)),
    )


def order(
    seed: int,
    epoch: int,
    count: int,
) -> list[int]:
    "The shuffled order of an epoch's images: another one each epoch."
    return np.random.default_rng([seed, epoch]).permutation(count).tolist()


# %%
test_eq(draw(0, 3, 7, 256), draw(0, 3, 7, 256))
test_eq(sorted(order(0, 1, 9)), list(range(9)))
assert order(0, 1, 9) != order(0, 2, 9)
draw(0, 3, 7, 256)


# %% [markdown]
# Doing them: mirror; resize so that the long side has the drawn length (image bilinear, mask nearest); pad with zeros at the right and the bottom; crop; blur. Pillow does the work, on grey images once instead of three times, and the result equals the official transform's to the last pixel.

# %%
#| export
def augment(
    image: np.ndarray,  # [H,W] or [H,W,3] uint8
    mask: np.ndarray,  # [H,W] uint8, 0 or 1
    drawn: Draw,
    crop_size: int,
) -> Pair:  # image [S,S] or [S,S,3], mask [S,S]
    "The training transform of the paper's code, for given draws."
    picture, truth = Image.fromarray(image), Image.fromarray(mask)
    if drawn.mirror:
        picture, truth = (x.transpose(Image.Transpose.FLIP_LEFT_RIGHT) for x in (picture, truth))
    width, height = picture.size
    if height > width:
        size = (int(width * drawn.long_side / height + 0.5), drawn.long_side)
    else:
        size = (drawn.long_side, int(height * drawn.long_side / width + 0.5))
    size = (max(size[0], 1), max(size[1], 1))
    spare_x, spare_y = (max(side - crop_size, 0) for side in size)
    x, y = int(drawn.left * (spare_x + 1)), int(drawn.top * (spare_y + 1))
    box = (x, y, x + crop_size, y + crop_size)  # Pillow fills what lies outside with zeros
    picture = picture.resize(size, Image.Resampling.BILINEAR).crop(box)
    truth = truth.resize(size, Image.Resampling.NEAREST).crop(box)
    if drawn.blur:
        picture = picture.filter(ImageFilter.GaussianBlur(drawn.blur))
    return np.asarray(picture), np.asarray(truth)


def squash(
    image: np.ndarray,  # [H,W] or [H,W,3] uint8
    mask: np.ndarray,  # [H,W] uint8, 0 or 1
    size: int,
) -> Pair:  # image [S,S] or [S,S,3], mask [S,S]
    "The transform before scoring: both sides to `size`, whatever the proportions."
    picture, truth = Image.fromarray(image), Image.fromarray(mask)
    return (
        np.asarray(picture.resize((size, size), Image.Resampling.BILINEAR)),
        np.asarray(truth.resize((size, size), Image.Resampling.NEAREST)),
    )


# %% [markdown]
# One scene, drawn four times:

# %%
views = [augment(made.images[1], made.masks[1], draw(0, epoch, 1, 128), 128) for epoch in range(4)]
Image.fromarray(np.hstack([image for image, _ in views]))

# %%
test_eq([s.shape for s in squash(made.images[0], made.masks[0], 64)], [(64, 64), (64, 64)])
still = Draw(mirror=False, long_side=128, top=0, left=0, blur=0)
test_eq(augment(made.images[0], made.masks[0], still, 128)[0], made.images[0])


# %% [markdown]
# ## Batches
#
# A batch leaves here as 8-bit pixels, a quarter of the bytes that floats would take to the device. Training drops the remainder of an epoch, because filler would poison batch norm. Scoring must not drop images and must not change shape (a new shape is a new graph for a compiler), so its last batch is filled with copies that are marked as not real.

# %%
#| export
class Batch(NamedTuple):
    "Images and masks of one step."

    image: Tensor  # [B,3,S,S] uint8
    mask: Tensor  # [B,1,S,S] uint8, 0 or 1
    real: Tensor  # [B] bool; False for copies that fill the last batch of a scoring


def train_batches(
    count: int,  # training images
    size: int,  # images per batch
    seed: int,
    epoch: int,
) -> list[list[int]]:
    "The indices of an epoch's batches; the remainder is dropped."
    shuffled = order(seed, epoch, count)
    return [shuffled[i : i + size] for i in range(0, count - size + 1, size)]


def score_batches(
    count: int,
    size: int,
) -> list[list[int]]:  # -1 stands for filler
    "The indices of batches that hold every image once, in order; the last one is filled with -1."
    rows = [list(range(i, min(i + size, count))) for i in range(0, count, size)]
    return [row + [-1] * (size - len(row)) for row in rows]


# %%
test_eq(score_batches(5, 2), [[0, 1], [2, 3], [4, -1]])
test_eq([len(b) for b in train_batches(5, 2, 0, 0)], [2, 2])


# %% [markdown]
# Between the two kinds of batches only the transform differs. Grey images become three equal channels here and not earlier, so that all that comes before costs a third.

# %%
#| export
def collate(
    pairs: Sequence[Pair],
    real: Sequence[bool],
) -> Batch:
    "Stack images and masks; grey becomes three equal channels."
    colour = [i if i.ndim == 3 else np.broadcast_to(i[..., None], (*i.shape, 3)) for i, _ in pairs]
    image = torch.from_numpy(np.stack(colour)).permute(0, 3, 1, 2)
    mask = torch.from_numpy(np.stack([m for _, m in pairs]))[:, None]
    return Batch(image, mask, torch.tensor(list(real)))


def training_batch(split: Split, indices: Sequence[int], epoch: int, config: Config) -> Batch:
    "Read and augment the images of one training batch."
    pairs = [
        augment(
            split.images[i],
            split.masks[i],
            draw(config.seed, epoch, i, config.base_size),
            config.crop_size,
        )
        for i in indices
    ]
    return collate(pairs, [True] * len(pairs))


def scoring_batch(split: Split, indices: Sequence[int], config: Config) -> Batch:
    "Read and squash the images of one scoring batch; -1 is filled with the first image."
    pairs = [
        squash(split.images[max(i, 0)], split.masks[max(i, 0)], config.base_size) for i in indices
    ]
    return collate(pairs, [i >= 0 for i in indices])


# %%
config = Config(base_size=64, crop_size=32)
batch = scoring_batch(made, [3, -1], config)
assert isinstance(batch, Batch)
test_eq((tuple(batch.image.shape), batch.real.tolist()), ((2, 3, 64, 64), [True, False]))
test_eq(training_batch(made, [0, 1], 0, config).mask.shape, (2, 1, 32, 32))
test_eq(collate([squash(made.images[3], made.masks[3], 64)], [True]).image[0], batch.image[0])


# %% [markdown]
# An accelerator should not wait for its next batch. Threads prepare a few batches ahead; results come in order, so the number of threads changes nothing but the time. Threads and not processes: Pillow and numpy let go of Python's lock, nothing needs to be pickled, and a notebook cell can be stopped.

# %%
#| export
def ahead(
    make: Callable[[Any], Any],  # makes one batch from one plan
    plans: Sequence[Any],
    workers: int,  # threads; 0: made when asked for
) -> Iterator[Any]:  # the results, in the order of the plans
    "Make results a little before they are needed, at most two per thread."
    if workers == 0:
        yield from map(make, plans)
        return
    with ThreadPoolExecutor(workers) as pool:
        waiting: deque[Future[Any]] = deque()
        try:
            for plan in plans:
                waiting.append(pool.submit(make, plan))
                if len(waiting) > 2 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


# %%
for workers in (0, 1, 3):
    test_eq(list(ahead(lambda x: x * x, range(9), workers)), [x * x for x in range(9)])


# %% [markdown]
# ## The report
#
# `mshnet data DIR` prints what is there and everything that is wrong with it.

# %%
#| export
def describe(
    split: Split,
) -> list[str]:
    "Counts, sizes and target areas of a split, in a few lines."
    areas = np.concatenate([objects(m > 0).area for m in split.masks] or [np.array([], int)])
    empty = sum(not m.any() for m in split.masks)
    sizes = {i.shape[:2] for i in split.images}
    heights, widths = ([s[k] for s in sizes] or [0] for k in (0, 1))
    grey = sum(i.ndim == 2 for i in split.images)
    small, large, middle = (
        (areas.min(), areas.max(), int(np.median(areas))) if len(areas) else (0, 0, 0)
    )
    return [
        f"{split.name}: {len(split)} images, {len(areas)} targets, {empty} images without, "
        f"hash {split.hash}",
        f"  {len(sizes)} sizes, {min(widths)}..{max(widths)} wide, "
        f"{min(heights)}..{max(heights)} high; {grey} grey, {len(split) - grey} colour",
        f"  target areas {small}..{large} px, median {middle} px",
    ]


def report(
    config: Config,
) -> tuple[str, bool]:  # text of several lines; whether the data can be trained on
    "Counts, sizes, modes, target areas of a data set, and every problem found in it."
    parts, findings = read_dataset(config)
    lines = [line for split in parts.values() for line in describe(split)]
    if findings.modes:
        modes = ", ".join(f"{count} {mode}" for mode, count in findings.modes.most_common())
        lines.append(f"file modes: {modes}")
    lines += [f"error: {line}" for line in Findings.lines(findings.errors)]
    lines += [f"warning: {line}" for line in Findings.lines(findings.warnings)]
    return "\n".join(lines), not findings.errors


# %%
text, usable = report(Config(scenes=8, base_size=128))
assert usable and "train: 8 images" in text and describe(made)[0].startswith("train: 4 images")
print(text)
