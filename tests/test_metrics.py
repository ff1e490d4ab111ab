"The scores: pairs as the rules define them, and numbers that depend on nothing else."

import json
import math
from itertools import combinations, permutations

import numpy as np
import plain
import pytest
import torch
from scipy import ndimage
from scipy.optimize import linear_sum_assignment
from skimage.measure import label

from mshnet import metrics
from mshnet.augment import Batch
from mshnet.core import Config
from mshnet.detection import Detection
from mshnet.metrics import BINS, RADIUS, Histogram, Objects, Tally, find, objects, pd_fa, score

seeds = pytest.mark.parametrize("seed", range(20))


def points(rng, most=4):
    "A few objects close together, so that several are near each other."
    count = rng.integers(0, most + 1)
    return Objects(rng.uniform(0, 6, (count, 2)), rng.integers(1, 9, count))


def best(targets, preds):
    "Most pairs and their least total distance, by trying every pairing."
    few, many = sorted((targets.centroid.tolist(), preds.centroid.tolist()), key=len)
    found = (0, 0.0)
    for size in range(1, len(few) + 1):
        for some in combinations(few, size):
            for others in permutations(many, size):
                apart = [math.dist(a, b) for a, b in zip(some, others, strict=True)]
                if max(apart) < RADIUS:
                    found = min(found, (-size, sum(apart)))
    return -found[0], found[1]


@seeds
def test_exact_pairs_are_the_best_of_all_pairings(seed):
    "As many as possible, then the least total distance: what any other program must find too."
    rng = np.random.default_rng(seed)
    for _ in range(20):
        targets, preds = points(rng), points(rng)
        pairs = metrics.match_exact(targets, preds)
        apart = [math.dist(targets.centroid[t], preds.centroid[p]) for t, p in pairs]
        assert len({t for t, _ in pairs}) == len({p for _, p in pairs}) == len(pairs)
        assert max(apart, default=0) < RADIUS
        assert (len(pairs), pytest.approx(sum(apart), abs=1e-5)) == best(targets, preds)


@pytest.mark.parametrize("rule", ["exact", "reference"])
def test_three_pixels_apart_is_too_far(rule):
    "The limit itself is excluded, in the papers and in their scripts."
    mask, pred = np.zeros((2, 16, 16), bool)
    mask[4, 4] = pred[4, 7] = True
    assert find(objects(mask), objects(pred), rule).matched == 0
    pred[4, 6] = True  # the centroid moves to 2.5
    assert find(objects(mask), objects(pred), rule).matched == 1


def labelled(mask):
    "The objects of a mask, by another library than ours."
    labels = label(mask, connectivity=2)
    found = sorted(np.argwhere(labels == i + 1).tolist() for i in range(labels.max()))
    middles = np.array([np.mean(body, 0) for body in found]).reshape(-1, 2)
    return Objects(middles, np.array([len(body) for body in found], int))


def masks(seed):
    "Masks of many kinds: name and [H,W] bool."
    rng, (rows, cols) = np.random.default_rng(seed), np.indices((16, 20))
    for density in (0.003, 0.05, 0.25, 0.6, 0.97):
        yield f"noise {density}", rng.random((16, 20)) < density
    yield "empty", rows < 0
    yield "full", rows >= 0
    yield "rim", (rows % 15 == 0) | (cols % 19 == 0)
    yield "corners", (rows % 15 == 0) & (cols % 19 == 0)
    yield "diagonals", (rows + cols) % 7 == 0
    yield "chess", (rows + cols) % 2 == 0
    yield "every other row and column", (rows % 2 == 0) & (cols % 2 == 0)
    yield "rings", np.maximum(abs(rows - 8), abs(cols - 9)) % 2 == 0
    yield "combs", (cols % 2 == 0) & (rows < 9) | (rows == 9)
    yield "far apart", np.isin(rows, rng.integers(0, 16, 3)) & np.isin(cols, (0, 1, 7, 19))
    for shape in ((1, 30), (30, 1), (1, 1), (3, 40)):
        yield f"{shape}", rng.random(shape) < 0.5


