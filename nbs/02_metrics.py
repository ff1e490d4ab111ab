# %% [markdown]
# # The metrics
#
# > IoU, nIoU, F1, Pd and Fa: what the numbers of this field mean, and how two programs get different ones from the same masks.
#
# We ask two kinds of questions of a detector.
#
# - *Pixels*: how well does the predicted mask cover the true one? IoU (intersection over union), nIoU (its mean over the images) and F1 are the answers.
# - *Objects*: how many targets were found (Pd, probability of detection), and how many pixels belong to predictions that found no target (Fa, false alarms)?
#
# We first count all five on two small images. Then we ask which prediction found which target, which is where programs differ. The code for a whole data set comes last. [How the scores are defined](guides/scores.ipynb) is the short version for readers of tables.

# %%
#| hide
#| default_exp metrics
import matplotlib.pyplot as plt

from mshnet.metrics import MATCH, RADIUS, find, objects

# %%
#| export
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import torch
from scipy.ndimage import label
from scipy.optimize import linear_sum_assignment
from torch import Tensor

# %% [markdown]
# ## Two images, five numbers
#
# The first image has a target of 36 pixels, of which the prediction covers 30. The second one has two targets of 4 pixels. One is found exactly; the other prediction is a false alarm.

# %%
truths, guesses = np.zeros((2, 2, 16, 16), bool)
truths[0, 4:10, 4:10] = guesses[0, 4:10, 5:10] = True
truths[1, 2:4, 2:4] = truths[1, 10:12, 10:12] = True
guesses[1, 2:4, 2:4] = guesses[1, 5:7, 12:14] = True
tints = np.array([[1, 1, 1], [0.6, 0.8, 1], [1, 0.8, 0.5], [0.3, 0.6, 0.3]])
overlaps, unions = (truths & guesses).sum((1, 2)), (truths | guesses).sum((1, 2))
figure = plt.figure(figsize=(7, 3.6), layout="constrained")
for i, axes in enumerate(figure.subplots(1, 2)):
    axes.imshow(tints[truths[i] + 2 * guesses[i]])
    title = f"image {'AB'[i]}: overlap {overlaps[i]}, union {unions[i]}"
    axes.set(xticks=[], yticks=[], title=title)
figure.supxlabel("blue: missed, orange: false, green: both")
precision, recall = overlaps.sum() / guesses.sum(), overlaps.sum() / truths.sum()
print(f"IoU  {overlaps.sum()}/{unions.sum()} = {overlaps.sum() / unions.sum():.2f}")
print(f"nIoU mean of {(overlaps / unions).round(2)} = {(overlaps / unions).mean():.2f}")
print(f"F1   of precision {precision:.2f} and recall {recall:.2f} = ", end="")
print(f"{2 * precision * recall / (precision + recall):.2f}")
print(f"Pd   2/3 = {2 / 3:.2f}")
print(f"Fa   4/{truths.size} = {4e6 / truths.size:.1f} per million pixels")

# %% [markdown]
# IoU adds the pixels of all images before it divides, so the large target decides. nIoU is the mean over the images, so the small targets of image B count as much as the large one. F1 is 2 IoU / (1 + IoU) and ranks methods as IoU does. Pd and Fa need objects. Here we counted them by eye; the rest of the page computes them.
#
# ## Which prediction found which target?
#
# An object is a set of pixels of a mask that touch at a side or a corner. A prediction finds a target if their centroids are less than 3 pixels apart, and it can find only one. When several are close together, the answer depends on the rule, and two rules are in use here:
#
# - **exact**: as many pairs as possible, and among those the pairing with the least total distance. The order of the objects plays no part.
# - **reference**: the rule of the published scripts. Targets are taken in *label order* (by their first pixel, row by row). Each takes the first free prediction in this order, whether it is the nearest or not.
#
# Fa counts the pixels of unmatched predictions. Here the reference has a second peculiarity: it removes the matched predictions from a list of *areas*. A false alarm with the area of a matched prediction is therefore not counted.
#
# One image shows both. Targets are blue, predictions orange, pairs black, and each circle has a radius of 3 pixels. The upper prediction is near both targets, the lower left one is near the first target only. The reference gives the upper prediction to the first target, and the second target goes without. It also omits the false alarm at the lower right, because its area is that of the matched prediction.

