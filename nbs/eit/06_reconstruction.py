# %% [markdown]
# # Reconstruction as a task
#
# > Tomography as a task of the training loop: batches, the loss, images with their standard deviation, scores, and files of voltages.
#
# Voltages go in. An image of the tank comes out, with a standard deviation for each pixel. The training loop can train, resume, evaluate and export any such method, if a `Task` defines the batch (`batch`), the error of an image (`loss`), images from voltages (`predict`) and scores (`tally`). This page is the task of tomography. It joins the parts of the earlier pages: [tanks](02_tanks.ipynb), [scores](03_scores.ipynb), [networks](04_networks.ipynb), [diffusion](05_diffusion.ipynb).
#
# Here the weights in the package reconstruct a simulated tank that they were not trained on, with one inclusion that conducts better than water (red) and two that conduct worse (blue). Both large inclusions are at the right place, but the red square is stretched towards the centre. The standard deviation is small in plain water and largest in and around the inclusions.

# %%
import matplotlib.pyplot as plt

from mshnet.eit.eit_config import EitConfig
from mshnet.eit.reconstruction import draw_tank
from mshnet.task import trained_task

task, model = trained_task("", EitConfig())  # the weights in the package
data = task.splits(["test"])["test"]
batch = task.batch(data, [0, 1, 2, 3], None)  # None: not augmented
drawn = task.predict(model.eval(), batch, "full").detach()  # "full": the only phase here
draw_tank("tank 0", drawn[0], batch.image[0, 0], plt.figure(figsize=(8, 2), layout="constrained"));

# %%
#| export
#| default_exp eit.reconstruction
import math
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn import functional as F

from mshnet.core import UserError, as_user_error, counted, resolve
from mshnet.device import open_device
from mshnet.eit.diffusion import STEPS, amounts, mix, published_decay, sample
from mshnet.eit.eit_config import EitConfig
from mshnet.eit.networks import DiT, Guided
from mshnet.eit.scores import calibration, score_images
from mshnet.eit.tank import WAYS, tank_map
from mshnet.eit.tanks import describe_folder, load_tanks, read_measurements, write_tanks
from mshnet.files import find_inputs, write_arrays
from mshnet.task import (
    RowTally,
    Task,
    Values,
    Written,
    even_steps,
    new_png,
    predict_each,
    predictions_folder,
    read_each,
    trained_task,
)
from mshnet.weights import PRETRAINED, read_file, weights_file


# %% [markdown]
# ## Scores
#
# The mean of the sampled images is scored, tank by tank, and the scores are averaged. CC, the correlation of the image with the true one, is the main score. We also count how often the true value lies within one and two standard deviations of the mean. The score line ends with the RMSE of an image of zeros (plain water), which any method must beat. Below are the scores of the first four tanks: of the linear [first guess](04_networks.ipynb#A-first-guess) alone and of the trained network. Training lowers the RMSE from 0.143 to 0.108.

# %%
#| export
class EitScores(Values):
    "Mean scores of all tanks by name."

    line = "cc {cc:.3f}  rmse {rmse:.3f}  (an image of zeros: rmse {empty_rmse:.3f})"


class EitTally(RowTally):
    "Scores of each tank."

    def count(self, drawn: Tensor, batch: "EitBatch") -> Iterable[dict[str, float]]:
        "The scores of each tank's mean image, and the calibration of its standard deviation."
        mean, spread, truth = drawn.mean(1), drawn.std(1, correction=0), batch.image[:, 0]
        found = score_images(mean, truth)
        if drawn.shape[1] > 1:
            found |= calibration(mean, spread, truth)
        found["empty_rmse"] = truth.double().square().mean((1, 2)).sqrt()
        rows = torch.stack([*found.values()], 1).tolist()
        return [dict(zip(found, row, strict=True)) for row in rows]

    def scores(self) -> EitScores:
        "The mean of each score over the tanks for which it is defined."
        columns = {name: [tank[name] for tank in self.values] for name in self.values[0]}
        there = {k: [x for x in v if not math.isnan(x)] for k, v in columns.items()}
        return EitScores({k: sum(v) / len(v) if v else math.nan for k, v in there.items()})


