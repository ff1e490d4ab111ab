# %% [markdown]
# # Compare runs
#
# > Several runs in one table: whether they are comparable, and which is better at what.
#
# Two runs score an IoU of 0.62 and 0.65. Is the second better? Perhaps it was scored on different images, or its epoch was chosen on the test list, or the seed alone explains the difference. And better at what: small targets, or outlines?

# %%
#| export
#| default_exp compare
import math
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mshnet.core import UserError, one_line, quoted, read_record, settings_from
from mshnet.files import digest
from mshnet.metrics import fraction
from mshnet.show import Details, Record, TargetRecord, read_details, shortened
from mshnet.task import wilson
from mshnet.weights import settings_of_weights, weights_file

# %% [markdown]
# ## Two runs in one table
#
# `mshnet compare RUN RUN` prints these tables. The runs are on synthetic scenes, and the repository keeps them: the preset `quick`, and the same recipe with five epochs instead of nine.

# %%
from mshnet.compare import Comparison, compare

kept = Path("../results")
both: Comparison = compare([kept / "scenes-quick", kept / "scenes-five-epochs"])
both

# %% [markdown]
# Read the second table first. The runs differ only in their epochs, and both keep the last one, so the scores are comparable. Then read the IoU. The two are 0.030 apart, four times the standard deviation over seeds that we find below (0.007). So nine epochs give better outlines. They do not find more targets: 126 and 127 of the same 129 targets, and one target proves nothing. `trade_offs("RUN", "RUN")` of [figures](50_show.ipynb) draws the curves of both.
#
# ## What may be compared
#
# A score measures one test set by one rule. Two scores are comparable if all of these agree:
#
# - the test images, their masks and their number. `split_hash` is a hash of their names and pixels, so the *name* of the data set may differ;
# - the size and the method of the resize, the mean over mirrored images (`--mirrored`), the threshold, and the matching rule;
# - whether the epoch was chosen on the test list. Such a choice makes a score better than it should be. The last epoch, and one chosen on a held-out part, are both honest.
#
# Unknown is not equal to unknown: scores of two unknown test sets are not comparable. All other differences (settings, seed, precision) are the object of the comparison, or deserve a column. Here is a refusal, of runs on different data:

# %%
try:
    compare([kept / "scenes-quick", kept / "nuaa-sirst-paper"])
except UserError as error:
    print(error)

# %% [markdown]
# ## The machinery: what is compared
#
# A folder with scores is a run, or an output of `mshnet test --output-dir`. It has the scores, their protocol, and a record of every image and every target. The settings of the training are in the run's `config.json`, or beside the weights if the scoring has a separate folder.

# %%
#| export
SCORES = {"iou": "IoU", "niou": "nIoU", "f1": "F1", "pd": "Pd", "fa": "Fa"}
UNKNOWN = "not known"


class _ScoresFile(Record):
    "scores.json; the protocol of a task other than detection names it."

    scores: dict[str, float | str | None]  # None: undefined, such as Pd without targets
    protocol: dict[str, bool | str | int | float | list[int] | None]


@dataclass(frozen=True)
class Scored:
    "A folder with scores."

    name: str
    folder: Path
    scores: dict[str, float | None]
    protocol: dict[str, bool | str | int | float | list[int] | None]
    details: Details

    @property
    def task(self) -> str:
        "The task of the training."
        return str(self.protocol.get("task", "detect"))

    @property
    def how(self) -> dict[str, str]:
        "The protocol as text, with the kind of choice of the epoch."
        known = {k: one_line(str(v)) for k, v in self.protocol.items() if v is not None}
        first = {"split_hash": UNKNOWN}  # even if it was not recorded
        if self.task == "detect":  # earlier runs recorded no mirrors, and another word
            first["mirrored"] = "False"
            known["resize"] = known.get("resize", UNKNOWN).replace("squashed", "resized")
        return first | known | {"choice": choice(known.get("chosen", ""))}

    @cached_property
    def recipe(self) -> dict[str, Any]:
        "The settings that change the result of the training; empty if they are not known."
        weights, named = self.folder / "best.pt", str(self.details.settings.get("weight_path", ""))
        if named and not any(map(os.path.exists, (weights, self.folder / "config.json"))):
            weights = weights_file(named, self.task)
            held = self.details.settings.get("weights")
            if os.path.isfile(weights) and held != digest(weights):
                return {}  # other weights lie there now, or a training began with them
        if not (known := settings_of_weights(weights)):
            return {}
        config = settings_from(known)
        return {**config.recipe(), "weight_path": config.weight_path}

    @property
    def finished(self) -> bool:
        "Whether its training has ended; a folder of scores alone has no record of it."
        return read_record(self.folder / "status.json").get("state", "finished") == "finished"


