# %% [markdown]
# # compare
#
# > Several runs in one table and one picture: whether they are comparable, which is better at what, and why the worst images are bad.

# %%
#| default_exp compare

# %%
#| hide
import tempfile

from fastcore.test import expect_fail, test_close, test_eq

# %%
#| export
import json
import math
import os
import textwrap
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pydantic import model_validator
from scipy.stats import binomtest
from scipy.stats import t as student

from mshnet.core import Config, UserError, one_line, quoted, settings_from
from mshnet.data import splits
from mshnet.files import make_folder, write_atomic
from mshnet.metrics import fraction
from mshnet.run import Folder
from mshnet.show import (
    MONOSPACE,
    Details,
    ImageRecord,
    Record,
    TargetRecord,
    draw_images,
    draw_line,
    draw_trade_off,
    predict_some,
    read_details,
    read_scores_file,
    save_picture,
    style,
)
from mshnet.weights import settings_of_weights, weights_file

# %% [markdown]
# Two runs score an IoU of 0.62 and 0.65. Is the second better? Perhaps it was scored on different images, or its epoch was chosen on the test list, or the seed alone explains the difference. And better at what: small targets, dim ones, true probabilities?
#
# A run stores its scores, their protocol, and a record of every image and every target. This page reads these files for one run or several. First it checks whether the scores are comparable. Then it counts targets by size and contrast, measures the calibration, and finds the cause of each wrong pixel. Tables, a picture and files come last.
#
# ## What is compared
#
# A folder with scores is a run, or an output of `mshnet test --output-dir`. The settings of the training are in the run's `config.json`, or beside the weights if the scoring has a separate folder.

# %%
#| export
SCORES = {"iou": "IoU", "niou": "nIoU", "f1": "F1", "pd": "Pd", "fa": "Fa"}


class _ScoresFile(Record):
    "scores.json; the protocol of a task other than detection names it."

    scores: dict[str, float | str | None]  # None: undefined, such as Pd without targets
    protocol: dict[str, str | int | float | None]

    @model_validator(mode="after")
    def complete(self) -> Self:
        "ValueError unless a detection has all of its scores."
        for name in SCORES if "task" not in self.protocol else ():
            value = self.scores.get(name, "")
            if isinstance(value, str) or (value is not None and value < 0):
                raise ValueError(f"{name} is missing, or not a number of at least 0")
        return self


@dataclass(frozen=True)
class Scored:
    "A folder with scores."

    name: str
    folder: Path
    scores: dict[str, float | None]
    protocol: dict[str, str | int | float | None]
    details: Details

    @property
    def task(self) -> str:
        "The task of the training."
        return str(self.protocol.get("task", "detect"))

    @property
    def weights(self) -> Path:
        "The weights that were scored."
        own = self.folder / "best.pt"
        named = str(self.details.settings.get("weight_path", ""))
        return own if os.path.exists(own) or not named else weights_file(named, self.task)

    @property
    def recipe(self) -> dict[str, Any]:
        "The settings that change the result of the training; empty if they are not known."
        known = settings_of_weights(str(self.weights))
        if not known:
            return {}
        config = settings_from(known)
        return {k: getattr(config, k) for k in [*config.recipe_names(), "weight_path"]}


# %% [markdown]
# Each mistake has an error of its own. A command in it can be copied, so a path with a space is quoted.

# %%
#| export
def read_scored(
    folder: str | Path,  # a run, or what `mshnet test --output-dir` wrote
) -> Scored:
    "Read a folder with scores; UserError for any other folder."
    place = Path(os.path.expanduser(folder))
    if not os.path.isdir(place):  # unlike Path's: False for an impossible name
        what = "a file; name its folder" if os.path.exists(place) else "there is no such folder"
        raise UserError(f"{folder}: {what} (a run, such as runs/NAME, or a folder of scores)")
    if not os.path.exists(place / "scores.json"):
        if os.path.exists(place / "best.pt"):
            command = _scoring(place / "best.pt", place)
            raise UserError(
                f"{folder}: a run without scores; score it: {command}, and name that folder"
            )
        if os.path.exists(place / "config.json"):
            raise UserError(f"{folder}: a run without scores or weights; train it first")
        raise UserError(f"{folder}: not a run (it has neither scores.json nor config.json)")
    file = read_scores_file(place / "scores.json", _ScoresFile)
    names = file.scores if "task" in file.protocol else SCORES
    scores = {k: v for k in names if not isinstance(v := file.scores[k], str)}
    return Scored(one_line(place.resolve().name), place, scores, file.protocol, read_details(place))


def _scoring(weights: Path, folder: Path) -> str:
    "The command that scores weights into a folder beside this one."
    return f"mshnet test --weight-path {quoted(weights)} --output-dir {quoted(f'{folder}-scores')}"


