"""The agent: a ReAct loop in LangGraph. The model thinks and calls tools, reads the results, and answers.

    START -> model -> tools -> model -> ... -> END

The model behind the graph is not a client: it is a function `ask(messages, tools, step)` that the caller gives, so that
every call goes through the gateway with the caller's own stamps. What travels is the OpenAI wire format, and a tool
call goes back to the model exactly as the model wrote it: re-written JSON would miss the engine's prefix cache.

One graph serves all threads and greenlets of a process; what belongs to one task is in its Session. A play ends with an
answer, at a call made before with the same arguments (loop), at the step limit, or when a model call failed. A
malformed call is answered with an error that the model can read, and stays a failure whatever comes after it.

Nothing is sent to a tracing service, whatever the environment says: it would be measured with the model.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import Runtime
from langsmith import tracing_context

from tasks.agent import golden, toolbox
from tasks.agent.desk import Desk
from tasks.agent.golden import Case

MAX_STEPS = 6
MOST_CALLS = 8  # of one step; more are refused in words
Message = dict[str, Any]


class Answer(Protocol):
    """What `ask` returns; tasks.traffic.stream.Answer is one."""

    row: dict[str, Any]
    content: str
    tool_calls: list[dict[str, str]]


Ask = Callable[[list[Message], Sequence[dict[str, Any]], int], Answer]


@dataclass
class Played:
    """One task, played to its end. `calls` are those carried out; `failure` is a key of record.TASK_FAILURES.

    A task whose model call our own client cut off is `is_aborted`: it is no failure and no success.
    """

    answer: str | None = None
    calls: list[dict[str, Any]] = field(default_factory=list)
    tasks: list[dict[str, Any]] = field(default_factory=list)
    steps: int = 0
    tool_calls: int = 0  # asked for by the model, malformed ones included
    failure: str | None = None
    failure_detail: str | None = None
    request_failure: str | None = None  # a key of record.FAILURES, where failure is `request`
    is_aborted: bool = False

    def fail(self, failure: str, detail: str) -> None:
        """Note a failure; the first one stays."""
        if self.failure is None:
            self.failure, self.failure_detail = failure, detail


@dataclass
class Session:
    """What belongs to one task while the graph plays it."""

    ask: Ask
    desk: Desk
    tools: Sequence[dict[str, Any]]
    max_steps: int
    played: Played
    is_over: bool = False


class AskedModel(BaseChatModel):
    """LangChain's face of one session's `ask`."""

    session: Any

    @property
    def _llm_type(self) -> str:
        return "asked"

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        session: Session = self.session
        session.played.steps += 1
        answer = session.ask([wire(m) for m in messages], session.tools, session.played.steps)
        if kind := answer.row.get("failure"):
            session.played.request_failure = kind
            session.played.fail("request", f"step {session.played.steps}: {kind}: {answer.row.get('failure_detail')}")
        session.played.is_aborted = bool(answer.row.get("is_aborted"))
        session.is_over = bool(kind) or session.played.is_aborted
        return ChatResult(generations=[ChatGeneration(message=_message(answer))])


def play(case: Case, *, ask: Ask, max_steps: int = MAX_STEPS, measured: bool = True) -> Played:
    """Play one case to its end. Raises only what `ask` raises; whatever the model says, the result is a Played.

    `measured` tasks search the frozen corpus; others may search the web (tasks/agent/tools/web_search.py).
    """
    material = golden.material(case.golden_set)
    desk = Desk(material.index, [task.model_dump() for task in case.initial_tasks], measured)
    session = Session(ask, desk, material.tools, max_steps, Played())
    opening: list[AnyMessage] = [SystemMessage(material.system), HumanMessage(case.query)]
    with tracing_context(enabled=False):
        compiled().invoke(MessagesState(messages=opening), {"recursion_limit": 2 * max_steps + 3}, context=session)
    session.played.tasks = desk.tasks
    return session.played


@cache
def compiled() -> CompiledStateGraph[MessagesState, Session, MessagesState, MessagesState]:
    """The graph, compiled once per process."""
    graph = StateGraph(MessagesState, context_schema=Session)
    graph.add_node("model", _model)
    graph.add_node("tools", _tools)
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", _after_model, ["tools", END])
    graph.add_conditional_edges("tools", _after_tools, ["model", END])
    return graph.compile()


def wire(message: BaseMessage) -> Message:
    """A message in the OpenAI wire format."""
    if isinstance(message, ToolMessage):
        return {"role": "tool", "tool_call_id": message.tool_call_id, "content": message.content}
    if isinstance(message, AIMessage):
        calls = message.additional_kwargs.get("tool_calls")
        return {"role": "assistant", "content": message.content, **({"tool_calls": calls} if calls else {})}
    return {"role": "system" if isinstance(message, SystemMessage) else "user", "content": message.content}


def _message(answer: Answer) -> AIMessage:
    """The model's words as they came: the calls stay raw, for nothing says that they are JSON."""
    calls = [
        {
            "id": call.get("id") or f"call-{number}",
            "type": "function",
            "function": {"name": call.get("name") or "", "arguments": call.get("arguments") or ""},
        }
        for number, call in enumerate(answer.tool_calls)
    ]
    return AIMessage(content=answer.content or "", additional_kwargs={"tool_calls": calls} if calls else {})


def _model(state: MessagesState, runtime: Runtime[Session]) -> dict[str, Any]:
    said = AskedModel(session=runtime.context).invoke(state["messages"])
    if not runtime.context.is_over and not _calls(said):
        _end(runtime.context, str(said.content).strip())
    return {"messages": [said]}


def _end(session: Session, answer: str) -> None:
    session.played.answer = answer
    if "tool_call>" in answer:
        session.played.fail("malformed_call", f"a tool call that no parser could read: {answer[:200]!r}")


def _after_model(state: MessagesState, runtime: Runtime[Session]) -> str:
    return "tools" if _calls(state["messages"][-1]) and not runtime.context.is_over else END


def _tools(state: MessagesState, runtime: Runtime[Session]) -> dict[str, Any]:
    session = runtime.context
    results = [
        ToolMessage(content=_result(session, number, call["function"]), tool_call_id=call["id"])
        for number, call in enumerate(_calls(state["messages"][-1]))
    ]
    if session.played.steps >= session.max_steps and not session.is_over:
        session.played.fail("step_limit", f"no answer within {session.max_steps} steps")
        session.is_over = True
    return {"messages": results}


def _after_tools(_state: MessagesState, runtime: Runtime[Session]) -> str:
    return END if runtime.context.is_over else "model"


def _result(session: Session, number: int, function: dict[str, str]) -> str:
    """Carry out one call, or say why not."""
    played, name, arguments = session.played, function["name"], function["arguments"]
    played.tool_calls += 1
    try:
        if number >= MOST_CALLS:
            raise toolbox.BadCall(f"more than {MOST_CALLS} calls in one step")
        parsed = toolbox.parse(name, arguments)
        call = {"name": name, "arguments": parsed}
        if call in played.calls:
            played.fail("loop", f"the same call again: {json.dumps(call, ensure_ascii=False)[:200]}")
            session.is_over = True
            return json.dumps({"error": "the same call was made before"})
        result = toolbox.call(name, parsed, session.desk)
    except (toolbox.BadCall, RecursionError) as error:
        played.fail("malformed_call", str(error)[:300])
        return json.dumps({"error": str(error)[:300]})
    played.calls.append(call)
    return result


def _calls(message: BaseMessage) -> list[dict[str, Any]]:
    return message.additional_kwargs.get("tool_calls") or []
