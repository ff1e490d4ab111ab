# %% [markdown]
# # Colab and Kaggle
#
# > For somebody without a GPU. At the end a notebook has trained on your data, and you have downloaded the run.

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
# No accelerator? For a trial (9 epochs at 128x128) set `preset = "quick"` in the settings cell, and in a TPU notebook also `device = "auto"`. For problems with a TPU, see [TPU](tpu.ipynb).
#
# ## 2. Open it
#
# {{published: Click its badge: the first cell installs the library from GitHub. The rest of this step is for a library that you have changed. }}You upload two files, so that the library needs no public address: the notebook, and a wheel, the whole library in one file. Make the wheel on your own machine, in the folder of this project:
#
# ```bash
# make wheel    # without make: python -m pip wheel --no-deps --wheel-dir dist .
# ```
#
# **Colab**
#
# 1. File, Upload notebook: choose a file of `nbs/run/`.
# 2. Choose the accelerator of the table above.
# 3. For a trial, drag `dist/mshnet-*.whl` into the panel Files; it is deleted when the session ends. To keep it, upload it to `MyDrive`, and click Mount Drive in that panel before you run the notebook.
#
# **Kaggle** (Internet and accelerators need a verified phone number)
#
# 1. Create, New Notebook, then File, Import Notebook: choose a file of `nbs/run/`.
# 2. Choose the accelerator of the table above, and switch Internet on.
# 3. Add Input, Upload: upload the wheel as a private data set. It stays attached. For a new wheel, upload a new version of this data set (not tried).
#
# The first cell installs `mshnet` and prints the source. If there are several wheels, it installs the latest version.
#
# - Never run `pip install torch`: the cell keeps the installed PyTorch, which fits the machine.
# - If `mshnet` is already installed, the cell installs nothing. For a new wheel in Colab, first choose Runtime, Disconnect and delete runtime; then upload the new wheel.
#
# ## 3. Your data
#
# A data set needs `images/`, `masks/` and two lists of names ([your own images](own_images.ipynb)).
#
# | | Colab | Kaggle |
# |---|---|---|
# | upload | one `.zip` on your Drive | Add Input: choose or upload a data set |
# | in the settings cell | `dataset_dir = "/content/drive/MyDrive/NUAA-SIRST.zip"` | `dataset_dir = "my-targets"`, its folder's name |
# | what happens | unpacked once a session, to its disk | found in `/kaggle/input`, at most two folders deeper; an archive is unpacked once |
# | note | do not train from single files on Drive, because reading them is slow | attached data are read-only. Other folder names? In a cell above: `!mkdir -p /tmp/mine && ln -sfn /kaggle/input/NAME/Images /tmp/mine/images && ln -sfn /kaggle/input/NAME/Labels /tmp/mine/masks`, then `dataset_dir = "/tmp/mine"` (instead of /kaggle/input/NAME use the path that the panel Input shows; lists there: `train_list` and `test_list`, with their full paths) |
#
# To try it without an upload, `dataset_dir = "NUAA-SIRST"` downloads a published data set (never tried; [data sets](datasets.ipynb) explains its lists).
#
# If your data have no lists:
#
# 1. Above the settings add a cell with `!mshnet data NAME --split 0.5`. NAME is your `dataset_dir`, such as `/content/drive/MyDrive/mine.zip`. In Colab, first click *Mount Drive* in the panel Files.
# 2. The lists go into the data set's folder or, for a `.zip`, into its unpacked copy. If that is read-only (Kaggle), they go next to the notebook: set `train_list` and `test_list` to the two printed paths, which begin with `/kaggle/working/`.
# 3. Keep the cell: a new session makes the same lists. Its message *there is a list* is harmless.
#
# For frames of videos, make the lists [by video](own_images.ipynb).
#
# The cell "The data" reports what was found. Check the figures below it: the marks must lie on the targets.
#
# ## 4. Run all
#
# In Colab choose Runtime, Run all. On Kaggle, try it with Run All; for a real run use Save Version, Save & Run All: it runs without you and keeps `/kaggle/working`.
#
# The notebook first detects targets in an image, then trains. Without a data set it trains on synthetic scenes: for 20 epochs in Colab and on a Kaggle TPU, for 9 on a Kaggle GPU (preset `quick`).
#
# The Colab notebooks and the Kaggle TPU notebook use batches of 16 and a learning rate of 0.002; a run of 200 epochs with these was not measured. For the recipe of our results, or to fine-tune, set `preset = "steady"` (on eight chips also `batch_size = 8`). The recipes of `a100_setup` and `tpu_setup` are the same. So with the same data and settings, the second one finds the run of the first and continues it; for a run of its own set `output_dir = "/content/runs/tpu"`.
#
# For a real run on your data use 200 epochs, the default with a data set. A run may take several sessions (section 5). Choose the number of epochs now: a different number starts a new run. We have not measured the time. To estimate it for one GPU, run `!mshnet bench NAME` in a cell (NAME is your `dataset_dir`; on a Colab GPU add `--preset a100`), and read `ms/image` in the first rows `train` and `score`. On a TPU (not tried) add `--preset tpu`, and run it above the cell "The machine", which takes the TPU. Then
#
# ```
# hours = 200 * (training images * ms of train + test images * ms of score) / 3_600_000
# ```
#
# In Colab the two notebooks above copy results to your Drive (in `eit`, `events` and `signs` set `mirror_dir = "drive"`). If it is not mounted, the cell below the settings asks for permission. If you refuse, data on Drive cannot be read, and results stay on the session's disk.
#
# With two T4s, each batch is split across two processes. The result should not change; this was tested on a CPU only.
#
# ## 5. When the session ends
#
# | | Colab | Kaggle |
# |---|---|---|
# | the service ends a session (rules of 2025) | after at most 12 hours, and earlier when nobody uses it | after 12 hours, with a TPU after 9; hours per week are limited, too |
# | our limit: training saves and stops, counted from the start of the kernel | after 11.5 hours | after 11.5 hours, with a TPU after 8.5 |
# | what can be lost | what was [not yet copied](resume.ipynb) to Drive | everything that an interactive session wrote, unless you save a version |
# | to resume | open the same notebook, upload the wheel again if it is not in `MyDrive`, click Mount Drive and run all: the run is restored from `MyDrive/mshnet` | Add Input: the last output of the same notebook; then run all |
#
# When you resume, change only `max_hours`, `device`, `num_devices` or `mirror_dir`: other settings may start a new run. A run in float16 (the default on a T4) cannot resume on a TPU. One in bf16 (the default on an L4 or A100) continues on a T4, but slowly; if the GPU may change, begin with `precision = "fp16"`. After a kernel restart our count begins again at zero, the session's does not: set `max_hours` to the session's remaining hours minus 0.5.
#
# ## 6. Download the run
#
# | | Colab | Kaggle |
# |---|---|---|
# | the run folder: weights, scores, figures, log | `MyDrive/mshnet` | the version's output, in `runs/` |
# | as one file | the cell "Download the run" | the same cell |
#
# On your own machine, with the library installed: `tar -xzf NAME.tar.gz`, then `mshnet predict frame.png --weight-path NAME`.
#
# ## Commands
#
# In a cell below the first one, put a `!` before each command. In Colab, first click *Mount Drive* in the panel Files: a command cannot mount it. Training counts hours from the command's start: add `--max-hours`, the session's remaining hours minus 0.5.
#
# ```bash
# mshnet doctor
# mshnet predict /content/drive/MyDrive/images --output-dir /content/drive/MyDrive/found    # Colab
# mshnet data /content/drive/MyDrive/NUAA-SIRST.zip    # Colab
# mshnet train /content/drive/MyDrive/NUAA-SIRST.zip --mirror-dir drive    # Colab
# mshnet train my-targets --num-devices 2    # Kaggle, two T4s: the name of the attached data set
# mshnet test /kaggle/working/runs/NAME    # Kaggle: the folder that training printed
# pip install onnx onnxruntime onnxscript
# mshnet export /content/drive/MyDrive/mshnet/NAME    # Colab: best.onnx on your Drive
# ```
#
# If something fails, see [troubleshooting](trouble.ipynb).
