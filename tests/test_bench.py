"The bench: it runs and reports, and its gate really gates. Nothing here is timed."

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
import speed
import torch
from conftest import TOP

from mshnet import bench, session
from mshnet.bench import YARDSTICK, Options, load_yardstick, network_cost, table
from mshnet.cli import _OPTIONS, main, make_parser
from mshnet.core import Config
from mshnet.metrics import find, objects
from mshnet.model import MSHNet

GOLDEN = Path(__file__).parent / "golden"
TINY = "--device cpu --scenes 10 --base-size 32 --crop-size 32"
QUICK = f"{TINY} --repeats 1 --images 2 --batch-sizes 2 --batch-size 2"


def run(line):
    "Status of a bench."
    return main(f"bench {line}".split())


@pytest.fixture(scope="module", autouse=True)
def small_limits():
    "Matrices and copies that take no time; what they reach is not looked at."
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(bench.SIDES, "cpu", 256)
        patch.setitem(bench.MEGABYTES, "cpu", 8)
        yield


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


def test_what_is_written_can_be_printed_again_and_names_no_folder(both):
    "Those of earlier versions too."
    folder, content = both
    text = table(content)
    assert "train, batch 2" in text and "x" in text and "projected, batch 2" in text
    assert str(folder.parent) not in (folder / "bench.json").read_text()
    assert (folder / "bench.png").read_bytes().startswith(b"\x89PNG")
    earlier = json.loads((TOP / "results/bench-cpu/bench.json").read_text())
    assert "2.31x" in table(earlier) and "2 h 06 min for 400" in table(earlier)


def test_without_a_baseline_there_is_no_ratio(tmp_path, capsys, monkeypatch):
    "Ours alone; the cost is hours times the user's rate. Each step shows that it works."
    monkeypatch.setattr(session, "_EVERY", 0.5)
    assert run(f"{QUICK} --rate 2.5 --output-dir {tmp_path / 'out'}") == 0
    out, err = capsys.readouterr()
    assert re.search(r"(?m)^  first step and memory, batch 2: \d+ s so far$", err)
    content = json.loads((tmp_path / "out" / "bench.json").read_text())
    cost = 2.5 * content["projections"][0]["hours"]["ours"]
    assert "ratio" not in out and f"cost at 2.5 an hour: {cost:.2f}" in out
    assert content["equality"] is None
    assert {tuple(row["raw_seconds"]) for row in content["rows"]} == {("ours",)}
    assert all(row["ratio"] is None for row in content["rows"])


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("return total", "return total * 1.001", "loss of step 0"),
        ("return total", "return total * math.nan", "loss of step 0"),
        ("len(used), int(", "len(used), 1 + int(", "image 0"),
    ],
)
def test_ways_that_differ_get_no_ratio(tmp_path, capsys, monkeypatch, old, new, problem):
    "Status 1, one line that reports the difference, nothing timed."
    text = (TOP / YARDSTICK).read_text()
    assert text.count(old) == 1
    (tmp_path / "mine.py").write_text(text.replace(old, new))
    monkeypatch.setattr(bench, "take_turns", None)
    assert run(f"{QUICK} --baseline {tmp_path / 'mine.py'} --output-dir {tmp_path}") == 1
    out = capsys.readouterr().out
    assert "NOT EQUAL" in out and problem in out and "ratio given" in out
    content = json.loads((tmp_path / "bench.json").read_text())
    assert "rows" not in content and problem in content["problem"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--repeats 0", "write a whole number"),
        ("--repeats many", "--repeats"),
        ("--images -3", "write a whole number"),
        ("--batch-sizes 4;16", "such as 4,16"),
        ("--batch-sizes 4000", "training images"),
        ("--rate -1", "write the cost of an hour"),
        ("--rate nan", "write the cost of an hour"),
        ("--rates mine.json", "unknown setting 'rates'; did you mean 'rate'?"),
        ("--baseline nowhere.py", "write --baseline PATH with a copy of results/baseline/plain.py"),
        (f"--baseline {Path(__file__).with_name('conftest.py')}", "it has no MSHNet"),
        ("--epochs 3", "means nothing to `mshnet bench`"),
        ("--repeat 3", "unknown setting 'repeat'"),
        ("--dataset-dir no/such/folder", "there is no such folder"),
        ("--weight-path nothing.pt", "there is no such file"),
    ],
)
def test_a_mistake_is_one_line_with_its_remedy(capsys, tmp_path, flags, message):
    "Status 2, before anything is measured."
    assert run(f"{TINY} --output-dir {tmp_path} {flags}") == 2
    err = capsys.readouterr().err.splitlines()
    (line,) = [text for text in err if not text.startswith("warning: ")]
    assert message in line and not list(tmp_path.iterdir())


