"""The run file: one strict YAML document, one section a stage. Every default lives here.

An unknown key, a wrong type or a value out of range is refused with the line, the key, the value
and the fix. Nothing changes a loaded run file.
"""

import datetime
import itertools
import re
import warnings
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationInfo, field_validator, model_validator

from iar.methods.digest import canonical_json, digest_json

# Bucket, and letters that need no escape in a key: nothing secret can stand in it.
STORE = r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(/(?P<prefix>[A-Za-z0-9._/-]*))?"
STORE_IN_WORDS = "s3://bucket/prefix, the bucket of 3 to 63 lower case letters, digits, dots and dashes"
Share = Annotated[float, Field(ge=0, le=1)]
# No setting has a use beyond these; a slip of the hand such as 1e23 does.
MOST = 10_000_000
Positive = Annotated[int, Field(gt=0, le=MOST)]
Count = Annotated[int, Field(gt=0, le=10**12)]  # a large corpus takes more tokens than MOST
Url = Annotated[str, Field(pattern=r"^https?://")]
RuleName = Literal["rule:exact", "rule:token-f1", "rule:char-ngram"]
# MLflow reads `latest` and `v3` where a version stands, and takes no alias of more than 255 characters.
ALIAS = r"[a-z][a-z0-9-]{0,254}"
NOT_AN_ALIAS = r"latest|v\d+"
RewriteKind = Literal["skeleton", "outline", "summary"]
Augmentation = Literal["paraphrase", "relations"]
Metric = Literal["domain", "general", "ifeval", "mmlu", "msbench", "retention"]
Points = Annotated[float, Field(ge=0, le=100)]
RecipeName = Literal["vanilla-sft", "cpt-sft", "budget-match", "replay", "lora", "sdft", "fapm"]
# A finished run and the SHA-256 of its theta_IA.
BUILT_ON = r"(?P<run>[a-z0-9][a-z0-9-]{0,40}-[0-9a-f]{10})@(?P<digest>[0-9a-f]{64})"


# A key that came later and stands at its default is no part of a run file's text: older runs keep their identity.
def _unset(value: Any) -> bool:
    return not value


