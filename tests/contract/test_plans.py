"""Every file in deploy/plans keeps the contract of a plan; adding one needs no other edit."""

import pytest
import yaml

from tasks import plan, settings
from tasks.document import InvalidDocument, parse

NAMES = plan.names()


def whole(name: str) -> dict:
    return yaml.safe_load((settings.deploy("plans") / f"{name}.yaml").read_text())


def test_the_shipped_plans():
    assert {"demo", "smoke", "standard"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_loads_and_judges_both_tiers(name):
    found = plan.load(name)
    assert {slo.split("-")[0] for slo in found.slos} == {"gateway", "agent"}


@pytest.mark.parametrize("name", NAMES)
def test_its_budget_holds_what_it_asks_for(name):
    found = plan.load(name)
    tiers = [found.tiers.gateway, found.tiers.agent]
    drive = sum(sum(level.duration_s for level in tier.levels) + tier.drain_s for tier in tiers)
    assert drive <= found.budget.drive_s
    assert found.gate.timeout_s <= found.budget.gate_s
    assert all(level.warmup_s < level.duration_s for tier in tiers for level in tier.levels)


def test_the_demo_fits_its_promise():
    """Two runs in 8 minutes warm: gate and load of one run in at most two minutes beside 45 s of start-up."""
    found = plan.load("demo")
    assert found.gate.at_once == 4
    assert sum(level.duration_s for level in [*found.tiers.gateway.levels, *found.tiers.agent.levels]) <= 60
    assert found.budget.grace_s <= 60


def test_digests_differ():
    assert len({plan.load(name).digest() for name in NAMES}) == len(NAMES)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("slos",), ["agent-task-p59"], "no 'agent-task-p59'; known: .*agent-task-p95"),
        (("tiers", "gateway", "levels"), [], "tiers.gateway.levels: .*at least 1"),
        (("tiers", "agent", "user"), 4, "tiers.agent.user: not a known field; known: .*levels"),
        (("gate", "none_because"), "no", "gate.none_because: .*at least 10"),
        (("fail_on",), ["slow"], "fail_on.0: .*'slo_fail'"),
        (("seed",), "seven", "seed: .*integer"),
    ],
)
def test_a_bad_field_is_named(path, value, words):
    content = whole("demo")
    place = content
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(InvalidDocument, match=words):
        parse(content, plan.Plan, source="deploy/plans/x.yaml")
