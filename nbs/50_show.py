# %% [markdown]
# # Figures of a run
#
# > Learning curves, Pd and Fa by threshold, the best and the worst images.
#
# A table of scores hides what a figure shows at a glance: a loss that jumps, a threshold that is badly chosen, masks that belong to other images. `draw_run` draws the learning curves, the trade-offs and the gallery of a finished run, and each of them can be drawn alone.

# %%
#| hide
#| default_exp show
import tempfile

from mshnet.show import Picture, gallery, learning_curves, samples, trade_offs
from mshnet.train import train

# %%
#| export
import io
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from matplotlib import font_manager, rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.rcsetup import cycler
from matplotlib.ticker import MaxNLocator
from pydantic import BaseModel, Field, ValidationError

from mshnet.augment import unpadded
from mshnet.core import Settings, UserError, read_json, resolve, settings_from
from mshnet.data import Split, splits
from mshnet.detection import over_mirrors
from mshnet.evaluate import Detector
from mshnet.files import make_folder, write_atomic
from mshnet.metrics import MATCH, objects
from mshnet.recipe import Config
from mshnet.run import Folder
from mshnet.task import even_steps, make_task

# %% [markdown]
# ## Before training
#
# `samples` shows some pairs of image and mask before training. Below, each circle lies on a bright spot, as it should; with masks of other images the circles would lie anywhere. For this page a tiny run will do: four epochs from the pretrained weights, on synthetic scenes of 96x96 pixels.

# %%
#| output: false
place = tempfile.TemporaryDirectory()
sizes = {"scenes": 16, "base_size": 96, "crop_size": 96, "seed": 2}
config = Config(**sizes, weight_path="pretrained", epochs=4, warm_epoch=0, device="cpu")
run = train(config.model_copy(update={"output_dir": f"{place.name}/run"}))

# %%
samples(config, run.folder)

# %% [markdown]
# ## Learning curves
#
# The loss is above, the scores are below; the warm-up, here epoch 0, has a grey background. In this run the loss falls until epoch 2, and Pd rises from 0.56 to 0.89. (With the paper's recipe the loss jumps at the end of the warm-up, because its location terms and four more outputs join it.)

# %%
curves: Picture = learning_curves(run.folder)
curves

# %% [markdown]
# ## What a threshold trades
#
# A score belongs to one threshold. The curve shows the others: the large marker stands at probability 0.5, the threshold of the scores, and two black dots stand at lower ones. A lower threshold usually finds more targets and gives more false alarms. Here 0.5 finds eight of nine targets without a false alarm. At 0.1 all are found, still without one; 0.01 adds only false pixels, about 400 per million.

# %%
trade_offs(run)

# %% [markdown]
# ## Best and worst images
#
# A mean hides its images. The gallery sorts the test images by their IoU and shows up to five at even steps, from the worst to the best, so it cannot flatter. Hits, misses and false alarms have a colour and a shape each. Our tiny run has four test images. In the worst one, on the left, the target on the bright streak is missed; the map of probabilities shows only a trace of it:

# %%
gallery(run.folder)


# %% [markdown]
# ## The machinery: saved first, shown second
#
# All figures are drawn from the files of the run; those with images also read the data set. The same call therefore works in the cell of a notebook, in another notebook a week later, and on a machine without a screen. A figure is saved as a PNG file in the folder `figures` of the run, and the reader sees exactly this file.
#
# Names of files, and the words of the sign-language task, may be Chinese. matplotlib's own font has no Chinese characters, so they are drawn in the first installed font that has them. Without such a font they are boxes ([what to do](guides/trouble.ipynb)).
#
# One man in twelve confuses red and green, the usual colours of hits and false alarms. Ours are from the palette of Okabe and Ito; we do not draw lines in its yellow, which is faint on white. Lines also differ in pattern and marker, which keeps a grey print readable.

