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
import itertools
import json
import os
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from scipy.ndimage import label
from torch import Tensor, nn

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
from mshnet.files import cannot_be_written, prefetch, write_json
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
) -> Detections:
    "The 8-connected objects of the pixels whose probability is above a threshold."
    small, row, col = crop(prob, threshold)  # most rows and columns are empty
    labels, _ = label(small > threshold, np.ones((3, 3), bool))
    y, x = np.nonzero(labels)
    by_object = np.argsort(labels[y, x], kind="stable")
    y, x = y[by_object], x[by_object]
    first = np.flatnonzero(np.diff(labels[y, x], prepend=0))  # pixel of each object
    area, values, y, x = np.diff(first, append=len(y)), small[y, x], row[y], col[x]
    low, high = ([how.reduceat(v, first) for v in (y, x)] for how in (np.minimum, np.maximum))
    centroid = [np.add.reduceat(v, first) / area for v in (y, x)]
    return Detections(
        centroid=np.stack(centroid, 1),
        area=area,
        box=np.stack([*low, *(v + 1 for v in high)], 1),
        peak=np.maximum.reduceat(values, first),
        mean=np.add.reduceat(values, first, dtype=float) / area,
    )


# %% [markdown]
# Pixels that touch at a corner are one object, and the box ends one past its last pixel:

# %%
corner = np.zeros((6, 8), np.float32)
corner[1, 2:4], corner[2, 4] = (0.6, 0.7), 0.8
found: Detections = detections(corner)
test_eq((len(found), found.area[0], found.box[0].tolist()), (1, 3, [1, 2, 3, 5]))
test_close(found.mean[0], 0.7)
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


def _check_tile(tile: int) -> None:
    "UserError for an impossible side of a tile."
    if tile % _UNIT or not 128 <= tile <= 8192:
        raise UserError(f"tile={tile}: write a multiple of 16, at least 128, at most 8192")


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
# One loop over the tiles pads, cuts, predicts and blends. A small frame is a single tile, whose weight is 1 everywhere.

# %%
#| export
def predict_frames(
    detector: Callable[..., Tensor],
    frames: Sequence[np.ndarray],  # each [H,W] or [H,W,3] uint8; their tiles have one size
    tile: int = TILE,  # longest side that is predicted in one piece
    check: Callable[[], object] = lambda: None,  # called before each pass; may raise
) -> list[np.ndarray]:  # of each [H,W] float32, 0..1
    "Probabilities of target of frames of any size."
    tilings = [Tiling(pixels.shape, tile) for pixels in frames]
    padded = [tiling.pad(pixels) for tiling, pixels in zip(tilings, frames, strict=True)]
    maps = [np.zeros(tiling.padded, np.float32) for tiling in tilings]
    tiles = [
        (i, place, fade)
        for i, tiling in enumerate(tilings)
        for place, fade in zip(tiling.places, tiling.fades, strict=True)
    ]
    size = _images_per_pass(detector)
    for start in range(0, len(tiles), size):
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
) -> np.ndarray:  # [H,W] float32, 0..1
    "Probabilities of target of one frame."
    return predict_frames(detector, [pixels], tile)[0]


# %%
image = sights[0][:150, :141]
prob = predict_frame(stands_out, image)
one_pass = stands_out(torch.from_numpy(Tiling(image.shape).pad(image)).expand(1, 3, -1, -1))
test_eq(prob, one_pass[0, 0, :150, :141].numpy())
test_eq(predict_frames(stands_out, [sights[1], image])[1], prob)
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
# An input is a file, a folder or a glob. A folder means the images and videos in it, but not those in folders below, because the folder of a data set has masks below; `**` includes them. A file that is named twice is predicted once. Files are predicted in the order in which they were named.

# %%
#| export
VIDEOS = (".mp4", ".avi", ".mov", ".mkv", ".webm", ".m4v", ".mpg", ".mpeg")


def _can_be_read(path: Path) -> bool:
    "Whether this is a file with the suffix of an image or a video."
    return path.suffix.lower() in (*SUFFIXES, *VIDEOS) and os.path.isfile(path)


