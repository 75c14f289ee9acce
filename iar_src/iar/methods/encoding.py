"""The encoding of a text file, found over all of its bytes."""

import re
import unicodedata
from dataclasses import dataclass

# What is looked for where bytes are not UTF-8: the encodings that texts of these scripts are still found in.
LEGACY = (
    "gb18030", "big5", "shift_jis", "euc_jp", "euc_kr", "cp1252", "cp1250", "cp1251", "cp1253", "koi8_r", "iso8859_2",
)  # fmt: skip
KNOWN_IN_WORDS = "UTF-8, UTF-16, GB18030, Big5, Shift JIS, EUC or an 8-bit Windows encoding"
BYTE_ORDER_MARKS = ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))
# A text in another encoding read as UTF-8 is broken at nearly every letter outside ASCII; a damaged one here and there.
MOST_BROKEN_SHARE = 0.05
EVIDENCE_BYTES = 1 << 16


@dataclass(frozen=True)
class Decoded:
    """A text, the encoding it was in, and what is to say of it ("" where all bytes were good)."""

    text: str
    encoding: str
    note: str = ""


def decode(data: bytes, declared: str = "") -> Decoded | None:
    """Return the text of a whole file; None where no encoding makes text of it.

    A byte order mark decides; then UTF-8, `declared` (what a page says of itself), and the legacy encoding in
    which the bytes outside ASCII, wherever they stand, read as language. Only an encoding that takes every byte
    counts, a few broken sequences of UTF-8 apart, which are noted.
    """
    marked = next((name for mark, name in BYTE_ORDER_MARKS if data.startswith(mark)), "")
    for name in [marked] if marked else ["utf-8", *_python_name(declared)]:
        if (text := _strictly(data, name)) is not None:
            return Decoded(text, name)
    return None if marked and marked != "utf-8-sig" else _damaged_utf8(data) or _legacy(data)


def _python_name(declared: str) -> list[str]:
    """Return the codec of a declared charset, wider where browsers read it so; none for a name nobody knows."""
    import codecs

    wider = {"gb2312": "gb18030", "gbk": "gb18030", "iso8859-1": "cp1252", "ascii": "cp1252", "big5": "big5hkscs"}
    try:
        name = codecs.lookup(declared).name
    except (LookupError, ValueError):
        return []
    return [wider.get(name, name)]


def _strictly(data: bytes, encoding: str) -> str | None:
    try:
        text = data.decode(encoding)
    except (UnicodeDecodeError, LookupError):
        return None
    # Bytes that are no text open like UTF-16 as code points that do not exist.
    unassigned = encoding == "utf-16" and any(unicodedata.category(character) == "Cn" for character in text)
    return None if unassigned or re.search(r"[\x00-\x08\x0e-\x1f]", text) else text


def _damaged_utf8(data: bytes) -> Decoded | None:
    text = data.decode("utf-8-sig", "replace")
    broken = text.count("\ufffd")
    outside = sum(not character.isascii() for character in text)
    if not 0 < broken <= MOST_BROKEN_SHARE * outside or re.search(r"[\x00-\x08\x0e-\x1f]", text):
        return None
    return Decoded(text.replace("\ufffd", ""), "utf-8", f"{broken} broken UTF-8 sequences left out")


def _legacy(data: bytes) -> Decoded | None:
    from charset_normalizer import from_bytes

    # The lines that tell encodings apart, wherever they stand: a sample of the file may hold none of them.
    lines = [line for line in data.splitlines() if not line.isascii()]
    evidence = b"\n".join(lines)[:EVIDENCE_BYTES].rpartition(b"\n")[0] or b"\n".join(lines[:1])
    found = from_bytes(evidence, cp_isolation=list(LEGACY)).best()
    if found is None:
        return None
    # Where Windows-1252 gives the same text, it is what was meant.
    for name in ("cp1252", found.encoding) if "cp1252" in found.could_be_from_charset else (found.encoding,):
        if (text := _strictly(data, name)) is not None:
            return Decoded(text, name)
    return None
