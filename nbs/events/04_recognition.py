# %% [markdown]
# # Recognition as a task
#
# > Event cameras as a task of the training loop: splits, batches, scores with their uncertainty, and recordings to classes.
#
# Recognition names the class of a recording, here one of ten digits. The network gets the [bins](00_recordings.ipynb) of the recording in order, counts of events [T,2,34,34]. After each bin it returns a logit for each class, [T,10], from all bins so far. The largest logit after the last bin is the answer, and training compares the logits after the last bin with the true class (cross-entropy).
#
# The class `Events` of this page states this problem for the [training loop](../37_train.ipynb): splits, batches, network, loss and scores. Here is the loop in short, with a small network and 300 simulated recordings:

# %%
import matplotlib.pyplot as plt
import torch

from mshnet.core import configure
from mshnet.events.recognition import Events

task = Events(configure({"task": "events", "preset": "quick", "recordings": 300}))
splits, model = task.splits(), task.model()
optimizer = task.optimizer(model)
for epoch in range(task.config.epochs):
    for rows in task.plan(splits["train"], epoch):
        batch = task.batch(splits["train"], rows, epoch)
        loss = task.loss(model, batch, "full")  # "full": the only phase here
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print("a batch:", list(batch.frames.shape), "its labels:", batch.label.tolist())

# %% [markdown]
# Now the trained network reads ten recordings of the test split, the digits 0 to 9. The figure shows the 5: its 15 bins (red: brighter, blue: darker), and the probability of each class after each bin (classes 1, 5 and 9 in colour; `evidence` has the logits). After three bins all ten answers are 1. Only the answer after the last bin is trained, and three bins (60 ms) show only a part of the first of three movements.

# %%
batch = task.batch(splits["test"], list(range(10)), None)  # None: no augmentation
with torch.no_grad():
    logits = task.predict(model.eval(), batch, "full")["evidence"]  # [10,15,10]
for bins in (3, 15):
    print(f"answers after {bins} bins:", logits[:, bins - 1].argmax(1).tolist())
counts = batch.frames[5].int()  # [15,2,34,34]
strip = torch.cat([*(counts[:, 1] - counts[:, 0])], 1)
figure, (above, below) = plt.subplots(2, 1, sharex=True, figsize=(11, 4), height_ratios=(1, 3))
above.imshow(strip, extent=(0, 300, 20, 0), cmap="RdBu_r", vmin=-3, vmax=3)
above.set(title="the bins of one recording", yticks=[])
below.plot(range(20, 301, 20), logits[5].softmax(1), color="0.8")
for k, mark in zip((1, 5, 9), "osD", strict=True):
    below.plot(range(20, 301, 20), logits[5].softmax(1)[:, k], f"{mark}-", label=f"class {k}")
below.set(xlabel="time, ms", ylabel="probability")
below.legend();

# %%
#| export
#| default_exp events.recognition
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mshnet.core import UserError, as_user_error, counted, resolve
from mshnet.device import Device, make_optimizer, open_device
from mshnet.events.events_config import EventsConfig, milliseconds
from mshnet.events.networks import MambaSpike
from mshnet.events.recordings import (
    SUFFIXES,
    Counting,
    Frames,
    find_recordings,
    frames_of,
    hold_out,
    read_frames,
    read_recording,
)
from mshnet.events.simulator import simulate
from mshnet.files import find_inputs, write_arrays, write_table
from mshnet.places import run_folder
from mshnet.task import (
    Evaluation,
    Origin,
    RowTally,
    Task,
    Values,
    Written,
    predict_each,
    predictions_folder,
    read_each,
    trained_task,
    wilson,
)


# %% [markdown]
# ## The task
#
# A batch has the counts of its recordings as bytes; they become floats on the device. In training each recording is moved by a few pixels at random, and rotated, stretched, slanted and bent a little (`warp`); the figure after the class shows it. Digits are not mirrored, because a mirrored 2 is not a digit, nor turned upside down, because a 6 would be a 9.
#
# Weight decay pulls weights to zero. This harms two parameters of a Mamba block. With `A_log` = 0 all states of a channel forget equally fast. With `D` = 0 a channel loses the direct path from its input to its output. The published code marks both, but its optimizer ignores the marks. Ours puts them into a group without decay.

