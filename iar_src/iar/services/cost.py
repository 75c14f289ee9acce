"""What a run will take, task by task, before it starts: tokens, FLOP, GPU-hours, tokens of teacher and judges.

An estimate from the sizes of model and documents. Each assumption is a constant here and a line of the answer.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path

from iar.config import RunFile
from iar.errors import UserError
from iar.methods.merge_grid import grid
from iar.services.asked_suites import (
    BYTES_PER_TOKEN,
    LM_EVAL,
    Suite,
    diagnostic_suites,
    question_suite,
    with_replies,
)
from iar.services.cost_llm import SKELETON_SHARE, THIRD_RATE, LlmTokens
from iar.services.fisher import ROWS
from iar.services.model_shapes import SHAPES, ModelShape, shape_of
from iar.services.telemetry import FlopShape, named_peak, training_flops
from iar.services.workload import Workload

TEMPLATE_TOKENS = 30.0  # of the chat template and the instruction of a row
PREFIX_SHARE = 0.35  # the mean of a continuation's prefix, which is 10 to 60 %
REFERENCES = 3  # theta_0, vanilla, theta_IA
DIAGNOSED = 2  # the pick, theta_0
BPB_TEXTS = 2  # of the documents, and general


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
        self._llm = LlmTokens(run_file, work)

    def tasks(self) -> Iterator[TaskCost]:
        work, platform = self._work, self._file.platform
        yield TaskCost("qa-build", 0, 0.0, 0.0, round(self._llm.teacher()))
        inject, align = self._inject(), self._align()
        for task, stage, training in (
            ("inject", "inject", inject),
            ("align", "align", align),
            ("vanilla", "align", align),
        ):
            trained = self._trained(task, training)
            yield replace(trained, llm_tokens=round(self._llm.oracle(stage)))
        settings = self._file.evaluate
        validation = [
            question_suite(work.validation, work.question_tokens, settings),
            *with_replies(work.suites, settings),
        ]
        validation += work.further.values()
        references = self._evaluated("judge-eval-references", self._references, validation)
        # The other evaluations put the same questions to the judges, and take the replies from the cache.
        yield replace(references, llm_tokens=references.llm_tokens + round(self._llm.audit()))
        if self._file.recover.fisher_weight:
            yield self._weighed()
        candidates, kept = len(grid(self._file.recover, self._file.run.seed)), self._file.select.prune_to
        if kept:
            yield self._pruned(candidates)
        share = min(1.0, kept / candidates) if kept else 1.0
        for shard in range(platform.candidate_shards):
            count = ceil((candidates - shard) / platform.candidate_shards)
            yield self._evaluated(f"judge-eval-candidates-{shard + 1}", count * share, validation)
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

    def _weighed(self) -> TaskCost:
        """Return the gradients of theta_IA on questions and of theta_0 on instructions, taken to be as long."""
        work = self._work
        row = work.question_tokens + work.answer_tokens + TEMPLATE_TOKENS
        rows = min(ROWS, work.train) + ROWS
        return self._trained("fisher", _Training(rows * row, rows * work.answer_tokens, row))

    def _pruned(self, candidates: int) -> TaskCost:
        """Return the candidates' bits per byte: texts are read at once, as in training."""
        read = candidates * BPB_TEXTS * self._file.evaluate.bpb_bytes / BYTES_PER_TOKEN
        flops = 2.0 * self._shape.matrix_parameters * read
        return TaskCost("prune", 0, flops, self._hours(flops, self._reached.training), 0)

    def _trained(self, task: str, training: _Training) -> TaskCost:
        flops = training_flops(self._flop_shape, training.tokens, training.targets, training.row)
        return TaskCost(task, round(training.tokens), flops, self._hours(flops, self._reached.training), 0)

    def _locked_test(self, models: int) -> TaskCost:
        """Return the test of so many models, for which the other suites are taken over, and the diagnostics."""
        work, file = self._work, self._file
        test = question_suite(work.test + work.cross, work.question_tokens, file.evaluate)
        tested = self._evaluated("locked-test", models, [test])
        tested = replace(tested, llm_tokens=tested.llm_tokens + round(self._llm.own_attacks()))
        if not file.diagnose.enabled:
            return tested
        suites = diagnostic_suites(file, work.test, work.question_tokens, work.chunks, work.text_tokens)
        diagnosed = self._evaluated("locked-test", DIAGNOSED, suites)
        hours = None if self._peak is None else (tested.gpu_hours or 0.0) + (diagnosed.gpu_hours or 0.0)
        bought = tested.llm_tokens + diagnosed.llm_tokens + round(self._llm.rewordings())
        return TaskCost("locked-test", tested.tokens + diagnosed.tokens, tested.flops + diagnosed.flops, hours, bought)

    def _evaluated(self, task: str, models: float, suites: Sequence[Suite]) -> TaskCost:
        prompts = sum(one.rows * (one.prompt_tokens + TEMPLATE_TOKENS) for one in suites)
        written = sum(one.rows * one.reply_tokens for one in suites)
        return self._generated(task, models * prompts, models * written, models * self._llm.votes(suites))

    def _generated(self, task: str, prompts: float, written: float, llm_tokens: float) -> TaskCost:
        flops = 2.0 * self._shape.matrix_parameters * (prompts + written)
        return TaskCost(task, round(written), flops, self._hours(flops, self._reached.generation), round(llm_tokens))

    def _hours(self, flops: float, mfu: float) -> float | None:
        return None if self._peak is None else flops / (mfu * self._peak) / 3600


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
