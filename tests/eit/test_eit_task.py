"Tomography as a task: it trains, is scored, and predicts files."

import json
import re
import shutil
from functools import partial

import numpy as np
import pytest
from conftest import ctrl_c_at_second, data_folder, refused

from mshnet.bench import bench
from mshnet.cli import main
from mshnet.core import UserError, configure, from_notebook, settings_from
from mshnet.eit.eit_config import EitConfig
from mshnet.eit.tank import simulate
from mshnet.eit.tanks import write_tanks
from mshnet.session import alone
from mshnet.task import make_task
from mshnet.train import train
from mshnet.weights import weights_file

TINY = {"tanks": 16, "size": 16, "patch": 2, "scales": 1, "width": 16, "heads": 2, "hints": 1}
TINY |= {"epochs": 2, "eval_every": 1, "batch_size": 8, "samples": 2, "sampling_steps": 2}
TINY |= {"device": "cpu", "precision": "fp32", "log_every": 1000}
tiny = partial(EitConfig, **TINY)  # the settings of a short run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    "A finished run."
    return train(tiny(output_dir=str(tmp_path_factory.mktemp("eit") / "run")))


@pytest.fixture
def files(tmp_path):
    "Three measurements: one in an npz file, two in a table."
    voltages, _ = simulate(3, seed=5)
    np.savez(tmp_path / "one.npz", ys=voltages[0, :, None].numpy())
    np.savetxt(tmp_path / "two.csv", voltages[1:].numpy(), delimiter=",")
    return tmp_path


def test_a_run_is_scored_with_its_protocol(run):
    "The loss falls, CC comes first, the line is the one of the file."
    assert run.history[-1]["loss"] < run.history[0]["loss"]
    assert next(iter(run.scores["scores"])) == "cc" and str(run).startswith("cc 0.")
    protocol = run.scores["protocol"]
    assert (protocol["task"], protocol["samples"], protocol["size"]) == ("eit", 16, 16)


def test_a_regression_and_a_u_net_are_of_before(run):
    "One line, from a record; runs of diffusion are read as they were."
    record = run.config.model_dump() | {"method": "diffusion", "network": "dit"}
    assert settings_from(record) == run.config
    for name, value in (("network", "unet"), ("method", "regression")):
        with pytest.raises(UserError, match=f"{name}={value} is not possible: {name} is retired"):
            settings_from(record | {name: value})


def test_the_averages_of_the_preset_paper_are_the_published_ones():
    "Its law replaces that of the engine; the other settings are the article's."
    paper = make_task(configure({"task": "eit", "preset": "paper"}))
    assert [paper.decay(step) for step in (1, 11, 12)] == [0.0, 0.0, 1.0]
    assert paper.decay(10_001) == 0.995
    assert make_task(tiny()).decay(0) == 0.1
    assert (paper.config.width, paper.config.size, paper.config.lr) == (512, 128, 1e-5)


def test_flags_of_the_old_guide_have_a_meaning(capsys):
    "Or an answer with today's."
    old = {"task": "eit", "global_batch_size": 64, "samplingsteps": 10, "global_seed": 3}
    config = from_notebook({**old, "data_path": "", "results_dir": "x"})
    assert (config.batch_size, config.sampling_steps, config.seed) == (64, 10, 3)
    assert config.output_dir == "x"
    answers = {"--ckpt-every 5": "after every epoch", "--mode 5": "mshnet test"}
    answers |= {"--sampling-steps 2000": "sampling_steps=2000 is not possible: use a"}
    answers |= {"--method regression": "method is retired: images are sampled by diffusion"}
    answers |= {"--preset baseline": "preset=baseline is retired: use --preset small"}
    answers |= {"--size 32 --patch 5": "must be a multiple of 4"}
    for flags, answer in answers.items():
        assert answer in refused(capsys, "train", "--task", "eit", *flags.split())


