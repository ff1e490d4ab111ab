# %% [markdown]
# # bench
#
# > How fast is it, how fast could it be on this device, and how does it compare with a plain script? Measured side by side, in one run.

# %%
#| default_exp bench

# %%
#| hide
from fastcore.test import expect_fail, test_close, test_eq

# %%
#| export
import contextlib
import copy
import functools
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image, ImageFilter, ImageOps
from skimage.measure import label, regionprops
from torch import Tensor, nn
from torch.nn import functional as F

from mshnet.core import FIRST_DEFAULTS, Config, UserError
from mshnet.data import Draw, Split, draw
from mshnet.device import Device, check_batch, device_for, hold_memory, open_device
from mshnet.evaluate import Origin, look_closely, trained_model
from mshnet.model import Block, ChannelAttention, MSHNet, SpatialAttention, UNet
from mshnet.places import run_folder
from mshnet.run import Folder, State, duration, environment, write_json
from mshnet.show import Picture, even_steps
from mshnet.task import DEVIATION, MEAN, Detection, normalise, predictions, score_split
from mshnet.train import Job, beginning, judge_split, train_epoch

# %% [markdown]
# "Five times faster" says nothing until three things are known: faster than what, at the same result or not, and on a machine that did what else meanwhile? So this notebook holds to four rules.
#
# - **Side by side.** The other way is here too: a plain PyTorch script in the manner of most published ones. Both run in one process, turn by turn, so that a machine that slows down slows both.
# - **Equal first.** Before a ratio is printed, both ways have trained the same steps and scored the same images, and their losses and counts were compared. If they differ there is no ratio.
# - **Against the device.** A ratio to a slow script flatters. What the device can do at best is measured in the same run, and each time is compared with that.
# - **All of it.** A step is measured with its data, a scoring with its metrics, and the start with its imports, because that is what a person waits for.
#
# ## What is asked
#
# Most of what a bench needs is a setting like any other (data, sizes, device, precision). What is left belongs to the bench alone:

# %%
#| export
WEIGHTS = ("both", "trained", "noisy")


@dataclass(frozen=True)
class Options:
    "What a bench measures, beyond the settings of a run."

    baseline: bool = False  # measure the plain path too
    repeats: int = 5  # turns of each measurement; the median counts
    batch_sizes: str = ""  # of training, such as "4,16"; empty: batch_size and four times that
    images: int = 32  # of each turn
    weights: str = "both"  # to score with: those of weight_path, noisy ones, or both
    rates: str = ""  # JSON file of hourly rates; empty: RATES
    largest_batch: bool = False  # find the largest batch that fits, and nothing else

    def __post_init__(self) -> None:
        for name in ("repeats", "images"):
            if (value := getattr(self, name)) < 1:
                raise UserError(f"{name}={value}: write a whole number of at least 1")
        if self.weights not in WEIGHTS:
            raise UserError(f"weights={self.weights!r}: write one of {', '.join(WEIGHTS)}")
        self.sizes(Config())

    def sizes(self, config: Config) -> list[int]:
        "The batch sizes to train with."
        if not self.batch_sizes:
            return [config.batch_size, 4 * config.batch_size]
        words = [word.strip() for word in self.batch_sizes.split(",")]
        if not all(word.isdecimal() and int(word) for word in words):
            raise UserError(
                f"batch_sizes={self.batch_sizes!r}: write whole numbers with commas, such as 4,16"
            )
        return list(dict.fromkeys(map(int, words)))


# %%
test_eq(Options().sizes(Config(batch_size=8)), [8, 32])
test_eq(Options(batch_sizes="4, 16").sizes(Config()), [4, 16])
for wrong in ({"batch_sizes": "4;16"}, {"repeats": 0}, {"weights": "best"}):
    with expect_fail(UserError, contains="write"):
        Options(**wrong)

# %% [markdown]
# What an hour costs depends on the place, the contract and the day. The table is an **example to be edited**, here or in a JSON file of the same form that `--rates` names. The time beside it is always this device's own: only the line with *its* rate means anything.

# %%
#| export
RATES = {  # what an hour of the measured device might cost: EXAMPLES, in any currency
    "example, 0.40 an hour": 0.40,
    "example, 1.20 an hour": 1.20,
    "example, 3.50 an hour": 3.50,
}


def read_rates(
    file: str,  # path of a JSON file such as {"my cloud's A100": 1.2}; empty: the examples
) -> dict[str, float]:  # cost of an hour by name
    "Hourly rates; UserError if the file holds none."
    if not file:
        return RATES
    try:
        rates = json.loads(Path(file).expanduser().read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"rates={file!r}: not a readable JSON file ({error})") from None
    values = rates.values() if isinstance(rates, dict) else ()
    numbers = [isinstance(v, int | float) and not isinstance(v, bool) and v >= 0 for v in values]
    if not numbers or not all(numbers):
        raise UserError(f'rates={file!r}: write an object such as {{"my A100": 1.2}}')
    return rates


# %%
with tempfile.TemporaryDirectory() as tmp:
    (Path(tmp) / "rates.json").write_text('{"my A100": 1.2}')
    (Path(tmp) / "wrong.json").write_text('["1.2"]')
    test_eq(read_rates(f"{tmp}/rates.json"), {"my A100": 1.2})
    with expect_fail(UserError, contains="write an object"):
        read_rates(f"{tmp}/wrong.json")
test_eq(read_rates(""), RATES)


# %% [markdown]
# ## The clock
#
# An accelerator takes orders and works through them later. A clock read after the last order measures how fast one can order. So both readings wait until the device has nothing left to do.

# %%
#| export
def settle(device: Device) -> None:
    "Wait until the device has done all it was told."
    if device.kind == "cuda":
        torch.cuda.synchronize(device.name)
    else:
        device.read(device.send(torch.zeros(())))


def seconds(
    work: Callable[[], Any],
    device: Device,
) -> float:
    "How long some work takes, until its last operation is done."
    settle(device)
    start = time.perf_counter()
    work()
    settle(device)
    return time.perf_counter() - start


# %% [markdown]
# A machine is never alone: clocks fall as it warms up, other programs come and go. Measuring one way first and the other way afterwards would give all of that to one of them. So they take turns, each goes first every other time, and the median of the turns counts. A first turn of each is not counted: it reads files and wakes threads.

# %%
#| export
def take_turns(
    ways: dict[str, Callable[[int], Any]],  # by name; each is told which turn it is, from 0
    repeats: int,
    device: Device,
) -> dict[str, list[float]]:  # seconds of each way, turn by turn
    "Measure several ways turn by turn, after one turn of each that is not counted."
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(repeats + 1):
        names = list(ways)[:: 1 if turn % 2 else -1]
        for name in names:
            hold_memory(device.kind == "cpu" and name != "plain")
            times[name].append(seconds(partial(ways[name], turn), device))
    return {name: found[1:] for name, found in times.items()}


# %%
cpu, order = open_device("cpu", "fp32"), []
times = take_turns({"a": lambda t: order.append("a"), "b": lambda t: order.append("b")}, 2, cpu)
test_eq("".join(order), "ba" + "ab" + "ba")
test_eq([len(t) for t in times.values()], [2, 2])
settle(cpu)
assert seconds(lambda: time.sleep(0.01), cpu) >= 0.01

# %% [markdown]
# ## What the device can do
#
# Every computation needs two things: arithmetic and data to do it on. A device has a best rate for each, and whichever takes longer decides. That is the **roofline** model: plot the attainable speed against the operations per byte of a program, and it climbs along a slope (waiting for memory) until it meets a flat roof (the arithmetic is busy).
#
# Both rates are measured here rather than read from a data sheet. The roof is a large matrix product, which is the one thing that every chip was built for; the slope is a copy, of which each byte is read once and written once. Both take the best of several tries, because a limit is what *can* be reached.

# %%
#| export
SIDES = {"cpu": 2048, "mps": 4096, "cuda": 8192, "xla": 8192}  # of the matrices
MEGABYTES = {"cpu": 256, "mps": 512, "cuda": 1024}  # of the copied block


def best(
    work: Callable[[], Any],
    device: Device,
) -> float:  # seconds
    "The shortest of ten times, or of as many as fit into a second, but two."
    times: list[float] = []
    while len(times) < 2 or (len(times) < 10 and sum(times) < 1):
        times.append(seconds(work, device))
    return min(times)


def matrix_rate(
    device: Device,
    dtype: torch.dtype,
    side: int,  # of the square matrices
) -> float:  # operations per second
    "The best rate of large matrix products."
    left, right = (device.send(torch.randn(side, side) / side**0.5).to(dtype) for _ in range(2))

    def products() -> None:
        result = left
        for _ in range(4):
            result = result @ right
        device.read(result[:1, :1])

    return 4 * 2 * side**3 / best(products, device)


def copy_rate(
    device: Device,
    megabytes: int,
) -> float:  # bytes per second, read and written
    "The best rate of copies within the device's memory."
    source = device.send(torch.zeros(megabytes * 2**18))
    target = torch.empty_like(source)
    return 2 * source.nbytes / best(lambda: target.copy_(source), device)


# %%
assert best(lambda: time.sleep(0.01), cpu) >= 0.01
rates = [matrix_rate(cpu, dtype, 256) / 1e12 for dtype in (torch.float32, torch.bfloat16)]
print(f"TFLOP/s {rates[0]:.2f} in float32, {rates[1]:.2f} in bfloat16")
print(f"copy {copy_rate(cpu, 8) / 1e9:.0f} GB/s (8 MB, half of it may be in a cache)")


# %% [markdown]
# And what does the network ask for? Its convolutions are nearly all of its arithmetic. Counted on the "meta" device, where tensors have shapes and no numbers, an image of 256x256 costs 12 GFLOP. Training computes a gradient for the inputs and one for the weights of each convolution, each as expensive as the forward pass: 36.
#
# The least traffic is counted in the same way: each convolution must read its input and write its output, once. A program that fuses everything else into the convolutions would need no more.

