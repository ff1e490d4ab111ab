"What several tests need: where real images lie, a small data set and a run to write."

import errno
import os
import signal
import sys
import time
from pathlib import Path
from pkgutil import resolve_name
from unittest.mock import Mock

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the same sums beside other programs; before torch

import numpy as np
import pytest
from PIL import Image

TOP = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("MSHNET_SHARED", TOP.parent / "shared"))


for name, usual in (("SIGINT", signal.default_int_handler), ("SIGHUP", signal.SIG_DFL)):
    number = getattr(signal, name, None)  # ignored in a script's background, or under nohup
    if number and signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, usual)


@pytest.fixture(autouse=True)
def nothing_loaded():
    "The data set and the deterministic mode of the test before are gone."
    if found := sys.modules.get("mshnet.data"):
        found.LOADED.clear()
    if torch := sys.modules.get("torch"):
        torch.use_deterministic_algorithms(False)


class Evil:
    "A pickle of this makes a folder when it is loaded."

    def __init__(self, trap):
        self.trap = trap

    def __reduce__(self):
        return os.mkdir, (str(self.trap),)


full = Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))  # a disk without room

TINY = {"scenes": 8, "base_size": 32, "crop_size": 32, "batch_size": 4, "choose": "last"}
TINY |= {"device": "cpu", "precision": "fp32", "epochs": 3, "warm_epoch": 0}
TINY |= {"schedule": "constant"}  # then more epochs are the same run


def tree(folder):
    "Files of a folder: path and content."
    found = [p for p in sorted(folder.rglob("*")) if p.is_file()]
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in found}


def same(one, other):
    "Whether two state dicts are equal to the last bit."
    from torch import equal

    return one.keys() == other.keys() and all(equal(one[k], other[k]) for k in one)


def tiny(folder="", **changes):
    "The settings of a run that takes seconds."
    from mshnet.recipe import Config

    return Config(**{**TINY, "output_dir": str(folder), **changes})


def data_folder(name: str) -> Path:
    "A folder of real data; without it the test is skipped."
    folder = SHARED / "data" / name
    if not folder.is_dir():
        pytest.skip(f"needs data/{name}; set MSHNET_SHARED to the folder that holds data/")
    return folder


def put_drive(monkeypatch, folder: Path) -> None:
    "Have Google Drive in a folder of the test."
    monkeypatch.setattr("mshnet.places.DRIVE", folder)
    monkeypatch.setattr("mshnet.places.MY_DRIVE", folder / "MyDrive")
    monkeypatch.setattr("os.path.ismount", lambda path: path == folder and folder.is_dir())


@pytest.fixture(scope="session")
def weights(tmp_path_factory):
    "A file of weights that nobody has trained."
    import torch

    from mshnet.model import MSHNet

    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "some.pt"
    torch.save({"state_dict": MSHNet().state_dict()}, path)
    return path


@pytest.fixture(scope="session")
def sirst() -> Path:
    "The folder of NUAA-SIRST: 427 real infrared images with masks."
    return data_folder("nuaa-sirst")


@pytest.fixture(scope="session")
def videos(tmp_path_factory) -> Path:
    "A small simulated data set of sign language in CE-CSL's layout."
    from mshnet.signs.clips import simulated_clips, write_clips

    folder = tmp_path_factory.mktemp("signs") / "mine"
    for name, count in (("train", 12), ("val", 3), ("test", 4)):
        write_clips(folder, simulated_clips(name, count, 4, seed=0, video=True))
    return folder


def call(capsys, line, *words):
    "Status, output and error lines of a command."
    from mshnet.cli import main

    status = main([*line.split(), *map(str, words)])
    shown = capsys.readouterr()
    return status, shown.out, shown.err


def refused(capsys, line, *words):
    "The one line that refuses a command; warnings and progress may stand before it."
    capsys.readouterr()
    status, _, err = call(capsys, line, *words)
    lines = [text for text in err.splitlines() if not text.startswith(("warning: ", "  "))]
    assert (status, [text[:8] for text in lines]) == (2, ["mshnet: "]), err
    return lines[0]


