# %% [markdown]
# # Clips of signed sentences
#
# > Where signed sentences come from: videos in the layout of CE-CSL, tables of hand tracks, and simulated signing.
#
# A **clip** is a signed sentence: its frames, and its glosses in order. There are two kinds. A *video* has images, `[T,S,S,3]`. *Hand tracks* have six numbers for each frame, `[T,6]`: x and y of the left hand, of the right hand and of the nose, in pixels.
#
# The figure shows one simulated sentence as both kinds. The upper row has frames of its video, in which the hands are two blobs in noise. The curves are the heights of both hands in its tracks. A sign is a path of each hand: both times SIGN-AK has the same form. Around the dashed lines the hands move from the end of one sign to the start of the next. This *co-articulation* makes continuous signing hard to read. In training a network gets the frames and the glosses, but not the times at which a sign begins and ends.

# %%
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from mshnet.core import configure
from mshnet.signs.clips import load_clips, simulated_clips, write_clips

video, tracks = (simulated_clips("test", 3, 12, seed=2, video=kind) for kind in (True, False))
clip, frames = tracks.clips[0], video.read(0)[3::6].copy()
frames[:, :, -1] = 255  # a line between two frames
figure = plt.figure(figsize=(8, 2.6), layout="constrained")
above, below = figure.subplots(2, sharex=True, height_ratios=(1, 2))
above.imshow(np.hstack(frames), extent=(0, clip.frames, 0, 24), aspect="auto")
below.plot(24 - tracks.read(0)[:, [1, 3]], label=["left hand", "right hand"])
below.vlines(clip.cuts, 0, 24, color="0.5", ls="dashed")
edges = np.array([0, *clip.cuts, clip.frames])
below.set_xticks((edges[1:] + edges[:-1]) / 2, clip.glosses)
below.set_xticks(range(0, clip.frames, 10), minor=True)
below.set(xlabel=f"time ({clip.frames} frames; a short tick every ten)", ylabel="height, pixels")
below.legend(loc="upper right", ncols=2);

# %%
#| export
#| default_exp signs.clips
import contextlib
import csv
import hashlib
import io
import re
import unicodedata
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mshnet.core import UserError, counted, read_text, reason, resolve
from mshnet.files import claim, expect_folder, make_folder, write_table
from mshnet.signs.ctc import least_frames
from mshnet.signs.glosses import normalise, split_glosses
from mshnet.task import Task, content_of, digits


@dataclass(frozen=True)
class Clip:
    "A signed sentence."

    name: str
    glosses: tuple[str, ...]
    frames: int
    signer: str = ""
    path: Path = Path()  # a video, or a folder of jpg images
    cuts: tuple[int, ...] = ()  # frames between the glosses, where their times are known
    array: np.ndarray | None = field(default=None, compare=False)  # the frames, if in memory


