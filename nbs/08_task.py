# %% [markdown]
# # task
#
# > All that the training loop knows of a problem, and MSHNet's detection as the first one.

# %%
#| default_exp task

# %%
#| hide
import tempfile

from fastcore.test import expect_fail, test_close, test_eq

# %%
#| export
import hashlib
import math
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from mshnet.core import (
    TASKS,
    Config,
    Settings,
    UserError,
    did_you_mean,
    resolve,
    settings_class,
    shown,
)
from mshnet.data import (
    Batch,
    Pixels,
    Split,
    ahead,
    augment_batch,
    complete,
    draw,
    hash_of_all,
    image_digests,
    listed_names,
    pixel_bytes,
    score_batches,
    scoring_batch,
    splits,
    store_pixels,
    train_batches,
    training_batch,
    training_numbers,
)
from mshnet.device import (
    Device,
    OneProcess,
    explained,
    infer,
    make_optimizer,
    no_number,
    open_device,
    parts_of,
    workers,
)
from mshnet.loss import mshnet_loss
from mshnet.metrics import Scores, Tally
from mshnet.model import MSHNet, fold, start_gently
from mshnet.places import installed
from mshnet.run import bar, write_json


# %% [markdown]
# The training loop moves batches, updates weights, scores epochs and keeps checkpoints. None of that depends on what an image or a mask is. All that does is behind one class, `Task`. Detection with MSHNet is one subclass. A tomograph, an event camera or a sign language is another one, without a line changed in `device`, `run` or `train`.
#
# ## What a task trains on
#
# The loop asks little of the data: how many samples there are, their names, and a few digits by which a resumed run recognizes them. What a sample is, only the task knows.

# %%
#| export
class Data(Protocol):
    "One part of a data set."

    name: str  # "train", "val" or "test"
    source: str  # name of the data set

    @property
    def names(self) -> Sequence[str]:
        "Name of each sample, in order."

    @property
    def hash(self) -> str:
        "Digits that stand for the samples: their names, sizes and labels, and bytes in memory."

    def __len__(self) -> int:
        "Number of samples."


# %% [markdown]
# ## What a task says of its results
#
# A bare number cannot be compared with another one. So scores are kept with their protocol: which data, which epoch, chosen by what. `Origin` holds what is known of the weights' past:

# %%
#| export
@dataclass(frozen=True)
class Origin:
    "How weights came about; None: not known."

    chosen: str  # such as "epoch 399, the last"
    seed: int | None = None
    trained_on: str | None = None  # digits that stand for the training list's names and pixels
    seen: int | None = None  # scored samples that are among the training samples


class Values(dict[str, Any]):
    "Scores by name, for a task without a class of its own for them."

    def as_dict(self) -> dict[str, Any]:
        "As they are written to scores.json; None stands for NaN."
        return {name: None if _score_text(value) == "-" else value for name, value in self.items()}

    def __str__(self) -> str:
        "The score line."
        return "  ".join(f"{name} {_score_text(value)}" for name, value in self.items())


def _score_text(value: Any) -> str:
    "A score as it is printed; - for NaN, such as a mean over nothing."
    if not isinstance(value, float):
        return str(value)
    return "-" if math.isnan(value) else f"{value:.3f}"


@dataclass(frozen=True)
class Evaluation:
    "Scores of a split with their protocol."

    scores: Any  # with `as_dict()`; its text is the score line
    protocol: dict[str, Any]
    settings: dict[str, Any]  # with which it was scored

    def details(self) -> dict[str, Any]:
        "What curves and pictures are drawn from."
        return {}

    def save(self, folder: Path) -> None:
        "Write scores.json and details.json."
        line = str(self.scores)
        scores = {"line": line, "scores": self.scores.as_dict(), "protocol": self.protocol}
        write_json(folder / "details.json", {**self.details(), "settings": self.settings})
        write_json(folder / "scores.json", scores)


# %%
values = Values(wer=0.25, words=12, recall=math.nan)
test_eq((values.as_dict()["recall"], str(values)), (None, "wer 0.250  words 12  recall -"))


# %% [markdown]
# ## The task
#
# The learning rate and the digits of a list of names are the same for all tasks:

