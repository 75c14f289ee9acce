"""Preflight: what a run will need, looked at before it starts, each finding with its fix."""

import importlib.util
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from iar.config import Endpoint, RunFile
from iar.errors import UserError
from iar.methods.merge_grid import grid
from iar.services.doctor_earlier import check_earlier
from iar.services.doctor_model import check_model, model_parameters, weight_bytes
from iar.services.doctor_recipes import check_recipes, recipe_checkpoints
from iar.services.doctor_replies import check_replies
from iar.services.doctor_suites import check_suites
from iar.services.findings import Check, guarded
from iar.services.workspace import Workspace, released_bytes

GB = 1e9
LEAST_FREE_BYTES = int(2 * GB)
# theta_0, theta_I, theta_IA and vanilla.
TRAINED = 4
# A restart point holds fp32 weights and two moments. The next is written whole before the oldest goes.
RESTART_BYTES = 12
CPU_PARAMETERS = 1e9
TRAININGS = ("inject", "align", "vanilla")
ZERO_ENGINES = ("zero2", "zero3")


def examine(run_file: RunFile | None) -> Iterator[Check]:
    """Yield every finding about this machine and, if given, this run file."""
    yield from guarded("packages", check_packages)
    yield from guarded("compute", lambda: check_compute(run_file))
    if run_file is not None:
        yield from guarded("documents", lambda: check_documents(run_file))
        yield from before_run(run_file, documents=False)


def before_run(run_file: RunFile, documents: bool = True) -> Iterator[Check]:
    """Yield the cheap findings: seconds, nothing loaded."""
    if documents:
        yield from guarded("documents", lambda: find_documents(run_file))
    # What a finished stage needed is not asked for again: a finished run can be reused offline.
    if not _finished(run_file, "base-model"):
        yield from guarded("model", lambda: check_model(run_file.model))
    on_cluster = run_file.platform.backend == "kubeflow"  # its volume is not here
    if run_file.run.on and not on_cluster and not _finished(run_file, "earlier-run"):
        yield from guarded("earlier run", lambda: check_earlier(run_file))
    yield from guarded("suites", lambda: check_suites(run_file))
    for role, endpoint in endpoints(run_file):
        if not _finished(run_file, "qa-build" if role == "teacher" else "locked-test"):
            yield from guarded(role, lambda role=role, endpoint=endpoint: check_endpoint(role, endpoint))  # type: ignore[misc]
    if not _finished(run_file, "locked-test"):
        yield from guarded("replies", lambda: check_replies(run_file))
    if run_file.diagnose.enabled and not _finished(run_file, "locked-test"):
        yield from guarded("diagnose", lambda: check_diagnose(run_file))
    recipes = [name for name in run_file.baselines.recipes if not _finished(run_file, f"baseline-{name}")]
    if recipes:
        yield from guarded("recipes", lambda: check_recipes(run_file, recipes))
    yield from guarded("disk", lambda: check_disk(run_file))
    if run_file.run.store:
        yield from guarded("store", lambda: check_store(run_file.run.store))
    if not all(_finished(run_file, task) for task in TRAININGS):
        yield from guarded("engine", lambda: check_engine(run_file))
        yield from guarded("memory", lambda: check_memory(run_file))
    yield from guarded("tracking", lambda: check_tracking(run_file))


def preflight(run_file: RunFile) -> list[Check]:
    """Return the warnings of the cheap checks. Raises UserError with every failure, one a line."""
    checks = list(before_run(run_file))
    failed = [check for check in checks if check.status == "fail"]
    if failed:
        # Several checks may stumble over one fault; it is told once.
        lines = dict.fromkeys(f"{check.detail}; {check.fix}" if check.fix else check.detail for check in failed)
        raise UserError("\n".join(lines))
    return [check for check in checks if check.status == "warn"]


def _finished(run_file: RunFile, task: str) -> bool:
    return (Workspace.of(run_file).run(run_file.run_id) / "tasks" / f"{task}.json").is_file()


