# %% [markdown]
# # compare
#
# > Several runs in one table and one picture, whether they may be compared at all, and what goes wrong in the worst images.

# %%
#| default_exp compare

# %%
#| hide
import tempfile

from fastcore.test import expect_fail, test_close, test_eq

# %%
#| export
import io
import json
import math
import os
import textwrap
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pydantic import BaseModel, Field, ValidationError, model_validator
from scipy.stats import binomtest
from scipy.stats import t as student

from mshnet.core import Config, UserError, one_line, read_json, settings_class, settings_from
from mshnet.data import splits
from mshnet.metrics import fraction
from mshnet.model import weights_file
from mshnet.run import Folder, cannot_be_written, write_atomic
from mshnet.show import Picture, judge, panel, predict_some, signs


# %% [markdown]
# A run leaves its scores, how they came about, and a record of every image and every target. This notebook reads these files of one run or of several and answers three questions. Which is better, and is the question allowed? Better at what: small targets, dim ones, honest probabilities? And what is wrong where it is wrong?
#
# ## What a scoring leaves
#
# Two files: `scores.json` with the protocol, `details.json` with the curves, the images and the targets. They may come from another machine or have been edited by hand, so they are checked before anything is drawn from them.

# %%
#| export
class Kept(BaseModel, extra="ignore", allow_inf_nan=False):
    "Something read from a file of scores."


T = TypeVar("T", bound=Kept)
Count = Annotated[int, Field(ge=0, le=2**48)]
Part = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(ge=0, le=1e12)]
Tenths = Field(min_length=10, max_length=10)


class Curve(Kept):
    "Lists of equal length."

    threshold: list[Part]

    @model_validator(mode="after")
    def of_one_length(self) -> Self:
        "A point needs all its numbers."
        if len({len(values) for values in vars(self).values()}) > 1:
            raise ValueError("its lists have different lengths")
        if not any(value > 0 for value in self.threshold):
            raise ValueError("it has no threshold above 0")
        return self


class PixelCurve(Curve):
    "Of pixels."

    precision: list[Part]
    recall: list[Part]


class ObjectCurve(Curve):
    "Of objects."

    pd: list[Part | None]
    fa: list[Positive]


# %% [markdown]
# The numbers of an image and of a target are explained in `evaluate`, where they are counted:

# %%
#| export
class ImageRow(Kept):
    "An image's counts, in pixels where nothing else is said."

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
        "Overlap; 1 where nothing was and nothing was predicted."
        union = self.pred + self.mask - self.inter
        return self.inter / union if union else 1.0


class Target(Kept):
    "A target, and what became of it."

    name: str  # of its image
    area: Count
    scr: Positive | None  # how much it stands out
    matched: bool
    iou: Part | None  # with the prediction that found it
    covered: Count
    extra: Count
    parts: Count
    merged: bool


# %% [markdown]
# And the files as a whole. Scorings from before targets were recorded have no `targets`.

# %%
#| export
class Calibration(Kept):
    "By tenths of the probability: pixels, those of targets, mean probability."

    pixels: list[Count] = Tenths
    target: list[Count] = Tenths
    mean: list[Part | None] = Tenths


class Curves(Kept):
    "What the curves are drawn from."

    pixels: PixelCurve
    objects: ObjectCurve
    calibration: Calibration | None = None


class Details(Kept):
    "details.json."

    images: list[ImageRow] = []
    curves: Curves | None = None
    targets: list[Target] | None = None
    settings: dict[str, Any] = {}


class Numbers(Kept):
    "Scores; None where there was nothing to divide by."

    iou: Part | None
    niou: Part | None
    f1: Part | None
    pd: Part | None
    fa: Positive | None


class ScoresFile(Kept):
    "scores.json."

    scores: Numbers
    protocol: dict[str, str | int | float | None]


class OtherScores(Kept):
    "scores.json of another task than detection: its protocol names it."

    scores: dict[str, float | None]
    protocol: dict[str, str | int | float | None]


# %% [markdown]
# A folder with scores is a run, or what `mshnet test --output-dir` wrote. What a run was trained with stands in its `config.json`; for a scoring in a folder of its own, beside the weights.

# %%
#| export
@dataclass(frozen=True)
class Scored:
    "A folder with scores."

    name: str
    folder: Path
    scores: Numbers | dict[str, float | None]
    protocol: dict[str, str | int | float | None]
    details: Details

    @property
    def task(self) -> str:
        "What was trained."
        return str(self.protocol.get("task", "detect"))

    def score(self, name: str) -> float | None:
        "One of the scores."
        found = self.scores if isinstance(self.scores, dict) else dict(self.scores)
        return found.get(name)

    @property
    def weights(self) -> Path:
        "The weights that were scored."
        own = self.folder / "best.pt"
        named = str(self.details.settings.get("weight_path", ""))
        return own if os.path.exists(own) or not named else weights_file(named)

    @property
    def recipe(self) -> dict[str, Any]:
        "The settings that the training's result depends on; nothing where they are not known."
        known = Folder(self.weights.parent).read_json("config.json")
        if not known:
            return {}
        kind = settings_class(known.get("task", "detect"))
        names = [*kind.recipe_names(), "weight_path"]
        return {k: known.get(k, kind.model_fields[k].default) for k in names}

    @property
    def again(self) -> str:
        "What to do to have all recorded that is recorded now."
        if not os.path.exists(self.weights):
            return f"train it again: its weights are not at {self.weights}"
        return f"score it again: {scoring(self.weights, self.folder)}"


# %% [markdown]
# A command that is said can be copied as it is: a path with a space is quoted. Each mistake has its own line:

# %%
#| export
def scoring(
    weights: Path,
    folder: Path,  # of the run, or of its scores
) -> str:
    "The command that scores weights into a folder beside this one."
    paths = [f'"{path}"' if " " in path else path for path in (str(weights), f"{folder}-scores")]
    return f"mshnet test --weight-path {paths[0]} --output-dir {paths[1]}"


