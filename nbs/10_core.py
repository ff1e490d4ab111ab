# %% [markdown]
# # core
#
# > One `Config` says what a run is: checked once, written beside its results, the same in a notebook, on the command line and in a file.

# %%
#| default_exp core

# %%
#| hide
import tempfile

from fastcore.test import expect_fail, test_eq

# %%
#| export
import contextlib
import difflib
import hashlib
import importlib
import json
import os
import reprlib
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator


# %% [markdown]
# ## Whose mistake is it?
#
# A mistyped setting is not a crash. It deserves one line: what is wrong, the value, what to write instead. `UserError` marks those, so that the command line can print the line and leave with status 2, and a notebook can show the line instead of forty frames of our own code.
#
#
# The value may come from a file that nobody wrote on purpose: with line breaks in a name, with signs that move a terminal's cursor, with a million letters. `one_line` sees to it that an error stays one line whatever was read, in one place instead of wherever an error is raised. What cannot be printed is written as Python writes it, and of what is too long the middle is left out.

# %%
#| export
def one_line(
    text: str,
    most: int = 2000,  # letters, before any are written in another way
) -> str:
    "A text as one line that can be printed."
    if len(text) > most:
        text = f"{text[: most // 2]} ... {text[-(most // 2) :]}"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def first_line(error: object) -> str:
    "The first line of what an error of somebody else's says."
    return next((x.strip() for x in str(error).splitlines() if x.strip()), "no reason given")


def counted(count: int, what: str) -> str:
    "A number of things, such as 1 frame and 2 frames."
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


STOPPED = "stopped; the same command goes on"  # how a command ends that was asked to stop


class UserError(ValueError):
    "A mistake that the user can mend: its text is one line with the value and the remedy."

    def __init__(self, text: str) -> None:
        super().__init__(one_line(text))

    def _render_traceback_(self) -> list[str]:
        "IPython asks an exception for this before it prints a traceback of its own."
        return [f"UserError: {self}"]


# %%
test_eq(one_line("a\nb\x1b[2J\ud800"), r"a\nb\x1b[2J\ud800")
test_eq(str(UserError("x" * 9999)), one_line("x" * 9999))
test_eq([first_line("\n  it broke\nhere"), first_line("")], ["it broke", "no reason given"])
test_eq([counted(n, "frame") for n in (0, 1, 2)], ["0 frames", "1 frame", "2 frames"])
UserError("epochs=0: write a whole number of at least 1")._render_traceback_()


# %% [markdown]
# A value is shown as Python writes it, shortened, so that the remedy behind it is still seen:

# %%
#| export
def shown(
    value: Any,  # of any type and size
) -> str:
    "A value for an error line."
    short = reprlib.Repr()
    short.maxstring = short.maxother = short.maxlong = 200
    try:
        return short.repr(value)
    except ValueError:  # Python writes no whole number of more than 4,300 digits
        return "a number of thousands of digits"


# %%
test_eq([shown(v) for v in ("a\nb", 0.5, 10**5000)][:2], [r"'a\nb'", "0.5"])
[shown(10**5000), shown([[[[[[[["deep"]]]]]]]]), shown(list(range(1000)))]


# %% [markdown]
# The network, the loss and the scores stand on torch alone and raise plain `ValueError`. Where those concern a file that the user named, they are the user's:

# %%
#| export
@contextlib.contextmanager
def as_user_error() -> Iterator[None]:
    "Turn a ValueError about something that the user gave into a UserError."
    try:
        yield
    except ValueError as error:
        raise UserError(str(error)) from None


# %%
with expect_fail(UserError, contains="no such file"), as_user_error():
    raise ValueError("weights.pt: there is no such file")


# %% [markdown]
# A guess at what was meant saves a look into the manual:

# %%
#| export
def did_you_mean(
    word: str,  # what was written
    known: list[str],  # what could have been written
) -> str:  # "; did you mean X?", or "" if nothing is close
    "The end of an error line about an unknown word."
    longer = [name for name in known if word and name.startswith(word)]
    close = longer or difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


# %%
test_eq(did_you_mean("epochz", ["epochs", "seed"]), "; did you mean epochs?")
test_eq(did_you_mean("warm", ["epochs", "warm_epoch"]), "; did you mean warm_epoch?")
test_eq(did_you_mean("learning", ["epochs", "seed"]), "")


# %% [markdown]
# ## The settings
#
# There are two kinds, and the difference decides what a resumed run may change. A **place** setting changes where and how conveniently a result is computed: `PlaceFields`. Every other setting is **recipe** and changes the result: data, model, optimizer, batch, seed, sizes, precision.
#
# The suite trains several *tasks*. `Settings` holds what every task has; the task's own class adds the rest. `Config` is the class of detection with MSHNet, and most of this page is about it.
#
# Every setting has a default, a range and a description with its unit. The defaults are the recipe `steady`: it starts from a nearly empty prediction, supervises all five outputs from the first step by soft IoU and cross-entropy, and keeps averaged weights of the last epoch, so no epoch has to be chosen. The task notebook shows why it cannot die. The paper's own recipe (Liu et al., CVPR 2024, arXiv:2403.19366) is `--preset paper`.

