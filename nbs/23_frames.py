# %% [markdown]
# # Frames: images, TIFF pages, videos
#
# > The frames of files: images, pages of a TIFF, frames of a video or of an animation.
#
# An infrared camera writes 14 or 16 bits and a network reads 8. A careless conversion between them loses the small targets. The other difficulty is the file: one image, the pages of a TIFF, a video, an animated GIF, PNG or WebP, complete or truncated. This page turns all of them into one sequence of 8-bit frames, read as for training.

# %%
#| hide
#| default_exp frames
import tempfile

import matplotlib.pyplot as plt

from mshnet.data import grey_range
from mshnet.frames import read_frames
from mshnet.metrics import objects
from mshnet.scenes import scene

# %%
#| export
import importlib.util
import itertools
import json
import math
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mshnet.core import UserError, reason
from mshnet.data import SUFFIXES, one_channel, opened, pixels_of, refuse_size
from mshnet.files import prefetch

# %% [markdown]
# ## Which values become black and white?
#
# If the 256 grey levels reach from the minimum to the maximum of a frame, one dead or hot pixel takes most of them, and a target vanishes in the few that are left. The usual percentile stretch clips the brightest hundredth of the pixels, and a target of 20 pixels is smaller than that, so it gets the value of the brightest clouds.
#
# Below is a frame of 14 bits with one hot pixel (square) and three targets (circles), stretched in three ways; the third is ours, `grey_range`. Above each panel are the grey levels of the dimmest target and of the warm spot below it, which is no target. On the left the hot pixel takes nearly all levels, and two levels separate target and spot. In the middle the targets shine, but the spot and the upper corners are as white. On the right all is dimmer to the eye, but 45 levels separate target and spot:

# %%
grey, mask = scene(np.random.default_rng(1), 160)
deep = grey.astype(np.uint16) * 4 + 7000
deep[20, 30] = 2**14 - 1
rows, cols = objects(mask > 0).centroid.T
peaks = deep[54:63, 120:129].max(), deep[80:105, 120:155].max()  # a target, a warm spot
ranges = {
    "minimum to maximum": (deep.min(), deep.max()),
    "percentiles 1 to 99": np.percentile(deep, (1, 99)),
    "grey_range": grey_range(deep),
}
figure = plt.figure(figsize=(10, 3.6), layout="constrained")
for axes, (title, (black, white)) in zip(figure.subplots(1, 3), ranges.items(), strict=True):
    axes.imshow(deep, cmap="gray", vmin=black, vmax=white)
    axes.scatter(cols, rows, 300, "none", marker="o", edgecolors="orange")
    axes.scatter(30, 20, 200, "none", marker="s", edgecolors="orange")
    target, spot = (255 * min((v - black) / (white - black), 1) for v in peaks)
    axes.set(xticks=[], yticks=[], title=f"{title}\ntarget {target:.0f}, warm spot {spot:.0f}")

# %% [markdown]
# The range of `grey_range` goes from minimum to maximum, but not far beyond the percentiles 2 and 99.5: at most twice the distance between these two, on either side. If a pixel lies beyond that, the range ends at the largest value that three neighbouring pixels reach, so a single bad pixel, or two together, do not count. A target of three pixels or more within that reach keeps its contrast, and a brighter one becomes white, far above the background. Frames without such outliers are stretched from minimum to maximum.
#
# Hot lines, a few telemetry rows or an empty border cover more than half a percent of a frame, so they move the percentiles. `grey_range` therefore also looks at the frame without all pixels of its smallest and of its largest value, and without up to four rows or columns at an edge (eight elsewhere) that are far from those beside them. If most pixels remain, and their percentiles 2 and 99.5 are less than half as far apart, these decide the range. (In 1,065 real images without such lines, this distance changes by an eighth at most.) If most of a frame still gets fewer than 16 levels, a warning says so.
#
# ## A folder with a damaged file
#
# Below is a folder with a file of one image, a truncated one, and a TIFF of two pages. A damaged file gives its reason in place of a frame, and the next file is read. In a video, a damaged frame gives its reason, and the next frame is read:

# %%
place = tempfile.TemporaryDirectory()
here = Path(place.name)
image, page = Image.fromarray(grey), Image.fromarray(deep)
image.save(here / "0.png")
page.save(here / "stack.tif", save_all=True, append_images=[page])
(here / "broken.png").write_bytes((here / "0.png").read_bytes()[:999])
for frame in read_frames(sorted(here.iterdir()), 1):
    print(f"{frame.file.name:10}  frame {frame.number}  last: {frame.last}  {frame.error}".rstrip())

