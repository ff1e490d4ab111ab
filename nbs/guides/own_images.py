# %% [markdown]
# # Your own images: label, train, fine-tune
#
# > For somebody with infrared images of their own. At the end you have masks, two lists of names, and weights that were trained or fine-tuned on your images.

# %% [markdown]
# ## 1. Try the pretrained weights first
#
# Put your images into `data/mine/images`. Frames of a video? Section 2 has the lines that save them.
#
# ```bash
# mshnet predict data/mine/images --output-dir predictions/first
# ```
#
# If the detections are good enough, you need no labels. If not, use `predictions/first/masks` as a first draft of your masks. Correcting a draft is faster than drawing. Put the corrected masks into `data/mine/masks`. Add every missed target: training must learn these.
#
# ## 2. Draw the masks
#
# An image and its mask have the same name and the same size; the endings may differ (`a.tif`, `a.png`). Targets are 255, everything else is 0. Here are three synthetic images, and below them their masks. The first image has no target. The lone white pixels are sensor faults, the streaks belong to the background; both stay black in the mask:

# %%
import numpy as np
from matplotlib import pyplot as plt

from mshnet.scenes import background, scene

skies = [np.uint8(background(np.random.default_rng(i), 96).clip(0, 255)) for i in (10, 11)]
pairs = [(sky, 0 * sky) for sky in skies] + [scene(np.random.default_rng(i), 96) for i in range(4)]
figure, panels = plt.subplots(2, 3, figsize=(6, 4), layout="compressed")
for column, (image, mask) in zip(panels.T, pairs[1:4], strict=True):
    for panel, pixels in zip(column, (image, mask), strict=True):
        panel.imshow(pixels, cmap="gray")
        panel.set_axis_off()

# %% [markdown]
# Draw masks with any program that writes such a PNG, such as GIMP, or with a label tool that exports masks, such as CVAT. Coloured masks and masks of 0 and 1 are read, too. Other tools may need a conversion, or new names: a mask is `a.png`, not `a_mask.png`. These lines make masks of polygons in COCO's JSON (`pip install pycocotools`):
#
# ```python
# from pathlib import Path
#
# import numpy as np
# from PIL import Image
# from pycocotools.coco import COCO
#
# Path("data/mine/masks").mkdir(parents=True, exist_ok=True)
# coco = COCO("instances_default.json")  # the exported file
# for image in coco.loadImgs(coco.getImgIds()):
#     mask = np.zeros((image["height"], image["width"]), np.uint8)
#     for target in coco.loadAnns(coco.getAnnIds(image["id"])):
#         mask |= 255 * coco.annToMask(target)
#     Image.fromarray(mask).save(f"data/mine/masks/{Path(image['file_name']).stem}.png")
# ```
#
# | question | answer |
# |---|---|
# | Which pixels? | Take the target's brightest pixel and its difference from the background. Mark the pixels that have at least a third of this difference. Do not mark a box or a ring around it: one more pixel on each side turns 3x3 into 5x5 |
# | At which size? | At the original size. Draw with a hard pencil, zoomed in, without anti-aliasing; never resize a mask |
# | Two targets that touch? | They count as one object, also if they touch at a corner. Leave a row of 0 between them |
# | A target of one pixel? | Mark that pixel. A target is found if the detection's centre is less than 3 pixels away (at 256x256) |
# | Lamps, hot roofs, clouds, birds, hot pixels? | Leave them black, unless you want to find them: the network must learn to ignore them |
# | An image without a target? | Keep it, with a black mask. From such images a network learns not to raise false alarms on empty frames |
# | Only boxes from a label tool? | Draw masks (section 1 makes drafts). Do not fill boxes: the network would learn to predict boxes |
# | Which file format? | PNG or BMP. JPEG changes the values at the edges of a mask |
# | Dark targets? | Mark them only if you train from random weights; the pretrained ones know bright targets. If your camera shows heat as black, invert the images (255 or 65535 minus the value) |
#
# These lines save frames of the videos in a folder `videos` as images. Consecutive frames are almost equal, so take only a few of each clip:
#
# ```python
# from pathlib import Path
#
# from PIL import Image
#
# from mshnet.frames import frames_of
#
# folder = Path("data/mine/images")
# folder.mkdir(parents=True, exist_ok=True)
# for video in sorted(Path("videos").glob("[!.]*.*")):
#     for frame in frames_of(video):  # pip install av
#         if frame.error:
#             print(video, frame.error)
#         elif frame.number % 30 == 0:
#             Image.fromarray(frame.pixels).save(folder / f"{video.name}_{frame.number:05d}.png")
# ```
#
# ## 3. Make the lists
#
# `data/mine` now has `images/` and `masks/`. With two lists of names it is a data set. This command (**not for frames of videos**, see below) writes the lists, `train.txt` and `test.txt`, and never overwrites lists that exist:
#
# ```bash
# mshnet data data/mine --split 0.5 --seed 0
# ```
#
# Half of the images are for training; the seed decides which.
#
# **Split into folders already?** Move `train/images` to `images/train`, `train/masks` to `masks/train`, and the test images and masks likewise. In `data/mine/images`, `ls train/* > ../train.txt` and `ls test/* > ../test.txt` then write the lists.
#
# **Frames of videos? Do not use this command.** It splits by image, so test images would almost be copies of training images: the scores would be too high. Put all frames of a video into one list. With two videos or more, these lines put the second, fourth, ... into the test list:
#
# ```python
# from pathlib import Path
#
# clips = {}
# for path in sorted(Path("data/mine/masks").glob("[!.]*.*")):  # frames without a mask stay out
#     clips.setdefault(path.stem.rsplit("_", 1)[0], []).append(path.stem)
# for name, part in (("train", list(clips)[::2]), ("test", list(clips)[1::2])):
#     lines = [frame for clip in part for frame in clips[clip]]
#     Path(f"data/mine/{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
# ```
#
# With one video only, put its first half into one list, and its end into the other.
#
# What the command prints and writes for six images like those above:

