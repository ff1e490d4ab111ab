# %% [markdown]
# # augment
#
# > What becomes of a pair before the network sees it: augmentation with Pillow on the host, and the same as matrix products for whole batches on the device.

# %%
#| default_exp augment

# %%
#| hide
from fastcore.test import expect_fail, test_close, test_eq

from mshnet.data import pixel_count, scenes

# %%
#| export
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, ImageFilter
from torch import Tensor

from mshnet.core import Config, UserError
from mshnet.data import BadImage, Pair, Split


# %% [markdown]
# ## Augmentation
#
# A network that sees each image once in every epoch must not see the same pixels each time. Sampling and applying are apart: the parameters of an image depend on the seed, the epoch and its index and on nothing else, so neither the number of workers nor the batch size nor a resumed run changes them.
#
# The first five are those of the official training transform. The others are sampled after them, so that `augment = "paper"` gets exactly the official ones.

# %%
#| export
class AugmentParams(NamedTuple):
    "What is sampled for one training image."

    mirror: bool  # left to right
    long_side: int  # of the resized image, in pixels; 0: native pixels
    top: float  # place of the crop within what is left, 0..1
    left: float
    blur: float  # radius of the Gaussian blur in pixels; 0: none
    flip: bool = False  # upside down
    turn: bool = False  # rows become columns
    target: float = -1.0  # which target pixel the crop must hold, 0..1 of them; negative: any crop
    scale: tuple[float, float] = (1.0, 1.0)  # further, of rows and columns
    sensor: int = 0  # seed of noise and sensor faults; 0: none