# %%
#| export
class TrainingFields(BaseModel):
    "Recipe settings of every training."

    epochs: int = Field(
        default=200, ge=1, le=1_000_000, description="passes over the training data"
    )
    batch_size: int = Field(
        default=4, ge=1, le=65_536, description="samples per step, over all devices"
    )
    precision: Literal["auto", "bf16", "fp16", "fp32"] = Field(
        default="auto",
        description="arithmetic of the model; auto: bf16 where the chip has it, fp16 on NVIDIA "
        "GPUs of generation 7 (T4, V100), else fp32",
    )
    seed: int = Field(
        default=0, ge=0, le=2**32 - 1, description="seed of weights, shuffle and crops"
    )
    choose: Literal["last", "val", "test"] = Field(
        default="last",
        description="which epoch is kept: the last one, the best on a held-out part of the "
        "training list (val), or the best on the test list (as the literature does)",
    )
    val_fraction: float = Field(
        default=0.2, ge=0.01, le=0.9, description="part of the training list held out by choose=val"
    )
    eval_every: int = Field(
        default=1, ge=1, le=1_000_000, description="epochs between two scorings"
    )


# %% [markdown]
# The optimizer and its learning rate:

# %%
#| export
class OptimizerFields(BaseModel):
    "Recipe settings of the optimizer."

    optimizer: Literal["adamw", "adam", "adagrad"] = Field(
        default="adamw", description="how gradients become steps"
    )
    lr: float = Field(default=0.001, gt=0, le=10, description="learning rate")
    schedule: Literal["cosine", "constant"] = Field(
        default="cosine",
        description="cosine: the rate falls to lr_end * lr at the last step; constant: it stays",
    )
    lr_end: float = Field(
        default=0.01, ge=0, le=1, description="schedule=cosine: the last rate as a fraction of lr"
    )
    warmup_steps: int = Field(
        default=-1,
        ge=-1,
        le=1_000_000,
        description="steps in which the rate grows from 0 to lr; -1: one epoch, at most a tenth "
        "of the run; 0: none",
    )
    weight_decay: float = Field(
        default=0.01,
        ge=0,
        le=1,
        description="adamw: share of lr by which weights shrink in a step; else an L2 penalty",
    )
    clip_grad: float = Field(default=1.0, ge=0, description="largest gradient norm; 0: not clipped")
    ema: float = Field(
        default=0.999,
        ge=0,
        lt=1,
        description="decay of the averaged weights in a step (exponential moving average); they "
        "are what is scored and kept; 0: none",
    )


# %% [markdown]
# All others belong to the machine:

# %%
#| export
class MachineFields(BaseModel):
    "Settings that say how the machine is used."

    num_workers: int = Field(
        default=-1,
        ge=-1,
        le=256,
        description="threads that prepare batches ahead; -1: by the number of cores; 0: none",
    )
    cache: Literal["auto", "device", "host", "stream"] = Field(
        default="auto",
        description="where the pixels lie: on the device, in the host's memory, or in their "
        "files; auto: the first of these that has room (a CPU: the second)",
    )
    compile: Literal["auto", "on", "off"] = Field(
        default="auto",
        description="torch.compile for training; auto: on one NVIDIA GPU of generation 7 or later",
    )
    deterministic: bool = Field(
        default=False,
        description="only operations that repeat to the last bit on one type of machine, with one "
        "version of torch and one number of threads",
    )
    profile: str = Field(
        default="", description="folder for a trace of a few training steps; empty: none"
    )
    log_every: int = Field(
        default=20, ge=1, le=1_000_000, description="steps between two progress lines"
    )
    debug_xla: str = Field(
        default="",
        description="folder for compiled programs and metrics of a TPU, for experts; empty: none",
    )


# %% [markdown]
# Sessions end, disks fill up, files rot. What to do then is said beforehand, because nobody is there when it happens:

# %%
#| export
class SafetyFields(BaseModel):
    "Settings that say how a run survives what happens to it."

    max_hours: float = Field(
        default=0.0,
        ge=0,
        le=10_000,
        description="hours after which the session stops by itself, with all written; 0: by the "
        "place (Colab and Kaggle end sessions, other machines do not)",
    )
    mirror_dir: str = Field(
        default="",
        description="folder to which the run's files are copied meanwhile, each run in its own; "
        "drive: mshnet on Google Drive, in Colab; empty: none",
    )
    mirror_rate: float = Field(
        default=20.0, gt=0, le=10_000, description="most megabytes per second copied to mirror_dir"
    )
    micro_batch: int = Field(
        default=0,
        ge=0,
        le=65_536,
        description="images computed at once, their gradients added up to a batch; batch norm "
        "takes its means over these; 0: the whole batch",
    )
    on_out_of_memory: Literal["stop", "halve"] = Field(
        default="stop",
        description="when a batch does not fit: stop, or halve micro_batch and go on",
    )
    on_bad_image: Literal["stop", "skip"] = Field(
        default="stop",
        description="when an image cannot be read: stop, or skip it: the next one is trained on in "
        "its place, and it is not scored",
    )


# %% [markdown]
# And what is where:

# %%
#| export
class PlaceFields(SafetyFields, MachineFields):
    "Settings that say where a run happens: they may change when it is resumed."

    preset: str = Field(default="", description="named differences from the defaults; empty: none")
    dataset_dir: str = Field(
        default="",
        description="data set: its folder, its archive (.zip, .tar, .tar.gz, .tgz) or a name to be "
        "fetched (NUAA-SIRST, IRSTD-1k, NUDT-SIRST); empty: synthetic scenes",
    )
    weight_path: str = Field(
        default="",
        description="weights to start from (train), to score (test), to predict with (predict) or "
        "to write for other programs (export): a file, a run's folder, or pretrained (those that "
        "come with mshnet, which test and predict use where none are named)",
    )
    output_dir: str = Field(
        default="",
        description="folder of the run, or of the results; empty: named after the recipe (train) "
        "or the weights (predict), runs/bench (bench), or none (test)",
    )
    resume: str = Field(default="", description="checkpoint or run folder to go on from")
    device: str = Field(
        default="auto",
        pattern=r"^(auto|cpu|mps|xla|cuda(:\d+)?)$",
        description="auto, cpu, cuda, cuda:N, mps or xla (TPU)",
    )
    num_devices: int = Field(
        default=0,
        ge=0,
        le=65_536,
        description="TPU chips, or GPUs with a process each, that share a batch; "
        "0: all chips of a TPU, one GPU",
    )


# %% [markdown]
# Nearly all texts among the settings name a file or a folder. What none can be called is refused once, here, for all who will look for it: a file system raises another kind of error for every kind of such name.

# %%
#| export
def _can_be_a_name(
    text: str,
) -> bool:
    "Whether a file or a folder can be called that."
    longest = max((len(part.encode()) for part in Path(text).parts), default=0)
    controls = any(sign < " " for sign in text)
    stranger = os.path.expanduser(text).startswith("~")  # a user who is not known here
    return len(text) <= 1000 and longest <= 255 and not controls and not stranger


# %%
test_eq([_can_be_a_name(n) for n in ("", "data/sirst", "~/x")], [True, True, True])
test_eq([_can_be_a_name(n) for n in ("a\nb", "a" * 300, "~nobody-here/x")], [False, False, False])


# %% [markdown]
# `Settings` joins them. It is frozen, refuses names it does not know, and reports errors in our own words (pydantic's messages speak of schemas). `True` is not a number of epochs, whatever Python thinks.

# %%
#| export
class Settings(PlaceFields, OptimizerFields, TrainingFields):
    "The settings of every task; a task's own class adds its recipe and its presets."

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    presets: ClassVar[dict[str, dict[str, Any]]] = {}  # named differences from the defaults
    first_look: ClassVar[str] = ""  # the preset where neither data nor a preset are named
    made_up: ClassVar[str] = "synthetic"  # name of the data where no data set is named

    task: str = Field(default="detect", description="what is trained")

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            wrong = error.errors()
            more = [f"{len(wrong) - 10} more"] if len(wrong) > 10 else []
            lines = [_explain(dict(e), type(self)) for e in wrong[:10]] + more
            raise UserError("; ".join(lines)) from None

    @field_validator("*", mode="before")
    @classmethod
    def refuse_impossible_values(cls, value: Any, info: ValidationInfo) -> Any:
        "Python would take True for 1; and no setting is a text that cannot be a name."
        field = cls.model_fields[str(info.field_name)]
        if isinstance(value, bool) and field.annotation is not bool:
            raise ValueError("a truth value")
        if isinstance(value, str) and not _can_be_a_name(value):
            raise ValueError("no name of a file")
        return value

    def __str__(self) -> str:
        "The settings that differ from their defaults, one a line."
        fields = type(self).model_fields
        changed = [n for n in fields if getattr(self, n) != fields[n].default]
        lines = [f"{name} = {getattr(self, name)!r}" for name in changed]
        return "\n".join([*lines, "all other settings: the defaults"])

    def recipe(self) -> dict[str, Any]:
        "The settings that change the result."
        return {name: getattr(self, name) for name in self.recipe_names()}

    @classmethod
    def recipe_names(cls) -> list[str]:
        "Names of the settings that change the result: all but those of the place."
        return [name for name in cls.model_fields if name not in PlaceFields.model_fields]

    @classmethod
    def unnamed(cls) -> dict[str, Any]:
        "Recipe values that leave a run's name as it is; see `run_name`."
        return cls().recipe()

    def unused(self, written: Mapping[str, Any]) -> list[str]:
        "One line for each setting that was written by hand and has no effect, with the reason."
        lines = []
        if "lr_end" in written and self.schedule != "cosine":
            lines.append(f"lr_end is not used with schedule={self.schedule}")
        if "val_fraction" in written and self.choose != "val":
            lines.append(f"val_fraction is not used with choose={self.choose}")
        if self.debug_xla and self.device not in ("auto", "xla"):
            lines.append(f"debug_xla is not used with device={self.device}")
        return lines


