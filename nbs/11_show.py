# %% [markdown]
# # show
#
# > Pictures of a run: learning curves, what it trades at each threshold, and its best and worst images. Each is a PNG file in the run's folder. Two of them can be moved by hand where somebody sits before the notebook.

# %%
#| default_exp show

# %%
#| hide
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

from fastcore.test import expect_fail, test_eq

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
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure, SubFigure
from matplotlib.patches import Rectangle

# %% [markdown]
# From the notebooks before this one:

# %%
#| export
from mshnet.core import Config, UserError, settings_from
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


def png(
    figure: Figure,
    **how: Any,
) -> bytes:
    "A figure as the bytes of a PNG file."
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=110, **how)
    return file.getvalue()


def keep_png(content: bytes, folder: Path, name: str) -> Picture:
    "Save a picture among the figures of a run's folder."
    path = folder / "figures" / f"{name}.png"
    with cannot_be_written(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, content)
    return Picture(path)


def keep_picture(
    figure: Figure,
    folder: Path,  # of a run
    name: str,
) -> Picture:
    "Save a figure among the run's figures."
    return keep_png(png(figure, bbox_inches="tight"), folder, name)


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
# ## Colours
#
# One man in twelve cannot tell red from green, which is what hits and false alarms are usually drawn in. These are from the palette of Okabe and Ito, and each kind has a shape of its own besides.

# %%
#| export
HIT = {"color": "#56B4E9", "marker": "o", "label": "hit"}
MISS = {"color": "#F0E442", "marker": "s", "label": "miss"}
FALSE_ALARM = {"color": "#D55E00", "marker": "D", "label": "false alarm"}


# %% [markdown]
# An open sign leaves the target visible inside it.

# %%
#| export
def mark(
    axes: Axes,
    places: Sequence[Sequence[float]],  # row and column of each object
    kind: dict[str, str],  # HIT, MISS or FALSE_ALARM
    size: float = 90,
) -> None:
    "Draw an open sign around objects."
    rows, cols = (np.array([p[k] for p in places]) for k in (0, 1))
    axes.scatter(
        cols,
        rows,
        s=size,
        facecolors="none",
        linewidths=1.6,
        edgecolors=kind["color"],
        marker=kind["marker"],
        clip_on=False,  # whole at the edge too
    )


def judge(
    axes: Axes,
    pred: np.ndarray,  # [S,S] bool
    mask: np.ndarray,  # [S,S] bool
    rule: str,
) -> None:
    "Mark hits, misses and false alarms of one image."
    targets, preds = objects(mask), objects(pred)
    pairs = MATCH[rule](targets, preds)
    hit, used = {t for t, _ in pairs}, {p for _, p in pairs}
    mark(axes, [targets.centroid[t] for t in hit], HIT)
    mark(axes, [c for t, c in enumerate(targets.centroid) if t not in hit], MISS)
    mark(axes, [c for p, c in enumerate(preds.centroid) if p not in used], FALSE_ALARM)


def panel(axes: Axes, image: np.ndarray, title: str, **how: Any) -> None:
    "One image without ticks."
    axes.imshow(image, cmap="gray", **how)
    axes.set_title(title, fontsize=9, pad=8)  # above a sign at the edge
    axes.set_axis_off()


# %%
truth, pred = np.zeros((2, 32, 32), bool)
truth[4:7, 4:7] = truth[20:23, 20:23] = True
pred[4:7, 4:7] = pred[10:12, 25:27] = True
figure = Figure(figsize=(2.4, 2.4))
axes = figure.add_subplot()
panel(axes, truth * 1.0, "one hit, one miss, one false alarm")
judge(axes, pred, truth, "exact")
mark(axes, [(30, 2)], MISS, size=20)
picture = keep_picture(figure, run.folder, "signs")
assert isinstance(picture, Picture) and png(figure).startswith(b"\x89PNG")
test_eq(keep_png(png(figure), run.folder, "signs").path, picture.path)
picture


# %% [markdown]
# ## Learning curves
#
# Loss above, scores below. The step in the loss is no accident: with the warm-up's end the loss becomes another one, with location terms and four more heads. So the phases are told apart.

