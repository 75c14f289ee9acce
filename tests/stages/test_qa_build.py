"""The QA build stage over the demo documents and over folders it must refuse."""

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from iar.config import DocumentsSection, QaBuildSection, RunFile, RunSection
from iar.errors import UserError
from iar.methods.digest import digest_json
from iar.methods.scorers import SCORERS
from iar.methods.teaching import QUESTION_TYPES
from iar.records import Chunk, Document, Lineage, Outcome, QAPair, RewriteInput, SourceFacts, read_records, to_json
from iar.services.decontamination import read_checks
from iar.services.reject_log import read_rejects
from iar.services.workspace import Context, Manifest, stored_files
from iar.stages import qa_build

EXAMPLES = Path(__file__).parents[2] / "examples" / "documents"
SPLITS = ("train", "validation", "test")


def build(documents: Path, out: Path, **settings: object) -> Outcome:
    run_file = RunFile(
        run=RunSection(name="demo"),
        documents=DocumentsSection(path=str(documents)),
        qa_build=QaBuildSection.model_validate(settings),
    )
    out.mkdir(parents=True, exist_ok=True)
    return qa_build.run(run_file, {}, out, Context.for_tests(out))


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    out = tmp_path_factory.mktemp("qa")
    return out, build(EXAMPLES, out)


def pairs_of(out: Path) -> list[QAPair]:
    return [pair for split in SPLITS for pair in read_records(out / f"{split}.jsonl", QAPair)]


def test_the_demo_yields_enough_questions(demo: tuple[Path, Outcome]) -> None:
    metrics = demo[1].metrics
    assert metrics["documents"] == 24
    assert 60 <= metrics["chunks"] <= 90
    assert metrics["pairs"] >= 500
    assert metrics["validation"] >= 100
    assert metrics["test"] >= 150


def test_every_answer_stands_in_its_chunk_and_no_cloze_shows_it(demo: tuple[Path, Outcome]) -> None:
    out, _ = demo
    chunks = {chunk.id: chunk for chunk in read_records(out / "chunks.jsonl", Chunk)}
    for pair in pairs_of(out):
        assert (pair.key or pair.answer).casefold() in chunks[pair.chunk_id].text.casefold()
        assert pair.question.endswith("?") and pair.question_type in QUESTION_TYPES
        if "____" in pair.question:
            # The account's own title may hold a word of the answer; the sentence may not.
            assert f" {pair.key or pair.answer} " not in pair.question.partition(': "')[2]


def test_all_questions_of_a_chunk_are_in_one_split(demo: tuple[Path, Outcome]) -> None:
    splits = defaultdict(set)
    for pair in pairs_of(demo[0]):
        splits[pair.chunk_id].add(pair.split)
    assert all(len(found) == 1 for found in splits.values())


def test_nothing_vanishes_without_a_reason(demo: tuple[Path, Outcome]) -> None:
    out, outcome = demo
    funnel = json.loads((out / "funnel.json").read_text())
    rejects = list(read_rejects(out / "rejects.parquet"))
    assert [step["step"] for step in funnel] == [
        "documents", "filtered", "distinct", "uncontaminated", "chunks", "anchors", "applicable", "questions",
        "verified", "answered", "deduplicated", "decontaminated", "split",
    ]  # fmt: skip
    for step in funnel:
        assert step["in_"] == step["kept"] + sum(step["dropped"].values())
        assert (
            sum(step["dropped"].values())
            == sum(step["outcomes"].values())
            == sum(reject.step == step["step"] for reject in rejects)
        )
    assert funnel[-1]["kept"] == outcome.metrics["pairs"] == len(pairs_of(out))
    assert "| decontaminated | question |" in outcome.markdown


