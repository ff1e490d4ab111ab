# %% [markdown]
# # MSHNet in one page
#
# > For a student who knows PyTorch but not this field. In 160 lines of plain PyTorch we make data, build the network, train it, and score its detections.

# %% [markdown]
# Here a network learns, in a minute or two, to find a few bright pixels among clouds. We import only the synthetic images from the library and write the rest as simply as possible. A table at the end shows which lines the library replaces, and why.
#
# ## The task
#
# An infrared camera looks at the sky. A distant aircraft or drone is a spot of about twenty pixels. Warm clouds can be as bright, but they are much larger. Single hot pixels and bright streaks are no targets either. We want a mask: 1 for each pixel of a target, 0 for the rest. In these small scenes only about one pixel in a hundred is a 1; in real frames it is often one in a thousand or fewer. This imbalance decides which loss we need.

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch
from scipy.ndimage import white_tophat
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
    images = (images / 255 - 0.45) / 0.225  # about ImageNet's mean and standard deviation
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
# MSHNet (Liu et al., CVPR 2024, arXiv:2403.19366) is a U-Net. On the way down the image is halved four times, so each value of the deepest stage sees a large part of the image. On the way up each stage also gets the features of the same size from the way down, which keep the exact place of the spot.
#
# Each block is a ResNet block with two kinds of attention. **Channel attention** pools each channel over the image, by mean and by maximum, and computes a weight for the channel. **Spatial attention** pools each pixel over the channels in the same way, and computes a weight for the pixel.

