# %% [markdown]
# # yardsticks
#
# > What sixty years of linear algebra reach: ridge regression, Tikhonov, Gauss-Newton; and the scores by which all methods are compared.

# %%
#| default_exp eit.yardsticks

# %%
#| hide
import tempfile

import matplotlib.pyplot as plt
from fastcore.test import expect_fail, test_close, test_eq

# %%
#| export
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from skimage.metrics import structural_similarity
from torch import Tensor
from torch.nn import functional as F

from mshnet.core import UserError
from mshnet.eit.tank import (
    UNIT,
    VALUES,
    Tank,
    correlation,
    pairs,
    render_images,
    sample_shapes,
    simulate,
    standard_tank,
    tank_map,
    triangle_means,
    turn_shapes,
    turn_voltages,
)
from mshnet.eit.tanks import (
    PARTS,
    Stats,
    checked_voltages,
    describe_folder,
    read_npz,
    resize_images,
    seed_of,
    simulated_tanks,
)
from mshnet.files import cannot_be_written, claim, write_arrays
from mshnet.session import bar


# %% [markdown]
# A network that reconstructs a tank deserves to be compared with something better than nothing. The methods of this page need no training beyond a small system of equations, and they are hard to beat. They also fail in the same way: a thing in the middle of the tank becomes a blurred cloud, because 208 voltages do not say more.
#
# ## Ridge regression
#
# The simplest of all learned methods: each pixel is a weighted sum of the 208 normalised voltages. The weights minimise the squared error over simulated tanks plus `weight` times their own squares. A larger weight makes smoother pictures that noise disturbs less.

# %%
#| export
@dataclass(frozen=True)
class Linear:
    "A reconstruction that is linear in the normalised voltages."

    matrix: Tensor  # [size*size,208]
    offset: Tensor  # [size*size]
    size: int

    def __call__(self, voltages: Tensor) -> Tensor:  # [N,208] normalised, to [N,size,size]
        "Pictures of these measurements."
        found = voltages.to(self.matrix) @ self.matrix.T + self.offset
        return found.unflatten(-1, (self.size, self.size))


_TANKS, _WAYS, _SEED = 1000, 8, 2**30  # of the tanks that the yardsticks are made with


@cache
def _moments(size: int) -> tuple[Tensor, Tensor]:
    "Sums of products of normalised voltages (and 1) with themselves, and with pixels."
    shapes, stats = sample_shapes(_TANKS, _SEED), Stats.known("simulated")
    rng = np.random.default_rng(_SEED)
    voltages = stats.normalise(simulate(_TANKS, _SEED, 8)[0])
    inner, outer = torch.zeros(209, 209), torch.zeros(209, size * size)
    for _ in range(_WAYS):
        way = torch.from_numpy(rng.integers(0, 32, _TANKS))
        given = F.pad(turn_voltages(voltages, way), (0, 1), value=1.0)
        inner += given.T @ given / (_TANKS * _WAYS)
        images = render_images(turn_shapes(shapes, way), size).flatten(1)
        outer += given.T @ images / (_TANKS * _WAYS)
    return inner.double(), outer.double()


@cache
def ridge(
    size: int,
    weight: float = 0.03,  # of the squared weights, against the mean squared error
) -> Linear:
    "Ridge regression from voltages to pictures, learned from simulated tanks."
    inner, outer = _moments(size)
    found = torch.linalg.solve(inner + weight * torch.eye(209), outer).float().T
    return Linear(found[:, :-1].contiguous(), found[:, -1].contiguous(), size)


# %% [markdown]
# A row of the matrix shows how the voltages vote for one pixel. For a pixel near the wall few of them matter. For the one in the middle all do, each a little:

# %%
linear: Linear = ridge(32)
figure, axes = plt.subplots(1, 2, figsize=(5, 2.4))
for axis, row, name in zip(axes, (27, 16), ("near the wall", "in the middle"), strict=True):
    axis.imshow(tank_map(linear.matrix[32 * row + 16]), cmap="PuOr", vmin=-0.08, vmax=0.08)
    axis.set_title(name)


# %% [markdown]
# ## Physics in a matrix
#
# Tikhonov and Gauss-Newton ask the forward problem itself. Where the conductivity of a triangle changes by a little, each voltage changes by the product of two electric fields there: that of the driven pair, and that of the sensed pair as if it were driven. This is the Jacobian. One solution of the forward problem has all the fields.

# %%
#| export
def jacobian(
    tank: Tank,
    conductivities: Tensor,  # [N,E] of each triangle
) -> Tensor:  # [N,208,E] change of each voltage by the conductivity of each triangle
    "How voltages follow small changes of the conductivity."
    u = tank.potentials(conductivities)[:, tank.mesh.triangles]  # [N,E,3,16]
    return pairs(u.mT @ (tank.conductances @ u)).mT


