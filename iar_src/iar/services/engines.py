"""Which engine answers: transformers in this process, vLLM in this process, or an OpenAI-compatible server.

Whichever it is, one engine answers for all models of a stage, the weights exchanged, and it is given token ids that the
chat template of training made.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from iar.config import EngineServer, RunFile
from iar.methods.digest import digest_json
from iar.records import EvalItem, Reply
from iar.services.subjects import Subject


class ReplyEngine(Protocol):
    """Answers with the weights of one model, each prompt greedily, up to the end of its turn or the item's limit."""

    def generate(
        self, items: Sequence[EvalItem], on_progress: Callable[[int, int], None] | None = None
    ) -> Iterator[Reply]:
        """Yield a reply an item, in any order; `on_progress(finished, all)` follows each."""
        ...


OpenEngine = Callable[[Subject], ReplyEngine]


def answering(run_file: RunFile) -> str:
    """Return the digest of what in a run file decides what the same weights reply to the same items.

    The seed does where a server samples: all else is greedy.
    """
    engine, told = run_file.evaluate.engine, run_file.deciding()["evaluate"]["engine"]
    samples = isinstance(engine, EngineServer) and engine.temperature > 0
    return digest_json([told, run_file.model.system_turn, run_file.run.seed if samples else None])


def engine_opener(run_file: RunFile, cache_folder: Path, books: Path | None = None) -> OpenEngine:
    """Return the function that makes a model answer, by the engine of the run file; the last one stops answering.

    A server's replies are kept in `cache_folder`, so that a killed run asks for none twice, and what they cost is
    counted in `books`, where that is another cache.
    """
    settings, system_turn = run_file.evaluate, run_file.model.system_turn
    if settings.engine == "transformers":
        from iar.services.engine import Engine

        return lambda subject: Engine(subject.checkpoint, system_turn, settings.batch_size)
    if settings.engine == "vllm":
        from iar.services.engine_vllm import VllmEngine

        return VllmEngine(system_turn, settings.batch_size, run_file.run.seed).open
    assert isinstance(settings.engine, EngineServer)
    from iar.services.engine_server import ServerEngine

    return ServerEngine(settings.engine, system_turn, run_file.run.seed, cache_folder, books).open
