# %% [markdown]
# # Sign language: from a video to its glosses
#
# > For readers who have videos (or hand tracks) of signed sentences and want their glosses. The options of the MindSpore version of TFNet are [at the end](#Options-of-the-original-script).
#
# **What was trained:** on real data, only hand tracks of 161 sentences. The videos of CE-CSL were not available, so networks for videos were trained on simulated videos only. No weights are included.
#
# A *gloss* is the written name of a sign, such as JOHN or BOOK. Continuous sign language recognition reads the sequence of glosses from a video. Nobody has marked where a sign begins or ends. The network ([TFNet](https://arxiv.org/abs/2409.11960)) predicts a gloss or a *blank* (no new gloss) for every fourth frame. The CTC loss sums over all possible positions of the glosses.

# %%
import matplotlib.pyplot as plt
import numpy as np

from mshnet.signs.clips import simulated_clips

videos, tracks = (simulated_clips("train", 4, 12, seed=0, video=kind) for kind in (True, False))
clip, frames, hands = tracks.clips[0], videos.read(0).copy(), tracks.read(0)
figure, axes = plt.subplots(2, 1, figsize=(8, 2.8), height_ratios=(1, 2), layout="constrained")
frames[:, :, -1] = 255  # a line between two frames
strip = np.concatenate(frames[np.linspace(0, len(frames) - 1, 12).astype(int)], 1)
axes[0].imshow(strip, extent=(0, len(frames), 0, 1), aspect="auto")
axes[0].set(xticks=(), yticks=())
edges = (0, *clip.cuts, len(frames))
for gloss, start, end in zip(clip.glosses, edges, edges[1:], strict=False):
    axes[0].text((start + end) / 2, 1.1, gloss, ha="center", size=8)
    axes[1].axvline(end, color="0.7")
for name, column in (("left hand", 1), ("right hand", 3)):
    axes[1].plot(24 - hands[:, column], label=name)
axes[1].set(xlabel="frame", ylabel="height, pixels", xlim=(0, len(hands) - 1), ylim=(0, 24))
axes[1].legend(fontsize=7, ncols=2, loc="upper right")
plt.show()

