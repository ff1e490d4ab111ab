# %% [markdown]
# # Recordings of an event camera
#
# > An event camera reports changes, not images. Here its events are read, checked, filtered and counted in bins.
#
# A camera takes images at fixed times. An event camera takes none: each pixel compares the logarithm of its brightness with the value at its last report, and reports again when the change reaches a threshold. A report is an *event*: column x, row y, the time t in microseconds, and the polarity p (1: brighter, 0: darker). Where nothing moves, nothing is recorded.
#
# Here is a bright disc that moves to the right in front of such a camera. On the left are its events in time and x: its leading edge makes pixels brighter (red), its trailing edge darker (blue). On the right are the same events, counted in bins of 20 ms. A network reads such bins.

# %%
import matplotlib.pyplot as plt
import numpy as np

rng = np.random.default_rng(0)
t, side = rng.uniform(0, 300, 3000), np.pi * rng.integers(2, size=3000)
angle = np.arcsin(rng.uniform(-1, 1, 3000)) + side  # as many events in each row of the disc
x, y, leads = 8 + 0.06 * t + 6 * np.cos(angle), 17 + 6 * np.sin(angle), np.cos(angle) > 0
how = {"layout": "constrained", "width_ratios": (2.2, 1, 1, 1)}
figure, (cloud, *axes) = plt.subplots(1, 4, figsize=(9, 2.6), **how)
cloud.scatter(t, x, c=np.where(leads, "tab:red", "tab:blue"), s=1)
cloud.set(xlabel="t, ms", ylabel="x")
for axis, start in zip(axes, (20, 140, 240), strict=True):
    now = abs(t - start - 10) < 10
    how = {"bins": (range(35), range(35)), "weights": 2.0 * leads[now] - 1}
    axis.imshow(np.histogram2d(y[now], x[now], **how)[0], cmap="RdBu_r", vmin=-3, vmax=3)
    axis.set(xlabel="x", ylabel="y", title=f"{start} to {start + 20} ms")

# %%
#| export
#| default_exp events.recordings
import hashlib
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mshnet.core import UserError, counted, reason, resolve
from mshnet.files import cannot_be_written, expect_folder, make_folder, replacing, stamp


# %% [markdown]
# ## The data sets
#
# Four public data sets can be read. The last one comes from a silicon cochlea, not a camera: 64 frequency channels that report sound, without a polarity.

# %%
#| export
class Sensor(NamedTuple):
    "What the recordings of a data set have in common."

    title: str
    shape: tuple[int, int, int]  # polarities, rows, columns
    classes: tuple[str, ...]
    bin: str  # usual width of a bin
    window: str  # usual length of a recording


_GESTURES = (
    *("hand_clapping", "right_hand_wave", "left_hand_wave", "right_arm_clockwise"),
    *("right_arm_counter_clockwise", "left_arm_clockwise", "left_arm_counter_clockwise"),
    *("arm_roll", "air_drums", "air_guitar", "other_gestures"),
)
_THINGS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SENSORS = {
    "nmnist": Sensor("N-MNIST", (2, 34, 34), tuple("0123456789"), "20ms", "300ms"),
    "dvsgesture": Sensor("DVS128 Gesture", (2, 128, 128), _GESTURES, "100ms", "6000ms"),
    "cifar10dvs": Sensor("CIFAR10-DVS", (2, 128, 128), _THINGS, "20ms", "1200ms"),
    "ntidigits": Sensor("N-TIDIGITS", (1, 64, 1), tuple("o123456789z"), "20ms", "1000ms"),
}


# %% [markdown]
# ## A recording
#
# A recording is four columns and the shape of its sensor. It is checked once, when it is made. Without this check an event outside of the sensor would count at a different pixel, and falling times would hide that files were joined by mistake.

