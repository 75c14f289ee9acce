"""Stage keys: a change in what a stage depends on changes its key, any other change does not."""

import ast
import os
from pathlib import Path
from typing import Any

import pytest

from iar.config import RunFile
from iar.errors import PermanentError
from iar.services import code_digests
from iar.services.code_digests import PACKAGE, code_digest, imported_modules
from iar.services.hub_commits import PLACES
from iar.services.stage_keys import RECIPES, STAGES, digest_place, key_parts

INPUTS = {
    "inject": {"data": "1", "base": "2"},
    "align": {"data": "1", "base": "2"},
    "fisher": {"data": "1", "base": "2", "tuned": "3"},
    "merge_candidate": {"base": "2", "tuned": "3"},
    "sdft_rewrite": {"data": "1", "base": "2"},
    "judge_eval": {"data": "1", "base": "2", "candidates": "4"},
    "prune": {"data": "1", "base": "2", "candidates_1": "4"},
    "selector": {"data": "1", "references": "5", "candidates_1": "4", "scores_1": "6"},
}


NAMES = (b"mill.txt", "m\u00fchle.txt".encode(), b"m\xfchle.txt", b"\xed\xa0\xbd.txt", b"m\xc3\xfc.txt", b"line\nend")


def test_any_name_that_the_system_takes_has_a_digest_of_its_own(tmp_path: Path) -> None:
    digests = set[str]()
    for number, name in enumerate(NAMES):
        for folder in (tmp_path / f"{number}", tmp_path / f"deep{number}" / os.fsdecode(name)):
            folder.mkdir(parents=True)
            (folder / os.fsdecode(name)).write_text("The Mill")
            digests.add(digest_place(str(tmp_path / folder.relative_to(tmp_path).parts[0])))
    assert len(digests) == 2 * len(NAMES)


def run_file(tmp_path: Path, **sections: Any) -> RunFile:
    return RunFile.model_validate({"run": {"name": "t"}, "documents": {"path": str(tmp_path)}} | sections)


def changed(tmp_path: Path, **sections: Any) -> set[str]:
    """The stages, of those with few inputs, whose key differs from that of the plain run file."""
    before, after = run_file(tmp_path), run_file(tmp_path, **sections)
    return {
        stage for stage, inputs in INPUTS.items() if key_parts(stage, before, inputs) != key_parts(stage, after, inputs)
    }


def test_a_setting_reaches_only_the_stages_that_read_it(tmp_path: Path) -> None:
    assert changed(tmp_path, inject={"epochs": 9}) == {"inject"}
    assert changed(tmp_path, align={"epochs": 9}) == {"align"}
    assert changed(tmp_path, recover={"slerp_t": [0.1]}) >= {"merge_candidate"}
    assert changed(tmp_path, model={"system_turn": "Be brief."}) == {
        "inject", "align", "fisher", "sdft_rewrite", "judge_eval"
    }  # fmt: skip
    assert changed(tmp_path, recover={"fisher_weight": [0.5]}) == {"merge_candidate", "selector"}
    assert changed(tmp_path, select={"preference": "general"}) == {"selector"}
    assert changed(tmp_path, select={"prune_to": 4}) == {"prune", "selector"}
    assert changed(tmp_path, register={"alias": "other"}) == set()
    assert changed(tmp_path, run={"name": "t", "state": "elsewhere"}) == set()


BASELINE_INPUTS = {recipe: {role: role for role in spec.needs} for recipe, spec in RECIPES.items()}


def changed_recipes(tmp_path: Path, **sections: Any) -> set[str]:
    before, after = run_file(tmp_path), run_file(tmp_path, **sections)
    return {
        recipe
        for recipe, inputs in BASELINE_INPUTS.items()
        if key_parts("baseline", before, inputs, recipe=recipe) != key_parts("baseline", after, inputs, recipe=recipe)
    }