# %% [markdown]
# The examples below use two tiny runs that differ in their seed:

# %%
#| output: false
from mshnet.train import train

place = tempfile.TemporaryDirectory()
common = {"scenes": 48, "base_size": 64, "crop_size": 64, "choose": "last", "device": "cpu"}
tiny = Config(**common, epochs=3, warm_epoch=0, lr=0.005, eval_every=3)
for seed in (0, 1):
    update = {"seed": seed, "output_dir": f"{place.name}/seed{seed}"}
    train(tiny.model_copy(update=update))

# %%
run: Scored = read_scored(f"{place.name}/seed0")
with expect_fail(UserError, contains="no such folder"):
    read_scored("no/such")
run.task, run.name, run.scores

# %% [markdown]
# ## What may be compared
#
# A score measures one test set by one rule. Two scores are comparable if both agree:
#
# - the pixels of the test set and their number (`split_hash` stands for the pixels, so the *name* of the data set may differ);
# - the size and the way of the resize, the threshold, and the matching rule;
# - whether the epoch was chosen on the test list. Such a choice makes a score better than it should be. The last epoch, and one chosen on a held-out part, are both honest.
#
# Unknown is not equal to unknown: scores of two unknown test sets are not comparable.
#
# All other differences (settings, seed, precision) are the object of the comparison, or deserve a column.

# %%
#| export
MUST = ("split_hash", "images", "targets", "size", "resize", "threshold", "rule", "choice")
MAY = ("data", "split", "chosen", "seed", "trained_on", "precision", "device", "mshnet", "torch")
UNKNOWN = "not known"


def choice(
    chosen: str,  # the protocol's text
) -> str:
    "Whether the epoch was chosen on the test list."
    if "TEST list" in chosen:
        return "on the test list"
    honest = chosen.endswith(", the last") or "held-out" in chosen
    return "without the test list" if honest else UNKNOWN


def _must(runs: Sequence[Scored]) -> tuple[str, ...]:
    "The fields that must agree; for a task other than detection, all that it recorded."
    if all(run.task == "detect" for run in runs):
        return MUST
    names = dict.fromkeys(name for run in runs for name in run.protocol)
    return (*(n for n in names if n not in (*MAY, "trained_on_scored_images")), "choice")


def _protocol(run: Scored, must: Sequence[str]) -> dict[str, str]:
    "A run's protocol as text, with the kind of choice of its epoch."
    known = {k: one_line(str(v)) for k, v in run.protocol.items() if v is not None}
    known["choice"] = choice(known.get("chosen", ""))
    return {name: known.get(name, UNKNOWN) for name in (*must, *MAY)}


def _differing(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str]
) -> dict[str, list[str]]:  # of each name: the value of each run
    "The fields in which runs differ."
    values = {name: [one_line(str(row[name])) for row in rows] for name in names}
    return {name: found for name, found in values.items() if len(set(found)) > 1}


# %% [markdown]
# The error names each differing field, the value of each run, and the remedy. Two runs of one name are distinguished by their paths. The same run twice is an error.

# %%
#| export
@dataclass(frozen=True)
class Comparison:
    "Runs side by side."

    runs: list[Scored]
    forbids: dict[str, list[str]]  # fields that make the scores incomparable: the value of each run
    differs: dict[str, list[str]]  # other fields that differ

    @property
    def detected(self) -> bool:
        "Whether all runs are of detection, which has records of targets."
        return all(run.task == "detect" for run in self.runs)

    @property
    def warning(self) -> str:
        "The line above every table and picture; empty if the scores are comparable."
        names = ", ".join(self.forbids)
        return f"NOT COMPARABLE, shown anyway; different or not known: {names}" if names else ""

    def __str__(self) -> str:
        "All tables, for the terminal."
        return as_text(self)

    def _repr_markdown_(self) -> str:
        "All tables, in a notebook."
        return as_markdown(self)


def compare(
    folders: Sequence[str | Path],
    anyway: bool = False,  # compare even scores that are not comparable
) -> Comparison:
    "Read runs and compare them; UserError if they are not comparable."
    if not folders:
        raise UserError("compare: name one run or more, such as runs/NAME")
    runs = _distinct([read_scored(folder) for folder in folders])
    must = _must(runs)
    rows = [_protocol(run, must) for run in runs]
    forbids = _differing(rows, must)
    if len(runs) > 1:
        unknown = [name for name in must if name != "choice" and rows[0][name] == UNKNOWN]
        forbids |= {name: [row[name] for row in rows] for name in unknown}
    recipes = [run.recipe for run in runs]
    shared = set.intersection(*map(set, recipes)) - {*MUST, *MAY, "base_size"}
    trained = [name for name in recipes[0] if name in shared]
    if forbids and not anyway:
        values = [f"{k} {' | '.join(_short(v) for v in found)}" for k, found in forbids.items()]
        raise UserError(
            f"these scores cannot be compared: {'; '.join(values)} "
            f"({' | '.join(run.name for run in runs)}); score them alike, or write --anyway"
        )
    return Comparison(runs, forbids, _differing(rows, MAY) | _differing(recipes, trained))


