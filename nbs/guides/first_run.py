# %% [markdown]
# # A small trial run first
#
# > Ten minutes on any machine: does it install, find, train and resume, are your data what you think?

# %% [markdown]
# Do this before you rent a GPU for a day. Each step ends with something to look at. Steps 1 to 3 need no data.
#
# Install `mshnet` first: [on your own machine](local.ipynb), or by the first cell of a runner in [Colab](colab.ipynb) or on [Kaggle](kaggle.ipynb), where each command takes a `!` in front.
#
# ## 1. Find a target
#
# Trained weights come with the library. Here they search a synthetic scene, because no real picture with free terms was available; `find_targets("frame.png")` searches a picture of yours.

# %%
from mshnet import find_targets

find_targets()

# %% [markdown]
# For many files, `mshnet predict images/` writes masks, tables and marked pictures into `predictions`. [The model card](../../mshnet/pretrained.md) reports how well these weights do, and where they fail.
#
# ## 2. The machine
#
# ```bash
# mshnet doctor
# ```
#
# Every line should report `ok`. A `warning` can wait, an `error` cannot; each names the remedy. The exit status is 0, 1 or 2 by the worst line.
#
# ## 3. Train on synthetic scenes
#
# ```bash
# mshnet train --preset quick --output-dir runs/trial
# ```
#
# The full-size network learns on small images of a synthetic sky. It takes a few minutes on 2 CPU cores. Stop it in the middle with Ctrl-C and give the same command again: it resumes. The pictures are in `runs/trial/figures`. From the repository's folder `make demo` does the same and shows it in a notebook; on a slow CPU it takes fewer epochs, as many as three minutes allow by three measured steps.
#
# Expect a score near those of [five seeds](../../results/SCORES.md) of the same preset. It is not exactly the same on every machine.
#
# ## 4. Your data, without training
#
# `data/NUAA-SIRST` stands for the folder of your data set, here and below. If you have none, write `NUAA-SIRST` instead: it is downloaded, with the split of most papers ([notebook](../13_fetch.ipynb); the addresses were not tried). For your own images, [make masks and lists](local.ipynb).
#
# ```bash
# mshnet data data/NUAA-SIRST
# ```
#
# This reports how many images and targets there are, how large they are, and everything that is wrong: masks of a different size, names without an image, the same image in both lists. Status 2 means that training would refuse them.
#
# ## 5. Your data, for three epochs
#
# Small images, few epochs, a folder of its own. Nothing of this is a result: the sizes are wrong on purpose.
#
# ```bash
# mshnet train --dataset-dir data/NUAA-SIRST --base-size 128 --crop-size 128 --epochs 3 --output-dir runs/small
# mshnet test --weight-path runs/small/best.pt
# ```
#
# `best.pt` holds the weights that are scored: by default those of the last epoch.
#
# Look at `runs/small/figures/gallery.png`. Hits and misses are marked where the masks have targets: something must be visible there. False alarms may be anywhere after so few epochs.
#
# ## 6. How long will the real run take?
#
# ```bash
# mshnet bench --dataset-dir data/NUAA-SIRST
# ```
#
# Multiply the time of `train`, which is that of one image, by your training images and by 200 epochs. Scoring after each epoch comes on top: the time of `score` for each scored image; `--eval-every 200` scores once.
#
# ## 7. The real run
#
# ```bash
# mshnet train --dataset-dir data/NUAA-SIRST
# ```
#
# 200 epochs, scored at 256x256. If the machine may go away, add `--mirror-dir DIR` with a folder that stays. If it may only be stopped, add nothing: the same command [resumes](resume.ipynb).

# %% [markdown]
# The same in Python, here at a size that takes seconds:

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

# %% [markdown]
# The second call finds a finished run and only reports it.

# %%
#| hide
assert len(run.config.recipe()) > 10 and again.ended == run.ended
