# %% [markdown]
# # The tank and its voltages
#
# > A tank of salt water with sixteen electrodes: what it measures, computed by finite elements.
#
# Electrical impedance tomography looks into a body through its skin. A small current flows between two electrodes, and the voltages between the other electrodes depend on what the current met on its way. Our body is a round tank of salt water. The *forward problem* computes the voltages from the conductivity in the tank. It is easy, and this page solves it. The other pages solve the *inverse problem*: from voltages to an image.

# %%
#| export
#| default_exp eit.tank
import math
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from scipy.sparse import csc_matrix
from scipy.sparse.linalg import splu
from scipy.spatial import Delaunay
from torch import Tensor
from torch.nn import functional as F

# %% [markdown]
# ## A chain of resistors
#
# The smallest tank is a chain of four resistors. A current of 1 enters at one end and leaves at the other. Through each resistor flows its conductance times the difference of the potentials at its ends, and at each node the currents add up to zero, or to what enters. These are linear equations, K u = current. A resistor adds plus or minus its conductance to four entries of K:

# %%
import matplotlib.pyplot as plt

plt.figure(figsize=(6, 2.4), layout="constrained")
for conductances in ([1, 1, 1, 1], [1, 0.3, 1, 1], [1, 1, 0.3, 1]):
    matrix = np.zeros((5, 5))
    for i, value in enumerate(conductances):
        matrix[i : i + 2, i : i + 2] += value * np.array([[1, -1], [-1, 1]])
    matrix[0, 0] += 1  # chooses potential 0 at node 0
    plt.plot(np.linalg.solve(matrix, [-1, 0, 0, 0, 1]), "o-", label=str(conductances))
plt.gca().set(xlabel="node", ylabel="potential", xticks=range(5))
plt.legend(title="conductances");

# %% [markdown]
# A poor conductor is a steep step of the potential. But a measurement at the two ends cannot find it: the last two chains have the same voltage. In a tank the current has many paths and enters at many places, so 208 voltages contain more.
#
# ## What is measured
#
# Electrode k is at row = cos(2πk/16), column = sin(2πk/16) of the image, whose rows point down: electrode 0 is at the bottom, 4 at the right, 8 at the top. Current is driven between neighbours r and r+1, for one r after the other. Each time we read the voltages between neighbours j and j+1 of which neither carries the current. That leaves 13 of 16 pairs, and 16 times 13 is 208 numbers.
#
# A measurement is a map of 16 by 16 entries: row r is the driven pair, column j the sensed pair. Three diagonals stay empty. A network for images can read this map. Here are its first rows, with the number of each voltage; `pairs` returns the voltages of a map:

# %%
#| export
ELECTRODES = 16
VALUES = 208  # voltages of a measurement: 16 driven pairs, 13 sensed pairs each
_PLACES = [(r, j) for r in range(16) for j in range(16) if (j - r) % 16 not in (15, 0, 1)]
_DRIVEN, _SENSED = np.array(_PLACES).T
DISTANCE = np.minimum((_SENSED - _DRIVEN) % 16, (_DRIVEN - _SENSED) % 16)  # 2 to 8, of each value


def pairs(maps: Tensor) -> Tensor:  # [..., 16, 16] -> [..., 208]
    "The measured values of a map."
    return maps[..., _DRIVEN, _SENSED]


def tank_map(voltages: Tensor) -> Tensor:  # [..., 208] -> [..., 16, 16]
    "The map of a measurement, driven and sensed pair; 0 where nothing is measured."
    made = voltages.new_zeros(*voltages.shape[:-1], 16, 16)
    made[..., _DRIVEN, _SENSED] = voltages
    return made


# %%
numbers = tank_map(torch.arange(208))
print(numbers[:3], pairs(numbers)[:16], sep="\n")


