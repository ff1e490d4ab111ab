# %% [markdown]
# # reading
#
# > Glosses for videos and hand tracks, the probability of each over time, and the pictures of a run.

# %%
#| default_exp signs.reading

# %%
#| hide
import tempfile

from fastcore.test import expect_fail, test_eq

from mshnet.core import configure

# %%
#| export
import itertools
import warnings
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from mshnet.core import UserError, counted, read_record, resolve
from mshnet.device import open_device
from mshnet.files import find_inputs, make_folder, write_table
from mshnet.signs.clips import TRACKS, VIDEOS, Clip, Clips, count_frames, load_clips, read_tracks
from mshnet.signs.glosses import align, corpus_errors
from mshnet.signs.networks import out_lengths
from mshnet.signs.signing import Signs, expect_glosses
from mshnet.signs.signs_config import SignsConfig
from mshnet.task import predictions, trained_task

# %% [markdown]
# ## When was it signed?
#
# CTC has no times: the network may report a gloss at any step. For a table and a picture we place each gloss that was read at a step. The steps must be in order, and the product of the probabilities there is to be as large as possible. That is a search over beginnings of the sentence, step by step.

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
test_eq(place_glosses(np.log(probs), [1, 2, 1]), [1, 2, 3])
test_eq(place_glosses(np.log(probs), []), [])


# %% [markdown]
# ## Files
#
# `mshnet predict --task signs` takes videos, folders of pictures, tables of hand tracks, and folders of these. It writes a table of all glosses, and for each clip a picture and a table with the probability of every gloss that was read, step by step. What cannot be read is reported, skipped and counted. Of two clips of one name the second one gets a number.

# %%
#| export
@dataclass(frozen=True)
class SignSummary:
    "What a prediction wrote."

    folder: Path
    sentences: dict[str, list[str]]  # glosses by the name of the clip
    skipped: int = 0  # clips and files that cannot be read

    @property
    def status(self) -> int:
        "The status of the command: 1 if something was skipped."
        return 1 if self.skipped else 0

    def __str__(self) -> str:
        "A line for each of the first clips."
        lines = [f"{k}: {' '.join(v) or '(nothing)'}" for k, v in self.sentences.items()]
        more = [f"... {len(lines) - 10} more in signs.csv"] if len(lines) > 10 else []
        skipped = [f"{self.skipped} skipped"] if self.skipped else []
        return "\n".join(lines[:10] + more + skipped)


def _clips_of(path: Path, video: bool) -> list[Clip]:
    "The clips in a file, or in a folder of pictures."
    if path.suffix.lower() == ".csv" and not video:
        tracks = read_tracks(path)
        names = {k: k if len(tracks) > 1 else path.stem for k in tracks}
        return [Clip(names[k], (), len(x), array=x) for k, x in tracks.items()]
    return [Clip(path.stem, (), count_frames(path), path=path)]


def _find_clips(
    inputs: Sequence[str], video: bool, size: int
) -> tuple[Clips, int]:  # and how many files cannot be read
    "The clips of files, folders and globs; UserError if there are none."
    if video:
        files = find_inputs(inputs, VIDEOS, whole=lambda folder: count_frames(folder) > 0)
    else:
        tables = find_inputs(inputs, (".csv",))  # in a data set only the one of the tracks
        files = [p for p in tables if p.name == TRACKS or not (p.parent / TRACKS).is_file()]
    clips, skipped, names = list[Clip](), 0, Counter[str]()
    for file in files:
        try:
            found = _clips_of(file, video)
        except UserError as error:
            if len(files) == 1:
                raise
            warnings.warn(f"left out: {error}", stacklevel=2)
            found, skipped = [], skipped + 1
        for clip in found:
            names[clip.name] += 1
            number = f"-{names[clip.name]}" if names[clip.name] > 1 else ""
            clips.append(replace(clip, name=clip.name + number))
    if not clips:
        raise UserError(f"none of the {counted(len(files), 'file')} can be read")
    return Clips("predict", "files", tuple(clips), size if video else 0), skipped


def _open_weights(weights: str | Path, **changed: Any) -> tuple[Signs, Any]:
    "The task that weights were trained for, and their network, for clips as they are."
    return trained_task(weights, SignsConfig(), **changed, buckets=0, on_bad_image="skip")


