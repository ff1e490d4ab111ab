# %% [markdown]
# # Data: from a folder to checked pairs
#
# > Images with their masks, checked, and split for training and testing.
#
# A data set of this field is a folder of a few hundred small images, each with a mask of its targets. Nothing in it is certain. Masks hold 255, or 1, or the numbers of objects. A file is truncated, one mask is missing, a second one is inverted. The worst of these faults raise no error: the loss curve looks plausible, and the score means nothing. We make such a folder, draw its pairs, break it in five ways, and let the report find them. Then we ask what a target is in a mask, and which images a run may learn from.

# %%
#| hide
#| default_exp data
import tempfile

import matplotlib.pyplot as plt

from mshnet import data
from mshnet.data import read_mask, report, splits, write_lists

# %%
#| export
import contextlib
import hashlib
import importlib.util
import math
import os
import re
import unicodedata
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path, PureWindowsPath
from typing import Any

import numpy as np
from PIL import Image, ImageOps, TiffImagePlugin, UnidentifiedImageError
from scipy.ndimage import label, maximum, maximum_filter, median_filter, minimum, rank_filter

from mshnet.core import UserError, counted, did_you_mean, one_line, quoted, read_text, reason, shown
from mshnet.fetch import find_dataset, shipped_lists, usual_list
from mshnet.files import folders_below, free_memory, prefetch, stamp, write_atomic
from mshnet.metrics import objects
from mshnet.places import on_drive, say
from mshnet.recipe import Config
from mshnet.scenes import scene

# %% [markdown]
# ## A folder of pairs
#
# Images and masks have the same names. Two lists divide them into a training and a test split. Our own folder has no lists yet. `mshnet data DIR --split 0.5` writes them, in Python `write_lists`:

# %%
place = tempfile.TemporaryDirectory()
images, masks = (Path(place.name, "night", name) for name in ("images", "masks"))
images.mkdir(parents=True), masks.mkdir()
for i in range(6):
    image, mask = scene(np.random.default_rng(i), 128)
    Image.fromarray(image).save(images / f"{i}.png")
    Image.fromarray(255 * mask).save(masks / f"{i}.png")
config = Config(dataset_dir=str(images.parent), batch_size=2)
write_lists(config, 0.5)
print(*(path.relative_to(place.name) for path in sorted(images.parent.rglob("*"))), sep="\n")

# %% [markdown]
# `splits` reads the folder. Each item of a split is a pair of arrays: the image in 8 bits, and the mask as 0 and 1. The training split, with the masks below and their outlines in the images:

# %%
train = splits(config)["train"]
figure = plt.figure(figsize=(8, 5.6), layout="constrained")
columns = figure.subplots(2, 3, subplot_kw={"xticks": [], "yticks": []}).T
for (above, below), name, (image, mask) in zip(columns, train.names, train.pairs, strict=True):
    above.imshow(image, cmap="gray")
    above.contour(mask, [0.5], colors="tab:orange", linewidths=1)
    above.set_title(f"{name}: {int(mask.sum())} pixels of target")
    below.imshow(mask, cmap="gray")

# %% [markdown]
# ## A faulty folder
#
# Now we break five of the six pairs: a truncated image, a missing mask, an inverted one, an image in 16 bits, and a mask of half the size. `mshnet data DIR` prints this report:

# %%
(images / "0.png").write_bytes((images / "0.png").read_bytes()[:999])
(masks / "1.png").unlink()
Image.fromarray(255 - np.asarray(Image.open(masks / "2.png"))).save(masks / "2.png")
Image.fromarray(np.asarray(Image.open(images / "3.png")) * np.uint16(50)).save(images / "3.png")
Image.open(masks / "4.png").resize((64, 64)).save(masks / "4.png")
print(report(config)[0])

# %% [markdown]
# All problems are found in one pass, so that you can repair them together. Training stops at an error and prints each warning once, with the number of its images. The report also names test images that stand in the training list under a different name. `--on-bad-image skip` leaves unreadable pairs out. A saved score records the number of images and a hash of their pixels, so a score without the skipped pairs can be recognised.
#
# ## What is a target?
#
# Published masks contain 0 and 255, or 0 and 1. Label tools write the numbers of objects, or colours. A mask without a target may contain a few stray pixels of 1. One mask by itself is ambiguous, so all masks that have an image decide together (from 1,000 on, an even sample of them). If a mask of 16 bits has a value above 255, its values are divided by 257 first.
#
# | masks of the data set | target |
# |---|---|
# | 0 and one other value, such as 1 or 255 | the other value |
# | numbers of objects: whole numbers up to 64, or 1, 2, 3 ... without a gap | above 0 |
# | other greys | above half of the largest value |
# | a colour in any of them | every colour but black; in a JPEG or a lossy WebP, which blur colours, above half of the brightest value nearby |
# | one colour everywhere, and the shape in the alpha channel | above half of its opacity |
#
# We read a mask of 0, 1 and 3 twice: by itself, and as part of a data set with masks of 255, where only values above 127.5 are target:

# %%
Image.fromarray(np.array([[0, 1, 3, 0]], np.uint8)).save(masks / "0.png")
for above in (None, 255 / 2):
    truth, notes = read_mask(masks / "0.png", (1, 4), above)
    print(truth[0].tolist(), *notes)

# %% [markdown]
# ## Which images may a run learn from?
#
# Never from those of the test list. With `choose="last"`, the default, a run trains on the whole training list. With `choose="val"` the seed holds a part of the training list out, so that the best epoch is not selected on the images on which it is evaluated. The lists of `--split` divide by image. Neighbouring frames of a video are almost equal, and a test on them is not independent: write the lists of a video yourself. Training and test scenes have different seeds. Here are the splits of 20 synthetic scenes:

# %%
for choose in ("last", "val"):
    parts = splits(Config(scenes=20, base_size=64, choose=choose))
    print(choose, {name: len(split) for name, split in parts.items()})

# %% [markdown]
# ## The machinery: a split
#
# A split contains one list of pairs in order. Its 8-bit pixels are read once and stay in memory if they fit. A larger data set stays in its files, and each pair is read when a batch needs it. Both look like one sequence of pairs.
#
# The hash of a split covers names and pixels. Equal hashes mean comparable runs; equal names do not. Each image also has a digest. The same images in a different order have a different hash, and the same digests.