# %%
#| export
def draw_curves(
    figure: Figure | SubFigure,
    history: Sequence[dict[str, Any]],  # a run's log
) -> None:
    "Loss above, scores below, by epoch."
    if not history:
        figure.text(0.5, 0.5, "no epoch yet", ha="center", va="center")
        return
    top, below = figure.subplots(2, 1, sharex=True)
    top.plot([e["epoch"] for e in history], [e["loss"] for e in history], color="#0072B2")
    top.set_ylabel("training loss")
    scored = [e for e in history if "scores" in e]
    kinds = (
        ("iou", "IoU", "#0072B2", "-"),
        ("niou", "nIoU", "#009E73", "--"),
        ("pd", "Pd", "#E69F00", ":"),
    )
    for key, label, color, style in kinds:
        values = [np.nan if e["scores"][key] is None else e["scores"][key] for e in scored]
        below.plot([e["epoch"] for e in scored], values, style, color=color, label=label)
    below.set(
        xlabel="epoch", ylim=(0, 1), ylabel=f"score, {scored[-1]['split']} images" if scored else ""
    )
    below.legend(loc="best", fontsize=8)
    warm = [e["epoch"] for e in history if e["phase"] == "warm-up"]
    for axes in (top, below):
        axes.grid(alpha=0.3)
        if warm:
            axes.axvspan(min(warm) - 0.5, max(warm) + 0.5, color="0.9", zorder=0)
    if warm:
        top.set_title("grey: warm-up, single head and plain IoU loss", fontsize=9)


def learning_curves(
    folder: Path,  # of a run
) -> Picture:
    "Loss and scores by epoch."
    figure = Figure(figsize=(7, 5))
    draw_curves(figure, Folder(folder).history())
    return keep_picture(figure, folder, "learning")


# %%
draw_curves(Figure(), [])  # a run that has only begun
learning_curves(run.folder)


# %% [markdown]
# ## What a threshold trades
#
# A score is one threshold's. The curves show what another would give: more targets found for more false alarms (Pd against Fa), and pixel precision against recall. The dot is the threshold of the scores, probability 0.5.

# %%
#| export
def trade_offs(
    folder: Path,  # of a run
) -> Picture:
    "Pd against Fa, and precision against recall, with the dot at probability 0.5."
    curves = Folder(folder).read_json("details.json")["curves"]
    pairs = ((curves["objects"], "fa", "pd"), (curves["pixels"], "recall", "precision"))
    figure = Figure(figsize=(9, 3.8))
    for axes, (curve, x, y) in zip(figure.subplots(1, 2), pairs, strict=True):
        curve = {k: [np.nan if v is None else v for v in values] for k, values in curve.items()}
        axes.plot(curve[x], curve[y], "-", marker=".", color="#0072B2", markersize=4)
        dot = int(np.argmin(np.abs(np.array(curve["threshold"]) - 0.5)))
        axes.plot(curve[x][dot], curve[y][dot], "o", color="#D55E00", label="threshold 0.5")
        axes.set_ylim(-0.03, 1.03)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    left, right = figure.axes
    left.set_xscale("symlog", linthresh=1)
    left.set_xlim(0, max(1000, 3 * max(curves["objects"]["fa"])))
    left.set(xlabel="Fa, false pixels per million", ylabel="Pd, part of targets found")
    right.set(xlabel="recall of target pixels", ylabel="precision", xlim=(-0.03, 1.03))
    figure.tight_layout()
    return keep_picture(figure, folder, "trade_offs")


# %%
trade_offs(run.folder)


# %% [markdown]
# ## Best and worst images
#
# A mean hides its images. The gallery takes the test images in order of their IoU, from worst to best at even steps, so that it cannot flatter: the image, the probability, and what was hit, missed and invented.

# %%
#| export
def even_steps(
    length: int,
    count: int,
) -> list[int]:  # at most `count` places, the first and the last among them
    "Places at even steps in a list."
    return np.linspace(0, length - 1, min(count, length)).round().astype(int).tolist()


def graded(
    folder: Path,  # of a run
    count: int,
) -> list[dict[str, Any]]:  # of details.json
    "Images of a run from the worst to the best IoU, at even steps."
    images = Folder(folder).read_json("details.json")["images"]
    ious = [overlap(row["inter"], row["pred"], row["mask"]) for row in images]
    rows = [{**row, "iou": iou} for row, iou in zip(images, ious, strict=True)]
    ranked = sorted(rows, key=lambda row: row["iou"])
    return [ranked[i] for i in even_steps(len(ranked), count)]


def overlap(inter: int, pred: int, mask: int) -> float:
    "IoU of an image from its counts of pixels; 1 where nothing is and nothing was said."
    union = pred + mask - inter
    return inter / union if union else 1.0


