"""Facts that rules judge, by hand."""

from types import SimpleNamespace
from typing import Any

import pytest

from tasks import facts

GIB = 2**30


@pytest.mark.parametrize(
    ("source", "held", "off"),
    [
        ("log: Model loading took", 0.03 * GIB, 0.0),  # 0.0264 GiB, as a log with two digits says it
        ("log: Model loading took", 0.0464 * GIB, 0.015 / 0.0264),
        ("parameters of the model folder x 4 (float32)", 0.0296 * GIB, 0.0032 / 0.0264),
    ],
)
def test_a_log_s_rounding_is_no_difference(source: str, held: float, off: float, monkeypatch: Any) -> None:
    monkeypatch.setattr(facts._weights, "expected_bytes", lambda *_: 0.0264 * GIB)
    run: Any = SimpleNamespace(arm=None)
    found = facts._weigh(run, {"weight_bytes": held, "weight_bytes_from": source})
    assert found["weight_bytes_off"] == pytest.approx(off)
    assert found["weights_are_known"]
