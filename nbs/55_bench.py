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
import re
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor, nn

import mshnet
from mshnet.analyse import evaluate_split
from mshnet.augment import sample_params
from mshnet.core import FIRST_DEFAULTS, Config, UserError, shown
from mshnet.data import Split
from mshnet.detection import Detection, normalise
from mshnet.device import Device, check_batch, device_for, hold_memory, open_device
from mshnet.files import make_folder, write_json
from mshnet.model import MSHNet
from mshnet.places import run_folder
from mshnet.run import Folder, State, environment
from mshnet.session import duration, working
from mshnet.show import Picture, even_steps, save_picture
from mshnet.task import Origin, predictions, score_split, trained_model
from mshnet.train import Job, beginning, judge_split, train_epoch


# %% [markdown]
# "Five times faster" means little until three things are known: faster than what, with the same result or not, and on a machine under which load? This notebook follows four rules.
#
# - **Side by side.** The opponent is a plain PyTorch script in the manner of most published ones. Both run in one process, in turns, so a machine that slows down slows both.
# - **Equal first.** Before any ratio, both train the same steps and score the same images, and we compare their losses and counts. If they differ there is no ratio.
# - **Against the device.** A ratio to a slow script flatters. We measure the best that the device can do in the same run, and compare each time with that.
# - **All of it.** A step is measured with its data, a scoring with its metrics, and the start with its imports, because a person waits for all of it.
#
# ## What to measure
#
# Most inputs of a bench are settings like any other (data, sizes, device, precision). A few options belong to the bench alone. `rate` is the cost of an hour of this device, in any currency. The library has no prices, because they depend on the place, the contract and the day.

# %%
#| export
@dataclass(frozen=True)
class Options:
    "The options of a bench, beside the settings of a run."

    baseline: str = ""  # file of the plain script to compare with; empty: no comparison
    repeats: int = 5  # turns of each measurement; the median counts
    batch_sizes: str = ""  # of training, such as "4,16"; empty: batch_size and four times that
    images: int = 32  # of each turn
    rate: float = 0.0  # cost of an hour of this device; 0: no cost is printed
    largest_batch: bool = False  # find the largest batch that fits, and nothing else

    def __post_init__(self) -> None:
        for name in ("repeats", "images"):
            if (value := getattr(self, name)) < 1:
                raise UserError(f"{name}={value}: write a whole number of at least 1")
        if not 0 <= self.rate < math.inf:
            raise UserError(f"rate={self.rate}: write the cost of an hour, such as 1.2")
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
for wrong in ({"batch_sizes": "4;16"}, {"repeats": 0}, {"rate": -1.0}):
    with expect_fail(UserError, contains="write"):
        Options(**wrong)


# %% [markdown]
# ## The clock
#
# An accelerator queues its operations and works through them later. A clock that is read after the last call measures how fast we can queue. So we synchronize before both readings.

# %%
#| export
def _synchronize(device: Device) -> None:
    "Wait until the device has finished its work."
    if device.kind == "cuda":
        torch.cuda.synchronize(device.name)
    else:
        device.read(device.transfer(torch.zeros(())))


def seconds(work: Callable[[], Any], device: Device) -> float:
    "The time that some work takes, until its last operation is done."
    _synchronize(device)
    start = time.perf_counter()
    work()
    _synchronize(device)
    return time.perf_counter() - start


# %% [markdown]
# The speed of a machine drifts: clocks fall as it warms up, other programs come and go. To measure one way first and the other afterwards would give all of that to one of them. So they take turns, each goes first every other time, and the median counts. The first turn of each is not counted, because it reads files and wakes threads.
#
# Two switches belong to the process, and we set them in every turn. Our runs tune the allocator of a CPU; the plain script gets the default allocator. On an NVIDIA GPU torch rounds the inputs of float32 convolutions to ten bits (TF32) by default, and so it does for the plain script.

# %%
#| export
@contextlib.contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    "Allow or forbid TF32 in convolutions for a while."
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


def take_turns(
    ways: dict[str, Callable[[int], Any]],  # by name; called with the number of the turn
    repeats: int,
    device: Device,
) -> dict[str, list[float]]:  # seconds of each way, turn by turn
    "Measure several ways in turns, after one turn of each that is not counted."
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(repeats + 1):
        for name in list(ways)[:: 1 if turn % 2 else -1]:
            plain = name == "plain"
            hold_memory(device.kind == "cpu" and not plain)
            with _tf32(plain or torch.backends.cudnn.allow_tf32):
                times[name].append(seconds(partial(ways[name], turn), device))
    return {name: found[1:] for name, found in times.items()}


# %%
cpu, order = open_device("cpu", "fp32"), []
times = take_turns({"a": lambda t: order.append("a"), "b": lambda t: order.append("b")}, 2, cpu)
test_eq("".join(order), "ba" + "ab" + "ba")
test_eq([len(t) for t in times.values()], [2, 2])
assert seconds(lambda: time.sleep(0.01), cpu) >= 0.01


# %% [markdown]
# ## What the device can do
#
# Every computation needs arithmetic, and data to do it on. A device has a best rate for each, and the slower of the two decides. That is the **roofline** model. Plot the attainable speed against the operations per byte of a program: it climbs along a slope (waiting for memory) up to a flat roof (the arithmetic is busy).
#
# The convolutions are nearly all of the network's arithmetic. We count them on the "meta" device, where tensors have shapes but no values: an image of 256x256 costs 12 GFLOP. Training adds a gradient for the inputs and one for the weights of each convolution, each as expensive as the forward pass: 36. The least traffic follows from the same count, because each convolution must read its input and write its output once. A program that fuses everything else into the convolutions needs no more.

# %%
#| export
@functools.cache  # builds the network to count
def network_cost(
    size: int,  # side of the image
) -> tuple[float, float]:  # operations, and numbers read or written, of one forward pass
    "The cost of MSHNet's convolutions for one image."
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