# %%
#| export
def read_scored(
    folder: str | Path,  # a run, or what `mshnet test --output-dir` wrote
) -> Scored:
    "A folder with scores; UserError if it is none."
    place = Path(os.path.expanduser(folder))
    if not os.path.isdir(place):  # unlike Path's: False for a name that cannot be
        what = "a file; name its folder" if os.path.exists(place) else "there is no such folder"
        raise UserError(f"{folder}: {what} (a run, such as runs/NAME, or a folder of scores)")
    if not os.path.exists(place / "scores.json"):
        if os.path.exists(place / "best.pt"):
            raise UserError(
                f"{folder}: a run without scores; score it: {scoring(place / 'best.pt', place)}, "
                "and name that folder"
            )
        if os.path.exists(place / "config.json"):
            raise UserError(f"{folder}: a run without scores or weights; train it first")
        raise UserError(f"{folder}: no run (it has neither scores.json nor config.json)")
    said = read_json(place / "scores.json")
    protocol = said.get("protocol") if isinstance(said, dict) else None
    other = isinstance(protocol, dict) and "task" in protocol
    kind: type[OtherScores] | type[ScoresFile] = OtherScores if other else ScoresFile
    file = checked(place / "scores.json", kind)
    path = place / "details.json"
    details = checked(path, Details) if os.path.exists(path) else Details()
    return Scored(one_line(place.resolve().name), place, file.scores, file.protocol, details)


def checked(
    path: Path,
    kind: type[T],
) -> T:
    "What a JSON file holds, if it is of this kind; UserError if not."
    try:
        return kind.model_validate(read_json(path))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "all of it"
        raise UserError(f"{path}: not as a scoring writes it ({where}: {first['msg']})") from None


# %% [markdown]
# For the examples below two tiny runs that differ in their seed:

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
run = read_scored(f"{place.name}/seed0")
assert isinstance(run, Scored) and isinstance(run.details, Details)
test_eq(run.details.images[0].wrong >= 0, True)
for folder in ("no/such", f"{place.name}/seed0/log.jsonl"):
    with expect_fail(UserError):
        read_scored(folder)
(Path(place.name) / "odd.json").write_text('{"scores": 3, "protocol": {}}')
with expect_fail(UserError, contains="not as a scoring writes it (scores"):
    checked(Path(place.name) / "odd.json", ScoresFile)
with expect_fail(ValidationError, contains="different lengths"):
    PixelCurve(threshold=[0.5], precision=[1], recall=[])
kinds = (ImageRow, Target, Calibration, Curves, Numbers, ObjectCurve, Curve, Kept)
assert all(issubclass(kind, BaseModel) for kind in kinds)
run.name, run.scores, run.details.targets[0]

# %% [markdown]
# ## What may be compared
#
# A score is a measurement: of a test set, by a rule. Two are comparable if both are the same: the pixels of the test set (`split_hash` stands for them, so the data set's *name* may differ), their number, the size and the way of the resize, the threshold, the rule of matching. And they are not if one epoch was chosen by looking at the test list and the other was not: the first is then better than it should be. The last epoch, and one chosen on a held-out part, are both honest.
#
# Everything else is what one wants to compare (settings, seed, precision), or worth saying.

# %%
#| export
MUST = ("split_hash", "images", "targets", "size", "resize", "threshold", "rule", "choice")
SAID = ("data", "split", "chosen", "seed", "trained_on", "precision", "device", "mshnet", "torch")


def choice(
    chosen: str,  # the protocol's phrase
) -> str:
    "Whether the test list had a say in which epoch was scored."
    if "TEST list" in chosen:
        return "on the test list"
    honest = chosen.endswith(", the last") or "held-out" in chosen
    return "without the test list" if honest else "not known"


def musts(runs: Sequence[Scored]) -> tuple[str, ...]:
    "What must agree in the protocols; for another task than detection all that it has recorded."
    if all(run.task == "detect" for run in runs):
        return MUST
    names = dict.fromkeys(name for run in runs for name in run.protocol)
    return (*(n for n in names if n not in (*SAID, "trained_on_scored_images")), "choice")


def how_scored(run: Scored, must: Sequence[str] = MUST) -> dict[str, str]:
    "A run's protocol with the kind of its choice, as text."
    known = {k: one_line(str(v)) for k, v in run.protocol.items() if v is not None}
    known["choice"] = choice(known.get("chosen", ""))
    return {name: known.get(name, "not known") for name in (*must, *SAID)}


def differing(
    rows: Sequence[Mapping[str, Any]],  # of each run, with the same names
) -> dict[str, list[str]]:  # of each name: the value of each run
    "Where runs differ."
    values = {name: [one_line(str(row[name])) for row in rows] for name in rows[0]}
    return {name: found for name, found in values.items() if len(set(found)) > 1}


# %%
test_eq(choice("epoch 29, the last"), "without the test list")
test_eq(choice("epoch 21, by iou on the TEST list itself"), "on the test list")
test_eq(
    differing([{"size": 256, "rule": "exact"}, {"size": 320, "rule": "exact"}]),
    {"size": ["256", "320"]},
)
test_eq(musts([run]), MUST)
other = OtherScores(scores={"wer": 0.2}, protocol={"task": "signs", "samples": 10})
other = Scored("other", Path(), other.scores, other.protocol, Details())
test_eq((other.task, other.score("wer"), "samples" in musts([other])), ("signs", 0.2, True))
how_scored(run)


# %% [markdown]
# What is not known cannot be the same, so two scores of unknown test sets are not comparable either.

