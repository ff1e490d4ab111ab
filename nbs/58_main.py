# %% [markdown]
# # Start as a module
#
# > `python -m mshnet` is `mshnet`, for environments whose scripts are not on the path, and for launchers that start modules.

# %%
#| export
#| default_exp __main__
import os
import signal
import sys


# %% [markdown]
# A run handles requests to stop (Ctrl-C, SIGTERM, SIGHUP) while it trains. Before that, the command imports torch and reads its data; after it, the command draws pictures. There nothing can be lost, so a request ends the command at once, with one line and with the usual status for a shell: 128 plus the number of the signal. We install the handlers before the first large import, so this page imports nothing else. If a signal was set to be ignored, as `nohup` does, it stays ignored. A closed output (`>&-` in a shell) becomes the null device.

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
    except _StopRequest as stop:  # within the import: `main` reports those that come later
        if os.environ.get("RANK", "0") == "0":  # of several processes the first one reports
            print("mshnet: stopped before anything was begun", file=sys.stderr)
        return 128 + stop.number


# %%
#| export
#| eval: false
if __name__ == "__main__":
    sys.exit(start())

# %% [markdown]
# The status of the command is the status of the process, for shell scripts and schedulers. A mistake has status 2, and one line with the remedy:

# %%
sys.argv[1:] = ["train", "--epochz", "3"]
print("status", start())
