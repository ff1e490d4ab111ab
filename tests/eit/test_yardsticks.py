"The classical methods, the scores by which all are compared, and the honesty of a spread."

import json
import math

import numpy as np
import pytest
import torch
from conftest import SHARED, TOP

from mshnet.eit.tank import WAYS, correlation, simulate, standard_tank, turn_images, turn_voltages
from mshnet.eit.tanks import Stats, open_folder
from mshnet.eit.yardsticks import (
    calibration,
    gauss_newton,
    inside,
    jacobian,
    ridge,
    score_images,
    tikhonov,
    write_tanks,
    yardsticks,
)

SIMULATED = Stats.known("simulated")
RESULTS = TOP / "results/eit-yardsticks/yardsticks.json"


def real(part, size):
    "Real tanks and their true pictures."
    folder = SHARED / "data" / "eit-tank"
    if not folder.is_dir():
        pytest.skip("needs data/eit-tank; set MSHNET_SHARED to the folder that holds data/")
    tanks = open_folder(folder, part, size)
    return tanks, torch.stack([tanks.pair(i)[1] for i in range(len(tanks))])


def test_the_jacobian_is_the_derivative():
    "Against differences, at a conductivity that is not plain water."
    tank, *_ = standard_tank()
    sigma = torch.linspace(0.2, 3, len(tank.mesh.triangles), dtype=torch.float64)[None]
    found = jacobian(tank, sigma)[0]
    for triangle in (0, 100, 700):
        step = torch.zeros_like(sigma)
        step[0, triangle] = 1e-5
        want = (tank.voltages(sigma + step) - tank.voltages(sigma - step))[0] / 2e-5
        torch.testing.assert_close(found[:, triangle], want, atol=1e-9, rtol=1e-4)


def test_ridge_solves_its_equations():
    "Against numpy, on the normalised voltages of the tanks it is made with."
    made = ridge(16, weight=0.5)
    voltages = SIMULATED.normalise(simulate(1000, 2**30, 8)[0])
    rng = np.random.default_rng(2**30)
    rows = [
        turn_voltages(voltages, torch.from_numpy(rng.integers(0, WAYS, 1000))) for _ in range(8)
    ]
    A = np.concatenate([torch.cat(rows).numpy(), np.ones((8000, 1))], 1).astype(float)
    whole = np.concatenate([made.matrix.numpy(), made.offset.numpy()[:, None]], 1).T
    # the gradient of the squared error vanishes: A'A w + n weight w is the right side
    right = (A.T @ A / 8000 + 0.5 * np.eye(209)) @ whole
    assert np.abs(right[-1] - (A @ whole).mean(0) - 0.5 * whole[-1]).max() < 1e-4
    smoother = ridge(16, weight=5.0)
    assert smoother.matrix.norm() < made.matrix.norm() < ridge(16, weight=0.005).matrix.norm()


@pytest.mark.parametrize("method", [tikhonov, gauss_newton])
def test_a_turned_tank_is_a_turned_picture(method):
    "Quarter turns and the mirror, which a grid of pixels has too."
    voltages, _ = simulate(1, 3, 8)
    ways = torch.tensor([4, 12, 16, 24])
    image = method(voltages, SIMULATED, 32).expand(4, -1, -1)
    turned = method(turn_voltages(voltages.expand(4, -1), ways), SIMULATED, 32)
    torch.testing.assert_close(turned, turn_images(image, ways), atol=1e-4, rtol=1e-3)


def test_more_steps_fit_better():
    "Gauss-Newton explains the voltages better than one linear step, and finds the picture."
    voltages, images = simulate(12, 9, 32, fine=True)
    one, three = (gauss_newton(voltages, SIMULATED, 32, steps=n) for n in (1, 3))
    errors = [float((x - images).square().mean().sqrt()) for x in (one, three)]
    assert errors[1] < errors[0] < float(images.square().mean().sqrt())
    assert correlation(three.flatten(1), images.flatten(1)).mean() > 0.65


def test_batches_change_nothing():
    "A picture is the same alone and in company, for every method."
    voltages, _ = simulate(10, 2, 8)
    together = yardsticks(voltages, SIMULATED, 32)
    alone = yardsticks(voltages[9:], SIMULATED, 32)
    for name, images in together.items():
        torch.testing.assert_close(images[9:], alone[name], atol=1e-5, rtol=1e-5)
    assert not together["empty"].any()
    assert all(not images[:, ~inside(32)].any() for images in together.values())


@pytest.mark.parametrize(
    ("part", "least"),
    [
        ("uef2017", {"ridge": 0.71, "tikhonov": 0.70, "gauss_newton": 0.73}),
        ("ktc2023", {"ridge": 0.73, "tikhonov": 0.70, "gauss_newton": 0.732}),
    ],
)
def test_real_tanks_by_the_classical_methods(part, least):
    "Better than the published pictures; weights from simulated tanks, no truth but to score."
    tanks, truth = real(part, 128)
    found = yardsticks(tanks.voltages, tanks.stats, 128)
    scores = {name: score_images(images, truth) for name, images in found.items()}
    kept = json.loads(RESULTS.read_text("utf-8"))[part]
    for name, cc in least.items():
        assert float(scores[name]["cc"].mean()) >= cc
        assert float(scores[name]["rmse"].mean()) < float(scores["empty"]["rmse"].mean())
        for score, value in kept[name].items():
            assert float(scores[name][score].nanmean()) == pytest.approx(value, abs=0.002)