def choice(chosen: str) -> str:
    "Whether the epoch was chosen on the test list, by the protocol's text."
    if chosen.endswith("on the TEST list itself"):
        return "on the test list"
    honest = ", the last" in chosen or chosen.endswith("on a held-out part of the training list")
    return "without the test list" if honest else UNKNOWN


def read_scored(folder: str | os.PathLike[str]) -> Scored:
    "Read a run, or what `mshnet test --output-dir` wrote; UserError for any other folder."
    place = Path(os.path.expanduser(folder))
    if not os.path.isdir(place):  # unlike Path's: False for an impossible name
        what = "there is no such folder; name a run, such as runs/NAME, or a folder of scores"
        raise UserError(f"{folder}: {what}")
    if not os.path.exists(place / "scores.json"):
        weights, output = quoted(place / "best.pt"), quoted(f"{place}-scores")
        test = f"mshnet test --weight-path {weights} --output-dir {output}"
        remedy = f"name a run that is finished, or score this one ({test}) and name that folder"
        raise UserError(f"{place}: has no scores.json; {remedy}")
    file = _ScoresFile.read(place / "scores.json")
    names = file.scores if "task" in file.protocol else SCORES
    held = [file.scores.get(name) for name in SCORES if names is SCORES]
    if any(isinstance(v, str) or (v is not None and v < 0) for v in held):
        raise UserError(f"{place / 'scores.json'}: no valid scores; run `mshnet test` again")
    scores = {k: v for k in names if not isinstance(v := file.scores.get(k), str)}
    return Scored(one_line(place.resolve().name), place, scores, file.protocol, read_details(place))


# %%
run: Scored = read_scored(kept / "scenes-quick")
print(run.task, f"IoU {run.scores['iou']:.3f}, an epoch chosen {run.how['choice']}")
print("of another run:", choice("epoch 21, by iou on the TEST list itself"))

# %%
#| export
_SEEN = ("bin_ms", "window_ms", "denoise_ms")  # how a network of events sees the same files
MAY: tuple[str, ...] = ("data", "split", "chosen", "seed", "trained_on", "trained_on_scored_images")
MAY += ("precision", "device", "mshnet", "torch", "class", *_SEEN)
MAY += ("vocabulary", "vocabulary_hash", "outside_vocabulary")  # of held-out sentences: by seed


def _must(runs: Sequence[Scored]) -> list[str]:
    "The recorded fields that must agree."
    names = dict.fromkeys(name for run in runs for name in run.how)
    return [name for name in names if name not in MAY]


def _differing(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, list[str]]:
    "The fields in which runs differ, with the value of each run."
    values = {name: [one_line(str(row.get(name, UNKNOWN))) for row in rows] for name in names}
    return {name: found for name, found in values.items() if len(set(found)) > 1}


@dataclass(frozen=True)
class Comparison:
    "Runs side by side."

    runs: list[Scored]
    differs: dict[str, list[str]]  # the fields that differ: the value of each run

    def __str__(self) -> str:
        "All tables that are not empty, as Markdown."
        tables = [_score_table(self.runs), _protocol_table(self)]
        if all(run.task == "detect" for run in self.runs):
            tables.append(_size_table(self.runs))
        return "\n\n".join(["# Comparison", *filter(None, tables)])

    _repr_markdown_ = __str__


