# %% [markdown]
# # How fast, how much memory, what it costs
#
# > Which numbers were measured, and on what; and what follows for devices that were not.
#
# Every table here is made by a function from files. **Measured** means that a folder of `results/` holds the `bench.json` of it, with every single turn, the machine, the versions and the settings; the table names that folder. **Estimated** means a formula, which stands above the table. The same tables are in [results/SPEED.md](../results/SPEED.md), for reading without running anything. `make build` writes that page, and `make check` complains when it no longer agrees with the benches.

# %%
from pathlib import Path

from IPython.display import Markdown

from mshnet import bench
from mshnet.bench import Chip

places = (Path("../results"), Path("results"))
results = next((place for place in places if list(place.glob("*/bench.json"))), None)
benches = bench.read_benches(results) if results else {}
away = "No results/ here, so no measured number can be shown: estimates only."
print(", ".join(benches) if results else away)

# %% [markdown]
# ## What was measured
#
# First the machines. The name of the device says in which precision it computed. *Data* are the images that were there; a bench takes some of them.

# %%
Markdown(bench.machines_table(benches))

# %% [markdown]
# Then the speed. Training is whole steps: reading, augmenting, copying, forward, loss, backward, update. Scoring is the forward pass and all scores, *with curves* also those at two dozen thresholds; with *noisy* weights the network reports thousands of objects, as at the beginning of a training. The *plain path* is a script in the manner of most published ones, in float32, measured in the same process turn by turn, after both were shown to give equal losses and counts. *Of the limit* is what the device could do at best, by its own measured arithmetic and memory, as a part of the time taken.

# %%
Markdown(bench.speeds_table(benches))

# %% [markdown]
# A ratio says what the work on this library was worth on that machine. It is not the ratio on another one.
#
# Memory and the time to the first step, imports included, were measured in processes of their own, once each. On a CPU it is the process's memory, Python and torch included (some 500 MiB before the first step); on a GPU it is what torch has allocated there.

# %%
Markdown(bench.starts_table(benches))

# %% [markdown]
# ## Hours and cost
#
# The paper trains for 400 epochs on crops of 256x256. The default recipe trains for 200 on crops of 128x128, in about an eighth of this time. The times per image above give the hours for the data sets that people use, at the batch size that was fastest. An epoch trains all training images and scores the test list once. This is a projection of some measured steps, not a run of 400 epochs.
#
# The cost is hours times rate. **The rates are examples, not prices**: what an hour costs depends on the place, the contract and the day. Write your own. Only the rate of the device in that line means anything.

# %%
rates = {**bench.RATES}  # or {"our cluster": 0.75}
Markdown(bench.hours_table(benches, rates))

# %% [markdown]
# ## Devices that were not measured
#
# Nobody has run this on the devices below, except where the last column says so. Their makers publish two numbers: how many operations a second, and how many bytes. A training step on an image of 256x256 needs 36 GFLOP in its convolutions, and has to move their inputs and outputs. PyTorch also has to start some two thousand operations a step, unless `torch.compile` joins many of them, and a fast device waits for that. The slowest of the three decides:

# %%
Markdown(bench.formula() + " " + bench.reached(benches))

# %% [markdown]
# So each estimate is a wide range, and the truth may lie outside it. Four reasons to expect that:
#
# - The formula counts the convolutions only. Attention, batch norm and the loss move more numbers than it says.
# - The layers at full size have 16 channels. Matrix units, above all those of a TPU, are built for 128 and more, and may be mostly empty.
# - The data are assumed to be ready. A machine with few cores beside a fast GPU may not keep up.
# - Scoring is not in it: a forward pass for each scored image, and the counting of objects on the host.
#
# What it can show is the order, and what a device waits for. The minutes are those of the training steps of the paper's 400 epochs. The precision is the one that `--precision auto` chooses there: bfloat16 where the chip has it, float16 on a T4, float32 on a P100 and on Apple's chips.

# %%
Markdown(bench.estimates_table(benches, batch=16))

# %% [markdown]
# The data sheets are a list that can be edited, and so is what you pay:

# %%
mine = Chip("a card of mine", "bf16", peak=100, bandwidth=600, memory=12)
yours = {"a card of mine": 0.10}  # an hour, an example
Markdown(bench.estimates_table(benches, batch=16, chips=[mine, *bench.CHIPS[:3]], rates=yours))

# %% [markdown]
# ## Memory by batch size
#
# **Estimated.** At least the weights are needed, their gradients and Adagrad's sums, and what the forward pass keeps for the backward pass, which torch can tell. At the peak there is more. The range is from once to twice of what is kept, at 256x256; it grows with the area of the image.

# %%
Markdown(bench.memory_table())

# %% [markdown]
# What each further image of a batch took where it was measured, beside what the formula says is kept:

# %%
Markdown(bench.growth_table(benches))

# %% [markdown]
# The largest batch that should fit is a power of two by the upper end, in nine tenths of the memory. A larger batch is not a better one: it takes fewer steps, and wants another learning rate. For a TPU see also [its page](guide_tpu.ipynb).

# %%
Markdown(bench.fits_table())

# %% [markdown]
# ## Which device for what

# %%
Markdown(bench.advice(benches))

# %% [markdown]
# ## What can be set
#
# The defaults are meant to be right; each of these is for a reason.
#
# | setting | what it does | when to touch it |
# |---|---|---|
# | `--precision` | `auto`: bf16 where the chip computes it itself, fp16 with a scaled loss on NVIDIA's generation 7 (T4, V100), else fp32 | `fp32` for the arithmetic of the paper's code |
# | `--cache` | where the pixels lie: `device`, `host` (memory), `stream` (files). `auto`: the device if it is a GPU or TPU with four times the room, else memory if half of what is free is enough, else the files | `host` to have the official augmentation to the last pixel on a GPU |
# | `--compile` | `torch.compile` for the training step. `auto`: on one NVIDIA GPU of generation 7 or later. **Not measured on a GPU.** On a CPU it took minutes and was no faster | `off` if the first step takes too long for a short run, or the compiler fails |
# | `--num-workers` | threads that prepare batches; by default none on a CPU, whose cores all compute, elsewhere by the number of cores, at most 8 | if `mshnet bench` shows that data take a large part of a step |
# | `--deterministic` | only operations that repeat to the last bit on one type of machine, with one version of torch and one number of threads (`OMP_NUM_THREADS`) | to compare two changes, to hunt a fault |
# | `--batch-size`, `--lr-rule sqrt` | a larger batch uses a fast device better. The rule raises the rate with the root of the batch, during the warm-up: four times the batch, twice the rate | `mshnet bench --largest-batch` tries what fits. A larger batch is another recipe, and its scores are other scores |
# | `--profile DIR` | a trace of three steps for ui.perfetto.dev, and a table of the operations that took longest | to see where the time goes |
#
# A checkpoint is copied on the device and written by a thread while the next epoch trains; nothing needs to be set for it.

# %% [markdown]
# ## Measure your own
#
# ```bash
# mshnet bench --baseline --dataset-dir data/NUAA-SIRST --output-dir results/bench-mine
# ```
#
# Some minutes, and the folder is there. `make build` then puts it into the tables of `results/SPEED.md`; here, `benches["mine"] = bench.read_bench("results/bench-mine")` does it without the repository. The precision that was measured is that of the run, so `--precision fp32` is another bench and wants another folder.

# %%
#| hide
assert "estimated" in bench.estimates_table({}) and mine.name in bench.fits_table([mine])
assert bench.speeds_table({}) == "*Nothing was measured.*"