# %%
guess = F.linear(batch.condition.flatten(1), model.guesses[0]).view_as(batch.image)
for name, images in {"first guess": guess, "trained": drawn}.items():
    tally = EitTally()
    tally.add(images, batch)
    scores: EitScores = tally.scores()
    print(f"{name}: {scores}")


# %% [markdown]
# ## The machinery: the task
#
# The host samples all random numbers, for each tank separately: in training the orientation of the tank, the noise and its amount; in an evaluation the noise of all steps. So a batch contains everything that its images depend on. The image of a tank is the same alone, in a batch of sixteen, and on eight devices. Real tanks are used only for scores.

# %%
#| export
class EitBatch(NamedTuple):
    "Voltages, the true image, and the noise to begin with."

    condition: Tensor  # [B,1,16,16] map of the normalised voltages
    image: Tensor  # [B,1,S,S] change of the conductivity, -1 to 1
    noise: Tensor  # [B,N,S,S] standard normal; N: 1 in training, else samples * sampling_steps
    amounts: Tensor  # [B,2] of image and noise in the mixture of training
    level: Tensor  # [B] its time, 0 to 999
    row: Tensor  # [B] index of the sample; -1: padding


class Eit(Task):
    "Electrical impedance tomography."

    better = ("cc", 1)
    train: Any = None  # the training data, to which the guesses are fitted

    def splits(self, names: Sequence[str] = ("train", "test")) -> dict[str, Any]:
        "Simulated tanks, or those of a folder; val where the epoch is chosen on it."
        with torch.device("meta"):
            self._network()  # impossible sizes are reported before any tank is simulated
        held_out = ["val"] if self.config.choose == "val" and "train" in names else []
        found = load_tanks(self.config, [*names, *held_out])
        self.train = found.get("train")
        return found

    def identity(self, parts: dict[str, Any]) -> dict[str, str]:
        "Also the statistics of the training files, by which predictions normalise other files."
        return super().identity(parts) | {"statistics": getattr(parts["train"], "recorded", "")}

    def batch(self, data: Any, rows: list[int], epoch: int | None) -> EitBatch:
        "The batch of these tanks; in training each is turned, rescaled and mixed with noise."
        c, at = self.config, [max(row, 0) for row in rows]
        if epoch is None:
            pairs, level = [data.pair(row) for row in at], np.zeros(len(rows), int)
            numbers = (np.random.default_rng([c.seed, row, 0xE17]) for row in at)
            shape = c.samples * c.sampling_steps, c.size, c.size
            noise = [x.standard_normal(shape, dtype=np.float32) for x in numbers]
        else:
            draws, turns = [self.rng(row, epoch) for row in at], c.augment == "turns"
            ways = [int(rng.integers(WAYS)) if turns else 0 for rng in draws]
            level = np.array([rng.integers(STEPS) for rng in draws])
            scale = [float(np.exp(c.jitter * rng.standard_normal())) for rng in draws]
            turned = [data.pair(row, way) for row, way in zip(at, ways, strict=True)]
            pairs = [(v * by, image) for (v, image), by in zip(turned, scale, strict=True)]
            noise = [rng.standard_normal((1, c.size, c.size), dtype=np.float32) for rng in draws]
        voltages, images = (torch.stack(x) for x in zip(*pairs, strict=True))
        return EitBatch(
            tank_map(data.stats.normalise(voltages))[:, None],
            images[:, None],
            torch.from_numpy(np.stack(noise)),
            torch.from_numpy(amounts(level)),
            torch.from_numpy(level).float(),
            torch.tensor(rows),
        )

    def model(self) -> nn.Module:
        "The network of the settings, with random weights by the seed, and the guesses."
        c = self.config
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(c.seed)
            network = self._network()
        if not c.hints:
            return network
        empty = torch.zeros(c.hints, c.size**2, 256)  # until the matrices are loaded
        return Guided(network, empty if self.train is None else _fit_guesses(self.train, c))

    def _network(self) -> nn.Module:
        "The network alone; UserError for sizes that do not fit each other."
        c = self.config
        with as_user_error():
            return DiT(c.size, c.patch, c.width, c.heads, c.scales, 1 + c.hints)

    def loss(self, model: Any, batch: EitBatch, phase: str) -> Tensor:
        "Mean error of the predicted images."
        noisy = mix(batch.image, batch.noise, batch.amounts)
        found = model(noisy, batch.level, batch.condition).float()
        error = F.l1_loss if self.config.loss == "l1" else F.mse_loss
        return error(found, batch.image)

    def predict(self, model: Any, batch: EitBatch, phase: str) -> Tensor:  # [B,samples,S,S]
        "Images of each tank, sampled from its noise."
        c = self.config
        if (own := getattr(getattr(model, "network", model), "size", c.size)) != c.size:
            raise UserError(f"size={c.size}: these weights draw {own}x{own}; omit size and preset")
        noise = batch.noise.unflatten(1, (c.samples, c.sampling_steps)).flatten(0, 1)
        condition = batch.condition.repeat_interleave(c.samples, 0)
        drawn = sample(lambda x, t: model(x, t, condition), list(noise[:, :, None].unbind(1)))
        return drawn.view(-1, c.samples, c.size, c.size)

    def decay(self, step: int) -> float:
        "The decay of the averaged weights, by the engine's law or the published one."
        paper = self.config.ema_law == "paper"
        return published_decay(max(step - 1, 0)) if paper else super().decay(step)

    def tally(self) -> "EitTally":
        return EitTally()

    def describe_data(self) -> tuple[str, bool]:
        "The splits of a folder, compared with physics; of a simulation, their sizes."
        if not self.config.dataset_dir:
            return super().describe_data()
        return describe_folder(Path(self.config.dataset_dir).expanduser()), True

    def write_data(self, folder: Path) -> str:
        "Write simulated tanks: as many for training as `tanks`, 256 for validation and for test."
        c, counts = self.config, {"train": self.config.tanks, "val": 256, "test": 256}
        write_tanks(folder, counts, c.seed, noise=c.noise, gains=c.gains)
        return f"{folder}: {sum(counts.values())} files written"

    def predict_files(self, weights: str, inputs: list[str], **how: Any) -> Written:
        return _predict_tanks(weights, inputs, self.config, **how)

    def report(self, folder: Path) -> None:
        "Draw six tanks of the test split."
        task, model = trained_task(folder, self.config)
        data = load_tanks(self.config, ["test"])["test"]
        rows = np.unique(np.linspace(0, len(data) - 1, 6).astype(int)).tolist()
        batch = task.batch(data, rows, None)
        with torch.no_grad():
            drawn = task.predict(model.eval(), batch, "full")
        sheet = Figure(figsize=(8, 2.3 * len(rows)), layout="constrained")
        parts = sheet.subfigures(len(rows), 1, squeeze=False)[:, 0]
        for row, images, truth, part in zip(rows, drawn, batch.image[:, 0], parts, strict=True):
            draw_tank(data.names[row], images, truth, part)
        resolve("mshnet.show:save_picture")(sheet, folder / "figures" / "gallery.png")

    def protocol(self, data: Any, scores: Any) -> dict[str, Any]:
        c = self.config
        how = {"size": c.size, "sampled_images": c.samples, "sampling_steps": c.sampling_steps}
        return super().protocol(data, scores) | how