def check_packages() -> Check:
    """Compare the installed packages with what this package declares."""
    from importlib import metadata

    from packaging.requirements import Requirement

    try:
        declared = [Requirement(text) for text in metadata.requires("iar") or []]
    except metadata.PackageNotFoundError:
        return Check("packages", "warn", "iar runs from its source folder, not installed", "pip install -e .")
    wrong = []
    needed = [requirement for requirement in declared if not requirement.marker or requirement.marker.evaluate()]
    for requirement in needed:
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            wrong.append(f"{requirement} is missing")
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            wrong.append(f"{requirement.name} is {version}, needs {requirement.specifier}")
    if wrong:
        return Check("packages", "fail", "; ".join(wrong), "pip install -e . in the repository, or make environment")
    return Check("packages", "pass", f"{len(needed)} packages in the declared versions")


def check_compute(run_file: RunFile | None) -> Check:
    """Say what will compute: GPUs, or CPU threads."""
    import torch

    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        return Check("compute", "pass", f"torch {torch.__version__}, {len(names)} x {names[0]}")
    threads, cores = torch.get_num_threads(), os.cpu_count() or 1
    detail = f"torch {torch.__version__}, no GPU, {threads} threads on {cores} cores"
    parameters = model_parameters(run_file) if run_file else None
    if parameters and parameters > CPU_PARAMETERS:
        return Check(
            "compute", "warn", f"{detail}, for {parameters / 1e9:.1f}e9 parameters", "use a GPU: this takes days"
        )
    if "OMP_NUM_THREADS" in os.environ and threads < cores:
        return Check("compute", "warn", detail, f"unset OMP_NUM_THREADS (now {os.environ['OMP_NUM_THREADS']})")
    return Check("compute", "pass", detail)


def check_documents(run_file: RunFile) -> Check:
    """Read and filter all documents, as the run will; those of a hub or a store are only looked up."""
    from iar.services.ingest import read_documents
    from iar.services.sources import is_hub_id, is_remote, what_to_mend

    place = run_file.documents.path
    if is_remote(place) or is_hub_id(place):
        return find_documents(run_file)
    documents, rejects = read_documents(run_file.documents)
    characters = sum(len(document.text) for document in documents)
    detail = f"{len(documents)} documents, {characters:,} characters in {place}"
    if not rejects:
        return Check("documents", "pass", detail)
    left_out = "; ".join(f"{reject.item_id}: {what_to_mend(reject) or reject.reason}" for reject in rejects[:3])
    more = f" and {len(rejects) - 3} more" if len(rejects) > 3 else ""
    return Check("documents", "warn", f"{detail}; left out: {left_out}{more}", "convert or remove them if they matter")


def find_documents(run_file: RunFile) -> Check:
    """Find files of a supported type that may be read, and one that gives text; the others are not opened."""
    from iar.services.ingest import any_readable
    from iar.services.sources import KNOWN, is_hub_id, is_remote, walk, what_to_set

    place = run_file.documents.path
    if is_remote(place):
        return _find_objects(place)
    if is_hub_id(place):
        return _find_on_hub(run_file)
    folder = Path(place)
    if not folder.exists():
        detail = f"documents.path: {folder.absolute()} is not a folder or file"
        return Check("documents", "fail", detail, what_to_set(place))
    files = [path for path in (walk(folder) if folder.is_dir() else [folder]) if path.suffix.lower() in KNOWN]
    if not files:
        known = " ".join(sorted(KNOWN))
        return Check("documents", "fail", f"documents.path: {folder} holds no document ({known})", "put some there")
    closed = [path for path in files if not os.access(path, os.R_OK)]
    if closed:
        return Check("documents", "fail", f"documents.path: {closed[0]} cannot be read", "allow reading it, or move it")
    if not any_readable(run_file.documents):
        return Check(
            "documents", "fail", f"documents.path: none of the {len(files)} files in {folder} gives text",
            "iar doctor says why for each; convert them to UTF-8 text, Markdown, HTML, Word or PDF with text",
        )  # fmt: skip
    return Check("documents", "pass", f"{len(files)} files in {folder}")


def _find_on_hub(run_file: RunFile) -> Check:
    """Ask the hub where the dataset is; where it does not answer, what was read before may still be used."""
    from iar.services.hub_commits import look_up, repository, stand_in
    from iar.services.sources import hub_commit

    place, revision = run_file.documents.path, run_file.documents.revision
    if _finished(run_file, "qa-build"):
        return Check("documents", "pass", f"{place} was read from the hub")
    repo = repository(run_file, "documents.path")
    if repo is None:  # the revision is a commit
        hub_commit(place, revision)
        return Check("documents", "pass", f"{place} is on the hub")
    seen = look_up(repo, Workspace.of(run_file).state)
    if seen.commit and seen.problem:
        return Check("documents", "warn", stand_in(repo, seen), "only what was read before can be used without the hub")
    commit = seen.commit or hub_commit(place, revision)
    fix = f"set documents.revision to a commit to be sure of the same rows, now {commit}"
    return Check("documents", "warn", f"documents.path: {place} will be streamed from the hub", fix)


