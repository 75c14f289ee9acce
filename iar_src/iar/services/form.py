"""The form that a person fills in to start the pipeline in the Kubeflow UI, and the run file that comes of it.

A field left out or empty leaves what the run file says. The pipeline's first task makes the effective run file, and all
others are given its text: the form and the same run file written out are one run, with the same keys.
"""

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from iar.config import RunFile
from iar.errors import IarError, TemporaryError, UserError
from iar.methods.explain import redact, shown
from iar.services.guards import end_with_runner
from iar.services.run_files import read_run_file
from iar.services.stage_keys import look_up
from iar.services.training_fit import check_pool

# What each field sets; `run_file` is the one beside them.
FIELDS = {
    "model": "model.source",
    "documents": "documents.path",
    "recipe": "inject.recipe",
    "inject_epochs": "inject.epochs",
    "align_epochs": "align.epochs",
    "gpu_pool": "platform.pool.node_selector",
    "experiment": "register.experiment",
}
# What a compiled pipeline is made of: with other values it is another pipeline.
COMPILED = (
    "baselines.recipes",
    "platform.backend",
    "platform.candidate_shards",
    "platform.image",
    "platform.pool.cpus_per_process",
    "platform.pool.gpu",
    "platform.pool.memory_gb_per_process",
    "platform.pool.secrets",
    "platform.pool.state_claim",
    "platform.pool.tolerations",
    "qa_build.shards",
    "select.prune_to",
)
PLACE = re.compile(r"(/|(file|https?|s3)://)\S+")
LABEL = re.compile(r"(?:[a-z0-9.-]+/)?[A-Za-z0-9][\w.-]*")
MOST_BYTES = 1_000_000
ANSWER_SECONDS = 30.0


class SummaryOutput(Protocol):
    """The part of kfp.dsl.Markdown that a component uses."""

    path: str


def run_form(fields: Mapping[str, str | int], compiled: str, summary: SummaryOutput) -> RunFile:
    """Return the effective run file inside a pipeline component, and show it in the UI.

    An error ends the process with its exit code, one line a fault.
    """
    end_with_runner()
    try:
        run_file = effective(fields, compiled)
    except IarError as error:
        print(error, file=sys.stderr)
        raise SystemExit(int(error.exit_code)) from error
    filled = [f"`{FIELDS[name]}`: {value}" for name, value in _filled(fields).items() if name in FIELDS]
    text = [f"Run **{run_file.run_id}**, sha256:{run_file.digest}", ", ".join(filled) or "As the run file says."]
    Path(summary.path).write_text("\n\n".join([*text, f"```json\n{run_file.canonical()}\n```"]), encoding="utf-8")
    return run_file


def effective(fields: Mapping[str, str | int], compiled: str) -> RunFile:
    """Return the run file of a form: `run_file` in it is a text or the place of one, else the compiled one counts.

    Raises UserError with one line a fault, each naming the field or the place in the run file.
    """
    base = RunFile.model_validate_json(compiled)
    filled = _filled(fields)
    given = str(filled.pop("run_file", ""))
    text, name = _text_of(given) if given else (compiled, "compiled run file")
    run_file = read_run_file(text, name, {FIELDS[field]: (field, _value(field, filled[field])) for field in filled})
    _check_compiled(run_file, base)
    check_pool(run_file)
    return run_file


def _filled(fields: Mapping[str, str | int]) -> dict[str, str | int]:
    """Return the fields that say something: neither empty, nor blank, nor 0."""
    given = {name: value.strip() if isinstance(value, str) else value for name, value in fields.items()}
    return {name: value for name, value in given.items() if value}


def _value(field: str, value: str | int) -> Any:
    if field != "gpu_pool":
        return value
    labels = {}
    for part in str(value).split(","):
        label, _, wanted = part.strip().partition("=")
        if not (LABEL.fullmatch(label) and LABEL.fullmatch(wanted)):
            raise UserError(
                f"gpu_pool: {shown(value)} is no label of nodes; write label=value, such as "
                "nvidia.com/gpu.product=NVIDIA-A100-SXM4-40GB, several with commas"
            )
        labels[label] = wanted
    return labels


def _check_compiled(run_file: RunFile, base: RunFile) -> None:
    if run_file.qa_build.counts_tokens and not base.qa_build.counts_tokens:
        raise UserError(
            "run_file: qa_build: counts the model's tokens (chunk_tokens, or augment: [paraphrase]), and this pipeline "
            "was compiled without; compile one from this run file (iar submit), or change the key"
        )
    if bool(run_file.run.on) != bool(base.run.on):
        started = "a run on another" if base.run.on else "runs from theta_0"
        raise UserError(
            f"run_file: run.on: {run_file.run.on or 'empty'}, and this pipeline was compiled for {started}; compile "
            "one from this run file (iar submit), or change the key"
        )
    asked, made = run_file.model_dump(mode="json"), base.model_dump(mode="json")
    wrong = [key for key in COMPILED if look_up(asked, key) != look_up(made, key)]
    if wrong:
        lines = [
            f"run_file: {key}: {look_up(asked, key)!r}, and this pipeline was compiled for {look_up(made, key)!r}; "
            "compile one from this run file (iar submit), or change the key"
            for key in wrong
        ]
        raise UserError("\n".join(lines))


def _text_of(given: str) -> tuple[str, str]:
    """Return the run file's text, and its name in errors: where it lies, or the field where it was filled in."""
    if not PLACE.fullmatch(given):
        return given, "run_file"
    name = redact(given)
    url = urlsplit(given)
    if url.scheme in ("http", "https"):
        content = _from_http(given, name)
    elif url.scheme == "s3":
        content = _from_s3(given)
    else:
        content = _from_file(Path(unquote(url.path)), name)
    if len(content) > MOST_BYTES:
        raise UserError(f"run_file: {name} is larger than {MOST_BYTES} bytes and no run file; correct the address")
    try:
        return content.decode("utf-8-sig"), name
    except UnicodeDecodeError as error:
        raise UserError(f"run_file: {name}: not UTF-8 text at byte {error.start}; save it as UTF-8") from error


def _from_file(path: Path, name: str) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UserError(f"run_file: {name}: {error.strerror}; tasks see the image and the state volume only") from error


def _from_http(address: str, name: str) -> bytes:
    import httpx

    try:
        with httpx.stream("GET", address, timeout=ANSWER_SECONDS, follow_redirects=True) as answer:
            answer.raise_for_status()
            content = b""
            for part in answer.iter_bytes():
                content += part
                if len(content) > MOST_BYTES:
                    break
            return content
    except httpx.HTTPStatusError as error:
        raise UserError(f"run_file: {name} answers {error.response.status_code}; correct the address") from error
    except httpx.InvalidURL as error:
        raise UserError(f"run_file: {name} is no address ({error}); correct it") from error
    except httpx.HTTPError as error:
        raise TemporaryError(
            f"run_file: {name} does not answer ({type(error).__name__}); tasks reach the internet with "
            "manifests/components/llm-egress only"
        ) from error


def _from_s3(place: str) -> bytes:
    from iar.services.object_store import Bucket

    folder, _, file = place.rpartition("/")
    try:
        content = Bucket(folder).read(file, MOST_BYTES + 1)
    except IarError as error:
        raise type(error)(f"run_file: {error}") from error
    if content is None:
        raise UserError(f"run_file: {place}: no such object; correct the address")
    return content
