"The runner of event cameras under papermill."

import json
import sys
from pathlib import Path

import papermill

sys.path.insert(0, str(Path(__file__).parents[1]))
from test_runners import RUNNERS, execute

SMALL = {"recordings": 40, "dt": "30ms", "width": 4, "features": 4, "d_model": 8, "layers": 1}
SMALL |= {"epochs": 2, "batch_size": 8, "device": "cpu"}


def test_the_runner_runs_headless(tmp_path):
    "From top to bottom, on simulated recordings; it ends with the score line."
    notebook, run = execute("events", tmp_path, **SMALL)
    printed = "".join(o.get("text", "") for c in notebook.cells for o in c.get("outputs", []))
    scores = json.loads((run / "scores.json").read_text())
    assert printed.splitlines()[-1] == scores["line"]
    assert scores["protocol"]["task"] == "events" and scores["scores"]["samples"] == 200
    for name in ("gallery(", "learning_curves("):
        [cell] = [c for c in notebook.cells if c.source.startswith(name) or f"\n{name}" in c.source]
        assert any("image/png" in o.get("data", {}) for o in cell.outputs), name
    assert (run / "figures" / "confusion.png").exists()
    assert (
        papermill.inspect_notebook(str(RUNNERS / "events.ipynb"))["task"]["default"] == '"events"'
    )
