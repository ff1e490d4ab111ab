# %% [markdown]
# # Tomography: see into a tank through its wall
#
# > For readers who have electrode voltages and want an image of what is in the tank, or who want to train such a model. The options of the CDEIT scripts are [at the end](#Options-of-the-original-script).
#
# Sixteen electrodes sit around a tank of salt water. A small current flows between two neighbouring electrodes, and we measure the voltages between the other neighbours. Then the next pair drives the current, and so on. The result is 208 voltages, which depend on the objects in the tank. Electrical impedance tomography (EIT) computes an image of the conductivity from these voltages.
#
# Many images fit the same voltages. So the model, a conditional diffusion network ([CDEIT](https://arxiv.org/abs/2412.16979)), samples several images for one measurement. Their mean is the reconstruction. Their standard deviation shows where the samples differ.

# %%
import matplotlib.pyplot as plt

from mshnet.eit.eit_config import EitConfig
from mshnet.eit.tank import tank_map
from mshnet.eit.tanks import load_tanks
from mshnet.task import trained_task

task, model = trained_task("", EitConfig())  # the weights in the package
test = load_tanks(task.config, ["test"])["test"]
batch = task.batch(test, [1, 5], None)
samples = task.predict(model.eval(), batch, "full").detach()
figure, axes = plt.subplots(2, 4, figsize=(8, 4.2), layout="constrained")
for row, index, images, truth in zip(axes, [1, 5], samples, batch.image, strict=True):
    shown = {"208 voltages": tank_map(test.voltages[index]), "ground truth": truth[0]}
    shown |= {"mean of four": images.mean(0), "standard deviation": images.std(0)}
    for axis, (title, image) in zip(row, shown.items(), strict=True):
        limit = float(image.abs().max()) if "voltages" in title else 1
        colours = "PuOr" if "voltages" in title else "RdBu_r"
        colours, least = ("viridis", 0) if "deviation" in title else (colours, -limit)
        drawn = axis.imshow(image, cmap=colours, vmin=least, vmax=limit if least else 0.25)
        axis.set_title(title, size=9)
        axis.axis("off")
    figure.colorbar(drawn, ax=row[-1], shrink=0.8)  # of the standard deviation

