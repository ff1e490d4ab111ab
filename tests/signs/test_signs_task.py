"Sign language as a task: it trains, stops with one line, reads files, knows its glosses."

import csv
import json
import shutil
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from conftest import ctrl_c_at_second, data_folder, refused

from mshnet.cli import main
from mshnet.core import UserError
from mshnet.device import open_device
from mshnet.export import export
from mshnet.signs.clips import needed_frames, simulated_clips
from mshnet.signs.ctc import Bigram
from mshnet.signs.reading import _find_clips, read_files
from mshnet.signs.signing import Signs, _make_network
from mshnet.signs.signs_config import SignsConfig
from mshnet.task import Origin, trained_task
from mshnet.train import train
from mshnet.weights import fit_weights

TINY = {"network": "tracks", "preset": "", "signs": 4, "sentences": 32, "hidden": 32}
TINY |= {"epochs": 2, "eval_every": 1, "batch_size": 8, "device": "cpu", "num_workers": 0}
TINY |= {"log_every": 1000, "lr": 0.01}
TFNET = {"network": "tfnet", "backbone": "small", "max_frames": 48, "distil": "detached"}
tiny = partial(SignsConfig, **TINY)  # the settings of a short run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    "A finished run on simulated tracks."
    return train(tiny(output_dir=str(tmp_path_factory.mktemp("signs") / "run")))


def test_a_run_is_scored_with_its_protocol(run):
    "WER and its parts come first; every sentence is stored with its alignment."
    scores = run.scores["scores"]
    names = ["wer", "words", "substitutions", "deletions", "insertions"]
    assert list(scores)[:5] == names and str(run).startswith("WER ")
    assert scores["wer"] == pytest.approx(sum(scores[name] for name in names[2:]) / scores["words"])
    assert scores["known_sentences"] + scores["new_sentences"] == 6
    protocol = run.scores["protocol"]
    assert (protocol["vocabulary"], protocol["outside_vocabulary"]) == (4, 0)
    sentences = json.loads((run.folder / "details.json").read_text())["sentences"]
    assert len(sentences) == 6 and all(s["alignment"] for s in sentences)
    task, model = trained_task(run.folder, run.config)
    data = simulated_clips("test", 4, 4, 0, video=False)
    twice, cpu = replace(data, clips=2 * data.clips), open_device("cpu", "fp32")  # of equal names
    assert len(task.evaluate(model, twice, cpu, "full", Origin("none")).details["sentences"]) == 8


def test_early_stopping(tmp_path):
    "Ends after as many epochs without a better score; a second call does not go on."
    config = tiny(choose="val", patience=2, epochs=30, lr=1e-9, ema=0.0, augment="none",
                  rescale=0.0, output_dir=str(tmp_path / "run"))  # fmt: skip
    found = train(config)
    assert len(found.history) == 3 and found.finished
    assert found.ended == "no better score for 2 epochs"
    assert len(train(config).history) == 3 and found.scores
    rare = config.model_copy(update={"eval_every": 3, "output_dir": str(tmp_path / "rare")})
    assert len(train(rare).history) == 6  # not before the next scoring
    with pytest.raises(UserError, match="patience=2 needs a validation split"):
        train(tiny(patience=2, output_dir=str(tmp_path / "other")))


def test_batches_have_few_lengths():
    "As many as buckets; every clip of an epoch once, but for the remainder."
    task = Signs(tiny(sentences=100, buckets=3))
    train_part = task.splits()["train"]
    plan = task.plan(train_part, 0)
    rows = [row for batch in plan for row in batch]
    assert len(plan) == 12 and len(set(rows)) == 96 == len(rows)
    assert plan != task.plan(train_part, 1)
    assert len({task.batch(train_part, rows, e).clip.shape for e in (0, 1) for rows in plan}) <= 3
    scoring = [row for batch in task.plan(train_part, None) for row in batch]
    assert sorted(row for row in scoring if row >= 0) == list(range(100))


HEAD = "left-x,left-y,right-x,right-y,nose-x,nose-y"


def write_tracks(file):
    "Write a table of hand tracks."
    tracks = simulated_clips("test", 6, 4, 0, video=False).read(0)
    np.savetxt(file, tracks, delimiter=",", header=HEAD, comments="")


