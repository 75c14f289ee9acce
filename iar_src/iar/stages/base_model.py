"""Base model: theta_0 from a name, a folder or a hub id, as one verified folder."""

from pathlib import Path

from iar.config import RunFile
from iar.methods.chat import end_of_turn, render_prompt, template_hash
from iar.records import Lineage, Outcome
from iar.services.checkpoints import recorded_digest
from iar.services.models import load_tokenizer, resolve_base
from iar.services.workspace import Context


def run(run_file: RunFile, inputs: dict[str, Path], out: Path, context: Context) -> Outcome:
    """Write theta_0 to `out` in the Hugging Face layout."""
    origin = resolve_base(run_file.model, out)
    digest = recorded_digest(out)
    tokenizer = load_tokenizer(out)
    template = template_hash(tokenizer)
    # What the template refuses is said here, before anything is computed.
    render_prompt(tokenizer, "A question", run_file.model.system_turn)
    end_of_turn(tokenizer)
    megabytes = sum(file.stat().st_size for file in out.glob("*.safetensors")) / 1e6
    payload = {"source": run_file.model.source, "origin": origin, "template_sha256": template}
    return Outcome(
        metrics={"megabytes": megabytes},
        markdown=f"**{run_file.model.source}** from {origin}, {megabytes:.0f} MB, weights `{digest[:12]}`",
        lineage=(Lineage("checkpoint", digest, "theta_0", payload),),
    )
