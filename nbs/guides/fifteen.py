# %% [markdown]
# # From image to score in fifteen functions
#
# > For a student who wants to see how a score is computed. We take the chain apart, from an image file to the score line, and get the same line as `mshnet test`.

# %% [markdown]
# `mshnet test` turns files into arrays (functions 1 to 4), a batch (5 to 7), logits (8 to 12), and objects and scores (13 to 15). Most of these functions and methods take plain values: a path, an array, a tensor. Each heading links to the notebook that explains its function. In a notebook, `load_data??` shows the source of `load_data`.
#
# First we need a data set. We write four synthetic scenes to a folder, with masks and a list of names:

# %%
import tempfile
from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt
from PIL import Image

from mshnet.recipe import Config
from mshnet.scenes import scene

root = Path(tempfile.mkdtemp()) / "scenes"
for folder in ("images", "masks"):
    (root / folder).mkdir(parents=True)
for i in range(4):
    image, mask = scene(np.random.default_rng(i), 200)
    Image.fromarray(image).save(root / f"images/scene_{i}.png")
    Image.fromarray(255 * mask).save(root / f"masks/scene_{i}.png")
(root / "test.txt").write_text("".join(f"scene_{i}\n" for i in range(4)))
config = Config(dataset_dir=str(root), batch_size=4, device="cpu", precision="fp32")

# %% [markdown]
# ## The files
#
# ### 1. `load_data`: a folder becomes pairs ([data](../21_data.ipynb))
#
# `load_data` reads the requested splits and caches them for the process. It returns a dictionary with a `Split` for each name (its names, and its pairs of image and mask), and the findings (everything that is wrong with the files).

# %%
from mshnet.data import load_data

parts, findings = load_data(config, ["test"])
split = parts["test"]
print(len(split), "images,", len(findings.errors), "errors; the first is", split.names[0])

# %% [markdown]
# ### 2. `find_dataset`, which `load_data` calls first ([fetch](../13_fetch.ipynb))
#
# It finds the data set that `--dataset-dir` names. It uses a folder as it is and unpacks an archive. It looks for a name next to the notebook, in Kaggle's input and on Drive.

# %%
from mshnet.fetch import find_dataset

print("found:", find_dataset(config.dataset_dir).name)

# %% [markdown]
# ### 3. `read_image` and 4. `read_mask`: pixels ([data](../21_data.ipynb))
#
# Files differ. An image may be grey or in colour, with 8 or 16 bits, or with a palette; `read_image` returns 8-bit grey or colour. A mask file may use any grey level for targets; `read_mask` returns 0 and 1. Both also return what they noticed about the file.

# %%
from mshnet.data import read_image, read_mask

image, mode, pages = read_image(root / "images/scene_0.png")
mask, repairs = read_mask(root / "masks/scene_0.png", image.shape[:2])
assert (image == split.pairs[0][0]).all() and (mask == split.pairs[0][1]).all()
print(f"mode {mode}, {image.shape[0]}x{image.shape[1]} pixels, {mask.sum()} of them are targets")

# %% [markdown]
# ## The batch
#
# ### 5. `resize_square`: the official resize ([augment](../22_augment.ipynb))
#
# Both sides become `base_size`. The image is resized bilinearly, the mask by the nearest pixel. Scores with different resize methods cannot be compared, so the method is part of every score's protocol.

# %%
from mshnet.augment import resize_square

pairs = [resize_square(*pair, config.base_size) for pair in split.pairs]
print(split.pairs[0][0].shape, "becomes", pairs[0][0].shape)

# %% [markdown]
# ### 6. `collate`: one batch ([augment](../22_augment.ipynb))
#
# Arrays become tensors of bytes. Grey images get their three equal channels only here, because one channel needs less memory. `row` is the index of each image. On a TPU the last batch of an evaluation is filled up with copies, whose `row` is -1.

# %%
from mshnet.augment import collate

batch = collate(pairs, range(len(pairs)))
print({name: (tuple(x.shape), x.dtype) for name, x in batch._asdict().items()})

# %% [markdown]
# ### 7. `Device.transfer_batch`: to the device ([device](../30_device.ipynb))
#
# We send bytes, which need a quarter of the memory of floats. On a CPU nothing is sent, and only the memory layout changes.

# %%
from mshnet.device import open_device

device = open_device(config.device, config.precision)
sent = device.transfer_batch(batch)
print(f"{sent.image.nbytes / 1e6:.1f} MB; as floats {sent.image.float().nbytes / 1e6:.1f} MB")

