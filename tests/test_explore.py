"Walking through images and watching a run: what the pictures say, with and without widgets."

import asyncio
import io
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import make_dataset, make_run
from matplotlib.figure import Figure
from PIL import Image

from mshnet import explore as exploring
from mshnet import show
from mshnet.core import Config, UserError
from mshnet.detection import Detection
from mshnet.explore import View, Watch, Watcher, explore, explored, watch
from mshnet.run import Folder, say_status, write_log
from mshnet.show import Picture

SMALL = {"scenes": 12, "base_size": 64, "crop_size": 64, "choose": "last", "device": "cpu"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    "The folder of a run on synthetic scenes."
    return make_run(tmp_path_factory.mktemp("explore") / "run", **SMALL)


@pytest.fixture
def by_hand(monkeypatch):
    "As if somebody sat before a notebook with widgets."
    pytest.importorskip("ipywidgets", reason="needs ipywidgets")
    monkeypatch.setattr(exploring, "movable", lambda: True)


def example(mask=True):
    "A view with a hit, a miss and two false alarms at 0.5, one of which is gone at 0.7."
    truth, prob = np.zeros((64, 64), bool), np.zeros((64, 64), np.float32)
    truth[10:13, 10:13] = truth[40:42, 50:52] = True
    prob[10:13, 10:13], prob[30, 30], prob[62, 1] = 0.9, 0.6, 0.8
    image = np.full((64, 64, 3), 90, np.uint8)
    return View("example", image, prob, truth if mask else None)


def widgets(box, kind):
    "The widgets of a kind in a box, by their description."
    found = {box.description: box} if type(box).__name__ == kind else {}
    for child in getattr(box, "children", ()):
        found |= widgets(child, kind)
    return found


def rgb(kind):
    "Red, green and blue of a sign."
    return tuple(int(kind["edgecolors"][i : i + 2], 16) for i in (1, 3, 5))


def test_a_verdict_counts_what_the_threshold_finds():
    "Its numbers are those that were put into the view."
    found = [example().verdict(t).splitlines()[0] for t in (0.5, 0.7, 0.95)]
    assert found == [
        "1 of 2 targets found, false alarms: 2",
        "1 of 2 targets found, false alarms: 1",
        "0 of 2 targets found, false alarms: 0",
    ]
    assert "IoU 0.64" in example().verdict(0.7)  # 9 pixels of 13 and a false one
    assert example(mask=False).verdict(0.7) == "2 detections of 10 pixels"


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
    assert list(example().spots.values()) == [(11, 11), (40, 50), (62, 1)]
    assert list(example(mask=False).spots.values()) == [(10, 10)]
    assert [explored(example(), spot=i)[:4] for i in range(3)] == [b"\x89PNG"] * 3


def test_the_same_call_gives_the_same_bytes(run):
    "Else nothing could be compared with the still picture."
    once = explore(run, threshold=0.31).path.read_bytes()
    assert explore(run, threshold=0.31).path.read_bytes() == once
    assert explore(run, threshold=0.32).path.read_bytes() != once


def test_without_widgets_it_is_a_picture_of_the_worst_image(run):
    "Under papermill nobody moves anything."
    picture = explore(run)
    assert isinstance(picture, Picture) and picture.path == run / "figures" / "explore.png"
    rows = json.loads((run / "details.json").read_text())["images"]
    unions = [(r["pred"] + r["mask"] - r["inter"], r) for r in rows]
    worst = min(unions, key=lambda u: (u[1]["inter"] / u[0], u[1]["name"]))[1]["name"]
    split = Detection(Config(**SMALL)).splits()["test"]
    views = exploring.open_views(run / "best.pt", "test", show.run_config(run), "cpu")
    view = views.view(split.names.index(worst))
    assert picture.path.read_bytes() == explored(view)


def test_the_widget_shows_the_still_picture_of_its_threshold(run, by_hand, monkeypatch):
    "To the byte, for each image, spot and threshold that is chosen."
    box, views = (
        explore(run),
        exploring.open_views(run / "best.pt", "test", show.run_config(run), "cpu"),
    )
    slider = widgets(box, "FloatSlider")["threshold"]
    lists, [picture] = widgets(box, "Dropdown"), find_images(box)
    buttons = widgets(box, "Button")
    moves = [lambda: None, lambda: setattr(slider, "value", 0.07)]
    moves += [lambda: setattr(lists["image"], "index", 2), buttons["back"].click]
    moves += [lambda: setattr(lists["from near"], "index", 1)]
    for move in moves:
        move()
        view, spot = views.view(lists["image"].value), lists["from near"].index
        assert picture.value == explored(view, slider.value, spot)
    assert (lists["image"].index, slider.value, spot) == (1, 0.07, 1)
    monkeypatch.setattr(exploring, "movable", lambda: False)
    still = explore(run, threshold=0.07, place=1, spot=1)
    assert picture.value == still.path.read_bytes()


def find_images(box):
    "The picture widgets in a box."
    if type(box).__name__ == "Image":
        return [box]
    return [found for child in getattr(box, "children", ()) for found in find_images(child)]


def test_the_list_ends_at_both_ends(run, by_hand):
    "A button at the end of the list does nothing."
    box = explore(run)
    chosen, buttons = widgets(box, "Dropdown")["image"], widgets(box, "Button")
    buttons["back"].click()
    assert chosen.index == 0
    for _ in range(5):
        buttons["next"].click()
    assert chosen.index == len(chosen.options) - 1 == 2


def test_images_are_in_the_order_of_their_error(run):
    "The list of a run's own scoring, and that of predicting everything, agree and ascend."
    config = show.run_config(run)
    views = exploring.open_views(run / "best.pt", "test", config, "cpu")
    lines = exploring.worst_first(views)
    grades = [views.view(i).grade for _, i in lines]
    assert grades == sorted(grades) and len(lines) == 3
    known = {image.name: image.iou for image in show.read_details(run).images}
    assert [i for _, i in exploring.worst_first(views, known)] == [i for _, i in lines]


def test_a_folder_with_masks_is_judged_and_one_without_is_not(run, tmp_path):
    "Any folder of images will do."
    folder = make_dataset(tmp_path / "set", train=2, test=1)
    assert exploring.worst_first(exploring.open_views(run / "best.pt", folder, Config(), "cpu"))[0][
        0
    ].count("IoU")
    picture = explore(run, folder)
    assert isinstance(picture, Picture)
    bare = tmp_path / "bare"
    (folder / "images").rename(bare)
    views = exploring.open_views(run / "best.pt", bare, Config(**SMALL), "cpu")
    assert views.view(0).mask is None
    tops = [views.view(i).prob.max() for _, i in exploring.worst_first(views)]
    assert tops == sorted(tops, reverse=True)


def test_an_unreadable_image_among_others_is_left_out_and_counted(run, tmp_path):
    "The rest can be looked at."
    folder = make_dataset(tmp_path / "set", train=2, test=1) / "images"
    (folder / "broken.png").write_text("no image")
    with pytest.warns(UserWarning, match=r"left out: unreadable image: 1 \(broken.png\)"):
        explore(run, folder)
    for file in folder.iterdir():
        file.write_text("no image")
    with pytest.warns(UserWarning), pytest.raises(UserError, match="none of the 4 images"):
        explore(run, folder)


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({"images": "no/such/folder"}, "name a folder"),
        ({"images": "val"}, "write train or test"),
        ({"place": 3}, "write 0 to 2"),
        ({"spot": 99}, "write 0 to"),
        ({"threshold": 1.5}, "write a number from 0 to 1"),
    ],
)
def test_what_is_not_there_is_one_line(run, more, line):
    "With what to write instead."
    with pytest.raises(UserError, match=line) as error:
        explore(run, **more)
    assert "\n" not in str(error.value)


