"Files of event cameras: formats, folders, bins, noise, and what is refused."

import itertools
import os
import warnings

import numpy as np
import pytest
from conftest import data_folder

from mshnet.core import UserError
from mshnet.events import recordings as page
from mshnet.events.events_config import EventsConfig
from mshnet.events.recognition import load_recordings
from mshnet.events.recordings import (
    Counting,
    Recording,
    bin_events,
    denoise,
    find_recordings,
    hold_out,
    read_frames,
    read_recording,
)
from mshnet.files import find_inputs

EYE = (2, 34, 34)


def made(count=500, milliseconds=300, seed=0, shape=EYE):
    "Random events, the last at the end of the recording."
    rng = np.random.default_rng(seed)
    t = np.sort(rng.integers(0, 1000 * milliseconds, count))
    t[[0, -1]] = 0, 1000 * milliseconds - 1
    x, y, p = (rng.integers(0, n, count) for n in (shape[2], shape[1], 2))
    return Recording.checked((x, y, t, p), shape, "made")


def bin_bytes(recording):
    "The bytes of an N-MNIST file."
    t, p = recording.t, recording.p << 7
    columns = (recording.x, recording.y, p | t >> 16, t >> 8 & 255, t & 255)
    return np.stack(columns, 1).astype(np.uint8).tobytes()


def same(found, wanted):
    "Are two recordings equal?"
    return all(np.array_equal(getattr(found, name), getattr(wanted, name)) for name in "xytp")


def nmnist(folder, count=4, parts=("Train", "Test")):
    "Write a small data set in the layout of N-MNIST."
    for part in parts:
        for i in range(count):
            path = folder / part / str(i % 2) / f"{i:05}.bin"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(bin_bytes(made(seed=i)))
    return folder


