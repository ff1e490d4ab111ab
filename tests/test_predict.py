"Prediction of files: what is exact, what is written, and what bad input is answered with."

import csv
import importlib.util
import itertools
import json
import os
import re
import signal
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.ndimage import gaussian_filter
from skimage.measure import label, regionprops_table

import mshnet.predict
from mshnet.cli import main
from mshnet.core import UserError
from mshnet.model import MSHNet
from mshnet.predict import (
    TOP,
    Frame,
    Names,
    Tiling,
    against_one_pass,
    along,
    blend,
    detections,
    find_files,
    frames_of,
    in_batches,
    in_levels,
    level_of,
    open_weights,
    outside,
    overlay,
    pad,
    predict_batch,
    predict_files,
    predict_frame,
    weights_along,
)


def bright(images, batch_size=4):
    "A detector that looks at each pixel alone: its grey level is its probability."
    return images.float().mean(1, keepdim=True) / 255


def by_its_mean(images, batch_size=4):
    "A detector that sees its whole input and nothing else: the mean grey level, everywhere."
    return (images.float().mean((1, 2, 3), keepdim=True) / 255).expand(-1, 1, *images.shape[2:])


def noise(*shape, seed=0):
    "Grey levels."
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def spots(height, width, every=37):
    "A dark frame with bright 3x3 objects all over it, those on seams among them; and their places."
    image, places = np.full((height, width), 20, np.uint8), []
    for row, col in itertools.product(range(2, height - 4, every), range(2, width - 4, every)):
        image[row : row + 3, col : col + 3] = 230
        places.append((row + 1.0, col + 1.0))
    return image, places


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    "A file of weights that nobody has trained."
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "some.pt"
    torch.save({"state_dict": MSHNet().state_dict()}, path)
    return path


@pytest.fixture
def by_pixels(monkeypatch):
    "Predictions by `bright` in place of the network: quick, and what it finds is known."
    opened = []

    def open_bright(path, device="auto", precision="auto"):
        opened.append(path)
        bright.name, bright.why = "bright", "cpu"
        return bright

    monkeypatch.setattr(mshnet.predict, "open_weights", open_bright)
    return opened


# What must hold exactly


