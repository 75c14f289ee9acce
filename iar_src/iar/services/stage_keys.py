"""The key of a stage: what its result depends on, and nothing else. Equal keys mean: reuse the result."""

import functools
import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from iar.config import RunFile
from iar.errors import PermanentError
from iar.methods.digest import digest_file, digest_json
from iar.services.code_digests import code_digest


@dataclass(frozen=True)
class StageSpec:
    """What one stage depends on.

    `settings`: places in the run file. `files`: places whose value may name a file or folder, or several; their
    bytes count. `needs` and `may`: input roles as patterns. `sharded`: the result is one of several
    parts. `each_run`: the result is about this one run, never shared with another. `recipes`: for a stage
    that carries out one of several recipes, what each of them depends on instead. `hub`: places that may name a
    repository of the hub, of which the commit counts.
    """

    settings: tuple[str, ...]
    needs: tuple[str, ...] = ()
    may: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    sharded: bool = False
    each_run: bool = False
    recipes: "Mapping[str, StageSpec]" = field(default_factory=dict)
    hub: tuple[str, ...] = ()

    def of(self, recipe: str) -> "StageSpec":
        """Return what the stage depends on when it carries out `recipe`; "" where it has none."""
        return self.recipes[recipe] if recipe else self


JUDGING = ("evaluate", "model.source", "model.system_turn", "run.seed")
SUITES = ("evaluate.ifeval", "evaluate.mmlu", "evaluate.msbench")
PROBES = (*SUITES, "evaluate.suites", "evaluate.lm_eval")
EVALUATED = (*PROBES, "qa_build.evals")
INSTRUCTIONS = (*EVALUATED, "baselines.replay_data")  # general ones, and what must not be among them

QUESTIONS = ("align", "model.system_turn", "run.seed")
CPT = ("baselines.cpt_model", "baselines.cpt_revision", "baselines.cpt_epochs", "baselines.cpt_window_tokens")
# What the scores of an oracle depend on beside the training; nothing of it goes into the weights.
WATCHING = (
    "oracle",
    "model.source",
    "evaluate.engine",
    "evaluate.batch_size",
    "evaluate.domain_max_tokens",
    "evaluate.resamples",
    "evaluate.max_attack_success",
    "evaluate.allow_same_family",
)

RECIPES: dict[str, StageSpec] = {
    "cpt-sft": StageSpec(
        (*QUESTIONS, "inject", *CPT),
        needs=("data", "base"),
        files=("baselines.cpt_model",),
        hub=("baselines.cpt_model",),
    ),
    "budget-match": StageSpec(QUESTIONS, needs=("data", "base", "inject", "tuned")),
    "replay": StageSpec(
        (*QUESTIONS, *INSTRUCTIONS, "evaluate.lm_eval_limit", "baselines.replay_share"),
        needs=("data", "base"),
        files=INSTRUCTIONS,
        hub=(*SUITES, "baselines.replay_data"),
    ),
    "lora": StageSpec(
        (*QUESTIONS, *(f"baselines.lora_{name}" for name in ("rank", "alpha", "rate_factor"))), needs=("data", "base")
    ),
    "sdft": StageSpec(QUESTIONS, needs=("data", "base", "rewrites")),
    "fapm": StageSpec((*QUESTIONS, "baselines.fapm_keep"), needs=("data", "base", "vanilla")),
}

