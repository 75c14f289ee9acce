"""What a run on another needs of it, looked at before anything is computed."""

from iar.config import RunFile
from iar.errors import UserError
from iar.services.earlier_runs import check_standing, earlier_run
from iar.services.earlier_sets import EarlierSets
from iar.services.findings import Check
from iar.services.merge_checks import check_set_weights
from iar.services.registry import Registry
from iar.services.workspace import Workspace


def check_earlier(run_file: RunFile) -> Check:
    """Find the earlier run, finished, with the weights that `run.on` names and nothing retracted behind them.

    And with as many document sets as `recover.set_weights` has weights.
    """
    workspace = Workspace.of(run_file)
    found = earlier_run(run_file, workspace)
    sets = len(list(EarlierSets(found.before))) + 2  # that run's and this one's
    for name, weights in run_file.recover.set_weights.items():
        check_set_weights(name, len(weights), sets)
    registry = Registry.open_to_read(workspace.registry_url(run_file))
    if registry is None:
        raise UserError(
            f"run.on: run {found.run_id} is not in this run's registry, which is empty; set register.registry_url to "
            "the one that run was recorded in"
        )
    try:
        check_standing(found, registry)
    finally:
        registry.close()
    return Check("earlier run", "pass", f"{found.run_id}, theta_IA {run_file.run.on.partition('@')[2][:12]}")
