# %% [markdown]
# # data
#
# > From a folder of messy images to checked pairs of an image and a mask, split for training and testing.

# %%
#| default_exp data

# %%
#| hide
import tempfile

from fastcore.test import expect_fail, test_eq

# %%
#| export
import contextlib
import hashlib
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
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from mshnet.core import UserError, counted, did_you_mean, one_line, quoted, read_text, shown
from mshnet.fetch import find_dataset, shipped_lists, usual_list
from mshnet.files import free_memory, prefetch, write_atomic
from mshnet.metrics import objects
from mshnet.places import on_drive, say
from mshnet.recipe import Config
from mshnet.scenes import scene

# %% [markdown]
# ## One pair
#
# A benchmark of this field is a folder of a few hundred small images, each with a mask of its targets. We begin with one pair, then find the files of a data set, collect a split, check it, and divide it for a run.
#
# Published sets hold grey, RGB, RGBA and palette files, sometimes mixed in one folder. Pillow converts all of them to RGB, as in the official code. Where the three channels agree, one is kept. A camera's frame of 16 bits or floats is stretched to 8 bits, because Pillow would clip it at 255, and the user gets a warning. [Frames](23_frames.ipynb) shows how. A picture that its file turns by a tag (EXIF) is turned, as viewers show it.

# %%
#| export
DEEP = ("I", "F")  # the first letters of Pillow's modes with more than 8 bits


def one_channel(
    rgb: np.ndarray,  # [H,W,3]
) -> np.ndarray:  # [H,W] where the three agree, else unchanged
    "Keep one channel of an image that is grey."
    red = rgb[..., 0]
    grey = all(np.array_equal(red, rgb[..., k]) for k in (1, 2))
    return np.ascontiguousarray(red if grey else rgb)


def pixels_of(
    file: Image.Image,  # opened, at one of its pages
) -> np.ndarray:  # [H,W] or [H,W,3] uint8
    "The pixels of an image file as 8-bit grey or colour."
    if not file.mode.startswith(DEEP):
        if _has_deep_channels(file):
            raise UserError("16 bits in several channels: save one of them, or 8 bits")
        file = _upright(file)
        return np.array(file) if file.mode == "L" else one_channel(np.asarray(file.convert("RGB")))
    values = _deep_values(file)
    low, high = grey_range(values)
    values -= low  # in place: these are eight bytes a pixel
    values *= 255
    values /= (high - low) or 1  # a frame of one value becomes black
    return values.round(out=values).clip(0, 255, out=values).astype(np.uint8)


_REACH = 2  # how far beyond its percentiles the range of a frame may go, in widths of them


