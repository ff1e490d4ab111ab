# %% [markdown]
# # A simulated event camera
#
# > A simulated event camera in front of digits: recordings for everyone, without a download.
#
# N-MNIST was recorded by a real sensor that was moved in front of a screen with digits: three quick movements of 100 ms along a triangle, like those of an eye. We simulate the digits, the movements and the sensor. Here are three bins of a recording, ON events red and OFF events blue. A pixel that becomes brighter reports ON, one that becomes darker OFF. In each movement a different side of the strokes reports. In the second the digit moves up: upper edges are ON, lower ones OFF, and vertical strokes report nothing:

# %%
import matplotlib.pyplot as plt
import numpy as np

from mshnet.events.recordings import bin_events
from mshnet.events.simulator import simulate

frames = bin_events(simulate(20, seed=0)[5], 10).astype(int)
figure, axes = plt.subplots(1, 3, figsize=(7, 2.4))
for axis, i in zip(axes, (4, 14, 24), strict=True):
    axis.imshow(frames[i, 1] - frames[i, 0], cmap="RdBu_r", vmin=-3, vmax=3)
    axis.set_title(f"{10 * i} to {10 * i + 10} ms")
    axis.axis("off")

# %% [markdown]
# ## A pixel
#
# A pixel stores the logarithm of the brightness at its last report. When the logarithm differs from it by the threshold (0.25 here), it reports, and the stored value changes by one threshold; a large change gives several events. This is the textbook model of a dynamic vision sensor. Here a stroke passes a pixel in 300 ms. The stored value follows in steps, each of which is an event:

# %%
ms, stored = np.arange(300), []
light = np.log(0.2 + np.sin(np.pi * ms / 299) ** 4)
level = light[0] + 0.1  # of its last report
for value in light:
    level += 0.25 * np.trunc((value - level) / 0.25)
    stored.append(level)
change = np.diff(stored, prepend=stored[0])
plt.figure(figsize=(7, 2.4), layout="constrained")
plt.plot(ms, light, color="0.6", label="logarithm of the brightness")
plt.step(ms, stored, where="post", color="black", lw=1, label="stored value")
plt.plot(ms[change > 0], light[change > 0], "^", color="C3", label="ON event")
plt.plot(ms[change < 0], light[change < 0], "v", color="C0", label="OFF event")
plt.gca().set(xlabel="time, ms", ylabel="logarithm")
plt.legend(loc="upper left", bbox_to_anchor=(1, 1));

# %% [markdown]
# ## The sensor
#
# We move the digit in 72 small steps, and the pixels compare in each. Real pixels are worse than the model, and we simulate this, too. They report without a reason (the setting `noise`, events per pixel and second), some report 100 times a second, and all times vary a little.

# %%
#| export
#| default_exp events.simulator
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise

import numpy as np

from mshnet.events.recordings import Recording

SIDE = 34  # pixels of the simulated sensor
_THRESHOLD, _DARK = 0.25, 0.2  # of the logarithm; brightness of black
_HOT, _JITTER = 2, 500.0  # pixels that report all the time; microseconds by which times vary
_BATCH = 100  # recordings that are simulated at once
_STEPS, _DURATION = 24, 300_000  # steps of one movement; microseconds of a recording
_CORNERS = np.array([[-1.5, 0], [1.5, 1.5], [1.5, -1.5], [-1.5, 0]])  # x, y in pixels


def _shift(images: np.ndarray, by: np.ndarray) -> np.ndarray:  # [N,H,W]; x, y
    "Images moved by a fraction of a pixel, interpolated between four neighbours."
    for axis, d in ((2, by[0]), (1, by[1])):
        whole = int(np.floor(d))
        near = np.roll(images, whole, axis)
        images = near + (d - whole) * (np.roll(near, 1, axis) - near)
    return images


