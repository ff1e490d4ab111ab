# %% [markdown]
# # The command line
#
# > `mshnet train | test | predict | data | doctor | bench | compare | export`: the settings as flags, and every mistake in one line with its remedy.
#
# A flag that is written down twice, in the parser and in the settings, has two defaults, and one day they differ. So no flag of a run is written down here: names, types and most texts are those of `Config`, or of the settings of a different task. `--batch-size 8` is `Config(batch_size=8)`.

# %%
#| hide
#| default_exp cli
import io

from mshnet.cli import make_parser, parse

# %%
#| export
import argparse
import contextlib
import errno
import os
import re
import sys
import textwrap
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, get_args

from mshnet import __version__
from mshnet.core import (
    ALIASES,
    OF_ITS_MACHINE,
    RETIRED,
    STOPPED,
    TASKS,
    TIME_OVER,
    Settings,
    UserError,
    configure,
    read_settings,
    resolve,
    settings_class,
    settings_of,
    task_of,
    unknown,
)
from mshnet.places import first_process, megabytes
from mshnet.recipe import Config

# %% [markdown]
# ## From words to settings
#
# `parse` finds the command and its settings, still as text. `configure` checks them all at once, in the same way as those of a file, and adds the other settings. A flag overrides the preset, and the preset overrides the defaults:

# %%
print(*parse(["train", "sirst", "--batch-size", "8"])[:2])
for words in ("train", "train --preset tpu", "train --preset tpu --batch-size 8"):
    config = configure(parse(words.split())[1])
    print(f"{words:35} batch_size {config.batch_size:2}, lr {config.lr}")

# %% [markdown]
# ## Help
#
# A run has about fifty settings, and most of them keep their defaults. So the help has two levels. `--help` shows the common flags, `--help-all` all of them. The defaults in parentheses come from the settings too. This is the beginning of the flags:

# %%
with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
    make_parser(full=False).parse_args(["train", "--help"])
print(*printed.getvalue().splitlines()[12:27], sep="\n")

# %% [markdown]
# ## The machinery: commands and parser
#
# torch takes seconds to import, and a mistyped flag should not cost them. This module imports neither torch nor numpy, and each command imports what it needs when it runs. `train` accepts every setting. Each other command accepts a list of settings, and a task can add to it (`Settings.flags`).
#
# Each command takes its main argument without a flag, too: the data, the weights, the inputs. Options such as `--repeats` or `--tile` are not settings: no run records them.

