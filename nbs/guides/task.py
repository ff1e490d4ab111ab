# %% [markdown]
# # Write your own task
#
# > For a PyTorch programmer with a network, a loss or a problem of their own. At the end this library trains, resumes and evaluates it. You write one small class for a network or a loss, five for a different problem.

# %% [markdown]
# You can replace the network, the loss, or the whole problem. We begin with the smallest change.
#
# ## Your own network
#
# The library calls a detector's network as `model(image, deep=True)`. The network returns `(aux, logits)`. `logits` is evaluated. `aux` is a list of extra outputs for deep supervision, at strides 1, 2, 4, ...; it may be empty. `deep` is False only in the warm-up of a run (`--warm-epoch`), which trains one head; a network without a warm-up ignores it, as here. The sides of an image may be any multiples of 16: if your network needs multiples of 32, pad inside of `forward`. Register your network under a name, and choose it with the setting `network`:

# %%
import tempfile

from torch import nn

from mshnet.detection import NETWORKS, Detection
from mshnet.recipe import Config
from mshnet.train import train


class Plain(nn.Module):
    "Two convolutions and two heads; MSHNet should beat it."

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(3, 16, 5, padding=2), nn.ReLU()),
            *(nn.Conv2d(16, 16, 5, padding=2), nn.ReLU()),
        )
        self.single, self.fused = nn.Conv2d(16, 1, 1), nn.Conv2d(16, 1, 1)

    def forward(self, image, deep=True):  # [B,3,H,W]
        "Outputs that are supervised, and the logits that are scored: [B,1,H,W]."
        found = self.layers(image)
        return [self.single(found)], self.fused(found)


NETWORKS["plain"] = Plain
folder = tempfile.TemporaryDirectory()
settings = {"scenes": 24, "base_size": 64, "crop_size": 64, "epochs": 4, "lr": 0.01, "ema": 0.0}
settings |= {"device": "cpu", "network": "plain"}
run = train(Config(**settings, output_dir=f"{folder.name}/plain"))
print("\n".join(f"epoch {e['epoch']}: loss {e['loss']:.3f}, {e['line']}" for e in run.history))

# %% [markdown]
# After four epochs this network still predicts nothing (IoU 0.00), but its loss falls. The run has a folder and a protocol, like every run. In your own program, register the network before you call `train`, `evaluate`, `predict` or `export`.
#
# ## Your own loss
#
# Subclass `Detection` and override `loss`.

# %%
from torch.nn import functional as F

from mshnet.detection import normalise


class Weighted(Detection):
    "Cross-entropy in which a target pixel counts a hundred times."

    def loss(self, model, batch, phase):
        "The mean over pixels."
        _, logits = model(normalise(batch.image))
        mask = batch.mask.float()
        each = F.binary_cross_entropy_with_logits(logits, mask, reduction="none")
        return (each * (1 + 99 * mask)).mean()


config = Config(**settings, output_dir=f"{folder.name}/weighted")
run = train(config, Weighted(config))
[round(entry["loss"], 3) for entry in run.history]

# %% [markdown]
# The loss falls, but the weight of 100 is too large. The log shows it: Fa is above 100,000, so more than a tenth of the pixels are false alarms. The score decides, not the loss.
#
# A run records the name of its class. Another class never continues it, so do not rename a class whose run you want to resume.
#
# ## A different problem
#
# For a different problem, write a subclass of [`Task`](../36_task.ipynb). The training loop calls only its methods. Six of them have no default:
#
# | method | returns |
# |---|---|
# | `splits(names)` | a dictionary of splits; each has `len`, `names` (of its samples), `name`, `source` and `hash` |
# | `batch(data, rows, epoch)` | a `NamedTuple` of tensors for the samples `rows`; -1 means padding, and `epoch` is None during evaluation |
# | `model()` | the network with the weights of the seed |
# | `loss(model, batch, phase)` | the mean loss, one number; `phase` is the name of the training phase, such as a warm-up |
# | `predict(model, batch, phase)` | what is evaluated: a tensor, or tensors in a tuple or dictionary |
# | `tally()` | an object that counts: `add(prediction, batch)`, `gather(ranks)` (joins the counts of all processes) and `scores()`; with `RowTally` you write only `count`, a value for each sample, and `scores` |
#
# Also set `better`: the name of the score that chooses an epoch, and 1 if more is better, else -1. The other methods have a default that you may override, such as `phase`, `rate`, `optimizer`, `protocol`, `evaluate`, `report`, and `predict_files(weights, inputs, **how)`, which `mshnet predict` calls. Your own settings are fields of a subclass of `Settings`. They become flags of the command line and part of the run's name, and a resumed run checks them.
#
# In this example the network recognises which of a few tones is in a noisy signal:

# %%
from typing import Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field

from mshnet.core import TASKS, Settings
from mshnet.task import RowTally, Task, Values, digits


class ToneSettings(Settings):
    "Settings of Tones."

    task: Literal["tones"] = "tones"
    tones: int = Field(4, ge=2, le=16, description="number of different tones")


class ToneBatch(NamedTuple):
    "Signals and their tones."

    signal: torch.Tensor  # [B,64]
    tone: torch.Tensor  # [B]
    row: torch.Tensor  # [B] index of the signal; -1 for padding


class Sounds(NamedTuple):
    "A split of the data."

    name: str
    source: str
    tone: np.ndarray

    @property
    def names(self):
        "A name for each signal."
        return [f"{self.name}_{i}" for i in range(len(self.tone))]

    @property
    def hash(self):
        "A hash of the names and the tones."
        return digits([*self.names, str(self.tone.tolist())])

    def __len__(self):
        "Number of signals."
        return len(self.tone)


class Accuracy(RowTally):
    "Counts correct answers."

    def count(self, logits, batch):
        "Whether each answer of a batch is correct."
        return (logits.argmax(1) == batch.tone).tolist()

    def scores(self):
        "The fraction of correct answers."
        return Values(accuracy=float(np.mean(self.values)))


class Tones(Task):
    "Name the tone in a noisy signal."

    better = ("accuracy", 1)

    def splits(self, names=("train", "test")):
        "Signals are made of their tone, so only the tones are kept."
        sizes = {"train": 96, "test": 32}
        return {n: Sounds(n, "tones", np.arange(sizes[n]) % self.config.tones) for n in names}

    def batch(self, data, rows, epoch):
        "New noise in every epoch, the same noise in every evaluation."
        tone = data.tone[[max(row, 0) for row in rows]]
        clean = np.sin(np.outer(tone + 1, np.arange(64) / 4))
        noise = np.stack([self.rng(row, epoch).normal(size=64) for row in rows])
        signal = torch.tensor(clean + noise).float()
        return ToneBatch(signal, torch.tensor(tone), torch.tensor(rows))

    def model(self):
        "Two layers."
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.config.seed)
            return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, self.config.tones))

    def loss(self, model, batch, phase):
        "Cross-entropy."
        return F.cross_entropy(model(batch.signal).float(), batch.tone)

    def predict(self, model, batch, phase):
        "One logit for each tone."
        return model(batch.signal).float()

    def tally(self):
        "How many are right."
        return Accuracy()


TASKS["tones"] = ("__main__:ToneSettings", "__main__:Tones")
config = ToneSettings(epochs=10, device="cpu", output_dir=f"{folder.name}/tones", log_every=1000)
print(train(config))

# %% [markdown]
# If your task is in a module, write the module's name instead of `__main__`. `evaluate` evaluates the run again, `compare` compares such runs, and `export` writes their weights as safetensors. The shell command knows only built-in tasks. To use yours, register it in Python and call `mshnet.cli.main([...])`.

# %% [markdown]
# ## What to keep in mind
#
# - **The same operations in every step.** On a TPU a step is compiled. If a shape or a Python number changes between steps, it is compiled again. Avoid `.item()`: the host then waits for the device. Make constants with `torch.full` on the batch's device.
# - **The seed.** `model()` must give the same weights for the same seed. Use `self.rng(row, epoch)` for the random numbers of a sample, on the CPU.
# - **The batch.** The first dimension of all its tensors is the batch dimension, which is split across devices and micro-batches. So a loss must be a mean over samples: Dice over a whole batch changes with their number. Pad sequences to one length, or to a few.
# - **Special values.** A prediction may contain -inf (a log-probability). NaN and +inf end the run, because they mean that the weights are unusable.
# - **Figures.** Define `report(folder)` to save your own figures in the run folder. `mshnet train` and the run notebooks call it; the notebooks show `figures/gallery.png`. In a script, call `task.report(run.folder)` after `train`.
# - **Several GPUs.** Start your script with `torchrun --nproc-per-node=2 script.py`; `num_devices` works only for the library's own tasks. Every step must use the same weights (no layers that are skipped at random), and statistics other than batch norm's must not differ between processes.
# - **A run notebook.** Its cell "Check the settings" takes every number, text, list and dictionary for a setting, also an imported `NETWORKS`. So write above it `import mshnet.detection`, `mshnet.detection.NETWORKS["plain"] = Plain` and `network = "plain"`.

# %%
#| hide
assert run.scores["line"]
assert run.history[-1]["loss"] < run.history[0]["loss"]
folder.cleanup()
