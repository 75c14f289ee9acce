"""From a place to the documents that are kept: every item is kept or on record, with its reason and its counterpart."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from iar.config import DocumentsSection
from iar.errors import PermanentError, UserError
from iar.records import Document, Reject, SourceFacts, read_records
from iar.services.ingest import DOCUMENTS, FILTER, SOURCES, Ingested, ingest
from iar.services.reject_log import RejectLog, read_rejects

ROOT = Path(__file__).parents[2]
PROSE = (
    "The mill on the northern hill was built by Tora Lind in 1846 for nine hundred crowns. Its four sails turn two "
    "stones, of which the larger grinds rye. In the winter of 1851 a storm broke the main shaft, and the miller Henrik "
    "Falk had another made of larch from the valley of the Osk. It has turned ever since, but for the years of war."
)
HAN = "灯塔位于东海岸的望潮镇，始建于一八四六年，是当地渔民的重要航标。灯塔高三十米，由石头砌成，塔顶的灯每分钟闪三次。"


def run(folder: Path, out: Path, **settings: Any) -> tuple[Ingested, list[Reject]]:
    out.mkdir(exist_ok=True)
    with RejectLog(out / "rejects.parquet") as rejects:
        found = ingest(DocumentsSection.model_validate({"path": str(folder)} | settings), out, rejects, 17)
    return found, list(read_rejects(out / "rejects.parquet"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "documents"
    files = {
        "a.txt": f"The Mill\n\n{PROSE}",
        "b/near.txt": f"The Mill\n\n{PROSE.replace('larch', 'beech')}",
        "b/same.md": f"# The Mill\n\n{PROSE}",
        "b/zh.txt": f"灯塔\n\n{HAN}",
        "c/menu.txt": "Home\nAbout us\nProducts\nContact\nNews\nJobs\n" * 3 + "We use cookies. Accept all cookies",
        "c/short.txt": "Mill\n\nIt turns.",
        "c/stutter.txt": f"Stutter\n\n{PROSE}\n\n{PROSE}\n\n{PROSE}",
        "c/phrases.txt": "Rye\n\n" + " ".join(f"{number}. The stone that grinds the rye of the valley turns at night."
                                                for number in range(20)),
        "d.csv": "a,b",
        "e.txt": " ",
    }  # fmt: skip
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_everything_is_kept_or_on_record_with_reason_and_counterpart(folder: Path, tmp_path: Path) -> None:
    found, rejects = run(folder, tmp_path / "out")

    kept = [document.source for document in read_records(tmp_path / "out" / DOCUMENTS, Document)]
    assert kept == ["a.txt", "b/zh.txt"] and found.documents == 2
    assert {reject.item_id: (reject.step, reject.outcome, reject.reason, reject.counterpart) for reject in rejects} == {
        "b/near.txt": ("distinct", "duplicate", "near-duplicate document", "a.txt"),
        "b/same.md": ("distinct", "duplicate", "duplicate document", "a.txt"),
        "c/menu.txt": ("filtered", "filtered", "boilerplate", ""),
        "c/short.txt": ("filtered", "filtered", "too few words", ""),
        "c/stutter.txt": ("filtered", "filtered", "repeated lines", ""),
        "c/phrases.txt": ("filtered", "filtered", "repeated phrases", ""),
        "d.csv": ("documents", "filtered", "unsupported type .csv", ""),
        "e.txt": ("documents", "failed", "empty", ""),
    }
    near = next(reject for reject in rejects if reject.item_id == "b/near.txt")
    assert near.score is not None and 0.8 <= near.score < 1
    assert [(step.step, step.in_, step.kept, step.outcomes) for step in found.funnel] == [
        ("documents", 10, 8, {"failed": 1, "filtered": 1}),
        ("filtered", 8, 4, {"filtered": 4}),
        ("distinct", 4, 2, {"duplicate": 2}),
    ]


def test_where_a_document_is_from_is_recorded(folder: Path, tmp_path: Path) -> None:
    run(folder, tmp_path / "out", licence="CC0-1.0")
    facts = list(read_records(tmp_path / "out" / SOURCES, SourceFacts))
    assert [(one.language, one.encoding, one.licence, one.collection) for one in facts] == [
        ("en", "utf-8", "CC0-1.0", ""),
        ("zh", "utf-8", "CC0-1.0", "b"),
    ]
    ids = [document.id for document in read_records(tmp_path / "out" / DOCUMENTS, Document)]
    assert [one.document_id for one in facts] == ids
    assert facts[0].place == str(folder / "a.txt")


@pytest.mark.parametrize(
    ("languages", "kept"), [(["en"], ["a.txt"]), (["zh"], ["b/zh.txt"]), ([], ["a.txt", "b/zh.txt"])]
)
def test_only_the_languages_asked_for_are_kept(
    folder: Path, tmp_path: Path, languages: list[str], kept: list[str]
) -> None:
    _, rejects = run(folder, tmp_path / "out", filter={"languages": languages})
    assert [document.source for document in read_records(tmp_path / "out" / DOCUMENTS, Document)] == kept
    assert ("another language" in {reject.reason for reject in rejects}) == bool(languages)


def test_a_repeat_after_a_kill_gives_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    run(folder, tmp_path / "out")
    left = tmp_path / "again" / "ingest.part"
    left.mkdir(parents=True)
    (left / "documents").write_text("torn")
    run(folder, tmp_path / "again")
    for path in sorted((tmp_path / "out").iterdir()):
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes()
    assert not left.exists()


def test_every_scorer_is_reported_beside_a_random_choice_of_the_same_source(folder: Path, tmp_path: Path) -> None:
    found, _ = run(folder, tmp_path / "out")
    written = json.loads((tmp_path / "out" / FILTER).read_text())
    assert [one["name"] for one in written] == [one.name for one in found.scorers] == [
        "length", "language", "boilerplate", "repeated lines", "repeated phrases", "near-duplicate"
    ]  # fmt: skip
    by_name = {one.name: one for one in found.scorers}
    lines = by_name["repeated lines"]
    assert (lines.documents, lines.dropped, lines.dropped_by_collection) == (8, 1, {"c": 1})
    assert sum(one.documents for one in lines.length_response) == 8
    assert {one.language for one in lines.length_response} >= {"en", "zh"}
    dropped = sum(one.documents * one.dropped_share for one in lines.length_response)
    by_chance = sum(one.documents * one.random_dropped_share for one in lines.length_response)
    assert (round(dropped, 3), round(by_chance, 3)) == (1, 1)  # the curves of all languages add up to the whole
    assert lines.kept_words < lines.random_kept_words_high
    assert by_name["near-duplicate"].documents == 4


def test_an_account_that_does_not_add_up_is_refused(tmp_path: Path) -> None:
    with RejectLog(None) as rejects:
        rejects.add([Reject("filtered", "a", "too few words", "")])
        assert rejects.step("filtered", "document", 3, 2).dropped == {"too few words": 1}
        with pytest.raises(PermanentError, match=r"^funnel step filtered: 3 in, 1 kept"):
            rejects.step("filtered", "document", 3, 1)
        with pytest.raises(ValueError, match="reject outcome 'lost': one of filtered, duplicate, contaminated, failed"):
            rejects.add([Reject("filtered", "a", "too few words", "", outcome="lost")])


def test_a_missing_folder_says_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"^documents\.path: .*/nowhere is not a folder or file; set it to a folder with"
    ):
        run(tmp_path / "nowhere", tmp_path / "out")


def test_a_folder_without_documents_says_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "table.csv").write_text("a,b")
    with pytest.raises(UserError) as caught:
        run(tmp_path / "documents", tmp_path / "out")
    assert str(caught.value) == (
        f"documents.path: {tmp_path / 'documents'} has no readable document (.txt .md .html .pdf .docx .jsonl "
        ".parquet); left out: 1 x unsupported type .csv; put documents there, point documents.path elsewhere, or "
        "loosen documents.filter"
    )


def test_a_folder_where_every_file_lacks_the_column_says_which_there_are(tmp_path: Path) -> None:
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "a.jsonl").write_text('{"body": "The Mill turns."}\n')
    with pytest.raises(UserError) as caught:
        run(tmp_path / "documents", tmp_path / "out")
    assert str(caught.value).endswith(
        "left out: 1 x no column text; documents.columns.text: a.jsonl:1 has no column 'text', only body; name one of "
        "these, or move the file away; or put documents there, point documents.path elsewhere, or loosen "
        "documents.filter"
    )


def write_pdf(path: Path, letters: dict[str, str]) -> None:
    """Write a page of PROSE whose font says that `letters` stand for other UTF-16 code units, given as hex."""
    from pypdf import PdfWriter
    from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject

    def stream(text: str) -> DecodedStreamObject:
        made = DecodedStreamObject()
        made.set_data(text.encode())
        return made

    writer = PdfWriter()
    page = writer.add_blank_page(600, 800)
    mapped = " ".join(f"<{ord(letter):02x}> <{units}>" for letter, units in letters.items())
    codes = "1 begincodespacerange <00> <FF> endcodespacerange"
    unicode = f"begincmap {codes} {len(letters)} beginbfchar {mapped} endbfchar endcmap"
    font = DictionaryObject({
        NameObject("/Type"): NameObject("/Font"),
        NameObject("/Subtype"): NameObject("/Type1"),
        NameObject("/BaseFont"): NameObject("/Helvetica"),
        NameObject("/ToUnicode"): writer._add_object(stream(unicode)),
    })  # fmt: skip
    fonts = DictionaryObject({NameObject("/F1"): writer._add_object(font)})
    page[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): fonts})
    lines = " ".join(f"({line}.) Tj 0 -40 Td" for line in f"The Mill. {PROSE} It is #$.".split(". "))
    page[NameObject("/Contents")] = writer._add_object(stream(f"BT /F1 9 Tf 20 760 Td {lines} ET"))
    writer.write(path)


def test_what_nothing_can_write_or_parse_fails_alone(tmp_path: Path) -> None:
    """Halves of characters and endless nesting, wherever an item can hold them, between two items that are good."""
    folder, half = tmp_path / "documents", "\\ud800"
    folder.mkdir()
    (folder / "a.txt").write_text(f"The Mill\n\n{PROSE}")
    write_pdf(folder / "high.pdf", {"#": "d83d"})
    write_pdf(folder / "low.pdf", {"$": "de00"})
    rows = [
        *(f'{{"text": {"[" * depth}{"]" * depth}}}' for depth in (*range(900, 1000), 100_000)),
        f'{{"body": "{half}"}}',
        f'{{"{half}": "x"}}',
        f'{{"text": {"1" * 5000}}}',
        '{"text": "\xff"}',
    ]
    (folder / "rows.jsonl").write_bytes("\n".join(rows).encode("latin-1"))
    table = pa.table({"text": pa.array([b"\xff\xfe"]).view(pa.string())})
    parquet.write_table(table, folder / "bytes.parquet")
    write_pdf(folder / "whole.pdf", {"#": "d83d", "$": "de00"})
    (folder / os.fsdecode(b"z\xff.txt")).write_text(f"灯塔\n\n{HAN}")

    _, rejects = run(folder, tmp_path / "out", filter={"near_duplicate": 1.0})

    kept = {one.source: one.text for one in read_records(tmp_path / "out" / DOCUMENTS, Document)}
    assert list(kept) == ["a.txt", "whole.pdf", "z�.txt"]
    assert "It is 😀" in kept["whole.pdf"]
    assert {one.outcome for one in rejects} == {"failed"}
    reasons = {one.item_id: one.reason for one in rejects}
    assert len(reasons) == len(rejects) == len(rows) + 3
    assert {reasons[f"{name}.pdf"] for name in ("high", "low")} == {"text with half a character"}
    assert reasons["rows.jsonl:101"] == "line is no JSON"


MEASURE = """
import json, resource, sys
from pathlib import Path
from iar.config import DocumentsSection
from iar.services.ingest import ingest
from iar.services.reject_log import RejectLog
folder, peaks = Path(sys.argv[1]), []
for name in sys.argv[2:]:
    with RejectLog(folder / "rejects.parquet") as rejects:
        ingest(DocumentsSection(path=str(folder / name)), folder, rejects, 17)
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
print(json.dumps(peaks))
"""


def test_ten_times_the_documents_take_no_more_memory(tmp_path: Path) -> None:
    """Each set is of other sentences; a peak never falls, so the second set's growth is what the larger one took."""
    for name, count in (("small.jsonl", 60), ("large.jsonl", 600)):
        generator = random.Random(count)
        with (tmp_path / name).open("w") as file:
            for number in range(count):
                words = [f"{word}{generator.randrange(999)}" for word in PROSE.split()]
                text = "\n\n".join(" ".join(generator.choices(words, k=60)) for _ in range(80))
                file.write(json.dumps({"text": f"{number} {text}"}) + "\n")
    command = [sys.executable, "-c", MEASURE, str(tmp_path), "small.jsonl", "large.jsonl"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    small, large = json.loads(done.stdout)
    size = (tmp_path / "large.jsonl").stat().st_size / 1024
    assert size > 15_000 and large - small < size / 2
