"""Where things are. Every setting is an environment variable with a default that works in a checkout.

ARMWISE_ROOT         folder that holds deploy/, golden_set/ and sql/ (default: the checkout)
ARMWISE_HOME         state: run folders, slots, database, logs (default: var/ in the checkout)
ARMWISE_DB_URL       a Postgres to use instead of the embedded one (postgresql://user:password@host/database);
                     `none`: no database at all
ARMWISE_AIRFLOW_DB_URL  the same for Airflow's own database
ARMWISE_GATEWAY_URL  a gateway that already runs; with ARMWISE_GATEWAY_TOKEN for its admin calls
"""

import os
from pathlib import Path


def root() -> Path:
    """Folder with the declarations: deploy/, golden_set/, sql/."""
    return Path(os.environ.get("ARMWISE_ROOT") or Path(__file__).resolve().parent.parent)


def home() -> Path:
    """Folder with the state. Created if missing."""
    folder = Path(os.environ.get("ARMWISE_HOME") or root() / "var")
    folder.mkdir(parents=True, exist_ok=True)
    return folder.resolve()


def runs() -> Path:
    """Folder with one folder per run, and in it one per attempt: runs/<run_id>/<attempt>."""
    return home() / "runs"


def deploy(kind: str) -> Path:
    """Registry folder of one kind of declaration: arms, targets, slos, prices, plans, models, expectations."""
    return root() / "deploy" / kind
