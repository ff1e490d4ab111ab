# %% [markdown]
# # A small trial run first
#
# > Ten minutes on any machine: does it install, does it train, does it go on after an interruption, are your data what you think?

# %% [markdown]
# Do this before you rent a GPU for a day. Each step ends with something to look at, and none needs a download.
#
# ## 1. The machine
#
# Install `mshnet` first: [on your own machine](guide_local.ipynb), or by the first cell of a runner in [Colab](guide_colab.ipynb) or on [Kaggle](guide_kaggle.ipynb), where each command takes a `!` in front.
#
# ```bash
# mshnet doctor
# ```
#
# Every line should say `ok`. A `warning` can wait, an `error` cannot; each says what to do. The exit status is 0, 1 or 2 by the worst line.
#
# ## 2. Synthetic scenes
#
# ```bash
# mshnet train --preset quick --output-dir runs/trial
# ```
#
# The full-size network, on small images of a synthetic sky, for eleven epochs. It took a few minutes on 2 CPU cores. Stop it in the middle with Ctrl-C and give the same command again: it goes on. The pictures are in `runs/trial/figures`. From the repository's folder `make demo` does the same and shows it in a notebook.
#
# What to expect: IoU 0.59 and Pd 0.88 in [the run that was kept](../results/scenes-quick/scores.json), and not the same on your machine. So few epochs are a lottery; a score that rises from epoch to epoch is the point.
#
# ## 3. Your data, without training
#
# `data/NUAA-SIRST` stands for the folder of your data set, here and below.
#
# ```bash
# mshnet data data/NUAA-SIRST
# ```
#
# How many images, how many targets, how large they are, and everything that is wrong: masks of another size, names without an image, the same image in both lists. Status 2 means that training would refuse them.
#
# ## 4. Your data, for three epochs
#
# Small images, few epochs, a folder of its own. Nothing of this is a result: the sizes are wrong on purpose.
#
# ```bash
# mshnet train --dataset-dir data/NUAA-SIRST --base-size 128 --crop-size 128 --epochs 3 --warm-epoch 0 --output-dir runs/small
# mshnet test --weight-path runs/small/best.pt
# ```
#
# Look at `runs/small/figures/gallery.png`. The marks must sit on targets.
#
# ## 5. How long will the real run take?
#
# ```bash
# mshnet bench --dataset-dir data/NUAA-SIRST
# ```
#
# The last lines project 400 epochs from measured steps.
#
# ## 6. The real run
#
# ```bash
# mshnet train --dataset-dir data/NUAA-SIRST
# ```
#
# 400 epochs at 256x256. If the machine may go away, add `--mirror-dir DIR` with a folder that stays. If it may be stopped, nothing needs to be added: the same command goes on.

# %% [markdown]
# The same in Python, here at a size that takes seconds:

# %%
import tempfile

from mshnet.core import configure
from mshnet.train import train

tiny = {"scenes": 12, "base_size": 32, "crop_size": 32, "epochs": 2, "warm_epoch": 0}
with tempfile.TemporaryDirectory() as folder:
    config = configure({**tiny, "device": "cpu", "output_dir": f"{folder}/trial"})
    run = train(config)
    again = train(config)
    print(run.listing().replace(folder, "runs"))

# %% [markdown]
# The second call had nothing left to do and only showed what is there.

# %%
#| hide
assert len(run.config.recipe()) > 10 and again.ended == run.ended
