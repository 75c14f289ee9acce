"""What each model is asked, as tokens by suite: questions, general suites, those beside them, diagnostics."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from statistics import fmean

from iar.config import EvaluateSection, RunFile
from iar.methods.probes import HARMLESS, IDENTITY
from iar.methods.suite_grading import JUDGE
from iar.records import EvalItem
from iar.services.diagnostic_items import CONTINUED_TOKENS, STYLE_TOKENS
from iar.services.evaluations import GENERAL
from iar.services.lm_eval_tasks import MAX_GEN_TOKENS
from iar.services.source_rows import is_file
from iar.services.user_suites import suite_files, user_items

# Of UTF-8: English in a vocabulary of 50,000 to 150,000 has 4.2, and Chinese, at 3 bytes a character, about as many.
BYTES_PER_TOKEN = 4.0
HUB_ROWS = {"google/IFEval": 541, "cais/mmlu": 14_042}
HUB_PROMPT_TOKENS = 100.0
LM_EVAL = "evaluate.lm_eval: "
PROBE_TOKENS = 12.0  # of a question about identity or a harmless request


@dataclass(frozen=True)
class Suite:
    """Prompts of one kind: their number, the mean tokens of one, and the most tokens of a reply.

    shown_tokens: of the question that judges are shown with each reply; None where none votes.
    """

    rows: int
    prompt_tokens: float
    reply_tokens: int = 0
    shown_tokens: float | None = None


def tokens(text: str) -> float:
    """Return about how many tokens a text has."""
    return len(text.encode("utf-8", "replace")) / BYTES_PER_TOKEN


def question_suite(rows: int, question_tokens: float, settings: EvaluateSection) -> Suite:
    """Return the questions on the documents as a suite."""
    return Suite(rows, question_tokens, settings.domain_max_tokens, question_tokens)


def general_suites(run_file: RunFile) -> dict[str, Suite]:
    """Return the three general suites by name; without rows what is not here and of no known size.

    Raises UserError where a file of a run on this machine is not here.
    """
    on_cluster, settings = run_file.platform.backend == "kubeflow", run_file.evaluate
    return {name: _general(getattr(settings, name), f"evaluate.{name}", on_cluster) for name in GENERAL}


def _general(place: str, key: str, on_cluster: bool) -> Suite:
    # On a cluster a suite's file is in the image or on the volume, and need not be here.
    here = Path(place).is_file() if on_cluster else is_file(place, key, "google/IFEval")
    if not here:
        return Suite(HUB_ROWS.get(place.partition("@")[0], 0), HUB_PROMPT_TOKENS)
    return Suite(*_rows_of(line for line in Path(place).read_text(encoding="utf-8").splitlines() if line.strip()))


def with_replies(suites: dict[str, Suite], settings: EvaluateSection) -> Iterator[Suite]:
    """Yield the general suites with what the run file says of their replies; judges vote on those of msbench."""
    for name, suite in suites.items():
        shown = suite.prompt_tokens if name == "msbench" else None
        yield Suite(suite.rows, suite.prompt_tokens, getattr(settings, f"{name}_max_tokens"), shown)


def further_suites(run_file: RunFile) -> dict[str, Suite]:
    """Return the suites of the user and the tasks of lm-eval by where they are from, as the answer's lines name them.

    Those have no rows that are not known here: files on a cluster, tasks without a limit, which only loading counts.
    """
    settings, on_cluster = run_file.evaluate, run_file.platform.backend == "kubeflow"
    found = {f"evaluate.suites: {place}": _own(place, settings.day, on_cluster) for place in settings.suites}
    limit = settings.lm_eval_limit or 0
    return found | {f"{LM_EVAL}{name}": Suite(limit, HUB_PROMPT_TOKENS, MAX_GEN_TOKENS) for name in settings.lm_eval}


def _own(place: str, day: date | None, on_cluster: bool) -> Suite:
    if on_cluster and not all(Path(file).is_file() for file in suite_files([place])):
        return Suite(0, HUB_PROMPT_TOKENS)
    items: list[EvalItem] = user_items(Path(place), day)
    rows, prompt = _rows_of(item.prompt for item in items)
    judged = items[0].reference["verifier"] == JUDGE
    return Suite(rows, prompt, items[0].max_new_tokens, prompt if judged else None)


def _rows_of(texts: Iterable[str]) -> tuple[int, float]:
    sizes = [tokens(text) for text in texts]
    return len(sizes), fmean(sizes) if sizes else 0.0


def diagnostic_suites(
    run_file: RunFile, rows: int, question_tokens: float, chunks: int, text_tokens: float
) -> list[Suite]:
    """Return what the diagnostics ask a model about `rows` test questions: with passages, in other words, and probes.

    chunks, text_tokens: of all documents; a text to continue is half a chunk.
    """
    settings, limit, chunk = run_file.diagnose, run_file.evaluate.domain_max_tokens, text_tokens / max(chunks, 1)
    opened = question_tokens + settings.passages * chunk
    continued = min(settings.continuations, chunks) + (settings.continuations if settings.unseen else 0)
    return [
        Suite(rows, opened, limit, question_tokens),
        Suite(rows, question_tokens, limit, question_tokens),
        Suite(continued, chunk / 2, CONTINUED_TOKENS),
        Suite(len(HARMLESS) + len(IDENTITY), PROBE_TOKENS, STYLE_TOKENS),
    ]
