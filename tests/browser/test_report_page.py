"""The page of a report in a real browser: the charts are drawn, and nothing is asked of any network."""

import shutil
from pathlib import Path

import pytest

from tasks.report import charts, page
from tasks.report.figures import Cell, Report, Table, verdict

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)
ROW = {"tier": "agent", "users": 4, "metric": "ttft_ms", "steps": "later", "unit": "ms", "q": 0.5, "n": 72}
ROW |= {"is_valid": True}
VIEWS = {
    "latency": [
        ROW | {"estimate": 120.0, "lower": 110.0, "upper": 130.0},
        ROW | {"q": 0.95, "estimate": 300.0, "lower": 250.0, "upper": None},
        ROW | {"metric": "task_ms", "estimate": float("inf"), "lower": 5.0, "upper": float("inf")},
    ],
    "phase": [
        {"stage": "deploy", "seconds_s": 45.0, "state": "done"},
        {"stage": "gate", "seconds_s": 3.0, "state": "failed"},
    ],
}
WORDS = ["PASS", "FAIL", "INCONCLUSIVE", "INVALID"]

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: apt-get install chromium")


@pytest.fixture
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET.split())
        yield browser
        browser.close()


@pytest.fixture
def written(armwise_home) -> Path:
    verdicts = Table("verdicts", ["word"], [[verdict(word)] for word in WORDS])
    grey = Table("greyed", ["figure"], [[Cell("340")]], is_grey=True)
    drawn = [charts.latency({"one": VIEWS, "two": VIEWS}), charts.phases(VIEWS)]
    return page.write(Report("a page", "a-page", [verdicts, grey], drawn, ["INVALID: a reason"]))


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_the_page_draws_its_charts_and_asks_for_nothing(browser, written, scheme):
    tab = browser.new_page(color_scheme=scheme)
    asked, faults = [], []
    tab.on("request", lambda request: asked.append(request.url))
    tab.on("pageerror", lambda error: faults.append(str(error)))
    tab.on("console", lambda message: faults.append(message.text) if message.type in ("error", "warning") else None)
    tab.goto(written.as_uri())
    tab.wait_for_function("document.querySelectorAll('.chart svg').length === 2", timeout=30_000)
    assert asked == [written.as_uri()]
    assert faults == []
    latency, phases = (tab.locator(f"#chart{i} svg") for i in (0, 1))
    assert latency.locator(".mark-symbol.role-mark path").count() == 4  # two arms, two finite percentiles each
    assert latency.locator(".mark-rule.role-mark line").count() == 4
    assert phases.locator(".mark-rect.role-mark path").count() == 2


def test_verdicts_look_different_from_each_other(browser, written):
    tab = browser.new_page()
    tab.goto(written.as_uri())
    looks = [
        tab.locator(f".word.{word.lower()}").evaluate(
            "e => { const [own, mark] = [getComputedStyle(e), getComputedStyle(e, '::before')];"
            " return [own.backgroundColor, own.borderTopStyle, own.textDecorationLine, mark.content] }"
        )
        for word in WORDS
    ]
    assert len({tuple(look) for look in looks}) == len(WORDS)
    opacity = tab.locator("section.grey table").evaluate("e => getComputedStyle(e).opacity")
    assert float(opacity) < 0.6
