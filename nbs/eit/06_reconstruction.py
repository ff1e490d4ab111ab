# %% [markdown]
# # reconstruction
#
# > Tomography as a task of the engine: batches, the loss, pictures with their spread, scores beside the yardsticks, and files of voltages.

# %%
#| default_exp eit.reconstruction

# %%
#| hide
import matplotlib.pyplot as plt
from fastcore.test import expect_fail, test_close, test_eq

from mshnet.core import UserError, configure
from mshnet.device import open_device
from mshnet.task import score_split

# %%
#| export
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mshnet.core import as_user_error
from mshnet.device import OneProcess
from mshnet.eit.diffusion import STEPS, amounts, draw_noise, mix, published_decay, sample
from mshnet.eit.eit_config import EitConfig
from mshnet.eit.networks import DiT, Guided, UNet
from mshnet.eit.tank import WAYS, tank_map
from mshnet.eit.tanks import load_tanks
from mshnet.task import Task, Values


# %% [markdown]
# The engine trains, resumes, scores and exports any `Task`. This page is the task of tomography. Its parts have pages of their own: tanks, networks, diffusion, yardsticks; here they meet.
#
# ## A batch
#
# All random numbers are drawn on the host, for each sample by itself: in training the way in which the tank is turned, the noise and its amount; in scoring the noise of all steps. So a batch holds everything that its pictures depend on, and the picture of a tank is the same alone, in a batch of sixteen, and on eight devices.

# %%
#| export
class EitBatch(NamedTuple):
    "Voltages, the true picture, and the noise to begin with."

    condition: Tensor  # [B,1,16,16] map of the normalised voltages
    image: Tensor  # [B,1,S,S] change of the conductivity, -1 to 1
    noise: Tensor  # [B,N,S,S] standard normal; N: 1 in training, else samples * sampling_steps
    amounts: Tensor  # [B,2] of picture and noise in the mixture of training
    level: Tensor  # [B] its time, 0 to 999
    row: Tensor  # [B] index of the sample; -1: filler


