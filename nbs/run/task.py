# %% [markdown]
# # {{title}} / {{chinese}}
#
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/{{repo}}/blob/{{branch}}/nbs/run/{{name}}.ipynb) [![Open in Kaggle](https://kaggle.com/static/images/open-in-kaggle.svg)](https://kaggle.com/kernels/welcome?src=https://github.com/{{repo}}/blob/{{branch}}/nbs/run/{{name}}.ipynb)
#
# {{what}} It runs on {{place}}. Without a data set it simulates one, so it can be run from top to bottom as it is.
#
# ## 1. Install / 安装
#
# This installs only what is missing. It never replaces a preinstalled torch, torch_xla, numpy or IPython.

# %% tags=["install"]
# {{install.py}}

# %% [markdown]
# ## 2. Settings / 设置
#
# Edit them here, or give them to papermill: `papermill {{name}}.ipynb out.ipynb -p epochs 50`. `mshnet train --task {{task}} --help-all` shows all settings of the task, and each can be added or given to papermill, which then prints `Passed unknown parameter` because it reads this cell only. `None` and `""` mean not set. An unknown name is an error in the next cell. In Colab set `mirror_dir = "drive"`: the run is copied to your Drive, and resumes from there on a new machine.

# %% tags=["parameters"]
task = ""  # what is trained
preset = ""  # named settings of the task, or "" for its defaults
dataset_dir = ""  # folder of a data set, or "" for a simulated one
epochs = None  # passes over the training data
batch_size = None  # samples per step, over all devices
lr = None  # learning rate
choose = None  # which epoch is selected: last, val or test
device = "auto"  # auto, cpu, cuda, cuda:1, mps, xla
num_devices = None  # chips or GPUs that share a batch; None: all chips of a TPU, one GPU
output_dir = ""  # folder of the run, or "" for one named after the recipe
mirror_dir = ""  # folder for a backup of the run; "drive": Google Drive, in Colab
max_hours = None  # hours after which it stops by itself, all written; None: by the place

# %%
from mshnet.core import from_notebook
from mshnet.places import ask_for_drive

config = from_notebook(globals())
ask_for_drive(config)  # in Colab, if the data or the copies lie there
print(config)

# %% [markdown]
# ## 3. The machine / 机器
#
# The doctor reports what this machine is, what it can do, and whether anything is wrong with it or with the data.

# %%
from mshnet.doctor import doctor

print(doctor(config))

# %% [markdown]
# ## 4. Train / 训练
#
# Training prints one line per epoch. If the session ends, run the notebook again to resume. On a new machine this needs a backup (on Kaggle, the last output attached as input). The stop button ends the step in progress, stores everything and prints how to resume. A finished run is only shown.

# %%
from mshnet.train import train

run = train(config)

# %% [markdown]
# ## 5. Scores / 评测结果
#
# The scores come with everything that is needed to compare them.

# %%
run

# %% [markdown]
# ## 6. Figures / 图
#
# How it learned:

# %%
from mshnet.show import gallery, learning_curves

learning_curves(run.folder)

# %% [markdown]
# Samples of the test data, {{gallery}}:

# %%
gallery(run.folder)

# %% [markdown]
# ## 7. Download the run / 下载结果
#
# Colab and Kaggle delete their disk with the session. There this cell puts the run into one file, which Colab's browser offers for download and Kaggle shows in the panel Output. Your own disk keeps the run.

# %%
from mshnet.session import take_along

print(take_along(run.folder))

# %% [markdown]
# ## 8. Where the files are / 文件在哪里
#
# `best.pt` has the weights of the selected epoch (`mshnet test --weight-path`), `last.pt` everything to resume from, `train.log` what was printed.

# %%
from mshnet.train import keep_copies

print(run.listing())
print(keep_copies(config))
print(run)
