import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iar.methods.reply_json import after_thinking, find_objects, repairs

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.text(max_size=5), VALUES, max_size=4)


@given(OBJECTS, OBJECTS)
def test_objects_are_found_in_order_among_words_and_fences(first: dict, second: dict) -> None:
    text = f"Sure {{really}}:\n```json\n{json.dumps(first, indent=1)}\n```\nor {json.dumps(second)} I hope"
    found = find_objects(text)
    assert found.objects == [first, second]
    assert found.rest == "Sure {really}:\n```json\n\n```\nor  I hope"


@pytest.mark.parametrize("text", ["", "none", "{", "[1, 2]", '{"a": NaN}', '{"a":' * 5000, '{"a":' + "[" * 50_000])
def test_what_is_no_object_is_left_alone(text: str) -> None:
    assert find_objects(text).objects == []


def test_a_cut_off_list_keeps_its_whole_items() -> None:
    text = 'Here: {"list": [{"q": "a, b", "k": "x"}, {"q": "c", "k": "y'
    assert next(repairs(text)) == {"list": [{"q": "a, b", "k": "x"}, {"q": "c"}]}
    assert {"list": [{"q": "a, b", "k": "x"}]} in list(repairs(text))


def test_a_text_that_lacks_only_its_brackets_is_whole() -> None:
    assert next(repairs('{"question": "Who is \\"it\\"?"')) == {"question": 'Who is "it"?'}
    assert next(repairs('{"list": ["a", "b"')) == {"list": ["a", "b"]}
    for literal in ("true", "false", "null"):
        assert next(repairs(f'{{"reason": "x", "passed": {literal}')) == {"reason": "x", "passed": json.loads(literal)}
        assert next(repairs(f'{{"reason": "x", "passed": {literal[:-1]}')) == {"reason": "x"}


@given(OBJECTS, st.data())
def test_a_repair_says_nothing_that_the_whole_did_not_say(whole: dict, data: st.DataObject) -> None:
    text = json.dumps(whole)
    cut = data.draw(st.integers(0, len(text) - 1))
    for repaired in repairs(text[:cut]):
        assert _is_part(repaired, whole)


def _is_part(part: object, whole: object) -> bool:
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(key in whole and _is_part(value, whole[key]) for key, value in part.items())
    if isinstance(part, list) and isinstance(whole, list):
        return len(part) <= len(whole) and all(map(_is_part, part, whole))
    return part == whole


def test_thoughts_are_no_reply() -> None:
    assert after_thinking('<think>{"score": 1}</think> {"score": 0}') == ' {"score": 0}'
    assert after_thinking("plain") == "plain"
    assert after_thinking('\n<think>at first {"score": 1}, but then') == ""
