# %% [markdown]
# # Settings of event cameras
#
# > Which recordings, how wide the bins, which network: what you can choose, and named recipes.
#
# How wide is a bin, and how long does a neuron remember? These two times decide what a spiking network can see. We count the events of a recording in bins of width `dt`. A neuron forgets with the time constant `tau`: after a bin, the fraction beta = exp(-dt / tau) of its membrane potential is left. The published networks have beta = 0.97, which is 33 ms for bins of 1 ms (blue). Here `tau` is the setting, and beta is computed. So with wider bins there are fewer steps, but the neurons do not change: the points for bins of 20 ms and of 60 ms lie on one curve, that of 60 ms, the default of `tau`.

# %%
import matplotlib.pyplot as plt

from mshnet.core import configure

plt.figure(figsize=(7, 2.4), layout="constrained")
for given, mark in (({"preset": "paper"}, "-"), ({"dt": "20ms"}, "o"), ({"dt": "60ms"}, "s")):
    c = configure({"task": "events", **given})
    bins = range(c.steps + 1)
    name = f"tau {c.tau}, {c.steps} bins of {c.dt}: beta {c.beta:.3f}"
    plt.plot([c.bin_ms * i for i in bins], [c.beta**i for i in bins], mark, label=name)
plt.gca().set(xlabel="time, ms", ylabel="fraction that is left")
plt.legend();

# %%
#| export
#| default_exp events.events_config
import math
import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, Field

from mshnet.core import Settings, UserError
from mshnet.events.recordings import SENSORS, Sensor

_NEEDED = r"^\d+(\.\d+)?(us|ms|s)$"
_TIME = f"^$|{_NEEDED}"


def milliseconds(text: str) -> float:
    "A time with its unit as a number; empty: 0."
    found = re.fullmatch(r"([\d.]+)(us|ms|s)", text)
    return float(found[1]) * {"us": 0.001, "ms": 1.0, "s": 1000.0}[found[2]] if found else 0.0


class _EventFields(BaseModel):
    "Recipe settings of the recordings and the network."

    dataset: Literal["nmnist", "dvsgesture", "cifar10dvs", "ntidigits"] = Field(
        default="nmnist", description="data set, which decides the sensor and the classes"
    )
    dt: str = Field(
        default="",
        pattern=_TIME,
        description="a time with its unit, such as 10ms: the width of a bin, which is the step of "
        "the neurons (the published --dt without a unit divides each recording by its own length)",
    )
    time_window: str = Field(
        default="", pattern=_TIME, description="a time with its unit; recordings are cut or padded"
    )
    denoise: str = Field(
        default="0ms",
        pattern=_TIME,
        description="a time with its unit, such as 10ms: an event is kept if a neighbour has "
        "reported within this time before it; 0ms: all events are kept",
    )
    shift: int = Field(default=2, ge=0, le=32, description="largest random shift, pixels")
    warp: float = Field(default=0.16, ge=0, le=0.5, description="strength of the random warp")
    recordings: int = Field(default=1000, ge=20, le=100_000, description="simulated recordings")
    noise: float = Field(default=0.5, ge=0, le=1000, description="noise, events per pixel and s")
    tau: str = Field(
        default="60ms",
        pattern=_NEEDED,
        description="a time with its unit, such as 33ms: the time constant of the neurons",
    )
    width: int = Field(default=16, ge=1, le=1024, description="channels of spiking layers 1 and 2")
    features: int = Field(default=32, ge=1, le=1024, description="channels of spiking layer 3")
    pool: int = Field(default=0, ge=0, le=64, description="side of the pooled grid; 0: all pixels")
    slope: float = Field(default=2.0, gt=0, le=1000, description="slope of the surrogate gradient")
    rate_window: int = Field(default=5, ge=1, le=1000, description="bins of a firing rate")
    d_model: int = Field(default=64, ge=4, le=2048, description="width of the Mamba blocks")
    layers: int = Field(default=2, ge=1, le=64, description="Mamba blocks")


# %% [markdown]
# Without a data set we simulate N-MNIST: an event camera that looks at digits. The defaults train in minutes on a CPU, and the preset `quick` is a trial run of half a minute. By default the neurons remember longer than the published ones (60 ms), and the slope of the [surrogate gradient](03_networks.ipynb) is smaller than the published 25. `--dataset` names another data set and so the sensor, `--dataset-dir` its folder. Presets for real recordings:
#
# - `paper` is the published network and recipe for N-MNIST and N-TIDIGITS. Bins of 1 ms give 300 steps for N-MNIST and 1,000 for N-TIDIGITS; the window is ours. Two differences for N-TIDIGITS: the filter of 10 ms is on (published: only for cameras; set `--denoise 0ms`), and the network has one input channel, not two. So it has 633,131 parameters, not 633,419, and the published weights do not fit. `paper-128` has the published sizes for 128x128 pixels. In its bins of 10 ms the same `tau` gives beta = 0.737; the published 0.97 needs `--tau 328ms`.
# - `sensor-128` is for 128x128 pixels and a GPU with 6 GB: 60 steps, and rates on a grid of 4x4. (Without the grid, one linear layer has 16.8 million weights.)
#
# `retired` names old presets and the flags that replace them. Times are texts with a unit. The published code has a `--dt` without a unit, and there it is not a time: it divides each recording into `time_window / dt` bins, however long the recording is. So we reject a number without a unit:

