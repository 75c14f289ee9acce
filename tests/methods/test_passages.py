"""A text too long for the sequence becomes parts that fit, each with every objective's rows and its own notes."""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from iar.config import InjectSection
from iar.methods.objectives import PREFIX_SHARE, Passage, reconstruction_rows
from iar.methods.passages import fitting_parts
from iar.records import Anchor
from iar.services.models import load_tokenizer
from iar.services.rows import fit_passages, tokenise

SENTENCES = " ".join(f"Lamp {number} of Velm was lit in {1800 + number} by Tora Lind." for number in range(60))
ACCENTED = "e\u0301" * 40
FLAGS = "\U0001f1eb\U0001f1f7" * 30


def graphemes(text: str) -> int:
    """Stand for a tokenizer: one token a grapheme."""
    return len(regex.findall(r"\X", text))


def longest_row(overhead: int) -> Callable[[Passage], int]:
    return lambda passage: overhead + graphemes(passage.text)


def without_space(text: str) -> str:
    return re.sub(r"\s", "", text)


texts = st.lists(
    st.sampled_from(["The lamp burns. ", "At night ", "\n\n", "Velm", "\u6d77\u706f\u3002", ACCENTED, FLAGS, " "]),
    min_size=1,
    max_size=40,
).map(lambda pieces: "".join(pieces).strip())


@given(texts, st.integers(40, 400))
def test_parts_hold_all_of_the_text_once_and_fit(text: str, sequence: int) -> None:
    passage = Passage("d", "T", "", text, "notes")
    parts = fitting_parts(passage, sequence, longest_row(10), graphemes)
    assert without_space("".join(part.text for part in parts)) == without_space(text)
    assert all(10 + graphemes(part.text) <= sequence and part.text == part.text.strip() for part in parts)
    assert all(text[part.start :].startswith(part.text) for part in parts)
    assert sum(graphemes(without_space(part.text)) for part in parts) == graphemes(without_space(text)), "none is cut"
    if len(parts) == 1:
        assert parts == [passage]
    else:
        assert [part.part for part in parts] == [f"part {n} of {len(parts)} of " for n in range(1, len(parts) + 1)]


def test_parts_are_balanced_and_end_with_sentences() -> None:
    passage = Passage("d", "Velm", "", SENTENCES, ("notes",))
    parts = fitting_parts(passage, 700, longest_row(50), graphemes)
    sizes = [len(part.text) for part in parts]
    assert 2 * min(sizes) > max(sizes)
    assert all(part.text.endswith(".") for part in parts)


def test_a_part_has_notes_of_its_own_text_and_says_which_part_of_which_it_is() -> None:
    start = SENTENCES.index("Lamp 59")
    anchors = (Anchor("c", "name", "Lamp 0", 100, 106), Anchor("c", "name", "Lamp 59", 100 + start, 107 + start))
    passage = Passage("d", "Velm", "part 2 of 5 of ", SENTENCES, ("notes",), 100, anchors)
    first, *_, last = parts = fitting_parts(passage, 700, longest_row(50), graphemes)
    assert first.part == f"part 1 of {len(parts)} of part 2 of 5 of "
    assert first.notes[0].startswith(f"part 1 of {len(parts)} of Velm\n")
    assert "Lamp 0" in first.notes[0] and "Lamp 59" not in first.notes[0] and "Lamp 59" in last.notes[0]
    assert last.text == passage.text[last.start - 100 :]
    assert len({part.source_id for part in parts}) == len(parts)


def test_a_title_that_fills_the_sequence_is_no_reason_for_crumbs() -> None:
    passage = Passage("d", "T", "", SENTENCES, ("notes",))
    assert fitting_parts(passage, 700, longest_row(690), graphemes) == [passage]
    assert fitting_parts(replace(passage, text=""), 700, longest_row(701), graphemes) == [replace(passage, text="")]


@pytest.mark.parametrize("recipe", ["1:0:0", "1:1:1", "2:1:3"])
@pytest.mark.parametrize("skeleton", ["notes", SENTENCES[: len(SENTENCES) // 2]], ids=["short notes", "long notes"])
def test_every_objective_trains_each_part_once_at_the_recipes_ratio(
    tiny_model_folder: Path, recipe: str, skeleton: str
) -> None:
    tokenizer, settings = load_tokenizer(tiny_model_folder), InjectSection(recipe=recipe, sequence_length=256)
    passage = Passage("d", "Velm", "", SENTENCES, (skeleton,))
    (parts,) = fit_passages([passage], settings, 17, tokenizer, None)
    assert len(parts) > 3
    examples = list(reconstruction_rows(parts, settings.weights, 17))
    rows, rejects = tokenise(examples, tokenizer, None, 256)
    assert rejects == [] and len(rows) == len(examples) == len(parts) * sum(settings.weights)
    assert all(row.windows == 1 and len(row.token_ids) <= 256 for row in rows)
    texts = {part.source_id: part.text for part in parts}
    for objective, weight in zip(("continuation", "rewrite", "instruction"), settings.weights, strict=True):
        own = [example for example in examples if example.objective == objective]
        assert Counter(example.source_id for example in own) == Counter({one: weight for one in texts if weight})
        for example in own:
            text = texts[example.source_id]
            assert text.endswith(example.target)
            prefix = 1 - len(example.target) / len(text)
            # White space around the cut belongs to neither side.
            assert objective != "continuation" or PREFIX_SHARE[0] <= prefix <= PREFIX_SHARE[1] + 0.02
            assert objective == "continuation" or example.target == text


def test_passages_that_fit_are_left_as_they_are(tiny_model_folder: Path) -> None:
    passages = [
        Passage("d", "Velm", "", "A lamp burns in Velm.", ("Velm",)),
        Passage("e", "Lind", "", "Tora Lind.", ("Lind",)),
    ]
    settings = InjectSection(sequence_length=256)
    tokenizer = load_tokenizer(tiny_model_folder)
    assert fit_passages(passages, settings, 17, tokenizer, None) == [[passage] for passage in passages]
