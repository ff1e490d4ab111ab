# %% [markdown]
# # Settings of tomography
#
# > Which tanks, which network, how many samples: what you can choose, and two recipes.
#
# A run of task `eit` has the settings of every run (epochs, learning rate, device ...) and those of this page. Without a data set we simulate tanks: random objects, the voltages that physics gives them, then the errors of a real instrument. `hints` are linear reconstructions that the network gets beside the map of the voltages. (This page needs no torch, so `mshnet train --task eit --help` answers at once.)
#
# The defaults train in minutes on a CPU. The preset `paper` is the published recipe at the published size; it needs accelerators and its data set. The published training has 200,000 steps: set `--epochs` to 200,000 divided by the number of your batches in an epoch.

# %%
#| export
#| default_exp eit.eit_config
from collections.abc import Mapping
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
# `tpu` is the published recipe with larger batches. `flags` are the settings that each command shows first:

# %%
#| export
_PUBLISHED: dict[str, Any] = {
    **{"size": 128, "patch": 2, "width": 512, "heads": 16, "scales": 4, "hints": 0},
    **{"augment": "none", "jitter": 0.0, "loss": "l1", "samples": 1, "precision": "auto"},
    **{"optimizer": "adam", "lr": 1e-5, "schedule": "constant", "warmup_steps": 0},
    **{"weight_decay": 0.0, "ema": 0.995, "ema_law": "paper"},
    **{"batch_size": 16, "epochs": 200, "eval_every": 10},
}


class EitConfig(Settings, _EitFields):
    "The settings of tomography; `configure` joins them from presets, files and flags."

    flags: ClassVar[dict[str, list[str]]] = {
        "daily": ["data"],
        "test": ["data", "tanks", "noise", "sampling_steps", "samples"],
        "predict": ["samples", "sampling_steps"],
        "data": ["data", "tanks", "noise", "gains"],
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
        whole = self.dataset_dir and self.data == "simulated"  # real tanks are for the test only
        names = [n for n in ("tanks", "noise", "gains") if n in written and whole]
        lines = super().unused(written) + [f"{n} is not used with a dataset_dir" for n in names]
        if "on_bad_image" in written:
            lines.append("on_bad_image is not used by task eit: a damaged file ends the run")
        return lines


# %%
from mshnet.core import configure

for name in ("small", "paper"):
    c = configure({"task": "eit", "preset": name})
    print(f"{name}: {c.size}x{c.size} pixels, tokens of {c.patch}x{c.patch}, {c.width} channels")
