"""What every engine needs of a checkpoint folder without its weights: prompts as token ids, and what ends a reply."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iar.errors import UserError
from iar.methods.chat import encode_prompt, end_of_turn
from iar.records import EvalItem
from iar.services.models import load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Prompts:
    """Makes prompts for one checkpoint; `room` is the most tokens of prompt and reply, None = any."""

    tokenizer: "PreTrainedTokenizerBase"
    system_turn: str | None
    end_ids: tuple[int, ...]
    room: int | None

    @classmethod
    def of(cls, checkpoint: Path, system_turn: str | None) -> "Prompts":
        """Read tokenizer, generation settings and config of a folder. Raises UserError for one that cannot chat."""
        from transformers import AutoConfig

        tokenizer = load_tokenizer(checkpoint)
        config = AutoConfig.from_pretrained(checkpoint, trust_remote_code=False)
        room = getattr(config, "max_position_embeddings", None)
        ends = end_ids(_generation_settings(checkpoint, config), end_of_turn(tokenizer))
        return cls(tokenizer, system_turn, tuple(sorted(ends)), room)

    def encode(self, items: Sequence[EvalItem]) -> list[list[int]]:
        """Return the token ids of each prompt. Raises UserError for one that leaves no room for its reply."""
        encoded = [encode_prompt(self.tokenizer, item.prompt, self.system_turn) for item in items]
        for item, ids in zip(items, encoded, strict=True):
            check_room(item, len(ids), self.room)
        return encoded

    def fits(self, item: EvalItem) -> bool:
        """Tell whether a prompt leaves room for its reply."""
        prompt = encode_prompt(self.tokenizer, item.prompt, self.system_turn)
        return not self.room or len(prompt) + item.max_new_tokens <= self.room


def check_room(item: EvalItem, prompt_tokens: int, room: int | None) -> None:
    """Raise UserError where a prompt leaves no room for its reply in the model's positions."""
    if room and prompt_tokens + item.max_new_tokens > room:
        raise UserError(
            f"{item.suite} item {item.id}: a prompt of {prompt_tokens} tokens and a reply of "
            f"{item.max_new_tokens} exceed the model's {room} positions; shorten the prompt or lower "
            f"{item.suite}_max_tokens"
        )


def end_ids(settings: Any, end_of_turn_id: int) -> frozenset[int]:
    """Return every token that ends a reply: the template's own, and those of the generation settings."""
    listed = settings.eos_token_id if settings else None
    ids = listed if isinstance(listed, list) else [listed]
    return frozenset([end_of_turn_id, *(number for number in ids if number is not None)])


def _generation_settings(checkpoint: Path, config: Any) -> Any:
    from transformers import GenerationConfig

    if (checkpoint / "generation_config.json").is_file():
        return GenerationConfig.from_pretrained(checkpoint)
    return config