# %% [markdown]
# ## Triangles
#
# In the tank the potential u obeys div(σ grad u) = 0 with conductivity σ. We divide the disc into triangles, and let u be linear and σ constant on each. The tank then is a network of resistors between the corners.
#
# The corners of our mesh lie on rings, and a Delaunay triangulation joins them. Each ring is turned by half a step against the one around it. Where the corners come too close, their number is halved, never below 16. The mesh has all the symmetries of the electrodes: turned by 22.5 degrees or mirrored, it is the same mesh. So the measurement of a turned tank is *exactly* the rolled measurement, and one simulation yields 32 training samples.

# %%
#| export
class Mesh(NamedTuple):
    "Triangles that fill the tank."

    nodes: Tensor  # [n,2] float64: row and column of each corner, -1 to 1
    triangles: Tensor  # [E,3] corners of each triangle
    electrodes: Tensor  # [16] the corners that are electrodes


def ring_mesh(around: int = 64) -> Mesh:
    "A mesh of rings with the symmetries of the electrodes; `around` is a multiple of 16."
    rings = round(around / 5.4)  # triangles of nearly equal sides
    count, shift, nodes = around, 0.0, []  # corners of a ring, its turn in steps
    for ring in range(rings, 0, -1):
        radius = ring / rings
        if ring < rings:
            halve = count % (2 * ELECTRODES) == 0 and shift == 0 and radius * around < 0.7 * count
            count, shift = (count // 2, 0.0) if halve else (count, 0.5 - shift)
        angle = 2 * np.pi * (np.arange(count) + shift) / count
        nodes.append(radius * np.stack([np.cos(angle), np.sin(angle)], 1))
    corners = np.concatenate([*nodes, np.zeros((1, 2))])
    triangles = torch.tensor(Delaunay(corners).simplices).long()
    return Mesh(torch.tensor(corners), triangles, torch.arange(0, around, around // ELECTRODES))


# %% [markdown]
# ## The forward problem
#
# A triangle of conductivity 1 joins its three corners by conductances that depend only on its angles. (Its entries of K are the integrals of grad φ_i · grad φ_j, where φ_i is the linear function that is 1 at corner i and 0 at the others.) The sum over all triangles is K, as in the chain. Most of K is zero, because a corner has about six neighbours. A sparse factorization solves it for all 16 driven pairs in one to five milliseconds. The potential is determined up to a constant. We add 1 to each of the 16x16 entries of K between electrodes: then the potentials of the electrodes add up to 0. A real electrode has a width and a contact resistance. The *complete electrode model* describes both (Somersalo, Cheney and Isaacson, SIAM J. Appl. Math. 52, 1992, pages 1023 to 1040). Ours is simpler: an electrode is one corner without resistance.

# %%
#| export
class Tank:
    "A mesh, prepared to be solved for many conductivities."

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        corner = mesh.nodes[mesh.triangles]  # [E,3,2]
        side = corner.roll(-1, 1) - corner.roll(-2, 1)  # opposite to each corner
        area = (side[:, 0, 0] * side[:, 1, 1] - side[:, 0, 1] * side[:, 1, 0]).abs() / 2
        self.conductances = side @ side.mT / (4 * area[:, None, None])  # [E,3,3] at conductivity 1
        corners, joined = mesh.triangles, mesh.electrodes  # K has a value for each pair of these
        rows = corners.repeat_interleave(3, 1).flatten(), joined.repeat_interleave(ELECTRODES)
        columns = corners.repeat(1, 3).flatten(), joined.repeat(ELECTRODES)
        self._places = torch.cat(rows).numpy(), torch.cat(columns).numpy()
        self._driven = np.zeros((len(mesh.nodes), ELECTRODES))  # a current of 1 for each pair
        self._driven[mesh.electrodes] = np.eye(ELECTRODES) - np.roll(np.eye(ELECTRODES), 1, axis=0)

    def potentials(self, conductivity: Tensor) -> Tensor:  # [N,E], above 0 -> [N,n,16]
        "Potentials of all corners for each driven pair."
        values = (conductivity[:, :, None, None] * self.conductances).flatten(1)
        whole = F.pad(values, (0, ELECTRODES**2), value=1.0).numpy()  # 1: between electrodes
        size = (len(self.mesh.nodes),) * 2
        solved = [splu(csc_matrix((one, self._places), size)).solve(self._driven) for one in whole]
        return torch.from_numpy(np.stack(solved))

    def voltages(self, conductivity: Tensor) -> Tensor:  # [N,E], above 0 -> [N,208]
        "What the electrodes measure for a current of 1, in the published order."
        u = self.potentials(conductivity)[:, self.mesh.electrodes]
        return pairs((u.roll(-1, 1) - u).mT)


# %%
mesh: Mesh = ring_mesh()
rows, cols = mesh.nodes.T
ones = torch.ones(1, len(mesh.triangles), dtype=torch.float64)
u = Tank(mesh).potentials(ones)[0, :, 0]
plt.figure(figsize=(6, 6)).suptitle("The current enters at 0 and leaves at 1", y=0.94)
plt.triplot(cols, rows, mesh.triangles, lw=0.5, color="0.7")
level = np.geomspace(0.02, 1.2, 16)  # from line to line the potential grows by a third
levels = [*-level[::-1], 0, *level]
plt.tricontour(cols, rows, mesh.triangles, u, levels, cmap="coolwarm", vmin=-0.02, vmax=0.02)
for k, electrode in enumerate(mesh.electrodes):
    plt.text(*1.07 * mesh.nodes[electrode].flip(0), k, ha="center", va="center")
plt.gca().set(aspect="equal", ylim=(1.15, -1.15), xlim=(-1.15, 1.15));


# %% [markdown]
# The mesh is grey, the numbers are the electrodes. Each line joins points of equal potential, positive ones red, negative ones blue, 0 pale. From one line to the next the potential grows by a third, and still most lines lie around the two electrodes that carry the current. An object there changes the voltages much more than one in the middle. This is why reconstructions are sharp at the wall and blurred in the centre, by any method.
#
# ## Inclusions
#
# A sample has one to three inclusions: ellipses, and stretched polygons of three to five corners. They do not touch. They conduct better than water (+1 in the image) or hardly at all (-1). An inclusion is a row of numbers. We render it at any size, in any orientation, and at the points of any mesh, without interpolation.

# %%
#| export
def draw_shapes(rng: np.random.Generator) -> np.ndarray:  # [3,7]
    """One to three inclusions at random places in the tank, apart from each other and the wall.

    Columns: row, column, radius (tank: 1; 0: none), angle, stretch, corners (32: ellipse), change.
    """
    shapes: list[list[float]] = []
    for _ in range(rng.integers(1, 4)):
        for _ in range(20):
            radius, away = rng.uniform(0.12, 0.36), math.sqrt(rng.uniform())
            away, angle = away * (0.92 - radius), rng.uniform(0, 2 * math.pi)
            row, col = away * math.cos(angle), away * math.sin(angle)
            if all(math.hypot(row - s[0], col - s[1]) > radius + s[2] + 0.04 for s in shapes):
                corners, turn = (float(rng.choice((32, 3, 4, 5))), rng.uniform(0, 2 * math.pi))
                stretch, change = rng.uniform(0.6, 1), float(rng.choice((-1, 1)))
                shapes.append([row, col, radius, turn, stretch, corners, change])
                break
    return np.array(shapes + [[0, 0, 0, 0, 1, 32, 0]] * (3 - len(shapes)))


def sample_shapes(count: int, seed: int, first: int = 0) -> Tensor:  # [N,3,7]
    "The inclusions in the simulated tanks of a seed, from the first index on."
    drawn = [draw_shapes(np.random.default_rng([seed, first + i])) for i in range(count)]
    return torch.tensor(np.stack(drawn))


def _render(shapes: Tensor, points: Tensor, edge: float) -> Tensor:  # [N,3,7], [P,2] -> [N,P]
    "The change of conductivity at points, -1 to 1; inclusions fade out over twice `edge`."
    row, col, radius, angle, stretch, corners, change = shapes.to(points.dtype)[..., None].unbind(2)
    down, right = points[:, 0] - row, points[:, 1] - col
    cos, sin = angle.cos(), angle.sin()
    down, right = down * cos + right * sin, (right * cos - down * sin) / stretch
    sector = 2 * math.pi / corners
    around = torch.atan2(right, down) % sector - sector / 2
    depth = radius * (sector / 2).cos() - torch.hypot(down, right) * around.cos()  # inside: above 0
    return ((0.5 + depth / (2 * edge)).clamp(0, 1) * change).sum(1)


def render_images(shapes: Tensor, size: int) -> Tensor:  # [N,3,7] -> [N,size,size] float32
    "Images of inclusions; a pixel that an edge crosses has a value in between."
    at = (torch.arange(size, dtype=torch.float64) * 2 + 1) / size - 1
    points = torch.cartesian_prod(at, at)
    drawn = [_render(part, points, 1 / size).float() for part in shapes.split(32)]
    return torch.cat(drawn).unflatten(1, (size, size))


# %%
shapes = torch.tensor(np.stack([draw_shapes(np.random.default_rng(seed)) for seed in range(8)]))
images = render_images(shapes, 128)
plt.figure(figsize=(12, 1.9)).suptitle("Red conducts better than water, blue hardly at all")
plt.imshow(torch.cat([*images], 1), cmap="RdBu_r", vmin=-1, vmax=1)
for i in range(8):
    plt.gca().add_patch(plt.Circle((128 * i + 63.5, 63.5), 64, fill=False))
plt.axis("off");


# %% [markdown]
# An inclusion conducts 3 times or 0.05 times as well as the water around it. Each triangle gets the mean over four points in it, because an edge may cross a triangle. For an image from a file we take the values of its pixels at these points.

# %%
#| export
def conductivity(change: Tensor) -> Tensor:  # -1: resistive, 0: water, 1: conductive
    "Relative to the water's: 0.05, 1, or 3, and linear in between."
    return 1 + torch.where(change > 0, 2 * change, 0.95 * change)


@cache
def standard_tank(fine: bool = False) -> tuple[Tank, Tensor, Tensor]:  # points [4*E,2], [208]
    "The tank of training or finer test data; four points of each triangle, voltages of water."
    mesh = ring_mesh(96 if fine else 64)
    tank, water = Tank(mesh), torch.ones(1, len(mesh.triangles), dtype=torch.float64)
    parts = torch.tensor([[2, 2, 2], [4, 1, 1], [1, 4, 1], [1, 1, 4]], dtype=torch.float64) / 6
    points = (parts @ mesh.nodes[mesh.triangles]).flatten(0, 1)  # centres of four equal parts
    return tank, points, tank.voltages(water)[0]


def measure(shapes: Tensor, fine: bool = False) -> Tensor:  # [N,3,7] -> [N,208] float64
    "Voltages of tanks with these inclusions minus those of plain water, without noise."
    tank, points, water = standard_tank(fine)
    drawn = (conductivity(_render(part, points, edge=0.02)) for part in shapes.split(32))
    return torch.cat([tank.voltages(x.unflatten(1, (-1, 4)).mean(2)) for x in drawn]) - water


def triangle_means(images: Tensor, fine: bool = False) -> Tensor:  # [N,H,H] float64 -> [N,E]
    "The mean of an image over each triangle."
    points = standard_tank(fine)[1].flip(1).expand(len(images), 1, -1, 2)
    found = F.grid_sample(images[:, None], points, align_corners=False)[:, 0, 0]
    return found.unflatten(1, (-1, 4)).mean(2)


def measure_images(images: Tensor) -> Tensor:  # [N,H,H], -1 to 1 -> [N,208] float64
    "Voltage differences of tanks with the conductivities of these images."
    tank, _, water = standard_tank(fine=True)  # grid_sample gives 0 outside: water
    return tank.voltages(1 + triangle_means(conductivity(images.double()) - 1, fine=True)) - water


# %% [markdown]
# Here is the map of the first tank. Most of the signal lies near the empty diagonals, where the driven and the sensed pair are close. A conductive inclusion lowers the voltages that change most, a resistive one raises them. Voltages computed from the images instead of the inclusions, on a finer mesh, differ by 5 percent (first line).

# %%
voltages = measure(shapes)
print(f"difference: {(measure_images(images) - voltages).norm() / voltages.norm():.1%}")
x = conductivity(triangle_means(images[:1].double()))[0].log()
figure, axes = plt.subplots(1, 2, figsize=(7, 3), layout="constrained")
axes[0].tripcolor(cols, rows, standard_tank()[0].mesh.triangles, x, cmap="RdBu_r", vmin=-1, vmax=1)
axes[0].set(ylim=(1, -1), aspect="equal", title="conductivity: 0.05 (blue), 1, 3 (red)")
shown = axes[1].imshow(tank_map(voltages)[0], cmap="PuOr", vmin=-0.015, vmax=0.015)
axes[1].set(xlabel="sensed pair", ylabel="driven pair")
figure.colorbar(shown, label="voltage minus that of water");

# %% [markdown]
# ## Thirty-two orientations of a tank
#
# Turn the tank by one electrode, and the map rolls by one along both axes. Mirror it left to right, and pair i becomes pair -i-1. Orientation `way` (0 to 31) mirrors first if it is 16 or more, then turns by `way` mod 16 electrodes. For voltages an orientation is a different order of the 208 numbers. An image from a file is turned by interpolation; simulated inclusions are turned exactly.

# %%
#| export
WAYS = 32


@cache
def _orders() -> Tensor:  # [32,208]
    "For each orientation, where each of the 208 voltages comes from."
    index = tank_map(torch.arange(VALUES))
    both = index, index.flip(0, 1)
    return torch.stack([pairs(both[w // 16].roll((w % 16, w % 16), (0, 1))) for w in range(WAYS)])


def turn_voltages(voltages: Tensor, way: Tensor) -> Tensor:  # [N,208], [N] 0 to 31 -> [N,208]
    "Voltages as they would be measured of the turned tank."
    return voltages.gather(1, _orders().to(voltages.device)[way])


def turn_images(images: Tensor, way: Tensor) -> Tensor:  # [N,H,H], [N] 0 to 31 -> [N,H,H], bilinear
    "Images of the turned tank."
    angle = way % 16 * (2 * math.pi / 16)
    cos, sin = angle.cos(), angle.sin()
    flip = torch.where(way >= 16, -1.0, 1.0)
    rows = [torch.stack([flip * cos, -flip * sin], 1), torch.stack([sin, cos], 1)]
    matrix = F.pad(torch.stack(rows, 1), (0, 1)).to(images)  # [N,2,3], of column and row
    grid = F.affine_grid(matrix, [len(images), 1, *images.shape[1:]], align_corners=False)
    return F.grid_sample(images[:, None], grid, align_corners=False)[:, 0]


def turn_shapes(shapes: Tensor, way: Tensor) -> Tensor:  # [N,3,7], [N] 0 to 31 -> [N,3,7]
    "Inclusions in the turned tank."
    row, col, radius, angle, *others = shapes.unbind(2)
    flip = torch.where(way >= 16, -1, 1)[:, None]
    turn = (way.double() % 16 * (2 * math.pi / 16))[:, None]
    away, at = torch.hypot(row, col), flip * torch.atan2(col, row) + turn
    placed = [away * at.cos(), away * at.sin(), radius, flip * angle + turn]
    return torch.stack([*placed, *others], 2)


# %% [markdown]
# ## Which electrode is the first?
#
# Other instruments count their electrodes from a different one, or in the opposite direction. This causes no error message, but all images are turned. Where the true image is known, physics finds the orientation: we compute the voltages of the tank, and compare them with the recording in all 32 orientations. A single centred circle looks the same in all 32 orientations, so the test needs a tank without symmetry, or several tanks. Here a tank is turned by five electrodes and measured, and its image is not turned. The bar of orientation 5 (orange) is the highest. When we turn the image, too, orientation 0 fits:

# %%
#| export
def orientation(voltages: Tensor, images: Tensor) -> Tensor:  # [N,208], [N,H,H] -> [N,32]
    "Correlation of recorded voltages with those computed from the images, in each orientation."
    ways = measure_images(images.clamp(-1, 1))[:, _orders()]  # [N,32,208]
    return correlation(voltages.double()[:, None], ways)


def correlation(a: Tensor, b: Tensor) -> Tensor:  # [...,P] -> [...] -1 to 1
    "Pearson's correlation over the last axis; NaN where one of both is constant."
    a, b = a - a.mean(-1, keepdim=True), b - b.mean(-1, keepdim=True)
    return (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1))


# %%
shapes, way = sample_shapes(1, seed=3), torch.tensor([5])
voltages, images = measure(turn_shapes(shapes, way), fine=True), render_images(shapes, 128)
plt.figure(figsize=(6, 2))
plt.bar(range(WAYS), orientation(voltages, images)[0], color=["C0"] * 5 + ["C1"] + ["C0"] * 26)
plt.gca().set(xlabel="orientation", ylabel="correlation", xticks=range(0, WAYS, 5))
print(f"with the turned image: {orientation(voltages, turn_images(images, way))[0, 0]:.2f}")

# %% [markdown]
# ## The machinery: simulated samples
#
# An amplifier adds noise, and each driven and each sensed pair has a different gain. How large are these errors in real tanks? The recordings themselves show it. Driving at r and sensing at j must give the same voltage as driving at j and sensing at r; any difference is an error. In 47 recorded tanks the differences fit a noise of 2 percent and gains that differ by 7 percent. (This estimate needs no true image.) Both are sampled for each tank from the seed and the index of the tank. So the first hundred samples are the same, however many follow.
#
# Samples for training and for testing come from different meshes. A method that is tested on the mesh of its training looks better than it is; this is called the *inverse crime*. Voltages have the unit of the published data sets, whose currents and contrasts differ from ours. One factor converts them; it comes from the scale of the published training voltages. Networks get normalised voltages anyway.

# %%
#| export
UNIT = 1 / 420  # from a current and a conductivity of 1 to the published unit


def simulate(
    count: int,
    seed: int,
    size: int = 32,
    fine: bool = False,  # on the mesh of test data
    noise: float = 0.02,  # standard deviation, as a fraction of the voltages' root mean square
    gains: float = 0.07,  # standard deviation of the gain of each driven and each sensed pair
    first: int = 0,  # index of the first sample
) -> tuple[Tensor, Tensor]:  # voltages [N,208], images [N,size,size], both float32
    "Simulated measurements with their true images."
    shapes = sample_shapes(count, seed, first)
    clean, rows = measure(shapes, fine), range(first, first + count)
    drawn = [np.random.default_rng([seed, row, 1]).normal(size=240) for row in rows]
    normal = torch.tensor(np.stack(drawn))  # [N,240]: 32 for the gains, 208 for the noise
    gain = (1 + gains * normal[:, :16, None]) * (1 + gains * normal[:, None, 16:32])
    level = clean.square().mean(1, keepdim=True).sqrt()
    voltages = UNIT * (clean * pairs(gain) + noise * level * normal[:, 32:])
    return voltages.float(), render_images(shapes, size)

# %% [markdown]
# ## Questions
#
# 1. Each of 16 pairs is driven, and 15 other pairs are left. Why are there 208 voltages, and not 240?
#    <details><summary>Answer</summary>Two of the 15 share an electrode with the driven pair. The current through this electrode adds an unknown contact voltage, so these pairs are left out: 16 times 13.</details>
# 2. How many of the 208 voltages are independent, without noise? What are the others good for?
#    <details><summary>Answer</summary>Half of them, 104: exchanging the driven and the sensed pair gives the same voltage. The other half shows the errors of the instrument.</details>
