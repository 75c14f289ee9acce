"""What the pods of a training job tell of themselves: their logs as they come, and how each ended."""

import sys
from collections import deque
from dataclasses import dataclass, field

from iar.methods.job_spec import Manifest
from iar.services.jobs import Cluster

LAST_LINES = 20
SHOWN_LINES = 3
# How much earlier than the last line seen a log is read again; clocks differ a little.
OVERLAP_SECONDS = 5
# A pod that was killed (SIGKILL, SIGTERM) or asked for a restart did not fail by itself.
ENDED_FROM_OUTSIDE = (137, 143, 4)


@dataclass(frozen=True)
class PodEnd:
    """How a pod's training container ended; code None = it has not."""

    pod: str
    code: int | None
    reason: str

    @property
    def from_outside(self) -> bool:
        """Whether the node, the scheduler or an operator ended it, not the program in it."""
        return self.code in ENDED_FROM_OUTSIDE or self.reason in ("Evicted", "Preempting", "NodeLost", "Disrupted")


def end_of(pod: Manifest) -> PodEnd:
    """Return how the training container of a pod ended."""
    status = pod.get("status") or {}
    ends = [one.get("state", {}).get("terminated") for one in status.get("containerStatuses") or ()]
    end: Manifest = next((one for one in ends if one), {})
    holds = [one["type"] for one in status.get("conditions") or () if one["status"] == "True"]
    disrupted = "Disrupted" if "DisruptionTarget" in holds else ""
    said = end.get("reason", "") if end.get("reason") == "OOMKilled" else status.get("reason") or disrupted
    return PodEnd(pod["metadata"]["name"], end.get("exitCode"), said)


@dataclass
class Logs:
    """The logs of a job's pods, all ranks of each: shown as they come, the last lines kept."""

    cluster: Cluster
    job: str
    pods: list[Manifest] = field(default_factory=list)
    last: dict[str, deque[str]] = field(default_factory=dict)
    read: dict[str, tuple[str, float]] = field(default_factory=dict)

    def show_new(self) -> None:
        """Print what the pods have written since the last call."""
        # Pods that are gone are still what an error is about.
        self.pods = self.cluster.pods(self.job) or self.pods
        for pod in self.pods:
            self._show(pod["metadata"]["name"])

    def _show(self, pod: str) -> None:
        now = self.cluster.pace.now()
        stamp, when = self.read.get(pod, ("", now))
        lines = self.cluster.log(pod, int(now - when) + OVERLAP_SECONDS if stamp else None)
        kept = self.last.setdefault(pod, deque(maxlen=LAST_LINES))
        for line in lines:
            time, _, text = line.partition(" ")
            # Without its Z, a time with fewer digits sorts before one that goes on.
            if time.removesuffix("Z") <= stamp:
                continue
            stamp = time.removesuffix("Z")
            print(f"{pod}: {text}", file=sys.stderr)
            if text.strip():
                kept.append(text.strip())
            when = now
        self.read[pod] = (stamp, when)

    def ending(self) -> str:
        """Return the last lines of the pod that failed, else of the first that wrote any, for an error; "" for none."""
        failed = [pod["metadata"]["name"] for pod in self.pods if end_of(pod).code]
        for pod in [*failed, *self.last]:
            if lines := self.last.get(pod):
                return f"; last lines of {pod}: {' | '.join(list(lines)[-SHOWN_LINES:])}"
        return ""

    def hindrance(self) -> str:
        """Return why a pod does not start, such as ImagePullBackOff; "" where none says."""
        self.pods = self.cluster.pods(self.job)
        for pod in self.pods:
            status = pod.get("status") or {}
            for one in [*(status.get("containerStatuses") or ()), *(status.get("conditions") or ())]:
                waiting = one.get("state", {}).get("waiting") or (one if one.get("status") == "False" else {})
                if waiting.get("reason"):
                    return f"pod {pod['metadata']['name']}: {waiting['reason']}: {waiting.get('message', '')}"
        return ""