def grey_range(
    values: np.ndarray,  # [H,W] of a frame of 16 bits or floats
) -> tuple[float, float]:
    """The values that become black and white: the least and the largest that are not outliers.

    A value counts if it is at most `_REACH` times the width of percentiles 2 to 99.5 beyond them.
    """
    step = [slice(None, None, 1 + length // 4096) for length in values.shape]
    low, high = np.percentile(values[*step], (2, 99.5))
    reach = _REACH * (high - low) or np.inf  # a frame of nearly one value has no outliers
    return float(max(values.min(), low - reach)), float(min(values.max(), high + reach))


_ORIENTATION = 0x0112  # the EXIF tag


def _upright(file: Image.Image) -> Image.Image:
    "An image as its orientation tag says; Pillow obeys that of TIFF files by itself."
    turned = file.format != "TIFF" and file.getexif().get(_ORIENTATION, 1) in range(2, 9)
    return ImageOps.exif_transpose(file) if turned else file


def _deep_values(
    file: Image.Image,  # of 16 bits or floats
) -> np.ndarray:  # [H,W] float64; more is brighter
    "The values of a deep image; UserError if one is NaN or infinite."
    values = np.array(_upright(file), np.float64)
    if not np.isfinite([values.min(), values.max()]).all():
        raise UserError("pixels are NaN or infinite")
    if getattr(file, "tag_v2", {}).get(262) == 0:  # a TIFF file whose 0 is white
        np.subtract(values.max(), values, out=values)
    return values


def _has_deep_channels(file: Image.Image) -> bool:
    "Whether an image has several channels of 16 bits. Pillow reads wrong bytes of them, or half."
    bits = getattr(file, "tag_v2", {}).get(258, ())  # BitsPerSample, of TIFF files alone
    if len(bits) > 1 and max(bits) > 8:  # one plane after the other, or pixel by pixel
        return True
    parts = [part[3] for part in getattr(file, "tile", ())]
    forms = [str(part[0] if isinstance(part, tuple) else part) for part in parts]
    return any(form.startswith(("RGB", "LA")) and ";16" in form for form in forms)


def read_image(
    path: Path,
) -> tuple[np.ndarray, str, int]:  # [H,W] or [H,W,3] uint8; the mode, such as "RGBA"; pages
    """Read the first page of an image file as 8-bit grey or colour.

    Raises UserError for several channels of 16 bits and for NaN or infinite pixels, and any of
    Pillow's errors.
    """
    with opened(path) as file:
        pages = getattr(file, "n_frames", 1)
        return pixels_of(file), file.mode, pages


# %% [markdown]
# A mask holds labels and not grey levels, and it is resized without mixing pixels. What is a target? Published masks hold 0 and 255, or 0 and 1. Label tools write the numbers of objects, or colours. An image without a target may hold a few stray pixels of 1. One mask alone cannot tell, so all masks of a data set decide together:
#
# | masks of the data set | target |
# |---|---|
# | the largest value of all is 255 or 1 (65535 of 16 bits is 255) | above half of it |
# | numbers of objects: up to 64, or 1, 2, 3 ... without a gap | above 0 |
# | a colour in any of them | every colour but black |
# | one colour everywhere, and the shape in the alpha channel | above half of its opacity |

# %%
#| export
class MaskValues(NamedTuple):
    "The values of a mask's file."

    values: np.ndarray  # [H,W] uint8, or float64 of a deep file; of colours the largest channel
    coloured: bool = False
    lossy: bool = False  # a JPEG file, whose values are not exact


class MaskScale(NamedTuple):
    "Which values of the masks of a data set are target."

    cut: float = 127.5  # the largest value that is not target
    coloured: bool = False


_MOST_NUMBER, _DARKEST = 64, 31  # largest number of an object or class; of a colour that is black


def mask_values(path: Path) -> MaskValues:
    "The values of a mask; UserError for NaN or infinite pixels, and any of Pillow's errors."
    with opened(path) as file:
        lossy = file.format == "JPEG"
        if file.mode.startswith(DEEP):  # which convert would clip at 255
            deep = _deep_values(file).clip(0)
            return MaskValues(deep / 257 if deep.max() > 255 else deep)
        file = _upright(file)
        if file.mode in ("L", "1"):
            return MaskValues(np.asarray(file.convert("L")), lossy=lossy)
        *colours, alpha = np.moveaxis(np.asarray(file.convert("RGBA")), 2, 0)
    if all(np.ptp(colour) == 0 for colour in colours) and np.ptp(alpha):
        return MaskValues(alpha, lossy=lossy)
    visible = [np.where(alpha > 0, colour, 0) for colour in colours]
    if lossy or all(np.array_equal(visible[0], other) for other in visible[1:]):
        grey = np.asarray(Image.fromarray(np.dstack(visible)).convert("L"))
        return MaskValues(grey, lossy=lossy)
    return MaskValues(np.maximum.reduce(visible), coloured=True)


def mask_scale(masks: Iterable[MaskValues]) -> MaskScale:
    "What is target in the masks of a data set, decided by all of them."
    coloured, levels = False, {0.0}
    for mask in masks:
        coloured |= mask.coloured
        levels |= _levels(mask.values)
    if coloured:
        return MaskScale(_DARKEST, coloured=True)
    top = max(levels)
    whole = top > 1 and all(level == int(level) for level in levels)
    gapless = top < 255 and len(levels) == top + 1  # with 0
    return MaskScale(0 if whole and (top <= _MOST_NUMBER or gapless) else top / 2)


def _levels(values: np.ndarray) -> set[float]:
    "The different values of a mask; of many, the largest."
    if values.dtype == np.uint8:
        return set(np.flatnonzero(np.bincount(values.ravel())).astype(float).tolist())
    return set(np.unique(values)[-1000:].tolist())


def read_mask(
    path: Path,
    size: tuple[int, int],  # height and width of its image
    scale: MaskScale | None = None,  # of its data set; None: of this mask alone
) -> tuple[np.ndarray, set[str]]:  # [H,W] uint8, 0 or 1; what is special about it
    """Read a mask as 0 and 1, resized to `size` by nearest pixel.

    Raises UserError for NaN or infinite pixels, and any of Pillow's errors.
    """
    mask = mask_values(path)
    scale = scale or mask_scale([mask])
    truth = (mask.values > scale.cut).astype(np.uint8)
    notes = set(filter(None, [_mask_note(mask, truth, scale)]))
    if truth.shape != size:
        notes.add("mask of another size than its image, resized as labels")
        resized = Image.fromarray(truth).resize(size[::-1], Image.Resampling.NEAREST)
        truth = np.asarray(resized)
    return truth, notes


def _mask_note(mask: MaskValues, truth: np.ndarray, scale: MaskScale) -> str:
    "What is special about a mask that does not hold two values; empty: nothing."
    if scale.coloured:
        note = "coloured mask, in which every colour but black is target"
        return note if truth.any() else ""
    if not scale.cut:
        note = "mask with the numbers of objects, in which all above 0 is target"
        return note if mask.values.max() > 1 else ""
    if mask.lossy or not _levels(mask.values) - {0, 2 * scale.cut}:
        return ""
    half = f"half of {2 * scale.cut:g}"
    if not truth.any():
        return f"grey mask without a target after the cut at {half}"
    return f"grey mask, cut at {half}"


# %% [markdown]
# Three masks of a set: one with a target, one with stray pixels of 1, one without a target. Together they say that 255 is target; the second alone would say that 1 is.

# %%
rows = ([0, 255, 90], [0, 1, 1], [0, 0, 0])
three = [MaskValues(np.array([row], np.uint8)) for row in rows]
scale: MaskScale = mask_scale(three)
test_eq([(mask.values > scale.cut).sum() for mask in three], [1, 0, 0])
scale, mask_scale(three[1:2])

# %% [markdown]
# A file is opened only as PNG, BMP, JPEG, TIFF, WebP or GIF, whatever its suffix. Pillow reads forty more formats, and starts a different program for one of them. A file of a few kilobytes can hold an image of gigabytes. The limit is therefore 8192 by 8192 pixels. Pillow's own limit allows images of 3 GB each, and we read four at once.

# %%
#| export
KINDS = ("PNG", "BMP", "JPEG", "TIFF", "WEBP", "GIF")  # as Pillow calls them
MOST_PIXELS = 8192 * 8192
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)  # this limit decides


@contextlib.contextmanager
def opened(
    path: Path,
    most: int = MOST_PIXELS,
) -> Iterator[Image.Image]:
    """Open an image file without reading its pixels.

    Raises any of Pillow's errors; UserError for a kind of TIFF that Pillow cannot read.
    """
    try:
        file = Image.open(path, formats=KINDS)
    except UnidentifiedImageError:
        if kind := _kind_of_tiff(path):
            raise UserError(f"{kind}: save it as 8 or 16 bits or 32-bit floats, grey") from None
        raise
    with file:
        refuse_size(file, most)
        yield file


def _kind_of_tiff(path: Path) -> str:
    "What a TIFF file holds, such as `TIFF of float64, 40x50`; empty: it is no TIFF file."
    import tifffile  # scikit-image needs it

    with contextlib.suppress(Exception), tifffile.TiffFile(path) as file:  # many kinds of errors
        return f"TIFF of {file.series[0].dtype}, {'x'.join(map(str, file.series[0].shape))}"
    return ""


def refuse_size(
    file: Image.Image,
    most: int = MOST_PIXELS,
) -> None:
    "Raise an error if an image, or a page of one, is too large or empty."
    if file.width * file.height > most:
        raise Image.DecompressionBombError(f"more than {most:,} pixels")
    if not file.width * file.height:
        raise OSError("an image without pixels")


# %%
with tempfile.TemporaryDirectory() as tmp:
    path = Path(tmp) / "frame.png"
    Image.fromarray(np.array([[1000, 5000]], np.uint16)).save(path)
    pixels, mode, _ = read_image(path)
    Image.fromarray(np.array([[0, 90, 200, 255]], np.uint8)).save(path)
    labels, changes = read_mask(path, (1, 4))
    test_eq(mask_values(path).values.max(), 255)
    with expect_fail(Image.DecompressionBombError, contains="more than"):
        opened(path, most=3).__enter__()
test_eq((pixels.tolist(), labels.tolist()), ([[0, 255]], [[0, 0, 1, 1]]))
mode, changes

# %% [markdown]
# ## The files of a data set
#
# The layouts in use differ in folder and list names, nothing else. A data set is recognised by the content of its folder. If that is ambiguous, the error names the setting that decides. An output folder inside a data set is rejected, because a prediction has a folder `masks/` too.

# %%
#| export
FOLDERS = [("images", "masks"), ("IRSTD1k_Img", "IRSTD1k_Label")]
LISTS = [("trainval.txt", "test.txt"), ("train.txt", "test.txt"), ("train.txt", "val.txt")]
MASK_ENDINGS = ("", "_pixels0")  # of a mask's name; the second in the first release of SIRST
SUFFIXES = (".png", ".bmp", ".jpg", ".jpeg", ".tif", ".tiff", ".webp", ".gif")


@dataclass(frozen=True)
class Source:
    "Where the parts of a data set lie: found once, and handed down."

    root: Path
    images: Path
    masks: Path
    lists: dict[str, Path]  # by part: "train", "test"
    scale: MaskScale | None = None  # of all masks; None: not decided yet


def find_source(
    config: Config,
    parts: Sequence[str] = ("train", "test"),  # whose lists are needed
) -> Source | None:  # None: synthetic scenes
    "The data set of a run; UserError if there is none, or its layout is unknown."
    root = find_dataset(config.dataset_dir)
    if root is None:
        return None
    if not (pair := _pair_in(root)):
        known = " or ".join(f"{i}/ and {m}/" for i, m in FOLDERS)
        near = [path for path in (root.parent, *sorted(root.glob("*/"))) if _pair_in(path)]
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UserError(f"dataset_dir={str(root)!r}: has no {known}{hint}")
    lists = {
        part: _find_list(root, pair[0], part, getattr(config, f"{part}_list")) for part in parts
    }
    return Source(root, *pair, lists)


def _pair_in(root: Path) -> tuple[Path, Path] | None:
    "The folders of the images and of the masks in the folder of a data set."
    pairs = ((root / images, root / masks) for images, masks in FOLDERS)
    return next((pair for pair in pairs if all(map(os.path.isdir, pair))), None)


def _lists_in(root: Path) -> list[str]:
    "The lists of names in a data set's folder, under any of the names in use."
    found = [root / name for name in dict.fromkeys(sum(LISTS, ())) if (root / name).exists()]
    found += sorted((root / "img_idx").glob("*.txt"))
    return [path.relative_to(root).as_posix() for path in found]


def outside_of_data(output_dir: str | Path) -> None:
    "UserError if a folder for results is in a data set, or is one; an empty name is not."
    folder = Path(os.path.realpath(os.path.expanduser(output_dir)))
    for top in (folder, *folder.parents) if output_dir else ():
        if _pair_in(top):
            raise UserError(
                f"output_dir={str(output_dir)!r}: is in the data set {top}, whose files it could "
                "replace; use a folder outside of it"
            )


# %% [markdown]
# We look for a complete pair of lists before single lists. `train.txt` and `trainval.txt` may lie side by side, and only their partner decides which is meant.

# %%
#| export
def _find_list(
    root: Path,
    images: Path,  # their folder
    part: str,  # "train" or "test"
    asked: str,  # the file that the user named; empty: search
) -> Path:
    "The file that lists the names of one part."
    if asked:
        shipped = shipped_lists()
        if os.path.isfile(root / asked):  # unlike Path.is_file, False for an invalid name
            return root / asked
        if asked in shipped:
            return shipped[asked]
        names = f"{', '.join(shipped)}{did_you_mean(asked, list(shipped))}"
        raise UserError(
            f"{part}_list={asked!r}: there is no such file in {root}, and none of the lists that "
            f"come with mshnet has this name: {names}"
        )
    whole = [pair for pair in LISTS if all((root / file).is_file() for file in pair)][:1]
    found = [root / pair[part == "test"] for pair in whole]
    found = found or sorted((root / "img_idx").glob(f"{part}_*.txt"))
    if not found:  # the user may have named the list of the other part
        single = dict.fromkeys(root / pair[part == "test"] for pair in LISTS)
        found = list(filter(Path.is_file, single))
    if not found and (usual := usual_list(images, part)):
        return usual
    if len(found) == 1:
        return found[0]
    what = f"no list of {part} names such as {part}.txt"
    hint = "" if _lists_in(root) else "; `mshnet data DIR --split 0.5` writes both"
    if found:
        what = f"several lists ({', '.join(path.relative_to(root).as_posix() for path in found)})"
    raise UserError(f"dataset_dir={str(root)!r}: {what}; name one with --{part}-list{hint}")


# %%
with tempfile.TemporaryDirectory() as tmp:
    for folder in ("images", "masks", "img_idx"):
        (Path(tmp) / folder).mkdir()
    for name in ("train_A", "test_A", "test_B"):
        (Path(tmp) / f"img_idx/{name}.txt").write_text("one\n")
    source: Source = find_source(Config(dataset_dir=tmp, test_list="img_idx/test_B.txt"))
{part: path.name for part, path in source.lists.items()}


# %% [markdown]
# A mask has the name of its image; in the first release of SIRST it ends in `_pixels0`. Suffixes may differ (of two files of one name the first in `SUFFIXES` is read), and hidden files do not count. A Mac may write an accented letter as two signs; the file is found all the same.

# %%
#| export
def find_file(
    folder: Path,
    name: str,
    endings: tuple[str, ...] = ("",),  # what may follow the name
) -> Path | None:
    "The file of a name, whatever its suffix."
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
    return {unicodedata.normalize("NFC", file.stem): file.name for file in reversed(images)}


# %%
with tempfile.TemporaryDirectory() as tmp:
    (Path(tmp) / "Misc_1_pixels0.PNG").touch()
    test_eq(find_file(Path(tmp), "Misc_1"), None)
    test_eq(find_file(Path(tmp), "Misc_1", ("", "_pixels0")).name, "Misc_1_pixels0.PNG")

# %% [markdown]
# ## A split
#
# A split is one part of a data set in list order. Its 8-bit pixels are read once and fit in memory. A larger data set stays in its files, and each pair is read when a batch needs it. Both look like one sequence of pairs. `stores` holds resized copies.

# %%
#| export
Pair = tuple[np.ndarray, np.ndarray]  # image [H,W] grey or [H,W,3], uint8; mask [H,W] uint8, 0 or 1


@dataclass(frozen=True)
class Split:
    "Images with their masks of one part of a data set, in list order."

    name: str  # "train", "val" or "test"
    names: tuple[str, ...]
    pairs: Sequence[Pair]  # a tuple in memory, or `InFiles`
    source: str  # data set's name
    made_by: str = ""  # the command of ours that made its list; empty: the list came with the data
    stores: dict[str, Any] = field(init=False, compare=False, repr=False, default_factory=dict)

    def __len__(self) -> int:
        "Number of images."
        return len(self.names)

    def part(self, name: str, indices: Sequence[int]) -> "Split":
        "A new split of the images at these indices."
        names = tuple(self.names[i] for i in indices)
        pairs: Any = self.pairs
        pairs = tuple(pairs[i] for i in indices) if self.in_memory else replace(pairs, names=names)
        return Split(name, names, pairs, self.source, made_by=self.made_by)

    @property
    def in_memory(self) -> bool:
        "Whether the pixels lie in memory and not in their files."
        return isinstance(self.pairs, tuple)

    @cached_property
    def digests(self) -> "_Digests":
        "What identifies the data; of a data set they are computed while it is checked."
        return _digests_of(zip(self.names, _pairs_of(self), strict=True))

    @property
    def hash(self) -> str:
        "Twelve digits of the names and every pixel, in list order."
        return self.digests.whole


def _pairs_of(split: Split) -> Iterator[Pair]:
    "All images with their masks, in order, with few in memory at a time."
    yield from prefetch(split.pairs.__getitem__, range(len(split)), 4)


# %% [markdown]
# The hash of the data shows whether two runs are comparable. Names do not, because folders are renamed and lists are edited. Each image has a digest too: the seed decides which images are held out, and `hash_of_all` is the same for every seed.

# %%
#| export
class _Digests(NamedTuple):
    "What identifies a split: digests of its names and pixels."

    whole: str  # twelve digits of all in list order
    single: frozenset[bytes]  # of each name with its image and mask
    images: frozenset[str]  # twelve digits of the pixels of each image


def _digests_of(named: Iterable[tuple[str, Pair]]) -> _Digests:
    "The digests of images with their masks, by name and in list order."
    whole, single, images = hashlib.sha256(), set[bytes](), set[str]()
    for name, (image, mask) in named:
        one, text = hashlib.sha256(), f"{name}{image.shape}{mask.shape}"
        for part in (text.encode(), image.tobytes(), mask.tobytes()):
            whole.update(part)
            one.update(part)
        single.add(one.digest())
        pixels = f"{image.shape}".encode() + image.tobytes()
        images.add(hashlib.sha256(pixels).hexdigest()[:12])
    return _Digests(whole.hexdigest()[:12], frozenset(single), frozenset(images))


def image_digests(parts: Iterable[Split]) -> frozenset[str]:
    "Twelve digits for the pixels of each image, which identify it under any name."
    return frozenset[str]().union(*(split.digests.images for split in parts))


def hash_of_all(parts: Iterable[Split]) -> str:
    "Twelve digits for the images of all parts, whichever part an image is in."
    single = frozenset[bytes]().union(*(split.digests.single for split in parts))
    return hashlib.sha256(b"".join(sorted(single))).hexdigest()[:12]


# %%
black, diagonal = np.zeros((4, 6), np.uint8), np.eye(4, 6, dtype=np.uint8)
dots = Split("train", ("a", "b"), ((black, diagonal),) * 2, "dots")
back = dots.part("train", [1, 0])
assert dots.hash == dots.part("train", [0, 1]).hash != back.hash
test_eq(hash_of_all([back]), hash_of_all(dots.part("val", [i]) for i in range(2)))
test_eq(len(image_digests([dots, back])), 1)  # two names, one image
dots.hash


# %% [markdown]
# Without a data set, a run uses synthetic scenes. Training and test scenes have different seeds.

# %%
#| export
def scenes(
    name: str,  # "train" or "test": they never share a scene
    count: int,
    size: int,  # side in pixels
) -> Split:
    "A split of synthetic scenes; equal arguments give equal scenes."
    kind = sum(name.encode())
    pairs = tuple(scene(np.random.default_rng([kind, i]), size) for i in range(count))
    return Split(name, tuple(f"{name}_{i:04d}" for i in range(count)), pairs, "scenes")


# %%
made = scenes("train", 4, 128)
test_eq(made.hash, scenes("train", 4, 128).hash)
assert made.hash != scenes("test", 4, 128).hash
images, masks = (np.hstack(parts) for parts in zip(*made.pairs, strict=True))
Image.fromarray(np.vstack([images, 255 * masks]))


# %% [markdown]
# ## Checking a data set
#
# A user who prepares a data set needs all errors at once and not only the first. Reading therefore collects problems, each with the names concerned, and the caller decides. A report prints them all. Training stops at errors and warns of the rest once, with counts.

# %%
#| export
@dataclass
class Findings:
    "The problems of a data set, as names by kind, and the modes of its files."

    errors: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    warnings: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    modes: Counter[str] = field(default_factory=Counter)

    @staticmethod
    def lines(kinds: dict[str, list[str]]) -> list[str]:
        "One line per kind: number and first names."
        lines = []
        for kind, names in kinds.items():
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            first = ", ".join(one_line(name, 200) for name in names[:3])
            lines.append(f"{kind}: {len(names)} ({first}{more})")
        return lines

    def usable(self, on_bad_image: str = "stop") -> bool:
        "Whether there are no errors, or none but images that may be skipped."
        lists = any("list" in kind for kind in self.errors)
        return not self.errors or (on_bad_image == "skip" and not lists)

    def settle(self, on_bad_image: str = "stop") -> None:
        "Raise UserError if the data cannot be used; warn of the rest."
        if not self.usable(on_bad_image):
            first, *rest = self.lines(self.errors)
            more = f"; {counted(len(rest), 'more kind')} of errors" if rest else ""
            images = any("list" not in kind for kind in self.errors)
            skip = ", or repair them, or use --on-bad-image skip" if images else ""
            raise UserError(f"{first}{more}; `mshnet data DIR` lists everything{skip}")
        for line in self.lines(self.errors):
            warnings.warn(f"skipped: {line}", stacklevel=2)
        for line in self.lines(self.warnings):
            warnings.warn(line, stacklevel=2)


# %% [markdown]
# Lists come from all sorts of scripts: with or without suffixes, with slashes of either kind, with the paths of a different computer. A name that leads out of the folder is cut to its last part. Lists of absolute paths therefore work, and no list can make us read a file from elsewhere.

# %%
#| export
def _bare_name(
    line: str,  # such as "Misc_1", "images/Misc_1.png" or "C:\\sirst\\images\\Misc_1.png"
) -> str:  # such as "Misc_1" or "night/001"
    "A line of a list as the name of an image, without suffix and without the images' folder."
    path = PureWindowsPath(line)  # takes both kinds of slashes
    if path.anchor or ".." in path.parts:
        path = PureWindowsPath(path.name)
    if len(path.parts) > 1 and path.parts[0] in {images for images, _ in FOLDERS}:
        path = path.relative_to(path.parts[0])
    text = path.as_posix()
    return text[: -len(path.suffix)] if path.suffix.lower() in SUFFIXES else text


def _names_in(text: str) -> Counter[str]:
    "How often each name stands in a list; empty lines and comments (#) are left out."
    lines = [line.strip() for line in text.splitlines()]
    return Counter(_bare_name(line) for line in lines if line and not line.startswith("#"))


def _read_list(
    file: Path,
    findings: Findings,
) -> tuple[list[str], str]:  # names without suffix, in file order; the command that made the list
    "The names in a list, and `mshnet data --split ...` if it was made by that."
    text = read_text(file, "list of names")
    names = _names_in(text)
    if twice := [name for name, count in names.items() if count > 1]:
        findings.warnings[f"name more than once in {file.name}, kept once"] += twice
    if not names:
        findings.errors["list without names"].append(file.name)
    head = _MADE_BY.format("(mshnet data --split .*)", "([0-9a-f]{12})")
    made = re.fullmatch(head, "".join(text.splitlines()[:1]))
    edited = made and made[2] != _digits(names)
    return list(names), f"{made[1]}{', and edited since' if edited else ''}" if made else ""


_MADE_BY = "# made by {}; names {}"


def _digits(names: Iterable[str]) -> str:
    "Twelve digits that stand for names in their order."
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:12]


