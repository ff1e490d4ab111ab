# %% [markdown]
# # Tomography (CDEIT), from the TPU guide to here
#
# > 208 voltages of a tank in, a picture of what lies in it out: what to type, section by section for readers of the TPU guide of CDEIT.
#
# The task is called `eit`. Nothing has to be downloaded: without a data set, tanks are simulated. This trains the small preset on a CPU, scores it, and draws some tanks of the test part:
#
# ```bash
# mshnet train --task eit
# ```
#
# **Not verified:** no real TPU was available. The programs ran on torch_xla's CPU runtime with one and with eight virtual devices.
#
# ## Preparing
#
# Install the library once, on any machine. Which torch and torch_xla belong together is in the [TPU guide](tpu.ipynb). Installing torch_xla on a machine without a TPU changes nothing here: the device is asked for its name.
#
# ```bash
# mshnet doctor --task eit --device xla
# ```
#
# The doctor reports chips, memory and what is missing. It takes the place of the guide's diagnostic cells.
#
# ## The data
#
# The layout is the published one: folders `train`, `valid` and `test` with an npz file for each tank (`ys` 208 voltages, `xs` the true picture), and `mean.pth` and `std.pth` beside them. The recordings lie in `test2017` (UEF) and `test2023` (KTC). `--data-path` works, and a folder that does not exist is an error: no other folder is taken in its place.
#
# ```bash
# mshnet data --task eit simdata-cdeit
# mshnet data --task eit --write mine --tanks 3000
# ```
#
# The first line compares a set with physics: it solves the forward problem for the pictures and correlates the voltages. The second one simulates a set in the same layout. If it is interrupted, the same command continues.
#
# Files are read safely: an npz with a pickle is refused and not run. Data that cannot be right are refused too:
#
# | message | cause | what to do |
# |---|---|---|
# | `... voltages; a measurement of 16 electrodes has ...` | a measurement has another number of values | 16 electrodes, adjacent drive and adjacent sense, without the pairs that carry current |
# | `a voltage is NaN, infinite or not a number` | a damaged or unfinished recording | leave the file out |
# | `the 208 voltages are in another order` | exchanging drive and sense changes them, which no tank does | sort the sensed pairs of each driven pair by their number |
# | `the electrodes are counted in another order` | the voltages fit the pictures only if the tank is turned or mirrored | turn the pictures or reorder the voltages as the message says |
# | `the sign of the voltages is reversed` | `ys` is plain water minus the measurement | change the sign of `ys` |
# | `fit the pictures in no orientation`, `it is the change of the conductivity` | `xs` has labels 0, 1, 2, or belongs to other voltages | save the change of the conductivity: -1, 0, 1 |
# | `these are the statistics of another set, or the voltages have another unit` | `mean.pth` and `std.pth` of other data | copy the files of this set |
# | `refused, it would run code when loaded` | a file with a pickle | write arrays of numbers alone |
# | `holds other data; write a new or an empty folder` | `--write` found something that it did not write | name another folder |
#
# ## Training
#
# The words of the guide and those of today:
#
# | guide | here |
# |---|---|
# | `python main.py --mode train` | `mshnet train --task eit` |
# | `--mode test` | `mshnet test --task eit` |
# | `--data-path DIR` | the same, or `--dataset-dir DIR` |
# | `--global-batch-size 64` | the same, or `--batch-size 64`: over all chips, a multiple of their number |
# | `--epochs`, `--log-every`, `--num-workers` | the same; epochs are not overwritten by a number of steps |
# | `--ckpt-every` | not needed: every epoch is kept, and a run that was stopped within one resumes there |
# | `--global-seed`, `--results-dir` | the same, or `--seed`, `--output-dir` |
# | `--data simulated`, `uef2017`, `ktc2023` | the same: which tanks are scored |
# | `--samplingsteps 5` | the same, or `--sampling-steps 5` |
#
# The guide's presets by their purpose: a first look, the usual training, the published size.
#
# ```bash
# mshnet train --task eit --preset quick
# mshnet train --task eit --preset small
# mshnet train --task eit --preset tpu --device xla --dataset-dir simdata-cdeit --batch-size 64
# ```
#
# `--preset paper` is the published recipe (Adam, a constant rate of 1e-5, averaged weights by the published law).
#
# One process drives all chips, so "expected 8 processes but got 1" cannot appear. (In the published script eight were announced, one core worked and seven waited.) The line `device` at the start reports the chips. Gradients are averaged over all of them within the step's program; a step marker alone does not do that.
#
# If the session ends, run the same command again. The checkpoint holds model, averaged weights, optimizer, step and random states, and the run continues to the same numbers.
#
# ## Memory
#
# A batch that does not fit is reported with what to write. If a batch is too large, `--micro-batch` computes it in parts whose gradients add up, also on several devices, which share each part. So `--batch-size 64` stays 64 however small the chips are:
#
# ```bash
# mshnet train --task eit --preset tpu --batch-size 64 --micro-batch 16
# ```
#
# The guide's table of memory is wrong: it has no row for the attention at the finest grid, which alone can take a GB for each sample. On a CPU or a GPU the scores of attention are never held all at once here. On a TPU they are, hence the `--micro-batch` above.
#
# ## Watching it, and results
#
# Everything of a run lies in its folder: `log.jsonl` one line for each epoch, `train.log`, `best.pt` and `last.pt` in place of `checkpoints/`, `scores.json` with the protocol, `figures/`. A damaged step is reported with its number, never as a silent wait.
#
# ```bash
# mshnet test --task eit --weight-path runs/NAME --dataset-dir DIR --data uef2017
# mshnet predict --task eit --weight-path runs/NAME mine.csv
# mshnet compare runs/NAME runs/OTHER
# ```
#
# `predict` takes npz files with `ys`, and tables with 208 voltages in each row. Voltages in the unit of another instrument are brought to the usual size by one factor, and that is reported. A file of a data set is normalised by the statistics of its set, any other by the published ones.
#
# ## What is a good score?
#
# The classical methods are hard to beat. On 47 real tanks, at 32x32 (the size of the small preset), correlation with the truth (CC) and root mean square error (RMSE):
#
# | method | UEF CC | UEF RMSE | KTC CC | KTC RMSE |
# |---|---|---|---|---|
# | the empty picture | - | 0.240 | - | 0.280 |
# | ridge regression | 0.759 | 0.167 | 0.775 | 0.186 |
# | Tikhonov | 0.751 | 0.163 | 0.737 | 0.201 |
# | Gauss-Newton | 0.782 | 0.152 | 0.782 | 0.174 |
# | the small preset, seed 0 | 0.816 | 0.137 | 0.787 | 0.171 |
# | the small preset, seed 1 | 0.817 | 0.137 | 0.797 | 0.167 |
# | the small preset, seed 2 | 0.819 | 0.137 | 0.786 | 0.171 |
#
# It trains on simulations alone. At 128x128 the pictures that were published with the tanks have a CC of 0.699 and 0.640 (Tikhonov), 0.633 and 0.733 (Gauss-Newton); ridge regression has 0.723 and 0.743 there ([folder](../../results/eit-yardsticks)). SSIM is not in the table because the empty picture has the highest. The folder's script has the methods. [Scores](../eit/03_scores.ipynb) explains the numbers, [tank](../eit/00_tank.ipynb) the physics, [tanks](../eit/02_tanks.ipynb) the data.
#
# ## What diffusion adds
#
# A measurement does not determine its picture. The network draws several pictures for each measurement; their mean is the reconstruction, and their spread shows where the voltages say little. More pictures (`mshnet predict --task eit --samples 16 mine.csv`) give a smoother mean and a better estimate of the spread. The scores report how often the truth lies within one and two spreads.
