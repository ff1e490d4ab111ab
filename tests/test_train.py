"The life of a run: trained, scored, killed, resumed, refused."

import contextlib
import json
import os
import pickle
import pydoc
import random
import re
import sys
import threading
import time

import numpy as np
import pytest
import torch
from conftest import TINY, tiny
from torch.utils._python_dispatch import TorchDispatchMode
from warm import Python

import mshnet
from mshnet.compare import compare
from mshnet.core import UserError
from mshnet.detection import Detection
from mshnet.device import open_device
from mshnet.evaluate import evaluate
from mshnet.run import State, read_checkpoint
from mshnet.task import count_predictions, predictions, score_split
from mshnet.train import Job, is_best, train, train_epoch


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    "A run that nothing disturbed."
    return train(tiny(tmp_path_factory.mktemp("whole") / "run"))


def test_a_run_leaves_everything_a_reader_needs(whole):
    "State and protocol; test_contract names the files."
    assert json.loads((whole.folder / "status.json").read_text())["state"] == "finished"
    protocol = whole.scores["protocol"]
    asked = "data split split_hash images targets size resize threshold rule chosen seed device"
    assert {*asked.split(), "trained_on"} <= protocol.keys()
    assert (protocol["images"], protocol["chosen"]) == (2, "epoch 2, the last")


def test_a_run_shows_what_it_has(whole):
    "By tab and in help: scores and history; in a shell its folder and its score line."
    names = {name for name in dir(whole) if not name.startswith("_")}
    assert names == {"config", "ended", "finished", "folder", "history", "listing", "scores"}
    text = pydoc.plain(pydoc.render_doc(type(whole)))
    assert "The score line" in text and "One entry per epoch" in text
    assert repr(whole) == f"<Run {whole.folder}: {whole.scores['line']}>"


def test_evaluate_and_load_take_a_run_its_folder_and_a_file(whole):
    "The settings of the run are the defaults, as in `mshnet test`."
    file = whole.folder / "best.pt"
    for weights in (whole, str(whole.folder), file):
        result = evaluate(weights, device="cpu", precision="fp32")
        assert str(result.scores) == whole.scores["line"]
        for key in ("size", "split_hash", "chosen", "seed", "trained_on"):
            assert result.protocol[key] == whole.scores["protocol"][key]
        network = mshnet.load(weights)
        assert isinstance(network, mshnet.MSHNet) and not network.training
    config = whole.config.model_copy(update={"weight_path": str(file)})
    assert evaluate(config, rule="reference").protocol["rule"] == "reference"
    assert evaluate("pretrained", scenes=8, base_size=64, device="cpu").protocol["images"] == 2
    with pytest.raises(UserError, match="unknown setting 'rull'; did you mean 'rule'"):
        evaluate(whole, rull="reference")


@pytest.mark.parametrize("weights", [3, None, [], {"a": 1}, torch.ones(2), b"best.pt"])
def test_weights_of_a_wrong_type_are_one_line(weights):
    "With the name of the type, whichever function gets them."
    line = f"weights of type {type(weights).__name__} are not possible: use a run, a run folder"
    image = torch.zeros(16, 16, dtype=torch.uint8)
    calls = [
        lambda: mshnet.evaluate(weights),
        lambda: mshnet.load(weights),
        lambda: mshnet.predict(weights, image),
        lambda: mshnet.detect(image, weights),
        lambda: mshnet.find_targets(image, weights),
    ]
    for call in calls:
        with pytest.raises(UserError, match=line):
            call()
    with pytest.raises(UserError, match=f"settings of type {type(weights).__name__} are not"):
        mshnet.train(weights)


def test_an_epoch_without_a_score_is_no_best_epoch(tmp_path):
    "A held-out part without targets and an empty prediction has no IoU."
    judge = Detection(tiny(tmp_path, choose="val"))
    state = State(torch.nn.Linear(1, 1), None)
    nothing = {"iou": None}
    assert is_best(judge, state, nothing)
    state.best = {"epoch": 0, "name": "iou", "score": None}
    assert is_best(judge, state, {"iou": 0.1})
    state.best["score"] = 0.1
    assert not is_best(judge, state, nothing)


def test_scoring_leaves_the_caller_free_to_train():
    "A scoring that was interrupted between two batches must not switch gradients off for good."
    task, device = Detection(tiny(num_workers=0)), open_device("cpu", "fp32")
    model = device.to_device(task.model())
    started = predictions(task, model, task.splits()["train"], device, "full")
    next(started)
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


def scoring(**changes):
    "All that a scoring of ten batches takes."
    task, device = Detection(tiny(scenes=40, **changes)), open_device("cpu", "fp32")
    return task, device.to_device(task.model()), task.splits()["train"], device, "full"


