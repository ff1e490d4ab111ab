"Prediction of files: what is exact, what is written, and what bad input is answered with."

import ast
import csv
import importlib.util
import itertools
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import TOP, call
from PIL import Image
from scipy.ndimage import gaussian_filter
from skimage.measure import label, regionprops_table
from warm import Python

import mshnet.predict
import mshnet.session
from mshnet.cli import main
from mshnet.core import UserError
from mshnet.data import grey_range, mask_values, pixels_of
from mshnet.device import OneProcess
from mshnet.files import find_inputs
from mshnet.frames import READABLE, frames_of
from mshnet.predict import _Results, detect, detections, overlay, predict_files, predict_frame
from mshnet.scenes import scene

COLOUR = (0xE6, 0x9F, 0x00)  # of the boxes


def bright(images, batch_size=4):
    "A detector that looks at each pixel alone: its grey level is its probability."
    return images.float().mean(1, keepdim=True) / 255


bright.name, bright.threshold, bright.multiscale = "bright", 0.5, ()
bright.device = SimpleNamespace(kind="cpu", ranks=OneProcess(), description="cpu")


def noise(*shape, seed=0):
    "Grey levels."
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def put(folder, names, side=20):
    "Write different images of noise; the folder."
    for seed, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise(side, side, seed=seed)).save(folder / name)
    return folder


def table(path):
    "The rows of a CSV file."
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def summary(out):
    "What is recorded of a prediction."
    return json.loads((out / "summary.json").read_text())


def results(out):
    "The content of all results but the records."
    files = [p for p in out.rglob("*") if p.is_file() and p.name not in ("summary.json", ".lock")]
    return {p.relative_to(out): p.read_bytes() for p in files}


def command(capsys, *words):
    "Status, output and error lines of `mshnet predict`, but for its progress."
    status, out, err = call(capsys, "predict", *words)
    return status, out, [line for line in err.splitlines() if not line.startswith("  ")]


@pytest.fixture
def by_pixels(monkeypatch):
    "Predictions by `bright` in place of the network: quick, and what it finds is known."
    monkeypatch.setattr(mshnet.predict, "Detector", lambda *x, **how: bright)


# Tiles, and what is found on them