# %%
#| export
@dataclass(frozen=True)
class Comparison:
    "Runs side by side."

    runs: list[Scored]
    forbids: dict[str, list[str]]  # what makes the scores incomparable: the value of each run
    differs: dict[str, list[str]]  # what else differs

    @property
    def warning(self) -> str:
        "What stands above everything that is shown; empty if all is well."
        names = ", ".join(self.forbids)
        return f"NOT COMPARABLE, shown anyway; different or not known: {names}" if names else ""

    def __str__(self) -> str:
        "All tables."
        return as_text(self)

    def _repr_markdown_(self) -> str:
        "All tables, in a notebook."
        return as_markdown(self)


# %% [markdown]
# The refusal names each field with the value of each run, and the way out.

# %%
#| export
def compare(
    folders: Sequence[str | Path],
    anyway: bool = False,  # compare even what is not comparable
) -> Comparison:
    "Read runs to be compared; UserError if one is none, or if they are not comparable."
    if not folders:
        raise UserError("compare: name one run or more, such as runs/NAME")
    runs = distinct([read_scored(folder) for folder in folders])
    must = musts(runs)
    rows = [how_scored(run, must) for run in runs]
    forbids = differing([{name: row[name] for name in must} for row in rows])
    if len(runs) > 1:
        unknown = [n for n in must if n != "choice" and rows[0][n] == "not known"]
        forbids |= {name: [row[name] for row in rows] for name in unknown}
    found = Comparison(runs, forbids, other_differences(runs, rows))
    if forbids and not anyway:
        said = [f"{k} {' | '.join(short(v) for v in values)}" for k, values in forbids.items()]
        raise UserError(
            f"these scores cannot be compared: {'; '.join(said)} "
            f"({' | '.join(run.name for run in runs)}); score them alike, or write --anyway"
        )
    return found


# %% [markdown]
# The same run twice is a slip of the hand. Two runs of one name are told apart by their paths.

# %%
#| export
def distinct(runs: Sequence[Scored]) -> list[Scored]:
    "The runs, each with a name of its own; UserError if one comes twice."
    for place, count in Counter(run.folder.resolve() for run in runs).items():
        if count > 1:
            raise UserError(f"{place.name}: the same run is named {count} times; name it once")
    names = Counter(run.name for run in runs)
    return [r if names[r.name] == 1 else replace(r, name=str(r.folder)) for r in runs]


def other_differences(
    runs: Sequence[Scored],
    rows: Sequence[Mapping[str, str]],  # from `how_scored`
) -> dict[str, list[str]]:
    "Where runs differ in what does not forbid comparing them: protocol and training settings."
    said = differing([{name: row[name] for name in SAID} for row in rows])
    recipes = [run.recipe for run in runs]
    known = [name for name in recipes[0] if all(name in recipe for recipe in recipes)]
    trained = differing([{name: recipe[name] for name in known} for recipe in recipes])
    known_already = (*MUST, *SAID, "base_size")
    return said | {k: v for k, v in trained.items() if k not in known_already}


def short(text: str, most: int = 30) -> str:
    "A text cut to what fits into a line."
    return text if len(text) <= most else text[: most - 2] + ".."


# %%
both = compare([f"{place.name}/seed0", f"{place.name}/seed1"])
assert isinstance(both, Comparison) and not both.warning
test_eq(both.forbids, {})
with expect_fail(UserError, contains="named 2 times"):
    compare([f"{place.name}/seed0", f"{place.name}/seed1/../seed0"])
other = replace(both.runs[1], protocol={**both.runs[1].protocol, "size": 32})
test_eq(other_differences(both.runs, [how_scored(run) for run in both.runs]), both.differs)
test_eq([r.name for r in distinct([run, replace(other, name="seed0")])][1], str(other.folder))
test_eq(short("x" * 40, 4), "xx..")
both.differs


# %% [markdown]
# ## Small bins need intervals
#
# Of ten tiny targets nine were found: is that 90%? The interval says what rates are compatible with it. Wilson's is right for small numbers too, where the usual one would reach beyond 1, or have no width at all where everything was found. For the mean overlap of the found ones it is Student's. Both are meant for independent targets. Those of one image are not quite independent, so read the intervals as the least there is.

# %%
#| export
def wilson(
    found: int,
    targets: int,
) -> tuple[float, float]:  # NaN without targets
    "The 95% interval of a detection rate."
    if not targets:
        return math.nan, math.nan
    interval = binomtest(found, targets).proportion_ci(method="wilson")
    return float(interval.low), float(interval.high)


def mean_interval(
    values: Sequence[float],  # each 0..1
) -> tuple[float, float, float]:  # mean, low, high; NaN where there are too few
    "A mean with its 95% interval."
    if not len(values):
        return math.nan, math.nan, math.nan
    mean, n = float(np.mean(values)), len(values)
    if n == 1:
        return mean, math.nan, math.nan
    half = float(student.ppf(0.975, n - 1) * np.std(values, ddof=1) / math.sqrt(n))
    return mean, max(mean - half, 0.0), min(mean + half, 1.0)


# %%
test_close(wilson(9, 10), (0.5958, 0.9821), eps=1e-4)
test_eq(wilson(10, 10)[1], 1)
test_close(mean_interval([0.4, 0.5, 0.6]), (0.5, 0.2516, 0.7484), eps=1e-4)
[wilson(n, n) for n in (1, 5, 30)]

# %% [markdown]
# ## By size and by contrast
#
# One rate hides what a detector is bad at. So targets are counted by their area in pixels, and by their signal-to-clutter ratio (see `evaluate` for its formula): below 2 a target hardly differs from its surroundings, above 8 a person sees it at once.

# %%
#| export
AREAS = (1, 10, 26, 65)  # the least area of each bin, in pixels
CONTRASTS = (0, 2, 4, 8)  # the least signal-to-clutter ratio of each bin


@dataclass(frozen=True)
class Bin:
    "The targets of one size or one contrast."

    name: str
    targets: int
    found: int
    rate: tuple[float, float, float]  # part that was found, with its interval
    iou: tuple[float, float, float]  # mean of the found ones, with its interval


