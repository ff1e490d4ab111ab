# %% [markdown]
# # places
#
# > Where the notebook runs, and which folders that means: Colab, Kaggle, or the machine in front of you.

# %%
#| default_exp places

# %%
#| hide
import tempfile

from fastcore.test import expect_fail, test_eq

# %%
#| export
import contextlib
import math
import os
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from mshnet.core import Config, UserError, did_you_mean, run_name


# %% [markdown]
# Colab and Kaggle are Linux machines with two habits. Their fixed folders differ, and what is not written to the right one is gone after the session. Everything that depends on this is in this notebook; the rest of the suite asks here.

# %%
#| export
@dataclass(frozen=True)
class Place:
    "A kind of machine and its folders."

    name: str  # "colab", "kaggle" or "here"
    data: Path  # where data sets are looked for by name
    runs: Path  # where run folders are made
    note: str  # what the user should know about it
    tpu: str = "a Google Cloud TPU VM has one"  # how to get a TPU there


COLAB = Place(
    "colab",
    Path("/content"),
    Path("/content/runs"),
    "Colab: /content is deleted with the session; copy what you want to keep",
    "choose Runtime, Change runtime type, v5e-1 TPU",
)
KAGGLE = Place(
    "kaggle",
    Path("/kaggle/input"),
    Path("/kaggle/working/runs"),
    "Kaggle: /kaggle/working is kept as the notebook's output when it is saved",
    "choose Session options, Accelerator, TPU v5e-8",
)
HERE = Place(
    "here", Path("data"), Path("runs"), "this machine: folders are relative to where you started"
)


# %% [markdown]
# Both services set a variable of their own in every session:

# %%
#| export
def where(
    environ: Mapping[str, str] = os.environ,
) -> Place:
    "The place this process runs in."
    if "KAGGLE_KERNEL_RUN_TYPE" in environ:  # asked first: Kaggle's image is built on Colab's
        return KAGGLE
    if "COLAB_RELEASE_TAG" in environ or "COLAB_GPU" in environ:
        return COLAB
    return HERE


# %%
test_eq(where({"COLAB_RELEASE_TAG": "release"}), COLAB)
test_eq(where({"KAGGLE_KERNEL_RUN_TYPE": "Interactive", "COLAB_RELEASE_TAG": "release"}), KAGGLE)
test_eq(where({}), HERE)
assert isinstance(where(), Place)
where().note


# %% [markdown]
# The same notebook runs with somebody before it and headless under papermill. Colab is always watched; Kaggle says whether a session is interactive or a saved version being run; Jupyter tells its kernels the session they belong to, and papermill does not.

# %%
#| export
def interactive(
    environ: Mapping[str, str] = os.environ,
) -> bool:
    "Whether somebody sits before this notebook."
    if where(environ) == KAGGLE:
        return environ["KAGGLE_KERNEL_RUN_TYPE"] == "Interactive"
    return where(environ) == COLAB or "JPY_SESSION_NAME" in environ


# %%
test_eq(
    [interactive(e) for e in ({}, {"JPY_SESSION_NAME": "a.ipynb"}, {"COLAB_GPU": "1"})],
    [False, True, True],
)


# %% [markdown]
# Kaggle's TPU machines set two variables of an older kind of TPU, and with them the runtime waits for workers that do not exist ("Expected 4 worker addresses, got 1"). They must go before the runtime starts. On a real TPU pod the same variables are right and hold addresses; so they are removed on Kaggle, and wherever they only say "local". Beside it stand two more questions about the surroundings of this process: what is installed, and whether it is alone.

# %%
#| export
def installed(
    package: str,
) -> str | None:  # None if it is not installed
    "Version of an installed package, without importing it."
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def forget_stale_tpu(
    environ: MutableMapping[str, str] = os.environ,
) -> list[str]:  # names of what was removed
    "Remove stale TPU variables; leave those of a pod."
    stale = ("TPU_PROCESS_ADDRESSES", "CLOUD_TPU_TASK_ID")
    if where(environ) != KAGGLE and environ.get("TPU_PROCESS_ADDRESSES") != "local":
        return []
    return [name for name in stale if environ.pop(name, None) is not None]