# %%
#| export
Pair = tuple[np.ndarray, np.ndarray]  # image [H,W] grey or [H,W,3], uint8; mask [H,W] uint8, 0 or 1


class _Digests:
    "What identifies images with their masks, which are added in the order of a list."

    def __init__(self) -> None:
        self.whole = hashlib.sha256()  # of all in order
        self.single = set[bytes]()  # of each name with its image and mask
        self.images = dict[str, str]()  # names by twelve digits of each image

    def add(self, name: str, image: np.ndarray, mask: np.ndarray) -> None:
        "Add the next image."
        pixels = image.tobytes()
        record = f"{name}{image.shape}{mask.shape}".encode() + pixels + mask.tobytes()
        self.whole.update(record)
        self.single.add(hashlib.sha256(record).digest())
        self.images[hashlib.sha256(f"{image.shape}".encode() + pixels).hexdigest()[:12]] = name


@dataclass(frozen=True)
class Split:
    "Images with their masks of one list of a data set, in its order."

    name: str  # "train", "val" or "test"
    names: tuple[str, ...]
    pairs: Sequence[Pair]  # a tuple in memory, or `InFiles`
    source: str  # data set's name

    def __len__(self) -> int:
        "Number of images."
        return len(self.names)

    def __getstate__(self) -> dict[str, Any]:
        "Without the digests, which another process finds again."
        return {key: value for key, value in vars(self).items() if key != "digests"}

    def part(self, name: str, indices: Sequence[int]) -> "Split":
        "A new split of the images at these indices."
        names = tuple(self.names[i] for i in indices)
        pairs: Any = self.pairs
        pairs = tuple(pairs[i] for i in indices) if self.in_memory else replace(pairs, names=names)
        return Split(name, names, pairs, self.source)

    @property
    def in_memory(self) -> bool:
        "Whether the pixels lie in memory and not in their files."
        return isinstance(self.pairs, tuple)

    @cached_property
    def digests(self) -> _Digests:
        "What identifies its images; `_read_split` fills it while it reads a whole split."
        found = _Digests()
        for name, pair in zip(self.names, _pairs_of(self), strict=True):
            found.add(name, *pair)
        return found

    @property
    def hash(self) -> str:
        "Twelve digits of the names and every pixel, in list order."
        return self.digests.whole.hexdigest()[:12]


def _pairs_of(split: Split) -> Iterator[Pair]:
    "All images with their masks, in order, with few in memory at a time."
    yield from prefetch(split.pairs.__getitem__, range(len(split)), 4)


def image_digests(parts: Iterable[Split]) -> set[str]:
    "Twelve digits for the pixels of each image, which identify it under any name."
    return set[str]().union(*(split.digests.images for split in parts))


def hash_of_all(parts: Iterable[Split]) -> str:
    "Twelve digits for the images of all splits, whichever split an image is in."
    single = set[bytes]().union(*(split.digests.single for split in parts))
    return hashlib.sha256(b"".join(sorted(single))).hexdigest()[:12]


def scenes(name: str, count: int, size: int) -> Split:
    "Synthetic scenes of size x size pixels; equal arguments give equal scenes."
    pairs = tuple(scene(np.random.default_rng([sum(name.encode()), i]), size) for i in range(count))
    return Split(name, tuple(f"{name}_{i:04d}" for i in range(count)), pairs, "scenes")


# %% [markdown]
# ### The files of a data set
#
# The layouts in use differ in the names of folders and lists. A data set is recognised by the content of its folder. If that is ambiguous, the error names the setting that decides. An output folder inside a data set is rejected, because `mshnet predict` also writes a folder `masks/` and could overwrite the ground truth.
#
# We look for lists in this order: the list that the user names, the usual names in the folder, the lists that come with the library for published data sets. A mask has the name of its image; in the first release of SIRST it ends in `_pixels0`. Suffixes may differ; of two files of one name the first in `SUFFIXES` is read. Hidden files do not count. Accented letters may be one character or, as on a Mac, two. Below are the lists of our folder. Then we find an image by the name `3` alone, and read its kind (`I;16` is Pillow's name for 16 bits) and its number of pages:

# %%
source: data.Source = data.find_source(config)
print("lists:", *(path.name for path in source.lists.values()))
print("kind and pages:", *data.read_image(data.find_file(source.images, "3"))[1:])

# %%
#| export
FOLDERS = [("images", "masks"), ("IRSTD1k_Img", "IRSTD1k_Label")]
_PARTS = {"train", "trainval", "val", "valid", "test"}  # folders of published splits
LISTS = {"train": ("trainval.txt", "train.txt"), "test": ("test.txt", "val.txt")}
MASK_ENDINGS = ("", "_pixels0")  # of a mask's name; the second in the first release of SIRST
SUFFIXES = (".png", ".bmp", ".jpg", ".jpeg", ".tif", ".tiff", ".webp", ".gif")


@dataclass(frozen=True)
class Source:
    "The files of a data set: found once, then passed on."

    root: Path
    images: Path
    masks: Path
    lists: dict[str, Path]  # by split: "train", "test"
    scale: float | None = None  # largest mask value that is not target; None: not decided yet


def find_source(config: Config, parts: Sequence[str] = ("train", "test")) -> Source | None:
    "The data set of a run with the lists of these splits, or None for scenes; else UserError."
    root = find_dataset(config.dataset_dir)
    if root is None:
        return None
    folders = root, root / root.resolve().name  # on Kaggle the folder inside repeats the name
    root = next(filter(_pair_in, folders), root)
    if not (pair := _pair_in(root)):
        known = " or ".join(f"{i}/ and {m}/" for i, m in FOLDERS)
        near = [path for path in (root.parent, *sorted(root.glob("*/"))) if _pair_in(path)]
        hint = f"; did you mean {near[0]}?" if near else "; rename its folders, or link them"
        if len(_PARTS & {path.name.lower() for path in near}) > 1:
            hint = "; move its parts (train/images to images/train ...) and list their files"
        raise UserError(f"dataset_dir={root}: has no {known}{hint}")
    lists = {p: _find_list(root, pair[0], p, getattr(config, f"{p}_list")) for p in parts}
    return Source(root, *pair, lists)