@pytest.mark.parametrize("tile", [128, 144, 1024])
def test_tiles_cover_every_frame_and_weights_add_up(tile):
    "At any length: no gap, no pixel in three tiles, overlaps, weights 1 in sum and without a jump."
    for length in [*range(1, 4 * tile, tile // 20), 10_000]:
        side, starts = mshnet.predict._cut(length, tile)
        total, count = np.zeros((2, -(-length // 16) * 16), np.float32)
        for start, weight in zip(starts, mshnet.predict._fades(side, starts), strict=True):
            total[start : start + side] += weight
            count[start : start + side] += 1
            assert len(starts) == 1 or np.abs(np.diff(weight)).max() < 2 / (tile // 8 // 16 * 16)
        assert np.abs(total - 1).max() < 1e-6
        assert count.max() <= 2 and side <= tile
        laps = [a + side - b for a, b in itertools.pairwise(starts)]
        assert all(lap >= tile // 8 // 16 * 16 for lap in laps)


@pytest.mark.parametrize("shape", [(128, 128), (1, 1), (130, 7), (200, 333), (333, 200, 3)])
def test_what_tiles_do_not_change_is_returned_to_rounding(shape):
    "A detector that looks at single pixels gives in tiles what it gives in one piece."
    image = noise(*shape)
    one = image.reshape(*shape[:2], -1).mean(2) / 255
    for tile in (1024, 128):
        prob = predict_frame(bright, image, tile)
        assert prob.shape == shape[:2] and np.abs(prob - one).max() < 1e-6
    assert predict_frame(bright, image[:0]).shape == (0, shape[1])


@pytest.mark.parametrize("seed", range(3))
def test_detections_agree_with_regionprops(seed):
    "scikit-image's own count of area, box, centroid, peak and mean."
    smooth = gaussian_filter(np.random.default_rng(seed).normal(size=(60, 83)), 1 + seed)
    prob = (1 / (1 + np.exp(-8 * smooth / smooth.std()))).astype(np.float32)
    names = ("area", "bbox", "centroid", "intensity_max", "intensity_mean")
    want = regionprops_table(label(prob > 0.6, connectivity=2), prob, properties=names)
    found = detections(prob, 0.6)
    assert len(found) == len(want["area"]) > 0
    columns = [found.area, *found.box.T, *found.centroid.T, found.peak, found.mean]
    for have, name in zip(columns, want, strict=True):  # in the order of `names`
        np.testing.assert_allclose(have, want[name], rtol=1e-5)


def test_missing_memory_is_one_line():
    "With the remedy."

    def too_large(images, batch_size=4):
        raise RuntimeError("CUDA out of memory. Tried to allocate 9 GiB")

    with pytest.raises(UserError, match="no memory for a piece of 32x48: use a smaller --tile"):
        predict_frame(too_large, noise(32, 48))


# What goes in


def test_sixteen_bits(tmp_path):
    "Grey is stretched by the frame's own minimum and maximum. (Other modes: test_data.py.)"
    tifffile = pytest.importorskip("tifffile")  # scikit-image brings it
    grey = noise(20, 30)
    deep = grey.astype(np.uint16) * 31 + 7000
    for name in ("deep.tif", "deep.png"):
        Image.fromarray(deep).save(tmp_path / name)
        [frame] = frames_of(tmp_path / name)
        assert not frame.error and frame.single
        assert np.array_equal(frame.pixels, np.round((grey - grey.min()) * (255 / np.ptp(grey))))
    # Pillow would drop the lower eight bits of interleaved channels, and read planes as noise
    tifffile.imwrite(tmp_path / "colour.tif", np.dstack([deep] * 3), photometric="rgb")
    for count in (3, 4):
        tifffile.imwrite(tmp_path / f"planes{count}.tif", np.stack([deep] * count))
    for name in ("colour", "planes3", "planes4"):
        [frame] = frames_of(tmp_path / f"{name}.tif")
        assert "16 bits in several channels" in frame.error, name
        with pytest.raises(UserError, match="16 bits in several channels"):
            mask_values(tmp_path / f"{name}.tif")


def test_a_hot_or_dead_pixel_hides_no_target(tmp_path):
    "Nor do lines without data, hot ones, telemetry and a border; from a file and from an array."
    frame = np.random.default_rng(0).normal(7200, 2, (96, 128)).round().astype(np.uint16)
    frame[40:43, 60:63] += 20
    dead, hot, cold = frame.copy(), frame.copy(), (frame / 100 - 273.15).astype(np.float32)
    dead[0, 0], hot[5, 7], cold[0] = 0, 2**14 - 1, -9999
    lines, border, rows = frame.copy(), frame.copy(), frame.copy()
    lines[:, 9:11], border[:20], rows[-3:] = 2**16 - 1, 0, noise(3, 128) * np.uint16(257)
    floats = (frame / 65535, np.float32(frame / 65535), frame / 2**14)
    for pixels in (frame, dead, hot, cold, cold.astype(np.float64), lines, border, rows, *floats):
        [found] = detect(pixels, device="cpu")
        assert np.abs(np.subtract(found["centroid"], (41, 61))).max() < 1
        Image.fromarray(pixels).save(tmp_path / "a.tif")
        assert detect(tmp_path / "a.tif", device="cpu") == [found]
    for divided in (frame / frame.max(), np.dstack([frame / 65535] * 3)):
        with pytest.warns(UserWarning, match=r"floats of \d+ grey levels: give undivided"):
            detect(divided, device="cpu")
    with pytest.warns(UserWarning, match="whole numbers from 18 to 35 are read as 8 bits; give"):
        detect(np.linspace(18, 35, 4096).round().reshape(64, 64), device="cpu")
    rows[-9:] = noise(9, 128) * np.uint16(257)  # too many rows for a line, which is reported
    with pytest.warns(UserWarning, match="few of the 256 grey levels; if it has telemetry rows"):
        detect(rows, device="cpu")


def test_the_range_of_a_frame_without_outliers_is_its_own():
    "A bright target of few pixels becomes white, far above the background; one value is black."
    values = noise(50, 60).astype(float)
    assert grey_range(values) == (values.min(), values.max())
    noisy = np.random.default_rng(0).normal(7200, 2, (200, 200))
    top = noisy.max()
    noisy[9, 9:12] = 9000
    low, high = grey_range(noisy)
    assert low == noisy.min() and (top - low) / (high - low) < 0.7
    wide = scene(np.random.default_rng(1), 160)[0] * 4.0 + 7000
    low, high = grey_range(wide)
    wide[1, 1], wide[99, 99] = 2**14 - 1, 0  # a hot and a dead pixel
    assert 0.8 * (high - low) < np.ptp(grey_range(wide)) < 1.1 * (high - low)
    flat = np.full((64, 64), 7000.0)
    flat[::9, ::9], flat[5, 7] = 7200, 2**14 - 1  # many spots of one pixel
    assert grey_range(flat)[1] == 7200
    assert pixels_of(Image.fromarray(np.full((4, 4), 300, np.uint16))).max() == 0


def test_an_image_divided_by_255_is_that_image():
    "Grey and colour, in any precision, as a tensor too; and bytes that became other numbers."
    image = scene(np.random.default_rng(1), 96)[0]
    want = detect(image, device="cpu")
    assert want
    for same in (image / 255, (image / 255).astype(np.float32), torch.from_numpy(image) / 255):
        assert detect(same, device="cpu") == want
        assert detect(np.dstack([same] * 3), device="cpu") == want
    for kind in (np.float64, np.int64, np.uint64, np.int32, np.uint32):
        assert detect(image.astype(kind), device="cpu") == want
    stretched = detect(image.astype(np.int32) * 1000, device="cpu")
    for kind in ("u4", ">u4"):  # beyond the range of int32
        assert detect((image * np.uint32(2**24)).astype(kind), device="cpu") == stretched


@pytest.mark.parametrize(
    ("image", "line"),
    [
        (np.full((9, 9), np.nan), "pixels are NaN or infinite"),
        (np.full((9, 9), np.inf), "pixels are NaN or infinite"),
        (np.zeros(50), r"float64 \(50,\) is not an image; give a file's name, "),
        (np.zeros((8, 9, 2)), r"float64 \(8, 9, 2\) is not an image"),
        (np.zeros((1, 3, 9, 9)), "is not an image"),
        (np.full((9, 9, 3), 300.0), "is not an image"),
        (np.zeros((0, 5), np.uint8), "is not an image"),
        (np.zeros((9, 9), np.int8), "is not an image"),
    ],
)
def test_what_is_no_image_is_one_line(image, line):
    "With the kinds of arrays that are images."
    with pytest.raises(UserError, match=line):
        detect(image, device="cpu")
    if image.dtype != np.uint8:
        with pytest.raises(UserError, match="predict_frame takes uint8 arrays"):
            predict_frame(bright, image)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("a.tif", "TIFF"), ("a.PNG", "PNG"), ("a.gif", "GIF"), ("a.webp", "WEBP"), ("a.jpg", "MPO")],
)
def test_a_file_may_have_several_pictures(tmp_path, name, kind):
    "Pages, an animation; of a phone's JPEG the first, before its gain map; one is a frame."
    pictures = [Image.fromarray(np.full((20, 30), v, np.uint8)) for v in (20, 120, 200)]
    how: dict = {"lossless": True} if kind != "MPO" else {}
    pictures[0].save(tmp_path / name, "JPEG" if kind == "MPO" else kind, **how)
    [frame] = frames_of(tmp_path / name)
    assert frame.single and abs(frame.pixels.mean() - 20) < 2
    more = {"save_all": True, "append_images": pictures[1:], "duration": 90}
    pictures[0].save(tmp_path / name, kind, **how, **more)
    frames = list(frames_of(tmp_path / name))
    count = 1 if kind == "MPO" else 3
    want = [(i, count == 1, count) for i in range(count)]
    assert [(f.number, f.single, f.count) for f in frames] == want
    assert [round(f.pixels.mean(), -1) for f in frames] == [20, 120, 200][:count]


def film(path, pictures, codec, form, sound=0, late=0, **options):
    "Write grey pictures as a video of 10 a second, and silence beside it that may last longer."
    av = pytest.importorskip("av", reason="needs the extra video")
    with av.open(str(path), "w") as made:
        stream = made.add_stream(codec, rate=10, options=options)
        stream.height, stream.width = pictures[0].shape
        stream.pix_fmt = form
        voice = made.add_stream("pcm_s16le", rate=8000, layout="mono") if sound else None
        for number, picture in enumerate(pictures, 10 * late):
            how = "gray16le" if picture.dtype == np.uint16 else "gray"
            frame = av.VideoFrame.from_ndarray(picture, format=how)
            frame.pts, frame.time_base = number, Fraction(1, 10)
            made.mux(stream.encode(frame))
        made.mux(stream.encode())
        for start in range(0, 8000 * sound, 800):
            quiet = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), "s16", "mono")
            quiet.sample_rate, quiet.pts, quiet.time_base = 8000, start, Fraction(1, 8000)
            made.mux(voice.encode(quiet))


@pytest.mark.parametrize("suffix", [".MP4", ".avi", ".mkv"])
def test_a_video_is_read_picture_by_picture(tmp_path, suffix, monkeypatch):
    "The pictures before a break count, and the file is reported."
    clip = [noise(64, 64, seed=i) for i in range(20)]
    clip[3][:] = 200
    path = tmp_path / f"clip{suffix}"
    film(path, clip, "mpeg4", "yuv420p")
    whole = list(frames_of(path))
    assert [(f.number, f.error, f.single) for f in whole] == [(i, "", False) for i in range(20)]
    assert [f.last for f in whole] == [False] * 19 + [True]
    assert np.abs(whole[3].pixels.astype(int) - 200).mean() < 9
    monkeypatch.chdir(tmp_path)  # a colon in a relative name is no protocol
    assert len([*frames_of(Path(shutil.copy(path, f"12:30{suffix}")))]) == 20
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 8 // 10])
    *some, last = frames_of(path)
    if suffix == ".MP4":  # its index is at its end
        assert (len(some), last.error) == (0, "unreadable video")
    else:
        assert 0 < len(some) < 20
        assert last.error == f"unreadable video, from frame {len(some)}"


def test_a_page_of_nan_costs_that_page(tmp_path):
    "As a damaged picture of a film. One whose clock begins late, as parts of recordings, is whole."
    pages = [Image.fromarray(np.full((32, 32), np.nan if i == 2 else 9.5, "f4")) for i in range(5)]
    pages[0].save(tmp_path / "a.tif", save_all=True, append_images=pages[1:])
    assert [f.number for f in frames_of(tmp_path / "a.tif") if f.error] == [2]
    clip = [noise(64, 64, seed=i) for i in range(20)]
    film(path := tmp_path / "a.mp4", clip, "mpeg4", "yuv420p")
    path.write_bytes((whole := path.read_bytes())[:20000] + bytes(99) + whole[20099:])
    errors = [frame.error for frame in frames_of(path)]
    assert len(errors) == 20 and set(filter(None, errors)) == {"damaged picture"}
    film(tmp_path / "a.mkv", clip, "mpeg4", "yuv420p", late=50)
    assert [frame.error for frame in frames_of(tmp_path / "a.mkv")] == [""] * 20


def test_the_pages_before_a_break_count(tmp_path):
    "Of a TIFF file whose list ends in the middle. No thumbnail does, no stack or volume in a page."
    first, *rest = (Image.fromarray(noise(40, 50, seed=i)) for i in range(6))
    first.save(tmp_path / "pages.tif", save_all=True, append_images=rest)
    whole = (tmp_path / "pages.tif").read_bytes()
    (tmp_path / "pages.tif").write_bytes(whole[: len(whole) * 6 // 10])
    *some, last = frames_of(tmp_path / "pages.tif")
    assert [frame.pixels.shape for frame in some] == [(40, 50)] * 3
    assert last.error == "unreadable image, from frame 3"
    tifffile = pytest.importorskip("tifffile")
    for shape, imagej in itertools.product([(5, 64, 64), (64, 64)], [True, False]):
        tifffile.imwrite(tmp_path / "a.tif", np.zeros(shape, "u2"), imagej=imagej, truncate=True)
        error = next(frames_of(tmp_path / "a.tif")).error
        assert error.startswith("a stack in one page") == (len(shape) == 3)
    tifffile.imwrite(tmp_path / "a.tif", np.zeros((16, 16, 16), "u1"), volumetric=True)
    assert "a volume of several slices" in next(frames_of(tmp_path / "a.tif")).error
    tifffile.imwrite(tmp_path / "a.tif", noise(64, 64), metadata=None)
    tifffile.imwrite(tmp_path / "a.tif", noise(9, 9), append=True, subfiletype=1)
    page = {"append": True, "subfiletype": 4, "photometric": "mask"}
    tifffile.imwrite(tmp_path / "a.tif", noise(64, 64) > 9, **page)
    [frame] = frames_of(tmp_path / "a.tif")
    assert (frame.pixels.shape, frame.single) == ((64, 64), True)


def cut_mp4(path, to, tracks=1):
    "The second half of a video, without encoding it again: an edit list hides pictures."
    import av

    with av.open(str(path)) as whole, av.open(str(to), "w") as made:
        old = whole.streams.video[0]
        new, *_ = [made.add_stream_from_template(old) for _ in range(tracks)]
        for packet in (p for p in whole.demux(old) if p.dts is not None):
            packet.pts -= int(1.5 / old.time_base)
            packet.dts -= int(1.5 / old.time_base)
            packet.stream = new
            made.mux(packet)


def test_whole_videos_are_not_called_broken(tmp_path):
    "Sound that lasts longer than the picture; an MP4 whose header counts hidden pictures."
    clip = [noise(64, 64, seed=i) for i in range(30)]
    for name in ("sound.mkv", "sound.avi"):
        film(tmp_path / name, clip[:10], "mpeg4", "yuv420p", sound=3)
        assert [f.error for f in frames_of(tmp_path / name)] == [""] * 10
    film(tmp_path / "long.mp4", clip, "libx264", "yuv420p", bf="0", g="30", movflags="faststart")
    cut_mp4(tmp_path / "long.mp4", tmp_path / "cut.mp4")
    assert [f.error for f in frames_of(tmp_path / "cut.mp4")] == [""] * 15
    cut_mp4(tmp_path / "long.mp4", tmp_path / "two.mkv", tracks=2)
    with pytest.warns(match="two.mkv: 2 picture tracks, the first is read"):
        next(frames_of(tmp_path / "two.mkv"))
    data = (tmp_path / "sound.mkv").read_bytes()  # and a break is still found beside sound
    (tmp_path / "half.mkv").write_bytes(data[: len(data) // 2])
    data = (tmp_path / "long.mp4").read_bytes()  # its index comes first, and counts 30
    (tmp_path / "half.mp4").write_bytes(data[: len(data) // 2])
    for name in ("half.mkv", "half.mp4"):
        assert "unreadable video" in list(frames_of(tmp_path / name))[-1].error


@pytest.mark.parametrize("form", ["gray16le", "gray12le", "gbrp16le", "yuv444p16le"])
def test_a_deep_video_is_stretched_as_a_tiff_is(tmp_path, form):
    "A thermal camera's range is a small part of 16 bits, and of 12."
    deep = noise(48, 64).astype(np.uint16) * 16 + 7008
    film(tmp_path / "deep.mkv", [deep, deep // 2], "ffv1", form)
    Image.fromarray(deep).save(tmp_path / "deep.tif")
    [frame, half], [want] = (list(frames_of(tmp_path / f"deep.{x}")) for x in ("mkv", "tif"))
    lost = np.abs(frame.pixels.astype(int) - want.pixels).max()
    assert frame.pixels.ndim == 2 and lost <= (form != "gray16le")  # ffmpeg rounds 16 bits to 12
    assert np.ptp(half.pixels) == 255


@pytest.mark.parametrize("step", [1, -1])
@pytest.mark.parametrize("turns", range(4))
def test_a_video_is_turned_as_a_player_does(tmp_path, turns, step):
    "By the matrix in its header: upside down, a phone held upright, a mirror."
    picture = np.full((48, 96), 40, np.uint8)
    picture[4:12, 8:24] = 240
    film(tmp_path / "a.mp4", [picture] * 2, "libx264", "yuv420p")
    data = (tmp_path / "a.mp4").read_bytes()
    (a, b), (c, d) = (np.linalg.matrix_power([[0, -1], [1, 0]], turns) * (step, 1)).tolist()
    ones = struct.pack(">9i", 65536, 0, 0, 0, 65536, 0, 0, 0, 1 << 30)
    new = struct.pack(">9i", *[65536 * x for x in (a, b, 0, c, d, 0, 0, 0)], 1 << 30)
    at = data.index(ones, data.index(b"tkhd"))
    (tmp_path / "a.mp4").write_bytes(data[:at] + new + data[at + len(new) :])
    frame = next(frames_of(tmp_path / "a.mp4"))
    assert (np.rot90(picture, turns)[:, ::step] > 140).tolist() == (frame.pixels > 140).tolist()


def test_a_file_that_cannot_be_read_has_its_reason(tmp_path, monkeypatch):
    "A video without its package; 200 million pixels in a small file, before it is unpacked."
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    (tmp_path / "clip.mp4").touch()
    Image.new("1", (20_000, 10_000)).save(tmp_path / "large.png")
    [clip], [large] = (list(frames_of(tmp_path / name)) for name in ("clip.mp4", "large.png"))
    assert "pip install av" in clip.error
    assert "160,000,000 pixels" in large.error


def test_inputs_are_found_once_in_order(tmp_path, tmp_path_factory, monkeypatch):
    "Files, folders, patterns, links; not hidden, not below; results only if they are named."
    files = ("b.png", "a.PNG", "c.Png", "._b.png", "deep/d.jpg", ".hid/e.png", "out/masks/b.png")
    for name in (*files, "out/summary.json", "out/frames.csv", "set[1]/f.webp"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "deep" / "up").symlink_to(tmp_path)  # two loops would be 2^40 folders
    (tmp_path / "deep" / "again").symlink_to(tmp_path)
    (tmp_path / "self").symlink_to("self")
    far = tmp_path_factory.mktemp("far")
    (far / "g.png").touch()
    (tmp_path / "deep" / "link").symlink_to(far)
    here, below = str(tmp_path), ["a.PNG", "b.png", "c.Png", "d.jpg", "f.webp", "g.png"]

    def names(*inputs):
        return [p.name for p in find_inputs(inputs, READABLE)]

    with pytest.warns(UserWarning, match=r"3 files left out; for folders below .*/\*\*'$"):
        assert names(here) == ["a.PNG", "b.png", "c.Png"]
    assert names(f"{here}/b.png", f"{here}/**", here)[:3] == ["b.png", "a.PNG", "c.Png"]
    assert sorted(names(f"{here}/**")) == sorted(names(f"{here}/**/*.*")) == below
    assert names(f"{here}/deep/l*/**/*.png") == names(f"{here}/deep/link") == ["g.png"]
    (far / "same.png").symlink_to("g.png")  # as a store keeps equal frames
    assert names(far) == ["g.png", "same.png"]
    (far / "same.png").unlink()
    assert names(f"{here}/[ab]*") == ["a.PNG", "b.png"]
    assert names(f"{here}/d*") == ["d.jpg"]  # folders, as the shell makes of it
    assert names(f"{here}/set[1]/*.webp") == ["f.webp"]  # a folder of this name
    assert names(f"{here}/out/masks") == ["b.png"]
    for nothing in (f"{here}/out", f"{here}/out/**", f"{here}/.hid/*.jpg", f"{here}/a**b"):
        with pytest.raises(UserError, match=r"files that end in|nothing fits|cannot be searched"):
            names(nothing)
    for name in ("summary.json", "frames.csv", "masks/a.png"):  # results beside their images
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert sorted(names(f"{here}/**")) == below and len(names(here)) == 3
    (tmp_path / "set/images").mkdir(parents=True)
    with pytest.warns(UserWarning, match="1 input left out .such as .*set/images"):
        assert names(f"{here}/b.png", f"{here}/set/images") == ["b.png"]
    (tmp_path / "set/images/a.png").touch()
    with pytest.raises(UserError, match=r"for folders below .*/set: .*/set/images"):
        names(f"{here}/set")
    monkeypatch.setattr(os, "access", lambda folder, _: Path(folder).name != "deep")
    with pytest.warns(UserWarning, match="deep: may not be read, left out"):
        assert {"b.png", "d.jpg", "f.webp"} - {*names(f"{here}/**")} == {"d.jpg"}
    monkeypatch.setattr(Path, "glob", lambda folder, _: os.listdir(folder / "closed"))
    with pytest.raises(UserError, match="cannot be searched"):
        names(here)


# What comes out


def decoded(segmentation):
    "The mask of an uncompressed run-length encoding, as pycocotools' annToMask makes it."
    height, width = segmentation["size"]
    values = np.arange(len(segmentation["counts"])) % 2
    return np.repeat(values, segmentation["counts"]).reshape(width, height).T


def test_tables_coco_masks_and_overlays(tmp_path, weights, by_pixels):
    "All of them hold the same objects, at all four edges too; without a target they are empty."
    image = noise(19, 33)
    image[[0, -1]], image[:, [0, -1]] = 255, 255
    Image.fromarray(image).save(tmp_path / "some.png")
    Image.fromarray(image * 0).save(tmp_path / "empty.png")
    out = tmp_path / "out"
    done = predict_files(weights, tmp_path, out, save=["overlays", "masks"])
    rows, frames = table(out / "detections.csv"), table(out / "frames.csv")
    assert str(done).startswith(f"2 frames of 2 files: {len(rows)} detections in ")
    assert [r["detections"] for r in frames] == ["0", str(len(rows))]
    assert {r["file"] for r in rows} == {str(tmp_path / "some.png")}
    coco = json.loads((out / "coco.json").read_text())
    assert [x["file_name"] for x in coco["images"]] == [r["file"] for r in frames]
    total = np.zeros(image.shape, int)
    for row, found in zip(rows, coco["annotations"], strict=True):
        left, top, right, bottom = (int(row[k]) for k in ("left", "top", "right", "bottom"))
        assert found["bbox"] == [left, top, right - left, bottom - top]
        assert (found["image_id"], found["category_id"], found["iscrowd"]) == (2, 1, 0)
        assert found["score"] == float(row["peak"])
        mask = decoded(found["segmentation"])
        y, x = np.nonzero(mask)
        assert (y.min(), x.min(), y.max() + 1, x.max() + 1) == (top, left, bottom, right)
        place = float(row["row"]), float(row["col"])
        assert place == pytest.approx((y.mean(), x.mean()), abs=1e-3)
        assert mask.sum() == found["area"] == int(row["area"])
        total += mask
    mask = np.asarray(Image.open(out / "masks" / "some.png"))
    assert np.array_equal(mask, total * 255) and np.array_equal(total, image > 127)
    assert Image.open(out / "overlays" / "empty.png").size == (33 * 31, 19 * 31)
    assert (summary(out)["state"], summary(out)["skipped"]) == ("finished", {})


def test_names_are_whole_and_never_collide(tmp_path, weights, by_pixels):
    "Two folders with one file name, two suffixes, capitals, and pages that are called like files."
    names = ("day/x.png", "night/x.png", "night/x.jpg", "night/X.bmp", "day/s_00001.png")
    put(tmp_path, [*names, "day/s_12345_00001.png", f"day/{'n' * 200}.png", f"day/{'m' * 240}.png"])
    sheet = Image.fromarray(noise(20, 20))
    for name in ("s.tif", "s_12345.tif"):
        sheet.save(tmp_path / "day" / name, save_all=True, append_images=[sheet])
    out = tmp_path / "out"
    predict_files(weights, [tmp_path / "day", tmp_path / "night"], out)
    masks = [p.name.casefold() for p in (out / "masks").iterdir()]
    assert len(set(masks)) == summary(out)["frames"] == 12
    assert {"day_x.png", "night_x.png", f"{'n' * 200}.png"} <= set(masks)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
def test_a_name_has_one_spelling(tmp_path, weights, by_pixels, monkeypatch):
    "In GBK and in UTF-8, with a line feed, too; when all are finished; whatever the locale is."
    monkeypatch.chdir(tmp_path)
    Image.fromarray(np.pad(np.full((3, 3), 230, np.uint8), 20)).save("a.png")
    for name in ("红外".encode("gbk"), "红外".encode(), b"a\nb", b"c\rd"):
        shutil.copy(b"a.png", name + b".png")
    Path("a.png").unlink()
    names = {name for name in os.listdir(b".") if name.endswith(b".png")}
    want = {"\\xba\\xec\\xcd\\xe2.png", "红外.png", "a\nb.png", "c\\rd.png"}
    for _ in range(2):
        assert "4 frames of 4 files: 4 detections" in str(predict_files(weights, ".", "out"))
        for name in ("detections.csv", "frames.csv"):
            assert {row["file"] for row in table(f"out/{name}")} == want
        coco = json.loads(Path("out/coco.json").read_text())
        assert {x["file_name"] for x in coco["images"]} == want and len(coco["annotations"]) == 4
        assert set(os.listdir(b"out/masks")) == names
    code = "import os; from mshnet.predict import _spelled as s; print({*map(s, os.listdir())})"
    env = os.environ | {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "utf-8"}
    words = [sys.executable, "-X", "utf8=0", "-c", code]
    assert want <= ast.literal_eval(subprocess.check_output(words, env=env, encoding="utf-8"))


def marked(image, prob):
    "An overlay with what is above one half."
    return overlay(image, list(detections(prob).rows()))


def test_overlays_are_readable_at_any_size():
    "Small frames are enlarged, large ones shrunk, boxes lie where the objects are."
    image = np.full((60, 60), 20, np.uint8)
    image[2:5, 2:5] = 230
    large = np.asarray(marked(image, image / 255))
    assert large.shape == (1020, 1020, 3)
    assert (2 * 17 - 5) in np.argwhere((large == COLOUR).all(2))[:, 0]
    wide = np.zeros((50, 9000), np.uint8)
    assert max(marked(wide, wide).size) == 4096
    edges = np.pad(np.zeros((58, 58)), 1, constant_values=1)
    ring = np.asarray(marked(np.zeros((60, 60), np.uint8), edges))
    for side in (ring[0, 90:], ring[-1], ring[90:, 0], ring[:, -1]):  # not where the text is
        assert (side == COLOUR).all(), "the box is cut off"
    for count in (50, 51):  # labels of more would hide the frame
        dots = np.zeros((60, 1020))
        dots[40, 10 : 10 + 20 * count : 20] = 1
        picture = np.asarray(marked(np.zeros(dots.shape, np.uint8), dots))
        assert picture[35:45].any() and picture[20:34].any() == (count == 50)


def test_a_finished_file_is_skipped_until_it_changes(
    tmp_path, weights, by_pixels, monkeypatch, capsys
):
    "By size and time: a replaced file is predicted anew; what is gone is removed, with a line."
    put(tmp_path, [f"{i}.png" for i in range(5)], 40)
    out, read, half = tmp_path / "out", [], np.float32(0.5)
    real = mshnet.predict.read_frames
    monkeypatch.setattr(mshnet.predict, "read_frames", lambda *x: read.extend(x[0]) or real(*x))
    predict_files(weights, (path for path in [tmp_path]), out, threshold=half)
    first = results(out)
    predict_files(weights, tmp_path, out, threshold=0.5)
    assert len(read) == 5 and results(out) == first
    monkeypatch.chdir(tmp_path)
    predict_files(weights, ".", out, threshold=0.5)  # named in another way
    assert len(read) == 5 and table(out / "frames.csv")[0]["file"] == "0.png"
    (out / "masks" / "2.png").rename(tmp_path / "2.draft")
    predict_files(weights, tmp_path, out, threshold=0.5)
    assert [path.name for path in read[5:]] == ["2.png"] and results(out) == first
    read.pop()
    with pytest.raises(UserError, match="something else"):
        predict_files(weights, (tmp_path / f"{i}.png" for i in range(2)), out, threshold=half)
    assert "removed" not in capsys.readouterr().err
    Image.fromarray(np.full((40, 40), 20, np.uint8)).save(tmp_path / "3.png")
    (tmp_path / "4.png").unlink()
    (out / "masks/2-mended.png").touch()  # by the user, to whom it belongs
    for name in ("3_00007.png", ".3.png.4711.tmp"):  # of a process that was killed
        (out / "masks" / name).touch()
    predict_files(weights, tmp_path, out, threshold=0.5)
    assert f"removed {out}: results of 1 file, gone or named otherwise" in capsys.readouterr().err
    assert (len(read), summary(out)["frames"]) == (6, 4)
    kept = {"2-mended.png", *(f"{i}.png" for i in range(4))}
    assert {p.name for p in (out / "masks").iterdir()} == kept
    assert not np.asarray(Image.open(out / "masks" / "3.png")).any()
    assert "3.png" not in {Path(row["file"]).name for row in table(out / "detections.csv")}


def test_a_folder_that_holds_something_else_is_left_alone(
    tmp_path, weights, by_pixels, monkeypatch
):
    "A named one is refused, else the next number is taken; the same prediction finds its folder."
    monkeypatch.chdir(put(tmp_path, ["a.png", "b.png"]))
    Path("own.pt").write_bytes(weights.read_bytes())

    def folder(name, out="", **how):
        return predict_files("own.pt", name, out, **how).folder.as_posix()

    assert folder("a.png") == "predictions/own"
    assert folder("b.png") == "predictions/own-2"
    assert folder("a.png", min_area=3) == "predictions/own-3"
    with mshnet.predict.predictions_folder("own.pt", "", "eit") as other:  # as of the other tasks
        Path("predictions/own-4/thesis.tex").touch()
    assert other == Path("predictions/own-4")
    assert folder("b.png", tile=512) == "predictions/own-5"
    assert [folder("b.png"), folder(tmp_path / "a.png")] == ["predictions/own-2", "predictions/own"]
    for name, out, how in (
        ("b.png", "predictions/own", {}),
        ("a.png", "predictions/own", {"save": "masks"}),
        ("a.png", "predictions/own", {"threshold": 0.3}),
        ("a.png", ".", {}),
    ):
        with pytest.raises(UserError, match="holds something else"):
            folder(name, out, **how)
    Path("own.pt").write_bytes(weights.read_bytes() + b"x")  # other weights of the same name
    with pytest.raises(UserError, match="holds something else"):
        folder("a.png", "predictions/own")
    assert Path("predictions/own/masks/a.png").exists()


# Settings, formats, and what a folder really holds


def test_threshold_and_smallest_area_decide_in_every_result(tmp_path, weights, by_pixels):
    "Masks, tables and labels agree; without a threshold it is the one of the weights."
    image = np.full((64, 64), 20, np.uint8)
    for row, size, grey in ((4, 1, 250), (20, 2, 250), (40, 3, 150)):
        image[row : row + size, row : row + size] = grey
    Image.fromarray(image).save(tmp_path / "a.png")

    def areas(name, **how):
        out = tmp_path / name
        predict_files(weights, tmp_path / "a.png", out, save="masks", **how)
        found = [int(row["area"]) for row in table(out / "detections.csv")]
        assert np.count_nonzero(Image.open(out / "masks" / "a.png")) == sum(found)
        return found

    assert areas("default") == [1, 4, 9]  # above 0.5
    assert areas("strict", threshold=0.8) == [1, 4]
    assert areas("large", min_area=4) == [4, 9]
    record = summary(tmp_path / "large")
    assert (record["threshold"], record["asked"]["min_area"]) == (0.5, 4)


def test_what_a_shell_glob_brings_along_is_left_out(
    tmp_path, weights, by_pixels, capsys, monkeypatch
):
    "Texts, a broken link and an earlier prediction are no mistake, and no reason for status 1."
    monkeypatch.chdir(put(tmp_path, ["a.png", "b.webp", "deep/c.gif", "-1.png", "--a_b.png"]))
    for name in ("notes.txt", "README"):
        (tmp_path / name).touch()
    (tmp_path / "gone.png").symlink_to("nowhere.png")
    for _ in range(2):  # the second time the shell names the first's results too
        inputs = [path for path in sorted(Path().glob("*"))]
        status, printed, err = command(capsys, *inputs, "--weight-path", weights)
        assert (status, len(err)) == (0, 1)
        assert "3 inputs left out (such as " in err[0] and "use files that end in .png" in err[0]
        assert "5 frames of 5 files: " in printed


def mixed(folder):
    "Five images, a TIFF of six pages, a broken image."
    put(folder, [f"{i}.png" for i in (0, 1, 2, 7, 8)], 40)
    sheets = [Image.fromarray(noise(40, 40, seed=9 + i)) for i in range(6)]
    sheets[0].save(folder / "4.tif", save_all=True, append_images=sheets[1:])
    (folder / "3.png").write_bytes(b"no image")
    return folder


@pytest.mark.filterwarnings("ignore:.*unreadable image")
@pytest.mark.parametrize("at", [0, 1, 4, 6, 10])
@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_an_interrupted_prediction_skips_its_finished_files(
    tmp_path, weights, by_pixels, monkeypatch, at, how
):
    "Also killed within a line: no frame is lost or there twice, a TIFF is read from its beginning."
    data, out = mixed(tmp_path / "data"), tmp_path / "out"
    predict_files(weights, data, tmp_path / "whole")
    written, write = [], _Results.write

    def writes(self, frame, prob):
        if len(written) == at:
            raise KeyboardInterrupt
        written.append((frame.file.name, frame.number))
        return write(self, frame, prob)

    monkeypatch.setattr(_Results, "write", writes)
    with pytest.raises(KeyboardInterrupt):
        predict_files(weights, data, out)
    assert summary(out)["state"] == "stopped"
    assert len(table(out / "frames.csv")) == at - (at > 3)  # 3.png cannot be read
    if how == "killed":
        with open(out / "records" / f"{4 if at == 6 else 8}.jsonl", "ab") as lines:
            lines.write(b'{"stamp": ["/data/9')
    first = written[:]
    monkeypatch.setattr(_Results, "write", lambda *x: written.append(x[1]) or write(*x))
    done = predict_files(weights, data, out)
    kept = [name for name, _ in first if name not in ("3.png", "4.tif") or at > 9]
    assert len(written) - len(first) == 12 - len([name for name in kept if name != "3.png"])
    assert (summary(out)["frames"], done.skipped) == (11, 1)
    assert list(summary(out)["skipped"]) == [str(data / "3.png")]
    assert results(out) == results(tmp_path / "whole")


def test_progress_counts_frames_and_detections(tmp_path, weights, by_pixels, capsys, monkeypatch):
    "With the time left; pages of a TIFF count. (On a terminal it is a bar: test_cli.py.)"
    data = mixed(tmp_path)
    monkeypatch.setattr(mshnet.session, "_EVERY", 0)
    main(["predict", *map(str, [data, "--weight-path", weights, "--output-dir", tmp_path / "out"])])
    lines = [x for x in capsys.readouterr().err.splitlines() if x.startswith("  predict: ")]
    assert re.match(r"  predict: 0 of 7 frames, ", lines[0])
    assert all(line.endswith(" left") for line in lines)
    assert any(" detections" in line for line in lines)
    assert lines[-1].startswith("  predict: 12 of 12 frames, ")


def test_unreadable_files_among_good_ones_are_skipped(tmp_path, weights, by_pixels, capsys):
    "The first 20 are named, the others are predicted, the status is 1."
    put(tmp_path, [f"{i}.png" for i in range(5)])
    for i in range(25):
        (tmp_path / f"bad{i:02}.png").write_bytes(b"no image")
    (tmp_path / "none.png").mkdir()  # a folder, whatever it is called
    out = tmp_path / "out"
    words = [tmp_path, "--output-dir", out, "--save", "none"]
    status, printed, err = command(capsys, "--weight-path", weights, *words)
    assert status == 1
    assert re.match("5 frames of 30 files: .* detections in .*, 25 skipped", printed)
    assert len(err) == 20
    assert err[0].startswith("warning: ") and "unreadable image" in err[0]
    assert len(summary(out)["skipped"]) == 25
    assert not (out / "masks").exists()


MISTAKES = {
    "nothing": ([], "no input"),
    "missing": (["{dir}/none.png"], "there is no such file"),
    "empty name": ([""], "an input is empty"),
    "no name": (["a\0b.png"], "there is no such file"),
    "only below": (["{dir}/texts"], "name files that end in .png"),
    "weights": (["{dir}/x.pt", "{dir}/a.png"], "is a run or weights, no input"),
    "not an image": (["{dir}/texts/a.txt"], "name files that end in .png"),
    "no hits": (["{dir}/*.bmp"], "nothing fits this pattern"),
    "format": (["{dir}/a.png", "--save", "masks,gif"], "use masks, overlays or none"),
    "retired": (["{dir}/a.png", "--save", "yolo"], "coco.json has the boxes"),
    "a video": (["{dir}/a.png", "--save", "videos"], "ffmpeg joins overlays to a video"),
    "tile": (["{dir}/a.png", "--tile", "1000"], "tile=1000 is not possible: use a multiple of 16"),
    "base size": (["{dir}/a.png", "--base-size", "256"], "has no option --base-size"),
    "threshold": (["{dir}/a.png", "--threshold", "50"], "use a number from 0 to 1"),
    "not a threshold": (["{dir}/a.png", "--threshold", "nan"], "use a number from 0 to 1"),
    "batch": (["{dir}/a.png", "--batch-size", "9"], "mshnet predict has no option --batch-size"),
    "area": (["{dir}/a.png", "--min-area", "0"], "use a number of pixels, at least 1"),
    "flag": (["{dir}/a.png", "--treshold", "0.3"], "did you mean 'threshold'?"),
    "broken link": (["{dir}/gone.png"], "name files that end in .png"),
    "missing weights": (["{dir}/a.png", "--weight-path", "{dir}/x.pt"], "there is no such file"),
    "ONNX": (["{dir}/a.png", "--weight-path", "{dir}/x.onnx"], "use onnxruntime: the guide"),
    "no weights in it": (["{dir}/a.png", "--weight-path", "{dir}/a.png"], "not a torch file"),
}


@pytest.mark.parametrize("kind", MISTAKES)
def test_a_mistake_is_one_line_and_leaves_no_trace(tmp_path, weights, capsys, kind, monkeypatch):
    "Status 2, and no folder of results."
    monkeypatch.chdir(put(tmp_path, ["a.png", "texts/below/a.png"]))
    (tmp_path / "texts" / "a.txt").touch()
    (tmp_path / "x.onnx").touch()
    (tmp_path / "gone.png").symlink_to("nowhere.png")
    words, reason = MISTAKES[kind]
    before = sorted(tmp_path.rglob("*"))
    words = [word.format(dir=tmp_path) for word in words]
    status, _, err = command(capsys, "--weight-path", weights, *words)
    assert (status, len(err)) == (2, 1)
    assert reason in err[0] and ("/texts/**" in err[0]) == (kind == "only below")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_ctrl_c_leaves_whole_files(tmp_path, weights):
    "Status 130; every picture opens, every line is whole, and the tables are of the same frames."
    put(tmp_path, [f"{i:03}.png" for i in range(200)], 96)
    out = tmp_path / "out"
    words = ["--weight-path", weights, "--output-dir", out, "--device", "cpu", tmp_path]
    process = Python("-m", "mshnet", "predict", *words)
    ends = time.monotonic() + 120
    while len(list((out / "overlays").glob("[0-9]*.png"))) < 3 and time.monotonic() < ends:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert err.splitlines()[-1] == "mshnet: stopped; run the same command again to resume"
    assert summary(out)["state"] == "stopped"
    done = table(out / "frames.csv")
    assert 3 <= len(done) < 200
    for kind in ("masks", "overlays"):
        pictures = sorted((out / kind).iterdir())
        assert [path.stem for path in pictures] == [row["name"] for row in done]
        assert all(np.asarray(Image.open(path)).size for path in pictures)
    assert len(table(out / "detections.csv")) == sum(int(row["detections"]) for row in done)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux tells")
def test_a_large_frame_takes_less_than_sixty_bytes_a_pixel(tmp_path, weights):
    "From the file to the last table: 6 GB for 10,000x10,000. The network's own need is not in it."
    put(tmp_path, ["a.png"], 2000)
    put(tmp_path, ["small.png"], 64)
    program = """if True:
        import sys
        from pathlib import Path
        import mshnet.predict as p
        folder, weights = Path(sys.argv[1]), sys.argv[2]
        p._forward = lambda detector, pixels: pixels.astype("float32") / 255  # of bright
        held = lambda: int(next(x for x in open("/proc/self/status") if "VmHWM" in x).split()[1])
        for name in ("small", "a"):  # the small one loads what both need
            Path("/proc/self/clear_refs").write_text("5")
            before = held()
            p.predict_files(weights, folder / f"{name}.png", output_dir=folder / name, device="cpu")
        print(held() - before)
    """
    words = [sys.executable, "-c", program, str(tmp_path), str(weights)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert 4_000 < int(done.stdout.splitlines()[-1]) < 60 * 4_000  # kilobytes


def test_the_notebooks_figures_are_those_that_were_measured():
    "Detections by tile, and the time and memory of the large frame."
    prose = (TOP / "nbs" / "53_predict.py").read_text(encoding="utf-8")
    tiles = json.loads((TOP / "results" / "predict-tiles" / "summary.json").read_text())
    few, none = tiles["nuaa-sirst"]["tile 256"], tiles["scenes"]["tile 512"]
    assert f"add {few['gained']} detections to {few['before']} and lose {few['lost']}" in prose
    assert none["gained"] == none["lost"] == 0
    one = f"add one to {none['before']} detections, and tiles of 512 change none"
    assert one in prose and tiles["scenes"]["tile 1024"]["gained"] == 1
    large = json.loads((TOP / "results" / "predict-large" / "summary.json").read_text())
    seconds, peak = (large["measured"][name] for name in ("seconds", "peak resident MiB"))
    took = f"took {seconds:.0f} seconds on two otherwise idle cores and {peak * 2**20 / 1e9:.1f} GB"
    assert took in prose
