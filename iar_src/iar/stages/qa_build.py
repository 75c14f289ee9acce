"""QA build: documents -> chunks -> a teacher's questions and answers -> deduplicated, decontaminated splits."""

import shutil
from pathlib import Path

from iar.config import RunFile
from iar.records import Outcome
from iar.services.earlier_sets import EarlierSets
from iar.services.qa_dataset import gather
from iar.services.qa_documents import Prepared, prepare_documents
from iar.services.qa_shards import teach_all
from iar.services.workspace import Context


def run(run_file: RunFile, inputs: dict[str, Path], out: Path, context: Context) -> Outcome:
    """Build the dataset under `out`; what is dropped on the way stands in rejects.parquet, counted in funnel.json.

    Where other tasks made `documents` and `lessons_1`, `lessons_2`, ... they are taken, else made here. Questions that
    collide with the `earlier` sets are left out, and those that tell what is retained of them kept beside. Raises
    UserError where no document is kept or a split comes out empty.
    """
    aside = out / "parts"
    shutil.rmtree(aside, ignore_errors=True)  # a killed try's
    aside.mkdir()
    if "documents" in inputs:
        prepared = Prepared(inputs["documents"])
        shards = [inputs[f"lessons_{shard}"] for shard in range(1, len(inputs)) if f"lessons_{shard}" in inputs]
    else:
        prepared = Prepared(aside / "documents")
        prepared.folder.mkdir()
        update = context.progress.update
        prepare_documents(run_file, prepared.folder, context.seed, update, context.retracted())
        shards = teach_all(run_file.qa_build, prepared, inputs.get("base"), context.state, context.seed, aside, update)
    outcome = gather(run_file, prepared, shards, out, aside, context, EarlierSets.of(inputs))
    shutil.rmtree(aside)
    return outcome
