"""A small examination for tests: two questions a suite, short replies, everything on disk."""

import json
from pathlib import Path

from iar.config import RunFile
from iar.records import Chunk, QAPair, write_records

SUITES = {
    "ifeval": [
        {"key": n, "prompt": f"Write {n}.", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
        for n in range(2)
    ],
    "mmlu": [{"question": f"Which {n}?", "choices": ["a b", "c d", "e f", "g h"], "answer": n} for n in range(2)],
    "msbench": [{"id": n, "prompt": f"Explain {n}.", "reference_points": ["light"]} for n in range(2)],
}


def examination_run_file(folder: Path) -> RunFile:
    """Write the general suites into `folder`; return a run file that uses them."""
    folder.mkdir(parents=True, exist_ok=True)
    evaluate: dict[str, object] = {f"{name}_max_tokens": 4 for name in ("domain", *SUITES)}
    for name, rows in SUITES.items():
        path = folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        evaluate[name] = str(path)
    evaluate |= {"resamples": 50, "batch_size": 8}
    return RunFile.model_validate({"run": {"name": "t"}, "documents": {"path": "."}, "evaluate": evaluate})


def questions(split: str) -> list[QAPair]:
    """Return two questions of a split."""
    return [
        QAPair(
            f"{split}-{n}", "d", "c", split, "fact", f"Who is {n} in {split}?", "Tora Lind", "", (), "Tora", "offline"
        )
        for n in range(2)
    ]


def write_questions(folder: Path) -> Path:
    """Write validation and test questions as the QA build does."""
    folder.mkdir(parents=True, exist_ok=True)
    for split in ("validation", "test"):
        write_records(folder / f"{split}.jsonl", questions(split))
    text = "The harbour of Velm was opened in 1911 by the engineer Tora Lind."
    write_records(folder / "chunks.jsonl", [Chunk("c", "d", 0, len(text), text), Chunk("x", "d", 0, 5, "Other")])
    return folder
