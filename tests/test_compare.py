"""Comparing runs: what is refused, what stands in the tables, and what the records add up to."""

import json
import math
import re
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from conftest import TOP, call, make_dataset, refused
from PIL import Image
from scipy import ndimage

from mshnet.analyse import signal_to_clutter, target_records
from mshnet.compare import by_size, choice, compare, read_scored, seed_groups
from mshnet.data import splits
from mshnet.device import open_device
from mshnet.evaluate import evaluate
from mshnet.metrics import find, objects
from mshnet.recipe import Config
from mshnet.show import TargetRecord
from mshnet.task import make_task, wilson
from mshnet.train import Job, identity, train

SETTINGS = {"scenes": 16, "base_size": 32, "crop_size": 32, "choose": "last", "device": "cpu"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    "Two runs that differ in their seed alone."
    place = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        folder = str(place / f"seed{seed}")
        train(Config(**SETTINGS, seed=seed, epochs=1, warm_epoch=-1, output_dir=folder))
    return place


@pytest.fixture
def copies(runs, tmp_path):
    "Folders with the scores of both, to be changed."
    for name in ("seed0", "seed1"):
        (tmp_path / name).mkdir()
        for file in ("scores.json", "details.json", "config.json"):
            (tmp_path / name / file).write_bytes((runs / name / file).read_bytes())
    return tmp_path


def change(folder, file, **values):
    "Change what a JSON file says; None takes it away."
    path = folder / file
    content = json.loads(path.read_text())
    part = content["protocol"] if file == "scores.json" else content
    part.update(values)
    for name in [name for name, value in values.items() if value is None]:
        del part[name]
    path.write_text(json.dumps(content))


def test_two_runs_make_a_table_with_their_mean(copies, capsys):
    "Runs that differ in their seed alone have a mean and a deviation; one run has none."
    folders = [copies / "seed0", copies / "seed1"]
    for folder, iou in zip(folders, (0.2, 0.5), strict=True):
        content = json.loads((folder / "scores.json").read_text())
        content["scores"]["iou"] = iou
        (folder / "scores.json").write_text(json.dumps(content))
    status, out, _ = call(capsys, "compare", *folders)
    assert status == 0 and "## By size" in out
    assert f"| mean of n = 2 seeds like seed0 | 0.350 ± {0.3 / math.sqrt(2):.3f} |" in out
    status, out, _ = call(capsys, "compare", folders[0])
    assert status == 0 and "mean of" not in out and "protocol: split_hash" in out


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("split_hash", "0123456789ab"),
        ("targets", 5),
        ("size", 128),
        ("resize", "another"),
        ("threshold", 0.3),
        ("rule", "reference"),
        ("chosen", "epoch 1, by iou on the TEST list itself"),
        ("chosen", "weights x.pt; how they were chosen: not known"),
        ("split_hash", None),
    ],
)
def test_what_is_not_comparable_is_refused(copies, capsys, field, value):
    "The line names the field."
    change(copies / "seed1", "scores.json", **{field: value})
    both, name = (copies / "seed0", copies / "seed1"), "choice" if field == "chosen" else field
    status, out, line = call(capsys, "compare", *both)
    assert (status, out, line.count("\n")) == (2, "", 1)
    assert "cannot be compared" in line and f" {name} " in line


SAID = ["seed", "device", "precision", "mshnet", "data", "trained_on_scored_images"]


@pytest.mark.parametrize("field", SAID)
def test_what_only_needs_saying_has_a_column(copies, field):
    "Another name of the same pixels, another machine: said, not refused."
    change(copies / "seed1", "scores.json", **{field: "9"})
    change(copies / "seed1", "config.json", train_list="again.txt")
    for folder in (copies / "seed0", copies / "seed1"):  # of a batch, as TFNet's protocol has them
        change(folder, "scores.json", lengths=[48, 96])
    found = compare([copies / "seed0", copies / "seed1"])
    assert "9" in found.differs[field] and not compare(str(copies / "seed0")).differs
    assert re.search(rf"## Protocol\n\n\| run .*\| {field} ", str(found))
    assert len(seed_groups(found.runs)) == (field not in ("precision", "mshnet"))


def test_last_and_held_out_are_both_honest():
    "Neither looks at the test list, so they may be compared."
    said = ["epoch 9, the last", "epoch 3, by iou on a held-out part of the training list"]
    assert {choice(text) for text in said} == {"without the test list"}
    assert choice("epoch 3, named by its file held-out.pt") == "not known"
    damaged = "epoch 9, the last one, as the one that was chosen is damaged"
    assert choice(damaged) == "without the test list"


def test_a_mean_is_of_seeds_alone(copies):
    "Other training images or versions are another experiment, and so are unknown ones."
    both = copies / "seed0", copies / "seed1"
    old = "both sides squashed to base_size (image bilinear, mask nearest, Pillow)"
    change(both[1], "scores.json", resize=old)  # as earlier runs have recorded it
    for field in ("trained_on", "torch", "bin_ms"):
        before = (both[1] / "scores.json").read_text()
        change(both[1], "scores.json", **{field: "other"})
        assert seed_groups(compare(both).runs) == []
        (both[1] / "scores.json").write_text(before)
    assert len(seed_groups(compare(both).runs)) == 1
    for folder in both:
        change(folder, "scores.json", trained_on=None)
    assert seed_groups(compare(both).runs) == []


