# %% [markdown]
# # Augmentation
#
# > Training images are cropped and changed at random; an evaluation changes nothing but their size.
#
# A training set of a few hundred images is seen hundreds of times. Augmentation changes the pixels each time, in ways that leave the answer known: if the image is mirrored, so is its mask. What may change depends on the task. An upside-down sky is not a sky, but a target of five pixels looks the same from all sides, so every orientation is a free training image.

# %%
#| hide
#| default_exp augment
import matplotlib.pyplot as plt

from mshnet.augment import add_clutter, augment, sample_clutter, sample_params
from mshnet.data import scenes
from mshnet.metrics import objects

# %%
#| export
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, ImageFilter, ImageOps
from torch import Tensor
from torch.nn import functional as F

from mshnet.data import Pair, Split, scored_mask
from mshnet.recipe import Config

# %% [markdown]
# ## One scene, one change at a time
#
# The outlines are the mask, which changes with the image. Scaled by 0.7, the scene no longer fills the crop and the rest is padded with zeros. Scaled by 1.5, only a part of it fits.

# %%
image, mask = scenes("train", 4, 128).pairs[1]
changes = {
    "as stored": lambda plane: plane,
    "mirrored": ImageOps.mirror,
    "upside down": ImageOps.flip,
    "transposed": lambda plane: plane.transpose(Image.Transpose.TRANSPOSE),
    "scaled by 0.7": lambda plane: plane.resize((90, 90)).crop((0, 0, 128, 128)),
    "scaled by 1.5": lambda plane: plane.resize((192, 192)).crop((64, 64, 192, 192)),
}
figure = plt.figure(figsize=(10, 2.2), layout="constrained")
for axes, (name, change) in zip(figure.subplots(1, 6), changes.items(), strict=True):
    axes.imshow(change(Image.fromarray(image)), cmap="gray", vmin=0, vmax=180)
    axes.contour(change(Image.fromarray(mask)), [0.5], colors="orange", linewidths=1)
    axes.set(xticks=[], yticks=[], title=name)

# %% [markdown]
# ## Four augmentations
#
# | `--augment` | a training crop is |
# |---|---|
# | `turns`, the default | in one of the eight orientations of a square (mirrored, upside down, transposed), half of the time blurred |
# | `flips` | also scaled |
# | `robust` | also as from a different sensor: contrast, brightness, noise, defective pixels |
# | `paper` | with `--crop resize` as in the official code: mirrored, its long side resized to 0.5 to 2 times `--base-size`, half of the time blurred |
#
# The figure shows the middle of the scene in four epochs, by each kind. The black parts are padding. The blur of `turns` and the noise of `robust`, both in epoch 1, are easiest to see in the background. The first three kinds choose a crop with a target here, `paper` takes any:

# %%
stored = image[32:96, 32:96], mask[32:96, 32:96]
names = ("as stored", *(f"epoch {i}" for i in range(4)))
figure = plt.figure(figsize=(8, 6.6), layout="constrained")
for kind, row in zip(("turns", "flips", "robust", "paper"), figure.subplots(4, 5), strict=True):
    own = {"crop": "resize", "target_share": 0.0} if kind == "paper" else {"target_share": 1.0}
    config = Config(augment=kind, base_size=64, clutter_share=0, seed=8, **own)
    views = [augment(*stored, sample_params(config, epoch, 1), 64) for epoch in range(4)]
    for axes, name, (pixels, outline) in zip(row, names, [stored, *views], strict=True):
        axes.imshow(pixels, cmap="gray", vmin=0, vmax=150)
        if outline.any():
            axes.contour(outline, [0.5], colors="orange", linewidths=1)
        axes.set(xticks=[], yticks=[], title=name if kind == "turns" else "")
    row[0].set_ylabel(kind)

# %% [markdown]
# ## An occluder in front
#
# Networks mistake the edges of large bright objects for targets. When we held out 71 training images of NUAA-SIRST, four of them had most of the false pixels, at a white cliff, a vapour trail and a row of trees. Such edges are rare in the data sets of this field.
#
# With probability `clutter_share` a crop is therefore partly covered by a large occluder, brighter or darker than the background: a half-plane with a straight or rough edge, or a bar longer than any target (at least 77 pixels long in a crop of 128). Covered target pixels lose their label. This is an invention of this library, not of the paper. The scene from above with six occluders, and the outlines of what is left of its targets:

# %%
figure = plt.figure(figsize=(10, 2.2), layout="constrained")
for axes, seed in zip(figure.subplots(1, 6), range(6), strict=True):
    pixels, label = add_clutter(image, mask, sample_clutter(np.random.default_rng([seed, 1])))
    axes.imshow(pixels, cmap="gray", vmin=0, vmax=255)
    if label.any():
        axes.contour(label, [0.5], colors="orange", linewidths=1)
    axes.set(xticks=[], yticks=[], title=f"{len(objects(label > 0))} of 2 targets left")


# %% [markdown]
# The occluder has the texture of the crop itself, turned by 180 degrees. A target in that texture would have no label and teach the network to leave targets out, so each target is first replaced by the mean of its surroundings.
#
# ## The machinery: what is sampled
#
# The parameters of a crop are sampled first and applied afterwards. They depend on nothing but the seed, the epoch and the index of the image: not on the number of workers, the batch size or an interruption. The first five are those of the official training transform, and with `--preset paper` they have the official distributions. The others are sampled after them.

# %%
#| export
class AugmentParams(NamedTuple):
    "What is sampled for one training image."

    mirror: bool  # left to right
    long_side: int  # of the resized image, in pixels; 0: not resized, or to `square`
    top: float  # 0..1: from the first possible row of the crop to the last
    left: float
    blur: float  # radius of the Gaussian blur in pixels; 0: none
    flip: bool = False  # upside down
    turn: bool = False  # rows become columns
    target: float = -1.0  # 0..1: which of the target pixels the crop must hold; negative: none
    scale: tuple[float, float] = (1.0, 1.0)  # additional scale of rows and of columns
    sensor: int = 0  # seed of noise and sensor faults; 0: none
    clutter: tuple[int, ...] = ()  # an occluder, as of `sample_clutter`; (): none
    square: int = 0  # side of the resized square, as in evaluation; 0: it has its own size


