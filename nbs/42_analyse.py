# %% [markdown]
# # analyse
#
# > Behind the score: a record of each target, curves over all thresholds, calibration, and a baseline without learning.

# %%
#| default_exp analyse

# %%
#| hide
from fastcore.test import test_close, test_eq

from mshnet.core import Config
from mshnet.device import open_device
from mshnet.task import make_task, score_split

# %%
#| export
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import torch
from scipy.ndimage import find_objects, label, white_tophat
from torch import Tensor, nn

from mshnet.augment import Batch, resize_square, unpadded
from mshnet.data import Split, pairs_of
from mshnet.device import Device
from mshnet.metrics import (
    BINS,
    MATCH,
    Found,
    Histogram,
    Objects,
    Scores,
    Tally,
    in_turns,
    objects,
    pd_fa,
    score,
)
from mshnet.task import Evaluation, Origin, Task, count_predictions, protocol

# %% [markdown]
# A network scores an IoU of 0.6. Which targets does it miss: the small ones, or those that hardly stand out? Would a lower threshold find them, and for how many false alarms? Does a probability of 0.7 mean 7 cases in 10? And would a filter from the time before networks do as well?
#
# A score answers none of that. The final evaluation of a run therefore counts more than the evaluation of an epoch:
#
# - of each image its pixels, and of each target a record: its size, its contrast, and whether it was found;
# - the pixels by probability, for precision and recall at every threshold, and for the calibration;
# - the objects at two dozen thresholds, for Pd against Fa.
#
# We take these one by one, then collect all of them in one pass. The baseline comes last.
#
# ## A target's contrast
#
# The *signal-to-clutter ratio* measures how far the mean grey level of a target lies from that of its surroundings, in standard deviations of the surroundings:
#
# $$\mathrm{SCR} = \frac{|\mu_t - \mu_b|}{\sigma_b}$$
#
# The formula is that of Gao et al., *Infrared Patch-Image Model for Small Target Detection in a Single Image*, IEEE Transactions on Image Processing 22 (2013). The surroundings are a matter of convention, and conventions give different values. Ours are the target's box with 20 pixels added on each side, without the pixels of any target. Grey levels are those of the image that is scored, after the resize. A perfectly flat background has no deviation; there we take the deviation that rounding to whole grey levels hides, $1/\sqrt{12}$.

# %%
#| export
_AROUND = 20  # pixels of surroundings on each side of a target's box
_FLAT = 12**-0.5  # grey levels; the least standard deviation


def signal_to_clutter(
    grey: np.ndarray,  # [H,W] grey levels
    target: np.ndarray,  # [H,W] bool; the target
    mask: np.ndarray,  # [H,W] bool; all targets
) -> float | None:  # None: nothing surrounds it
    """Contrast of a target, in standard deviations of its surroundings.

    Source: Gao et al., IEEE Transactions on Image Processing 22 (2013).
    """
    [box] = find_objects(target.astype(np.int8))
    near = tuple(slice(max(s.start - _AROUND, 0), s.stop + _AROUND) for s in box)
    around = grey[near][~mask[near]].astype(np.float64)
    if not around.size:
        return None
    apart = abs(float(grey[box][target[box]].mean(dtype=np.float64) - around.mean()))
    return round(apart / max(float(around.std()), _FLAT), 3)


# %%
rng = np.random.default_rng(0)
grey, spot = rng.normal(100, 10, (64, 64)), np.zeros((64, 64), bool)
spot[30:33, 30:33] = True
grey[spot] = 150
test_close(signal_to_clutter(grey, spot, spot), 5, eps=0.3)
test_eq(signal_to_clutter(spot * 1.0, spot, spot), round(12**0.5, 3))


# %% [markdown]
# ## Each target's record
#
# A prediction *touches* a target if they share a pixel, or if the matching rule paired them. With this word every wrong pixel has one owner:
#
# - a target owns its missing pixels, and the excess pixels of a prediction that touches it;
# - if the prediction touches several targets, the one it was paired with owns the excess, else the one it covers most;
# - a prediction that touches no target is *clutter*, and owns its pixels itself.
#
# The wrong pixels of all targets and of the clutter therefore add up to those of the image: union less intersection.
#
# A record holds the target's place, size and contrast, whether it was found, how much of it was covered, and the highest probability in it.

