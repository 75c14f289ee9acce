"""What a run will take, task by task, before it starts: tokens, FLOP, GPU-hours, tokens of teacher and judges.

An estimate from the sizes of model and documents. Each assumption is a constant here and a line of the answer.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path

from iar.config import Endpoint, RunFile
from iar.errors import UserError
from iar.methods.attacks import ATTACKS, DRESSED
from iar.methods.merge_grid import grid
from iar.methods.retelling import MOST_TOKENS, REGISTERS
from iar.services.asked_suites import (
    BYTES_PER_TOKEN,
    LM_EVAL,
    Suite,
    diagnostic_suites,
    question_suite,
    tokens,
    with_replies,
)
from iar.services.llm_ask import load_prompt
from iar.services.model_shapes import SHAPES, ModelShape, shape_of
from iar.services.telemetry import FlopShape, named_peak, training_flops
from iar.services.verifiers import QUESTIONS_PER_KIND, calibration
from iar.services.workload import Workload

TEMPLATE_TOKENS = 30.0  # of the chat template and the instruction of a row
SKELETON_SHARE = 0.35  # of its document, as in the example
PREFIX_SHARE = 0.35  # the mean of a continuation's prefix, which is 10 to 60 %
THIRD_RATE = 0.3  # the paper's first two judges differ on 29 % of the replies
VERDICT_TOKENS = 100.0  # of a judge's or certifier's reason with its verdict
AUDIT_TOKENS = 100.0  # of question, reference and reply in one call of an audit
REFERENCES = 3  # theta_0, vanilla, theta_IA
DIAGNOSED = 2  # the pick, theta_0


@dataclass(frozen=True)
class Reached:
    """Shares of the device's bfloat16 peak that are reached.

    Training: what 3B to 8B models reach with checkpointing. Generation waits for memory, not for products: 64 replies
    at once by transformers.
    """

    training: float = 0.35
    generation: float = 0.03


REACHED = Reached()


@dataclass(frozen=True)
class TaskCost:
    """One task: tokens trained over or generated, and those that teacher or judges read and write.

    gpu_hours None where the device's peak is not known.
    """

    task: str
    tokens: int
    flops: float
    gpu_hours: float | None
    llm_tokens: int


@dataclass(frozen=True)
class Estimate:
    """The cost of a run, and what it rests on. `peak_flops` is of one device, None where it is not known."""

    run_id: str
    device: str
    peak_flops: float | None
    counted: bool
    tasks: tuple[TaskCost, ...]
    assumptions: tuple[str, ...]


@dataclass(frozen=True)
class _Training:
    """Tokens over all epochs, those with a loss, and the mean length of a row."""

    tokens: float
    targets: float
    row: float

    def __add__(self, other: "_Training") -> "_Training":
        longer = max(self.row, other.row)
        return _Training(self.tokens + other.tokens, self.targets + other.targets, longer)


def estimate(run_file: RunFile, work: Workload, reached: Reached = REACHED) -> Estimate:
    """Return the cost of a run on this workload. Raises UserError where nothing tells the model's size."""
    source, assumed = run_file.model.source, []
    shape = shape_of(run_file.model)
    if shape is None and (namesake := _namesake(source)):
        shape = SHAPES[namesake]
        assumed = [f"model.source: {source} is not here; it has the sizes of {namesake}, whose name the folder bears"]
    if shape is None:
        raise UserError(
            f"model.source: nothing on this machine tells the size of {source}; download it once, or give its folder"
        )
    device, peak = pool_device(run_file)
    tasks = tuple(_Estimator(run_file, work, shape, peak, reached).tasks())
    assumptions = (*_assumptions(run_file, work, peak, reached), *assumed)
    return Estimate(run_file.run_id, device, peak, work.counted, tasks, assumptions)


def _namesake(source: str) -> str:
    """Return the known model that a folder elsewhere is named after, such as /state/models/Qwen3-8B; "" for none."""
    place = Path(source)
    names = {hub_id.rpartition("/")[2].lower(): hub_id for hub_id in SHAPES}
    return names.get(place.name.lower(), "") if place.is_absolute() else ""


