"""bench/gpu_host/results.py: which pairs count, and when the claim is refuted, on rows made by hand."""

import math
from typing import Any

import pytest

from bench.gpu_host import results

C, A = results.CONTROL, results.CLAIMED_ARM
RUNS = [(C if letter == "C" else A, f"{letter}{at}") for at, letter in enumerate("CAACCAAC")]
SPREAD = (1.0, 1.01, 0.99, 1.0, 1.02, 0.98, 1.0, 1.01)


def table(ratio: float, *, invalid: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """One row per run, of the agent tier at 32 users; the arm takes `ratio` times as long."""
    return [
        {
            "run_id": run_id,
            "tier": "agent",
            "users": 32,
            "tier_failure": None,
            "validity": "invalid" if run_id in invalid else "valid",
            "task_ms_p95": 3000 * spread * (ratio if arm == A else 1),
            "task_ms_p50": 1000 * spread,
            "tier_j_per_success": 20.0,
        }
        for (arm, run_id), spread in zip(RUNS, SPREAD, strict=True)
    ]


def lines(ratio: float, **rows: Any) -> list[str]:
    return results._arm(table(ratio, **rows), RUNS, A)


@pytest.mark.parametrize(
    ("ratio", "p95", "claim"),
    [
        (1.0, "EQUIVALENT: within the margin", "is not in the interval, 0.956 to 1.020: refuted."),
        (results.CLAIM, "WORSE: n = 4 pairs", "is in the interval, 2.472 to 2.639: not refuted."),
        (1.3, "WORSE: n = 4 pairs", "is not in the interval, 1.242 to 1.327: refuted."),
    ],
)
def test_four_valid_pairs_settle(ratio: float, p95: str, claim: str) -> None:
    found = lines(ratio)
    assert f"| 4 | {p95}" in found[2]
    assert found[-1].endswith(claim)


def test_a_pair_with_an_invalid_tier_is_shown_and_does_not_count() -> None:
    found = lines(1.0, invalid=("A5",))
    assert found[2].startswith("| agent | 32 | task_ms_p95 | 1.010, 0.990, (0.961), 0.990 |")
    assert "| 3 | INCONCLUSIVE: 3 pairs, needed 4 |" in found[2]
    assert found[-1].endswith("not settled, 3 valid pairs of the 4 needed.")


def test_the_blocks_interval_is_of_whole_blocks() -> None:
    """Logs of the pairs: 0.00995, -0.01005, -0.04001, -0.00995; means of blocks -0.00005 and -0.02498; t is 12.706."""
    mean, half = -0.012515, 12.706 * 0.012465
    cells = lines(1.0)[2].split(" | ")
    assert cells[6] == f"{math.exp(mean - half):.3f} to {math.exp(mean + half):.3f}"
    assert lines(1.0, invalid=("A5",))[2].split(" | ")[6] == ""


def test_the_share_is_of_what_is_held_after_the_start() -> None:
    rows = [{"start_s": 40.0, "load_s": 30.0, "held_s": 90.0, "wall_s": 91.0}] * 2
    found = {"runs": 2, "start_s": 80.0, "load_s": 60.0, "held_s": 180.0, "wall_s": 182.0, "load_share": 0.6}
    assert results.seconds(rows) == found
