# %% [markdown]
# # Detection as a task
#
# > Why training collapses; and detection as a task of the engine: batches, network, loss, prediction and scores.
#
# A detector of small targets can fail in a special way: it predicts everything, or nothing. We look at that first, because the default recipe follows from it. The engine contains nothing about masks. So the rest of this page defines what the engine needs to train MSHNet: the data, the content of a batch, the network, its loss, its prediction, and how a prediction is counted.

# %%
#| hide
#| default_exp detection
import matplotlib.pyplot as plt

from mshnet.run import Folder

# %%
#| export
import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from mshnet.augment import Batch, scoring_batch, training_batch, unpadded
from mshnet.core import UserError, did_you_mean, resolve, shown
from mshnet.cpu import use_cpu_passes
from mshnet.data import Split, hash_of_all, image_digests, outside_of_data, report, splits
from mshnet.device import Device, make_optimizer
from mshnet.loss import mshnet_loss
from mshnet.metrics import Counted, Scores, Tally
from mshnet.model import Block, MSHNet, init_heads
from mshnet.recipe import Config
from mshnet.task import Evaluation, Origin, RowTally, Task


# %% [markdown]
# ## Why training collapses
#
# "Everything" and "nothing" are states that a detector hardly leaves. The [loss](01_loss.ipynb) page shows why: on a full prediction the SLS loss has next to no gradient, and on an empty one a gradient whose sign depends on where the target is. Below are the false alarms of runs on NUAA-SIRST, read from their [logs](../results/README.md): a million per million pixels is an image full of "target". The paper trains only the full-size head for six epochs (grey), by plain IoU, then all five outputs by the SLS loss. The blue band is where three seeds of the default recipe, `steady`, end after 200 epochs.

# %%
def false_alarms(run):
    "The scored epochs of a run and their false alarms."
    history = Folder(Path(f"../results/{run}")).history()
    scored = [(e["epoch"] + 1, e["scores"]["fa"]) for e in history if "scores" in e]
    return zip(*scored, strict=True)


figure = plt.figure(figsize=(10, 3.8), layout="constrained")
left, right = figure.subplots(1, 2, sharey=True)
steady = [list(false_alarms(f"nuaa-sirst-steady-scored/seed{seed}"))[1][-1] for seed in range(3)]
for axes, runs, last, title in (
    (left, "nuaa-sirst-paper-60", 61, "the paper's recipe"),
    (right, "nuaa-sirst-remedy-bias", 31, "the same loss and network, another start"),
):
    for seed, style in enumerate(("C1o-", "kD:", "C3s--")):
        axes.semilogy(*false_alarms(f"{runs}/seed{seed}"), style, ms=4, label=f"seed {seed}")
    axes.axhspan(min(steady), max(steady), color="C0", alpha=0.4, lw=0, label="steady, 200 epochs")
    axes.axvspan(0, 6, color="0.9", label="warm-up")
    axes.set(title=title, xlabel="epochs", xlim=(0, last), ylim=(3, 2e6))
left.set_ylabel("Fa, false pixels per million")
left.legend(loc="upper right", bbox_to_anchor=(1, 0.9));

# %% [markdown]
# The paper's recipe collapses in two steps:
#
# 1. *The warm-up.* Once the predicted area is large, plain IoU has almost no gradient, so the prediction can spread: here over 16% to 27% of the pixels.
# 2. *All heads join.* Three heads and the fusing convolution have never been trained, and Adagrad's first step moves each of their weights by the whole learning rate, however small the gradient. By then the background of the full-size head is far below zero, say at -11. If each of the nine fusing weights of this head moves by 0.05, the fused background moves by 5. After a few such steps its sign is random, and Adagrad's later steps are too small to change it.
#
# Seed 0 never recovers, seed 2 recovers after 15 to 20 epochs, and seed 1 does not collapse. Clipping gradients cannot help, because Adagrad's first step does not depend on their size. Two remedies help:
#
# - A loss that pulls on a full prediction and on an empty one, with all heads trained from the start (`--preset steady`, the default): none of our seeds has collapsed.
# - The paper's loss and network with a remedy for each step (right). `--head-bias -4` starts the heads far below zero, so that the warm-up need not spread. `--fusion-start full_size --join-rate 0.1` starts the fusion as a copy of the full-size head and gives the three new heads and the fusion smaller steps. All three seeds then find targets whenever they are scored, after 5 to 30 epochs. Seed 2 marks 5% of the pixels after 20 epochs, and recovers.
#
# ## The machinery: from bytes to the network's input
#
# Batches arrive as bytes. We subtract ImageNet's mean and divide by its standard deviation, because the published weights expect it.