def _distinct(runs: Sequence[Scored]) -> list[Scored]:
    "The runs, each with a different name; UserError if one comes twice."
    for place, count in Counter(run.folder.resolve() for run in runs).items():
        if count > 1:
            raise UserError(f"{place.name}: the same run is named {count} times; name it once")
    names = Counter(run.name for run in runs)
    return [r if names[r.name] == 1 else replace(r, name=str(r.folder)) for r in runs]


def _short(text: str, most: int = 30) -> str:
    "A text cut to what fits into a line."
    return text if len(text) <= most else text[: most - 2] + ".."


# %%
test_eq(choice("epoch 29, the last"), "without the test list")
test_eq(choice("epoch 21, by iou on the TEST list itself"), "on the test list")
both: Comparison = compare([f"{place.name}/seed0", f"{place.name}/seed1"])
assert not both.warning
with expect_fail(UserError, contains="named 2 times"):
    compare([f"{place.name}/seed0", f"{place.name}/seed1/../seed0"])
both.differs


# %% [markdown]
# ## Small bins need intervals
#
# One rate hides the weak side of a detector. So we count targets by their area in pixels and by their signal-to-clutter ratio (see `analyse` for the formula). Below 2 a target hardly differs from its surroundings; above 8 a person sees it at once.
#
# But if nine of ten tiny targets were found, is that 90%? An interval holds the rates that are compatible with the count. Wilson's is right for small numbers, where the usual interval would reach beyond 1, or have no width if every target was found. For the mean IoU of the found targets we use Student's. Both assume independent targets. The targets of one image are not quite independent, so the true intervals are wider.

# %%
#| export
def wilson(
    found: int,
    targets: int,
) -> tuple[float, float, float]:  # NaN without targets
    "A detection rate with its 95% interval."
    if not targets:
        return math.nan, math.nan, math.nan
    interval = binomtest(found, targets).proportion_ci(method="wilson")
    return found / targets, float(interval.low), float(interval.high)


def mean_interval(
    values: Sequence[float],  # each 0..1
) -> tuple[float, float, float]:  # NaN where there are too few
    "A mean with its 95% interval."
    mean, n = fraction(float(np.sum(values)), len(values)), len(values)
    if n < 2:
        return mean, math.nan, math.nan
    half = float(student.ppf(0.975, n - 1) * np.std(values, ddof=1) / math.sqrt(n))
    return mean, max(mean - half, 0.0), min(mean + half, 1.0)


AREAS = (1, 10, 26, 65)  # the least area of each bin, in pixels
CONTRASTS = (0, 2, 4, 8)  # the least signal-to-clutter ratio of each bin


@dataclass(frozen=True)
class Bin:
    "The targets of one size or one contrast."

    name: str
    targets: int
    found: int
    rate: tuple[float, float, float]  # fraction found, with its interval
    iou: tuple[float, float, float]  # mean of the found targets, with its interval


def by_bins(
    targets: Sequence[TargetRecord],
    of: str,  # "area" or "scr"
) -> list[Bin]:
    "Detection rate, and overlap of the found targets, by size or by contrast."
    starts: Sequence[int] = AREAS if of == "area" else CONTRASTS
    bins = []
    for low, high in zip(starts, (*starts[1:], math.inf), strict=True):
        last = high - 1 if of == "area" else high
        name = f"{low}+" if high == math.inf else f"{low}-{last}"
        known = [t for t in targets if getattr(t, of) is not None]
        here = [t for t in known if low <= getattr(t, of) < high]
        found = sum(target.matched for target in here)
        ious = [target.iou for target in here if target.iou is not None]
        bins.append(Bin(name, len(here), found, wilson(found, len(here)), mean_interval(ious)))
    return bins


# %%
test_close(wilson(9, 10), (0.9, 0.5958, 0.9821), eps=1e-4)
test_close(mean_interval([0.4, 0.5, 0.6]), (0.5, 0.2516, 0.7484), eps=1e-4)
areas: list[Bin] = by_bins(run.details.targets, "area")
test_eq([b.name for b in areas], ["1-9", "10-25", "26-64", "65+"])
test_eq([b.name for b in by_bins([], "scr")], ["0-2", "2-4", "4-8", "8+"])
areas[1]