def _inside(folder: Path) -> list[Path]:
    "The images and videos of a folder, except hidden ones; UserError if it cannot be listed."
    try:
        return [path for path in visible(folder) if _can_be_read(path)]
    except OSError as error:
        raise UserError(f"{shown(str(folder))}: cannot be read ({error.strerror})") from None


def _files_of(text: str) -> list[Path]:
    "The images and videos of a file, folder or glob; UserError if there is none."
    path = Path(os.path.expanduser(text))
    if not text:
        raise UserError("an input is empty: name images, videos, folders or globs")
    found = [path] if os.path.exists(path) else []
    if not found and not glob.has_magic(text):
        raise UserError(f"{shown(text)}: there is no such file or folder")
    found = found or [Path(name) for name in sorted(glob.glob(str(path), recursive=True))]
    files = [file for file in found if _can_be_read(file)]
    files = files or [file for folder in found if folder.is_dir() for file in _inside(folder)]
    if not files:
        known = " ".join((*SUFFIXES, *VIDEOS))
        below = [file.parent for file in sorted(path.glob("*/*")) if _can_be_read(file)]
        hint = f"; did you mean {below[0]}?" if below else ""
        raise UserError(f"{shown(text)}: no image and no video ({known}){hint}")
    return files


def find_files(inputs: Iterable[str | Path]) -> list[Path]:
    "The images and videos of all inputs, each once; UserError if an input has none."
    files = [file for text in inputs for file in _files_of(str(text))]
    if not files:
        raise UserError("no input: name images, videos, folders or globs")
    found: dict[str, Path] = {}
    for file in files:
        found.setdefault(os.path.realpath(file), file)
    return list(found.values())


# %%
for night in ("one", "two"):
    (here / night).mkdir()
    for number, pixels in enumerate(sights[:2]):
        Image.fromarray(pixels).save(here / night / f"{number}.png")
test_eq(len(find_files([here / "one", f"{here}/**/0.png"])), 3)
with expect_fail(UserError, contains=f"did you mean {here / 'one'}?"):
    find_files([here])
with expect_fail(UserError, contains="there is no such file"):
    find_files(["no-such-folder"])

# %% [markdown]
# ### Which frames
#
# A file has one frame or many: the pages of a TIFF, the pictures of a video. Images are read as for training: grey, RGB, RGBA and palette become what Pillow's conversion to RGB makes of them. 16 bits become 8 by stretching each frame from its minimum to its maximum. The usual percentile stretch looks better, but it clips the brightest hundredth of the pixels, and a small target is smaller than that. Sensors with dead or hot pixels pay the price, because these take the whole range; replace them by their neighbours first.
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


def _pages(file: Path) -> Iterator[tuple[np.ndarray, bool]]:  # pixels; whether it is the only page
    "The pages of an image file. Raises one of Pillow's many errors for other files."
    with opened(file, _MOST) as image:
        count = getattr(image, "n_frames", 1) if image.format == "TIFF" else 1
        for page in range(count):
            image.seek(page)
            refuse_size(image, _MOST)
            yield pixels_of(image), count == 1


def _pictures(file: Path) -> Iterator[tuple[np.ndarray, bool]]:
    "The pictures of a video. Raises one of many errors for other files, and if it breaks off."
    if not importlib.util.find_spec("av"):
        raise UserError("videos need the package av; run: pip install av")
    import av

    with av.open(str(file)) as video:
        stream, count = video.streams.video[0], 0
        seconds = (video.duration or 0) / 1_000_000
        at_least = int(0.9 * seconds * float(stream.average_rate or 0)) - 1
        for picture in video.decode(stream):
            yield one_channel(picture.to_ndarray(format="rgb24")), False
            count += 1
        if count < (stream.frames or at_least):
            raise OSError("it breaks off")


