# %% [markdown]
# # scenes
#
# > Synthetic infrared scenes: cloud, sea and ground, warm clutter, and one to three small targets.

# %%
#| default_exp scenes

# %%
#| hide
from fastcore.test import test_close
from PIL import Image

# %%
#| export
import numpy as np


# %% [markdown]
# ## Synthetic scenes
#
# A new user should see the whole path without a download. These scenes are made to be hard in the way real ones are: clouds, sea and ground have 1/f spectra of different slopes, horizons and cloud edges imitate targets' contrast, warm clutter imitates targets themselves but is larger, longer or a single pixel, and targets are point spreads of a few pixels. Noise is the sensor's. Everything follows from a seed, so the scenes are the same every time.

# %%
#| export
def noise_1f(
    rng: np.random.Generator,
    size: int,
    slope: float,  # of the amplitude spectrum: 1 is rough, 2 is smooth
    stretch: float = 1.0,  # how much longer structures are from left to right
) -> np.ndarray:  # [size,size] mean 0, deviation 1
    "A random field with a 1/f^slope spectrum."
    fy, fx = np.fft.fftfreq(size)[:, None], np.fft.rfftfreq(size)[None]
    radius = np.hypot(fy, fx * stretch)
    radius[0, 0] = 1
    wave = rng.normal(size=radius.shape) + 1j * rng.normal(size=radius.shape)
    texture = np.fft.irfft2(wave / radius**slope, s=(size, size))
    return (texture - texture.mean()) / texture.std()


def _blob(
    size: int,
    row: float,
    col: float,
    radius: tuple[float, float],  # deviation along and across, in pixels
    angle: float = 0.0,
) -> np.ndarray:  # [size,size] 1 at the centre
    "A Gaussian spot, round or elongated."
    y, x = np.mgrid[:size, :size]
    u = (x - col) * np.cos(angle) + (y - row) * np.sin(angle)
    v = (y - row) * np.cos(angle) - (x - col) * np.sin(angle)
    return np.exp(-0.5 * ((u / radius[0]) ** 2 + (v / radius[1]) ** 2))


# %%
field_ = noise_1f(np.random.default_rng(0), 64, 1.5)
test_close([field_.mean(), field_.std()], [0, 1])
test_close(_blob(9, 4, 4, (1, 1))[4, 4], 1)


# %% [markdown]
# These are the bricks: a field that is rough or smooth, and a spot. A background is two or three fields:

# %%
#| export
def background(
    rng: np.random.Generator,
    size: int,
) -> np.ndarray:  # [size,size] grey levels
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
views = [background(np.random.default_rng(seed), 128) for seed in range(4)]
Image.fromarray(np.hstack(views).clip(0, 255).astype(np.uint8))


# %% [markdown]
# Then come the things that are no targets but warm: large spots, thin streaks, and pixels of the sensor that are always bright. A top-hat filter, which looks for what is small and bright, takes the last two for targets.

# %%
#| export
def warm(
    rng: np.random.Generator,
    size: int,
) -> np.ndarray:  # [size,size] grey levels to add
    "Hot things that are no targets: large spots, thin streaks, defective pixels of the sensor."
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
views = [warm(np.random.default_rng(seed), 128) for seed in range(4)]
Image.fromarray(np.hstack(views).clip(0, 255).astype(np.uint8))


# %% [markdown]
# Last come one to three targets, apart from each other. How bright one is follows from how uneven its surroundings are, so that none is easy and none is hidden; its mask ends where it has fallen below 0.4 of its peak.

# %%
#| export
def _target_places(
    rng: np.random.Generator,
    size: int,
    count: int,
) -> list[np.ndarray]:  # row and column of each
    "Places of targets: inside, and too far apart to touch; fewer than `count` where it is crowded."
    found: list[np.ndarray] = []
    for _ in range(4 * count):
        place = rng.uniform(8, size - 8, 2)
        if len(found) < count and all(np.hypot(*(place - p)) > 16 for p in found):
            found.append(place)
    return found


def scene(
    rng: np.random.Generator,
    size: int,
) -> tuple[np.ndarray, np.ndarray]:  # image and mask, [size,size] uint8
    "One infrared scene: background, warm noise_1f, one to three small targets, sensor noise."
    image, mask = background(rng, size) + warm(rng, size), np.zeros((size, size), np.uint8)
    for row, col in _target_places(rng, size, int(rng.integers(1, 4))):
        across = rng.uniform(1.4, 2.1)
        shape = (across * rng.uniform(1, 1.4), across)
        spot = _blob(size, row, col, shape, rng.uniform(0, np.pi))
        around = image[int(row) - 6 : int(row) + 7, int(col) - 6 : int(col) + 7]
        image += (rng.uniform(45, 80) + around.std()) * spot
        mask |= (spot > 0.4).astype(np.uint8)
    image += rng.normal(scale=rng.uniform(1, 3), size=image.shape)
    return np.clip(image, 0, 255).astype(np.uint8), mask


# %%
spots = _target_places(np.random.default_rng(3), 64, 3)
assert all(np.hypot(*(a - b)) > 16 for i, a in enumerate(spots) for b in spots[:i])
Image.fromarray(np.hstack(scene(np.random.default_rng(3), 128)) * np.uint8(1))
