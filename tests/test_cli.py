"The command line: what a user's mistakes are answered with, and what the commands print."

import errno
import json
import re
import shutil
import subprocess
import sys
import warnings
from unittest.mock import Mock

import pytest
import torch
from conftest import call, make_dataset, refused

from mshnet import session
from mshnet.cli import _RUN, main, parse
from mshnet.core import (
    TASKS,
    OptimizerFields,
    Settings,
    UserError,
    configure,
    from_notebook,
    is_record,
    run_name,
    settings_class,
    settings_from,
)
from mshnet.recipe import PRESETS, Config

FAST = "--base-size 32 --crop-size 32 --epochs 1 --warm-epoch -1 --batch-size 2 --choose last"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("train --epochs 0", "a value greater than or equal to 1"),
        ("train --epochs three", "epochs=three is not possible: use a valid integer"),
        ("train --lr nan", "use a finite number"),
        ("train --device gpu", "auto, cpu, cuda, cuda:N, mps or xla"),
        ("train --preset papers", "did you mean 'paper'?"),
        ("train --warm 3", "did you mean"),
        ("train --cache gpu", "use 'auto', 'host' or 'stream'"),
        ("test --epochz 3", "unknown setting 'epochz'; see mshnet test --help"),
        ("test --weight_path none.pt", "none.pt: there is no such file"),
        ("export --out x.onnx", "did you mean 'output'?"),
        ("test --weight-path ~nobody-here/best.pt", "weight_path="),
        (f"test --weight-path {'a' * 3000}", "weight_path="),
        ("trian", "invalid choice"),
        ("", "the following arguments are required: COMMAND"),
        ("data a b", "unexpected argument 'b'; see mshnet data --help"),
        ("train a --dataset-dir b", "a: --dataset-dir b is given as well; use one of them"),
        ("test a b", "--weight-path a is given as well; use one of them, or --dataset-dir b"),
        ("train -epochs 3", "-epochs: a flag begins with two dashes; use --epochs"),
        ("predict -min-area 3 a", "-min-area: a flag begins with two dashes; use --min-area"),
        ("predict --output x a", "did you mean 'output_dir'?"),
        ("test --threshold 0.3", "mshnet test has no option --threshold; leave it out"),
        ("pack run", "pack is retired: `tar -czf RUN.tar.gz RUN` makes one file"),
        ("train --config nothing.json", "not a readable JSON file"),
        ("train --config=", "--config is empty, as a variable that is not set"),
        ("train --dataset-dir=", "--dataset-dir is empty, as a variable that is not set"),
        ("test --test-list=", "--test-list is empty, as a variable that is not set"),
        ("train a --data-path b", "a: --dataset-dir b is given as well; use one of them"),
        ("train --data-path a --dataset-dir b", "dataset_dir"),
        ("train --mirror-dir=", "--mirror-dir is empty, as a variable that is not set"),
        ("--task eit train", "--task: the command comes first: mshnet COMMAND --task"),
    ],
)
def test_a_mistake_is_one_line_with_its_remedy(capsys, line, said):
    "No traceback, status 2, what to write instead."
    assert said in refused(capsys, line)


def test_a_folder_of_data_needs_no_flag(capsys, tmp_path):
    "In train as in data; a run there is no data set."
    folder, run = make_dataset(tmp_path / "set"), tmp_path / "run"
    run.mkdir()
    (run / "config.json").touch()
    for line in (f"train {folder} --lr 1", f"data {folder}", f"bench --seed 1 {folder}"):
        assert parse(line.split())[1]["dataset_dir"] == str(folder)
    assert parse(["export", "export"])[1] == {"weight_path": "export"}  # a run of this name
    assert f"use --resume {run}, or --weight-path {run}" in refused(capsys, f"train {run}")


def test_a_warning_is_printed_once(capsys, monkeypatch):
    "Training and its pictures read the same data; different warnings are all printed."

    def command(config):
        for text in ("masks", "masks", "lists"):
            warnings.warn(text, stacklevel=2)
        return 0

    monkeypatch.setitem(_RUN, "doctor", command)
    for _ in range(2):  # each command prints its own
        assert call(capsys, "doctor")[2] == "warning: masks\nwarning: lists\n"