def predict_some(
    folder: Path,  # of a run
    split: Split,
    names: Sequence[str],
    config: Config,
    weights: Path | None = None,  # None: those that the run kept
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # images [N,S,S,3], probabilities, masks [N,S,S]
    "Predict a few images of a split with a run's weights."
    rows = [split.names.index(name) for name in names]
    pairs = [squash(*split.pairs[i], config.base_size) for i in rows]
    batch = collate(pairs, [True] * len(pairs))
    found = predict(weights or folder / "best.pt", batch.image, "cpu")  # few: not worth a TPU
    mask = batch.mask[:, 0].numpy() > 0
    return batch.image.permute(0, 2, 3, 1).numpy(), found[:, 0].numpy(), mask


# %%
test_eq(even_steps(9, 3), [0, 4, 8])
test_eq((overlap(1, 2, 3), overlap(0, 0, 0)), (0.25, 1.0))
rows = graded(run.folder, 3)
images, prob, mask = predict_some(
    run.folder, splits(config)["test"], [r["name"] for r in rows], config
)
test_eq([a.shape for a in (images, prob, mask)], [(3, 64, 64, 3), (3, 64, 64), (3, 64, 64)])
[round(r["iou"], 3) for r in rows]


# %%
#| export
def run_config(
    folder: Path,  # of a run
) -> Config:
    "The configuration of a run."
    found: Config = settings_from(Folder(folder).read_json("config.json"))
    return found


def signs(
    figure: Figure | SubFigure,
    kinds: Sequence[dict[str, str]] = (HIT, MISS, FALSE_ALARM),
) -> None:
    "A legend of the signs below a figure."
    axes = figure.axes[0]
    handles = [
        axes.scatter(
            [], [], facecolors="none", edgecolors=k["color"], marker=k["marker"], label=k["label"]
        )
        for k in kinds
    ]
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=len(handles),
        frameon=True,
        facecolor="0.2",
        labelcolor="white",
    )


# %% [markdown]
# Three rows, then: what the network saw, what it thought, and how that is judged.

# %%
#| export
def gallery(
    folder: Path,  # of a run
    count: int = 5,
) -> Picture:
    "Test images from worst to best: image, probability, hits, misses and false alarms."
    config, rows = run_config(folder), graded(folder, count)
    split = splits(config)["test"]
    images, prob, mask = predict_some(folder, split, [r["name"] for r in rows], config)
    figure = Figure(figsize=(2.3 * len(rows), 7.6), layout="compressed")
    grid = figure.subplots(3, len(rows), squeeze=False)
    for i, row in enumerate(rows):
        panel(grid[0, i], images[i], f"{row['name']}\nIoU {row['iou']:.2f}")
        panel(grid[1, i], prob[i], "probability", vmin=0, vmax=1)
        panel(grid[2, i], images[i], f"{row['matched']} of {row['targets']} found")
        judge(grid[2, i], prob[i] > 0.5, mask[i], config.rule)
    signs(figure)
    return keep_picture(figure, folder, "gallery")


# %% [markdown]
# With a run of four epochs on 64x64 pixels this is no proud sight, but an honest one:

# %%
test_eq(run_config(run.folder).base_size, 64)
legend = Figure()
legend.add_subplot()
signs(legend)
assert [text.get_text() for text in legend.legends[0].get_texts()] == ["hit", "miss", "false alarm"]
gallery(run.folder)


# %% [markdown]
# A run that has ended gets all that its numbers can show:

# %%
#| export
def draw_run(
    folder: Path,  # of a run
) -> None:
    "Draw learning curves, trade-offs and the gallery into a run's folder."
    for draw in (learning_curves, trade_offs, gallery):
        draw(folder)


# %%
draw_run(run.folder)


# %% [markdown]
# ## A classical filter beside it
#
# Before networks, small targets were found by a top-hat filter: subtract from the image its opening, and what is smaller than the window and brighter than its surroundings remains. Its window and threshold are the best on the training images, so the comparison is fair. A network that does not beat it has learned nothing that was not known.

# %%
#| export
def beside_top_hat(
    folder: Path,  # of a run
    count: int = 4,
) -> Picture:
    "Test images with MSHNet's and the top-hat filter's detections, and both score lines."
    config, rows = run_config(folder), graded(folder, count)
    parts = splits(config)
    images, prob, mask = predict_some(folder, parts["test"], [r["name"] for r in rows], config)
    filter_ = top_hat(parts["train"], parts["test"], config.base_size, config.rule)
    figure = Figure(figsize=(2.5 * len(rows), 5.6), layout="compressed")
    grid = figure.subplots(2, len(rows), squeeze=False)
    for i, row in enumerate(rows):
        response = top_hat_filter(images[i].mean(-1), filter_.window)
        for axes, pred in zip(
            grid[:, i], (prob[i] > 0.5, response > filter_.threshold), strict=True
        ):
            panel(axes, images[i], row["name"])
            judge(axes, pred, mask[i], config.rule)
    line = Folder(folder).read_json("scores.json")["line"]
    text = (
        f"above: MSHNet  {line}\nbelow: top-hat {filter_.window}x{filter_.window}  {filter_.scores}"
    )
    figure.suptitle(text, fontsize=10, family="monospace")
    signs(figure)
    return keep_picture(figure, folder, "top_hat")


# %%
beside_top_hat(run.folder)


# %% [markdown]
# ## Before training: what the images look like
#
# The most common error in a new data set is seen at a glance: masks that belong to other images.

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
    for axes, i in zip(grid.T, steps, strict=True):
        image, truth = split.pairs[i]
        panel(axes[0], image, f"{split.names[i]}\n{'x'.join(map(str, image.shape[:2]))}")
        panel(axes[1], truth, "mask")
        mark(axes[0], objects(truth > 0).centroid.tolist(), HIT)
    return keep_picture(figure, folder, "samples")


