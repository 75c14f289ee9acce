"""Chat rendering, identical in training and evaluation: the model's own template and nothing else."""

from typing import TYPE_CHECKING

from iar.errors import UserError
from iar.methods.digest import digest_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def render_prompt(tokenizer: "PreTrainedTokenizerBase", user: str, system_turn: str | None) -> str:
    """Return the conversation as text up to and including the assistant's opening marker.

    `system_turn` None leaves it to the template whether a system turn is added; a text, the empty
    one included, is sent as the system turn. Raises UserError where the model has no template.
    """
    if not tokenizer.chat_template:
        raise UserError(
            f"model.source: {tokenizer.name_or_path} has no chat template; "
            "use the instruct version of the model, whose tokenizer carries one"
        )
    messages = [] if system_turn is None else [{"role": "system", "content": system_turn}]
    messages.append({"role": "user", "content": user})
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return str(text)


def encode_prompt(tokenizer: "PreTrainedTokenizerBase", user: str, system_turn: str | None) -> list[int]:
    """Return the token ids of `render_prompt`; the template has already written every special token."""
    return list(tokenizer(render_prompt(tokenizer, user, system_turn), add_special_tokens=False)["input_ids"])


def end_of_turn(tokenizer: "PreTrainedTokenizerBase") -> int:
    """Return the id of the token that ends an assistant turn: the last special one the template writes."""
    special_ids = set(tokenizer.all_special_ids)
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    rendered = tokenizer(tokenizer.apply_chat_template(messages, tokenize=False), add_special_tokens=False)
    special = [token for token in rendered["input_ids"] if token in special_ids]
    if not special:
        raise UserError(
            f"model.source: the chat template of {tokenizer.name_or_path} ends no turn with a special token"
        )
    return int(special[-1])


def template_hash(tokenizer: "PreTrainedTokenizerBase") -> str:
    """Return the SHA-256 of the chat template, recorded with every checkpoint and score."""
    return digest_text(str(tokenizer.chat_template))
