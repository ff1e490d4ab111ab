# %% [markdown]
# # reconstruction
#
# > Tomography as a task of the engine: batches, the loss, pictures with their spread, scores beside the yardsticks, and files of voltages.

# %%
#| default_exp eit.reconstruction

# %%
#| hide
import tempfile

from fastcore.test import test_close, test_eq

from mshnet.core import configure

# %%
#| export
import itertools
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn import functional as F

from mshnet.core import as_user_error, counted, resolve
from mshnet.device import Device, OneProcess, best_device, open_device
from mshnet.eit.diffusion import STEPS, amounts, draw_noise, mix, published_decay, sample
from mshnet.eit.eit_config import EitConfig
from mshnet.eit.networks import DiT, Guided, UNet
from mshnet.eit.tank import WAYS, tank_map
from mshnet.eit.tanks import Stats, describe_folder, load_tanks, read_measurements
from mshnet.eit.yardsticks import calibration, score_images, write_tanks, yardsticks
from mshnet.files import find_inputs, make_folder, write_arrays, write_table
from mshnet.task import (
    Evaluation,
    Origin,
    Task,
    Values,
    predictions,
    protocol,
    score_split,
    trained_task,
)


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


def _batch(
    data: Any, pairs: Sequence[tuple[Tensor, Tensor]], noise: list[np.ndarray], level: np.ndarray,
    rows: list[int],
) -> EitBatch:  # fmt: skip
    "Samples and what was drawn for them, as tensors."
    voltages, images = (torch.stack(x) for x in zip(*pairs, strict=True))
    return EitBatch(
        tank_map(data.stats.normalise(voltages))[:, None],
        images[:, None],
        torch.from_numpy(np.stack(noise)),
        torch.from_numpy(amounts(level)),
        torch.from_numpy(level).float(),
        torch.tensor(rows),
    )


def _scoring_batch(c: EitConfig, data: Any, rows: list[int], at: list[int]) -> EitBatch:
    "The tanks of these rows, with the noise of all steps."
    count = c.samples * c.sampling_steps if c.method == "diffusion" else 1
    noise = [draw_noise(c.seed, row, count, c.size) for row in at]
    return _batch(data, [data.pair(row) for row in at], noise, np.zeros(len(rows), int), rows)


def _training_batch(
    c: EitConfig, data: Any, rows: list[int], draws: list[np.random.Generator]
) -> EitBatch:
    "The tanks of these rows, each turned, stronger or weaker, and with its amount of noise."
    turns = c.augment == "turns"
    ways = [int(rng.integers(WAYS)) if turns else 0 for rng in draws]
    pairs = [data.pair(row, way) for row, way in zip(rows, ways, strict=True)]
    level = np.array([rng.integers(STEPS) for rng in draws])
    scale = [float(np.exp(c.jitter * rng.standard_normal())) for rng in draws]
    pairs = [(v * by, image) for (v, image), by in zip(pairs, scale, strict=True)]
    noise = [rng.standard_normal((1, c.size, c.size), dtype=np.float32) for rng in draws]
    return _batch(data, pairs, noise, level, rows)