NO_SETTINGS = {
    "nested": (b"[" * 100_000, "not a readable JSON file"),
    "nested value": (b'{"epochs":' + b"[" * 900 + b"]" * 900 + b"}", "use a valid integer"),
    "large": (b" " * (17 * 2**20), "more than 16 MB"),
    "other encoding": ('{"préset": 3}'.encode("latin-1"), "not a readable JSON file"),
    "list": (b"[3]", "use an object"),
    "list for a preset": (b'{"preset": ["paper"]}', "preset=['paper'] is not known"),
    "nothing for a preset": (b'{"preset": {}}', "preset={} is not known"),
    "line break in a name": (rb'{"a\nb": 1}', r"unknown setting 'a\nb'"),
    "half a character": (rb'{"\ud800": 1}', r"unknown setting '\ud800'"),
    "many names": (json.dumps({f"no{i}": i for i in range(9000)}).encode(), "setting 'no0'; "),
    "long value": (json.dumps({"lr": "9" * 10**6}).encode(), "use a finite number"),
    "no such user": (b'{"resume": "~nobody-here/last.pt"}', "resume=~nobody-here/last.pt is"),
    "no name": (rb'{"dataset_dir": "a\u0000b"}', r"dataset_dir='a\x00b' is not possible"),
    "long name": (json.dumps({"resume": "a" * 3000}).encode(), "that a file or folder can have"),
    "contradiction": (rb'{"epochs": 3, "device": "a\nb"}', r"device='a\nb' is not possible"),
}


@pytest.mark.parametrize("kind", NO_SETTINGS)
def test_a_file_that_holds_no_settings_is_one_line(capsys, tmp_path, kind):
    "Whatever is given as a settings file, the answer can be read at one look."
    content, said = NO_SETTINGS[kind]
    (tmp_path / "given.json").write_bytes(content)
    line = refused(capsys, f"train --config {tmp_path / 'given.json'}")
    assert said in line
    assert len(line) < 2500


@pytest.mark.parametrize("setting", ["epochz", "mode", "Epochs"])
def test_notebook_and_command_line_refuse_alike(capsys, setting):
    "papermill -p epochz 3 fails with the reason of --epochz 3; only a variable stays as it is."
    with pytest.raises(UserError) as error:
        from_notebook({setting: 3})
    line = refused(capsys, f"train --{setting} 3")
    assert f"mshnet: {error.value}" == f"{line} (then also run `del {setting}`)"
    with pytest.raises(UserError, match=r"device=.*: use a number, a text, True or False"):
        from_notebook({"device": object(), "augment": print, "rule": ""})


def test_a_folder_that_may_not_be_read_is_one_line(capsys, monkeypatch):
    "Wherever Python asks whether a file is there."
    denied = PermissionError(errno.EACCES, "Permission denied", "locked/a.png")
    monkeypatch.setitem(_RUN, "test", Mock(side_effect=denied))
    line = refused(capsys, "test a --output-dir b")
    assert "mshnet: 'locked/a.png': Permission denied; permit it" in line


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    "A run of one epoch on a tiny data set, made by the command line."
    top = tmp_path_factory.mktemp("cli")
    folder = make_dataset(top / "set")
    assert main(f"train --dataset-dir {folder} --output-dir {top / 'run'} {FAST}".split()) == 0
    return top


def test_train_ends_with_the_score_line_and_draws_the_figures(capsys, finished, tmp_path):
    "So does the same command again, its config.json overruled by flags, and its last.pt alone."
    line = f"train --dataset-dir {finished / 'set'} --output-dir {finished / 'run'} {FAST}"
    wanted = json.loads((finished / "run" / "scores.json").read_text())["line"]
    by_file = f"train --config {finished / 'run' / 'config.json'} --output-dir {tmp_path / 'run'}"
    alone = f"train --resume {shutil.copy(finished / 'run' / 'last.pt', tmp_path)}"
    for each in (line, by_file, alone, alone.removesuffix("/last.pt")):
        status, out, _ = call(capsys, each)
        assert (status, out.splitlines()[-1]) == (0, wanted)
    drawn = {p.name for p in (finished / "run" / "figures").iterdir()}
    assert drawn == {"learning.png", "trade_offs.png", "gallery.png"}