def frames_of(file: Path) -> Iterator[Frame]:  # the last one may have an error
    "The frames of a file, one after the other."
    video = file.suffix.lower() in VIDEOS
    number, single = 0, not video
    try:
        for pixels, single in _pictures(file) if video else _pages(file):
            yield Frame(file, number, single, pixels)
            number += 1
        if not number:
            raise OSError("no frame")
    except Exception as error:  # decoders raise many kinds for damaged bytes
        what = trouble(error, "video" if video else "image", _MOST)
        reason = str(error) if isinstance(error, UserError) else what
        if number:
            reason = f"{reason}, from frame {number}"
        yield Frame(file, number, single, np.zeros((0, 0), np.uint8), reason)


def _read_ahead(files: Iterable[Path], workers: int) -> Iterator[Frame]:
    "The frames of all files, in order; a worker reads a few ahead."
    frames = itertools.chain.from_iterable(map(frames_of, files))
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
        frame = next(frames_of(_files_of(str(image))[0]))
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
    if threshold is not None and not 0 <= threshold <= 1:
        raise UserError(f"threshold={threshold}: a probability; write a number from 0 to 1")
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
# Each frame gets a mask of 0 and 255, an overlay, and on request its probabilities as a 16-bit image, in which 32,768 and more means above 0.5. `detections.csv` and `detections.jsonl` hold the same, one line per detection, for a spreadsheet and for programs. Rows and columns count from 0 at the centre of the top-left pixel. `frames.csv` lists all frames.
#
# The results of a frame have the name of its file, with the number of the frame if there are several. If two folders hold files of one name, the folder's name precedes it. If a name is still taken, it gets a number. We ignore capitals when we compare names, because some disks do.
#
# A picture is written under a temporary name and renamed, and then the lines of its frame are written. An interrupted prediction leaves whole frames only.

# %%
#| export
PICTURES = ("masks", "overlays", "probabilities")
TABLES = {  # files and their columns
    "detections.csv": "file frame name object row col top left bottom right area peak mean",
    "detections.jsonl": "",  # each line has the names
    "frames.csv": "file frame name height width tiles detections",
}


class Writer:
    "Writes the results of frames into a folder: pictures of the given kinds, and tables."

    def __init__(
        self, folder: Path, kinds: Sequence[str], files: Iterable[Path], threshold: float = 0.5
    ) -> None:
        self.folder, self.kinds, self.threshold = folder, kinds, threshold
        self.stems = Counter(file.stem.casefold() for file in files)
        self.taken: set[str] = set()
        self.tables: list[TextIO] = []

    def __enter__(self) -> "Writer":
        with cannot_be_written(self.folder):
            for name, columns in TABLES.items():
                how: Any = {"encoding": "utf-8", "errors": "backslashreplace", "newline": ""}
                self.tables.append(open(self.folder / name, "w", **how))
                if columns:
                    csv.writer(self.tables[-1]).writerow(columns.split())
        return self

    def __exit__(self, *_: Any) -> None:
        for table in self.tables:
            table.close()

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
        "Write the pictures of a frame, then its lines; return the number of detections."
        name, found = self.name(frame), detections(prob, self.threshold)
        for kind in self.kinds:
            self.save(self.picture(kind, frame, prob, found), self.folder / kind / f"{name}.png")
        head = {"file": str(frame.file), "frame": frame.number, "name": name}
        with cannot_be_written(self.folder):
            for row in found.rows():
                place = [row["object"], *row["centroid"], *row["box"]]
                values = [*head.values(), *place, row["area"], row["peak"], row["mean"]]
                csv.writer(self.tables[0]).writerow(values)
                self.tables[1].write(json.dumps(head | row) + "\n")
            counts = [*frame.pixels.shape[:2], tiles, len(found)]
            csv.writer(self.tables[2]).writerow([*head.values(), *counts])
            for table in self.tables:
                table.flush()
        return len(found)

    def picture(self, kind: str, frame: Frame, prob: np.ndarray, found: Detections) -> Image.Image:
        "One of PICTURES."
        if kind == "overlays":
            return overlay(frame.pixels, found)
        if kind == "masks":
            return Image.fromarray((prob > self.threshold).astype(np.uint8) * np.uint8(255))
        return Image.fromarray((np.ceil(prob * 65536) - 1).clip(0, 65535).astype(np.uint16))

    def save(self, picture: Image.Image, path: Path) -> None:
        "Write a whole PNG file or none; UserError if it cannot be written."
        temporary = path.with_name(f".{path.name}.tmp")
        with cannot_be_written(path):
            try:
                picture.save(temporary, "PNG", compress_level=3)
                os.replace(temporary, path)
            finally:
                temporary.unlink(missing_ok=True)