def test_test_and_predict(run, tmp_path, capsys, monkeypatch):
    "The scores again by `mshnet test`; files get glosses, tables and pictures."
    words = ["test", str(run.folder), "--device", "cpu", "--output-dir", str(tmp_path / "test")]
    assert main(words) == 0 and run.scores["line"] in capsys.readouterr().out
    scores = json.loads((tmp_path / "test/scores.json").read_text())["scores"]
    assert scores == run.scores["scores"] and "new_wer" in scores
    for name in ("one", "two", "hands_condensed"):
        write_tracks(tmp_path / f"{name}.csv")
    words = f"predict --decoder greedy --num-workers 0 --device cpu --output-dir {tmp_path}/out"
    words = [*words.split(), "--weight-path", str(run.folder)]
    assert main([*words, str(tmp_path / "one.csv")]) == 0 and "one: " in capsys.readouterr().out
    rows = list(csv.reader((tmp_path / "out/signs.csv").read_text().splitlines()))
    assert rows[0] == ["clip", "gloss", "frame", "probability"]
    assert (tmp_path / "out/one.png").exists()
    assert (
        main([*words, "--max-frames=16", f"--output-dir={tmp_path}/few", f"{tmp_path}/one.csv"])
        == 0
    )
    assert "clips of more than 16 frames are thinned to 16" in capsys.readouterr().err
    ctrl_c_at_second(monkeypatch, "mshnet.signs.reading.draw_clip")
    words = [*words, f"--output-dir={tmp_path}/2"]
    two = [f"{tmp_path}/{name}.csv" for name in ("two", "one")]
    assert main([*words, *two]) == 130 and (tmp_path / "2/signs.csv").exists()
    assert main([*words, str(tmp_path / "none.csv")]) == 2


def test_weights_of_another_vocabulary(run, tmp_path):
    "One line, from train and from test; nothing is scored. Without glosses they can begin a run."
    with pytest.raises(UserError, match="vocabulary of another set than the 6 of this one"):
        train(tiny(signs=6, weight_path=str(run.folder), output_dir=str(tmp_path / "run")))
    task, model = trained_task(run.folder, run.config)
    data = simulated_clips("test", 4, 2, 0, video=False)
    clips = tuple(replace(clip, glosses=("HELLO", "YOU")) for clip in data.clips)
    with pytest.raises(UserError, match="vocabulary of another set: 4 glosses like SIGN-AA"):
        task.check_vocabulary(model, replace(data, clips=clips))
    more = Bigram.of([[1, 2], [2, 1, 2]], 5)
    other = _make_network(tiny(), 5)
    other.store_vocabulary(task.vocabulary, more)
    fit_weights(other, model.state_dict())  # the same glosses in other sentences
    assert other.stored_vocabulary()[1].pairs == more.pairs != task.bigram.pairs
    plain = _make_network(tiny(), 5).state_dict()
    fit_weights(model, plain)
    last = model.state_dict()["classifier1.weight"]
    assert model.stored_vocabulary()[0] and torch.equal(last, plain["classifier1.weight"])
    new = Signs(tiny())
    with pytest.raises(UserError, match="the weights hold no glosses"):
        new.check_vocabulary(new.model(), data)


def test_too_few_frames_for_a_sentence_are_refused():
    "CTC could not write it, and its loss would be infinite."
    with pytest.raises(UserError, match=r"max_frames=16: a training sentence needs .* use --max"):
        Signs(tiny(max_frames=16)).splits()
    task = Signs(SignsConfig(dataset_dir=str(data_folder("boston104")), max_frames=32))
    data = task.splits()["train"]
    spliced = [task._clip(data, row, 0) for row in range(len(data))]
    assert all(needed_frames(glosses) <= len(frames) <= 32 for frames, glosses in spliced)


def test_a_damaged_picture_in_training(videos, tmp_path):
    "Stops with its name."
    folder = shutil.copytree(videos, tmp_path / "copy")
    (sorted((folder / "video/train").glob("*/*"))[0] / "00003.jpg").write_bytes(b"no picture")
    task = Signs(tiny(**TFNET, dataset_dir=str(folder), batch_size=12, frame_size=24, crop=24))
    data = task.splits()["train"]
    with pytest.raises(UserError, match=r"00003\.jpg: unreadable image"):
        task.batch(data, list(range(12)), 0)


@pytest.mark.parametrize("kind", ["simulated", "video"])
def test_a_split_is_scored_alike_whatever_else_is_loaded(videos, kind):
    "Its padded lengths, which gates see, and the training sentences, by which new ones are known."
    folder = str(videos) if kind == "video" else ""
    task = Signs(tiny(**TFNET, dataset_dir=folder, batch_size=1, frame_size=24, crop=24))
    parts, found = task.splits(), []
    assert parts["test"].known == frozenset(parts["train"].sentences)
    for data in (parts["test"], task.splits(["test"])["test"]):
        lengths = [task.batch(data, [row], None).clip.shape[1] for row in range(len(data))]
        found.append((lengths, data.known, task.protocol(data, {})))
    assert found[0] == found[1]