def sample_params(
    config: Config,
    epoch: int,
    index: int,  # of the image in its split
) -> AugmentParams:
    "The parameters of one image in one epoch."
    rng = np.random.default_rng([config.seed, epoch, index])
    mirror = bool(rng.random() < 0.5)
    long_side = int(rng.integers(config.base_size // 2, config.base_size * 2 + 1))
    top, left, blur = float(rng.random()), float(rng.random()), float(rng.random())
    drawn = AugmentParams(mirror, long_side, top, left, blur * bool(rng.random() < 0.5))
    flip, turn = bool(rng.random() < 0.5), bool(rng.random() < 0.5)
    held, which = rng.random() < config.target_share, float(rng.random())
    size, shape = rng.uniform(-1, 1, 2)
    sensor = int(rng.integers(1, 2**31))
    native, robust = config.crop == "native", config.augment == "robust"
    if config.augment != "paper":
        drawn = drawn._replace(flip=flip, turn=turn)
    if held:
        drawn = drawn._replace(target=which)
    if native or robust:
        low, high, stretch = WIDE_JITTER if robust else JITTER
        size = (low * high) ** 0.5 * (high / low) ** (size / 2) if native else 1.0
        aspect = stretch ** (shape / 2)
        drawn = drawn._replace(scale=(size * aspect, size / aspect))
    if native:
        drawn = drawn._replace(long_side=0)
    if robust:
        drawn = drawn._replace(sensor=sensor)
    return drawn


JITTER = 0.7, 1.5, 1.2  # of native pixels: least, most, height to width
WIDE_JITTER = 0.5, 1.6, 1.3  # robust augmentation

# %%
config = Config()
test_eq(sample_params(config, 3, 7), sample_params(config, 3, 7))
test_eq(sample_params(Config(augment="paper"), 3, 7)[:5], sample_params(config, 3, 7)[:5])
sample_params(config, 3, 7)


# %% [markdown]
# What the numbers mean depends on the image's size. The long side gets the sampled length, the short side follows, rounded; the crop lies somewhere in what is left over. A picture that is 300 high and 400 wide, resized to 512, becomes 384x512, and a crop of 256 in the middle begins at row 64 and column 128. A crop that must hold a target is moved just as far as that needs, and a sixteenth of its side further, so that the target is not cut off:

# %%
#| export
class Placement(NamedTuple):
    "Where an image goes: its height and width after the resize, and the crop's first pixel."

    height: int
    width: int
    top: int
    left: int


def placement(
    mask: np.ndarray,  # [H,W] uint8, 0 or 1
    drawn: AugmentParams,
    crop_size: int,
) -> Placement:
    "The resize and the crop that the parameters mean for this image."
    whole = drawn.long_side / max(mask.shape) if drawn.long_side else 1.0
    scales = [whole * scale for scale in drawn.scale]
    sides = [max(int(n * scale + 0.5), 1) for n, scale in zip(mask.shape, scales, strict=True)]
    spare = [max(side - crop_size, 0) for side in sides]
    starts = [int(at * (n + 1)) for at, n in zip((drawn.top, drawn.left), spare, strict=True)]
    if drawn.target >= 0 and mask.any():
        rows, cols = np.nonzero(mask)
        k = int(drawn.target * len(rows))
        place = [int(rows[k]), int(cols[k])]
        for i, mirrored in enumerate((drawn.flip, drawn.mirror)):
            old = mask.shape[i] - 1 - place[i] if mirrored else place[i]
            new, edge = int((old + 0.5) * sides[i] / mask.shape[i]), crop_size // 16
            starts[i] = min(max(starts[i], new - crop_size + 1 + edge), new - edge)
            starts[i] = min(max(starts[i], 0), spare[i])
    return Placement(sides[0], sides[1], starts[0], starts[1])


# %%
middle = AugmentParams(mirror=False, long_side=512, top=0.5, left=0.5, blur=0)
none = np.zeros((300, 400), np.uint8)
test_eq(placement(none, middle, 256), Placement(height=384, width=512, top=64, left=128))
one = none.copy()
one[290, 10] = 1
test_eq(placement(one, middle._replace(target=0.5), 256), Placement(384, 512, 128, 0))
test_eq(placement(none, middle._replace(long_side=0), 256)[:2], (300, 400))


# %% [markdown]
# Applying them: mirror; resize so that the long side has the sampled length (image bilinear, mask nearest); pad with zeros at the right and the bottom; crop; turn; blur. Pillow does the work, on grey images once instead of three times, and with `augment = "paper"` the result equals the official transform's to the last pixel.

# %%
#| export
def augment(
    image: np.ndarray,  # [H,W] or [H,W,3] uint8
    mask: np.ndarray,  # [H,W] uint8, 0 or 1
    drawn: AugmentParams,
    crop_size: int,
) -> Pair:  # image [S,S] or [S,S,3], mask [S,S]
    "The training transform for given parameters."
    picture, truth = Image.fromarray(image), Image.fromarray(mask)
    height, width, y, x = placement(mask, drawn, crop_size)
    for wanted, way in (
        (drawn.mirror, Image.Transpose.FLIP_LEFT_RIGHT),
        (drawn.flip, Image.Transpose.FLIP_TOP_BOTTOM),
    ):
        if wanted:
            picture, truth = picture.transpose(way), truth.transpose(way)
    size = (width, height)
    box = (x, y, x + crop_size, y + crop_size)  # Pillow fills what lies outside with zeros
    picture = picture.resize(size, Image.Resampling.BILINEAR).crop(box)
    truth = truth.resize(size, Image.Resampling.NEAREST).crop(box)
    if drawn.turn:
        picture, truth = (p.transpose(Image.Transpose.TRANSPOSE) for p in (picture, truth))
    if drawn.blur:
        picture = picture.filter(ImageFilter.GaussianBlur(drawn.blur))
    if drawn.sensor:
        return _other_sensor(np.asarray(picture), drawn.sensor), np.asarray(truth)
    return np.asarray(picture), np.asarray(truth)


# %% [markdown]
# Another camera shows the same scene with another contrast, brightness and response curve, with its own noise, with rows or columns that are a little too bright, and with a few pixels that always are. `augment = "robust"` samples such a camera for every image.

# %%
#| export
def _other_sensor(
    image: np.ndarray,  # [S,S] or [S,S,3] uint8
    seed: int,
) -> np.ndarray:  # the same shape, uint8
    "The image as another infrared camera might show it."
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
        stripes = rng.standard_normal((*lines, *shape[2:]), np.float32)
        x = x + rng.uniform(0, 0.03) * stripes
    if rng.random() < 0.2:
        hot = rng.random(shape, np.float32) < rng.uniform(0, 0.0005)
        x = np.where(hot, np.float32(rng.uniform(0.5, 1)), x)
    return (x.clip(0, 1) * 255 + 0.5).astype(np.uint8)


# %% [markdown]
# For scoring nothing is sampled. The official protocol resizes both sides to one size, whatever the proportions:

# %%
#| export
def resize_square(
    image: np.ndarray,  # [H,W] or [H,W,3] uint8
    mask: np.ndarray,  # [H,W] uint8, 0 or 1
    size: int,
) -> Pair:  # image [S,S] or [S,S,3], mask [S,S]
    "The transform before scoring: both sides to `size`, whatever the proportions."
    picture, truth = Image.fromarray(image), Image.fromarray(mask)
    return (
        np.asarray(picture.resize((size, size), Image.Resampling.BILINEAR)),
        np.asarray(truth.resize((size, size), Image.Resampling.NEAREST)),
    )


# %% [markdown]
# One scene in four epochs, by the paper's augmentation, with all eight flips and turns, and as other sensors show it:

# %%
made = scenes("train", 4, 128)
rows = []
for kind in ("paper", "flips", "robust"):
    config = Config(augment=kind, base_size=128, target_share=1.0)
    draws = [sample_params(config, epoch, 1) for epoch in range(4)]
    views = [augment(*made.pairs[1], drawn, 128) for drawn in draws]
    rows.append(np.hstack([image for image, _ in views]))
    assert all(mask.any() for _, mask in views)
image = made.pairs[1][0]
test_eq(_other_sensor(image, 3), _other_sensor(image, 3))
Image.fromarray(np.vstack(rows))

# %%
test_eq([s.shape for s in resize_square(*made.pairs[0], 64)], [(64, 64), (64, 64)])
still = AugmentParams(mirror=False, long_side=128, top=0, left=0, blur=0)
test_eq(augment(*made.pairs[0], still, 128)[0], made.pairs[0][0])


# %% [markdown]
# ## Batches
#
# A batch leaves here as 8-bit pixels, a quarter of the bytes that floats would take to the device. The last batch of a scoring is filled with copies, which are marked as not real.

# %%
#| export
class Batch(NamedTuple):
    "Images and masks of one step."

    image: Tensor  # [B,3,S,S] uint8
    mask: Tensor  # [B,1,S,S] uint8, 0 or 1
    real: Tensor  # [B] bool; False for copies that fill the last batch of a scoring


# %% [markdown]
# Between the two kinds of batches only the transform differs. Grey images become three equal channels here and not earlier, so that all that comes before costs a third.

# %%
#| export
def collate(
    pairs: Sequence[Pair],
    real: Sequence[bool],
) -> Batch:
    "Stack images and masks; grey becomes three equal channels."
    colour = [i if i.ndim == 3 else np.broadcast_to(i[..., None], (*i.shape, 3)) for i, _ in pairs]
    image = torch.from_numpy(np.stack(colour)).permute(0, 3, 1, 2)
    mask = torch.from_numpy(np.stack([m for _, m in pairs]))[:, None]
    return Batch(image, mask, torch.tensor(list(real)))


def training_batch(split: Split, indices: Sequence[int], epoch: int, config: Config) -> Batch:
    "Read and augment the images of one training batch."
    pairs = [
        augment(
            *readable(split, i, config.on_bad_image),
            sample_params(config, epoch, i),
            config.crop_size,
        )
        for i in indices
    ]
    return collate(pairs, [True] * len(pairs))


# %% [markdown]
# A file that was good when the run began may be damaged in the middle of an epoch. The user said beforehand what to do then (`on_bad_image`): stop and name it, or train on the next image in its place, with the draws of that place, so that the shapes stay and the run can be repeated. A score over other images would be another score, so scoring always stops.

# %%
#| export
def readable(split: Split, index: int, on_bad_image: str) -> Pair:
    "An image with its mask; if it cannot be read and may be skipped, the next one's."
    for i in (j % len(split) for j in range(index, index + len(split))):
        try:
            return split.pairs[i]
        except BadImage as error:
            if on_bad_image == "stop":
                raise
            seen = split.stores.setdefault("replaced", set())
            if split.names[i] not in seen:
                seen.add(split.names[i])
                text = str(error).split(";")[0]
                warnings.warn(f"{text}: the next one is trained on in its place", stacklevel=2)
    raise BadImage(f"{split.source}: none of its {len(split)} images can be read any more")


# %% [markdown]
# For scoring nothing is drawn:

# %%
#| export
def scoring_batch(split: Split, indices: Sequence[int], config: Config) -> Batch:
    "Read and resize the images of one scoring batch; -1 is filled with the first image."
    pairs = [_resized_once(split, max(i, 0), config.base_size) for i in indices]
    return collate(pairs, [i >= 0 for i in indices])


def _resized_once(split: Split, index: int, size: int) -> Pair:
    "One image, squashed: the same in every epoch, so it is kept where that takes little memory."
    done = split.stores.setdefault(f"squashed to {size}", {})
    if index not in done:
        pair = resize_square(*split.pairs[index], size)
        if not split.in_memory or 4 * len(split) * size * size > 2**28:  # colour and mask
            return pair
        done[index] = pair
    return done[index]


# %%
config = Config(base_size=64, crop_size=32)
batch = scoring_batch(made, [3, -1], config)
assert isinstance(batch, Batch)
test_eq((tuple(batch.image.shape), batch.real.tolist()), ((2, 3, 64, 64), [True, False]))
test_eq(training_batch(made, [0, 1], 0, config).mask.shape, (2, 1, 32, 32))
with expect_fail(BadImage, contains="none of its 0 images"):
    readable(made.part("none", []), 0, "skip")
assert readable(made, 0, "stop") is made.pairs[0] and pixel_count(made) == 4 * 2 * 128 * 128
assert _resized_once(made, 3, 64) is _resized_once(made, 3, 64)
test_eq(collate([resize_square(*made.pairs[3], 64)], [True]).image[0], batch.image[0])


# %% [markdown]
# ## Whole batches on the device
#
# Pillow takes about a millisecond for an image. A step of training on a CPU takes a hundred times as long, so there Pillow is good enough and stays. A fast GPU or TPU has little more than that millisecond for its whole step and would wait for its data. So for those the pixels can lie on the device, once and for all, and whole batches be transformed where they are: `cache` decides (see the task notebook).
#
# First the store. Images of one split get one shape, that of the highest and the widest, so that any of them can be picked by number. It is made of planes: a grey image is one plane, a colour image three. Whether it fits is known before anything is copied.

# %%
#| export
@dataclass(frozen=True)
class DeviceImages:
    "The pixels of a split as tensors of one shape, for transforms on the device."

    planes: Tensor  # [P,H,W] uint8, zero beyond an image's true size
    masks: Tensor  # [N,H,W] uint8, 0 or 1
    first: tuple[tuple[int, int, int], ...]  # planes of each image; three times one if it is grey
    truth: tuple[np.ndarray, ...]  # the masks on the host too, where crops are placed

    @property
    def sizes(self) -> list[tuple[int, int]]:
        "True height and width of each image."
        return [(mask.shape[0], mask.shape[1]) for mask in self.truth]

    @property
    def channels(self) -> int:
        "Planes that a batch takes of each image: 1 if all are grey, else 3."
        return 1 if all(a == c for a, _, c in self.first) else 3

    def through(self, move: Callable[[Tensor], Tensor]) -> "DeviceImages":
        "The same store elsewhere, such as `store.through(device.replicate)`."
        return replace(self, planes=move(self.planes), masks=move(self.masks))


def _pixel_shape(split: Split) -> tuple[int, int, int]:  # planes of images, height, width
    "The shape that a split's images take in a store."
    height, width = (max(mask.shape[k] for _, mask in split.pairs) for k in (0, 1))
    return sum(1 if image.ndim == 2 else 3 for image, _ in split.pairs), height, width


def pixel_bytes(split: Split) -> int:
    "The bytes that a store of this split takes, found without making it."
    planes, height, width = _pixel_shape(split)
    return (planes + len(split)) * height * width


# %% [markdown]
# Filling it is a matter of slices:

# %%
#| export
def store_pixels(split: Split) -> DeviceImages:
    "Copy a split into a store, on the host."
    count, height, width = _pixel_shape(split)
    planes = torch.zeros((count, height, width), dtype=torch.uint8)
    masks = torch.zeros((len(split), height, width), dtype=torch.uint8)
    first, place = [], 0
    for i, (image, mask) in enumerate(split.pairs):
        h, w = mask.shape
        layers = np.atleast_3d(image).transpose(2, 0, 1).copy()
        masks[i, :h, :w] = torch.from_numpy(mask.copy())
        planes[place : place + len(layers), :h, :w] = torch.from_numpy(layers)
        first.append((place, place + len(layers) // 2, place + len(layers) - 1))
        place += len(layers)
    return DeviceImages(planes, masks, tuple(first), tuple(mask for _, mask in split.pairs))


# %% [markdown]
# Two grey scenes and a colour one of another size make five planes and three masks:

# %%
image, mask = (pixels[:100, :75] for pixels in made.pairs[2])
tinted = np.stack([image, image // 2, image // 3], 2)
mixed = Split("train", ("a", "b", "c"), (*made.pairs[:2], (tinted, mask)), "mixed")
store = store_pixels(mixed)
assert isinstance(store, DeviceImages)
test_eq((_pixel_shape(mixed), store.first[1:]), ((5, 128, 128), ((1, 1, 1), (2, 3, 4))))
test_eq(store.planes.nbytes + store.masks.nbytes, pixel_bytes(mixed))
store.channels, store_pixels(made).channels


# %% [markdown]
# ### A resize is a matrix
#
# Every pixel of a resized row is a weighted mean of pixels of the old row. So the resize of all rows is one product with a matrix that holds the weights, the resize of all columns is another, and `A_y @ image @ A_x^T` does both. Mirror, padding and crop cost nothing more: a mirrored picture reads its pixels in the other order, a padded row of the matrix is zero, and of a crop only its own rows are computed. That is why a batch whose images are all drawn differently still takes the same few operations with the same shapes. A compiler has one program for all of them.
#
# Pillow's weights are a triangle around the centre of the new pixel, as wide as a new pixel is in old ones, and never narrower than two old ones. With `n` old and `m` new pixels the centres `(o + 1/2) n/m` and `j + 1/2` are fractions. Times `2m` they are whole numbers, and so is the triangle. Whole numbers have no rounding; the only one is the last division, by the sum of the weights.

# %%
#| export
def resize_matrix(
    axis: Tensor,  # [B,4] int32: old pixels n, new pixels m, first new pixel of the crop, mirror
    rows: int,  # new pixels that are wanted
    columns: int,  # width of the store; pixels from n on have no weight
) -> Tensor:  # [B,rows,columns] float32
    "Weights of the old pixels in each new one, as Pillow's bilinear resize has them."
    n, m, start, mirror = axis[:, :, None].split(1, 1)  # each [B,1,1]
    new = start + torch.arange(rows, device=axis.device, dtype=torch.int32)[:, None]
    old = torch.arange(columns, device=axis.device, dtype=torch.int32)
    read = old + mirror * (n - 1 - 2 * old)  # where the pixel stands in the mirrored row
    far = ((2 * new + 1) * n - (2 * read + 1) * m).abs()  # [B,rows,columns], in 1/2m pixels
    weight = (2 * torch.maximum(n, m) - far).clamp_min(0) * (old < n)
    total = weight.sum(2, keepdim=True, dtype=torch.int32).clamp_min(1)
    return weight * ((new < m) / total)


# %% [markdown]
# Three pixels become six, then the other way round. The last line is a mirrored row of which only two pixels fit, in a crop of three: the third is padding.

# %%
axis = torch.tensor([[3, 6, 0, 0], [3, 2, 0, 1]], dtype=torch.int32)
wider, mirrored = resize_matrix(axis, 6, 4).unbind()
test_close(wider.sum(1), torch.ones(6))
test_eq(wider[:, 3], torch.zeros(6))  # the store's padding
row = np.array([[40, 0, 200]], np.uint8)
pillow = np.asarray(Image.fromarray(row).resize((6, 1), Image.Resampling.BILINEAR))
test_close(torch.round(wider[:, :3] @ torch.tensor(row[0]).float()), pillow[0])
test_eq(mirrored[2], torch.zeros(4))
wider, mirrored[:3]


# %% [markdown]
# ### Whole grey levels
#
# Pillow rounds after the rows and again after the columns, and so do we, halves upwards. It costs nothing beside the products, and it makes them robust: whole numbers up to 255 are exact even in the 8 significant bits that the matrix unit of a TPU keeps.

# %%
#| export
def whole(
    image: Tensor,  # any shape, float32
) -> Tensor:
    "Rounded to whole grey levels, halves upwards."
    return (image + 0.5).floor_()


# %%
test_eq(whole(torch.tensor([0.49, 0.5, 1.5, 254.4])).tolist(), [0, 1, 2, 254])

# %% [markdown]
# ### Blur
#
# The blur comes last. Pillow's Gaussian blur is three box blurs along the rows and three along the columns, each rounded. The recipe's radius is under 1, and then a box reaches only the two neighbours. A few products and sums do that; a matrix of 256x256, mostly zeros, would be a detour and would not round in between. At the edge a pixel is its own neighbour.
#
# Pillow computes a box in whole numbers of 32 bits without a sign. Ours have a sign, so grey levels are counted from -128 meanwhile and the sums just fit. What the two weights lack of 1 (at most one part of 2^24) would shift with them and is put right in `half`.

# %%
#| export
WHOLE = 1 << 24  # Pillow keeps the weights of a box in 24 bits


def box_weights(
    blur: float,  # radius of the Gaussian blur in pixels, 0 up to 1.41
) -> tuple[int, int]:  # weight of the pixel and of each neighbour, in parts of WHOLE
    "The box of which three make a Gaussian blur of this radius, as in Pillow."
    if not 0 <= blur < 2**0.5:
        raise UserError(f"blur={blur}: on the device the radius is at least 0 and below 1.41")
    variance = np.float32(blur) * np.float32(blur) / 3
    reach = -3 * variance / (6 * (variance - 1))  # beyond the pixel itself, to each side
    centre = int(np.float32(WHOLE) / (2 * reach + 1))
    return centre, (WHOLE - centre) // 2


def box_blur(
    image: Tensor,  # [B,C,H,W] int32, grey levels
    weights: Tensor,  # [B,2] int32, of `box_weights`
) -> Tensor:  # [B,C,H,W] int32, grey levels
    "Three box blurs along the rows and three along the columns."
    centre, side = weights[:, :, None, None, None].unbind(1)
    half = WHOLE // 2 - 128 * (WHOLE - centre - 2 * side)
    bits = torch.full((), 24, dtype=torch.int32, device=image.device)
    image = image - 128
    for dim in (3, 3, 3, 2, 2, 2):
        last = image.shape[dim] - 1
        before = torch.cat([image.narrow(dim, 0, 1), image.narrow(dim, 0, last)], dim)
        after = torch.cat([image.narrow(dim, 1, last), image.narrow(dim, last, 1)], dim)
        sums = torch.addcmul(image * centre, before.add_(after), side).add_(half)
        image = torch.bitwise_right_shift(sums, bits)  # XLA's >> rounds towards zero
    return image + 128


# %% [markdown]
# It is Pillow's blur to the last grey level, and with radius 0 it changes nothing:

# %%
noise = np.random.default_rng(0).integers(0, 256, (32, 40), dtype=np.uint8)
levels = torch.tensor(noise).int().expand(2, 1, -1, -1)
soft, same = box_blur(levels, torch.tensor([box_weights(0.9), box_weights(0)]))[:, 0]
pillow = np.asarray(Image.fromarray(noise).filter(ImageFilter.GaussianBlur(0.9)))
test_eq(soft, torch.tensor(pillow))
test_eq(same, levels[1, 0])
with expect_fail(UserError, contains="below 1.41"):
    box_weights(1.5)


# %% [markdown]
# ### The numbers of a batch
#
# All that differs from batch to batch is one small table of whole numbers, a row for each image. The host makes it from the draws and sends it.
#
# Most of a row are places. A resized mask takes the label of the nearest pixel, and which one that is when two are equally near, Pillow decides by adding up a fraction in double precision. No device does that alike, so the host does, and the table holds the result: for each row and column of the crop, the one of the stored mask that it shows, or -1 for padding.

# %%
#| export
def nearest(
    axis: tuple[int, int, int, int],  # old pixels, new pixels, first of the crop, mirror 0 or 1
    count: int,  # pixels of the crop
) -> np.ndarray:  # [count] int; the old pixel that each shows, -1 for none
    "The places that Pillow's nearest resize reads, found by the same sums."
    n, m, start, mirror = axis
    sums = np.full(m, n / m)
    sums[0] = n / m * 0.5
    old = np.add.accumulate(sums)[start : start + count].astype(np.int64)
    read = np.where(old < n, n - 1 - old if mirror else old, -1)
    return np.pad(read, (0, count - len(read)), constant_values=-1)


def _batch_row(
    store: DeviceImages,
    index: int,  # of the image; -1 is filler, a copy of the first
    placed: Placement,
    drawn: AugmentParams,
    size: int,
) -> np.ndarray:  # [15+2S]: planes 3, real 1, turn 1, box 2, down 4, across 4, rows S, columns S
    "The numbers of one image of a batch."
    i = max(index, 0)
    height, width = store.truth[i].shape
    down = (height, placed.height, placed.top, int(drawn.flip))
    across = (width, placed.width, placed.left, int(drawn.mirror))
    rows, columns = nearest(down, size), nearest(across, size)
    rows += np.where(rows < 0, 0, i * store.masks.shape[1])  # masks are one above the other
    head = (*store.first[i], index >= 0, drawn.turn, *box_weights(drawn.blur), *down, *across)
    return np.concatenate([head, rows, columns])


# %%
test_eq(nearest((3, 6, 0, 0), 8).tolist(), [0, 0, 1, 1, 2, 2, -1, -1])
test_eq(nearest((3, 6, 2, 1), 4).tolist(), [1, 1, 0, 0])
row = _batch_row(store, 2, placement(mixed.pairs[2][1], middle, 64), middle, 64)
row[:15]

# %% [markdown]
# A batch for training takes the draws; one for scoring squashes, which is a resize of both sides to one size without a crop.

# %%
#| export
PLAIN = AugmentParams(mirror=False, long_side=0, top=0, left=0, blur=0)  # nothing is drawn


def training_numbers(
    store: DeviceImages,
    indices: Sequence[int],
    draws: Sequence[AugmentParams],  # one for each index
    crop_size: int,
) -> Tensor:  # [B,15+2S] int32, on the host
    "The numbers of a training batch, for `augment_batch`."
    rows = [
        _batch_row(store, i, placement(store.truth[i], drawn, crop_size), drawn, crop_size)
        for i, drawn in zip(indices, draws, strict=True)
    ]
    return torch.from_numpy(np.stack(rows).astype(np.int32))


def scoring_numbers(
    store: DeviceImages,
    indices: Sequence[int],  # -1 is filler
    size: int,
) -> Tensor:  # [B,15+2S] int32, on the host
    "The numbers of a scoring batch, for `augment_batch`."
    placed = Placement(size, size, 0, 0)
    rows = [_batch_row(store, i, placed, PLAIN, size) for i in indices]
    return torch.from_numpy(np.stack(rows).astype(np.int32))


# %%
config = Config(base_size=128, target_share=0.5)
drawn = [sample_params(config, 0, i) for i in range(3)]
numbers = training_numbers(store, range(3), drawn, 128)
test_eq(scoring_numbers(store, [0, -1], 64)[:, 3].tolist(), [1, 0])  # what is real
numbers.shape, numbers.dtype


# %% [markdown]
# ### The batch
#
# From here on all is on the device. The mask is two picks: rows of the store, then, with the picked lines turned, columns. Reading whole lines is what every device does well.

# %%
#| export
def _pick_masks(
    masks: Tensor,  # [N,H,W]
    rows: Tensor,  # [B,S] lines of all masks one above the other, -1 for padding
    columns: Tensor,  # [B,S], -1 for padding
) -> Tensor:  # [B,1,S,S]
    "The masks of a batch, from the places that `nearest` found."
    batch, size = rows.shape
    width = masks.shape[2]
    lines = masks.flatten(0, 1).index_select(0, rows.clamp_min(0).flatten())
    turned = lines.view(batch, size, width).mT.reshape(batch * width, size)
    start = width * torch.arange(batch, device=rows.device, dtype=torch.int32)[:, None]
    picked = turned.index_select(0, (start + columns.clamp_min(0)).flatten())
    inside = (rows >= 0)[:, :, None] & (columns >= 0)[:, None]
    return (picked.view(batch, size, size).mT * inside)[:, None]


def augment_batch(
    store: DeviceImages,
    numbers: Tensor,  # [B,15+2S] int32, on the store's device
) -> Batch:
    """A batch from the store, by two matrix products and a blur.

    At most a grey level or two from `augment` and `resize_square`, on few pixels; masks equal.
    Shapes and operations depend on nothing but the number of images and S.
    """
    size = (numbers.shape[1] - 15) // 2
    planes, real, turn, box, down, across, rows, columns = numbers.split(
        [3, 1, 1, 2, 4, 4, size, size], dim=1
    )
    height, width = store.planes.shape[1:]
    chosen = planes[:, : store.channels]
    image = store.planes.index_select(0, chosen.flatten()).view(*chosen.shape, height, width)
    with torch.autocast(numbers.device.type, enabled=False):
        across_, down_ = resize_matrix(across, size, width), resize_matrix(down, size, height)
        image = whole(image.float() @ across_[:, None].mT)
        image = whole(down_[:, None] @ image).clamp_(0, 255)
    turned = turn[:, :, None, None] > 0
    image = box_blur(torch.where(turned, image.mT, image).int(), box).to(torch.uint8)
    mask = _pick_masks(store.masks, rows, columns)
    mask = torch.where(turned, mask.mT, mask)
    return Batch(image.expand(-1, 3, -1, -1), mask, real[:, 0] > 0)


# %% [markdown]
# Above, what Pillow makes of the three images; below, what the products make of them. The colour image is smaller and stays so where it is drawn small; what is black is padding.

# %%
views = augment_batch(store, numbers)
pairs = [augment(*mixed.pairs[i], drawn[i], 128) for i in range(3)]
wanted = collate(pairs, [True] * 3)
both = torch.cat([torch.cat(list(b.image), 2) for b in (wanted, views)], 1)
upright = torch.stack([m.mT if d.turn else m for m, d in zip(wanted.mask, drawn, strict=True)])
test_eq(_pick_masks(store.masks, *numbers[:, 15:].split(128, 1)), upright)
Image.fromarray(both.permute(1, 2, 0).numpy())

# %% [markdown]
# How far apart are they? Where they differ, it is by one grey level, because a sum lies within a rounding error of a half. On the real images of NUAA-SIRST that is 5 values in 10,000, and of 168 million values 60 were two levels apart. Masks are equal. Scoring's squash likewise.

# %%
apart = (views.image.int() - wanted.image.int()).abs()
assert apart.max() <= 1 and (apart > 0).float().mean() < 1e-2
test_eq((views.mask, views.real), (wanted.mask, wanted.real))
squashed = augment_batch(store, scoring_numbers(store, [2, 1, -1], 64))
plain = scoring_batch(mixed, [2, 1, -1], Config(base_size=64))
assert (squashed.image.int() - plain.image.int()).abs().max() <= 1
test_eq((squashed.mask, squashed.real), (plain.mask, plain.real))
int(apart.max()), int((apart > 0).sum()), apart.numel()