def test_a_baselines_setting_reaches_only_its_own_recipe(tmp_path: Path) -> None:
    assert changed_recipes(tmp_path, baselines={"recipes": ["lora", "fapm"]}) == set()
    assert changed_recipes(tmp_path, baselines={"lora_rank": 4}) == {"lora"}
    assert changed_recipes(tmp_path, baselines={"replay_share": 0.2}) == {"replay"}
    assert changed_recipes(tmp_path, baselines={"sdft_max_tokens": 9}) == set()
    assert changed(tmp_path, baselines={"sdft_max_tokens": 9}) == {"sdft_rewrite"}
    assert changed_recipes(tmp_path, baselines={"fapm_keep": 0.2}) == {"fapm"}
    assert changed_recipes(tmp_path, baselines={"cpt_epochs": 9}) == {"cpt-sft"}
    assert changed_recipes(tmp_path, inject={"epochs": 9}) == {"cpt-sft"}
    assert changed_recipes(tmp_path, align={"epochs": 9}) == set(RECIPES)


def test_a_place_that_is_not_given_is_not_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings, inputs = run_file(tmp_path), BASELINE_INPUTS["cpt-sft"]
    before = key_parts("baseline", settings, inputs, recipe="cpt-sft")
    (tmp_path / "notes.txt").write_text("of nobody's concern")
    assert key_parts("baseline", settings, inputs, recipe="cpt-sft") == before


def test_recipes_with_the_same_inputs_have_different_keys(tmp_path: Path) -> None:
    settings, inputs = run_file(tmp_path), {"data": "1", "base": "2"}
    keys = [key_parts("baseline", settings, inputs, recipe=recipe) for recipe in ("lora", "replay", "cpt-sft")]
    assert keys[0] != keys[1] != keys[2] != keys[0]


def test_the_bytes_of_the_replay_data_are_part_of_its_key(tmp_path: Path) -> None:
    data = tmp_path / "replay.jsonl"
    data.write_text("one")
    settings = run_file(tmp_path, baselines={"replay_data": str(data)})
    first = key_parts("baseline", settings, BASELINE_INPUTS["replay"], recipe="replay")
    data.write_text("two")
    assert key_parts("baseline", settings, BASELINE_INPUTS["replay"], recipe="replay") != first


def test_a_recipe_wired_wrongly_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        PermanentError, match=r"stage baseline: inputs missing: \['data', 'vanilla'\], unknown: \['tuned'\]"
    ):
        key_parts("baseline", run_file(tmp_path), {"base": "1", "tuned": "2"}, recipe="fapm")


