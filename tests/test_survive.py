"What a run survives: signals, budgets, faults of memory, numbers, images, disks and checkpoints."

import contextlib
import json
import os
import pty
import random
import select
import signal
import subprocess
import sys
import time
import warnings

import numpy as np
import pytest
import torch
from conftest import make_dataset
from torch import nn

from mshnet import run as run_module
from mshnet.cli import main
from mshnet.core import Config, UserError
from mshnet.device import device_for, open_device
from mshnet.model import checksum
from mshnet.run import FORMAT, Folder, State, Stop, Stopped, load, write_checkpoint
from mshnet.task import Detection, Task
from mshnet.train import train, train_step

TINY = {"scenes": 8, "base_size": 32, "crop_size": 32, "batch_size": 2, "choose": "last"}
TINY |= {"device": "cpu", "precision": "fp32", "epochs": 3, "warm_epoch": 0}


def tiny(folder="", **changes):
    "A run of three epochs of four steps."
    return Config(**{**TINY, "output_dir": str(folder), **changes})


class Small(Task):
    "A task that trains in no time, with all that a run must keep: batch norm, Adagrad's sums."

    at, then = 0, staticmethod(lambda: None)  # step in which something is done, counted from 1
    steps = 0

    def model(self):
        "One layer and its batch norm."
        torch.manual_seed(self.config.seed)
        return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Conv2d(4, 1, 1))

    def logits(self, model, batch, phase):
        "Bright or not."
        return model(batch.image.float() / 255).float()

    def loss(self, model, batch, phase):
        "Cross entropy with the mask; before it, what this task was told to do."
        self.steps += 1
        if self.steps == self.at:
            self.then()
        logits = self.logits(model, batch, phase)
        return nn.functional.binary_cross_entropy_with_logits(logits, batch.mask.float())


class Dice(Small):
    "A task whose loss throws dice of every kind."

    def loss(self, model, batch, phase):
        "A loss with three random weights."
        weight = torch.rand(1).item() + np.random.rand() + random.random() + np.random.randn()
        return super().loss(model, batch, phase) * weight


def run_it(config, kind=Small, at=0, then=None):
    "Train a task that does something in a step."
    task = kind(config)
    task.at, task.then = at, then
    return train(config, task)


def ask(number=signal.SIGTERM, times=1):
    "What sends this process a signal."
    return lambda: [signal.raise_signal(number) for _ in range(times)]


def result(folder):
    "All that a run ends with: one sum for weights, optimizer and places; the losses of its log."
    content = load(folder / "last.pt")
    names = ("model", "optimizer", "scaler", "epoch", "phase", "best", "step", "total", "random")
    losses = [entry["loss"] for entry in Folder(folder).history()]
    return checksum({name: content[name] for name in names}), losses


def status(folder):
    "What status.json says."
    return json.loads((folder / "status.json").read_text())


# Stopped within an epoch

WAYS = {
    "plain": (Small, {}),
    "dice": (Dice, {}),
    "clipped": (Small, {"clip_grad": 0.01}),
    "fp16": (Small, {"precision": "fp16"}),
    "in parts": (Dice, {"batch_size": 4, "micro_batch": 3, "scenes": 16}),
    "streamed by threads": (Dice, {"num_workers": 2, "deterministic": True}),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_run_stopped_after_any_step_ends_as_if_it_had_not_been(tmp_path, way):
    "The same weights, optimizer and losses to the last bit, first and last step of an epoch too."
    kind, changes = WAYS[way]
    whole = result(run_it(tiny(tmp_path / "whole", **changes), kind).folder)
    for step in (1, 4, 5, 7) if way == "dice" else (3,):
        config = tiny(tmp_path / f"stopped{step}", **changes)
        with pytest.raises(Stopped, match="SIGTERM"):
            run_it(config, kind, step * (2 if config.micro_batch else 1), ask())
        done, begun = divmod(step, 4)
        assert status(tmp_path / f"stopped{step}")["epochs_done"] == done
        run = run_it(config, kind)
        assert result(run.folder) == whole
        assert run.history[done].get("begun_at_step", 0) == begun
    torch.use_deterministic_algorithms(False)


def test_the_last_step_of_all_is_the_end(tmp_path):
    "Who is asked to stop when nothing is left to do has finished."
    run = run_it(tiny(tmp_path / "run"), at=12, then=ask())
    assert (run.ended, status(run.folder)["state"]) == ("all epochs done", "finished")


def test_a_run_stopped_again_and_again_ends_as_if_it_had_not_been(tmp_path):
    "After every single step."
    whole = result(run_it(tiny(tmp_path / "whole"), Dice).folder)
    config, stops = tiny(tmp_path / "run"), 0
    while stops < 20:
        try:
            run = run_it(config, Dice, 1, ask(signal.SIGHUP))
            break
        except Stopped:
            stops += 1
    assert stops == 11
    assert result(run.folder) == whole


def test_mshnet_itself_stopped_within_an_epoch_goes_on(tmp_path, monkeypatch):
    "The network of the paper."
    config, calls, real = tiny(tmp_path / "run", epochs=2), [], Detection.loss
    whole = result(train(tiny(tmp_path / "whole", epochs=2)).folder)

    def asked(self, *args):
        calls.append(1)
        if len(calls) == 6:
            signal.raise_signal(signal.SIGTERM)
        return real(self, *args)

    monkeypatch.setattr(Detection, "loss", asked)
    with pytest.raises(Stopped):
        train(config)
    assert result(train(config).folder) == whole


def test_who_asks_twice_is_obeyed_at_once_and_nothing_is_lost(tmp_path):
    "In the middle of a step: what is on the disk is the last place that was whole."
    whole = result(run_it(tiny(tmp_path / "whole"), Dice).folder)
    config = tiny(tmp_path / "run")
    for step, done in ((3, 0), (6, 1)):  # the second time: the sixth step that is trained
        task = Dice(config)
        task.at, task.then = step, ask(times=2)
        with pytest.raises(KeyboardInterrupt, match="SIGTERM"):
            train(config, task)
        assert task.steps == step
        told = status(tmp_path / "run")
        assert (told["state"], told["reason"], told["epochs_done"]) == ("stopped", "SIGTERM", done)
    assert result(run_it(config, Dice).folder) == whole


def test_listening_ends_with_the_run(tmp_path):
    "Whatever ended it, signals do afterwards what they did before."
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(n) for n in numbers]
    run_it(tiny(tmp_path / "a", epochs=1))
    with pytest.raises(Stopped):
        run_it(tiny(tmp_path / "b", epochs=1), at=1, then=ask())
    assert [signal.getsignal(n) for n in numbers] == before


def test_a_deterministic_run_goes_on_with_its_number_of_threads(tmp_path):
    "Sums are in another order with another number, so it is stored and restored."
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        changes = {"deterministic": True, "epochs": 2, "base_size": 64, "crop_size": 64}
        whole = result(run_it(tiny(tmp_path / "whole", **changes)).folder)
        config = tiny(tmp_path / "run", **changes)
        run_it(config.model_copy(update={"epochs": 1}))
        torch.set_num_threads(1)
        run = run_it(config)
        assert torch.get_num_threads() == 2
        assert load(run.folder / "last.pt")["threads"] == 2
        assert result(run.folder) == whole
        torch.set_num_threads(1)
        run_it(tiny(tmp_path / "other", epochs=1))
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(False)