# %% [markdown]
# ## Calibration
#
# Of the pixels with a probability of about 0.7, seven in ten should belong to a target. The *expected calibration error* is the mean gap between probability and truth, over ten steps of probability, each weighted by its pixels (Guo et al., *On Calibration of Modern Neural Networks*, ICML 2017).
#
# Nearly all pixels are background and predicted as such: 99.9% of them lie in the lowest step, where the gap is tiny. The error over all pixels is therefore tiny for any detector, even for one that finds nothing. We add two numbers. The error over the pixels of probability 0.1 and more measures the probabilities that draw attention. The sum of the probabilities, divided by the number of target pixels, is below 1 if the network predicts too little on the whole. There is no interval, because the pixels of one target are right or wrong together.

# %%
#| export
@dataclass(frozen=True)
class Calibration:
    "How well probabilities agree with the truth."

    all_pixels: float  # expected calibration error
    upper: float  # the same over pixels of probability 0.1 and more; NaN without any
    predicted: float  # sum of the probabilities per target pixel; NaN without any


def calibration(
    curve: Mapping[str, np.ndarray],  # pixels, target pixels, mean: in ten steps of probability
) -> Calibration:
    "The calibration of a scoring. Source: Guo et al., ICML 2017."
    pixels, target, mean = (np.nan_to_num(curve[k]) for k in ("pixels", "target", "mean"))
    gap = np.abs(target - pixels * mean)
    return Calibration(
        fraction(float(gap.sum()), float(pixels.sum())),
        fraction(float(gap[1:].sum()), float(pixels[1:].sum())),
        fraction(float((pixels * mean).sum()), float(target.sum())),
    )


# %% [markdown]
# A detector that calls everything background is well calibrated by the first number; the others expose it:

# %%
tenths = np.zeros((3, 10))
tenths[:, 0] = 10**6, 100, 0
blind: Calibration = calibration(dict(zip(("pixels", "target", "mean"), tenths, strict=True)))
test_eq((blind.all_pixels, blind.predicted), (1e-4, 0))
calibration(run.details.curve("calibration"))

# %% [markdown]
# ## Why an image is bad
#
# Every wrong pixel has an owner, a target or the clutter (see `analyse`). The record of the target gives the cause:
#
# | cause | rule |
# |---|---|
# | missed: small | not found, no prediction touches it; area at most 9 pixels, signal-to-clutter ratio 2 or more |
# | missed: dim | the same; ratio below 2, area above 9 |
# | missed: small and dim | the same; both |
# | missed: other | the same; neither |
# | merged | not found, and a prediction that touches it touches another target too |
# | fragmented | several predictions touch it, whether or not one of them found it |
# | off centre | not found; one prediction touches it, but its centroid is 3 pixels away or more |
# | clutter | a prediction that touches no target |
# | outline | found by a prediction that is too large, too small or shifted |
#
# These are rules about the picture, not about the network: a missed target that is dim may be missed for a different reason. The main cause of an image is the one with the most wrong pixels. Outlines come last, because they are wrong everywhere by a pixel or two, and would hide a missing target.

# %%
#| export
_SMALL, _DIM = AREAS[1] - 1, CONTRASTS[1]  # pixels at most; ratio below
CAUSES = (
    *("missed: small", "missed: dim", "missed: small and dim", "missed: other"),
    *("merged", "fragmented", "off centre", "clutter", "outline"),
)


def cause_of(target: TargetRecord) -> str:
    "The cause of a target's wrong pixels, one of CAUSES."
    if not target.matched and target.merged:
        return "merged"
    if target.parts > 1:
        return "fragmented"
    if target.matched:
        return "outline"
    if target.parts:
        return "off centre"
    small, dim = target.area <= _SMALL, target.scr is not None and target.scr < _DIM
    kinds = [word for word, true in (("small", small), ("dim", dim)) if true]
    return f"missed: {' and '.join(kinds) or 'other'}"


@dataclass(frozen=True)
class Verdict:
    "The causes of an image's wrong pixels."

    image: ImageRecord
    pixels: Counter[str]  # wrong pixels by cause
    times: Counter[str]  # targets, or predictions in the clutter, by cause

    @property
    def causes(self) -> list[str]:
        "The causes, the main one first; outline only if it is the only one."
        graver = sorted((-n, k) for k, n in self.pixels.items() if k != "outline")
        return [k for _, k in graver] or (["outline"] if self.pixels else ["nothing wrong"])


def verdicts(
    details: Details,  # with records of its targets
) -> list[Verdict]:  # from the worst IoU to the best
    "The causes of each image's wrong pixels."
    of_image = defaultdict(list)
    for target in details.targets or []:
        of_image[target.name].append(target)
    found = []
    for image in details.images:
        pixels, times = Counter[str](), Counter[str]()
        for target in of_image[image.name]:
            wrong = target.area - target.covered + target.extra
            if wrong or not target.matched:
                pixels[cause_of(target)] += wrong
                times[cause_of(target)] += 1
        if image.clutter:
            pixels["clutter"], times["clutter"] = image.clutter_pixels, image.clutter
        found.append(Verdict(image, pixels, times))
    return sorted(found, key=lambda verdict: (verdict.image.iou, -verdict.image.wrong))