# %%
operations, numbers = network_cost(256)
test_close(operations, 12.0e9, eps=0.1e9)
test_close(network_cost(128)[0] * 4, operations, eps=1e7)
print(f"{operations / 1e9:.1f} GFLOP, {2 * numbers / 1e6:.0f} MB in bfloat16, forward")

# %% [markdown]
# We measure both rates of the device, because data sheets flatter. The roof is a large matrix product, the operation that every chip is built for. The slope is a copy, of which each byte is read once and written once. Both take the best of several tries, because a limit is what *can* be reached. XLA never makes a copy that nobody reads, so there the roof alone is the limit.

# %%
#| export
SIDES = {"cpu": 2048, "mps": 4096, "cuda": 8192, "xla": 8192}  # of the matrices
MEGABYTES = {"cpu": 256, "mps": 512, "cuda": 1024}  # of the copied block


@dataclass(frozen=True)
class Limits:
    "The measured limits of a device."

    precision: str  # of the run: bf16, fp16 or fp32
    matrix: float  # operations per second in that precision
    float32: float  # and in float32
    copy: float | None  # bytes per second, read and written; None: not measured

    def seconds(
        self,
        size: int,  # side of the image
        passes: int,  # 1 for scoring, 3 for training
    ) -> float:
        "The least time for an image, by the slower of arithmetic and memory."
        operations, numbers = network_cost(size)
        width = 4 if self.precision == "fp32" else 2
        moving = numbers * width / self.copy if self.copy else 0.0
        return passes * max(operations / self.matrix, moving)


def _shortest(work: Callable[[], Any], device: Device) -> float:  # seconds
    "The shortest of ten times, or of those that fit into a second, at least two."
    times: list[float] = []
    while len(times) < 2 or (len(times) < 10 and sum(times) < 1):
        times.append(seconds(work, device))
    return min(times)


def _matrix_rate(device: Device, dtype: torch.dtype, side: int) -> float:
    "Operations per second of large matrix products."
    left, right = (device.transfer(torch.randn(side, side) / side**0.5).to(dtype) for _ in range(2))

    def products() -> None:
        result = left
        for _ in range(4):
            result = result @ right
        device.read(result[:1, :1])

    return 4 * 2 * side**3 / _shortest(products, device)


def measure_limits(device: Device) -> Limits:
    "Measure matrix products in the run's precision and in float32, and a copy."
    side, block = SIDES[device.kind], MEGABYTES.get(device.kind)
    full = _matrix_rate(device, torch.float32, side)
    fast = full if device.dtype == torch.float32 else _matrix_rate(device, device.dtype, side)
    copied = None
    if block:
        source = device.transfer(torch.zeros(block * 2**18))
        target = torch.empty_like(source)
        copied = 2 * source.nbytes / _shortest(lambda: target.copy_(source), device)
    return Limits(device.precision, fast, full, copied)


# %%
limits = measure_limits(cpu)
for name, each in (
    ("this CPU", limits),
    ("1.2 TFLOP/s, 35 GB/s", Limits("bf16", 1.2e12, 0.3e12, 35e9)),
    ("700 TFLOP/s, 4 TB/s", Limits("bf16", 700e12, 175e12, 4e12)),
):
    print(f"{name}: a training image takes {each.seconds(256, 3) * 1e3:.3f} ms or more")

# %% [markdown]
# ## The plain script
#
# The plain script is not a part of this library. It is one file, [results/baseline/plain.py](../results/baseline/plain.py), and it imports nothing of ours: it has its own network, data, loss and scores, in their most direct form. It opens images one by one with Pillow in the main process. Its model is float32 in PyTorch's default memory layout. Its loss is a loop over the images of a batch, and is read in every step. It scores one image at a time, and finds the objects anew at each of eleven thresholds.

# %%
#| export
YARDSTICK = "results/baseline/plain.py"  # in a checkout of the repository


def load_yardstick(
    file: str = YARDSTICK,  # searched for here, then in the checkout that holds this library
) -> SimpleNamespace:  # MSHNet, make_optimizer, train, score and the other functions of the script
    "Load the plain script; UserError if it is not found."
    places = [Path(file).expanduser(), Path(str(mshnet.__file__)).resolve().parents[1] / file]
    path = next((place for place in places if place.is_file()), None)
    remedy = f"write --baseline PATH with a copy of {YARDSTICK} from the repository"
    if path is None:
        raise UserError(f"baseline={shown(file)}: there is no such file; {remedy}")
    found = SimpleNamespace(**runpy.run_path(str(path)))
    for name in ("MSHNet", "make_optimizer", "load", "load_batch", "train", "score", "Scores"):
        if not hasattr(found, name):
            raise UserError(f"baseline={shown(file)}: it has no {name}; {remedy}")
    return found


# %%
try:
    plain = load_yardstick()
except UserError as error:  # such as in Colab, where the library alone is installed
    plain = None
    print(error)
with expect_fail(UserError, contains="write --baseline PATH"):
    load_yardstick("nowhere.py")


# %% [markdown]
# A turn is a part of an epoch after the warm-up: as many batches as hold `images` images. A task that trains some batches of an epoch overrides one method. A `Bench` holds what all measurements share.

# %%
#| export
class _FewSteps(Detection):
    "MSHNet's task, with some batches of each epoch only."

    def __init__(self, config: Config, kept: slice) -> None:
        super().__init__(config)
        self.kept = kept

    def plan(self, data: Split, epoch: int | None) -> list[list[int]]:
        "Some batches of an epoch; all batches of a scoring."
        whole = super().plan(data, epoch)
        return whole if epoch is None else whole[self.kept]


