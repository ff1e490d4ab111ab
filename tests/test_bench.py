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
from mshnet.core import UserError
from mshnet.metrics import find, objects
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
        found = find(objects(mask), objects(pred), "reference")
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


# The tables


@pytest.fixture
def measured(both, tmp_path):
    "A folder of results with one bench, as if measured at full size: 0.2 s and 0.05 s an image."
    content = json.loads(json.dumps(both[1]))
    content["config"] |= {"base_size": 256, "crop_size": 256}
    for row in content["rows"]:
        row["seconds_per_image"]["ours"] = 0.2 if row["kind"] == "train" else 0.05
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "bench.json").write_text(json.dumps(content))
    return tmp_path


def line_of(table, word):
    "The cells of the one line of a table that has a word."
    (line,) = [line for line in table.splitlines() if word in line]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_measured_numbers_stand_in_the_tables(measured):
    "With the folder that they are from."
    benches = bench.read_benches(measured)
    assert list(benches) == ["mine"]
    found = line_of(bench.speeds_table(benches), "train, batch 2")
    plain = benches["mine"]["rows"][0]["seconds_per_image"]["plain"]
    assert found[:5] == ["`mine`", "train, batch 2", "200", "5", f"{1e3 * plain:.4g}"]
    (start,) = benches["mine"]["starts"]
    memory = line_of(bench.starts_table(benches), "`mine`")
    assert memory[3] == f"{start['ours']['peak'] / 2**20:.0f}"
    machine = line_of(bench.machines_table(benches), "`mine`")
    assert machine[3] == benches["mine"]["environment"]["packages"]["torch"]
    page = bench.speed_page(measured)
    assert all(word in page for word in ("`mine`", "| 200 |", "estimated, not measured"))
    assert str(measured) not in page


def test_hours_and_cost_follow_the_times_and_the_rates(measured):
    "400 epochs of 212 images at 0.2 s and 214 at 0.05 s, and no fact about prices."
    benches = bench.read_benches(measured)
    hours = 400 * (212 * 0.2 + 214 * 0.05) / 3600
    for rate in (2.0, 3.0):
        found = line_of(bench.hours_table(benches, {"mine": rate}), "NUAA-SIRST")
        assert found[-1] == f"{hours * rate:.2f}" and found[-2] == "5 h 54 min"
    assert all("example" in name for name in bench.RATES)


def test_a_bench_of_small_images_projects_no_hours(both):
    "It says nothing about images of 256x256."
    benches = {"small": both[1]}
    assert "`small`" in bench.speeds_table(benches)
    assert "`small`" not in bench.hours_table(benches, bench.RATES) + bench.advice(benches)


def test_what_was_not_measured_is_called_estimated(measured):
    "A range, by the formula; and the measured number beside it where there is one."
    benches = bench.read_benches(measured)
    table = bench.estimates_table(benches, batch=2)
    assert "estimated" in table.splitlines()[0]
    assert table.count("not measured") == len(bench.CHIPS)
    t4 = line_of(table, "NVIDIA T4")
    assert t4[2] == "1.9 to 16" and t4[1] == "fp16: 65 TFLOP/s, 320 GB/s"
    benches["mine"]["environment"]["device"] = "cuda:0, fp16: Tesla T4, 15 GB"
    assert line_of(bench.estimates_table(benches, batch=2), "NVIDIA T4")[-1] == "200 (`mine`)"
    benches["mine"]["environment"]["device"] = "cuda:0, bf16: Tesla T4, 15 GB"
    assert line_of(bench.estimates_table(benches, batch=2), "NVIDIA T4")[-1] == "not measured"
    p100 = line_of(bench.estimates_table({}, batch=16), "NVIDIA P100")
    ends = [3 * 12.003e9 / (9.3e12 * part) * 1e3 for part in (0.4, 0.1)]
    assert p100[2:4] == [bench.between(*ends), "arithmetic"]  # the formula of the page


def test_chips_and_their_rates_can_be_edited():
    "Twice the peak rate, half the time, half the cost."
    slow = bench.Chip("mine", "bf16", peak=1, bandwidth=1000, memory=8)
    costs = []
    for chip in (slow, dataclasses.replace(slow, peak=2)):
        found = line_of(bench.estimates_table({}, chips=[chip], rates={"mine": 1.0}), "mine")
        costs.append(float(found[-2].split()[0]))
    assert costs[0] == pytest.approx(2 * costs[1], rel=0.05)
    assert "cost" not in bench.estimates_table({}, chips=[slow])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not JSON"),
        ("[1]", "not an object"),
        ("{}", "has no config"),
        ('{"problem": "loss of step 0"}', "both ways were not equal"),
        ('{"config": {}, "environment": {}, "starts": [], "rows": [{}]}', "without its time"),
        ('{"config": {}, "environment": {}, "starts": [], "rows": []}', "no row of training"),
    ],
)
def test_a_bench_that_cannot_be_used(measured, text, said):
    "Asked for, it is one line; one of many, it is left out with a warning."
    (measured / "wrong").mkdir()
    (measured / "wrong" / "bench.json").write_text(text)
    with pytest.raises(UserError, match=said) as caught:
        bench.read_bench(measured / "wrong")
    assert "\n" not in str(caught.value) and "`mshnet bench`" in str(caught.value)
    with pytest.warns(UserWarning, match=f"left out.*{said}"):
        assert list(bench.read_benches(measured)) == ["mine"]


def test_a_folder_without_a_bench(measured):
    "Asked for, it is one line; one of many, it is another kind of result."
    (measured / "run").mkdir()
    with pytest.raises(UserError, match="No such file"):
        bench.read_bench(measured / "run")
    assert list(bench.read_benches(measured)) == ["mine"]
    with pytest.raises(UserError, match="no such folder"):
        bench.read_benches(measured / "nothing")


def test_memory_is_that_of_the_plain_lines():
    "Other devices than a CPU keep more than its hand-written backward passes."
    fixed, full = bench.training_memory(64, "bf16")
    assert fixed > 3 * 4 * 4_065_513
    assert bench.training_memory(64, "bf16", deep=False)[1] < full
    assert full < bench.training_memory(64, "fp32")[1] < 2.1 * full
    assert bench.training_memory(128, "bf16")[1] == pytest.approx(4 * full, rel=0.01)