def causes(
    found: Sequence[Verdict],
) -> list[tuple[str, int, int, int]]:  # cause, times, wrong pixels, images whose main cause it is
    "The causes of all images, in the order of their definition."
    main = Counter(verdict.causes[0] for verdict in found)
    times = sum((verdict.times for verdict in found), Counter[str]())
    pixels = sum((verdict.pixels for verdict in found), Counter[str]())
    return [(k, times[k], pixels[k], main[k]) for k in CAUSES if times[k]]


# %%
found: list[Verdict] = verdicts(run.details)
test_eq([v.pixels.total() for v in found], [v.image.wrong for v in found])
test_eq([v.image.iou for v in found], sorted(v.image.iou for v in found))
missed = {"matched": False, "parts": 0, "area": 9, "scr": 1}
test_eq(cause_of(run.details.targets[0].model_copy(update=missed)), "missed: small and dim")
causes(found)


# %% [markdown]
# ## Runs that differ in their seed alone
#
# One run is one random draw. If several runs differ in the seed alone (settings, training list, precision and versions are equal), their mean and standard deviation predict the next one. A difference between two recipes that is smaller than this deviation proves nothing.

# %%
#| export
def seed_groups(
    runs: Sequence[Scored],
) -> list[list[Scored]]:  # each of two runs or more
    "Groups of runs that differ in their seed alone."
    groups, must = defaultdict(list), _must(runs)
    for run in runs:
        how, recipe = _protocol(run, must), run.recipe
        same = [how[k] for k in (*must, "data", "trained_on", "precision", "mshnet", "torch")]
        if recipe and UNKNOWN not in (how["seed"], how["trained_on"]):
            groups[str([same, *(v for k, v in recipe.items() if k != "seed")])].append(run)
    many = [group for group in groups.values() if len(group) > 1]
    return [g for g in many if len({run.protocol["seed"] for run in g}) == len(g)]


# %%
[group] = seed_groups(both.runs)
test_eq(seed_groups([run, run]), [])
ious = [run.scores["iou"] for run in group]
f"IoU {np.mean(ious):.3f} \u00b1 {np.std(ious, ddof=1):.3f} (n = {len(group)})"


# %% [markdown]
# ## The tables
#
# A `Table` prints itself for the terminal, for a document and for a program. An undefined number is a dash.

# %%
#| export
@dataclass(frozen=True)
class Table:
    "A table with a title and a note."

    title: str
    head: list[str]
    rows: list[list[str]]
    note: str = ""

    def __str__(self) -> str:
        "For the terminal."
        lines = [self.head, *self.rows] if self.rows else []
        wide = [max(map(len, column)) for column in zip(*lines, strict=True)]
        text = ["  ".join(c.ljust(w) for c, w in zip(line, wide, strict=True)) for line in lines]
        return "\n".join(x for x in (self.title, *map(str.rstrip, text), self.note) if x)

    def markdown(self) -> str:
        "For a document."
        rows = [self.head, ["---"] * len(self.head), *self.rows] if self.rows else []
        lines = ["| " + " | ".join(c.replace("|", "/") for c in row) + " |" for row in rows]
        return "\n\n".join(x for x in (f"## {self.title}", "\n".join(lines), self.note) if x)


def _number(value: float | None, digits: int = 2) -> str:
    "A number, or a dash."
    return "-" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def _with_interval(found: tuple[float, float, float]) -> tuple[str, str]:
    "A value and its interval, as shown."
    value, low, high = found
    return _number(value), "-" if math.isnan(low) else f"{_number(low)}-{_number(high)}"


# %% [markdown]
# The first table has the scores, and below them the means over seeds. The second has a column for each field of the protocols that differs, with a `!` if it makes the scores incomparable; one line holds the fields that agree. The other tables are for detections: rates by size and by contrast, calibration, causes.

# %%
#| export
def score_table(comparison: Comparison) -> Table:
    "The scores of each run, and the means over seeds."
    runs, names, digits = comparison.runs, SCORES, {"fa": 1}
    if not comparison.detected:
        names = {name: name for run in runs for name in run.scores}
        digits = dict.fromkeys(names, 3)
    rows = [
        [run.name, *(_number(run.scores.get(k), digits.get(k, 2)) for k in names)] for run in runs
    ]
    for group in seed_groups(runs):
        cells = []
        for name in names:
            values = np.array([run.scores.get(name) for run in group], float)  # None becomes NaN
            mean, deviation = float(np.mean(values)), float(np.std(values, ddof=1))
            some = digits.get(name, 3)
            cells.append(f"{_number(mean, some)} \u00b1 {_number(deviation, some)}")
        rows.append([f"mean of n = {len(group)} seeds like {group[0].name}", *cells])
    note = "\u00b1: standard deviation of a sample" if len(rows) > len(runs) else ""
    return Table("Scores", ["run", *names.values()], rows, note)


