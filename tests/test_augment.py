"Crops of the scored size, and images that are scored at their own size."

import json
import shutil

import numpy as np
import pytest
import torch
from conftest import refused, same, train_and_kill
from PIL import Image
from scipy.ndimage import center_of_mass, label

from mshnet.augment import augment as augmented
from mshnet.augment import pad_mirrored, resize_square, sample_params, scoring_batch
from mshnet.cli import main
from mshnet.compare import compare
from mshnet.core import UserError
from mshnet.data import Split, splits
from mshnet.detection import Detection, normalise
from mshnet.evaluate import Detector, evaluate
from mshnet.export import export
from mshnet.recipe import Config
from mshnet.run import read_checkpoint
from mshnet.train import train

SIZES = [(64, 72), (64, 64), (63, 79), (12, 90), (80, 80)]  # height and width
TINY = {"base_size": "native", "crop_size": 32, "batch_size": 2, "epochs": 2, "device": "cpu"}
TINY |= {"precision": "fp32", "schedule": "constant", "deterministic": True}
TINY |= {"weight_path": "pretrained"}  # which find something


def scene(size, rng):
    "Noise with two bright targets."
    image, mask = rng.integers(20, 60, size, dtype=np.uint8), np.zeros(size, np.uint8)
    for row, col in ((3, 4), (size[0] - 8, size[1] - 9)):
        image[row : row + 4, col : col + 3] = 220
        mask[row : row + 4, col : col + 3] = 255
    return image, mask


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    "A data set whose images have five sizes."
    top, rng = tmp_path_factory.mktemp("sizes") / "data", np.random.default_rng(0)
    for part in ("images", "masks"):
        (top / part).mkdir(parents=True)
    for part, count in (("trainval", 4), ("test", 5)):
        names = [f"{part}{i}" for i in range(count)]
        (top / f"{part}.txt").write_text("\n".join(names))
        for name, size in zip(names, SIZES, strict=False):
            for kind, pixels in zip(("images", "masks"), scene(size, rng), strict=True):
                Image.fromarray(pixels).save(top / kind / f"{name}.png")
    return top


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    "A run whose scores are of native size."
    place = tmp_path_factory.mktemp("native") / "run"
    return train(Config(**TINY, dataset_dir=str(folder), output_dir=str(place)))


def by_hand(folder, weights, mirrored=False):
    "IoU, Pd and Fa at native size, counted image by image without any code of the library's."
    model = Detection(Config()).model().eval()
    model.load_state_dict(read_checkpoint(weights)["model"])
    inter = union = found = targets = false = pixels = 0
    for name in (folder / "test.txt").read_text().split():
        files = [folder / part / f"{name}.png" for part in ("images", "masks")]
        image, mask = (np.array(Image.open(file)) for file in files)
        height, width = mask.shape
        padded = np.pad(image, [(0, -height % 16), (0, -width % 16)], mode="reflect")
        rows = torch.from_numpy(padded)[None, None].expand(1, 3, -1, -1)
        turns = [(), (3,), (2,), (2, 3)] if mirrored else [()]
        with torch.no_grad():
            each = [torch.sigmoid(model(normalise(rows.flip(t)))[1]).flip(t) for t in turns]
        pred = torch.stack(each).mean(0)[0, 0, :height, :width].numpy() > 0.5
        truth = mask > 127
        inter, union = inter + (pred & truth).sum(), union + (pred | truth).sum()
        pixels += truth.size
        (a, n), (b, m) = (label(x, np.ones((3, 3))) for x in (truth, pred))
        places = [center_of_mass(truth, a, i + 1) for i in range(n)]
        free = {j + 1: center_of_mass(pred, b, j + 1) for j in range(m)}
        targets += n
        for place in places:
            near = [j for j, at in free.items() if np.hypot(*np.subtract(place, at)) < 3]
            if near:
                found += 1
                del free[near[0]]
        false += sum((b == j).sum() for j in free)
    return inter / union, found / targets, 1e6 * false / pixels