def by_bins(
    targets: Sequence[Target],
    of: str,  # "area" or "scr"
) -> list[Bin]:
    "Detection rate, and overlap of the found targets, by size or by contrast."
    starts: Sequence[int] = AREAS if of == "area" else CONTRASTS
    bins = []
    for low, high in zip(starts, (*starts[1:], math.inf), strict=True):
        last = int(high) - 1 if of == "area" and high < math.inf else high
        name = f"{low}+" if high == math.inf else f"{low}-{last}"
        values = [(getattr(target, of), target) for target in targets]
        here = [target for value, target in values if value is not None and low <= value < high]
        ious = [target.iou for target in here if target.iou is not None]
        found = sum(target.matched for target in here)
        rate = (fraction(found, len(here)), *wilson(found, len(here)))
        bins.append(Bin(name, len(here), found, rate, mean_interval(ious)))
    return bins


# %%
areas = by_bins(run.details.targets, "area")
test_eq([b.name for b in areas], ["1-9", "10-25", "26-64", "65+"])
test_eq([b.name for b in by_bins([], "scr")], ["0-2", "2-4", "4-8", "8+"])
test_eq(sum(b.targets for b in areas), len(run.details.targets))
assert isinstance(areas[0], Bin)
areas[0]


# %% [markdown]
# ## Are the probabilities true?
#
# Of the pixels that got a probability of about 0.7, seven in ten should be a target's. The *expected calibration error* is the mean gap between what was said and what is, over the tenths of the probability, each weighted by its pixels (Guo et al., *On Calibration of Modern Neural Networks*, ICML 2017).
#
# Mind that nearly all pixels are background and are said to be: 99.9% of them lie in the lowest tenth, where the gap is tiny, so the error over all pixels is tiny for any detector, one that finds nothing included. Therefore two more numbers. The error over the pixels of probability 0.1 and more says how far to trust a probability that draws attention. And the target pixels that the probabilities add up to, divided by those that there are: below 1, the network says too little on the whole. No interval is given: the pixels of one target are right or wrong together.

# %%
#| export
@dataclass(frozen=True)
class Trust:
    "How true probabilities are."

    all_pixels: float  # expected calibration error
    upper: float  # the same of the pixels of probability 0.1 and more; NaN if there are none
    said: float  # target pixels that the probabilities add up to, per true one; NaN: none


def calibration_error(
    pixels: np.ndarray,
    target: np.ndarray,
    mean: np.ndarray,
) -> float:  # 0..1; NaN without pixels
    "The gap between what was said and what is, weighted by pixels."
    return fraction(float(np.abs(target - pixels * mean).sum()), float(pixels.sum()))


def trust(curve: Calibration) -> Trust:
    "How far the probabilities of a scoring can be trusted."
    pixels, target = np.array(curve.pixels), np.array(curve.target)
    mean = np.array([value or 0.0 for value in curve.mean])
    return Trust(
        calibration_error(pixels, target, mean),
        calibration_error(pixels[1:], target[1:], mean[1:]),
        fraction(float((pixels * mean).sum()), float(target.sum())),
    )


# %% [markdown]
# A detector that calls everything background is well calibrated by the first number, and given away by the others:

# %%
blind = Calibration(pixels=[10**6] + [0] * 9, target=[100] + [0] * 9, mean=[0.0] + [None] * 9)
test_eq((trust(blind).all_pixels, trust(blind).said), (1e-4, 0))
test_eq(calibration_error(np.array([10]), np.array([7]), np.array([0.7])), 0)
assert isinstance(trust(blind), Trust)
trust(run.details.curves.calibration)

# %% [markdown]
# ## Why an image is bad
#
# Every wrong pixel has an owner, a target or the clutter (see `evaluate`). What became of the target gives the pixel's cause:
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
# They are rules about the picture, not about the network: that a missed target is dim does not prove that it was missed for that.

# %%
#| export
SMALL, DIM = AREAS[1] - 1, CONTRASTS[1]  # pixels at most; ratio below
CAUSES = (
    *("missed: small", "missed: dim", "missed: small and dim", "missed: other"),
    *("merged", "fragmented", "off centre", "clutter", "outline"),
)


def cause_of(target: Target) -> str:
    "Why the wrong pixels of a target are wrong."
    if not target.matched and target.merged:
        return "merged"
    if target.parts > 1:
        return "fragmented"
    if target.matched:
        return "outline"
    if target.parts:
        return "off centre"
    small, dim = target.area <= SMALL, target.scr is not None and target.scr < DIM
    kinds = [word for word, true in (("small", small), ("dim", dim)) if true]
    return f"missed: {' and '.join(kinds) or 'other'}"


# %% [markdown]
# The main cause of an image is the one with the most wrong pixels. Outlines come last: they are wrong everywhere by a pixel or two, and would hide a target that is missing.

# %%
#| export
@dataclass(frozen=True)
class Verdict:
    "What is wrong with an image."

    image: ImageRow
    pixels: dict[str, int]  # wrong ones by cause
    times: dict[str, int]  # targets, or predictions in the clutter, by cause

    @property
    def causes(self) -> list[str]:
        "From the main one down; an outline is named where nothing else is."
        graver = sorted((-n, k) for k, n in self.pixels.items() if k != "outline")
        return [k for _, k in graver] or (["outline"] if self.pixels else ["nothing wrong"])


def verdicts(
    details: Details,  # with records of its targets
) -> list[Verdict]:  # from the worst IoU to the best
    "Why the images of a scoring are as bad as they are."
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
        found.append(Verdict(image, dict(pixels), dict(times)))
    return sorted(found, key=lambda verdict: (verdict.image.iou, -verdict.image.wrong))


