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
import contextlib
import hashlib
import math
import os
import warnings
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path, PureWindowsPath
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageFilter
from torch import Tensor

from mshnet.core import Config, UserError, counted, free_memory, one_line, read_text
from mshnet.metrics import objects
from mshnet.places import find_dataset


# %% [markdown]
# Files are read by a few threads, and so are batches made later: an accelerator should not wait for its next one. Results come in order, so the number of threads changes nothing but the time, and only a few are made ahead, so memory is bounded. Threads and not processes: Pillow and numpy let go of Python's lock, nothing needs to be pickled, and a notebook cell can be stopped.

# %%
#| export
def ahead(
    make: Callable[[Any], Any],  # makes one result from one plan, such as a batch
    plans: Iterable[Any],
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
# ## A split
#
# A benchmark of this field is a few hundred small images: it fits in memory as 8-bit pixels, read once. Grey images are stored once and not three times. A data set that is larger than the memory stays in its files, and each pair is read when a batch needs it. Both look like one sequence of pairs. Copies may lie elsewhere too, such as on a GPU: `stores` holds them.

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
    listed: tuple[str, ...] = ()  # names as listed, with those that cannot be read; empty: names
    stores: dict[str, Any] = field(init=False, compare=False, repr=False, default_factory=dict)

    def __len__(self) -> int:
        "Number of images."
        return len(self.names)

    def part(self, name: str, indices: Sequence[int]) -> "Split":
        "A new split of the images at these indices."
        names = tuple(self.names[i] for i in indices)
        pairs: Any = self.pairs
        pairs = tuple(pairs[i] for i in indices) if self.in_memory else replace(pairs, names=names)
        part = Split(name, names, pairs, self.source)
        return part.known_by(self) if names == self.names else part

    def known_by(self, same: "Split") -> "Split":
        "This split with the hashes of an equal one, if those are known already."
        self.__dict__.update({k: v for k, v in same.__dict__.items() if k == "hashes"})
        return self

    @property
    def in_memory(self) -> bool:
        "Whether the pixels lie in memory, or in their files."
        return isinstance(self.pairs, tuple)

    @cached_property
    def hashes(self) -> tuple[str, frozenset[bytes], frozenset[str]]:
        "What stands for the split in list order, for each image with its mask, for each image."
        return hashes_of(self)

    @property
    def hash(self) -> str:
        "Twelve digits that stand for the names and every pixel, in list order."
        return self.hashes[0]


def pairs_of(split: Split) -> Iterator[Pair]:
    "All images with their masks, one after the other, without holding them all."
    yield from ahead(split.pairs.__getitem__, range(len(split)), 4)


# %% [markdown]
# Two runs are compared by the hash of their data, because folders are renamed and lists are edited. Which seed holds which images out does not matter to what a recipe was trained on, so there is a digest for each image too.

# %%
#| export
class Hasher:
    "Takes in images with their masks, in list order."

    def __init__(self) -> None:
        self.whole, self.single, self.images = hashlib.sha256(), set[bytes](), set[str]()

    def add(self, name: str, image: np.ndarray, mask: np.ndarray) -> None:
        "Take in one."
        one = hashlib.sha256()
        for part in (f"{name}{image.shape}{mask.shape}".encode(), image.tobytes(), mask.tobytes()):
            self.whole.update(part)
            one.update(part)
        self.single.add(one.digest())
        pixels = f"{image.shape}".encode() + image.tobytes()
        self.images.add(hashlib.sha256(pixels).hexdigest()[:12])

    def hashes(self) -> tuple[str, frozenset[bytes], frozenset[str]]:
        """Twelve digits for the names and pixels of all in list order; a digest for each name with
        its image and mask; twelve digits for the pixels of each image.
        """
        return self.whole.hexdigest()[:12], frozenset(self.single), frozenset(self.images)


def hashes_of(split: Split) -> tuple[str, frozenset[bytes], frozenset[str]]:
    "What stands for a split, its pairs and its images; see `Hasher`."
    hasher = Hasher()
    for name, pair in zip(split.names, pairs_of(split), strict=True):
        hasher.add(name, *pair)
    return hasher.hashes()


def image_digests(parts: Iterable[Split]) -> frozenset[str]:
    "Twelve digits for the pixels of each image, whatever its name: to know it again elsewhere."
    return frozenset[str]().union(*(split.hashes[2] for split in parts))


def hash_of_all(parts: Iterable[Split]) -> str:
    "Twelve digits for the images of all parts, whichever part an image is in."
    single = frozenset[bytes]().union(*(split.hashes[1] for split in parts))
    return hashlib.sha256(b"".join(sorted(single))).hexdigest()[:12]


# %%
black, diagonal = np.zeros((4, 6), np.uint8), np.eye(4, 6, dtype=np.uint8)
dots = Split("train", ("a", "b"), ((black, diagonal),) * 2, "dots")
test_eq((len(dots), dots.part("val", [1]).names), (2, ("b",)))
back = dots.part("train", [1, 0])
assert hashes_of(dots)[0] == dots.hash == dots.part("train", [0, 1]).hash != back.hash
test_eq(hash_of_all([back]), hash_of_all(dots.part("val", [i]) for i in range(2)))
assert hash_of_all([back]) != hash_of_all([dots.part("val", [1])])
hasher = Hasher()
for name, pair in zip(dots.names, pairs_of(dots), strict=True):
    hasher.add(name, *pair)
test_eq(hasher.hashes(), dots.hashes)
test_eq(len(image_digests([dots, back])), 1)  # two names, one picture
dots.hash

# %% [markdown]
# ## Reading
#
# Published infrared sets hold grey, RGB, RGBA and palette files, sometimes mixed in one folder. All become what Pillow's conversion to RGB makes of them, as the official code does; where the three channels agree, one is kept. A camera's 16-bit frame has no such conversion that keeps its contrast (Pillow clips at 255), so it is stretched from its own minimum and maximum, and the user is told.
#
#
# A file is opened as one of the kinds that its suffix can stand for, whatever is in it: Pillow knows forty more, and for one of them it starts another program. And a file of a few kilobytes can claim, and hold, a picture of gigabytes. Pillow's own limit lets through what takes 3 GB while it is read, and four are read at once, so ours is lower: 8192 by 8192 pixels.

# %%
#| export
KINDS = ("PNG", "BMP", "JPEG", "TIFF")  # as Pillow calls them
MOST_PIXELS = 8192 * 8192


@contextlib.contextmanager
def opened(
    path: Path,
    most: int = MOST_PIXELS,
) -> Iterator[Image.Image]:
    "An image file, its pixels not read yet. Raises one of Pillow's many errors if it is none."
    with Image.open(path, formats=KINDS) as file:
        refuse_size(file, most)
        yield file


def refuse_size(
    file: Image.Image,
    most: int = MOST_PIXELS,
) -> None:
    "Raise an error for an image, or a page of one, that is too large to be read, or empty."
    if file.width * file.height > most:
        raise Image.DecompressionBombError(f"more than {most:,} pixels")
    if not file.width * file.height:
        raise OSError("an image without pixels")


# %% [markdown]
# An image that is too large is told from one that is broken, because the remedy is another one:

# %%
#| export
def trouble(
    error: Exception,  # of Pillow's
    what: str,  # "image" or "mask"
    most: int = MOST_PIXELS,
) -> str:
    "What is wrong with an image file, by what reading it raised."
    if isinstance(error, Image.DecompressionBombError):
        return f"{what} of more than {most:,} pixels"
    if isinstance(error, UserError):
        return f"{what}: {error}"
    return f"unreadable {what}"


# %% [markdown]
# Reading:

# %%
#| export
DEEP = ("I", "F")  # beginnings of Pillow's modes with more than 8 bits


def one_channel(
    rgb: np.ndarray,  # [H,W,3]
) -> np.ndarray:  # [H,W] where the three agree, else as it was
    "Grey pixels are kept once, and not three times."
    red = rgb[..., 0]
    grey = all(np.array_equal(red, rgb[..., k]) for k in (1, 2))
    return np.ascontiguousarray(red if grey else rgb)


def pixels_of(
    file: Image.Image,  # opened, at one of its pages
) -> np.ndarray:  # [H,W] or [H,W,3] uint8
    "The pixels of an image file as 8-bit grey or colour."
    if not file.mode.startswith(DEEP):
        parts = [part[3] for part in getattr(file, "tile", ())]
        forms = [str(part[0] if isinstance(part, tuple) else part) for part in parts]
        if any(form.startswith(("RGB", "LA")) and ";16" in form for form in forms):
            raise UserError("16 bits in several channels: save one of them, or 8 bits")
        return np.array(file) if file.mode == "L" else one_channel(np.asarray(file.convert("RGB")))
    values = np.array(file, np.float64)
    low, high = values.min(), values.max()
    if not np.isfinite(high - low):
        raise OSError("pixels that are not numbers")
    values -= low  # in place: these are eight bytes a pixel
    values *= 255
    values /= max(high - low, 1)
    return values.round(out=values).astype(np.uint8)


def read_image(
    path: Path,
) -> tuple[np.ndarray, str]:  # [H,W] or [H,W,3] uint8; the file's mode, such as "L" or "RGBA"
    "Read an image as 8-bit grey or colour. Raises one of Pillow's many errors if it is none."
    with opened(path) as file:
        return pixels_of(file), file.mode


# %% [markdown]
# A mask is labels, not grey levels:

# %%
#| export
def read_mask(
    path: Path,
    size: tuple[int, int],  # height and width of its image
) -> tuple[np.ndarray, set[str]]:  # [H,W] uint8, 0 or 1; what had to be done to it
    "Read a mask as 0 and 1, resized as labels to its image's size and cut at half if it is grey."
    done = set()
    with opened(path) as file:
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
with tempfile.TemporaryDirectory() as tmp:
    path = Path(tmp) / "frame.png"
    Image.new("1", (10_000, 8000)).save(path)
    with expect_fail(Image.DecompressionBombError, contains="more than"), opened(path):
        pass
    with opened(path, 10_000 * 8000) as file:
        refuse_size(file, 10_000 * 8000)
colour = np.dstack([pixels, pixels, pixels])
test_eq(one_channel(colour), pixels)
test_eq(pixels_of(Image.fromarray(colour)), pixels)
test_eq(trouble(OSError("broken"), "mask"), "unreadable mask")
trouble(Image.DecompressionBombError(), "image"), done


# %% [markdown]
# ## Finding
#
# Whoever names a folder means what a listing shows.

# %%
#| export
def visible(folder: Path) -> list[Path]:
    "What is in a folder, sorted; not what is hidden, such as the files a Mac leaves on a disk."
    return sorted(path for path in folder.iterdir() if path.name[0] != ".")


# %%
with tempfile.TemporaryDirectory() as tmp:
    for name in ("b.png", "a.png", "._a.png"):
        (Path(tmp) / name).touch()
    test_eq([path.name for path in visible(Path(tmp))], ["a.png", "b.png"])

# %% [markdown]
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
        if os.path.isfile(root / asked):  # unlike Path.is_file, False for a name that cannot be
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
            first = ", ".join(one_line(name, 200) for name in names[:3])
            lines.append(f"{kind}: {len(names)} ({first}{more})")
        return lines

    def settle(self, on_bad_image: str = "stop") -> None:
        "Raise UserError if there are errors, unless they may be left out; warn of the rest."
        left_out = {k: v for k, v in self.errors.items() if "list" not in k}
        if on_bad_image == "skip" and len(left_out) == len(self.errors):
            for line in self.lines(left_out):
                warnings.warn(f"skipped: {line}", stacklevel=2)
        elif self.errors:
            first, *rest = self.lines(self.errors)
            more = f"; {len(rest)} more kinds of errors" if rest else ""
            skip = ", or mend them, or write --on-bad-image skip" if left_out else ""
            raise UserError(f"{first}{more}; `mshnet data DIR` lists everything{skip}")
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
    text = read_text(file, "list of names")
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
            if os.path.isfile(path):
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
    except Exception as error:  # Pillow raises many kinds for bytes that make no sense
        errors.add(f"{trouble(error, 'image')} in {layout.images.name}/")
    try:
        mask, notes = read_mask(mask_path, size)
    except Exception as error:
        errors.add(f"{trouble(error, 'mask')} in {layout.masks.name}/")
    if errors:
        return Reading(None, errors=frozenset(errors))
    if mode.startswith(DEEP):
        notes.add("16-bit image, stretched to 8 bits from its own minimum and maximum")
    return Reading((image, mask), mode, notes=frozenset(notes))


# %% [markdown]
# A split larger than the memory is read once to find what is wrong with it. Later, a batch reads the pairs that it needs again.

# %%
#| export
class BadImage(UserError):
    "An image that could be read before and cannot be read now."


@dataclass(frozen=True)
class InFiles(Sequence[Pair]):
    "Images with their masks that are read from their files each time."

    layout: Layout
    names: tuple[str, ...]

    def __len__(self) -> int:
        "Number of images."
        return len(self.names)

    def __getitem__(self, index: Any) -> Any:
        "Read one pair; BadImage if a file has changed and cannot be read any more."
        reading = read_pair(self.layout, self.names[index])
        if not reading.pair:
            raise BadImage(
                f"{self.names[index]}: {', '.join(reading.errors)}; mend it and run the same "
                "again, or train with --on-bad-image skip"
            )
        return reading.pair


# %% [markdown]
# `room` decides: pixels are kept as long as they fit in it.

# %%
#| export
def read_split(
    layout: Layout,
    part: str,  # "train" or "test"
    names: list[str],
    findings: Findings,
    room: float = math.inf,  # bytes that the pixels may take; where they do not fit, none is kept
) -> Split:
    "Read the images of a list; what is wrong goes into `findings`."
    kept: list[Pair] = []
    good, used, hasher = [], 0, Hasher()
    for name, reading in zip(names, ahead(partial(read_pair, layout), names, 4), strict=True):
        for kind in reading.errors:
            findings.errors[kind].append(name)
        for kind in reading.notes:
            findings.warnings[kind].append(name)
        if reading.pair:
            findings.modes[reading.mode] += 1
            good.append(name)
            hasher.add(name, *reading.pair)
            used += sum(pixels.nbytes for pixels in reading.pair)
            kept.append(reading.pair)
            if used > room:
                kept.clear()
    pairs = tuple(kept) if used <= room else InFiles(layout, tuple(good))
    split = Split(part, tuple(good), pairs, layout.root.resolve().name, tuple(names))
    vars(split)["hashes"] = hasher.hashes()
    return split


# %% [markdown]
# Of three names one is in order; the second has no mask and the file of the third is not an image. Without room the pixels stay where they are:

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
    kept = read_split(layout, "train", ["a", "b", "c"], findings)
    streamed = read_split(layout, "train", ["a"], findings, room=0)
    assert kept.in_memory and isinstance(streamed.pairs, InFiles)
    test_eq((kept.names, kept.listed), (("a",), ("a", "b", "c")))
    test_eq(streamed.hash, kept.hash)
    assert "hashes" in vars(streamed)  # of the one reading
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
    room = {"auto": free_memory() / 2, "stream": 0.0}.get(config.cache, math.inf)
    read: dict[str, Split] = {}
    for part in names:  # what one list has taken is not there for the next
        used = sum(pixel_count(split) for split in read.values() if split.in_memory)
        read[part] = read_split(layout, part, names[part], findings, room - used)
    return read, findings


def pixel_count(split: Split) -> int:
    "Bytes of a split's images and masks."
    return sum(image.nbytes + mask.nbytes for image, mask in pairs_of(split))


# %% [markdown]
# Training, the gallery, the widgets and the report look at the same data. So the last data set that was read is kept in memory, until one of its files or of the settings that read it changes:

# %%
#| export
Loaded = tuple[dict[str, Split], Findings]
LOADED: dict[Any, Loaded] = {}  # of one data set at most


def state_of(
    root: Path | None,  # of the data set; None: synthetic scenes
    config: Config,
    names: Sequence[str],  # of the parts
) -> tuple[Any, ...]:
    "Name, size and time of every file of a data set: what changes when the data do."
    if root is None:
        return ()
    layout = find_layout(root, config, names)
    files, found = [], list[Any]()
    for top in (layout.images, layout.masks):
        for folder, below, inside in os.walk(top):
            files += [os.path.join(folder, name) for name in inside]
            if any(os.path.islink(os.path.join(folder, name)) for name in below):
                return (object(),)  # what lies behind a link is not watched: nothing is equal
    for path in (*files, *map(str, layout.lists.values())):
        with contextlib.suppress(OSError):  # such as a link that leads nowhere
            seen = os.stat(path)
            found.append((path, seen.st_size, seen.st_mtime_ns))
    return tuple(sorted(found))


def load(
    config: Config,
    names: Sequence[str] = ("train", "test"),
) -> Loaded:
    "As `read_dataset`, but a data set is read once."
    root = find_dataset(config.dataset_dir)
    key: Any = None
    own = ("scenes", "base_size", "train_list", "test_list", "cache")
    settings = root, tuple(getattr(config, name) for name in own)
    for wanted in dict.fromkeys((("train", "test"), tuple(names))):  # both may be there already
        with contextlib.suppress(UserError):  # without a list, which `read_dataset` reports
            key = settings, wanted, state_of(root, config, wanted)
            found = LOADED.get(key)
            if found and (wanted == tuple(names) or not found[1].errors):
                return found
    LOADED.clear()  # before the memory is filled again
    read = LOADED[key] = read_dataset(config, names)
    return read


# %% [markdown]
# What an image that cannot be read does to a split, if it may be skipped: in training the next one of its part stands in for it, so that all others keep their place in the list, the cut and the draws, and a run whose image was damaged goes on as the run that it is. What is scored is not replaced: one image less is scored, and the protocol's hash and number of images say so.

# %%
#| export
def listed_names(split: Split) -> tuple[str, ...]:
    "The names of a split's list, those of images that cannot be read too."
    return split.listed or split.names


def complete(split: Split) -> bool:
    "Whether every image that is listed is here, in its place."
    return listed_names(split) == split.names


def places_of(
    split: Split,  # as read: with gaps where an image cannot be read
    name: str,
    places: Sequence[int],  # in the list
    stand_in: bool = False,  # False: what cannot be read is left out
) -> Split:
    "The images at these places of the list, as a split of its own."
    there, listed = set(split.names), listed_names(split)
    index = {p: i for i, p in enumerate(p for p, n in enumerate(listed) if n in there)}
    if not index.keys() & set(places):
        raise UserError(f"{split.source}: no {name} image can be read")
    rows = []
    for k, place in enumerate(places):
        if place in index:
            rows.append(index[place])
        elif stand_in:
            rows.append(next(index[p] for p in (*places[k:], *places[:k]) if p in index))
    own = split.part(name, rows)
    part = replace(own, listed=tuple(listed[p] for p in places)).known_by(own)
    if missing := set(part.listed) - set(part.names):
        part.stores["replaced"] = missing
    return part


# %%
gap = replace(dots, listed=("a", "x", "b"))
test_eq(places_of(gap, "train", [0, 1, 2], stand_in=True).names, ("a", "b", "b"))
test_eq(places_of(gap, "val", [0, 1, 2]).names, ("a", "b"))
test_eq(places_of(gap, "train", [1, 0], stand_in=True).stores["replaced"], {"x"})
test_eq(listed_names(gap), ("a", "x", "b"))
assert complete(dots) and not complete(places_of(gap, "val", [1, 2]))
with expect_fail(UserError, contains="no val image"):
    places_of(gap, "val", [1])


# %% [markdown]
# At least one image stays on each side of the cut, and a training list shorter than a batch is refused at once: it would end every epoch before its first step.

# %%
#| export
def splits(
    config: Config,
    names: Sequence[str] = ("train", "test"),
) -> dict[str, Split]:  # those that are asked for, and "val" with choose="val"
    "The splits of a run; UserError if the data cannot be used as configured."
    parts, findings = load(config, names)
    findings.settle(config.on_bad_image)
    if "train" not in names:  # each call gets stores of its own
        return {name: replace(split).known_by(split) for name, split in parts.items()}
    count = len(listed_names(parts["train"]))
    if config.choose == "val" and count < 2:
        raise UserError("choose='val': one training image cannot be parted; write last instead")
    made = parted(parts, config)
    if len(made["train"]) < config.batch_size:
        raise UserError(
            f"batch_size={config.batch_size}: there are only {len(made['train'])} training images; "
            f"write --batch-size {len(made['train'])} or less"
        )
    return made


def parted(
    parts: dict[str, Split],  # as read
    config: Config,
) -> dict[str, Split]:
    "The splits of a run, with stand-ins for training images that cannot be read."
    places: Sequence[int] = range(len(listed_names(parts["train"])))
    made = {
        k: places_of(v, k, range(len(listed_names(v)))) for k, v in parts.items() if k == "test"
    }
    if config.choose == "val":
        order = np.random.default_rng(config.seed).permutation(len(places)).tolist()
        held = min(max(1, round(config.val_fraction * len(places))), len(places) - 1)
        made["val"] = places_of(parts["train"], "val", sorted(order[:held]))
        places = sorted(order[held:])
    return made | {"train": places_of(parts["train"], "train", places, stand_in=True)}


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
    pairs = tuple(scene(np.random.default_rng([kind, i]), size) for i in range(count))
    return Split(name, tuple(f"{name}_{i:04d}" for i in range(count)), pairs, "scenes")


# %%
made = scenes("train", 4, 128)
test_eq(made.hash, scenes("train", 4, 128).hash)
assert made.hash != scenes("test", 4, 128).hash and all(mask.any() for _, mask in made.pairs)
assert scene(np.random.default_rng(0), 64)[0].std() > 3
Image.fromarray(np.hstack([image for image, _ in made.pairs]))

# %% [markdown]
# Their targets, in the same places:

# %%
Image.fromarray(255 * np.hstack([mask for _, mask in made.pairs]))

# %% [markdown]
# Without a data set, a run takes its splits from here, and the held-out part follows the seed:

# %%
parts = splits(Config(scenes=20, base_size=64, crop_size=64, choose="val"))
test_eq({k: len(v) for k, v in parts.items()}, {"train": 16, "test": 5, "val": 4})
assert (
    splits(Config(scenes=20, base_size=64, seed=1, choose="val"))["val"].names != parts["val"].names
)
with expect_fail(UserError, contains="write --batch-size 20 or less"):
    splits(Config(scenes=20, base_size=64, batch_size=32))
small = Config(scenes=4, base_size=32)
assert load(small) is load(small, ["test"])
test_eq((state_of(None, small, ["test"]), len(LOADED)), ((), 1))
LOADED.clear()
test_eq(read_dataset(Config(scenes=8, base_size=32))[1].errors, {})
test_eq(sorted(parted(parts, small)), ["test", "train"])
test_eq(list(splits(small, ["train"])), ["train"])


# %% [markdown]
# ## Augmentation
#
# A network that sees each image once in every epoch must not see the same pixels each time. Sampling and applying are apart: the parameters of an image depend on the seed, the epoch and its index and on nothing else, so neither the number of workers nor the batch size nor a resumed run changes them.
#
# The first five are those of the official training transform. The others are sampled after them, so that `augment = "paper"` gets exactly the official ones.

# %%
#| export
class Draw(NamedTuple):
    "What is sampled for one training image."

    mirror: bool  # left to right
    long_side: int  # of the resized image, in pixels; 0: native pixels
    top: float  # place of the crop within what is left, 0..1
    left: float
    blur: float  # radius of the Gaussian blur in pixels; 0: none
    flip: bool = False  # upside down
    turn: bool = False  # rows become columns
    target: float = -1.0  # which target pixel the crop must hold, 0..1 of them; negative: any crop
    scale: tuple[float, float] = (1.0, 1.0)  # further, of rows and columns
    sensor: int = 0  # seed of noise and sensor faults; 0: none


def draw(
    config: Config,
    epoch: int,
    index: int,  # of the image in its split
) -> Draw:
    "The parameters of one image in one epoch."
    rng = np.random.default_rng([config.seed, epoch, index])
    mirror = bool(rng.random() < 0.5)
    long_side = int(rng.integers(config.base_size // 2, config.base_size * 2 + 1))
    top, left, blur = float(rng.random()), float(rng.random()), float(rng.random())
    drawn = Draw(mirror, long_side, top, left, blur * bool(rng.random() < 0.5))
    flip, turn = bool(rng.random() < 0.5), bool(rng.random() < 0.5)
    held, which = rng.random() < config.target_share, float(rng.random())
    size, shape = rng.uniform(-1, 1, 2)
    sensor = int(rng.integers(1, 2**31))
    native, robust = config.crop == "native", config.augment == "robust"
    if config.augment != "paper":
        drawn = drawn._replace(flip=flip, turn=turn)
    if held:
        drawn = drawn._replace(target=which)
    if native or robust:
        low, high, stretch = WIDE_JITTER if robust else JITTER
        size = (low * high) ** 0.5 * (high / low) ** (size / 2) if native else 1.0
        aspect = stretch ** (shape / 2)
        drawn = drawn._replace(scale=(size * aspect, size / aspect))
    if native:
        drawn = drawn._replace(long_side=0)
    if robust:
        drawn = drawn._replace(sensor=sensor)
    return drawn


JITTER = 0.7, 1.5, 1.2  # of native pixels: least, most, height to width
WIDE_JITTER = 0.5, 1.6, 1.3  # robust augmentation


def order(
    seed: int,
    epoch: int,
    count: int,
) -> list[int]:
    "The shuffled order of an epoch's images: another one each epoch."
    return np.random.default_rng([seed, epoch]).permutation(count).tolist()


# %%
config = Config()
test_eq(draw(config, 3, 7), draw(config, 3, 7))
test_eq(draw(Config(augment="paper"), 3, 7)[:5], draw(config, 3, 7)[:5])
test_eq(sorted(order(0, 1, 9)), list(range(9)))
assert order(0, 1, 9) != order(0, 2, 9)
draw(config, 3, 7)


# %% [markdown]
# What the numbers mean depends on the image's size. The long side gets the sampled length, the short side follows, rounded; the crop lies somewhere in what is left over. A picture that is 300 high and 400 wide, resized to 512, becomes 384x512, and a crop of 256 in the middle begins at row 64 and column 128. A crop that must hold a target is moved just as far as that needs, and a sixteenth of its side further, so that the target is not cut off:

# %%
#| export
class Placement(NamedTuple):
    "Where an image goes: its height and width after the resize, and the crop's first pixel."

    height: int
    width: int
    top: int
    left: int


def placement(
    mask: np.ndarray,  # [H,W] uint8, 0 or 1
    drawn: Draw,
    crop_size: int,
) -> Placement:
    "The resize and the crop that the parameters mean for this image."
    whole = drawn.long_side / max(mask.shape) if drawn.long_side else 1.0
    scales = [whole * scale for scale in drawn.scale]
    sides = [max(int(n * scale + 0.5), 1) for n, scale in zip(mask.shape, scales, strict=True)]
    spare = [max(side - crop_size, 0) for side in sides]
    starts = [int(at * (n + 1)) for at, n in zip((drawn.top, drawn.left), spare, strict=True)]
    if drawn.target >= 0 and mask.any():
        rows, cols = np.nonzero(mask)
        k = int(drawn.target * len(rows))
        place = [int(rows[k]), int(cols[k])]
        for i, mirrored in enumerate((drawn.flip, drawn.mirror)):
            old = mask.shape[i] - 1 - place[i] if mirrored else place[i]
            new, edge = int((old + 0.5) * sides[i] / mask.shape[i]), crop_size // 16
            starts[i] = min(max(starts[i], new - crop_size + 1 + edge), new - edge)
            starts[i] = min(max(starts[i], 0), spare[i])
    return Placement(sides[0], sides[1], starts[0], starts[1])


# %%
middle = Draw(mirror=False, long_side=512, top=0.5, left=0.5, blur=0)
none = np.zeros((300, 400), np.uint8)
test_eq(placement(none, middle, 256), Placement(height=384, width=512, top=64, left=128))
one = none.copy()
one[290, 10] = 1
test_eq(placement(one, middle._replace(target=0.5), 256), Placement(384, 512, 128, 0))
test_eq(placement(none, middle._replace(long_side=0), 256)[:2], (300, 400))


# %% [markdown]
# Applying them: mirror; resize so that the long side has the sampled length (image bilinear, mask nearest); pad with zeros at the right and the bottom; crop; turn; blur. Pillow does the work, on grey images once instead of three times, and with `augment = "paper"` the result equals the official transform's to the last pixel.

# %%
#| export
def augment(
    image: np.ndarray,  # [H,W] or [H,W,3] uint8
    mask: np.ndarray,  # [H,W] uint8, 0 or 1
    drawn: Draw,
    crop_size: int,
) -> Pair:  # image [S,S] or [S,S,3], mask [S,S]
    "The training transform for given parameters."
    picture, truth = Image.fromarray(image), Image.fromarray(mask)
    height, width, y, x = placement(mask, drawn, crop_size)
    for wanted, way in (
        (drawn.mirror, Image.Transpose.FLIP_LEFT_RIGHT),
        (drawn.flip, Image.Transpose.FLIP_TOP_BOTTOM),
    ):
        if wanted:
            picture, truth = picture.transpose(way), truth.transpose(way)
    size = (width, height)
    box = (x, y, x + crop_size, y + crop_size)  # Pillow fills what lies outside with zeros
    picture = picture.resize(size, Image.Resampling.BILINEAR).crop(box)
    truth = truth.resize(size, Image.Resampling.NEAREST).crop(box)
    if drawn.turn:
        picture, truth = (p.transpose(Image.Transpose.TRANSPOSE) for p in (picture, truth))
    if drawn.blur:
        picture = picture.filter(ImageFilter.GaussianBlur(drawn.blur))
    if drawn.sensor:
        return other_sensor(np.asarray(picture), drawn.sensor), np.asarray(truth)
    return np.asarray(picture), np.asarray(truth)


# %% [markdown]
# Another camera shows the same scene with another contrast, brightness and response curve, with its own noise, with rows or columns that are a little too bright, and with a few pixels that always are. `augment = "robust"` samples such a camera for every image.

# %%
#| export
def other_sensor(
    image: np.ndarray,  # [S,S] or [S,S,3] uint8
    seed: int,
) -> np.ndarray:  # the same shape, uint8
    "The image as another infrared camera might show it."
    rng = np.random.default_rng(seed)
    x = image.astype(np.float32) / 255
    shape = (*x.shape[:2], *(1,) * (x.ndim - 2))  # the same in all colours
    if rng.random() < 0.8:
        middle = x.mean()
        x = (x - middle) * math.exp(rng.uniform(-0.7, 0.7)) + middle + rng.uniform(-0.15, 0.15)
        x = x.clip(0, 1) ** np.float32(math.exp(rng.uniform(-0.4, 0.4)))
    if rng.random() < 0.5:
        x = x + rng.uniform(0, 0.03) * rng.standard_normal(shape, np.float32)
    if rng.random() < 0.2:
        lines = (shape[0], 1) if rng.random() < 0.5 else (1, shape[1])
        stripes = rng.standard_normal((*lines, *shape[2:]), np.float32)
        x = x + rng.uniform(0, 0.03) * stripes
    if rng.random() < 0.2:
        hot = rng.random(shape, np.float32) < rng.uniform(0, 0.0005)
        x = np.where(hot, np.float32(rng.uniform(0.5, 1)), x)
    return (x.clip(0, 1) * 255 + 0.5).astype(np.uint8)


# %% [markdown]
# For scoring nothing is sampled. The official protocol resizes both sides to one size, whatever the proportions:

# %%
#| export
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
# One scene in four epochs, by the paper's augmentation, with all eight flips and turns, and as other sensors show it:

# %%
rows = []
for kind in ("paper", "flips", "robust"):
    config = Config(augment=kind, base_size=128, target_share=1.0)
    draws = [draw(config, epoch, 1) for epoch in range(4)]
    views = [augment(*made.pairs[1], drawn, 128) for drawn in draws]
    rows.append(np.hstack([image for image, _ in views]))
    assert all(mask.any() for _, mask in views)
image = made.pairs[1][0]
test_eq(other_sensor(image, 3), other_sensor(image, 3))
Image.fromarray(np.vstack(rows))

# %%
test_eq([s.shape for s in squash(*made.pairs[0], 64)], [(64, 64), (64, 64)])
still = Draw(mirror=False, long_side=128, top=0, left=0, blur=0)
test_eq(augment(*made.pairs[0], still, 128)[0], made.pairs[0][0])


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
            *readable(split, i, config.on_bad_image),
            draw(config, epoch, i),
            config.crop_size,
        )
        for i in indices
    ]
    return collate(pairs, [True] * len(pairs))


# %% [markdown]
# A file that was good when the run began may be damaged in the middle of an epoch. The user said beforehand what to do then (`on_bad_image`): stop and name it, or train on the next image in its place, with the draws of that place, so that the shapes stay and the run can be repeated. A score over other images would be another score, so scoring always stops.

# %%
#| export
def readable(split: Split, index: int, on_bad_image: str) -> Pair:
    "An image with its mask; if it cannot be read and may be skipped, the next one's."
    for i in (j % len(split) for j in range(index, index + len(split))):
        try:
            return split.pairs[i]
        except BadImage as error:
            if on_bad_image == "stop":
                raise
            seen = split.stores.setdefault("replaced", set())
            if split.names[i] not in seen:
                seen.add(split.names[i])
                text = str(error).split(";")[0]
                warnings.warn(f"{text}: the next one is trained on in its place", stacklevel=2)
    raise BadImage(f"{split.source}: none of its {len(split)} images can be read any more")


# %% [markdown]
# For scoring nothing is drawn:

# %%
#| export
def scoring_batch(split: Split, indices: Sequence[int], config: Config) -> Batch:
    "Read and squash the images of one scoring batch; -1 is filled with the first image."
    pairs = [squash_once(split, max(i, 0), config.base_size) for i in indices]
    return collate(pairs, [i >= 0 for i in indices])


def squash_once(split: Split, index: int, size: int) -> Pair:
    "One image, squashed: the same in every epoch, so it is kept where that takes little memory."
    done = split.stores.setdefault(f"squashed to {size}", {})
    if index not in done:
        pair = squash(*split.pairs[index], size)
        if not split.in_memory or 4 * len(split) * size * size > 2**28:  # colour and mask
            return pair
        done[index] = pair
    return done[index]


# %%
config = Config(base_size=64, crop_size=32)
batch = scoring_batch(made, [3, -1], config)
assert isinstance(batch, Batch)
test_eq((tuple(batch.image.shape), batch.real.tolist()), ((2, 3, 64, 64), [True, False]))
test_eq(training_batch(made, [0, 1], 0, config).mask.shape, (2, 1, 32, 32))
with expect_fail(BadImage, contains="none of its 0 images"):
    readable(made.part("none", []), 0, "skip")
assert readable(made, 0, "stop") is made.pairs[0] and pixel_count(made) == 4 * 2 * 128 * 128
assert squash_once(made, 3, 64) is squash_once(made, 3, 64)
test_eq(collate([squash(*made.pairs[3], 64)], [True]).image[0], batch.image[0])


# %% [markdown]
# ## Whole batches on the device
#
# Pillow takes about a millisecond for an image. A step of training on a CPU takes a hundred times as long, so there Pillow is good enough and stays. A fast GPU or TPU has little more than that millisecond for its whole step and would wait for its data. So for those the pixels can lie on the device, once and for all, and whole batches be transformed where they are: `cache` decides (see the task notebook).
#
# First the store. Images of one split get one shape, that of the highest and the widest, so that any of them can be picked by number. It is made of planes: a grey image is one plane, a colour image three. Whether it fits is known before anything is copied.

# %%
#| export
@dataclass(frozen=True)
class Pixels:
    "The pixels of a split as tensors of one shape, for transforms on the device."

    planes: Tensor  # [P,H,W] uint8, zero beyond an image's true size
    masks: Tensor  # [N,H,W] uint8, 0 or 1
    first: tuple[tuple[int, int, int], ...]  # planes of each image; three times one if it is grey
    truth: tuple[np.ndarray, ...]  # the masks on the host too, where crops are placed

    @property
    def sizes(self) -> list[tuple[int, int]]:
        "True height and width of each image."
        return [(mask.shape[0], mask.shape[1]) for mask in self.truth]

    @property
    def channels(self) -> int:
        "Planes that a batch takes of each image: 1 if all are grey, else 3."
        return 1 if all(a == c for a, _, c in self.first) else 3

    def through(self, move: Callable[[Tensor], Tensor]) -> "Pixels":
        "The same store elsewhere, such as `store.through(device.hold)`."
        return replace(self, planes=move(self.planes), masks=move(self.masks))


def pixel_shape(split: Split) -> tuple[int, int, int]:  # planes of images, height, width
    "The shape that a split's images take in a store."
    height, width = (max(mask.shape[k] for _, mask in split.pairs) for k in (0, 1))
    return sum(1 if image.ndim == 2 else 3 for image, _ in split.pairs), height, width


def pixel_bytes(split: Split) -> int:
    "The bytes that a store of this split takes, found without making it."
    planes, height, width = pixel_shape(split)
    return (planes + len(split)) * height * width


# %% [markdown]
# Filling it is a matter of slices:

# %%
#| export
def store_pixels(split: Split) -> Pixels:
    "Copy a split into a store, on the host."
    count, height, width = pixel_shape(split)
    planes = torch.zeros((count, height, width), dtype=torch.uint8)
    masks = torch.zeros((len(split), height, width), dtype=torch.uint8)
    first, place = [], 0
    for i, (image, mask) in enumerate(split.pairs):
        h, w = mask.shape
        layers = np.atleast_3d(image).transpose(2, 0, 1).copy()
        masks[i, :h, :w] = torch.from_numpy(mask.copy())
        planes[place : place + len(layers), :h, :w] = torch.from_numpy(layers)
        first.append((place, place + len(layers) // 2, place + len(layers) - 1))
        place += len(layers)
    return Pixels(planes, masks, tuple(first), tuple(mask for _, mask in split.pairs))


# %% [markdown]
# Two grey scenes and a colour one of another size make five planes and three masks:

# %%
image, mask = (pixels[:100, :75] for pixels in made.pairs[2])
tinted = np.stack([image, image // 2, image // 3], 2)
mixed = Split("train", ("a", "b", "c"), (*made.pairs[:2], (tinted, mask)), "mixed")
store = store_pixels(mixed)
assert isinstance(store, Pixels)
test_eq((pixel_shape(mixed), store.first[1:]), ((5, 128, 128), ((1, 1, 1), (2, 3, 4))))
test_eq(store.planes.nbytes + store.masks.nbytes, pixel_bytes(mixed))
store.channels, store_pixels(made).channels


# %% [markdown]
# ### A resize is a matrix
#
# Every pixel of a resized row is a weighted mean of pixels of the old row. So the resize of all rows is one product with a matrix that holds the weights, the resize of all columns is another, and `A_y @ image @ A_x^T` does both. Mirror, padding and crop cost nothing more: a mirrored picture reads its pixels in the other order, a padded row of the matrix is zero, and of a crop only its own rows are computed. That is why a batch whose images are all drawn differently still takes the same few operations with the same shapes. A compiler has one program for all of them.
#
# Pillow's weights are a triangle around the centre of the new pixel, as wide as a new pixel is in old ones, and never narrower than two old ones. With `n` old and `m` new pixels the centres `(o + 1/2) n/m` and `j + 1/2` are fractions. Times `2m` they are whole numbers, and so is the triangle. Whole numbers have no rounding; the only one is the last division, by the sum of the weights.

# %%
#| export
def resize_matrix(
    axis: Tensor,  # [B,4] int32: old pixels n, new pixels m, first new pixel of the crop, mirror
    rows: int,  # new pixels that are wanted
    columns: int,  # width of the store; pixels from n on have no weight
) -> Tensor:  # [B,rows,columns] float32
    "Weights of the old pixels in each new one, as Pillow's bilinear resize has them."
    n, m, start, mirror = axis[:, :, None].split(1, 1)  # each [B,1,1]
    new = start + torch.arange(rows, device=axis.device, dtype=torch.int32)[:, None]
    old = torch.arange(columns, device=axis.device, dtype=torch.int32)
    read = old + mirror * (n - 1 - 2 * old)  # where the pixel stands in the mirrored row
    far = ((2 * new + 1) * n - (2 * read + 1) * m).abs()  # [B,rows,columns], in 1/2m pixels
    weight = (2 * torch.maximum(n, m) - far).clamp_min(0) * (old < n)
    total = weight.sum(2, keepdim=True, dtype=torch.int32).clamp_min(1)
    return weight * ((new < m) / total)


# %% [markdown]
# Three pixels become six, then the other way round. The last line is a mirrored row of which only two pixels fit, in a crop of three: the third is padding.

# %%
axis = torch.tensor([[3, 6, 0, 0], [3, 2, 0, 1]], dtype=torch.int32)
wider, mirrored = resize_matrix(axis, 6, 4).unbind()
test_close(wider.sum(1), torch.ones(6))
test_eq(wider[:, 3], torch.zeros(6))  # the store's padding
row = np.array([[40, 0, 200]], np.uint8)
pillow = np.asarray(Image.fromarray(row).resize((6, 1), Image.Resampling.BILINEAR))
test_close(torch.round(wider[:, :3] @ torch.tensor(row[0]).float()), pillow[0])
test_eq(mirrored[2], torch.zeros(4))
wider, mirrored[:3]


# %% [markdown]
# ### Whole grey levels
#
# Pillow rounds after the rows and again after the columns, and so do we, halves upwards. It costs nothing beside the products, and it makes them robust: whole numbers up to 255 are exact even in the 8 significant bits that the matrix unit of a TPU keeps.

# %%
#| export
def whole(
    image: Tensor,  # any shape, float32
) -> Tensor:
    "Rounded to whole grey levels, halves upwards."
    return (image + 0.5).floor_()


# %%
test_eq(whole(torch.tensor([0.49, 0.5, 1.5, 254.4])).tolist(), [0, 1, 2, 254])

# %% [markdown]
# ### Blur
#
# The blur comes last. Pillow's Gaussian blur is three box blurs along the rows and three along the columns, each rounded. The recipe's radius is under 1, and then a box reaches only the two neighbours. A few products and sums do that; a matrix of 256x256, mostly zeros, would be a detour and would not round in between. At the edge a pixel is its own neighbour.
#
# Pillow computes a box in whole numbers of 32 bits without a sign. Ours have a sign, so grey levels are counted from -128 meanwhile and the sums just fit. What the two weights lack of 1 (at most one part of 2^24) would shift with them and is put right in `half`.

# %%
#| export
WHOLE = 1 << 24  # Pillow keeps the weights of a box in 24 bits


def box_weights(
    blur: float,  # radius of the Gaussian blur in pixels, 0 up to 1.41
) -> tuple[int, int]:  # weight of the pixel and of each neighbour, in parts of WHOLE
    "The box of which three make a Gaussian blur of this radius, as in Pillow."
    if not 0 <= blur < 2**0.5:
        raise UserError(f"blur={blur}: on the device the radius is at least 0 and below 1.41")
    variance = np.float32(blur) * np.float32(blur) / 3
    reach = -3 * variance / (6 * (variance - 1))  # beyond the pixel itself, to each side
    centre = int(np.float32(WHOLE) / (2 * reach + 1))
    return centre, (WHOLE - centre) // 2


def box_blur(
    image: Tensor,  # [B,C,H,W] int32, grey levels
    weights: Tensor,  # [B,2] int32, of `box_weights`
) -> Tensor:  # [B,C,H,W] int32, grey levels
    "Three box blurs along the rows and three along the columns."
    centre, side = weights[:, :, None, None, None].unbind(1)
    half = WHOLE // 2 - 128 * (WHOLE - centre - 2 * side)
    bits = torch.full((), 24, dtype=torch.int32, device=image.device)
    image = image - 128
    for dim in (3, 3, 3, 2, 2, 2):
        last = image.shape[dim] - 1
        before = torch.cat([image.narrow(dim, 0, 1), image.narrow(dim, 0, last)], dim)
        after = torch.cat([image.narrow(dim, 1, last), image.narrow(dim, last, 1)], dim)
        sums = torch.addcmul(image * centre, before.add_(after), side).add_(half)
        image = torch.bitwise_right_shift(sums, bits)  # XLA's >> rounds towards zero
    return image + 128


# %% [markdown]
# It is Pillow's blur to the last grey level, and with radius 0 it changes nothing:

# %%
noise = np.random.default_rng(0).integers(0, 256, (32, 40), dtype=np.uint8)
levels = torch.tensor(noise).int().expand(2, 1, -1, -1)
soft, same = box_blur(levels, torch.tensor([box_weights(0.9), box_weights(0)]))[:, 0]
pillow = np.asarray(Image.fromarray(noise).filter(ImageFilter.GaussianBlur(0.9)))
test_eq(soft, torch.tensor(pillow))
test_eq(same, levels[1, 0])
with expect_fail(UserError, contains="below 1.41"):
    box_weights(1.5)


# %% [markdown]
# ### The numbers of a batch
#
# All that differs from batch to batch is one small table of whole numbers, a row for each image. The host makes it from the draws and sends it.
#
# Most of a row are places. A resized mask takes the label of the nearest pixel, and which one that is when two are equally near, Pillow decides by adding up a fraction in double precision. No device does that alike, so the host does, and the table holds the result: for each row and column of the crop, the one of the stored mask that it shows, or -1 for padding.

# %%
#| export
def nearest(
    axis: tuple[int, int, int, int],  # old pixels, new pixels, first of the crop, mirror 0 or 1
    count: int,  # pixels of the crop
) -> np.ndarray:  # [count] int; the old pixel that each shows, -1 for none
    "The places that Pillow's nearest resize reads, found by the same sums."
    n, m, start, mirror = axis
    sums = np.full(m, n / m)
    sums[0] = n / m * 0.5
    old = np.add.accumulate(sums)[start : start + count].astype(np.int64)
    read = np.where(old < n, n - 1 - old if mirror else old, -1)
    return np.pad(read, (0, count - len(read)), constant_values=-1)


def batch_row(
    store: Pixels,
    index: int,  # of the image; -1 is filler, a copy of the first
    placed: Placement,
    drawn: Draw,
    size: int,
) -> np.ndarray:  # [15+2S]: planes 3, real 1, turn 1, box 2, down 4, across 4, rows S, columns S
    "The numbers of one image of a batch."
    i = max(index, 0)
    height, width = store.truth[i].shape
    down = (height, placed.height, placed.top, int(drawn.flip))
    across = (width, placed.width, placed.left, int(drawn.mirror))
    rows, columns = nearest(down, size), nearest(across, size)
    rows += np.where(rows < 0, 0, i * store.masks.shape[1])  # masks are one above the other
    head = (*store.first[i], index >= 0, drawn.turn, *box_weights(drawn.blur), *down, *across)
    return np.concatenate([head, rows, columns])


# %%
test_eq(nearest((3, 6, 0, 0), 8).tolist(), [0, 0, 1, 1, 2, 2, -1, -1])
test_eq(nearest((3, 6, 2, 1), 4).tolist(), [1, 1, 0, 0])
row = batch_row(store, 2, placement(mixed.pairs[2][1], middle, 64), middle, 64)
row[:15]

# %% [markdown]
# A batch for training takes the draws; one for scoring squashes, which is a resize of both sides to one size without a crop.

# %%
#| export
PLAIN = Draw(mirror=False, long_side=0, top=0, left=0, blur=0)  # nothing is drawn


def training_numbers(
    store: Pixels,
    indices: Sequence[int],
    draws: Sequence[Draw],  # one for each index
    crop_size: int,
) -> Tensor:  # [B,15+2S] int32, on the host
    "The numbers of a training batch, for `augment_batch`."
    rows = [
        batch_row(store, i, placement(store.truth[i], drawn, crop_size), drawn, crop_size)
        for i, drawn in zip(indices, draws, strict=True)
    ]
    return torch.from_numpy(np.stack(rows).astype(np.int32))


def scoring_numbers(
    store: Pixels,
    indices: Sequence[int],  # -1 is filler
    size: int,
) -> Tensor:  # [B,15+2S] int32, on the host
    "The numbers of a scoring batch, for `augment_batch`."
    placed = Placement(size, size, 0, 0)
    rows = [batch_row(store, i, placed, PLAIN, size) for i in indices]
    return torch.from_numpy(np.stack(rows).astype(np.int32))


# %%
config = Config(base_size=128, target_share=0.5)
drawn = [draw(config, 0, i) for i in range(3)]
numbers = training_numbers(store, range(3), drawn, 128)
test_eq(scoring_numbers(store, [0, -1], 64)[:, 3].tolist(), [1, 0])  # what is real
numbers.shape, numbers.dtype


# %% [markdown]
# ### The batch
#
# From here on all is on the device. The mask is two picks: rows of the store, then, with the picked lines turned, columns. Reading whole lines is what every device does well.

# %%
#| export
def pick_masks(
    masks: Tensor,  # [N,H,W]
    rows: Tensor,  # [B,S] lines of all masks one above the other, -1 for padding
    columns: Tensor,  # [B,S], -1 for padding
) -> Tensor:  # [B,1,S,S]
    "The masks of a batch, from the places that `nearest` found."
    batch, size = rows.shape
    width = masks.shape[2]
    lines = masks.flatten(0, 1).index_select(0, rows.clamp_min(0).flatten())
    turned = lines.view(batch, size, width).mT.reshape(batch * width, size)
    start = width * torch.arange(batch, device=rows.device, dtype=torch.int32)[:, None]
    picked = turned.index_select(0, (start + columns.clamp_min(0)).flatten())
    inside = (rows >= 0)[:, :, None] & (columns >= 0)[:, None]
    return (picked.view(batch, size, size).mT * inside)[:, None]


def augment_batch(
    store: Pixels,
    numbers: Tensor,  # [B,15+2S] int32, on the store's device
) -> Batch:
    """A batch from the store, by two matrix products and a blur.

    At most a grey level or two from `augment` and `squash`, and that on few pixels; masks equal.
    Shapes and operations depend on nothing but the number of images and S.
    """
    size = (numbers.shape[1] - 15) // 2
    planes, real, turn, box, down, across, rows, columns = numbers.split(
        [3, 1, 1, 2, 4, 4, size, size], dim=1
    )
    height, width = store.planes.shape[1:]
    chosen = planes[:, : store.channels]
    image = store.planes.index_select(0, chosen.flatten()).view(*chosen.shape, height, width)
    with torch.autocast(numbers.device.type, enabled=False):
        across_, down_ = resize_matrix(across, size, width), resize_matrix(down, size, height)
        image = whole(image.float() @ across_[:, None].mT)
        image = whole(down_[:, None] @ image).clamp_(0, 255)
    turned = turn[:, :, None, None] > 0
    image = box_blur(torch.where(turned, image.mT, image).int(), box).to(torch.uint8)
    mask = pick_masks(store.masks, rows, columns)
    mask = torch.where(turned, mask.mT, mask)
    return Batch(image.expand(-1, 3, -1, -1), mask, real[:, 0] > 0)


# %% [markdown]
# Above, what Pillow makes of the three images; below, what the products make of them. The colour image is smaller and stays so where it is drawn small; what is black is padding.

# %%
views = augment_batch(store, numbers)
pairs = [augment(*mixed.pairs[i], drawn[i], 128) for i in range(3)]
wanted = collate(pairs, [True] * 3)
both = torch.cat([torch.cat(list(b.image), 2) for b in (wanted, views)], 1)
upright = torch.stack([m.mT if d.turn else m for m, d in zip(wanted.mask, drawn, strict=True)])
test_eq(pick_masks(store.masks, *numbers[:, 15:].split(128, 1)), upright)
Image.fromarray(both.permute(1, 2, 0).numpy())

# %% [markdown]
# How far apart are they? Where they differ, it is by one grey level, because a sum lies within a rounding error of a half. On the real images of NUAA-SIRST that is 5 values in 10,000, and of 168 million values 60 were two levels apart. Masks are equal. Scoring's squash likewise.

# %%
apart = (views.image.int() - wanted.image.int()).abs()
assert apart.max() <= 1 and (apart > 0).float().mean() < 1e-2
test_eq((views.mask, views.real), (wanted.mask, wanted.real))
squashed = augment_batch(store, scoring_numbers(store, [2, 1, -1], 64))
plain = scoring_batch(mixed, [2, 1, -1], Config(base_size=64))
assert (squashed.image.int() - plain.image.int()).abs().max() <= 1
test_eq((squashed.mask, squashed.real), (plain.mask, plain.real))
int(apart.max()), int((apart > 0).sum()), apart.numel()


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
    seen = [(i.shape[:2], i.ndim, objects(m > 0).area, not m.any()) for i, m in pairs_of(split)]
    areas = np.concatenate([area for _, _, area, _ in seen] or [np.array([], int)])
    sizes = {size for size, _, _, _ in seen}
    heights, widths = ([s[k] for s in sizes] or [0] for k in (0, 1))
    grey, empty = sum(ndim == 2 for _, ndim, _, _ in seen), sum(none for *_, none in seen)
    small, large, middle = (
        (areas.min(), areas.max(), int(np.median(areas))) if len(areas) else (0, 0, 0)
    )
    return [
        f"{split.name}: {counted(len(split), 'image')}, {counted(len(areas), 'target')}, "
        f"{counted(empty, 'image')} without, hash {split.hash}",
        f"  {counted(len(sizes), 'size')}, {min(widths)}..{max(widths)} wide, "
        f"{min(heights)}..{max(heights)} high; {grey} grey, {len(split) - grey} colour",
        f"  target areas {small}..{large} px, median {middle} px",
    ]


def report(
    config: Config,
) -> tuple[str, bool]:  # text of several lines; whether the data can be trained on
    "Counts, sizes, modes, target areas of a data set, and every problem found in it."
    parts, findings = load(config)
    lines = [] if config.dataset_dir else ["synthetic scenes: no data set is named (dataset_dir)"]
    lines += [line for split in parts.values() for line in describe(split)]
    if findings.modes:
        modes = ", ".join(f"{count} {mode}" for mode, count in findings.modes.most_common())
        lines.append(f"file modes: {modes}")
    lines += [f"error: {line}" for line in Findings.lines(findings.errors)]
    lines += [f"warning: {line}" for line in Findings.lines(findings.warnings)]
    return "\n".join(lines), not findings.errors


# %%
text, usable = report(Config(scenes=8, base_size=128))
assert usable and text.startswith("synthetic") and "train: 8 images" in text
assert describe(made)[0].startswith("train: 4 images")
print(text)