# %%
#| export
@dataclass(frozen=True)
class Picture:
    "A PNG file that shows itself in a notebook."

    path: Path

    def _repr_png_(self) -> bytes:
        "The bytes of the file, for the notebook."
        return self.path.read_bytes()


def png(figure: Figure, **how: Any) -> bytes:
    "A figure as the bytes of a PNG file."
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=110, **how)
    return file.getvalue()


def save_picture(content: Figure | bytes, path: Path) -> Picture:
    "Write a figure, or the bytes of a PNG file; UserError if the file cannot be written."
    make_folder(path.parent)
    write_atomic(path, content if isinstance(content, bytes) else png(content, bbox_inches="tight"))
    return Picture(path)


_CHINESE = ["Noto Sans CJK SC", "Noto Sans CJK JP", "WenQuanYi Zen Hei", "Microsoft YaHei"]
_CHINESE += ["SimHei", "PingFang SC", "Hiragino Sans GB"]
_INSTALLED = font_manager.get_font_names()
_FOUND = [name for name in _CHINESE if name in _INSTALLED][:1]
rcParams["font.family"] = [*rcParams["font.family"], *_FOUND]
MONOSPACE = ["monospace", *_FOUND]
if not _FOUND:
    warnings.filterwarnings("ignore", message="Glyph .* missing from")  # one line per sign

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9")
_LINES = cycler(color=COLORS, marker=[*"osD^vP*"], linestyle=["-", "--", ":", "-.", "-", "--", ":"])

# %% [markdown]
# ### Curves of a run
#
# The learning curves are for every task. The other figures are of detection. A run of a different task has its own, which its `report` draws into the same folder, and `gallery` shows the gallery of that task.

# %%
#| export
_FEW = 30  # epochs that get a marker each; the line of a single one is invisible
_SHOWN = 5  # images of a figure


def _draw_epochs(axes: Axes, rows: list[Any], values: list[Any], label: str = "") -> None:
    "Draw a value of each epoch, with markers if they are few."
    epochs, scores = [e["epoch"] for e in rows], np.array(values, float)
    [line] = axes.plot(epochs, scores, linewidth=1.4, markersize=5, label=label)
    if len(rows) > _FEW:
        line.set_marker("")
    axes.grid(alpha=0.3)


def _run_folder(path: str | Path) -> Path:
    "The folder of a run; UserError if none is there."
    folder = Path(path).expanduser()
    if not any((folder / name).is_file() for name in ("config.json", "log.jsonl", "details.json")):
        raise UserError(f"{path}: there is no run; name a run folder, such as runs/NAME")
    return folder


def learning_curves(folder: str | Path) -> Picture:
    "Loss and scores by epoch, of a run folder; UserError if there is none."
    folder = _run_folder(folder)
    figure, history = Figure(figsize=(7, 5)), Folder(folder).history()
    top, below = figure.subplots(2, 1, sharex=True, subplot_kw={"prop_cycle": _LINES})
    _draw_epochs(top, history, [e["loss"] for e in history])
    top.set_ylabel("training loss")
    scored = [e for e in history if "scores" in e]
    shown = {"iou": "IoU", "niou": "nIoU", "pd": "Pd"}
    if scored and "iou" not in scored[-1]["scores"]:  # of another task
        rates = [k for k, v in scored[-1]["scores"].items() if isinstance(v, float)]
        shown = {name: name for name in rates[:3]}  # counts have no place on this axis
    for key, label in shown.items():
        _draw_epochs(below, scored, [e["scores"][key] for e in scored], label)
    below.set(xlabel="epoch", ylim=(-0.05, max(1.05, below.get_ylim()[1])))
    below.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    below.set_ylabel(f"score, {scored[-1]['split']}" if scored else "no epoch yet")
    below.legend(loc="best", fontsize=8)
    if warm := [e["epoch"] for e in history if e["phase"] == "warm-up"]:
        top.set_title("grey: warm-up, the full-size head alone", fontsize=9)
        for axes in (top, below):
            axes.axvspan(min(warm) - 0.5, max(warm) + 0.5, color="0.9", zorder=0)
    return save_picture(figure, Path(folder) / "figures" / "learning.png")


