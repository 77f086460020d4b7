"""One suite over whatever tasks/engines holds."""

import inspect

import pytest

from tasks import catalog, engines

CONTRACT = {
    "flag_names": [],
    "argv": ["arm", "host", "port"],
    "environment": ["arm"],
    "ready": ["url", "key"],
    "effective": ["url", "key", "log"],
    "compare": ["arm", "effective"],
}
OURS = {
    "requests_running",
    "requests_waiting",
    "kv_cache_usage",
    "prompt_tokens_total",
    "generation_tokens_total",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "preemptions_total",
    "requests_finished_total",
    "spec_drafts_total",
    "spec_draft_tokens_total",
    "spec_accepted_tokens_total",
    "process_start_time",
}
NAMES = catalog.module_names(engines)


def test_there_are_engines() -> None:
    assert {"vllm", "openai", "sim"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("function", CONTRACT)
def test_has_the_function_with_its_parameters(name: str, function: str) -> None:
    found = inspect.signature(getattr(catalog.module_of(engines, name), function))
    assert [parameter.lstrip("_") for parameter in found.parameters] == CONTRACT[function]


@pytest.mark.parametrize("name", NAMES)
def test_metrics_are_of_our_names(name: str) -> None:
    metrics = catalog.module_of(engines, name).METRICS
    assert set(metrics) <= OURS
    assert not metrics or set(metrics) == OURS


@pytest.mark.parametrize("name", NAMES)
def test_says_where_its_key_goes_and_what_opens_its_development_endpoints(name: str) -> None:
    engine = catalog.module_of(engines, name)
    assert engine.KEY_ENV.isupper()
    assert all(isinstance(word, str) for pair in engine.DEV_ENV.items() for word in pair)
    assert not engine.KEY_ENV.startswith("ARMWISE_")


@pytest.mark.parametrize("name", NAMES)
def test_says_which_fields_of_a_request_it_takes(name: str) -> None:
    assert {"cache_salt", "min_tokens", "ignore_eos"} >= catalog.module_of(engines, name).TAKES


@pytest.mark.parametrize("name", NAMES)
def test_nobody_listens_is_not_ready(name: str) -> None:
    assert catalog.module_of(engines, name).ready("http://127.0.0.1:9", None) is False
