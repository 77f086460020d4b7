"""Chance in golden verdicts: simulated runs of one server must rarely be called worse, a worse one must be."""

import random

import pytest

from tasks.stats.flips import flips, is_change, most_by_chance, turned

CASES = [f"g{number}" for number in range(40)]


def outcomes(failing: set[str]) -> dict[str, bool]:
    return {case: case not in failing for case in CASES}


def test_turned() -> None:
    before, after = outcomes({"g1", "g2"}), outcomes({"g2", "g3"}) | {"new": False}
    assert turned(before, after, to=False) == ["g3"]
    assert turned(before, after, to=True) == ["g1"]


def test_flips_counts_passes_and_those_that_failed_next() -> None:
    history = [outcomes(set()), outcomes({"g1"}), outcomes({"g1", "g2"})]
    assert flips(history) == (2, 40 + 39)
    assert flips(history[:1]) == flips([]) == (0, 0)


@pytest.mark.parametrize(("runs", "most"), [(2, 2), (3, 1), (11, 0), (20, 0)])
def test_the_bound_tightens_with_a_steady_history(runs: int, most: int) -> None:
    assert most_by_chance(0, 40 * (runs - 1), 40) == most


def test_against_brute_force() -> None:
    """The same beta-binomial, drawn."""
    rng = random.Random(3)
    drawn = sorted(
        sum(rng.random() < rate for _ in range(40)) for rate in (rng.betavariate(2.5, 118.5) for _ in range(20_000))
    )
    assert most_by_chance(2, 120, 40) == drawn[int(0.95 * len(drawn))]


def test_an_unchanged_server_is_rarely_called_worse() -> None:
    """A server of which each case fails 2 % of the time: 5 % of its runs may be called worse, give or take."""
    rng = random.Random(11)
    wrong = 0
    for _ in range(2000):
        runs = [{case: rng.random() > 0.02 for case in CASES} for _ in range(9)]
        worse = len(turned(runs[-2], runs[-1], to=False))
        wrong += worse > most_by_chance(*flips(runs[:-1]), sum(runs[-2].values()))
    assert wrong / 2000 < 0.07


@pytest.mark.parametrize(
    ("worse", "better", "expected"),
    [(5, 0, True), (4, 0, False), (7, 1, True), (6, 1, False), (0, 0, False), (0, 5, False)],
)
def test_sign_test(worse: int, better: int, expected: bool) -> None:
    """1/32 and 9/256 are below 5 %, 1/16 and 8/128 are not."""
    assert is_change(worse, better) is expected


def test_no_passing_case_is_no_failure_to_allow() -> None:
    assert most_by_chance(0, 0, 0) == 0
