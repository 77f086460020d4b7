"""Every file in deploy/plans keeps the contract of a plan; adding one needs no other edit."""

import pytest
import yaml

from tasks import plan, settings
from tasks.document import InvalidDocument, parse

NAMES = plan.names()
LEVELS = ("tiers", "gateway", "levels")
SWEEP = ("tiers", "gateway", "sweep")
OPEN = {"rate_per_s": 3, "arrivals": "poisson", "duration_s": 9}
OPEN_SWEEP = {"over": "rate_per_s", "start": 1, "factor": 2, "most": 9, "arrivals": "poisson", "duration_s": 9}


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
        (LEVELS, [{"duration_s": 9}], r"levels.0: give exactly one of users .* found neither"),
        (LEVELS, [OPEN | {"users": 2}], "levels.0: give exactly one of users .* found users 2 and rate_per_s 3"),
        (LEVELS, [{"rate_per_s": 3, "duration_s": 9}], "levels.0: arrivals: is missing: an open loop needs constant"),
        (LEVELS, [{"users": 3, "duration_s": 9, "arrivals": "poisson"}], "levels.0: arrivals: a closed loop has none"),
        (LEVELS, [OPEN | {"arrivals": "even"}], "levels.0.arrivals: .*'constant', 'poisson' or 'gamma'"),
        (LEVELS, [OPEN | {"arrivals": "gamma"}], "levels.0: burstiness: is for arrivals: gamma, and gamma needs it"),
        (LEVELS, [OPEN | {"burstiness": 2}], "levels.0: burstiness: is for arrivals: gamma"),
        (LEVELS, [{"users": 3, "duration_s": 9, "ramp_to_per_s": 4}], "levels.0: ramp_to_per_s: a closed loop has no"),
        (LEVELS, [OPEN | {"warmup_s": 9}], r"levels.0: warmup_s: must be less than duration_s \(9\), got 9"),
        (LEVELS, [OPEN | {"rate_per_s": 200_000}], "levels.0: rate_per_s: makes about 1800000 arrivals, .* 1000000"),
        (SWEEP, OPEN_SWEEP, "tiers.gateway: levels, sweep: give one of them: a sweep makes the levels"),
        (("tiers", "gateway", "think_s"), -1, "think_s: .*greater than or equal to 0"),
        (("tiers", "gateway", "replay"), True, "gateway.replay: a trajectory has several steps"),
        (("tiers", "gateway", "tool_s"), 1, "gateway.tool_s: isolated calls use no tools"),
        (("tiers", "agent", "output_tokens"), 9, "agent.output_tokens: a live agent's answers"),
        (("tiers", "gateway", "output_tokens"), 999, r"output_tokens: must be at most max_tokens \(128\), got 999"),
        (("tiers", "gateway", "processes"), 5, "processes: 5 cannot share a level of 4 users"),
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


def sweep_of(**more: object) -> plan.Tier:
    content = {"sweep": OPEN_SWEEP | more}
    return parse({key: value for key, value in content.items() if value}, plan.Tier, source="tier")


def test_a_sweep_makes_its_levels_and_what_is_stored_has_both():
    tier = sweep_of(most=10)
    assert [level.rate_per_s for level in tier.levels] == [1, 2, 4, 8]
    assert {level.arrivals for level in tier.levels} == {"poisson"}
    assert parse(tier.model_dump(mode="json"), plan.Tier, source="stored") == tier
    assert [level.says for level in tier.levels][:2] == ["1/s poisson", "2/s poisson"]


def test_a_sweep_over_users_has_whole_numbers_each_once():
    tier = sweep_of(over="users", arrivals=None, factor=1.3, most=8)
    assert [level.users for level in tier.levels] == [1, 2, 3, 4, 5, 6]  # 1.3 to 8.2 by 1.3; the last is beyond most


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"most": 0.5}, r"sweep: most: must be at least start \(1\), got 0.5"),
        ({"factor": 1}, "sweep.factor: .*greater than 1"),
        ({"factor": 1.01, "most": 99}, "sweep: factor: makes more than 32 levels"),
        ({"over": "users"}, "sweep: arrivals: a closed loop has none"),
        ({"over": "users", "arrivals": None, "start": 1.5}, "sweep: start, most: users are whole numbers"),
        ({"arrivals": None}, "sweep: arrivals: is missing"),
        ({"warmup_s": 9}, "sweep: warmup_s: must be less than duration_s"),
    ],
)
def test_a_bad_sweep_is_refused_in_words(more, words):
    with pytest.raises(InvalidDocument, match=words):
        sweep_of(**more)


def test_no_levels_at_all_are_missed():
    with pytest.raises(InvalidDocument, match="tier: levels: is missing: give levels, or a sweep that makes them"):
        parse({"drain_s": 5}, plan.Tier, source="tier")


@pytest.mark.parametrize(
    ("tier", "more", "words"),
    [
        ("gateway", {"think_s": 1}, "gateway.think_s: in an open loop the arrivals say when"),
        ("agent", {"think_s": 1}, "agent.think_s: in an open loop only a replayed session has pauses"),
    ],
)
def test_no_thinking_between_arrivals(tier, more, words):
    content = whole("demo")
    content["tiers"][tier] |= {"levels": [OPEN]} | more
    with pytest.raises(InvalidDocument, match=words):
        parse(content, plan.Plan, source="deploy/plans/x.yaml")
    if tier == "agent":
        content["tiers"][tier] |= {"replay": True}
        assert parse(content, plan.Plan, source="deploy/plans/x.yaml").tiers.agent.think_s == 1
