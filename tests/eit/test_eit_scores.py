"The scores by which methods are compared, the classical methods, the honesty of a spread."

import json
import math
import runpy

import numpy as np
import pytest
import torch
from conftest import SHARED, TOP, data_folder

from mshnet.eit.scores import calibration, score_images
from mshnet.eit.tanks import open_folder

RESULTS = TOP / "results/eit-yardsticks"


def test_real_tanks_by_the_classical_methods():
    "Today's tanks, statistics and scores make of the script the numbers that are in results/."
    kept = json.loads((RESULTS / "yardsticks.json").read_text("utf-8"))
    made, folder = runpy.run_path(str(RESULTS / "yardsticks.py")), data_folder("eit-tank")
    for part in ("uef2017", "ktc2023"):
        tanks = open_folder(folder, part, 128)
        truth = torch.stack([tanks.pair(i)[1] for i in range(len(tanks))])
        found = made["yardsticks"](tanks.voltages, tanks.stats, 128)
        for name in ("ridge", "tikhonov", "gauss_newton"):
            scores = score_images(found[name], truth)
            for score, value in kept[part][name].items():
                assert float(scores[score].nanmean()) == pytest.approx(value, abs=0.002)


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
        dice = 2 * ((a > 0.5) & (b > 0.5)).sum() / ((a > 0.5).sum() + (b > 0.5).sum())
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


def test_calibration_of_spreads():
    "Honest, too small and too large spreads, and spreads that show where errors are."
    gen = torch.Generator().manual_seed(0)
    true_spread = 0.1 + torch.rand(20, 32, 32, generator=gen)
    truth = true_spread * torch.randn(20, 32, 32, generator=gen)
    zero = torch.zeros_like(truth)
    honest = means(calibration(zero, true_spread, truth))
    assert honest["within_1"] == pytest.approx(0.683, abs=0.01) and honest["spread_cc"] > 0.3
    bold, timid = (means(calibration(zero, k * true_spread, truth))["within_1"] for k in (0.5, 2))
    assert bold < 0.45 < 0.9 < timid
    flat = calibration(zero, true_spread[:, :1, :1].expand_as(truth), truth)
    assert flat["spread_cc"].isnan().all()


def test_spreads_of_four_samples_are_too_small():
    "Even of a right sampler: the numbers that the card and the guide name."
    drawn = torch.randn(5, 200, 32, 32, generator=torch.Generator().manual_seed(0))
    truth, samples = drawn[0], drawn[1:]
    found = means(calibration(samples.mean(0), samples.std(0, correction=0), truth))
    assert [round(100 * found[f"within_{k}"]) for k in (1, 2)] == [50, 78]
    for text in ("mshnet/pretrained-eit.md", "nbs/guides/eit.py"):
        assert "50% and 78%" in (TOP / text).read_text(encoding="utf-8")


def means(scores):
    "The mean of each score."
    return {name: float(values.mean()) for name, values in scores.items()}
