"""tasks/report/deployments: which runs make pairs, and outcomes over deployments known by construction."""

import measured_run
import pytest
from test_report import ARM, CONTROL, late, named, stored_run, texts

from tasks import artifact
from tasks.report import deployments, of_pair

TITLE = "Arm against control, over deployments"
LATER = "agent-later-ttft-p50"


def order(letters: str) -> list[deployments.Run]:
    return [(letter == "A", {("slo", 1): float(i)}) for i, letter in enumerate(letters)]


@pytest.mark.parametrize(
    ("letters", "expected"),
    [
        ("CAAC", [(0, 1), (3, 2)]),
        ("ACCA", [(1, 0), (2, 3)]),
        ("CAACCAAC", [(0, 1), (3, 2), (4, 5), (7, 6)]),
        ("CCAACACCA", [(1, 2), (4, 3), (6, 5), (7, 8)]),
        ("CACA", []),
        ("CCAA", []),
        ("CAA", []),
    ],
)
def test_pairs_are_the_halves_of_mirrored_blocks(letters: str, expected: list[tuple[int, int]]) -> None:
    found = deployments.pairs(order(letters))
    assert [(c["slo", 1], a["slo", 1]) for c, a in found] == expected


def stored(home, letters: str, *, control: list[float], arm: list[float], spoil=None) -> None:
    """Deployments r0, r1 .. in this order; TTFT of steps 2+ takes so many ms. `spoil`: by number."""
    of, spoil = {"C": iter(control), "A": iter(arm)}, spoil or {}
    for i, letter in enumerate(letters):
        name, at = CONTROL if letter == "C" else ARM, measured_run.AT + 1000 * i
        stored_run(home, f"r{i}", name, later_ms=next(of[letter]), claimed_at=at, spoil=spoil.get(i))


def of_another_plan(run_dir) -> None:
    told = artifact.read(run_dir / "run.json")
    told["plan"]["document"]["seed"] += 1
    artifact.write(run_dir / "run.json", told)


def outcomes(home) -> dict[str, list[str]]:
    """SLO -> its row."""
    return {row[0].partition(":")[0]: row[1:] for row in texts(named(of_pair.build(CONTROL, ARM), TITLE))}


@pytest.mark.services
def test_an_arm_that_is_slower_in_every_pair_is_worse_and_what_is_alike_is_equivalent(home) -> None:
    stored(home, "CAACCAAC", control=[100, 101, 99, 100], arm=[130, 132, 129, 131])
    found = outcomes(home)
    assert found[LATER][3:4] == ["4 pairs"]
    assert found[LATER][2].startswith("1.305 [")
    assert found[LATER][5] == "WORSE"
    assert found["agent-task-p95"][5] == "EQUIVALENT", "a task takes 2 s in every one of them"


@pytest.mark.services
def test_one_deployment_each_says_what_is_needed(home) -> None:
    stored(home, "CA", control=[100], arm=[130])
    row = outcomes(home)[LATER]
    assert (row[5], row[7]) == ("INCONCLUSIVE", "deployments: at least 2 of each are needed, got 1 and 1")


@pytest.mark.services
def test_a_tier_that_broke_a_rule_and_a_run_of_another_plan_take_no_part(home) -> None:
    control, arm = [100, 500, 101, 99, 100], [130, 132, 129, 131]
    stored(home, "CCAACCAAC", control=control, arm=arm, spoil={1: of_another_plan, 3: late})
    found = outcomes(home)
    assert found[LATER][:1] + found[LATER][3:4] == ["100", "4 pairs"]
    assert found["gateway-ttft-p95"][3] == "3 pairs"
    assert found["gateway-ttft-p95"][7] == "3 pairs, needed 4"
