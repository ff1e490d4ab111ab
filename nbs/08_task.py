# %% [markdown]
# # task
#
# > All that the training loop knows of a problem, and MSHNet's detection as the first one.

# %%
#| default_exp task

# %%
#| hide
from fastcore.test import expect_fail, test_close, test_eq

# %%
#| export
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mshnet.core import Config, UserError
from mshnet.data import (
    Batch,
    Pixels,
    Split,
    ahead,
    augment_batch,
    draw,
    pixel_bytes,
    score_batches,
    scoring_batch,
    splits,
    store_pixels,
    train_batches,
    training_batch,
    training_numbers,
)
from mshnet.device import DeviceSteps, make_optimizer, open_device
from mshnet.loss import mshnet_loss
from mshnet.metrics import Tally
from mshnet.model import MSHNet, start_gently


# %% [markdown]
# The loop in `train` moves batches, updates weights, scores epochs and keeps checkpoints. None of that depends on what a mask is. So everything that does is behind one small class, and another problem (event cameras, tomography) is another subclass, without a line changed in `train`, `device` or `run`.

# %%
#| export
class Questions:
    "What only the problem itself can answer."

    better = ("iou", 1)  # the score that chooses an epoch, and +1 if more is better, else -1

    def __init__(self, config: Config) -> None:
        self.config = config

    def silent(self, what: str) -> LookupError:
        "The error of a task that leaves a question open."
        return LookupError(f"{type(self).__name__} does not say what its {what} is")

    def model(self) -> nn.Module:
        "A model with the starting weights of the seed, on the CPU."
        raise self.silent("model")

    def loss(self, model: nn.Module, batch: Batch, phase: str) -> Tensor:
        "The mean loss of a batch."
        raise self.silent("loss")

    def logits(self, model: nn.Module, batch: Batch, phase: str) -> Tensor:
        "The prediction that is scored, in float32."
        raise self.silent("prediction")


# %% [markdown]
# The rest has an answer that suits any problem of images with masks. A task whose data are something else overrides it too.

# %%
#| export
class TaskData(Questions):
    "What is trained on: images with masks."

    def splits(self) -> dict[str, Split]:
        "The data: train, test, and val where an epoch is chosen on a held-out part."
        return splits(self.config)

    def plan(self, split: Split, epoch: int | None) -> list[list[int]]:
        "Indices of the batches of a training epoch, or of a scoring (epoch None)."
        count, size = len(split), self.config.batch_size
        if epoch is None:
            return score_batches(count, size)
        return train_batches(count, size, self.config.seed, epoch)

    def batch(self, split: Split, indices: list[int], epoch: int | None) -> Batch:
        "The batch of these images, augmented for a training epoch or plain for scoring (None)."
        if epoch is None:
            return scoring_batch(split, indices, self.config)
        return training_batch(split, indices, epoch, self.config)


# %% [markdown]
# So does the way it is trained:

# %%
#| export
class Task(TaskData):
    "All that the loop asks, with the usual answers."

    def phase(self, epoch: int) -> str:
        "Name of the part of the training that an epoch belongs to."
        return "full"

    def rate(self, step: int, per_epoch: int) -> float:
        "The learning rate of a step of the run: warm-up, schedule, and the rule for large batches."
        c, steps = self.config, self.config.epochs * per_epoch
        rate = c.lr
        if c.lr_rule == "sqrt":
            whole, grown = (c.batch_size / 4) ** 0.5, step // per_epoch + 1
            rate *= 1 + (whole - 1) * min(grown / (max(c.warm_epoch, 0) + 1), 1)
        usual = min(per_epoch, steps // 10) if c.schedule == "cosine" else per_epoch
        grows = usual if c.warmup_steps < 0 else c.warmup_steps
        if step < grows:
            rate *= (step + 1) / grows
        if c.schedule == "cosine":
            fallen = (1 - math.cos(math.pi * step / max(steps - 1, 1))) / 2
            rate *= 1 - (1 - c.lr_end) * fallen
        return rate

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        "The optimizer that the settings name, for all weights of the model."
        c = self.config
        groups = [{"params": list(model.parameters()), "lr": c.lr}]
        return make_optimizer(c.optimizer, groups, c.weight_decay)

    def tally(self) -> Tally:
        "An empty count of scores."
        return Tally(self.config.rule)

    def advice(self, history: list[dict[str, Any]]) -> str:  # one line; empty: none
        "What to do about the run, judged by its log after a scored epoch."
        return ""


# %% [markdown]
# ## Pixels become numbers on the device
#
# Batches arrive as bytes. ImageNet's mean is subtracted and its deviation divided out, because the published weights expect it.

# %%
#| export
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, RGB, 0..1


def per_channel(
    values: tuple[float, ...],
    device: torch.device,
) -> Tensor:  # [C,1,1] float32
    "One number per channel, made on the device: nothing is sent there in every step."
    return torch.stack([torch.full((1, 1), value, device=device) for value in values])


def normalise(
    image: Tensor,  # [B,3,S,S] uint8
) -> Tensor:  # [B,3,S,S] float32
    "Bytes to numbers of about mean 0 and deviation 1."
    mean, deviation = (per_channel(values, image.device) for values in (MEAN, DEVIATION))
    return (image.float() / 255 - mean) / deviation


# %%
test_close(
    normalise(torch.full((1, 3, 1, 1), 255, dtype=torch.uint8))[0, 0].item(), (1 - 0.485) / 0.229
)
test_eq(per_channel(MEAN, torch.device("cpu")).flatten(), torch.tensor(MEAN))

# %% [markdown]
# ## The rate from the first step to the last
#
# A network that was just made gives large and random gradients, so the first steps are small. At the end small steps let it settle; the cosine takes it there without a jump.

# %%
task = Task(Config(epochs=4))  # of 200 steps, so the rate grows in the first 20
rates = [task.rate(step, per_epoch=50) for step in range(200)]
test_close([rates[0], max(rates), rates[-1]], [task.config.lr / 20, task.config.lr, 1e-5], 3e-5)
test_eq(Task(Config(lr=0.05, schedule="constant", warmup_steps=0)).rate(7, 50), 0.05)
[round(rate, 6) for rate in rates[::25]]

# %% [markdown]
# ## Predictions that die
#
# A detector can end in two states from which it hardly learns: it predicts everything, or nothing. The loss notebook shows why the SLS loss has next to no gradient in both. The paper's recipe gets there in two steps. In its warm-up plain IoU does not see the predicted area, so the prediction floods: a tenth to a third of all pixels is common. Then three heads and the fusing convolution join. They have never been trained, and Adagrad's first step moves each of their weights by the whole rate, however small the gradient. The full-size head's background stands at a logit of -11 by then, so a fusing weight that moves by 0.05 in each of its nine taps moves the fused background by 5. After a few such steps it is a coin toss on which side it stands, and Adagrad, which never forgets these steps, leaves it there. Seeds that survive are those that left the flood in time.
#
# Clipping gradients cannot help, because Adagrad's step does not depend on their size. Three things do: a loss that pulls everywhere and no late heads (`--preset steady`), or, with the paper's loss and network, a fusing convolution that starts as the full-size head and late parts that take smaller steps (`--fusion-start full_size --join-rate 0.1`). A run that is in such a state says so in the epoch where it happens.

# %%
#| export
FLOODED = 50_000  # false pixels per million


def state_of(scores: dict[str, Any]) -> str:  # "flooded", "empty" or "alive"
    "Whether an epoch's prediction was everything, nothing, or something."
    if scores["fa"] > FLOODED:
        return "flooded"
    return "alive" if scores["iou"] or scores["pd"] or scores["fa"] else "empty"


def advice_if_dead(
    history: list[dict[str, Any]],  # of a run's log
    config: Config,
) -> str:  # one line, in the epoch where the prediction died; else empty
    "What helps a prediction that is everything or nothing."
    scored = [e for e in history if "scores" in e]
    late = config.warm_epoch >= 0 and config.loss == "sls"
    now, before = (death(log, config, late) for log in (scored, scored[:-1]))
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


def death(
    scored: list[dict[str, Any]],  # the log up to an epoch
    config: Config,
    late: bool,  # whether some heads join after a warm-up
) -> str:  # "flooded" or "empty" where that should not be in the last epoch of the log, else ""
    "Whether the prediction is everything, or is nothing although it is no longer the beginning."
    states = [state_of(e["scores"]) for e in scored]
    if not states or states[-1] == "alive":
        return ""
    fresh = scored[-1]["epoch"] < max(3, config.epochs // 10) and "alive" not in states
    return "" if states[-1] == "empty" and fresh and not late else states[-1]


# %%
def log(*fa, phase="full", iou=0.0):
    "A log with these false alarm rates."
    each = [{"iou": 0.3 if f == 20 else iou, "pd": 0.0, "fa": f} for f in fa]
    return [{"epoch": i, "phase": phase, "scores": scores} for i, scores in enumerate(each)]


from mshnet.core import PRESETS

paper = Config(**PRESETS["paper"])
test_eq([state_of(e["scores"]) for e in log(20, 0, 9e5)], ["alive", "empty", "flooded"])
test_eq([bool(advice_if_dead(log(*fa), paper)) for fa in ([20], [20, 0], [0, 0])], [0, 1, 0])
test_eq(
    [death(log(20, *fa), paper, late=True) for fa in ([], [0], [9e5])], ["", "empty", "flooded"]
)
empty = [bool(advice_if_dead(log(*[0] * n), Config(epochs=40))) for n in range(1, 8)]
test_eq(empty, [0, 0, 0, 0, 1, 0, 0])  # steady starts from an empty prediction; once is enough
print(advice_if_dead(log(3e5, phase="warm-up"), paper))
print(advice_if_dead(log(20, 9e5), paper))
print(advice_if_dead(log(20, 0), Config()))


# %% [markdown]
# ## Detection
#
# All five outputs are supervised from the first step, unless there is a warm-up: up to and including epoch `warm_epoch` the paper trains *and scores* the full-size head alone. A checkpoint records the phase, because a fused head that was never trained predicts noise.

# %%
#| export
class Detection(Task):
    "Infrared small target detection with MSHNet."

    def model(self) -> nn.Module:
        "MSHNet with the weights that the seed gives."
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.config.seed)
            return start_gently(MSHNet(), self.config.head_bias, self.config.fusion_start)

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

    def advice(self, history: list[dict[str, Any]]) -> str:
        "What helps a prediction that is everything or nothing."
        return advice_if_dead(history, self.config)

    def phase(self, epoch: int) -> str:
        "warm-up (full-size head alone) or full (all outputs)."
        return "warm-up" if epoch <= self.config.warm_epoch else "full"

    def loss(self, model: nn.Module, batch: Batch, phase: str) -> Tensor:
        "The batch's mean loss."
        masks, logits = model(normalise(batch.image), deep=phase == "full")
        return mshnet_loss(masks, logits, batch.mask, self.config.loss).mean()

    def logits(self, model: nn.Module, batch: Batch, phase: str) -> Tensor:  # [B,1,S,S] float32
        "The prediction that is scored; one program serves both phases."
        masks, fused = model(normalise(batch.image))
        full = torch.tensor(phase == "full").to(fused.device)
        return torch.where(full, fused, masks[0]).float()


# %%
settings = {"scenes": 8, "base_size": 32, "crop_size": 32, "batch_size": 2}
task = Detection(Config(**settings, warm_epoch=5))
model, parts = task.model(), task.splits()
batch = task.batch(parts["train"], task.plan(parts["train"], epoch=0)[0], epoch=0)
loss = task.loss(model, batch, task.phase(6))
loss.backward()
test_eq([task.phase(e) for e in (0, 5, 6)], ["warm-up", "warm-up", "full"])
test_eq(task.plan(parts["test"], None), [[0, 1]])
slow = Detection(Config(join_rate=0.1)).optimizer(model).param_groups
test_eq([(len(group["params"]), group["lr"]) for group in slow][1], (8, 0.0001))
loss


# %% [markdown]
# ## Where the pixels lie
#
# Batches can come in two ways. The host's threads make them with Pillow, image by image, and send them. Or the pixels of the split lie on the device, once for the whole run, and an epoch sends nothing but a few numbers for each image (see the data notebook): for a fast chip, which would wait for the host. The draws are the same, the masks too, and the images up to a grey level or two. `cache` decides, and `auto` takes the device if it is a GPU or a TPU with four times the room that the pixels need.

# %%
#| export
def store_on(
    device: DeviceSteps,
    task: Task,
    split: Split,
) -> Pixels | None:  # None: the host sends batches
    "The pixels of a training split on the device; UserError if they must be there and cannot."
    cache, own = task.config.cache, type(task).batch is not TaskData.batch
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


def where_pixels(device: DeviceSteps, task: Task, split: Split) -> str:
    "Where a training split's pixels lie, as a person says it."
    if store_on(device, task, split):
        return f"on {device.name}, {pixel_bytes(split) / 1e6:.0f} MB"
    return "in memory" if split.in_memory else "in their files, read when they are needed"


# %% [markdown]
# Either way a step gets its batch on the device:

# %%
#| export
class Numbers(NamedTuple):
    "What an epoch sends of a batch whose pixels are there already."

    numbers: Tensor  # [B,15+2S] int32


def training_batches(
    device: DeviceSteps,
    task: Task,
    split: Split,
    plan: Sequence[list[int]],  # of this process
    epoch: int,
) -> Iterator[Batch]:
    "The batches of an epoch, on the device, in order."
    config, store = task.config, store_on(device, task, split)
    workers = device.workers(config.num_workers)
    if store is None:
        yield from map(device.feed, ahead(lambda r: task.batch(split, r, epoch), plan, workers))
        return

    def numbers(rows: list[int]) -> Numbers:
        draws = [draw(config, epoch, i) for i in rows]
        return Numbers(training_numbers(store, rows, draws, config.crop_size))

    for sent in map(device.feed, ahead(numbers, plan, workers)):
        batch = augment_batch(store, sent.numbers)
        yield batch._replace(image=batch.image.contiguous(memory_format=device.layout))


# %%
device, split = open_device("cpu"), parts["train"]
plan = task.plan(split, 0)
by_host = list(training_batches(device, task, split, plan, 0))
test_eq(where_pixels(device, task, split), "in memory")
stored = Detection(task.config.model_copy(update={"cache": "device"}))
by_device = list(training_batches(device, stored, split, plan, 0))
for one, other in zip(by_host, by_device, strict=True):
    test_eq(one.mask, other.mask)
    assert (one.image.int() - other.image.int()).abs().max() <= 2
test_eq(Numbers(torch.zeros(1)).numbers.item(), 0)
where_pixels(device, stored, split)

# %% [markdown]
# The same seed starts from the same weights; a scoring batch is plain; and a task that does not say what its model is gets an error that names it:

# %%
assert isinstance(task, TaskData) and store_on(device, task, split) is None
assert torch.equal(task.model().final.weight, model.final.weight)
with torch.no_grad():
    logits = task.logits(model, task.batch(parts["test"], [0, 1], None), "full")
tally = task.tally()
tally.add(logits, torch.zeros_like(logits))
with expect_fail(LookupError, contains="Task does not say"):
    Task(Config()).model()
assert issubclass(Task, Questions)
assert isinstance(task.optimizer(model), torch.optim.AdamW) and task.better == ("iou", 1)
tally.scores().images
