# %% [markdown]
# # Reading files
#
# > Glosses for videos and hand tracks, the probability of each over time, and the figures of a run.
#
# A network reads JOHN SEE JOHN. When was each sign made? The network was trained without times, so we find them afterwards. `mshnet predict --task signs` takes videos, folders of images, tables of hand tracks, and folders of these. It writes a table of all glosses with their times, and for each clip a figure with the probability of every gloss.

# %%
#| export
#| default_exp signs.reading
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from mshnet.core import UserError, read_record, resolve
from mshnet.device import open_device
from mshnet.files import find_inputs, write_table
from mshnet.signs.clips import TRACKS, VIDEOS, Clip, Clips, count_frames, read_tracks, read_video
from mshnet.signs.glosses import Vocabulary, corpus_errors
from mshnet.signs.signing import Signs
from mshnet.signs.signs_config import SignsConfig
from mshnet.task import Written, new_png, predict_each, predictions_folder, read_each, trained_task

# %% [markdown]
# ## When was it signed?
#
# CTC has no times: the network may report a gloss at any step. For the table and the figure we assign a step to each gloss. The steps must be in order, and the product of their probabilities must be as large as possible. We find them by dynamic programming, gloss by gloss. Our example has 18 steps, with probabilities made by hand, and the sentence 1 2 1. The first line below has the steps that we find. The second line has the most probable step of each gloss: for gloss 1 it is 14 both times, which cannot be right.

# %%
#| export
FRAMES = 4  # of a step


def place_glosses(log_probs: np.ndarray, numbers: Sequence[int]) -> list[int]:
    "The steps, in order, at which these glosses are most probable together."
    best, back = np.zeros(len(log_probs)), []  # best[t]: log probability of all, before step t
    for number in numbers:
        here = best + log_probs[:, number]
        back.append([int(here[: t + 1].argmax()) for t in range(len(here))])
        best = np.concatenate([[-np.inf], here[back[-1]][:-1]])
    steps, t = list[int](), len(log_probs) - 1
    for places in reversed(back):
        steps.append(places[t])
        t = max(steps[-1] - 1, 0)
    return steps[::-1]


# %%
early, middle, late = np.exp(-((np.arange(18.0) - np.array([[3], [8], [14]])) ** 2))
probs = 0.01 + np.stack([0.7 * early + 0.9 * late, 0.9 * middle], 1)
probs = np.concatenate([1 - probs.sum(1, keepdims=True), probs], 1)
print(place_glosses(np.log(probs), [1, 2, 1]))
print([int(probs[:, number].argmax()) for number in (1, 2, 1)])


# %% [markdown]
# ## Probabilities over time
#
# A figure shows the probability of each gloss that was read, over the frames of the clip. In our example JOHN is read at both of its peaks. The line above the figure has each gloss with its frame and probability. The dotted line is the blank. A step covers four frames: the table has the first of them, the figure shows their middle. The network reads at most `max_frames` frames of a clip, evenly spaced, so a step of a longer clip covers more.

