"""Divergence: a fall of the oracle that is beyond chance, while the training got better."""

import random

import pytest

from iar.methods.divergence import EpochPoints, divergences

PROMPTS = [f"q{number}" for number in range(60)]


def epoch(number: int, loss: float, oracle: float, accuracy: float = 0.5, seed: int = 0) -> EpochPoints:
    """Points of an epoch whose scores are right with these chances."""
    chance = random.Random(1000 * seed + number)
    scores = ({one: 100.0 * (chance.random() < share) for one in PROMPTS} for share in (oracle, accuracy))
    return EpochPoints(number, loss, *scores)


def test_a_fall_while_the_loss_falls_is_found_with_its_interval() -> None:
    (found,) = divergences([epoch(1, 2.0, 0.9), epoch(2, 1.0, 0.3)])
    assert found.since == 1 and found.items == len(PROMPTS)
    assert found.oracle_low < found.oracle < found.oracle_high < 0
    assert found.loss == pytest.approx(-1.0) and found.confidence == pytest.approx(0.95)


def test_a_rise_a_fall_within_chance_and_a_fall_with_the_training_are_none() -> None:
    assert not list(divergences([epoch(1, 2.0, 0.3), epoch(2, 1.0, 0.9)]))
    assert not list(divergences([epoch(1, 2.0, 0.5), epoch(2, 1.0, 0.49)]))
    assert not list(divergences([epoch(1, 1.0, 0.9), epoch(2, 2.0, 0.3)]))


def test_accuracy_that_rises_is_getting_better_too() -> None:
    (found,) = divergences([epoch(1, 1.0, 0.9, 0.1), epoch(2, 2.0, 0.3, 0.9)])
    assert found.accuracy_low > 0 and found.loss > 0


def test_a_slow_slide_is_seen_from_the_epoch_where_it_began() -> None:
    found = list(divergences([epoch(number, 3.0 - number / 2, 0.95 - 0.15 * number) for number in range(1, 6)]))
    assert found[0].since == 1 and all(one.since < 5 for one in found)
    assert found[0].confidence == pytest.approx(1 - 0.05 / 4)


def test_only_prompts_scored_in_both_epochs_count() -> None:
    before, after = epoch(1, 2.0, 1.0), epoch(2, 1.0, 0.0)
    half = {one: 0.0 for one in PROMPTS[:20]}
    (found,) = divergences([before, EpochPoints(2, 1.0, half, after.accuracy)])
    assert found.items == 20 and found.oracle == -100
    assert not list(divergences([before, EpochPoints(2, 1.0, {}, after.accuracy)]))
    assert not list(divergences([before]))


def test_equal_epochs_are_warned_of_in_at_most_one_run_of_twenty() -> None:
    runs = 200
    warned = sum(
        bool(list(divergences([epoch(number, 3.0 - number, 0.5, seed=run) for number in range(1, 5)], 400, run)))
        for run in range(runs)
    )
    assert warned <= 0.05 * runs
