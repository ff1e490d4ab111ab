# %% [markdown]
# # cli
#
# > `mshnet train | test | predict | data | doctor | bench | compare | export | pack`: the settings as flags, and every mistake in one line with its remedy.

# %%
#| default_exp cli

# %%
#| hide
import io

from fastcore.test import expect_fail, test_eq

# %%
#| export
import argparse
import contextlib
import errno
import glob
import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from mshnet import __version__
from mshnet.core import (
    ALIASES,
    STOPPED,
    SWITCHES,
    TASKS,
    AugmentFields,
    Config,
    OptimizerFields,
    PlaceFields,
    Settings,
    UserError,
    configure,
    expects,
    newest,
    read_settings,
    settings_class,
    settings_of,
    task_of,
    unknown,
)
from mshnet.places import first_process

# %% [markdown]
# A command line, a file and a notebook should accept the same settings under the same names, and report the same errors. Therefore nobody writes the flags of `mshnet` by hand: we make them from the settings of the task. Values stay text until `configure` checks all of them at once.
#
# torch takes seconds to import, and a mistyped flag should not cost them. This module imports nothing but the settings, and each command imports what it needs when it runs.
#
# ## Commands
#
# Each command takes the flags that have a meaning for it. `train` takes all settings; to those of the other commands a task adds its own (`Settings.flags`).

# %%
#| export
_READING = ["dataset_dir", "train_list", "test_list"]
_DEVICE = ["device", "precision", "num_devices"]
_SCORING = ["task", "weight_path", "output_dir", "batch_size", "num_workers"]
_LOOKED_AT = [
    *("preset", "batch_size", "micro_batch", "crop_size"),
    *("output_dir", "resume", "mirror_dir", "max_hours"),
]
_NOT_BENCHED = [
    *("epochs", "patience", "resume", "num_devices", "log_every", "debug_xla", "profile"),
    *("max_hours", "mirror_dir", "micro_batch", "on_out_of_memory"),
    *OptimizerFields.model_fields,
    *("task", "network", "loss", "head_bias", "fusion_start", "warm_epoch"),
    *AugmentFields.model_fields,
]
COMMANDS: dict[str, tuple[str, list[str]]] = {
    "train": (
        "train and score a model; run the same command again to resume",
        [],  # all
    ),
    "test": (
        "score weights on the test list",
        [*_SCORING, *_READING, *_DEVICE, "preset", "on_bad_image"],
    ),
    "predict": (
        "find targets in images and videos: masks, tables, pictures with the detections marked",
        [*_SCORING, "device", "precision"],
    ),
    "data": (
        "report what a data set holds and what is wrong with it",
        ["task", *_READING, "seed", "on_bad_image"],
    ),
    "doctor": (
        "check this machine, and report what is wrong and what to do about it",
        ["task", *_READING, *_DEVICE, *_LOOKED_AT],
    ),
    "bench": (
        "measure training, scoring and memory on this device",
        [name for name in Config.model_fields if name not in _NOT_BENCHED],
    ),
    "export": (
        "write weights as a file for other programs, and check it (extra: export)",
        ["weight_path"],
    ),
    "compare": (
        "put runs side by side: scores, protocols, curves, and what went wrong",
        [],
    ),
    "pack": ("put a run into one file", []),
}

# %% [markdown]
# Four commands take their main argument without a flag. Some flags are not settings: what a bench measures, the format of an export. No run records them. They are options of argparse that belong to one command.

# %%
#| export
_ARGUMENTS: dict[str, tuple[str, str, str | None, str]] = {  # name, metavar, nargs, help
    "data": ("folder", "DIR", "?", "folder or archive of the data set, or a name"),
    "compare": ("runs", "RUN", "+", "folder of a run, or of scores"),
    "pack": ("run", "RUN", None, "folder of the run"),
    "predict": ("inputs", "INPUT", "*", "image, video, folder, or glob in quotes"),
}
_SWITCH = {"action": "store_const", "const": True}


def _side(text: str) -> int | str:
    "The side of a square, or `native`."
    if text == "native" or text.isdecimal():
        return text if text == "native" else int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not possible: write a number, or native")


