"""What must hold before two checkpoints are merged: the same tensors, tied the same way, the same tokenizer."""

import math
from pathlib import Path
from typing import Any

from iar.errors import PermanentError, UserError
from iar.methods.merge_facts import Sums
from iar.services.checkpoints import ELEMENT_BYTES, MappedTensors, TensorInfo, read_json

HEAD = "lm_head.weight"
EMBEDDING_ENDINGS = ("embed_tokens.weight", "wte.weight", "embed_in.weight")
TOKENIZER_FILES = ("tokenizer.model", "vocab.json", "merges.txt")
CUTTING_STEPS = ("normalizer", "pre_tokenizer")
# Capitals, digits, spaces, line ends, signs, accents in one and two code points, other scripts.
CUTTING_PROBES = (
    "The harbour of Velm was opened in 1911, wasn't it?",
    "  def f(x):\n\treturn x_1 + 23456  # \u00bd\r\n",
    "Cr\u00e8me bru\u0302le\u0301e \ufb01n \uff21",
    "\u4e2d\u6587\u53e5\u5b50\u3002 \u0434\u043e\u043c \u0645\u0646 \u0e44\u0e17\u0e22 \U0001f642",
)
RETRAIN = "merge only a checkpoint that was trained from this base"


def shared_layout(base: MappedTensors, tuned: MappedTensors) -> list[TensorInfo]:
    """Return the tensors that a merge writes, as the base stores them, wide dtypes first and then by name.

    A tied head is left out. Raises UserError naming a tensor that is missing, extra, of another shape, or a
    redundant head that differs from its embedding.
    """
    tied = is_tied(base)
    names_0, names_1 = (_names(tensors, tied) for tensors in (base, tuned))
    for name in sorted(names_0 ^ names_1):
        lacking, having = (tuned, base) if name in names_0 else (base, tuned)
        raise UserError(f"{lacking.folder}: tensor '{name}' is missing, {having.folder} has it; {RETRAIN}")
    for name in sorted(names_0):
        shape_0, shape_1 = base.info[name].shape, tuned.info[name].shape
        if shape_0 != shape_1:
            what = "vocabulary" if name == HEAD or name.endswith(EMBEDDING_ENDINGS) else "shape"
            raise UserError(
                f"{tuned.folder}: tensor '{name}' has {what} {list(shape_1)}, "
                f"{base.folder} has {list(shape_0)}; {RETRAIN}"
            )
    return sorted((base.info[name] for name in names_0), key=lambda info: (-ELEMENT_BYTES[info.dtype], info.name))


def is_tied(tensors: MappedTensors) -> bool:
    """Return whether the output head is the input embedding.

    Without the setting in config.json a checkpoint that stores no head is tied. Raises UserError for one that says
    it is not tied and stores no head.
    """
    path = tensors.folder / "config.json"
    if not path.is_file():
        raise UserError(f"{path}: missing; a checkpoint folder needs its config.json")
    setting = read_json(path).get("tie_word_embeddings")
    has_head = HEAD in tensors.info
    if setting is False and not has_head and _embedding(tensors):
        raise UserError(
            f"{tensors.folder}: tensor '{HEAD}' is missing and config.json says tie_word_embeddings = false; "
            "copy the whole checkpoint again"
        )
    return bool(setting) if setting is not None else not has_head


def check_same_tokenizer(base: Path, tuned: Path) -> None:
    """Raise UserError where vocabulary, merges, chat template or the way text is cut into words differ.

    How the files are laid out does not matter.
    """
    facts_0, facts_1 = tokenizer_facts(base), tokenizer_facts(tuned)
    for what, value in facts_0.items():
        if value != facts_1.get(what):
            example = _first_difference(value, facts_1.get(what))
            raise UserError(f"{tuned}: another {what} than {base}{example}; {RETRAIN}")
    rules_0, rules_1 = (read_json(folder / "tokenizer.json") for folder in (base, tuned))
    if any(rules_0.get(step) != rules_1.get(step) for step in CUTTING_STEPS):
        _check_same_ids(base, tuned)


def _check_same_ids(base: Path, tuned: Path) -> None:
    """Raise UserError naming a text that is cut in another way; rules that are written otherwise may do the same."""
    from iar.services.models import load_tokenizer

    first, second = load_tokenizer(base), load_tokenizer(tuned)
    for text in CUTTING_PROBES:
        ids_0, ids_1 = (one(text, add_special_tokens=False)["input_ids"] for one in (first, second))
        if ids_0 != ids_1:
            raise UserError(f"{tuned}: cuts {text!r} into other tokens than {base}: {ids_1}, not {ids_0}; {RETRAIN}")