def _pair_in(root: Path) -> tuple[Path, Path] | None:
    "The folders of the images and of the masks in the folder of a data set."
    pairs = ((root / images, root / masks) for images, masks in FOLDERS)
    return next((pair for pair in pairs if all(map(os.path.isdir, pair))), None)


def _lists_in(root: Path, *parts: str) -> list[Path]:
    "The lists of these splits in a data set's folder, the usual names first."
    usual = [root / name for part in parts for name in LISTS[part]]
    others = [path for part in parts for path in sorted((root / "img_idx").glob(f"{part}_*.txt"))]
    return list(filter(Path.is_file, usual)) + others


def outside_of_data(output_dir: str | Path) -> None:
    "UserError if a folder for results is in a data set, or is one; an empty name is not."
    folder = Path(os.path.realpath(os.path.expanduser(output_dir)))
    for top in (folder, *folder.parents) if output_dir else ():
        if _pair_in(top):
            todo = "whose files it could replace; use a folder outside of it"
            raise UserError(f"output_dir={output_dir}: is in the data set {top}, {todo}")


def _find_list(root: Path, images: Path, part: str, asked: str) -> Path:
    "The file that lists the names of one split: the one that is asked for, or a usual one."
    shipped, asked = shipped_lists(), os.path.expanduser(asked)
    if asked and os.path.isfile(root / asked):  # unlike Path.is_file, False for an invalid name
        return root / asked
    if asked.lower() in shipped:
        return shipped[asked.lower()]
    if asked:
        why = f"there is no such file in {root}, and no list of the library has this name"
        own = sorted(path.name for path in root.glob("*.txt"))
        names = f"{', '.join(shipped)}{did_you_mean(asked, [*shipped, *own])}"
        raise UserError(f"{part}_list={shown(asked)}: {why}: {names}")
    found = _lists_in(root, part)
    if len(found) == 1 or (found and found[0].parent == root):
        return found[0]
    if not found and (usual := usual_list(images, part)):
        return usual
    names = ", ".join(path.relative_to(root).as_posix() for path in found)
    what = f"several lists ({names})" if found else f"no list of {part} names such as {part}.txt"
    hint = "" if _lists_in(root, *LISTS) else ", or `mshnet data DIR --split 0.5` writes both"
    if (images / part).is_dir():
        hint = f", or list the files of {images.name}/{part} in {part}.txt, as {part}/NAME"
    raise UserError(f"dataset_dir={root}: {what}; name one with --{part}-list{hint}")


def find_file(folder: Path, name: str, endings: tuple[str, ...] = ("",)) -> Path | None:
    "The file of a name, which one of the endings may follow, whatever its suffix."
    with contextlib.suppress(OSError, ValueError):  # no such folder, or no possible name
        below = (folder / name).parent
        known = _by_name(below, below.stat().st_mtime_ns)
        for ending in endings:
            if file := known.get(unicodedata.normalize("NFC", Path(name).name + ending)):
                return below / file
    return None


@lru_cache(maxsize=256)
def _by_name(folder: Path, changed: int) -> dict[str, str]:
    "The image files of a folder by their names without suffix, letters and accents in one sign."
    files = [Path(name) for name in sorted(os.listdir(folder)) if name[0] != "."]
    images = [file for suffix in SUFFIXES for file in files if file.suffix.lower() == suffix]
    known = {unicodedata.normalize("NFC", file.stem): file.name for file in reversed(images)}
    if twice := {file.name for file in images} - {*known.values()}:
        warnings.warn(f"{folder / min(twice)}: not read; another file has its name", stacklevel=2)
    return known


# %% [markdown]
# ### Lists and problems
#
# Reading collects the problems of images, and the caller decides. Lists come from all sorts of scripts: with or without suffixes, with slashes of either kind, with a letter and its accent as two characters, with the paths of a different computer. A name that leads out of the folder is cut to its last part. Lists of absolute paths therefore work, and no list can make us read a file from elsewhere.

# %%
#| export
@dataclass
class Findings:
    "The problems of a data set, as names by kind."

    errors: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    warnings: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    @staticmethod
    def lines(kinds: dict[str, list[str]], most: int = 3) -> list[str]:
        "One line per kind: number and first names."
        lines = []
        for kind, names in kinds.items():
            more = f" and {len(names) - most} more" if len(names) > most else ""
            first = ", ".join(one_line(name, 200) for name in names[:most])
            lines.append(f"{kind}: {len(names)} ({first}{more})")
        return lines

    def raise_or_warn(self, on_bad_image: str = "stop") -> None:
        "Raise UserError if images cannot be used and may not be skipped; warn of the rest."
        errors = self.lines(self.errors)
        if _DARK_LIST in self.errors:  # no image of it is bad, and all its targets are lost
            raise UserError(self.lines({_DARK_LIST: self.errors[_DARK_LIST]})[0])
        if errors and on_bad_image != "skip":
            todo = "`mshnet data DIR` lists everything; repair it, or use --on-bad-image skip"
            raise UserError(f"{errors[0]}; {todo}")
        for line in [f"skipped: {line}" for line in errors] + self.lines(self.warnings):
            warnings.warn(line, stacklevel=2)


def _bare_name(line: str) -> str:  # "Misc_1" of "images/Misc_1.png" or "C:\\sirst\\Misc_1.png"
    "A line of a list as the name of an image, without suffix and without the images' folder."
    path = PureWindowsPath(line)  # takes both kinds of slashes
    if path.anchor or ".." in path.parts:
        path = PureWindowsPath(path.name)
    if len(path.parts) > 1 and path.parts[0] in {images for images, _ in FOLDERS}:
        path = path.relative_to(path.parts[0])
    text = path.as_posix()
    bare = text[: -len(path.suffix)] if path.suffix.lower() in SUFFIXES else text
    folder, slash, name = bare.rpartition("/")
    return folder + slash + unicodedata.normalize("NFC", name)  # as `find_file` does


def _names_in(text: str) -> Counter[str]:
    "How often each name stands in a list; empty lines and comments (#) are left out."
    lines = [line.strip() for line in text.splitlines()]
    return Counter(_bare_name(line) for line in lines if line and line[0] != "#")