STAGES: dict[str, StageSpec] = {
    "base_model": StageSpec(
        ("model.source", "model.revision", "model.digest"), files=("model.source",), hub=("model.source",)
    ),
    "earlier_run": StageSpec(("run.on", "model.system_turn"), needs=("base",)),
    "qa_build": StageSpec(
        ("documents", "qa_build", *PROBES, "evaluate.lm_eval_limit", "run.seed"),
        may=("base", "documents", "lessons_*", "earlier"),
        files=("documents.path", *EVALUATED),
        hub=("documents.path", *SUITES),
    ),
    "qa_documents": StageSpec(
        ("documents", "qa_build.teacher", *EVALUATED, "evaluate.lm_eval_limit", "run.seed"),
        files=("documents.path", *EVALUATED),
        hub=("documents.path", *SUITES),
    ),
    "qa_shard": StageSpec(("qa_build", "run.seed"), needs=("documents",), may=("base",), sharded=True),
    "inject": StageSpec(("inject", "model.system_turn", "run.seed"), needs=("data", "base"), may=("earlier",)),
    "align": StageSpec(("align", "model.system_turn", "run.seed"), needs=("data", "base"), may=("start", "earlier")),
    "fisher": StageSpec(
        ("align.sequence_length", "model.system_turn", "run.seed", *INSTRUCTIONS, "evaluate.lm_eval_limit"),
        needs=("data", "base", "tuned"),
        may=("earlier",),
        files=INSTRUCTIONS,
        hub=(*SUITES, "baselines.replay_data"),
    ),
    "merge_candidate": StageSpec(
        ("recover", "run.seed"), ("base", "tuned"), ("earlier", "fisher"), ("recover.tuned_too",), sharded=True
    ),
    "sdft_rewrite": StageSpec(
        ("baselines.sdft_max_tokens", "evaluate.batch_size", "model.system_turn"), needs=("data", "base")
    ),
    "baseline": StageSpec((), recipes=RECIPES),
    "judge_eval": StageSpec(
        JUDGING,
        needs=("data", "base"),
        may=("vanilla", "inject", "tuned", "candidates", "baselines_*", "pruned", "earlier"),
        files=PROBES,
        hub=SUITES,
    ),
    "prune": StageSpec(
        ("select.prune_to", "evaluate.bpb_bytes", *PROBES),
        needs=("data", "base", "candidates_*"),
        files=PROBES,
        hub=SUITES,
    ),
    "selector": StageSpec(
        ("select", "recover", "evaluate.resamples", "run.seed"),
        needs=("data", "references", "candidates_*", "scores_*"),
        may=("baseline_scores",),
    ),
    "locked_test": StageSpec(
        (*JUDGING, "diagnose", "qa_build.teacher", "qa_build.chunk_characters", "documents.filter"),
        needs=("data", "selector", "base", "vanilla", "tuned", "candidates_*"),
        may=("references", "scores_*", "baselines_*", "baseline_scores", "earlier"),
        files=(*PROBES, "diagnose.unseen", "diagnose.beside"),
        hub=SUITES,
    ),
    "register": StageSpec(
        ("register",),
        needs=("data", "base", "inject", "tuned", "vanilla", "references", "candidates_*", "scores_*"),
        may=("selector", "locked_test", "baselines_*", "baseline_scores", "earlier"),
        each_run=True,
    ),
}


def key_parts(
    stage: str, run_file: RunFile, inputs: Mapping[str, str], shard: int = 1, shards: int = 1, recipe: str = ""
) -> dict[str, Any]:
    """Return everything a stage's result depends on; `inputs` are content digests by role."""
    spec = STAGES[stage].of(recipe)
    check_roles(stage, inputs, recipe)
    data = run_file.deciding()
    watched = run_file.oracle.watches(stage)
    parts: dict[str, Any] = {
        "stage": stage,
        "settings": {place: look_up(data, place) for place in spec.settings + WATCHING * watched},
        "files": {place: _digest_value(_named(place, operator.attrgetter(place)(run_file))) for place in spec.files},
        "inputs": dict(inputs),
        "code": code_digest(stage),
    }
    if spec.sharded:
        parts["shard"] = [shard, shards]
    if spec.each_run:
        parts["run"] = run_file.digest
    if recipe:
        parts["recipe"] = recipe
    if watched:
        parts["oracle"] = code_digest("oracle", "services")
    return parts


def check_roles(stage: str, roles: Iterable[str], recipe: str = "") -> None:
    """Raise PermanentError when the pipeline wires a stage with a missing or an unknown input."""
    spec, given = STAGES[stage].of(recipe), list(roles)
    missing = [need for need in spec.needs if not any(fnmatch(role, need) for role in given)]
    unknown = [role for role in given if not any(fnmatch(role, known) for known in spec.needs + spec.may)]
    if missing or unknown:
        raise PermanentError(f"stage {stage}: inputs missing: {missing}, unknown: {unknown}; mend the pipeline")


def look_up(data: dict[str, Any], place: str) -> Any:
    """Return the value at a dotted place of a run file's data."""
    return functools.reduce(lambda value, name: value[name], place.split("."), data)


def _named(place: str, value: str | Sequence[str]) -> str | Sequence[str]:
    """Return the files that a key names, those that its files name in turn included."""
    if place != "evaluate.suites":
        return value
    from iar.services.user_suites import suite_files

    return suite_files(list(value))


def _digest_value(value: str | Sequence[str]) -> str | list[str]:
    """Return the digest of the place, or of each of the places, that a key of the run file names."""
    return digest_place(value) if isinstance(value, str) else [digest_place(place) for place in value]


def digest_place(place: str) -> str:
    """Return the digest of a file's bytes, of all files below a folder, of what S3 lists below a prefix; else ""."""
    if not place:  # as a path it would be the working folder
        return ""
    if place.startswith("s3://"):
        from iar.services.object_store import Bucket

        return digest_json(list(Bucket(place).listing()))
    path = Path(place)
    if path.is_file():
        return digest_file(path)
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
        # A name is bytes, which need not be UTF-8; Latin-1 has a character for each.
        names = (os.fsencode(file.relative_to(path)).decode("latin-1") for file in files)
        return digest_json(dict(zip(names, map(digest_file, files), strict=True)))
    return ""
