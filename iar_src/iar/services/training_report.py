"""What a training stage reports: totals, a short text, and the checkpoint's registry entry."""

import json
from pathlib import Path
from typing import Any

from iar.records import Lineage, Outcome
from iar.services.checkpoints import recorded_digest
from iar.services.example_sets import EXAMPLE_SET, SEEN_AS, examples_entry
from iar.services.telemetry import TrainingResult

BUILT_ON = "built-on"  # the role of theta_IA of the run that another is built on


def training_outcome(
    out: Path, result: TrainingResult, parents: dict[str, Path], name: str, built_on: bool = False
) -> Outcome:
    """Describe the finished training under `out`; `built_on`: its start is what an earlier run came to."""
    card = json.loads((out / "card.json").read_text())
    start, data = recorded_digest(parents["start"]), dataset_digest(parents["data"])
    seen = tuple(examples_entry(card[key], data) for key in (EXAMPLE_SET,) if key in card)
    made_of = (("trained-from", start), ("trained-on", data), *[(BUILT_ON, start)] * built_on)
    inputs = made_of + tuple((SEEN_AS, one.digest) for one in seen)
    totals = {"steps": result.steps, "tokens": result.tokens, "target_tokens": result.target_tokens}
    setup = {"compute_dtype": result.compute_dtype, "engine": result.engine, "ranks": result.ranks}
    payload = totals | setup | {"template_sha256": card["template_sha256"]}
    return Outcome(
        metrics=totals | {"rows": card["rows"], "final_loss": result.final_loss} | performance(result),
        markdown=describe(result, card, name),
        lineage=(*seen, Lineage("checkpoint", result.digest, name, payload, inputs)),
    )


def performance(result: TrainingResult) -> dict[str, float]:
    """Return how fast the training was and what it took; mfu only where the device's peak is known."""
    seconds = max(result.seconds, 1e-9)
    figures = {
        "tokens_per_second": result.tokens / seconds,
        "target_tokens_per_second": result.target_tokens / seconds,
        "positions_per_second": result.positions / seconds,
        "token_efficiency": result.tokens / max(result.positions, 1),
        "peak_memory_gb": result.memory_bytes / 1e9,
        "loss_spikes": float(len(result.spikes)),
    }
    return figures | ({"mfu": result.mfu} if result.mfu else {})


def describe(result: TrainingResult, card: dict[str, Any], name: str) -> str:
    """Return one paragraph about a finished training."""
    shares = ", ".join(f"{objective} {share:.2f}" for objective, share in card["objective_share"].items())
    figures = performance(result)
    where = f"{result.engine} on {result.ranks}" if result.ranks > 1 else result.engine
    use = f", {100 * result.mfu:.0f} % of the hardware's peak" if result.mfu else ""
    text = (
        f"**{name}**: {card['rows']} rows ({shares}), {result.steps} steps, {result.tokens} tokens "
        f"({result.target_tokens} trained), {figures['tokens_per_second']:.0f} tokens/s in {result.compute_dtype} with "
        f"{where}{use}, {figures['peak_memory_gb']:.1f} GB, final loss {result.final_loss:.3f}"
    )
    if card.get("parts"):
        text += f"; {card['divided_passages']} longer than the sequence, in {card['parts']} parts"
    if card["windows"]:
        text += f"; {card['windowed_examples']} longer than the sequence, in {card['windows']} windows"
    if result.spikes:
        text += f"; loss spikes at steps {', '.join(map(str, result.spikes))}"
    return text


def dataset_digest(data: Path) -> str:
    """Return the digest that names the dataset in the registry."""
    return str(json.loads((data / "dataset.json").read_text())["digest"])
