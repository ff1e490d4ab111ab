# %% [markdown]
# # Settings of sign language
#
# > Which preset and which network fit your videos or hand tracks, and the settings of `--task signs`.
#
# | you have | use | network |
# |---|---|---|
# | a folder of hand tracks | no flag (preset `tracks`) | `tracks`, our own |
# | a folder of videos | `--preset paper` (needs a GPU; we have not trained it), or `quick` for a trial | `tfnet`, the published one; lighter: `--preset paper --network vac` |
# | no folder | no flag (preset `quick`): simulated videos | a small `tfnet` |
#
# New to this task? Start with the [guide](../guides/signs.ipynb). It has the scores: on new sentences, `tracks` is only a little better than copying the nearest training sentence. `--network` does not change the recipe. With videos, add `--preset paper`: otherwise the recipe is the one for hand tracks. If the network cannot read the data, the run stops and prints the flag to use.
#
# `paper` has the published network, loss weights and schedule. Known differences: no gradient flows into the teacher of the distillation ([CTC](02_ctc.ipynb)). Clips are not mirrored. A change of tempo may shorten a clip below 32 frames, and its length need not be a multiple of 4. A clip that is made longer keeps all its frames. Clips of more than 230 frames are thinned to 230, also in tests; `--max-frames 10000` reads them whole, as published. Equal neighbours that the decoder reads are not merged. A batch has clips of similar length. The vocabulary is that of the training list. The start is random without `--weight-path` ([the guide has more](../guides/signs.ipynb)). `mshnet train --task signs --help-all` lists all settings as flags, also those of [every task](../10_core.ipynb). The cell prints the recipe for no folder, for a folder of hand tracks, and for `paper`:

# %%
from mshnet.core import configure

for given in ({}, {"dataset_dir": "boston104"}, {"preset": "paper"}):
    c = configure({"task": "signs", **given})
    print(f"{c.preset or 'tracks'}: LSTM of {c.hidden}, batches of {c.batch_size}, lr {c.lr}")

# %%
#| export
#| default_exp signs.signs_config
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, Field

from mshnet.core import Settings


class _SignFields(BaseModel):
    "Recipe settings of the clips, the network, its loss and its decoder."

    signs: int = Field(default=12, ge=2, le=676, description="glosses of simulated signing")
    sentences: int = Field(default=400, ge=8, le=1_000_000, description="simulated sentences")
    frame_size: int = Field(default=24, ge=16, le=1024, description="side of the resized frames")
    crop: int = Field(default=24, ge=16, le=1024, description="side of the crops, pixels")
    rescale: float = Field(default=0.2, ge=0, le=0.9, description="change of tempo in training")
    augment: Literal["splice", "warp", "none"] = Field(
        default="splice",
        description="warp: move, turn, stretch tracks, warp time; splice: also swap sentence ends",
    )
    max_frames: int = Field(default=300, ge=16, le=10_000, description="longer clips are thinned")
    buckets: int = Field(default=4, ge=0, le=64, description="padded lengths; 0: any length")
    network: Literal["tracks", "tfnet", "vac"] = Field(
        default="tracks", description="for hand tracks, or for video: TFNet, or the lighter VAC"
    )
    backbone: Literal["published", "small"] = Field(default="published", description="ResNet size")
    hidden: int = Field(default=128, ge=16, le=8192, multiple_of=16, description="size of the LSTM")
    dropout: float = Field(default=0.3, ge=0, lt=1, description="dropout of the tracks network")
    scale: float = Field(default=4.0, gt=0, le=1000, description="factor of the logits")
    distil: Literal["detached", "published", "none"] = Field(
        default="none", description="the BiLSTM teaches the convolutions; published: both learn"
    )
    distil_weight: float = Field(default=25.0, ge=0, le=1000, description="weight of distillation")
    decoder: Literal["greedy", "beam"] = Field(default="beam", description="how glosses are read")
    beam_width: int = Field(default=10, ge=1, le=1000, description="prefixes kept by the beam")
    bigram_weight: float = Field(default=0.3, ge=0, le=10, description="weight of bigrams; 0: none")


# %% [markdown]
# For developers: `flags` lists, by command, the settings that it accepts beside those of every task (`train` accepts all). Its entry `daily` is for the short `train --help`. `smaller` names the flags to lower if memory runs out. `first_look` is the preset if neither a folder nor `--preset` is given. `retired` names old presets and the flags that replace them, `gone` removed settings, with the only value that old files may have:

# %%
#| export
class SignsConfig(Settings, _SignFields):
    "The settings of sign language; `configure` fills them from presets, files and flags."

    flags: ClassVar[dict[str, list[str]]] = {
        "daily": ["network"],
        "test": ["decoder", "beam_width", "bigram_weight", "max_frames", "buckets"],
        "predict": ["decoder", "beam_width", "bigram_weight", "max_frames", "num_workers"],
        "data": ["signs", "sentences"],
        "doctor": ["network", "backbone", "max_frames", "crop"],
    }
    smaller: ClassVar[str] = "--max-frames or --crop"
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "tracks": {},
        "quick": {
            **{"network": "tfnet", "backbone": "small", "hidden": 96, "scale": 8.0},
            **{"distil": "detached", "distil_weight": 1.0, "lr": 1.5e-3, "ema": 0.0},
            **{"clip_grad": 5.0, "batch_size": 8, "epochs": 6, "eval_every": 3},
        },
        "paper": {  # as published, but for the differences in the text
            **{"network": "tfnet", "frame_size": 256, "crop": 224, "max_frames": 230},
            **{"hidden": 1024, "scale": 1.0, "distil": "detached", "bigram_weight": 0.0},
            **{"precision": "auto", "optimizer": "adam", "lr": 1e-4, "schedule": "steps"},
            **{"warmup_steps": 0, "weight_decay": 1e-4, "clip_grad": 0.0, "ema": 0.0},
            **{"batch_size": 2, "epochs": 55, "choose": "val", "eval_every": 1},
        },
    }
    retired: ClassVar[dict[str, str]] = {
        f"gpu{memory}": f"--preset paper --micro-batch 1 --batch-size {batch} "
        f"--max-frames {frames} --lr {1e-4 * (batch / 2) ** 0.5:.6f} --warmup-steps -1 "
        "--clip-grad 1 --patience 10"
        for memory, batch, frames in ((8, 4, 96), (12, 6, 160), (16, 8, 230))
    }
    gone: ClassVar[dict[str, Any]] = {"backbone_weights": "", "frequency_axis": "channel"}
    first_look: ClassVar[str] = "quick"
    synthetic_name: ClassVar[str] = "simulated"

    task: Literal["signs"] = Field(default="signs", description="what is trained")
    batch_size: int = Settings.with_default("batch_size", 16)
    precision: Literal["auto", "bf16", "fp16", "fp32"] = Settings.with_default("precision", "fp32")
    epochs: int = Settings.with_default("epochs", 200)
    eval_every: int = Settings.with_default("eval_every", 50)
    schedule: Literal["cosine", "constant", "steps"] = Field(  # type: ignore[assignment]
        default="cosine",
        description="cosine, constant, or steps: times 0.2 after 35/55 and 45/55 of the epochs",
    )
    lr: float = Settings.with_default("lr", 3e-3)
    clip_grad: float = Settings.with_default("clip_grad", 5.0)
    ema: float = Settings.with_default("ema", 0.99)

    def unused(self, written: Mapping[str, Any]) -> list[str]:
        "Settings without effect."
        of_video, of_tracks = ["backbone", "frame_size", "crop"], ["augment", "dropout"]
        without = {f"network={self.network}": of_video if self.network == "tracks" else of_tracks}
        without["a dataset_dir"] = ["signs", "sentences"] if self.dataset_dir else []
        simulated = self.network != "tracks" and not self.dataset_dir
        without["simulated videos"] = ["frame_size"] if simulated else []
        without[f"distil={self.distil}"] = ["distil_weight"] if self.distil == "none" else []
        of_beam = ["beam_width", "bigram_weight"]
        without[f"decoder={self.decoder}"] = of_beam if self.decoder == "greedy" else []
        pairs = [(n, why) for why, names in without.items() for n in names if n in written]
        return super().unused(written) + [f"{name} is not used with {why}" for name, why in pairs]

# %% [markdown]
# ## Questions
#
# 1. You have a folder of videos and set only `--network vac`. Which recipe does the run have, and which should it have?
#    <details><summary>Answer</summary>The defaults, which are for hand tracks: an LSTM of 128, and frames of 24x24 pixels as in the simulated videos. Set <code>--preset paper --network vac</code>.</details>
