"""bench/honesty: the peers' exports as they were recorded are read right, what the sim recorded becomes the right
ranges, and the criteria can say all three verdicts."""

import json
import shutil
from pathlib import Path

import pytest

from bench import honesty_page, tools, truth
from bench.honesty import Row, counted
from bench.own_run import read as read_own
from bench.tools import Report
from bench.verdict import Seen, judge

DATA = Path(__file__).resolve().parents[1] / "data" / "honesty"
TRUTH = {
    "succeeded": [(64.0, 64.0)],
    "failed": [(0.0, 0.0)],
    "ttft_ms_p50": [(80.0, 82.0)],
    "itl_ms_p50": [(20.0, 20.0)],
    "output_tokens_per_s": [(330.0, 330.0), (310.0, 310.0)],
    "gap_ms_max": [(25.0, 25.0)],
}
HONEST = {
    "succeeded": 64.0,
    "failed": 0.0,
    "ttft_ms_p50": 83.0,
    "itl_ms_p50": 20.0,
    "output_tokens_per_s": 328.0,
    "gap_ms_max": 30.0,
}
# As they stand in the recorded exports; the fault was clean_end, and all four counted 64 of 64 as successes.
GUIDELLM = {
    "succeeded": 64,
    "failed": 0,
    "ttft_ms_p50": 84.06,
    "itl_ms_p50": 19.92,
    "output_tokens_per_s": 366.27,
}
AIPERF = {
    "succeeded": 64,
    "failed": 0,
    "ttft_ms_p50": 95.37,
    "itl_ms_p50": 19.98,
    "output_tokens_per_s": 281.53,
    "gap_ms_max": 37.19,
}
INFERENCE_PERF = {
    "succeeded": 64,
    "failed": 0,
    "ttft_ms_p50": 83.75,
    "itl_ms_p50": 20.01,
    "output_tokens_per_s": 317.55,
    "gap_ms_max": 28.54,
}
VLLM = {
    "succeeded": 64,
    "failed": 0,
    "ttft_ms_p50": 159.39,
    "itl_ms_p50": 19.98,
    "output_tokens_per_s": 290.09,
    "gap_ms_max": 24.23,
}
CONTROL = Seen(Report(HONEST, {"cached tokens": 0.0}, lines=["usual"]), TRUTH)


def seen(truth_of=None, *, counts=None, answer_ms=None, lines=("usual",), true_answer_ms=float("nan"), **figures):
    report = Report(HONEST | figures, counts or {}, answer_ms, list(lines))
    return Seen(report, TRUTH | (truth_of or {}), true_answer_ms)


def exported(tmp_path, name, where):
    (tmp_path / where).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(DATA / f"{name}.json", tmp_path / where)
    return tmp_path


def test_guidellm(tmp_path):
    report = tools.read_guidellm(exported(tmp_path, "guidellm", "export.json"))
    assert report.figures == pytest.approx(GUIDELLM, abs=0.01)
    assert report.answer_ms == pytest.approx(GUIDELLM["ttft_ms_p50"], abs=0.01)
    assert report.counts == {"cached tokens": 0}
    assert report.first_id == "chatcmpl-0-00000011", "the first that ended in the measured time, not the first of all"


def test_aiperf(tmp_path):
    report = tools.read_aiperf(exported(tmp_path, "aiperf", "export/profile_export_aiperf.json"))
    assert report.figures == pytest.approx(AIPERF, abs=0.01)
    assert report.counts == {"cached tokens": 0}


def test_inference_perf_tells_seconds_and_we_ms(tmp_path):
    where = "export/summary_lifecycle_metrics.json"
    report = tools.read_inference_perf(exported(tmp_path, "inference-perf", where))
    assert report.figures == pytest.approx(INFERENCE_PERF, abs=0.01)
    assert report.counts == {"token counts unlike the server's": 0, "answers without usage": 12}


def test_vllm(tmp_path):
    report = tools.read_vllm(exported(tmp_path, "vllm", "export.json"))
    assert report.figures == pytest.approx(VLLM, abs=0.01)


