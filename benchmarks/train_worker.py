"""One side of bench_train.py in a process of its own: reads a job, trains, writes what it measured.

    python benchmarks/train_worker.py JOB.json

The job names a side (ours, trl-unpacked, trl-packed, profile, gemm), the model folder, a file of token rows, the rows
of a step, the most steps and the sequence length of packing. Rows keep their order on all sides.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from iar.config import TrainingSection
from iar.methods.batching import TokenRow, epoch_order

LEARNING_RATE = 1e-5
SEED = 17
GEMM_SECONDS = 2.0
IGNORED = -100
Job = dict[str, Any]
Measured = dict[str, Any]

# Operators of a profile by what they are; the rest is "other".
GROUPS = {
    "matrix products": ("aten::mm", "aten::addmm", "aten::bmm", "aten::linear", "mkldnn", "aten::_addmm"),
    "attention": ("scaled_dot_product", "flash_attention"),
    "optimizer": ("_fused_adamw", "_foreach", "aten::linalg_vector_norm"),
    "loss": ("logsumexp", "TargetLoss", "scatter", "aten::exp"),
    "element by element": (
        "aten::mul",
        "aten::add",
        "aten::silu",
        "aten::pow",
        "aten::rsqrt",
        "aten::neg",
        "aten::sum",
    ),
    "copies": ("aten::copy_", "aten::cat", "aten::index", "aten::fill_", "aten::zero_", "aten::clone"),
}


def job_rows(job: Job) -> list[TokenRow]:
    """Return the token rows of a job, no more than its steps take."""
    lines = Path(job["rows"]).read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines[: job["rows_in_step"] * job["steps"]]]
    return [TokenRow(**row | {"token_ids": tuple(row["token_ids"])}) for row in rows]


def settings_of(job: Job) -> TrainingSection:
    """Return our settings for a job: one epoch; a pass holds as many tokens as a packed row of the peer."""
    return TrainingSection(
        epochs=1,
        learning_rate=LEARNING_RATE,
        batch_size=job["rows_in_step"],
        micro_batch_tokens=job["sequence"],
        sequence_length=max(16, job["sequence"]),
        warmup_share=0.0,
        checkpoint_seconds=1e9,
    )


def peak_gb() -> float:
    """Return the most memory this process ever held resident, in GB."""
    status = Path("/proc/self/status")
    if status.is_file():
        # Unlike ru_maxrss it does not start at what the parent held.
        (line,) = [line for line in status.read_text().splitlines() if line.startswith("VmHWM")]
        return int(line.split()[1]) * 1024 / 1e9
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


def measured(steps: list[tuple[int, float]], loss: float, dtype: str) -> Measured:
    """Return speed and memory from (tokens, seconds) of each step; the first one warms up and does not count."""
    counted = steps[1:] or steps
    tokens, seconds = (sum(column) for column in zip(*counted, strict=True))
    return {
        "tokens_per_second": tokens / seconds,
        "peak_gb": peak_gb(),
        "tokens": tokens,
        "steps": len(counted),
        "final_loss": loss,
        "compute_dtype": dtype,
    }


def train_ours(job: Job) -> Measured:
    """Train through the product's own entry."""
    from iar.services.trainer import train

    rows = job_rows(job)
    out = Path(job["out"])
    peak = 0.0

    def on_step(step: int, steps: int, note: str) -> None:
        nonlocal peak
        peak = peak_gb()  # before the checkpoint is written, which the peer does not do

    result = train(Path(job["model"]), rows, settings_of(job), SEED, out, on_step)
    log = [json.loads(line) for line in (out / "steps.jsonl").read_text().splitlines()]
    steps = [(step["tokens"], step["seconds"]) for step in log]
    return measured(steps, result.final_loss, result.compute_dtype) | {"peak_gb": peak}