def test_counts_are_those_of_a_loop():
    "Event by event; and a window pads or cuts."
    recording = made(2000, 100)
    want = np.zeros((10, *EYE), int)
    for x, y, t, p in zip(*(getattr(recording, n).tolist() for n in "xytp"), strict=True):
        want[t // 10_000, p, y, x] += 1
    np.testing.assert_array_equal(bin_events(recording, 10), want)
    np.testing.assert_array_equal(bin_events(recording, 10, 6), want[:6])
    assert bin_events(recording, 10, 15)[10:].max() == 0


def test_the_filter_is_that_of_a_loop_over_events():
    "An event is kept if one of four neighbours, or the beginning, is in the 10 ms before it."
    recording = made(1500, 300)
    last, want = np.zeros((36, 36), int), []
    for x, y, t in zip(recording.x, recording.y, recording.t, strict=True):
        around = last[[y + 1, y + 1, y, y + 2], [x, x + 2, x + 1, x + 1]]
        want.append(bool((t - around < 10_000).any()))
        last[y + 1, x + 1] = t
    found = denoise(recording, 10)
    np.testing.assert_array_equal(found.t, recording.t[want])
    np.testing.assert_array_equal(found.x, recording.x[want])
    assert 0 < len(found) < len(recording)


def test_every_format_gives_the_events(tmp_path):
    "Of N-MNIST, AEDAT 2 (whose x and y are mirrored and exchanged) and npz; npy: see the times."
    small, large = made(), made(shape=(2, 128, 128), milliseconds=2000)
    (tmp_path / "a.bin").write_bytes(bin_bytes(small))
    address = (127 - large.x) << 8 | (127 - large.y) << 1 | (1 - large.p)
    words = np.stack([address, large.t], 1).astype(">u4").tobytes()
    outside = b"\0\0\x80\0\0\0\0\0"  # an external event: it has no pixel
    (tmp_path / "b.aedat").write_bytes(b"#!AER-DAT2.0\r\n# made\r\n" + outside + words)
    for name, shape in (("d.npz", -1), ("e.npz", (1, -1)), ("f.npz", (-1, 1))):  # two of MATLAB
        np.savez(tmp_path / name, **{n: getattr(large, n).reshape(shape) for n in "xytp"})
    assert same(read_recording(tmp_path / "a.bin", EYE), small)
    for name in ("b.aedat", "d.npz", "e.npz", "f.npz"):
        assert same(read_recording(tmp_path / name, large.shape), large), name


def written(path, **columns):
    "A recording of 200 random events, with other columns."
    some = made(200)
    columns = {name: getattr(some, name) for name in "xytp"} | columns
    if path.suffix == ".npz":
        np.savez(path, **columns)
    else:
        np.save(path, np.stack([columns[name] for name in "xypt"], 1))
    return some


@pytest.mark.parametrize(
    ("name", "unit", "others"), [("a.npz", 1, (1e-6, 1e-3, 1000)), ("a.npy", 1e-3, (1e-6, 1))]
)
def test_times_in_another_unit_are_refused(tmp_path, name, unit, others):
    "All events would lie in the first bin, or none in the window; whole microseconds are read."
    some = written(tmp_path / name, t=made(200).t * float(unit))
    assert same(read_recording(tmp_path / name, EYE), some)
    for kind, other in itertools.product((float, int), others):  # without fractions, too
        written(tmp_path / name, t=((some.t + 1) * other).astype(kind))
        with pytest.raises(UserError, match=r"200 events at times from .* convert them"):
            read_recording(tmp_path / name, EYE)
    written(tmp_path / name, x=some.x - 0.9, t=some.t * unit)
    with pytest.raises(UserError, match=r"x=-?\d+.1 is no pixel; use whole numbers"):
        read_recording(tmp_path / name, EYE)


def test_polarities(tmp_path):
    "0 and 1, -1 and 1 and truth values are two polarities; 1 and 2 would become one."
    some = made(200)
    for p in (some.p, 2 * some.p - 1, some.p == 1):
        written(tmp_path / "a.npz", p=p)
        assert same(read_recording(tmp_path / "a.npz", EYE), some)
    written(tmp_path / "a.npz", p=some.p + 1)
    with pytest.raises(UserError, match="the polarities are 1, 2; use 1 for brighter, and 0 or"):
        read_recording(tmp_path / "a.npz", EYE)


def test_formats_that_are_converted_first(tmp_path):
    "AEDAT4 and HDF5 are named, with the page that has the lines; hidden files are left out."
    with pytest.raises(UserError, match=r"no recordings of N-MNIST in train/<class>"):
        find_recordings(tmp_path, "nmnist")
    (tmp_path / "set.zip").touch()
    for name, text in (("nowhere", "there is no such folder"), ("set.zip", "unpack it")):
        with pytest.raises(UserError, match=text):
            find_recordings(tmp_path / name, "nmnist")
    for name, kind in (("n-tidigits.hdf5", "ntidigits"), ("airplane/user1.aedat", "dvsgesture")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
        with pytest.raises(UserError, match=f"convert {name.split('/')[-1]} to npz, as the guide"):
            find_recordings(tmp_path, kind)
        (tmp_path / name).unlink()
    with open(tmp_path / "airplane/b.NPZ", "wb") as file:
        np.savez(file, x=[3, 4], y=[5, 6], t=[0, 9], p=[0, 1])
    (tmp_path / "airplane/._b.npz").touch()
    [entry] = find_recordings(tmp_path, "cifar10dvs")["test"]
    assert len(read_recording(entry.path, (2, 128, 128))) == 2


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("a.bin", b"", "holds no event"),
        ("a.bin", b"123456", "6 bytes, not a multiple of 5: it is cut off"),
        ("a.bin", bytes([34, 0, 0, 0, 0]), r"event 0 \(x=34, y=0\) is outside of the sensor"),
        ("a.bin", bytes([0, 0, 0, 0, 9, 0, 0, 0, 0, 3]), "times fall, from 9 to 3 microseconds"),
        ("a.aedat", b"#!AER-DAT3.1", "#!AER-DAT2; the guide on events converts versions 3 and 4"),
        ("a.aedat", b"#!AER-DAT2.0\r\n\5@\0\0\0\0\0\1", "another camera than DVS128"),
        ("a.npz", b"no zip file", r"not a readable recording \(no array of numbers\)"),
        ("a.npy", b"no array", r"not a readable recording \(no array of numbers\)"),
        ("a.txt", b"1 2 3", "unknown format of events"),
        ("b.npz", b"", "its events are no numbers; write x, y, t and p as numbers"),
    ],
)
def test_what_cannot_be_read_is_one_line(tmp_path, name, content, text):
    "With the file and the reason."
    (tmp_path / name).write_bytes(content)
    if name == "b.npz":
        np.savez(tmp_path / name, x=["a"], y=["b"], t=[0], p=[1])
    with pytest.raises(UserError, match=text) as caught:
        read_recording(tmp_path / name, EYE)
    assert str(caught.value).startswith(str(tmp_path / name)) and "\n" not in str(caught.value)


