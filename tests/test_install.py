"The wheel, in an environment of its own: what a user gets, with run-time dependencies only."

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
from conftest import TOP

pytestmark = pytest.mark.nightly

CLEAN = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def run(*words, cwd):
    "A command's output; its error is shown if it fails."
    done = subprocess.run(words, cwd=cwd, env=CLEAN, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    "A clean environment with the wheel and what the wheel asks for."
    folder = tmp_path_factory.mktemp("install")
    others = ("results", "runs", "data", "demo", "build", "*.egg-info", "__pycache__", "_*s", ".*")
    shutil.copytree(TOP, folder / "clone", ignore=shutil.ignore_patterns(*others))
    stale = folder / "clone" / "build" / "lib" / "mshnet" / "of_another_day.py"
    stale.parent.mkdir(parents=True)
    stale.touch()
    out = run(
        "make", "--no-print-directory", "wheel", f"PYTHON={sys.executable}", cwd=folder / "clone"
    )
    wheel = folder / "clone" / out.splitlines()[-1]
    venv.create(folder / "env", with_pip=False)
    python = folder / "env" / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    packages = run(python, "-c", "import site; print(site.getsitepackages()[0])", cwd=folder)
    names = link(needed(wheel), Path(packages.strip()))
    options = ["-q", "--no-deps", "--ignore-installed"]
    run(sys.executable, "-m", "pip", "--python", python, "install", *options, wheel, cwd=folder)
    return python, folder, names


def needed(wheel):
    "What a wheel requires, and what that requires: the distributions of this environment."
    [metadata] = [n for n in zipfile.ZipFile(wheel).namelist() if n.endswith("/METADATA")]
    text = zipfile.ZipFile(wheel).read(metadata).decode()
    left, found = re.findall("(?m)^Requires-Dist: (.*)", text), {}
    while left:
        name = re.match(r"[\w.-]+", word := left.pop())[0]
        if "extra ==" not in word and name.lower() not in found:
            try:
                found[name.lower()] = importlib.metadata.distribution(name)
            except importlib.metadata.PackageNotFoundError:
                continue  # for another system
            left += found[name.lower()].requires or []
    return found


def link(distributions, packages):
    "Put links to the files of these distributions into an environment; their names."
    here = Path(sysconfig.get_path("purelib"))
    for found in distributions.values():
        for top in {file.parts[0] for file in found.files} - {"..", "__pycache__"}:
            if not (packages / top).exists():
                (packages / top).symlink_to(here / top)
    return set(distributions)


def test_the_wheel_brings_no_development_tool(installed):
    "nbdev, jupytext and the notebook machinery are for those who build the suite."
    names = installed[2]
    assert {"torch", "scikit-image", "pydantic", "tqdm", "matplotlib"} <= names
    assert not {"nbdev", "fastcore", "execnb", "jupytext", "papermill", "ipykernel"} & names


def test_the_commands_work_where_only_the_wheel_is(installed):
    "Help, doctor, and an epoch of training on synthetic scenes."
    python, folder, _ = installed
    mshnet = python.parent / "mshnet"
    assert "train" in run(mshnet, "--help", cwd=folder)
    done = subprocess.run([mshnet, "doctor"], cwd=folder, env=CLEAN, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stdout + done.stderr  # 1: such as little memory
    assert "session" in done.stdout
    words = "train --epochs 1 --warm-epoch -1 --scenes 8 --base-size 64 --crop-size 64"
    out = run(mshnet, *f"{words} --batch-size 4 --device cpu --output-dir run".split(), cwd=folder)
    assert "synthetic scenes" in out
    assert out.splitlines()[-1] == json.loads((folder / "run" / "scores.json").read_text())["line"]
    assert "mshnet" in run(python, "-m", "mshnet", "--version", cwd=folder)


def test_weights_come_with_the_wheel(installed):
    "A target is found with no other flag, and the card is beside the weights."
    python, folder, _ = installed
    code = (
        "import numpy as np; from PIL import Image; from mshnet.data import scene; "
        "Image.fromarray(scene(np.random.default_rng(7), 256)[0]).save('scene.png')"
    )
    run(python, "-c", code, cwd=folder)
    out = run(python.parent / "mshnet", "predict", "scene.png", "--device", "cpu", cwd=folder)
    [line] = [ln for ln in out.splitlines() if ln.startswith("weights")]
    assert Path(line.split("their card: ")[1]).is_file()
    found = "import mshnet; print(len(mshnet.detect('scene.png', device='cpu')))"
    assert int(run(python, "-c", found, cwd=folder)) > 0


def test_model_and_loss_import_with_torch_alone(installed):
    "Someone who only wants the network or the loss need not have the rest."
    python, folder, _ = installed
    code = (
        "import sys, torch; with_torch = set(sys.modules); import mshnet.model, mshnet.loss; "
        "new = {name.split('.')[0] for name in set(sys.modules) - with_torch}; "
        "assert not new - sys.stdlib_module_names - {'mshnet'}, new"
    )
    run(python, "-c", code, cwd=folder)


def test_the_wheel_holds_the_folders_of_workloads(installed):
    "An editable install would hide that they are missing."
    names = zipfile.ZipFile(next(installed[1].glob("clone/dist/*.whl"))).namelist()
    workloads = ("eit/__init__.py", "eit/tank.py", "events/networks.py", "signs/ctc.py")
    for name in (*workloads, "pretrained-eit.safetensors"):
        assert f"mshnet/{name}" in names
    assert not [name for name in names if name.startswith(("tests/", "tools/", "nbs/"))]
    assert "mshnet/of_another_day.py" not in names
