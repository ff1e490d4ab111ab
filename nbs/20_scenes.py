# %% [markdown]
# # Synthetic scenes
#
# > Infrared images made by a formula, with known targets that are hard to find.
#
# All of detection can be tried on these scenes, without a download. They are difficult for the reasons that make real images difficult:
#
# - clouds, sea and ground have 1/f spectra of different slopes, so brightness varies at all scales;
# - horizons and cloud edges are sharp, and often half as strong as a target;
# - warm objects look like targets, but are larger, longer or a single pixel;
# - targets are points, blurred to a few pixels, and the sensor adds noise.
#
# ![Five scenes with their targets marked, and their masks](../results/scenes-quick/figures/samples.png)
#
# Equal seeds give equal scenes. A score on them shows that a method works at all, not how good it is on real images. For that, [evaluate](43_evaluate.ipynb) it on labelled frames of your camera.

# %%
#| hide
#| default_exp scenes
import matplotlib.pyplot as plt
from scipy.ndimage import white_tophat


def panels(views):
    "Images beside each other, each from its smallest value (black) to its largest (white)."
    axes = plt.figure(figsize=(2 * len(views), 2.3), layout="constrained").subplots(1, len(views))
    for axis, (title, view) in zip(axes, views.items(), strict=True):
        axis.imshow(view, cmap="gray")
        axis.set(title=title, xticks=[], yticks=[])


# %%
#| export
import numpy as np


# %% [markdown]
# ## Two building blocks
#
# Everything is made of random fields and spots. A field is noise whose spectrum falls with the frequency: with a slope of 1 it is rough, with 2 smooth. A spot is a Gaussian, round or elongated. In every panel of this page black is the smallest value and white the largest.

# %%
#| export
def noise_1f(
    rng: np.random.Generator,
    size: int,
    slope: float,  # of the amplitude spectrum: 1 is rough, 2 is smooth
    stretch: float = 1.0,  # width of structures as a multiple of their height
) -> np.ndarray:  # [size,size] mean 0, deviation 1
    "A random field with a 1/f^slope spectrum."
    fy, fx = np.fft.fftfreq(size)[:, None], np.fft.rfftfreq(size)[None]
    radius = np.hypot(fy, fx * stretch)
    radius[0, 0] = 1
    wave = rng.normal(size=radius.shape) + 1j * rng.normal(size=radius.shape)
    texture = np.fft.irfft2(wave / radius**slope, s=(size, size))
    return (texture - texture.mean()) / texture.std()


def _blob(
    size: int, row: float, col: float, radius: tuple[float, float], angle: float
) -> np.ndarray:  # [size,size] 1 at the centre
    "A Gaussian spot; its radius is the standard deviation along and across, in pixels."
    y, x = np.mgrid[:size, :size]
    u = (x - col) * np.cos(angle) + (y - row) * np.sin(angle)
    v = (y - row) * np.cos(angle) - (x - col) * np.sin(angle)
    return np.exp(-0.5 * ((u / radius[0]) ** 2 + (v / radius[1]) ** 2))


# %%
rough, smooth = (noise_1f(np.random.default_rng(0), 128, slope) for slope in (1, 2))
panels({"slope 1": rough, "slope 2": smooth, "spot": _blob(128, 64, 64, (20, 10), 0.8)})


# %% [markdown]
# ## The background
#
# A background is one to three such fields: a sky, perhaps with broken cloud, perhaps with sea or ground below a horizon. Below, seed 2 has all three, and seed 3 only a sky with cloud:

# %%
#| export
def background(rng: np.random.Generator, size: int) -> np.ndarray:  # [size,size] grey levels
    "Cloud, sea or ground, or two of them with a horizon between."
    sky = rng.uniform(50, 90) + rng.uniform(4, 12) * noise_1f(rng, size, rng.uniform(1.4, 1.9))
    if rng.random() < 0.5:  # broken cloud has bright, sharp edges
        layer = noise_1f(rng, size, 1.7)
        sky += rng.uniform(15, 40) / (1 + np.exp(-12 * (layer - rng.uniform(0, 1))))
    if rng.random() < 0.5:
        return sky
    low = rng.uniform(50, 110) + rng.uniform(3, 8) * noise_1f(rng, size, rng.uniform(0.8, 1.2), 2.5)
    horizon = rng.uniform(0.3, 0.8) * size + rng.uniform(1, 5) * noise_1f(rng, size, 1.8)[0]
    return np.where(np.arange(size)[:, None] < horizon, sky, low)


