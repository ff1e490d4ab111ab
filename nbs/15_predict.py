# %% [markdown]
# # predict
#
# > From a trained detector to its detections: files, folders and videos of any size go in; masks, tables and pictures with the detections marked come out.

# %%
#| default_exp predict

# %%
#| hide
import tempfile

from fastcore.test import expect_fail, test_close, test_eq

# %%
#| export
import contextlib
import csv
import functools
import glob
import importlib.util
import itertools
import json
import os
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from scipy.ndimage import label
from torch import Tensor

# %% [markdown]
# From the notebooks before this one:

# %%
#| export
from mshnet.core import UserError, counted, did_you_mean, shown
from mshnet.data import (
    SUFFIXES,
    ahead,
    one_channel,
    opened,
    pixels_of,
    refuse_size,
    scene,
    trouble,
    visible,
)
from mshnet.device import NO_MEMORY
from mshnet.evaluate import Detector
from mshnet.export import OnnxDetector, open_detector
from mshnet.metrics import Objects, crop, match_exact
from mshnet.model import PRETRAINED, reinstall, weights_file
from mshnet.places import where
from mshnet.run import (
    Folder,
    Stop,
    Stopped,
    alone,
    bar,
    cannot_be_written,
    duration,
    environment,
    write_json,
)

# %% [markdown]
# `mshnet.evaluate.predict(weights, images)` is for images in memory that have a size the network takes. People have files: thousands of them, of other sizes, in 16 bits, in videos, one of them broken. `predict_files`, and `mshnet predict` which calls it, are for those. Frames are read, predicted, written and forgotten, so it does not matter how many there are.
#
# ## Which weights
#
# The library brings one file of trained weights, `pretrained`, so that anyone can look for targets before training anything. Weights of your own are named with `--weight-path`: a run's folder stands for the best weights in it.

# %%
#| export
WHERE_FROM = (
    "leave it out to use the weights that come with mshnet, or name RUN/best.pt of a run of "
    "`mshnet train`, or a published file (README of github.com/Lliu666/MSHNet, Weights)"
)


def existing(
    weights: str | Path,  # a file, the folder of a run; empty: the pretrained weights
) -> Path:
    "The file of weights; UserError if there is none."
    path = weights_file(str(weights) or PRETRAINED)
    if not os.path.isfile(path):  # unlike Path's: False for a name that cannot be
        if how := reinstall(path):
            raise UserError(f"{path}: there is no such file{how}")
        what = "a folder without best.pt" if os.path.isdir(path) else "there is no such file"
        raise UserError(f"weight_path={shown(str(weights))}: {what}; {WHERE_FROM}")
    return path


def open_weights(
    weights: str | Path,
    device: str = "auto",
    precision: str = "auto",
) -> Detector | OnnxDetector:
    "The detector that a file of weights, or an exported ONNX file, makes; UserError if it is none."
    return open_detector(existing(weights), device, precision)


# %%
test_eq(existing("").name, "pretrained.safetensors")
with expect_fail(UserError, contains="there is no such file"):
    open_weights("runs/none/best.pt")

# %% [markdown]
# Below, a classical filter stands in for a trained network, because training takes minutes: a detector is whatever takes images and gives probabilities. Like the network's channel attention, this one looks at the whole input: it asks by how much a pixel stands out from its neighbours, measured by how uneven the input is. An untrained network shows that a file of weights opens.

# %%
from mshnet.evaluate import top_hat_filter
from mshnet.model import MSHNet


def stands_out(images, batch_size=4):
    "A detector without weights: the top-hat filter, relative to the deviation in the whole input."
    grey = images.float().mean(1).numpy()
    found = np.stack([top_hat_filter(g, 9) for g in grey]).astype(np.float32)
    limit = found.mean((1, 2), keepdims=True) + 6 * found.std((1, 2), keepdims=True)
    return torch.sigmoid(torch.from_numpy((found - limit) / 4))[:, None]


place = tempfile.TemporaryDirectory()
here = Path(place.name)
(here / "run").mkdir()
torch.save({"state_dict": MSHNet().state_dict()}, here / "run" / "best.pt")
network = open_weights(here / "run", "cpu")
sights = [scene(np.random.default_rng(seed), 160) for seed in (1, 2, 3, 4)]
print(network.name, "on", network.why.split(":")[0])
Image.fromarray(np.hstack([image for image, _ in sights]))


# %% [markdown]
# ## Which files
#
# An input is a file, a folder or a glob. A folder means the images and videos in it and not those below it: a data set's folder has masks below. `**` looks below. What is named twice is predicted once, in the order in which it was named.

# %%
#| export
@contextlib.contextmanager
def as_unreadable(text: str) -> Iterator[None]:
    "Turn the system's refusal to list a folder into a UserError."
    try:
        yield
    except OSError as error:
        raise UserError(f"{shown(text)}: cannot be read ({error.strerror})") from None


VIDEOS = (".mp4", ".avi", ".mov", ".mkv", ".webm", ".m4v", ".mpg", ".mpeg")


def can_be_read(path: str | Path) -> bool:
    "Whether a file's name says that it is an image or a video."
    return Path(path).suffix.lower() in (*SUFFIXES, *VIDEOS) and os.path.isfile(path)


def inside(folder: Path) -> list[Path]:
    "The images and videos of a folder."
    with as_unreadable(str(folder)):
        return [path for path in visible(folder) if can_be_read(path)]


def hint_below(folder: Path) -> str:
    "The first folder below that has images, as a question."
    for path in sorted(folder.glob("*/")):
        with contextlib.suppress(UserError):  # closed to us, such as lost+found
            if inside(path):
                return f"; did you mean {path}?"
    return ""


# %% [markdown]
# The inputs one by one:

# %%
#| export
def files_of(
    text: str,  # a file, a folder or a glob
) -> list[Path]:  # at least one
    "The images and videos that an input means; UserError if it means none."
    path = Path(os.path.expanduser(text))
    if not text:
        raise UserError("an input is empty: name images, videos, folders or globs")
    if os.path.isdir(path):
        files = inside(path)
        hint = "" if files else hint_below(path)
    elif os.path.isfile(path):
        files, hint = [path] * can_be_read(path), ""
    elif glob.has_magic(text):
        found = sorted(glob.glob(str(path), recursive=True))
        files, hint = [Path(p) for p in found if can_be_read(p)], ""
        if not files:  # it may mean folders, as the shell makes folders of it
            files = [p for f in found if os.path.isdir(f) for p in inside(Path(f))]
    else:
        raise UserError(f"{shown(text)}: there is no such file or folder")
    if not files:
        known = " ".join((*SUFFIXES, *VIDEOS))
        raise UserError(f"{shown(text)}: no image and no video ({known}){hint}")
    return files


# %% [markdown]
# All inputs together. What an earlier prediction left in the output folder is no input, even where a glob reaches it.

# %%
#| export
def outside(
    files: Sequence[Path],
    folder: Path,
) -> list[Path]:
    "The files that are not in a folder; UserError if none is left."
    within = os.path.join(os.path.realpath(folder), "")
    left = [path for path in files if not os.path.realpath(path).startswith(within)]
    if not left:
        raise UserError("no input but what is in the output folder: name other images")
    return left


