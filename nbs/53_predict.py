# %% [markdown]
# # predict
#
# > Find targets in images, folders and videos of any size: masks, tables, and pictures with the detections marked.

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
import io
import itertools
import json
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TextIO, cast

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from scipy.ndimage import label
from torch import Tensor, nn

from mshnet.augment import resize_square
from mshnet.core import UserError, counted, did_you_mean, shown
from mshnet.data import (
    SUFFIXES,
    one_channel,
    opened,
    outside_of_data,
    pixels_of,
    refuse_size,
    trouble,
    visible,
)
from mshnet.device import is_out_of_memory
from mshnet.evaluate import Detector, expect_bytes
from mshnet.export import OnnxDetector, open_detector
from mshnet.files import (
    cannot_be_written,
    digest,
    prefetch,
    replacing,
    write_atomic,
    write_json,
)
from mshnet.metrics import Objects, crop
from mshnet.places import where
from mshnet.run import Folder, Stop, Stopped, environment
from mshnet.scenes import scene
from mshnet.session import alone, bar, duration
from mshnet.weights import PRETRAINED, reinstall, weights_file

# %% [markdown]
# A `Detector` takes images in memory whose sides are multiples of 16. People have files: thousands of them, of any size, in 16 bits, in videos, and one of them is damaged. `predict_files`, behind `mshnet predict`, is for those. It reads, predicts, writes and forgets one frame after the other, and needs no more memory for a thousand frames than for one. `detect` and `find_targets` are for a single picture, and `predict` returns probabilities.
#
# We begin with one frame: what a detection is, and how a frame of any size is predicted. Then come files, results, and damage.
#
# Training takes minutes, so on this page a classical filter stands in for the network. It measures how far a pixel stands out from its neighbours, relative to how uneven the whole input is. Like the network's channel attention, it thus depends on its whole input.

# %%
from mshnet.analyse import top_hat_filter


def stands_out(images, batch_size=4):
    "A detector without weights: the top-hat filter, relative to the deviation in the whole input."
    grey = images.float().mean(1).numpy()
    found = np.stack([top_hat_filter(g, 9) for g in grey]).astype(np.float32)
    limit = found.mean((1, 2), keepdims=True) + 6 * found.std((1, 2), keepdims=True)
    return torch.sigmoid(torch.from_numpy((found - limit) / 4))[:, None]


sights = [scene(np.random.default_rng(seed), 160)[0] for seed in (1, 2, 3, 4)]
Image.fromarray(np.hstack(sights))


# %% [markdown]
# ## What is detected
#
# A detection is a set of 8-connected pixels whose probability is above the threshold. The threshold is the one stored with the weights, else 0.5, as in the scores. The table of detections holds their place, their box, their area in pixels, and the highest and mean probability of their pixels.

# %%
#| export
@dataclass(frozen=True)
class Detections(Objects):
    "The detections of a frame, in the order of their first pixel."

    box: np.ndarray  # [N,4] top, left, bottom, right; the last two are one past the last pixel
    peak: np.ndarray  # [N] highest probability
    mean: np.ndarray  # [N] mean probability
    pixels: tuple[np.ndarray, np.ndarray]  # rows and columns of all pixels of all detections

    @classmethod
    def from_rows(cls, rows: Sequence[dict[str, Any]]) -> "Detections":
        "Detections from their plain values; without pixels."
        names = ("centroid", "area", "box", "peak", "mean")
        columns = {name: np.array([row[name] for row in rows]) for name in names}
        return cls(**columns, pixels=(np.array([], int), np.array([], int)))

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


def detections(
    prob: np.ndarray,  # [H,W], 0..1, as from `predict_frame`
    threshold: float = 0.5,
    min_area: int = 1,  # pixels of the smallest object that is kept
) -> Detections:
    "The 8-connected objects of the pixels whose probability is above a threshold."
    small, row, col = crop(prob, threshold)  # most rows and columns are empty
    labels, _ = label(small > threshold, np.ones((3, 3), bool))
    if min_area > 1:
        labels[np.bincount(labels.ravel())[labels] < min_area] = 0
    y, x = np.nonzero(labels)
    by_object = np.argsort(labels[y, x], kind="stable")
    y, x = y[by_object], x[by_object]
    first = np.flatnonzero(np.diff(labels[y, x], prepend=0))  # pixel of each object
    area, values = np.diff(first, append=len(y)), small[y, x]
    y, x = row[y].astype(np.int32), col[x].astype(np.int32)
    low, high = ([how.reduceat(v, first) for v in (y, x)] for how in (np.minimum, np.maximum))
    centroid = [np.add.reduceat(v, first, dtype=float) / area for v in (y, x)]
    return Detections(
        centroid=np.stack(centroid, 1),
        area=area,
        box=np.stack([*low, *(v + 1 for v in high)], 1),
        peak=np.maximum.reduceat(values, first),
        mean=np.add.reduceat(values, first, dtype=float) / area,
        pixels=(y, x),
    )


# %% [markdown]
# Pixels that touch at a corner are one object, and the box ends one past its last pixel. `min_area` drops small objects:

# %%
corner = np.zeros((6, 8), np.float32)
corner[1, 2:4], corner[2, 4] = (0.6, 0.7), 0.8
found: Detections = detections(corner)
test_eq((len(found), found.area[0], found.box[0].tolist()), (1, 3, [1, 2, 3, 5]))
test_close(found.mean[0], 0.7)
test_eq(len(detections(corner, min_area=4)), 0)
image = sights[0]
prob = stands_out(torch.from_numpy(image).expand(1, 3, -1, -1))[0, 0].numpy()
list(detections(prob).rows())

# %% [markdown]
# An overlay shows the frame with a box around each detection, labelled with its number in the table and its highest probability. The boxes keep a little distance from the target. Small frames are upsampled by a whole factor, and very large ones are reduced. Above 50 detections we omit the labels, which would cover the frame.

# %%
#| export
_COLOUR = "#E69F00"  # of Okabe and Ito's palette; differs from grey for colour-blind eyes too
_MOST_LABELS = 50


