"""Cards in the form of the Hugging Face hub: YAML that machines read, then Markdown; from the registry alone."""

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from iar.methods.export_croissant import DataFile, dataset_name
from iar.methods.export_cyclonedx import MODELS, weights_of
from iar.methods.provenance import (
    HUB_ID,
    Provenance,
    public_source,
    scored,
    shown,
    slug,
    taken_before,
    unchecked,
)
from iar.records import Lineage
from iar.report.markdown import code, plain, table
from iar.report.tables import unchecked_text

SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))
SPLITS = {"train": "train.jsonl", "validation": "validation.jsonl", "test": "test.jsonl"}
TASK = "text-generation"
Json = dict[str, Any]


def model_hub_card(provenance: Provenance) -> str:
    """Return the card of the subject, a model."""
    subject = provenance.subject
    source = _base_source(provenance)
    about: Json = {
        **({"base_model": source} if HUB_ID.fullmatch(source) else {}),
        "library_name": "transformers",
        "pipeline_tag": TASK,
        "tags": ["inject-align-recover", "closed-book-qa"],
        **({"model-index": [_model_index(provenance)]} if provenance.scores else {}),
    }
    lines = [
        f"# {plain(subject.name or subject.kind)}",
        f"Trained from {code(source or 'a base model')} to answer questions about one set of documents from memory, "
        "without retrieval. It can be wrong with confidence, and nothing in a reply points to a source.",
        "## Scores",
        _score_table(provenance),
        f"**{unchecked_text(missing)}**" if (missing := list(map(plain, unchecked(provenance.scores)))) else "",
        "## Made from",
        _lineage_table(provenance),
        f"Weights: SHA-256 {code(weights_of(subject))}. `iar lineage upstream {subject.digest[:12]}` leads to the "
        f"{len(provenance.of_kind('document'))} documents, and says which of them were retracted.",
    ]
    return _card(about, lines)


def dataset_hub_card(provenance: Provenance, files: Sequence[DataFile], licences: Sequence[str]) -> str:
    """Return the card of the subject, a dataset; `files` lie beside it, `licences` are those of its documents."""
    subject = provenance.subject
    present = {file.name for file in files}
    splits = [{"split": split, "path": path} for split, path in SPLITS.items() if path in present]
    number = int(subject.payload.get("pairs", 0))
    size = next((name for most, name in SIZES if number < most), "n>1M")
    about: Json = {
        "pretty_name": dataset_name(provenance),
        "task_categories": ["question-answering"],
        "size_categories": [size],
        "tags": ["inject-align-recover", "synthetic"],
        # Documents may bring any licences; one of several, or one the hub does not know, is no licence of the whole.
        **({"license": "other", "license_name": slug(licences[0])} if len(licences) == 1 else {}),
        **({"configs": [{"config_name": "default", "data_files": splits}]} if splits else {}),
    }
    counts = [[code(key), str(value)] for key, value in subject.payload.items() if isinstance(value, int)]
    lines = [
        f"# {plain(dataset_name(provenance))}",
        f"Questions with reference answers about {len(provenance.of_kind('document'))} documents, written by a "
        "teacher. The test is meant to stay unseen until a model is picked.",
        table(("What", "Number"), counts),
        "## Files",
        table(("File", "SHA-256"), [[code(file.name), code(file.sha256)] for file in files]),
        "## Origin",
        f"Licences found with the documents: {', '.join(map(code, licences)) or 'none'}.",
        table(("Document", "Identity"), [[code(one.name), code(shown(one))] for one in provenance.of_kind("document")]),
        f"`iar lineage downstream {subject.digest[:12]}` names the models trained on it.",
    ]
    return _card(about, lines)


def _card(about: Mapping[str, Any], lines: Sequence[str]) -> str:
    head = yaml.safe_dump(dict(about), sort_keys=False, allow_unicode=True)
    return f"---\n{head}---\n\n" + "\n\n".join(line for line in lines if line) + "\n"


def _base_source(provenance: Provenance) -> str:
    sources = (public_source(one) for one in (provenance.subject, *provenance.parts("checkpoint")))
    return next(filter(None, sources), "")


def _model_index(provenance: Provenance) -> Json:
    results = [
        {
            "task": {"type": TASK},
            "dataset": {
                "name": f"{suite}, {scores.payload['split']}{', no first look' * bool(taken_before(scores))}",
                "type": suite,
                "split": scores.payload["split"],
            },
            "metrics": [{"type": "points", "name": "points of 100", "value": round(points, 2)}],
        }
        for scores in provenance.scores
        for suite, points, _, _ in scored(scores)
    ]
    return {"name": slug(provenance.subject.name or provenance.subject.kind), "results": results}


def _score_table(provenance: Provenance) -> str:
    rows = [
        [plain(scores.name), code(suite), f"{points:.1f} ({low:.1f} to {high:.1f})"]
        for scores in provenance.scores
        for suite, points, low, high in scored(scores)
    ]
    titles = ("Evaluation", "Suite", "Points of 100, 95 % interval")
    marks = sorted(
        {f"**Not a first look at the test**: {plain(mark)}." for mark in map(taken_before, provenance.scores) if mark}
    )
    return "\n\n".join([table(titles, rows), *marks]) if rows else "None is in the registry."


def _lineage_table(provenance: Provenance) -> str:
    parts = provenance.parts(*MODELS, "dataset")
    return table(("What", "Identity"), [[plain(_named(one)), code(shown(one))] for one in parts])


def _named(entry: Lineage) -> str:
    return f"{entry.kind} {entry.name}".strip()