@dataclass(frozen=True)
class Bench:
    "What all measurements share."

    config: Config
    options: Options
    parts: dict[str, Split]
    device: Device
    folder: Path  # for the plain script's files
    plain: SimpleNamespace | None = None  # from load_yardstick; None: no comparison

    def sizes(self) -> list[int]:
        "The requested batch sizes, or the default ones that the images suffice for."
        asked, count = self.options.sizes(self.config), len(self.parts["train"])
        return asked if self.options.batch_sizes else [size for size in asked if size <= count]

    def task(self, batch: int) -> _FewSteps:
        "The training of one turn at a batch size."
        config = self.config.model_copy(update={"batch_size": batch})
        steps = min(max(1, self.options.images // batch), len(self.parts["train"]) // batch)
        return _FewSteps(config, slice(0, steps))

    def epoch(self, turn: int = 0) -> int:
        "The epoch of a turn; every turn trains all heads."
        return self.config.warm_epoch + 1 + turn

    def scored(self) -> Split:
        "Test images to score, evenly spread over the list, where neighbours tend to be alike."
        split = self.parts["test"]
        return split.part("scored", even_steps(len(split), self.options.images))


# %% [markdown]
# Both ways get the same input. The plain script reads files, as such scripts do, so we write the pixels in memory as PNG files. This works for every data set, and for none. The script also gets our augmentation: the crop, the mirror, the blur.

# %%
#| export
def samples(
    bench: Bench,
    split: Split,
    rows: Sequence[int],
    epoch: int | None = None,  # of training; None: for scoring
) -> list[list[Any]]:  # of each image: its file, its mask's file, its augmentation
    "The input of the plain script; missing files are written."
    found = []
    for i in rows:
        image, mask = (bench.folder / f"{split.name}_{i}{end}.png" for end in ("", "_mask"))
        if not mask.exists():
            pixels, truth = split.pairs[i]
            Image.fromarray(pixels).save(image)
            Image.fromarray(truth * np.uint8(255)).save(mask)
        drawn = None if epoch is None else list(sample_params(bench.config, epoch, i)[:5])
        found.append([str(image), str(mask), drawn])
    return found


def plain_network(bench: Bench, model: nn.Module) -> nn.Module:
    "The plain script's network on the device, with a model's weights."
    assert bench.plain is not None
    network: nn.Module = bench.plain.MSHNet()
    network.load_state_dict(model.state_dict())
    return network.to(bench.device.name)


# %% [markdown]
# With the same augmentation both ways have the same pixels, to the last bit, and with the same weights the same loss:

# %%
small = {"scenes": 8, "base_size": 32, "crop_size": 32, "device": "cpu", "batch_size": 2}
config = Config(preset="paper", precision="auto", **small)
task, place = Detection(config), tempfile.TemporaryDirectory()
options = Options(repeats=1, batch_sizes="2,4", images=4)
bed = Bench(config, options, task.splits(), cpu, Path(place.name), plain)
test_eq([len(bed.task(size).plan(bed.parts["train"], 9)) for size in (2, 4, 8)], [2, 1, 1])
test_eq((bed.sizes(), replace(bed, options=Options()).sizes()), ([2, 4], [2, 8]))
test_eq((bed.epoch(3), len(bed.scored())), (9, 2))
batch = task.batch(bed.parts["train"], [5, 2, 6], 9)
files = samples(bed, bed.parts["train"], [5, 2, 6], 9)
if plain:
    image, mask = plain.load_batch(files, 32, "cpu")
    assert torch.equal(normalise(batch.image), image) and torch.equal(batch.mask.float(), mask)
    model = task.model().train()
    other = plain_network(bed, model).train()
    test_close(task.loss(model, batch, "full"), plain.mshnet_loss(*other(image), mask), eps=1e-5)


# %% [markdown]
# ## Noise
#
# A trained network predicts a few objects in an image. An untrained one may predict thousands, and each of them must be found, measured and compared. Scoring that is quick at the end of a training can take ten times as long at its beginning. So we measure it with both.
#
# Fresh weights make no such noise, because their prediction is nearly flat. We change three things. One batch sets batch norm. The last convolution becomes a high-pass filter, which responds to every grain of an image. Its bias is set to predict one pixel in seven. As in the first epochs, when Adagrad takes its largest steps, the logits run into the thousands, and every threshold of the plain script meets the noise.

# %%
#| export
def noisy_model(
    task: Detection,
    split: Split,
) -> nn.Module:  # on the CPU
    "An untrained model that predicts thousands of components in an image of 256x256."
    model = task.model()
    images = normalise(task.batch(split, list(range(min(len(split), 4))), None).image)
    final: Any = model.final
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = 1.0
    with torch.no_grad():
        final.weight.zero_()
        final.bias.zero_()
        final.weight[0, 0] = -1.0
        final.weight[0, 0, 1, 1] = 8.0
        model.train()(images)
        logits = model.eval()(images)[1]
        scale = 1000 / float(logits.std())
        final.weight *= scale
        final.bias -= scale * float(np.quantile(logits.numpy(), 0.85))
    return model


# %%
wide = replace(bed, config=config.model_copy(update={"base_size": 128, "crop_size": 128}))
task = Detection(wide.config)
noisy = noisy_model(task, wide.parts["test"])
counted = evaluate_split(task, noisy, wide.parts["test"], cpu, "full", Origin("bench")).images
assert all(row["false_pixels"] > 500 for row in counted)
counted

# %% [markdown]
# ## Equal first
#
# A faster way to a different result is not faster. Before we time anything, both ways train the same few steps in float32, with the same seed and the same augmentation, and score the same images with the same weights.
#
# **Losses.** Two programs that add the same float32 numbers in a different order differ in the seventh digit. The first losses must agree to $10^{-6}$, relative. The later ones cannot. Adagrad's first step moves each weight by the whole learning rate in the direction of its gradient, however small that is. If rounding decides the sign of a gradient near 0, the weight goes one way or the other. (Even the plain script alone, run in two memory layouts, differs by some percent after four steps.)
#
# So we make two comparisons. In a separate run the later losses must agree to a tenth. And before each step the plain script gets a copy of *our* weights, from which every single loss must agree to $10^{-4}$. (Often they agree to $10^{-7}$, but a prediction that sharpens under Adagrad's large steps makes the loss more sensitive to rounding.) A step of ours is an epoch of one batch, so we compare what `mshnet train` runs.

# %%
#| export
STEPS = 3  # compared
# Allowed relative differences: first loss; later ones from the same weights; in a separate run
SAME, CLOSE, LATER = 1e-6, 1e-4, 0.1


def _compare_losses(
    bench: Bench,  # in float32
) -> list[dict[str, float]]:  # per step: ours, plain from the same weights, plain in a separate run
    "Train a few steps both ways."
    assert bench.plain is not None
    config, device, train = bench.config, bench.device, bench.parts["train"]
    task, epoch, steps = Detection(config), bench.epoch(), []
    model = device.to_device(task.model())
    state = State(model, task.optimizer(model))
    networks = {way: plain_network(bench, task.model()) for way in ("same weights", "own run")}
    optimizers = {way: bench.plain.make_optimizer(each) for way, each in networks.items()}
    for i, rows in enumerate(task.plan(train, epoch)[:STEPS]):
        files = samples(bench, train, rows, epoch)
        networks["same weights"].load_state_dict(state.model.state_dict())
        job = Job(_FewSteps(config, slice(i, i + 1)), {"train": train}, device)
        ours, _ = train_epoch(job, state, epoch)
        step = {"ours": ours}
        for way, network in networks.items():
            how = (config.crop_size, device.name)
            step[way] = bench.plain.train(network, optimizers[way], [files], *how)[0]
        steps.append(step)
    return steps


# %% [markdown]
# **Scores.** Counts are whole numbers and must be equal, image by image. But a pixel whose logit is 0 to the seventh digit may be predicted by one program and not by the other, and both are right. So we compare the two halves of scoring separately: the logits to float32 tolerance, and the counts exactly, on the same logits, by the rule of the published scripts.

# %%
#| export
COUNTS = ("inter", "pred", "mask", "targets", "matched", "false_pixels")


def _compare_scores(
    bench: Bench,  # in float32
    split: Split,
    model: nn.Module,  # on the CPU
    phase: str,
) -> dict[str, Any]:  # the difference of the logits, the counts of both ways, our score lines
    "Score a split both ways."
    assert bench.plain is not None
    task = Detection(bench.config.model_copy(update={"rule": "reference"}))
    device, size, plain = bench.device, bench.config.base_size, bench.plain.Scores()
    theirs = plain_network(bench, model).eval()
    mine = device.to_device(copy.deepcopy(model))
    closely = evaluate_split(task, mine, split, device, phase, Origin("bench"))
    quickly = score_split(task, mine, split, device, phase)
    batches = predictions(task, mine, split, device, phase)
    logits = torch.cat([logits[batch.real, 0] for logits, batch in batches])
    apart = 0.0
    for sample, ours in zip(samples(bench, split, range(len(split))), logits, strict=True):
        image, mask = bench.plain.load(sample, size)
        with torch.no_grad():
            other = theirs(image[None].to(device.name), deep=phase == "full")[1][0, 0].cpu()
        apart = max(apart, float((ours - other).abs().max() / other.abs().max().clamp(min=1)))
        plain.add(ours, mask[0].numpy() > 0)
    return {
        "logits apart": apart,
        "ours": [[row[name] for name in COUNTS] for row in closely.images],
        "plain": plain.images,
        "lines": [str(closely.scores), str(quickly)],
    }


def compare(
    bench: Bench,
    models: dict[str, tuple[nn.Module, str]],
) -> dict[str, Any]:  # losses by step, scores by the name of the weights
    "Train and score both ways in float32."
    config = bench.config.model_copy(update={"precision": "fp32"})
    some = bench.scored()
    few = some.part("few", range(min(len(some), 4)))
    with _tf32(False):
        exact = replace(bench, config=config, device=open_device(config.device, "fp32"))
        losses = _compare_losses(exact)
        scores = {name: _compare_scores(exact, few, *model) for name, model in models.items()}
    return {"losses": losses, "scores": scores}


# %% [markdown]
# A difference is reported in one line, and so is equality:

# %%
#| export
def difference(
    equality: dict[str, Any],  # losses by step, scores by the name of the weights
) -> str:  # empty: equal
    "The first difference that rounding does not explain."
    for i, step in enumerate(equality["losses"]):
        for way in ("same weights", "own run"):
            allowed = SAME if i == 0 else CLOSE if way == "same weights" else LATER
            apart = abs(step["ours"] - step[way]) / max(abs(step[way]), 1e-12)
            if not apart <= allowed:  # also NaN
                return (
                    f"loss of step {i}, {way}: {step['ours']:.8g} and {step[way]:.8g} "
                    f"are {apart:.1e} apart, allowed is {allowed:.0e}"
                )
    for scores in equality["scores"].values():
        if not scores["logits apart"] <= 1e-4:
            return f"logits are {scores['logits apart']:.1e} apart, allowed is 1e-04"
        for i, (ours, plain) in enumerate(zip(scores["ours"], scores["plain"], strict=True)):
            if ours != plain:
                return f"image {i}: {', '.join(COUNTS)} are {ours} and {plain}"
        if scores["lines"][0] != scores["lines"][1]:
            return f"score lines differ: {' and '.join(scores['lines'])}"
    return ""


def _equality_text(equality: dict[str, Any]) -> str:
    "The comparison in one line."
    steps, scores = equality["losses"], equality["scores"].values()
    same, own = (
        max(abs(step["ours"] - step[way]) / abs(step[way]) for step in steps)
        for way in ("same weights", "own run")
    )
    images = sum(len(each["ours"]) for each in scores)
    logits = max((each["logits apart"] for each in scores), default=0.0)
    return (
        f"losses of {len(steps)} float32 steps {same:.0e} apart from the same weights ({own:.0e} "
        f"in runs of their own, as rounding grows under Adagrad); counts of {images} scored "
        f"images equal, logits {logits:.0e} apart"
    )


# %%
if plain:
    equality = compare(bed, {"noisy": (noisy_model(Detection(config), bed.parts["test"]), "full")})
    test_eq(difference(equality), "")
    losses, counts = equality["losses"], equality["scores"]["noisy"]
    for wrong in (
        {"losses": [losses[0] | {"own run": losses[0]["ours"] * 1.00001}]},
        {"losses": [losses[0] | {"ours": math.nan}]},
        {"scores": {"noisy": counts | {"plain": [[0] * 6] * 2}}},
        {"scores": {"noisy": counts | {"logits apart": 0.1}}},
    ):
        print(difference(equality | wrong))
        assert difference(equality | wrong)
    print(_equality_text(equality))


# %% [markdown]
# ## Speed
#
# A row of the result holds the raw seconds of every turn, and values computed from them. *Roofline* is the least time that the device's limits allow, as a fraction of the measured time. At 100% a program has nothing left to gain.

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
# **Training** is measured with all parts of a step: reading, augmenting, copying, forward, loss, backward, update. **Data alone** goes from the files (plain) or the pixels in memory (ours) to normalised values on the device. Compared with training, it shows whether the device waits for the data.

# %%
#| export
def _training_rows(bench: Bench, batch: int, limits: Limits) -> list[dict[str, Any]]:
    "Seconds of whole training steps, and of their data alone."
    task, train, device, plain = bench.task(batch), bench.parts["train"], bench.device, bench.plain
    size, repeats = task.config.crop_size, bench.options.repeats
    epochs = [bench.epoch(turn) for turn in range(repeats + 1)]
    plans = [task.plan(train, epoch) for epoch in epochs]
    model = device.to_device(task.model())
    state = State(model, task.optimizer(model))

    def read(turn: int) -> None:
        for part in task.batches(device, train, plans[turn], epochs[turn]):
            normalise(part.image)

    job = Job(task, {"train": train}, device)
    steps: dict[str, Callable[[int], Any]] = {
        "ours": lambda turn: train_epoch(job, state, epochs[turn])
    }
    data: dict[str, Callable[[int], Any]] = {"ours": read}
    if plain:
        files = [
            [samples(bench, train, rows, epoch) for rows in plan]
            for plan, epoch in zip(plans, epochs, strict=True)
        ]
        network, where = plain_network(bench, task.model()), (size, device.name)
        optimizer = plain.make_optimizer(network)
        steps["plain"] = lambda turn: plain.train(network, optimizer, files[turn], *where)
        data["plain"] = lambda turn: [plain.load_batch(each, *where) for each in files[turn]]
    images, least = task.kept.stop * batch, limits.seconds(size, 3)
    row = make_row(f"train, batch {batch}", images, take_turns(steps, repeats, device), least)
    alone = make_row(f"data alone, batch {batch}", images, take_turns(data, repeats, device))
    share = alone["seconds_per_image"]["ours"] / row["seconds_per_image"]["ours"]
    own = {"kind": "data", "batch": batch, "part_of_step": share}
    return [row | {"kind": "train", "batch": batch}, alone | own]


# %% [markdown]
# **Scoring** is the forward pass and all metrics, with the batch size and the matching rule of the settings. There are two rows for two kinds of scoring. An epoch needs the scores only; `mshnet test` and the end of a run also count the curves, at more thresholds than the plain script. The plain script has one way, and both rows are compared with it.

# %%
#| export
def _scoring_rows(
    bench: Bench,
    name: str,  # of the weights: "trained" or "noisy"
    model: nn.Module,  # on the CPU
    phase: str,
    limits: Limits,
) -> list[dict[str, Any]]:
    "Seconds of scoring, without and with the curves."
    task, split, device = Detection(bench.config), bench.scored(), bench.device
    mine, size = device.to_device(copy.deepcopy(model)), bench.config.base_size
    ways: dict[str, Callable[[int], Any]] = {
        "scores": lambda turn: score_split(task, mine, split, device, phase),
        "curves": lambda turn: evaluate_split(task, mine, split, device, phase, Origin("bench")),
    }
    if plain := bench.plain:
        network, files = plain_network(bench, model), samples(bench, split, range(len(split)))
        how = (size, device.name, phase == "full")
        ways["plain"] = lambda turn: plain.score(network, files, *how)
    times = take_turns(ways, bench.options.repeats, device)
    theirs = {"plain": times["plain"]} if "plain" in times else {}
    least, rows = limits.seconds(size, 1), []
    for way, text in (("scores", "score"), ("curves", "score with curves")):
        each = {"ours": times[way], **theirs}
        row = make_row(f"{text}, {name} weights", len(split), each, least)
        rows.append(row | {"kind": way, "weights": name, "batch": bench.config.batch_size})
    return rows


# %% [markdown]
# ## Start and memory
#
# Two things can be measured only once per process: the time of a start, imports included, and the peak of memory. Each measurement gets a fresh process, which trains a few steps and prints its result as the last line. The plain script is such a program itself.
#
# There is one trap. `ru_maxrss`, the usual measure of peak memory, survives `exec` on Linux: a small program that a large one starts reports the memory of the large one. `VmHWM` does not.

# %%
#| export
def _peak_memory(device: Device) -> int:  # bytes
    "The peak memory of this process, on the GPU or on the host."
    if device.kind == "cuda":
        return torch.cuda.max_memory_allocated(device.name)
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource  # not on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def start_run(
    request: dict[str, Any],  # config, and start: the time at which the process was started
) -> dict[str, Any]:  # seconds to the end of the first step; bytes: before it, and at the peak
    "Do what `mshnet train` does, up to its first step; then two steps with all heads."
    config = Config(**request["config"])
    device, first = device_for(config), _FewSteps(config, slice(0, 1))
    parts = first.splits()
    job = Job(first, parts, device, Folder(Path(config.output_dir)))
    state = beginning(job)
    before = _peak_memory(device)
    train_epoch(job, state, 0)
    _synchronize(device)
    taken = time.time() - request["start"]
    job.task = _FewSteps(config, slice(0, 2))
    train_epoch(job, state, config.warm_epoch + 1)
    return {"seconds": taken, "before": before, "peak": _peak_memory(device)}


OURS = "import json, sys, mshnet.bench as b; print(json.dumps(b.start_run(json.load(sys.stdin))))"


def ask_child(
    request: dict[str, Any],
    program: Sequence[str] = ("-c", OURS),  # for Python
) -> dict[str, Any]:  # its last line as JSON, or {"error": its last line}
    "Run a fresh process; the clock starts here."
    done = subprocess.run(
        [sys.executable, *program],
        input=json.dumps({**request, "start": time.time()}),
        capture_output=True,
        text=True,
    )
    lines = (done.stderr if done.returncode else done.stdout).strip().splitlines()
    if done.returncode:
        text = re.sub(r"^mshnet(\.\w+)+: ", "", lines[-1]) if lines else ""  # not its class
        text = re.sub(r" \(`mshnet bench[^)]*\)", "", text)  # which is this command
        return {"error": text or f"ended with status {done.returncode}"}
    found: dict[str, Any] = json.loads(lines[-1])
    return found


# %% [markdown]
# Each batch size gets one process of ours and one of the plain script. Out of memory is a result too, and the bench continues. On a TPU only one process can hold the chips, and there are no such rows.

# %%
#| export
def _start_row(bench: Bench, batch: int) -> dict[str, Any]:
    "Time to the first step and peak memory, each in a fresh process."
    with tempfile.TemporaryDirectory() as tmp:
        own = {"batch_size": batch, "output_dir": f"{tmp}/run", "weight_path": ""}
        row = {"batch": batch, "ours": ask_child({"config": bench.config.model_dump() | own})}
    if bench.plain:
        train, epoch = bench.parts["train"], bench.epoch()
        plan = bench.task(batch).plan(train, epoch)[:2]
        batches = [samples(bench, train, rows, epoch) for rows in plan]
        where = {"size": bench.config.crop_size, "device": bench.device.name}
        row["plain"] = ask_child({"batches": batches, **where}, [bench.plain.__file__])
    return row | {"memory": "GPU" if bench.device.kind == "cuda" else "host"}


# %%
with tempfile.TemporaryDirectory() as tmp:
    here = config.model_copy(update={"output_dir": f"{tmp}/run"})
    started = start_run({"config": here.model_dump(), "start": time.time()})
assert 0 < started["before"] <= started["peak"]
assert "error" in ask_child({"config": {"epochs": 0}})
started


# %% [markdown]
# ## The largest batch
#
# We try batches of doubled size, each in a fresh process, until one is out of memory. On a GPU that is an ordinary error. On a host the system kills the process, so there we stop as soon as the growth so far shows that the next size cannot fit.

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
            own = {"batch_size": batch, "output_dir": f"{tmp}/run", "weight_path": ""}
            with working(f"batch {batch}"):
                rows.append({"batch": batch} | ask_child({"config": config.model_dump() | own}))
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
    "The tried batch sizes, and the flag to write."
    lines = []
    for row in rows:
        found = row.get("error") or f"{row['peak'] / 2**20:.0f} MiB"
        lines.append(f"batch {row['batch']:5}: {found}")
    most = max(row["batch"] for row in rows if "error" not in row)
    rate = config.lr * (most / 4) ** 0.5
    return "\n".join(
        [*lines, f"write --batch-size {most}; with --lr-rule sqrt its learning rate is {rate:.3g}"]
    )


# %%
tried = largest_batch(config.model_copy(update={"batch_size": 4}))
assert tried[0]["peak"] > tried[0]["before"]
print(largest_text([*tried, {"batch": 999, "error": "out of memory"}], config))

# %% [markdown]
# ## Hours
#
# The time of an epoch is that of its training images plus that of its scored images. The paper trains 400 epochs. We call the result a projection, because it comes from a few steps, without the start and the checkpoints. The cost is the hours times the rate of an hour.

# %%
#| export
_EPOCHS = 400  # of the paper's recipe


def _project(
    bench: Bench,
    training: dict[str, Any],  # a row of training
    scoring: dict[str, Any],  # a row of scoring
) -> dict[str, Any]:
    "Time of an epoch and of 400, from measured rows."
    trained = len(bench.parts["train"]) // training["batch"] * training["batch"]
    scored = len(bench.parts[judge_split(bench.config)]) / bench.config.eval_every
    once = {
        way: trained * training["seconds_per_image"][way] + scored * each
        for way, each in scoring["seconds_per_image"].items()
    }
    return {
        "batch": training["batch"],
        "train_images": trained,
        "scored_images": scored,
        "scored_with": scoring["weights"],
        "epoch_seconds": once,
        "hours": {way: _EPOCHS * value / 3600 for way, value in once.items()},
    }


# %% [markdown]
# ## The table
#
# Table and picture are made from one dictionary, the content of `bench.json`. A table can therefore be printed again from the file, on a different machine, a year later.

# %%
#| export
def _cell(value: float | None, form: str, unit: str = "") -> str:
    "A number, or a dash."
    return "-" if value is None else f"{value:{form}}{unit}"


def _rows_text(rows: Sequence[dict[str, Any]]) -> list[str]:
    "Measured rows, one line each."
    plain = any("plain" in row["seconds_per_image"] for row in rows)
    head = f"{'':34}{'ms/image':>10}{'images/s':>10}{'roofline':>10}"
    lines = [head + (f"{'plain ms':>11}{'ratio':>9}" if plain else "")]
    for row in rows:
        each = row["seconds_per_image"]
        roof = row["roofline"] and 100 * row["roofline"]
        line = f"{row['what']:34}{1e3 * each['ours']:10.2f}{1 / each['ours']:10.1f}"
        line += f"{_cell(roof, '.1f', '%'):>10}"
        if plain:
            other = each.get("plain")
            line += f"{_cell(other and 1e3 * other, '.2f'):>11}"
            line += f"{_cell(row['ratio'], '.2f', 'x'):>9}"
        if "part_of_step" in row:
            line += f"  ({row['part_of_step']:.1%} of a training step)"
        lines.append(line)
    return lines


def _starts_text(starts: Sequence[dict[str, Any]]) -> list[str]:
    "Time to the first step and memory, one line each."
    lines = []
    for row in starts:
        words = []
        for way in ("ours", "plain"):
            found = row.get(way, {})
            if "error" in found:
                words.append(f"{way}: {found['error']}")
            elif found:
                before, peak = (found[name] / 2**20 for name in ("before", "peak"))
                text = f"first step after {found['seconds']:.1f} s, {peak:.0f} MiB"
                words.append(f"{way}: {text} (before it {before:.0f})")
        lines.append(f"start, batch {row['batch']} ({row['memory']} memory)  {'; '.join(words)}")
    return lines


def _projections_text(projections: Sequence[dict[str, Any]], rate: float) -> list[str]:
    "Projected times, one line each, with the cost where there is a rate."
    lines = []
    for row in projections:
        times = [
            f"{way} {duration(row['epoch_seconds'][way])} an epoch, "
            f"{duration(3600 * hours)} for {_EPOCHS}"
            for way, hours in row["hours"].items()
        ]
        counts = f"{row['train_images']} training, {row['scored_images']:g} scored images"
        lines.append(f"projected, batch {row['batch']} ({counts}): {'; '.join(times)}")
        if rate:
            lines.append(f"  cost at {rate:g} an hour: {row['hours']['ours'] * rate:.2f}")
    return lines


def table(
    content: dict[str, Any],  # of bench.json
) -> str:
    "A bench as text."
    lines = [f"device  {content['environment']['device']}", f"data    {content['data']}"]
    if problem := content["problem"]:
        return "\n".join([*lines, f"NOT EQUAL, so no time is taken and no ratio given: {problem}"])
    size, limits, options = content["config"]["crop_size"], content["limits"], content["options"]
    rate = f"{limits['matrix'] / 1e12:.3g} TFLOP/s in {limits['precision']}"
    slow = f"{limits['float32'] / 1e12:.3g} in float32"
    copied = _cell(limits["copy"] and limits["copy"] / 1e9, ".3g", " GB/s")
    if equality := content["equality"]:
        lines.append(f"equal   {_equality_text(equality)}")
    lines += [
        f"limits  matrix products {rate}, {slow}; copy {copied}",
        f"turns   median of {options['repeats']}, {size}x{size} pixels",
        "",
        *_rows_text(content["rows"]),
        "",
        *_starts_text(content["starts"]),
        *_projections_text(content["projections"], options.get("rate", 0)),
    ]
    return "\n".join(lines)


# %% [markdown]
# The picture shows images per second (on a logarithmic scale, because scoring and training are far apart), the limit of the device (the black mark), and the memory of each batch size. Nearly everybody can distinguish blue and orange, and the bars of the plain script are also hatched.

# %%
#| export
_LOOKS: dict[str, dict[str, Any]] = {
    "ours": {"color": "#0072B2"},
    "plain": {"color": "#E69F00", "hatch": "//", "edgecolor": "white"},
}


def draw_bench(
    content: dict[str, Any],  # of bench.json
    path: Path,
) -> Picture:
    "Draw a bench: speed on the left, memory on the right."
    rows, starts = content["rows"], content["starts"]
    figure = Figure(figsize=(11, 1.5 + 0.6 * len(rows)), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[3, 1])
    ways = rows[0]["images_per_second"]  # ours, and plain if there is a baseline
    for k, way in enumerate(ways):
        speeds = [row["images_per_second"][way] for row in rows]
        left.barh([i + 0.4 * k for i in range(len(rows))], speeds, 0.38, label=way, **_LOOKS[way])
        peaks = [row[way].get("peak", 0) / 2**20 for row in starts]
        bars = right.bar([i + 0.4 * k for i in range(len(starts))], peaks, 0.38, **_LOOKS[way])
        labels = [f"{peak:.0f}" if peak else "failed" for peak in peaks]
        right.bar_label(bars, labels, fontsize=9)
    for i, row in enumerate(rows):
        speed = row["images_per_second"]["ours"]
        text = f" {row['ratio']:.1f}x" if row["ratio"] else f" {speed:.3g}"
        left.text(speed, i, text, va="center", ha="left", fontsize=9)
        if row["roofline"]:
            limit = speed / row["roofline"]
            label = "" if i else "limit of the device"
            left.plot(limit, i, "k|", markersize=14, markeredgewidth=2, label=label)
    middle = 0.2 * (len(ways) - 1)
    left.set_yticks([i + middle for i in range(len(rows))], [row["what"] for row in rows])
    left.set(xscale="log", xlabel="images per second (logarithmic)")
    left.margins(x=0.15)
    left.invert_yaxis()
    left.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=3, fontsize=9)
    right.set_xticks([i + middle for i in range(len(starts))], [row["batch"] for row in starts])
    right.set(xlabel="batch size", ylabel="peak memory in MiB")
    right.margins(y=0.12)
    figure.suptitle(content["environment"]["device"], fontsize=10)
    return save_picture(figure, path)


