"Data as people have it: everything wrong is named, everything usable is used, draws are fixed."

import importlib.util
import io
import os
import pickle
import shlex
import shutil
import struct
import warnings
import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import make_dataset, refused, tree
from PIL import Image
from scipy import ndimage

from mshnet import data
from mshnet.augment import scoring_batch, training_batch
from mshnet.cli import main
from mshnet.core import UserError
from mshnet.data import load_data, read_image, read_mask, report, scenes, splits, write_lists
from mshnet.detection import Detection
from mshnet.files import prefetch
from mshnet.frames import frames_of
from mshnet.recipe import Config

NAN = "pixels are NaN or infinite (numpy.nan_to_num(x, nan=0, posinf=0, neginf=0) replaces them)"


def config(folder, **settings):
    "Settings for a small data set."
    small = {"base_size": 32, "crop_size": 32, "choose": "last"}
    return Config(dataset_dir=str(folder), **(small | settings))


@pytest.fixture
def folder(tmp_path):
    "A data set in order: six training and four test images."
    return make_dataset(tmp_path / "tiny")


def refusal(*args, **settings):
    "The line that refuses this data set; nothing may warn before it."
    with pytest.raises(UserError) as caught, warnings.catch_warnings():
        warnings.simplefilter("error")
        splits(config(*args, **settings))
    line = str(caught.value)
    assert "\n" not in line
    return line


def warned(folder, **settings):
    "The splits and what was warned of, one line a kind."
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        parts = splits(config(folder, **settings))
    return parts, [str(w.message) for w in caught]


def put(folder, kind, name, pixels, mode=None):
    "Write one image (kind `images`) or mask (`masks`), in a mode of its own."
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    (image.convert(mode) if mode else image).save(folder / kind / f"{name}.png")


# Folders and lists


def test_a_data_set_in_order_is_read_in_silence(folder):
    "A warning that is always there is read by no one."
    parts, lines = warned(folder)
    assert {name: split.names for name, split in parts.items()} == {
        "train": tuple(f"train_{i}" for i in range(6)),
        "test": tuple(f"test_{i}" for i in range(4)),
    }
    assert lines == []
    for split in parts.values():
        for image, mask in split.pairs:
            assert image.dtype == mask.dtype == np.uint8
            assert mask.sum() == 9
            assert image[mask > 0].min() > 200


def test_an_unknown_layout_is_refused_with_the_way_out(folder, tmp_path):
    "With the folders that are known; with the data set one level above or below, if one is there."
    (tmp_path / "alone" / "images").mkdir(parents=True)
    line = refusal(tmp_path / "alone")
    known = "images/ and masks/ or IRSTD1k_Img/ and IRSTD1k_Label/"
    assert line.endswith(f"has no {known}; rename its folders, or link them")
    for near in (folder / "images", folder.parent):
        assert refusal(near).endswith(f"did you mean {folder}?")
    for part in ("train/images", "train/masks", "val/images", "val/masks"):
        (tmp_path / "parts" / part).mkdir(parents=True)
    assert "move its parts (train/images to images/train ...)" in refusal(tmp_path / "parts")
    for part in ("images/train", "masks/train"):
        (tmp_path / "parts" / part).mkdir(parents=True)
    assert "list the files of images/train in train.txt, as train/N" in refusal(tmp_path / "parts")


def test_a_folder_may_repeat_its_name(tmp_path):
    "As on Kaggle; but a data set that has such a folder beside its images stays itself."
    inner = make_dataset(tmp_path / "set" / "set")
    assert data.find_source(config(tmp_path / "set")).root == inner
    outer = make_dataset(tmp_path / "set")
    assert data.find_source(config(tmp_path / "set")).root == outer


LAYOUTS = {
    "sirst": ("images", "masks", "trainval.txt", "test.txt"),
    "sirst 1": ("images", "masks", "trainval.txt", "test.txt"),  # its masks end in _pixels0
    "train and test": ("images", "masks", "train.txt", "test.txt"),
    "train and val": ("images", "masks", "train.txt", "val.txt"),
    "irstd": ("IRSTD1k_Img", "IRSTD1k_Label", "trainval.txt", "test.txt"),
    "img_idx": ("images", "masks", "img_idx/train_X.txt", "img_idx/test_X.txt"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_in_use_gives_the_same_splits(folder, layout):
    "Downloaded sets are used as they are."
    want = {name: split.hash for name, split in splits(config(folder)).items()}
    (folder / "img_idx").mkdir()
    for path in (folder / "masks").iterdir() if layout == "sirst 1" else ():
        path.rename(path.with_name(f"{path.stem}_pixels0.png"))
    for old, new in zip(LAYOUTS["sirst"], LAYOUTS[layout], strict=True):
        (folder / old).rename(folder / new)
    assert {name: split.hash for name, split in splits(config(folder)).items()} == want
    assert pickle.loads(pickle.dumps(splits(config(folder))["test"])).hash == want["test"]


def test_lists_of_one_kind_too_many_are_decided_by_a_setting(folder):
    "Guessing between two splits would publish numbers of the wrong one."
    (folder / "img_idx").mkdir()
    (folder / "trainval.txt").rename(folder / "img_idx" / "train_A.txt")
    (folder / "img_idx" / "train_B.txt").write_text("train_1\ntrain_0\n")
    line = refusal(folder)
    assert "several lists (img_idx/train_A.txt, img_idx/train_B.txt)" in line
    assert "--train-list" in line
    chosen = splits(config(folder, train_list="img_idx/train_B.txt", batch_size=2))
    assert chosen["train"].names == ("train_1", "train_0")
    assert len(chosen["test"]) == 4


STRANGE = ["..", "/", "a" * 5000, "nul:", "a/../b"]  # names without files


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_names_may_be_written_in_many_ways(folder, encoding):
    "As scripts and Windows write them: comments, suffixes, paths of another computer."
    want = splits(config(folder))["train"].hash
    lines = ["# made by a script", "", "images/train_0.png", "train_1.png", " train_2 "]
    lines += [r"C:\sirst\images\train_3.png", "/home/me/images/train_4.bmp", "../images/train_5"]
    (folder / "trainval.txt").write_bytes("\r\n".join(lines).encode(encoding))
    (folder / "images" / "train_4.bmp").touch()
    with pytest.warns(UserWarning, match=r"train_4.bmp: not read; another file has its name"):
        assert splits(config(folder))["train"].hash == want


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "test.txt: list without names"),
        (b"\n \n", "test.txt: list without names"),
        (b"\x89PNG\xff\xfe", "test.txt: not a readable list of names (it is not UTF-8"),
        ("\u7ea2\u5916".encode("gbk"), "not a readable list of names (it is not UTF-8"),
        ("test_1\n".encode("utf-16-le"), "not a readable list of names (it is not UTF-8"),
        (b"a\n" * (9 * 2**20), "not a readable list of names (it has more than 16 MB)"),
        (b"a\x1b[2J\n" + b"b" * 3000, r"a\x1b[2J"),  # moves the cursor; fills the screen
        *((f"test_0\n{n}".encode(), "name without an image and a mask: 1 (") for n in STRANGE),
    ],
    ids=range(7 + len(STRANGE)),
)
def test_a_list_that_is_none_is_one_line(folder, content, said):
    "Someone names an image, an archive, a list in another encoding, or a name that cannot be."
    (folder / "test.txt").write_bytes(content)
    line = refusal(folder)
    assert said in line and len(line) < 500


