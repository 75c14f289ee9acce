"""What one training takes of each rank's memory, before it starts: an estimate from the model's sizes.

Follows services/trainer.py and DeepSpeed's ZeRO stages: weights in the compute dtype, fp32 masters (one process that
computes in fp32 trains its weights themselves), gradients and AdamW moments, the activations of one forward pass,
one chunk of logits.
"""

from dataclasses import dataclass

from iar.config import TrainingSection
from iar.services.adapters import LoraSettings
from iar.services.model_shapes import ModelShape
from iar.services.train_engines import ZERO_BUCKET_ELEMENTS, EngineName

GB = 1e9
ENGINES_BY_SPEED: tuple[EngineName, ...] = ("ddp", "zero2", "zero3")
FP32_BYTES = 4
MOMENTS = 2
# Elements that DeepSpeed's stage 3 fetches ahead of use.
PREFETCH_BUCKET = 50_000_000


@dataclass(frozen=True)
class TrainingMemory:
    """GB (1e9 bytes) of one rank at its peak, by part.

    activations: of the longest forward pass, all kept. With activation checkpointing instead:
    inputs, of the blocks; outside, of what is no block; block, one computed again with its gradients.
    logits: of the loss. update: gradients in the compute dtype and copies of the optimizer step, alive when the
    activations no longer are. buffers: of the engine, for exchange. merge: of an adapter, the fp32 weights that it is
    added to beside those of the training; in the machine's memory, not a GPU's.
    """

    weights: float
    masters: float
    gradients: float
    optimizer: float
    buffers: float
    activations: float
    inputs: float
    outside: float
    block: float
    logits: float
    update: float
    checkpointing: bool
    merge: float = 0.0

    @property
    def states(self) -> float:
        """What is held all the time, whatever the rows."""
        return self.weights + self.masters + self.gradients + self.optimizer + self.buffers

    @property
    def passing(self) -> float:
        """The most that one pass takes beside the states: at its turning point, or in a block computed again."""
        if not self.checkpointing:
            return self.activations + self.logits
        return self.inputs + max(self.outside + self.logits, self.block)

    @property
    def total(self) -> float:
        """The peak: the states, and the larger of what a pass and what the update needs."""
        return self.states + max(self.passing, self.update)

    def __str__(self) -> str:
        return (
            f"weights {self.weights:.1f}, fp32 masters {self.masters:.1f}, gradients {self.gradients:.1f}, optimizer "
            f"{self.optimizer:.1f}, buffers {self.buffers:.1f}, activations and logits {self.passing:.1f} or update "
            f"{self.update:.1f}" + (f" or merge {self.merge:.1f}" if self.merge else "")
        )


def estimate(
    shape: ModelShape,
    settings: TrainingSection,
    engine: EngineName,
    ranks: int,
    adapter: LoraSettings | None = None,
    pass_tokens: int | None = None,
) -> TrainingMemory:
    """Return what each of `ranks` ranks takes. A compute dtype of auto counts as bfloat16, which GPUs have.

    pass_tokens: of the longest forward pass; None = the most that the settings allow, where a row longer than
    `micro_batch_tokens` is a pass of its own.
    """
    if pass_tokens is None:
        pass_tokens = max(settings.micro_batch_tokens, settings.sequence_length)
    element = FP32_BYTES if settings.compute_dtype == "float32" else 2
    parameters = shape.parameters / GB
    trained = shape.factor_parameters(adapter.rank) / GB if adapter else parameters
    gradient_parts = ranks if engine in ("zero2", "zero3") else 1
    one_copy = element == FP32_BYTES and ranks == 1 and gradient_parts == 1 and not adapter
    weight_parts = ranks if engine == "zero3" else 1
    shard = FP32_BYTES * trained / gradient_parts
    head_gradient = 0.0 if adapter else shape.vocabulary * shape.hidden / GB
    outside, block = _activations_per_token(shape, element, adapter)
    block_gradients = 2 * element * (shape.hidden + shape.intermediate)
    tokens = pass_tokens / GB
    return TrainingMemory(
        weights=element * parameters / weight_parts,
        masters=0.0 if one_copy else shard,
        gradients=shard,
        optimizer=MOMENTS * shard,
        buffers=_buffers(shape, element, engine, ranks),
        activations=tokens * (outside + shape.layers * block),
        inputs=tokens * shape.layers * element * shape.hidden,
        outside=tokens * outside,
        block=tokens * (block + block_gradients) + element * head_gradient,
        logits=_logits(shape, pass_tokens) + _head_gradient_bytes(pass_tokens, element) * head_gradient,
        update=0.0 if one_copy else element * trained if gradient_parts == 1 else shard,
        checkpointing=settings.activation_checkpointing,
        merge=(element + FP32_BYTES) * parameters if adapter else 0.0,
    )


def _activations_per_token(shape: ModelShape, element: int, adapter: LoraSettings | None) -> tuple[int, int]:
    """Return bytes a token that autograd keeps outside the blocks, and in each block.

    A norm keeps its input in fp32, the normalised and the scaled one; attention its three inputs (keys and values
    repeated to the queries' heads), its output and the copy that the next product reads; the MLP four of its width.
    With an adapter a norm's weight is not trained, so its normalised input goes; between each two factors stays a rank.
    """
    norm = FP32_BYTES + (1 if adapter else 2) * element
    attention = 5 * element * shape.queries
    head_norms = norm * (shape.queries + shape.keys) if shape.head_norms else 0
    factors = 7 * element * adapter.rank if adapter else 0
    layer = 2 * norm * shape.hidden + attention + head_norms + 4 * element * shape.intermediate + factors
    return (norm + 4 * element) * shape.hidden, layer


def _logits(shape: ModelShape, tokens: int) -> float:
    """Return GB of one chunk of logits and its exponentials in fp32."""
    from iar.methods.losses import CHUNK_POSITIONS

    return 2 * FP32_BYTES * min(CHUNK_POSITIONS, tokens) * shape.vocabulary / GB


def _head_gradient_bytes(tokens: int, element: int) -> int:
    """Return bytes a weight of the head: its gradient's sum in fp32, and a chunk's part or the compute dtype's copy."""
    from iar.methods.losses import CHUNK_POSITIONS

    one_copy = element == FP32_BYTES and tokens <= CHUNK_POSITIONS
    return FP32_BYTES + (0 if one_copy else element)


def _buffers(shape: ModelShape, element: int, engine: EngineName, ranks: int) -> float:
    if engine in ("single", "ddp") or ranks == 1:
        return 0.0
    # A bucket of gradients in the compute dtype, and the same in fp32 on its way to the other ranks.
    reduce = (element + FP32_BYTES) * min(ZERO_BUCKET_ELEMENTS, shape.parameters) / GB
    if engine == "zero2":
        return reduce
    # The blocks in use and fetched ahead, or embedding and head; never more than what lies on the other ranks.
    live = max(2 * shape.layer_parameters + PREFETCH_BUCKET, 2 * shape.hidden * shape.vocabulary)
    elsewhere = shape.parameters * (1 - 1 / ranks)
    return reduce + element * min(live, elsewhere) / GB