# %% [markdown]
# The figure shows a simulated sentence: frames of its video, its glosses, and the tracks of both hands. The network reads frames or tracks. It does not know the vertical lines between the glosses.
#
# ## Try it in two minutes
#
# Without a data set, this command simulates signing:
#
# ```bash
# mshnet train --task signs --preset quick
# ```
#
# A small TFNet learns twelve signs in 86 to 93 s of processor time. On 80 simulated test sentences this recipe has a word error rate of 0.014, 0.021 and 0.046 (seeds [0](../../results/signs-simulated/seed0), [1](../../results/signs-simulated/seed1) and [2](../../results/signs-simulated/seed2)). The run folder then has `figures/`: the probability of each gloss over the frames.
#
# ## Your data
#
# | you have | format | train with |
# |---|---|---|
# | videos | `label/train.csv` with the columns Number, Translator, Gloss (separated by `/`; the columns by commas, semicolons or tabs), and `video/train/A/train-00001.mp4`, or a folder of jpg frames for each video; the same for `dev` (or `val`) and `test` | `--preset quick` for a trial, `--preset paper` on a GPU; or `--network tfnet` and your own settings |
# | hand tracks | `hands_condensed.csv` (video, frame, left-x ... nose-y; in pixels of an image scaled to a width of about 200), `train_words.csv` and `test_words.csv` (video, speaker, word, startframe, endframe) | no flag: the default network reads hand tracks |
#
# These are the layouts of CE-CSL (Chinese, 5,988 videos) and of RWTH-BOSTON-104 (American, 201 sentences, hand tracks). [Data sets](datasets.ipynb) has their addresses and terms, [clips](../signs/03_clips.ipynb) the details. The first command reports what a folder contains, the second writes simulated videos in the layout of CE-CSL:
#
# ```bash
# mshnet data --task signs data/CE-CSL
# mshnet data --task signs --write mine --signs 20
# ```
#
# The vocabulary is the set of glosses in the training list. In CE-CSL, notes in brackets and numbers of variants are dropped, as in the published code; 3,515 glosses remain. The program never replaces a missing video by zeros and never drops a bad label silently:
#
# | message | cause | what to do |
# |---|---|---|
# | `frames, and its ... glosses need ...` | the network predicts once for four frames, and a label needs one prediction for each gloss | the video is cut too short, or the label belongs to a different video |
# | `no video (...)` | a label without a readable file, or without rows in the table of hand tracks | complete the data, or correct the name |
# | `startframe and endframe overlap, or are not within its ... frames` | times in seconds, of a different video, or of glosses that overlap | write frames, counted from the first one of the video; end each gloss before the next begins |
# | `..., row ...: ...; look for a stray quotation mark` | a quotation mark that is not closed swallows the rows after it | remove it, or double it within quotes |
# | `... is there twice; leave one out`, `has startframe ... of ... twice` | the table of labels has a row twice | delete one |
# | `..., left-x: '' is not a number` | the tracker did not see this hand | repeat its last place |
# | `an empty gloss` | a label of slashes or notes only | repair the label |
# | `... of ... cannot be used: ...; repair them, or use --on-bad-image skip` | the line names the first three of them with their reasons, from the rows above | repair the data; with `skip` these clips are counted and left out |
# | `network=... cannot read the ... of ...: use ...` | hand tracks and videos need different networks | pass the flag that the line names |
# | `glosses are separated by ...` | labels with spaces, commas or a full-width slash | put `/` between the glosses |
# | `... (it is not UTF-8; save a text of another encoding, such as GBK, as UTF-8)` | a table that was saved in a different encoding | save it as UTF-8 |
# | `the vocabulary of another set` | a test: weights and data have no gloss in common; a training: the glosses are not the same | use weights of this data set |
# | `crop=...: frames have a side of ...; use less` | `--crop` is larger than `--frame-size` | a smaller `--crop`; simulated frames have 24 pixels, so pass `--dataset-dir`, or `--preset quick` |
#
# ## Train
#
# ```bash
# mshnet train boston104 --task signs
# ```
#
# On the 161 training sentences of RWTH-BOSTON-104 (here in the folder `boston104`) this takes 98 s with two threads, and reaches a word error rate of 0.17 to 0.20. This needs no GPU. After an interruption, the same command resumes.
#
# The published recipe for videos (`--preset paper`) needs a GPU. It has 73,274,003 parameters, batches of 2, 55 epochs, and a learning rate of 1e-4 that falls twice. We have not trained it, so the published word error rate on CE-CSL, 41.9%, is not checked:
#
# ```bash
# mshnet train data/CE-CSL --task signs --preset paper --weight-path start.pt
# ```
#
# As in the publication, `start.pt` has the weights of a ResNet-34 that was trained on ImageNet. Download `resnet34.pth` from torchvision, then run the lines below. Without `--weight-path` the network starts from random weights, and probably needs more data.
#
# ```python
# import torch
# from mshnet.signs.networks import Frames, TwoBranch
#
# torch.manual_seed(0)  # for each seed of a run a file of its own, as LSTMs begin at random
# network = TwoBranch(Frames(), 3516)  # glosses of CE-CSL, and the blank
# imagenet, target = torch.load("resnet34.pth", weights_only=True), network.conv2d.state_dict()
# for name in imagenet.keys() & target.keys():
#     value = imagenet[name]
#     target[name] = value.unsqueeze(2) if value.ndim == 4 else value  # a kernel of 1 frame
# network.conv2d.load_state_dict(target)
# torch.save(network.state_dict(), "start.pt")
# ```
#
# For other videos, 3516 is the number of different glosses in the line `train` of `mshnet data`, plus 1. Runs from different files count as different recipes in a comparison (`mshnet compare RUN RUN`), so it prints no mean over their seeds.
#
# ## How good is it?
#
# The word error rate (WER) is the number of substitutions, deletions and insertions divided by the number of true glosses. The table has the 40 test sentences of RWTH-BOSTON-104, evaluated once for each seed:
#
# | method | WER | of 26 sentences that occur in training | of 14 new ones |
# |---|---|---|---|
# | always JOHN | 0.831 | 0.802 | 0.881 |
# | nearest training sentence by time warping | 0.247 | 0.207 | 0.313 |
# | this network, seed 0 | 0.174 | 0.135 | 0.239 |
# | this network, seed 1 | 0.197 | 0.153 | 0.269 |
# | this network, seed 2 | 0.197 | 0.144 | 0.284 |
#
# - Most test sentences occur word for word in the training list, so memorised sentences score well. Read the last column.
# - The input is hand positions without hand shapes, so published scores cannot be compared.
# - All settings were chosen on a held-out part of the training sentences. The runs are in [boston104](../../results/boston104/seed0), the simple methods in [their folder](../../results/signs-yardsticks).
# - For TFNet itself, we compared outputs, losses, gradients and labels with the published code, and trained it on simulated videos.
#
# `scores.json` also has the numbers of substitutions, deletions and insertions. `sentence_wer` is the mean over sentences, as the published scripts compute it. A sixth of CE-CSL's glosses are punctuation marks, which are easy; `bare_wer` leaves them out. [Glosses](../signs/00_glosses.ipynb) shows how errors are counted.
#
# ## Options
#
# | option | effect |
# |---|---|
# | `--network tfnet`, `vac` | for videos: TFNet with its two branches, or VAC, a lighter baseline of one branch; the default, `tracks`, is for hand tracks |
# | `--decoder greedy`, `--bigram-weight 0` | no beam search; no frequencies of gloss pairs from the training list |
# | `--micro-batch 1` | compute a batch clip by clip, so only one clip has to fit into memory |
# | `--distil published` | in the distillation (the BiLSTM teaches the convolutions) gradients also flow into the BiLSTM, which can give a NaN loss; the default of `paper` stops them |
# | `--buckets 2` | on a TPU: batches have one of two lengths (default: four), so fewer programs are compiled, with more padding. Batch norm also counts the padding, so this changes what is learned |
#
# For a GPU we suggest `--preset paper --micro-batch 1 --warmup-steps -1 --clip-grad 1 --choose val --patience 10`, and the flags of the table instead of the published batch of 2. The learning rate grows with the square root of the batch size. We have not trained this.
#
# | memory | flags |
# |---|---|
# | 8 GB | `--batch-size 4 --max-frames 96 --lr 0.000141` |
# | 12 GB | `--batch-size 6 --max-frames 160 --lr 0.000173` |
# | 16 GB | `--batch-size 8 --max-frames 230 --lr 0.000200` |
#
# If you still run out of memory, try in this order: a smaller `--max-frames`, `--crop 160`, `--hidden 512`.
#
# ```bash
# mshnet test runs/NAME --task signs --dataset-dir data/CE-CSL
# mshnet predict --task signs --weight-path runs/NAME clip.mp4
# mshnet compare runs/NAME runs/OTHER
# mshnet export runs/NAME   # safetensors
# mshnet doctor --task signs
# ```
#
# `predict` writes the glosses with their frames (`signs.csv`; a clip in which it reads nothing has one row without a gloss), and for each clip a figure of the probability of each gloss over time. `details.json` of a run has every test sentence with its alignment. The details are in these notebooks: [CTC](../signs/02_ctc.ipynb), [networks](../signs/04_networks.ipynb), [the task](../signs/05_signing.ipynb), [reading](../signs/06_reading.ipynb).
#
# ## Options of the original script
#
# | MindSpore version | here |
# |---|---|
# | `python train_tfnet_gpu.py --config FILE.json` | `mshnet train --task signs --preset paper`, with the flags below |
# | `--resume` | the same command again |
# | `--dry-run` | `mshnet doctor --task signs`; `--help-all` lists its flags |
# | `dataset.crop_size`, `dataset.max_frames` | `--crop`, `--max-frames` |
# | `dataset.train_data_path`, ... `test_label_path` | `--dataset-dir` |
# | `model.hidden_size` | `--hidden` |
# | `model.device_target`, `device_id` | `--device cpu`, `cuda:0` |
# | `model.enable_auto_mixed_precision` | `--precision auto`, `fp32`; CTC and distillation are always in float32 |
# | `training.batch_size`, `learning_rate`, `num_epochs` | `--batch-size`, `--lr`, `--epochs` |
# | `training.num_workers`, `weight_decay`, `gradient_clip_norm` | `--num-workers`, `--weight-decay`, `--clip-grad` |
# | `training.eval_interval`, `early_stopping_patience` | `--eval-every`, `--choose val --patience` |
# | `loss.kd_weight` | `--distil-weight` |
# | `paths.output_dir`, `logging.print_interval` | `--output-dir`, `--log-every` |
# | `gpu_optimization.enable_graph_mode` | not needed |
# | `logs_gpu`, `best_model`, `current_model` | `train.log`, `best.pt`, `last.pt` of the run folder |
#
# In the MindSpore version the blank had the same number as the last gloss, so that gloss could never be predicted, and a NaN loss was replaced by 1. Here the blank is 0, and a NaN loss stops the run.
