"""Keep what a running vLLM says about itself, trimmed, for parsers to be tested against.

    python tests/goldens/collect.py http://127.0.0.1:8000 tests/goldens/vllm-<version>-<machine> <arm>

writes metrics_<arm>.txt and server_info_<arm>.json. The server must run with VLLM_SERVER_DEV_MODE=1, started by hand
with the arm's flags. Dropped: histogram buckets, _created lines, and what names the machine; the model's folder becomes
/models.
"""

import json
import re
import sys
import urllib.request
from pathlib import Path

HEAD = "# From a real server; tests/goldens/collect.py says how to collect it again.\n"
DROPPED = re.compile(r"_bucket\{|_created|^http_|^# HELP|^python_")
SYSTEM = ("torch_version", "python_version", "os", "nvidia_gpu_models", "nvidia_driver_version", "cuda_runtime_version")
ENV = ("VLLM_CPU_KVCACHE_SPACE", "VLLM_SERVER_DEV_MODE", "VLLM_TARGET_DEVICE")


def trimmed_metrics(text: str) -> str:
    return HEAD + "".join(f"{line}\n" for line in text.splitlines() if not DROPPED.search(line))


def trimmed_info(text: str) -> str:
    info = json.loads(text)
    config = info["vllm_config"]
    for key in [key for key in config.get("speculative_config") or {} if key.startswith(("target_", "draft_p"))]:
        del config["speculative_config"][key]
    config.pop("compilation_config", None)
    kept = {"vllm_config": config}
    for part, names in (("vllm_env", ENV), ("system_env", SYSTEM)):
        kept[part] = {name: info[part][name] for name in names if name in info.get(part, {})}
    here = str(Path(config["model_config"]["model"]).parent)
    return json.dumps(kept, indent=1).replace(f'"{here}/', '"/models/') + "\n"


def collect(url: str, folder: Path, arm: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"metrics_{arm}.txt").write_text(trimmed_metrics(_get(f"{url}/metrics")))
    (folder / f"server_info_{arm}.json").write_text(trimmed_info(_get(f"{url}/server_info?config_format=json")))


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return str(answer.read().decode())


if __name__ == "__main__":
    collect(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
