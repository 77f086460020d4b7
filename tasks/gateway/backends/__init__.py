"""Kinds of server behind the gateway; one file per kind, found by its name, stateless.

    chat_url(base) -> str           where a chat completion is posted; base as registered
    headers(key) -> dict            the credentials that the server wants; {} without a key
    ending(tail) -> Ending          what the last bytes of an answer say; never raises, None for what they do not say
    EXAMPLES                        pairs (tail, Ending) as real servers send them; the contract suite runs them

The bytes themselves pass the gateway as they are, so a kind has nothing to translate: a server that does not speak the
OpenAI protocol is not a kind. vLLM, SGLang, Ollama, llama.cpp and Modal endpoints all are `openai`.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Ending:
    """What the end of an answer tells. Token counts are the server's own; None where it did not say."""

    input_tokens: int | None = None
    cached_input_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str | None = None
    is_done: bool = False  # the stream said [DONE]
    is_error: bool = False  # an error event inside the answer
