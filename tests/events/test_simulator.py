"The simulated camera and its digits."

import numpy as np
import pytest

from mshnet.events.simulator import Camera, simulate

PERFECT = Camera(0.0, 0, 0.0)


def test_a_perfect_sensor_reports_changes_of_the_logarithm():
    "ON minus OFF events of a pixel are its change of log brightness over all, in thresholds."
    [recording] = simulate(1, 0, PERFECT)
    balance = np.zeros((34, 34))
    np.add.at(balance, (recording.y, recording.x), 2 * recording.p - 1)
    assert np.abs(balance).max() <= 1  # the digit ends where it began
    assert 500 < len(recording) < 6000 and recording.milliseconds <= 300
    before, after = (r.t < 100_000 for r in (recording, recording))
    assert before.sum() > 100 and (~after).sum() > 200  # all three turns


def test_faults_are_as_many_as_the_settings_say():
    "Noise per pixel and second, hot pixels 100 times a second; jitter moves times alone."
    plain, noisy, hot, late = (
        simulate(10, 1, camera)
        for camera in (PERFECT, Camera(2.0, 0, 0.0), Camera(0.0, 3, 0.0), Camera(0.0, 0, 2.0))
    )
    more = np.mean([len(b) - len(a) for a, b in zip(plain, noisy, strict=True)])
    assert more == pytest.approx(2 * 34 * 34 * 0.3, rel=0.05)
    assert {len(b) - len(a) for a, b in zip(plain, hot, strict=True)} == {90}
    for a, b in zip(plain, late, strict=True):
        assert sorted(zip(a.x, a.y, strict=True)) == sorted(zip(b.x, b.y, strict=True))
        assert (a.t != b.t).any() and (np.diff(b.t) >= 0).all()


def test_a_simulation_depends_on_its_seed_alone():
    "The first recordings of many are those of a few hundred."
    few, many, other = (simulate(*how, PERFECT) for how in ((100, 0), (150, 0), (100, 1)))
    for a, b, c in zip(few, many, other, strict=False):
        assert np.array_equal(a.t, b.t) and np.array_equal(a.x, b.x)
        assert not np.array_equal(a.x, c.x)
