# %% [markdown]
# # Choose your device
#
# > Which machine for what, and what is known of each.

# %% [markdown]
# [中文](device.zh-CN.ipynb)
#
# A run can move: begin on one device and resume on a different one. So begin with what you have. Only the CPU rows were **measured**. On an NVIDIA H200 trainings ran to their end, and nothing was timed. No TPU or Apple chip was available. [How fast, and how much memory](speed.ipynb) shows the measurements, and `mshnet bench` measures a device in minutes.
#
# | you have | take | with | what is known |
# |---|---|---|---|
# | nothing but a browser | Colab or Kaggle | [Colab in five minutes](colab.ipynb), [Kaggle in five minutes](kaggle.ipynb) | their notebooks were executed on a CPU |
# | a laptop without an NVIDIA GPU, and want to look | its CPU, with synthetic scenes | [a small trial run](first_run.ipynb) | measured on 2 cores |
# | one CPU core and ten minutes | the CPU, with NUAA-SIRST | `mshnet train --dataset-dir data/NUAA-SIRST --batch-size 16 --lr 0.002 --epochs 60 --eval-every 60` | [measured](results.ipynb): test IoU 0.69 to 0.70, in bf16 |
# | one CPU core and a good hour | the CPU, with NUAA-SIRST | `mshnet train --dataset-dir data/NUAA-SIRST --eval-every 200` | [measured](results.ipynb): 200 epochs of the default recipe, in bf16. A CPU without bf16 takes longer; the doctor's line `accelerator` has the precision |
# | two CPU cores and a night | the same, by the paper's recipe | `mshnet train --dataset-dir data/NUAA-SIRST --preset paper --precision auto` | 400 epochs in 3 h 12 min, in bf16: projected from measured steps |
# | an NVIDIA GPU | that | `mshnet train --dataset-dir data/NUAA-SIRST`: it is found | ran on an H200, not timed |
# | two or more NVIDIA GPUs | all of them share each batch | `--num-devices 2` for two | tested with processes on a CPU |
# | an Apple chip (M1 and later) | its GPU, in float32 | the same command: it is found | the code for it was never run on one |
# | a TPU | it, with batches of 16 and more | [the TPU page](tpu.ipynb) | run on XLA's CPU runtime only |
#
# What to think of before you pay:
#
# - On a **P100** this library computes in float32, on a T4 in float16. Newer builds of torch may not support a P100 at all; the doctor's line `accelerator` would say so. If Kaggle offers both, take the T4s.
# - On a **TPU** the first look takes longest: programs are compiled before anything is seen.
# - A fast GPU may wait for its host rather than for itself: measure before you rent the largest.

# %% [markdown]
# ## What does this machine have?
#
# The doctor reports what a run would use here, and what is wrong with it:
#
# ```bash
# mshnet doctor
# mshnet doctor --device cuda --batch-size 16
# ```

# %%
from mshnet.doctor import doctor
from mshnet.recipe import Config

found = doctor(Config())
print(found)

# %% [markdown]
# ## How fast is it?
#
# Some minutes, before anything is rented for a day. `--largest-batch` tries which batch fits.
#
# ```bash
# mshnet bench --dataset-dir data/NUAA-SIRST
# mshnet bench --largest-batch --dataset-dir data/NUAA-SIRST
# ```
#
# [Speed and memory](speed.ipynb) has what was measured so far.
#
# ## Which precision, which batch?
#
# Leave `precision` at `auto`: bf16 where the chip computes it itself, fp16 with a scaled loss on a T4 or V100, float32 elsewhere. Leave `batch_size` at 4 for the paper's recipe. A larger batch uses a fast device better and is another recipe: four times the batch takes twice the learning rate.
#
# ```bash
# mshnet train --dataset-dir data/NUAA-SIRST --batch-size 16 --lr 0.002
# ```
#
# ## Which memory?
#
# Batch 16 at 256x256 takes 2895 MiB on a CPU at its peak ([measured](speed.ipynb), bfloat16), so memory rarely decides. The doctor's line `memory` reports what is free, and `mshnet bench --largest-batch` tries which batch fits. Where memory decides, `--on-out-of-memory halve` computes a batch in parts.

# %%
#| hide
assert found.lines
