# %% [markdown]
# # From the official script to this library
#
# > For somebody who has used the official MSHNet scripts. At the end you can run the same commands here, know what differs and why, and can evaluate published weights.

# %% [markdown]
# The method and the official code are by Liu et al. (CVPR 2024). This library shares no code with theirs. But with `--preset paper` and `--rule reference` its forward pass, losses, gradients, transforms and scores are those of the official code at commit 46cdfd4: counts are equal, other numbers agree up to float32 rounding ([tests](../../tests/test_golden.py)). At this commit the authors had corrected errors in their code; the scores in the paper are older than these corrections.
#
# ## Commands and flags
#
# | official | here |
# |---|---|
# | `python main.py --mode train --dataset-dir D` | `mshnet train --dataset-dir D` |
# | `python main.py --mode test --weight-path W --dataset-dir D` | `mshnet test --weight-path W --dataset-dir D` |
# | `--batch-size --epochs --lr --warm-epoch --base-size --crop-size` | the same; `--batch-size` counts over all devices |
# | `--if-checkpoint True` | not needed: the same command resumes; `--resume RUN` names a different run |
# | `--multi-gpus True` | `--num-devices N`, or `torchrun` |
# | TPU guides: `--use-tpu --num-cores 8 --global-batch-size 64` | `--device xla --num-devices 8 --batch-size 64` |
#
# For a retired flag the error names the replacement. You can use the same data set folder: `images/`, `masks/` and the lists.
#
# ## The official recipe
#
# ```bash
# mshnet train data/NUAA-SIRST --preset paper
# ```
#
# This trains in float32 on the whole training list for 400 epochs, with batches of 4 and Adagrad at 0.05. In the first six epochs only the full-size head is trained. The weights of the last epoch are kept. The random numbers (seeds, shuffling, crops) differ from the official ones, so no run has exactly the scores of an official run. The tests therefore compare single steps with stored outputs of the official code, for equal weights, images and augmentation parameters (in the training steps, Adagrad's sums begin at 0.1). To evaluate the last epoch with the matching rule of the official script:
#
# ```bash
# mshnet test runs/NAME --rule reference
# ```
#
# The official script reports the best of its 400 test scores instead. To do the same, add `--choose test --rule reference` to the training command.
#
# ## What is different, and why
#
# Without `--preset paper` the recipe is `steady`, because the official one collapses with some seeds ([results](results.ipynb)).
#
# | | official | the default here | why |
# |---|---|---|---|
# | optimizer | Adagrad at 0.05 | AdamW at 0.001 with a linear warm-up and a cosine schedule; gradients clipped at 1; averaged weights (EMA 0.999) | Adagrad's first steps are very large, and predictions can collapse |
# | loss | SLS, after six epochs of IoU | soft IoU of each image, plus binary cross-entropy | their gradient does not vanish where nothing or everything is predicted ([loss](../01_loss.ipynb)) |
# | outputs that are supervised | the full-size head for six epochs, then all five | all five from the first step; at the start the fused output equals the full-size head, and head biases are -4 | a random fusing layer, added after six epochs, can make the prediction all-positive |
# | training crops | long side resized to 0.5x to 2x of 256, crops of 256x256 | crops of 128x128 from the image at its evaluated size, flipped and rotated; half of them are placed on a target, if the image has one; a quarter of them get a large occluder | targets have the same size in training and evaluation; a crop has a quarter of the pixels |
# | selected epoch | the best on the **test** list | the last one | a score that was chosen on the test list looks better than it is. `--choose test` also selects on the test list, and the score records it |
# | matching for Pd and Fa | the first free prediction in label order | best pairs (`--rule exact`) | the order of labels must not matter. `--rule reference` does the same as the script |
# | Fa | a false alarm with the same area as some hit is not counted | all are counted | see [how the scores are defined](scores.ipynb) |
# | Pd in `metric.log` | divided by the targets of all epochs so far | divided by those of the list | with `--mode test` both are the same |
# | arithmetic | float32 | bfloat16 if the device supports it, float16 on a T4 or V100 | faster; `--precision fp32` gives float32 |
# | run folder | named by date, with weights | named after the settings: `best.pt` has the weights, `log.jsonl` the scores by epoch, `last.pt` all that is needed to resume | the same command resumes the run |
#
# The evaluated images are the same: both sides are resized to 256.
#
# To keep the official network and loss and try to avoid a collapse, change three things: the fused output starts as the full-size head, the coarse heads and the fusing layer train at a tenth of the learning rate, and the heads start with a bias of -4:
#
# ```bash
# mshnet train data/NUAA-SIRST --preset paper --fusion-start full_size --join-rate 0.1 --head-bias -4
# ```
#
# On NUAA-SIRST none of three seeds had collapsed after 30 epochs, though one marked up to 5% of all pixels for a while. The default recipe is better ([results](results.ipynb)).
#
# ## Published weights
#
# The README of the [official repository](https://github.com/Lliu666/MSHNet) links weights in two tables. The first table has IRSTD-1k weights of the corrected code (IoU 0.6787). The second table has the weights of the paper, for IRSTD-1k (IoU 0.6716) and NUDT-SIRST (IoU 0.8055). This library does not download them, but it loads such files (`.tar`) unchanged, with or without the prefix `module.` of several GPUs:
#
# ```bash
# mshnet test MSHNet.tar --dataset-dir data/IRSTD-1k --rule reference
# ```
#
# **Tested** with files of the same form and with the parameter names of the official network. **Not tested** with the published files, which were not available to us. Loading a file never runs code from it: a file that contains code is rejected.
#
# **Size:** the official code trains on images resized to 256x256. Its files do not record this, so `mshnet predict` takes every frame at its own size. Make frames of 512x512 pixels half as large before. Our own weights, trained in this way on IRSTD-1k, then found 0.912 of the targets instead of 0.779 ([numbers](../53_predict.ipynb)).
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
# mshnet train data/NUAA-SIRST --weight-path MSHNet.tar
# ```

# %%
#| hide
assert prob.shape == (1, 1, 64, 64)