_OPTIONS: dict[str, dict[str, dict[str, Any]]] = {
    "data": {
        "split": {
            "type": float,
            "help": "write train.txt and test.txt for a data set without lists: this part of the "
            "images, between 0 and 1, is for training (by image, stratified by the number of "
            "targets, shuffled by --seed)",
        },
        "write": {
            "help": "folder to write a simulated data set to, in the layout that is read (tasks "
            "eit, events and signs)"
        },
    },
    "doctor": {
        "json": {
            "help": "print one JSON object with the worst level and all lines, and nothing else",
            **_SWITCH,
        }
    },
    "bench": {
        "repeats": {
            "type": int,
            "help": "turns of each measurement; the median counts (default 5)",
        },
        "batch_sizes": {
            "help": "batch sizes of training, such as 4,16 (default: batch_size and 4 times that)"
        },
        "images": {"type": int, "help": "images of each turn (default 32)"},
        "largest_batch": {
            "help": "try larger and larger batches until one does not fit, and measure no more",
            **_SWITCH,
        },
    },
    "export": {
        "format": {"help": "onnx (default) or safetensors"},
        "output": {"help": "file to write (default: beside the weights, named after them)"},
    },
    "compare": {
        "output": {
            "help": "FILE.md or FILE.png to write",
        },
        "anyway": {
            "help": "compare scores that are not comparable, with a warning in table and picture",
            **_SWITCH,
        },
    },
    "pack": {
        "format": {"help": "zip or tar.gz (default)"},
        "output": {"help": "file to write (default: beside the run, named after it)"},
        "weights_only": {
            "help": "leave out what only resuming needs: the last checkpoints, and the "
            "optimizer's state in best.pt (default file: RUN-weights.tar.gz)",
            **_SWITCH,
        },
    },
    "predict": {
        "tile": {
            "type": int,
            "help": "longest side predicted in one piece, in pixels; larger frames are cut into "
            "tiles that overlap (a multiple of 16, 128 to 8192, default 1024)",
        },
        "base_size": {
            "type": _side,
            "help": "resize each frame to a square of this side, as `mshnet test` may do: a "
            "multiple of 16, or native (default: each frame keeps its size)",
        },
        "threshold": {
            "type": float,
            "help": "least probability of a detection, 0 to 1 (default: the one stored with the "
            "weights)",
        },
        "min_area": {"type": int, "help": "pixels of the smallest detection (default 1)"},
        "recursive": {"help": "also predict what lies in folders below an INPUT", **_SWITCH},
        "save": {
            "help": "what to write: some of masks,overlays,probabilities,videos (default: "
            "masks,overlays,videos), or none; tables and coco.json are always written"
        },
    },
}
_EPILOGS = {  # printed below the flags of a command
    "train": "status: 0 all epochs are done; 75 the time (--max-hours) was over before, the same "
    "command resumes; 2 a mistake or an error; 128 and the number of a signal after a signal",
    "doctor": "status: 0 all is well; 1 a warning; 2 an error, or a mistake in the flags",
    "predict": "results: predictions/NAME (NAME-2 if it holds another prediction), or "
    "--output-dir; no result depends on --batch-size; the same command again skips what "
    "is finished; status: 0 all files are predicted; 1 an unreadable file was skipped; 2 a mistake",
}


# %% [markdown]
# ## The parser
#
# argparse accepts abbreviations, which are a trap: `--warm` works until a second flag begins with it. Our parser accepts none, and raises a `UserError` for a mistake. The help of a command has two groups of flags: settings that change the result, and settings of the machine.

# %%
#| export
class _Parser(argparse.ArgumentParser):
    "argparse without abbreviations, whose errors are one line."

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        "Raise UserError for a mistake in the flags."
        raise UserError(f"{message}; see {self.prog} --help")


