import pytest

from tasks import metrics, record

MS = 1_000_000
ROW = {
    "t_intended_ns": 0, "t_send_ns": 2 * MS, "t_first_byte_ns": 10 * MS, "t_first_token_ns": 52 * MS,
    "t_first_answer_ns": 102 * MS, "t_last_token_ns": 452 * MS, "t_end_ns": 460 * MS,
    "output_tokens": 41, "chunks": 11, "icl_ms_max": 70.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("schedule_delay_ms", 2.0),
        ("first_byte_ms", 8.0),
        ("ttft_ms", 50.0),
        ("ttfa_ms", 100.0),
        ("e2e_ms", 450.0),
        ("ttft_intended_ms", 52.0),
        ("e2e_intended_ms", 452.0),
        ("tpot_ms", 10.0),  # 400 ms over 40 gaps between tokens
        ("icl_ms", 40.0),  # 400 ms over 10 gaps between chunks
        ("icl_ms_max", 70.0),
        ("tokens_per_chunk", 41 / 11),
    ],
)
def test_each_metric_of_a_known_row(name: str, value: float) -> None:
    assert metrics.computed(ROW)[name] == pytest.approx(value)


def test_every_request_metric_is_tried_above() -> None:
    tried = {mark.args[1][i][0] for mark in test_each_metric_of_a_known_row.pytestmark for i in range(11)}  # type: ignore[attr-defined]
    assert tried == set(metrics.computed(ROW))


def test_what_cannot_be_computed_is_none_never_zero() -> None:
    assert set(metrics.computed(dict.fromkeys(record.REQUEST)).values()) == {None}
    one_token = {**ROW, "output_tokens": 1, "chunks": 1}
    assert metrics.computed(one_token)["tpot_ms"] is None
    assert metrics.computed(one_token)["icl_ms"] is None
    assert metrics.computed({**ROW, "chunks": 0})["tokens_per_chunk"] is None


def test_a_task_row_has_its_own_metrics() -> None:
    assert metrics.computed({"t_start_ns": 5 * MS, "t_end_ns": 1505 * MS}, "task") == {"task_ms": 1500.0}
