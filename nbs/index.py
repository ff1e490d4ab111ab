# %% [markdown]
# # MSHNet
#
# [中文](index.zh-CN.ipynb)
#
# [![Licence: Apache-2.0](https://img.shields.io/badge/licence-Apache--2.0-blue)](../LICENSE) [![Python: 3.11 or newer](https://img.shields.io/badge/python-3.11%2B-blue)](../setup.py)
#
# Find small targets in infrared images: a few bright pixels against sky, sea or ground. This project trains, scores and uses [MSHNet](https://arxiv.org/abs/2403.19366) (Liu et al., CVPR 2024) on TPUs, NVIDIA GPUs, Apple chips and CPUs.
#
# ![Test scenes from worst to best: image, probability, hits, misses and false alarms](../results/scenes-quick/figures/gallery.png)
#
# - **It detects.** Trained weights are included, and the recipe `steady` gave a usable detector with every seed.
# - **Right.** Network, losses, transforms and scores equal the official code, to the last pixel for counts and to float32 rounding elsewhere ([tests](../tests/test_golden.py)). Each score is stored with its protocol.
# - **Nothing lost.** An interrupted run resumes. With `--deterministic` on the same CPU its weights equal those of an uninterrupted one.
# - **It teaches.** Notebooks explain why and how.
#
# ## Find a target now
#
# ```bash
# pip install "mshnet @ git+https://github.com/{{repo}}"   # in a venv; not `pip install mshnet`
# mshnet predict frame.png                                 # results in predictions/
# ```
#
# ```python
# import mshnet
#
# mshnet.find_targets("frame.png")  # its targets, marked
# mshnet.detect("frame.png")        # the same as numbers
# ```
#
# `predict` takes images, folders, globs, multi-page TIFFs and videos (`pip install av`), of any size, in 8 or 16 bits. The pretrained weights saw the training lists of NUAA-SIRST and NUDT-SIRST, never their test lists. [Scores and failures](../mshnet/pretrained.md). `--weight-path` takes your run or [published weights](https://github.com/Lliu666/MSHNet).
#
# ## Open a runner
#
# A runner trains, scores and draws; its default data are synthetic.
#
# | runner | for | open |
# |---|---|---|
# | [local](run/local.ipynb) | a laptop or workstation | in Jupyter |
# | [a100_setup](run/a100_setup.ipynb) | Colab with an A100 | [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/{{repo}}/blob/{{branch}}/nbs/run/a100_setup.ipynb) |
# | [tpu_setup](run/tpu_setup.ipynb) | Colab with a TPU | [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/{{repo}}/blob/{{branch}}/nbs/run/tpu_setup.ipynb) |
# | [kaggle_tpu](run/kaggle_tpu.ipynb) | Kaggle with a TPU | [![Open in Kaggle](https://kaggle.com/static/images/open-in-kaggle.svg)](https://kaggle.com/kernels/welcome?src=https://github.com/{{repo}}/blob/{{branch}}/nbs/run/kaggle_tpu.ipynb) |
# | [kaggle_gpu](run/kaggle_gpu.ipynb) | Kaggle with one or two GPUs | [![Open in Kaggle](https://kaggle.com/static/images/open-in-kaggle.svg)](https://kaggle.com/kernels/welcome?src=https://github.com/{{repo}}/blob/{{branch}}/nbs/run/kaggle_gpu.ipynb) |
# | [eit](run/eit.ipynb) | tomography | [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/{{repo}}/blob/{{branch}}/nbs/run/eit.ipynb) |
# | [events](run/events.ipynb) | event cameras | [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/{{repo}}/blob/{{branch}}/nbs/run/events.ipynb) |
# | [signs](run/signs.ipynb) | sign language | [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/{{repo}}/blob/{{branch}}/nbs/run/signs.ipynb) |
#
# Headless, in a clone after `pip install -e '.[notebook]'`: `papermill nbs/run/local.ipynb out.ipynb -p dataset_dir data/NUAA-SIRST -p epochs 50`. The runners are tested on a CPU under papermill; not on a TPU, an Apple chip, macOS, Windows, Colab, Kaggle or Google Drive.
#
# ## Train and score
#
# ```bash
# mshnet doctor                                            # what this machine can do
# mshnet data data/NUAA-SIRST                              # report on a data set
# mshnet train --dataset-dir data/NUAA-SIRST               # 200 epochs; run it again to resume
# mshnet test --dataset-dir data/NUAA-SIRST                # pretrained; or --weight-path RUN
# mshnet export --weight-path runs/NUAA-SIRST-*/best.pt    # ONNX; pip install '.[export]'
# mshnet compare runs/NUAA-SIRST-*                         # runs side by side
# mshnet pack runs/NUAA-SIRST-*                            # a run in one file
# mshnet bench --dataset-dir data/NUAA-SIRST               # speed and memory
# ```
#
# `mshnet COMMAND --help-all` lists all settings. A data set is a folder with `images/`, `masks/` and lists of names (`trainval.txt` and `test.txt`, or IRSTD-1k's layout), an archive of such a folder, or a name that is downloaded: `NUAA-SIRST`, `IRSTD-1k`, `NUDT-SIRST` with most papers' lists ([notebook](13_fetch.ipynb); addresses not tried).
#
# ```python
# import mshnet
# from mshnet.explore import explore
#
# run = mshnet.train(mshnet.Config(dataset_dir="data/NUAA-SIRST"))
# print(run)           # IoU, nIoU, F1, Pd, Fa
# explore(run.folder)  # a widget, worst first
# ```
#
# ## Results
#
# Test scores at 256x256 (`quick`: 128x128) of unselected seeds: the last epoch, all training images, threshold 0.5, [rule exact](guides/scores.ipynb). Pd: share of targets found. Fa: false pixels per million. Dead: IoU below 0.05. Without NUDT-SIRST's near twins: mean IoU 0.817 and 0.408.
#
# | recipe, data | epochs | seeds | mean IoU | least | most | Pd | Fa | dead |
# |---|---|---|---|---|---|---|---|---|
# | `steady`, `--crop native`, NUAA-SIRST | 200 | 0, 1, 2 | 0.729 | 0.711 | 0.740 | 0.940 | 15.4 | 0 of 3 |
# | `steady`, NUDT-SIRST | 200 | 0, 1, 2 | 0.818 | 0.811 | 0.826 | 0.968 | 10.8 | 0 of 3 |
# | `paper`, NUAA-SIRST | 60 | 0, 1, 2 | 0.291 | 0.001 | 0.475 | 0.617 | 330684.4 | 1 of 3 |
# | `paper`, NUDT-SIRST | 60 | 0, 1, 2 | 0.407 | 0.001 | 0.676 | 0.611 | 325853.5 | 1 of 3 |
# | `quick`, synthetic scenes | 9 | 0, 1, 2, 3, 4 | 0.835 | 0.825 | 0.844 | 0.983 | 5.1 | 0 of 5 |
#
# **Other tasks**, means of seeds 0, 1, 2 on real data:
#
# | `--task` | score | simple method |
# |---|---|---|
# | `eit`: [tomography](guides/eit.ipynb) | correlation 0.817 (UEF), 0.790 (KTC) | Gauss-Newton 0.782, 0.782 |
# | `events`: [event cameras](guides/events.ipynb) | accuracy 0.977 | logistic regression 0.900 |
# | `signs`: [sign language](guides/signs.ipynb) | WER 0.189 | time warping 0.247 |
#
# [More](guides/results.ipynb).
#
# ## When a session ends
#
# Run the same command or notebook again. An interrupt, a closed terminal or the end of the session's hours loses nothing. A killed process loses at most the epoch in progress and the one before. With `--mirror-dir` (Drive in Colab) a run survives the loss of its machine. [All cases](guides/resume.ipynb).
#
# ## TPU and several GPUs
#
# `mshnet train --device xla --preset tpu` uses all chips in one process. **No real TPU was available**: the code runs on torch_xla's CPU runtime with 1 and 8 virtual devices ([TPU](guides/tpu.ipynb)). `mshnet train --num-devices 2` uses two GPUs, also under `torchrun` ([devices](guides/devices.ipynb)); it is tested with two CPU processes.
#
# ## Guides
#
# | guide | content |
# |---|---|
# | [A small trial run](guides/first_run.ipynb) | ten minutes |
# | [Choose your device](guides/devices.ipynb), [your own machine](guides/first_run.ipynb) | Linux, Windows, a MacBook |
# | [Colab](guides/cloud.ipynb), [Kaggle](guides/cloud.ipynb), [TPU](guides/tpu.ipynb) | two files, no account |
# | [From the official script](guides/from_official.ipynb) | flags, published weights |
# | [How the scores are defined](guides/scores.ipynb) | why published ones differ |
# | [Speed and memory](guides/devices.ipynb) | tables by device |
# | [From image to score](guides/fifteen.ipynb), [your own task](guides/task.ipynb) | fifteen functions; another problem |
# | [Troubleshooting](guides/trouble.ipynb), [gallery](guides/results.ipynb) | by symptom; pictures |
#
# ## The notebooks
#
# | part | notebooks |
# |---|---|
# | the method | [network](00_model.ipynb), [loss](01_loss.ipynb), [metrics](02_metrics.ipynb) |
# | ground | [settings](10_core.ipynb), [files](11_files.ipynb), [places](12_places.ipynb), [downloads](13_fetch.ipynb), [recipe](14_recipe.ipynb), [backups](15_mirror.ipynb) |
# | images | [scenes](20_scenes.ipynb), [data](21_data.ipynb), [augmentation](22_augment.ipynb), [frames](23_frames.ipynb) |
# | engine | [devices](30_device.ipynb), [TPU](31_xla.ipynb), [processes](32_ranks.ipynb), [weights](33_weights.ipynb), [run folder](34_run.ipynb), [session](35_session.ipynb), [task](36_task.ipynb), [training loop](37_train.ipynb) |
# | detector | [CPU](40_cpu.ipynb), [detection](41_detection.ipynb), [analysis](42_analyse.ipynb), [evaluation](43_evaluate.ipynb) |
# | use | [pictures](50_show.ipynb), [widgets](51_explore.ipynb), [export](52_export.ipynb), [predict](53_predict.ipynb), [compare](54_compare.ipynb), [bench](55_bench.ipynb), [doctor](56_doctor.ipynb), [commands](57_cli.ipynb), [start](58_main.ipynb) |
# | other tasks | [tomography](eit/00_tank.ipynb), [event cameras](events/00_recordings.ipynb), [sign language](signs/00_glosses.ipynb) |
#
# ## Work on it
#
# On Linux or macOS, with git and make (Windows: [guide](guides/first_run.ipynb)):
#
# ```bash
# git clone https://github.com/{{repo}}
# cd mshnet
# make demo        # train on synthetic scenes
# make test-all    # everything that a change must pass
# ```
#
# They make `.venv`; `test-all` adds `.venv-xla` (7 GB, Linux on x86-64). Read [CONTRIBUTING](../CONTRIBUTING.md), [LOG](../LOG.md) and [CHANGELOG](../CHANGELOG.md).
#
# **Your own copy:** write your GitHub name as `user` in `settings.ini`, run `make build`, commit and push.
#
# ## Source and licence
#
# Independent code under [Apache-2.0](../LICENSE); the authors' has no licence. Cite the method (and the [software](../CITATION.cff)):
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