def compare(folders: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> Comparison:
    "Read runs and compare them; UserError if they are not comparable."
    folders = [folders] if isinstance(folders, str | os.PathLike) else folders
    if not folders:
        raise UserError("compare: name one run or more, such as runs/NAME")
    runs = [read_scored(folder) for folder in folders]
    if len({run.name for run in runs}) < len(runs):
        runs = [replace(run, name=one_line(str(run.folder))) for run in runs]
    must, rows, recipes = _must(runs), [run.how for run in runs], [run.recipe for run in runs]
    forbids = _differing(rows, must)
    if len(runs) > 1 and rows[0]["split_hash"] == UNKNOWN:  # which is not equal to unknown
        forbids["split_hash"] = [row["split_hash"] for row in rows]
    if forbids:
        values = [f"{k} {' | '.join(shortened(v, 30) for v in x)}" for k, x in forbids.items()]
        what = f"these scores cannot be compared: {'; '.join(values)}"
        todo = "score each by `mshnet test RUN --output-dir DIR` and equal flags; compare the DIRs"
        raise UserError(f"{what} ({' | '.join(run.name for run in runs)}); {todo}")
    shared = set.intersection(*map(set, recipes)) - {*must, *MAY}
    trained = [name for name in recipes[0] if name in shared]
    return Comparison(runs, _differing(rows, MAY) | _differing(recipes, trained))


# %% [markdown]
# ### Small counts need intervals
#
# A single Pd hides where a detector is weak, so we count targets by their area in pixels. But if nine of ten tiny targets were found, is that 90%? [Wilson's interval](36_task.ipynb) contains the rates that are compatible with the count. It assumes independent targets. The targets of one image are not quite independent, so the true intervals are wider.
#
# One run is one random draw. If several runs differ only in the seed (settings, training list, precision, versions and the last epoch are equal), their mean and standard deviation predict the next one. A difference of two runs varies 1.4 times as much as one run. So two single runs that differ by less than about three standard deviations of one run prove nothing.

# %%
#| export
SIZES = {"1-9": (1, 9), "10-25": (10, 25), "26-64": (26, 64), "65+": (65, math.inf)}  # pixels
SIZES["all"] = (0, math.inf)


def by_size(targets: Sequence[TargetRecord]) -> Iterator[tuple[str, int, int, float, Any]]:
    "By the area of a target: the name of the size, targets, found ones, Pd, its 95% interval."
    for name, (least, most) in SIZES.items():
        here = [target.matched for target in targets if least <= target.area <= most]
        count = sum(here), len(here)
        yield name, count[1], count[0], fraction(*count), wilson(*count)


def seed_groups(runs: Sequence[Scored]) -> list[list[Scored]]:  # each of two runs or more
    "Groups of runs that differ only in their seed."
    groups, must = defaultdict(list), _must(runs)
    for run in runs:
        how, recipe = run.how, run.recipe
        equal = (*must, *_SEEN, "trained_on", "precision", "mshnet", "torch", "class")
        same = [how.get(k) for k in equal]
        ended = recipe.get("choose") == "last" and how.get("chosen")  # perhaps stopped early
        if recipe and run.finished and {"seed", "trained_on"} <= set(how):
            named = ("seed", "train_list", "test_list")  # the protocol has the lists' content
            groups[str([same, ended, [v for k, v in recipe.items() if k not in named]])].append(run)
    return [g for g in groups.values() if 1 < len(g) == len({run.how["seed"] for run in g})]


# %%
tiny = next(by_size([TargetRecord(area=5, matched=n > 0) for n in range(10)]))
print("{0}: {2} of {1} found, Pd {3:.2f}, between {4[0]:.2f} and {4[1]:.2f}".format(*tiny))
[group] = seed_groups(compare([kept / f"scenes-quick/seed{n}" for n in range(5)]).runs)
ious = [run.scores["iou"] for run in group]
f"IoU {np.mean(ious):.3f} \u00b1 {np.std(ious, ddof=1):.3f} (n = {len(group)})"


# %%
#| export
def _table(title: str, head: list[str], rows: list[list[str]], note: str = "") -> str:
    "A table as Markdown; empty without rows and note."
    lines = [[cell.replace("|", "/") for cell in row] for row in (head, *rows)]
    wide = [max(3, *map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in wide])
    text = [" | ".join(c.ljust(w) for c, w in zip(row, wide, strict=True)) for row in lines]
    shown = "\n".join(f"| {line} |" for line in text) if rows else ""
    parts = list(filter(None, [shown, note]))
    return "\n\n".join([f"## {title}", *parts]) if parts else ""


def _number(value: float | None, name: str = "") -> str:
    "A number, or a dash."
    return "-" if value is None or math.isnan(value) else f"{value:.{1 if name == 'fa' else 3}f}"


def _score_table(runs: Sequence[Scored]) -> str:
    "The scores of each run, and the means over seeds."
    names = list(dict.fromkeys(name for run in runs for name in run.scores))
    rows = [[run.name, *(_number(run.scores.get(k), k) for k in names)] for run in runs]
    for group in seed_groups(runs):
        cells = [f"mean of n = {len(group)} seeds like {group[0].name}"]
        for name in names:
            values = np.array([run.scores.get(name) for run in group], float)  # None becomes NaN
            both = float(np.mean(values)), float(np.std(values, ddof=1))
            cells.append(" \u00b1 ".join(_number(value, name) for value in both))
        rows.append(cells)
    note = "\u00b1: standard deviation of a sample" if len(rows) > len(runs) else ""
    return _table("Scores", ["run", *(SCORES.get(name, name) for name in names)], rows, note)


def _protocol_table(comparison: Comparison) -> str:
    "The protocols: fields that differ, and fields that agree."
    runs, columns = comparison.runs, comparison.differs
    rows = [[r.name, *(shortened(v[i], 44) for v in columns.values())] for i, r in enumerate(runs)]
    same = "; ".join(f"{k} {v}" for k, v in runs[0].how.items() if k not in {"choice", *columns})
    note = f"{'the same in all' if len(runs) > 1 else 'protocol'}: {same}"
    if unknown := ", ".join(run.name for run in runs if not run.recipe):
        note += f"\n\nthe settings of the training were not found: {unknown}"
    if stopped := ", ".join(run.name for run in runs if not run.finished):
        note += f"\n\nthe training has not ended, so these are in no mean: {stopped}"
    return _table("Protocol", ["run", *columns], rows if columns else [], note)


def _size_table(runs: Sequence[Scored]) -> str:
    "Detection by size."
    rows = []
    for run in runs:
        for name, targets, found, pd, ends in by_size(run.details.targets or []):
            interval = "-".join(map(_number, ends))
            if targets:
                rows.append([run.name, name, str(targets), str(found), _number(pd), interval])
    without = ", ".join(run.name for run in runs if run.details.targets is None)
    note = f"without records of targets; score again by mshnet test: {without}" if without else ""
    return _table("By size", ["run", "area, pixels", "targets", "found", "Pd", "95%"], rows, note)

# %% [markdown]
# ## Questions
#
# 1. Five seeds have an IoU of 0.835 ± 0.007. A new recipe reaches 0.845 with one seed. What do you do?
#    <details><summary>Answer</summary>Train more seeds. One run is 1.4 standard deviations above the mean, which happens by chance to about one run in eight (the deviation itself is known from five runs only).</details>
# 2. Two recipes find 120 and 124 of the same 129 targets. What else do you need to know?
#    <details><summary>Answer</summary>Which ones. The second may have gained four and lost none, or gained seven and lost three. And the false alarms of both: more detections find more targets by themselves.</details>