def find_files(
    inputs: str | Path | Sequence[str | Path],
) -> list[Path]:  # each once
    "The images and videos that the inputs mean; UserError if one of them means none."
    if isinstance(inputs, str | Path):
        inputs = [inputs]
    if not inputs:
        raise UserError("no input: name images, videos, folders or globs")
    found: dict[str, Path] = {}
    for text in inputs:
        for path in files_of(str(text)):
            found.setdefault(os.path.realpath(path), path)
    return list(found.values())


# %%
for night in ("one", "two"):
    (here / night).mkdir()
    for number, (image, _) in enumerate(sights[:2]):
        Image.fromarray(image).save(here / night / f"{number}.png")
test_eq(len(find_files(here / "one")), 2)
test_eq(len(outside(find_files([here / "one", f"{here}/**/0.png"]), here / "run")), 3)
test_eq([p.name for p in files_of(f"{here}/one/[0-9].png")], ["0.png", "1.png"])
with expect_fail(UserError, contains="no input but what is in the output folder"):
    outside(find_files(here / "one"), here)
test_eq((len(inside(here / "one")), hint_below(here)), (2, f"; did you mean {here / 'one'}?"))
assert can_be_read(here / "one" / "0.png") and not can_be_read(here / "run" / "best.pt")
with expect_fail(UserError, contains="did you mean"):
    files_of(str(here))
with expect_fail(UserError, contains="there is no such file"):
    find_files("no-such-folder")
with expect_fail(UserError, contains="cannot be read"), as_unreadable("closed"):
    raise PermissionError(13, "Permission denied")

# %% [markdown]
# ## Which frames
#
# A file is one frame, or many: the pages of a TIFF, the pictures of a video. Images are read as for training: grey, RGB, RGBA and palette become what Pillow's conversion to RGB makes of them, and 16 bits become 8 by stretching each frame from its own minimum to its own maximum. The usual percentile stretch looks better to an eye, but it clips the brightest hundredth of the pixels, and a small target is less than that. So nothing is clipped here, and the frames look to the network as in training. A price is paid with sensors that have dead or hot pixels, which take the whole range for themselves: replace them by their neighbours first.
#
# Frames may be larger than what training reads, up to 160 million pixels; a compressed file that claims more is refused. Videos are 8-bit, whatever they were recorded in.

# %%
#| export
MOST = 160_000_000  # pixels of a frame; Pillow's own limit is a little higher
NOTHING = np.zeros((0, 0), np.uint8)


@dataclass(frozen=True)
class Frame:
    "One frame of a file, or why there is none."

    file: Path
    number: int  # within its file, from 0
    alone: bool  # the file holds no other
    pixels: np.ndarray  # [H,W] or [H,W,3] uint8
    error: str = ""  # one line; empty: there are pixels


def pages(
    file: Path,
) -> Iterator[tuple[np.ndarray, bool]]:  # pixels; whether there is one page only
    "The pages of an image file. Raises one of Pillow's many errors if it is none."
    with opened(file, MOST) as image:
        count = getattr(image, "n_frames", 1) if image.format == "TIFF" else 1
        for page in range(count):
            image.seek(page)
            refuse_size(image, MOST)
            yield pixels_of(image), count == 1


# %% [markdown]
# A decoder gives what it finds and does not say that a video breaks off. But most files say how many pictures they have, or how long they are.

# %%
#| export
def pictures_expected(file: Path) -> int:
    "How many pictures a video says it has, at least."
    import av

    with av.open(str(file)) as held:
        stream = held.streams.video[0]
        rate = float(stream.average_rate or 0)
        seconds = (held.duration or 0) / 1_000_000
        return stream.frames or int(0.9 * seconds * rate) - 1  # some say their length alone


def pictures(
    file: Path,
) -> Iterator[tuple[np.ndarray, bool]]:
    "The pictures of a video. Raises one of many errors if it is none."
    if not importlib.util.find_spec("av"):
        raise UserError("videos need two packages more; run: pip install imageio av")
    from imageio.v3 import imiter

    count = 0
    for rgb in imiter(file, plugin="pyav"):
        yield one_channel(rgb), False
        count += 1
    if count < pictures_expected(file):
        raise OSError("it breaks off")


# %% [markdown]
# Whatever goes wrong with a file concerns this file; the next one is read all the same. Of a file that breaks off, the frames before the break count.

# %%
#| export
def frames_of(
    file: Path,
) -> Iterator[Frame]:  # the last one may have an error
    "The frames of a file, one after the other."
    video = file.suffix.lower() in VIDEOS
    number, alone = 0, not video
    try:
        for pixels, alone in pictures(file) if video else pages(file):
            yield Frame(file, number, alone, pixels)
            number += 1
        if not number:
            raise OSError("no frame")
    except Exception as error:  # decoders raise many kinds for bytes that make no sense
        what = trouble(error, "video" if video else "image", MOST)
        said = str(error) if isinstance(error, UserError) else what
        yield Frame(
            file, number, alone, NOTHING, f"{said}, from frame {number}" * bool(number) or said
        )


def read_ahead(
    files: Iterable[Path],
    workers: int,  # 0: read when asked for; else by a thread
) -> Iterator[Frame]:
    "The frames of all files, in order, a few of them read before they are needed."
    frames = (frame for file in files for frame in frames_of(file))
    for frame in ahead(lambda _: next(frames, None), itertools.count(), min(workers, 1)):
        if frame is None:
            return
        yield frame


# %%
stack = [Image.fromarray(image.astype(np.uint16) * 100) for image, _ in sights]
stack[0].save(here / "stack.tif", save_all=True, append_images=stack[1:])
(here / "broken.png").write_bytes((here / "one" / "0.png").read_bytes()[:999])
read = list(read_ahead([here / "broken.png", here / "stack.tif"], 1))
test_eq([f.number for f in read], [0, 0, 1, 2, 3])
test_eq(
    (read[0].error, read[1].pixels.dtype, read[1].pixels.max()), ("unreadable image", np.uint8, 255)
)
test_eq(next(pages(here / "stack.tif"))[0], read[1].pixels)
assert isinstance(next(frames_of(here / "stack.tif")), Frame)

# %% [markdown]
# A video, where the two packages are installed (`pip install "mshnet[video]"`, or as the error says):

# %%
if importlib.util.find_spec("av"):
    from imageio.v3 import imwrite

    colour = [np.dstack([image] * 3) for image, _ in sights]
    imwrite(here / "clip.mp4", colour, plugin="pyav", codec="mpeg4", fps=5)
    test_eq([p.shape[:2] for p, _ in pictures(here / "clip.mp4")], [(160, 160)] * 4)
    test_eq(pictures_expected(here / "clip.mp4"), 4)
else:
    test_eq([f.error[:11] for f in frames_of(here / "clip.mp4")], ["videos need"])

# %% [markdown]
# ## Any size
#
# The network takes sizes that are multiples of 16. A frame is predicted at its own size: it is padded at the right and below by its mirror image up to such a size, and the padding is cut off again. (Scores in training are of frames squashed to one size, which is another thing; see the protocol of a score.)
#
# A frame with a side above `tile` pixels is cut into tiles that overlap by an eighth of that at least. All tiles of a frame have one size, and that is as small as their number allows. They begin at multiples of 16, as the network's halvings do.

# %%
#| export
UNIT = 16  # the network's sizes are multiples of this
TILE = 1024  # longest side that is predicted in one piece


