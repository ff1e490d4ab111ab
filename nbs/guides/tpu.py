# %% [markdown]
# # TPU: checks and troubleshooting
#
# > For somebody who runs this library on a TPU, with any task. At the end you know what to check first, which batch fits, and what to do when something fails.
#
# [中文](tpu.zh-CN.ipynb)
#
# Open [tpu_setup](../run/tpu_setup.ipynb) in Colab (one v5e chip) or [kaggle_tpu](../run/kaggle_tpu.ipynb) on Kaggle (eight) and run it from top to bottom. The rest of this page is for the case that it fails. The same page holds for `--task eit`, `events` and `signs`.
#
# **Not verified:** no real TPU was available. Everything here ran on torch_xla's own CPU runtime with one and with eight virtual devices (`make test-xla`). This shows that the programs are correct, compiled once and shared by all devices. It shows nothing about the speed, memory or rounding of a real chip, nor about Colab and Kaggle themselves.
#
# ## What to check first
#
# ```bash
# mshnet doctor --device xla --batch-size 16
# ```
#
# or the cell "The machine" of the notebook. The line `accelerator` reports the number of chips, their generation and memory; the line `build` is an error if torch_xla is missing or made for another torch.
#
# ## It does not start
#
# | message | cause | what to do |
# |---|---|---|
# | `this machine has no TPU` | the session has another accelerator | Colab: Runtime, Change runtime type, v5e-1 TPU. Kaggle: Session options, Accelerator, TPU v5e-8 |
# | `torch ... and torch_xla ... do not belong together` | something was installed over the image's torch | delete the runtime, start a fresh one, and never `pip install torch`, `torch_xla`, `numpy` or `IPython` there |
# | `the TPU is held by ...` | one program at a time can use a TPU | stop the other notebook, or restart its kernel |
# | `the runtime waits for other workers` | two variables of an older kind of TPU are set; where they are known to be stale they are removed for you | restart the kernel and, before anything else, `os.environ.pop` both `TPU_PROCESS_ADDRESSES` and `CLOUD_TPU_TASK_ID` |
# | `PJRT_DEVICE=... is another kind of runtime` | set by another guide | remove it |
# | `this process has trained on another device before` | torch_xla must be loaded before the first backward pass | restart the kernel, begin with the TPU |
#
# You need none of the calls of older guides (`cloud-tpu-client`, `xmp.spawn(nprocs=8)`, `xm.xla_device`, `xm.mark_step`): one process drives all chips.
#
# ## How many chips, and which batch size
#
# `batch_size` is always the number of images per step over *all* chips. It must be a multiple of the number of chips; an error names the nearest sizes. The preset `tpu` takes 16 images and a learning rate of 0.002, four times the default batch and twice its rate. On a CPU three seeds of it have a test IoU of 0.69 to 0.70 on NUAA-SIRST after 60 epochs ([results](results.ipynb)). Batch norm takes its means over all chips, so the result does not depend on how many there are.
#
# Colab gives one chip, Kaggle eight. `--num-devices 4` uses fewer (older guides write `--use-tpu --num-cores 8 --global-batch-size 64` for `--device xla --num-devices 8 --batch-size 64`). Under SPMD `xr.world_size()` is 1 whatever the number; the line `device` at the start of a run is right.
#
# ## The first step takes a minute
#
# A TPU runs compiled programs. Two of them take long to compile: a training step and an evaluation step. (The final count also includes a few small programs that place tensors on the chips.) The preset `paper` has a third, because its warm-up trains one head alone. Each is compiled when it is first needed, and training reports it. This log is from a CPU; a TPU takes longer:
#
# ```
#   compiling the full step, which happens once: 5 s so far
#   compiled the full step in 20 s
#   first step 22 s after the start
# ```
#
# So the first epoch is slow, and with `paper` the first one after the warm-up. No other should be. Evaluating at the original size (`--base-size native`) compiles a program for each padded size: one on NUDT-SIRST and on IRSTD-1k, 69 on the test list of NUAA-SIRST. If a program is compiled again, a warning reports why, as far as it is known. Compiled programs are stored in `xla_cache` next to the run folder for the next session; the end of a run reports how many were found there. They should save compile time on a real TPU; we could not verify this. (On the CPU runtime another process cannot read them and compiles again.)
#
# ## Out of memory
#
# On each chip a step needs two things: (1) the weights, their gradients and the optimizer's sums, four bytes each, and the weights once more in bfloat16; (2) what the forward pass keeps for the backward pass. The second part grows with the batch and with the area of the crop. Counted on a CPU in bfloat16 it is about 1,540 bytes a pixel: 0.1 GB for a crop of 256x256, and a quarter of that for the default crop of 128x128.

# %%
from mshnet.xla import TPU_CHIPS

print("a chip has:", ", ".join(f"{name} {gb} GB" for name, gb in TPU_CHIPS.values() if gb))

# %% [markdown]
# A real chip may differ. XLA may keep less (it computes some things twice), and a TPU may need more: it stores tensors in tiles of 8 by 128 numbers, and the widest layers of this network, which have 16 channels, may be padded. We could not measure this. If memory runs out, halve `batch_size`, or take a smaller `crop_size`: memory grows with its square.
#
# ## Loading is slow
#
# CPU threads prepare the batches (`--num-workers`). A crop of 128x128 is cut before any resize and takes about a millisecond. Whether a chip waits for them was not measured. Never train from a mounted Drive: copy the data set to the session's disk first.
#
# ## Saving fails
#
# Checkpoints are plain CPU tensors, written by the host: `last.pt`, `previous.pt` and `best.pt`, 65 MB each (33 MB with the preset `paper`), in the run's folder. What can be lost is the disk: Kaggle keeps only `/kaggle/working`, and Colab keeps nothing after the session. A run that began on a TPU resumes on a GPU or a CPU, and back, in the precision that it began with: name it with `--resume`, or copy the folder.
#
# ## Watching it
#
# One line per epoch, `log.jsonl` with the same numbers and the compile counters under `xla`, TensorBoard where it is installed, `status.json` for programs. The device is read only at log lines (`log_every`) and at evaluations; a smaller `log_every` synchronises more often.
#
# For experts: with `XLA_FLAGS=--xla_dump_to=DIR` in the environment, XLA writes every compiled program to DIR.
#
# ## A pod slice
#
# On a slice of several hosts the same command is started on each of them:
#
# ```bash
# gcloud compute tpus tpu-vm ssh NAME --worker=all --command "mshnet train --device xla --dataset-dir DATA --preset tpu --batch-size 64"
# ```
#
# Each host prepares the whole batch and sends its chips their rows. Each writes the same run to its own disk, so do not use a shared folder. This follows torch_xla's documentation; we have not run it.
