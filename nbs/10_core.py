# %% [markdown]
# # Settings: one checked Config
#
# > One `Config` holds every setting of a run: checked once, recorded beside the results, the same in a notebook, on the command line, in a file and in a preset.
#
# A run has about fifty settings, from the learning rate to the folder of its results. If one of them is mistyped and the program takes the default in silence, a GPU computes a day of the wrong experiment. If they are not recorded, nobody can repeat the run.
#
# We create settings, make mistakes, combine sources that contradict each other, and see which settings decide the name of a run.

# %%
#| hide
#| default_exp core
import tempfile

from mshnet.core import Config, configure, from_notebook, one_line, run_name, shown

# %%
#| export
import codecs
import contextlib
import copy
import difflib
import hashlib
import json
import os
import reprlib
import shlex
import warnings
from collections.abc import Callable, Iterator, Mapping
from numbers import Number
from pathlib import Path
from pkgutil import resolve_name as resolve
from types import ModuleType
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

# %% [markdown]
# ## A `Config` and its mistakes
#
# Every setting has a default and a description, which `mshnet train --help-all` prints, and every number has a range. A `Config` prints what differs from the defaults:

# %%
print(Config(dataset_dir="data/NUAA-SIRST", preset="a100", epochs=50))

# %% [markdown]
# A wrong name or value raises `UserError`. Its text is one line with the value and the remedy. It names all wrong settings at once (but only the preset, if that is wrong):

# %%
for wrong in ({"epochz": 3}, {"crop_size": 250, "choose": "best"}, {"device": "gpu", "lr": "fast"}):
    try:
        Config(**wrong)
    except ValueError as error:
        print(error)

# %% [markdown]
# ## Sources of settings
#
# Settings come from a preset (`--preset paper`), from a run that is resumed, from a file (`--config mine.json`), and from flags (`--epochs 3`) or Python variables. Without a data set and without a preset, the preset is `quick`, a trial run on synthetic scenes. Each source overrides those to its left:
#
# ```
# defaults  <  preset  <  the resumed run  <  file  <  flags or variables   ->   Config
# ```
#
# Here a preset, a file and a flag disagree. The preset decides the optimizer, the file the learning rate, the flag the epochs:

# %%
with tempfile.TemporaryDirectory() as folder:
    file = Path(folder, "mine.json")
    file.write_text('{"epochs": 30, "lr": 0.01}')
    config = configure({"preset": "paper", "epochs": 60}, str(file))
print("optimizer", config.optimizer, " lr", config.lr, " epochs", config.epochs)

# %% [markdown]
# ## Recipe and runtime settings
#
# A **recipe** setting changes the result: model, optimizer, batch, seed, sizes, precision. A **runtime** setting changes where and how it is computed: device, folders, threads, limits. Nearly all leave the result the same, up to rounding. A resumed run may change its runtime settings, and also `epochs` if its learning rate is constant.
#
# A few settings change the result and still count as runtime settings: `micro_batch` (batch norm averages over fewer images), `on_bad_image` (a skipped image is missing), and what a run starts from (`preset`, data, weights). Paths are among them because folders move. Hashes check that the data are the same.
#
# The default run folder is named after the recipe and the data, never after the clock. That is how the same command finds its own interrupted run. Of the runtime settings only data and starting weights are in the name. A cosine learning rate ends with its run, so a different number of epochs is a different run. With a constant learning rate `epochs` is left out of the name, because a longer run continues the same run.

# %%
for change in ({}, {"device": "cpu", "num_workers": 0}, {"epochs": 3}, {"seed": 1}):
    print(run_name(Config(**change)), change)

# %% [markdown]
# ## The machinery: the settings of every task
#
# Training and optimizer settings are the recipe that all tasks share. The runtime settings (`PlaceFields`) decide which device is used and where files are. They also decide what happens when a session ends, memory runs out or an image is damaged, because nobody may be there to ask. Whoever only uses settings can stop here; the rest is for adding one, or a task.

# %%
#| export
Count = Annotated[int, Field(ge=0, le=1_000_000)]  # of epochs, steps or samples
Positive = Annotated[int, Field(ge=1, le=1_000_000)]
Share = Annotated[float, Field(ge=0, le=1)]
OrAuto = Annotated[int, Field(ge=-1, le=1_000_000)]  # -1: chosen by the program