# %%
#| export
@dataclass(frozen=True)
class Recording:
    "Events in the order of their times, which begin at 0."

    x: np.ndarray  # [N] column
    y: np.ndarray  # [N] row
    t: np.ndarray  # [N] int64, microseconds since the first event
    p: np.ndarray  # [N] 1: brighter, 0: darker
    shape: tuple[int, int, int]  # polarities, rows, columns

    @classmethod
    def checked(
        cls,
        columns: Sequence[np.ndarray],  # x, y, t, p
        shape: tuple[int, int, int],
        where: object,  # the file, for the error line
    ) -> "Recording":
        "Make a recording; UserError if an event is impossible."
        x, y, t, p = map(np.ravel, columns)  # MATLAB's columns are [1,N] or [N,1]
        if len({len(x), len(y), len(t), len(p)}) != 1:
            raise UserError(f"{where}: has {len(x)} x, {len(y)} y, {len(t)} t and {len(p)} p")
        if not len(x):
            raise UserError(f"{where}: holds no event; leave it out")
        if {column.dtype.kind for column in (x, y, t, p)} - set("biuf"):
            raise UserError(f"{where}: its events are no numbers; write x, y, t and p as numbers")
        found = np.unique(p).tolist()
        if not (set(found) <= {0, 1} or set(found) <= {-1, 1}):
            some = ", ".join(map(str, found[:4]))
            todo = "use 1 for brighter, and 0 or -1 for darker"
            raise UserError(f"{where}: the polarities are {some}; {todo}")
        for name, column in (("x", x.astype(float)), ("y", y.astype(float))):
            if (broken := column[column != np.trunc(column)]).size:
                raise UserError(f"{where}: {name}={broken[0]:g} is no pixel; use whole numbers")
        x, y, t, p = (column.astype(np.int64) for column in (x, y, t, p))
        outside = (x < 0) | (y < 0) | (x >= shape[2]) | (y >= shape[1])
        if outside.any():
            i = int(outside.argmax())
            what = f"event {i} (x={x[i]}, y={y[i]}) is outside of the sensor, which has"
            todo = "the file is damaged, or of another sensor than the data set or the weights"
            raise UserError(f"{where}: {what} {shape[2]}x{shape[1]} pixels; {todo}")
        falls = np.diff(t) < 0
        if falls.any():
            i = int(falls.argmax())
            wrap = t[i] - t[i + 1] > 2**31  # of a counter of 32 bits
            todo = "add 2**32 to all from there on, in int64" if wrap else "sort the events by time"
            fall = f"times fall, from {t[i]} to {t[i + 1]} microseconds at event {i + 1}"
            raise UserError(f"{where}: {fall}; {todo}, or leave the file out")
        return cls(x, y, t - t[0], p.clip(0, shape[0] - 1), shape)

    def __len__(self) -> int:
        return len(self.t)


# %% [markdown]
# ## Bins of fixed width
#
# A network computes in steps. The input of a step is the number of events of each pixel and polarity in a bin of time. The published code divides each recording into a fixed number of bins. A bin of a six-second gesture is then twenty times longer than a bin of a digit of 0.3 seconds. A spiking neuron forgets a fixed fraction *in a step*, so it would forget at a different speed in every recording. We fix the width of the bin instead: a recording that is twice as long has twice the bins. A batch needs one length. We also fix a window: shorter recordings are padded with empty bins, longer ones are cut. Counts above 255 become 255.

# %%
#| export
def bin_events(
    recording: Recording,
    milliseconds: float,  # width of a bin
    steps: int = 0,  # bins of the result, which is padded or cut; 0: as many as there are
) -> np.ndarray:  # [T,P,H,W] uint8
    "Count the events of each pixel and polarity in bins of fixed width."
    index = recording.t // round(1000 * milliseconds)
    shape = (steps or int(index[-1]) + 1, *recording.shape)
    flat = np.ravel_multi_index((index, recording.p, recording.y, recording.x), shape, mode="clip")
    counts = np.bincount(flat[index < shape[0]], minlength=int(np.prod(shape)))
    return np.minimum(counts, 255).astype(np.uint8).reshape(shape)


# %%
whole = np.stack([x, y, 1000 * t, leads])[:, np.argsort(t)].astype(int)  # pixels, microseconds
disc = Recording.checked(whole, (2, 34, 34), "disc")
for width in (20, 10):
    print(f"the disc of the first figure in bins of {width} ms:", bin_events(disc, width).shape)


# %% [markdown]
# ## Noise
#
# Noise events are isolated; a moving edge triggers neighbouring pixels together. The usual filter keeps an event if one of the four pixels beside it has reported within the last 10 ms. As in tonic, the first 10 ms (here from the first event on) are kept whole, because nothing is known of the time before. A loop over events is slow in Python. So we sort the reports by pixel and time. Then a binary search finds the last report of a neighbour of every event.