# %% [markdown]
# The linear guesses are ridge regressions from voltages to images, fitted to the training data (up to 8,192 tanks, each in two random orientations). A weak penalty gives sharp and noisy images, a strong one smooth ones. The network adds its output to the first, of medium strength.

# %%
#| export
def _fit_guesses(data: Any, config: EitConfig) -> Tensor:  # [hints, size * size, 256]
    "Matrices from the map of the voltages to images, by ridge regression."
    some = torch.tensor(even_steps(len(data), 8192))
    count, turns = len(some), 1 + (config.augment == "turns")
    square, product = torch.zeros(256, 256).double(), torch.zeros(256, config.size**2).double()
    for turn in range(turns):
        ways = np.random.default_rng([config.seed, turn]).integers(WAYS, size=count) * (turns - 1)
        for part in torch.stack([some, torch.from_numpy(ways)], 1).split(512):
            pairs = [data.pair(i, way) for i, way in part.tolist()]
            voltages, images = (torch.stack(x) for x in zip(*pairs, strict=True))
            x = tank_map(data.stats.normalise(voltages)).flatten(1).double()
            square, product = square + x.T @ x, product + x.T @ images.flatten(1).double()
    eye = turns * count * torch.eye(256).double()
    penalties = (0.01, 1.0, 0.0003)[: config.hints]  # of a normalised voltage's variance
    made = [torch.linalg.solve(square + penalty * eye, product) for penalty in penalties]
    return torch.stack(made).mT.float().contiguous()