class Fields(BaseModel):
    "Settings; the text below each one is its description."

    model_config = ConfigDict(use_attribute_docstrings=True)


class TrainingFields(Fields):
    "Recipe settings of every training."

    epochs: Positive = 200
    "passes over the training data"
    batch_size: Positive = 4
    "samples per step, over all devices"
    precision: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    """arithmetic of the model; auto: bf16 where the chip has it, fp16 on NVIDIA GPUs of
    generation 7 (T4, V100), else fp32"""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    "seed of initial weights, order and augmentation"
    choose: Literal["last", "val", "test"] = "last"
    """checkpoint selection: the last epoch, the best on a validation split of the training list
    (val), or the best on the test list (as many papers do; that score is too high)"""
    val_fraction: Annotated[float, Field(ge=0.01, le=0.9)] = 0.2
    "fraction of the training list for choose=val"
    eval_every: Positive = 1
    "evaluate every N epochs, which also detects a collapsed prediction"
    patience: Count = 0
    """epochs without a better score on val after which training ends (early stopping, with
    choose=val); 0: never"""


class OptimizerFields(Fields):
    "Recipe settings of the optimizer and its learning rate."

    optimizer: Literal["adamw", "adam", "adagrad"] = "adamw"
    "optimizer"
    lr: Annotated[float, Field(gt=0, le=10)] = 0.001
    "learning rate"
    schedule: Literal["cosine", "constant"] = "cosine"
    "cosine: the learning rate falls to lr_end * lr at the last step; constant: it stays"
    lr_end: Share = 0.01
    "cosine: last learning rate as a fraction of lr"
    warmup_steps: OrAuto = -1
    """steps in which the learning rate grows from 0 to lr; -1: one epoch, with cosine at most a
    tenth of the run; 0: none"""
    weight_decay: Share = 0.01
    "weight decay: decoupled (adamw), or an L2 penalty (adam, adagrad)"
    clip_grad: Annotated[float, Field(ge=0)] = 1.0
    "largest gradient norm; 0: not clipped"
    ema: Annotated[float, Field(ge=0, lt=1)] = 0.999
    """decay of the averaged weights in a step (exponential moving average), which are evaluated
    and kept; 0: none"""


class PlaceFields(Fields):
    "Runtime settings: where and how a run computes; they may change when it is resumed."

    num_workers: Annotated[int, Field(ge=-1, le=256)] = -1
    "threads that prepare batches ahead; -1: none on a CPU, else one less than cores, at most 8"
    cache: Literal["auto", "host", "stream"] = "auto"
    """where decoded pixels are kept: in the host's memory (host), or in their files (stream);
    auto: in memory if they take at most half of the free memory"""
    deterministic: bool = False
    """only operations that repeat to the last bit on one type of machine, with one version of
    torch and one number of threads"""
    log_every: Positive = 20
    "steps between two progress lines"
    max_hours: Annotated[float, Field(ge=0, le=10_000)] = 0.0
    """save and stop after N hours; 0: shortly before a session of Colab or Kaggle ends, elsewhere
    never"""
    mirror_dir: str = ""
    "copy the run into this folder while it trains, as a backup; drive: MyDrive/mshnet, in Colab"
    micro_batch: Count = 0
    """samples computed at once; their gradients add up to a batch, and batch norm averages over
    them; 0: the whole batch"""
    on_bad_image: Literal["stop", "skip"] = "stop"
    """when an image, or the label or beginning of a clip, cannot be read: stop, or leave it out;
    eit and events always stop"""
    preset: str = ""
    "named recipe to start from; empty: the defaults"
    dataset_dir: str = ""
    """data set: its folder; of images also its .zip archive or a name to download (NUAA-SIRST,
    IRSTD-1k, NUDT-SIRST); empty: synthetic data, with the preset quick"""
    weight_path: str = ""
    "weights: a file, a run folder, or pretrained (those that come with mshnet)"
    output_dir: str = ""
    "run folder, or folder of the results"
    resume: str = ""
    "run folder to resume, or its last.pt"
    device: Annotated[str, Field(pattern=r"^(auto|cpu|mps|xla|cuda(:\d+)?)$")] = "auto"
    "auto, cpu, cuda, cuda:N, mps or xla (TPU)"
    num_devices: Annotated[int, Field(ge=0, le=65_536)] = 0
    "TPU chips, or GPUs with a process each, that share a batch; 0: one GPU, or all TPU chips"


