"""A report as one HTML page that needs nothing else: style, data and the charts' JavaScript are inside.

The page's content security policy forbids every request, so it works offline and tells nobody that it was opened. The
JavaScript (Vega, Vega-Lite, Vega-Embed) comes out of the package vl-convert-python; bundling takes seconds, so the
bundle is kept beside the pages.
"""

import json
from importlib.metadata import version
from pathlib import Path

from tasks import artifact, settings
from tasks.report.figures import Report

TEMPLATE = Path(__file__).with_name("page.html")


def write(report: Report) -> Path:
    """Write <home>/reports/<name>.html. Returns its path."""
    return artifact.write_bytes(_folder() / f"{report.name}.html", render(report).encode())


def render(report: Report) -> str:
    """The page's HTML."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    specs = [json.dumps(chart.spec, allow_nan=False).replace("<", "\\u003c") for chart in report.charts]
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        report=report,
        specs=Markup(f"[{','.join(specs)}]"),
        bundle=Markup(bundle()) if specs else "",
    )


def bundle() -> str:
    """The JavaScript that draws Vega-Lite charts; defines window.vegaEmbed."""
    path = _folder() / f".vega-{version('vl-convert-python')}.js"
    if not path.exists():
        from vl_convert import javascript_bundle

        text: str = javascript_bundle()  # type: ignore[call-arg]
        artifact.write_bytes(path, text.replace("</script", "<\\/script").encode())
    return path.read_text(encoding="utf-8")


def _folder() -> Path:
    return settings.home() / "reports"
