"The bench: it runs and reports, and its gate really gates. Nothing here is timed."

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from mshnet import bench
from mshnet.bench import Options, PlainScores, network_cost, plain_loss, plain_objects, table
from mshnet.cli import OWN, main, make_parser
from mshnet.metrics import find
from mshnet.model import MSHNet

GOLDEN = Path(__file__).parent / "golden"
TINY = "--device cpu --scenes 10 --base-size 32 --crop-size 32"
QUICK = f"{TINY} --repeats 1 --images 2 --batch-sizes 2 --batch-size 2"


def run(line):
    "Status of a bench."
    return main(f"bench {line}".split())


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    "A bench of both ways with trained and noisy weights: its folder, content of bench.json."
    folder = tmp_path_factory.mktemp("bench")
    torch.manual_seed(0)
    torch.save({"state_dict": MSHNet().state_dict()}, folder / "weights.pt")
    line = f"{QUICK} --baseline --weight-path {folder / 'weights.pt'} --output-dir {folder / 'out'}"
    assert run(line) == 0
    return folder / "out", json.loads((folder / "out" / "bench.json").read_text())


def test_both_ways_fill_every_row(both):
    "Training, data, scoring with both kinds of weights, start and memory, projection."
    _, content = both
    assert [row["what"] for row in content["rows"]] == [
        "train, batch 2",
        "data alone, batch 2",
        "score, trained weights",
        "score with curves, trained weights",
        "score, noisy weights",
        "score with curves, noisy weights",
    ]
    for row in content["rows"]:
        assert set(row["raw_seconds"]) == {"ours", "plain"}
        assert all(len(raw) == 1 for raw in row["raw_seconds"].values())
        assert row["ratio"] > 0
    assert all(content["limits"][name] > 0 for name in ("matrix", "float32", "copy"))
    (start,) = content["starts"]
    assert min(start[way]["peak"] for way in ("ours", "plain")) > 0
    (projected,) = content["projections"]
    assert projected["scored_with"] == "trained" and set(projected["hours"]) == {"ours", "plain"}
    assert content["environment"]["packages"]["torch"] and content["protocol"]["noisy"]


def test_equality_was_shown_before(both):
    "Losses of three steps, counts of the images, both kinds of weights."
    _, content = both
    assert content["problem"] == "" and len(content["equality"]["losses"]) == 3
    for scores in content["equality"]["scores"].values():
        assert scores["ours"] == scores["plain"] and scores["ours"]
    assert "equal   losses of 3 float32 steps" in table(content)


def test_the_table_can_be_printed_from_the_file(both, capsys):
    "And what is written names no folder of this machine."
    folder, content = both
    text = table(content)
    assert "train, batch 2" in text and "x" in text and "projected, batch 2" in text
    assert str(folder.parent) not in (folder / "bench.json").read_text()
    assert (folder / "bench.png").read_bytes().startswith(b"\x89PNG")


def test_without_a_baseline_there_is_no_ratio(tmp_path, capsys):
    "Ours alone, with one's own rates."
    (tmp_path / "rates.json").write_text('{"mine": 2.5}')
    line = f"{QUICK} --rates {tmp_path / 'rates.json'} --output-dir {tmp_path / 'out'}"
    assert run(line) == 0
    out = capsys.readouterr().out
    assert "ratio" not in out and "mine: " in out
    content = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert content["equality"] is None
    assert {tuple(row["raw_seconds"]) for row in content["rows"]} == {("ours",)}
    assert all(row["ratio"] is None for row in content["rows"])


def wrong_loss(*args):
    "The plain loss, a thousandth too large."
    return plain_loss(*args) * 1.001


def nan_loss(*args):
    "A loss that is no number."
    return plain_loss(*args) * float("nan")


def wrong_objects(pred, mask):
    "The plain counts with one false pixel too many."
    targets, matched, false = plain_objects(pred, mask)
    return targets, matched, false + 1


