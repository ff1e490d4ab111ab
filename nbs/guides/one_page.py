# %% [markdown]
# # MSHNet in one page
#
# > Data, network, training, detections and score, from nothing to a picture, in 150 lines of plain PyTorch.

# %% [markdown]
# You know PyTorch and have never looked for a target of four pixels. This page does all of it once, as simply as possible: a network learns in a minute or two to find a few bright pixels among clouds. Nothing here is imported from the library but the synthetic pictures. At the end a table says which of these lines the library replaces, and why.
#
# ## The task
#
# An infrared camera looks at the sky. Something far away, an aircraft or a drone, is a spot of a few pixels, and warm clouds are brighter and much larger. The answer is a mask: 1 for each pixel of a target, 0 for the rest. Less than one pixel in a hundred is a 1. Keep that number in mind; it decides about the loss.

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch
from skimage.measure import label, regionprops
from torch import nn
from torch.nn import functional as F

from mshnet.scenes import scene

torch.manual_seed(0)
SIZE = 64


def make_scenes(count, seed):
    "Images [N,3,S,S], standardised, and masks [N,1,S,S] of 0 and 1."
    pairs = [scene(np.random.default_rng([seed, i]), SIZE) for i in range(count)]
    images, masks = (torch.from_numpy(np.stack(part)).float() for part in zip(*pairs, strict=True))
    images = (images / 255 - 0.45) / 0.225  # about mean 0 and deviation 1
    return images[:, None].repeat(1, 3, 1, 1), masks[:, None]


images, masks = make_scenes(96, seed=1)
test_images, test_masks = make_scenes(24, seed=2)
figure, axes = plt.subplots(2, 4, figsize=(9, 4.6))
for column, (image, mask) in zip(axes.T, zip(images, masks, strict=True), strict=False):
    column[0].imshow(image[0], cmap="gray")
    column[1].imshow(mask[0], cmap="gray")
for axis in axes.flat:
    axis.axis("off")
axes[0, 0].set_title("image", loc="left")
axes[1, 0].set_title("mask", loc="left")
print(f"{masks.mean():.2%} of the pixels are target")


# %% [markdown]
# ## The network
#
# MSHNet (Liu et al., CVPR 2024, arXiv:2403.19366) is a U-Net. On the way down the image is halved four times, so that a pixel of the last stage has seen the whole cloud. On the way up each stage gets the features of the same size from the way down, so that the place of the spot is not lost.
#
# Its block is that of a ResNet with two kinds of attention. **Channel attention** weighs each channel by its mean and maximum over the image. **Spatial attention** weighs each pixel by the mean and maximum over the channels.