def protocol_table(comparison: Comparison) -> Table:
    "The protocols: fields that differ, and fields that agree."
    runs = comparison.runs
    how = _protocol(runs[0], _must(runs))
    columns = {f"{k} !": v for k, v in comparison.forbids.items()} | comparison.differs
    rows = [[r.name, *(_short(v[i], 44) for v in columns.values())] for i, r in enumerate(runs)]
    shown = {"choice", *comparison.forbids, *comparison.differs}
    same = "; ".join(f"{name} {value}" for name, value in how.items() if name not in shown)
    note = f"{'the same in all' if len(runs) > 1 else 'protocol'}: {same}"
    return Table("Protocol", ["run", *columns], rows if columns else [], note)


def _bin_table(comparison: Comparison, of: str) -> Table:
    "Detection by size or contrast."
    rows = []
    for run in comparison.runs:
        for b in by_bins(run.details.targets, of) if run.details.targets else []:
            cells = [b.name, str(b.targets), str(b.found)]
            rows.append([run.name, *cells, *_with_interval(b.rate), *_with_interval(b.iou)])
    title, what = {"area": ("By area", "area, pixels"), "scr": ("By contrast", "contrast, SCR")}[of]
    head = ["run", what, "targets", "found", "Pd", "95%", "IoU of the found", "95%"]
    return Table(title, head, rows)


def _calibration_table(comparison: Comparison) -> Table:
    "The calibration of each run."
    rows = []
    for run in comparison.runs:
        if curve := run.details.curve("calibration"):
            t = calibration(curve)
            rows.append(
                [run.name, f"{t.all_pixels:.5f}", _number(t.upper, 3), _number(t.predicted)]
            )
    head = ["run", "error, all pixels", "error, probability 0.1 and more", "predicted / true"]
    note = "Nearly all pixels are background, which makes the first error small for any detector."
    return Table("Calibration", head, rows, note if rows else "")


def _cause_table(comparison: Comparison) -> Table:
    "The causes of the wrong pixels of each run."
    rows = []
    for run in comparison.runs:
        found = causes(verdicts(run.details)) if run.details.targets is not None else []
        total = sum(pixels for _, _, pixels, _ in found)
        for cause, times, pixels, images in found:
            share = f"{_number(100 * fraction(pixels, total), 0)}%"
            rows.append([run.name, cause, str(times), str(pixels), share, str(images)])
    head = ["run", "cause", "times", "wrong pixels", "share", "main cause of images"]
    return Table("What went wrong", head, rows)


def tables(comparison: Comparison) -> list[Table]:
    "All tables that are not empty."
    found = [score_table(comparison), protocol_table(comparison)]
    if comparison.detected:
        found += [_bin_table(comparison, of) for of in ("area", "scr")]
        found += [_calibration_table(comparison), _cause_table(comparison)]
    return [table for table in found if table.rows or table.note]


# %% [markdown]
# The whole comparison comes as text, as Markdown and as JSON. A scoring from before targets were recorded has scores and curves only, and a line with the remedy.

# %%
#| export
def remarks(comparison: Comparison) -> list[str]:
    "Missing records, each with its remedy."
    found = []
    for run in comparison.runs:
        if run.details.targets is None and run.task == "detect":
            again = f"train it again: its weights are not at {run.weights}"
            if os.path.exists(run.weights):
                again = f"score it again: {_scoring(run.weights, run.folder)}"
            found.append(f"{run.name}: scored before targets were recorded one by one; {again}")
    return found


def as_text(comparison: Comparison) -> str:
    "A comparison as text, for the terminal."
    parts = [comparison.warning, *map(str, tables(comparison)), "\n".join(remarks(comparison))]
    return "\n\n".join(part for part in parts if part)


def as_markdown(comparison: Comparison) -> str:
    "A comparison as Markdown."
    warning = f"**{comparison.warning}**" if comparison.warning else ""
    shown = [table.markdown() for table in tables(comparison)]
    parts = ["# Comparison", warning, *shown, *remarks(comparison)]
    return "\n\n".join(part for part in parts if part) + "\n"


def as_json(comparison: Comparison) -> str:
    "A comparison as JSON: the same tables, with all scores and protocols."
    runs = [
        {"name": run.name, "scores": run.scores, "protocol": run.protocol}
        for run in comparison.runs
    ]
    shown = {
        table.title: [dict(zip(table.head, row, strict=True)) for row in table.rows]
        for table in tables(comparison)
    }
    content = {"comparable": not comparison.forbids, "forbids": comparison.forbids}
    content |= {"differs": comparison.differs, "runs": runs, "tables": shown}
    return json.dumps({**content, "remarks": remarks(comparison)}, indent=1) + "\n"