@pytest.mark.parametrize("tile", [128, 144, 256, 1024])
def test_tiles_cover_every_frame_and_weights_add_up(tile):
    "At any length: no gap, no pixel in three tiles, the overlap promised, weights 128 in sum."
    for length in [*range(1, 4 * tile, tile // 20), 10_000]:
        side, starts = along(length, tile)
        total, count = np.zeros((2, -(-length // 16) * 16), int)
        for start, weight in zip(starts, weights_along(side, starts), strict=True):
            total[start : start + side] += weight
            count[start : start + side] += 1
        assert (total == 128).all()
        assert count.max() <= 2
        assert side <= tile
        laps = [a + side - b for a, b in itertools.pairwise(starts)]
        assert all(lap >= tile // 8 // 16 * 16 for lap in laps)


@pytest.mark.parametrize("shape", [(128, 128), (1, 1), (130, 7), (200, 333), (333, 200, 3)])
def test_what_tiles_do_not_change_is_returned_exactly(shape):
    "A detector that looks at single pixels gives in tiles what it gives in one piece."
    image = noise(*shape)
    rgb = torch.from_numpy(image if image.ndim == 3 else np.dstack([image] * 3))
    one = in_levels(bright(rgb.permute(2, 0, 1)[None])[0, 0].numpy())
    assert np.array_equal(predict_frame(bright, image, 128), one)


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_tiles_changes_nothing(seed):
    "Sums of whole numbers have no order."
    tiling, rng = Tiling.of((300, 410), 128), np.random.default_rng(seed)
    tiles = [(p, rng.integers(0, 65536, tiling.side).astype(np.uint16)) for p in tiling.places]
    mixed = [tiles[i] for i in rng.permutation(len(tiles))]
    assert np.array_equal(blend(tiling, tiles), blend(tiling, mixed))


def test_there_is_no_jump_at_a_seam():
    "Tiles that disagree completely: neighbouring pixels differ by a sliver of what tiles do."
    image = np.zeros((128, 600), np.uint8)
    image[:, 300:] = 255
    levels = predict_frame(by_its_mean, image, 128).astype(int)
    steps = np.abs(np.diff(levels, axis=1)) / TOP
    _, starts = along(600, 128)
    assert levels[0, 0] == 0
    assert levels[0, -1] == TOP
    assert steps.max() <= 1.5 / 32 + 1 / 128  # the slope of the weights along 32 pixels
    assert max(steps[:, start - 1].max() for start in starts[1:]) < 0.01  # where a tile begins


def test_each_object_is_reported_once():
    "On seams and corners too, and where it is."
    image, places = spots(420, 555)
    found = detections(predict_frame(bright, image, 128))
    assert [tuple(c) for c in found.centroid] == places
    assert (found.area == 9).all()
    long = np.zeros((300, 300), np.uint8)
    long[150, :] = 255  # one object through all tiles
    assert len(detections(predict_frame(bright, long, 128))) == 1


@pytest.mark.parametrize("shape", [(64, 96), (140, 150)])
def test_batch_size_and_company_change_no_bit(weights, shape):
    "A frame alone, in a batch, in tiles of any number at once."
    detector = open_weights(weights, "cpu")
    frames = [Frame("a", i, False, noise(*shape, seed=i)) for i in range(3)]
    alone = [predict_frame(detector, f.pixels, 128, 1) for f in frames]
    for size in (1, 2, 4):
        batches = list(in_batches(frames, 128, size))
        together = [x for batch in batches for x in predict_batch(detector, batch, 128)]
        assert all(np.array_equal(a, b) for a, b in zip(alone, together, strict=True))
        assert np.array_equal(alone[0], predict_frame(detector, frames[0].pixels, 128, size))
    assert alone[0].std() > 0


def test_levels_keep_the_threshold():
    "A level of 32768 or more is a probability above 0.5, and nothing else is."
    around = np.nextafter(np.float32(0.5), np.float32([0, 0.5, 1]))
    half = level_of(0.5)
    assert (in_levels(around) >= half).tolist() == [False, False, True]
    prob = np.random.default_rng(0).random(10_000, np.float32)
    levels = in_levels(prob)
    assert np.array_equal(levels >= half, prob > 0.5)
    assert np.abs(levels / TOP - prob).max() < 2e-5


@pytest.mark.parametrize("seed", range(4))
def test_detections_agree_with_regionprops(seed):
    "scikit-image's own count of area, box, centroid, peak and mean."
    smooth = gaussian_filter(np.random.default_rng(seed).normal(size=(60, 83)), 1 + seed)
    levels = in_levels((1 / (1 + np.exp(-8 * smooth / smooth.std()))).astype(np.float32))
    names = ("area", "bbox", "centroid", "intensity_max", "intensity_mean")
    marked = label(levels >= level_of(0.5), connectivity=2)
    want = regionprops_table(marked, levels, properties=names)
    found = detections(levels)
    assert len(found) == len(want["area"]) > 0
    order = np.lexsort(found.box.T)
    other = np.lexsort([want[f"bbox-{i}"] for i in range(4)])
    box = np.stack([want[f"bbox-{i}"] for i in range(4)], 1)
    assert np.array_equal(found.box[order], box[other])
    assert np.array_equal(found.area[order], want["area"][other])
    centre = np.stack([want["centroid-0"], want["centroid-1"]], 1)
    np.testing.assert_allclose(found.centroid[order], centre[other])
    np.testing.assert_allclose(found.peak[order] * TOP, want["intensity_max"][other])
    np.testing.assert_allclose(found.mean[order] * TOP, want["intensity_mean"][other])


def test_padding_is_a_mirror_and_is_cut_off():
    "At the right and below; a frame of one pixel has only itself to mirror."
    tiling = Tiling.of((5, 30), 128)
    padded = pad(noise(5, 30), tiling)
    assert padded.shape == (16, 32)
    assert np.array_equal(padded[:, 30], padded[:, 28])
    assert (pad(noise(1, 1), Tiling.of((1, 1))) == noise(1, 1)[0, 0]).all()
    assert predict_frame(bright, noise(5, 30)).shape == (5, 30)


def test_what_tiles_change_is_measured():
    "A local detector is not changed at all; one that sees its whole input is."
    image, places = spots(150, 150)
    same = against_one_pass(bright, image, 128)
    assert (same.largest, same.before, same.lost, same.gained) == (0, len(places), 0, 0)

    def of_its_brightest(images, batch_size=4):
        found = images[:, :1].float()
        return found / found.amax((1, 2, 3), keepdim=True).clamp_min(1)

    image[:] = 0
    image[20, 20], image[20, 140] = 240, 60  # the second is dim beside the first, not by itself
    other = against_one_pass(of_its_brightest, image, 128)
    assert (other.before, other.lost, other.gained) == (1, 0, 1)


# What goes in


def test_bits_and_modes(tmp_path):
    "16 bits are stretched by the frame's own minimum and maximum; grey in colour is grey."
    grey = noise(20, 30)
    for name, image in {
        "grey.png": Image.fromarray(grey),
        "rgb.png": Image.fromarray(np.dstack([grey] * 3)),
        "rgba.png": Image.fromarray(np.dstack([grey] * 3 + [grey * 0 + 255])),
        "palette.png": Image.fromarray(grey).convert("P"),
        "deep.tif": Image.fromarray(grey.astype(np.uint16) * 31 + 7000),
        "deep.png": Image.fromarray(grey.astype(np.uint16) * 31 + 7000),
    }.items():
        image.save(tmp_path / name)
        [frame] = frames_of(tmp_path / name)
        assert not frame.error
        assert frame.alone
        want = np.round((grey - grey.min()) * (255 / np.ptp(grey))) if "deep" in name else grey
        assert np.array_equal(frame.pixels, want)


def test_a_tiff_has_pages(tmp_path, weights, by_pixels):
    "Each is a frame of its own, with its number; one that is cut off loses its last ones only."
    sheets = [Image.fromarray(noise(40, 40, seed=i)) for i in range(4)]
    sheets[0].save(tmp_path / "a.tif", save_all=True, append_images=sheets[1:])
    frames = list(frames_of(tmp_path / "a.tif"))
    assert [f.number for f in frames] == [0, 1, 2, 3]
    assert np.array_equal(frames[2].pixels, noise(40, 40, seed=2))
    data = (tmp_path / "a.tif").read_bytes()
    (tmp_path / "cut.tif").write_bytes(data[: len(data) * 3 // 4])
    *good, bad = frames_of(tmp_path / "cut.tif")
    assert "unreadable image" in bad.error
    summary = predict_files(weights, tmp_path / "*.tif", tmp_path / "out")
    assert summary.frames == 4 + len(good)
    assert summary.status == 1
    assert (tmp_path / "out" / "masks" / "a_00003.png").exists()


def test_a_video_is_read_frame_by_frame(tmp_path, weights, by_pixels):
    "With imageio and pyav."
    pytest.importorskip("av")
    from imageio.v3 import imwrite

    clip = [np.full((48, 64, 3), 40 * i, np.uint8) for i in range(5)]
    imwrite(tmp_path / "clip.mp4", clip, plugin="pyav", codec="mpeg4", fps=5)
    summary = predict_files(weights, tmp_path / "clip.mp4", tmp_path / "out")
    assert (summary.frames, summary.detections, summary.status) == (5, 1, 0)
    (tmp_path / "junk.avi").write_bytes(b"junk" * 999)
    [frame] = frames_of(tmp_path / "junk.avi")
    assert frame.error == "unreadable video"


def test_a_video_without_its_packages_says_what_to_install(tmp_path, monkeypatch):
    "And the other files are predicted all the same."
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    (tmp_path / "clip.mp4").touch()
    [frame] = frames_of(tmp_path / "clip.mp4")
    assert "pip install imageio av" in frame.error


def test_a_picture_that_claims_too_much_is_refused(tmp_path):
    "200 million pixels in a small file, by its size and before it is unpacked."
    Image.new("1", (20_000, 10_000)).save(tmp_path / "large.png")
    [frame] = frames_of(tmp_path / "large.png")
    assert "160,000,000 pixels" in frame.error


def test_inputs_are_found_once_in_order(tmp_path):
    "Files, folders, globs; not below a folder, and not in the results."
    for name in ("b.png", "a.PNG", "notes.txt", "deep/c.jpg", "out/masks/b.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    here = str(tmp_path)

    def names(*inputs):
        return [p.name for p in outside(find_files(inputs), tmp_path / "out")]

    assert names(here) == ["a.PNG", "b.png"]
    assert names(f"{here}/b.png", here) == ["b.png", "a.PNG"]
    assert names(f"{here}/**/*.*") == ["a.PNG", "b.png", "c.jpg"]
    assert names(f"{here}/[ab]*") == ["a.PNG", "b.png"]


# What comes out


def test_tables_masks_and_overlays(tmp_path, weights, by_pixels):
    "CSV and JSON Lines say the same, and what the masks show."
    image, places = spots(90, 130)
    Image.fromarray(image).save(tmp_path / "a.png")
    Image.fromarray(image * 0).save(tmp_path / "empty.png")
    out = tmp_path / "out"
    summary = predict_files(weights, tmp_path, out, save="probabilities,masks,overlays")
    assert (summary.frames, summary.detections, summary.status) == (2, len(places), 0)
    with open(out / "detections.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    lines = [json.loads(x) for x in (out / "detections.jsonl").read_text().splitlines()]
    assert [(float(r["row"]), float(r["col"])) for r in rows] == places
    assert [tuple(x["centroid"]) for x in lines] == places
    top, left, bottom, right = lines[0]["box"]
    assert (bottom - top, right - left, lines[0]["area"]) == (3, 3, 9)
    assert lines[0]["peak"] == pytest.approx(230 / 255, abs=1e-4)
    assert lines[0]["mean"] == pytest.approx(230 / 255, abs=1e-4)
    assert {x["file"] for x in lines} == {str(tmp_path / "a.png")}
    mask = np.asarray(Image.open(out / "masks" / "a.png"))
    assert np.array_equal(mask, np.where(image > 127, 255, 0))
    kept = np.asarray(Image.open(out / "probabilities" / "a.png"))
    assert np.array_equal(detections(kept).centroid, places)
    assert Image.open(out / "overlays" / "empty.png").size == (130 * 7, 90 * 7)
    with open(out / "frames.csv", newline="") as file:
        assert [r["detections"] for r in csv.DictReader(file)] == [str(len(places)), "0"]
    said = json.loads((out / "summary.json").read_text())
    assert (said["state"], said["frames"], said["skipped"]) == ("finished", 2, {})


def test_names_never_collide(tmp_path, weights, by_pixels):
    "Two folders with one file name, two suffixes, capitals, and pages that are called like files."
    sheets = [Image.fromarray(noise(20, 20))] * 2
    for name in ("day/x.png", "night/x.png", "night/x.jpg", "night/X.bmp", "day/s_00001.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        sheets[0].save(tmp_path / name)
    sheets[0].save(tmp_path / "day" / "s.tif", save_all=True, append_images=sheets[1:])
    out = tmp_path / "out"
    summary = predict_files(weights, [tmp_path / "day", tmp_path / "night"], out)
    masks = [p.name.casefold() for p in (out / "masks").iterdir()]
    assert len(set(masks)) == summary.frames == 7
    assert {"day_x.png", "night_x.png"} <= set(masks)
    long = Frame(tmp_path / ("n" * 240 + ".png"), 0, True, noise(4, 4))
    assert len(Names([long.file]).of(long)) < 100


def test_overlays_are_readable_at_any_size():
    "Small frames are enlarged, large ones shrunk, boxes lie where the objects are."
    image, _ = spots(60, 60, every=60)
    found = detections(in_levels((image / 255).astype(np.float32)))
    large = np.asarray(overlay(image, found))
    assert large.shape == (1020, 1020, 3)
    coloured = np.argwhere((large == (0xE6, 0x9F, 0x00)).all(2))
    assert (2 * 17 - 5) in coloured[:, 0]
    assert (
        max(overlay(np.zeros((50, 9000), np.uint8), detections(np.zeros((50, 9000)))).size) == 4096
    )
    edges = np.zeros((60, 60), np.uint16)
    edges[0, :], edges[:, 0], edges[-1, :], edges[:, -1] = (65535,) * 4
    ring = np.asarray(overlay(np.zeros((60, 60), np.uint8), detections(edges)))
    for side in (ring[0, 90:], ring[-1], ring[90:, 0], ring[:, -1]):  # not where the text is
        assert (side == (0xE6, 0x9F, 0x00)).all(), "the box is cut off"
    crowd, places = spots(400, 400, every=12)
    assert len(places) > 200
    overlay(crowd, detections(in_levels((crowd / 255).astype(np.float32))))


def test_the_same_again_gives_the_same_bytes_and_leaves_nothing_stale(tmp_path, weights, by_pixels):
    "Whatever the batch size was; and what an earlier prediction wrote more is gone."
    for i in range(5):
        Image.fromarray(noise(40, 40, seed=i)).save(tmp_path / f"{i}.png")
    out = tmp_path / "out"

    def written():
        return {
            str(p.relative_to(out)): p.read_bytes()
            for p in out.rglob("*")
            if p.is_file() and p.name != "summary.json"
        }

    predict_files(weights, tmp_path, out, batch_size=1)
    first = written()
    predict_files(weights, tmp_path, out, batch_size=3, num_workers=1)
    assert written() == first
    (tmp_path / "4.png").unlink()
    predict_files(weights, tmp_path, out, save="masks")
    assert {p.name for p in (out / "masks").iterdir()} == {f"{i}.png" for i in range(4)}
    assert not (out / "overlays").exists()


def test_a_folder_that_holds_something_else_is_refused(tmp_path, weights, by_pixels):
    "A file of the user's, or the prediction of other inputs; nothing is touched."
    Image.fromarray(noise(20, 20)).save(tmp_path / "a.png")
    Image.fromarray(noise(20, 20)).save(tmp_path / "b.png")
    out = tmp_path / "out"
    predict_files(weights, tmp_path / "a.png", out)
    predict_files(weights, f"{tmp_path}//a.png", out)  # the same, written otherwise
    with pytest.raises(UserError, match="another prediction"):
        predict_files(weights, tmp_path / "b.png", out)
    with pytest.raises(UserError, match="no such file"):  # not the fault of the folder
        predict_files(weights, tmp_path / "c.png", out)
    (out / "thesis.tex").touch()
    with pytest.raises(UserError, match=r"thesis\.tex"):
        predict_files(weights, tmp_path / "a.png", out)
    with pytest.raises(UserError, match="which is no result"):
        predict_files(weights, tmp_path / "a.png", tmp_path)
    assert (out / "masks" / "a.png").exists()
    assert len(by_pixels) == 2  # refused before the weights were read


# Bad input


def status_and_line(capsys, *words):
    "Exit status, output and error lines of `mshnet predict`."
    status = main(["predict", *map(str, words)])
    shown = capsys.readouterr()
    return status, shown.out, shown.err.splitlines()


def test_unreadable_files_among_good_ones_are_skipped_and_counted(
    tmp_path, weights, by_pixels, capsys
):
    "Each is named, the others are predicted, the status is 1."
    for i in range(30):
        Image.fromarray(noise(20, 20)).save(tmp_path / f"{i}.png")
    for i in range(25):
        (tmp_path / f"bad{i:02}.png").write_bytes(b"no image")
    (tmp_path / "none.png").mkdir()  # a folder, whatever it is called
    status, out, err = status_and_line(
        capsys, "--weight-path", weights, "--output-dir", tmp_path / "out", tmp_path
    )
    assert status == 1
    assert "30 frames of 55 files, 25 skipped" in out
    assert len(err) == 20
    assert err[0].startswith("warning: ")
    assert "unreadable image" in err[0]
    said = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert len(said["skipped"]) == 25


MISTAKES = {
    "nothing": ([], "no input"),
    "missing": (["{dir}/none.png"], "there is no such file"),
    "empty name": ([""], "an input is empty"),
    "no such user": (["~nobody-here/a.png"], "there is no such file"),
    "no name": (["a\0b.png"], "there is no such file"),
    "empty folder": (["{dir}/empty"], "no image and no video"),
    "no images": (["{dir}/texts"], "no image and no video"),
    "no hits": (["{dir}/*.bmp"], "no image and no video"),
    "not an image": (["{dir}/texts/a.txt"], "no image and no video"),
    "format": (["{dir}/a.png", "--save", "mask"], "did you mean masks?"),
    "no format": (["{dir}/a.png", "--save", "masks,gif"], "masks,overlays,probabilities"),
    "tile": (["{dir}/a.png", "--tile", "1000"], "a multiple of 16"),
    "no tile": (["{dir}/a.png", "--tile", "big"], "invalid int"),
    "no such folder": (["{dir}/a.png", "--weight-path", "{dir}/texts"], "without best.pt"),
    "missing weights": (["{dir}/a.png", "--weight-path", "{dir}/x.pt"], "github.com"),
    "other weights": (["{dir}/a.png", "--weight-path", "{dir}/other.pt"], "another model"),
    "no weights in it": (["{dir}/a.png", "--weight-path", "{dir}/a.png"], "not a torch file"),
    "flag": (["{dir}/a.png", "--tyle", "128"], "tyle"),
    "not its flag": (["{dir}/a.png", "--epochs", "3"], "means nothing to `mshnet predict`"),
    "device": (["{dir}/a.png", "--device", "gpu"], "cuda"),
}


@pytest.mark.parametrize("kind", MISTAKES)
def test_a_mistake_is_one_line_and_leaves_no_trace(tmp_path, weights, capsys, kind, monkeypatch):
    "Status 2, and no folder of results."
    monkeypatch.chdir(tmp_path)
    Image.fromarray(noise(20, 20)).save(tmp_path / "a.png")
    (tmp_path / "empty").mkdir()
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").touch()
    torch.save({"state_dict": {"conv.weight": torch.ones(1)}}, tmp_path / "other.pt")
    words, said = MISTAKES[kind]
    words = ["--weight-path", weights, *(word.format(dir=tmp_path) for word in words)]
    before = sorted(tmp_path.rglob("*"))
    status, _, err = status_and_line(capsys, *words)
    assert status == 2
    assert len(err) == 1
    assert said in err[0]
    assert sorted(tmp_path.rglob("*")) == before


def test_flags_may_stand_between_inputs(tmp_path, weights, by_pixels, capsys):
    "As people type them."
    for name in "ab":
        Image.fromarray(noise(20, 20)).save(tmp_path / f"{name}.png")
    words = [tmp_path / "a.png", "--weight-path", weights, tmp_path / "b.png", "--save", "none"]
    status, out, _ = status_and_line(capsys, *words, "--output-dir", tmp_path / "out")
    assert status == 0
    assert "2 frames of 2 files" in out
    assert not (tmp_path / "out" / "masks").exists()


def test_the_network_finds_the_same_through_both_doors(tmp_path, weights):
    "`predict_files` writes what `mshnet.evaluate.predict` gives."
    from mshnet.evaluate import predict

    image = noise(64, 48)
    Image.fromarray(image).save(tmp_path / "a.png")
    predict_files(weights, tmp_path / "a.png", tmp_path / "out", "cpu", save="probabilities")
    kept = np.asarray(Image.open(tmp_path / "out" / "probabilities" / "a.png"))
    prob = predict(weights, torch.from_numpy(image).expand(1, 3, -1, -1), "cpu")[0, 0]
    assert np.array_equal(kept, in_levels(prob.numpy()))


def test_spoiled_weights_are_told(tmp_path):
    "A prediction that is no number is no empty mask."
    model = MSHNet()
    for value in model.state_dict().values():
        value.fill_(float("nan")) if value.is_floating_point() else None
    torch.save({"state_dict": model.state_dict()}, tmp_path / "nan.pt")
    with pytest.raises(UserError, match="no number"):
        predict_frame(open_weights(tmp_path / "nan.pt", "cpu"), noise(32, 32))


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_ctrl_c_leaves_whole_files(tmp_path, weights):
    "Status 130; every picture opens, every line is whole, and the tables are of the same frames."
    for i in range(200):
        Image.fromarray(noise(96, 96, seed=i)).save(tmp_path / f"{i:03}.png")
    out = tmp_path / "out"
    words = ["--weight-path", weights, "--output-dir", out, "--device", "cpu", tmp_path]
    code = "import sys; from mshnet.cli import main; sys.exit(main(sys.argv[1:]))"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "predict", *map(str, words)],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    ends = time.monotonic() + 120
    while len(list((out / "overlays").glob("[0-9]*.png"))) < 3 and time.monotonic() < ends:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert err.splitlines()[-1] == "mshnet: stopped; what is written is whole"
    assert json.loads((out / "summary.json").read_text())["state"] == "stopped"
    with open(out / "frames.csv", newline="") as file:
        done = list(csv.DictReader(file))
    assert 3 <= len(done) < 200
    for kind in ("masks", "overlays"):
        assert sorted(p.stem for p in (out / kind).iterdir()) == [row["name"] for row in done]
        for path in (out / kind).iterdir():
            Image.open(path).load()
    objects = [json.loads(x) for x in (out / "detections.jsonl").read_text().splitlines()]
    assert len(objects) == sum(int(row["detections"]) for row in done)
    with open(out / "detections.csv", newline="") as file:
        assert len(list(csv.DictReader(file))) == len(objects)


@pytest.mark.parametrize("suffix", [".avi", ".mkv"])
def test_a_video_that_breaks_off_is_told_from_a_whole_one(tmp_path, suffix):
    "The pictures before the break count, and the file is reported."
    pytest.importorskip("av", reason="needs the extra video")
    from imageio.v3 import imwrite

    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (20, 64, 64, 3), dtype=np.uint8)
    path = tmp_path / f"clip{suffix}"
    imwrite(path, frames, plugin="pyav", codec="mpeg4", fps=5)
    whole = list(frames_of(path))
    assert (len(whole), whole[-1].error) == (20, "")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    *some, last = frames_of(path)
    assert 0 < len(some) < 20 and not any(frame.error for frame in some)
    assert "video" in last.error


def test_sixteen_bits_in_colours_are_refused(tmp_path):
    "Pillow would drop the lower eight, and with them the target."
    rows = b"".join(b"\0" + struct.pack(">24H", *[7000] * 24) for _ in range(8))
    head = struct.pack(">IIBBBBB", 8, 8, 16, 2, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    chunks = [
        struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in parts
    ]
    (tmp_path / "deep.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))
    [frame] = frames_of(tmp_path / "deep.png")
    assert "16 bits in several channels" in frame.error


def test_what_a_folder_and_a_glob_of_folders_mean(tmp_path, monkeypatch):
    "Hidden files are none of ours; a folder below that may not be listed is no obstacle."
    for name in ("a/1.png", "a/._1.png", "b/2.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("L", (16, 16)).save(tmp_path / name)
    (tmp_path / "lost+found").mkdir()
    assert [p.name for p in find_files(tmp_path / "a")] == ["1.png"]
    assert [p.name for p in find_files(f"{tmp_path}/[ab]")] == ["1.png", "2.png"]
    listing = Path.iterdir

    def closed(folder):
        if folder.name == "lost+found":
            raise PermissionError(13, "Permission denied")
        return listing(folder)

    monkeypatch.setattr(Path, "iterdir", closed)
    (tmp_path / "3.png").write_bytes((tmp_path / "b" / "2.png").read_bytes())
    assert [p.name for p in find_files(tmp_path)] == ["3.png"]
    (tmp_path / "3.png").unlink()
    with pytest.raises(UserError, match=r"did you mean .*a.?"):
        find_files(tmp_path)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux tells")
def test_a_large_frame_takes_less_than_sixty_bytes_a_pixel(tmp_path):
    "From the file to the last table: 6 GB for 10,000x10,000. The network's own need is not in it."
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 256, (3000, 3000), dtype=np.uint8)).save(tmp_path / "a.png")
    torch.save({"state_dict": MSHNet().state_dict()}, tmp_path / "w.pt")
    program = """if True:
        import sys
        from pathlib import Path
        import mshnet.predict as p
        folder = Path(sys.argv[1])
        p.levels_of = lambda detector, images: (images.astype("uint16") << 8)  # bright is a target
        held = lambda: int(next(x for x in open("/proc/self/status") if "VmHWM" in x).split()[1])
        Path("/proc/self/clear_refs").write_text("5")
        before = held()
        p.predict_files(folder / "w.pt", folder / "a.png", output_dir=folder / "out", device="cpu")
        print(held() - before)
    """
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    kilobytes = int(done.stdout.splitlines()[-1])
    assert 9_000 < kilobytes < 60 * 9_000


def test_the_notebooks_figures_are_those_that_were_measured():
    "The table of tiles and padding, and the time and memory of the large frame."
    place = Path(__file__).resolve().parents[1]
    prose = (place / "nbs" / "15_predict.py").read_text(encoding="utf-8")
    rows = re.findall(r"^# \|.*\| (0\.\d+) \| (\d+) \| (\d+) \| (\d+) \|$", prose, re.M)
    tiles = json.loads((place / "results" / "predict-tiles" / "summary.json").read_text())
    kept = [tiles["nuaa-sirst"][f"tile {n}"] for n in (512, 256)]
    kept += [tiles["scenes"][f"tile {n}"] for n in (1024, 512)]
    names = ("before", "lost", "gained")
    assert rows == [(f"{k['mean']:.6f}", *(str(k[n]) for n in names)) for k in kept]
    large = json.loads((place / "results" / "predict-large" / "summary.json").read_text())
    seconds, peak = (large["measured"][name] for name in ("seconds", "peak resident MiB"))
    took = f"took {seconds:.0f} seconds on two otherwise idle cores and {peak * 2**20 / 1e9:.1f} GB"
    assert took in prose
