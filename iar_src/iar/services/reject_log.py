"""Every dropped item with its reason and its counterpart, as a Parquet file that grows with the work."""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from iar.methods.funnel import check_funnel
from iar.records import OUTCOMES, FunnelStep, Reject, from_json, to_json

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetWriter

BATCH = 2000
TEXT_CHARACTERS = 2000


class RejectLog:
    """Writes rejects to a file, which appears whole when the block ends; without a file it only counts.

    `counts` has their number by (step, reason), `outcomes` by (step, outcome).
    """

    def __init__(self, path: Path | None) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self._path = path
        self._waiting: list[Reject] = []
        self._writer: ParquetWriter | None = None

    def add(self, rejects: Iterable[Reject]) -> None:
        """Write rejects. Raises ValueError for an outcome that is none of OUTCOMES."""
        for reject in rejects:
            if reject.outcome not in OUTCOMES:
                raise ValueError(f"reject outcome {reject.outcome!r}: one of {', '.join(OUTCOMES)}")
            self.counts[reject.step, reject.reason] += 1
            self.outcomes[reject.step, reject.outcome] += 1
            if self._path:
                self._waiting.append(reject)
            if len(self._waiting) >= BATCH:
                self._flush()

    def step(self, step: str, unit: str, in_: int, kept: int) -> FunnelStep:
        """Return a step's account. Raises PermanentError unless what came in was kept or is on record here."""
        account = FunnelStep(step, unit, in_, kept, self._of(self.counts, step), self._of(self.outcomes, step))
        check_funnel([account], self.counts)
        return account

    @staticmethod
    def _of(counts: "Counter[tuple[str, str]]", step: str) -> dict[str, int]:
        return {name: count for (of, name), count in sorted(counts.items()) if of == step}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._path is None:
            return
        if kind is None:
            self._flush()  # a file with no rows too
        if self._writer:
            self._writer.close()
        if kind is None:
            self._part.replace(self._path)

    @property
    def _part(self) -> Path:
        assert self._path is not None
        return self._path.with_suffix(self._path.suffix + ".part")

    def _flush(self) -> None:
        import pyarrow as pa
        from pyarrow import parquet

        text = ("step", "item_id", "reason", "text", "counterpart", "outcome")
        schema = pa.schema([*((name, pa.string()) for name in text), ("score", pa.float64())])
        if self._writer is None:
            self._writer = parquet.ParquetWriter(self._part, schema)
        rows = [to_json(reject) | {"text": reject.text[:TEXT_CHARACTERS]} for reject in self._waiting]
        self._writer.write_table(pa.Table.from_pylist(rows, schema))
        self._waiting.clear()


def read_rejects(path: Path) -> Iterator[Reject]:
    """Yield the rejects of a file in the order in which they were dropped."""
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        for batch in file.iter_batches():
            rows: list[dict[str, Any]] = batch.to_pylist()
            yield from (from_json(Reject, row) for row in rows)