# %% [markdown]
# ## The whole bench
#
# The file describes beside each number how it was measured:

# %%
#| export
PROTOCOL = {
    "turns": "ours and plain alternate in one process, each first every other time; one turn of "
    "each is not counted; medians",
    "train": "whole steps with all heads: reading, augmenting, copying, forward, loss, backward, "
    "update",
    "score": "forward pass and IoU, nIoU, F1, Pd, Fa; `with curves` adds precision and recall and "
    "Pd against Fa at two dozen thresholds",
    "plain": "results/baseline/plain.py: float32 (TF32 convolutions where torch's defaults allow "
    "them), contiguous layout, PNG files, loss and scores image by image",
    "noisy": "untrained weights made to predict thousands of components",
    "roofline": "least time by convolutions' arithmetic (12 GFLOP forward, 36 in training, for "
    "256x256) and by their inputs and outputs moved once, at the measured rates, as a part of the "
    "time taken",
    "start": "a fresh process each, measured once; memory is the GPU's allocated peak, or the "
    "process's resident peak on the host",
    "projected": "epochs times measured seconds, without start and checkpoints",
}

# %% [markdown]
# The bench measures the paper's recipe, which the plain script also follows. The request is checked before any time is spent:

# %%
#| export
_MEASURED = {k: v for k, v in FIRST_DEFAULTS.items() if k not in ("choose", "epochs")}


