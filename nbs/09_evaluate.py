# %% [markdown]
# # evaluate
#
# > Score weights on a split, with the protocol beside the numbers; predict masks for images.

# %%
#| default_exp evaluate

# %%
#| hide
import tempfile

from fastcore.test import expect_fail, test_close, test_eq

# %%
#| export
import copy
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial, reduce
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.ndimage import white_tophat
from torch import Tensor, nn

from mshnet.core import Config, UserError, as_user_error
from mshnet.data import Batch, Split, ahead, pairs_of, read_dataset, squash
from mshnet.device import DeviceSteps, open_device
from mshnet.metrics import Found, Histogram, Scores, Tally, pd_fa, score
from mshnet.model import MSHNet, load_weights
from mshnet.places import installed, program_folder
from mshnet.run import bar, write_json
from mshnet.task import Detection, Task, normalise


# %% [markdown]
# Two programs that score the same masks get different numbers if they differ in the resize, the threshold, the matching rule or the choice of the epoch. So there is one scoring loop, used after every epoch, at the end of a run and by `mshnet test`, and a result is never a bare number.
#
# ## The loop

# %%
#| export
def predictions(
    task: Task,
    model: nn.Module,  # on the device
    split: Split,
    device: DeviceSteps,
    phase: str,  # "warm-up": the single head; "full": the fused prediction
) -> Generator[tuple[Tensor, Batch]]:  # logits [B,1,S,S] float32, the batch; on the host
    "Predict this process's share of a split in batches of one shape, in order."
    model.eval()
    step = device.begin("scoring", model)
    plan = device.share(task.plan(split, None))
    workers = device.workers(task.config.num_workers)
    batches = ahead(lambda rows: task.batch(split, rows, None), plan, workers)
    for batch in bar(batches, len(plan), f"score {split.name}"):
        parts = device.parts(device.feed(batch))
        with device.in_memory(task.config.batch_size):
            found = [device.predict(partial(task.logits, step, part, phase)) for part in parts]
        logits = torch.cat(found)
        if not logits.isfinite().all():
            raise UserError(
                f"{split.name}: the prediction is no number (NaN), so the weights are spoiled; go "
                "back to an earlier checkpoint; in training try --clip-grad 1 or a smaller --lr"
            )
        yield logits, batch


# %% [markdown]
# An accelerator need not wait while the host counts. A batch is counted in a thread while the next is predicted: one thread, so batches are counted one after the other and in order, by the same `ahead` that makes batches before they are needed. An error in it is raised here, and it ends with the loop, however that ends. (A CPU, whose cores all compute, counts in turn.)

# %%
#| export
def count_predictions(
    count: Callable[[Tensor, Batch], object],  # of the logits and the batch, on the host
    task: Task,
    model: nn.Module,
    split: Split,
    device: DeviceSteps,
    phase: str,
) -> None:
    "Call `count` with each batch of predictions, in a thread of its own where that is no burden."
    with closing(predictions(task, model, split, device, phase)) as predicted:
        for _ in ahead(lambda pair: count(*pair), predicted, device.workers(-1) and 1):
            pass