def _read_lists(source: Source, findings: Findings) -> dict[str, list[str]]:
    "The names of each split in list order; UserError if empty or if splits overlap."
    lists: dict[str, list[str]] = {}
    for part, file in source.lists.items():
        names = _names_in(read_text(file, "list of names"))
        if not names:
            raise UserError(f"{file}: list without names")
        if twice := [name for name, count in names.items() if count > 1]:
            findings.warnings[f"name more than once in {file.name}, kept once"] += twice
        lists[part] = list(names)
    if both := sorted({*lists.get("train", ())} & {*lists.get("test", ())}):
        files = " and ".join(file.name for file in source.lists.values())
        kind = f"name in both {files}, remove it from one or use another --train-list"
        raise UserError(Findings.lines({kind: both})[0])
    return lists


# %% [markdown]
# ### Reading and checking
#
# A pair is checked when it is read. Targets that vanish or merge at the size at which they are scored are reported: a mask is resized by the nearest pixel, which may miss a small target. In a mask of 4x4 pixels we set the pixel at row and column 1, and then the one at row and column 2. Only the first is left at 2x2:

# %%
for row in ([0, 1, 0, 0], [0, 0, 1, 0]):
    print(f"target at {row.index(1)}: {data.scored_mask(np.diag(np.uint8(row)), 2).tolist()}")

# %%
#| export
NATIVE_PIXELS = 2048 * 2048  # most pixels of an image that is scored at its own size


def _read_pair(source: Source, name: str) -> tuple[Pair, set[str]]:
    "Read an image and its mask; kinds of warnings, too. UserError with the kind of problem."
    image_path = find_file(source.images, name)
    mask_path = find_file(source.masks, name, MASK_ENDINGS)
    if not image_path or not mask_path:
        missing = "an image" if mask_path else "a mask" if image_path else "an image and a mask"
        raise UserError(f"name without {missing}")
    what, folder = "image", source.images.name
    try:
        image, mode, pages = read_image(image_path)
        what, folder = "mask", source.masks.name
        mask, notes = read_mask(mask_path, image.shape[:2], source.scale)
    except Exception as error:  # Pillow raises many kinds for bytes that make no sense
        explained = isinstance(error, (UserError, PermissionError, FileNotFoundError))
        why = f"{what}: {reason(error)}" if explained else f"unreadable {what}"
        raise UserError(f"{why} in {folder}/") from None
    if mode.startswith(DEEP):
        notes.add("16-bit image, stretched to 8 bits by its own range")
    if pages > 1:
        notes.add("file of several pages, of which the first is read")
    return (image, mask), notes


def _check_pair(source: Source, size: int | str, name: str) -> tuple[Pair, set[str]] | str:
    "Read an image and its mask, and note what cannot be right at this size; a text is an error."
    try:
        (image, mask), notes = _read_pair(source, name)
    except UserError as error:
        return str(error)
    if size == "native" and mask.size > NATIVE_PIXELS:
        return f"image of more than {NATIVE_PIXELS:,} pixels at its own size (use --base-size 256)"
    turn = _turn_of(find_file(source.images, name))
    other = _turn_of(find_file(source.masks, name, MASK_ENDINGS)) if turn != 1 else 1
    same_sides = (turn > 4) == (other > 4) or len({*mask.shape}) == 1  # else the mask is upright
    if turn != other and same_sides:
        notes.add("image and mask of different orientation tags (do their marks agree?)")
    if mask.mean() > 0.2:
        notes.add("targets cover more than a fifth of the image (is the mask inverted?)")
    if len(objects(scored_mask(mask, size) > 0)) < len(objects(mask > 0)):
        notes.add(f"targets vanish or merge at {size}x{size}")
    return (image, mask), notes


def scored_mask(mask: np.ndarray, size: int | str) -> np.ndarray:
    "A mask [H,W] as it is scored: both sides resized by the nearest pixel, or native."
    if isinstance(size, str):
        return mask
    return np.asarray(Image.fromarray(mask).resize((size, size), Image.Resampling.NEAREST))


@dataclass(frozen=True)
class InFiles(Sequence[Pair]):
    "Images with their masks that are read from their files each time."

    source: Source
    names: tuple[str, ...]

    def __len__(self) -> int:
        "Number of images."
        return len(self.names)

    def __getitem__(self, index: Any) -> Any:
        "Read one pair; UserError if a file has changed and cannot be read any more."
        try:
            return _read_pair(self.source, self.names[index])[0]
        except UserError as error:
            todo = "repair the file and run the same command again"
            raise UserError(f"{self.names[index]}: {error}; {todo}") from None


def _read_split(
    source: Source,
    part: str,  # "train" or "test"
    names: list[str],
    findings: Findings,
    max_bytes: float,  # bytes of pixels to keep at most; beyond it, none are kept
    config: Config,
) -> Split:
    "Read the images of a list once, and add the problems to `findings`."
    kept, good, digests = list[Pair](), list[str](), _Digests()
    used, has_target = 0, False  # bytes of pixels; whether any mask has a target
    read = prefetch(partial(_check_pair, source, config.base_size), names, 4)
    for name, found in zip(names, read, strict=True):
        if isinstance(found, str):
            findings.errors[found].append(name)
            continue
        pair, notes = found
        for kind in notes:
            findings.warnings[kind].append(name)
        good.append(name)
        digests.add(name, *pair)
        used += sum(pixels.nbytes for pixels in pair)
        has_target |= bool(pair[1].any())
        kept.append(pair)
        if used > max_bytes:
            kept.clear()
    if good and not has_target and {*good} & {*findings.warnings.get(_TOO_DARK, ())}:
        findings.errors[_DARK_LIST] += [part]
    elif good and not has_target:
        findings.warnings["no target in any mask of a list, so Pd is undefined"] += [part]
    pairs = tuple(kept) if used <= max_bytes else InFiles(source, tuple(good))
    split = Split(part, tuple(good), pairs, source.root.resolve().name)
    split.__dict__["digests"] = digests  # where `cached_property` keeps it
    return split


# %% [markdown]
# ### The splits of a run
#
# `load_data` reads both lists of a folder, and `splits` turns them into the splits of a run. Training, the gallery, the widgets and the report use the same data. The last data set stays in memory until one of its files changes, or a setting that decides how it is read. At least one image stays on each side of the split. A training list shorter than a batch is an error, because every epoch would end before its first step.