class Section(BaseModel):
    """A part of the run file: frozen, unknown keys refused, no silent conversion of types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


# Between the two parts of a prompt, and what a judge's shows.
USER_LINE = "\n=== user ===\n"
SHOWN_TO_JUDGES = ("question", "reference", "reply")


class Endpoint(Section):
    """An OpenAI-compatible chat server. The key itself never stands in a run file."""

    name: str = Field(min_length=1, description="Short name in votes and reports.")
    base_url: Url = Field(description="Up to and without /chat/completions.")
    replicas: tuple[Url, ...] = Field(
        (),
        strict=False,
        description="More base URLs of the same model under the same key; a call goes where there is most room.",
    )
    model: str = Field(min_length=1, description="Model name as the server knows it.")
    revision: str = Field("", description="Which weights that name means now; another one buys every reply anew.")
    api_key_env: str = Field("", description="Environment variable that holds the API key; empty = no key.")
    temperature: float = Field(0.0, ge=0, description="0: judges and teachers should repeat themselves.")
    top_p: float = Field(1.0, gt=0, le=1)
    max_tokens: Positive = Field(1024, description="Longest reply, in tokens.")
    timeout_seconds: float = Field(
        120.0, gt=0, description="For one call; replies slower than half of it mean overload."
    )
    concurrency: Positive = Field(8, description="Calls in flight at once to one base URL, at most.")
    max_attempts: Positive = Field(5, description="Tries of one call before it counts as failed.")
    prompt_price: float = Field(0.0, ge=0, description="Money for a million prompt tokens, in a currency of yours.")
    completion_price: float = Field(0.0, ge=0, description="Money for a million tokens of replies.")
    budget_calls: Count | None = Field(
        None, description="Most calls of this model that the state folder may ever hold; null = no ceiling."
    )
    budget_tokens: Count | None = Field(None, description="The same ceiling in tokens, of prompts and replies.")
    budget_money: float | None = Field(None, gt=0, description="The same ceiling in money.")

    @property
    def weights(self) -> str:
        """The model, with the revision where one is named."""
        return f"{self.model}@{self.revision}" if self.revision else self.model

    def asks_like(self, other: "Endpoint") -> bool:
        """Whether the same prompt to both is one and the same question, bought once."""
        mine, theirs = ((one.weights, one.temperature, one.top_p, one.max_tokens) for one in (self, other))
        return mine == theirs

    @property
    def base_urls(self) -> tuple[str, ...]:
        """All addresses, the first one first."""
        return (self.base_url, *self.replicas)

    @property
    def has_budget(self) -> bool:
        """Whether there is a ceiling on what the model may cost."""
        return any(most is not None for most in (self.budget_calls, self.budget_tokens, self.budget_money))

    @model_validator(mode="after")
    def _money_has_a_price(self) -> Self:
        if self.budget_money is not None and not (self.prompt_price or self.completion_price):
            raise ValueError(
                f"budget_money {self.budget_money:g} never ends a run without a price; set prompt_price and "
                "completion_price, or budget_tokens instead"
            )
        return self


class EngineServer(Endpoint):
    """An OpenAI-compatible server, /completions of it, that answers in place of the models under evaluation."""

    model: str = Field(
        min_length=1,
        description="Name there; {model} in it is the model's id, such as ties-d0.3, {folder} its folder.",
    )
    reload: Literal["", "vllm"] = Field(
        "",
        description="How the server gets each model's weights: vllm = it reads their folder when told to, started with "
        "VLLM_SERVER_DEV_MODE=1; empty = it serves every model by its own name.",
    )

    @model_validator(mode="after")
    def _each_model_has_its_own_weights(self) -> Self:
        named = "{model}" in self.model or "{folder}" in self.model
        if named == bool(self.reload):
            raise ValueError(
                f"model {self.model!r} with reload {self.reload!r}: set reload to vllm for a server with one name "
                "whose weights are exchanged, or write {model} or {folder} into the name where it serves every model"
            )
        return self


class JudgeServer(Endpoint):
    """An OpenAI-compatible chat server that judges."""

    prompt: str = Field(
        "",
        exclude_if=_unset,
        description="A prompt of its own, in place of the package's: what the judge is told, a line === user ===, and "
        "what it is shown, with {question}, {reference} and {reply}; its digest is part of the judge's version.",
    )

    def asks_like(self, other: Endpoint) -> bool:
        """Whether the same text to both is one and the same question: of one prompt, model and sampling."""
        return super().asks_like(other) and self.prompt == getattr(other, "prompt", "")

    @field_validator("prompt")
    @classmethod
    def _prompt_shows_all(cls, prompt: str) -> str:
        system, line, user = prompt.partition(USER_LINE)
        if prompt and (not line or not system.strip()):
            raise ValueError("has no line === user === between what the judge is told and what it is shown")
        wrong = [
            f"{{{name}}}"
            for name in SHOWN_TO_JUDGES
            if (system.count(f"{{{name}}}"), user.count(f"{{{name}}}")) != (0, 1)
        ]
        if prompt and wrong:
            raise ValueError(f"must show {wrong[0]} once, below the line === user ===")
        if "{{" in prompt:
            raise ValueError("has {{, which Kubeflow would fill in; write one brace")
        return prompt


# How a server is reached and what it may cost; what it is asked, and so what a stage makes, is the rest.
CALLING = set(Endpoint.model_fields) - {"name", "model", "revision", "temperature", "top_p", "max_tokens"}


def _branch(value: Any) -> str:
    return "<server>" if isinstance(value, dict | Endpoint) else "<name>"


# The discriminator keeps an error about a server's key from also being reported as "not a name".
Teacher = Annotated[
    Annotated[Literal["offline"], Tag("<name>")] | Annotated[Endpoint, Tag("<server>")], Discriminator(_branch)
]
Judge = Annotated[Annotated[RuleName, Tag("<name>")] | Annotated[JudgeServer, Tag("<server>")], Discriminator(_branch)]
Engine = Annotated[
    Annotated[Literal["transformers", "vllm"], Tag("<name>")] | Annotated[EngineServer, Tag("<server>")],
    Discriminator(_branch),
]


class RunSection(Section):
    """What this run is called, what makes it repeatable, and where it keeps its state."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,40}$", description="Lower case letters, digits, dashes.")
    seed: int = Field(17, ge=0, lt=10**9, description="Seeds data order, splits, masks and bootstrap resamples.")
    state: str = Field(".iar", description="Folder for artifacts, registry and logs; not part of the digest.")
    store: str = Field(
        "",
        description="Place in an object store, s3://bucket/prefix, that has finished artifacts and restart points too; "
        "empty = this machine only; not part of the digest.",
    )
    rerun: Annotated[int, Field(ge=0, le=MOST)] = Field(
        0, description="On a cluster: raise it to start the same run once more; not part of the digest."
    )
    on: str = Field(
        "",
        exclude_if=_unset,
        description="A finished run of this state folder that this one is built on ([rolling.md](rolling.md)), as "
        "RUN-ID@SHA-256 of its theta_IA, which `iar run --on` writes; empty = from theta_0.",
    )

    @field_validator("on")
    @classmethod
    def _on_names_weights(cls, on: str) -> str:
        if on and not re.fullmatch(BUILT_ON, on):
            raise ValueError(
                "must be RUN-ID@SHA-256 of that run's theta_IA; leave it out and name the run at the command: "
                "iar run RUN.yaml --on RUN-ID"
            )
        return on

    @field_validator("store")
    @classmethod
    def _store_is_a_place(cls, store: str) -> str:
        if store and not re.fullmatch(STORE, store):
            raise ValueError(f"must be {STORE_IN_WORDS}; keys are taken from AWS_ACCESS_KEY_ID and its companions")
        return store.rstrip("/")


class ModelSection(Section):
    """The instruct model theta_0."""

    source: str = Field("smollm2-135m-instruct", min_length=1, description="Known name, folder, or hub id.")
    revision: str = Field("main", description="Hub revision; a commit makes a hub model repeatable.")
    digest: str = Field(
        "", pattern=r"^([0-9a-f]{64})?$", description="Expected SHA-256 of the weights; empty = record only."
    )
    system_turn: str | None = Field(
        None,
        description="Text of the system turn in training and evaluation; null = what the template adds by itself.",
    )


class ColumnsSection(Section):
    """Names of columns, where documents are rows (JSONL, Parquet, a hub dataset); empty = there is no such column."""

    text: str = Field("text", min_length=1, description="The document itself.")
    title: str = Field("", description="Its title; empty = a short first line.")
    id: str = Field("", description="An id of yours, kept as the document's alias.")
    licence: str = Field("", description="Its licence.")
    collection: str = Field("", description="The part of the source it belongs to; empty = its file or folder.")


class FilterSection(Section):
    """Which documents are kept: a rule a key, in this order. Each is a scorer, shown in the report with what a random
    choice of as many of each collection keeps."""

    min_words: Annotated[int, Field(ge=0, le=MOST)] = Field(
        5, description="Least words, a Han or kana character counted as one; fewer state nothing to ask about."
    )
    languages: tuple[Annotated[str, Field(pattern=r"^[a-z]{2,3}$")], ...] = Field(
        (), strict=False, description="ISO 639 codes of the languages kept, such as [en, zh]; empty = any."
    )
    min_language: Share = Field(
        0.5, description="Least 1 - probability of another language; a text too short to tell has no likely one."
    )
    max_boilerplate: Share = Field(0.5, description="Most of the characters in menus, cookie notices and the like.")
    max_repeated_lines: Share = Field(
        0.2, description="Most of the characters in lines that stood before; as for MassiveWeb (Rae et al. 2021)."
    )
    max_repeated_phrases: Share = Field(
        0.3, description="Most of the words in 10-word runs that stood before; 0.1 for web pages, manuals repeat more."
    )
    near_duplicate: Annotated[float, Field(ge=0.5, le=1)] = Field(
        0.8, description="Least Jaccard similarity of character 5-grams at which the later of two documents is dropped."
    )


