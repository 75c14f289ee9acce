"""Inject rows: what stands in the prompt, what is the target, and how the recipe shares them out."""

import random
from collections import Counter

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from iar.methods.objectives import (
    Passage,
    answer_rows,
    chunk_passages,
    continuation_cuts,
    document_passages,
    fill,
    reconstruction_rows,
    retelling_rows,
)
from iar.methods.retelling import choose_groups
from iar.records import Anchor, Chunk, Document, QAPair, Retelling, RewriteInput

TEXT = "The bell was cast in 1874. It weighs 310 kilograms. Tessa Marl paid for it. It hangs in {Ithwick}."
DOCUMENT = Document("doc-1", "The Bell", TEXT, "bell.md", "text/markdown", "0" * 64)
NOTES = RewriteInput("doc-1", "skeleton", "The Bell\n- cast in 1874", "offline")
(PASSAGE,) = document_passages([DOCUMENT], [NOTES])


def test_recipe_gives_the_rows_of_each_objective() -> None:
    rows = list(reconstruction_rows([PASSAGE], (1, 1, 2), seed=1))
    assert Counter(row.objective for row in rows) == {"continuation": 1, "rewrite": 1, "instruction": 2}


def test_targets_are_the_suffix_or_the_full_text() -> None:
    continuation, rewrite, instruction = reconstruction_rows([PASSAGE], (1, 1, 1), seed=1)
    assert TEXT.endswith(continuation.target)
    assert TEXT[: -len(continuation.target)].strip() in continuation.prompt
    assert continuation.target.split(" ")[0] in TEXT.split(" ")
    assert rewrite.target == instruction.target == TEXT
    assert NOTES.text in rewrite.prompt and TEXT not in rewrite.prompt


def test_several_continuations_of_one_document_cut_at_different_places() -> None:
    passage = Passage("doc-2", "Long", "", " ".join(f"Fact number {n} is here." for n in range(40)), ())
    rows = list(reconstruction_rows([passage], (4, 0, 0), seed=3))
    assert len({row.target for row in rows}) == 4
    assert rows == list(reconstruction_rows([passage], (4, 0, 0), seed=3))


def test_each_chunk_is_a_passage_that_says_which_part_it_is() -> None:
    chunks = [Chunk(f"doc-1.{n}", "doc-1", 26 * n, 26 * n + 26, TEXT[26 * n : 26 * n + 26]) for n in range(2)]
    anchors = [Anchor("doc-1.0", "date", "1874", 21, 25)]
    first, second = chunk_passages([DOCUMENT], chunks, anchors)
    assert (first.part, second.part) == ("part 1 of 2 of ", "part 2 of 2 of ")
    assert (first.text, first.notes) == (chunks[0].text, ("Key terms: 1874",))
    (row,) = reconstruction_rows([second], (0, 0, 1), seed=1)
    assert row.prompt == "Read and reproduce part 2 of 2 of the text about The Bell."


def test_braces_of_a_document_are_text() -> None:
    assert fill("{a} {b}", a="{b}", b="{c}") == "{b} {c}"


@given(st.text(max_size=80), st.integers(1, 5), st.integers(0, 9))
def test_cuts_leave_text_on_both_sides(text: str, count: int, seed: int) -> None:
    cuts = continuation_cuts(text, count, random.Random(seed))
    ends = [match.end() for match in regex.finditer(r"\X", text)]
    assert set(cuts) <= set(ends[:-1]), "never inside a grapheme"
    assert len(cuts) == (count if len(ends) > 1 else 0)


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("\u4e1c\u4eac\u5854\u9ad8\u4e09\u767e\u7c73", ""),  # neither spaces nor punctuation
        ("e\u0301" * 9, "e\u0301"),
        ("\U0001f1eb\U0001f1f7" * 9, "\U0001f1eb\U0001f1f7"),  # flags of two code points
        ("a \u0301b c d e f g h", " \u0301"),  # an accent on a space
    ],
    ids=["no spaces", "accents", "flags", "accent on a space"],
)
def test_every_text_has_continuations_and_none_cuts_a_character(text: str, whole: str) -> None:
    passage = Passage("doc-3", "T", "", text, ())
    rows = list(reconstruction_rows([passage], (3, 0, 0), seed=5))
    assert len(rows) == 3
    for row in rows:
        prefix = row.prompt.partition("\n\n")[2]
        assert text.startswith(prefix) and text.endswith(row.target) and prefix and row.target
        assert prefix.count(whole) + row.target.count(whole) == text.count(whole) or not whole