def test_an_npz_file_runs_no_code(tmp_path):
    "Pickles are refused; arrays that are missing are named, and a counter that wraps."
    np.savez(tmp_path / "a.npz", x=np.array([print], dtype=object), y=[1], t=[1], p=[1])
    with pytest.raises(UserError, match="no array of numbers"):
        read_recording(tmp_path / "a.npz", EYE)
    np.savez(tmp_path / "b.npz", x=[1], y=[1], t=[1])
    written(tmp_path / "c.npz", t=(made(200).t + 2**32 - 150_000).astype(np.uint32))  # it wraps
    for name, text in {"b": "no array 'p', but x, y, t", "c": r"fall, .*; add 2\*\*32 to"}.items():
        with pytest.raises(UserError, match=text):
            read_recording(tmp_path / f"{name}.npz", EYE)


def test_gestures_are_found_in_the_folders_of_tonic(tmp_path):
    "Their times are milliseconds; the published recordings are converted first."
    tonic = tmp_path / "data/DVSGesture"
    for part, user, last in (("Train", 1, 2), ("Test", 1, 2), ("Train", 2, 2), ("Test", 2, 3)):
        (tonic / f"ibmGesture{part}/user0{user}_led").mkdir(parents=True)
        np.save(tonic / f"ibmGesture{part}/user0{user}_led/7.npy", [[3, 4, 1, 0], [5, 6, 0, last]])
    found = find_recordings(tmp_path / "data", "dvsgesture")
    assert [e.label for e in found["train"] + found["test"]] == [7, 7, 7, 7]
    assert read_recording(found["train"][0].path, (2, 128, 128)).t.tolist() == [0, 2000]
    where = {"dataset_dir": str(tmp_path / "data"), "output_dir": str(tmp_path / "runs/run")}
    with pytest.warns(UserWarning, match="^1 of the 2 samples of test are training samples, too"):
        load_recordings(EventsConfig(dataset="dvsgesture", **where), ["train", "test"])
    (tonic / "ibmGestureTest/user02_led/11.npy").touch()
    with pytest.raises(UserError, match=r"11.npy: use the names 0 to 10, as tonic writes them"):
        find_recordings(tonic, "dvsgesture")


def test_things_have_a_fixed_test_part(tmp_path):
    "A tenth of each class, always the same, wherever the folder lies."
    parts = []
    for root in (tmp_path / "CIFAR10DVS/CIFAR10DVS", tmp_path / "other"):
        for name in ("airplane", "truck"):
            (root / name).mkdir(parents=True)
            for i, kind in itertools.product(range(20), ("aedat", "npz")):  # converted beside
                (root / name / f"cifar10_{name}_{i}.{kind}").touch()
        top = tmp_path if "CIFAR10DVS" in str(root) else root
        with pytest.warns(UserWarning, match=r": 40 recordings in two .* \(not \S+_0.aedat but \S"):
            found = find_recordings(top, "cifar10dvs")
        parts.append([(e.path.name, e.name) for e in found["test"]])  # of folders of any name
        assert len(found["train"]) == 36 and [e.label for e in found["test"]] == [0, 0, 9, 9]
    assert parts[0] == parts[1]


def test_folders_behind_links_are_found(tmp_path):
    "The data set, a part, a class; a loop of links is no matter."
    real = nmnist(tmp_path / "real")
    (real / "Train/1").rename(tmp_path / "ones")
    (real / "Test").rename(tmp_path / "tests")
    (real / "Train/1").symlink_to(tmp_path / "ones")
    (real / "Test").symlink_to(tmp_path / "tests")
    (real / "Train/up").symlink_to(real)
    (tmp_path / "link").symlink_to(real)
    found = find_recordings(tmp_path / "link", "nmnist")
    assert [len(found[part]) for part in ("train", "test")] == [4, 4]
    assert len(find_inputs([f"{tmp_path}/link/**"], (".bin",))) == 8
    (real / "Test/0/00000.aedat4").touch()  # beside its conversion
    assert len(find_recordings(real, "nmnist")["test"]) == 4
    (real / "Test/0/new.aedat4").touch()
    with pytest.warns(UserWarning, match=r"1 recording left out, such as new.aedat4; convert"):
        find_recordings(real, "nmnist")
    (real / "Test/0/new.aedat4").unlink()
    (tmp_path / "tests/1").rename(tmp_path / "tests/one")
    with pytest.warns(UserWarning, match="Test: left out, no class: one"):
        assert len(find_recordings(real, "nmnist")["test"]) == 2


