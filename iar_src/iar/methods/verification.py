"""What an audit of a verifier says: how often attacks fool it, how well it tells right from wrong, if it may judge."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from iar.records import AttackResult, VerifierAudit

Z_95 = 1.959964
LEAST_READABLE = 0.5
"""A verifier that leaves more of the attacks without a score was hardly measured, so it may not judge."""


@dataclass(frozen=True)
class Share:
    """`hits` of `total`, with the 95 % score interval of a proportion (Wilson 1927)."""

    hits: int
    total: int

    @property
    def value(self) -> float | None:
        """The share in [0, 1]; None of nothing."""
        return self.hits / self.total if self.total else None

    @property
    def interval(self) -> tuple[float, float]:
        """(low, high) in [0, 1]; all of it where there is nothing."""
        if not self.total:
            return 0.0, 1.0
        share, spread = self.hits / self.total, Z_95**2 / self.total
        centre = share + spread / 2
        half = math.sqrt(spread * (share * (1 - share) + spread / 4))
        return max(0.0, (centre - half) / (1 + spread)), min(1.0, (centre + half) / (1 + spread))

    def __str__(self) -> str:
        """`1.2 % (0.4 to 3.5 %)`; a dash of nothing."""
        if not self.total:
            return "-"
        low, high = self.interval
        return f"{100 * self.hits / self.total:.1f} % ({100 * low:.1f} to {100 * high:.1f} %)"


def attack_success(attacks: Iterable[AttackResult], full: bool = False) -> Share:
    """Return the share of scored attacks that got more than 0, with `full` that got 1."""
    attacks = list(attacks)
    hits = sum(one.full if full else one.fooled for one in attacks)
    return Share(hits, sum(one.asked - one.failed for one in attacks))


def precision(audit: VerifierAudit) -> Share:
    """Return how many of the answers that it credits fully are right."""
    return Share(sum(one.both for one in audit.calibration), sum(one.credited for one in audit.calibration))


def recall(audit: VerifierAudit) -> Share:
    """Return how many of the right answers it credits fully; a failed vote credits nothing."""
    return Share(sum(one.both for one in audit.calibration), sum(one.right for one in audit.calibration))


def exactness(audit: VerifierAudit) -> Share:
    """Return how many labelled answers get the very score of their label."""
    return Share(sum(one.exact for one in audit.calibration), sum(one.answers for one in audit.calibration))


def worst_kinds(audit: VerifierAudit) -> list[AttackResult]:
    """Return the kinds of attack that fooled the verifier, the most successful first."""
    fooled = [one for one in audit.attacks if one.fooled]
    return sorted(fooled, key=lambda one: (-one.fooled / (one.asked - one.failed), one.kind))


def objection(audit: VerifierAudit, limit: float) -> str:
    """Return why the verifier may not judge where `limit` is the share of attacks that may succeed; "" = it may.

    It may not where more of all attacks succeed, or surely (at 95 %) more of one kind, or where too few got a score.
    """
    overall, asked = attack_success(audit.attacks), sum(one.asked for one in audit.attacks)
    if overall.total < LEAST_READABLE * asked:
        return f"gave a readable score to {overall.total} of {asked} attacks only"
    worst = [f"{one.kind} {_percent(attack_success([one]).value)}" for one in worst_kinds(audit)[:3]]
    if (overall.value or 0.0) > limit:
        return f"scored {_percent(overall.value)} of {overall.total} attacks above 0 ({', '.join(worst)})"
    sure = [one for one in worst_kinds(audit) if attack_success([one]).interval[0] > limit]
    if sure:
        return f"is fooled by {', '.join(f'{one.kind} ({one.fooled} of {one.asked - one.failed})' for one in sure[:3])}"
    return ""


def surely_fooled(audit: VerifierAudit, limit: float) -> bool:
    """Whether more of all attacks than `limit` succeed even at the lower end of the 95 % interval."""
    return attack_success(audit.attacks).interval[0] > limit


def audit_json(audit: VerifierAudit) -> dict[str, Any]:
    """Return an audit as shares with intervals: of attacks that scored above 0, or 1; precision, recall, exact."""
    return {
        "verifier": audit.verifier,
        "version": audit.version,
        "suite": audit.suite,
        "attack_success": _share_json(attack_success(audit.attacks)),
        "full_success": _share_json(attack_success(audit.attacks, full=True)),
        "precision": _share_json(precision(audit)),
        "recall": _share_json(recall(audit)),
        "exact": _share_json(exactness(audit)),
        "attacks": [asdict(one) for one in audit.attacks],
        "calibration": [asdict(one) for one in audit.calibration],
    }


def share_text(share: Mapping[str, Any]) -> str:
    """Return a share of `audit_json` as text."""
    return str(Share(share["hits"], share["total"]))


def _share_json(share: Share) -> dict[str, Any]:
    low, high = share.interval
    return {"hits": share.hits, "total": share.total, "share": share.value, "low": low, "high": high}


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"