# %%
#| export
@functools.cache  # it builds the network to count
def network_cost(
    size: int,  # side of the image
) -> tuple[float, float]:  # operations, and numbers read or written, of one forward pass
    "What the convolutions of MSHNet cost for one image."
    counts = [0.0, 0.0]

    def count(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        counts[0] += 2 * output.numel() * layer.weight[0].numel()  # type: ignore[index]
        counts[1] += inputs[0].numel() + output.numel()

    with torch.device("meta"), torch.no_grad():
        model = MSHNet()
        for layer in model.modules():
            if isinstance(layer, nn.Conv2d):
                layer.register_forward_hook(count)
        model(torch.empty(1, 3, size, size))
    return counts[0], counts[1]


# %% [markdown]
# Work over rate is time. Whichever of arithmetic and memory takes longer is the limit:

# %%
#| export
@dataclass(frozen=True)
class Limits:
    "The device's own limits, as measured."

    precision: str  # of the run: bf16 or fp32
    matrix: float  # operations per second in that precision
    float32: float  # and in float32
    copy: float | None  # bytes per second, read and written; None: not known

    def seconds(
        self,
        size: int,  # side of the image
        passes: int,  # 1 for scoring, 3 for training
    ) -> float:
        "The least time that an image can take, by the slower of arithmetic and memory."
        return max(self.times(size, passes).values())

    def times(self, size: int, passes: int) -> dict[str, float]:  # seconds
        "The least time that arithmetic alone, and memory alone, can take."
        operations, numbers = network_cost(size)
        width = 4 if self.precision == "fp32" else 2
        moving = numbers * width / self.copy if self.copy else 0.0
        return {"arithmetic": passes * (operations / self.matrix), "memory": passes * moving}


# %%
test_close(network_cost(256)[0], 12.0e9, eps=0.1e9)
test_close(network_cost(128)[0] * 4, network_cost(256)[0], eps=1e7)
operations, numbers = network_cost(256)
print(f"{operations / 1e9:.1f} GFLOP, {2 * numbers / 1e6:.0f} MB in bfloat16, forward")
for name, matrix, copied in (("2 CPU cores", 1.2e12, 35e9), ("a large GPU", 700e12, 4e12)):
    least = Limits("bf16", matrix, matrix / 4, copied).seconds(256, 3)
    print(f"{name}: a training image takes {least * 1e3:.3f} ms or more")


# %% [markdown]
# On XLA a copy that nobody looks at is never made, so its rate is not measured there, and the roof alone is the limit.

# %%
#| export
def measure_limits(device: Device) -> Limits:
    "Measure matrix products in the run's precision and in float32, and a copy."
    side = SIDES[device.kind]
    full = matrix_rate(device, torch.float32, side)
    fast = full if device.dtype == torch.float32 else matrix_rate(device, device.dtype, side)
    block = MEGABYTES.get(device.kind)
    return Limits(device.precision, fast, full, copy_rate(device, block) if block else None)


# %%
limits = measure_limits(cpu)
limits


# %% [markdown]
# ## The plain path
#
# What follows is how such a network is usually trained, and how the authors' script does it; written afresh, and with nothing made slower than it is there. Images are opened one by one with Pillow in the main process. The model is float32 in PyTorch's default memory layout. The loss is a Python loop over the images of a batch. The loss is read in every step. Scoring takes one image at a time and finds its objects anew at each of eleven thresholds.
#
# It reads from files, as such scripts do. They are PNG copies of the pixels in memory, so that a data set of any kind, or none, gives both ways the same input.

# %%
#| export
def write_copies(
    split: Split,
    indices: Sequence[int],
    folder: Path,
) -> None:
    "Write images and masks as PNG files, unless they are there."
    for i in indices:
        path = folder / f"{split.name}_{i}.png"
        if not path.exists():
            Image.fromarray(split.masks[i] * np.uint8(255)).save(folder / f"{split.name}_{i}_m.png")
            Image.fromarray(split.images[i]).save(path)


def plain_augment(
    image: Image.Image,
    mask: Image.Image,
    drawn: Draw,
    crop: int,
) -> tuple[Image.Image, Image.Image]:
    "The training transform, step by step: mirror, resize, pad, crop, blur."
    if drawn.mirror:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        mask = mask.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    width, height = image.size
    long = max(width, height)
    wide, high = (
        drawn.long_side if side == long else max(int(side * drawn.long_side / long + 0.5), 1)
        for side in (width, height)
    )
    image = image.resize((wide, high), Image.Resampling.BILINEAR)
    mask = mask.resize((wide, high), Image.Resampling.NEAREST)
    border = (0, 0, max(crop - wide, 0), max(crop - high, 0))
    image, mask = (ImageOps.expand(x, border, fill=0) for x in (image, mask))
    x = int(drawn.left * (max(wide - crop, 0) + 1))
    y = int(drawn.top * (max(high - crop, 0) + 1))
    image, mask = (p.crop((x, y, x + crop, y + crop)) for p in (image, mask))
    return image.filter(ImageFilter.GaussianBlur(drawn.blur)) if drawn.blur else image, mask


# %% [markdown]
# Pixels become numbers image by image, and a batch is a stack of them:

# %%
#| export
def plain_sample(
    folder: Path,  # of the copies
    name: str,  # of the split
    index: int,
    size: int,  # side of the result
    drawn: Draw | None = None,  # None: squashed, for scoring
) -> tuple[Tensor, Tensor]:  # [3,S,S] normalised, [1,S,S] 0 or 1, both float32
    "Open, transform and normalise one image with its mask."
    with Image.open(folder / f"{name}_{index}.png") as file:
        image = file.convert("RGB")
    with Image.open(folder / f"{name}_{index}_m.png") as file:
        mask = file.convert("L")
    if drawn:
        image, mask = plain_augment(image, mask, drawn, size)
    else:
        image = image.resize((size, size), Image.Resampling.BILINEAR)
        mask = mask.resize((size, size), Image.Resampling.NEAREST)
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255
    mean, deviation = (torch.tensor(v)[:, None, None] for v in (MEAN, DEVIATION))
    return (pixels - mean) / deviation, torch.from_numpy(np.array(mask))[None].float() / 255


def plain_batch(
    folder: Path,
    name: str,
    rows: Sequence[int],
    epoch: int,
    config: Config,
) -> tuple[Tensor, Tensor]:  # [B,3,S,S], [B,1,S,S]
    "One training batch, image by image."
    pairs = []
    for i in rows:
        drawn = draw(config, epoch, i)
        pairs.append(plain_sample(folder, name, i, config.crop_size, drawn))
    return torch.stack([image for image, _ in pairs]), torch.stack([mask for _, mask in pairs])


# %% [markdown]
# The same draws give the same pixels as the library's own batches, to the last bit:

# %%
from mshnet.core import PRESETS

small = {"scenes": 8, "base_size": 32, "crop_size": 32, "device": "cpu", "batch_size": 2}
config = Config(**PRESETS["paper"] | {"precision": "auto"} | small)
task = Detection(config)
parts, place = task.splits(), tempfile.TemporaryDirectory()
write_copies(parts["train"], range(8), Path(place.name))
image, mask = plain_batch(Path(place.name), "train", [5, 2, 6], 9, config)
batch = task.batch(parts["train"], [5, 2, 6], 9)
assert torch.equal(normalise(batch.image), image) and torch.equal(batch.mask.float(), mask)
tall = Image.new("L", (20, 40)), Image.new("L", (20, 40))
test_eq(plain_augment(*tall, Draw(True, 64, 0.5, 0.5, 1.0), 48)[0].size, (48, 48))
test_eq(plain_sample(Path(place.name), "train", 0, 64)[0].shape, (3, 64, 64))


# %% [markdown]
# The loss, image by image. The formulas are explained in the loss notebook; here they stand as one would write them down first.

# %%
#| export
def plain_location(
    prob: Tensor,  # [H,W]
    truth: Tensor,  # [H,W]
) -> Tensor:  # one number
    "Difference of the centres of one image, in polar form."
    height, width = prob.shape
    x = torch.arange(width, device=prob.device).float() / width
    y = torch.arange(height, device=prob.device).float()[:, None] / height
    x1, y1 = (prob * x).mean(), (prob * y).mean()
    x2, y2 = (truth * x).mean(), (truth * y).mean()
    r1, r2 = torch.sqrt(x1**2 + y1**2 + 1e-8), torch.sqrt(x2**2 + y2**2 + 1e-8)
    angle = torch.atan(y1 / (x1 + 1e-8)) - torch.atan(y2 / (x2 + 1e-8))
    return 1 - torch.min(r1, r2) / (torch.max(r1, r2) + 1e-8) + 4 / math.pi**2 * angle**2


def plain_loss(
    masks: Sequence[Tensor],  # logits at strides 1, 2, 4, 8
    logits: Tensor,  # [B,1,H,W]
    mask: Tensor,  # [B,1,H,W] 0 or 1
) -> Tensor:  # one number
    "Mean SLS loss of all five outputs, in a loop over the images of each."
    total, truth = torch.zeros((), device=logits.device), mask
    for i, output in enumerate([logits, *masks]):
        truth = F.max_pool2d(truth, 2) if i > 1 else truth
        for prob, true in zip(torch.sigmoid(output)[:, 0], truth[:, 0], strict=True):
            inter, pred, area = (prob * true).sum(), prob.sum(), true.sum()
            spread = ((pred - area) / 2) ** 2
            factor = (torch.min(pred, area) + spread) / (torch.max(pred, area) + spread)
            loss = 1 - factor * inter / (pred + area - inter) + plain_location(prob, true)
            total = total + loss / len(output) / (1 + len(masks))
    return total


# %%
model = task.model().train()
masks, logits = model(image)
loss = plain_loss(masks, logits, mask)
test_close(plain_location(mask[0, 0], mask[0, 0]), 0)
test_close(loss, task.loss(model, batch, "full"), eps=1e-6)
loss.item()


# %% [markdown]
# A plain step then needs no explanation. `.item()` is what costs most on an accelerator: the host waits for the step's last operation before it prepares the next batch.

# %%
#| export
class PlainChannelAttention(ChannelAttention):
    "Channel attention as it is usually written."

    def forward(self, x: Tensor) -> Tensor:
        "Weights that `x` is to be multiplied with."
        pooled = F.adaptive_avg_pool2d(x, 1), F.adaptive_max_pool2d(x, 1)
        mean, peak = (self.fc2(F.relu(self.fc1(p))) for p in pooled)
        return torch.sigmoid(mean + peak)


class PlainSpatialAttention(SpatialAttention):
    "Spatial attention as it is usually written."

    def forward(self, x: Tensor) -> Tensor:
        "Weights that `x` is to be multiplied with."
        maps = [x.mean(1, keepdim=True), x.max(1, keepdim=True).values]
        return torch.sigmoid(self.conv1(torch.cat(maps, 1)))


def plain_model(model: nn.Module) -> nn.Module:
    "The same model with the same weights, computed by torch's usual operations alone."
    for layer in model.modules():
        if isinstance(layer, Block | UNet):
            layer.by_hand = False
        if isinstance(layer, ChannelAttention):
            layer.__class__ = PlainChannelAttention
        if isinstance(layer, SpatialAttention):
            layer.__class__ = PlainSpatialAttention
    return model


# %% [markdown]
# The script holds all that together:

# %%
#| export
@dataclass(frozen=True)
class Plain:
    "A plain script: its files, its settings, its device, its model and optimizer."

    folder: Path  # of the copies
    config: Config
    device: str  # as torch calls it
    model: nn.Module
    optimizer: torch.optim.Optimizer

    @classmethod
    def begin(cls, folder: Path, config: Config, device: str) -> "Plain":
        "With the weights of the seed and the optimizer of the recipe."
        model = plain_model(Detection(config).model()).to(device)
        adagrad = torch.optim.Adagrad(
            model.parameters(), lr=config.lr, weight_decay=config.weight_decay
        )
        return cls(folder, config, device, model, adagrad)

    def train(self, plan: Sequence[Sequence[int]], epoch: int) -> list[float]:
        "Train on these batches; the loss of each."
        losses = []
        self.model.train()
        for rows in plan:
            image, mask = plain_batch(self.folder, "train", rows, epoch, self.config)
            masks, logits = self.model(image.to(self.device))
            loss = plain_loss(masks, logits, mask.to(self.device))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item())
        return losses


# %%
plain = Plain.begin(Path(place.name), config, "cpu")
assert not plain_model(plain.model).by_hand
assert isinstance(plain.model.encoder_0[0].ca, PlainChannelAttention)
assert isinstance(plain.model.encoder_0[0].sa, PlainSpatialAttention)
losses = plain.train([[5, 2, 6], [0, 1, 3]], 9)
test_close(losses[0], loss.item(), eps=1e-6)
losses


# %% [markdown]
# ### Its scores
#
# Objects are found with scikit-image's `regionprops` and compared pair by pair. Pd and Fa are counted at eleven thresholds and the ROC at eleven more, each with a pass of numpy over the image. (The authors' script compares *logits* with the thresholds 0, 25.5 .. 255; only the first of them, which is the one that is reported, means anything. The work is done all the same, so it is done here.)

# %%
#| export
def plain_objects(
    pred: np.ndarray,  # [H,W] bool
    mask: np.ndarray,  # [H,W] bool
) -> tuple[int, int, int]:  # targets, matched targets, false pixels
    "Match the objects of one image in label order, as the published scripts do."
    preds = list(regionprops(label(pred.astype(np.int64), connectivity=2)))
    targets = regionprops(label(mask.astype(np.int64), connectivity=2))
    areas, used = [p.area for p in preds], []
    for target in targets:
        for k, found in enumerate(preds):
            away = np.linalg.norm(np.array(found.centroid) - np.array(target.centroid))
            if away < 3:
                used.append(found.area)
                del preds[k]
                break
    false = [area for area in areas if area not in used]
    return len(targets), len(used), int(sum(false))


# %% [markdown]
# All counts of one image, one after the other:

# %%
#| export
class PlainScores:
    "Scores of a plain script: counts of each image, and sums at eleven thresholds."

    def __init__(self) -> None:
        self.images: list[dict[str, int]] = []
        self.curve = np.zeros((11, 3), np.int64)  # targets, matched, false pixels
        self.roc = np.zeros((11, 4), np.int64)  # hits, false alarms, misses, true rejections
        self.pixels = 0

    def add(
        self,
        logits: Tensor,  # [H,W] on the host
        mask: np.ndarray,  # [H,W] bool
    ) -> None:
        "Count one image."
        values, prob = logits.numpy(), torch.sigmoid(logits).numpy()
        found = [plain_objects(values > i * 25.5, mask) for i in range(11)]
        self.curve += found
        for i in range(11):
            high = prob > i / 10
            parts = (high & mask, high & ~mask, ~high & mask, ~high & ~mask)
            self.roc[i] += [part.sum() for part in parts]
        pred = values > 0
        sums = [int(part.sum()) for part in (pred & mask, pred, mask)]
        names = ("inter", "pred", "mask", "targets", "matched", "false_pixels")
        self.images.append(dict(zip(names, [*sums, *found[0]], strict=True)))
        self.pixels += mask.size


# %% [markdown]
# One image at a time through the model, then through the counts:

# %%
#| export
def plain_scoring(
    model: nn.Module,  # on the device
    folder: Path,
    split: Split,
    size: int,  # side of the scored image
    device: str,
    deep: bool = True,  # score the fused prediction, or the single head
) -> PlainScores:
    "Score a split, one image at a time."
    scores = PlainScores()
    model.eval()
    with torch.no_grad():
        for i in range(len(split)):
            image, mask = plain_sample(folder, split.name, i, size)
            logits = model(image[None].to(device), deep=deep)[1]
            scores.add(logits[0, 0].float().cpu(), mask[0].numpy() > 0)
    return scores


# %%
write_copies(parts["test"], range(2), Path(place.name))
counted = plain_scoring(model, Path(place.name), parts["test"], 32, "cpu")
spots = np.zeros((16, 16), bool)
spots[2:4, 2:4] = spots[9:12, 9:12] = True
small = spots & (np.arange(16) < 4)
test_eq(plain_objects(spots, spots), (2, 2, 0))
test_eq((plain_objects(small, spots), plain_objects(spots, small)), ((2, 1, 0), (1, 1, 9)))
assert isinstance(counted, PlainScores) and len(counted.images) == 2
counted.images[0]


# %% [markdown]
# ## Noise
#
# A trained network reports a few objects in an image. An untrained one may report thousands, and each of them has to be found, measured and compared: scoring that is quick at the end of a training can take ten times as long at its beginning. So it is measured with both.
#
# Fresh weights alone make no such noise; their prediction is nearly flat. These do: batch norm is set by one batch, the last convolution becomes a high-pass filter, which answers to every grain of an image, and its bias is set so that one pixel in seven is predicted. As in the first epochs, when Adagrad takes its largest steps, the logits run into the thousands, so that every threshold of the plain script meets the noise.

# %%
#| export
def noisy_model(
    task: Detection,
    folder: Path,  # of the copies
    split: Split,
) -> nn.Module:  # on the CPU
    "An untrained model that predicts thousands of components in an image of 256x256."
    model, config = task.model(), task.config
    rows = range(min(len(split), 4))
    write_copies(split, rows, folder)
    images = [plain_sample(folder, split.name, i, config.base_size)[0] for i in rows]
    final: Any = model.final
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = 1.0
    with torch.no_grad():
        final.weight.zero_()
        final.bias.zero_()
        final.weight[0, 0] = -1.0
        final.weight[0, 0, 1, 1] = 8.0
        model.train()(torch.stack(images))
        logits = model.eval()(torch.stack(images))[1]
        scale = 1000 / float(logits.std())
        final.weight *= scale
        final.bias -= scale * float(np.quantile(logits.numpy(), 0.85))
    return model


# %%
big = Detection(config.model_copy(update={"base_size": 128, "crop_size": 128}))
noisy = noisy_model(big, Path(place.name), parts["test"])
counted = plain_scoring(noisy, Path(place.name), parts["test"], 128, "cpu")
assert all(row["false_pixels"] > 500 for row in counted.images)
counted.images

# %% [markdown]
# ## Equal first
#
# A faster way to another result is no faster way. So before anything is timed, both ways train the same few steps in float32, with the same seed and the same draws, and score the same images with the same weights.
#
# **Losses.** Two programs that add the same float32 numbers in another order differ in the seventh digit. The first losses must agree to $10^{-6}$, relative. The later ones cannot: Adagrad's first step moves each weight by the whole learning rate in the direction of its gradient, however small that is, so a gradient of about 0 whose sign is a matter of rounding sends a weight this way or that. (The plain path alone, run in two memory layouts, is some percent apart after four steps.) Hence two comparisons: a run of its own, whose later losses must agree to a tenth only, and before each step a copy of *our* weights, from which every single loss must agree to $10^{-6}$ again.

# %%
#| export
STEPS = 3  # that are compared
SAME, LATER = 1e-6, 0.1  # allowed relative differences: from the same weights; in a run of its own


class SomeSteps(Detection):
    "MSHNet's task, with some steps of each epoch only."

    def __init__(self, config: Config, first: int, count: int) -> None:
        super().__init__(config)
        self.first, self.count = first, count

    def plan(self, split: Split, epoch: int | None) -> list[list[int]]:
        "These steps of an epoch; all of a scoring."
        whole = super().plan(split, epoch)
        return whole if epoch is None else whole[self.first : self.first + self.count]


def full_epoch(config: Config) -> int:
    "The first epoch that trains all heads."
    return config.warm_epoch + 1


# %% [markdown]
# A step of ours is an epoch of one batch, so that what is compared is what `mshnet train` runs:

# %%
#| export
def compare_losses(
    config: Config,
    split: Split,
    folder: Path,
    device: Device,  # in float32
) -> list[dict[str, float]]:  # per step: ours, plain from the same weights, plain on its own
    "Train a few steps both ways."
    task, epoch = Detection(config), full_epoch(config)
    model = device.place(task.model())
    state = State(model, task.optimizer(model))
    same, free = (Plain.begin(folder, config, device.name) for _ in range(2))
    steps = []
    for i, rows in enumerate(task.plan(split, epoch)[:STEPS]):
        write_copies(split, rows, folder)
        same.model.load_state_dict(state.model.state_dict())
        ours, _ = train_epoch(SomeSteps(config, i, 1), state, split, device, epoch)
        one, other = same.train([rows], epoch)[0], free.train([rows], epoch)[0]
        steps.append({"ours": ours, "same weights": one, "own run": other})
    return steps


# %% [markdown]
# What is wrong, if anything, is said in one line:

# %%
#| export
def loss_difference(
    steps: Sequence[dict[str, float]],  # from compare_losses
) -> str:  # empty: equal
    "Where the losses of both ways differ by more than rounding explains."
    for i, step in enumerate(steps):
        for name in ("same weights", "own run"):
            allowed = LATER if i and name == "own run" else SAME
            apart = abs(step["ours"] - step[name]) / max(abs(step[name]), 1e-12)
            if not apart <= allowed:  # NaN is not, either
                return (
                    f"loss of step {i}, {name}: {step['ours']:.8g} and {step[name]:.8g} "
                    f"are {apart:.1e} apart, allowed is {allowed:.0e}"
                )
    return ""


# %%
steps = compare_losses(config, parts["train"], Path(place.name), cpu)
test_eq(loss_difference(steps), "")
test_eq(full_epoch(Config(warm_epoch=5)), 6)
test_eq(SomeSteps(config, 1, 2).plan(parts["train"], 3), task.plan(parts["train"], 3)[1:3])
wrong = [{"ours": 1.0, "same weights": 1.0, "own run": 1.00001}]
assert "own run" in loss_difference(wrong) and loss_difference([{**wrong[0], "ours": math.nan}])
[{name: round(value, 5) for name, value in step.items()} for step in steps]

# %% [markdown]
# **Scores.** Counts are whole numbers and must be equal, image by image. But a pixel whose logit is 0 to the seventh digit may be predicted by one program and not by the other, and then both are right. So the two halves of scoring are compared apart: the logits to float32 tolerance, and the counts exactly, on the same logits, by the rule that the published scripts use.

# %%
#| export
COUNTS = ("inter", "pred", "mask", "targets", "matched", "false_pixels")


def compare_scores(
    config: Config,
    model: nn.Module,  # on the CPU
    split: Split,
    folder: Path,
    device: Device,  # in float32
    phase: str = "full",
) -> dict[str, Any]:  # how far the logits are apart, and the counts of both ways
    "Score a split both ways."
    task = Detection(config.model_copy(update={"rule": "reference"}))
    theirs = plain_model(copy.deepcopy(model)).to(device.name).eval()
    mine = device.place(copy.deepcopy(model))
    write_copies(split, range(len(split)), folder)
    closely = look_closely(task, mine, split, device, phase, Origin("bench"))
    quickly = score_split(task, mine, split, device, phase)
    batches = predictions(task, mine, split, device, phase)
    logits = torch.cat([logits[batch.real, 0] for logits, batch in batches])
    plain, apart = PlainScores(), 0.0
    for i, ours in enumerate(logits):
        image, mask = plain_sample(folder, split.name, i, config.base_size)
        with torch.no_grad():
            other = theirs(image[None].to(device.name), deep=phase == "full")[1][0, 0].cpu()
        apart = max(apart, float((ours - other).abs().max() / other.abs().max().clamp(min=1)))
        plain.add(ours, mask[0].numpy() > 0)
    return {
        "logits apart": apart,
        "ours": [[row[name] for name in COUNTS] for row in closely.images],
        "plain": [[row[name] for name in COUNTS] for row in plain.images],
        "lines": [str(closely.scores), str(quickly)],
    }


# %% [markdown]
# And again what is wrong, in one line:

# %%
#| export
def score_difference(
    scores: dict[str, Any],  # from compare_scores
) -> str:  # empty: equal
    "Where the scores of both ways differ."
    if not scores["logits apart"] <= 1e-4:
        return f"logits are {scores['logits apart']:.1e} apart, allowed is 1e-04"
    for i, (ours, plain) in enumerate(zip(scores["ours"], scores["plain"], strict=True)):
        if ours != plain:
            return f"image {i}: {', '.join(COUNTS)} are {ours} and {plain}"
    first, second = scores["lines"]
    return "" if first == second else f"score lines differ: {first} and {second}"


# %%
scores = compare_scores(big.config, noisy, parts["test"], Path(place.name), cpu)
test_eq(score_difference(scores), "")
assert "image 0" in score_difference({**scores, "ours": [[0] * 6, *scores["ours"][1:]]})
assert "apart" in score_difference({**scores, "logits apart": 0.1})
scores["logits apart"], scores["plain"]


# %% [markdown]
# What was compared is told in one line:

# %%
#| export
def equality_text(equality: dict[str, Any]) -> str:
    "What was compared, in one line."
    steps, scores = equality["losses"], equality["scores"].values()
    apart = {
        way: max(abs(s["ours"] - s[way]) / abs(s[way]) for s in steps)
        for way in ("same weights", "own run")
    }
    images = sum(len(each["ours"]) for each in scores)
    logits = max((each["logits apart"] for each in scores), default=0.0)
    return (
        f"losses of {len(steps)} float32 steps {apart['same weights']:.0e} apart from the same "
        f"weights ({apart['own run']:.0e} in runs of their own, as rounding grows under Adagrad); "
        f"counts of {images} scored images equal, logits {logits:.0e} apart"
    )


# %%
equality_text({"losses": steps, "scores": {"noisy": scores}})


# %% [markdown]
# On an NVIDIA GPU, torch rounds the inputs of float32 convolutions to ten bits (TF32) unless it is told not to. For the comparison it must not; for the plain path's time it does, because that is what a plain script gets.

# %%
#| export
@contextlib.contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    "Allow or forbid TF32 in convolutions for a while."
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


# %%
with tf32(False):
    assert not torch.backends.cudnn.allow_tf32


# %% [markdown]
# ## What is measured
#
# All measurements share a place to work in:

# %%
#| export
@dataclass(frozen=True)
class Bed:
    "What all measurements share."

    config: Config
    options: Options
    parts: dict[str, Split]
    device: Device
    folder: Path  # of the plain path's copies

    def at(self, batch: int) -> Config:
        "The settings with another batch size."
        return self.config.model_copy(update={"batch_size": batch})

    def sizes(self) -> list[int]:
        "The batch sizes: those asked for, or of the usual ones those with enough images."
        asked, count = self.options.sizes(self.config), len(self.parts["train"])
        return asked if self.options.batch_sizes else [size for size in asked if size <= count]

    def plan(self, batch: int, turn: int) -> list[list[int]]:
        "The batches of a turn: so many that they hold `images` images, if there are as many."
        steps = max(1, self.options.images // batch)
        whole = Detection(self.at(batch)).plan(self.parts["train"], self.epoch(turn))
        return whole[:steps]

    def epoch(self, turn: int) -> int:
        "Each turn is an epoch of its own, after the warm-up."
        return full_epoch(self.config) + turn

    def copy_turns(self, batch: int) -> None:
        "Write the files that the plain path will train on."
        for turn in range(self.options.repeats + 1):
            rows = [i for step in self.plan(batch, turn) for i in step]
            write_copies(self.parts["train"], rows, self.folder)


# %% [markdown]
# Scoring takes images from all over the test list, because neighbours in a list tend to be alike:

# %%
#| export
def sample(bed: Bed) -> Split:
    "Test images to score, evenly spread over the list."
    split = bed.parts["test"]
    return split.part("sample", even_steps(len(split), bed.options.images))


# %%
options = Options(baseline=True, repeats=1, batch_sizes="2,4", images=4)
bed = Bed(config, options, parts, cpu, Path(place.name))
test_eq([len(bed.plan(b, 0)) for b in (2, 4, 8)], [2, 1, 1])
bed.copy_turns(4)
test_eq((bed.sizes(), replace(bed, options=Options()).sizes()), ([2, 4], [2, 8]))
len(sample(bed))


# %% [markdown]
# A row of the result holds the raw seconds of every turn, and what follows from them. *Roofline* is the least time that the device's limits allow, as a part of the time taken: 100% would be a program with nothing left to win.

# %%
#| export
def make_row(
    name: str,
    images: int,  # in each turn
    times: dict[str, list[float]],  # seconds of each turn: "ours" and perhaps "plain"
    least: float | None = None,  # seconds that the device's limits allow for an image
) -> dict[str, Any]:
    "A row of the result: raw seconds, and medians per image."
    each = {way: statistics.median(values) / images for way, values in times.items()}
    return {
        "what": name,
        "images": images,
        "raw_seconds": times,
        "seconds_per_image": each,
        "images_per_second": {way: 1 / value for way, value in each.items()},
        "roofline": least / each["ours"] if least else None,
        "ratio": each["plain"] / each["ours"] if "plain" in each else None,
    }


# %%
row = make_row("example", 4, {"ours": [0.4, 0.8, 0.5], "plain": [2.0, 2.0, 9.0]}, least=0.05)
test_eq((row["seconds_per_image"]["ours"], row["ratio"]), (0.125, 4.0))
test_close(row["roofline"], 0.4)


# %% [markdown]
# **Training**, with all that belongs to a step: reading, augmenting, copying, forward, loss, backward, update.

# %%
#| export
def training_row(
    bed: Bed,
    batch: int,
    limits: Limits,
) -> dict[str, Any]:
    "Seconds of whole training steps."
    config, train = bed.at(batch), bed.parts["train"]
    task = SomeSteps(config, 0, len(bed.plan(batch, 0)))
    model = bed.device.place(task.model())
    state = State(model, task.optimizer(model))
    ways: dict[str, Callable[[int], Any]] = {
        "ours": lambda turn: train_epoch(task, state, train, bed.device, bed.epoch(turn))
    }
    if bed.options.baseline:
        bed.copy_turns(batch)
        plain = Plain.begin(bed.folder, config, bed.device.name)

        def plainly(turn: int) -> None:
            with tf32(True):
                plain.train(bed.plan(batch, turn), bed.epoch(turn))

        ways["plain"] = plainly
    times = take_turns(ways, bed.options.repeats, bed.device)
    least = limits.seconds(config.crop_size, 3)
    row = make_row(f"train, batch {batch}", task.count * batch, times, least)
    return row | {"kind": "train", "batch": batch}


# %% [markdown]
# **Data alone**: from the files (plain) or the pixels in memory (ours) to normalised numbers on the device. Against the same batch's training it shows whether the data hold up the training.

# %%
#| export
def data_row(
    bed: Bed,
    batch: int,
    training: float,  # seconds per image of training at this batch size, all included
) -> dict[str, Any]:
    "Seconds of reading and augmenting."
    config, train = bed.at(batch), bed.parts["train"]
    task = SomeSteps(config, 0, len(bed.plan(batch, 0)))

    def ours(turn: int) -> None:
        epoch = bed.epoch(turn)
        plan = task.plan(train, epoch)
        for part in task.batches(bed.device, train, plan, epoch):
            normalise(part.image)

    def plain(turn: int) -> None:
        for rows in bed.plan(batch, turn):
            pairs = plain_batch(bed.folder, "train", rows, bed.epoch(turn), config)
            for pixels in pairs:
                pixels.to(bed.device.name)

    ways: dict[str, Callable[[int], Any]] = {"ours": ours}
    if bed.options.baseline:
        bed.copy_turns(batch)
        ways["plain"] = plain
    times = take_turns(ways, bed.options.repeats, bed.device)
    row = make_row(f"data alone, batch {batch}", task.count * batch, times)
    share = row["seconds_per_image"]["ours"] / training
    return row | {"kind": "data", "batch": batch, "part_of_step": share}


# %% [markdown]
# **Scoring**: forward pass and all metrics, with the settings' own batch size and matching rule. It has two rows, because there are two scorings. After each epoch only the scores are wanted; `mshnet test` and the end of a run also count the curves, at more thresholds than the plain script does. The plain script has one way for both, and both are compared with it.

# %%
#| export
def scoring_rows(
    bed: Bed,
    name: str,  # of the weights: "trained" or "noisy"
    model: nn.Module,  # on the CPU
    phase: str,
    limits: Limits,
) -> list[dict[str, Any]]:
    "Seconds of scoring, without and with the curves."
    task, split, device = Detection(bed.config), sample(bed), bed.device
    mine = device.place(copy.deepcopy(model))
    ways: dict[str, Callable[[int], Any]] = {
        "scores": lambda turn: score_split(task, mine, split, device, phase),
        "curves": lambda turn: look_closely(task, mine, split, device, phase, Origin("bench")),
    }
    if bed.options.baseline:
        write_copies(split, range(len(split)), bed.folder)
        theirs, size = plain_model(copy.deepcopy(model)).to(device.name), bed.config.base_size

        def plainly(turn: int) -> None:
            with tf32(True):
                plain_scoring(theirs, bed.folder, split, size, device.name, phase == "full")

        ways["plain"] = plainly
    times = take_turns(ways, bed.options.repeats, device)
    plain = {"plain": times["plain"]} if "plain" in times else {}
    least, rows = limits.seconds(bed.config.base_size, 1), []
    for way, text in (("scores", "score"), ("curves", "score with curves")):
        row = make_row(f"{text}, {name} weights", len(split), {"ours": times[way], **plain}, least)
        rows.append(row | {"kind": way, "weights": name, "batch": bed.config.batch_size})
    return rows


# %%
rows = [training_row(bed, 2, limits)]
rows.append(data_row(bed, 2, rows[0]["seconds_per_image"]["ours"]))
rows += scoring_rows(bed, "noisy", noisy, "full", limits)
test_eq([r["kind"] for r in rows], ["train", "data", "scores", "curves"])
assert all(r["ratio"] > 0 for r in rows)
[(r["what"], round(r["images_per_second"]["ours"])) for r in rows]


# %% [markdown]
# ## In a process of its own
#
# Two things can be measured once per process only: how long a start takes, imports included, and how much memory was needed at the most. Each gets a fresh process that trains a few steps and reports.
#
# One trap for whoever repeats this: `ru_maxrss`, the usual answer to "how much memory was used at most", survives `exec` on Linux. A small program that is started by a large one reports the large one's memory. `VmHWM` does not.

# %%
#| export
def peak_memory(kind: str) -> int:  # bytes
    "The most memory that this process has used: of the GPU, or of the host."
    if kind == "cuda":
        return torch.cuda.max_memory_allocated()
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource  # not on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def start_ours(config: Config, start: float) -> dict[str, Any]:
    "Do what `mshnet train` does, up to its first step; then two steps with all heads."
    device, first = device_for(config), SomeSteps(config, 0, 1)
    parts = first.splits()
    state = beginning(Job(first, parts, device, Folder(Path(config.output_dir))))
    before = peak_memory(device.kind)
    train_epoch(first, state, parts["train"], device, 0)
    settle(device)
    taken = time.time() - start
    task = SomeSteps(config, 0, 2)
    train_epoch(task, state, parts["train"], device, full_epoch(config))
    return {"seconds": taken, "before": before, "peak": peak_memory(device.kind)}


def start_plain(
    config: Config, start: float, plan: list[list[int]], folder: str, device: str
) -> dict[str, Any]:
    "Begin a plain script and train three steps."
    plain = Plain.begin(Path(folder), config, device)
    kind, epoch = device.split(":")[0], full_epoch(config)
    before = peak_memory(kind)
    plain.train(plan[:1], epoch)
    taken = time.time() - start
    plain.train(plan, epoch)
    return {"seconds": taken, "before": before, "peak": peak_memory(kind)}


# %% [markdown]
# The child reads what to do from its input and writes what it found as its last line:

# %%
#| export
def answer(request: dict[str, Any]) -> dict[str, Any]:
    "What a child process is asked: the start of ours, or of the plain path if it has a plan."
    config, start = Config(**request["config"]), request["start"]
    if "plan" not in request:
        return start_ours(config, start)
    return start_plain(config, start, request["plan"], request["folder"], request["device"])


def child() -> None:
    "The whole program of a child process."
    print(json.dumps(answer(json.load(sys.stdin))))


def ask_child(request: dict[str, Any]) -> dict[str, Any]:  # or {"error": its last line}
    "Ask a fresh process; the clock starts here."
    done = subprocess.run(
        [sys.executable, "-c", "from mshnet.bench import child; child()"],
        input=json.dumps({**request, "start": time.time()}),
        capture_output=True,
        text=True,
    )
    lines = (done.stderr if done.returncode else done.stdout).strip().splitlines()
    if done.returncode:
        return {"error": lines[-1] if lines else f"ended with status {done.returncode}"}
    return json.loads(lines[-1])


# %% [markdown]
# For each batch size, one child of ours and one of the plain path. Running out of memory is an answer too, and ends nothing. On a TPU only one process can hold the chips, so there are no children there.

# %%
#| export
def start_row(
    bed: Bed,
    batch: int,
) -> dict[str, Any]:
    "Time to the first step and peak memory, in processes of their own."
    config, kind = bed.at(batch), bed.device.kind
    with tempfile.TemporaryDirectory() as tmp:
        settings = config.model_dump() | {"output_dir": f"{tmp}/run", "weight_path": ""}
        row = {"batch": batch, "ours": ask_child({"config": settings})}
        if bed.options.baseline:
            plan = Detection(config).plan(bed.parts["train"], full_epoch(config))[:2]
            write_copies(bed.parts["train"], [i for rows in plan for i in rows], bed.folder)
            where = {"folder": str(bed.folder), "device": bed.device.name}
            row["plain"] = ask_child({"config": settings, "plan": plan, **where})
    return row | {"memory": "GPU" if kind == "cuda" else "host"}


# %%
started = start_row(replace(bed, options=Options()), 2)
assert 0 < started["ours"]["before"] <= started["ours"]["peak"] <= peak_memory("cpu") * 10
here = config.model_copy(update={"output_dir": place.name})
test_eq(sorted(answer({"config": here.model_dump(), "start": 0})), sorted(started["ours"]))
assert start_ours(here, 0)["peak"] and start_plain(config, 0, [[0, 1]], place.name, "cpu")["peak"]
assert "error" in ask_child({"config": {"epochs": 0}}) and callable(child)
started


# %% [markdown]
# ## The largest batch
#
# How large a batch fits is tried, not computed: twice as many images each time, in a fresh process each, until one has no memory or the next would have none. On a GPU running out is an error like others. A host without memory is killed by its system, so there the next size is not tried if the growth so far says that it cannot fit.

# %%
#| export
def largest_batch(
    config: Config,  # its batch_size is tried first
) -> list[dict[str, Any]]:  # per size: batch, and seconds, before and peak (bytes), or error
    "Train a few steps with growing batches; UserError if the first does not fit."
    device, images = device_for(config), len(Detection(config).splits()["train"])
    if device.kind == "xla" or device.ranks.count > 1:
        raise UserError(f"largest_batch: not on {device.name}, which one process holds")
    rows: list[dict[str, Any]] = []
    batch, room = config.batch_size, device.free()
    with tempfile.TemporaryDirectory() as tmp:
        while batch <= images:
            wanted = {"batch_size": batch, "output_dir": f"{tmp}/run", "weight_path": ""}
            rows.append({"batch": batch} | ask_child({"config": config.model_dump() | wanted}))
            if "error" in rows[-1]:
                break
            grows = rows[-1]["peak"] - rows[-1]["before"]
            if device.kind == "cpu" and rows[-1]["peak"] + grows > 0.9 * room:
                rows.append({"batch": 2 * batch, "error": "would not fit into the free memory"})
                break
            batch *= 2
    if "error" in rows[0]:
        raise UserError(f"batch_size={config.batch_size} does not run: {rows[0]['error']}")
    return rows


def largest_text(rows: list[dict[str, Any]], config: Config) -> str:
    "What was tried, and what to write."
    lines = [
        f"batch {row['batch']:5}: {row.get('error') or format(row['peak'] / 2**20, '.0f') + ' MiB'}"
        for row in rows
    ]
    best = max(row["batch"] for row in rows if "error" not in row)
    rate = config.lr * (best / 4) ** 0.5
    return "\n".join(
        [*lines, f"write --batch-size {best}; with --lr-rule sqrt its learning rate is {rate:.3g}"]
    )


# %%
tried = largest_batch(config.model_copy(update={"batch_size": 4}))
assert tried[0]["peak"] > tried[0]["before"]
print(largest_text([*tried, {"batch": 999, "error": "out of memory"}], config))

# %% [markdown]
# ## What it would cost
#
# An epoch is its training images at the measured time, and its scored images. Four hundred of them are the paper's training. This is a projection from a few steps, without the start and the checkpoints, and is called so.

# %%
#| export
EPOCHS = 400  # of the paper's recipe


def epoch_times(
    training: dict[str, Any],  # a row of training
    scoring: dict[str, Any],  # a row of scoring
    trained: int,  # images in an epoch's whole batches
    scored: float,  # images in an epoch, on average
) -> dict[str, float]:  # seconds by way
    "Time of an epoch from measured rows."
    return {
        way: trained * training["seconds_per_image"][way] + scored * each
        for way, each in scoring["seconds_per_image"].items()
    }


# %% [markdown]
# Four hundred of them:

# %%
#| export
def project(
    config: Config,
    parts: dict[str, Split],
    training: dict[str, Any],  # a row of training
    scoring: dict[str, Any],  # a row of scoring
    rates: dict[str, float],
) -> dict[str, Any]:
    "Time of an epoch, and time and cost of 400, from measured rows."
    trained = len(parts["train"]) // training["batch"] * training["batch"]
    scored = len(parts[judge_split(config)]) / config.eval_every
    once = epoch_times(training, scoring, trained, scored)
    hours = EPOCHS * once["ours"] / 3600
    return {
        "batch": training["batch"],
        "train_images": trained,
        "scored_images": scored,
        "scored_with": scoring["weights"],
        "epoch_seconds": once,
        "hours": {way: EPOCHS * value / 3600 for way, value in once.items()},
        "cost": {name: round(hours * rate, 2) for name, rate in rates.items()},
    }


# %%
projected = project(config, parts, rows[0], rows[2], RATES)
assert projected["hours"]["plain"] > 0 and set(projected["cost"]) == set(RATES)
one = {"seconds_per_image": {"ours": 1.0}}
test_eq(epoch_times(one, one, 8, 2.5), {"ours": 10.5})
projected["epoch_seconds"]


# %% [markdown]
# ## The table
#
# Everything that is printed or drawn comes from one dictionary, the content of `bench.json`. So a table can be printed again from a file, on another machine, a year later.

# %%
#| export
def cell(
    value: float | None,
    form: str,  # of a number, such as ".2f"
    unit: str = "",
) -> str:
    "A number, or a dash."
    return "-" if value is None else f"{value:{form}}{unit}"


def rows_text(
    rows: Sequence[dict[str, Any]],
) -> list[str]:
    "Measured rows, one line each."
    plain = any("plain" in row["seconds_per_image"] for row in rows)
    head = f"{'':34}{'ms/image':>10}{'images/s':>10}{'roofline':>10}"
    lines = [head + (f"{'plain ms':>11}{'ratio':>9}" if plain else "")]
    for row in rows:
        each = row["seconds_per_image"]
        roof = row["roofline"] and 100 * row["roofline"]
        line = f"{row['what']:34}{1e3 * each['ours']:10.2f}{1 / each['ours']:10.1f}"
        line += f"{cell(roof, '.1f', '%'):>10}"
        if plain:
            other = each.get("plain")
            line += f"{cell(other and 1e3 * other, '.2f'):>11}{cell(row['ratio'], '.2f', 'x'):>9}"
        if "part_of_step" in row:
            line += f"  ({row['part_of_step']:.1%} of a training step)"
        lines.append(line)
    return lines


# %% [markdown]
# What the children found:

# %%
#| export
def starts_text(
    starts: Sequence[dict[str, Any]],
) -> list[str]:
    "Time to the first step and memory, one line each."
    lines = []
    for row in starts:
        words = []
        for way in ("ours", "plain"):
            found = row.get(way, {})
            if "error" in found:
                words.append(f"{way}: {found['error']}")
            elif found:
                text = f"first step after {found['seconds']:.1f} s, {found['peak'] / 2**20:.0f} MiB"
                words.append(f"{way}: {text} (before it {found['before'] / 2**20:.0f})")
        lines.append(f"start, batch {row['batch']} ({row['memory']} memory)  {'; '.join(words)}")
    return lines


# %% [markdown]
# The projections:

# %%
#| export
def projections_text(
    projections: Sequence[dict[str, Any]],
) -> list[str]:
    "Projected times and costs, one line each."
    lines = []
    for row in projections:
        times = [
            f"{way} {duration(row['epoch_seconds'][way])} an epoch, "
            f"{duration(3600 * hours)} for {EPOCHS}"
            for way, hours in row["hours"].items()
        ]
        counts = f"{row['train_images']} training, {row['scored_images']:g} scored images"
        lines.append(f"projected, batch {row['batch']} ({counts}): {'; '.join(times)}")
        lines += [f"  {name}: {value:.2f}" for name, value in row["cost"].items()]
    return lines


# %% [markdown]
# And all of it:

# %%
#| export
def table(
    content: dict[str, Any],  # of bench.json
) -> str:
    "A bench as text."
    lines = [f"device  {content['environment']['device']}", f"data    {content['data']}"]
    if problem := content["problem"]:
        return "\n".join([*lines, f"NOT EQUAL, so no time is taken and no ratio given: {problem}"])
    size, limits = content["config"]["crop_size"], content["limits"]
    rate = f"{limits['matrix'] / 1e12:.3g} TFLOP/s in {limits['precision']}"
    slow = f"{limits['float32'] / 1e12:.3g} in float32"
    copied = cell(limits["copy"] and limits["copy"] / 1e9, ".3g", " GB/s")
    equal = content["equality"]
    return "\n".join(
        [
            *lines,
            *([f"equal   {equality_text(equal)}"] if equal else []),
            f"limits  matrix products {rate}, {slow}; copy {copied}",
            f"turns   median of {content['options']['repeats']}, {size}x{size} pixels",
            "",
            *rows_text(content["rows"]),
            "",
            *starts_text(content["starts"]),
            *projections_text(content["projections"]),
        ]
    )


# %%
content = {
    "problem": "",
    "environment": environment(cpu.why),
    "data": "scenes",
    "equality": None,
    "config": config.model_dump(),
    "options": asdict(options),
    "limits": asdict(limits),
    "rows": rows,
    "starts": [started, {"batch": 64, "memory": "host", "ours": {"error": "out of memory"}}],
    "projections": [projected],
}
assert all(line in table(content) for line in rows_text(rows) + starts_text([started]))
assert projections_text([projected])[0] in table(content) and cell(None, ".2f") == "-"
assert "NOT EQUAL" in table({**content, "problem": "loss of step 0"})
print(table(content))

# %% [markdown]
# The picture says three things: how many images pass in a second (on a logarithmic scale, since scoring and training are far apart), how many could at best (the black mark), and what memory a batch takes. Blue and orange can be told apart by nearly everybody, and the bars are hatched besides.

# %%
#| export
LOOKS: dict[str, dict[str, Any]] = {
    "ours": {"color": "#0072B2"},
    "plain": {"color": "#E69F00", "hatch": "//", "edgecolor": "white"},
}


def draw_speed(axes: Any, rows: Sequence[dict[str, Any]]) -> None:
    "Images per second of each row, with the device's limit and the ratio."
    for i, row in enumerate(rows):
        speeds = row["images_per_second"]
        for k, (way, speed) in enumerate(speeds.items()):
            axes.barh(i + 0.4 * k, speed, 0.38, label=None if i else way, **LOOKS[way])
        if row["roofline"]:
            limit = speeds["ours"] / row["roofline"]
            spot = {"color": "black", "markersize": 14, "markeredgewidth": 2}
            axes.plot(limit, i, "|", label=None if i else "limit of the device", **spot)
        text = f" {row['ratio']:.1f}x" if row["ratio"] else f" {speeds['ours']:.3g}"
        axes.text(speeds["ours"], i, text, va="center", ha="left", fontsize=9)
    axes.set_yticks([i + 0.2 * (len(r["images_per_second"]) - 1) for i, r in enumerate(rows)])
    axes.set_yticklabels([row["what"] for row in rows])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.margins(x=0.15)
    axes.set_xlabel("images per second (logarithmic)")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=3, fontsize=9)


