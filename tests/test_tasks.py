"""Another problem than images with masks: a toy trains with the library's loop as it is."""

import copy
import json
import os
from functools import partial

import numpy as np
import pytest
import torch
import toys
import warm
from conftest import TOP, make_dataset, refused, same, tiny
from PIL import Image
from torch import nn

from mshnet import data
from mshnet.augment import training_batch
from mshnet.cli import main
from mshnet.core import TASKS, UserError, configure, from_notebook, run_name, settings_class
from mshnet.detection import NETWORKS, Detection, normalise
from mshnet.device import infer, open_device
from mshnet.evaluate import evaluate, predict
from mshnet.loss import mshnet_loss, sls_loss
from mshnet.model import MSHNet
from mshnet.recipe import Config
from mshnet.run import read_checkpoint
from mshnet.show import draw_run, samples
from mshnet.task import Task, Values, make_task, origin_of, predict_each, score_split, trained_model
from mshnet.train import average, train

SHORT = {"epochs": 3, "batch_size": 8, "device": "cpu", "precision": "fp32", "log_every": 1000}
toy = partial(toys.RingSettings, **SHORT)  # the settings of a short run


@pytest.mark.parametrize("name", ["detect", "eit", "events", "signs"])
def test_what_to_make_smaller_is_a_setting_of_the_task(name):
    "Where one sample does not fit into the memory, the error names it."
    kind = settings_class(name)
    flags = [word for word in kind.smaller.split() if word.startswith("--")]
    assert flags and {flag[2:].replace("-", "_") for flag in flags} <= set(kind.model_fields)


@pytest.fixture(scope="module")
def ring(tmp_path_factory):
    "A finished run of the toy."
    return train(toy(output_dir=str(tmp_path_factory.mktemp("toys") / "ring")))


def test_a_toy_trains_and_is_scored(ring):
    "The loss falls; the scores are the task's own, and stand in the log, the line, the file."
    history, scores, protocol = ring.history, ring.scores["scores"], ring.scores["protocol"]
    assert len(history) == 3 and history[-1]["loss"] < history[0]["loss"]
    assert history[-1]["scores"].keys() == scores.keys() == {"error"}
    assert str(ring) == f"error {scores['error']:.3f}"
    assert (protocol["task"], protocol["samples"], protocol["split"]) == ("ring", 10, "test")


def test_a_lower_score_is_the_better_one(tmp_path):
    "best.pt is the epoch with the smallest error on the test split."
    run = train(toy(choose="test", epochs=4, output_dir=str(tmp_path / "run")))
    errors = [entry["scores"]["error"] for entry in run.history]
    assert read_checkpoint(run.folder / "best.pt")["best"]["epoch"] == errors.index(min(errors))
    chosen = f"epoch {errors.index(min(errors))}, by error on the TEST list itself"
    assert run.scores["protocol"]["chosen"] == chosen


def test_a_missing_validation_split_is_an_error_with_its_remedy(tmp_path):
    "Before anything is trained."
    with pytest.raises(UserError, match="task ring has no val split; use --choose last"):
        train(toy(choose="val", output_dir=str(tmp_path / "run")))
    assert not (tmp_path / "run").exists()


def test_a_task_needs_data_to_train_and_to_test(tmp_path):
    "What lacks is named."

    class Untested(toys.Ring):
        def splits(self, names=("train", "test")):
            return super().splits(["train"])

    config = toy(output_dir=str(tmp_path / "run"))
    with pytest.raises(UserError, match="task ring has no test split, which every task needs"):
        train(config, Untested(config))


def test_a_task_that_lacks_a_method_is_named(monkeypatch):
    "With all that is missing, before anything is trained."

    class Half(Task):
        def model(self):
            return nn.Linear(1, 1)

        def __init__(self, config):
            self.settings = config

    with pytest.raises(TypeError, match=r"class Half .*batch.*loss.*predict.*splits.*tally"):
        Half(Config())
    monkeypatch.setitem(TASKS, "detect", (TASKS["detect"][0], "toys:Half"))
    monkeypatch.setattr(toys, "Half", Half, raising=False)
    line = "Half: a task needs the methods batch, loss, predict, splits, tally, too"
    with pytest.raises(UserError, match=line):
        make_task(Config())


