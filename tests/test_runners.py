"The runner notebooks, executed by papermill as a user without a screen would."

import ast
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import demo
import nbformat
import papermill
import pytest
from conftest import TOP, refused
from papermill.exceptions import PapermillExecutionError
from PIL import Image

import nbs
from mshnet.core import configure
from mshnet.recipe import Config
from mshnet.task import make_task

RUNNERS = TOP / "nbs" / "run"
SMALL = {"epochs": 2, "warm_epoch": 0, "scenes": 12, "base_size": 64, "crop_size": 64}
SMALL |= {"batch_size": 4, "device": "cpu"}
PICTURES = {"samples", "learning_curves", "trade_offs", "gallery", "explore", "find_targets"}


def execute(name, folder, until="", **parameters):
    "Run a runner headless, perhaps until a cell of this code; the notebook and its run folder."
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    given, out, run = folder / "given.ipynb", folder / f"{name}.ipynb", folder / "run"
    notebook = nbformat.read(RUNNERS / f"{name}.ipynb", 4)
    if until:
        last = next(i for i, cell in enumerate(notebook.cells) if until in cell.source)
        notebook.cells = notebook.cells[: last + 1]
    nbformat.write(notebook, given)
    parameters = {"output_dir": str(run), **parameters}
    papermill.execute_notebook(given, out, parameters, progress_bar=False, cwd=folder)
    return nbformat.read(out, 4), run


def calls(cell):
    "Name of the function that a cell ends with a call of."
    try:
        last = ast.parse(cell.source).body[-1]
    except (SyntaxError, IndexError):
        return ""
    call = last.value if isinstance(last, ast.Expr) else None
    return getattr(call.func, "id", "") if isinstance(call, ast.Call) else ""


def told(notebook):
    "All that the cells of a notebook printed."
    return "".join(o.get("text", "") for c in notebook.cells for o in c.get("outputs", []))


def check(notebook, run):
    "Every picture cell has an image; scores.json, status.json and the printed line agree."
    cells = [c for c in notebook.cells if c.cell_type == "code" and calls(c) in PICTURES]
    assert {calls(c) for c in cells} == PICTURES
    for cell in cells:
        images = [o.data["image/png"] for o in cell.outputs if "image/png" in o.get("data", {})]
        assert images, f"{calls(cell)} shows no picture"
    assert calls(cells[0]) == "find_targets"  # before any training, and it finds some
    assert re.search(r"[1-9]\d* targets? in", told(SimpleNamespace(cells=cells[:1])))
    scores = json.loads((run / "scores.json").read_text())
    status = json.loads((run / "status.json").read_text())
    assert told(notebook).splitlines()[-1] == scores["line"]
    assert status["state"] == "finished"
    assert status["epochs_done"] == json.loads((run / "config.json").read_text())["epochs"]
    drawn = {p.stem for p in (run / "figures").iterdir()}
    assert drawn == {"samples", "learning", "trade_offs", "gallery", "explore"}


TASKS = {  # the runner, small settings, and a score that the run must have
    "eit": ("kaggle_tpu", {"tanks": 16, "size": 16, "patch": 2, "width": 16}, "empty_rmse"),
    "events": ("events", {"recordings": 40, "dt": "30ms", "width": 4, "d_model": 8}, "spikes"),
    "signs": ("signs", {"sentences": 32, "hidden": 32}, "substitutions"),
}


@pytest.mark.parametrize("task", TASKS)
def test_a_runner_of_another_task_runs_headless(tmp_path, task):
    "From top to bottom, on simulated data; the runners of detection take the task too."
    name, small, score = TASKS[task]
    small = {"epochs": 2, "batch_size": 8, "device": "cpu", **small}
    other = {} if name == task else {"task": task, "preset": ""}
    notebook, run = execute(name, tmp_path, **other, **small)
    scores = json.loads((run / "scores.json").read_text())
    assert told(notebook).splitlines()[-1] == scores["line"]
    assert scores["protocol"]["task"] == task and score in scores["scores"]
    for call in ("gallery", "learning_curves"):
        [cell] = [c for c in notebook.cells if c.cell_type == "code" and calls(c) == call]
        assert any("image/png" in o.get("data", {}) for o in cell.outputs), call
    assert (run / "figures/gallery.png").exists()


