# %% [markdown]
# # metrics
#
# > IoU, nIoU, F1, Pd and Fa: what the numbers of this field mean, and how two programs get different ones from the same masks.

# %%
#| default_exp metrics

# %%
#| hide
import torch
from fastcore.test import expect_fail, test_close, test_eq

# %%
#| export
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from scipy.ndimage import label
from scipy.optimize import linear_sum_assignment
from torch import Tensor


# %% [markdown]
# Two kinds of question are asked of a detector. *Pixels*: how well does the predicted mask cover the true one (IoU, nIoU, F1)? *Objects*: how many targets were found (Pd, probability of detection), and how much was reported that is not there (Fa, false alarms)? Both are counted on the host: objects need connected components there, and pixels cost next to nothing beside them.
#
# ## Objects in a mask
#
# An object is a set of 8-connected pixels. All that is ever needed of it is its centroid and its area, and those are three sums, however many thousand components an untrained network makes of its noise.

# %%
#| export
@dataclass(frozen=True)
class Objects:
    "The connected components of a mask, in the order of their first pixel."

    centroid: np.ndarray  # [N,2] row and column, in pixels from the top-left pixel
    area: np.ndarray  # [N] in pixels

    def __len__(self) -> int:
        "How many there are."
        return len(self.area)


# %% [markdown]
# The sums are taken over *runs*, the pieces of a row without a gap: a run of n pixels is one number to add instead of n. All of them are whole numbers, so the order of adding cannot change a centroid.

# %%
#| export
def components(
    mask: np.ndarray,  # [h,w] bool; the rows and columns of an image that `crop` kept
    row: np.ndarray,  # [h] their places in the image
    col: np.ndarray,  # [w]
) -> Objects:
    "Find the 8-connected components of a cropped mask."
    padded = np.zeros((mask.shape[0], mask.shape[1] + 1), bool)  # no run goes on in the next row
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


# %% [markdown]
# Almost all of an image is empty. Of neighbouring empty rows (and columns) one is enough to keep apart what is apart, so the others are left out first, and what is searched is small. The order of the pixels stays.

# %%
#| export
def kept(
    used: np.ndarray,  # [N] bool: does this row (or column) hold anything?
) -> np.ndarray:  # numbers of rows
    "Rows to keep: those that hold something, and the one after each."
    return np.flatnonzero(used | np.append(False, used[:-1]))