# %%
#| export
def draw_clip(
    axis: Any,
    log_probs: np.ndarray,  # [T',C]
    frames: int,  # of the clip
    task: Signs,
    title: str,
) -> list[tuple[str, int, float]]:
    "Read a clip and draw its probabilities; return each gloss with its frame and probability."
    seen = min(frames, task.config.max_frames)  # of the clip, by the network
    log_probs = log_probs[: -(-seen // FRAMES)]  # padding follows
    probs, numbers = np.exp(log_probs), task.decode(log_probs)
    stretch = (frames - 1) / max(seen - 1, 1)
    at = (FRAMES * max(stretch, 1) * np.arange(len(probs))).round().astype(int)
    colors = itertools.cycle(resolve("mshnet.show:COLORS"))
    for number, color in zip(dict.fromkeys(numbers), colors, strict=False):
        axis.fill_between(at + FRAMES / 2, probs[:, number], color=color, alpha=0.5)
    steps, words = place_glosses(log_probs, numbers), task.vocabulary.decode(numbers)
    for i, (step, word) in enumerate(zip(steps, words, strict=True)):
        height = 1.06 + 0.17 * (i % 2)  # every second one higher, so that words do not overlap
        axis.text(at[step] + FRAMES / 2, height, word, ha="center", size=7, parse_math=False)
    axis.plot(at + FRAMES / 2, probs[:, 0], color="0.6", lw=0.8, ls=":")
    axis.set(ylim=(0, 1.4), yticks=(0, 1), ylabel="probability", xlabel="frame", xlim=(0, frames))
    axis.set_title(title.encode(errors="replace").decode(), size=8, parse_math=False)
    return list(zip(words, at[steps].tolist(), probs[steps, numbers].tolist(), strict=True))


# %%
import matplotlib.pyplot as plt

task = Signs(SignsConfig())
task.vocabulary = Vocabulary(("JOHN", "SEE"))
print(draw_clip(plt.subplots(figsize=(8, 2))[1], np.log(probs), FRAMES * 18, task, "example"))


# %% [markdown]
# ## The machinery: files
#
# The clips of a file are predicted in batches. A second clip of the same name gets a number. A slash in a name is a hyphen in the name of its figure, so that all figures are in one folder.

# %%
#| export
def _read_clips(path: Path, side: int) -> list[Clip]:
    "The clips in a file or a folder of images, with their frames."
    found = {path.stem: read_video(path, side)} if side else read_tracks(path)
    names = [path.stem] if len(found) == 1 else list(found)
    return [Clip(name, (), len(x), array=x) for name, x in zip(names, found.values(), strict=True)]


def _find_clips(inputs: Sequence[str], side: int) -> list[Path]:
    "Videos and folders of images; for side 0 tables, found in a data set only that of its tracks."

    def is_clip(folder: Path) -> bool:  # of more pictures than any folder in it
        own = count_frames(folder) if side else 0
        below = max(map(count_frames, folder.glob("[!.]*/")), default=0) if own else 0
        return own > below and all(x.suffix.lower() not in VIDEOS for x in folder.iterdir())

    files = find_inputs(inputs, VIDEOS if side else (".csv",), whole=is_clip)
    found = {p for p in files if p.name != TRACKS and (p.parent / TRACKS).is_file()}
    return [p for p in files if side or p not in found - {Path(x).expanduser() for x in inputs}]


def read_files(
    weights: str | Path,  # a file, or a run
    inputs: Sequence[str],  # videos, folders of jpg, tables of hand tracks, globs
    output_dir: str | Path = "",  # empty: predictions/ and the name of the weights
    device: str = "auto",
    precision: str = "auto",
    batch_size: int = 1,  # of tables; a video is a batch of its own
    num_workers: int = -1,
    **options: Any,  # decoder, beam_width, bigram_weight
) -> Written:
    "Read glosses from files; write signs.csv, and a figure of each clip."
    changed = {**options, "num_workers": num_workers, "buckets": 0}
    task, model = trained_task(weights, SignsConfig(), **changed)
    side = 0 if task.config.network == "tracks" else task.config.frame_size
    files = _find_clips(inputs, side)
    task.load_vocabulary(model)
    rows, lines, read = [["clip", "gloss", "frame", "probability"]], list[str](), 0
    on = open_device(device, precision)
    model = on.to_device(model)
    with predictions_folder(weights, output_dir, "signs") as folder:
        try:
            for clips in read_each(files, lambda file: _read_clips(file, side)):
                read += 1
                how = clips, lambda x: Clips("predict", "files", tuple(x), side), on, batch_size
                for clip, log_probs in predict_each(task, model, *how):
                    name, file = new_png(folder, clip.name)
                    axis = Figure(figsize=(8, 2.2), layout="constrained").subplots()
                    words = draw_clip(axis, log_probs.numpy(), clip.frames, task, name)
                    resolve("mshnet.show:save_picture")(axis.figure, file)
                    lines.append(f"{name}: {' '.join(word for word, *_ in words) or '(nothing)'}")
                    found = [[name, word, str(frame), f"{p:.4f}"] for word, frame, p in words]
                    rows += found or [[name, "", "", ""]]  # nothing is read
        finally:
            if lines:
                write_table(folder / "signs.csv", rows)
    more = [f"... {len(lines) - 10} more in signs.csv"] if len(lines) > 10 else []
    return Written(folder, "\n".join([*lines[:10], *more]), len(files) - read)


# %% [markdown]
# ## The figures of a run
#
# The gallery shows five test clips at even steps from the best to the worst, so it is not a selection of the best. `details.json` has the alignment of every sentence.

# %%
#| export
def draw_sentences(run: Path, config: SignsConfig) -> None:
    "Draw five test clips of a finished run into figures/gallery.png."
    sentences = read_record(run / "details.json").get("sentences", [])
    if not sentences:
        raise UserError(f"{run}: has no scored sentences; delete scores.json, and train again")
    sentences.sort(key=lambda s: corpus_errors([(s["truth"], s["read"])]).wer)
    task, model = trained_task(run, config, buckets=0, dataset_dir=config.dataset_dir)
    data = task.splits(["test"])["test"]
    task.check_vocabulary(model, data)
    ranks = np.unique(np.linspace(0, len(sentences) - 1, 5).astype(int))
    sheet = Figure(figsize=(9, 2.2 * len(ranks)), layout="constrained")
    for rank, axis in zip(ranks, sheet.subplots(len(ranks), squeeze=False)[:, 0], strict=True):
        row = data.names.index(sentences[rank]["name"])
        batch = task.batch(data, [row], None)
        with torch.no_grad():
            log_probs = task.predict(model.eval(), batch, "full")[0]
        title = f"{data.names[row]}, ground truth: {' '.join(data.sentences[row])}"
        draw_clip(axis, log_probs.numpy(), data.clips[row].frames, task, title)
    resolve("mshnet.show:save_picture")(sheet, run / "figures" / "gallery.png")

# %% [markdown]
# ## Questions
#
# 1. A clip has 1,000 frames, and `max_frames` is 300. How many frames does a step of the figure cover?
#    <details><summary>Answer</summary>300 frames are read, evenly spaced, so each stands for 999 / 299 = 3.3 frames. A step of four of them covers 13.4 frames.</details>
# 2. The blank has a probability near 1 between two glosses. Do the hands rest there?
#    <details><summary>Answer</summary>Not necessarily. The blank stands for "nothing new". CTC needs a gloss in one step only, and the blank may fill the rest of the sign.</details>