def make_bench(
    config: Config,
    options: Options,
    folder: Path,  # for the plain script's files
) -> Bench:
    "Read the data and open the device; UserError for a request that cannot be measured."
    if config.crop_size not in (config.base_size, Config(preset=config.preset).crop_size):
        text = f"crop_size is for --largest-batch; the bench crops to base_size={config.base_size}"
        warnings.warn(text, stacklevel=2)
    own = {"crop_size": config.base_size, "log_every": 1_000_000, "resume": ""}
    config = config.model_copy(update=_MEASURED | own)
    plain = load_yardstick(options.baseline) if options.baseline else None
    device = device_for(config)
    if plain and (device.kind == "xla" or device.ranks.count > 1):
        raise UserError(f"baseline: not on {device.name}, which a plain script cannot use")
    bench = Bench(config, options, Detection(config).splits(), device, folder, plain)
    count = len(bench.parts["train"])
    for size in bench.sizes():
        check_batch(device, size)
        if size > count:
            raise UserError(
                f"batch_sizes={size}: there are only {count} training images; "
                "write smaller ones, such as --batch-sizes 4"
            )
    return bench


# %%
with expect_fail(UserError, contains="there are only 8 training images"):
    make_bench(config, Options(batch_sizes="64"), Path(place.name))


# %% [markdown]
# The comparison comes first, before any clock. Then come the fresh processes, while this one is still small, and then all rows.