def score_split(
    task: Task,
    model: nn.Module,
    split: Split,
    device: DeviceSteps,
    phase: str,
) -> Scores:
    "The scores of a split."
    tally = task.tally()
    count_predictions(
        lambda logits, batch: tally.add(logits, batch.mask, batch.real),
        *(task, model, split, device, phase),
    )
    tally.join(device.gather(tally), task.config.batch_size // device.processes)
    return tally.scores()


# %%
config = Config(
    scenes=12, base_size=32, crop_size=32, choose="last", device="cpu", precision="fp32"
)
task, device = Detection(config), open_device("cpu", "fp32")
parts, model = task.splits(), task.model()
first = [logits.shape for logits, _ in predictions(task, model, parts["train"], device, "full")]
test_eq((len(first), tuple(first[-1])), (3, (4, 1, 32, 32)))
shapes = []
count_predictions(
    lambda logits, _: shapes.append(logits.shape), task, model, parts["train"], device, "full"
)
test_eq(shapes, first)
print(score_split(task, model, parts["test"], device, "full"))

# %% [markdown]
# ## The protocol
#
# Everything a reader needs to know whether two numbers can be compared. `chosen` says which epoch it is and by what it was chosen: a number whose epoch was chosen on the test list is better than it should be, and says so here.

# %%
#| export
RESIZE = "both sides squashed to base_size (image bilinear, mask nearest, Pillow)"


def protocol(
    config: Config,
    split: Split,
    scores: Scores,
    device: DeviceSteps,
    chosen: str,  # such as "epoch 399, the last"
    seed: int | None,  # of the weights, where it is known
) -> dict[str, Any]:
    "How a score came about."
    return {
        "data": split.source,
        "split": split.name,
        "split_hash": split.hash,
        "images": scores.images,
        "targets": scores.targets,
        "size": config.base_size,
        "resize": RESIZE,
        "threshold": 0.5,
        "rule": scores.rule,
        "chosen": chosen,
        "seed": seed,
        "device": device.why,
        "precision": device.precision,
        "mshnet": installed("mshnet"),
        "torch": torch.__version__,
    }


# %% [markdown]
# ## All that is worth knowing of a split
#
# The final evaluation does more than an epoch's: the counts of each image (to find the worst), the pixels' histogram by probability (precision and recall at every threshold) and the objects at two dozen thresholds (Pd against Fa).

# %%
#| export
THRESHOLDS = [round(t, 3) for t in (0.001, 0.01, *np.arange(0.05, 1, 0.05), 0.99, 0.999)]


@dataclass(frozen=True)
class Evaluation:
    "Scores of a split with their protocol and with what the curves and the gallery are drawn from."

    scores: Scores
    protocol: dict[str, Any]
    images: list[dict[str, Any]]  # per image: name, pixels, targets, matched, false_pixels
    curves: dict[str, Any]  # lists: thresholds and what was counted there

    def save(self, folder: Path) -> None:
        "Write scores.json and details.json."
        line = str(self.scores)
        scores = {"line": line, "scores": self.scores.as_dict(), "protocol": self.protocol}
        write_json(folder / "details.json", {"images": self.images, "curves": self.curves})
        write_json(folder / "scores.json", scores)


# %% [markdown]
# One pass over the split gathers all of it:

# %%
#| export
def look_closely(
    task: Task,
    model: nn.Module,
    split: Split,
    device: DeviceSteps,
    phase: str,
    chosen: str,
    seed: int | None = None,
) -> Evaluation:
    "Score a split with its curves and its images one by one."
    tally, histogram = task.tally(), Histogram()
    found = [Found(0, 0, 0)] * len(THRESHOLDS)

    def count(logits: Tensor, batch: Batch) -> None:
        "Count a batch in all ways."
        targets = tally.add(logits, batch.mask, batch.real)
        prob = torch.sigmoid(logits)[batch.real, 0].numpy()
        histogram.add(prob, batch.mask[batch.real, 0].numpy() > 0)
        found[:] = add(found, pd_fa(prob, targets, THRESHOLDS, task.config.rule))

    count_predictions(count, task, model, split, device, phase)
    tally.join(device.gather(tally), task.config.batch_size // device.processes)
    histogram.join(device.gather(histogram))
    found = reduce(add, device.gather(found))
    scores = tally.scores()
    return Evaluation(
        scores,
        protocol(task.config, split, scores, device, chosen, seed),
        per_image(tally, split),
        {"pixels": pixel_curve(histogram), "objects": object_curve(found, tally.pixels)},
    )


# %% [markdown]
# Curves are kept as fractions at the thresholds that matter, not as a thousand points.

# %%
#| export
def add(one: Sequence[Found], other: Sequence[Found]) -> list[Found]:
    "Sums of two counts, threshold by threshold."
    return [a + b for a, b in zip(one, other, strict=True)]


def per_image(tally: Tally, split: Split) -> list[dict[str, Any]]:
    "The counts of each image."
    rows = zip(split.names, tally.inter, tally.pred, tally.mask, tally.found, strict=True)
    return [
        {"name": n, "inter": i, "pred": p, "mask": m, **vars(found)} for n, i, p, m, found in rows
    ]


def pixel_curve(histogram: Histogram) -> dict[str, list[float]]:
    "Precision and recall at every hundredth of a probability."
    return {k: v[::10].round(6).tolist() for k, v in histogram.curve().items()}


def object_curve(found: Sequence[Found], pixels: int) -> dict[str, list[Any]]:
    "Pd (a fraction; None without targets) and Fa (per million pixels) at each threshold."
    return {
        "threshold": THRESHOLDS,
        "pd": [f.matched / f.targets if f.targets else None for f in found],
        "fa": [f.false_pixels * 1e6 / max(pixels, 1) for f in found],
    }


# %%
result = look_closely(task, model, parts["test"], device, "full", "untrained")
test_eq(result.scores, score_split(task, model, parts["test"], device, "full"))
assert isinstance(result, Evaluation)
test_eq((len(result.images), result.protocol["rule"]), (3, "exact"))
with tempfile.TemporaryDirectory() as tmp:
    result.save(Path(tmp))
    test_eq(sorted(p.name for p in Path(tmp).iterdir()), ["details.json", "scores.json"])
test_eq(object_curve(add([Found(2, 1, 3)] * 2, [Found(2, 1, 3)] * 2), 10**6)["pd"], [0.5, 0.5])
assert protocol(config, parts["test"], result.scores, device, "x", None)["resize"] == RESIZE
test_eq(len(pixel_curve(Histogram())["recall"]), 100)
test_eq(per_image(task.tally(), parts["test"].part("test", [])), [])
result.images[0]


# %% [markdown]
# ## From a weights file
#
# `evaluate` is what `mshnet test` calls. Which epoch the weights are of, and by what it was chosen, stands beside the scores again.

# %%
#| export
def chosen_by(
    config: dict[str, Any],  # of the run
    best: dict[str, Any],  # of its checkpoint
) -> str:  # one phrase for the protocol
    "Which epoch was kept, and by what."
    if config["choose"] == "last":
        return f"epoch {best['epoch']}, the last"
    if best["name"] is None:
        return f"epoch {best['epoch']}, the last one, as the one that was chosen is damaged"
    where = {"val": "a held-out part of the training list", "test": "the TEST list itself"}
    return f"epoch {best['epoch']}, by {best['name']} on {where[config['choose']]}"


# %% [markdown]
# A checkpoint of ours knows that of itself. Published weights know nothing, and have been trained to the end.

# %%
#| export
@dataclass(frozen=True)
class Trained:
    "A model with weights from a file, and what the file says of them."

    model: MSHNet  # on the CPU
    phase: str  # the phase it was trained to
    chosen: str  # which epoch, by what
    seed: int | None  # None: not known
    said: dict[str, Any] = field(default_factory=dict)  # the checkpoint's own words; {}: published


def trained_model(
    path: str | Path,  # a run's checkpoint or published weights
) -> Trained:
    "A model with weights from a file; UserError if that cannot be."
    model = MSHNet()
    with as_user_error():
        content = load_weights(model, path)
    if not isinstance(content, dict) or not content.get("best"):
        return Trained(
            model, "full", f"weights {Path(path).name}; how they were chosen: not known", None
        )
    try:
        said = {name: content[name] for name in ("phase", "epoch", "best", "config")}
        best, config = said["best"], said["config"]
        chosen, seed = chosen_by(config, best), int(config["seed"])
        if said["epoch"] != best["epoch"]:
            chosen = f"epoch {said['epoch']}, named by its file {Path(path).name}"
    except (KeyError, TypeError, ValueError, RuntimeError):
        raise UserError(f"{path}: has weights, but what it says of them makes no sense") from None
    return Trained(model, str(said["phase"]), chosen, seed, said)


# %% [markdown]
# Scoring needs the test list alone, so a folder without a training list will do.

# %%
#| export
def evaluate(
    config: Config,  # weight_path names the weights
) -> Evaluation:
    "Score weights on the test list of a data set."
    if not config.weight_path:
        raise UserError(
            "weight_path is empty: name the weights to score, such as runs/NAME/best.pt"
        )
    trained = trained_model(config.weight_path)
    device = open_device(config.device, config.precision, config.num_devices, config.debug_xla)
    if config.num_devices > 1 and device.world == 1:
        text = "num_devices is for training; to score in several processes start them by torchrun"
        warnings.warn(text, stacklevel=2)
    device.keep(program_folder(config))
    fits = -(-config.batch_size // device.world) * device.world  # no score depends on it
    config = config.model_copy(update={"batch_size": fits})
    task = Detection(config)
    parts, findings = read_dataset(config, ["test"])
    findings.settle(config.on_bad_image)
    model = device.place(trained.model)
    return look_closely(
        task, model, parts["test"], device, trained.phase, trained.chosen, trained.seed
    )


# %%
with tempfile.TemporaryDirectory() as tmp:
    path = f"{tmp}/best.pt"
    torch.save({"state_dict": model.state_dict()}, path)
    trained = trained_model(path)
    assert isinstance(trained, Trained) and trained.phase == "full" and trained.seed is None
    again = evaluate(config.model_copy(update={"weight_path": path}))
test_eq(again.scores.images, 3)
with expect_fail(UserError, contains="name the weights"):
    evaluate(config)
print(again.scores, "|", again.protocol["chosen"])
chosen_by({"choose": "test"}, {"epoch": 7, "name": "iou"})


# %% [markdown]
# ## A yardstick
#
# Before networks, small targets were found by a top-hat filter: subtract from the image its opening, and what is smaller than the window and brighter than its surroundings remains. It is the yardstick here, because a network that does not beat it has learned nothing new.

# %%
#| export
def top_hat_filter(
    image: np.ndarray,  # [S,S] grey levels 0..255
    window: int,  # side of the square, in pixels
) -> np.ndarray:  # [S,S] whole numbers 0..255
    "What is brighter than its surroundings and smaller than the window."
    return white_tophat(np.round(image).astype(np.int16), size=(window, window))


@dataclass(frozen=True)
class TopHat:
    "The best top-hat filter for some training images, and what it scores on the test images."

    window: int
    threshold: int  # a response above this is a detection
    scores: Scores


def responses(
    split: Split,
    size: int,  # side of the scored image
    window: int,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:  # of each image: responses [S,S], mask [S,S]
    "The filter's responses to a split's images, one after the other."
    for pair in pairs_of(split):
        image, mask = squash(*pair, size)
        grey = image if image.ndim == 2 else image.mean(-1)
        yield top_hat_filter(grey, window), mask > 0


# %% [markdown]
# Its window and threshold are chosen on the training images, all thresholds at once from a histogram of the responses.

# %%
#| export
def top_hat(
    train: Split,
    test: Split,
    size: int,
    rule: str = "exact",
) -> TopHat:
    "Choose window and threshold by the training images' IoU, score the test images."
    best = (-1.0, 0, 0)
    for window in (3, 5, 7, 9, 11):
        hit, false = np.zeros(256, np.int64), np.zeros(256, np.int64)
        for found, mask in responses(train, size, window):
            hit += np.bincount(found[mask], minlength=256)
            false += np.bincount(found[~mask], minlength=256)
        targets = hit.sum()
        hit, false = (counts[::-1].cumsum()[::-1] for counts in (hit, false))
        iou = hit / np.maximum(targets + false, 1)  # of responses of at least 0, 1, 2 ..
        best = max(best, (float(iou.max()), window, int(iou.argmax()) - 1))
    _, window, threshold = best
    found, mask = (np.stack(part) for part in zip(*responses(test, size, window), strict=True))
    logits = torch.from_numpy(found - threshold).float()[:, None]
    return TopHat(window, threshold, score(logits, torch.from_numpy(mask)[:, None], rule))


# %%
yardstick = top_hat(parts["train"], parts["test"], 32)
assert next(responses(parts["test"], 32, 5))[0].max() <= 255 and isinstance(yardstick, TopHat)
spot = np.zeros((9, 9))
spot[4, 4] = 100
test_eq(top_hat_filter(spot + 50, 3), spot)
print(yardstick.window, yardstick.threshold, yardstick.scores)


# %% [markdown]
# ## Predicting
#
# For images that are in memory already: any size that the network takes, one probability per pixel. Who predicts more than once keeps a `Detector`: the weights are read and placed once.

# %%
#| export
class Detector:
    "Weights on a device: called with images it gives the probability of target of each pixel."

    def __init__(
        self,
        weights: str | Path | MSHNet,  # a file, or a model
        device: str = "auto",
        precision: str = "auto",
    ) -> None:
        self.device, self.deep = open_device(device, precision), True
        self.why = self.device.why  # the device and its precision, in words
        if isinstance(weights, MSHNet):
            self.name, model = type(weights).__name__, copy.deepcopy(weights)
        else:
            trained = trained_model(weights)
            self.name, model = Path(weights).name, trained.model
            self.deep = trained.phase == "full"
        self.model = self.device.begin("predicting", self.device.place(model).eval())

    def __call__(
        self,
        images: Tensor,  # [B,3,H,W] uint8, height and width multiples of 16
        batch_size: int = 4,  # images computed at once
    ) -> Tensor:  # [B,1,H,W] float32, 0..1, on the CPU
        "Probabilities of target."
        expect_bytes(images)
        size = -(-batch_size // self.device.world) * self.device.world
        return torch.cat([self.part(rows, size) for rows in images.split(size)])

    def part(self, rows: Tensor, size: int) -> Tensor:
        "Probabilities of one batch; a compiler gets full ones only, and so compiles once."
        more = size - len(rows) if self.device.compiles else 0
        sent = self.device.send(torch.cat([rows, rows[:1].expand(more, -1, -1, -1)]))
        logits = self.device.predict(partial(logits_of, self.model, sent, self.deep))
        return torch.sigmoid(logits)[: len(rows)]


# %% [markdown]
# What it is called with, and what it computes:

# %%
#| export
def expect_bytes(images: Tensor) -> None:
    "ValueError unless these are images as a detector takes them."
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
        raise ValueError(
            f"predict: images are {images.dtype} {tuple(images.shape)}, not uint8 [B,3,H,W]"
        )


def logits_of(model: nn.Module, images: Tensor, deep: bool) -> Tensor:  # [B,1,H,W] float32
    "The prediction of the fused head, or of the single one, for images on the device."
    return model(normalise(images), deep=deep)[1].float()


# %% [markdown]
# And in one call:

# %%
#| export
def predict(
    weights: str | Path | MSHNet,  # a file, or a model
    images: Tensor,  # [B,3,H,W] uint8, height and width multiples of 16
    device: str = "auto",
    batch_size: int = 4,
    precision: str = "auto",
) -> Tensor:  # [B,1,H,W] float32 probability of target, 0..1, on the CPU
    "Probabilities of target for images in memory."
    return Detector(weights, device, precision)(images, batch_size)


# %%
images = torch.randint(0, 256, (3, 3, 48, 32), dtype=torch.uint8)
probs = predict(model, images, device="cpu")
test_close(torch.sigmoid(logits_of(model, images, True)).detach(), probs, eps=0.05)
detector = Detector(model, "cpu")
test_close(detector(images[2:]), probs[2:], eps=1e-2)
with expect_fail(ValueError, contains="not uint8"):
    predict(model, images.float())
expect_bytes(images)
detector.name, detector.why, tuple(probs.shape)