# %%
#| export
def denoise(recording: Recording, milliseconds: float = 10.0) -> Recording:
    "Keep an event if one of 4 neighbours, or the beginning, is within this time before it."
    width, span = recording.shape[2] + 2, int(recording.t[-1]) + 1
    pixel = (recording.y + 1) * width + recording.x + 1  # with a margin around the sensor
    key = pixel * span + recording.t
    reports = np.sort(key)
    limit = round(1000 * milliseconds)
    since, kept = np.minimum(recording.t, limit - 1), recording.t < limit
    for step in (-1, 1, -width, width):
        wanted = key + step * span
        last = reports[np.maximum(np.searchsorted(reports, wanted, side="right") - 1, 0)]
        kept |= (last <= wanted) & (last >= wanted - since)
    x, y, t, p = (v[kept] for v in (recording.x, recording.y, recording.t, recording.p))
    return Recording(x, y, t, p, recording.shape)


# %% [markdown]
# The disc among 300 random events, coloured by time. The filter keeps nearly all of the disc and a seventh of the noise, mostly beside the disc or in the first 10 ms:

# %%
noise = rng.integers(0, [[34], [34], [300_000], [2]], (4, 300))
columns = np.concatenate([[disc.x, disc.y, disc.t, disc.p], noise], 1)
both = Recording.checked(columns[:, np.argsort(columns[2])], (2, 34, 34), "disc and noise")
figure, axes = plt.subplots(1, 2, figsize=(6.5, 3), layout="constrained")
for axis, shown in zip(axes, (both, denoise(both)), strict=True):
    made = axis.scatter(shown.x, shown.y, c=shown.t / 1000, s=3)
    axis.set(xlim=(0, 34), ylim=(34, 0), xlabel="x", ylabel="y")
    axis.set_title(f"{len(shown)} events")
figure.colorbar(made, ax=axes, label="t, ms");

# %% [markdown]
# ## The machinery: formats
#
# Each format has a parser that returns four columns.
#
# | format | data set | an event |
# |---|---|---|
# | `.bin` | N-MNIST | 5 bytes: x, y, polarity (1 bit), time (23 bits) |
# | `.aedat` 2.0 of a DVS128 | CIFAR10-DVS | 8 bytes, big-endian: address (polarity, x, y), time |
# | `.npy` | DVS128 Gesture as tonic stores it | a row: x, y, polarity, time in milliseconds |
# | `.npz` | any, such as N-TIDIGITS | arrays x, y, t (whole microseconds), p |
#
# Other formats are converted to npz first; the [guide](../guides/events.ipynb) has the lines for AEDAT 3.1 and 4 and for the HDF5 file of N-TIDIGITS.
#
# Arrays are read without pickles, which could run code. They do not name the unit of their times. A sample of the public sets lasts between a tenth of a second and some seconds. So if a recording of at least 100 events lasts less than 20 milliseconds or more than 100 seconds, its times have a different unit. We reject it, because all of its events would be in the first bin, or hardly any in the window. The example reads the events of the disc from a file, in microseconds and in milliseconds:

# %%
#| export
Columns = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # x, y, t, p


def _read_bin(path: Path) -> Columns:
    "The events of an N-MNIST file."
    data = path.read_bytes()
    if len(data) % 5:
        raise ValueError(f"{len(data)} bytes, not a multiple of 5: it is cut off")
    a = np.frombuffer(data, np.uint8).reshape(-1, 5).T.astype(np.int64)
    return a[0], a[1], (a[2] & 127) << 16 | a[3] << 8 | a[4], a[2] >> 7


def _read_aedat(path: Path) -> Columns:
    "The events of an AEDAT file of version 2."
    data = path.read_bytes()
    if not data.startswith(b"#!AER-DAT2"):
        raise ValueError("it has no #!AER-DAT2; the guide on events converts versions 3 and 4")
    start = len(re.match(rb"(#[^\n]*\n)*", data)[0])  # type: ignore[index]
    words = np.frombuffer(data[start : len(data) - (len(data) - start) % 8], ">u4").reshape(-1, 2)
    if (words[:, 0] >> 16).any():
        raise ValueError("its addresses are of another camera than DVS128; convert it to npz")
    address, time = words[words[:, 0] < 1 << 15].astype(np.int64).T  # others: of no pixel
    return 127 - (address >> 8 & 127), 127 - (address >> 1 & 127), time, 1 - (address & 1)