# %%
frame = Frame(here / "one" / "0.png", 0, True, image)
with Writer(here, [], [frame.file]) as writer:
    writer.write(frame, prob, 1)
print((here / "detections.csv").read_text())

# %% [markdown]
# ### The folder
#
# Results go into `predictions/NAME`, named after the run or the file of weights, or into the given folder. The same prediction again overwrites its own results. A folder with any other content is rejected. `summary.json` records how the results were made.

# %%
#| export
SUMMARY = "summary.json"


def _kinds_to_save(save: str) -> list[str]:
    "The kinds of pictures to write, from a list with commas; UserError for an unknown kind."
    words = [word.strip() for word in save.split(",")]
    if words in (["none"], [""]):
        return []
    for word in words:
        if word not in PICTURES:
            hint = did_you_mean(word, list(PICTURES))
            known = f"some of {','.join(PICTURES)}, or none"
            raise UserError(f"save={shown(word)} is not known{hint}: write {known}")
    return [kind for kind in PICTURES if kind in words]


def _output_folder(weights: Path, output_dir: str | Path) -> Path:
    "The folder for results: the given one, or one that is named after the weights."
    if output_dir:
        outside_of_data(output_dir)
        return Path(os.path.expanduser(output_dir))
    in_run = weights.stem in ("best", "last", "previous")
    name = weights.resolve().parent.name if in_run else weights.stem
    return where().runs.with_name("predictions") / name


def _check_folder(folder: Path, asked: dict[str, Any]) -> None:
    "UserError if the folder holds anything but a prediction with these weights and inputs."
    with cannot_be_written(folder):
        names = set(os.listdir(folder)) - {".lock"} if os.path.lexists(folder) else set()
    strangers = sorted(names - {*PICTURES, *TABLES, SUMMARY})
    before = Folder(folder).read_json(SUMMARY).get("asked") if names else asked
    if strangers or before != asked:
        what = f"{shown(strangers[0])}, which is no result" if strangers else "another prediction"
        raise UserError(f"output_dir={str(folder)!r}: holds {what}; write another --output-dir")


def _outside(files: Sequence[Path], folder: Path) -> list[Path]:
    "The files outside the folder of results; UserError if none is left."
    within = os.path.join(os.path.realpath(folder), "")
    left = [path for path in files if not os.path.realpath(path).startswith(within)]
    if not left:
        raise UserError("no input but what is in the output folder: name other images")
    return left


def _clear_folder(folder: Path, kinds: Sequence[str]) -> None:
    "Make the folders of these kinds of pictures, and remove the pictures of an earlier prediction."
    with cannot_be_written(folder):
        for kind in PICTURES:
            for path in (*(folder / kind).glob("*.png"), *(folder / kind).glob(".*.tmp")):
                path.unlink()
            if kind in kinds:
                (folder / kind).mkdir(parents=True, exist_ok=True)
            elif (folder / kind).is_dir():
                (folder / kind).rmdir()


# %%
test_eq(_output_folder(here / "run" / "best.pt", "").parts[-2:], ("predictions", "run"))
with expect_fail(UserError, contains="which is no result"):
    _check_folder(here / "one", {})

# %% [markdown]
# ## All of it
#
# Everything that can be wrong is checked before anything is written: settings, weights, inputs, the folder. An unreadable file is reported, skipped and counted. Frames of one size that fit into one piece are predicted together, and a larger one alone. After a request to stop, the run ends before the next pass of the network, and the frame in progress leaves no trace.

# %%
#| export
_MOST_WARNINGS = 20  # skipped files that are printed


