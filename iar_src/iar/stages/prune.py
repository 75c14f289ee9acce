"""Prune: all candidates -> the few that predict source and general text best, before any reply is paid for."""

from contextlib import ExitStack
from pathlib import Path

from iar.config import RunFile
from iar.methods.bpb import ranking
from iar.records import BitsPerByte, Candidate, Outcome, read_records, to_json, write_json, write_records
from iar.services.bpb import ALL_BPB, BPB, BpbTexts, bpb_texts, measure_bpb, read_bpb
from iar.services.candidates import weights_present
from iar.services.engine import Engine
from iar.services.suites import load_suites
from iar.services.workspace import Context

KEPT = "kept.json"


def run(run_file: RunFile, inputs: dict[str, Path], out: Path, context: Context) -> Outcome:
    """Write `bpb.jsonl`, one line a candidate, and `kept.json`: the digests of the best weights, in order.

    A killed try goes on from the `bpb.json` of each candidate.
    """
    folders = [folder for role, folder in inputs.items() if role.startswith("candidates")]
    found = [(one, folder) for folder in folders for one in read_records(folder / "candidates.jsonl", Candidate)]
    distinct = {one.digest: (one, folder / one.id) for one, folder in reversed(found) if not one.duplicate_of}
    texts = bpb_texts(inputs["data"], load_suites(run_file), run_file.evaluate.bpb_bytes)
    measured = []
    with ExitStack() as held:
        for folder in folders:
            own = [one for one, place in distinct.values() if place.parent == folder]
            held.enter_context(weights_present(folder, own, run_file, context.state, context.progress.update))
        for number, (candidate, place) in enumerate(distinct.values(), 1):
            measured.append(_measured(candidate, place, out / candidate.id, texts))
            context.progress.update(number, len(distinct), candidate.id)

    ranked = ranking(measured)
    kept = ranked[: run_file.select.prune_to]
    write_records(out / ALL_BPB, measured)
    write_json(out / KEPT, kept)
    metrics = {f"{one.model}/bpb_{text}": getattr(one, text) for one in measured for text in ("source", "general")}
    return Outcome(metrics | {"kept": float(len(kept))}, _markdown(measured, ranked, len(kept)))


def _measured(candidate: Candidate, checkpoint: Path, folder: Path, texts: BpbTexts) -> BitsPerByte:
    if known := read_bpb(folder, candidate.digest):
        return known
    found = measure_bpb(candidate.id, candidate.digest, Engine(checkpoint), texts)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / BPB, to_json(found))
    return found


def _markdown(measured: list[BitsPerByte], ranked: list[str], kept: int) -> str:
    by_digest = {one.checkpoint_digest: one for one in measured}
    rows = [
        f"| {rank} | {one.model} | {one.source:.3f} | {one.general:.3f} | {'kept' if rank <= kept else 'pruned'} |"
        for rank, one in enumerate((by_digest[digest] for digest in ranked), 1)
    ]
    head = ["| rank | candidate | BPB of source | BPB of general text | |", "| ---: | --- | ---: | ---: | --- |"]
    return "\n".join([f"{kept} of {len(ranked)} candidates are evaluated.", "", *head, *rows])