def _events(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:  # [E,5]
    "Events of all images: image, time, x, y, polarity; not in order."
    moves = [np.linspace(start, end, _STEPS, endpoint=False) for start, end in pairwise(_CORNERS)]
    path = np.concatenate([*moves, _CORNERS[-1:]])  # where the digit is in each step
    stored, found = np.log(_shift(images, path[0]) + _DARK), []
    step = _DURATION / (len(path) - 1)
    for i, place in enumerate(path[1:]):
        light = np.log(_shift(images, place) + _DARK)
        change = np.trunc((light - stored) / _THRESHOLD).astype(int)
        stored = stored + change * _THRESHOLD
        where = np.nonzero(change)
        counts = change[where]
        image, y, x, p = (np.repeat(v, np.abs(counts)) for v in (*where, counts > 0))
        time = (i + rng.random(len(image))) * step
        found.append(np.stack([image, time, x, y, p], 1))
    return np.concatenate(found)


def _noise_events(count: int, noise: float, rng: np.random.Generator) -> np.ndarray:  # [E,5]
    "Events without a reason: noise of all pixels, and hot pixels."
    seconds = _DURATION / 1e6
    image = np.repeat(np.arange(count), rng.poisson(noise * SIDE**2 * seconds, count))
    xy = rng.integers(0, SIDE, (len(image), 2))
    hot = np.repeat(rng.integers(0, SIDE, (count, _HOT, 2)), int(100 * seconds), 1)
    each = np.repeat(np.arange(count), hot.shape[1])
    image, xy = np.concatenate([image, each]), np.concatenate([xy, hot.reshape(-1, 2)])
    time, p = rng.random(len(image)) * _DURATION, rng.integers(0, 2, len(image))
    return np.concatenate([np.stack([image, time], 1), xy, p[:, None]], 1)


# %% [markdown]
# ## The machinery: digits
#
# A digit is a few strokes, given by points. For each sample we move the points at random, then rotate, slant and stretch the digit, and draw it with a pen of random width. A smooth curve goes through the points of a stroke (a Catmull-Rom spline). The sensor sees a hundred digits at once.

# %%
#| export
_STROKES = {
    0: ["50,0 15,18 5,50 15,82 50,100 85,82 95,50 85,18 50,0"],
    1: ["25,25 50,0", "50,0 50,100"],
    2: ["10,25 30,2 70,2 88,28 60,60 10,100", "10,100 95,100"],
    3: ["12,12 50,0 85,20 50,46", "50,46 92,70 55,100 8,88"],
    4: ["65,0 5,68", "5,68 98,68", "68,35 68,100"],
    5: ["85,0 20,0", "20,0 15,45", "15,45 60,38 92,68 55,100 10,90"],
    6: ["75,2 30,30 10,70 45,100 88,75 55,50 14,68"],
    7: ["8,0 92,0", "92,0 40,100"],
    8: ["50,47 15,25 50,0 85,25 50,47 8,75 50,100 92,75 50,47"],
    9: ["88,30 50,52 12,28 50,0 88,30 75,75 50,100"],
}


def _spline(points: np.ndarray) -> np.ndarray:  # [K,2] to [M,2]
    "Points along a smooth curve through these points."
    p = np.concatenate([2 * points[:1] - points[1:2], points, 2 * points[-1:] - points[-2:-1]])
    u = np.linspace(0, 1, 6, endpoint=False)[:, None, None]
    a, b, c, d = p[:-3], p[1:-2], p[2:-1], p[3:]
    curve = b + u * (c - a) / 2 + u**2 * (a - 2.5 * b + 2 * c - d / 2)
    curve = curve + u**3 * (1.5 * (b - c) + (d - a) / 2)
    return np.concatenate([curve.swapaxes(0, 1).reshape(-1, 2), points[-1:]])


def draw_digit(digit: int, rng: np.random.Generator) -> np.ndarray:  # [SIDE,SIDE], 0 to 1
    "Draw a digit as if by hand, in the middle."
    angle, slant = rng.normal(0, 0.12), rng.normal(0, 0.15)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    size = np.array([rng.uniform(10, 15), rng.uniform(17, 21)])
    pixels = np.stack(np.meshgrid(np.arange(SIDE), np.arange(SIDE)), -1).reshape(-1, 1, 2)
    nearest = np.full(SIDE * SIDE, np.inf)
    for stroke in _STROKES[digit]:
        points = np.array([[float(v) for v in p.split(",")] for p in stroke.split()]) / 100 - 0.5
        points = (points + rng.normal(0, 0.04, points.shape)) * size
        points = points @ np.array([[1, 0], [-slant, 1]]) @ turn.T + (SIDE - 1) / 2
        curve = _spline(points)
        start, along = curve[:-1], np.diff(curve, axis=0)
        share = ((pixels - start) * along).sum(-1) / np.maximum((along**2).sum(-1), 1e-9)
        apart = pixels - start - np.clip(share, 0, 1)[..., None] * along
        nearest = np.minimum(nearest, np.sqrt((apart**2).sum(-1)).min(1))
    pen = rng.uniform(0.9, 1.7)  # half its width
    return np.clip(pen + 0.5 - nearest, 0, 1).reshape(SIDE, SIDE)


def _simulate_batch(start: int, count: int, seed: int, noise: float) -> Iterator[Recording]:
    "Recordings of the digits from this number on."
    numbers = range(start, start + count)
    images = [draw_digit(i % 10, np.random.default_rng([seed, i])) for i in numbers]
    rng = np.random.default_rng([seed, start, 1])
    events = np.concatenate([_events(np.stack(images), rng), _noise_events(count, noise, rng)])
    events[:, 1] = np.clip(events[:, 1] + rng.normal(0, _JITTER, len(events)), 0, _DURATION - 1)
    events = events[np.lexsort(events[:, 1::-1].T)].astype(np.int64)  # by image, then by time
    for i, part in enumerate(np.split(events, np.searchsorted(events[:, 0], range(1, count)))):
        columns = (part[:, 2], part[:, 3], part[:, 1], part[:, 4])
        yield Recording.checked(columns, (2, SIDE, SIDE), f"simulated {start + i}")


@lru_cache(maxsize=4)  # a run and its figures use the same ones
def simulate(count: int, seed: int, noise: float = 0.5) -> list[Recording]:
    "Simulate recordings; number i shows the digit i % 10. Noise: events per pixel and second."
    starts = range(0, count, _BATCH)
    parts = (_simulate_batch(s, min(_BATCH, count - s), seed, noise) for s in starts)
    return [recording for part in parts for recording in part]


# %%
drawn = [draw_digit(i % 10, np.random.default_rng(i)) for i in range(20)]
plt.figure(figsize=(10, 2.2)).gca().axis("off")
plt.imshow(np.block([drawn[:10], drawn[10:]]), cmap="gray");

# %% [markdown]
# ## Questions
#
# 1. The brightness of a pixel jumps from black, 0.2, to white, 1.2. How many events does the pixel report?
#    <details><summary>Answer</summary>The logarithm grows by log(1.2 / 0.2) = 1.79, which is 7.2 thresholds of 0.25. So it reports 7 ON events, and the stored value stays a little below the new one.</details>
# 2. The lamp of the room becomes twice as bright, and the digit moves as before. How many more events are there?
#    <details><summary>Answer</summary>None (except for rounding). Twice the light adds log 2 to all logarithms, those of the background too, and pixels compare differences. Only the moment at which the lamp changes causes events, and those everywhere.</details>