def test_batches_are_counted_in_order_in_one_thread(monkeypatch):
    "Counting beside the next forward pass must not change what is counted."
    args, counted, threads = scoring(), [], set()
    monkeypatch.setattr("mshnet.task.workers", lambda *_: 1)  # as on an accelerator

    def count(logits, batch):
        time.sleep(0.05)  # longer than a prediction: they queue up
        counted.append((logits, batch))
        threads.add(threading.get_ident())

    before = threading.active_count()
    count_predictions(count, *args)
    assert threading.active_count() == before
    assert len(threads) == 1
    assert threading.get_ident() not in threads
    for have, want in zip(counted, predictions(*args), strict=True):
        assert torch.equal(have[0], want[0])
        assert torch.equal(have[1].mask, want[1].mask)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("where", ["counting", "predicting"])
def test_an_error_while_counting_or_predicting_ends_both(where, error, monkeypatch):
    "It reaches the caller, and no thread goes on with a scoring that nobody waits for."
    before = threading.active_count()
    args, calls = scoring(num_workers=int(where == "counting")), []
    task = args[0]
    real = task.predict

    def fails(*inputs):
        calls.append(inputs)
        if len(calls) == 2:
            raise error("in the second batch")
        return real(*inputs) if where == "predicting" else None

    if where == "predicting":
        monkeypatch.setattr(task, "predict", fails)
    with pytest.raises(error, match="in the second batch") as held:  # with all that it refers to
        count_predictions(fails if where == "counting" else lambda *_: None, *args)
    assert threading.active_count() == before, held
    assert len(calls) <= 5


def test_a_finished_run_is_only_reported(whole, capsys):
    "Started again it prints its scores; no weight moves, and no record names the new machine."
    files = [p for p in whole.folder.iterdir() if p.suffix in (".json", ".pt")]
    before = {p.name: p.read_bytes() for p in files if p.name != "status.json"}
    again = train(whole.config.model_copy(update={"log_every": 3}))
    assert {name: (whole.folder / name).read_bytes() for name in before} == before
    assert capsys.readouterr().out.splitlines()[-1] == again.scores["line"]


@pytest.mark.parametrize(
    "change", [{"lr": 0.1}, {"seed": 1, "batch_size": 2}, {"rule": "reference"}, {"scenes": 12}]
)
def test_a_changed_recipe_is_refused_with_the_fields_that_differ(whole, change):
    "And changed data: resuming would be neither the one run nor the other."
    before = (whole.folder / "config.json").read_bytes()
    with pytest.raises(UserError) as error:
        train(whole.config.model_copy(update=change))
    names = ["train data"] if "scenes" in change else change
    assert all(f"{name} " in str(error.value) for name in names)
    assert (whole.folder / "config.json").read_bytes() == before


class Other(Detection):
    "Detection with a loss of one's own."


def test_a_task_of_ones_own_is_another_run(tmp_path):
    "It neither gets the scores of the baseline nor continues it."
    config = tiny(tmp_path, epochs=1)
    run = train(config)
    with pytest.raises(UserError, match="task Detection -> Other"):
        train(config, Other(config))
    with pytest.raises(UserError, match="the task has other settings"):
        train(tiny(tmp_path, epochs=9), Other(config))
    own = config.model_copy(update={"seed": 1, "output_dir": str(tmp_path / "own")})
    other = train(own, Other(own))
    with pytest.warns(UserWarning, match="trained by class Other, not by mshnet"):
        mshnet.evaluate(other)
    told = str(compare([run, other]))
    assert "mean of" not in told and "class" in told and "class" not in str(compare(run))


def test_a_training_leaves_its_caller_as_it_was(tmp_path, monkeypatch):
    "With its random numbers; without gradients, or streams; in a pool of processes."
    random.seed(1)
    before, theirs = random.getstate(), torch.get_rng_state()
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    with torch.no_grad():
        train(tiny(tmp_path, epochs=1))
    assert random.getstate() == before and torch.equal(torch.get_rng_state(), theirs)
    assert pickle.loads(pickle.dumps(mshnet.train)) is mshnet.train


def test_what_load_returns_detects_as_its_file(tmp_path):
    "With the phase and the sizes of the file; and it has gradients of gradients."
    frame = np.random.default_rng(0).integers(0, 255, (64, 64), np.uint8)
    for weights in (train(tiny(tmp_path, warm_epoch=5, fusion_start="random")), "pretrained"):
        network = mshnet.load(weights)
        one, other = (mshnet.predict(x, frame, device="cpu") for x in (weights, network))
        assert np.array_equal(one, other)
    x = torch.rand(1, 3, 32, 32, requires_grad=True)
    (slope,) = torch.autograd.grad(network(x)[-1].sum(), x, create_graph=True)
    slope.square().sum().backward()