@dataclass(frozen=True)
class Clips:
    "A split of a data set."

    name: str  # "train", "val" or "test"
    source: str  # name of the data set
    clips: tuple[Clip, ...]
    size: int = 0  # side of a frame; 0: hand tracks
    known: frozenset[tuple[str, ...]] = frozenset()  # sentences of the training list

    @cached_property
    def names(self) -> Sequence[str]:
        "Name of each clip."
        return [clip.name for clip in self.clips]

    @cached_property
    def hash(self) -> str:
        "A hash of names, lengths and labels, and of frames in memory; no video is read for it."
        lines = []
        for c in self.clips:
            held = "" if c.array is None else hashlib.sha256(c.array.tobytes()).hexdigest()
            lines.append(f"{c.name} {c.frames} {held} {'/'.join(c.glosses)}")
        return digits(lines)

    @cached_property
    def content(self) -> str:
        "A hash of the contents of up to 300 clips; empty: in memory, where `hash` covers them."
        some = self.clips[:: -(-len(self.clips) // 300) or 1]
        return content_of([f for clip in some if clip.array is None for f in _parts_of(clip.path)])

    @cached_property
    def sentences(self) -> Sequence[tuple[str, ...]]:
        "The glosses of each clip."
        return [clip.glosses for clip in self.clips]

    def __len__(self) -> int:
        return len(self.clips)

    def read(self, index: int) -> np.ndarray:  # [T,S,S,3] uint8, or [T,6] float32
        "The frames of a clip; UserError if they cannot be read."
        clip = self.clips[index]
        return read_video(clip.path, self.size) if clip.array is None else clip.array


# %% [markdown]
# ## Two layouts on the disk
#
# - **Videos**, as in CE-CSL. `label/train.csv` has the columns Number, Translator and Gloss. Commas, semicolons or tabs separate them. A video is a file such as `video/train/A/train-00001.mp4`, or a folder of that name with a jpg for each frame. If two signers have a video of the same number, the clips are called A/00001 and B/00001. The validation split is called `dev` or `val`.
# - **Hand tracks**, as in RWTH-BOSTON-104. `hands_condensed.csv` has a row for each frame (video, frame, left-x ... nose-y), and `train_words.csv` one for each gloss (video, word, startframe, endframe). The glosses are taken as they are.
#
# We write the three simulated videos in the first layout, print the table, and read the folder with `load_clips`. It returns the name, the glosses, the number of frames and the path of each clip, but no image. The videos of a data set do not fit into memory, so `Clips.read` reads a clip when a batch needs it.

# %%
with tempfile.TemporaryDirectory() as folder:
    write_clips(Path(folder), video)
    print(Path(folder, "label/test.csv").read_text())
    config = configure({"task": "signs", "network": "tfnet", "dataset_dir": folder})
    for clip in load_clips(config, ["test"])["test"].clips:
        print(clip.name, clip.glosses, clip.frames, clip.path.relative_to(folder))

# %%
#| export
PARTS = {"train": "train", "val": "dev", "test": "test"}  # a split, and its name in the files
TRACKS = "hands_condensed.csv"
_LABELS, _WORDS = ("label/{}.csv", "{}.csv"), "{}_words.csv"  # the authors' tree has no `label`
_COLUMNS = ("left-x", "left-y", "right-x", "right-y", "nose-x", "nose-y")


def _rows(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    "The rows of a table; UserError if it is unreadable, or lacks a column."
    text, rows = read_text(path, "table"), list[dict[str, str]]()
    sign = max(",;\t", key=text.split("\n", 1)[0].count)  # spreadsheets use any of the three
    reader = csv.DictReader(io.StringIO(text), delimiter=sign, skipinitialspace=True, strict=True)
    try:
        there = reader.fieldnames or ["nothing"]
        if missing := [name for name in columns if name not in there]:
            raise UserError(f"{path}: has no column {missing[0]!r}, but {', '.join(there[:9])}")
        for cells in reader:
            row = {k: "".join(v or "").strip() for k, v in cells.items()}  # None: a list
            if broken := [k for k, v in row.items() if "\n" in v or (v and k is None)]:
                raise csv.Error(f"a line break in {broken[0]}" if broken[0] else "a cell too many")
            row |= {k: unicodedata.normalize("NFC", row[k]) for k in {"Gloss", "word"} & set(row)}
            rows.append(row)
    except csv.Error as error:
        where = f"{path}, row {len(rows) + 1}"
        raise UserError(f"{where}: {error}; look for a stray quotation mark") from None
    return rows


def _number(text: str, where: str) -> float:
    "A finite number in a table; UserError for any other text."
    with contextlib.suppress(ValueError):
        if np.isfinite(value := float(text)):
            return value
    raise UserError(f"{where}: {text!r} is not a number")


def read_tracks(path: Path) -> dict[str, np.ndarray]:  # [T,6] float32
    "Tracks of each video: left hand, right hand, nose; x and y in pixels of a frame 200 wide."
    found: dict[str, dict[float, list[float]]] = {}
    for i, row in enumerate(_rows(path, _COLUMNS)):
        at, video = _number(row.get("frame", str(i)), str(path)), row.get("video", path.stem)
        values = [_number(row[name], f"{path}, row {i + 1}, {name}") for name in _COLUMNS]
        if found.setdefault(video, {}).setdefault(at, values) is not values:
            raise UserError(f"{path}: has frame {at:g} of {video} twice; leave one out")
    for video, rows in found.items():
        if (wanted := max(rows) - min(rows) + 1) != len(rows):
            what = f"has {len(rows)} of the {wanted:g} frames of {video}"
            raise UserError(f"{path}: {what}; write one row for each frame")
    tracks = {k: np.array([v[at] for at in sorted(v)], np.float32) for k, v in found.items()}
    most = max((float(np.abs(x).max()) for x in tracks.values()), default=0.0)
    if not 2 < most <= 400:  # of a frame about 200 pixels wide
        small = "no coordinate is above 2: multiply x by 200, and y by 200 * height / width"
        why = small if most <= 2 else f"coordinates reach {most:g}: multiply all by 200 / width"
        raise UserError(f"{path}: {why if found else 'has no frames'}")
    return tracks


def _tracked(folder: Path, name: str) -> list[Clip]:
    "The clips of a split that has hand tracks."
    path, tracks = _find(folder, name, _WORDS), read_tracks(folder / TRACKS)
    found: dict[str, list[tuple[float, float, str]]] = {}
    for row in _rows(path, ("video", "word", "startframe", "endframe")):
        start, end = (_number(row[name], str(path)) for name in ("startframe", "endframe"))
        found.setdefault(row["video"], []).append((start, end, row["word"]))
    clips, empty = [], np.zeros((0, 6), np.float32)
    for video, words in found.items():
        words.sort(key=lambda word: word[0])
        if twice := [a[0] for a, b in pairwise(words) if a[0] == b[0]]:
            raise UserError(f"{path}: has startframe {twice[0]:g} of {video} twice; leave one out")
        array, glosses = tracks.get(video, empty), tuple(word for _, _, word in words)
        cuts = tuple(int(a[1] + b[0]) // 2 for a, b in pairwise(words))
        clips.append(Clip(video, glosses, len(array), "", folder / TRACKS, cuts, array))
    return clips


def _either(*places: Path) -> Path:
    "The first of these that exists, else the first."
    return next((path for path in places if path.exists()), places[0])


def _find(folder: Path, name: str, *kinds: str) -> Path:
    "A file or folder of a split, of one of these kinds; dev may also be called val."
    return _either(*(folder / kind.format(x) for x in (PARTS[name], name) for kind in kinds))


def has_val(folder: Path) -> bool:
    "Whether a data set has a validation split of its own."
    return _find(folder, "val", *_LABELS, _WORDS).is_file()


def _read_labels(path: Path) -> list[tuple[str, str, tuple[str, ...]]]:
    "Name, signer and glosses of each clip in a table of CE-CSL; UserError for another separator."
    rows = _rows(path, ("Number", "Translator", "Gloss"))
    sign = re.compile(r"(?<=\S)[\s,，;；|／\\、]+(?=\S)")  # separates glosses, but is no slash
    other = [found for r in rows if "/" not in r["Gloss"] and (found := sign.search(r["Gloss"]))]
    if 2 * len(other) > len(rows):
        what = f"glosses are separated by {other[0][0]!r}, as in {other[0].string[:60]!r}"
        raise UserError(f"{path}: {what}; write / between them")
    spelt = Counter(map(normalise, {x.strip() for r in rows for x in r["Gloss"].split("/")}))
    joined = {k: n for k, n in spelt.items() if n > 1 and k.lower() != k.upper()}  # not Chinese
    if joined and path.stem == "train":
        what = f"{sum(joined.values())} spellings are read as {len(joined)}, such as {min(joined)}"
        why = "brackets and a final digit are notes, as in CE-CSL; write letters where they matter"
        warnings.warn(f"{path}: {what}: {why}", stacklevel=2)
    return [(r["Number"], r["Translator"], tuple(split_glosses(r["Gloss"]))) for r in rows]


def _filmed(folder: Path, name: str) -> list[Clip]:
    "The clips of a split that has videos or folders of images."
    top = _find(folder, name, "video/{}", "{}")
    suffixes = ("", *VIDEOS, *(suffix.upper() for suffix in VIDEOS))
    clips, labels = [], _read_labels(_find(folder, name, *_LABELS))
    times = Counter(number for number, *_ in labels)
    for number, signer, glosses in labels:
        path = _either(*(top / signer / f"{number}{suffix}" for suffix in suffixes))
        frames = count_frames(path) if path.exists() else 0
        label = number if times[number] == 1 else f"{signer}/{number}"
        clips.append(Clip(label, glosses, frames, signer, path))
    return clips


def kind_of(folder: Path) -> str:  # "tracks" or "video"
    "What a data set holds; UserError for another folder."
    expect_folder(folder)
    if (folder / TRACKS).is_file():
        return "tracks"
    if any(_find(folder, name, *_LABELS).is_file() for name in ("train", "test")):
        return "video"
    raise UserError(f"{folder}: has neither label/train.csv with video/ beside it, nor {TRACKS}")


# %% [markdown]
# ## Clips that cannot be learnt
#
# A clip without a readable video, without a gloss, or with fewer steps than its glosses need cannot be learnt. The published code hides the last kind (`zero_infinity`). The network has one step for four frames. CTC needs a step for each gloss, and one more between two equal ones: `A A B` needs 4. So two equal glosses in 4 frames are refused. We look for such clips before training. If there are any, the run stops with their number and the first three names; with `on_bad_image=skip` all are counted and left out.

# %%
#| export
def needed_frames(glosses: Sequence[str]) -> int:
    "The fewest frames from which these glosses can be read."
    return 4 * (least_frames(glosses) - 1) + 1


def _why_not(clip: Clip) -> str:  # empty: it can be learnt
    "Why a clip cannot be learnt."
    if not clip.glosses or not all(clip.glosses):
        return "an empty gloss"
    if not clip.frames:
        why = "is missing, empty or damaged" if clip.array is None else "has no row of it"
        return f"no video ({clip.path} {why})"
    if any(a >= b for a, b in pairwise((0, *clip.cuts, clip.frames))):
        return f"startframe and endframe overlap, or are not within its {clip.frames} frames"
    if clip.frames < (least := needed_frames(clip.glosses)):
        return f"{clip.frames} frames, and its {len(clip.glosses)} glosses need {least}"
    return ""


def _usable(name: str, source: str, clips: Sequence[Clip], size: int, skip: bool) -> Clips:
    "The clips that can be learnt; UserError if others are there, unless they are skipped."
    kept = tuple(clip for clip in clips if not _why_not(clip))
    if twice := [k for k, n in Counter(clip.name for clip in kept).items() if n > 1]:
        raise UserError(f"{source}, {name}: {twice[0]} is there twice; leave one out")
    bad = [f"{clip.name}: {why}" for clip in clips if (why := _why_not(clip))]
    if bad:
        first = "; ".join(bad[:3])
        found = f"{source}, {name}: {len(bad)} of {counted(len(clips), 'clip')} cannot be used"
        if not skip or not kept:
            raise UserError(f"{found}: {first}; repair them, or use --on-bad-image skip")
        warnings.warn(f"{found} and are left out: {first}", stacklevel=2)
    if not kept:
        raise UserError(f"{source}: its split {name} has no clips")
    return Clips(name, source, kept, size)


# %% [markdown]
# ## Simulated signing
#
# A sign of the simulation is a path for each hand, through four random points. A sentence joins the paths of its glosses by transitions of three to five frames. Every signer has a position and a speed, and every hand trembles.

# %%
#| export
SIDE = 24  # of a simulated frame


def _sign_sentence(
    signs: Sequence[int], alphabet: np.ndarray, rng: np.random.Generator, signer: int
) -> tuple[np.ndarray, tuple[int, ...]]:  # [T,6] float32: left, right, nose; x and y in pixels
    "The tracks of signs of the alphabet [signs,hand,point,xy], and the frames between them."
    own = np.random.default_rng([104, signer])
    place, speed = own.normal(0, 1, 2), own.uniform(0.85, 1.15)
    hands, cuts = list[np.ndarray](), list[int]()
    for sign in signs:
        count = max(4, round(rng.integers(10, 15) * speed))
        t = np.linspace(0, 3, count)
        columns = np.concatenate(alphabet[sign], 1).T  # x and y of both hands
        frames = np.stack([np.interp(t, range(4), points) for points in columns], 1)  # [count,4]
        if hands:
            steps = np.linspace(0, 1, int(rng.integers(3, 6)) + 2)[1:-1, None]
            cuts.append(sum(map(len, hands)) + len(steps) // 2)
            hands.append(hands[-1][-1] * (1 - steps) + frames[0] * steps)
        hands.append(frames)
    tracks = np.concatenate(hands)
    tracks = tracks + np.tile(place, 2) + rng.normal(0, 0.25, tracks.shape)
    nose = np.broadcast_to(np.array([SIDE / 2, SIDE / 4]) + place, (len(tracks), 2))
    return np.concatenate([tracks, nose], 1).astype(np.float32), tuple(cuts)


def _draw_hands(tracks: np.ndarray, rng: np.random.Generator) -> np.ndarray:  # [T,24,24,3] uint8
    "Frames of simulated tracks: two blobs in noise."
    at = np.arange(SIDE)
    frames = rng.normal(0.1, 0.1, (len(tracks), SIDE, SIDE))
    for hand, brightness in ((tracks[:, 0:2], 1.0), (tracks[:, 2:4], 0.7)):
        x, y = (np.exp(-((at - hand[:, axis, None]) ** 2) / 4) for axis in (0, 1))
        frames += brightness * y[:, :, None] * x[:, None]
    return np.repeat((255 * (frames / 1.3).clip(0, 1)).astype(np.uint8)[..., None], 3, 3)


def simulated_clips(
    name: str,  # "train", "val" or "test"
    count: int,  # clips
    signs: int,  # glosses of the language
    seed: int,
    video: bool,  # images, not tracks
) -> Clips:
    "Simulate a split of a data set, in memory."
    rng = np.random.default_rng([seed, list(PARTS).index(name)])
    words = [f"SIGN-{chr(65 + i // 26)}{chr(65 + i % 26)}" for i in range(signs)]
    sentences = [rng.choice(words, rng.integers(2, 6)).tolist() for _ in range(count)]
    points = (len(words), 2, 4, 2)  # four for each hand; the same in every data set
    alphabet, clips = np.random.default_rng(104).uniform(5, SIDE - 5, points), []
    for i, glosses in enumerate(sentences):
        signer = int(rng.integers(12))
        array, cuts = _sign_sentence([words.index(g) for g in glosses], alphabet, rng, signer)
        array = _draw_hands(array, rng) if video else array
        label, who = f"{PARTS[name]}-{i + 1:05d}", "ABCDEFGHIJKL"[signer]
        clips.append(Clip(label, tuple(glosses), len(array), who, cuts=cuts, array=array))
    return Clips(name, "simulated signing", tuple(clips), SIDE if video else 0)


# %% [markdown]
# ## The machinery: videos
#
# CE-CSL comes as mp4 files or, as its authors prepare it, as folders with a jpg for each frame. The page on [frames](../23_frames.ipynb) reads both: it turns images upright, stretches 16 bits to 8, and reports a video that breaks off. Every image is resized to a square. PyAV decodes videos (`pip install av`).

# %%
#| export
VIDEOS: tuple[str, ...] = resolve("mshnet.frames:VIDEOS")
_IMAGES = (".jpg", ".jpeg", ".png")


def _image_files(folder: Path) -> list[Path]:
    "The images of a folder, 2.jpg before 10.jpg; no hidden files."
    there = [p for p in folder.iterdir() if p.suffix.lower() in _IMAGES and p.name[0] != "."]
    return sorted(there, key=lambda p: (re.sub(r"\d+", lambda n: n[0].zfill(20), p.stem), p.name))


def _parts_of(path: Path) -> list[Path]:
    "Files that represent a clip: a video, or three of its images."
    files = _image_files(path) if path.is_dir() else [path]
    return [files[0], files[len(files) // 2], files[-1]] if len(files) > 1 else files


def read_video(path: Path, size: int) -> np.ndarray:  # [T,size,size,3] uint8
    "All frames of a video or a folder of images; UserError if one cannot be read."
    frames_of, found = resolve("mshnet.frames:frames_of"), []
    frames = map(next, map(frames_of, _image_files(path))) if path.is_dir() else frames_of(path)
    for frame in frames:
        if frame.error:
            raise UserError(f"{frame.file}: {frame.error}")
        image = Image.fromarray(frame.pixels).convert("RGB")
        found.append(np.asarray(image.resize((size, size), Image.Resampling.BILINEAR)))
    if not found:
        raise UserError(f"{path}: has no frames")
    return np.stack(found)


def count_frames(path: Path) -> int:  # 0: the video is damaged
    "The number of frames, without decoding them: images of a folder, or those of a video."
    if path.is_dir():
        return len(_image_files(path))
    try:
        import av
    except ImportError:
        raise UserError("videos need the package av; run: pip install av") from None
    try:
        with av.open(str(path.absolute())) as video:
            stream = video.streams.video[0]
            count = stream.frames or round((video.duration or 0) / 1e6 * (stream.average_rate or 0))
            return count or sum(packet.size > 0 for packet in video.demux(stream))
    except (EOFError, ValueError, IndexError):  # also PyAV's InvalidDataError
        return 0
    except OSError as error:  # the disk's fault, or a permission
        raise UserError(f"{path}: cannot be read ({reason(error)})") from None


# %% [markdown]
# ## The machinery: the data of a run
#
# A run without a data set simulates its splits; `mshnet data --write` writes them. `load_clips` loads the splits that a run needs. If a data set has no validation split, a fraction of its training sentences is held out.

# %%
#| export
def _simulated(name: str, config: Any, seed: int, video: bool) -> Clips:
    "A split by these settings; val and test have a fifth of the training sentences."
    count = config.sentences if name == "train" else max(config.sentences // 5, 4)
    return simulated_clips(name, count, config.signs, seed, video)


def write_clips(folder: Path, part: Clips) -> None:
    "Write a split in the layout of CE-CSL: a table of labels, a folder of jpg for each clip."
    name, rows = PARTS[part.name], [["Number", "Translator", "Chinese Sentences", "Gloss", "Note"]]
    for i, clip in enumerate(part.clips):
        rows.append([clip.name, clip.signer, "", "/".join(clip.glosses), "simulated"])
        target = folder / "video" / name / clip.signer / clip.name
        target.mkdir(parents=True, exist_ok=True)
        for number, frame in enumerate(part.read(i)):
            Image.fromarray(frame).save(target / f"{number:05d}.jpg", quality=95)
    make_folder(folder / "label")
    write_table(folder / "label" / f"{name}.csv", rows)


def write_simulation(folder: Path, config: Any) -> None:
    "Write simulated videos, all three splits; UserError if the folder holds something else."
    names = ("dataset_dir", "sentences", "signs", "seed")
    claim(folder, "clips.json", {"simulated clips": {n: getattr(config, n) for n in names}})
    for name in PARTS:
        write_clips(folder, _simulated(name, config, config.seed, video=True))


def _with_known(parts: dict[str, Clips], config: Any) -> dict[str, Clips]:
    "The splits, each with the sentences of the training list, as far as it can be read."
    folder, tracked = Path(config.dataset_dir).expanduser(), config.network == "tracks"
    path, found = _find(folder, "train", *((_WORDS,) if tracked else _LABELS)), list[Any]()
    with warnings.catch_warnings(action="ignore"), contextlib.suppress(UserError):  # told elsewhere
        if not config.dataset_dir:
            found = [*_simulated("train", config, 0, video=False).sentences]
        elif path.is_file() and tracked:
            found = [clip.glosses for clip in _tracked(folder, "train")]
        elif path.is_file():
            found = [glosses for *_, glosses in _read_labels(path)]
    return {k: replace(part, known=frozenset(found)) for k, part in parts.items()}


def load_clips(config: Any, names: Sequence[str]) -> dict[str, Clips]:
    "The splits of a run, of train, val and test; UserError if a clip cannot be used."
    wanted = "tracks" if config.network == "tracks" else "video"
    if not config.dataset_dir:
        if wanted == "video" and config.crop > SIDE:
            todo = "pass --dataset-dir, or use --preset quick"
            raise UserError(f"crop={config.crop}: simulated frames have a side of {SIDE}; {todo}")
        parts = {name: _simulated(name, config, 0, wanted == "video") for name in names}
        return _with_known(parts, config)
    folder = Path(config.dataset_dir).expanduser()
    if (kind := kind_of(folder)) != wanted:
        what, use = ("hand tracks", "tracks") if kind == "tracks" else ("videos", "quick or paper")
        why = f"network={config.network} cannot read the {what} of {folder}"
        raise UserError(f"{why}: use --preset {use}; weights keep their network")
    source, skip = folder.resolve().name, config.on_bad_image == "skip"
    size, read = (0, _tracked) if kind == "tracks" else (config.frame_size, _filmed)
    there = [name for name in names if name != "val" or has_val(folder)]
    found = {name: _usable(name, source, read(folder, name), size, skip) for name in there}
    Task.warn_of_copies({k: {c.name: c.path for c in part.clips} for k, part in found.items()})
    if "val" in names and "val" not in found:
        whole = found["train"].clips
        order = np.random.default_rng(config.seed).permutation(len(whole))
        cut = max(1, min(round(config.val_fraction * len(whole)), len(whole) - 1))
        for name, rows in (("val", order[:cut]), ("train", order[cut:])):
            found[name] = Clips(name, source, tuple(whole[i] for i in sorted(rows)), size)
    return _with_known(found, config)

# %% [markdown]
# ## Questions
#
# 1. A clip has 17 frames and the glosses A A B B. Can it be learnt?
#    <details><summary>Answer</summary>No. Each gloss needs a step, and so do the blanks between the two A and between the two B. Six steps need at least 4 * (6 - 1) + 1 = 21 frames.</details>
# 2. SIGN-AK occurs twice in the figure. What is the same both times, and what differs?
#    <details><summary>Answer</summary>The path of each hand is the same. The number of frames and the trembling are random, and the transition after the sign leads to a different sign.</details>
