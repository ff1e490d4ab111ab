# %% [markdown]
# # Simulated tanks and files of recordings
#
# > Where measurements come from: simulated in memory, files in the published layout, recordings of real tanks.
#
# A training set is many pairs of voltages and a true image. Simulated pairs cost nothing, real ones are rare, and a wrong unit or a wrong order of the electrodes gives plausible but wrong images. So this page simulates pairs, reads them, and compares the voltages of each data set with simulated ones.
#
# Here are a [tank](00_tank.ipynb) with its sixteen electrodes and the map of its 208 voltages. An inclusion near the wall changes mostly the voltages of the pairs beside it: the inclusion between electrodes 9 and 10 is seen in row 9 and column 9 (orange: lower than in water). The last two maps show two mistakes. If the electrodes are counted backwards, the map is that of the mirrored tank: nothing looks wrong, and the network returns a mirrored image. If each row of a file begins at the driven pair instead of pair 0, the map is no longer symmetric, as the map of a tank must be.

# %%
from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import numpy as np
import torch

from mshnet.eit.tank import simulate, tank_map, turn_voltages

voltages, image = simulate(1, seed=3, size=128)
measured = {"its voltages": voltages}
measured["electrodes counted backwards"] = turn_voltages(voltages, torch.tensor([16]))
moved = torch.cat([row.roll(-r - 2)[:13] for r, row in enumerate(tank_map(voltages)[0])])
measured["rows begin at the driven pair"] = moved[None]
figure, axes = plt.subplots(1, 4, figsize=(11, 3), layout="constrained")
axes[0].imshow(image[0], cmap="RdBu_r", vmin=-1, vmax=1, extent=(-1, 1, 1, -1))
axes[0].add_patch(plt.Circle((0, 0), 1, fill=False))
for k, angle in enumerate(2 * np.pi * np.arange(16) / 16):
    axes[0].text(1.15 * np.sin(angle), 1.15 * np.cos(angle), k, ha="center", va="center")
axes[0].axis("off")
for axis, (title, values) in zip(axes[1:], measured.items(), strict=True):
    axis.imshow(tank_map(values)[0], cmap="PuOr", vmin=-3e-5, vmax=3e-5)
    axis.set_title(title, size=9)
    axis.set(xlabel="sensed pair", ylabel="driven pair", xticks=(0, 9, 15), yticks=(0, 9, 15))

# %%
#| export
#| default_exp eit.tanks
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from mshnet.core import UserError, counted, read_text, reason
from mshnet.eit import tank
from mshnet.files import claim, expect_folder, make_folder, write_arrays
from mshnet.session import bar
from mshnet.task import Task, content_of, digits
from mshnet.weights import read_file

# %% [markdown]
# ## Voltages on one scale
#
# Inclusions change the voltage of a pair beside the driven one four times as much as that of the pair opposite. A network learns best from inputs of similar magnitude, so each value is normalised by its mean and standard deviation over the training set. Turning a tank must not change this normalisation. So values of the same distance between the driven and the sensed pair share one mean and one deviation. Over many tanks they are equal by symmetry; over a finite set they are not, so we average them. The cell below turns a hundred tanks by seven electrodes: only with shared statistics the mean square of their normalised voltages remains 1.
#
# Tanks simulated in memory are normalised by the statistics of the simulator. Files are normalised by `mean.pth` and `std.pth` of their folder, unchanged. Without these files, real tanks are normalised by the published statistics, and other tanks by the statistics of the folder's training files. A folder with none of these is refused. A run on files records their statistics, averaged by distance, and `mshnet predict` uses them for any other measurement. After a training on simulated tanks it uses the published ones. So a network that was trained on simulated tanks can read recorded ones, and no true image of a recorded tank is needed.