def tokenizer_facts(folder: Path) -> dict[str, Any]:
    """Return what decides how text becomes token ids: vocabulary, merges, chat template, and older tokenizer files."""
    tokenizer, settings = read_json(folder / "tokenizer.json"), read_json(folder / "tokenizer_config.json")
    model = tokenizer.get("model", {})
    vocabulary = model.get("vocab", {})
    if isinstance(vocabulary, list):  # a unigram model: [piece, log probability], the id is the place
        vocabulary = {piece: place for place, (piece, _) in enumerate(vocabulary)}
    added = {token["content"]: token["id"] for token in tokenizer.get("added_tokens", [])}
    added |= {token["content"]: int(number) for number, token in settings.get("added_tokens_decoder", {}).items()}
    template = folder / "chat_template.jinja"
    facts: dict[str, Any] = {
        "vocabulary": vocabulary | added,
        "list of merges": [tuple(m.split(" ", 1)) if isinstance(m, str) else tuple(m) for m in model.get("merges", [])],
        "chat template": template.read_text(encoding="utf-8") if template.is_file() else settings.get("chat_template"),
    }
    if not tokenizer:
        facts |= {name: (folder / name).read_bytes() for name in TOKENIZER_FILES if (folder / name).is_file()}
    return facts


def check_set_weights(what: str, weights: int, sets: int) -> None:
    """Raise UserError where there are not as many weights as document sets, those of earlier runs and the own."""
    if weights != sets:
        raise UserError(
            f"recover.set_weights: {what} has {weights} weights, and with the run that this one is built on there are "
            f"{sets} document sets; give one each, the oldest first"
        )


def check_device(device: str) -> None:
    """Raise UserError where there is no such device."""
    import torch

    if device != "cpu" and not torch.cuda.is_available():
        raise UserError(f"platform.merge_device: {device}, but torch finds no GPU here; set it to cpu")


def check_finite(tensors: MappedTensors, name: str) -> None:
    """Raise PermanentError naming the tensor and its first element that is NaN or infinite."""
    import torch

    from iar.methods.merge_blocks import BLOCK_ELEMENTS

    for number, block in enumerate(tensors.flat(name).split(BLOCK_ELEMENTS)):
        if math.isfinite(float(block.float().sum())):
            continue
        bad = torch.nonzero(~torch.isfinite(block))
        if len(bad):  # else only the sum exceeds fp32
            place = int(bad[0])
            raise PermanentError(
                f"{tensors.folder}: tensor '{name}' holds {float(block[place])} at flat index "
                f"{number * BLOCK_ELEMENTS + place}; the training that wrote it diverged"
            )


def check_in_range(candidate: str, info: TensorInfo, sums: Sums) -> None:
    """Raise PermanentError where values as written are beyond the range of their dtype; `sums` are of some of them."""
    if not math.isfinite(sums.to_base):
        raise PermanentError(
            f"{candidate}: tensor '{info.name}' exceeds the range of {info.dtype}; the change from training is too "
            "large to merge"
        )


def _names(tensors: MappedTensors, tied: bool) -> set[str]:
    names = set(tensors.info)
    embedding = _embedding(tensors)
    if tied and HEAD in names and embedding:
        _check_redundant_head(tensors, embedding)
        names.remove(HEAD)
    return names


def _check_redundant_head(tensors: MappedTensors, embedding: str) -> None:
    import torch

    head_info, embedding_info = tensors.info[HEAD], tensors.info[embedding]
    same_form = (head_info.shape, head_info.dtype) == (embedding_info.shape, embedding_info.dtype)
    if not same_form or not torch.equal(tensors.flat(HEAD), tensors.flat(embedding)):
        raise UserError(
            f"{tensors.folder}: tensor '{HEAD}' differs from '{embedding}' although the base model ties them; "
            "save the checkpoint with tied embeddings, or merge with an untied base"
        )


def _embedding(tensors: MappedTensors) -> str:
    return next((name for name in sorted(tensors.info) if name.endswith(EMBEDDING_ENDINGS)), "")


def _first_difference(value: Any, other: Any) -> str:
    if isinstance(value, dict) and isinstance(other, dict):
        token = min(key for key in value.keys() | other.keys() if value.get(key) != other.get(key))
        return f": token {token!r} has id {other.get(token)}, not {value.get(token)}"
    return ""