# %% [markdown]
# The figure shows two simulated tanks. Red conducts better than water, blue hardly conducts; the images have values from -1 to 1. In the map of voltages, a row is a driven pair and a column a sensed pair; orange is lower than in plain water. The small inclusion of the first tank is missed, and the standard deviation does not show it: where all samples agree, all may be wrong.
#
# ## Try it in one minute
#
# Trained weights come with the package. These lines simulate 8 tanks for training, 256 for validation and 256 for testing, and reconstruct the first ten of the test tanks:
#
# ```bash
# mshnet data --task eit --write mine --tanks 8
# mshnet predict --task eit mine/test/00000*.npz
# ```
#
# `predictions/pretrained-eit` then has one figure for each tank, and `tanks.npz` with `names`, `mean` and `spread` (the standard deviation). The next prediction gets a new folder, `predictions/pretrained-eit-2`. [The card of the weights](../../mshnet/pretrained-eit.md) reports how they were trained and where they fail.
#
# ## Your data
#
# | you have | format |
# |---|---|
# | only measurements | a table (`.csv`, `.txt`) with 208 voltages in each row, one row per measurement, with or without a heading; or an `.npz` file with `ys` |
# | a data set | folders `train`, `valid`, `test` with an `.npz` file for each tank (`ys`: the 208 voltages, `xs`: the true image); next to the folders `mean.pth` and `std.pth`, if you have them (without both, the statistics of `train` are used) |
# | recordings of real tanks | the same files in a folder `test2017` (UEF 2017) or `test2023` (KTC 2023) |
#
# `ys` is the measurement minus a measurement of plain water. It has 16 groups, one for each driven pair; each group has the voltages of the 13 sensed pairs without a driven electrode. In an image electrode 0 is at the bottom, 4 at the right, 8 at the top; pair r is electrodes r and r+1. With measurements alone nothing checks this or the sign: electrodes counted in another way give a turned or mirrored image. `xs` is the change of the conductivity relative to water: 0 is water, 1 is three times its conductivity, -1 is 0.05 times, and values between them are linear. [Tank](../eit/00_tank.ipynb) explains the order and the physics.
#
# ```bash
# mshnet data --task eit simdata-cdeit
# mshnet predict --task eit mine.csv
# ```
#
# The first command checks a data set: it simulates the voltages of the true images and compares them with the stored ones. The second command reconstructs your measurements. If the voltages of a file are more than five times too large or too small, it divides all of them by one factor and prints it. Save all measurements of an instrument in one file: alone, a weak measurement would be enlarged as much as a strong one. A smaller difference, such as twice the current, is not noticed: correct it yourself.
#
# [Data sets](datasets.ipynb) lists the published tanks, real and simulated, with their terms. In the commands, `simdata-cdeit` is the folder of the simulated ones.
#
# A wrong file is rejected, and the error names it:
#
# | message | cause | what to do |
# |---|---|---|
# | `... voltages; a measurement of 16 electrodes has ...` | not 208 values | measure with 16 electrodes, adjacent drive and adjacent sense, and leave out the three sensed pairs that carry current ([order](../eit/02_tanks.ipynb)) |
# | `a voltage is NaN, above 1e10 or not a number` | a damaged file, or a broken electrode | leave out the file, or measure again; one missing voltage cannot be left out |
# | `the 208 voltages are in another order, or of plain water` | reciprocity is violated: swapping drive and sense pairs must not change a voltage. Noise alone, as of a tank without objects, violates it too | sort the voltages as the message says; leave tanks of plain water out |
# | `has no mean.pth, std.pth and train` | the statistics by which voltages are normalised are not known | copy the two files of the training's data set; for weights of simulated tanks, those of `mshnet data --task eit --write NEW --tanks 8` |
# | `all voltages of a tank have one sign` | these are the measured voltages, not their differences from plain water | subtract the voltages of plain water, measured with the same instrument |
# | `the electrodes are counted in another order` | the voltages fit the images only if the tank is turned or mirrored | turn the images or reorder the voltages as the message says |
# | `the sign of the voltages is reversed` | `ys` is plain water minus the measurement | change the sign of `ys` |
# | `xs is up to ...` | `xs` has labels 0, 1, 2, a different scale, or NaN | save the change of the conductivity: -1, 0, 1 |
# | `fit the images in no orientation` | `xs` belongs to other voltages | find the images that were measured |
# | `... times as large as in most rows` | a row in a different unit, or a wrong value; one factor for all rows would make the other images empty | correct the row, or save it in a separate file |
# | `the voltages are ... times what mean.pth and std.pth predict` | `mean.pth` and `std.pth` of other data, or voltages in a different unit | copy the files of this set, or, if it has none, remove both (then those of `train` are used), or convert the voltages |
# | `data=... needs dataset_dir` | real tanks need their files | pass `--dataset-dir DIR` |
# | `damaged, or refused because it would run code when loaded` | a damaged file, or one with a pickle | save arrays of numbers only |
# | `holds other data; use a new or an empty folder` | `--write` found files that it did not write | use a different folder |
#
# ## Train
#
# ```bash
# mshnet train --task eit
# ```
#
# Without a data set, 2,048 tanks are simulated. This small model trains in 133 to 137 s of processor time. Its correlation with the true image is 0.88 on simulated test tanks and 0.82 on the real UEF tanks ([runs](../../results/eit-small/seed0)). `--preset quick` is a shorter trial. After an interruption, the same command resumes.
#
# The published model needs an accelerator and the published data set. We have not trained it:
#
# ```bash
# mshnet train simdata-cdeit --task eit --preset tpu --device xla --batch-size 64 --micro-batch 4
# ```
#
# `--preset paper` is the published recipe: Adam, batches of 16, a constant learning rate of 1e-5, the published average of the weights. `--preset tpu` changes it to batches of 64, bfloat16, and a learning rate that falls from 1e-4. `--micro-batch` computes a batch in parts and adds their gradients, so that `--batch-size 64` also fits into the memory of a small device. On a TPU the attention scores are stored: by arithmetic, not tried, a chip with 16 GB holds about four samples, so eight chips allow `--micro-batch 32`.
#
# ## How good is it?
#
# The table has the 47 real tanks, 22 of UEF and 25 of KTC, at 32x32 pixels, evaluated once. CC is the correlation with the ground truth, RMSE the root mean square error. Ridge regression, Tikhonov (one linear step) and Gauss-Newton (several steps) are classical methods ([glossary](glossary.ipynb)):
#
# | method | UEF CC | UEF RMSE | KTC CC | KTC RMSE |
# |---|---|---|---|---|
# | an image of plain water | - | 0.240 | - | 0.280 |
# | ridge regression | 0.759 | 0.167 | 0.775 | 0.186 |
# | Tikhonov | 0.751 | 0.163 | 0.737 | 0.201 |
# | Gauss-Newton | 0.782 | 0.152 | 0.782 | 0.174 |
# | this model, seed 0 (in the package) | 0.816 | 0.137 | 0.787 | 0.171 |
# | this model, seed 1 | 0.817 | 0.137 | 0.797 | 0.167 |
# | this model, seed 2 | 0.819 | 0.137 | 0.786 | 0.171 |
#
# - The model was trained on simulations only. On KTC it is only slightly better than Gauss-Newton.
# - Its standard deviation is too small. On simulated tanks, 32% of the true pixels are within one standard deviation and 54% within two (seed 0); a correct one would give 50% and 78% with four samples (68% and 95% with very many). So it shows where errors are, but not how large they are.
# - SSIM is not in the table, because the image of plain water has the highest SSIM. [Scores](../eit/03_scores.ipynb) explains each number.
#
# Classical methods at 128x128 pixels ([folder](../../results/eit-yardsticks)); the published reconstructions come with the tanks:
#
# | method | UEF CC | KTC CC |
# |---|---|---|
# | Tikhonov, published | 0.699 | 0.640 |
# | Gauss-Newton, published | 0.633 | 0.733 |
# | ridge regression, ours | 0.723 | 0.743 |
# | Tikhonov, ours | 0.721 | 0.721 |
# | Gauss-Newton, ours | 0.745 | 0.755 |
#
# The weight of our Gauss-Newton was chosen when its scores on these tanks were known; the weight chosen on simulated tanks alone gives 0.741 and 0.734. The classical rows of the first table were computed by an earlier version.
#
# ## Options
#
# | option | command | effect |
# |---|---|---|
# | `--samples 16` | `predict`, `test` | more images for each measurement: a smoother mean, a more precise standard deviation. Runs of `paper` and `tpu` sample one image, so without this flag their standard deviation is 0 |
# | `--sampling-steps 10` | `predict`, `test` | more steps from noise to an image |
# | `--data uef2017`, `ktc2023` | `test` | score real tanks of `--dataset-dir` |
# | `--tanks 8192` | `train` | more simulated training tanks |
# | `--size 64` | `train` | images of 64x64 pixels |
# | `--width 128` | `train` | a wider network |
#
# ```bash
# mshnet test runs/NAME --task eit --dataset-dir DIR --data uef2017
# mshnet predict --task eit --weight-path runs/NAME --samples 16 mine.csv
# mshnet compare runs/NAME runs/OTHER
# mshnet doctor --task eit
# ```
#
# In the run folder, `log.jsonl` has one line for each epoch, `best.pt` the weights, `scores.json` the scores with their protocol, and `figures/` the images. The details are in these notebooks: [networks](../eit/04_networks.ipynb), [diffusion](../eit/05_diffusion.ipynb), [the task](../eit/06_reconstruction.ipynb).
#
# ## Options of the original script
#
# | CDEIT | here |
# |---|---|
# | `python main.py --mode train` | `mshnet train --task eit --preset paper` (without the preset: our small recipe) |
# | `--mode test` | `mshnet test --task eit` |
# | `--data-path DIR` | the same, or `--dataset-dir DIR` |
# | `--global-batch-size 64` | the same, or `--batch-size 64`: over all devices |
# | `--epochs`, `--log-every`, `--num-workers` | the same |
# | `--ckpt-every` | not needed: each epoch is saved |
# | `--global-seed`, `--results-dir` | the same, or `--seed`, `--output-dir` |
# | `--data simulated`, `uef2017`, `ktc2023` | the same |
# | `--samplingsteps 5` | the same, or `--sampling-steps 5` |
#
# One process drives all chips of a TPU. [TPU](tpu.ipynb) explains how to check and repair an installation.
