"""docs/run-file.md, rendered from the run file's own models: each key with type, default and meaning."""

import json
import re
from collections.abc import Iterator
from typing import Any

from iar.config import RunFile

INTRODUCTION = """# The run file

One YAML document says what a run does; `pipelines/runs/demo.yaml` is a complete one. Keys left out take the defaults
below. An unknown key, a wrong type or a value out of range is refused with its line, the value and the fix.

`iar run RUN.yaml --set section.key=value` changes one value for one command; the value is YAML, and `--set` may be
repeated. Every key except `run.state`, `run.store`, `run.rerun` and `recover.keep` is part of the run's identity: the
same values are the same run, whatever the file is called. A changed value is another run, which reuses every finished
stage of the state folder that the change does not touch. The option `--state`, then the environment variable
`IAR_STATE`, go before `run.state`.

This page is rendered from `iar_src/iar/config.py`.
"""
BOUNDS = (("minimum", "≥ {}"), ("exclusiveMinimum", "> {}"), ("maximum", "≤ {}"), ("exclusiveMaximum", "< {}"))
TYPES = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true or false", "null": "null"}

# For keys whose name says it all to those who know the method, and which the models leave without a description.
MEANINGS = {
    "epochs": "Times every row is trained on.",
    "learning_rate": "Highest rate of AdamW, after the warm-up.",
    "weight_decay": "Of AdamW; 0 = none.",
    "max_gradient_norm": "A gradient whose norm over all weights is larger is scaled down to it.",
    "slerp_t": "Share of the arc from theta_0 to theta_IA; one candidate a value.",
    "task_arithmetic_weight": "Factor on the change that training made; one candidate a value.",
    "ties_density": "Share of each tensor's changes that is kept, the largest; one candidate a value.",
    "dare_drop": "Share of the changes that is dropped at random, the rest scaled up; one candidate a value.",
    "domain_max_tokens": "Longest reply to a question about the documents, in tokens.",
    "ifeval_max_tokens": "Longest reply to an IFEval prompt, in tokens.",
    "mmlu_max_tokens": "Longest reply to an MMLU question, in tokens.",
    "msbench_max_tokens": "Longest reply to an MSBench prompt, in tokens.",
    "model_name": "Name of the registered model in MLflow.",
    "alias": "Alias in MLflow that is set to the new version; `latest` and `v3` name versions there and are refused.",
    "experiment": "Experiment that holds the run, in MLflow and in Kubeflow.",
    "backend": "This machine, or a Kubeflow cluster.",
    "top_p": "Nucleus sampling; 1 = off.",
}

# Sections within sections, below all others.
INNER = {
    "documents.columns": "ColumnsSection",
    "documents.filter": "FilterSection",
    "evaluate.engine": "EngineServer",
    "evaluate.judges": "JudgeServer",
    "platform.pool": "PoolSection",
}

SERVERS = {
    "Endpoint": "[server](#an-llm-server)",
    "EngineServer": "[server](#evaluateengine)",
    "JudgeServer": "[server](#evaluatejudges)",
}

Schema = dict[str, Any]


def render_reference() -> str:
    """Return the whole page as Markdown; the same models give the same text."""
    schema = RunFile.model_json_schema()
    sections = [_section(name, schema) for name in RunFile.model_fields]
    endpoint = schema["$defs"]["Endpoint"]
    server = f"## An LLM server\n\n{endpoint['description']} Written where a teacher or a judge stands.\n\n"
    for place, model in INNER.items():
        inner = schema["$defs"][model]
        sections.append(f"## {place}\n\n{inner['description']}\n\n{_table(inner, schema['$defs'])}")
    return "\n".join([INTRODUCTION, *sections, server + _table(endpoint, schema["$defs"])])


def _section(name: str, schema: Schema) -> str:
    definition = schema["$defs"][_referred(schema["properties"][name])]
    return f"## {name}\n\n{definition['description']}\n\n{_table(definition, schema['$defs'])}"


def _referred(field: Schema) -> str:
    found = re.search(r'"#/\$defs/(\w+)"', json.dumps(field))
    if not found:
        raise ValueError(f"a section is a model of its own, not {field}")
    return found[1]


def _table(definition: Schema, models: Schema) -> str:
    required = set(definition.get("required", ()))
    rows = [
        f"| `{key}` | {_kind(field, models)} | {_default(field, key in required, models)} | {_meaning(key, field)} |"
        for key, field in definition["properties"].items()
    ]
    return "\n".join(["| key | type | default | meaning |", "| --- | --- | --- | --- |", *map(_escaped, rows), ""])


def _meaning(key: str, field: Schema) -> str:
    """Return the description, or the one kept here. Raises KeyError where a new key has neither."""
    return str(field.get("description") or MEANINGS[key])


def _escaped(row: str) -> str:
    """Keep a bar inside a code span from ending the cell."""
    return re.sub(r"`[^`]*`", lambda span: span[0].replace("|", r"\|"), row)


def _default(field: Schema, required: bool, models: Schema) -> str:
    if required:
        return "required"
    if "$ref" in field and models[_referred(field)]["type"] == "object":
        return "theirs"
    value = field["default"]
    return "empty" if value == "" else f"`{json.dumps(value, ensure_ascii=False)}`"


def _kind(field: Schema, models: Schema) -> str:
    """Return the type in words with its bounds."""
    if "$ref" in field:
        return SERVERS.get(_referred(field)) or _kind(models[_referred(field)], models)
    if alternatives := field.get("oneOf") or field.get("anyOf"):
        return ", or ".join(_kind(one, models) for one in alternatives)
    if "const" in field:
        return f"`{field['const']}`"
    if "enum" in field:
        return " or ".join(f"`{value}`" for value in field["enum"])
    if field["type"] == "array":
        return _list_kind(field, models)
    if field["type"] == "object":
        # Names of one form are a pattern, any names none.
        values = [*field.get("patternProperties", {}).values(), field.get("additionalProperties")][0]
        return f"{{name: {_kind(values, models)}}}" if "properties" not in field else "section"
    return ", ".join([TYPES[field["type"]], *_bounds(field)])


def _list_kind(field: Schema, models: Schema) -> str:
    count = f"{field['minItems']} " if "minItems" in field and field.get("minItems") == field.get("maxItems") else ""
    return f"list of {count}({_kind(field['items'], models)})"


def _bounds(field: Schema) -> Iterator[str]:
    for key, words in BOUNDS:
        if key in field:
            yield words.format(f"{field[key]:g}")
    if pattern := field.get("pattern"):
        yield f"`{pattern}`"


if __name__ == "__main__":
    print(render_reference(), end="")