def not_drawn(picture: str, config: Settings) -> str:  # empty for detection
    "The line in place of a figure that only detection has: a notebook continues."
    line = f"{picture}: is for task detect; the gallery shows the figures of {config.task}"
    return line if config.task != "detect" else ""


# %% [markdown]
# ### The record of an evaluation
#
# The other figures need more than scores. `details.json` contains the curves, and a record of each image and each target ([analyse](42_analyse.ipynb) explains the numbers). The file may come from a different machine, or somebody may have edited it, so we check it before we draw from it. Files of the first releases have no `targets`, and some scorings have no such file at all. After the code, the records of the last image and its last target:

# %%
#| export
Count = Annotated[int, Field(ge=0, le=2**48)]
Amount = Annotated[float, Field(ge=0, le=1e12)]


class Record(BaseModel, extra="ignore", allow_inf_nan=False):
    "A record in a file of scores; numbers must be finite."

    @classmethod
    def read(cls, path: Path) -> Self:
        "A file of scores, checked; UserError if it is damaged."
        try:
            return cls.model_validate(read_json(path))
        except ValidationError as error:
            first = error.errors()[0]
            what = f"{'.'.join(map(str, first['loc'])) or 'the whole file'}: {first['msg']}"
            raise UserError(f"{path}: is not a valid file of scores ({what})") from None


class _ImageRecord(Record):
    "The counts of an image, in pixels where no unit is given."

    name: str
    inter: Count
    pred: Count
    mask: Count
    targets: Count  # number
    matched: Count  # number

    @property
    def iou(self) -> float:
        "IoU; 1 without any target or prediction."
        union = self.pred + self.mask - self.inter
        return self.inter / union if union else 1.0


class TargetRecord(Record):
    "A target, and whether it was found."

    area: Count
    matched: bool


class Details(Record):
    "The record of an evaluation: its images, its curves, its targets."

    images: list[_ImageRecord] = []
    curves: dict[str, dict[str, list[Amount | None]] | None] = {}
    targets: list[TargetRecord] | None = None
    settings: dict[str, Any] = {}

    def curve(self) -> list[np.ndarray]:  # thresholds, Pd, Fa; NaN: undefined
        "Pd and Fa by threshold; UserError if the lists do not fit, empty ones without a record."
        held = self.curves.get("objects") or {}
        lists = [np.array(held.get(name, []), float) for name in ("threshold", "pd", "fa")]
        if len({len(values) for values in lists}) > 1:
            raise UserError("curve of Pd and Fa: lists are missing, or their lengths differ")
        return lists


def read_details(folder: Path) -> Details:
    "The record of an evaluation in a folder; an empty one without details.json."
    path = folder / "details.json"
    return Details.read(path) if path.exists() else Details()


# %%
details = read_details(run.folder)
details.images[-1], details.targets[-1]