_MANY, _SHORT, _LONG = 100, 20_000, 100_000_000  # events; microseconds


def _read_arrays(path: Path) -> Columns:
    "The events of an npz file, or of an npy file of tonic (x, y, polarity, milliseconds)."
    found: Any = np.load(path, allow_pickle=False)
    if isinstance(found, np.ndarray):
        if found.ndim != 2 or found.shape[1] != 4:
            raise ValueError(f"its shape is {found.shape}, not [N,4]")
        x, y, p, t = found.T
        micro = (1000 * t.astype(float)).round()
        unit = "milliseconds (columns x, y, polarity, time)"
    else:
        with found as file:
            if missing := [name for name in "xytp" if name not in file]:
                raise ValueError(f"it holds no array {missing[0]!r}, but {', '.join(file)}")
            x, y, t, p = (np.ravel(file[name]) for name in "xytp")
        micro, unit = t, "whole microseconds"
    span = int(micro[-1]) - int(micro[0]) if len(t) >= _MANY else _SHORT
    if (micro != micro.astype(np.int64)).any() or 0 <= span < _SHORT or span > _LONG:
        what = f"{len(t)} events at times from {t[0]:g} to {t[-1]:g}, which cannot be {unit}"
        units = "1 s is 1,000 ms, 1,000,000 us, or 1,000,000,000 ns"
        raise ValueError(f"{what}; convert them ({units}), or cut the recording")
    return x, y, micro, p


_READERS = {".bin": _read_bin, ".aedat": _read_aedat, ".npy": _read_arrays, ".npz": _read_arrays}
SUFFIXES = tuple(_READERS)
_RAW = (".aedat4", ".hdf5", ".h5", ".raw", ".dat", ".mat")  # of recordings that are converted


def read_recording(
    path: Path,
    shape: tuple[int, int, int],  # polarities, rows, columns of the sensor
) -> Recording:
    "Read a recording; UserError if the file is damaged, or holds something else."
    kind = path.suffix.lower()
    if kind not in _READERS:
        raise UserError(f"{path}: unknown format of events (there are {', '.join(_READERS)})")
    try:
        columns = _READERS[kind](path)
    except Exception as error:  # of zip files, headers, arrays: each library has its own
        why = "no array of numbers" if "pickle" in str(error) else reason(error)
        raise UserError(f"{path}: not a readable recording ({why})") from None
    return Recording.checked(columns, shape, path)


# %%
from tempfile import TemporaryDirectory

