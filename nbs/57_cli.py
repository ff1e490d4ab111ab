# %% [markdown]
# # cli
#
# > `mshnet train | test | predict | data | doctor | bench | compare | export | pack`: the same settings as flags, and errors that say what to write.

# %%
#| default_exp cli

# %%
#| hide
import io

from fastcore.test import test_eq

# %%
#| export
import argparse
import contextlib
import errno
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
    Config,
    OptimizerFields,
    PlaceFields,
    Settings,
    UserError,
    configure,
    expects,
    read_settings,
    settings_class,
    settings_of,
    task_of,
    unknown,
)
from mshnet.places import first_process

# %% [markdown]
# The flags are made from the settings of the task, so a setting has the same name here and in a notebook. Values stay text until `configure` checks all of them at once, from the command line, a file or a notebook alike.
#
# torch takes seconds to import. Nobody should wait for it because of a mistyped flag, so this module imports nothing but the settings, and each command imports what it needs when it runs.
#
# ## Commands
#
# Each command takes the flags that mean something to it, and of these the ones that its task has. `train` takes all.

# %%
#| export
READING = ["dataset_dir", "train_list", "test_list"]
DEVICE = ["device", "precision", "num_devices"]
SCORING = ["weight_path", "output_dir", "base_size", "batch_size", "rule", "num_workers"]
SCORING += ["scenes", "on_bad_image"]
PREDICTING = ["weight_path", "output_dir", "batch_size", "num_workers", "device", "precision"]
LOOKED_AT = [
    *("preset", "batch_size", "micro_batch", "crop_size"),
    *("output_dir", "resume", "mirror_dir", "max_hours"),
]
NOT_BENCHED = [
    *("epochs", "resume", "num_devices", "log_every", "debug_xla", "profile"),
    *("max_hours", "mirror_dir", "mirror_rate", "micro_batch", "on_out_of_memory"),
    *OptimizerFields.model_fields,
    *("task", "network", "loss", "head_bias", "fusion_start", "warm_epoch"),
    *("augment", "crop", "target_share"),
]
COMMANDS: dict[str, tuple[str, list[str]]] = {
    "train": (
        "train and score a model; run the same command again to resume",
        [],  # all
    ),
    "test": (
        "score weights on the test list",
        ["task", *READING, *DEVICE, *SCORING],
    ),
    "predict": (
        "find targets in images and videos: masks, tables, pictures with the detections marked",
        PREDICTING,
    ),
    "data": ("report what a data set holds and what is wrong with it", READING),
    "doctor": (
        "look at this machine, and say what is wrong and what to do about it",
        [*READING, *DEVICE, *LOOKED_AT],
    ),
    "bench": (
        "measure training, scoring, data, start and memory on this device",
        [name for name in Config.model_fields if name not in NOT_BENCHED],
    ),
    "export": (
        "write weights as a file for other programs, and check it (extra: export)",
        ["weight_path"],
    ),
    "compare": (
        "put runs side by side: scores, protocols, curves, and what went wrong",
        [],
    ),
    "pack": ("put a run into one file, to take it along", []),
}

# %% [markdown]
# Four commands take their main argument without a flag. And some flags are no settings: what a bench measures, the format of an export. No run records them, so they belong to their command alone, as options of argparse, and go to it as they are.

# %%
#| export
PLACED: dict[str, tuple[str, str, str | None, str]] = {  # name, how it is shown, nargs, help
    "data": ("folder", "DIR", "?", "folder or archive of it, or a name"),
    "compare": ("runs", "RUN", "+", "folder of a run, or of scores"),
    "pack": ("run", "RUN", None, "folder of the run"),
    "predict": ("inputs", "INPUT", "*", "image, video, folder, or glob in quotes"),
}
OWN: dict[str, dict[str, dict[str, Any]]] = {
    "doctor": {
        "json": {
            "action": "store_const",
            "const": True,
            "help": "print one JSON object with the worst level and all lines, and nothing else",
        }
    },
    "bench": {
        "baseline": {
            "nargs": "?",
            "const": "results/baseline/plain.py",
            "help": "measure a plain PyTorch script too, turn by turn with ours: ratios are given "
            "only if losses and scores are equal, else status 1 (default file: the one of a "
            "checkout, results/baseline/plain.py)",
        },
        "repeats": {
            "type": int,
            "help": "turns of each measurement; the median counts (default 5)",
        },
        "batch_sizes": {
            "help": "batch sizes of training, such as 4,16 (default: batch_size and 4 times that)"
        },
        "images": {"type": int, "help": "images of each turn (default 32)"},
        "weights": {
            "help": "score with the weights of weight_path (trained), with untrained ones that "
            "predict thousands of components (noisy), or with both (default)"
        },
        "largest_batch": {
            "action": "store_const",
            "const": True,
            "help": "try larger and larger batches until one does not fit, and measure no more",
        },
        "rate": {
            "type": float,
            "help": "what an hour of this device costs you, such as 1.2: the projected hours get "
            "their cost (default: none)",
        },
    },
}