# %%
#| export
def trade_offs(folder: str | Path, *others: str | Path) -> Picture | str:
    "Pd against Fa of a run, which gets the figure, and of others; a marker at probability 0.5."
    runs = [*map(_run_folder, (folder, *others))]
    known = Folder(runs[0]).read_json("config.json") or read_details(runs[0]).settings
    if line := not_drawn("trade_offs", settings_from(known)):
        return line
    if others:
        resolve("mshnet.compare:compare")(runs)  # UserError if they were not scored alike
    names = [shortened(str(run), 40) for run in runs] if others else ["marker: threshold 0.5"]
    figure = Figure(figsize=(5.5, 3.8), layout="constrained")
    axes, most = figure.subplots(subplot_kw={"prop_cycle": _LINES}), 100.0
    for name, run in zip(names, runs, strict=True):
        threshold, pd, fa = read_details(run).curve()
        if not len(threshold):
            return f"{run}: has no curve; score it by mshnet test RUN --output-dir DIR, name DIR"
        at = int(np.argmin(np.abs(threshold - 0.5)))
        axes.plot(fa, pd, lw=1.4, ms=8, markevery=[at], label=name, clip_on=False)
        for t, va, up in () if others else ((0.01, "bottom", 0.02), (0.1, "top", -0.02)):
            i = int(np.argmin(np.abs(threshold - t)))
            axes.plot(fa[i], pd[i], "k.")
            axes.annotate(f" {threshold[i]:g}", (fa[i], pd[i] + up), va=va)
        most = max(most, np.nanmax(fa))
    axes.set_xscale("symlog", linthresh=1)
    axes.set(xlim=(0, 3 * most), xlabel="Fa, false pixels per million")
    axes.set(ylim=(-0.03, 1.03), ylabel="Pd, fraction of targets found")
    axes.grid(alpha=0.3, which="both")
    axes.legend(fontsize=8)
    return save_picture(figure, runs[0] / "figures" / "trade_offs.png")


Sign = dict[str, Any]
HIT: Sign = {"edgecolors": "#56B4E9", "marker": "o", "label": "hit"}
MISS: Sign = {"edgecolors": "#F0E442", "marker": "s", "label": "miss"}
FALSE_ALARM: Sign = {"edgecolors": "#D55E00", "marker": "D", "label": "false alarm"}


def _mark(axes: Axes, places: np.ndarray, sign: Sign) -> None:  # places: [N,2] row and column
    "Draw an open marker around objects."
    rows, cols = places.T
    if len(rows):  # matplotlib 3.10 draws one in the corner of the figure otherwise
        axes.scatter(cols, rows, s=90, facecolors="none", linewidths=1.6, clip_on=False, **sign)


def draw_panel(axes: Axes, image: np.ndarray, title: str, **how: Any) -> None:
    "Draw one image without ticks."
    axes.imshow(image, **{"cmap": "gray"} | how)
    axes.set_title(title, fontsize=9, pad=8, parse_math=False)  # above a sign at the edge
    axes.set_axis_off()


def draw_judged(
    axes: Axes, image: np.ndarray, title: str, pred: np.ndarray, mask: np.ndarray, rule: str
) -> None:  # pred and mask: [H,W] bool
    "Draw one image, with its hits, misses and false alarms marked."
    draw_panel(axes, image, title)
    targets, preds = objects(mask), objects(pred)
    hit, used = np.array(MATCH[rule](targets, preds), int).reshape(-1, 2).T
    _mark(axes, targets.centroid[hit], HIT)
    _mark(axes, np.delete(targets.centroid, hit, 0), MISS)
    _mark(axes, np.delete(preds.centroid, used, 0), FALSE_ALARM)


def shortened(name: str, most: int = 26) -> str:
    "The end of a name that is too long for a title; names of one recording differ there."
    return name if len(name) <= most else f"...{name[3 - most :]}"


def draw_legend(figure: Figure) -> None:
    "Draw a legend of the markers below a figure."
    axes, signs = figure.axes[0], (HIT, MISS, FALSE_ALARM)
    handles = [axes.scatter([], [], facecolors="none", linewidths=1.6, **sign) for sign in signs]
    how: dict[str, Any] = {"ncols": len(signs), "facecolor": "0.05", "labelcolor": "white"}
    figure.legend(handles=handles, loc="outside lower center", **how)


# %% [markdown]
# ### Images
#
# Each image is predicted as it is scored, and alone: in a batch the last digit of a probability may differ, and a figure would depend on the other images.

# %%
#| export
@dataclass(frozen=True)
class View:
    "An image as it is scored, with its prediction."

    name: str
    image: np.ndarray  # [H,W,3] uint8
    prob: np.ndarray  # [H,W] float32, 0..1
    mask: np.ndarray  # [H,W] bool


