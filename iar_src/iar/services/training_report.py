"""What a training stage reports: totals, a short text, and the checkpoint's registry entry."""

import json
from pathlib import Path

from iar.records import Lineage, Outcome
from iar.services.checkpoints import recorded_digest
from iar.services.trainer import TrainingResult


def training_outcome(out: Path, result: TrainingResult, parents: dict[str, Path], name: str) -> Outcome:
    """Describe the finished training under `out`."""
    card = json.loads((out / "card.json").read_text())
    inputs = (("trained-from", recorded_digest(parents["start"])), ("trained-on", dataset_digest(parents["data"])))
    totals = {"steps": result.steps, "tokens": result.tokens, "target_tokens": result.target_tokens}
    payload = {**totals, "compute_dtype": result.compute_dtype, "template_sha256": card["template_sha256"]}
    speed = result.tokens / max(result.seconds, 1e-9)
    shares = ", ".join(f"{objective} {share:.2f}" for objective, share in card["objective_share"].items())
    return Outcome(
        metrics=totals | {"rows": card["rows"], "final_loss": result.final_loss, "tokens_per_second": speed},
        markdown=f"**{name}**: {card['rows']} rows ({shares}), {result.steps} steps, {result.tokens} tokens "
        f"({result.target_tokens} trained), {speed:.0f} tokens/s in {result.compute_dtype}, "
        f"final loss {result.final_loss:.3f}",
        lineage=(Lineage("checkpoint", result.digest, name, payload, inputs),),
    )


def dataset_digest(data: Path) -> str:
    """Return the digest that names the dataset in the registry."""
    return str(json.loads((data / "dataset.json").read_text())["digest"])
