# %% [markdown]
# # Start as a module
#
# > `python -m mshnet` is `mshnet`. And Ctrl-C during the first imports is one line instead of a traceback.
#
# A shell script or a scheduler sees only how a command ends: its last line, and its status. Both have to be right from the first moment until the last, even if Ctrl-C comes before torch is imported. (`python -m mshnet` is for environments whose scripts are not on the path, and for launchers that start modules.)

# %%
#| export
#| default_exp __main__
import io
import os
import signal
import sys

# %%
#| hide
import contextlib
from unittest.mock import patch

from mshnet import cli
from mshnet.__main__ import start

# %% [markdown]
# ## The last line and the status
#
# The status of the command is the status of the process. A mistake has status 2, and one line with the remedy. A command that is ended by a signal has 128 plus the number of the signal, as usual in a shell. Here are a mistake, Ctrl-C (SIGINT, number 2) during the first imports, and SIGTERM (number 15) while the command is at work:

# %%
in_imports = patch.object(cli, "main", lambda: signal.raise_signal(signal.SIGINT))
at_work = patch.dict(cli._RUN, train=lambda config: signal.raise_signal(signal.SIGTERM))
for flag, moment in (("--epochz", at_work), ("--epochs", in_imports), ("--epochs", at_work)):
    sys.argv[1:] = ["train", flag, "3"]
    with moment, contextlib.redirect_stderr(io.StringIO()) as printed:
        status = start()
    print(printed.getvalue().strip(), "| status", status)


# %% [markdown]
# ## The machinery: requests to stop
#
# A request to stop (Ctrl-C, SIGTERM, SIGHUP) may come at any moment of a training:
#
# | moment | the command | last line |
# |---|---|---|
# | the settings are imported, before `main` begins | ends at once | `stopped before anything was begun` |
# | torch is imported, or later the figures are drawn | ends at once | `stopped; run the same command again to resume` |
# | the run trains | finishes its step, writes a checkpoint, evaluates | the same |
#
# Where it ends at once, the same command does the missing work. The page on the [run](34_run.ipynb) has the last row. For the others we install handlers before the first import that takes time, so this module imports only the standard library. If a signal was set to be ignored, as `nohup` does, it stays ignored. A closed output (`>&-` in a shell) becomes the null device. Letters that the output cannot have, such as those of a file name in another encoding, are printed as `\udcba` or the like.

# %%
#| export
class _StopRequest(KeyboardInterrupt):
    "A request to stop outside of a run."

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def _end(number: int, frame: object) -> None:
    "Raise the request."
    raise _StopRequest(number)


def start() -> int:  # the status of the process
    "Run the command that this process was started for."
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, and a file of ours would get its number
            null = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(null, "r" if name == "stdin" else "w"))
    if isinstance(sys.stdout, io.TextIOWrapper) and (sys.stdout.errors or "")[:1] == "s":
        sys.stdout.reconfigure(errors="backslashreplace")  # instead of strict, surrogateescape
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # Windows lacks the last
        if number and signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _end)
    try:
        from mshnet.cli import main

        status = main()
        try:
            sys.stderr.flush()
        except OSError:  # nobody reads it: Python flushes once more at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
        return status
    except _StopRequest as stop:  # before `main`, which reports those that come later
        if os.environ.get("RANK", "0") == "0":  # of several processes the first one reports
            print("mshnet: stopped before anything was begun", file=sys.stderr)
        return 128 + stop.number


# %%
#| export
#| eval: false
if __name__ == "__main__":
    sys.exit(start())

# %% [markdown]
# ## Questions
#
# 1. You start <code>nohup mshnet train &amp;</code> and close the terminal, which sends SIGHUP. Why does the training continue?
#    <details><summary>Answer</summary><code>nohup</code> sets SIGHUP to be ignored before it starts the command. <code>start</code> installs its handler only for a signal with the usual effect, so SIGHUP stays ignored.</details>
