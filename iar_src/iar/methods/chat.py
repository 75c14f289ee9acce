"""Chat rendering, identical in training and evaluation: the model's own template, which always writes one day.

Some templates (Llama-3.2, SmolLM3) write the day of rendering into the system turn; a model trained on one day and
evaluated on another would see prompts that it was not trained on.
"""

from datetime import date
from typing import TYPE_CHECKING

from iar.errors import UserError
from iar.methods.digest import digest_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

DAY = date(2024, 7, 26)
"""What Llama-3.2's template writes where it cannot know the day."""

CODES = ("%A", "%a", "%B", "%b", "%d", "%H", "%M", "%m", "%S", "%Y", "%y")
# Stands before the template and hides transformers' function of that name, which tells the time.
FIXED_DAY = (
    "{% macro strftime_now(format) %}{{ format"
    + "".join(f"|replace('{code}', '{DAY.strftime(code)}')" for code in CODES)
    + " }}{% endmacro %}\n"
)


def render_prompt(tokenizer: "PreTrainedTokenizerBase", user: str, system_turn: str | None) -> str:
    """Return the conversation as text up to and including the assistant's opening marker.

    `system_turn` None leaves it to the template whether a system turn is added; a text, the empty
    one included, is sent as the system turn. Raises UserError where the model has no template.
    """
    messages = [] if system_turn is None else [{"role": "system", "content": system_turn}]
    messages.append({"role": "user", "content": user})
    return _render(tokenizer, messages, open_reply=True)


def encode_prompt(tokenizer: "PreTrainedTokenizerBase", user: str, system_turn: str | None) -> list[int]:
    """Return the token ids of `render_prompt`; the template has already written every special token."""
    return list(tokenizer(render_prompt(tokenizer, user, system_turn), add_special_tokens=False)["input_ids"])


def end_of_turn(tokenizer: "PreTrainedTokenizerBase") -> int:
    """Return the id of the token that ends an assistant turn: the last special one the template writes."""
    special_ids = set(tokenizer.all_special_ids)
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    rendered = tokenizer(_render(tokenizer, messages, open_reply=False), add_special_tokens=False)
    special = [token for token in rendered["input_ids"] if token in special_ids]
    if not special:
        raise UserError(
            f"model.source: the chat template of {tokenizer.name_or_path} ends no turn with a special token"
        )
    return int(special[-1])


def template_hash(tokenizer: "PreTrainedTokenizerBase") -> str:
    """Return the SHA-256 of the chat template, recorded with every checkpoint."""
    return digest_text(_template(tokenizer))


def _render(tokenizer: "PreTrainedTokenizerBase", messages: list[dict[str, str]], open_reply: bool) -> str:
    template = _template(tokenizer)
    if "strftime_now" in template:
        template = FIXED_DAY + template
    return str(
        tokenizer.apply_chat_template(
            messages, chat_template=template, tokenize=False, add_generation_prompt=open_reply
        )
    )


def _template(tokenizer: "PreTrainedTokenizerBase") -> str:
    if not tokenizer.chat_template:
        raise UserError(
            f"model.source: {tokenizer.name_or_path} has no chat template; "
            "use the instruct version of the model, whose tokenizer carries one"
        )
    return str(tokenizer.get_chat_template())
