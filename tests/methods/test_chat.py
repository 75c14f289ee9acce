"""A chat is rendered by the model's own template, the same on every day."""

from datetime import date
from pathlib import Path

import pytest

from iar.errors import UserError
from iar.methods.chat import encode_prompt, end_of_turn, render_prompt, template_hash
from iar.services.models import load_tokenizer
from tests.chat_families import FAMILIES, of_family
from tests.tiny_model import CHAT_TEMPLATE

# As Llama-3.2 does it, and as SmolLM3 does it.
OPTIONAL_DATE = (
    "{%- if not date_string is defined %}{%- if strftime_now is defined %}"
    "{%- set date_string = strftime_now('%d %b %Y') %}{%- else %}{%- set date_string = 'unknown' %}{%- endif %}"
    "{%- endif %}{{- 'Today Date: ' + date_string + '\\n\\n' }}"
)
ALWAYS_DATE = "{%- set today = strftime_now('%d %B %Y') -%}\n{% macro line() %}{{ 'Today Date: ' + today + '\\n' }}"
ALWAYS_DATE += "{% endmacro %}{{ line() }}"


@pytest.mark.parametrize(
    ("beginning", "shown"), [(OPTIONAL_DATE, "26 Jul 2024\n\n"), (ALWAYS_DATE, "26 July 2024\n")], ids=["set", "macro"]
)
def test_a_template_that_writes_the_day_writes_the_same_one_every_day(
    tiny_model_folder: Path, beginning: str, shown: str
) -> None:
    tokenizer = load_tokenizer(tiny_model_folder)
    plain = render_prompt(tokenizer, "Hello", None)
    end = end_of_turn(tokenizer)
    tokenizer.chat_template = beginning + CHAT_TEMPLATE
    assert str(date.today().year) in str(
        tokenizer.apply_chat_template([{"role": "user", "content": "a"}], tokenize=False)
    )
    assert render_prompt(tokenizer, "Hello", None) == f"Today Date: {shown}{plain}"
    assert end_of_turn(tokenizer) == end


def test_a_template_without_a_day_is_rendered_as_transformers_does(tiny_model_folder: Path) -> None:
    tokenizer = load_tokenizer(tiny_model_folder)
    messages = [{"role": "system", "content": ""}, {"role": "user", "content": "Say {{ 1 + 1 }}\n"}]
    wanted = tokenizer.apply_chat_template(messages, tokenize=True, add_generation_prompt=True, return_dict=False)
    assert encode_prompt(tokenizer, "Say {{ 1 + 1 }}\n", "") == wanted


def test_the_hash_follows_the_template_and_a_model_without_one_is_refused(tiny_model_folder: Path) -> None:
    tokenizer = load_tokenizer(tiny_model_folder)
    before = template_hash(tokenizer)
    tokenizer.chat_template = CHAT_TEMPLATE + "{{ '' }}"
    assert template_hash(tokenizer) != before
    tokenizer.chat_template = None
    with pytest.raises(UserError, match="has no chat template; use the instruct version"):
        template_hash(tokenizer)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_turn_ends_with_the_first_special_token_behind_the_reply(tiny_model_folder: Path, family: str) -> None:
    tokenizer = of_family(tiny_model_folder, family)
    assert tokenizer.convert_ids_to_tokens(end_of_turn(tokenizer)) == FAMILIES[family][1]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_and_its_reply_are_the_beginning_of_the_conversation(tiny_model_folder: Path, family: str) -> None:
    tokenizer = of_family(tiny_model_folder, family)
    turns = [{"role": "user", "content": "Which lamp?"}, {"role": "assistant", "content": "A green one."}]
    whole = str(tokenizer.apply_chat_template(turns, tokenize=False))
    trained = tokenizer.decode(encode_prompt(tokenizer, "Which lamp?", None))
    assert whole.startswith(trained)
    reply, end = whole[len(trained) :], FAMILIES[family][1]
    assert reply.removeprefix("<think>\n\n</think>\n\n").lstrip().startswith("A green one." + end)


def test_a_turn_that_ends_without_a_special_token_is_refused(tiny_model_folder: Path) -> None:
    tokenizer = load_tokenizer(tiny_model_folder)
    tokenizer.chat_template = "<|im_start|>{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    with pytest.raises(UserError, match="ends no turn with a special token"):
        end_of_turn(tokenizer)


def test_what_a_template_refuses_is_one_line_with_the_fix(tiny_model_folder: Path) -> None:
    tokenizer = of_family(tiny_model_folder, "gemma")
    said = r"model\.system_turn: the chat template of .* fails with a system turn \(System role not supported\); set it"
    with pytest.raises(UserError, match=said):
        render_prompt(tokenizer, "Hello", "Be brief.")
    for broken in ("{{ messages[7].content }}", "{% for %}", "{{ raise_exception('no') }}"):
        tokenizer.chat_template = broken
        with pytest.raises(
            UserError, match=r"model\.source: the chat template of .* fails \(.*\); use another version"
        ):
            render_prompt(tokenizer, "Hello", None)