# %%
#| export
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, RGB, 0..1


def normalise(image: Tensor) -> Tensor:  # [B,3,S,S] uint8 -> [B,3,S,S] float32
    "Subtract ImageNet's mean and divide by its standard deviation, in each channel."
    mean, deviation = (  # made on the device, to avoid a transfer in every step
        torch.stack([torch.full((1, 1), value, device=image.device) for value in values])
        for values in (MEAN, STD)
    )
    return (image.float() / 255 - mean) / deviation


# %% [markdown]
# ### The network
#
# To train, score, export and draw a network of yours, set `NETWORKS["mine"] = MyNetwork` and pass `network="mine"`. The engine calls it as `model(image, deep=True) -> (masks, logits)`: the logits are scored, and the masks, at strides 1, 2, 4, ..., are trained as additional outputs.

# %%
#| export
NETWORKS: dict[str, Callable[[], nn.Module]] = {"mshnet": MSHNet}


# %% [markdown]
# In evaluation, batch norm multiplies and adds constants, so it can be merged into the convolution before it. This changes the rounding, so we do it only where the device computes in 16 bits. float32 keeps the arithmetic of the paper's code; on a CPU it gained nothing from the merging ([measured](../experiments/speed.md)).

# %%
#| export
def fuse_bn(model: nn.Module) -> nn.Module:
    "A copy for evaluation, with batch norm merged into the convolutions of all MSHNet's blocks."
    model = copy.deepcopy(model).eval()
    blocks: list[Any] = [layer for layer in model.modules() if isinstance(layer, Block)]
    for block in filter(_has_its_norms, blocks):
        block.conv1 = fuse_conv_bn_eval(block.conv1, block.bn1)
        block.conv2 = fuse_conv_bn_eval(block.conv2, block.bn2)
        block.bn1, block.bn2 = nn.Identity(), nn.Identity()
        shortcut: Any = block.shortcut
        if isinstance(shortcut, nn.Sequential):
            conv, norm = shortcut.children()
            block.shortcut = fuse_conv_bn_eval(conv, norm)  # type: ignore[type-var, arg-type]
    return model


def _has_its_norms(block: Any) -> bool:
    "Whether a block is MSHNet's, with batch norm (of `Ranks`, too) behind each convolution."
    norms = [block.bn1, block.bn2, *list(block.shortcut.children())[1:]]
    own = type(block).forward is Block.forward
    return own and all(isinstance(norm, nn.modules.batchnorm._BatchNorm) for norm in norms)


def fused_for(device: Device, model: nn.Module) -> nn.Module:
    "The model for evaluation on a device: fused in 16 bits, unless the device compiles it."
    return model if device.precision == "fp32" or device.compiles else fuse_bn(model)


# %% [markdown]
# ### The task
#
# Training has two phases. Up to and including epoch `warm_epoch` the paper trains *and scores* the full-size head only, then all five outputs. So the losses of both phases cannot be compared. A checkpoint records its phase, because a fused head that was never trained predicts noise.

# %%
#| export
RESIZE = "both sides resized to base_size (image bilinear, mask nearest, Pillow)"
NATIVE = "none: padded at the right and below to multiples of 16 with its mirror image, cut back"
_MIRRORS = (), (3,), (2,), (2, 3)  # the axes that are reversed


