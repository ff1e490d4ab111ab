# %% [markdown]
# # Presets and settings of detection
#
# > The settings: data, training crop, network, loss, optimizer, and how a prediction is scored.
#
# After 60 epochs on the same images of NUAA-SIRST, one of three seeds of the paper's recipe marks nearly every pixel as a target (test IoU 0.001), and our preset `tpu` has 0.69 to 0.70 with all three. What decides this? The size of the training crops, the loss, the optimizer, and a dozen small numbers. All of them are settings. A *preset* changes a few of their defaults under one name.

# %%
#| hide
#| default_exp recipe
import matplotlib.pyplot as plt
import numpy as np

from mshnet.core import OptimizerFields, TrainingFields

# %%
#| export
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from mshnet.core import Fields, OrAuto, Settings, Share

# %% [markdown]
# ## The presets
#
# - `steady` has only default values. An image is first resized to the size at which it is scored, and then a crop is cut from it. At the original resolution, targets of IRSTD-1k (512x512) would be trained at twice the size at which they are scored (256x256). The network starts from a nearly empty prediction. Soft IoU and cross-entropy train all five outputs from the first step. The averaged weights of the last epoch are kept, so no epoch has to be selected. This recipe did not collapse in our runs; the [loss](01_loss.ipynb) and [detection](41_detection.ipynb) pages show why.
# - `paper` is the recipe of the paper (Liu et al., CVPR 2024, arXiv:2403.19366) and of its official code: Adagrad at a constant 0.05, six epochs that train only the full-size head by plain IoU, then the SLS loss on all five outputs, in float32. The last epoch is kept.
# - `quick` is a trial run on two CPU cores: the full-size network on small images for a few epochs. It is the default preset if there is no data set.
# - `a100` and `tpu` use four times the batch and twice the learning rate (the square root rule). The 16 images of a batch can be split across 1, 2, 4, 8 or 16 chips. The runs of `tpu` at the top of the page used `--crop native`, on a CPU.
#
# ### The learning rate
#
# The default is a *cosine*: after a short warm-up come the largest steps, then smaller and smaller ones, so that the weights settle. The paper keeps a learning rate of 0.05. But its Adagrad divides each step by the root of the sum of all squared gradients so far. The dashed line shows what is left of 0.05 if the gradients keep their size: at the end a hundredth, as with the cosine. The figure has 200 epochs of the 213 training images of NUAA-SIRST, which are 53 steps each in batches of 4:

# %%
steps = 200 * 53
step = np.arange(steps)
cosine = 0.01 + 0.99 * (1 + np.cos(np.pi * step / (steps - 1))) / 2  # falls to a hundredth
warm_up = np.minimum((step + 1) / 53, 1)  # grows in the first epoch
figure, axes = plt.subplots(figsize=(8, 3), layout="constrained")
axes.semilogy(step / 53, 0.001 * cosine * warm_up, label="steady: AdamW")
axes.semilogy(step / 53, 0.002 * cosine * warm_up, "-.", label="a100, tpu: AdamW, batches of 16")
axes.semilogy(step / 53, np.full(steps, 0.05), label="paper: Adagrad")
axes.semilogy(step / 53, 0.05 / np.sqrt(step + 1), "C2--", label="paper: what Adagrad leaves of it")
axes.set(xlabel="epoch", ylabel="learning rate", ylim=(5e-6, 3))
axes.legend(ncols=2, loc="upper center");

# %% [markdown]
# ## The machinery: settings in groups
#
# The [augmentation](22_augment.ipynb) page shows each kind of augmentation, the [loss](01_loss.ipynb) page the losses, the [metrics](02_metrics.ipynb) page the rule of the scores. Two settings need more than their description. With `head_bias=-4` the probabilities are near 2% at first, so no pixel is predicted (that takes 50%); with 0 they are near 50%. And `augment=paper` is the official augmentation only with `crop=resize`, as in the preset `paper`; with another `crop` it also scales the crops, as `flips` does.

# %%
#| export
Side = Annotated[int, Field(ge=32, le=4096, multiple_of=16)]  # of a square image, in pixels


class DataFields(Fields):
    "Recipe settings of the data."

    train_list: str = ""
    """file of training names in the data set, or a list that comes with mshnet
    (nuaa-sirst-trainval, nuaa-sirst-authors427-trainval, nuaa-sirst-authors320-trainval,
    nudt-sirst-trainval, irstd-1k-trainval); empty: detected automatically"""
    test_list: str = ""
    """file of test names in the data set, or a list that comes with mshnet, such as
    nuaa-sirst-test; empty: detected automatically"""
    scenes: Annotated[int, Field(ge=4, le=100_000)] = 240
    "synthetic training scenes, without a data set"
    base_size: Side | Literal["native"] = 256
    """side of the square, in pixels, to which images are resized for evaluation; native: their
    own size"""
    crop_size: Side = 128
    "side of the training crop, pixels"


class AugmentFields(Fields):
    "Recipe settings of the training crop."

    crop: Literal["scored", "native", "resize"] = "scored"
    """size of the image that a training crop is cut from, before augment scales it: as it is
    evaluated, by base_size (scored), its own size (native), or its long side 0.5 to 2 times
    base_size (resize)"""
    target_share: Share = 0.5
    """probability that a crop of an image with targets is placed so that it contains one; an
    occluder may then hide it"""
    clutter_share: Share = 0.25
    "probability that a large occluder, such as a bank of cloud or a wall, covers part of a crop"
    augment: Literal["flips", "paper", "robust", "turns"] = "turns"
    """turns: flips, rotations by 90 degrees, and blur; flips: the same, and crops (scored, native)
    are scaled 0.7 to 1.5 times; robust: the same, scaled 0.5 to 1.6 times, and contrast,
    brightness, noise and sensor faults, for images of other cameras; paper: flips left to right,
    and blur; with crop=resize as in the official code, else also scaled as by flips"""


