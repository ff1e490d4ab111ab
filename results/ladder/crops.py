"""Train with changed crops: python crops.py whole|larger train ...

whole: in the last fifth of the epochs a crop is the whole image at its scored size. larger: a
quarter of the crops is cut from an image that is enlarged 1 to 2.5 times, and a pixel of its mask
belongs to the target if at least half of it does.
"""

import sys
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageFilter

from mshnet import detection
from mshnet.augment import AugmentParams, Batch, add_clutter, augment, collate, sample_params
from mshnet.cli import main
from mshnet.data import Pair, Split
from mshnet.recipe import Config


def enlarged(image: np.ndarray, mask: np.ndarray, params: AugmentParams, size: int) -> Pair:
    "As `augment`, with the mask resized as the image is, and cut at half."
    plain = params._replace(blur=0.0, clutter=())
    pixels = augment(image, mask, plain, size)[0]
    truth = np.uint8(augment(255 * mask, mask, plain, size)[0] > 127)
    if params.clutter:
        pixels, truth = add_clutter(pixels, truth, params.clutter)
    if params.blur:
        blur = ImageFilter.GaussianBlur(params.blur)
        pixels = np.asarray(Image.fromarray(pixels).filter(blur))
    return pixels, truth


def training_batch(split: Split, indices: Sequence[int], epoch: int, config: Config) -> Batch:
    "The training batch with the changed crops."
    size, pairs = config.crop_size, []
    if CHANGE == "whole" and epoch >= 0.8 * config.epochs - 1e-6:
        size = int(config.base_size)
    for index in indices:
        params = sample_params(config, epoch, index)
        rng = np.random.default_rng([config.seed, epoch, index, 7])
        if CHANGE == "larger" and rng.random() < 0.25:
            square = int(int(config.base_size) * 2.5 ** rng.random() + 0.5)
            pairs.append(enlarged(*split.pairs[index], params._replace(square=square), size))
        else:
            pairs.append(augment(*split.pairs[index], params, size))
    return collate(pairs, indices)


if __name__ == "__main__":
    CHANGE = sys.argv[1]
    detection.training_batch = training_batch  # type: ignore[assignment]
    sys.exit(main(sys.argv[2:]))