def test_the_flags_of_the_bench_are_its_options(capsys):
    "One name for each; the help shows them with their defaults."
    fields = {f.name: f.default for f in dataclasses.fields(Options)}
    assert set(_OPTIONS["bench"]) == set(fields)
    with pytest.raises(SystemExit):
        make_parser().parse_args(["bench", "--help"])
    out = capsys.readouterr().out
    assert all(f"--{name.replace('_', '-')}" in out for name in fields)
    for name in ("repeats", "images"):
        assert f"default {fields[name]})" in _OPTIONS["bench"][name]["help"]
    assert _OPTIONS["bench"]["baseline"]["const"] == YARDSTICK


# The plain script


def test_the_plain_script_needs_nothing_of_ours():
    "A yardstick that shares our code would gain from its gains."
    assert not re.search(r"(?m)^\s*(from|import) mshnet", (TOP / YARDSTICK).read_text())


@pytest.mark.parametrize("seed", range(5))
def test_plain_objects_are_the_reference_rule(seed):
    "Written twice, in two ways, with one result, on blobs and on noise."
    rng, plain = np.random.default_rng(seed), load_yardstick()
    for density in (0.02, 0.1, 0.4):
        pred, mask = rng.random((2, 48, 48)) < density
        found = find(objects(mask), objects(pred), "reference")
        assert plain.match(pred, mask) == (found.targets, found.matched, found.false_pixels)


def test_the_plain_path_gives_the_official_numbers():
    "Its loss and its scores are those that the official code computed."
    plain = load_yardstick()
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


def test_the_network_costs_what_the_plan_says():
    "12 GFLOP forward at 256x256, by area."
    assert network_cost(256)[0] == pytest.approx(12e9, rel=0.01)
    assert network_cost(512)[0] == pytest.approx(4 * network_cost(256)[0], rel=0.01)


# The page of tables


def cells_of(text, word):
    "The cells of the one line of a page that has a word."
    (line,) = [line for line in text.splitlines() if word in line]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_page_holds_what_was_measured(both, tmp_path):
    "At full size, 0.2 s and 0.05 s an image, also as hours; at another size without hours."
    content = json.loads(json.dumps(both[1]))
    for name in ("mine", "unequal"):
        (tmp_path / name).mkdir()
    (tmp_path / "unequal" / "bench.json").write_text('{"problem": "loss of step 0"}')
    file = tmp_path / "mine" / "bench.json"
    for row in content["rows"]:
        row["seconds_per_image"]["ours"] = 0.2 if row["kind"] == "train" else 0.05
    (start,) = content["starts"]
    peak = start["ours"]["peak"]
    content["starts"].append(start | {"batch": 4, "ours": start["ours"] | {"peak": peak + 2**22}})
    file.write_text(json.dumps(content))
    text = speed.page(tmp_path)
    assert "unequal" not in text and "NUAA-SIRST" not in text and str(tmp_path) not in text
    plain = content["rows"][0]["seconds_per_image"]["plain"]
    found = cells_of(text, "train, batch 2")
    assert found[:5] == ["`mine`", "train, batch 2", "200", "5", f"{1e3 * plain:.4g}"]
    assert cells_of(text, "| `mine` | 2 |")[3] == f"{peak / 2**20:.0f}"
    assert text.count("| 2 |\n") == 1  # MiB of each further image
    content["config"] |= {"base_size": 256, "crop_size": 256}
    file.write_text(json.dumps(content))
    whole = cells_of(speed.page(tmp_path), "NUAA-SIRST")  # 212 images at 0.2 s, 214 at 0.05 s
    assert whole[-2:] == ["53 s", "5 h 54 min"]


def test_a_crop_that_is_not_measured_is_named(tmp_path):
    "The bench trains on crops of the scored size."
    config = Config(scenes=10, base_size=64, crop_size=48, batch_size=2, device="cpu")
    with pytest.warns(UserWarning, match="crop_size is for --largest-batch"):
        bench.make_bench(config, Options(batch_sizes="2"), tmp_path)


def test_an_error_of_a_child_is_its_text():
    "Without the name of its class and without advice to run the bench that runs."
    said = "batch_size=4: does not fit; write --batch-size 2"
    more = f"{said} (`mshnet bench --largest-batch` tries what fits)"
    program = f"from mshnet.core import UserError; raise UserError({more!r})"
    assert bench.ask_child({}, ("-c", program)) == {"error": said}
