"""Reading a folder of documents: nothing is dropped without a reason."""

import random
import re
from pathlib import Path

import pytest

from iar.errors import UserError
from iar.records import Reject
from iar.services.documents import any_readable, read_documents

EXAMPLES = Path(__file__).parents[2] / "examples" / "documents"


def write(folder: Path, name: str, content: str | bytes) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def blank_pdf(path: Path) -> None:
    from pypdf import PdfWriter

    writer = PdfWriter()
    writer.add_blank_page(200, 200)
    writer.write(path)


def test_the_demo_documents_are_read_whole() -> None:
    documents, rejects = read_documents(EXAMPLES)
    assert len(documents) == 24
    assert rejects == []
    assert len({document.id for document in documents}) == 24
    assert all(document.text.startswith(document.title + "\n\n") for document in documents)
    assert not any(re.search(r"Back to top|<\w+|\*\*|^#", document.text, re.MULTILINE) for document in documents)


def test_pdf_lines_become_paragraphs() -> None:
    document = next(item for item in read_documents(EXAMPLES)[0] if item.source == "osk-river-board.pdf")
    paragraphs = document.text.split("\n\n")
    assert paragraphs[0] == "The Osk River Board"
    assert len(paragraphs) == 4
    assert (
        "The Osk River Board is the public body that controls the River Osk from its source to the sea."
        in paragraphs[1]
    )


def test_what_is_left_out_has_a_reason(tmp_path: Path) -> None:
    write(tmp_path, "a.txt", "The Mill\n\nIt turns.")
    write(tmp_path, "b/copy.md", "# The Mill\n\nIt turns.")
    write(tmp_path, "empty.txt", " \n")
    write(tmp_path, "only-title.md", "# Title")
    write(tmp_path, "table.csv", "a,b")
    write(tmp_path, "LICENSE", "free")
    write(tmp_path, ".notes.txt", "hidden words here")
    write(tmp_path, "torn.pdf", b"%PDF-1.7 torn")
    blank_pdf(tmp_path / "scan.pdf")
    documents, rejects = read_documents(tmp_path)

    assert [document.source for document in documents] == ["a.txt"]
    assert {reject.item_id: reject.reason.split(" (Pdf")[0] for reject in rejects} == {
        ".notes.txt": "hidden file",
        "LICENSE": "unsupported type (no extension)",
        "b/copy.md": "duplicate document",
        "empty.txt": "empty file",
        "only-title.md": "no text beyond the title",
        "scan.pdf": "PDF without text (scanned?)",
        "table.csv": "unsupported type .csv",
        "torn.pdf": "damaged PDF",
    }
    assert Reject("documents", "b/copy.md", "duplicate document", "The Mill", "a.txt") in rejects


def test_an_id_depends_on_path_and_content_only(tmp_path: Path) -> None:
    for folder, name in (("x", "a.txt"), ("y", "a.txt"), ("z", "b.txt")):
        write(tmp_path / folder, name, "The Mill\n\nIt turns.")
    ids = [read_documents(tmp_path / folder)[0][0].id for folder in "xyz"]
    assert ids[0] == ids[1] != ids[2]
    assert re.fullmatch(r"doc-[0-9a-f]{12}", ids[0])


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_usual_encodings_are_read(tmp_path: Path, encoding: str) -> None:
    write(tmp_path, "a.txt", "Café Mühle\n\nIt was built on the northern hill by Zoë.".encode(encoding))
    assert read_documents(tmp_path)[0][0].title == "Café Mühle"


@pytest.mark.parametrize("content", [b"\x00\x01\x02\x81\xff", "灯塔位于东海岸的望潮镇。".encode("gbk")])
def test_bytes_of_no_known_encoding_name_the_file_and_the_fix(tmp_path: Path, content: bytes) -> None:
    write(tmp_path, "bad.txt", content)
    message = "bad.txt: is text in no known encoding (UTF-8, UTF-16, Windows-1252); save it as UTF-8"
    with pytest.raises(UserError, match=re.escape(message)):
        read_documents(tmp_path)


def test_a_file_without_permission_names_the_file_and_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "a.txt", "The Mill\n\nIt turns.")

    # Tests may run as root, whom no mode bits stop.
    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    message = "a.txt: cannot be read (Permission denied); allow reading it or move it away"
    with pytest.raises(UserError, match=re.escape(message)):
        read_documents(tmp_path)


def test_a_missing_folder_says_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^documents\.path: .*/nowhere is not a folder; set it to a folder with"):
        read_documents(tmp_path / "nowhere")


def test_a_folder_without_documents_says_what_it_holds(tmp_path: Path) -> None:
    write(tmp_path, "table.csv", "a,b")
    message = "has no readable document (.txt .md .html .pdf); left out: 1 x unsupported type .csv; put documents there"
    with pytest.raises(UserError, match=re.escape(message)):
        read_documents(tmp_path)


def test_a_folder_where_nothing_gives_text_is_known_from_its_files(tmp_path: Path) -> None:
    (tmp_path / "broken.pdf").write_bytes(b"%PDF-1.4 nothing")
    (tmp_path / "empty.txt").write_text("")
    assert not any_readable(tmp_path)
    (tmp_path / "good.txt").write_text("The Bell\n\nIt was cast in 1874 by Tessa Marl.")
    assert any_readable(tmp_path)


def test_bytes_that_only_open_like_utf_16_are_no_text(tmp_path: Path) -> None:
    generator = random.Random(0)
    (tmp_path / "noise.txt").write_bytes(b"\xff\xfe" + bytes(generator.randrange(32, 256) for _ in range(2000)))
    with pytest.raises(UserError, match=r"noise\.txt: is text in no known encoding"):
        read_documents(tmp_path)
    (tmp_path / "noise.txt").write_text("Die Glocke\n\nSie wurde 1874 gegossen.", encoding="utf-16")
    assert read_documents(tmp_path)[0][0].title == "Die Glocke"