# %%
#| export
@dataclass(frozen=True)
class CloseUp:
    "The targets, the clutter and the probabilities of one image."

    targets: list[dict[str, Any]]
    clutter: dict[str, int]  # number and pixels of the predictions that touch no target
    decile_sums: np.ndarray  # [10] sum of the probabilities in each tenth of 0..1


def close_up(
    grey: np.ndarray,  # [S,S] grey levels
    prob: np.ndarray,  # [S,S] 0..1
    pred: np.ndarray,  # [S,S] bool
    mask: np.ndarray,  # [S,S] bool
    targets: Objects,  # of the mask
    rule: str,
) -> CloseUp:
    "Record an image, target by target."
    truth, guess = (label(m, np.ones((3, 3), bool))[0] for m in (mask, pred))
    preds, both = objects(pred), mask & pred
    paired = dict(MATCH[rule](targets, preds))
    couples = zip((truth[both] - 1).tolist(), (guess[both] - 1).tolist(), strict=True)
    shared = Counter(couples)  # pixels in common of a target and a prediction
    owner = {p: t for t, p in paired.items()}
    for t, p in sorted(shared, key=lambda couple: (-shared[couple], couple)):
        owner.setdefault(p, t)
    records = []
    for t, (row, col) in enumerate(targets.centroid):
        own = truth == t + 1
        records.append(
            {"row": round(float(row), 2), "col": round(float(col), 2)}
            | {"area": int(targets.area[t]), "scr": signal_to_clutter(grey, own, mask)}
            | _outcome(t, paired, shared, owner, targets, preds)
            | {"peak": round(float(prob[own].max()), 4)}
        )
    clutter = np.delete(preds.area, list(owner))
    counts = {"clutter": len(clutter), "clutter_pixels": int(clutter.sum())}
    return CloseUp(records, counts, decile_sums(prob))


def decile_sums(
    prob: np.ndarray,  # [...] 0..1
) -> np.ndarray:  # [10] float64
    "Sums of the probabilities in 0..0.1, 0.1..0.2 and so on, in the steps of the histogram."
    scaled, tenth = prob * BINS, BINS // 10
    low = scaled < tenth  # almost all pixels; they need no sorting
    steps = np.minimum(scaled[~low].astype(np.int64), BINS - 1) // tenth
    sums = np.bincount(steps, prob[~low].astype(np.float64), 10)
    sums[0] += prob[low].sum(dtype=np.float64)
    return sums


def _outcome(
    t: int,  # number of the target
    paired: dict[int, int],  # the prediction that the rule paired with a target
    shared: Counter[tuple[int, int]],  # pixels that (target, prediction) have in common
    owner: dict[int, int],  # the target that owns a prediction
    targets: Objects,
    preds: Objects,
) -> dict[str, Any]:
    "Whether a target was found, how well, and how many predictions touch it."
    touched = {p for u, p in shared if u == t}
    iou = None
    if t in paired:
        p = paired[t]
        touched.add(p)
        iou = shared[t, p] / int(targets.area[t] + preds.area[p] - shared[t, p])
    own = [p for p in touched if owner[p] == t]
    inside = sum(pixels for (_, p), pixels in shared.items() if p in own)
    return {
        "matched": t in paired,
        "iou": None if iou is None else round(iou, 4),  # with the prediction that found it
        "covered": sum(pixels for (u, _), pixels in shared.items() if u == t),  # of its pixels
        "extra": int(preds.area[own].sum()) - inside,
        "parts": len(touched),  # predictions that touch it
        "merged": any(p in touched and u != t for u, p in shared),
    }


# %% [markdown]
# One prediction of ten pixels covers parts of two targets, and a single pixel is clutter. The centroid of the large prediction is near neither target. Both are therefore missed, and both are recorded as merged:

# %%
truth, pred = np.zeros((2, 32, 32), bool)
truth[4:6, 4:6] = truth[4:6, 12:14] = True
pred[4, 4:14] = pred[20, 20] = True
seen: CloseUp = close_up(pred * 100.0, pred * 0.9, pred, truth, objects(truth), "exact")
test_eq([(t["matched"], t["merged"]) for t in seen.targets], [(False, True)] * 2)
test_eq(seen.clutter, {"clutter": 1, "clutter_pixels": 1})
wrong = sum(t["area"] - t["covered"] + t["extra"] for t in seen.targets) + 1
test_eq(wrong, np.count_nonzero(truth ^ pred))
seen.targets[0]