# Lists for a data set that has none


@pytest.fixture
def unlisted(folder):
    "The data set without its lists: ten images, three of them without a target."
    for file in folder.glob("*.txt"):
        file.unlink()
    for name in ("train_0", "train_1", "test_0"):
        put(folder, "masks", name, np.zeros((32, 32), np.uint8))
    return folder


@pytest.mark.parametrize("fraction", [0.01, 0.3, 0.5, 0.99])
def test_lists_are_made_by_image(unlisted, fraction):
    "Every image with a mask is in one list."
    (unlisted / "images/alone.png").write_bytes(b"")
    line = write_lists(config(unlisted), fraction)
    parts, _ = load_data(config(unlisted))
    names = [part.names for part in parts.values()]
    assert sorted(names[0] + names[1]) == sorted(p.stem for p in (unlisted / "masks").iterdir())
    assert len(parts["train"]) == min(max(round(10 * fraction), 1), 9)
    assert f"train.txt ({len(parts['train'])}), test.txt ({len(parts['test'])})" in line


def test_the_lists_follow_the_seed_and_are_never_overwritten(unlisted):
    "One seed, one split; where there is any list, nothing is written."
    made = {}
    for seed in (0, 0, 1):
        write_lists(config(unlisted, seed=seed), 0.5)
        before = tree(unlisted)
        with pytest.raises(UserError, match=r"there is a list, .*train.txt; leave out --split"):
            write_lists(config(unlisted, seed=2), 0.5)
        assert tree(unlisted) == before
        made.setdefault(seed, []).append([(unlisted / f).read_text() for f in ("train.txt",)])
        for file in unlisted.glob("*.txt"):
            file.unlink()
    assert made[0][0] == made[0][1] != made[1][0]
    (unlisted / "img_idx").mkdir()
    (unlisted / "img_idx" / "train_A.txt").write_text("train_0\n")
    with pytest.raises(UserError, match=r"img_idx/train_A\.txt"):
        write_lists(config(unlisted), 0.5)


@pytest.mark.parametrize("fraction", [0, 1, -0.5, np.nan, np.inf])
def test_a_fraction_that_parts_nothing_is_refused(unlisted, fraction):
    "Before anything is read or written."
    before = tree(unlisted)
    with pytest.raises(UserError, match=r"split=.* is not possible: use a number between 0 and 1"):
        write_lists(config(unlisted), fraction)
    assert tree(unlisted) == before


def test_lists_of_a_read_only_folder_lie_beside(unlisted, tmp_path, monkeypatch, capsys):
    "With what to write, once; a run takes them from there."
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr("mshnet.data.os.access", lambda path, mode: mode != os.W_OK)
    before = tree(unlisted)
    assert main(["data", str(unlisted), "--split", "0.5"]) == 0
    words = shlex.split(capsys.readouterr().out.partition("use them by ")[2])
    assert words[0] == "--train-list" and tree(unlisted) == before
    parts, _ = load_data(config(unlisted, train_list=words[1], test_list=words[3]))
    assert [len(part) for part in parts.values()] == [5, 5]
    with pytest.raises(UserError, match=r"is a list, .*tiny-train.txt.*; use them by --train-list"):
        write_lists(config(unlisted), 0.5)
    (unlisted / "train.txt").write_text("train_2\n")
    with pytest.raises(UserError, match=r"is a list, .*tiny/train.txt; leave out --split$"):
        write_lists(config(unlisted), 0.5)


def test_lists_that_cannot_be_made_are_one_line(unlisted):
    "Synthetic scenes, a single image, parts that are there."
    with pytest.raises(UserError, match="synthetic scenes need no lists"):
        write_lists(config(""), 0.5)
    for path in sorted((unlisted / "masks").iterdir())[1:]:
        path.unlink()
    with pytest.raises(UserError, match="has 1 image with a mask of the same name; two are needed"):
        write_lists(config(unlisted), 0.5)
    for place in ("images/trainval", "images/Test", "masks/trainval", "masks/Test"):
        shutil.copytree((unlisted / place).parent, unlisted / place)
    with pytest.raises(UserError, match="would mix the folders Test, trainval; list their files"):
        write_lists(config(unlisted), 0.5)


@pytest.mark.parametrize("name", ["#1", " a", "a ", "a.jpg", "a\udcc4"])
def test_a_name_that_a_list_cannot_hold_is_refused(unlisted, name):
    "It would be lost in reading; nothing is written."
    for kind in ("images", "masks"):
        (unlisted / kind / "test_1.png").rename(unlisted / kind / f"{name}.png")
    with pytest.raises(UserError, match=r"a list cannot hold the name .* rename this"):
        write_lists(config(unlisted), 0.5)
    assert not list(unlisted.glob("*.txt"))


def test_a_name_with_a_wide_space_is_written(unlisted):
    "As Chinese and Japanese names have, and those of screenshots."
    for kind in ("images", "masks"):
        (unlisted / kind / "test_1.png").rename(unlisted / kind / "红外\u3000\u202f1.png")
    write_lists(config(unlisted), 0.5)
    names = [name for part in splits(config(unlisted)).values() for name in part.names]
    assert "红外\u3000\u202f1" in names


