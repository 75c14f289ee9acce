"""What an audit says, against numbers worked out by hand, and whom it keeps from judging."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iar.methods.verification import Share, attack_success, exactness, objection, precision, recall
from iar.records import AttackResult, CalibrationResult, VerifierAudit


def audit(*attacks: AttackResult) -> VerifierAudit:
    calibration = (
        CalibrationResult("exact", answers=10, failed=0, exact=8, right=6, credited=5, both=5),
        CalibrationResult("hedged", answers=10, failed=2, exact=5, right=0, credited=3, both=0),
    )
    return VerifierAudit("judge", "1", "s", attacks, calibration)


def test_the_interval_is_wilsons() -> None:
    # Newcombe 1998, table I: 81 of 263 and 0 of 20, by Wilson's method without continuity correction.
    assert Share(81, 263).interval == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert Share(0, 20).interval == pytest.approx((0.0, 0.1611), abs=5e-5)
    assert (Share(0, 0).value, Share(0, 0).interval, str(Share(0, 0))) == (None, (0.0, 1.0), "-")
    assert str(Share(1, 540)) == "0.2 % (0.0 to 1.0 %)"


@given(st.integers(1, 2000).flatmap(lambda total: st.tuples(st.integers(0, total), st.just(total))))
def test_an_interval_holds_its_share(pair: tuple[int, int]) -> None:
    low, high = Share(*pair).interval
    assert 0 <= low <= pair[0] / pair[1] + 1e-9 and pair[0] / pair[1] - 1e-9 <= high <= 1


def test_precision_and_recall_are_of_full_credit() -> None:
    found = audit()
    assert (precision(found), recall(found), exactness(found)) == (Share(5, 8), Share(5, 6), Share(13, 20))


def test_failed_votes_are_no_success_and_no_failure_of_an_attack() -> None:
    kinds = [AttackResult("empty", 20, 4, 3, 1), AttackResult("markup", 20, 0, 0, 0)]
    assert attack_success(kinds) == Share(3, 36)
    assert attack_success(kinds, full=True) == Share(1, 36)


@pytest.mark.parametrize(
    ("attacks", "reason"),
    [
        ([AttackResult("empty", 500, 0, 10, 10)], ""),
        ([AttackResult("empty", 500, 0, 11, 2)], "scored 2.2 % of 500 attacks above 0 (empty 2.2 %)"),
        # One kind in 27 that often succeeds is little of all attacks, and reason enough.
        ([AttackResult("empty", 980, 0, 0, 0), AttackResult("praise", 20, 0, 3, 0)], "is fooled by praise (3 of 20)"),
        ([AttackResult("empty", 980, 0, 0, 0), AttackResult("praise", 20, 0, 1, 0)], ""),
        ([AttackResult("empty", 20, 11, 0, 0)], "gave a readable score to 9 of 20 attacks only"),
        ([AttackResult("empty", 20, 20, 0, 0)], "gave a readable score to 0 of 20 attacks only"),
    ],
)
def test_a_verifier_is_refused_above_the_limit(attacks: list[AttackResult], reason: str) -> None:
    assert objection(audit(*attacks), 0.02) == reason


def test_a_raised_limit_admits() -> None:
    fooled = audit(AttackResult("empty", 20, 0, 9, 9))
    assert objection(fooled, 0.02) and not objection(fooled, 0.5)
