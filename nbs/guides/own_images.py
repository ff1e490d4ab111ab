# %% [markdown]
# # Your own images: label, train, fine-tune
#
# > For somebody with infrared images of their own. At the end you have masks, two lists of names, and weights that were trained or fine-tuned on your images.

# %% [markdown]
# ## 1. Try the pretrained weights first
#
# ```bash
# mshnet predict images --output-dir predictions/first
# ```
#
# If they are good enough, you need no labels. If not, `predictions/first/masks` holds a first draft of your masks, with the names of your images. Correcting a draft is faster than drawing, but look for targets that the draft missed: they are the ones that training must learn.
#
# ## 2. Draw the masks
#
# A data set is a folder with `images/`, `masks/` and two lists of names. An image and its mask have the same name and the same size. Here we make one from synthetic scenes:

# %%
import tempfile
from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt
from PIL import Image

from mshnet.cli import main
from mshnet.scenes import background, scene

folder = tempfile.TemporaryDirectory()
root = Path(folder.name) / "mine"
empty = np.uint8(background(np.random.default_rng(2), 96).clip(0, 255))
pairs = [*(scene(np.random.default_rng(i), 96) for i in range(2)), (empty, 0 * empty)] * 2
for part in ("images", "masks"):
    (root / part).mkdir(parents=True)
for i, (image, mask) in enumerate(pairs):
    Image.fromarray(image).save(root / f"images/frame_{i}.png")
    Image.fromarray(255 * mask).save(root / f"masks/frame_{i}.png")
status = main(["data", str(root), "--split", "0.5"])
print(*sorted(path.relative_to(root).as_posix() for path in root.rglob("*.*")), sep="\n")

figure, panels = plt.subplots(2, 3, figsize=(6, 4), layout="compressed")
for column, (image, mask) in zip(panels.T, pairs, strict=False):
    for panel, pixels in zip(column, (image, mask), strict=True):
        panel.imshow(pixels, cmap="gray")
        panel.set_axis_off()

# %% [markdown]
# Above are three images, below their masks: targets are 255, everything else is 0. The third image has no target, so its mask is black. Any program that writes such a PNG will do, such as GIMP, or a label tool that exports masks (CVAT, Label Studio, labelme).
#
# | question | answer |
# |---|---|
# | Which pixels? | Those that are clearly brighter than their surroundings, about those above half of the contrast. Draw no box and no ring: a mask that is one pixel too wide on each side triples the area of a target of 3x3 pixels |
# | At which size? | At the original one. Draw with a hard pencil, zoomed in, without anti-aliasing; never resize a mask |
# | Two targets that touch? | They count as one object, also if they touch at a corner. Leave a row of 0 between them |
# | A target of one pixel? | Mark that pixel. A target is found if the detection's centre is less than 3 pixels away |
# | Lamps, hot roofs, clouds, birds? | Leave them black, unless you want to find them. They are what the network must learn to ignore |
# | An image without a target? | Keep it, with a black mask. Without such images a network raises false alarms on empty frames |
# | Only a label tool's boxes? | Boxes are not masks. They train a detector of boxes, whose IoU means nothing |
# | Which file format? | PNG or BMP. JPEG blurs the edges of masks and is reported |
# | Cold targets? | The weights have learnt bright targets. Invert the images (255 - value) of a camera that shows heat as black |
#
# The frames of a video become images with the package `av`. Consecutive frames are almost equal, so take few of each clip:
#
# ```python
# from pathlib import Path
#
# from PIL import Image
#
# from mshnet.frames import frames_of
#
# for frame in frames_of(Path("clip.mp4")):  # pip install av
#     if frame.number % 30 == 0 and not frame.error:
#         Image.fromarray(frame.pixels).save(f"images/clip_{frame.number:05d}.png")
# ```
#
# ## 3. Make the lists
#
# ```bash
# mshnet data data/mine --split 0.5 --seed 0
# ```
#
# This writes `trainval.txt` and `test.txt`, and never overwrites lists that exist. Half of the images are for training. The split is stratified by the number of targets: both lists get the same fraction of images with none, one, two. Every score records the command that made its lists.
#
# The split is by image. If your images are frames of videos, write the lists yourself (one name without its suffix a line), and put all frames of a video into one list. Otherwise the test images are almost copies of training images, and the scores are too good.
#
# ## 4. Check
#
# ```bash
# mshnet data data/mine
# ```
#
# Repair what it reports: masks without images, inverted masks, targets that vanish at the evaluated size. Then look at the figure `samples` of a short run: the marks must lie on the targets.
#
# ## 5. How many images?
#
# The number that you need was not measured in general. What we know: NUAA-SIRST's training list has 213 images, and the default recipe gets a mean test IoU of 0.729 from it ([results](results.ipynb)). For fine-tuning, the table below starts from 40 images. Variety counts more than number: different days, backgrounds and distances, and frames without targets.
#
# ## 6. Train from the beginning
#
# ```bash
# mshnet train data/mine
# ```
#
# | if | then |
# |---|---|
# | your images are much larger than 256x256, or `mshnet data` reports that targets vanish | `--base-size native`: images are trained on and evaluated at their own size |
# | you have a few hundred images or fewer | fine-tune instead (below) |
# | most of your images have no target | `--target-share 0.9`: nine of ten crops hold a target, if their image has one |
# | your images come from several cameras | `--augment robust`: also contrast, brightness, noise, sensor faults and scale |
# | you want to compare two settings | hold out images of the training list for it: `--choose val`. Look at the test list once, at the end |
#
# ## 7. Fine-tune the pretrained weights
#
# ```bash
# mshnet train data/mine --weight-path pretrained --base-size native --lr 0.0003 --epochs 40
# ```
#
# FINETUNE
#
# ## 8. Use the weights
#
# ```bash
# mshnet test --weight-path runs/mine-weights
# mshnet predict images --weight-path runs/mine-weights
# ```
#
# Replace `runs/mine-weights` by the run folder that training printed. [Into your own program](deploy.ipynb) shows Python, C++ and video; [a new camera](new_camera.ipynb) shows what to do about false alarms.

# %%
#| hide
assert status == 0 and (root / "test.txt").exists()
folder.cleanup()