# %% [markdown]
# What to write instead follows from the definition of a setting, so it cannot fall out of step with it:

# %%
#| export
def expects(
    name: str,  # a setting
    settings: type[Settings],  # of which task
) -> str:  # such as "a whole number, at least 1"
    "What may be written for a setting."
    field = settings.model_fields[name]
    choices = get_args(field.annotation)
    if choices:
        return "one of " + ", ".join(choices)
    if field.annotation is bool:
        return "true or false"
    if field.annotation is str:
        patterned = any(getattr(m, "pattern", None) for m in field.metadata)
        return (field.description or "") if patterned else "a name that a file or folder can have"
    words = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    words |= {"multiple_of": "a multiple of"}
    limits = [
        f"{words[key]} {value}"
        for limit in field.metadata
        for key in words
        if (value := getattr(limit, key, None)) is not None
    ]
    return ", ".join(["a whole number" if field.annotation is int else "a number", *limits])


def _explain(
    error: dict[str, Any],  # one of pydantic's errors
    settings: type[Settings],  # of which task
) -> str:  # one line
    "A refused setting in one line: its name, its value, what to write instead."
    name = str(error["loc"][0] if error["loc"] else error["input"])  # a name that is no Unicode
    if name not in settings.model_fields:
        return unknown(name, list(settings.model_fields))
    return f"{name}={shown(error['input'])} is not possible: write {expects(name, settings)}"


# %% [markdown]
# A name that is none is answered with the nearest one. A command has flags of its own, and does not take every setting.

# %%
#| export
def unknown(
    name: str,  # what was written
    known: list[str],  # what could have been written
    otherwise: str = "",  # the end of the line if nothing is close
) -> str:  # one line
    "A name that is no setting, in one line."
    if name in RETIRED:
        return f"{name} {RETIRED[name]}"
    hint = did_you_mean(name, known)
    return f"{name} is no setting{hint or otherwise}"


# %% [markdown]
# Flags of the official script and of guides that meant something else, or nothing, answer with what to do today. Other names known from guides keep working, and a switch of theirs stands for one of our settings.

# %%
#| export
RETIRED = {
    "mode": "is retired: write `mshnet train` or `mshnet test`",
    "multi_gpus": "is retired: write --num-devices N",
    "if_checkpoint": "is retired: a run started again goes on; --resume names another",
}
ALIASES = {
    "data_path": "dataset_dir",
    "global_batch_size": "batch_size",
    "num_cores": "num_devices",
}
SWITCHES = {"use_tpu": ("device", "xla")}  # what they mean when they are on


def _translate(
    written: Mapping[str, Any],  # settings by the names that the user knows; None: not written
) -> dict[str, Any]:  # by the names of today
    "Settings under their names of today; UserError if two of them contradict each other."
    values = {ALIASES.get(k, k): v for k, v in written.items() if v is not None}
    for switch, (name, meant) in SWITCHES.items():
        given = values.pop(switch, False)
        on = given.lower() if isinstance(given, str) else given
        if on not in (True, "true", "1", "yes", False, "false", "0", "no"):
            raise UserError(f"{switch}={shown(given)} is not possible: write true or false")
        if on in (False, "false", "0", "no"):
            continue
        if values.get(name, "auto") not in ("auto", meant):
            other = shown(values[name])
            raise UserError(f"{switch} means {name}={meant}, and {name}={other} is written")
        values[name] = meant
    return values


# %% [markdown]
# ## Which task
#
# `task` is a setting like any other, but it is read first, because its class validates all others. The table names the classes as text, so that nothing is imported for a task that is not used. Your own task needs one line, `TASKS["mine"] = ("my_module:MySettings", "my_module:MyTask")` (see the [guide](guides/task.ipynb)).

# %%
#| export
TASKS: dict[str, tuple[str, str]] = {  # its settings and its class, each as "module:name"
    "detect": ("mshnet.core:Config", "mshnet.detection:Detection"),
}