def test_weights_outside_a_run_need_a_folder_of_images(run, tmp_path, monkeypatch):
    "Their data is not known; their size is, and their picture goes where it is wanted."
    loose = tmp_path / "loose.pt"
    content = torch.load(run / "best.pt", weights_only=True)
    best = {"epoch": 1, "name": "iou", "score": 0.1}
    record = {"config": Config(**SMALL).model_dump(), "best": best, "phase": "full", "epoch": 1}
    torch.save(content | record, loose)
    with pytest.raises(UserError, match="name a folder of images"):
        explore(loose)
    folder = make_dataset(tmp_path / "set", train=2, test=1)
    sizes = []
    open_views = exploring.open_views
    monkeypatch.setattr(
        exploring, "open_views", lambda *a: sizes.append(a[2].base_size) or open_views(*a)
    )
    picture = explore(loose, folder, output=tmp_path / "out")
    assert picture.path == tmp_path / "out" / "figures" / "explore.png"
    monkeypatch.chdir(tmp_path)
    assert explore("pretrained", folder).path == Path("figures/explore.png")
    assert sizes == [64, 256]
    with pytest.raises(UserError, match="no such file"):
        explore(tmp_path / "none.pt", folder)
    (tmp_path / "config.json").write_text("half a {")
    with pytest.raises(UserError, match="not a readable JSON file"):
        explore(loose, folder)