# %%
#| export
_KNOWN: dict[str, tuple[list[float], list[float]]] = {  # mean and deviation at distance 2 to 8
    "simulated": (
        [1.217e-06, 2.069e-06, 1.917e-06, 1.671e-06, 1.489e-06, 1.384e-06, 1.352e-06],
        [2.990e-05, 2.020e-05, 1.394e-05, 1.052e-05, 8.686e-06, 7.797e-06, 7.549e-06],
    ),
    "published": (
        [5.911e-06, 4.880e-06, 3.433e-06, 2.498e-06, 1.958e-06, 1.680e-06, 1.595e-06],
        [3.475e-05, 2.160e-05, 1.388e-05, 9.983e-06, 7.995e-06, 7.043e-06, 6.756e-06],
    ),
}


@dataclass(frozen=True)
class Stats:
    "Mean and standard deviation of each of the 208 voltages."

    mean: Tensor  # [208]
    std: Tensor  # [208], above 0

    @classmethod
    def of(cls, voltages: Tensor) -> "Stats":  # [N,208]
        "The statistics of these voltages, shared by values of the same distance."
        return cls(voltages.mean(0), voltages.std(0, correction=0)).pooled()

    @classmethod
    def read(cls, folder: Path) -> "Stats":
        "The statistics in mean.pth and std.pth, each [1,16,13]; UserError if they cannot be used."
        if lost := [n for n in ("mean.pth", "std.pth") if not (folder / n).is_file()]:
            raise UserError(f"{folder}: has no {lost[0]}; copy both files of the training")
        found = {name: read_file(folder / f"{name}.pth") for name in ("mean", "std")}
        for name, x in found.items():
            right = isinstance(x, Tensor) and x.numel() == tank.VALUES and x.isfinite().all()
            if not right or (name == "std" and not (x > 0).all()):
                raise UserError(f"{folder / name}.pth: not 1x16x13 numbers, in std.pth above 0")
        return cls(*(x.flatten().float() for x in found.values()))

    @classmethod
    def known(cls, which: str) -> "Stats":  # "simulated", "published", or as a run records them
        "Statistics of many training voltages, shared by values of the same distance."
        table: Any = _KNOWN.get(which) or [float(number) for number in which.split()]
        return cls(*torch.tensor(table).view(2, 7)[:, tank.DISTANCE - 2])

    def pooled(self) -> "Stats":
        "Shared by values of the same distance, so that they fit a turned tank too."
        groups = [torch.tensor(d == tank.DISTANCE) for d in tank.DISTANCE]
        mean = torch.stack([self.mean[group].mean() for group in groups])
        square = self.std**2 + (self.mean - mean) ** 2
        return Stats(mean, torch.stack([square[group].mean() for group in groups]).sqrt())

    def size(self) -> Tensor:  # [208]
        "The root of the mean square of each voltage."
        return (self.mean**2 + self.std**2).sqrt()

    def normalise(self, voltages: Tensor) -> Tensor:  # [..., 208]
        "Voltages of mean 0 and deviation 1."
        return (voltages - self.mean.to(voltages)) / self.std.to(voltages)


# %%
tanks, _ = simulate(100, seed=0)
separate = Stats(tanks.mean(0), tanks.std(0, correction=0))
for name, stats in {"separate": separate, "shared": separate.pooled()}.items():
    turned = stats.normalise(turn_voltages(tanks, torch.full((100,), 7)))
    print(f"{name} statistics: mean square {turned.square().mean():.2f} after turning the tanks")


# %% [markdown]
# ## Simulated tanks
#
# Without a data set we simulate one in memory. It stores the inclusions instead of their images. An image is rendered when it is needed, at any size and in any of the 32 orientations, always with sharp edges. The figure below shows every fourth orientation: from one to the next the tank turns by 90 degrees, and those from 16 on are mirrored first.

