"""The weights of a base model under the tokenizer and chat template of its instruct version."""

import shutil
from pathlib import Path

from iar.config import ModelSection
from iar.errors import UserError
from iar.services.checkpoints import read_json
from iar.services.merge_checks import tokenizer_facts
from iar.services.models import load_tokenizer, resolve_base

KEY = "baselines.cpt_model"


def base_with_tokenizer(source: str, revision: str, instruct: Path, folder: Path) -> Path:
    """Put the model `source` into `folder` with everything about text taken from `instruct`; return `folder`.

    One that is there already, from an earlier try, is left. Raises UserError where the model is not to be had or
    gives other ids to the tokens.
    """
    if folder.is_dir():
        return folder
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        resolve_base(ModelSection(source=source, revision=revision), part)
    except UserError as error:
        raise UserError(str(error).replace("model.source", KEY)) from error
    _check_same_ids(source, part, instruct)
    for name in ("chat_template.jinja", "generation_config.json"):
        (part / name).unlink(missing_ok=True)
        if (instruct / name).is_file():
            shutil.copyfile(instruct / name, part / name)
    load_tokenizer(instruct).save_pretrained(part)
    part.rename(folder)
    return folder


def _check_same_ids(source: str, base: Path, instruct: Path) -> None:
    """Refuse a base that knows a token of the instruct model under another id, or has no row for one."""
    known, wanted = (tokenizer_facts(folder)["vocabulary"] for folder in (base, instruct))
    for token, number in sorted(wanted.items()):
        if known.get(token, number) != number:
            raise UserError(
                f"{KEY}: {source} has token {token!r} as id {known[token]}, model.source as {number}; give the base "
                "model that model.source was made from"
            )
    rows = int(read_json(base / "config.json").get("vocab_size", 0))
    if rows and wanted and max(wanted.values()) >= rows:
        raise UserError(
            f"{KEY}: {source} has {rows} embeddings, model.source uses id {max(wanted.values())}; give the base model "
            "that model.source was made from, with embeddings for the chat template's tokens"
        )