@seeds
def test_objects_are_components_in_raster_order(seed):
    "The reference rule depends on this order, and a centroid on every digit."
    for name, mask in masks(seed):
        have, want = objects(mask), labelled(mask)
        assert have.area.tolist() == want.area.tolist(), name
        assert have.centroid.tolist() == want.centroid.tolist(), name
        assert have.centroid.shape == (len(have), 2)


@seeds
def test_pairs_that_are_near_are_all_found_to_the_last_digit(seed):
    "Centroids on a grid of tenths are often exactly 3 pixels apart, or a rounding error less."
    rng = np.random.default_rng(seed)
    both = [Objects(rng.integers(0, 100, (n, 2)) / 10, np.ones(n, int)) for n in (12, 40)]
    apart = [[float(np.linalg.norm(t - p)) for p in both[1].centroid] for t in both[0].centroid]
    want = [(t, p, d) for t, row in enumerate(apart) for p, d in enumerate(row) if d < RADIUS]
    assert metrics.near(*both) == want


def turned(x):
    "The eight ways of turning and mirroring a pair of images."
    for k in range(4):
        for y in (x, x.flip(-1)):
            yield torch.rot90(y, k, (-2, -1))


@pytest.mark.parametrize("seed", [*range(20), 299])  # 299 has centroids exactly 3 px apart
def test_exact_scores_do_not_depend_on_the_order_of_components(seed):
    "A mirrored image has the same targets and false alarms; only their numbering differs."
    gen = torch.Generator().manual_seed(seed)
    both = (torch.rand(2, 4, 1, 24, 24, generator=gen) < 0.1).float()
    found = {(s.pd, s.fa) for pred, mask in turned(both) for s in [score(pred - 0.5, mask)]}
    assert len(found) == 1


def test_a_tie_goes_to_the_larger_prediction():
    "One target midway between two predictions: Fa must not depend on which comes first."
    mask, pred = torch.zeros(2, 1, 1, 16, 16)
    mask[..., 8, 6:9] = 1
    pred[..., 8, 5] = 1
    pred[..., 7:10, 9] = 1
    found = [score(p - 0.5, m) for p, m in turned(torch.stack([pred, mask]))]
    assert {s.pd for s in found} == {1}
    assert {round(s.fa * 256 / 1e6) for s in found} == {1}


def batches(count, seed=0):
    "Random logits and masks; the first image has neither target nor prediction."
    gen = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, 1, 24, 24, generator=gen) - 1.2
    mask = (torch.rand(count, 1, 24, 24, generator=gen) < 0.05).float()
    logits[0], mask[0] = -1, 0
    return logits, mask


@pytest.mark.parametrize("rule", ["exact", "reference"])
@pytest.mark.parametrize("size", [1, 3, 4])
def test_batching_and_filler_change_nothing(rule, size):
    "A score belongs to the images, not to the machine that held so many of them at once."
    logits, mask = batches(7)
    tally = Detection(Config(rule=rule)).tally()
    for i in range(0, 7, size):
        part, truth = logits[i : i + size], mask[i : i + size]
        filler, rows = torch.ones(size - len(part), 1, 24, 24), [*range(i, i + len(part))]
        rows = torch.tensor(rows + [-1] * len(filler))
        part, truth = (torch.cat([x, filler]) for x in (part, truth))
        tally.add(part, Batch(part, truth, rows))
    assert tally.scores() == score(logits, mask, rule)