# %%
truth, pred = np.zeros((2, 15, 18), bool)
truth[4:7, 4:7] = truth[4:7, 8:11] = True
pred[3:6, 6:9] = pred[7:9, 3:5] = pred[10:13, 12:15] = True
targets, preds = objects(truth), objects(pred)
figure = plt.figure(figsize=(10, 4.5), layout="constrained")
for axes, (rule, match) in zip(figure.subplots(1, 2), MATCH.items(), strict=True):
    found, pairs = find(targets, preds, rule), match(targets, preds)
    axes.imshow(tints[truth + 2 * pred])
    for t, (y, x) in enumerate(targets.centroid):
        axes.add_patch(plt.Circle((x, y), RADIUS, fill=False, color="tab:blue"))
        axes.text(x, y - 3.2, f"target {t + 1}", color="tab:blue", ha="center")
    for t, p in pairs:
        axes.plot(*np.stack([targets.centroid[t], preds.centroid[p]])[:, ::-1].T, "ko-", lw=3)
    areas = preds.area[[p for _, p in pairs]]
    for p in set(range(len(preds))) - {p for _, p in pairs}:
        hidden = rule == "reference" and preds.area[p] in areas
        text = f"{preds.area[p]} false pixels" + (", not counted" if hidden else "")
        axes.text(*(preds.centroid[p] + [2.6, 0])[::-1], text, ha="center", color="tab:red")
    title = f"{rule}: Pd {found.matched}/{found.targets}, {found.false_pixels} false pixels"
    axes.set(xticks=[], yticks=[], title=title)


# %% [markdown]
# Tables made with the published scripts follow the reference rule, which we reproduce to the digit. A score line never mixes the rules, and every saved score names its rule.
#
# ## The machinery: objects
#
# Of each object we need the centroid and the area. `scipy.ndimage.center_of_mass` would do, but it visits each pixel, and an untrained network predicts thousands of objects. We save time in two ways. First we leave out empty rows and columns, except one after each object, which keeps it apart from the next. Then we add *segments*, the pieces of a row without a gap. The mask of the example below has four of them: columns 1 to 2 in row 1 and in row 2, column 5 in row 5, and column 6 in row 6. All sums are whole numbers, so their order cannot change a centroid.

# %%
#| export
@dataclass(frozen=True)
class Objects:
    "The connected components of a mask, in the order of their first pixel."

    centroid: np.ndarray  # [N,2] row and column, in pixels from the top-left pixel
    area: np.ndarray  # [N] in pixels

    def __len__(self) -> int:
        "Number of objects."
        return len(self.area)


def _components(mask: np.ndarray, row: np.ndarray, col: np.ndarray) -> Objects:
    "Find the 8-connected components of a mask [h,w] that was cropped to rows [h], columns [w]."
    padded = np.zeros((mask.shape[0], mask.shape[1] + 1), bool)  # a segment ends with its row
    padded[:, :-1] = mask
    labels, count = label(padded, np.ones((3, 3), bool))
    edges = np.flatnonzero(np.diff(padded.ravel(), prepend=False))
    start, size = edges[::2], edges[1::2] - edges[::2]
    which = labels.ravel()[start] - 1
    line, first = np.divmod(start, padded.shape[1])
    area = np.bincount(which, size, count)
    rows = np.bincount(which, row[line] * size, count)
    cols = np.bincount(which, (2 * col[first] + size - 1) * size / 2, count)  # first, first + 1 ..
    return Objects(np.stack([rows / area, cols / area], 1), area.astype(int))


def _crop_indices(used: np.ndarray) -> np.ndarray:  # [N] bool -> indices
    "Rows (or columns) to keep: those that hold something, and the one after each."
    return np.flatnonzero(used | np.append(False, used[:-1]))


