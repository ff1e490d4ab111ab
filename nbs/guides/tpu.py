# %% [markdown]
# # TPU: checks and troubleshooting
#
# > For somebody who runs this library on a TPU, with any task. At the end you know what to check first, which batch fits, and what to do when something fails.
#
# [中文](tpu.zh-CN.ipynb)
#
# Open [tpu_setup](../run/tpu_setup.ipynb) in Colab (one v5e chip) or [kaggle_tpu](../run/kaggle_tpu.ipynb) on Kaggle (eight chips), and run it from top to bottom. If that works, you do not need this page.
#
# **Not verified:** no real TPU was available. Everything here ran on torch_xla's CPU runtime, with one and with eight virtual devices (`make test-xla`). This shows that the programs compute the same as plain PyTorch on a CPU, up to rounding, and are compiled once for all devices. It does not show the speed, memory or rounding of a real TPU, and it does not test Colab and Kaggle.
#
# ## What to check first
#
# ```bash
# mshnet doctor --device xla
# ```
#
# In the notebook, the cell "The machine" does the same. The line `accelerator` reports the number of chips, their generation and memory. The line `accelerator` or `build` is an error if torch_xla is missing or does not fit your version of torch.
#
# ## It does not start
#
# Each message begins with `device=xla: `.
#
# | message | cause | what to do |
# |---|---|---|
# | `torch_xla is not installed; ...` | this is not a TPU image of Colab or Kaggle | choose a TPU session; if torch_xla is missing there, too, use `device = "cpu"` or a GPU; elsewhere install the versions that the line names |
# | `this machine has no TPU` | the session has a different accelerator | Colab: Runtime, Change runtime type, v5e-1 TPU. Kaggle: Session options, Accelerator, TPU v5e-8 |
# | `torch ... and torch_xla ... do not belong together` | another torch was installed over the one of the image | delete the runtime, start a fresh one, and never `pip install torch`, `torch_xla`, `numpy` or `IPython` there |
# | `the TPU runtime does not start: ...` | one program at a time can use a TPU | in a `!` command beside this notebook add `--device cpu`; else stop the other notebook, or restart its kernel |
# | `PJRT_DEVICE=... is another kind of runtime` | another guide told you to set this variable | remove it |
# | `this process has trained on another device before` | torch_xla must be loaded before the first backward pass | restart the kernel, begin with the TPU |
#
# Older guides use `cloud-tpu-client`, `xmp.spawn(nprocs=8)`, `xm.xla_device` or `xm.mark_step`. You need none of them here: one process drives all chips, so `xr.world_size()` is always 1. Flags of older programs have [new names](from_official.ipynb).
#
# ## How many chips, and which batch size
#
# Colab gives one chip, Kaggle eight. A run uses all of them, and its line `device` shows how many.
#
# - **Batch size:** `batch_size` is the number of images per step over *all* chips. It must be a multiple of their number; otherwise an error names the nearest possible sizes. Batch norm averages over all chips, so the result does not depend on their number.
# - **Preset:** `tpu` uses batches of 16 and a learning rate of 0.002 (the defaults are 4 and 0.001). With `--crop native`, three seeds of it on a CPU have a test IoU of 0.69 to 0.70 on NUAA-SIRST after 60 epochs ([results](results.ipynb)). Without that flag it was not run there. On eight chips the presets `steady`, `paper` and `quick` need `--batch-size 8`.
#
# ## The first step is slow
#
# A TPU runs compiled programs. The training step and the evaluation step take long to compile. With the preset `paper` there are two training steps, because its warm-up trains only one head. Each program is compiled when it is first needed; a line such as `compiling the full step, which happens once` reports it. How long this takes on a TPU was not measured.
#
# So the first epoch is slow, and with `paper` also the first one after the warm-up. Later epochs should not be slow. If a program is compiled again, a warning gives the reason, if it is known. The final count also includes a few small programs, which place tensors on the chips.
#
# Evaluation at the original size (`--base-size native`) compiles a program for each padded size: 1 for NUDT-SIRST, 1 for IRSTD-1k, and 69 for the test list of NUAA-SIRST.
#
# Compiled programs are stored in `xla_cache` next to the run folder. The next run on the same disk should load them from there instead of compiling again; Colab and Kaggle start with an empty disk. We could not verify this: a TPU was not available, and with the CPU runtime another process cannot read them.
#
# ## Out of memory
#
# On each chip a step needs memory for two things:
#
# 1. the weights, their gradients and the optimizer's state, with four bytes for each number, and a copy of the weights in bfloat16;
# 2. the activations that the backward pass needs. They grow with the batch and with the area of the crop. On a CPU in bfloat16 the peak memory of a step grows by 0.15 GB with each crop of 256x256 ([measured](devices.ipynb)), and by about a quarter of that with the default crop of 128x128.

# %%
from mshnet.xla import TPU_CHIPS

print("a chip has:", ", ".join(f"{name} {gb} GB" for name, gb in TPU_CHIPS.values() if gb))

# %% [markdown]
# If memory runs out, halve `batch_size`, or use a smaller `crop_size`: memory grows with its square. A real TPU may need less or more; we could not measure it. XLA may recompute some activations instead of keeping them. But a TPU stores tensors in tiles of 8 by 128 numbers, so it may pad layers with only 16 channels.
#
# ## Saving fails
#
# `last.pt`, `previous.pt` and `best.pt` are plain CPU tensors in the run folder, for detection 65 MB each (33 MB with the preset `paper`). With the preset `paper`, each has about 0.9 GB in `signs` and 1.7 GB in `eit` (computed). After the session, Kaggle keeps only `/kaggle/working`, and Colab keeps nothing.
#
# A run that began on a TPU can resume on a GPU or a CPU, and the other way round: name it with `--resume`, or copy its folder. It keeps its precision. A run that began in float16 (on a T4 or V100) cannot resume on a TPU, which has no float16. If you may change to a TPU, begin with `precision = "fp32"`.
#
# ## Follow the progress
#
# Each epoch prints one line. `log.jsonl` has the same numbers, and the number of compilations under `xla`. A script can read `status.json`. Results are copied from the device only at log lines, evaluations and checkpoints, so a smaller `log_every` slows training down.
#
# For experts: with `XLA_FLAGS=--xla_dump_to=DIR` in the environment, XLA writes every compiled program to DIR.
#
# ## A pod slice
#
# On a slice of several hosts the same command is started on each of them:
#
# ```bash
# gcloud compute tpus tpu-vm ssh NAME --worker=all --command "mshnet train DATA --device xla --preset tpu --batch-size 64"
# ```
#
# Each host prepares the whole batch and sends its chips their rows. Each writes the same run to its own disk, so do not use a shared folder. This follows torch_xla's documentation; we have not run it.