# %%
#| export
def _models(bench: Bench) -> dict[str, tuple[nn.Module, str]]:  # model on the CPU, and its phase
    "The models to score with, by the name of their weights: noise, and the user's if named."
    found: dict[str, tuple[nn.Module, str]] = {}
    if bench.config.weight_path:
        trained = trained_model(bench.config.weight_path)
        found["trained"] = trained.model, trained.phase
    found["noisy"] = noisy_model(Detection(bench.config), bench.parts["test"]), "full"
    return found


@contextlib.contextmanager
def _step(text: str) -> Iterator[None]:
    "Print a step before it begins, and while it runs how long it has taken."
    print(f"  {text}", file=sys.stderr)
    with working(text):
        yield


def _measure(bench: Bench, models: dict[str, tuple[nn.Module, str]]) -> dict[str, Any]:
    "Measure limits, rows, starts and projections; print each step before it begins."
    starts, rows = [], []
    for batch in bench.sizes() if bench.device.kind != "xla" else ():
        with _step(f"first step and memory, batch {batch}"):
            starts.append(_start_row(bench, batch))
    with _step("limits of the device"):
        limits = measure_limits(bench.device)
    for batch in bench.sizes():
        with _step(f"train and its data alone, batch {batch}"):
            rows += _training_rows(bench, batch, limits)
    for name, (model, phase) in models.items():
        with _step(f"score, {name} weights"):
            rows += _scoring_rows(bench, name, model, phase, limits)
    scored = next(row for row in rows if row["kind"] == "scores")
    return {
        "limits": asdict(limits),
        "rows": rows,
        "starts": starts,
        "projections": [_project(bench, r, scored) for r in rows if r["kind"] == "train"],
    }


