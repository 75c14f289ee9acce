"""What was bought of language models while tasks ran: tokens, and money where the run file names prices."""

from collections.abc import Iterable
from pathlib import Path

from iar.config import Endpoint, RunFile
from iar.services.llm_budget import money
from iar.services.reply_cache import FILE_NAME, open_cache
from iar.services.vault import PRIVATE

Span = tuple[float, float]
TEACHES, JUDGES = ("qa_build", "locked_test"), ("judge_eval", "locked_test")
TRAINS = ("inject", "align")  # with an oracle that looks at the model meanwhile


def bought(run_file: RunFile, state: Path, stage: str, spans: Iterable[Span]) -> tuple[int, float]:
    """Return tokens and money of the calls that ended in any of some spans of Unix time, of the models a stage asks.

    What is asked of private suites counts too. What the shards of a QA build bought at once is that of the task which
    gathers them. Other runs that ask the same model at the same time through the same state folder count too.
    """
    # In a locked test the teacher words the questions of the diagnostics anew.
    entries: list[object] = [run_file.qa_build.teacher] if stage in TEACHES else []
    entries += list(run_file.evaluate.judges) if stage in JUDGES else []
    entries += [run_file.oracle.judge] if stage in TRAINS else []
    named = {(one.model, one.revision): one for one in entries if isinstance(one, Endpoint)}
    covered, spent = apart(spans), []
    for cache in (state / "llm-cache", state / PRIVATE / "llm-cache"):
        if not named or not (cache / FILE_NAME).is_file():
            continue
        with open_cache(cache) as calls:
            spent += [
                (endpoint, calls.spent_between(*model, start, end))
                for model, endpoint in named.items()
                for start, end in covered
            ]
    return sum(one.tokens for _, one in spent), sum((money(endpoint, one) for endpoint, one in spent), 0.0)


def apart(spans: Iterable[Span]) -> list[Span]:
    """Return the times that some spans cover, as spans of which no two overlap."""
    covered: list[Span] = []
    for start, end in sorted(spans):
        if covered and start <= covered[-1][1]:
            start, end = covered[-1][0], max(covered.pop()[1], end)
        covered.append((start, end))
    return covered
