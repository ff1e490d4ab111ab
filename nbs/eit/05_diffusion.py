# %% [markdown]
# # Diffusion: from noise to an image
#
# > Turn noise into images that fit a measurement: the noise of training, the few steps of sampling, and the standard deviation of the samples.
#
# 208 voltages do not determine an image: many tanks give the same measurement within its noise. A network trained to predict the image returns the mean of all these tanks. A diffusion model samples one of the tanks, and each new sample is a different one. The mean of the samples is a reconstruction. Their standard deviation shows where the samples differ.

# %%
#| export
#| default_exp eit.diffusion
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

# %% [markdown]
# ## Adding noise
#
# In training, an image is mixed with noise at a random time out of 1,000: `sqrt(kept) * image + sqrt(1 - kept) * noise`. The fraction that is kept falls from 0.9999 to 0.00004. The published schedule is linear (Ho et al., arXiv:2006.11239).

# %%
#| export
STEPS = 1000  # of the diffusion


@cache
def kept_share() -> np.ndarray:  # [1000] float64
    "The fraction of the variance of an image that is left at each time."
    found: np.ndarray = np.cumprod(1 - np.linspace(1e-4, 0.02, STEPS))
    found.setflags(write=False)
    return found


def amounts(level: np.ndarray) -> np.ndarray:  # [B] times 0..999 -> [B,2] float32
    "The factors of the image and of the noise in the mixture, at each of these times."
    kept = kept_share()[level]
    return np.stack([kept**0.5, (1 - kept) ** 0.5], 1).astype(np.float32)


def mix(image: Tensor, noise: Tensor, amounts: Tensor) -> Tensor:  # [B,1,S,S] twice, [B,2]
    "The noisy image."
    of_image, of_noise = amounts.view(-1, 2, 1, 1, 1).unbind(1)
    return of_image * image + of_noise * noise


# %%
import matplotlib.pyplot as plt

image, seeded = torch.zeros(1, 1, 32, 32), torch.Generator().manual_seed(0)
noise = torch.randn(1, 1, 32, 32, generator=seeded)
image[:, :, 8:16, 12:20] = 1
figure, axes = plt.subplots(1, 6, figsize=(8, 1.8), layout="constrained")
for axis, time in zip(axes, (0, 99, 199, 399, 699, 999), strict=True):
    noisy = mix(image, noise, torch.tensor(amounts(np.array([time]))))
    axis.imshow(noisy[0, 0], cmap="RdBu_r", vmin=-2, vmax=2)
    axis.set_title(f"time {time}\n{kept_share()[time]:.0%} is kept", size=8)
    axis.axis("off")


# %% [markdown]
# The network gets the noisy image, the time and the voltages, and predicts the image; the loss is the mean square error (published: the mean absolute error). (Many diffusion models predict the noise instead. Like CDEIT, we predict the image.)
#
# ## A few steps back
#
# Sampling begins with pure noise. In each step the network predicts the image $\hat x$, and the rest of its input is the noise $\hat e$. Then we mix the predicted image with less noise. One part of this noise is $\hat e$, the other part $e$ is new:
#
# $$x_{\mathrm{next}} = \sqrt{b}\,\hat x + \sqrt{1 - b - f}\,\hat e + \sqrt{f}\,e, \qquad f = \frac{1 - b}{1 - a}\left(1 - \frac{a}{b}\right)$$
#
# Here $a$ and $b$ are the kept fractions of this time and of the next one. With K steps the times are 1000 i / K - 1 for i from K down, rounded down; the prediction at the last time is the result. This is the sampler of Song et al. (arXiv:2010.02502) with eta = 1. If K divides 1000, the DDIM scheduler of the diffusers library with `trailing` times does the same.

