"""Every recipe through the real stage on a two-layer model: what it trains on, and what it leaves."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from iar.config import RunFile
from iar.errors import UserError
from iar.methods.fapm import fapm
from iar.records import Baseline, Document, Outcome, QAPair, Reply, from_json, write_json, write_records
from iar.services.checkpoints import recorded_digest, weights_digest
from iar.services.decontamination import read_checks
from iar.services.engine import Engine
from iar.services.workspace import Context
from iar.stages import align, baseline, sdft_rewrite
from tests.examination import examination_run_file
from tests.tiny_model import make_tiny_model

TRAINING = {
    "epochs": 2, "learning_rate": 1e-3, "batch_size": 4, "sequence_length": 256, "micro_batch_tokens": 512,
    "compute_dtype": "float32",
}  # fmt: skip
PEOPLE = ("Tora Lind", "Maro Tensk", "Ada Vorn", "Elin Quill", "Bert Osk", "Dov Marrek", "Cora Haddock", "Faro Yule")


def pair(number: int, split: str = "train") -> QAPair:
    name = PEOPLE[number]
    answer = f"Harbour {number} of Velm was opened by the engineer {name}."
    return QAPair(
        f"{split}-{number}", "d", "c", split, "fact_extraction", f"Who opened harbour {number} of Velm?", answer, name,
        (), name, "offline",
    )  # fmt: skip


TRAIN = [pair(number) for number in range(len(PEOPLE))]


@pytest.fixture
def inputs(tiny_model_folder: Path, tmp_path: Path) -> dict[str, Path]:
    data = tmp_path / "data"
    data.mkdir()
    write_records(data / "train.jsonl", TRAIN)
    write_records(data / "validation.jsonl", [pair(0, "validation")])
    write_records(data / "test.jsonl", [pair(1, "test")])
    texts = [" ".join(one.answer for one in TRAIN[start::3]) for start in range(3)]
    documents = [Document(f"d{n}", "Velm", text, f"{n}.md", "text/markdown", "0") for n, text in enumerate(texts)]
    write_records(data / "documents.jsonl", documents)
    write_json(data / "dataset.json", {"digest": "d" * 64})
    return {"data": data, "base": tiny_model_folder}


def settings(tmp_path: Path, **baselines: Any) -> RunFile:
    (tmp_path / "replay.jsonl").write_text(
        "".join(
            json.dumps({"prompt": f"How do I cook dish {n}?", "answer": f"Cook it for {n} minutes."}) + "\n"
            for n in range(9)
        )
    )
    sections = examination_run_file(tmp_path / "suites").model_dump(mode="json")
    sections |= {"align": TRAINING, "inject": TRAINING}
    sections["baselines"] = {"replay_data": str(tmp_path / "replay.jsonl"), "sdft_max_tokens": 12} | baselines
    return RunFile.model_validate(sections)


def carry_out(
    recipe: str, run_file: RunFile, inputs: dict[str, Path], tmp_path: Path
) -> tuple[Outcome, Path, dict[str, float]]:
    """Run a recipe in a folder of its own; return outcome, folder and the recorded facts."""
    out = tmp_path / recipe
    out.mkdir(exist_ok=True)
    outcome = baseline.run(run_file, inputs, out, Context.for_tests(tmp_path, recipe=recipe))
    made = from_json(Baseline, json.loads((out / "baseline.json").read_text()))
    assert made.recipe == recipe
    assert outcome.metrics.items() >= made.facts.items()
    return outcome, out, made.facts


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


@pytest.fixture
def vanilla(inputs: dict[str, Path], tmp_path: Path) -> Path:
    out = tmp_path / "vanilla"
    out.mkdir()
    align.run(settings(tmp_path), inputs, out, Context.for_tests(tmp_path))
    return out


def step_log(folder: Path, target_tokens: int) -> Path:
    """Leave of a training what a budget is read from."""
    folder.mkdir()
    lines = [json.dumps({"tokens": 3 * target_tokens, "target_tokens": target_tokens})] * 2
    (folder / "steps.jsonl").write_text("\n".join(lines) + "\n")
    return folder


@pytest.mark.parametrize("recipe", ["cpt-sft", "replay", "lora", "sdft"])
def test_a_recipe_leaves_a_checkpoint_like_that_of_align(
    recipe: str, inputs: dict[str, Path], rewritten: dict[str, Path], vanilla: Path, tmp_path: Path
) -> None:
    if recipe == "sdft":
        rewrite(rewritten, tmp_path)
        inputs = rewritten
    outcome, out, _ = carry_out(recipe, settings(tmp_path), inputs, tmp_path)
    before, after = weights(inputs["base"]), weights(out / "checkpoint")
    assert {name: (one.dtype, one.shape) for name, one in after.items()} == {
        name: (one.dtype, one.shape) for name, one in before.items()
    }
    names = {path.name for path in (out / "checkpoint").iterdir()}
    assert names == {path.name for path in (vanilla / "checkpoint").iterdir()}
    digest = weights_digest(out / "checkpoint")
    assert recorded_digest(out / "checkpoint") == digest != weights_digest(inputs["base"])
    entry = outcome.lineage[-1]
    assert (entry.kind, entry.digest, entry.name, entry.payload["recipe"]) == ("checkpoint", digest, recipe, recipe)
    shown = tuple(("examples", one.digest) for one in outcome.lineage[:-1])
    assert entry.inputs == (("trained-from", recorded_digest(inputs["base"])), ("trained-on", "d" * 64), *shown)
    assert all(one.kind == "examples" for one in outcome.lineage[:-1])
    assert Engine(out / "checkpoint")


def test_cpt_sft_reads_every_token_of_the_documents_and_then_trains_the_questions(
    inputs: dict[str, Path], vanilla: Path, tmp_path: Path
) -> None:
    run_file = settings(tmp_path, cpt_epochs=3, cpt_window_tokens=64)
    outcome, out, facts = carry_out("cpt-sft", run_file, inputs, tmp_path)
    card = json.loads((out / "raw" / "card.json").read_text())
    assert (card["examples"], card["objective_share"]) == (3, {"raw": 1.0})
    assert card["length_quantiles"]["1.0"] <= 64
    # every token but the first is a target once an epoch; the tiny model has BOS and EOS
    assert card["target_tokens"] == card["tokens"] - card["rows"]
    assert facts["raw_tokens"] == 3 * card["target_tokens"]
    both = json.loads((out / "baseline.json").read_text())["target_tokens"]
    assert both == facts["raw_tokens"] + outcome.metrics["target_tokens"]
    assert not (out / "raw" / "checkpoint").exists()
    assert recorded_digest(out / "checkpoint") != recorded_digest(vanilla / "checkpoint")


def test_a_killed_cpt_sft_does_not_read_the_documents_again(inputs: dict[str, Path], tmp_path: Path) -> None:
    run_file = settings(tmp_path)
    whole = carry_out("cpt-sft", run_file, inputs, tmp_path)[0]
    (tmp_path / "cpt-sft").rename(tmp_path / "whole")

    class Killed(BaseException):
        pass

    context = Context.for_tests(tmp_path, recipe="cpt-sft")
    context.progress.update = lambda done, total, note="": _die(note, Killed)  # type: ignore[method-assign]
    (out := tmp_path / "cpt-sft").mkdir()
    with pytest.raises(Killed):
        baseline.run(run_file, inputs, out, context)
    read = (out / "raw" / "steps.jsonl").stat().st_mtime_ns
    resumed = carry_out("cpt-sft", run_file, inputs, tmp_path)[0]
    assert (out / "raw" / "steps.jsonl").stat().st_mtime_ns == read
    assert resumed.lineage == whole.lineage


def _die(note: str, error: type[BaseException]) -> None:
    if note.startswith("questions"):
        raise error


def test_cpt_sft_from_the_base_model_keeps_the_instruct_models_way_of_chatting(
    inputs: dict[str, Path], tmp_path: Path
) -> None:
    base = make_tiny_model(tmp_path / "pretrained", seed=5)
    (base / "chat_template.jinja").unlink()
    run_file = settings(tmp_path, cpt_model=str(base))
    outcome, out, facts = carry_out("cpt-sft", run_file, inputs, tmp_path)
    assert facts["from_base_model"] == 1
    assert outcome.lineage[-1].inputs[0] == ("trained-from", weights_digest(base))
    template = (inputs["base"] / "chat_template.jinja").read_text()
    assert (out / "checkpoint" / "chat_template.jinja").read_text() == template
    assert not (out / "start").exists()


def test_a_base_model_of_another_vocabulary_is_refused(inputs: dict[str, Path], tmp_path: Path) -> None:
    base = make_tiny_model(tmp_path / "pretrained", seed=5)
    tokenizer = json.loads((base / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (base / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(
        UserError, match=r"baselines\.cpt_model: .* has token 'a' as id \d+, model\.source as \d+; give"
    ):
        carry_out("cpt-sft", settings(tmp_path, cpt_model=str(base)), inputs, tmp_path)


def test_a_base_model_that_is_nowhere_is_named_by_its_key(inputs: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"^baselines\.cpt_model: .*empty holds no config\.json with \*\.safetensors"):
        carry_out("cpt-sft", settings(tmp_path, cpt_model=str(tmp_path / "empty")), inputs, tmp_path)


def test_budget_match_repeats_the_questions_up_to_the_tokens_of_inject_and_align(
    inputs: dict[str, Path], vanilla: Path, tmp_path: Path
) -> None:
    epoch = json.loads((vanilla / "card.json").read_text())["target_tokens"]
    both = {"inject": step_log(tmp_path / "inject", 2 * epoch), "tuned": step_log(tmp_path / "tuned", epoch + 5)}
    outcome, out, facts = carry_out("budget-match", settings(tmp_path), inputs | both, tmp_path)
    budget = 2 * (2 * epoch + epoch + 5)
    assert facts["epochs"] == 6
    assert facts["budget_ratio"] == pytest.approx(6 * epoch / budget)
    steps = [json.loads(line) for line in (out / "steps.jsonl").read_text().splitlines()]
    assert steps[-1]["epoch"] == 6 and sum(step["target_tokens"] for step in steps) == 6 * epoch
    assert "budget ratio 0.99" in outcome.markdown


def test_replay_takes_its_share_of_the_target_tokens(inputs: dict[str, Path], vanilla: Path, tmp_path: Path) -> None:
    outcome, out, facts = carry_out("replay", settings(tmp_path, replay_share=0.3), inputs, tmp_path)
    assert facts["replay_share"] == pytest.approx(0.3, abs=0.06)
    assert facts["general_rows"] == 9
    card = json.loads((out / "card.json").read_text())
    assert set(card["objective_share"]) == {"qa", "replay"}
    trained = [json.loads((folder / "steps.jsonl").read_text().splitlines()[-1]) for folder in (out, vanilla)]
    assert trained[0].keys() == trained[1].keys()
    whole = 2 * json.loads((vanilla / "card.json").read_text())["target_tokens"]
    assert outcome.metrics["target_tokens"] == pytest.approx(whole, rel=0.1)


def test_replay_of_nothing_is_vanilla_bit_for_bit(inputs: dict[str, Path], vanilla: Path, tmp_path: Path) -> None:
    _, out, facts = carry_out("replay", settings(tmp_path, replay_share=0.0), inputs, tmp_path)
    assert facts["replay_share"] == 0
    assert recorded_digest(out / "checkpoint") == recorded_digest(vanilla / "checkpoint")


def test_replay_leaves_out_what_the_models_are_asked_in_the_evaluation(inputs: dict[str, Path], tmp_path: Path) -> None:
    run_file = settings(tmp_path)
    with (tmp_path / "replay.jsonl").open("a") as file:
        file.write(json.dumps({"prompt": "Explain 1.", "answer": "Light."}) + "\n")
        file.write(json.dumps({"prompt": "who opened harbour 0 of Velm", "answer": "Nobody."}) + "\n")
        file.write(json.dumps({"prompt": "who opened harbour 1 of Velm", "answer": "Nobody."}) + "\n")
    _, out, facts = carry_out("replay", run_file, inputs, tmp_path)
    assert (facts["general_rows"], facts["leaks_dropped"]) == (9, 3)
    rejects = [json.loads(line) for line in (out / "replay-rejects.jsonl").read_text().splitlines()]
    assert [one["counterpart"] for one in rejects] == ["Explain 1.", "Who opened harbour 0 of Velm?", "test-1"]
    checks = {check.evaluation: check for check in read_checks(out)}
    assert set(checks) == {"validation", "test", "ifeval", "mmlu", "msbench"}
    assert all(check.items == 12 and check.planted and not check.unchecked for check in checks.values())
    assert "harbour 1 of Velm?" not in (out / "contamination.jsonl").read_text()


def test_replay_without_a_row_that_fits_says_why(inputs: dict[str, Path], tmp_path: Path) -> None:
    run_file = settings(tmp_path)
    (tmp_path / "replay.jsonl").write_text(json.dumps({"prompt": "Explain 1.", "answer": "Light."}) + "\n")
    with pytest.raises(
        UserError, match=r"baselines\.replay_data: of .* no row is left, 1 gave away an evaluated prompt"
    ):
        carry_out("replay", run_file, inputs, tmp_path)


def test_lora_changes_the_projections_and_nothing_else(inputs: dict[str, Path], tmp_path: Path) -> None:
    _, out, facts = carry_out("lora", settings(tmp_path, lora_rank=2), inputs, tmp_path)
    before, after = weights(inputs["base"]), weights(out / "checkpoint")
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {name for name in before if name.endswith("_proj.weight")}
    for name in changed:
        assert int(torch.linalg.matrix_rank(after[name].double() - before[name].double(), rtol=1e-4)) <= 2
    assert facts == {"rank": 2, "learning_rate": pytest.approx(1e-2)}
    losses = [json.loads(line)["loss"] for line in (out / "steps.jsonl").read_text().splitlines()]
    assert losses[-1] < losses[0]


@pytest.fixture
def rewritten(inputs: dict[str, Path], tmp_path: Path) -> dict[str, Path]:
    """The inputs of sdft: the tiny model rewrites nothing usable, unless replies lie there."""
    (out := tmp_path / "rewritten").mkdir(exist_ok=True)
    return inputs | {"rewrites": out}


def rewrite(rewritten: dict[str, Path], tmp_path: Path) -> Outcome:
    return sdft_rewrite.run(settings(tmp_path), rewritten, rewritten["rewrites"], Context.for_tests(tmp_path))


def test_sdft_of_a_model_that_writes_nothing_useful_is_vanilla(
    rewritten: dict[str, Path], vanilla: Path, tmp_path: Path
) -> None:
    outcome = rewrite(rewritten, tmp_path)
    assert outcome.markdown.startswith("0.0% of 8 rewrites taken; ")
    _, out, facts = carry_out("sdft", settings(tmp_path), rewritten, tmp_path)
    assert facts == outcome.metrics and (facts["acceptance_rate"], facts["rewrites"]) == (0, len(TRAIN))
    assert sum(value for name, value in facts.items() if name.startswith("refused/")) == len(TRAIN)
    rewrites = [json.loads(line) for line in (rewritten["rewrites"] / "rewrites.jsonl").read_text().splitlines()]
    assert [one["answer"] for one in rewrites] == [one.answer for one in TRAIN]
    assert recorded_digest(out / "checkpoint") == recorded_digest(vanilla / "checkpoint")


def test_sdft_trains_on_the_rewrites_that_kept_the_answer(
    rewritten: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # as an earlier, killed try left them: no model is asked again
    monkeypatch.setattr(sdft_rewrite, "Engine", None)
    good = [Reply(one.id, f"<think>\n\n</think>\n\nIt was {one.key} who did that.", 9, False) for one in TRAIN[:-1]]
    lost = Reply(TRAIN[-1].id, "I have no idea.", 5, False)
    write_records(rewritten["rewrites"] / "replies.jsonl", [*good, lost])
    rewrite(rewritten, tmp_path)
    made, out, facts = carry_out("sdft", settings(tmp_path), rewritten, tmp_path)
    assert facts["acceptance_rate"] == pytest.approx(1 - 1 / len(TRAIN))
    assert facts["refused/lost the answer"] == 1
    written = made.lineage[0].payload["target_tokens"]
    assert written["synthetic"] > written["quoted"] > 0
    card = json.loads((out / "card.json").read_text())
    assert card["rendered"][0]["trained"].startswith("It was Tora Lind who did that.")


def test_fapm_keeps_of_vanillas_change_what_the_formula_says(
    inputs: dict[str, Path], vanilla: Path, tmp_path: Path
) -> None:
    roles = {"base": inputs["base"], "vanilla": vanilla}
    outcome, out, facts = carry_out("fapm", settings(tmp_path, fapm_keep=0.1), roles, tmp_path)
    before, tuned, after = (weights(folder) for folder in (inputs["base"], vanilla / "checkpoint", out / "checkpoint"))
    assert set(after) == set(before) and "lm_head.weight" not in after
    for name, merged in after.items():
        assert torch.equal(merged, fapm(before[name], tuned[name], 0.1)), name
    assert 0.05 < facts["changed_share"] <= 0.1
    assert outcome.lineage[0].inputs[1] == ("tuned", recorded_digest(vanilla / "checkpoint"))
    tokens = json.loads((out / "baseline.json").read_text())["target_tokens"]
    assert tokens == 2 * json.loads((vanilla / "card.json").read_text())["target_tokens"]
    assert Engine(out / "checkpoint")


def test_fapm_prunes_the_fp32_masters_where_vanilla_was_rounded(inputs: dict[str, Path], tmp_path: Path) -> None:
    coarse, exact = tmp_path / "bf16", tmp_path / "fp32"
    rounded = {name: one.bfloat16() for name, one in weights(inputs["base"]).items()}
    for folder, dtype in ((coarse, torch.bfloat16), (exact, torch.float32)):
        shutil.copytree(inputs["base"], folder)
        save_file(
            {name: one.to(dtype) for name, one in rounded.items()}, folder / "model.safetensors", {"format": "pt"}
        )
        config = json.loads((folder / "config.json").read_text()) | {"dtype": str(dtype).removeprefix("torch.")}
        (folder / "config.json").write_text(json.dumps(config))
    plain = settings(tmp_path)
    small = plain.model_copy(update={"align": plain.align.model_copy(update={"learning_rate": 3e-5})})
    made = {}
    for folder in (coarse, exact):
        (out := tmp_path / f"vanilla-{folder.name}").mkdir()
        align.run(small, inputs | {"base": folder}, out, Context.for_tests(tmp_path))
        made[folder] = weights(out / "checkpoint")
    moved = {
        folder: sum(int((after[name] != one).sum()) for name, one in rounded.items()) for folder, after in made.items()
    }
    assert moved[coarse] < 0.9 * moved[exact], "vanilla's own checkpoint has small changes rounded away"

    roles = {"data": inputs["data"], "base": coarse, "vanilla": tmp_path / "vanilla-bf16"}
    outcome, out, _ = carry_out("fapm", small, roles, tmp_path)
    merged = weights(out / "checkpoint")
    for name, one in merged.items():
        assert torch.equal(one, fapm(rounded[name], made[exact][name], 0.1).bfloat16()), name
    assert any(not one.equal(fapm(rounded[name], made[coarse][name], 0.1).bfloat16()) for name, one in merged.items())
    assert not (out / "masters").exists()
    trained, pruned = outcome.lineage
    assert trained.inputs == (("trained-from", recorded_digest(coarse)), ("trained-on", "d" * 64))
    assert ("tuned", trained.digest) in pruned.inputs
    assert trained.digest == recorded_digest(tmp_path / "vanilla-fp32" / "checkpoint")
    tokens = json.loads((out / "baseline.json").read_text())["target_tokens"]
    assert tokens == 2 * json.loads((out / "card.json").read_text())["target_tokens"]


def test_fapm_never_changes_a_weight_that_is_zero(inputs: dict[str, Path], vanilla: Path, tmp_path: Path) -> None:
    base = tmp_path / "with-zeros"
    shutil.copytree(inputs["base"], base)
    tensors = weights(base)
    name, empty = (f"model.layers.0.mlp.{part}_proj.weight" for part in ("up", "gate"))
    tensors[name][:, :32] = 0
    tensors[empty].zero_()
    save_file(tensors, base / "model.safetensors", {"format": "pt"})
    (base / "checkpoint.json").unlink(missing_ok=True)
    _, out, _ = carry_out("fapm", settings(tmp_path), {"base": base, "vanilla": vanilla}, tmp_path)
    merged = weights(out / "checkpoint")
    assert not merged[name][:, :32].any() and bool(torch.isfinite(merged[name]).all())
    assert merged[name].any() and not merged[empty].any()


def test_two_pairs_alike_stay_two_rows(rewritten: dict[str, Path], tmp_path: Path) -> None:
    twins = [replace(TRAIN[0], id=f"twin-{n}") for n in range(2)]
    write_records(rewritten["data"] / "train.jsonl", twins)
    rewrite(rewritten, tmp_path)
    _, out, _ = carry_out("sdft", settings(tmp_path), rewritten, tmp_path)
    assert json.loads((out / "card.json").read_text())["examples"] == 2