# %%
#| export
_EVALUATE = "weight_path output_dir dataset_dir test_list batch_size num_workers device precision"
_FLAGS = {  # the settings that are flags; of `train`: all
    "test": f"task {_EVALUATE} preset num_devices on_bad_image",
    "predict": "task weight_path output_dir device precision",
    "data": "task dataset_dir train_list test_list seed on_bad_image",
    "doctor": "task dataset_dir train_list test_list device precision num_devices preset resume "
    "output_dir mirror_dir max_hours",
    "bench": f"{_EVALUATE} preset train_list scenes base_size crop_size mirrored rule seed choose "
    "on_bad_image cache deterministic",
    "export": "weight_path",
}
COMMANDS = {
    "train": "train and evaluate a model; run the same command again to resume",
    "test": "evaluate weights on the test list",
    "predict": "find targets in images and videos; the same command again skips what is finished",
    "data": "report what a data set holds and what is wrong with it",
    "doctor": "check this machine, and report what is wrong and what to do about it",
    "bench": "measure training, evaluation and memory on this device",
    "export": "write weights as ONNX (pip install onnx onnxruntime onnxscript) or safetensors",
    "compare": "compare runs: scores, protocols, and Pd by size",
}
_DATA = ("folder", "DIR", "?", "the data set: the same as --dataset-dir DIR")
_ARGUMENTS = {  # name, metavar, nargs, help
    "train": _DATA,
    "test": ("weights", "RUN", "?", "the weights: the same as --weight-path RUN"),
    "predict": ("inputs", "INPUT", "*", 'files, folders, or a pattern in quotes: "a/*.png"'),
    "data": ("folder", "DIR", "?", "folder of the data set, .zip, or a name such as NUAA-SIRST"),
    "doctor": _DATA,
    "bench": _DATA,
    "export": ("weights", "RUN", "?", "the weights, required: a run folder, a file, or pretrained"),
    "compare": ("runs", "RUN", "+", "folders of runs or scores, of the same test images and rule"),
}
_OPTIONS: dict[str, dict[str, tuple[type, str]]] = {  # a bool is a switch
    "data": {
        "split": (float, "write both lists; NUMBER: the fraction of images for training"),
        "write": (str, "folder to write simulated data to (tasks eit and signs)"),
    },
    "bench": {
        "repeats": (int, "repetitions of each measurement; the median counts (default 5)"),
        "images": (int, "images of each repetition (default 32)"),
    },
    "export": {
        "output": (str, "FILE.onnx or FILE.safetensors (default: ONNX beside the weights)"),
        "int8": (str, "folder of images: write ONNX in 8-bit integers, calibrated on them"),
    },
    "predict": {
        "tile": (int, "longest side that is predicted in one piece, in pixels (default 1024)"),
        "threshold": (float, "pixels above this probability are found (default: of the weights)"),
        "min_area": (int, "drop detections of fewer than N pixels (default 1)"),
        "tracks": (bool, "link detections over a clip: tracks.csv (pip install av trackpy)"),
        "save": (str, "images to write: masks,overlays (default), one of them, or none"),
    },
}
_EXAMPLES = """\
examples:
  mshnet train --epochs 3                  a trial run on synthetic scenes
  mshnet train DIR                         train on your data; again: resume
  mshnet test runs/NAME                    evaluate a run
  mshnet predict image.png                 find targets with the included weights
  mshnet train --task eit --help           another task ({tasks})

status:
  0  done      1  a file was skipped, or doctor warns      2  an error; its line says what to do
  75 time limit (--max-hours): run it again to resume     128+N  ended by signal N (130: Ctrl-C)
"""

_COMMON = (  # shown by --help, with those that a task calls daily
    "preset task dataset_dir weight_path output_dir resume epochs batch_size lr choose seed "
    "device num_devices max_hours mirror_dir"
)
_COMMON_OF_TEST = (
    "task dataset_dir test_list weight_path output_dir base_size rule batch_size device num_devices"
)
_TEXTS = {  # of settings that each command uses in its own way
    "weight_path train": "weights to start from: a run folder, or a file, or pretrained",
    "weight_path test": "weights to evaluate: a run folder, or a file (default: pretrained)",
    "dataset_dir test": "folder, .zip or name of a data set (default: the run's, else synthetic)",
    "dataset_dir data": "the data set: the same as DIR; without it, synthetic data",
    "seed data": "seed of the lists that --split writes, and of simulated data (default 0)",
    "weight_path predict": "weights to predict with: a run folder, or a file (default: pretrained)",
    "num_devices test": "TPU chips that share a batch; for several GPUs start it with torchrun",
    "num_devices predict": "processes that share the files, on a GPU each or on CPU cores",
    "output_dir train": "run folder (default: named after the settings, in runs/)",
    "weight_path bench": "weights whose evaluation is timed: a run folder, a file, or pretrained",
    "output_dir test": "folder of the scores (default: none are written)",
    "output_dir predict": "folder of the results (default: predictions/NAME)",
    "output_dir bench": "folder of the measurements (default: runs/bench)",
}
_PRESETS = {  # by task and name; of others, what they change
    "detect paper": "the original recipe: 400 epochs, Adagrad, SLS loss, crops of 256",
    "detect quick": "a trial: 9 epochs at 128x128 pixels; used without a data set",
    "detect a100": "batches of 16 and twice the learning rate, for a large GPU",
    "detect tpu": "the same, for a TPU",
    "eit quick": "a trial: 256 simulated tanks, 4 epochs",
    "eit paper": "the published network, for a GPU: 128x128 pixels, batches of 16",
    "eit tpu": "the published network, for a TPU: bf16, batches of 64",
    "events quick": "a trial: 600 simulated recordings, 8 epochs",
    "events sensor-128": "our recipe for sensors of 128x128 pixels",
    "events paper": "the published network for N-MNIST",
    "events paper-128": "the published network for sensors of 128x128 pixels",
    "signs quick": "a trial: a small TFNet on simulated videos, 6 epochs",
    "signs paper": "TFNet as published, for videos and a GPU",
}