def test_a_loss_of_several_parts_is_refused(tmp_path):
    "Earlier versions took them; the line says what to return instead."
    config = toy(output_dir=str(tmp_path / "run"))

    class Parts(type(make_task(config))):
        def loss(self, model, batch, phase):
            return {"all": super().loss(model, batch, phase)}

    with pytest.raises(UserError, match=r"Parts\.loss: return one number, the sum of the parts"):
        train(config, Parts(config))


def test_fewer_samples_than_a_batch_are_one_line(tmp_path):
    "In every task: an epoch would have no step."
    config = configure({"task": "events", "preset": "quick", "recordings": 20, "batch_size": 64})
    with pytest.raises(UserError, match=r"batch_size=64: there are only \d+ training samples"):
        train(config.model_copy(update={"device": "cpu", "output_dir": str(tmp_path / "run")}))


def test_a_published_record_of_the_best_score_is_none_of_ours(tmp_path):
    "Many scripts call it best; the weights are used all the same."
    names = {"best": torch.ones(2), "config": {"lr": 1}, "phase": "a", "data": "b", "multiscale": 1}
    torch.save({"state_dict": MSHNet().state_dict(), **names}, tmp_path / "a.pth")
    assert "how they were chosen: not known" in trained_model(tmp_path / "a.pth").origin.chosen
    assert train(tiny(tmp_path / "run", weight_path=str(tmp_path / "a.pth"))).finished


def test_minus_infinity_is_a_prediction_and_nan_is_not():
    "The log-probability of what cannot be is -inf."
    device, task = open_device("cpu", "fp32"), make_task(toy())
    assert infer(device, lambda: (torch.full((1,), -torch.inf),))[0].isneginf()
    test, model = task.splits(["test"])["test"], task.model()
    model.voltages.bias.data[0] = torch.nan
    with pytest.raises(UserError, match="prediction is NaN or infinite"):
        score_split(task, model, test, device, "full")
    device.precision, found = "fp16", [torch.full((1,), -torch.inf), torch.ones(1)]
    assert infer(device, lambda: found.pop(0)) == 1  # of float16 it is computed again


def test_a_prediction_of_several_tensors_is_cut_by_sample(monkeypatch):
    "Each sample has its own row of each tensor, in a tuple, too."
    both, batch = (torch.arange(2), torch.ones(2)), toys.RingBatch(*[torch.tensor([1, 0])] * 5)
    monkeypatch.setattr("mshnet.task.predictions", lambda *args: [(both, batch)])
    cut = predict_each(make_task(toy()), None, "xy", list, open_device("cpu", "fp32"), 2)
    assert dict(cut) == {"x": (1, 1), "y": (0, 1)}

    def broken(*_):
        yield both, toys.RingBatch(*[torch.tensor([0, -1])] * 5)
        raise KeyboardInterrupt

    monkeypatch.setattr("mshnet.task.predictions", broken)
    cut = predict_each(make_task(toy()), None, "xy", list, open_device("cpu", "fp32"), 1)
    assert next(cut)[0] == "x"  # what is interrupted later is not lost


def test_what_weights_were_trained_on_has_the_content_of_the_files():
    "Lists of equal names are not one; a part that the seed held out does not tell."
    data = {"training list": "names", "train data": "labels", "train content": "pixels"}
    for choose, want in (("last", "names labels pixels"), ("val", "names")):
        record = {"config": {"choose": choose, "seed": 0}, "best": {"epoch": 0, "name": "iou"}}
        assert origin_of(record | {"data": data}).trained_on == want


def test_what_is_wrong_with_a_task_is_said_as_it_is(tmp_path, monkeypatch):
    "An error of its data is no NaN loss; `better` names a score; a score may be infinite."
    config = toy(epochs=1, output_dir=str(tmp_path / "run"))
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(toys.Ring, "batch", lambda *_: 1 / 0)
        train(config)
    with monkeypatch.context() as patch, pytest.raises(UserError, match=r"Ring\.better: no"):
        patch.setattr(toys.Ring, "better", ("acc", 1))
        train(config)
    monkeypatch.setattr(toys.Errors, "scores", lambda self: Values(error=np.float32(np.inf)))
    assert train(config).scores["scores"] == {"error": None}