def test_ours_counts_failed_requests_and_tells_unmet_rules_of_the_tier_and_the_run():
    median = {"tier": "gateway", "q": 0.5, "steps": "all"}
    judgement = {
        "percentiles": [
            median | {"metric": "ttft_ms", "estimate": 40.0, "n": 50, "failed": 5},
            median | {"metric": "ttft_ms", "estimate": 99.0, "n": 9, "failed": 0, "tier": "agent"},
            median | {"metric": "tpot_ms", "estimate": "inf"},
            median | {"metric": "ttfa_ms", "estimate": 41.0},
        ]
    }
    expectations = [
        {"rule": 3, "scope": "gateway", "success": False, "says": "few calls fail"},
        {"rule": 4, "scope": "agent", "success": False, "says": "not ours to tell"},
        {"rule": 5, "scope": "run", "success": True, "says": "is met"},
        {"rule": 6, "scope": "gateway", "success": False, "says": "the client was on time"},
        {"rule": 9, "scope": "gateway", "success": False, "says": "long enough"},
    ]
    rows = [{"icl_ms_max": 25.0, "cached_input_tokens": 3}, {"icl_ms_max": None, "cached_input_tokens": None}]
    report = read_own(judgement, {"expectations": expectations}, rows)
    assert report.figures == {"succeeded": 45, "failed": 5, "ttft_ms_p50": 40.0, "gap_ms_max": 25.0}
    assert (report.answer_ms, report.counts) == (41.0, {"cached tokens": 3})
    assert report.lines == ["rule 3 (gateway): few calls fail"]


def test_warnings_are_lines_that_warn_without_what_differs_between_runs():
    said = "12:01:02 INFO 3 errors so far\n2026 WARNING /tmp/a/b took 3.5 ms\nall is well\nWARNING /tmp/c took 4 ms\n"
    assert tools.warnings(said) == ["WARNING took ms"]


def test_right():
    assert judge("several_tokens", seen(), CONTROL).word == "right"
    off_as_ever = Seen(Report(HONEST | {"itl_ms_p50": 22.0}), TRUTH)
    assert judge("several_tokens", off_as_ever, off_as_ever).word == "right", "the fault did not do that"


@pytest.mark.parametrize(
    ("figure", "reported", "word"),
    [
        ("ttft_ms_p50", 91.9, "right"),
        ("ttft_ms_p50", 92.1, "wrong number"),
        ("ttft_ms_p50", 69.9, "wrong number"),
        ("itl_ms_p50", 20.9, "right"),
        ("itl_ms_p50", 0.0, "wrong number"),
        ("output_tokens_per_s", 295.0, "right"),
        ("output_tokens_per_s", 290.0, "wrong number"),
        ("succeeded", 67.0, "right"),
        ("succeeded", 68.0, "wrong number"),
        ("gap_ms_max", 74.0, "right"),
        ("gap_ms_max", 76.0, "wrong number"),
    ],
)
def test_a_figure_is_wrong_beyond_five_percent_of_its_nearest_truth(figure, reported, word):
    verdict = judge("early_role", seen(**{figure: reported}), CONTROL)
    assert verdict.word == word
    assert all(said.startswith(figure) for said in verdict.wrong)


def test_a_tool_that_is_off_without_a_fault_is_told_so():
    off = Seen(Report(HONEST | {"ttft_ms_p50": 200.0}), TRUTH)
    assert judge(None, off, off).wrong == ["ttft_ms_p50 200, in truth 82"]


def test_failures_that_are_counted_are_noticed_and_those_counted_as_successes_are_wrong():
    broken = {"succeeded": [(51.0, 51.0)], "failed": [(13.0, 13.0)]}
    told = judge("truncated", seen(broken, succeeded=51.0, failed=13.0), CONTROL)
    assert (told.word, told.noticed) == ("notices", ["13 failed"])
    assert judge("clean_end", seen(broken), CONTROL).wrong == ["succeeded 64, in truth 51"]
    few = judge("clean_end", seen(broken, succeeded=63.0, failed=1.0), CONTROL)
    assert few.word == "wrong number", "one failure of thirteen is no notice"


def test_a_warning_counts_if_there_is_none_without_the_fault():
    wrong = {"ttft_ms_p50": 20.0}
    assert judge("early_role", seen(lines=["usual", "role only"], **wrong), CONTROL).noticed == ["says: role only"]
    assert judge("early_role", seen(lines=["usual"], **wrong), CONTROL).word == "wrong number"


