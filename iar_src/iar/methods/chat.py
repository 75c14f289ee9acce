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


REPLY = "Zq7"
"""Stands for a reply, and nowhere else in a template."""


def render_prompt(tokenizer: "PreTrainedTokenizerBase", user: str, system_turn: str | None) -> str:
    """Return the conversation as text up to and including the assistant's opening marker.

    `system_turn` None leaves it to the template whether a system turn is added; a text, the empty
    one included, is sent as the system turn. Raises UserError where the model has no template or it refuses the turns.
    """
    messages = [] if system_turn is None else [{"role": "system", "content": system_turn}]
    messages.append({"role": "user", "content": user})
    return _render(tokenizer, messages, open_reply=True)


def encode_prompt(tokenizer: "PreTrainedTokenizerBase", user: str, system_turn: str | None) -> list[int]:
    """Return the token ids of `render_prompt`; the template has already written every special token."""
    return list(tokenizer(render_prompt(tokenizer, user, system_turn), add_special_tokens=False)["input_ids"])


def end_of_turn(tokenizer: "PreTrainedTokenizerBase") -> int:
    """Return the id of the token that ends an assistant turn: the first special one the template writes behind it.

    A later one may end the conversation: Phi-4-mini writes <|end|>, then <|endoftext|>. Raises UserError for none.
    """
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": REPLY}]
    behind = _render(tokenizer, messages, open_reply=False).rpartition(REPLY)[2]
    special_ids = set(tokenizer.all_special_ids)
    special_ids |= {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    for token_id in tokenizer(behind, add_special_tokens=False)["input_ids"]:
        if token_id in special_ids:
            return int(token_id)
    raise UserError(f"model.source: the chat template of {tokenizer.name_or_path} ends no turn with a special token")


def template_hash(tokenizer: "PreTrainedTokenizerBase") -> str:
    """Return the SHA-256 of the chat template, recorded with every checkpoint."""
    return digest_text(_template(tokenizer))


def _render(tokenizer: "PreTrainedTokenizerBase", messages: list[dict[str, str]], open_reply: bool) -> str:
    from jinja2 import TemplateError

    template = _template(tokenizer)
    if "strftime_now" in template:
        template = FIXED_DAY + template
    try:
        rendered = tokenizer.apply_chat_template(
            messages, chat_template=template, tokenize=False, add_generation_prompt=open_reply
        )
    except TemplateError as error:
        place, what, fix = "model.source", "fails", "use another version of the model"
        if messages[0]["role"] == "system":
            place, what, fix = "model.system_turn", "fails with a system turn", "set it to null"
        raise UserError(f"{place}: the chat template of {tokenizer.name_or_path} {what} ({error}); {fix}") from error
    return str(rendered)


def _template(tokenizer: "PreTrainedTokenizerBase") -> str:
    if not tokenizer.chat_template:
        raise UserError(
            f"model.source: {tokenizer.name_or_path} has no chat template; "
            "use the instruct version of the model, whose tokenizer carries one"
        )
    return str(tokenizer.get_chat_template())
