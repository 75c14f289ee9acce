"""The report of a made-up run: what it says, that it loads nothing, and that no text in it becomes markup."""

import json
import re
import shutil
from base64 import b64decode, b64encode
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from iar.config import RunFile
from iar.console import print_results
from iar.methods.filter_report import calibrated
from iar.methods.scorers import NEAR_DUPLICATE, SCORERS, Scorer
from iar.records import (
    AttackResult,
    PruningLoss,
    SuiteScore,
    TestReading,
    VerifierAudit,
    Vote,
    to_json,
    write_json,
)
from iar.report.card import model_card
from iar.report.data import ReportData, collect, results_json, unchecked_suites
from iar.report.evidence import panel_facts
from iar.report.html import duration, render, visible, write_report
from iar.report.profile import kinds, profile, profile_text
from iar.report.tables import results_markdown
from iar.report.view import (
    cross_document,
    further_suites,
    headlines,
    pruning_rows,
    pruning_text,
    reached,
    selection_counts,
)
from iar.services.judges import ArchivedVote, write_votes
from tests.report.folders import NASTY, QUESTIONS, RUN_FILE, Made, make_run

RUN_ID = "test-0123456789"
ALLOWED = (
    "html head meta title style body header main nav section figure figcaption img h1 h2 h3 p a code pre div span b br "
    "strong mark ol li dl dt dd details summary table caption thead tbody tr th td svg rect"
)


