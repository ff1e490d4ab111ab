# %% [markdown]
# # frames
#
# > Which files a name means, and the frames that are in them: images, pages of a TIFF, pictures of a video.

# %%
#| default_exp frames

# %%
#| hide
import tempfile

from fastcore.test import expect_fail, test_eq

from mshnet.scenes import scene

# %%
#| export
import glob
import importlib.util
import itertools
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from mshnet.core import UserError, shown
from mshnet.data import SUFFIXES, one_channel, opened, pixels_of, refuse_size, trouble, visible
from mshnet.files import prefetch

# %% [markdown]
# ## Which files
#
# An input is a file, a folder or a glob. A folder means the images and videos in it; `recursive`, or `**` in a glob, takes the folders below too. (Off by default: in the folder of a data set it would predict the masks too.) Links are followed, but no folder is read twice, so a link to a folder above it does no harm. What an earlier prediction has written is never an input.
#
# A shell replaces `*` by whatever lies there. Files that are no image and no video are therefore counted and left out. An input that does not exist is a mistake. A file that is named twice is predicted once. Files are predicted in the order in which they were named.

# %%
#| export
VIDEOS = (".mp4", ".avi", ".mov", ".mkv", ".webm", ".m4v", ".mpg", ".mpeg")
SUMMARY = "summary.json"  # in the folder of a prediction


class Inputs(NamedTuple):
    "The files to predict, and how many others the inputs hold."

    named: list[str]
    files: list[Path]
    others: Counter[str]  # by suffix


def _can_be_read(path: Path) -> bool:
    "Whether this is a file with the suffix of an image or a video."
    return path.suffix.lower() in (*SUFFIXES, *VIDEOS) and os.path.isfile(path)


def _is_prediction(folder: Path) -> bool:
    "Whether a folder holds the results of a prediction."
    return all(os.path.isfile(folder / name) for name in (SUMMARY, "frames.csv"))


def _folders(top: Path, seen: set[str]) -> Iterator[Path]:
    "A folder and those below it, each once, except predictions and those that cannot be listed."
    real = os.path.realpath(top)
    if real in seen or _is_prediction(top) or not os.access(top, os.R_OK | os.X_OK):
        return
    seen.add(real)
    yield top
    for path in visible(top):
        if os.path.isdir(path):
            yield from _folders(path, seen)


def _expand(pattern: str) -> list[str]:
    "The names that fit a glob, where ** stands for any folders."
    head, deep, tail = pattern.partition("**")
    if not deep:
        return sorted(glob.glob(pattern))
    tops, seen = glob.glob(head) if head else ["."], set[str]()
    folders = (folder for top in sorted(tops) for folder in _folders(Path(top), seen))
    rest = tail.lstrip("/" + os.sep) or "*"
    return [name for folder in folders for name in _expand(f"{glob.escape(str(folder))}/{rest}")]


def _files_of(text: str, recursive: bool) -> list[Path]:
    "The files of a file, folder or glob, of any kind; UserError if there is no such thing."
    path, seen = Path(os.path.expanduser(text)), set[str]()
    if not text:
        raise UserError("an input is empty: name images, videos, folders or globs")
    if not os.path.lexists(path) and not glob.has_magic(text):
        raise UserError(f"{shown(text)}: there is no such file or folder")
    try:
        found = [path] if os.path.lexists(path) else list(map(Path, _expand(str(path))))
        files = [path for path in found if not os.path.isdir(path)]
        folders = [path for path in found if os.path.isdir(path) and not _is_prediction(path)]
        if recursive:
            folders = [below for folder in folders for below in _folders(folder, seen)]
        elif any(map(_can_be_read, files)):
            folders = []  # of a glob
        inside = itertools.chain.from_iterable(map(visible, folders))
        return files + [path for path in inside if not os.path.isdir(path)]
    except OSError as error:
        what = shown(str(error.filename))
        raise UserError(f"{what}: cannot be read ({error.strerror})") from None


def find_files(
    inputs: str | Path | Iterable[str | Path],
    recursive: bool = False,  # also the folders below
) -> Inputs:
    "The images and videos of all inputs, each once; UserError if there are none."
    named = [str(text) for text in ([inputs] if isinstance(inputs, str | Path) else inputs)]
    files: dict[str, Path] = {}
    others: dict[str, str] = {}
    for path in (path for text in named for path in _files_of(text, recursive)):
        real = os.path.realpath(path)
        if not os.path.exists(path):
            others[str(path)] = "behind a broken link"
        elif not _can_be_read(path):
            others[real] = path.suffix.lower() or "without a suffix"
        elif any(map(_is_prediction, Path(real).parents[:2])):
            others[real] = "of earlier predictions"
        else:
            files.setdefault(real, path)
    found = Inputs(named, list(files.values()), Counter(others.values()))
    if not files:
        raise UserError(_nothing_in(found))
    return found


def _nothing_in(inputs: Inputs) -> str:
    "The error for inputs without an image and a video."
    named = inputs.named
    if not named:
        return "no input: name images, videos, folders or globs"
    what = shown(named[0]) if len(named) == 1 else f"{len(named)} inputs"
    top = Path(os.path.expanduser(named[0]))
    if inputs.others["of earlier predictions"] or _is_prediction(top):
        return f"{what}: no input but the results of an earlier prediction; name other images"
    below = [file.parent for file in sorted(top.glob("*/*")) if _can_be_read(file)]
    hint = f"; did you mean {below[0]}? (--recursive: all folders below)" if below else ""
    return f"{what}: no image and no video ({' '.join((*SUFFIXES, *VIDEOS))}){hint}"


