# %% [markdown]
# # {{title}} / {{chinese}}
#
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/{{repo}}/blob/{{branch}}/nbs/run/{{name}}.ipynb) [![Open in Kaggle](https://kaggle.com/static/images/open-in-kaggle.svg)](https://kaggle.com/kernels/welcome?src=https://github.com/{{repo}}/blob/{{branch}}/nbs/run/{{name}}.ipynb)
#
# This notebook trains and evaluates [MSHNet](https://arxiv.org/abs/2403.19366) for infrared small target detection, on {{place}}. Without a data set it trains on synthetic infrared scenes, for at most 20 epochs, so you can run it from top to bottom as it is.
#
# ## 1. Install / 安装
#
# This installs only what is missing. It never replaces a preinstalled torch, torch_xla, numpy or IPython.

# %% tags=["install"]
# {{install.py}}

# %% [markdown]
# ## 2. Find targets, also in your own image / 找目标，也可用自己的图片
#
# No training is needed: the weights come with the library. Put the name of your image between the quotes; it may have any size, and 8 or 16 bits. `""` is a frame of a drone above clouds that comes with the library (CC0). {{upload}} A CPU takes a few seconds.
#
# For a folder of images or a video (first `!pip install av`), run `!mshnet predict NAME` in a cell. The results are in `predictions/`.

# %%
from mshnet.predict import find_targets

find_targets("", device="cpu")

# %% [markdown]
# ## 3. Settings / 设置
#
# Edit the settings here, or pass them to papermill: `papermill {{name}}.ipynb out.ipynb -p epochs 20`. `None` and `""` mean not set: then `resume`, if it names a run, or else the preset (a named set of defaults) decides. Without a data set and a preset, the preset is `quick`.
#
# The cell has the settings that are changed most often; `mshnet train --help-all` lists all. You can add others here, or pass them to papermill. Papermill then prints `Passed unknown parameter`, because it reads this cell only, but the setting works. An unknown name is an error in the next cell. Where a message names a flag, such as `--batch-size 3`, set `batch_size = 3` here.

# %% tags=["parameters"]
preset = ""  # named settings: steady (the default), quick, paper, a100, tpu
dataset_dir = ""  # folder or .zip of a data set, its known name, or "" for scenes
train_list = ""  # file of the training names, "" for the data set's own
test_list = ""  # file of the test names, "" for the data set's own
scenes = None  # synthetic training scenes, where there is no data set
epochs = None  # passes over the training images
batch_size = None  # images per step
base_size = None  # side to which images are resized for evaluation, or "native"
crop_size = None  # side of the training crops
lr = None  # learning rate
schedule = None  # of the learning rate: cosine or constant
warm_epoch = None  # preset paper: last epoch that trains only the output at full size
seed = None  # of weights, order and random changes
choose = None  # epoch whose weights are kept: last, or the best of val or test
precision = None  # auto, bf16, fp16 or fp32
device = "auto"  # auto, cpu, cuda, cuda:1, mps, xla
num_devices = None  # GPUs or TPU chips per batch; None: one GPU (on Kaggle all), or all chips
weight_path = ""  # weights to begin with: a run, a file or "pretrained"
resume = ""  # folder of an interrupted run; not needed if all settings are the same
output_dir = ""  # run folder, or "" for one named after the recipe
mirror_dir = ""  # folder for a backup of the run; "drive": Google Drive, in Colab
max_hours = None  # hours after which it saves and stops; None: by the session

# %%
# @title Check the settings { display-mode: "form" }
from mshnet.core import from_notebook
from mshnet.places import ask_for_drive

config = from_notebook(globals())
_own = config.dataset_dir or config.resume or globals().get("epochs")
_trial = {} if _own or config.preset in ("", "quick") else {"epochs": 20}  # on synthetic scenes
ask_for_drive(config)  # in Colab, if the data, the run or its backup are there
config = from_notebook(globals() | _trial)  # a run to resume may lie there
print(config)

# %% [markdown]
# ## 4. The machine / 机器
#
# The doctor reports what this machine is, what it can do, and whether anything is wrong with it or with the data.

# %%
from mshnet.doctor import doctor

print(doctor(config))

# %% [markdown]
# ## 5. The data / 数据
#
# Check the data before you train: the marks must be on the targets.

# %%
from mshnet.places import run_folder
from mshnet.show import samples
from mshnet.task import make_task

print(make_task(config).describe_data()[0])

# %%
samples(config, run_folder(config))

# %% [markdown]
# ## 6. Train / 训练
#
# Training prints one line per epoch. To see the curves meanwhile, run `from mshnet.show import learning_curves` and `learning_curves("FOLDER")` in another notebook on the same machine (not in Colab or Kaggle, where each notebook has a separate machine). If the session ends, run the notebook again to resume. On a new machine this needs a backup (on Kaggle, the last output attached as input). The stop button ends the step in progress, stores everything and prints how to resume. If the run is finished, the cell only reports it.

# %% [markdown] tags=["only:tpu_setup", "only:kaggle_tpu"]
# **Never run on a real TPU**, only on XLA's CPU runtime. From the cell "The machine" on this notebook holds the TPU: add `--device cpu` to a command such as `!mshnet predict`.
#
# **The first step of each phase is slow on a TPU**, because it is compiled, and a line reports it (how long was not measured). A run compiles training and evaluation; the preset `paper` compiles training twice. All chips share each batch; the result does not depend on their number.

# %% [markdown] tags=["only:kaggle_gpu"]
# With two T4s, two processes share each batch: the cell starts them, and the first one reports here. The result should be the same as with one GPU and that `batch_size` (tested with two CPU processes).

# %% tags=["only:kaggle_gpu"]
from mshnet.train import all_gpus

config = all_gpus(config)

# %%
from mshnet.train import train

run = train(config)

# %% [markdown]
# ## 7. Scores / 评测结果
#
# The scores come with everything that is needed to compare them: data, resize, threshold, matching rule, and how the epoch was selected.

# %%
run.scores

# %% [markdown]
# ## 8. Figures / 图
#
# The learning curves:

# %%
from mshnet.explore import explore
from mshnet.show import gallery, learning_curves, trade_offs

learning_curves(run.folder)

# %% [markdown]
# The scores at other thresholds:

# %%
trade_offs(run.folder)

# %% [markdown]
# Test images from the worst to the best:

# %%
gallery(run.folder, config)

# %% [markdown]
# Browse the images, worst first, and move the threshold (without widgets: a figure of the worst):

# %%
explore(run.folder, dataset_dir=config.dataset_dir)

# %% [markdown]
# ## 9. Your own image, with the new weights / 用新权重找目标
#
# As in section 2, with the weights of this run. For folders and videos: `!mshnet predict NAME --weight-path FOLDER`.

# %%
find_targets("", run.folder, device="cpu")

# %% [markdown]
# ## 10. Download the run / 下载结果
#
# {{take}}

# %%
from mshnet.session import take_along

print(take_along(run_folder(config)))

# %% [markdown]
# ## 11. Files and backup / 文件与备份
#
# `best.pt` has the weights of the selected epoch (`mshnet test RUN`), `last.pt` everything to resume from, `train.log` what was printed. If there is a backup, this cell adds the figures to it.

# %%
from mshnet.train import keep_copies

print(run.listing())
print(keep_copies(config))
print(run)
