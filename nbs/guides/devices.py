# %% [markdown]
# # Devices, speed, memory
#
# > For somebody who must choose a machine or tune a run. At the end you know which device to use, what was measured on it, and which settings change speed and memory.

# %% [markdown]
# Begin with what you have: a run that began on one device can resume on another (except one in float16 on a TPU or an Apple chip). `mshnet train` finds the device by itself. Flags in the table are added to `mshnet train data/NUAA-SIRST`:
#
# | you have | do this | tested? |
# |---|---|---|
# | only a browser | [Colab and Kaggle](cloud.ipynb) | only on a CPU |
# | a CPU, for a trial | [the first run](first_run.ipynb), on synthetic scenes | yes, on 2 cores |
# | a CPU core and ten minutes | add `--crop native --batch-size 16 --lr 0.002 --epochs 60 --eval-every 60` | yes: test IoU 0.69 to 0.70 ([results](results.ipynb)) |
# | a CPU core and 40 minutes | add `--eval-every 200` (200 epochs) | yes, but the time is estimated from the fastest epochs, 11 to 13 s; whole runs beside other programs took 94 to 170 minutes |
# | two CPU cores and 3 to 4 hours | add `--preset paper --precision auto` (400 epochs of the paper's recipe) | no: projected from measured steps, 3 h 14 min |
# | an NVIDIA GPU | add nothing, or `--preset a100` for batches of 16 | on one H200; no time was measured |
# | two or more NVIDIA GPUs | add `--num-devices 2` for two: each batch is split across them | only with processes on a CPU |
# | an Apple chip (M1 and later) | add nothing: its GPU is used, in float32 | no |
# | a TPU | [the TPU page](tpu.ipynb): all chips, batches of 16 or more | only with XLA's CPU runtime |
#
# The times are in bf16, on an AMD EPYC with 2 cores that supports it natively. "A CPU core" means one thread on it. A CPU without native bf16 is slower.
#
# Before you pay:
#
# - On a **P100** this library computes in float32, on a **T4** in float16. Recent builds of PyTorch may not support a P100; the doctor's line `accelerator` reports that. If Kaggle offers both, choose the T4s.
# - A **TPU** is the slowest to start: XLA compiles the programs before the first step.
# - A fast GPU may be limited by the CPU that prepares its batches. Measure before you rent the largest.
#
# ## What does this machine have?
#
# ```bash
# mshnet doctor
# mshnet doctor --device cuda
# ```
#
# The doctor reports the device, its precision, the free memory, the disk, the versions, and any problem with them.
#
# ## How fast is it?
#
# ```bash
# mshnet bench data/NUAA-SIRST
# ```
#
# This takes a minute or two. It measures training and evaluation with your settings, on a sample of the data set. Add `--preset paper` or `--precision fp32` to measure those. Memory is measured for the batch and for one four times as large. The result is stored in `runs/bench`. In a clone, `--output-dir results/bench-mine` adds your machine to the output below.
#
# | row | meaning |
# |---|---|
# | `train` | whole training steps: read, augment, copy, forward, loss, backward, update |
# | `data alone` | the part of a training step that reads, augments and copies |
# | `score` | the forward pass and all scores |
# | `peak memory` | of training in a new process: on a GPU, what PyTorch allocated; on a CPU, the whole process (some 500 MiB before the first step) |
#
# Devices that are not listed below were not measured.

# %%
import json
from pathlib import Path

from mshnet.bench import table

places = (Path("../results"), Path("results"), Path("../../results"))
files = sorted(file for place in places for file in place.glob("*/bench.json"))
for file in files:
    print(f"{file.parent.name}\n\n{table(json.loads(file.read_text()))}\n")

# %% [markdown]
# The run `bench-cpu` held out a fifth of the 213 training images for validation, so it has 170.
#
# [The first run](first_run.ipynb) shows how to compute the hours of a run from these times. An epoch of the default recipe (crops of 128x128) is faster than one of the paper's recipe (crops of 256x256): on one CPU thread its fastest epochs take about a third of the time, on NUDT-SIRST and on NUAA-SIRST.
#
# ## Compared with a baseline script
#
# The table compares this library in bf16 (`--precision auto`) with [a baseline script in plain PyTorch](../../results/baseline/plain.py) in float32. So the ratios compare both programs and both precisions; the library in float32 was not measured here. Both use the paper's recipe, on NUAA-SIRST at 256x256 and 2 CPU cores ([folder](../../results/bench-cpu)). Both were first checked, in float32, to give equal losses and counts. Times are medians of five repetitions, measured alternately:
#
# | | this library (bf16), ms per image | baseline script (float32), ms per image | ratio |
# |---|---|---|---|
# | training, batch 4 | 104 | 241 | 2.3 |
# | training, batch 16 | 107 | 682 | 6.4 |
# | evaluation, trained weights | 32 | 84 | 2.6 |
# | evaluation, noisy weights (thousands of components) | 32 | 321 | 10 |
# | peak memory at batch 16, MiB | 2895 | 4555 | |
#
# On your machine the ratios may differ. Measure them in a clone:
#
# ```bash
# python3 results/baseline/beside.py --dataset-dir data/NUAA-SIRST
# ```
#
# **Accelerators were not timed.** On one NVIDIA H200 (PyTorch 2.11), 21 trainings finished in bf16 ([folder](../../results/ladder)). One epoch ran in float32, and two in float16. `torch.compile` gave NaN gradients there and is not used. No TPU was available.
#
# **Other programs on the same CPU** slow training down, because PyTorch's threads wait for each other by spinning. On an Intel Xeon with two cores and one busy program, a training step took 10 s instead of 0.16 s. This library reduces that to 0.25 s: it limits busy-waiting, and uses one thread less next to a busy program ([measurements](../../results/busy-machine/README.md)).
#
# ## Which settings change speed and memory?
#
# The defaults suit most runs. Change a setting only for the reason in the last column.
#
# | setting | what it does | when to change it |
# |---|---|---|
# | `--precision` | `auto`: bf16 where the device supports it natively, fp16 with a scaled loss on a T4 or V100, float32 elsewhere | `fp32` for the arithmetic of the paper's code |
# | `--batch-size`, `--lr` | a larger batch is faster on a fast device, but changes the recipe and the scores. For four times the batch, double the learning rate: `--batch-size 16 --lr 0.002` | on a GPU or TPU |
# | `--micro-batch` | computes a batch in parts of so many images; batch norm averages over a part, so results differ a little | if memory runs out. Batch 16 at 256x256 needs 2895 MiB on a CPU in bf16 |
# | `--cache` | where decoded pixels are kept: `host` (in memory) or `stream` (not kept; read from the files again). `auto`: in memory, if half of the free memory is enough | `stream`, if other programs need the memory |
# | `--num-workers` | threads that prepare batches: by default none on a CPU, elsewhere one fewer than the cores (1 to 8) | if `mshnet bench` shows that data take a large part of a step |
# | `--deterministic` | a repeated run gives equal results to the last bit, on the same type of machine, with the same PyTorch and number of threads (`OMP_NUM_THREADS`) | to compare two changes |
#
# **Does bf16 cost accuracy?** We trained three seeds each with the paper's recipe, but a tenth of its learning rate, at 160x160 for 13 epochs, three of them warm-up. IoU was 0.495, 0.515 and 0.473 in bf16, and 0.438, 0.478 and 0.507 in float32 ([history](../../results/history.csv): `bf16-beside-fp32`). The two means differ less than the seeds of one precision.

# %%
#| hide
assert all(json.loads(file.read_text())["rows"] for file in files)