def make_dataset(folder: Path, train: int = 6, test: int = 4, size: int = 32) -> Path:
    "Write a small data set: dim grey noise, a bright 3x3 target in each image, masks of 0 and 255."
    rng = np.random.default_rng(0)
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True)
    for file, part, count in (("trainval.txt", "train", train), ("test.txt", "test", test)):
        names = [f"{part}_{i}" for i in range(count)]
        (folder / file).write_text("".join(f"{name}\n" for name in names))
        for name in names:
            image = rng.integers(20, 60, (size, size), dtype=np.uint8)
            mask = np.zeros((size, size), np.uint8)
            row, col = rng.integers(2, size - 5, 2)
            image[row : row + 3, col : col + 3] = 220
            mask[row : row + 3, col : col + 3] = 255
            Image.fromarray(image).save(folder / "images" / f"{name}.png")
            Image.fromarray(mask).save(folder / "masks" / f"{name}.png")
    return folder


def train_and_kill(config, step: int) -> None:
    "Train, and end the process as the system does when this step begins, counted from 1."
    from mshnet.task import make_task
    from mshnet.train import train

    class Killed(type(make_task(config))):
        steps = 0

        def loss(self, model, batch, phase):
            self.steps += 1
            if self.steps == step:
                os.kill(os.getpid(), signal.SIGTERM)
            return super().loss(model, batch, phase)

    Killed.__name__ = Killed.__base__.__name__  # by which a run knows its task
    with pytest.raises(KeyboardInterrupt):
        train(config, Killed(config))


def until_it_trains(folder, process=None) -> None:
    "Wait until an epoch is in the log, or the process has ended."
    from mshnet.run import Folder

    for _ in range(12000):
        if Folder(folder).history() or (process and process.returncode is not None):
            return
        time.sleep(0.05)
    raise TimeoutError(folder)


def make_run(folder: Path) -> Path:
    """Write the folder of a run that was never trained, on synthetic scenes, with its scores.
    The starting weights predict nearly the same everywhere. Here their last layer is stretched,
    so that something is found, missed and invented, and something else at another threshold."""
    import torch

    from mshnet.analyse import evaluate_split
    from mshnet.detection import Detection
    from mshnet.device import open_device
    from mshnet.recipe import Config
    from mshnet.run import Folder, say_status, write_json, write_log
    from mshnet.task import Origin

    small = {"scenes": 12, "base_size": 64, "crop_size": 64, "choose": "last", "device": "cpu"}
    small |= {"head_bias": 0.0, "fusion_start": "random"}  # the numbers below are made for it
    config = Config(**small, epochs=2)
    task, device, run = Detection(config), open_device("cpu"), Folder(folder)
    model = task.model()
    with torch.no_grad():
        model.final.weight *= 150
        model.final.bias.copy_(150 * (model.final.bias - 0.104) - 1)
    folder.mkdir(parents=True)
    write_json(folder / "config.json", config.model_dump())
    for name in ("best.pt", "last.pt"):
        torch.save({"state_dict": model.state_dict()}, folder / name)
    seen = evaluate_split(task, model, task.splits()["test"], device, "full", Origin("untrained"))
    seen.save(folder)
    scores = {"split": "test", "line": str(seen.scores), "scores": seen.scores.as_dict()}
    for epoch, loss in enumerate((0.9, 0.7)):
        entry = {"epoch": epoch, "phase": "full", "loss": loss, "seconds": 30.0}
        write_log(run, entry | scores)
    say_status(run, "finished", 1, "all epochs done")
    return folder


def ctrl_c_at_second(monkeypatch, name):
    "Let the second call of this function be interrupted by its user."
    first, stop = [resolve_name(name)], signal.default_int_handler
    monkeypatch.setattr(name, lambda *args: first.pop()(*args) if first else stop(2, None))
