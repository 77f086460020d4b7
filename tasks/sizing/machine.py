"""A GPU, a model and how the one is held on the other: what sizes and times are counted from.

Weights are counted from the model's config.json: embedding, attention, gated MLP, router of a mixture of experts. Norms
and biases are left out, below 0.1 percent. Quantized are the linear layers; embedding and output layer keep the model's
own type. Of a mixture of experts all experts are held and `experts_per_token` are computed. What is built otherwise
(latent attention, shared or first dense layers among experts) is refused: a wrong size is worse than none.
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field

from tasks.document import Document, InvalidDocument, parse, read, read_yaml

WIDTHS = {"float32": 4.0, "float": 4.0, "bfloat16": 2.0, "float16": 2.0, "half": 2.0}
QUANTIZED = {"fp8": 1.0, "fp8_per_tensor": 1.0, "int8": 1.0, "compressed-tensors": 1.0, "awq": 0.53, "gptq": 0.53}
KV_WIDTHS = {"fp8": 1.0, "fp8_e4m3": 1.0, "fp8_e5m2": 1.0} | WIDTHS
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")  # one thing, by three families of models
NOT_COUNTED: tuple[str, ...] = ("kv_lora_rank", "n_shared_experts", "shared_expert_intermediate_size")
NOT_COUNTED += ("mlp_only_layers", "first_k_dense_replace")


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
    """Those fields of a config.json that cost time or memory, and nothing else: model.yaml in deploy/models/sim."""

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
    num_experts: int = Field(default=0, ge=0)
    num_experts_per_tok: int = Field(default=0, ge=0)
    moe_intermediate_size: int | None = None  # of one expert; intermediate_size where the model has no other
    max_position_embeddings: int = Field(gt=0)

    @property
    def head(self) -> int:
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def linear(self) -> int:
        """Weights of the linear layers, all experts among them."""
        return self._linear(self.num_experts)

    @property
    def active(self) -> int:
        """Weights of the linear layers that one token passes through."""
        return self._linear(self.num_experts_per_tok)

    @property
    def expert(self) -> int:
        """Weights of one expert in all layers; 0 without experts."""
        inside = self.moe_intermediate_size or self.intermediate_size
        return 3 * self.num_hidden_layers * self.hidden_size * inside if self.num_experts else 0

    def _linear(self, experts: int) -> int:
        q, kv = self.num_attention_heads * self.head, self.num_key_value_heads * self.head
        mlp = self.num_experts if self.num_experts else 3 * self.intermediate_size  # a router, or the MLP itself
        return self.num_hidden_layers * self.hidden_size * (2 * q + 2 * kv + mlp) + experts * self.expert

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
def gpu(name: str, *, asked_by: str) -> Gpu:
    """One GPU; `asked_by` says where the name stands. Raises InvalidDocument with the known ones."""
    known = gpus()
    if name not in known:
        raise InvalidDocument(f"{asked_by}: no '{name}'; known: {', '.join(known)}")
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
    return parse(_counted(content, path), Model, source=str(path))


def _counted(content: dict[str, Any], path: Path) -> dict[str, Any]:
    """What of a config.json is counted. Raises InvalidDocument where that would not be the whole model."""
    odd = [name for name in NOT_COUNTED if content.get(name)]
    odd += ["decoder_sparse_step"] if content.get("decoder_sparse_step", 1) != 1 else []
    if odd:
        raise InvalidDocument(f"{path}: a model with {', '.join(odd)} is not counted here")
    experts = next((content[name] for name in EXPERTS if content.get(name)), 0)
    if experts and not content.get("num_experts_per_tok"):
        raise InvalidDocument(f"{path}: num_experts_per_tok: must be given for a model of {experts} experts")
    return {k: v for k, v in content.items() if k in Model.model_fields} | {"num_experts": experts}