# %%
findings = Findings()
with tempfile.TemporaryDirectory() as tmp:
    (Path(tmp) / "train.txt").write_text("a.png\nb\n\na\n/elsewhere/c.bmp\n")
    print(_read_list(Path(tmp) / "train.txt", findings))
test_eq([_bare_name(n) for n in (r"C:\x\d.png", "../d", "night/d.v2")], ["d", "d", "night/d.v2"])
Findings.lines(findings.warnings)

# %% [markdown]
# Pillow raises many kinds of errors for damaged files. Each concerns one file, and reading continues with the next. Too large and unreadable are different problems, because the fix differs.

# %%
#| export
MOST_COVERED = 0.2  # of an image by its targets; more looks like an inverted mask
NATIVE_SIDE, NATIVE_PIXELS = 16, 2048 * 2048  # least side and most pixels of an image, if native
_NOT_NATIVE = (
    f"image with a side below {NATIVE_SIDE} or with more than {NATIVE_PIXELS:,} pixels, which "
    "cannot be scored at its own size (use --base-size 256)"
)


class _Reading(NamedTuple):
    "One image with its mask."

    pair: Pair
    mode: str  # of the image's file
    notes: set[str]  # kinds of warnings


def _read_pair(
    source: Source,
    name: str,
) -> _Reading:
    "Read one image and its mask; UserError with the kind of problem."
    image_path, mask_path = (
        find_file(source.images, name),
        find_file(source.masks, name, MASK_ENDINGS),
    )
    if not image_path or not mask_path:
        found = {"an image": image_path, "a mask": mask_path}
        missing = " and ".join(what for what, path in found.items() if not path)
        raise UserError(f"name without {missing}")
    what, folder = "image", source.images.name
    try:
        image, mode, pages = read_image(image_path)
        what, folder = "mask", source.masks.name
        mask, notes = read_mask(mask_path, image.shape[:2], source.scale)
    except Exception as error:  # Pillow raises many kinds for bytes that make no sense
        raise UserError(f"{trouble(error, what)} in {folder}/") from None
    if mode.startswith(DEEP):
        notes.add("16-bit image, stretched to 8 bits by its own range")
    if pages > 1:
        notes.add("file of several pages, of which the first is read")
    return _Reading((image, mask), mode, notes)