class DocumentsSection(Section):
    """Where the documents come from, and which are kept. Files: .txt .md .html .pdf .docx, and .jsonl .parquet with a
    document a row."""

    path: str = Field(
        min_length=1,
        description="A folder, read recursively, or a file; s3://bucket/prefix; or a hub dataset's id. Relative to the "
        "working directory.",
    )
    revision: str = Field("main", description="Hub revision; a commit makes a hub dataset repeatable.")
    config: str = Field("", description="Configuration of a hub dataset; empty = its default.")
    split: str = Field("train", min_length=1, description="Split of a hub dataset.")
    shuffle_seed: Annotated[int, Field(ge=0, le=MOST)] | None = Field(
        None, description="Seed of the order in which a hub dataset's shards and rows come; null = as they are stored."
    )
    limit: Positive | None = Field(None, description="At most this many documents are read, the first; null = all.")
    licence: str = Field("", description="Licence of the documents, where no column names it; recorded with each.")
    columns: ColumnsSection = Field(ColumnsSection(), description="Of rows: [the keys below](#documentscolumns).")
    filter: FilterSection = Field(FilterSection(), description="What is kept: [the keys below](#documentsfilter).")


class QaBuildSection(Section):
    """From documents to questions with reference answers, split by chunk."""

    teacher: Teacher = Field("offline", description="Rule-based, or an LLM server.")
    shards: Annotated[int, Field(ge=1, le=64)] = Field(
        1,
        description="Parts of the documents that the teacher works on at once: processes here, tasks on a cluster; the "
        "dataset is the same for any number, which is not part of the digest.",
    )
    chunk_characters: int = Field(700, ge=100, le=MOST, description="Longest chunk; about one paragraph of prose.")
    chunk_tokens: Annotated[int, Field(ge=16, le=MOST)] | None = Field(
        None, description="Longest chunk in tokens of the model, in place of chunk_characters; null = none."
    )
    max_anchors: Positive = Field(8, description="K: at most this many anchors, hence questions, a chunk.")
    question_candidates: Annotated[int, Field(ge=1, le=20)] = Field(
        5,
        description="Questions an LLM teacher proposes for an anchor and type, with probabilities; one is drawn.",
    )
    cross_questions: Annotated[int, Field(ge=0, le=MOST)] = Field(
        50, description="Most questions an LLM teacher writes over two documents, a test slice of its own; 0 = none."
    )
    rewrite_inputs: tuple[RewriteKind, ...] = Field(
        ("skeleton",),
        min_length=1,
        strict=False,
        description="What is made of each document for inject's rewrite rows, which take these in turn.",
    )
    augment: tuple[Augmentation, ...] = Field(
        (),
        strict=False,
        description="Further texts an LLM teacher writes from each document for inject: paraphrases in four registers, "
        "texts on how its objects relate.",
    )
    relations_per_document: Positive = Field(
        12, description="Most pairs and triples of objects that augment: [relations] writes about, a document."
    )
    validation_share: Share = Field(0.2, description="Share of chunks whose questions pick the candidate.")
    test_share: Share = Field(0.3, description="Share of chunks whose questions stay locked until the pick.")
    evals: tuple[str, ...] = Field(
        (),
        strict=False,
        description="Files of more evaluations (JSONL with prompt, question or messages): as those of evaluate, no "
        "training data may give their prompts away.",
    )
    split_salt: str = Field("iar", description="Changes which chunks are held out, and nothing else.")

    @property
    def counts_tokens(self) -> bool:
        """Whether the stage needs the model's tokenizer: else the questions do not depend on the model."""
        return self.chunk_tokens is not None or "paraphrase" in self.augment

    @field_validator("rewrite_inputs", "augment")
    @classmethod
    def _kinds_differ(cls, kinds: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(kinds)) < len(kinds):
            raise ValueError("names a kind twice; name each once")
        return kinds

    @model_validator(mode="after")
    def _augmenting_takes_a_model(self) -> Self:
        if self.augment and self.teacher == "offline":
            raise ValueError(
                f"augment {', '.join(self.augment)} needs a language model: rules write no prose; name a server as "
                "teacher, or leave augment empty"
            )
        return self

    @model_validator(mode="after")
    def _shares_leave_training_data(self) -> Self:
        if self.validation_share + self.test_share >= 1:
            raise ValueError(
                f"validation_share {self.validation_share:g} + test_share {self.test_share:g} leaves nothing to "
                "train on; make their sum smaller than 1"
            )
        return self


class TrainingSection(Section):
    """What every training stage sets. The defaults are the paper's, batch apart (method.md)."""

    epochs: Positive = Field(3)
    learning_rate: float = Field(5e-5, gt=0, le=1)
    batch_size: Positive = Field(64, description="Rows an optimizer step, over all accumulation.")
    micro_batch_tokens: Positive = Field(2048, description="Tokens in one forward pass; bounds memory.")
    sequence_length: int = Field(
        4096,
        ge=16,
        le=MOST,
        description="Longest row in tokens; a longer passage is trained in parts, a longer answer in windows.",
    )
    warmup_share: Share = Field(0.05, description="Share of steps with a rising rate, then cosine to zero.")
    compute_dtype: Literal["auto", "bfloat16", "float32"] = Field(
        "auto",
        description="Of forward and backward passes; auto = bfloat16 where the hardware multiplies it. "
        "Master weights and optimizer state stay fp32.",
    )
    weight_decay: float = Field(0.0, ge=0)
    max_gradient_norm: float = Field(1.0, gt=0)
    checkpoint_seconds: float = Field(120.0, gt=0, description="Time between restart points.")
    restart_points: Positive = Field(
        1, description="Restart points kept on disk while training, 12 bytes a parameter each; the newest is taken up."
    )
    packing: bool = Field(
        True,
        description="Rows of a forward pass as one sequence without padding; false = rows of like length, padded.",
    )
    activation_checkpointing: bool = Field(
        False, description="Keep only each block's input and compute the rest again: less memory, about a third slower."
    )
    loss_spike_z: float = Field(
        6.0, gt=0, description="A loss this many robust deviations above the steps before it is named as a spike."
    )
    stop_on_loss_spike: bool = Field(False, description="End the training at a spike, before the weights change.")


