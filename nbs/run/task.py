# %% [markdown]
# # {{title}} / {{chinese}}
#
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/{{repo}}/blob/{{branch}}/nbs/run/{{name}}.ipynb) [![Open in Kaggle](https://kaggle.com/static/images/open-in-kaggle.svg)](https://kaggle.com/kernels/welcome?src=https://github.com/{{repo}}/blob/{{branch}}/nbs/run/{{name}}.ipynb)
#
# {{what}} The notebook runs on a laptop, Colab or Kaggle: CPU, GPU or TPU. Without a data set it simulates one, so you can run it from top to bottom as it is.
#
# ## 1. Install / 安装
#
# This installs only what is missing. It never replaces a preinstalled torch, torch_xla, numpy or IPython.

# %% tags=["install"]
# {{install.py}}

# %% [markdown]
# ## 2. Settings / 设置
#
# Edit the settings here, or pass them to papermill: `papermill {{name}}.ipynb out.ipynb -p epochs 20`. `None` and `""` mean not set.
#
# `mshnet train --task {{name}} --help-all` lists all settings of the task. You can add each of them here, or pass it to papermill. Papermill then prints `Passed unknown parameter`, because it reads this cell only, but the setting works. An unknown name is an error in the next cell. Where a message names a flag, such as `--batch-size 3`, set `batch_size = 3` here. In Colab set `mirror_dir = "drive"`: the run is backed up to your Drive, and resumes from there on a new machine.

# %% tags=["parameters"]
task = ""  # what is trained
preset = ""  # named settings of the task, or ""; signs with videos: "paper"
dataset_dir = ""  # folder of a data set, or "" for a simulated one
epochs = None  # passes over the training data
batch_size = None  # samples per step, over all devices
lr = None  # learning rate
choose = None  # which epoch is selected: last, val or test
device = "auto"  # auto, cpu, cuda, cuda:1, mps, xla
num_devices = None  # chips or GPUs that share a batch; None: all chips of a TPU, one GPU
output_dir = ""  # run folder, or "" for one named after the recipe
mirror_dir = ""  # folder for a backup of the run; "drive": Google Drive, in Colab
max_hours = None  # hours after which it saves and stops; None: by the session

# %%
# @title Check the settings { display-mode: "form" }
from mshnet.core import from_notebook
from mshnet.places import ask_for_drive

ask_for_drive(from_notebook(globals()))  # in Colab, if the data, the run or its backup are there
config = from_notebook(globals())  # a run to resume may lie there
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
# Training prints one line per epoch. If the session ends, run the notebook again to resume. On a new machine this needs a backup (on Kaggle, the last output attached as input). The stop button ends the step in progress, stores everything and prints how to resume. If the run is finished, the cell only reports it.

# %%
from mshnet.train import train

run = train(config)

# %% [markdown]
# ## 5. Scores / 评测结果
#
# The scores come with everything that is needed to compare them.

# %%
run.scores

# %% [markdown]
# ## 6. Figures / 图
#
# The learning curves:

# %%
from mshnet.show import gallery, learning_curves

learning_curves(run.folder)

# %% [markdown]
# Samples of the test data, {{gallery}}:

# %%
gallery(run.folder, config)

# %% [markdown]
# ## 7. Download the run / 下载结果
#
# Colab and Kaggle delete their disk at the end of a session. There this cell packs the run into one file. In Colab the browser offers it for download; Kaggle shows it in the panel Output. Your own disk keeps the run.

# %%
from mshnet.places import run_folder
from mshnet.session import take_along

print(take_along(run_folder(config)))

# %% [markdown]
# ## 8. Files and backup / 文件与备份
#
# `best.pt` has the weights of the selected epoch (`mshnet test RUN`), `last.pt` everything to resume from, `train.log` what was printed. If there is a backup, this cell adds the figures to it.

# %%
from mshnet.train import keep_copies

print(run.listing())
print(keep_copies(config))
print(run)