def _check_pair(
    source: Source,
    size: int | str,  # side of the scored images, or "native"
    name: str,
) -> _Reading | str:  # text: the kind of problem
    "Read one image and its mask, and note what cannot be right."
    try:
        reading = _read_pair(source, name)
    except UserError as error:
        return str(error)
    mask = reading.pair[1]
    if size == "native" and (min(mask.shape) < NATIVE_SIDE or mask.size > NATIVE_PIXELS):
        return _NOT_NATIVE
    if mask.mean() > MOST_COVERED:
        reading.notes.add("targets cover more than a fifth of the image (is the mask inverted?)")
    if len(objects(scored_mask(mask, size) > 0)) < len(objects(mask > 0)):
        reading.notes.add(f"targets vanish or merge at {size}x{size}")
    return reading


def scored_mask(
    mask: np.ndarray,  # [H,W] uint8, 0 or 1
    size: int | str,  # or "native"
) -> np.ndarray:  # [S,S]; native: as it is
    "A mask as it is scored: both sides resized to `size`, by the nearest pixel."
    if isinstance(size, str):
        return mask
    return np.asarray(Image.fromarray(mask).resize((size, size), Image.Resampling.NEAREST))


def trouble(
    error: Exception,  # of Pillow's
    what: str,  # "image" or "mask"
    most: int = MOST_PIXELS,
) -> str:
    "The kind of problem of an image file, from the error that reading it raised."
    if isinstance(error, Image.DecompressionBombError):
        return f"{what} of more than {most:,} pixels"
    if isinstance(error, UserError):
        return f"{what}: {error}"
    return f"unreadable {what}"