def test_the_bytes_of_documents_are_part_of_the_key(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("one")
    first = key_parts("qa_build", run_file(tmp_path), {})
    (tmp_path / "a.md").write_text("two")
    assert key_parts("qa_build", run_file(tmp_path), {}) != first


def test_the_bytes_of_a_benchmark_file_are_part_of_the_key(tmp_path: Path) -> None:
    probes = tmp_path / "mmlu.jsonl"
    probes.write_text("one")
    settings = run_file(tmp_path, evaluate={"mmlu": str(probes)})
    first = key_parts("judge_eval", settings, INPUTS["judge_eval"])
    probes.write_text("two")
    assert key_parts("judge_eval", settings, INPUTS["judge_eval"]) != first


def test_the_bytes_of_every_evaluation_are_part_of_the_key_of_the_data(tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text("one")
    settings = run_file(tmp_path, qa_build={"evals": [str(tmp_path / "mine.jsonl")]})
    first = key_parts("qa_build", settings, {})
    (tmp_path / "mine.jsonl").write_text("two")
    assert key_parts("qa_build", settings, {})["files"]["qa_build.evals"] != first["files"]["qa_build.evals"]
    assert key_parts("inject", settings, INPUTS["inject"]) == key_parts("inject", run_file(tmp_path), INPUTS["inject"])


@pytest.mark.parametrize("name", [*STAGES, *RECIPES])
def test_what_may_be_on_the_hub_counts_by_its_commit_wherever_its_bytes_count(name: str) -> None:
    spec = RECIPES[name] if name in RECIPES else STAGES[name]
    assert set(spec.hub) == set(spec.files) & set(PLACES)


def test_a_shard_is_part_of_the_key_only_where_parts_differ(tmp_path: Path) -> None:
    settings = run_file(tmp_path)
    merge = [key_parts("merge_candidate", settings, INPUTS["merge_candidate"], shard, 2) for shard in (1, 2)]
    judge = [key_parts("judge_eval", settings, INPUTS["judge_eval"], shard, 2) for shard in (1, 2)]
    assert merge[0] != merge[1]
    assert judge[0] == judge[1]


def test_the_number_of_shards_changes_no_dataset_and_no_run(tmp_path: Path) -> None:
    one, three = run_file(tmp_path), run_file(tmp_path, qa_build={"shards": 3})
    assert one.digest == three.digest
    assert key_parts("qa_build", one, {}) == key_parts("qa_build", three, {})
    shards = [key_parts("qa_shard", three, {"documents": "1"}, shard, 3) for shard in (1, 2)]
    assert shards[0] != shards[1]


def test_wrong_wiring_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PermanentError, match=r"stage inject: inputs missing: \['base'\], unknown: \['bass'\]"):
        key_parts("inject", run_file(tmp_path), {"data": "1", "bass": "2"})


def test_imports_inside_functions_count_and_those_for_type_checkers_do_not() -> None:
    source = """
from typing import TYPE_CHECKING
from iar.methods import digest
if TYPE_CHECKING:
    from iar.services.registry import Registry
def f():
    from iar.services.trainer import train
    import iar.records
"""
    found = set(imported_modules(source))
    assert {"methods.digest", "services.trainer", "records"} <= found
    assert "services.registry" not in found


def test_an_edit_reaches_the_stages_that_import_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {
        "stages/one.py": "def run():\n    from iar.methods.used import f\n",
        "stages/two.py": "import iar.services.registry\n",
        "methods/used.py": "from iar import records\n",
        "services/registry.py": "",
        "report/html.py": "",
        "records.py": "",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(code_digests, "PACKAGE", tmp_path)

    def digests() -> list[str]:
        code_digest.cache_clear()
        return [code_digest("one"), code_digest("two")]

    first = digests()
    (tmp_path / "report/html.py").write_text("x = 1")
    (tmp_path / "services/registry.py").write_text("x = 1")
    assert digests() == first
    (tmp_path / "records.py").write_text("x = 1")
    second = digests()
    assert second[0] != first[0] and second[1] == first[1]
    code_digest.cache_clear()


@pytest.mark.parametrize("stage", [stage for stage in STAGES if (PACKAGE / "stages" / f"{stage}.py").exists()])
def test_every_section_a_stage_reads_is_declared(stage: str) -> None:
    tree = ast.parse((PACKAGE / "stages" / f"{stage}.py").read_text(encoding="utf-8"))
    read = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "run_file"
    }
    spec = STAGES[stage]
    places = [*spec.settings, *(place for one in spec.recipes.values() for place in one.settings)]
    declared = {place.split(".")[0] for place in places}
    assert spec.each_run or read & set(RunFile.model_fields) <= declared


def test_an_oracle_reaches_only_the_trainings_that_it_watches_and_off_it_is_not_there(tmp_path: Path) -> None:
    judge = {"name": "o", "base_url": "http://127.0.0.1:1/v1", "model": "m"}
    assert changed(tmp_path, oracle={"prompts": 300}) == set()
    assert run_file(tmp_path).canonical() == run_file(tmp_path, oracle={"prompts": 300}).canonical()
    assert changed(tmp_path, oracle={"judge": "rule:exact"}) == {"align"}
    assert changed(tmp_path, oracle={"judge": judge, "inject": True}) == {"align", "inject"}
    assert changed_recipes(tmp_path, oracle={"judge": judge, "inject": True}) == set()
    # How the server is reached decides nothing.
    reached = [
        run_file(tmp_path, oracle={"judge": judge | {"api_key_env": key, "concurrency": number}})
        for key, number in (("A", 1), ("B", 2))
    ]
    assert reached[0].digest == reached[1].digest
    assert key_parts("align", reached[0], INPUTS["align"]) == key_parts("align", reached[1], INPUTS["align"])