# %%
old = replace(run, details=Details(images=run.details.images, curves=run.details.curves))
alone = Comparison([old], {}, {})
assert "score it again: mshnet test" in as_text(alone) and remarks(both) == []
assert "By area" not in [table.title for table in tables(alone)]
warned = replace(both, forbids={"size": ["64", "32"]})
assert "**NOT COMPARABLE" in as_markdown(warned) and "size !" in str(protocol_table(warned))
test_eq(json.loads(as_json(warned))["comparable"], False)
test_eq(Table("", ["a|b"], [["1"]]).markdown().splitlines()[2:], ["| a/b |", "| --- |", "| 1 |"])
print(score_table(both))
both

# %% [markdown]
# ## The picture
#
# The picture has the trade-offs of `show`, one line for each run. Rates by size or contrast stand side by side with their intervals, and each bin has its number of targets if all runs agree on it. The reliability diagram has two parts: above, how often a pixel of each probability belongs to a target; below, on a logarithmic scale, the number of these pixels. Scores and protocols are below, for a picture that can be passed on alone.

# %%
#| export
_WIDE = 180  # characters in a line below the picture


def _draw_bins(
    axes: Axes,
    runs: Sequence[Scored],
    of: str,  # "area" or "scr"
    what: str = "rate",  # or "iou": the overlap of the found ones
) -> None:
    "Detection rate, or overlap, by size or contrast."
    known = [(i, by_bins(r.details.targets, of)) for i, r in enumerate(runs) if r.details.targets]
    for turn, (place, bins) in enumerate(known):
        shift = (turn - (len(known) - 1) / 2) * min(0.16, 0.7 / len(known))
        mean, low, high = np.array([getattr(b, what) for b in bins]).T
        reach = np.nan_to_num(np.stack([mean - low, high - mean]).clip(0))
        look = {**style(place), "linestyle": "", "capsize": 3, "markersize": 6}
        axes.errorbar(np.arange(len(bins)) + shift, mean, reach, **look)
    if known:
        counts = [[b.targets for b in bins] for _, bins in known]
        same = all(count == counts[0] for count in counts)
        names = [b.name + (f"\nn = {b.targets}" if same else "") for b in known[0][1]]
        axes.set_xticks(range(len(names)), names)
        axes.set_xlim(-0.5, len(names) - 0.5)
    else:
        axes.text(0.5, 0.5, "no records of targets", ha="center", transform=axes.transAxes)
    axes.set(ylim=(-0.03, 1.03), ylabel="Pd" if what == "rate" else "mean IoU of the found")
    axes.set_xlabel("area of the target, pixels" if of == "area" else "signal-to-clutter ratio")
    axes.grid(alpha=0.3, axis="y")


def _draw_calibration(above: Axes, below: Axes, runs: Sequence[Scored]) -> None:
    "The fraction of pixels that belong to a target, and their number, by probability."
    above.plot([0, 1], [0, 1], color="0.7", linewidth=1)
    for place, run in enumerate(runs):
        if curve := run.details.curve("calibration"):
            pixels = np.where(curve["pixels"] > 0, curve["pixels"], math.nan)
            draw_line(above, curve["mean"], curve["target"] / pixels, place, at=slice(None))
            draw_line(below, np.arange(10) / 10 + 0.05, pixels, place, at=slice(None))
    above.set(ylim=(-0.03, 1.03), ylabel="fraction of target pixels")
    below.set(xlabel="probability of a pixel", ylabel="pixels", xlim=(-0.03, 1.03), yscale="log")
    below.set_ylim(bottom=0.5)
    above.tick_params(labelbottom=False)
    for axes in (above, below):
        axes.grid(alpha=0.3)


def draw(comparison: Comparison) -> Figure:
    "Curves, rates by size and contrast, calibration, scores and protocols."
    runs = comparison.runs
    text = "\n\n".join(str(make(comparison)) for make in (score_table, protocol_table))
    rows = [[row] if "  " in row else textwrap.wrap(row, _WIDE) for row in text.splitlines()]
    lines = [line for row in rows for line in row or [""]]
    figure = Figure(figsize=(13, 8.6 + 0.15 * len(lines)), layout="constrained")
    halves: Any = figure.subfigures(2, 1, height_ratios=[8.2, 0.4 + 0.15 * len(lines)])
    pictures, words = halves
    grid = pictures.add_gridspec(2, 3)
    for i, of in enumerate(("objects", "pixels")):
        draw_trade_off(pictures.add_subplot(grid[0, i]), [run.details for run in runs], of)
    storeys = grid[0, 2].subgridspec(2, 1, height_ratios=[3, 1])
    above = pictures.add_subplot(storeys[0])
    _draw_calibration(above, pictures.add_subplot(storeys[1], sharex=above), runs)
    for i, (of, what) in enumerate((("area", "rate"), ("scr", "rate"), ("area", "iou"))):
        _draw_bins(pictures.add_subplot(grid[1, i]), runs, of, what)
    marks = [above.plot([], [], **style(i), label=run.name)[0] for i, run in enumerate(runs)]
    pictures.legend(handles=marks, loc="outside upper center", ncols=min(len(runs), 4))
    if comparison.warning:
        figure.suptitle(comparison.warning, color="#D55E00", weight="bold")
    size = 8 * min(1, _WIDE / max(map(len, lines)))
    how = {"family": MONOSPACE, "fontsize": size, "parse_math": False}
    words.text(0.01, 0.98, "\n".join(lines), va="top", **how)
    return figure


