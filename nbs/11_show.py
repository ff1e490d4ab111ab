# %% [markdown]
# # show
#
# > Pictures of a run: learning curves, what each threshold trades, its best and worst images. Each is a PNG file in the run's folder. In a notebook two of them are widgets: one walks through images, one follows a run.

# %%
#| default_exp show

# %%
#| hide
import tempfile
from importlib.util import find_spec

from fastcore.test import expect_fail, test_close, test_eq
from PIL import Image

# %%
#| export
import asyncio
import html
import io
import math
import sys
import textwrap
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure, SubFigure
from matplotlib.patches import Rectangle
from pydantic import BaseModel, Field, ValidationError, field_validator

from mshnet.core import Config, UserError, read_json, settings_from
from mshnet.data import (
    FOLDERS,
    SUFFIXES,
    BadImage,
    Findings,
    Split,
    collate,
    find_file,
    read_image,
    read_mask,
    splits,
    squash,
    trouble,
    visible,
)
from mshnet.evaluate import Detector, predict, top_hat, top_hat_filter
from mshnet.metrics import MATCH, find, objects, score
from mshnet.model import weights_file
from mshnet.places import interactive
from mshnet.run import Folder, bar, cannot_be_written, duration, watched, write_atomic
from mshnet.train import judge_split


# %% [markdown]
# A picture is drawn from what the run left on disk (and, where it shows images, from the data set). So the same call works in the runner's cell, in another notebook a week later, and on a machine without a screen. It is saved first and shown second: what you see is the file.

# %%
#| export
@dataclass(frozen=True)
class Picture:
    "A PNG file that shows itself in a notebook."

    path: Path

    def _repr_png_(self) -> bytes:
        "Its bytes, for the notebook."
        return self.path.read_bytes()


def png(figure: Figure, **how: Any) -> bytes:
    "A figure as the bytes of a PNG file."
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=110, **how)
    return file.getvalue()


def save_picture(
    content: Figure | bytes,  # or what `png` made of one
    path: Path,
) -> Picture:
    "Write a picture; UserError if that cannot be done."
    data = content if isinstance(content, bytes) else png(content, bbox_inches="tight")
    with cannot_be_written(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, data)
    return Picture(path)


# %% [markdown]
# For the pictures below we need a run. A tiny one will do:

# %%
#| output: false
from mshnet.train import train

place = tempfile.TemporaryDirectory()
config = Config(
    scenes=16, base_size=64, crop_size=64, choose="last", device="cpu", epochs=4, warm_epoch=0
)
run = train(config.model_copy(update={"output_dir": f"{place.name}/run"}))

# %% [markdown]
# ## What a scoring left
#
# `details.json` holds the curves, and a record of each image and each target (`evaluate` explains their numbers). It may come from a different machine or have been edited by hand, so it is checked before anything is drawn from it. Scorings of the first releases have no `targets` and no calibration; some have no such file at all.

