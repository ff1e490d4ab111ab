# %% [markdown]
# # Kaggle in five minutes
#
# > Open a notebook, choose the accelerator, attach your data, save the version.

# %% [markdown]
# [中文](kaggle.zh-CN.ipynb)
#
# **What was tried:** these notebooks were executed from top to bottom on a CPU (two T4s as two processes, a TPU as XLA's CPU runtime), with folders in place of Kaggle's. A real Kaggle session was not available.
#
# ## 1. Open: two files and no account
#
# You need a notebook and a wheel, which is the whole library in one file. Nothing has to be published, and you need no GitHub account; Kaggle itself asks for one of its own. On your own machine, in the folder of this project:
#
# ```bash
# make wheel    # without make: python -m pip wheel --no-deps --wheel-dir dist .
# ```
#
# 1. In Kaggle, choose Create, New Notebook, then File, Import Notebook, and upload a runner from `nbs/run/`.
# 2. Add Input, Upload: make a private data set of the one file `dist/mshnet-*.whl`. It stays attached to the notebook.
# 3. In the session's options choose the accelerator of the table below, and switch Internet on.
#
# Of several wheels the first cell installs the latest version. It needs Internet for the requirements of `mshnet` that Kaggle's image lacks; if the image has them all, it works without. Kaggle gives Internet and accelerators to accounts with a verified phone number.
#
# If the project is published, a badge opens the runner instead, and with Internet the first cell needs no wheel.
#
# | runner | accelerator (Session options) | open |
# |---|---|---|
# | [kaggle_gpu](../run/kaggle_gpu.ipynb) | GPU T4 x2; one is fine too | [![Open in Kaggle](https://kaggle.com/static/images/open-in-kaggle.svg)](https://kaggle.com/kernels/welcome?src=https://github.com/{{repo}}/blob/{{branch}}/nbs/run/kaggle_gpu.ipynb) |
# | [kaggle_tpu](../run/kaggle_tpu.ipynb) | TPU v5e-8 | [![Open in Kaggle](https://kaggle.com/static/images/open-in-kaggle.svg)](https://kaggle.com/kernels/welcome?src=https://github.com/{{repo}}/blob/{{branch}}/nbs/run/kaggle_tpu.ipynb) |
#
# ## 2. Run all
#
# Without a data set it trains on synthetic scenes: nine short epochs in `kaggle_gpu` (preset `quick`), but 200 in `kaggle_tpu`, where you write `epochs = 20` in the settings for a first look. With two T4s each batch is shared by two processes, and the result is that of one GPU with the same `batch_size`.
#
# ## 3. Your data
#
# Add Input, and choose or upload a data set. Write its name in the settings cell:
#
# ```python
# dataset_dir = "nuaa-sirst"
# epochs = 50
# ```
#
# The name is searched in `/kaggle/input` and in the folders one and two levels below. An archive in it is unpacked once. A data set needs `images/`, `masks/` and two lists of names. What is attached is read-only. Where the lists are missing, put a cell with `!mshnet data NAME --split 0.5` above the settings: it writes them beside the notebook and prints their names, which you write as `train_list` and `test_list`. The same seed gives the same lists in every session.
#
# ## 4. Save the version
#
# Save Version, Save & Run All: the notebook runs without you, and `/kaggle/working` becomes its output: `runs/` with `best.pt`, the scores, the pictures, the log. The cell "Take the run along" also puts the run into one file there. What an interactive session wrote is lost unless a version is saved.
#
# ## 5. When the time is over
#
# Kaggle ends a session after 12 hours, with a TPU after 9. Training stops by itself after 11.5 or 8.5 hours, with everything written (`max_hours`). These hours count from the last start of the kernel. If you restarted it, write the hours that the session has left into `max_hours`. To resume: choose Add Input and the last output of the same notebook, then run it again with the same settings. The run is found there and resumes.
#
# ## Commands
#
# In a cell each takes a `!` in front.
#
# ```bash
# mshnet doctor
# mshnet predict PATH_OF_THE_INPUT    # a folder of images, no masks needed
# mshnet data nuaa-sirst
# mshnet train --dataset-dir nuaa-sirst --epochs 50
# mshnet test --weight-path /kaggle/working/runs/nuaa-sirst-*/best.pt
# mshnet pack /kaggle/working/runs/nuaa-sirst-*
# ```
#
# ## When it goes wrong
#
# See [troubleshooting](trouble.ipynb), and for a TPU [its page](tpu.ipynb).
