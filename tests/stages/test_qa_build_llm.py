"""The QA build with a language model as teacher: what only such a teacher makes, and where it goes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from iar.config import RunFile
from iar.errors import PermanentError
from iar.records import (
    Chunk,
    CrossDocumentPair,
    Document,
    Lineage,
    Outcome,
    QAPair,
    Retelling,
    RewriteInput,
    read_records,
)
from iar.services.models import load_tokenizer
from iar.services.reject_log import read_rejects
from iar.services.workspace import Context
from iar.stages import qa_build
from tests.services.chat_server import Answer, Script, serve
from tests.services.scripted_teacher import JOINS, PARAPHRASED, good_model, step_of

WORDS = "lantern quarrying breakwater saltworks foundry ropewalk"
ALL = {
    "chunk_tokens": 60,
    "relations_per_document": 2,
    "augment": ["paraphrase", "relations"],
    "rewrite_inputs": ["skeleton", "outline", "summary"],
}


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    folder = tmp_path / "documents"
    folder.mkdir()
    for number, word in enumerate(WORDS.split()):
        lines = [
            f"Old Greywether {word}{letter} stood by the quay in 1{number}1{place}."
            for place, letter in enumerate("abcd")
        ]
        (folder / f"{word}.md").write_text(f"# The {word}\n\n" + "\n\n".join(lines), encoding="utf-8")
    return folder


def build(documents: Path, out: Path, base: Path | None, script: Script, **settings: Any) -> Outcome:
    out.mkdir(parents=True)
    with serve(script) as server:
        teacher = server.endpoint(max_attempts=1).model_dump(mode="json")
        shares = {"validation_share": 0.2, "test_share": 0.5, "max_anchors": 3}
        run_file = RunFile.model_validate(
            {
                "run": {"name": "llm"},
                "documents": {"path": str(documents)},
                "qa_build": {"teacher": teacher} | shares | settings,
            }
        )
        return qa_build.run(run_file, {"base": base} if base else {}, out, Context.for_tests(out))


def step(out: Path, name: str) -> dict[str, Any]:
    return next(one for one in json.loads((out / "funnel.json").read_text()) if one["step"] == name)


def test_everything_that_a_model_can_write_is_made_of_its_source_and_accounted_for(
    documents: Path, tmp_path: Path, tiny_model_folder: Path
) -> None:
    out = tmp_path / "out"
    build(documents, out, tiny_model_folder, good_model, **ALL)
    texts = {document.id: document.text for document in read_records(out / "documents.jsonl", Document)}
    chunks = {chunk.id: chunk for chunk in read_records(out / "chunks.jsonl", Chunk)}
    tokenizer = load_tokenizer(tiny_model_folder)
    assert all(len(tokenizer(chunk.text, add_special_tokens=False)["input_ids"]) <= 60 for chunk in chunks.values())

    cross = list(read_records(out / "test-cross-document.jsonl", CrossDocumentPair))
    test_chunks = {pair.chunk_id for pair in read_records(out / "test.jsonl", QAPair)}
    for pair in cross:
        assert pair.split == "test" and pair.question.startswith(JOINS) and pair.document_id != pair.other_document_id
        assert {pair.chunk_id, pair.other_chunk_id} <= test_chunks
        assert all(pair.anchor in chunks[name].text for name in (pair.chunk_id, pair.other_chunk_id))
    assert step(out, "cross_document")["kept"] == step(out, "cross_deduplicated")["kept"] == len(cross) > 2

    retellings = list(read_records(out / "retellings.jsonl", Retelling))
    assert {one.kind for one in retellings} == {"paraphrase", "relations"}
    assert {one.about for one in retellings if one.kind == "paraphrase"} == {
        "plain",
        "encyclopedic",
        "scholarly",
        "spoken",
    }
    for one in retellings:
        source = texts[one.document_id][one.start : one.end]
        assert source in one.text and (one.kind == "relations" or one.text.startswith(PARAPHRASED))
    augmented = step(out, "augmented")
    assert augmented["kept"] == len(retellings) and augmented["in_"] == len(retellings) + sum(
        augmented["dropped"].values()
    )

    inputs = list(read_records(out / "rewrite_inputs.jsonl", RewriteInput))
    assert [(one.document_id, one.kind) for one in inputs] == [
        (name, kind) for name in texts for kind in ALL["rewrite_inputs"]
    ]
    entries = list(read_records(out / "lineage.jsonl", Lineage))
    kinds = {entry.digest: entry.kind for entry in entries}
    (dataset,) = (entry for entry in entries if entry.kind == "dataset")
    assert {kinds[digest] for role, digest in dataset.inputs if role == "contains"} == {"qa", "retelling"}
    assert (dataset.payload["cross_document"], dataset.payload["retellings"]) == (len(cross), len(retellings))
    about = [entry.inputs for entry in entries if entry.name.startswith("cross-")]
    assert all(len({digest for _, digest in inputs}) == 2 for inputs in about)


def replying(name: str, reply: dict[str, object], when: Callable[[dict[str, Any]], bool] = lambda body: True) -> Script:
    def script(body: dict[str, Any], number: int) -> Answer:
        ours = "response_format" in body and step_of(body) == name and when(body)
        return Answer(json.dumps(reply)) if ours else good_model(body, number)

    return script


@pytest.mark.parametrize(
    ("script", "at", "reason"),
    [
        (replying("cross_question", {"questions": []}), "cross_proposed", "no question proposed"),
        (replying("grounded", {"reason": "", "passed": True}), "cross_document", "answered by the first chunk alone"),
        (replying("faithful", {"reason": "", "passed": False}), "augmented", "says what its source does not"),
        (replying("paraphrase", {"text": " "}), "augmented", "empty"),
        (replying("paraphrase", {"text": "lamp " * 400}), "augmented", "longer than 300 tokens"),
        (replying("paraphrase", {"words": ""}), "augmented", "unreadable reply"),
        (replying("paraphrase", {"text": "\ud800"}), "augmented", "unreadable reply"),
        (replying("faithful", {"passed": "yes"}), "augmented", "unreadable reply"),
        (replying("cross_question", {"questions": ""}), "cross_proposed", "unreadable reply"),
        (replying("relations", {"related": False, "text": ""}), "augmented", "not related in the passage"),
    ],
)
def test_what_does_not_hold_is_dropped_with_its_reason(
    documents: Path, tmp_path: Path, tiny_model_folder: Path, script: Script, at: str, reason: str
) -> None:
    build(documents, tmp_path / "out", tiny_model_folder, script, **ALL)
    dropped = step(tmp_path / "out", at)["dropped"]
    assert dropped[reason] > 0
    rejects = [one for one in read_rejects(tmp_path / "out" / "rejects.parquet") if one.step == at]
    assert sum(one.reason == reason for one in rejects) == dropped[reason]
    assert all((one.outcome == "failed") == (one.reason == "unreadable reply") for one in rejects)


def test_a_failed_reply_on_two_chunks_is_one_failed_pair_of_chunks(
    documents: Path, tmp_path: Path, tiny_model_folder: Path
) -> None:
    build(documents, tmp_path / "good", tiny_model_folder, good_model, **ALL)
    build(documents, tmp_path / "bad", tiny_model_folder, replying("cross_question", {"questions": ""}), **ALL)
    asked = step(tmp_path / "good", "cross_proposed")
    assert asked["kept"] == asked["in_"] > 2 and asked["unit"] == "two chunks with one anchor"
    lost = step(tmp_path / "bad", "cross_proposed")
    assert (lost["in_"], lost["kept"], lost["outcomes"]) == (asked["in_"], 0, {"failed": asked["in_"]})
    assert step(tmp_path / "bad", "cross_document")["in_"] == 0


def test_what_is_not_asked_for_is_not_made(documents: Path, tmp_path: Path) -> None:
    build(documents, tmp_path / "out", None, good_model, cross_questions=0, chunk_characters=100)
    assert {path.name for path in (tmp_path / "out").glob("*.jsonl")} == {
        "documents.jsonl", "chunks.jsonl", "anchors.jsonl", "rewrite_inputs.jsonl", "sources.jsonl",
        "contamination.jsonl", "lineage.jsonl", "train.jsonl", "validation.jsonl", "test.jsonl",
    }  # fmt: skip
    assert "cross_document" not in json.loads((tmp_path / "out/dataset.json").read_text())


def test_tokens_are_not_counted_without_a_model(documents: Path, tmp_path: Path) -> None:
    with pytest.raises(PermanentError, match="the pipeline gives qa-build no model to count with; compile it again"):
        build(documents, tmp_path / "out", None, good_model, chunk_tokens=60)