# %%
#| export
def _threshold_of_masks(source: Source) -> float:
    "The largest value that is not target, by all masks or an even sample of them."

    def values(path: Path) -> tuple[np.ndarray, bool]:
        with contextlib.suppress(Exception):  # it is reported when its image is read
            return mask_values(path)
        return np.zeros((1, 1), np.uint8), False

    found = [*_masks_by_name(source).values()]
    return _mask_threshold(prefetch(values, found[:: 1 + len(found) // 1000], 4))


def _read_source(config: Config, source: Source, findings: Findings) -> dict[str, Split]:
    "Read all splits of a data set; those that fit stay in memory."
    lists = _read_lists(source, findings)
    source = replace(source, scale=_threshold_of_masks(source))
    count = int(os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("WORLD_SIZE") or 1)
    left = {"auto": free_memory() / 2 / count, "stream": 0.0}.get(config.cache, math.inf)
    read: dict[str, Split] = {}
    for part, names in lists.items():
        read[part] = _read_split(source, part, names, findings, left, config)
        if read[part].in_memory:  # less is left for the next
            left -= sum(image.nbytes + mask.nbytes for image, mask in read[part].pairs)
    return read


Loaded = tuple[dict[str, Split], Findings]
LOADED: list[tuple[Any, dict[str, Any], Loaded]] = []  # one at most: state, that of each list


def _state_of(*folders: Path) -> Any:
    "Each file with its size and time, which change with the data."
    try:
        below = [near for folder in folders for near in folders_below(folder)]
    except OSError:  # of a disk that fails; nothing is equal to this
        return object()
    return [(path, stamp(path)) for folder in below for path in sorted(folder.glob("*"))]


def load_data(config: Config, names: Sequence[str] = ("train", "test")) -> Loaded:
    "The data set of a run, or its synthetic scenes, and its problems; the last one is kept."
    source = find_source(config, names)
    own = [getattr(config, name) for name in ("scenes", "base_size", "cache")]
    state = own, source and _state_of(source.images, source.masks)
    lists = {name: source and stamp(source.lists[name]) for name in names}
    for kept, its_lists, found in LOADED:
        ours = lists == its_lists or not (found[1].errors or found[1].warnings)  # of another list
        if ours and kept == state and lists.items() <= its_lists.items():
            return found
    LOADED.clear()  # before the memory is filled again
    if source and on_drive(source.root):
        say(f"data    {source.root} is on Google Drive; a .zip of it would be read much faster")
    findings = Findings()
    if source:
        read = _read_source(config, source, findings)
    else:
        count = {"train": config.scenes, "test": max(config.scenes // 4, 1)}
        side = 256 if config.base_size == "native" else config.base_size
        read = {name: scenes(name, count[name], side) for name in names}
    for pixels in (x for s in read.values() if s.in_memory for pair in s.pairs for x in pair):
        pixels.setflags(write=False)  # of all later runs of this process
    LOADED.append((state, lists, (read, findings)))
    return read, findings


def splits(config: Config, names: Sequence[str] = ("train", "test")) -> dict[str, Split]:
    "The splits of a run, with choose='val' also val; UserError if the data cannot be used."
    parts, findings = load_data(config, names)
    findings.raise_or_warn(config.on_bad_image)
    if empty := [name for name, split in parts.items() if not len(split)]:
        raise UserError(f"{parts[empty[0]].source}: no {empty[0]} image can be read")
    made = {name: parts[name] for name in names}  # more may be in memory
    if "train" not in names:
        return made
    train = parts["train"]
    if config.choose == "val":
        if len(train) < 2:
            raise UserError("choose='val': one training image cannot be split; use last instead")
        order = np.random.default_rng(config.seed).permutation(len(train)).tolist()
        held = min(max(1, round(config.val_fraction * len(train))), len(train) - 1)
        made["val"] = train.part("val", sorted(order[:held]))
        made["train"] = train.part("train", sorted(order[held:]))
    if (count := len(made["train"])) < config.batch_size:
        todo = f"there are only {count} training images; use --batch-size {count} or less"
        raise UserError(f"batch_size={config.batch_size}: {todo}")
    return made


# %% [markdown]
# With `cache="stream"` the pixels stay in their files. Beside the splits there are findings, here the three warnings of the broken folder:

# %%
parts, findings = data.load_data(Config(dataset_dir=config.dataset_dir, cache="stream"))
print("streamed:", isinstance(parts["test"].pairs, data.InFiles))
print(*data.Findings.lines(findings.warnings), sep="\n")


# %%
#| export
def write_lists(config: Config, fraction: float) -> str:
    """Write train.txt, a fraction of the images, and test.txt; UserError if there is a list.

    The images of `config.dataset_dir` are shuffled by `config.seed`. Returns one line.
    If the data set is read-only, writes NAME-train.txt and so on into the current folder.
    """
    what = f"split={fraction:g}"
    if not 0 < fraction < 1:
        raise UserError(f"{what} is not possible: use a number between 0 and 1, such as 0.5")
    source = find_source(config, ())
    if not source:
        raise UserError(f"{what}: synthetic scenes need no lists; name a folder: mshnet data DIR")
    root, names, use = source.root, _names_with_masks(source), ""
    if len(names) < 2:
        count = counted(len(names), "image")
        raise UserError(f"{what}: {root} has {count} with a mask of the same name; two are needed")
    if len(parts := {part for name in names if (part := name.split("/")[0]).lower() in _PARTS}) > 1:
        todo = "list their files instead, as PART/NAME, in train.txt and test.txt"
        raise UserError(f"{what} would mix the folders {', '.join(sorted(parts))}; {todo}")
    train, test = root / "train.txt", root / "test.txt"
    if not os.access(root, os.W_OK):  # such as what Kaggle attaches
        train, test = (Path.cwd() / f"{root.name}-{path.name}" for path in (train, test))
        use = f"; use them by --train-list {quoted(train)} --test-list {quoted(test)}"
    if there := _lists_in(root, *LISTS) + [path for path in (train, test) if path.exists()]:
        use = use if there[0] in (train, test) else ""  # the user's own lists are found
        raise UserError(f"{what}: there is a list, {there[0]}; leave out --split{use}")
    shuffled = np.random.default_rng(config.seed).permutation(names).tolist()
    first = min(max(1, round(fraction * len(names))), len(names) - 1)
    write_atomic(test, "\n".join([*sorted(shuffled[first:]), ""]))
    try:
        write_atomic(train, "\n".join([*sorted(shuffled[:first]), ""]))
    except BaseException:  # both or none
        for path in (train, test):
            path.unlink(missing_ok=True)
        raise
    if left := _image_names(source) - {*names}:
        use += f"; left out, without a mask of the same name: {len(left)} ({one_line(min(left))})"
    counts = f"{train.name} ({first}), {test.name} ({len(names) - first})"
    return f"lists written to {train.parent}: {counts}{use}"


def _image_names(source: Source) -> set[str]:
    "The names of all images: paths below their folder, without the endings."
    below = (path for folder in folders_below(source.images) for path in folder.glob("[!.]*"))
    paths = (p.relative_to(source.images) for p in below if p.suffix.lower() in SUFFIXES)
    return {p.with_name(unicodedata.normalize("NFC", p.stem)).as_posix() for p in paths}


def _masks_by_name(source: Source) -> dict[str, Path]:
    "The mask of each image that has one, by the sorted names of the images."
    names = sorted(_image_names(source))
    masks = ((name, find_file(source.masks, name, MASK_ENDINGS)) for name in names)
    return {name: mask for name, mask in masks if mask}


def _names_with_masks(source: Source) -> list[str]:
    "The names of images with a mask, sorted; UserError for one that a list cannot hold."
    found = [*_masks_by_name(source)]
    for name in found:
        if [*_names_in(name.encode(errors="ignore").decode())] != [name]:  # as it would be read
            todo = "rename this image and its mask"
            raise UserError(f"a list cannot hold the name {shown(name)}; {todo}")
    return found


def _describe(split: Split) -> list[str]:
    "Counts, sizes and target areas of a split, in a few lines."
    sizes, areas, empty, grey = set[tuple[int, ...]](), list[float](), 0, 0
    for image, mask in _pairs_of(split):
        sizes.add(mask.shape)
        areas += objects(mask > 0).area.tolist()
        empty += not mask.any()
        grey += image.ndim == 2
    heights, widths = ([size[k] for size in sizes] or [0] for k in (0, 1))
    small, middle, large = np.percentile(areas or [0], (0, 50, 100)).astype(int)
    return [
        f"{split.name}: {counted(len(split), 'image')}, {counted(len(areas), 'target')}, "
        f"{empty} without a target, hash {split.hash}",
        f"  {counted(len(sizes), 'size')}, {min(widths)}..{max(widths)} wide, "
        f"{min(heights)}..{max(heights)} high; {grey} grey, {len(split) - grey} colour",
        f"  target areas {small}..{large} px, median {middle} px",
    ]


def report(config: Config) -> tuple[str, bool]:
    "Counts, sizes and target areas of a data set, and its problems; whether it can be trained on."
    parts, findings = load_data(config)
    lines = [] if config.dataset_dir else ["synthetic scenes: no data set is named (dataset_dir)"]
    lines += [line for split in parts.values() for line in _describe(split)]
    skips = config.on_bad_image == "skip" and _DARK_LIST not in findings.errors
    usable = not findings.errors or (skips and all(map(len, parts.values())))
    bad = "skipped" if usable else "error"
    lines += [f"{bad}: {line}" for line in Findings.lines(findings.errors, 1000)]
    trained, tested = (parts[part].digests.images for part in ("train", "test"))
    twins = [f"{name} as {trained[key]}" for key, name in tested.items() if key in trained]
    more = {"test image that is in the training list under another name": twins} if twins else {}
    lines += [f"warning: {line}" for line in Findings.lines({**findings.warnings, **more})]
    return "\n".join(lines), usable


# %% [markdown]
# ### One file, and its many surprises
#
# Published sets hold files of different kinds, sometimes mixed in one folder:
#
# - Grey, RGB, RGBA and palettes: Pillow converts all of them to RGB, as in the official code. Three equal channels become one.
# - 16 bits or floats: Pillow would clip them at 255. We stretch them to 8 bits, with a warning ([frames](23_frames.ipynb) shows how).
# - The JPEG of a FLIR camera: we read its temperatures, with the package flyr; without it the file is an error.
# - An EXIF orientation: we turn the image, as viewers do. A mask whose width and height are then swapped is an error.

# %%
#| export
DEEP = ("I", "F")  # the first letters of Pillow's modes with more than 8 bits


def _mode_of(file: Image.Image) -> str:
    "Pillow's mode of an image; F for a FLIR camera's JPEG, which has a segment with temperatures."
    segments = getattr(file, "applist", ())
    return "F" if any(content[:5] == b"FLIR\0" for _, content in segments) else file.mode


def _turn_of(path: Path | None) -> int:
    "The orientation tag of a file, by its header; 1: none, as in PNG, or an impossible one."
    if not path or path.suffix.lower() in (".png", ".bmp"):
        return 1
    with contextlib.suppress(Exception), opened(path) as file:  # damaged tags raise many kinds
        turn = file.getexif().get(274, 1)
        return turn if turn in range(2, 9) else 1
    return 1


def one_channel(rgb: np.ndarray) -> np.ndarray:
    "An image [H,W,3] as [H,W] where its channels agree, else unchanged."
    red = rgb[..., 0]
    grey = all(np.array_equal(red, rgb[..., k]) for k in (1, 2))
    return np.ascontiguousarray(red if grey else rgb)


def pixels_of(file: Image.Image) -> np.ndarray:  # [H,W] or [H,W,3] uint8
    "The pixels of an image file, at its present page, as 8-bit grey or colour."
    if not _mode_of(file).startswith(DEEP):
        upright = _upright(file)
        if getattr(file, "tag_v2", {}).get(339) == (2,) and np.asarray(file).max() > 127:
            raise UserError("negative values in 8 bits: save them as 16 bits")
        grey = upright.mode == "L"
        return np.array(upright) if grey else one_channel(np.asarray(upright.convert("RGB")))
    values = _deep_values(file)
    low, high = grey_range(values)
    values -= low  # in place: these are eight bytes a pixel
    values *= 255
    values /= (high - low) or 1  # a frame of one value becomes black
    return values.round(out=values).clip(0, 255, out=values).astype(np.uint8)


def grey_range(values: np.ndarray) -> tuple[float, float]:
    "The values of a deep frame [H,W] that become black and white: the extremes but for outliers."
    sample = values[*[slice(None, None, 1 + length // 4096) for length in values.shape]]
    low, least, dark, half, light, most, high = np.percentile(sample, (2, 10, 25, 50, 75, 90, 99.5))
    core = min(half - dark, light - half)
    if high - low > 8 * core:  # without an empty border and lines far from those beside them
        inside = (sample > sample.min()) & (sample < sample.max())
        for axis in (0, 1):
            lines = np.median(sample, 1 - axis, keepdims=True)
            inside &= abs(lines - median_filter(lines, 17)) <= 20 * core
        ends = np.percentile(sample[inside], (2, 99.5)) if inside.mean() > 0.5 else (low, high)
        if high - low > 2 * np.ptp(ends):
            values, (low, high) = sample[inside], ends
    reach = 2 * (high - low) or np.inf  # a frame of nearly one value has no outliers
    ends = [values.min(), values.max()]
    if values.ndim == 2 and ends[0] < low - reach:  # bad pixels: take three that touch
        ends[0] = min(low, rank_filter(values, 2, 3, mode="constant", cval=np.inf).min())
    if values.ndim == 2 and ends[1] > high + reach:
        ends[1] = max(high, rank_filter(values, -3, 3, mode="constant", cval=-np.inf).max())
    low, high = float(max(ends[0], low - reach)), float(min(ends[1], high + reach))
    if 0 < 16 * (min(most, high) - max(least, low)) < high - low:
        todo = "if it has telemetry rows, bad lines or a border, cut them off"
        warnings.warn(f"most of a frame gets few of the 256 grey levels; {todo}", stacklevel=2)
    return low, high


def _deep_values(file: Any) -> np.ndarray:  # an image
    "The values [H,W] of an image of 16 bits or floats, more is brighter; UserError for NaN."
    if file.format == "TIFF" and file.tile and file.tile[0][0] == "libtiff":  # it swaps bytes
        file.tile = [t._replace(args=(t[3][0].replace("B", ""), *t[3][1:])) for t in file.tile]
    temperatures = _temperatures(file) if _mode_of(file) != file.mode else None
    values = np.array(_upright(file, temperatures), np.float64)
    if not np.isfinite([values.min(), values.max()]).all():
        todo = "numpy.nan_to_num(x, nan=0, posinf=0, neginf=0) replaces them"
        raise UserError(f"pixels are NaN or infinite ({todo})")
    tags = getattr(file, "tag_v2", {})
    if (tags.get(258), tags.get(339, (1,))) == ((32,), (1,)):  # unsigned; Pillow reads signed
        np.mod(values, 2**32, out=values)
    if tags.get(262) == 0:  # a TIFF file whose 0 is white
        np.subtract(values.max(), values, out=values)
    return values


def _upright(file: Image.Image, pixels: Image.Image | None = None) -> Image.Image:
    "A copy of an image, or of its temperatures, turned by its orientation tag alone."
    if _has_deep_channels(file):
        raise UserError("16 bits in several channels: save one of them, or 8 bits")
    upright = (pixels or file).copy()  # a TIFF file is turned by this; other tags may be odd
    upright.info = {key: value for key, value in file.info.items() if "exif" not in str(key)}
    with contextlib.suppress(Exception):  # damaged tags, of which it raises many kinds
        upright.getexif()[274] = file.getexif().get(274, 1)
    ImageOps.exif_transpose(upright, in_place=True)
    return upright


def _temperatures(file: Image.Image) -> Image.Image:
    "The kelvins in a FLIR camera's JPEG, not turned yet; UserError if there are none."
    todo = "to use its colours instead, save it as PNG"
    if not importlib.util.find_spec("flyr"):
        raise UserError(f"temperatures of FLIR need the package flyr (pip install flyr); {todo}")
    try:
        import flyr

        name = getattr(file, "filename", "")
        with open(name, "rb") if name else contextlib.nullcontext(vars(file)["fp"]) as stream:
            stream.seek(0)
            with np.errstate(invalid="ignore"):  # the logarithm of a dead pixel
                return Image.fromarray(np.nan_to_num(np.float32(flyr.unpack(stream).kelvin)))
    except Exception:  # flyr raises many kinds for bytes that make no sense
        raise UserError(f"the temperatures of FLIR cannot be read; {todo}") from None


def _has_deep_channels(file: Image.Image) -> bool:
    "Whether an image has several channels of 16 bits. Pillow reads wrong bytes of them, or half."
    bits = getattr(file, "tag_v2", {}).get(258, ())  # BitsPerSample, of TIFF files alone
    forms = str([part[3] for part in getattr(file, "tile", ())])
    return (len(bits) > 1 and max(bits) > 8) or bool(re.search(r"(RGB|LA)\w*;16", forms))


def read_image(path: Path) -> tuple[np.ndarray, str, int]:  # [H,W] or [H,W,3] uint8
    "The first page of a file, its mode, its number of pages; UserError or any of Pillow's errors."
    with opened(path) as file:
        pages = getattr(file, "n_frames", 1)
        return pixels_of(file), _mode_of(file), pages


# %% [markdown]
# A file of a few kilobytes can contain an image of gigabytes, and for EPS Pillow calls an external program (Ghostscript). So only PNG, BMP, JPEG, TIFF, WebP and GIF are opened, whatever the suffix, up to 8192 by 8192 pixels. (Pillow's own limit is 179 million pixels, 0.5 GB as RGB and 1.4 GB as floats, and we read four at once.) Below are the values of the mask of 0, 1 and 3, and whether it has colours:

# %%
print("values and colours:", *data.mask_values(masks / "0.png"))

# %%
#| export
_MAX_LABEL, _MAX_BLACK = 64, 31.0  # largest number of an object or class; of a colour that is black
_TOO_DARK = "grey mask that loses objects by the cut at half of the largest value of all"
_DARK_LIST = "list of grey masks without a target (save targets as 255)"
_NOTES = {  # by what `_mask_threshold` returns
    0.0: "mask with the numbers of objects, in which all above 0 is target",
    _MAX_BLACK: "coloured mask, in which every colour but black is target",
}


def mask_values(path: Path) -> tuple[np.ndarray, bool]:  # [H,W] uint8, float64 of a deep file
    "The values of a mask (largest channel), and whether it is coloured; raises as `read_image`."
    with opened(path) as file:
        if file.mode.startswith(DEEP):  # which convert would clip at 255
            deep = _deep_values(file)
            deep.clip(0, out=deep)
            return np.divide(deep, 257 if deep.max() > 255 else 1, out=deep), False
        lossy = file.format in ("JPEG", "MPO", "WEBP") and b"VP8L" not in path.read_bytes()
        file = _upright(file)
        if file.mode in ("L", "1"):
            return np.asarray(file.convert("L")), False
        *colours, alpha = np.moveaxis(np.asarray(file.convert("RGBA")), -1, 0)
    if all(np.ptp(colour) == 0 for colour in colours) and np.ptp(alpha):
        return alpha, False
    visible = np.where(alpha > 0, colours, 0)
    values = visible.max(0)
    coloured = bool((values - visible.min(0)).max() > lossy)  # by 1 in a grey WebP
    if coloured and lossy:  # colours are blurred: each object ends at half of its brightness
        values[values <= maximum_filter(values, 9) // 2] = 0
    return values, coloured


def _mask_threshold(masks: Iterable[tuple[np.ndarray, bool]]) -> float:
    "The largest value that is not target, decided by the `mask_values` of all masks of a data set."
    any_coloured, levels = False, {0.0}
    for values, coloured in masks:
        any_coloured |= coloured
        grey = values.dtype == np.uint8
        found = np.flatnonzero(Image.fromarray(values).histogram()) if grey else np.zeros(0)
        for row in () if grey else values:  # without a sorted copy of a large mask
            found = np.union1d(found, row)[-1000:]
        levels.update(found.astype(float).tolist())
    top = max(levels)
    whole = top > 1 and all(level.is_integer() for level in levels)
    gapless = top < 255 and len(levels) == top + 1  # with 0
    if any_coloured:
        return _MAX_BLACK
    return 0.0 if whole and (top <= _MAX_LABEL or gapless) else top / 2


def read_mask(
    path: Path,
    size: tuple[int, int],  # height and width of its image
    scale: float | None = None,  # largest non-target value of its data set; None: of this mask
) -> tuple[np.ndarray, set[str]]:  # [H,W] uint8, 0 or 1; what is special about it
    "Read a mask as 0 and 1, resized to `size` by nearest pixel; raises as `read_image`."
    values, coloured = mask_values(path)
    scale = _mask_threshold([(values, coloured)]) if scale is None else scale
    truth, notes = (values > scale).astype(np.uint8), set[str]()
    if scale in _NOTES and values.max() > 1 and truth.any():
        notes.add(_NOTES[scale])
    elif (values.any() and not truth.any()) or _lost_targets(values, scale):
        notes.add(_TOO_DARK)
    elif np.count_nonzero(values == 1) > 3 and {*np.unique(values)} == {0, 1, 255}:
        notes.add("mask of 1 and 255, in which only 255 is target (if it means ignore, make it 0)")
    if truth.shape == size[::-1] != size:  # its image is turned by an orientation tag
        raise UserError("width and height of its image swapped: turn it by 90 degrees")
    if truth.shape != size:
        notes.add("mask of another size than its image, resized as labels")
        truth = np.asarray(Image.fromarray(truth).resize(size[::-1], Image.Resampling.NEAREST))
    return truth, notes


def _lost_targets(values: np.ndarray, scale: float) -> bool:
    "Whether a grey mask has objects that the cut removes; noise of JPEG is below a quarter of it."
    if scale in _NOTES or not ((values > 0) & (values <= scale)).any():
        return False
    spots = values > scale / 4
    if np.unique(values).size <= 8:  # no noise; dark objects of one value may be numbered
        labels, count = label(values > 0, np.ones((3, 3)))
        low, high = (end(values, labels, range(count + 1)) for end in (minimum, maximum))
        spots |= (values > 0) & ((low == high) & (np.bincount(labels.flat) > 3))[labels]
    labels, count = label(spots, np.ones((3, 3)))
    return bool(min(maximum(values, labels, range(1, count + 1)), default=np.inf) <= scale)


KINDS = ("PNG", "BMP", "JPEG", "TIFF", "WEBP", "GIF")  # as Pillow calls them
MOST_PIXELS = 8192 * 8192
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)  # this limit decides
for _order in (b"II", b"MM"):  # the mask of a GeoTIFF, at which Pillow cannot count the pages
    TiffImagePlugin.OPEN_INFO.setdefault((_order, 4, (1,), 1, (1,), ()), ("1", "1"))


@contextlib.contextmanager
def opened(path: Path, most: int = MOST_PIXELS) -> Iterator[Image.Image]:
    "Open an image file without reading its pixels; raises as `read_image`."
    try:
        file = Image.open(path, formats=KINDS)
    except UnidentifiedImageError:
        if path.suffix.lower() not in (".tif", ".tiff"):
            raise
        todo = "save a TIFF file as 8 or 16 bits or 32-bit floats, grey"
        raise UserError(f"unreadable image ({todo})") from None
    except Image.DecompressionBombError:  # far beyond the limit
        raise UserError(f"more than {most:,} pixels") from None
    with file:
        file.filename = ""  # else Pillow maps a TIFF file on its side with its rows cut wrongly
        refuse_size(file, most)
        yield file


def refuse_size(file: Image.Image, most: int) -> None:
    "Raise an error if an image, or a page of one, is too large or empty, or is a volume."
    if file.width * file.height > most:
        raise UserError(f"more than {most:,} pixels")
    if not file.width * file.height:
        raise OSError("an image without pixels")
    if getattr(file, "tag_v2", {}).get(32997, 1) > 1:  # ImageDepth; Pillow reads the first slice
        raise UserError("a volume of several slices: save them as pages of a TIFF, or as files")

# %% [markdown]
# ## Questions
#
# 1. The report above counts a target of 16,323 pixels. Where does it come from, and what would happen to a training?
#    <details><summary>Answer</summary>From the inverted mask: its background is one large object. The network would learn to mark the sky in one image and to leave it alone in the others.</details>
# 2. A data set has masks of 0, 1 and 2. A colleague adds one mask of 0 and 255. What is a target before and after?
#    <details><summary>Answer</summary>Before, all above 0, because 1 and 2 are numbers of objects. After, all above half of 255, so the old masks have no target left. A list of old images alone has no target then, which stops the training; in a mixed list they would teach that nothing is there, and the report warns of their masks.</details>
