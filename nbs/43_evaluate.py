# %% [markdown]
# # Evaluate weights, detect in memory
#
# > The scores of weights with their protocol, and a detector for images in memory.
#
# You have a file of weights: the one that comes with the library, one of your runs, or a published one. `evaluate` scores it on a test list and records how. A `Detector` returns the probability of target of each pixel of an image.

# %%
#| hide
#| default_exp evaluate
import matplotlib.pyplot as plt
import numpy as np

import mshnet
from mshnet.scenes import scene

# %%
#| export
import copy
import inspect
import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mshnet.core import Settings, UserError, as_user_error, configure, resolve
from mshnet.cpu import use_cpu_passes, use_plain_passes
from mshnet.detection import fused_for, normalise
from mshnet.device import infer, open_device, share_cores
from mshnet.files import digest
from mshnet.places import run_folder
from mshnet.recipe import Config
from mshnet.task import Evaluation, Origin, Trained, count_seen, make_task, trained_model
from mshnet.weights import PRETRAINED, settings_of_weights, weights_file

# %% [markdown]
# ## A score
#
# The pretrained weights have never seen these synthetic scenes. This is their score on 20 of them (a quarter of `scenes`), each of 128x128 pixels:

# %%
scenes = {"scenes": 80, "base_size": 128, "crop_size": 128}
result = mshnet.evaluate("pretrained", device="cpu", precision="fp32", **scenes)
print(result.scores)

# %% [markdown]
# 36 of 42 targets are found, without a false alarm. The images are small: one false spot of 10 pixels would add 31 per million to Fa. A score without its conditions means little. The result therefore has its *protocol*: the data, their size, the threshold, the matching rule, and whether the weights were trained on these very images.

# %%
for name in ("data", "images", "targets", "size", "threshold", "rule", "trained_on_scored_images"):
    print(f"{name:25}{result.protocol.get(name)}")


# %% [markdown]
# ## The machinery: evaluating
#
# `trained_model` of the [task](36_task.ipynb) page reads all that a file of weights contains: the network, the settings of its run, and the phase in which it was trained. `load` returns the network alone. `evaluate` does what `mshnet test` does. It takes weights and settings by name; the settings that a run has recorded are the defaults. It needs only a test list. If the weights were trained on images of the list, it warns, even if the files have other names.

# %%
#| export
def load(
    weights: str | os.PathLike[str],  # a run, its folder, a file, or "pretrained"
) -> nn.Module:
    "The network with these weights, on the CPU, in evaluation mode; UserError for no weights."
    trained = trained_model(weights)
    use = trained.phase, trained.threshold, trained.multiscale
    vars(trained.model)["use"] = use  # by a `Detector`
    return use_plain_passes(trained.model.eval())