def _find_objects(place: str) -> Check:
    """Find an object of a supported type below a place in S3."""
    from iar.services.object_store import Bucket
    from iar.services.sources import KNOWN

    bucket = Bucket(place)
    if not any(Path(name).suffix.lower() in KNOWN for name, _, _ in bucket.listing()):
        known = " ".join(sorted(KNOWN))
        return Check("documents", "fail", f"documents.path: {place} holds no document ({known})", "put some there")
    return Check("documents", "pass", f"{place} holds documents")


def check_diagnose(run_file: RunFile) -> Check:
    """Find what the diagnostics need after the locked test; on a cluster the image brings the package."""
    from iar.services.retrieval import require_search
    from iar.services.sources import is_hub_id, is_remote, what_to_set

    place = run_file.diagnose.unseen
    if place and not (is_remote(place) or is_hub_id(place) or Path(place).exists()):
        return Check("diagnose", "fail", f"diagnose.unseen: {place} is not a folder or file", what_to_set(place))
    if run_file.platform.backend == "local":
        require_search()
    return Check("diagnose", "pass", "what the diagnostics need is here")


def endpoints(run_file: RunFile) -> list[tuple[str, Endpoint]]:
    """Return the LLM servers of a run file with their roles."""
    roles: list[tuple[str, object]] = [("teacher", run_file.qa_build.teacher)]
    roles += [(f"judge {number}", judge) for number, judge in enumerate(run_file.evaluate.judges, 1)]
    roles.append(("oracle", run_file.oracle.judge))
    return [(role, server) for role, server in roles if isinstance(server, Endpoint)]


def check_endpoint(role: str, endpoint: Endpoint) -> Check:
    """Make one real call to each server."""
    from iar.services.llm import check

    check(endpoint)
    return Check(role, "pass", f"{endpoint.model} at {', '.join(endpoint.base_urls)} answers")


def check_disk(run_file: RunFile) -> Check:
    """Compare the free disk space with what the run writes.

    Less than what is surely written fails, on the machine that runs it; less than what may be is a warning.
    """
    state = Workspace.of(run_file).state
    place = next(folder for folder in (state, *state.parents) if folder.exists())
    if not place.is_dir():
        return Check("disk", "fail", f"run.state: {place} is a file", "set run.state to a folder you can write")
    if not os.access(place, os.W_OK):
        return Check("disk", "fail", f"run.state: {place} is not writable", "set run.state to a folder you can write")
    free = shutil.disk_usage(place).free
    sure = max(LEAST_FREE_BYTES, kept_bytes(run_file) - _present_bytes(state))
    need = max(sure, artifact_bytes(run_file))
    fix = "free some, or set run.state to another disk"
    if free < sure and run_file.platform.backend == "local":
        detail = (
            f"run.state: {free / GB:.1f} GB free in {place}, at least {sure / GB:.1f} GB needed for the checkpoints"
        )
        return Check("disk", "fail", f"{detail} of {run_file.model.source}", fix)
    detail = f"{free / GB:.1f} GB free in {place}, about {need / GB:.1f} GB for a first run"
    if free < need:
        return Check("disk", "warn", detail, fix)
    return Check("disk", "pass", detail)


def _present_bytes(state: Path) -> int:
    """Return how many bytes lie in the state folder, or were released there: any of it may be reused."""
    present = sum(file.stat().st_size for file in state.rglob("*") if file.is_file() and not file.is_symlink())
    return present + released_bytes(state)


def kept_bytes(run_file: RunFile) -> float:
    """Return about how many bytes of checkpoints a run has on its disk at most: candidates go after its end.

    Restart points are not counted, as a short training writes none, nor the pick, a link to its candidate; nor an
    oracle's epochs, which are gone before there are candidates.
    """
    candidates = len(grid(run_file.recover, run_file.run.seed))
    return (TRAINED + candidates + recipe_checkpoints(run_file)) * (weight_bytes(run_file) or 0)


