"Batches transformed on the device equal those of Pillow, whatever is drawn and whoever is beside."

import json
import warnings
from functools import cache

import numpy as np
import pytest
import torch
from conftest import SHARED
from PIL import Image, ImageFilter
from torch.utils._python_dispatch import TorchDispatchMode

from mshnet.augment import (
    AugmentParams,
    DeviceImages,
    augment,
    augment_batch,
    box_blur,
    box_weights,
    collate,
    nearest,
    pixel_bytes,
    resize_square,
    sample_clutter,
    sample_params,
    scoring_numbers,
    store_pixels,
    training_numbers,
)
from mshnet.core import Config, UserError
from mshnet.data import Split, read_image, read_mask, splits

STILL = AugmentParams(mirror=False, long_side=96, top=0, left=0, blur=0)
SIZES = [(96, 96), (61, 97), (131, 40), (33, 128), (96, 95), (1, 50), (128, 128)]


def noise(sizes=SIZES, colour=(), seed=0):
    "A split of noise, the hardest of images: every pixel differs from its neighbours."
    rng = np.random.default_rng(seed)
    shapes = [(*s, 3) if i in colour else s for i, s in enumerate(sizes)]
    images = tuple(rng.integers(0, 256, s, dtype=np.uint8) for s in shapes)
    masks = tuple((rng.random(s) < 0.2).astype(np.uint8) for s in sizes)
    pairs = tuple(zip(images, masks, strict=True))
    return Split("train", tuple(map(str, range(len(sizes)))), pairs, "noise")


def by_pillow(split, draws, size):
    "The batch that the reference makes."
    pairs = [augment(*pair, d, size) for pair, d in zip(split.pairs, draws, strict=True)]
    return collate(pairs, [True] * len(split))


def by_products(split, draws, size):
    "The batch that the products make."
    store = store_pixels(split)
    return augment_batch(store, training_numbers(store, range(len(split)), draws, size))


def check(have, want, differ=0.5, far=1e-4):
    """Masks are equal; images are two grey levels apart at most, one on most pixels that differ.

    `differ` is the share of pixels that may differ at all, `far` by more than one level. Noise has
    many sums that lie exactly between two levels, where the last digit decides; pictures have few.
    """
    assert torch.equal(have.mask, want.mask)
    assert have.image.dtype == have.mask.dtype == torch.uint8
    assert have.image.shape == want.image.shape
    apart = (have.image.int() - want.image.int()).abs()
    assert apart.max() <= 2
    assert (apart > 1).float().mean() <= far
    assert (apart > 0).float().mean() <= differ


KINDS = {
    "as it is": {},
    "mirror": {"mirror": True},
    "up": {"long_side": 192, "top": 0.3, "left": 0.99},
    "up, mirror": {"long_side": 151, "top": 0.5, "left": 0.4, "mirror": True},
    "down": {"long_side": 48},
    "down, odd, mirror": {"long_side": 61, "mirror": True},
    "far down": {"long_side": 13},
    "blur": {"blur": 0.999},
    "hardly blur": {"blur": 0.02},
    "crop, then blur": {"long_side": 180, "top": 0.999, "left": 0.5, "blur": 0.7},
    "pad, then blur": {"long_side": 50, "blur": 0.7, "mirror": True},
    "upside down": {"flip": True, "long_side": 151, "top": 0.5},
    "turned": {"turn": True, "mirror": True, "blur": 0.5},
    "native": {"long_side": 0, "top": 0.4, "left": 0.9},
    "native, stretched": {"long_side": 0, "scale": (0.7, 1.4), "flip": True},
    "a target": {"long_side": 300, "target": 0.6, "mirror": True, "flip": True},
    "clutter": {"long_side": 0, "clutter": sample_clutter(np.random.default_rng(3))},
    "up, turned, clutter, then blur": {
        **{"long_side": 192, "turn": True, "blur": 0.7},
        "clutter": sample_clutter(np.random.default_rng(4)),
    },
}
SCALED = Config(base_size=96, augment="flips", clutter_share=0.5)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_draw_is_what_pillow_does(kind):
    "Square, tall, wide, odd, one pixel high: each thing that can be drawn, on each of them."
    split, draws = noise(), [STILL._replace(**KINDS[kind])] * len(SIZES)
    check(by_products(split, draws, 96), by_pillow(split, draws, 96))


@pytest.mark.parametrize("colour", [(), (0,), (1, 2, 5), range(7)])
def test_grey_and_colour_images_share_a_batch(colour):
    "A split of grey images multiplies one plane, a mixed one three; the result is the same."
    split = noise(colour=colour)
    draws = [sample_params(SCALED, 0, i) for i in range(len(split))]
    assert any(drawn.clutter for drawn in draws)
    assert store_pixels(split).channels == (3 if colour else 1)
    check(by_products(split, draws, 96), by_pillow(split, draws, 96))


