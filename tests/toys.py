"""Two small problems that are not images with masks. None has a line in the library."""

from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from mshnet.core import TASKS, Settings
from mshnet.signs.ctc import collapse
from mshnet.task import RowTally, Task, Values, digits

NAMES = ("ring", "sentences")


def register():
    "Make the toys known."
    for name in NAMES:
        TASKS[name] = (f"toys:{name.capitalize()}Settings", f"toys:{name.capitalize()}")


class Part(NamedTuple):
    "One part of a toy's data."

    name: str
    source: str
    arrays: dict[str, Any]

    @property
    def names(self):
        return [f"{self.name}_{i}" for i in range(len(self))]

    @property
    def hash(self):
        return digits([*self.names, *(str(np.asarray(v).sum()) for v in self.arrays.values())])

    def __len__(self):
        return len(next(iter(self.arrays.values())))


COUNTS = {"train": 32, "test": 10, "val": 8}


def parts_of(source, make, names):
    "Splits, each of its own seed."
    seeds = {name: np.random.default_rng(i) for i, name in enumerate(COUNTS)}
    return {name: Part(name, source, make(seeds[name], COUNTS[name])) for name in names}


def seeded(seed, make):
    "A model with the starting weights of a seed."
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


class Mean(RowTally):
    "The mean of a value of each sample."

    def __init__(self, name, count):
        super().__init__()
        self.name, self.count = name, count

    def scores(self):
        return Values({self.name: float(np.mean(self.values))})


# Voltages to images, by diffusion


class RingSettings(Settings):
    "Settings of Ring."

    presets: ClassVar[dict[str, dict[str, Any]]] = {"tiny": {"width": 4}}
    task: Literal["ring"] = "ring"
    width: int = Field(8, ge=1, le=64, description="channels of the network")
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
    "Reconstruct an image from voltages; the error of the reconstruction is scored."

    better = ("error", -1)

    def splits(self, names=("train", "test")):
        matrix = np.random.default_rng(9).normal(size=(64, 12)) / 8

        def make(rng, count):
            centre = rng.uniform(2, 6, (count, 2, 1, 1))
            y, x = np.mgrid[:8, :8]
            image = np.exp(-((y - centre[:, 0]) ** 2 + (x - centre[:, 1]) ** 2) / 3)
            return {"image": image, "voltage": image.reshape(count, 64) @ matrix}

        return parts_of("ring", make, names)

    def batch(self, data, rows, epoch):
        draws = [self.rng(row, epoch) for row in rows]
        noise = np.stack([rng.normal(size=(1, 8, 8)) for rng in draws])
        level = np.stack([rng.uniform() for rng in draws])
        image, voltage = (data.arrays[k][[max(r, 0) for r in rows]] for k in ("image", "voltage"))
        tensors = (torch.tensor(x).float() for x in (voltage, image[:, None], noise, level))
        return RingBatch(*tensors, torch.tensor(rows))

    def model(self):
        return seeded(self.config.seed, lambda: Denoiser(self.config.width))

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
        return Mean("error", lambda x, batch: (x - batch.image).square().mean((1, 2, 3)).tolist())


# Ragged sequences, by CTC


class SentencesSettings(Settings):
    "Settings of Sentences."

    task: Literal["sentences"] = "sentences"
    words: int = Field(3, ge=2, le=64, description="words of the language")


class SentencesBatch(NamedTuple):
    "Padded features and labels, with their lengths."

    features: Tensor  # [B,T,words]
    frames: Tensor  # [B]
    labels: Tensor  # [B,3]
    length: Tensor  # [B]
    row: Tensor


class Reader(nn.Module):
    "A class for every frame; frames after the end are impossible but for the blank."

    def __init__(self, words):
        super().__init__()
        self.blank = 0
        self.near = nn.Conv1d(words, 16, 3, padding=1)
        self.out = nn.Linear(16, words + 1)

    def forward(self, features, frames):
        found = self.near(features.transpose(1, 2)).relu().transpose(1, 2)
        logits = self.out(found).float()
        late = torch.arange(features.shape[1], device=frames.device)[None] >= frames[:, None]
        word = torch.arange(logits.shape[2], device=frames.device) != self.blank
        return logits.log_softmax(-1).masked_fill(late[:, :, None] & word, -torch.inf)


class Sentences(Task):
    "Read words from a stream; the share of wrong sentences is scored."

    better = ("wrong", -1)

    def splits(self, names=("train", "test")):
        words = self.config.words

        def make(rng, count):
            rows = [rng.integers(1, words + 1, rng.integers(1, 4)) for _ in range(count)]
            streams = [np.repeat(row, rng.integers(2, 4)) for row in rows]
            features, labels = np.zeros((count, 9, words)), np.zeros((count, 3), int)
            for i, (row, stream) in enumerate(zip(rows, streams, strict=True)):
                features[i, range(len(stream)), stream - 1] = 1
                labels[i, : len(row)] = row
            frames, length = (np.array([len(x) for x in each]) for each in (streams, rows))
            return {"features": features, "frames": frames, "labels": labels, "length": length}

        held_out = ["val"] if self.config.choose == "val" else []
        return parts_of("words", make, [*names, *held_out])

    def batch(self, data, rows, epoch):
        at = [max(row, 0) for row in rows]
        values = [torch.tensor(data.arrays[k][at]) for k in SentencesBatch._fields[:4]]
        return SentencesBatch(values[0].float(), *values[1:], torch.tensor(rows))

    def model(self):
        return seeded(self.config.seed, lambda: Reader(self.config.words))

    def loss(self, model, batch, phase):
        found = model(batch.features, batch.frames).clamp(min=-1e4).transpose(0, 1)
        sizes = batch.frames, batch.length
        return F.ctc_loss(found, batch.labels, *sizes, blank=model.blank, zero_infinity=True)

    def predict(self, model, batch, phase):
        return (model(batch.features, batch.frames), batch.frames)

    def tally(self):
        return Mean("wrong", wrong_sentences)


def wrong_sentences(found, batch):
    "Whether each sentence was not read."
    for i, best in enumerate(found[0].argmax(-1).tolist()):
        yield collapse(best) != batch.labels[i, : batch.length[i]].tolist()


register()
