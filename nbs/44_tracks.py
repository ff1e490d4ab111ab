# %% [markdown]
# # Tracks: targets in a clip
#
# > Detections that follow each other in a clip are a track. A false alarm that flickers does not become a track.
#
# A detector looks at each frame of a clip by itself. A false alarm, such as a sparkling roof or noise, is often gone a moment later. A target stays. So time can tell them apart, unless the false alarms stay as well. Often they do: on 16 clips of a drone camera a live display of confirmed tracks has 126 false alarms a minute (1,800 frames) instead of 134, and Pd 0.858 instead of 0.882 ([more](guides/new_camera.ipynb)).
#
# We link each detection with one of the frame before, at most `REACH` = 16 pixels away, so that the sum of the squared distances is as small as possible (Crocker and Grier, 1996). A target that is missed in up to `MEMORY` = 4 frames continues its track, if it has moved at most `REACH` since. A track is **confirmed** once it has `HITS` = 5 detections among the last `AMONG` = 8 frames. The package [trackpy](https://soft-matter.github.io/trackpy) does the linking, and shrinks the reach step by step in a crowd of detections; `pip install trackpy` installs it.

# %%
#| hide
#| default_exp tracks
import matplotlib.pyplot as plt
import numpy as np

from mshnet.tracks import Tracker

# %% [markdown]
# Two targets cross a frame of 200x200 pixels. One of them is unseen in every sixth frame, and each frame has three false alarms at random places. On the left are all detections of 60 frames, on the right those of confirmed tracks:

# %%
rng = np.random.default_rng(1)
tracker = Tracker()
frames = []
for t in range(60):
    targets = [(40 + 2 * t, 20 + 3 * t), (170 - 2 * t, 30 + 2 * t)][: 2 if t % 6 else 1]
    places = np.array([*targets, *rng.uniform(0, 200, (3, 2))])
    frames.append((places, tracker.update(places)))
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 4), sharey=True, layout="constrained")
for places, numbers in frames:
    kept = np.isin(numbers, list(tracker.confirmed))
    left.scatter(*places.T[::-1], s=6, color="gray")
    colours = {"c": np.array(numbers)[kept] % 10, "cmap": "tab10", "vmin": 0, "vmax": 9}
    right.scatter(*places[kept].T[::-1], s=6, **colours)
left.set(title="detections", xlim=(0, 200), ylim=(200, 0), xlabel="column", ylabel="row")
right.set(title="confirmed tracks, one colour each", xlim=(0, 200), xlabel="column")
print(len(tracker.confirmed), "confirmed tracks")

# %% [markdown]
# Only 3 of 180 false alarms are left, and all 110 detections of targets stay. But the target that starts at the top left gets three colours: where a false alarm lies near its path, the wrong detection may be linked.
#
# ## The machinery

# %%
#| export
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from mshnet.core import UserError

REACH = 16.0  # pixels from frame to frame
MEMORY = 4  # frames in which a target may be missed
HITS, AMONG = 5, 8  # a track is confirmed after so many detections in so many frames


class Tracker:
    "The tracks of a clip, frame by frame; UserError without trackpy."

    def __init__(self) -> None:
        try:
            from trackpy import linking
        except ImportError as error:
            raise UserError(f"tracks need trackpy: pip install trackpy ({error})") from None
        self.frame, self.first, self.most = 0, 0, -1
        self.seen, self.confirmed, self.linking = dict[int, deque[int]](), set[int](), linking
        how: dict[str, Any] = {"memory": MEMORY, "adaptive_stop": 1.0, "adaptive_step": 0.7}
        self.linker = linking.Linker(REACH, **how)
        self.link: Any = self.linker.init_level  # of the first frame

    def update(self, centroids: np.ndarray) -> list[int]:  # the number of the track of each
        "Continue the tracks by the next frame: rows and columns [N,2] of its detections."
        self.frame += 1
        places = np.asarray(centroids, float).reshape(-1, 2)
        self.linking.TrackUnstored.reset_counter(1 + self.most - self.first)  # shared by all
        try:
            self.link(places, self.frame)
        except self.linking.SubnetOversizeException:  # many detections: all tracks begin anew
            self.first = 1 + self.most
            self.linker.init_level(places, self.frame)
        self.link = self.linker.next_level
        numbers = [self.first + int(number) for number in self.linker.particle_ids]
        for number in numbers:
            seen = self.seen.setdefault(number, deque(maxlen=HITS))
            seen.append(self.frame)
            if len(seen) == HITS and self.frame - seen[0] < AMONG:
                self.confirmed.add(number)
        self.most = max([self.most, *numbers])
        self.seen = {n: s for n, s in self.seen.items() if self.frame - s[-1] < AMONG}
        return numbers


COLUMNS = "file,track,first,last,frames,row_first,col_first,row_last,col_last,peak"


def confirmed_tracks(
    lines: Iterable[dict[str, Any]],  # of all frames, in their order
) -> Iterator[list[Any]]:  # of each: the values of COLUMNS
    "The confirmed tracks of predicted clips, each from its first detection."
    tracks = defaultdict[tuple[str, int], list[Any]](list)  # by file and number
    for line in lines:
        for found in line["objects"]:
            if found.get("track") is not None:
                seen = line["frame"], found["centroid"], found["peak"], found["confirmed"]
                tracks[line["stamp"][0], found["track"]].append(seen)
    for key, rows in tracks.items():
        frames, places, peaks, confirmed = zip(*rows, strict=True)
        if any(confirmed):
            yield [*key, frames[0], frames[-1], len(rows), *places[0], *places[-1], max(peaks)]


# %%
seen = [{"track": 3, "confirmed": t > 3, "centroid": [t, 2.0], "peak": 0.5} for t in range(6)]
lines = [{"stamp": ["a.mp4"], "frame": t, "objects": [row]} for t, row in enumerate(seen)]
for name, value in zip(COLUMNS.split(","), next(confirmed_tracks(lines)), strict=True):
    print(f"{name:10}{value}")

# %% [markdown]
# ## Questions
#
# 1. Three false alarms in each frame of 200x200 pixels: how often does one lie within 16 pixels of a given place?
#    <details><summary>Answer</summary>The circle has 804 of 40,000 pixels, so three alarms hit it in about 6% of the frames. Five times in eight frames almost never happens.</details>
# 2. Which false alarms become tracks?
#    <details><summary>Answer</summary>Those that stay: a hot pixel, a lamp, the corner of a roof. A track is evidence that something is there in every frame, not that it is a target.</details>