# %%
try:
    configure({"task": "events", "dt": "10"})
except UserError as error:
    print(error)

# %%
#| export
_PUBLISHED: dict[str, Any] = {
    **{"dt": "1ms", "tau": "32.8ms", "denoise": "10ms", "shift": 0, "warp": 0.0},
    **{"slope": 25.0, "width": 32, "pool": 0, "batch_size": 32, "epochs": 100},
    **{"lr": 1e-3, "weight_decay": 1e-4, "warmup_steps": 0, "ema": 0.0},
}
_OF_GPUS = {"t4": 32, "v100": 64, "rtx-3090": 64, "rtx-4090": 96, "a100": 128}


class EventsConfig(Settings, _EventFields):
    "The settings of event cameras; `configure` joins them from presets, files and flags."

    flags: ClassVar[dict[str, list[str]]] = {
        "daily": ["dataset"],
        "doctor": ["dataset", "dt", "time_window"],
        "test": ["dataset", "noise", "tau"],
        "data": ["dataset", "noise", "recordings"],
    }
    smaller: ClassVar[str] = "--time-window or --width"
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "small": {},
        "quick": {"recordings": 600, "epochs": 8, "width": 8, "pool": 4, "d_model": 32},
        "sensor-128": {"pool": 4, "micro_batch": 4, "epochs": 60, "precision": "auto"}
        | {"width": 32, "features": 128, "d_model": 128, "layers": 4},
        "paper": {**_PUBLISHED, "features": 64, "d_model": 128, "layers": 4},
        "paper-128": {**_PUBLISHED, "features": 128, "d_model": 256, "layers": 6, "batch_size": 8}
        | {"dt": "10ms"},
    }
    retired: ClassVar[dict[str, str]] = {
        name: f"--batch-size {size} --lr {0.003 * math.sqrt(size / 16):.5f} --precision auto"
        for name, size in _OF_GPUS.items()
    }
    synthetic_name: ClassVar[str] = "simulated"

    task: Literal["events"] = Field(default="events", description="what is trained")
    batch_size: int = Settings.with_default("batch_size", 16)
    precision: Literal["auto", "bf16", "fp16", "fp32"] = Settings.with_default("precision", "fp32")
    epochs: int = Settings.with_default("epochs", 20)
    lr: float = Settings.with_default("lr", 0.003)
    ema: float = Settings.with_default("ema", 0.0)

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        todo = ""
        if not 0 < self.bin_ms <= self.window_ms:
            todo = f"use a bin above 0 and at most time_window={self.window_ms:g}ms"
        elif abs(1000 * self.bin_ms - round(1000 * self.bin_ms)) > self.bin_ms:  # 0.1% of a bin
            todo = "use whole microseconds"
        elif self.window_ms > 10_000 * self.bin_ms:
            todo = "use at most 10,000 bins in a time_window"
        if todo:
            raise UserError(f"dt={self.dt or self.sensor.bin} is not possible: {todo}")

    @property
    def sensor(self) -> Sensor:
        "The sensor of the data set, with its classes."
        return SENSORS[self.dataset]

    @property
    def bin_ms(self) -> float:
        "Width of a bin, milliseconds."
        return milliseconds(self.dt or self.sensor.bin)

    @property
    def window_ms(self) -> float:
        "Length of a recording that the network sees, milliseconds."
        return milliseconds(self.time_window or self.sensor.window)

    @property
    def steps(self) -> int:
        "Bins of a recording."
        return math.ceil(round(self.window_ms / self.bin_ms, 6))

    @property
    def beta(self) -> float:
        "Fraction of a membrane potential that is left after a bin."
        tau = milliseconds(self.tau)
        return math.exp(-self.bin_ms / tau) if tau else 0.0

    def unused(self, written: Mapping[str, Any]) -> list[str]:
        "Settings without effect."
        of_simulation = ("recordings", "noise") if self.dataset_dir else ()
        why = dict.fromkeys(of_simulation, "with a dataset_dir")
        why["on_bad_image"] = "by task events: a damaged file ends the run"
        return super().unused(written) + [f"{n} is not used {why[n]}" for n in why if n in written]

# %% [markdown]
# ## Questions
#
# 1. With bins of 20 ms beta is 0.717. What is it with bins of 40 ms, and how much is left after 120 ms?
#    <details><summary>Answer</summary>exp(-40 / 60) = 0.513, the square of 0.717. After 120 ms exp(-120 / 60) = 0.135 is left, with bins of any width.</details>