# %%
tank, _, water = standard_tank()
ones = torch.ones(1, len(tank.mesh.triangles), dtype=torch.float64)
J = jacobian(tank, ones)[0]
corners = tank.mesh.nodes[tank.mesh.triangles]
figure, axes = plt.subplots(1, 2, figsize=(7, 3.2))
for axis, j in zip(axes, (2, 8), strict=True):
    i = j - 2  # of driven pair 0
    seen = J[i] / J[i].abs().quantile(0.98)
    axis.tripcolor(*tank.mesh.nodes.T.flip(0), tank.mesh.triangles, seen, cmap="PuOr", clim=(-1, 1))
    axis.set_title(f"driven 0, sensed {j}")
    axis.invert_yaxis()
    axis.axis("equal")

# %% [markdown]
# Where the picture is pale, this voltage sees nothing. The neighbours see a small bow at the wall, the opposite pairs a wide band with little contrast.
#
# The unknown is the logarithm of the conductivity on a grid of 32 by 32, because a thing that does not conduct at all changes voltages by a finite amount. Many grids fit 208 voltages. We want the one that fits and is likely. Both methods minimise |voltages - computed|² + weight |w|², where the grid is B w:
#
# - **Tikhonov**: B is the identity, so all pixels are independent. One linear step from plain water.
# - **Gauss-Newton**: neighbours are alike, with a correlation that falls over a fifth of the radius. Three steps, each with the Jacobian of the last picture.
#
# The weights are chosen on simulated tanks of the finer mesh: the largest one whose RMSE is within 2 percent of the best, because a real instrument errs in more ways than a simulated one (`results/eit-yardsticks`). Voltages are divided by their usual size, so that far pairs count as much as near ones. Recorded voltages are divided by their own usual size, as published. That makes up for their electrodes, which are plates and not points.

# %%
#| export
_GRID, _STEPS = 32, 3
_SHARPEST = 0.2  # distance over which Gauss-Newton's correlation falls to 1/e, in radii
_RANGE = (math.log(0.05), math.log(4.5))  # of the logarithm of the conductivity


@cache
def inside(
    size: int,
) -> Tensor:  # [size,size] bool
    "The pixels of a picture that lie in the tank."
    at = (torch.arange(size) * 2 + 1) / size - 1
    return at[:, None] ** 2 + at**2 < 1


@cache
def _basis(smooth: bool) -> tuple[Tensor, Tensor]:
    "Unknowns to the pixels of the grid in the tank [P,K], and to the triangles [E,K]."
    within = inside(_GRID).flatten()
    at = (torch.arange(_GRID, dtype=torch.float64) * 2 + 1) / _GRID - 1
    pixels = torch.cartesian_prod(at, at)[within]
    basis = torch.eye(len(pixels), dtype=torch.float64)
    if smooth:
        values, vectors = torch.linalg.eigh((-torch.cdist(pixels, pixels) / _SHARPEST).exp())
        basis = (vectors * values.clamp(min=0).sqrt())[:, -256:]
    grids = torch.eye(_GRID**2, dtype=torch.float64)[within].view(-1, _GRID, _GRID)
    return basis, triangle_means(grids).T @ basis


def gauss_newton(
    voltages: Tensor,  # [N,208]
    stats: Stats,  # of such voltages
    size: int,  # of the pictures
    smooth: bool = True,  # False: independent pixels
    weight: float = 0.1,  # of the squared unknowns
    steps: int = _STEPS,
) -> Tensor:  # [N,size,size] float32
    "Pictures whose computed voltages fit the measured ones."
    tank, _, water = standard_tank()
    basis, spread = _basis(smooth)
    scale = UNIT / Stats.known("simulated").size().double()
    wanted = voltages.double() / stats.pooled().size().double()
    found = []
    for part in wanted.split(8):
        w = part.new_zeros(len(part), basis.shape[1])
        for _ in range(steps):
            sigma = (w @ spread.T).clamp(*_RANGE).exp()
            missing = part - (tank.voltages(sigma) - water) * scale
            J = (jacobian(tank, sigma) * sigma[:, None]) @ spread * scale[:, None]
            aim = missing + (J @ w[..., None])[..., 0]
            inner = J @ J.mT + weight * torch.eye(VALUES, dtype=J.dtype)
            w = (J.mT @ torch.linalg.solve(inner, aim[..., None]))[..., 0]
        found.append(w @ basis.T)
    sigma = torch.cat(found).clamp(*_RANGE).exp()
    images = sigma.new_zeros(len(sigma), _GRID**2)
    images[:, inside(_GRID).flatten()] = torch.where(sigma > 1, (sigma - 1) / 2, (sigma - 1) / 0.95)
    return resize_images(images.clamp(-1, 1).unflatten(1, (_GRID, _GRID)).float(), size)


