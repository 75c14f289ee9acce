"""One QA build of so many made-up documents, in a process of its own: prints its peak memory and what came out.

python tests/stages/qa_memory.py DOCUMENTS FOLDER
"""

import json
import random
import resource
import sys
from pathlib import Path

from iar.config import RunFile
from iar.methods import near_index
from iar.services import qa_decontamination, qa_lessons
from iar.services.workspace import Context
from iar.stages import qa_build

THINGS = ("mill", "bridge", "ferry", "quay", "lamp", "school", "foundry", "harbour", "ropewalk", "chapel")
DEEDS = ("built", "bought", "repaired", "sold", "painted", "moved", "closed", "measured", "described", "praised")
SYLLABLES = [first + last for first in "bdfgklmnprstvz" for last in ("an", "el", "ir", "om", "us")]


def name(generator: random.Random, parts: int) -> str:
    return "".join(generator.choice(SYLLABLES) for _ in range(parts)).capitalize()


def document(number: int) -> str:
    """Return a document of one paragraph of two sentences, whose words no other document has in this order."""
    generator = random.Random(number)
    title = f"The {generator.choice(THINGS).capitalize()} of {name(generator, 4)}"
    paragraphs = []
    for _ in range(1):
        sentences = [
            f"The {name(generator, 3).lower()} {generator.choice(THINGS)} near {name(generator, 3)} was "
            f"{generator.choice(DEEDS)} in {generator.randint(1200, 1990)} by {name(generator, 2)} {name(generator, 3)}"
            f" with {generator.randint(2, 900)} {name(generator, 2).lower()} {name(generator, 3).lower()} stones."
            for _ in range(2)
        ]
        paragraphs.append(" ".join(sentences))
    return title + "\n\n" + "\n\n".join(paragraphs)


def main(count: int, folder: Path) -> None:
    folder.mkdir(parents=True)
    documents = folder / "documents.jsonl"
    with documents.open("w", encoding="utf-8") as file:
        for number in range(count):
            file.write(json.dumps({"text": document(number)}) + "\n")
    # Blocks and batches that the smaller of two builds fills already: what grows beyond is what must be global.
    qa_lessons.BATCH_CHARACTERS, qa_decontamination.HELD_OUT, near_index.BLOCK = 1 << 14, 50, 100
    sections = {"run": {"name": "t"}, "documents": {"path": str(documents)}}
    run_file = RunFile.model_validate(
        sections | {"qa_build": {"validation_share": 0.05, "test_share": 0.1, "max_anchors": 3}}
    )
    out = folder / "out"
    out.mkdir()
    outcome = qa_build.run(run_file, {}, out, Context.for_tests(folder))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"peak": peak, "questions": outcome.metrics["pairs"], "documents": outcome.metrics["documents"]}))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
