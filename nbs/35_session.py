# %% [markdown]
# # Around a run: lock, log, archive
#
# > The services around a run: a lock on its folder, a log, a progress bar, and the run as one file.
#
# A run lasts hours, and three things can go wrong around it. A second run writes into its folder. The terminal is closed, and its output is gone. The session ends, and its disk is deleted. The remedies are a lock, a log with a progress bar, and one file to download. None of them changes a weight.

# %%
#| hide
#| default_exp session
import tempfile
from dataclasses import replace

from mshnet import session
from mshnet.places import HERE

# %%
#| export
import contextlib
import importlib.util
import io
import sys
import tarfile
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from mshnet.core import UserError
from mshnet.files import cannot_be_written, locked, make_folder, replacing
from mshnet.mirror import run_files
from mshnet.places import Place, first_process, heartbeat, interactive, megabytes, say, where
from mshnet.run import Folder

# %% [markdown]
# ## One run, one process
#
# Two runs in one folder would overwrite each other's checkpoints. So a run holds a lock on its folder, and a second one is refused:

# %%
with tempfile.TemporaryDirectory() as tmp, session.alone(Path(tmp, "run")):
    try:
        with session.alone(Path(tmp, "run")):
            pass
    except UserError as error:
        print(str(error).replace(tmp, "runs"))

# %% [markdown]
# ## Log and progress
#
# The output of a terminal or a notebook is lost when it is closed. So a run also writes it to `train.log` in its folder (follow it with `tail -f`). Under `nohup` it continues without its terminal.

# %%
with tempfile.TemporaryDirectory() as tmp:
    folder = Folder(Path(tmp))
    with session.written_down(folder):
        print("epoch 0")
    print("train.log:", folder.file("train.log").read_text())

# %% [markdown]
# A terminal or a notebook gets a bar with the rate and the time left. In a log file a bar would be megabytes of carriage returns. So any long loop prints a line every five seconds there, except the training, which has lines of its own. Work that cannot be counted shows how long it has taken.
#
# ## Download the run
#
# Colab and Kaggle delete most files with the session. There a notebook ends by packing its run into one file, with the files that a [backup](15_mirror.ipynb) has: in Colab the browser offers it for download, and Kaggle shows it in the panel Output. Your own disk keeps the folder, and we pack nothing. Here is what Kaggle gets of a run folder with four files:

# %%
with tempfile.TemporaryDirectory() as tmp:
    run, kaggle = Path(tmp, "mine"), replace(HERE, name="kaggle", runs=Path(tmp, "out"))
    run.mkdir()
    for name in ("config.json", "last.pt", "previous.pt", ".lock"):
        (run / name).write_text("{}")
    session.take_along(run, kaggle)
    with tarfile.open(kaggle.runs / "mine.tar.gz") as tar:
        print(tar.getnames())


# %% [markdown]
# ## The machinery

# %%
#| export
@contextlib.contextmanager
def alone(
    path: Path,  # a run folder; made if missing, removed if it stays empty (not on Windows)
) -> Iterator[None]:
    "Lock a run folder; UserError if another process holds it, or if it cannot be written."
    with contextlib.ExitStack() as held:
        with cannot_be_written(path):
            path.mkdir(parents=True, exist_ok=True)
            try:
                locks = held.enter_context(locked(path / ".lock", wait=False))
            except TimeoutError:
                what = f"{path}: another process works in this folder"
                todo = "wait for it or stop it, or use another --output-dir"
                raise UserError(f"{what}; {todo}") from None
        if not locks:
            warnings.warn(f"{path}: a disk without locks; start no second run there", stacklevel=3)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # such as a disk that is gone
                if not {p.name for p in path.iterdir()} - {".lock"}:  # nothing was written
                    (path / ".lock").unlink(missing_ok=True)
                    path.rmdir()


class _Tee(io.TextIOBase):
    "Writes to a stream, as long as it is open, and to a file."

    def __init__(self, stream: TextIO, file: BinaryIO) -> None:
        self.stream, self.file = stream, file

    def write(self, text: str) -> int:
        with contextlib.suppress(AttributeError, OSError, ValueError):  # None, closed, or full
            self.stream.write(text)
        with contextlib.suppress(OSError, ValueError):
            self.file.write(text.encode(errors="replace"))
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(AttributeError, OSError, ValueError):
            self.stream.flush()

    def isatty(self) -> bool:
        return bool(getattr(self.stream, "isatty", bool)())