# %%
samples(config, run.folder)


# %% [markdown]
# ## TensorBoard
#
# Colab and Jupyter can open TensorBoard inside the notebook. A headless run must not: it would leave a server behind. It gets the command instead.

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
# A gallery shows what it chose. To learn why a score is what it is one walks through the images, worst first, moves the threshold and looks at a target from near. What there is to see of one image:

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


# %% [markdown]
# Its verdict at a threshold is in words and in the usual score line, of this image alone:

# %%
#| export
def verdict(
    view: View,
    threshold: float,  # a pixel is predicted where the probability is above it
    rule: str = "exact",
) -> str:  # one line, or two
    "What a threshold finds in an image."
    preds = objects(view.prob > threshold)
    if view.mask is None:
        return f"{len(preds)} detections of {preds.area.sum()} pixels"
    targets = objects(view.mask)
    found = find(targets, preds, rule)
    false = len(preds) - found.matched
    logits, mask = (torch.tensor(x)[None, None] for x in (view.prob - threshold, view.mask))
    words = f"{found.matched} of {found.targets} targets found, false alarms: {false}"
    return f"{words}\n{score(logits, mask, rule)}"


def grade(view: View) -> float:  # less is worse
    "By what images are put in order: IoU at probability 0.5; without a mask, the surest first."
    if view.mask is None:
        return -float(view.prob.max())
    pred = view.prob > 0.5
    return overlap(*(int(x.sum()) for x in (pred & view.mask, pred, view.mask)))


# %%
prob = np.zeros((64, 64), np.float32)
truth = np.zeros((64, 64), bool)
truth[10:13, 50:53] = truth[40:42, 5:7] = True
prob[10:13, 50:52], prob[30:32, 30:33] = 0.8, 0.6
grey = np.random.default_rng(0).integers(40, 60, (64, 64, 1), dtype=np.uint8)
view = View("an example", np.repeat(grey + truth[..., None] * np.uint8(90), 3, 2), prob, truth)
test_eq(verdict(view, 0.7).splitlines()[0], "1 of 2 targets found, false alarms: 0")
test_eq(verdict(View("", view.image, prob, None), 0.5), "2 detections of 12 pixels")
test_eq(round(grade(view), 3), round(6 / 19, 3))
print(verdict(view, 0.5))
list(view.spots)


# %% [markdown]
# From near one sees pixels, so there the pixels have the colours of the signs. A target at the edge is looked at from a window that stays inside.

# %%
#| export
def window(
    shape: Sequence[int],  # height and width
    centre: Sequence[int],  # row and column
    half: int,  # half a side, in pixels
) -> tuple[slice, slice]:
    "Rows and columns of a square around a place, moved inside where it would reach over the edge."
    pairs = zip(centre, shape, strict=True)
    top, left = (min(max(c - half, 0), max(n - 2 * half, 0)) for c, n in pairs)
    return slice(top, top + 2 * half), slice(left, left + 2 * half)


def tint(
    pred: np.ndarray,  # [H,W] bool
    mask: np.ndarray,  # [H,W] bool
) -> np.ndarray:  # [H,W,4] colour and opacity
    "Colours of hit, missed and false pixels; nothing elsewhere."
    colours = np.zeros((*pred.shape, 4))
    for pixels, kind in ((pred & mask, HIT), (mask & ~pred, MISS), (pred & ~mask, FALSE_ALARM)):
        colours[pixels] = (*to_rgb(kind["color"]), 0.65)
    return colours


# %%
test_eq(window((64, 64), (2, 60), 8), (slice(0, 16), slice(48, 64)))
test_eq((tint(prob > 0.5, truth)[..., 3] > 0).sum(), 19)