# %% [markdown]
# ## The prediction
#
# ### 8. `infer` ([device](../30_device.ipynb)), which calls 9. `Detection.predict` ([detection](../41_detection.ipynb))
#
# `infer` calls the function that we pass (here a `lambda`) without gradients and in the device's precision, and copies the result back. Only then does the CPU wait for the device. `trained_model` loads the weights of the library, which were trained mostly on real infrared images. The method `predict` of the task returns the logits that are scored: those of the fused output, or, in the warm-up of a run, those of the full-size head (`phase` says which).

# %%
from mshnet.device import infer
from mshnet.task import make_task, trained_model

task, trained = make_task(config), trained_model("pretrained")
model = device.to_device(trained.model).eval()
logits = infer(device, lambda: task.predict(model, sent, trained.phase))  # [4,1,256,256]

# %% [markdown]
# ### Inside `predict`: 10. `normalise` ([detection](../41_detection.ipynb)), 11. `MSHNet.forward` and 12. `attend` ([model](../00_model.ipynb))
#
# `normalise` subtracts ImageNet's mean and divides by its standard deviation. `MSHNet.forward` halves the resolution four times and doubles it four times. Four heads predict at four resolutions, and one convolution fuses them. Each of its blocks ends with `attend`, which weights first the channels, then the pixels. If we call the network directly, we get the same logits:

# %%
import torch

from mshnet.detection import normalise

with torch.no_grad():
    heads, fused = model(normalise(sent.image))
assert torch.equal(fused, logits)
print("heads:", [tuple(head.shape[2:]) for head in heads], "fused:", tuple(fused.shape[2:]))

# %% [markdown]
# ## The score
#
# ### 13. `objects`: targets and detections ([metrics](../02_metrics.ipynb))
#
# A pixel is predicted as target if its logit is above 0, that is, if its probability is above one half. Pixels that touch, also at a corner, form one object.

# %%
from mshnet.metrics import objects

pred, truth = (logits > 0)[:, 0].numpy(), batch.mask[:, 0].numpy() > 0
targets, detections = objects(truth[0]), objects(pred[0])
print(f"{len(targets)} targets, {len(detections)} detections")

# %% [markdown]
# ### 14. `find`: which detection found which target ([metrics](../02_metrics.ipynb))
#
# A detection finds a target if their centroids are less than 3 pixels apart. Each detection finds at most one target. The pixels of all other detections are false alarms. In the figure, circles mark the detections: the bright cloud, the streak and the hot pixels have none.

# %%
from mshnet.metrics import find

print(find(targets, detections, config.rule))

figure, axes = plt.subplots(1, 3, figsize=(9, 3.2), layout="compressed")
shown = (batch.image[0, 0], logits[0, 0].sigmoid(), batch.mask[0, 0])
titles = ("image", "probability of a target", "ground truth")
for panel, pixels, title in zip(axes, shown, titles, strict=True):
    panel.imshow(pixels, cmap="gray")
    panel.set_title(title)
    panel.set_axis_off()
for row, col in detections.centroid:
    axes[0].add_patch(plt.Circle((col, row), 9, fill=False, color="tab:orange"))

# %% [markdown]
# ### 15. `Tally.scores`: the line ([metrics](../02_metrics.ipynb))
#
# A `Tally` does steps 13 and 14 for every image and adds up the counts. IoU and F1 are computed from the pixels of all images together, nIoU is the mean of the IoU of each image, Pd is the fraction of targets found, and Fa the number of false pixels per million.

# %%
from mshnet.metrics import Tally

tally = Tally(config.rule)
tally.add(logits, batch.mask)
by_hand = tally.scores()
print(by_hand)

# %% [markdown]
# `evaluate` does these steps batch by batch. It also records the protocol. [How the scores are defined](scores.ipynb) lists what must agree before two scores may be compared.

# %%
from mshnet.evaluate import evaluate

result = evaluate(config)
assert result.scores == by_hand
print(result.scores)
result.protocol

# %% [markdown]
# ## Questions
#
# 1. The logit of a pixel is 0.1. Is it predicted as target?
#    <details><summary>Answer</summary>Yes. It is above 0, so its probability is above one half.</details>
# 2. You average the IoU of all images. Is this the IoU of the line?
#    <details><summary>Answer</summary>No, it is the nIoU. The IoU adds up the pixels of all images before it divides.</details>
#
# Next: [what the scores mean](scores.ipynb), [how a training step works](../37_train.ipynb), [your own task](task.ipynb).