# %%
class Block(nn.Module):
    def __init__(self, in_channels, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(in_channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width),
        )  # fmt: skip
        self.shortcut = nn.Identity()
        if in_channels != width:
            self.shortcut = nn.Sequential(nn.Conv2d(in_channels, width, 1), nn.BatchNorm2d(width))
        self.channels = nn.Sequential(
            nn.Conv2d(width, width // 16, 1, bias=False), nn.ReLU(),
            nn.Conv2d(width // 16, width, 1, bias=False),
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
# The name means *multi-scale heads*: each of the four stages on the way up predicts a mask at its resolution. We upsample the four masks, and one more convolution fuses them into the prediction. Fine heads suit small targets, coarse heads large ones. Each head has a loss.

# %%
def stage(in_channels, width, blocks=2):
    return nn.Sequential(
        Block(in_channels, width), *(Block(width, width) for _ in range(blocks - 1))
    )


def upsample(x, factor=2):
    return F.interpolate(x, scale_factor=factor, mode="bilinear", align_corners=True)


class MSHNet(nn.Module):
    def __init__(self):
        super().__init__()
        width = [16, 32, 64, 128, 256]
        self.start = nn.Conv2d(3, 16, 1)
        self.down = nn.ModuleList([stage(16, 16, 1), *map(stage, width[:-1], width[1:])])
        self.up = nn.ModuleList([stage(48, 16, 1), stage(96, 32), stage(192, 64), stage(384, 128)])
        self.heads = nn.ModuleList(nn.Conv2d(w, 1, 1) for w in width[:-1])
        self.fuse = nn.Conv2d(4, 1, 3, padding=1)
        for head in self.heads:  # the heads start with a probability of 0.02, not 0.5
            nn.init.constant_(head.bias, -4.0)

    def forward(self, x):
        skips, x = [], self.start(x)
        for step in self.down[:-1]:
            skips.append(step(x))
            x = F.max_pool2d(skips[-1], 2)
        x, outputs = self.down[-1](x), []
        for i in (3, 2, 1, 0):
            x = self.up[i](torch.cat([skips[i], upsample(x)], 1))
            outputs.insert(0, self.heads[i](x))
        stacked = torch.cat([outputs[0], *(upsample(outputs[i], 2**i) for i in (1, 2, 3))], 1)
        return outputs, self.fuse(stacked)


model = MSHNet()
print(f"{sum(p.numel() for p in model.parameters()):,} parameters")
with torch.no_grad():
    outputs, logits = model(images[:2])
for shape in [*(output.shape for output in outputs), logits.shape]:
    print(tuple(shape))


# %% [markdown]
# ## The loss
#
# With one target pixel in a hundred, "no target anywhere" is right for 99% of the pixels, so **cross-entropy** alone learns slowly. The **soft IoU loss** is 1 - overlap / union of prediction and mask, so correctly empty background does not count. But when the prediction is very wrong, its gradient nearly vanishes. Cross-entropy still has a gradient there. We use their sum for each of the five outputs (four heads, one fused), with the mask at the size of the output.

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
# The loop is the usual one: AdamW, a learning rate that rises and falls, batches in a new order in each epoch. Images are flipped at random, because 96 images are few.

# %%
EPOCHS, BATCH = 8, 8
steps = EPOCHS * len(images) // BATCH
optimizer = torch.optim.AdamW(model.parameters())
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.002, total_steps=steps)  # sets the rate
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
# A pixel is predicted as target if its probability is above 0.5. Predicted pixels that touch form one detection. Three numbers describe the result:
#
# - **IoU**: overlap / union, over the pixels of all images.
# - **Pd**, probability of detection: found targets / targets. A target is found if the centre of a predicted object is less than 3 pixels away.
# - **Fa**, false alarms: pixels of predicted objects that match no target, per million pixels.

# %%
def objects(mask):
    return regionprops(label(mask, connectivity=2))


def iou_of(found, truth):
    return (found & truth).sum() / (found | truth).sum()


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
iou = iou_of(found, truth)
print(f"IoU {iou:.2f}  Pd {matched / targets:.2f}  Fa {1e6 * false / truth.numel():.0f}")

# %%
figure, axes = plt.subplots(1, 4, figsize=(11, 3))
for axis, image, f, t in zip(axes, test_images, found, truth, strict=False):
    axis.imshow(image[0], cmap="gray")
    axis.contour(t[0], [0.5], colors="cyan", linewidths=1)
    axis.contour(f[0].float(), [0.5], colors="tab:orange", linewidths=1)
    axis.axis("off")
axes[0].set_title(
    "cyan: ground truth, orange: detected; third image: a false alarm where streaks cross",
    loc="left",
)
assert matched / targets > 0.7


# %% [markdown]
# In the figure every target is found, but the detections are about a pixel too wide (question 1).
#
# Was a network needed? A top-hat filter keeps what is brighter than its surroundings and narrower than a window, here of 11 pixels. Its threshold is the one with the highest IoU on the training images:

# %%
def top_hat(images):
    return white_tophat(images[:, :1].numpy(), (1, 1, 11, 11))


bright, target = top_hat(images), masks.numpy() > 0
threshold = max(np.linspace(0.2, 1.4, 61), key=lambda level: iou_of(bright > level, target))
filtered = top_hat(test_images) > threshold
counts = [match(f[0], t[0].numpy()) for f, t in zip(filtered, truth, strict=True)]
matched, targets, false = map(sum, zip(*counts, strict=True))
iou = iou_of(filtered, truth.numpy())
print(f"IoU {iou:.2f}  Pd {matched / targets:.2f}  Fa {1e6 * false / truth.numel():.0f}")

# %% [markdown]
# The filter finds the targets, but also the streaks, which are as narrow: it has many times more false pixels.
#
# ## What the library replaces, and why
#
# | lines here | page | because |
# |---|---|---|
# | `make_scenes` | [data](../21_data.ipynb) | published data sets have many formats of masks and lists, and contain mistakes |
# | `flip` | [augment](../22_augment.ipynb) | the augmentation depends only on seed, epoch and image, so a run repeats exactly |
# | `Block`, `MSHNet` | [model](../00_model.ipynb) | the layers are named as in the official code, so its weights load |
# | `loss_of` | [loss](../01_loss.ipynb) | training with the paper's loss can collapse; the page shows how |
# | the loop | [train](../37_train.ipynb) | it resumes after an interruption, and a TPU compiles each program only once |
# | `match` | [metrics](../02_metrics.ipynb) | a greedy match can miss targets, and scripts differ in the rule |
# | `> 0.5` | [predict](../53_predict.ipynb) | it predicts frames of any size, in tiles, and writes tables of the detections |
#
# ## Questions
#
# 1. Why is the IoU far below 1 although every target is found?
#    <details><summary>Answer</summary>A target here has about twenty pixels. A ring of one pixel around it about doubles its area. So a detection that is one pixel too wide on every side has an IoU of about a half.</details>
# 2. What would happen with a head bias of 0?
#    <details><summary>Answer</summary>At first each pixel of the heads would have a probability of about a half, and the first steps would only learn that most pixels are background. With the paper's loss, training can collapse: see the page on the loss.</details>
# 3. Why do we shrink the masks for the heads by a maximum, and not by a mean?
#    <details><summary>Answer</summary>At stride 8 a mean would give a target of two pixels a value of 0.03, almost nothing. The maximum keeps it at 1.</details>
