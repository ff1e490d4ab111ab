# %% [markdown]
# # Start: install and first run
#
# > For a newcomer with a terminal. At the end the library is installed, has found a target, has trained and resumed a small run, and has checked your data set.

# %% [markdown]
# [中文](first_run.zh-CN.ipynb)
#
# Steps 1 to 4 need no data. To work in a browser without an installation, use [Colab or Kaggle](cloud.ipynb).
#
# ## 1. Install
#
# You need Python 3.11 or newer{{published:  and git}}; `python3 --version` (Windows: `py --version`) prints yours. If it is older, install a newer one and use, for example, `python3.12` (Windows: `py -3.12`) below. (Debian and Ubuntu also need the package `python3-venv`.) Open a terminal in the folder of this project, the one that has `setup.py`{{published:  (`git clone` makes it)}}. Use a virtual environment: it keeps this PyTorch apart from other projects.
#
# **Linux and macOS:**
#
# ```bash
# git clone https://github.com/{{repo}}
# cd mshnet
# python3 -m venv .venv
# source .venv/bin/activate
# # without an NVIDIA GPU, first: pip install torch --index-url https://download.pytorch.org/whl/cpu
# pip install -e '.[notebook]'
# ```
#
# **Windows,** in PowerShell, with Python from python.org:
#
# ```bash
# git clone https://github.com/{{repo}}
# cd mshnet
# py -m venv .venv
# .venv\Scripts\activate
# pip install -e ".[notebook]"
# ```
#
# **conda:**
#
# ```bash
# git clone https://github.com/{{repo}}
# cd mshnet
# conda env create -f environment.yml
# conda activate mshnet
# ```
#
# Run the line with `activate` again in every new terminal. Do not install `mshnet` from PyPI: that name belongs to a different project.
#
# | system | tested | what to know |
# |---|---|---|
# | Linux, x86-64 | yes, on a CPU; on an NVIDIA H200, training and prediction ran | pip's PyTorch includes CUDA, several GB; the commented line takes the CPU build instead. With conda: `conda create -n mshnet python=3.11 pip`, `conda activate mshnet`, then the pip lines above |
# | Windows | no | If PowerShell refuses to run `activate`, use the Command Prompt. pip's PyTorch is the CPU build; for an NVIDIA GPU first install the CUDA build that pytorch.org names. You do not need `make` |
# | macOS | no | On an Apple chip (M1 and later) the GPU is the default device (`--device mps`), in float32. pip finds no `torch>=2.8` for a Python built for Intel: install one for arm64. On a Mac with an Intel processor mshnet does not run. If the GPU is slow or wrong, use `--device cpu` |
#
# ## 2. Find a target
#
# Pretrained weights come with the library:
#
# ```bash
# mshnet predict mshnet/examples/drone.png
# ```
#
# ```
# 1 frame of 1 file: 1 detection in 1 s
# weights  pretrained; their card: .../mshnet/pretrained.md
# results  predictions/pretrained
# ```
#
# Replace the name by that of your own image, folder or video. Each new input gets a new folder, such as `predictions/pretrained-2`; the last line names it.
#
# | in `predictions/pretrained` | content |
# |---|---|
# | `overlays/` | each frame with its detections marked |
# | `masks/` | detections white on black, in the size of the frame |
# | `detections.csv` | a line for each detection: centre (row and column, from 0 at the top left), box, area, highest and mean probability |
# | `coco.json` | the same for COCO's tools |
# | `frames.csv` | a line for each frame, with its number of detections |
# | `skipped.csv` | the files that could not be read, each with the reason |
# | `summary.json` | the settings of this prediction |
# | `records/` | which files are finished; the same command skips them |
#
# In Python, `find_targets("frame.png")` returns the overlay. Without an argument it uses the frame from above, a drone over clouds:

# %%
from mshnet import find_targets

find_targets()