def test_documents_and_questions_were_checked_against_every_evaluation(demo: tuple[Path, Outcome]) -> None:
    out, outcome = demo
    checks = read_checks(out)
    general = {"ifeval", "mmlu", "msbench"}
    assert {check.evaluation for check in checks if check.dataset == "documents"} == general
    assert {check.evaluation for check in checks if check.dataset == "questions"} == {"validation", "test", *general}
    assert all(check.planted and not check.unchecked for check in checks)
    assert "- documents against mmlu: 0 of 24 items give away one of " in outcome.markdown


def strings(value: object) -> Iterator[str]:
    """Every text in JSON data."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list | tuple):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from strings(inner)


def test_what_the_test_asks_and_answers_stands_in_its_own_file_alone(demo: tuple[Path, Outcome]) -> None:
    out, _ = demo
    pairs = list(read_records(out / "test.jsonl", QAPair))
    open_files = [path for path in out.glob("*.json*") if path.name != "test.jsonl"]
    shown = {text for path in open_files for line in _json_lines(path) for text in strings(line)}
    shown |= {text for reject in read_rejects(out / "rejects.parquet") for text in strings(to_json(reject))}
    entries = read_records(out / "lineage.jsonl", Lineage)
    recorded = {text for entry in entries for text in strings(entry.payload)}
    assert len(pairs) > 50 and len(shown) > 500 and len(recorded) > 500
    for pair in pairs:
        assert not any(pair.question in text for text in shown | recorded)
        assert pair.answer not in recorded


def _json_lines(path: Path) -> list[object]:
    text = path.read_text(encoding="utf-8")
    return [json.loads(text)] if path.suffix == ".json" else [json.loads(line) for line in text.splitlines()]


def test_a_document_with_an_evaluated_prompt_is_dropped_and_another_evaluation_leaves_the_rest_as_it_is(
    demo: tuple[Path, Outcome], tmp_path: Path
) -> None:
    prompt = "Name three kinds of bread that are baked in an oven without any yeast at all."
    evaluation, folder = tmp_path / "mine.jsonl", tmp_path / "documents"
    evaluation.write_text(json.dumps({"prompt": prompt}))
    folder.mkdir()
    for path in EXAMPLES.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / "exam.txt").write_text(f"The Exam\n\nThe Exam was set in 1911 by Tora Lind of Velm. {prompt}")
    outcome = build(folder, tmp_path / "out", evals=[str(evaluation)])

    (dropped,) = [one for one in read_rejects(tmp_path / "out/rejects.parquet") if one.step == "uncontaminated"]
    assert (dropped.reason, dropped.counterpart) == (f"gives away a prompt of {evaluation} (8-gram)", prompt)
    assert outcome.metrics["documents"] == 24
    kept = [one.id for one in read_records(tmp_path / "out" / "documents.jsonl", Document)]
    sources = {one.document_id: one for one in read_records(tmp_path / "out" / "sources.jsonl", SourceFacts)}
    assert list(sources) == kept and dropped.item_id not in sources
    entries = [one for one in read_records(tmp_path / "out" / "lineage.jsonl", Lineage) if one.kind == "document"]
    found = {entry.payload["id"]: entry.payload["found"] for entry in entries}
    assert found == {name: to_json(facts) for name, facts in sources.items()}
    assert all(facts["language"] == "en" for facts in found.values())
    for name in ("train.jsonl", "validation.jsonl", "test.jsonl"):
        assert (tmp_path / "out" / name).read_bytes() == (demo[0] / name).read_bytes()

    build(EXAMPLES, tmp_path / "same", evals=[str(evaluation)])
    assert (tmp_path / "same/decontamination.json").read_bytes() != (demo[0] / "decontamination.json").read_bytes()
    assert content(tmp_path / "same") == content(demo[0])


def content(folder: Path) -> str:
    return Manifest("t", "qa_build", "k", {}, "c", 0.0, 0.0, stored_files(folder), Outcome({}, "")).content


def test_rewrite_inputs_are_short(demo: tuple[Path, Outcome]) -> None:
    out, _ = demo
    texts = {document.id: document.text for document in read_records(out / "documents.jsonl", Document)}
    inputs = list(read_records(out / "rewrite_inputs.jsonl", RewriteInput))
    assert [(one.document_id, one.kind) for one in inputs] == [(document, "skeleton") for document in texts]
    assert all(len(one.text) <= 0.35 * len(texts[one.document_id]) for one in inputs)


def test_lineage_leads_from_the_dataset_to_the_documents(demo: tuple[Path, Outcome]) -> None:
    out, outcome = demo
    entries = list(read_records(out / "lineage.jsonl", Lineage))
    by_digest = {entry.digest: entry for entry in entries}
    (dataset,) = (entry for entry in entries if entry.kind == "dataset")
    # The rules of the file filter, and the one that finds duplicates.
    kinds = ["agent"] * 3 + ["scorer"] * (len(SCORERS) + 1) + ["dataset", "rejects"]
    assert [entry.kind for entry in outcome.lineage] == kinds
    counts = {name: count for name, count in dataset.payload.items() if isinstance(count, int)}
    listed = [digest for role, digest in dataset.inputs if role == "contains"]
    assert dataset.digest == digest_json(counts | {"contains": listed})
    assert json.loads((out / "dataset.json").read_text())["digest"] == dataset.digest
    contents = {digest for role, digest in dataset.inputs if role == "contains"}
    assert contents == {digest_json(to_json(pair)) for pair in pairs_of(out)}
    assert {by_digest[digest].kind for role, digest in dataset.inputs if role == "drawn-from"} == {"document"}
    (teacher,) = (by_digest[digest] for role, digest in dataset.inputs if role == "written-by")
    assert (teacher.kind, teacher.name, teacher.payload["prompts"]) == ("agent", "offline", "")

    role, digest = dataset.inputs[0]
    question = by_digest[digest]
    assert (role, question.kind) == ("contains", "qa")
    (role, digest) = question.inputs[0]
    assert (role, by_digest[digest].kind) == ("about", "chunk")
    (role, digest) = by_digest[digest].inputs[0]
    assert (role, by_digest[digest].kind) == ("part-of", "document")
    (role, digest) = by_digest[digest].inputs[0]
    assert (role, by_digest[digest].kind) == ("read-from", "source")


def test_a_repeat_is_identical(demo: tuple[Path, Outcome], tmp_path: Path) -> None:
    assert build(EXAMPLES, tmp_path / "again") == demo[1]
    for path in (path for path in demo[0].iterdir() if path.suffix in (".json", ".jsonl", ".parquet")):
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes()


def test_adding_a_document_moves_no_chunk_of_another(demo: tuple[Path, Outcome], tmp_path: Path) -> None:
    folder = tmp_path / "documents"
    folder.mkdir()
    for path in EXAMPLES.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / "zinc.txt").write_text("The Zinc Yard\n\nThe Zinc Yard was opened in 1911 by Tora Lind of Velm.")
    build(folder, tmp_path / "out")
    before = {pair.chunk_id: pair.split for pair in pairs_of(demo[0])}
    after = {pair.chunk_id: pair.split for pair in pairs_of(tmp_path / "out")}
    assert {chunk: after[chunk] for chunk in before} == before


def test_too_few_documents_say_what_to_change(tmp_path: Path) -> None:
    folder = tmp_path / "documents"
    folder.mkdir()
    (folder / "a.txt").write_text("The Mill\n\nThe Mill was built by Tora Lind in 1846 for 900 crowns.")
    with pytest.raises(
        UserError, match=r"^qa_build: no question in the \w+ split \(\d+ questions? from 1 chunks?\); add documents"
    ):
        build(folder, tmp_path / "out")


def test_a_share_of_zero_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no question in the test split .* change qa_build\.test_share"):
        build(EXAMPLES, tmp_path, test_share=0.0)