OWN["export"] = {
    "format": {"help": "onnx (default) or safetensors"},
    "output": {"help": "file to write (default: beside the weights, named after them)"},
}
OWN["compare"] = {
    "output": {
        "help": "FILE.png, FILE.md or FILE.json to write; a folder gets all three, and the worst "
        "images with their causes"
    },
    "anyway": {
        "action": "store_const",
        "const": True,
        "help": "compare what is not comparable, and say on the table and in the picture why not",
    },
}
OWN["pack"] = {
    "format": {"help": "zip or tar.gz (default)"},
    "output": {"help": "file to write (default: beside the run, named after it)"},
}
OWN["predict"] = {
    "tile": {
        "type": int,
        "help": "longest side predicted in one piece, in pixels; larger frames are cut into tiles "
        "that overlap (a multiple of 16, 128 to 8192, default 1024)",
    },
    "save": {
        "help": "pictures to write: some of masks,overlays,probabilities (default: the first two), "
        "or none"
    },
}
LAST_WORDS = {  # below the flags of a command
    "doctor": "status: 0 all is well; 1 there is a warning; 2 there is an error, or a mistake in "
    "the flags",
    "predict": "results: predictions/NAME, or --output-dir; no result depends on --batch-size; "
    "status: 0 all is predicted; 1 a file could not be read and was skipped; 2 a mistake",
}


# %% [markdown]
# argparse's own messages are terse and its abbreviations are a trap: `--warm` would work until a second flag begins with it. Our parser has no abbreviations, and a mistake is a `UserError`.
#
# One parser knows all commands. The two groups of flags in its help are the two kinds of settings: those that change the result, and those of the machine.

# %%
#| export
class _Parser(argparse.ArgumentParser):
    "argparse without abbreviations, whose errors are one line."

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        "A mistake in the flags."
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
    "The settings of a task that a command takes as flags."
    known = list(settings.model_fields)
    return known if command == "train" else [n for n in COMMANDS[command][1] if n in known]