def view_image(detector: Detector, config: Config, split: Split, index: int) -> View:
    "Predict an image of a split."
    batch = make_task(config).batch(split, [index], None)
    prob = over_mirrors(detector, batch.image) if config.mirrored else detector(batch.image)
    image, prob = (unpadded(x, batch.mask)[0] for x in (batch.image, prob))
    mask = batch.mask[0, 0].numpy() > 0
    return View(split.names[index], image.permute(1, 2, 0).numpy(), prob[0].numpy(), mask)


def gallery(folder: Path, config: Any = None) -> Picture:  # its settings; None: as recorded
    "Test images from worst to best, with hits, misses and false alarms; UserError without scores."
    folder = _run_folder(folder)
    known = Folder(folder).read_json("config.json")
    config = config or settings_from(known or read_details(folder).settings)
    path = folder / "figures" / "gallery.png"
    if config.task != "detect":
        make_task(config).report(folder)
        return Picture(path)
    split = splits(config)["test"]
    places = {name: i for i, name in enumerate(split.names)}
    ranked = [row for row in read_details(folder).images if row.name in places]
    if not ranked:
        raise UserError(f"{folder}: has no scored images of its test list; finish or name a run")
    ranked.sort(key=lambda image: image.iou)
    rows = [ranked[i] for i in even_steps(len(ranked), _SHOWN)]
    detector = Detector(folder / "best.pt", "cpu")
    figure = Figure(figsize=(2.4 * len(rows), 7.9), layout="compressed")
    grid = figure.subplots(3, len(rows), squeeze=False)
    for row, (above, middle, below) in zip(rows, grid.T, strict=True):
        view = view_image(detector, config, split, places[row.name])
        draw_panel(above, view.image, f"{shortened(row.name)}\nIoU {row.iou:.2f}")
        draw_panel(middle, view.prob, "probability", vmin=0, vmax=1)
        found = f"{row.matched} of {row.targets} found"
        draw_judged(below, view.image, found, view.prob > 0.5, view.mask, config.rule)
    draw_legend(figure)
    return save_picture(figure, path)


def draw_run(folder: Path, config: Any = None) -> None:  # its settings; None: as recorded
    "Draw learning curves, trade-offs and the gallery into the folder of a finished run."
    for draw in (learning_curves, trade_offs, partial(gallery, config=config)):
        draw(folder)


def samples(config: Any, folder: str | Path) -> Picture | str:
    "Up to five training images with their targets marked: FOLDER/figures/samples.png."
    if line := not_drawn("samples", config):
        return line
    split = splits(config)["train"]
    steps = even_steps(len(split), _SHOWN)
    figure = Figure(figsize=(2.3 * len(steps), 5), layout="compressed")
    grid = figure.subplots(2, len(steps), squeeze=False)
    for (above, below), i in zip(grid.T, steps, strict=True):
        image, mask = split.pairs[i]
        draw_panel(above, image, f"{shortened(split.names[i])}\n{image.shape[0]}x{image.shape[1]}")
        draw_panel(below, mask, "mask")
        _mark(above, objects(mask > 0).centroid, HIT)
    return save_picture(figure, Path(folder).expanduser() / "figures" / "samples.png")

# %% [markdown]
# ## Questions
#
# 1. The loss of a run falls for 200 epochs, and its IoU stays at 0. Which figure do you draw first?
#    <details><summary>Answer</summary><code>samples</code>. If the masks belong to other images, the network learns something that the test list does not reward.</details>
# 2. The five images of a gallery have the IoUs 0, 0.4, 0.6, 0.8 and 1. Is their mean, 0.56, the IoU of the run?
#    <details><summary>Answer</summary>No. They are a selection at even steps. And the IoU of the run divides the sum of all intersections by the sum of all unions, so an image with large targets counts more. The mean over all images is nIoU, which leaves out images without targets and predictions.</details>
