"""tasks/stats/effect and sequential: against closed forms and scipy, and what each outcome needs."""

import math

import numpy as np
import pytest
from scipy import stats

from tasks.stats import effect, sequential

PAIRS = [(100.0, 111.0), (102.0, 110.0), (99.0, 108.0), (101.0, 113.0)]


def even(mean: float, spread: float, n: int = 6) -> list[tuple[float, float]]:
    """Pairs whose logs differ by exactly this mean and standard deviation."""
    z = np.resize([1.0, -1.0], n)
    z = (z - z.mean()) / z.std(ddof=1) * spread + mean
    return [(100.0, 100.0 * math.exp(x)) for x in z]


def outcome(mean: float, spread: float, *, floor: float = 0.0, n: int = 6, better: str = "lower") -> effect.Compared:
    found = effect.paired(even(mean, spread, n))
    return effect.judged(found, found.p, floor, better=better, margin=0.05)  # type: ignore[arg-type]


def test_paired_is_the_t_test_on_the_pairs_logs() -> None:
    logs = [math.log(arm / control) for control, arm in PAIRS]
    told = stats.ttest_1samp(logs, 0.0)
    low, high = told.confidence_interval(0.95)
    found = effect.paired(PAIRS)
    assert (found.mean, found.lower, found.upper) == pytest.approx((np.mean(logs), low, high))
    assert found.p == pytest.approx(told.pvalue)
    assert found.shown[0] == pytest.approx(math.exp(np.mean(logs)))


def test_welch_is_the_t_test_on_two_samples() -> None:
    control, arm = [a for a, _ in PAIRS], [b for _, b in PAIRS[:3]]
    told = stats.ttest_ind(np.log(arm), np.log(control), equal_var=False)
    low, high = told.confidence_interval(0.95)
    found = effect.welch(control, arm)
    assert (found.lower, found.upper, found.p) == pytest.approx((low, high, told.pvalue))
    assert found.n == 3


def test_a_steady_drift_of_the_machine_moves_no_mean() -> None:
    """Deployments 1 to 8 in mirrored order, each 2 % slower than the one before, and no effect."""
    at = [100 * 1.02**i for i in range(8)]
    drifting = [(at[0], at[1]), (at[3], at[2]), (at[4], at[5]), (at[7], at[6])]
    found = effect.paired(drifting)
    assert found.mean == pytest.approx(0.0)
    assert found.lower < 0 < found.upper


def test_indicators_that_may_be_nothing_are_differences() -> None:
    found = effect.paired([(0.0, 0.02), (0.0, 0.04), (0.01, 0.03)], scale="difference")
    assert found.shown[0] == pytest.approx(0.08 / 3)
    alike = effect.paired([(0.0, 0.0)] * 4, scale="difference")
    assert (alike.p, alike.lower, alike.upper) == (1.0, 0.0, 0.0)
    assert effect.paired([(0.0, 0.5)] * 4, scale="difference").p == 0.0


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        (PAIRS[:1], "at least 2"),
        ([(1.0, math.inf), (1.0, 1.0)], "must be finite"),
        ([(1.0, math.nan), (1.0, 1.0)], "must be finite"),
        ([(0.0, 1.0), (1.0, 1.0)], "above 0"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_words(pairs: list[tuple[float, float]], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        effect.paired(pairs)
    with pytest.raises(ValueError, match=words):
        effect.welch([a for a, _ in pairs], [b for _, b in pairs])


def test_the_floor_is_the_limit_of_the_control_against_itself() -> None:
    logs = [0.01, -0.02, 0.03, 0.0]
    found = effect.floor([[100 * math.exp(x) for x in logs]], 4)
    assert found == pytest.approx(stats.t.ppf(0.975, 3) * np.std(logs, ddof=1) * math.sqrt(2 / 4))
    with pytest.raises(ValueError, match="no noise floor"):
        effect.floor([[100.0], []], 4)


def test_a_level_that_moved_between_two_nights_is_no_noise() -> None:
    night = [100.0, 101.0, 99.0]
    assert effect.floor([night, [2 * x for x in night]], 4) < effect.floor([night], 4)
    assert effect.floor([[*night, *(2 * x for x in night)]], 4) > 5 * effect.floor([night], 4)


def test_holm() -> None:
    assert effect.holm([0.04, 0.01, 0.03, 0.5]) == pytest.approx([0.09, 0.04, 0.09, 0.5])
    assert effect.holm([]) == []
    assert effect.holm([0.9, 0.9]) == [1.0, 1.0]


def test_outcomes() -> None:
    assert outcome(-0.10, 0.03).outcome == "BETTER"
    assert outcome(0.10, 0.03).outcome == "WORSE"
    assert outcome(0.10, 0.03, better="higher").outcome == "BETTER"
    assert outcome(0.005, 0.01).outcome == "EQUIVALENT"
    assert outcome(0.05, 0.15).outcome == "INCONCLUSIVE"


def test_a_certain_effect_that_is_not_worth_having_is_equivalent() -> None:
    found = outcome(0.01, 0.001)
    assert found.p < 0.001
    assert found.outcome == "EQUIVALENT"


def test_nothing_within_the_floor_is_an_effect() -> None:
    found = outcome(-0.10, 0.03, floor=0.11)
    assert found.outcome == "INCONCLUSIVE"
    assert "within the noise floor" in found.reason


def test_two_pairs_say_nothing() -> None:
    found = outcome(-0.5, 0.001, n=2)
    assert (found.outcome, found.more) == ("INCONCLUSIVE", 2)


@pytest.mark.parametrize(("mean", "spread"), [(0.08, 0.12), (0.0, 0.09)])
def test_so_many_more_repeats_settle_it_if_mean_and_spread_stay(mean: float, spread: float) -> None:
    found = outcome(mean, spread)
    assert found.outcome == "INCONCLUSIVE"
    assert found.more is not None and found.more % 2 == 0
    settled = outcome(mean, spread, n=6 + found.more)
    assert settled.outcome in ("WORSE", "EQUIVALENT")
    assert outcome(mean, spread, n=6 + found.more - 2).outcome == "INCONCLUSIVE"


def test_what_no_number_of_repeats_settles_is_said() -> None:
    found = outcome(0.04, 0.9)
    assert found.more is None
    assert "64 repeats would not settle it" in found.reason


def test_the_level_of_each_look_is_pocock_s() -> None:
    """Jennison and Turnbull 2000, table 2.1: constants 2.178 for two and 2.289 for three equally spaced looks."""
    assert sequential.level([4]) == 0.05
    assert stats.norm.isf(sequential.level([4, 8]) / 2) == pytest.approx(2.178, abs=0.003)
    assert stats.norm.isf(sequential.level([4, 8, 12]) / 2) == pytest.approx(2.289, abs=0.003)
    assert sequential.level([4, 6, 8]) > sequential.level([2, 4, 8])


@pytest.mark.parametrize("looks", [[], [1, 2], [4, 4], [6, 4]])
def test_looks_that_are_none_are_refused(looks: list[int]) -> None:
    with pytest.raises(ValueError, match="looks: must be growing"):
        sequential.level(looks)