def test_the_settings_of_a_task_are_recipe(ring):
    "In the name of a run and in what a resumed run must agree on."
    assert run_name(toy()).startswith("ring-synthetic-")
    assert run_name(toy(width=4)) != run_name(toy())
    with pytest.raises(UserError, match="width 8 -> 4"):
        train(ring.config.model_copy(update={"width": 4}))
    with pytest.raises(UserError, match="unknown setting 'widht'; did you mean 'width'"):
        toy(widht=4)
    with pytest.raises(UserError, match="width=0 is not possible: use a value greater"):
        toy(width=0)
    with pytest.raises(UserError, match="unknown setting 'base_size'"):
        toy(base_size=64)


def test_every_door_reads_the_task_first(ring, tmp_path):
    "Written by hand, in a file, in the run that is resumed; presets are the task's own."
    file = tmp_path / "settings.json"
    file.write_text(json.dumps({"task": "ring", "width": 3}))
    assert configure({}, str(file)).width == 3
    assert configure({"task": "ring", "preset": "tiny"}).width == 4
    assert configure({"task": "ring"}).preset == ""
    assert configure({"resume": str(ring.folder)}).task == "ring"
    cell = {"task": "ring", "width": np.int64(5), "epochs": None, "dataset_dir": tmp_path}
    assert from_notebook(cell) == configure({**cell, "width": 5, "dataset_dir": str(tmp_path)})
    with pytest.raises(UserError, match=r"preset=quick is not known \(there are tiny\)"):
        configure({"task": "ring", "preset": "quick"})
    with pytest.raises(UserError, match="unknown setting 'words'"):
        from_notebook({"task": "ring", "words": 5})
    with pytest.raises(UserError, match="the run is of task ring; leave out --task"):
        configure({"task": "eit", "resume": str(ring.folder)})
    with pytest.raises(UserError, match=r"task=rung is not known; did you mean 'ring'\?"):
        configure({"task": "rung"})


def test_the_command_trains_a_toy(tmp_path, capsys):
    "With its own flags and its own help; detection's mean nothing to it."
    words = ["--epochs", "1", "--batch-size", "8", "--device", "cpu"]
    out = ["--output-dir", str(tmp_path / "run")]
    assert main(["train", "--task", "ring", "--width", "4", *words, *out]) == 0
    assert json.loads((tmp_path / "run" / "config.json").read_text())["width"] == 4
    assert capsys.readouterr().out.splitlines()[-1].startswith("error 0.")
    assert "crop_size" in refused(capsys, "train", "--task", "ring", "--crop-size", "64")
    with pytest.raises(SystemExit):
        main(["train", "--task", "ring", "--help-all"])
    said = capsys.readouterr().out
    assert "--noise-steps" in said and "--crop-size" not in said and "  tiny " in said


