"""The plain script, and the library beside it: what the two compute is compared relative to
rounding, so that the comparison holds on every CPU."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import beside
import numpy as np
import plain
import pytest
import torch
from conftest import TOP
from torch.optim import Adagrad

from mshnet.detection import Detection
from mshnet.recipe import Config

GOLDEN = Path(__file__).parent / "golden"
BASELINE = TOP / "results/baseline"
SMALL = {"scenes": 12, "base_size": 32, "crop_size": 32, "precision": "fp32", "device": "cpu"}
CONFIG = Config(preset="paper", choose="last", **SMALL)


@pytest.mark.parametrize("isa", ["", "AVX2"])
def test_both_compute_the_same_on_every_cpu(tmp_path, isa):
    "As it is, then ratios and memory; and with the convolutions of a CPU without AVX-512."
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(TOP), str(BASELINE)])}
    program = "import beside, sys; NONE = {'what': 'time', 'equal': True}\n"
    if isa:  # nothing is measured
        env["ONEDNN_MAX_CPU_ISA"] = isa
        program += "beside.time_both = lambda *_: []; beside.memory_of_both = lambda *_: NONE\n"
    line = "--device cpu --size 32 --images 4 --repeats 1 --output out"
    command = [sys.executable, "-c", f"{program}sys.exit(beside.main())", *line.split()]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    content = json.loads((tmp_path / "out" / "beside.json").read_text())
    assert len(content["checks"]) == 2 * beside.STEPS + 2
    assert all(row["equal"] for row in content["checks"]) and "NOT" not in done.stdout
    if isa:
        return
    assert [row["what"] for row in content["rows"]] == ["train", "score", "memory"]
    assert all(row["ratio"] > 0 for row in content["rows"][:2])
    assert min(content["rows"][2]["peak"].values()) > 0


def larger(loss):
    "A loss that is a thousandth larger."
    return lambda *args: loss(*args) * 1.001


@pytest.mark.parametrize(
    ("name", "wrong", "found"),
    [
        ("mshnet_loss", larger(plain.mshnet_loss), ["loss of step 0"]),
        ("make_optimizer", lambda m: Adagrad(m.parameters(), lr=0.05005), ["update of step 0"]),
    ],
)
def test_a_training_that_differs_by_a_thousandth_is_found(
    tmp_path, monkeypatch, name, wrong, found
):
    "Adagrad's first step is blind to the size of a loss, and the loss to what the step does."
    monkeypatch.setattr(plain, name, wrong)
    monkeypatch.setattr(beside, "STEPS", 1)
    rows = beside.check_training(CONFIG, Detection(CONFIG).splits()["train"], tmp_path)
    assert [row["what"] for row in rows if not row["equal"]] == found


def test_scores_that_differ_are_found_and_nothing_is_timed(monkeypatch, capsys):
    "Status 1: a single pixel of one image."
    match = plain.match
    monkeypatch.setattr(plain, "match", lambda *a: (*match(*a)[:2], 1 + match(*a)[2]))
    monkeypatch.setattr(beside, "check_training", lambda *a: [])
    monkeypatch.setattr(beside, "time_both", None)
    monkeypatch.setattr(sys, "argv", ["beside.py", "--device", "cpu", "--size", "32"])
    assert beside.main() == 1
    assert capsys.readouterr().out.splitlines()[-1] == "NOT EQUAL: counts of each image"


@pytest.mark.parametrize(
    ("ours", "equal"), [(1 + 1e-5, True), (1 + 1e-4, False), (np.nan, False), (np.inf, False)]
)
def test_equal_is_relative_to_the_rounding_of_the_plain_script(ours, equal):
    "Which was off by 2e-6 in one of its orders, so eight times that is allowed."
    assert beside.check("x", 1.0, ours, [1 + 2e-6, 1.0])["equal"] is equal


def test_the_plain_script_needs_nothing_of_ours():
    "A yardstick that shares our code would gain from its gains."
    assert not re.search(r"(?m)^\s*(from|import) mshnet", (BASELINE / "plain.py").read_text())


def test_the_plain_path_gives_the_official_numbers():
    "Its loss and its scores are those that the official code computed."
    with np.load(GOLDEN / "loss.npz") as file:
        logits, target = (torch.tensor(file[name]) for name in ("logits", "target"))
        want = float(file["sls_loss"])
    assert plain.mshnet_loss([], logits, target.float()).item() == pytest.approx(want, rel=1e-5)
    scores = plain.Scores()
    with np.load(GOLDEN / "metrics.npz") as file:
        golden = {name: file[name] for name in file.files}
    shape = golden["logits"].shape[-2:]
    logits = torch.tensor(golden["logits"]).float().reshape(-1, *shape)
    for image, mask in zip(logits, golden["target"].reshape(-1, *shape), strict=True):
        scores.add(image, mask > 0)
    targets, matched, false = scores.curve[0]
    assert targets == golden["official_targets"]
    assert matched / targets == pytest.approx(float(golden["official_pd"]))
    assert false / scores.pixels == pytest.approx(float(golden["official_fa"]))
    hits, false_alarms, misses, rejected = scores.roc.T
    close = {"rtol": 1e-5, "atol": 1e-5}  # the official code adds 0.001 to each denominator
    np.testing.assert_allclose(hits / (hits + misses), golden["roc_tpr"], **close)
    np.testing.assert_allclose(false_alarms / (false_alarms + rejected), golden["roc_fpr"], **close)