def pool_device(run_file: RunFile) -> tuple[str, float | None]:
    """Return the GPU that the pool's node selector names and its bfloat16 FLOP/s; None where it names none we know."""
    labels = run_file.platform.pool.node_selector.values()
    for label in labels:
        if (peak := named_peak(label.replace("-", " "))) is not None:
            return label, peak
    return ", ".join(labels) or "any node", None


class _Estimator:
    """The tasks of one run file, in the order of the pipeline."""

    def __init__(
        self, run_file: RunFile, work: Workload, shape: ModelShape, peak: float | None, reached: Reached
    ) -> None:
        self._file, self._work, self._shape, self._peak, self._reached = run_file, work, shape, peak, reached
        blocks, head = shape.layers * shape.layer_parameters, shape.hidden * shape.vocabulary
        self._flop_shape = FlopShape(blocks, head, shape.layers, shape.queries)

    def tasks(self) -> Iterator[TaskCost]:
        work, platform = self._work, self._file.platform
        yield TaskCost("qa-build", 0, 0.0, 0.0, round(self._teacher_tokens()))
        inject, align = self._inject(), self._align()
        for task, stage, training in (
            ("inject", "inject", inject),
            ("align", "align", align),
            ("vanilla", "align", align),
        ):
            trained = self._trained(task, training)
            yield replace(trained, llm_tokens=round(self._oracle_tokens(stage)))
        settings = self._file.evaluate
        validation = [
            question_suite(work.validation, work.question_tokens, settings),
            *with_replies(work.suites, settings),
        ]
        validation += work.further.values()
        references = self._evaluated("judge-eval-references", self._references, validation)
        # The other evaluations put the same questions to the judges, and take the replies from the cache.
        yield replace(references, llm_tokens=references.llm_tokens + round(self._audit_tokens()))
        candidates = len(grid(self._file.recover, self._file.run.seed))
        for shard in range(platform.candidate_shards):
            count = ceil((candidates - shard) / platform.candidate_shards)
            yield self._evaluated(f"judge-eval-candidates-{shard + 1}", count, validation)
        recipes = [name for name in self._file.baselines.recipes if name != "vanilla-sft"]
        if "sdft" in recipes:
            yield self._rewritten()
        for name in recipes:
            yield self._recipe(name, inject, align)
        if recipes:
            yield self._evaluated("judge-eval-baselines", len(recipes), validation)
        yield self._locked_test(1 + self._references + len(recipes))

    @property
    def _references(self) -> int:
        return REFERENCES + bool(self._file.run.on)  # the earlier theta_IA

    def _inject(self) -> _Training:
        settings = self._file.inject
        continuation, rewrite, instruction = settings.weights
        total = targets = rows = 0.0
        for text in self._work.units:
            longest = text * (1 + SKELETON_SHARE * bool(rewrite)) + TEMPLATE_TOKENS
            parts = max(1, ceil(longest / settings.sequence_length))
            prompts = (continuation + rewrite + instruction) * parts
            seen = text * (continuation + rewrite * (1 + SKELETON_SHARE) + instruction)
            total += seen + TEMPLATE_TOKENS * prompts
            targets += text * (continuation * (1 - PREFIX_SHARE) + rewrite + instruction)
            rows += prompts
        retold, count = sum(self._work.retellings), len(self._work.retellings)
        total, targets, rows = total + retold + TEMPLATE_TOKENS * count, targets + retold, rows + count
        row = min(total / max(rows, 1), settings.sequence_length)
        return _Training(total * settings.epochs, targets * settings.epochs, row)

    def _align(self) -> _Training:
        settings, work = self._file.align, self._work
        row = work.question_tokens + work.answer_tokens + TEMPLATE_TOKENS
        passes = work.train * settings.epochs
        return _Training(row * passes, work.answer_tokens * passes, row)

    def _recipe(self, name: str, inject: _Training, align: _Training) -> TaskCost:
        settings, task = self._file.baselines, f"baseline-{name}"
        if name == "cpt-sft":
            window = settings.cpt_window_tokens or self._file.inject.sequence_length
            stream = self._work.text_tokens * settings.cpt_epochs
            return self._trained(task, align + _Training(stream, stream, window))
        if name == "budget-match":
            return self._trained(task, align + inject)
        return self._trained(task, align)

    def _rewritten(self) -> TaskCost:
        work, limit = self._work, self._file.baselines.sdft_max_tokens
        prompts = work.train * (work.question_tokens + work.answer_tokens + TEMPLATE_TOKENS)
        return self._generated("sdft-rewrite", prompts, work.train * limit, 0.0)

    def _trained(self, task: str, training: _Training) -> TaskCost:
        flops = training_flops(self._flop_shape, training.tokens, training.targets, training.row)
        return TaskCost(task, round(training.tokens), flops, self._hours(flops, self._reached.training), 0)

    def _locked_test(self, models: int) -> TaskCost:
        """Return the test of so many models, for which the other suites are taken over, and the diagnostics."""
        work, file = self._work, self._file
        test = question_suite(work.test + work.cross, work.question_tokens, file.evaluate)
        tested = self._evaluated("locked-test", models, [test])
        again = self._calls_tokens(QUESTIONS_PER_KIND * (1 + len(DRESSED)))
        tested = replace(tested, llm_tokens=tested.llm_tokens + round(again))
        if not file.diagnose.enabled:
            return tested
        suites = diagnostic_suites(file, work.test, work.question_tokens, work.chunks, work.text_tokens)
        diagnosed = self._evaluated("locked-test", DIAGNOSED, suites)
        hours = None if self._peak is None else (tested.gpu_hours or 0.0) + (diagnosed.gpu_hours or 0.0)
        bought = tested.llm_tokens + diagnosed.llm_tokens + round(self._rewording_tokens())
        return TaskCost("locked-test", tested.tokens + diagnosed.tokens, tested.flops + diagnosed.flops, hours, bought)

    def _evaluated(self, task: str, models: int, suites: Sequence[Suite]) -> TaskCost:
        prompts = sum(one.rows * (one.prompt_tokens + TEMPLATE_TOKENS) for one in suites)
        written = sum(one.rows * one.reply_tokens for one in suites)
        voted = [(one, one.shown_tokens) for one in suites if one.shown_tokens is not None]
        a_vote = self._work.answer_tokens + _prompt_tokens("judge") + VERDICT_TOKENS
        judges = sum(one.rows * (2 * shown + one.reply_tokens + a_vote) for one, shown in voted)
        return self._generated(task, models * prompts, models * written, models * self._votes() * judges)

    def _rewording_tokens(self) -> float:
        """Return the tokens of the test questions in a teacher's other words."""
        if not isinstance(self._file.qa_build.teacher, Endpoint):
            return 0.0
        return self._work.test * (2 * self._work.question_tokens + _prompt_tokens("reword"))

    def _generated(self, task: str, prompts: float, written: float, llm_tokens: float) -> TaskCost:
        flops = 2.0 * self._shape.matrix_parameters * (prompts + written)
        return TaskCost(task, round(written), flops, self._hours(flops, self._reached.generation), round(llm_tokens))

    def _audit_tokens(self) -> float:
        """Return the tokens of the audit that every judge goes through before it judges."""
        return self._calls_tokens(QUESTIONS_PER_KIND * len(ATTACKS) + len(calibration()))

    def _calls_tokens(self, calls: int) -> float:
        """Return the tokens of so many calls to each judge of the panel that is a server."""
        servers = sum(isinstance(judge, Endpoint) for judge in self._file.evaluate.judges)
        return servers * calls * (_prompt_tokens("judge") + AUDIT_TOKENS + VERDICT_TOKENS)

    def _oracle_tokens(self, stage: str) -> float:
        """Return what the oracle reads and writes for a training; its audit is left out."""
        oracle, work = self._file.oracle, self._work
        if not (oracle.watches(stage) and isinstance(oracle.judge, Endpoint)):
            return 0.0
        epochs = self._file.inject.epochs if stage == "inject" else self._file.align.epochs
        a_call = work.question_tokens + self._file.evaluate.domain_max_tokens + work.answer_tokens
        return epochs * min(oracle.prompts, work.train) * (a_call + _prompt_tokens("judge") + VERDICT_TOKENS)

    def _votes(self) -> float:
        """Return the votes of LLMs on a reply: rules cost nothing."""
        shares = (1.0, 1.0, THIRD_RATE)
        judges = zip(self._file.evaluate.judges, shares, strict=True)
        return sum(share for judge, share in judges if isinstance(judge, Endpoint))

    def _teacher_tokens(self) -> float:
        """Return the tokens of all steps, with as many questions as may be, half of which reach the answer."""
        if not isinstance(self._file.qa_build.teacher, Endpoint):
            return 0.0
        work, settings = self._work, self._file.qa_build
        chunk = work.text_tokens / max(work.chunks, 1)
        drafts = settings.max_anchors
        question = work.question_tokens
        a_chunk = 2 * chunk + _prompt_tokens("anchors", "types") + 2 * VERDICT_TOKENS
        proposed = settings.question_candidates * question
        a_draft = chunk + _prompt_tokens("question", "self_contained") + proposed + question + VERDICT_TOKENS
        an_answer = 2 * (chunk + question) + _prompt_tokens("grounded", "answer") + VERDICT_TOKENS + work.answer_tokens
        a_kind = work.text_tokens * (1 + SKELETON_SHARE)
        notes = sum(a_kind + len(work.documents) * _prompt_tokens(kind) for kind in settings.rewrite_inputs)
        # A crossing shows its two chunks to the teacher in six calls, four times both and twice one of them.
        a_crossing = 8 * chunk + _prompt_tokens("cross_question", *3 * ("grounded",), "self_contained", "answer")
        a_crossing += proposed + 5 * question + 4 * VERDICT_TOKENS + work.answer_tokens
        questions = work.chunks * (a_chunk + drafts * (a_draft + an_answer / 2))
        return questions + notes + settings.cross_questions * a_crossing + self._retelling_tokens()

    def _retelling_tokens(self) -> float:
        """Return the tokens of paraphrases and relation texts, each written once and certified once."""
        settings, work = self._file.qa_build, self._work
        total = 0.0
        if "paraphrase" in settings.augment:
            passages = work.text_tokens / MOST_TOKENS + len(work.documents) / 2
            calls = passages * len(REGISTERS)
            total += len(REGISTERS) * 4 * work.text_tokens
            total += calls * (_prompt_tokens("paraphrase", "faithful") + VERDICT_TOKENS)
        if "relations" in settings.augment:
            texts = settings.relations_per_document * len(work.documents)
            total += settings.relations_per_document * 2 * work.text_tokens
            total += texts * (_prompt_tokens("relations", "faithful") + 2 * MOST_TOKENS + VERDICT_TOKENS)
        return total

    def _hours(self, flops: float, mfu: float) -> float | None:
        return None if self._peak is None else flops / (mfu * self._peak) / 3600