# %%
class Block(nn.Module):
    def __init__(self, wide_in, wide):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(wide_in, wide, 3, padding=1), nn.BatchNorm2d(wide), nn.ReLU(),
            nn.Conv2d(wide, wide, 3, padding=1), nn.BatchNorm2d(wide),
        )  # fmt: skip
        self.shortcut = nn.Identity()
        if wide_in != wide:
            self.shortcut = nn.Sequential(nn.Conv2d(wide_in, wide, 1), nn.BatchNorm2d(wide))
        self.channels = nn.Sequential(
            nn.Conv2d(wide, wide // 16, 1, bias=False), nn.ReLU(),
            nn.Conv2d(wide // 16, wide, 1, bias=False),
        )  # fmt: skip
        self.pixels = nn.Conv2d(2, 1, 7, padding=3, bias=False)

    def forward(self, x):
        y = self.body(x)
        mean, peak = F.adaptive_avg_pool2d(y, 1), F.adaptive_max_pool2d(y, 1)
        y = y * torch.sigmoid(self.channels(mean) + self.channels(peak))
        maps = torch.cat([y.mean(1, keepdim=True), y.amax(1, keepdim=True)], 1)
        y = y * torch.sigmoid(self.pixels(maps))
        return F.relu(y + self.shortcut(x))


# %% [markdown]
# The name means *multi-scale heads*: each of the four stages on the way up predicts a mask of its own size. They are enlarged, and one more convolution joins them to the prediction. So a small target is found by the fine heads, a large one by the coarse ones, and each learns from the loss directly.

# %%
def stage(wide_in, wide, blocks=2):
    return nn.Sequential(Block(wide_in, wide), *(Block(wide, wide) for _ in range(blocks - 1)))


def enlarge(x, factor=2):
    return F.interpolate(x, scale_factor=factor, mode="bilinear", align_corners=True)


class MSHNet(nn.Module):
    def __init__(self):
        super().__init__()
        wide = [16, 32, 64, 128, 256]
        self.start = nn.Conv2d(3, 16, 1)
        self.down = nn.ModuleList([stage(16, 16, 1), *map(stage, wide[:-1], wide[1:])])
        self.up = nn.ModuleList([stage(48, 16, 1), stage(96, 32), stage(192, 64), stage(384, 128)])
        self.heads = nn.ModuleList(nn.Conv2d(w, 1, 1) for w in wide[:-1])
        self.join = nn.Conv2d(4, 1, 3, padding=1)
        for head in self.heads:  # begin with "2% of the pixels are target" and not with "half"
            nn.init.constant_(head.bias, -4.0)

    def forward(self, x):
        beside, x = [], self.start(x)
        for step in self.down[:-1]:
            beside.append(step(x))
            x = F.max_pool2d(beside[-1], 2)
        x, outputs = self.down[-1](x), []
        for i in (3, 2, 1, 0):
            x = self.up[i](torch.cat([beside[i], enlarge(x)], 1))
            outputs.insert(0, self.heads[i](x))
        whole = torch.cat([outputs[0], *(enlarge(outputs[i], 2**i) for i in (1, 2, 3))], 1)
        return outputs, self.join(whole)


model = MSHNet()
print(f"{sum(p.numel() for p in model.parameters()):,} parameters")
with torch.no_grad():
    outputs, logits = model(images[:2])
for shape in [*(output.shape for output in outputs), logits.shape]:
    print(tuple(shape))


# %% [markdown]
# ## The loss
#
# With one target pixel in a hundred, "no target anywhere" is right for 99% of the pixels. **Cross-entropy** alone therefore learns slowly. The **soft IoU** divides the overlap by the union of prediction and truth, so the empty background does not count. It is nearly flat where the prediction is far off, and there cross-entropy pulls. Their sum has neither weakness. All five outputs are trained, each on the mask of its own size.

# %%
def loss_of(logits, mask):
    prob = torch.sigmoid(logits)
    overlap = (prob * mask).sum((1, 2, 3))
    union = (prob + mask - prob * mask).sum((1, 2, 3))
    return (1 - (overlap + 1) / (union + 1)).mean() + F.binary_cross_entropy_with_logits(
        logits, mask
    )


def total_loss(outputs, logits, mask):
    losses = [loss_of(logits, mask)]
    for i, output in enumerate(outputs):
        losses.append(loss_of(output, F.max_pool2d(mask, 2**i) if i else mask))
    return torch.stack(losses).mean()


# %% [markdown]
# ## Training
#
# The loop is the usual one: AdamW, a learning rate that rises and falls, batches in a new order in each epoch. Pictures are mirrored by chance, because 96 are few.

# %%
EPOCHS, BATCH = 8, 8
steps = EPOCHS * len(images) // BATCH
optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.002, total_steps=steps)
curve = []
model.train()
for _ in range(EPOCHS):
    for rows in torch.randperm(len(images)).split(BATCH):
        axes = [axis for axis in (2, 3) if torch.rand(()) < 0.5]
        image, mask = images[rows].flip(axes), masks[rows].flip(axes)
        loss = total_loss(*model(image), mask)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        curve.append(loss.item())
figure, axis = plt.subplots(figsize=(6, 2.6))
axis.plot(np.arange(steps) * BATCH / len(images), curve)
axis.set(xlabel="epoch", ylabel="loss", ylim=(0, None))
print(f"loss {curve[0]:.2f} at first, {np.mean(curve[-12:]):.2f} in the last epoch")


# %% [markdown]
# ## Detections and their score
#
# A pixel is a detection where its probability is above 0.5. Three numbers describe the result:
#
# - **IoU**: overlap by union, over the pixels of all images;
# - **Pd**, probability of detection: the share of targets that a predicted object matches, with its centre less than 3 pixels away;
# - **Fa**, false alarms: pixels of predicted objects that match no target, per million pixels.

# %%
def objects(mask):
    return regionprops(label(mask, connectivity=2))


def match(found, truth):
    "Matched targets, targets, and false pixels of one image."
    free, targets = objects(found), objects(truth)
    matched = 0
    for target in targets:
        for one in free:
            if np.linalg.norm(np.subtract(one.centroid, target.centroid)) < 3:
                matched += 1
                free.remove(one)
                break
    return matched, len(targets), sum(one.area for one in free)


model.eval()
with torch.no_grad():
    found = torch.sigmoid(model(test_images)[1]) > 0.5
truth = test_masks > 0
counts = [match(f[0].numpy(), t[0].numpy()) for f, t in zip(found, truth, strict=True)]
matched, targets, false = map(sum, zip(*counts, strict=True))
iou = (found & truth).sum() / (found | truth).sum()
print(f"IoU {iou:.2f}  Pd {matched / targets:.2f}  Fa {1e6 * false / truth.numel():.0f}")

# %%
figure, axes = plt.subplots(1, 4, figsize=(11, 3))
for axis, image, f, t in zip(axes, test_images, found, truth, strict=False):
    axis.imshow(image[0], cmap="gray")
    axis.contour(t[0], [0.5], colors="tab:green", linewidths=1)
    axis.contour(f[0].float(), [0.5], colors="tab:red", linewidths=1)
    axis.axis("off")
axes[0].set_title("green: truth, red: detected", loc="left")
assert matched / targets > 0.7

# %% [markdown]
# ## What the library replaces, and why
#
# | lines here | page | because |
# |---|---|---|
# | `make_scenes` | [data](../21_data.ipynb) | published sets have sixteen kinds of masks, lists and colours, and mistakes in them |
# | `flip` | [augment](../22_augment.ipynb) | the change of an image depends on seed, epoch and image alone, so a run repeats exactly |
# | `Block`, `MSHNet` | [model](../00_model.ipynb) | names of the layers as in the official weights, so that these load |
# | `loss_of` | [loss](../01_loss.ipynb) | the paper's own loss can kill a training; the page shows how |
# | the loop | [train](../37_train.ipynb) | a disconnect, a full disk or Ctrl-C loses nothing, and a TPU compiles one program |
# | `match` | [metrics](../02_metrics.ipynb) | the first match need not be the best, and published scripts differ |
# | `> 0.5` | [predict](../53_predict.ipynb) | frames of any size, in tiles, with tables of what was found |
#
# ## Questions
#
# <details><summary>Why is the IoU far below 1 although nearly every target is found?</summary>A target here has about twenty pixels. One pixel too many around its edge nearly doubles it: the IoU of a perfect detection that is a pixel too wide is about a half.</details>
#
# <details><summary>What would happen with a head bias of 0?</summary>Half of all pixels would be predicted at first, and the first steps would only learn that there is background. With the paper's loss it can fail for good: see the page on the loss.</details>
#
# <details><summary>Why does each head get a mask of its own size, made by a maximum?</summary>A mean would give a target of two pixels a value of 0.03 at stride 8, which rounds to nothing. The maximum keeps it.</details>
