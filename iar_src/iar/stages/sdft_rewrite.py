"""SDFT, first half: theta_0 writes each training answer in its own words; what is no answer stays the original.

A task of its own, because it generates on one GPU: the training on the rewrites is a job that may need the whole pool.
"""

from pathlib import Path

from iar.config import RunFile
from iar.methods.self_distillation import acceptance, judged_rewrite, rewrite_prompt
from iar.records import EvalItem, Outcome, QAPair, read_records, write_records
from iar.services.engine import Engine
from iar.services.replies import complete_replies
from iar.services.workspace import Context

REWRITES = "rewrites.jsonl"


def run(run_file: RunFile, inputs: dict[str, Path], out: Path, context: Context) -> Outcome:
    """Write `rewrites.jsonl`, one line a training question; a killed try goes on from its `replies.jsonl`."""
    pairs = list(read_records(inputs["data"] / "train.jsonl", QAPair))
    limit = run_file.baselines.sdft_max_tokens
    items = [EvalItem(pair.id, "sdft", rewrite_prompt(pair), limit, {}) for pair in pairs]
    replies = complete_replies(
        out / "replies.jsonl",
        items,
        lambda: Engine(inputs["base"], run_file.model.system_turn, run_file.evaluate.batch_size),
        on_progress=context.progress.update,
    )
    rewrites = [judged_rewrite(pair, replies[pair.id]) for pair in pairs]
    write_records(out / REWRITES, rewrites)

    facts = acceptance(rewrites)
    taken = f"{facts['acceptance_rate']:.1%} of {len(rewrites)} rewrites taken"
    refused = [f"{name.removeprefix('refused/')}: {facts[name]:.0f}" for name in facts if name.startswith("refused/")]
    return Outcome(metrics=facts, markdown="; ".join([taken, *refused]))