@pytest.mark.parametrize("mirrored", [False, True])
def test_native_scores_are_those_counted_by_hand(folder, run, mirrored, tmp_path):
    "By `train` at its end, by `evaluate` and by `mshnet test`: the same numbers."
    assert run.scores["protocol"]["size"] == "native"
    assert run.scores["protocol"]["resize"].startswith("none")
    result = evaluate(run, mirrored=mirrored)
    assert result.protocol["mirrored"] == mirrored
    want = by_hand(folder, run.folder / "best.pt", mirrored)
    assert want[0] > 0.1 and want[1] > 0.3  # it finds some
    scores = result.scores
    assert (scores.iou, scores.pd, scores.fa) == pytest.approx(want, rel=1e-12)
    if not mirrored:
        assert run.scores["scores"] == scores.as_dict()
    words = ["--weight-path", str(run.folder), "--output-dir", str(tmp_path / "scores")]
    assert main(["test", *words, f"--mirrored={str(mirrored).lower()}"]) == 0
    assert json.loads((tmp_path / "scores/scores.json").read_text())["scores"] == scores.as_dict()
    evaluate(run, base_size=64, mirrored=mirrored).save(tmp_path)
    with pytest.raises(UserError, match="size"):  # they are two protocols
        compare([str(tmp_path), str(tmp_path / "scores")])


def test_no_native_score_depends_on_the_batch(run):
    "Images of several sizes lie in batches of their own."
    want = evaluate(run).scores
    for size in (1, 3, 8):
        assert evaluate(run, batch_size=size).scores == want


def test_a_native_run_resumes_to_the_bit(run, tmp_path):
    "The plan of a scoring is not part of the state."
    config = run.config.model_copy(update={"output_dir": str(tmp_path / "run")})
    train_and_kill(config, 3)
    again = train(config)
    assert again.scores["scores"] == run.scores["scores"]
    have, want = (read_checkpoint(x.folder / "last.pt")["model"] for x in (again, run))
    assert same(have, want)


@pytest.mark.parametrize("world", [1, 2, 4])
def test_the_shares_of_processes_are_equal(world):
    "Each takes its slots of every batch of unequal images."
    pairs = tuple((np.zeros((16 + 16 * (i % 3), 32), np.uint8),) * 2 for i in range(11))
    split = Split("test", tuple(map(str, range(11))), pairs, "sizes")
    plan, share = Detection(Config(base_size="native", batch_size=4)).plan(split, None), 4 // world
    each = [[r for rows in plan for r in rows[k : k + share] if r >= 0] for k in range(0, 4, share)]
    assert sorted(row for rows in each for row in rows) == list(range(11))
    assert max(map(len, each)) <= min(map(len, each)) + share


def test_own_weights_see_a_frame_as_small_as_the_training_images(folder, tmp_path, capsys):
    "Images of 96x104 pixels at 32 are a third as large, also after a resume."
    data = shutil.copytree(folder, tmp_path / "large")
    for file in data.rglob("*.png"):
        Image.open(file).resize((104, 96), 0).save(file)
    small = {"dataset_dir": str(data), "base_size": 32, "crop_size": 32, "device": "cpu"}
    reduced = [{}, {"crop": "resize"}, {"cache": "stream"}]
    for more in (*reduced, {"base_size": 80}, {"base_size": "native"}, {"crop": "native"}):
        task = Detection(Config(**small | more))
        assert task.identity(task.splits()).get("reduction") == ("3" if more in reduced else None)
    config = Config(**TINY | small | {"weight_path": "", "output_dir": str(tmp_path / "run")})
    train_and_kill(config, 3)
    own = train(config)
    file = export(own, tmp_path / "own.safetensors")
    words = f"predict {data}/images --weight-path {file} --output-dir {tmp_path}/out"
    assert main(words.split()) == 0
    assert "frames reduced 3 times, as in training" in "".join(capsys.readouterr())
    assert [Detector(path, "cpu").multiscale for path in (own, file)] == [(0, 1, 0, 3)] * 2
    more = {"weight_path": str(file), "base_size": 80, "output_dir": str(tmp_path / "other")}
    assert Detector(train(config.model_copy(update=more)), "cpu").multiscale == ()


