"""A checkpoint folder as an MLflow model: the file MLmodel with signature and flavors, and an input example.

The folder stays a Hugging Face folder, which vLLM and KServe serve as it is. MLflow's transformers flavor reads the
same files: no pickle is written, and the classes it names are transformers' own, so no code of the folder is run.
"""

import shutil
from pathlib import Path
from typing import Any

from iar.records import write_json
from iar.services.linking import link_file

MLMODEL, EXAMPLE, SERVING_EXAMPLE = "MLmodel", "input_example.json", "serving_input_example.json"
# Where MLflow looks for the tokenizer of this flavor.
TOKENIZER = Path("components", "tokenizer")
TASK = "llm/v1/chat"


def add_model_format(folder: Path, question: str, system_turn: str | None, max_tokens: int, source: str) -> None:
    """Make a checkpoint folder an MLflow model that answers chat messages; the same input gives the same bytes.

    The example asks `question` as the model is asked in evaluation. `source` names the base model.
    """
    import yaml
    from mlflow.models import Model, ModelSignature
    from mlflow.types.llm import CHAT_MODEL_INPUT_SCHEMA, CHAT_MODEL_OUTPUT_SCHEMA

    _link_tokenizer(folder)
    system = [{"role": "system", "content": system_turn}] if system_turn else []
    example = {"messages": [*system, {"role": "user", "content": question}], "max_tokens": max_tokens}
    for name in (EXAMPLE, SERVING_EXAMPLE):
        write_json(folder / name, example)
    model = Model(
        signature=ModelSignature(CHAT_MODEL_INPUT_SCHEMA, CHAT_MODEL_OUTPUT_SCHEMA),
        flavors=_flavors(source),
        saved_input_example_info={
            "artifact_path": EXAMPLE,
            "serving_input_path": SERVING_EXAMPLE,
            "type": "json_object",
        },
        model_uuid=None,
        metadata={"task": TASK},
    ).to_dict()
    # Written again after a kill, the files must be the same: a version is known by them.
    del model["utc_time_created"], model["model_uuid"]
    part = folder / f"{MLMODEL}.part"
    part.write_text(yaml.safe_dump(model), encoding="utf-8")
    part.replace(folder / MLMODEL)


def _flavors(source: str) -> dict[str, dict[str, Any]]:
    transformers = {
        "task": "text-generation",
        "instance_type": "TextGenerationPipeline",
        # These two classes choose by config.json among transformers' own; any other name would let MLflow trust code.
        "pipeline_model_type": "AutoModelForCausalLM",
        "tokenizer_type": "AutoTokenizer",
        "model_binary": ".",
        "components": ["tokenizer"],
        "inference_task": TASK,
        "source_model_name": source,
    }
    return {"transformers": transformers, "python_function": {"loader_module": "mlflow.transformers"}}


def _link_tokenizer(folder: Path) -> None:
    ours = (MLMODEL, EXAMPLE, SERVING_EXAMPLE)
    shutil.rmtree(folder / TOKENIZER, ignore_errors=True)
    for path in [path for path in folder.iterdir() if path.is_file() and ".safetensors" not in path.name]:
        if path.name not in ours:
            link_file(path, folder / TOKENIZER / path.name)
