"The runner of sign language under papermill."

import json
import sys
from pathlib import Path

import nbformat
import papermill
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from test_runners import RUNNERS, execute

SMALL = {"sentences": 32, "hidden": 32, "epochs": 2, "batch_size": 8, "device": "cpu"}


def check(notebook, run):
    "It ends with the score line; the gallery and the curves are pictures."
    printed = "".join(o.get("text", "") for c in notebook.cells for o in c.get("outputs", []))
    scores = json.loads((run / "scores.json").read_text())
    assert printed.splitlines()[-1] == scores["line"]
    assert scores["protocol"]["task"] == "signs" and "substitutions" in scores["scores"]
    for name in ("gallery(", "learning_curves("):
        [cell] = [c for c in notebook.cells if c.source.startswith(name) or f"\n{name}" in c.source]
        assert any("image/png" in o.get("data", {}) for o in cell.outputs), name
    for picture in ("gallery", "confusions", "lengths"):
        assert (run / "figures" / f"{picture}.png").exists()


def test_the_runner_runs_headless(tmp_path):
    "From top to bottom, on simulated videos."
    check(*execute("signs", tmp_path, **SMALL))


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["local"])
def test_other_runners_take_the_task(tmp_path, name):
    "With task=signs."
    check(*execute(name, tmp_path, task="signs", preset="quick", **SMALL))


def test_its_parameters_name_the_task():
    "So nothing else must be written."
    notebook = nbformat.read(RUNNERS / "signs.ipynb", 4)
    [cell] = [c for c in notebook.cells if "parameters" in c.metadata.get("tags", [])]
    assert 'task = "signs"' in cell.source
    assert papermill.inspect_notebook(str(RUNNERS / "signs.ipynb"))["task"]["default"] == '"signs"'