def read_files(
    weights: str | Path,  # a file, or a run
    inputs: Sequence[str],  # videos, folders of jpg, tables of hand tracks, globs
    output_dir: str | Path = "",  # empty: predictions/ and the name of the weights
    device: str = "auto",
    precision: str = "auto",
    batch_size: int = 1,  # no result depends on it
    num_workers: int = -1,
    **options: Any,  # decoder, beam_width, bigram_weight
) -> SignSummary:
    "Read glosses from files; write signs.csv, and a picture and a table of each clip."
    task, model = _open_weights(weights, **options, batch_size=1, num_workers=num_workers)
    folder = Path(output_dir or Path("predictions") / (Path(weights).name or "signs"))
    data, skipped = _find_clips(inputs, task.config.network != "tracks", task.config.frame_size)
    on = open_device(device, precision)
    task.vocabulary, task.bigram = model.words()
    expect_glosses(task.vocabulary)
    make_folder(folder)
    rows, found = [["clip", "gloss", "frame", "probability"]], dict[str, list[str]]()
    for log_probs, batch in predictions(task, on.to_device(model), data, on, "full"):
        if batch.row[0] < 0:  # it could not be read
            continue
        name = data.names[int(batch.row[0])]
        values = log_probs[0, : int(out_lengths(batch.frames)[0])].numpy()
        numbers = task.read(values)
        found[name] = task.vocabulary.decode(numbers)
        steps, frames = place_glosses(values, numbers), data.read(int(batch.row[0]))
        at = first_frames(len(values), len(frames), task.config.max_frames)
        for word, step, number in zip(found[name], steps, numbers, strict=True):
            rows.append([name, word, str(at[step]), f"{np.exp(values[step, number]):.4f}"])
        _write_probabilities(folder / f"{name}.csv", at, values, numbers, task)
        figure = Figure(figsize=(8, 3), layout="constrained")
        draw_clip(figure, frames, values, numbers, task, name)
        resolve("mshnet.show:save_picture")(figure, folder / f"{name}.png")
    write_table(folder / "signs.csv", rows)
    return SignSummary(folder, dict(sorted(found.items())), skipped + len(data) - len(found))


# %% [markdown]
# A step reads four frames. The network reads at most `max_frames` frames of a clip, evenly spaced, so a step of a longer clip stands for more of them.

# %%
#| export
def first_frames(
    steps: int,
    frames: int,  # of the clip
    most: int,  # frames that the network reads; of a longer clip it gets as many, evenly
) -> np.ndarray:  # [steps] int
    "The frame of the clip at which each step begins."
    stretch = max((frames - 1) / max(min(frames, most) - 1, 1), 1)
    return (FRAMES * stretch * np.arange(steps)).round().astype(int)


# %%
first_frames(5, frames=600, most=300)


# %%
#| export
def _write_probabilities(
    path: Path, at: np.ndarray, log_probs: np.ndarray, numbers: list[int], task: Signs
) -> None:
    "Write the probability of the blank and of each gloss that was read, for every step."
    shown = [0, *dict.fromkeys(numbers)]
    head = ["frame", "blank", *task.vocabulary.decode(shown[1:])]
    values = np.exp(log_probs[:, shown])
    rows = ([frame, *(f"{p:.4f}" for p in row)] for frame, row in zip(at, values, strict=True))
    write_table(path, [head, *rows])


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
    for i, (step, number) in enumerate(zip(steps, numbers, strict=True)):
        above.text(
            at[step], 1.06 + 0.17 * (i % 2), task.vocabulary.words[number - 1], ha="center", size=7
        )
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
# ## The pictures of a run
#
# The gallery shows test clips from the best to the worst at even steps, so it cannot flatter. The confusions show which gloss was read as which; the last row and the last column are glosses that were invented and missed. And WER by the length of a sentence shows whether long ones are harder.

# %%
#| export
def draw_confusions(pairs: Sequence[tuple[list[str], list[str]]], most: int = 14) -> Figure:
    "The most frequent errors: true glosses (rows) and what was read (columns)."
    table = Counter((true, found) for t, r in pairs for kind, true, found in align(t, r)
                    if kind != "=")  # fmt: skip
    weight = Counter[str]()
    for (true, found), count in table.items():
        weight[true] += count
        weight[found] += count
    names = [*[w for w, _ in weight.most_common() if w][:most], ""]
    values = np.array([[table[a, b] for b in names] for a in names])
    figure = Figure(figsize=(6, 5.4), layout="constrained")
    axis = figure.subplots()
    axis.imshow(values, cmap="Blues", vmin=0)
    for i, j in zip(*np.nonzero(values), strict=True):
        dark = values[i, j] > values.max() / 2
        axis.text(
            j, i, str(values[i, j]), ha="center", va="center", size=7, color="w" if dark else "k"
        )
    axis.set_xticks(range(len(names)), [*names[:-1], "(missed)"], rotation=90, fontsize=7)
    axis.set_yticks(range(len(names)), [*names[:-1], "(invented)"], fontsize=7)
    axis.set(xlabel="was read", ylabel="ground truth", title="confusions of the test part")
    return figure


def draw_lengths(pairs: Sequence[tuple[list[str], list[str]]]) -> Figure:
    "WER by the number of glosses of a sentence, with the number of sentences."
    groups = defaultdict(list)
    for truth, found in pairs:
        groups[len(truth)].append((truth, found))
    figure = Figure(figsize=(6, 2.6), layout="constrained")
    axis = figure.subplots()
    for length, inside in sorted(groups.items()):
        wer = corpus_errors(inside).wer
        axis.bar(length, wer, color="#0072B2")
        axis.text(length, wer, str(len(inside)), ha="center", va="bottom", size=8)
    whole = corpus_errors(pairs).wer
    axis.axhline(whole, color="#D55E00", ls="--", lw=1, label=f"all: {whole:.3f}")
    axis.set_xticks(sorted(groups))
    axis.set(xlabel="glosses of a sentence (above: how many sentences)", ylabel="WER")
    axis.margins(y=0.15)
    axis.legend()
    return figure


