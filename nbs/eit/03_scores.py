# %% [markdown]
# # Scores of a reconstruction
#
# > How good is an image of a tank? The scores by which methods are compared, and whether a standard deviation is honest.

# %%
#| default_exp eit.scores

# %%
#| hide
import matplotlib.pyplot as plt
from fastcore.test import test_close

from mshnet.eit.tanks import simulated_tanks

# %%
#| export
from functools import cache

import torch
from skimage.metrics import structural_similarity
from torch import Tensor

from mshnet.eit.tank import correlation


# %% [markdown]
# ## Scores
#
# **CC**, the correlation of the pixels with the truth, comes first: it asks for the right shape at the right place. **RMSE** also asks for the right strength. **Dice** is counted for conductive and resistive inclusions apart, where image and truth exceed 0.5. **PSNR** has the fixed peak 2, the range of the images. (The published script takes each image's own maximum, which differs from tank to tank.)
#
# **SSIM** compares small windows. Most windows of a tank are plain water, and on real tanks the image of plain water scores 0.87, more than any reconstruction. We average over the windows within the tank alone. That does not cure it (the image of plain water still wins, with 0.85), so SSIM is printed for comparison with other people's tables, and nothing is judged by it.

# %%
#| export
@cache
def inside(size: int) -> Tensor:  # [size,size] bool
    "The pixels of a picture that lie in the tank."
    at = (torch.arange(size) * 2 + 1) / size - 1
    return at[:, None] ** 2 + at**2 < 1


def score_images(
    images: Tensor,  # [N,S,S] reconstructions
    truth: Tensor,  # [N,S,S] -1 to 1
) -> dict[str, Tensor]:  # [N] float64 each; NaN where a score is not defined
    "The scores of each reconstruction."
    images, truth = images.double().cpu(), truth.double().cpu()
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
# A tank, and two images of it: one is blurred, the other one is turned by one electrode. CC and RMSE tell them apart, and the image of plain water has no CC at all:

# %%
tanks = simulated_tanks("test", 1, seed=5, size=32, fine=True)
truth = tanks.pair(0)[1]
blurred = torch.nn.functional.avg_pool2d(truth[None, None], 7, 1, 3)[0, 0]
shown = {"truth": truth, "blurred": blurred, "turned": tanks.pair(0, 1)[1], "empty": 0 * truth}
found = score_images(torch.stack(list(shown.values())), truth.expand(4, -1, -1))
figure, axes = plt.subplots(1, 4, figsize=(7, 2))
for i, (axis, (name, image)) in enumerate(zip(axes, shown.items(), strict=True)):
    axis.imshow(image.where(inside(32), torch.nan), cmap="RdBu_r", vmin=-1, vmax=1)
    axis.set_title(f"{name}\ncc {found['cc'][i]:.2f}, rmse {found['rmse'][i]:.2f}", size=9)
    axis.axis("off")


# %% [markdown]
# ## Is the standard deviation honest?
#
# A method that returns a mean and a standard deviation claims: the truth is probably within the standard deviation of the mean. We count how often it is. For normal errors it is 68 % within one standard deviation and 95 % within two. Most of a tank is water, which is easy, so we also ask for the correlation between standard deviation and error: a standard deviation that is large where the errors are is worth more than one that is only large enough.

# %%
#| export
def calibration(
    mean: Tensor,  # [N,S,S]
    spread: Tensor,  # [N,S,S] standard deviation of the samples
    truth: Tensor,  # [N,S,S]
) -> dict[str, Tensor]:  # [N] float64 each
    "How often the truth lies within one and two spreads, and whether the spread shows the errors."
    within = inside(mean.shape[-1])
    error, spread = ((x.double().cpu())[:, within] for x in ((mean - truth).abs(), spread))
    found = {f"within_{k}": (error <= k * spread).double().mean(1) for k in (1, 2)}
    return found | {"spread_cc": correlation(spread, error)}


# %%
errors = torch.randn(50, 32, 32, generator=torch.Generator().manual_seed(0))
honest = calibration(errors, torch.ones_like(errors), torch.zeros_like(errors))
test_close([honest[f"within_{k}"].mean().item() for k in (1, 2)], [0.683, 0.954], 0.01)