# %%
single: EitBatch = Eit(task.config).batch(data, [2], None)
print("the noise of tank 2 is the same alone:", torch.equal(single.noise[0], batch.noise[2]))


# %% [markdown]
# ## Files of voltages
#
# `mshnet predict --task eit` reads measurements and writes their reconstructions: a figure of each, and one npz with all means and standard deviations. The noise of a measurement depends only on the seed and on its row in the file. A figure shows the mean of the samples, one sample, their standard deviation, and the ground truth where there is one.

# %%
#| export
def _predict_tanks(
    weights: str | Path,  # a file, a run, or empty: the pretrained ones
    inputs: Sequence[str | Path],  # npz, csv or txt files, folders of them, globs
    usual: EitConfig,  # for weights that record no settings
    output_dir: str | Path = "",  # empty: predictions/ and the name of the weights
    device: str = "auto",
    precision: str = "auto",
    batch_size: int = 32,  # no result depends on it
    **options: Any,  # samples, sampling_steps; those that are missing are as in the scores
) -> Written:
    "Reconstruct measurements, and write figures and tanks.npz (names, mean, spread)."
    files = find_inputs(inputs, (".npz", ".csv", ".txt"))
    task, model = trained_task(weights, usual, **options)
    record = read_file(weights_file(weights or PRETRAINED, "eit")).get("data", {})
    known = record.get("statistics") or "published"
    read = list(read_each(files, lambda file: read_measurements(file, known)))
    on, found = open_device(device, precision), dict[str, Tensor]()
    model = on.to_device(model)
    with predictions_folder(weights, output_dir, "eit") as folder:
        try:
            for part in read:
                if part.note:
                    warnings.warn(part.note, stacklevel=2)
                how = part.names, lambda _, part=part: part, on, batch_size, len(part)
                for short, images in predict_each(task, model, *how):
                    name, file = new_png(folder, short)
                    resolve("mshnet.show:save_picture")(draw_tank(name, images), file)
                    found[name] = images
        finally:
            if found:
                drawn = torch.stack(list(found.values()))
                arrays = {"mean": drawn.mean(1), "spread": drawn.std(1, correction=0)}
                write_arrays(folder / "tanks.npz", names=np.array(list(found)), **arrays)
    line = f"{counted(len(found), 'tank')} of {counted(len(read), 'file')}"
    return Written(folder, line, len(files) - len(read))


def draw_tank(title: str, drawn: Tensor, truth: Tensor | None = None, on: Any = None) -> Any:
    "Images [samples,S,S]: truth, mean, one sample and deviation; a figure, or `on` a part of one."
    shown = {} if truth is None else {"ground truth": truth}
    shown |= {"mean": drawn.mean(0), "one sample": drawn[0]}
    shown |= {"standard deviation": drawn.std(0, correction=0)}
    figure = on or Figure(figsize=(1.9 * len(shown), 2.3), layout="constrained")
    for axis, (name, image) in zip(figure.subplots(1, len(shown)), shown.items(), strict=True):
        least, most, colours = (0, 0.2, "viridis") if "deviation" in name else (-1, 1, "RdBu_r")
        made = axis.imshow(image.numpy(), cmap=colours, vmin=least, vmax=most)
        axis.set_title(name, size=9)
        axis.axis("off")
    figure.colorbar(made, ax=axis)
    figure.suptitle(title.encode(errors="replace").decode(), size=9, parse_math=False)
    return figure

# %% [markdown]
# ## Questions
#
# 1. In the figure of a prediction the standard deviation is zero everywhere. Which two causes are possible?
#    <details><summary>Answer</summary>Only one image was sampled (<code>--samples 1</code>). Or the network adds nothing to its first guess, as before training: then all samples are equal.</details>
# 2. `jitter` multiplies the voltages of a training tank by a random factor, and leaves its image as it is. What does the network learn from this?
#    <details><summary>Answer</summary>That the strength of the voltages alone says little about the image, because the same image occurs with weaker and with stronger voltages. So it relies on their pattern, which an instrument with another gain also shows.</details>
