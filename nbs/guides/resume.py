# %% [markdown]
# # When a session ends
#
# > For somebody whose run was interrupted, or will be. At the end you know what is lost in each case, and the command that resumes.

# %% [markdown]
# A run is a folder with the settings, the checkpoints, the log and the scores. So the command that started a run also resumes it: run the same command again, or run the same notebook again.
#
# ## What is lost
#
# | event | what is lost | what to do |
# |---|---|---|
# | SIGTERM, a closed terminal (SIGHUP), Ctrl-C, the notebook's stop button, the end of the session's hours (`max_hours`: 11.5 in Colab, 11.5 or 8.5 on Kaggle, none elsewhere) | nothing: the run stores its place within the epoch, evaluates the kept epoch and finishes the backup. A second request stops it at once. Before the first step there is nothing to lose, and the first request stops it at once | run the same again |
# | kill -9, a power failure, a dead kernel | the epoch in progress, and the one before it if its checkpoint was being written | run the same again |
# | the machine is gone with its disk | what was not yet in the backup (`--mirror-dir DIR`, `drive` in Colab: copied in the background, and verified). On Kaggle, attach the last output as input | run the same again on the new machine |
# | `last.pt` is damaged | one epoch: `previous.pt` is used, with a warning | nothing |
# | `last.pt` and `previous.pt` are damaged | the optimizer's state: the run cannot resume | as the line says: a new run with the weights of `best.pt` |
# | the disk is full, the folder is read-only, the backup folder does not answer | nothing; one line reports which. A backup that fails does not stop a run | repair it, then run the same again |
# | a NaN or infinite loss, an image that cannot be read, a batch that does not fit into memory | the epoch in progress; one line reports the cause | `--clip-grad`, `--on-bad-image skip`, `--on-out-of-memory halve` |
#
# On a CPU with the same torch and the same number of threads, the resumed run ends with the weights of an undisturbed one, to the last bit. While other programs use the CPU a run uses fewer threads; `--deterministic`, or the variable `OMP_NUM_THREADS`, keeps their number.
#
# ## In the background
#
# ```bash
# nohup mshnet train --dataset-dir data/NUAA-SIRST &
# tail -f runs/NUAA-SIRST-*/train.log
# ```
#
# With `nohup` the run continues when the terminal is closed; without it, a closed terminal sends SIGHUP. `RUN/status.json` has the state, the epochs done, the reason and the folder of the results. A script reads the exit status:
#
# | status | meaning |
# |---|---|
# | 0 | all epochs are done |
# | 2 | a mistake, or a disk that cannot be written; one line has the remedy |
# | 75 | the hours (`--max-hours`, or those of Colab or Kaggle) were over before the last epoch; the same command resumes |
# | 130, 143, 129 | Ctrl-C, SIGTERM, SIGHUP: 128 plus the number of the signal; the same command resumes |
#
# A script that joins its commands by `&&` therefore does not continue with half a run. If you start torchrun yourself: (1) its exit status is 1, not 75; (2) it kills the workers 30 seconds after a stop request, so for long steps set the variable `TORCH_ELASTIC_SHUTDOWN_TIMEOUT` (in seconds; recent PyTorch). A notebook ends without an error when its hours are over, because Kaggle may drop the output of a failed notebook: `status.json` reports `stopped` then, and `finished` after the last epoch.
#
# ## How this was tested
#
# `make faults` kills runs at every point at which they write, cuts their power, fills their disk, interrupts them, damages their checkpoints and disturbs their backup. It starts each one again and compares it with an undisturbed run, to the last bit. It also fuzzes every file parser. One round of each fault is among the tests. The [full run](../../results/faults), by an earlier version with more kinds of faults, had 326 rounds, 200 of them kills, and 20,195 damaged inputs for 10 parsers. No run lost more than the table promises. One input raised an internal error, which is fixed.
#
# A real Drive, Colab and Kaggle were not available. Backup, mounting and restoring were tested with folders that hang, vanish and fill up.

# %% [markdown]
# The same in Python. With `--schedule constant` you can extend a finished run by raising `--epochs`, as the second call does. With the default cosine schedule, another number of epochs starts a new run:

# %%
import tempfile

from mshnet.core import configure
from mshnet.train import train

tiny = {"scenes": 12, "base_size": 32, "crop_size": 32, "device": "cpu", "schedule": "constant"}
with tempfile.TemporaryDirectory() as folder:
    place = {"output_dir": f"{folder}/trial"}
    first = train(configure({**tiny, **place, "epochs": 1}))
    second = train(configure({**tiny, **place, "epochs": 2}))

# %%
#| hide
assert second.config.epochs == 2