def make_parser(
    settings: type[Settings] = Config,  # of which task
) -> argparse.ArgumentParser:
    "The parser of all commands."
    about = "MSHNet: infrared small target detection. Train, score, look."
    parser = _Parser(prog="mshnet", description=about)
    parser.add_argument("--version", action="version", version=f"mshnet {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command, (text, _) in COMMANDS.items():
        names = flags_of(command, settings)
        sub = commands.add_parser(command, help=text, description=text)
        if command in PLACED:
            placed, sign, count, hint = PLACED[command]
            sub.add_argument(placed, metavar=sign, nargs=count, help=hint)
        if names:
            sub.add_argument("--config", default="", metavar="FILE", help="JSON file of settings")
        for name, how in OWN.get(command, {}).items():
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
        presets = f"presets: {', '.join(settings.presets)}" if command == "train" else None
        sub.epilog = LAST_WORDS.get(command, presets)
    return parser


# %%
with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.suppress(SystemExit):
    make_parser().parse_args(["test", "--help"])
assert "rule" in flags_of("test", Config) and "epochs" not in flags_of("test", Config)
print(shown.getvalue()[:900])


# %% [markdown]
# Which flags there are depends on the task, so we look for the task first: among the words, in the file of settings, in the run that is resumed or scored.
#
# Names of several words are written with dashes or, as in a notebook, with underscores. An unknown flag is answered with the likely one, a retired flag with its replacement, and a known flag of another command is named as such.

# %%
#| export
def _settings_asked(words: Sequence[str]) -> type[Settings]:
    "The settings of the task that the words of a command line are about."
    parser = _Parser(prog="mshnet", add_help=False)
    for flag in ("--task", "--config", "--resume", "--weight-path"):
        parser.add_argument(flag, nargs="?", const="", default="")
    asked = parser.parse_known_args(words)[0]
    written = read_settings(asked.config) | ({"task": asked.task} if asked.task else {})
    run = asked.resume or (asked.weight_path if "test" in words[:1] else "")
    return settings_class(task_of(written, settings_of(run)))


def parse(
    words: Sequence[str],  # as on the command line, without the program's name
) -> tuple[str, dict[str, Any], str]:  # command, settings that were written, config file
    "Read the command line; UserError for a mistake."
    words = [re.sub("^--[^=]+", lambda flag: flag[0].replace("_", "-"), word) for word in words]
    settings = _settings_asked(words)
    parsed, rest = make_parser(settings).parse_known_args(words)
    written = {k: v for k, v in vars(parsed).items() if v is not None}
    command, file = written.pop("command"), written.pop("config", "")
    if "inputs" in written:  # flags may stand between them
        written["inputs"] += [word for word in rest if not word.startswith("-")]
        rest = [word for word in rest if word.startswith("-")]
    if rest:
        flag, name = rest[0], rest[0].lstrip("-").split("=")[0].replace("-", "_")
        if not flag.startswith("-"):
            raise UserError(f"{flag!r} is one word too many; see mshnet {command} --help")
        if name in settings.model_fields:
            raise UserError(f"{flag} means nothing to `mshnet {command}`; leave it out")
        known = [*OWN.get(command, {}), *flags_of(command, settings)]
        raise UserError(unknown(name, known, f"; see mshnet {command} --help"))
    if folder := written.pop("folder", ""):
        written["dataset_dir"] = folder
    return command, written, file


# %%
def answer(line):
    "What a command line is answered with."
    try:
        return parse(line.split())
    except UserError as error:
        return str(error)


lines = ["train --epochz 3", "train --mode train", "test --epochs 3", "trian", "data a b"]
lines += ["data sirst --config x.json"]
answers = [answer(line) for line in lines]
assert "did you mean 'epochs'" in answers[0] and "leave it out" in answers[2]
answers


# %% [markdown]
# ## What the commands do
#
# Without `--weight-path`, `test` and `predict` use the weights that come with the library, and print that. A folder for scores is checked first, because after an hour of work it is too late.

# %%
#| export
def _tell(line: str) -> None:
    "Print a line beside the results, on stderr; nothing where the terminal is gone."
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)


def _which_weights(config: Settings) -> str:
    "The weights that are used, and where their card is."
    from mshnet.weights import PRETRAINED, weights_file

    if config.weight_path not in ("", PRETRAINED):
        return config.weight_path
    return f"pretrained; their card: {weights_file(PRETRAINED).with_suffix('.md')}"


def _result_folder(name: str) -> Path:
    "A folder for scores that can be written and holds no run; UserError, before any work, if not."
    from mshnet.files import cannot_be_written

    folder = Path(name).expanduser()
    if (folder / "log.jsonl").exists():
        raise UserError(f"output_dir={name!r}: holds a run, whose scores stay; write another")
    with cannot_be_written(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".writable").touch()
        (folder / ".writable").unlink()
    return folder


# %% [markdown]
# Training draws the pictures of the finished run. Scoring prints the protocol with the scores, because a number without it cannot be compared. Prediction skips what it cannot read, and returns status 1. If the weights are of a task other than detection, that task predicts the files.

# %%
#| export
def _train(config: Settings) -> int:
    "Train, with pictures at the end."
    from mshnet.task import make_task
    from mshnet.train import keep_copies, processes_to_start, train

    run = train(config)
    if processes_to_start(config) or not first_process() or not run.scores:
        return 0  # the first process does the rest; no epoch is done
    make_task(config).report(run.folder)
    if list((run.folder / "figures").glob("*")):
        _tell(f"figures {run.folder / 'figures'}")
    if said := keep_copies(config):
        _tell(said)
    return 0


def _test(config: Settings) -> int:
    "Score weights, say how, and keep it if a folder is given."
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
    "Predict files, and say where the results are; status 1 if one could not be read."
    from mshnet.evaluate import OtherTask
    from mshnet.predict import predict_files
    from mshnet.task import make_task

    names = ("output_dir", "device", "precision", "batch_size", "num_workers")
    settings = {name: getattr(config, name) for name in names}
    try:
        summary = predict_files(config.weight_path, inputs, **settings, **how)
    except OtherTask as other:
        task = make_task(settings_class(other.task)())
        summary = task.predict_files(config.weight_path, inputs, **settings, **how)
    print(f"{summary}\nweights  {_which_weights(config)}\nresults  {summary.folder}")
    return summary.status


