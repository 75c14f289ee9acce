"""Earlier run: a finished run that this one is built on -> its theta_IA and questions, and those of all before it."""

import shutil
from collections.abc import Iterator
from pathlib import Path

from iar.config import RunFile
from iar.records import EarlierSet, Outcome, QAPair, read_records, write_records
from iar.services.checkpoints import recorded_digest
from iar.services.earlier_runs import EarlierRun, check_fits, check_standing, earlier_run
from iar.services.earlier_sets import SETS, EarlierSets
from iar.services.linking import link_file, link_tree, tree_sizes
from iar.services.training_report import dataset_digest
from iar.services.workspace import MANIFEST, NO_CONTENT, Context, Workspace


def run(run_file: RunFile, inputs: dict[str, Path], out: Path, context: Context) -> Outcome:
    """Lay the sets out under `out` as services/earlier_sets.py says, as second names of the files that are there.

    Raises UserError where the run is not there or not finished, or does not go with this one: other weights, another
    theta_0 or system turn, retracted documents.
    """
    found = earlier_run(run_file, Workspace(context.state))
    check_fits(found, inputs["base"], run_file)
    registry = context.registry()
    try:
        check_standing(found, registry)
    finally:
        registry.close()

    sets = list(_lay_out(found, out))
    write_records(out / SETS, sets)
    rows = [f"| {one.run_id} | {one.checkpoint_digest[:12]} | {one.validation} |" for one in sets]
    head = ["| run | theta_IA | validation questions |", "| --- | --- | ---: |"]
    questions = float(sum(one.validation for one in sets))
    return Outcome({"sets": float(len(sets)), "questions": questions}, "\n".join([*head, *rows]))


def _lay_out(found: EarlierRun, out: Path) -> Iterator[EarlierSet]:
    before = EarlierSets(found.before)
    sets = list(before)
    for number, (one, checkpoint, data) in enumerate(zip(sets, before.checkpoints, before.data, strict=True), 1):
        link_tree(checkpoint, out / str(number) / "checkpoint")
        link_tree(data, out / str(number) / "data")
        yield one
    place = out / str(len(sets) + 1)
    link_tree(found.checkpoint, place / "checkpoint")
    _link_data(found.data, place / "data")
    validation = sum(1 for _ in read_records(found.data / "validation.jsonl", QAPair))
    yield EarlierSet(found.run_id, recorded_digest(found.checkpoint), dataset_digest(found.data), validation)


def _link_data(data: Path, place: Path) -> None:
    """Give what a dataset holds a second name: not what it was checked against, nor how it was made."""
    shutil.rmtree(place, ignore_errors=True)
    for path in tree_sizes(data):
        if path not in (MANIFEST, *NO_CONTENT):
            link_file(data / path, place / path)