def first_process(
    environ: Mapping[str, str] = os.environ,
) -> bool:
    "Whether this process is the one that writes and speaks; others exist under torchrun only."
    return environ.get("RANK", "0") == "0"


# %%
kaggle_tpu = {"KAGGLE_KERNEL_RUN_TYPE": "Batch", "TPU_PROCESS_ADDRESSES": "local"}
test_eq(forget_stale_tpu(kaggle_tpu), ["TPU_PROCESS_ADDRESSES"])
test_eq(forget_stale_tpu({"TPU_PROCESS_ADDRESSES": "10.0.0.1:8476"}), [])
assert installed("torch") and installed("no-such-package") is None
test_eq([first_process(e) for e in ({}, {"RANK": "0"}, {"RANK": "3"})], [True, True, False])


# %% [markdown]
# A data set is named by its folder, or by its bare name where this place keeps data. Kaggle mounts an attached data set in `/kaggle/input/NAME`, and the folder inside the archive often repeats the name, so one level below is searched too.

# %%
#| export
def find_dataset(
    text: str,  # a folder, or the name of one in `place.data`; empty: none
    place: Place | None = None,
) -> Path | None:
    "The folder of a data set, or None for the synthetic scenes. Raises UserError if it is missing."
    if not text:
        return None
    place = place or where()
    tried = [Path(text).expanduser(), place.data / text]
    tried += sorted(place.data.glob(f"*/{text}")) if not Path(text).is_absolute() else []
    for path in tried:
        if path.is_dir():
            return path
    near = [p.name for p in tried[0].parent.iterdir()] if tried[0].parent.is_dir() else []
    kind = "is a file, not a folder" if tried[0].is_file() else "there is no such folder"
    raise UserError(f"dataset_dir={text!r}: {kind}{did_you_mean(tried[0].name, near)}")


# %%
with tempfile.TemporaryDirectory() as tmp:
    (Path(tmp) / "input" / "irstd" / "IRSTD-1k").mkdir(parents=True)
    kaggle = Place("kaggle", Path(tmp) / "input", Path(tmp) / "runs", "")
    assert find_dataset("irstd", kaggle) and find_dataset("IRSTD-1k", kaggle)
    with expect_fail(UserError, contains="did you mean irstd?"):
        find_dataset(f"{tmp}/input/irst", kaggle)
test_eq(find_dataset(""), None)


# %% [markdown]
# And a run has one folder: the one asked for, the one of the run that goes on, or one named after its recipe where this place keeps runs.

# %%
#| export
def run_folder(
    config: Config,
    place: Place | None = None,
) -> Path:
    "The folder of this run."
    if config.output_dir:
        return Path(config.output_dir).expanduser()
    if config.resume:
        start = Path(config.resume).expanduser()
        return start if start.is_dir() else start.parent
    return (place or where()).runs / run_name(config)


def free_memory() -> float:  # bytes; infinite where it cannot be known
    "Memory that this process may still take, by the system and by its container."
    found = [math.inf]
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found.append(1024 * float(next(x for x in lines if "MemAvailable" in x).split()[1]))
    with contextlib.suppress(OSError, ValueError):  # no file, or the word "max"
        group = Path("/sys/fs/cgroup")
        limit, used = ((group / f"memory.{k}").read_text() for k in ("max", "current"))
        found.append(float(limit) - float(used))
    return min(found)


def program_folder(config: Config) -> Path:
    "The folder of programs compiled for a TPU, which the runs beside it share."
    return run_folder(config).parent / "xla_cache"


# %%
test_eq(run_folder(Config(output_dir="mine")), Path("mine"))
test_eq(program_folder(Config(output_dir="my/run")), Path("my/xla_cache"))
assert free_memory() > 0
test_eq(run_folder(Config(resume="old/last.pt")), Path("old"))
test_eq(run_folder(Config(), KAGGLE), Path("/kaggle/working/runs") / run_name(Config()))
