# %% [markdown]
# # How fast, and how much memory
#
# > What was measured, on which machine, and how to measure yours.
#
# Each number on this page was measured by `mshnet bench`. Its `bench.json` is in a folder of `results/`, with every turn, the machine, the versions and the settings. **A device that is not here was not measured**, and we estimate none: a bench takes minutes, before a device is rented for a day.
#
# Training is whole steps: reading, augmenting, copying, forward, loss, backward, update. *Data alone* is the reading, augmenting and copying in it. Scoring is the forward pass and all scores. The peak of memory is that of a training in a new process: on a GPU what torch has allocated there, on a CPU all of the process, Python and torch included (some 500 MiB before the first step).

# %%
import json
from pathlib import Path

from mshnet.bench import table

places = (Path("../results"), Path("results"))
files = sorted(file for place in places for file in place.glob("*/bench.json"))
for file in files:
    print(f"{file.parent.name}\n\n{table(json.loads(file.read_text()))}\n")

# %% [markdown]
# ## Hours and cost
#
# An epoch trains all training images and scores the test list, or as often as `--eval-every` says: multiply the times above by their numbers, and by the epochs. The paper trains for 400 epochs on crops of 256x256. The default recipe trains for 200 on crops of 128x128. On one CPU thread an epoch of its training took a third (NUDT-SIRST) to over a half (NUAA-SIRST) of the time that one of the paper's recipe took. `--eval-every 200` scores once.
#
# The cost is hours times rate. The price of an hour depends on the place, the contract and the day. Twice the rate is worth paying for more than twice the speed.
#
# ## Beside a plain script
#
# [Results](results.ipynb) has the times of [a plain PyTorch script](../../results/baseline/plain.py) on the same machine, and [beside.py](../../results/baseline/beside.py) measures both on yours, in turns, after a check that both compute the same. In a clone:
#
# ```bash
# python3 results/baseline/beside.py --dataset-dir data/NUAA-SIRST
# ```

# %% [markdown]
# ## What can be set
#
# The defaults suit most runs. Change a setting only for the reason in the last column.
#
# | setting | what it does | when to touch it |
# |---|---|---|
# | `--precision` | `auto`: bf16 where the chip computes it itself, fp16 with a scaled loss on NVIDIA's generation 7 (T4, V100), else fp32 | `fp32` for the arithmetic of the paper's code |
# | `--cache` | where decoded pixels lie: `host` (memory) or `stream` (files). `auto`: memory if half of what is free is enough, else the files | `stream` beside programs that need the memory |
# | `--compile` | `torch.compile` for the training step. On a CPU it took minutes and was no faster. On an H200 with torch 2.11 the loss was NaN after one step in bf16, so it is `off` | `on` to try it with your torch; look at the first losses |
# | `--num-workers` | threads that prepare batches; by default none on a CPU, whose cores all compute, elsewhere by the number of cores, at most 8 | if `mshnet bench` shows that data take a large part of a step |
# | `--deterministic` | only operations that repeat to the last bit on one type of machine, with one version of torch and one number of threads (`OMP_NUM_THREADS`) | to compare two changes, to hunt a fault |
# | `--batch-size`, `--lr` | a larger batch uses a fast device better. Four times the batch takes twice the learning rate | `mshnet bench --largest-batch` tries what fits. A larger batch is another recipe, and its scores are other scores |
#
# A checkpoint is copied on the device and written by a thread while the next epoch trains; nothing needs to be set for it.

# %% [markdown]
# ## Measure your own
#
# ```bash
# mshnet bench --dataset-dir data/NUAA-SIRST --preset paper --precision auto --output-dir results/bench-mine
# ```
#
# This takes some minutes and writes the folder, which the table above then shows in a checkout. It measures the recipe that the settings name: without `--preset paper` that is the default one. The precision that was measured is that of the run, so `--precision fp32` is another bench and needs another folder. The table can be printed again from the file:
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
assert all(json.loads(file.read_text())["rows"] for file in files)