# %%
#| export
@dataclass(frozen=True)
class SimulatedTanks:
    "Simulated measurements, in memory."

    name: str  # "train", "val" or "test"
    voltages: Tensor  # [N,208] float32
    shapes: Tensor  # [N,3,7]
    size: int  # of an image
    source: str = "simulated tanks"
    stats: Stats = field(default_factory=lambda: Stats.known("simulated"))

    @property
    def names(self) -> Sequence[str]:
        "Name of each sample."
        return [f"{self.name}_{i}" for i in range(len(self))]

    @cached_property
    def hash(self) -> str:
        "A hash of the inclusions and of the mean voltage, rounded: CPUs differ in the last bits."
        shapes = hashlib.sha256(self.shapes.float().numpy().tobytes()).hexdigest()
        return digits([shapes, f"{self.voltages.double().abs().mean():.6e}"])

    def __len__(self) -> int:
        return len(self.voltages)

    def pair(self, index: int, way: int = 0) -> tuple[Tensor, Tensor]:
        "Voltages [208] and image [size,size] of a sample, in one of the 32 orientations."
        ways = torch.tensor([way])
        shapes = tank.turn_shapes(self.shapes[index : index + 1], ways)
        voltages = tank.turn_voltages(self.voltages[index : index + 1], ways)
        return voltages[0], tank.render_images(shapes, self.size)[0]


@lru_cache(maxsize=4)  # a run and its figures use the same ones
def simulated_tanks(name: str, count: int, seed: int, size: int, **how: Any) -> SimulatedTanks:
    "Simulate a split of a data set; `how` is that of `simulate`: fine, noise, gains."
    voltages, _ = tank.simulate(count, seed, size=1, **how)  # images are rendered when needed
    return SimulatedTanks(name, voltages, tank.sample_shapes(count, seed), size)


# %%
train: SimulatedTanks = simulated_tanks("train", 20, seed=0, size=32)
strip = torch.cat([train.pair(2, way)[1] for way in range(0, 32, 4)], 1)
plt.figure(figsize=(11, 1.7), layout="constrained").gca().axis("off")
plt.imshow(strip, cmap="RdBu_r", vmin=-1, vmax=1)
plt.vlines(np.arange(32, 256, 32) - 0.5, -0.5, 31.5, color="black", lw=0.8)
plt.title("orientations 0, 4, 8, 12, 16, 20, 24 and 28", size=9);

# %% [markdown]
# ## Checks by physics
#
# Some mistakes give images without an error message, and physics finds them:
#
# - *A different order of the 208 numbers.* Driving at r and sensing at j gives the same voltage as driving at j and sensing at r. A map that is clearly not symmetric (correlation below 0.8) has its numbers in a different order.
# - *Whole voltages.* If plain water was not subtracted, all 208 voltages have the same sign. Of differences at most 93% have it, in 60,000 simulated and 47 real tanks.
# - *A different first electrode, or the opposite sign.* The function `orientation` of [the tank](00_tank.ipynb) compares the voltages with those of the true images, in all 32 orientations. If none of them fits, the images do not belong to the voltages.
# - *Statistics of a different set, or voltages in a different unit.* The voltages are then much larger or smaller than the statistics predict.

# %%
#| export
_SYMMETRY = 0.8  # real tanks: 0.91 to 1; numbers in another order: 0.7 at most
_MARGIN = 0.05  # by which another orientation must fit better
_FITS = 0.5  # correlation of voltages with their images; real tanks: 0.96
_LEVELS = 30.0  # times that voltages may be larger or smaller than the statistics predict


def check_voltages(voltages: Tensor, where: object, stats: Stats | None = None) -> None:
    "Raise UserError if voltages [N,208] are not differences, in order, and of the size of `stats`."
    shown = tank.tank_map(voltages.double())
    symmetry = tank.correlation(shown.flatten(1), shown.mT.flatten(1)).nanmedian()
    if symmetry < _SYMMETRY:
        why = f"exchanging driven and sensed pairs changes them: correlation {symmetry:.2f}"
        how = "write those of driven pair 0 first, and of each driven pair the sensed pairs 0 to 15"
        what = f"the 208 voltages are in another order, or of plain water ({why})"
        raise UserError(f"{where}: {what}; {how} without the three that carry current")
    if ((voltages > 0).all(1) | (voltages < 0).all(1)).any():
        why = "all voltages of a tank have one sign, so they are no differences from plain water"
        raise UserError(f"{where}: {why}; subtract the voltages of plain water")
    if stats is None:
        return
    both = torch.stack([voltages / stats.size(), stats.normalise(voltages)])
    size, normalised = both.square().mean(2).sqrt().median(1).values.tolist()
    level = size if size < 1 / _LEVELS else max(size, normalised)
    if not 1 / _LEVELS <= level < _LEVELS:
        what = f"the voltages are {level:.3g} times what mean.pth and std.pth predict"
        why = "these are the statistics of another set, or the voltages have another unit"
        raise UserError(f"{where}: {what}: {why}")