# %% [markdown]
# `Settings` joins these classes, and puts the given values on top of the preset. A task's class adds the rest. `Settings` is frozen and rejects unknown names. It also rejects `True` for a number, which Python would take as 1, and texts that no file can have as its name, because most texts here are paths. `recipe` returns only the settings that change the result:

# %%
config = Config(preset="paper", lr=0.1, device="cpu")
print("lr", config.lr, "default", Config.defaults()["lr"], "optimizer", config.optimizer)
print("in the recipe:", {name: name in config.recipe() for name in ("lr", "device")})


# %%
#| export
class Settings(PlaceFields, OptimizerFields, TrainingFields):
    "The settings of every task; a task's own class adds its recipe. UserError if one is wrong."

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    presets: ClassVar[dict[str, dict[str, Any]]] = {}  # named differences from the defaults
    retired: ClassVar[dict[str, str]] = {}  # presets of before, and the flags that replace them
    gone: ClassVar[dict[str, Any]] = {}  # settings of before, with the value that all runs have now
    first_look: ClassVar[str] = ""  # the preset if neither data nor a preset are given
    synthetic_name: ClassVar[str] = "synthetic"  # name of the data if no data set is named
    name_defaults: ClassVar[dict[str, Any]] = {}  # instead of the defaults: left out of run names
    flags: ClassVar[dict[str, list[str]]] = {}  # by command: the flags that only this task has
    smaller: ClassVar[str] = "model"  # what to make smaller if one sample is too much for a memory

    task: str = "detect"
    "what is trained"

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**self._with_preset(values))
        except ValidationError as error:
            raise UserError("; ".join(_explain(error, type(self)))) from None

    @classmethod
    def _with_preset(cls, written: dict[str, Any]) -> dict[str, Any]:
        "What is written, on top of its preset; UserError if the preset is unknown."
        preset = written.get("preset", "" if written.get("dataset_dir") else cls.first_look)
        for name, usual in cls.gone.items():
            if (value := written.pop(name, usual)) != usual:
                why = RETIRED.get(name, "is retired")
                raise UserError(f"{name}={shown(value)} is not possible: {name} {why}")
        if not (isinstance(preset, str) and is_record(written)):  # in a record it is only a name
            if preset in (*cls.retired,):
                raise UserError(f"preset={preset} is retired: use {cls.retired[preset]}")
            if preset not in ("", *cls.presets):
                hint, known = did_you_mean(preset, [*cls.presets]), ", ".join(cls.presets) or "none"
                raise UserError(f"preset={shown(preset)} is not known{hint} (there are {known})")
        return {**cls.presets.get(preset, {}), **written, "preset": preset}

    @field_validator("*", mode="before")
    @classmethod
    def reject_impossible_values(cls, value: Any, info: ValidationInfo) -> Any:
        "Reject True as a number, and a text that no file can have as its name; take a Path."
        field = cls.model_fields[str(info.field_name)]
        value = os.fspath(value) if isinstance(value, os.PathLike) else value
        if isinstance(value, bool) and field.annotation is not bool:
            raise ValueError("a value other than true and false")
        if isinstance(value, str) and field.annotation is str and not _is_possible_path(value):
            raise ValueError("a name that a file or folder can have")
        return value

    def __str__(self) -> str:
        "The settings that differ from their defaults, one a line, also those of the preset."
        usual = self.defaults()
        lines = [f"{name} = {value!r}" for name, value in self if value != usual[name]]
        return "\n".join([*lines, "all other settings: the defaults"])

    @classmethod
    def with_default(cls, name: str, default: Any) -> Any:
        "A setting as it is here, with another default, for the class of a task."
        field = copy.copy(cls.model_fields[name])
        field.default = default
        return field

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        "The default of each setting, without any preset."
        return {name: field.default for name, field in cls.model_fields.items()}

    def recipe(self) -> dict[str, Any]:
        "The settings that change the result: all but the runtime settings."
        return {name: value for name, value in self if name not in PlaceFields.model_fields}

    @classmethod
    def unrecorded(cls, record: Mapping[str, Any]) -> dict[str, Any]:
        "What earlier releases of this task used and did not record."
        return {}

    def unused(self, written: Mapping[str, Any]) -> list[str]:
        "One line for each setting that the user wrote and that has no effect, with the reason."
        lines = []
        if "lr_end" in written and self.schedule != "cosine":
            lines.append(f"lr_end is not used with schedule={self.schedule}")
        if "val_fraction" in written and self.choose != "val":
            lines.append(f"val_fraction is not used with choose={self.choose}")
        if "cache" in written and self.task != "detect":
            lines.append(f"cache is not used by task {self.task}")
        return lines


