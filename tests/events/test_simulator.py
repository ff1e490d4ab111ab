"The simulated camera and its digits."

import numpy as np
import pytest

from mshnet.events import simulator
from mshnet.events.simulator import simulate


@pytest.fixture
def perfect(monkeypatch):
    "A sensor without hot pixels and jitter."
    monkeypatch.setattr(simulator, "_HOT", 0)
    monkeypatch.setattr(simulator, "_JITTER", 0.0)
    simulate.cache_clear()
    yield
    simulate.cache_clear()


def test_a_perfect_sensor_reports_changes_of_the_logarithm(perfect):
    "ON minus OFF events of a pixel are its change of log brightness over all, in thresholds."
    [recording] = simulate(1, 0, 0.0)
    balance = np.zeros((34, 34))
    np.add.at(balance, (recording.y, recording.x), 2 * recording.p - 1)
    assert np.abs(balance).max() <= 1  # the digit ends where it began
    assert 500 < len(recording) < 6000 and recording.t[-1] <= 300_000
    early = recording.t < 100_000
    assert early.sum() > 100 and (~early).sum() > 200  # all three turns


def test_noise_is_as_much_as_the_setting_says(perfect):
    "Events per pixel and second."
    plain, noisy = (simulate(10, 1, noise) for noise in (0.0, 2.0))
    more = np.mean([len(b) - len(a) for a, b in zip(plain, noisy, strict=True)])
    assert more == pytest.approx(2 * 34 * 34 * 0.3, rel=0.05)


def test_a_simulation_depends_on_its_seed_alone(perfect):
    "The first recordings of many are those of a few hundred."
    few, many, other = (simulate(*how, 0.0) for how in ((100, 0), (150, 0), (100, 1)))
    for a, b, c in zip(few, many, other, strict=False):
        assert np.array_equal(a.t, b.t) and np.array_equal(a.x, b.x)
        assert not np.array_equal(a.x, c.x)
