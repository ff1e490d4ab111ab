# %% [markdown]
# # signs_config
#
# > The settings of sign language: the clips, the network, its decoder, named recipes, and the file of the MindSpore guide.

# %%
#| default_exp signs.signs_config

# %%
#| hide
from fastcore.test import expect_fail, test_eq

from mshnet.core import UserError, configure, run_name

# %%
#| export
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, Field

from mshnet.core import Settings, UserError, shown, unknown


# %% [markdown]
# A run of task `signs` has the settings of every run and the ones of this page. Reading them needs no torch.
#
# The first group is about the clips. What a folder holds decides how it is read: a table of hand tracks, or videos with a table of glosses. Without a folder we simulate signing.

# %%
#| export
class _ClipFields(BaseModel):
    "Recipe settings of the clips."

    signs: int = Field(default=12, ge=2, le=676, description="glosses of simulated signing")
    sentences: int = Field(
        default=400, ge=8, le=1_000_000, description="simulated training sentences"
    )
    vocabulary: str = Field(
        default="",
        description="file with a gloss in each line; empty: the glosses of the training part",
    )
    frame_size: int = Field(
        default=24, ge=16, le=1024, description="side to which frames of a video are resized"
    )
    crop: int = Field(
        default=24,
        ge=16,
        le=1024,
        description="side of the part of a frame that is seen: at random in training, the same "
        "for all frames of a clip, and the centre in scoring",
    )
    flip: bool = Field(
        default=False,
        description="mirror half of the training clips; it exchanges the hands, which some signs "
        "tell apart",
    )
    rescale: float = Field(
        default=0.2,
        ge=0,
        le=0.9,
        description="training clips are signed faster or slower, by at most this share",
    )
    augment: Literal["splice", "warp", "none"] = Field(
        default="splice",
        description="hand tracks of training clips: moved, turned, stretched and warped in time "
        "(warp); also with ends exchanged between sentences that share a gloss, where the times "
        "of the glosses are known (splice)",
    )
    max_frames: int = Field(
        default=300,
        ge=16,
        le=10_000,
        description="longest clip; of longer ones frames are left out",
    )
    buckets: int = Field(
        default=4,
        ge=0,
        le=64,
        description="lengths to which batches are padded, each a program for a TPU; 0: each batch "
        "as long as its longest clip",
    )


# %% [markdown]
# The second group is the network, its loss and its decoder. The published TFNet has a hidden size of 1024 and a frequency branch over the channels of a frame, not over time.

# %%
#| export
class _NetworkFields(BaseModel):
    "Recipe settings of the network, its loss and its decoder."

    network: Literal["tracks", "tfnet", "vac"] = Field(
        default="tracks",
        description="for hand tracks (tracks), or for video: TFNet, or VAC, the lighter baseline",
    )
    backbone: Literal["published", "small"] = Field(
        default="published",
        description="network for single frames: ResNet with motion gates, or a narrow one for "
        "small frames",
    )
    backbone_weights: str = Field(
        default="",
        description="file of ImageNet weights of ResNet-34 (tfnet) or ResNet-18 (vac); empty: none",
    )
    hidden: int = Field(
        default=128, ge=16, le=8192, multiple_of=16, description="values of the BiLSTM, both ways"
    )
    frequency_axis: Literal["channel", "time"] = Field(
        default="channel",
        description="axis of TFNet's spectrum: the channels of a frame, as published, or time",
    )
    dropout: float = Field(default=0.3, ge=0, lt=1, description="dropout of the tracks network")
    scale: float = Field(
        default=4.0,
        gt=0,
        le=1000,
        description="factor of the logits of normalised classifiers; 1: as published, small "
        "networks need 4 to 8",
    )
    distil: Literal["detached", "published", "none"] = Field(
        default="none",
        description="distillation of the BiLSTM into the convolution: towards a fixed teacher, "
        "with gradients into the teacher (as published), or none",
    )
    distil_weight: float = Field(
        default=25.0, ge=0, le=1000, description="weight of the distillation"
    )
    decoder: Literal["greedy", "beam"] = Field(
        default="beam", description="how probabilities become glosses"
    )
    beam_width: int = Field(
        default=10, ge=1, le=1000, description="beginnings of sentences that the beam keeps"
    )
    bigram_weight: float = Field(
        default=0.3,
        ge=0,
        le=10,
        description="weight of the bigram of the training glosses in the beam; 0: none",
    )


# %% [markdown]
# The defaults are the recipe for hand tracks. The preset `paper` is the published recipe; `gpu8`, `gpu12` and `gpu16` are the guide's table by GPU memory. A batch is computed clip by clip there (`micro_batch`), because one clip of the published size fills these cards. Four times the batch means twice the learning rate.