# %% [markdown]
# ## Curves and calibration
#
# Curves are stored as fractions at the thresholds that matter, not as a thousand points. For the calibration we sort the pixels by probability into ten steps. In each we count the pixels, count those that belong to a target, and take the mean probability. In a calibrated network the share of target pixels equals that mean.

# %%
#| export
def calibration_curve(
    histogram: Histogram,
    sums: Sequence[np.ndarray],  # of each image, each [10], from `decile_sums`
) -> dict[str, list[Any]]:
    "Pixels, target pixels and mean probability (None: no pixel), in ten steps of probability."
    target, other = (x.reshape(10, -1).sum(1) for x in (histogram.target, histogram.background))
    total = np.sum([*sums, np.zeros(10)], axis=0)
    means = [round(s / n, 6) if n else None for s, n in zip(total, target + other, strict=True)]
    return {"pixels": (target + other).tolist(), "target": target.tolist(), "mean": means}


def _curves(
    histogram: Histogram, found: Sequence[Found], seen: Sequence[CloseUp], pixels: int
) -> dict[str, Any]:
    "The curves of details.json; Pd is None without targets, Fa is per million pixels."
    return {
        "pixels": {k: v[::10].round(6).tolist() for k, v in histogram.curve().items()},
        "objects": {
            "threshold": THRESHOLDS,
            "pd": [f.matched / f.targets if f.targets else None for f in found],
            "fa": [f.false_pixels * 1e6 / max(pixels, 1) for f in found],
        },
        "calibration": calibration_curve(histogram, [one.decile_sums for one in seen]),
    }


# %%
prob, histogram = np.array([0.02, 0.04, 0.97]), Histogram()
histogram.add(prob, np.array([False, False, True]))
test_close(decile_sums(prob)[[0, 9]], np.array([0.06, 0.97]))
test_eq(calibration_curve(histogram, [decile_sums(prob)])["mean"][0], 0.03)

# %% [markdown]
# ## One pass
#
# `evaluate_split` collects all of it in one pass over the split. Each process counts its share of a batch, and the shares are joined in the order of the list.

# %%
#| export
THRESHOLDS = [round(t, 3) for t in (0.001, 0.01, *np.arange(0.05, 1, 0.05), 0.99, 0.999)]


@dataclass(frozen=True, repr=False)
class Analysis(Evaluation):
    "Scores of a split, their protocol, and the records that curves and gallery are drawn from."

    images: list[dict[str, Any]]  # of each image: name, pixels, targets, matched, false_pixels
    curves: dict[str, Any]  # lists: thresholds, and the values there
    targets: list[
        dict[str, Any]
    ]  # of each target: image, place, area, contrast, whether it was found

    def details(self) -> dict[str, Any]:
        "The records as details.json holds them."
        return {"images": self.images, "curves": self.curves, "targets": self.targets}


def evaluate_split(
    task: Task,
    model: nn.Module,
    split: Split,
    device: Device,
    phase: str,
    weights: Origin,
) -> Analysis:
    "Score a split, with its curves and a record of each image and target."
    rule, tally, histogram = task.config.rule, task.tally(), Histogram()
    found, seen = [Found(0, 0, 0)] * len(THRESHOLDS), list[CloseUp]()

    def count(logits: Tensor, batch: Batch) -> None:
        "Count a batch in all ways."
        logits, image = (unpadded(x, batch.mask) for x in (logits, batch.image))
        targets = tally.add(logits, batch)
        prob, pred, mask = (
            x[batch.real, 0].numpy() for x in (logits.sigmoid(), logits > 0, batch.mask > 0)
        )
        histogram.add(prob, mask)
        grey = image[batch.real].float().mean(1).numpy()
        seen.extend(map(close_up, grey, prob, pred, mask, targets, [rule] * len(targets)))
        found[:] = _add(found, pd_fa(prob, targets, THRESHOLDS, rule))

    count_predictions(count, task, model, split, device, phase, "batches")
    ranks = device.ranks
    tally.gather(ranks)
    histogram.join(ranks.all_gather(histogram))
    share = task.config.batch_size // ranks.count
    found, seen = reduce(_add, ranks.all_gather(found)), in_turns(ranks.all_gather(seen), share)
    named = list(zip(split.names, seen, strict=True))
    how = protocol(task, split, tally.scores(), device, weights)
    return Analysis(
        tally.scores(),
        how,
        task.config.model_dump(),
        _image_rows(tally.counts, named),
        _curves(histogram, found, seen, tally.counts.pixels),
        [{"name": name, **target} for name, one in named for target in one.targets],
    )