class NetworkFields(Fields):
    "Recipe settings of the network, its outputs and their scores."

    network: str = "mshnet"
    "the detector's network, by its name in NETWORKS"
    warm_epoch: OrAuto = -1
    """last epoch that trains and evaluates only the full-size head; -1: all five outputs from the
    first step"""
    loss: Literal["soft_iou+bce", "soft_iou", "bce", "sls"] = "soft_iou+bce"
    """loss of each output: soft IoU, binary cross-entropy, their sum, or the scale and location
    sensitive loss of the paper"""
    head_bias: Annotated[float, Field(ge=-20, le=20)] = -4.0
    """added to the starting bias of the four heads; -4: probabilities near 2% at first, 0: near a
    half"""
    fusion_start: Literal["full_size", "random"] = "full_size"
    "how the fusing convolution starts: as a copy of the full-size head, or at random"
    join_rate: Annotated[float, Field(gt=0, le=1)] = 1.0
    "learning rate of the coarse heads and the fusing convolution, as a fraction of lr"
    mirrored: bool = False
    """evaluate the mean prediction of an image and of its three mirror images (four times the
    time)"""
    rule: Literal["exact", "reference"] = "exact"
    """how predicted objects are matched with targets: best pairing (exact), or as the official
    code does it, faults included (reference)"""


# %% [markdown]
# ### Presets and all settings together
#
# A preset is a table of differences. Runs of the first release do not record all settings; `FIRST_DEFAULTS` has the values that they used.

# %%
#| export
FIRST_DEFAULTS: dict[str, Any] = {
    "choose": "val",
    "crop_size": 256,
    "crop": "resize",
    "target_share": 0.0,
    "clutter_share": 0.0,
    "augment": "paper",
    "epochs": 400,
    "warm_epoch": 5,
    "loss": "sls",
    "head_bias": 0.0,
    "fusion_start": "random",
    "optimizer": "adagrad",
    "lr": 0.05,
    "schedule": "constant",
    "warmup_steps": 0,
    "weight_decay": 0.0,
    "clip_grad": 0.0,
    "ema": 0.0,
}
PRESETS: dict[str, dict[str, Any]] = {
    "steady": {},
    "paper": {**FIRST_DEFAULTS, "choose": "last", "precision": "fp32"},
    "quick": {"base_size": 128, "crop_size": 128, "epochs": 9},
    "a100": {"batch_size": 16, "lr": 0.002},
    "tpu": {"batch_size": 16, "lr": 0.002},
}


class Config(Settings, NetworkFields, AugmentFields, DataFields):
    """The settings of detection with MSHNet, checked; `mshnet train --help-all` explains each.

    A setting that is not passed comes from `preset`. Without a preset and without `dataset_dir`
    the preset is "quick", as on the command line; `preset="steady"` is the defaults. `configure`
    reads files and runs too. Raises UserError, one line for all wrong settings together.
    """

    presets: ClassVar[dict[str, dict[str, Any]]] = PRESETS
    first_look: ClassVar[str] = "quick"
    synthetic_name: ClassVar[str] = "scenes"
    name_defaults: ClassVar[dict[str, Any]] = FIRST_DEFAULTS  # runs keep their names of then
    flags: ClassVar[dict[str, list[str]]] = {
        "test": ["base_size", "mirrored", "rule", "scenes"],
        "data": ["base_size"],
    }
    smaller: ClassVar[str] = "--base-size and --crop-size"

    task: Literal["detect"] = "detect"
    "what is trained"

    @classmethod
    def unrecorded(cls, record: Mapping[str, Any]) -> dict[str, Any]:
        "Settings that runs of the first release, or from before `clutter_share`, did not record."
        return {"clutter_share": 0.0, **({} if "optimizer" in record else FIRST_DEFAULTS)}

    def unused(self, written: Mapping[str, Any]) -> list[str]:
        "Settings without effect."
        of_heads = ["head_bias", "fusion_start", "join_rate"]
        of_files = ["train_list", "test_list", "cache", "on_bad_image"]
        without = [
            ("a weight_path, which has its own values", of_heads[:2], self.weight_path),
            (f"network={self.network}, unless it is an MSHNet", of_heads, self.network != "mshnet"),
            ("a dataset_dir", ["scenes"], self.dataset_dir),
            ("synthetic scenes", of_files, not self.dataset_dir),
        ]
        set_here = {name for name, value in written.items() if value != ""}  # empty: the default
        pairs = [(why, name) for why, names, holds in without for name in names if holds]
        lines = [f"{name} is not used with {why}" for why, name in pairs if name in set_here]
        return super().unused(written) + lines


# %% [markdown]
# The names of the recipe's settings, by group:

# %%
for group in (TrainingFields, OptimizerFields, DataFields, AugmentFields, NetworkFields):
    print(f"{group.__name__:16}{', '.join(group.model_fields)}")

# %% [markdown]
# ## Questions
#
# 1. Why are targets trained at the size at which they are scored?
#    <details><summary>Answer</summary>A target of 6 pixels at the original resolution may have 2 after the resize. A network that was trained on the first has hardly seen the second.</details>
# 2. You train with `--preset tpu --batch-size 64`. Which learning rate does the run use, and which one does the square root rule suggest?
#    <details><summary>Answer</summary>It uses 0.002, because a setting that you pass changes no other one. The rule suggests twice the rate for four times the batch, so 0.004.</details>