def resolve(
    text: str,  # such as "mshnet.core:Config"
) -> Any:
    "Import what a text names."
    module, _, name = text.partition(":")
    return getattr(importlib.import_module(module), name)


def settings_class(
    task: Any,  # of TASKS; of any type, from a file
) -> type[Settings]:
    "The settings of a task; UserError if it is not known."
    if not isinstance(task, str) or task not in TASKS:
        hint = did_you_mean(task, list(TASKS)) if isinstance(task, str) else ""
        known = ", ".join(TASKS)
        raise UserError(f"task={shown(task)} is not known{hint} (there are {known})")
    found: type[Settings] = resolve(TASKS[task][0])
    return found


# %%
test_eq(settings_class("detect").__name__, resolve(TASKS["detect"][0]).__name__)
with expect_fail(UserError, contains="did you mean detect?"):
    settings_class("detekt")


# %% [markdown]
# ## Detection
#
# What MSHNet adds. First the data:

# %%
#| export
class DataFields(BaseModel):
    "Recipe settings that say what is trained on."

    train_list: str = Field(
        default="", description="file of training names in the data set; empty: found"
    )
    test_list: str = Field(
        default="", description="file of test names in the data set; empty: found"
    )
    scenes: int = Field(
        default=240,
        ge=4,
        le=100_000,
        description="synthetic training scenes, where there is no data set",
    )
    base_size: int = Field(
        default=256,
        ge=32,
        le=4096,
        multiple_of=16,
        description="side of the scored image in pixels",
    )
    crop_size: int = Field(
        default=128,
        ge=32,
        le=4096,
        multiple_of=16,
        description="side of the training crop in pixels",
    )


# %% [markdown]
# How a training image is made from them (the data notebook shows each):

# %%
#| export
class AugmentFields(BaseModel):
    "Recipe settings of the training crop."

    crop: Literal["native", "resize"] = Field(
        default="native",
        description="training crops are cut from the image at 0.7 to 1.5 times its own size "
        "(native), or with its long side resized to 0.5 to 2 times base_size (resize)",
    )
    target_share: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="share of the crops that must hold a target, if their image has one",
    )
    augment: Literal["flips", "paper", "robust"] = Field(
        default="flips",
        description="what else changes: mirrored left to right and blurred (paper); mirrored and "
        "turned in all eight ways and blurred (flips); also wider scales, contrast, brightness, "
        "noise and sensor faults (robust, for images of other cameras)",
    )


# %% [markdown]
# The network, its loss and its rates. `rule` is the definition of Pd and Fa (see the metrics notebook):

# %%
#| export
class NetworkFields(BaseModel):
    "Recipe settings of the network, its outputs and how they are scored."

    network: str = Field(
        default="mshnet", description="the detector's network, by its name in NETWORKS"
    )
    warm_epoch: int = Field(
        default=-1,
        ge=-1,
        le=1_000_000,
        description="last epoch that trains and scores the full-size head alone; -1: all five "
        "outputs from the first step",
    )
    loss: Literal["soft_iou+bce", "soft_iou", "bce", "sls"] = Field(
        default="soft_iou+bce",
        description="loss of each output: soft IoU, binary cross-entropy, their sum, or the scale "
        "and location sensitive loss of the paper",
    )
    head_bias: float = Field(
        default=-4.0,
        ge=-20,
        le=20,
        description="added to the starting bias of the four heads; -4: 2% of the pixels, 0: half "
        "of them are predicted at first",
    )
    fusion_start: Literal["full_size", "random"] = Field(
        default="full_size",
        description="how the fusing convolution starts: as a copy of the full-size head, or at "
        "random",
    )
    join_rate: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="rate of the coarse heads and the fusing convolution, as a fraction of lr",
    )
    lr_rule: Literal["fixed", "sqrt"] = Field(
        default="fixed",
        description="fixed: lr as written; sqrt: lr is that of batch 4 and grows with the root of "
        "the batch (4 times the batch, twice the rate), epoch by epoch during the warm-up",
    )
    rule: Literal["exact", "reference"] = Field(
        default="exact",
        description="how predicted objects are matched with targets: best pairing (exact), or as "
        "the published scripts do it, faults included (reference)",
    )


# %% [markdown]
# A preset is a name for a few differences from the defaults.
#
# - `steady` is the defaults themselves.
# - `paper` is the recipe of the paper and of its official code: Adagrad at a constant 0.05, six epochs that train the full-size head alone by plain IoU, then the SLS loss on all five outputs. It computes in float32 and keeps the last epoch.
# - `quick` is a first look on two CPU cores: the full-size network on small images for a few epochs.
# - `a100` and `tpu` take four times the batch and twice the learning rate (the square root rule). Sixteen images can be shared by 1, 2, 4, 8 or 16 chips.