class InjectSection(TrainingSection):
    """Stage 1: documents as instruction-conditioned reconstruction."""

    recipe: str = Field("1:1:1", description="continuation:rewrite:instruction rows a unit, whole numbers.")

    unit: Literal["document", "chunk"] = Field(
        "document",
        description="What one row reconstructs; chunks show each fact in more contexts, which small models need.",
    )

    provenance_tag: str = Field(
        "",
        max_length=200,
        description="Token or text in front of every document in a row, never trained on, such as <|source|>; "
        "{source} in it is the document's path, {kind} document, paraphrase or relations; empty = none.",
    )

    @field_validator("provenance_tag")
    @classmethod
    def _tag_has_known_places(cls, tag: str) -> str:
        unknown = [name for name in re.findall(r"\{(\w+)\}", tag) if name not in ("source", "kind")]
        if unknown:
            raise ValueError(f"has the place {{{unknown[0]}}}; there are {{source}} and {{kind}}")
        return tag

    @field_validator("recipe")
    @classmethod
    def _recipe_has_rows(cls, recipe: str) -> str:
        if not re.fullmatch(r"\d{1,3}:\d{1,3}:\d{1,3}", recipe) or not any(map(int, recipe.split(":"))):
            raise ValueError("must be three whole numbers that are not all zero, such as 1:1:2")
        return recipe

    @property
    def weights(self) -> tuple[int, int, int]:
        """Rows of (continuation, rewrite, instruction) for each passage."""
        continuation, rewrite, instruction = map(int, self.recipe.split(":"))
        return continuation, rewrite, instruction


class AlignSection(TrainingSection):
    """Stage 2: answer-only QA training; the vanilla reference is the same from theta_0."""


class BaselinesSection(Section):
    """Controls and baselines beside the method, each trained with align's settings; none unless asked for."""

    recipes: tuple[RecipeName, ...] = Field(
        (), strict=False, description="Which to train, evaluate and show; the option --recipes sets it."
    )
    cpt_model: str = Field(
        "", description="Where cpt-sft starts: a base model as known name, folder or hub id; empty = model.source."
    )
    cpt_revision: str = Field("main", description="Hub revision of cpt_model.")
    cpt_epochs: Positive = Field(3, description="Passes over the raw documents; their other settings are inject's.")
    cpt_window_tokens: Annotated[int, Field(ge=16, le=MOST)] | None = Field(
        None, description="Longest window of the raw stream in tokens; null = inject.sequence_length."
    )
    replay_data: str = Field(
        "examples/replay.jsonl",
        description="General instructions: a file of prompts and answers, or a hub id; @revision after it.",
    )
    replay_share: Share = Field(
        0.1, description="Share of the target tokens that general rows take over from the questions."
    )
    lora_rank: Positive = Field(16, description="Rank of the two factors beside each attention and MLP projection.")
    lora_alpha: float = Field(32.0, gt=0, description="The factors' product counts alpha / rank.")
    lora_rate_factor: float = Field(
        10.0, gt=0, le=1000, description="Times align.learning_rate; factors need about ten times the rate of weights."
    )
    sdft_max_tokens: Positive = Field(256, description="Longest rewrite of an answer; a longer one is refused.")
    fapm_keep: Share = Field(0.1, description="Share of each tensor's change that stays.")

    @field_validator("recipes")
    @classmethod
    def _recipes_differ(cls, recipes: tuple[RecipeName, ...]) -> tuple[RecipeName, ...]:
        """Return the recipes in the order of the tables, so that one set of them is one run."""
        if len(set(recipes)) < len(recipes):
            raise ValueError("names a recipe twice; name each once")
        return tuple(name for name in get_args(RecipeName) if name in recipes)


BLOCKS = re.compile(r"(\d{1,4})-(\d{1,4})|rest")