@pytest.mark.parametrize("size", [32, 96, 160])
def test_scoring_squashes_as_pillow_does_and_marks_filler(size):
    "Filler is a copy of the first image that is not counted."
    split = noise(colour=(3,))
    store = store_pixels(split)
    indices = [*range(len(split)), -1]
    pairs = [resize_square(*split.pairs[max(i, 0)], size) for i in indices]
    have = augment_batch(store, scoring_numbers(store, indices, size))
    check(have, collate(pairs, [True] * len(pairs)))
    assert have.real.tolist() == [True] * len(split) + [False]


@pytest.mark.parametrize("old", [1, 2, 77, 90, 300, 417])
def test_the_nearest_pixel_is_the_one_that_pillow_takes(old):
    "Ties are decided by the last digit of a sum in double precision; 90 to 11 has one."
    image = np.arange(old, dtype=np.int32)[None]
    for new in (1, 11, 25, 33, old, 128, 200, 301, 512):
        drawn = AugmentParams(mirror=False, long_side=new, top=0, left=0, blur=0)
        want = augment(np.zeros_like(image, np.uint8), image, drawn, new)[1][0]
        assert nearest((old, new, 0, 0), new).tolist() == want.tolist()
        turned = augment(np.zeros_like(image, np.uint8), image[:, ::-1].copy(), drawn, new)[1][0]
        assert nearest((old, new, 0, 1), new).tolist() == turned.tolist()


def test_what_lies_beyond_an_image_is_never_read():
    "The store pads small images up to the largest; garbage there must not change a pixel."
    split = noise(colour=(2,))
    store = store_pixels(split)
    planes, masks = store.planes.clone(), store.masks.clone()
    for (h, w), first, mask in zip(store.sizes, store.first, masks, strict=True):
        for lies in [mask, *(planes[i] for i in first)]:
            lies[h:], lies[:, w:] = 255, 255
    dirty = DeviceImages(planes, masks, store.first, store.truth)
    assert not torch.equal(dirty.planes, store.planes)
    for numbers in both_numbers(store):
        pairs = zip(augment_batch(dirty, numbers), augment_batch(store, numbers), strict=True)
        assert all(torch.equal(have, want) for have, want in pairs)


def both_numbers(store, epoch=0):
    "The numbers of a training and of a scoring batch of all images of a store."
    every = range(len(store.sizes))
    draws = [sample_params(SCALED, epoch, i) for i in every]
    return training_numbers(store, every, draws, 96), scoring_numbers(store, every, 96)


def test_an_image_is_the_same_alone_in_company_and_in_another_place():
    "Another batch size or number of devices augments each image as before."
    store = store_pixels(noise(colour=(1, 4)))
    for numbers in both_numbers(store):
        together, turned = augment_batch(store, numbers), augment_batch(store, numbers.flip(0))
        for i in range(len(numbers)):
            alone = augment_batch(store, numbers[i : i + 1])
            for a, b, c in zip(alone, together, turned, strict=True):
                assert torch.equal(a[0], b[i])
                assert torch.equal(c[-1 - i], b[i])


class Recorder(TorchDispatchMode):
    "Writes down each operation with the shapes and types of its tensors and its plain arguments."

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        told = torch.utils._pytree.tree_map_only(
            torch.Tensor, lambda t: (tuple(t.shape), t.dtype), (args, kwargs, result)
        )
        self.seen.append((str(func), repr(told)))
        return result


def recorded(store, numbers):
    "What a batch does, operation by operation."
    with Recorder() as recorder:
        augment_batch(store, numbers)
    return recorder.seen


def test_every_batch_is_the_same_operations_on_the_same_shapes():
    "A compiler has one program for all batches of a size: nothing that is drawn decides anything."
    store = store_pixels(noise(colour=(1,)))
    programs = [
        recorded(store, numbers) for epoch in range(3) for numbers in both_numbers(store, epoch)
    ]
    assert len(programs[0]) > 20
    assert all(program == programs[0] for program in programs)
    calls = {name for name, _ in programs[0]}
    assert not any(word in name for name in calls for word in ("_local_scalar", "nonzero", "item"))


def test_nothing_is_computed_in_double_precision_or_half():
    "A TPU emulates doubles; a half has too few digits; autocast must not turn one into the other."
    store = store_pixels(noise())
    numbers = both_numbers(store)[0]
    program = recorded(store, numbers)
    assert any("float32" in told for _, told in program)
    for _, told in program:
        assert not any(kind in told for kind in ("float64", "float16", "bfloat16", "complex"))
    with torch.autocast("cpu", torch.bfloat16):
        inside = augment_batch(store, numbers)
    assert torch.equal(inside.image, augment_batch(store, numbers).image)


def test_it_is_captured_as_one_graph():
    "torch.compile need not break or read anything: the step around it can be one program."
    store = store_pixels(noise(colour=(1,)))
    graphs = []

    def keep(module, _):
        graphs.append(module)
        return module.forward

    step = torch.compile(
        lambda planes, masks, numbers: augment_batch(
            DeviceImages(planes, masks, store.first, store.truth), numbers
        ),
        backend=keep,
        fullgraph=True,
    )
    for epoch in range(3):
        numbers = both_numbers(store, epoch)[0]
        have, want = step(store.planes, store.masks, numbers), augment_batch(store, numbers)
        assert torch.equal(have.image, want.image)
        assert torch.equal(have.mask, want.mask)
    assert len(graphs) == 1