def tikhonov(voltages: Tensor, stats: Stats, size: int, weight: float = 0.03) -> Tensor:
    "Pictures [N,size,size] by one linear step from plain water, with independent pixels."
    return gauss_newton(voltages, stats, size, smooth=False, weight=weight, steps=1)


def yardsticks(
    voltages: Tensor,  # [N,208]
    stats: Stats,  # of such voltages
    size: int,
) -> dict[str, Tensor]:  # pictures [N,size,size] by method
    "What the classical methods make of these measurements."
    made = ridge(size)(stats.pooled().normalise(voltages))
    return {
        "empty": torch.zeros_like(made),
        "ridge": made * inside(size),
        "tikhonov": tikhonov(voltages, stats, size),
        "gauss_newton": gauss_newton(voltages, stats, size),
    }


# %% [markdown]
# On one tank, Gauss-Newton's steps sharpen what Tikhonov begins. Both pictures end at the wall:

# %%
test = simulated_tanks("test", 12, seed=5, size=32, fine=True)
shown = [test.pair(1)[1], tikhonov(test.voltages[1:2], test.stats, 32)[0]]
shown += [gauss_newton(test.voltages[1:2], test.stats, 32, steps=n)[0] for n in (1, 2, 3)]
assert not any(image[~inside(32)].any() for image in shown)
figure, axes = plt.subplots(1, 5, figsize=(9, 2))
for axis, image, name in zip(
    axes, shown, ["truth", "Tikhonov", "one", "two", "three"], strict=True
):
    axis.imshow(image, cmap="RdBu_r", vmin=-1, vmax=1)
    axis.set_title(name)
    axis.axis("off")

# %% [markdown]
# ## Scores
#
# **CC**, the correlation of the pixels with the truth, comes first: it asks for the right shape at the right place. **RMSE** also asks for the right strength. **Dice** is counted for conductive and resistive things apart, where picture and truth exceed 0.5. **PSNR** has the fixed peak 2, the range of the pictures. (The published script takes each picture's own maximum, which differs from tank to tank.)
#
# **SSIM** compares small windows. Most windows of a tank are plain water, and on real tanks the empty picture scores 0.87, more than any reconstruction. We average over the windows within the tank alone. That does not cure it (the empty picture still wins, with 0.85), so SSIM is printed for comparison with other people's tables, and nothing is judged by it.

# %%
#| export
SCORES = ("cc", "rmse", "dice_conductive", "dice_resistive", "psnr", "ssim")


def score_images(
    images: Tensor,  # [N,S,S] reconstructions
    truth: Tensor,  # [N,S,S] -1 to 1
) -> dict[str, Tensor]:  # [N] float64 each; NaN where a score is not defined
    "The scores of each reconstruction."
    images, truth = images.double().cpu(), truth.double().cpu()
    square = (images - truth).square().mean((1, 2))
    within = inside(images.shape[-1])
    ssim = [_ssim_map(a, b)[within].mean() for a, b in zip(images, truth, strict=True)]
    values = (
        correlation(images.flatten(1), truth.flatten(1)),
        square.sqrt(),
        _dice(images > 0.5, truth > 0.5),
        _dice(images < -0.5, truth < -0.5),
        10 * torch.log10(4 / square),
        torch.stack(ssim),
    )
    return dict(zip(SCORES, values, strict=True))


def _dice(found: Tensor, true: Tensor) -> Tensor:
    "Twice the overlap by the sum of both areas; NaN where both are empty."
    return 2 * (found & true).sum((1, 2)) / (found.sum((1, 2)) + true.sum((1, 2))).double()


def _ssim_map(image: Tensor, truth: Tensor) -> Tensor:
    "Structural similarity of the 7x7 window around each pixel."
    return torch.from_numpy(
        structural_similarity(image.numpy(), truth.numpy(), data_range=2, full=True)[1]
    )


# %%
truth = torch.stack([test.pair(i)[1] for i in range(12)])
matrix: Linear = ridge(32)
test_eq(matrix.matrix.shape, (32 * 32, 208))
found = yardsticks(test.voltages, test.stats, 32)
for method in (tikhonov, gauss_newton):
    made = method(test.voltages[:2], test.stats, 32)
    test_close(made, found[method.__name__][:2], 1e-4)
assert not made[:, ~inside(32)].any()
table = {name: score_images(made, truth) for name, made in found.items()}
for name, scores in table.items():
    print(f"{name:13}" + "  ".join(f"{k} {v.nanmean():6.3f}" for k, v in scores.items()))
