"""A training in a process of its own, which the test kills; the exit code is that of the error."""

import sys
from pathlib import Path

from iar.config import TrainingSection
from iar.errors import IarError
from iar.services.trainer import train
from tests.training_rows import ROWS


def main(model: Path, out: Path, settings: TrainingSection) -> None:
    """Train to the end, or until told to stop."""
    try:
        train(model, ROWS, settings, 5, out, lambda step, steps, note: None)
    except IarError as error:
        sys.exit(int(error.exit_code))