def _prompt_tokens(*names: str) -> float:
    prompts = [load_prompt(name) for name in names]
    return sum(tokens(prompt.system) + tokens(prompt.user) for prompt in prompts)


def _assumptions(run_file: RunFile, work: Workload, peak: float | None, reached: Reached) -> Iterator[str]:
    if peak is None:
        yield "GPU-hours are unknown: platform.pool.node_selector names no GPU whose peak is known"
    else:
        yield (
            f"{peak / 1e12:.0f} TFLOP/s in bfloat16 a GPU, of which training reaches {reached.training:.0%} and "
            f"generation {reached.generation:.0%}"
        )
    yield f"{BYTES_PER_TOKEN:g} bytes of text a token"
    if not work.counted:
        questions = work.train + work.validation + work.test
        yield f"{questions:,} questions, a guess until qa-build is done: max_anchors a chunk, and the share kept before"
    if "fapm" in run_file.baselines.recipes:
        yield "fapm trains vanilla once more, which it does for a model that is stored in less than fp32"
    yield f"replies as long as they may be; the third judge called on {THIRD_RATE:.0%} of the replies"
    for name, suite in work.further.items():
        if not suite.rows:
            reason = (
                "how many items it has is not known here without lm_eval_limit"
                if name.startswith(LM_EVAL)
                else "no file here"
            )
            yield f"{name}: {reason}, left out"
        elif name.startswith(LM_EVAL):
            yield f"{name}: {suite.rows:,} items of {suite.prompt_tokens:.0f} tokens, replies of {suite.reply_tokens}"
    if run_file.oracle.judge is not None:
        yield "the replies to the oracle, and its audit: left out"
    if run_file.run.on:
        yield "what is asked about earlier documents: left out"
    places = {name: getattr(run_file.evaluate, name) for name in work.suites}
    for name, place in places.items():
        if not work.suites[name].rows:
            yield f"evaluate.{name}: {place} is neither a file here nor a hub id of known size, left out"
