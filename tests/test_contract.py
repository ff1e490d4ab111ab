"""What users rely on, kept in contract.json: a diff of that file is the list of what they lose.

`python tests/test_contract.py` writes the file anew.
"""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import refused

import mshnet
from mshnet.cli import make_parser
from mshnet.core import RETIRED, TASKS, UserError, settings_class
from mshnet.recipe import Config
from mshnet.task import make_task
from mshnet.train import train

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "tests/contract.json"


def flags(settings):
    "The arguments of every command: flags or name, help."
    [commands] = [a for a in make_parser(settings)._actions if a.dest == "command"]
    found = {}
    for name, sub in commands.choices.items():
        each = [a for a in sub._actions if a.dest != "help"]
        found[name] = {" ".join(a.option_strings) or a.dest: a.help for a in each}
    return found


def fields(settings):
    "The settings of a task: default and constraints."
    found = settings.model_fields.items()
    return {name: [str(field.default), *map(str, field.metadata)] for name, field in found}


def names():
    "The public names of each module."
    found = {}
    for path in sorted((ROOT / "mshnet").rglob("[!_]*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
                module = path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
                found[module] = sorted(ast.literal_eval(node.value))
    return found


def files(folder):
    "The files of a finished run."
    small = {"scenes": 8, "base_size": 32, "crop_size": 32, "epochs": 1, "batch_size": 2}
    config = Config(**small, preset="steady", device="cpu", output_dir=str(folder))
    train(config)
    make_task(config).report(folder)
    found = [p for p in folder.rglob("*") if p.is_file() and p.name != ".lock"]
    return sorted(p.relative_to(folder).as_posix() for p in found)


def contract():
    "All of it but the files of a run, which take a training."
    tasks = {name: settings_class(name) for name in TASKS}
    return {
        "commands": flags(Config),
        "settings": {name: fields(kind) for name, kind in tasks.items()},
        "names": names(),
        "retired": dict(sorted(RETIRED.items())),
        "mshnet": sorted(mshnet.__all__),
    }


def test_the_contract_is_what_it_was():
    "Whoever changes a flag, a setting or a public name writes contract.json anew and sees what."
    kept = json.loads(FILE.read_text(encoding="utf-8"))
    kept.pop("files")
    words = [sys.executable, __file__, "print"]  # where no other test has added a task
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == kept


def test_a_finished_run_has_these_files(tmp_path):
    "People copy runs, and tools read them."
    assert files(tmp_path / "run") == json.loads(FILE.read_text(encoding="utf-8"))["files"]


@pytest.mark.parametrize("name", RETIRED)
def test_a_retired_setting_names_its_replacement(name, capsys):
    "One line, status 2, on the command line and in Python."
    assert RETIRED[name] in refused(capsys, "train", f"--{name.replace('_', '-')}", "1")
    with pytest.raises(UserError) as wrong:
        Config(**{name: 1})
    assert RETIRED[name] in str(wrong.value)


if __name__ == "__main__":
    import tempfile

    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if sys.argv[1:] == ["print"]:
        print(json.dumps(contract()))
        sys.exit()
    with tempfile.TemporaryDirectory() as tmp:
        whole = contract() | {"files": files(Path(tmp) / "run")}
    FILE.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
