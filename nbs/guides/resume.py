# %% [markdown]
# # When a session ends
#
# > For somebody whose run was interrupted, or will be. At the end you know what is lost in each case, and the command that resumes.

# %% [markdown]
# **Run the same command, or the same notebook, again: the run resumes.** A run is a folder with its settings, checkpoints, log and scores. The same settings lead to the same folder.
#
# ## What is lost
#
# | event | what is lost | what to do |
# |---|---|---|
# | Ctrl-C, the notebook's stop button, SIGTERM, a closed terminal (SIGHUP; on Windows see kill -9) | nothing: the run stores the step that it has reached, evaluates the selected epoch and finishes the backup. A second request stops it at once. A second SIGTERM or SIGHUP counts only two seconds or more after the first | run the same again |
# | the time limit of a session (`max_hours`: 11.5 in Colab and on Kaggle, 8.5 on Kaggle with a TPU, none elsewhere) | no training step, if the disk remains: the run stops as after Ctrl-C. Colab deletes the disk when the session ends. Kaggle deletes what an interactive session wrote, unless you save a version | Colab: use `--mirror-dir drive`. Kaggle: use Save Version, Save & Run All ([details](cloud.ipynb)). Then run the same again |
# | kill -9, a power failure, a dead kernel | the epoch in progress, and the one before it if its checkpoint was being written | run the same again |
# | the machine is gone with its disk | what was not yet in the backup. `--mirror-dir DIR` (`drive` in Colab) copies in the background and verifies each copy | run the same again on the new machine; on Kaggle, first attach the output of the saved version as input |
# | `last.pt` is damaged | one epoch: `previous.pt` is used, with a warning | nothing |
# | `last.pt` and `previous.pt` are damaged | the optimizer's state: the run cannot resume | with a backup, rename the run folder and run the same again; else start a new run from `best.pt`; the error names the flags |
# | the disk is full, or the folder is read-only | up to two epochs; one line reports it | free space or permit writing, then run the same again |
# | the backup folder cannot be reached during a run | nothing: the run continues and tries again later | make the folder available again |
# | the backup folder cannot be reached when a new machine starts | the run begins anew; the backup stays as it is | stop it, make the folder available, delete the new run folder, run the same again |
# | the run is in the backup, but cannot be read there | nothing: training does not begin | run the same again; to begin anew, use another `--output-dir` |
# | a NaN or infinite loss, an image that cannot be read, a batch that does not fit into memory | the epoch in progress; one line reports the cause | NaN: begin a new run with a smaller `--lr`, and with the default `--clip-grad 1`; image: repair the file; memory: `--micro-batch` |
#
# On a CPU, a resumed run ends with the same weights as an uninterrupted run, to the last bit, if torch and the number of threads are the same. While other programs use the CPU, a run uses fewer threads and may differ in the last bits; `--deterministic` or the variable `OMP_NUM_THREADS` fixes their number. With three or more processes a resumed run differs in the last bits, because PyTorch adds up the gradients of its first step in another order.
#
# ## In the background
#
# ```bash
# nohup mshnet train data/NUAA-SIRST &
# tail -f runs/NUAA-SIRST-*/train.log
# ```
#
# The second line shows the log, once the run has begun. With `nohup` the run continues after you close the terminal. `status.json` in the run folder has the state, the number of finished epochs, the reason of a stop and the folder of the results. A script can use the exit status:
#
# | status | meaning |
# |---|---|
# | 0 | all epochs are done |
# | 1 | done, but `predict` skipped a file, or `doctor` gave a warning |
# | 2 | an error, such as an unknown setting or a full disk; one line names the remedy |
# | 75 | the time limit (`--max-hours`, or that of Colab or Kaggle) was reached before the last epoch; the same command resumes |
# | 130, 143, 129 | Ctrl-C, SIGTERM, SIGHUP: 128 plus the number of the signal; the same command resumes |
#
# Once an epoch is done, a notebook ends at its time limit without an error, because Kaggle may drop the output of a failed notebook. In `status.json` the `state` is then `stopped`; after the last epoch it is `finished`.
#
# If you start torchrun yourself, its exit status is 1, not 75. It also kills the workers 30 seconds after a stop request. If your steps are long, set the variable `TORCH_ELASTIC_SHUTDOWN_TIMEOUT` (in seconds; recent PyTorch).
#
# ## How this was tested
#
# `make faults` kills runs while they write and at random moments, simulates power failures and full disks, and moves runs to a new machine. It resumes each run and compares the result with that of an uninterrupted run, to the last bit. The tests contain one round of each. They also interrupt runs, damage checkpoints and disturb backups.
#
# The last [full test](../../results/faults) was made with an earlier version, which had more kinds of faults. It had 326 rounds, 200 of them kills. No run lost more than the table promises.
#
# A real Drive, Colab and Kaggle were not available. Backup, mounting and restoring were tested with folders that hang, vanish and fill up.
#
# ## More epochs for a finished run
#
# With `--schedule constant` you can raise `--epochs`: the second command continues the run of the first.
#
# ```bash
# mshnet train data/NUAA-SIRST --schedule constant --epochs 200
# mshnet train data/NUAA-SIRST --schedule constant --epochs 300
# ```
#
# With the default cosine schedule, a different number of epochs starts a new run.
