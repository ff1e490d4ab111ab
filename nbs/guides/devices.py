# %% [markdown]
# # Devices, speed, memory
#
# > For somebody who must choose a machine or tune a run. At the end you know which device to use, what was measured on it, and which settings change speed and memory.

# %% [markdown]
# A run can move: begin it on one device, resume it on another. So begin with what you have.
#
# | you have | use | with | what is known |
# |---|---|---|---|
# | only a browser | Colab or Kaggle | [Colab and Kaggle](cloud.ipynb) | simulated: their notebooks were executed on a CPU |
# | a laptop without an NVIDIA GPU, for a trial | its CPU and synthetic scenes | [the first run](first_run.ipynb) | measured on 2 cores |
# | one CPU core and ten minutes | the CPU and NUAA-SIRST | `mshnet train --dataset-dir data/NUAA-SIRST --batch-size 16 --lr 0.002 --epochs 60 --eval-every 60` | measured in bf16: test IoU 0.69 to 0.70 ([results](results.ipynb)). A CPU without native bf16 takes longer |
# | one CPU core and a good hour | the same | `mshnet train --dataset-dir data/NUAA-SIRST --eval-every 200` | measured in bf16: 200 epochs of the default recipe. A CPU without native bf16 takes longer |
# | two CPU cores and a night | the same, by the paper's recipe | `mshnet train --dataset-dir data/NUAA-SIRST --preset paper --precision auto` | projected from measured steps in bf16: 400 epochs in 3 h 12 min |
# | an NVIDIA GPU | the GPU | `mshnet train --dataset-dir data/NUAA-SIRST`: it is found | on one H200 trainings ran to their end; no time was measured |
# | two or more NVIDIA GPUs | all of them share each batch | `--num-devices 2` for two | simulated: processes on a CPU |
# | an Apple chip (M1 and later) | its GPU, in float32 | the same command: it is found | never run |
# | a TPU | all chips, with batches of 16 and more | [the TPU page](tpu.ipynb) | simulated: XLA's CPU runtime |
#
# Before you pay:
#
# - On a **P100** this library computes in float32, on a **T4** in float16. Recent builds of PyTorch may not support a P100; the doctor's line `accelerator` reports that. If Kaggle offers both, choose the T4s.
# - A **TPU** is the slowest to start: XLA compiles the programs before the first step.
# - A fast GPU may be limited by the CPU that prepares its batches. Measure before you rent the largest.
# - An hourly price twice as high pays off only if training is more than twice as fast.
#
# ## What does this machine have?
#
# ```bash
# mshnet doctor
# mshnet doctor --device cuda --batch-size 16
# ```
#
# The doctor reports the device, its precision, the free memory, the disk and the versions, and what is wrong with them.
#
# ## How fast is it?
#
# ```bash
# mshnet bench --dataset-dir data/NUAA-SIRST
# mshnet bench --largest-batch --dataset-dir data/NUAA-SIRST
# ```
#
# The first command takes some minutes. It measures the recipe that the settings name: `--preset paper` is a different measurement than the default, and so is `--precision fp32`. `--largest-batch` finds the largest batch that fits. With `--output-dir results/bench-mine` the result is stored, and the cell below shows it in a clone.
#
# | word in a table | meaning |
# |---|---|
# | training | whole steps: read, augment, copy, forward, loss, backward, update |
# | data alone | reading, augmenting and copying within a training step |
# | scoring | the forward pass and all scores |
# | of the limit | the shortest time that the device's measured compute and bandwidth allow (roofline), divided by the measured time. 100% cannot be improved |
# | peak of memory | of a training in a new process: on a GPU what PyTorch has allocated; on a CPU the whole process (some 500 MiB before the first step) |
#
# **A device that is missing here was not measured**, and we estimate none. The benchmark uses a sample of the data set. Its `bench.json` also records the machine, the versions and the settings.

# %%
import json
from pathlib import Path

from mshnet.bench import table

places = (Path("../results"), Path("results"), Path("../../results"))
files = sorted(file for place in places for file in place.glob("*/bench.json"))
for file in files:
    print(f"{file.parent.name}\n\n{table(json.loads(file.read_text()))}\n")