def test_the_weights_are_the_chosen_ones():
    "The defaults of the library, and what results/ says was chosen."
    kept = json.loads(RESULTS.read_text("utf-8"))["weights"]
    for name, method in (("tikhonov", tikhonov), ("gauss_newton", gauss_newton)):
        assert (
            kept[name]
            == dict(
                zip(
                    method.__code__.co_varnames[: method.__code__.co_argcount][::-1],
                    method.__defaults__[::-1],
                    strict=False,
                )
            )["weight"]
        )
    assert kept["ridge"] == ridge.__wrapped__.__defaults__[0]


def test_scores_against_other_people_s():
    "CC by numpy, RMSE and PSNR by hand, the golden CC of the reference code."
    rng = np.random.default_rng(0)
    truth = np.where(rng.random((3, 32, 32)) > 0.8, 1.0, 0.0) - np.eye(32)
    images = truth + 0.4 * rng.normal(size=truth.shape)
    found = score_images(torch.tensor(images), torch.tensor(truth))
    for i in range(3):
        a, b = images[i], truth[i]
        assert float(found["cc"][i]) == pytest.approx(np.corrcoef(a.ravel(), b.ravel())[0, 1])
        mse = np.mean((a - b) ** 2)
        assert float(found["rmse"][i]) == pytest.approx(math.sqrt(mse))
        assert float(found["psnr"][i]) == pytest.approx(10 * math.log10(4 / mse))
        both = ((a > 0.5) & (b > 0.5)).sum()
        dice = 2 * both / ((a > 0.5).sum() + (b > 0.5).sum())
        assert float(found["dice_conductive"][i]) == pytest.approx(dice)
    path = SHARED / "golden/eit/metrics.npz"
    if path.exists():
        golden = np.load(path)
        parts = (torch.tensor(golden[k].astype(float)) for k in ("pred", "gt"))
        np.testing.assert_allclose(score_images(*parts)["cc"], golden["cc"], atol=1e-5)


def test_scores_that_are_not_defined_are_nan():
    "An empty picture has no correlation; a tank without resistive things has no Dice of them."
    truth = torch.zeros(1, 32, 32)
    truth[0, 10:20, 10:20] = 1
    found = score_images(torch.zeros(1, 32, 32), truth)
    assert found["cc"].isnan() and found["dice_resistive"].isnan()
    assert float(found["dice_conductive"]) == 0
    perfect = score_images(truth, truth)
    assert float(perfect["cc"]) == pytest.approx(1) and float(perfect["ssim"]) == pytest.approx(1)
    assert float(perfect["psnr"]) == math.inf
    wrong = score_images(-truth, truth)
    assert float(wrong["cc"]) == pytest.approx(-1) and float(wrong["dice_resistive"]) == 0


def test_only_the_inside_counts_for_ssim():
    "What is wrong in the corners, outside of the tank, is not seen."
    truth = torch.zeros(1, 64, 64)
    truth[0, 20:40, 20:40] = 1
    spoiled = truth.clone()
    spoiled[0, :6, :6] = 1
    within = score_images(torch.stack([truth[0], spoiled[0]]), truth.expand(2, -1, -1))["ssim"]
    assert float(within[1]) == pytest.approx(1)


def test_calibration_of_spreads():
    "Honest, too small and too large spreads, and spreads that show where errors are."
    gen = torch.Generator().manual_seed(0)
    true_spread = 0.1 + torch.rand(20, 32, 32, generator=gen)
    truth = true_spread * torch.randn(20, 32, 32, generator=gen)
    zero = torch.zeros_like(truth)
    honest = calibration(zero, true_spread, truth)
    assert honest["within_1"] == pytest.approx(0.683, abs=0.01)
    assert honest["within_2"] == pytest.approx(0.954, abs=0.01)
    assert honest["spread_cc"] > 0.3
    bold, timid = (calibration(zero, k * true_spread, truth)["within_1"] for k in (0.5, 2))
    assert bold < 0.45 < 0.9 < timid
    flat = calibration(zero, true_spread[:, :1, :1].expand_as(truth), truth)
    assert math.isnan(flat["spread_cc"])


def test_written_sets_hold_the_classical_pictures(tmp_path):
    "TR and xs_gn of a written sample are those of the methods."
    write_tanks(tmp_path / "set", {"train": 2})
    voltages, _ = simulate(2, 0, 128)
    with np.load(tmp_path / "set/train/000001.npz") as file:
        for key, method in (("TR", tikhonov), ("xs_gn", gauss_newton)):
            want = method(voltages[1:], SIMULATED, 128)[0]
            torch.testing.assert_close(torch.tensor(file[key]), want, atol=1e-4, rtol=1e-4)
