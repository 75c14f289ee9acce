"""Run files: what is accepted, and the one line that says what is wrong, where and how to put it right."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iar.config import Endpoint, RunFile
from iar.errors import UserError
from iar.services.run_files import load_run_file

REPOSITORY = Path(__file__).parents[2]
BASE = "run:\n  name: x\ndocuments:\n  path: docs\n"


def load(folder: Path, text: str, *overrides: str) -> RunFile:
    path = folder / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return load_run_file(path, overrides)


def errors_of(folder: Path, text: str, *overrides: str) -> list[str]:
    with pytest.raises(UserError) as caught:
        load(folder, text, *overrides)
    return [line.removeprefix(str(folder) + "/") for line in str(caught.value).splitlines()]


def error_of(folder: Path, text: str, *overrides: str) -> str:
    (line,) = errors_of(folder, text, *overrides)
    return line


@pytest.mark.parametrize("path", sorted((REPOSITORY / "pipelines" / "runs").glob("*.yaml")), ids=lambda path: path.name)
def test_shipped_run_files_load(path: Path) -> None:
    assert load_run_file(path).run.name == path.stem.replace(".", "-")


def test_left_out_and_empty_sections_take_their_defaults(tmp_path: Path) -> None:
    assert load(tmp_path, BASE) == load(tmp_path, BASE + "inject:\n#  epochs: 3\n")


def test_unquoted_recipe_is_text_and_not_a_base_60_number(tmp_path: Path) -> None:
    assert load(tmp_path, BASE + "inject:\n  recipe: 1:1:2\n").inject.weights == (1, 1, 2)


@pytest.mark.parametrize("text", ["1e-4", "1E-4", "1.0e-4", "0.0001", ".0001", "+1e-4"])
def test_numbers_may_be_written_with_an_exponent(tmp_path: Path, text: str) -> None:
    assert load(tmp_path, BASE + f"inject:\n  learning_rate: {text}\n").inject.learning_rate == 1e-4


def test_a_whole_number_may_stand_for_a_float_but_not_the_other_way(tmp_path: Path) -> None:
    assert load(tmp_path, BASE + "select:\n  tolerance_points: 1\n").select.tolerance_points == 1.0
    line = error_of(tmp_path, BASE + "inject:\n  epochs: 3.0\n")
    assert line == "run.yaml:6: inject.epochs: 3.0 is not a whole number; write a number such as 3"


@pytest.mark.parametrize("word", ["no", "on", "2026-01-01", "0x1f", "~x"])
def test_words_that_yaml_1_1_converts_stay_text(tmp_path: Path, word: str) -> None:
    assert load(tmp_path, BASE + f"qa_build:\n  split_salt: {word}\n").qa_build.split_salt == word


def test_aliases_are_followed(tmp_path: Path) -> None:
    text = BASE + "inject:\n  epochs: &n 5\nalign:\n  epochs: *n\n"
    assert load(tmp_path, text).align.epochs == 5


def test_a_server_may_stand_for_the_offline_teacher(tmp_path: Path) -> None:
    run_file = load(tmp_path, BASE + "qa_build:\n  teacher: {name: t, base_url: http://h/v1, model: m}\n")
    assert isinstance(run_file.qa_build.teacher, Endpoint)
    assert RunFile.model_validate_json(run_file.canonical()) == run_file


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "inject:\n  recipe: 0:0:0\n",
            "run.yaml:6: inject.recipe: '0:0:0' must be three whole numbers that are not all zero, such as 1:1:2",
        ),
        (
            "inject:\n  epochs: three\n",
            "run.yaml:6: inject.epochs: 'three' is not a whole number; write a number such as 3",
        ),
        (
            "inject:\n  epochs: true\n",
            "run.yaml:6: inject.epochs: true is not a whole number; write a number such as 3",
        ),
        (
            "inject:\n  learning_rate: fast\n",
            "run.yaml:6: inject.learning_rate: 'fast' is not a number; write a number such as 5e-05",
        ),
        (
            "inject:\n  learning_rate: .inf\n",
            "run.yaml:6: inject.learning_rate: inf is not a number; write a number such as 5e-05",
        ),
        (
            "inject:\n  batch_size: 0\n",
            "run.yaml:6: inject.batch_size: 0 is out of range; it must be greater than 0 "
            "(rows an optimizer step, over all accumulation)",
        ),
        ("evaluate:\n  ifeval: 12\n", 'run.yaml:6: evaluate.ifeval: 12 is not text; put it in quotes: "12"'),
        (
            "recover:\n  slerp_t: [0.2, 0.20]\n",
            "run.yaml:6: recover.slerp_t: has a value twice; name each value once",
        ),
        (
            "recover:\n  ties_density: [0.3, x]\n",
            "run.yaml:6: recover.ties_density[1]: 'x' is not a number; write a number such as 0.3",
        ),
        (
            "evaluate:\n  judges: rule:exact\n",
            "run.yaml:6: evaluate.judges: 'rule:exact' is not a list; write the values in brackets: "
            "[rule:exact, rule:token-f1, rule:char-ngram]",
        ),
        ("evaluate:\n  judges: [rule:exact]\n", "run.yaml:6: evaluate.judges: 1 values; write at least 3"),
        (
            "evaluate:\n  judges: [rule:exact, rule:exact, rule:token-f1]\n",
            "run.yaml:6: evaluate.judges: names a judge twice; a panel needs three different judges, ",
        ),
        (
            "evaluate:\n  judges:\n    - rule:exact\n"
            "    - {name: a, base_url: http://one/v1, model: m, revision: '2', timeout_seconds: 9.0}\n"
            "    - {name: b, base_url: http://other/v1, model: m, revision: '2'}\n",
            "run.yaml:6: evaluate.judges: a and b are one model, m@2, with the same sampling: one reply would "
            "be two votes; take another model, or another temperature",
        ),
        (
            "platform:\n  backend: kubeflw\n",
            "run.yaml:6: platform.backend: 'kubeflw' is not one of 'local' or 'kubeflow'; did you mean 'kubeflow'?",
        ),
        (
            "qa_build:\n  teacher: ofline\n",
            "run.yaml:6: qa_build.teacher: 'ofline' is not one of 'offline', or a server (name, base_url, model); "
            "did you mean 'offline'?",
        ),
        (
            "qa_build:\n  validation_share: 0.5\n  test_share: 0.5\n",
            "run.yaml:5: qa_build: validation_share 0.5 + test_share 0.5 leaves nothing to train on; "
            "make their sum smaller than 1",
        ),
        (
            "register:\n  alias: latest\n",
            "run.yaml:6: register.alias: 'latest' names a version in MLflow, not an alias; write another name",
        ),
        ("register:\n  alias: v3\n", "run.yaml:6: register.alias: 'v3' names a version in MLflow, not an alias"),
        (
            "platform:\n  pool: {job: trainjob, priority_class: high}\n",
            "run.yaml:6: platform.pool: priority_class high has no place in a trainjob without a queue; name a queue, "
            "or set job to pytorchjob",
        ),
        ("inject: 5\n", "run.yaml:5: inject: 5 is not a section; write its keys below it, indented: "),
    ],
)
def test_a_wrong_value_is_named_with_line_key_and_fix(tmp_path: Path, text: str, line: str) -> None:
    assert error_of(tmp_path, BASE + text).startswith(line)


def test_an_unknown_key_gets_the_closest_one_and_all_valid_ones(tmp_path: Path) -> None:
    line = error_of(tmp_path, BASE + "select:\n  tolerance: 1\n")
    assert line == (
        "run.yaml:6: select.tolerance: unknown key; did you mean 'tolerance_points'? valid keys here: floors, "
        "preference, prune_to, tolerance_points"
    )


def test_an_api_key_in_a_run_file_is_refused_and_not_shown(tmp_path: Path) -> None:
    teacher = "{name: t, base_url: http://h, model: m, api_key: s3cret}"
    line = error_of(tmp_path, BASE + f"qa_build:\n  teacher: {teacher}\n")
    assert "qa_build.teacher.api_key: unknown key; did you mean 'api_key_env'?" in line
    assert "s3cret" not in line


def test_a_password_in_a_url_is_refused_and_not_shown(tmp_path: Path) -> None:
    url = "postgresql://iar:s3cret@host/db"
    for line in (
        error_of(tmp_path, BASE + f"register:\n  registry_url: {url}\n"),
        error_of(tmp_path, BASE, f"register.registry_url={url}"),
    ):
        assert "must not hold a password; set PGPASSWORD" in line
        assert "s3cret" not in line


@pytest.mark.parametrize("store", ["s3://AKIA:s3cret@bucket/x", "https://host/x", "s3://", "bucket", "s3://b/x"])
def test_a_store_that_is_no_place_in_s3_is_refused(tmp_path: Path, store: str) -> None:
    line = error_of(tmp_path, BASE, f"run.store={store}")
    assert "must be s3://bucket/prefix, the bucket of 3 to 63 lower case letters, digits, dots and dashes; keys" in line
    assert "s3cret" not in line


def test_missing_keys_are_named_where_they_belong(tmp_path: Path) -> None:
    assert errors_of(tmp_path, "run:\n  seed: 1\n") == [
        "run.yaml:1: run.name: missing; add 'name: ...': lower case letters, digits, dashes",
        "run.yaml:1: documents: missing section; add 'documents:' with 'path' below it",
    ]


def test_every_error_is_reported_in_the_order_of_lines(tmp_path: Path) -> None:
    lines = errors_of(tmp_path, BASE + "align:\n  epochs: x\ninject:\n  epoch: 3\n  epochs: y\n")
    assert [line.split(": ")[:2] for line in lines] == [
        ["run.yaml:6", "align.epochs"],
        ["run.yaml:8", "inject.epoch"],
        ["run.yaml:9", "inject.epochs"],
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "run.yaml: the run file is empty; copy pipelines/runs/demo.yaml and change it"),
        ("- a\n", "run.yaml:1: a run file is sections such as 'run:' and 'documents:'; see pipelines/runs/demo.yaml"),
        (BASE + "run:\n  name: y\n", "run.yaml:5: run: this key was already given; keep one of the two"),
        ("run:\n\tname: x\n", "run.yaml:2: not valid YAML: found character '\\t' that cannot start any token; "),
        (
            "run: x: y\n",
            "run.yaml:1: not valid YAML: mapping values are not allowed here; put text that holds ': ' in quotes",
        ),
        ("a: 1\n---\nb: 2\n", "run.yaml:2: not valid YAML: but found another document; a run file is one document"),
        (BASE + "inject: &a [*a]\n", "run.yaml:5: an alias (*name) repeats itself or expands too far"),
        (
            BASE + "inject: !!python/object:os.system x\n",
            "run.yaml:5: the tag 'tag:yaml.org,2002:python/object:os.system'",
        ),
        ("? [a]\n: 1\n", "run.yaml:1: a key must be a word, not a list or a section"),
    ],
)
def test_broken_yaml_is_named_with_its_line(tmp_path: Path, text: str, line: str) -> None:
    assert error_of(tmp_path, text).startswith(line)


def test_nested_aliases_cannot_expand_without_end(tmp_path: Path) -> None:
    layers = "".join(f"k{n}: &k{n} [{', '.join([f'*k{n - 1}'] * 10)}]\n" for n in range(1, 9))
    assert "expands too far" in error_of(tmp_path, f"k0: &k0 [1, 2]\n{layers}")


def test_overrides_change_one_value_and_the_run_identity(tmp_path: Path) -> None:
    run_file = load(tmp_path, BASE, "inject.epochs=2", "inject.learning_rate=1e-3", "evaluate={batch_size: 4}")
    assert (run_file.inject.epochs, run_file.inject.learning_rate, run_file.evaluate.batch_size) == (2, 1e-3, 4)
    assert run_file.run_id != load(tmp_path, BASE).run_id


def test_an_override_replaces_what_the_file_got_wrong(tmp_path: Path) -> None:
    assert load(tmp_path, BASE + "inject:\n  epochs: x\n", "inject.epochs=4").inject.epochs == 4


@pytest.mark.parametrize(
    ("override", "line"),
    [
        (
            "inject.epochs=x",
            "--set inject.epochs=x: inject.epochs: 'x' is not a whole number; write a number such as 3",
        ),
        ("inject", "--set inject: must be section.key=value, such as --set inject.epochs=2"),
        (".epochs=2", "--set .epochs=2: must be section.key=value, such as --set inject.epochs=2"),
        ("run.name.x=1", "--set run.name.x=1: run.name is no section but a value or a list; set run.name as a whole"),
        ("inject.epoch=2", "--set inject.epoch=2: inject.epoch: unknown key; did you mean 'epochs'?"),
        ("inject.epochs=[", "--set inject.epochs=[: not valid YAML: "),
        ("model.source=", "--set model.source=: model.source: nothing is not text; write one value"),
    ],
)
def test_a_wrong_override_is_named_as_it_was_given(tmp_path: Path, override: str, line: str) -> None:
    assert error_of(tmp_path, BASE, override).startswith(line)


def test_a_missing_file_names_the_closest_one(tmp_path: Path) -> None:
    (tmp_path / "demo.yaml").write_text(BASE)
    with pytest.raises(UserError, match=r"dmo\.yaml: no such run file; did you mean .*/demo\.yaml\?"):
        load_run_file(tmp_path / "dmo.yaml")
    with pytest.raises(UserError, match=r"is a folder, not a run file; .* has demo\.yaml"):
        load_run_file(tmp_path)


def test_a_file_that_is_no_text_says_at_which_byte(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_bytes(BASE.encode() + b"\xff")
    with pytest.raises(UserError, match="not UTF-8 text at byte 39; save the file as UTF-8"):
        load_run_file(tmp_path / "run.yaml")


@given(st.text(max_size=200))
def test_any_text_is_a_run_file_or_a_user_error(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    folder = tmp_path_factory.getbasetemp()
    try:
        load(folder, text.replace("\r", ""))
    except UserError as error:
        assert str(error).startswith(str(folder / "run.yaml"))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(sorted(RunFile.model_fields)), VALUES)
def test_any_value_of_any_section_loads_or_names_its_place(
    tmp_path_factory: pytest.TempPathFactory, section: str, value: object
) -> None:
    import yaml

    data = {"run": {"name": "x"}, "documents": {"path": "docs"}} | {section: value}
    try:
        load(tmp_path_factory.getbasetemp(), yaml.safe_dump(data, allow_unicode=True))
    except UserError as error:
        assert all(".yaml:" in line and section in line for line in str(error).splitlines() if line.strip())


@pytest.mark.parametrize("override", ["inject.epochs=100000000000", "run.seed=10000000000", "align.learning_rate=3"])
def test_a_slip_of_the_hand_is_out_of_range(tmp_path: Path, override: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("run: {name: x}\ndocuments: {path: docs}\n")
    with pytest.raises(UserError, match=rf"--set {override}: .* is out of range; it must be"):
        load_run_file(path, [override])


def test_a_section_that_only_an_override_names_is_blamed_on_it(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("run: {name: x}\ndocuments: {path: docs}\n")
    with pytest.raises(UserError, match=r"^--set injekt\.epochs=3: injekt"):
        load_run_file(path, ["injekt.epochs=3"])
    with pytest.raises(UserError, match=r"^--set qa_build\.test_share=1: qa_build"):
        load_run_file(path, ["qa_build.test_share=1"])


def test_how_a_server_is_called_is_no_part_of_the_run_and_what_it_is_asked_is(tmp_path: Path) -> None:
    def run_id(teacher: str, judge: str = "") -> str:
        server = "{name: t, base_url: http://h/v1, model: m%s}"
        judges = f"evaluate:\n  judges: [rule:exact, rule:token-f1, {server % judge}]\n"
        return load(tmp_path, BASE + f"qa_build:\n  teacher: {server % teacher}\n{judges}").run_id

    plain = run_id("")
    assert plain == run_id(
        ", replicas: [http://i/v1], concurrency: 64, timeout_seconds: 9, max_attempts: 2, api_key_env: K"
    )
    assert plain == run_id(
        ", budget_calls: 9", ", budget_tokens: 9, prompt_price: 1, completion_price: 2, budget_money: 3"
    )
    changes = (", revision: r", ", temperature: 0.5", ", top_p: 0.9", ", max_tokens: 7")
    assert len({plain, *map(run_id, changes), *(run_id("", change) for change in changes)}) == 9


def test_a_budget_of_money_needs_a_price(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"run.yaml:\d+: qa_build.teacher: budget_money 3 never ends a run without a price"
    ):
        load(tmp_path, BASE + "qa_build:\n  teacher: {name: t, base_url: http://h/v1, model: m, budget_money: 3}\n")


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("qa_build:\n  augment: [paraphrase]\n", "augment paraphrase needs a language model: rules write no prose"),
        ("qa_build:\n  rewrite_inputs: [outline, outline]\n", "names a kind twice; name each once"),
        ("qa_build:\n  rewrite_inputs: []\n", "qa_build.rewrite_inputs"),
        ("qa_build:\n  rewrite_inputs: [gist]\n", "gist"),
        ("qa_build:\n  chunk_tokens: 4\n", "qa_build.chunk_tokens"),
        ("qa_build:\n  question_candidates: 0\n", "qa_build.question_candidates"),
        ("inject:\n  provenance_tag: '<|{path}|>'\n", "has the place {path}; there are {source} and {kind}"),
    ],
)
def test_what_a_teacher_is_asked_for_is_checked_at_once(tmp_path: Path, section: str, message: str) -> None:
    assert message in error_of(tmp_path, BASE + section)


ON = f"first-0123456789@{'a' * 64}"


def test_a_run_on_another_is_another_run_and_one_from_theta_0_is_the_same_as_ever(tmp_path: Path) -> None:
    plain, built_on = load(tmp_path, BASE), load(tmp_path, BASE, f"run.on={ON}")
    assert "on" not in plain.model_dump(mode="json")["run"]
    assert RunFile.model_validate_json(built_on.canonical()) == built_on and built_on.run.on == ON
    assert built_on.digest != plain.digest
    assert built_on.digest != load(tmp_path, BASE, f"run.on={ON[:-1]}b").digest
    assert built_on.digest == load(tmp_path, BASE, f"run.on={ON}", "run.state=/elsewhere").digest


def test_what_a_run_on_another_cannot_have_is_refused(tmp_path: Path) -> None:
    said = error_of(tmp_path, BASE, "run.on=first-0123456789")
    assert said.endswith(
        "run.on: 'first-0123456789' must be RUN-ID@SHA-256 of that run's theta_IA; leave it out and name the run at "
        "the command: iar run RUN.yaml --on RUN-ID"
    )
    floors = "select.floors={retention: 40}"
    assert "measured only in a run on another; give iar run --on RUN-ID" in error_of(tmp_path, BASE, floors)
    assert load(tmp_path, BASE, floors, f"run.on={ON}").select.floors == {"retention": 40}
    said = error_of(tmp_path, BASE, f"run.on={ON}", "baselines.recipes=[lora, vanilla-sft]")
    assert "baselines.recipes lora with run.on: they start from theta_0" in said
    cluster = ("platform.backend=kubeflow", "platform.pool.state_claim=''", "run.store=s3://bucket/x")
    said = error_of(tmp_path, BASE, f"run.on={ON}", *cluster)
    assert "run.on first-0123456789 with backend kubeflow and no platform.pool.state_claim" in said
