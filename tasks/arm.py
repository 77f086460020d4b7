"""An arm: one server configuration under test. One YAML file in deploy/arms; its stem is its name.

`varies` lists the dotted keys in which the arm may differ from its control (`flags.max-num-seqs`, `model.revision`,
`env.NAME`). Any other difference in what the engine is told is a fault: one variable at a time. `companions` are
settings that only make the varied one legal (no chunked prefill needs room for a whole prompt in one batch).
"""

from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from tasks import catalog, engines, settings
from tasks.document import UNRESOLVED, Document, InvalidDocument, read

Flag = str | int | float | bool | list[str] | dict[str, Any]
COMPARED = ("engine", "version", "image", "model", "flags", "env", "resources", "url", "key_env")


class Model(Document):
    """What is served. `path` is relative to the checkout; `repo` is a hub id. Exactly one of them."""

    path: str | None = None
    repo: str | None = None
    revision: str | None = None  # commit of the hub repository, or `unresolved`
    served_as: str = "model"

    @model_validator(mode="after")
    def _one_source(self) -> "Model":
        if (self.path is None) == (self.repo is None):
            raise ValueError("exactly one of path, repo must be given")
        return self


class Resources(Document):
    gpus: int = Field(default=0, ge=0)
    gpu_model: str | None = None
    cpus: int | None = Field(default=None, ge=1)
    memory_gib: float | None = Field(default=None, gt=0)


class Arm(Document):
    """The content of one file in deploy/arms."""

    engine: str
    question: str = Field(min_length=10)  # what running this arm should answer
    model: Model
    price: str  # stem of a file in deploy/prices
    version: str | None = None  # the engine's version, where the target brings the engine itself
    image: str | None = None  # image by digest, where the target pulls one, or `unresolved`
    url: str | None = None  # a server that already runs (endpoint driver): a URL, or env:NAME
    key_env: str | None = None  # name of the environment variable that holds its key
    flags: dict[str, Flag] = {}
    env: dict[str, str] = {}
    resources: Resources = Resources()
    control: str | None = None
    varies: list[str] = []
    companions: list[str] = []
    nightly: bool = False

    @model_validator(mode="after")
    def _consistent(self) -> "Arm":
        if self.control is None and (self.varies or self.companions):
            raise ValueError("varies and companions need a control")
        if self.control is not None and not self.varies:
            raise ValueError("an arm with a control must say what it varies")
        return self


def folder() -> Path:
    return settings.deploy("arms")


def names() -> list[str]:
    return catalog.names(folder(), ".yaml")


def load(name: str) -> Arm:
    """Read one arm and check it against its engine's flags and its control. Raises UnknownName, InvalidDocument."""
    path = catalog.path_of(folder(), name, ".yaml")
    arm = read(path, Arm)
    unknown = _unknown_flags(arm)
    faults = [f"{path}: {fault}" for fault in [*unknown.values(), *_control_faults(name, arm, besides=set(unknown))]]
    if faults:
        raise InvalidDocument("\n".join(faults))
    return arm


def unresolved(arm: Arm) -> list[str]:
    """Dotted keys whose value is still `unresolved`, those inside a flag's own mapping (a draft model's) included."""
    flat = flatten(arm.model_dump())
    inside = {f"{key}.{part}": v for key, value in flat.items() if isinstance(value, dict) for part, v in value.items()}
    return [key for key, value in (flat | inside).items() if value == UNRESOLVED]


def differences(arm: Arm, control: Arm) -> dict[str, tuple[Any, Any]]:
    """Dotted key -> (control's value, arm's value) for everything the engine is told. A missing key is None."""
    a, b = (flatten({k: v for k, v in x.model_dump().items() if k in COMPARED}) for x in (control, arm))
    return {key: (a.get(key), b.get(key)) for key in sorted({*a, *b}) if a.get(key) != b.get(key)}


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings to dotted keys. A flag's own mapping (speculative-config) is one value, not a subtree."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict) and not prefix.startswith("flags."):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _unknown_flags(arm: Arm) -> dict[str, str]:
    """Dotted key -> what is wrong with it, for flags that the engine has not or that an arm must say elsewhere."""
    engine = catalog.module_of(engines, arm.engine)
    known: frozenset[str] = engine.flag_names()
    owned: dict[str, str] = getattr(engine, "OWNED", {})  # flags that are said elsewhere
    return {
        f"flags.{flag}": f"flags.{flag}: not a flag of an arm; {owned[flag]}"
        if flag in owned
        else f"flags.{flag}: not a flag of {arm.engine}{_nearest(flag, known)}"
        for flag in arm.flags
        if flag not in known
    }


def _nearest(flag: str, known: frozenset[str]) -> str:
    from difflib import get_close_matches

    close = get_close_matches(flag, known, n=3)
    return f"; near: {', '.join(close)}" if close else f"; see {len(known)} known flags with `armwise arms --flags`"


def _control_faults(name: str, arm: Arm, *, besides: set[str]) -> list[str]:
    """Differences from the control that nothing declares. `besides` are keys whose fault is told already."""
    if arm.control is None:
        return []
    if arm.control == name:
        return ["control: an arm cannot be its own control"]
    try:
        control = read(catalog.path_of(folder(), arm.control, ".yaml"), Arm)
    except catalog.UnknownName as error:
        return [f"control: {error}"]
    found, allowed = differences(arm, control), {*arm.varies, *arm.companions, *besides}
    extra = [
        f"{key}: {b!r} differs from {a!r} in control {arm.control}, and varies does not name it"
        " (one variable at a time)"
        for key, (a, b) in found.items()
        if key not in allowed
    ]
    return extra + [
        f"varies: {key} does not differ from control {arm.control}" for key in arm.varies if key not in found
    ]
