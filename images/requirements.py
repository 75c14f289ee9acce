"""Print what pyproject.toml requires, one requirement a line: `requirements.py pyproject.toml EXTRA ...`.

An image installs these before the source is copied, so that a change in the source leaves the layer
with the packages as it is.
"""

import sys
import tomllib
from pathlib import Path


def requirements(pyproject: str, extras: list[str]) -> list[str]:
    """Return the dependencies and those of the extras. Raises KeyError for an extra that is not there."""
    project = tomllib.loads(pyproject)["project"]
    optional = project["optional-dependencies"]
    return [*project["dependencies"], *(line for extra in extras for line in optional[extra])]


if __name__ == "__main__":
    print("\n".join(requirements(Path(sys.argv[1]).read_text(encoding="utf-8"), sys.argv[2:])))