def test_what_tells_of_a_stall_a_cache_and_reasoning():
    stalled = {"gap_ms_max": [(1020.0, 1020.0)]}
    assert judge("stalls", seen(stalled, gap_ms_max=1018.0), CONTROL).noticed == ["largest gap 1018 ms"]
    assert judge("stalls", seen(stalled, gap_ms_max=61.0), CONTROL).word == "wrong number"
    assert judge("warm_cache", seen(counts={"cached tokens": 9600.0}), CONTROL).noticed == ["9600 cached tokens"]
    assert judge("reasoning", seen(answer_ms=470.0, true_answer_ms=480.0), CONTROL).word == "notices"
    assert judge("reasoning", seen(answer_ms=80.0, true_answer_ms=480.0), CONTROL).word == "right"


def line(number, *, at_ms=0.0, tokens=((50, 1), (70, 1), (90, 1)), finish=True, faults=()):
    sent = [[int((at_ms + ms) * 1e6), "tokens", count, 0] for ms, count in tokens]
    end = [[sent[-1][0], "finish", 0, 0]] if finish else []
    told = {"what": "request", "number": number, "id": f"id-{number}", "arrived_ns": int(at_ms * 1e6)}
    return told | {"faults": list(faults), "sent": sent + end}


def test_truth_of_whole_and_of_broken_answers():
    found = truth.ranges([line(1), line(2, tokens=((30, 1), (50, 1)), finish=False), line(3, at_ms=110)], refused=2)
    assert found["succeeded"] == [(2, 2)] and found["failed"] == [(3, 3)]
    assert found["ttft_ms_p50"] == [(50.0, 50.0), (50.0, 50.0), (50.0, 50.0)]
    assert found["output_tokens_per_s"] == [pytest.approx((6 / 0.2,) * 2), pytest.approx((8 / 0.2,) * 2)]
    assert found["gap_ms_max"] == [(20.0, 20.0), (20.0, 20.0)]


def test_truth_of_chunks_of_several_tokens_is_time_per_token_not_per_chunk():
    (found,) = [truth.ranges([line(1, tokens=((80, 4), (160, 4), (240, 4)))], refused=0)]
    assert found["itl_ms_p50"] == [pytest.approx((160 / 11,) * 2), pytest.approx((160 / 8,) * 2)]
    assert found["gap_ms_max"][0] == (80.0, 80.0)


def test_the_answer_begins_after_the_reasoning():
    tokens = tuple((50 + 20 * i, 1) for i in range(30))
    assert truth.answer_ms([line(1, tokens=tokens, faults=["reasoning"])]) == 450.0
    assert truth.answer_ms([line(1, tokens=tokens)]) == 50.0


def test_reading_a_record_counts_the_refused_and_leaves_out_the_warm_up(tmp_path):
    lines = [line(1), line(4, at_ms=9), line(3, at_ms=5), {"what": "stop", "number": 6}]
    (tmp_path / "sim.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    found, refused = truth.read(tmp_path / "sim.jsonl", skip=1)
    assert [one["number"] for one in found] == [3, 4] and refused == 3  # 2, 5 and 6
    found, refused = truth.read(tmp_path / "sim.jsonl", skip=1, first_id="id-4")
    assert [one["number"] for one in found] == [4] and refused == 2  # 5 and 6
    stalled = line(2, tokens=((50, 1), (900, 1)))
    (tmp_path / "sim.jsonl").write_text("".join(json.dumps(one) + "\n" for one in [*lines, stalled]))
    found, _ = truth.read(tmp_path / "sim.jsonl", skip=1, first_id="id-4")
    assert [one["number"] for one in found] == [2, 4], "it began before and ended later"


def test_a_first_wave_is_left_out_by_who_got_its_first_token_first():
    late = line(1, tokens=((900, 1), (920, 1)))
    assert truth.without([late, line(2), line(3, tokens=((10, 1), (30, 1)))], 1) == [line(2), late]


def test_the_page_has_every_tool_and_fault_and_the_counts_leave_out_the_run_without_a_fault():
    stalled = seen(itl_ms_p50=0.0, gap_ms_max=400.0)
    rows = [Row("a", "none", CONTROL, judge(None, CONTROL, CONTROL), load_average=0.5)]
    rows += [Row("a", "stalls", stalled, judge("stalls", stalled, CONTROL), load_average=2.25)]
    page = honesty_page.page(rows, ["a"], ("none", "stalls"), {"a": "1.0"})
    assert "least to most: a 0.5 to 2.2." in page
    assert "| 17 stalls | WRONG |" in page and "itl_ms_p50 0, in truth 20" in page
    assert counted(rows) == {"a": {"wrong number": 1}}