def test_the_size_of_a_store_is_known_before_it_is_made():
    "Where the pixels go is decided by it, before memory is taken."
    split = noise(colour=(0, 6))
    store = store_pixels(split)
    assert pixel_bytes(split) == store.planes.nbytes + store.masks.nbytes
    assert store.planes.dtype == store.masks.dtype == torch.uint8
    assert store.planes.shape == (7 + 2 * 2, 131, 128)
    assert store.through(torch.clone).sizes == store.sizes == list(SIZES)


@pytest.mark.parametrize("blur", [0, 0.01, 0.25, 0.5, 0.9, 0.999, 1, 1.41])
def test_the_blur_is_pillows_to_the_last_grey_level(blur):
    "Black, white and noise: whole numbers neither round nor overflow, and no device differs."
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (64, 81), dtype=np.uint8)
    image[:20], image[20:40] = image[:20] // 128 * 255, rng.integers(250, 256, (20, 81))
    want = np.asarray(Image.fromarray(image).filter(ImageFilter.GaussianBlur(blur)))
    have = box_blur(torch.tensor(image)[None, None].int(), torch.tensor([box_weights(blur)]))
    np.testing.assert_array_equal(have[0, 0].numpy(), want)


def test_a_blur_that_reaches_further_than_a_neighbour_is_refused():
    "Three passes over the neighbours would quietly blur too little."
    split = noise(SIZES[:1])
    for blur in (1.42, -0.1, float("nan")):
        with pytest.raises(UserError, match="radius is at least 0 and below"):
            by_products(split, [STILL._replace(blur=blur)], 96)
    draws = [STILL._replace(blur=1.41)]
    check(by_products(split, draws, 96), by_pillow(split, draws, 96))


# Real images


@cache
def real(sirst):
    "Forty real images, some colour, of forty sizes."
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train = splits(Config(dataset_dir=str(sirst), choose="last"))["train"]
    return train.part("train", range(0, 200, 5))


@pytest.mark.parametrize(("crop", "differ"), [("resize", 2e-3), ("native", 1e-2)])
def test_real_images_for_training(sirst, crop, differ):
    "The draws of a real epoch: a few pixels in a thousand are one grey level off."
    split, config = real(sirst), Config(dataset_dir=str(sirst), crop=crop)
    for epoch in range(2):
        draws = [sample_params(config, epoch, i) for i in range(len(split))]
        check(by_products(split, draws, 256), by_pillow(split, draws, 256), differ, 1e-5)


def test_real_images_for_scoring(sirst):
    "Scores of a device are those of the host."
    split = real(sirst)
    store = store_pixels(split)
    have = augment_batch(store, scoring_numbers(store, range(len(split)), 256))
    pairs = [resize_square(*pair, 256) for pair in split.pairs]
    check(have, collate(pairs, [True] * len(pairs)), 2e-3, 1e-5)


TRANSFORMS = SHARED / "golden" / "transforms.npz"


@pytest.mark.skipif(
    not TRANSFORMS.exists(), reason="needs pictures of the data set (MSHNET_SHARED)"
)
def test_transforms_of_the_official_code(sirst):
    "Not only equal to our reference but to what that one stands for, for the official draws."
    want, rows = np.load(TRANSFORMS), json.loads(TRANSFORMS.with_suffix(".json").read_text())
    names = [row["name"] for row in rows]
    images = [read_image(sirst / "images" / f"{name}.png")[0] for name in names]
    sizes = [image.shape[:2] for image in images]
    masks = [
        read_mask(sirst / "masks" / f"{n}.png", s)[0] for n, s in zip(names, sizes, strict=True)
    ]
    pairs = tuple(zip(images, masks, strict=True))
    store = store_pixels(Split("train", tuple(names), pairs, "golden"))
    draws = []
    for row in rows:
        spare = [max(side - 256, 0) for side in row["resized"]]
        place = [(row[k] + 0.5) / (s + 1) for k, s in zip(("y1", "x1"), spare, strict=True)]
        draws.append(AugmentParams(row["flip"], row["long_size"], *place, row["blur_radius"] or 0))
    every = range(len(rows))
    trained = augment_batch(store, training_numbers(store, every, draws, 256))
    scored = augment_batch(store, scoring_numbers(store, every, 256))
    for have, keys in (
        (trained, [(f"{row['key']}_image", f"{row['key']}_mask") for row in rows]),
        (scored, [(f"val_image_{name}", f"val_mask_{name}") for name in names]),
    ):
        pairs = [(want[image], (want[mask] > 127).astype(np.uint8)) for image, mask in keys]
        check(have, collate(pairs, [True] * len(pairs)), 2e-3, 1e-5)