def artifact_bytes(run_file: RunFile) -> float:
    """Return about how many bytes a first run may write: pick, restart points and epochs of one training too."""
    points = 1 + max(section.restart_points for section in (run_file.inject, run_file.align))
    watched = [run_file.align.epochs - 1] if run_file.oracle.watches("align") else [0]
    watched += [run_file.inject.epochs - 1] if run_file.oracle.watches("inject") else []
    models = (1 + max(watched)) * (weight_bytes(run_file) or 0)
    return kept_bytes(run_file) + models + points * RESTART_BYTES * (model_parameters(run_file) or 0)


def check_engine(run_file: RunFile) -> Check:
    """Find the package that the training engine needs; on a cluster the image brings it."""
    from iar.services.trainer import engine_name

    name = engine_name(run_file.platform)
    on_cluster = run_file.platform.backend == "kubeflow"
    if name in ZERO_ENGINES and not on_cluster and importlib.util.find_spec("deepspeed") is None:
        detail = f"platform.training_engine: {name} needs DeepSpeed, which is not installed"
        return Check("engine", "fail", detail, "pip install 'iar[distributed]', or set training_engine to ddp")
    return Check("engine", "pass", f"{name}, training processes: {run_file.platform.processes}")


def check_memory(run_file: RunFile) -> Check:
    """Compare what training processes take with this machine's memory, or the pool's GPUs; more than there is fails."""
    from iar.services.training_fit import demand, pool_machine, refusal, remedy, settings_that_fit, this_machine

    on_cluster = run_file.platform.backend == "kubeflow"
    need = demand(run_file, auto_dtype="bfloat16" if on_cluster else None)
    if need is None:
        return Check("memory", "pass", f"the size of {run_file.model.source} is known once it is here")
    about = f"about {need.memory.total:.1f} GB for each of {need.ranks} training processes"
    machine = pool_machine(run_file.platform) if on_cluster else this_machine(need.ranks)
    if machine is None:
        labels = (
            ", ".join(f"{key}={value}" for key, value in run_file.platform.pool.node_selector.items()) or "any node"
        )
        unknown = f"the memory of the pool's GPUs is unknown (platform.pool.node_selector: {labels})"
        return Check("memory", "warn", f"{about}; {unknown}", "name a GPU with its size there, or see that it fits")
    if refused := refusal(need, machine):
        return Check("memory", "fail", refused, remedy(need, machine))
    if on_cluster:
        return Check("memory", "pass", f"{about}, {machine.total_gb:.1f} GB on {machine.name}")
    detail = f"{about}, {machine.free_gb:.1f} GB free of {machine.total_gb:.1f} GB"
    if machine.free_gb < machine.taken_gb(need.memory):
        advice = settings_that_fit(need, replace(machine, total_gb=machine.free_gb))
        return Check("memory", "warn", detail, "close other programs" + (f", or set {advice}" if advice else ""))
    return Check("memory", "pass", detail)


def check_store(place: str) -> Check:
    """Write, read and delete one small object where artifacts are kept."""
    from iar.services.object_store import probe

    probe(place)
    return Check("store", "pass", f"{place}: written, read, deleted")


def check_tracking(run_file: RunFile) -> Check:
    """Reach the MLflow server and the registry's database, where the run file names them."""
    import httpx

    uri, registry_url = run_file.register.tracking_uri, run_file.register.registry_url
    if registry_url:
        from iar.services.registry import Registry

        Registry.open(registry_url).close()
    if uri.startswith(("http://", "https://")):
        try:
            reply = httpx.get(f"{uri.rstrip('/')}/health", timeout=5.0).raise_for_status()
        except httpx.HTTPError as error:
            detail = f"register.tracking_uri: {uri} does not answer ({type(error).__name__})"
            return Check("tracking", "fail", detail, "start the MLflow server, or leave tracking_uri empty")
        if reply.text.lstrip().startswith("<"):  # the header tells nothing: MLflow's own answer says HTML too
            detail = f"register.tracking_uri: {uri} answers with a page, probably a login"
            return Check("tracking", "fail", detail, "name the MLflow server itself, without the login before it")
    return Check("tracking", "pass", f"MLflow: {uri or 'SQLite'}, registry: {registry_url or 'SQLite'}")
