# %% [markdown]
# # How the scores are defined, and why published ones differ
#
# > For somebody who compares our scores with a paper's. At the end you know what each number counts, and which two numbers may stand in one table.

# %% [markdown]
# Papers in this field use the same metric names for different definitions. So here every stored score has its **protocol**. You may compare two scores if these parts of it agree: test images, size, resize, `mirrored`, threshold, matching rule, and whether the epoch was chosen on the test list. Seed, device and precision may differ.
#
# ## The five scores
#
# | score | what it is | range | what to know |
# |---|---|---|---|
# | IoU | overlap / union, over all pixels of the split | 0..1 | dominated by large targets |
# | nIoU | mean IoU of the images | 0..1 | images with an empty union are left out |
# | F1 | harmonic mean of the pixels' precision and recall | 0..1 | follows from IoU: 2 IoU / (1 + IoU) |
# | Pd | found targets / targets | 0..1 | depends on what "found" means |
# | Fa | pixels of false alarms per **million** pixels | 0 and up | other papers count per image, or multiply by a different power of ten |
#
# A pixel is predicted as target if its probability is above 0.5. Predicted pixels that touch, also at a corner (8-connected), form one detection. It finds a target if their centroids are less than 3 pixels apart, and it finds at most one target. If a split has no target, Pd is undefined and printed as a dash.

# %%
import torch

from mshnet.metrics import score

truth = torch.zeros(1, 1, 32, 32)
truth[0, 0, 4:6, 4:6] = truth[0, 0, 20:22, 20:22] = 1  # two targets of 4 pixels
found = torch.zeros_like(truth)
found[0, 0, 4:6, 4:6] = 1  # the first one, exactly
found[0, 0, 10:12, 28:30] = 1  # a false alarm, as large as the hit
print(score(found - 0.5, truth))  # logits: 0.5 where found, -0.5 elsewhere

# %% [markdown]
# One of two targets was found, so Pd is 1/2. Four of 1,024 pixels are a false alarm, so Fa is 3,906 per million. The overlap is 4 pixels and the union 12, so IoU is 4/12.
#
# ## Two matching rules
#
# `--rule exact`, the default, pairs detections and targets so that as many targets as possible are found. Of several such pairings it uses the one with the smallest total distance. All false alarms count.
#
# `--rule reference` does what the official MSHNet script does, including its faults. Each target takes the first free detection in the order of labels. A false alarm is not counted if it has the same area as some hit. Tables made with that script use this rule. With it, the image above has no false alarm:

# %%
print(score(found - 0.5, truth, rule="reference"))

# %% [markdown]
# Never compare an `exact` Fa with a `reference` Fa. Evaluate the weights again with the other rule:
#
# ```bash
# mshnet test runs/NAME --rule reference
# ```
#
# Often the difference is small: in [one run](../../results/nuaa-sirst-paper) Fa is 74.7 with one rule and 73.2 with the other. It is large if there are many false alarms of a few pixels.
#
# ## Why published scores differ
#
# - **The epoch is chosen on the test list.** The best of 400 test scores is higher than that of a typical epoch. Here the default is the last epoch. `--choose test` chooses on the test list, too, and the protocol then reports "the TEST list itself".
# - **One seed.** After 60 epochs, three seeds of the paper's recipe had IoU [0.001](../../results/nuaa-sirst-paper-60/seed0), [0.475](../../results/nuaa-sirst-paper-60/seed1) and [0.399](../../results/nuaa-sirst-paper-60/seed2). The first one had collapsed: it marks nearly every pixel.
# - **Other lists.** The authors of NUAA-SIRST list 341 and 86 images, and most papers use 213 and 214. Both come with `mshnet`: the second is the default, the first is `--train-list nuaa-sirst-authors427-trainval --test-list nuaa-sirst-authors427-test`. The protocol has a hash of the names and pixels of the list.
# - **A different size.** Resizing changes masks: at 256x256 a target of 2 pixels may become 1 pixel, or 6. Some papers evaluate images at their original size, as `mshnet test --base-size native` does. It pads each image to multiples of 16 pixels, and does not score the padding. To evaluate so, also train with `--base-size native`. Weights trained on IRSTD-1k at 256x256 have an IoU of 0.628 at 256x256, but 0.377 at the original size ([results](results.ipynb)). To find out which size a published Pd belongs to, multiply it by the number of targets: for the right size, the product is a whole number, up to the rounding of Pd. IRSTD-1k's test list has 294 targets at 256x256 and 297 at the original size.
# - **Averaged predictions.** `--mirrored true` scores the mean of the predictions of an image and its three mirror images, at four times the cost. The protocol records it.
# - **Other definitions.** nIoU may be a mean over images or over targets; Fa may be per million pixels or per image.
# - **The threshold.** A lower threshold mostly raises Pd and Fa. `trade_offs("runs/NAME")` of `mshnet.show` plots the curve of a run.
#
# ## What a score records

# %%
from mshnet import evaluate

protocol = evaluate("pretrained", device="cpu", scenes=12, base_size=32).protocol
protocol

# %% [markdown]
# [Metrics](../02_metrics.ipynb) has the definitions with all special cases. [Evaluate](../43_evaluate.ipynb) shows how a split is evaluated.

# %%
#| hide
assert protocol["rule"] == "exact" and protocol["threshold"] == 0.5
assert score(found - 0.5, truth).pd == 0.5 and abs(score(found - 0.5, truth).iou - 4 / 12) < 1e-9
assert score(found - 0.5, truth).fa > 0 == score(found - 0.5, truth, rule="reference").fa
