# %% [markdown]
# # On your own machine
#
# > Linux, Windows, a MacBook: install, find the GPU, train.

# %% [markdown]
# **Tested:** Linux on x86-64, on a CPU. On an NVIDIA H200 trainings ran to their end, under Linux. Not tested, because none was available: Windows, macOS, Apple chips. Their sections follow from the code and from torch's documentation.
#
# You need git and Python 3.11 or newer; conda can install one (below). A separate environment keeps torch apart from other projects.
#
# ## Linux
#
# ```bash
# git clone https://github.com/{{repo}}
# cd mshnet
# python3 -m venv .venv
# source .venv/bin/activate
# ```
#
# The last line makes `pip` and `mshnet` those of this folder; give it again in every new terminal. pip's torch for Linux brings CUDA along, several GB. Without an NVIDIA GPU the CPU build is enough; then give this line first:
#
# ```bash
# pip install torch --index-url https://download.pytorch.org/whl/cpu
# ```
#
# In both cases:
#
# ```bash
# pip install -e '.[notebook]'
# mshnet predict frame.png     # an image of yours, with the pretrained weights
# mshnet doctor
# mshnet train --preset quick
# ```
#
# A run that outlives the terminal:
#
# ```bash
# nohup mshnet train --dataset-dir data/NUAA-SIRST &
# ```
#
# `tail -f` on the run's `train.log` follows the training. Programs read `status.json` beside it.
#
# ## Windows
#
# In PowerShell, with Python from python.org:
#
# ```bash
# git clone https://github.com/{{repo}}
# cd mshnet
# py -m venv .venv
# .venv\Scripts\activate
# pip install -e ".[notebook]"
# mshnet predict frame.png
# mshnet doctor
# mshnet train --preset quick
# ```
#
# If PowerShell refuses to run `activate`, take the Command Prompt. Give the `activate` line again in every new terminal. pip's torch for Windows is the CPU build. For an NVIDIA GPU install the build for CUDA that pytorch.org names for your system first; the doctor's line `build` reports a torch that does not see the GPU. There is no `make` on Windows: `mshnet` and the notebooks do not need it. Windows has no SIGHUP and no alarm signals; Ctrl-C ends a run as it does elsewhere. Windows refuses to replace a file that another program has open: if a mirror or another notebook reads a checkpoint at the wrong moment, the run ends with one line, and the same command resumes it. `torch.compile` needs a compiler there; without one, training warns and does not compile.
#
# ## MacBook
#
# ```bash
# git clone https://github.com/{{repo}}
# cd mshnet
# python3 -m venv .venv
# source .venv/bin/activate
# pip install -e '.[notebook]'
# mshnet predict frame.png
# mshnet doctor
# mshnet train --preset quick
# ```
#
# On an Apple chip (M1 and later) the GPU is the default device (`--device mps`). It computes in float32. A Python for Intel's processors, which Rosetta translates, has no GPU: install one for arm64. If the GPU is wrong or slow, use `--device cpu`.
#
# ## With conda
#
# ```bash
# git clone https://github.com/{{repo}}
# cd mshnet
# conda env create -f environment.yml
# conda activate mshnet
# ```
#
# ## In a notebook
#
# ```bash
# pip install jupyterlab
# jupyter lab nbs/run/local.ipynb
# ```
#
# The runner [local](../run/local.ipynb) goes from top to bottom as it is. Headless it is the same notebook:
#
# ```bash
# papermill nbs/run/local.ipynb out.ipynb -p dataset_dir data/NUAA-SIRST -p epochs 50 -p output_dir runs/mine
# ```
#
# ## Your own images
#
# Put images into `images/` and masks of the same names into `masks/`, with targets white on black. Two lists of names decide which images are for training and which for the test. This line writes them:
#
# ```bash
# mshnet data data/mine --split 0.5 --seed 0
# ```
#
# Half of the images are for training. The split is by image, and both lists get the same share of images with no target, with one, and so on. Lists that exist are never overwritten. The protocol of a score says that its list was made so. The frames of one video are almost equal: put all of them into one list by hand.
#
# ## Where things go
#
# Relative to the folder in which you started (in JupyterLab: the notebook's own folder, `nbs/run`; use whole paths there): data sets are looked for as paths, then in `data/`; archives are unpacked to `data/unpacked`; runs are made in `runs/`, each in a folder named after its data and its settings. `--output-dir` names another.

# %%
from mshnet.places import run_folder, where
from mshnet.recipe import Config

print(where().note)
run_folder(Config(dataset_dir="data/NUAA-SIRST", epochs=50))

# %%
#| hide
assert run_folder(Config(output_dir="runs/mine")).name == "mine"