def crop(
    image: np.ndarray,  # [H,W]
    least: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # [h,w] the crop, [h] and [w] its places
    "Leave out rows and columns without a pixel above `least`, but for one between two objects."
    some = image > least
    row, col = kept(np.any(some, 1)), kept(np.any(some, 0))
    return image[row][:, col], row, col


def objects(
    mask: np.ndarray,  # [H,W] bool
) -> Objects:
    "Find the 8-connected components of a mask."
    return components(*crop(mask, False))


# %%
mask = np.zeros((8, 8), bool)
mask[1:3, 1:3] = True
mask[5, 5] = mask[6, 6] = True
test_eq(len(objects(mask)), 2)
test_eq(kept(mask.any(1)), [1, 2, 3, 5, 6, 7])  # row 4 is as empty as row 3
small, row, col = crop(mask, False)
test_eq(small.shape, (6, 6))
test_eq(components(small, row, col).centroid, objects(mask).centroid)
objects(mask)

# %% [markdown]
# ## Which prediction found which target?
#
# A prediction finds a target if their centroids are less than 3 pixels apart, and it can find only one. Usually one prediction lies near one target and there is nothing to decide. When several do, the answer depends on the rule, and two rules are in use here:
#
# - **exact**: as many pairs as possible, and among those the pairing with the least total distance. The order in which components were numbered plays no part.
# - **reference**: what the published scripts do. Targets are taken in label order and each takes the first free prediction in label order, near or nearest alike.
#
# Published tables were made with the second, so it is reproduced to the digit. A score line never mixes them, and every saved score says which was used.

# %%
#| export
RADIUS = 3.0  # pixels; a centroid must be nearer than this
Pairs = list[tuple[int, int]]  # (target, prediction)


def near(
    targets: Objects,
    preds: Objects,
) -> list[tuple[int, int, float]]:  # (target, prediction, distance in pixels), in label order
    "All pairs of a target and a prediction that are less than 3 pixels apart."
    pairs = []
    for t, centre in enumerate(targets.centroid):
        apart = centre - preds.centroid
        for p in np.nonzero((np.abs(apart) < RADIUS).all(1))[0].tolist():  # a square around it
            distance = float(np.linalg.norm(apart[p]))
            if distance < RADIUS:
                pairs.append((t, p, distance))
    return pairs


def match_reference(
    targets: Objects,
    preds: Objects,
) -> Pairs:
    "Each target, in label order, takes the first free prediction (as the published scripts do)."
    pairs: dict[int, int] = {}
    taken: set[int] = set()
    for t, p, _ in near(targets, preds):
        if t not in pairs and p not in taken:
            pairs[t] = p
            taken.add(p)
    return list(pairs.items())


# %% [markdown]
# The exact rule is an assignment problem: each pair costs its distance, and a pair that is not near costs more than any number of near ones together, so that no near pair is given up for a shorter way. Of two pairings that are equally near (to a millionth of a pixel) the one is taken that leaves fewer false pixels; otherwise rounding would choose, and a mirrored image could have another Fa. For the same reason 2.9999999999 pixels are taken for the 3 that they are. Only objects with someone near take part. In most images nothing is left to decide, and no problem is posed.

# %%
#| export
def match_exact(
    targets: Objects,
    preds: Objects,
) -> Pairs:
    "As many pairs as possible, then the least total distance, then the largest predictions."
    edges = [edge for edge in near(targets, preds) if edge[2] < RADIUS - 1e-9]
    rows = {t: i for i, t in enumerate(dict.fromkeys(t for t, _, _ in edges))}
    cols = {p: j for j, p in enumerate(dict.fromkeys(p for _, p, _ in edges))}
    if len(edges) == len(rows) == len(cols):  # nothing to decide
        return [(t, p) for t, p, _ in edges]
    far = RADIUS * (len(rows) + 1)  # worse than any pairing of near ones
    tie = 1e-6 / preds.area.sum()
    cost = np.full((len(rows), len(cols)), far)
    for t, p, distance in edges:
        cost[rows[t], cols[p]] = distance - tie * preds.area[p]
    chosen = set(zip(*linear_sum_assignment(cost), strict=True))
    return [(t, p) for t, p, _ in edges if (rows[t], cols[p]) in chosen]


# %% [markdown]
# Two targets, two predictions. The prediction in the middle is near both targets, the other one near the first only. Taken in order, the first target takes the middle prediction and the second goes without:

# %%
targets = Objects(np.array([[10.0, 10.0], [10.0, 14.0]]), np.array([4, 4]))
preds = Objects(np.array([[10.0, 12.0], [12.0, 9.0]]), np.array([3, 3]))
test_eq(len(near(targets, preds)), 3)
test_eq(match_reference(targets, preds), [(0, 0)])
test_eq(sorted(match_exact(targets, preds)), [(0, 1), (1, 0)])
alone, around = Objects(targets.centroid[:1], targets.area[:1]), np.array([[10.0, 8], [10, 12]])
test_eq(match_exact(alone, Objects(around, np.array([3, 5]))), [(0, 1)])
test_eq(match_exact(alone, Objects(around, np.array([5, 3]))), [(0, 0)])

# %% [markdown]
# Fa counts the pixels of predictions that found nothing. Here the reference has a second peculiarity: it removes the matched ones from a list of *areas*, so a false alarm that happens to be as large as some matched prediction is not counted.

# %%
#| export
MATCH = {"exact": match_exact, "reference": match_reference}  # by the name of the rule


@dataclass(frozen=True)
class Found:
    "What one image contributes to Pd and Fa."

    targets: int
    matched: int
    false_pixels: int  # pixels of predictions that found nothing

    def __add__(self, other: "Found") -> "Found":
        "What both contribute."
        return Found(
            self.targets + other.targets,
            self.matched + other.matched,
            self.false_pixels + other.false_pixels,
        )


def find(
    targets: Objects,  # of an image
    preds: Objects,
    rule: str = "exact",  # or "reference"
) -> Found:
    "Match the objects of a prediction with the targets of its image."
    pairs = MATCH[rule](targets, preds)
    matched = [p for _, p in pairs]
    if rule == "exact":
        false = preds.area.sum() - preds.area[matched].sum()
    else:
        false = preds.area[~np.isin(preds.area, preds.area[matched])].sum()
    return Found(len(targets), len(pairs), int(false))


# %%
truth, pred = np.zeros((2, 16, 16), bool)
truth[2:4, 2:4] = True
pred[2:4, 2:4] = True
pred[10:12, 10:12] = True  # a false alarm, as large as the hit
targets, preds = objects(truth), objects(pred)
test_eq(find(targets, preds), Found(targets=1, matched=1, false_pixels=4))
test_eq(find(targets, preds, "reference"), Found(targets=1, matched=1, false_pixels=0))
test_eq(Found(1, 1, 4) + Found(2, 1, 3), Found(targets=3, matched=2, false_pixels=7))


# %% [markdown]
# ## Scores
#
# A score that has no denominator is not 0 and not 1: a set without targets has no Pd. It is NaN, shown as a dash.

# %%
#| export
@dataclass(frozen=True)
class Scores:
    "The scores of a set of images."

    iou: float  # overlap / union of all pixels of the set, 0..1
    niou: float  # mean IoU of the images with a non-empty union, 0..1
    f1: float  # harmonic mean of pixel precision and recall, 0..1
    pd: float  # found targets / targets, 0..1; NaN without targets
    fa: float  # pixels of false alarms per million pixels
    targets: int
    images: int
    rule: str  # how objects were matched

    def __str__(self) -> str:
        "The score line."
        parts = [("IoU", self.iou, 2), ("nIoU", self.niou, 2), ("F1", self.f1, 2)]
        parts += [("Pd", self.pd, 2), ("Fa", self.fa, 1)]
        shown = [f"{k} -" if math.isnan(v) else f"{k} {v:.{d}f}" for k, v, d in parts]
        return "  ".join(shown)

    def as_dict(self) -> dict[str, Any]:
        "The scores for a JSON file, which has no NaN: None instead."
        return {
            k: None if isinstance(v, float) and math.isnan(v) else v
            for k, v in asdict(self).items()
        }


def fraction(part: float, whole: float) -> float:
    "`part / whole`, and NaN where there is nothing to divide by."
    return part / whole if whole else math.nan


# %%
nothing = Scores(0.624, 0.6, 0.77, fraction(0, 0), 12.34, 0, 1, "exact")
test_eq(str(nothing), "IoU 0.62  nIoU 0.60  F1 0.77  Pd -  Fa 12.3")
nothing.as_dict()


# %% [markdown]
# ## Counts first, fractions last
#
# Whole numbers are counted, and divided once, at the end. So a score does not depend on how the images were batched, and sums over devices are exact. The pixels are kept per image, because nIoU is a mean over images; those with an empty union say nothing about overlap and stay out of it.

# %%
#| export
def in_turns(
    parts: list[list[Any]],
    size: int,
) -> list[Any]:  # `size` of the first, `size` of the second, .., and again, until all are taken
    "Lists taken in turns."
    steps = range(0, max(map(len, parts)), size)
    return [x for i in steps for part in parts for x in part[i : i + size]]


# %%
#| export
@dataclass
class Counts:
    "What was counted over a set of images, from which `scores` makes fractions."

    rule: str = "exact"  # or "reference"
    inter: list[int] = field(default_factory=list)  # per image, in pixels
    pred: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    found: list[Found] = field(default_factory=list)
    pixels: int = 0

    def scores(self) -> Scores:
        "The fractions."
        inter, pred, mask = (sum(v) for v in (self.inter, self.pred, self.mask))
        ious = [
            i / (p + m - i)
            for i, p, m in zip(self.inter, self.pred, self.mask, strict=True)
            if p + m - i
        ]
        targets, matched = (sum(getattr(f, k) for f in self.found) for k in ("targets", "matched"))
        return Scores(
            iou=fraction(inter, pred + mask - inter),
            niou=fraction(sum(ious), len(ious)),
            f1=fraction(2 * inter, pred + mask),
            pd=fraction(matched, targets),
            fa=fraction(sum(f.false_pixels for f in self.found) * 1e6, self.pixels),
            targets=targets,
            images=len(self.found),
            rule=self.rule,
        )

    def join(
        self,
        others: list["Counts"],  # of all processes, this one's among them, in their order
        size: int,  # images that each process took of a batch
    ) -> None:
        "Take the counts of processes that shared each batch, in the order of the images."
        for name in ("inter", "pred", "mask", "found"):
            setattr(self, name, in_turns([getattr(other, name) for other in others], size))
        self.pixels = sum(other.pixels for other in others)


# %% [markdown]
# Two images: of four target pixels two were found and one false pixel was added; the other image is empty and was left so. IoU is 2/5, and so is nIoU:

# %%
counted = Counts("exact", [2, 0], [3, 0], [4, 0], [Found(1, 1, 0), Found(0, 0, 0)], 512)
test_eq((counted.scores().iou, counted.scores().niou), (2 / 5, 2 / 5))
test_close(counted.scores().f1, 4 / 7)
print(counted.scores())


# %% [markdown]
# Processes that share the images of each batch count their own, and joined they are the counts of one process, image by image:

# %%
def numbered(*inter):
    "Counts of images with this overlap."
    return Counts("exact", [*inter], [*inter], [*inter], [Found(1, 1, 0)] * len(inter), len(inter))


test_eq(in_turns([[0, 1, 4], [2, 3]], 2), [0, 1, 2, 3, 4])
first, second = numbered(0, 1, 4, 5), numbered(2, 3, 6)  # of batches of four, two images each
first.join([first, second], 2)
test_eq((first.inter, first.pixels), ([0, 1, 2, 3, 4, 5, 6], 7))


# %% [markdown]
# A `Tally` does the counting, on the host: components need the masks there, and once they are there the pixels cost next to nothing. Rows that only fill the last batch are marked `real = False` and count nowhere.

# %%
#| export
class Tally(Counts):
    "Counts the images of batches, as they come."

    def __init__(self, rule: str = "exact") -> None:
        if rule not in MATCH:
            raise ValueError(f"rule={rule!r}: write exact or reference")
        super().__init__(rule)

    def add(
        self,
        logits: Tensor,  # [B,1,H,W]
        mask: Tensor,  # [B,1,H,W] 0 or 1
        real: Tensor | None = None,  # [B] bool; False for rows that only fill the batch
    ) -> list[Objects]:  # the targets of each image, for whoever counts more of them
        "Count the images of a batch."
        if logits.shape != mask.shape:
            shapes = f"logits {tuple(logits.shape)} and mask {tuple(mask.shape)}"
            raise ValueError(f"score: {shapes} differ")
        keep = slice(None) if real is None else real.cpu().numpy()
        pred, truth = ((x.cpu()[:, 0] > 0).numpy()[keep] for x in (logits, mask))
        counts = (pred & truth, self.inter), (pred, self.pred), (truth, self.mask)
        for pixels, values in counts:
            values.extend(int(np.count_nonzero(image)) for image in pixels)
        targets = [objects(t) for t in truth]
        pairs = zip(targets, map(objects, pred), strict=True)
        self.found.extend(find(t, p, self.rule) for t, p in pairs)
        self.pixels += truth.size
        return targets


# %% [markdown]
# And most of the time the set is in memory already:

# %%
#| export
def score(
    logits: Tensor,  # [B,1,H,W]; a pixel is predicted where this is above 0
    mask: Tensor,  # [B,1,H,W] truth, 0 or 1
    rule: str = "exact",  # or "reference": as the published scripts match objects
) -> Scores:
    "The scores of a set of images held in memory."
    tally = Tally(rule)
    tally.add(logits, mask)
    return tally.scores()


# %%
truth, pred = torch.zeros(2, 2, 1, 16, 16)
truth[0, 0, 2:4, 2:4] = 1
pred[0, 0, 2:4, 2:3] = 1
pred[1, 0, 9, 9] = 1
scores = score(pred - 0.5, truth)
test_eq((scores.targets, scores.pd, scores.iou), (1, 1, 2 / 5))
test_close(scores.fa, 1e6 / 512)
print(scores)

# %% [markdown]
# Batching changes nothing, filler rows count nowhere, and no targets means no Pd:

# %%
tally = Tally()
for i in range(2):
    filled = torch.cat([pred[i : i + 1], torch.ones(1, 1, 16, 16)]) - 0.5
    tally.add(filled, torch.cat([truth[i : i + 1]] * 2), torch.tensor([True, False]))
test_eq(tally.scores(), scores)
print(score(pred[1:] - 0.5, truth[1:]))
assert score(pred[1:] - 0.5, truth[1:]).as_dict()["pd"] is None
with expect_fail(ValueError, contains="write exact or reference"):
    Tally("nearest")

# %% [markdown]
# ## At every threshold
#
# One threshold is one point. A curve needs the same counts at many, and for pixels a histogram gives all of them at once: sum it from the top. A trained network gives nearly all pixels a probability below the first step, and those are counted without being sorted into bins.

# %%
#| export
BINS = 1000  # steps of the probability in the histogram


def in_bins(
    prob: np.ndarray,  # [...] 0..1
) -> np.ndarray:  # [BINS]
    "How many probabilities are in each bin."
    scaled = prob * BINS
    some = scaled[~(scaled < 1)]  # not `>= 1`: a NaN must not pass for a small probability
    counts = np.bincount(np.minimum(some.astype(np.int64), BINS - 1), minlength=BINS)
    counts[0] += prob.size - some.size
    return counts


# %%
test_eq(in_bins(np.array([0, 0.0004, 0.0015, 1, 1]))[[0, 1, -1]], [2, 1, 2])


# %%
#| export
class Histogram:
    "Pixels of targets and of background by predicted probability."

    def __init__(self) -> None:
        self.target = np.zeros(BINS, np.int64)
        self.background = np.zeros(BINS, np.int64)

    def add(
        self,
        prob: np.ndarray,  # [...] 0..1
        mask: np.ndarray,  # the same shape, bool
    ) -> None:
        "Count pixels."
        target = in_bins(prob[mask])
        self.target += target
        self.background += in_bins(prob) - target

    def join(self, others: list["Histogram"]) -> None:
        "Take the sum of several, this one among them."
        self.target, self.background = (
            sum(getattr(other, name) for other in others) for name in ("target", "background")
        )

    def curve(self) -> dict[str, np.ndarray]:  # each [BINS], by rising threshold
        "Precision, recall and false positive rate for `prob >= threshold`."
        hit = self.target[::-1].cumsum()[::-1]
        false = self.background[::-1].cumsum()[::-1]
        return {
            "threshold": np.arange(BINS) / BINS,
            "precision": hit / np.maximum(hit + false, 1),
            "recall": hit / max(self.target.sum(), 1),
            "fpr": false / max(self.background.sum(), 1),
        }


# %%
prob = np.random.default_rng(0).random((2, 32, 32))
mask = np.zeros((2, 32, 32), bool)
mask[:, 4:7, 4:7] = True
histogram = Histogram()
histogram.add(prob, mask)
histogram.join([histogram])
curve = histogram.curve()
test_eq(curve["recall"][0], 1)
test_close(curve["precision"][500], mask[prob >= 0.5].mean())


# %% [markdown]
# Objects have no such sum. Components merge as the threshold falls, and whether a merged one still finds its target depends on its new centroid, so they are found and matched anew at each threshold; a few dozen thresholds draw the curve. But the targets are found once per image, the image is cropped once, for the lowest threshold, and the masks of two thresholds lie one within the other: where they have as many pixels they are the same mask, and nothing is looked for twice. On noise, as here, there are many small false alarms high up, and lower down they grow into one large one:

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
                known[pixels] = find(true, components(pred, row, col), rule)
            sums[i] += known[pixels]
    return sums


# %%
[f.false_pixels for f in pd_fa(prob, [objects(m) for m in mask], [0.1, 0.5, 0.9])]