def evaluate(
    weights: str | os.PathLike[str] | Settings,  # a run, its folder, a file, or "pretrained";
    # or all settings, whose weight_path names the weights (empty: the pretrained ones)
    **settings: Any,  # as those of `Config`, such as dataset_dir; the defaults: those of the run
) -> Evaluation:  # its `scores` and their `protocol`
    """Score weights on the test list of a data set, as `mshnet test` does.

    Without a data set the run's own is scored, or synthetic scenes. Raises UserError for a mistake
    in the settings, data that cannot be read, and weights that do not fit.
    """
    config: Any
    if isinstance(weights, Settings):
        config = type(weights)(**weights.model_dump() | settings)
    else:
        known = settings_of_weights(weights)
        config = configure({"weight_path": os.fspath(weights), **settings}, trained=known)
    path = config.weight_path or PRETRAINED
    trained = trained_model(path, config)
    device = open_device(config.device, config.precision, config.num_devices)
    if config.num_devices > 1 and device.world == 1:
        text = "num_devices is for training; to score in several processes, start them by torchrun"
        warnings.warn(text, stacklevel=2)
    device.cache_programs(run_folder(config).parent / "xla_cache")
    fits = -(-config.batch_size // device.world) * device.world
    task = make_task(config.model_copy(update={"batch_size": fits, "weight_path": path}))
    test = task.splits(["test"])["test"]
    known, both = trained.record.get("data", {}), (vars(config), trained.record.get("config", {}))
    data = [(Path(c.get("dataset_dir", "")).name, c.get("test_list"), c.get("data")) for c in both]
    was = known.get("test data", test.hash)
    if data[0][0] and data[0] == data[1] and was != test.hash:
        what = f"{config.dataset_dir}: not the test data of the run ({test.hash} instead of {was})"
        warnings.warn(f"{what}; name those with --dataset-dir", stacklevel=2)
    seen = count_seen(task, test, known, "scored")
    origin, model = replace(trained.origin, seen=seen), device.to_device(trained.model)
    found: Evaluation = task.evaluate(model, test, device, trained.phase, origin)
    found.settings["weights"] = digest(weights_file(path, config.task))
    return found


# %% [markdown]
# ### Predicting
#
# A `Detector` reads the weights once. It also takes a network. A network from `load` keeps the phase, the threshold and the sizes of its file. Any other network has the threshold 0.5 and predicts a frame at its own size. The images are in memory, and their sides are multiples of 16; other sides are an error. [Prediction](53_predict.ipynb) takes files, and images of any size.

# %%
#| export
class Detector:
    "Weights on a device; called with images, it returns the probability of target of each pixel."

    def __init__(
        self,
        weights: str | os.PathLike[str] | nn.Module,  # a file, or a model
        device: str = "auto",
        precision: str = "auto",
        shared: bool = False,  # with the other processes of torchrun: each image on one of them
    ) -> None:
        self.device = open_device(device, precision, shared=shared)
        if isinstance(weights, nn.Module):
            try:
                inspect.signature(weights.forward).bind(None, deep=True)
            except TypeError:
                what = f"weights of type {type(weights).__name__} are not possible"
                raise UserError(f"{what}: use a run, its folder, a file or an MSHNet") from None
            model = use_cpu_passes(copy.deepcopy(weights).float())
            phase, *use = getattr(weights, "use", ("full", 0.5, ()))
            trained = Trained(model, phase, Origin("a model in memory"), "detect", {}, *use)
        else:
            trained = trained_model(weights, Config())
        self.deep, self.threshold = trained.phase == "full", trained.threshold
        self.multiscale = trained.multiscale  # see `mshnet.predict.predict_frame`
        placed = fused_for(self.device, self.device.to_device(trained.model).eval())
        self.model = self.device.begin("predicting", placed)

    def __call__(
        self,
        images: Tensor,  # [B,3,H,W] uint8, height and width multiples of 16
        batch_size: int = 4,  # images of one pass
    ) -> Tensor:  # [B,1,H,W] float32, 0..1, on the CPU
        "Probabilities of target; UserError unless the images have this type and shape."
        expect_bytes(images)
        share_cores(self.device)
        size = -(-batch_size // self.device.world) * self.device.world
        with as_user_error():
            return torch.cat([self._part(rows, size) for rows in images.split(size)])

    def _part(self, rows: Tensor, size: int) -> Tensor:
        "Probabilities of one batch, filled up for a compiler so that it compiles once."
        more = size - len(rows) if self.device.compiles else 0
        sent = self.device.transfer(torch.cat([rows, rows[:1].expand(more, -1, -1, -1)]))
        logits = infer(self.device, lambda: logits_of(self.model, sent, self.deep))
        return torch.sigmoid(logits)[: len(rows)]


def expect_bytes(images: Tensor) -> None:
    "UserError unless the images are a uint8 tensor [B,3,H,W] with pixels."
    if not isinstance(images, Tensor):
        kind = type(images).__name__
        raise UserError(f"predict: images are a {kind}, not a tensor; use torch.as_tensor(images)")
    right = images.dtype == torch.uint8 and images.ndim == 4 and images.shape[1] == 3
    if not right or not images.numel():
        raise UserError(f"images are {images.dtype} {tuple(images.shape)}, not uint8 [B,3,H,W]")


def logits_of(model: nn.Module, images: Tensor, deep: bool) -> Tensor:  # [B,1,H,W] float32
    "Logits of the fused head (deep) or of the full-size head, for images on the device."
    return model(normalise(images), deep=deep)[1].float()


def __getattr__(name: str) -> Any:
    "`predict`, which a later page defines."
    if name == "predict":
        return resolve("mshnet.predict:predict")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# %% [markdown]
# One scene and its probabilities. The target on dark sky is found, a little too small; the one at the edge of a cloud is missed. The bright single pixels stay dark:

# %%
detector = Detector(mshnet.load("pretrained"), "cpu", "fp32")
image, mask = scene(np.random.default_rng(3), 128)
probability = detector(torch.from_numpy(image).expand(1, 3, -1, -1))[0, 0]
figure = plt.figure(figsize=(10, 3.4), layout="constrained")
panels = {
    "image": (image, None),
    "probability of target": (probability, (0, 1)),
    f"above {detector.threshold}": (probability > detector.threshold, (0, 1)),
    "ground truth": (mask, (0, 1)),
}
for axes, (name, (pixels, limits)) in zip(figure.subplots(1, 4), panels.items(), strict=True):
    axes.imshow(pixels, cmap="gray", clim=limits)
    axes.set(xticks=[], yticks=[], title=name)

# %% [markdown]
# ## Questions
#
# 1. Two evaluations of the same weights differ by 0.02 in IoU. Where do you look first?
#    <details><summary>Answer</summary>In their protocols: size, resize, threshold, matching rule, list. If all agree, compare the hash of the data, which covers names and pixels.</details>
# 2. How can `evaluate` know that weights were trained on a test image, if the file has a different name?
#    <details><summary>Answer</summary>The record of a run contains digests of the pixels of its training images. The name plays no part.</details>
