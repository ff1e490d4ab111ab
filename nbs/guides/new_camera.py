# %% [markdown]
# # A new camera finds too much, or nothing
#
# > For somebody who runs pretrained weights on frames of a camera that they were not trained on. At the end you know which setting to change, or that you must retrain, and with which frames.

# %% [markdown]
# ## What to expect
#
# Weights know the cameras they were trained on. On two cameras that they never saw, the pretrained weights find 0.874 and 0.861 of the targets, with 0.39 and 0.19 false alarms per frame ([folder](../../results/pretrained/two-sizes)). Your camera may differ in either direction.
#
# ## Look at the results
#
# ```bash
# mshnet predict frames --threshold 0.1 --output-dir predictions/look
# ```
#
# | what you see | cause | what to do |
# |---|---|---|
# | nothing | the target looks different: cold instead of hot, larger than about 20 pixels, or blurred | invert the images of a camera that shows heat as black; make large targets smaller (resize the frames to half their size before you predict); otherwise fine-tune |
# | the targets, which the default threshold does not find | the threshold is too high | `--threshold 0.2` |
# | single bright pixels everywhere | sensor noise or hot pixels | `--min-area 3` drops smaller detections; better, correct the sensor |
# | detections on lamps, roofs, edges of clouds | they look like targets; a single frame does not tell them apart | collect such frames and retrain, see below |
# | detections at the borders of large frames, more than before | `--tile` is too small: the network's attention sees one tile at a time | the default of 1024, or larger if the memory allows |
#
# ## The threshold and the smallest area
#
# A lower threshold finds more targets and raises more false alarms. The [card](../../mshnet/pretrained.md) has both by threshold, on two new cameras: below 0.2 the false alarms grow fast, above 0.9 targets are lost. The smallest area removes detections, too, and also every target that is smaller. In this scene with little contrast, only a low threshold finds the third target. At a high threshold detections shrink, and a smallest area of four pixels drops one of the two that are left:

# %%
import numpy as np

from mshnet import detect, predict
from mshnet.predict import detections
from mshnet.scenes import scene

rng = np.random.default_rng(0)
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

# %% [markdown]
# ## 16 bits and hot pixels
#
# A frame of 16 bits, or of floats such as degrees, becomes one of 8 bits by stretching its range of values. Single hot or dead pixels are left out of that range, so that they do not hide a target ([frames](../23_frames.ipynb)). Here a hot pixel changes nothing about the targets, but it may be a detection itself. Replace such pixels by a list of your camera's bad pixels, if you have one.
#
# A JPEG of a FLIR camera holds temperatures beside its coloured picture. After `pip install flyr` they are read instead of the colours. **Not tried** with a real file, only with files made for the tests.

# %%
frame = 30000 + 10 * image.astype(np.uint16)
bad = frame.copy()
bad[100, 200] = 65535
for name, pixels in (("good frame", frame), ("hot pixel", bad)):
    print(f"{name:10}  {len(detect(pixels, device='cpu'))} detections")

# %% [markdown]
# ## Retrain with your own frames
#
# No setting separates a lamp from a target. Show the network what it must ignore:
#
# 1. Collect frames of your camera **without a target** in which it raised false alarms. Give each a black mask of its size.
# 2. Add frames **with** targets and their masks, some dozens if you have them ([how to draw masks](own_images.ipynb)).
# 3. Write the names into the training list, and keep some frames of both kinds for the test list. Frames of one video belong into one list.
# 4. Fine-tune:
#
# ```bash
# mshnet train data/mycamera --weight-path pretrained --augment robust --lr 0.0003 --epochs 40
# ```
#
# 5. Compare both weights on your test list. The scores of the old ones come from:
#
# ```bash
# mshnet test --weight-path pretrained --dataset-dir data/mycamera
# ```
#
# Add frames with targets, too: with empty frames alone the network learns to detect nothing. [Your own images](own_images.ipynb) has more on fine-tuning.
#
# Half of the crops of an image with targets hold a target (`--target-share`), and a quarter get a large occluder (`--clutter-share`), which teaches that the edge of a wall or a cloud is no target. Both defaults also suit background frames.
#
# ## When there is video
#
# The detector sees one frame at a time, and most false alarms flicker from frame to frame. `mshnet predict clip.mp4 --tracks` links the detections of a clip ([tracks](../44_tracks.ipynb)): a track is confirmed after five detections in eight frames. `tracks.csv` lists the confirmed tracks, and the overlays show their numbers. It needs `pip install 'mshnet[video]'`.

# %%
#| hide
assert len(detect(bad, device="cpu")) >= len(detect(frame, device="cpu")) > 0