@contextlib.contextmanager
def written_down(folder: Folder) -> Iterator[None]:
    "Write what is printed to the run's train.log too."
    path = folder.file("train.log")
    with cannot_be_written(path):
        file: Any = path.open("ab", buffering=0)
    with file, contextlib.redirect_stdout(_Tee(sys.stdout, file)):
        yield


_EVERY = 5.0  # seconds between two lines


def watched() -> bool:
    "Whether a progress bar is visible: in a terminal, or a notebook with widgets."
    if not first_process():
        return False
    if "ipykernel" in sys.modules:
        return interactive() and importlib.util.find_spec("ipywidgets") is not None
    return bool(getattr(sys.stderr, "isatty", bool)())


class _Lines(io.TextIOBase):
    "A file in which tqdm writes each state of a bar as a line of its own."

    def write(self, text: str) -> int:
        if text.strip():
            say(f"  {text.strip()}", sys.stderr)
        return len(text)


def bar(
    items: Iterable[Any],
    total: int,
    text: str,
    unit: str = "",  # such as "frames"; with it, lines are printed where no bar is visible
) -> Iterable[Any]:
    "The items, with a progress bar, its rate and the time left where it is visible."
    how: dict[str, Any] = {"total": total, "desc": text, "unit": unit or "it", "leave": False}
    if not watched():
        from tqdm import tqdm as lines

        how |= {"file": _Lines(), "mininterval": _EVERY, "delay": _EVERY}
        how["bar_format"] = "{desc}: {n_fmt} of {total_fmt} {unit}{postfix}, {remaining} left"
        return lines(items, **how) if unit else items
    from tqdm.auto import tqdm  # imported here: in a notebook without widgets it complains

    shown = tqdm(items, **how)
    if getattr(shown, "nrows", None) == -1:  # a terminal that does not report its size
        shown.ncols, shown.nrows = 80, 24
    return shown


def working(text: str) -> contextlib.AbstractContextManager[None]:
    "Print every few seconds how long something has taken, while it runs."
    return heartbeat(lambda s: say(f"  {text}: {s:.0f} s so far", sys.stderr), _EVERY)


def duration(seconds: float) -> str:
    "A time as people write it, such as 2 h 05 min, 3 min 20 s, 9 s."
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def take_along(
    folder: str | Path,  # of a run
    place: Place | None = None,
) -> str:  # one line
    "In Colab and on Kaggle, pack a run folder as .tar.gz; return a line on where the run is."
    run, place = Path(folder).expanduser().resolve(), place or where()
    if place.name == "here":
        return f"{folder}: this disk keeps it"
    if not (run / "config.json").is_file():
        raise UserError(f"{folder}: is not a run, there is no config.json in it; name a run folder")
    inside = run.is_relative_to(base := place.runs.resolve())
    name = "-".join(run.relative_to(base).parts if inside else [run.name])
    path = place.runs / f"{name}.tar.gz"
    make_folder(place.runs)
    with (
        cannot_be_written(path),
        working(f"pack {run.name}"),
        replacing(path) as out,
        tarfile.open(fileobj=out, mode="w:gz", dereference=True) as tar,
    ):
        for name in run_files(run):
            tar.add(run / name, f"{run.name}/{name}")
    if place.name == "colab":  # whose browser offers it
        try:
            from google.colab import files

            files.download(str(path))
        except Exception:  # not in the notebook's process
            say(f"{path} is not offered for download; call mshnet.session.take_along in a cell")
    return f"{path}  {megabytes(path.stat().st_size)}; {place.note}"

# %% [markdown]
# ## Questions
#
# 1. The disk is full. Does the next printed line end the run?
#    <details><summary>Answer</summary>No. An error in writing to the terminal or to <code>train.log</code> is ignored. But at the end of the epoch the log entry or the checkpoint cannot be written either, and that error ends the run.</details>
