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
from collections.abc import Iterator, Sequence
from typing import NamedTuple

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
from mshnet.device import DeviceSteps, open_device
from mshnet.loss import mshnet_loss
from mshnet.metrics import Tally
from mshnet.model import MSHNet


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

    def rate(self, epoch: int) -> float:
        "The learning rate of an epoch: a larger batch's grows to it during the warm-up."
        c = self.config
        if c.lr_rule == "fixed":
            return c.lr
        whole, grown = (c.batch_size / 4) ** 0.5, min((epoch + 1) / (max(c.warm_epoch, 0) + 1), 1)
        return c.lr * (1 + (whole - 1) * grown)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        "Adagrad, as in the paper."
        c = self.config
        return torch.optim.Adagrad(model.parameters(), lr=c.lr, weight_decay=c.weight_decay)

    def tally(self) -> Tally:
        "An empty count of scores."
        return Tally(self.config.rule)


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
# ## Detection
#
# MSHNet's two phases: up to and including epoch `warm_epoch` the single full-size head is trained *and scored*; after it all heads. A checkpoint records the phase, because a fused head that was never trained predicts noise.

# %%
#| export
class Detection(Task):
    "Infrared small target detection with MSHNet, by the paper's recipe."

    def model(self) -> nn.Module:
        "MSHNet with the weights that the seed gives."
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.config.seed)
            return MSHNet()

    def phase(self, epoch: int) -> str:
        "warm-up (single head, plain IoU loss) or full (all heads, SLS loss)."
        return "warm-up" if epoch <= self.config.warm_epoch else "full"

    def loss(self, model: nn.Module, batch: Batch, phase: str) -> Tensor:
        "The batch's mean loss."
        masks, logits = model(normalise(batch.image), deep=phase == "full")
        return mshnet_loss(masks, logits, batch.mask).mean()

    def logits(self, model: nn.Module, batch: Batch, phase: str) -> Tensor:  # [B,1,S,S] float32
        "The prediction that is scored; one program serves both phases."
        masks, fused = model(normalise(batch.image))
        full = torch.tensor(phase == "full").to(fused.device)
        return torch.where(full, fused, masks[0]).float()


# %%
task = Detection(Config(scenes=8, base_size=32, crop_size=32, batch_size=2, choose="last"))
model, parts = task.model(), task.splits()
batch = task.batch(parts["train"], task.plan(parts["train"], epoch=0)[0], epoch=0)
loss = task.loss(model, batch, task.phase(6))
loss.backward()
test_eq([task.phase(e) for e in (0, 5, 6)], ["warm-up", "warm-up", "full"])
test_eq(task.plan(parts["test"], None), [[0, 1]])
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
    fast = cache == "device" or (cache == "auto" and device.kind in ("cuda", "xla"))
    if not fast or not split.in_memory or own:
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

    numbers: Tensor  # [B,14+2S] int32


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
        draws = [draw(config.seed, epoch, i, config.base_size) for i in rows]
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
assert isinstance(task.optimizer(model), torch.optim.Adagrad) and task.better == ("iou", 1)
tally.scores().images