def test_a_crop_is_one_for_all_frames(videos):
    "In training at random, in scoring the centre."
    settings = {"network": "tfnet", "backbone": "small", "dataset_dir": str(videos), "crop": 16}
    task = Signs(tiny(**settings, rescale=0.0))
    data = task.splits()["train"]
    frames = data.read(0)
    whole = task.batch(data, [0], None).clip[0, 6 : 6 + len(frames)].permute(0, 2, 3, 1).numpy()
    assert np.array_equal(whole, frames[:, 4:20, 4:20])
    seen = task.batch(data, [0], 0).clip[0, 6 : 6 + len(frames)].permute(0, 2, 3, 1).numpy()
    cuts = [(y, x) for y in range(9) for x in range(9)]
    assert any(np.array_equal(seen, frames[:, y : y + 16, x : x + 16]) for y, x in cuts)
    with pytest.raises(UserError, match="crop=32: frames have a side of 24; use less"):
        Signs(tiny(**settings | {"crop": 32})).batch(data, [0], None)


def test_steps_fall_as_published():
    "A fifth from epoch 35 of 55, and again from epoch 45."
    task = Signs(SignsConfig(preset="paper"))
    rates = [task.rate(epoch * 10, 10) for epoch in (0, 34, 35, 44, 45, 54)]
    assert rates == pytest.approx([1e-4, 1e-4, 2e-5, 2e-5, 4e-6, 4e-6])


def test_data_is_described_and_written(tmp_path, capsys):
    "By a command; the folder is read back."
    folder = tmp_path / "made"
    words = ["data", "--task", "signs", "--sentences", "8", "--signs", "3"]
    assert main([*words, "--write", str(folder)]) == 0
    assert main(["data", "--task", "signs", str(folder)]) == 0
    told = capsys.readouterr().out
    assert "train: 8 clips of made" in told and "val: 4 clips of made" in told
    assert main([*words, "--write", str(folder)]) == 0  # the same again
    assert "holds other data" in refused(capsys, *words, "--seed", "1", "--write", str(folder))


def test_the_doctor_asks_about_sign_language(videos, capsys):
    "What the data set holds, and whether these settings read it."
    words = ["doctor", "--task", "signs", "--device", "cpu", "--dataset-dir", str(videos)]
    main([*words, "--network", "tfnet", "--backbone", "small"])
    assert "train: 12 clips of mine" in capsys.readouterr().out
    assert main(words) == 2 and "network=tracks cannot read the videos" in capsys.readouterr().out


def names(written):
    "The clips that a prediction lists."
    return [line.split(":")[0] for line in written.line.splitlines()]


def test_two_clips_of_one_name_are_two(run, tmp_path, monkeypatch):
    "In batches of any size, in one folder; wrong options and files are errors of one line."
    for folder, end in (("a", ""), ("b", ""), ("c", "-2")):
        (tmp_path / folder).mkdir()
        write_tracks(tmp_path / folder / f"$_{{$\udcba{end}.csv")
    inputs, bad = [str(tmp_path / name) for name in "abc"], tmp_path / "bad.csv"
    summary = read_files(run.folder, inputs, tmp_path / "out", "cpu")
    assert names(summary) == ["$_{$\udcba", "$_{$\udcba-2", "$_{$\udcba-2-2"]
    assert len(list((tmp_path / "out").glob("$_{$\udcba*.png"))) == 3
    with pytest.raises(UserError, match="beam_width=0 is not possible"):
        read_files(run.folder, inputs, tmp_path / "out", "cpu", beam_width=0)
    clips, sizes, batch = simulated_clips("test", 3, 4, 0, video=False).clips, [], Signs.batch
    table = [(name, *x) for i, name in enumerate(("../x", "a/b", "a?b")) for x in clips[i].array]
    bad.write_text("\n".join([f"video,{HEAD}", *(",".join(map(str, row)) for row in table)]))
    monkeypatch.setattr(Signs, "batch", lambda *a: sizes.append(len(a[2])) or batch(*a))
    for size in (1, 3):
        out = tmp_path / f"{size}"
        found = read_files(run.folder, [str(bad)], out, "cpu", batch_size=size)
        assert names(found) == ["../x", "a/b", "a?b-2"] and "a/b: SIGN-" in found.line
        assert {p.name for p in out.glob("*.png")} == {"..-x.png", "a-b.png", "a-b-2.png"}
    assert sizes == [1, 1, 1, 3]
    assert (out / "signs.csv").read_text() == (tmp_path / "1/signs.csv").read_text()
    monkeypatch.setattr(Signs, "decode", lambda *_: [])
    read_files(run.folder, [str(bad)], tmp_path / "empty", "cpu")
    assert (tmp_path / "empty/signs.csv").read_text().split()[1:] == [
        "../x,,,",
        "a/b,,,",
        "a?b-2,,,",
    ]
    bad.write_text(HEAD + "\n1,2,3,4,5,nothing\n")
    with pytest.raises(UserError, match=r"bad.csv, row 1, nose-y: 'nothing' is not a number"):
        read_files(run.folder, [str(bad)], tmp_path / "none", "cpu")
    assert not (tmp_path / "none").exists()


