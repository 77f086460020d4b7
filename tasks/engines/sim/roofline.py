"""How long a step takes on a named GPU with a named model: the slower of arithmetic and memory, plus a fixed cost.

    seconds = overhead + max(flops / (peak x MFU), bytes / (bandwidth x MBU))
    flops   = 2 x weights x tokens + 4 x layers x heads x head size x pairs of a token and one it attends to
    bytes   = weights + KV cache read, once per request, + KV cache written

(Kaplan et al. 2020, section 2.1, for the flops; Williams et al. 2009 for the roofline.) Weights are counted from the
model's configuration: embedding, attention, gated MLP, norms left out (below 0.1 percent). Quantized are the linear
layers; embedding and output layer keep the model's own type. Draft tokens by a draft model cost one pass of it each.

MFU, MBU and overhead are ours, from one run of vLLM 0.25.1 with Qwen2.5-3B in bfloat16 on one H200: 301 tokens/s at one
stream are 3.3 ms per step, where the weights' bytes alone need 1.3 ms; 0.8 and 0.5 are what served models commonly
reach. So the sim's times are of the right order and no prediction: no report may set them beside measured ones.
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pydantic import Field

from tasks.document import Document, InvalidDocument, parse, read, read_yaml

MFU, MBU = 0.5, 0.8
OVERHEAD_S = 1.7e-3  # launch, sampling, detokenizing
RESERVED = 0.044  # of the memory: activations, CUDA graphs (ours: H200 above keeps 3.35 M tokens of KV at 0.9)
WIDTHS = {"float32": 4.0, "float": 4.0, "bfloat16": 2.0, "float16": 2.0, "half": 2.0}
QUANTIZED = {"fp8": 1.0, "fp8_per_tensor": 1.0, "int8": 1.0, "compressed-tensors": 1.0, "awq": 0.53, "gptq": 0.53}
KV_WIDTHS = {"fp8": 1.0, "fp8_e4m3": 1.0, "fp8_e5m2": 1.0} | WIDTHS


class Gpu(Document):
    """One entry of gpus.yaml."""

    name: str
    memory_gb: float = Field(gt=0)
    bandwidth_gb_per_s: float = Field(gt=0)
    bf16_tflops: float = Field(gt=0)
    fp8_tflops: float = Field(gt=0)
    source: str = Field(min_length=10)
    read_on: str


class Model(Document):
    """model.yaml of a folder in deploy/models/sim: those fields of a config.json that cost time or memory."""

    says: str = ""
    source: str = ""
    read_on: str = ""
    vocab_size: int = Field(gt=0)
    hidden_size: int = Field(gt=0)
    intermediate_size: int = Field(gt=0)
    num_hidden_layers: int = Field(gt=0)
    num_attention_heads: int = Field(gt=0)
    num_key_value_heads: int = Field(gt=0)
    head_dim: int | None = None
    tie_word_embeddings: bool = True
    max_position_embeddings: int = Field(gt=0)

    @property
    def head(self) -> int:
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def linear(self) -> int:
        """Weights of the linear layers."""
        q, kv = self.num_attention_heads * self.head, self.num_key_value_heads * self.head
        return self.num_hidden_layers * self.hidden_size * (2 * q + 2 * kv + 3 * self.intermediate_size)

    @property
    def embedding(self) -> int:
        """Weights of embedding and output layer, which may be one."""
        return self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)


@dataclass(frozen=True)
class Machine:
    """A GPU, the model on it and how it is held there. All that a step's time depends on, but for the step."""

    gpu: Gpu
    model: Model
    width: float = 2.0  # bytes per weight of embedding and output layer
    linear_width: float = 2.0
    kv_width: float = 2.0
    draft: Model | None = None

    @property
    def weight_bytes(self) -> int:
        """Held in memory, a draft model included."""
        draft = (self.draft.linear + self.draft.embedding) * self.width if self.draft else 0
        return round(self.model.linear * self.linear_width + self.model.embedding * self.width + draft)

    @property
    def kv_bytes(self) -> float:
        """Per token."""
        return 2 * self.model.num_hidden_layers * self.model.num_key_value_heads * self.model.head * self.kv_width


def gpus() -> dict[str, Gpu]:
    """Name -> GPU."""
    path = Path(__file__).with_name("gpus.yaml")
    return {name: parse(entry, Gpu, source=f"{path}: {name}") for name, entry in read_yaml(path).items()}


@cache
def gpu(name: str) -> Gpu:
    """One GPU. Raises InvalidDocument with the known ones."""
    known = gpus()
    if name not in known:
        raise InvalidDocument(f"SIM_GPU: no '{name}'; known: {', '.join(known)}")
    return known[name]


def model(folder: Path) -> Model:
    """model.yaml of a folder, or what its config.json says. Raises InvalidDocument."""
    if (folder / "model.yaml").exists():
        return read(folder / "model.yaml", Model)
    path = folder / "config.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidDocument(f"{folder}: has neither a model.yaml nor a readable config.json: {error}") from error
    return parse({k: v for k, v in content.items() if k in Model.model_fields}, Model, source=str(path))


def kv_pool_tokens(machine: Machine, utilization: float) -> int:
    """Tokens that the memory holds beside the weights; negative if the weights alone are too large."""
    memory = machine.gpu.memory_gb * 2**30
    return int((memory * (utilization - RESERVED) - machine.weight_bytes) / machine.kv_bytes)


def seconds(machine: Machine, tokens: int, context: int, pairs: int, drafts: int = 0) -> float:
    """Of one step: tokens computed, contexts of its requests summed, pairs attended to, passes of the draft model."""
    made = machine.model
    flops = 2 * (made.linear + made.embedding) * tokens
    flops += 4 * made.num_hidden_layers * made.num_attention_heads * made.head * pairs
    moved = machine.weight_bytes + machine.kv_bytes * (context + tokens)
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