# %% [markdown]
# In a script, add `.show()`. `mshnet.detect("frame.png")` returns the detections as a list of dictionaries. If it finds nothing in your images, or too much, see [a new camera](new_camera.ipynb). The [model card](../../mshnet/pretrained.md) lists scores and known failures.
#
# ## 3. Check the machine
#
# ```bash
# mshnet doctor
# ```
#
# Each line begins with `ok`, `warning` or `error`; an error names its remedy, and [troubleshooting](trouble.ipynb) explains the warnings. Correct an `error` before you train; a `warning` can wait. The exit status is 0 if all is ok, 1 after a warning, 2 after an error.
#
# ## 4. Train on synthetic scenes
#
# ```bash
# mshnet train --preset quick --output-dir runs/trial
# ```
#
# This trains the full-size network on small images of a synthetic sky, in a few minutes on 2 CPU cores. Stop it with Ctrl-C and run the same command again: it resumes. At the end, the figures are in `runs/trial/figures`.
#
# After all 9 epochs your IoU should be near 0.83: [five seeds](../../results/SCORES.md) of this preset have 0.825 to 0.844.
#
# ## 5. Check your data set
#
# Replace `data/NUAA-SIRST` by the folder of your data set. No data set? `mshnet data NUAA-SIRST` [downloads](datasets.ipynb) one into `data/NUAA-SIRST` (not tried). For your own images, [make masks and lists](own_images.ipynb) first.
#
# ```bash
# mshnet data data/NUAA-SIRST
# ```
#
# This reports the number and sizes of images and targets. It also lists errors, such as a name without an image, and warnings, such as an inverted mask. After an error the exit status is 2, and training would refuse the data set.
#
# ## 6. Train on it for three epochs
#
# ```bash
# mshnet train data/NUAA-SIRST --base-size 128 --crop-size 128 --epochs 3 --output-dir runs/small
# mshnet test runs/small
# ```
#
# Do not report these scores: to save time, the images are reduced to 128x128 pixels. Look at `runs/small/figures/gallery.png`. After so few epochs, false alarms are normal. But if no target is found at all, the masks may not match the images.
#
# `runs/small/best.pt` has the evaluated weights: despite its name, by default those of the last epoch.
#
# ## 7. Estimate the time of the real run
#
# ```bash
# mshnet bench data/NUAA-SIRST
# ```
#
# This takes a minute or two. In its table, read `ms/image` in the rows `train, batch 4` and `score, batch 4`. NUAA-SIRST has 213 training images and 214 test images, so
#
# ```
# hours = 200 * (213 * train + 214 * score) / 3_600_000
# ```
#
# By default every epoch is evaluated. With `--eval-every 200` only the last one is: `hours = (200 * 213 * train + 214 * score) / 3_600_000`. [Devices, speed, memory](devices.ipynb) has measured times.
#
# ## 8. The real run
#
# ```bash
# mshnet train data/NUAA-SIRST    # on a CPU add --eval-every 200: half the time
# ```
#
# This trains for 200 epochs and evaluates at 256x256 pixels. Expect a test IoU of about 0.68 to 0.75 ([three seeds](results.ipynb)). After an interruption, the same command [resumes](resume.ipynb). If you may lose the machine's disk (Colab, a rented machine), add `--mirror-dir DIR`, where DIR is a folder on permanent storage.
#
# ## Where files go
#
# All paths are relative to the folder in which you start the command. In JupyterLab that is the folder of the notebook, so use absolute paths there.
#
# | what | where |
# |---|---|
# | data sets | the path that you pass, or `data/NAME` for a known name |
# | `.zip` archives | unpacked once to `data/unpacked` |
# | run folders | `runs/`, each named after its data and settings; `--output-dir` chooses another |
#
# ## In a notebook
#
# ```bash
# pip install jupyterlab
# jupyter lab nbs/run/local.ipynb
# ```
#
# The notebook [local](../run/local.ipynb) runs unchanged from top to bottom. Without a browser, use papermill, which step 1 installed:
#
# ```bash
# papermill nbs/run/local.ipynb out.ipynb -p dataset_dir data/NUAA-SIRST -p output_dir runs/mine
# ```
#
# ## In Python
#
# With tiny images and two epochs, this training takes seconds and finds nothing yet, so an IoU of 0.00 is expected. If you run the cell again, it only reports the finished run.

# %%
#| hide
import os
import tempfile

elsewhere = tempfile.TemporaryDirectory()
os.chdir(elsewhere.name)

# %%
import mshnet

config = mshnet.Config(
    scenes=12, base_size=32, crop_size=32, epochs=2, device="cpu", output_dir="runs/tiny"
)
run = mshnet.train(config)

# %% [markdown]
# **Next:** [your own images](own_images.ipynb), [a new camera](new_camera.ipynb), [troubleshooting](trouble.ipynb).

# %%
#| hide
assert len(run.config.recipe()) > 10 and run.finished
os.chdir("/")
elsewhere.cleanup()