def along(
    length: int,  # of the frame, in pixels
    tile: int,  # longest side of a piece, a multiple of 16
) -> tuple[int, list[int]]:  # side of each piece; where each begins
    "How one side of a frame is cut. No pixel is in more than two pieces."
    whole, most = -(-length // UNIT), tile // UNIT
    if whole <= most:
        return whole * UNIT, [0]
    overlap = max(2, most // 8)
    count = -(-(whole - overlap) // (most - overlap))
    side = -(-(whole + (count - 1) * overlap) // count)
    starts = [i * (whole - side) // (count - 1) * UNIT for i in range(count)]
    return side * UNIT, starts


def check_tile(tile: int) -> None:
    "UserError unless a tile can have this side."
    if tile % UNIT or not 128 <= tile <= 8192:
        raise UserError(f"tile={tile}: write a multiple of 16, at least 128, at most 8192")


# %%
test_eq(along(1000, 1024), (1008, [0]))
test_eq(along(1040, 1024)[1], [0, 448])
for length in (1025, 2000, 3333, 10_000):
    side, starts = along(length, 1024)
    laps = [a + side - b for a, b in itertools.pairwise(starts)]
    assert min(laps) >= 128 and starts[-1] + side == -(-length // 16) * 16
with expect_fail(UserError, contains="a multiple of 16"):
    check_tile(1000)
along(10_000, 1024)

# %% [markdown]
# ### No jump, and no order
#
# Where tiles overlap, the one fades out as the other fades in: a weight that rises smoothly from 0 to 128 along the overlap, and its complement. So the weights of a pixel add up to 128 along either side, and to 128 x 128 in all.
#
# Everything here is a whole number. A probability is one of 65,536 levels (its ceiling, so that a level of 32,768 or more is a probability above 0.5 and nothing else is), a weight is one of 128 steps, and their sum fits into 32 bits. Whole numbers have no rounding, so the tiles may come in any order.

# %%
#| export
STEPS = 128  # of a weight
TOP = 65535  # the level of probability 1


def level_of(
    threshold: float,  # a probability, 0..1
) -> int:  # 1..65535
    "The first level that is above a threshold: 32,768 for 0.5."
    return min(max(round(threshold * (TOP + 1)), 1), TOP)


def in_levels(
    prob: np.ndarray,  # float32, 0..1
) -> np.ndarray:  # uint16, 0..65535
    "Probabilities as whole numbers of 16 bits."
    return np.maximum(np.ceil(prob * (TOP + 1)) - 1, 0).astype(np.uint16)


def weights_along(
    side: int,
    starts: Sequence[int],
) -> list[np.ndarray]:  # of each piece: [side] uint32, 0..128
    "Weights of the pieces along one side, which add up to 128 in every pixel."
    found = [np.full(side, STEPS, np.uint32) for _ in starts]
    for i, (one, other) in enumerate(itertools.pairwise(starts)):
        lap = one + side - other
        place = (np.arange(lap) + 0.5) / lap
        rise = np.round(STEPS * place**2 * (3 - 2 * place)).astype(np.uint32)
        found[i][side - lap :] = STEPS - rise
        found[i + 1][:lap] = rise
    return found


# %%
half = level_of(0.5)
test_eq(in_levels(np.float32([0, 0.5, 0.5000001, 1])).tolist(), [0, half - 1, half, TOP])
for length in (1025, 3333):
    side, starts = along(length, 256)
    total = np.zeros(starts[-1] + side, int)
    for start, weight in zip(starts, weights_along(side, starts), strict=True):
        total[start : start + side] += weight
    test_eq(total.tolist(), [STEPS] * len(total))
weights_along(48, [0, 32])


# %% [markdown]
# The tiles of a frame, and putting them together:

# %%
#| export
@dataclass(frozen=True)
class Tiling:
    "How a frame is padded and cut."

    shape: tuple[int, int]  # height and width of the frame
    side: tuple[int, int]  # of each tile
    starts: tuple[list[int], list[int]]  # rows and columns where tiles begin

    @classmethod
    def of(cls, shape: Sequence[int], tile: int = TILE) -> "Tiling":
        "The tiling of frames of this height and width."
        (high, rows), (wide, cols) = (along(length, tile) for length in shape[:2])
        return cls((shape[0], shape[1]), (high, wide), (rows, cols))

    @property
    def padded(self) -> tuple[int, int]:
        "Height and width with the padding."
        high, wide = (start[-1] + side for start, side in zip(self.starts, self.side, strict=True))
        return high, wide

    @property
    def places(self) -> list[tuple[int, int]]:
        "Row and column numbers of the tiles."
        rows, cols = (range(len(start)) for start in self.starts)
        return list(itertools.product(rows, cols))

    def slices(self, place: tuple[int, int]) -> tuple[slice, slice]:
        "Where a tile lies in the padded frame."
        begins = (start[i] for start, i in zip(self.starts, place, strict=True))
        rows, cols = (slice(b, b + n) for b, n in zip(begins, self.side, strict=True))
        return rows, cols

    @cached_property
    def weights(self) -> list[list[np.ndarray]]:
        "Weights of the tiles along rows and along columns."
        pairs = zip(self.side, self.starts, strict=True)
        return [weights_along(side, starts) for side, starts in pairs]


# %%
#| export
def pad(
    pixels: np.ndarray,  # [H,W] or [H,W,3]
    tiling: Tiling,
) -> np.ndarray:
    "A frame with its mirror image at the right and below, up to a size that the network takes."
    more = [(0, new - old) for new, old in zip(tiling.padded, tiling.shape, strict=True)]
    if not any(after for _, after in more):
        return pixels
    return np.pad(pixels, [*more, (0, 0)][: pixels.ndim], mode="reflect")


def blend(
    tiling: Tiling,
    tiles: Iterable[tuple[tuple[int, int], np.ndarray]],  # place and levels of each, in any order
) -> np.ndarray:  # [H,W] uint16
    "One map of all tiles, without the padding."
    total = np.zeros(tiling.padded, np.uint32)  # at most 128 x 128 x 65535
    for (row, col), levels in tiles:
        weight = tiling.weights[0][row][:, None] * tiling.weights[1][col]
        total[tiling.slices((row, col))] += weight * levels
    total //= STEPS * STEPS
    height, width = tiling.shape
    return total[:height, :width].astype(np.uint16)


# %% [markdown]
# Two flat tiles, one dark and one bright, become a slope. And what no tile changes is not changed by putting tiles together:

# %%
tiling = Tiling.of((128, 200), 128)
test_eq((tiling.side, tiling.starts), ((128, 128), ([0], [0, 80])))
flat = [
    (place, np.full(tiling.side, level, np.uint16))
    for place, level in zip(tiling.places, (9000, 50000), strict=True)
]
slope = blend(tiling, flat)
test_eq(slope, blend(tiling, flat[::-1]))
assert np.abs(np.diff(slope[0].astype(int))).max() < 1.6 * (50000 - 9000) / 48
noise = np.random.default_rng(0).integers(0, 65536, (300, 333)).astype(np.uint16)
tiling = Tiling.of(noise.shape, 128)
pieces = [(place, pad(noise, tiling)[tiling.slices(place)]) for place in tiling.places]
test_eq(blend(tiling, pieces), noise)
slope[0, 70:140:10]

# %% [markdown]
# ### The same result in any company
#
# On a CPU, torch may take another program for four images than for one, and then the last bits differ. Computing four at once gains nothing there (scoring in batches of 8 or 16 gained 4%, as the log says), so each image is computed by itself, and no result depends on what else is predicted with it. Other devices gain by batches. There every batch has four images, the last one filled up with copies, so that again the program is one and the same (tried on a CPU only; on a TPU each size of frame is a program of its own, so frames of one size are best there). `batch_size` is the number of frames that are held together; no result depends on it.

# %%
#| export
TOGETHER = 4  # images of one pass where batches are faster


def at_once(
    detector: Callable[..., Tensor],
) -> int:
    "How many images a detector computes in one pass, always."
    device = getattr(detector, "device", None)
    return TOGETHER if getattr(device, "kind", "cpu") != "cpu" else 1


def levels_of(
    detector: Callable[..., Tensor],  # a Detector, or what is called like one
    images: np.ndarray,  # [B,H,W] or [B,H,W,3] uint8, sizes that the network takes
) -> np.ndarray:  # [B,H,W] uint16
    "Probabilities of target, as levels."
    count, size = len(images), at_once(detector)
    rows = torch.from_numpy(np.concatenate([images, images[:1].repeat(-count % size, 0)]))
    rows = rows.permute(0, 3, 1, 2) if rows.ndim == 4 else rows[:, None].expand(-1, 3, -1, -1)
    try:
        prob = detector(rows, size)[:count, 0].numpy()
    except (RuntimeError, MemoryError) as error:
        if not isinstance(error, MemoryError) and not any(w in str(error) for w in NO_MEMORY):
            raise
        pixels = "x".join(map(str, images.shape[1:3]))
        raise UserError(f"no memory for a piece of {pixels}: write a smaller --tile") from None
    if not np.isfinite(prob).all():
        raise UserError("the prediction is no number (NaN): the weights are spoiled, take others")
    return in_levels(prob)


# %% [markdown]
# A frame, then, is padded, cut, predicted and put together:

# %%
#| export
def predict_frame(
    detector: Callable[..., Tensor],
    pixels: np.ndarray,  # [H,W] or [H,W,3] uint8, of any size
    tile: int = TILE,
    batch_size: int = 4,
    check: Callable[[], object] = lambda: None,  # called before each pass; may raise
) -> np.ndarray:  # [H,W] uint16
    "Probabilities of target of one frame, as levels."
    tiling = Tiling.of(pixels.shape, tile)
    frame = pad(pixels, tiling)

    def passes() -> Iterator[tuple[tuple[int, int], np.ndarray]]:
        for i in range(0, len(tiling.places), batch_size):
            check()
            some = tiling.places[i : i + batch_size]
            images = np.stack([frame[tiling.slices(place)] for place in some])
            yield from zip(some, levels_of(detector, images), strict=True)

    return blend(tiling, passes())


# %%
image = sights[0][0][:150, :141]
levels = predict_frame(stands_out, image)
test_eq(levels, levels_of(stands_out, pad(image, Tiling.of(image.shape))[None])[0, :150, :141])
test_eq(at_once(network), 1)
test_eq(predict_frame(network, image, 128, 1), predict_frame(network, image, 128, 3))
Image.fromarray((levels >> 8).astype(np.uint8))


# %% [markdown]
# ## What is detected
#
# A detection is a set of 8-connected pixels with a probability above the threshold: the one that is kept with the weights, else 0.5, as in the scores. It is looked for on the whole frame after the tiles were put together, so an object on a seam is one object. Of each the table holds its place, its box, its area in pixels, and the highest and mean probability of its pixels.
#
# As in the metrics notebook the pixels are taken run by run: an untrained network makes millions of them.

# %%
#| export
@dataclass(frozen=True)
class Detections(Objects):
    "The detections of a frame, in the order of their first pixel."

    box: np.ndarray  # [N,4] top, left, bottom, right; the last two are one past the last pixel
    peak: np.ndarray  # [N] highest probability
    mean: np.ndarray  # [N] mean probability

    def rows(self) -> Iterator[dict[str, Any]]:
        "Each as plain values."
        for i, centroid in enumerate(self.centroid):
            yield {
                "object": i,
                "centroid": [round(float(x), 3) for x in centroid],
                "box": self.box[i].tolist(),
                "area": int(self.area[i]),
                "peak": round(float(self.peak[i]), 5),
                "mean": round(float(self.mean[i]), 5),
            }


def bounds(
    which: np.ndarray,  # [R] the object of each run, 0..N-1
    low: np.ndarray,  # [R]
    high: np.ndarray,  # [R]
    count: int,  # N
) -> tuple[np.ndarray, np.ndarray]:  # [N] lowest of the one, [N] highest of the other
    "Where objects begin and end."
    least, most = np.full(count, np.iinfo(np.int64).max), np.full(count, -1)
    np.minimum.at(least, which, low)
    np.maximum.at(most, which, high)
    return least, most


# %%
#| export
def detections(
    levels: np.ndarray,  # [H,W] uint16, as from `predict_frame`
    threshold: float = 0.5,
) -> Detections:
    "The 8-connected objects of the pixels whose probability is above a threshold."
    least = level_of(threshold)
    small, row, col = crop(levels, least - 1)
    padded = np.zeros((small.shape[0], small.shape[1] + 1), np.uint16)
    padded[:, :-1] = small  # no run goes on in the next row
    found = padded >= least
    labels, count = label(found, np.ones((3, 3), bool))
    if not count:
        none = np.zeros(0)
        return Detections(np.zeros((0, 2)), none.astype(int), np.zeros((0, 4), int), none, none)
    edges = np.flatnonzero(np.diff(found.ravel(), prepend=False))
    start, size = edges[::2], edges[1::2] - edges[::2]
    which = labels.ravel()[start] - 1
    del labels, found
    line, first = np.divmod(start, padded.shape[1])
    line, first = row[line], col[first]
    flat = padded.ravel()
    total = np.add.reduceat(flat, edges, dtype=np.int64)[::2]
    peak = np.zeros(count, np.uint16)
    np.maximum.at(peak, which, np.maximum.reduceat(flat, edges)[::2])
    area = np.bincount(which, size, count)
    rows = np.bincount(which, line * size, count)
    cols = np.bincount(which, (2 * first + size - 1) * size / 2, count)
    top, bottom = bounds(which, line, line + 1, count)
    left, right = bounds(which, first, first + size, count)
    mean = np.bincount(which, total, count) / area / TOP
    box = np.stack([top, left, bottom, right], 1)
    return Detections(
        np.stack([rows, cols], 1) / area[:, None], area.astype(int), box, peak / TOP, mean
    )


# %%
test_eq(bounds(np.array([0, 1, 0]), np.array([4, 2, 3]), np.array([5, 9, 6]), 2)[1], [6, 9])
corner = np.zeros((6, 8), np.uint16)
corner[1, 2:4], corner[2, 4] = (40000, 50000), 60000
two = detections(corner)
assert isinstance(two, Detections)
test_eq((len(two), two.area[0], two.box[0].tolist()), (1, 3, [1, 2, 3, 5]))
test_close(two.mean[0], 50000 / TOP)
test_eq(len(detections(np.zeros((4, 4), np.uint16))), 0)
list(detections(levels).rows())

# %% [markdown]
# ## What is written
#
# For every frame a mask of 0 and 255 and, for the eye, an overlay: the frame with a box around each detection, the number it has in the table, and its highest probability. The boxes stand a little off, so that the target is seen. Small frames are enlarged by a whole factor; of a very large frame the overlay is a smaller picture. Probabilities are kept on demand, as 16-bit images of the levels.

# %%
#| export
COLOUR = "#E69F00"  # of Okabe and Ito's palette, and told from grey by everyone
Box = tuple[float, float, float, float]  # left, top, right, bottom


def apart(one: Box, other: Box) -> bool:
    "Whether two boxes have nothing in common."
    return one[0] > other[2] or other[0] > one[2] or one[1] > other[3] or other[1] > one[3]


def write_beside(
    draw: ImageDraw.ImageDraw,
    size: tuple[int, int],  # width and height of the picture
    boxes: Sequence[Box],
    texts: Sequence[str],
) -> None:
    "Write a text beside each box: above, below, right or left of it, where there is room."
    font, used = ImageFont.load_default(13), list(boxes)
    for (left, top, right, bottom), text in zip(boxes, texts, strict=True):
        wide, high = draw.textlength(text, font), 15
        corners = [
            (left, top - high - 1),
            (left, bottom + 1),
            (right + 3, top),
            (left - wide - 3, top),
        ]
        corners = [
            (min(max(x, 1), size[0] - wide - 1), min(max(y, 0), size[1] - high)) for x, y in corners
        ]
        places = [(x, y, x + wide, y + high) for x, y in corners]
        free = [place for place in places if all(apart(place, box) for box in used)]
        place = (free or places)[0]
        used.append(place)
        draw.text(place[:2], text, COLOUR, font, stroke_width=1, stroke_fill="black")


# %% [markdown]
# The texts keep clear of each other and of other boxes as far as they can.

# %%
#| export
def overlay(
    pixels: np.ndarray,  # [H,W] or [H,W,3] uint8
    found: Detections,
    small: int = 1024,  # longest side up to which frames are enlarged
    large: int = 4096,  # longest side of the picture
) -> Image.Image:
    "A frame with its detections marked."
    side = max(pixels.shape[:2])
    scale = float(max(1, small // side)) if side <= large else large / side
    size = [max(1, round(n * scale)) for n in pixels.shape[1::-1]]
    how = Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.BOX
    picture = Image.fromarray(pixels).resize((size[0], size[1]), how).convert("RGB")
    draw = ImageDraw.Draw(picture)
    wide, high = picture.width - 1, picture.height - 1  # at an edge the box stays in the picture
    boxes = [
        (max(left - 5, 0), max(top - 5, 0), min(right + 4, wide), min(bottom + 4, high))
        for top, left, bottom, right in found.box * scale
    ]
    for box in boxes:
        draw.rectangle(box, outline=COLOUR)
    if len(found) <= 200:  # more would hide the frame
        texts = [f"#{i} {peak:.2f}" for i, peak in enumerate(found.peak)]
        write_beside(draw, picture.size, boxes, texts)
    return picture


# %%
assert apart((0, 0, 4, 4), (5, 0, 9, 4)) and not apart((0, 0, 4, 4), (4, 4, 9, 9))
blank = Image.new("RGB", (90, 40))
write_beside(ImageDraw.Draw(blank), blank.size, [(20, 20, 30, 30)] * 2, ["above", "below"])
overlay(image, detections(levels))


# %% [markdown]
# ### Names
#
# A frame's files have the name of its file, with the number of the frame where there are several. Two folders may hold files of one name; then the folder's name stands before it. Whatever is still taken gets a number. Capitals are not told apart, because not every disk does. `frames.csv` says which frame has which name.

# %%
#| export
class Names:
    "Gives every frame a name of its own."

    def __init__(self, files: Iterable[Path]) -> None:
        self.stems = Counter(file.stem.casefold() for file in files)
        self.taken: set[str] = set()

    def of(self, frame: Frame) -> str:
        "The name for a frame's files, without suffix."
        stem = frame.file.stem
        if self.stems[stem.casefold()] > 1:
            stem = f"{frame.file.absolute().parent.name}_{stem}"
        base = stem[:60] + ("" if frame.alone else f"_{frame.number:05d}")
        tries = itertools.chain([base], (f"{base}_{i}" for i in itertools.count(2)))
        name = next(name for name in tries if name.casefold() not in self.taken)
        self.taken.add(name.casefold())
        return name


# %%
files = [here / "one" / "0.png", here / "two" / "0.png", here / "stack.tif"]
names = Names(files)
[names.of(frame) for file in files for frame in frames_of(file)][:4]

# %% [markdown]
# ### Tables
#
# `detections.csv` and `detections.jsonl` hold the same, one line per detection, for a spreadsheet and for programs. Rows and columns count from 0 at the centre of the top-left pixel. A picture is written under another name and renamed, so it is there whole or not at all; then the lines of its frame are written and flushed. Who stops a prediction finds whole frames.

# %%
#| export
PICTURES = ("masks", "overlays", "probabilities")
TABLES = ("detections.csv", "detections.jsonl", "frames.csv")
COLUMNS = [
    *("file", "frame", "name", "object", "row", "col", "top", "left", "bottom", "right"),
    *("area", "peak", "mean"),
]
FRAME_COLUMNS = ["file", "frame", "name", "height", "width", "tiles", "detections"]


def save_picture(
    picture: Image.Image,
    path: Path,  # of a PNG file
) -> None:
    "Write a picture so that it is there whole or not at all; UserError if that cannot be done."
    temporary = path.with_name(f".{path.name}.tmp")
    with cannot_be_written(path):
        try:
            picture.save(temporary, "PNG", compress_level=3)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def flat_row(
    row: dict[str, Any],  # as for a line of JSON
) -> list[Any]:
    "A detection as a row of the CSV file."
    parts = {**row, **dict(zip(("row", "col"), row["centroid"], strict=True))}
    parts |= dict(zip(("top", "left", "bottom", "right"), row["box"], strict=True))
    return [parts[name] for name in COLUMNS]


# %% [markdown]
# The writer of a folder. Not every name of a file is text; what is none is written as its bytes.

# %%
#| export
def open_text(path: Path) -> TextIO:
    "Begin a text file."
    return open(path, "w", encoding="utf-8", errors="backslashreplace", newline="")


@dataclass(frozen=True)
class Writer:
    "Writes the results of frames into a folder."

    folder: Path
    save: Sequence[str]  # kinds of pictures
    names: Names
    tables: Sequence[TextIO]  # detections.csv, detections.jsonl, frames.csv
    threshold: float = 0.5  # of a detection's pixels

    def write_lines(self, rows: Iterable[dict[str, Any]], frame: list[Any]) -> None:
        "The lines of a frame's detections, and the frame's own."
        detections, objects, frames = self.tables
        table = csv.writer(detections)
        for row in rows:
            table.writerow(flat_row(row))
            objects.write(json.dumps(row) + "\n")
        csv.writer(frames).writerow(frame)
        for file in self.tables:
            file.flush()


@contextlib.contextmanager
def writing(
    folder: Path,  # with the folders of the pictures
    save: Sequence[str],  # kinds of pictures
    files: Iterable[Path],  # all that will be predicted, for their names
    threshold: float = 0.5,
) -> Iterator[Writer]:
    "Begin the tables of a prediction."
    with contextlib.ExitStack() as held:
        with cannot_be_written(folder):
            tables = [held.enter_context(open_text(folder / name)) for name in TABLES]
            csv.writer(tables[0]).writerow(COLUMNS)
            csv.writer(tables[2]).writerow(FRAME_COLUMNS)
        yield Writer(folder, save, Names(files), tables, threshold)


# %% [markdown]
# And a frame of it:

# %%
#| export
def write_frame(
    writer: Writer,
    frame: Frame,
    levels: np.ndarray,  # [H,W] uint16
    tiles: int,  # that it was cut into
) -> int:  # how many detections
    "Write all that is known of a frame: pictures, then lines."
    name, found = writer.names.of(frame), detections(levels, writer.threshold)
    least = level_of(writer.threshold)
    make: dict[str, Callable[[], Image.Image]] = {
        "masks": lambda: Image.fromarray((levels >= least).astype(np.uint8) * np.uint8(255)),
        "overlays": lambda: overlay(frame.pixels, found),
        "probabilities": lambda: Image.fromarray(levels),
    }
    for kind in writer.save:
        save_picture(make[kind](), writer.folder / kind / f"{name}.png")
    head = {"file": str(frame.file), "frame": frame.number, "name": name}
    counts = [*frame.pixels.shape[:2], tiles, len(found)]
    with cannot_be_written(writer.folder):
        writer.write_lines((head | row for row in found.rows()), [*head.values(), *counts])
    return len(found)


# %%
(here / "masks").mkdir()
frame = Frame(here / "one" / "0.png", 0, True, image)
with writing(here, ["masks"], [frame.file]) as writer:
    assert isinstance(writer, Writer)
    count = write_frame(writer, frame, levels, 1)
lines = (here / "detections.jsonl").read_text().splitlines()
test_eq((len(lines), sorted(p.name for p in (here / "masks").iterdir())), (count, ["0.png"]))
test_eq(np.asarray(Image.open(here / "masks" / "0.png")) > 0, levels >= half)
open_text(here / "empty.txt").close()
save_picture(overlay(image, two), here / "marked.png")
test_eq(
    flat_row({"file": "a", "frame": 0, "name": "a", **next(two.rows())})[-3:-1],
    [3, round(60000 / TOP, 5)],
)
print((here / "detections.csv").read_text())

# %% [markdown]
# ### The folder
#
# Results go into `predictions/NAME`, named after the run or the file of weights, unless a folder is named. The same prediction again writes over its own results. Whatever else is there stays: the prediction of other inputs, or files of any other kind, are a reason to refuse. `summary.json` says how the results came about.

# %%
#| export
SUMMARY = "summary.json"
OURS = {*PICTURES, *TABLES, SUMMARY, ".lock"}


def kinds_to_save(
    save: str,  # some of PICTURES with commas, or none
) -> list[str]:
    "Which pictures are written."
    words = [word.strip() for word in save.split(",")]
    if words in (["none"], [""]):
        return []
    for word in words:
        if word not in PICTURES:
            hint = did_you_mean(word, list(PICTURES))
            known = f"some of {','.join(PICTURES)}, or none"
            raise UserError(f"save={shown(word)} is not known{hint}: write {known}")
    return [kind for kind in PICTURES if kind in words]


def output_folder(
    weights: Path,  # the file
    output_dir: str | Path = "",  # as written; empty: named after the weights
) -> Path:
    "Where results go."
    if output_dir:
        return Path(os.path.expanduser(output_dir))
    in_run = weights.stem in ("best", "last", "previous")
    return where().runs.with_name("predictions") / (
        weights.resolve().parent.name if in_run else weights.stem
    )


# %% [markdown]
# The folder is looked at before the work, and made at its beginning:

# %%
#| export
def check_folder(
    folder: Path,
    asked: dict[str, Any],  # which weights, which inputs
) -> None:
    "UserError if the folder holds anything but an earlier prediction of the same."
    if not os.path.lexists(folder):
        return
    with as_unreadable(str(folder)):
        names = {path.name for path in folder.iterdir()}
    strangers = sorted(names - OURS)
    before = Folder(folder).read_json(SUMMARY).get("asked") if names - {".lock"} else asked
    if strangers or before != asked:
        what = f"{shown(strangers[0])}, which is no result" if strangers else "another prediction"
        raise UserError(f"output_dir={str(folder)!r}: holds {what}; write another --output-dir")


def clear_folder(
    folder: Path,
    kinds: Sequence[str],  # of pictures that will be written
) -> None:
    "Make the folder of a prediction, without the pictures of an earlier one."
    with cannot_be_written(folder):
        for kind in PICTURES:
            for path in (*(folder / kind).glob("*.png"), *(folder / kind).glob(".*.tmp")):
                path.unlink()
            if kind in kinds:
                (folder / kind).mkdir(parents=True, exist_ok=True)
            elif (folder / kind).is_dir():
                (folder / kind).rmdir()


# %%
test_eq(kinds_to_save("overlays, masks"), ["masks", "overlays"])
with expect_fail(UserError, contains="did you mean masks?"):
    kinds_to_save("mask")
test_eq(output_folder(here / "run" / "best.pt").parts[-2:], ("predictions", "run"))
test_eq(output_folder(Path("mshnet.tar"), "out"), Path("out"))
with expect_fail(UserError, contains="which is no result"):
    check_folder(here / "one", {})
clear_folder(here, ["masks"])
test_eq(list((here / "masks").iterdir()), [])


# %% [markdown]
# ## All of it
#
# Frames of one size that fit into one piece are taken together; a larger one comes alone. A file that cannot be read is told, skipped and counted.

# %%
#| export
@dataclass
class Summary:
    "What a prediction did."

    folder: Path
    files: int = 0  # that were asked for
    frames: int = 0  # that were predicted
    detections: int = 0
    skipped: dict[str, str] = field(default_factory=dict)  # file: why
    seconds: float = 0.0

    @property
    def status(self) -> int:
        "Exit status: 1 if a file was skipped, wholly or in part."
        return 1 if self.skipped else 0

    def __str__(self) -> str:
        "One line."
        skipped = f", {len(self.skipped)} skipped" if self.skipped else ""
        return (
            f"{counted(self.frames, 'frame')} of {counted(self.files, 'file')}{skipped}: "
            f"{counted(self.detections, 'detection')} in {duration(self.seconds)}"
        )

    def skip(self, frame: Frame) -> None:
        "Count a file that could not be read, and say so."
        self.skipped[str(frame.file)] = frame.error
        if len(self.skipped) <= TOLD:
            more = f" (further ones are in {SUMMARY} only)" if len(self.skipped) == TOLD else ""
            warnings.warn(f"{frame.file}: {frame.error}; skipped{more}", stacklevel=2)


TOLD = 20  # skipped files that are named on the screen


# %%
#| export
def in_batches(
    frames: Iterable[Frame],
    tile: int,
    size: int,  # most frames of a batch
) -> Iterator[list[Frame]]:  # of one padded size; a frame of several tiles alone, errors together
    "Consecutive frames that can be predicted together."
    batch: list[Frame] = []
    before: tuple[Any, ...] = ()
    for frame in frames:
        tiling = Tiling.of(frame.pixels.shape, tile)
        large = (frame.file, frame.number) if len(tiling.places) > 1 else ()
        kind = (tiling.padded, frame.pixels.ndim, large)
        if batch and (kind != before or len(batch) == size):
            yield batch
            batch = []
        batch.append(frame)
        before = kind
    if batch:
        yield batch


def predict_batch(
    detector: Callable[..., Tensor],
    batch: Sequence[Frame],  # of `in_batches`
    tile: int,
    check: Callable[[], object] = lambda: None,  # called before each pass; may raise
) -> list[np.ndarray]:  # of each [H,W] uint16
    "Probabilities of target of frames, as levels."
    tilings = [Tiling.of(frame.pixels.shape, tile) for frame in batch]
    if len(tilings[0].places) > 1:
        return [predict_frame(detector, batch[0].pixels, tile, at_once(detector), check)]
    check()
    images = np.stack([pad(f.pixels, t) for f, t in zip(batch, tilings, strict=True)])
    found = zip(levels_of(detector, images), tilings, strict=True)
    return [levels[: tiling.shape[0], : tiling.shape[1]] for levels, tiling in found]


# %%
mixed = [*frames_of(here / "stack.tif"), *frames_of(here / "broken.png")]
batches = list(in_batches(mixed, 256, 3))
test_eq([len(b) for b in batches], [3, 1, 1])
test_eq(predict_batch(network, batches[0], 256)[2], predict_frame(network, mixed[2].pixels, 256))


# %% [markdown]
# The wish to stop is heard before each pass of the network, and the frame in progress leaves no trace.

# %%
#| export
def predict_into(
    writer: Writer,
    frames: Iterable[Frame],
    detector: Callable[..., Tensor],
    summary: Summary,
    tile: int = TILE,
    batch_size: int = 4,
) -> None:
    "Predict frames and write what is found, until all are done or somebody asks to stop."
    with Stop() as stop:

        def check() -> None:
            if stop.reason:
                raise Stopped(stop.reason, stop.number)

        for batch in in_batches(frames, tile, batch_size):
            if batch[0].error:
                for frame in batch:
                    summary.skip(frame)
                continue
            for frame, levels in zip(
                batch, predict_batch(detector, batch, tile, check), strict=True
            ):
                tiles = len(Tiling.of(levels.shape, tile).places)
                summary.detections += write_frame(writer, frame, levels, tiles)
                summary.frames += 1


# %% [markdown]
# How it was done is kept beside what was found:

# %%
#| export
def threshold_of(detector: Any) -> float:
    "The threshold that is kept with a detector's weights; 0.5 where none is."
    return float(getattr(detector, "threshold", 0.5))


def protocol(
    detector: Any,  # with a name and a why
    tile: int,
) -> dict[str, Any]:
    "How detections came about."
    return {
        "weights": detector.name,
        "size": "each frame at its own, padded by its mirror image to multiples of 16",
        "tile": tile,
        "threshold": threshold_of(detector),
        "objects": "8-connected, on the whole frame",
        "16 bits": "each frame stretched from its own minimum and maximum",
        "environment": environment(detector.why),
    }


# %% [markdown]
# What the summary in the folder says while the prediction goes on is that it is running; at the end, how it ended.

# %%
#| export
@contextlib.contextmanager
def recorded(
    summary: Summary,
    asked: dict[str, Any],
    how: dict[str, Any],  # the protocol
) -> Iterator[None]:
    "Say in the folder how a prediction stands: running, then finished, stopped or failed."
    began = time.monotonic()

    def tell(state: str) -> None:
        summary.seconds = round(time.monotonic() - began, 3)
        counts = {**vars(summary), "folder": summary.folder.name}
        content = {"state": state, "asked": asked, "protocol": how, **counts}
        write_json(summary.folder / SUMMARY, content)

    tell("running")
    state = "failed"
    try:
        yield
        state = "finished"
    except KeyboardInterrupt:
        state = "stopped"
        raise
    finally:
        tell(state)


# %% [markdown]
# What can be refused is refused before anything is written: settings, weights, inputs, the folder.

# %%
#| export
def predict_files(
    weights: str | Path,  # a file, or the folder of a run; empty: the pretrained weights
    inputs: str | Path | Sequence[str | Path],  # images, videos, folders, globs
    output_dir: str | Path = "",  # empty: predictions/, named after the weights
    device: str = "auto",
    precision: str = "auto",
    tile: int = TILE,  # longest side that is predicted in one piece
    save: str = "masks,overlays",  # pictures to write: some of PICTURES, or none
    batch_size: int = 4,  # frames of one size that are held together; no result depends on it
    num_workers: int = -1,  # 0: frames are read when they are needed; -1: by the device
) -> Summary:
    "Predict files, and write masks, tables and overlays."
    check_tile(tile)
    kinds, path = kinds_to_save(save), existing(weights)
    folder = output_folder(path, output_dir)
    named = [inputs] if isinstance(inputs, str | Path) else inputs
    found = find_files(named)  # a mistyped input is told first, whatever the folder holds
    asked = {"weights": str(path), "inputs": [os.path.normpath(text) for text in named]}
    check_folder(folder, asked)
    files = outside(found, folder)
    detector = open_weights(path, device, precision)
    summary, several = Summary(folder, len(files)), (*VIDEOS, ".tif", ".tiff")
    total = 0 if any(file.suffix.lower() in several for file in files) else len(files)
    workers = num_workers if num_workers >= 0 else int(at_once(detector) > 1)
    with alone(folder), warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="PIL")  # what is wrong with a file we say
        clear_folder(folder, kinds)
        with (
            recorded(summary, asked, protocol(detector, tile)),
            writing(folder, kinds, files, threshold_of(detector)) as writer,
        ):
            frames = bar(read_ahead(files, workers), total, "predict")
            predict_into(writer, frames, detector, summary, tile, batch_size)
    return summary


# %%
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    done = predict_files(
        here / "run", [here / "one", here / "two", here / "broken.png"], here / "out", "cpu"
    )
assert isinstance(done, Summary) and done.status == 1
test_eq((done.frames, len(done.skipped), len(said)), (4, 1, 1))
print(done)
sorted(p.relative_to(here / "out").as_posix() for p in (here / "out").rglob("*.*"))

# %%
#| hide
test_eq((protocol(network, 256)["tile"], threshold_of(network)), (256, 0.5))
with recorded(done, {}, {}), writing(done.folder, [], []) as writer:
    predict_into(writer, mixed[:2], stands_out, done)
test_eq(done.frames, 6)

# %%
Image.open(here / "out" / "overlays" / "two_0.png")


# %% [markdown]
# ## One picture, one line
#
# `detect` is for a look from Python: a picture in, a list of detections out. Nothing is written.

# %%
#| export
def detect(
    image: Any,  # a file's name, an array or tensor [H,W] or [H,W,3], or a picture of Pillow
    weights: str | Path = PRETRAINED,  # or a file, or the folder of a run
    threshold: float | None = None,  # of the probability; None: the one kept with the weights
    device: str = "auto",
) -> list[dict[str, Any]]:  # of each: centroid [row, col], box, area, peak and mean probability
    """Find small targets in one image of any size, in 8 or 16 bits.

    The box is top, left, bottom, right, the last two one past the last pixel. Raises UserError for
    what is no image, and for a threshold outside 0 to 1.
    """
    return list(found_in(pixels_in(image), weights, threshold, device)[0].rows())


def found_in(
    pixels: np.ndarray,  # [H,W] or [H,W,3] uint8
    weights: str | Path,
    threshold: float | None,
    device: str,
) -> tuple[Detections, float]:
    "The detections in one image, and the threshold they are above."
    if threshold is not None and not 0 <= threshold <= 1:
        raise UserError(f"threshold={threshold}: a probability; write a number from 0 to 1")
    file = existing(weights)
    detector = last_opened(file, file.stat().st_mtime_ns, device)
    least = threshold_of(detector) if threshold is None else threshold
    return detections(predict_frame(detector, pixels), least), least


@functools.lru_cache(maxsize=1)
def last_opened(
    file: Path,
    changed: int,  # when, in nanoseconds: a file that is written anew is read anew
    device: str,
) -> Detector | OnnxDetector:
    "The detector of a file of weights, kept for the next image."
    return open_weights(file, device)


def pixels_in(image: Any) -> np.ndarray:  # [H,W] or [H,W,3] uint8
    "The pixels of an image file, or of an image in memory as if it were read from a file."
    if isinstance(image, str | Path):
        frame = next(frames_of(files_of(str(image))[0]))
        if frame.error:
            raise UserError(f"{image}: {frame.error}")
        return frame.pixels
    try:
        picture = image if isinstance(image, Image.Image) else Image.fromarray(np.asarray(image))
    except (TypeError, ValueError):
        shape, kind = getattr(image, "shape", ""), getattr(image, "dtype", type(image).__name__)
        raise UserError(
            f"detect: {kind} {shape} is no image; give a file's name, or uint8 or uint16 [H,W] or "
            "uint8 [H,W,3]"
        ) from None
    return pixels_of(picture)


# %%
found = detect(sights[0][0], here / "run", threshold=0.9, device="cpu")
test_eq(found, detect(here / "one" / "0.png", here / "run", threshold=0.9, device="cpu"))
test_eq(pixels_in(sights[0][0].astype(np.uint16) * 100).max(), 255)
with expect_fail(UserError, contains="is no image"):
    detect(torch.zeros(1, 3, 8, 8))
with expect_fail(UserError, contains="write a number from 0 to 1"):
    found_in(pixels_in(sights[0][0]), here / "run", 50, "cpu")
file = existing(here / "run")
assert last_opened(file, 0, "cpu") is last_opened(file, 0, "cpu")


# %% [markdown]
# And with the picture, for a notebook's first cell: the detections are marked, numbered and given their probability. Without an image it takes a synthetic scene. No real infrared picture with free terms was available.

# %%
#| export
def find_targets(
    image: Any = "",  # as for `detect`; empty: a synthetic scene
    weights: str | Path = PRETRAINED,
    threshold: float | None = None,
    device: str = "auto",
) -> Image.Image:
    "A picture with the targets that are found in it."
    if isinstance(image, str) and not image:
        image = scene(np.random.default_rng(7), 256)[0]
    pixels, name = pixels_in(image), shown(image) if isinstance(image, str) else "the image"
    found, least = found_in(pixels, weights, threshold, device)
    print(f"{counted(len(found), 'target')} in {name}, probability above {least:.2g}")
    return overlay(pixels, found)


# %%
find_targets(weights=here / "run", threshold=0.9, device="cpu")


# %% [markdown]
# ## What tiles and padding change
#
# The network's channel attention looks at the mean and the maximum of its whole input. So a target gets other weights in a tile than in the frame, and other ones beside padding: neither is one pass at the frame's own size. How much it matters can be measured on frames that do fit into one pass. The yardstick is the frame without the rows and columns that are too many for a multiple of 16; beside it stands the prediction as `mshnet predict` makes it, padded, and cut into tiles of the given size.

# %%
#| export
@dataclass(frozen=True)
class Difference:
    "What differs between two predictions of the same frames."

    frames: int
    pixels: int
    largest: float  # difference of a probability
    total: float  # sum of all pixels' differences
    before: int  # detections of the first
    lost: int  # of these, without a detection of the second nearer than 3 pixels
    gained: int  # detections of the second, without one of the first

    @classmethod
    def of(cls, one: np.ndarray, other: np.ndarray) -> "Difference":
        "Compare two maps of levels."
        apart = np.abs(one.astype(np.int32) - other) / TOP
        first, second = detections(one), detections(other)
        same = len(match_exact(first, second))
        counts = len(first), len(first) - same, len(second) - same
        return cls(1, one.size, float(apart.max()), float(apart.sum()), *counts)

    def __add__(self, other: "Difference") -> "Difference":
        "Of both together."
        sums = {name: getattr(self, name) + getattr(other, name) for name in vars(self)}
        return Difference(**sums | {"largest": max(self.largest, other.largest)})

    def __str__(self) -> str:
        "One line."
        return (
            f"{self.frames} frames: probabilities differ by {self.total / self.pixels:.2g} in the "
            f"mean and {self.largest:.2g} at most; of {self.before} detections {self.lost} lost, "
            f"{self.gained} gained"
        )


# %% [markdown]
# The measurement:

# %%
#| export
def against_one_pass(
    detector: Callable[..., Tensor],
    pixels: np.ndarray,  # [H,W] or [H,W,3] uint8, at least 16 by 16, that fits into one pass
    tile: int,  # longest side of a piece
) -> Difference:
    "What padding and tiles change in the prediction of a frame."
    height, width = (n // UNIT * UNIT for n in pixels.shape[:2])
    one = levels_of(detector, pixels[None, :height, :width])[0]
    return Difference.of(one, predict_frame(detector, pixels, tile)[:height, :width])


# %% [markdown]
# Four scenes of 150x150 pixels, once padded to 160 and once in four tiles as well. The filter judges by how uneven its input is, so it notices:

# %%
for tile in (160, 128):
    each = [against_one_pass(stands_out, image[:150, :150], tile) for image, _ in sights]
    print(f"tile {tile}:", sum(each[1:], each[0]))
same = against_one_pass(stands_out, sights[0][0], 160)
test_eq((same.largest, same.lost, same.gained), (0, 0, 0))
test_eq(Difference.of(corner, corner * 0).lost, 1)

# %% [markdown]
# Trained networks were measured ([folder](../results/predict-tiles)):
#
# | frames | weights | tile | mean difference of a probability | detections in one pass | lost | gained |
# |---|---|---|---|---|---|---|
# | 214 of NUAA-SIRST's test list | its run of 30 epochs | none: padding alone | 0.000014 | 287 | 3 | 2 |
# | the 182 of them larger than 256 | the same | 256 | 0.000092 | 246 | 5 | 54 |
# | 4 synthetic ones of 1500x1500 | the demo's | 1024 | 0.000035 | 61 | 0 | 1 |
# | the same | the same | 512 | 0.000041 | 61 | 0 | 0 |
#
# Single pixels, at the edge of an object or of one that is gained or lost, differ by nearly 1 in all of them. Padding matters little. Small tiles do matter: cut into pieces of 256 and less, frames gain a fifth more detections, so a tile is no smaller than the memory asks for. 1024 is the default; `--tile 2048` takes four times the memory.
#
# How long does a large frame take? One of 10,000x10,000 pixels with 668 synthetic targets, in 144 tiles, took 76 seconds on two otherwise idle cores and 1.6 GB of memory at most ([folder](../results/predict-large)).
