# %% [markdown]
# # explore
#
# > Two widgets for a notebook: walk through the images of a run, worst first, and watch a run while it trains.

# %%
#| default_exp explore

# %%
#| hide
import tempfile
from importlib.util import find_spec

from fastcore.test import expect_fail, test_close, test_eq
from PIL import Image

from mshnet.train import train

# %%
#| export
import asyncio
import html
import math
import shlex
import sys
import textwrap
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Rectangle

from mshnet.augment import collate, resize_square
from mshnet.core import Config, UserError, quoted, settings_from
from mshnet.data import (
    FOLDERS,
    SUFFIXES,
    BadImage,
    Findings,
    Split,
    find_file,
    read_image,
    read_mask,
    splits,
    trouble,
    visible,
)
from mshnet.evaluate import Detector
from mshnet.metrics import find, objects, score
from mshnet.places import interactive
from mshnet.run import Folder
from mshnet.session import bar, duration, watched
from mshnet.show import (
    FALSE_ALARM,
    HIT,
    MISS,
    MONOSPACE,
    _draw_history,
    _judge,
    _legend,
    _panel,
    even_steps,
    of_detection,
    png,
    predict_some,
    read_details,
    run_config,
    save_picture,
    shortened,
)
from mshnet.train import judge_split
from mshnet.weights import folder_beside, settings_of_weights, weights_file

# %% [markdown]
# The pictures of `show` have a fixed selection. To find the reason for a score, we choose ourselves: this image, that target, a lower threshold. `explore` is a widget for that. `watch` is a widget for a run that is still training. Both return a still picture where nobody can move a slider. For this page a tiny run will do:

# %%
#| output: false
place = tempfile.TemporaryDirectory()
config = Config(
    scenes=16, base_size=64, crop_size=64, choose="last", device="cpu", epochs=4, warm_epoch=0
)
run = train(config.model_copy(update={"output_dir": f"{place.name}/run"}))


# %% [markdown]
# ## Walking through images
#
# A `View` is one image with its prediction. It has a verdict at each threshold, in words and as the usual score line of this image alone. It also names the spots that deserve a close look: each target, and the highest probability elsewhere.

# %%
#| export
@dataclass(frozen=True)
class View:
    "An image with its prediction, and with its mask where that is known."

    name: str
    image: np.ndarray  # [S,S,3] uint8
    prob: np.ndarray  # [S,S] float32, 0..1
    mask: np.ndarray | None  # [S,S] bool; None: not known

    @property
    def spots(self) -> dict[str, tuple[int, int]]:  # row and column, by a label
        "The spots for a close look: each target, and the highest probability elsewhere."
        away, found = self.prob.copy(), {}
        mask = np.zeros_like(self.prob, bool) if self.mask is None else self.mask
        for i, place in enumerate(objects(mask).centroid):
            row, col = round(place[0]), round(place[1])
            found[f"target {i + 1}: row {row}, column {col}"] = (row, col)
            away[max(row - 8, 0) : row + 9, max(col - 8, 0) : col + 9] = -1
        row, col = divmod(int(away.argmax()), away.shape[1])
        what = "highest elsewhere" if found else "highest"
        return {**found, f"{what}: row {row}, column {col}": (row, col)}

    @property
    def grade(self) -> float:  # less is worse
        "The sort key: IoU at 0.5; without a mask, the highest probability, negative."
        if self.mask is None:
            return -float(self.prob.max())
        pred = self.prob > 0.5
        union = np.count_nonzero(pred | self.mask)
        return np.count_nonzero(pred & self.mask) / union if union else 1.0

    def verdict(
        self,
        threshold: float,  # a pixel is predicted where the probability is above it
        rule: str = "exact",
    ) -> str:  # one line, or two
        "The detections at a threshold, and with a mask the score of the image."
        preds = objects(self.prob > threshold)
        if self.mask is None:
            return f"{len(preds)} detections of {preds.area.sum()} pixels"
        found = find(objects(self.mask), preds, rule)
        false = len(preds) - found.matched
        logits, mask = (torch.tensor(x)[None, None] for x in (self.prob - threshold, self.mask))
        words = f"{found.matched} of {found.targets} targets found, false alarms: {false}"
        return f"{words}\n{score(logits, mask, rule)}"