# %%
#| export
class Eit(Task):
    "Electrical impedance tomography."

    better = ("cc", 1)

    def __init__(self, config: EitConfig) -> None:
        super().__init__(config)
        self.guesses: Tensor | None = None  # matrices fitted to the training data

    def splits(self, names: Sequence[str] = ("train", "test")) -> dict[str, Any]:
        "Simulated tanks, or those of a folder; val where the epoch is chosen on it."
        held_out = ["val"] if self.config.choose == "val" and "train" in names else []
        found = load_tanks(self.config, [*names, *held_out])
        if "train" in found and self.config.hints and not self.config.weight_path:
            self.guesses = fit_guesses(found["train"], self.config)
        return found

    def batch(self, data: Any, rows: list[int], epoch: int | None) -> EitBatch:
        "The batch of these tanks: turned and with a random amount of noise in training."
        c, at = self.config, [max(row, 0) for row in rows]
        if epoch is None:
            pairs = [data.pair(row) for row in at]
            count = c.samples * c.sampling_steps if c.method == "diffusion" else 1
            drawn = [draw_noise(c.seed, row, count, c.size) for row in at]
            level = np.zeros(len(rows), int)
        else:
            draws = [self.rng(row, epoch) for row in rows]
            ways = [int(rng.integers(WAYS)) if c.augment == "turns" else 0 for rng in draws]
            pairs = [data.pair(row, way) for row, way in zip(at, ways, strict=True)]
            level = np.array([rng.integers(STEPS) for rng in draws])
            scale = [float(np.exp(c.jitter * rng.standard_normal())) for rng in draws]
            pairs = [(v * by, image) for (v, image), by in zip(pairs, scale, strict=True)]
            shape = (1, c.size, c.size)
            drawn = [rng.standard_normal(shape, dtype=np.float32) for rng in draws]
        voltages, images = (torch.stack(x) for x in zip(*pairs, strict=True))
        return EitBatch(
            tank_map(data.stats.normalise(voltages))[:, None],
            images[:, None],
            torch.from_numpy(np.stack(drawn)),
            torch.from_numpy(amounts(level)),
            torch.from_numpy(level).float(),
            torch.tensor(rows),
        )

    def model(self) -> nn.Module:
        "The network of the settings, with weights drawn from the seed; beside it the guesses."
        c = self.config
        with torch.random.fork_rng(devices=[]), as_user_error():
            torch.manual_seed(c.seed)
            if c.network == "unet":
                network: nn.Module = UNet(c.size, c.width, 1 + c.hints)
            else:
                sizes = (c.size, c.patch, c.width, c.heads, c.scales, 1 + c.hints)
                network = DiT(*sizes, remember=c.size // c.patch < 64)
            if not c.hints:
                return network
            blank = torch.zeros(c.hints, c.size**2, 256)
            return Guided(network, blank if self.guesses is None else self.guesses)

    def loss(self, model: Any, batch: EitBatch, phase: str) -> Tensor:
        "Mean error of the predicted pictures."
        if self.config.method == "regression":
            noisy, level = torch.zeros_like(batch.noise), torch.zeros_like(batch.level)
        else:
            noisy, level = mix(batch.image, batch.noise, batch.amounts), batch.level
        found = model(noisy, level, batch.condition).float()
        error = F.l1_loss if self.config.loss == "l1" else F.mse_loss
        return error(found, batch.image)

    def predict(self, model: Any, batch: EitBatch, phase: str) -> Tensor:  # [B,samples,S,S]
        "Pictures of each tank: several that were drawn, or the one of a regression."
        c = self.config
        if c.method == "regression":
            noisy, level = torch.zeros_like(batch.noise), torch.zeros_like(batch.level)
            found: Tensor = model(noisy, level, batch.condition).float()
            return found
        noise = batch.noise.unflatten(1, (c.samples, c.sampling_steps)).flatten(0, 1)
        condition = batch.condition.repeat_interleave(c.samples, 0)
        drawn = sample(lambda x, t: model(x, t, condition), list(noise[:, :, None].unbind(1)))
        return drawn.view(-1, c.samples, c.size, c.size)

    def decay(self, step: int) -> float:
        "The decay of the averaged weights, by the engine's law or the published one."
        if self.config.ema_law == "paper":
            return published_decay(max(step - 1, 0))
        return super().decay(step)

    def tally(self) -> "EitTally":
        "An empty count."
        return EitTally()

    def protocol(self, data: Any, scores: Any) -> dict[str, Any]:
        "The task, how many tanks, and the side of the scored pictures."
        return super().protocol(data, scores) | {"size": self.config.size}


# %% [markdown]
# The linear guesses are ridge regressions from voltages to pictures, fitted to the training data, each tank turned in a few ways. A weak penalty gives sharp and noisy pictures, a strong one smooth ones. The network adds its output to the first, of medium strength.

# %%
#| export
_PENALTIES = (0.01, 1.0, 0.0003)  # of a normalised voltage's variance


def fit_guesses(data: Any, config: EitConfig) -> Tensor:  # [hints, size * size, 256]
    "Matrices from the map of the voltages to pictures, by ridge regression."
    count = min(len(data), 8192)
    square, product = torch.zeros(256, 256).double(), torch.zeros(256, config.size**2).double()
    turns = 2 if config.augment == "turns" else 1
    for turn in range(turns):
        ways = np.random.default_rng([config.seed, turn]).integers(WAYS, size=count) * (turns - 1)
        for start in range(0, count, 512):
            rows = range(start, min(start + 512, count))
            pairs = [data.pair(i, int(ways[i])) for i in rows]
            voltages, images = (torch.stack(x) for x in zip(*pairs, strict=True))
            x = tank_map(data.stats.normalise(voltages)).flatten(1).double()
            square, product = square + x.T @ x, product + x.T @ images.flatten(1).double()
    made = [
        torch.linalg.solve(square + penalty * turns * count * torch.eye(256).double(), product)
        for penalty in _PENALTIES[: config.hints]
    ]
    return torch.stack(made).mT.float().contiguous()


# %% [markdown]
# ## Scores
#
# The mean of the drawn pictures is scored, tank by tank, and the scores are averaged. CC, the correlation of the picture with the truth over the whole square, comes first. A real tank is never used for anything else than its score.

# %%
#| export
class EitTally:
    "Scores of each tank, by its row."

    def __init__(self) -> None:
        self.tanks: dict[int, dict[str, float]] = {}

    def add(self, drawn: Tensor, batch: EitBatch) -> None:
        "Count a batch, without its filler."
        found = score_pictures(drawn, batch.image[:, 0])
        for i, row in enumerate(batch.row.tolist()):
            if row >= 0:
                self.tanks[row] = {name: float(values[i]) for name, values in found.items()}

    def gather(self, ranks: OneProcess) -> None:
        "Join the tanks of all processes."
        joined = {row: each for part in ranks.all_gather(self.tanks) for row, each in part.items()}
        self.tanks = dict(sorted(joined.items()))

    def scores(self) -> Values:
        "The mean of each score over the tanks that have it."
        names = next(iter(self.tanks.values()))
        each = {name: [tank[name] for tank in self.tanks.values()] for name in names}
        return Values({name: float(np.nanmean(values)) for name, values in each.items()})