# %%
#| export
def draw_memory(axes: Any, starts: Sequence[dict[str, Any]]) -> None:
    "Peak memory by batch size."
    for k, way in enumerate(LOOKS):
        peaks = [row.get(way, {}).get("peak") for row in starts]
        places = [i + 0.4 * k for i, peak in enumerate(peaks) if peak]
        heights = [peak / 2**20 for peak in peaks if peak]
        bars = axes.bar(places, heights, 0.38, **LOOKS[way])
        axes.bar_label(bars, fmt="%.0f", fontsize=9)
    axes.set_xticks([i + 0.2 for i in range(len(starts))])
    axes.set_xticklabels([str(row["batch"]) for row in starts])
    axes.set(xlabel="batch size", ylabel="peak memory in MiB")
    axes.margins(y=0.12)


def draw_bench(
    content: dict[str, Any],  # of bench.json
    path: Path,
) -> Picture:
    "Draw a bench: speed on the left, memory on the right."
    figure = Figure(figsize=(11, 1.5 + 0.6 * len(content["rows"])), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[3, 1])
    draw_speed(left, content["rows"])
    draw_memory(right, content["starts"])
    figure.suptitle(content.get("environment", {}).get("device", ""), fontsize=10)
    figure.savefig(path, dpi=110)
    return Picture(path)


# %%
picture = draw_bench(content, Path(place.name) / "bench.png")
figure = Figure()
draw_speed(figure.add_subplot(1, 2, 1), rows)
draw_memory(figure.add_subplot(1, 2, 2), content["starts"])
picture

# %% [markdown]
# ## The whole bench
#
# First everything that could be wrong with the request, then whether both ways are equal, then the clock. What is recorded names data by their folder's name and no machine.

