# %% [markdown]
# # Analysis: what is behind a score
#
# > A record of each target, and curves over all thresholds.
#
# A network scores an IoU of 0.6. Which targets does it miss: the small ones, or those that hardly stand out? Would a lower threshold find them, and for how many false alarms? A score answers none of that. The final evaluation of a run therefore records more than the evaluation of an epoch:
#
# - of each target its size, its contrast, and whether it was found;
# - the pixels by probability, for precision and recall at every threshold;
# - the objects at 23 thresholds, for Pd against Fa.

# %%
#| hide
#| default_exp analyse
import json
from pathlib import Path

import matplotlib.pyplot as plt

from mshnet.device import open_device
from mshnet.recipe import Config
from mshnet.task import make_task, score_split, trained_model

# %%
#| export
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.ndimage import find_objects, label
from torch import Tensor, nn

from mshnet.augment import Batch, unpadded
from mshnet.data import Split
from mshnet.device import Device
from mshnet.metrics import MATCH, Found, Histogram, Objects, objects, pd_fa
from mshnet.task import Evaluation, Origin, RowTally, Task, count_predictions, protocol

# %% [markdown]
# ## What the records show
#
# Left: each dot is a target in the test scenes of a [short run](../results/README.md) (`scenes-quick`), by its contrast and its size. All three misses hardly stand out: of 14 targets with a contrast below 2.4 three are missed, of the 115 above none. None of the misses is among the smallest targets: all 31 targets below 18 pixels are found. Right: the trade-off of a run on real images (`nuaa-sirst-paper`). The threshold falls from left to right. From 0.999 to 0.001 the false alarms double, and Pd changes by less than a hundredth: the network is so sure of its errors that no threshold removes most of them.

# %%
files = [Path(f"../results/{run}/details.json") for run in ("scenes-quick", "nuaa-sirst-paper")]
scenes, real = (json.loads(file.read_text()) for file in files)
found = [t for t in scenes["targets"] if t["matched"]]
missed = [t for t in scenes["targets"] if not t["matched"]]
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
scr, area = ([t[name] for t in found] for name in ("scr", "area"))
dots = left.scatter(scr, area, c=[t["iou"] for t in found])
left.scatter([t["scr"] for t in missed], [t["area"] for t in missed], c="red", marker="x", s=60)
left.set(xlabel="contrast: signal-to-clutter ratio", ylabel="size in pixels")
left.set_title(f"{len(found)} targets found, {len(missed)} missed (crosses)")
figure.colorbar(dots, ax=left, label="IoU of the prediction that found it")
curve = real["curves"]["objects"]
right.plot(curve["fa"], curve["pd"], "o-")
for at in (0.001, 0.01, 0.5, 0.999):
    i = curve["threshold"].index(at)
    place = curve["fa"][i], curve["pd"][i]
    right.annotate(at, place, (place[0], 0.94), rotation=45, arrowprops={"arrowstyle": "-"})
right.set(xlabel="Fa, false pixels per million", ylabel="Pd", xlim=(0, 125), ylim=(0.85, 0.97))
right.set_title("Targets against false alarms, by threshold");

# %% [markdown]
# ## The machinery: a target's contrast
#
# The *signal-to-clutter ratio* measures how far the mean grey level of a target lies from that of its surroundings, in standard deviations of the surroundings:
#
# $$\mathrm{SCR} = \frac{|\mu_t - \mu_b|}{\sigma_b}$$
#
# The formula is that of Gao et al., *Infrared Patch-Image Model for Small Target Detection in a Single Image*, IEEE Transactions on Image Processing 22 (2013). The surroundings are a convention. Ours are the target's box with 20 pixels added on each side, without the pixels of any target, in the image that is scored. The standard deviation is at least the quantisation noise of integer grey levels, $1/\sqrt{12}$, also where the surroundings are perfectly flat.

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
print("50 grey levels above noise of 10:", signal_to_clutter(grey, spot, spot))
assert signal_to_clutter(spot * 1.0, spot, spot) == round(12**0.5, 3)


# %% [markdown]
# ### Each target's record
#
# The record of a target contains its place, its size and its contrast, the IoU with the prediction that found it, how many of its pixels were predicted, and the highest probability in it.

# %%
#| export
def target_records(
    grey: np.ndarray,  # [S,S] grey levels
    prob: np.ndarray,  # [S,S] 0..1
    pred: np.ndarray,  # [S,S] bool
    mask: np.ndarray,  # [S,S] bool
    targets: Objects,  # of the mask
    rule: str,
) -> list[dict[str, Any]]:  # of each target
    "Record an image, target by target."
    truth, guess = (label(m, np.ones((3, 3), bool))[0] for m in (mask, pred))
    preds, records = objects(pred), []
    paired = dict(MATCH[rule](targets, preds))
    for t, ((row, col), area) in enumerate(zip(targets.centroid, targets.area, strict=True)):
        own, iou = truth == t + 1, None  # of the prediction that found it
        if t in paired:
            shared = np.count_nonzero(own & (guess == paired[t] + 1))
            iou = round(float(shared / (area + preds.area[paired[t]] - shared)), 4)
        records.append(
            {"row": round(float(row), 2), "col": round(float(col), 2)}
            | {"area": int(area), "scr": signal_to_clutter(grey, own, mask)}
            | {"matched": t in paired, "iou": iou, "covered": int((own & pred).sum())}
            | {"peak": round(float(prob[own].max()), 4)}
        )
    return records


