# %% [markdown]
# # Start: install and first run
#
# > For a newcomer with a terminal. At the end the library is installed, has found a target, has trained and resumed a small run, and has checked your data set.

# %% [markdown]
# [中文](first_run.zh-CN.ipynb)
#
# Each step ends with something to look at. Steps 1 to 4 need no data. In a browser, without an installation, use [Colab or Kaggle](cloud.ipynb) instead.
#
# ## 1. Install
#
# You need git and Python 3.11 or newer. A virtual environment keeps PyTorch apart from your other projects.
#
# **Linux and macOS:**
#
# ```bash
# git clone https://github.com/{{repo}}
# cd mshnet
# python3 -m venv .venv
# source .venv/bin/activate
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
# The `activate` line activates the environment. Run it again in every new terminal. The name `mshnet` on PyPI belongs to somebody else, so install from this folder.
#
# | system | tested | what to know |
# |---|---|---|
# | Linux, x86-64 | yes, on a CPU; trainings on an NVIDIA H200 ran to their end | pip's PyTorch includes CUDA, several GB. Without an NVIDIA GPU the CPU build is enough: before the last line, run `pip install torch --index-url https://download.pytorch.org/whl/cpu` |
# | Windows | no | If PowerShell refuses to run `activate`, use the Command Prompt. pip's PyTorch is the CPU build; for an NVIDIA GPU first install the CUDA build that pytorch.org names. There is no `make`, and you do not need it. Windows cannot replace a file that another program has open: the run then ends with one line, and the same command resumes it. `torch.compile` needs a compiler; without one, training warns and does not compile |
# | macOS | no | On an Apple chip (M1 and later) the GPU is the default device (`--device mps`), in float32. A Python for Intel processors, which Rosetta translates, has no GPU: install one for arm64. If the GPU is slow or wrong, use `--device cpu` |
#
# ## 2. Find a target
#
# Pretrained weights come with the library:
#
# ```bash
# mshnet predict frame.png
# ```
#
# ```
# 1 frame of 1 file: 1 detection in 2 s
# weights  pretrained; their card: mshnet/pretrained.md
# results  predictions/pretrained
# ```
#
# | in `predictions/pretrained` | content |
# |---|---|
# | `overlays/` | each frame with its detections marked |
# | `masks/` | detections white on black, in the size of the frame |
# | `detections.csv` | a line for each detection: centre, box, area, highest and mean probability |
# | `coco.json` | the same for COCO's tools |
# | `frames.csv`, `skipped.csv` | all frames; the files that could not be read, each with the reason |
#
# ![A part of a synthetic frame with eight detections marked, each with a number and a probability](../../results/predict-large/part.png)
#
# No image available? Without an argument, `find_targets` uses a real frame, a drone above clouds:

# %%
from mshnet import find_targets

find_targets()

# %% [markdown]
# In a script, add `.show()`. `mshnet.detect("frame.png")` returns the detections as a list of dictionaries. If it finds nothing on your images, or too much, see [a new camera](new_camera.ipynb). [The model card](../../mshnet/pretrained.md) reports how well these weights detect, and where they fail.
#
# ## 3. Check the machine
#
# ```bash
# mshnet doctor
# ```
#
# Every line should report `ok`. A `warning` can wait, an `error` cannot; each names the remedy. The exit status is 0, 1 or 2, by the worst line.
#
# ## 4. Train on synthetic scenes
#
# ```bash
# mshnet train --preset quick --output-dir runs/trial
# ```
#
# The full-size network learns on small images of a synthetic sky, in a few minutes on 2 CPU cores. Stop it in the middle with Ctrl-C and run the same command again: it resumes. The figures are in `runs/trial/figures`. On Linux and macOS `make demo` does the same and shows it in a notebook; on a slow CPU it trains for fewer epochs.
#
# Expect a score near those of [five seeds](../../results/SCORES.md) of this preset. It is not exactly the same on every machine.
#
# How many epochs? `quick` trains for 9; use 20 for a first run at your own data with a large preset, and 200, the default, for a result.
#
# ## 5. Check your data set
#
# Below, `data/NUAA-SIRST` stands for the folder of your data set. If you have none, pass `NUAA-SIRST` instead: it is downloaded ([data sets](datasets.ipynb)). For your own images, [make masks and lists](own_images.ipynb) first.
#
# ```bash
# mshnet data data/NUAA-SIRST
# ```
#
# This reports the number of images and targets, their sizes, and everything that is wrong: masks of a different size, names without an image, the same image in both lists. Status 2 means that training would refuse the data set.
#
# ## 6. Train on it for three epochs
#
# ```bash
# mshnet train data/NUAA-SIRST --base-size 128 --crop-size 128 --epochs 3 --output-dir runs/small
# mshnet test --weight-path runs/small
# ```
#
# Do not report these scores: the images are deliberately too small. Look at `runs/small/figures/gallery.png`. If no hit is visible, the masks may not match the images. After so few epochs false alarms may be anywhere.
#
# `runs/small/best.pt` holds the weights that are scored, by default those of the last epoch.
#
# ## 7. Estimate the time of the real run
#
# ```bash
# mshnet bench --dataset-dir data/NUAA-SIRST
# ```
#
# Multiply the time of `train` (for one image) by the number of training images and by 200 epochs. Each evaluation adds the time of `score` for each test image; `--eval-every 200` evaluates once. [Devices, speed, memory](devices.ipynb) has measured times.
#
# ## 8. The real run
#
# ```bash
# mshnet train data/NUAA-SIRST
# ```
#
# 200 epochs, evaluated at 256x256. If you may lose the machine's disk (Colab, a rented machine), add `--mirror-dir DIR`, a folder on permanent storage. If the process may only be interrupted, add nothing: the same command [resumes](resume.ipynb).
#
# ## Where files go
#
# All paths are relative to the folder in which you start the command. In JupyterLab that is the folder of the notebook, `nbs/run`: use absolute paths there.
#
# | what | where |
# |---|---|
# | data sets | the path that you pass; if it does not exist, the same name in `data/` |
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
# The notebook [local](../run/local.ipynb) runs unchanged from top to bottom. Without a browser, use papermill:
#
# ```bash
# papermill nbs/run/local.ipynb out.ipynb -p dataset_dir data/NUAA-SIRST -p epochs 50 -p output_dir runs/mine
# ```
#
# In Python, at a size that takes seconds; the second call finds a finished run and only reports it:

# %%
import tempfile

from mshnet.core import configure
from mshnet.train import train

tiny = {"scenes": 12, "base_size": 32, "crop_size": 32, "epochs": 2}
with tempfile.TemporaryDirectory() as folder:
    config = configure({**tiny, "device": "cpu", "output_dir": f"{folder}/trial"})
    run = train(config)
    again = train(config)
    print(run.listing().replace(folder, "runs"))

# %%
#| hide
assert len(run.config.recipe()) > 10 and again.ended == run.ended
