"""Twenty ways in which a server, or the machine of its client, makes a benchmark publish a wrong number.

TABLE is all there is to a fault here: its number, where it acts, its parameters with their defaults. The code at those
places asks for its parameters by name and does nothing special if they are not there.

Planted by the environment, `SIM_FAULTS="http_503:ratio=0.1,stalls:ms=800"`, so an arm can vary `env.SIM_FAULTS`; or
while it runs, POST /sim/faults {"http_503": {"ratio": 0.1}}, which replaces what was planted before. Faults of `start`
only by the environment. Faults with a `ratio` strike that share of the requests, evenly: by number, not by chance.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tasks.document import InvalidDocument

Value = float | str
Place = Literal["start", "scheduler", "request", "http", "process", "client"]


@dataclass(frozen=True)
class Fault:
    number: int
    place: Place
    says: str
    params: dict[str, Value] = field(default_factory=dict)


TABLE = {
    "flag_ignored": Fault(1, "start", "a requested flag is silently not applied", {"flag": "max-num-seqs"}),
    "same_scheduler": Fault(
        2, "start", "a flag is shown as in effect and the scheduler runs without it", {"flag": "max-num-seqs", "as": ""}
    ),
    "several_tokens": Fault(3, "request", "every chunk carries several tokens", {"tokens": 4}),
    "http_503": Fault(4, "http", "a share of the requests is answered 503", {"ratio": 0.1}),
    "truncated": Fault(5, "request", "the connection breaks in mid-stream", {"ratio": 0.2, "after": 0.5}),
    "error_event": Fault(6, "request", "an error event inside a 200", {"ratio": 0.2, "after": 0.5}),
    "usage_wrong": Fault(7, "request", "completion_tokens times factor; 0: no usage", {"ratio": 1, "factor": 1.5}),
    "warm_cache": Fault(8, "scheduler", "every prompt is cached, whatever is reset or salted"),
    "slow_first_wave": Fault(
        9,
        "scheduler",
        "from each cache reset on, slow until so many requests had a token",
        {"requests": 8, "factor": 20},
    ),
    "restart": Fault(10, "process", "the engine starts anew after so many requests", {"requests": 10}),
    "other_precision": Fault(11, "start", "weights are held in another width than asked", {"bytes": 1}),
    "drift": Fault(12, "scheduler", "steps get slower by this share per minute", {"per_minute": 0.3}),
    "bad_tool_json": Fault(13, "request", "tool-call arguments are no JSON", {"ratio": 1}),
    "refuses_load": Fault(14, "http", "requests beyond so many in flight are refused", {"in_flight": 4, "status": 503}),
    "short_output": Fault(15, "request", "a fixed output length is cut to a share", {"ratio": 1, "share": 0.5}),
    "reasoning": Fault(
        16, "request", "reasoning deltas before the content", {"ratio": 1, "tokens": 20, "key": "reasoning"}
    ),
    "stalls": Fault(17, "request", "one long gap in mid-stream", {"ratio": 0.1, "ms": 1000}),
    "client_starved": Fault(18, "client", "processes burn CPU beside the client", {"processes": 2, "seconds": 600}),
    "clean_end": Fault(
        19, "request", "a clean end without finish_reason, usage or [DONE]", {"ratio": 0.2, "after": 0.5}
    ),
    "early_role": Fault(20, "request", "a role-only event long before the first content", {"ratio": 1, "ms": 500}),
}
CUTS = ("truncated", "error_event", "clean_end")
Planted = dict[str, dict[str, Any]]


@dataclass
class Faults:
    """What is planted: name -> its parameters, all of them."""

    planted: Planted = field(default_factory=dict)

    @classmethod
    def parsed(cls, text: str) -> "Faults":
        """`a,b:x=1:y=2`. Raises InvalidDocument, naming what is known."""
        asked = {}
        for entry in filter(None, (part.strip() for part in text.split(","))):
            name, *params = entry.split(":")
            asked[name] = dict(_param(name, param) for param in params)
        return cls(complete(asked))

    def text(self) -> str:
        """What `parsed` reads."""
        return ",".join(
            ":".join([name, *(f"{key}={value}" for key, value in params.items())])
            for name, params in self.planted.items()
        )

    def get(self, name: str) -> dict[str, Any] | None:
        return self.planted.get(name)

    def strikes(self, number: int) -> Planted:
        """The faults of `request` that strike the request of this number, counted from 1."""
        return {
            name: params
            for name, params in self.planted.items()
            if TABLE[name].place == "request" and struck(number, params.get("ratio", 1))
        }

    def refusal(self, number: int, in_flight: int) -> int | None:
        """HTTP status with which a request is refused, or None."""
        if (planted := self.get("http_503")) and struck(number, planted["ratio"]):
            return 503
        if (planted := self.get("refuses_load")) and in_flight >= planted["in_flight"]:
            return int(planted["status"])
        return None

    def stretch(self, *, first_tokens: int, since_s: float) -> float:
        """Factor on the time of a step: requests that had their first token, and seconds, since it was planted."""
        factor = 1.0
        if (wave := self.get("slow_first_wave")) and first_tokens < wave["requests"]:
            factor *= wave["factor"]
        if drift := self.get("drift"):
            factor *= 1 + drift["per_minute"] * since_s / 60
        return factor

    def without_ignored(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        ignored = (self.get("flag_ignored") or {}).get("flag")
        return {flag: value for flag, value in asked.items() if flag != ignored}

    def without_unused(self, shown: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
        """Flags that the scheduler really runs by, of those shown."""
        planted = self.get("same_scheduler")
        if planted is None:
            return dict(shown)
        return {**shown, str(planted["flag"]): planted["as"] or defaults.get(str(planted["flag"]))}

    def precision(self, width: float) -> float:
        """Bytes per weight that are really held."""
        planted = self.get("other_precision")
        return float(planted["bytes"]) if planted else width


def complete(asked: Mapping[str, Mapping[str, Any]]) -> Planted:
    """Fill in defaults. Raises InvalidDocument for an unknown fault or parameter."""
    for name, params in asked.items():
        if name not in TABLE:
            raise InvalidDocument(f"faults: no '{name}'; known: {', '.join(TABLE)}")
        for param in params:
            if param not in TABLE[name].params:
                known = ", ".join(TABLE[name].params) or "none"
                raise InvalidDocument(f"faults: {name}: no parameter '{param}'; known: {known}")
    return {name: {**TABLE[name].params, **params} for name, params in asked.items()}


def struck(number: int, ratio: float) -> bool:
    """Whether the request of this number is of the share: exactly that share of any long row of numbers."""
    return int(number * ratio + 1e-9) > int((number - 1) * ratio + 1e-9)


def only_at_start(names: Mapping[str, Any]) -> Iterator[str]:
    """Those of the names that cannot be planted while the server runs."""
    return (name for name in names if TABLE[name].place == "start")


def _param(name: str, text: str) -> tuple[str, Value]:
    key, is_there, value = text.partition("=")
    if not is_there:
        raise InvalidDocument(f"faults: {name}: '{text}' must be parameter=value")
    try:
        return key, float(value)
    except ValueError:
        return key, value
