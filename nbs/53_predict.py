# %% [markdown]
# # Predict images and videos
#
# > Find targets in images, folders and videos of any size: masks, tables, and overlays with the detections marked.
#
# A trained network takes a tensor whose sides are multiples of 16. You have files: one image of any size, a video of 16 bits, a folder of ten thousand frames of which one is damaged. `find_targets` and `detect` are for one image. `mshnet predict` is for all the others. It reads, predicts, writes and forgets one frame after the other, so a thousand frames need no more memory than one.

# %%
#| hide
#| default_exp predict
import tempfile

import matplotlib.pyplot as plt

from mshnet.predict import EXAMPLE, detect, detections, find_targets, predict_files, tiles_of
from mshnet.predict import predict as predict_image
from mshnet.scenes import scene

# %%
#| export
import contextlib
import functools
import io
import itertools
import json
import os
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files as files_of
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from scipy.ndimage import label
from scipy.special import expit, logit
from torch import Tensor, nn

from mshnet.augment import UNIT, pad_mirrored
from mshnet.core import UserError, counted, shown
from mshnet.data import outside_of_data, pixels_of
from mshnet.device import is_out_of_memory
from mshnet.evaluate import Detector, expect_bytes
from mshnet.files import (
    SUMMARY,
    cannot_be_written,
    digest,
    explain_failure,
    find_inputs,
    stamp,
    write_atomic,
    write_json,
    write_table,
)
from mshnet.frames import READABLE, Frame, frames_of, read_frames
from mshnet.metrics import Objects, crop
from mshnet.run import Folder, Stop, Stopped, environment
from mshnet.session import bar, duration
from mshnet.task import Written, predictions_folder
from mshnet.tracks import COLUMNS, Tracker, confirmed_tracks
from mshnet.weights import PRETRAINED, settings_of_weights, weights_file

# %% [markdown]
# ## One image
#
# `find_targets` returns the image with its detections marked. Without an argument it takes a real frame, a drone above clouds. The weights come with the library. `detect` returns the same detections as numbers:

# %%
(target,) = detect(EXAMPLE, device="cpu")
print(target | {name: round(target[name], 2) for name in ("peak", "mean")})
find_targets(device="cpu")

# %% [markdown]
# Rows and columns count from 0 at the centre of the top-left pixel. The box is top, left, bottom, right, and ends one past the last pixel. `peak` and `mean` are the highest and the mean probability of its pixels; in the image the label is the number of the object and its peak. The image may also be an array or an image of Pillow. For your own weights, pass a run folder or a checkpoint as `weights`.
#
# ## What is a detection?
#
# The network gives each pixel a probability of target; `mshnet.predict` returns this map (it is imported here as `predict_image`). A detection is a set of pixels above the threshold that touch at a side or a corner. Here is a synthetic scene with two targets, and what three thresholds make of one map:

# %%
image, _ = scene(np.random.default_rng(50), 160)
prob = predict_image("pretrained", image, device="cpu")
figure = plt.figure(figsize=(9, 3.3), layout="constrained")
for axes, threshold in zip(figure.subplots(1, 3), (0.1, 0.5, 0.9), strict=True):
    axes.imshow(image, cmap="gray")
    axes.contour(prob, [threshold], colors="tab:orange")
    areas = ", ".join(map(str, detections(prob, threshold).area))
    axes.set(xticks=[], yticks=[], xlim=(66, 156), ylim=(159.5, 80))
    axes.set_title(f"threshold {threshold}: areas {areas}")

# %% [markdown]
# At 0.1 both targets are detected. Each higher threshold shrinks the first detection, and 0.5 already loses the second. The default is the threshold stored with the weights, else 0.5. `threshold` of `detect` and `--threshold` of `mshnet predict` change it, and `--min-area` drops small detections.
#
# ## Folders and videos
#
# `predict_files` is `mshnet predict` in Python. We give it two folders with files of the same names, and a damaged file:

# %%
place = tempfile.TemporaryDirectory()
here = Path(place.name)
for name in ("one/0.png", "one/1.png", "two/0.png", "two/1.png"):
    (here / name).parent.mkdir(exist_ok=True)
    Image.fromarray(scene(np.random.default_rng(int(name[4]) + 1), 160)[0]).save(here / name)
(here / "broken.png").write_bytes((here / "one" / "0.png").read_bytes()[:999])
with warnings.catch_warnings(record=True, action="always") as caught:
    done = predict_files("", f"{here}/**", here / "out", "cpu")
print(done, "|", len(caught), "warning")
names = sorted(p.relative_to(here / "out").as_posix() for p in (here / "out").rglob("[!.]*.*"))
print(*names, sep="\n")

# %% [markdown]
# Each frame gets a mask of 0 and 255 and an overlay. `detections.csv` has a line per detection. `coco.json` contains the same for COCO's tools, with the pixels of each detection. `frames.csv` lists all frames, and `skipped.csv` the files that cannot be read.
#
# If the command is interrupted, run it again: finished files are not predicted twice. Results of files that are gone are removed, and a line reports how many. With `--tracks` the detections of a video are linked from frame to frame ([tracks](44_tracks.ipynb)). `tracks.csv` lists the confirmed tracks, and the overlays show their numbers. A detection of a track that is not confirmed yet has a question mark.
#
# ## Any size
#
# The network halves its input four times, hence the multiples of 16. We pad a frame at the right and below with its mirror image, and cut the padding off the result. (`mshnet test` does something else: it resizes each image to one square, as its scores demand.)
#
# If a side is longer than `--tile`, which is 1,024 by default, we cut the frame into tiles that overlap by an eighth or more. Where two tiles overlap, the weight of one falls smoothly from 1 to 0 while that of the other rises. The weights of a pixel add up to 1, so an object on a seam is neither cut nor counted twice. The figure shows the weights of the four tiles of a frame of 200x200 pixels (208x208 with its padding) with `--tile 128`, from 0 (black) to 1 (white). Only the sides that overlap fade:

# %%
tiles, padded = tiles_of((200, 200), 128)
figure = plt.figure(figsize=(4, 4.3), layout="constrained")
for axes, ((rows, columns), fade) in zip(figure.subplots(2, 2).flat, tiles, strict=True):
    axes.imshow(np.outer(*fade), cmap="gray", vmin=0, vmax=1)
    axes.set(xticks=[], yticks=[], xlabel=f"columns {columns.start} to {columns.stop - 1}")
    axes.set_ylabel(f"rows {rows.start} to {rows.stop - 1}")


# %% [markdown]
# Is the result the same as in one piece? Nearly. The channel attention of the network takes the mean and the maximum of its whole input, so the channels get different attention weights in a tile than in the frame. Large tiles change little: on synthetic frames of 1500x1500 pixels, tiles of 1,024 add one to 61 detections, and tiles of 512 change none. Padding changes little, too: on NUAA-SIRST it loses 3 of 287 detections and adds 2. Small tiles do matter: on 182 frames of NUAA-SIRST, which fit into one piece, tiles of 256 add 54 detections to 246 and lose 5 ([script and results](../results/predict-tiles)). A tile should be as large as the memory allows. `--tile 2048` takes four times the memory of the default.
#
# A frame of 10,000x10,000 pixels with 668 synthetic targets, in 144 tiles, took 76 seconds on two otherwise idle cores and 1.6 GB of memory at most, with weights that predict at one size ([folder](../results/predict-large)).
#
# ## Two sizes
#
# On a new camera a target may be larger than any in the training images. At half its size it looks familiar. So the pretrained weights predict each frame twice, at its own size and at half of it. The logit of a pixel is 0.3 times its logit at full size, plus 0.3 times its logit at half size, plus 3. The file of weights contains these three numbers and the factor 2 of the reduction as its `multiscale`.
#
# Does it help on a new camera? We trained weights without one data set, four times, and predicted it at one size and at two ([table](../mshnet/pretrained.md), [numbers](../results/pretrained/continued)). Two sizes raise Pd on three sets (most on IRSTD-1k, from 0.859 to 0.905; NUAA-SIRST falls from 0.911 to 0.900) and IoU on two of three. But Fa about doubles, or more.
#
# This is a little optimistic: the three numbers were chosen on some of these images. On held-out images of data sets that the weights know, the second size raises the IoU of IRSTD-1k from 0.510 to 0.690, and lowers that of NUAA-SIRST from 0.771 to 0.733 and that of NUDT-SIRST from 0.675 to 0.620. Two sizes compute a quarter more pixels than one. `mshnet test` always predicts at one size.
#
# Other weights predict at one size, that of their training. IRSTD-1k has images of 512x512 pixels; training resizes them to 256x256, so a target is half as large as in the file. In test frames at their own size, weights trained on IRSTD-1k find 0.779 of the targets with 0.52 false alarms a frame; in frames reduced to half, 0.912 with 0.22 (means of three seeds, [numbers](../results/irstd-1k-steady)). So a run records the rounded factor by which training reduced its images, and its weights predict each frame reduced by it. With `--base-size native` or `--crop native` frames keep their size. Runs from before 2026-11-27, and published weights, have no record: reduce the frames yourself. A run that begins with the pretrained weights inherits their three numbers and predicts at both sizes: on a new camera, two sizes found more targets than either size by itself ([numbers](../results/cross-camera/fine-tune)).
#
# One size gives probabilities near 0 or 1, and the threshold hardly matters. With two, the sizes may disagree. If one is sure of a target and the other of none, their logits cancel and the constant 3 remains, a probability of 0.95. So either size may find a target. If that size is less sure the probability is lower, and `--threshold` chooses between more targets and fewer false alarms.
#
# ## The machinery: detections

# %%
#| export
@dataclass(frozen=True)
class Detections(Objects):
    "The detections of a frame, in the order of their first pixel."

    box: np.ndarray  # [N,4] top, left, bottom, right; the last two are one past the last pixel
    peak: np.ndarray  # [N] highest probability
    mean: np.ndarray  # [N] mean probability
    pixels: tuple[np.ndarray, np.ndarray]  # rows and columns of all pixels of all detections

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

    def runs(self, shape: Sequence[int]) -> Iterator[list[int]]:  # shape: [H,W] of the frame
        "Lengths of runs outside and inside of each object, by columns: COCO's uncompressed RLE."
        height, width = shape
        places = self.pixels[1].astype(np.int64) * height + self.pixels[0]
        for end, area in zip(np.cumsum(self.area), self.area, strict=True):
            at = np.sort(places[end - area : end])
            gaps = np.flatnonzero(np.diff(at) > 1)
            edges = np.stack([at[np.r_[0, gaps + 1]], at[np.r_[gaps, area - 1]] + 1], 1)
            yield np.diff(np.r_[0, edges.ravel(), height * width]).tolist()


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
    low, high = ([of.reduceat(v, first) for v in (y, x)] for of in (np.minimum, np.maximum))
    centroid = [np.add.reduceat(v, first, dtype=float) / area for v in (y, x)]
    return Detections(
        centroid=np.stack(centroid, 1),
        area=area,
        box=np.stack([*low, *(v + 1 for v in high)], 1),
        peak=np.maximum.reduceat(values, first),
        mean=np.add.reduceat(values, first, dtype=float) / area,
        pixels=(y, x),
    )