def _is_possible_path(text: str) -> bool:
    "Whether a file or a folder can have this name, on any of our systems."
    longest = max((len(os.fsencode(part)) for part in Path(text).parts), default=0)
    known_user = not os.path.expanduser(text).startswith("~")
    return len(text) <= 1000 and longest <= 255 and min(text, default=" ") >= " " and known_user


# %% [markdown]
# ### Tasks
#
# The settings of detection, `Config`, are the first example of such a class ([recipe](14_recipe.ipynb)). `task` is a setting like any other, but it is read first, because its class validates all others. The table names the classes as text, so nothing is imported for a task that is not used. Your own task needs one line, `TASKS["mine"] = ("my_module:MySettings", "my_module:MyTask")` ([guide](guides/task.ipynb)).

# %%
#| export
TASKS: dict[str, tuple[str, str]] = {  # its settings and its class, each as "module:name"
    "detect": ("mshnet.recipe:Config", "mshnet.detection:Detection"),
    "eit": ("mshnet.eit.eit_config:EitConfig", "mshnet.eit.reconstruction:Eit"),
    "events": ("mshnet.events.events_config:EventsConfig", "mshnet.events.recognition:Events"),
    "signs": ("mshnet.signs.signs_config:SignsConfig", "mshnet.signs.signing:Signs"),
}


def __getattr__(name: str) -> Any:
    "`Config`, the settings of detection: imported when it is asked for."
    if name == "Config":
        return resolve(TASKS["detect"][0])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def settings_class(task: Any) -> type[Settings]:  # a name in TASKS; of any type, from a file
    "The settings of a task; UserError if the task is unknown."
    if not isinstance(task, str) or task not in TASKS:
        hint = did_you_mean(task, [*TASKS])
        raise UserError(f"task={shown(task)} is not known{hint} (there are {', '.join(TASKS)})")
    return resolve(TASKS[task][0])  # type: ignore[no-any-return]


def task_of(written: Mapping[str, Any], of_run: Mapping[str, Any]) -> Any:
    "The name of the task; UserError if the run (empty: none) has a different one."
    task = written.get("task", of_run.get("task", "detect"))
    if of_run and task != (there := of_run.get("task", "detect")):
        raise UserError(f"task={shown(task)}: the run is of task {there}; leave out --task")
    return task


# %% [markdown]
# ### From all sources to one `Config`
#
# `configure` collects the settings of all sources and hands them to the class of the task, which validates them once. In the code `of_run` are the settings of the run to resume, `read` those of the file, and `flags` those that the user wrote. A setting that will have no effect is reported, because whoever passed it probably expected one. If the file is the record of a run, it holds all settings, so a preset beside it has no effect either. Some names known from guides, such as `data_path`, work, too. The example has a setting without effect, such a name, and a preset beside a record:

# %%
catch = warnings.catch_warnings(record=True, action="always")
with catch as caught, tempfile.TemporaryDirectory() as folder:
    config = from_notebook({"preset": "paper", "val_fraction": 0.1, "data_path": "sirst"})
    Path(folder, "config.json").write_text(config.model_dump_json())  # the record of a run
    same = configure({"preset": "quick"}, f"{folder}/config.json") == config
print("data set:", config.dataset_dir, "  from its record the same settings:", same)
print(*(warning.message for warning in caught), sep="\n")


