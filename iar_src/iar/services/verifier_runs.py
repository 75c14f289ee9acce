"""What a run offers an audit: its judges, its questions, the folders of its evaluations, its models' wrong answers."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from iar.config import Endpoint, RunFile
from iar.errors import UserError
from iar.methods.attacks import Posed
from iar.methods.grading import RULES
from iar.services.human_labels import judged_replies
from iar.services.judges import Judge, RuleJudge
from iar.services.source_rows import SourceRow, file_rows
from iar.services.verifiers import posed
from iar.services.workspace import Ref, Workspace

EVALUATED = "judge-eval-"


def find_judge(name: str, run_file: RunFile | None) -> Judge:
    """Return a rule by name, or a judge of the run file. Raises UserError with the names that there are."""
    if name in RULES:
        return RuleJudge(RULES[name])
    servers = judge_servers(run_file) if run_file else []
    for server in servers:
        if server.name == name and run_file:
            from iar.services.llm_judge import LlmJudge

            return LlmJudge(server, Workspace.of(run_file).state / "llm-cache")
    known = ", ".join([*RULES, *(one.name for one in servers)])
    where = "" if run_file else "; a judge that is a server needs the run file that names it: --run RUN.yaml"
    raise UserError(f"no verifier {name!r}; there are {known}{where}")


def judge_servers(run_file: RunFile) -> list[Endpoint]:
    """Return the judges of a run file that are servers, the oracle's last."""
    judges = (*run_file.evaluate.judges, run_file.oracle.judge)
    return [one for one in judges if isinstance(one, Endpoint)]


def evaluation_folders(run_file: RunFile) -> list[Path]:
    """Return the finished artifacts of judge-eval. Raises UserError where there is none."""
    tasks = Workspace.of(run_file).run(run_file.run_id) / "tasks"
    markers = sorted(tasks.glob(f"{EVALUATED}*.json"))
    if not markers:
        raise UserError(f"run {run_file.run_id} has judged nothing yet; start it with iar run")
    refs = [Ref.parse(json.loads(marker.read_text(encoding="utf-8"))["ref"]) for marker in markers]
    for ref in refs:
        ref.open()
    return [ref.path for ref in refs]


def own_wrong_answers(run_file: RunFile) -> Iterator[tuple[Posed, str]]:
    """Yield the questions and replies of a run's models to which every judge that was asked gave 0."""
    yield from wrong_answers_in(evaluation_folders(run_file))


def wrong_answers_in(folders: Sequence[Path], model: str = "") -> Iterator[tuple[Posed, str]]:
    """Yield the same of all models, or one, below the folders of judge-eval."""
    for one in judged_replies(folders, model):
        if one.text.strip() and all(vote.score == 0 for vote in one.votes):
            yield posed(one.item), one.text


def read_questions(path: Path) -> list[Posed]:
    """Return the questions of a JSONL file: `question` or `prompt`, `reference` or `reference_points`, `aliases`.

    Raises UserError naming line and fix.
    """
    if not path.is_file():
        raise UserError(f"--questions {path}: no such file; give a JSONL file of questions with a reference each")
    found = [_question(row) for row in file_rows(path)]
    if not found:
        raise UserError(f"--questions {path}: no rows; give at least one question")
    return found


def _question(row: SourceRow) -> Posed:
    question = row.get("question" if "question" in row.data else "prompt", str)
    if row.data.get("reference_points"):
        return Posed(str(row.number), question, (), tuple(row.texts("reference_points")))
    # A pair of qa-build is decided by its key, else by its whole answer.
    name = next((name for name in ("reference", "key", "answer") if row.data.get(name)), "reference")
    aliases = row.texts("aliases") if row.data.get("aliases") else []
    return Posed(str(row.number), question, (row.get(name, str), *aliases))