def test_a_mean_is_of_runs_that_ended_alike(copies):
    "A run that its session cut short is no further seed; an old record has no mirrors."
    change(copies / "seed1", "scores.json", mirrored=None)
    runs = [copies / "seed0", copies / "seed1"]
    assert len(seed_groups(compare(runs).runs)) == 1
    (copies / "seed1" / "status.json").write_text('{"state": "stopped"}')  # though it was scored
    assert seed_groups(compare(runs).runs) == []
    assert "has not ended, so these are in no mean: seed1" in str(compare(runs))
    (copies / "seed1" / "status.json").write_text('{"state": "finished"}')
    change(copies / "seed1", "scores.json", chosen="epoch 7, the last")
    assert seed_groups(compare(runs).runs) == []
    for seed in (0, 1):  # without best.pt: the settings of the run, not of what it began with
        change(copies / f"seed{seed}", "details.json", settings={"weight_path": "pretrained"})
        change(copies / f"seed{seed}", "scores.json", chosen="epoch 0, the last", vocabulary=seed)
    change(copies / "seed1", "config.json", lr=0.5)
    assert {"lr", "vocabulary"} <= compare(runs).differs.keys()
    (copies / "seed1" / "config.json").unlink()
    change(copies / "seed1", "details.json", settings={"weight_path": "none"})
    assert "settings of the training were not found: seed1" in str(compare(runs))


def test_training_images_are_the_same_with_every_seed():
    "Though each seed holds other images out; and other masks under the same names are others."
    config = Config(scenes=12, base_size=32, crop_size=32, batch_size=2, choose="val")
    device = open_device("cpu", "fp32")
    parts = [splits(config.model_copy(update={"seed": seed})) for seed in (0, 1)]
    first, second = (identity(Job(make_task(config), each, device)) for each in parts)
    assert first["training list"] == second["training list"]
    assert first["train data"] != second["train data"]
    pairs = tuple((image, 1 - mask) for image, mask in parts[0]["train"].pairs)
    other = parts[0] | {"train": replace(parts[0]["train"], pairs=pairs)}
    changed = identity(Job(make_task(config), other, device))
    assert changed["training list"] != first["training list"]


def test_a_recipe_is_what_the_run_recorded(copies):
    "Another one makes no mean; an old run has the defaults of its day, another program none."
    change(copies / "seed1", "config.json", lr=0.5)
    found = compare([copies / "seed0", copies / "seed1"])
    assert seed_groups(found.runs) == []
    assert found.differs["lr"] == [str(Config().lr), "0.5"]
    recipe = read_scored(TOP / "results" / "nuaa-sirst-paper").recipe
    assert (recipe["optimizer"], recipe["clutter_share"]) == ("adagrad", 0.0)
    (copies / "seed0" / "config.json").write_text('{"task": "image-segmentation"}')
    assert read_scored(copies / "seed0").recipe == {}


def test_each_mistake_has_its_line(copies, capsys):
    "What is no run, has no scores, or is damaged; the retired flag."
    one, other = copies / "seed0", copies / "seed1"
    assert "there is no such folder; name a run" in refused(capsys, "compare", one / "scores.json")
    assert "output is retired: add > FILE.md" in refused(capsys, "compare", one, "--output", "x.md")
    negative = '{"scores": {"iou": -1}, "protocol": {}}'
    for text in ("{", "[]", '{"scores": {}}', '{"scores": 1}', "\0", negative):
        (other / "scores.json").write_text(text)
        assert "scores.json" in refused(capsys, "compare", other)
    for text in ("{", "3", '{"images": [{}]}', '{"targets": 3}', '{"curves": 3}'):
        (one / "details.json").write_text(text)
        assert "details.json" in refused(capsys, "compare", one)
    (one / "scores.json").unlink()
    (one / "best.pt").touch()
    assert f"mshnet test --weight-path {one}/best.pt" in refused(capsys, "compare", one)


def test_a_scoring_without_records_of_targets_keeps_its_scores(copies, capsys):
    "Folders from before have their scores and their curves; the table names them."
    curves = json.loads((copies / "seed0/details.json").read_text())["curves"]
    (copies / "seed0/details.json").write_text(json.dumps({"images": [], "curves": curves}))
    (copies / "seed1" / "details.json").unlink()
    status, text, _ = call(capsys, "compare", copies / "seed0", copies / "seed1")
    assert status == 0
    assert "without records of targets; score again by mshnet test: seed0, seed1" in text