# %% [markdown]
# ## The machinery: one decoder for each kind
#
# An image of more than 160 million pixels is rejected, because a file of a few kilobytes can claim them. A frame is passed on when the next one has been read, because only then we know whether it is the last.
#
# Videos in colour become 8-bit. A grey video of more bits (or of three equal channels of 16) is stretched frame by frame, as in training: with one range for the whole clip, a hot frame would hide the dim targets of all others. The price is overlays that may flicker. Of several video tracks the first is read, with a warning. A video that was taken with the camera turned says so in its header, and we turn or mirror each frame as a player does.
#
# A decoder does not report that a video is truncated, so we compare where its packets end with the duration in the header. The packets of all streams count, because sound may last longer than the picture. A broken AVI has the duration of what is left, so there we compare with the number of frames in the header. (For an MP4 that would be wrong: it counts frames that an edit has hidden.)

# %%
#| export
VIDEOS = (".mp4", ".avi", ".mov", ".mkv", ".webm", ".m4v", ".mpg", ".mpeg")
READABLE = (*SUFFIXES, *VIDEOS)
_MOST = 160_000_000  # pixels of a frame; Pillow's own limit is a little higher


@dataclass(frozen=True)
class Frame:
    "One frame of a file, or the error in its place."

    file: Path
    number: int  # within its file, from 0
    single: bool  # the only frame of a file that is no video
    pixels: np.ndarray  # [H,W] or [H,W,3] uint8; empty after an error
    error: str = ""  # one line
    count: int = 1  # frames of the file, by its header
    last: bool = True  # no frame of its file follows


def _pages(file: Path) -> Iterator[tuple[np.ndarray | str, int]]:  # or an error; number of pages
    "The pages of an image file. Raises one of Pillow's many errors for other files."
    with opened(file, _MOST) as image:
        try:
            count = 1 if image.format == "MPO" else getattr(image, "n_frames", 1)  # with a preview
        except Exception:  # a file that breaks off: its first pages may be there
            count = 0
        text = str(getattr(image, "tag_v2", {}).get(270))
        values = image.width * image.height * len(image.getbands())
        stack = "\nimages=" in text.replace("\nimages=1\n", "")  # by ImageJ; or by tifffile
        stack |= '"truncated": true' in text and math.prod(json.loads(text)["shape"]) > values
        if count == 1 and stack:
            raise UserError("a stack in one page: save its images as pages, or as single files")
        for page in range(count) if count else itertools.count():
            image.seek(page)
            if page and getattr(image, "tag_v2", {}).get(254, 0) & 5:  # reduced, or a mask
                continue
            refuse_size(image, _MOST)
            try:
                pixels: np.ndarray | str = pixels_of(image)
            except UserError as error:
                if count == 1 or "NaN" not in (pixels := str(error)):  # a NaN costs its page alone
                    raise
            yield pixels, count


def _upright(picture: Any) -> np.ndarray:  # [H,W] or [H,W,3] uint8
    "The pixels of a frame of a video, turned and mirrored as it is shown."
    parts = picture.format.components
    bits = max(part.bits for part in parts)
    if len(parts) < 3 and bits > 8:  # grey, with transparency or without
        pixels = pixels_of(Image.fromarray(picture.to_ndarray(format="gray16le")))
    else:
        pixels = one_channel(picture.to_ndarray(format="rgb24"))
        if bits > 12 and (deep := one_channel(picture.to_ndarray(format="rgb48le"))).ndim == 2:
            pixels = pixels_of(Image.fromarray(deep))
    matrix = picture.side_data.get("DISPLAYMATRIX")
    a, b, _, c, d = np.frombuffer(matrix, np.int32)[:5] if matrix else (1, 0, 0, 0, 1)
    if abs(b) > abs(a):  # columns become rows
        pixels, a, d = pixels.swapaxes(0, 1), c, b
    return np.ascontiguousarray(pixels[:: -1 if d < 0 else 1, :: -1 if a < 0 else 1])