def test_pixel_scores_are_counts_of_sets():
    "IoU over the whole set, nIoU over images with a non-empty union, F1 over pixels."
    logits, mask = batches(5)
    both = ([{tuple(q) for q in x[0].nonzero().tolist()} for x in xs] for xs in (logits > 0, mask))
    pairs = list(zip(*both, strict=True))
    inter, union = ([len(a & b) for a, b in pairs], [len(a | b) for a, b in pairs])
    hits, false = sum(inter), sum(len(a - b) for a, b in pairs)
    missed = sum(len(b - a) for a, b in pairs)
    have = score(logits, mask)
    assert have.iou == pytest.approx(sum(inter) / sum(union))
    assert union[0] == 0
    each = [i / u for i, u in zip(inter, union, strict=True) if u]
    assert have.niou == pytest.approx(np.mean(each))
    precision, recall = hits / (hits + false), hits / (hits + missed)
    assert have.f1 == pytest.approx(2 * precision * recall / (precision + recall))


def test_without_targets_or_predictions_there_is_nothing_to_divide_by():
    "Neither 0 nor 1 would be true, and JSON has no NaN; but pixels were looked at."
    nothing, something = torch.full((2, 2, 1, 16, 16), -1.0)
    something[0, 0, 3, 3:5] = 1
    have = score(something, torch.zeros(2, 1, 16, 16))
    assert math.isnan(have.pd) and have.targets == 0 and have.as_dict()["pd"] is None
    assert str(have) == "IoU 0.00  nIoU 0.00  F1 0.00  Pd -  Fa 3906.2"
    assert str(score(nothing, 0 * nothing)) == "IoU -  nIoU -  F1 -  Pd -  Fa 0.0"
    assert str(Tally().scores()) == "IoU -  nIoU -  F1 -  Pd -  Fa -"


@seeds
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_each_pixel_is_in_the_bin_of_its_probability(seed, kind):
    "At the edges of the bins too, where one rounding more or less decides."
    rng = np.random.default_rng(seed)
    edges = (np.arange(BINS + 1) / BINS).astype(kind)
    values = [edges, np.nextafter(edges[1:], kind(0)), np.nextafter(edges[:-1], kind(1))]
    prob = np.concatenate([*values, rng.random(999) ** 9]).astype(kind).reshape(-1, 25)
    mask = rng.random(prob.shape) < 0.3
    target, background = np.zeros((2, BINS), int)
    for p, m in zip(prob.ravel(), mask.ravel(), strict=True):
        (target if m else background)[min(int(p * kind(BINS)), BINS - 1)] += 1
    histogram = Histogram()
    histogram.add(prob, mask)
    assert histogram.counts.tolist() == [target.tolist(), background.tolist()]


def plainly(pred, mask, rule):
    "Targets, matches and false pixels: components, and one assignment of all to all."
    if rule == "reference":
        return plain.match(pred, mask)
    targets, preds = labelled(mask), labelled(pred)
    apart = np.linalg.norm(targets.centroid[:, None] - preds.centroid[None], axis=2)
    close = apart < RADIUS - 1e-9
    tie = 1e-6 * preds.area / max(preds.area.sum(), 1)
    rows, cols = linear_sum_assignment(np.where(close, apart - tie, 1e4))
    hits = cols[close[rows, cols]]
    return len(targets), len(hits), preds.area.sum() - preds.area[hits].sum()


def test_an_image_of_noise_is_scored():
    "Thousands of components, as an untrained network makes them."
    rng = np.random.default_rng(0)
    pred, mask = rng.random((256, 256)) < 0.1, rng.random((256, 256)) < 0.004
    have = find(objects(mask), objects(pred))
    assert len(objects(pred)) > 3000
    assert (have.targets, have.matched, have.false_pixels) == plainly(pred, mask, "exact")


LEVELS = [0.001, 0.01, 0.05, 0.25, 0.5, 0.5, 0.75, 0.95, 0.999]