def crop(image: np.ndarray, least: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The crop [h,w] of an image [H,W], and the rows [h] and columns [w] that it keeps.

    Kept are those with a pixel above `least`, and the one after each.
    """
    some = image > least
    row, col = _crop_indices(np.any(some, 1)), _crop_indices(np.any(some, 0))
    return image[row][:, col], row, col


def objects(mask: np.ndarray) -> Objects:  # [H,W] bool
    "Find the 8-connected components of a mask."
    return _components(*crop(mask, False))


# %%
mask = np.zeros((8, 8), bool)
mask[1:3, 1:3] = True
mask[5, 5] = mask[6, 6] = True
print("rows kept:", crop(mask, False)[1])  # one empty row after each object
objects(mask)

# %% [markdown]
# ### The two rules
#
# The exact rule is an assignment problem. A near pair costs its distance, and any other pair costs more than all near ones together, so as many near pairs as possible are made. Of two equal pairings (to a millionth of a pixel) we take the one that leaves fewer false pixels. Otherwise rounding would decide, and a mirrored image could have a different Fa. For the same reason a distance of 2.9999999999 pixels counts as 3.

# %%
#| export
RADIUS = 3.0  # pixels; a centroid must be nearer than this
Pairs = list[tuple[int, int]]  # (target, prediction)


def near(targets: Objects, preds: Objects) -> list[tuple[int, int, float]]:
    "All (target, prediction, distance) that are less than 3 pixels apart, in label order."
    pairs = []
    for t, centre in enumerate(targets.centroid):
        apart = centre - preds.centroid
        for p in np.nonzero((np.abs(apart) < RADIUS).all(1))[0].tolist():  # a square around it
            distance = float(np.linalg.norm(apart[p]))
            if distance < RADIUS:
                pairs.append((t, p, distance))
    return pairs


def match_reference(targets: Objects, preds: Objects) -> Pairs:
    "Each target, in label order, takes the first free prediction (as the published scripts do)."
    pairs: dict[int, int] = {}
    for t, p, _ in near(targets, preds):
        if t not in pairs and p not in pairs.values():
            pairs[t] = p
    return list(pairs.items())


def match_exact(targets: Objects, preds: Objects) -> Pairs:
    "As many pairs as possible, then the least total distance, then the largest predictions."
    edges = [edge for edge in near(targets, preds) if edge[2] < RADIUS - 1e-9]
    rows = {t: i for i, t in enumerate(dict.fromkeys(t for t, _, _ in edges))}
    cols = {p: j for j, p in enumerate(dict.fromkeys(p for _, p, _ in edges))}
    if len(edges) == len(rows) == len(cols):  # nothing to decide
        return [(t, p) for t, p, _ in edges]
    far = RADIUS * (len(rows) + 1)  # more than all near pairs together
    tie = 1e-6 / preds.area.sum()
    cost = np.full((len(rows), len(cols)), far)
    for t, p, distance in edges:
        cost[rows[t], cols[p]] = distance - tie * preds.area[p]
    chosen = set(zip(*linear_sum_assignment(cost), strict=True))
    return [(t, p) for t, p, _ in edges if (rows[t], cols[p]) in chosen]


MATCH = {"exact": match_exact, "reference": match_reference}  # by the name of the rule


@dataclass(frozen=True)
class Found:
    "What one image contributes to Pd and Fa."

    targets: int
    matched: int
    false_pixels: int  # pixels of unmatched predictions

    def __add__(self, other: Self) -> Self:
        "The sum of both."
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return type(self)(*(mine + more for mine, more in pairs))


def find(targets: Objects, preds: Objects, rule: str = "exact") -> Found:
    "Match the predicted objects of an image with its targets, by the rule exact or reference."
    pairs = MATCH[rule](targets, preds)
    matched = [p for _, p in pairs]
    if rule == "exact":
        false = preds.area.sum() - preds.area[matched].sum()
    else:
        false = preds.area[~np.isin(preds.area, preds.area[matched])].sum()
    return Found(len(targets), len(pairs), int(false))


# %%
print("near pairs:", *(f"{t, p} {away:.2f} px" for t, p, away in near(targets, preds)))
print("reference:", match_reference(targets, preds), "exact:", match_exact(targets, preds))


# %% [markdown]
# ### Scores
#
# If the denominator is 0, the score is undefined (NaN), not 0 or 1. A set without targets has no Pd, and a dash is printed.

# %%
#| export
@dataclass(frozen=True)
class Scores:
    "The scores of a set of images."

    iou: float  # overlap / union of all pixels of the set, 0..1
    niou: float  # mean IoU of the images with a non-empty union, 0..1
    f1: float  # harmonic mean of pixel precision and recall, 0..1
    pd: float  # matched targets / targets, 0..1; NaN without targets
    fa: float  # pixels of false alarms per million pixels of all images
    targets: int
    images: int
    rule: str  # how objects were matched

    def __str__(self) -> str:
        "The score line."
        parts = [("IoU", self.iou, 2), ("nIoU", self.niou, 2), ("F1", self.f1, 2)]
        parts += [("Pd", self.pd, 2), ("Fa", self.fa, 1)]
        return "  ".join([f"{k} -" if math.isnan(v) else f"{k} {v:.{d}f}" for k, v, d in parts])

    def as_dict(self) -> dict[str, Any]:
        "The scores for a JSON file; None stands for NaN, which JSON lacks."
        return {k: None if v != v else v for k, v in vars(self).items()}  # NaN: unequal to itself


def fraction(part: float, whole: float) -> float:
    "`part / whole`; NaN where `whole` is 0."
    return part / whole if whole else math.nan


# %% [markdown]
# ### Counts first, fractions last
#
# A `Tally` counts whole numbers and divides once, at the end. Scores therefore do not depend on the batches, and sums over devices are exact. Pixel counts are kept per image, because nIoU is a mean over images. An image with an empty union has no overlap to measure and stays out of the mean.

# %%
#| export
@dataclass(frozen=True)
class Counted(Found):
    "What one image contributes to all scores."

    inter: int  # pixels that are predicted and true
    pred: int  # pixels that are predicted
    mask: int  # pixels that are true
    pixels: int  # of the image


@dataclass
class Tally:
    "Counts the images of batches; ValueError for an unknown rule."

    rule: str = "exact"  # or "reference"
    images: list[Counted] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.rule not in MATCH:
            raise ValueError(f"rule={self.rule!r}: use exact or reference")

    def add(
        self,
        logits: Tensor,  # [B,1,H,W]; a pixel is predicted where this is above 0
        mask: Tensor,  # [B,1,H,W] 0 or 1
    ) -> None:
        "Count the images of a batch; ValueError if the shapes differ."
        if logits.shape != mask.shape:
            shapes = f"logits {tuple(logits.shape)} and mask {tuple(mask.shape)}"
            raise ValueError(f"score: {shapes} differ")
        pairs = ((x.cpu()[:, 0] > 0).numpy() for x in (logits, mask))
        for pred, truth in zip(*pairs, strict=True):
            found = find(objects(truth), objects(pred), self.rule)
            planes = {"inter": pred & truth, "pred": pred, "mask": truth}
            counts = {name: int(np.count_nonzero(plane)) for name, plane in planes.items()}
            self.images.append(Counted(**vars(found), **counts, pixels=truth.size))

    def scores(self) -> Scores:
        "The scores of all images counted so far."
        ious = [x.inter / (x.pred + x.mask - x.inter) for x in self.images if x.pred + x.mask]
        found = sum(self.images, Counted(0, 0, 0, 0, 0, 0, 0))
        return Scores(
            iou=fraction(found.inter, found.pred + found.mask - found.inter),
            niou=fraction(sum(ious), len(ious)),
            f1=fraction(2 * found.inter, found.pred + found.mask),
            pd=fraction(found.matched, found.targets),
            fa=fraction(found.false_pixels * 1e6, found.pixels),
            targets=found.targets,
            images=len(self.images),
            rule=self.rule,
        )


def score(
    logits: Tensor,  # [B,1,H,W]; a pixel is predicted where this is above 0
    mask: Tensor,  # [B,1,H,W] truth, 0 or 1
    rule: str = "exact",  # or "reference": the rule of the published scripts
) -> Scores:
    """The scores of a set of images in memory.

    Pd and Fa match objects less than 3 px apart, one to one. Pd is NaN without targets.
    ValueError for probabilities, grey levels, NaN, wrong shapes and an unknown rule.
    """
    logits, mask, tally = torch.as_tensor(logits), torch.as_tensor(mask), Tally(rule)
    if logits.ndim != 4 or logits.shape[1] != 1 or logits.isnan().any():
        raise ValueError(f"score: logits {tuple(logits.shape)} are NaN, or not [B,1,H,W]")
    values, truth = logits.float(), mask.float()
    if values.equal(values.clamp(0, 1)) and not values.equal(values.round()):
        raise ValueError("score: these are probabilities, not logits; give torch.logit of them")
    if not truth.equal(truth.round()):  # nor is NaN equal to itself
        raise ValueError("score: the mask has NaN or fractions; give 0 and 1, such as mask > 0.5")
    for name, x in (("prediction", values), ("mask", truth)):
        if (x >= 0).all() and x.equal(x.round()) and len(x.unique()) > 2:
            raise ValueError(f"score: the {name} has grey levels; give 0 and 1, such as x > 127")
    tally.add(values, truth)
    return tally.scores()


# %% [markdown]
# The two images from the top of the page have the scores that we computed by eye. An image without targets has no Pd:

# %%
truth, pred = (torch.from_numpy(each).float()[:, None] for each in (truths, guesses))
print(score(pred - 0.5, truth))
print(score(pred - 0.5, 0 * truth))

# %% [markdown]
# ### At every threshold
#
# One threshold gives one point of a curve, so a curve needs the counts at many thresholds. For pixels, one histogram of the probabilities is enough: the sum of all bins from a threshold upwards is the count at it. A trained network puts nearly all pixels into the first bin, so we count that bin separately. The example has two targets of 3x3 pixels, 7 pixels apart, whose predicted probabilities fall off smoothly. We compare the curve with a direct count:

# %%
#| export
BINS = 1000  # steps of the probability in the histogram


def _in_bins(prob: np.ndarray) -> np.ndarray:  # [...] 0..1 -> [BINS]
    "Number of probabilities in each bin."
    scaled = prob * BINS
    some = scaled[~(scaled < 1)]  # not `>= 1`, which would count a NaN as a small probability
    counts = np.bincount(np.minimum(some.astype(np.int64), BINS - 1), minlength=BINS)
    counts[0] += prob.size - some.size
    return counts


class Histogram:
    "Pixels of targets and of background by predicted probability."

    def __init__(self) -> None:
        self.counts = np.zeros((2, BINS), np.int64)  # of targets, of background

    def add(self, prob: np.ndarray, mask: np.ndarray) -> None:
        "Count pixels: probabilities 0..1 of any shape, and a mask of this shape (not 0: target)."
        target = _in_bins(prob[mask > 0])
        self.counts += [target, _in_bins(prob) - target]

    def merge(self, others: list["Histogram"]) -> None:
        "Take over the sum of several, this one included."
        self.counts = np.sum([other.counts for other in others], axis=0)

    def curve(self) -> dict[str, np.ndarray]:  # each [BINS], by rising threshold
        "Precision, recall and false positive rate for `prob >= threshold`."
        hit, false = self.counts[:, ::-1].cumsum(1)[:, ::-1]
        return {
            "threshold": np.arange(BINS) / BINS,
            "precision": hit / np.maximum(hit + false, 1),
            "recall": hit / max(hit[0], 1),
            "fpr": false / max(false[0], 1),
        }


# %%
row, col = np.mgrid[:24, :24]
prob = sum(np.exp(-((row - 12) ** 2 + (col - at) ** 2) / 8) for at in (8, 15)).clip(0, 1)
mask = prob > 0.7
histogram = Histogram()
histogram.add(prob, mask)
precision = histogram.curve()["precision"]
for step in (200, 500, 800):
    threshold, counted = step / BINS, mask[prob >= step / BINS].mean()
    print(f"threshold {threshold}: precision {precision[step]:.2f}, counted {counted:.2f}")


# %% [markdown]
# For objects there is no such shortcut. They merge as the threshold falls, and whether a merged one still finds its target depends on its new centroid. We therefore find and match them anew at each of a few dozen thresholds. Three things save time: the targets are found once per image, the image is cropped once for the lowest threshold, and two thresholds that predict equally many pixels predict the same ones. Both targets above are found at the thresholds 0.5 and 0.8, and none at 0.2: there the two have merged.

# %%
#| export
def pd_fa(
    probs: np.ndarray,  # [N,H,W] probabilities of one batch or set, 0..1
    targets: Sequence[Objects],  # of each image
    thresholds: Sequence[float],
    rule: str = "exact",
) -> list[Found]:  # one per threshold, summed over the images
    "Targets, matched targets and false pixels for `prob > threshold`."
    sums = [Found(0, 0, 0)] * len(thresholds)
    for prob, true in zip(probs, targets, strict=True):
        small, row, col = crop(prob, min(thresholds))
        known: dict[int, Found] = {}  # by the number of predicted pixels
        for i, threshold in enumerate(thresholds):
            pred = small > threshold
            pixels = int(np.count_nonzero(pred))
            if pixels not in known:
                known[pixels] = find(true, _components(pred, row, col), rule)
            sums[i] += known[pixels]
    return sums

# %% [markdown]
# ## Questions
#
# 1. Find two predictions of the same two images that have equal IoU and different nIoU.
#    <details><summary>Answer</summary>Let the targets have 90 and 10 pixels. A covers 45 and 5 of them: IoU 50/100, nIoU (0.5 + 0.5)/2 = 0.5. B covers 50 and none: IoU 50/100, nIoU (0.56 + 0)/2 = 0.28.</details>
# 2. A prediction surrounds a target of 2x2 pixels with two more pixels on each side. What are its IoU, Pd and Fa?
#    <details><summary>Answer</summary>IoU is 4/36 = 0.11. Pd is 1, because the centroids agree, and Fa is 0, because the prediction found a target. Pd and Fa do not notice a blob that is too large.</details>
