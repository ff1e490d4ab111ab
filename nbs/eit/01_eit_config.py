# %% [markdown]
# # Settings of tomography
#
# > Which tanks, which network, how many samples: what you can choose, and four presets.
#
# Without a data set we simulate tanks: random objects, and the voltages that physics gives them. These are too clean, because a real instrument adds noise, and each pair of electrodes has a different gain. So both errors are settings, `noise` and `gains`. Their defaults are as large as in [real tanks](00_tank.ipynb). The other settings of task `eit` concern the image, the network and the sampling. For example, `hints` is the number of linear reconstructions that the network gets together with the map of the voltages.
#
# Below are the errors of the 208 voltages of one tank (all are differences from plain water). Noise of 0.02 is 2% of the root mean square of the voltages, about equal for each of them. A gain multiplies, so its error grows with the voltage, and all large errors are due to gains:

# %%
import matplotlib.pyplot as plt

from mshnet.eit.tank import simulate

clean, _ = simulate(1, seed=0, gains=0, noise=0)
plt.figure(figsize=(6, 2.4), layout="constrained")
for gains, noise in ((0.07, 0), (0, 0.02)):
    found, _ = simulate(1, seed=0, gains=gains, noise=noise)
    plt.plot(clean[0], found[0] - clean[0], ".", label=f"gains {gains}, noise {noise}")
plt.gca().set(xlabel="voltage without errors (published unit)", ylabel="error")
plt.legend();

# %%
#| export
#| default_exp eit.eit_config
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, Field

from mshnet.core import Settings


class _EitFields(BaseModel):
    "Recipe settings of the tanks, the network and the diffusion."

    data: Literal["simulated", "uef2017", "ktc2023"] = Field(
        default="simulated",
        description="tanks to evaluate: simulated (or the test split of dataset_dir), or real: "
        "uef2017 (in dataset_dir/test2017), ktc2023 (in dataset_dir/test2023)",
    )
    tanks: int = Field(default=2048, ge=8, le=1_000_000, description="simulated training tanks")
    size: int = Field(default=32, ge=16, le=128, multiple_of=16, description="side of the image")
    noise: float = Field(default=0.02, ge=0, le=1, description="relative noise of the simulation")
    gains: float = Field(default=0.07, ge=0, le=1, description="deviation of electrode gains")
    jitter: float = Field(default=0.15, ge=0, le=1, description="random scale of training inputs")
    augment: Literal["turns", "none"] = Field(default="turns", description="turn tanks at random")
    patch: int = Field(default=4, ge=1, le=16, description="side of a token, pixels")
    width: int = Field(default=64, ge=8, le=1024, multiple_of=8, description="channels")
    heads: int = Field(default=4, ge=1, le=64, description="attention heads")
    scales: int = Field(default=1, ge=1, le=6, description="how often the grid of tokens is halved")
    hints: int = Field(default=2, ge=0, le=3, description="linear reconstructions as extra inputs")
    loss: Literal["l1", "l2"] = Field(default="l2", description="absolute (l1) or square error")
    ema_law: Literal["steps", "paper"] = Field(default="steps", description="averaging of weights")
    sampling_steps: int = Field(default=5, ge=1, le=1000, description="steps from noise to image")
    samples: int = Field(default=4, ge=1, le=64, description="sampled images; the mean is scored")


# %% [markdown]
# The defaults (`small`) train in minutes on a CPU; `quick` is a shorter trial. `paper` is the published recipe at the published size, and needs accelerators and its data set. `tpu` is the published recipe with batches of 64 instead of 16, bfloat16, and a learning rate that begins ten times as high and falls. Both presets keep the last epoch; CDEIT keeps the averaged weights that are best on the validation split (`--choose val`; CDEIT measures the L1 error there, this library CC). `flags` lists the settings that are shown first (`daily`), and those that other commands than `train` accept. `retired` names an old preset and the flags that replace it, `gone` old settings with the only value that is left. (The library file of this page needs no torch, so `mshnet train --task eit --help` answers at once.)

# %%
#| export
_PUBLISHED: dict[str, Any] = {
    **{"size": 128, "patch": 2, "width": 512, "heads": 16, "scales": 4, "batch_size": 16},
    **{"augment": "none", "jitter": 0.0, "hints": 0, "loss": "l1", "precision": "auto"},
    **{"optimizer": "adam", "lr": 1e-5, "schedule": "constant", "warmup_steps": 0, "samples": 1},
    **{"weight_decay": 0.0, "ema": 0.995, "ema_law": "paper", "epochs": 200, "eval_every": 10},
}


class EitConfig(Settings, _EitFields):
    "The settings of tomography; `configure` joins them from presets, files and flags."

    flags: ClassVar[dict[str, list[str]]] = {
        "daily": ["data"],
        "test": ["data", "tanks", "noise", "sampling_steps", "samples"],
        "predict": ["samples", "sampling_steps"],
        "data": ["tanks", "noise", "gains"],
    }
    smaller: ClassVar[str] = "--width"
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "small": {},
        "quick": {"tanks": 256, "epochs": 4, "width": 32, "eval_every": 4},
        "paper": _PUBLISHED,
        "tpu": _PUBLISHED
        | {"batch_size": 64, "precision": "bf16", "lr": 1e-4, "schedule": "cosine"},
    }
    retired: ClassVar[dict[str, str]] = {"baseline": "--preset small, and --samples 1 to test it"}
    gone: ClassVar[dict[str, Any]] = {"method": "diffusion", "network": "dit"}
    synthetic_name: ClassVar[str] = "simulated"

    task: Literal["eit"] = Field(default="eit", description="what is trained")
    batch_size: int = Settings.with_default("batch_size", 32)
    precision: Literal["auto", "bf16", "fp16", "fp32"] = Settings.with_default("precision", "fp32")
    epochs: int = Settings.with_default("epochs", 12)
    eval_every: int = Settings.with_default("eval_every", 6)
    ema: float = Settings.with_default("ema", 0.995)

    def unused(self, written: Mapping[str, Any]) -> list[str]:
        "Settings without effect."
        folder = Path(self.dataset_dir).expanduser() / "train"  # real tanks are for the test only
        whole = self.dataset_dir and (self.data == "simulated" or folder.is_dir())
        why = dict.fromkeys(("tanks", "noise", "gains") if whole else (), " with a dataset_dir")
        why |= {"on_bad_image": ": a damaged file ends the run", "val_fraction": ": val is fixed"}
        why |= {"ema": ": ema_law sets the decay"} if self.ema and self.ema_law == "paper" else {}
        return super().unused(written) + [f"{n} is not used{why[n]}" for n in why if n in written]

# %% [markdown]
# ## Questions
#
# 1. The published training has 200,000 steps. How many epochs of `paper` are this for a folder of 8,000 training tanks?
#    <details><summary>Answer</summary>A batch has 16 tanks, so an epoch has 500 steps: 400 epochs, not the 200 of the preset. Set <code>--epochs 400</code>.</details>
