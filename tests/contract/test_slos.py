"""Every file in deploy/slos keeps the contract of an SLO; adding one needs no other edit."""

import pytest
import yaml

from tasks import metrics, settings, slo
from tasks.document import InvalidDocument, parse

NAMES = slo.names()
GOOD = {
    "indicator": "ttft_ms",
    "tier": "agent",
    "objective": 500,
    "unit": "ms",
    "fraction": 0.5,
    "source": "ours, because tests need one",
}


def test_the_folder_is_not_empty():
    assert NAMES


@pytest.mark.parametrize("name", NAMES)
def test_loads_and_its_indicator_is_a_latency_of_its_tier(name):
    found = slo.load(name)
    metric = metrics.BY_NAME[found.indicator]
    assert metric.better == "lower", "an objective is an upper bound"
    assert metric.row == "request" or found.tier == "agent", "only the agent tier has tasks"
    assert found.steps == "all" or (found.tier == "agent" and metric.row == "request")


@pytest.mark.parametrize("name", NAMES)
def test_its_name_says_tier_and_quantile(name):
    found = slo.load(name)
    assert name.startswith(f"{found.tier}-")
    assert name.endswith(f"-p{found.fraction * 100:g}")


@pytest.mark.parametrize("name", NAMES)
def test_no_other_file_asks_the_same(name):
    key = {n: slo.load(n).model_dump(exclude={"source", "objective"}) for n in NAMES}
    assert [n for n in NAMES if key[n] == key[name]] == [name]


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("indicator", "ttft", "no metric 'ttft'; known: "),
        ("unit", "s", "ttft_ms is in ms, got s"),
        ("objective", 0, "greater than 0"),
        ("fraction", 1, "less than 1"),
        ("tier", "agents", "'gateway' or 'agent'"),
        ("source", "me", "at least 10"),
        ("target", 3, "not a known field; known: "),
    ],
)
def test_a_bad_field_is_named(field, value, words):
    with pytest.raises(InvalidDocument, match=words) as error:
        parse(GOOD | {field: value}, slo.Slo, source="deploy/slos/x.yaml")
    assert "deploy/slos/x.yaml" in str(error.value)


def test_a_new_file_is_all_it_takes(tmp_path, monkeypatch):
    (tmp_path / "deploy/slos").mkdir(parents=True)
    (tmp_path / "deploy/slos/agent-ttft-p50.yaml").write_text(yaml.safe_dump(GOOD))
    monkeypatch.setenv("ARMWISE_ROOT", str(tmp_path))
    assert slo.names() == ["agent-ttft-p50"]
    assert slo.load("agent-ttft-p50").objective == 500
    assert settings.root() == tmp_path
