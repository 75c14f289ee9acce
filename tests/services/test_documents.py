"""Files and rows as plain text: what gives a document gives a whole one, what gives none has a reason."""

import io
import random
import re
import zipfile
from pathlib import Path

import pytest

from iar.config import ColumnsSection, DocumentsSection
from iar.errors import UserError
from iar.records import Document, Reject, SourceFacts
from iar.services.documents import convert
from iar.services.ingest import any_readable, read_documents
from iar.services.sources import Item, items

EXAMPLES = Path(__file__).parents[2] / "examples" / "documents"


def write(folder: Path, name: str, content: str | bytes) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def converted(place: Path, **columns: str) -> list[tuple[Document, SourceFacts] | Reject]:
    settings = DocumentsSection(path=str(place), columns=ColumnsSection.model_validate(columns))
    return [item if isinstance(item, Reject) else convert(item) for item in items(settings)]


def documents_of(place: Path, **columns: str) -> list[Document]:
    return [one[0] for one in converted(place, **columns) if not isinstance(one, Reject)]


def facts_of(place: Path, **columns: str) -> list[SourceFacts]:
    return [one[1] for one in converted(place, **columns) if not isinstance(one, Reject)]


def rejects_of(place: Path, **columns: str) -> list[Reject]:
    return [one for one in converted(place, **columns) if isinstance(one, Reject)]


def blank_pdf(path: Path) -> None:
    from pypdf import PdfWriter

    writer = PdfWriter()
    writer.add_blank_page(200, 200)
    writer.write(path)


WORD = '<w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"><w:body>{}</w:body></w:document>'
TYPES = (
    '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types"><Default Extension="rels" '
    'ContentType="application/vnd.openxmlformats-package.relationships+xml"/><Default Extension="xml" '
    'ContentType="application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"/></Types>'
)
RELATIONS = (
    '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships"><Relationship Id="r1" '
    'Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument" '
    'Target="word/document.xml"/></Relationships>'
)
STYLES = (
    '<w:styles xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main">'
    '<w:style w:type="paragraph" w:styleId="T"><w:name w:val="Title"/></w:style></w:styles>'
)