def test_a_clip_that_breaks_off_is_skipped_by_predict(videos, tmp_path):
    "Only its last picture is damaged, so only its frames show it; the others are read."
    task = Signs(tiny(**TFNET, dataset_dir=str(videos)))
    task.splits()
    record = {"phase": "full", "epoch": 0, "config": task.config.model_dump(), "data": {}}
    record["best"] = {"epoch": 0, "name": None, "score": None}
    torch.save({"model": task.model().state_dict(), **record}, tmp_path / "w.pt")
    clip = sorted((videos / "video/test").glob("*/*"))[0]
    for name in ("broken", "whole"):
        shutil.copytree(clip, tmp_path / "clips" / name)
    last = sorted((tmp_path / "clips" / "broken").iterdir())[-1]
    shutil.copy(last, tmp_path / "clips")  # a picture beside clips is no clip
    assert len(_find_clips([f"{tmp_path}/clips"], 24)) == 2
    (tmp_path / "clips/bad.mp4").touch()
    last.write_bytes(last.read_bytes()[:50])
    with pytest.warns(UserWarning, match=r"skipped: .*unreadable image"):
        summary = read_files(tmp_path / "w.pt", [str(tmp_path / "clips")], tmp_path / "out", "cpu")
    assert (names(summary), summary.skipped) == (["whole"], 2)


@pytest.mark.parametrize("network", [{"distil": "detached"}, TFNET])
def test_a_loss_is_the_mean_over_the_parts_of_a_batch(network):
    "Processes and micro-batches rely on it; batch norm aside, which is in evaluation mode here."
    task = Signs(tiny(**network))
    data = task.splits()["train"]
    model = task.model().eval()
    whole = task.batch(data, list(range(8)), 0)
    parts = [type(whole)(*(x[i : i + 2] for x in whole)) for i in range(0, 8, 2)]
    with torch.no_grad():
        want = task.loss(model, whole, "full")
        each = [task.loss(model, part, "full") for part in parts]
    torch.testing.assert_close(torch.stack(each).mean(), want)


def test_weights_of_shared_layers_are_exported(tmp_path):
    "TFNet has one classifier under two names."
    task = Signs(tiny(**TFNET))
    task.splits()
    record = {"phase": "full", "epoch": 0, "config": task.config.model_dump()}
    record["best"] = {"epoch": 0, "score": 1.0, "choose": "last"}
    torch.save({"model": task.model().state_dict(), **record}, tmp_path / "w.pt")
    assert export(tmp_path / "w.pt").suffix == ".safetensors"  # after it was compared


@pytest.mark.nightly
def test_simulated_videos_are_learnt_through_the_reader(tmp_path):
    "WER at most 20%, untrained 1; epochs are a fifth as long as those of quick, and twice as many."
    words = [f"--{name}={value}" for name, value in {"sentences": 80, "signs": 4}.items()]
    assert main(["data", "--task", "signs", *words, "--write", str(tmp_path / "set")]) == 0
    where = {"dataset_dir": str(tmp_path / "set"), "output_dir": str(tmp_path / "run")}
    config = SignsConfig(preset="quick", epochs=12, eval_every=12, device="cpu", **where)
    assert train(config).scores["scores"]["wer"] <= 0.2


@pytest.mark.nightly
def test_real_sentences_are_learnt(tmp_path):
    "60 of the 200 epochs are enough to read most glosses of the real test sentences."
    where = {"dataset_dir": str(data_folder("boston104")), "output_dir": str(tmp_path / "run")}
    config = SignsConfig(epochs=60, eval_every=60, device="cpu", **where)
    assert train(config).scores["scores"]["wer"] < 0.5
