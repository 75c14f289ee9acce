"""The cost of a run: estimates that follow from the run file, actual figures beside them, and the comment with both."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from iar import cli
from iar.config import RunFile
from iar.methods.batching import TokenRow
from iar.methods.retelling import REGISTERS
from iar.records import (
    EvalItem,
    ItemScore,
    Look,
    ModelScores,
    Outcome,
    Reply,
    SuiteScore,
    to_json,
    write_json,
    write_records,
)
from iar.report.cost_table import cost_json, rows, titles
from iar.services.asked_suites import Suite, further_suites
from iar.services.cost import TEMPLATE_TOKENS, Estimate, estimate, pool_device
from iar.services.cost_actuals import actuals
from iar.services.engines import answering
from iar.services.reply_cache import Call, open_cache
from iar.services.run_files import load_run_file
from iar.services.telemetry import FlopShape, step_flops, training_flops
from iar.services.workload import Workload, workload
from iar.services.workspace import Manifest, Workspace, stored_files

ROOT = Path(__file__).parents[2]
SERVER = {"base_url": "http://localhost:1/v1", "prompt_price": 10_000, "completion_price": 20_000}
JUDGES = [SERVER | {"name": name, "model": f"judge-{name}"} for name in "abc"]
WORK = Workload(
    (1000.0,) * 10, (1000.0,) * 10, 60, 100, 20, 30, 35.0, 31.0,
    {"ifeval": Suite(40, 60.0), "mmlu": Suite(60, 80.0), "msbench": Suite(20, 40.0)}, True,
)  # fmt: skip


def run_file(**sections: Any) -> RunFile:
    return RunFile.model_validate({"run": {"name": "t"}, "documents": {"path": "examples/documents"}} | sections)


def test_retellings_are_trained_on_and_questions_over_two_documents_asked_in_the_test() -> None:
    plain = by_task(estimate(run_file(), WORK))
    more = by_task(estimate(run_file(), replace(WORK, retellings=(200.0, 300.0), cross=30)))
    epochs = run_file().inject.epochs
    assert more["inject"].tokens - plain["inject"].tokens == epochs * (500 + 2 * TEMPLATE_TOKENS)
    assert more["locked-test"].tokens == 2 * plain["locked-test"].tokens
    assert more["align"] == plain["align"]


def test_planned_retellings_and_crossings_are_part_of_the_workload(tmp_path: Path) -> None:
    (tmp_path / "mill.txt").write_text("The Mill\n\n" + "".join(f"Mill {n} turned {n * n} times. " for n in range(100)))
    by_llm: dict[str, Any] = {"teacher": SERVER | {"name": "t", "model": "m"}, "cross_questions": 7}
    by_llm |= {"augment": ["paraphrase", "relations"], "relations_per_document": 2}
    work = workload(run_file(documents={"path": str(tmp_path)}, qa_build=by_llm), None)
    assert work.cross == 7
    assert len(work.retellings) == 3 * len(REGISTERS) + 2  # about 600 tokens in parts of at most 300
    assert sum(work.retellings[:-2]) == pytest.approx(len(REGISTERS) * work.text_tokens)


def by_task(cost: Estimate) -> dict[str, Any]:
    return {one.task: one for one in cost.tasks}


def test_the_formula_is_that_of_the_trainings_own_meter() -> None:
    shape = FlopShape(1000, 500, 2, 8)
    row = TokenRow("r", "qa", tuple(range(10)), 4, 1, 1)
    assert step_flops(shape, [row, row]) == pytest.approx(training_flops(shape, 20, 2 * row.target_length, 10))


def test_tokens_follow_the_recipe_and_the_epochs() -> None:
    one = by_task(estimate(run_file(inject={"recipe": "1:0:1", "epochs": 2}, align={"epochs": 3}), WORK))
    # A continuation and an instruction of each of ten documents, with 30 tokens of template, twice.
    assert one["inject"].tokens == 2 * 10 * 2 * (1000 + 30)
    assert one["align"] == replace(one["vanilla"], task="align") and one["align"].tokens == 3 * 100 * (35 + 31 + 30)
    assert one["inject"].gpu_hours == pytest.approx(one["inject"].flops / (0.35 * 312e12) / 3600)


def test_a_larger_model_costs_more_and_a_better_gpu_less() -> None:
    def hours(**sections: Any) -> float:
        return sum(one.gpu_hours or 0.0 for one in estimate(run_file(**sections), WORK).tasks)

    large = {"model": {"source": "Qwen/Qwen3-8B"}}
    h100 = {"platform": {"pool": {"node_selector": {"gpu": "NVIDIA-H100-80GB-HBM3"}}}}
    assert hours(**large) > 20 * hours() > 0
    assert hours(**large, **h100) == pytest.approx(hours(**large) * 312 / 989)


def test_a_pool_without_a_known_gpu_has_no_gpu_hours_and_says_so() -> None:
    file = run_file(platform={"pool": {"node_selector": {}}})
    cost = estimate(file, WORK)

    assert pool_device(file) == ("any node", None) and cost_json(cost, {})["total"]["gpu_hours"] is None
    assert cost.assumptions[0].startswith("GPU-hours are unknown: platform.pool.node_selector names no GPU")


def test_the_audit_of_the_judges_is_paid_once_and_by_each_server() -> None:
    paid = [
        by_task(estimate(run_file(evaluate={"judges": judges}), WORK))
        for judges in ([JUDGES[0], "rule:exact", "rule:token-f1"], [*JUDGES[:2], "rule:exact"])
    ]
    one, two = ({name: found[name].llm_tokens for name in found if name.startswith("judge-eval")} for found in paid)
    others = [two[name] / one[name] for name in one if name != "judge-eval-references"]
    assert set(map(round, others)) == {2} and two["judge-eval-references"] == 2 * one["judge-eval-references"]
    a_model = one["judge-eval-candidates-1"] / 12
    assert one["judge-eval-references"] > 3 * a_model + 800 * 100


def test_only_servers_cost_tokens_and_the_third_judge_counts_by_how_often_it_is_called() -> None:
    rules = by_task(estimate(run_file(), WORK))
    assert {one.llm_tokens for one in rules.values()} == {0}

    paid = by_task(estimate(run_file(qa_build={"teacher": SERVER | {"name": "t", "model": "m"}}), WORK))
    assert paid["qa-build"].llm_tokens > WORK.text_tokens and paid["locked-test"].llm_tokens == 0
    two, three = (
        by_task(estimate(run_file(evaluate={"judges": judges}), WORK))["judge-eval-candidates-1"].llm_tokens
        for judges in ([*JUDGES[:2], "rule:exact"], JUDGES)
    )
    assert three == pytest.approx(two * 2.3 / 2, rel=1e-3)


def test_shards_share_the_candidates_and_recipes_have_tasks_of_their_own() -> None:
    platform, recipes = {"candidate_shards": 5}, ["vanilla-sft", "cpt-sft", "budget-match", "sdft", "fapm"]
    one = by_task(estimate(run_file(platform=platform, baselines={"recipes": recipes}), WORK))
    whole = by_task(estimate(run_file(), WORK))["judge-eval-candidates-1"].tokens
    shards = [one[f"judge-eval-candidates-{shard}"].tokens for shard in range(1, 6)]
    assert sum(shards) == whole and [12 * tokens // whole for tokens in shards] == [3, 3, 2, 2, 2]
    assert one["baseline-budget-match"].tokens == one["inject"].tokens + one["align"].tokens
    assert one["baseline-fapm"].tokens == one["baseline-sdft"].tokens == one["align"].tokens
    assert one["sdft-rewrite"].tokens == WORK.train * 256 and one["sdft-rewrite"].llm_tokens == 0
    assert "baseline-vanilla-sft" not in one


def test_fisher_weights_and_pruning_have_rows_of_their_own_and_pruning_spares_replies() -> None:
    plain = by_task(estimate(run_file(), WORK))
    weighed = by_task(estimate(run_file(recover={"fisher_weight": [0.5]}), WORK))
    pruned = by_task(estimate(run_file(select={"prune_to": 3}), WORK))

    assert not {"fisher", "prune"} & plain.keys()
    # The gradients of 64 questions and as many instructions.
    assert weighed["fisher"].tokens == 128 * (35 + 31 + TEMPLATE_TOKENS)
    assert weighed["fisher"].gpu_hours > 0 and weighed["fisher"].llm_tokens == 0
    whole, few = (one["judge-eval-candidates-1"].tokens for one in (plain, pruned))
    assert 4 * few == whole and pruned["prune"].tokens == 0
    assert pruned["judge-eval-references"] == plain["judge-eval-references"]
    more = by_task(estimate(run_file(select={"prune_to": 3}, evaluate={"bpb_bytes": 40_000}), WORK))
    assert more["prune"].flops == 2 * pruned["prune"].flops > 0


def test_suites_of_the_user_are_asked_at_validation_and_judged_where_a_judge_verifies(
    tmp_path: Path,
) -> None:
    for name, verifier, more in (("own", "judge", {"reference": "Velm"}), ("form", "regex", {"pattern": "V"})):
        rows = [{"prompt": "x" * 80, **more} for _ in range(5)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        suite = {"name": name, "prompts": f"{name}.jsonl", "verifier": verifier, "max_tokens": 9}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(suite))
    places = [str(tmp_path / f"{name}.yaml") for name in ("own", "form")]
    file = run_file(evaluate={"suites": places, "lm_eval": ["gsm8k"], "judges": JUDGES})
    further = further_suites(file)
    assert further[f"evaluate.suites: {places[0]}"] == Suite(5, 20.0, 9, 20.0)
    assert further[f"evaluate.suites: {places[1]}"] == Suite(5, 20.0, 9)
    plain, more_asked = (estimate(file, replace(WORK, further=one)) for one in ({}, further))
    before, after = by_task(plain), by_task(more_asked)
    for task, models in (("judge-eval-references", 3), ("judge-eval-candidates-1", 12)):
        assert after[task].tokens - before[task].tokens == models * 2 * 5 * 9
        votes = models * 5 * 2.3
        assert after[task].llm_tokens - before[task].llm_tokens > votes * (2 * 20 + 9)
        assert after[task].gpu_hours > before[task].gpu_hours
    assert after["locked-test"] == before["locked-test"]  # taken over from validation
    assert any(line.startswith("evaluate.lm_eval: gsm8k: ") and "left out" in line for line in more_asked.assumptions)
    limited = run_file(evaluate={"lm_eval": ["gsm8k"], "lm_eval_limit": 50})
    assert further_suites(limited) == {"evaluate.lm_eval: gsm8k": Suite(50, 100.0, 256)}


def test_the_diagnostics_are_part_of_the_locked_test(tmp_path: Path) -> None:
    teacher = {"qa_build": {"teacher": SERVER | {"name": "t", "model": "m"}}, "evaluate": {"judges": JUDGES}}
    diagnose = {"enabled": True, "passages": 3, "continuations": 50}
    plain, asked = (by_task(estimate(run_file(**teacher, **more), WORK)) for more in ({}, {"diagnose": diagnose}))
    limit = run_file().evaluate.domain_max_tokens
    # Two models: each test question with passages and in other words, 50 texts to continue, 15 probes.
    more_tokens = asked["locked-test"].tokens - plain["locked-test"].tokens
    assert more_tokens == 2 * (2 * WORK.test * limit + 50 * 32 + 15 * 64)
    bought = asked["locked-test"].llm_tokens - plain["locked-test"].llm_tokens
    # The votes are on half as many models as the test has, twice the questions; the teacher is paid besides.
    attacks = by_task(estimate(run_file(**teacher), replace(WORK, test=0)))["locked-test"].llm_tokens
    assert bought > plain["locked-test"].llm_tokens - attacks + WORK.test * 2 * WORK.question_tokens
    assert asked["locked-test"].gpu_hours > plain["locked-test"].gpu_hours
    assert {name: one for name, one in asked.items() if name != "locked-test"} == {
        name: one for name, one in plain.items() if name != "locked-test"
    }
    unseen = by_task(estimate(run_file(**teacher, diagnose=diagnose | {"unseen": "x"}), WORK))["locked-test"]
    assert unseen.tokens - asked["locked-test"].tokens == 2 * 50 * 32


def test_documents_are_counted_and_the_guess_of_the_questions_is_named() -> None:
    work = workload(run_file(inject={"unit": "chunk"}), None)

    assert (len(work.documents), work.counted) == (24, False) and len(work.units) == work.chunks
    assert work.train + work.validation + work.test == round(work.chunks * 8 * 0.92)
    assert any("a guess until qa-build is done" in line for line in estimate(run_file(), work).assumptions)


def publish(file: RunFile, task: str, stage: str, work: Path, metrics: dict[str, float]) -> None:
    """Publish what lies in `work` as a finished task that took an hour."""
    workspace = Workspace.of(file)
    folder = workspace.work(task, "k" * 64)
    folder.parent.mkdir(parents=True, exist_ok=True)
    work.rename(folder)
    workspace.publish(Manifest(task, stage, "k" * 64, {}, "c", 1000.0, 3600.0, stored_files(folder), Outcome({}, "")))
    marker = workspace.run(file.run_id) / "tasks" / f"{task}.json"
    marker.parent.mkdir(parents=True, exist_ok=True)
    facts = {"task": task, "stage": stage, "ref": str(workspace.ref(task, "k" * 64)), "reused": False}
    write_json(marker, facts | {"seconds": 3600.0, "metrics": metrics})


@pytest.fixture
def finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFile:
    """A run of which a training and an evaluation are done."""
    monkeypatch.delenv("IAR_STATE", raising=False)
    # A training pays for its oracle, not for the judges of others.
    settings = {"run": {"name": "t", "state": str(tmp_path / "state")}, "oracle": {"judge": JUDGES[0]}}
    file = run_file(**settings, platform={"backend": "kubeflow", "processes": 8})
    (trained := tmp_path / "trained").mkdir()
    (trained / "steps.jsonl").write_text('{"tokens": 600, "target_tokens": 300}\n' * 2)
    publish(file, "inject", "inject", trained, {"mfu": 0.4})
    model = tmp_path / "tested" / "theta_0"
    model.mkdir(parents=True)
    items = [EvalItem("q", "domain", "Q", 9, {}), EvalItem("m", "mmlu", "M", 9, {})]
    write_records(model / "replies.jsonl", [Reply(item.id, "r", 7, False) for item in items])
    write_records(model / "items.jsonl", [ItemScore("theta_0", item.suite, item.id, 1.0, "") for item in items])
    suites = tuple(
        SuiteScore(name, 1.0, 1.0, 1.0, 1, 0, {"reused_share": share})
        for name, share in (("domain", 0.0), ("mmlu", 1.0))
    )
    write_json(model / "scores.json", to_json(ModelScores("theta_0", "test", "d", suites, 1.0, 1.0, 1.0, 1.0)))
    (asked := tmp_path / "tested" / "diagnostics" / "theta_0").mkdir(parents=True)
    write_records(asked / "replies.jsonl", [Reply("open_book-q", "r", 5, False)])
    publish(file, "locked-test", "locked_test", tmp_path / "tested", {})
    (written := tmp_path / "written").mkdir()
    write_records(written / "replies.jsonl", [Reply(f"q{number}", "r", 8, False) for number in range(3)])
    publish(file, "sdft-rewrite", "sdft_rewrite", written, {})
    (weighed := tmp_path / "weighed").mkdir()
    publish(file, "fisher", "fisher", weighed, {})
    with open_cache(tmp_path / "state" / "llm-cache") as cache:
        cache.put([Call("", name, "", "http://h", "{}", "{}", True, 90, 10, 1.0) for name in ("judge-a", "another")])
        cache._connection.execute("UPDATE calls SET stored = 2000.0")
        cache._connection.commit()
    return file


def test_what_a_finished_task_took_stands_beside_its_estimate(finished: RunFile) -> None:
    done = actuals(finished)

    assert (done["inject"].tokens, done["inject"].gpu_hours, done["inject"].llm_tokens) == (1200, 8.0, 100)
    # The reply that was taken over from validation is not counted again.
    # That of the diagnostics is.
    assert (done["locked-test"].tokens, done["locked-test"].gpu_hours) == (7 + 5, 1.0)
    assert (done["sdft-rewrite"].tokens, done["sdft-rewrite"].gpu_hours) == (24, 1.0)
    assert (done["fisher"].tokens, done["fisher"].gpu_hours) == (0, 1.0)
    cost = estimate(finished, WORK)
    lines = {line[0]: line for line in rows(cost, done)}
    assert {len(line) for line in lines.values()} == {len(titles(done))}
    assert lines["inject"][5:] == ["1.00 h", "1,200", "8", "100 for 1.10"] and lines["align"][5:] == ["", "", "", ""]
    told = {one["task"]: one for one in cost_json(cost, done)["tasks"]}
    assert told["inject"]["actual"]["seconds"] == 3600.0 and told["align"]["actual"] is None


def test_what_private_suites_took_counts_with_the_task_that_asked_them(finished: RunFile, tmp_path: Path) -> None:
    state = tmp_path / "state"
    (model := tmp_path / "judged" / "theta_0").mkdir(parents=True)
    write_records(model / "replies.jsonl", [Reply("q", "r", 7, False)])
    write_records(model / "items.jsonl", [ItemScore("theta_0", "domain", "q", 1.0, "")])
    scores = ModelScores("theta_0", "validation", "d" * 64, (), 1.0, 1.0, 1.0, 1.0)
    write_json(model / "scores.json", to_json(scores))
    looks = [
        Look("theta_0", "mine", "validation", "s" * 64, 2, True, 1),
        Look("theta_0", "domain", "validation", "o", 1, False, 1),
    ]
    write_json(tmp_path / "judged" / "looks.json", [to_json(one) for one in looks])
    file = finished.model_copy(update={"evaluate": finished.evaluate.model_validate({"judges": JUDGES})})
    (told := state / "private" / ("s" * 16) / f"{'d' * 16}-{answering(file)[:16]}").mkdir(parents=True)
    write_records(told / "replies.jsonl", [Reply("mine-1", "r", 20, False), Reply("mine-2", "r", 3, False)])
    publish(file, "judge-eval-1", "judge_eval", tmp_path / "judged", {})
    with open_cache(state / "private" / "llm-cache", books=state / "llm-cache") as cache:
        cache.put([Call("", "judge-b", "", "http://h", "{}", "{}", True, 40, 10, 1.0)])
        cache._connection.execute("UPDATE calls SET stored = 2000.0")
        cache._connection.commit()

    done = actuals(file)["judge-eval-1"]

    # 100 tokens of the public cache, and those of the private one.
    assert (done.tokens, done.llm_tokens, done.llm_money) == (7 + 20 + 3, 100 + 50, pytest.approx(1.1 + 0.6))


def test_what_shards_bought_at_once_is_counted_once_with_the_task_that_gathers_them(
    finished: RunFile, tmp_path: Path
) -> None:
    teacher = {"name": "t", "base_url": "http://h/v1", "model": "another"}
    file = finished.model_copy(update={"qa_build": finished.qa_build.model_validate({"teacher": teacher, "shards": 2})})
    for task, stage in (("qa-build-1", "qa_shard"), ("qa-build-2", "qa_shard"), ("qa-build", "qa_build")):
        (made := tmp_path / task).mkdir()
        publish(file, task, stage, made, {})
    done = actuals(file)
    assert [done[task].llm_tokens for task in ("qa-build-1", "qa-build-2", "qa-build")] == [0, 0, 100]


def test_the_command_prints_a_table_and_json_and_names_what_it_cannot_see(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.yaml").write_text(yaml.safe_dump({"run": {"name": "t"}, "documents": {"path": "/nowhere"}}))
    arguments = ["cost", str(tmp_path / "t.yaml"), "--state", str(tmp_path / "state")]

    assert cli.call(arguments) == 2
    refused = capsys.readouterr().err
    assert refused.startswith("error: documents.path: /nowhere is not a folder") and refused.count("\n") == 1
    assert refused.endswith("for an estimate here, name a copy with --documents FOLDER\n")
    (empty := tmp_path / "empty").mkdir()
    assert cli.call([*arguments, "--documents", str(empty)]) == 2
    assert capsys.readouterr().err.startswith(f"error: --documents: {empty} has no readable document")
    assert cli.call([*arguments, "--documents", str(tmp_path / "none")]) == 2
    assert "'--documents': dir " in capsys.readouterr().err
    arguments += ["--documents", "examples/documents"]
    assert cli.call(arguments) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].split() == ["Task", "Tokens", "PFLOP", "GPU-hours", "LLM", "tokens"]
    assert any(line.startswith("About ") and "NVIDIA-A100-SXM4-40GB" in line for line in printed)
    assert cli.call([*arguments, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["peak_flops"] == 312e12 and told["tasks"][1]["task"] == "inject" and told["assumptions"]
    assert cli.call([*arguments, "--set", "model.source=org/unknown"]) == 2
    assert "nothing on this machine tells the size of org/unknown" in capsys.readouterr().err


def test_a_run_file_of_a_cluster_is_estimated_from_a_copy_and_stays_the_same_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = ROOT / "examples" / "documents"
    monkeypatch.chdir(tmp_path)  # a repository of run files alone
    path, note = ROOT / "manifests" / "overlays" / "a100" / "run.yaml", tmp_path / "comment.md"
    run_id = load_run_file(path).run_id

    command = ["compile", str(path), "--kubernetes", "-o", "out.yaml", "--comment", str(note)]
    assert cli.call(command) == 0
    assert "name a copy with --documents FOLDER" in note.read_text()
    capsys.readouterr()
    assert cli.call([*command, "--documents", str(copy)]) == 0
    capsys.readouterr()
    text = note.read_text()
    assert f"### `{run_id}`" in text and "**Cost:** About " in text
    for line in (
        "evaluate.msbench: examples/probes/msbench.jsonl is neither a file here nor a hub id of known size, left out",
        "model.source: /state/models/Llama-3.2-3B-Instruct is not here; it has the sizes of meta-llama/Llama-3.2-3B-",
    ):
        assert f"- {line}" in text
    (version,) = [one for one in yaml.safe_load_all((tmp_path / "out.yaml").read_text()) if "Version" in one["kind"]]
    assert run_id in version["spec"]["description"] and str(copy) not in (tmp_path / "out.yaml").read_text()

    assert cli.call(["cost", str(path), "--documents", str(copy), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["run_id"] == run_id and told["total"]["gpu_hours"] > 0
    assert cli.call(["submit", str(path), "--documents", str(copy), "--host", "http://127.0.0.1:9"]) == 4
    said = capsys.readouterr().err
    assert "About " in said and "not estimated" not in said
    assert cli.call(["compile", str(path), "-o", "out.yaml", "--documents", str(copy)]) == 2
    assert capsys.readouterr().err == "error: --documents: is for a comment; give --comment with it\n"
