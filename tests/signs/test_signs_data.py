"Clips: the layouts that are read, what cannot be used, collate, buckets, simulation."

import csv
import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import SHARED, data_folder
from PIL import Image

from mshnet.core import UserError, configure, settings_from
from mshnet.signs.clips import (
    Clip,
    _filmed,
    _read_labels,
    _usable,
    count_frames,
    load_clips,
    needed_frames,
    read_tracks,
    read_video,
    simulated_clips,
)
from mshnet.signs.glosses import Vocabulary
from mshnet.signs.signing import _change_tempo, _shared_glosses, _splice, _track_features, collate
from mshnet.signs.signs_config import SignsConfig

GOLDEN = SHARED / "golden/signs"
HEAD = "left-x,left-y,right-x,right-y,nose-x,nose-y"
needs_golden = pytest.mark.skipif(not GOLDEN.is_dir(), reason=f"{GOLDEN} is absent")


def settings(folder, **more):
    "Settings of a run on a folder of videos."
    return SignsConfig(preset="quick", dataset_dir=str(folder), device="cpu", **more)


@needs_golden
def test_collate_is_the_published_one():
    "The law of lengths, and which frame stands where."
    golden = np.load(GOLDEN / "collate.npz")
    for longest, length, first, half in golden["law"].tolist():
        whole, lengths = collate([np.zeros(longest), np.zeros(max(longest // 2, 1))])
        assert (whole.shape[1], lengths[0]) == (length, first)
        assert longest == 1 or lengths[1] == half
    whole, _ = collate([np.arange(7), np.arange(5)])
    assert np.array_equal(whole, golden["frames_7_and_5"])


def test_pictures_and_videos_are_one(tmp_path, videos):
    "A folder of jpg and an mp4 of the same clip."
    av = pytest.importorskip("av")
    folder = next((videos / "video/test").glob("*/*"))
    frames = read_video(folder, 24)
    assert frames.shape == (count_frames(folder), 24, 24, 3)
    path = tmp_path / "clip.mp4"
    with av.open(str(path), "w") as out:
        stream = out.add_stream("mpeg4", rate=25, options={"qscale": "1"})
        stream.width = stream.height = 48
        for frame in frames:
            big = np.asarray(Image.fromarray(frame).resize((48, 48)))
            out.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(big))))
        out.mux(stream.encode())
    assert count_frames(path) == len(frames)
    again = read_video(path, 24)
    assert again.shape == frames.shape
    assert np.abs(again.astype(float) - frames).mean() < 18  # lossy
    with av.open(str(path)) as old, open(tmp_path / "live.mkv", "wb") as file:
        pipe = SimpleNamespace(write=file.write)  # as a browser records: no duration is written
        with av.open(pipe, "w", format="matroska") as out:
            stream = out.add_stream_from_template(old.streams.video[0])
            for packet in old.demux(video=0):
                if packet.size:
                    packet.stream = stream
                    out.mux(packet)
    assert count_frames(tmp_path / "live.mkv") == len(frames)


def test_the_layout_is_read_back(videos):
    "Names, signers, glosses, frames; a fingerprint without reading a video."
    found = load_clips(settings(videos), ["train", "val", "test"])
    made = simulated_clips("train", 12, 4, seed=0, video=True)
    assert found["train"].sentences == made.sentences
    assert [c.signer for c in found["train"].clips] == [c.signer for c in made.clips]
    assert [c.frames for c in found["train"].clips] == [c.frames for c in made.clips]
    assert found["val"].name == "val" and len(found["val"]) == 3
    assert len(found["train"].hash) == 12 and found["train"].hash != found["test"].hash


def test_clips_that_cannot_be_learnt(tmp_path, videos):
    "They stop a run, or are counted and left out."
    folder = shutil.copytree(videos, tmp_path / "copy")
    table = folder / "label/train.csv"
    rows = list(csv.reader(table.read_text().splitlines()))
    [clip] = (folder / "video/train").glob("*/train-00001")
    bad = {"//": "an empty gloss", "/".join(34 * "A"): "glosses need", "A": "no video .* damaged"}
    for label, reason in bad.items():
        if label == "A":
            pytest.importorskip("av")
            shutil.rmtree(clip)
            clip.with_suffix(".mp4").write_bytes(b"no video")
        rows[1][3] = label
        table.write_text("\n".join(",".join(row) for row in rows) + "\n")
        line = rf"1 of 12 clips cannot be used: train-00001.*{reason}"
        with pytest.raises(UserError, match=line):
            load_clips(settings(folder), ["train"])
        with pytest.warns(UserWarning, match="1 of 12 clips cannot be used and are left out"):
            found = load_clips(settings(folder, on_bad_image="skip"), ["train"])
        assert len(found["train"]) == 11


def test_wrong_folders(tmp_path, videos):
    "One line each, with the remedy."
    with pytest.raises(UserError, match="its split train has no clips"):
        _usable("train", "mine", [], 0, skip=True)
    for config, text in (
        (settings(tmp_path / "none"), "there is no such folder"),
        (settings(__file__), "is a file; unpack it"),
        (settings(tmp_path), "has neither label"),
        (SignsConfig(dataset_dir=str(videos)), "network=tracks cannot read the videos of .*: use"),
        (settings("", crop=32), "crop=32: simulated frames have a side of 24; pass --dataset-dir"),
    ):
        with pytest.raises(UserError, match=text):
            load_clips(config, ["train"])
    for text, words in (
        ("video,frame\n1,2\n", "has no column 'left-x', but video, frame"),
        (f'"{HEAD}\n1,2,3,4,5,6', "row 1: unexpected end of data; look for a stray quotation mark"),
        (f'{HEAD}\n"' + "1," * 99_999, "look for a stray quotation mark"),
        (f'{HEAD}\n1,2,3,4,5,"6\n1,2,3,4,5,6"', "row 1: a line break in nose-y; look for a stray"),
        (f"frame,{HEAD}\n" + 2 * "7,1,2,3,4,5,6\n", "has frame 7 of hands_condensed twice"),
        (f"{HEAD}\n1,2,3,4,5,x\n", "'x' is not a number"),
        (f"{HEAD}\n.1,-1,.3,.4,.5,.6\n", "no coordinate is above 2: multiply x by 200"),
        (f"{HEAD}\n1,1280,3,4,5,6\n", "coordinates reach 1280: multiply all by 200 / width"),
    ):
        (tmp_path / "hands_condensed.csv").write_text(text)
        with pytest.raises(UserError, match=words):
            read_tracks(tmp_path / "hands_condensed.csv")


def test_the_real_sentences_of_boston():
    "161 and 40 sentences, 112 glosses, one of the test part outside."
    boston = str(data_folder("boston104"))
    found = load_clips(SignsConfig(dataset_dir=boston), ["train", "test"])
    train, test = found["train"], found["test"]
    assert (len(train), sum(map(len, train.sentences))) == (161, 710)
    assert (len(test), sum(map(len, test.sentences))) == (40, 178)
    words = Vocabulary.of(train.sentences)
    assert (len(words), dict(words.outside(test.sentences))) == (112, {"MUST": 1})
    assert sum(tuple(s) in set(train.sentences) for s in test.sentences) == 26
    assert all(len(c.cuts) == len(c.glosses) - 1 for c in train.clips)
    assert sum(c.frames for c in (*train.clips, *test.clips)) == 15_746
    held = load_clips(SignsConfig(dataset_dir=boston, choose="val"), ["train", "val"])
    assert (len(held["train"]), len(held["val"])) == (129, 32)


def test_splices_are_sentences_of_both():
    "Each begins like one sentence and ends like another one, and is long enough."
    train = load_clips(SignsConfig(dataset_dir=str(data_folder("boston104"))), ["train"])["train"]
    places, rng, new = _shared_glosses(train.sentences), np.random.default_rng(0), 0
    for row in range(len(train)):
        frames, glosses = _splice(train, row, places, rng)
        assert len(frames) >= needed_frames(glosses) and frames.shape[1] == 6
        new += glosses not in train.sentences
    assert new > 20


def test_features_do_not_depend_on_the_place():
    "Of the signer in the picture; nor do they know the nose."
    tracks = simulated_clips("train", 2, 4, 0, video=False).read(0)
    moved = tracks + np.tile([30, -8], 3).astype(np.float32)
    assert np.allclose(_track_features(moved), _track_features(tracks), atol=1e-4)


def test_rescaled_clips_keep_their_order():
    "Between the limits, sorted, never shorter than the glosses need."
    rng = np.random.default_rng(0)
    for _ in range(50):
        rows = _change_tempo(40, 37, 44, 0.9, rng)
        assert 37 <= len(rows) <= 44 and (np.diff(rows) >= 0).all() and rows.max() < 40
    assert _change_tempo(7, 5, 300, 0.0, rng).tolist() == list(range(7))


def test_settings_of_before(tmp_path):
    "Presets by memory and settings that went: one line, with what to write."
    file = tmp_path / "gpu_config.json"
    with pytest.raises(UserError, match="preset=gpu16 is retired: use --preset paper --micro-b"):
        configure({"task": "signs", "preset": "gpu16"})
    with pytest.raises(UserError, match=r"backbone_weights=r34.pth .* use --weight-path FILE"):
        configure({"task": "signs", "backbone_weights": "r34.pth"})
    record = SignsConfig(preset="paper").model_dump() | {"flip": False, "preset": "gpu8"}
    assert settings_from(record).hidden == 1024  # a run of today is read as it was
    file.write_text(json.dumps(record))
    assert configure({}, str(file)).preset == "gpu8"


def pictures(folder, names):
    "Grey pictures, each brighter than the one before."
    folder.mkdir(parents=True)
    for number, name in enumerate(names, 1):
        Image.new("RGB", (24, 24), (20 * number,) * 3).save(folder / name)


def test_frames_are_in_the_order_of_their_numbers(tmp_path):
    "1, 2, ... 10, not 1, 10, 2; hidden files are none; 16 bits are stretched, tags obeyed."
    for start in ("", "frame_"):
        folder = tmp_path / f"clip{start}"
        pictures(folder, [f"{start}{number}.png" for number in range(1, 13)])
        (folder / "._1.png").write_bytes(b"\0\5\26\7")
        order = [int(v) // 20 for v in read_video(folder, 24)[:, 0, 0, 0]]
        assert order == list(range(1, 13)) and count_frames(folder) == 12
    deep, upside_down = np.arange(576).reshape(24, 24), Image.Exif()
    upside_down[274] = 3
    Image.fromarray((4000 + deep).astype(np.uint16)).save(tmp_path / "0.png", exif=upside_down)
    assert np.array_equal(read_video(tmp_path, 24)[0, ::-1, ::-1, 0], (deep * 255 / 575).round())


def test_words_that_do_not_fit_the_tracks(tmp_path):
    "Another video, and times that are no frames; a space behind a name is none of it."
    frames = [f"v{i % 2},{i // 2},1,2,3,4,5,6\n" for i in range(80)]
    (tmp_path / "hands_condensed.csv").write_text(f"video,frame,{HEAD}\n{''.join(frames)}")
    (tmp_path / "lost.csv").write_text(f"video,frame,{HEAD}\n{''.join(frames[:9] + frames[10:])}")
    with pytest.raises(UserError, match=r"lost.csv: has 39 of the 40 frames of v1; write one row"):
        read_tracks(tmp_path / "lost.csv")
    twice = "video,word,startframe,endframe\n" + 2 * "v1,A,0,30\n"
    (tmp_path / "train_words.csv").write_text(twice)
    with pytest.raises(UserError, match=r"train_words.csv: has startframe 0 of v1 twice; leave"):
        load_clips(SignsConfig(dataset_dir=str(tmp_path)), ["train"])
    cut = Clip("a", tuple("ABC"), 40, cuts=(30, 20), array=np.zeros((40, 6), np.float32))
    with pytest.raises(UserError, match="a: startframe and endframe overlap"):
        _usable("train", "set", [cut], 0, skip=False)
    for name, at, reason in (
        ("v0.mp4", 12, "has no row of it"),
        ("v0", 0.4, "not within its 40 frames"),
        ("v0", 99, "not within its 40 frames"),
    ):
        words = f"v1 ,A,0,30\n{name},A,0,{at}\n{name},B,{at},{at + 9}\n"
        (tmp_path / "train_words.csv").write_text(f"video,word,startframe,endframe\n{words}")
        with pytest.raises(UserError, match=f"1 of 2 clips cannot be used: {name}: .*{reason}"):
            load_clips(SignsConfig(dataset_dir=str(tmp_path)), ["train"])


def labels(folder, *rows, encoding="utf-8"):
    "Write a table of training labels."
    (folder / "label").mkdir(parents=True, exist_ok=True)
    text = "\n".join(["Number,Translator,Gloss", *rows]) + "\n"
    (folder / "label/train.csv").write_text(text, encoding)
    return folder / "label/train.csv"


def test_the_validation_split_may_be_called_val(tmp_path, videos):
    "It is read, and nothing is held out of the training split."
    shutil.copytree(videos, tmp_path / "set")
    for old in (tmp_path / "set/label/dev.csv", tmp_path / "set/video/dev"):
        old.rename(old.with_stem("val"))
    one, two = (load_clips(settings(x), ["train", "val"]) for x in (videos, tmp_path / "set"))
    assert {k: v.hash for k, v in one.items()} == {k: v.hash for k, v in two.items()}


def test_names_of_cameras_are_found(tmp_path, monkeypatch):
    "Suffixes in capitals, and a space behind a name of the table."
    monkeypatch.setattr("mshnet.signs.clips.count_frames", lambda path: 50)
    labels(tmp_path, "v,A,X/Y", "c ,A ,X/Y", "c,B,X/Y")
    pictures(tmp_path / "video/train/A/c", ["0.jpg"])
    (tmp_path / "video/train/A/v.MP4").touch()
    clips = _filmed(tmp_path, "train")
    assert [(c.name, c.path.name) for c in clips] == [("v", "v.MP4"), ("A/c", "c"), ("B/c", "c")]


def test_another_separator_of_glosses_and_another_encoding_are_named(tmp_path):
    "Before anything is trained: else every sentence would be one gloss; GBK is of Windows."
    for sign in (" ", "，", "／", "|", ", "):
        path = labels(tmp_path, *(f'{i},A,"ICH{sign}GEHE{sign}HEIM"' for i in range(3)), "4,A,A/B")
        with pytest.raises(UserError, match=r"train.csv: glosses are separated by .*write / betwe"):
            load_clips(settings(tmp_path), ["train"])
    labels(tmp_path, "1,A,X", "2,A,X Y", "3,A,X/U\u0308")  # a gloss may hold a space; NFD is NFC
    assert [s for *_, s in _read_labels(path)] == [("X",), ("X Y",), ("X", "\xdc")]
    with pytest.warns(UserWarning, match="4 spellings are read as 2, such as A: brackets and"):
        _read_labels(labels(tmp_path, "1,A,A1/A2/IX3/(G)IX/X1/退1/退2"))
    for sign in (";", "\t"):  # of spreadsheets
        path.write_text('Number,Translator,Gloss,Note\n1,A,X,"a b",'.replace(",", sign))
        assert _read_labels(path) == [("1", "A", ("X",))]
    for why, note in (("a line break in Note", ",Note"), ("a cell too many", "")):  # swallowed
        path.write_text(f'Number,Translator,Gloss{note}\n1,A,X,"a\n2,A,Y,b"\n')
        with pytest.raises(UserError, match=f"row 1: {why}; look for a stray"):
            _read_labels(path)
    labels(tmp_path, "1,A,小时/时间", encoding="gbk")
    with pytest.raises(UserError, match=r"train\.csv: not a readable table .*GBK, as UTF-8"):
        load_clips(settings(tmp_path), ["train"])


def test_other_videos_of_the_same_names_are_others(tmp_path, videos):
    "Names, frames and glosses are equal, so the fingerprint of the contents tells them apart."
    folder = shutil.copytree(videos, tmp_path / "copy")
    before, same = (load_clips(settings(f), ["test"])["test"] for f in (folder, videos))
    assert before.hash == same.hash and before.content == same.content
    Image.new("RGB", (24, 24)).save(min((folder / "video/test").glob("*/*/*.jpg")))
    after = load_clips(settings(folder), ["test"])["test"]
    assert after.hash == before.hash and after.content != before.content
    made = simulated_clips("test", 4, 4, seed=0, video=True)
    assert made.content == ""  # in memory, where the hash has them