# %%
found = verdicts(run.details)
test_eq([sum(v.pixels.values()) for v in found], [v.image.wrong for v in found])
assert isinstance(found[0], Verdict) and {v.causes[0] for v in found} <= {*CAUSES, "nothing wrong"}
example = run.details.targets[0].model_copy(
    update={"matched": False, "parts": 0, "area": 9, "scr": 1}
)
test_eq(cause_of(example), "missed: small and dim")
[(v.image.name, round(v.image.iou, 2), v.causes) for v in found[:3]]


# %% [markdown]
# Over all images: how often, how many wrong pixels, and in how many images it is the main cause.

# %%
#| export
def causes(
    found: Sequence[Verdict],
) -> list[tuple[str, int, int, int]]:  # cause, times, wrong pixels, images it is the main one of
    "The causes that were found, in the order of their definition."
    main = Counter(verdict.causes[0] for verdict in found)
    rows = []
    for cause in CAUSES:
        times = sum(verdict.times.get(cause, 0) for verdict in found)
        pixels = sum(verdict.pixels.get(cause, 0) for verdict in found)
        if times:
            rows.append((cause, times, pixels, main[cause]))
    return rows


# %%
test_eq(sum(row[2] for row in causes(found)), sum(v.image.wrong for v in found))
causes(found)

# %% [markdown]
# ## Runs that differ in their seed alone
#
# One run is one draw. Of several that differ in nothing but the seed (settings, training list, precision and versions are the same) the mean and the standard deviation say what to expect of the next. A difference between two recipes that is smaller than that deviation is not yet one.

# %%
#| export
SCORES = (("iou", "IoU"), ("niou", "nIoU"), ("f1", "F1"), ("pd", "Pd"), ("fa", "Fa"))


def seed_groups(
    runs: Sequence[Scored],
) -> list[list[Scored]]:  # each of two runs or more
    "Runs that differ in their seed and in nothing else that matters."
    groups, must = defaultdict(list), musts(runs)
    for run in runs:
        how, recipe = how_scored(run, must), run.recipe
        same = [how[k] for k in (*must, "data", "trained_on", "precision", "mshnet", "torch")]
        if recipe and "not known" not in (how["seed"], how["trained_on"]):
            groups[str([same, *(v for k, v in recipe.items() if k != "seed")])].append(run)
    many = [group for group in groups.values() if len(group) > 1]
    return [g for g in many if len({run.protocol["seed"] for run in g}) == len(g)]


def spread(
    group: Sequence[Scored],
    score: str,  # such as "iou"
) -> tuple[float, float]:  # NaN if a run has no such score
    "Mean and standard deviation (of a sample) of a score."
    found = [run.score(score) for run in group]
    values = [value for value in found if value is not None]
    if len(values) < len(found):
        return math.nan, math.nan
    return float(np.mean(values)), float(np.std(values, ddof=1))


# %%
[group] = seed_groups(both.runs)
test_eq([run.name for run in group], ["seed0", "seed1"])
test_eq(seed_groups([run, run]), [])
mean, deviation = spread(group, "iou")
f"IoU {mean:.3f} \u00b1 {deviation:.3f} (n = {len(group)})"


# %% [markdown]
# ## The table
#
# One form for the terminal and for a document. Numbers that do not exist are a dash.

# %%
#| export
@dataclass(frozen=True)
class Table:
    "A table with a title, and what is to be said of it."

    title: str
    head: list[str]
    rows: list[list[str]]
    note: str = ""

    def __str__(self) -> str:
        "For the terminal."
        lines = [self.head, *self.rows]
        wide = [max(len(line[i]) for line in lines) for i in range(len(self.head))]
        text = ["  ".join(c.ljust(w) for c, w in zip(line, wide, strict=True)) for line in lines]
        said = [self.title, *(line.rstrip() for line in text if self.rows), self.note]
        return "\n".join(line for line in said if line)

    def markdown(self) -> str:
        "For a document."
        rows = [self.head, ["---"] * len(self.head), *self.rows] if self.rows else []
        lines = ["| " + " | ".join(c.replace("|", "/") for c in row) + " |" for row in rows]
        return "\n\n".join(x for x in (f"## {self.title}", "\n".join(lines), self.note) if x)


# %% [markdown]
# The first: scores, and below them the means over seeds.

# %%
#| export
def number(
    value: float | None,
    digits: int = 2,
) -> str:
    "A number, or a dash."
    return "-" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def score_table(comparison: Comparison) -> Table:
    "The scores of each run, and the means over seeds."
    names, digits = dict(SCORES), {"fa": 1}
    if any(run.task != "detect" for run in comparison.runs):
        names = {name: name for run in comparison.runs for name in dict(run.scores)}
        digits = dict.fromkeys(names, 3)
    rows = [
        [run.name, *(number(run.score(name), digits.get(name, 2)) for name in names)]
        for run in comparison.runs
    ]
    for group in seed_groups(comparison.runs):
        both = [(*spread(group, name), digits.get(name, 3)) for name in names]
        cells = [f"{number(m, d)} \u00b1 {number(s, d)}" for m, s, d in both]
        rows.append([f"mean of n = {len(group)} seeds like {group[0].name}", *cells])
    note = "\u00b1: standard deviation of a sample" if len(rows) > len(comparison.runs) else ""
    return Table("Scores", ["run", *names.values()], rows, note)


# %%
assert isinstance(score_table(both), Table)
test_eq((number(None), number(math.nan), number(0.5)), ("-", "-", "0.50"))
assert Table("Title", ["a|b"], [["1"]]).markdown().startswith("## Title\n\n| a/b |")
print(score_table(both))


# %% [markdown]
# The protocols: what is the same in all is said once, and what differs has a column. A `!` marks a difference that forbids comparing.