def _check_table_name(name: str) -> None:
    """Raise ValueError for what cannot be a part of a candidate's id."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,20}", name):
        raise ValueError(f"{name!r} is no name; write at most 21 lower case letters, digits and dashes")


class RecoverSection(Section):
    """Stage 3: the grid of merges with theta_0; the first four keys are the paper's fixed 12. lambda is 1 for TIES and
    DARE."""

    slerp_t: tuple[Share, ...] = Field((0.2, 0.3, 0.4), strict=False)
    task_arithmetic_weight: tuple[Share, ...] = Field((0.3, 0.5, 0.7), strict=False)
    ties_density: tuple[Share, ...] = Field((0.3, 0.5, 0.7), strict=False)
    dare_drop: tuple[Annotated[float, Field(ge=0, lt=1)], ...] = Field((0.1, 0.3, 0.5), strict=False)
    layer_weights: dict[str, dict[str, Share]] = Field(
        {},
        exclude_if=_unset,
        description="Task arithmetic with a weight a block range, by name, such as {late: {0-14: 0.3, 15-29: 0.7, "
        "rest: 0.5}}; rest = embedding, final norm and blocks in no range; one candidate a name.",
    )
    set_weights: dict[str, Annotated[tuple[Share, ...], Field(strict=False)]] = Field(
        {},
        exclude_if=_unset,
        description="In a run on another: a weight for the change of each document set, the oldest first, by name, "
        "such as {newer: [0.3, 0.7]}; one candidate a name.",
    )
    fisher_weight: tuple[Share, ...] = Field(
        (),
        strict=False,
        exclude_if=_unset,
        description="Task arithmetic with a weight a tensor: more where theta_IA is sure of it (Fisher information) on "
        "the questions, less where theta_0 is on baselines.replay_data, the value where both are; one candidate each.",
    )
    tuned_too: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        (),
        strict=False,
        exclude_if=_unset,
        description="Folders of further checkpoints trained from the same model, such as another run's "
        "artifacts/align/KEY/checkpoint; soups and dare_ties merge them with align's.",
    )
    soup_weight: tuple[Share, ...] = Field(
        (),
        strict=False,
        exclude_if=_unset,
        description="Factor on the mean change of align's checkpoint and those of tuned_too; one candidate a value.",
    )
    dare_ties_drop: tuple[Annotated[float, Field(ge=0, lt=1)], ...] = Field(
        (),
        strict=False,
        exclude_if=_unset,
        description="As dare_drop for each checkpoint, then the sign of the sum is elected and those that have it are "
        "averaged; of one checkpoint it is dare; one candidate a value.",
    )
    engine: Literal["stream", "mergekit"] = Field(
        "stream",
        exclude_if="stream".__eq__,
        description="What merges: one pass for all candidates, or mergekit (the extra merge) once a candidate.",
    )
    shard_gb: Annotated[float, Field(gt=0, le=1000)] = Field(
        5.0,
        exclude_if=(5.0).__eq__,
        description="Largest weights file in GB, one larger tensor apart; a model of more is written as several.",
    )
    same_within: Share = Field(
        0.01,
        exclude_if=(0.01).__eq__,
        description="Candidates closer than this share of the distance between theta_0 and theta_IA are the same to "
        "rounding, and evaluated once; 0 = only equal bytes.",
    )
    keep: Literal["pick", "all"] = Field(
        "pick",
        exclude_if="pick".__eq__,
        description="Whose weights stay on disk after a run: the pick's, the others as recipe and hash, or all; not "
        "part of the digest.",
    )

    @field_validator(
        "slerp_t",
        "task_arithmetic_weight",
        "ties_density",
        "dare_drop",
        "soup_weight",
        "dare_ties_drop",
        "fisher_weight",
    )
    @classmethod
    def _values_differ(cls, values: tuple[float, ...]) -> tuple[float, ...]:
        names = [f"{value:g}" for value in values]
        if len(set(names)) < len(names):
            raise ValueError("has a value twice; name each value once")
        return values

    @field_validator("layer_weights")
    @classmethod
    def _ranges_are_blocks(cls, tables: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
        for name, table in tables.items():
            _check_table_name(name)
            if wrong := [blocks for blocks in table if not BLOCKS.fullmatch(blocks)]:
                raise ValueError(f"{name}: {wrong[0]!r} is no range of blocks; write first-last such as 0-14, or rest")
            last = -1
            for first, end in sorted(tuple(map(int, blocks.split("-"))) for blocks in table if blocks != "rest"):
                if not last < first <= end:
                    raise ValueError(f"{name}: {first}-{end} is empty or overlaps another range; name each block once")
                last = end
            if not table:
                raise ValueError(f"{name} names no blocks; give at least one range such as 0-14, or rest")
        return tables

    @field_validator("set_weights")
    @classmethod
    def _several_sets_have_weights(cls, tables: dict[str, tuple[float, ...]]) -> dict[str, tuple[float, ...]]:
        for name, weights in tables.items():
            _check_table_name(name)
            if len(weights) < 2:
                raise ValueError(f"{name} has {len(weights)} weights; give one a document set, the oldest first")
        return tables

    @model_validator(mode="after")
    def _grid_has_candidates(self) -> Self:
        lists = (self.slerp_t, self.task_arithmetic_weight, self.ties_density, self.dare_drop)
        ours = {name: getattr(self, name) for name in ("layer_weights", "set_weights", "fisher_weight")}
        if not any((*lists, *ours.values(), self.soup_weight, self.dare_ties_drop)):
            raise ValueError("every list is empty, so nothing would be merged; give at least one value")
        if self.soup_weight and not self.tuned_too:
            raise ValueError("soup_weight needs further checkpoints; name their folders in tuned_too")
        if self.tuned_too and not (self.soup_weight or self.dare_ties_drop):
            raise ValueError("tuned_too is used by soup_weight and dare_ties_drop alone; give values to one of them")
        if self.engine == "mergekit" and (name := next((name for name, given in ours.items() if given), "")):
            raise ValueError(f"engine mergekit does not take {name}; leave them out, or set engine to stream")
        return self


class EvaluateSection(Section):
    """The judge panel, the general suites and how replies are generated."""

    judges: tuple[Judge, ...] = Field(
        ("rule:exact", "rule:token-f1", "rule:char-ngram"),
        min_length=3,
        max_length=3,
        strict=False,
        description="Two always vote, the third only where they differ. Rule names or LLM servers.",
    )
    ifeval: str = Field(
        "examples/probes/ifeval.jsonl", description="File, or hub id such as google/IFEval; @revision after it."
    )
    mmlu: str = Field(
        "examples/probes/mmlu.jsonl", description="File, or hub id such as cais/mmlu; @revision after it."
    )
    msbench: str = Field("examples/probes/msbench.jsonl", description="File of open-ended prompts.")
    suites: tuple[str, ...] = Field(
        (),
        strict=False,
        description="Suites of your own, a YAML file each ([evaluation.md](evaluation.md)); shown beside, in no score.",
    )
    date: str = Field(
        "",
        exclude_if=_unset,
        description="Day of the evaluation, such as 2026-12-01; decides which part of a rotating suite is asked; only "
        "needed by those, never taken from a clock, so that a run repeats itself.",
    )
    lm_eval: tuple[str, ...] = Field(
        (),
        strict=False,
        description="Tasks of lm-eval that are answered in words, by name or file; shown beside, in no score.",
    )
    lm_eval_limit: Positive | None = Field(
        None, description="At most this many items of each of these tasks, the first; null = all."
    )
    domain_max_tokens: Positive = Field(40)
    ifeval_max_tokens: Positive = Field(160)
    mmlu_max_tokens: Positive = Field(16)
    msbench_max_tokens: Positive = Field(128)
    engine: Engine = Field(
        "transformers",
        description="What generates the replies: transformers, or vllm, in the stage's process; or a server.",
    )
    batch_size: Positive = Field(64, description="Replies generated at once.")
    resamples: Positive = Field(2000, description="Bootstrap resamples behind every interval.")
    bpb_bytes: Annotated[int, Field(ge=1000, le=MOST)] = Field(
        20_000, description="Most UTF-8 bytes of source text, and of general text, behind a model's bits per byte."
    )
    allow_same_family: bool = Field(False, description="Allow an LLM judge of the candidate's own family.")
    private_test: bool = Field(
        False,
        exclude_if=_unset,
        description="The held-out questions are not to be shown: no question, reference or reply of the test stands in "
        "the report; they stay in the artifacts.",
    )
    max_attack_success: Share = Field(
        0.02,
        description="Share of attacks, replies that hold no answer, that a judge may score above 0; beyond it the "
        "judge is refused. 2 %: well below the differences that a run is to show.",
    )

    @field_validator("date", mode="before")
    @classmethod
    def _date_is_a_day(cls, value: Any) -> Any:
        # YAML reads a date where people write a text.
        text = value.isoformat() if type(value) is datetime.date else value
        if isinstance(text, str) and text:
            try:
                datetime.date.fromisoformat(text)
            except ValueError as error:
                raise ValueError(f"{text[:20]!r} is no day; write it as 2026-12-01") from error
        return text

    @property
    def day(self) -> datetime.date | None:
        """The day of the evaluation, if one is named."""
        return datetime.date.fromisoformat(self.date) if self.date else None

    @field_validator("judges")
    @classmethod
    def _judges_differ(cls, judges: tuple[Judge, ...]) -> tuple[Judge, ...]:
        names = [judge.name if isinstance(judge, Endpoint) else judge for judge in judges]
        if len(set(names)) < len(names):
            raise ValueError("names a judge twice; a panel needs three different judges, each with its own name")
        asking = [judge for judge in judges if isinstance(judge, Endpoint)]
        for one, other in itertools.combinations(asking, 2):
            if one.asks_like(other):
                raise ValueError(
                    f"{one.name} and {other.name} are one model, {one.weights}, with the same sampling: one reply "
                    "would be two votes; take another model, or another temperature"
                )
        return judges


class DiagnoseSection(Section):
    """Diagnostics of the pick beside theta_0 after the test: open book, other words, memory and style."""

    enabled: bool = Field(
        False, description="Twice the test questions and some 120 probes for two models: half a locked test more."
    )
    passages: Annotated[int, Field(ge=1, le=50)] = Field(
        3, description="Passages that a search by words (BM25) puts before a question; the chunks are what is searched."
    )
    continuations: Positive = Field(
        50, description="At most this many texts whose next words are asked for, of seen and of unseen documents each."
    )
    beside: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        (),
        strict=False,
        exclude_if=_unset,
        description="Other models, each a folder, a known name or a hub id, perhaps with @revision: their bits per "
        "byte of the documents beside those of theta_0, which needs clearly fewer where it has read them before.",
    )
    unseen: str = Field(
        "", description="Folder of documents that no training saw, to compare memory with; empty = theta_0 alone tells."
    )


class OracleSection(Section):
    """A judge outside the training: the checkpoint of each epoch answers training questions again and this judge scores
    the replies. A score that falls while the training gets better is a warning ([oracle.md](oracle.md))."""

    judge: Judge | None = Field(
        None,
        description="Rule name or LLM server, best a stronger one than those of evaluate; null = no oracle. Until they "
        "are scored the weights of every epoch but the last are on disk, as large as the model each.",
    )
    prompts: Annotated[int, Field(ge=2, le=1000)] = Field(
        200, description="Training questions asked at each epoch, drawn by the seed; 200 show a fall of some 10 points."
    )
    inject: bool = Field(
        False,
        description="At the epochs of Inject too, which trains on the documents: there they show access, not fit.",
    )

    def watches(self, stage: str) -> bool:
        """Whether the trainings of this stage are looked at; `align` is vanilla SFT too."""
        return self.judge is not None and (stage == "align" or (stage == "inject" and self.inject))


class SelectSection(Section):
    """The selection rule, and which point of its front is taken."""

    tolerance_points: float = Field(1.0, ge=0, description="tau, in percentage points.")
    preference: Literal["domain", "balanced", "general"] = Field(
        "domain",
        description="What the pick leads in on the front: domain is the rule, balanced the harmonic mean of D and G.",
    )
    prune_to: Annotated[int, Field(ge=0, le=MOST)] = Field(
        0,
        description="Evaluate only so many candidates, those with the fewest bits per byte of source and general text; "
        "0 = all, as the rule asks for.",
    )
    floors: dict[Metric, Points] = Field(
        {},
        description="Least points of the pick by metric, such as {ifeval: 40}; in a run on another also retention; "
        "{} = none beyond the rule's own.",
    )


def check_alias(alias: str) -> str:
    """Return the alias of a model. Raises ValueError for one that MLflow refuses or takes for a version."""
    if not re.fullmatch(ALIAS, alias):
        raise ValueError("is no alias; write lower case letters, digits and dashes, a letter first, such as champion")
    if re.fullmatch(NOT_AN_ALIAS, alias):
        raise ValueError("names a version in MLflow, not an alias; write another name, such as champion")
    return alias


class RegisterSection(Section):
    """Where the pick is registered."""

    # `model_name` is the word MLflow users know; pydantic would warn of its own `model_` prefix.
    model_config = ConfigDict(protected_namespaces=())

    model_name: str = Field("iar-demo", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    alias: str = Field("candidate", pattern=rf"^{ALIAS}$")
    tracking_uri: str = Field("", description="MLflow server; empty = SQLite in the state folder.")
    experiment: str = Field("iar")
    registry_url: str = Field("", description="SQLAlchemy URL without a password; empty = SQLite in the state folder.")
    require_signature: str = Field(
        "",
        description="Public key in PEM that must have signed a run before `iar promote` lets it serve; empty = none, "
        "because a machine alone has nobody to sign for.",
    )

    @field_validator("alias")
    @classmethod
    def _alias_names_no_version(cls, alias: str) -> str:
        return check_alias(alias)

    @field_validator("registry_url", "tracking_uri")
    @classmethod
    def _no_password(cls, url: str) -> str:
        if re.search(r"://[^/@\s]*:[^@\s]*@", url):
            raise ValueError("must not hold a password; set PGPASSWORD or MLFLOW_TRACKING_PASSWORD instead")
        return url


class PoolSection(Section):
    """Where and how a cluster trains: a job on a pool of GPU nodes, one process a GPU."""

    job: Literal["pytorchjob", "trainjob"] = Field(
        "pytorchjob", description="Kind of the job: PyTorchJob v1 of the training operator, or TrainJob of Trainer v2."
    )
    runtime: str = Field("torch-distributed", min_length=1, description="ClusterTrainingRuntime of a trainjob.")
    nodes: Annotated[int, Field(ge=1, le=256)] = Field(
        1, description="Nodes, hence pods, that share platform.processes evenly; one node needs no fast network."
    )
    node_selector: dict[str, str] = Field(
        {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"},
        description="Labels of the pool's nodes, as GPU feature discovery sets them; {} = any node.",
    )
    tolerations: tuple[str, ...] = Field(
        ("nvidia.com/gpu",), strict=False, description="Keys of the taints that keep others off the pool."
    )
    gpu: str = Field("nvidia.com/gpu", description="Resource that is one GPU; empty = trains on CPUs.")
    cpus_per_process: Annotated[float, Field(gt=0, le=MOST)] = Field(
        8.0, description="CPUs of each process; an eighth of an 8-GPU node leaves room for its system."
    )
    memory_gb_per_process: Annotated[float, Field(gt=0, le=MOST)] = Field(
        96.0, description="GiB of memory of each process, enough to load a 32B model in bfloat16."
    )
    shared_memory_gb: Annotated[float, Field(gt=0, le=MOST)] = Field(
        16.0,
        description="GiB of /dev/shm, over which NCCL exchanges inside a node; the default of 64 MiB is too small.",
    )
    state_claim: str = Field(
        "iar-state",
        description="Volume claim that all tasks mount as their state folder, and jobs where there is no run.store; "
        "empty = none, each task has a disk of its own and run.store has all that they share.",
    )
    secrets: dict[str, Annotated[str, Field(pattern=r"^[a-z0-9.-]+/[\w.-]+$")]] = Field(
        {}, description="Environment variable to secret/key: what tasks and jobs find in it, such as PGPASSWORD."
    )
    env: dict[str, str] = Field(
        {"NCCL_DEBUG": "WARN"}, description="Plain variables of the job, for NCCL above all; no secret belongs here."
    )
    queue: str = Field("", description="Kueue LocalQueue in which jobs wait; empty = jobs start at once.")
    priority_class: str = Field(
        "",
        description="PriorityClass of a pytorchjob's pods, and with a queue the WorkloadPriorityClass of either kind "
        "of job; empty = the cluster's default.",
    )
    topology_key: str = Field(
        "", description="Node label by whose value the pods of a job are kept together if possible; empty = anywhere."
    )
    queue_hours: Annotated[float, Field(gt=0, le=MOST)] = Field(
        48.0, description="Longest wait for the pool, in the queue and until the pods run; a busy weekend."
    )
    run_hours: Annotated[float, Field(gt=0, le=MOST)] = Field(
        72.0, description="Longest time that a training runs, all attempts together, waiting not counted."
    )
    retries: Annotated[int, Field(ge=0, le=100)] = Field(
        3, description="New attempts after a temporary end, such as a lost node; each goes on from a restart point."
    )
    grace_seconds: Annotated[int, Field(ge=1, le=86_400)] = Field(
        600, description="Time to write a restart point when a pod is told to end; some minutes for 32B weights."
    )

    @model_validator(mode="after")
    def _priority_reaches_the_job(self) -> Self:
        # A TrainJob has no field for the priority of its pods; Kueue reads it from the job's label.
        if self.job == "trainjob" and self.priority_class and not self.queue:
            raise ValueError(
                f"priority_class {self.priority_class} has no place in a trainjob without a queue; name a queue, or "
                "set job to pytorchjob"
            )
        return self


class PlatformSection(Section):
    """Where the stages run."""

    backend: Literal["local", "kubeflow"] = Field("local")
    candidate_shards: Annotated[int, Field(ge=1, le=12)] = Field(1, description="Parallel tasks over the candidates.")
    image: str = Field("ghcr.io/example/iar-train:0.1.0", description="Image of the components on a cluster.")
    training_engine: Literal["auto", "single", "ddp", "zero2", "zero3"] = Field(
        "auto",
        description="How training is spread: one process, replicas (ddp), or DeepSpeed with optimizer state and "
        "gradients (zero2) or weights too (zero3) in parts; auto = single for one process, else ddp.",
    )
    processes: Annotated[int, Field(ge=1, le=1024)] = Field(
        1, description="Training processes in all, one a GPU. Numbers change by rounding only."
    )
    merge_threads: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        None, exclude_if=_unset, description="Threads that merge and write candidates; null = one a CPU core."
    )
    merge_device: Annotated[str, Field(pattern=r"^(cpu|cuda(:\d+)?)$")] = Field(
        "cpu",
        exclude_if="cpu".__eq__,
        description="Where candidates are computed; cpu gives the same bits on every machine, cuda needs a GPU.",
    )
    pool: PoolSection = Field(PoolSection(), description="Where a cluster trains: [the keys below](#platformpool).")

    @model_validator(mode="after")
    def _nodes_share_processes(self) -> Self:
        if self.processes % self.pool.nodes:
            raise ValueError(
                f"processes {self.processes} cannot be shared evenly by {self.pool.nodes} nodes; set processes to a "
                "multiple of pool.nodes"
            )
        return self

    @model_validator(mode="after")
    def _engine_fits_processes(self) -> Self:
        if self.training_engine == "single" and self.processes > 1:
            raise ValueError(
                f"training_engine single has one process, not {self.processes}; set processes to 1 or "
                "training_engine to ddp"
            )
        return self


# Every class inherits a `register` method from ABCMeta; pydantic mistakes it for a parent's field.
warnings.filterwarnings("ignore", message='Field name "register" in "RunFile" shadows')


class RunFile(Section):
    """A whole run. Sections left out take their defaults."""

    run: RunSection
    model: ModelSection = ModelSection()
    documents: DocumentsSection
    qa_build: QaBuildSection = QaBuildSection()
    inject: InjectSection = InjectSection()
    align: AlignSection = AlignSection()
    baselines: BaselinesSection = BaselinesSection()
    recover: RecoverSection = RecoverSection()
    evaluate: EvaluateSection = EvaluateSection()
    # Off, it is no part of a run file's text: older runs keep their identity.
    oracle: OracleSection = Field(OracleSection(), exclude_if=lambda oracle: oracle.judge is None)
    diagnose: DiagnoseSection = DiagnoseSection()
    select: SelectSection = SelectSection()
    register: RegisterSection = RegisterSection()
    platform: PlatformSection = PlatformSection()

    @field_validator("platform")
    @classmethod
    def _tasks_share_something(cls, platform: PlatformSection, info: ValidationInfo) -> PlatformSection:
        run = info.data.get("run")
        if platform.backend == "kubeflow" and run and not (platform.pool.state_claim or run.store):
            raise ValueError(
                "pool.state_claim is empty and run.store too, so tasks share nothing; name a volume claim, or a place "
                "such as s3://bucket/prefix"
            )
        return platform

    @model_validator(mode="after")
    def _budget_holds_over_all_shards(self) -> Self:
        teacher, shards, platform = self.qa_build.teacher, self.qa_build.shards, self.platform
        budget = isinstance(teacher, Endpoint) and teacher.has_budget
        if platform.backend == "kubeflow" and shards > 1 and budget and not platform.pool.state_claim:
            raise ValueError(
                f"qa_build.shards {shards} with a budget of qa_build.teacher and no platform.pool.state_claim: each "
                "shard would spend the whole budget; name a volume claim, or set qa_build.shards to 1"
            )
        return self

    @model_validator(mode="after")
    def _an_epochs_weights_have_an_engine(self) -> Self:
        server = self.evaluate.engine
        if self.oracle.judge is None or not isinstance(server, EngineServer):
            return self
        if not server.reload and "{folder}" not in server.model:
            raise ValueError(
                f"oracle.judge with evaluate.engine.model {server.model}: a server that has each model by name knows "
                "none of an epoch; write {folder} into the name, set engine.reload, or take engine: transformers"
            )
        return self

    @model_validator(mode="after")
    def _weights_are_exchanged_by_one_task(self) -> Self:
        server = self.evaluate.engine
        if isinstance(server, EngineServer) and server.reload and self.platform.backend != "local":
            raise ValueError(
                f"evaluate.engine.reload {server.reload} with backend {self.platform.backend}: tasks that run side by "
                "side would exchange each other's weights; write {model} or {folder} into engine.model instead"
            )
        return self

    @model_validator(mode="after")
    def _retention_needs_an_earlier_run(self) -> Self:
        if "retention" in self.select.floors and not self.run.on:
            raise ValueError(
                "select.floors names retention, which is measured only in a run on another; give iar run --on RUN-ID, "
                "or leave that floor out"
            )
        return self

    @model_validator(mode="after")
    def _several_sets_need_an_earlier_run(self) -> Self:
        if self.recover.set_weights and not self.run.on:
            raise ValueError(
                "recover.set_weights weighs document sets, and without another run below it this one has one; give "
                "iar run --on RUN-ID, or leave them out"
            )
        return self

    @model_validator(mode="after")
    def _baselines_start_from_theta_0(self) -> Self:
        others = [name for name in self.baselines.recipes if name != "vanilla-sft"]
        if self.run.on and others:
            raise ValueError(
                f"baselines.recipes {', '.join(others)} with run.on: they start from theta_0 and never learn the "
                "earlier documents, so they would be compared unfairly; leave them out"
            )
        return self

    @model_validator(mode="after")
    def _earlier_run_is_in_reach(self) -> Self:
        if self.run.on and self.platform.backend == "kubeflow" and not self.platform.pool.state_claim:
            raise ValueError(
                f"run.on {self.run.on.partition('@')[0]} with backend kubeflow and no platform.pool.state_claim: the "
                "tasks find an earlier run only on the volume that has its state; name that claim, or leave run.on out"
            )
        return self

    def canonical(self) -> str:
        """Return the canonical JSON text of this run file, defaults filled in."""
        return canonical_json(self.model_dump(mode="json"))

    @property
    def digest(self) -> str:
        """SHA-256 that identifies the run: of all that decides a result, and so not of state, store and repetition."""
        return digest_json(self.deciding())

    def deciding(self) -> dict[str, Any]:
        """Return the values that decide what comes out: not where a run is kept, nor how its servers are called."""
        not_asked: dict[str, Any] = {
            "qa_build": {"shards": True, "teacher": CALLING},
            "evaluate": {"judges": {"__all__": CALLING}, "engine": CALLING | {"reload"}},
            "oracle": {"judge": CALLING},
        }
        return self.model_dump(
            mode="json", exclude={"run": {"state", "store", "rerun"}, "recover": {"keep"}, **not_asked}
        )

    @property
    def run_id(self) -> str:
        """Readable identity: name and the first 10 digits of the digest."""
        return f"{self.run.name}-{self.digest[:10]}"
