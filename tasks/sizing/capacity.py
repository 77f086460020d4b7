"""What a GPU can hold and how fast it can be at most, before anything is run.

    KV pool, tokens       (memory x (utilization - RESERVED) - weights) / KV bytes per token
    users                 that many tokens / tokens of context each
    decode, tokens/s      users / (bytes of a step / bandwidth): weights once, and the KV cache of every user
    prefill, s            flops of the prompt / peak: 2 x active weights per token, and attention, half of it masked
    balance, tokens       a step of more tokens than this is bound by arithmetic, a smaller one by memory

(Kaplan et al. 2020, section 2.1; Williams et al. 2009; for decode Pope et al. 2022.) Speeds are ceilings from data
sheets, with no efficiency guessed: a server that is faster was measured wrongly. Of a mixture of experts a step of n
tokens reads the experts that n uniform draws are expected to reach.

RESERVED is ours: activations, CUDA graphs and what is not torch's. vLLM 0.25.1 with Qwen2.5-3B on one H200 at 0.9 kept
1.6 percent of the memory (docs/results/2026-12-01-h200) and, with draft tokens, 4.4 percent (tests/goldens). The larger
one is taken, so that a plan that fits here fits there.
"""

from tasks.sizing.machine import Machine

RESERVED = 0.044  # of the memory


def kv_pool_tokens(machine: Machine, utilization: float) -> int:
    """Tokens that the memory holds beside the weights; negative if the weights alone are too large."""
    memory = machine.gpu.memory_gb * 2**30
    return int((memory * (utilization - RESERVED) - machine.weight_bytes) / machine.kv_bytes)


def users(machine: Machine, utilization: float, context: int) -> int:
    """How many contexts of so many tokens fit at once; 0 if not even one does."""
    return max(0, kv_pool_tokens(machine, utilization) // context)


def step_bytes(machine: Machine, tokens: int, context: int) -> float:
    """Read in one step of so many tokens, whose requests have `context` tokens together."""
    made = machine.model
    unread = made.num_experts * _missed(machine, tokens) * made.expert * machine.linear_width
    return machine.weight_bytes - unread + machine.kv_bytes * context


def _missed(machine: Machine, tokens: int) -> float:
    """The expected share of experts that none of the tokens reaches."""
    made = machine.model
    return (1 - made.num_experts_per_tok / made.num_experts) ** tokens if made.num_experts else 0.0


def decode_tokens_per_s(machine: Machine, at_once: int, context: int) -> float:
    """The ceiling of so many users with `context` tokens each, by bandwidth or by arithmetic, whichever is lower."""
    by_bandwidth = at_once / (step_bytes(machine, at_once, at_once * context) / _bandwidth(machine))
    return min(by_bandwidth, _peak(machine) / _flops(machine))


def prefill_s(machine: Machine, tokens: int) -> float:
    """The floor of computing one prompt with nothing cached."""
    made = machine.model
    pairs = tokens * (tokens + 1) // 2
    attention = 4 * made.num_hidden_layers * made.num_attention_heads * made.head * pairs
    return (_flops(machine) * tokens + attention) / _peak(machine)


def balance_tokens(machine: Machine) -> int:
    """Tokens of a step from which on arithmetic takes longer than reading the weights (contexts left out)."""
    return round(machine.weight_bytes / _bandwidth(machine) * _peak(machine) / _flops(machine))


def _flops(machine: Machine) -> float:
    """Per token, attention left out."""
    return 2.0 * (machine.model.active + machine.model.embedding)


def _peak(machine: Machine) -> float:
    return (machine.gpu.fp8_tflops if machine.linear_width <= 1 else machine.gpu.bf16_tflops) * 1e12


def _bandwidth(machine: Machine) -> float:
    return machine.gpu.bandwidth_gb_per_s * 1e9
