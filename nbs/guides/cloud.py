# %% [markdown]
# # Colab and Kaggle
#
# > For somebody without a GPU of their own. At the end a notebook has trained on your data, and you have downloaded the run.

# %% [markdown]
# [中文](cloud.zh-CN.ipynb)
#
# **Not verified:** these notebooks never ran in a real Colab or Kaggle session. We tested them on a CPU, with two processes instead of two T4s, XLA's CPU runtime instead of a TPU, and mock objects for Drive and Kaggle's folders.
#
# ## 1. Choose a notebook
#
# Begin with Colab's T4 or Kaggle's GPU; a TPU takes the longest to start.
#
# | service | notebook | accelerator to choose |
# |---|---|---|
# | Colab, GPU (T4, L4, A100) | [a100_setup](../run/a100_setup.ipynb) [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/{{repo}}/blob/{{branch}}/nbs/run/a100_setup.ipynb) | Runtime, Change runtime type: any GPU, also the free T4 (not only an A100) |
# | Colab, TPU | [tpu_setup](../run/tpu_setup.ipynb) [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/{{repo}}/blob/{{branch}}/nbs/run/tpu_setup.ipynb) | v5e-1 TPU |
# | Kaggle, GPU | [kaggle_gpu](../run/kaggle_gpu.ipynb) [![Open in Kaggle](https://kaggle.com/static/images/open-in-kaggle.svg)](https://kaggle.com/kernels/welcome?src=https://github.com/{{repo}}/blob/{{branch}}/nbs/run/kaggle_gpu.ipynb) | Session options: GPU T4 x2; one is fine too |
# | Kaggle, TPU | [kaggle_tpu](../run/kaggle_tpu.ipynb) [![Open in Kaggle](https://kaggle.com/static/images/open-in-kaggle.svg)](https://kaggle.com/kernels/welcome?src=https://github.com/{{repo}}/blob/{{branch}}/nbs/run/kaggle_tpu.ipynb) | Session options: TPU v5e-8 |
#
# For problems with a TPU, see [TPU](tpu.ipynb).
#
# ## 2. Open it
#
# {{published: Click its badge: the first cell installs the library from GitHub. The rest of this step is for a library that you have changed. }}You need two files: the notebook, and a wheel, which is the whole library in one file. Make the wheel on your own machine, in the folder of this project:
#
# ```bash
# make wheel    # without make: python -m pip wheel --no-deps --wheel-dir dist .
# ```
#
# **Colab**
#
# 1. File, Upload notebook: choose a file of `nbs/run/`.
# 2. Choose the accelerator of the table above.
# 3. Upload `dist/mshnet-*.whl` to `MyDrive`, and click Mount Drive in the panel Files before you run the notebook. For a trial, drag it into that panel; there it is deleted with the session.
#
# **Kaggle** (Internet and accelerators need a verified phone number)
#
# 1. Create, New Notebook, then File, Import Notebook: choose a file of `nbs/run/`.
# 2. Choose the accelerator of the table above, and switch Internet on.
# 3. Add Input, Upload: upload the wheel as a private data set. It stays attached. For a new wheel, upload a new version of this data set (not tried).
#
# The first cell installs `mshnet` and prints from where. If there are several wheels, it installs the latest version.
#
# - Never run `pip install torch`: the service's own PyTorch fits its devices, and the cell keeps it.
# - If `mshnet` is already installed, the cell installs nothing. For a new wheel in Colab, first choose Runtime, Disconnect and delete runtime; then upload the new wheel.
#
# ## 3. Your data
#
# A data set needs `images/`, `masks/` and two lists of names ([your own images](own_images.ipynb)).
#
# | | Colab | Kaggle |
# |---|---|---|
# | upload | one `.zip` on your Drive | Add Input: choose or upload a data set |
# | in the settings cell | `dataset_dir = "/content/drive/MyDrive/NUAA-SIRST.zip"` | `dataset_dir = "nuaa-sirst"`, its name |
# | what happens | unpacked once to the session's disk | found by name in `/kaggle/input` or up to two folders below; an archive is unpacked once |
# | note | do not train from single files on Drive, because reading them is slow | attached data are read-only |
#
# To try it without an upload, `dataset_dir = "NUAA-SIRST"` downloads a published data set (never tried; [data sets](datasets.ipynb) explains its lists).
#
# If your data have no lists, put a cell with `!mshnet data NAME --split 0.5` above the settings; NAME is what you write as `dataset_dir` (in Colab, first click *Mount Drive* in the panel Files). It writes the lists into the folder of the data set; for a `.zip`, into its unpacked copy; if that is read-only, next to the notebook. On Kaggle set `train_list` and `test_list` to the printed names. Keep the cell: a new session needs it, and makes the same lists. Its message *there is a list* is harmless. For frames of videos, make the lists [by video](own_images.ipynb).
#
# The cell "The data" reports what was found. Check the figures below it: the marks must lie on the targets.
#
# ## 4. Run all
#
# In Colab choose Runtime, Run all. On Kaggle, try it with Run All; for a real run use Save Version, Save & Run All: it runs without you and keeps `/kaggle/working`.
#
# The notebook first detects targets in an image, then trains. Without a data set it trains on synthetic scenes: for 20 epochs in Colab and on a Kaggle TPU, for 9 on a Kaggle GPU (preset `quick`). If you got no accelerator, set `preset = "quick"`, and in a TPU notebook also `device = "auto"`.
#
# For a real run on your data use 200 epochs, the default with a data set. Longer than a session is fine (section 5). Decide now: a different number of epochs later starts a new run. How long it takes here is not measured. Measure it in a cell: `!mshnet bench NAME`, with `--preset a100` on a Colab GPU, `--preset tpu` on a TPU. Put its rows `train, batch ...` and `score, batch ...` and your numbers of images into the formula of [step 7](first_run.ipynb). It measures one GPU only.
#
# In Colab the cell below the settings asks for permission to use your Drive, because the notebook copies results there. If you refuse, data on Drive cannot be read; without them training continues, and the results stay on the session's disk. With two T4s, each batch is split across two processes. The result should not change; this was tested on a CPU only.
#
# ## 5. When the session ends
#
# | | Colab | Kaggle |
# |---|---|---|
# | the service ends a session (rules of 2025) | after at most 12 hours, and earlier when nobody uses it | after 12 hours, with a TPU after 9; hours per week are limited, too |
# | training saves everything and stops (hours since the kernel's start) | after 11.5 hours | after 11.5 hours, with a TPU after 8.5 |
# | what can be lost | what was not yet copied to Drive | everything that an interactive session wrote, unless you save a version |
# | to resume | open the same notebook, click Mount Drive and run all: the run is restored from `MyDrive/mshnet` | Add Input: the last output of the same notebook; then run all |
#
# When you resume, change only `max_hours`, `device`, `num_devices` or `mirror_dir`: other settings may start a new run. After a restart of the kernel in the same session, set `max_hours` to the session's remaining hours minus 0.5, because the count begins at zero.
#
# ## 6. Download the run
#
# | | Colab | Kaggle |
# |---|---|---|
# | the run folder: weights, scores, figures, log | `MyDrive/mshnet` | the version's output, in `runs/` |
# | as one file | the cell "Download the run" | the same cell |
#
# ## Commands
#
# In a cell below the first one, put a `!` before each command. In Colab, first click *Mount Drive* in the panel Files: a command cannot do it.
#
# ```bash
# mshnet doctor
# mshnet predict /content/drive/MyDrive/images --output-dir /content/drive/MyDrive/found    # Colab
# mshnet data /content/drive/MyDrive/NUAA-SIRST.zip    # Colab
# mshnet train /content/drive/MyDrive/NUAA-SIRST.zip --mirror-dir drive    # Colab
# mshnet train nuaa-sirst --num-devices 2    # Kaggle, two T4s: the name of the attached data set
# mshnet test /kaggle/working/runs/NAME    # Kaggle: the folder that training printed
# ```
#
# If something fails, see [troubleshooting](trouble.ipynb).