def test_a_validation_split_of_the_data_set_is_read(tmp_path):
    "Nothing is held out of the training split; a split that is missing is named."
    nmnist(tmp_path / "set", parts=("train", "val"))
    config = EventsConfig(dataset_dir=str(tmp_path / "set"), output_dir=str(tmp_path / "run"))
    found = load_recordings(config, ["train", "val"])
    assert [(name, len(part)) for name, part in found.items()] == [("train", 4), ("val", 4)]
    with pytest.raises(UserError, match="set: has no recordings in test/CLASS; put some there"):
        load_recordings(config, ["test"])


def test_a_share_of_each_class_is_held_out():
    "The same for the same seed, another for another; never all of several."
    one, again, other = (hold_out([0] * 97 + [1] * 3, 0.2, seed) for seed in (0, 0, 1))
    assert (one[:97].sum(), one[97:].sum()) == (19, 1)
    assert (one == again).all() and (one != other).any()
    assert hold_out([0] * 4 + [1], 0.9, 0).tolist().count(False) == 1


def test_frames_are_kept_until_a_recording_or_the_bins_change(tmp_path, monkeypatch):
    "The second time nothing is read."
    entries = find_recordings(nmnist(tmp_path / "set"), "nmnist")["train"]
    how, cache = Counting(EYE, 20, 15, 10.0), tmp_path / "cache"
    first = read_frames("train", "set", entries, how, cache)
    reads, real = [], page.read_recording
    monkeypatch.setattr(page, "read_recording", lambda *a: reads.append(a) or real(*a))
    second = read_frames("train", "set", entries, how, cache)
    assert not reads and np.array_equal(first.counts, second.counts)
    assert (first.hash, first.content) == (second.hash, second.content)
    read_frames("train", "set", entries, how._replace(denoise=0.0), cache)
    assert len(reads) == 4
    entries[0].path.write_bytes(bin_bytes(made(700, seed=9)))
    third = read_frames("train", "set", entries, how, cache)
    assert len(reads) == 8 and third.hash != first.hash
    was = entries[0].path.stat()
    entries[0].path.write_bytes(bin_bytes(made(700, seed=8)))  # of the same name, size and time
    os.utime(entries[0].path, ns=(was.st_atime_ns, was.st_mtime_ns))
    fourth = read_frames("train", "set", entries, how, cache)
    assert fourth.hash == third.hash and fourth.content != third.content
    assert not np.array_equal(fourth.counts, third.counts)
    assert fourth.part("val", [0, 1]).content == fourth.content
    for file in cache.glob("*.frames"):
        file.write_bytes(b"")  # as a power failure may leave it
    assert read_frames("train", "set", entries, how, cache).counts.any()


def test_a_recording_that_lasts_much_longer_than_the_window_is_reported():
    "What comes later is not used; a little more than the window is usual."
    t = np.array([0, 599_999])
    disc = Recording.checked((t * 0, t * 0, t, t * 0), EYE, "disc")
    with pytest.warns(UserWarning, match="only the first 200 ms are used; set --time-window"):
        assert Counting(EYE, 20, 10, 0.0).frames(disc).sum() == 1
    with warnings.catch_warnings(action="error"):
        assert Counting(EYE, 20, 15, 0.0).frames(disc).sum() == 1


def test_a_damaged_file_stops_the_run(tmp_path):
    "And leaves no file of frames behind."
    entries = find_recordings(nmnist(tmp_path / "set"), "nmnist")["train"]
    entries[2].path.write_bytes(b"broken")
    with pytest.raises(UserError, match=f"{entries[2].path}: not a readable recording"):
        read_frames("train", "set", entries, Counting(EYE, 20, 15, 0.0), tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*.frames"))


def test_real_recordings(tmp_path):
    "1,000 and 100 of N-MNIST: their numbers, and every event is counted."
    found = find_recordings(data_folder("nmnist-small"), "nmnist")
    how = Counting(EYE, 10, 34, 0.0)
    parts = {n: read_frames(n, "nmnist", e, how, tmp_path) for n, e in found.items()}
    test = [8, 14, 8, 11, 14, 7, 10, 15, 2, 11]
    assert np.bincount(parts["test"].labels).tolist() == test and len(parts["train"]) == 1000
    events = parts["train"].counts.sum((1, 2, 3, 4), dtype=int)
    sizes = [entry.path.stat().st_size // 5 for entry in found["train"]]
    assert events.tolist() == sizes and (min(sizes), max(sizes)) == (1112, 7152)