def test_test_takes_the_runs_own_settings(capsys, finished, tmp_path):
    "Naming the weights is enough; the scores are the run's, and kept where asked."
    weights = finished / "run" / "best.pt"
    status, out, _ = call(capsys, f"test --weight-path {weights} --output-dir {tmp_path / 'again'}")
    scores = json.loads((finished / "run" / "scores.json").read_text())
    assert (status, out.splitlines()[-1]) == (0, scores["line"])
    again = json.loads((tmp_path / "again" / "scores.json").read_text())
    assert again["scores"] == scores["scores"]
    folder = make_dataset(tmp_path / "set")
    (folder / "trainval.txt").unlink()  # scoring needs no training images
    line = f"test --weight-path {weights} --dataset-dir {folder} --test-list test.txt"
    assert call(capsys, line)[0] == 0


def test_long_commands_show_that_they_work(capsys, finished, tmp_path, monkeypatch):
    "Lines in a log; on a terminal a bar where something can be counted."
    weights = finished / "run" / "best.pt"
    monkeypatch.setattr(session, "_EVERY", 0.0001)
    scoring = f"test --weight-path {weights}"
    export = f"export --weight-path {weights} --output {tmp_path}/a.safetensors"
    lines = {
        scoring: r"(?m)^  score test: \d+ of \d+ batches, [\d:?]+ left$",
        export: r"(?m)^  compare safetensors with PyTorch: \d+ s so far$",
    }
    bars = {scoring: r"\rscore test: +\d+%\|"}
    for terminal, wanted in ((False, lines), (True, bars)):
        monkeypatch.setattr(session, "watched", lambda terminal=terminal: terminal)
        for line, pattern in wanted.items():
            assert re.search(pattern, call(capsys, line)[2])


def test_a_run_is_not_overwritten_by_a_test_of_it(capsys, finished):
    "Its scores stay; a folder that cannot be written is refused before the work."
    line = f"test --weight-path {finished / 'run' / 'best.pt'} --output-dir"
    before = (finished / "run" / "scores.json").read_bytes()
    assert "holds a run" in refused(capsys, f"{line} {finished / 'run'}")
    assert (finished / "run" / "scores.json").read_bytes() == before
    (finished / "scores.json").write_text("{}")  # of another program
    assert "holds another scores.json" in refused(capsys, f"{line} {finished}")
    assert "cannot be written" in refused(capsys, f"{line} {finished / 'scores.json' / 'x'}")


def test_a_file_overrules_the_settings_of_the_run_that_is_tested(capsys, finished, tmp_path):
    "The run's < the file's < the flags'; a record of a newer release is read."
    file, weights = tmp_path / "mine.json", finished / "run" / "best.pt"
    whole = call(capsys, f"test --weight-path {weights}")
    file.write_text(json.dumps({"weight_path": str(weights)}))
    assert call(capsys, f"test --config {file}") == whole
    shutil.copytree(finished / "run", tmp_path / "newer")  # whose record has a setting more
    record = json.loads((tmp_path / "newer" / "config.json").read_text()) | {"of_tomorrow": 1}
    (tmp_path / "newer" / "config.json").write_text(json.dumps(record))
    assert call(capsys, f"test --weight-path {tmp_path / 'newer'}")[0] == 0
    file.write_text(json.dumps({"threshold": 0.4}))
    assert "threshold is an option, no" in refused(capsys, f"predict a.png --config {file}")
    file.write_text(json.dumps({"rule": "reference", "base_size": 64}))
    _, out, _ = call(capsys, f"test --weight-path {weights} --config {file} --base-size 48")
    assert re.search("rule +reference", out) and re.search("size +48", out)


