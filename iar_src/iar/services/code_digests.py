"""The digest of the code that makes something: its sources, and those of every module of ours that they can reach."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import iar
from iar.methods.digest import digest_file, digest_json

PACKAGE = Path(iar.__file__).parent
# They keep books, move files and look ahead; a change in them cannot change what a stage computes.
BOOKKEEPING = frozenset(
    (
        "errors",
        "services.workspace",
        "services.candidates",
        "services.deeds",
        "services.store",
        "services.store_release",
        "services.store_transfer",
        "services.object_store",
        "services.restart_store",
        "services.job_store",
        "services.progress",
        "services.registry",
        "services.registry_records",
        "services.retraction",
        "services.withheld",
        "services.tracking",
        "services.training_fit",
        "services.jobs",
        "services.launcher",
        "services.oracle",
        "services.task_settings",
        "methods.job_spec",
    )
)

# Files that are no modules but decide what a stage makes, by the name under which a module reads them.
DATA_FILES = {
    '"prompts"': "prompts/*.txt",
    '"calibration"': "calibration/*.jsonl",
    '"report.html.j2"': "report/report.*",
    '"card.md.j2"': "report/card.*",
}


@functools.cache
def code_digest(name: str, layer: str = "stages") -> str:
    """Return the SHA-256 over the sources of a stage, or another module, and of every module of ours it can reach.

    Imports inside functions count, those for type checkers only do not; prompts and templates count
    where a module reads them.
    """
    sources: dict[str, str] = {}
    waiting = [start := f"{layer}.{name}"]
    while waiting:
        module = waiting.pop()
        path = source_path(module)
        if path is None or module in sources or (module in BOOKKEEPING and module != start):
            continue
        sources[module] = digest_file(path)
        source = path.read_text(encoding="utf-8")
        waiting += imported_modules(source)
        for name, pattern in DATA_FILES.items():
            if name in source:
                sources |= {path.name: digest_file(path) for path in sorted(PACKAGE.glob(pattern))}
    return digest_json(sources)


def source_path(module: str) -> Path | None:
    """Return the source file of `iar.<module>`; None when that is no module but a name inside one."""
    place = PACKAGE.joinpath(*module.split(".")) if module else PACKAGE
    return next((path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()), None)


def imported_modules(source: str) -> Iterator[str]:
    """Yield what a source imports from `iar`, without that prefix; names of functions may be among them."""
    for node in _executed_nodes(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name[4:] for alias in node.names if alias.name.startswith("iar."))
        elif isinstance(node, ast.ImportFrom) and node.module and f"{node.module}.".startswith("iar."):
            parent = node.module[4:]
            yield parent
            yield from (f"{parent}.{alias.name}".lstrip(".") for alias in node.names)


def _executed_nodes(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _executed_nodes(child)