def test_a_wrong_parameter_fails_with_the_line_of_the_command_line(tmp_path, capsys):
    "Before anything is spent, without a traceback; a variable outlives its correction, a flag not."
    with pytest.raises(PapermillExecutionError) as error:
        execute("local", tmp_path, epochz=3)
    line = refused(capsys, "train --epochz 3")
    assert line == "mshnet: unknown setting 'epochz'; did you mean 'epochs'?"
    kept = " (then also run `del epochz`)"
    assert f"mshnet: {error.value.evalue}" == line + kept and len(error.value.traceback) == 1
    assert not (tmp_path / "run").exists()


INSTALLED_IN = [p.stem for p in RUNNERS.glob("*.ipynb")]
PLACES = {"kaggle": "/kaggle/input", "content": "/content"}  # as folders of a test


def install_cell(name):
    "The code that a runner begins with."
    notebook = nbformat.read(RUNNERS / f"{name}.ipynb", 4)
    [cell] = [c for c in notebook.cells if "install" in c.metadata.get("tags", [])]
    return cell.source


def install(monkeypatch, here, repo, name="a100_setup", fails=False):
    """Execute the install cell of a runner as built for a repository, with the places of Colab and
    Kaggle, and the notebook's own folder, in a folder; pip's words, and what pip may replace."""
    source = install_cell(name)
    built_for, branch = nbs.settings(TOP)["repo"], nbs.settings(TOP)["branch"]
    assert f"github.com/{built_for}@{branch}" in source
    image = ["torch==2.8.0+cpu", "torch_xla==2.8.0", "torch-xla==2.8.0", "numpy==2.0.2"]
    image += ["ipython==7.34.0", "torchvision==0.23.0", "torchmetrics==1.0"]
    given, kept = [], []

    def pip(words, **how):
        assert words[:3] == [sys.executable, "-m", "pip"]
        given.append(words[3:])
        if words[3] == "install":
            kept.extend(Path(words[words.index("-c") + 1]).read_text().splitlines())
        return SimpleNamespace(returncode=fails, stdout="\n".join(image), stderr="no network")

    monkeypatch.setattr(importlib.metadata, "distributions", lambda name: [])
    monkeypatch.setattr(subprocess, "run", pip)
    monkeypatch.setattr(sys, "path", [*sys.path])
    notebook = here / "repository" / "nbs" / "run"
    notebook.mkdir(parents=True, exist_ok=True)
    monkeypatch.chdir(notebook)
    source = source.replace(f"github.com/{built_for}@", f"github.com/{repo}@")
    for folder, place in PLACES.items():
        source = source.replace(place, (here / folder).as_posix())
    exec(source, {})
    return given[-1], [line for line in image if line not in kept]


def put(here, *names):
    "Empty files below a folder, each a minute younger than the one before it."
    paths = [here / name for name in names]
    for minute, path in enumerate(paths):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (1e9 + 60 * minute,) * 2)
    return paths


def test_all_runners_begin_with_one_install_cell():
    "So what holds for one of them holds for all."
    assert len(INSTALLED_IN) == 8 and len(set(map(install_cell, INSTALLED_IN))) == 1


def test_an_install_keeps_what_the_image_brought(monkeypatch, tmp_path):
    "pip is told to keep exactly these, however pip writes their names."
    words, free = install(monkeypatch, tmp_path, "alice/mshnet")
    branch = nbs.settings(TOP)["branch"]
    assert words[-1] == f"mshnet @ git+https://github.com/alice/mshnet@{branch}"
    assert free == ["torchmetrics==1.0"]
    with pytest.raises(ModuleNotFoundError, match=r"(?s)switch Internet on.*torchmetrics.*no net"):
        install(monkeypatch, tmp_path, "alice/mshnet", fails=True)
    with pytest.raises(ModuleNotFoundError, match=r"mshnet has no address yet.*make wheel") as e:
        install(monkeypatch, tmp_path, f"{nbs.PLACEHOLDER}/mshnet")  # nothing of a stranger
    assert "\n" not in str(e.value)