def draw_sentences(
    weights: str | Path,  # the folder of a run that is finished
    folder: Path,  # in which the pictures are written
    config: Any,
    most: int = 5,
) -> None:
    "Draw gallery.png, confusions.png and lengths.png."
    sentences = read_record(Path(weights) / "details.json").get("sentences", [])
    if not sentences:
        return
    save = resolve("mshnet.show:save_picture")
    pairs = {s["name"]: (s["truth"], s["read"]) for s in sentences}
    save(draw_confusions(list(pairs.values())), folder / "confusions.png")
    save(draw_lengths(list(pairs.values())), folder / "lengths.png")
    task, model = _open_weights(weights)
    data = load_clips(config, ["test"])["test"]
    task.take_words(model, data)
    scored = [i for i in range(len(data)) if data.names[i] in pairs]  # the others were unreadable
    order = sorted(scored, key=lambda i: corpus_errors([pairs[data.names[i]]]).wer)
    rows = [order[i] for i in np.linspace(0, len(order) - 1, min(most, len(order))).astype(int)]
    sheet = Figure(figsize=(9, 2.6 * len(rows)), layout="constrained")
    for row, part in zip(rows, sheet.subfigures(len(rows), 1, squeeze=False)[:, 0], strict=True):
        batch = task.batch(data, [row], None)
        with torch.no_grad():
            log_probs = task.predict(model.eval(), batch, "full")[0]
        values, title = log_probs[: int(out_lengths(batch.frames)[0])].numpy(), data.names[row]
        title = f"{title}, ground truth: {' '.join(data.sentences[row])}"
        draw_clip(part, data.read(row), values, task.read(values), task, title)
    save(sheet, folder / "gallery.png")


# %% [markdown]
# A network of one epoch reads nothing yet, but all files are there. Weights of hand tracks read tables; a file that is none of these is one line:

# %%
few = {"task": "signs", "network": "tracks", "preset": "", "device": "cpu", "hidden": 32}
config = configure({**few, "epochs": 1, "sentences": 16, "batch_size": 8, "lr": 0.01})
with tempfile.TemporaryDirectory() as tmp:
    task = Signs(config)
    parts = task.splits()
    record = {"config": config.model_dump(), "phase": "full", "epoch": 0, "data": {}}
    record["best"] = {"epoch": 0, "name": None, "score": None}
    torch.save({"model": task.model().state_dict(), **record}, f"{tmp}/mine.pt")
    head = "left-x,left-y,right-x,right-y,nose-x,nose-y"
    np.savetxt(f"{tmp}/one.csv", parts["test"].read(0), delimiter=",", header=head, comments="")
    summary: SignSummary = read_files(f"{tmp}/mine.pt", [f"{tmp}/one.csv"], f"{tmp}/out", "cpu")
    test_eq(list(summary.sentences), ["one"])
    print(sorted(file.name for file in summary.folder.iterdir()))
    with expect_fail(UserError, contains="name files that end in .csv"):
        _find_clips([f"{tmp}/mine.pt"], video=False, size=0)
    task, model = _open_weights(f"{tmp}/mine.pt", decoder="greedy")
    task.take_words(model, parts["test"])

# %% [markdown]
# A picture of probabilities as a trained network has them, here made by hand from the truth:

# %%
tracks, glosses = parts["test"].read(0), parts["test"].sentences[0]
numbers = task.vocabulary.encode(glosses)
sharp = np.full((-(-len(tracks) // 4), len(task.vocabulary) + 1), 0.01)
for i, number in enumerate(numbers):
    at = (np.arange(len(sharp)) - (i + 0.5) * len(sharp) / len(numbers)) / 1.2
    sharp[:, number] = np.maximum(sharp[:, number], np.exp(-(at**2)))
sharp[:, 0] = 1.01 - sharp[:, 1:].max(1)
figure = Figure(figsize=(8, 3), layout="constrained")
draw_clip(
    figure, tracks, np.log(sharp / sharp.sum(1, keepdims=True)), numbers, task, "made by hand"
)
figure

# %% [markdown]
# The other pictures of a run are drawn from what was read, which details.json has. With three sentences and two errors they look like this:

# %%
three = [(["JOHN", "READ", "BOOK"], ["JOHN", "WRITE", "BOOK"]), (["MARY"], ["MARY"])]
three.append((["JOHN", "BUY", "CAR"], ["JOHN", "CAR"]))
draw_lengths(three)

# %%
draw_sentences("runs/none", config=config, folder=None)  # a run without sentences has no pictures
draw_confusions(three)
