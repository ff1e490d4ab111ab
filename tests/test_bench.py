"The bench: it runs and reports. Nothing here is timed."

import json
import re
from unittest.mock import Mock

import pytest
from conftest import refused, tiny

from mshnet import bench, session
from mshnet.bench import measure_memory, table
from mshnet.cli import main

TINY = "--device cpu --scenes 10 --base-size 32 --crop-size 32"
QUICK = f"{TINY} --repeats 1 --images 2 --batch-size 4"


def run(line):
    "Status of a bench."
    return main(f"bench {line}".split())


def test_every_row_is_filled_and_can_be_printed_again(tmp_path, weights, capsys, monkeypatch):
    "Training, its data, scoring, memory; no folder is named, and each part shows that it works."
    monkeypatch.setattr(session, "_EVERY", 0.5)
    line = f"{QUICK} --preset paper --weight-path {weights}"
    assert run(f"{line} --output-dir {tmp_path / 'out'}") == 0
    out, err = capsys.readouterr()
    assert re.search(r"(?m)^  memory, batch 4: \d+ s so far$", err)
    text = (tmp_path / "out" / "bench.json").read_text()
    content = json.loads(text)
    assert [row["what"] for row in content["rows"]] == ["train", "data alone", "score"]
    assert all(len(row["raw_seconds"]) == 1 for row in content["rows"])
    [room] = content["memory"]
    assert room["peak"] > 0 and content["environment"]["packages"]["torch"]
    assert str(tmp_path) not in text and content["config"]["weight_path"] == weights.name
    assert table(content) == out.strip() and "train, batch 4" in out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--repeats 0", "use whole numbers of at least 1"),
        ("--repeats many", "--repeats"),
        ("--batch-size 40", "there are only 10 training images; use --batch-size 10 or less"),
        ("--batch-sizes 4", "did you mean 'batch_size'?"),
        ("--epochs 3", "mshnet bench has no option --epochs"),
        ("--repeat 3", "unknown setting 'repeat'"),
        ("--dataset-dir no/such/folder", "there is no such folder"),
        ("--weight-path nothing.pt", "there is no such file"),
    ],
)
def test_a_mistake_is_one_line_with_its_remedy(capsys, tmp_path, monkeypatch, flags, message):
    "Status 2, before anything is measured."
    monkeypatch.setattr(bench, "take_turns", None)
    monkeypatch.setattr(bench, "measure_memory", None)
    line = refused(capsys, f"bench {TINY} --output-dir {tmp_path} {flags}")
    assert message in line and not list(tmp_path.iterdir())


def test_an_error_of_a_fresh_process_is_its_text(tmp_path, monkeypatch, capsys):
    "Without the name of its class; what does not fit is not timed, and the rest is kept."
    error = measure_memory(tiny(dataset_dir="no/such"))["error"]
    assert error.startswith("dataset_dir=no/such") and "there is no such folder" in error
    with monkeypatch.context() as patch:  # its last line is of a warning
        killed = Mock(returncode=-9, stderr="UserWarning: masks\n  findings.warn()\n")
        patch.setattr("subprocess.run", lambda *_, **__: killed)
        assert "status -9, perhaps for want of memory" in measure_memory(tiny())["error"]
    rooms = iter([{"batch": 2, "peak": 1}, {"batch": 8, "error": "does not fit"}])
    monkeypatch.setattr(bench, "measure_memory", lambda config: next(rooms))
    assert run(f"{TINY} --repeats 1 --images 2 --batch-size 2 --output-dir {tmp_path}") == 0
    monkeypatch.setattr(bench, "measure_memory", lambda config: {"error": "batch_size=2: too much"})
    line = refused(capsys, f"bench {TINY} --batch-size 2 --output-dir {tmp_path}")
    assert line == "mshnet: batch_size=2: too much"
    content = json.loads((tmp_path / "bench.json").read_text())
    assert {row["batch"] for row in content["rows"]} == {2} and "does not fit" in table(content)