def train_trl(job: Job) -> Measured:
    """Train the same rows with TRL's SFTTrainer; masters, dtype rule, accumulation and checkpointing as ours."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, TrainerCallback
    from trl import SFTConfig, SFTTrainer

    from iar.services.hardware import compute_dtype
    from iar.services.models import load_tokenizer

    packed = job["side"] == "trl-packed"
    dtype = compute_dtype()
    rows = job_rows(job)
    rows = [rows[place] for place in epoch_order(len(rows), SEED, 0)]  # the order in which ours visits them
    labels = [[IGNORED] * row.prompt_length + list(row.token_ids[row.prompt_length :]) for row in rows]
    columns = {"input_ids": [list(row.token_ids) for row in rows], "labels": labels}
    tokens: list[int] = []
    times: list[float] = []

    class Counted(SFTTrainer):
        def training_step(self, model: Any, inputs: Any, *rest: Any, **named: Any) -> Any:
            mask = inputs.get("attention_mask")
            tokens.append(inputs["input_ids"].numel() if mask is None else int(mask.sum()))
            return super().training_step(model, inputs, *rest, **named)

    class Clock(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            times.append(-time.monotonic())

        def on_step_end(self, *_: Any, **__: Any) -> None:
            times[-1] += time.monotonic()

    config = SFTConfig(
        output_dir=job["out"],
        max_steps=job["steps"],
        per_device_train_batch_size=1 if packed else job["rows_in_step"],
        packing=packed,
        max_length=job["sequence"],
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="cosine",
        max_grad_norm=1.0,
        bf16=dtype is torch.bfloat16,
        gradient_checkpointing=False,  # its default trades a second forward pass for memory; ours keeps activations
        use_cpu=not torch.cuda.is_available(),
        train_sampling_strategy="sequential",
        seed=SEED,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    model = AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32)
    trainer = Counted(
        model=model,
        args=config,
        train_dataset=Dataset.from_dict(columns),
        processing_class=load_tokenizer(Path(job["model"])),
        callbacks=[Clock()],
    )
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return measured(list(zip(tokens, times, strict=True)), losses[-1], str(dtype).removeprefix("torch."))


def profile_step(job: Job) -> Measured:
    """Return the share of a step's processor time that each group of operators takes, the largest first."""
    import torch

    from iar.services.trainer import Trainer

    rows = job_rows(job)[: job["rows_in_step"]]
    trainer = Trainer(Path(job["model"]), settings_of(job))
    trainer.step(rows, LEARNING_RATE)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        trainer.step(rows, LEARNING_RATE)
    seconds = dict.fromkeys([*GROUPS, "other"], 0.0)
    for event in profile.key_averages():
        seconds[_group(event.key)] += event.self_cpu_time_total / 1e6
    total = sum(seconds.values())
    shares = sorted(seconds.items(), key=lambda item: -item[1])
    return {"share": {name: part / total for name, part in shares}, "seconds": total}


def _group(operator: str) -> str:
    for name, parts in GROUPS.items():
        if any(part in operator for part in parts):
            return name
    return "other"


def gemm_rate(job: Job) -> Measured:
    """Return floating-point operations a second of the model's own matrix products, forward, in the compute dtype."""
    import torch

    from iar.config import ModelSection
    from iar.services.hardware import compute_dtype
    from iar.services.model_shapes import shape_of

    shape = shape_of(ModelSection(source=job["model"]))
    if shape is None:
        raise SystemExit(f"{job['model']}/config.json lacks the sizes of a decoder; give another --model")
    dtype, device = compute_dtype(), "cuda" if torch.cuda.is_available() else "cpu"
    operations = seconds = 0.0
    for inner, outer in (
        (shape.hidden, shape.queries),
        (shape.hidden, shape.intermediate),
        (shape.intermediate, shape.hidden),
    ):
        left = torch.randn(job["sequence"], inner, device=device).to(dtype)
        right = torch.randn(outer, inner, device=device).to(dtype)
        count, taken = _repeat(lambda left=left, right=right: torch.nn.functional.linear(left, right), device)
        operations += 2.0 * job["sequence"] * inner * outer * count
        seconds += taken
    return {"flops": operations / seconds, "compute_dtype": str(dtype).removeprefix("torch.")}


def _repeat(work: Callable[[], object], device: str) -> tuple[int, float]:
    """Do `work` for about GEMM_SECONDS after one warm-up; return (times, seconds)."""
    import torch

    work()
    count, started = 0, time.perf_counter()
    while time.perf_counter() - started < GEMM_SECONDS / 3:
        work()
        count += 1
        if device == "cuda":
            torch.cuda.synchronize()
    return count, time.perf_counter() - started


SIDES: dict[str, Callable[[Job], Measured]] = {
    "ours": train_ours,
    "trl-unpacked": train_trl,
    "trl-packed": train_trl,
    "profile": profile_step,
    "gemm": gemm_rate,
}


def main() -> None:
    """Do the job of the file named on the command line; the result goes beside it."""
    path = Path(sys.argv[1])
    job = json.loads(path.read_text(encoding="utf-8"))
    path.with_suffix(".result").write_text(json.dumps(SIDES[job["side"]](job)), encoding="utf-8")


if __name__ == "__main__":
    main()