def sample_params(config: Config, epoch: int, index: int) -> AugmentParams:
    "The parameters of one image, by its index in the split, in one epoch."
    rng = np.random.default_rng([config.seed, epoch, index])
    mirror = bool(rng.random() < 0.5)
    side = config.crop_size if config.base_size == "native" else config.base_size
    long_side = int(rng.integers(side // 2, side * 2 + 1))
    top, left, blur = float(rng.random()), float(rng.random()), float(rng.random())
    blur *= rng.random() < 0.5
    paper, robust = config.augment == "paper", config.augment == "robust"
    flip, turn = bool(rng.random() < 0.5), bool(rng.random() < 0.5)
    held, which = rng.random() < config.target_share, float(rng.random())
    size, shape = rng.uniform(-1, 1, 2)
    sensor = int(rng.integers(1, 2**31))
    resized, scale = config.crop == "resize", (1.0, 1.0)
    if config.augment != "turns" and (robust or not resized):
        low, high, stretch = (0.5, 1.6, 1.3) if robust else (0.7, 1.5, 1.2)  # scale, aspect
        size = 1.0 if resized else (low * high) ** 0.5 * (high / low) ** (size / 2)
        aspect = stretch ** (shape / 2)
        scale = size * aspect, size / aspect
    scored = config.crop == "scored" and config.base_size != "native"
    return AugmentParams(
        *(mirror, long_side if resized else 0, top, left, blur),
        flip=flip and not paper,
        turn=turn and not paper,
        target=which if held else -1.0,
        scale=scale,
        sensor=sensor if robust else 0,
        clutter=sample_clutter(rng) if rng.random() < config.clutter_share else (),
        square=side if scored else 0,
    )


# %%
params: AugmentParams = sample_params(Config(clutter_share=0), epoch=3, index=1)
print(f"top {params.top:.2f}, mirror {params.mirror}, flip {params.flip}, turn {params.turn}")


# %% [markdown]
# Here `top` is 0.15: of the rows that do not fit into the crop, 15% lie above it. The size of the image turns such fractions into pixels. An image that is 300 high and 400 wide, resized to a long side of 512, becomes 384x512, and a crop of 256 in the middle begins at row 64 and column 128. A crop that must contain a target is shifted until it does, with a margin of a sixteenth of its side.

# %%
#| export
def _placement(
    mask: np.ndarray,  # [H,W] uint8, 0 or 1
    params: AugmentParams,
    crop_size: int,
) -> tuple[int, int, int, int]:  # height and width after the resize; row and column of the crop
    "The resize and the crop of this image by its parameters."
    long, most = (params.long_side, max(mask.shape)) if params.long_side else (1, 1)
    unscaled = (params.square,) * 2 if params.square else mask.shape
    pairs = zip(unscaled, params.scale, strict=True)  # not n * (long / most), which may round
    sides = [max(int(n * long * scale / most + 0.5), 1) for n, scale in pairs]
    spare = [max(side - crop_size, 0) for side in sides]
    starts = [int(at * (n + 1)) for at, n in zip((params.top, params.left), spare, strict=True)]
    if params.target >= 0 and mask.any():
        pixels = np.flatnonzero(mask)
        place = divmod(int(pixels[int(params.target * len(pixels))]), mask.shape[1])
        for i, mirrored in enumerate((params.flip, params.mirror)):
            old = mask.shape[i] - 1 - place[i] if mirrored else place[i]
            new, edge = int((old + 0.5) * sides[i] / mask.shape[i]), crop_size // 16
            starts[i] = min(max(starts[i], new - crop_size + 1 + edge), new - edge)
            starts[i] = min(max(starts[i], 0), spare[i])
    return sides[0], sides[1], starts[0], starts[1]


# %% [markdown]
# ### The occluder
#
# The shape is a formula. For a pixel at $(x, y)$, with the crop from -1 to 1, the depth below the surface is
#
# $$d = \min(l - |x'|,\; s - |y'|) + \sum_k h_k \sin(u_k x + v_k y + p_k)$$
#
# where $x'$ and $y'$ are along and across a rectangle of half sides $l$ and $s$, and waves of height $h_k$, frequency $(u_k, v_k)$ and phase $p_k$ make its edge rough. The opacity of the occluder is $\sigma(d \cdot S / 2 \cdot c)$ with the side $S$ in pixels and the sharpness $c$, and a label is removed where $d > 0$. All parameters are multiples of 1/65,536. They are rounded once, when they are sampled.

# %%
#| export
_WAVES, _SCALE = 8, 65_536


def sample_clutter(rng: np.random.Generator) -> tuple[int, ...]:  # [41] multiples of 1/65,536
    "An occluder: place, turn, half sides, sharpness, level, texture; then its waves."
    angle = rng.uniform(0, np.pi)
    turn = np.array([np.cos(angle), np.sin(angle)])
    place, rough = rng.uniform(-1, 1, 2), 0.0  # column and row of its middle
    if rng.random() < 0.5:  # one side of an edge: a rectangle far larger than the crop
        sides = np.array([8.0, 4.0])
        place += rng.choice([-1, 1]) * sides[1] * turn[::-1] * (-1, 1)
        rough = rng.uniform(0.1, 0.7) * (rng.random() < 0.7)
    else:
        sides = np.exp(rng.uniform(np.log([0.6, 0.02]), np.log([2, 0.5])))
    soft, texture = np.exp(rng.uniform(np.log(0.3), np.log(3))), rng.uniform(0, 1)
    level = rng.choice([-1, 1], p=[0.3, 0.7]) * rng.uniform(15, 200)
    cycles = np.exp(rng.uniform(np.log(0.5), np.log(10), _WAVES))  # in the crop
    direction, phase = rng.uniform(0, 2 * np.pi, (2, _WAVES))
    height = rough / cycles ** rng.uniform(0.7, 1.3)
    waves = [np.pi * cycles * np.cos(direction), np.pi * cycles * np.sin(direction), phase, height]
    numbers = [*place, *turn, *sides, 1 / soft, level, texture, *np.concatenate(waves)]
    return tuple(round(_SCALE * float(number)) for number in numbers)


def _sums_around(x: Tensor, reach: int) -> Tensor:
    "Sums of the square of 2 reach + 1 pixels around each pixel [..,S,S]; exact for whole numbers."
    side = 2 * reach + 1
    for _ in range(2):  # along rows, then along columns
        total = F.pad(x, (reach + 1, reach)).cumsum(-1)
        x = (total[..., side:] - total[..., :-side]).mT
    return x


def _without_targets(image: Tensor, mask: Tensor) -> Tensor:
    "An image [C,S,S] with its targets, and 4 pixels around them, replaced by the mean around."
    kept = (_sums_around(mask.float(), 4) == 0).float()
    total, count = _sums_around(image * kept, 16), _sums_around(kept, 16)
    mean = image.mean()  # where a target is larger than its surroundings
    return torch.where(kept > 0, image, (total + mean) / (count + 1))


def add_clutter(image: np.ndarray, mask: np.ndarray, numbers: tuple[int, ...]) -> Pair:
    "Put an occluder of `sample_clutter` in front of a part of an image [S,S] or [S,S,3]."
    size = mask.shape[0]
    planes = torch.from_numpy(np.atleast_3d(image).copy()).permute(2, 0, 1).float()
    label = torch.from_numpy(mask.copy())
    values = torch.tensor(numbers, dtype=torch.float32) / _SCALE
    x, y, cos, sin, long, short, sharp, level, texture = values[:9]
    at = (2 * torch.arange(size) + 1) / size - 1
    across, along = at[None] - x, at[:, None] - y
    depth = torch.minimum(
        long - (cos * across + sin * along).abs(), short - (cos * along - sin * across).abs()
    )
    for right, down, phase, height in values[9:].view(4, _WAVES).T:
        depth = depth + height * torch.sin(right * at[None] + down * at[:, None] + phase)
    opacity = torch.sigmoid(depth * (size / 2) * sharp)
    mean = planes.mean()
    turned = _without_targets(planes, label).flip(1, 2)
    occluder = (mean + level + texture * (turned - mean)).clamp(0, 255)
    pixels = (planes + (occluder - planes) * opacity + 0.5).to(torch.uint8)  # halves upwards
    return pixels.permute(1, 2, 0).numpy().reshape(image.shape), (label * (depth <= 0)).numpy()


# %% [markdown]
# ### The transform
#
# The transform mirrors, resizes so that the long side has the sampled length (image bilinear, mask nearest), pads with zeros at the right and the bottom, crops, turns, adds the occluder and blurs. Pillow does the work, on one channel of a grey image instead of three. With `--preset paper` the result equals the official transform to the last pixel.

# %%
#| export
def augment(image: np.ndarray, mask: np.ndarray, params: AugmentParams, crop_size: int) -> Pair:
    "The training transform of a pair, [H,W] or [H,W,3], to [S,S] or [S,S,3], by its parameters."
    picture, truth = Image.fromarray(image), Image.fromarray(mask)
    height, width, y, x = _placement(mask, params, crop_size)
    for wanted, change in ((params.mirror, ImageOps.mirror), (params.flip, ImageOps.flip)):
        if wanted:
            picture, truth = change(picture), change(truth)
    size = (width, height)
    box = (x, y, x + crop_size, y + crop_size)  # Pillow fills what lies outside with zeros
    picture = picture.resize(size, Image.Resampling.BILINEAR).crop(box)
    truth = truth.resize(size, Image.Resampling.NEAREST).crop(box)
    if params.turn:
        picture, truth = (p.transpose(Image.Transpose.TRANSPOSE) for p in (picture, truth))
    if params.clutter:
        pair = add_clutter(np.asarray(picture), np.asarray(truth), params.clutter)
        picture, truth = map(Image.fromarray, pair)
    if params.blur:
        picture = picture.filter(ImageFilter.GaussianBlur(params.blur))
    pixels = np.asarray(picture)
    return (_other_sensor(pixels, params.sensor) if params.sensor else pixels), np.asarray(truth)


# %% [markdown]
# A different camera shows the same scene with different contrast, brightness and response curve, with noise, with rows or columns that are a little too bright, and with a few defective pixels. `augment = "robust"` samples such a camera for every image.

# %%
#| export
def _other_sensor(image: np.ndarray, seed: int) -> np.ndarray:
    "An image [S,S] or [S,S,3] uint8 as a different infrared camera might show it."
    rng = np.random.default_rng(seed)
    x = image.astype(np.float32) / 255
    shape = (*x.shape[:2], *(1,) * (x.ndim - 2))  # the same in all colours
    if rng.random() < 0.8:
        middle = x.mean()
        x = (x - middle) * math.exp(rng.uniform(-0.7, 0.7)) + middle + rng.uniform(-0.15, 0.15)
        x = x.clip(0, 1) ** np.float32(math.exp(rng.uniform(-0.4, 0.4)))
    if rng.random() < 0.5:
        x = x + rng.uniform(0, 0.03) * rng.standard_normal(shape, np.float32)
    if rng.random() < 0.2:
        lines = (shape[0], 1) if rng.random() < 0.5 else (1, shape[1])
        x = x + rng.uniform(0, 0.03) * rng.standard_normal((*lines, *shape[2:]), np.float32)
    if rng.random() < 0.2:
        hot = rng.random(shape, np.float32) < rng.uniform(0, 0.0005)
        x = np.where(hot, np.float32(rng.uniform(0.5, 1)), x)
    return (x.clip(0, 1) * 255 + 0.5).astype(np.uint8)


# %% [markdown]
# Evaluation samples nothing. The official protocol resizes both sides to one size, whatever the proportions. With `base_size = "native"` each image is scored at its own size instead, as in other published tables. The image is then padded at the right and below with its mirror image to multiples of 16, and the prediction is cut back.

# %%
#| export
UNIT = 16  # the network's sides are multiples of this


def resize_square(image: np.ndarray, mask: np.ndarray, size: int) -> Pair:
    "The transform before evaluation: both sides of a pair to `size`, whatever the proportions."
    picture = Image.fromarray(image).resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(picture), scored_mask(mask, size)


def pad_mirrored(image: np.ndarray, shape: Sequence[int] | None = None) -> np.ndarray:
    "An image mirrored at the right and below, to a shape (None: the next multiples of 16)."
    old = image.shape[:2]
    more = [(0, new - n) for n, new in zip(old, shape or [n + -n % UNIT for n in old], strict=True)]
    return np.pad(image, [*more, (0, 0)][: image.ndim], mode="reflect")


def unpadded(values: Tensor, mask: Tensor) -> Tensor:
    "Values [B,C,H',W'] of padded images, cut to the size of the mask [B,1,H,W]."
    return values[..., : mask.shape[-2], : mask.shape[-1]]


# %% [markdown]
# ### Batches
#
# A batch has 8-bit pixels, a quarter of the bytes of floats on the way to the device. Copies fill the last batch of an evaluation; their `row` is -1. Grey images become three equal channels only here, so that all earlier steps cost a third.
#
# At native size, images share batches only if all have one size. Otherwise each batch has one image and empty places. The image keeps the place that it would have in a full batch, so several processes share the images. Copies fill the empty places only on a device that compiles its programs (XLA).

# %%
#| export
class Batch(NamedTuple):
    "Images and masks of one step."

    image: Tensor  # [B,3,S,S] uint8
    mask: Tensor  # [B,1,S,S] uint8, 0 or 1; at native size smaller than the padded image
    row: Tensor  # [B] index of the image; -1 for copies that fill a batch of an evaluation


def collate(pairs: Sequence[Pair], rows: Sequence[int]) -> Batch:
    "Stack images and masks; grey becomes three equal channels."
    colour = [i if i.ndim == 3 else np.broadcast_to(i[..., None], (*i.shape, 3)) for i, _ in pairs]
    image = torch.from_numpy(np.stack(colour)).permute(0, 3, 1, 2)
    mask = torch.from_numpy(np.stack([m for _, m in pairs]))[:, None]
    return Batch(image, mask, torch.tensor(rows))


def training_batch(split: Split, indices: Sequence[int], epoch: int, config: Config) -> Batch:
    "Read and augment the images of one training batch."
    size = config.crop_size
    pairs = [augment(*split.pairs[i], sample_params(config, epoch, i), size) for i in indices]
    return collate(pairs, indices)


def scoring_batch(split: Split, indices: Sequence[int], config: Config) -> Batch:
    "Read the images of one scoring batch, resized or padded; index -1 is a copy of another."
    filler = max(max(indices), 0)
    rows = [i if i >= 0 else filler for i in indices]
    if config.base_size == "native":
        pairs = [(pad_mirrored(image), mask) for image, mask in map(split.pairs.__getitem__, rows)]
    else:
        pairs = [resize_square(*split.pairs[i], config.base_size) for i in rows]
    return collate(pairs, indices)


# %%
batch = collate([resize_square(image, mask, 64)] * 2, [0, -1])
tuple(batch.image.shape), batch.row.tolist()

# %% [markdown]
# ## Questions
#
# 1. Why may an image be turned upside down here, although nobody photographs a sky that way?
#    <details><summary>Answer</summary>The network has to recognise a spot of a few pixels against its surroundings, and neither has an up or a down that matters at this size. For faces or digits the same change would be wrong: an upside-down 6 is a 9.</details>
# 2. What would the network learn if the texture of an occluder still showed the targets?
#    <details><summary>Answer</summary>That some spots which look exactly like targets are background. It would lower all its predictions.</details>