BAD = {  # writes a file that is no checkpoint
    "text": lambda path, last: path.write_text("no checkpoint"),
    "other model": lambda path, last: torch.save({"state_dict": {"w": torch.ones(2)}}, path),
    "missing": lambda path, last: None,
    "cut": lambda path, last: path.write_bytes(last.read_bytes()[:5000]),
}


@pytest.mark.parametrize("flag", ["--resume", "--weight-path"])
@pytest.mark.parametrize("kind", BAD)
def test_a_bad_checkpoint_is_refused(capsys, finished, tmp_path, monkeypatch, flag, kind):
    "Nothing is written."
    monkeypatch.chdir(tmp_path)
    BAD[kind](tmp_path / "bad.pt", finished / "run" / "last.pt")
    where = f"--dataset-dir {finished / 'set'} --output-dir {tmp_path / 'run'}"
    assert "bad.pt" in refused(capsys, f"train {where} {FAST} {flag} bad.pt")
    assert {p.name for p in tmp_path.iterdir()} <= {"bad.pt"}


def test_a_data_set_gets_its_lists_by_one_command(capsys, tmp_path):
    "Which prints the report on them; the same seed as a flag, and mistakes in one line."
    folder = make_dataset(tmp_path / "set")
    for file in folder.glob("*.txt"):
        file.unlink()
    assert "`mshnet data DIR --split 0.5` writes both" in refused(capsys, f"data {folder}")
    assert "split=1 is not possible" in refused(capsys, f"data {folder} --split 1")
    assert "invalid float value: 'half'" in refused(capsys, f"data {folder} --split half")
    shutil.copytree(folder / "masks", folder / "images" / "more")  # the same names elsewhere
    shutil.copy(folder / "images" / "test_0.png", folder / "images" / "new.png")
    status, out, _ = call(capsys, f"data {folder} --split 0.7 --seed 3")
    assert status == 0 and out.startswith(f"lists written to {folder}: train.txt (7)")
    assert "test.txt (3); left out, without a mask of the same name: 11 (more/test_0)\n" in out
    assert "there is a list" in refused(capsys, f"data {folder} --split 0.7 --seed 3")


def test_a_truth_value_is_a_flag_or_a_word():
    "In a file, in a notebook and on the command line."
    for words, value in (("--deterministic", "true"), ("--deterministic false", "false")):
        assert parse(f"train {words} --seed 1".split())[1]["deterministic"] == value
        assert configure({"deterministic": value}).deterministic is (value == "true")
    assert Config(deterministic=True).deterministic


def test_flags_may_stand_between_inputs():
    "As people type them."
    _, written, *_ = parse(["predict", "a.png", "--tile", "512", "b.png", "--save", "none"])
    assert written == {"inputs": ["a.png", "b.png"], "tile": 512, "save": "none"}
    for line in ("r --output-dir r", "--output-dir r r", "--device cpu r --output-dir r"):
        _, written, *_ = parse(f"test {line}".split())
        assert (written["weight_path"], written["output_dir"]) == ("r", "r")


def test_aliases_and_merging(tmp_path):
    "Defaults < preset < file (here with the mark of Windows' editors) < flags; names of guides."
    file = tmp_path / "mine.json"
    file.write_text('{"epochs": 7, "lr": 0.2}', encoding="utf-8-sig")
    config = configure({"preset": "a100", "lr": "0.3", "data_path": "x"}, str(file))
    wanted = Config(preset="a100", epochs=7, lr=0.3, dataset_dir="x")
    assert config == wanted and config.batch_size == PRESETS["a100"]["batch_size"]


@pytest.mark.parametrize(
    ("written", "epochs"),
    [
        ({}, 9),  # the first look
        ({"scenes": 24}, 9),
        ({"scenes": 24, "base_size": 64, "epochs": 3}, 3),
        ({"scenes": 24, "preset": "steady"}, 200),
        ({"preset": "paper", "lr": 0.1}, 400),
        ({"dataset_dir": "sirst"}, 200),
        ({"dataset_dir": "sirst", "preset": "quick", "deterministic": True}, 9),
        ({"dataset_dir": "\udcba", "preset": "a100", "batch_size": 8}, 200),  # not UTF-8
    ],
)
def test_every_door_gives_the_same_settings(tmp_path, written, epochs):
    "Config, the command line, a file and a runner's variables: one recipe, one run."
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(written))
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in written.items()]
    config = Config(**written)
    assert config.epochs == epochs
    cell = {"preset": "", "dataset_dir": "", "lr": None, **written}  # as a runner has it
    doors = [configure(parse(["train", *flags])[1]), configure({}, str(file)), from_notebook(cell)]
    for other in doors:
        assert other == config and run_name(other) == run_name(config)
    assert Config(**config.model_dump()) == settings_from(config.model_dump()) == config


