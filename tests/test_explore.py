"Walking through images: what the pictures say, with and without widgets."

import io
import json
import shutil
import sys
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from conftest import TOP, make_run
from PIL import Image

from mshnet import explore as exploring
from mshnet import show
from mshnet.core import UserError, settings_from
from mshnet.detection import Detection
from mshnet.evaluate import Detector
from mshnet.events.events_config import EventsConfig
from mshnet.explore import describe, explore, explored, spots
from mshnet.recipe import Config
from mshnet.show import Picture, View

SMALL = {"scenes": 12, "base_size": 64, "crop_size": 64, "choose": "last", "device": "cpu"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    "The folder of a run on synthetic scenes."
    return make_run(tmp_path_factory.mktemp("explore") / "run")


@pytest.fixture
def by_hand(monkeypatch):
    "As if somebody sat before a notebook with widgets."
    pytest.importorskip("ipywidgets", reason="needs ipywidgets")
    monkeypatch.setattr(exploring, "movable", lambda: True)


def example():
    "A view with a hit, a miss and two false alarms at 0.5, one of which is gone at 0.7."
    truth, prob = np.zeros((64, 64), bool), np.zeros((64, 64), np.float32)
    truth[10:13, 10:13] = truth[40:42, 50:52] = True
    prob[10:13, 10:13], prob[30, 30], prob[62, 1] = 0.9, 0.6, 0.8
    return View("example", np.full((64, 64, 3), 90, np.uint8), prob, truth)


def view_of(run, index):
    "A test image of a run."
    config = settings_from(json.loads((run / "config.json").read_text()))
    split = Detection(config).splits()["test"]
    return show.view_image(Detector(run / "best.pt", "cpu"), config, split, index)


def widgets(box, kind):
    "The widgets of a kind in a box, by their description."
    found = {box.description: box} if type(box).__name__ == kind else {}
    for child in getattr(box, "children", ()):
        found |= widgets(child, kind)
    return found


def rgb(kind):
    "Red, green and blue of a sign."
    return tuple(int(kind["edgecolors"][i : i + 2], 16) for i in (1, 3, 5))


def test_a_description_counts_what_the_threshold_finds():
    "Its numbers are those that were put into the view."
    found = [describe(example(), t).splitlines()[0] for t in (0.5, 0.7, 0.95)]
    assert found == [
        "1 of 2 targets found, false alarms: 2",
        "1 of 2 targets found, false alarms: 1",
        "0 of 2 targets found, false alarms: 0",
    ]
    assert "IoU 0.64" in describe(example(), 0.7)  # 9 pixels of 13 and a false one


def test_signs_have_the_colours_of_what_happened(tmp_path):
    "A miss is drawn where one is, and none where everything is found."
    shown, path = {}, tmp_path / "a.png"
    found = View("all found", example().image, example().mask.astype(np.float32), example().mask)
    for name, view in (("mixed", example()), ("perfect", found)):
        path.write_bytes(explored(view))
        with Image.open(path) as file:
            pixels = np.asarray(file.convert("RGB")).astype(int)
        above = pixels[: int(0.88 * len(pixels))]  # the legend has all three below
        kinds = (show.HIT, show.MISS, show.FALSE_ALARM)
        shown[name] = [bool((abs(above - rgb(kind)).sum(-1) < 12).any()) for kind in kinds]
    assert shown == {"mixed": [True, True, True], "perfect": [True, False, False]}


def test_a_view_offers_each_target_and_the_strongest_elsewhere():
    "What is looked at from near is where it says it is."
    assert list(spots(example()).values()) == [(11, 11), (40, 50), (62, 1)]


def test_without_widgets_it_is_a_picture_of_the_worst_image(run):
    "Under papermill nobody moves anything."
    picture = explore(run)
    assert isinstance(picture, Picture) and picture.path == run / "figures" / "explore.png"
    rows = json.loads((run / "details.json").read_text())["images"]
    unions = [(r["pred"] + r["mask"] - r["inter"], r) for r in rows]
    worst = min(unions, key=lambda u: (u[1]["inter"] / u[0], u[1]["name"]))[1]["name"]
    view = view_of(run, Detection(Config(**SMALL)).splits()["test"].names.index(worst))
    assert picture.path.read_bytes() == explored(view) != explored(view, 0.32)


def test_the_widget_shows_the_still_picture_of_its_threshold(run, by_hand, monkeypatch):
    "To the byte, for each image, spot and threshold that is chosen."
    box = explore(run, threshold=0.224)  # between two steps of the slider
    slider = widgets(box, "FloatSlider")["threshold"]
    lists, [picture] = widgets(box, "Dropdown"), find_images(box)
    moves = [lambda: None, lambda: setattr(slider, "value", 0.07)]
    moves += [lambda index=index: setattr(lists["image"], "index", index) for index in (2, 0)]
    moves += [lambda: setattr(lists["zoom"], "index", 1)]
    for move in moves:
        move()
        view, spot = view_of(run, lists["image"].value), lists["zoom"].index
        assert picture.value == explored(view, slider.value, spot)
    assert (lists["image"].index, slider.value, spot) == (0, 0.07, 1)
    monkeypatch.setattr(exploring, "movable", lambda: False)
    lists["zoom"].index = 0
    assert explore(run, threshold=0.07).path.read_bytes() == picture.value


def find_images(box):
    "The picture widgets in a box."
    if type(box).__name__ == "Image":
        return [box]
    return [found for child in getattr(box, "children", ()) for found in find_images(child)]


def test_images_are_in_the_order_of_their_error(run, by_hand):
    "That of the run's own scoring, which the list shows."
    lines = [line for line, _ in widgets(explore(run), "Dropdown")["image"].options]
    grades = [float(line.rpartition("IoU ")[2]) for line in lines]
    assert grades == sorted(grades) and len(lines) == 3


def test_an_impossible_threshold_is_one_line(run):
    "With what to write instead."
    for threshold in (1.5, "0.5", None):
        with pytest.raises(UserError, match=r"\Athreshold=.*use a number from 0 to 1\Z"):
            explore(run, threshold=threshold)


def test_weights_outside_a_run_have_their_settings(run, tmp_path):
    "Data and size are those of their training; the picture lies beside them."
    loose = tmp_path / "loose.pt"
    content = torch.load(run / "best.pt", weights_only=True)
    best = {"epoch": 1, "name": "iou", "score": 0.1}
    record = {"config": Config(**SMALL, dataset_dir="moved").model_dump(), "phase": "full"}
    torch.save(content | record | {"best": best, "epoch": 1}, loose)
    found = explore(loose, dataset_dir="")
    assert found.path == tmp_path / "figures" / "explore.png"
    assert found.path.read_bytes() == explored(view_of(run, 0))  # in the order of the list
    with pytest.raises(UserError, match="no such file"):
        explore(tmp_path / "none.pt")


def test_a_marker_at_an_edge_of_an_image_is_whole():
    "Misses and false alarms in the corners; the outermost pixels of the picture stay white."
    truth, prob = np.zeros((2, 64, 64))
    truth[[0, 0, 63, 63], [0, 63, 0, 63]], prob[[20, 40], [0, 63]] = 1, 0.9
    image = np.full((64, 64, 3), 90, np.uint8)
    with Image.open(io.BytesIO(explored(View("edges", image, prob, truth > 0)))) as file:
        pixels = np.asarray(file.convert("RGB"))
    colour = np.array(rgb(show.FALSE_ALARM), int)
    assert (np.abs(pixels.astype(int) - colour).sum(-1) < 9).any()  # they are there
    assert (pixels[:, [0, -1]] == 255).all() and (pixels[[0, -1]] == 255).all()


@pytest.mark.parametrize("count", [1, 2, 3, 200])
def test_epochs_on_the_axis_are_whole(tmp_path, monkeypatch, count):
    "Also those of a short run; and a single epoch is seen, as a marker."
    scores = {"iou": 0.0, "niou": 1.0, "pd": None}
    entry = {"loss": 1.0, "phase": "full", "scores": scores, "split": "test"}
    lines = [json.dumps({**entry, "epoch": i}) + "\n" for i in range(count)]
    (tmp_path / "log.jsonl").write_text("".join(lines))
    monkeypatch.setattr(show, "save_picture", lambda figure, path: figure)
    for draw in (show.learning_curves, show.trade_offs, show.gallery):
        with pytest.raises(UserError, match="there is no run; name a run folder"):
            draw(tmp_path.parent)
    figure = show.learning_curves(tmp_path)
    low, high = figure.axes[1].get_xlim()
    ticks = [t for t in figure.axes[1].get_xticks() if low <= t <= high]
    assert ticks and all(float(t).is_integer() for t in ticks)
    markers = [line for line in figure.axes[0].lines if line.get_marker() not in ("", "None")]
    assert bool(markers) == (count < 200)


@pytest.mark.parametrize("name", ["scenes-quick", "scenes-five-epochs", "nuaa-sirst-paper"])
def test_the_words_of_a_curve_can_be_read(name, tmp_path, monkeypatch):
    "The better a run, the nearer its thresholds; a long path leaves room for the curve."
    monkeypatch.setattr(show, "save_picture", lambda figure, path: figure)
    run, long = TOP / "results" / name, tmp_path / ("x" * 100)
    long.symlink_to(run)
    (figure := show.trade_offs(run)).draw_without_rendering()
    one, two = (text.get_window_extent() for text in figure.axes[0].texts)
    assert not one.overlaps(two)
    (figure := show.trade_offs(run, long)).draw_without_rendering()
    assert figure.axes[0].get_position().width > 0.7
    with pytest.raises(UserError, match="these scores cannot be compared: split_hash"):
        show.trade_offs(run, TOP / "results" / "nudt-sirst-paper-60" / "seed0")
    line = show.trade_offs(TOP / "results" / "nudt-sirst-paper-60" / "seed0")
    assert "has no curve; score it by mshnet test" in line


def test_a_gallery_without_config_json_has_the_settings_of_the_scores(run, tmp_path, monkeypatch):
    "Their record has them; those of the defaults would be other scenes of the same names."
    copied = shutil.copytree(run, tmp_path / "run")
    (copied / "config.json").unlink()
    used = Mock(side_effect=show.splits)
    monkeypatch.setattr(show, "splits", used)
    show.gallery(copied)
    assert used.call_args.args[0].base_size == 64


def test_ipywidgets_is_not_needed(run, monkeypatch):
    "A kernel that cannot import it draws still pictures."
    for name, module in (("ipykernel", sys), ("ipywidgets", None)):
        monkeypatch.setitem(sys.modules, name, module)
    assert explore(run).path.name == "explore.png"


def test_a_run_of_another_task_has_a_line(tmp_path):
    "It has no picture of ours; its settings name the task."
    (tmp_path / "config.json").write_text(EventsConfig().model_dump_json())
    (tmp_path / "best.pt").touch()
    for draw in (explore, show.trade_offs):
        assert draw(tmp_path).endswith("the gallery shows the figures of events")
