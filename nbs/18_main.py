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
import sys

from mshnet.cli import main

# %% [markdown]
# The status of the command is the status of the process, so a shell script or a scheduler can trust it.

# %%
#| export
#| eval: false
if __name__ == "__main__":
    sys.exit(main())

# %%
done = subprocess.run(
    [python.executable, "-m", "mshnet", "--version"], capture_output=True, text=True
)
assert done.returncode == 0, done.stderr
done.stdout.strip()
