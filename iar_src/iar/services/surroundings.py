"""In what surroundings a stage ran: the checkout of the code, the installed packages, the hardware."""

import functools
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import iar
from iar.methods.digest import digest_json

GIT_SECONDS = 10


@dataclass(frozen=True)
class Surroundings:
    """commit: of the checkout, "" outside one; `dirty` where files were changed. environment: digest of packages."""

    commit: str = ""
    dirty: bool = False
    environment: str = ""
    hardware: str = ""


def surroundings() -> Surroundings:
    """Return the surroundings of this process."""
    commit, dirty = _checkout()
    return Surroundings(commit, dirty, _environment(), _hardware())


@functools.cache
def _checkout() -> tuple[str, bool]:
    """Return commit and whether files were changed; an image without a checkout names its commit in IAR_COMMIT."""
    try:
        commit = _git("rev-parse", "HEAD")
        return commit, bool(_git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):
        return os.environ.get("IAR_COMMIT", ""), False


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=Path(iar.__file__).parent, capture_output=True, text=True, check=True,
        timeout=GIT_SECONDS,
    )  # fmt: skip
    return done.stdout.strip()


@functools.cache
def _environment() -> str:
    """Return the digest of what a lock file of the installed packages would say."""
    return digest_json(sorted({f"{one.name}=={one.version}" for one in metadata.distributions()}))


def _hardware() -> str:
    cores = os.cpu_count() or 1
    told = f"{platform.system()} {platform.machine()}, {cores} cores, Python {platform.python_version()}"
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return told
    names = sorted({torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())})
    return f"{told}, {torch.cuda.device_count()} x {', '.join(names)}"