def test_images_of_one_size_share_batches():
    "As at 256x256: the same plan, and one program for a compiler."
    config = Config(scenes=24, base_size="native")
    task = Detection(config)
    test = task.splits(["test"])["test"]
    assert task.plan(test, None) == Detection(Config(scenes=24)).plan(test, None)
    assert scoring_batch(test, [0, 1], config).image.shape == (2, 3, 256, 256)


def test_padding_is_the_mirror_image_at_the_right_and_below():
    "As `predict` pads, so that its detections are those that are scored."
    from mshnet.predict import tiles_of

    for size in SIZES:
        image = np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8)
        assert np.array_equal(pad_mirrored(image), pad_mirrored(image, tiles_of(size)[1]))


def test_an_image_that_cannot_be_scored_natively_is_named(folder, tmp_path, capsys):
    "Before training, in one line, with nothing written; at 256x256 it can be scored."
    data = shutil.copytree(folder, tmp_path / "data")
    for part in ("images", "masks"):
        Image.fromarray(np.zeros((2048, 2064), np.uint8)).save(data / part / "test1.png")
    out = tmp_path / "run"
    words = ["--dataset-dir", data, "--output-dir", out, "--device", "cpu"]
    error = refused(capsys, "train --base-size native --batch-size 2", *words)
    assert "more than 4,194,304 pixels" in error and "test1" in error and "--base-size 256" in error
    assert not out.exists()
    assert len(splits(Config(dataset_dir=str(data), base_size=64, batch_size=2))["test"]) == 5


def test_base_size_is_a_number_or_native():
    "Anything else is one line with the range."
    for value in ("natve", 100, 16, 8192, 0.5):
        with pytest.raises(UserError) as wrong:
            Config(base_size=value)
        text = str(wrong.value)
        assert text.count("base_size=") == 1 and "'native'" in text, text
    assert Config(base_size="256").base_size == 256


@pytest.mark.parametrize("augment", ["turns", "flips", "robust"])
def test_scored_crops_have_the_scale_of_the_scored_image(augment):
    "A crop as large as the scored image is the scored image, mirrored and turned."
    image, mask = scene((300, 420), np.random.default_rng(1))
    config = Config(crop="scored", base_size=128, crop_size=128, augment=augment, clutter_share=0)
    drawn = sample_params(config, 0, 3)
    assert drawn.square == 128
    if augment == "turns":
        drawn = drawn._replace(blur=0)
        have = augmented(image, mask // 255, drawn, 128)
        want = resize_square(image, mask // 255, 128)
        for got, whole in zip(have, want, strict=True):
            turns = [np.rot90(x, k) for x in (whole, whole.T) for k in range(4)]
            assert any(np.abs(got.astype(int) - t).max() <= 1 for t in turns)


def test_scored_crops_of_native_scoring_are_native_crops():
    "One rule: a crop is cut from the image as it is scored."
    for size, equal in (("native", True), (256, False)):
        crops = [Config(crop=crop, base_size=size) for crop in ("scored", "native")]
        scored, native = (sample_params(config, 1, 2) for config in crops)
        assert (scored == native) == equal
    at256 = scene((256, 256), np.random.default_rng(2))  # such as those of NUDT-SIRST
    configs = [Config(crop=crop, preset="steady") for crop in ("scored", "native")]
    pairs = [augmented(*at256, sample_params(config, 0, 5), 128) for config in configs]
    assert all(map(np.array_equal, *pairs))
