# %% [markdown]
# # MSHNet
#
# [中文](index.zh-CN.ipynb)
#
# Find infrared small targets: a few bright pixels in a sky, on a sea, against the ground. This is a suite of notebooks, and the library they export, that trains, scores and shows [MSHNet](https://arxiv.org/abs/2403.19366) (Liu et al., CVPR 2024) on a TPU, NVIDIA GPUs, an Apple chip or a plain CPU, with the same code.
#
# ![Test scenes from worst to best: image, probability, hits, misses and false alarms](../results/scenes-quick/figures/gallery.png)
#
# - **Right.** Forward pass, losses, gradients, transforms and scores equal the official code's numbers, to the last pixel where they are whole and to float32 rounding where they are not ([tests](../tests/test_golden.py)). Scores carry their protocol, so that two numbers can be compared.
# - **Nothing lost.** A run is a folder. The same command again goes on where it was, bit for bit on the same CPU, on a new machine too if it has a mirror.
# - **It teaches.** The library is the notebooks: each says why, shows what, looks at the result, and tries the edge cases.
#
# ## Two commands
#
# On Linux or macOS, with git, make, and Python 3.11 or newer:
#
# ```bash
# git clone https://github.com/{{repo}}
# cd mshnet
# make demo        # trains the full-size network on synthetic scenes on the CPU and says where the pictures are
# make test-all    # everything that a change must pass
# ```
#
# There is no `make` on Windows: see [On your own machine](guide_local.ipynb). The two commands make their own environments: `.venv` and, for the part that runs the TPU code without a TPU, `.venv-xla` (torch_xla, 7 GB; Linux on x86-64, skipped elsewhere). `make test` leaves that part out. On Linux the usual torch brings CUDA along (several GB); to save them, make `.venv` yourself (`python3 -m venv .venv`) and install the CPU build of the torch version in `constraints.txt` into it first.
#
# ## Open a runner
#
# Each runs from top to bottom as it is, on synthetic scenes, and takes your data set by one line of its settings.
#
# | runner | for | open |
# |---|---|---|
# | [local](run/local.ipynb) | a laptop or workstation | in Jupyter |
# | [a100_setup](run/a100_setup.ipynb) | Colab with an A100 | [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/{{repo}}/blob/{{branch}}/nbs/run/a100_setup.ipynb) |
# | [tpu_setup](run/tpu_setup.ipynb) | Colab with a TPU | [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/{{repo}}/blob/{{branch}}/nbs/run/tpu_setup.ipynb) |
# | [kaggle_tpu](run/kaggle_tpu.ipynb) | Kaggle with a TPU | [![Open in Kaggle](https://kaggle.com/static/images/open-in-kaggle.svg)](https://kaggle.com/kernels/welcome?src=https://github.com/{{repo}}/blob/{{branch}}/nbs/run/kaggle_tpu.ipynb) |
# | [kaggle_gpu](run/kaggle_gpu.ipynb) | Kaggle with one or two GPUs | [![Open in Kaggle](https://kaggle.com/static/images/open-in-kaggle.svg)](https://kaggle.com/kernels/welcome?src=https://github.com/{{repo}}/blob/{{branch}}/nbs/run/kaggle_gpu.ipynb) |
#
# Headless, in a clone with `pip install -e '.[notebook]'`: `papermill nbs/run/local.ipynb out.ipynb -p dataset_dir data/NUAA-SIRST -p epochs 50`. Any setting may be given; a name that is none is refused. The runners were executed on a CPU under papermill. What could not be tried for want of the machines: a TPU, an NVIDIA GPU of any kind, an Apple chip, macOS, Windows, a real Colab or Kaggle session, a real Google Drive.
#
# ## Guides
#
# | | |
# |---|---|
# | [Choose your device](guide_device.ipynb) | which machine for what: measured, estimated |
# | [A small trial run first](guide_first_run.ipynb) | ten minutes before a day |
# | [On your own machine](guide_local.ipynb) | Linux, Windows, a MacBook |
# | [Colab](guide_colab.ipynb), [Kaggle](guide_kaggle.ipynb), [TPU](guide_tpu.ipynb) | in five minutes; what a TPU wants |
# | [Speed, memory, cost](guide_speed.ipynb) | all tables, and what can be set |
# | [From the official script](guide_from_official.ipynb) | flags, differences, published weights |
# | [How the scores are defined](guide_scores.ipynb) | and why published ones differ |
# | [Write your own task](guide_task.ipynb) | another network, loss or problem |
# | [Troubleshooting](guide_trouble.ipynb) | by symptom |
# | [Gallery](guide_gallery.ipynb) | what the suite draws |
#
# `make docs` makes a site of all notebooks, with their outputs, in `_docs/`: with Quarto where that is installed (never tried with a real one), elsewhere a plain preview.
#
# ## Install and use
#
# ```bash
# pip install "mshnet @ git+https://github.com/{{repo}}"       # never a bare `pip install mshnet`: the name is not ours
# mshnet doctor                                                # what this machine is and can do
# mshnet data data/NUAA-SIRST                                  # what is in a data set, and everything wrong with it
# mshnet train --dataset-dir data/NUAA-SIRST                   # 400 epochs; the same command goes on
# mshnet test --weight-path runs/NUAA-SIRST-*/best.pt          # scores, with their protocol
# mshnet predict --weight-path runs/NAME/best.pt images/ '*.tif'   # masks, tables and marked pictures of your own images
# mshnet bench --baseline --dataset-dir data/NUAA-SIRST       # how fast, beside a plain script, on this machine
# mshnet export --weight-path runs/NUAA-SIRST-*/best.pt        # an ONNX file, checked (--format pt2, safetensors)
# mshnet compare runs/NUAA-SIRST-*                             # runs side by side: scores, curves, what went wrong
# mshnet pack runs/NUAA-SIRST-1f0c2a9b                         # the run in one file, to take along (--format zip)
# ```
#
# A run's folder is named after its data and its settings; training prints it in the line `folder`. Where `*` fits several runs, and on Windows, write the name. ONNX needs `pip install onnx onnxruntime onnxscript` too, and safetensors `pip install safetensors`. `mshnet COMMAND --help` lists all settings.
#
# A data set is a folder with `images/` and `masks/` (or IRSTD-1k's folder names) and lists of names: `trainval.txt` and `test.txt`, `train.txt` and `val.txt`, or `img_idx/train_*.txt`. Without one, `mshnet train` takes synthetic scenes and says so.
#
# It may also be a `.zip`, `.tar`, `.tar.gz` or `.tgz` of one (here, on Drive, or attached on Kaggle), which is unpacked once to the local disk and refused if it would write elsewhere; or a name, `NUAA-SIRST`, `IRSTD-1k` or `NUDT-SIRST`, which is fetched. If no lists are found in the NUAA-SIRST that was fetched, name its authors' own: `--train-list idx_427/trainval.txt --test-list idx_427/test.txt` (not the 213 and 214 images of most papers). The downloads themselves could not be tried.
#
# ```python
# from mshnet.core import Config
# from mshnet.evaluate import predict
# from mshnet.train import train
#
# run = train(Config(dataset_dir="data/NUAA-SIRST", epochs=50))
# print(run)  # IoU 0.62  nIoU 0.60  F1 0.77  Pd 0.91  Fa 12.3 (the form; your numbers differ)
# prob = predict(run.folder / "best.pt", images)  # uint8 [B,3,H,W] -> probability [B,1,H,W]
# ```
#
# ## Look at it
#
# ```python
# from mshnet.show import explore, watch
#
# explore("runs/NUAA-SIRST-1f0c2a9b")            # its test images, worst first; or any folder of images
# explore("runs/NUAA-SIRST-1f0c2a9b", "frames")
# watch("runs/NUAA-SIRST-1f0c2a9b")              # a run that trains in another process: curves, predictions, time left
# ```
#
# ![A widget: lists of images and targets, a threshold slider, and the image, its truth, the probability, hits, misses and false alarms, all of it and from near](images/explore.png)
#
# In a notebook these are widgets (`pip install ipywidgets`); headless or without it the same calls make still pictures in `RUN/figures`. A test moves the slider in Chromium, in JupyterLab and on a page of Voila, and compares the picture with the still one. Colab's and Kaggle's own front ends were not at hand.
#
# ## Find targets in your own images
#
# `mshnet predict --weight-path W INPUT...` takes images, folders, globs, multi-page TIFFs and videos (`pip install imageio av`), of any size, in 8 or 16 bits, and writes into `predictions/NAME` a mask and a picture with the detections marked for each frame, and `detections.csv` and `detections.jsonl` with place, box, area, peak and mean probability of each detection. A file that cannot be read is named, skipped and counted (exit status 1). Trained weights are not shipped: `W` is a run's folder (`make demo` makes `demo/run`), or a published file of the [official repository](https://github.com/Lliu666/MSHNet) (the column Weights of its README: IRSTD-1k and NUDT-SIRST, none for NUAA-SIRST), or an ONNX file of `mshnet export`. What tiles and padding change is measured in [15_predict](15_predict.ipynb).
#
# ## When a session ends
#
# Run the same command, or the same notebook, again. What is promised:
#
# | what happens | what is lost | what to do |
# |---|---|---|
# | SIGTERM, a closed terminal (SIGHUP), Ctrl-C, the notebook's stop button; the session's hours are over (`max_hours`: 11.5 in Colab, 11.5 or 8.5 on Kaggle, none elsewhere) | nothing: the place within the epoch is written, the best epoch scored, the mirror finished. Asked twice it stops at once | the same again |
# | kill -9, power, a dead kernel | the epoch in progress, and the one before it if its checkpoint was just being written (a few tenths of a second on a local disk, longer on a slow one) | the same again |
# | the machine is gone with its disk | what was not yet in the mirror (`--mirror-dir DIR`, `drive` in Colab: copied in the background, verified, at most `mirror_rate` MB/s); on Kaggle attach the last output as input | the same again, there |
# | `last.pt` is damaged | one epoch: `previous.pt` is taken, with a warning | nothing |
# | the disk is full, the folder read-only, the mirror dead | nothing; one line says which. A dead mirror does not stop a run | mend it, the same again |
# | a loss that is no number (NaN or infinite), an image that cannot be read, a batch that does not fit | the epoch in progress; named in one line | `--clip-grad`, `--on-bad-image skip`, `--on-out-of-memory halve` |
#
# The resumed run ends with the weights of an undisturbed one, to the last bit: on a CPU with the same torch (`--deterministic` stores the number of threads too). In the background: `nohup mshnet train ... &` goes on when the terminal is closed, and `tail -f RUN/train.log` shows it; without `nohup` a closed terminal is SIGHUP. `RUN/status.json` says how it is to whoever runs it headless: state, epochs done, reason, where the results are. The exit status is 0, 2 for a mistake or a disk that cannot be written, 128 + the number of a signal.
#
# `make faults` shows it: runs are killed at every point at which they write, starved, asked to stop and lied to, and each one, started again, is compared with an undisturbed one to the last bit; readers are given thousands of damaged inputs. A round of each fault is among the tests. [Once](../results/faults) in full: 326 rounds, 200 of them killed, and 20,195 inputs for 10 readers; nothing was lost. One input ended in an error that no user should see, and was mended.
#
# A real Drive, Colab and Kaggle were not at hand: mirror, mounting and bringing back were tried with folders that hang, vanish and fill up.
#
# ## TPU
#
# `mshnet train --device xla --preset tpu`, or a TPU runner, uses all chips there are, one or eight, in one process: the batch (a multiple of their number) is cut among them, batch norm takes its means over all of them, each phase of the training is compiled once. **No real TPU was at hand.** What was run is torch_xla 2.9 on its CPU runtime with 1 and with 8 virtual devices (`make test-xla`): ten steps with the losses of plain PyTorch (as nearly as float32 defines them; [log](../LOG.md)), no operation outside the device, no program compiled twice, runs that move between `xla` and `cpu`, both TPU runners from top to bottom under papermill. Speed, memory and rounding of a real chip, its compilation cache, and Colab and Kaggle themselves are unverified.
#
# [The TPU page](guide_tpu.ipynb) says what to check first, what each error means, which batch size, and how much memory a chip needs.
#
# ## Several GPUs, several machines
#
# ```bash
# mshnet train --num-devices 2 --batch-size 16 --dataset-dir D                      # two GPUs of this machine
# torchrun --nproc-per-node=2 -m mshnet train --batch-size 16 --dataset-dir D       # the same
# torchrun --nnodes=2 --node-rank=0 --master-addr=HOST --master-port=29500 --nproc-per-node=4 -m mshnet train --batch-size 32 --dataset-dir D
# ```
#
# The last line is for the first of two machines, `HOST`, which holds the run; the second gets the same with `--node-rank=1`. `--batch-size` counts the images of one step over all GPUs. Each process takes its part of every batch, gradients and batch norm are those of the whole batch (DistributedDataParallel, SyncBatchNorm), every test image is scored once, one process writes. It was tested with two processes on the CPU (gloo); no NVIDIA GPU and no second machine was at hand. On a CPU there is no batch norm over processes: each uses its own rows' statistics.
#
# ## Results
#
# Every number has its folder in [results](../results/README.md), with settings, machine, log and protocol.
#
# **NUAA-SIRST, the paper's recipe, 30 epochs on 2 CPU cores** ([folder](../results/nuaa-sirst-paper)). All 213 training images (no held-out part), batch 4, bf16, seed 6, the last epoch (29); scored on the 214 test images (263 targets) at 256x256, threshold 0.5. It was interrupted after epoch 3 and resumed.
#
# | | IoU | nIoU | F1 | Pd | Fa | mean IoU of epochs 20-29 |
# |---|---|---|---|---|---|---|
# | here, rule exact | 0.61 | 0.63 | 0.75 | 0.92 | 74.7 | 0.541 |
# | here, rule reference | 0.61 | 0.63 | 0.75 | 0.92 | 73.2 | |
# | official script, same lists and machine, float32, one seed (given to us, not measured here) | | | | | | 0.366 |
#
# Do not read this as better than the official script: it is one seed against one seed, and ours is a **selected** one. Four seeds were started:
#
# | seed | arithmetic | mean test IoU of epochs 20-29 | test IoU of epoch 29 | |
# |---|---|---|---|---|
# | [6](../results/nuaa-sirst-paper) | bf16 | 0.541 | 0.61 | the run above |
# | [0](../results/nuaa-sirst-paper-seed0) | float32 | 0.262 | 0.43 | empty prediction from the end of the warm-up to epoch 22, then well |
# | [1](../results/nuaa-sirst-paper-seed1) | bf16 | 0.001 | 0.00 | full prediction from the end of the warm-up to the end |
# | [12](../results/nuaa-sirst-paper-seed12) | bf16 | | | run beside seed 6, stopped after epoch 3 because its test scores were behind |
#
# The end of the warm-up can kill the fused prediction for many epochs, with the paper's own recipe. Why, and what to do about it, is in the [log](../LOG.md); training says so when it happens.
#
# ![Loss and scores by epoch](../results/nuaa-sirst-paper/figures/learning.png)
#
# **Synthetic scenes, preset quick: what `make demo` does** ([folder](../results/scenes-quick)). IoU 0.59, nIoU 0.57, F1 0.75, Pd 0.88, Fa 13.2 on 60 test scenes (129 targets), the epoch chosen on 48 held-out scenes, rule exact; the notebook took 110 s on 2 cores. (Before the arithmetic of a step changed in its last digits, the same settings gave IoU 0.68 and Pd 0.98: ten epochs on 192 scenes are a lottery, as the log says.) The top-hat filter with its best window and threshold: IoU 0.30, Pd 0.99, Fa 2627.6.
#
# **Speed, 2 CPU cores, beside a plain float32 script** ([folder](../results/bench-cpu)). NUAA-SIRST at 256x256, medians of five turns side by side, after both were shown to give equal losses and counts:
#
# | | here, ms an image | plain, ms an image | ratio | wanted |
# |---|---|---|---|---|
# | training, batch 4 | 104 | 241 | 2.3 | 3 |
# | training, batch 16 | 107 | 682 | 6.4 | 3 |
# | scoring, trained weights | 32 | 84 | 2.6 | 3.5 |
# | scoring, noisy weights (thousands of components) | 32 | 321 | 10 | 15 |
# | data and augmentation alone (1.3% of a step) | 1.4 | 3.5 | 2.5 | 2 |
# | peak memory at batch 16, MiB | 2895 | 4555 | 0.64 | 0.6 |
# | first step after the start, batch 4, seconds | 5.0 | 6.1 | | under 15 |
#
# Four of these were not reached. A training step has 36 GFLOP of convolutions, and torch's convolutions alone take 62% of its time: this machine multiplies at 0.80 TFLOP/s in bf16 at best. The [log](../LOG.md) says where the rest goes. **Accelerators were not measured**: no GPU and no TPU was at hand, and torch.compile, float16 and pixels on a device were run on a CPU only.
#
# **bf16 beside float32** ([folders](../results/bf16-beside-fp32)). The same data at 160x160, 13 epochs, rate 0.005, three seeds each; mean test IoU of the last five epochs:
#
# | seed | 0 | 1 | 2 | mean |
# |---|---|---|---|---|
# | float32 | 0.373 | 0.475 | 0.467 | 0.439 |
# | bf16 | 0.460 | 0.435 | 0.404 | 0.433 |
#
# The two means are nearer than two seeds of either. At a rate of 0.02 and five warm-up epochs one seed was tried in each precision, and both died at the end of the warm-up.
#
# [How fast, how much memory, what it costs](guide_speed.ipynb) explains the [tables](../results/SPEED.md) by device, batch size and data set, made from these measurements; what was not measured is marked as estimated, with its formula.
#
# ## From the official script
#
# | official | here |
# |---|---|
# | `python main.py --mode train --dataset-dir D` | `mshnet train --dataset-dir D` |
# | `python main.py --mode test --weight-path W --dataset-dir D` | `mshnet test --weight-path W --dataset-dir D` (published `.tar` weights load as they are) |
# | `--batch-size --epochs --lr --warm-epoch --base-size --crop-size` | the same; `--batch-size` counts over all devices |
# | `--if-checkpoint True` | nothing: the same command goes on; `--resume RUN` names another run |
# | `--multi-gpus True` | `--num-devices N`, or `torchrun` |
# | guides for TPUs: `--use-tpu --num-cores 8 --global-batch-size 64` | the same (today's names: `--device xla --num-devices 8 --batch-size 64`) |
# | best epoch chosen on the test list, unsaid | `--choose val` (default, a held-out part), `last`, or `test`, written beside the number |
# | Pd and Fa as the script computes them | `--rule reference`; the default rule matches best pairs and counts every false alarm |
#
# ## The notebooks
#
# | notebook | what it explains |
# |---|---|
# | [00_core](00_core.ipynb) | settings: one schema for notebook, command line and file |
# | [01_places](01_places.ipynb) | Colab, Kaggle or here, and which folders that means |
# | [02_model](02_model.ipynb) | the network, and loading published weights safely |
# | [03_loss](03_loss.ipynb) | the scale and location sensitive loss |
# | [04_metrics](04_metrics.ipynb) | IoU, nIoU, F1, Pd, Fa, and why published ones differ |
# | [05_data](05_data.ipynb) | find, read, check, split, augment, batch; synthetic scenes |
# | [06_device](06_device.ipynb) | CPU, CUDA, MPS, TPU, several processes, behind one small class |
# | [07_run](07_run.ipynb) | the run's folder, checkpoints, resuming |
# | [08_task](08_task.ipynb) | all that the loop knows of a problem |
# | [09_evaluate](09_evaluate.ipynb) | scoring, protocol, the top-hat yardstick, prediction |
# | [10_train](10_train.ipynb) | the loop |
# | [11_show](11_show.ipynb) | pictures; widgets to explore images and watch a run |
# | [12_doctor](12_doctor.ipynb) | what machine is this |
# | [13_bench](13_bench.ipynb) | how fast, against the device's limits and a plain script |
# | [14_export](14_export.ipynb) | ONNX, torch.export and safetensors files for other programs, checked |
# | [15_predict](15_predict.ipynb) | from files of any size to masks, tables and marked pictures |
# | [16_compare](16_compare.ipynb) | runs side by side, small and dim targets, calibration, what goes wrong and why |
# | [17_cli](17_cli.ipynb), [18_main](18_main.ipynb) | the commands |
#
# To change something, read [CONTRIBUTING](../CONTRIBUTING.md); what was tried is in [LOG](../LOG.md); what changed in [CHANGELOG](../CHANGELOG.md).
#
# ## Source and licence
#
# The method is by Qiankun Liu, Rui Liu, Bolun Zheng, Hongkui Wang and Ying Fu: *Infrared Small Target Detection with Scale and Location Sensitivity*, CVPR 2024. This is an independent implementation under [Apache-2.0](../LICENSE); it shares no code with the authors' repository, which has no licence.
