"""A registered folder is a model for MLflow and stays one for transformers; nothing of it is code or pickle."""

import json
from pathlib import Path

import pytest

from iar.services.checkpoints import weights_digest
from iar.services.linking import tree_digests
from iar.services.model_format import add_model_format
from tests.tiny_model import make_tiny_model

QUESTION = "Which lamp burns in the tower?"


def test_mlflow_loads_it_and_answers_the_example_without_trusting_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_tiny_model(tmp_path / "model")
    weights = weights_digest(folder)
    # What a stranger's folder would bring: code that runs where it is trusted.
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoConfig": "evil.Config"}}))
    (folder / "evil.py").write_text("raise SystemExit('code of the folder was run')")
    add_model_format(folder, QUESTION, "Be brief.", 4, "tiny")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    import mlflow

    loaded = mlflow.pyfunc.load_model(str(folder))

    example = loaded.metadata.load_input_example(str(folder))
    assert example["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": QUESTION},
    ]
    assert [column.name for column in loaded.metadata.get_input_schema()][:3] == [
        "messages", "temperature", "max_tokens",
    ]  # fmt: skip
    (reply,) = loaded.predict(example)
    assert reply["choices"][0]["message"]["role"] == "assistant" and reply["usage"]["completion_tokens"] <= 4
    assert json.loads(loaded.metadata.get_serving_input(str(folder))) == example
    assert weights_digest(folder) == weights
    assert not [path for path in folder.rglob("*") if path.suffix in (".pkl", ".pt", ".bin", ".pickle")]
    assert "trust" not in (folder / "MLmodel").read_text()


def test_made_again_it_has_the_same_bytes(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model")
    add_model_format(folder, QUESTION, None, 4, "tiny")
    first = tree_digests(folder)
    add_model_format(folder, QUESTION, None, 4, "tiny")

    assert tree_digests(folder) == first
