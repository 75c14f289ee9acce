"""The training benchmark runs end to end on a tiny model, and what it compares is the same on both sides."""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.bench_train import demo_rows, flops_per_token, long_rows, measure, table
from iar.methods.batching import TokenRow

ROOT = Path(__file__).parents[2]
ROWS = [TokenRow("a", "qa", (1, 2, 3, 4), 2), TokenRow("b", "qa", (5, 6, 7), 1)]


def test_long_rows_have_exactly_the_length_asked_for() -> None:
    for length in (32, 100, 4096):
        rows = long_rows(ROWS, length, 3)
        assert [len(row.token_ids) for row in rows] == [length] * 3
        assert rows[0].token_ids[:9] == (1, 2, 3, 4, 5, 6, 7, 1, 2)


def test_the_rows_are_the_demos_and_the_same_each_time(tiny_model_folder: Path) -> None:
    rows = demo_rows(tiny_model_folder, 12, 512)
    assert len(rows) == 12
    assert {row.objective for row in rows} <= {"continuation", "instruction"}
    assert rows == demo_rows(tiny_model_folder, 12, 512)
    with pytest.raises(SystemExit, match=r"--rows 100000: the documents give \d+; ask for at most as many"):
        demo_rows(tiny_model_folder, 100_000, 512)


def test_a_token_costs_six_operations_a_weight_and_its_attention(tiny_model_folder: Path) -> None:
    row = TokenRow("a", "qa", tuple(range(10)), 5)
    blocks = 2 * (2 * 64 * (64 + 32) + 3 * 64 * 128 + 2 * 64) + 64
    config = json.loads((tiny_model_folder / "config.json").read_text())
    head = 64 * config["vocab_size"]
    expected = 6 * blocks + 6 * head / 2 + 6 * 2 * 64 * 10
    assert flops_per_token(tiny_model_folder, blocks + head, [row]) == pytest.approx(expected)


@pytest.mark.slow
def test_all_sides_run_and_every_figure_is_there(tiny_model_folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("trl")
    options = argparse.Namespace(
        model=str(tiny_model_folder), rows=12, steps=3, batch=4, sequence=512, lengths=[64], cost_steps=2
    )
    entry = measure(options, tmp_path)
    assert set(entry["sides"]) == {"ours", "trl-unpacked", "trl-packed"}
    assert len({side["compute_dtype"] for side in entry["sides"].values()}) == 1
    assert entry["sides"]["ours"]["tokens"] == entry["sides"]["trl-unpacked"]["tokens"]
    assert entry["ratio"] == pytest.approx(entry["ours"] / entry["peer"])
    assert sum(entry["profile"]["share"].values()) == pytest.approx(1)
    assert set(entry["milliseconds_per_token"]["64"]) == {"ours", "trl-unpacked"}
    assert "ratio" in table(entry)


def test_the_gpu_check_says_where_there_is_no_gpu() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu_check.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    (line,) = done.stdout.splitlines()
    assert json.loads(line) == {"device": None, "skipped": "no GPU here: nothing was measured"}


def test_the_gpu_check_measures_with_and_without_checkpointing() -> None:
    import torch

    from benchmarks.gpu_check import SMALL, check

    found = check(torch.device("cpu"), SMALL, 128, 0.0)
    assert [(run["row_tokens"], run["activation_checkpointing"]) for run in found["runs"]] == [
        (128, True), (16, True), (128, False), (16, False),
    ]  # fmt: skip
    assert all(run["tokens_per_second"] > 0 and run["mfu"] is None for run in found["runs"])
    assert all(run["attention"] and "math" not in str(run["attention"]) for run in found["runs"])


def test_the_rows_of_the_gpu_check_begin_alike_as_chats_do() -> None:
    from benchmarks.gpu_check import SHARED, random_rows
    from iar.services.packing import shared_prefix

    assert len(shared_prefix(random_rows(8, 512, 400))) == SHARED
    assert len(shared_prefix(random_rows(8, 16, 400))) == 2


def test_a_gpu_too_small_gets_fewer_layers() -> None:
    from benchmarks.gpu_check import LARGE, fitting_shape

    assert fitting_shape(LARGE, 4096, 148.0) == LARGE
    smaller = fitting_shape(LARGE, 4096, 40.0)
    assert 1 < smaller.layers < LARGE.layers
    assert smaller.parameters < 40e9 / 18