assert table["ridge"]["cc"].mean() > 0.6 and table["gauss_newton"]["cc"].mean() > 0.6
assert table["empty"]["cc"].isnan().all()
figure, axes = plt.subplots(4, 6, figsize=(9, 6))
for column in range(6):
    shown = [truth, found["ridge"], found["tikhonov"], found["gauss_newton"]]
    for axis, images in zip(axes[:, column], shown, strict=True):
        axis.imshow(images[column], cmap="RdBu_r", vmin=-1, vmax=1)
        axis.set_xticks([], [])
        axis.set_yticks([], [])
for axis, name in zip(axes[:, 0], ("truth", "ridge", "Tikhonov", "Gauss-Newton"), strict=True):
    axis.set_ylabel(name)


# %% [markdown]
# From top to bottom: the truth, ridge regression, Tikhonov, Gauss-Newton. Things near the wall are found at the right place. In the middle they fade, and two things that are close become one.
#
# ## Is the spread honest?
#
# A method that returns a mean and a spread claims: the truth is probably within the spread of the mean. We count how often it is. For normal errors it is 68 % within one spread and 95 % within two. Most of a tank is water, which is easy, so we also ask for the correlation between spread and error: a spread that is large where the errors are is worth more than one that is only large enough.

# %%
#| export
def calibration(
    mean: Tensor,  # [N,S,S]
    spread: Tensor,  # [N,S,S] standard deviation of the samples
    truth: Tensor,  # [N,S,S]
) -> dict[str, float]:
    "How often the truth lies within one and two spreads, and whether the spread shows the errors."
    within = inside(mean.shape[-1])
    error, spread = ((x.double().cpu())[:, within] for x in ((mean - truth).abs(), spread))
    found = {f"within_{k}": (error <= k * spread).double().mean().item() for k in (1, 2)}
    return found | {"spread_cc": correlation(spread, error).nanmean().item()}


# %%
errors = torch.randn(50, 32, 32, generator=torch.Generator().manual_seed(0))
honest = calibration(errors, torch.ones_like(errors), torch.zeros_like(errors))
test_close([honest["within_1"], honest["within_2"]], [0.683, 0.954], 0.01)
honest

# %% [markdown]
# ## A data set on disk
#
# `write_tanks` writes simulated tanks in the published layout, with `TR` and `xs_gn` by the methods above. Other people's scripts read it, and so does `mshnet train --task eit --dataset-dir`. Sample i depends on the seed and on i alone. An interrupted command continues where it stopped, because a file is whole or absent and what is there is not made again.

# %%
#| export
_SIZE = 128  # of a published picture


def write_tanks(
    folder: Path,
    counts: dict[str, int],  # samples of each part: train, val, test
    seed: int = 0,
    **how: float,  # as for `simulate`: noise, gains
) -> int:  # files that were written; others were there
    "Write simulated tanks in the published layout; UserError if the folder holds something else."
    record = {"simulated tanks": {"seed": seed, **how}}
    claim(folder, "tanks.json", record)
    with cannot_be_written(folder):
        for part in counts:
            (folder / PARTS[part]).mkdir(parents=True, exist_ok=True)
    written, blocks = 0, [(p, i) for p, n in counts.items() for i in range(0, n, 32)]
    for part, first in bar(blocks, len(blocks), "write"):
        rows = range(first, min(first + 32, counts[part]))
        files = [folder / PARTS[part] / f"{row:06d}.npz" for row in rows]
        if not all(file.exists() for file in files):
            number = seed_of(part, seed)
            _write_files(files, number, fine=part != "train", first=first, **how)
            written += len(files)
    train = sorted((folder / PARTS["train"]).glob("*.npz"))
    if train:
        Stats.of(torch.stack([checked_voltages(read_npz(f)["ys"], f) for f in train])).save(folder)
    return written


def _write_files(files: list[Path], seed: int, **how: Any) -> None:
    "Simulate the samples of these files, and write them."
    voltages, images = simulate(len(files), seed, _SIZE, **how)
    stats = Stats.known("simulated")
    classical = tikhonov(voltages, stats, _SIZE), gauss_newton(voltages, stats, _SIZE)
    for file, ys, *pictures in zip(files, voltages, images, *classical, strict=True):
        names = ("xs", "TR", "xs_gn")
        write_arrays(file, ys=ys[:, None], **dict(zip(names, pictures, strict=True)))


# %%
with tempfile.TemporaryDirectory() as tmp:
    folder = Path(tmp) / "mine"
    test_eq(write_tanks(folder, {"train": 3, "test": 2}), 5)
    test_eq(write_tanks(folder, {"train": 3, "test": 2}), 0)
    print(sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*.*")))
    print(describe_folder(folder))
    with expect_fail(UserError, contains="holds other data"):
        write_tanks(folder, {"train": 3}, seed=1)