class _Parser(argparse.ArgumentParser):
    "argparse without abbreviations, which a new flag could break, and with errors of one line."

    def __init__(self, **options: Any) -> None:
        form = argparse.RawDescriptionHelpFormatter
        super().__init__(allow_abbrev=False, formatter_class=form, **options)

    def error(self, message: str) -> NoReturn:
        "Raise UserError for a mistake in the flags."
        raise UserError(f"{message}; see {self.prog} --help")


def _metavar(name: str, kind: Any) -> str:
    "What a flag expects, in capitals or as a list of its values."
    values = ("true", "false") if kind is bool else get_args(kind)
    if values and not isinstance(values[0], str):  # a number, or a word
        values = ("N", *get_args(values[1]))
    if values and name != "task":  # each task has settings of its own
        return "{" + ",".join(values) + "}"
    word = {"list": "FILE", "path": "FILE", "output": "FILE", "resume": "RUN"}
    word |= {"write": "DIR", "int8": "DIR"}
    last = name.rpartition("_")[2]
    return {int: "N", float: "NUMBER"}.get(kind, word.get(last, last.upper()))


def _text_of(name: str, settings: type[Settings], command: str) -> str:
    "The help of a setting."
    field, task = settings.model_fields[name], settings.model_fields["task"].default
    if text := _TEXTS.get(f"{name} {command}"):
        if task not in ("detect", "eit"):  # the others have no weights in the library
            text = re.sub(r"\W+(or|default:) pretrained\)?", "", text)
        return text
    if name == "task":
        return f"{', '.join(TASKS)} (default: that of the run, else detect)"
    if name == "dataset_dir" and task != "detect":
        return f"folder of the data set (default: {settings.synthetic_name} data)"
    text = " ".join((field.description or "").split()).replace("%", "%%")
    usual = str(field.default).removesuffix(".0")
    if usual and command == "test" and name not in OF_ITS_MACHINE:
        usual = f"of the run, else {usual}"
    return f"{text} (default {usual})" if usual else text


def _flags_of(command: str, settings: type[Settings]) -> list[str]:
    "The settings of a task that are flags of a command."
    if command == "train":
        return list(settings.model_fields)
    own = list(settings.flags.get(command, ()))
    if command == "predict":  # a pass of detection has its own size
        own.append("num_devices" if settings is Config else "batch_size")
    names = dict.fromkeys([*_FLAGS.get(command, "").split(), *own])
    return [name for name in names if name in settings.model_fields]


def _flag(name: str) -> str:
    "The flag of a setting or an option."
    return f"--{name.replace('_', '-')}"


