"""Blocks, floors and corrections of bench/gpu_host/results.py, held against figures worked out by hand or by tables."""

import math

import pytest

from bench.gpu_host import results

C, A = results.CONTROL, "arm"


def of(letters: str) -> list[tuple[str, str]]:
    return [(C if letter == "C" else A, f"{letter}{at}") for at, letter in enumerate(letters)]


@pytest.mark.parametrize(
    ("order", "blocks"),
    [
        ("CAAC", [[("C0", "A1"), ("C3", "A2")]]),
        ("ACCA", [[("C1", "A0"), ("C2", "A3")]]),
        ("CAACCAAC", [[("C0", "A1"), ("C3", "A2")], [("C4", "A5"), ("C7", "A6")]]),
        ("CACA", []),
        ("CCAAC", [[("C1", "A2"), ("C4", "A3")]]),
        ("CAA", []),
    ],
)
def test_only_mirrored_runs_make_a_block(order: str, blocks: list[list[tuple[str, str]]]) -> None:
    assert results.mirrored(of(order), A) == blocks


def test_holm_by_hand() -> None:
    """Three p of 0.01, 0.03, 0.02: 3 x 0.01; 2 x 0.02; 1 x 0.03, but never below the one before it."""
    assert results.holm([0.01, 0.03, 0.02]) == pytest.approx([0.03, 0.04, 0.04])
    assert results.holm([0.9, 0.8]) == [1.0, 1.0]


def test_an_interval_by_hand() -> None:
    """Logs -1 and 1: mean 0, standard error 1, t of 1 degree of freedom 12.706."""
    assert results.interval([-1.0, 1.0]) == pytest.approx((-12.706, 12.706), abs=1e-3)


def test_the_floor_grows_with_the_controls_spread_and_shrinks_with_pairs() -> None:
    """Two runs e^-1 and e^1 apart: spread sqrt(2), so sqrt(2) x sqrt(2 / 1) x 12.706 for one pair."""
    runs = [math.exp(-1), math.exp(1)]
    assert results.floor_of(runs, 1) == pytest.approx(2 * 12.706, abs=1e-2)
    assert results.floor_of(runs, 4) == pytest.approx(12.706, abs=1e-2)
    assert results.floor_of([5.0, 5.0], 1) == 0.0


def test_the_share_is_of_what_is_held_after_the_start() -> None:
    rows = [{"start_s": 40.0, "load_s": 30.0, "held_s": 90.0, "wall_s": 91.0}] * 2
    found = {"runs": 2, "start_s": 80.0, "load_s": 60.0, "held_s": 180.0, "wall_s": 182.0, "load_share": 0.6}
    assert results.seconds(rows) == found