# %%
#| export
Count = Annotated[int, Field(ge=0, le=2**48)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Amount = Annotated[float, Field(ge=0, le=1e12)]
CURVES = {
    "pixels": {"threshold", "precision", "recall"},
    "objects": {"threshold", "pd", "fa"},
    "calibration": {"pixels", "target", "mean"},  # by tenths of the probability
}


class Record(BaseModel, extra="ignore", allow_inf_nan=False):
    "Something read from a file of scores."


class ImageRecord(Record):
    "The counts of an image, in pixels where no unit is given."

    name: str
    inter: Count
    pred: Count
    mask: Count
    targets: Count  # number
    matched: Count  # number
    clutter: Count = 0  # number of predictions that touch no target
    clutter_pixels: Count = 0

    @property
    def wrong(self) -> int:
        "Union less intersection."
        return self.pred + self.mask - 2 * self.inter

    @property
    def iou(self) -> float:
        "Overlap; 1 where there is no target and no prediction."
        union = self.pred + self.mask - self.inter
        return self.inter / union if union else 1.0


class TargetRecord(Record):
    "A target, and what became of it."

    name: str  # of its image
    area: Count
    scr: Amount | None  # how much it stands out
    matched: bool
    iou: Fraction | None  # with the prediction that found it
    covered: Count
    extra: Count
    parts: Count
    merged: bool


class Details(Record):
    "What curves, galleries and the error analysis are made from."

    images: list[ImageRecord] = []
    curves: dict[str, dict[str, list[Amount | None]] | None] | None = None
    targets: list[TargetRecord] | None = None
    settings: dict[str, Any] = {}

    @field_validator("curves")
    @classmethod
    def complete(cls, curves: dict[str, Any] | None) -> dict[str, Any] | None:
        "ValueError unless each point of each curve has all of its numbers."
        for name, lists in CURVES.items() if curves is not None else ():
            curve = (curves or {}).get(name)
            if name == "calibration" and not curve:
                continue
            lengths = {len((curve or {}).get(k, ())) for k in lists}
            if len(lengths) > 1 or (name == "calibration" and lengths != {10}):
                raise ValueError(f"{name}: lists are missing, or their lengths differ")
            if curve is None or not any(curve.get("threshold", [1])):
                raise ValueError(f"{name}: no threshold above 0")
        return curves

    def curve(self, name: str) -> dict[str, np.ndarray] | None:
        "One of the curves, NaN where a number does not exist; None if it was not recorded."
        found = (self.curves or {}).get(name)
        return {k: np.array(found[k], float) for k in CURVES[name]} if found else None


T = TypeVar("T", bound=Record)


def read_scores_file(path: Path, kind: type[T]) -> T:
    "A file of scores, checked; UserError if a scoring would not have written it so."
    try:
        return kind.model_validate(read_json(path))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "all of it"
        raise UserError(f"{path}: not as a scoring writes it ({where}: {first['msg']})") from None


def read_details(
    folder: Path,  # of a run, or of scores
) -> Details:
    "What a scoring recorded; nothing where it recorded nothing."
    path = folder / "details.json"
    return read_scores_file(path, Details) if path.exists() else Details()


# %%
details = read_details(run.folder)
test_eq(len(details.images), len(details.curve("calibration")["mean"]) - 6)
with expect_fail(ValidationError, contains="lengths differ"):
    Details(curves={"pixels": {"threshold": [0.5], "precision": [1], "recall": []}})
with expect_fail(UserError, contains="not as a scoring writes it"):
    read_scores_file(run.folder / "config.json", TargetRecord)
assert issubclass(ImageRecord, Record)
details.images[0], details.targets[0]

# %% [markdown]
# ## Colours
#
# One man in twelve cannot distinguish red from green, in which hits and false alarms are usually drawn. Ours are from the palette of Okabe and Ito, without their yellow for lines, which white paper swallows. Lines differ in pattern and sign too, so a print in grey can be read.

# %%
#| export
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9")
LINES, SIGNS = ("-", "--", ":", "-."), "osD^vP*"


def style(
    place: int,  # of a line among those shown
) -> dict[str, Any]:
    "Colour, sign and pattern of a line."
    own = {"color": COLORS[place % 7], "marker": SIGNS[place % 7]}
    return {**own, "linestyle": LINES[place % 4]}


def draw_line(
    axes: Axes,
    x: np.ndarray,
    y: np.ndarray,  # NaN: a gap
    place: int = 0,  # which style
    label: str = "",
    at: int | slice | None = None,  # the points that get the sign of the line; None: none
) -> None:
    "Draw a curve in the style of its place."
    look = style(place)
    color, sign = look["color"], look["marker"]
    axes.plot(x, y, look["linestyle"], color=color, linewidth=1.4, label=label)
    if at is not None:
        axes.plot(x[at], y[at], sign, color=color, markersize=8 if isinstance(at, int) else 5)


# %%
figure = Figure(figsize=(4, 2))
axes = figure.add_subplot()
for i in range(3):
    draw_line(axes, np.arange(9), np.sqrt(np.arange(9) + i), i, at=4)
test_eq(len({tuple(style(i).values()) for i in range(28)}), 28)
figure


# %% [markdown]
# ## Learning curves
#
# Loss above, scores below. The step in the loss is no accident: with the end of the warm-up the loss gets location terms and four more heads. So the warm-up has a grey ground.

# %%
#| export
def learning_curves(
    folder: Path,  # of a run
) -> Picture:
    "Loss and scores by epoch."
    figure = Figure(figsize=(7, 5))
    _draw_history(figure, Folder(folder).history())
    return save_picture(figure, folder / "figures" / "learning.png")


def _draw_history(figure: Figure | SubFigure, history: Sequence[dict[str, Any]]) -> None:
    "Loss above, scores below, by epoch."
    if not history:
        figure.text(0.5, 0.5, "no epoch yet", ha="center", va="center")
        return
    top, below = figure.subplots(2, 1, sharex=True)
    epochs = np.array([e["epoch"] for e in history])
    draw_line(top, epochs, np.array([e["loss"] for e in history]))
    top.set_ylabel("training loss")
    scored = [e for e in history if "scores" in e]
    epochs = np.array([e["epoch"] for e in scored])
    for i, (key, label) in enumerate({"iou": "IoU", "niou": "nIoU", "pd": "Pd"}.items()):
        draw_line(below, epochs, np.array([e["scores"][key] for e in scored], float), i, label)
    below.set(xlabel="epoch", ylim=(0, 1))
    below.set_ylabel(f"score, {scored[-1]['split']} images" if scored else "")
    below.legend(loc="best", fontsize=8)
    warm = [e["epoch"] for e in history if e["phase"] == "warm-up"]
    for axes in (top, below):
        axes.grid(alpha=0.3)
        if warm:
            axes.axvspan(min(warm) - 0.5, max(warm) + 0.5, color="0.9", zorder=0)
    if warm:
        top.set_title("grey: warm-up, single head and plain IoU loss", fontsize=9)


# %%
learning_curves(run.folder)


# %% [markdown]
# ## What a threshold trades
#
# A score belongs to one threshold. The curves show what a different one would give: more targets found for more false alarms (Pd against Fa), and pixel precision against recall. Each curve has its sign once, at the threshold of the scores, probability 0.5. (At threshold 0 every pixel is predicted, and at a recall of 0 none. Those points are left out.)

# %%
#| export
def draw_trade_off(
    axes: Axes,
    scorings: Sequence[Details],
    of: str,  # "objects": Pd against Fa; "pixels": precision against recall
) -> None:
    "A curve for each scoring, with its sign at probability 0.5."
    x, y = ("fa", "pd") if of == "objects" else ("recall", "precision")
    curves = {i: curve for i, details in enumerate(scorings) if (curve := details.curve(of))}
    for i, curve in curves.items():
        if of == "pixels":
            curve["precision"][curve["recall"] == 0] = math.nan
        some = curve["threshold"] > 0
        dot = int(np.argmin(np.abs(curve["threshold"][some] - 0.5)))
        draw_line(axes, curve[x][some], curve[y][some], i, at=dot)
    if not curves:
        axes.text(0.5, 0.5, "no curves", ha="center", transform=axes.transAxes)
    axes.set(ylim=(-0.03, 1.03), xlim=(-0.03, 1.03))
    axes.grid(alpha=0.3, which="both")
    if of == "objects":
        axes.set_xscale("symlog", linthresh=1)
        seen = [100, *(fa for curve in curves.values() for fa in curve["fa"])]
        axes.set_xlim(np.nanmin(seen) / 3, 3 * np.nanmax(seen))
        axes.set(xlabel="Fa, false pixels per million", ylabel="Pd, part of targets found")
    else:
        axes.set(xlabel="recall of target pixels", ylabel="precision")


def trade_offs(
    folder: Path,  # of a run
) -> Picture:
    "Pd against Fa, and precision against recall, with the dot at probability 0.5."
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    for axes, of in zip(figure.subplots(1, 2), ("objects", "pixels"), strict=True):
        draw_trade_off(axes, [read_details(folder)], of)
        if axes.lines:
            axes.legend(axes.lines[1:], ["threshold 0.5"], fontsize=8)
    return save_picture(figure, folder / "figures" / "trade_offs.png")


# %%
draw_trade_off(Figure().add_subplot(), [Details()], "pixels")  # nothing was recorded
trade_offs(run.folder)

# %% [markdown]
# ## Hits, misses and false alarms
#
# Each kind has a colour and a shape. The signs are open, so that the target stays visible inside.

# %%
#| export
Sign = dict[str, Any]
HIT: Sign = {"edgecolors": "#56B4E9", "marker": "o", "label": "hit"}
MISS: Sign = {"edgecolors": "#F0E442", "marker": "s", "label": "miss"}
FALSE_ALARM: Sign = {"edgecolors": "#D55E00", "marker": "D", "label": "false alarm"}


def _mark(axes: Axes, places: Sequence[Sequence[float]], sign: Sign) -> None:
    "Draw an open sign around objects, given by row and column."
    rows, cols = (np.array([p[k] for p in places]) for k in (0, 1))
    axes.scatter(cols, rows, s=90, facecolors="none", linewidths=1.6, clip_on=False, **sign)


def _judge(axes: Axes, pred: np.ndarray, mask: np.ndarray, rule: str) -> None:
    "Mark hits, misses and false alarms of one image."
    targets, preds = objects(mask), objects(pred)
    pairs = MATCH[rule](targets, preds)
    hit, used = {t for t, _ in pairs}, {p for _, p in pairs}
    _mark(axes, [targets.centroid[t] for t in hit], HIT)
    _mark(axes, [c for t, c in enumerate(targets.centroid) if t not in hit], MISS)
    _mark(axes, [c for p, c in enumerate(preds.centroid) if p not in used], FALSE_ALARM)


def _panel(axes: Axes, image: np.ndarray, title: str, **how: Any) -> None:
    "One image without ticks."
    axes.imshow(image, cmap="gray", **how)
    axes.set_title(title, fontsize=9, pad=8)  # above a sign at the edge
    axes.set_axis_off()


def _legend(figure: Figure | SubFigure, signs: Sequence[Sign] = (HIT, MISS, FALSE_ALARM)) -> None:
    "A legend of the signs below a figure."
    axes = figure.axes[0]
    figure.legend(
        handles=[axes.scatter([], [], facecolors="none", **sign) for sign in signs],
        loc="outside lower center",
        ncols=len(signs),
        facecolor="0.2",
        labelcolor="white",
    )


def draw_images(
    images: np.ndarray,  # [N,S,S,3] uint8
    prob: np.ndarray,  # [N,S,S] 0..1
    mask: np.ndarray,  # [N,S,S] bool
    titles: Sequence[str],  # of each image
    verdicts: Sequence[str],  # of each image, above what was hit and missed
    rule: str,
) -> Figure:
    "Columns of three: the image, the probability, and its hits, misses and false alarms."
    figure = Figure(figsize=(2.4 * len(images), 7.9), layout="compressed")
    grid = figure.subplots(3, len(images), squeeze=False)
    for i, (above, middle, below) in enumerate(grid.T):
        _panel(above, images[i], titles[i])
        _panel(middle, prob[i], "probability", vmin=0, vmax=1)
        _panel(below, images[i], verdicts[i])
        _judge(below, prob[i] > 0.5, mask[i], rule)
    _legend(figure)
    return figure


# %%
truth, prob = np.zeros((1, 32, 32), bool), np.zeros((1, 32, 32))
truth[0, 4:7, 4:7] = truth[0, 20:23, 20:23] = True
prob[0, 4:7, 4:7], prob[0, 10:12, 25:27] = 0.9, 0.6
picture = np.uint8(90 * truth[..., None].repeat(3, -1))
draw_images(picture, prob, truth, ["an image"], ["one of each"], "exact")


# %% [markdown]
# ## Best and worst images
#
# A mean hides its images. The gallery takes the test images in order of their IoU, from worst to best at even steps, so that it cannot flatter.

# %%
#| export
def even_steps(
    length: int,
    count: int,
) -> list[int]:  # at most `count` places, the first and the last among them
    "Places at even steps in a list."
    return np.linspace(0, length - 1, min(count, length)).round().astype(int).tolist()


def run_config(
    folder: Path,  # of a run
) -> Config:
    "The configuration of a run."
    found: Config = settings_from(Folder(folder).read_json("config.json"))
    return found


def predict_some(
    weights: Path,
    split: Split,
    names: Sequence[str],
    size: int,  # to which the images are resized
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # images [N,S,S,3], probabilities, masks [N,S,S]
    "Predict a few images of a split, on the CPU: they are too few for an accelerator."
    pairs = [squash(*split.pairs[split.names.index(name)], size) for name in names]
    batch = collate(pairs, [True] * len(pairs))
    prob, mask = predict(weights, batch.image, "cpu"), batch.mask > 0
    return batch.image.permute(0, 2, 3, 1).numpy(), prob[:, 0].numpy(), mask[:, 0].numpy()


def _graded(folder: Path, count: int) -> list[ImageRecord]:
    "Images of a run from the worst to the best IoU, at even steps."
    ranked = sorted(read_details(folder).images, key=lambda image: image.iou)
    if not ranked:
        raise UserError(f"{folder}: has no scored images yet; train this run to its end")
    return [ranked[i] for i in even_steps(len(ranked), count)]


def gallery(
    folder: Path,  # of a run
    count: int = 5,
) -> Picture:
    "Test images from worst to best: image, probability, hits, misses and false alarms."
    config, rows = run_config(folder), _graded(folder, count)
    split, names = splits(config)["test"], [row.name for row in rows]
    seen = predict_some(folder / "best.pt", split, names, config.base_size)
    titles = [f"{row.name}\nIoU {row.iou:.2f}" for row in rows]
    verdicts = [f"{row.matched} of {row.targets} found" for row in rows]
    figure = draw_images(*seen, titles, verdicts, config.rule)
    return save_picture(figure, folder / "figures" / "gallery.png")


def draw_run(
    folder: Path,  # of a run
) -> None:
    "Draw learning curves, trade-offs and the gallery into a run's folder, when it has ended."
    for draw in (learning_curves, trade_offs, gallery):
        draw(folder)


# %% [markdown]
# With a run of four epochs on 64x64 pixels this is no proud sight, but an honest one:

# %%
test_eq(even_steps(9, 3), [0, 4, 8])
draw_run(run.folder)
test_eq(run_config(run.folder).base_size, 64)
test = splits(config)["test"]
images, prob, mask = predict_some(run.folder / "best.pt", test, test.names[:2], size=64)
test_eq((images.shape, prob.shape, mask.shape), ((2, 64, 64, 3), (2, 64, 64), (2, 64, 64)))
gallery(run.folder)


# %% [markdown]
# ## Before training, and after
#
# The most common error in a new data set is seen at a glance: masks that belong to other images. And a network should find more than a classical filter: `evaluate` has the top-hat filter, with the window and the threshold that are best on the training images, so the comparison is fair.

# %%
#| export
def samples(
    config: Config,
    folder: Path,  # of a run
    count: int = 5,
) -> Picture:
    "Training images with their targets marked."
    split = splits(config)["train"]
    steps = even_steps(len(split), count)
    figure = Figure(figsize=(2.3 * len(steps), 5), layout="compressed")
    grid = figure.subplots(2, len(steps), squeeze=False)
    for (above, below), i in zip(grid.T, steps, strict=True):
        image, mask = split.pairs[i]
        _panel(above, image, f"{split.names[i]}\n{image.shape[0]}x{image.shape[1]}")
        _panel(below, mask, "mask")
        _mark(above, objects(mask > 0).centroid.tolist(), HIT)
    return save_picture(figure, folder / "figures" / "samples.png")


def beside_top_hat(
    folder: Path,  # of a run
    count: int = 4,
) -> Picture:
    "Test images with MSHNet's and the top-hat filter's detections, and both score lines."
    config, names = run_config(folder), [row.name for row in _graded(folder, count)]
    parts = splits(config)
    weights = folder / "best.pt"
    images, prob, mask = predict_some(weights, parts["test"], names, config.base_size)
    best = top_hat(parts["train"], parts["test"], config.base_size, config.rule)
    figure = Figure(figsize=(2.5 * len(names), 5.6), layout="compressed")
    grid = figure.subplots(2, len(names), squeeze=False)
    for i, name in enumerate(names):
        response = top_hat_filter(images[i].mean(-1), best.window)
        for axes, pred in zip(grid[:, i], (prob[i] > 0.5, response > best.threshold), strict=True):
            _panel(axes, images[i], name)
            _judge(axes, pred, mask[i], config.rule)
    line = Folder(folder).read_json("scores.json")["line"]
    text = f"above: MSHNet  {line}\nbelow: top-hat {best.window}x{best.window}  {best.scores}"
    figure.suptitle(text, fontsize=10, family="monospace")
    _legend(figure)
    return save_picture(figure, folder / "figures" / "top_hat.png")


# %%
samples(config, run.folder)

# %%
beside_top_hat(run.folder)


# %% [markdown]
# ## TensorBoard
#
# Colab and Jupyter can open TensorBoard inside the notebook. A headless run must not, because it would leave a server behind. It gets the command instead.

# %%
#| export
def tensorboard(
    folder: Path,  # of a run
) -> str:  # what happened
    "Open TensorBoard in the notebook, where someone sits before it."
    logs = folder / "tensorboard"
    if not logs.exists():
        return (
            "TensorBoard is not installed: pip install tensorboard, and the next epochs are logged"
        )
    if not interactive():
        return f"tensorboard --logdir {logs}"
    from IPython import get_ipython

    shell: Any = get_ipython()  # type: ignore[no-untyped-call]
    shell.run_line_magic("load_ext", "tensorboard")
    shell.run_line_magic("tensorboard", f"--logdir {logs}")
    return f"TensorBoard shows {logs}"


# %%
assert "tensorboard" in tensorboard(run.folder).lower()


# %% [markdown]
# ## Walking through images
#
# A gallery shows what it chose. To learn why a score is what it is we walk through the images, worst first, move the threshold and look at a target from near. A view is one image with its prediction. Its verdict at a threshold is in words and in the usual score line, of this image alone.

# %%
#| export
@dataclass(frozen=True)
class View:
    "An image with its prediction, and with its mask where that is known."

    name: str
    image: np.ndarray  # [S,S,3] uint8
    prob: np.ndarray  # [S,S] float32, 0..1
    mask: np.ndarray | None  # [S,S] bool; None: nobody has marked the targets

    @property
    def spots(self) -> dict[str, tuple[int, int]]:  # row and column by what is there
        "What is worth a look from near: each target, and the highest probability elsewhere."
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
        "By what images are put in order: IoU at 0.5; without a mask, the surest first."
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
        "What a threshold finds in the image."
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
# One function draws an image at a threshold. The widget below shows its bytes and nothing else, so the widget and a still picture of that threshold are the same. From near one sees pixels, so there the pixels have the colours of the signs.

# %%
#| export
def explored(
    view: View,
    threshold: float = 0.5,
    spot: int = 0,  # which of the view's spots is seen from near
    rule: str = "exact",
) -> bytes:  # of a PNG file
    "An image at a threshold: image, truth, probability and verdict, all of it and from near."
    known, pred, grey = view.mask is not None, view.prob > threshold, view.image.mean(-1)
    mask = pred if view.mask is None else view.mask
    what, centre = list(view.spots.items())[spot]
    half = max(12, len(mask) // 16)
    near = tuple(_window(c, n, half) for c, n in zip(centre, mask.shape, strict=True))
    panes: list[tuple[str, np.ndarray, dict[str, Any]]] = [("image", grey, {})]
    panes += [("truth", mask, {"vmin": 0, "vmax": 1})] if known else []
    panes += [("probability", view.prob, {"vmin": 0, "vmax": 1})]
    panes += [("hits, misses, false alarms" if known else "detections", grey, {})]
    figure = Figure(figsize=(2.5 * len(panes), 6.2), layout="constrained")
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
    name = view.name if len(view.name) <= 40 else f"...{view.name[-37:]}"
    text = f"{name}  threshold {threshold:.2f}  {view.verdict(threshold, rule)}"
    figure.suptitle(text, fontsize=10, family="monospace")
    return png(figure)


def _window(centre: int, length: int, half: int) -> slice:
    "A window around a place, moved inside where it would reach over the edge."
    start = min(max(centre - half, 0), max(length - 2 * half, 0))
    return slice(start, start + 2 * half)


# %%
file = run.folder / "figures" / "explored.png"
test_eq(save_picture(explored(view), file), Picture(file))
Picture(file)

# %% [markdown]
# ### Which images
#
# A split of the run's data, or any folder of images. All are resized to the size of the run, as for its scores, and each is predicted when it is first looked at. They are predicted one by one. In a batch the last digit of a probability may differ, and a picture would depend on what was looked at before.
#
# A folder has masks where it is called `images`, and `masks` is beside it (or IRSTD-1k's names), or where it holds both.
#
# The order of the test images is known from the run's own scoring. Other images have to be predicted once first; a file that cannot be read is left out, and counted. The order is that of probability 0.5 and stays while the threshold moves: a list that jumps under the hand is no list.

# %%
#| export
Source = Callable[[int], tuple[np.ndarray, np.ndarray | None]]  # an image and its mask


class Views:
    "Images to walk through, each with its prediction."

    def __init__(self, names: Sequence[str], pair: Source, detector: Detector, size: int) -> None:
        self.names, self.pair, self.detector, self.size = names, pair, detector, size
        self.view = lru_cache(64)(self._view)  # those that were looked at last

    def _view(self, index: int) -> View:
        "Predict one."
        image, mask = self.pair(index)
        empty = np.zeros(image.shape[:2], np.uint8)
        batch = collate([squash(image, empty if mask is None else mask, self.size)], [True])
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
            raise UserError(f"{weights}: lies in no run's folder; name a folder of images")
        images = _part_of(config, str(images))
    return Views(images.names, images.pairs.__getitem__, detector, size)


def _part_of(config: Config, name: str) -> Split:
    "A part of a run's data: train, val or test; UserError if there is no such part."
    parts = splits(config, ["test"] if name == "test" else ["train", "test"])
    if name not in parts:
        raise UserError(f"images={name!r}: this run held no such part out; write train or test")
    return parts[name]


def _in_folder(folder: Path) -> tuple[list[str], Source]:
    "The images of a folder, with masks where there are some; UserError if there is no image."
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
    grades: dict[str, float] | None = None,  # by name, where they are known
) -> list[tuple[str, int]]:  # a line for the list, and the image's place in the views
    "The images in the order of their error; UserError if none can be read."
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
        raise UserError(f"none of the {len(views.names)} images can be read; name another folder")
    words = {i: f"IoU {g:.2f}" if g >= 0 else f"highest {-g:.2f}" for g, i in found}
    return [(f"{views.names[i]}  {words[i]}", i) for _, i in sorted(found)]


# %%
views = open_views(run.folder / "best.pt", "test", run_config(run.folder), "cpu")
assert isinstance(views, Views)
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
# Image, spot and threshold are chosen by hand; the picture follows. The slider draws when it is released: a picture takes half a second, and a queue of them would run after the hand.

# %%
#| export
class Explorer:
    "Widgets to walk through images."

    def __init__(
        self,
        views: Views,
        lines: Sequence[tuple[str, int]],  # from `worst_first`
        threshold: float = 0.5,
        place: int = 0,  # of the line that is chosen at first
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
        "Show what is chosen."
        view, threshold = self.views.view(self.image.value), round(self.threshold.value, 2)
        self.picture.value = explored(view, threshold, self.spot.index or 0, self.rule)

    def choose(self, change: Any = None, spot: int = 0) -> None:
        "Go to another image."
        self.spot.unobserve_all("index")
        self.spot.options = list(self.views.view(self.image.value).spots)
        self.spot.index = spot
        self.spot.observe(self.draw, "index")
        self.draw()

    def step(self, by: int) -> None:
        "Go to a neighbour in the list."
        self.image.index = min(max(self.image.index + by, 0), len(self.image.options) - 1)


# %%
if find_spec("ipywidgets"):
    hands = Explorer(views, lines := worst_first(views, known))
    hands.choose()
    hands.threshold.value = 0.3
    hands.step(1)
    test_eq(hands.picture.value, explored(views.view(lines[1][1]), 0.3))


# %% [markdown]
# Everything together. In a headless run, or where ipywidgets is missing, the same call is a still picture of the same image at the same threshold, kept among the figures of the run.

# %%
#| export
def movable() -> bool:
    "Whether somebody sits before this notebook, and has widgets to move things with."
    return "ipykernel" in sys.modules and watched()


def explore(
    weights: str | Path,  # a run's folder, or a file of weights
    images: str | Path | Split = "test",  # "test", "val", "train": of the run's data; or a folder
    threshold: float = 0.5,
    place: int = 0,  # in the list of images, of which the worst is the first
    spot: int = 0,  # which is seen from near: a number of a target, from 0
    device: str = "cpu",  # few images at a time: not worth a TPU
    output: str | Path = "",  # where figures/explore.png goes; empty: beside the weights
) -> Any:  # a widget, or a Picture
    "Walk through images, worst first: truth, probability, hits, misses and false alarms."
    if not 0 <= threshold <= 1:
        raise UserError(f"threshold={threshold}: is a probability; write 0 to 1")
    path = Path(weights).expanduser()
    file = weights_file(path)
    run, config = file.parent, run_config(file.parent)
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
    folder = Path(output).expanduser() if output else run
    return save_picture(still, folder / "figures" / "explore.png")


# %%
print("widgets" if movable() else "a still picture")
with expect_fail(UserError, contains="write 0 to"):
    explore(run.folder, place=99)
explore(run.folder, threshold=0.3)

# %% [markdown]
# ## Watching a run
#
# A run writes what it does into its folder, so it can be watched from anywhere that sees the folder: a different notebook, process or machine with the same disk. The run itself does not notice. A process that was killed leaves the state "running". So if a run has been silent for too long, we report that.

# %%
#| export
ENDS = ("finished", "stopped", "failed")  # states of a run that has ended


def how_far(
    folder: Path,  # of a run
) -> str:  # one line, or two
    "The state of a run by its own records: epochs, time left, the last scores."
    files = Folder(folder)
    status, history = files.read_json("status.json"), files.history()
    done = history[-1]["epoch"] + 1 if history else 0
    epochs = files.read_json("config.json").get("epochs", "?")
    state, lasted = status.get("state", "not begun"), _last_epochs(files)
    text = f"{state}: {done} of {epochs} epochs"
    if state in ENDS:
        text += f", {status.get('reason', '')}"
    elif lasted and isinstance(epochs, int) and epochs > done:
        text += f", {duration(sum(lasted) / len(lasted) * (epochs - done))} left"
    scored = [e for e in history if "line" in e][-1:]
    return "\n".join([text, *(f"epoch {e['epoch']}, {e['split']}: {e['line']}" for e in scored)])


def silence(
    folder: Path,  # of a run
    now: float | None = None,  # seconds since 1970; None: now
) -> str:  # empty: not too long
    "How long a run has written nothing, if that is too long."
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
# Curves and numbers do not show that a network predicts nothing, or everything; images do. Three of them are predicted with the last checkpoint, whenever there is a new one, on the CPU of the process that watches. Where there are no images the picture reports why: no checkpoint yet, or a data set that is not available here.

# %%
#| export
class Watch:
    "A run's folder, as it changes."

    def __init__(self, folder: str | Path, count: int = 3) -> None:
        self.folder, self.count = Path(folder).expanduser(), count
        self.split: Split | None = None  # read once
        self.last: tuple[list[int], bytes] = ([], b"")  # the picture, and when its files were new
        if not any((self.folder / name).exists() for name in ("config.json", "status.json")):
            raise UserError(
                f"{folder}: no run is there; give the folder that `mshnet train` prints"
            )

    @property
    def ended(self) -> bool:
        "Whether nothing more will come."
        return Folder(self.folder).read_json("status.json").get("state") in ENDS

    def png(self) -> bytes:
        "The picture; drawn again if something was written."
        names = ("config.json", "status.json", "log.jsonl", "last.pt")
        files = [self.folder / name for name in names]
        stamp = [file.stat().st_mtime_ns if file.exists() else 0 for file in files]
        if self.last[0] != stamp:
            self.last = stamp, png(self.draw())
        return self.last[1]

    def predictions(self) -> tuple[list[str], tuple[np.ndarray, ...], str]:
        "Names, images with probabilities and masks, and the rule; UserError if there are none."
        last = self.folder / "last.pt"
        if not last.exists():
            raise UserError("no checkpoint yet: the first one comes after the first epoch")
        config = run_config(self.folder)
        self.split = self.split or _part_of(config, judge_split(config))
        names = [self.split.names[i] for i in even_steps(len(self.split), self.count)]
        return names, predict_some(last, self.split, names, config.base_size), config.rule

    def draw(self) -> Figure:
        "The run as it is now: how far, curves, and the last predictions."
        figure = Figure(figsize=(11.5, 5.4), layout="constrained")
        figure.suptitle(how_far(self.folder), fontsize=10, family="monospace")
        halves: Any = figure.subfigures(1, 2, width_ratios=(1, 1.2))
        left, right = halves
        _draw_history(left, Folder(self.folder).history())
        try:
            names, (images, prob, mask), rule = self.predictions()
        except UserError as error:
            right.text(0.5, 0.5, textwrap.fill(str(error), 50), ha="center", va="center")
            return figure
        for i, (above, below) in enumerate(right.subplots(2, len(names), squeeze=False).T):
            _panel(above, images[i], names[i])
            _judge(above, prob[i] > 0.5, mask[i], rule)
            _panel(below, prob[i], "probability", vmin=0, vmax=1)
        _legend(right)
        return figure


# %%
watching = Watch(run.folder)
assert watching.ended
with expect_fail(UserError, contains="no run is there"):
    Watch("no run")
watching.draw()


# %% [markdown]
# The widget looks again when its button is pressed, and every few seconds until the run has ended. That happens between the cells of the notebook that shows it. A notebook that trains is busy, so watch a run from a different one.

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
        "Show what is there now."
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
        "Look again and again, until the run has ended or the box is closed."
        while not self.watching.ended and self.box.comm is not None:
            await asyncio.sleep(self.seconds)
            if self.itself.value:
                self.look()
        self.look()  # its end may have come while the last picture was drawn


def watch(
    folder: str | Path,  # of a run
    seconds: float = 5.0,  # between two looks
) -> Any:  # a widget, or a Picture
    "Watch a run: curves, last predictions, time left. Without widgets: as it is now."
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

# %%
drawn = sorted(p.name for p in (run.folder / "figures").iterdir())
place.cleanup()
drawn