def _add_setting(parser: argparse._ActionsContainer, name: str, settings: type[Settings]) -> None:
    "Add the flag of a setting of a task, with its aliases."
    field = settings.model_fields[name]
    flags = [name, *(alias for alias, target in ALIASES.items() if target == name)]
    default = "" if field.default == "" else f", default {field.default}"
    wanted = "" if field.annotation is str else f" ({expects(name, settings)}{default})"
    if name == "task":
        wanted = f" (one of {', '.join(TASKS)}; default: that of the run or of the weights)"
    truth = field.annotation is bool
    switch: dict[str, Any] = {"nargs": "?", "const": "true"} if truth else {}
    parser.add_argument(
        *(f"--{flag.replace('_', '-')}" for flag in flags),
        dest=name,
        metavar="X",
        help=f"{field.description}{wanted}".replace("%", "%%"),
        **switch,
    )


def flags_of(command: str, settings: type[Settings]) -> list[str]:
    "The settings of a task that are flags of a command."
    if command == "train":
        return list(settings.model_fields)
    names = dict.fromkeys([*COMMANDS[command][1], *settings.flags.get(command, ())])
    return [name for name in names if name in settings.model_fields]


def make_parser(
    settings: type[Settings] = Config,  # of the task
) -> argparse.ArgumentParser:
    "The parser of all commands."
    about = "MSHNet: infrared small target detection. Train, score, look."
    parser = _Parser(prog="mshnet", description=about)
    parser.add_argument("--version", action="version", version=f"mshnet {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command, (text, _) in COMMANDS.items():
        names = flags_of(command, settings)
        sub = commands.add_parser(command, help=text, description=text)
        if command in _ARGUMENTS:
            placed, sign, count, hint = _ARGUMENTS[command]
            sub.add_argument(placed, metavar=sign, nargs=count, help=hint)
        if names:
            sub.add_argument("--config", default="", metavar="FILE", help="JSON file of settings")
        for name, how in _OPTIONS.get(command, {}).items():
            shown: dict[str, Any] = {} if "action" in how else {"metavar": "X"}
            sub.add_argument(f"--{name.replace('_', '-')}", **shown, **how)
        recipe = sub.add_argument_group("settings that change the result")
        where = sub.add_argument_group("settings of this machine")
        for name in names:
            _add_setting(where if name in PlaceFields.model_fields else recipe, name, settings)
        for switch, (name, value) in SWITCHES.items():
            if name in names:
                where.add_argument(
                    f"--{switch.replace('_', '-')}",
                    nargs="?",
                    const="true",
                    metavar="X",
                    help=f"the same as --{name} {value}",
                )
        presets = f"presets: {', '.join(settings.presets)}" if "preset" in names else ""
        sub.epilog = "; ".join(filter(None, [presets, _EPILOGS.get(command)]))
    return parser


# %%
with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.suppress(SystemExit):
    make_parser().parse_args(["test", "--help"])
assert "rule" in flags_of("test", Config) and "epochs" not in flags_of("test", Config)
print(shown.getvalue()[:900])


# %% [markdown]
# The flags depend on the task. We look for the task first: in the words, in the file of settings, in the run that is resumed, in the weights that are scored or predict.
#
# Names of several words have dashes or, as in a notebook, underscores. For an unknown flag the error names the most similar one, and for a retired flag its replacement. A flag of a different command has an error of its own. `data` takes its folder without a flag, and `train` does not: for a folder or weights without a flag the error has the flag.

# %%
#| export
def _settings_of_words(words: Sequence[str]) -> type[Settings]:
    "The settings of the task that a command line is about."
    parser = _Parser(prog="mshnet", add_help=False)
    for flag in ("--task", "--config", "--resume", "--weight-path"):
        parser.add_argument(flag, nargs="?", const="", default="")
    asked = parser.parse_known_args(words)[0]
    written = read_settings(asked.config) | ({"task": asked.task} if asked.task else {})
    weights = asked.weight_path or str(written.get("weight_path", ""))
    of_run = _trained_with(words[:1], weights) or settings_of(newest(asked.resume))
    return settings_class(task_of(written, of_run))


def _trained_with(command: Sequence[str], weights: str) -> dict[str, Any]:
    "The settings that the weights of a scoring or prediction were trained with; empty: not known."
    if not weights or command[:1] not in (["test"], ["predict"]):
        return {}
    from mshnet.weights import settings_of_weights

    return settings_of_weights(weights)


def _one_too_many(word: str, command: str, written: dict[str, Any]) -> str:
    "The error of a word without a flag; a data set and weights get theirs."
    weights = word.endswith(".pt") or os.path.exists(os.path.join(word, "config.json"))
    name = "weight_path" if weights else "dataset_dir"
    flags = flags_of(command, Config) if command not in _ARGUMENTS else []
    fits = name in flags and name not in written and os.path.exists(word)
    remedy = f"write --{name.replace('_', '-')} {word}" if fits else f"see mshnet {command} --help"
    return f"{word!r} is one word too many; {remedy}"


def parse(
    words: Sequence[str],  # as on the command line, without the program's name
) -> tuple[str, dict[str, Any], str]:  # command, settings that were written, config file
    "Read the command line; UserError for a mistake."
    words = [re.sub("^--[^=]+", lambda flag: flag[0].replace("_", "-"), word) for word in words]
    if words[:1] == ["predict"]:  # a file's name may begin with a dash
        words = [f"./{w}" if w.startswith("-") and os.path.exists(w) else w for w in words]
    settings = _settings_of_words(words)
    parsed, rest = make_parser(settings).parse_known_args(words)
    written = {k: v for k, v in vars(parsed).items() if v is not None}
    command, file = written.pop("command"), written.pop("config", "")
    if command == "predict" and settings is not Config:
        written["task"] = settings.model_fields["task"].default  # for `configure`
    if "inputs" in written:  # there may be flags between them
        written["inputs"] += [word for word in rest if not word.startswith("-")]
        rest = [word for word in rest if word.startswith("-")]
    if rest:
        flag, name = rest[0], rest[0].lstrip("-").split("=")[0].replace("-", "_")
        if not flag.startswith("-"):
            raise UserError(_one_too_many(flag, command, written))
        if name in settings.model_fields:
            raise UserError(f"{flag} means nothing to `mshnet {command}`; leave it out")
        known = [*_OPTIONS.get(command, {}), *flags_of(command, settings)]
        raise UserError(unknown(name, known, f"; see mshnet {command} --help"))
    if folder := written.pop("folder", ""):
        written["dataset_dir"] = folder
    return command, written, file


# %%
for line in ("train --epochz 3", "train --mode train", "test --epochs 3", "trian", "data a b"):
    with expect_fail(UserError):
        parse(line.split())
parse(["data", "sirst"]), parse(["train", "--lr", "0.1", "--ema=0.99"])


# %% [markdown]
# ## What the commands do
#
# Without `--weight-path`, `test` and `predict` use the weights that come with the library, and print that. A folder for scores is checked before the work, because after an hour it is too late.

# %%
#| export
def _note(line: str) -> None:
    "Print a line on stderr, above a progress bar; nothing if the terminal is gone."
    with contextlib.suppress(OSError):
        if "tqdm" in sys.modules:
            sys.modules["tqdm"].tqdm.write(line, file=sys.stderr)
        else:
            print(line, file=sys.stderr, flush=True)


def _which_weights(config: Settings) -> str:
    "The weights in use, and where their card is."
    from mshnet.weights import PRETRAINED, weights_file

    if config.weight_path not in ("", PRETRAINED):
        return config.weight_path
    return f"pretrained; their card: {weights_file(PRETRAINED, config.task).with_suffix('.md')}"


def _result_folder(name: str) -> Path:
    "A folder for scores; UserError if it cannot be written, holds a run or is in a data set."
    from mshnet.data import outside_of_data
    from mshnet.files import cannot_be_written

    outside_of_data(name)
    folder = Path(name).expanduser()
    if (folder / "log.jsonl").exists():
        raise UserError(f"output_dir={name!r}: holds a run, whose scores stay; write another")
    with cannot_be_written(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".writable").touch()
        (folder / ".writable").unlink()
    return folder


# %% [markdown]
# `train` draws the pictures of the run. If the hours of the session are over before all epochs are done, its status is 75, and a script such as `mshnet train && mshnet export` does not continue with half a run. `test` prints the protocol with the scores, because a score without it cannot be compared. `predict` skips unreadable files and then returns status 1. If the weights are of a task other than detection, that task predicts the files.

# %%
#| export
_TIME_OVER = 75  # the status that sysexits.h names for "try again later"


def _train(config: Settings) -> int:
    "Train, with pictures at the end; status 75 if the time was over before the last epoch."
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
    return 0 if run.finished else _TIME_OVER


def _test(config: Settings) -> int:
    "Score weights, print the protocol, and store both if a folder is given."
    from mshnet.evaluate import evaluate

    folder = _result_folder(config.output_dir) if config.output_dir else None
    result = evaluate(config)
    print(f"{'weights':25}{_which_weights(config)}")
    for key, value in result.protocol.items():
        print(f"{key:25}{value}")
    if folder and first_process():
        result.save(folder)
        print(f"{'results':25}{folder}")
    print(result.scores)
    return 0


def _predict(config: Config, inputs: list[str], **how: Any) -> int:
    "Predict files, and print where the results are; status 1 if a file was skipped."
    from mshnet.predict import predict_files
    from mshnet.task import make_task

    names, task = ("output_dir", "device", "precision", "batch_size"), str(config.task)
    settings = {name: getattr(config, name) for name in names}
    if task == "detect":
        settings["num_workers"] = config.num_workers
        summary = predict_files(config.weight_path, inputs, **settings, **how)
    elif how:
        raise UserError(f"--{next(iter(how)).replace('_', '-')} means nothing to task {task}")
    else:
        own = config.model_fields_set.intersection(config.flags.get("predict", ()))
        settings |= {name: getattr(config, name) for name in own}
        summary = make_task(config).predict_files(config.weight_path, inputs, **settings)
    print(f"{summary}\nweights  {_which_weights(config)}\nresults  {summary.folder}")
    return summary.status


# %% [markdown]
# The next four commands report. The status of `data` and `doctor` gives the result to a script. `compare` reads the files of runs. It needs neither their data nor a device. A pattern such as `runs/NUAA-SIRST-*` also fits packed runs and runs that still train, so `compare` skips what has no scores where two others have them.

# %%
#| export
def _data(config: Any, split: float | None = None, write: str = "") -> int:
    "Print the data report, after writing lists or simulated data if asked; status 2 if unusable."
    from mshnet.data import write_lists
    from mshnet.task import make_task

    task = make_task(config)
    if write:
        print(task.write_data(Path(write).expanduser()))
        return 0
    if split is not None:
        if config.task != "detect":
            raise UserError(f"split={split} is not possible for task {config.task}: leave it out")
        print(write_lists(config, split))
    text, usable = task.describe_data()
    print(text)
    return 0 if usable else 2


def _doctor(config: Config, json: bool = False) -> int:
    "Print the report on the machine; status 1 for a warning, 2 for an error."
    from mshnet.doctor import doctor

    with contextlib.redirect_stdout(sys.stderr):  # such as notes on an archive
        found = doctor(config)
    print(found.to_json() if json else found)
    return found.status


def _bench(config: Config, **how: Any) -> int:
    "Print the measurements, or the largest batch."
    from mshnet.bench import Options, bench, largest_batch, largest_text, table

    options = Options(**how)
    if options.largest_batch:
        print(largest_text(largest_batch(config)))
        return 0
    if config.output_dir:
        _result_folder(config.output_dir)
    print(table(bench(config, options)))
    return 0


def _scored(runs: list[str]) -> list[str]:
    "The runs with scores, if there are two; then a warning names the others that exist."
    without = [
        run
        for run in runs
        if os.path.exists(run) and not os.path.exists(os.path.join(run, "scores.json"))
    ]
    if not without or len(runs) - len(without) < 2:
        return runs
    warnings.warn(f"skipped, without scores: {', '.join(without)}", stacklevel=2)
    return [run for run in runs if run not in without]


def _matches(runs: Sequence[str]) -> list[str]:
    "The runs, and in place of a pattern those that fit it: not every shell replaces it."
    return [each for run in runs for each in sorted(glob.glob(run)) or [run]]


def _compare(config: Config, runs: list[str], output: str = "", anyway: bool = False) -> int:
    "Print runs side by side, and write the comparison if an output is given."
    from mshnet.compare import compare, output_file, write_comparison

    file = output_file(output) if output else None
    found = compare(_scored(_matches(runs)), anyway)
    print(found)
    if file:
        write_comparison(found, file)
        _note(str(file))
    return 0


# %% [markdown]
# The last two commands write one file each: `export` the weights for other programs, `pack` a whole run.

# %%
#| export
def _export(config: Config, **how: str) -> int:
    "Write weights as a file for other programs, and print its name and its error."
    from mshnet.export import export
    from mshnet.places import megabytes
    from mshnet.session import offer_download

    if not config.weight_path:
        raise UserError(
            "weight_path is empty: name the weights to export, such as runs/NAME/best.pt, or "
            "pretrained"
        )
    done = export(config.weight_path, **how)
    print(f"{done.path}  {megabytes(done.path.stat().st_size)}  {done}")
    for file in (done.path, done.note):
        offer_download(file)
    return 0


def _pack(config: Config, run: str, **how: Any) -> int:
    "Put a run into one file, and print its name."
    from mshnet.places import megabytes
    from mshnet.session import pack

    path = pack(run, **how)
    print(f"{path}  {megabytes(path.stat().st_size)}")
    return 0


_RUN: dict[str, Callable[..., int]] = {
    "train": _train,
    "test": _test,
    "predict": _predict,
    "data": _data,
    "doctor": _doctor,
    "bench": _bench,
    "export": _export,
    "compare": _compare,
    "pack": _pack,
}


# %% [markdown]
# ## One entry
#
# Every command runs in `main`, which returns a status for scripts. Warnings and errors are one line each. A warning is printed once, also where several processes read the same data, or training and its pictures do. `mshnet test` on a checkpoint takes the settings that it was trained with as defaults, such as its sizes and its data, also if it was copied out of its run.

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


def main(
    words: Sequence[str] | None = None,  # None: those of this process
) -> int:  # 0, 1 a bad finding, 2 a mistake or an error, 75 time over, 128 + number of a signal
    "Run a command."
    with warnings.catch_warnings():
        warnings.showwarning = _warnings_once()
        command = ""
        try:
            command, written, file = parse(sys.argv[1:] if words is None else words)
            names = ["run", "runs", "inputs", *_OPTIONS.get(command, {})]
            own = {name: written.pop(name) for name in names if name in written}
            wanted = read_settings(file) | written if command == "test" else {}
            trained = _trained_with([command], str(wanted.get("weight_path", "")))
            status = _RUN[command](configure(written, file, trained), **own)
            sys.stdout.flush()
            return status
        except UserError as error:
            who = "mshnet" if first_process() else f"mshnet, process {os.environ['RANK']}"
            _note(f"{who}: {error}")
            return 2
        except KeyboardInterrupt as stopped:  # a Stopped has its signal
            if first_process():
                _note(f"mshnet: {STOPPED if command in ('train', 'predict') else 'stopped'}")
            number = getattr(stopped, "number", 2)  # 0: the time is over
            if number:
                return 128 + number
            return _TIME_OVER if first_process() else 0  # torchrun ends all for the status of one
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.ENOSPC):
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python flushes once more at its end
            if error.errno == errno.EPIPE:  # such as in `mshnet data DIR | head`
                return 141
            _note(f"mshnet: the output cannot be written ({error.strerror})")
            return 2


# %%
for line in (
    "train --epochs none",
    "train --lerning-rate 1",
    "test --weight-path none.pt",
    "export",
    "data no-such-folder",
):
    with contextlib.redirect_stderr(io.StringIO()) as printed:
        status = main(line.split())
    print(status, printed.getvalue().strip())
    test_eq(status, 2)