# %%
#| export
def times(steps: int) -> list[int]:
    "The falling times of sampling in 1 to 1000 steps, and -1, the prediction itself."
    return [STEPS * i // steps - 1 for i in range(steps, -1, -1)]


def sample(
    denoise: Callable[[Tensor, Tensor], Tensor],  # (noisy [B,1,S,S], time [B]) -> image
    noise: Sequence[Tensor],  # K of [B,1,S,S], standard normal: the first begins, others are added
) -> Tensor:  # [B,1,S,S]
    "Images from noise, in as many steps as there are noises."
    noisy, path = noise[0], times(len(noise))
    for i, (now, then) in enumerate(pairwise(path)):
        image = denoise(noisy, torch.full_like(noisy[:, 0, 0, 0], now)).float()
        if then < 0:
            break
        a, b = kept_share()[now], kept_share()[then]
        fresh = (1 - a / b) * (1 - b) / (1 - a)  # variance of the new noise
        there = (noisy - float(a) ** 0.5 * image) / (1 - float(a)) ** 0.5  # its noise, by `mix`
        old = float((1 - b - fresh) ** 0.5) * there
        noisy = float(b**0.5) * image + old + float(fresh**0.5) * noise[i + 1]
    return image


# %% [markdown]
# We can watch the sampler without a network, in the steps of `times(10)`. Suppose that only two images exist, one with a square on the left and one with a square on the right, and nothing was measured. Then we know the best prediction: the mean of both, weighted by how well each explains the noisy image. Half of the samples show each image. One of the six in the figure, the fifth, is a mixture of both: ten steps are few. With 50 steps none of the 200 samples is.

# %%
left, right = torch.zeros(2, 1, 1, 8, 8)
left[..., 3:5, 1:3], right[..., 3:5, 5:7] = 1, 1


def perfect(noisy, time):
    "The expected image, by Bayes' rule."
    kept = torch.tensor(kept_share())[time.long()].float().view(-1, 1, 1, 1)
    errors = [(noisy - kept.sqrt() * x).square().sum((1, 2, 3)) for x in (left, right)]
    weight = torch.softmax(-torch.stack(errors, 1) / 2 / (1 - kept[:, 0, 0]), 1)
    return weight[:, :1, None, None] * left + weight[:, 1:, None, None] * right


generator = torch.Generator().manual_seed(0)
draws = sample(perfect, list(torch.randn(10, 200, 1, 8, 8, generator=generator)))
decided = draws[:, 0, 3:5, 5:7].mean((1, 2))
figure, axes = plt.subplots(1, 8, figsize=(8, 1.6), layout="constrained")
titles = [*["sample"] * 6, "mean", "std"]
for axis, x, title in zip(axes, [*draws[:6], draws.mean(0), draws.std(0)], titles, strict=True):
    axis.imshow(x[0], cmap="RdBu_r", vmin=-1, vmax=1)
    axis.set_title(title, size=8)
    axis.axis("off")
print(times(10))
print(f"{(decided > 0.5).float().mean():.2f} of the samples have the square on the right")


# %% [markdown]
# The mean of the samples shows both squares at half strength, as a regression network would. The standard deviation shows that both are uncertain.
#
# ## The machinery: noise and averaged weights
#
# A result must not depend on the batch size or the number of devices. So the host makes the noise, for each tank separately, from the seed and the index of the tank. The noise is a part of the batch.
#
# The published model is an average of the weights of training. Its options are "0.995, every 10 steps". But the package that reads them (ema-pytorch 0.8.3) has further defaults: it only copies the weights until call 100 (call n follows training step n, from 0). Then the decay rises as 1 - (1 + n - 100)^(-2/3) and reaches 0.995 at call 2,930. Our default is simpler: (1 + n) / (10 + n) up to `ema`, in every step n. The preset `paper` uses the published one.

# %%
#| export
def published_decay(
    call: int,  # from 0, one after each step of training
) -> float:  # 0: the weights are copied; 1: the average stays as it is
    "The decay of CDEIT's averaged weights."
    if call % 10:
        return 1.0
    return 0.0 if call <= 100 else min(0.995, 1 - (call - 99) ** (-2 / 3))

# %% [markdown]
# ## Questions
#
# 1. Sampling with one step: what does the network return, and what is the standard deviation of many samples?
#    <details><summary>Answer</summary>Its input at time 999 is nearly pure noise, which has no information. So it returns the mean of all images that fit the voltages, whatever the noise, and the standard deviation is nearly zero.</details>
# 2. Four samples are averaged before they are scored. Why is their mean better than one of them?
#    <details><summary>Answer</summary>Each sample decides for details that the voltages leave open. Where these guesses differ, the mean lies between them, and the square error of a mean is never larger than the mean of the square errors.</details>
