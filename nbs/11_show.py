# %% [markdown]
# # show
#
# > Pictures of a run: learning curves, what it trades at each threshold, and its best and worst images. Each is a PNG file in the run's folder.

# %%
#| default_exp show

# %%
#| hide
import tempfile

from fastcore.test import test_eq

# %%
#| export
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mshnet.core import Config, UserError
from mshnet.data import Split, collate, squash
from mshnet.evaluate import predict, top_hat, top_hat_filter
from mshnet.metrics import MATCH, objects
from mshnet.places import interactive
from mshnet.run import Folder
from mshnet.task import Detection


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


def keep_picture(
    figure: Figure,
    folder: Path,  # of a run
    name: str,
) -> Picture:
    "Save a figure among the run's figures."
    path = folder / "figures" / f"{name}.png"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=110, bbox_inches="tight")
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror})") from None
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
    axes.set_title(title, fontsize=9)
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
assert isinstance(picture, Picture)
picture


# %% [markdown]
# ## Learning curves
#
# Loss above, scores below. The step in the loss is no accident: with the warm-up's end the loss becomes another one, with location terms and four more heads. So the phases are told apart.

# %%
#| export
def learning_curves(
    folder: Path,  # of a run
) -> Picture:
    "Loss and scores by epoch."
    history = Folder(folder).history()
    figure = Figure(figsize=(7, 5))
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
    return keep_picture(figure, folder, "learning")


# %%
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

    def iou(row: dict[str, Any]) -> float:
        union = row["pred"] + row["mask"] - row["inter"]
        return row["inter"] / union if union else 1.0

    ranked = sorted(({**row, "iou": iou(row)} for row in images), key=lambda row: row["iou"])
    return [ranked[i] for i in even_steps(len(ranked), count)]


def predict_some(
    folder: Path,  # of a run
    split: Split,
    names: Sequence[str],
    config: Config,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # images [N,S,S,3], probabilities, masks [N,S,S]
    "Predict a few images of a split with the run's kept weights."
    rows = [split.names.index(name) for name in names]
    pairs = [squash(split.images[i], split.masks[i], config.base_size) for i in rows]
    batch = collate(pairs, [True] * len(pairs))
    prob = predict(folder / "best.pt", batch.image, "cpu")[:, 0].numpy()  # few: not worth a TPU
    return batch.image.permute(0, 2, 3, 1).numpy(), prob, batch.mask[:, 0].numpy() > 0


# %%
test_eq(even_steps(9, 3), [0, 4, 8])
rows = graded(run.folder, 3)
images, prob, mask = predict_some(
    run.folder, Detection(config).splits()["test"], [r["name"] for r in rows], config
)
test_eq([a.shape for a in (images, prob, mask)], [(3, 64, 64, 3), (3, 64, 64), (3, 64, 64)])
[round(r["iou"], 3) for r in rows]


# %%
#| export
def run_config(
    folder: Path,  # of a run
) -> Config:
    "The configuration of a run."
    return Config(**Folder(folder).read_json("config.json"))


def signs(figure: Figure) -> None:
    "A legend of the signs below a figure."
    axes = figure.axes[0]
    kinds = [
        axes.scatter(
            [], [], facecolors="none", edgecolors=k["color"], marker=k["marker"], label=k["label"]
        )
        for k in (HIT, MISS, FALSE_ALARM)
    ]
    figure.legend(
        handles=kinds,
        loc="outside lower center",
        ncols=3,
        frameon=True,
        facecolor="0.4",
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
    split = Detection(config).splits()["test"]
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
    parts = Detection(config).splits()
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
    split = Detection(config).splits()["train"]
    steps = even_steps(len(split), count)
    figure = Figure(figsize=(2.3 * len(steps), 5), layout="compressed")
    grid = figure.subplots(2, len(steps), squeeze=False)
    for axes, i in zip(grid.T, steps, strict=True):
        panel(
            axes[0],
            split.images[i],
            f"{split.names[i]}\n{'x'.join(map(str, split.images[i].shape[:2]))}",
        )
        panel(axes[1], split.masks[i], "mask")
        mark(axes[0], objects(split.masks[i] > 0).centroid.tolist(), HIT)
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
drawn = sorted(p.name for p in (run.folder / "figures").iterdir())
place.cleanup()
drawn