with TemporaryDirectory() as folder:
    path = Path(folder, "disc.npz")
    for unit, name in ((1, "microseconds"), (1000, "milliseconds")):
        np.savez(path, x=disc.x, y=disc.y, t=disc.t // unit, p=disc.p)
        try:
            print(f"times in {name}: {len(read_recording(path, disc.shape))} events are read")
        except UserError as error:
            print(f"times in {name}:", str(error).partition("(")[2].partition(";")[0])


# %% [markdown]
# ## The machinery: folders and frames
#
# The folder or the name of a recording gives its class. CIFAR10-DVS has no official test list, so we hold out a tenth of each class. The same files always give the same split. The folders are those of the publishers, and those in which the package tonic stores its downloads. (tonic is not needed.) A recording that lies beside its conversion, such as `0.aedat` and `0.npz`, counts once. Otherwise one of the two could be a training recording and the other a test recording.

# %%
#| export
class _Entry(NamedTuple):
    "A labelled recording on the disk."

    path: Path
    label: int
    root: Path  # of the data set, which may be renamed

    @property
    def name(self) -> str:
        "Such as Train/3/00007."
        return self.path.relative_to(self.root).with_suffix("").as_posix()


def hold_out(labels: Sequence[int], share: float, seed: int) -> np.ndarray:  # [N] bool
    "Held-out samples: a fraction of each class, at least one; one stays if a class has several."
    classes, held = np.asarray(labels), np.zeros(len(labels), bool)
    rng = np.random.default_rng([seed, 17])
    for label in np.unique(classes):
        rows = rng.permutation(np.flatnonzero(classes == label))
        held[rows[: max(1, min(round(share * len(rows)), len(rows) - 1))]] = True
    return held


def _in_classes(folder: Path, dataset: str, root: Path) -> list[_Entry]:
    "Recordings in folders named after classes."
    classes = SENSORS[dataset].classes
    inside = [p for p in folder.glob("*/*") if p.name[0] != "."]
    there = [p for p in inside if p.suffix.lower() in SUFFIXES]
    if odd := {p.parent.name for p in there} - {*classes}:
        warnings.warn(f"{folder}: left out, no class: {', '.join(sorted(odd)[:9])}", stacklevel=2)
    files = sorted(p for p in there if p.parent.name in classes)
    kept = {path.with_suffix(""): path for path in files}  # the last one: npz, not bin or aedat
    if left := [path for path in files if kept[path.with_suffix("")] != path]:
        why = f"{counted(len(left), 'recording')} in two formats, of which one is read"
        own = kept[left[0].with_suffix("")].name
        warnings.warn(f"{folder}: {why} (not {left[0].name} but {own})", stacklevel=2)
    raw = [p for p in inside if p.suffix.lower() in _RAW and p.parent.name in classes]
    if kept and (other := sorted(p.name for p in raw if p.with_suffix("") not in kept)):
        what = f"{counted(len(other), 'recording')} left out, such as {other[0]}; convert to npz"
        warnings.warn(f"{folder}: {what}, as the guide on event cameras shows", stacklevel=2)
    return [_Entry(path, classes.index(path.parent.name), root) for path in kept.values()]


def _find_folders(root: Path, dataset: str) -> dict[str, list[_Entry]]:
    "Folders Train and Test (or train and test, and perhaps val) with a folder for each class."
    return {
        part: _in_classes(root / part.title(), dataset, root)
        or _in_classes(root / part, dataset, root)
        for part in ("train", "val", "test")
    }


def _find_gestures(root: Path, dataset: str) -> dict[str, list[_Entry]]:
    "The folders of tonic, with the class as the name of a file."
    found = {}
    for part, folder in (("train", "ibmGestureTrain"), ("test", "ibmGestureTest")):
        files = sorted((root / folder).glob("*/*.npy"))
        found[part] = [_Entry(p, int(p.stem), root) for p in files if p.stem.isdecimal()]
        if wrong := [e.path for e in found[part] if e.label >= len(SENSORS[dataset].classes)]:
            raise UserError(f"{wrong[0]}: use the names 0 to 10, as tonic writes them")
    return found


def _find_objects(root: Path, dataset: str) -> dict[str, list[_Entry]]:
    "Folders of classes, of which a tenth is held out for the test."
    found = _in_classes(root, dataset, root)
    pairs = list(zip(found, hold_out([entry.label for entry in found], 0.1, seed=42), strict=True))
    return {"train": [e for e, out in pairs if not out], "test": [e for e, out in pairs if out]}


def find_recordings(folder: Path, dataset: str) -> dict[str, list[_Entry]]:  # by split
    "The recordings of a data set, perhaps in a folder of tonic's name; UserError if none."
    expect_folder(folder)
    own = {"dvsgesture": _find_gestures, "cifar10dvs": _find_objects}.get(dataset, _find_folders)
    tonic = {"nmnist": "NMNIST", "dvsgesture": "DVSGesture", "cifar10dvs": "CIFAR10DVS"}
    name = tonic.get(dataset, dataset)
    for root in (folder, folder / name, folder / name / name, folder / dataset):
        for find in (_find_folders, own):
            found = find(root, dataset)
            if any(found.values()):
                return {part: some for part, some in found.items() if some}
    looked = f"holds no recordings of {SENSORS[dataset].title} in train/<class> and test/<class>"
    raw = (file for kind in (*_RAW, "user*.aedat") for file in folder.rglob(f"*{kind}"))
    if file := next(raw, None):
        looked += f"; convert {file.name} to npz, as the guide on event cameras shows"
    raise UserError(f"{folder}: {looked}")


# %% [markdown]
# Reading, filtering and counting always give the same frames, so we do it once: a file beside the runs has the frames of a split, and `np.memmap` reads it. Its name depends on the recordings, their sizes and times, and on how they are counted. A recording that cannot be read stops the run. Simulated recordings become frames in memory; below, the disc is a split of one recording.

# %%
#| export
class Counting(NamedTuple):
    "How events become frames."

    shape: tuple[int, int, int]  # polarities, rows, columns
    milliseconds: float  # width of a bin
    steps: int  # bins of a recording
    denoise: float  # milliseconds of the filter; 0: none

    def frames(self, recording: Recording) -> np.ndarray:  # [T,P,H,W] uint8
        "The frames of a recording."
        window = self.milliseconds * self.steps
        if recording.t[-1] >= 2000 * window:  # microseconds
            what = "of recordings that last more than twice the window, only the first"
            warnings.warn(f"{what} {window:g} ms are used; set --time-window", stacklevel=2)
        kept = denoise(recording, self.denoise) if self.denoise else recording
        return bin_events(kept, self.milliseconds, self.steps)


@dataclass(frozen=True)
class Frames:
    "A split of a data set."

    name: str  # "train", "val" or "test"
    source: str  # name of the data set
    counts: np.ndarray  # [M,T,P,H,W] uint8
    rows: np.ndarray  # [N] which of the M are samples of this split
    labels: list[int]  # of the samples
    names: list[str]
    hash: str
    content: str = ""  # a hash of what the files hold; empty: in memory

    def __len__(self) -> int:
        return len(self.rows)

    def frames(self, index: int) -> np.ndarray:  # [T,P,H,W] uint8
        "The frames of a sample."
        return self.counts[self.rows[index]]

    def part(self, name: str, chosen: Sequence[int]) -> "Frames":
        "The samples of these indices as a split."
        names, labels = [self.names[i] for i in chosen], [self.labels[i] for i in chosen]
        mark, rows = _mark(self.hash, *names), self.rows[np.asarray(chosen, int)]
        return replace(self, name=name, rows=rows, labels=labels, names=names, hash=mark)


def _mark(*texts: object) -> str:
    "Twelve digits of a hash of texts."
    text = "\n".join(map(str, texts)).encode(errors="surrogateescape")
    return hashlib.sha256(text).hexdigest()[:12]


def frames_of(
    name: str, recordings: Sequence[Recording], labels: Sequence[int], how: Counting, source: str
) -> Frames:
    "Frames of recordings in memory."
    counts = np.stack([how.frames(recording) for recording in recordings])
    names, rows = [f"{name}_{i}" for i in range(len(counts))], np.arange(len(counts))
    mark = _mark(hashlib.sha256(counts.tobytes()).hexdigest(), *labels)
    return Frames(name, source, counts, rows, list(labels), names, mark)


def read_frames(
    name: str,
    source: str,  # name of the data set
    entries: Sequence[_Entry],
    how: Counting,
    cache: Path,  # folder of the files of frames
) -> Frames:
    "Frames of recordings on the disk, counted once; UserError for one that cannot be read."
    gone = ("", "", "")  # a file that is not there is reported when it is read
    stamps = [(entry, stamp(entry.path) or gone) for entry in entries]
    lines = [f"{e.name} {e.label} {size} {time}" for e, (size, time, _) in stamps]
    content = resolve("mshnet.task:content_of")([entry.path for entry in entries])
    file = cache / f"{_mark(how, 'version 4', content, *lines)}.frames"  # also of what is refused
    if (stamp(file) or gone)[0] != len(entries) * how.steps * int(np.prod(how.shape)):
        make_folder(cache)
        with cannot_be_written(file), replacing(file) as out:
            for entry in entries:
                out.write(how.frames(read_recording(entry.path, how.shape)).tobytes())
    counts = np.memmap(file, np.uint8, "r", shape=(len(entries), how.steps, *how.shape))
    labels, names = [entry.label for entry in entries], [entry.name for entry in entries]
    mark, rows = _mark(*(f"{e.name} {size}" for e, (size, *_) in stamps)), np.arange(len(entries))
    return Frames(name, source, counts, rows, labels, names, mark, content)


# %%
how = Counting((2, 34, 34), milliseconds=20, steps=15, denoise=10)
print("[N,T,P,H,W]:", frames_of("train", [disc], [0], how, "disc").counts.shape)

# %% [markdown]
# ## Questions
#
# 1. The disc of the first figure moves the same way at twice the speed. How many events are there, and how many in a bin?
#    <details><summary>Answer</summary>The same number in all: each pixel sees the same two edges. They pass in half the time, so a bin of 20 ms has twice as many.</details>
# 2. You shorten the time of the filter from 10 ms to 1 ms. What happens to the noise, and what to a slow edge?
#    <details><summary>Answer</summary>Fewer noise events have a neighbour by chance, so less noise is left. But a slow edge needs more than 1 ms from pixel to pixel. The filter removes it, unless several of its pixels report together.</details>