# %% [markdown]
# One prediction of ten pixels covers parts of two targets. Its centroid is near neither of them, so both are missed, although half of their pixels are predicted:

# %%
truth, pred = np.zeros((2, 32, 32), bool)
truth[4:6, 4:6] = truth[4:6, 12:14] = True
pred[4, 4:14] = True
seen = target_records(pred * 100.0, pred * 0.9, pred, truth, objects(truth), "exact")
print(*({name: t[name] for name in ("area", "matched", "covered")} for t in seen), sep="\n")

# %% [markdown]
# ### Curves
#
# The curves of pixels are stored at a hundred thresholds, which the histogram gives at once. Objects must be matched anew at each threshold, and 23 are enough.

# %%
#| export
THRESHOLDS = [round(t, 3) for t in (0.001, 0.01, *np.arange(0.05, 1, 0.05), 0.99, 0.999)]


def _curves(histogram: Histogram, found: Sequence[Found], pixels: int) -> dict[str, Any]:
    "The curves of details.json; Pd is None without targets, Fa is per million pixels."
    return {
        "pixels": {k: v[::10].round(6).tolist() for k, v in histogram.curve().items()},
        "objects": {
            "threshold": THRESHOLDS,
            "pd": [f.matched / f.targets if f.targets else None for f in found],
            "fa": [f.false_pixels * 1e6 / max(pixels, 1) for f in found],
        },
    }


# %% [markdown]
# ### One pass
#
# `evaluate_split` collects all records in one pass over the split. Below the code are two of its records, those of an image and of the first target in it, for the pretrained weights:

# %%
#| export
def evaluate_split(
    task: Task, model: nn.Module, split: Split, device: Device, phase: str, weights: Origin
) -> Evaluation:
    "Score a split, with its curves and a record of each image and target."
    rule, tally, histogram = task.config.rule, task.tally(), Histogram()
    found, seen = list[list[Found]](), RowTally()  # the records of each image's targets

    def count(logits: Tensor, batch: Batch) -> None:
        "Count a batch in all ways."
        tally.add(logits, batch)
        real = batch.row >= 0
        logits, image = (unpadded(x, batch.mask)[real] for x in (logits, batch.image))
        planes = logits.sigmoid(), logits > 0, batch.mask[real] > 0
        prob, pred, mask = (x[:, 0].numpy() for x in planes)
        histogram.add(prob, mask)
        targets, grey = [objects(m) for m in mask], image.float().mean(1).numpy()
        records = map(target_records, grey, prob, pred, mask, targets, itertools.repeat(rule))
        seen.rows |= zip(batch.row[real].tolist(), records, strict=True)
        found.append(pd_fa(prob, targets, THRESHOLDS, rule))

    count_predictions(count, task, model, split, device, phase, "batches")
    ranks = device.ranks
    tally.gather(ranks)
    histogram.merge(ranks.all_gather(histogram))
    seen.gather(ranks)
    batches = zip(*itertools.chain.from_iterable(ranks.all_gather(found)), strict=True)
    sums = [sum(each, Found(0, 0, 0)) for each in batches]  # of each threshold
    images = [{"name": split.names[row], **vars(one)} for row, one in tally.rows.items()]
    records = [{"name": split.names[row], **one} for row, some in seen.rows.items() for one in some]
    scores, pixels = tally.scores(), sum(one["pixels"] for one in images)
    details = {"images": images, "curves": _curves(histogram, sums, pixels), "targets": records}
    facts = protocol(task, split, scores, device, weights)
    return Evaluation(scores, facts, task.config.model_dump(), details)


# %%
task, device = make_task(Config(scenes=12, base_size=96)), open_device("cpu", "fp32")
test, trained = task.splits(["test"])["test"], trained_model("pretrained")
result = evaluate_split(task, trained.model, test, device, "full", trained.origin)
assert result.scores == score_split(task, trained.model, test, device, "full")
print(result.details["images"][0], result.details["targets"][0], sep="\n")

# %% [markdown]
# ## Questions
#
# 1. One prediction spans two targets, and both are missed. Which number shows that they were seen?
#    <details><summary>Answer</summary><code>covered</code>: the pixels of each target that were predicted. A target that the network did not see has 0.</details>
# 2. The contrast of a target doubles if you halve the noise of its surroundings. Did the target change?
#    <details><summary>Answer</summary>No. SCR describes the target in its place. The same spot is easy on a flat sky and difficult in broken cloud.</details>