# %%
draw(both)


# %% [markdown]
# ## The worst images
#
# The worst images are shown by IoU, each with its cause: the image, the probability, and its hits, misses and false alarms. The weights predict these few images again on the CPU, where a pixel near the threshold may differ from the scoring.

# %%
#| export
def worst(
    run: Scored,
    count: int = 6,
) -> Figure:
    "The worst images of a run, with causes; UserError without target records or test images."
    if run.details.targets is None:
        raise UserError(remarks(Comparison([run], {}, {}))[0])
    found = verdicts(run.details)[:count]
    settings = run.details.settings or Folder(run.folder).read_json("config.json")
    config: Config = settings_from(settings)
    split, names = splits(config, ["test"])["test"], [verdict.image.name for verdict in found]
    if split.hash != run.protocol.get("split_hash") or not {*names} <= {*split.names}:
        raise UserError(f"{run.name}: the test images are no longer those that were scored")
    titles = [f"{_short(v.image.name, 26)}\nIoU {v.image.iou:.2f}" for v in found]
    counts = [f"{v.image.matched} of {v.image.targets} found" for v in found]
    words = ["\n".join([n, *v.causes[:2]]) for n, v in zip(counts, found, strict=True)]
    seen = predict_some(run.weights, split, names, config.base_size)
    return draw_images(*seen, titles, words, config.rule)


# %%
worst(run, 4)

# %% [markdown]
# ## Files
#
# The suffix of the output's name selects a picture, a document or data. A name without a suffix is a folder. It gets all three, and the worst images of each run. Those need weights and data; if they are missing, a line reports it and the rest is still written.

# %%
#| export
_FORMATS = {".md": as_markdown, ".json": as_json}
_RUN_FILES = ("scores.json", "details.json", "config.json", "env.json", "status.json")


def output_place(
    output: str,  # FILE.png, FILE.md, FILE.json, or a folder
) -> Path:
    "The place for a comparison; UserError for a name that cannot be one."
    path = Path(os.path.expanduser(output))
    if os.path.isdir(path) or not path.suffix:
        return path
    if path.suffix not in (".png", *_FORMATS):
        raise UserError(
            f"output={output!r}: write a name ending in .png, .md or .json, or a folder"
        )
    if path.name in _RUN_FILES:
        raise UserError(f"output={output!r}: a run has a file of that name; write another")
    return path


def keep_comparison(
    comparison: Comparison,
    place: Path,  # from `output_place`
    count: int = 6,  # of the worst images
) -> list[str]:  # a line for each file, written or not
    "Write a comparison; UserError if it cannot be written, or drawn (tasks without detections)."
    if place.suffix in (".png", *_FORMATS) and not os.path.isdir(place):
        if place.suffix == ".png" and not comparison.detected:
            raise UserError(f"output={str(place)!r}: only detections are drawn; write FILE.md")
        if place.suffix == ".png":
            return [str(save_picture(draw(comparison), place).path)]
        make_folder(place.parent)
        write_atomic(place, _FORMATS[place.suffix](comparison))
        return [str(place)]
    written = []
    for ending in (".md", ".json", ".png") if comparison.detected else _FORMATS:
        written += keep_comparison(comparison, place / f"compare{ending}")
    for i, run in enumerate(comparison.runs if comparison.detected else ()):
        path = place / f"worst-{i + 1}-{run.folder.resolve().name}.png"
        try:
            written.append(str(save_picture(worst(run, count), path).path))
        except UserError as error:
            why = str(error).removeprefix(f"{run.name}: ")
            written.append(f"no picture of the worst images of {run.name}: {why}")
    return written


# %%
kept = keep_comparison(both, output_place(f"{place.name}/compared"), 2)
names = ["compare.md", "compare.json", "compare.png", "worst-1-seed0.png"]
test_eq([Path(line).name for line in kept][:4], names)
for name in ("table.pdf", "scores.json"):
    with expect_fail(UserError, contains="write"):
        output_place(name)
place.cleanup()