# %% [markdown]
# A split larger than the memory is read once to check it. Later, a batch reads its pairs again.

# %%
#| export
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
            return _read_pair(self.source, self.names[index]).pair
        except UserError as error:
            todo = "repair the file and run the same command again, or use --on-bad-image skip"
            raise UserError(f"{self.names[index]}: {error}; {todo}") from None


# %% [markdown]
# A split is kept in memory if its pixels fit in `room` bytes. Here the first of three names is good, the second has no mask, and the file of the third is not an image:

# %%
#| export
def _checked(
    source: Source, names: list[str], findings: Findings, size: int | str
) -> Iterator[tuple[str, Pair]]:
    "Each image that can be read, with its mask; the problems are added to `findings`."
    read = prefetch(partial(_check_pair, source, size), names, 4)
    for name, reading in zip(names, read, strict=True):
        if isinstance(reading, str):
            findings.errors[reading].append(name)
            continue
        for kind in reading.notes:
            findings.warnings[kind].append(name)
        findings.modes[reading.mode] += 1
        yield name, reading.pair


def read_split(
    source: Source,
    part: str,  # "train" or "test"
    names: list[str],
    findings: Findings,
    room: float = math.inf,  # bytes of pixels to keep at most; beyond it, none are kept
    size: int | str = 256,  # side of the scored images, or "native"
    made_by: str = "",  # the command of ours that made the list
) -> Split:
    "Read the images of a list, and add the problems to `findings`."
    kept, good = list[Pair](), list[str]()
    used, marked = 0, False  # bytes of pixels; whether any mask has a target

    def passing() -> Iterator[tuple[str, Pair]]:
        nonlocal used, marked
        for name, pair in _checked(source, names, findings, size):
            good.append(name)
            kept.append(pair)
            used += sum(pixels.nbytes for pixels in pair)
            marked |= bool(pair[1].any())
            if used > room:
                kept.clear()
            yield name, pair

    digests = _digests_of(passing())
    if good and not marked:
        kinds = [kind for kind in findings.warnings if "without a target" in kind]
        if any(set(good) & set(findings.warnings[kind]) for kind in kinds):
            findings.errors["list of grey masks without a target (save targets as 255)"] += [part]
        else:
            findings.warnings["no target in any mask of a list, so Pd is undefined"] += [part]
    pairs = tuple(kept) if used <= room else InFiles(source, tuple(good))
    split = Split(part, tuple(good), pairs, source.root.resolve().name, made_by)
    vars(split)["digests"] = digests  # of the one reading
    return split