# %%
place = tempfile.TemporaryDirectory()
here = Path(place.name)
sights = [scene(np.random.default_rng(seed), 160)[0] for seed in (1, 2)]
for night in ("one", "two"):
    (here / night).mkdir()
    for number, pixels in enumerate(sights):
        Image.fromarray(pixels).save(here / night / f"{number}.png")
(here / "one" / "notes.txt").touch()
found_files: Inputs = find_files([here / "one", f"{here}/**/0.png"])
test_eq((len(found_files.files), found_files.others), (3, {".txt": 1}))
test_eq(len(find_files(here, recursive=True).files), 4)
with expect_fail(UserError, contains=f"did you mean {here / 'one'}?"):
    find_files(here)

# %% [markdown]
# ## Which frames
#
# A file has one frame or many: the pages of a TIFF, the pictures of a video or of an animated GIF or WebP. Images are read as for training: grey, RGB, RGBA and palette become what Pillow's conversion to RGB makes of them. 16 bits become 8 by stretching each frame from its minimum to its maximum. The usual percentile stretch looks better, but it clips the brightest hundredth of the pixels, and a small target is smaller than that. Sensors with dead or hot pixels pay the price, because these take the whole range; replace them by their neighbours first.
#
# A frame may have up to 160 million pixels; a compressed file that claims more is rejected. Videos become 8-bit. A decoder does not report that a video breaks off, so we compare with the number of pictures, or the duration, in the file's header.
#
# A damaged file is skipped, and the next one is read. If a file breaks off, the frames before the break count.

# %%
#| export
_MOST = 160_000_000  # pixels of a frame; Pillow's own limit is a little higher


@dataclass(frozen=True)
class Frame:
    "One frame of a file, or the error in its place."

    file: Path
    number: int  # within its file, from 0
    single: bool  # the only frame of its file
    pixels: np.ndarray  # [H,W] or [H,W,3] uint8; empty after an error
    error: str = ""  # one line
    count: int = 1  # frames of the file, by its header


def _pages(file: Path) -> Iterator[tuple[np.ndarray, int]]:  # pixels; number of pages
    "The pages of an image file. Raises one of Pillow's many errors for other files."
    with opened(file, _MOST) as image:
        several = image.format in ("TIFF", "GIF", "WEBP")
        count = getattr(image, "n_frames", 1) if several else 1
        for page in range(count):
            image.seek(page)
            refuse_size(image, _MOST)
            yield pixels_of(image), count


def _pictures(file: Path) -> Iterator[tuple[np.ndarray, int]]:  # pixels; number by the header
    "The pictures of a video. Raises one of many errors for other files, and if it breaks off."
    if not importlib.util.find_spec("av"):
        raise UserError("videos need the package av; run: pip install av")
    import av

    with av.open(str(file)) as video:
        stream, seconds = video.streams.video[0], (video.duration or 0) / 1_000_000
        rate, times = float(stream.average_rate or 0), list[float]()
        number = stream.frames or round(seconds * rate)
        for picture in video.decode(stream):
            yield one_channel(picture.to_ndarray(format="rgb24")), number
            times.append(picture.time or 0.0)
        counted = stream.frames if "mp4" in video.format.name else 0  # others count what is planned
        ends = times[-1] - times[0] + 2 / (rate or 1) if times else 0.0
        if len(times) < counted or (not counted and ends < 0.9 * seconds):
            raise OSError("it breaks off")


def frames_of(file: Path) -> Iterator[Frame]:  # the last one may have an error
    "The frames of a file, one after the other."
    video, done = file.suffix.lower() in VIDEOS, 0
    try:
        for pixels, count in _pictures(file) if video else _pages(file):
            yield Frame(file, done, count == 1 and not video, pixels, count=count)
            done += 1
        if not done:
            raise OSError("no frame")
    except Exception as error:  # decoders raise many kinds for damaged bytes
        what = trouble(error, "video" if video else "image", _MOST)
        reason = str(error) if isinstance(error, UserError) else what
        if done:
            reason = f"{reason}, from frame {done}"
        yield Frame(file, done, not done, np.zeros((0, 0), np.uint8), reason)


def read_frames(files: Iterable[Path], workers: int) -> Iterator[Frame]:
    "The frames of all files, in order; a worker reads a few ahead."
    frames = itertools.chain.from_iterable(map(frames_of, files))
    read = prefetch(lambda _: next(frames, None), itertools.count(), min(workers, 1))
    yield from itertools.takewhile(lambda frame: frame is not None, read)


# %%
stack = [Image.fromarray(pixels.astype(np.uint16) * 100) for pixels in sights]
stack[0].save(here / "stack.tif", save_all=True, append_images=stack[1:])
(here / "broken.png").write_bytes((here / "one" / "0.png").read_bytes()[:999])
read = list(read_frames([here / "broken.png", here / "stack.tif"], 1))
test_eq([f.number for f in read], [0, 0, 1])
test_eq((read[1].pixels.dtype, read[1].pixels.max()), (np.uint8, 255))
print(next(frames_of(here / "broken.png")).error)
