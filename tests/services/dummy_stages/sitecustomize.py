"""Put on PYTHONPATH of the component processes: stages that take no time, and no tracking.

The environment says what they do: DUMMY_LOG (file: one line a call), DUMMY_PICK (the selector's
pick), DUMMY_FAIL="<task>:<kind>", DUMMY_SLOW="<task>" (leaves part of its work, then waits a minute).
"""

import importlib.abc
import importlib.util
import json
import os
import sys
import time


class Dummies(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for every stage and for the tracking service."""

    def find_spec(self, name, path, target=None):
        if name.startswith("iar.stages.") or name == "iar.services.tracking":
            return importlib.util.spec_from_loader(name, self)
        return None

    def exec_module(self, module):
        module.run = run
        module.Tracker = Tracker
        module.quieten = lambda: None


class Tracker:
    """Tracks nothing."""

    def __init__(self, *arguments):
        pass

    uri = "mlflow"

    def log_stage(self, *arguments, **named):
        return "run-1"

    def finish(self, status):
        pass


def run(run_file, inputs, out, context):
    from iar.records import Outcome

    with open(os.environ["DUMMY_LOG"], "a") as log:
        log.write(f"{context.stage} {' '.join(sorted(inputs))}\n")
    context.progress.update(1, 4, "a quarter")
    task, _, kind = os.environ.get("DUMMY_FAIL", "").partition(":")
    if task == context.stage:
        fail(kind)
    if os.environ.get("DUMMY_SLOW") == context.stage:
        (out / "half.txt").write_text("half")
        (out / "pid").write_text(str(os.getpid()))
        time.sleep(60)
    pick = os.environ.get("DUMMY_PICK", "ties-d0.3")
    write(out, "selection.json", {"pick": pick, "verdicts": [{}, {}]})
    write(out, "results.json", {"pick": pick, "part": [context.shard, context.shards]})
    (out / "report.html").write_text("<p>report</p>")
    (out / "frontier.png").write_bytes(b"png")
    return Outcome({"rows": 3.0, "broken": float("nan")}, f"**{context.stage}**")


def write(out, name, value):
    (out / name).write_text(json.dumps(value))


def fail(kind):
    from iar.errors import TemporaryError, UserError

    if kind == "user":
        raise UserError("documents/: empty; put files there")
    if kind == "temporary":
        raise TemporaryError("server down")
    if kind == "full":
        raise OSError(28, "No space left on device")
    if kind == "killed":
        os.kill(os.getpid(), 9)
    raise ZeroDivisionError("a bug")


sys.meta_path.insert(0, Dummies())