def make_parser(settings: type[Settings] = Config, full: bool = True) -> argparse.ArgumentParser:
    "The parser of all commands; full: it explains every flag, not only the common ones."
    about = "Train, evaluate and use MSHNet (infrared small target detection) and other tasks."
    more = _EXAMPLES.format(tasks=", ".join(TASKS))
    parser = _Parser(prog="mshnet", description=about, epilog=more)
    parser.add_argument("--version", action="version", version=f"mshnet {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command, text in COMMANDS.items():
        name, sign, count, about = _ARGUMENTS[command]
        names, path = _flags_of(command, settings), f"[{sign}]" if count == "?" else f"{sign} ..."
        usage = f"mshnet {command} {path}{' [--FLAG VALUE ...]' if names else ''}"
        others = command == "predict" and settings is not Config  # whose files are no images
        shown = "predict the files of a task" if others else text
        sub = commands.add_parser(command, help=text, description=shown, usage=usage)
        sub.add_argument(name, metavar=sign, nargs=count, help=about)
        for name, (kind, hint) in _OPTIONS.get(command, {}).items():
            options: dict[str, Any] = {"action": "store_const", "const": True}
            if kind is not bool:
                options = {"type": kind, "metavar": _metavar(name, kind)}
            sub.add_argument(_flag(name), help=argparse.SUPPRESS if others else hint, **options)
        if names:
            sub.add_argument("--help-all", action="help", help="show all flags")
            sub.add_argument("--config", metavar="FILE", help="JSON file of settings")
            _add_settings(sub, names, settings, full)
    return parser


def _add_settings(
    parser: argparse.ArgumentParser, names: list[str], settings: type[Settings], full: bool
) -> None:
    "Add the flags of settings: the common ones, those of the task, the others; the presets."
    command = parser.prog.split()[-1]
    usual = _COMMON_OF_TEST if command == "test" else _COMMON
    common = [name for name in [*usual.split(), *settings.flags.get("daily", ())] if name in names]
    own = [name for name in names if name not in {*Settings.model_fields, *common}]
    rest = [name for name in names if name not in {*own, *common}]
    task = f"settings of task {settings.model_fields['task'].default}"
    for title, some in {"common settings": common, task: own, "other settings": rest}.items():
        group = parser.add_argument_group(title)
        for name in some:
            kind = settings.model_fields[name].annotation
            options: dict[str, Any] = {"nargs": "?", "const": "true"} if kind is bool else {}
            options["metavar"] = _metavar(name, kind)
            explained = full or some is common
            hint = _text_of(name, settings, command) if explained else argparse.SUPPRESS
            group.add_argument(_flag(name), help=hint, **options)
            for alias in (alias for alias, target in ALIASES.items() if target == name):
                group.add_argument(_flag(alias), help=argparse.SUPPRESS, **options)
    if settings.presets and "preset" in (names if full else common):
        parser.epilog = _presets(settings)


def _presets(settings: type[Settings]) -> str:
    "The presets of a task, each with what it is for, or what it changes."
    lines, task = ["presets:"], settings.model_fields["task"].default
    for name, values in settings.presets.items():
        text = ", ".join(f"{key} {value}" for key, value in values.items()) or "the default recipe"
        text = _PRESETS.get(f"{task} {name}", textwrap.shorten(text, 66, placeholder=" ..."))
        lines.append(f"  {name:12} {text}")
    return "\n".join(lines)


# %% [markdown]
# The flags depend on the task. We look for the task first: in the flags, in the file of settings, in the run that is resumed, in the weights that are evaluated or used to predict.
#
# Names of several words have dashes or, as in a notebook, underscores. For an unknown flag the error names the most similar one, for a flag with one dash the one with two, and for a retired flag its replacement. A flag of a different command has an error of its own. Names of older guides, such as `--data-path`, are accepted and not listed. Below the code is one mistake of each kind:

# %%
#| export
def _find_task(argv: Sequence[str]) -> tuple[type[Settings], dict[str, Any]]:
    "The settings of the task that a command line is about, and those of its weights."
    parser = _Parser(prog="mshnet", add_help=False)
    for flag in ("--task", "--config", "--resume", "--weight-path"):
        parser.add_argument(flag, nargs="?", const="", default="")
    asked = parser.parse_known_args(argv)[0]
    written = read_settings(asked.config) | ({"task": asked.task} if asked.task else {})
    weights, trained = asked.weight_path or str(written.get("weight_path", "")), {}
    if not weights and argv[:1] == ["test"] and argv[1:] and os.path.exists(argv[1]):
        weights = argv[1]
    if weights and argv[0] in ("test", "predict"):
        trained = resolve("mshnet.weights:settings_of_weights")(weights)
    settings = settings_class(task_of(written, trained or settings_of(asked.resume)))
    own = [n for n in written if n in _OPTIONS.get(argv[0], {}) and n not in settings.model_fields]
    if own:
        raise UserError(f"{asked.config}: {own[0]} is an option, no setting; use {_flag(own[0])}")
    return settings, trained


def parse(argv: Sequence[str]) -> tuple[str, dict[str, Any], str, dict[str, Any]]:
    """Parse a command line, without the program's name; UserError for a mistake.

    Returns the command, its settings, the file of `--config`, and the settings of the weights.
    """
    if argv and argv[0] in RETIRED:
        raise UserError(unknown(argv[0], []))
    if argv and argv[0] == "predict":  # a file's name may begin with a dash
        argv = [f"./{w}" if w.startswith("-") and os.path.exists(w) else w for w in argv]
    argv = [re.sub("^--[^=]+", lambda flag: flag[0].replace("_", "-"), word) for word in argv]
    if argv and argv[0].startswith("--") and argv[0] not in ("--help", "--version"):
        raise UserError(f"{argv[0]}: the command comes first: mshnet COMMAND {argv[0]} ...")
    settings, trained = _find_task(argv)
    parsed, rest = make_parser(settings, "--help-all" in argv).parse_known_args(argv)
    written = {k: v for k, v in vars(parsed).items() if v is not None}
    command = written.pop("command")
    if command == "predict" and settings is not Config:
        written["task"] = settings.model_fields["task"].default  # for `configure`
    if "inputs" in written:  # there may be flags between them
        written["inputs"] += [word for word in rest if not word.startswith("-")]
        rest = [word for word in rest if word.startswith("-")]
    named = re.compile(r"folder|weights|config|resume|output|write|save|.*_(dir|path|list)")
    empty = [k for k, v in written.items() if v == "" and named.fullmatch(k)]
    if empty and not rest:  # else it is the value of an unknown flag
        word = {"folder": "DIR", "weights": "RUN"}.get(empty[0], _flag(empty[0]))
        raise UserError(f"{word} is empty, as a variable that is not set; leave it out or set it")
    file, weights = written.pop("config", ""), written.pop("weights", "")
    if weights and (not rest or argv[1] == weights):  # as above, but as a flag
        _expect_same(weights, "weight_path", written)
        places = [i for i, word in enumerate(argv) if i and word == weights]
        at = next((i for i in places if not argv[i - 1].startswith("-")), places[-1])
        return parse([command, f"--weight-path={weights}", *argv[1:at], *argv[at + 1 :]])
    if rest:
        raise UserError(_unexpected(rest[0], command, settings))
    if folder := written.pop("folder", ""):
        written["dataset_dir"] = _data_folder(command, folder, written)
    return command, written, file, trained if command == "test" else {}


def _unexpected(word: str, command: str, settings: type[Settings]) -> str:
    "The error of a word that a command does not have."
    see = f"see mshnet {command} --help"
    if not word.startswith("-"):
        return f"unexpected argument {word!r}; {see}"
    name = word.lstrip("-").split("=")[0].replace("-", "_")
    if (name, command) == ("output", "compare"):
        return "output is retired: add > FILE.md"
    own = [*_OPTIONS.get(command, {}), *_flags_of(command, settings)]
    if not word.startswith("--") and name in {*settings.model_fields, *own}:
        return f"{word}: a flag begins with two dashes; use -{word}"
    known = {*settings.model_fields, *(name for options in _OPTIONS.values() for name in options)}
    if name in known and not any(flag.startswith(name) for flag in own):
        return f"mshnet {command} has no option {word}; leave it out"
    return unknown(name, own, f"; {see}")


def _expect_same(path: str, name: str, written: dict[str, Any]) -> None:
    "UserError if a flag names another path than the one that is given without it."
    given = {ALIASES.get(flag, flag): value for flag, value in written.items()}
    if (other := given.get(name, path)) != path:
        data = f", or --dataset-dir {path} for data" if name == "weight_path" else ""
        raise UserError(f"{path}: {_flag(name)} {other} is given as well; use one of them{data}")


def _data_folder(command: str, folder: str, written: dict[str, Any]) -> str:
    "The data set that is named without a flag; UserError for a run or a second data set."
    _expect_same(folder, "dataset_dir", written)
    of_run = folder.endswith(".pt") or os.path.exists(os.path.join(folder, "config.json"))
    if command == "train" and of_run:
        todo = f"use --resume {folder}, or --weight-path {folder} to start from its weights"
        raise UserError(f"{folder} is not a data set; {todo}")
    return folder


# %%
for words in ("train --epoch 3", "train -epochs 3", "compare a --output b", "data --epochs 3"):
    try:
        parse(words.split())
    except UserError as error:
        print(error)


# %% [markdown]
# ### What the commands do
#
# Each command calls the function of its name. Without weights, `test` and `predict` use those of the library, and print that. The status is 0, or 2 for a mistake. `train` ends with 75 if the time is over first, so `mshnet train && mshnet export` does not continue with half a run. `predict` ends with 1 if a file was skipped, `data` with 2 if an image cannot be used, and `doctor` with 1 or 2 by its worst line.

# %%
#| export
def _note(line: str) -> None:
    "Write a line to stderr at once, above a progress bar; nothing if the terminal is gone."
    write: Any = sys.modules["tqdm"].tqdm.write if "tqdm" in sys.modules else print
    with contextlib.suppress(OSError):
        write(f"{line}\n", file=sys.stderr, end="")


def _which_weights(config: Settings) -> str:
    "The weights in use, and where their card is."
    if config.weight_path not in ("", "pretrained"):
        return config.weight_path
    file = resolve("mshnet.weights:weights_file")("pretrained", config.task)
    return f"pretrained; their card: {file.with_suffix('.md')}"


def _result_folder(name: str) -> Path:
    "A folder for scores; UserError if it cannot be written, holds a run or is in a data set."
    resolve("mshnet.places:assert_mounted")(name)
    resolve("mshnet.data:outside_of_data")(name)
    folder = Path(name).expanduser()
    if (folder / "log.jsonl").exists():
        raise UserError(f"output_dir={name}: holds a run, whose scores stay; use another")
    held = [file for file in ("scores.json", "details.json") if (folder / file).exists()]
    if held and "protocol" not in resolve("mshnet.run:Folder")(folder).read_json("scores.json"):
        raise UserError(f"output_dir={name}: holds another {held[0]}, which stays; use another")
    resolve("mshnet.files:make_folder")(folder)
    return folder


def _train(config: Settings) -> int:
    "Train, with figures at the end; status 75 if the time was over before the last epoch."
    from mshnet.data import outside_of_data
    from mshnet.task import make_task
    from mshnet.train import keep_copies, processes_to_start, train

    outside_of_data(config.output_dir)  # before a lock is put there
    run = train(config)
    if not first_process():
        return 0
    if run.scores and not processes_to_start(config):  # those draw themselves
        make_task(config).report(run.folder)
        if list((run.folder / "figures").glob("*")):
            _note(f"figures {run.folder / 'figures'}")
        if line := keep_copies(config):
            _note(line)
    return 0 if run.finished else TIME_OVER


def _test(config: Settings) -> int:
    "Score weights, print the protocol, and store both if a folder is given."
    folder = _result_folder(config.output_dir) if config.output_dir else None
    result = resolve("mshnet.evaluate:evaluate")(config)
    print(f"{'weights':25}{_which_weights(config)}")
    for key, value in result.protocol.items():
        print(f"{key:25}{value}")
    if folder:
        print(f"{'results':25}{folder}")
    print(result.scores)
    if folder and first_process():
        result.save(folder)
    return 0


def _predict(config: Config, inputs: list[str], argv: Sequence[str], **options: Any) -> int:
    "Predict files, and print where the results are; status 1 if a file was skipped."
    from mshnet.device import started_processes
    from mshnet.predict import predict_files
    from mshnet.task import make_task
    from mshnet.train import processes_to_start, run_in_processes

    if processes_to_start(config):
        return max(run_in_processes(config, argv), default=0)
    if config.num_devices > 1 and not started_processes():
        raise UserError("num_devices: one process drives all chips of a TPU; leave it out")
    names, predict = ["output_dir", "device", "precision"], predict_files
    if config.task != "detect":
        if options or started_processes() > 1:
            what = _flag(next(iter(options))) if options else "torchrun"
            raise UserError(f"task {config.task} has no option {what}; leave it out")
        own = config.model_fields_set.intersection(config.flags.get("predict", ()))
        names, predict = [*names, "batch_size", *own], make_task(config).predict_files
    settings = {name: getattr(config, name) for name in names}
    summary = predict(config.weight_path, inputs, **settings, **options)
    print(f"{summary}\nweights  {_which_weights(config)}\nresults  {summary.folder}")
    return 1 if summary.skipped else 0


def _data(config: Any, split: float | None = None, write: str = "") -> int:
    "Print the data report, after writing lists or simulated data if asked; status 2 if unusable."
    task = resolve("mshnet.task:make_task")(config)
    if write:
        print(task.write_data(Path(os.path.expanduser(write))))
        return 0
    if split is not None:
        if config.task != "detect":
            raise UserError(f"split={split} is not possible for task {config.task}: leave it out")
        print(line := resolve("mshnet.data:write_lists")(config, split))
        if "--train-list" in line:  # they lie beside the data set, which is read-only
            return 0
    text, usable = task.describe_data()
    print(text)
    return 0 if usable else 2


def _doctor(config: Config) -> int:
    "Print the report on the machine; status 1 for a warning, 2 for an error."
    with contextlib.redirect_stdout(sys.stderr):  # such as notes on an archive
        found = resolve("mshnet.doctor:doctor")(config)
    print(found)
    return int(found.status)


def _bench(config: Config, **options: int) -> int:
    "Print the measurements."
    if config.output_dir:
        _result_folder(config.output_dir)
    print(resolve("mshnet.bench:table")(resolve("mshnet.bench:bench")(config, **options)))
    return 0


def _compare(config: Config, runs: list[str]) -> int:
    "Print runs side by side."
    print(resolve("mshnet.compare:compare")(runs))
    return 0


def _export(config: Config, **options: str) -> int:
    "Write weights as a file for other programs, and print its name."
    if not config.weight_path:
        todo = "name the weights to export, such as runs/NAME/best.pt, or pretrained"
        raise UserError(f"weight_path is empty: {todo}")
    path = resolve("mshnet.export:export")(config.weight_path, **options)
    print(f"{path}  {megabytes(path.stat().st_size)}, checked")
    return 0


_WORKS = (_train, _test, _predict, _data, _doctor, _bench, _export, _compare)
_RUN: dict[str, Callable[..., int]] = {work.__name__[1:]: work for work in _WORKS}


# %% [markdown]
# ### One entry
#
# Every command runs in `main`, which returns a status for scripts. Warnings and errors are one line each, and a warning is printed once, even if training and its figures both raise it.

# %%
#| export
def _warnings_once() -> Callable[..., None]:
    "A function that prints a warning as one line, unless it has printed that line before."
    printed: set[str] = set()

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        line = f"warning: {message}"
        if first_process() and line not in printed:
            printed.add(line)
            _note(line)

    return show


def main(argv: Sequence[str] | None = None) -> int:  # the status, as `mshnet --help` lists them
    "Run a command, which is a list of words; None: the words that this process was started with."
    with warnings.catch_warnings():
        warnings.showwarning = _warnings_once()
        command, argv, resumes = "", sys.argv[1:] if argv is None else argv, False
        who = "mshnet" if first_process() else f"mshnet, process {os.environ['RANK']}"
        try:
            command, written, file, trained = parse(argv)
            names = ["runs", "inputs", *_OPTIONS.get(command, {})]
            options = {name: written.pop(name) for name in names if name in written}
            config = configure(written, file, trained)
            resumes = command == "train" or (command, config.task) == ("predict", "detect")
            if command == "predict":
                options["argv"] = argv
            status = _RUN[command](config, **options)
            sys.stdout.flush()
            return status
        except UserError as error:
            _note(f"{who}: {error}")
            return 2
        except KeyboardInterrupt as stopped:  # a Stopped has its signal
            if first_process():
                _note(f"mshnet: {STOPPED if resumes else 'stopped'}")
            if number := getattr(stopped, "number", 2):  # 0: the time is over
                return 128 + number
            return TIME_OVER if first_process() else 0  # torchrun ends all for the status of one
        except OSError as error:
            if error.errno == errno.EACCES and error.filename:  # where we look whether it is there
                _note(f"{who}: {error.filename!r}: {error.strerror}; permit it")
                return 2
            if error.errno not in (errno.EPIPE, errno.ENOSPC):
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python flushes once more at its end
            if error.errno == errno.EPIPE:  # such as in `mshnet data DIR | head`
                return 141
            _note(f"mshnet: the output cannot be written ({error.strerror})")
            return 2

# %% [markdown]
# ## Questions
#
# 1. <code>mshnet train DIR &amp;&amp; mshnet export RUN</code> ran until the hours of the session were over. There is no exported file, and no error. What happened?
#    <details><summary>Answer</summary>The training stopped before its last epoch, so its status is 75, and the shell did not start the export. The same line again resumes the training, and then exports.</details>
# 2. A run was trained and scored with <code>base_size</code> 256. You call <code>mshnet test RUN --base-size 512</code>. Which settings are used, and may you compare both scores?
#    <details><summary>Answer</summary>Those of the run, except for the size, because a flag overrides what the run has recorded. The protocol has the size, and <code>mshnet compare</code> refuses to compare the two.</details>
