"""A small problem that is not images with masks, and has no line in the library."""

from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from mshnet.core import TASKS, Settings
from mshnet.task import RowTally, Task, Values, digits


class Part(NamedTuple):
    "One part of the data: images, and the voltages that were measured of them."

    name: str
    image: np.ndarray  # [N,8,8]
    voltage: np.ndarray  # [N,12]
    source: str = "ring"

    @property
    def names(self):
        return [f"{self.name}_{i}" for i in range(len(self))]

    @property
    def hash(self):
        return digits([*self.names, str(self.image.sum()), str(self.voltage.sum())])

    def __len__(self):
        return len(self.image)


class Errors(RowTally):
    "The mean of the error of each sample."

    def count(self, prediction, batch):
        return (prediction - batch.image).square().mean((1, 2, 3)).tolist()

    def scores(self):
        return Values(error=float(np.mean(self.values)))


class RingSettings(Settings):
    "Settings of Ring."

    presets: ClassVar[dict[str, dict[str, Any]]] = {"tiny": {"width": 4}}
    task: Literal["ring"] = "ring"
    width: int = Field(8, ge=1, le=64, description="channels of the network")
    widths: tuple[int, ...] = (1, 2)  # a setting may have several values
    noise_steps: int = Field(3, ge=1, le=10, description="steps of the sampler")


class RingBatch(NamedTuple):
    "Voltages, the image they were measured of, and noise to begin with."

    voltage: Tensor  # [B,12]
    image: Tensor  # [B,1,8,8]
    noise: Tensor  # [B,1,8,8]
    level: Tensor  # [B] 0..1
    row: Tensor


class Denoiser(nn.Module):
    "An image from a noisy one and the voltages. It has no buffers."

    def __init__(self, width):
        super().__init__()
        self.voltages = nn.Linear(12, 64)
        self.net = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, 1, 3, padding=1)
        )

    def forward(self, noisy, voltage, level):
        hint = self.voltages(voltage).view(-1, 1, 8, 8)
        return self.net(torch.cat([noisy, hint, level.view(-1, 1, 1, 1).expand_as(hint)], 1))


class Ring(Task):
    "Reconstruct an image from voltages, by diffusion; the error is scored."

    better = ("error", -1)

    def splits(self, names=("train", "test")):
        matrix, found = np.random.default_rng(9).normal(size=(64, 12)) / 8, {}
        for seed, (name, count) in enumerate({"train": 32, "test": 10}.items()):
            centre = np.random.default_rng(seed).uniform(2, 6, (count, 2, 1, 1))
            y, x = np.mgrid[:8, :8]
            image = np.exp(-((y - centre[:, 0]) ** 2 + (x - centre[:, 1]) ** 2) / 3)
            found[name] = Part(name, image, image.reshape(count, 64) @ matrix)
        return {name: found[name] for name in names}

    def batch(self, data, rows, epoch):
        draws, at = [self.rng(row, epoch) for row in rows], [max(row, 0) for row in rows]
        noise = np.stack([rng.normal(size=(1, 8, 8)) for rng in draws])
        level = np.stack([rng.uniform() for rng in draws])
        arrays = data.voltage[at], data.image[at][:, None], noise, level
        return RingBatch(*(torch.tensor(x).float() for x in arrays), torch.tensor(rows))

    def model(self):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.config.seed)
            return Denoiser(self.config.width)

    def loss(self, model, batch, phase):
        level = batch.level.view(-1, 1, 1, 1)
        noisy = batch.image * (1 - level) + batch.noise * level
        error = (model(noisy, batch.voltage, batch.level) - batch.image).float()
        return error.square().mean() + 0.1 * error.abs().mean()

    def predict(self, model, batch, phase):
        image, count = batch.noise, self.config.noise_steps
        for i in range(count):
            level = torch.full_like(batch.level, 1 - i / count)
            image = model(image, batch.voltage, level).float()
        return image

    def tally(self):
        return Errors()


TASKS["ring"] = ("toys:RingSettings", "toys:Ring")