def _pictures(file: Path) -> Iterator[tuple[np.ndarray | str, int]]:  # as of `_pages`
    "The frames of a video. Raises one of many errors for other files, and if it breaks off."
    if not importlib.util.find_spec("av"):
        raise UserError("videos need the package av; run: pip install av")
    import av

    with av.open(str(file.absolute())) as video:
        stream: Any = video.streams.video[0]
        cover, more = av.stream.Disposition.attached_pic, video.streams.video[1:]
        if count := sum(not each.disposition & cover for each in more):
            todo = "the first is read; `ffmpeg -i A -map 0:v:1 -c copy B` extracts the second"
            warnings.warn(f"{file}: {1 + count} picture tracks, {todo}", stacklevel=2)
        start = max(video.start_time or 0, 0) / av.time_base
        whole = (video.duration or 0) / av.time_base
        whole -= start * ("matroska" in video.format.name)  # whose duration counts from 0
        seconds = float((stream.duration or 0) * stream.time_base) or whole
        rate, ends = float(stream.average_rate or 0), [0.0, 0.0]  # of the stream, of any
        if avi := video.format.name == "avi":  # its duration is the duration of the rest
            seconds = stream.frames / (rate or 1)
        for packet in video.demux():
            own = packet.stream.index == stream.index
            if packet.pts is not None:
                end = float((packet.pts + (packet.duration or 0)) * (packet.time_base or 0))
                ends = [max(ends[0], end * own), max(ends[1], end)]
            try:
                pictures: list[Any] = packet.decode() if own else []
            except av.error.FFmpegError:  # it costs its pictures alone
                pictures = [None]
            for picture in pictures:
                good = picture and not picture.is_corrupt
                pixels = _upright(picture) if good else "damaged picture"
                yield pixels, round(seconds * rate) or stream.frames
        exact = avi or "mp4" in video.format.name  # others round
        if ends[1] - start < 0.9 * whole or (exact and ends[0] < seconds - 2 / (rate or 1)):
            raise OSError("it breaks off")


def _each(file: Path) -> Iterator[Frame]:
    "The frames of a file, or an error after those before it."
    video, done, blank = file.suffix.lower() in VIDEOS, 0, np.zeros((0, 0), np.uint8)
    try:
        for pixels, count in _pictures(file) if video else _pages(file):
            shown, error = (blank, pixels) if isinstance(pixels, str) else (pixels, "")
            yield Frame(file, done, False, shown, error, count=count)
            done += 1
        if not done:
            raise OSError("no frame")
    except Exception as error:  # decoders raise many kinds for damaged bytes
        told = isinstance(error, (UserError, PermissionError, FileNotFoundError, MemoryError))
        why = reason(error) if told else f"unreadable {'video' if video else 'image'}"
        why += f", from frame {done}" if done else ""
        yield Frame(file, done, False, blank, why)


def frames_of(file: Path) -> Iterator[Frame]:  # the last one, or a page, may have an error
    "The frames of a file, one after the other."
    for frame, after in itertools.pairwise(itertools.chain[Any](_each(file), [None])):
        last, of_clip = after is None, file.suffix.lower() in VIDEOS and not frame.error
        yield replace(frame, last=last, single=last and not frame.number and not of_clip)


def read_frames(files: Iterable[Path], workers: int) -> Iterator[Frame]:
    "The frames of all files, in order; a worker reads a few ahead."
    frames = itertools.chain.from_iterable(map(frames_of, files))
    read = prefetch(lambda _: next(frames, None), itertools.count(), min(workers, 1))
    yield from itertools.takewhile(lambda frame: frame is not None, read)

# %% [markdown]
# ## Questions
#
# 1. The percentiles 2 and 99.5 of a frame are 7,000 and 7,400. Its targets reach 7,600, and one hot pixel has 60,000. Which value becomes white, and how many of the 256 grey levels lie between 7,400 and the targets?
#    <details><summary>Answer</summary>7,600, because the hot pixel is alone. (If three hot pixels touched, it would be 7,400 + 2 * 400 = 8,200.) If the minimum is near 7,000, the range has 600 values, and the targets are 200 of them above 7,400: about 85 of 256 levels. From minimum to maximum it would be one.</details>
# 2. A video of 1,000 frames breaks off after 300. What does `read_frames` return for it?
#    <details><summary>Answer</summary>For an AVI, an MKV, or an MP4 with its index at the beginning: the 300 frames, and then an entry without pixels whose error is "unreadable video, from frame 300". For an MP4 with its index at the end: one entry, "unreadable video". In both cases the next file is read as usual.</details>