# %%
#| export
class EventBatch(NamedTuple):
    "Counts of events and their classes."

    frames: Tensor  # [B,T,P,H,W] uint8
    label: Tensor  # [B] int64
    row: Tensor  # [B] index of the sample; -1: padding


def _augment(frames: np.ndarray, rng: np.random.Generator, shift: int, warp: float) -> np.ndarray:
    "Frames [T,P,H,W] shifted by whole pixels and warped smoothly at random, by nearest pixel."
    height, width = size = frames.shape[-2:]
    offset = rng.integers(-shift, shift + 1, 2)
    matrix = np.eye(2) + rng.uniform(-warp, warp, (2, 2))
    bend = rng.normal(0, warp * height / 7, (2, 5, 5))  # pixels, at 5x5 places
    if width == 1:  # sound has one column, which stays
        offset[1], matrix[1], bend[1] = 0, (0, 1), 0
    centre = np.array([height - 1, width - 1])[:, None, None] / 2
    smooth = F.interpolate(torch.tensor(bend)[None], size, mode="bilinear", align_corners=True)
    target = np.indices((height, width)) - centre + smooth[0].numpy()
    source = np.tensordot(matrix, target, 1) + centre - offset[:, None, None]
    y, x = np.rint(source).astype(int)  # from where each pixel takes its counts
    inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
    return frames[..., y.clip(0, height - 1), x.clip(0, width - 1)] * inside


class Events(Task):
    "Recordings of an event camera and their classes."

    better = ("accuracy", 1)

    def splits(self, names: Sequence[str] = ("train", "test")) -> dict[str, Frames]:
        "The splits of a folder, or of a simulation; val where the epoch is chosen on it."
        with torch.device("meta"):
            self._network()  # impossible sizes are reported before anything is read
        held_out = ["val"] if self.config.choose == "val" and "train" in names else []
        return load_recordings(self.config, [*names, *held_out])

    def batch(self, data: Frames, rows: list[int], epoch: int | None) -> EventBatch:
        "The frames of these recordings; moved at random in training."
        c, frames = self.config, [data.frames(max(row, 0)) for row in rows]
        if epoch is not None and (c.shift or c.warp):
            pairs = zip(frames, rows, strict=True)
            frames = [_augment(x, self.rng(row, epoch), c.shift, c.warp) for x, row in pairs]
        labels = torch.tensor([data.labels[max(row, 0)] for row in rows])
        return EventBatch(torch.from_numpy(np.stack(frames)), labels, torch.tensor(rows))

    def model(self) -> nn.Module:
        "The network of the settings, with random weights by the seed."
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self.config.seed)
            return self._network()

    def _network(self) -> nn.Module:
        "The network; UserError for sizes that do not fit each other."
        c = self.config
        sizes = (c.width, c.features, c.d_model, c.layers, c.beta, c.rate_window, c.pool, c.slope)
        with as_user_error():
            return MambaSpike(c.sensor.shape, len(c.sensor.classes), *sizes)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        "The optimizer of the settings, without weight decay for A_log and D."
        c, ends, named = self.config, (".A_log", ".D"), list(model.named_parameters())
        decay = {"params": [w for name, w in named if not name.endswith(ends)], "lr": c.lr}
        free = {"params": [w for name, w in named if name.endswith(ends)], "lr": c.lr}
        return make_optimizer(c.optimizer, [decay, free | {"weight_decay": 0.0}], c.weight_decay)

    def loss(self, model: Any, batch: EventBatch, phase: str) -> Tensor:
        "Mean cross-entropy."
        return F.cross_entropy(model(batch.frames.float()).float(), batch.label)

    def predict(self, model: Any, batch: EventBatch, phase: str) -> dict[str, Tensor]:
        "Logits [B,T,classes] after each bin; spikes and spike rates of each layer [B,3]."
        seen = model.look(batch.frames.float())
        spikes = torch.stack([s.flatten(1).float().sum(1) for s in seen.spikes], 1)
        rates = torch.stack([s.flatten(1).float().mean(1) for s in seen.spikes], 1)
        return {"evidence": seen.evidence.float(), "spikes": spikes, "rates": rates}

    def tally(self) -> "EventTally":
        return EventTally()

    def evaluate(
        self, model: nn.Module, data: Any, device: Device, phase: str, origin: Origin
    ) -> Evaluation:
        "The final scores with the confusion of classes; UserError for other inputs, classes, bins."
        with torch.device("meta"):
            nets = self._network(), model
            shapes = [[getattr(net, "fixed", 0), *map(np.shape, net.parameters())] for net in nets]
        if shapes[0] != shapes[1]:
            why = "these weights were trained on another data set, with another network, dt or tau"
            raise UserError(f"dataset={self.config.dataset}: {why}; use the settings of the run")
        found = super().evaluate(model, data, device, phase, origin)
        answers, names = found.scores.details, self.config.sensor.classes
        table = np.zeros((len(names), len(names)), int)  # rows: true classes
        np.add.at(table, (*answers.values(),), 1)
        return replace(found, details={"confusion": table.tolist(), "names": names, **answers})

    def protocol(self, data: Frames, scores: Any) -> dict[str, Any]:
        "The task, how many recordings, and how they were counted."
        c, facts = self.config, super().protocol(data, scores)
        if filtered := milliseconds(c.denoise):
            facts["denoise_ms"] = filtered
        return facts | {"dataset": c.dataset, "bin_ms": c.bin_ms, "window_ms": c.window_ms}

    def describe_data(self) -> tuple[str, bool]:
        "The splits, with the number of recordings of each class."
        lines, names = [], self.config.sensor.classes
        for data in self.splits().values():
            counts = zip(names, np.bincount(data.labels, minlength=len(names)), strict=True)
            classes = ", ".join(f"{name} {count}" for name, count in counts)
            held = counted(len(data), "recording")
            lines.append(f"{data.name}: {held} of {data.source} ({classes})")
        return "\n".join(lines), True

    def predict_files(self, weights: str, inputs: list[str], **how: Any) -> Written:
        return _predict_recordings(weights, inputs, self.config, **how)

    def report(self, folder: Path) -> None:
        resolve("mshnet.events.pictures:draw_answers")(folder, self.config)


