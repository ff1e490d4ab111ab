"""Python processes that start in a moment: forked from one that has imported torch and the library.

A new Python takes seconds to import them, which was half of the time of many tests. Tests of
memory, imports, torchrun, or a pipe that nobody reads start a new Python.
"""

import atexit
import multiprocessing
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

FORKS = multiprocessing.get_context("forkserver" if os.name == "posix" else "spawn")
MODULES = ("cli", "detection", "evaluate", "explore", "predict", "ranks", "show", "train")
FORKS.set_forkserver_preload(["torch._dynamo", *(f"mshnet.{name}" for name in MODULES)])


def _begin(words: list[str], environ: dict[str, str], outputs: tuple, first: Callable) -> None:
    "In the new process: what `python WORDS` does."
    for number, path in enumerate(outputs, 1):
        with open(path, "a") as file:
            os.dup2(file.fileno(), number)
    first()
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(os.environ["PWD"])
    sys.path[:0] = filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.path.insert(0, str(Path(__file__).parent))  # before xla/, which has a conftest, too
    try:
        match words:
            case "-c", code, *_:
                sys.argv = ["-c", *words[2:]]
                exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
            case "-m", module, *_:
                sys.argv = words[1:]
                runpy.run_module(module, run_name="__main__", alter_sys=True)
            case script, *_:
                sys.argv = words
                runpy.run_path(script, run_name="__main__")
    finally:
        atexit._run_exitfuncs()  # which multiprocessing leaves out
        for name in ("stdout", "stderr"):
            try:
                getattr(sys, name).flush()
            except OSError:  # a terminal that is gone
                setattr(sys, name, None)


def own_terminal() -> None:
    "As `first`: the terminal of the output becomes that of the process."
    import fcntl
    import termios

    os.setsid()
    fcntl.ioctl(1, termios.TIOCSCTTY, 0)


class Python:
    """`python WORDS`, as subprocess.Popen has it, with its output in files.
    `outputs` are paths that its output and its errors are added to, such as a terminal's, instead
    of the files of `communicate`; then `first` is called in the new process."""

    def __init__(self, *words, first: Callable = int, outputs: tuple = (), **environ):
        self._folder = tempfile.TemporaryDirectory()
        self.words, files = [*map(str, words)], [Path(self._folder.name, name) for name in "oe"]
        self._files = tuple(outputs) or tuple(files)
        environ = {**os.environ, "PWD": os.getcwd(), **environ}
        args = (self.words, environ, self._files, first)
        self._process = FORKS.Process(target=_begin, args=args, daemon=True)
        self._process.start()

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self._process.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = 900) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.words, timeout)
        return self.returncode

    def communicate(self, timeout: float | None = 900) -> tuple[str, str]:
        self.wait(timeout)
        return tuple(path.read_text() for path in self._files)


def run(*words, **how) -> subprocess.CompletedProcess:
    "The status and the output of `python WORDS`."
    started = Python(*words, **how)
    out, err = started.communicate()
    return subprocess.CompletedProcess(started.words, started.returncode, out, err)


def in_two_processes(*words, **environ) -> subprocess.CompletedProcess:
    "`python WORDS` twice, with what torchrun tells its two processes; the first status but 0."
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    ranks = [{"RANK": i, "LOCAL_RANK": i} for i in "01"]
    started = [Python(*words, **environ, **rank) for rank in ranks]
    out, err = map("".join, zip(*(each.communicate() for each in started), strict=True))
    status = next((each.returncode for each in started if each.returncode), 0)
    return subprocess.CompletedProcess(started[0].words, status, out, err)