# %% [markdown]
# `bench` does all of it and writes the result. The file holds the names of folders without their paths, and no name of a machine.

# %%
#| export
def _public(config: Config) -> dict[str, Any]:
    "The settings, with the names of folders and files instead of their paths."
    paths = ("dataset_dir", "weight_path", "output_dir")
    return config.model_dump() | {name: Path(getattr(config, name)).name for name in paths}


def bench(
    config: Config,
    options: Options,
) -> dict[str, Any]:  # the content of bench.json
    "Compare, measure, and write bench.json and bench.png into output_dir (runs/bench if empty)."
    own = Path(config.output_dir).expanduser()
    folder = own if config.output_dir else run_folder(config).parent / "bench"
    with tempfile.TemporaryDirectory() as tmp:
        bed = make_bench(config, options, Path(tmp))
        train, test = bed.parts["train"], bed.parts["test"]
        content: dict[str, Any] = {
            "format": 1,
            "data": f"{train.source}: {len(train)} train, {len(test)} test",
            "config": _public(bed.config),
            "options": asdict(options) | {"baseline": Path(options.baseline).name},
            "environment": environment(bed.device.why),
            "protocol": PROTOCOL,
        }
        models = _models(bed)
        with working("compare with the plain script"):
            equality = compare(bed, models) if bed.plain else None
        problem = difference(equality) if equality else ""
        content |= {"equality": equality, "problem": problem}
        if not problem:
            content |= _measure(bed, models)
    content = json.loads(json.dumps(content), parse_constant=lambda _: None)  # no NaN
    make_folder(folder)
    write_json(folder / "bench.json", content)
    if not problem:
        draw_bench(content, folder / "bench.png")
    return content


# %%
here = config.model_copy(update={"output_dir": f"{place.name}/bench"})
yardstick = YARDSTICK if plain else ""
content = bench(here, Options(baseline=yardstick, repeats=1, batch_sizes="2", images=2))
test_eq(json.loads((Path(here.output_dir) / "bench.json").read_text()), content)
print(table(content))
draw_bench(content, Path(here.output_dir) / "bench.png")

# %% [markdown]
# Read the *roofline* column first. At 40%, no optimisation can make that row more than two and a half times as fast on this device. Then read the share of a step that the data take: above a few percent the device waits for them. Then read the memory, which decides the batch size, and last the projection. The ratio shows the gain over the plain script; it does not show whether more is possible.
#
# On images of 32x32 none of these numbers means anything. On the command line: `mshnet bench --baseline --dataset-dir data/NUAA-SIRST --weight-path runs/NAME/best.pt`. [The guide](guides/speed.ipynb) shows all measurements so far.