# %%
#| export
def protocol_table(comparison: Comparison) -> Table:
    "How the scores came about."
    runs = comparison.runs
    how = how_scored(runs[0], musts(runs))
    columns = {f"{k} !": v for k, v in comparison.forbids.items()} | comparison.differs
    same = [
        f"{name} {value}"
        for name, value in how.items()
        if name not in comparison.forbids | comparison.differs and name != "choice"
    ]
    rows = [
        [run.name, *(short(values[i], 44) for values in columns.values())]
        for i, run in enumerate(runs)
    ]
    note = f"{'the same in all' if len(runs) > 1 else 'protocol'}: {'; '.join(same)}"
    return Table("Protocol", ["run", *columns], rows if columns else [], note)


def with_interval(
    found: tuple[float, float, float],  # a value and its interval
) -> tuple[str, str]:
    "A value and its interval, as shown."
    value, low, high = found
    return number(value), "-" if math.isnan(low) else f"{number(low)}-{number(high)}"


def bin_table(comparison: Comparison, of: str) -> Table:
    "Detection by size or contrast."
    rows = []
    for run in comparison.runs:
        for b in by_bins(run.details.targets or [], of) if run.details.targets else []:
            cells = [b.name, str(b.targets), str(b.found)]
            rows.append([run.name, *cells, *with_interval(b.rate), *with_interval(b.iou)])
    what = {"area": "area, pixels", "scr": "contrast, SCR"}[of]
    head = ["run", what, "targets", "found", "Pd", "95%", "IoU of the found", "95%"]
    return Table(f"By {what.split(',')[0]}", head, rows)


# %% [markdown]
# Then how far the probabilities can be trusted, and the causes:

# %%
#| export
def trust_table(comparison: Comparison) -> Table:
    "How true the probabilities are."
    rows = []
    for run in comparison.runs:
        if run.details.curves and run.details.curves.calibration:
            t = trust(run.details.curves.calibration)
            rows.append([run.name, f"{t.all_pixels:.5f}", number(t.upper, 3), number(t.said)])
    head = ["run", "error, all pixels", "error, probability 0.1 and more", "said / true pixels"]
    note = "Nearly all pixels are background, which makes the first error small for any detector."
    return Table("Calibration", head, rows, note if rows else "")


def cause_table(comparison: Comparison) -> Table:
    "What went wrong."
    rows = []
    for run in comparison.runs:
        found = causes(verdicts(run.details)) if run.details.targets is not None else []
        total = sum(pixels for _, _, pixels, _ in found)
        for cause, times, pixels, images in found:
            share = f"{number(100 * fraction(pixels, total), 0)}%"
            rows.append([run.name, cause, str(times), str(pixels), share, str(images)])
    head = ["run", "cause", "times", "wrong pixels", "share", "main cause of images"]
    return Table("What went wrong", head, rows)


# %%
test_eq(with_interval((0.5, 0.25, 0.75)), ("0.50", "0.25-0.75"))
test_eq(with_interval((0.5, math.nan, math.nan)), ("0.50", "-"))
for make in (protocol_table, trust_table, cause_table):
    print(make(both), end="\n\n")
print(bin_table(both, "area"))


# %% [markdown]
# All of it as text, as a document and as data. A run from before targets were recorded has its scores and its curves, and a line that says how to get the rest.

# %%
#| export
def tables(comparison: Comparison) -> list[Table]:
    "All tables that have something to say."
    both = [score_table(comparison), protocol_table(comparison)]
    if any(run.task != "detect" for run in comparison.runs):
        return both
    all_of_them = [
        *both,
        *(bin_table(comparison, of) for of in ("area", "scr")),
        *(trust_table(comparison), cause_table(comparison)),
    ]
    return [table for table in all_of_them if table.rows or table.note]


def remarks(comparison: Comparison) -> list[str]:
    "What is missing, and how to get it."
    return [
        f"{run.name}: scored before targets were recorded one by one; {run.again}"
        for run in comparison.runs
        if run.details.targets is None and run.task == "detect"
    ]


def as_text(comparison: Comparison) -> str:
    "For the terminal."
    parts = [comparison.warning, *map(str, tables(comparison)), "\n".join(remarks(comparison))]
    return "\n\n".join(part for part in parts if part)


def as_markdown(comparison: Comparison) -> str:
    "For a document."
    warning = f"**{comparison.warning}**" if comparison.warning else ""
    shown = [table.markdown() for table in tables(comparison)]
    said = ["# Comparison", warning, *shown, *remarks(comparison)]
    return "\n\n".join(part for part in said if part) + "\n"


