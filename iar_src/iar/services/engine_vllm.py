"""Replies from vLLM in this process: loaded once, its weights exchanged for those of each model."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from iar.errors import UserError
from iar.records import EvalItem, Reply
from iar.services.engine_prompts import Prompts
from iar.services.subjects import Subject


class VllmEngine:
    """vLLM's offline engine. Loading takes a minute, an exchange of weights the reading of a checkpoint."""

    def __init__(self, system_turn: str | None, batch_size: int, seed: int) -> None:
        self._system_turn = system_turn
        self._batch_size = batch_size
        self._seed = seed
        self._llm: Any = None
        self._folder: Path | None = None

    def open(self, subject: Subject) -> Self:
        """Take the weights of a model. Raises UserError where vLLM is not installed."""
        self._prompts = Prompts.of(subject.checkpoint, self._system_turn)
        if self._llm is None:
            self._llm = _load(subject.checkpoint, self._batch_size, self._seed)
        elif self._folder != subject.checkpoint:
            self._llm.collective_rpc("reload_weights", kwargs={"weights_path": str(subject.checkpoint)})
            self._llm.reset_prefix_cache()
        self._folder = subject.checkpoint
        return self

    def generate(
        self, items: Sequence[EvalItem], on_progress: Callable[[int, int], None] | None = None
    ) -> Iterator[Reply]:
        """Yield a reply an item, in their order, `batch_size` prompts at a time."""
        from vllm import SamplingParams, TokensPrompt

        encoded = self._prompts.encode(items)
        for start in range(0, len(items), self._batch_size):
            part = items[start : start + self._batch_size]
            prompts = [TokensPrompt(prompt_token_ids=ids) for ids in encoded[start : start + self._batch_size]]
            sampling = [
                SamplingParams(
                    temperature=0.0,
                    seed=self._seed,
                    max_tokens=item.max_new_tokens,
                    stop_token_ids=list(self._prompts.end_ids),
                    detokenize=False,
                )
                for item in part
            ]
            for number, (item, output) in enumerate(
                zip(part, self._llm.generate(prompts, sampling, use_tqdm=False), strict=True), start + 1
            ):
                yield self._reply(item, output.outputs[0])
                if on_progress:
                    on_progress(number, len(items))

    def _reply(self, item: EvalItem, made: Any) -> Reply:
        ids = [token for token in made.token_ids if token not in self._prompts.end_ids]
        text = self._prompts.tokenizer.decode(ids, skip_special_tokens=True)
        return Reply(item.id, str(text).strip(), len(ids), truncated=made.finish_reason == "length")


def _load(checkpoint: Path, batch_size: int, seed: int) -> Any:
    try:
        from vllm import LLM
    except ImportError as error:
        raise UserError(
            f"evaluate.engine: vllm is not installed here ({error}); install vLLM's build for this machine, or take "
            "engine: transformers"
        ) from error
    return LLM(model=str(checkpoint), seed=seed, max_num_seqs=batch_size, trust_remote_code=False)