# %%
#| export
FIRST_DEFAULTS: dict[str, Any] = {  # of the first release, whose runs do not record all of these
    "choose": "val",
    "crop_size": 256,
    "crop": "resize",
    "target_share": 0.0,
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
    "a100": {"batch_size": 16, "lr": 0.002, "precision": "bf16"},
    "tpu": {"batch_size": 16, "lr": 0.002, "precision": "bf16"},
}


# %% [markdown]
# And all of it:

# %%
#| export
class Config(Settings, NetworkFields, AugmentFields, DataFields):
    "The settings of detection with MSHNet; see `configure` for how presets and flags join."

    presets: ClassVar[dict[str, dict[str, Any]]] = PRESETS
    first_look: ClassVar[str] = "quick"
    made_up: ClassVar[str] = "scenes"

    task: Literal["detect"] = Field(default="detect", description="what is trained")

    @classmethod
    def unnamed(cls) -> dict[str, Any]:
        "The defaults, except that a run keeps the name that the first release gave it."
        return super().unnamed() | FIRST_DEFAULTS

    def unused(self, written: Mapping[str, Any]) -> list[str]:
        "Settings without effect, and a warm-up that is as long as the run."
        lines = super().unused(written)
        if self.warm_epoch >= self.epochs - 1:
            lines.append(
                f"warm_epoch={self.warm_epoch} and epochs={self.epochs}: the run ends within the "
                "warm-up, so the fused head is never trained"
            )
        for name in ("head_bias", "fusion_start"):
            if name in written and self.weight_path:
                lines.append(
                    f"{name} is not used with a weight_path: the weights have their own start"
                )
        if "scenes" in written and self.dataset_dir:
            lines.append("scenes is not used with a dataset_dir")
        for name in ("train_list", "test_list"):
            if written.get(name) and not self.dataset_dir:
                lines.append(f"{name} is not used without a dataset_dir")
        return lines


# %% [markdown]
# Every refusal names the setting, the value and the remedy, all of them at once:

# %%
def refusal(**values):
    "The line that refuses these settings."
    try:
        Config(**values)
    except UserError as error:
        return str(error)


[
    refusal(epochs=0),
    refusal(crop_size=250),
    refusal(choose="best", lr="fast"),
    refusal(device="gpu"),
    refusal(epochs=True),
    refusal(epochz=3),
    refusal(mode="train"),
]

# %%
test_eq(
    _translate({"use_tpu": True, "num_cores": 8, "lr": None}), {"num_devices": 8, "device": "xla"}
)
test_eq(_translate({"use_tpu": False, "device": "cpu"}), {"device": "cpu"})
with expect_fail(UserError, contains="device='cpu' is written"):
    _translate({"use_tpu": True, "device": "cpu"})

# %%
#| hide
test_eq(
    refusal(epochs=0), "epochs=0 is not possible: write a whole number, at least 1, at most 1000000"
)
wrong = {"loc": ("epochz",), "type": "extra_forbidden", "input": 3}
test_eq(_explain(wrong, Config), unknown("epochz", list(Config.model_fields)))
assert "multiple of 16" in refusal(crop_size=250) and "did you mean epochs" in refusal(epochz=3)
assert set(PlaceFields.model_fields).isdisjoint(Config.recipe_names())
assert "retired" in unknown("mode", []) and expects("lr", Config).startswith("a number")
assert MachineFields.model_fields.keys() | SafetyFields.model_fields.keys() < (
    PlaceFields.model_fields.keys()
)
assert TrainingFields.model_fields.keys() | OptimizerFields.model_fields.keys() < (
    Settings.model_fields.keys()
)
assert {"loss", "crop", "scenes"}.isdisjoint(Settings.model_fields)
assert "loss" in NetworkFields.model_fields and "crop" in AugmentFields.model_fields
assert "dataset_dir" not in DataFields.model_fields


# %% [markdown]
# ## One schema, four doors
#
# Defaults, then the preset, then a JSON file, then what was written by hand (flags, or a notebook's variables): each overrules the one before, and the result is validated once. `None` means "not written". Without a data set and without a preset there is only one sensible thing to do, a quick look at synthetic scenes. And with `resume`, the settings of the run that goes on come before what is written.