# %%
#| export
PROTOCOL = {
    "turns": "ours and plain alternate in one process, each first every other time; one turn of "
    "each is not counted; medians",
    "train": "whole steps with all heads: reading, augmenting, copying, forward, loss, backward, "
    "update",
    "score": "forward pass and IoU, nIoU, F1, Pd, Fa; `with curves` adds precision and recall and "
    "Pd against Fa at two dozen thresholds",
    "plain": "float32 (TF32 convolutions where torch's defaults allow them), contiguous layout, "
    "PNG files opened image by image in the main process, loss in a loop over images and read in "
    "every step, scoring image by image with objects and ROC at eleven thresholds each",
    "noisy": "untrained weights made to predict thousands of components",
    "roofline": "least time by convolutions' arithmetic (12 GFLOP forward, 36 in training, for "
    "256x256) and by their inputs and outputs moved once, at the measured rates, as a part of the "
    "time taken",
    "start": "a fresh process each, measured once; memory is the GPU's allocated peak, or the "
    "process's resident peak on the host",
    "projected": "epochs times measured seconds, without start and checkpoints",
}

# %% [markdown]
# That stands in the file, beside the numbers it explains. What is measured is the paper's recipe, which is also what the plain script does. The request is checked before anything is spent:

# %%
#| export
MEASURED = {k: v for k, v in FIRST_DEFAULTS.items() if k not in ("choose", "epochs")}


def make_bed(
    config: Config,
    options: Options,
    folder: Path,  # for the copies
) -> Bed:
    "Read the data and open the device; UserError if something cannot be measured."
    own = {"crop_size": config.base_size, "log_every": 1_000_000, "resume": ""}
    config = config.model_copy(update=MEASURED | own)
    if options.weights == "trained" and not config.weight_path:
        raise UserError("weights=trained: name the weights with --weight-path")
    device = device_for(config)
    if options.baseline and (device.kind == "xla" or device.ranks.count > 1):
        raise UserError(f"baseline: not on {device.name}, which a plain script cannot use")
    parts = Detection(config).splits()
    bed = Bed(config, options, parts, device, folder)
    for size in bed.sizes():
        check_batch(device, size)
        if size > len(parts["train"]):
            raise UserError(
                f"batch_sizes={size}: there are only {len(parts['train'])} training images; "
                "write smaller ones, such as --batch-sizes 4"
            )
    return bed


# %% [markdown]
# The weights to score with are the user's, noise, or both:

# %%
#| export
def models(bed: Bed) -> dict[str, tuple[nn.Module, str]]:  # model on the CPU, and its phase
    "The models to score with, by the name of their weights."
    found: dict[str, tuple[nn.Module, str]] = {}
    if bed.config.weight_path and bed.options.weights != "noisy":
        trained = trained_model(bed.config.weight_path)
        found["trained"] = trained.model, trained.phase
    if bed.options.weights != "trained":
        found["noisy"] = noisy_model(Detection(bed.config), bed.folder, bed.parts["test"]), "full"
    return found


# %%
with expect_fail(UserError, contains="there are only 8 training images"):
    make_bed(config, Options(batch_sizes="64"), Path(place.name))
with expect_fail(UserError, contains="--weight-path"):
    make_bed(config, Options(weights="trained"), Path(place.name))
bed = make_bed(config, options, Path(place.name))
list(models(bed))


# %% [markdown]
# The comparison of both ways, which comes before all clocks:

# %%
#| export
def compare(
    bed: Bed,
    found: dict[str, tuple[nn.Module, str]],  # from models
) -> tuple[dict[str, Any], str]:  # what was compared; what differs, empty: nothing
    "Train and score both ways in float32 and compare."
    config = bed.config.model_copy(update={"precision": "fp32"})
    some = sample(bed)
    few = some.part("few", range(min(len(some), 4)))
    with tf32(False):
        device = open_device(config.device, "fp32")
        steps = compare_losses(config, bed.parts["train"], bed.folder, device)
        scores = {
            name: compare_scores(config, model, few, bed.folder, device, phase)
            for name, (model, phase) in found.items()
        }
    problems = [loss_difference(steps), *map(score_difference, scores.values())]
    return {"losses": steps, "scores": scores}, next(filter(None, problems), "")


# %%
equality, problem = compare(bed, models(bed))
test_eq(problem, "")
equality["losses"][0]


# %% [markdown]
# Then all rows. The order is that of growing disturbance: the children first, while this process is small.

# %%
#| export
def measure(
    bed: Bed,
    found: dict[str, tuple[nn.Module, str]],  # from models
    say: Callable[[str], None],  # told what comes next
) -> dict[str, Any]:  # limits, rows, starts, projections
    "Measure everything."
    sizes, rates = bed.sizes(), read_rates(bed.options.rates)
    starts = []
    for batch in sizes if bed.device.kind != "xla" else ():
        say(f"first step and memory, batch {batch}")
        starts.append(start_row(bed, batch))
    say("limits of the device")
    limits, rows = measure_limits(bed.device), []
    for batch in sizes:
        say(f"train, batch {batch}")
        rows.append(training_row(bed, batch, limits))
    trained = list(rows)
    say("data alone")
    rows.append(data_row(bed, sizes[0], rows[0]["seconds_per_image"]["ours"]))
    for name, (model, phase) in found.items():
        say(f"score, {name} weights")
        rows += scoring_rows(bed, name, model, phase, limits)
    scored = next(row for row in rows if row["kind"] == "scores")
    return {
        "limits": asdict(limits),
        "rows": rows,
        "starts": starts,
        "projections": [project(bed.config, bed.parts, r, scored, rates) for r in trained],
    }


def public(config: Config) -> dict[str, Any]:
    "The settings, with the names of folders and files instead of their paths."
    paths = ("dataset_dir", "weight_path", "output_dir", "debug_xla")
    return config.model_dump() | {name: Path(getattr(config, name)).name for name in paths}


# %%
said = []
few = replace(bed, options=Options(repeats=1, batch_sizes="2", images=2))
found = measure(few, models(few), said.append)
test_eq([row["kind"] for row in found["rows"]], ["train", "data", "scores", "curves"])
test_eq(public(config.model_copy(update={"dataset_dir": "a/b"}))["dataset_dir"], "b")
said


# %% [markdown]
# And all of it, written down:

# %%
#| export
def bench(
    config: Config,
    options: Options,
) -> dict[str, Any]:  # the content of bench.json
    "Compare, measure, and write bench.json and bench.png into output_dir (runs/bench if empty)."
    read_rates(options.rates)  # a mistake in it should not wait for the end
    named = Path(config.output_dir).expanduser()
    folder = named if config.output_dir else run_folder(config).parent / "bench"
    with tempfile.TemporaryDirectory() as tmp:
        bed = make_bed(config, options, Path(tmp))
        train, test = bed.parts["train"], bed.parts["test"]
        content: dict[str, Any] = {
            "format": 1,
            "data": f"{train.source}: {len(train)} train, {len(test)} test",
            "config": public(bed.config),
            "options": asdict(options) | {"rates": Path(options.rates).name},
            "environment": environment(bed.device.why),
            "protocol": PROTOCOL,
        }
        found = models(bed)
        equality, problem = compare(bed, found) if options.baseline else (None, "")
        content |= {"equality": equality, "problem": problem}
        if not problem:
            content |= measure(bed, found, lambda text: print(f"  {text}", file=sys.stderr))
    content = json.loads(json.dumps(content), parse_constant=lambda _: None)  # no NaN
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "bench.json", content)
        if not problem:
            draw_bench(content, folder / "bench.png")
    except OSError as error:
        raise UserError(f"output_dir={named}: cannot be written ({error.strerror})") from None
    return content


# %%
here = config.model_copy(update={"output_dir": f"{place.name}/bench"})
content = bench(here, Options(baseline=True, repeats=1, batch_sizes="2", images=2))
test_eq(json.loads((Path(here.output_dir) / "bench.json").read_text()), content)
print(table(content))

# %% [markdown]
# How to read it: begin with the *roofline* column. Where it says 40%, no cleverness can make that row more than two and a half times as fast on this device. Then the part of a step that the data take: above a few percent the device waits for them. Then memory, which decides the batch size, and last the projection. The ratio says what the work on this library was worth; it says nothing about whether more is to be had.
#
# On images of 32x32 none of these numbers means anything. On the command line: `mshnet bench --baseline --dataset-dir data/NUAA-SIRST --weight-path runs/NAME/best.pt`.

# %% [markdown]
# ## Tables from benches
#
# People choose a device by tables: hours, memory, cost. Such tables are usually typed in by hand, and nobody knows later which number was measured and which was guessed. Here they are made from files. What a `bench.json` holds is *measured*, and its folder is named. The rest is *estimated*, by a formula that stands beside it. [The guide](guide_speed.ipynb) shows them; `make build` writes the same tables to `results/SPEED.md`.
#
# A folder that was asked for and cannot be used is a mistake of the user's. One of many is left out with a warning.

# %%
#| export
import re
import warnings

from torch.utils._python_dispatch import TorchDispatchMode

from mshnet.loss import mshnet_loss


# %%
#| export
def bench_fault(content: Any) -> str:  # empty: none
    "What keeps the content of a bench.json from being used in a table."
    if not isinstance(content, dict):
        return "not an object"
    if content.get("problem"):
        return "both ways were not equal, so nothing was timed"
    lacking = {"config", "environment", "rows", "starts"} - set(content)
    if lacking:
        return f"has no {min(lacking)}"
    keys = {"what", "kind", "batch", "seconds_per_image"}
    if not all(keys <= set(row) for row in content["rows"]):
        return "has a row without its time"
    found = {row["kind"] for row in content["rows"]}
    return "" if {"train", "scores"} <= found else "has no row of training, or none of scoring"


def read_bench(folder: Path | str) -> dict[str, Any]:  # the content of its bench.json
    "Read a bench; UserError if it cannot be used."
    path = Path(folder).expanduser() / "bench.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        fault = bench_fault(content)
    except OSError as error:
        fault = error.strerror or str(error)
    except ValueError as error:
        fault = f"not JSON, {error}"
    if fault:
        raise UserError(f"{path}: {fault}; name a folder that `mshnet bench` wrote")
    return content


# %% [markdown]
# All of a folder of results, by name:

# %%
#| export
def read_benches(
    root: Path | str,  # such as results/
) -> dict[str, dict[str, Any]]:  # contents by the name of their folder
    "Read the bench of every folder that has one; those that cannot be used cause a warning."
    root = Path(root).expanduser()
    if not root.is_dir():
        raise UserError(f"{root}: no such folder; name one whose folders hold bench.json")
    found = {}
    for path in sorted(root.glob("*/bench.json")):
        try:
            found[path.parent.name] = read_bench(path.parent)
        except UserError as error:
            warnings.warn(f"left out: {error}", stacklevel=2)
    return found


# %%
benches = read_benches(place.name)
test_eq(list(benches), ["bench"])
test_eq(bench_fault(read_bench(f"{place.name}/bench")), "")
test_eq(bench_fault({**content, "problem": "loss"})[:19], "both ways were not ")
with expect_fail(UserError, contains="no such folder"):
    read_benches("nowhere")
with expect_fail(UserError, contains="`mshnet bench` wrote"):
    read_bench(place.name)


# %% [markdown]
# ### What was measured
#
# Three tables: on what, how fast, and how much memory. They are Markdown, which a notebook, a site and GitHub all show.

# %%
#| export
def markdown_table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
) -> str:
    "A Markdown table; without rows it says so."
    if not rows:
        return "*Nothing was measured.*"
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def machines_table(benches: dict[str, dict[str, Any]]) -> str:
    "What each bench was measured on."
    rows = []
    for name, content in benches.items():
        found = content["environment"]
        torch_version = found.get("packages", {}).get("torch", "-")
        system = f"{found.get('system', '-')}, {found.get('cores', '-')} cores"
        size = content["config"]["crop_size"]
        data = f"{content.get('data', '-')}; {size}x{size} pixels"
        rows.append([f"`{name}`", found["device"], system, torch_version, data])
    return markdown_table(["folder", "device", "machine", "torch", "data"], rows)


# %% [markdown]
# Speed, of training at each batch size and of scoring:

# %%
#| export
def speeds_table(benches: dict[str, dict[str, Any]]) -> str:
    "Measured training and scoring."
    rows = []
    for name, content in benches.items():
        for row in content["rows"]:
            if row["kind"] == "data":
                continue
            each, roof = row["seconds_per_image"], row.get("roofline")
            plain = each.get("plain")
            what = row["what"] if row["kind"] == "train" else f"{row['what']}, batch {row['batch']}"
            rows.append(
                [
                    f"`{name}`",
                    what,
                    f"{1e3 * each['ours']:.4g}",
                    f"{1 / each['ours']:.3g}",
                    cell(plain and 1e3 * plain, ".4g"),
                    cell(row.get("ratio"), ".1f", " times as fast"),
                    cell(roof and 100 * roof, ".0f", "%"),
                ]
            )
    head = ["folder", "what", "ms an image", "images/s", "plain path, ms", "ratio", "of the limit"]
    return markdown_table(head, rows)


# %% [markdown]
# Memory was measured in processes of their own, once each:

# %%
#| export
def starts_table(benches: dict[str, dict[str, Any]]) -> str:
    "Measured time to the first step, and memory by batch size."
    rows = []
    for name, content in benches.items():
        for row in content["starts"]:
            ours, plain = row.get("ours", {}), row.get("plain", {})
            found = [cell(way.get("peak") and way["peak"] / 2**20, ".0f") for way in (ours, plain)]
            first = ours.get("error") or cell(ours.get("seconds"), ".1f")
            rows.append([f"`{name}`", f"{row['batch']}", first, *found, row["memory"]])
    head = ["folder", "batch", "first step after, s", "peak, MiB", "plain path, MiB", "memory"]
    return markdown_table(head, rows)


# %%
train_row = benches["bench"]["rows"][0]
assert f"{1e3 * train_row['seconds_per_image']['ours']:.4g}" in speeds_table(benches)
assert "| `bench` | cpu, " in machines_table(benches) and "| host |" in starts_table(benches)
test_eq(markdown_table(["a", "b"], [["1", "2"]]), "| a | b |\n| --- | --- |\n| 1 | 2 |")
test_eq(speeds_table({}), "*Nothing was measured.*")
print(speeds_table(benches))

# %% [markdown]
# ### Hours and cost
#
# From measured times per image follow the hours for data sets of other sizes. An epoch trains all training images (in whole batches) and scores the test list once, as the official script does; holding out a fifth for choosing the epoch makes it shorter. Only a bench at 256x256 says anything about these sets, which are used at that size.

# %%
#| export
DATA_SETS = {  # images to train with and to test with, as commonly split
    "NUAA-SIRST": (213, 214),
    "NUDT-SIRST": (663, 664),
    "IRSTD-1k": (800, 201),
}
SIDE = 256  # of their images in training and scoring


def fastest(content: dict[str, Any]) -> dict[str, Any]:
    "The row of training that takes least time per image."
    rows = [row for row in content["rows"] if row["kind"] == "train"]
    return min(rows, key=lambda row: row["seconds_per_image"]["ours"])


