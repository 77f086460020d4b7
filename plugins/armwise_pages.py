"""What Airflow loads of armwise: a link from each task to its run, and read-only pages under /armwise.

    /armwise/dag-runs/<DAG run id>   to the run's report, or to its folder while there is none
    /armwise/reports/<run id>.html   the report page
    /armwise/runs/...                run folders: their files, and nothing outside them

Every page wants Airflow's own login. Only kinds of files that a run folder shows are served: never a key, never a file
that a link leads to outside.
"""

import html
from pathlib import Path
from typing import Any
from urllib.parse import quote

from airflow.plugins_manager import AirflowPlugin
from airflow.sdk import BaseOperatorLink
from fastapi import HTTPException
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse, Response

PREFIX = "/armwise"
SHOWN = {
    ".html": "text/html",
    ".json": "application/json",
    ".jsonl": "text/plain",
    ".log": "text/plain",
    ".parquet": "application/octet-stream",
}


class RunLink(BaseOperatorLink):
    """The button `armwise run` on each task of run_arm."""

    name = "armwise run"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        del operator
        return f"{PREFIX}/dag-runs/{quote(ti_key.run_id, safe='')}" if ti_key.dag_id == "run_arm" else ""


def of_dag_run(dag_run_id: str) -> Response:
    """To the page of the run that this DAG run made, or to its folder."""
    from tasks import settings
    from tasks.stages.claim import run_id

    found = list(settings.runs().glob(run_id("*", dag_run_id)))
    if not found:
        raise HTTPException(404, f"no run folder of DAG run {dag_run_id} yet: it has not claimed a slot")
    page = settings.home() / "reports" / f"{found[0].name}.html"
    return RedirectResponse(f"{PREFIX}/reports/{page.name}" if page.exists() else f"{PREFIX}/runs/{found[0].name}")


def report(name: str) -> Response:
    from tasks import settings

    return _shown(settings.home() / "reports", name)


def run_folder(path: str = "") -> Response:
    from tasks import settings

    return _shown(settings.runs(), path)


def _shown(root: Path, name: str) -> Response:
    """A file below root, or the list of a folder. 404 for everything else."""
    path = (root / name).resolve()
    hidden = any(part.startswith(".") for part in Path(name).parts)
    if hidden or not path.is_relative_to(root.resolve()) or not path.exists():
        raise HTTPException(404, f"no {name}")
    if path.is_dir():
        return HTMLResponse(_listing(path, root.resolve()))
    if path.suffix not in SHOWN:
        raise HTTPException(404, f"no {name}")
    return FileResponse(path, media_type=SHOWN[path.suffix])


def _listing(folder: Path, root: Path) -> str:
    rows = [
        f'<li><a href="{PREFIX}/runs/{quote(str(entry.relative_to(root)))}">{html.escape(entry.name)}</a></li>'
        for entry in sorted(folder.iterdir())
        if not entry.name.startswith(".") and (entry.is_dir() or entry.suffix in SHOWN)
    ]
    title = html.escape(str(folder.relative_to(root.parent)))
    return f"<!doctype html><title>{title}</title><h1>{title}</h1><ul>{''.join(rows)}</ul>"


def pages() -> Any:
    """The app that Airflow mounts at /armwise."""
    from airflow.api_fastapi.core_api.security import get_user
    from fastapi import Depends, FastAPI

    app = FastAPI(dependencies=[Depends(get_user)], openapi_url=None)
    app.get("/dag-runs/{dag_run_id:path}", response_model=None)(of_dag_run)
    app.get("/reports/{name}", response_model=None)(report)
    app.get("/runs", response_model=None)(run_folder)
    app.get("/runs/{path:path}", response_model=None)(run_folder)
    return app


class ArmwisePlugin(AirflowPlugin):
    name = "armwise"
    global_operator_extra_links = [RunLink()]
    fastapi_apps = [{"app": pages(), "url_prefix": PREFIX, "name": "armwise"}]