# %%
import contextlib
import io
import tempfile
from pathlib import Path

from PIL import Image

from mshnet.cli import main

folder = tempfile.TemporaryDirectory()
root = Path(folder.name) / "mine"
for part in ("images", "masks"):
    (root / part).mkdir(parents=True)
for i, (image, mask) in enumerate(pairs):
    Image.fromarray(image).save(root / f"images/frame_{i}.png")
    Image.fromarray(255 * mask).save(root / f"masks/frame_{i}.png")
with contextlib.redirect_stdout(io.StringIO()) as printed:
    status = main(["data", str(root), "--split", "0.5"])
print(printed.getvalue().replace(str(root), "data/mine"))
print(*sorted(path.relative_to(root).as_posix() for path in root.rglob("*.*")), sep="\n")

# %% [markdown]
# With few images, check the counts. Here both frames without a target fell into the test list, so the network would never see an empty frame in training. In such a case move names from one list to the other by hand, before you train. Compare two scores only if the hash after `test` is the same: it stands for the test images.
#
# ## 4. Check
#
# ```bash
# mshnet data data/mine
# ```
#
# Correct what it reports: names without an image or a mask, inverted masks, targets that vanish at 256x256 pixels (section 6). Then look at training images with their targets marked (the training list needs at least four images). The marks must lie on the targets, as on these synthetic scenes:
#
# ```python
# from pathlib import Path
#
# from mshnet import Config
# from mshnet.show import samples
#
# samples(Config(dataset_dir="data/mine"), Path("runs/look"))  # writes runs/look/figures/samples.png
# ```
#
# ![Training images above their masks, with the targets marked](../../results/scenes-quick/figures/samples.png)
#
# ## 5. How many images?
#
# We have not measured how many you need. Two examples: with the 213 training images of NUAA-SIRST, `steady` reaches a mean test IoU of 0.713 ([results](results.ipynb)), and 40 images improve the pretrained weights at 256x256 (section 7). Take images of different days, backgrounds and distances, and frames without targets.
#
# ## 6. Train from random weights
#
# ```bash
# mshnet train data/mine
# ```
#
# | if | then |
# |---|---|
# | you have only a few dozen images | fine-tune instead (section 7) |
# | your images are much larger than 256x256, or `mshnet data` reports that targets vanish | try `--base-size native`: train and evaluate at the original size (measured for fine-tuning only, section 7) |
# | most of your images have no target | begin with the default. If Pd stays low, try `--target-share 0.9` (default 0.5): if an image has targets, nine in ten of its crops are placed on one |
# | your images come from several cameras | use `--augment robust`: it also varies contrast, brightness, noise, sensor faults and scale |
# | you want to compare two settings | use `--choose val`. Compare the `val` scores in the log, and do not look at test scores before you have chosen. This holds out random training images; for frames of videos use `val.txt` instead (below) |
#
# Frames of videos: move the frames of one video from `train.txt` to `val.txt`. Compare settings with `--test-list val.txt`, and at the end run `mshnet test runs/NAME --test-list test.txt`.
#
# ## 7. Fine-tune the pretrained weights
#
# ```bash
# mshnet train data/mine --weight-path pretrained --lr 0.0003 --epochs 40 --eval-every 40
# ```
#
# Training then starts from the pretrained weights instead of random ones. If false alarms are the greater problem, add `--base-size native`; if missed targets are, leave it out (second table below).
#
# **Does it help?** We measured this command with an earlier version of the pretrained weights, on 40 images of IRSTD-1k, a data set that it did not know, and evaluated it on 100 others ([folder](../../results/cross-camera/fine-tune)). At 256x256 pixels, as `mshnet test` does it ([Pd, Fa](scores.ipynb)):
#
# | weights | learning rate | IoU of seeds 0, 1, 2 | mean IoU | Pd | Fa |
# |---|---|---|---|---|---|
# | pretrained, without fine-tuning | - | - | 0.534 | 0.761 | 25.0 |
# | fine-tuned | 0.0001 | 0.567, 0.565, 0.564 | 0.565 | 0.807 | 28.8 |
# | fine-tuned | 0.0003 | 0.578, 0.593, 0.580 | 0.584 | 0.826 | 26.8 |
# | fine-tuned | 0.001, the default | 0.553, 0.579, 0.557 | 0.563 | 0.807 | 17.4 |
# | random start, also 40 epochs | 0.001, the default | 0.441, 0.441, 0.445 | 0.442 | 0.725 | 15.9 |
#
# At their own 512x512 pixels, as `mshnet predict` does it, means of the seeds:
#
# | weights | IoU | Pd | false alarms per frame | Fa |
# |---|---|---|---|---|
# | pretrained, without fine-tuning | 0.566 | 0.843 | 0.22 | 34.0 |
# | fine-tuned, 0.0003 | 0.576 | 0.887 | 0.29 | 37.8 |
# | fine-tuned, 0.0003, `--base-size native` | 0.586 | 0.834 | 0.15 | 49.1 |
#
# At 256x256, 40 images help. At 512x512, weights fine-tuned at 256x256 find more targets and raise more false alarms than the pretrained ones; with `--base-size native`, fewer of both, but larger false alarms (Fa). This is one data set, and the best rate was chosen on the same 100 images, so expect a little less.
#
# - **Learning rate:** 0.0003 has the best mean IoU and Pd, 0.001 the lowest Fa. Larger rates were not tried. Try two, as section 6 compares settings.
# - **Epochs:** an epoch of 40 images is only ten steps, so train for dozens of epochs. Training 40 epochs took less than two minutes on one CPU thread, in bf16. `--eval-every 40` evaluates only the last epoch.
# - **Several cameras:** add `--augment robust` (section 6); the pretrained weights were trained with it.
# - **Sizes:** after fine-tuning the pretrained weights, `mshnet predict` uses [two sizes](../53_predict.ipynb): the frame's own, and half of it (smaller if training reduced the images more). With weights from a random start it uses one size: it reduces each frame by the factor by which training reduced the images (rounded to a whole number), and never enlarges it. `mshnet test` uses one size.
# - **Your own run as the start:** `--weight-path runs/NAME`. [Published weights](from_official.ipynb) of MSHNet should work, too (not tried).
#
# ## 8. Use the weights
#
# ```bash
# mshnet test runs/mine-NAME
# mshnet test pretrained --dataset-dir data/mine --output-dir runs/before    # did it help?
# mshnet compare runs/before runs/mine-NAME
# mshnet predict data/mine/images --weight-path runs/mine-NAME
# ```
#
# Replace `runs/mine-NAME` by the run folder that training printed. (If you trained with `--base-size native` or `--test-list`, add it to the second line.) In a notebook with ipywidgets, `explore` lists the test images, lowest IoU first, with a slider for the threshold and a zoom:
#
# ```python
# from mshnet.explore import explore
#
# explore("runs/mine-NAME")
# ```
#
# ![A widget: lists of images and targets, a threshold slider, and the image with its ground truth, probability, hits, misses and false alarms](../images/explore.png)
#
# [Into your own program](deploy.ipynb) shows Python, C++ and video; [a new camera](new_camera.ipynb) shows what to do about false alarms.

# %%
#| hide
assert status == 0 and (root / "test.txt").exists()
folder.cleanup()