# %%
#| export
def configure(
    written: Mapping[str, Any],  # settings by name; None: not written
    file: str = "",  # a JSON file of settings, such as a run's config.json
    run: str = "",  # a run, or a file in its folder, whose settings come before both
) -> Any:  # a `Config`, or the settings of another task
    "Join defaults < preset < the run's < file < written into checked settings."
    said = _translate(written)
    by_hand = {**_translate(read_settings(file)), **said}
    of_run = settings_of(run or resumed(by_hand))
    kind = settings_class(task_of(by_hand, of_run))
    recorded = kind.model_fields.keys() - {"task", "network"}  # by the first release too
    if not said and by_hand.keys() >= recorded:  # a run's config.json: as it is
        return kind(**by_hand)
    values = {**of_run, **by_hand}
    if "dataset_dir" in by_hand:  # lists belong to their data set
        values = {k: v for k, v in values.items() if not k.endswith("_list") or k in by_hand}
    preset = values.get("preset", "")
    if preset == "" and kind.first_look and not values.get("dataset_dir"):
        preset = values["preset"] = kind.first_look
    if preset not in ("", *kind.presets):  # of any type, from a file
        hint = did_you_mean(preset, list(kind.presets)) if isinstance(preset, str) else ""
        known = ", ".join(kind.presets) or "none"
        raise UserError(f"preset={shown(preset)} is not known{hint} (there are {known})")
    config = kind(**{**kind.presets.get(preset, {}), **values})
    for text in config.unused(by_hand):
        warnings.warn(text, stacklevel=2)
    return config


def resumed(written: Mapping[str, Any]) -> str:
    "The run that is to be resumed; empty: none."
    resume = written.get("resume", "")
    return resume if isinstance(resume, str) else ""


def task_of(
    written: Mapping[str, Any],
    of_run: Mapping[str, Any],  # the settings of the run that is resumed or scored; empty: none
) -> Any:
    "The task that is meant; UserError if the run is of another one."
    task = written.get("task", of_run.get("task", "detect"))
    if of_run and task != (there := of_run.get("task", "detect")):
        raise UserError(f"task={shown(task)}: the run is of task {there}; leave out --task")
    return task


# %% [markdown]
# The settings of a run are in its folder, whichever of its files is named. Its folder may have moved, and the machine it ran on may have been another: what was said of these is left behind.

# %%
#| export
OF_ITS_MACHINE = set(PlaceFields.model_fields) - {"preset", "dataset_dir", "weight_path"}


def settings_of(
    path: str,  # a checkpoint or a run's folder; empty: none
) -> dict[str, Any]:
    "The settings of a run, without those of its folder and its machine."
    start = os.path.expanduser(path)
    folder = start if os.path.isdir(start) else os.path.dirname(start)
    file = os.path.join(folder, "config.json")
    if not (folder or os.path.isfile(start)):  # a word such as pretrained, and no file here
        return {}
    if not os.path.isfile(file):  # unlike Path's: False for a name that cannot be
        return {}
    return {k: v for k, v in read_settings(file).items() if k not in OF_ITS_MACHINE}


# %% [markdown]
# A settings file is any JSON object of settings; the `config.json` that every run leaves is one. A run of the first release recorded fewer settings; those that it lacks had the values of `FIRST_DEFAULTS`. Other files may be given in its place: an image, a disk's worth of zeros, brackets nested so deep that the parser gives up. So a text is read up to a size that no honest one has, and all that can go wrong with its bytes ends in the same line. A list of names is read in the same way.

# %%
#| export
LARGEST_TEXT = 16 * 2**20  # bytes; a million names


def read_text(
    path: str | Path,
    what: str,  # it should be, such as "list of names"
) -> str:
    "The text of a file, without the mark that Windows puts before it; UserError if it is none."
    try:
        with open(path, "rb") as file:
            data = file.read(LARGEST_TEXT + 1)
        if len(data) > LARGEST_TEXT:
            raise ValueError(f"it has more than {LARGEST_TEXT // 2**20} MB")
        return data.decode("utf-8-sig")
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: not a readable {what} ({error})") from None


def read_json(
    path: str | Path,
) -> Any:
    "What a JSON file holds; UserError if it is none."
    text = read_text(path, "JSON file")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not a readable JSON file ({error})") from None


def read_record(path: Path) -> dict[str, Any]:
    "A JSON file that a run wrote; empty where there is none, or it is damaged."
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


# %%
#| export
def read_settings(
    file: str,  # path of a JSON file; empty: none
) -> dict[str, Any]:
    "The settings in a JSON file."
    if not file:
        return {}
    try:
        values = read_json(file)
    except UserError as error:
        raise UserError(f"config {error}") from None
    if not isinstance(values, dict):
        raise UserError(f'config {file}: write an object such as {{"epochs": 3}}')
    return of_first_release(values)


def of_first_release(values: dict[str, Any]) -> dict[str, Any]:
    "The settings of a run, with what the first release did not record; other settings unchanged."
    recorded = {"lr", "warm_epoch", "choose", "rule"} <= values.keys()
    return {**FIRST_DEFAULTS, **values} if recorded and "optimizer" not in values else values


# %% [markdown]
# A record may also be of a release that knew more or fewer settings, and is then read for what this one knows:

# %%
#| export
def settings_from(
    known: Mapping[str, Any],  # what a run or its checkpoint recorded
) -> Any:  # a `Config`, or the settings of another task
    "The settings of a run; UserError if they make no sense."
    kind = settings_class(known.get("task", "detect"))
    values = of_first_release(dict(known))
    return kind(**{name: value for name, value in values.items() if name in kind.model_fields})


# %%
test_eq(settings_from({"lr": 0.1, "of_a_newer_release": 1}).lr, 0.1)

# %% [markdown]
# A setting that will have no effect is reported: it usually means that something else was expected.

# %%
print(configure({}))

# %%
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    config = configure({"preset": "paper", "epochs": 3, "data_path": "sirst", "lr": None})
test_eq((config.epochs, config.choose, config.dataset_dir, config.lr), (3, "last", "sirst", 0.05))
test_eq(Config(**PRESETS["steady"]).recipe(), Config().recipe())
test_eq([str(w.message) for w in caught], config.unused({}))
config.unused({"scenes": 10})

# %% [markdown]
# A preset that does not exist, or a file that is none, is refused like any other value:

# %%
with expect_fail(UserError, contains="did you mean paper?"):
    configure({"preset": "papers"})
with expect_fail(UserError, contains="not a readable JSON file"):
    read_settings("no-such-file.json")
test_eq(settings_of(""), {})
with tempfile.TemporaryDirectory() as tmp:
    path = Path(tmp) / "config.json"
    path.write_text("[" * 100_000)
    with expect_fail(UserError, contains="maximum recursion depth"):
        read_json(path)
    path.write_bytes(b"\xef\xbb\xbf{}")
    test_eq(read_text(path, "JSON file"), "{}")
old = {"lr": 0.05, "warm_epoch": 5, "choose": "last", "rule": "exact"}
test_eq(of_first_release(old)["optimizer"], "adagrad")
test_eq(of_first_release({"lr": 0.1}), {"lr": 0.1})


# %% [markdown]
# A runner notebook writes its settings as plain variables, because that is what papermill can replace. Papermill itself accepts any name: `papermill -p epochz 3` defines a variable that nobody reads, and the run takes all of its usual epochs. So every plain variable of the notebook must be a setting.

# %%
#| export
def from_notebook(
    variables: Mapping[str, Any],  # the notebook's `globals()`
) -> Any:  # as `configure` returns
    "Read the settings of a runner from its plain variables; a name that is no setting is refused."
    shell = {"In", "Out", "exit", "quit", "PAPERMILL_INPUT_PATH", "PAPERMILL_OUTPUT_PATH"}
    plain = (str, int, float, bool, list, tuple, dict, type(None))
    written = {
        name: None if value == "" else value  # an empty text says nothing, like None
        for name, value in variables.items()
        if isinstance(value, plain) and not name.startswith("_") and name not in shell
    }
    given = {name: value for name, value in written.items() if value is not None}
    known = list(settings_class(task_of(given, settings_of(resumed(given)))).model_fields)
    strangers = [name for name in written if name not in {*known, *ALIASES, *SWITCHES}]
    if strangers:
        raise UserError("; ".join(unknown(name, known) for name in strangers))
    return configure(written)


# %%
test_eq((task_of({}, {}), resumed({"resume": 3})), ("detect", ""))
with expect_fail(UserError, contains="the run is of task detect"):
    task_of({"task": "other"}, {"epochs": 3})
test_eq(from_notebook({"epochs": 7, "lr": None, "_": 3, "json": json}).epochs, 7)
with expect_fail(UserError, contains="epochz is no setting; did you mean epochs?"):
    from_notebook({"epochz": 3})


# %% [markdown]
# ## The name of a run
#
# The default folder of a run comes from its recipe and its data, never from the clock. That is what lets the same command find its own interrupted run. Place settings are left out. So is `epochs` with a constant rate, where a longer run is the same run continued; a cosine ends with its run, so there another number of epochs is another run.

# %%
#| export
def run_name(
    config: Settings,
) -> str:  # such as "nuaa-sirst-1f0c2a9b"
    "Name of a run: the data set's name and eight digits that stand for the recipe."
    data = Path(config.dataset_dir).resolve().name if config.dataset_dir else config.made_up
    if config.task != "detect":  # whose runs were named before there were tasks
        data = f"{config.task}-{data}"
    usual = config.unnamed()
    recipe = {k: v for k, v in config.recipe().items() if v != usual[k]}
    if config.schedule == "constant":
        recipe.pop("epochs", None)
    text = json.dumps([data, config.weight_path, recipe], sort_keys=True)
    return f"{data}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


# %%
constant = {"schedule": "constant"}
test_eq(run_name(Config(epochs=3, device="cpu", **constant)), run_name(Config(**constant)))
assert run_name(Config(epochs=3)) != run_name(Config())
assert run_name(Config(seed=1)) != run_name(Config())
run_name(Config(dataset_dir="data/nuaa-sirst"))