# %% [markdown]
# One function draws an image at a threshold. The widget below shows its bytes and nothing else, so what is seen while a slider moves is what a still picture of that threshold would be.

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
    near = window(mask.shape, centre, max(12, len(mask) // 16))
    panes: list[tuple[str, np.ndarray, dict[str, Any]]] = [("image", grey, {})]
    panes += [("truth", mask, {"vmin": 0, "vmax": 1})] if known else []
    panes += [("probability", view.prob, {"vmin": 0, "vmax": 1})]
    panes += [("hits, misses, false alarms" if known else "detections", grey, {})]
    figure = Figure(figsize=(2.5 * len(panes), 6.2), layout="constrained")
    above, below = figure.subplots(2, len(panes))
    for whole, part, (title, pixels, how) in zip(above, below, panes, strict=True):
        panel(whole, pixels, title, **how)
        panel(part, pixels[near], "", **how)
        corner = near[1].start - 0.5, near[0].start - 0.5
        side = near[0].stop - near[0].start
        whole.add_patch(Rectangle(corner, side, side, fill=False, edgecolor="#CC79A7"))
    below[0].set_title(f"from near, {what}", fontsize=9, loc="left")
    below[-1].set_title("found, missed, false pixels" if known else "its pixels", fontsize=9)
    judge(above[-1], pred, mask, rule)
    below[-1].imshow(tint(pred, mask)[near])
    signs(figure, (HIT, MISS, FALSE_ALARM) if known else ({**HIT, "label": "detection"},))
    name = view.name if len(view.name) <= 40 else f"...{view.name[-37:]}"
    text = f"{name}  threshold {threshold:.2f}  {verdict(view, threshold, rule)}"
    figure.suptitle(text, fontsize=10, family="monospace")
    return png(figure)


# %%
keep_png(explored(view), run.folder, "explored")

# %% [markdown]
# Without a mask there is nothing to be right or wrong about:

# %%
keep_png(explored(View("unmarked", view.image, prob, None), 0.7), run.folder, "explored")


# %% [markdown]
# ### Which images
#
# A split of the run's data, or any folder of images. All are squashed to the run's size, as its scores are, and each is predicted when it is first looked at. They are predicted one by one: in company the last digit of a probability may be another one, and a picture would depend on what was looked at before.

# %%
#| export
class Views:
    "Images to walk through, each with its prediction."

    def __init__(
        self,
        names: Sequence[str],
        pair: Callable[[int], tuple[np.ndarray, np.ndarray | None]],  # an image and its mask
        detector: Callable[[torch.Tensor, int], torch.Tensor],  # such as a Detector
        size: int,  # side to which all are squashed
    ) -> None:
        self.names, self.pair, self.detector, self.size = names, pair, detector, size
        self.view = lru_cache(64)(self.look)  # those that were looked at last

    def look(self, index: int) -> View:
        "Predict one."
        image, mask = self.pair(index)
        empty = np.zeros(image.shape[:2], np.uint8)
        batch = collate([squash(image, empty if mask is None else mask, self.size)], [True])
        prob = self.detector(batch.image, 1)[0, 0].numpy()
        truth = None if mask is None else batch.mask[0, 0].numpy() > 0
        return View(self.names[index], batch.image[0].permute(1, 2, 0).numpy(), prob, truth)


# %% [markdown]
# A folder has masks where it is called `images`, and `masks` is beside it (or IRSTD-1k's names), or where it holds both.

# %%
#| export
def images_in(
    folder: Path,
) -> tuple[list[str], Callable[[int], tuple[np.ndarray, np.ndarray | None]]]:  # as Views takes it
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


# %%
from PIL import Image

with tempfile.TemporaryDirectory() as tmp:
    for folder, pixels in (("images", view.image), ("masks", 255 * truth.astype(np.uint8))):
        (Path(tmp) / folder).mkdir()
        Image.fromarray(pixels).save(Path(tmp) / folder / "a.png")
    (Path(tmp) / "images" / "._0.png").write_bytes(b"of a Mac")
    names, pair = images_in(Path(tmp))
    image, mask = pair(0)
    test_eq((names, mask.sum()), (["a.png"], 13))
    (Path(tmp) / "masks" / "a.png").unlink()
    test_eq(images_in(Path(tmp) / "images")[1](0)[1], None)
with expect_fail(UserError, contains="name a folder"):
    images_in(Path(tmp))


# %% [markdown]
# The order of the test images is known from the run's own scoring. Other images have to be predicted once before it is known which is worst; a file that cannot be read is left out, and counted. The order is that of probability 0.5 and stays while the threshold moves: a list that jumps under the hand is no list.

# %%
#| export
def worst_first(
    views: Views,
    grades: dict[str, float] | None = None,  # by name, where they are known
) -> list[tuple[str, int]]:  # a line for the list, and the image's place in the views
    "The images in the order of their error; UserError if none can be read."
    found, bad = [], Findings()
    for i in bar(range(len(views.names)), len(views.names), "predict") if not grades else ():
        try:
            view = views.view(i)
        except BadImage as error:
            bad.errors[str(error)].append(views.names[i])
        else:
            found.append((grade(view), i))
    if grades:
        found = [(grades[name], i) for i, name in enumerate(views.names)]
    for line in bad.lines(bad.errors):
        warnings.warn(f"left out: {line}", stacklevel=2)
    if not found:
        raise UserError(f"none of the {len(views.names)} images can be read; name another folder")
    return [
        (f"{views.names[i]}  {f'IoU {g:.2f}' if g >= 0 else f'highest {-g:.2f}'}", i)
        for g, i in sorted(found)
    ]


# %%
parts = splits(config)
views = Views(
    parts["test"].names,
    parts["test"].pairs.__getitem__,
    Detector(run.folder / "best.pt", "cpu"),
    64,
)
known = {row["name"]: row["iou"] for row in graded(run.folder, 99)}
test_eq([i for _, i in worst_first(views)], [i for _, i in worst_first(views, known)])
worst_first(views)


# %% [markdown]
# `images` says which: a word for a part of the run's data, else a folder.

# %%
#| export
def views_of(
    weights: Path,  # a file
    images: str | Path | Split,
    config: Config,
    device: str,
) -> Views:
    "The images that are asked for; UserError if there are none."
    detector, size = Detector(weights, device), config.base_size
    if isinstance(images, Split):
        return Views(images.names, images.pairs.__getitem__, detector, size)
    if images not in ("train", "val", "test"):
        return Views(*images_in(Path(images).expanduser()), detector, size)
    if not Folder(weights.parent).read_json("config.json"):
        raise UserError(f"{weights}: lies in no run's folder; name a folder of images")
    split = part_of(config, str(images))
    return Views(split.names, split.pairs.__getitem__, detector, size)


def part_of(config: Config, name: str) -> Split:  # name: train, val or test
    "A part of a run's data; UserError if there is no such part."
    parts = splits(config, ["test"] if name == "test" else ["train", "test"])
    if name not in parts:
        raise UserError(f"images={name!r}: this run held no such part out; write train or test")
    return parts[name]


def movable() -> bool:
    "Whether somebody sits before this notebook, and has widgets to move things with."
    return "ipykernel" in sys.modules and watched()


# %%
assert movable() in (False, True)
test_eq(part_of(config, "test").names, views.names)
test_eq(views_of(run.folder / "best.pt", parts["test"], config, "cpu").names, views.names)
with expect_fail(UserError, contains="write train or test"):
    views_of(run.folder / "best.pt", "val", run_config(run.folder), "cpu")


# %% [markdown]
# ### The widget
#
# Image, spot and threshold are chosen by hand; the picture follows. The slider draws when it is let go: a picture takes half a second, and a queue of them would run after the hand.

# %%
#| export
def controls(
    lines: Sequence[tuple[str, int]],  # of the list of images, with their places in the views
    threshold: float,
    first: int,  # line that is chosen at first
) -> Any:  # widgets by name
    "What an explorer is moved with."
    import ipywidgets as w

    numbered = [(f"{n}. {line}", i) for n, (line, i) in enumerate(lines, 1)]
    style, wide = {"description_width": "80px"}, w.Layout(width="460px")
    how = {"style": style, "layout": wide}
    slider = w.FloatSlider(
        threshold, min=0, max=1, step=0.01, continuous_update=False, description="threshold", **how
    )
    return SimpleNamespace(
        image=w.Dropdown(options=numbered, index=first, description="image", **how),
        spot=w.Dropdown(description="from near", **how),
        threshold=slider,
        back=w.Button(description="back"),
        on=w.Button(description="next"),
        picture=w.Image(format="png", layout=w.Layout(max_width="100%")),
    )


# %% [markdown]
# What happens when one of them is moved:

# %%
#| export
class Explorer:
    "Widgets to walk through images."

    def __init__(self, views: Views, moved: Any, rule: str = "exact") -> None:
        import ipywidgets as w

        self.views, self.moved, self.rule = views, moved, rule
        buttons = w.HBox([moved.image, moved.back, moved.on])
        self.box = w.VBox([buttons, moved.spot, moved.threshold, moved.picture])
        moved.image.observe(self.choose, "index")
        moved.threshold.observe(self.draw, "value")
        moved.back.on_click(lambda _: self.step(-1))
        moved.on.on_click(lambda _: self.step(1))

    def draw(self, change: Any = None) -> None:
        "Show what is chosen."
        view, threshold = self.views.view(self.moved.image.value), self.moved.threshold.value
        spot = self.moved.spot.index or 0
        self.moved.picture.value = explored(view, round(threshold, 2), spot, self.rule)

    def choose(self, change: Any = None, spot: int = 0) -> None:
        "Go to another image."
        near = self.moved.spot
        near.unobserve_all("index")
        near.options = list(self.views.view(self.moved.image.value).spots)
        near.index = spot
        near.observe(self.draw, "index")
        self.draw()

    def step(self, by: int) -> None:
        "Go to a neighbour in the list."
        last = len(self.moved.image.options) - 1
        self.moved.image.index = min(max(self.moved.image.index + by, 0), last)


# %%
if find_spec("ipywidgets"):
    lines = worst_first(views, known)
    hands = Explorer(views, controls(lines, threshold=0.5, first=0))
    hands.choose()
    test_eq(hands.moved.picture.value, explored(views.view(lines[0][1])))
    hands.moved.threshold.value = 0.3
    hands.step(1)
    test_eq(hands.moved.picture.value, explored(views.view(lines[1][1]), 0.3))


# %% [markdown]
# Everything together. Where nobody sits before it, under papermill for one, or where ipywidgets is missing, the same call is a still picture of the same image at the same threshold, kept among the run's figures.

# %%
#| export
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
    run, test = file.parent, images == "test"
    config = run_config(run)
    views = views_of(file, images, config, device)
    rows = Folder(run).read_json("details.json").get("images", []) if test and path.is_dir() else []
    known = {r["name"]: overlap(r["inter"], r["pred"], r["mask"]) for r in rows}
    lines = worst_first(views, known if known.keys() == set(views.names) else None)
    if not 0 <= place < len(lines):
        raise UserError(
            f"place={place}: there are {len(lines)} images; write 0 to {len(lines) - 1}"
        )
    spots = len(views.view(lines[place][1]).spots)
    if not 0 <= spot < spots:
        raise UserError(f"spot={spot}: this image has {spots} to see; write 0 to {spots - 1}")
    if movable():
        hands = Explorer(views, controls(lines, threshold, place), config.rule)
        hands.choose(spot=spot)
        return hands.box
    still = explored(views.view(lines[place][1]), threshold, spot, config.rule)
    return keep_png(still, Path(output).expanduser() if output else run, "explore")


# %%
with expect_fail(UserError, contains="write 0 to"):
    explore(run.folder, place=99)
explore(run.folder, threshold=0.3)

# %% [markdown]
# ## Watching a run
#
# A run tells what it does in its folder, so it can be watched from anywhere that sees the folder: another notebook, another process, another machine with the same disk. It is not asked anything and does not know that it is watched.

# %%
#| export
ENDS = ("finished", "stopped", "failed")  # states of a run that goes on no more


def how_far(
    folder: Path,  # of a run
) -> str:  # two lines
    "How a run is, by its own word: state, epochs, time left, the last scores."
    files = Folder(folder)
    status, history = files.read_json("status.json"), files.history()
    done = history[-1]["epoch"] + 1 if history else 0
    state = status.get("state", "not begun")
    text = f"{state}: {done} of {files.read_json('config.json').get('epochs', '?')} epochs"
    if state in ENDS:
        text += f", {status.get('reason', '')}"
    elif left := seconds_left(folder):
        text += f", {duration(left)} left"
    scored = [e for e in history if "line" in e][-1:]
    return "\n".join([text, *(f"epoch {e['epoch']}, {e['split']}: {e['line']}" for e in scored)])


def seconds_left(
    folder: Path,  # of a run
) -> float:  # 0: done, or not known yet
    "How long the epochs to come take if they are as long as the last five."
    files = Folder(folder)
    history, epochs = files.history(), files.read_json("config.json").get("epochs", 0)
    lasted = [entry["seconds"] for entry in history[-5:]]
    return sum(lasted) / len(lasted) * (epochs - history[-1]["epoch"] - 1) if lasted else 0.0


# %% [markdown]
# A process that was killed cannot say so, and its state stays "running". So a long silence is told as such:

# %%
#| export
def silence(
    folder: Path,  # of a run
    now: float | None = None,  # seconds since 1970; None: now
) -> str:  # empty: it is not long
    "What to think of a run from which nothing is heard any more."
    files = Folder(folder)
    lasted = [entry["seconds"] for entry in files.history()[-5:]]
    written = [
        p.stat().st_mtime
        for p in (files.file("log.jsonl"), files.file("status.json"))
        if p.exists()
    ]
    quiet = (time.time() if now is None else now) - max(written, default=math.inf)
    if files.read_json("status.json").get("state") != "running" or quiet < 3 * max([60, *lasted]):
        return ""
    return f"nothing was written for {duration(quiet)}: it may have been killed"


# %%
print(how_far(run.folder))
test_eq((seconds_left(run.folder), silence(run.folder)), (0, ""))
test_eq(how_far(Path("no run")), "not begun: 0 of ? epochs")


# %% [markdown]
# Curves and numbers do not show that a network predicts nothing, or everything; images do. Three of them are predicted with the last checkpoint, whenever there is a new one, on the CPU of the process that watches.

# %%
#| export
class Watch:
    "A run's folder, as it changes."

    def __init__(self, folder: str | Path, count: int = 3) -> None:
        self.folder, self.count = Path(folder).expanduser(), count
        self.split: Split | None = None  # read once
        self.last: tuple[Any, bytes] = (None, b"")  # what lay there when it was drawn last
        if not any((self.folder / name).exists() for name in ("config.json", "status.json")):
            raise UserError(
                f"{folder}: no run is there; give the folder that `mshnet train` prints"
            )

    @property
    def ended(self) -> bool:
        "Whether nothing more will come."
        return Folder(self.folder).read_json("status.json").get("state") in ENDS

    def stamp(self) -> list[int]:
        "When each of its files was written."
        files = [self.folder / n for n in ("config.json", "status.json", "log.jsonl", "last.pt")]
        return [file.stat().st_mtime_ns if file.exists() else 0 for file in files]

    def png(self) -> bytes:
        "The picture; drawn anew if something was written."
        stamp = self.stamp()
        if self.last[0] != stamp:
            self.last = stamp, followed(self)
        return self.last[1]

    def predictions(self) -> tuple[list[str], tuple[np.ndarray, ...], str]:
        "Names, images with probabilities and masks, and the rule; UserError if there are none."
        last = self.folder / "last.pt"
        if not last.exists():
            raise UserError("no checkpoint yet: the first one comes after the first epoch")
        config = run_config(self.folder)
        self.split = self.split or part_of(config, judge_split(config))
        names = [self.split.names[i] for i in even_steps(len(self.split), self.count)]
        found = predict_some(self.folder, self.split, names, config, last)
        return names, found, config.rule


# %%
watching = Watch(run.folder)
assert watching.ended and len(watching.stamp()) == 4
test_eq(len(watching.predictions()[0]), 3)
with expect_fail(UserError, contains="no run is there"):
    Watch("no run")


# %% [markdown]
# The picture says why where it has no images: no checkpoint yet, or a data set that is not to be seen from here.

# %%
#| export
def followed(watching: Watch) -> bytes:  # of a PNG file
    "A run as it is now: how far, curves, and the last predictions."
    figure = Figure(figsize=(11.5, 5.4), layout="constrained")
    figure.suptitle(how_far(watching.folder), fontsize=10, family="monospace")
    halves: Any = figure.subfigures(1, 2, width_ratios=(1, 1.2))
    left, right = halves
    draw_curves(left, Folder(watching.folder).history())
    try:
        names, (images, prob, mask), rule = watching.predictions()
    except UserError as error:
        right.text(0.5, 0.5, textwrap.fill(str(error), 50), ha="center", va="center")
        return png(figure)
    for i, (above, below) in enumerate(right.subplots(2, len(names), squeeze=False).T):
        panel(above, images[i], names[i])
        judge(above, prob[i] > 0.5, mask[i], rule)
        panel(below, prob[i], "probability", vmin=0, vmax=1)
    signs(right)
    return png(figure)


# %%
keep_png(followed(watching), run.folder, "watch")


# %% [markdown]
# The widget looks again when its button is pressed, and by itself every few seconds until the run has ended. That happens between the cells of the notebook that shows it. One that trains is busy, so a run is watched from another notebook.

# %%
#| export
class Watcher:
    "Widgets that show a run as it goes on."

    def __init__(self, watching: Watch, seconds: float = 5.0) -> None:
        import ipywidgets as w

        self.watching, self.seconds = watching, seconds
        self.line, self.picture = w.HTML(), w.Image(format="png", layout=w.Layout(max_width="100%"))
        self.button = w.Button(description="look again")
        self.itself = w.Checkbox(True, description=f"every {seconds:g} s", indent=False)
        self.button.on_click(self.look)
        self.box = w.VBox([w.HBox([self.button, self.itself]), self.line, self.picture])

    def look(self, button: Any = None) -> None:
        "Show what is there now."
        folder, now = self.watching.folder, time.strftime("%H:%M:%S")
        try:
            text, self.picture.value = silence(folder), self.watching.png()
        except (UserError, OSError) as error:
            text = str(error)
        state = how_far(folder).splitlines()[0]
        told = "; ".join(x for x in (state, text, f"seen at {now}") if x)
        self.line.value = html.escape(told)
        if self.watching.ended:
            self.itself.value, self.itself.disabled = False, True

    async def follow(self) -> None:
        "Look again and again, until the run has ended or the box is closed."
        while not self.watching.ended and self.box.comm is not None:
            await asyncio.sleep(self.seconds)
            if self.itself.value:
                self.look()
        self.look()  # its end may have come while the last picture was drawn


# %%
if find_spec("ipywidgets"):
    eyes = Watcher(watching, seconds=0.01)
    eyes.look()
    test_eq(eyes.picture.value, watching.png())
    with ThreadPoolExecutor(1) as pool:  # a notebook's own thread has a loop that runs
        pool.submit(asyncio.run, eyes.follow()).result()  # ends at once: the run has ended
    print(eyes.line.value)


# %%
#| export
def watch(
    folder: str | Path,  # of a run
    seconds: float = 5.0,  # between two looks
) -> Any:  # a widget, or a Picture
    "Watch a run: curves, last predictions, time left. Without widgets: as it is now."
    watching = Watch(folder)
    if not movable():
        return keep_png(watching.png(), watching.folder, "watch")
    watcher = Watcher(watching, seconds)
    watcher.look()
    watcher.box.task = asyncio.get_running_loop().create_task(watcher.follow())
    return watcher.box


# %%
watch(run.folder)

# %%
drawn = sorted(p.name for p in (run.folder / "figures").iterdir())
place.cleanup()
drawn
