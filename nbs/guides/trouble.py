# %% [markdown]
# # Troubleshooting by symptom
#
# > For somebody with a message or a symptom. At the end you know its cause and the remedy.
#
# [中文](trouble.zh-CN.ipynb)

# %% [markdown]
# Start with the doctor. It checks the machine, the disk, the data and the settings:
#
# ```bash
# mshnet doctor data/NUAA-SIRST
# ```
#
# For an error that you can correct, the program prints one line with the value and the remedy, and ends with status 2. A traceback is a bug: please report it. An example:

# %%
import contextlib
import sys

from mshnet.cli import main

with contextlib.redirect_stderr(sys.stdout):
    status = main(["train", "--epochz", "3"])
status

# %% [markdown]
# In the tables, `...` stands for names and numbers. Messages that contain the whole remedy are not listed, such as `unknown setting ...; did you mean ...?`, `...=... is not possible: use ...`, `... is retired: use ...` and `mshnet ... has no option ...; leave it out`. `mshnet train --help-all` lists all settings, such as `--batch-size`; in a notebook's settings cell and papermill's `-p`, write `batch_size`. [TPU](tpu.ipynb) has the messages that begin with `device=xla`.
#
# [A setting is rejected](#A-setting-is-rejected) · [The data are not found](#The-data-are-not-found) · [The data are wrong](#The-data-are-wrong) · [The device](#The-device) · [It trains, but](#It-trains,-but) · [A run does not resume](#A-run-does-not-resume) · [Google Drive and backups](#Google-Drive-and-backups) · [Weights](#Weights) · [Predicting, comparing, exporting](#Predicting,-comparing,-exporting) · [Tomography, event cameras, sign language](#Tomography,-event-cameras,-sign-language)
#
# ## A setting is rejected
#
# | message | what to do |
# |---|---|
# | `unexpected argument ...; see mshnet ... --help`, or `... is given as well; use one of them` | without a flag, `train`, `data`, `doctor` and `bench` take the folder of one data set, `test` and `export` one run. Every other value needs its flag. If a pattern such as `runs/NUAA-SIRST-*` fits several runs, name one |
# | papermill prints "Passed unknown parameter" | the setting works, although the settings cell does not list it. An unknown name raises an error in the next cell |
# | the first cell of a notebook stops: mshnet has no address yet | the project is not published, and the cell found no wheel. Make one with `make wheel`. Upload or attach it ([Colab and Kaggle](cloud.ipynb)), or put it next to the notebook. If it is in `MyDrive`, mount the Drive first |
# | the shell does not know `mshnet` | activate the environment in which it is installed ([install](first_run.ipynb)) |
# | `weights of type ... are not possible: use a run, ...` | the weights come first, then the images: `mshnet.predict("pretrained", "frame.png")` |
#
# ## The data are not found
#
# | message | what to do |
# |---|---|
# | `dataset_dir=...: there is no such folder (...); name one, or ...` | relative paths begin in the folder where you start the command. On Kaggle pass the name of the attached data set, in Colab the full path on Drive |
# | `dataset_dir=...: has no ...` | the folder needs `images/` and `masks/`. If they are one folder deeper, the line names that folder |
# | `...; name one with --...-list` | no list of names, or several: choose one with `--train-list` or `--test-list`. A data set of your own without lists: `mshnet data DIR --split 0.5` |
# | `split=...: there is a list, ...; leave out --split` | lists are never overwritten: delete them first if you want others |
# | `...: damaged, or not an archive ...; copy or download it again` | often a web page saved as `.zip`, or an incomplete upload |
# | `...: cannot be downloaded: ...; ... files are missing or have other pixels (...)` | no network, or the address has changed. On Kaggle switch Internet on; elsewhere download the data manually ([data sets](datasets.ipynb)) |
# | the same, with the number of files right after `downloaded:` | the archive at that address has changed or is damaged: the line names a file. Download the data manually |
# | `..._list=...: there is no such file in ..., and no list of the library has this name: ...` | pass one of the names in the line, or the path of a file in the data set |
#
# ## The data are wrong
#
# | message | what to do |
# |---|---|
# | `unreadable ...: ...`, `name without ...: ...` | `mshnet data DIR` lists all of them; `--on-bad-image skip` leaves them out |
# | `name in both ... and ..., remove it from one or use another --train-list: ...` | an image must not be in both lists: the scores would be too high. Use two lists of the same source, such as `train.txt` and `val.txt` |
# | `targets cover more than a fifth of the image (is the mask inverted?): ...` | targets must be white on black. Inverted masks train to a high IoU that means nothing |
# | `list of grey masks without a target (save targets as 255): ...` | these masks use smaller values for targets than the brightest mask. Save targets as 255 in all masks; if one mask has a stray bright pixel, remove it |
# | `mask with the numbers of objects, in which all above 0 is target: ...`, `coloured mask, in which every colour but black is target: ...` | nothing to do, if your masks are made this way |
# | `width and height of its image swapped: turn it by 90 degrees ...` | the image has an orientation tag, which we obey. Turn the mask too, or remove the tag |
# | `image and mask of different orientation tags (do their marks agree?): ...` | they are turned in different ways. If the marks lie beside the targets, remove the tags |
# | `16-bit image, stretched to 8 bits by its own range: ...` | nothing to do: `mshnet predict` stretches each frame in the same way ([frames](../23_frames.ipynb)) |
# | `file of several pages, of which the first is read: ...` | save each page as an image of its own, with its mask |
# | `most of a frame gets few of the 256 grey levels; ...` | cut off telemetry rows, bad lines and borders, if the frame has some. If it has none, a small part of the scene is much brighter or darker: nothing to do |
# | `image of more than ... pixels at its own size (use --base-size 256): ...` | use `--base-size 256`, or crop these images |
# | `no target in any mask of a list, so Pd is undefined: ...` | look at the masks: are they black, or do they belong to other images? |
# | `targets vanish or merge at ...: ...` | the targets are too small for that size: use a larger `--base-size` |
# | no message, but the marks are offset from the targets | the masks belong to other images, or are shifted: check the output of `mshnet data`, and draw the figure `samples` ([how](own_images.ipynb)) |
#
# ## The device
#
# | message | what to do |
# |---|---|
# | `device=cuda: torch finds no NVIDIA GPU...; use --device cpu` | the doctor names the reason: the line `build` reports a PyTorch without CUDA, the line `accelerator` a warning of torch, such as an old driver |
# | `device=cuda:...: ...; see mshnet doctor, or use --device cpu` | there is no GPU of this number, or this build of PyTorch does not support it (recent builds on a P100): the doctor's line `accelerator` names the build to install |
# | `device=mps: this machine has no Apple GPU that torch can use; use --device cpu` | this machine is no Mac with an Apple chip, or its macOS is too old for this PyTorch: use `--device cpu` |
# | `this machine has a TPU, but torch_xla is not installed` | use the service's own TPU image; see [TPU](tpu.ipynb) |
# | `precision=...: not on ...; use ...` | leave it at `auto` |
# | `this chip only emulates bf16; use --precision fp32 (or auto)` | leave out `--precision bf16`; a T4 uses fp16 |
# | `...=...: does not fit into the memory of ...; use ...` | use a smaller `--batch-size`, or `--micro-batch N`; `mshnet bench` measures the memory that a batch of detection needs |
#
# ## It trains, but
#
# | what you see | what to do |
# |---|---|
# | `the prediction ..., which the SLS loss may not leave; begin a new run with --preset steady` | the prediction has collapsed. The page on the [loss](../01_loss.ipynb) explains why. With the preset `paper`, none of three seeds had collapsed with `--fusion-start full_size --join-rate 0.1 --head-bias -4` ([results](results.ipynb)) |
# | `the prediction ...: try a smaller --lr, and look at the masks with ...` | with this recipe the cause is usually in the data: are the masks empty, inverted, or of other images? |
# | `epoch ..., step ...: the loss is NaN or infinite; ...` | begin a new run with a smaller `--lr` or `--precision fp32`; if you changed `--clip-grad`, set it back to 1. Good weights were not overwritten |
# | `the run ends within the warm-up, so the fused head is never trained` | the warm-up is the whole run: use more `--epochs`, or `--warm-epoch 0` (one epoch of warm-up) or -1 (none, as in `steady`) |
# | scores are far below the paper's | are the test list, the matching rule and the selected epoch the same ([how the scores are defined](scores.ipynb))? Seeds also differ: compare three |
# | the first epoch is slow | on a TPU the training and evaluation steps are compiled once |
# | every epoch is slow | does the doctor's line `accelerator` name the right device? Are the data on a network disk or on Drive? `mshnet bench` shows how much of the time goes into loading data |
# | many false alarms, or nothing, on your own camera | [a new camera](new_camera.ipynb) |
# | Chinese names are boxes in figures | install a font, such as Noto Sans CJK or WenQuanYi Zen Hei, delete matplotlib's cache (`matplotlib.get_cachedir()`) and start Python again |
# | the score differs from the last time | two runs with the same seed agree to the last bit only on the same type of CPU, with the same torch and number of threads. A run uses fewer threads while other programs use the CPU; `--deterministic` fixes their number. Use it on a GPU, too |
#
# ## A run does not resume
#
# | message | what to do |
# |---|---|
# | `... holds another run (...); use its settings... or another --output-dir` | a setting that affects the result differs; the line names it with both values |
# | `...: not a checkpoint to resume from (weights go to --weight-path)` | published weights are not a run: start from them with `--weight-path` |
# | `...: cannot be written (...)` | the disk is full or read-only. Repair that, then run the same command again to resume |
# | `...: ..., and previous.pt cannot replace it; ...; or use another --output-dir` | both checkpoints are damaged. With a backup (`mirror_dir`), rename the run folder and run the same command again. Otherwise start a new run; the line names the flags |
# | status 75 | the time limit was reached before the last epoch: run the same command again |
# | `stopped  ...; its checkpoint is written...` | no error: somebody stopped the run, or it reached its time limit |
# | `stopped  ...; Colab deletes this disk: download the run...` | the run has no backup: run the cell `Download the run` before the session ends |
#
# ## Google Drive and backups
#
# | message | what to do |
# |---|---|
# | `Google Drive is mounted in Colab only: results stay in ...` | elsewhere use a folder: `--mirror-dir DIR` |
# | `Google Drive is not mounted: results stay in ...`, `Google Drive is not mounted (...): no data or results there` | training continues without a backup. To get one, stop it, run `from mshnet.places import mount_drive; mount_drive()` in a cell, allow access, and run the training cell again |
# | `mirror  ...: ...; tried again later, the run continues` | the Drive is full or cannot be reached. Free space; no restart is needed |
# | `...: it holds ... epochs, and this run has ...; delete ... to resume the copy; or leave out its mirror_dir, or detach it` | the run began anew before its backup was there |
# | `mirror  ... is on the disk of the run; if you meant another, mount that one` | a lost disk would take both. Mount the disk of the backup before the training, or ignore the line |
# | `mirror  ... of ... files are in ...; missing: ...` | the session ended before the backup was complete: copy the named files yourself, or run again |
#
# ## Weights
#
# | message | what to do |
# |---|---|
# | `weight_path is empty: name the weights to export, such as runs/NAME/best.pt, or pretrained` | `mshnet export runs/NAME` |
# | `...: there is no such file` | is it the right folder? In PowerShell a pattern such as `runs/NUAA-SIRST-*` is not expanded: write the full name. Each run has its own folder |
# | `...: weights of another model: ...` | the weights of a different network, or of a different version; the line names the first differences |
# | `...: not a torch file of weights, or a damaged one` | often an incomplete download, or a web page |
# | `...: refused, it would run code when loaded` | the file contains more than weights. Do not load it in any other way unless you trust its author |
#
# ## Predicting, comparing, exporting
#
# | message | what to do |
# |---|---|
# | `...: name files that end in ..., or their folders` | no input has one of these types. A folder means the files directly in it (events: also those below it); `"DIR/**"` also means those in its subfolders. Results of an earlier prediction are left out, unless you name their folder itself |
# | `output_dir=...: holds something else than this prediction; use another --output-dir` | the folder has files of yours, or the images, weights or settings differ (of eit, events and signs: it has any earlier prediction). Use another folder, or leave out `--output-dir`: the results then go to `predictions/NAME-2` |
# | `no memory for a piece of ...: use a smaller --tile` | `--tile 512` needs a quarter of the memory of the default, 1024 |
# | `explore` shows a still figure | widgets need a running notebook and `pip install ipywidgets`; then restart the kernel |
# | status 1, and files are counted as skipped | these files, or single frames of them, could not be read: `skipped.csv` (task `detect`), or the lines above, list each with its reason; the others are done |
# | `these scores cannot be compared: ...` | the test sets or the definitions of the scores differ; the line names the difference. Evaluate both in the same way, such as `mshnet test RUN --base-size 256 --output-dir DIR` for each, and compare the folders. No mean over seeds? Precision, torch and mshnet must agree, too |
# | `task ... has no option ...; leave it out` | an option of the task `detect`, such as `--tile`, was used with weights of a different task |
#
# ## Tomography, event cameras, sign language
#
# The guides of these tasks have their messages, under "Your data": [tomography](eit.ipynb), [event cameras](events.ipynb), [sign language](signs.ipynb).

# %% [markdown]
# If nothing here helps, report the problem with the output of these three commands:
#
# ```bash
# mshnet --version
# mshnet doctor
# mshnet data data/NUAA-SIRST
# ```
#
# Add the command, its last lines, and `config.json` and `env.json` of the run folder.