def begun(folder, epochs=4):
    "The folder of a run that has only begun."
    folder.mkdir(parents=True)
    settings = Config(**SMALL, epochs=epochs).model_dump()
    (folder / "config.json").write_text(json.dumps(settings))
    say_status(Folder(folder), "running", -1)
    return Folder(folder)


def epoch(number, seconds=10.0):
    "An epoch's line in the log."
    return {"epoch": number, "phase": "full", "loss": 1.0 / (number + 1), "seconds": seconds}


def test_time_left_and_state_are_read_from_the_folder(tmp_path):
    "From begun to finished, by the run's own records."
    files = begun(tmp_path / "run")
    assert exploring.how_far(files.path) == "running: 0 of 4 epochs"
    for number, seconds in enumerate((50.0, 70.0)):
        write_log(files, epoch(number, seconds))
    assert exploring.how_far(files.path) == "running: 2 of 4 epochs, 2 min 00 s left"
    say_status(files, "stopped", 1, "SIGTERM")
    assert exploring.how_far(files.path) == "stopped: 2 of 4 epochs, SIGTERM"


def test_a_long_silence_is_told(tmp_path):
    "A process that was killed leaves the state it had."
    files = begun(tmp_path / "run")
    write_log(files, epoch(0))
    now = files.file("log.jsonl").stat().st_mtime
    assert exploring.silence(files.path, now + 100) == ""
    assert exploring.silence(files.path, now + 7200) == (
        "nothing was written for 2 h 00 min: it may have been killed"
    )
    say_status(files, "failed", 0, "disk full")
    assert exploring.silence(files.path, now + 7200) == ""


def test_a_run_without_a_checkpoint_or_data_is_watched_all_the_same(tmp_path):
    "The picture says what is missing."
    files = begun(tmp_path / "run")
    watching = Watch(files.path)
    first = watching.png()
    assert watching.png() == first and not watching.ended
    with pytest.raises(UserError, match="no checkpoint yet"):
        watching.predictions()
    settings = Config(**SMALL, dataset_dir="no/such/set").model_dump()
    files.file("config.json").write_text(json.dumps(settings))
    files.file("last.pt").write_text("half a checkpoint")
    assert watching.png() != first
    with pytest.raises(UserError, match="no/such/set"):
        watching.predictions()


def test_the_widget_follows_a_run_to_its_end(tmp_path, by_hand):
    "It looks by itself, and stops when there is nothing more to see."
    files = begun(tmp_path / "run", epochs=2)

    async def work():
        "Watch while another thread writes, as a process would."
        box = watch(files.path, seconds=0.02)
        [picture] = find_images(box)
        first = picture.value

        def write():
            for number in range(2):
                write_log(files, epoch(number))
                time.sleep(0.1)
            say_status(files, "finished", 1, "all epochs done")

        writer = threading.Thread(target=write)
        writer.start()
        await asyncio.wait_for(box.task, 60)
        writer.join()
        return box, first, picture.value

    box, first, last = asyncio.run(work())
    assert first != last == Watch(files.path).png()
    assert "finished: 2 of 2 epochs" in widgets(box, "HTML")[""].value
    assert widgets(box, "Checkbox")["every 0.02 s"].disabled


def test_a_closed_widget_looks_no_more(tmp_path, by_hand):
    "Else a notebook that is long open would draw for nobody."
    files = begun(tmp_path / "run")

    async def work():
        box = watch(files.path, seconds=0.01)
        box.close()
        await asyncio.wait_for(box.task, 30)

    asyncio.run(work())