# %%
#| export
def as_json(comparison: Comparison) -> str:
    "For another program: the same tables, with the scores and protocols in full."
    runs = [
        {"name": run.name, "scores": dict(run.scores), "protocol": run.protocol}
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
assert scoring(Path("a b/best.pt"), Path("c")).split(" --")[1] == 'weight-path "a b/best.pt"'
assert "score it again: mshnet test" in as_text(alone) and remarks(both) == []
assert "By area" not in [table.title for table in tables(alone)]
warned = replace(both, forbids={"size": ["64", "32"]})
assert "**NOT COMPARABLE" in as_markdown(warned) and "size !" in as_text(warned)
test_eq(json.loads(as_json(warned))["comparable"], False)
alone

# %% [markdown]
# ## The picture
#
# Colours are those of Okabe and Ito without their yellow, which white paper swallows. Line and sign differ too, so a print in grey can be read.

# %%
#| export
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9")
LINES, SIGNS = ("-", "--", ":", "-."), "osD^vP*"


def style(
    place: int,  # of a run among those shown
) -> dict[str, Any]:
    "Colour, line and sign of a run."
    own = {"color": COLORS[place % 7], "marker": SIGNS[place % 7]}
    return {**own, "linestyle": LINES[place % 4]}


# %% [markdown]
# A curve bears its run's sign once, at the threshold of the scores.

# %%
#| export
def draw_curves(
    axes: Axes,
    runs: Sequence[Scored],
    of: str,  # "objects": Pd against Fa; "pixels": precision against recall
) -> None:
    "A curve for each run, with its sign at probability 0.5."
    x, y = ("fa", "pd") if of == "objects" else ("recall", "precision")
    for place, run in enumerate(runs):
        if not run.details.curves:
            continue
        curve: Any = getattr(run.details.curves, of)
        across = np.array(getattr(curve, x))
        up = np.array([math.nan if v is None else v for v in getattr(curve, y)])
        some = np.array(curve.threshold) > 0  # at 0 everything is predicted
        if of == "pixels":
            up[across == 0] = math.nan  # nothing is predicted
        across, up = across[some], up[some]
        look = style(place)
        dot = int(np.argmin(np.abs(np.array(curve.threshold)[some] - 0.5)))
        axes.plot(across, up, look["linestyle"], color=look["color"], linewidth=1.4)
        axes.plot(across[dot], up[dot], look["marker"], color=look["color"], markersize=8)
    axes.set(ylim=(-0.03, 1.03), xlim=(-0.03, 1.03))
    if not any(run.details.curves for run in runs):
        axes.text(0.5, 0.5, "no curves", ha="center", transform=axes.transAxes)
    axes.grid(alpha=0.3, which="both")
    if of == "objects":
        axes.set_xscale("symlog", linthresh=1)
        seen = [fa for run in runs if run.details.curves for fa in run.details.curves.objects.fa]
        axes.set_xlim(min([*seen, 100]) / 3, 3 * max([*seen, 100]))
        axes.set(xlabel="Fa, false pixels per million", ylabel="Pd, part of targets found")
    else:
        axes.set(xlabel="recall of target pixels", ylabel="precision")


# %%
figure = Figure(figsize=(8, 3.2), layout="constrained")
for axes, of in zip(figure.subplots(1, 2), ("objects", "pixels"), strict=True):
    draw_curves(axes, both.runs, of)
test_eq(len({tuple(style(i).values()) for i in range(28)}), 28)
figure


# %% [markdown]
# Rates by size or contrast stand side by side with their intervals; the number of targets stands below each bin. Sets that differ have different numbers, and then it is left to the table.

# %%
#| export
def draw_bins(
    axes: Axes,
    runs: Sequence[Scored],
    of: str,  # "area" or "scr"
    what: str = "rate",  # or "iou": the overlap of the found ones
) -> None:
    "Detection rate, or overlap, by size or contrast."
    known = [(i, by_bins(r.details.targets, of)) for i, r in enumerate(runs) if r.details.targets]
    for turn, (place, bins) in enumerate(known):
        shift = (turn - (len(known) - 1) / 2) * min(0.16, 0.7 / len(known))
        mean, low, high = (np.array([getattr(b, what)[k] for b in bins]) for k in range(3))
        reach = np.nan_to_num(np.stack([mean - low, high - mean]).clip(0))
        look = style(place)
        axes.errorbar(
            np.arange(len(bins)) + shift,
            mean,
            reach,
            fmt=look["marker"],
            color=look["color"],
            capsize=3,
            markersize=6,
        )
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


# %%
figure = Figure(figsize=(8, 3.2), layout="constrained")
for axes, what in zip(figure.subplots(1, 2), ("rate", "iou"), strict=True):
    draw_bins(axes, both.runs, "area", what)
figure


# %% [markdown]
# The reliability diagram has two storeys: below, on a logarithmic scale, how many pixels each point above stands for.

# %%
#| export
def draw_trust(
    above: Axes,
    below: Axes,
    runs: Sequence[Scored],
) -> None:
    "What was said against what is, and of how many pixels."
    above.plot([0, 1], [0, 1], color="0.7", linewidth=1)
    for place, run in enumerate(runs):
        curve = run.details.curves and run.details.curves.calibration
        if not curve:
            continue
        pixels, target = np.array(curve.pixels), np.array(curve.target)
        some, look = pixels > 0, style(place)
        mean = np.array([math.nan if value is None else value for value in curve.mean])
        above.plot(mean[some], target[some] / pixels[some], **look, markersize=5, linewidth=1.2)
        middle = np.arange(10) / 10 + 0.05
        below.plot(middle[some], pixels[some], **look, markersize=4, linewidth=0.8)
    above.set(ylim=(-0.03, 1.03), ylabel="part that is a target's")
    below.set(xlabel="probability of a pixel", ylabel="pixels", xlim=(-0.03, 1.03), yscale="log")
    below.set_ylim(bottom=0.5)
    above.tick_params(labelbottom=False)
    for axes in (above, below):
        axes.grid(alpha=0.3)


# %%
figure = Figure(figsize=(4, 4), layout="constrained")
draw_trust(*figure.subplots(2, 1, sharex=True, height_ratios=[3, 1]), both.runs)
figure

# %% [markdown]
# All together, with the scores and the protocols below, so that the picture can be passed on alone. A curve is drawn without its sign, but for one; so the legend gets lines of its own.

# %%
#| export
WIDE = 180  # characters in a line below the picture


def draw(comparison: Comparison) -> Figure:
    "Curves, rates by size and contrast, calibration, scores and protocols."
    runs = comparison.runs
    text = "\n\n".join(str(make(comparison)) for make in (score_table, protocol_table))
    rows = [[row] if "  " in row else textwrap.wrap(row, WIDE) for row in text.splitlines()]
    lines = [line for row in rows for line in row or [""]]
    figure = Figure(figsize=(13, 8.6 + 0.15 * len(lines)), layout="constrained")
    halves: Any = figure.subfigures(2, 1, height_ratios=[8.2, 0.4 + 0.15 * len(lines)])
    pictures, words = halves
    grid = pictures.add_gridspec(2, 3)
    draw_curves(pictures.add_subplot(grid[0, 0]), runs, "objects")
    draw_curves(pictures.add_subplot(grid[0, 1]), runs, "pixels")
    storeys = grid[0, 2].subgridspec(2, 1, height_ratios=[3, 1])
    above = pictures.add_subplot(storeys[0])
    draw_trust(above, pictures.add_subplot(storeys[1], sharex=above), runs)
    draw_bins(pictures.add_subplot(grid[1, 0]), runs, "area")
    draw_bins(pictures.add_subplot(grid[1, 1]), runs, "scr")
    draw_bins(pictures.add_subplot(grid[1, 2]), runs, "area", "iou")
    marks = [
        figure.axes[0].plot([], [], **style(i), label=run.name)[0] for i, run in enumerate(runs)
    ]
    pictures.legend(handles=marks, loc="outside upper center", ncols=min(len(runs), 4))
    if comparison.warning:
        figure.suptitle(comparison.warning, color="#D55E00", weight="bold")
    size = 8 * min(1, WIDE / max(map(len, lines)))
    words.text(0.01, 0.98, "\n".join(lines), family="monospace", fontsize=size, va="top")
    return figure


# %%
draw(both)


# %% [markdown]
# ## The worst images
#
# In the order of their IoU, each with its cause: what the network saw, what it thought, and how that is judged. The weights predict these few images again, on the CPU; so a pixel on the edge may fall otherwise than when they were scored.

# %%
#| export
def worst(
    run: Scored,
    count: int = 6,
) -> Figure:
    "The worst images of a run, with signs and causes."
    if run.details.targets is None:
        raise UserError(remarks(Comparison([run], {}, {}))[0])
    shown = verdicts(run.details)[:count]
    config = scored_with(run)
    parts = splits(config, ["test"])
    names = [verdict.image.name for verdict in shown]
    same = parts["test"].hash == run.protocol.get("split_hash")
    if not same or not {*names} <= {*parts["test"].names}:
        raise UserError(f"{run.name}: the test images are no longer those that were scored")
    images, prob, mask = predict_some(run.folder, parts["test"], names, config, run.weights)
    figure = Figure(figsize=(2.4 * len(shown), 7.9), layout="compressed")
    grid = figure.subplots(3, len(shown), squeeze=False)
    for i, verdict in enumerate(shown):
        row = verdict.image
        panel(grid[0, i], images[i], f"{short(row.name, 26)}\nIoU {row.iou:.2f}")
        panel(grid[1, i], prob[i], "probability", vmin=0, vmax=1)
        said = [f"{row.matched} of {row.targets} found", *verdict.causes[:2]]
        panel(grid[2, i], images[i], "\n".join(said))
        judge(grid[2, i], prob[i] > 0.5, mask[i], config.rule)
    signs(figure)
    return figure


def scored_with(run: Scored) -> Config:
    "The settings of a scoring."
    known = run.details.settings or Folder(run.folder).read_json("config.json")
    found: Config = settings_from(known)
    return found


# %%
test_eq(scored_with(run).base_size, 64)
worst(run, 4)

# %% [markdown]
# ## Kept in files
#
# The ending of the output's name says what is written: a picture, a document or data. A name without an ending is a folder and gets all three, and the worst images of each run besides. Those need weights and data; where they are gone, a line says so and the rest is still written.

# %%
#| export
WAYS = {".md": as_markdown, ".json": as_json}
OF_A_RUN = ("scores.json", "details.json", "config.json", "env.json", "status.json")


def output_place(
    output: str,  # FILE.png, FILE.md, FILE.json, or a folder
) -> Path:
    "Where a comparison is written; UserError, before any work, if that cannot be."
    path = Path(os.path.expanduser(output))
    if os.path.isdir(path) or not path.suffix:
        return path
    if path.suffix not in (".png", *WAYS):
        raise UserError(
            f"output={output!r}: write a name ending in .png, .md or .json, or a folder"
        )
    if path.name in OF_A_RUN:
        raise UserError(f"output={output!r}: a run has a file of that name; write another")
    return path


def keep_figure(
    figure: Figure,
    path: Path,
) -> Picture:
    "Save a figure."
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=110, bbox_inches="tight")
    with cannot_be_written(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, data.getvalue())
    return Picture(path)


