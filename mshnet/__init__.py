"""Infrared small target detection with MSHNet, on TPUs, NVIDIA GPUs, Apple chips and CPUs.

>>> import mshnet
>>> mshnet.detect("frame.png")              # targets in a picture, by the pretrained weights
>>> model = mshnet.MSHNet.pretrained()      # the network behind it
>>> config = mshnet.Config(dataset_dir="data/NUAA-SIRST", epochs=50)

Training is `train(config)` of `mshnet.train`, scoring `evaluate(config)` of `mshnet.evaluate`; the
command `mshnet --help` does the same. The notebooks explain all of it.
"""

import importlib
import os
import sys
from typing import Any

__version__ = "0.1.0"

# Threads that wait for each other spin briefly and then sleep. By default they spin so long that
# beside one busy program a step takes a hundred times as long (results/busy-machine). It counts
# when torch is loaded; whoever has set one of these variables keeps it.
if "torch" not in sys.modules and not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
    os.environ["GOMP_SPINCOUNT"] = "10000"

_HOMES = {
    "Config": "core",
    "MSHNet": "model",
    "detect": "predict",
    "find_targets": "predict",
    "score": "metrics",
    "sls_loss": "loss",
}
__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    "The names above, loaded when they are asked for: torch takes a second."
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