def test_a_report_leaves_out_what_may_be_skipped(folder):
    "As training does."
    (folder / "images" / "train_1.png").write_bytes(b"no image")
    assert not report(config(folder))[1]
    text, usable = report(config(folder, on_bad_image="skip"))
    assert usable and "skipped: " in text and "error: " not in text
    for path in (folder / "images").glob("train_*"):
        path.write_bytes(b"no image")
    assert not report(config(folder, on_bad_image="skip"))[1]  # nothing is left


@pytest.mark.parametrize("place", ["", "images/out", "masks", "runs/a"])
def test_results_are_not_written_into_the_data_set(folder, place, capsys):
    "By train, test and predict, whether the folder is there or not; beside it they are."
    before = sorted(folder.rglob("*"))
    at, image = f"--output-dir={folder / place}", str(next((folder / "images").iterdir()))
    data = f"--dataset-dir={folder}"
    for words in (["train", data], ["test", data], ["predict", image]):
        assert "is in the data set" in refused(capsys, *words, "--device=cpu", at)
    with pytest.raises(UserError, match="use a folder outside of it"):
        Detection(config(folder, output_dir=str(folder / place))).splits()
    assert sorted(folder.rglob("*")) == before
    assert Detection(config(folder, output_dir=str(folder.parent / "run"))).splits()


def test_names_cannot_reach_out_of_the_folder(folder, tmp_path):
    "A downloaded list must not make us read other files."
    put(tmp_path, ".", "secret", np.zeros((8, 8), np.uint8))
    for kind in ("images", "masks"):
        put(folder, kind, "train_0", np.zeros((8, 8), np.uint8))
    (folder / "test.txt").write_text(f"../../secret\n{tmp_path / 'secret'}\n")
    assert "name without an image and a mask: 1 (secret)" in refusal(folder)


def test_a_list_with_a_name_that_cannot_be_is_refused(folder):
    "The system refuses to look for it."
    assert "there is no such file" in refusal(folder, train_list="a" * 250 + "/b")
    assert "can have" in refusal(folder, train_list="a" * 300)


def test_names_without_files_are_counted_and_the_first_shown(folder):
    "Five hundred lines would hide that it is always the same mistake."
    for i in range(5):
        (folder / "images" / f"train_{i}.png").unlink()
    (folder / "masks" / "test_2.png").unlink()
    assert "name without an image: 5 (train_0, train_1, train_2 and 2 more)" in refusal(folder)
    told = report(config(folder))[0]
    assert "name without a mask: 1 (test_2)" in told and "train_3, train_4)" in told


def test_a_name_listed_twice_is_kept_once_and_one_in_both_lists_refused(folder):
    "An image must not count twice in a score; a test on training images is not independent."
    for kind in ("images", "masks"):
        (folder / kind / "test_0.png").rename(folder / kind / "\xe9.png")
    (folder / "test.txt").write_text("e\u0301\ntest_1\ntest_3\ntest_3\n\xe9.png\ntest_1\n")
    parts, lines = warned(folder)
    assert parts["test"].names == ("\xe9", "test_1", "test_3")
    assert lines == ["name more than once in test.txt, kept once: 3 (\xe9, test_1, test_3)"]
    with (folder / "test.txt").open("a") as file:
        file.write("train_3\ntrain_1\n")
    assert refusal(folder).endswith("or use another --train-list: 2 (train_1, train_3)")


def test_fewer_images_than_a_batch_names_the_batch_to_use(folder):
    "Training drops the remainder: no step would ever be made. One image cannot be parted."
    assert refusal(folder, batch_size=7).endswith("use --batch-size 6 or less")
    assert splits(config(folder, batch_size=6))
    line = refusal(folder, choose="val", val_fraction=0.5, batch_size=4)
    assert "only 3 training images; use --batch-size 3 or less" in line
    (folder / "trainval.txt").write_text("train_0\n")
    assert "use last" in refusal(folder, choose="val", batch_size=1)


# Pixels


