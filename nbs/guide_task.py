# %% [markdown]
# # Write your own task
#
# > Another network, another loss, another problem: one small class, and the loop, the devices and the run's folder stay as they are.

# %% [markdown]
# All that training knows of a problem is a `Task` ([08_task](08_task.ipynb)). Three questions have no usual answer: the model, the loss, the prediction that is scored. Everything else has one, which a task may replace:
#
# | question | usual answer |
# |---|---|
# | `model()` | none: write it |
# | `loss(model, batch, phase)` | none: write it |
# | `logits(model, batch, phase)` | none: write it |
# | `splits()`, `plan()`, `batch()` | images with masks, from the settings |
# | `phase(epoch)` | one phase for the whole training |
# | `rate(step, per_epoch)`, `optimizer(model)` | warm-up and `schedule` of `lr`; the `optimizer` of the settings |
# | `tally()`, `better` | IoU, nIoU, F1, Pd, Fa; the epoch with the best IoU is kept |
#
# ## An example
#
# A network of three layers with the plain loss of every pixel by itself: what MSHNet should beat. A batch has `image` (bytes), `mask` (0 or 1) and `real`, all on the device; `normalise` makes numbers of the bytes.

# %%
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from mshnet.task import Task, normalise


class Plain(Task):
    "Three convolutions, every pixel by itself."

    def model(self):
        "The network, with the weights that the seed gives."
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.config.seed)
            return nn.Sequential(
                *(nn.Conv2d(3, 16, 5, padding=2), nn.ReLU()),
                *(nn.Conv2d(16, 16, 5, padding=2), nn.ReLU()),
                nn.Conv2d(16, 1, 1),
            )

    def logits(self, model, batch, phase):
        "One number for each pixel; above 0 it belongs to a target."
        return model(normalise(batch.image)).float()

    def loss(self, model, batch, phase):
        "Pixels of targets are rare, so each weighs as much as a hundred others."
        weight = torch.full((), 100.0, device=batch.image.device)
        logits = self.logits(model, batch, phase)
        return binary_cross_entropy_with_logits(logits, batch.mask.float(), pos_weight=weight)


# %% [markdown]
# It is trained as MSHNet is. The run has the same folder, resumes after an interruption, and its scores have the same protocol. Schedule, weight averaging and clipping come from the settings; here they are switched off, because four epochs are too few for them.

# %%
import tempfile

from mshnet.core import configure
from mshnet.train import train

settings = {"scenes": 24, "base_size": 64, "crop_size": 64, "epochs": 4, "lr": 0.01, "ema": 0.0}
with tempfile.TemporaryDirectory() as folder:
    told = {**settings, "choose": "last", "device": "cpu", "output_dir": f"{folder}/run"}
    config = configure(told)
    run = train(config, Plain(config))
    history = run.history
print("\n".join(f"epoch {e['epoch']}: loss {e['loss']:.3f}, {e['line']}" for e in history))

# %% [markdown]
# Four epochs make no detector. But the loss falls, and nothing of the loop had to be written.
#
# A question that is left open is answered with its name:

# %%
try:
    Task(config).loss(None, None, "full")
except LookupError as error:
    print(error)

# %% [markdown]
# ## What to keep in mind
#
# - **The same operations in every step.** On a TPU and under `torch.compile` a step is a program: no Python number that changes, no shape that changes, no reading of a tensor within it. Make constants with `torch.full` on the batch's device, as above.
# - **The seed.** `model()` gives the same weights for the same seed, or a resumed run cannot be told from another.
# - **`better`.** For a score where less is better write `better = ("error", -1)`, and a `tally()` whose scores have it.
# - **Other data.** Override `splits`, `plan` and `batch`; a batch is a `NamedTuple` of tensors. Whoever overrides `batch` gets it from the host (`cache` has no effect then).
# - **Pictures.** `gallery` and the other pictures of [show](11_show.ipynb) draw MSHNet's runs. For a task of your own draw your own.
# - **Several GPUs.** Start your script by `torchrun`: `--num-devices` starts MSHNet's own command.
#
# `mshnet train` is for MSHNet. A task of your own is trained by a script of a few lines:
#
# ```python
# from mshnet.core import configure
# from mshnet.train import train
#
# config = configure({"dataset_dir": "data/NUAA-SIRST", "epochs": 50})
# train(config, Plain(config))
# ```

# %%
#| hide
assert history[-1]["loss"] < history[0]["loss"] and len(history) == 4
