"""What a run will ask of teacher, judges and oracle, in tokens that they read and write. Rules cost nothing."""

from collections.abc import Sequence

from iar.config import Endpoint, RunFile
from iar.methods.attacks import ATTACKS, DRESSED
from iar.methods.retelling import MOST_TOKENS, REGISTERS
from iar.services.asked_suites import Suite, tokens
from iar.services.llm_ask import load_prompt
from iar.services.verifiers import QUESTIONS_PER_KIND, calibration
from iar.services.workload import Workload

SKELETON_SHARE = 0.35  # of its document, as in the example
THIRD_RATE = 0.3  # the paper's first two judges differ on 29 % of the replies
VERDICT_TOKENS = 100.0  # of a judge's or certifier's reason with its verdict
AUDIT_TOKENS = 100.0  # of question, reference and reply in one call of an audit


class LlmTokens:
    """The tokens of one run's calls to language models; 0 where a run file names none."""

    def __init__(self, run_file: RunFile, work: Workload) -> None:
        self._file, self._work = run_file, work

    def teacher(self) -> float:
        """Return the tokens of all steps, with as many questions as may be, half of which reach the answer."""
        if not isinstance(self._file.qa_build.teacher, Endpoint):
            return 0.0
        work, settings = self._work, self._file.qa_build
        chunk = work.text_tokens / max(work.chunks, 1)
        question = work.question_tokens
        a_chunk = 2 * chunk + prompt_tokens("anchors", "types") + 2 * VERDICT_TOKENS
        proposed = settings.question_candidates * question
        a_draft = chunk + prompt_tokens("question", "self_contained") + proposed + question + VERDICT_TOKENS
        an_answer = 2 * (chunk + question) + prompt_tokens("grounded", "answer") + VERDICT_TOKENS + work.answer_tokens
        a_kind = work.text_tokens * (1 + SKELETON_SHARE)
        notes = sum(a_kind + len(work.documents) * prompt_tokens(kind) for kind in settings.rewrite_inputs)
        # A crossing shows its two chunks to the teacher in six calls, four times both and twice one of them.
        a_crossing = 8 * chunk + prompt_tokens("cross_question", *3 * ("grounded",), "self_contained", "answer")
        a_crossing += proposed + 5 * question + 4 * VERDICT_TOKENS + work.answer_tokens
        questions = work.chunks * (a_chunk + settings.max_anchors * (a_draft + an_answer / 2))
        return questions + notes + settings.cross_questions * a_crossing + self._retellings()

    def rewordings(self) -> float:
        """Return the tokens of the test questions in a teacher's other words."""
        if not isinstance(self._file.qa_build.teacher, Endpoint):
            return 0.0
        return self._work.test * (2 * self._work.question_tokens + prompt_tokens("reword"))

    def votes(self, suites: Sequence[Suite]) -> float:
        """Return the tokens of the panel's votes on one model's replies to the suites."""
        a_vote = self._work.answer_tokens + prompt_tokens("judge") + VERDICT_TOKENS
        judged = [(suite, suite.shown_tokens) for suite in suites if suite.shown_tokens is not None]
        tokens_of_one = sum(suite.rows * (2 * shown + suite.reply_tokens + a_vote) for suite, shown in judged)
        panel = zip(self._file.evaluate.judges, (1.0, 1.0, THIRD_RATE), strict=True)
        return tokens_of_one * sum(share for judge, share in panel if isinstance(judge, Endpoint))

    def audit(self) -> float:
        """Return the tokens of the audit that every judge goes through before it judges."""
        return self._audited(QUESTIONS_PER_KIND * len(ATTACKS) + len(calibration()))

    def own_attacks(self) -> float:
        """Return the tokens of the attacks made of the pick's own wrong answers, which come before the test."""
        return self._audited(QUESTIONS_PER_KIND * (1 + len(DRESSED)))

    def oracle(self, stage: str) -> float:
        """Return what the oracle reads and writes for a training; its audit is left out."""
        oracle, work = self._file.oracle, self._work
        if not (oracle.watches(stage) and isinstance(oracle.judge, Endpoint)):
            return 0.0
        epochs = self._file.inject.epochs if stage == "inject" else self._file.align.epochs
        a_call = work.question_tokens + self._file.evaluate.domain_max_tokens + work.answer_tokens
        return epochs * min(oracle.prompts, work.train) * (a_call + prompt_tokens("judge") + VERDICT_TOKENS)

    def _retellings(self) -> float:
        """Return the tokens of paraphrases and relation texts, each written once and certified once."""
        settings, work = self._file.qa_build, self._work
        total = 0.0
        if "paraphrase" in settings.augment:
            passages = work.text_tokens / MOST_TOKENS + len(work.documents) / 2
            calls = passages * len(REGISTERS)
            total += len(REGISTERS) * 4 * work.text_tokens
            total += calls * (prompt_tokens("paraphrase", "faithful") + VERDICT_TOKENS)
        if "relations" in settings.augment:
            texts = settings.relations_per_document * len(work.documents)
            total += settings.relations_per_document * 2 * work.text_tokens
            total += texts * (prompt_tokens("relations", "faithful") + 2 * MOST_TOKENS + VERDICT_TOKENS)
        return total

    def _audited(self, calls: int) -> float:
        servers = sum(isinstance(judge, Endpoint) for judge in self._file.evaluate.judges)
        return servers * calls * (prompt_tokens("judge") + AUDIT_TOKENS + VERDICT_TOKENS)


def prompt_tokens(*names: str) -> float:
    """Return the tokens of the product's own prompts of these names."""
    prompts = [load_prompt(name) for name in names]
    return sum(tokens(prompt.system) + tokens(prompt.user) for prompt in prompts)
