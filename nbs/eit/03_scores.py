# %% [markdown]
# # Scores of a reconstruction
#
# > How good is an image of a tank, and is its standard deviation right?
#
# Electrodes around a tank of water measure voltages, and a method reconstructs an image: conductive objects are positive, resistive ones negative, water is 0. Two questions follow. Does the image show the right objects at the right position? And if the method also returns a standard deviation for each pixel, are its errors really that large?

# %%
#| export
#| default_exp eit.scores
from functools import cache

import torch
from skimage.metrics import structural_similarity
from torch import Tensor

from mshnet.eit.tank import correlation


# %% [markdown]
# ## Scores
#
# - **CC**, the correlation of the pixels with the true image, is the main score: right shape, right position.
# - **RMSE**, the root of the mean squared error, also measures the strength.
# - **Dice**, twice the overlap divided by the sum of both areas, is computed for the pixels above 0.5 (conductive) and for those below -0.5 (resistive).
# - **PSNR** is RMSE in decibels, with the fixed peak 2, the range of the images. (The published script takes the maximum of each image as the peak, which differs from tank to tank.)
# - **SSIM** compares small windows, of which most are plain water. On real tanks (UEF) an image of plain water has 0.87, more than any reconstruction, and 0.85 if only windows within the tank count, as here. We print SSIM for comparison with other tables, but do not use it to compare methods.

# %%
#| export
@cache
def inside(size: int) -> Tensor:  # [size,size] bool
    "The pixels of an image that lie in the tank."
    at = (torch.arange(size) * 2 + 1) / size - 1
    return at[:, None] ** 2 + at**2 < 1


def score_images(
    images: Tensor,  # [N,S,S] reconstructions
    truth: Tensor,  # [N,S,S] -1 to 1
) -> dict[str, Tensor]:  # [N] float64 each; NaN where a score is not defined
    "The scores of each reconstruction."
    images, truth = images.cpu().double(), truth.cpu().double()
    square = (images - truth).square().mean((1, 2))
    within, both = inside(images.shape[-1]), zip(images.numpy(), truth.numpy(), strict=True)
    maps = [structural_similarity(*pair, data_range=2, full=True)[1] for pair in both]  # 7x7 pixels
    return {
        "cc": correlation(images.flatten(1), truth.flatten(1)),
        "rmse": square.sqrt(),
        "dice_conductive": _dice(images > 0.5, truth > 0.5),
        "dice_resistive": _dice(images < -0.5, truth < -0.5),
        "psnr": 10 * torch.log10(4 / square),
        "ssim": torch.stack([torch.from_numpy(each)[within].mean() for each in maps]),
    }


def _dice(found: Tensor, true: Tensor) -> Tensor:
    "Twice the overlap by the sum of both areas; NaN where both are empty."
    return 2 * (found & true).sum((1, 2)) / (found.sum((1, 2)) + true.sum((1, 2))).double()


# %% [markdown]
# A tank and three images of it. Turned by one electrode, sharp objects have a lower CC (0.55) than blurred ones at the right place (0.83). Zeros (plain water) have no CC, but an SSIM of 0.59:

# %%
import matplotlib.pyplot as plt

from mshnet.eit.tanks import simulated_tanks

tanks = simulated_tanks("test", 1, seed=5, size=32, fine=True)
truth, turned = tanks.pair(0)[1], tanks.pair(0, 1)[1]
blurred = torch.nn.functional.avg_pool2d(truth[None, None], 7, 1, 3)[0, 0]
shown = {"ground truth": truth, "blurred": blurred, "turned": turned, "zeros": 0 * truth}
found = score_images(torch.stack(list(shown.values())), truth.expand(4, -1, -1))
figure, axes = plt.subplots(1, 4, figsize=(7, 2.5))
for i, (axis, (name, image)) in enumerate(zip(axes, shown.items(), strict=True)):
    axis.imshow(image.where(inside(32), torch.nan), cmap="RdBu_r", vmin=-1, vmax=1)
    lines = [f"{score} {found[score][i]:.2f}" for score in ("cc", "rmse", "ssim")]
    axis.set_title("\n".join([name, *lines]), size=9)
    axis.axis("off")


# %% [markdown]
# ## Is the standard deviation right?
#
# For normal errors, 68% of the pixels lie within one standard deviation of the mean and 95% within two. This holds for many samples. With four samples, mean and deviation are uncertain themselves, and the numbers are 50% and 78%. We count these pixels. Most of a tank is water, which is easy, so we also compute the correlation between standard deviation and error: a useful standard deviation is large *where the errors are*. Below, the true standard deviation grows from 0.2 at the left to 1.8 at the right. We compare four claimed deviations: half the true one, the true one, 1 everywhere, and the true one mirrored left to right. The third has nearly the right counts, but no correlation; the last is large where the errors are small:

# %%
#| export
def calibration(
    mean: Tensor,  # [N,S,S]
    spread: Tensor,  # [N,S,S] standard deviation of the samples
    truth: Tensor,  # [N,S,S]
) -> dict[str, Tensor]:  # [N] float64 each
    "How often the truth is within one and two deviations; their correlation with the errors."
    within = inside(mean.shape[-1])
    error, spread = ((x.cpu().double())[:, within] for x in ((mean - truth).abs(), spread))
    found = {f"within_{k}": (error <= k * spread).double().mean(1) for k in (1, 2)}
    return found | {"spread_cc": correlation(spread, error)}


# %%
sizes = torch.linspace(0.2, 1.8, 32).expand(50, 32, 32)
errors = sizes * torch.randn(50, 32, 32, generator=torch.Generator().manual_seed(0))
for claimed in (sizes / 2, sizes, torch.ones_like(sizes), sizes.flip(2)):
    counts = calibration(errors, claimed, torch.zeros_like(errors))
    print({k: round(v.mean().item(), 2) for k, v in counts.items()})

# %% [markdown]
# ## Questions
#
# 1. Multiply an image by 2. Which scores change?
#    <details><summary>Answer</summary>RMSE and PSNR, and Dice, because other pixels exceed 0.5. SSIM changes, too. CC does not: a correlation ignores the scale.</details>
# 2. A method returns a standard deviation of 10 in every pixel. What do the three numbers of `calibration` show?
#    <details><summary>Answer</summary>The truth is always within one and two standard deviations, instead of in 68% and 95% of the pixels: the method is far too careful. The correlation is NaN, because a constant shows nothing about where the errors are.</details>