def check_orientation(voltages: Tensor, images: Tensor, where: object) -> None:
    "Raise UserError if measurements [N,208] do not fit their images [N,H,H] as they are."
    fit = tank.orientation(voltages, images).nanmean(0)
    way = int(fit.abs().argmax())
    if fit.abs()[way] < _FITS:
        what = f"the voltages fit the images in no orientation (correlation {fit[way]:.2f} at best)"
        values = "-1 (resistive) to 1 (conductive), of the tank that ys was measured of"
        raise UserError(f"{where}: {what}; xs is the change of the conductivity, {values}")
    if fit.abs()[way] > fit[0] + _MARGIN:
        why = "the electrodes are counted in another order; electrode 0 is at the bottom, 4 right"
        turned = f"{'mirrored, then ' if way >= 16 else ''}turned by {way % 16} electrodes"
        changes = [f"the tank {turned}"] if way else []
        if fit[way] < 0:
            why = "the sign of the voltages is reversed; ys is the measurement minus plain water"
            changes.append("the sign changed")
        both = f"correlation with the images {fit[0]:.2f}, but {fit[way].abs():.2f} with"
        raise UserError(f"{where}: {why} ({both} {' and '.join(changes)})")


# %%
measured |= {"in millivolts": 1000 * voltages, "water minus tank": -voltages}
for title, values in measured.items():
    try:
        check_voltages(values, title, Stats.known("simulated"))
        check_orientation(values, image, title)
        print(f"{title}: no mistake")
    except UserError as error:
        print(error)

# %% [markdown]
# ## The machinery: files
#
# The published sets have an npz file for each sample: `ys` the 208 voltage differences, `xs` the true image of 128 by 128, and two classical reconstructions. The folders are `train`, `valid` and `test`, with `mean.pth` and `std.pth` beside them; `test2017` and `test2023` are recordings of real tanks. The voltages of each real set are divided by its published factor, which gives the unit of the simulations. A data set may be larger than the memory, so a sample is read when it is needed. An npz file may hold pickles, which can run code, so we read arrays of numbers only. An error is one line with the name of the file.

# %%
#| export
PARTS = {"train": "train", "val": "valid", "test": "test", "uef2017": "test2017"}
PARTS |= {"ktc2023": "test2023"}  # a split and its folder
SCALES = {"test2017": 1040.856, "test2023": 1978.0}  # published; else 1


def read_npz(path: Path, names: Sequence[str] = ("ys", "xs")) -> dict[str, np.ndarray]:
    "Arrays of an npz file; UserError if one is missing, or is not an array of numbers."
    try:
        with np.load(path, allow_pickle=False) as file:
            if missing := [name for name in names if name not in file]:
                raise ValueError(f"no array {missing[0]!r}, but {', '.join(file) or 'none'}")
            return {name: file[name] for name in names}
    except Exception as error:  # numpy, zipfile and zlib raise many kinds for damaged bytes
        why = reason(error)
        if "pickle" in why.lower():
            why = "damaged, or refused because it would run code when loaded"
        raise UserError(f"{path}: not a readable npz file of numbers ({why})") from None


