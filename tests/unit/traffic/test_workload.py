"""What is sent depends on the plan, its seed and the repeat, and on nothing that an arm could change."""

from typing import Any

import pytest
from conftest import PLAN
from test_work import ARM, run_of

from tasks.arm import Arm
from tasks.document import parse
from tasks.plan import Plan
from tasks.run import Run
from tasks.traffic import workload

OPEN = {"rate_per_s": 20, "arrivals": "poisson", "duration_s": 30}


def run_with(name: str = "one", *, seed: int = 7, repeat: int = 1, engine: str = "vllm", **tier: Any) -> Run:
    shape = PLAN["tiers"]["agent"] | {"levels": [OPEN, OPEN, {"users": 3, "duration_s": 9}]} | tier
    tiers = PLAN["tiers"] | {"agent": shape}
    arm = parse(ARM | {"engine": engine}, Arm, source="arm")
    return run_of(name, arm=arm, plan=parse(PLAN | {"tiers": tiers}, Plan, source="plan"), seed=seed, repeat=repeat)


def arrivals(run: Run, level: int = 1) -> list[workload.Arrival]:
    return workload.of_level(run, "agent", workload.cases(run, "agent"), level=level)


def test_every_arm_does_the_same_work_and_its_digest_says_so() -> None:
    base = workload.digest(run_with(), "agent")
    assert len(base) == 64
    assert base == workload.digest(run_with("other", engine="openai"), "agent")  # no salt, and the same work
    assert base == workload.digest(run_with(processes=3, drain_s=99), "agent")


def test_the_length_of_a_document_is_other_work() -> None:
    short, long = ({"replay": True, "document_words": words} for words in (5, 6))
    assert workload.digest(run_with(**short), "agent") != workload.digest(run_with(**long), "agent")


@pytest.mark.parametrize(
    "more",
    [
        {"seed": 8},
        {"repeat": 2},
        {"max_tokens": 9},
        {"replay": True},
        {"replay": True, "document_words": 5},
        {"tool_s": 1.5},
        {"levels": [OPEN, OPEN, {"users": 4, "duration_s": 9}]},
        {"levels": [OPEN, OPEN | {"rate_per_s": 21}, {"users": 3, "duration_s": 9}]},
    ],
    ids=str,
)
def test_other_work_has_another_digest(more: dict[str, Any]) -> None:
    assert workload.digest(run_with(), "agent") != workload.digest(run_with(**more), "agent")


def test_levels_draw_for_themselves() -> None:
    run = run_with()
    first, second = arrivals(run, 1), arrivals(run, 2)
    assert [one.offset_ns for one in first] != [one.offset_ns for one in second]
    assert [one.case.id for one in first[:40]] != [one.case.id for one in second[:40]]
    assert not {one.session for one in first} & {one.session for one in second}
    assert arrivals(run, 3) == []  # a closed loop


def test_processes_share_the_arrivals_without_a_gap_or_a_double() -> None:
    whole = arrivals(run_with())
    shares = [whole[process::3] for process in range(3)]
    assert sorted(one.number for share in shares for one in share) == list(range(len(whole)))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_users_have_their_own_order_and_sessions() -> None:
    run = run_with()
    drawn = workload.cases(run, "agent")
    found = []
    for user in range(3):
        order, names = workload.of_user(run, "agent", drawn, level=3, user=user)
        found.append(([next(order).id for _ in range(40)], next(names)))
    assert len({tuple(order) for order, _ in found}) == len({name for _, name in found}) == 3