# %%
seen: list[EventBatch] = [task.batch(splits["train"], [5], e) for e in (None, 0, 1, 2, 3, 4)]
plt.figure(figsize=(9, 1.9)).gca().axis("off")
plt.imshow(torch.cat([batch.frames[0].sum((0, 1)) for batch in seen], 1), cmap="gray", vmax=16)
plt.title("a training recording, summed over time: as it is, and in epochs 0 to 4", size=9);


# %% [markdown]
# ## Scores
#
# If 95 of 100 recordings are right, the true accuracy is between 0.89 and 0.98 with 95% confidence. Wilson's interval gives these bounds for any count, also for 100 of 100. On a neuromorphic chip each spike costs energy. So we report their mean number in a recording, and for each layer the fraction of neurons that spike in a bin.

# %%
#| export
class EventScores(Values):
    "Accuracy with its interval, loss, spikes; `details`: the labels and the answers."

    line = "accuracy {accuracy:.3f}  ({accuracy_low:.3f} to {accuracy_high:.3f} of {samples} "
    line += "recordings; {spikes:.0f} spikes each)"


class EventTally(RowTally):
    "Answer, loss and spikes of each recording."

    def count(self, found: dict[str, Tensor], batch: EventBatch) -> Iterable[list[float]]:
        "Label, answer, loss, spikes and spike rates of each recording."
        logits = found["evidence"][:, -1]
        losses = F.cross_entropy(logits, batch.label, reduction="none")
        columns = [batch.label[:, None], logits.argmax(1, keepdim=True), losses[:, None]]
        return torch.cat([*columns, found["spikes"], found["rates"]], 1).double().tolist()

    def scores(self) -> EventScores:
        "Accuracy, loss, spikes."
        table = np.array(self.values)
        label, answer = table[:, :2].astype(int).T
        loss, *layers = table[:, 2:].mean(0).tolist()  # spikes of three layers, then their rates
        right, count = int((label == answer).sum()), len(table)
        low, high = wilson(right, count)
        scores = EventScores(accuracy=right / count, accuracy_low=low, accuracy_high=high)
        scores |= {"samples": count, "loss": loss, "spikes": sum(layers[:3])}
        scores |= {f"spike_rate_{i}": rate for i, rate in enumerate(layers[3:], 1)}
        scores.details = {"labels": label.tolist(), "predicted": answer.tolist()}
        return scores