def _checked_voltages(values: np.ndarray, where: object) -> Tensor:  # [208] float32
    "The voltages of one measurement, of any shape; UserError for other values."
    if values.size != tank.VALUES:
        one_more = values.size == tank.VALUES + 1
        more = "; leave out the index column (pandas: index=False)" if one_more else ""
        what = f"{values.size} voltages; a measurement of 16 electrodes has {tank.VALUES}"
        raise UserError(f"{where}: {what} (16 driven pairs, 13 sensed pairs each){more}")
    if values.dtype.kind not in "fiu" or not (np.abs(values.astype(float)) < 1e10).all():
        raise UserError(f"{where}: a voltage is NaN, above 1e10 or not a number")
    return torch.from_numpy(values.astype(np.float32).reshape(tank.VALUES))


@dataclass(frozen=True)
class FolderTanks:
    "A split of a data set in npz files, read when they are needed."

    name: str
    files: tuple[Path, ...]
    stats: Stats
    size: int  # of an image
    scale: float  # by which the recorded voltages are divided

    @property
    def source(self) -> str:
        "Name of the data set."
        return f"{self.files[0].parent.parent.resolve().name}/{self.files[0].parent.name}"

    @cached_property
    def names(self) -> Sequence[str]:
        "Name of each sample."
        return [file.stem for file in self.files]

    @cached_property
    def hash(self) -> str:
        "A hash of the names and the sizes of the files."
        return digits([f"{file.name} {file.stat().st_size}" for file in self.files])

    @cached_property
    def content(self) -> str:
        "A hash of the contents of the files."
        return content_of(self.files)

    @property
    def recorded(self) -> str:
        "The statistics as a run records them, by distance; CPUs differ in the digits left out."
        known = Stats(self.stats.mean.double(), self.stats.std.double()).pooled()
        table = torch.stack([known.mean, known.std])[:, np.unique(tank.DISTANCE, True)[1]]
        return " ".join(f"{x:.3e}" for x in table.flatten().tolist())

    @cached_property
    def voltages(self) -> Tensor:
        "All voltages, [N,208] float32; a million samples take 830 MB."
        found = [_checked_voltages(read_npz(f, ["ys"])["ys"], f) for f in self.files]
        return torch.stack(found) / self.scale

    def __len__(self) -> int:
        return len(self.files)

    def pair(self, index: int, way: int = 0) -> tuple[Tensor, Tensor]:
        "Voltages [208] and image [size,size] of a sample, in one of the 32 orientations."
        file, ways = self.files[index], torch.tensor([way])
        ys, xs = read_npz(file).values()
        voltages = _checked_voltages(ys, file) / self.scale
        if xs.ndim != 2 or len(set(xs.shape)) != 1 or not xs.size or xs.dtype.kind not in "biuf":
            raise UserError(f"{file}: xs is {xs.dtype}, {xs.shape}, not a square of numbers")
        most = np.abs(xs.astype(float)).max()
        if not most < 1.5:  # real tanks: 1.12 at most
            raise UserError(f"{file}: xs is up to {most:.3g}; write -1 to 1, 0 outside of the tank")
        image = torch.from_numpy(xs.astype(np.float32)).clamp(-1, 1)[None]
        image = resize_images(tank.turn_images(image, ways) if way else image, self.size)
        return tank.turn_voltages(voltages[None], ways)[0], image[0]


def resize_images(images: Tensor, size: int) -> Tensor:  # [N,H,H] to [N,size,size]
    "Images of another size: means over areas if smaller, bilinear if larger."
    mode = "area" if size <= images.shape[-1] else "bilinear"
    return F.interpolate(images[:, None], size=(size, size), mode=mode)[:, 0]


# %% [markdown]
# ## The machinery: the data of a run
#
# `load_tanks` loads the splits that a run needs. `open_folder` opens a split of a folder and compares a few of its samples with physics. To score on real tanks, a folder of recordings is enough; training tanks are then simulated. Simulated tanks for validation and test come from the finer mesh and are the same for every run. `write_tanks` writes simulated tanks in the published layout, for other programs and for `--dataset-dir`; sample i depends only on the seed and on i. Below, `describe_folder` compares the voltages of such files with those computed from their images. A correlation near 1 shows that order and sign are right.

