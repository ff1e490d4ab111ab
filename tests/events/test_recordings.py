"Files of event cameras: formats, folders, bins, noise, and what is refused."

import time
import warnings

import numpy as np
import pytest
from conftest import SHARED

from mshnet.core import UserError
from mshnet.events import recordings as page
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

NMNIST = SHARED / "data" / "nmnist-small"
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


# Bins


def test_counts_are_those_of_a_loop():
    "Event by event; and a window pads or cuts."
    recording = made(2000, 100)
    want = np.zeros((10, *EYE), int)
    for x, y, t, p in zip(*(getattr(recording, n).tolist() for n in "xytp"), strict=True):
        want[t // 10_000, p, y, x] += 1
    np.testing.assert_array_equal(bin_events(recording, 10), want)
    np.testing.assert_array_equal(bin_events(recording, 10, 6), want[:6])
    assert bin_events(recording, 10, 15)[10:].max() == 0


def test_counts_end_at_255():
    "A byte does not overflow."
    many = np.zeros(1000, int)
    assert bin_events(Recording.checked([many] * 4, EYE, "hot"), 10).max() == 255


def test_the_filter_is_that_of_a_loop_over_events():
    "An event is kept if one of four neighbours has reported in the 10 ms before it."
    recording = made(1500, 300)
    last, want = np.full((36, 36), -1_000_000), []
    for x, y, t in zip(recording.x, recording.y, recording.t, strict=True):
        around = last[[y + 1, y + 1, y, y + 2], [x, x + 2, x + 1, x + 1]]
        want.append(bool((t - around < 10_000).any()))
        last[y + 1, x + 1] = t
    found = denoise(recording, 10)
    np.testing.assert_array_equal(found.t, recording.t[want])
    np.testing.assert_array_equal(found.x, recording.x[want])
    assert 0 < len(found) < len(recording)


# Formats


def aedat2(recording):
    "The bytes of a CIFAR10-DVS file: an address whose x and y are mirrored and exchanged."
    address = (127 - recording.x) << 8 | (127 - recording.y) << 1 | (1 - recording.p)
    words = np.stack([address, recording.t], 1).astype(">u4")
    return b"#!AER-DAT2.0\r\n# made\r\n" + words.tobytes()


def aedat3(recording, start=0):
    "The bytes of a DVS128 Gesture file, in packets of 100 events and one of another kind."
    out = b"#!AER-DAT3.1\r\n#!END-HEADER\r\n"
    word = recording.x << 17 | recording.y << 2 | recording.p << 1 | 1
    events = np.stack([word, recording.t + start], 1).astype("<u4")
    for i in range(0, len(events), 100):
        part = events[i : i + 100]
        for kind, data in ((1, part), (2, part[:1])):
            sizes = np.array([8, 4, 0, len(data), len(data), len(data)], "<i4")
            out += np.array([kind, 1], "<i2").tobytes() + sizes.tobytes() + data.tobytes()
    return out


def test_every_format_gives_the_events(tmp_path):
    "Of N-MNIST, AEDAT 2 and 3.1, npz and the npy of tonic."
    small, large = made(), made(shape=(2, 128, 128), milliseconds=2000)
    (tmp_path / "a.bin").write_bytes(bin_bytes(small))
    (tmp_path / "b.aedat").write_bytes(aedat2(large))
    (tmp_path / "c.aedat").write_bytes(aedat3(large))
    np.savez(tmp_path / "d.npz", x=large.x, y=large.y, t=large.t, p=large.p)
    assert same(read_recording(tmp_path / "a.bin", EYE), small)
    for name in ("b.aedat", "c.aedat", "d.npz"):
        assert same(read_recording(tmp_path / name, large.shape), large), name
    table = np.stack([large.x, large.y, large.p, large.t // 1000], 1)
    np.save(tmp_path / "3.npy", table)
    found = read_recording(tmp_path / "3.npy", large.shape)
    np.testing.assert_array_equal(found.t, large.t // 1000 * 1000)


PLAIN = {"x": [3, 4], "y": [5, 6], "t": [0, 9], "p": [0, 1]}


def written(path, **columns):
    "An npz recording of 200 random events, with other columns."
    some = made(200)
    np.savez(path, **{name: getattr(some, name) for name in "xytp"} | columns)
    return some


@pytest.mark.parametrize(
    ("per_microsecond", "text"),
    [
        (1e-6, "a time has a fraction .* multiply seconds by 1,000,000"),
        (1e-3, "a time has a fraction .* or milliseconds by 1,000"),
        (1000, "200 events in .* ms; the times seem to be nanoseconds: divide them"),
    ],
)
def test_times_in_another_unit_are_refused(tmp_path, per_microsecond, text):
    "All events would lie in the first bin, or none in the window; whole microseconds are read."
    some = written(tmp_path / "us.npz", t=made(200).t.astype(float))
    assert same(read_recording(tmp_path / "us.npz", EYE), some)
    times = (some.t + 1) * per_microsecond
    written(tmp_path / "a.npz", t=times)
    with pytest.raises(UserError, match=text):
        read_recording(tmp_path / "a.npz", EYE)
    written(tmp_path / "a.npz", t=times.astype(int))  # seconds and milliseconds without fractions
    with pytest.raises(UserError, match=r"the times seem to be .*seconds: .* to microseconds"):
        read_recording(tmp_path / "a.npz", EYE)


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
    for name, kind in (("n-tidigits.hdf5", "ntidigits"), ("airplane/a.aedat4", "cifar10dvs")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
        with pytest.raises(UserError, match=f"convert {name.split('/')[-1]} to npz, as the guide"):
            find_recordings(tmp_path, kind)
        (tmp_path / name).unlink()
    np.savez(tmp_path / "airplane/b.NPZ.npz", **PLAIN)
    (tmp_path / "airplane/b.NPZ.npz").rename(tmp_path / "airplane/b.NPZ")
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
        ("a.aedat", b"a web page", "does not begin with #!AER-DAT2 or #!AER-DAT3"),
        ("a.aedat", aedat3(made())[:-3], "is cut off or damaged"),
        ("a.npz", b"no zip file", "not a readable recording"),
        ("a.npy", b"no array", "not a readable recording"),
        ("a.txt", b"1 2 3", "no format of events"),
    ],
)
def test_what_cannot_be_read_is_one_line(tmp_path, name, content, text):
    "With the file and the reason."
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=text) as caught:
        read_recording(tmp_path / name, EYE)
    assert str(caught.value).startswith(str(tmp_path / name)) and "\n" not in str(caught.value)


def test_an_npz_file_runs_no_code(tmp_path):
    "Pickles are refused; arrays that are missing are named."
    np.savez(tmp_path / "a.npz", x=np.array([print], dtype=object), y=[1], t=[1], p=[1])
    with pytest.raises(UserError, match="allow_pickle"):
        read_recording(tmp_path / "a.npz", EYE)
    np.savez(tmp_path / "b.npz", x=[1], y=[1], t=[1])
    with pytest.raises(UserError, match="no array 'p', but x, y, t"):
        read_recording(tmp_path / "b.npz", EYE)


# Folders


def gestures(folder):
    "Write the layout of DVS128 Gesture: two long recordings with three gestures each."
    recording = made(900, 3000, shape=(2, 128, 128))
    for part, user in (("train", "user01_led"), ("test", "user24_led")):
        (folder / f"{user}.aedat").write_bytes(aedat3(recording))
        rows = "11,0,1000000\n1,1000000,2000000\n4,2000000,3000000\n"
        (folder / f"{user}_labels.csv").write_text("class,startTime_usec,endTime_usec\n" + rows)
        (folder / f"trials_to_{part}.txt").write_text(f"{user}.aedat\n")
    return recording


def test_gestures_are_cut_from_long_recordings(tmp_path):
    "By the times in the table; and the folders of tonic are found too."
    recording = gestures(tmp_path)
    entries = find_recordings(tmp_path, "dvsgesture")["train"]
    assert [entry.label for entry in entries] == [10, 0, 3]
    parts = [read_recording(e.path, (2, 128, 128), e.where) for e in entries]
    assert sum(map(len, parts)) == len(recording)
    middle = recording.t[(recording.t >= 1_000_000) & (recording.t < 2_000_000)]
    np.testing.assert_array_equal(parts[1].t, middle - middle[0])
    (tmp_path / "user01_led_labels.csv").write_text("class,start,end\n12,0,7\n")
    with pytest.raises(UserError, match=r"'12', '0', '7'\] is not a class \(1 to 11\)"):
        find_recordings(tmp_path, "dvsgesture")
    tonic = tmp_path / "data/DVSGesture"
    for part in ("Train", "Test"):
        (tonic / f"ibmGesture{part}/user01_led").mkdir(parents=True)
        table = np.array([[3, 4, 1, 0], [5, 6, 0, 2]])
        np.save(tonic / f"ibmGesture{part}/user01_led/7.npy", table)
    found = find_recordings(tmp_path / "data", "dvsgesture")
    assert [e.label for e in found["train"] + found["test"]] == [7, 7]
    assert read_recording(found["train"][0].path, (2, 128, 128)).t.tolist() == [0, 2000]


def test_things_have_a_fixed_test_part(tmp_path):
    "A tenth of each class, always the same, wherever the folder lies."
    parts = []
    for root in (tmp_path / "CIFAR10DVS/CIFAR10DVS", tmp_path / "other"):
        for name in ("airplane", "truck"):
            (root / name).mkdir(parents=True)
            for i in range(20):
                (root / name / f"cifar10_{name}_{i}.aedat").write_bytes(b"")
        top = tmp_path if "CIFAR10DVS" in str(root) else root
        found = find_recordings(top, "cifar10dvs")
        parts.append([e.path.name for e in found["test"]])
        assert len(found["train"]) == 36 and [e.label for e in found["test"]] == [0, 0, 9, 9]
    assert parts[0] == parts[1]


def test_folders_of_another_data_set_are_named(tmp_path):
    "And what was looked for, where there is nothing."
    nmnist(tmp_path / "digits")
    with pytest.raises(UserError, match=r"holds N-MNIST, not DVS128 .*; use --dataset nmnist"):
        find_recordings(tmp_path / "digits", "dvsgesture")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"no recordings of N-MNIST \(looked for Train/<digit>"):
        find_recordings(tmp_path / "empty", "nmnist")
    with pytest.raises(UserError, match="there is no such folder"):
        find_recordings(tmp_path / "nowhere", "nmnist")


def test_a_share_of_each_class_is_held_out():
    "The same for the same seed, another for another."
    labels = [0] * 97 + [1] * 3
    one, again, other = (hold_out(labels, 0.2, seed) for seed in (0, 0, 1))
    assert (one[:97].sum(), one[97:].sum()) == (19, 1)
    assert (one == again).all() and (one != other).any()


# Frames


def test_frames_are_kept_until_a_recording_or_the_bins_change(tmp_path, monkeypatch):
    "The second time nothing is read."
    entries = find_recordings(nmnist(tmp_path / "set"), "nmnist")["train"]
    how, cache = Counting(EYE, 20, 15, 10.0), tmp_path / "cache"
    first = read_frames("train", entries, how, cache)
    reads = []
    real = page.read_recording
    monkeypatch.setattr(page, "read_recording", lambda *a: reads.append(a) or real(*a))
    second = read_frames("train", entries, how, cache)
    assert not reads and np.array_equal(first.counts, second.counts) and first.hash == second.hash
    read_frames("train", entries, how._replace(denoise=0.0), cache)
    assert len(reads) == 4
    entries[0].path.write_bytes(bin_bytes(made(700, seed=9)))
    third = read_frames("train", entries, how, cache)
    assert len(reads) == 8 and third.hash != first.hash


def test_other_recordings_of_the_same_name_and_size_are_others(tmp_path):
    "Their names and sizes are equal, what they hold is not."
    entries = find_recordings(nmnist(tmp_path / "set"), "nmnist")["train"]
    how = Counting(EYE, 20, 15, 0.0)
    before = read_frames("train", entries, how, tmp_path / "cache")
    assert before.content == read_frames("train", entries, how, tmp_path / "cache").content
    entries[0].path.write_bytes(bin_bytes(made(seed=9)))
    after = read_frames("train", entries, how, tmp_path / "cache")
    assert after.hash == before.hash and after.content != before.content
    assert after.part("val", [0, 1]).content == after.content


def test_damaged_files_are_skipped_and_counted_where_that_is_allowed(tmp_path):
    "Else the first stops the run, also after a run that skipped it."
    entries = find_recordings(nmnist(tmp_path / "set"), "nmnist")["train"]
    want = read_recording(entries[1].path, EYE)
    for i in (0, 2):
        entries[i].path.write_bytes(b"broken")
    how, cache = Counting(EYE, 20, 15, 0.0), tmp_path / "cache"
    for _ in range(2):  # the second time from the cache
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = read_frames("train", entries, how, cache, "skip")
        assert "skipped: 2 recordings" in str(caught[0].message)
        assert (len(found), found.skipped, found.names[0]) == (2, 2, entries[1].name)
        np.testing.assert_array_equal(found.frames(0), how.frames(want))
        with pytest.raises(UserError, match="--on-bad-image skip leaves such recordings out"):
            read_frames("train", entries, how, cache)
    for i in (1, 3):
        entries[i].path.write_bytes(b"broken")
    with pytest.raises(UserError, match="no recording can be read"):
        read_frames("train", entries, how, cache, "skip")


def test_real_recordings(tmp_path):
    "1,000 and 100 of N-MNIST: their numbers, and every event is counted."
    if not NMNIST.is_dir():
        pytest.skip("needs data/nmnist-small; set MSHNET_SHARED to the folder that holds data/")
    found, began = find_recordings(NMNIST, "nmnist"), time.process_time()
    parts = {n: read_frames(n, e, Counting(EYE, 10, 34, 0.0), tmp_path) for n, e in found.items()}
    print(f"{time.process_time() - began:.2f} s")
    test = [8, 14, 8, 11, 14, 7, 10, 15, 2, 11]
    assert np.bincount(parts["test"].labels).tolist() == test and len(parts["train"]) == 1000
    events = parts["train"].counts.sum((1, 2, 3, 4), dtype=int)
    sizes = [entry.path.stat().st_size // 5 for entry in found["train"]]
    assert events.tolist() == sizes and (min(sizes), max(sizes)) == (1112, 7152)


@pytest.mark.parametrize(
    "path",
    ["Train/3/a.bin", "ibmGestureTrain/user02_led/3.npy", "airplane/a.aedat", "a.npz"],
)
def test_the_source_is_the_data_set(tmp_path, path):
    "Not a person or a class of it."
    assert page._source(tmp_path / "mine" / path) == "mine"