def over_mirrors(predict: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    "The mean probability [B,1,H,W] over images [B,C,H,W] and their three mirror images."
    return torch.stack([predict(images.flip(a)).flip(a) for a in _MIRRORS]).mean(0)


class _DetectionTally(RowTally):
    "The counts of each image."

    def count(self, logits: Tensor, batch: Batch) -> list[Counted]:
        "The counts of each image of a batch, without its padded border."
        tally = Tally(self.task.config.rule)
        tally.add(unpadded(logits, batch.mask), batch.mask)
        return tally.images

    def scores(self) -> Scores:
        "IoU, nIoU, F1, Pd, Fa."
        return Tally(self.task.config.rule, self.values).scores()


def _state(scores: dict[str, Any]) -> str:
    "The state of a prediction: full (more than 2% of the pixels), empty (nothing) or fine."
    if scores["fa"] > 20_000:
        return "full"
    found = not scores["targets"] or scores["fa"] > 1000 or scores["pd"] or scores["iou"] > 0.001
    return "fine" if found else "empty"


class Detection(Task):
    "Infrared small target detection with MSHNet."

    better = ("iou", 1)

    def splits(self, names: Sequence[str] = ("train", "test")) -> dict[str, Split]:
        "The data: train, test, and val if the epoch is chosen on a held-out part."
        outside_of_data(self.config.output_dir)
        return splits(self.config, names)

    def batch(self, data: Split, rows: list[int], epoch: int | None) -> Batch:
        "The batch of these images, augmented for training or plain for evaluation."
        if epoch is None:
            return scoring_batch(data, rows, self.config)
        return training_batch(data, rows, epoch, self.config)

    def plan(self, data: Split, epoch: int | None) -> list[list[int]]:
        "The rows of each batch; at native size one image each, unless all have one size in memory."
        own_size, size = epoch is None and self.config.base_size == "native", self.config.batch_size
        if not own_size or (data.in_memory and len({mask.shape for _, mask in data.pairs}) == 1):
            return super().plan(data, epoch)
        return [[i if i % size == k else -1 for k in range(size)] for i in range(len(data))]

    def model(self) -> nn.Module:
        "The network, with weights drawn from the seed; UserError if it is not one of NETWORKS."
        if (name := self.config.network) not in NETWORKS:
            known = ", ".join(NETWORKS)
            what = f"network={shown(name)} is not known{did_you_mean(name, list(NETWORKS))}"
            todo = f"register your own: mshnet.detection.NETWORKS[{name!r}] = its class"
            raise UserError(f"{what} (there are {known}; {todo})")
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self.config.seed)
            model = use_cpu_passes(NETWORKS[name]())
            if not isinstance(model, MSHNet):
                return model
            return init_heads(model, self.config.head_bias, self.config.fusion_start)

    def phase(self, epoch: int) -> str:
        "warm-up (full-size head alone) or full (all outputs)."
        return "warm-up" if epoch <= self.config.warm_epoch else "full"

    def loss(self, model: Any, batch: Batch, phase: str) -> Tensor:
        "The batch's mean loss."
        masks, logits = model(normalise(batch.image), deep=phase == "full")
        heads = masks if phase == "warm-up" else masks or [logits]  # [] would mean the warm-up
        return mshnet_loss(heads, logits, batch.mask, self.config.loss).mean()

    def predict(self, model: Any, batch: Batch, phase: str) -> Tensor:  # [B,1,S,S] float32
        "The logits that are scored: of the image, or of the mean over it and its mirror images."
        if not self.config.mirrored:
            return self._logits(model, batch.image, phase)
        prob = over_mirrors(lambda image: self._logits(model, image, phase).sigmoid(), batch.image)
        return prob.logit(eps=1e-7)

    def _logits(self, model: Any, image: Tensor, phase: str) -> Tensor:  # [B,1,S,S] float32
        "The logits of images; those of MSHNet by one program for both phases."
        if self.config.network != "mshnet":
            return model(normalise(image), deep=phase == "full")[1].float()
        masks, fused = model(normalise(image))
        return torch.where(torch.tensor(phase == "full").to(fused.device), fused, masks[0]).float()

    def tally(self) -> _DetectionTally:
        return _DetectionTally(self)

    def for_scoring(self, model: nn.Module, device: Device) -> nn.Module:
        if self.config.base_size == "native":  # each padded size is a shape, and a program
            device.num_shapes = max(device.num_shapes, 100_000)  # more than any data set has
        return fused_for(device, model)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        "The optimizer; parts that join after a warm-up have a learning rate of their own."
        c, late = self.config, ("output_1", "output_2", "output_3", "final")
        if c.join_rate == 1 or not isinstance(model, MSHNet):
            return super().optimizer(model)
        named = [(name.startswith(late), weight) for name, weight in model.named_parameters()]
        groups = [
            {"params": [w for joins, w in named if joins == later], "lr": c.lr * share}
            for later, share in ((False, 1.0), (True, c.join_rate))
        ]
        return make_optimizer(c.optimizer, groups, c.weight_decay)

    def _reduction(self, parts: dict[str, Split]) -> float:
        "By how much the median training image is reduced; below 1 it is enlarged."
        pairs, side = parts["train"].pairs, self.config.base_size
        if side == "native" or self.config.crop == "native":  # images keep their size
            return 1.0
        areas = sorted(pairs[i][1].size for i in range(0, len(pairs), len(pairs) // 9 + 1))
        return float(areas[len(areas) // 2] ** 0.5 / side)

    def identity(self, parts: dict[str, Split]) -> dict[str, str]:
        "What a resumed run must share: the images and masks of each split, under their names."
        trained = [parts[name] for name in ("train", "val") if name in parts]
        same = {f"{name} data": split.hash for name, split in parts.items()}
        same["training list"] = hash_of_all(trained)  # the same with every seed
        if (reduction := round(self._reduction(parts))) > 1:
            same["reduction"] = str(reduction)
        return same | {"training images": " ".join(sorted(image_digests(trained)))}

    def protocol(self, data: Split, scores: Scores) -> dict[str, Any]:
        size = self.config.base_size
        own = {"images": scores.images, "targets": scores.targets, "size": size}
        own |= {"resize": NATIVE if size == "native" else RESIZE, "mirrored": self.config.mirrored}
        return own | {"threshold": 0.5, "rule": scores.rule}

    def evaluate(
        self, model: nn.Module, data: Split, device: Device, phase: str, origin: Origin
    ) -> Evaluation:
        "Scores, curves, and a record of each image and each target."
        how = self, model, data, device, phase, origin
        return resolve("mshnet.analyse:evaluate_split")(*how)  # type: ignore[no-any-return]

    def seen(self, data: Split, recorded: dict[str, str]) -> int | None:
        "How many images of a split are training images of the weights, by their pixels."
        known = set(recorded.get("training images", "").split())
        return len(image_digests([data]) & known) if known else None

    def report(self, folder: Path) -> None:
        "Curves and the gallery."
        resolve("mshnet.show:draw_run")(folder, self.config)

    def advice(self, history: list[dict[str, Any]]) -> str:
        "The remedy in the epoch in which a prediction became everything or nothing; else empty."
        scores = [entry["scores"] for entry in history if "scores" in entry]
        before, now = ["empty", "empty", *map(_state, scores)][-2:]
        if now in ("fine", before):
            return ""
        covered = scores[-1]["fa"] / 1e4
        what = "is empty" if now == "empty" else f"covers {covered:.0f}% of the image"
        remedy = ": try a smaller --lr, and look at the masks with `mshnet data`"
        if self.config.loss == "sls":
            remedy = ", which the SLS loss may not leave; begin a new run with --preset steady"
        return f"the prediction {what}{remedy}"

    def about(self, parts: dict[str, Split], device: Device) -> dict[str, str]:
        "Lines on the data (synthetic scenes, crops or sizes that are too large) and the warm-up."
        c, kind = self.config, "" if self.config.dataset_dir else "synthetic "
        black = c.crop == "scored" and c.base_size != "native" and c.crop_size > c.base_size
        more = f"; crops of {c.crop_size} pixels are black beyond {c.base_size}" if black else ""
        if self._reduction(parts) < 0.7:  # half the area
            more += f"; enlarged to {c.base_size}, as predict does not: use a smaller --base-size"
        why = "the run ends within the warm-up, so the fused head is never trained"
        warm = {"warning": why} if c.warm_epoch >= c.epochs - 1 else {}
        return {"data": kind + super().about(parts, device)["data"] + more} | warm

    def describe_data(self) -> tuple[str, bool]:
        "The data report."
        return report(self.config)


# %% [markdown]
# ### A run reports its collapse
#
# A run reports when its prediction grows beyond 2% of the pixels, or becomes empty. Most recipes start from an empty prediction, so an empty one is reported only if the scored epoch before was not empty.

# %%
found, empty, full = (
    {"scores": {"iou": iou, "pd": 0.0, "fa": fa, "targets": 1}}
    for iou, fa in ((0.3, 20), (0.0, 0), (0.0, 9e5))
)
print(Detection(Config(preset="paper")).advice([found, full]))
print(Detection(Config()).advice([found, empty]))

# %% [markdown]
# ## Questions
#
# 1. Why does the fused prediction of seed 0 cover the image, although its warm-up covered only a quarter?
#    <details><summary>Answer</summary>The fusing convolution is new when the heads join. A background logit far below zero, multiplied by nine weights whose sign is random, can become a large positive number in every pixel at once.</details>
# 2. Which of the six parts of a task change if each image has a class instead of a mask?
#    <details><summary>Answer</summary>The content of a batch (a class in place of a mask), the network's output, the loss, the prediction and the count (accuracy in place of IoU). The data still are images with a list; the loop, the device and the run folder stay as they are.</details>