# %%
#| export
def keep_comparison(
    comparison: Comparison,
    place: Path,  # from `output_place`
    count: int = 6,  # of the worst images
) -> list[str]:  # what was written, and what could not be
    "Write a comparison."
    detected = all(run.task == "detect" for run in comparison.runs)
    if place.suffix == ".png" and not os.path.isdir(place):
        if not detected:
            raise UserError(f"output={str(place)!r}: only detections are drawn; write FILE.md")
        return [str(keep_figure(draw(comparison), place).path)]
    if place.suffix in WAYS and not os.path.isdir(place):
        with cannot_be_written(place):
            place.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(place, WAYS[place.suffix](comparison))
        return [str(place)]
    said = []
    for ending in (".md", ".json", ".png") if detected else (".md", ".json"):
        said += keep_comparison(comparison, place / f"compare{ending}")
    for i, run in enumerate(comparison.runs if detected else ()):
        path = place / f"worst-{i + 1}-{run.folder.resolve().name}.png"
        try:
            said.append(str(keep_figure(worst(run, count), path).path))
        except UserError as error:
            why = str(error).removeprefix(f"{run.name}: ")
            said.append(f"no picture of the worst images of {run.name}: {why}")
    return said


# %%
kept = keep_comparison(both, output_place(f"{place.name}/compared"), 2)
test_eq(
    [Path(line).name for line in kept][:4],
    ["compare.md", "compare.json", "compare.png", "worst-1-seed0.png"],
)
assert isinstance(keep_figure(figure, Path(place.name) / "x.png"), Picture)
for name in ("table.pdf", "scores.json"):
    with expect_fail(UserError, contains="write"):
        output_place(name)
place.cleanup()
