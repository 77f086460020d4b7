"""How long a step takes on a named GPU with a named model: the slower of arithmetic and memory, plus a fixed cost.

    seconds = overhead + max(flops / (peak x MFU), bytes / (bandwidth x MBU))
    flops   = 2 x weights x tokens + 4 x layers x heads x head size x pairs of a token and one it attends to
    bytes   = weights + KV cache read, once per request, + KV cache written

(Kaplan et al. 2020, section 2.1, for the flops; Williams et al. 2009 for the roofline.) What is counted of a model is
said in tasks/sizing/machine.py. Draft tokens by a draft model cost one pass of it each.

MFU, MBU and overhead are ours, from one run of vLLM 0.25.1 with Qwen2.5-3B in bfloat16 on one H200: 301 tokens/s at one
stream are 3.3 ms per step, where the weights' bytes alone need 1.3 ms; 0.8 and 0.5 are what served models commonly
reach. So the sim's times are of the right order and no prediction: no report may set them beside measured ones.
"""

from tasks.sizing import capacity
from tasks.sizing.machine import Machine

MFU, MBU = 0.5, 0.8
OVERHEAD_S = 1.7e-3  # launch, sampling, detokenizing


def seconds(machine: Machine, tokens: int, context: int, pairs: int, drafts: int = 0) -> float:
    """Of one step: tokens computed, contexts of its requests summed, pairs attended to, passes of the draft model."""
    made = machine.model
    flops = 2 * (made.active + made.embedding) * tokens
    flops += 4 * made.num_hidden_layers * made.num_attention_heads * made.head * pairs
    moved = capacity.step_bytes(machine, tokens, context + tokens)
    once = OVERHEAD_S + max(flops / _peak(machine), moved / _bandwidth(machine))
    return once + drafts * _draft_pass_s(machine)


def _peak(machine: Machine) -> float:
    is_narrow = machine.linear_width <= 1
    return (machine.gpu.fp8_tflops if is_narrow else machine.gpu.bf16_tflops) * 1e12 * MFU


def _bandwidth(machine: Machine) -> float:
    return machine.gpu.bandwidth_gb_per_s * 1e9 * MBU


def _draft_pass_s(machine: Machine) -> float:
    """A draft model's pass reads its weights; n-gram guesses cost nothing here. A fifth of the overhead is ours."""
    if machine.draft is None:
        return 0.0
    read_bytes = (machine.draft.linear + machine.draft.embedding) * machine.width
    return OVERHEAD_S / 5 + read_bytes / _bandwidth(machine)