WHEEL = "mshnet-0.{}.0-py3-none-any.whl"
TOPS = ["kaggle/wheels", "kaggle/me/wheels", "kaggle/datasets/me/wheels"]
TOPS += ["content", "content/drive/MyDrive", "repository/nbs/run"]


@pytest.mark.parametrize("top", TOPS)
def test_a_wheel_comes_first(monkeypatch, tmp_path, top):
    "Wherever Kaggle mounts it, in Colab or beside the notebook; the later version of three."
    put(tmp_path, *(f"{top}/{WHEEL.format(i)}" for i in (9, 10, 8)))
    put(tmp_path, "repository/nbs/run/runner.py")
    for repo in (f"{nbs.PLACEHOLDER}/mshnet", "alice/mshnet"):
        words, free = install(monkeypatch, tmp_path, repo)
        assert Path(words[-1]).resolve() == tmp_path / top / WHEEL.format(10)
        assert words[:2] == ["install", "-c"] and free == ["torchmetrics==1.0"]


@pytest.mark.parametrize("turn", [1, -1])
def test_of_two_wheels_of_one_version_the_newer_is_taken(monkeypatch, tmp_path, turn):
    "Whoever builds and uploads again, to Drive or to the session, means the new one."
    folders = ["content", "content/drive/MyDrive"][::turn]
    wheels = put(tmp_path, *(f"{folder}/{WHEEL.format(1)}" for folder in folders))
    assert Path(install(monkeypatch, tmp_path, f"{nbs.PLACEHOLDER}/mshnet")[0][-1]) == wheels[-1]
    second = wheels[-1].with_name(f"{wheels[-1].stem} (1).whl")  # pip refuses such a name
    second.write_text("newest")
    taken = Path(install(monkeypatch, tmp_path, f"{nbs.PLACEHOLDER}/mshnet")[0][-1])
    assert (taken.name, taken.read_text()) == (WHEEL.format(1), "newest")


def test_the_repository_around_a_notebook_is_installed(monkeypatch, tmp_path, capsys):
    "On a machine: editable, and found by the kernel that runs; before the address, too."
    put(tmp_path, "repository/nbs/run/runner.py")
    for repo in (f"{nbs.PLACEHOLDER}/mshnet", "alice/mshnet"):
        words, free = install(monkeypatch, tmp_path, repo)
        assert words[-2:] == ["-e", f"{tmp_path / 'repository'}[notebook]"]
        assert sys.path[-1] == str(tmp_path / "repository") and free == ["torchmetrics==1.0"]
    assert str(tmp_path / "repository") in capsys.readouterr().out


@pytest.mark.nightly
def test_kaggles_two_gpus_are_used_from_the_cell(tmp_path, sirst):
    "Two processes (here on the CPU), on real images; their epochs are seen in the cell."
    small = {k: v for k, v in SMALL.items() if k != "scenes"} | {"base_size": 32, "crop_size": 32}
    small |= {"dataset_dir": str(sirst), "num_devices": 2, "batch_size": 8}
    names = sorted(path.stem for path in (sirst / "images").glob("*.png"))
    for part, some in (("train_list", names[:40]), ("test_list", names[40:60])):
        (tmp_path / part).write_text("\n".join(some))
        small[part] = str(tmp_path / part)
    notebook, run = execute("kaggle_gpu", tmp_path, **small)
    check(notebook, run)
    protocol = json.loads((run / "scores.json").read_text())["protocol"]
    assert (protocol["images"], protocol["data"]) == (20, "nuaa-sirst")
    printed = told(notebook)
    assert "epoch 1/1" in printed and "2 processes" in printed
    assert [line for line in printed.splitlines() if "error" in line] == []


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", INSTALLED_IN)
def test_the_defaults_of_a_runner_are_possible(name):
    "What stands in the parameters cell makes a configuration without any change."
    found = papermill.inspect_notebook(str(RUNNERS / f"{name}.ipynb"))
    values = {key: ast.literal_eval(value["default"]) for key, value in found.items()}
    assert configure(values).epochs >= 1 and values.get("task", name) == name


