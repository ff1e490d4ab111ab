# %% [markdown]
# # Reading files
#
# > Glosses for videos and hand tracks, the probability of each over time, and the figures of a run.

# %%
#| default_exp signs.reading

# %%
#| hide
import tempfile

# %%
#| export
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from mshnet.core import configure, read_record, resolve
from mshnet.device import open_device
from mshnet.files import find_inputs, make_folder, write_table
from mshnet.signs.clips import TRACKS, VIDEOS, Clip, Clips, count_frames, load_clips, read_tracks
from mshnet.signs.glosses import corpus_errors
from mshnet.signs.networks import out_lengths
from mshnet.signs.signing import Signs
from mshnet.signs.signs_config import SignsConfig
from mshnet.task import Written, predict_each, predictions_folder, read_each, trained_task

# %% [markdown]
# ## When was it signed?
#
# CTC has no times: the network may report a gloss at any step. For a table and a figure we place each gloss that was read at a step. The steps must be in order, and the product of the probabilities there is to be as large as possible. That is a search over beginnings of the sentence, step by step.

# %%
#| export
FRAMES = 4  # of a step


def place_glosses(log_probs: np.ndarray, numbers: Sequence[int]) -> list[int]:
    "The steps, in order, at which these glosses are most probable together."
    best, back = np.zeros(len(log_probs)), []
    for number in numbers:
        here = best + log_probs[:, number]
        to = np.maximum.accumulate(here)
        back.append(np.array([int(here[: t + 1].argmax()) for t in range(len(here))]))
        best = np.concatenate([[-np.inf], to[:-1]])
    steps, t = list[int](), len(log_probs) - 1
    for places in reversed(back):
        steps.append(int(places[t]))
        t = max(steps[-1] - 1, 0)
    return steps[::-1]


# %%
probs = np.array([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.2, 0.1, 0.7], [0.1, 0.6, 0.3]])
place_glosses(np.log(probs), [1, 2, 1])


# %% [markdown]
# ## Files
#
# `mshnet predict --task signs` takes videos, folders of images, tables of hand tracks, and folders of these. It writes a table of all glosses, and for each clip a figure with the probability of every gloss that was read.

# %%
#| export
def _read_clips(path: Path, side: int) -> Iterator[Clip]:
    "The clips in a file or a folder of pictures, with their frames."
    if side:
        frames = Clips("predict", "files", (Clip(path.stem, (), 0, path=path),), side).read(0)
        yield Clip(path.stem, (), len(frames), array=frames)
        return
    tracks = read_tracks(path)
    for name, frames in tracks.items():
        yield Clip(name if len(tracks) > 1 else path.stem, (), len(frames), array=frames)


def _find_files(inputs: Sequence[str], video: bool) -> list[Path]:
    "The files and folders that hold clips; UserError if there are none."
    if video:
        return find_inputs(inputs, VIDEOS, whole=lambda folder: count_frames(folder) > 0)
    tables = find_inputs(inputs, (".csv",))  # in a data set only the one of the tracks
    return [p for p in tables if p.name == TRACKS or not (p.parent / TRACKS).is_file()]