# %% [markdown]
# The next four only look, and their status tells a script what they found. `compare` reads what runs left, so it needs neither their data nor a device, except for the pictures of the worst images.

# %%
#| export
def _data(config: Config) -> int:
    "Print the data report; status 2 if the data cannot be used."
    from mshnet.data import report

    text, usable = report(config)
    print(text)
    return 0 if usable else 2


def _doctor(config: Config, json: bool = False) -> int:
    "Print what the machine is; status 1 if there is a warning, 2 if there is an error."
    from mshnet.doctor import doctor

    with contextlib.redirect_stdout(sys.stderr):  # such as what is said of an archive
        found = doctor(config)
    print(found.to_json() if json else found)
    return found.status


def _bench(config: Config, **asked: Any) -> int:
    "Print what was measured; status 1 if the plain path gives another result."
    from mshnet.bench import Options, bench, largest_batch, largest_text, table

    options = Options(**asked)
    if options.largest_batch:
        print(largest_text(largest_batch(config), config))
        return 0
    if config.output_dir:
        _result_folder(config.output_dir)
    content = bench(config, options)
    print(table(content))
    return 1 if content["problem"] else 0


def _compare(config: Config, runs: list[str], output: str = "", anyway: bool = False) -> int:
    "Print runs side by side, and write it where that is asked for."
    from mshnet.compare import compare, keep_comparison, output_place

    place = output_place(output) if output else None
    found = compare(runs, anyway)
    print(found)
    for line in keep_comparison(found, place) if place else ():
        _tell(line)
    return 0


# %% [markdown]
# The last two make a file, of weights or of a run.

# %%
#| export
def _export(config: Config, **how: str) -> int:
    "Write weights as a file for other programs, and say which and how near it is."
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
    "Put a run into one file, and say which."
    from mshnet.places import megabytes
    from mshnet.session import pack

    path = pack(run, **how)
    print(f"{path}  {megabytes(path.stat().st_size)}")
    return 0


DO: dict[str, Callable[..., int]] = {
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
# Every command ends in `main`, with a status for scripts. Warnings and errors are one line each; a warning is printed once even where several processes run. `mshnet test` on a checkpoint of a run takes the settings of that run where none are written: the sizes and the data it was trained with.

# %%
#| export
ENDS = {"train": STOPPED, "predict": "stopped; what is written is whole"}  # when interrupted


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    "A warning as one line."
    if first_process():
        _tell(f"warning: {message}")


def main(
    words: Sequence[str] | None = None,  # None: those of this process
) -> int:  # exit status: 0, 1 something is wrong, 2 a mistake or an error, 128 + a signal's number
    "Run a command."
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        command = ""
        try:
            command, written, file = parse(sys.argv[1:] if words is None else words)
            names = ["run", "runs", "inputs", *OWN.get(command, {})]
            own = {name: written.pop(name) for name in names if name in written}
            run = str(written.get("weight_path", "")) if command == "test" else ""
            status = DO[command](configure(written, file, run), **own)
            sys.stdout.flush()
            return status
        except UserError as error:
            who = "mshnet" if first_process() else f"mshnet, process {os.environ['RANK']}"
            _tell(f"{who}: {error}")
            return 2
        except KeyboardInterrupt as stopped:  # a Stopped knows its signal
            if first_process():
                _tell(f"mshnet: {ENDS.get(command, 'stopped')}")
            number = getattr(stopped, "number", 2)  # 0: its time was over, as planned
            return 128 + number if number else 0
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.ENOSPC):
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python flushes once more at its end
            if error.errno == errno.EPIPE:  # such as `mshnet data DIR | head`: nobody reads on
                return 141
            _tell(f"mshnet: the output cannot be written ({error.strerror})")
            return 2


# %%
for line in (
    "train --epochs none",
    "train --lerning-rate 1",
    "test --weight-path none.pt",
    "export",
    "data no-such-folder",
):
    with contextlib.redirect_stderr(io.StringIO()) as said:
        status = main(line.split())
    print(status, said.getvalue().strip())
    test_eq(status, 2)
