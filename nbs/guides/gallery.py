# %% [markdown]
# # Gallery
#
# > What the suite draws, from runs in this repository.

# %% [markdown]
# The pictures of infrared scenes are synthetic: those of data sets are not ours to publish. For your run `mshnet train` draws `gallery`, `learning_curves` and `trade_offs` into its folder `figures`; a runner draws all. The curves are of real runs. Each picture stands beside the settings and scores it belongs to, in [results](../../results/README.md).
#
# ## What was trained on
#
# `samples`: training images, with their targets marked. The first thing to look at.
#
# ![Training images with marked targets](../../results/scenes-quick/figures/samples.png)
#
# ## What came of it
#
# `gallery`: test images from the worst to the best. Image, probability, hits, misses and false alarms.
#
# ![Test scenes from worst to best](../../results/scenes-quick/figures/gallery.png)
#
# ## One image, at any threshold
#
# `explore`: a list of images, worst first, a slider for the threshold, and a look from near.
#
# ![A widget: lists of images and targets, a threshold slider, and the image, its truth, the probability, hits, misses and false alarms, all of it and from near](../images/explore.png)
#
# ## How it learned
#
# `learning_curves`, for nine epochs on synthetic scenes:
#
# ![Loss and scores by epoch on synthetic scenes](../../results/scenes-quick/figures/learning.png)
#
# and for thirty on NUAA-SIRST, by the paper's recipe ([the run](../../results/nuaa-sirst-paper)):
#
# ![Loss and scores by epoch on NUAA-SIRST](../../results/nuaa-sirst-paper/figures/learning.png)
#
# ## What another threshold would give
#
# `trade_offs`: Pd against Fa and precision against recall, with a dot at probability 0.5. Synthetic scenes:
#
# ![Trade-offs on synthetic scenes](../../results/scenes-quick/figures/trade_offs.png)
#
# NUAA-SIRST:
#
# ![Trade-offs on NUAA-SIRST](../../results/nuaa-sirst-paper/figures/trade_offs.png)
#
# ## Your own images
#
# `mshnet predict`: each detection with its number and its peak probability. A part of a [large frame](../../results/predict-large) put together from synthetic scenes:
#
# ![A frame with eight detections marked, each with a number and a probability](../../results/predict-large/part.png)
#
# ## Runs side by side
#
# `mshnet compare RUN RUN --output FILE.png`: the demo beside [the same recipe of five epochs](../../results/scenes-five-epochs). Trade-offs, detection by size with 95% intervals, and what the scores rest on:
#
# ![Two runs compared: Pd against Fa, precision against recall, Pd by area, scores and protocol](../../results/scenes-five-epochs/figures/compare.png)

# %% [markdown]
# A picture is made from a run's folder by a function of [show](../50_show.ipynb), in a notebook or from a script:
#
# ```python
# from pathlib import Path
#
# from mshnet.show import gallery, learning_curves
#
# learning_curves(Path("runs/trial"))
# gallery(Path("runs/trial"))
# ```