# %%
#| export
def learning_rate(
    config: Settings,
    step: int,  # of the run, from 0
    per_epoch: int,  # steps of an epoch
    rate: float,  # the highest one
) -> float:
    "The learning rate of a step: linear warm-up, then constant or a cosine to lr_end * rate."
    steps = config.epochs * per_epoch
    usual = min(per_epoch, steps // 10) if config.schedule == "cosine" else per_epoch
    grows = usual if config.warmup_steps < 0 else config.warmup_steps
    if step < grows:
        rate *= (step + 1) / grows
    if config.schedule == "cosine":
        fallen = (1 - math.cos(math.pi * step / max(steps - 1, 1))) / 2
        rate *= 1 - (1 - config.lr_end) * fallen
    return rate


def digits(names: Sequence[str]) -> str:
    "Twelve digits that stand for names, whatever their order."
    return hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()[:12]


# %% [markdown]
# A subclass writes six methods: `splits`, `batch`, `model`, `loss`, `predict` and `tally`. All others have a usual answer. A batch is a named tuple of tensors that share their first dimension. Whatever is random in a sample is drawn from `rng`, on the host, so that every scoring draws the same. What `tally` returns has `add(prediction, batch)`, which counts a prediction on the host, `gather(ranks)`, which takes in what the other processes counted by `ranks.gather(value)`, and `scores()`: `Values`, or a class with `as_dict()`.

# %%
#| export
class Task:
    """What is trained. A subclass writes splits, batch, model, loss, predict and tally.

    `epoch` is the number of a training epoch; None stands for a scoring.
    """

    better = ("score", 1)  # the score that chooses an epoch; 1 if more is better, else -1

    def __init__(self, config: Any) -> None:  # the settings of this task
        self.config = config

    def lacks(self, what: str) -> LookupError:
        "The error of a task that lacks one of the six."
        return LookupError(f"{type(self).__name__} does not define its {what}")

    def splits(self, names: Sequence[str] = ("train", "test")) -> dict[str, Any]:
        "The data, each a `Data`: the parts that are asked for, and val where `choose` is val."
        raise self.lacks("data")

    def batch(self, data: Any, rows: list[int], epoch: int | None) -> Any:
        "The batch of these samples, a named tuple of tensors on the host; row -1 is filler."
        raise self.lacks("batch")

    def model(self) -> nn.Module:
        "A model with the starting weights of the seed, on the CPU."
        raise self.lacks("model")

    def loss(self, model: Any, batch: Any, phase: str) -> Tensor | dict[str, Tensor]:
        "Mean loss of a batch, or named parts of it, computed by `model(...)` itself."
        raise self.lacks("loss")

    def predict(self, model: Any, batch: Any, phase: str) -> Any:
        "What is scored: a tensor on the device, or tensors in a tuple, list or dictionary."
        raise self.lacks("prediction")

    def tally(self) -> Any:
        "An empty count of scores: an object with `add`, `gather` and `scores`."
        raise self.lacks("tally")

    def rng(self, row: int, epoch: int | None) -> np.random.Generator:
        "Random numbers of a sample, the same in every scoring and new in every epoch."
        when = 0 if epoch is None else epoch + 1
        return np.random.default_rng([self.config.seed, when, max(row, 0)])

    def plan(self, data: Any, epoch: int | None) -> list[list[int]]:
        "The rows of each batch, all of one size: shuffled for an epoch, in order for a scoring."
        count, size = len(data), self.config.batch_size
        if epoch is None:
            return score_batches(count, size)
        return train_batches(count, size, self.config.seed, epoch)

    def batches(
        self, device: Device, data: Any, plan: Sequence[list[int]], epoch: int
    ) -> Iterator[Any]:
        "The batches of a training epoch, on the device, in order."
        threads = workers(device, self.config.num_workers)
        made = ahead(lambda rows: self.batch(data, rows, epoch), plan, threads)
        yield from map(device.feed, made)

    def phase(self, epoch: int) -> str:
        "Name of the part of the training that an epoch belongs to."
        return "full"

    def rate(self, step: int, per_epoch: int) -> float:
        "The learning rate of a step of the run: warm-up and schedule."
        return learning_rate(self.config, step, per_epoch, self.config.lr)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        "The optimizer that the settings name, for all weights of the model."
        groups = [{"params": list(model.parameters()), "lr": self.config.lr}]
        return make_optimizer(self.config.optimizer, groups, self.config.weight_decay)

    def for_scoring(self, model: Any, device: Device) -> Any:
        "The model as a scoring calls it, such as a faster copy."
        return model

    def identity(self, parts: dict[str, Any]) -> dict[str, str]:
        "What a resumed run must agree on: digits for each split, and for all training names."
        names = [name for k in ("train", "val") if k in parts for name in parts[k].names]
        return {f"{k} data": v.hash for k, v in parts.items()} | {"training list": digits(names)}

    def protocol(self, data: Any, scores: Any) -> dict[str, Any]:
        "What must agree before two scores of this task may be compared."
        return {"task": self.config.task, "samples": len(data)}

    def evaluate(
        self, model: nn.Module, data: Any, device: Device, phase: str, origin: Origin
    ) -> Evaluation:
        "The final scores of a split, with their protocol."
        scores = score_split(self, model, data, device, phase)
        whole = protocol(self, data, scores, device, origin)
        return Evaluation(scores, whole, self.config.model_dump())

    def seen(self, data: Any, said: dict[str, str]) -> int | None:  # None: not known
        "How many samples the weights were trained on, by the `data` of their checkpoint."
        return None

    def report(self, folder: Path) -> None:
        "Draw a finished run's pictures into its folder."

    def advice(self, history: list[dict[str, Any]]) -> str:  # one line; empty: none
        "What to do about the run, judged by its log after a scored epoch."
        return ""

    def about(self, parts: dict[str, Any], device: Device) -> dict[str, str]:
        "What is printed of the data before a run, each line with its heading."
        counts = ", ".join(f"{len(data)} {name}" for name, data in parts.items())
        return {"data": f"{parts['train'].source}: {counts}"}

    def facts(self, data: Any) -> dict[str, Any]:
        "What an epoch's log line should say of its training data."
        return {}

    def predict_files(self, weights: str, inputs: list[str], **how: Any) -> Any:
        "Predict files, as `mshnet predict` does; UserError from a task that has no such command."
        raise UserError(
            f"task={self.config.task}: its weights predict no files; `mshnet test` scores them"
        )


# %% [markdown]
# The task of a run is found by its settings:

# %%
#| export
def make_task(config: Settings) -> Any:
    "The `Task` that these settings are of; UserError if it is not known."
    settings_class(config.task)
    return resolve(TASKS[config.task][1])(config)


# %% [markdown]
# ## Scoring
#
# Two programs that score the same predictions get different numbers if they differ in the resize, the threshold, the matching rule or the choice of the epoch. So there is one scoring loop, used after every epoch, at the end of a run and by `mshnet test`.

# %%
#| export
def predictions(
    task: Task,
    model: nn.Module,  # on the device
    data: Any,
    device: Device,
    phase: str,  # of the training, such as "full"
) -> Generator[tuple[Any, Any]]:  # the prediction and its batch; on the host
    "Predict this process's share of a split in batches of one shape, in order."
    model.eval()
    step = device.begin("scoring", task.for_scoring(model, device))
    plan = device.ranks.share(task.plan(data, None))
    threads = workers(device, task.config.num_workers)
    batches = ahead(lambda rows: task.batch(data, rows, None), plan, threads)
    for batch in bar(batches, len(plan), f"score {data.name}"):
        parts = zip(parts_of(device, device.feed(batch)), parts_of(device, batch), strict=True)
        with explained(device, task.config.batch_size):
            found = [(infer(device, partial(task.predict, step, x, phase)), y) for x, y in parts]
        if no_number([prediction for prediction, _ in found]):
            raise UserError(
                f"{data.name}: the prediction is no number (NaN), so the weights are spoiled; go "
                "back to an earlier checkpoint; in training try --clip-grad 1 or a smaller --lr"
            )
        yield from found


# %% [markdown]
# An accelerator need not wait while the host counts. A batch is counted in a thread while the next one is predicted: one thread, so batches are counted one after the other and in order, by the same `ahead` that makes batches before they are needed. An error in it is raised here, and it ends with the loop, however that ends. (A CPU, whose cores all compute, counts in turn.)

# %%
#| export
def count_predictions(
    count: Callable[[Any, Any], object],  # of a prediction and its batch, on the host
    task: Task,
    model: nn.Module,
    data: Any,
    device: Device,
    phase: str,
) -> None:
    "Call `count` with each prediction, in a thread of its own where that is no burden."
    with closing(predictions(task, model, data, device, phase)) as predicted:
        for _ in ahead(lambda pair: count(*pair), predicted, min(workers(device, -1), 1)):
            pass


def score_split(task: Task, model: nn.Module, data: Any, device: Device, phase: str) -> Any:
    "The scores of a split, as the task's tally returns them."
    tally = task.tally()
    count_predictions(tally.add, task, model, data, device, phase)
    tally.gather(device.ranks)
    return tally.scores()


# %% [markdown]
# Everything a reader needs to know whether two numbers can be compared. `chosen` tells which epoch it is and by what it was chosen: a number whose epoch was chosen on the test list is better than it should be.

# %%
#| export
def protocol(task: Task, data: Any, scores: Any, device: Device, weights: Origin) -> dict[str, Any]:
    "How scores came about."
    return {
        "data": data.source,
        "split": data.name,
        "split_hash": data.hash,
        **task.protocol(data, scores),
        "chosen": weights.chosen,
        "seed": weights.seed,
        "trained_on": weights.trained_on,
        "trained_on_scored_images": weights.seen,
        "device": device.why,
        "precision": device.precision,
        "mshnet": installed("mshnet"),
        "torch": torch.__version__,
    }


# %% [markdown]
# ## The rate from the first step to the last
#
# A network that was just made gives large and random gradients, so the first steps are small. At the end small steps let it settle; the cosine takes it there without a jump.

# %%
config = Config(epochs=4)  # 200 steps, so the rate grows in the first 20
rates = [learning_rate(config, step, 50, config.lr) for step in range(200)]
test_close([rates[0], max(rates), rates[-1]], [config.lr / 20, config.lr, 1e-5], 3e-5)
test_eq(learning_rate(Config(schedule="constant", warmup_steps=0), 7, 50, 0.05), 0.05)
[round(rate, 6) for rate in rates[::25]]

# %% [markdown]
# ## Pixels become numbers on the device
#
# Batches arrive as bytes. ImageNet's mean is subtracted and its deviation divided out, because the published weights expect it.

# %%
#| export
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, RGB, 0..1


def normalise(
    image: Tensor,  # [B,3,S,S] uint8
) -> Tensor:  # [B,3,S,S] float32
    "Bytes to numbers of about mean 0 and deviation 1."
    mean, deviation = (  # made on the device: nothing is sent there in every step
        torch.stack([torch.full((1, 1), value, device=image.device) for value in values])
        for values in (MEAN, DEVIATION)
    )
    return (image.float() / 255 - mean) / deviation


# %%
white = torch.full((1, 3, 1, 1), 255, dtype=torch.uint8)
test_close(normalise(white)[0, 0].item(), (1 - 0.485) / 0.229)

# %% [markdown]
# ## Predictions that die
#
# A detector can end in two states from which it hardly learns: it predicts everything, or nothing. The loss notebook shows why the SLS loss has next to no gradient in both. The paper's recipe gets there in two steps. In its warm-up plain IoU does not see the predicted area, so the prediction floods: a tenth to a third of all pixels is common. Then three heads and the fusing convolution join. They have never been trained, and Adagrad's first step moves each of their weights by the whole rate, however small the gradient. The full-size head's background stands at a logit of -11 by then, so a fusing weight that moves by 0.05 in each of its nine taps moves the fused background by 5. After a few such steps it is a coin toss on which side it stands, and Adagrad, which never forgets these steps, leaves it there. Seeds that survive are those that left the flood in time.
#
# Clipping gradients cannot help, because Adagrad's step does not depend on their size. Three things do: a loss that pulls everywhere and no late heads (`--preset steady`), or, with the paper's loss and network, a fusing convolution that starts as the full-size head and late parts that take smaller steps (`--fusion-start full_size --join-rate 0.1`). A run that is in such a state says so in the epoch where it happens.

# %%
#| export
FLOODED = 50_000  # false pixels per million


def advice_if_dead(
    history: list[dict[str, Any]],  # of a run's log
    config: Config,
) -> str:  # one line, in the epoch where the prediction died; else empty
    "What helps a prediction that is everything or nothing."
    scored = [e for e in history if "scores" in e]
    late = config.warm_epoch >= 0 and config.loss == "sls"  # heads that join after a warm-up
    now, before = (_death(log, config, late) for log in (scored, scored[:-1]))
    remedied = config.fusion_start == "full_size" and config.join_rate < 1
    if now in ("", before) or (late and remedied and scored[-1]["phase"] == "warm-up"):
        return ""
    share = scored[-1]["scores"]["fa"] / 1e4
    what = "is empty" if now == "empty" else f"covers {share:.0f}% of the image"
    if not late:
        return (
            f"the prediction {what}: try a smaller --lr, and look at the masks with `mshnet data`"
        )
    what += ", which this recipe may not leave by itself (gradient clipping does not help)"
    if scored[-1]["phase"] == "warm-up":
        what = f"covers {share:.0f}% of the image; such runs often die when all heads join"
    remedy = "--preset steady"
    if not remedied:
        remedy += ", or this recipe with --fusion-start full_size --join-rate 0.1"
    return f"the prediction {what}: begin anew with {remedy}"


def _death(scored: list[dict[str, Any]], config: Config, late: bool) -> str:
    "flooded or empty, where the last scored epoch should not be; else an empty text."
    alive = [
        e["scores"]["fa"] <= FLOODED and any(e["scores"][k] for k in ("iou", "pd", "fa"))
        for e in scored
    ]
    if not scored or alive[-1]:
        return ""
    if scored[-1]["scores"]["fa"] > FLOODED:
        return "flooded"
    fresh = scored[-1]["epoch"] < max(3, config.epochs // 10) and not any(alive)
    return "" if fresh and not late else "empty"


# %%
def log(*fa, phase="full"):
    "A log with these false alarm rates; an epoch with a rate of 20 has found something."
    each = [{"iou": 0.3 if f == 20 else 0.0, "pd": 0.0, "fa": f} for f in fa]
    return [{"epoch": i, "phase": phase, "scores": scores} for i, scores in enumerate(each)]


from mshnet.core import PRESETS

paper = Config(**PRESETS["paper"])
dead = [(20,), (20, 0), (0, 0), (20, 9e5), (20, 9e5, 9e5)]  # once is enough
test_eq([bool(advice_if_dead(log(*fa), paper)) for fa in dead], [0, 1, 0, 1, 0])
empty = [bool(advice_if_dead(log(*[0] * n), Config(epochs=40))) for n in range(1, 8)]
test_eq(empty, [0, 0, 0, 0, 1, 0, 0])  # steady starts from an empty prediction
print(advice_if_dead(log(3e5, phase="warm-up"), paper))
print(advice_if_dead(log(20, 9e5), paper))
print(advice_if_dead(log(20, 0), Config()))

# %% [markdown]
# ## Detection
#
# The first task: infrared small target detection. Its scores are those of the metrics notebook.

# %%
#| export
RESIZE = "both sides squashed to base_size (image bilinear, mask nearest, Pillow)"


class DetectionTally:
    "Counts the predictions of batches."

    def __init__(self, config: Config) -> None:
        self.counts, self.batch_size = Tally(config.rule), config.batch_size

    def add(self, logits: Tensor, batch: Batch) -> Any:  # of each image, its targets
        "Count a batch, without the copies that fill it."
        return self.counts.add(logits, batch.mask, batch.real)

    def gather(self, ranks: OneProcess) -> None:
        "Take in the images of all processes, in the order of the list."
        self.counts.join(ranks.gather(self.counts), self.batch_size // ranks.count)

    def scores(self) -> Scores:
        "IoU, nIoU, F1, Pd, Fa."
        return self.counts.scores()


# %% [markdown]
# The network is chosen by its name, so that one of your own is trained, tested, exported and drawn like MSHNet. It is called as `model(image, deep=True) -> (masks, logits)`: the logits that are scored, and with `deep` the outputs that are supervised beside them. Register it with `NETWORKS["mine"] = MyNetwork` and train it with `network="mine"`.

# %%
#| export
NETWORKS: dict[str, Callable[[], nn.Module]] = {"mshnet": MSHNet}


def make_network(name: str) -> nn.Module:
    "One of NETWORKS, with random weights; UserError if it is not known."
    if name not in NETWORKS:
        known = ", ".join(NETWORKS)
        raise UserError(
            f"network={shown(name)} is not known{did_you_mean(name, list(NETWORKS))} (there are "
            f"{known}; your own is registered by mshnet.task.NETWORKS[{shown(name)}] = its class)"
        )
    return NETWORKS[name]()


# %%
with expect_fail(UserError, contains="did you mean mshnet?"):
    make_network("mshnett")


# %% [markdown]
# All five outputs are supervised from the first step, unless there is a warm-up: up to and including epoch `warm_epoch` the paper trains *and scores* the full-size head alone. A checkpoint records the phase, because a fused head that was never trained predicts noise.
#
# A resumed run must have the same pixels and lists. A split with an image that cannot be read has other digits than the whole one; what must agree then is its list, so that a run with a damaged image can be resumed (with `on_bad_image = skip`). The digits come from the one reading that looks for damaged images; nothing is read for them again.

# %%
#| export
def folded_for(device: Device, model: nn.Module) -> nn.Module:
    "The model as it predicts on a device: batch norm joins convolutions of 16 bits, uncompiled."
    return model if device.precision == "fp32" or device.compiles else fold(model)


class Detection(Task):
    "Infrared small target detection with MSHNet."

    better = ("iou", 1)

    def splits(self, names: Sequence[str] = ("train", "test")) -> dict[str, Split]:
        "The data: train, test, and val where an epoch is chosen on a held-out part."
        return splits(self.config, names)

    def batch(self, data: Split, rows: list[int], epoch: int | None) -> Batch:
        "The batch of these images, augmented for a training epoch or plain for scoring."
        if epoch is None:
            return scoring_batch(data, rows, self.config)
        return training_batch(data, rows, epoch, self.config)

    def batches(
        self, device: Device, data: Split, plan: Sequence[list[int]], epoch: int
    ) -> Iterator[Batch]:
        "The batches of a training epoch, made on the device where the pixels lie there."
        if store := store_on(device, self, data):
            return _stored_batches(device, self, store, plan, epoch)
        return super().batches(device, data, plan, epoch)

    def model(self) -> nn.Module:
        "The network with the weights that the seed gives."
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.config.seed)
            model = make_network(self.config.network)
            if not isinstance(model, MSHNet):
                return model
            return start_gently(model, self.config.head_bias, self.config.fusion_start)

    def phase(self, epoch: int) -> str:
        "warm-up (full-size head alone) or full (all outputs)."
        return "warm-up" if epoch <= self.config.warm_epoch else "full"

    def loss(self, model: Any, batch: Batch, phase: str) -> Tensor:
        "The batch's mean loss."
        masks, logits = model(normalise(batch.image), deep=phase == "full")
        return mshnet_loss(masks, logits, batch.mask, self.config.loss).mean()

    def predict(self, model: Any, batch: Batch, phase: str) -> Tensor:  # [B,1,S,S] float32
        "The logits that are scored; one program serves both phases."
        masks, fused = model(normalise(batch.image))
        full = torch.tensor(phase == "full").to(fused.device)
        return torch.where(full, fused, masks[0]).float()

    def tally(self) -> DetectionTally:
        return DetectionTally(self.config)

    def for_scoring(self, model: nn.Module, device: Device) -> nn.Module:
        return folded_for(device, model)

    def rate(self, step: int, per_epoch: int) -> float:
        "The learning rate of a step, by the rule for large batches."
        c, rate = self.config, self.config.lr
        if c.lr_rule == "sqrt":
            whole, grown = (c.batch_size / 4) ** 0.5, step // per_epoch + 1
            rate *= 1 + (whole - 1) * min(grown / (max(c.warm_epoch, 0) + 1), 1)
        return learning_rate(c, step, per_epoch, rate)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        "The optimizer, with a rate of their own for the parts that join after a warm-up."
        c, late = self.config, ("output_1", "output_2", "output_3", "final")
        if c.join_rate == 1:
            return super().optimizer(model)
        named = [(name.startswith(late), weight) for name, weight in model.named_parameters()]
        groups = [
            {"params": [w for joins, w in named if joins == late], "lr": c.lr * share}
            for late, share in ((False, 1.0), (True, c.join_rate))
        ]
        return make_optimizer(c.optimizer, groups, c.weight_decay)

    def identity(self, parts: dict[str, Split]) -> dict[str, str]:
        "What a resumed run must agree on: the pixels of each split, and its list of names."
        return _pixel_identity(parts)

    def protocol(self, data: Split, scores: Scores) -> dict[str, Any]:
        own = {"images": scores.images, "targets": scores.targets, "size": self.config.base_size}
        return own | {"resize": RESIZE, "threshold": 0.5, "rule": scores.rule}

    def evaluate(
        self, model: nn.Module, data: Split, device: Device, phase: str, origin: Origin
    ) -> Evaluation:
        "Scores, curves, and a record of each image and each target."
        analyse = resolve("mshnet.evaluate:look_closely")
        found: Evaluation = analyse(self, model, data, device, phase, origin)
        return found

    def seen(self, data: Split, said: dict[str, str]) -> int | None:
        "How many images of a split the weights were trained on, whatever their names."
        known = set(said.get("training images", "").split())
        return len(image_digests([data]) & known) if known else None

    def report(self, folder: Path) -> None:
        "Curves and the gallery."
        resolve("mshnet.show:draw_run")(folder)

    def advice(self, history: list[dict[str, Any]]) -> str:
        return advice_if_dead(history, self.config)

    def about(self, parts: dict[str, Split], device: Device) -> dict[str, str]:
        "Images, and where their pixels lie."
        return _about_images(self, parts, device)

    def facts(self, data: Split) -> dict[str, Any]:
        "Images that could not be read, for which others stood in."
        replaced = sorted(data.stores.get("replaced", ()))
        return {"replaced": replaced} if replaced else {}


# %% [markdown]
# ## Where the pixels lie
#
# Batches can come in two ways. The host's threads make them with Pillow, image by image, and send them. Or the pixels of the split lie on the device, once for the whole run, and an epoch sends nothing but a few numbers for each image (see the data notebook): for a fast chip, which would wait for the host. The draws are the same, the masks too, and the images up to a grey level or two. `cache` decides, and `auto` takes the device if it is a GPU or a TPU with four times the room that the pixels need.

# %%
#| export
def store_on(device: Device, task: Task, split: Split) -> Pixels | None:
    """The pixels of a training split on the device; None: the host sends batches.

    UserError if they must be there and cannot.
    """
    cache, own = task.config.cache, type(task).batch is not Detection.batch
    robust = task.config.augment == "robust"  # noise is made on the host
    if robust and cache == "device":
        raise UserError("cache=device: robust augmentation is made on the host; write --cache host")
    fast = cache == "device" or (cache == "auto" and device.kind in ("cuda", "xla"))
    if not fast or not split.in_memory or own or robust:
        return None
    if device.name not in split.stores:
        need, free = pixel_bytes(split), device.free()
        if cache == "auto" and 4 * need > free:
            return None
        if need > free:
            raise UserError(
                f"cache=device: the images take {need / 2**30:.1f} GB and {device.name} has "
                f"{free / 2**30:.1f}; write --cache host"
            )
        split.stores[device.name] = store_pixels(split).through(device.hold)
    return split.stores[device.name]


def _about_images(task: Task, parts: dict[str, Split], device: Device) -> dict[str, str]:
    "What is printed of the images before a run; lines by their heading."
    counts = ", ".join(f"{len(split)} {name}" for name, split in parts.items())
    preset = f", preset {task.config.preset}" if task.config.preset else ""
    kind = parts["train"].source if task.config.dataset_dir else "synthetic scenes"
    pixels = "in their files, read when they are needed"
    if store_on(device, task, parts["train"]):
        pixels = f"on {device.name}, {pixel_bytes(parts['train']) / 1e6:.0f} MB"
    elif parts["train"].in_memory:
        pixels = "in memory"
    return {"data": f"{kind}: {counts} images{preset}", "pixels": pixels}


def _pixel_identity(parts: dict[str, Split]) -> dict[str, str]:
    "Digits of the pixels of each split, and of its list of names."
    same = {f"{name} data": split.hash for name, split in parts.items() if complete(split)}
    trained = [parts[name] for name in ("train", "val") if name in parts]
    if all(map(complete, trained)):
        same["training list"] = hash_of_all(trained)  # the same with every seed
        same["training images"] = " ".join(sorted(image_digests(trained)))
    for name, split in parts.items():
        listed = "\n".join(listed_names(split))
        same[f"{name} list"] = hashlib.sha256(listed.encode()).hexdigest()[:12]
    return same


class _Numbers(NamedTuple):
    "What an epoch sends of a batch whose pixels are there already."

    numbers: Tensor  # [B,15+2S] int32


def _stored_batches(
    device: Device,
    task: Task,
    store: Pixels,
    plan: Sequence[list[int]],  # of this process
    epoch: int,
) -> Iterator[Batch]:
    "The batches of an epoch whose pixels lie on the device, in order."
    config = task.config

    def numbers(rows: list[int]) -> _Numbers:
        draws = [draw(config, epoch, i) for i in rows]
        return _Numbers(training_numbers(store, rows, draws, config.crop_size))

    threads = workers(device, config.num_workers)
    for sent in map(device.feed, ahead(numbers, plan, threads)):
        batch = augment_batch(store, sent.numbers)
        yield batch._replace(image=batch.image.contiguous(memory_format=device.layout))


# %% [markdown]
# A step of the task by hand: its data, a batch, the loss of each phase. And both ways to make the batches of an epoch, compared:

# %%
settings = {"scenes": 8, "base_size": 32, "crop_size": 32, "batch_size": 2}
config = Config(**settings, warm_epoch=5, device="cpu", precision="fp32")
task, stored = make_task(config), Detection(config.model_copy(update={"cache": "device"}))
device, model, parts = open_device("cpu", "fp32"), task.model(), task.splits()
train: Data = parts["train"]
plan = task.plan(train, epoch=0)
batch = task.batch(train, plan[0], epoch=0)
loss = task.loss(model, batch, task.phase(6))
loss.backward()
test_eq([task.phase(e) for e in (0, 5, 6)], ["warm-up", "warm-up", "full"])
assert folded_for(device, model) is model  # in float32
slow = Detection(Config(join_rate=0.1)).optimizer(model).param_groups
test_eq([(len(group["params"]), group["lr"]) for group in slow][1], (8, 0.0001))
ways = [list(each.batches(device, train, plan, 0)) for each in (task, stored)]
for one, other in zip(*ways, strict=True):
    test_eq(one.mask, other.mask)
    assert (one.image.int() - other.image.int()).abs().max() <= 2
assert store_on(device, task, train) is None
print(stored.about(parts, device))
loss

# %% [markdown]
# The same seed starts from the same weights. The scores of a split, and what is written of them:

# %%
assert torch.equal(task.model().final.weight, model.final.weight)
test_eq(digits(["b", "a"]), digits(["a", "b"]))
tally = DetectionTally(config)
count_predictions(tally.add, task, model, parts["test"], device, "full")
tally.gather(device.ranks)
scores = score_split(task, model, parts["test"], device, "full")
test_eq(scores, tally.scores())
test_eq(
    [x.shape for x, _ in predictions(task, model, parts["test"], device, "full")], [(2, 1, 32, 32)]
)
how = protocol(task, parts["test"], scores, device, Origin("untrained"))
test_eq((how["resize"], how["images"]), (RESIZE, 2))
with tempfile.TemporaryDirectory() as tmp:
    Evaluation(scores, how, {}).save(Path(tmp))
    test_eq(sorted(os.listdir(tmp)), ["details.json", "scores.json"])
print(scores)

# %% [markdown]
# A task that lacks one of the six methods reports which:

# %%
with expect_fail(LookupError, contains="Task does not define its model"):
    Task(Config()).model()
