# %% [markdown]
# # Figures of recordings
#
# > The figures of a run: spike rasters, class probability over time, and confusions.
#
# An accuracy such as 0.95 does not show when the network decides, or whether its neurons work. The figures of this page do. They are drawn after a run into `figures/`; `mshnet predict` draws the class probabilities of a recording. Here we train the small network of the [page before](04_recognition.ipynb) again, and look at it while it reads the same recording: a 5, in 15 bins of 20 ms (from left to right, 0 to 300 ms; red: brighter, blue: darker).

# %%
#| export
#| default_exp events.pictures
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from mshnet.core import read_record, resolve
from mshnet.events.events_config import EventsConfig
from mshnet.events.networks import Seen
from mshnet.task import trained_task

# %%
import matplotlib.pyplot as plt

from mshnet.core import configure
from mshnet.device import open_device
from mshnet.events.recognition import Events
from mshnet.task import Origin

task = Events(configure({"task": "events", "preset": "quick", "recordings": 300}))
splits, model = task.splits(), task.model()
optimizer = task.optimizer(model)
for epoch in range(task.config.epochs):
    for rows in task.plan(splits["train"], epoch):
        loss = task.loss(model, task.batch(splits["train"], rows, epoch), "full")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
frames = torch.from_numpy(splits["test"].frames(5).astype(np.float32))
seen = model.requires_grad_(False).eval().look(frames[None])
plt.figure(figsize=(9, 0.8), layout="constrained").gca().axis("off")
plt.imshow(torch.cat([*(frames[:, 1] - frames[:, 0])], 1), cmap="RdBu_r", vmin=-3, vmax=3);


# %% [markdown]
# ## A raster of spikes
#
# A raster has one row for each neuron, one column for each bin, and a black cell for each spike. We show those that spike most. A black layer is saturated, an empty one is inactive; neither carries information. The spike rate above each layer is the fraction of all its neurons and bins with a spike. Here no layer is saturated or inactive. Layer 2 begins to spike in the second bin and layer 3 in the third: their membranes must charge first.

# %%
#| export
def draw_raster(
    frames: Tensor,  # [T,P,H,W] counts of events
    seen: Seen,  # of one recording
    bin_ms: float,
) -> Figure:
    "Events in each bin, and the spikes of the most active neurons of each layer."
    figure = Figure(figsize=(8, 7), layout="constrained")
    axes = figure.subplots(4, 1, sharex=True, height_ratios=[1, 2, 2, 2])
    times = np.arange(len(frames)) * bin_ms
    axes[0].bar(times, frames.sum((1, 2, 3)).numpy(), width=bin_ms, align="edge", color="#0072B2")
    axes[0].set(ylabel="events")
    for i, (axis, spikes) in enumerate(zip(axes[1:], seen.spikes, strict=True), 1):
        rows = spikes[0].flatten(1).T  # [neurons,T]
        busiest = rows.sum(1).argsort(descending=True, stable=True)[:80].sort().values
        extent = (0, len(frames) * bin_ms, len(busiest), 0)
        how = {"cmap": "Greys", "vmax": 1, "aspect": "auto", "interpolation": "nearest"}
        axis.imshow(rows[busiest].numpy(), extent=extent, **how)
        axis.set(ylabel=f"neurons of layer {i}")
        rate = f"spike rate of all {100 * rows.mean():.2f}%"
        axis.set_title(f"the busiest {len(busiest)} of {len(rows):,} neurons; {rate}", size=9)
    axes[-1].set(xlabel="time, ms", xlim=(0, len(frames) * bin_ms))
    return figure


# %%
draw_raster(frames, seen, task.config.bin_ms)


# %% [markdown]
# ## Class probability over time
#
# At each time we draw the probabilities for the recording up to this time. If the curves of most recordings reach their final values early, shorter recordings may be enough. If the leading class changes, look at the events at that time. Here the answer is 1 at first, as for every recording; it changes to 5 at 180 ms, in the second of three movements.

# %%
#| export
def draw_evidence(
    evidence: Tensor,  # [T,classes] logits
    names: Sequence[str],  # of the classes
    bin_ms: float,
    truth: str = "",  # name of the true class, if known
    on: Any = None,  # axes of a larger figure; None: a new figure
) -> Any:  # the figure
    "Probability of each class over time; names: the five strongest, those that lead, the true one."
    axis = on or Figure(figsize=(7, 3.2), layout="constrained").subplots()
    share = evidence.softmax(1).numpy()
    times = (np.arange(len(share)) + 1) * bin_ms
    order = np.argsort(-share[-1], kind="stable").tolist()
    axis.plot(times, share, color="0.8", linewidth=1)
    shown = [i for i in order if i in order[:5] or i in share.argmax(1) or names[i] == truth]
    for i, color in zip(shown, cycle(resolve("mshnet.show:COLORS")), strict=False):
        true = names[i] == truth
        label = f"{names[i]} (true)" if true else names[i]
        axis.plot(times, share[:, i], color=color, linewidth=2.5 if true else 1.5, label=label)
    axis.set(xlabel="time, ms", ylabel="probability", ylim=(-0.02, 1.02), xlim=(0, times[-1]))
    axis.set_title(f"answer: {names[order[0]]} ({share[-1, order[0]]:.2f})", size=10)
    axis.legend(fontsize=8, frameon=False)
    return axis.figure


