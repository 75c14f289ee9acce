"""One shard of a QA build: what the teacher makes of every n-th document."""

from pathlib import Path

from iar.config import RunFile
from iar.methods.funnel import funnel_table
from iar.records import Outcome
from iar.services.qa_documents import Prepared
from iar.services.qa_lessons import shards_funnel, share_of_servers, teach_shard
from iar.services.workspace import Context


def run(run_file: RunFile, inputs: dict[str, Path], out: Path, context: Context) -> Outcome:
    """Write the lessons of every `context.shards`-th document; a killed try's replies are taken up, nothing else is."""
    settings, prepared = share_of_servers(run_file.qa_build), Prepared(inputs["documents"])
    teach_shard(
        settings, prepared, inputs.get("base"), context.state, context.seed, out, context.shard, context.shards,
        context.progress.update,
    )  # fmt: skip
    funnel = shards_funnel([out])
    kept = {step.step: float(step.kept) for step in funnel}
    return Outcome(kept, funnel_table(funnel))
