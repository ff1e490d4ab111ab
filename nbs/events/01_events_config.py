# %% [markdown]
# # Settings of event cameras
#
# > Which recordings, how wide the bins, which network: what you can choose, and named recipes.
#
# A run of task `events` has the settings of every run and those of this page. Without a data set we simulate N-MNIST: an event camera that looks at digits. Times are texts with a unit, such as `10ms`. The published code has a `--dt` without a unit, and there it is not a time: it divides each recording into `time_window / dt` bins, however long the recording is. So we reject a number without a unit.

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

# %% [markdown]
# `--dataset` names the data set and so the sensor, `--dataset-dir` its folder. A neuron forgets with the time constant `tau`: after a bin of width dt, the fraction beta = exp(-dt / tau) of its membrane potential is left. The published networks have beta = 0.97, which is 33 ms for bins of 1 ms. Here beta is computed from `tau` and `dt`, so bins of a different width do not change the neurons. By default they remember longer (60 ms), and the slope of the [surrogate gradient](03_networks.ipynb) is smaller than the published 25.

# %%
#| export
_TIME = r"^(|\d+(\.\d+)?(us|ms|s))$"


def milliseconds(text: str) -> float:
    "A time with its unit as a number; empty: 0."
    found = re.fullmatch(r"([\d.]+)(us|ms|s)", text)
    return float(found[1]) * {"us": 0.001, "ms": 1.0, "s": 1000.0}[found[2]] if found else 0.0


class _RecordingFields(BaseModel):
    "Recipe settings of the recordings."

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


class _NetworkFields(BaseModel):
    "Recipe settings of the network."

    tau: str = Field(
        default="60ms",
        pattern=_TIME,
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
# The defaults train in minutes on a CPU. Presets:
#
# - `quick` is a trial run: half a minute of a CPU, on simulated recordings.
# - `paper` is the published network and recipe for N-MNIST and N-TIDIGITS, `paper-128` that for sensors of 128x128 pixels. Bins of 1 ms give 300 steps for N-MNIST and 1,000 for N-TIDIGITS; the window is ours.
# - `sensor-128` is for 128x128 pixels and a GPU with 6 GB: 60 steps, and rates on a grid of 4x4. (Without the grid, one linear layer has 16.8 million weights.)

# %%
#| export
_PUBLISHED: dict[str, Any] = {
    **{"dt": "1ms", "tau": "32.8ms", "denoise": "10ms", "shift": 0, "warp": 0.0},
    **{"slope": 25.0, "width": 32, "pool": 0, "batch_size": 32, "epochs": 100},
    **{"lr": 1e-3, "weight_decay": 1e-4, "warmup_steps": 0, "ema": 0.0},
}
_OF_GPUS = {"t4": 32, "v100": 64, "rtx-3090": 64, "rtx-4090": 96, "a100": 128}


class EventsConfig(Settings, _NetworkFields, _RecordingFields):
    "The settings of event cameras; `configure` joins them from presets, files and flags."

    flags: ClassVar[dict[str, list[str]]] = {
        "daily": ["dataset"],
        "test": ["dataset", "noise"],
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
        if not 0 < self.bin_ms <= self.window_ms:
            dt, window = self.dt or self.sensor.bin, f"{self.window_ms:g}ms"
            raise UserError(
                f"dt={dt} is not possible: use a bin above 0 and at most time_window={window}"
            )

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
        names = [n for n in ("recordings", "noise") if n in written and self.dataset_dir]
        lines = super().unused(written) + [f"{n} is not used with a dataset_dir" for n in names]
        if "on_bad_image" in written:
            lines.append("on_bad_image is not used by task events: a damaged file ends the run")
        return lines


# %% [markdown]
# Bins of 10 ms over 0.3 s are 30 steps. Twice the width gives half the steps, and the neurons forget at the same speed. A number without a unit is rejected:

# %%
from mshnet.core import configure

for dt in ("10ms", "20ms", "10"):
    try:
        c = configure({"task": "events", "dt": dt})
        print(f"{c.steps} bins: beta {c.beta:.3f}, after 60 ms {c.beta ** (60 / c.bin_ms):.3f}")
    except UserError as error:
        print(error)