def test_weights_of_the_warm_up_are_scored_with_its_single_head(tmp_path, capsys):
    "The fused head was never trained; the checkpoint says so, and scoring obeys."
    changes = {"output_dir": str(tmp_path / "run"), "epochs": 1, "warm_epoch": 5}
    config = mshnet.Config(**TINY | changes)
    run = train(config)
    assert "the run ends within the warm-up, so the fused head" in capsys.readouterr().out
    assert read_checkpoint(run.folder / "best.pt")["phase"] == "warm-up"
    task, device = Detection(config), open_device("cpu", "fp32")
    model = task.model()
    model.load_state_dict(read_checkpoint(run.folder / "best.pt")["model"])
    want = score_split(task, device.to_device(model), task.splits()["test"], device, "warm-up")
    assert run.scores["line"] == str(want)


def test_the_device_is_read_at_log_lines_and_at_the_end_only():
    "One read per step is what keeps an accelerator waiting in the official script."
    config = tiny(scenes=20, log_every=2, num_workers=0)
    task, device = Detection(config), open_device("cpu", "fp32")
    model = device.to_device(task.model())
    train_epoch(Job(task, task.splits(), device), State(model, task.optimizer(model)), 0)
    assert device.reads == 2 + 1  # five steps: after 2 and 4, and the epoch's mean


PROGRAM = """
import json, sys
from mshnet.core import configure
from mshnet.train import train
train(configure(json.loads(sys.argv[1])))
"""


def begin_training(folder, **how):
    "A training of two epochs of four steps each, in a process of its own, without pictures."
    settings = {"scenes": 16, "epochs": 2, "base_size": 32, "crop_size": 32, "device": "cpu"}
    words = json.dumps(settings | {"log_every": 2, "output_dir": str(folder)})
    return Python("-c", PROGRAM, words, **how)


def test_a_terminal_shows_a_bar_with_rate_and_time_left(tmp_path):
    "Also in epochs of few steps, and in a terminal that does not report its size."
    pty = pytest.importorskip("pty")
    ours, its = pty.openpty()  # it reports 0 columns
    started = begin_training(tmp_path / "run", outputs=(os.ttyname(its),) * 2)
    os.read(ours, 1), os.close(its)  # it has opened the terminal
    parts = []
    with contextlib.suppress(OSError), contextlib.closing(os.fdopen(ours, "rb", 0)) as terminal:
        while part := terminal.read(4096):
            parts.append(part)
    text = b"".join(parts).decode()
    assert started.wait() == 0
    for epoch in (0, 1):
        bar = rf"epoch {epoch}/1: .* [1-4]/4 \[\d\d:\d\d<\d\d:\d\d, .*(it/s|s/it), loss \d"
        assert re.search(bar, text), text
    assert b"\r" not in (tmp_path / "run" / "train.log").read_bytes()


def test_elsewhere_a_run_prints_its_settings_and_plain_lines(tmp_path):
    "What was written and what the preset added, in one place; every so often a step."
    started = begin_training(tmp_path / "run", outputs=(tmp_path / "said",) * 2)
    assert started.wait() == 0
    text = (tmp_path / "said").read_text()
    assert text.startswith("config  scenes = 16\n"), text
    for setting in ("preset = 'quick'", "epochs = 2", "base_size = 32", "device = 'cpu'"):
        assert f"\n        {setting}\n" in text
    assert re.search(r"\n  epoch 0, step 2/4: loss \d\.\d{4}\n", text)
    assert "it/s" not in text and b"\r" not in (tmp_path / "said").read_bytes()


class NoDoubles(TorchDispatchMode):
    "Refuses tensors of float64 while it is on."

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for value in out if isinstance(out, tuple | list) else [out]:
            if isinstance(value, torch.Tensor):
                assert value.dtype != torch.float64, f"{func} makes float64, which MPS has not"
        return out


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_no_float64_in_a_step_or_a_scoring(precision):
    "Apple's MPS has no float64: one such tensor and the run dies there."
    config = tiny(scenes=4, precision=precision, num_workers=0)
    task, device = Detection(config), open_device("cpu", precision)
    parts, model = task.splits(), device.to_device(task.model())
    state = State(model, task.optimizer(model))
    with NoDoubles():
        for epoch in (0, 1):  # the warm-up and the full phase
            train_epoch(Job(task, parts, device), state, epoch)
        score_split(task, model, parts["test"], device, "full")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_cuda_trains_and_its_run_goes_on_at_the_cpu(tmp_path):
    "Checkpoints hold CPU tensors: a run begun on a GPU resumes anywhere."
    train(tiny(tmp_path / "run", device="cuda", epochs=1))
    assert len(train(tiny(tmp_path / "run", epochs=2)).history) == 2