GREY = np.arange(0, 32 * 32, dtype=np.uint16).reshape(32, 32)
COLOUR = np.stack([GREY // 8, GREY // 16, GREY // 4], 2).astype(np.uint8)


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "P", "LA", "1"])
def test_grey_pixels_are_the_same_in_every_mode(folder, mode):
    "Published sets mix modes within one folder; a file's mode must not change what is learned."
    pixels = (GREY // 4).astype(np.uint8)
    if mode == "1":
        pixels = np.where(pixels > 127, 255, 0).astype(np.uint8)
    put(folder, "images", "train_0", pixels, mode)
    parts, lines = warned(folder)
    np.testing.assert_array_equal(parts["train"].pairs[0][0], pixels)
    assert lines == []


def test_colour_is_kept_and_that_of_a_palette_looked_up(folder):
    "Some images are in false colours; the numbers of a palette are places in a table."
    for name, mode in (("train_0", "RGB"), ("train_1", "RGBA")):
        put(folder, "images", name, COLOUR, mode)
    picture = Image.fromarray((GREY % 2).astype(np.uint8)).convert("P")
    picture.putpalette([200, 10, 10, 20, 90, 20])
    put(folder, "images", "train_2", picture)
    first, second, third = (image for image, _ in warned(folder)[0]["train"].pairs[:3])
    assert np.array_equal(first, COLOUR) and np.array_equal(second, COLOUR)
    assert third[0, :2].tolist() == [[200, 10, 10], [20, 90, 20]]


def test_16_bit_frames_keep_their_contrast_and_are_warned_of(folder):
    "Pillow clips at 255: a camera's frame, all above 1000, would become white."
    put(folder, "images", "train_0", 20_000 + GREY)
    put(folder, "images", "train_1", np.full((32, 32), 700, np.uint16))
    parts, [line] = warned(folder)
    image = parts["train"].pairs[0][0].ravel().astype(int)
    assert (image[0], image[-1]) == (0, 255)
    assert (np.diff(image) >= 0).all()
    assert not parts["train"].pairs[1][0].any()
    assert line == "16-bit image, stretched to 8 bits by its own range: 2 (train_0, train_1)"


@pytest.mark.parametrize("kind", ["images", "masks"])
@pytest.mark.parametrize("damage", ["cut", "empty", "text", "header"])
def test_unreadable_files_are_named(folder, kind, damage):
    "A broken download is mended by fetching that one file again."
    path = folder / kind / "train_2.png"
    if damage == "text":
        path.write_text("<html>404</html>")
    else:
        os.truncate(path, {"cut": path.stat().st_size // 2, "empty": 0, "header": 20}[damage])
    assert f"unreadable {kind[:-1]} in {kind}/: 1 (train_2)" in refusal(folder)


@pytest.mark.parametrize("kind", ["images", "masks"])
def test_a_picture_of_gigabytes_is_refused(folder, kind):
    "A few bytes may claim 10 GB; a few kilobytes may hold 9000 x 9000, and four at once 12 GB."
    path = folder / kind / "train_2.png"
    data = path.read_bytes()
    header = b"IHDR" + struct.pack(">II", 60_000, 60_000) + data[24:29]
    path.write_bytes(data[:12] + header + struct.pack(">I", zlib.crc32(header)) + data[33:])
    said = f"{kind[:-1]}: more than 67,108,864 pixels in {kind}/: 1 (train_2)"
    assert said in refusal(folder)
    Image.new("1", (9000, 9000)).save(path)
    assert said in refusal(folder)


def test_masks_that_cannot_be_right_are_reported(tmp_path):
    "Inverted, lost by the cut, without a target, too small for the scored size."
    folder = make_dataset(tmp_path / "set", size=200)
    config = Config(dataset_dir=str(folder), base_size=192, crop_size=192)
    text, usable = report(config)
    assert usable and "warning" not in text
    for path in (folder / "masks").glob("*"):
        mask = np.asarray(Image.open(path))
        Image.fromarray(255 - mask if path.stem.startswith("train") else mask // 2).save(path)
    text, _ = report(config)
    for line in (
        "targets cover more than a fifth of the image (is the mask inverted?): 6 (train_0,",
        "grey mask that loses objects by the cut at half of the largest value of all: 4 (test_0,",
    ):
        assert f"warning: {line}" in text
    assert "error: list of grey masks without a target (save targets as 255): 1 (test)" in text
    for path in (folder / "masks").glob("*"):
        lines = np.eye(200, dtype=np.uint8)[:, ::-1] * 255
        Image.fromarray(lines * (path.stem in ("test_1", "train_1"))).save(path)
    dot = np.zeros((200, 200), np.uint8)
    dot[1, 1] = 255  # between the pixels that a resize to 32x32 keeps
    Image.fromarray(dot).save(folder / "masks" / "test_2.png")
    small = config.model_copy(update={"base_size": 32})
    assert "targets vanish or merge at 32x32: 1 (test_2)" in report(small)[0]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_pixels_that_are_not_numbers_are_refused(folder, value):
    "Stretched between its least and its largest value, such an image would become black."
    pixels = np.ones((32, 32), np.float32)
    pixels[3, 4] = value
    (folder / "images" / "train_2.png").unlink()
    Image.fromarray(pixels).save(folder / "images" / "train_2.tif")
    assert f"image: {NAN} in images/: 1 (train_2)" in refusal(folder)


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [
        ("f4", 0.2, 0.4),
        ("f4", 0.3, 0.3),
        ("u4", 0, 2**32 - 1),
        ("i4", -9, 2**31 - 1),
        ("i1", -9, 9),
    ],
)
def test_values_are_stretched_in_order_or_refused(tmp_path, kind, low, high):
    "Pillow reads 32 bits as signed and 8 bits as unsigned; one value alone is black."
    tifffile = pytest.importorskip("tifffile")
    values = np.linspace(low, high, 64).astype(kind).reshape(8, 8)
    tifffile.imwrite(tmp_path / "a.tif", values)
    if kind == "i1":
        with pytest.raises(UserError, match="negative values in 8 bits: save them as 16 bits"):
            read_image(tmp_path / "a.tif")
        return
    image, mode, _ = read_image(tmp_path / "a.tif")
    assert (mode, image.min(), image.max()) == ("F" if kind == "f4" else "I", 0, 255 * (low < high))
    assert (np.diff(image.ravel().astype(int)) >= 0).all()
    if kind != "u4":
        tifffile.imwrite(tmp_path / "a.tif", values, byteorder=">", compression="zlib")
        assert (read_image(tmp_path / "a.tif")[0] == image).all()


def radiometric(path, values, orientation=1, kind=1):
    "Save a JPEG as a FLIR camera does: a picture, and raw values [H,W] in segments beside it."
    content = io.BytesIO()
    Image.fromarray(values.astype("<u2").byteswap()).save(content, "PNG")  # as the camera does
    raw = struct.pack("<3H26x", 2, *values.shape[::-1]) + content.getvalue()
    camera = bytearray(832)
    struct.pack_into("<8f", camera, 32, 0.95, 1, 293.15, 293.15, 293.15, 1, 0, 0.5)  # as usual
    struct.pack_into("<3f", camera, 88, 21106.77, 1501, 1)  # Planck R1, B, F
    struct.pack_into("<5f", camera, 112, 0.006569, 0.01262, -0.002276, -0.00667, 1.9)
    struct.pack_into("<if", camera, 776, -7340, 0.012545258)  # Planck O, R2
    parts, start = {kind: raw, 32: bytes(camera)}, 64 + 4 * 32  # two entries are empty
    head = struct.pack(">4s16s3I32x", b"FFF", b"", 100, 64, 4)
    for number, part in parts.items():
        head += struct.pack(">2H4I12x", number, 1, 100, 1, start, len(part))
        start += len(part)
    content = head + bytes(2 * 32) + b"".join(parts.values())
    exif = Image.Exif()
    exif[274] = orientation
    picture = io.BytesIO()
    Image.new("RGB", (32, 24), "orange").save(picture, "JPEG", exif=exif)
    cuts = [content[at : at + 60_000] for at in range(0, len(content), 60_000)]
    segments = b"".join(
        b"\xff\xe1" + struct.pack(">H5s3B", len(cut) + 10, b"FLIR", 1, i, len(cuts) - 1) + cut
        for i, cut in enumerate(cuts)
    )
    path.write_bytes(picture.getvalue()[:2] + segments + picture.getvalue()[2:])


@pytest.mark.parametrize("orientation", [1, 6])
def test_temperatures_of_a_flir_camera_are_read(tmp_path, orientation):
    "Not the colours beside them; the hot pixel is bright, and turned as the picture is."
    pytest.importorskip("flyr")
    values = np.random.default_rng(0).integers(13_000, 13_200, (240, 320))
    values[50:54, 100:104] = 13_600
    radiometric(tmp_path / "a.jpg", values, orientation)
    image, mode, _ = read_image(tmp_path / "a.jpg")
    upright = np.rot90(values, -1) if orientation == 6 else values
    assert (mode, image.shape, image.dtype) == ("F", upright.shape, np.uint8)
    assert np.corrcoef(image.ravel(), upright.ravel())[0, 1] > 0.999
    [frame] = frames_of(tmp_path / "a.jpg")
    np.testing.assert_array_equal(frame.pixels, image)
    in_memory = Image.open(io.BytesIO((tmp_path / "a.jpg").read_bytes()))
    np.testing.assert_array_equal(data.pixels_of(in_memory), image)


@pytest.mark.parametrize("missing", ["values", "flyr"])
def test_a_flir_picture_without_temperatures_says_so(tmp_path, monkeypatch, missing):
    "Its colours, logo and scale are not taken for an image in silence."
    pytest.importorskip("flyr")
    radiometric(tmp_path / "a.jpg", np.full((24, 32), 9000), kind=1 if missing == "flyr" else 7)
    if missing == "flyr":
        monkeypatch.setattr(importlib.util, "find_spec", {}.get)
    why = "need the package flyr .pip install flyr." if missing == "flyr" else "cannot be read"
    with pytest.raises(UserError, match=f"temperatures of FLIR {why}; .* save it as PNG"):
        read_image(tmp_path / "a.jpg")
    picture = Image.open(io.BytesIO((tmp_path / "a.jpg").read_bytes()))
    picture.load()  # without a file of its own
    with pytest.raises(UserError, match=f"temperatures of FLIR {why}"):
        data.pixels_of(picture)


def test_a_file_is_read_as_an_image_alone(folder):
    "Pillow knows PostScript too, and would start a program on a downloaded file that looks so."
    text = "%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"
    (folder / "images" / "train_2.png").write_text(text)
    assert Image.open(folder / "images" / "train_2.png").format == "EPS"
    assert "unreadable image in images/: 1 (train_2)" in refusal(folder)
    (folder / "images/train_2.png").unlink()
    (folder / "images/train_2.png").symlink_to("gone")
    assert "image: No such file or directory in images/: 1 (train_2)" in refusal(folder)


def test_a_mask_of_another_size_is_resized_as_labels_and_warned_of_once(folder):
    "The published set has one. Other than by nearest neighbour, edges would become grey."
    mask = np.zeros((64, 96), np.uint8)
    mask[20:30, 30:42] = 255
    for name in ("train_1", "test_0"):
        put(folder, "masks", name, mask)
    parts, [line] = warned(folder)
    want = np.zeros((32, 32), np.uint8)
    want[10:15, 10:14] = 1
    np.testing.assert_array_equal(parts["train"].pairs[1][1], want)
    assert line == "mask of another size than its image, resized as labels: 2 (train_1, test_0)"
    put(folder, "images", "test_0", np.zeros((96, 64), np.uint8))
    assert "mask: width and height of its image swapped" in refusal(folder)


def test_grey_masks_are_cut_at_half(folder):
    "A mask saved as JPEG or smoothed: half is the only cut that keeps areas; previews have no say."
    put(folder, "masks", "train_1", (GREY // 4).astype(np.uint8))
    Image.new("RGB", (9, 9), "red").save(folder / "masks" / "preview.png")
    put(folder, "masks", "train_2", np.pad(np.uint8([[1, 255]] * 4), ((14,), (15,))))
    parts, lines = warned(folder)
    np.testing.assert_array_equal(parts["train"].pairs[1][1], GREY // 4 >= 128)
    assert lines[-1].startswith("mask of 1 and 255, in which only 255 is target (if it means")


def rewrite(folder, change, suffix=".png"):
    "Write each mask anew: `change` makes a picture of its 0 and 1."
    for path in sorted((folder / "masks").iterdir()):
        truth = (np.asarray(Image.open(path)) > 127).astype(np.uint8)
        path.unlink()
        change(truth).save(path.with_suffix(suffix))


def palette(truth, colour):
    "A palette picture as label tools write it."
    picture = Image.frombytes("P", truth.shape[::-1], truth.tobytes())
    picture.putpalette([0, 0, 0, *colour] + [0] * 762)
    return picture


def rgb(truth, *colours):
    "A colour picture, whose left and right halves have these colours."
    halves = (truth * (np.arange(truth.shape[1]) // (truth.shape[1] // 2) == k) for k in (0, 1))
    layers = zip(halves, (colours * 2)[:2], strict=True)
    return Image.fromarray(sum(h[..., None] * np.uint8(c) for h, c in layers))


FORMS = {
    "0 and 1": (lambda t: Image.fromarray(t), ".png", ""),
    "16 bits, 1": (lambda t: Image.fromarray(t.astype(np.uint16)), ".png", ""),
    "16 bits, 65535": (lambda t: Image.fromarray(65535 * t.astype(np.uint16)), ".png", ""),
    "floats": (lambda t: Image.fromarray(0.9 * t.astype(np.float32)), ".tif", ""),
    "VOC's palette": (lambda t: palette(t, (128, 0, 0)), ".png", "coloured mask"),
    "VOC's colours": (lambda t: rgb(t, (128, 0, 0), (0, 128, 0)), ".png", "coloured mask"),
    "blue and yellow": (lambda t: rgb(t, (0, 0, 255), (255, 255, 0)), ".png", "coloured mask"),
    "alpha": (lambda t: Image.fromarray(np.dstack([0 * t, 0 * t, 0 * t, 255 * t])), ".png", ""),
    "numbers": (lambda t: rgb(t, (3, 3, 3), (7, 7, 7)), ".png", "numbers of objects"),
    "JPEG": (lambda t: Image.fromarray(255 * t), ".jpg", ""),
    "JPEG in colours": (lambda t: rgb(t, (255, 0, 255)), ".jpg", "coloured mask"),
    "WebP": (lambda t: Image.fromarray(255 * t), ".webp", ""),
    "WebP in colours": (lambda t: rgb(t, (255, 0, 255)), ".webp", "coloured mask"),
}


@pytest.mark.parametrize("form", FORMS)
def test_masks_of_label_tools_hold_all_targets(folder, form):
    "Whatever the form, the same targets; what is not black and white is reported, JPEG is not."
    want = [mask for _, mask in splits(config(folder))["train"].pairs]
    change, suffix, note = FORMS[form]
    rewrite(folder, change, suffix)
    parts, lines = warned(folder)
    for (_, have), truth in zip(parts["train"].pairs, want, strict=True):
        np.testing.assert_array_equal(have, truth)
    assert [note in line for line in lines] == [True] * bool(note)


STRAY = {"8 bits": (np.uint8, 255, 1, ".png"), "16 bits": (np.uint16, 65535, 900, ".png")}
STRAY["floats"] = np.float32, 1.0, 0.02, ".tif"


@pytest.mark.parametrize("kind", STRAY)
def test_stray_values_are_no_targets(folder, kind):
    "The masks of a set decide together: faint noise in an empty mask of a 0/255 set is noise."
    number, white, stray, suffix = STRAY[kind]
    rewrite(folder, lambda truth: Image.fromarray(truth.astype(number) * number(white)), suffix)
    values = np.zeros((32, 32), number)
    values[5, 5] = values[20, 30] = stray
    Image.fromarray(values).save(folder / "masks" / f"test_1{suffix}")
    parts, lines = warned(folder)
    assert not parts["test"].pairs[1][1].any() and parts["test"].pairs[0][1].sum() == 9
    assert [line.split(" by")[0] for line in lines] == ["grey mask that loses objects"]


def test_pixels_in_memory_cannot_be_changed(folder):
    "They are those of all later runs, under a hash that was taken before."
    with pytest.raises(ValueError, match="read-only"):
        splits(config(folder))["train"].pairs[0][1][:] = 255


def test_grey_targets_that_the_cut_removes_are_reported(folder):
    "Beside one that stays; their pixels are background from then on. A list of them is no data."
    mask = np.zeros((32, 32), np.uint8)
    mask[3:6, 3:6], mask[20:24, 20:24] = 255, 100
    put(folder, "masks", "train_2", mask)
    for name, levels in ("train_0", [255, 60]), ("train_1", [1, 0, 2, 0, 255]):  # edge, numbers
        block = np.kron(np.diag(np.uint8(levels)), np.ones((4, 4), np.uint8))
        put(folder, "masks", name, np.pad(block, (0, 32 - len(block))))
    lines = [line for line in warned(folder)[1] if "loses objects by the cut" in line]
    assert len(lines) == 1 and lines[0].endswith(": 2 (train_1, train_2)")
    for level, other in ((100, mask), (3, np.dstack([mask, 0 * mask, 0 * mask]))):  # in colours
        put(folder, "masks", "train_2", other)
        for path in (folder / "masks").glob("test*"):
            Image.fromarray(np.minimum(np.asarray(Image.open(path)), level)).save(path)
        with pytest.raises(UserError, match="list of grey masks without a target"):
            warned(folder, on_bad_image="skip")


def test_a_lossless_mask_in_colours_keeps_its_pixels(tmp_path):
    colours = np.zeros((9, 9, 3), np.uint8)
    colours[3:6, 1:5, 0], colours[3:6, 5:8, 1] = 255, 60  # a dark one beside a bright one
    Image.fromarray(colours).save(tmp_path / "a.webp", lossless=True)
    assert np.array_equal(read_mask(tmp_path / "a.webp", (9, 9))[0], colours.max(2) > 0)


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp", ".tif"])
def test_an_orientation_tag_is_obeyed(tmp_path, suffix):
    "As viewers show it, on its side too, beside a tag of an odd type that Pillow cannot write."
    image = np.repeat(np.arange(0, 240, 5, dtype=np.uint8)[:, None], 32, 1)
    image[5:20, 3:9] = 220
    odd = struct.pack("<2sHIHHHIIHHIIIii", b"II", 42, 8, 2, 274, 3, 1, 6, 282, 10, 1, 38, 0, -1, 3)
    how = {"quality": 100} if suffix == ".jpg" else {"lossless": True} if suffix == ".webp" else {}
    how |= {"tiffinfo": {274: 6}} if suffix == ".tif" else {"exif": b"Exif\0\0" + odd}
    Image.fromarray(np.rot90(image).copy()).save(tmp_path / f"a{suffix}", **how)
    have = read_image(tmp_path / f"a{suffix}")[0]
    assert have.shape == image.shape and np.abs(have.astype(int) - image).max() <= 4
    Image.fromarray(image).save(tmp_path / "b.png", exif=b"Exif\0\0no tags")
    assert read_image(tmp_path / "b.png")[0].shape == image.shape


def test_a_mask_without_the_tag_that_turns_its_image_is_warned_of(folder):
    "Drawn on the stored pixels, its targets would lie elsewhere; another mask has the tag too."
    tag = Image.Exif()
    tag[274] = 3
    for name in ("train_0", "train_1"):
        (folder / f"images/{name}.png").unlink()
        Image.new("L", (32, 32), 40).save(folder / f"images/{name}.jpg", exif=tag)
    Image.open(folder / "masks/train_1.png").save(folder / "masks/train_1.tif", exif=tag)
    (folder / "masks/train_1.png").unlink()
    [line] = warned(folder)[1]
    assert line.startswith("image and mask of different orientation tags")
    assert line.endswith("1 (train_0)")


def test_a_kind_of_tiff_that_pillow_cannot_read_is_named(folder):
    "With what to save instead; a damaged file is something else."
    import tifffile

    (folder / "images/train_0.png").unlink()
    tifffile.imwrite(folder / "images/train_0.tif", np.zeros((32, 32)))
    assert "save a TIFF file as 8 or 16 bits or 32-bit floats, grey" in refusal(folder)


def test_further_pages_of_an_image_are_reported(folder):
    "A data set has one mask an image."
    pages = [Image.open(folder / f"images/train_{i}.png").copy() for i in range(3)]
    (folder / "images/train_0.png").unlink()
    pages[0].save(folder / "images/train_0.tif", save_all=True, append_images=pages[1:])
    assert warned(folder)[1] == ["file of several pages, of which the first is read: 1 (train_0)"]


def test_names_of_a_camera_and_a_mac_are_those_of_a_list(folder):
    "A suffix in capitals; an accent as a sign of its own; of two files of one name the PNG."
    want = splits(config(folder))["train"].hash
    for kind in ("images", "masks"):
        for i, suffix in enumerate((".PNG", ".pNg")):
            (folder / kind / f"train_{i}.png").rename(folder / kind / f"train_{i}{suffix}")
        Image.new("L", (9, 9)).save(folder / kind / "train_3.bmp")
    assert splits(config(folder))["train"].hash == want
    for kind in ("images", "masks"):
        (folder / kind / "train_0.PNG").rename(folder / kind / "e\u0301te\u0301.png")
    text = (folder / "trainval.txt").read_text().replace("train_0", "\u00e9t\u00e9")
    (folder / "trainval.txt").write_text(text)
    assert splits(config(folder))["train"].names[0] == "\u00e9t\u00e9"


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P", "1", "I;16"])
def test_masks_are_the_same_in_every_mode(folder, mode):
    "As with images, the mode of the file is an accident; 16 bits have a white of their own."
    want = splits(config(folder))["train"].hash
    mask = np.asarray(Image.open(folder / "masks" / "train_0.png"))
    put(folder, "masks", "train_0", mask * np.uint16(257) if mode == "I;16" else mask, mode)
    parts, lines = warned(folder)
    assert (parts["train"].hash, lines) == (want, [])


def test_deep_masks_are_read_as_deep_images_are(folder):
    "A TIFF file whose 0 is white, and a float one with a pixel that is no number."
    mask = np.zeros((32, 32), np.uint16)
    mask[3:6, 7] = 60_000
    place = folder / "masks" / "train_1"
    place.with_suffix(".png").unlink()
    Image.fromarray(60_000 - mask).save(place.with_suffix(".tif"), tiffinfo={262: 0})
    np.testing.assert_array_equal(warned(folder)[0]["train"].pairs[1][1], mask > 0)
    values = mask.astype(np.float32)
    values[0, 0] = np.nan
    Image.fromarray(values).save(place.with_suffix(".tif"))
    assert f"{NAN} in masks/: 1 (train_1)" in refusal(folder)


def test_the_report_tells_everything_at_once(folder):
    "Someone who prepares a data set does not want the first error but all of them."
    (folder / "images" / "train_0.png").unlink()
    (folder / "masks" / "train_1.png").unlink()
    os.truncate(folder / "images" / "train_2.png", 60)
    (folder / "masks" / "test_0.png").write_text("no mask")
    put(folder, "masks", "test_1", (GREY // 4).astype(np.uint8))
    put(folder, "images", "test_2", 20_000 + GREY)
    text, usable = report(config(folder))
    assert not usable
    lines = text.splitlines()
    named = sorted(line.split("(")[1] for line in lines if line.startswith("error"))
    assert named == ["test_0)", "train_0)", "train_1)", "train_2)"]
    assert sum(line.startswith("warning") for line in lines) == 2
    assert "`mshnet data DIR` lists everything" in refusal(folder)


def test_the_report_counts(folder):
    "Counts, sizes and areas, as they are in the files."
    put(folder, "images", "test_1", np.zeros((20, 48, 3), np.uint8) + np.uint8([9, 8, 7]))
    put(folder, "masks", "test_1", np.zeros((20, 48), np.uint8))
    Image.open(folder / "images" / "train_2.png").save(folder / "images" / "test_2.png")
    text, usable = report(config(folder))
    assert usable and "list under another name: 1 (test_2 as train_2)" in text
    assert "train: 6 images, 6 targets, 0 without a target" in text
    assert "test: 4 images, 3 targets, 1 without a target" in text
    assert "2 sizes, 32..48 wide, 20..32 high; 3 grey, 1 colour" in text
    assert "target areas 9..9 px, median 9 px" in text


# Splits


def held_out(folder, **settings):
    "Training and held-out names."
    parts = splits(config(folder, choose="val", **settings))
    return set(parts["train"].names), set(parts["val"].names)


@pytest.mark.parametrize(
    ("total", "fraction", "count"),
    [(20, 0.01, 1), (20, 0.2, 4), (20, 0.5, 10), (20, 0.9, 18), (4, 0.9, 3), (2, 0.01, 1)],
)
def test_the_held_out_part_is_disjoint_and_of_the_size_asked_for(tmp_path, total, fraction, count):
    "An image on both sides would choose the epoch that remembers it. No side is empty."
    folder = make_dataset(tmp_path / "tiny", train=total)
    train, val = held_out(folder, val_fraction=fraction, batch_size=1)
    assert not train & val
    assert train | val == {f"train_{i}" for i in range(total)}
    assert len(val) == count


def test_the_held_out_part_follows_the_seed_alone(tmp_path):
    "Two seeds judge by different images; a resumed run by the same."
    folder = make_dataset(tmp_path / "tiny", train=20)
    assert held_out(folder, seed=3) == held_out(folder, seed=3, batch_size=2, lr=0.01)
    assert len({frozenset(held_out(folder, seed=seed)[1]) for seed in range(5)}) > 1


@pytest.mark.parametrize("choose", ["last", "test"])
def test_without_choosing_by_validation_nothing_is_held_out(folder, choose):
    "Published numbers train on the whole list."
    parts = splits(config(folder, choose=choose))
    assert {name: len(split) for name, split in parts.items()} == {"train": 6, "test": 4}
    assert [*splits(config(folder, choose=choose), ["test"])] == ["test"]  # read already


def test_the_hash_changes_with_every_pixel_and_the_order(folder):
    "It stands in every result: other data must not look like the same."
    split = splits(config(folder))["train"]
    (image, mask), rest = split.pairs[0], split.pairs[1:]
    other_image, other_mask = image.copy(), mask.copy()
    other_image[0, 0] ^= 1
    other_mask[31, 31] ^= 1
    others = [
        replace(split, pairs=((other_image, mask), *rest)),
        replace(split, pairs=((image, other_mask), *rest)),
        replace(split, names=("other", *split.names[1:])),
        replace(split, pairs=((image.reshape(16, 64), mask), *rest)),
        split.part("train", [1, 0, 2, 3, 4, 5]),
        split.part("train", range(5)),
    ]
    assert len({split.hash, *(other.hash for other in others)}) == 7
    assert splits(config(folder))["train"].hash == split.hash


def test_a_list_that_is_read_alone_has_no_problems_of_another(folder):
    (folder / "masks/train_0.png").unlink()
    assert load_data(config(folder))[1].errors
    assert len(splits(config(folder), ["test"])["test"]) == 4


def test_pixels_that_stay_in_their_files_are_hashed_while_they_are_checked(folder):
    "They are read once for both; the hash is that of the same pixels in memory."
    want = load_data(config(folder))[0]["train"].hash
    split = load_data(config(folder, cache="stream"))[0]["train"]
    for path in (folder / "images").iterdir():
        path.unlink()
    assert not split.in_memory and split.hash == want


# Batches


@pytest.fixture(scope="module")
def made():
    "Synthetic scenes."
    return scenes("train", 9, 64)


SMALL = Config(base_size=64, crop_size=48)


def same(a, b):
    "Are two batches equal in every tensor?"
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_an_error_in_a_thread_is_raised_at_its_batch():
    "Not swallowed, and not before the batches that come first."
    stream = prefetch(lambda x: 1 // (3 - x), range(9), 2)
    assert [next(stream) for _ in range(3)] == [0, 0, 1]
    with pytest.raises(ZeroDivisionError):
        next(stream)


def test_draws_do_not_depend_on_batch_mates(made):
    "Another batch size or number of devices augments each image as before."
    together = training_batch(made, [4, 1, 7], 3, SMALL)
    for row, index in enumerate((4, 1, 7)):
        alone = training_batch(made, [index], 3, SMALL)
        assert torch.equal(alone.image[0], together.image[row])
        assert torch.equal(alone.mask[0], together.mask[row])


def test_draws_follow_epoch_and_seed(made):
    "An image looks different in every epoch, and a second seed is a second experiment."
    base = training_batch(made, range(9), 0, SMALL)
    assert not same(base, training_batch(made, range(9), 1, SMALL))
    other = SMALL.model_copy(update={"seed": 1})
    assert not same(base, training_batch(made, range(9), 0, other))
    assert same(base, training_batch(made, range(9), 0, SMALL))


@pytest.mark.parametrize(("count", "size"), [(9, 2), (9, 9), (9, 4), (3, 4)])
def test_training_drops_the_remainder_and_scoring_nothing(count, size):
    "Filler would poison batch norm; a missing image would flatter a score."
    train = [i for b in Detection(Config(batch_size=size)).plan(range(count), 0) for i in b]
    assert {*train} <= {*range(count)} and len({*train}) == count // size * size
    rows = Detection(Config(batch_size=size)).plan(range(count), None)
    assert {len(row) for row in rows} == {size}
    assert [i for row in rows for i in row if i >= 0] == list(range(count))


def test_each_epoch_is_shuffled_anew():
    "The reference's TPU port fed the same order each time."
    plans = [Detection(Config(batch_size=50)).plan(range(50), epoch) for epoch in range(5)]
    plans.append(Detection(Config(batch_size=50, seed=1)).plan(range(50), 0))
    assert len({tuple(plan[0]) for plan in plans}) == 6


def test_filler_is_marked_and_grey_becomes_three_equal_channels(made):
    "Scoring leaves out what is not real; the model takes three channels."
    batch = scoring_batch(made, [2, 0, -1], SMALL)
    assert batch.row.tolist() == [2, 0, -1]
    assert batch.image.shape == (3, 3, 64, 64)
    assert batch.image.dtype == batch.mask.dtype == torch.uint8
    assert (batch.image[:, :1] == batch.image).all()
    assert set(batch.mask.unique().tolist()) == {0, 1}


def test_grey_and_colour_images_share_a_batch(folder):
    "The real set mixes them."
    put(folder, "images", "train_0", COLOUR)
    split = splits(config(folder))["train"]
    batch = scoring_batch(split, [0, 1], config(folder))
    np.testing.assert_array_equal(batch.image[0].permute(1, 2, 0).numpy(), COLOUR)
    np.testing.assert_array_equal(batch.image[1, 2].numpy(), split.pairs[1][0])


def test_the_real_set_is_read_as_its_readme_says(sirst):
    "Messy as it is: four modes, a size for nearly every image, one mask of another size."
    parts, [line] = warned(sirst, base_size=256, crop_size=128)
    assert {name: len(split) for name, split in parts.items()} == {"train": 213, "test": 214}
    for name, targets in (("train", 270), ("test", 263)):  # 8-connected, by another library
        counts = [ndimage.label(mask, np.ones((3, 3)))[1] for _, mask in parts[name].pairs]
        assert sum(counts) == targets
    sizes = {image.shape[:2] for split in parts.values() for image, _ in split.pairs}
    assert len(sizes) == 381
    for split in parts.values():
        for image, mask in split.pairs:
            assert image.shape[:2] == mask.shape and mask.max() <= 1
    assert line.startswith("mask of another size")
    assert line.endswith(": 1 (Misc_111)")


def test_scenes_are_too_hard_for_a_top_hat_filter():
    "At its best training window and threshold it stays under IoU 0.4 on the test scenes."
    train, test = scenes("train", 240, 128), scenes("test", 60, 128)
    ious = {window: top_hat_iou(train, window) for window in (3, 5, 7, 9, 11)}
    window = max(ious, key=lambda window: ious[window].max())
    assert 0.1 < top_hat_iou(test, window)[ious[window].argmax()] < 0.4


def top_hat_iou(split, window):
    "IoU over a split of the responses of at least 0, 1, 2 .. 255 grey levels."
    hit, false = np.zeros((2, 256), int)
    for image, mask in split.pairs:
        found = ndimage.white_tophat(image.astype(int), size=(window, window))
        hit += np.bincount(found[mask > 0], minlength=256)
        false += np.bincount(found[mask == 0], minlength=256)
    return hit[::-1].cumsum()[::-1] / (hit.sum() + false[::-1].cumsum()[::-1])