def test_commands_read_the_task_from_the_run(ring, tmp_path, capsys):
    "test, export, compare; predict has no meaning here."
    assert main(["test", "--weight-path", str(ring.folder), "--device", "cpu"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(ring)
    file = tmp_path / "weights.safetensors"
    words = ["--weight-path", str(ring.folder), "--output", str(file)]
    assert main(["export", *words]) == 0
    trained = read_checkpoint(ring.folder / "last.pt")["model"]
    assert same(trained_model(file).model.state_dict(), trained)
    assert "use FILE.safetensors" in refused(capsys, "export", *words[:3], str(tmp_path / "a.onnx"))
    Image.new("L", (64, 64)).save(tmp_path / "x.png")
    words = ["--weight-path", str(ring.folder), "--output-dir", str(tmp_path / "out")]
    said = refused(capsys, "predict", *words, tmp_path / "x.png")
    assert "task=ring: predicts no files" in said


def test_runs_of_a_task_are_compared(ring, tmp_path, capsys):
    "By its own scores, with the mean over seeds; not with another task's."
    other = train(toy(seed=1, output_dir=str(tmp_path / "other")))
    folders = [str(ring.folder), str(other.folder)]
    assert main(["compare", *folders]) == 0
    said = capsys.readouterr().out
    assert "mean of n = 2 seeds like ring" in said and "error" in said and "task ring" in said
    said = refused(capsys, "compare", folders[0], TOP / "results/nuaa-sirst-paper")
    assert "task ring | not known" in said


def test_moved_weights_are_scored_as_they_were_trained(ring, tmp_path, capsys):
    "Weights that left their run's folder still know their task and its settings."
    (tmp_path / "best.pt").write_bytes((ring.folder / "best.pt").read_bytes())
    path = str(tmp_path / "best.pt")
    with pytest.raises(
        UserError, match="task ring, not of task detect; name others, or use task ring"
    ):
        evaluate(Config(weight_path=path, device="cpu"))
    assert evaluate(toy(weight_path=path)).protocol["samples"] == 10
    assert main(["test", "--weight-path", path, "--device", "cpu"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(ring)


def test_weights_of_other_dimensions_keep_their_layout():
    "channels_last is for images."
    device = open_device("cpu", "fp32")
    model = device.to_device(nn.Sequential(nn.Conv3d(2, 4, 3), nn.Conv2d(2, 4, 3)))
    assert model[0].weight.is_contiguous()
    assert model[1].weight.is_contiguous(memory_format=torch.channels_last)
    pixel = device.to_device(nn.Conv2d(3, 16, 1)).weight  # strides that its gradient will have
    plain = nn.Conv2d(3, 16, 1).to(memory_format=torch.channels_last).weight
    assert pixel.stride() == plain.stride()


NAKED = """
import toys, sys
from mshnet.train import train
class Naked(toys.Ring):
    def loss(self, model, batch, phase):
        return model.voltages(batch.voltage).square().mean()
config = toys.RingSettings(device="cpu", epochs=1, batch_size=8, output_dir=sys.argv[1])
train(config, Naked(config))
"""


def test_gradients_that_nobody_averages_are_an_error(tmp_path):
    "A loss that reaches into the model passes by what averages gradients."
    done = warm.in_two_processes("-c", NAKED, tmp_path / "run")
    assert done.returncode != 0
    assert "a loss must call model(...) itself" in done.stderr


def test_own_networks_and_tasks_are_started_by_torchrun(monkeypatch):
    "Processes that are started here do not know them."
    monkeypatch.setitem(NETWORKS, "thin", Thin)
    for config in (Config(network="thin", num_devices=2, device="cpu"), toy(num_devices=2)):
        with pytest.raises(UserError, match="start your script by torchrun"):
            train(config)


@pytest.mark.parametrize("name", ["adamw", "adam", "adagrad"])
def test_detection_trains_to_the_bits_of_a_plain_loop(tmp_path, name):
    "Shuffle, crops, optimizer, schedule, clipping and averaging as the notebooks write them."
    sizes = {"scenes": 8, "base_size": 32, "crop_size": 32, "epochs": 2, "weight_decay": 0.1}
    sizes |= {"batch_size": 4, "optimizer": name}
    kinds = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "adagrad": torch.optim.Adagrad}
    config = Config(**SHORT | sizes, output_dir=str(tmp_path / "run"))
    run = train(config)
    task = Detection(config)
    split, model = task.splits()["train"], task.model().to(memory_format=torch.channels_last)
    ema = copy.deepcopy(model)
    optimizer = kinds[name](model.parameters(), lr=config.lr, weight_decay=0.1)
    for step in range(4):
        average(ema, model, 1 - min(config.ema, (1 + step) / (10 + step)))
        optimizer.param_groups[0]["lr"] = config.lr * (task.rate(step, 2) / config.lr)
        rows = task.plan(split, step // 2)[step % 2]
        batch = training_batch(split, rows, step // 2, config)
        image = batch.image.contiguous(memory_format=torch.channels_last)
        masks, logits = model(normalise(image), deep=True)
        loss = mshnet_loss(masks, logits, batch.mask, config.loss).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), config.clip_grad)
        optimizer.step()
    kept = read_checkpoint(run.folder / "last.pt")
    assert same(kept["trained"], dict(model.state_dict()))
    assert same(kept["model"], dict(ema.state_dict()))


class Thin(nn.Module):
    "A network of one's own: two outputs at full size."

    extra = 1

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU())
        self.single, self.fused = nn.Conv2d(8, 1, 1), nn.Conv2d(8, 1, 3, padding=1)

    def forward(self, image, deep=True):
        "As MSHNet is called."
        found = self.stem(image)
        return [self.single(found)][: self.extra], self.fused(found)


def test_a_network_may_have_its_prediction_alone(tmp_path, monkeypatch):
    "In the paper's warm-up too; after it, the loss is that of the settings, not the warm-up's."
    monkeypatch.setitem(NETWORKS, "thin", Thin)
    monkeypatch.setattr(Thin, "extra", 0)
    sizes = {"scenes": 8, "base_size": 32, "crop_size": 32, "epochs": 1, "warm_epoch": 0}
    config = Config(**sizes, network="thin", device="cpu", output_dir=str(tmp_path / "run"))
    assert train(config).scores
    task = Detection(config.model_copy(update={"loss": "sls"}))
    model, batch = task.model(), task.batch(task.splits()["train"], [0, 1], None)
    logits = model(normalise(batch.image))[1]
    for phase, whole in (("warm-up", False), ("full", True)):
        want = sls_loss(logits, batch.mask, scale=whole, location=whole).mean()
        assert task.loss(model, batch, phase) == want


def test_a_network_of_ones_own_is_used_like_mshnet(tmp_path, monkeypatch, capsys):
    "Trained, tested, drawn, exported and predicted with, by its name."
    monkeypatch.setitem(NETWORKS, "thin", Thin)
    words = ["--scenes", "8", "--base-size", "32", "--crop-size", "32", "--epochs", "2"]
    out = tmp_path / "run"
    words += ["--network", "thin", "--device", "cpu", "--output-dir", str(out)]
    assert main(["train", *words]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert (out / "figures" / "gallery.png").exists()
    assert isinstance(trained_model(out).model, Thin)
    assert main(["test", "--weight-path", str(out), "--device", "cpu"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == line
    image = torch.randint(0, 256, (1, 3, 32, 32), dtype=torch.uint8)
    assert predict(out, image, "cpu").shape == (1, 1, 32, 32)
    pytest.importorskip("onnxruntime")
    assert main(["export", "--weight-path", str(out)]) == 0  # compared with it by onnxruntime
    monkeypatch.delitem(NETWORKS, "thin")
    with pytest.raises(UserError, match=r"network=thin is not known .*NETWORKS\['thin'\]"):
        trained_model(out)


def test_a_data_set_is_read_once(tmp_path, monkeypatch):
    "However many look at it: samples, training, gallery, explore, a score, the report."
    folder = make_dataset(tmp_path / "set", train=8)
    read, real = [], data._read_split
    monkeypatch.setattr(
        data, "_read_split", lambda *args, **more: read.append(args[1]) or real(*args, **more)
    )
    settings = {"base_size": 32, "crop_size": 32, "epochs": 1, "device": "cpu"}
    config = Config(dataset_dir=str(folder), output_dir=str(tmp_path / "run"), **settings)
    samples(config, tmp_path / "run")
    run = train(config)
    draw_run(run.folder)
    evaluate(config.model_copy(update={"weight_path": str(run.folder)}))
    assert make_task(config).describe_data()[1]
    assert sorted(read) == ["test", "train"]
    os.utime(next((folder / "images").iterdir()), ns=(1, 1))
    samples(config, tmp_path / "run")
    assert len(read) == 4  # a file has changed
    moved = {"dataset_dir": str(folder.rename(tmp_path / "moved"))}
    make_task(config.model_copy(update=moved)).report(run.folder)
