# %% [markdown]
# # Sign language (TFNet), from the MindSpore guide to here
#
# > A video of a signed sentence in, its glosses out: what to type, section by section for readers of the MindSpore GPU guide.
#
# The task is called `signs`. Nothing has to be downloaded: without a data set, signing is simulated. This trains a small TFNet on simulated videos on a CPU, scores it, and draws what it reads:
#
# ```bash
# mshnet train --task signs --preset quick
# ```
#
# Six epochs take a minute and a half of one CPU core. Read from folders of jpg pictures, 80 simulated test sentences then have a word error rate of 0.014, 0.021 and 0.046 (seeds [0](../../results/signs-simulated/seed0), [1](../../results/signs-simulated/seed1) and [2](../../results/signs-simulated/seed2)).
#
# **Not verified:** the videos of CE-CSL were not available, and no real GPU or TPU was. The published word error rate of TFNet on CE-CSL, 41.9%, is a target that we could not check. What was checked: the network is the published one number by number (outputs, losses, gradients), its labels are the published ones, and it was trained on 201 real sentences of American Sign Language.
#
# ## Is everything there?
#
# One command takes the place of the guide's checks of driver, device, memory, disk and packages, and of its setup test. Each check is a line with its remedy, and the exit status is 2 if training cannot work:
#
# ```bash
# mshnet doctor --task signs
# ```
#
# There is no name of an environment to be right. Windows, Linux, CUDA, Apple and TPU have the same commands.
#
# ## The data
#
# CE-CSL may lie in the guide's layout, `label/train.csv` and `video/train/A/train-00001.mp4`, or in the authors' own, with a folder of jpg pictures for each video. Hand tracks are tables of positions ([clips](../signs/03_clips.ipynb) has the columns). The first line reports what a folder holds, the second writes simulated videos in CE-CSL's layout:
#
# ```bash
# mshnet data --task signs data/CE-CSL
# mshnet data --task signs --write mine --signs 20
# ```
#
# A video without frames is not replaced by zeros, and a broken label is not dropped in silence:
#
# | message | cause | what to do |
# |---|---|---|
# | `frames, and its ... glosses need ...` | the network has one step for four frames, and a label needs a step for each gloss | the video is cut too short, or has the label of another one |
# | `no video (... is missing or empty)` | a label without its file | complete the data, or `--on-bad-image skip`: all of them are counted and left out |
# | `an empty gloss` | a label of slashes or notes alone | repair the label |
# | `glosses are separated by ...` | labels with spaces, commas or a full-width slash | write `/` between the glosses |
# | `... (it is not UTF-8; save a text of another encoding, such as GBK, as UTF-8)` | a table of a Chinese Windows | save it as UTF-8 |
# | `a vocabulary of another set` | weights and data have no gloss in common | take the weights of this data set |
#
# The vocabulary is made from the training part. Notes in brackets and numbers of variants are dropped, as published; CE-CSL then has 3,515 glosses. The blank of CTC has number 0. (In the port the blank had the number of the last gloss, which could never be read.)
#
# ## Training
#
# The guide's words and today's:
#
# | guide | here |
# |---|---|
# | `python train_tfnet_gpu.py --config FILE.json` | `mshnet train --task signs --preset paper`, with the flags below |
# | the sections of that file | not read; the next table has the flag of each key |
# | `--resume` | the same command again |
# | `--dry-run` | `mshnet doctor --task signs`, with the same flags |
# | graph mode | `--compile on`; `off` shows the line of an error |
# | automatic mixed precision | `--precision auto`; CTC and distillation are always in float32 |
# | early stopping patience 10 | `--choose val --patience 10` |
# | gradient clipping 1.0 | `--clip-grad 1` |
#
# The keys of the guide's file, and today's flags. The preset `paper` has the published values, such as the blank of CTC 0, the temperature 8 of the distillation, and Adam; keys of MindSpore itself mean nothing here:
#
# | key | flag |
# |---|---|
# | `dataset.crop_size`, `dataset.max_frames` | `--crop`, `--max-frames` |
# | `dataset.train_data_path`, ... `test_label_path` | `--dataset-dir` |
# | `model.hidden_size` | `--hidden` |
# | `model.device_target`, `device_id` | `--device cpu`, `cuda:0` |
# | `model.enable_auto_mixed_precision` | `--precision auto`, `fp32` |
# | `training.batch_size`, `learning_rate`, `num_epochs` | `--batch-size`, `--lr`, `--epochs` |
# | `training.num_workers`, `weight_decay`, `gradient_clip_norm` | `--num-workers`, `--weight-decay`, `--clip-grad` |
# | `training.eval_interval`, `early_stopping_patience` | `--eval-every`, `--choose val --patience` |
# | `loss.kd_weight` | `--distil-weight` |
# | `paths.output_dir`, `logging.print_interval` | `--output-dir`, `--log-every` |
# | `gpu_optimization.enable_graph_mode` | `--compile on`, `off` |
#
# ```bash
# mshnet train --task signs --preset paper --dataset-dir data/CE-CSL --batch-size 8 --micro-batch 1 --lr 2e-4
# mshnet train --task signs --preset paper --dataset-dir data/CE-CSL --weight-path start.pt
# ```
#
# `--preset paper` is the published recipe: 73,274,003 parameters, batch 2, 55 epochs, a rate of 1e-4 that falls twice. The published training begins with a ResNet-34 trained on ImageNet, as torchvision publishes it: download that file yourself. The lines below make `start.pt` of it, for `--weight-path start.pt`. Without it the same network starts from random weights and will need more data. `--network vac` is the lighter baseline.
#
# ```python
# import torch
# from mshnet.signs.networks import Frames, TwoBranch
#
# network = TwoBranch(Frames(), 3516)  # glosses of CE-CSL, and the blank
# known, own = torch.load("resnet34.pth", weights_only=True), network.conv2d.state_dict()
# own |= {k: v.unsqueeze(2) if v.ndim == 4 else v for k, v in known.items() if k in own}
# network.conv2d.load_state_dict(own)
# torch.save(network.state_dict(), "start.pt")
# ```
#
# The distillation of the published code sends gradients into the teacher, which can end in NaN; `--distil published` does it too, and the default does not.
#
# ## Memory and speed
#
# The guide's table by the memory of the card is a few flags beside `--preset paper`. `--micro-batch 1` computes a batch clip by clip and adds up the gradients, so that a clip and not a batch must fit. With less memory fewer frames of a clip are read, and batch and rate are smaller; add `--warmup-steps -1 --clip-grad 1 --patience 10`:
#
# | memory | batch of the guide | flags |
# |---|---|---|
# | 8 GB | 4 to 6 | `--batch-size 4 --max-frames 96 --lr 0.000141` |
# | 12 GB | 6 to 10 | `--batch-size 6 --max-frames 160 --lr 0.000173` |
# | 16 GB and more | 8 to 16 | `--batch-size 8 --max-frames 230 --lr 0.000200` |
#
# If memory ends all the same, these help, in this order: `--micro-batch 1`, `--max-frames 150`, `--crop 160`, `--hidden 512`. The rates follow the guide's rule: four times the batch, twice the rate, with warm-up.
#
# On a TPU every batch of videos has one of four lengths (`--buckets 4`), so four programs are compiled and no more. (Clips of hand tracks that are spliced in training can be longer, at the price of one program more.) Nothing runs on the host, CTC and BiLSTM included. Tested on virtual devices of a CPU, the published network included, and not on a TPU.
#
# ## Watching it
#
# A run has one folder. `train.log` is the text of the guide's `logs_gpu`, `log.jsonl` has one line for each epoch, `best.pt` and `last.pt` take the place of `best_model` and `current_model`, `details.json` has every test sentence with its alignment. A loss that is NaN stops the run with the step's number; it is never replaced by 1.
#
# ```bash
# mshnet test --task signs --weight-path runs/NAME --dataset-dir data/CE-CSL
# mshnet predict --task signs --weight-path runs/NAME clip.mp4
# mshnet compare runs/NAME runs/OTHER
# mshnet export --weight-path runs/NAME --format safetensors
# ```
#
# `predict` writes the glosses, and for each clip a table and a picture of the probability of each gloss over time. `export` writes the weights with their glosses.
#
# ## The score
#
# The word error rate (WER) is substitutions, deletions and insertions over the number of true glosses, counted over the whole test part. The published scripts average the rates of sentences; that is `sentence_wer`. A sixth of CE-CSL's glosses are punctuation marks, which are easy: `bare_wer` leaves them out. A score of 0 was a swallowed error in the port. Here the three parts stand in every score line, and [glosses](../signs/00_glosses.ipynb) shows how they are counted.
#
# The decoder is a beam search of width 10, which prefers pairs of glosses that follow each other in the training sentences. `--decoder greedy` and `--bigram-weight 0` show what either adds.
#
# ## How good is it?
#
# RWTH-BOSTON-104 has 201 real sentences of three signers. We use tracks of both hands and the nose, without hand shapes, so no published number is comparable. A training on 161 sentences takes a few minutes on a CPU; the 40 test sentences were read once for each seed, and all choices were made on a part of the training sentences:
#
# ```bash
# mshnet train --task signs --dataset-dir boston104
# ```
#
# | method | WER | of 26 sentences that occur in training | of 14 new ones |
# |---|---|---|---|
# | always JOHN | 0.8315 | 0.8018 | 0.8806 |
# | nearest training sentence by time warping | 0.2472 | 0.2072 | 0.3134 |
# | the default, seed 0 | 0.174 | 0.135 | 0.239 |
# | the default, seed 1 | 0.197 | 0.153 | 0.269 |
# | the default, seed 2 | 0.197 | 0.144 | 0.284 |
#
# Most test sentences occur word for word in the training list, so a sentence learnt by heart scores well: read the last column. [The yardsticks](../../results/signs-yardsticks) need no learning.
#
# ## From here
#
# [Glosses](../signs/00_glosses.ipynb), [settings](../signs/01_signs_config.ipynb), [clips](../signs/03_clips.ipynb), [CTC](../signs/02_ctc.ipynb), [networks](../signs/04_networks.ipynb), [the task](../signs/05_signing.ipynb), [reading](../signs/06_reading.ipynb). The [runner](../run/signs.ipynb) does it in a notebook. Other devices: [guide](devices.ipynb). Messages and remedies: [trouble](trouble.ipynb).