# %% [markdown]
# The trained network on the first ten recordings of the test split, and on all 200: the interval of ten is wide. Then the spike rates of the three layers, and the confusion matrix (rows: true classes, columns: answers):

# %%
tally = EventTally()
tally.add(task.predict(model, batch, "full"), batch)
print(tally.scores())
cpu = open_device("cpu", "fp32")
evaluation = task.evaluate(model, splits["test"], cpu, "full", Origin("none"))
scores: EventScores = evaluation.scores
print(scores, *(f"{scores[f'spike_rate_{i}']:.3f}" for i in (1, 2, 3)))
print(np.array(evaluation.details["confusion"]))


# %% [markdown]
# ## The machinery: splits
#
# A run needs recordings for training and others for the scores. By default the last epoch is kept. With `choose=val` the epoch is selected on a third split, `val`: that of the data set or else a fraction of each class of the training split. The test split is not used for this.

# %%
#| export
def _counting(c: EventsConfig) -> Counting:
    "How these settings make frames of events."
    return Counting(c.sensor.shape, c.bin_ms, c.steps, milliseconds(c.denoise))


def load_recordings(config: EventsConfig, names: Sequence[str]) -> dict[str, Frames]:
    "The splits of a run with these names (train, val, test): from its folder, else simulated."
    c, found = config, dict[str, Frames]()
    wanted = dict.fromkeys("train" if name == "val" else name for name in names)
    if c.dataset_dir:
        folder, cache = Path(c.dataset_dir).expanduser(), run_folder(c).parent / "frames_cache"
        entries, source = find_recordings(folder, c.dataset), folder.resolve().name
        wanted = dict.fromkeys(names) if "val" in entries else wanted
        if missing := [name for name in wanted if name not in entries]:
            raise UserError(f"{folder}: has no recordings in {missing[0]}/CLASS; put some there")
        names_of = {k: {"/".join(e.path.parts[-2:]): e.path for e in entries[k]} for k in wanted}
        Task.warn_of_copies(names_of)
        for name in wanted:
            found[name] = read_frames(name, source, entries[name], _counting(c), cache)
    elif c.dataset != "nmnist":
        todo = "use its folder (N-MNIST alone is simulated)"
        raise UserError(f"dataset={c.dataset} needs dataset_dir: {todo}")
    else:
        for name in wanted:
            count, seed = (c.recordings, c.seed) if name == "train" else (200, 2**31 + 1)
            made, labels = simulate(count, seed, c.noise), [i % 10 for i in range(count)]
            found[name] = frames_of(name, made, labels, _counting(c), "simulated N-MNIST")
    if "val" in names and "val" not in found:
        whole = found["train"]
        held = hold_out(whole.labels, config.val_fraction, config.seed)
        found["train"] = whole.part("train", np.flatnonzero(~held).tolist())
        found["val"] = whole.part("val", np.flatnonzero(held).tolist())
    return {name: found[name] for name in names}


# %%
for name, data in load_recordings(task.config, ["train", "val", "test"]).items():
    print(name, len(data), "recordings")


# %% [markdown]
# ## Recordings to classes
#
# `mshnet predict` reads recordings in any of the formats. It writes a table (`recordings.csv`) and the probability of each class after each bin (`evidence.npz`). A figure of this probability, for the first twenty recordings, shows when the prediction no longer changes.