# %%
#| export
_SEEDS = {"val": 2**31, "test": 2**31 + 1}  # of simulated tanks; train has the run's seed


def _files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.glob("*") if p.suffix.lower() == ".npz" and p.name[0] != ".")


def open_folder(folder: Path, part: str, size: int, whole: bool = False) -> FolderTanks:
    "Open a split (a key of PARTS) of a data set; UserError if it is missing or inconsistent."
    expect_folder(folder)
    there = folder / PARTS[part]
    files = tuple(_files(there))
    if not files:
        others = [d.name for d in sorted(folder.glob("*")) if _files(d)]
        hint = f"there are {', '.join(others)}" if others else "dataset_dir is the folder around it"
        real = [name for name in ("uef2017", "ktc2023") if part == "test" and PARTS[name] in others]
        hint += f"; for real tanks --data {' or '.join(real)}" if real else ""
        hint += "; or use --choose last" if part == "val" else ""
        raise UserError(f"{folder}: has no folder {there.name} with npz files ({hint})")
    name = part if part in ("train", "val") else "test"
    found = FolderTanks(name, files, _stats_of(folder, part), size, SCALES.get(there.name, 1.0))
    voltages, images = _a_few(found)
    check_voltages(voltages, there, found.stats)
    check_orientation(voltages, images, there)
    if whole or part != "train":  # a run reads its training files in the first epoch anyway
        for index in bar(range(len(found)), len(found), f"check {part}", "files"):
            found.pair(index)
    return found