def test_a_preset_is_applied_below_what_is_written_and_never_to_a_record(tmp_path):
    "A label without its settings would be another recipe; a record has its own."
    paper = Config(preset="paper", lr=0.1, dataset_dir="sirst")
    assert (paper.optimizer, paper.epochs, paper.lr) == ("adagrad", 400, 0.1)
    assert "preset = 'paper'\n" in str(paper) and "\nlr = 0.1\n" in str(paper)
    assert [settings_from({"preset": p, "lr": 0.1}).epochs for p in ("quick", "")] == [200, 200]
    whole = Config(preset="steady", scenes=24).model_dump() | {"preset": ""}  # of before
    (tmp_path / "config.json").write_text(json.dumps(whole))
    assert configure({}, str(tmp_path / "config.json")).model_dump() == whole
    with pytest.warns(UserWarning, match="preset is not used: a run keeps its settings"):
        resumed = configure({"preset": "paper", "resume": str(tmp_path)})
    with pytest.warns(UserWarning, match="preset is not used"):
        repeated = configure({"preset": "paper"}, str(tmp_path / "config.json"))
    (tmp_path / "mine.json").write_text('{"preset": "paper"}')
    few = {"seed": 3, "choose": "val", "lr": 0.02}  # of a user; no run has recorded them
    (tmp_path / "few.json").write_text(json.dumps(few))
    mine = configure({"preset": "paper"}, str(tmp_path / "few.json"))
    assert mine == Config(preset="paper", **few) and mine.optimizer == "adagrad"
    (tmp_path / "few.json").write_text(json.dumps(few | {"checkpoint": "a.pt"}))
    with pytest.raises(UserError, match="checkpoint is retired: use --weight-path"):
        configure({}, str(tmp_path / "few.json"))
    with pytest.warns(UserWarning, match="preset is not used: a run keeps its settings"):
        by_file = configure({"resume": str(tmp_path)}, str(tmp_path / "mine.json"))
    with pytest.raises(UserError, match="batch_size=4: batch_size=8 is given as well"):
        configure({"batch_size": 8, "global_batch_size": 4})
    assert resumed.preset == repeated.preset == "" and resumed.optimizer == "adamw"
    assert by_file == resumed
    lists = {"dataset_dir": "a", "train_list": "b.txt", "test_list": "b.txt"}
    (tmp_path / "config.json").write_text(json.dumps(whole | lists))
    moved = configure({"resume": str(tmp_path), "dataset_dir": "moved"})
    assert (moved.dataset_dir, moved.train_list) == ("moved", "b.txt")
    (tmp_path / "b.txt").touch()  # as in a data set that was moved
    for folder in ("a", "./a/", str(tmp_path)):
        assert configure({"dataset_dir": folder}, trained=whole | lists).test_list == "b.txt"
    shipped = lists | {"dataset_dir": "x/NUAA-SIRST.zip", "test_list": "nuaa-sirst-authors427-test"}
    moved = configure({"dataset_dir": "NUAA-SIRST"}, trained=whole | shipped)
    assert moved.test_list == shipped["test_list"]
    with pytest.warns(UserWarning, match="test_list=b.txt is not used: it is not in other; name"):
        assert configure({"dataset_dir": "other"}, trained=whole | lists).train_list == ""


OPTIONAL = {"IPython", "av", "flyr", "google", "imageio", "ipywidgets", "nbdev", "onnx", "pandas"}
OPTIONAL |= {"onnxruntime", "onnxscript", "papermill", "safetensors", "torch_xla", "trackpy"}
WHOLE = """import pkgutil, mshnet
  for module in pkgutil.walk_packages(mshnet.__path__, "mshnet."): __import__(module.name)"""