# %%
with tempfile.TemporaryDirectory() as tmp:
    source = Source(Path(tmp), Path(tmp) / "images", Path(tmp) / "masks", {})
    for folder, names in ((source.images, "ab"), (source.masks, "ac")):
        folder.mkdir()
        for name in names:
            Image.new("L", (4, 4)).save(folder / f"{name}.png")
    (source.images / "c.png").write_text("no image")
    findings = Findings()
    kept = read_split(source, "train", ["a", "b", "c"], findings)
    streamed = read_split(source, "train", ["a"], Findings(), room=0)
assert kept.in_memory and isinstance(streamed.pairs, InFiles)
test_eq((kept.names, streamed.hash), (("a",), kept.hash))
dict(findings.errors)

# %% [markdown]
# ## The splits of a run
#
# `read_dataset` reads both lists of a folder. `splits` turns them into the splits of a run. With `choose="val"` the seed picks a part of the training list and holds it out, so that the best epoch is not chosen on the images that judge it.

# %%
#| export
_DECIDE = 1000  # masks that are looked at before all are read


def _scale_of_folder(masks: Path) -> MaskScale:
    "What is target in the masks of a folder, by all of them or by 1,000, evenly chosen."

    def values(path: Path) -> MaskValues:
        try:
            return mask_values(path)
        except Exception:  # it is reported when its image is read
            return MaskValues(np.zeros((1, 1), np.uint8))

    found = [p for p in sorted(masks.rglob("[!.]*")) if p.suffix.lower() in SUFFIXES]
    some = found[:: -(-len(found) // _DECIDE)] if found else []
    return mask_scale(prefetch(values, some, 4))


def read_dataset(
    config: Config,
    source: Source | None,  # None: synthetic scenes
    parts: Sequence[str] = ("train", "test"),  # to read
) -> tuple[dict[str, Split], Findings]:  # the parts and their problems
    "Read the data set of a run, or make its synthetic scenes."
    findings = Findings()
    if source is None:
        count = {"train": config.scenes, "test": max(config.scenes // 4, 1)}
        side = 256 if config.base_size == "native" else config.base_size
        return {name: scenes(name, count[name], side) for name in parts}, findings
    source = replace(source, scale=_scale_of_folder(source.masks))
    lists = {part: _read_list(file, findings) for part, file in source.lists.items()}
    if len(lists) == 2:
        train, test = (names for names, _ in lists.values())
        shared = set(train) & set(test)
        if both := [name for name in train if name in shared]:
            findings.errors["name in both lists, remove it from one"] += both
    left = {"auto": free_memory() / 2, "stream": 0.0}.get(config.cache, math.inf)
    read: dict[str, Split] = {}
    for part, (names, made_by) in lists.items():
        split = read_split(source, part, names, findings, left, config.base_size, made_by)
        if split.in_memory:  # less is left for the next
            left -= sum(image.nbytes + mask.nbytes for image, mask in split.pairs)
        read[part] = split
    return read, findings


# %% [markdown]
# Training, the gallery, the widgets and the report use the same data. The last data set stays in memory until one of its files or of the settings that read it changes:

# %%
#| export
Loaded = tuple[dict[str, Split], Findings]
LOADED: list[tuple[Any, dict[str, Any], Loaded]] = []  # one at most: state, that of each list


def _state_of(*tops: Path) -> Any:
    "Name, size and time of every file, which change with the data."
    found = []
    for path in (path for top in tops for path in ([top] if top.is_file() else top.rglob("*"))):
        with contextlib.suppress(OSError):  # such as a broken link
            if path.is_symlink() and path.is_dir():
                return object()  # files behind a link are not watched: equal to no other state
            seen = path.stat()
            found.append((str(path), seen.st_size, seen.st_mtime_ns))
    return sorted(found)


def load(
    config: Config,
    names: Sequence[str] = ("train", "test"),
) -> Loaded:
    "As `read_dataset`, but a data set is read only once; the other part may be there, too."
    source = find_source(config, names)
    own = [getattr(config, name) for name in ("scenes", "base_size", "cache")]
    state = own, source and _state_of(source.images, source.masks)
    lists = {name: source and _state_of(source.lists[name]) for name in names}
    for kept, its_lists, found in LOADED:
        alone = found[1].errors and lists != its_lists  # the errors may be of the other part
        if kept == state and lists.items() <= its_lists.items() and not alone:
            return found
    LOADED.clear()  # before the memory is filled again
    if source and on_drive(source.root):
        say(f"data    {source.root} is on Google Drive; a .zip of it would be read much faster")
    read = read_dataset(config, source, names)
    LOADED.append((state, lists, read))
    return read


# %% [markdown]
# At least one image stays on each side of the split. A training list shorter than a batch is an error, because every epoch would end before its first step. The user may allow a run to leave out unreadable images; the protocol's hash and image count show it.

# %%
#| export
def splits(
    config: Config,
    names: Sequence[str] = ("train", "test"),
) -> dict[str, Split]:  # by name; with choose="val" also "val"
    "The splits of a run; UserError if the data cannot be used as configured."
    parts, findings = load(config, names)
    findings.settle(config.on_bad_image)
    if empty := [name for name, split in parts.items() if not len(split)]:
        raise UserError(f"{parts[empty[0]].source}: no {empty[0]} image can be read")
    made = dict(parts)
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
    if len(made["train"]) < config.batch_size:
        raise UserError(
            f"batch_size={config.batch_size}: there are only {len(made['train'])} training images; "
            f"use --batch-size {len(made['train'])} or less"
        )
    return made


# %%
parts = splits(Config(scenes=20, base_size=64, choose="val"))
test_eq({k: len(v) for k, v in parts.items()}, {"train": 16, "test": 5, "val": 4})
again = splits(Config(scenes=20, base_size=64, choose="val", seed=1))
assert again["val"].names != parts["val"].names
small = Config(scenes=4, base_size=32)
test_eq(len(read_dataset(small, None)[0]["test"]), 1)
assert load(small) is load(small, ["test"])


# %% [markdown]
# ## Lists for a data set that has none
#
# Your own images have no lists yet. `mshnet data DIR --split 0.5` writes `train.txt` and `test.txt`: the seed shuffles the images that have a mask, and the first half is for training. The split is by image: list the frames of a video yourself, because neighbours are almost equal and a test on them is not independent.
#
# The first line of each file is a comment with the command and twelve digits of the names. The protocol of every score on such a list repeats the command. If the digits do not fit the names any more, it adds that the list was edited.

# %%
#| export
def write_lists(
    config: Config,  # its dataset_dir and its seed
    fraction: float,  # of the images in the training list, between 0 and 1
) -> str:  # one line
    """Write train.txt and test.txt by image, shuffled by the seed.

    Into the data set; where that is read-only, into this folder, as NAME-train.txt and so on.

    Raises UserError for a fraction outside of this range, a data set that has a list already or
    fewer than two images, and a folder that cannot be written.
    """
    what = f"split={fraction:g}"
    if not 0 < fraction < 1:
        raise UserError(f"{what} is not possible: use a number between 0 and 1, such as 0.5")
    source = find_source(config, ())
    if not source:
        raise UserError(f"{what}: synthetic scenes need no lists; name a folder: mshnet data DIR")
    root = source.root
    if there := _lists_in(root):
        raise UserError(f"{what}: {root} has lists ({', '.join(there)}); leave out --split")
    names = _names_with_masks(source)
    if len(names) < 2:
        raise UserError(
            f"{what}: {root} has {counted(len(names), 'image')} with a mask, two are needed; a "
            "mask has the name of its image"
        )
    train, test = root / "train.txt", root / "test.txt"
    use = ""
    if not os.access(root, os.W_OK):  # such as what Kaggle attaches
        train, test = (Path.cwd() / f"{root.name}-{path.name}" for path in (train, test))
        use = f"; use them by --train-list {quoted(train)} --test-list {quoted(test)}"
        if train.exists() or test.exists():
            raise UserError(f"{what}: {train.parent} has {train.name} or {test.name}{use}")
    shuffled = np.random.default_rng(config.seed).permutation(names).tolist()
    first = min(max(1, round(fraction * len(names))), len(names) - 1)
    parts = {train: sorted(shuffled[:first]), test: sorted(shuffled[first:])}
    _write_both(parts, f"mshnet data --split {fraction} --seed {config.seed}")
    counts = ", ".join(f"{file.name} ({len(chosen)})" for file, chosen in parts.items())
    return f"lists written to {train.parent}: {counts}{use}"


def _write_both(parts: dict[Path, list[str]], command: str) -> None:
    "Write the lists of names, both or none."
    try:
        for file, names in parts.items():
            head = _MADE_BY.format(command, _digits(names))
            write_atomic(file, "\n".join([head, *names, ""]))
    except UserError:
        for file in parts:
            file.unlink(missing_ok=True)
        raise


def _names_with_masks(source: Source) -> list[str]:
    "The names of images with a mask, sorted; UserError for one that a list cannot hold."
    names = set()
    for path in source.images.rglob("[!.]*"):
        name = path.relative_to(source.images).with_suffix("").as_posix()
        if path.suffix.lower() in SUFFIXES and find_file(source.masks, name, MASK_ENDINGS):
            names.add(name)
    for name in names:
        if [*_names_in(name.encode(errors="ignore").decode())] != [name]:  # as it would be read
            raise UserError(
                f"a list cannot hold the name {shown(name)} (a # at its start, spaces around it, "
                "two suffixes, a line break, or not UTF-8); rename this image and its mask"
            )
    return sorted(names)


# %%
with tempfile.TemporaryDirectory() as tmp:
    for folder in ("images", "masks"):
        (Path(tmp) / folder).mkdir()
        for name in "abcd":
            Image.new("L", (16, 16), 255).save(Path(tmp) / folder / f"{name}.png")
    print(write_lists(Config(dataset_dir=tmp), 0.5).split(": ")[1])
    parts, _ = load(Config(dataset_dir=tmp))
    test_eq([len(part) for part in parts.values()], [2, 2])
    test_eq(parts["test"].made_by, "mshnet data --split 0.5 --seed 0")


# %% [markdown]
# ## The report
#
# `mshnet data DIR` prints the contents of a data set and all its problems.

# %%
#| export
def _describe(
    split: Split,
) -> list[str]:
    "Counts, sizes and target areas of a split, in a few lines."
    seen = [(i.shape[:2], i.ndim, objects(m > 0).area, not m.any()) for i, m in _pairs_of(split)]
    areas = np.concatenate([area for _, _, area, _ in seen] or [np.zeros(0)])
    sizes = {size for size, _, _, _ in seen}
    heights, widths = ([s[k] for s in sizes] or [0] for k in (0, 1))
    grey, empty = sum(ndim == 2 for _, ndim, _, _ in seen), sum(none for *_, none in seen)
    small, middle, large = np.percentile(areas if len(areas) else [0], (0, 50, 100)).astype(int)
    return [
        f"{split.name}: {counted(len(split), 'image')}, {counted(len(areas), 'target')}, "
        f"{empty} without a target, hash {split.hash}",
        f"  {counted(len(sizes), 'size')}, {min(widths)}..{max(widths)} wide, "
        f"{min(heights)}..{max(heights)} high; {grey} grey, {len(split) - grey} colour",
        f"  target areas {small}..{large} px, median {middle} px",
        *([f"  list made by {split.made_by}"] if split.made_by else []),
    ]


def report(
    config: Config,
) -> tuple[str, bool]:  # text of several lines; whether the data can be trained on
    "Counts, sizes, modes and target areas of a data set, and every problem in it."
    parts, findings = load(config)
    lines = [] if config.dataset_dir else ["synthetic scenes: no data set is named (dataset_dir)"]
    lines += [line for split in parts.values() for line in _describe(split)]
    if findings.modes:
        modes = ", ".join(f"{count} {mode}" for mode, count in findings.modes.most_common())
        lines.append(f"file modes: {modes}")
    usable = findings.usable(config.on_bad_image)
    bad = "skipped" if usable else "error"
    lines += [f"{bad}: {line}" for line in Findings.lines(findings.errors)]
    lines += [f"warning: {line}" for line in Findings.lines(findings.warnings)]
    return "\n".join(lines), usable


# %%
text, usable = report(Config(scenes=8, base_size=128))
assert usable and text.startswith("synthetic")
print(text)