# %%
#| export
def _translate(written: Mapping[str, Any]) -> dict[str, Any]:
    "What is written, by the names of today; UserError if two settings contradict each other."
    values: dict[str, Any] = {}
    for name, value in written.items():
        today = ALIASES.get(name, name)
        if value is not None and str(values.setdefault(today, value)) != str(value):
            there = f"{today}={shown(values[today])}"
            raise UserError(f"{name}={shown(value)}: {there} is given as well; use one of them")
    return values


def configure(
    written: Mapping[str, Any],  # settings by name; None: not set
    file: str = "",  # a JSON file of settings, such as a run's config.json
    trained: Mapping[str, Any] | None = None,  # settings that weights were trained with
) -> Any:  # a `Config`, or the settings of another task
    """The settings of a run, from what its user set, a file and an earlier run.

    `written` overrides the file, and the file overrides the earlier run: `trained`, or the run that
    `resume` names (its recipe and data, not its folder and machine). Values may be text, and names
    those of guides (ALIASES). Warns of settings without effect.
    Raises UserError for a mistake, or a file that cannot be read.
    """
    flags, read = map(_translate, (written, read_settings(file)))
    repeated = is_record(read)
    of_run = trained or settings_of({**read, **flags}.get("resume"))
    asked = [flags] if repeated else [flags, read]  # the preset of a record is its own
    presets = [part.pop("preset", "") for part in asked] if of_run or repeated else []
    if any(presets):
        kept = "weights keep the settings of their run" if trained else "a run keeps its settings"
        text = f"preset is not used: {kept}; set those to change, such as batch_size"
        warnings.warn(text, stacklevel=2)
    by_hand = {**read, **flags}
    kind = settings_class(task_of(by_hand, of_run))
    if trained:  # by a newer release perhaps
        of_run = {k: v for k, v in of_run.items() if k in kind.model_fields}
    values = {**of_run, **by_hand}
    folders = [os.path.expanduser(str(v.get("dataset_dir") or "")) for v in (values, of_run)]
    if trained and len({*map(os.path.abspath, folders)}) > 1:  # its lists are of another data set
        held = by_hand.keys() | {k for k in values if os.path.isfile(f"{folders[0]}/{values[k]}")}
        if len({Path(f.lower().removesuffix(".zip")).name for f in folders}) == 1:
            shipped = resolve("mshnet.fetch:shipped_lists")()
            held |= {k for k in values if k.endswith("_list") and values[k] in shipped}
        values = {k: v for k, v in values.items() if not k.endswith("_list") or k in held}
        if (own := of_run.get("test_list")) and "test_list" not in held:
            text = f"the run's own test_list={shown(own)} is not used: it is not in {folders[0]}"
            warnings.warn(f"{text}; name a list with --test-list", stacklevel=2)
    config = kind(**values)
    for text in config.unused(flags if repeated else by_hand):
        warnings.warn(text, stacklevel=2)
    return config


ALIASES = {
    "data_path": "dataset_dir",
    "data_dir": "dataset_dir",
    "global_batch_size": "batch_size",
    "num_cores": "num_devices",
    "global_seed": "seed",
    "results_dir": "output_dir",
    "samplingsteps": "sampling_steps",
}

# %% [markdown]
# A file of settings is a JSON object. Every run leaves one, `config.json` in its folder. If the user names a run to resume, or the weights in a run folder, the settings are read from the `config.json` of this folder, whichever file of it is named; without this file they are read from the checkpoint. The run may have moved, or the machine may be different, so the settings of its folder and its machine are left out. A record of a newer release may hold settings that this release lacks; `settings_from` skips them.
#
# A notebook of `nbs/run` sets its settings as plain variables, because papermill can replace those. Papermill itself accepts any name: `papermill -p epochz 3` defines a variable that nobody reads, and the run takes all of its usual epochs. Therefore every plain variable of such a notebook must be a setting.

# %%
#| export
OF_ITS_MACHINE = set(PlaceFields.model_fields) - {"preset", "dataset_dir", "weight_path"}


def read_settings(file: str) -> dict[str, Any]:
    "The settings in a JSON file, none for an empty path; UserError if it holds no object."
    values = read_json(os.path.expanduser(file)) if file else {}
    if not isinstance(values, dict):
        raise UserError(f'{file}: use an object such as {{"epochs": 3}}')
    return of_earlier_release(values)