def test_a_look_that_fails_is_told_and_the_next_one_goes_on(tmp_path, by_hand, monkeypatch):
    "A disk that is away for a moment."
    files = begun(tmp_path / "run")
    watcher = Watcher(Watch(files.path))
    monkeypatch.setattr(Watch, "png", lambda self: (_ for _ in ()).throw(OSError("<disk> is away")))
    watcher.look()
    assert "&lt;disk&gt; is away" in watcher.line.value
    monkeypatch.undo()
    watcher.look()
    assert watcher.picture.value == Watch(files.path).png()


@pytest.mark.parametrize("of", ["watch", "explore"])
def test_a_marker_at_an_edge_of_an_image_is_whole(run, monkeypatch, of):
    "Misses and false alarms in the corners; the outermost pixels of the picture stay white."
    truth, prob = np.zeros((2, 64, 64))
    truth[[0, 0, 63, 63], [0, 63, 0, 63]], prob[[20, 40], [0, 63]] = 1, 0.9
    image = np.full((64, 64, 3), 90, np.uint8)
    drawn = explored(View("edges", image, prob, truth > 0))
    if of == "watch":
        three = [np.stack([x] * 3) for x in (image, prob, truth > 0)]
        monkeypatch.setattr(Watch, "predictions", lambda self: (["a"] * 3, three, "exact"))
        drawn = Watch(run).png()
    with Image.open(io.BytesIO(drawn)) as file:
        pixels = np.asarray(file.convert("RGB"))
    colour = np.array(rgb(show.FALSE_ALARM), int)
    assert (np.abs(pixels.astype(int) - colour).sum(-1) < 9).any()  # they are there
    assert (pixels[:, [0, -1]] == 255).all() and (pixels[[0, -1]] == 255).all()


@pytest.mark.parametrize("count", [1, 2, 3, 200])
def test_epochs_on_the_axis_are_whole(count):
    "Also those of a short run; and a single epoch is seen, as a marker."
    scores = {"iou": 0.0, "niou": 1.0, "pd": None}
    entry = {"loss": 1.0, "phase": "full", "scores": scores, "split": "test"}
    history = [{**entry, "epoch": i} for i in range(count)]
    figure = Figure()
    show._draw_history(figure, history)
    low, high = figure.axes[1].get_xlim()
    ticks = [t for t in figure.axes[1].get_xticks() if low <= t <= high]
    assert ticks and all(float(t).is_integer() for t in ticks)
    markers = [line for line in figure.axes[0].lines if line.get_marker() not in ("", "None")]
    assert bool(markers) == (count < 200)


def test_without_widgets_watching_is_a_picture(run):
    "Of the run as it is."
    picture = watch(run)
    assert picture.path == run / "figures" / "watch.png"
    assert picture.path.read_bytes() == Watch(run).png()


def test_a_run_in_another_process_is_watched(tmp_path):
    "Nothing is shared but the disk, and the run is not disturbed."
    folder = tmp_path / "run"
    words = "--epochs 2 --warm-epoch -1 --scenes 8 --base-size 32 --crop-size 32 --device cpu"
    line = [sys.executable, "-m", "mshnet", "train", *words.split(), "--choose", "last"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    line += ["--output-dir", str(folder)]
    process = subprocess.Popen(line, env=env, stdout=subprocess.DEVNULL, cwd=tmp_path)
    seen = set()
    try:
        ends = time.monotonic() + 300
        while process.poll() is None and time.monotonic() < ends:
            if (folder / "status.json").exists():
                seen.add(watch(folder).path.read_bytes())
    finally:
        process.kill()
    assert process.returncode == 0
    seen.add(watch(folder).path.read_bytes())
    assert len(seen) > 1 and exploring.how_far(folder).startswith("finished: 2 of 2 epochs")


def test_ipywidgets_is_not_needed(run, tmp_path):
    "A process that cannot import it draws still pictures."
    code = (
        "import sys; sys.modules['ipywidgets'] = None\n"
        "from mshnet.explore import explore, watch\n"
        f"print(explore({str(run)!r}).path.name, watch({str(run)!r}).path.name)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["explore.png", "watch.png"], done.stderr