# %%
panels({f"seed {n}": background(np.random.default_rng(n), 128) for n in range(4)})


# %% [markdown]
# ## Warm, but not a target
#
# A detector must reject large spots, thin streaks, and defective pixels of the sensor that are always bright. A top-hat filter keeps what is bright and narrower than a few pixels. In the last panel the spots of seed 0 are gone, but a streak and the points stay, as a target would:

# %%
#| export
def warm(rng: np.random.Generator, size: int) -> np.ndarray:  # [size,size] grey levels to add
    "Warm clutter: large spots, thin streaks, defective pixels of the sensor."
    extra = np.zeros((size, size))
    for _ in range(rng.integers(0, 3)):
        across = rng.uniform(5, 10)
        shape = (across * rng.uniform(1, 2), across)
        row, col = rng.uniform(0, size, 2)
        extra += rng.uniform(20, 60) * _blob(size, row, col, shape, rng.uniform(0, np.pi))
    for _ in range(rng.integers(0, 3)):
        shape = (rng.uniform(8, 20), rng.uniform(0.7, 1.2))
        row, col = rng.uniform(0, size, 2)
        extra += rng.uniform(30, 80) * _blob(size, row, col, shape, rng.uniform(0, np.pi))
    hot = rng.random((size, size)) < rng.uniform(0, 0.001)
    return extra + hot * rng.uniform(30, 90, (size, size))


# %%
views = {f"seed {n}": warm(np.random.default_rng(n), 128) for n in range(3)}
panels({**views, "top-hat of seed 0": white_tophat(views["seed 0"], 7)})


# %% [markdown]
# ## The scene
#
# One to three targets are added, apart from each other, and sensor noise last. The more a target's surroundings vary, the brighter it is, so that none is hidden; on a flat sky they are easy. Its mask ends where it falls below 0.4 of its peak. In the figure the bright single pixels are defects, and only the two spots are targets.

# %%
#| export
def scene(rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    "Image and mask [size,size] uint8: background, warm clutter, one to three small targets, noise."
    image, mask = background(rng, size) + warm(rng, size), np.zeros((size, size), np.uint8)
    count, places = int(rng.integers(1, 4)), list[np.ndarray]()
    for _ in range(4 * count):  # fewer than `count` where it is crowded
        place = rng.uniform(8, size - 8, 2)
        if len(places) < count and all(np.hypot(*(place - p)) > 16 for p in places):
            places.append(place)
    for row, col in places:
        across = rng.uniform(1.4, 2.1)
        shape = (across * rng.uniform(1, 1.4), across)
        spot = _blob(size, row, col, shape, rng.uniform(0, np.pi))
        around = image[int(row) - 6 : int(row) + 7, int(col) - 6 : int(col) + 7]
        image += (rng.uniform(45, 80) + around.std()) * spot
        mask |= (spot > 0.4).astype(np.uint8)
    image += rng.normal(scale=rng.uniform(1, 3), size=image.shape)
    return np.clip(image, 0, 255).astype(np.uint8), mask


# %%
image, mask = scene(np.random.default_rng(3), 128)
panels({"image": image, "ground truth": mask})

# %% [markdown]
# ## Questions
#
# 1. Why does the brightness of a target follow from its surroundings, and not from a fixed range?
#    <details><summary>Answer</summary>On a flat sky ten grey levels are obvious; at a cloud edge fifty are not. With a fixed range some targets would be invisible, and the score would depend on the background, not on the detector.</details>
# 2. A detector finds every target in new scenes. Why may it miss targets of a camera?
#    <details><summary>Answer</summary>A scene has the noise, the objects and the targets that we thought of. A camera adds its own: stripes, halos, compression, targets of other sizes.</details>