def epoch_seconds(
    content: dict[str, Any],
    train: int,  # images
    test: int,  # images
) -> float:
    "Seconds of an epoch from measured times, at the batch size that is fastest."
    row = fastest(content)
    scoring = next(r for r in content["rows"] if r["kind"] == "scores")
    return epoch_times(row, scoring, train // row["batch"] * row["batch"], test)["ours"]


# %% [markdown]
# The table has a line for each data set and a column for each rate.

# %%
#| export
def full_size(benches: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    "The benches that were measured at 256x256."
    sizes = ("base_size", "crop_size")
    return {
        name: content
        for name, content in benches.items()
        if all(content["config"][size] == SIDE for size in sizes)
    }


def hours_table(benches: dict[str, dict[str, Any]], rates: dict[str, float]) -> str:
    "Time and cost of 400 epochs on each measured device."
    rows = []
    for name, content in full_size(benches).items():
        for data, (train, test) in DATA_SETS.items():
            taken = epoch_seconds(content, train, test)
            cost = [f"{EPOCHS * taken / 3600 * rate:.2f}" for rate in rates.values()]
            batch = f"{fastest(content)['batch']}"
            times = [duration(taken), duration(EPOCHS * taken)]
            rows.append([f"`{name}`", batch, data, f"{train} + {test}", *times, *cost])
    head = ["folder", "batch", "data set", "images", "an epoch", f"{EPOCHS} epochs", *rates]
    return markdown_table(head, rows)


# %%
row, seen = ({"batch": 4, "seconds_per_image": {"ours": s}} for s in (0.1, 0.05))
hour = {"config": {"base_size": 256, "crop_size": 256}}
hour["rows"] = [{**row, "kind": "train"}, {**seen, "kind": "scores"}]
test_eq(fastest(hour)["batch"], 4)
test_close(epoch_seconds(hour, 213, 214), 212 * 0.1 + 214 * 0.05)
test_eq(full_size({"one": hour, **benches}), {"one": hour})
print(hours_table({"one": hour}, RATES))


# %% [markdown]
# ### What was not measured
#
# Devices that nobody has measured can be estimated, badly. Three things take time in a step, and the slowest decides:
#
# - **arithmetic**: the operations of the convolutions (36 GFLOP to train an image of 256x256), at a part of the maker's peak rate;
# - **memory**: what they read and write, at the same part of the maker's bandwidth;
# - **starts**: PyTorch starts each of about two thousand operations of a step by itself, and the device waits if the host is slower than it is. This does not depend on the batch size, so large batches hide it. `torch.compile` joins many of them into one, how many was not counted. A TPU's program has none.
#
# How large that part is, nobody knows before measuring. So it is assumed as a range, and so is the time of a start. The measured devices show whether the range is sensible. The peaks are those that NVIDIA, Google and Apple publish, for dense matrices.

# %%
#| export
@dataclass(frozen=True)
class Chip:
    "A device as its maker's data sheet has it. Edit it, or add one."

    name: str
    precision: str  # that this library computes in there
    peak: float  # TFLOP/s in that precision, without sparsity
    bandwidth: float  # GB/s
    memory: float  # GB
    pattern: str = "never measured"  # of its name in a bench
    compiled: bool = False


CHIPS = (
    Chip("NVIDIA T4", "fp16", 65, 320, 16, r"\bT4\b"),
    Chip("NVIDIA P100", "fp32", 9.3, 732, 16, r"\bP100\b"),
    Chip("NVIDIA L4", "bf16", 121, 300, 24, r"\bL4\b"),
    Chip("NVIDIA A100 40 GB", "bf16", 312, 1555, 40, r"\bA100\b.*\b40 ?GB"),
    Chip("NVIDIA A100 80 GB", "bf16", 312, 2039, 80, r"\bA100\b.*\b80 ?GB"),
    Chip("NVIDIA H100 SXM", "bf16", 989, 3350, 80, r"\bH100\b"),
    Chip("NVIDIA H200", "bf16", 989, 4800, 141, r"\bH200\b"),
    Chip("TPU v5e, one chip", "bf16", 197, 819, 16, r"\bv5e\b", compiled=True),
    Chip("TPU v6e, one chip", "bf16", 918, 1638, 32, r"\bv6e\b", compiled=True),
    Chip("Apple M2, 10-core GPU", "fp32", 3.6, 100, 8, r"\bApple M2\b"),
    # 8 cores x 3 GHz x 32 operations (AVX2), two channels of DDR4-3200: an example, no product
    Chip("laptop CPU, 8 cores", "fp32", 0.77, 51, 16),
)


@dataclass(frozen=True)
class Assumed:
    "What an estimate assumes, because it was not measured."

    efficiency: float  # part of the peak rate and of the bandwidth that is reached
    started: float  # part of the operations that are started one by one
    start: float  # seconds to start one


GOOD, POOR = Assumed(0.40, 0.25, 5e-6), Assumed(0.10, 1.0, 15e-6)


# %% [markdown]
# The precision is the one that `auto` chooses there: a T4 has no bfloat16 and gets float16, a P100 and an Apple chip get float32.
#
# The starts are counted: each operation of a forward and a backward pass that is no mere view. The plain lines of the model count, since the ones written for the CPU run on a CPU only.

# %%
#| export
@functools.cache
def count_starts(precision: str) -> int:
    "Operations that a training step starts, the optimizer's few left out."

    class Count(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.count += not (func.is_view or "empty" in str(func))
            return func(*args, **(kwargs or {}))

    model = plain_model(MSHNet())
    image, mask = torch.rand(1, 3, 32, 32), torch.ones(1, 1, 32, 32)
    with Count() as counted:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision != "fp32"):
            masks, logits = model(image)
            loss = mshnet_loss(masks, logits, mask).mean()
        loss.backward()
    return counted.count


# %%
starts = count_starts("bf16")
assert 1000 < count_starts("fp32") < starts < 4000
starts


# %% [markdown]
# The three times of an image, and the table with the good and the poor end of each:

# %%
#| export
def estimate(
    chip: Chip,
    batch: int,
    assumed: Assumed,
    starts: int,  # of a training step
) -> dict[str, float]:  # seconds for each image by what takes them; the largest decides
    "Estimated times of training, for one image of 256x256."
    rate, copied = 1e12 * chip.peak, 1e9 * chip.bandwidth
    part = assumed.efficiency
    reached = Limits(chip.precision, rate * part, rate * part, copied * part)
    waiting = 0.0 if chip.compiled else starts * assumed.started * assumed.start / batch
    return reached.times(SIDE, 3) | {"starts": waiting}


def between(*ends: float) -> str:
    "A range with two digits, which is more than an estimate deserves."
    words = [f"{float(f'{end:.2g}'):g}" for end in ends]
    return " to ".join(dict.fromkeys(words))


# %% [markdown]
# Where a chip of the list was measured after all, the table shows both, and the formula can be judged by it:

# %%
#| export
def measured_there(
    chip: Chip,
    benches: dict[str, dict[str, Any]],
    batch: int,
) -> str:  # empty: not measured
    "Milliseconds per image that were measured on a chip at this batch size."
    found = []
    for name, content in full_size(benches).items():
        device = content["environment"]["device"]
        if re.search(chip.pattern, device) and f"{chip.precision}:" in device:
            rows = [r for r in content["rows"] if (r["kind"], r["batch"]) == ("train", batch)]
            found += [f"{1e3 * r['seconds_per_image']['ours']:.3g} (`{name}`)" for r in rows]
    return ", ".join(found)


# %%
t4, v5e = (next(c for c in CHIPS if name in c.name) for name in ("T4", "v5e"))
parts_of = estimate(t4, 16, GOOD, starts)
alike = Limits("fp16", 65e12 * 0.4, 1.0, 320e9 * 0.4).seconds(256, 3)
test_close(max(parts_of["arithmetic"], parts_of["memory"]), alike)
test_eq(estimate(v5e, 16, GOOD, starts)["starts"], 0)
test_eq([between(0.123, 4.567), between(110, 1234)], ["0.12 to 4.6", "110 to 1200"])
test_eq(between(2, 2), "2")
there = {**hour, "environment": {"device": "cuda, fp16: Tesla T4, 15 GB"}}
test_eq(measured_there(t4, {"mine": there}, 4), "100 (`mine`)")
test_eq(measured_there(v5e, {"mine": there}, 4), "")
assert isinstance(CHIPS[0], Chip) and isinstance(POOR, Assumed)
parts_of


# %% [markdown]
# The minutes are those of the training steps of 400 epochs, and of nothing else. Scoring adds a third of a step's work for each scored image, and counting its objects on the host, which no data sheet tells.

# %%
#| export
def estimates_table(
    benches: dict[str, dict[str, Any]],
    batch: int = 16,
    chips: Sequence[Chip] = CHIPS,
    rates: dict[str, float] | None = None,  # cost of an hour by the chip's name; none: no cost
) -> str:
    "Estimated training times of devices, beside what was measured there, if anything."
    rows = []
    for chip in chips:
        starts = count_starts(chip.precision)
        good, poor = (estimate(chip, batch, assumed, starts) for assumed in (GOOD, POOR))
        low, high = max(good.values()), max(poor.values())
        minutes = [EPOCHS * train / 60 for train, _ in DATA_SETS.values()]
        decides = dict.fromkeys(max(way, key=lambda k: way[k]) for way in (good, poor))
        row = [
            chip.name,
            f"{chip.precision}: {chip.peak:g} TFLOP/s, {chip.bandwidth:g} GB/s",
            between(1e3 * low, 1e3 * high),
            ", ".join(decides),
            *(between(low * each, high * each) for each in minutes),
        ]
        if rates is not None:
            cost = [minutes[0] * end / 60 * rates.get(chip.name, 0) for end in (low, high)]
            row.append(between(cost[0], cost[1]) if chip.name in rates else "-")
        rows.append([*row, measured_there(chip, benches, batch) or "not measured"])
    cost_head = [] if rates is None else [f"cost, {next(iter(DATA_SETS))}"]
    head = ["device", "data sheet", "ms an image, estimated", "what decides"]
    sets = [f"{name}, min" for name in DATA_SETS]
    return markdown_table([*head, *sets, *cost_head, "measured, ms an image"], rows)


# %%
estimated = estimates_table({"mine": there}, 4, rates={"NVIDIA T4": 2.0})
test_eq(estimated.count("not measured"), len(CHIPS) - 1)
assert "100 (`mine`)" in estimated and "cost, NUAA-SIRST" in estimated
print(estimates_table({}, chips=[t4, v5e]))


# %% [markdown]
# ### Memory
#
# What a step of the paper's recipe needs at least can be computed: the weights, their gradients and Adagrad's sums, four bytes each, the weights once more in bfloat16, and what the forward pass keeps for the backward pass. The latter can be asked of torch. On a CPU the hand-written backward passes keep less; what is asked here is what other devices keep.

# %%
#| export
def kept_bytes(
    images: int,
    size: int,  # side of the image
    precision: str,
    deep: bool = True,  # all heads, or those of the warm-up
) -> int:
    "Bytes that a forward pass keeps for its backward pass, beside the weights."
    model, sizes = plain_model(MSHNet()), {}
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def note(tensor: Tensor) -> Tensor:
        memory = tensor.untyped_storage()
        if memory.data_ptr() not in weights:
            sizes[memory.data_ptr()] = memory.nbytes()
        return tensor

    image, mask = torch.rand(images, 3, size, size), torch.ones(images, 1, size, size)
    image = image.contiguous(memory_format=torch.channels_last)
    hooks = torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor)
    with hooks, torch.autocast("cpu", torch.bfloat16, enabled=precision != "fp32"):
        masks, logits = model(image, deep=deep)
        loss = mshnet_loss(masks, logits, mask).mean()
    assert loss.isfinite()  # and the graph is alive until here: no address is used twice
    return sum(sizes.values())


# %% [markdown]
# Two batch sizes tell apart what each image costs and what is there once:

# %%
#| export
@functools.cache
def training_memory(
    size: int,  # side of the image
    precision: str,
    deep: bool = True,  # all heads, or those of the warm-up
) -> tuple[int, int]:  # bytes: whatever the batch, and for each of its images
    "The least memory that training needs."
    one, two = (kept_bytes(images, size, precision, deep) for images in (1, 2))
    weights = sum(p.numel() for p in MSHNet().parameters())
    return 3 * 4 * weights + 2 * one - two, two - one


# %%
fixed, per_image = training_memory(64, "bf16")
test_close(kept_bytes(4, 64, "bf16") - kept_bytes(3, 64, "bf16"), per_image, eps=4096)
assert training_memory(64, "bf16", deep=False)[1] < per_image < training_memory(64, "fp32")[1]
fixed / 2**20, per_image / 2**20


# %% [markdown]
# At the peak there is more: gradients of what was kept, and room for convolutions to work in. How much more, a bench shows by what each further image of a batch took. The table assumes between nothing and as much again.

# %%
#| export
def growth(content: dict[str, Any]) -> float | None:  # bytes; None: fewer than two sizes
    "Measured memory for each further image of a batch."
    peaks = {row["batch"]: row.get("ours", {}).get("peak") for row in content["starts"]}
    known = sorted((batch, peak) for batch, peak in peaks.items() if peak)
    if len(known) < 2:
        return None
    (few, low), (many, high) = known[0], known[-1]
    return (high - low) / (many - few)


def growth_table(benches: dict[str, dict[str, Any]]) -> str:
    "Measured memory for each further image, beside what the forward pass keeps."
    rows = []
    for name, content in full_size(benches).items():
        device, found = content["environment"]["device"], growth(content)
        if found:
            kept = training_memory(SIDE, "fp32" if "fp32:" in device else "bf16")[1]
            rows.append([f"`{name}`", device, f"{found / 2**20:.0f}", between(kept / 2**20)])
    return markdown_table(["folder", "device", "measured, MiB", "kept, MiB, computed"], rows)


# %% [markdown]
# From that follow the needs of a batch, and the batch that fits:

# %%
#| export
def memory_table(sizes: Sequence[int] = (4, 8, 16, 32, 64, 128, 256)) -> str:
    "Estimated memory of training by batch size."
    needs = [training_memory(SIDE, precision) for precision in ("bf16", "fp32")]
    rows = [
        [f"{n}", *(between((a + b * n) / 2**30, (a + 2 * b * n) / 2**30) for a, b in needs)]
        for n in sizes
    ]
    return markdown_table(["batch", "bf16 or fp16, GiB, estimated", "fp32, GiB, estimated"], rows)


def batch_that_fits(chip: Chip) -> int:
    "The largest power of two that should fit, by the poor end of the estimate."
    fixed, per_image = training_memory(SIDE, chip.precision)
    room = 0.9 * chip.memory * 1e9 - fixed
    return 2 ** int(math.log2(max(1.0, room / (2 * per_image))))


def fits_table(chips: Sequence[Chip] = CHIPS) -> str:
    "The largest batch that should fit into the memory of each chip."
    rows = [[c.name, f"{c.memory:g} GB", c.precision, f"{batch_that_fits(c)}"] for c in chips]
    return markdown_table(["device", "memory", "precision", "largest batch, estimated"], rows)


# %%
sized = {**there, "starts": [{"batch": b, "ours": {"peak": b * 2**29}} for b in (2, 6)]}
test_eq((growth(sized), growth({"starts": []})), (2**29, None))
assert "| 512 |" in growth_table({"mine": sized})
test_eq(batch_that_fits(t4), 64)
assert "| NVIDIA T4 | 16 GB | fp16 | 64 |" in fits_table()
print(memory_table([4, 16]))


# %% [markdown]
# ### Which device for what
#
# The advice is made of the same numbers, so it changes with them.

# %%
#| export
def measured_advice(benches: dict[str, dict[str, Any]]) -> list[str]:
    "What the measured numbers say, one line for each bench."
    lines, (train, test) = [], DATA_SETS["NUAA-SIRST"]
    for name, content in full_size(benches).items():
        whole = duration(EPOCHS * epoch_seconds(content, train, test))
        scored = duration(epoch_seconds(content, 0, test))
        lines.append(
            f"On {content['environment']['device']} (`{name}`), {EPOCHS} epochs of NUAA-SIRST "
            f"take {whole} and one scoring of its {test} test images takes {scored} (measured "
            "times an image, projected)."
        )
    return lines


def advice(benches: dict[str, dict[str, Any]], batch: int = 16) -> str:
    "Which device for which situation, from the numbers of the tables."
    ends = {
        c: [estimate(c, batch, a, count_starts(c.precision)) for a in (GOOD, POOR)] for c in CHIPS
    }
    images = EPOCHS * DATA_SETS["NUAA-SIRST"][0] / 60
    times = {
        c.name: between(*(images * max(way.values()) for way in ways)) for c, ways in ends.items()
    }
    waiting = [c.name for c, (_, poor) in ends.items() if max(poor.values()) == poor["starts"]]
    need = [training_memory(SIDE, p) for p in ("bf16", "fp32")]
    gib = between(*((a + f * b * batch) / 2**30 for f, (a, b) in enumerate(need, 1)))
    lines = [
        *measured_advice(benches),
        f"The {EPOCHS} epochs' training steps of NUAA-SIRST should take a T4 "
        f"{times['NVIDIA T4']} minutes (float16), a P100 {times['NVIDIA P100']} (float32): "
        "estimated.",
        f"At batch {batch} these wait for the host rather than for themselves, by the poor end of "
        f"the estimate: {', '.join(waiting) or 'none'}. Among them a larger one may gain nothing; "
        "take the cheapest, or a larger batch.",
        f"Memory decides little: batch {batch} needs {gib} GiB (estimated; bfloat16 at the good "
        "end, float32 at the poor one).",
        "Twice the rate is worth paying for more than twice the speed: cost is hours times rate. "
        "`mshnet bench` measures a device in minutes, before it is rented for a day.",
    ]
    return "\n".join(f"- {line}" for line in lines)


# %%
test_eq(len(measured_advice({"mine": there})), 1)
assert measured_advice({"mine": there})[0] in advice({"mine": there})
print(advice({}))


# %% [markdown]
# ### The page
#
# One text with all tables, for whoever reads the repository without running it.

# %%
#| export
def reached(benches: dict[str, dict[str, Any]]) -> str:
    "Which part of their own measured limits the measured devices reach in training."
    rows = [row for content in benches.values() for row in content["rows"]]
    parts = [row["roofline"] for row in rows if row["kind"] == "train" and row.get("roofline")]
    if not parts:
        return "No measured device shows whether that is sensible."
    return (
        f"In training the measured devices reach {between(100 * min(parts), 100 * max(parts))}% "
        "of the limits that were measured on them."
    )


def formula() -> str:
    "The formula of the estimates, with its numbers."
    operations, numbers = network_cost(SIDE)
    return (
        f"Seconds an image = the largest of: 3 x {operations / 1e9:.3g} GFLOP / (peak rate x "
        f"efficiency); 3 x {numbers / 1e6:.3g} million numbers of 2 bytes (bf16, fp16) or 4 (fp32) "
        f"/ (bandwidth x efficiency); about {between(count_starts('bf16'))} operations x the part "
        "that is started one by one x the time of a start / batch. Assumed: efficiency "
        f"{GOOD.efficiency:.0%} and {GOOD.started:.0%} started, since torch.compile joins the "
        f"others, at {1e6 * GOOD.start:g} microseconds (good end); {POOR.efficiency:.0%} and all "
        f"of them at {1e6 * POOR.start:g} (poor end). A TPU's "
        "program is compiled and has no starts."
    )


# %%
assert "12 GFLOP" in formula() and "measured on them" in reached(benches)
test_eq(reached({})[:18], "No measured device")
formula()


# %%
#| export
def speed_page(root: Path | str) -> str:  # Markdown
    "All tables of a folder of results."
    benches = read_benches(root)
    parts = [
        "<!-- made from results/*/bench.json by make build: edit nbs/13_bench.py -->",
        "# Speed, memory, cost",
        "What was measured names its folder here; what was not is called estimated. "
        "[The guide](../nbs/guide_speed.ipynb) explains the columns.",
        "## Measured",
        *(table_of(benches) for table_of in (machines_table, speeds_table, starts_table)),
        f"## {EPOCHS} epochs, projected from what was measured",
        "Columns of rates are **examples**, not prices: cost = hours x rate.",
        hours_table(benches, RATES),
        "## Other devices: estimated, not measured (batch 16)",
        f"{formula()} {reached(benches)} Minutes are those of 400 epochs' training steps alone.",
        estimates_table(benches),
        "## Memory by batch: estimated, not measured",
        "GiB = (weights, gradients, sums + batch x what the forward pass keeps) to the same with "
        "twice what it keeps, at 256x256. Largest batch: a power of two, by the second, in 90% "
        "of the memory.",
        memory_table(),
        fits_table(),
        "What each further image of a batch took on measured devices:",
        growth_table(benches),
        "## Which device for what",
        advice(benches),
    ]
    return "\n\n".join(parts) + "\n"


# %%
with tempfile.TemporaryDirectory() as tmp:
    page = speed_page(tmp)
assert "Nothing was measured" in page and estimates_table({}) in page