@pytest.mark.parametrize(
    ("words", "absent"),
    [
        (["--help"], {"torch", "matplotlib"}),
        (["train", "--help"], {"torch", "matplotlib"}),
        (["train", "--epochz", "3"], {"torch", "matplotlib"}),
        (["train", "--task", "events", "--epochz", "3"], {"torch", "matplotlib"}),
        ([], OPTIONAL),  # all modules
    ],
)
def test_nothing_is_imported_that_is_not_needed(words, absent):
    "torch takes seconds: nobody should wait for it to learn of a typing error; nor a training."
    work = f"import mshnet.cli; mshnet.cli.main({words})" if words else WHOLE
    code = f"import sys\ntry:\n  {work}\nexcept SystemExit: pass\n"
    code += f"print({absent} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).endswith("set()\n")


def shown(capsys, *words):
    "The help of a command."
    with pytest.raises(SystemExit):
        main([*words])
    return capsys.readouterr().out


def test_every_setting_is_a_flag_with_its_help(capsys):
    "The flags are made from the settings: none is missing, none is without a word."
    first = shown(capsys, "--help")
    assert "mshnet train DIR" in first and "--task eit" in first and "128+N" in first
    text = shown(capsys, "bench", "--help-all") + shown(capsys, "train", "--help-all")
    assert "--repeats N" in text
    for name, field in Config.model_fields.items():
        kinds = {int: "N", float: "NUMBER", bool: "[{true,false}]"}
        assert f"--{name.replace('_', '-')} {kinds.get(field.annotation, '')}" in text
    assert " X" not in text and "--data-path" not in text


@pytest.mark.parametrize("task", TASKS)
def test_help_shows_a_dozen_flags_and_help_all_the_others(capsys, task):
    "Those of the task and no other's; each preset with what it changes."
    text, settings = shown(capsys, "train", "--task", task, "--help"), settings_class(task)
    assert "--help-all" in text and "settings of task" not in text
    assert text.count("(default ") < 20 and len(text.splitlines()) < 60
    assert "  --epochs N  " in text and "--clip-grad" not in text
    whole = shown(capsys, "train", "--task", task, "--help-all")
    assert f"settings of task {task}:" in whole
    assert ("NUAA-SIRST" in text) == ("--crop-size" in whole) == (task == "detect")
    assert all(f"--{name.replace('_', '-')}" in whole for name in settings.model_fields)
    assert all(f"\n  {name} " in text for name in settings.presets)


@pytest.mark.parametrize(
    "old",
    [
        {"task": "signs", "flip": True, "vocabulary": "words.txt"},
        {"task": "events", "hot_pixels": 0, "time_jitter": ""},
        {"task": "detect", "compile": "auto", "cache": "device"},
    ],
)
def test_a_record_with_retired_values_is_read(old):
    "Weights of such a run are used; the network does not depend on these values."
    assert settings_from(settings_class(old["task"])().model_dump() | old).task == old["task"]


class Mine(Settings):
    "Settings of a task of one's own, one with a name that the library once used."

    task: str = "mine"
    flip: bool = False


def test_a_record_keeps_what_a_class_of_ones_own_or_a_later_release_has(monkeypatch):
    "A retired name is a setting there; a preset that is not known here is a name alone."
    monkeypatch.setitem(TASKS, "mine", (f"{__name__}:Mine", ""))
    assert settings_from(Mine(flip=True).model_dump()).flip
    assert settings_from(Config(lr=0.5).model_dump() | {"preset": "later"}).lr == 0.5
    rates = {name: getattr(Config(), name) for name in OptimizerFields.model_fields}
    with pytest.raises(UserError, match="preset=papper is not known"):
        Config(preset="papper", **rates)
    few = dict.fromkeys(("seed", "eval_every", "clip_grad", "val_fraction", "lr"), 1)
    assert not is_record(few | {"choose": "val"})  # a user's few settings, not those of a run