def _add(one: Sequence[Found], other: Sequence[Found]) -> list[Found]:
    "The sums of two counts, threshold by threshold."
    return [a + b for a, b in zip(one, other, strict=True)]


def _image_rows(tally: Tally, named: Sequence[tuple[str, CloseUp]]) -> list[dict[str, Any]]:
    "The counts of each image."
    columns = zip(named, tally.inter, tally.pred, tally.mask, tally.found, strict=True)
    return [
        {"name": name, "inter": i, "pred": p, "mask": m, **vars(found), **one.clutter}
        for (name, one), i, p, m, found in columns
    ]


# %%
config = Config(
    scenes=12, base_size=32, crop_size=32, choose="last", device="cpu", precision="fp32"
)
task, device = make_task(config), open_device("cpu", "fp32")
parts, model = task.splits(), task.model()
result: Analysis = evaluate_split(task, model, parts["test"], device, "full", Origin("untrained"))
test_eq(result.scores, score_split(task, model, parts["test"], device, "full"))
test_eq((len(result.images), len(result.targets)), (3, result.scores.targets))
test_eq(sum(t["matched"] for t in result.targets), sum(i["matched"] for i in result.images))
result.images[0], result.targets[0]


# %% [markdown]
# ## A baseline without learning
#
# Before networks, small targets were found by a top-hat filter. It subtracts from the image its opening, and leaves what is brighter than its surroundings and smaller than the window. A network that does not beat it has learned nothing new. We choose window and threshold on the training images, from a histogram of the responses that gives the IoU of all thresholds at once.

# %%
#| export
def top_hat_filter(
    image: np.ndarray,  # [S,S] grey levels 0..255
    window: int,  # side of the square, in pixels
) -> np.ndarray:  # [S,S] whole numbers 0..255
    "The white top-hat: what is brighter than its surroundings and smaller than the window."
    return white_tophat(np.round(image).astype(np.int16), size=(window, window))


@dataclass(frozen=True)
class TopHat:
    "The best top-hat filter for some training images, and its scores on the test images."

    window: int
    threshold: int  # a response above this is a detection
    scores: Scores


def _responses(split: Split, size: int, window: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    "The filter's response to each image of a split, resized, with its mask."
    for pair in pairs_of(split):
        image, mask = resize_square(*pair, size)
        grey = image if image.ndim == 2 else image.mean(-1)
        yield top_hat_filter(grey, window), mask > 0


def top_hat(
    train: Split,
    test: Split,
    size: int,  # side of the scored image
    rule: str = "exact",
) -> TopHat:
    "Choose window and threshold by the IoU on the training images, and score the test images."
    best = (-1.0, 0, 0)
    for window in (3, 5, 7, 9, 11):
        hit, false = np.zeros(256, np.int64), np.zeros(256, np.int64)
        for found, mask in _responses(train, size, window):
            hit += np.bincount(found[mask], minlength=256)
            false += np.bincount(found[~mask], minlength=256)
        targets = hit.sum()
        hit, false = (counts[::-1].cumsum()[::-1] for counts in (hit, false))
        iou = hit / np.maximum(targets + false, 1)  # of responses of at least 0, 1, 2 ..
        best = max(best, (float(iou.max()), window, int(iou.argmax()) - 1))
    _, window, threshold = best
    found, mask = (np.stack(part) for part in zip(*_responses(test, size, window), strict=True))
    logits = torch.from_numpy(found - threshold).float()[:, None]
    return TopHat(window, threshold, score(logits, torch.from_numpy(mask)[:, None], rule))


# %%
baseline: TopHat = top_hat(parts["train"], parts["test"], 32)
spot = np.zeros((9, 9))
spot[4, 4] = 100
test_eq(top_hat_filter(spot + 50, 3), spot)
print(baseline.window, baseline.threshold, baseline.scores)
