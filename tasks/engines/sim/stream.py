"""One answer on its way: what the scheduler grants, turned into events, and the planted faults of a stream.

`grant` is called once per step that brought tokens. It makes one write of all that this step sends. With the last token
come finish reason, usage (if asked for) and [DONE].
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from tasks.engines.sim import deltas
from tasks.engines.sim.answers import Answer, Piece
from tasks.engines.sim.faults import CUTS, Planted
from tasks.engines.sim.scheduler import Request
from tasks.engines.sim.wire import Wire

# What was sent, four entries per event: monotonic ns, what, tokens, ns when the model had it ready. One flat list: an
# object per event would be looked at by the garbage collector, with 300 streams a pause of tens of milliseconds.
Sent = list[int | str]


@dataclass(slots=True, eq=False)
class Stream:
    """`wire` is None for an answer that is not streamed. `end` says how it ended: stop, length, abort, a fault..."""

    number: int
    request: Request
    answer: Answer
    opening: bytes
    struck: Planted
    done: "asyncio.Future[None]"
    wire: Wire | None
    has_usage: bool
    shows_cached: bool
    asked_id: str
    arrived_ns: int = 0
    has_role: bool = False
    has_stalled: bool = False
    first_ns: int = 0  # when its first step with a token was over
    last_ns: int = 0
    due_ns: int = 0  # when the present step was to be over
    at: int = 0  # tokens granted
    held: int = 0  # of these, not yet sent
    end: str | None = None
    sent: Sent = field(default_factory=list)

    @property
    def call_id(self) -> str:
        return f"call_{self.request.id[-16:]}"

    def role(self) -> None:
        """The event that says only who speaks."""
        if self.wire is not None and not self.has_role:
            self._send([("role", 0, deltas.event(self.opening, deltas.ROLE))])
        self.has_role = True

    def grant(self, tokens: int, is_finished: bool, due_ns: int) -> None:
        """Send what a step brought that was to be over at due_ns. Sets `end` when there is nothing more to come."""
        self.due_ns = due_ns
        self.at += tokens
        self.held += tokens
        if self.wire is None:
            self.end = self.answer.finish_reason if is_finished else None
            return
        if cut := self._cut():
            self._break(cut)
            return
        bundle = self.struck.get("several_tokens")
        if bundle and self.held < bundle["tokens"] and not is_finished:
            return
        parts = [] if self.has_role else [("role", 0, deltas.event(self.opening, deltas.ROLE))]
        self.has_role = True
        parts.append(("tokens", self.held, self._tokens()))
        if is_finished:
            parts += self._last()
            self.end = self.answer.finish_reason
        self._send(parts)
        if self.wire.is_gone:
            self.end = "abort"

    def usage(self) -> dict[str, Any] | None:
        """The usage block, as told; None where a fault leaves it out."""
        prompt, output = self.request.prompt, self.at
        if wrong := self.struck.get("usage_wrong"):
            if not wrong["factor"]:
                return None
            output = round(output * wrong["factor"])
        told: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
        if self.shows_cached:
            told["prompt_tokens_details"] = {"cached_tokens": self.request.cached or 0}
        return told

    def told(self) -> dict[str, Any]:
        """Its line in the record."""
        request = self.request
        waited = None if request.first_scheduled_s is None else request.first_scheduled_s - request.arrived_s
        return {
            "id": self.asked_id,
            "number": self.number,
            "arrived_ns": self.arrived_ns,
            "waited_s": waited,
            "prompt": request.prompt,
            "cached": request.cached,
            "output": self.at,
            "preemptions": request.preemptions,
            "faults": sorted(self.struck),
            "end": self.end or "cut",
            "sent": [self.sent[i : i + 4] for i in range(0, len(self.sent), 4)],
        }

    def _cut(self) -> str | None:
        for name in CUTS:
            planted = self.struck.get(name)
            if planted and self.at >= max(1, len(self.answer.pieces) * planted["after"]):
                return name
        return None

    def _break(self, how: str) -> None:
        """End as planted. What the last step brought is sent before, but for half an event where the line breaks."""
        assert self.wire is not None
        self.role()
        event = self._tokens()
        if how == "truncated":
            self.wire.write(deltas.framed(event)[: len(event) // 2])
            self.wire.cut()
        elif how == "error_event":
            told = deltas.error("planted: the engine ran into an internal error")
            self._send([("tokens", self.held, event), ("error", 0, told), ("done", 0, deltas.DONE)])
        else:
            self._send([("tokens", self.held, event)])
        self.end = how

    def _tokens(self) -> bytes:
        pieces: list[Piece] = self.answer.pieces[self.at - self.held : self.at]
        key = str(self.struck["reasoning"]["key"]) if "reasoning" in self.struck else "reasoning"
        return deltas.event(self.opening, deltas.delta(pieces, self.call_id, key))

    def _last(self) -> list[tuple[str, int, bytes]]:
        parts = [("finish", 0, deltas.finish(self.opening, self.answer.finish_reason))]
        counts = self.usage()
        if self.has_usage and counts is not None:
            parts.append(("usage", 0, deltas.usage(self.opening, counts)))
        return [*parts, ("done", 0, deltas.DONE)]

    def _send(self, parts: list[tuple[str, int, bytes]]) -> None:
        assert self.wire is not None
        if len(parts) == 1:
            at_ns = self.wire.write(deltas.framed(parts[0][2]))
        else:
            at_ns = self.wire.write(b"".join(deltas.framed(event) for _, _, event in parts))
        for what, tokens, _ in parts:
            self.sent += (at_ns, what, tokens, self.due_ns)
            self.held -= tokens