def settings_of(path: Any) -> dict[str, Any]:  # a run folder or checkpoint; other types: none
    "The settings of a run, without those of its folder and its machine; empty: none are there."
    start = os.path.expanduser(path) if isinstance(path, str | os.PathLike) else ""
    folder = start if os.path.isdir(start) else os.path.dirname(start)
    file, last = (os.path.join(folder, name) for name in ("config.json", "last.pt"))
    named = folder or os.path.isfile(start)  # not a word such as pretrained, and no file here
    found = read_settings(file) if named and os.path.isfile(file) else {}  # False for any bad name
    if named and not found and (start == folder or os.path.basename(start) == "last.pt"):
        found = resolve("mshnet.weights:recorded")(last)
    return {k: v for k, v in found.items() if k not in OF_ITS_MACHINE}


_ALWAYS_RECORDED = {
    *["seed", "choose", "lr", "eval_every", "val_fraction", "clip_grad", "weight_decay"]
}


def is_record(values: Mapping[str, Any]) -> bool:
    "Whether a run of a task recorded these settings: not a user's few, not another program's."
    task = values.get("task", "detect")
    return isinstance(task, str) and task in TASKS and values.keys() >= _ALWAYS_RECORDED


def of_earlier_release(values: dict[str, Any]) -> dict[str, Any]:
    "The settings of a run of an earlier release by the names of today; others as they are."
    if not is_record(values):
        return values
    kind = settings_class(values.get("task", "detect"))
    dropped = RETIRED.keys() - kind.gone.keys() - kind.model_fields.keys()  # the task judges these
    known = {n: v for n, v in values.items() if n not in dropped and (n, v) != ("cache", "device")}
    return {**kind.unrecorded(known), **known}


def settings_from(known: Mapping[str, Any]) -> Any:  # a `Config`, or one of another task
    "The settings of a run from the record of it or of its checkpoint; UserError if impossible."
    kind = settings_class(known.get("task", "detect"))
    values = of_earlier_release(dict(known))
    names = kind.model_fields.keys() | kind.gone.keys()
    return kind(**kind.defaults() | {n: v for n, v in values.items() if n in names})


def from_notebook(variables: Mapping[str, Any]) -> Any:  # as `configure` returns
    "Read the settings of a notebook from its `globals()`; UserError for an unknown name."
    shell = {"In", "Out", "exit", "quit", "PAPERMILL_INPUT_PATH", "PAPERMILL_OUTPUT_PATH"}
    plain = (str, int, float, bool, list, tuple, dict)
    given = {
        name: value
        for name, value in variables.items()
        if isinstance(value, (*plain, bytes, os.PathLike, Number))  # numbers: of numpy, too
        and not (name.startswith("_") or name in shell or value == "")
    }
    task = task_of(given, settings_of(given.get("resume")))
    known = [*settings_class(task).model_fields, *ALIASES]
    own = "; if it is a variable of your own, `del` it or begin its name with _"
    strangers = [name for name in given if name not in known and isinstance(given[name], plain)]
    if strangers:
        lines = [(name, unknown(name, known, own)) for name in strangers]
        kept = {n: "" if x.endswith(own) else f" (then also run `del {n}`)" for n, x in lines}
        raise UserError("; ".join(line + kept[name] for name, line in lines))
    for name in variables.keys() & {*known} - given.keys():
        value = variables[name]
        if not (value is None or isinstance(value, str | ModuleType) or callable(value)):
            raise UserError(f"{name}={shown(value)}: use a number, a text, True or False{own}")
    return configure({name: value for name, value in given.items() if name in known})


def run_name(config: Settings) -> str:  # such as "nuaa-sirst-1f0c2a9b"
    "Name of a run: the data set's name and eight digits of a hash of the recipe."
    data = Path(config.dataset_dir).resolve().name if config.dataset_dir else config.synthetic_name
    if config.task != "detect":  # runs of detect got their names before there were tasks
        data = f"{config.task}-{data}"
    usual = config.defaults() | config.name_defaults
    recipe = {k: v for k, v in config.recipe().items() if v != usual[k]}
    if config.schedule == "constant":
        recipe.pop("epochs", None)
    text = json.dumps([data, config.weight_path, recipe], sort_keys=True)
    return f"{data}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