# %%
#| export
class Eit(Task):
    "Electrical impedance tomography."

    better = ("cc", 1)

    def __init__(self, config: EitConfig) -> None:
        super().__init__(config)
        self.train: Any = None  # the training data, to which the guesses are fitted

    def splits(self, names: Sequence[str] = ("train", "test")) -> dict[str, Any]:
        "Simulated tanks, or those of a folder; val where the epoch is chosen on it."
        with torch.device("meta"):
            self._network()  # impossible sizes are reported before any tank is simulated
        held_out = ["val"] if self.config.choose == "val" and "train" in names else []
        found = load_tanks(self.config, [*names, *held_out])
        self.train = found.get("train")
        return found

    def batch(self, data: Any, rows: list[int], epoch: int | None) -> EitBatch:
        "The batch of these tanks: turned and with a random amount of noise in training."
        at = [max(row, 0) for row in rows]
        if epoch is None:
            return _scoring_batch(self.config, data, rows, at)
        return _training_batch(self.config, data, rows, [self.rng(row, epoch) for row in at])

    def model(self) -> nn.Module:
        "The network of the settings, with weights drawn from the seed; beside it the guesses."
        c = self.config
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(c.seed)
            network = self._network()
        if not c.hints:
            return network
        if self.train is None:  # the matrices will be loaded
            return Guided(network, torch.zeros(c.hints, c.size**2, 256))
        return Guided(network, fit_guesses(self.train, c))

    def _network(self) -> nn.Module:
        "The network alone; UserError for sizes that do not fit each other."
        c = self.config
        with as_user_error():
            if c.network == "unet":
                return UNet(c.size, c.width, 1 + c.hints)
            sizes = (c.size, c.patch, c.width, c.heads, c.scales, 1 + c.hints)
            return DiT(*sizes, remember=c.size // c.patch < 64)

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

    def memory(self, each: int, precision: str) -> float:  # type: ignore[override]
        "The least memory of a training step, in GB."
        kind = best_device() if self.config.device == "auto" else self.config.device
        return training_memory(self.config, each, precision, fused=kind != "xla")

    def describe_data(self) -> tuple[str, bool]:
        "The parts of a folder, compared with physics; of a simulation, their sizes."
        if not self.config.dataset_dir:
            return super().describe_data()
        return describe_folder(Path(self.config.dataset_dir).expanduser()), True

    def write_data(self, folder: Path) -> str:
        "Write simulated tanks: as many for training as `tanks`, 256 for validation and for test."
        c, counts = self.config, {"train": self.config.tanks, "val": 256, "test": 256}
        written = write_tanks(folder, counts, c.seed, noise=c.noise, gains=c.gains)
        return f"{folder}: {written} files written, {sum(counts.values()) - written} were there"

    def predict_files(self, weights: str, inputs: list[str], **how: Any) -> "EitSummary":
        "Reconstruct measurements in files; see `predict_tanks`."
        return predict_tanks(weights, inputs, **how)

    def report(self, folder: Path) -> None:
        "Draw some tanks of the test part into a run's folder."
        draw_tanks(folder, folder / "figures", self.config)

    def evaluate(
        self, model: nn.Module, data: Any, device: Device, phase: str, origin: Origin
    ) -> Evaluation:
        "The final scores, beside those of the classical methods."
        scores = score_split(self, model, data, device, phase)
        scores |= device.ranks.rank_zero(lambda: _classical_scores(data, self.config.size))
        whole = protocol(self, data, scores, device, origin)
        return Evaluation(scores, whole, self.config.model_dump())

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
# A tiny network on sixteen tanks. Its first guess is the ridge regression, and a fresh network adds nothing to it, so all samples of a tank are alike and the scores are those of ridge regression. (The tanks are as few as the pixels are coarse; a real run has 2,048.)

# %%
few = {"tanks": 16, "size": 16, "patch": 2, "width": 16, "batch_size": 8, "samples": 3}
config = configure({"task": "eit", "device": "cpu", **few})
task, device = Eit(config), open_device("cpu", "fp32")
parts = task.splits()
model, batch = task.model(), task.batch(parts["test"], [0, 1, 2, 3, -1], None)
assert isinstance(batch, EitBatch)
drawn = task.predict(model, batch, "full").detach()
test_eq(drawn.shape, (5, 3, 16, 16))
test_close(drawn[:, 0], drawn[:, 1], 1e-5)
loss = task.loss(model, task.batch(parts["train"], [0, 1], 0), "full")
test_eq(fit_guesses(parts["train"], config).shape, (2, 256, 256))
loss


# %% [markdown]
# ## Scores
#
# The mean of the drawn pictures is scored, tank by tank, and the scores are averaged. CC, the correlation of the picture with the truth, comes first. The spread is judged too: how often the truth lies within it. The final scores hold those of the classical methods for the same tanks, because a number without them says nothing. A real tank is never used for anything else than its score.

# %%
#| export
class EitScores(Values):
    "Mean scores of all tanks by name, and those of classical methods as `ridge_cc` and so on."

    def __str__(self) -> str:
        "The score line: the first two, and the correlation that other methods reach."
        own = str(Values({name: self[name] for name in ("cc", "rmse")}))
        others = [f"{m} {self[f'{m}_cc']:.3f}" for m in _METHODS if f"{m}_cc" in self]
        return f"{own}  ({', '.join(others)})" if others else own


class EitTally:
    "Scores of each tank, by its row."

    def __init__(self) -> None:
        self.tanks: dict[int, dict[str, float]] = {}

    def add(self, drawn: Tensor, batch: EitBatch) -> None:
        "Count a batch, without its filler."
        mean, spread, truth = drawn.mean(1), drawn.std(1, correction=0), batch.image[:, 0]
        found = score_images(mean, truth)
        for i, row in enumerate(batch.row.tolist()):
            if row < 0:
                continue
            self.tanks[row] = {name: float(values[i]) for name, values in found.items()}
            if drawn.shape[1] > 1:
                one = slice(i, i + 1)
                self.tanks[row] |= calibration(mean[one], spread[one], truth[one])

    def gather(self, ranks: OneProcess) -> None:
        "Join the tanks of all processes."
        joined = {row: each for part in ranks.all_gather(self.tanks) for row, each in part.items()}
        self.tanks = dict(sorted(joined.items()))

    def scores(self) -> EitScores:
        "The mean of each score over the tanks for which it is defined."
        names = next(iter(self.tanks.values()))
        return EitScores(
            {name: _mean([tank[name] for tank in self.tanks.values()]) for name in names}
        )


def _mean(values: Sequence[float]) -> float:
    "The mean without NaN; NaN of nothing."
    there = [value for value in values if not math.isnan(value)]
    return sum(there) / len(there) if there else math.nan


_METHODS = ("ridge", "tikhonov", "gauss_newton")
_MOST = 100  # tanks for which classical methods are computed; Gauss-Newton takes its time


def _classical_scores(data: Any, size: int) -> dict[str, float]:
    "CC and RMSE of the classical methods on these tanks; RMSE of the empty picture."
    if len(data) > _MOST:
        return {}
    truth = torch.stack([data.pair(i)[1] for i in range(len(data))])
    made = yardsticks(data.voltages, data.stats, size)
    table = {method: score_images(made[method], truth) for method in (*_METHODS, "empty")}
    found = {
        f"{method}_{name}": _mean(scores[name].tolist())
        for method, scores in table.items()
        for name in ("cc", "rmse")
    }
    found.pop("empty_cc")
    return found


# %%
tally = EitTally()
tally.add(drawn, batch)
test_eq(list(tally.tanks), [0, 1, 2, 3])  # without the filler
assert isinstance(tally.scores(), EitScores)
evaluation = task.evaluate(model, parts["test"], device, "full", Origin("untrained"))
print(evaluation.scores)


# %% [markdown]
# ## Files of voltages
#
# `mshnet predict --task eit` reads measurements, without pictures, and writes what it reconstructs: a picture of each (mean and spread), one table, and one npz with all arrays. All files are read before the first is predicted, so a file that is wrong stops the command before it has written anything.

# %%
#| export
@dataclass(frozen=True)
class _Alone:
    "Measurements of one file as a part of a data set, with empty pictures."

    voltages: Tensor  # [N,208]
    names: list[str]
    size: int
    stats: Stats
    name: str = "predict"

    def __len__(self) -> int:
        return len(self.names)

    def pair(self, index: int) -> tuple[Tensor, Tensor]:
        "A measurement and an empty picture."
        return self.voltages[index], torch.zeros(self.size, self.size)


_SUFFIXES = (".npz", ".csv", ".txt")


@dataclass(frozen=True)
class EitSummary:
    "What a prediction wrote."

    folder: Path
    files: int
    tanks: int
    status = 0

    def __str__(self) -> str:
        "One line."
        return f"{counted(self.tanks, 'tank')} of {counted(self.files, 'file')}"


def predict_tanks(
    weights: str | Path,  # a file, a run, or empty: the pretrained ones
    inputs: Sequence[str | Path],  # npz, csv or txt files, folders of them, globs
    output_dir: str | Path = "",  # empty: predictions/ and the name of the weights
    device: str = "auto",
    precision: str = "auto",
    batch_size: int = 32,  # no result depends on it
    samples: int = 0,  # pictures drawn of a measurement; 0: as the weights were scored
    sampling_steps: int = 0,  # from noise to a picture; 0: as the weights were scored
) -> EitSummary:
    "Reconstruct measurements, and write pictures, tanks.csv and tanks.npz."
    files = find_inputs(inputs, _SUFFIXES)
    read = [read_measurements(file) for file in files]
    drawn_as = {"samples": samples, "sampling_steps": sampling_steps}
    changed = {name: value for name, value in drawn_as.items() if value}
    task, model = trained_task(weights, EitConfig(), **changed)
    folder = Path(output_dir or Path("predictions") / (Path(weights).name or "pretrained-eit"))
    on = open_device(device, precision)
    model, found = on.to_device(model), dict[str, Tensor]()
    make_folder(folder)
    for file, part in zip(files, read, strict=True):
        if part.note:
            warnings.warn(part.note, stacklevel=2)
        size = min(batch_size, len(part.names))
        one = Eit(task.config.model_copy(update={"batch_size": -(-size // on.world) * on.world}))
        data = _Alone(part.voltages, part.names, task.config.size, part.stats)
        drawn = torch.cat([x for x, _ in predictions(one, model, data, on, "full")])
        for name, pictures in zip(part.names, drawn, strict=False):  # without filler
            longer = f"{file.parent.name}_{name}"
            numbered = (f"{longer}-{number}" for number in itertools.count(2))
            tries = itertools.chain([name, longer], numbered)
            name = next(each for each in tries if each not in found)
            found[name] = pictures
            resolve("mshnet.show:save_picture")(draw_tank(name, pictures), folder / f"{name}.png")
    _write_tables(folder, found)
    return EitSummary(folder, len(files), len(found))


def _write_tables(folder: Path, found: dict[str, Tensor]) -> None:
    "Write tanks.npz (names, mean, spread) and tanks.csv."
    pictures = torch.stack(list(found.values()))
    arrays = {"mean": pictures.mean(1), "spread": pictures.std(1, correction=0)}
    write_arrays(folder / "tanks.npz", names=np.array(list(found)), **arrays)
    rows = [["name", "least", "most", "share_resistive", "share_conductive", "mean_spread"]]
    for name, image, width in zip(found, *arrays.values(), strict=True):
        shares = [(image < -0.5).float().mean(), (image > 0.5).float().mean()]
        values = [image.min(), image.max(), *shares, width.mean()]
        rows.append([name, *(f"{float(value):.4f}" for value in values)])
    write_table(folder / "tanks.csv", rows)


# %% [markdown]
# A picture of a tank shows what was drawn: the mean, the spread, and where there is one, the truth and the yardsticks.

# %%
#| export
def draw_tank(
    title: str,
    drawn: Tensor,  # [samples,S,S]
    others: dict[str, Tensor] | None = None,  # pictures [S,S] to show before it, by their titles
    on: Any = None,  # a part of a larger figure; None: a new one
) -> Any:  # the figure
    "A row of pictures: the others, the mean and the spread."
    rows = {**(others or {}), "mean": drawn.mean(0)}
    figure = on or Figure(figsize=(1.9 * (len(rows) + 1), 2.3), layout="constrained")
    axes = figure.subplots(1, len(rows) + 1)
    for axis, (name, image) in zip(axes, rows.items(), strict=False):
        axis.imshow(image.numpy(), cmap="RdBu_r", vmin=-1, vmax=1)
        axis.set_title(name, size=9)
    shown = axes[-1].imshow(drawn.std(0, correction=0).numpy(), cmap="viridis", vmin=0, vmax=0.5)
    axes[-1].set_title("spread", size=9)
    figure.colorbar(shown, ax=axes[-1])
    for axis in axes:
        axis.axis("off")
    figure.suptitle(title, size=9)
    return figure


def draw_tanks(
    weights: str | Path,  # a file, or the folder of a run
    folder: Path,  # in which the pictures are written, one of each tank and gallery.png of all
    config: EitConfig,  # names the tanks: its data and dataset_dir
    most: int = 6,
) -> None:
    "Draw tanks of the test part: truth, classical reconstructions, mean and spread."
    task, model = trained_task(weights, config)
    data = load_tanks(config, ["test"])["test"]
    rows = np.unique(np.linspace(0, len(data) - 1, min(most, len(data))).astype(int)).tolist()
    batch = task.batch(data, rows, None)
    with torch.no_grad():
        drawn = task.predict(model.eval(), batch, "full")
    made = yardsticks(data.voltages[rows], data.stats, config.size)
    save = resolve("mshnet.show:save_picture")
    sheet = Figure(figsize=(11.4, 2.3 * len(rows)), layout="constrained")
    parts = sheet.subfigures(len(rows), 1, squeeze=False)[:, 0]
    for i, (row, part) in enumerate(zip(rows, parts, strict=True)):
        others = {"truth": batch.image[i, 0]} | {name: made[name][i] for name in _METHODS}
        save(draw_tank(data.names[row], drawn[i], others), folder / f"{data.names[row]}.png")
        draw_tank(data.names[row], drawn[i], others, part)
    save(sheet, folder / "gallery.png")


# %%
with tempfile.TemporaryDirectory() as tmp:
    content = {"model": model.state_dict(), "config": config.model_dump(), "phase": "full"}
    content |= {"epoch": 0, "best": {"epoch": 0, "name": None}}
    torch.save(content, f"{tmp}/mine.pt")
    np.savetxt(f"{tmp}/one.csv", parts["test"].voltages[:1], delimiter=",")
    summary: EitSummary = predict_tanks(f"{tmp}/mine.pt", [f"{tmp}/one.csv"], f"{tmp}/out", "cpu")
    test_eq(str(summary), "1 tank of 1 file")
    print((summary.folder / "tanks.csv").read_text())
    draw_tanks(f"{tmp}/mine.pt", Path(tmp), config, most=1)
picture, others = batch.image[0, 0], yardsticks(parts["test"].voltages[:1], parts["test"].stats, 16)
draw_tank("one tank", drawn[0], {"truth": picture, "ridge": others["ridge"][0]})

# %% [markdown]
# ## Memory
#
# How large a batch fits is computed before it is tried. Weights take four bytes each, five times over: the weight, its gradient, two averages of Adam, and the averaged weight. A block keeps about 32 values of each channel and token for its backward pass. On the largest grid of the published size a block keeps its input alone and is computed twice. Where attention is not fused (XLA), the scores of every pair of tokens are written down for each head, and there the guide of the published code promised batches that cannot fit: 16 heads with 4,096 x 4,096 scores take 1.07 GB in 32 bits for each sample and block.

# %%
#| export
_KEPT = 32  # values that a block keeps of each channel and token


def training_memory(
    config: EitConfig,
    each: int,  # samples on one device
    precision: str = "fp32",
    fused: bool = True,  # False: scores of attention are written down, as XLA does
) -> float:  # GB
    "The least memory of a training step of the DiT on one device."
    c, value = config, 4 if precision == "fp32" else 2
    with torch.device("meta"):
        model = DiT(c.size, c.patch, c.width, c.heads, c.scales, 1 + c.hints)
    weights = 4 * sum(w.numel() for w in model.parameters()) * (5 if c.ema else 4)
    grids = [(c.size // c.patch) ** 2 // 4**k for k in range(c.scales + 1)]
    seen = {n: 4 if n > grids[-1] else 3 for n in grids}  # global blocks of each grid, down and up
    seen[grids[0]] = 2
    windows = grids[0] // 16
    again = c.size // c.patch >= 64  # blocks of the largest grid are computed twice
    kept = sum(
        _KEPT * n * c.width * count for n, count in seen.items() if not again or n < grids[0]
    )
    kept += (1 if again else _KEPT) * grids[0] * c.width * (4 if not again else 6)
    kept += _KEPT * grids[0] * c.width if again else 0
    scores = 0
    if not fused:
        scores = c.heads * sum(2 * n * n * count for n, count in seen.items() if n < grids[0])
        scores += c.heads * (2 * grids[0] ** 2 * (1 if again else 2) + 8 * grids[0] * windows)
    return 0.4 + (weights + each * value * (kept + scores)) / 1e9  # 0.4: the program itself


# %% [markdown]
# The published network fits into a chip of 16 GB with a few samples where attention is fused. Where it is not, blocks on the second largest grids dominate, and smaller parts of a batch are needed: `--micro-batch` adds up the gradients of parts, so `--global-batch-size 64` stays what it says.

# %%
paper = configure({"task": "eit", "preset": "paper"})
for samples in (1, 2, 4, 8, 16):
    sizes = [training_memory(paper, samples, "bf16", fused) for fused in (True, False)]
    print(
        f"{samples:3} samples a chip: {sizes[0]:5.1f} GB, with scores written down {sizes[1]:5.1f}"
    )
assert training_memory(paper, 1) < 4.5