# %%
#| export
def _as_frames(some: Sequence[tuple[Any, np.ndarray]]) -> Frames:
    "Recordings without classes as a split; each comes with its row of the table."
    counts, at = np.stack([frames for _, frames in some]), np.arange(len(some))
    return Frames("predict", "files", counts, at, [0] * len(at), [""] * len(at), "")


def _answer(curve: Tensor, config: EventsConfig) -> dict[str, Any]:  # [T,classes] probability
    "The class of a recording, its probability, and since when it is the most probable one."
    best = int(curve[-1].argmax())
    since = max([i for i, answer in enumerate(curve.argmax(1)) if answer != best], default=-1) + 1
    sure, when = round(float(curve[-1, best]), 6), (since + 1) * config.bin_ms
    return {"class": config.sensor.classes[best], "probability": sure, "decided_ms": when}


def _predict_recordings(
    weights: str | Path,  # a file, or a run
    inputs: Sequence[str | Path],  # recordings, folders of them, globs
    usual: EventsConfig,  # for weights that record no settings
    output_dir: str | Path = "",  # empty: predictions/ and the name of the weights
    device: str = "auto",
    precision: str = "auto",
    batch_size: int = 32,  # no result depends on it
) -> Written:
    "Recognise recordings, and write recordings.csv and evidence.npz."
    deep = [f"{p}/**" if p and Path(p).expanduser().is_dir() else p for p in inputs]
    files = find_inputs(deep, SUFFIXES)
    task, model = trained_task(weights, usual)

    def read(file: Path) -> tuple[dict[str, Any], np.ndarray]:
        recording = read_recording(file, task.config.sensor.shape)
        last = float(recording.t[-1]) / 1000
        row = {"file": file.as_posix(), "events": len(recording), "ms": last}
        return row, _counting(task.config).frames(recording)

    on = open_device(device, precision)
    rows, curves, model = list[dict[str, Any]](), list[Tensor](), on.to_device(model)
    how = read_each(files, read), _as_frames, on, batch_size, batch_size  # read as computed
    with predictions_folder(weights, output_dir, "events") as folder:
        try:
            for (row, _), found in predict_each(task, model, *how):
                curves.append(found["evidence"].softmax(-1))
                row |= _answer(curves[-1], task.config) | {"spikes": int(found["spikes"].sum())}
                rows.append(row)
        finally:
            if rows:
                _write_answers(folder, rows, torch.stack(curves[: len(rows)]), task.config)
    return Written(folder, counted(len(rows), "recording"), len(files) - len(rows))


def _write_answers(
    folder: Path, rows: list[dict[str, Any]], curves: Tensor, config: EventsConfig
) -> None:
    "Write the table, the curves, and figures of the first."
    write_table(folder / "recordings.csv", [rows[0], *(row.values() for row in rows)])
    arrays = {"files": np.array([row["file"] for row in rows]), "probability": curves.numpy()}
    arrays |= {"classes": np.array(config.sensor.classes), "bin_ms": np.array(config.bin_ms)}
    write_arrays(folder / "evidence.npz", **arrays)
    draw = resolve("mshnet.events.pictures:draw_evidence")
    for i, (row, curve) in enumerate(zip(rows[:20], curves, strict=False)):
        figure = draw(curve.log(), config.sensor.classes, config.bin_ms)
        resolve("mshnet.show:save_picture")(figure, folder / f"{i:02}_{Path(row['file']).stem}.png")

# %% [markdown]
# ## Questions
#
# 1. A mirrored 6 is not a digit, so digits are not mirrored in training. May recordings of DVS128 Gesture be mirrored?
#    <details><summary>Answer</summary>Only if their labels change with them: a mirrored right_hand_wave is a left_hand_wave, and clockwise becomes counter-clockwise.</details>
# 2. `A_log` of each channel starts at the logarithms of 1 to 16. What would strong weight decay make of them, and of the rates of decay?
#    <details><summary>Answer</summary>All would approach 0, and all rates <code>A = -exp(A_log)</code> would approach -1 instead of -1 to -16. The 16 states of a channel would then forget equally fast.</details>