# %%
#| export
_PUBLISHED: dict[str, Any] = {
    "network": "tfnet",
    "frame_size": 256,
    "crop": 224,
    "max_frames": 230,
    "hidden": 1024,
    "scale": 1.0,
    "distil": "detached",
    "bigram_weight": 0.0,
    "optimizer": "adam",
    "lr": 1e-4,
    "schedule": "steps",
    "warmup_steps": 0,
    "weight_decay": 1e-4,
    "clip_grad": 0.0,
    "ema": 0.0,
    "batch_size": 2,
    "epochs": 55,
    "precision": "auto",
    "choose": "val",
    "eval_every": 1,
}


def _gpu(batch: int, frames: int) -> dict[str, Any]:
    "The published recipe for a card: its batch, and the frames that its memory holds."
    rate = round(1e-4 * (batch / 2) ** 0.5, 6)
    own = {"batch_size": batch, "micro_batch": 1, "max_frames": frames, "lr": rate}
    return _PUBLISHED | own | {"warmup_steps": -1, "clip_grad": 1.0, "patience": 10}


_READING = ["decoder", "beam_width", "bigram_weight"]


class SignsConfig(Settings, _NetworkFields, _ClipFields):
    "The settings of sign language; `configure` joins them from presets, files and flags."

    flags: ClassVar[dict[str, list[str]]] = {
        "test": [*_READING, "max_frames"],
        "predict": [*_READING, "num_workers"],
        "data": ["signs", "sentences"],
        "doctor": ["network", "backbone", "max_frames", "crop"],
    }
    smaller: ClassVar[str] = "--max-frames or --crop"
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "tracks": {},
        "quick": {
            "network": "tfnet",
            "backbone": "small",
            "hidden": 96,
            "scale": 8.0,
            "distil": "detached",
            "distil_weight": 1.0,
            "batch_size": 8,
            "lr": 1.5e-3,
            "epochs": 6,
            "eval_every": 3,
            "ema": 0.0,
            "clip_grad": 5.0,
        },
        "paper": _PUBLISHED,
        "gpu8": _gpu(4, 96),
        "gpu12": _gpu(6, 160),
        "gpu16": _gpu(8, 230),
    }
    first_look: ClassVar[str] = "quick"
    synthetic_name: ClassVar[str] = "simulated"

    task: Literal["signs"] = Field(default="signs", description="what is trained")
    batch_size: int = Field(
        default=16, ge=1, le=65_536, description="clips per step, over all devices"
    )
    precision: Literal["auto", "bf16", "fp16", "fp32"] = Field(
        default="fp32",
        description="arithmetic of the network (the CTC loss is always fp32); auto: bf16 where the "
        "chip has it, fp16 on NVIDIA GPUs of generation 7 (T4, V100)",
    )
    epochs: int = Field(
        default=200, ge=1, le=1_000_000, description="passes over the training data"
    )
    eval_every: int = Field(
        default=50, ge=1, le=1_000_000, description="epochs between two scorings"
    )
    schedule: Literal["cosine", "constant", "steps"] = Field(  # type: ignore[assignment]
        default="cosine",
        description="learning rate: falling to lr_end * lr (cosine), constant, or a fifth after "
        "35/55 and again after 45/55 of the epochs, as published (steps)",
    )
    lr: float = Field(default=3e-3, gt=0, le=10, description="learning rate")
    clip_grad: float = Field(default=5.0, ge=0, description="largest gradient norm; 0: not clipped")
    ema: float = Field(
        default=0.99,
        ge=0,
        lt=1,
        description="decay of the averaged weights in a step (exponential moving average), which "
        "are scored and kept; 0: none",
    )

    @classmethod
    def from_file(cls, values: dict[str, Any]) -> dict[str, Any]:
        "Settings of a file; one with the sections of the MindSpore guide is translated."
        if not any(isinstance(value, dict) for value in values.values()):
            return values
        return _of_guide(values)

    def unused(self, written: Mapping[str, Any]) -> list[str]:
        "Settings without effect."
        lines = super().unused(written)
        of_video = ["backbone", "backbone_weights", "frequency_axis", "flip", "frame_size", "crop"]
        other = of_video if self.network == "tracks" else ["augment", "dropout"]
        lines += [f"{n} is not used with network={self.network}" for n in other if n in written]
        if self.dataset_dir:
            names = [n for n in ("signs", "sentences") if n in written]
            lines += [f"{name} is not used with a dataset_dir" for name in names]
        if self.distil == "none" and "distil_weight" in written:
            lines.append("distil_weight is not used with distil=none")
        if self.decoder == "greedy":
            names = [n for n in ("beam_width", "bigram_weight") if n in written]
            lines += [f"{name} is not used with decoder=greedy" for name in names]
        return lines


# %% [markdown]
# ## The guide's file
#
# The MindSpore guide keeps its settings in a JSON file with sections. `--config FILE.json` reads it: a key that we know becomes today's setting, and an unknown one is an error. Some keys tune MindSpore itself and mean nothing here. They are accepted and left out. The values of some others are fixed here, such as the blank of CTC. The guide's early stopping watches the dev set, so it selects `choose=val`.