_COLOUR = "#E69F00"  # of Okabe and Ito's palette; differs from grey for colour-blind eyes too
_MOST_LABELS = 50


def overlay(
    pixels: np.ndarray,  # [H,W] or [H,W,3] uint8
    found: Sequence[dict[str, Any]],  # the rows of the detections, with their tracks in a clip
) -> Image.Image:  # longest side up to 4096
    "A frame with its detections marked; above 50 without labels, because these would cover it."
    side = max(pixels.shape[:2])
    scale = float(max(1, 1024 // side)) if side <= 4096 else 4096 / side
    width, height = (max(1, round(n * scale)) for n in pixels.shape[1::-1])
    resample = Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.BOX
    image = Image.fromarray(pixels).resize((width, height), resample).convert("RGB")
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(13)
    for row in found:
        top, left, bottom, right = (scale * x for x in row["box"])
        top, left = max(top - 5, 0), max(left - 5, 0)  # at an edge the box stays in the image
        bottom, right = min(bottom + 4, height - 1), min(right + 4, width - 1)
        draw.rectangle((left, top, right, bottom), outline=_COLOUR)
        if len(found) > _MOST_LABELS:
            continue
        text = f"#{row['object']} {row['peak']:.2f}"
        if "track" in row:
            text = f"track {row['track']}" if row["confirmed"] else "?"
        room = (y for y in (top - 16, bottom + 1) if 0 <= y <= height - 16)  # above, or below
        x, y = max(1, min(left, width - draw.textlength(text, font) - 1)), next(room, 0)
        draw.text((x, y), text, _COLOUR, font, stroke_width=1, stroke_fill="black")
    return image


# %% [markdown]
# ### Tiles
#
# All tiles of a frame have one size, as small as their number allows. They begin at multiples of 16, as the poolings of the network do. A side of 1,000 pixels fits into one piece, with 8 pixels of padding. One of 10,000 becomes 12 tiles.

# %%
#| export
TILE = 1024  # longest side that is predicted in one piece


def _cut(length: int, tile: int) -> tuple[int, list[int]]:
    "Side of the tiles along one side of a frame, and their starts. At most two overlap."
    whole, most = -(-length // UNIT), tile // UNIT
    if whole <= most:
        return whole * UNIT, [0]
    overlap = max(2, -(-most // 8))
    count = -(-(whole - overlap) // (most - overlap))
    side = -(-(whole + (count - 1) * overlap) // count)
    return side * UNIT, [i * (whole - side) // (count - 1) * UNIT for i in range(count)]


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


def tiles_of(
    shape: Sequence[int],  # [H,W] of a frame
    tile: int = TILE,
) -> tuple[list[tuple[Any, Any]], tuple[int, int]]:
    "Slices and weights (of rows, of columns) of the tiles of a frame; its padded shape."
    cuts = [_cut(length, tile) for length in shape[:2]]
    places = itertools.product(*([slice(x, x + side) for x in xs] for side, xs in cuts))
    fades = itertools.product(*(_fades(*cut) for cut in cuts))
    height, width = (starts[-1] + side for side, starts in cuts)
    return list(zip(places, fades, strict=True)), (height, width)


# %% [markdown]
# Tiles are predicted one by one and added up, because PyTorch may compute four images with a different kernel than one, and then the last bits differ. So on one machine, with the same number of threads, a tile has the same probabilities, bit for bit, whatever else is predicted. (We tested this on a CPU. On a TPU every size of frame is compiled separately, so frames of one size are best there.) If a frame is also, or only, predicted at a reduced size, every logit is limited to ±13.8 (probabilities 0.000001 and 0.999999).

# %%
#| export
def _forward(detector: Callable[..., Tensor], pixels: np.ndarray) -> np.ndarray:  # [H,W]
    "Probabilities of pixels with sides of multiples of 16; UserError if out of memory."
    image = torch.from_numpy(np.ascontiguousarray(pixels))[None]
    rgb = image.permute(0, 3, 1, 2) if image.ndim == 4 else image[None].expand(-1, 3, -1, -1)
    try:
        return detector(rgb, 1)[0, 0].numpy()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        size = "x".join(map(str, pixels.shape[:2]))
        raise UserError(f"no memory for a piece of {size}: use a smaller --tile") from None


def _in_tiles(detector: Callable[..., Tensor], pixels: np.ndarray, tile: int) -> np.ndarray:
    "Probabilities of target of a frame at its own size."
    tiles, shape = tiles_of(pixels.shape, tile)
    padded, prob = pad_mirrored(pixels, shape), np.zeros(shape, np.float32)
    for place, fade in tiles:
        prob[place] += np.outer(*fade) * _forward(detector, padded[place])
    return prob[: pixels.shape[0], : pixels.shape[1]]


def _logits(detector: Callable[..., Tensor], pixels: np.ndarray, tile: int) -> np.ndarray:  # [H,W]
    "Limited logits of a frame at its own size."
    prob = _in_tiles(detector, pixels, tile)
    return logit(np.clip(prob, 1e-6, 1 - 1e-6, out=prob), out=prob)


def predict_frame(
    detector: Callable[..., Tensor],
    pixels: np.ndarray,  # [H,W] or [H,W,3] uint8, of any size
    tile: int = TILE,  # longest side that is predicted in one piece
) -> np.ndarray:  # [H,W] float32, 0..1
    "Probabilities of target of one frame; of a frame without pixels an empty map."
    if not isinstance(pixels, np.ndarray) or (pixels.size and pixels.dtype != np.uint8):
        raise UserError("predict_frame takes uint8 arrays; `mshnet.predict` takes any image")
    if not pixels.size:
        return np.zeros(pixels.shape[:2], np.float32)
    if not (multiscale := getattr(detector, "multiscale", ())):
        return _in_tiles(detector, pixels, tile)
    full, reduced, constant, reduction = multiscale
    height, width = pixels.shape[:2]
    small = Image.fromarray(pixels).reduce(int(reduction))  # means of squares of pixels
    size = small.width * int(reduction), small.height * int(reduction)
    found = Image.fromarray(_logits(detector, np.asarray(small), tile))
    large = np.asarray(found.resize(size, Image.Resampling.BILINEAR))[:height, :width]
    total = reduced * large + constant
    if full:
        total += full * _logits(detector, pixels, tile)
    return expit(total, out=total)


# %%
found: Detections = detections(prob)
print("overlay:", overlay(image, [*found.rows()]).size, "tiles:", len(tiles_of((1000, 10_000))[0]))
print("an odd size stays:", predict_frame(Detector(PRETRAINED, "cpu"), image[:150, :141]).shape)

# %% [markdown]
# ### One image in memory
#
# `detect`, `find_targets` and `predict` have the same probabilities as `mshnet predict`, whether an image of 8 or 16 bits comes from a file, an array or a batch. `detect` and `find_targets` keep the detector in memory for the next call.

# %%
#| export
EXAMPLE = Path(str(files_of("mshnet"))) / "examples" / "drone.png"  # a real frame, CC0


@functools.lru_cache(maxsize=1)
def _last_opened(file: Path, changed: Any, device: str) -> Detector:
    "The detector of a file of weights, kept for the next image until the file changes."
    return Detector(file, device)


def _pixels_in(image: Any) -> np.ndarray:  # [H,W] or [H,W,3] uint8
    "The pixels of an image file, or of an image in memory as if it were read from a file."
    if isinstance(image, str | Path):
        frames = (frame for file in find_inputs(image, READABLE) for frame in frames_of(file))
        frame, more = next(frames), next(frames, None)
        if frame.error or more:
            reason = "holds more than one image; `mshnet predict` takes them all"
            raise UserError(f"{image}: {frame.error or reason}")
        return frame.pixels
    if isinstance(image, Image.Image):
        with explain_failure("the image cannot be read", "open its file again", damaged=True):
            return pixels_of(image)
    try:
        if isinstance(image, Tensor):  # also with gradients, on a GPU, or bfloat16
            values = (image.float() if image.dtype == torch.bfloat16 else image).numpy(force=True)
        else:
            values = np.asarray(image)
        fits = values.ndim in (2, 3) and values.shape[2:] != (2,)
        if not fits or not values.size or values.dtype == np.int8:
            raise ValueError(values.shape)
        picture = Image.fromarray(_as_pillow_reads(values))
    except (TypeError, ValueError, IndexError, RuntimeError):
        shape, kind = getattr(image, "shape", ""), getattr(image, "dtype", type(image).__name__)
        what = f"{kind}{shape and f' {shape}'} is not an image"
        todo = "give a file's name, [H,W] or [H,W,3] of uint8 or of floats from 0 to 1"
        raise UserError(f"{what}; {todo}, or [H,W] of 16 bits or more") from None
    return pixels_of(picture)


def _as_pillow_reads(values: np.ndarray) -> np.ndarray:
    "Values as Pillow reads them; those that are bytes, or bytes divided by 255, as bytes."
    kind, size = values.dtype.kind, values.itemsize
    if kind in "iu" and (size == 8 or (size == 4 and 0 <= values.min() <= values.max() <= 255)):
        values = values.astype(float)
    elif kind == "u" and size == 4:  # Pillow would read them as signed
        return (values.astype(np.int64) - 2**31).astype(np.int32)
    elif kind != "f":
        return values
    low, high = values.min(), values.max()
    if 0 <= low <= high <= 1:
        x = values.astype(float)
        tops = (255, 256, 1023, 1024, 4095, 4096, 16383, 16384, 65535, 65536)
        top = next((n for n in tops if abs(x * n - (x * n).round()).max() < 0.1), 0)
        if values.ndim == 3 or top < 257:  # else 10 to 16 bits, divided
            grey = (values * 255).round().astype(np.uint8)
            if top not in tops[:2] and (n := np.unique(grey).size) < min(32, np.unique(x).size):
                warnings.warn(f"floats of {n} grey levels: give undivided values", stacklevel=4)
            return grey
    if 0 <= low <= high <= 255 and (values == values.round()).all():
        if kind == "f" and 0 < high - low < 32:
            what = f"whole numbers from {low:g} to {high:g} are read as 8 bits"
            warnings.warn(f"{what}; give temperatures with their fractions", stacklevel=4)
        return values.astype(np.uint8)
    return values.astype(np.float32)


def _expect_possible(
    tile: int = TILE, threshold: float | None = None, min_area: int = 1, kinds: Sequence[str] = ()
) -> None:
    "UserError for an impossible setting."
    if tile not in range(128, 8193, UNIT):
        raise UserError(f"{tile=} is not possible: use a multiple of 16, from 128 to 8192")
    if threshold is not None and not (isinstance(threshold, Real) and 0 <= threshold <= 1):
        raise UserError(f"{threshold=} is not possible: use a number from 0 to 1")
    if not (isinstance(min_area, Integral) and min_area >= 1):
        raise UserError(f"{min_area=} is not possible: use a number of pixels, at least 1")
    if not {*kinds} <= {"masks", "overlays"}:
        todo = "masks, overlays or none; coco.json has the boxes, ffmpeg joins overlays to a video"
        raise UserError(f"save={shown(','.join(kinds))} is not possible: use {todo}")


def detect(
    image: Any,  # a file's name, an array or tensor [H,W] or [H,W,3], or an image of Pillow
    weights: str | os.PathLike[str] = PRETRAINED,  # or a run, its folder, a file
    threshold: float | None = None,  # of the probability; None: the one stored with the weights
    device: str = "auto",
) -> list[dict[str, Any]]:  # of each: centroid [row, col], box, area, peak and mean probability
    """Find small targets in one image of any size.

    An array holds 8 or 16 bits, floats from 0 to 1 (as `image / 255`), or other numbers, such as
    temperatures or `frame / 65535`, which are stretched as 16 bits are. Whole numbers from 0 to
    255 are 8 bits, except in int16 and uint16: give temperatures with their fractions. The box is
    top, left, bottom, right; the last two are one past the last pixel. Raises UserError for a value
    that is not an image, and for a threshold outside 0 to 1.
    """
    _expect_possible(threshold=threshold)
    pixels, file = _pixels_in(image), weights_file(weights)
    detector = _last_opened(file, stamp(file), device)
    threshold = detector.threshold if threshold is None else threshold
    return list(detections(predict_frame(detector, pixels), threshold).rows())


def find_targets(
    image: Any = "",  # as for `detect`; empty: a real frame, a drone above clouds
    weights: str | os.PathLike[str] = PRETRAINED,
    threshold: float | None = None,
    device: str = "auto",
) -> Any:  # an image, or a line for weights of another task
    "The image with the detected targets marked; a line for weights of another task."
    name = shown(image) if isinstance(image, str) else "the image"
    if isinstance(image, str) and not image:
        image, name = EXAMPLE, f"{EXAMPLE.name}, an example"
    pixels, task = _pixels_in(image), settings_of_weights(weights).get("task", "detect")
    if task != "detect":  # in a notebook, which continues
        return f"find_targets: is for task detect; `mshnet predict` takes files for {task}"
    found = detect(pixels, weights, threshold, device)
    print(f"{counted(len(found), 'target')} in {name}")
    return overlay(pixels, found)


def predict(
    weights: str | os.PathLike[str] | nn.Module,  # a run, its folder, a file, "pretrained"; a model
    images: Any,  # an image as for `detect`, a list of them, or a tensor [B,3,H,W] uint8
    device: str = "auto",
    precision: str = "auto",
) -> Any:  # float32, 0..1: an array [H,W], a list of them, or a tensor [B,1,H,W]
    """The probability of target of each pixel of images of any size.

    Raises UserError for weights and images of another type, and for files that cannot be read.
    """
    detector = Detector(weights, device, precision)
    if isinstance(images, Tensor) and images.ndim == 4:
        expect_bytes(images)
        each = images.permute(0, 2, 3, 1).numpy(force=True)
        found = np.stack([predict_frame(detector, pixels) for pixels in each])
        return torch.from_numpy(found)[:, None]
    if isinstance(images, list | tuple):
        return [predict_frame(detector, _pixels_in(image)) for image in images]
    return predict_frame(detector, _pixels_in(images))


# %%
maps = [predict("pretrained", x, "cpu") for x in (image, image / 255, Image.fromarray(image))]
print("equal to the last bit:", all((one == maps[0]).all() for one in maps))

# %% [markdown]
# ### Names
#
# The results of a frame have the name of its file, with the number of the frame if there are several. Equal names get the folder in front, or a number. `clip.mp4` beside `clip_00001.png` gets a number, too, because its second frame would have that name. Upper and lower case count as equal, because some disks ignore them. Names depend only on the list of files, so several processes find the same ones. A name that is not UTF-8, such as one that a Chinese Windows wrote, is kept for masks and overlays; in tables an invalid byte becomes `\xNN`, a carriage return `\r`.

# %%
#| export
_LONGEST = 230  # bytes of a name; systems allow 255, of which some are added to it


def _spelled(name: str | Path) -> str:
    "A name as all tables have it, even if it is not valid UTF-8 or has a carriage return."
    return os.fsencode(name).decode("utf-8", "backslashreplace").replace("\r", "\\r")


def _names(files: Sequence[Path]) -> dict[Path, str]:
    "The name of the results of each file; those of its frames have a number behind it."
    stems, taken = Counter(f.stem.casefold() for f in files), set[str]()
    names = {file: file.stem for file in files}
    for file in (file for file in files if stems[file.stem.casefold()] > 1):
        names[file] = f"{Path(os.path.abspath(file)).parent.name}_{file.stem}"
    for file, stem in sorted(names.items(), key=lambda x: -len(re.findall(r"_\d{5,}", x[1]))):
        while len(os.fsencode(stem)) > _LONGEST:
            stem = stem[:-1]
        tries = itertools.chain([stem], (f"{stem}_{i}" for i in itertools.count(2)))
        names[file] = next(name for name in tries if name.casefold() not in taken)
        taken |= {names[file].casefold(), re.sub(r"_\d{5,}$", "", names[file]).casefold()}
    return names


# %% [markdown]
# ### Finished files
#
# Each file has a record in `records/`, with a line for each frame that is done. The same command skips the files whose record is complete, and predicts the others from their beginning. A record contains the path, the size and the time of change of its file, so a file that was replaced is predicted again, and so is one whose mask or overlay is gone. All tables are made of these records, at the end or after an interrupt. `summary.json` records how the results were made, and whether the prediction is running, finished, stopped or failed.

# %%
#| export
_RECORDS = "records"  # the folder with a file of lines for each input
_TABLES = {
    "detections.csv": "file,frame,name,object,row,col,top,left,bottom,right,area,peak,mean,track",
    "frames.csv": "file,frame,name,height,width,detections",
    "skipped.csv": "file,frame,error",
}
_MOST_WARNINGS = 20  # skipped files that are printed; all are in skipped.csv


def _read_record(path: Path) -> Iterator[dict[str, Any]]:
    "The lines of a record, up to half a line of a process that was killed."
    with contextlib.suppress(FileNotFoundError, ValueError), open(path, "rb") as file:
        yield from map(json.loads, file)


def _annotation(row: dict[str, Any], size: Sequence[int], number: int, image: int) -> str:
    "A detection as COCO's tools read it."
    top, left, bottom, right = row["box"]
    box = {"bbox": [left, top, right - left, bottom - top], "area": row["area"], "iscrowd": 0}
    shape = {"segmentation": {"size": size, "counts": row["runs"]}, "score": row["peak"]}
    return json.dumps({"id": number, "image_id": image, "category_id": 1, **box, **shape})


def _write_tables(folder: Path, lines: Iterable[dict[str, Any]]) -> dict[str, Any]:  # counts
    "Write the tables and coco.json of all frames that are done."
    tables: list[list[list[Any]]] = [[columns.split(",")] for columns in _TABLES.values()]
    found, frames, skipped = tables
    images, annotations = list[str](), list[str]()
    for line in lines:
        file, number, size = line["stamp"][0], line["frame"], line["size"]
        if line["error"]:
            skipped.append([file, number, line["error"]])
            continue
        head = [file, number, line["name"]]
        frames.append([*head, *size, len(line["objects"])])
        image = {"id": len(images) + 1, "file_name": file, "frame": number}
        images.append(json.dumps({**image, "height": size[0], "width": size[1]}))
        for row in line["objects"]:
            values = (row.get(name) for name in ("area", "peak", "mean", "track"))
            found.append([*head, row["object"], *row["centroid"], *row["box"], *values])
            annotations.append(_annotation(row, size, len(annotations) + 1, len(images)))
    for name, rows in zip(_TABLES, tables, strict=True):
        write_table(folder / name, rows)
    parts = {"images": ",\n".join(images), "annotations": ",\n".join(annotations)}
    lists = "".join(f', "{part}": [\n{items}]' for part, items in parts.items())
    coco = f'{{"categories": [{{"id": 1, "name": "target"}}]{lists}}}\n'
    write_atomic(folder / "coco.json", coco)
    errors = {file: error for file, _, error in skipped[1:]}
    return {"frames": len(images), "detections": len(annotations), "skipped": errors}


class _Results:
    "A folder of results: masks, overlays and a record of each file, and at the end the tables."

    def __init__(self, folder: Path, files: Sequence[Path], record: dict[str, Any]) -> None:
        self.folder, self.record = folder, record  # the latter for summary.json
        self.request, self.began = record["asked"], time.monotonic()
        self.names = _names(files)
        self.records = {f: folder / _RECORDS / f"{name}.jsonl" for f, name in self.names.items()}
        paths = {f: [_spelled(f), _spelled(os.path.abspath(f))] for f in files}
        self.stamps = {f: [*names, *(stamp(f) or ())[:2]] for f, names in paths.items()}
        png = [{_spelled(p.stem) for p in (folder / k).glob("*.png")} for k in self.request["save"]]
        kept = {file: names for file in files if (names := self._names_if_done(file, png))}
        self.left = [file for file in files if file not in kept]
        if kept:
            print(f"resume  {folder}: {counted(len(kept), 'file')} done", file=sys.stderr)
        if gone := {*(folder / _RECORDS).glob("*.jsonl")} - {*self.records.values()}:
            text = f"results of {counted(len(gone), 'file')}, gone or named otherwise now"
            print(f"removed {folder}: {text}", file=sys.stderr)
        write_json(folder / SUMMARY, {"state": "running", **record})
        (folder / "frames.csv").touch()  # by which `find_inputs` knows the folder
        self._clean(kept)

    def _names_if_done(self, file: Path, drawn: list[set[str]]) -> set[str]:
        "Frame names of a file whose record is complete, current and drawn; else none."
        names, line = set[str](), dict[str, Any](last=False)
        for line in _read_record(self.records[file]):
            names |= set() if line["error"] else {line["name"]}
        done = line["last"] and not line["error"] and line["stamp"][1:] == self.stamps[file][1:]
        return names if done and all(map(names.issubset, drawn)) else set()

    def _clean(self, done: dict[Path, set[str]]) -> None:
        "Make the folders, and remove from them what does not belong to the finished files."
        names, records = set().union(*done.values()), {self.records[file] for file in done}
        folders = [self.folder / kind for kind in (_RECORDS, *self.request["save"])]
        with cannot_be_written(self.folder):
            for folder in folders:
                folder.mkdir(parents=True, exist_ok=True)
            old = {*folders[0].glob("*.jsonl")} - records
            files = {record.stem for record in (*old, *self.records.values())}
            for image in [path for folder in folders[1:] for path in folder.glob("*.png")]:
                own = {image.stem, re.sub(r"_\d{5,}$", "", image.stem)} & files  # not the user's
                if own and _spelled(image.stem) not in names:
                    image.unlink()
            for path in (*old, *(half for folder in folders for half in folder.glob(".*.tmp"))):
                path.unlink()

    def lines(self) -> Iterator[dict[str, Any]]:
        "The lines of all frames that are done, in the order of the files, as these are named now."
        for file, record in self.records.items():
            yield from (line | {"stamp": self.stamps[file]} for line in _read_record(record))

    def finish(self) -> Written:
        "Write the tables of all files, and report those that were skipped."
        counts = self.summarise("finished")
        for file, error in itertools.islice(counts["skipped"].items(), _MOST_WARNINGS):
            warnings.warn(f"{file}: {error}; see skipped.csv", stacklevel=2)
        numbers = (counted(counts[f"{of}s"], of) for of in ("frame", "file", "detection"))
        text = "{} of {}: {} in ".format(*numbers) + duration(counts["seconds"])
        if (sizes := self.record["multiscale"]) and not sizes[0]:
            text += f"; frames reduced {sizes[3]:g} times, as in training"
        return Written(self.folder, text, len(counts["skipped"]))

    def summarise(self, state: str) -> dict[str, Any]:
        "Write the tables and summary.json; the latter's content."
        counts = {"files": len(self.names), **_write_tables(self.folder, self.lines())}
        if self.request["tracks"]:
            rows = list(confirmed_tracks(self.lines()))
            write_table(self.folder / "tracks.csv", [COLUMNS.split(","), *rows])
            counts["tracks"] = len(rows)
        seconds = round(time.monotonic() - self.began, 3)
        content = {"state": state, **self.record, **counts, "seconds": seconds}
        write_json(self.folder / SUMMARY, content)
        return content

    def write(self, frame: Frame, prob: np.ndarray) -> int:
        "Write a frame's mask and overlay, then its line; return the number of detections."
        found = detections(prob, self.record["threshold"], self.request["min_area"])
        name = self.names[frame.file] + ("" if frame.single else f"_{frame.number:05d}")
        rows = self._rows(frame, found)
        if not frame.error:
            self._draw(frame, name, found, rows)
        for row, runs in zip(rows, found.runs(prob.shape), strict=True):
            row["runs"] = runs
        line = {"stamp": self.stamps[frame.file], "frame": frame.number, "last": frame.last}
        line |= {"error": frame.error, "name": _spelled(name), "size": prob.shape, "objects": rows}
        record = self.records[frame.file]
        with cannot_be_written(record), open(record, "a" if frame.number else "w") as file:
            file.write(f"{json.dumps(line)}\n")
        return len(found)

    def _rows(self, frame: Frame, found: Detections) -> list[dict[str, Any]]:
        "The rows of a frame; in a clip, if asked, with the track of each."
        rows = list(found.rows())
        if self.request["tracks"] and not frame.single:
            if not frame.number:
                self.tracker = Tracker()
            for row, number in zip(rows, self.tracker.update(found.centroid), strict=True):
                row |= {"track": number, "confirmed": number in self.tracker.confirmed}
        elif self.request["tracks"] and not frame.error:
            todo = "join single images to a video or a TIFF stack"
            warnings.warn(f"tracks link the frames of one file; {todo}", stacklevel=2)
        return rows

    def _draw(self, frame: Frame, name: str, found: Detections, rows: list[Any]) -> None:
        "Write the mask and the overlay of a frame."
        for kind in self.request["save"]:
            mask, content = np.zeros(frame.pixels.shape[:2], np.uint8), io.BytesIO()
            mask[found.pixels] = 255
            image = overlay(frame.pixels, rows) if kind == "overlays" else Image.fromarray(mask)
            image.save(content, "PNG", compress_level=3)
            write_atomic(self.folder / kind / f"{name}.png", content.getvalue(), durable=False)


# %% [markdown]
# ### The folder and the command
#
# Results go into `predictions/NAME`, named after the run or the file of weights. If that folder contains the prediction of other inputs, by other weights or with other settings, they go into `predictions/NAME-2`. If the user named such a folder, it is an error. Settings, weights, inputs and the folder are checked before anything is written. After a request to stop, the run ends after the frame in progress.
#
# With torchrun, or with `--num-devices 2`, several processes share the files: each of two takes every second one. The first process makes the folder and sends the list of files to the others. When all are done, it writes the tables. A video, or a file of many pages, is one file. If a process is killed, torchrun stops the others. The same command with any number of processes then predicts what is left. Here the folders above are predicted again:

# %%
with contextlib.redirect_stderr(io.StringIO()) as printed, warnings.catch_warnings(action="ignore"):
    predict_files("", f"{here}/**", here / "out", "cpu")
print(printed.getvalue().splitlines()[0].replace(f"{here}/", ""))


# %%
#| export
def _record(detector: Detector, path: Path, inputs: Any, options: dict[str, Any]) -> dict[str, Any]:
    "What makes two predictions the same, the threshold, and how they were made."
    places = [os.path.abspath(os.path.expanduser(name)) for name in inputs]
    asked = {"weights": os.path.abspath(path), "sha256": digest(path), "inputs": places, **options}
    threshold = detector.threshold if options["threshold"] is None else options["threshold"]
    own = {"threshold": threshold, "multiscale": detector.multiscale}
    return {"asked": asked, **own, "environment": environment(detector.device.description)}


def _predict_part(results: _Results, detector: Detector) -> None:
    "Predict this process's files and show progress; Stopped after a request to stop."
    ranks, tile, found, skipped = detector.device.ranks, results.request["tile"], 0, 0
    wait_for_all = ranks.barrier()
    if not (results.folder / SUMMARY).exists():
        todo = "name an --output-dir on a disk that all machines share"
        raise UserError(f"{results.folder}: is not on this machine; {todo}")
    files = results.left[ranks.rank :: ranks.count]
    frames = read_frames(files, int(detector.device.kind != "cpu"))
    text = f"predict, process {ranks.rank + 1} of {ranks.count}" if ranks.count > 1 else "predict"
    meter: Any = bar(frames, len(files), text, "frames")  # at first one frame for each file
    try:
        with Stop() as stop:
            for frame in meter:
                if stop.reason:
                    raise Stopped(stop.reason, stop.number)
                meter.total += max(frame.count - 1, 0) if not frame.number else 0
                found += results.write(frame, predict_frame(detector, frame.pixels, tile))
                skipped += bool(frame.error)
                more = f", {skipped} skipped" if skipped else ""
                meter.set_postfix_str(counted(found, "detection") + more, refresh=False)
        wait_for_all()
    except BaseException as error:
        if not ranks.rank:
            results.summarise("stopped" if isinstance(error, KeyboardInterrupt) else "failed")
        raise


def predict_files(
    weights: str | Path,  # a file, or a run folder; empty: the pretrained weights
    inputs: str | Path | Iterable[str | Path],  # images, videos, folders, globs
    output_dir: str | Path = "",  # empty: predictions/, named after the weights
    device: str = "auto",
    precision: str = "auto",
    tile: int = TILE,  # longest side that is predicted in one piece
    save: str | Iterable[str] = "masks,overlays",  # what to write: one of them, both, or none
    threshold: float | None = None,  # of the probability; None: the one stored with the weights
    min_area: int = 1,  # pixels of the smallest detection
    tracks: bool = False,  # link the detections of a clip, for tracks.csv and the overlay
) -> Written:
    "Predict files, and write masks, tables and overlays; files finished before are skipped."
    words = sorted(word.strip() for word in (save.split(",") if isinstance(save, str) else save))
    kinds = [] if words in ([""], ["none"]) else words
    _expect_possible(tile, threshold, min_area, kinds)
    number = None if threshold is None else float(threshold)  # of numpy, too
    options = {"tile": int(tile), "threshold": number, "min_area": int(min_area), "tracks": tracks}
    inputs = [inputs] if isinstance(inputs, str | Path) else list(inputs)
    if tracks:
        Tracker()  # fails now, before the work, if its library is missing
    files = find_inputs(inputs, READABLE)  # a mistyped input is reported first
    path = weights_file(weights or PRETRAINED)
    detector = Detector(path, device, precision, shared=True)
    record = _record(detector, path, inputs, {"precision": precision, "save": kinds, **options})

    def is_same(folder: Path) -> bool:
        return bool(Folder(folder).read_json(SUMMARY).get("asked") == record["asked"])

    def begin() -> _Results:
        outside_of_data(output_dir)
        folder = predictions_folder(path, output_dir, "detect", is_same)
        return _Results(stack.enter_context(folder), files, record)

    with contextlib.ExitStack() as stack, warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="PIL")  # we report errors of files ourselves
        results = detector.device.ranks.rank_zero(begin)
        _predict_part(results, detector)
        return detector.device.ranks.rank_zero(results.finish)

# %% [markdown]
# ## Questions
#
# 1. A threshold of 0.1 gives two detections in the scene above, 0.5 gives one. Can a lower threshold also give <em>fewer</em> detections?
#    <details><summary>Answer</summary>Yes. Every detection grows, and two that touch become one. Their common centroid may then be too far from both targets.</details>