@dataclass
class Summary:
    "The counts of a prediction."

    folder: Path
    files: int = 0  # requested
    frames: int = 0  # predicted
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
        "Count an unreadable file, and warn."
        self.skipped[str(frame.file)] = frame.error
        count = len(self.skipped)
        if count <= _MOST_WARNINGS:
            more = f" (further ones are in {SUMMARY} only)" if count == _MOST_WARNINGS else ""
            warnings.warn(f"{frame.file}: {frame.error}; skipped{more}", stacklevel=2)

    @contextlib.contextmanager
    def recorded(self, **content: Any) -> Iterator[None]:
        "Record the state in the folder: running, then finished, stopped or failed."
        began, state = time.monotonic(), "running"

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
def _batches(frames: Iterable[Frame], tile: int, size: int) -> Iterator[tuple[list[Frame], int]]:
    "Up to `size` consecutive frames that can be predicted together; how many tiles each has."

    def kind(frame: Frame) -> tuple[Any, ...]:
        if frame.error:
            return (0,)
        tiling = Tiling(frame.pixels.shape, tile)
        return len(tiling.places), tiling.padded, frame.pixels.ndim

    for (tiles, *_), alike in itertools.groupby(frames, kind):
        while batch := list(itertools.islice(alike, max(size, 1) if tiles <= 1 else 1)):
            yield batch, tiles


def _predict_into(
    writer: Writer,
    summary: Summary,
    detector: Callable[..., Tensor],
    batches: Iterable[tuple[list[Frame], int]],
    tile: int,
) -> None:
    "Predict frames and write the results, until all are done or a stop is requested."
    with Stop() as stop:

        def check() -> None:
            if stop.reason:
                raise Stopped(stop.reason, stop.number)

        for batch, tiles in batches:
            if batch[0].error:
                for frame in batch:
                    summary.skip(frame)
                continue
            maps = predict_frames(detector, [frame.pixels for frame in batch], tile, check)
            for frame, prob in zip(batch, maps, strict=True):
                summary.detections += writer.write(frame, prob, tiles)
                summary.frames += 1


def predict_files(
    weights: str | Path,  # a file, or the folder of a run; empty: the pretrained weights
    inputs: str | Path | Sequence[str | Path],  # images, videos, folders, globs
    output_dir: str | Path = "",  # empty: predictions/, named after the weights
    device: str = "auto",
    precision: str = "auto",
    tile: int = TILE,  # longest side that is predicted in one piece
    save: str = "masks,overlays",  # pictures to write: some of PICTURES, or none
    batch_size: int = 4,  # frames of one size that are predicted together; no result depends on it
    num_workers: int = -1,  # 0: no reading ahead; -1: by the device
) -> Summary:
    "Predict files, and write masks, tables and overlays."
    _check_tile(tile)
    kinds, path = _kinds_to_save(save), _existing(weights)
    folder = _output_folder(path, output_dir)
    named = [inputs] if isinstance(inputs, str | Path) else inputs
    found = find_files(named)  # a mistyped input is reported first, whatever the folder holds
    asked = {"weights": str(path), "inputs": [os.path.normpath(text) for text in named]}
    _check_folder(folder, asked)
    files = _outside(found, folder)
    detector = open_weights(path, device, precision)
    summary, several = Summary(folder, len(files)), (*VIDEOS, ".tif", ".tiff")
    total = 0 if any(file.suffix.lower() in several for file in files) else len(files)
    workers = num_workers if num_workers >= 0 else int(_images_per_pass(detector) > 1)
    with alone(folder), warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="PIL")  # we report errors of files ourselves
        _clear_folder(folder, kinds)
        with (
            summary.recorded(asked=asked, protocol=_protocol(detector, tile)),
            Writer(folder, kinds, files, detector.threshold) as writer,
        ):
            frames = bar(_read_ahead(files, workers), total, "predict")
            _predict_into(writer, summary, detector, _batches(frames, tile, batch_size), tile)
    return summary


def _protocol(detector: Detector | OnnxDetector, tile: int) -> dict[str, Any]:
    "The protocol of the detections, for summary.json."
    return {
        "weights": detector.name,
        "size": "each frame at its own, padded by its mirror image to multiples of 16",
        "tile": tile,
        "threshold": detector.threshold,
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
