"""`python -m tasks.engines.sim --model FOLDER --port N [any flag of vLLM]`: the server.

ENGINE_KEY, VLLM_API_KEY  requests to /v1 without it are answered 401; the first is what the driver sets
VLLM_SERVER_DEV_MODE=1    /server_info, /reset_prefix_cache, /sim/faults and /sim/state exist
SIM_GPU                   a name of tasks/sizing/gpus.yaml (h200)
SIM_STEP_MS               every step takes this long, instead of what the roofline says
SIM_SPREAD                with SIM_STEP_MS: streams send in so many slots of a step, each always in its own, and not all
                          at once (0): a client meets them with spread phases
SIM_TIME_SCALE            real seconds per second of the model (1)
SIM_ACCEPTANCE            probability that a draft token is accepted, given that the one before it was (0.6)
SIM_FAULTS                planted faults (faults.py): "http_503:ratio=0.1,stalls:ms=800"
SIM_RECORD                file to which what was really sent is written (record.py); without it, and in a run folder's
                          process, sim.jsonl in the run folder
"""

import gc
import os
import sys

import uvicorn

from tasks.document import InvalidDocument
from tasks.engines.sim import flags
from tasks.engines.sim.flags import Setup
from tasks.engines.sim.server import App

RUN_DIR = "ARMWISE_RUN_DIR"  # set by the process driver in every process of a run


def main(argv: list[str]) -> None:
    environment = dict(os.environ)
    if not environment.get("SIM_RECORD") and environment.get(RUN_DIR):
        environment["SIM_RECORD"] = f"{environment[RUN_DIR]}/sim.jsonl"
    try:
        setup = flags.setup(argv, environment)
    except InvalidDocument as fault:
        print(f"ValueError: {fault}", file=sys.stderr, flush=True)
        sys.exit(1)
    log(setup)
    gc.collect()
    gc.freeze()  # what is there now stays: collections look at requests alone
    gc.set_threshold(10_000, 10, 10)  # a pause delays every stream, so few of them
    uvicorn.run(
        App(setup).asgi(),
        host=setup.host,
        port=setup.port,
        loop="uvloop",
        http="httptools",
        backlog=4096,
        access_log=False,
        log_level="warning",
        timeout_graceful_shutdown=1,
    )


def log(setup: Setup) -> None:
    """The lines of vLLM's log that readers of logs look for, and one for each flag that nothing is modelled by."""
    said = {
        flags.table()[name]["dest"]: [value] if name == "served-model-name" and not isinstance(value, list) else value
        for name, value in setup.asked.items()
        if name in setup.flags or name in flags.FRONT_END
    }
    tokens = setup.limits.blocks * setup.limits.block_size
    gib = setup.machine.weight_bytes / 2**30
    print(f"(APIServer pid={os.getpid()}) INFO [sim] non-default args: {said}", flush=True)
    print(f"(EngineCore) INFO [sim] Model loading took {gib:.4f} GiB memory and 0.0 seconds", flush=True)
    print(f"(EngineCore) INFO [sim] GPU KV cache size: {tokens:,} tokens", flush=True)
    for name in setup.without_effect:
        print(f"(EngineCore) WARNING [sim] --{name}: the sim takes it and models nothing by it", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
