# %% [markdown]
# # {{title}} / {{chinese}}
#
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/{{repo}}/blob/{{branch}}/nbs/run/{{name}}.ipynb) [![Open in Kaggle](https://kaggle.com/static/images/open-in-kaggle.svg)](https://kaggle.com/kernels/welcome?src=https://github.com/{{repo}}/blob/{{branch}}/nbs/run/{{name}}.ipynb)
#
# Trains [MSHNet](https://arxiv.org/abs/2403.19366) for infrared small target detection, scores it and shows it, on {{place}}. Without a data set it uses synthetic infrared scenes, so it can be run from top to bottom as it is.
#
# ## 1. Install / 安装
#
# This installs only what is missing. It never replaces a preinstalled torch, torch_xla, numpy or IPython.

# %% tags=["install", "only:local"]
import importlib.metadata

if not list(importlib.metadata.distributions(name="mshnet")):
    raise ModuleNotFoundError("mshnet is missing: run `pip install -e .` in its folder")

# %% tags=["install", "only:a100_setup", "only:tpu_setup"]
import importlib
import importlib.metadata
import subprocess

if not list(importlib.metadata.distributions(name="mshnet")):
    subprocess.run(
        "pip list --format=freeze | grep -iE '^(torch|torchvision|torch.xla|numpy|ipython)=' "
        "> kept.txt; "
        "pip install --quiet -c kept.txt 'mshnet @ git+https://github.com/{{repo}}@{{branch}}'",
        shell=True,
        check=True,
    )
    importlib.invalidate_caches()

# %% tags=["install", "only:kaggle_gpu", "only:kaggle_tpu"]
import importlib
import importlib.metadata
import subprocess

# From an attached wheel, else from its repository
if not list(importlib.metadata.distributions(name="mshnet")):
    subprocess.run(
        "pip list --format=freeze | grep -iE '^(torch|torchvision|torch.xla|numpy|ipython)=' "
        "> kept.txt; "
        "pip install --quiet -c kept.txt /kaggle/input/*/mshnet-*.whl || "
        "pip install --quiet -c kept.txt 'mshnet @ git+https://github.com/{{repo}}@{{branch}}'",
        shell=True,
        check=True,
    )
    importlib.invalidate_caches()

# %% [markdown]
# ## 2. Find targets first / 先看检测效果
#
# Before any training: the weights that come with the library, on a synthetic scene or on a picture of yours, as in `find_targets("frame.png", device="cpu")`. Any CPU takes less than a second for a picture.

# %%
from mshnet.predict import find_targets

find_targets(device="cpu")

# %% [markdown]
# ## 3. Settings / 设置
#
# Edit them here, or give them to papermill: `papermill {{name}}.ipynb out.ipynb -p epochs 50`. Any setting can be a parameter, also those not listed. `None` and `""` mean not set: the preset decides, or the run that `resume` names. Without a data set and a preset the preset is `quick`. The next cell rejects an unknown name before any time is spent.

# %% tags=["parameters"]
preset = ""  # named settings: steady (the default), quick, paper, a100, tpu
dataset_dir = ""  # folder, .zip or .tar.gz of a data set, its known name, or "" for scenes
epochs = None  # passes over the training images
batch_size = None  # images per step
lr = None  # learning rate
choose = None  # which epoch is kept: last, val or test
device = "auto"  # auto, cpu, cuda, cuda:1, mps, xla
num_devices = None  # chips or GPUs that share a batch; None: all chips of a TPU, one GPU
output_dir = ""  # folder of the run, or "" for one named after the recipe
mirror_dir = ""  # folder to which the run is copied meanwhile; "drive": Google Drive, in Colab
max_hours = None  # hours after which it stops by itself, all written; None: by the place

# %%
from mshnet.core import from_notebook

config = from_notebook(globals())
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
# Look before you train: the marks must sit on the targets.

# %%
from mshnet.data import report
from mshnet.places import run_folder
from mshnet.show import samples

print(report(config)[0])

# %%
samples(config, run_folder(config))

# %% [markdown]
# ## 6. Train / 训练
#
# Training prints one line per epoch. To see curves and predictions meanwhile, run `from mshnet.explore import watch` and `watch("FOLDER")` in another notebook. If the session ends, run the notebook again to resume. On a new machine this needs a mirror (on Kaggle, the last output attached as input). The stop button ends the step in progress, stores everything and prints how to resume. A finished run is only shown.

# %% [markdown] tags=["only:tpu_setup", "only:kaggle_tpu"]
# **The first step of each phase takes about a minute on a TPU**, because it is compiled, and a line reports it. A run compiles twice, for training and for scoring. All chips share each batch; the result does not depend on their number.

# %% [markdown] tags=["only:kaggle_gpu"]
# With two T4s, two processes share each batch: `torchrun` is started from the cell, and its first process reports here. The result is that of one GPU with the same `batch_size`.

# %% tags=["only:kaggle_gpu"]
from mshnet.train import all_gpus

config = all_gpus(config)

# %%
from mshnet.train import train

run = train(config)

# %% [markdown]
# ## 7. Scores / 评测结果
#
# The scores come with everything that is needed to compare them: data, resize, threshold, matching rule, and how the epoch was chosen.

# %%
run

# %% [markdown]
# ## 8. Pictures / 图片
#
# How it learned:

# %%
from mshnet.explore import explore, watch
from mshnet.show import beside_top_hat, gallery, learning_curves, trade_offs

learning_curves(run.folder)

# %% [markdown]
# What another threshold would give:

# %%
trade_offs(run.folder)

# %% [markdown]
# Test images from the worst to the best:

# %%
gallery(run.folder)

# %% [markdown]
# Walk through them, worst first, and move the threshold (headless: a still picture of the worst):

# %%
explore(run.folder)

# %% [markdown]
# The classical top-hat filter, with its best window and threshold, beside it. A network that does not beat it has learned nothing new:

# %%
beside_top_hat(run.folder)

# %% [markdown]
# The run as `watch` shows it, here after its end; in another notebook, while it trains:

# %%
watch(run.folder)

# %% [markdown]
# The same curves in TensorBoard, where it is installed:

# %%
from mshnet.explore import tensorboard

tensorboard(run.folder)

# %% [markdown]
# ## 9. Where everything lies / 文件在哪里
#
# `best.pt` holds the kept weights (`mshnet test --weight-path`), `last.pt` everything to resume from, `train.log` what was printed. The pictures are copied to the mirror too, if there is one. `mshnet pack` makes one file of the whole run.

# %%
from mshnet.train import keep_copies

print(run.listing())
print(keep_copies(config))
print(run)
