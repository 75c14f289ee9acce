"""Croissant 1.1 metadata of a dataset: its files with their SHA-256, and the fields of their records.

Source: the Croissant format specification 1.1, https://docs.mlcommons.org/croissant/docs/croissant-spec-1.1.html. A
file's address is its bare name: the metadata is published beside the files.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from iar.methods.provenance import Provenance, shown, timestamp
from iar.records import Chunk, CrossDocumentPair, Document, QAPair, Retelling

CONFORMS_TO = "http://mlcommons.org/croissant/1.1"
JSON_LINES = "application/jsonlines"
RECORDS: Mapping[str, type] = {
    "train.jsonl": QAPair,
    "validation.jsonl": QAPair,
    "test.jsonl": QAPair,
    "test-cross-document.jsonl": CrossDocumentPair,
    "retellings.jsonl": Retelling,
    "chunks.jsonl": Chunk,
    "documents.jsonl": Document,
}
"""The files of a dataset that hold its records; others say how it was made."""
REFERENCES = {
    "document_id": "documents.jsonl",
    "chunk_id": "chunks.jsonl",
    "other_document_id": "documents.jsonl",
    "other_chunk_id": "chunks.jsonl",
}
DATA_TYPES = {int: "sc:Integer", float: "sc:Float", bool: "sc:Boolean"}
Json = dict[str, Any]


@dataclass(frozen=True)
class DataFile:
    """A file of a dataset: name, bytes, SHA-256."""

    name: str
    size: int
    sha256: str


def croissant(provenance: Provenance, files: Sequence[DataFile], licences: Sequence[str]) -> Json:
    """Return the JSON-LD of the subject, a dataset. `licences` are those of its documents, [] = none is known."""
    subject = provenance.subject
    described = [file for file in files if file.name in RECORDS]
    names = {file.name for file in described}
    made = provenance.made_by(subject.digest)
    counts = ", ".join(f"{count} {name}" for name, count in subject.payload.items() if isinstance(count, int))
    return {
        "@context": _context(),
        "@type": "sc:Dataset",
        "conformsTo": CONFORMS_TO,
        "name": dataset_name(provenance),
        "description": f"Questions with reference answers about a set of documents: {counts}.",
        "version": f"1.0.0+{subject.digest[:12]}",
        "identifier": shown(subject),
        "url": f"urn:iar:{subject.digest}",
        **({"license": list(licences)} if licences else {}),
        **({"datePublished": timestamp(made[-1].started + made[-1].seconds)[:10]} if made else {}),
        "prov:wasDerivedFrom": [{"@id": f"urn:iar:{one.digest}"} for one in provenance.of_kind("document")],
        "prov:wasGeneratedBy": [{"@id": f"urn:iar:{one.id}"} for one in made],
        "distribution": [_file(file) for file in described],
        "recordSet": [_records(file.name, names) for file in described],
    }


def dataset_name(provenance: Provenance) -> str:
    """Return a name of the dataset that no other dataset has."""
    subject = provenance.subject
    return f"iar-{subject.name}-{subject.digest[:12]}"


def _file(file: DataFile) -> Json:
    return {
        "@type": "cr:FileObject",
        "@id": file.name,
        "name": file.name,
        "contentUrl": file.name,
        "contentSize": f"{file.size} B",
        "encodingFormat": JSON_LINES,
        "sha256": file.sha256,
    }


def _records(file: str, files: set[str]) -> Json:
    import typing

    about = file.removesuffix(".jsonl")
    hints = typing.get_type_hints(RECORDS[file])
    key = {"key": {"@id": f"{about}/id"}} if "id" in hints else {}
    fields = [_field(file, name, hint, files) for name, hint in hints.items()]
    return {"@type": "cr:RecordSet", "@id": about, "name": about, **key, "field": fields}


def _field(file: str, name: str, hint: Any, files: set[str]) -> Json:
    import typing

    about = file.removesuffix(".jsonl")
    several = typing.get_origin(hint) is tuple
    target = REFERENCES.get(name, "")
    return {
        "@type": "cr:Field",
        "@id": f"{about}/{name}",
        "name": f"{about}/{name}",
        "dataType": DATA_TYPES.get(hint, "sc:Text"),
        **({"isArray": True, "arrayShape": "-1"} if several else {}),
        "source": {"fileObject": {"@id": file}, "extract": {"column": name}},
        **(
            {"references": {"field": {"@id": f"{target.removesuffix('.jsonl')}/id"}}}
            if target in files and target != file
            else {}
        ),
    }


def _context() -> Json:
    own = (
        "arrayShape", "citeAs", "column", "containedIn", "equivalentProperty", "extract", "field", "fileProperty",
        "fileObject", "fileSet", "format", "includes", "isArray", "isLiveDataset", "jsonPath", "key", "md5",
        "parentField", "path", "recordSet", "references", "regex", "repeated", "replace", "samplingRate", "separator",
        "source", "subField", "transform",
    )  # fmt: skip
    return {
        "@language": "en",
        "@vocab": "https://schema.org/",
        "sc": "https://schema.org/",
        "cr": "http://mlcommons.org/croissant/",
        "rai": "http://mlcommons.org/croissant/RAI/",
        "dct": "http://purl.org/dc/terms/",
        "prov": "http://www.w3.org/ns/prov#",
        "conformsTo": "dct:conformsTo",
        "data": {"@id": "cr:data", "@type": "@json"},
        "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
        "examples": {"@id": "cr:examples", "@type": "@json"},
        "name": {"@container": "@language"},
        "description": {"@container": "@language"},
    } | {name: f"cr:{name}" for name in own}