# %% [markdown]
# ### Errors of one line
#
# `UserError` marks mistakes of the user. The command line prints the line and exits with status 2; a notebook shows the line instead of forty frames of our code. For an unknown name the error suggests the nearest known one.
#
# A value may come from a damaged file, with line breaks, with characters that move a terminal's cursor, or with a million letters. `shown` shortens a value, and `one_line` keeps every error one printable line: it escapes control characters and leaves out the middle of a long text:

# %%
print(one_line("a line\nbreak, and " + 500 * "very " + "long", 60))


# %%
#| export
class UserError(ValueError):
    "A mistake that the user can correct: its text is one line with the value and the remedy."

    def __init__(self, text: str) -> None:
        super().__init__(one_line(text))

    def _render_traceback_(self) -> list[str]:
        "The text that IPython shows in place of a traceback."
        return [f"UserError: {self}"]


STOPPED = "stopped; run the same command again to resume"  # the last line of an interrupted run
TIME_OVER = 75  # the status of a run whose time was over: "try again later" in sysexits.h


@contextlib.contextmanager
def as_user_error() -> Iterator[None]:
    "Turn a ValueError into a UserError; for the network, the loss and the scores on a user's file."
    try:
        yield
    except ValueError as error:
        raise UserError(str(error)) from None


def _explain(error: ValidationError, settings: type[Settings]) -> list[str]:
    "One line for each wrong setting: its value, and what to write instead."
    known, lines = settings.model_fields, dict[str, str]()
    for each in error.errors():
        name = str(each["loc"][0] if each["loc"] else each["input"])  # a name that is not Unicode
        if name in known:
            start = f"{name}={shown(each['input'])} is not possible: use"
            words = _what_to_write(each["type"], each["msg"], settings, name)
            lines[name] = f"{lines[name]} or {words}" if name in lines else f"{start} {words}"
        else:
            lines[name] = unknown(name, [*known])
    return [*lines.values()]


def _what_to_write(kind: str, message: str, settings: type[Settings], name: str) -> str:
    "The words of pydantic, such as `a value less than or equal to 10`."
    field = settings.model_fields[name]
    form = any(getattr(rule, "pattern", None) for rule in field.metadata)
    if kind == "string_pattern_mismatch" or (form and kind == "string_type"):
        return field.description or "a text of the form that it has"
    text = message.removeprefix("Input should be ").removeprefix("Value error, ")
    if text.startswith("a valid"):  # without the details of the parser
        text = text.partition(", ")[0].replace("a valid boolean", "true or false")
    text = f"a value {text}" if text.startswith(("greater", "less")) else text
    return f"{text} (papermill: -r)" if kind == "string_type" else text


def unknown(name: str, known: list[str], otherwise: str = "") -> str:
    "The error line for an unknown or retired setting; its end is `otherwise` if none is close."
    if name in RETIRED:
        return f"{name} {RETIRED[name]}"
    return f"unknown setting '{name}'{did_you_mean(name, known) or otherwise}"


def did_you_mean(value: Any, known: list[str]) -> str:  # "; did you mean 'X'?"
    "The end of an error line about an unknown word; empty if none of those known is close."
    word = value if isinstance(value, str) else ""
    longer = [name for name in known if word and name.startswith(word)]
    close = longer or difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def one_line(text: str, most: int = 2000) -> str:  # letters, before any are escaped
    "A text as one line that can be printed."
    if len(text) > most:
        text = f"{text[: most // 2]} ... {text[-(most // 2) :]}"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shown(value: Any) -> str:
    "A value of any type and size for an error line, shortened; in quotes if it is not one word."
    if isinstance(value, str) and value.isprintable() and value.split() == [value[:200]]:
        return value
    short = reprlib.Repr()
    short.maxstring = short.maxother = short.maxlong = 200
    with contextlib.suppress(ValueError):  # a whole number of more than 4,300 digits
        return short.repr(value)
    return "a number of thousands of digits"