def test_scores_in_a_folder_of_their_own_know_their_weights(runs, tmp_path):
    "What `mshnet test --output-dir` writes is enough for the tables and the means."
    evaluate(Config(**SETTINGS)).save(tmp_path)
    assert read_scored(tmp_path).recipe  # of the weights of the library, which need no name
    evaluate(Config(**SETTINGS, weight_path=str(runs / "seed0" / "best.pt"))).save(tmp_path)
    scored = read_scored(tmp_path)
    assert scored.recipe == read_scored(runs / "seed0").recipe
    assert len(seed_groups([scored, read_scored(runs / "seed1")])) == 1
    change(tmp_path, "details.json", settings=scored.details.settings | {"weights": "?"})
    assert read_scored(tmp_path).recipe == {}  # other weights lie there now
    began = {name: value for name, value in scored.details.settings.items() if name != "weights"}
    change(tmp_path, "details.json", settings=began | {"weight_path": "pretrained"})
    assert read_scored(tmp_path).recipe == {}  # those with which a training began


@pytest.mark.parametrize("rule", ["exact", "reference"])
def test_records_add_up_to_the_scores(rule):
    "Covered pixels to the intersection, and found targets to those of Pd."
    rng = np.random.default_rng(0)
    for _ in range(60):
        corners = rng.random((2, 48, 48)) < 0.003  # each grows to a rectangle
        mask, pred = ndimage.binary_dilation(corners, np.ones((1, *rng.integers(1, 8, 2))))
        seen = target_records(pred * 50.0, pred * 0.9, pred, mask, objects(mask), rule)
        assert sum(t["covered"] for t in seen) == np.count_nonzero(mask & pred)
        assert sum(t["matched"] for t in seen) == find(objects(mask), objects(pred), rule).matched
        assert [t["iou"] is not None for t in seen] == [t["matched"] for t in seen]


def test_a_record_is_of_the_target_at_its_place():
    "Area, peak and contrast are those of the pixels at the centroid, counted here one by one."
    rng = np.random.default_rng(1)
    mask = np.zeros((64, 64), bool)
    mask[5:8, 50:54] = mask[40:42, 3:9] = mask[42, 9] = mask[60:64, 60:64] = True
    grey, prob = rng.random((64, 64)) * 255, rng.random((64, 64))
    seen = target_records(grey, prob, prob > 0.5, mask, objects(mask), "exact")
    pieces = [np.s_[5:8, 50:54], np.s_[60:64, 60:64]]
    for piece in pieces:
        rows, cols = np.mgrid[piece]
        [record] = [t for t in seen if (t["row"], t["col"]) == (rows.mean(), cols.mean())]
        assert record["area"] == rows.size
        assert record["peak"] == pytest.approx(prob[piece].max(), abs=1e-4)
    assert sorted(t["area"] for t in seen) == [12, 13, 16]


def test_contrast_is_the_formula():
    "|mean of target - mean around| / deviation around, over a box of 20 pixels more on each side."
    rng = np.random.default_rng(2)
    grey, mask = rng.normal(100, 7, (128, 128)), np.zeros((128, 128), bool)
    mask[60:64, 60:66] = mask[70, 70] = True
    target = mask.copy()
    target[70, 70] = False
    inside, around = [], []
    for row, col in product(range(40, 84), range(40, 86)):
        if target[row, col]:
            inside.append(grey[row, col])
        elif not mask[row, col]:
            around.append(grey[row, col])
    wanted = abs(np.mean(inside) - np.mean(around)) / np.std(around)
    assert signal_to_clutter(grey, target, mask) == pytest.approx(wanted, abs=1e-3)


def test_sizes_count_their_edges():
    "1-9, 10-25, 26-64, 65 and more, and all."
    areas = (1, 9, 10, 25, 26, 64, 65, 4000)
    found = [*by_size([TargetRecord(area=a, matched=a < 10) for a in areas])]
    assert [targets for _, targets, *_ in found] == [2, 2, 2, 2, 8]
    assert [pd for *_, pd, _ in found] == [1, 0, 0, 0, 0.25]
    assert found[-1][-1] == pytest.approx(wilson(2, 8))


def test_a_run_without_targets_is_compared(tmp_path):
    "Nothing to find: no Pd, no bins, no crash."
    data = make_dataset(tmp_path / "data", size=32)
    for mask in (data / "masks").glob("test_*"):
        Image.fromarray(np.zeros((32, 32), np.uint8)).save(mask)
    common = {"dataset_dir": str(data), "base_size": 32, "crop_size": 32, "choose": "last"}
    settings = {"device": "cpu", "epochs": 1, "warm_epoch": -1, "batch_size": 2}
    train(Config(**common, **settings, output_dir=str(tmp_path / "run")))
    assert "| -  " in str(compare([tmp_path / "run"])).split("## ")[1]  # the scores


def test_scores_of_another_task_may_be_negative(tmp_path, capsys):
    "Such as R2, or the logarithm of a likelihood."
    for name, value in (("a", -0.2), ("b", 0.3)):
        (tmp_path / name).mkdir()
        content = {"scores": {"r2": value}, "protocol": {"task": "other", "split_hash": "1"}}
        (tmp_path / name / "scores.json").write_text(json.dumps(content))
    status, out, _ = call(capsys, "compare", tmp_path / "a", tmp_path / "b")
    assert status == 0 and "-0.2" in out
