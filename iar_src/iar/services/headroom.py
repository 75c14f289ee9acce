"""Other models beside theta_0 on the documents: who needs clearly fewer bits for them has read them before."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from iar.config import ModelSection, RunFile
from iar.errors import UserError
from iar.records import BitsPerByte, read_records, write_records
from iar.services.bpb import BpbTexts, measure_bpb
from iar.services.checkpoints import weights_digest
from iar.services.models import find_local, resolve_base

BESIDE = "bpb-beside.jsonl"


def measure_beside(
    run_file: RunFile, texts: BpbTexts, out: Path, state: Path, update: Callable[[float, float, str], None]
) -> list[BitsPerByte]:
    """Return the bits per byte of the models of `diagnose.beside`, by transformers, in its order; kept as they come.

    What is not here is fetched for as long as it is read. Raises UserError for a model that nobody has.
    """
    from iar.services.engine import Engine

    path, wanted = out / BESIDE, run_file.diagnose.beside
    known = {one.model: one for one in read_beside(out)}
    for number, source in enumerate(wanted):
        update(number, len(wanted), f"bits per byte of {source}")
        if source in known:
            continue
        with _weights(source, state) as folder:
            engine = Engine(folder, batch_size=run_file.evaluate.batch_size)
            known[source] = measure_bpb(source, weights_digest(folder), engine, texts)
        out.mkdir(parents=True, exist_ok=True)
        write_records(path, known.values())
    return [known[source] for source in wanted]


def read_beside(folder: Path) -> list[BitsPerByte]:
    """Return what was measured of other models; none where none was asked for."""
    path = folder / BESIDE
    return list(read_records(path, BitsPerByte)) if path.is_file() else []


@contextmanager
def _weights(source: str, state: Path) -> Iterator[Path]:
    name, _, revision = source.partition("@")
    model = ModelSection(source=name, revision=revision or "main")
    try:
        if local := find_local(model):
            yield local
            return
        state.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=state) as folder:
            (place := Path(folder) / "model").mkdir()
            resolve_base(model, place)
            yield place
    except UserError as error:
        raise UserError(str(error).replace("model.source", "diagnose.beside")) from error