# %%
prob, truth = np.zeros((64, 64), np.float32), np.zeros((64, 64), bool)
truth[10:13, 50:53] = truth[40:42, 5:7] = True
prob[10:13, 50:52], prob[30:32, 30:33] = 0.8, 0.6
grey = np.random.default_rng(0).integers(40, 60, (64, 64, 1), dtype=np.uint8)
view = View("an example", np.repeat(grey + truth[..., None] * np.uint8(90), 3, 2), prob, truth)
test_eq(view.verdict(0.7).splitlines()[0], "1 of 2 targets found, false alarms: 0")
test_close(view.grade, 6 / 19)
print(view.verdict(0.5))
list(view.spots)


# %% [markdown]
# One function draws an image at a threshold. The widget below shows the same bytes as a still picture of the same threshold. The close look shows single pixels, in the colours of hits, misses and false alarms.

# %%
#| export
def explored(
    view: View,
    threshold: float = 0.5,
    spot: int = 0,  # which of the view's spots is shown magnified
    rule: str = "exact",
) -> bytes:  # of a PNG file
    "An image at a threshold: image, truth, probability and verdict, whole and magnified."
    known, pred, grey = view.mask is not None, view.prob > threshold, view.image.mean(-1)
    mask = pred if view.mask is None else view.mask
    what, centre = list(view.spots.items())[spot]
    half = max(12, len(mask) // 16)
    near = tuple(_window(c, n, half) for c, n in zip(centre, mask.shape, strict=True))
    panes: list[tuple[str, np.ndarray, dict[str, Any]]] = [("image", grey, {})]
    panes += [("truth", mask, {"vmin": 0, "vmax": 1})] if known else []
    panes += [("probability", view.prob, {"vmin": 0, "vmax": 1})]
    panes += [("hits, misses, false alarms" if known else "detections", grey, {})]
    figure = Figure(figsize=(2.5 * len(panes), 6.2), layout=_roomy())
    above, below = figure.subplots(2, len(panes))
    corner = near[1].start - 0.5, near[0].start - 0.5
    for whole, part, (title, pixels, how) in zip(above, below, panes, strict=True):
        _panel(whole, pixels, title, **how)
        _panel(part, pixels[near], "", **how)
        whole.add_patch(Rectangle(corner, 2 * half, 2 * half, fill=False, edgecolor="#CC79A7"))
    below[0].set_title(f"from near, {what}", fontsize=9, loc="left")
    below[-1].set_title("found, missed, false pixels" if known else "its pixels", fontsize=9)
    _judge(above[-1], pred, mask, rule)
    colours = np.zeros((*pred.shape, 4))
    for pixels, sign in ((pred & mask, HIT), (mask & ~pred, MISS), (pred & ~mask, FALSE_ALARM)):
        colours[pixels] = (*to_rgb(sign["edgecolors"]), 0.65)
    below[-1].imshow(colours[near])
    _legend(figure, (HIT, MISS, FALSE_ALARM) if known else ({**HIT, "label": "detection"},))
    name = shortened(view.name, 40)
    text = f"{name}  threshold {threshold:.2f}  {view.verdict(threshold, rule)}"
    figure.suptitle(text, fontsize=10, family=MONOSPACE, parse_math=False)
    return png(figure)


def _roomy() -> ConstrainedLayoutEngine:
    "A layout with room at the sides for the marker of an object at an image's edge."
    return ConstrainedLayoutEngine(w_pad=0.1)


def _window(centre: int, length: int, half: int) -> slice:
    "A window around a place, moved inside the image at an edge."
    start = min(max(centre - half, 0), max(length - 2 * half, 0))
    return slice(start, start + 2 * half)


# %%
save_picture(explored(view), run.folder / "figures" / "explored.png")

# %% [markdown]
# ### Which images
#
# We take a split of the run's data, or any folder of images. A folder has masks if it holds the folders `images` and `masks`, or if it is called `images` and `masks` is beside it. The folder names of IRSTD-1k count too.
#
# All images are resized as for the run's scores, and each is predicted when it is first shown. They are predicted one by one, because in a batch the last digit of a probability may differ, and a picture would depend on the images before it.
#
# The worst images come first. The run's own scoring gives the order of the test images. Other images must be predicted once; unreadable files are left out, with a warning. The order is that of probability 0.5, and it stays when the threshold moves.

# %%
#| export
Source = Callable[[int], tuple[np.ndarray, np.ndarray | None]]  # an image and its mask


class Views:
    "Images to walk through; `view(i)` predicts one."

    def __init__(self, names: Sequence[str], pair: Source, detector: Detector, size: int) -> None:
        self.names, self.pair, self.detector, self.size = names, pair, detector, size
        self.view = lru_cache(64)(self._view)  # the last ones

    def _view(self, index: int) -> View:
        "Predict an image."
        image, mask = self.pair(index)
        empty = np.zeros(image.shape[:2], np.uint8)
        batch = collate([resize_square(image, empty if mask is None else mask, self.size)], [True])
        prob = self.detector(batch.image, 1)[0, 0].numpy()
        truth = None if mask is None else batch.mask[0, 0].numpy() > 0
        return View(self.names[index], batch.image[0].permute(1, 2, 0).numpy(), prob, truth)


def open_views(
    weights: Path,  # a file
    images: str | Path | Split,  # "train", "val", "test": of the run's data; or a folder
    config: Config,  # of the run
    device: str,
) -> Views:
    "The images to walk through; UserError if there are none."
    detector, size = Detector(weights, device), config.base_size
    if not isinstance(images, Split):
        if images not in ("train", "val", "test"):
            return Views(*_in_folder(Path(images).expanduser()), detector, size)
        if not Folder(weights.parent).read_json("config.json"):
            raise UserError(f"{weights}: is not in the folder of a run; name a folder of images")
        images = _part_of(config, str(images))
    return Views(images.names, images.pairs.__getitem__, detector, size)


def _part_of(config: Config, name: str) -> Split:
    "A split of a run's data: train, val or test; UserError if the run has no such split."
    parts = splits(config, ["test"] if name == "test" else ["train", "test"])
    if name not in parts:
        raise UserError(f"images={name!r}: this run has no validation split; write train or test")
    return parts[name]


def _in_folder(folder: Path) -> tuple[list[str], Source]:
    "The images of a folder, with their masks if there are any; UserError without an image."
    inside = [folder / name for name, _ in FOLDERS if (folder / name).is_dir()]
    images = inside[0] if inside else folder
    masks = images.parent / dict(FOLDERS).get(images.name, "no masks")
    try:
        files = [p for p in visible(images) if p.suffix.lower() in SUFFIXES]
    except OSError as error:
        raise UserError(f"{images}: cannot be read ({error.strerror}); name a folder") from None
    if not files:
        raise UserError(f"{images}: has no image ({', '.join(SUFFIXES)}); name another folder")

    def pair(index: int) -> tuple[np.ndarray, np.ndarray | None]:
        "Read one image and its mask."
        file, what = files[index], "image"
        try:
            image, _ = read_image(file)
            what, mask = "mask", find_file(masks, file.stem, ("", "_pixels0"))
            return image, read_mask(mask, image.shape[:2])[0] if mask else None
        except Exception as error:  # Pillow raises many kinds
            raise BadImage(trouble(error, what)) from None

    return [file.name for file in files], pair


def worst_first(
    views: Views,
    grades: dict[str, float] | None = None,  # IoU by name; None: predict to find out
) -> list[tuple[str, int]]:  # a line for the list, and the image's index in the views
    "The images, worst first; UserError if none is readable."
    found, bad = [], Findings()
    if grades:
        found = [(grades[name], i) for i, name in enumerate(views.names)]
    for i in () if grades else bar(range(len(views.names)), len(views.names), "predict"):
        try:
            found.append((views.view(i).grade, i))
        except BadImage as error:
            bad.errors[str(error)].append(views.names[i])
    for line in bad.lines(bad.errors):
        warnings.warn(f"left out: {line}", stacklevel=2)
    if not found:
        raise UserError(f"none of the {len(views.names)} images is readable; name another folder")
    words = {i: f"IoU {g:.2f}" if g >= 0 else f"highest {-g:.2f}" for g, i in found}
    return [(f"{views.names[i]}  {words[i]}", i) for _, i in sorted(found)]


# %%
views: Views = open_views(run.folder / "best.pt", "test", run_config(run.folder), "cpu")
known = {image.name: image.iou for image in read_details(run.folder).images}
test_eq([i for _, i in worst_first(views)], [i for _, i in worst_first(views, known)])
with tempfile.TemporaryDirectory() as tmp:
    for name, pixels in (("images", view.image), ("masks", 255 * truth.astype(np.uint8))):
        (Path(tmp) / name).mkdir()
        Image.fromarray(pixels).save(Path(tmp) / name / "a.png")
    some = open_views(run.folder / "best.pt", tmp, config, "cpu")
    test_eq((some.names, some.view(0).mask.sum()), (["a.png"], 13))
worst_first(views)


# %% [markdown]
# ### The widget
#
# The user chooses image, spot and threshold, and the picture follows. A picture takes half a second, so the slider draws only when it is released.

# %%
#| export
class Explorer:
    "Widgets to walk through images."

    def __init__(
        self,
        views: Views,
        lines: Sequence[tuple[str, int]],  # from `worst_first`
        threshold: float = 0.5,
        place: int = 0,  # of the line that is shown first
        rule: str = "exact",
    ) -> None:
        import ipywidgets as w

        self.views, self.rule = views, rule
        numbered = [(f"{n}. {line}", i) for n, (line, i) in enumerate(lines, 1)]
        how = {"style": {"description_width": "80px"}, "layout": w.Layout(width="460px")}
        self.image = w.Dropdown(options=numbered, index=place, description="image", **how)
        self.spot = w.Dropdown(description="from near", **how)
        steps = {"min": 0, "max": 1, "step": 0.01, "continuous_update": False}
        self.threshold = w.FloatSlider(threshold, description="threshold", **steps, **how)
        self.picture = w.Image(format="png", layout=w.Layout(max_width="100%"))
        back, on = w.Button(description="back"), w.Button(description="next")
        self.box = w.VBox([w.HBox([self.image, back, on]), self.spot, self.threshold, self.picture])
        self.image.observe(self.choose, "index")
        self.threshold.observe(self.draw, "value")
        back.on_click(lambda _: self.step(-1))
        on.on_click(lambda _: self.step(1))

    def draw(self, change: Any = None) -> None:
        "Draw the chosen image, spot and threshold."
        view, threshold = self.views.view(self.image.value), round(self.threshold.value, 2)
        self.picture.value = explored(view, threshold, self.spot.index or 0, self.rule)

    def choose(self, change: Any = None, spot: int = 0) -> None:
        "Show a different image."
        self.spot.unobserve_all("index")
        self.spot.options = list(self.views.view(self.image.value).spots)
        self.spot.index = spot
        self.spot.observe(self.draw, "index")
        self.draw()

    def step(self, by: int) -> None:
        "Show a neighbour in the list."
        self.image.index = min(max(self.image.index + by, 0), len(self.image.options) - 1)


# %%
if find_spec("ipywidgets"):
    hands = Explorer(views, lines := worst_first(views, known))
    hands.choose()
    hands.threshold.value = 0.3
    hands.step(1)
    test_eq(hands.picture.value, explored(views.view(lines[1][1]), 0.3))


# %% [markdown]
# `explore` puts it together. In a headless run, or without ipywidgets, it returns a still picture of the same image at the same threshold, and stores it with the figures of the run.

# %%
#| export
def movable() -> bool:
    "Whether someone is at this notebook, and has widgets."
    return "ipykernel" in sys.modules and watched()


@of_detection
def explore(
    weights: str | Path,  # a run's folder, or a file of weights
    images: str | Path | Split = "test",  # "test", "val", "train": of the run's data; or a folder
    threshold: float = 0.5,
    place: int = 0,  # in the list of images, from 0, the worst
    spot: int = 0,  # which is shown magnified: the number of a target, from 0
    device: str = "cpu",  # one image at a time is no work for a TPU
    output: str | Path = "",  # folder for figures/explore.png; empty: that of the weights
) -> Any:  # a widget, or a Picture
    """Walk through images, worst first: truth, probability, hits, misses and false alarms.

    The picture for "pretrained" goes into the current folder. Raises UserError without weights or
    readable images, and for a place, spot or threshold that is out of range.
    """
    if not 0 <= threshold <= 1:
        raise UserError(f"threshold={threshold}: a probability; write a number from 0 to 1")
    path = Path(weights).expanduser()
    file = weights_file(path)
    run, config = file.parent, settings_from(settings_of_weights(str(path)))
    views = open_views(file, images, config, device)
    rows = read_details(run).images if images == "test" and path.is_dir() else []
    known = {row.name: row.iou for row in rows}
    lines = worst_first(views, known if known.keys() == set(views.names) else None)
    if not 0 <= place < len(lines):
        raise UserError(
            f"place={place}: there are {len(lines)} images; write 0 to {len(lines) - 1}"
        )
    spots = len(views.view(lines[place][1]).spots)
    if not 0 <= spot < spots:
        raise UserError(f"spot={spot}: this image has {spots} to see; write 0 to {spots - 1}")
    if movable():
        hands = Explorer(views, lines, threshold, place, config.rule)
        hands.choose(spot=spot)
        return hands.box
    still = explored(views.view(lines[place][1]), threshold, spot, config.rule)
    folder = Path(output).expanduser() if output else folder_beside(file)
    return save_picture(still, folder / "figures" / "explore.png")


# %%
print("widgets" if movable() else "a still picture")
with expect_fail(UserError, contains="write 0 to"):
    explore(run.folder, place=99)
explore(run.folder, threshold=0.3)

# %% [markdown]
# ## Watching a run
#
# A run records its progress in its folder. We can therefore watch it from a different notebook, process or machine that has access to the folder, without any effect on the run. A killed process leaves the state "running". If a run has been silent for too long, we report that.

# %%
#| export
_ENDS = ("finished", "stopped", "failed")  # states of a run that has ended


def how_far(
    folder: Path,  # of a run
) -> str:  # one line, or two
    "The progress of a run by its own records: epochs, time left, the last scores."
    files = Folder(folder)
    status, history = files.read_json("status.json"), files.history()
    done = history[-1]["epoch"] + 1 if history else 0
    epochs = files.read_json("config.json").get("epochs", "?")
    state, lasted = status.get("state", "not begun"), _last_epochs(files)
    text = f"{state}: {done} of {epochs} epochs"
    if state in _ENDS:
        text += f", {status.get('reason', '')}"
    elif lasted and isinstance(epochs, int) and epochs > done:
        text += f", {duration(sum(lasted) / len(lasted) * (epochs - done))} left"
    scored = [e for e in history if "line" in e][-1:]
    return "\n".join([text, *(f"epoch {e['epoch']}, {e['split']}: {e['line']}" for e in scored)])


def silence(
    folder: Path,  # of a run
    now: float | None = None,  # seconds since 1970; None: now
) -> str:  # empty: all is well
    "A warning if a running run has written nothing for three epochs, and for three minutes."
    files = Folder(folder)
    written = [
        p.stat().st_mtime
        for p in (files.file("log.jsonl"), files.file("status.json"))
        if p.exists()
    ]
    quiet = (time.time() if now is None else now) - max(written, default=math.inf)
    running = files.read_json("status.json").get("state") == "running"
    if not running or quiet < 3 * max([60, *_last_epochs(files)]):
        return ""
    return f"nothing was written for {duration(quiet)}: it may have been killed"


def _last_epochs(files: Folder) -> list[float]:
    "Seconds that each of the last five epochs took."
    return [entry["seconds"] for entry in files.history()[-5:]]


# %%
print(how_far(run.folder))
test_eq(silence(run.folder), "")
test_eq(how_far(Path("no run")), "not begun: 0 of ? epochs")


# %% [markdown]
# Curves and numbers do not show that a network predicts nothing, or everything; images do. The watching process predicts three of them on its CPU whenever there is a new checkpoint. Without images the picture reports why: there is no checkpoint yet, or the data set is not available here.

# %%
#| export
class Watch:
    "A picture of a run that changes."

    def __init__(self, folder: str | Path, count: int = 3) -> None:
        self.folder, self.count = Path(folder).expanduser(), count
        self.split: Split | None = None  # read once
        # When the files of the run were written, and the picture of that state
        self.last: tuple[list[int], bytes] = [], b""
        if not any((self.folder / name).exists() for name in ("config.json", "status.json")):
            raise UserError(
                f"{folder}: is not the folder of a run; give the one that `mshnet train` prints"
            )

    @property
    def ended(self) -> bool:
        "Whether the run has ended."
        return Folder(self.folder).read_json("status.json").get("state") in _ENDS

    def png(self) -> bytes:
        "The picture; drawn anew if the run has written something."
        names = ("config.json", "status.json", "log.jsonl", "last.pt")
        files = [self.folder / name for name in names]
        stamp = [file.stat().st_mtime_ns if file.exists() else 0 for file in files]
        if self.last[0] != stamp:
            self.last = stamp, png(self.draw())
        return self.last[1]

    def predictions(self) -> tuple[list[str], tuple[np.ndarray, ...], str]:
        "Names, images with probabilities and masks, and the matching rule; UserError without them."
        last = self.folder / "last.pt"
        if not last.exists():
            raise UserError("no checkpoint yet: the first epoch writes the first one")
        config = run_config(self.folder)
        if config.task != "detect":
            raise UserError(f"the pictures of task {config.task} are drawn at the end of the run")
        self.split = self.split or _part_of(config, judge_split(config))
        names = [self.split.names[i] for i in even_steps(len(self.split), self.count)]
        return names, predict_some(last, self.split, names, config.base_size), config.rule

    def draw(self) -> Figure:
        "The run as it is now: progress, curves, and the last predictions."
        figure = Figure(figsize=(11.5, 5.4), layout=_roomy())
        figure.suptitle(how_far(self.folder), fontsize=10, family=MONOSPACE)
        halves: Any = figure.subfigures(1, 2, width_ratios=(1, 1.2))
        left, right = halves
        _draw_history(left, Folder(self.folder).history())
        try:
            names, (images, prob, mask), rule = self.predictions()
        except UserError as error:
            right.text(0.5, 0.5, textwrap.fill(str(error), 50), ha="center", va="center")
            return figure
        for i, (above, below) in enumerate(right.subplots(2, len(names), squeeze=False).T):
            _panel(above, images[i], shortened(names[i]))
            _judge(above, prob[i] > 0.5, mask[i], rule)
            _panel(below, prob[i], "probability", vmin=0, vmax=1)
        _legend(right)
        return figure


# %%
watching = Watch(run.folder)
assert watching.ended
with expect_fail(UserError, contains="is not the folder of a run"):
    Watch("no run")
watching.draw()


# %% [markdown]
# The widget looks again when its button is pressed, and every few seconds until the run has ended. It can do so only between the cells of its notebook. A notebook that trains is busy; watch its run from a different one.

# %%
#| export
class Watcher:
    "Widgets that show a run while it trains."

    def __init__(self, watching: Watch, seconds: float = 5.0) -> None:
        import ipywidgets as w

        self.watching, self.seconds = watching, seconds
        self.line, self.picture = w.HTML(), w.Image(format="png", layout=w.Layout(max_width="100%"))
        button = w.Button(description="look again")
        self.itself = w.Checkbox(True, description=f"every {seconds:g} s", indent=False)
        button.on_click(self.look)
        self.box = w.VBox([w.HBox([button, self.itself]), self.line, self.picture])

    def look(self, button: Any = None) -> None:
        "Show the run as it is now."
        folder, now = self.watching.folder, time.strftime("%H:%M:%S")
        try:
            text, self.picture.value = silence(folder), self.watching.png()
        except (UserError, OSError) as error:
            text = str(error)
        state = how_far(folder).splitlines()[0]
        self.line.value = html.escape("; ".join(x for x in (state, text, f"seen at {now}") if x))
        if self.watching.ended:
            self.itself.value, self.itself.disabled = False, True

    async def follow(self) -> None:
        "Look every few seconds, until the run has ended or the box is closed."
        while not self.watching.ended and self.box.comm is not None:
            await asyncio.sleep(self.seconds)
            if self.itself.value:
                self.look()
        self.look()  # the run may have ended during the last picture


def watch(
    folder: str | Path,  # of a run
    seconds: float = 5.0,  # between two looks
) -> Any:  # a widget, or a Picture
    "Watch a run: curves, last predictions, time left. Without widgets: one picture of it now."
    watching = Watch(folder)
    if not movable():
        return save_picture(watching.png(), watching.folder / "figures" / "watch.png")
    watcher = Watcher(watching, seconds)
    watcher.look()
    watcher.box.task = asyncio.get_running_loop().create_task(watcher.follow())
    return watcher.box


# %%
if find_spec("ipywidgets"):
    eyes = Watcher(watching)
    eyes.look()
    test_eq(eyes.picture.value, watching.png())
    print(eyes.line.value)
watch(run.folder)


# %% [markdown]
# ## TensorBoard
#
# A run also logs for TensorBoard, if that is installed. Colab and Jupyter can open it inside the notebook. A headless run must not, because it would leave a server behind; it prints the command instead.

# %%
#| export
def tensorboard(
    folder: Path,  # of a run
) -> str:  # a line for the user
    "Open TensorBoard in an interactive notebook; elsewhere return the command that starts it."
    logs = folder / "tensorboard"
    if not logs.exists():
        return "no TensorBoard log here: `pip install tensorboard` before training makes one"
    if not interactive():
        return f"tensorboard --logdir {quoted(logs)}"
    from IPython import get_ipython

    shell: Any = get_ipython()  # type: ignore[no-untyped-call]
    shell.run_line_magic("load_ext", "tensorboard")
    shell.run_line_magic("tensorboard", f"--logdir {shlex.quote(logs.as_posix())}")
    return f"TensorBoard shows {logs}"


# %%
print(tensorboard(run.folder))
place.cleanup()