def overlay(
    pixels: np.ndarray,  # [H,W] or [H,W,3] uint8
    found: Detections,
) -> Image.Image:  # longest side up to 4096
    "A frame with its detections marked."
    side = max(pixels.shape[:2])
    scale = float(max(1, 1024 // side)) if side <= 4096 else 4096 / side
    width, height = (max(1, round(n * scale)) for n in pixels.shape[1::-1])
    how = Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.BOX
    picture = Image.fromarray(pixels).resize((width, height), how).convert("RGB")
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(13)
    for i, (top, left, bottom, right) in enumerate(found.box * scale):
        top, left = max(top - 5, 0), max(left - 5, 0)  # at an edge the box stays in the picture
        bottom, right = min(bottom + 4, height - 1), min(right + 4, width - 1)
        draw.rectangle((left, top, right, bottom), outline=_COLOUR)
        if len(found) > _MOST_LABELS:
            continue
        text = f"#{i} {found.peak[i]:.2f}"
        room = (y for y in (top - 16, bottom + 1) if 0 <= y <= height - 16)  # above, or below
        x, y = max(1, min(left, width - draw.textlength(text, font) - 1)), next(room, 0)
        draw.text((x, y), text, _COLOUR, font, stroke_width=1, stroke_fill="black")
    return picture


# %%
overlay(image, detections(prob))

# %% [markdown]
# ## Any size
#
# The network takes sides that are multiples of 16. We predict a frame at its own size: we pad it at the right and below with its mirror image, and cut the padding off again. (Training scores frames resized to one square, which is different; see the protocol of a score.)
#
# If a side is longer than `tile` pixels, we cut the frame into tiles that overlap by at least an eighth. All tiles of a frame have one size, as small as their number allows. They begin at multiples of 16, as the network's poolings do.

# %%
#| export
_UNIT = 16  # the network's sides are multiples of this
TILE = 1024  # longest side that is predicted in one piece
_MANY = 16  # tiles of a frame whose progress is shown


def _cut(length: int, tile: int) -> tuple[int, list[int]]:
    "Side of the tiles along one side of a frame, and their starts. At most two overlap."
    whole, most = -(-length // _UNIT), tile // _UNIT
    if whole <= most:
        return whole * _UNIT, [0]
    overlap = max(2, most // 8)
    count = -(-(whole - overlap) // (most - overlap))
    side = -(-(whole + (count - 1) * overlap) // count)
    starts = [i * (whole - side) // (count - 1) * _UNIT for i in range(count)]
    return side * _UNIT, starts


@dataclass(frozen=True)
class Options:
    "How a frame becomes detections; UserError for an impossible value."

    tile: int = TILE  # longest side that is predicted in one piece
    base_size: int = 0  # side of the square that frames are resized to; 0: they keep their size
    threshold: float | None = None  # of the probability; None: the one stored with the weights
    min_area: int = 1  # pixels of the smallest detection

    def __post_init__(self) -> None:
        "Check the values."
        if self.tile % _UNIT or not 128 <= self.tile <= 8192:
            self.refuse("tile", "a multiple of 16, at least 128, at most 8192")
        if self.base_size % _UNIT or not 0 <= self.base_size <= 4096:
            self.refuse("base_size", "a multiple of 16, at most 4096, or 0 for each frame's own")
        if self.threshold is not None and not 0 <= self.threshold <= 1:
            self.refuse("threshold", "a number from 0 to 1")
        if self.min_area < 1:
            self.refuse("min_area", "a number of pixels, at least 1")

    def refuse(self, name: str, remedy: str) -> None:
        "Raise the UserError."
        raise UserError(f"{name}={getattr(self, name)} is not possible: write {remedy}")

    def changed(self) -> dict[str, Any]:
        "The values that differ from the defaults."
        return {
            name: value for name, value in vars(self).items() if value != getattr(Options, name)
        }


# %% [markdown]
# A side of 1,000 pixels fits into one piece, with 8 pixels of padding. One of 10,000 becomes 12 tiles:

# %%
test_eq(_cut(1000, 1024), (1008, [0]))
_cut(10_000, 1024)


# %% [markdown]
# ### No seam
#
# Where two tiles overlap, one fades out as the other fades in. The weight of one rises smoothly from 0 to 1 along the overlap, and the other's is the complement. The weights of a pixel add up to 1, and an object on a seam is neither cut nor counted twice.

# %%
#| export
def _fades(side: int, starts: Sequence[int]) -> list[np.ndarray]:  # each [side] float32, 0..1
    "Weights of the tiles along one side, which add up to 1 in every pixel."
    found = [np.ones(side, np.float32) for _ in starts]
    for (start, one), (next_start, other) in itertools.pairwise(zip(starts, found, strict=True)):
        overlap = start + side - next_start
        place = (np.arange(overlap) + 0.5) / overlap
        rise = place**2 * (3 - 2 * place)
        one[-overlap:] = 1 - rise
        other[:overlap] = rise
    return found


class Tiling:
    "How a frame is padded and cut: where its tiles lie, and their weights."

    def __init__(self, shape: Sequence[int], tile: int = TILE) -> None:
        self.shape = shape[0], shape[1]
        cuts = [_cut(length, tile) for length in self.shape]
        height, width = (starts[-1] + side for side, starts in cuts)
        self.padded = height, width
        rows, cols = ([slice(x, x + side) for x in starts] for side, starts in cuts)
        self.places = list(itertools.product(rows, cols))
        self.fades = list(itertools.product(*(_fades(*cut) for cut in cuts)))

    def pad(self, pixels: np.ndarray) -> np.ndarray:  # [H,W] or [H,W,3]
        "The frame with its mirror image at the right and below."
        more = [(0, new - old) for new, old in zip(self.padded, self.shape, strict=True)]
        return np.pad(pixels, [*more, (0, 0)][: pixels.ndim], mode="reflect")


# %% [markdown]
# A frame of 200x200 pixels has four tiles of at most 128. These are their weights, from 0 (black) to 1:

# %%
tiling = Tiling((200, 200), 128)
weights = [np.outer(down, across) for down, across in tiling.fades]
total = np.zeros(tiling.padded)
for place, weight in zip(tiling.places, weights, strict=True):
    total[place] += weight
test_close(total, 1, eps=1e-6)
test_eq(tiling.pad(np.zeros((200, 200, 3))).shape, (208, 208, 3))
Image.fromarray((255 * np.hstack(weights)).astype(np.uint8))


# %% [markdown]
# ### The same result for any batch size
#
# torch may compute four images by a different program than one, and then the last bits differ. On a CPU batches gain little (4% in scoring), so we compute each piece alone. Other devices gain by batches. There each batch has four pieces, the last one filled up with copies, and one program computes all of them. Tiles are added in a fixed order.
#
# On one machine a frame therefore has the same probabilities, bit for bit, whatever is predicted with it. (We tested this on a CPU. On a TPU every size of frame is a program of its own, so frames of one size are best there.)

# %%
#| export
def _images_per_pass(detector: Callable[..., Tensor]) -> int:
    "How many pieces a detector computes in each pass."
    device = getattr(detector, "device", None)
    return 1 if device is None or device.kind == "cpu" else 4


def _probabilities(
    detector: Callable[..., Tensor],  # a Detector, or a function like one
    images: np.ndarray,  # [B,H,W] or [B,H,W,3] uint8, sides multiples of 16; B up to one pass
) -> np.ndarray:  # [B,H,W] float32, 0..1
    "Probabilities of target, by one pass; UserError if they are NaN, or out of memory."
    count, size = len(images), _images_per_pass(detector)
    rows = torch.from_numpy(np.concatenate([images, images[:1].repeat(size - count, 0)]))
    rows = rows.permute(0, 3, 1, 2) if rows.ndim == 4 else rows[:, None].expand(-1, 3, -1, -1)
    try:
        prob = detector(rows, size)[:count, 0].numpy()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        pixels = "x".join(map(str, images.shape[1:3]))
        raise UserError(f"no memory for a piece of {pixels}: write a smaller --tile") from None
    if not np.isfinite(prob).all():
        raise UserError("the prediction is NaN or infinite: the weights are damaged, use others")
    return prob


# %% [markdown]
# One loop over the tiles pads, cuts, predicts and blends. A small frame is a single tile, whose weight is 1 everywhere. With `base_size`, frames are resized to one square as in `mshnet test`, predicted, and their probabilities resized back; targets then have the sizes that the network was scored at.

# %%
#| export
def predict_frames(
    detector: Callable[..., Tensor],
    frames: Sequence[np.ndarray],  # each [H,W] or [H,W,3] uint8; their tiles have one size
    tile: int = TILE,  # longest side that is predicted in one piece
    base_size: int = 0,  # side of the square that frames are resized to; 0: they keep their size
    check: Callable[[], object] = lambda: None,  # called before each pass; may raise
) -> list[np.ndarray]:  # of each [H,W] float32, 0..1
    "Probabilities of target of frames of any size."
    if base_size:
        squares = [resize_square(pixels, np.zeros((1, 1)), base_size)[0] for pixels in frames]
        found = predict_frames(detector, squares, base_size, check=check)
        return [
            np.asarray(Image.fromarray(prob).resize(pixels.shape[1::-1], Image.Resampling.BILINEAR))
            for prob, pixels in zip(found, frames, strict=True)
        ]
    tilings = [Tiling(pixels.shape, tile) for pixels in frames]
    padded = [tiling.pad(pixels) for tiling, pixels in zip(tilings, frames, strict=True)]
    maps = [np.zeros(tiling.padded, np.float32) for tiling in tilings]
    tiles = [
        (i, place, fade)
        for i, tiling in enumerate(tilings)
        for place, fade in zip(tiling.places, tiling.fades, strict=True)
    ]
    size = _images_per_pass(detector)
    starts: Iterable[int] = range(0, len(tiles), size)
    if len(tiles) >= _MANY:
        starts = bar(starts, -(-len(tiles) // size), "tiles of a frame", "passes")
    for start in starts:
        check()
        some = tiles[start : start + size]
        images = np.stack([padded[i][place] for i, place, _ in some])
        for (i, place, fade), prob in zip(some, _probabilities(detector, images), strict=True):
            maps[i][place] += np.outer(*fade) * prob
    return [prob[: t.shape[0], : t.shape[1]] for prob, t in zip(maps, tilings, strict=True)]


def predict_frame(
    detector: Callable[..., Tensor],
    pixels: np.ndarray,  # [H,W] or [H,W,3] uint8, of any size
    tile: int = TILE,
    base_size: int = 0,
) -> np.ndarray:  # [H,W] float32, 0..1
    "Probabilities of target of one frame."
    return predict_frames(detector, [pixels], tile, base_size)[0]


# %%
image = sights[0][:150, :141]
prob = predict_frame(stands_out, image)
one_pass = stands_out(torch.from_numpy(Tiling(image.shape).pad(image)).expand(1, 3, -1, -1))
test_eq(prob, one_pass[0, 0, :150, :141].numpy())
test_eq(predict_frames(stands_out, [sights[1], image])[1], prob)
test_eq(predict_frame(stands_out, image, base_size=128).shape, image.shape)
Image.fromarray((255 * prob).astype(np.uint8))

# %% [markdown]
# ### What tiles and padding change
#
# The network's channel attention takes the mean and the maximum of its whole input. A target thus gets different weights in a tile than in the frame, and different ones beside padding. The filter on this page also depends on its whole input, and shows the effect. In our second scene the upper two of four tiles are more even than the frame, and a detection there grows. The lower two are less even, and the three large detections there shrink:

# %%
whole, tiled = (predict_frame(stands_out, sights[1][:150, :141], tile) for tile in (160, 128))
print(f"mean difference of a probability: {np.abs(tiled - whole).mean():.2g}")
print(f"pixels above 0.5: {(whole > 0.5).sum()} in one pass, {(tiled > 0.5).sum()} in tiles")
for way, seen in (("in one pass", detections(whole)), ("in tiles", detections(tiled))):
    rows = [round(row) for row, _ in seen.centroid]
    large = sorted((row, int(area)) for row, area in zip(rows, seen.area, strict=True) if area > 9)
    print(f"row and area of the large detections {way}: {large}")

# %% [markdown]
# We measured trained networks on frames that fit into one pass ([script and results](../results/predict-tiles)):
#
# | frames | weights | tile | mean difference of a probability | detections in one pass | lost | gained |
# |---|---|---|---|---|---|---|
# | 214 of NUAA-SIRST's test list | its run of 30 epochs | none: padding alone | 0.000014 | 287 | 3 | 2 |
# | the 182 of them larger than 256 | the same | 256 | 0.000092 | 246 | 5 | 54 |
# | 4 synthetic ones of 1500x1500 | the demo's | 1024 | 0.000035 | 61 | 0 | 1 |
# | the same | the same | 512 | 0.000041 | 61 | 0 | 0 |
#
# In all of them single pixels differ by nearly 1, at the edges of objects. Padding matters little. Small tiles do matter: in pieces of 256 and less, frames gain a fifth more detections. A tile should be as large as the memory allows. The default is 1024; `--tile 2048` takes four times the memory.
#
# A frame of 10,000x10,000 pixels with 668 synthetic targets, in 144 tiles, took 76 seconds on two otherwise idle cores and 1.6 GB of memory at most ([folder](../results/predict-large)).

# %% [markdown]
# ## Which weights
#
# The library comes with one file of trained weights, `pretrained`, for a first look before any training. Use `--weight-path` for your own weights: a checkpoint, the folder of a run (its best weights), or an ONNX file of `mshnet export`.

# %%
#| export
_WHERE_FROM = (
    "leave it out to use the weights that come with mshnet, or name RUN/best.pt of a run of "
    "`mshnet train`, or a published file (README of github.com/Lliu666/MSHNet, Weights)"
)


def _existing(weights: str | os.PathLike[str]) -> Path:
    "The file of weights; UserError if there is none."
    unnamed = isinstance(weights, str) and not weights
    path = weights_file(PRETRAINED if unnamed else weights)
    if os.path.isfile(path):  # unlike Path's: False for an impossible name
        return path
    if how := reinstall(path):
        raise UserError(f"{path}: there is no such file{how}")
    what = "a folder without best.pt" if os.path.isdir(path) else "there is no such file"
    raise UserError(f"weight_path={shown(os.fspath(weights))}: {what}; {_WHERE_FROM}")


def open_weights(
    weights: str | os.PathLike[str],  # a run, its folder, a file; empty: the pretrained weights
    device: str = "auto",
    precision: str = "auto",
) -> Detector | OnnxDetector:
    "The detector of a file of weights or of an exported ONNX file; UserError for other files."
    return open_detector(_existing(weights), device, precision)


# %% [markdown]
# An untrained network is enough for an example. A frame has the same probabilities alone and with others:

# %%
from mshnet.model import MSHNet

place = tempfile.TemporaryDirectory()
here = Path(place.name)
(here / "run").mkdir()
torch.save({"state_dict": MSHNet().state_dict()}, here / "run" / "best.pt")
network = open_weights(here / "run", "cpu")
together = predict_frames(network, [image, sights[1]], 128)
test_eq(together[0], predict_frame(network, image, 128))
with expect_fail(UserError, contains="there is no such file"):
    open_weights("runs/none/best.pt")
print(network.name, "on", network.why.split(":")[0])

# %% [markdown]
# ## Which files
#
# An input is a file, a folder or a glob. A folder means the images and videos in it; `recursive`, or `**` in a glob, takes the folders below too. (That is no default because the folder of a data set has masks below.) Links are followed, but no folder is read twice, so a link to a folder above it does no harm. What an earlier prediction has written is never an input.
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


def _inside(folder: Path) -> list[Path]:
    "What a folder holds, except hidden files; UserError if it cannot be listed."
    try:
        return visible(folder)
    except OSError as error:
        raise UserError(f"{shown(str(folder))}: cannot be read ({error.strerror})") from None


def _folders(top: Path, seen: set[str]) -> Iterator[Path]:
    "A folder and those below it, each once, except predictions and those that cannot be listed."
    real = os.path.realpath(top)
    if real in seen or _is_prediction(top) or not os.access(top, os.R_OK | os.X_OK):
        return
    seen.add(real)
    yield top
    for path in _inside(top):
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
    if os.path.lexists(path):
        found = [path]
    elif glob.has_magic(text):
        found = [Path(name) for name in _expand(str(path))]
    else:
        raise UserError(f"{shown(text)}: there is no such file or folder")
    folders = [path for path in found if os.path.isdir(path) and not _is_prediction(path)]
    files = [path for path in found if not os.path.isdir(path)]
    if recursive:
        folders = [below for folder in folders for below in _folders(folder, seen)]
    elif any(map(_can_be_read, files)):
        folders = []  # of a glob
    within = (path for folder in folders for path in _inside(folder) if not os.path.isdir(path))
    return [*files, *within]


def find_files(
    inputs: str | Path | Iterable[str | Path],
    recursive: bool = False,  # also the folders below
) -> Inputs:
    "The images and videos of all inputs, each once; UserError if there are none."
    named = [str(text) for text in ([inputs] if isinstance(inputs, str | Path) else inputs)]
    files: dict[str, Path] = {}
    others: dict[str, str] = {}
    for path in (path for text in named for path in _files_of(text, recursive)):
        real = Path(os.path.realpath(path))
        if not os.path.exists(path):
            others[str(path)] = "behind a broken link"
        elif not _can_be_read(path):
            others[str(real)] = path.suffix.lower() or "without a suffix"
        elif _is_prediction(real.parent) or _is_prediction(real.parent.parent):
            others[str(real)] = "of earlier predictions"
        else:
            files.setdefault(str(real), path)
    if not named:
        raise UserError("no input: name images, videos, folders or globs")
    if not files:
        raise UserError(_nothing_in(named, Counter(others.values())))
    return Inputs(named, list(files.values()), Counter(others.values()))


def _nothing_in(named: Sequence[str], others: Counter[str]) -> str:
    "The error for inputs without an image and a video."
    what = shown(named[0]) if len(named) == 1 else f"{len(named)} inputs"
    top = Path(os.path.expanduser(named[0]))
    if others["of earlier predictions"] or _is_prediction(top):
        return f"{what}: no input but the results of an earlier prediction; name other images"
    below = [file.parent for file in sorted(top.glob("*/*")) if _can_be_read(file)]
    hint = f"; did you mean {below[0]}? (--recursive: all folders below)" if below else ""
    return f"{what}: no image and no video ({' '.join((*SUFFIXES, *VIDEOS))}){hint}"


# %%
for night in ("one", "two"):
    (here / night).mkdir()
    for number, pixels in enumerate(sights[:2]):
        Image.fromarray(pixels).save(here / night / f"{number}.png")
(here / "one" / "notes.txt").touch()
found_files: Inputs = find_files([here / "one", f"{here}/**/0.png"])
test_eq((len(found_files.files), found_files.others), (3, {".txt": 1}))
test_eq(len(find_files(here, recursive=True).files), 4)
with expect_fail(UserError, contains=f"did you mean {here / 'one'}?"):
    find_files(here)
with expect_fail(UserError, contains="there is no such file"):
    find_files("no-such-folder")

# %% [markdown]
# ### Which frames
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
        count = 1
        if image.format in ("TIFF", "GIF", "WEBP"):
            count = getattr(image, "n_frames", 1)
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
        stream, count = video.streams.video[0], 0
        seconds = (video.duration or 0) / 1_000_000
        about = seconds * float(stream.average_rate or 0)
        for picture in video.decode(stream):
            pixels = one_channel(picture.to_ndarray(format="rgb24"))
            yield pixels, stream.frames or round(about)
            count += 1
        if count < (stream.frames or int(0.9 * about) - 1):
            raise OSError("it breaks off")


def frames_of(file: Path) -> Iterator[Frame]:  # the last one may have an error
    "The frames of a file, one after the other."
    video = file.suffix.lower() in VIDEOS
    number, single = 0, not video
    try:
        for pixels, count in _pictures(file) if video else _pages(file):
            single = count == 1 and not video
            yield Frame(file, number, single, pixels, count=count)
            number += 1
        if not number:
            raise OSError("no frame")
    except Exception as error:  # decoders raise many kinds for damaged bytes
        what = trouble(error, "video" if video else "image", _MOST)
        reason = str(error) if isinstance(error, UserError) else what
        if number:
            reason = f"{reason}, from frame {number}"
        yield Frame(file, number, single, np.zeros((0, 0), np.uint8), reason)


def _read_ahead(
    files: Iterable[Path],
    workers: int,
    wanted: Callable[[Frame], bool] = lambda frame: True,
) -> Iterator[Frame]:
    "The wanted frames of all files, in order; a worker reads a few ahead."
    frames = filter(wanted, itertools.chain.from_iterable(map(frames_of, files)))
    read = prefetch(lambda _: next(frames, None), itertools.count(), min(workers, 1))
    yield from itertools.takewhile(lambda frame: frame is not None, read)


# %%
stack = [Image.fromarray(pixels.astype(np.uint16) * 100) for pixels in sights]
stack[0].save(here / "stack.tif", save_all=True, append_images=stack[1:])
(here / "broken.png").write_bytes((here / "one" / "0.png").read_bytes()[:999])
read = list(_read_ahead([here / "broken.png", here / "stack.tif"], 1))
test_eq([f.number for f in read], [0, 0, 1, 2, 3])
test_eq((read[1].pixels.dtype, read[1].pixels.max()), (np.uint8, 255))
print(next(frames_of(here / "broken.png")).error)


# %% [markdown]
# ## One picture, one line
#
# `detect` takes a picture, returns a list of detections, and writes nothing. `find_targets` returns the picture with the detections marked, for the first cell of a notebook. Without an image it takes a synthetic scene, because no real infrared picture with free terms was available. The detector stays in memory for the next call.

# %%
#| export
@functools.lru_cache(maxsize=1)
def _last_opened(file: Path, changed: int, device: str) -> Detector | OnnxDetector:
    "The detector of a file of weights, kept for the next image until the file changes."
    return open_weights(file, device)


def _pixels_in(image: Any) -> np.ndarray:  # [H,W] or [H,W,3] uint8
    "The pixels of an image file, or of an image in memory as if it were read from a file."
    if isinstance(image, str | Path):
        frame = next(frames_of(find_files(image).files[0]))
        if frame.error:
            raise UserError(f"{image}: {frame.error}")
        return frame.pixels
    try:
        picture = image if isinstance(image, Image.Image) else Image.fromarray(np.asarray(image))
    except (TypeError, ValueError, IndexError):
        shape, kind = getattr(image, "shape", ""), getattr(image, "dtype", type(image).__name__)
        raise UserError(
            f"{kind} {shape} is no image; give a file's name, or uint8 or uint16 [H,W] or "
            "uint8 [H,W,3]"
        ) from None
    return pixels_of(picture)


def _detect_in(
    pixels: np.ndarray, weights: str | os.PathLike[str], threshold: float | None, device: str
) -> tuple[Detections, float]:
    "The detections in one image, and the threshold they are above."
    Options(threshold=threshold)
    file = _existing(weights)
    detector = _last_opened(file, file.stat().st_mtime_ns, device)
    least = detector.threshold if threshold is None else threshold
    return detections(predict_frame(detector, pixels), least), least


# %%
#| export
def detect(
    image: Any,  # a file's name, an array or tensor [H,W] or [H,W,3], or a picture of Pillow
    weights: str | os.PathLike[str] = PRETRAINED,  # or a run, its folder, a file
    threshold: float | None = None,  # of the probability; None: the one stored with the weights
    device: str = "auto",
) -> list[dict[str, Any]]:  # of each: centroid [row, col], box, area, peak and mean probability
    """Find small targets in one image of any size, in 8 or 16 bits.

    The box is top, left, bottom, right; the last two are one past the last pixel. Raises UserError
    for a value that is not an image, and for a threshold outside 0 to 1.
    """
    return list(_detect_in(_pixels_in(image), weights, threshold, device)[0].rows())


def find_targets(
    image: Any = "",  # as for `detect`; empty: a synthetic scene
    weights: str | os.PathLike[str] = PRETRAINED,
    threshold: float | None = None,
    device: str = "auto",
) -> Image.Image:
    "A picture with the detected targets marked."
    if isinstance(image, str) and not image:
        image = scene(np.random.default_rng(7), 256)[0]
    pixels, name = _pixels_in(image), shown(image) if isinstance(image, str) else "the image"
    found, least = _detect_in(pixels, weights, threshold, device)
    print(f"{counted(len(found), 'target')} in {name}, probability above {least:.2g}")
    return overlay(pixels, found)


# %%
test_eq(detect(sights[0], device="cpu"), detect(here / "one" / "0.png", device="cpu"))
with expect_fail(UserError, contains="is no image"):
    detect(torch.zeros(1, 3, 8, 8))
with expect_fail(UserError, contains="write a number from 0 to 1"):
    detect(sights[0], threshold=50)
find_targets(device="cpu")


# %% [markdown]
# `predict` returns the probabilities themselves, for thresholds and statistics of your own. They are those of `mshnet predict`, whether the image comes from a file, an array or a batch.

# %%
#| export
def predict(
    weights: str | os.PathLike[str] | nn.Module,  # a run, its folder, a file, "pretrained"; a model
    images: Any,  # an image as for `detect`, a list of them, or a tensor [B,3,H,W] uint8
    device: str = "auto",
    precision: str = "auto",
) -> Any:  # float32, 0..1: an array [H,W], a list of them, or a tensor [B,1,H,W]
    """The probability of target of each pixel of images of any size.

    Raises UserError for weights and images of another type, and for files that cannot be read.
    """
    if isinstance(weights, nn.Module):
        detector: Any = Detector(weights, device, precision)
    else:
        detector = open_weights(weights, device, precision)
    if isinstance(images, Tensor) and images.ndim == 4:
        expect_bytes(images)
        found = predict_frames(detector, list(images.permute(0, 2, 3, 1).numpy(force=True)))
        return torch.from_numpy(np.stack(found))[:, None]
    if isinstance(images, list | tuple):
        return [predict_frame(detector, _pixels_in(image)) for image in images]
    return predict_frame(detector, _pixels_in(images))


# %%
file, grey = here / "one" / "0.png", torch.from_numpy(sights[0])
from_file, from_array = predict(here / "run", [file, sights[0]], "cpu")
test_eq(from_file, from_array)
test_eq(predict(here / "run", grey.expand(1, 3, -1, -1), "cpu")[0, 0].numpy(), from_file)
with expect_fail(UserError, contains="weights of type Tensor"):
    predict(grey, here / "run")

# %% [markdown]
# ## What is written
#
# Each frame gets a mask of 0 and 255 and an overlay. On request it gets its probabilities as a 16-bit image, in which 32,768 and more means above 0.5, and a text for YOLO's tools: a line `0 x y width height peak` per detection, in fractions of the frame. A video gets a video of its overlays. `detections.csv` and `detections.jsonl` hold the same, one line per detection, for a spreadsheet and for programs; `coco.json` holds them for COCO's tools. Rows and columns count from 0 at the centre of the top-left pixel. `frames.csv` lists all frames, `skipped.csv` the files that cannot be read.
#
# The results of a frame have the name of its file, with the number of the frame if there are several. If two folders hold files of one name, the folder's name precedes it. If a name is still taken, it gets a number. We ignore capitals when we compare names, because some disks do.
#
# A frame is done when its line is in `frames.csv`, which is written last. An interrupted prediction thus leaves whole frames, and the same command resumes after the last one. Videos of overlays and `coco.json` are made from the tables at the end.

# %%
#| export
KINDS = {  # of results, each in a folder of its name; and the suffix of the files
    "masks": ".png",
    "overlays": ".png",
    "probabilities": ".png",
    "yolo": ".txt",
    "videos": ".mp4",
}
TABLES = {  # files and their columns; a frame's lines are written in this order
    "detections.csv": "file frame name object row col top left bottom right area peak mean",
    "detections.jsonl": "",  # each line has the names
    "skipped.csv": "file frame error",
    "frames.csv": "file frame name height width tiles detections",
}
COCO = "coco.json"


def _encoded(
    kind: str,  # of KINDS, except videos
    pixels: np.ndarray,  # [H,W] or [H,W,3] uint8
    prob: np.ndarray,  # [H,W]
    found: Detections,
) -> bytes:
    "The content of a frame's file."
    height, width = prob.shape
    if kind == "yolo":
        top, left, bottom, right = found.box.T
        x, y, wide, high = (left + right) / 2, (top + bottom) / 2, right - left, bottom - top
        columns = (x / width, y / height, wide / width, high / height, found.peak)
        rows = zip(*columns, strict=True)
        return "".join(" ".join(["0", *(f"{v:.6f}" for v in row)]) + "\n" for row in rows).encode()
    if kind == "overlays":
        picture = overlay(pixels, found)
    elif kind == "masks":
        mask = np.zeros(prob.shape, np.uint8)
        mask[found.pixels] = 255
        picture = Image.fromarray(mask)
    else:
        picture = Image.fromarray((np.ceil(prob * 65536) - 1).clip(0, 65535).astype(np.uint16))
    content = io.BytesIO()
    picture.save(content, "PNG", compress_level=3)
    return content.getvalue()


def _in_table(file: Path) -> str:
    "The name of a file as the tables have it, even if it is not valid UTF-8."
    return str(file).encode("utf-8", "backslashreplace").decode()


def _line(row: dict[str, Any] | Iterable[Any]) -> str:
    "A line of a table: JSON from a dictionary, CSV from values."
    if isinstance(row, dict):
        return json.dumps(row) + "\n"
    text = io.StringIO(newline="")
    csv.writer(text).writerow(row)
    return text.getvalue()


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    "The rows of a table; half a line at its end is left out."
    if path.exists():
        with open(path, encoding="utf-8", newline="\n") as file:
            lines = (line for line in file if line.endswith("\n"))
            yield from map(json.loads, lines) if path.suffix == ".jsonl" else csv.DictReader(lines)


# %%
#| export
class _Done:
    "The part of a prediction that an earlier, interrupted command has finished."

    def __init__(self, folder: Path | None = None) -> None:  # None: nothing
        self.frames: set[tuple[str, int]] = set()
        self.names: set[str] = set()
        self.skipped: dict[str, str] = {}
        self.detections, last = 0, ""
        for row in _rows(folder / "frames.csv") if folder else ():
            last = row["file"]
            self.frames.add((last, int(row["frame"])))
            self.names.add(row["name"])
            self.detections += int(row["detections"])
        for row in _rows(folder / "skipped.csv") if folder else ():
            self.skipped[row["file"]] = row["error"]
        self.files = {file for file, _ in self.frames} - {last}  # the last one may have more
        self.files |= set(self.skipped)

    def left(self, files: Iterable[Path]) -> list[Path]:
        "The files that are not finished."
        return [file for file in files if _in_table(file) not in self.files]

    def lacks(self, frame: Frame) -> bool:
        "Whether a frame is not finished."
        return (_in_table(frame.file), frame.number) not in self.frames


# %%
#| export
class Writer:
    "Writes the results of frames into a folder: files of the given kinds, and tables."

    def __init__(
        self,
        folder: Path,
        kinds: Sequence[str],
        files: Iterable[Path],
        threshold: float = 0.5,
        min_area: int = 1,
        taken: Iterable[str] = (),  # names that earlier frames have
    ) -> None:
        self.folder, self.kinds = folder, [kind for kind in kinds if kind != "videos"]
        self.threshold, self.min_area = threshold, min_area
        self.stems = Counter(file.stem.casefold() for file in files)
        self.taken = {name.casefold() for name in taken}
        self.tables: dict[str, TextIO] = {}

    def __enter__(self) -> "Writer":
        how: Any = {"encoding": "utf-8", "errors": "backslashreplace", "newline": ""}
        with cannot_be_written(self.folder):
            for name, columns in TABLES.items():
                self.tables[name] = open(self.folder / name, "a", **how)
                if columns and not self.tables[name].tell():
                    self.tables[name].write(_line(columns.split()))
            self.flush()
        return self

    def __exit__(self, *_: Any) -> None:
        for table in self.tables.values():
            table.close()

    def flush(self) -> None:
        "Write all lines to their files."
        for table in self.tables.values():
            table.flush()

    def name(self, frame: Frame) -> str:
        "A name for the frame's files, without suffix, that no other frame has."
        stem = frame.file.stem
        if self.stems[stem.casefold()] > 1:
            stem = f"{frame.file.absolute().parent.name}_{stem}"
        base = stem[:60] if frame.single else f"{stem[:60]}_{frame.number:05d}"
        tries = itertools.chain([base], (f"{base}_{i}" for i in itertools.count(2)))
        name = next(name for name in tries if name.casefold() not in self.taken)
        self.taken.add(name.casefold())
        return name

    def write(self, frame: Frame, prob: np.ndarray, tiles: int) -> int:
        "Write the files of a frame, then its lines; return the number of detections."
        name, found = self.name(frame), detections(prob, self.threshold, self.min_area)
        for kind in self.kinds:
            path = self.folder / kind / f"{name}{KINDS[kind]}"
            write_atomic(path, _encoded(kind, frame.pixels, prob, found), durable=False)
        head = {"file": str(frame.file), "frame": frame.number, "name": name}
        with cannot_be_written(self.folder):
            for row in found.rows():
                place = [row["object"], *row["centroid"], *row["box"]]
                values = [*head.values(), *place, row["area"], row["peak"], row["mean"]]
                self.tables["detections.csv"].write(_line(values))
                self.tables["detections.jsonl"].write(_line(head | row))
            counts = [*frame.pixels.shape[:2], tiles, len(found)]
            self.tables["frames.csv"].write(_line([*head.values(), *counts]))
            self.flush()
        return len(found)

    def skip(self, frame: Frame) -> None:
        "Write the line of a file that cannot be read."
        with cannot_be_written(self.folder):
            self.tables["skipped.csv"].write(_line([frame.file, frame.number, frame.error]))
            self.flush()


# %%
frame = Frame(here / "one" / "0.png", 0, True, image)
with Writer(here / "one", [], [frame.file]) as writer:
    writer.write(frame, prob, 1)
print((here / "one" / "detections.csv").read_text())
_encoded("yolo", image, prob, detections(prob)).decode()


# %% [markdown]
# ### At the end
#
# The formats of other tools need no prediction, only the tables. A video is read once more, because an encoder cannot resume in the middle of a file; a second reading costs little beside the network.

# %%
#| export
def _results(folder: Path) -> Iterator[tuple[dict[str, Any], Iterator[dict[str, Any]]]]:
    "The frames of a prediction, each with its detections, as the tables have them."
    found = itertools.groupby(_rows(folder / "detections.jsonl"), lambda row: row["name"])
    name, rows = next(found, ("", iter(())))
    for frame in _rows(folder / "frames.csv"):
        if frame["name"] != name:
            yield frame, iter(())
            continue
        yield frame, rows
        name, rows = next(found, ("", iter(())))


def _coco_boxes(folder: Path) -> Iterator[dict[str, Any]]:
    "The detections as COCO has them: boxes are left, top, width, height."
    numbers = itertools.count(1)
    for image, (_, rows) in enumerate(_results(folder), 1):
        for row in rows:
            top, left, bottom, right = row["box"]
            place = {"bbox": [left, top, right - left, bottom - top], "area": row["area"]}
            own = {"id": next(numbers), "image_id": image, "category_id": 1, "iscrowd": 0}
            yield {**own, **place, "score": row["peak"]}


def _write_coco(folder: Path) -> None:
    "Write coco.json, item by item: there may be millions."
    frames = enumerate(_rows(folder / "frames.csv"), 1)
    images = (
        {"id": i, "file_name": row["file"]}
        | {name: int(row[name]) for name in ("frame", "height", "width")}
        for i, row in frames
    )
    parts = {"images": images, "annotations": _coco_boxes(folder)}
    with cannot_be_written(folder / COCO), replacing(folder / COCO) as file:
        file.write(b'{"categories": [{"id": 1, "name": "target"}]')
        for name, items in parts.items():
            file.write(f', "{name}": ['.encode())
            for i, item in enumerate(items):
                file.write((",\n" if i else "\n").encode() + json.dumps(item).encode())
            file.write(b"]")
        file.write(b"}\n")


def _overlays(folder: Path, file: Path, count: int) -> Iterator[Image.Image]:
    "The frames of a video with their detections marked, as far as it was predicted."
    done = ((row, found) for row, found in _results(folder) if row["file"] == _in_table(file))
    frames = bar(frames_of(file), count, f"video of {file.name}", "frames")
    for frame, (_, found) in zip(frames, done, strict=False):
        if not frame.error:
            yield overlay(frame.pixels, Detections.from_rows(list(found)))


def _write_video(file: Path, pictures: Iterator[Image.Image], path: Path) -> None:
    "Write pictures, at least one, as a video with the rate of the file that they come from."
    import av

    with av.open(str(file)) as source:
        rate = source.streams.video[0].average_rate or 25
    codec = "libx264" if "libx264" in av.codecs_available else "mpeg4"
    first = next(pictures)
    width, height = (n // 2 * 2 for n in first.size)  # as the codec requires
    with (
        cannot_be_written(path),
        replacing(path, durable=False) as target,
        av.open(target, "w", format="mp4") as made,
    ):
        stream: Any = made.add_stream(codec, rate=rate)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for picture in itertools.chain([first], pictures):
            image = picture.crop((0, 0, width, height))
            made.mux(stream.encode(av.VideoFrame.from_image(image)))
        made.mux(stream.encode())


def _finish(folder: Path, kinds: Sequence[str], files: Iterable[Path]) -> None:
    "Write what is made of the tables."
    _write_coco(folder)
    names: dict[str, str] = {}  # of each file's first frame
    counts = Counter[str]()
    for row in _rows(folder / "frames.csv"):
        names.setdefault(row["file"], row["name"])
        counts[row["file"]] += 1
    for file in files if "videos" in kinds else ():
        if file.suffix.lower() in VIDEOS and (name := names.get(_in_table(file))):
            path = folder / "videos" / f"{name.removesuffix('_00000')}.mp4"
            _write_video(file, _overlays(folder, file, counts[_in_table(file)]), path)


# %%
_finish(here / "one", [], [])
json.loads((here / "one" / COCO).read_text())["images"]


# %% [markdown]
# ### The folder
#
# Results go into `predictions/NAME`, named after the run or the file of weights. If that folder holds another prediction, of other inputs or settings, they go into `predictions/NAME-2`. A folder that the user names is rejected if it holds anything else. The same prediction again resumes if it was interrupted, else it overwrites its own results. `summary.json` records how the results were made; we resume only with the same weights, byte for byte.

# %%
#| export
def _kinds_to_save(save: str) -> list[str]:
    "The kinds of results to write, from a list with commas; UserError for an unknown kind."
    words = [word.strip() for word in save.split(",")]
    if words in (["none"], [""]):
        return []
    for word in words:
        if word not in KINDS:
            hint = did_you_mean(word, list(KINDS))
            raise UserError(
                f"save={shown(word)} is not known{hint}: write some of {','.join(KINDS)}, or none"
            )
    return [kind for kind in KINDS if kind in words]


def _held(folder: Path, asked: dict[str, Any]) -> str:
    "What a folder holds, if it is anything but this prediction."
    with cannot_be_written(folder):
        found = os.listdir(folder) if os.path.lexists(folder) else []
    names = {name for name in found if name[0] != "."}
    strangers = sorted(names - {*KINDS, *TABLES, COCO, SUMMARY})
    if strangers:
        return f"{shown(strangers[0])}, which is no result"
    same = not names or Folder(folder).read_json(SUMMARY).get("asked") == asked
    return "" if same else "another prediction"


def _output_folder(weights: Path, output_dir: str | Path, asked: dict[str, Any]) -> Path:
    "The folder for results: the given one, or a free one that is named after the weights."
    if output_dir:
        outside_of_data(output_dir)
        folder = Path(os.path.expanduser(output_dir))
        if what := _held(folder, asked):
            raise UserError(f"output_dir={str(folder)!r}: holds {what}; write another --output-dir")
        return folder
    in_run = weights.stem in ("best", "last", "previous")
    name = weights.resolve().parent.name if in_run else weights.stem
    top = where().runs.with_name("predictions")
    folders = (top / (f"{name}-{i}" if i > 1 else name) for i in itertools.count(1))
    return next(folder for folder in folders if not _held(folder, asked))


def _resume(folder: Path) -> _Done:
    "What is done of an interrupted prediction; the lines of a frame that is not done are removed."
    names = {row["name"] for row in _rows(folder / "frames.csv")}
    for table, columns in TABLES.items():
        with cannot_be_written(folder / table), replacing(folder / table) as file:
            file.write(_line(columns.split()).encode() if columns else b"")
            for row in _rows(folder / table):
                if row.get("name") in names or table == "skipped.csv":
                    file.write(_line(list(row.values()) if columns else row).encode())
    return _Done(folder)


def _begin(folder: Path, kinds: Sequence[str], record: dict[str, Any]) -> _Done:
    "Prepare the folder: keep what an interrupted prediction of this record has done, or nothing."
    before = Folder(folder).read_json(SUMMARY)
    again = before.get("state", "finished") != "finished"
    again = again and all(before.get(name) == value for name, value in record.items())
    with cannot_be_written(folder):
        for kind in KINDS:
            for path in sorted((folder / kind).glob("*")):
                if path.suffix == ".tmp" or (path.suffix == KINDS[kind] and not again):
                    path.unlink()
            if kind in kinds:
                (folder / kind).mkdir(parents=True, exist_ok=True)
            elif (folder / kind).is_dir():
                (folder / kind).rmdir()
        for name in () if again else (*TABLES, COCO):
            (folder / name).unlink(missing_ok=True)
    return _resume(folder) if again else _Done()


# %%
test_eq(_output_folder(here / "run" / "best.pt", "", {}).parts[-2:], ("predictions", "run"))
with expect_fail(UserError, contains="which is no result"):
    _output_folder(here, here / "two", {})

# %% [markdown]
# ## All of it
#
# Everything that can be wrong is checked before anything is written: settings, weights, inputs, the folder. An unreadable file is reported, skipped and counted. Frames of one size that fit into one piece are predicted together, and a larger one alone. After a request to stop, the run ends before the next pass of the network, and the frame in progress leaves no trace.

# %%
#| export
_MOST_WARNINGS = 20  # skipped files that are printed


@dataclass
class Summary:
    "The counts of a prediction, those of an interrupted part before it included."

    folder: Path
    files: int = 0  # requested
    frames: int = 0  # predicted
    detections: int = 0
    skipped: dict[str, str] = field(default_factory=dict)  # file: why
    others: dict[str, int] = field(default_factory=dict)  # left out, by suffix
    seconds: float = 0.0

    @classmethod
    def begin(cls, folder: Path, inputs: Inputs, done: _Done) -> "Summary":
        "Count what is done already, and print where the prediction resumes."
        found = cls(folder, len(inputs.files), len(done.frames), others=dict(inputs.others))
        found.skipped = dict(done.skipped)
        found.detections = done.detections
        if done.frames:
            found.seconds = float(Folder(folder).read_json(SUMMARY).get("seconds", 0))
            print(f"resume  {folder}: {counted(found.frames, 'frame')} done", file=sys.stderr)
        return found

    @property
    def status(self) -> int:
        "Exit status: 1 if a file was skipped, wholly or in part."
        return 1 if self.skipped else 0

    def __str__(self) -> str:
        "One line."
        skipped = f", {len(self.skipped)} skipped" if self.skipped else ""
        if self.others:
            kinds = sorted(self.others.items(), key=lambda pair: (-pair[1], pair[0]))
            listed = ", ".join(f"{count} {kind}" for kind, count in kinds)
            skipped += f", {counted(sum(self.others.values()), 'other')} left out ({listed})"
        return (
            f"{counted(self.frames, 'frame')} of {counted(self.files, 'file')}{skipped}: "
            f"{counted(self.detections, 'detection')} in {duration(self.seconds)}"
        )

    def skip(self, frame: Frame) -> None:
        "Count an unreadable file, and warn."
        self.skipped[str(frame.file)] = frame.error
        count = len(self.skipped)
        if count <= _MOST_WARNINGS:
            more = " (further ones are in skipped.csv only)" if count == _MOST_WARNINGS else ""
            warnings.warn(f"{frame.file}: {frame.error}; skipped{more}", stacklevel=2)

    @contextlib.contextmanager
    def recorded(self, **content: Any) -> Iterator[None]:
        "Record the state in the folder: running, then finished, stopped or failed."
        began, state = time.monotonic() - self.seconds, "running"

        def record() -> None:
            self.seconds = round(time.monotonic() - began, 3)
            counts = {**vars(self), "folder": self.folder.name}
            write_json(self.folder / SUMMARY, {"state": state, **content, **counts})

        record()
        state = "failed"
        try:
            yield
            state = "finished"
        except KeyboardInterrupt:
            state = "stopped"
            raise
        finally:
            record()


# %%
#| export
def _batches(
    frames: Iterable[Frame], options: Options, size: int
) -> Iterator[tuple[list[Frame], int]]:
    "Up to `size` consecutive frames that can be predicted together; how many tiles each has."

    def kind(frame: Frame) -> tuple[Any, ...]:
        if frame.error:
            return (0,)
        if options.base_size:
            return 1, options.base_size, frame.pixels.ndim
        tiling = Tiling(frame.pixels.shape, options.tile)
        return len(tiling.places), tiling.padded, frame.pixels.ndim

    for (tiles, *_), alike in itertools.groupby(frames, kind):
        while batch := list(itertools.islice(alike, max(size, 1) if tiles <= 1 else 1)):
            yield batch, tiles


# %%
#| export
def _predicted(
    writer: Writer,
    detector: Callable[..., Tensor],
    frames: Iterable[Frame],
    options: Options,
    size: int,  # frames that are predicted together
) -> Generator[tuple[Frame, int], None, None]:  # each frame, and how many detections it has
    "Predict frames and write the results; Stopped after a request to stop."
    with Stop() as stop:

        def check() -> None:
            if stop.reason:
                raise Stopped(stop.reason, stop.number)

        for batch, tiles in _batches(frames, options, size):
            if batch[0].error:
                for frame in batch:
                    writer.skip(frame)
                    yield frame, 0
                continue
            pixels = [frame.pixels for frame in batch]
            maps = predict_frames(detector, pixels, options.tile, options.base_size, check)
            for frame, prob in zip(batch, maps, strict=True):
                yield frame, writer.write(frame, prob, tiles)


def _count(
    summary: Summary, predicted: Generator[tuple[Frame, int], None, None], total: int
) -> None:
    "Count predicted frames, and show how far the prediction is."
    last, meter = None, cast(Any, bar(predicted, total, "predict", "frames"))
    with contextlib.closing(predicted):
        for frame, found in meter:
            if frame.error:
                summary.skip(frame)
            else:
                summary.frames += 1
                summary.detections += found
            if frame.file != last:  # the total began with one frame for each file
                last, more = frame.file, frame.count - frame.number - 1
                meter.total += max(more, 0)
            meter.set_postfix_str(counted(summary.detections, "detection"), refresh=False)


# %%
#| export
def predict_files(
    weights: str | Path,  # a file, or the folder of a run; empty: the pretrained weights
    inputs: str | Path | Sequence[str | Path],  # images, videos, folders, globs
    output_dir: str | Path = "",  # empty: predictions/, named after the weights
    device: str = "auto",
    precision: str = "auto",
    tile: int = TILE,  # longest side that is predicted in one piece
    save: str = "masks,overlays,videos",  # what to write: some of KINDS, or none
    batch_size: int = 4,  # frames of one size that are predicted together; no result depends on it
    num_workers: int = -1,  # 0: no reading ahead; -1: by the device
    base_size: int = 0,  # side of the square that frames are resized to; 0: they keep their size
    threshold: float | None = None,  # of the probability; None: the one stored with the weights
    min_area: int = 1,  # pixels of the smallest detection
    recursive: bool = False,  # also the folders below an input
) -> Summary:
    "Predict files, and write masks, tables and overlays; an interrupted prediction is resumed."
    options = Options(tile, base_size, threshold, min_area)
    kinds, path = _kinds_to_save(save), _existing(weights)
    found = find_files(inputs, recursive)  # a mistyped input is reported first
    asked = _asked(path, found, options, precision, recursive)
    folder = _output_folder(path, output_dir, asked)
    detector = open_weights(path, device, precision)
    least = detector.threshold if threshold is None else threshold
    workers = num_workers if num_workers >= 0 else int(_images_per_pass(detector) > 1)
    with alone(folder), warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="PIL")  # we report errors of files ourselves
        record = {"asked": asked, "save": kinds, "sha256": digest(path)}
        done = _begin(folder, kinds, record)
        left, summary = done.left(found.files), Summary.begin(folder, found, done)
        with summary.recorded(**record, protocol=_protocol(detector, options, least)):
            with Writer(folder, kinds, found.files, least, min_area, done.names) as writer:
                frames = _read_ahead(left, workers, done.lacks)
                predicted = _predicted(writer, detector, frames, options, batch_size)
                _count(summary, predicted, len(left))
            _finish(folder, kinds, found.files)
    return summary


def _asked(
    weights: Path, inputs: Inputs, options: Options, precision: str, recursive: bool
) -> dict[str, Any]:
    "What makes two predictions the same: weights, inputs, and settings other than the defaults."
    asked: dict[str, Any] = options.changed()
    if precision != "auto":
        asked["precision"] = precision
    if recursive:
        asked["recursive"] = True
    places = [os.path.abspath(os.path.expanduser(text)) for text in inputs.named]
    return {"weights": os.path.abspath(weights), "inputs": places, **asked}


def _protocol(
    detector: Detector | OnnxDetector, options: Options, threshold: float
) -> dict[str, Any]:
    "The protocol of the detections, for summary.json."
    side = options.base_size
    size = "each frame at its own, padded by its mirror image to multiples of 16"
    return {
        "weights": detector.name,
        "size": f"each frame resized to {side}x{side}, probabilities resized back"
        if side
        else size,
        "tile": options.tile,
        "threshold": threshold,
        "min_area": options.min_area,
        "objects": "8-connected, on the whole frame",
        "16 bits": "each frame stretched from its own minimum and maximum",
        "environment": environment(detector.why),
    }


# %% [markdown]
# We predict two folders with files of the same names, and a damaged file. Four frames are predicted, one warning is printed, and the status is 1.

# %%
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    done: Summary = predict_files(
        "", [here / "one", here / "two", here / "broken.png"], here / "out", "cpu"
    )
assert done.status == 1
test_eq((done.frames, len(done.skipped), len(caught)), (4, 1, 1))
print(done)
sorted(p.relative_to(here / "out").as_posix() for p in (here / "out").rglob("*.*"))

# %%
Image.open(here / "out" / "overlays" / "two_0.png")
