"""Replies from an OpenAI-compatible server: to prompts as token ids, so that no template of its own is applied."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from iar.config import EngineServer
from iar.errors import TemporaryError, UserError
from iar.records import EvalItem, Reply
from iar.services.engine_prompts import Prompts
from iar.services.llm import ChatClient, ChatReply, CompletionRequest
from iar.services.llm_answers import one_line
from iar.services.llm_http import read_key
from iar.services.subjects import Subject

RELOAD_SECONDS = 1800.0
"""For one exchange of weights: half an hour reads those of the largest models from a slow disk."""


class ServerEngine:
    """One server that answers for one model after the other."""

    def __init__(
        self, server: EngineServer, system_turn: str | None, seed: int, cache_folder: Path, books: Path | None = None
    ) -> None:
        self._server = server
        self._system_turn = system_turn
        self._seed = seed
        self._cache_folder = cache_folder
        self._books = books

    def open(self, subject: Subject) -> "ServedModel":
        """Return the model as the server knows it, its weights loaded there where it takes them by reloading."""
        if self._server.reload:
            reload_weights(self._server, subject.checkpoint)
        name = self._server.model.replace("{model}", subject.model).replace("{folder}", str(subject.checkpoint))
        # Replies are kept by name and revision: the digest tells one model's weights from the next one's.
        endpoint = self._server.model_copy(update={"model": name, "revision": subject.digest})
        prompts = Prompts.of(subject.checkpoint, self._system_turn)
        return ServedModel(ChatClient(endpoint, self._cache_folder, books=self._books), prompts, self._seed)


class ServedModel:
    """A model behind a server."""

    def __init__(self, client: ChatClient, prompts: Prompts, seed: int) -> None:
        self._client = client
        self._prompts = prompts
        self._seed = seed

    def generate(
        self, items: Sequence[EvalItem], on_progress: Callable[[int, int], None] | None = None
    ) -> Iterator[Reply]:
        """Yield a reply an item, in their order. Raises UserError for a prompt that the server refuses."""
        requests = [
            CompletionRequest(tuple(ids), item.max_new_tokens, self._prompts.end_ids, self._seed)
            for item, ids in zip(items, self._prompts.encode(items), strict=True)
        ]
        for item, reply in zip(items, self._client.complete(requests, on_progress), strict=True):
            if reply.error:
                raise UserError(
                    f"{item.suite} item {item.id}: {self._client.endpoint.name} gave no reply ({reply.error}); mend "
                    "the server, or take evaluate.engine: transformers"
                )
            yield self._reply(item, reply)

    def _reply(self, item: EvalItem, reply: ChatReply) -> Reply:
        """Return the reply, cut off before a special end token that the server left in its text."""
        text, tokenizer = reply.text, self._prompts.tokenizer
        for token_id in set(self._prompts.end_ids) & set(tokenizer.all_special_ids):
            text = text.partition(str(tokenizer.decode(token_id)))[0]
        # Servers count the token that ends a turn; a reply's own tokens are without it.
        tokens = reply.completion_tokens - (not reply.truncated)
        return Reply(item.id, text.strip(), max(tokens, 0), reply.truncated)


def reload_weights(server: EngineServer, checkpoint: Path) -> None:
    """Make a vLLM server in development mode take the weights of a folder, and forget what it knows of prompts.

    Raises UserError where it refuses, TemporaryError where it is down.
    """
    import httpx

    key = read_key(server).get_secret_value()
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    for base_url in server.base_urls:
        root = urlsplit(base_url)
        calls: dict[str, dict[str, Any]] = {
            "collective_rpc": {"method": "reload_weights", "kwargs": {"weights_path": str(checkpoint)}},
            "reset_prefix_cache": {},
        }
        for path, body in calls.items():
            address = f"{root.scheme}://{root.netloc}/{path}"
            try:
                answer = httpx.post(address, json=body, headers=headers, timeout=RELOAD_SECONDS)
            except httpx.HTTPError as error:
                raise TemporaryError(
                    f"LLM server '{server.name}' does not take weights at {address}: {type(error).__name__}; bring it "
                    "back and run again"
                ) from error
            if answer.status_code != 200:
                raise UserError(
                    f"LLM server '{server.name}' answered HTTP {answer.status_code} at {address} "
                    f"({one_line(answer.text)}): start vLLM with VLLM_SERVER_DEV_MODE=1, where {checkpoint} can be "
                    "read, or serve each model by its name and leave reload empty"
                )
