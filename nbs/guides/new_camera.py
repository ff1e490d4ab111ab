# %% [markdown]
# # A new camera finds too much, or nothing
#
# > For somebody who runs pretrained weights on frames of a camera that the weights were not trained on. At the end you know which setting to change, or that you must retrain, and with which frames.

# %% [markdown]
# ## What to expect
#
# Weights work best on images like those they were trained on. We trained weights like the pretrained ones four times, each time without one data set. On that data set they find 0.71 to 0.90 of the targets, with 0.07 to 0.36 false alarms per frame. On new clips of a camera that they know, the pretrained weights find 0.930, with 0.07 ([folder](../../results/pretrained/continued)). We chose weights by these clips, and settings by many of the images, so expect less on your camera.
#
# ## Look at the results
#
# ```bash
# mshnet predict frames --threshold 0.1
# ```
#
# The last line names the folder of the results. Look at the images in its `overlays/`. Run it again without `--threshold` (this writes to a new folder), and compare.
#
# | what you see | cause | what to do |
# |---|---|---|
# | nothing; the targets are dark | the weights know only bright targets | invert the images (255 - value) |
# | nothing; the targets are more than about 20 pixels across | too large for the weights | halve the size of the frames before you predict |
# | nothing; the targets are blurred, or unusual in another way | the weights were not trained on such targets | fine-tune (see below) |
# | targets that the default threshold misses | the threshold is too high | `--threshold 0.2` |
# | single bright pixels everywhere | sensor noise or hot pixels | `--min-area 3` drops detections of fewer than 3 pixels; it is better to correct the sensor |
# | the frames are coloured | the camera shows temperature as colour, with a palette such as "iron"; the weights know grey frames in which hotter is brighter | record with the palette "white hot"; the colours cannot be undone |
# | detections on text, a cross or a scale | the camera draws them into the frame | switch them off in the camera, or cut them off before you predict |
# | stripes, text or colours of a screen | the video films the screen of a camera | export the camera's own file; else crop to the picture and shrink it: `ffmpeg -i clip.mp4 -vf crop=W:H:X:Y,scale=640:-2 small.mp4` |
# | detections on lamps, roofs, edges of clouds | they look like targets; one frame is not enough to tell them apart | collect such frames and retrain (see below) |
# | more detections at the borders of tiles, after you lowered `--tile` | the network's attention sees one tile at a time | use the default of 1024, or more if the memory allows |
#
# These lines invert grey PNGs of 8 or 16 bits. For half the size (8 bits), save `Image.open(path).convert("L").reduce(2)` instead:
#
# ```python
# from pathlib import Path
#
# import numpy as np
# from PIL import Image
#
# Path("inverted").mkdir(exist_ok=True)
# for path in Path("frames").glob("*.png"):
#     image = Image.open(path)
#     pixels = np.asarray(image if image.mode.startswith("I;16") else image.convert("L"))
#     Image.fromarray(np.iinfo(pixels.dtype).max - pixels).save(Path("inverted", path.name))
# ```
#
# Of a video of 8 bits, `ffmpeg -i clip.mp4 -vf format=gray,negate -c:v ffv1 inverted.mkv` makes an inverted copy, and `-vf scale=iw/2:-2` one of half the size.
#
# ## The threshold and the minimum area
#
# A lower threshold mostly finds more targets, with more false alarms. The [card](../../mshnet/pretrained.md) lists both by threshold: below 0.2 the false alarms grow fast, from 0.9 on targets are lost. A minimum area removes small false alarms, but also small targets.
#
# This synthetic scene has three targets and little contrast; the figure shows a part of it. The thresholds 0.1 (left) and 0.5 find all three. At 0.9 (right) only a few pixels of two targets are left (column `pixels`), and `--min-area 4` drops both:

# %%
import numpy as np
from matplotlib import pyplot as plt

from mshnet import detect, predict
from mshnet.predict import detections, overlay
from mshnet.scenes import scene

rng = np.random.default_rng(22)
image, mask = scene(rng, 256)
dim = (80 + 0.3 * image + rng.normal(scale=3, size=image.shape)).clip(0, 255).astype(np.uint8)
prob = predict("pretrained", dim, "cpu")
print("threshold  min_area  detections  on a target  pixels")
for threshold in (0.1, 0.5, 0.9):
    for min_area in (1, 4):
        found = detections(prob, threshold, min_area)
        rows, cols = found.pixels
        hits = sum(mask[tuple(np.int64(centre))] > 0 for centre in found.centroid.round())
        print(f"{threshold:9}  {min_area:8}  {len(found):10}  {hits:11}  {len(rows):6}")
