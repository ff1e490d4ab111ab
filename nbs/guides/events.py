# %% [markdown]
# # Event cameras (Mamba-Spike), from the cloud GPU guide to here
#
# > A recording of an event camera in, a class out: what to type, section by section for readers of the cloud GPU guide of Mamba-Spike.
#
# The task is called `events`. Nothing has to be downloaded: without a data set, an event camera that looks at digits is simulated. This trains on a CPU, scores, and draws spikes, evidence and confusions:
#
# ```bash
# mshnet train --task events
# ```
#
# **What was tried:** a CPU, and torch_xla's CPU runtime with one and with eight virtual devices. No NVIDIA GPU, Apple GPU or real TPU, and none of the cloud services below was available. Their commands are written from their own documentation.
#
# ## Setting up
#
# One command installs, another one looks at the machine. The doctor prints the GPU with its memory, and takes the place of `test_setup.py`:
#
# ```bash
# git clone https://github.com/{{repo}}
# pip install ./mshnet
# mshnet doctor --task events
# ```
#
# In Colab and Kaggle open the runner [events](../run/events.ipynb). It installs what is missing, and never replaces the torch of the image. The pages on [Colab](cloud.ipynb) and [Kaggle](cloud.ipynb) have what these two need. The preset `quick` takes the place of `simple_train.py` and of "try 10 epochs first":
#
# ```bash
# mshnet train --task events --preset quick
# ```
#
# ## SageMaker Studio Lab
#
# Start the project's runtime with a GPU, open a terminal, and keep everything below the home folder, which stays between sessions. Its disk is small, and an environment with CUDA takes a large part of it. A GPU session ends after some hours, so stop before it does:
#
# ```bash
# conda create -y -n mshnet python=3.11 && conda activate mshnet
# git clone https://github.com/{{repo}}
# pip install ./mshnet
# mshnet train --task events --max-hours 3.5
# ```
#
# The same command in the next session resumes. Never tried there.
#
# ## Paperspace
#
# Paperspace now belongs to DigitalOcean, and its notebooks and machines are started in the browser; the endpoints of the old `gradient` command are switched off. Notebooks share the folder `/storage`, which outlives them. Free ones stop by themselves and are public.
#
# ```bash
# git clone https://github.com/{{repo}}
# pip install ./mshnet
# mshnet train --task events --output-dir /storage/nmnist
# ```
#
# Never tried there.
#
# ## AWS
#
# A g4dn.xlarge has one T4, a g5.xlarge one A10G. An image with the driver is found by its name. An account needs a quota for these machines first, and a key pair of your own (`mine`):
#
# ```bash
# aws ssm get-parameter --name /aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-ubuntu-22.04/latest/ami-id --query Parameter.Value --output text
# aws ec2 run-instances --image-id AMI --instance-type g4dn.xlarge --key-name mine
# ```
#
# Log in, install in an environment of its own, and train in the background (below). Stop the machine after it: `aws ec2 stop-instances --instance-ids ID`, because an idle one costs the same. Never tried there.
#
# ## Azure
#
# Standard_NC4as_T4_v3 has one T4. The driver is an extension. The sizes with a V100 that older guides name (NCv3) are retired:
#
# ```bash
# az vm create --resource-group mine --name gpu --image Ubuntu2204 --size Standard_NC4as_T4_v3 --admin-username me --generate-ssh-keys
# az vm extension set --resource-group mine --vm-name gpu --name NvidiaGpuDriverLinux --publisher Microsoft.HpcCompute
# az vm deallocate --resource-group mine --name gpu
# ```
#
# The last line ends the costs of the machine; a machine that was only shut down from inside goes on costing. Never tried there.
#
# ## The data
#
# Data sets are read as they lie on the disk after their download, or as tonic leaves them; tonic itself is not needed. They have to be fetched by hand, because their hosts change and some ask for a form:
#
# | `--dataset` | files | classes |
# |---|---|---|
# | `nmnist` | `Train/0/*.bin` to `Test/9/*.bin` | ten digits |
# | `dvsgesture` | `trials_to_train.txt`, `*.aedat`, `*_labels.csv` | eleven gestures |
# | `cifar10dvs` | a folder for each class, with `*.aedat` | ten things |
# | `ntidigits` | `train/3/*.npz`, converted as below | eleven spoken digits |
#
# ```bash
# mshnet data --task events --dataset nmnist data/NMNIST
# ```
#
# The line looks at a set. Frames are counted once and kept beside the runs. Other formats are converted to npz first: `x`, `y`, `t` (whole microseconds) and `p` (1 brighter, 0 or -1 darker). These lines convert the HDF5 file of N-TIDIGITS, and the AEDAT4 files of tonic:
#
# ```python
# import h5py
# import numpy as np
# from pathlib import Path
#
# with h5py.File("n-tidigits.hdf5") as file:  # pip install h5py
#     for part in ("train", "test"):
#         for name in (n.decode() for n in file[f"{part}_labels"][()]):
#             digit = name.split("-")[-1]
#             if len(digit) == 1:
#                 channel = file[f"{part}_addresses"][name][()]
#                 time = np.round(1e6 * file[f"{part}_timestamps"][name][()]).astype(np.int64)
#                 out = Path("ntidigits", part, digit, f"{name}.npz")
#                 out.parent.mkdir(parents=True, exist_ok=True)
#                 np.savez(out, x=0 * channel, y=channel, t=time, p=0 * channel)
# ```
#
# ```python
# import aedat  # pip install aedat
# import numpy as np
# from pathlib import Path
#
# for path in Path("CIFAR10DVS").rglob("*.aedat4"):
#     events = np.concatenate([p["events"] for p in aedat.Decoder(path) if "events" in p])
#     x, y, t, p = (events[name] for name in ("x", "y", "t", "on"))
#     np.savez(path.with_suffix(".npz"), x=x, y=y, t=t, p=p)
# ```
#
# **Times have a unit.** In the published code `--dt` divides each recording into a fixed number of parts, however long it lasts: a gesture of six seconds in 500 parts has parts of 12 ms, and `beta` 0.97 stands there for a memory of 0.4 seconds instead of 33 ms. Here `--dt 10ms` is 10 ms, and `beta` follows from `--tau 60ms`. A number without a unit is refused.
#
# ## Training
#
# | guide | here |
# |---|---|
# | `python train.py --dataset nmnist` | `mshnet train --task events --dataset nmnist` |
# | `--data-dir DIR` | the same, or `--dataset-dir DIR` |
# | `--output-dir`, `--epochs`, `--batch-size`, `--lr`, `--weight-decay`, `--clip-grad`, `--num-workers`, `--seed` | the same; the folder is that of the run, not one around it |
# | `--dt 1 --time-window 300` | `--dt 1ms --time-window 300ms`, true milliseconds |
# | `--resume` | the same, and it exists: a run, a file, or a pattern |
# | `--checkpoint FILE` | `--weight-path FILE` |
# | `--analyze-temporal` | nothing: `figures/` has the evidence over time |
# | `--compare-paper` | the last section of this page |
# | the newest and the best checkpoint (`.pth`) | `last.pt`, `best.pt` |
#
# The guide gives batch sizes by GPU: 32 for a T4, 64 for a V100 or an RTX 3090, 96 for an RTX 4090, 128 for an A100. The learning rate grows with the root of the batch. `paper` and `paper-128` are the published network and recipe. `sensor-128` is for sensors of 128x128 pixels and a GPU with 6 GB: 33,554,432 of the 36,249,802 published weights read single pixels; averaged on a grid of 4x4 they become 262,144. How long an epoch takes is printed after the first one; the guide's table of hours was never measured.
#
# ```bash
# mshnet train --task events --dataset nmnist --dataset-dir data/NMNIST --batch-size 32 --lr 0.00424 --precision auto
# mshnet train --task events --dataset dvsgesture --dataset-dir data --preset sensor-128
# mshnet train --task events --device mps --batch-size 16 --num-workers 2
# nohup mshnet train --task events --dataset-dir data/NMNIST &
# ```
#
# The third line is for an Apple chip, the last one for a machine that you leave. Weight decay leaves `A_log` and `D` alone, as the published code means to and does not. The last epoch counts, or with `--choose val` the best one on recordings held out of the training list; the published code takes the best one on the test list. Published weights load. They record no settings, so `--preset` names their network:
#
# ```bash
# mshnet test --task events --preset paper --weight-path checkpoint_best.pth --dataset-dir data/NMNIST
# ```
#
# ## When the session ends
#
# Run the same command again. Or name the run; with a pattern the newest one is taken:
#
# ```bash
# mshnet train --resume "outputs/nmnist_*/last.pt"
# ```
#
# A checkpoint holds model, optimizer, schedule, epoch and random states, and a run that was stopped within an epoch continues to the same numbers.
#
# ## Watching it
#
# After `pip install tensorboard` each run writes its numbers to `tensorboard/`. In a notebook:
#
# ```
# %load_ext tensorboard
# %tensorboard --logdir runs
# ```
#
# The score line has the accuracy with its interval, and the spikes of a recording. `scores.json` has the spike rate of each layer too, in which two faults show: near zero a layer has died, above a half it never rests.
#
# ## Results, and looking at them at home
#
# ```bash
# mshnet pack runs/NAME
# mshnet test --task events --weight-path runs/NAME --dataset-dir data/NMNIST
# mshnet predict --task events --weight-path runs/NAME recording.bin
# mshnet export --weight-path runs/NAME --format safetensors
# mshnet compare runs/NAME runs/OTHER
# ```
#
# `pack` makes one file to download; all other commands also run on a laptop. `predict` writes `recordings.csv` and the probability of each class after each bin. The folder `figures/` of a run has the confusion matrix, rasters of spikes, and evidence over time. The page of [pictures](../events/05_pictures.ipynb) explains them, [networks](../events/03_networks.ipynb) the model, [recordings](../events/00_recordings.ipynb) the data.
#
# ## Messages
#
# | message | cause | what to do |
# |---|---|---|
# | `... is outside of the sensor, which has ... pixels; ...` | a damaged file, or another `--dataset` | name the data set; leave damaged files out |
# | `...: times fall, from ... to ... microseconds at event ...; ...` | files that were joined or sorted by pixel | sort the events by time |
# | `...: a time has a fraction (... to ...), ...`, `...: ... events in ... ms; the times seem to be ...` | times in seconds, milliseconds or nanoseconds | save whole microseconds |
# | `...: the polarities are ...; write 1 for brighter, ...` | polarities such as 1 and 2 | save 1 and 0 |
# | `...: holds no event; leave it out` | an empty recording | remove it, or write `--on-bad-image skip` |
# | `...: holds ..., not ...; write --dataset ...` | a folder of another data set | write the name from the message |
# | `dt=... is not possible: write a bin above 0 and at most time_window=...` | a bin longer than the window | a shorter `--dt`, or a longer `--time-window` |
# | `dt=... is not possible: write ...` | a number without a unit | `--dt 10ms` |
# | `dataset=...: these weights were trained on another data set or with another network, ...` | a checkpoint of another data set | leave out `--dataset` |
# | `...: not a readable recording (...)` | a damaged file or another format | download it again; `--on-bad-image skip` counts such files |
#
# ## What is a good score?
#
# Real N-MNIST, 1,000 recordings to train on and 100 to test. The recipe (the defaults) was chosen on recordings held out of the 1,000, then the test list was opened for each seed. A training takes minutes on two cores:
#
# | method | right of 100 | 95% interval |
# |---|---|---|
# | 3 nearest neighbours on counts of events | 85 | 77 to 91 |
# | logistic regression on counts of events | 90 | 83 to 94 |
# | this network, seed 0 | 98 | 93 to 99 |
# | this network, seed 1 | 99 | 95 to 100 |
# | this network, seed 2 | 96 | 90 to 98 |
#
# Together 293 of 300 are right; 282 had been the aim. The list was not untouched: two earlier recipes had 281 and 280 right on it, and earlier networks of this project had been scored there too. What helped, on held-out recordings: a gentler slope of the surrogate gradient (`--slope 2`, published 25), training recordings that are turned, stretched, slanted and bent (`--warp 0.16`), and 20 epochs. Five folds over all 1,100 recordings, with the default recipe, had 1,064 right, with an interval from 0.955 to 0.976 ([folder](../../results/events-folds)).
#
# The intervals are wide, because 100 recordings are few: two methods whose intervals overlap are not told apart by this test ([yardsticks](../../results/events-yardsticks), [seed 0](../../results/nmnist-small/seed0)). The published network was trained on 60,000 recordings.
#
# **Published numbers** disagree among themselves, and neither a training log nor a checkpoint supports any of them:
#
# | data set | table of the paper | scripts of the code | its evaluation |
# |---|---|---|---|
# | N-MNIST | - | 99.5 | - |
# | Sequential MNIST | 99.4 | - | - |
# | DVS Gesture | 97.8 | 96.8 | - |
# | CIFAR10-DVS | 92.5 | 78.9 | 78.1 |
# | TIDIGITS | 99.2 | - | - |
#
# All are percent. 96.8 is also what the paper gives for plain Mamba on DVS Gesture. The paper's abstract speaks of adaptive thresholds, GRUs and attention; the published code has none of them. Its note on architecture counts 1.2M and 8.5M parameters for N-MNIST and DVS Gesture; they are 1,026,506 and 36,250,059.