# %%
draw_evidence(seen.evidence[0], task.config.sensor.classes, task.config.bin_ms, truth="5")


# %% [markdown]
# ## Confusions
#
# Rows are the true classes and columns the predicted ones. Here, in the test split, three 6 are predicted as 4, and two 8 as 5: these look alike to the network. A full column would be a class that the network predicts when it is uncertain.

# %%
#| export
def draw_confusion(confusion: Sequence[Sequence[int]], names: Sequence[str]) -> Figure:
    "The counts [truth][answer] of recordings; dark: a large fraction of the class."
    counts, side = np.asarray(confusion), 2.5 + 0.38 * len(names)
    figure = Figure(figsize=(side, side), layout="constrained")
    axis = figure.subplots()
    axis.imshow(counts / counts.sum(1, keepdims=True).clip(1), cmap="Blues", vmin=0, vmax=2)
    axis.set_xticks(range(len(names)), names, rotation=90)
    axis.set_yticks(range(len(names)), names)
    axis.set(xlabel="answer", ylabel="ground truth")
    for row, column in np.argwhere(counts):
        axis.text(column, row, counts[row, column], ha="center", va="center", size=9)
    axis.set_title(f"{np.trace(counts)} of {counts.sum()} right", size=10)
    return figure


# %%
result = task.evaluate(model, splits["test"], open_device("cpu", "fp32"), "full", Origin("none"))
draw_confusion(result.details["confusion"], task.config.sensor.classes)


# %% [markdown]
# ## The figures of a run
#
# After a run we draw three recordings of the test list, one of them wrong if there is one: `NAME-raster.png`. `gallery.png` has their events and class probabilities, and `confusion.png` is of the whole list.

# %%
#| export
def draw_answers(run: Path, config: EventsConfig) -> None:
    "Draw three recordings of the test list, and the confusions, into figures/ of a finished run."
    own = {"dataset_dir": config.dataset_dir, "output_dir": str(run), "resume": ""}
    task, model = trained_task(run, config, **own)
    save, folder = resolve("mshnet.show:save_picture"), run / "figures"
    names = config.sensor.classes
    details, data = read_record(run / "details.json"), task.splits(["test"])["test"]
    if details:
        save(draw_confusion(details["confusion"], names), folder / "confusion.png")
    wrong = np.flatnonzero(np.array(details.get("predicted", data.labels)) != data.labels).tolist()
    first = [data.labels.index(label) for label in dict.fromkeys(data.labels)]  # of each class
    rows = list(dict.fromkeys([*wrong[:1], *first]))[:3]
    sheet = Figure(figsize=(8, 2.8 * len(rows)), layout="constrained")
    places = sheet.subplots(len(rows), 2, squeeze=False, width_ratios=[1, 2.4])
    for row, (left, right) in zip(rows, places, strict=True):
        frames = torch.from_numpy(data.frames(row).astype(np.float32))
        with torch.no_grad():
            seen = model.eval().look(frames[None])
        name = data.names[row].replace("/", "-")  # the file alone may be one of two of this name
        save(draw_raster(frames, seen, config.bin_ms), folder / f"{name}-raster.png")
        early = frames[len(frames) // 3 :][:5].sum(0)  # while something moves
        title = f"{Path(data.names[row]).stem}, five bins".encode(errors="replace").decode()
        still, draw = (early[-1] - early[:-1].sum(0)).numpy(), resolve("mshnet.show:draw_panel")
        draw(left, still, title, cmap="RdBu_r", vmin=-5, vmax=5)
        draw_evidence(seen.evidence[0], names, config.bin_ms, names[data.labels[row]], right)
    save(sheet, folder / "gallery.png")

# %% [markdown]
# ## Questions
#
# 1. A spike rate of 2% stands above a raster that is half black. How can both be true?
#    <details><summary>Answer</summary>The raster shows the 80 neurons that spike most, the rate counts all. In a layer of 4,624 neurons these 80 add only 0.9% to the rate, and the others hardly spike.</details>
# 2. Why do the curves of the class probability change quickly at first, and slowly later?
#    <details><summary>Answer</summary>The network takes the mean over all bins so far. The second bin has half of the weight in it, the thirtieth a thirtieth.</details>
