"""The engine is brought up by the target's driver, and the gateway is told where it is.

If no gateway answers, the run brings its own, under the run's supervisor, so that it goes when the run goes.
deployment.json is written last: where it is missing, a deploy was tried at most, and release needs no more than the
lease and the processes' marker to clean up after it.
"""

import sys
from pathlib import Path

from tasks import artifact, catalog, drivers
from tasks.drivers import _key, _supervised
from tasks.gateway import client
from tasks.run import read

GATEWAY_FOLDER = "gateway-server"  # `gateway` is the tier's


def deploy(run_dir: Path) -> Path:
    """Bring up the arm's engine, and route its technique to it. Raises StageFailed."""
    path = run_dir / "deployment.json"
    if path.exists():
        return path
    run = read(run_dir)
    deployment = catalog.module_of(drivers, run.target.driver).up(run)
    gateway, started = _gateway(run_dir)
    client.register(gateway, run.technique, deployment["url"], deployment["model"], _key.read(run_dir), run.owner)
    return artifact.write_once(path, deployment | {"gateway_url": gateway.url, "gateway_started": started})


def _gateway(run_dir: Path) -> tuple[client.Gateway, bool]:
    found = client.find()
    if found is not None:
        return found, False
    state = run_dir / GATEWAY_FOLDER
    _supervised.start(run_dir)
    _supervised.launch(
        run_dir,
        "gateway",
        [sys.executable, "-m", "tasks.gateway", "--port", "0", "--state", str(state)],
        env={},
        secrets={},
        log="gateway.log",
        cwd=_supervised.package_folder(),
    )
    return client.wait(state, deadline_s=60), True