_, axes = plt.subplots(1, 2, figsize=(12, 2.5), layout="tight")
for axis, threshold in zip(axes, (0.1, 0.9), strict=True):
    shown = overlay(dim, [*detections(prob, threshold).rows()])
    axis.imshow(shown)
    axis.set(ylim=(shown.height, 0.65 * shown.height), xticks=[], yticks=[])
    axis.set(title=f"--threshold {threshold}")

# %% [markdown]
# ## 16 bits and hot pixels
#
# Frames of 16 bits, or of floats such as degrees, are scaled to 8 bits. Single hot or dead pixels do not count for the range of values, so they hide no target ([frames](../23_frames.ipynb)). Each frame of a deep video is scaled by itself, so overlays and probabilities may flicker. A few bad lines, telemetry rows or an empty border do not count either. But a bright line disturbs the network and can still hide a target: replace bad lines by the lines next to them. In the example below a hot pixel changes nothing, but in other frames it may be a detection itself. If you have a list of your camera's bad pixels, replace them before you predict.
#
# A JPEG of a FLIR camera also stores the temperatures. These are read instead of the colours, which needs `pip install flyr`; without it the file is skipped. To use the colours instead, save the image as PNG. **Not tried** with a real file, only with files made for the tests.

# %%
frame = 30000 + 10 * image.astype(np.uint16)
bad = frame.copy()
bad[100, 200] = 65535
for name, pixels in (("good frame", frame), ("hot pixel", bad)):
    print(f"{name:10}  {len(detect(pixels, device='cpu'))} detections")

# %% [markdown]
# ## Retrain with your own frames
#
# No threshold, minimum area or track separates a lamp from a target. Show the network what it must ignore:
#
# 1. Collect frames of your camera **without a target** in which it raised false alarms. Put them into `data/mycamera/images`, and a black mask of the same name and size into `data/mycamera/masks`. While that folder holds only such frames, `mshnet predict data/mycamera/images --threshold 1 --save masks` makes black masks of all, because no probability is above 1: move them there.
# 2. Add frames **with** targets and their masks, a few dozen if you have them ([how to draw masks](own_images.ipynb)). Empty frames alone teach the network to detect nothing.
# 3. Write the names into `data/mycamera/train.txt`, and some frames of both kinds into `test.txt`. All frames of one video belong in one list.
# 4. Fine-tune, then compare with the old weights on your test list:
#
# ```bash
# mshnet train data/mycamera --weight-path pretrained --lr 0.0003 --epochs 40 --eval-every 40 --base-size native
# mshnet test pretrained --dataset-dir data/mycamera --base-size native
# ```
#
# Training prints the scores of the new weights, the second command those of the old ones. Both commands predict each image once, at its original size, with the threshold 0.5. `mshnet predict` combines the original and half the size, so also compare the detections of both weights in some frames. We have not measured this with frames of false alarms. With 40 random images of another camera, weights from the same command found slightly fewer targets than before, with fewer false alarms. Without `--base-size native` it found more targets, with more false alarms ([measured](own_images.ipynb)).
#
# ## When there is video
#
# The detector sees one frame at a time. A false alarm that flickers from frame to frame, such as noise, can be told from a target by time. `mshnet predict clip.mp4 --tracks` links the detections of a clip ([tracks](../44_tracks.ipynb)): a track is confirmed after five detections in eight frames. `tracks.csv` lists the confirmed tracks from their first detection on, and the overlays show their numbers. It needs `pip install av trackpy`. A CPU core takes about 0.4 s for a frame of 320x256 and 1.5 s for 640x512, so begin with ten seconds: `ffmpeg -i clip.mp4 -t 10 -c copy part.mp4`. The overlays are one PNG a frame; [one line joins them](deploy.ipynb#Video). A clone has a sample clip, `mshnet/examples/drone.mp4`.
#
# Do not expect too much: a false alarm that stays becomes a track, too. This was measured at threshold 0.5, on 16 clips of a drone camera, not used in training ([numbers](../../results/pretrained/tracks.json)):
#
# | detections | Pd | alarms per frame |
# |---|---|---|
# | all | 0.882 | 0.07 |
# | of confirmed tracks, from the frame that confirms them (a live display) | 0.858 | 0.07 |
# | of confirmed tracks, from their first detection (`tracks.csv`) | 0.880 | not counted |
#
# Only labelled frames are counted: in the others of this data set birds and drones fly, too.

# %%
#| hide
assert len(detect(bad, device="cpu")) >= len(detect(frame, device="cpu")) > 0
