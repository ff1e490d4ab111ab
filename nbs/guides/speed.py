# %% [markdown]
# # How fast, and how much memory
#
# > What was measured, on which machine, and how to measure yours.
#
# Each number on this page was measured. Its `bench.json` is in a folder of `results/`, with every turn, the machine, the versions and the settings, and the table names the folder. The same tables are in [results/SPEED.md](../../results/SPEED.md), for reading without running anything. `make build` writes that page, and `make check` complains when it no longer agrees with the benches. **A device that is not here was not measured**, and we estimate none: `mshnet bench` measures one in minutes, before it is rented for a day.

# %%
from pathlib import Path

from IPython.display import Markdown

pages = (Path("../results/SPEED.md"), Path("results/SPEED.md"))
page = next((path.read_text(encoding="utf-8") for path in pages if path.exists()), "")
section = dict(part.split("\n", 1) for part in page.split("\n## ")[1:])
away = "The tables are in the repository, in results/SPEED.md."

# %% [markdown]
# ## Machines
#
# The name of the device includes the precision. *Data* are the images that were there; a bench takes some of them.

# %%
Markdown(section.get("Machines", away))

# %% [markdown]
# ## Speed
#
# Training is whole steps: reading, augmenting, copying, forward, loss, backward, update. *Data alone* is the reading and augmenting in it. Scoring is the forward pass and all scores, *with curves* also those at two dozen thresholds; with *noisy* weights the network reports thousands of objects, as at the beginning of a training. The *plain script* is [one in the manner of most published ones](../../results/baseline/plain.py), in float32, measured in the same process turn by turn, after both were shown to give equal losses and counts. *Of the limit* is what the device could do at best, by its own measured arithmetic and memory, as a part of the time taken.

# %%
Markdown(section.get("Speed", away))

# %% [markdown]
# A ratio is the gain of this library on that machine. On a different machine it is different.
#
# ## Start and memory
#
# Memory and the time to the first step, imports included, were measured once each, in a new process. On a CPU it is the process's memory, Python and torch included (some 500 MiB before the first step); on a GPU it is what torch has allocated there.

# %%
Markdown(section.get("Start and memory", away))

# %% [markdown]
# ## Hours and cost
#
# The paper trains for 400 epochs on crops of 256x256. The default recipe trains for 200 on crops of 128x128. On one CPU thread an epoch of its training took a third (NUDT-SIRST) to over a half (NUAA-SIRST) of the time that one of the paper's recipe took. Scoring after each epoch comes on top; `--eval-every 200` scores once. The times per image above give the hours for the data sets that people use. This is a projection of some measured steps, not a run of 400 epochs.

# %%
Markdown(section.get("400 epochs", away))

# %% [markdown]
# The cost is hours times rate. The price of an hour depends on the place, the contract and the day. The library has no prices; `mshnet bench --rate 1.2` prints the cost at yours. Twice the rate is worth paying for more than twice the speed.

# %% [markdown]
# ## What can be set
#
# The defaults suit most runs. Change a setting only for the reason in the last column.
#
# | setting | what it does | when to touch it |
# |---|---|---|
# | `--precision` | `auto`: bf16 where the chip computes it itself, fp16 with a scaled loss on NVIDIA's generation 7 (T4, V100), else fp32 | `fp32` for the arithmetic of the paper's code |
# | `--cache` | where the pixels lie: `device`, `host` (memory), `stream` (files). `auto`: the device if it is a GPU or TPU with four times the room, else memory if half of what is free is enough, else the files | `host` to have the official augmentation to the last pixel on a GPU |
# | `--compile` | `torch.compile` for the training step. `auto`: on one NVIDIA GPU of generation 7 or later. **Not measured on a GPU.** On a CPU it took minutes and was no faster | `off` if the first step takes too long for a short run, or the compiler fails |
# | `--num-workers` | threads that prepare batches; by default none on a CPU, whose cores all compute, elsewhere by the number of cores, at most 8 | if `mshnet bench` shows that data take a large part of a step |
# | `--deterministic` | only operations that repeat to the last bit on one type of machine, with one version of torch and one number of threads (`OMP_NUM_THREADS`) | to compare two changes, to hunt a fault |
# | `--batch-size`, `--lr` | a larger batch uses a fast device better. Four times the batch takes twice the learning rate | `mshnet bench --largest-batch` tries what fits. A larger batch is another recipe, and its scores are other scores |
# | `--profile DIR` | a trace of three steps for ui.perfetto.dev, and a table of the operations that took longest | to see where the time goes |
#
# A checkpoint is copied on the device and written by a thread while the next epoch trains; nothing needs to be set for it.

# %% [markdown]
# ## Measure your own
#
# ```bash
# mshnet bench --baseline --dataset-dir data/NUAA-SIRST --output-dir results/bench-mine
# ```
#
# This takes some minutes and writes the folder. In a checkout `make build` then puts it into the tables of `results/SPEED.md`. Without `--baseline` the plain script is left out; an installed library does not contain it, so there `--baseline PATH` takes a copy. The precision that was measured is that of the run, so `--precision fp32` is another bench and needs another folder. The table can be printed again from the file:
#
# ```python
# import json
#
# from mshnet.bench import table
#
# print(table(json.load(open("results/bench-mine/bench.json"))))
# ```

# %%
#| hide
assert not page or list(section) == ["Machines", "Speed", "Start and memory", "400 epochs"]
