"""Inject: documents longer than the sequence are trained in parts, and the card counts them."""

import json
from pathlib import Path

import pytest

from iar.config import RunFile
from iar.methods.chunking import chunk_document
from iar.methods.objectives import RECONSTRUCTION
from iar.methods.rewrite_inputs import make_rewrite_input
from iar.records import Anchor, Document, Retelling, write_json, write_records
from iar.services.workspace import Context
from iar.stages import inject
from tests.examination import examination_run_file

LONG = "\n\n".join(f"Lamp {number} of Velm was lit by the engineer Tora Lind." for number in range(20))
DOCUMENTS = [
    Document("long", "Lamps", LONG, "long.md", "text/markdown", "0"),
    Document("short", "Velm", "The harbour of Velm was opened in 1911.", "short.md", "text/markdown", "1"),
]


@pytest.mark.parametrize("unit", ["document", "chunk"])
def test_what_is_longer_than_the_sequence_is_trained_in_parts(
    tiny_model_folder: Path, tmp_path: Path, unit: str
) -> None:
    chunks = [chunk for document in DOCUMENTS for chunk in chunk_document(document, 2_000)]
    anchors = [Anchor(chunks[0].id, "name", "Lamp 7", LONG.index("Lamp 7"), LONG.index("Lamp 7") + 6)]
    write_records(tmp_path / "documents.jsonl", DOCUMENTS)
    write_records(tmp_path / "chunks.jsonl", chunks)
    write_records(tmp_path / "anchors.jsonl", anchors)
    write_records(
        tmp_path / "rewrite_inputs.jsonl", [make_rewrite_input(document, [], "skeleton", "") for document in DOCUMENTS]
    )
    write_json(tmp_path / "dataset.json", {"digest": "d" * 64})
    settings = {"epochs": 1, "unit": unit, "sequence_length": 192, "compute_dtype": "float32"}
    run_file = RunFile.model_validate(examination_run_file(tmp_path).model_dump(mode="json") | {"inject": settings})

    out = tmp_path / "out"
    out.mkdir()
    made = inject.run(run_file, {"data": tmp_path, "base": tiny_model_folder}, out, Context.for_tests(tmp_path))

    card = json.loads((out / "card.json").read_text())
    assert card["divided_passages"] == 1 and card["parts"] > 2
    assert card["rows"] == card["examples"] == 3 * (card["parts"] + 1)
    assert card["windows"] == 0 and card["dropped"] == {}
    assert card["objective_share"] == pytest.approx(dict.fromkeys(RECONSTRUCTION, 1 / 3))
    assert f"1 longer than the sequence, in {card['parts']} parts" in made.markdown


def test_retellings_and_the_tag_are_part_of_the_training(tiny_model_folder: Path, tmp_path: Path) -> None:
    document = DOCUMENTS[1]
    write_records(tmp_path / "documents.jsonl", [document])
    write_records(tmp_path / "chunks.jsonl", chunk_document(document, 2_000))
    write_records(tmp_path / "anchors.jsonl", [])
    write_records(tmp_path / "rewrite_inputs.jsonl", [make_rewrite_input(document, [], "outline", "")])
    told = Retelling("r", document.id, 0, len(document.text), "paraphrase", "plain", "Velm has a harbour.", "llm:m")
    write_records(tmp_path / "retellings.jsonl", [told])
    write_json(tmp_path / "dataset.json", {"digest": "d" * 64})
    settings = {"epochs": 1, "compute_dtype": "float32", "provenance_tag": "<|{kind}|>"}
    run_file = RunFile.model_validate(examination_run_file(tmp_path).model_dump(mode="json") | {"inject": settings})

    out = tmp_path / "out"
    out.mkdir()
    inject.run(run_file, {"data": tmp_path, "base": tiny_model_folder}, out, Context.for_tests(tmp_path))

    card = json.loads((out / "card.json").read_text())
    assert card["objective_share"] == pytest.approx(dict.fromkeys((*RECONSTRUCTION, "paraphrase"), 1 / 4))
    for row in card["rendered"]:
        kind = "paraphrase" if row["objective"] == "paraphrase" else "document"
        assert f"<|{kind}|>" in row["masked"] and "<|" not in row["trained"].partition("<|im_end|>")[0]
