"""The selector stage: any number of shards, validation only, a record of every reason."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from iar.config import RunFile
from iar.errors import UserError
from iar.methods.digest import digest_file, digest_json, digest_text
from iar.methods.merge_grid import grid
from iar.methods.provenance import scores_payload
from iar.records import (
    BitsPerByte,
    Candidate,
    Lineage,
    ModelScores,
    Outcome,
    QAPair,
    Selection,
    from_json,
    to_json,
    write_records,
)
from iar.services.registry import Producer
from iar.services.workspace import Context
from iar.stages.selector import run
from tests.methods.score_tables import candidate, item_scores, model_scores

RUN_FILE = RunFile.model_validate(
    {"run": {"name": "test"}, "documents": {"path": "documents"}, "evaluate": {"resamples": 400}}
)
IDS = [recipe.id for recipe in grid(RUN_FILE.recover, 17)]

VANILLA = model_scores("vanilla", 40.0, (30.0, 30.0, 30.0))
PAIR = QAPair(
    "q1", "d1", "c1", "validation", "fact_extraction", "Who?", "Tora Lind", "", ("Lind",), "Tora Lind", "offline"
)


def candidate_scores() -> list[ModelScores]:
    """Twelve candidates above vanilla (40 / 30): the later in the grid, the better in domain."""
    return [model_scores(name, 41.0 + place, (60.0 - place, 50.0, 50.0)) for place, name in enumerate(IDS)]


def write_inputs(
    folder: Path,
    scores: list[ModelScores],
    candidates: list[Candidate] | None = None,
    shards: int = 1,
    references: list[ModelScores] | None = None,
) -> dict[str, Path]:
    """Write the folders that the stage reads, candidates and scores dealt over `shards`."""
    candidates = candidates or [candidate(name) for name in IDS]
    inputs = {"data": folder / "data", "references": folder / "references"}
    for number in range(1, shards + 1):
        inputs |= {f"{kind}_{number}": folder / f"{kind}_{number}" for kind in ("candidates", "scores")}
    for path in inputs.values():
        path.mkdir(parents=True)
    write_records(inputs["data"] / "validation.jsonl", [PAIR])
    default = [VANILLA, model_scores("theta_IA", 55.0, (20.0, 20.0, 20.0))]
    write_scores(inputs["references"], references or default)
    for number in range(shards):
        write_records(inputs[f"candidates_{number + 1}"] / "candidates.jsonl", candidates[number::shards])
        write_scores(inputs[f"scores_{number + 1}"], scores[number::shards])
        write_records(inputs[f"scores_{number + 1}"] / "bpb.jsonl", map(bits, candidates[number::shards]))
    return inputs


def bits(one: Candidate) -> BitsPerByte:
    """The later in the grid, the fewer bits of source text, the more of general text, together the fewer."""
    place = IDS.index(one.id)
    return BitsPerByte(one.id, one.digest, 2.0 - 0.1 * place, 1.0 + 0.05 * place, 100, 100)


def write_scores(folder: Path, scores: list[ModelScores]) -> None:
    """Write the scores of models and of their items, as judge-eval leaves them."""
    write_records(folder / "scores.jsonl", scores)
    for one in scores:
        (folder / one.model).mkdir()
        write_records(folder / one.model / "items.jsonl", item_scores(one))


def select(
    tmp_path: Path, inputs: dict[str, Path], **settings: object
) -> tuple[Outcome, Selection, list[dict[str, object]]]:
    """Run the stage under these settings of the section; return its outcome and both files."""
    out = tmp_path / "out"
    out.mkdir(exist_ok=True)
    run_file = RunFile.model_validate(RUN_FILE.model_dump() | {"select": settings})
    outcome = run(run_file, inputs, out, Context.for_tests(tmp_path))
    selection = from_json(Selection, json.loads((out / "selection.json").read_text(encoding="utf-8")))
    return outcome, selection, json.loads((out / "frontier.json").read_text(encoding="utf-8"))


def test_the_pick_is_written_with_its_digests_and_reasons(tmp_path: Path) -> None:
    inputs = write_inputs(tmp_path, candidate_scores())
    outcome, selection, _ = select(tmp_path, inputs)
    assert selection.pick == IDS[-1]
    assert selection.candidate_digest == f"digest-{IDS[-1]}"
    assert selection.dataset_digest == digest_file(inputs["data"] / "validation.jsonl")
    assert selection.tolerance_points == 1.0
    assert [item.candidate for item in selection.verdicts] == IDS
    assert outcome.metrics["feasible"] == 12
    assert outcome.metrics["domain"] == 52.0
    assert f"**Pick: {IDS[-1]}**" in outcome.markdown
    assert all(f"| {name} | kept: D " in outcome.markdown for name in IDS)


def test_the_decision_knows_what_it_chose_considered_and_was_validated_on(tmp_path: Path) -> None:
    outcome, selection, _ = select(tmp_path, write_inputs(tmp_path, candidate_scores()))
    dataset, entry = outcome.lineage
    assert (dataset.kind, dataset.digest) == ("dataset", selection.dataset_digest)
    assert (entry.kind, entry.name) == ("decision", f"pick {IDS[-1]}")
    assert entry.digest == digest_json(entry.payload)
    assert entry.payload["pick"] == selection.pick
    assert [digest for role, digest in entry.inputs if role == "chosen"] == [f"digest-{IDS[-1]}"]
    assert [digest for role, digest in entry.inputs if role == "considered"] == [f"digest-{n}" for n in IDS[:-1]]
    assert ("validated-on", selection.dataset_digest) in entry.inputs
    assert ("compared-with", "digest-vanilla") in entry.inputs
    weighed = {digest for role, digest in entry.inputs if role == "weighed"}
    assert weighed == {digest_json(scores_payload(one)) for one in (*candidate_scores(), VANILLA)}


def hashed(entry: Lineage) -> Lineage:
    """The entry with SHA-256 digests in place of the readable ones of these tables."""

    def digest(text: str) -> str:
        return digest_text(text) if text.startswith("digest-") else text

    return replace(
        entry, digest=digest(entry.digest), inputs=tuple((role, digest(source)) for role, source in entry.inputs)
    )


def test_the_registry_takes_the_decision_where_its_inputs_were_recorded(tmp_path: Path) -> None:
    outcome, _, _ = select(tmp_path, write_inputs(tmp_path, candidate_scores()))
    made = [Lineage("checkpoint", f"digest-{name}", name, {}) for name in [*IDS, "vanilla"]]
    question = Lineage("qa", digest_json(to_json(PAIR)), PAIR.id, {})
    registry = Context.for_tests(tmp_path).registry()
    producer = Producer("test", "selector", "code", "config", 17, 0.0, 1.0)
    numbers = [digest_json(scores_payload(one)) for one in (*candidate_scores(), VANILLA)]
    scores = [Lineage("scores", digest, "", {}) for digest in numbers]
    registry.record(map(hashed, [*made, question, *scores]), producer)
    recorded = list(map(hashed, outcome.lineage))
    registry.record(recorded, producer)
    sources = {edge.role for edge in registry.upstream(recorded[-1].digest)}
    assert {"chosen", "considered", "compared-with", "validated-on", "contains", "weighed"} <= sources
    registry.close()


def test_the_number_of_shards_changes_no_byte(tmp_path: Path) -> None:
    written = []
    for shards in (1, 3, 12):
        folder = tmp_path / str(shards)
        outcome, _, _ = select(folder, write_inputs(folder, candidate_scores(), shards=shards))
        files = [(folder / "out" / name).read_bytes() for name in ("selection.json", "frontier.json")]
        written.append((files, outcome))
    assert written[0] == written[1] == written[2]


def test_the_frontier_holds_references_and_candidates(tmp_path: Path) -> None:
    _, _, frontier = select(tmp_path, write_inputs(tmp_path, candidate_scores()))
    assert [(point["id"], point["kind"]) for point in frontier[:2]] == [
        ("vanilla", "reference"),
        ("theta_IA", "reference"),
    ]
    assert [point["id"] for point in frontier[2:]] == IDS
    assert all(point["on_front"] for point in frontier[2:])
    assert [point["id"] for point in frontier if point["picked"]] == [IDS[-1]]
    assert frontier[0]["suites"] == {"domain": 40.0, "ifeval": 30.0, "mmlu": 30.0, "msbench": 30.0}


def test_the_share_of_resamples_stands_beside_each_candidate(tmp_path: Path) -> None:
    inputs = write_inputs(tmp_path, candidate_scores())
    # The last one is ahead by one item in four: where it is drawn less often, the one before wins.
    ahead = item_scores(candidate_scores()[-2])
    ahead[0] = replace(ahead[0], score=1.0)
    write_records(inputs["scores_1"] / IDS[-1] / "items.jsonl", [replace(one, model=IDS[-1]) for one in ahead])
    outcome, selection, frontier = select(tmp_path, inputs)
    wins = selection.stability.wins
    assert set(wins) == set(IDS) and selection.stability.resamples == RUN_FILE.evaluate.resamples
    assert wins[IDS[-2]] == pytest.approx((3 / 4) ** 4, abs=0.07)
    assert wins[IDS[-1]] + wins[IDS[-2]] == pytest.approx(1) and selection.stability.none_feasible == 0
    assert {point["id"]: point["win_share"] for point in frontier if point["kind"] == "candidate"} == wins
    assert outcome.metrics["win_share"] == wins[IDS[-1]] and outcome.metrics["none_feasible_share"] == 0
    assert f"| {100 * wins[IDS[-1]]:.1f} % |" in outcome.markdown


def test_another_preference_is_recorded_with_the_pick(tmp_path: Path) -> None:
    inputs = write_inputs(tmp_path, candidate_scores())
    outcome, selection, _ = select(tmp_path, inputs, preference="general")
    assert selection.pick == IDS[0] and selection.preference == "general" and selection.wish == "preference general"
    assert selection.rule.endswith("leading general tier (1)")
    assert outcome.markdown.startswith(f"**Pick: {IDS[0]}**, by preference general, tolerance 1 points")
    decision = outcome.lineage[-1]
    assert decision.name == f"pick {IDS[0]} (preference general)"
    assert decision.payload["preference"] == "general"


def test_a_floor_is_recorded_and_may_leave_no_pick(tmp_path: Path) -> None:
    inputs = write_inputs(tmp_path, candidate_scores())
    _, selection, _ = select(tmp_path, inputs, floors={"ifeval": 55})
    assert (selection.pick, selection.wish) == (IDS[5], "ifeval at least 55")
    outcome, selection, _ = select(tmp_path, inputs, floors={"ifeval": 99})
    assert (selection.pick, selection.candidate_digest) == ("", "")
    assert selection.stability.none_feasible == 1
    assert outcome.lineage[-1].name == "no feasible candidate (ifeval at least 99)"


def test_the_ranking_by_bits_per_byte_is_compared_with_the_pick(tmp_path: Path) -> None:
    select(tmp_path, write_inputs(tmp_path, candidate_scores()))
    pruning = json.loads((tmp_path / "out" / "pruning.json").read_text(encoding="utf-8"))
    # The pick has the fewest bits, so it is among any number of candidates.
    assert pruning["ranking"] == IDS[::-1]
    assert [(one["kept"], one["pick"], one["domain_lost"]) for one in pruning["losses"]] == [
        (kept, IDS[-1], 0.0) for kept in range(1, 13)
    ]
    # Worst of all by bits, the real pick would only be found by evaluating all.
    inputs = write_inputs(tmp_path / "b", candidate_scores())
    turned = [replace(bits(candidate(name)), source=float(place)) for place, name in enumerate(IDS)]
    write_records(inputs["scores_1"] / "bpb.jsonl", turned)
    select(tmp_path / "b", inputs)
    losses = json.loads((tmp_path / "b" / "out" / "pruning.json").read_text(encoding="utf-8"))["losses"]
    assert [one["pick"] for one in losses] == IDS
    assert [round(one["domain_lost"]) for one in losses] == list(range(11, -1, -1))


def test_pruned_candidates_need_no_scores_have_a_reason_and_cannot_be_picked(tmp_path: Path) -> None:
    turned = [replace(bits(candidate(name)), source=float(place)) for place, name in enumerate(IDS)]
    inputs = write_inputs(tmp_path, candidate_scores()[:5])
    write_records(inputs["scores_1"] / "bpb.jsonl", turned)
    outcome, selection, frontier = select(tmp_path, inputs, prune_to=5)
    assert selection.pick == IDS[4]
    last = selection.verdicts[-1]
    assert last.domain_floor == (
        "pruned: 11.000 bits per byte of source, 1.550 of general text; rank 12 of 12, 5 evaluated"
    )
    assert (last.kept_until, outcome.metrics["feasible"]) == (0, 5)
    assert IDS[5] not in [point["id"] for point in frontier] and set(selection.stability.wins) == set(IDS[:5])


def test_candidates_without_bits_per_byte_are_named(tmp_path: Path) -> None:
    inputs = write_inputs(tmp_path, candidate_scores())
    write_records(inputs["scores_1"] / "bpb.jsonl", [bits(candidate(name)) for name in IDS[1:]])
    with pytest.raises(UserError, match=f"selector: no bits per byte of {IDS[0]}: rerun judge-eval of their shard"):
        select(tmp_path, inputs)


def test_candidates_without_item_scores_are_named(tmp_path: Path) -> None:
    inputs = write_inputs(tmp_path, candidate_scores())
    (inputs["scores_1"] / IDS[4] / "items.jsonl").unlink()
    with pytest.raises(UserError, match=f"selector: no item scores of {IDS[4]}: rerun judge-eval"):
        select(tmp_path, inputs)


def test_no_feasible_candidate_is_a_result(tmp_path: Path) -> None:
    scores = [model_scores(name, 10.0, (60.0, 60.0, 60.0)) for name in IDS]
    outcome, selection, frontier = select(tmp_path, write_inputs(tmp_path, scores))
    assert (selection.pick, selection.candidate_digest) == ("", "")
    assert outcome.metrics["feasible"] == 0
    assert outcome.markdown.startswith("**No feasible candidate**")
    assert not any(point["on_front"] or point["picked"] for point in frontier)
    assert outcome.lineage[-1].name == "no feasible candidate"
    assert not any(role == "chosen" for role, _ in outcome.lineage[-1].inputs)


def test_equal_content_from_two_shards_counts_once(tmp_path: Path) -> None:
    candidates = [candidate(name) for name in IDS[:-1]] + [candidate(IDS[-1], digest=f"digest-{IDS[0]}")]
    _, selection, frontier = select(tmp_path, write_inputs(tmp_path, candidate_scores(), candidates, shards=2))
    assert selection.pick == IDS[-2]
    assert selection.verdicts[-1].domain_floor == f"duplicate of {IDS[0]}"
    assert IDS[-1] not in [point["id"] for point in frontier]


def test_a_duplicate_needs_no_scores(tmp_path: Path) -> None:
    candidates = [candidate(name) for name in IDS[:-1]] + [candidate(IDS[-1], duplicate_of=IDS[0])]
    _, selection, _ = select(tmp_path, write_inputs(tmp_path, candidate_scores()[:-1], candidates))
    assert selection.pick == IDS[-2]


@pytest.mark.parametrize("split", ["test", "train"])
def test_scores_of_another_split_are_refused(tmp_path: Path, split: str) -> None:
    scores = [*candidate_scores()[:-1], model_scores(IDS[-1], 99.0, (99.0, 99.0, 99.0), split)]
    with pytest.raises(UserError, match=f"scores of {IDS[-1]} are on split '{split}': only validation may pick"):
        select(tmp_path, write_inputs(tmp_path, scores))


def test_references_of_another_split_are_refused(tmp_path: Path) -> None:
    references = [model_scores("vanilla", 40.0, (30.0, 30.0, 30.0), "test")]
    with pytest.raises(UserError, match="scores of vanilla are on split 'test'"):
        select(tmp_path, write_inputs(tmp_path, candidate_scores(), references=references))


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"no scores for {IDS[3]}: rerun judge-eval of their shard"):
        scores = [item for item in candidate_scores() if item.model != IDS[3]]
        select(tmp_path / "a", write_inputs(tmp_path / "a", scores))
    with pytest.raises(UserError, match=f"the grid has 12 candidates, none made for {IDS[5]}"):
        candidates = [candidate(name) for name in IDS if name != IDS[5]]
        select(tmp_path / "b", write_inputs(tmp_path / "b", candidate_scores(), candidates))
    with pytest.raises(UserError, match="has no 'vanilla'"):
        references = [model_scores("theta_0", 10.0, (70.0, 70.0, 70.0))]
        select(tmp_path / "c", write_inputs(tmp_path / "c", candidate_scores(), references=references))
    with pytest.raises(UserError, match="no input named scores_1"):
        inputs = write_inputs(tmp_path / "d", candidate_scores())
        select(tmp_path / "d", {role: path for role, path in inputs.items() if role != "scores_1"})


def test_baselines_are_points_of_the_plane_and_change_no_decision(tmp_path: Path) -> None:
    inputs = write_inputs(tmp_path, candidate_scores())
    _, alone, _ = select(tmp_path, inputs)
    inputs["baseline_scores"] = tmp_path / "baseline_scores"
    inputs["baseline_scores"].mkdir()
    # better than every candidate on both axes
    write_scores(inputs["baseline_scores"], [model_scores("replay", 99.0, (99.0, 99.0, 99.0))])
    _, beside, frontier = select(tmp_path, inputs)
    assert beside == alone
    (point,) = [point for point in frontier if point["kind"] == "baseline"]
    assert (point["id"], point["on_front"], point["picked"]) == ("replay", False, False)
    assert len(frontier) == 2 + 1 + len(IDS)


def test_baselines_scored_on_another_split_are_refused(tmp_path: Path) -> None:
    inputs = write_inputs(tmp_path, candidate_scores())
    inputs["baseline_scores"] = tmp_path / "baseline_scores"
    inputs["baseline_scores"].mkdir()
    wrong = replace(model_scores("replay", 40.0, (30.0, 30.0, 30.0)), split="test")
    write_records(inputs["baseline_scores"] / "scores.jsonl", [wrong])
    with pytest.raises(UserError, match="scores of replay are on split 'test': only validation may pick"):
        select(tmp_path, inputs)