def _a_few(tanks: FolderTanks) -> list[Tensor]:  # voltages [N,208], images [N,S,S]
    "Up to 32 samples at even steps of a split, to compare with physics."
    pairs = [tanks.pair(i) for i in range(0, len(tanks), -(-len(tanks) // 32))]
    return [torch.stack(x) for x in zip(*pairs, strict=True)]


def _stats_of(folder: Path, part: str, needed: bool = True) -> Any:  # a Stats; None: not needed
    "The statistics of a split: from its files, or of the training split."
    if (folder / "mean.pth").exists() or (folder / "std.pth").exists():
        return Stats.read(folder)
    if PARTS[part] in SCALES:
        return Stats.known("published")
    if files := tuple(_files(folder / PARTS["train"])):
        return Stats.of(FolderTanks("train", files, Stats.known("published"), 0, 1.0).voltages)
    if needed:
        todo = "copy those of the training; for simulated tanks mshnet data --write makes them"
        raise UserError(f"{folder}: has no mean.pth, std.pth and train; {todo}")
    return None


def load_tanks(config: Any, names: Sequence[str]) -> dict[str, SimulatedTanks | FolderTanks]:
    "The splits of a run: those of its folder, or simulated ones; real tanks are for the test only."
    folder, real = Path(config.dataset_dir).expanduser(), config.data != "simulated"
    if real and not config.dataset_dir:
        raise UserError(f"data={config.data} needs dataset_dir: the parent of {PARTS[config.data]}")
    simulated = not config.dataset_dir or (real and not (folder / PARTS["train"]).is_dir())
    found = dict[str, SimulatedTanks | FolderTanks]()
    for name in names:
        recorded = real and name == "test"
        if recorded or not simulated:
            found[name] = open_folder(folder, config.data if recorded else name, config.size)
        else:
            count = min(64, config.tanks) if name in _SEEDS else config.tanks
            how = {"noise": config.noise, "gains": config.gains, "fine": name in _SEEDS}
            seed = _SEEDS.get(name, config.seed)
            found[name] = simulated_tanks(name, count, seed, config.size, **how)
    Task.warn_of_copies({k: {f.name: f for f in getattr(v, "files", ())} for k, v in found.items()})
    return found


def describe_folder(folder: Path) -> str:
    "A line for each split: how well its voltages agree with those computed from its images."
    parts = [part for part, name in PARTS.items() if (folder / name).is_dir()]
    lines = ["correlation: of voltages with those computed from the images"]
    for part in parts or ["train"]:
        found = open_folder(folder, part, 64, whole=True)
        fit = tank.orientation(*_a_few(found))[:, 0].nanmedian()
        lines.append(f"{PARTS[part]}: {counted(len(found), 'tank')}, correlation {fit:.3f}")
    Task.warn_of_copies({p: {f.name: f for f in _files(folder / PARTS[p])} for p in parts})
    return "\n".join(lines)


def write_tanks(folder: Path, counts: dict[str, int], seed: int = 0, **how: float) -> None:
    "Write so many tanks of each split, as published; UserError if the folder holds something else."
    claim(folder, "tanks.json", {"simulated tanks": {"seed": seed, **counts, **how}})
    blocks = [(part, i) for part, n in counts.items() for i in range(0, n, 32)]
    for part, first in bar(blocks, len(blocks), "write"):
        make_folder(folder / PARTS[part])
        count, fine = min(32, counts[part] - first), part != "train"
        made = tank.simulate(count, _SEEDS.get(part, seed), 128, fine, first=first, **how)
        for row, (ys, xs) in enumerate(zip(*made, strict=True), first):
            write_arrays(folder / PARTS[part] / f"{row:06d}.npz", ys=ys[:, None], xs=xs)
    known = Stats.known("simulated")  # those of a few tanks would be far off
    for name in ("mean", "std"):
        torch.save(getattr(known, name).view(1, 16, 13).float(), folder / f"{name}.pth")


# %%
with TemporaryDirectory() as tmp:
    write_tanks(Path(tmp), {"train": 3, "test": 2})
    opened: FolderTanks = open_folder(Path(tmp), "test", 32)
    print(describe_folder(Path(tmp)))
    xs = torch.tensor(read_npz(opened.files[0])["xs"])
    print("an image on disk:", [*xs.shape], "in a run:", [*resize_images(xs[None], 32)[0].shape])


# %% [markdown]
# ## Measurements alone
#
# To predict, voltages are enough: an npz file with `ys`, of one or of many measurements, or a table as text, one measurement in each row. Its first line may be names or numbers of the columns. A file in a folder named `train`, `valid`, `test`, `test2017` or `test2023` gets the scale and the statistics of that data set. If its voltages do not fit them, it is refused. Any other file gets the statistics of the data set that the network was trained on. Its unit is unknown: if its voltages are far from the usual size, we divide them by one factor and report it. One much larger row would spoil this factor, so a file with such a row is refused.

# %%
#| export
@dataclass(frozen=True)
class _Measurements:
    "Voltages of a file: a split without images."

    names: list[str]
    voltages: Tensor  # [N,208] float32
    stats: Stats  # by which they are normalised
    note: str = ""  # one line on the unit; empty: as recorded
    name: str = "predict"

    def __len__(self) -> int:
        return len(self.names)

    def pair(self, index: int) -> tuple[Tensor, Tensor]:
        "A measurement and an image of zeros."
        return self.voltages[index], torch.zeros(1, 1)


def read_measurements(path: Path, known: str = "published") -> _Measurements:  # see Stats.known
    "The measurements in an npz, CSV or text file; UserError if a row is not 208 numbers."
    values = read_npz(path, ["ys"])["ys"] if path.suffix.lower() == ".npz" else _table(path)
    if values.size == tank.VALUES or values.shape[1:] in ((), (1,)):  # one measurement
        values = values.reshape(1, -1)
    if not values.size:
        raise UserError(f"{path}: holds no voltages; write numbers such as -5.3e-06, without units")
    if len(values) == tank.VALUES != values[0].size:
        raise UserError(f"{path}: a column is a measurement; transpose it, so that a row is one")
    found = [_checked_voltages(row, f"{path}, row {i}") for i, row in enumerate(values)]
    names = [path.stem] if len(found) == 1 else [f"{path.stem}_{i}" for i in range(len(found))]
    voltages, stats, folder = torch.stack(found), Stats.known(known), path.resolve().parent
    check_voltages(voltages, path)
    part = next((part for part, name in PARTS.items() if name == folder.name), "")
    if part and (own := _stats_of(folder.parent, part, needed=False)):
        voltages = voltages / SCALES.get(folder.name, 1.0)
        if voltages.any():
            where = f"{path} (folder {folder.name} means a data set; else rename it)"
            check_voltages(voltages, where, own)
        return _Measurements(names, voltages, own)
    squares = (voltages / stats.size()).square()
    level, rows = squares.mean().sqrt(), squares.mean(1).sqrt()
    if level == 0 or 0.2 < level < 5:
        return _Measurements(names, voltages, stats)
    if (ratio := rows.max() / rows[rows > 0].median()) > _LEVELS:
        why = f"{ratio:.3g} times as large as in most rows; correct it, or save it separately"
        raise UserError(f"{path}, row {rows.argmax()}: the voltages are {why}")
    note = f"{path}: voltages divided by {level:.3g}, to the size of the training's"
    return _Measurements(names, voltages / level, stats, note)


_MISSING = re.compile(r"(?<![^\s,;])(#?N/?A|null|none|-+|#[A-Z]+(/0)?!)(?![^\s,;])", re.I)
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?|nan|[-+]?inf", re.I)
_DECIMAL = re.compile(r"[-+]?\d+(,\d+)?(e[-+]?\d+)?|nan", re.I)  # a number without a point


def _table(path: Path) -> np.ndarray:  # [rows,numbers]
    "The numbers in a text; commas, semicolons, tabs or spaces between them, perhaps a heading."
    text = read_text(path, "table of voltages").replace("\u2212", "-").replace('"', " ")
    lines = [x for x in _MISSING.sub("nan", text).splitlines() if x.strip()[:1] not in ("", "#")]
    rows = (line.replace(";", " ").split() for line in lines[1:] or lines)
    if all(len(row) > 1 and all(map(_DECIMAL.fullmatch, row)) for row in rows):  # 1,5;2,5
        lines = [line.replace(",", ".") for line in lines]
    if lines and _is_heading(lines[0]):
        lines = lines[1:]
    try:
        lines = [re.sub("[,;]", " ", line) for line in lines]
        return np.loadtxt(lines, ndmin=2) if lines else np.zeros((0, tank.VALUES))
    except ValueError as error:
        why = reason(error).split(";")[0]  # behind it are settings of numpy
        more = "; write numbers such as -5.3e-06, without units" if "convert" in why else ""
        raise UserError(f"{path}: not a table of numbers ({why}){more}") from None


def _is_heading(line: str) -> bool:
    "Whether at least a quarter of its cells are names, or they count: 0, 1, 2 and so on."
    sign = "[,;\t]" if re.search("[,;\t]", line) else " "
    cells = [cell.split() for cell in re.split(sign, line) if cell.strip()]
    numbers = [float(cell[0]) for cell in cells if all(map(_NUMBER.fullmatch, cell))]
    count_up = len(numbers) >= tank.VALUES and set(np.diff(numbers)) == {1}
    return count_up or 4 * len(numbers) <= 3 * len(cells)

# %% [markdown]
# ## Questions
#
# 1. Somebody counted the electrodes in the opposite direction. Why does the symmetry of the map not show it?
#    <details><summary>Answer</summary>This is the measurement of the mirrored tank, and its map is as symmetric as any other. Only the true images show the mistake: the voltages fit them best if the tank is mirrored.</details>
# 2. Each of the 208 voltages could have its own mean and deviation. What would go wrong in training?
#    <details><summary>Answer</summary>Turning a tank moves each voltage to another pair, with another mean and deviation. So the normalised voltages of a turned tank would not be the turned normalised voltages, and the network would get inputs of another mean and size than those of its training.</details>