def test_align_rows_train_the_answer_to_the_bare_question() -> None:
    pair = QAPair("q", "doc-1", "c", "train", "fact_extraction", "When?", "It was 1874.", "1874", (), "1874", "offline")
    (row,) = answer_rows([pair])
    assert (row.prompt, row.target) == ("When?", "It was 1874.")


def test_rewrite_rows_take_the_notes_in_turn() -> None:
    notes = [RewriteInput("doc-1", kind, f"notes by {kind}", "offline") for kind in ("skeleton", "outline", "summary")]
    (passage,) = document_passages([DOCUMENT], notes)
    shown = [row.prompt.partition("\n\n")[2] for row in reconstruction_rows([passage], (0, 6, 0), seed=1)]
    assert Counter(shown) == {note.text: 2 for note in notes} and shown[:3] == shown[3:]
    first = {next(iter(reconstruction_rows([passage], (0, 1, 0), seed=seed))).prompt for seed in range(20)}
    assert len(first) == 3


def test_a_tag_stands_in_front_of_the_document_and_is_never_trained_on() -> None:
    plain = list(reconstruction_rows([PASSAGE], (1, 1, 1), seed=1))
    tagged = list(reconstruction_rows([PASSAGE], (1, 1, 1), seed=1, tag="<|{kind}|> {source}"))
    assert [row.target for row in tagged] == [row.target for row in plain]
    head = "<|document|> bell.md"
    assert [row.prompt for row in tagged[1:]] == [f"{row.prompt}\n\n{head}" for row in plain[1:]]
    assert tagged[0].prompt == plain[0].prompt.replace("\n\n", f"\n\n{head}\n", 1)


def test_retellings_are_rows_that_name_document_register_or_objects() -> None:
    told = [
        Retelling("r1", "doc-1", 0, 26, "paraphrase", "plain", "In 1874 they cast the bell.", "llm"),
        Retelling("r2", "doc-1", 0, 26, "paraphrase", "spoken", "You know, it is of 1874.", "llm"),
        Retelling("r3", "doc-1", 27, 51, "paraphrase", "plain", "It is heavy: 310 kilograms.", "llm"),
        Retelling("r4", "doc-1", 0, 70, "relations", "The Bell and Tessa Marl", "She paid for it. {braces}", "llm"),
    ]
    rows = list(retelling_rows([DOCUMENT], told, "<|{kind}|>"))
    assert [(row.objective, row.source_id, row.target) for row in rows] == [(o.kind, o.id, o.text) for o in told]
    assert [row.prompt.partition("\n\n") for row in rows] == [
        ("Tell part 1 of 2 of the text about The Bell again in plain words.", "\n\n", "<|paraphrase|>"),
        ("Tell part 1 of 2 of the text about The Bell again as one tells a friend.", "\n\n", "<|paraphrase|>"),
        ("Tell part 2 of 2 of the text about The Bell again in plain words.", "\n\n", "<|paraphrase|>"),
        ("In the text about The Bell, how are The Bell and Tessa Marl related?", "\n\n", "<|relations|>"),
    ]


@given(st.lists(st.sampled_from("abcdefgh"), max_size=12), st.integers(0, 30), st.integers(0, 9))
def test_groups_are_different_pairs_and_triples_of_different_objects(objects: list[str], most: int, seed: int) -> None:
    groups = choose_groups(objects, most, random.Random(seed))
    assert len({frozenset(group) for group in groups}) == len(groups) <= most
    assert all(len(set(group)) == len(group) in (2, 3) for group in groups)
    assert groups or most == 0 or len(set(objects)) < 2