class Page(HTMLParser):
    """The tags of a page with their attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def report(made: Made) -> ReportData:
    return collect(made.inputs, RUN_FILE, RUN_ID)


@pytest.fixture(scope="module")
def html(report: ReportData, tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("out")
    page = write_report(out, report)
    assert page == out / "report.html"
    png = (out / "frontier.png").read_bytes()
    width, height = (int.from_bytes(png[place : place + 4]) for place in (16, 20))
    assert png.startswith(b"\x89PNG") and (width, height) == (1400, 900)
    return page.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


def test_no_text_of_documents_or_models_becomes_markup(html: str, page: Page) -> None:
    # the same string stands in a question, a reply, a training row and a reason to drop
    assert NASTY not in html and html.count("&lt;script&gt;") > 20
    assert {tag for tag, _ in page.tags} <= set(ALLOWED.split())
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on") or name == "style"]


def test_the_page_loads_nothing_and_its_policy_forbids_it(html: str, page: Page) -> None:
    sources = [value for _, attributes in page.tags for name, value in attributes.items() if name in ("src", "href")]
    assert sources and all(value and value.startswith(("data:image/svg+xml;base64,", "#")) for value in sources)
    policy = next(a["content"] for tag, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    style = re.search("<style>(.*)</style>", html, re.DOTALL)
    assert style and "url(" not in style[1] and "@import" not in style[1]
    digest = b64encode(sha256(style[1].encode()).digest()).decode()
    assert policy and f"style-src 'sha256-{digest}'" in policy and "default-src 'none'" in policy


def test_images_have_a_text_that_names_the_numbers(page: Page, report: ReportData) -> None:
    images = [attributes for tag, attributes in page.tags if tag == "img"]
    assert len(images) == 4
    frontier, merges, lengths, losses = (image["alt"] or "" for image in images)
    assert "Distance and share of the pick by block: outside" in merges
    assert f"The pick is {report.selection.pick}" in frontier and "vanilla 18.3 and 28.0" in frontier
    assert "Scorers that drop any: length, language" in lengths
    assert "theta_I from" in losses and "in 90 steps" in losses
    assert all(b"<svg" in b64decode((image["src"] or "").split(",")[1]) for image in images)


def test_every_table_has_headers_with_a_scope_and_can_be_scrolled(page: Page) -> None:
    tables = [attributes for tag, attributes in page.tags if tag == "table"]
    regions = [attributes for tag, attributes in page.tags if attributes.get("class") == "scroll"]
    assert len(tables) == len(regions) and all(region["tabindex"] == "0" and region["aria-label"] for region in regions)
    assert all(attributes.get("scope") in ("col", "row") for tag, attributes in page.tags if tag == "th")


def test_links_inside_the_page_lead_somewhere(page: Page) -> None:
    targets = {f"#{attributes['id']}" for _, attributes in page.tags if "id" in attributes}
    assert {attributes["href"] for tag, attributes in page.tags if tag == "a"} <= targets


def test_the_head_gives_the_pick_against_vanilla_and_theta_0(report: ReportData, page: Page) -> None:
    domain, general = headlines(report)
    assert [name for name, _ in domain.scores] == [report.selection.pick, "vanilla", "theta_0"]
    test = {scores.model: scores for scores in report.test}
    assert domain.scores[0][1].points == test[report.selection.pick].domain
    assert general.scores[1][1].points == test["vanilla"].general
    gains = {against: (text, verdict) for against, text, verdict in domain.gains}
    assert gains["vanilla"][1] == "higher" and re.fullmatch(r"\+\d+\.\d \(\+.* to \+.*\)", gains["vanilla"][0])
    assert f"The pick is {report.selection.pick}" in page.text and gains["theta_0"][0] in page.text


def test_rule_based_parts_are_named_and_an_llm_is_not_called_one(html: str, report: ReportData) -> None:
    assert "Rule-based parts: no LLM in any of the roles" in html
    assert results_json(report)["offline"] == [
        "teacher offline", "judge rule:exact", "judge rule:token-f1", "judge rule:char-ngram",
    ]  # fmt: skip


def test_servers_take_the_place_of_the_banner(made: Made) -> None:
    server = {"base_url": "http://localhost:1/v1", "model": "big-model"}
    llm = RunFile.model_validate(
        RUN_FILE.model_dump()
        | {"qa_build": {"teacher": {"name": "t", **server}}}
        | {"evaluate": {"judges": [{"name": name, "temperature": n / 2, **server} for n, name in enumerate("abc")]}}
    )
    report = collect(made.inputs, llm, RUN_ID)
    text = Page(render(report)).text
    assert results_json(report)["offline"] == [] and "Rule-based parts" not in text
    assert "LLM big-model (t)" in text and "LLM big-model (a); LLM big-model (b)" in text


def test_all_candidates_stand_in_the_table_in_grid_order_with_their_fate(report: ReportData, page: Page) -> None:
    models = [scores.model for scores in report.validation]
    assert models[:3] == ["theta_0", "vanilla", "theta_IA"]
    assert models[3:] == [candidate.id for candidate in report.candidates] and len(models) == 15
    fates = reached(report.selection)
    assert fates["task_arithmetic-w0.3"] == "duplicate" and fates[report.selection.pick] == "the pick"
    assert "same model as slerp-t0.3" in page.text
    assert all(verdict.domain_floor in page.text for verdict in report.selection.verdicts)


def test_the_merges_are_shown_by_block_and_the_pick_by_kind_of_tensor(report: ReportData, page: Page) -> None:
    assert profile(report).startswith(b"<?xml")
    assert "Distance and share of the pick by block: outside" in profile_text(report)
    assert [one.group for one in kinds(report)] == ["mlp.up_proj", "norm"]
    assert "The pick by kind of tensor" in page.text and "mlp.up_proj" in page.text
    assert profile(replace(report, layers=())) == b""
    assert "Where the merges moved" not in render(replace(report, layers=()))


def test_the_steps_of_the_selection_count_down_to_one(report: ReportData) -> None:
    counts = [count for _, count in selection_counts(report.selection)]
    assert counts[:2] == [12, 11] and counts[-1] == 1 and counts == sorted(counts, reverse=True)


def test_the_share_of_resamples_is_said_with_the_reasons(report: ReportData, page: Page) -> None:
    stability = report.selection.stability
    assert stability.resamples == 200 and 0 < stability.wins[report.selection.pick] <= 1
    pick = report.selection.pick
    assert f"{pick} in {100 * stability.wins[pick]:.1f} %" in page.text
    assert f"none feasible in {100 * stability.none_feasible:.1f} %." in page.text


def test_bits_per_byte_and_what_pruning_would_lose_are_shown(report: ReportData, page: Page) -> None:
    models = [one.model for one in report.validation]
    models.insert(models.index("theta_IA"), "theta_I")  # read, and asked nothing
    assert [one.model for one in report.bpb] == models and "Inject, before Align" in page.text
    pick, count = report.selection.pick, len(report.front)
    # The ranking of these folders is the front by D, in which the pick leads.
    assert [one.pick for one in report.pruning] == [pick] * count and count > 1
    assert f"Had only the best 1 of {count} been evaluated, the rule would have picked {pick} too." in page.text
    assert results_json(report)["bits_per_byte"][0]["model"] == "theta_0"


def test_pruning_that_would_lose_the_pick_says_from_where_on_it_is_kept(report: ReportData) -> None:
    pick = report.selection.pick
    losses = [PruningLoss(1, "", None, None), PruningLoss(2, pick, 0.0, 0.0), PruningLoss(3, "x", 2.0, -1.5)]
    other = replace(report, pruning=(*losses, PruningLoss(4, pick, 0.0, 0.0)))
    assert pruning_text(other) == (
        f"Had only the best 2 of 4 been evaluated, the rule would have picked {pick} too, and again from the best 4 on."
    )
    assert pruning_rows(other)[:3:2] == [(1, "none feasible", "", ""), (3, "x", "+2.0", "-1.5")]


def test_a_pruned_candidate_is_shown_as_such(report: ReportData) -> None:
    reason = "pruned: 1.200 bits per byte of source, 1.100 of general text; rank 12 of 12, 11 evaluated"
    last = replace(report.selection.verdicts[-1], domain_floor=reason, kept_until=0)
    selection = replace(report.selection, verdicts=(*report.selection.verdicts[:-1], last))
    assert reached(selection)[last.candidate] == "pruned"
    assert selection_counts(selection)[1:3] == [("with weights of their own", 11), ("evaluated, the others pruned", 10)]
    assert reason in Page(render(replace(report, selection=selection))).text


def test_a_test_that_was_taken_before_has_a_warning_in_every_report(made: Made, tmp_path: Path) -> None:
    tested = shutil.copytree(made.inputs["locked_test"], tmp_path / "tested")
    again = TestReading(made.selection.pick, "c" * 64, "decision", 60, 2, ("dare-p0.1", "ties-d0.3"), 41)
    write_json(tested / "reading.json", to_json(again))
    report = collect(dict(made.inputs) | {"locked_test": tested}, RUN_FILE, RUN_ID)
    mark = "41 of 60 questions taken before by 2 other models (dare-p0.1, ties-d0.3)"
    assert f"Not a first look at the test: {mark}." in Page(render(report)).text
    warning = f"NOT A FIRST LOOK at the test, so its scores may flatter: {mark}."
    printed = StringIO()
    print_results(Console(file=printed, width=300), results_json(report))
    assert warning in printed.getvalue()
    assert warning in results_markdown(results_json(report)) and "NOT A FIRST LOOK" in model_card(report)


def test_another_preference_stands_in_every_report(made: Made, tmp_path: Path) -> None:
    inputs = dict(made.inputs) | {"selector": tmp_path}
    shutil.copytree(made.inputs["selector"], tmp_path, dirs_exist_ok=True)
    wished = replace(made.selection, preference="general", floors={"ifeval": 40.0})
    write_json(tmp_path / "selection.json", to_json(wished))
    other = collect(inputs, RUN_FILE, "run-1")
    wish = "preference general, ifeval at least 40"
    assert results_json(other)["preferred"] == wish
    assert f"Picked by {wish} instead of the rule's own preference." in results_markdown(results_json(other))
    (tmp_path / "out").mkdir()
    html = write_report(tmp_path / "out", other).read_text(encoding="utf-8")
    assert f"by <strong>{wish}</strong> instead of" in html and f"Step 4 was another here: {wish}" in html
    assert f"**Not the rule's own preference**: {wish}" in model_card(other)


def test_the_funnel_names_reasons_and_shares(page: Page) -> None:
    assert "not self-contained: 210 (23.3 %)" in page.text and "94.1 %" in page.text


def test_each_evaluation_has_a_line_and_each_hit_both_sides(html: str, page: Page) -> None:
    assert "Contamination: training data against every evaluation" in page.text
    for number, name in enumerate(("validation", "test", "ifeval", "mmlu", "msbench")):
        cells = f'<th scope="row">{name}</th><td>questions</td><td class="number">300</td><td class="number">60</td>'
        assert f"{cells}<td>{number}</td>" in html
    assert "Who lit the lamp?" in page.text and "Who lit it?" in page.text
    assert "UNCHECKED" not in page.text


def test_hits_that_are_not_shown_are_counted(tmp_path: Path) -> None:
    made = make_run(tmp_path)
    path = made.inputs["data"] / "contamination.jsonl"
    hit = path.read_text().splitlines()[0]
    path.write_text(f"{hit}\n" * 33)
    record = made.inputs["data"] / "decontamination.json"
    checks = json.loads(record.read_text())
    record.write_text(json.dumps([check | {"hits": 33 * (number == 0)} for number, check in enumerate(checks)]))
    text = Page(render(collect(made.inputs, RUN_FILE, RUN_ID))).text
    assert "What gave prompts away: 33 in all, of which 20 are shown" in text


@pytest.mark.parametrize("how", ["no record", "unread"])
def test_a_score_on_an_unchecked_evaluation_has_a_warning_in_every_report(tmp_path: Path, how: str) -> None:
    made = make_run(tmp_path)
    record = made.inputs["data"] / "decontamination.json"
    checks = json.loads(record.read_text())
    checks = [one for one in checks if one["evaluation"] != "mmlu"] if how == "no record" else checks
    for check in checks:
        check["unchecked"] = "no network" if check["evaluation"] == "mmlu" else ""
    record.write_text(json.dumps(checks))
    report = collect(made.inputs, RUN_FILE, RUN_ID)
    results = results_json(report)

    warning = "UNCHECKED for contamination, so scores on them may flatter: mmlu."
    assert list(results["unchecked"]) == ["mmlu"]
    assert warning in results_markdown(results)
    assert warning in model_card(report)
    assert "UNCHECKED for contamination: mmlu." in Page(render(report)).text
    print_results(Console(file=(printed := StringIO()), soft_wrap=True), results)
    assert warning in printed.getvalue()


def test_a_suite_of_the_user_that_is_unchecked_has_the_warning_too(report: ReportData) -> None:
    house = replace(report.test[0], suites=(*report.test[0].suites, SuiteScore("house", 50, 40, 60, 10, 0)))
    missing = tuple(replace(report.checks[0], evaluation=name, unchecked="empty") for name in ("house", "mine.jsonl"))
    unread = replace(report, checks=(*report.checks, *missing))
    assert unchecked_suites(unread) == {}  # neither is behind a score
    assert unchecked_suites(replace(unread, test=(house, *report.test[1:]))) == {"house": "questions: empty"}


@pytest.mark.parametrize("scorer", [*SCORERS, NEAR_DUPLICATE], ids=lambda scorer: scorer.name)
def test_a_scorer_is_shown_with_threshold_calibration_length_response_and_chance(
    report: ReportData, html: str, scorer: Scorer
) -> None:
    (one,) = [found for found in report.scorers if found.name == scorer.name]
    tables = html.partition("The file filter, a scorer at a time")[2].partition("</details>")[0]
    rows = re.findall(rf'<tr><th scope="row">{scorer.name}</th>(.*?)</tr>', tables)
    rule, *response = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in rows]
    assert rule[0] == f"{one.threshold}: {scorer.meaning}; threshold from {scorer.origin}"
    assert rule[1] == "1 of 4" and rule[3] == calibrated(one)
    assert rule[2] == "; ".join(
        f"{one.language}: {one.texts} ({one.documents} documents)" for one in scorer.calibrations
    )
    # What the rule keeps beside what a random choice of as many of each collection does.
    assert rule[5] == "420" and re.fullmatch(r"\d+ \(\d+ to \d+\)", rule[6])
    assert re.fullmatch(r"[\d.]+ %", rule[7]) and re.fullmatch(r"[\d.]+ %", rule[8])
    assert [cells[:3] for cells in response] == [
        ["en", words, "1"] for words in ("0 to 49", "50 to 99", "200 to 399", "800 to 1599")
    ]
    assert [cells[4] for cells in response] == ["100.0 %", "0.0 %", "0.0 %", "0.0 %"]
    figure = re.search(r'<img src="data:image/svg\+xml;base64,([^"]+)" alt="Share of documents dropped over', tables)
    drawn = b64decode(figure[1]).decode() if figure else ""
    assert f"<!-- {scorer.name} -->" in drawn and "<!-- en, by chance -->" in drawn
    by_chance = [float(cells[5].removesuffix(" %")) for cells in response]
    assert sum(by_chance) == pytest.approx(100, abs=0.2) and max(by_chance) < 100


def test_masked_and_trained_parts_of_rows_are_told_apart(html: str) -> None:
    assert re.search(r'<span class="masked">user: &lt;script&gt;.*</span><mark>Velm &amp; co\.</mark>', html)
    assert "vanilla SFT trains on the same rows as Align" in html


def test_judges_agreement_is_counted_from_the_vote_archive(report: ReportData, page: Page) -> None:
    facts = {(fact.split, fact.suite): fact.agreement for fact in report.panel}
    assert set(facts) == {(split, suite) for split in ("validation", "test") for suite in ("domain", "msbench")}
    assert facts["test", "domain"].replies == 4 * QUESTIONS
    assert facts["test", "domain"].third_rate.value == pytest.approx(0.2, abs=0.08)
    assert dict(report.panel[0].versions) == {"rule:exact": "1", "rule:token-f1": "1", "rule:char-ngram": "1"}
    assert "Cohen's kappa" in page.text and "MMLU no letter" in page.text and "1 of 50 unscored" in page.text


def test_the_judges_audit_stands_beside_the_scores(report: ReportData, page: Page) -> None:
    assert [one.verifier for one in report.verifiers] == list(RUN_FILE.evaluate.judges)
    assert "0.5 % (0.1 to 2.8 %)" in page.text and "1 (0) of 100" in page.text and "80.0 %" in page.text
    results = results_json(report)
    assert results["verifiers"][1]["attack_success"]["hits"] == 1
    line = (
        "Attacks without an answer that the judges score above 0: rule:exact 0.0 % (0.0 to 1.9 %), rule:token-f1 0.5 %"
    )
    assert line in results_markdown(results)


def test_the_judges_before_the_picks_own_wrong_answers_have_a_table_of_their_own(report: ReportData) -> None:
    again = VerifierAudit("rule:exact", "1", "b" * 64, (AttackResult("own-hedged-answers", 20, 0, 3, 1),), ())
    found = replace(report, own_attacks=(again,))
    assert "own-hedged-answers" in (text := Page(render(found)).text) and "3 (1) of 20" in text
    assert results_json(found)["own_attacks"][0]["attack_success"]["hits"] == 3
    assert "own_attacks" not in results_json(report)


def test_a_private_test_shows_none_of_its_questions(tmp_path: Path) -> None:
    made = make_run(tmp_path)
    evaluate = RUN_FILE.evaluate.model_copy(update={"private_test": True})
    report = collect(made.inputs, RUN_FILE.model_copy(update={"evaluate": evaluate}), RUN_ID)
    text = Page(render(report)).text
    assert report.samples == () and "The test is private" in text
    assert "Lamp 54" not in text and "Lamp 54" not in json.dumps(results_json(report))
    assert "Lamp 54" in Page(render(collect(made.inputs, RUN_FILE, RUN_ID))).text


def test_a_suite_of_the_users_own_has_its_verifiers_attacks_and_what_was_cut_off(report: ReportData) -> None:
    suite = SuiteScore("units", 12.0, 5.0, 20.0, 40, 0, {"truncated_share": 0.25})
    tested = tuple(replace(scores, suites=(*scores.suites, suite)) for scores in report.test)
    audit = VerifierAudit("regex of units", "1", "c" * 64, (AttackResult("empty", 100, 0, 1, 0),), ())
    (line,) = further_suites(replace(report, test=tested, verifiers=(*report.verifiers, audit)))
    assert line.startswith("units, 40 items, attacks that regex of units scores above 0 1.0 % (0.2 to 5.4 %), at most ")
    assert "at most 25.0 % of a model's replies cut off: " in line


def test_agreement_has_an_interval_each(report: ReportData, page: Page) -> None:
    found = next(fact.agreement for fact in report.panel if (fact.split, fact.suite) == ("test", "domain"))
    for name in ("exact", "kappa", "binary_kappa", "weighted_kappa", "alpha", "third_rate"):
        one = getattr(found, name)
        assert one.low <= one.value <= one.high, name
    assert f"{found.alpha.value:.2f} ({found.alpha.low:.2f} to {found.alpha.high:.2f})" in page.text


def test_ten_replies_are_spread_over_the_test(report: ReportData, page: Page) -> None:
    assert [sample.question.split()[3] for sample in report.samples] == [str(6 * place) for place in range(10)]
    assert all([reply.model for reply in one.replies] == [report.selection.pick, "vanilla"] for one in report.samples)
    assert (
        "cut off at the token limit" in page.text
        and "Lamp 54 was lit by Tora Lind." in page.text
        and "decided by: Tora Lind" in page.text
    )


def test_provenance_names_digests_seed_and_times(report: ReportData, page: Page) -> None:
    wanted = (RUN_ID, RUN_FILE.digest, "d" * 64, "weights-inject", "digest-vanilla", "code-inject", "SmolLM2".lower())
    assert all(text in page.text for text in wanted)
    assert "1 min 01 s" in page.text and "max_anchors: 8" in page.text and "Together" in page.text


def test_results_are_plain_json_with_all_models_of_both_splits(report: ReportData) -> None:
    results = json.loads(json.dumps(results_json(report), allow_nan=False))
    assert results["run_id"] == RUN_ID and results["seed"] == 17
    assert [model["split"] for model in results["models"]] == ["test"] * 4 + ["validation"] * 15
    pick = results["models"][0]
    assert pick["id"] == results["pick"] == results["selection"]["pick"]
    assert set(pick["domain"]) == {"points", "low", "high", "count", "unscored", "details"}
    assert set(pick["general"]) == {"points", "low", "high"}
    assert set(results["paired"]) == {"vanilla", "theta_0", "theta_IA"}
    assert set(results["paired"]["vanilla"]["domain"]) == {"points", "low", "high", "items"}


def test_the_markdown_table_shows_the_test_and_the_paired_gain(report: ReportData) -> None:
    lines = results_markdown(results_json(report)).splitlines()
    assert lines[0] == "| Model | Domain | IFEval | MMLU | MSBench | General |"
    assert lines[2].startswith(f"| **{report.selection.pick}** (the pick) | ") and lines[2].count("|") == 7
    assert [line.split(" ")[1] for line in lines[3:6]] == ["theta_0", "vanilla", "theta_IA"]
    assert "against vanilla, paired over the same items: domain +" in lines[8]
    assert lines[9].startswith("Attacks without an answer that the judges score above 0: rule:exact")
    assert lines[10].startswith("Rule-based, no LLM: teacher offline, judge rule:exact")


def test_equal_runs_give_equal_pages(report: ReportData, html: str) -> None:
    assert render(report) == html


def test_no_feasible_candidate_is_said_plainly_without_the_test(tmp_path: Path) -> None:
    made = make_run(tmp_path, feasible=False, votes=False)
    (made.inputs["data"] / "manifest.json").unlink()
    report = collect(made.inputs, RUN_FILE, RUN_ID)
    page = Page(render(report))

    assert report.test == report.samples == report.panel == ()
    assert "No feasible candidate" in page.text and "the test was not read" in page.text
    assert "Locked test" not in page.text and "Replies on the test" not in page.text
    assert "No vote archive was found" in page.text
    assert all(verdict.domain_floor in page.text for verdict in report.selection.verdicts)
    results = results_json(report)
    assert results["pick"] == "" and {model["split"] for model in results["models"]} == {"validation"}
    table = results_markdown(results)
    assert table.startswith("**No feasible candidate**: the test stayed locked") and table.count("\n| ") == 5


def test_control_and_direction_characters_are_shown_not_obeyed() -> None:
    assert visible("a\x00b\u202ec\td\n") == "a\ufffdb\ufffdc\td\n"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.04, "0.0 s"), (9.94, "9.9 s"), (59.4, "59 s"), (425, "7 min 05 s"), (12000, "3 h 20 min")]
)
def test_durations_read_well(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_questions_over_two_documents_are_named_where_there_are_any(report: ReportData) -> None:
    assert cross_document(report) == ""
    suite = SuiteScore("cross_document", 12.0, 5.0, 20.0, 40, 0, {})
    tested = tuple(replace(scores, suites=(*scores.suites, suite)) for scores in report.test)
    text = render(replace(report, test=tested))
    assert "Apart from these, 40 questions that need two documents, in no other score: " in text
    assert "12.0 (5.0 to 20.0)" in cross_document(replace(report, test=tested))


def test_a_suite_of_the_user_s_own_has_its_agreement_after_those_that_count(tmp_path: Path) -> None:
    judges = ("rule:exact", "rule:token-f1", "rule:char-ngram")
    votes = [
        ArchivedVote(Vote("m", suite, f"q{number}", judge, "1", 1, float(number % 2), "", ""), "h")
        for suite in ("zeal", "domain", "house-style", "cross_document")
        for number in range(4)
        for judge in judges[:2]
    ]
    (tmp_path / "m").mkdir()
    write_votes(tmp_path / "m" / "votes.parquet", votes)
    facts = panel_facts({"test": [tmp_path]}, judges, 20, 1)
    assert [one.suite for one in facts] == ["domain", "cross_document", "house-style", "zeal"]
    assert {(one.agreement.replies, one.agreement.exact.value) for one in facts} == {(4, 1.0)}