def probabilities(seed):
    "Images of many kinds: name and [H,W] float32, with values that are thresholds themselves."
    rng, (rows, cols) = np.random.default_rng(seed), np.indices((24, 28))
    noise = rng.random((24, 28))
    yield "noise", noise
    yield "smooth", ndimage.gaussian_filter(noise, 1) ** 8 * 100 % 1
    yield "few levels", rng.choice([0, *LEVELS, 1], (24, 28), p=[0.7, *[0.03] * 10])
    yield "spots", np.exp(-((rows % 11 - 5) ** 2) / 3 - (cols % 13 - 6) ** 2 / 5)
    yield "one pixel", (rows == 23) & (cols == 27)
    yield "nothing", np.zeros((24, 28))
    yield "everything", np.ones((24, 28))


@seeds
@pytest.mark.parametrize("rule", ["exact", "reference"])
def test_the_object_curve_is_counting_anew_at_each_threshold(seed, rule):
    "Shared targets, one crop and masks that are equal at several thresholds change nothing."
    rng = np.random.default_rng(seed)
    for name, prob in probabilities(seed):
        prob, mask = prob.astype(np.float32), rng.random((24, 28)) < rng.choice([0, 0.01, 0.05])
        for levels in (LEVELS, LEVELS[::-1], [np.float64(0.05)]):
            have = pd_fa(prob[None], [objects(mask)], levels, rule)
            want = [plainly(prob > level, mask, rule) for level in levels]
            assert [(f.targets, f.matched, f.false_pixels) for f in have] == want, name


def test_the_object_curve_of_several_images_is_their_sum():
    "Each image has its own targets."
    logits, mask = batches(4)
    probs, truth = torch.sigmoid(logits)[:, 0].numpy(), mask[:, 0].numpy() > 0
    targets = [objects(m) for m in truth]
    singles = [pd_fa(probs[i : i + 1], targets[i : i + 1], LEVELS) for i in range(4)]
    for have, *parts in zip(pd_fa(probs, targets, LEVELS), *singles, strict=True):
        assert have == sum(parts, metrics.Found(0, 0, 0))


@pytest.mark.parametrize("rule", ["exact", "reference"])
def test_the_counts_of_each_image_are_plain_numbers(rule):
    "They are written as JSON."
    logits, mask = batches(5)
    tally = Tally(rule)
    tally.add(logits, mask.to(torch.uint8))
    pred, truth = ((x[:, 0] > 0).numpy() for x in (logits, mask))
    found = json.loads(json.dumps([list(vars(f).values()) for f in tally.images]))
    for counted, p, m in zip(found, pred, truth, strict=True):
        pixels = [(p & m).sum(), p.sum(), m.sum(), m.size]
        assert counted == list(map(int, [*plainly(p, m, rule), *pixels]))


BATCH = torch.ones(1, 1, 8, 8)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ((BATCH, torch.zeros(1, 1, 8, 1)), "differ"),  # and would be broadcast
        ((BATCH, torch.zeros(2, 1, 8, 8)), "differ"),
        ((BATCH[0, 0], BATCH[0, 0]), r"\(8, 8\) are NaN, or not \[B,1,H,W\]"),
        ((BATCH.reshape(1, 2, 8, 4),) * 2, "or not"),
        ((BATCH / 2, BATCH), "these are probabilities"),
        ((BATCH * np.nan, BATCH), "NaN"),
        ((BATCH, BATCH * np.nan), "mask has NaN or fractions"),
        ((BATCH, BATCH / 5), "mask has NaN or fractions"),
        ((BATCH, BATCH.cumsum(3)), "mask has grey levels"),
        ((BATCH.cumsum(3).byte(), BATCH), "prediction has grey levels"),
        ((BATCH, BATCH, "nearest"), "rule='nearest': use exact or reference"),
    ],
)
def test_what_cannot_be_scored_is_refused(asked, said):
    assert score(BATCH.numpy(), BATCH.bool()).iou == score(BATCH, 255 * BATCH).iou == 1  # can be
    assert score(np.uint16(BATCH), np.uint16(BATCH)).iou == 1
    assert score(0 * BATCH, BATCH).pd == 0  # an untrained head may output exactly 0
    with pytest.raises(ValueError, match=said):
        score(*asked)
