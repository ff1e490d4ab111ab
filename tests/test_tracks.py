"Tracks of a clip's detections."

import itertools
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from test_predict import table

import mshnet
from mshnet.cli import main
from mshnet.core import UserError
from mshnet.frames import frames_of

pytest.importorskip("trackpy")
from mshnet.tracks import Tracker, confirmed_tracks


def short_clip(folder, count):
    "The first frames of the clip in the library."
    import av

    clip = Path(mshnet.__file__).parent / "examples" / "drone.mp4"
    with av.open(str(folder / "clip.mp4"), "w") as made:
        stream = made.add_stream("mpeg4", rate=30, width=320, height=256)
        stream.pix_fmt, stream.bit_rate = "yuv420p", 4_000_000
        for frame in itertools.islice(frames_of(clip), count):
            pixels = np.repeat(np.atleast_3d(frame.pixels)[..., :1], 3, axis=2)
            made.mux(stream.encode(av.VideoFrame.from_ndarray(pixels)))
        made.mux(stream.encode())
    return folder / "clip.mp4"


def follow(tracker, clip):
    "The numbers of each frame's detections, and which are confirmed in that frame."
    rows = []
    for places in clip:
        numbers = tracker.update(np.array(places, float))
        rows.append([(n, n in tracker.confirmed) for n in numbers])
    return rows


def test_a_target_is_confirmed_in_its_fifth_frame_and_an_alarm_never():
    "Also if it is missed in between; an alarm that jumps is in no track of five frames."
    rng = np.random.default_rng(0)
    clip = [[(10 + t, 20 + 2 * t), rng.uniform(100, 300, 2)] for t in range(20)]
    clip[7] = clip[8] = []
    rows = follow(tracker := Tracker(), clip)
    target = [row[0] for row in rows if row]
    assert {number for number, _ in target} == {0}
    assert [sure for _, sure in target] == [t >= 4 for t in range(18)]
    assert tracker.confirmed == {0}


def test_what_was_gone_for_longer_is_another_track():
    clip = [[(5, 5)]] * 6 + [[]] * 5 + [[(5, 5)]] * 6
    assert len(follow(tracker := Tracker(), clip)) == 17
    assert len(tracker.confirmed) == 2


def test_a_frame_that_is_full_of_detections_begins_anew():
    "Linking a thousand neighbours would take forever; later tracks get other numbers."
    tracker = Tracker()
    before = follow(tracker, [[(5, 5)]] * 6)
    full = np.random.default_rng(0).uniform(0, 3, (300, 2))
    follow(tracker, [full, full + 0.5])
    after = follow(tracker, [[]] * 6 + [[(200, 200)]] * 6)
    assert before[-1] == [(0, True)]
    assert after[-1][0][1] and after[-1][0][0] > 0


def test_frames_without_detections_are_fine():
    assert follow(Tracker(), [[], [], [(1, 1)], []]) == [[], [], [(0, False)], []]


def test_two_clips_at_once_keep_their_own_numbers():
    first, second = Tracker(), Tracker()
    assert (first.update([[10, 10], [90, 90]]), second.update([[50, 50]])) == ([0, 1], [0])
    assert first.update([[10, 10], [90, 90], [150, 150]]) == [0, 1, 2]


def test_without_the_library_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "trackpy", None)
    with pytest.raises(UserError, match="pip install trackpy"):
        Tracker()


def test_the_table_has_a_confirmed_track_from_its_first_detection():
    "Tracks of two clips with one number are two; an unconfirmed one is in no row."
    lines = [
        {"stamp": [file], "frame": t, "objects": [found]}
        for file in ("a.mp4", "b.mp4")
        for t in range(6)
        for found in (
            {"track": 0, "confirmed": t > 3, "centroid": [t, 1.0], "peak": 0.5 + t / 10},
            {"track": 1 + t, "confirmed": False, "centroid": [t, 99.0], "peak": 1.0},
        )
    ]
    assert list(confirmed_tracks(lines)) == [
        [file, 0, 0, 5, 6, 0, 1.0, 5, 1.0, 1.0] for file in ("a.mp4", "b.mp4")
    ]
    image = {"stamp": ["a.png"], "frame": 0, "objects": [{"peak": 1}]}
    assert list(confirmed_tracks([image])) == []


def test_a_clip_gets_tracks_and_a_picture_none(tmp_path, capsys):
    "A drone of a real clip is one track; its rows in detections.csv have the number."
    pytest.importorskip("av")
    files = Path(mshnet.__file__).parent / "examples"
    words = ["--device", "cpu", "--tracks", "--save", "none", "--output-dir", str(tmp_path)]
    inputs = [str(short_clip(tmp_path.parent, 12)), str(files / "drone.png")]
    assert main(["predict", *inputs, *words]) == 0
    line = "warning: tracks link the frames of one file; join single images to a video or"
    assert capsys.readouterr().err.count(line) == 1
    [track] = table(tmp_path / "tracks.csv")
    assert (track["file"][-8:], track["first"], track["last"]) == ("clip.mp4", "0", "11")
    rows = table(tmp_path / "detections.csv")
    numbers = {row["track"] for row in rows if row["file"].endswith(".png")}
    assert numbers == {""} and track["track"] in {row["track"] for row in rows}
    assert json.loads((tmp_path / "summary.json").read_text())["tracks"] == 1


def test_a_clip_whose_picture_is_wanted_shows_the_tracks(tmp_path):
    "The overlays of the last frames differ from those without tracks."
    pytest.importorskip("av")
    clip, pictures = short_clip(tmp_path, 8), []
    for flag in ([], ["--tracks"]):
        out = tmp_path / f"out{len(flag)}"
        words = ["predict", str(clip), "--device", "cpu", "--save", "overlays", *flag]
        assert main([*words, "--output-dir", str(out)]) == 0
        pictures.append((out / "overlays" / "clip_00007.png").read_bytes())
    assert pictures[0] != pictures[1]