@pytest.mark.parametrize(
    ("name", "wrong", "said"),
    [
        ("plain_loss", wrong_loss, "loss of step 0"),
        ("plain_loss", nan_loss, "loss of step 0"),
        ("plain_objects", wrong_objects, "image 0"),
    ],
)
def test_ways_that_differ_get_no_ratio(tmp_path, capsys, monkeypatch, name, wrong, said):
    "Status 1, one line that says what differs, nothing timed."
    monkeypatch.setattr(bench, name, wrong)
    monkeypatch.setattr(bench, "take_turns", None)
    assert run(f"{QUICK} --baseline --output-dir {tmp_path}") == 1
    out = capsys.readouterr().out
    assert "NOT EQUAL" in out and said in out and "ratio given" in out
    content = json.loads((tmp_path / "bench.json").read_text())
    assert "rows" not in content and said in content["problem"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--repeats 0", "write a whole number"),
        ("--repeats many", "--repeats"),
        ("--images -3", "write a whole number"),
        ("--batch-sizes 4;16", "such as 4,16"),
        ("--batch-sizes 4000", "training images"),
        ("--weights best", "write one of both, trained, noisy"),
        ("--weights trained", "--weight-path"),
        ("--rates nothing.json", "not a readable JSON file"),
        ("--epochs 3", "means nothing to `mshnet bench`"),
        ("--repeat 3", "repeat is no setting"),
        ("--dataset-dir no/such/folder", "there is no such folder"),
        ("--weight-path nothing.pt", "there is no such file"),
    ],
)
def test_a_mistake_is_one_line_with_its_remedy(capsys, tmp_path, flags, said):
    "Status 2, before anything is measured."
    assert run(f"{TINY} --output-dir {tmp_path} {flags}") == 2
    err = capsys.readouterr().err.splitlines()
    (line,) = [text for text in err if not text.startswith("warning: ")]
    assert said in line and not list(tmp_path.iterdir())


def test_the_flags_of_the_bench_are_its_options():
    "One name for each, and the help tells the defaults."
    fields = {f.name: f.default for f in dataclasses.fields(Options)}
    assert set(OWN["bench"]) == set(fields)
    for name in ("repeats", "images"):
        assert f"default {fields[name]})" in OWN["bench"][name]["help"]
    assert fields["weights"] == "both" and "both (default)" in OWN["bench"]["weights"]["help"]


def test_the_help_shows_them(capsys):
    "argparse formats them without stumbling."
    with pytest.raises(SystemExit):
        make_parser().parse_args(["bench", "--help"])
    out = capsys.readouterr().out
    assert all(f"--{name.replace('_', '-')}" in out for name in OWN["bench"])


@pytest.mark.parametrize("seed", range(5))
def test_plain_objects_are_the_reference_rule(seed):
    "Written twice, in two ways, with one result, on blobs and on noise."
    rng = np.random.default_rng(seed)
    for density in (0.02, 0.1, 0.4):
        pred, mask = rng.random((2, 48, 48)) < density
        found = find(pred, mask, "reference")
        assert plain_objects(pred, mask) == (found.targets, found.matched, found.false_pixels)


def test_the_plain_path_gives_the_official_numbers():
    "Its loss and its scores are those that the official code computed."
    with np.load(GOLDEN / "loss.npz") as file:
        logits, target = (torch.tensor(file[name]) for name in ("logits", "target"))
        want = float(file["sls_loss"])
    assert plain_loss([], logits, target.float()).item() == pytest.approx(want, rel=1e-5)
    scores = PlainScores()
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


def test_the_network_costs_what_the_plan_says():
    "12 GFLOP forward at 256x256, by area."
    assert network_cost(256)[0] == pytest.approx(12e9, rel=0.01)
    assert network_cost(512)[0] == pytest.approx(4 * network_cost(256)[0], rel=0.01)
