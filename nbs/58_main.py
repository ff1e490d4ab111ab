# %% [markdown]
# # main
#
# > `python -m mshnet` is `mshnet`, for environments whose scripts are not on the path, and for launchers that start modules.

# %%
#| default_exp __main__

# %%
#| hide
import subprocess
import sys as python

# %%
#| export
import signal
import sys


# %% [markdown]
# A run listens for requests to stop (Ctrl-C, SIGTERM, SIGHUP) while it trains. Before that it imports torch and reads its data, and after that it draws pictures. Nothing is lost then, so a request ends the command at once, as it ends later: with one line, and with the status that shells expect, 128 plus the number of the signal. We listen before the first large import, so this page imports nothing else. A signal that was set to be ignored, as `nohup` does, stays ignored.

# %%
#| export
class _Asked(KeyboardInterrupt):
    "A request to stop that comes while no run listens."

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def _end(number: int, frame: object) -> None:
    "End whatever is being done."
    raise _Asked(number)


def start() -> int:  # the status of the process
    "Run the command that this process was started for."
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # Windows lacks the last
        if number and signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _end)
    try:
        from mshnet.cli import main

        return main()
    except _Asked as asked:  # within the import: `main` reports those that come later
        print("mshnet: stopped before anything was begun", file=sys.stderr)
        return 128 + asked.number


# %%
#| export
#| eval: false
if __name__ == "__main__":
    sys.exit(start())

# %% [markdown]
# The status of the command is the status of the process, so a shell script or a scheduler can trust it. A mistake is status 2, with one line that names what to write:

# %%
python.argv[1:] = ["train", "--epochz", "3"]
assert start() == 2

# %%
done = subprocess.run(
    [python.executable, "-m", "mshnet", "--version"], capture_output=True, text=True
)
assert done.returncode == 0, done.stderr
done.stdout.strip()
