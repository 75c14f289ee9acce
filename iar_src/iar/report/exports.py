"""Exports of provenance: one row a format, what it describes and how its text is written."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iar import __version__
from iar.errors import UserError
from iar.methods.export_croissant import croissant
from iar.methods.export_cyclonedx import DATASETS, MODELS, ml_bom
from iar.methods.export_openlineage import openlineage_events
from iar.methods.export_prov import prov_document
from iar.methods.provenance import Provenance, shown
from iar.report.hub_cards import dataset_hub_card, model_hub_card
from iar.services.provenance import dataset_files, dataset_folder, document_licences, provenance_of
from iar.services.registry import Registry


@dataclass(frozen=True)
class Format:
    """kinds: of the entries it can describe, () = all; write: from a provenance and a state folder to a text."""

    kinds: tuple[str, ...]
    write: Callable[[Provenance, Path], str]


def export(registry: Registry, id_: str, name: str, state: Path) -> str:
    """Return what an id names as a text of the format `name`. Raises UserError where the two do not fit."""
    if name not in FORMATS:
        raise UserError(f"--format {name!r}: not one of {', '.join(FORMATS)}")
    chosen = FORMATS[name]
    provenance = provenance_of(registry, id_)
    subject = provenance.subject
    if chosen.kinds and subject.kind not in chosen.kinds:
        fitting = ", ".join(f"{shown(one)} ({one.name})" for one in provenance.of_kind(*chosen.kinds)[:6])
        raise UserError(
            f"--format {name} describes a {' or a '.join(chosen.kinds)}, and {shown(subject)} ({subject.name}) is "
            f"none; it was made from: {fitting or 'none'}"
        )
    return chosen.write(provenance, state)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1) + "\n"


def _openlineage(provenance: Provenance, state: Path) -> str:
    return "".join(json.dumps(event, ensure_ascii=False) + "\n" for event in openlineage_events(provenance))


def _croissant(provenance: Provenance, state: Path) -> str:
    folder = dataset_folder(state, provenance.subject)
    return _json(croissant(provenance, dataset_files(folder, provenance.subject), document_licences(folder)))


def _dataset_card(provenance: Provenance, state: Path) -> str:
    folder = dataset_folder(state, provenance.subject)
    return dataset_hub_card(provenance, dataset_files(folder, provenance.subject), document_licences(folder))


FORMATS: Mapping[str, Format] = {
    "openlineage": Format((), _openlineage),
    "prov": Format((), lambda provenance, _: _json(prov_document(provenance))),
    "croissant": Format(DATASETS, _croissant),
    "cyclonedx": Format(MODELS, lambda provenance, _: _json(ml_bom(provenance, __version__))),
    "model-card": Format(MODELS, lambda provenance, _: model_hub_card(provenance)),
    "dataset-card": Format(DATASETS, _dataset_card),
}
