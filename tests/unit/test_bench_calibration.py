"""bench/calibration: what is planted is what is there, and the verdicts see it."""

import numpy as np
import pytest

from bench import calibration
from bench.calibration import World

RNG_SEED = 5


def test_without_noise_only_the_drift_is_left_and_mirrored_pairs_take_it_out() -> None:
    values = calibration.played(World(1e-9, (1.1, 1.0, 1.0, 1.0)), 4, np.random.default_rng(RNG_SEED))
    logs = np.log(values[:, 1] / values[:, 0])
    assert np.abs(logs[0] - logs[1]).min() > calibration.DRIFT
    assert logs.mean(axis=0) == pytest.approx([np.log(1.1), 0, 0, 0], abs=1e-6)


@pytest.mark.parametrize("is_heavy", [False, True])
def test_deployments_differ_by_the_stated_cv_and_indicators_move_together(is_heavy: bool) -> None:
    rng = np.random.default_rng(RNG_SEED)
    logs = np.log(
        np.concatenate([calibration.played(World(0.03, is_heavy=is_heavy), 1, rng)[:, 0] for _ in range(4000)])
    )
    assert logs.std(axis=0) == pytest.approx([0.03] * 4, rel=0.1)
    assert np.corrcoef(logs.T)[0, 1] == pytest.approx(calibration.TOGETHER, abs=0.06)


def test_verdicts_find_what_is_large_and_nothing_where_nothing_is() -> None:
    rng = np.random.default_rng(RNG_SEED)
    clear = World(0.01, (1.5, 1.0, 1.0, 1.0))
    assert all(calibration.is_found(calibration.verdicts(calibration.played(clear, 6, rng))) for _ in range(20))
    errors = sum(
        calibration.is_error(calibration.verdicts(calibration.played(World(0.03), 6, rng))) for _ in range(100)
    )
    assert errors <= 11  # of 100 at 5 %, with less than 1 % chance of more


def test_a_clear_effect_stops_at_the_first_look() -> None:
    rng = np.random.default_rng(RNG_SEED)
    clear = calibration.played(World(0.005, (1.5, 1.0, 1.0, 1.0)), 8, rng)
    assert calibration._stopped(clear) == (4, True)