def reason(error: object) -> str:
    "Why something failed, in one line: the system's words, the error's first line, or its type."
    lines = filter(None, map(str.strip, str(error).splitlines()))
    return getattr(error, "strerror", None) or next(lines, type(error).__name__).rstrip(":")


def quoted(path: str | os.PathLike[str]) -> str:
    "A word of a command as a shell takes it."
    return shlex.quote(os.fspath(path))


def counted(count: int, what: str) -> str:
    "A number of things, such as 1 frame and 2 frames."
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


# Flags of the official script, of guides and of earlier releases that mean nothing today
RETIRED = {
    "mode": "is retired: use `mshnet train` or `mshnet test`",
    "multi_gpus": "is retired: use --num-devices N",
    "if_checkpoint": "is retired: run the same command again to resume; --resume names another run",
    "ckpt_every": "is retired: a checkpoint is written after every epoch",
    "checkpoint": "is retired: use --weight-path FILE",
    "analyze_temporal": "is retired: `mshnet predict` writes class probabilities over time",
    "lr_rule": "is retired: use --lr; with 4 times the batch twice the learning rate",
    "recursive": "is retired: name a pattern, such as 'DIR/**'",
    "compile": "is retired: leave it out; it was not faster, and on an H200 its loss was NaN",
    "use_tpu": "is retired: use --device xla",
    "pack": "is retired: `tar -czf RUN.tar.gz RUN` makes one file of a run",
    "backbone_weights": "is retired: use --weight-path FILE; the guide on signs makes this file",
    "method": "is retired: images are sampled by diffusion; for one use `--samples 1`",
    "frequency_axis": "is retired: the spectrum goes over the channels of a frame, as published",
    "flip": "is retired (of sign language): leave it out, because signs differ by their hand",
    "vocabulary": "is retired: leave it out; the glosses are those of the training list",
    "hot_pixels": "is retired: leave it out; a simulated sensor has two",
    "time_jitter": "is retired: leave it out; simulated times have a deviation of 0.5 ms",
}
# Retired settings, with the value of runs that still resume
RETIRED_RECIPE = dict(lr_rule="fixed", flip=False, vocabulary="", hot_pixels=2, time_jitter="0.5ms")

# %% [markdown]
# ### Damaged files
#
# Where we expect settings or a list of names, a user may name an image, a file of zeros as large as a disk, or brackets nested so deep that the parser fails. We read at most 16 MB of a text, more than any real list has. Every fault of its bytes raises the same error of one line. A record that a run wrote for people is different: if it is damaged, it counts as missing.

# %%
#| export
_LARGEST_TEXT = 16 * 2**20  # bytes; a million names


def read_text(path: str | Path, what: str, parse: Callable[[str], Any] = str) -> Any:
    """The text of a file in UTF-8, or in UTF-16 with the byte order mark of Windows; parsed.

    UserError that it is no readable `what`, such as a list of names.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(_LARGEST_TEXT + 1)
        if len(data) > _LARGEST_TEXT:
            raise ValueError(f"it has more than {_LARGEST_TEXT // 2**20} MB")
        wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        text = data.decode("utf-16" if wide else "utf-8-sig")
        if "\0" in text:  # of UTF-16 without the mark, or UTF-32
            raise UnicodeError
        return parse(text)
    except (OSError, ValueError, RecursionError) as error:
        foreign = "it is not UTF-8; save a text of another encoding, such as GBK, as UTF-8"
        why = foreign if isinstance(error, UnicodeError) else error
        raise UserError(f"{path}: not a readable {what} ({why})") from None


def read_json(path: str | Path) -> Any:
    "The content of a JSON file; UserError if it is unreadable."
    return read_text(path, "JSON file", json.loads)


def read_record(path: Path) -> dict[str, Any]:
    "A JSON file that a run wrote; empty if it is missing or damaged."
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}

# %% [markdown]
# ## Questions
#
# 1. A run was interrupted on a GPU. May it be resumed on a CPU, and with twice the batch?
#    <details><summary>Answer</summary>On a CPU, yes: <code>device</code> is a runtime setting, and the name of the run stays. Twice the batch changes the result. The name is different, so it is a different run. With <code>--resume</code>, or with the same <code>--output-dir</code>, it is refused.</details>
