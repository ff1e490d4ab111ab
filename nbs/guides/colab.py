# %% [markdown]
# # Colab in five minutes
#
# > Open a notebook, run all, bring your data, and keep the results.

# %% [markdown]
# [中文](colab.zh-CN.ipynb)
#
# **What was tried:** these notebooks were executed from top to bottom on a CPU, and mounting and copying against stand-ins. A real Colab session, its GPUs and a real Google Drive were not available.
#
# ## 1. Open: two files and no account
#
# You need a notebook and a wheel, which is the whole library in one file. Nothing has to be published, and you need no GitHub account; Colab itself asks for a Google account. On your own machine, in the folder of this project:
#
# ```bash
# make wheel    # without make: python -m pip wheel --no-deps --wheel-dir dist .
# ```
#
# 1. In Colab, choose File, Upload notebook, and upload a runner from `nbs/run/`.
# 2. Choose the machine of the table below.
# 3. Open the panel Files at the left and drag `dist/mshnet-*.whl` into it. The file then lies in `/content`, which is deleted with the session. To keep it, put it into `MyDrive` instead, and click Mount Drive in that panel before you run the notebook.
#
# Of several wheels the first cell installs the latest version, and of that the newest file. It installs nothing where `mshnet` is already installed: after you upload a new wheel, choose Runtime, Disconnect and delete runtime, and begin again.
#
# If the project is published, a badge opens the runner instead, and the first cell needs no wheel.
#
# | runner | machine to choose (Runtime, Change runtime type) | open |
# |---|---|---|
# | [a100_setup](../run/a100_setup.ipynb) | A100 GPU | [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/{{repo}}/blob/{{branch}}/nbs/run/a100_setup.ipynb) |
# | [tpu_setup](../run/tpu_setup.ipynb) | v5e-1 TPU | [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/{{repo}}/blob/{{branch}}/nbs/run/tpu_setup.ipynb) |
#
# With the free T4 open `a100_setup` too: it computes in float16 there. With no GPU at all write `preset = ""` in its settings. Without a data set this is the preset `quick`, nine short epochs, good for a first look; leave `epochs` as it is.
#
# ## 2. Run all
#
# Runtime, Run all. The first cell installs `mshnet`, prints from where, and keeps Colab's own torch and numpy; never `pip install torch` there. Without a data set it trains on synthetic scenes, so the first look needs nothing. It finds targets before it trains anything. The runners' presets train for 200 epochs; for a first look write `epochs = 20` in the settings (more epochs are a new run, because the learning rate falls over all of them). Colab asks for permission to use your Drive below the settings, because these two runners copy results there (the runners of other tasks do so with `mirror_dir = "drive"`); if you refuse, training continues and reports that results stay on the session's disk.
#
# ## 3. Your data
#
# Put a `.zip` of the data set on your Drive (one file, not thousands) and write in the settings cell:
#
# ```python
# dataset_dir = "/content/drive/MyDrive/NUAA-SIRST.zip"
# epochs = 50
# ```
#
# It is unpacked once to the session's disk. Never train from loose files on Drive: they are copied one by one, slowly. A data set needs `images/`, `masks/` and two lists of names. The cell "The data" reports what was found; the pictures below it must show marks on the targets.
#
# ## 4. When the session ends
#
# Open the same notebook again and run all. The run is brought back from `MyDrive/mshnet` and resumes with the same settings. Colab ends a session after at most 12 hours; training stops by itself after 11.5 hours, with everything written (`max_hours`). These hours count from the last start of the kernel. If you restarted it, write the hours that the session has left into `max_hours`.
#
# ## 5. Take the results along
#
# Everything is in `MyDrive/mshnet`, in one folder for each run: `best.pt`, the scores, the pictures, the log. For a download, the cell "Take the run along" puts the run into one file, and the browser offers it.
#
# ## Commands
#
# In a cell each takes a `!` in front. They run beside the notebook and cannot mount Drive: run the notebook's cells first.
#
# ```bash
# mshnet doctor
# mshnet predict /content/drive/MyDrive/pictures    # a folder of images, no masks needed
# mshnet data /content/drive/MyDrive/NUAA-SIRST.zip
# mshnet train --dataset-dir /content/drive/MyDrive/NUAA-SIRST.zip --mirror-dir drive --epochs 50
# mshnet test --weight-path /content/runs/NUAA-SIRST.zip-*/best.pt
# ```
#
# ## When it goes wrong
#
# See [troubleshooting](trouble.ipynb), and for a TPU [its page](tpu.ipynb).
