# %% [markdown]
# # From the official script to this library
#
# > For somebody who has used the official MSHNet scripts. At the end you can run the same commands here, know what differs and why, and can evaluate published weights.

# %% [markdown]
# The method and the official code are by Liu et al. (CVPR 2024). This library shares no code with theirs. With `--preset paper` and `--rule reference` it reproduces their forward pass, losses, gradients, transforms and scores: counts exactly, other numbers to float32 rounding ([tests](../../tests/test_golden.py)).
#
# ## Commands and flags
#
# | official | here |
# |---|---|
# | `python main.py --mode train --dataset-dir D` | `mshnet train --dataset-dir D` |
# | `python main.py --mode test --weight-path W --dataset-dir D` | `mshnet test --weight-path W --dataset-dir D` |
# | `--batch-size --epochs --lr --warm-epoch --base-size --crop-size` | the same; `--batch-size` counts over all devices |
# | `--if-checkpoint True` | nothing: the same command resumes; `--resume RUN` names a different run |
# | `--multi-gpus True` | `--num-devices N`, or `torchrun` |
# | TPU guides: `--use-tpu --num-cores 8 --global-batch-size 64` | `--device xla --num-devices 8 --batch-size 64` |
#
# For a retired flag the error names the replacement. The data set stays as it is: `images/`, `masks/` and the lists.
#
# ## The official recipe
#
# ```bash
# mshnet train --dataset-dir data/NUAA-SIRST --preset paper
# ```
#
# Whole training list, float32, the last epoch kept, 400 epochs, batch 4, Adagrad at 0.05, six epochs in which the full-size head alone is trained. The random numbers differ (seeds, shuffling, crops), so no run repeats an official run number by number. To evaluate it as the script does:
#
# ```bash
# mshnet test --weight-path runs/NUAA-SIRST-*/best.pt --rule reference
# ```
#
# ## What is different, and why
#
# Without `--preset paper` the recipe is `steady`, because the official one fails with many seeds ([results](results.ipynb)).
#
# | | official | the default here | why |
# |---|---|---|---|
# | optimiser | Adagrad, rate 0.05 | AdamW, rate 0.001, linear warm-up, cosine to a hundredth, gradients clipped at 1, averaged weights (EMA 0.999) | Adagrad's first steps are so large that predictions collapse |
# | loss | SLS, after six epochs of IoU | soft IoU plus binary cross-entropy, each image by itself | their gradient does not vanish where nothing or everything is predicted ([loss](../01_loss.ipynb)) |
# | outputs that are supervised | the full-size head for six epochs, then all five | all five from the first step; the fusing layer starts as the full-size head, head biases at -4 | a new random layer on large features makes the prediction all-positive |
# | training crops | long side resized to 0.5x to 2x of 256, crops of 256x256 | cut from the image as it is scored, 128x128, flipped and rotated; at least half of them hold a target, a quarter are partly covered by a large occluder | targets have the size at which they are evaluated; four times as many steps for the same number of pixels |
# | selected epoch | the best on the **test** list | the last one | chosen on the test list a score looks better than it is. `--choose test` does it and records it with the score |
# | matching for Pd and Fa | the first free prediction in label order | best pairs (`--rule exact`) | the order of labels has no influence. `--rule reference` repeats the script |
# | Fa | a false alarm as large as some hit is not counted | all are counted | see [how the scores are defined](scores.ipynb) |
# | arithmetic | float32 | bfloat16 where the chip has it, float16 on a T4 or V100 | faster; `--precision fp32` for the other |
# | a run | weights in a folder by date | a folder named after its settings, with everything to resume | sessions end |
#
# The evaluated images are the same: both sides are resized to 256.
#
# To keep the official network and loss but not its failures, start the fusing layer as the full-size head, train the new parts at a tenth of the learning rate, and start the heads far below zero:
#
# ```bash
# mshnet train --dataset-dir data/NUAA-SIRST --preset paper --fusion-start full_size --join-rate 0.1 --head-bias -4
# ```
#
# On NUAA-SIRST none of three seeds had collapsed after 30 epochs (one covered some images on the way). [Results](results.ipynb) compares them with runs without these settings, and with the default recipe, which is better.
#
# ## Published weights
#
# The [official repository](https://github.com/Lliu666/MSHNet) links its weights in the column Weights of its README (IRSTD-1k and NUDT-SIRST; none for NUAA-SIRST). Its files (`.tar`) load unchanged, with or without the prefix `module.` of several GPUs:
#
# ```bash
# mshnet test --weight-path MSHNet.tar --dataset-dir data/IRSTD-1k --rule reference
# ```
#
# **Tested:** files of that form, made here, and the official network's parameter names. Not tested: the published files themselves, which were not available; this library does not download them. Loading a file never runs code in it; a file that needs to is refused.
#
# In Python:

# %%
import tempfile
from pathlib import Path

import torch

import mshnet

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "published.tar"
    weights = {f"module.{name}": value for name, value in mshnet.MSHNet().state_dict().items()}
    torch.save({"state_dict": weights, "epoch": 399}, path)  # the form of a published file
    prob = mshnet.predict(path, torch.zeros(1, 3, 64, 64, dtype=torch.uint8))
prob.shape

# %% [markdown]
# `mshnet train` starts from the same files:
#
# ```bash
# mshnet train --dataset-dir data/NUAA-SIRST --weight-path MSHNet.tar
# ```

# %%
#| hide
assert prob.shape == (1, 1, 64, 64)