def read_files(
    weights: str | Path,  # a file, or a run
    inputs: Sequence[str],  # videos, folders of jpg, tables of hand tracks, globs
    output_dir: str | Path = "",  # empty: predictions/ and the name of the weights
    device: str = "auto",
    precision: str = "auto",
    batch_size: int = 1,  # no result depends on it
    num_workers: int = -1,
    **options: Any,  # decoder, beam_width, bigram_weight
) -> Written:
    "Read glosses from files; write signs.csv, and a picture of each clip."
    configure({"task": "signs", **options})  # UserError for a value that is impossible
    changed = {**options, "num_workers": num_workers, "buckets": 0}
    task, model = trained_task(weights, SignsConfig(), **changed)
    folder, on = predictions_folder(weights, output_dir, "signs"), open_device(device, precision)
    side = 0 if task.config.network == "tracks" else task.config.frame_size
    files = _find_files(inputs, side > 0)
    task.know(model)
    rows, lines, names, read = [["clip", "gloss", "frame", "probability"]], [], Counter[str](), 0
    model = on.to_device(model)
    for clips in read_each(files, lambda file: list(_read_clips(file, side))):
        read += 1
        make_folder(folder)
        how = clips, lambda some: Clips("predict", "files", tuple(some), side), on, 1
        for clip, log_probs in predict_each(task, model, *how):
            names[clip.name] += 1
            name = clip.name if names[clip.name] == 1 else f"{clip.name}-{names[clip.name]}"
            values = log_probs[: -(-min(clip.frames, task.config.max_frames) // FRAMES)].numpy()
            found = _write_clip(folder, name, clip.array, values, task)
            lines.append(f"{name}: {' '.join(row[1] for row in found) or '(nothing)'}")
            rows += found
    write_table(folder / "signs.csv", rows)
    lines.sort(key=lambda line: line.split(": ")[0])
    if len(lines) > 10:
        lines[10:] = [f"... {len(lines) - 10} more in signs.csv"]
    return Written(folder, "\n".join(lines), len(files) - read)


def _write_clip(
    folder: Path, name: str, frames: Any, log_probs: np.ndarray, task: Signs
) -> list[list[str]]:
    "Draw the probabilities of a clip; return its rows of the table."
    numbers, probability = task.read(log_probs), np.exp(log_probs)
    at = first_frames(len(log_probs), len(frames), task.config.max_frames)
    figure = Figure(figsize=(8, 3), layout="constrained")
    draw_clip(figure, frames, log_probs, numbers, task, name)
    resolve("mshnet.show:save_picture")(figure, folder / f"{name}.png")
    words = task.vocabulary.decode(numbers)
    read = zip(place_glosses(log_probs, numbers), numbers, words, strict=True)
    return [[name, word, str(at[i]), f"{probability[i, n]:.4f}"] for i, n, word in read]


# %% [markdown]
# A step reads four frames. The network reads at most `max_frames` frames of a clip, evenly spaced, so a step of a longer clip stands for more of them.

# %%
#| export
def first_frames(steps: int, frames: int, most: int) -> np.ndarray:  # [steps] int
    "The frame at which each step begins, of a clip of so many frames, of which `most` are read."
    stretch = max((frames - 1) / max(min(frames, most) - 1, 1), 1)
    return (FRAMES * stretch * np.arange(steps)).round().astype(int)


# %%
first_frames(5, frames=600, most=300)


# %% [markdown]
# ## A ribbon of probabilities
#
# Above, the glosses that were read, each with a line of its probability; below, what the network saw: the heights of both hands, or every few frames of the video.

# %%
#| export
def draw_clip(
    figure: Any,  # or a part of one
    frames: np.ndarray,  # [T,S,S,3] or [T,6]
    log_probs: np.ndarray,  # [T',C]
    numbers: Sequence[int],  # of the glosses that were read
    task: Signs,
    title: str,
) -> None:
    "Draw the probabilities of a clip over its hands or its pictures."
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    count = len(frames)
    at = first_frames(len(log_probs), count, task.config.max_frames) + FRAMES / 2
    colors = itertools.cycle(resolve("mshnet.show:COLORS"))
    for number, color in zip(dict.fromkeys(numbers), colors, strict=False):
        probs = np.exp(log_probs[:, number])
        above.fill_between(at, probs, color=color, alpha=0.35)
        above.plot(at, probs, color=color, lw=1)
    steps = place_glosses(log_probs, numbers)
    for i, (step, word) in enumerate(zip(steps, task.vocabulary.decode(numbers), strict=True)):
        above.text(at[step], 1.06 + 0.17 * (i % 2), word, ha="center", size=7)
    above.plot(at, np.exp(log_probs[:, 0]), color="0.6", lw=0.8, ls=":")
    above.set(ylim=(0, 1.4), yticks=(0, 1), ylabel="probability", xlim=(0, count))
    above.set_title(title, size=8)
    if frames.ndim == 2:
        for name, column, line in (("left", 1, "-"), ("right", 3, "--")):
            below.plot(-frames[:, column], color="k", ls=line, lw=1, label=f"{name} hand")
        below.set(yticks=(), ylabel="height")
        below.legend(fontsize=6, loc="upper right")
    else:
        shown = np.linspace(0, count - 1, min(count, 16)).round().astype(int)
        strip = np.concatenate(frames[shown], 1)
        below.imshow(strip, extent=(0, count, 0, 1), aspect="auto")
        below.set(yticks=())
    below.set_xlabel("frame")


# %% [markdown]
# ## The figures of a run
#
# The gallery shows test clips from the best to the worst at even steps, so it cannot flatter. `details.json` has the alignment of every sentence.

# %%
#| export
def draw_sentences(
    weights: str | Path,  # the folder of a run that is finished
    folder: Path,  # in which the pictures are written
    config: Any,
    most: int = 5,
) -> None:
    "Draw gallery.png."
    sentences = read_record(Path(weights) / "details.json").get("sentences", [])
    if not sentences:
        return
    wers = {s["name"]: corpus_errors([(s["truth"], s["read"])]).wer for s in sentences}
    task, model = trained_task(weights, SignsConfig(), buckets=0)
    data = load_clips(config, ["test"])["test"]
    task.take_words(model, data)
    order = sorted(range(len(data)), key=lambda i: wers[data.names[i]])
    rows = [order[i] for i in np.linspace(0, len(order) - 1, min(most, len(order))).astype(int)]
    sheet = Figure(figsize=(9, 2.6 * len(rows)), layout="constrained")
    for row, part in zip(rows, sheet.subfigures(len(rows), 1, squeeze=False)[:, 0], strict=True):
        batch = task.batch(data, [row], None)
        with torch.no_grad():
            log_probs = task.predict(model.eval(), batch, "full")[0]
        values, title = log_probs[: int(out_lengths(batch.frames)[0])].numpy(), data.names[row]
        title = f"{title}, ground truth: {' '.join(data.sentences[row])}"
        draw_clip(part, data.read(row), values, task.read(values), task, title)
    resolve("mshnet.show:save_picture")(sheet, folder / "gallery.png")


# %% [markdown]
# A network that was not trained reads nonsense, but all files are there:

# %%
few = {"task": "signs", "network": "tracks", "preset": "", "device": "cpu", "hidden": 32}
config = configure({**few, "epochs": 1, "sentences": 16, "batch_size": 8, "decoder": "greedy"})
task = Signs(config)
parts, model = task.splits(), task.model()
tracks, glosses = parts["test"].read(0), parts["test"].sentences[0]
record = {"config": config.model_dump(), "phase": "full", "epoch": 0, "data": {}}
record |= {"best": {"epoch": 0, "name": None}, "model": model.state_dict()}
head = "left-x,left-y,right-x,right-y,nose-x,nose-y"
with tempfile.TemporaryDirectory() as tmp:
    torch.save(record, f"{tmp}/mine.pt")
    np.savetxt(f"{tmp}/one.csv", tracks, delimiter=",", header=head, comments="")
    written: Written = read_files(f"{tmp}/mine.pt", [f"{tmp}/one.csv"], f"{tmp}/out", "cpu")
    print(written, sorted(file.name for file in written.folder.iterdir()), sep="\n")

# %% [markdown]
# A figure of probabilities as a trained network has them, here made by hand from the truth:

# %%
task.know(model)
numbers = task.vocabulary.encode(glosses)
sharp = np.full((-(-len(tracks) // 4), len(task.vocabulary) + 1), 0.01)
for i, number in enumerate(numbers):
    at = (np.arange(len(sharp)) - (i + 0.5) * len(sharp) / len(numbers)) / 1.2
    sharp[:, number] = np.maximum(sharp[:, number], np.exp(-(at**2)))
sharp[:, 0] = 1.01 - sharp[:, 1:].max(1)
figure = Figure(figsize=(8, 3), layout="constrained")
shown = np.log(sharp / sharp.sum(1, keepdims=True))
draw_clip(figure, tracks, shown, numbers, task, "made by hand")
figure