# %% [markdown]
# **Hours.** An epoch trains all training images and evaluates the test list (or less often, with `--eval-every`). Multiply the measured times by their numbers and by the epochs. On one CPU thread, an epoch of the default recipe (crops of 128x128) takes 1/3 (NUDT-SIRST) to 1/2 (NUAA-SIRST) of the time of an epoch of the paper's recipe (crops of 256x256).
#
# ## Compared with a plain script
#
# NUAA-SIRST at 256x256 on 2 CPU cores, the paper's recipe, compared with [a plain PyTorch script](../../results/baseline/plain.py) in float32 ([folder](../../results/bench-cpu)). Medians of five interleaved repetitions, after a check that both give equal losses and counts:
#
# | | here, ms an image | plain script, ms an image | ratio |
# |---|---|---|---|
# | training, batch 4 | 104 | 241 | 2.3 |
# | training, batch 16 | 107 | 682 | 6.4 |
# | scoring, trained weights | 32 | 84 | 2.6 |
# | scoring, noisy weights (thousands of components) | 32 | 321 | 10 |
# | peak memory at batch 16, MiB | 2895 | 4555 | |
#
# Ratios hold for the measured machine only. To measure yours, in a clone:
#
# ```bash
# python3 results/baseline/beside.py --dataset-dir data/NUAA-SIRST
# ```
#
# Training takes 36 GFLOP of convolutions for each image of 256x256, and PyTorch's convolutions alone take 62% of a step's time ([log](../../experiments/speed.md)).
#
# **Accelerators were not timed.** On one NVIDIA H200 (PyTorch 2.11) 21 trainings ran to their end in bf16 ([folder](../../results/ladder)), one epoch in float32, and two in float16 with a prediction; `--compile on` failed there. No TPU was available.
#
# **Other programs on the same CPU.** PyTorch's threads wait for each other. On two cores, with one busy program, a training step took 10 s instead of 0.16 s. `import mshnet` limits busy-waiting (1.7 s), and a run uses one thread less next to a busy program (0.25 s). [The table](../../results/busy-machine/README.md) has six kinds of neighbours and seven settings.
#
# ## Which settings change speed and memory?
#
# The defaults suit most runs. Change a setting only for the reason in the last column.
#
# | setting | what it does | when to change it |
# |---|---|---|
# | `--precision` | `auto`: bf16 where the chip supports it natively, fp16 with a scaled loss on a T4 or V100, float32 elsewhere | `fp32` for the arithmetic of the paper's code |
# | `--batch-size`, `--lr` | A larger batch is faster on a fast device, but changes the recipe and the scores. Four times the batch takes twice the learning rate: `--batch-size 16 --lr 0.002` | on a GPU or TPU |
# | `--micro-batch` | computes a batch in parts of so many images | if memory runs out. It seldom does: batch 16 at 256x256 has a peak of 2895 MiB on a CPU in bf16 |
# | `--cache` | where decoded pixels are kept: `host` (memory) or `stream` (files). `auto`: memory, if half of the free memory is enough | `stream` next to programs that need the memory |
# | `--num-workers` | threads that prepare batches: by default none on a CPU, elsewhere one per core, at most 8 | if `mshnet bench` shows that data take a large part of a step |
# | `--deterministic` | only operations that repeat to the last bit on one type of machine, with one PyTorch and one number of threads (`OMP_NUM_THREADS`) | to compare two changes |
#
# bf16 compared with float32: the paper's recipe at 160x160, 13 epochs, learning rate 0.005, three seeds each ([history](../../results/history.csv): `bf16-beside-fp32`), has IoU 0.495, 0.515, 0.473 and 0.438, 0.478, 0.507. The difference between bf16 and float32 is smaller than the difference between two seeds.
#
# A checkpoint is copied on the device and written by a thread while the next epoch trains; nothing needs to be set for it.

# %%
#| hide
assert all(json.loads(file.read_text())["rows"] for file in files)