def word_file(body: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("[Content_Types].xml", TYPES)
        archive.writestr("_rels/.rels", RELATIONS)
        archive.writestr("word/document.xml", WORD.format(body))
        archive.writestr("word/styles.xml", STYLES)
        archive.writestr(
            "word/_rels/document.xml.rels",
            RELATIONS.replace('officeDocument" ', 'styles" ').replace("word/document.xml", "styles.xml"),
        )
    return file.getvalue()


def paragraph(text: str, style: str = "") -> str:
    properties = f'<w:pPr><w:pStyle w:val="{style}"/></w:pPr>' if style else ""
    return f"<w:p>{properties}<w:r><w:t>{text}</w:t></w:r></w:p>"


def test_the_demo_documents_are_read_whole() -> None:
    documents, rejects = read_documents(DocumentsSection(path=str(EXAMPLES)))
    assert len(documents) == 24
    assert rejects == []
    assert len({document.id for document in documents}) == 24
    assert all(document.text.startswith(document.title + "\n\n") for document in documents)
    assert not any(re.search(r"Back to top|<\w+|\*\*|^#", document.text, re.MULTILINE) for document in documents)


def test_pdf_lines_become_paragraphs() -> None:
    document = next(item for item in documents_of(EXAMPLES) if item.source == "osk-river-board.pdf")
    paragraphs = document.text.split("\n\n")
    assert paragraphs[0] == "The Osk River Board"
    assert len(paragraphs) == 4
    assert (
        "The Osk River Board is the public body that controls the River Osk from its source to the sea."
        in paragraphs[1]
    )


def test_a_word_document_keeps_title_paragraphs_and_tables(tmp_path: Path) -> None:
    cells = "".join(f"<w:tc>{paragraph(text)}</w:tc>" for text in ("Height", "30 m"))
    body = paragraph("The Mill", "T") + paragraph("It turns &amp; grinds.") + f"<w:tbl><w:tr>{cells}</w:tr></w:tbl>"
    write(tmp_path, "a.docx", word_file(body))
    (document,) = documents_of(tmp_path)
    assert document.text == "The Mill\n\nIt turns & grinds.\n\nHeight | 30 m"


def test_what_is_left_out_has_a_reason(tmp_path: Path) -> None:
    write(tmp_path, "a.txt", "The Mill\n\nIt turns.")
    write(tmp_path, "empty.txt", " \n")
    write(tmp_path, "only-title.md", "# Title")
    write(tmp_path, "table.csv", "a,b")
    write(tmp_path, "LICENSE", "free")
    write(tmp_path, ".notes.txt", "hidden words here")
    write(tmp_path, "torn.pdf", b"%PDF-1.7 torn")
    write(tmp_path, "torn.docx", b"PK torn")
    blank_pdf(tmp_path / "scan.pdf")

    assert [document.source for document in documents_of(tmp_path)] == ["a.txt"]
    rejects = rejects_of(tmp_path)
    assert {reject.item_id: reject.reason.split(" (Pdf")[0] for reject in rejects} == {
        ".notes.txt": "hidden file",
        "LICENSE": "unsupported type (no extension)",
        "empty.txt": "empty",
        "only-title.md": "no text beyond the title",
        "scan.pdf": "PDF without text (scanned?)",
        "table.csv": "unsupported type .csv",
        "torn.docx": "damaged Word document (BadZipFile)",
        "torn.pdf": "damaged PDF",
    }
    assert {reject.item_id for reject in rejects if reject.outcome == "filtered"} == {
        ".notes.txt", "LICENSE", "table.csv"
    }  # fmt: skip


def test_a_word_document_that_unpacks_without_end_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iar.services.documents.MOST_UNPACKED_BYTES", 1 << 20)
    write(tmp_path, "bomb.docx", word_file(paragraph("a" * (2 << 20))))
    assert [reject.reason for reject in rejects_of(tmp_path)] == ["Word document that unpacks to more than 1 MiB"]


def test_pages_without_text_are_noted(tmp_path: Path) -> None:
    from pypdf import PdfReader, PdfWriter

    writer = PdfWriter()
    for page in PdfReader(EXAMPLES / "osk-river-board.pdf").pages:
        writer.add_page(page)
    writer.add_blank_page(200, 200)
    writer.write(tmp_path / "half-scanned.pdf")
    assert [facts.note for facts in facts_of(tmp_path)] == ["1 of 2 pages without text"]


def test_an_id_depends_on_path_and_content_only(tmp_path: Path) -> None:
    for folder, name in (("x", "a.txt"), ("y", "a.txt"), ("z", "b.txt")):
        write(tmp_path / folder, name, "The Mill\n\nIt turns.")
    ids = [documents_of(tmp_path / folder)[0].id for folder in "xyz"]
    assert ids[0] == ids[1] != ids[2]
    assert re.fullmatch(r"doc-[0-9a-f]{12}", ids[0])


def test_a_rows_id_stays_when_rows_are_put_before_it(tmp_path: Path) -> None:
    row = '{"text": "The Mill\\n\\nIt turns."}\n'
    write(tmp_path, "x/a.jsonl", row)
    write(tmp_path, "y/a.jsonl", '{"text": "Another\\n\\nIt stands."}\n' + row)
    (one,), (_, same) = documents_of(tmp_path / "x"), documents_of(tmp_path / "y")
    assert one.id == same.id and (one.source, same.source) == ("a.jsonl:1", "a.jsonl:2")


def test_a_text_file_of_one_long_line_is_all_text(tmp_path: Path) -> None:
    write(tmp_path, "a.txt", "The mill on the northern hill turns. " * 20)
    (document,) = documents_of(tmp_path)
    assert document.title == "a" and document.text.startswith("The mill on")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_usual_encodings_are_read_and_recorded(tmp_path: Path, encoding: str) -> None:
    write(tmp_path, "a.txt", "Café Mühle\n\nIt was built on the northern hill by Zoë.".encode(encoding))
    assert documents_of(tmp_path)[0].title == "Café Mühle"
    assert facts_of(tmp_path)[0].encoding == encoding


def test_bytes_of_no_encoding_fail_alone(tmp_path: Path) -> None:
    generator = random.Random(0)
    write(tmp_path, "a.txt", "The Mill\n\nIt turns.")
    write(tmp_path, "bad.txt", b"\x00\x01\x02\x81\xff")
    write(tmp_path, "noise.txt", b"\xff\xfe" + bytes(generator.randrange(32, 256) for _ in range(2000)))
    assert len(documents_of(tmp_path)) == 1
    for reject in rejects_of(tmp_path):
        assert (
            reject.reason.startswith("text in no known encoding (UTF-8, UTF-16, GB18030") and reject.outcome == "failed"
        )


def test_a_page_is_read_in_the_charset_that_it_names(tmp_path: Path) -> None:
    page = '<html><head><meta charset="windows-1251"></head><body><h1>Маяк</h1><p>Он стоит.</p></body></html>'
    write(tmp_path, "a.html", page.encode("cp1251"))
    assert documents_of(tmp_path)[0].text == "Маяк\n\nОн стоит."
    assert facts_of(tmp_path)[0].encoding == "cp1251"


def test_a_file_without_permission_names_the_file_and_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "a.txt", "The Mill\n\nIt turns.")

    # Tests may run as root, whom no mode bits stop.
    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    message = "a.txt: cannot be read (Permission denied); allow reading it or move it away"
    with pytest.raises(UserError, match=re.escape(message)):
        documents_of(tmp_path)


def test_a_folder_where_nothing_gives_text_is_known_from_its_files(tmp_path: Path) -> None:
    settings = DocumentsSection(path=str(tmp_path))
    (tmp_path / "broken.pdf").write_bytes(b"%PDF-1.4 nothing")
    (tmp_path / "empty.txt").write_text("")
    assert not any_readable(settings)
    (tmp_path / "good.txt").write_text("The Bell\n\nIt was cast in 1874 by Tessa Marl.")
    assert any_readable(settings)


def test_a_row_gives_its_columns_and_its_place(tmp_path: Path) -> None:
    row = '{"body": "It turns.\\n\\nIt grinds.", "name": "The Mill", "key": 7, "rights": "CC0", "part": "towns"}'
    write(tmp_path, "a.jsonl", row)
    columns = {"text": "body", "title": "name", "id": "key", "licence": "rights", "collection": "part"}
    (document,), (facts,) = documents_of(tmp_path, **columns), facts_of(tmp_path, **columns)
    assert document.text == "The Mill\n\nIt turns.\n\nIt grinds."
    assert (facts.alias, facts.licence, facts.collection) == ("7", "CC0", "towns")
    assert facts.place == f"{tmp_path / 'a.jsonl'}:1" and facts.document_id == document.id


def test_halves_of_characters_do_not_stop_the_run(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", '{"text": "The Mill \\ud83d turns.", "id": "\\udc00"}')
    (document,) = documents_of(tmp_path, id="id")
    assert document.text == "The Mill � turns."


def test_an_item_made_by_hand_is_converted() -> None:
    item = Item("a.md", "a.md", b"# The Mill\n\nIt turns.", "text/markdown", "", "a.md")
    assert not isinstance(found := convert(item), Reject) and found[0].title == "The Mill"
