# %% [markdown]
# # MSHNet: find small targets in infrared images
#
# [中文](index.zh-CN.ipynb)
#
# [![Licence: Apache-2.0](https://img.shields.io/badge/licence-Apache--2.0-blue)](../LICENSE) [![Python: 3.11 or newer](https://img.shields.io/badge/python-3.11%2B-blue)](../setup.py)
#
# A target is a bright spot of up to about a hundred pixels, against sky, sea or ground. This library finds targets with pretrained weights, trains [MSHNet](https://arxiv.org/abs/2403.19366) (Liu et al., CVPR 2024; not their code) on your images, and explains every step in notebooks.
#
# ![Three infrared frames with marked detections: a drone, found; a cloud, a false alarm, above a missed drone; a missed bird](images/frames.jpg)
#
# | frame | centre (row, column) | pixels | peak probability | result |
# |---|---|---|---|---|
# | left: a drone | 31, 138 | 23 | 1.00 | found |
# | middle: a cloud | 108, 213 | 244 | 1.00 | false alarm |
# | middle: a drone | 145, 120 | - | - | missed |
# | right: a bird | 154, 108 | - | - | missed |
#
# Blue: found; orange: false alarm; yellow: missed; inset: enlarged. Three frames of 15, one for each case; in all 15 the weights find 13 of 15 targets, with 2 false alarms ([all frames](../results/pretrained/frames.json)).
#
# From every tenth of 161 clips we took the middle frame, if it is labelled. They helped to choose the weights, not to train them. Source: Svanström et al., Data in Brief 2021 ([Zenodo 5500576](https://zenodo.org/records/5500576), CC0).
#
# ## Start here
#
# ### I have an image
#
# You need Python 3.11 or newer and a [virtual environment](guides/first_run.ipynb). Download this repository and run the commands in its folder.
#
# ```bash
# # no NVIDIA GPU? On Linux, first: pip install torch --index-url https://download.pytorch.org/whl/cpu
# pip install "mshnet @ git+https://github.com/{{repo}}"   # the name mshnet on PyPI is not ours
# mshnet predict mshnet/examples/drone.png   # our example, or your own image
# ```
#
# `mshnet predict` prints three lines:
#
# ```text
# 1 frame of 1 file: 1 detection in 1 s
# weights  pretrained; their card: .../mshnet/pretrained.md
# results  predictions/pretrained
# ```
#
# The folder `predictions/pretrained` has the marked image (`overlays/`), a mask (`masks/`), and a table of detections (`detections.csv`, `coco.json`). The next input gets `predictions/pretrained-2`. The command reads images, folders, multi-page TIFFs and videos (`pip install av`; try `mshnet/examples/drone.mp4`). Frames may have any size, and 8 or 16 bits.
#
# In Python:
#
# ```python
# import mshnet
#
# mshnet.find_targets("frame.png").save("marked.png")  # in Jupyter without .save(...)
# mshnet.detect("frame.png")                           # a list of dicts: centroid, box, area, peak, ...
# ```
#
# **[Too many detections, or none?](guides/new_camera.ipynb)** `--min-area 4` drops detections of fewer than 4 pixels. `--threshold 0.2` finds weaker targets, with more false alarms.
#
# **How good on a new camera?** On images that were not trained on:
#
# | frames | targets found (Pd) | false alarms per frame |
# |---|---|---|
# | 213 of NUAA-SIRST, by weights trained briefly without it | 0.900 | 0.07 |
# | 400 of IRSTD-1k, by weights trained briefly without it | 0.905 | 0.36 |
# | 663 of NUDT-SIRST, by weights trained briefly without it | 0.708 | 0.20 |
# | 472 of 31 of the clips above, by weights trained briefly without all 161 | 0.826 | 0.17 |
# | the same 472, by the pretrained weights; most other clips were trained on | 0.930 | 0.07 |
#
# We chose the weights on these clips and settings on many of these images: expect less. [Model card](../mshnet/pretrained.md): scores, known failures.
#
# ### I have a data set
#
# New here? Read [the first run](guides/first_run.ipynb). In short:
#
# ```bash
# mshnet doctor                                            # check this machine
# mshnet data data/NUAA-SIRST                              # check a data set (none yet? see below)
# mshnet train data/NUAA-SIRST                             # 200 epochs (CPU: add --eval-every 200); run it again to resume
# mshnet predict frame.png --weight-path runs/NAME         # your weights; train prints NAME
# mshnet test runs/NAME                                    # evaluate again
# pip install onnx onnxruntime onnxscript                  # for the next line
# mshnet export runs/NAME                                  # writes runs/NAME/best.onnx
# mshnet train --help                                      # the common flags; --help-all: all
# ```
#
# A data set is a folder with `images/`, `masks/` and two lists of names (`trainval.txt` or `train.txt`, and `test.txt`), or a `.zip` of it. No data yet? `mshnet train --epochs 3` trains on synthetic scenes. `mshnet data NUAA-SIRST` (or `NUDT-SIRST`, `IRSTD-1k`) downloads to `data/` (never tried).
#
# [Your own images](guides/own_images.ipynb) explains masks, lists, fine-tuning, and what 40 images gain. Training resizes images to 256x256. After training from scratch, `mshnet predict` reduces frames by the same factor. On IRSTD-1k (512x512) IoU is then 0.560, at full size 0.377; `mshnet test` (256x256) reports 0.628. `mshnet train --base-size native` does not resize (measured for fine-tuning only).
#
# ```python
# import mshnet
# from mshnet.explore import explore
#
# run = mshnet.train(mshnet.Config(dataset_dir="data/NUAA-SIRST"))  # trains, or loads the finished run
# print(run)           # IoU, nIoU, F1, Pd, Fa: nbs/guides/scores.ipynb
# explore(run.folder)  # in Jupyter with ipywidgets: browse the test images
# ```
#
# ### I want the cloud
#
# Each notebook below installs, detects, trains, evaluates and plots; without a data set, on synthetic images for at most 20 epochs. We tested them on a CPU, never in the cloud. In the cloud, {{published: click its badge, or }}upload the notebook and a wheel, the library in one file (`make wheel`, on your own machine). [Colab and Kaggle](guides/cloud.ipynb) shows each step.
#
# | notebook | machine |
# |---|---|
# | [a100_setup](run/a100_setup.ipynb) [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/{{repo}}/blob/{{branch}}/nbs/run/a100_setup.ipynb) | any Colab GPU (T4, L4, A100) |
# | [tpu_setup](run/tpu_setup.ipynb) [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/{{repo}}/blob/{{branch}}/nbs/run/tpu_setup.ipynb) | Colab TPU |
# | [kaggle_gpu](run/kaggle_gpu.ipynb) [![Open in Kaggle](https://kaggle.com/static/images/open-in-kaggle.svg)](https://kaggle.com/kernels/welcome?src=https://github.com/{{repo}}/blob/{{branch}}/nbs/run/kaggle_gpu.ipynb) | Kaggle, one or two GPUs |
# | [kaggle_tpu](run/kaggle_tpu.ipynb) [![Open in Kaggle](https://kaggle.com/static/images/open-in-kaggle.svg)](https://kaggle.com/kernels/welcome?src=https://github.com/{{repo}}/blob/{{branch}}/nbs/run/kaggle_tpu.ipynb) | Kaggle TPU |
# | [local](run/local.ipynb) | your own machine, in Jupyter or [by papermill](guides/first_run.ipynb#In-a-notebook) |
#
# ## Results
#
# We have not reproduced the paper: its recipe (`paper`, here in bf16) was stopped after 60 of 400 epochs, and not run on IRSTD-1k. `steady` is the default recipe, chosen on held-out training images. Scores on the test lists; *IoU*: intersection over union; *Pd*: fraction of targets found; *Fa*: pixels of false alarms per million.
#
# | data set, images to train/test | recipe | epochs | seeds | mean IoU | lowest | highest | Pd | Fa | collapsed |
# |---|---|---|---|---|---|---|---|---|---|
# | NUAA-SIRST, 213/214 | `steady` | 200 | 0, 1, 2 | 0.713 | 0.682 | 0.749 | 0.933 | 10.1 | 0 of 3 |
# | NUAA-SIRST, each image at its own size | `steady`, same weights | 200 | 0, 1, 2 | 0.746 | 0.730 | 0.769 | 0.953 | 19.7 | 0 of 3 |
# | NUAA-SIRST, 213/214 | `paper` | 60 of 400 | 0, 1, 2 | 0.291 | 0.001 | 0.475 | 0.922 | 413.8 | 1 of 3 |
# | NUDT-SIRST, 663/664 | `steady` | 200 | 0, 1, 2 | 0.818 | 0.811 | 0.826 | 0.968 | 10.8 | 0 of 3 |
# | NUDT-SIRST, 663/664 | `paper` | 60 of 400 | 0, 1, 2 | 0.407 | 0.001 | 0.676 | 0.908 | 75.6 | 1 of 3 |
# | NUDT-SIRST | published | 400 | - | 0.8055 | - | - | 0.9799 | 11.77 | - |
# | IRSTD-1k, 800/201 | `steady` | 200 | 0, 1, 2 | 0.628 | 0.610 | 0.638 | 0.927 | 18.1 | 0 of 3 |
# | IRSTD-1k, each image at its own size | `steady`, same weights | 200 | 0, 1, 2 | 0.377 | 0.368 | 0.388 | 0.779 | 17.2 | 0 of 3 |
# | IRSTD-1k | published | 400 | - | 0.6716 | - | - | 0.9388 | 15.03 | - |
# | IRSTD-1k | published, for the corrected code | - | - | 0.6787 | - | - | 0.9286 | 8.88 | - |
#
# - **Our scores:** 256x256 pixels (NUDT-SIRST's own size), bf16, threshold 0.5, [exact matching](guides/scores.ipynb), the last epoch of every seed.
# - **Published scores** quote the official README, which names no split and has no NUAA-SIRST. The official script reports the best epoch on the test list, and leaves out some false alarms ([how](guides/from_official.ipynb)): both may improve its scores.
# - **NUAA-SIRST:** three earlier versions of `steady` were scored on this test list (means 0.724 to 0.744), so its score may be too high ([details](guides/results.ipynb)).
# - A **collapsed** seed predicts nothing or everything (IoU below 0.05). It counts in the mean IoU, not in Pd and Fa.
# - **Near-duplicates** of training images: 43 test images of NUDT-SIRST (mean IoU without them 0.817, `paper` 0.408), 6 of IRSTD-1k (0.626).
# - **Time** of 200 epochs, one CPU thread, bf16: NUAA-SIRST alone 40 minutes (estimated), beside other programs 94 to 170; NUDT-SIRST two hours, IRSTD-1k 5 to 8, both beside others. Evaluating every epoch, the default, doubles this (IRSTD-1k: +25%).
#
# `--preset paper --rule reference` follows the corrected [official code](https://github.com/Lliu666/MSHNet) (commit 46cdfd4). The [tests](../tests/test_golden.py) compare its parts and six training steps: counts are equal, other numbers up to float32 rounding.
#
# [All results](guides/results.ipynb), [every seed](../results/SCORES.md).
#
# ## What was tested, and where
#
# *Tested*: by our tests; *ran*: by hand; *simulated*: on a CPU instead.
#
# | machine | install, predict | train | resume | speed |
# |---|---|---|---|---|
# | Linux on x86-64, CPU | tested | tested | tested | [measured](guides/devices.ipynb) |
# | one NVIDIA H200 (torch 2.11) | ran (predict; no log) | ran: 21 trainings in [bf16](../results/ladder/README.md); also one epoch in fp32 and two in fp16, without a log | never run | not measured |
# | several GPUs | simulated: two CPU processes | simulated: two CPU processes | simulated | not measured |
# | TPU | never run; notebooks predict on the CPU | simulated: XLA on a CPU, 1 and 8 virtual devices | simulated | not measured |
# | Apple chip, macOS, Windows | never run | never run | never run | not measured |
# | Colab, Kaggle, Google Drive | simulated: notebooks on a CPU | simulated | simulated: mock folders | not measured |
#
# | data and weights | status |
# |---|---|
# | NUAA-SIRST, NUDT-SIRST, IRSTD-1k | three seeds trained, test lists evaluated |
# | `mshnet data NAME` (download) | tested with local archives, never with the real addresses |
# | published MSHNet weights | tested with files of the same form, never with the published files |
# | `eit`, `events`, `signs` (below) | small models trained on a CPU; networks of published size never trained |
#
# ## Three more tasks on the same engine
#
# They test that training, resuming and backup do not depend on detection. [Your own task](guides/task.ipynb) can use the same engine.
#
# | tomography: `--task eit` | event cameras: `--task events` | sign language: `--task signs` |
# |---|---|---|
# | ![A simulated tank and its reconstruction](images/eit.jpg) | ![Four bins of events of a digit, simulated](images/events.jpg) | ![Two hands in four frames, simulated](images/signs.jpg) |
# | from voltages at the rim of a tank to its conductivity (simulated; left: true, right: reconstructed) | from a recording of brightness changes to a class (simulated; red: brighter) | from hand tracks or a video to the names of signs, glosses (simulated: two hands in four frames) |
# | a small model after [CDEIT](https://arxiv.org/abs/2412.16979) | a small model after [Mamba-Spike](https://arxiv.org/abs/2408.11823) | hand tracks: our own network; videos: a small [TFNet](https://arxiv.org/abs/2409.11960), trained on simulated videos only |
# | [guide](guides/eit.ipynb), [notebook](run/eit.ipynb), [weights](../mshnet/pretrained-eit.md) | [guide](guides/events.ipynb), [notebook](run/events.ipynb) | [guide](guides/signs.ipynb), [notebook](run/signs.ipynb) |
#
# On real data, means of seeds 0, 1, 2 (`events`: seed 0), beside baselines that we ran. In the last row our network makes 18 errors on average, the baseline 21.
#
# | task | real data | measure | score | baseline |
# |---|---|---|---|---|
# | `eit` | 22 tanks of UEF 2017 | correlation with the true image | 0.817 | 0.782 (Gauss-Newton) |
# | `eit` | 25 tanks of KTC 2023 | correlation with the true image | 0.790 | 0.782 (Gauss-Newton) |
# | `events` | 1,100 recordings of N-MNIST, five folds; the recipe was chosen on some | accuracy | 0.967 | 0.875 (logistic regression) |
# | `signs` | 40 sentences of BOSTON-104, as hand tracks; 26 are in training, too | word error rate, lower is better | 0.189 | 0.247 (time warping) |
# | `signs` | the 14 of them that are not in training | word error rate, lower is better | 0.264 | 0.313 (time warping) |
#
# ## When a session ends
#
# Run the same command or notebook again to resume. Ctrl-C or, except on Windows, a closed terminal loses nothing; a killed process loses at most two epochs. If the disk may vanish, keep a backup with `--mirror-dir DIR` (in Colab: Drive). Kaggle keeps a run only if you save a version. [All cases](guides/resume.ipynb).
#
# ## Guides
#
# | you want to | guide |
# |---|---|
# | start | [install and first run](guides/first_run.ipynb), [Colab and Kaggle](guides/cloud.ipynb), [your own images](guides/own_images.ipynb), [data sets](guides/datasets.ipynb) |
# | choose a device | [devices, speed, memory](guides/devices.ipynb), [TPU](guides/tpu.ipynb) |
# | use it | [a new camera](guides/new_camera.ipynb), [your own program](guides/deploy.ipynb) |
# | understand MSHNet | [in one page](guides/one_page.ipynb), [network](00_model.ipynb), [loss](01_loss.ipynb), [collapse](41_detection.ipynb), [metrics](02_metrics.ipynb), [augmentation](22_augment.ipynb) |
# | compare scores | [definitions](guides/scores.ipynb), [results](guides/results.ipynb), [coming from the official script](guides/from_official.ipynb) |
# | solve a problem | [troubleshooting](guides/trouble.ipynb), [resuming](guides/resume.ipynb), [glossary](guides/glossary.ipynb) |
# | extend it | [from image to score](guides/fifteen.ipynb), [your own task](guides/task.ipynb), [training loop](37_train.ipynb) |
#
# ## Work on it
#
# ```bash
# git clone https://github.com/{{repo}}
# cd mshnet
# make demo        # install into .venv (several GB), train on synthetic scenes
# ```
#
# [How to change the project](../CONTRIBUTING.md), [what was tried](../experiments/README.md), [what is new](../CHANGELOG.md).
#
# ## Cite, licence
#
# Licence: [Apache-2.0](../LICENSE). The authors' repository states none. Please cite the method (and the [software](../CITATION.cff)):
#
# ```bibtex
# @inproceedings{liu2024mshnet,
#   title = {Infrared Small Target Detection with Scale and Location Sensitivity},
#   author = {Liu, Qiankun and Liu, Rui and Zheng, Bolun and Wang, Hongkui and Fu, Ying},
#   booktitle = {CVPR},
#   pages = {17490--17499},
#   year = {2024}
# }
# ```