def test_a_trial_is_short_and_data_of_any_name_is_no_trial(tmp_path):
    "The preset of a large machine; `data_path` is another name of dataset_dir."
    for given in ({}, {"data_path": "data"}):
        printed = told(execute("a100_setup", tmp_path, "print(config)", device="cpu", **given)[0])
        assert ("epochs = 20\n" in printed) != bool(given)


@pytest.mark.nightly
def test_a_session_ends_and_another_machine_goes_on(tmp_path):
    "The budget, the mirror (a folder stands in for Drive) and the line that goes on, in notebooks."
    drive = tmp_path / "drive"
    drive.mkdir()
    kept = {**SMALL, "mirror_dir": str(drive), "epochs": 100_000, "scenes": 8, "base_size": 32}
    kept |= {"crop_size": 32, "eval_every": 1000, "choose": "last", "schedule": "constant"}
    notebook, run = execute("local", tmp_path, **kept, max_hours=0.003)
    said = told(notebook)
    assert "hours are over; its checkpoint is written" in said
    assert re.search(r"mirror  all \d+ files \(.*\) are in", said)
    status = json.loads((run / "status.json").read_text())
    assert status["state"] == "stopped" and status["epochs_done"] > 0
    assert (drive / "run" / "figures" / "gallery.png").exists()
    shutil.rmtree(run)  # the machine is gone
    done, until = status["epochs_done"], "run = train(config)"
    notebook, run = execute("local", tmp_path, until, **{**kept, "epochs": done + 1})
    assert f"mirror  restored from {drive / 'run'}" in told(notebook)
    assert f"{done} of {done + 1} epochs" in told(notebook)
    assert json.loads((run / "status.json").read_text())["state"] == "finished"
    more = {"output_dir": "", "resume": str(run), "epochs": done + 2, "device": "cpu"}
    execute("local", tmp_path, until, **more)  # data and sizes are that run's, not the cell's
    config = json.loads((run / "config.json").read_text())
    assert (config["base_size"], config["scenes"], config["epochs"]) == (32, 8, done + 2)


def test_a_runner_runs_headless_on_synthetic_scenes(tmp_path):
    "Of `make demo`, from top to bottom; papermill knows every setting; the last line is the run's."
    words = [f"{name}={value}" for name, value in SMALL.items()]
    demo = [sys.executable, TOP / "tools" / "demo.py", tmp_path / "demo", *words]
    done = subprocess.run(demo, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0 and "unknown parameter" not in done.stderr, done.stderr
    notebook, run = nbformat.read(tmp_path / "demo/local.ipynb", 4), tmp_path / "demo/run"
    check(notebook, run)
    assert f"{run}: this disk keeps it" in told(notebook)
    assert re.search(r"\d kB +config.json", told(notebook))
    assert done.stdout.splitlines()[-1] == json.loads((run / "scores.json").read_text())["line"]
    assert done.stdout.startswith("1 target in drone.png, an example")
    assert Image.open(tmp_path / "demo" / "first_look.png").mode == "RGB"


@pytest.mark.parametrize(("seconds", "epochs"), [(8, 9), (45, 3), (34, 5), (300, 3)])
def test_the_demo_takes_fewer_epochs_on_a_slow_machine(
    tmp_path, monkeypatch, capsys, seconds, epochs
):
    "As many as take three minutes; a demo that was begun goes on with the number that it has."
    monkeypatch.setattr(demo, "seconds_of_epoch", lambda task: seconds)
    assert demo.epochs_for(tmp_path, {}) == epochs
    assert f"{epochs} epochs of {seconds} s" in capsys.readouterr().out
    (tmp_path / "config.json").write_text('{"epochs": 4}')
    assert demo.epochs_for(tmp_path, {}) == 4


def test_the_demo_measures_a_step():
    "An epoch of a small set takes less than one of a large set."
    small = {"device": "cpu", "base_size": 32, "crop_size": 32}
    times = [demo.seconds_of_epoch(make_task(Config(**small, scenes=n))) for n in (12, 400)]
    assert 0 < times[0] < times[1]