def test_commands_read_and_write_tanks(run, files, tmp_path, capsys, monkeypatch):
    "train's weights in test, predict, export, compare; status 2 for what cannot be."
    with pytest.raises(SystemExit):
        main(["test", str(run.folder), "--help"])
    assert "test2023" in capsys.readouterr().out  # of the task, which the run names
    assert main(["test", "--weight-path", str(run.folder), "--device", "cpu"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(run)
    out = tmp_path / "out"
    words = ["--weight-path", str(run.folder), "--output-dir", str(out), "--device", "cpu"]
    assert main(["predict", *words, str(files / "one.npz"), str(files / "two.csv")]) == 0
    assert "3 tanks of 2 files" in capsys.readouterr().out
    arrays = np.load(out / "tanks.npz")
    assert arrays["names"].tolist() == ["one", "two_0", "two_1"]
    assert arrays["mean"].shape == arrays["spread"].shape == (3, 16, 16)
    assert {p.name for p in out.glob("*.png")} == {"one.png", "two_0.png", "two_1.png"}
    with pytest.raises(UserError, match="task=eit: bench measures detection"):
        bench(run.config)
    ctrl_c_at_second(monkeypatch, "mshnet.eit.reconstruction.draw_tank")
    assert main(["predict", *words, str(files / "two.csv"), f"--output-dir={tmp_path}/two"]) == 130
    assert np.load(tmp_path / "two/tanks.npz")["names"].tolist() == ["two_0"]
    assert capsys.readouterr().err.endswith("mshnet: stopped\n")
    assert main(["export", "--weight-path", str(run.folder)]) == 0
    assert main(["compare", str(run.folder)]) == 0
    assert main(["doctor", "--task", "eit", "--device", "cpu"]) in (0, 1)


def test_predict_draws_as_many_pictures_as_asked(run, files, tmp_path, capsys):
    "Of settings and options it takes those of its task; one of another task is a mistake."
    words = ["predict", "--task", "eit", "--weight-path", str(run.folder), "--device", "cpu"]
    spreads = []
    for name, more in {"one": "--samples 1", "two": "--samples 6 --sampling-steps 3"}.items():
        out = ["--output-dir", str(tmp_path / name)]
        assert main([*words, *more.split(), *out, str(files / "one.npz")]) == 0
        spreads.append(np.load(tmp_path / name / "tanks.npz")["spread"].max())
    assert spreads[0] == 0 < spreads[1]
    said = refused(capsys, *words, "--threshold", "0.5", files / "one.npz")
    assert "task eit has no option --threshold" in said


def test_a_file_elsewhere_has_the_statistics_of_the_training(tmp_path):
    "The run records them, so a copy of a tank has the image of the tank in its data set."
    write_tanks(tmp_path / "set", {"train": 16, "test": 2})
    run = train(tiny(dataset_dir=str(tmp_path / "set"), output_dir=str(tmp_path / "run")))
    file, how = tmp_path / "set/test/000000.npz", {"device": "cpu", "precision": "fp32"}
    paths, how["output_dir"] = [str(file), str(shutil.copy(file, tmp_path))], str(tmp_path / "out")
    make_task(run.config).predict_files(str(run.folder), paths, **how)
    inside, outside = np.load(tmp_path / "out/tanks.npz")["mean"]
    assert np.abs(inside - outside).max() < 0.005 < inside.max()


def test_a_score_names_how_its_images_were_sampled(run):
    "One image of one step is another score than the mean of four."
    told = [make_task(EitConfig(samples=n)).protocol([], None) for n in (1, 4)]
    assert told[0] != told[1] and told[1]["sampled_images"] == 4


def test_equal_names_of_measurements_are_numbered(run, files, tmp_path):
    "None takes the place of another; no image at all can be drawn of none."
    paths = []
    for day in "abcd":
        (tmp_path / day).mkdir()
        paths.append(str(shutil.copy(files / "one.npz", tmp_path / day / "$_{$\udcba.npz")))
    task, out = make_task(run.config), str(tmp_path / "out")
    with alone(tmp_path / "out"), pytest.raises(UserError, match="another process works in this"):
        task.predict_files(str(run.folder), paths, output_dir=out, device="cpu", samples=1)
    task.predict_files(str(run.folder), paths, output_dir=out, device="cpu", samples=1)
    names = np.load(tmp_path / "out" / "tanks.npz")["names"].tolist()
    assert names == ["$_{$\udcba", "$_{$\udcba-2", "$_{$\udcba-3", "$_{$\udcba-4"]
    for n, why in ((0, "samples=0 is not possible"), (1, "holds something else than this")):
        with pytest.raises(UserError, match=why):
            task.predict_files(str(run.folder), paths, output_dir=out, device="cpu", samples=n)


def test_real_tanks_are_scored(run, tmp_path, capsys):
    "All 22 or 25 of a folder, with the published scales; the pictures of files alone are the same."
    tanks = data_folder("eit-tank")
    words = ["test", "--weight-path", str(run.folder), "--device", "cpu", "--data"]
    assert "data=uef2017 needs dataset_dir" in refused(capsys, *words, "uef2017")
    out = ["--dataset-dir", str(tanks), "--output-dir", str(tmp_path / "scores")]
    assert main([*words, "uef2017", *out]) == 0
    found = json.loads((tmp_path / "scores" / "scores.json").read_text())
    assert found["protocol"]["samples"] == 22 and found["protocol"]["data"].endswith("test2017")
    scores = found["scores"]
    assert scores["empty_rmse"] == pytest.approx(0.225, abs=0.001)  # of 16x16 pixels
    assert len(found["protocol"]["content"]) == 12
    assert np.isfinite([scores["cc"], scores["within_1"], scores["spread_cc"]]).all()


def test_files_that_cannot_be_read_are_skipped(run, files, tmp_path, capsys):
    "With a line each and status 1; a file alone is an error, and nothing is written."
    (bad := tmp_path / "short.csv").write_text(",".join(["0.1"] * 207))
    out = tmp_path / "out"
    words = ["predict", "--weight-path", str(run.folder), "--output-dir", str(out)]
    assert "207 voltages" in refused(capsys, *words, bad) and not out.exists()
    assert main([*words, str(tmp_path / "nothing")]) == 2
    assert main([*words, str(bad), str(files / "two.csv")]) == 1
    said = capsys.readouterr()
    assert "2 tanks of 1 file, 1 skipped" in said.out and "short.csv" in said.err
    said = refused(capsys, *words, bad, shutil.copy(bad, tmp_path / "other.csv"))
    assert "none of the 2 files can be read" in said


def test_the_pretrained_weights_reconstruct_tanks(capsys):
    "Better than ridge regression, which has 0.80 on these; the file is small, its card is named."
    assert weights_file("pretrained", "eit").stat().st_size < 8e6
    words = ["--task", "eit", "--device", "cpu", "--samples", "1", "--tanks", "12"]
    assert main(["test", *words]) == 0
    said = capsys.readouterr().out
    cc, rmse, empty = re.search(r"cc (\S+)  rmse (\S+)  \(an.* rmse (\S+)\)", said).groups()
    assert float(cc) > 0.83 and float(rmse) < float(empty) / 1.5
    line = refused(capsys, "test", *words, "--preset", "paper")
    assert "size=128: these weights draw 32x32; omit" in line
    assert "pretrained-eit.md" in said
    assert weights_file("pretrained", "eit").with_suffix(".md").exists()


def test_settings_of_the_simulation_are_used_beside_real_tanks(tmp_path):
    "Real tanks are for the test alone; a folder of tanks has its own."
    assert EitConfig(dataset_dir="tanks", data="uef2017").unused({"tanks": 64}) == []
    (tmp_path / "train").mkdir()
    for own in ({"dataset_dir": "tanks"}, {"dataset_dir": str(tmp_path), "data": "uef2017"}):
        assert "tanks is not used" in EitConfig(**own).unused({"tanks": 64})[0]
