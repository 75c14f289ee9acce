"""The documents of a QA build whose questions are made by several tasks: read, filtered and decontaminated."""

from pathlib import Path

from iar.config import RunFile
from iar.methods.funnel import funnel_table
from iar.records import Outcome
from iar.services.qa_documents import Prepared, prepare_documents
from iar.services.workspace import Context


def run(run_file: RunFile, inputs: dict[str, Path], out: Path, context: Context) -> Outcome:
    """Write the documents and what must be known of all of them; raises UserError where none is kept."""
    prepare_documents(run_file, out, context.seed, context.progress.update, context.retracted())
    prepared = Prepared(out)
    return Outcome({"documents": float(prepared.count())}, funnel_table(prepared.funnel()))