# %%
#| export
_SAME = {  # keys of the guide, and our settings
    "dataset.crop_size": "crop",
    "dataset.max_frames": "max_frames",
    "model.hidden_size": "hidden",
    "training.batch_size": "batch_size",
    "training.learning_rate": "lr",
    "training.num_epochs": "epochs",
    "training.num_workers": "num_workers",
    "training.weight_decay": "weight_decay",
    "training.gradient_clip_norm": "clip_grad",
    "training.eval_interval": "eval_every",
    "training.early_stopping_patience": "patience",
    "loss.kd_weight": "distil_weight",
    "paths.output_dir": "output_dir",
    "logging.print_interval": "log_every",
}
_FIXED = {  # keys with a single possible value
    "dataset.name": "CE-CSL",
    "model.name": "TFNet",
    "optimizer.type": "Adam",
    "optimizer.lr_scheduler.type": "MultiStepLR",
    "optimizer.lr_scheduler.milestones": [35, 45],
    "optimizer.lr_scheduler.gamma": 0.2,
    "loss.ctc_blank_id": 0,
    "loss.ctc_reduction": "mean",
    "loss.kd_temperature": 8,
}
_OF_MINDSPORE = [
    *("model.enable_graph_kernel", "model.enable_reduce_precision", "training.save_interval"),
    *("training.prefetch_size", "training.max_rowsize", "training.enable_data_sink"),
    *("paths.checkpoint_dir", "paths.log_dir", "paths.best_model_path"),
    *("paths.current_model_path", "logging.level", "logging.save_logs"),
    *("gpu_optimization.enable_mem_reuse", "gpu_optimization.max_device_memory"),
    "gpu_optimization.enable_dump",
]
_PATHS = [f"dataset.{part}_{what}_path" for part in ("train", "valid", "test")
          for what in ("data", "label")]  # fmt: skip
_OTHER = ["model.device_target", "model.device_id", "model.enable_auto_mixed_precision"]
_OTHER += ["gpu_optimization.enable_graph_mode", "gpu_optimization.enable_profiling"]


def _flat(sections: Mapping[str, Any], start: str = "") -> dict[str, Any]:
    "Keys of all sections, such as model.hidden_size."
    found: dict[str, Any] = {}
    for key, value in sections.items():
        inner = isinstance(value, dict)
        found |= _flat(value, f"{start}{key}.") if inner else {f"{start}{key}": value}
    return found


def _of_guide(sections: Mapping[str, Any]) -> dict[str, Any]:
    "Settings from the sections of the guide's file; UserError for a key that has no meaning."
    values = _flat(sections)
    known = [*_SAME, *_FIXED, *_OF_MINDSPORE, *_PATHS, *_OTHER, "task", "preset"]
    for key, value in values.items():
        if key not in known:
            raise UserError(unknown(key, known, "; the guide's file has no such key"))
        if key in _FIXED and value != _FIXED[key]:
            raise UserError(f"{key}={shown(value)} is not possible: write {_FIXED[key]}")
    made = _PUBLISHED | {_SAME[k]: v for k, v in values.items() if k in _SAME}
    made |= {k: values[k] for k in ("task", "preset") if k in values}
    if roots := {str(PurePosixPath(str(values[k])).parent.parent) for k in _PATHS if k in values}:
        if len(roots) > 1:
            raise UserError(f"dataset: one folder for all parts, not {' and '.join(sorted(roots))}")
        made["dataset_dir"] = roots.pop()
    target, number = values.get("model.device_target"), values.get("model.device_id", 0)
    targets = {"CPU": "cpu", "GPU": f"cuda:{number}", None: "auto"}
    if target not in targets:
        raise UserError(f"model.device_target={shown(target)} is not possible: write CPU or GPU")
    made["device"] = targets[target]
    if values.get("model.enable_auto_mixed_precision") is False:
        made["precision"] = "fp32"
    if values.get("gpu_optimization.enable_graph_mode") is False:
        made["compile"] = "off"
    return made


# %% [markdown]
# The file may be short: what it leaves out is as published. Two mistakes, and a file that is right:

# %%
config = configure({"task": "signs", "preset": "paper"})
test_eq((config.hidden, config.schedule, config.lr), (1024, "steps", 1e-4))
guide = {"model": {"hidden_size": 512}, "training": {"num_epochs": 20}}
made = SignsConfig(**SignsConfig.from_file(guide))
test_eq((made.hidden, made.epochs, made.network), (512, 20, "tfnet"))
with expect_fail(UserError, contains="did you mean 'model.hidden_size'?"):
    SignsConfig.from_file({"model": {"hidden_sizes": 512}})
with expect_fail(UserError, contains="loss.ctc_blank_id=3510 is not possible: write 0"):
    SignsConfig.from_file({"loss": {"ctc_blank_id": 3510}})
run_name(SignsConfig(preset="paper"))
