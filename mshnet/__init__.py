"""Infrared small target detection with MSHNet, on TPUs, NVIDIA GPUs, Apple chips and CPUs.

>>> mshnet.detect("frame.png")                   # targets in a picture, by the pretrained weights
>>> run = mshnet.train(mshnet.Config(dataset_dir="data/NUAA-SIRST", epochs=50))
>>> run.scores, run.history, run.folder          # what was reached, epoch by epoch; its files
>>> mshnet.evaluate(run)                         # score a run, a run folder, a file, "pretrained"
>>> mshnet.predict(run, ["frame.png"])           # the probability of target of each pixel
>>> model = mshnet.load(run)                     # the network; mshnet.MSHNet() is untrained

`help(mshnet.Config)` and `help(mshnet.train.train)` explain them; `mshnet --help` does the same
work from a terminal. The notebooks show all of it.
"""

import importlib
import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what editors and type checkers see
    from .core import UserError
    from .evaluate import evaluate, load
    from .loss import sls_loss
    from .metrics import score
    from .model import MSHNet
    from .predict import detect, find_targets, predict
    from .recipe import Config
    from .train import train

__version__ = "0.1.0"

# Threads that wait for each other spin briefly and then sleep. By default they spin so long that
# beside one busy program a step takes up to 71 times as long (results/busy-machine). It counts
# when torch is loaded; whoever has set one of these variables keeps it.
if "torch" not in sys.modules and not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
    os.environ["GOMP_SPINCOUNT"] = "10000"

_HOMES = {
    "Config": "recipe",
    "MSHNet": "model",
    "UserError": "core",
    "detect": "predict",
    "find_targets": "predict",
    "load": "evaluate",
    "score": "metrics",
    "sls_loss": "loss",
}
_CALLED = ("evaluate", "predict", "train")  # modules with a function of their own name
__all__ = [*_HOMES, *_CALLED, "__version__"]


def __getattr__(name: str) -> Any:
    "The names above, loaded when they are asked for: torch takes a second."
    if name in _CALLED:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


class _Called(ModuleType):
    """A module that can be called in place of its function: mshnet.train is mshnet.train.train.

    An imported module becomes an attribute of its package, so it would replace the function. Thus
    there is one object for `mshnet.train(config)`, `from mshnet.train import Run` and
    `import mshnet.train as module`, in any order.
    """

    @property
    def _function(self) -> Any:
        return getattr(self, self.__name__.rpartition(".")[2])

    @property
    def __signature__(self) -> Any:  # for help and editors
        import inspect

        return inspect.signature(self._function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def __reduce__(self) -> Any:  # for a pool of processes
        return importlib.import_module, (self.__name__,)


class _Package(ModuleType):
    "This package, which makes those modules callable when they are imported."

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _CALLED and isinstance(value, ModuleType):
            value.__class__ = _Called
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
