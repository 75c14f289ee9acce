"""Second names for large files: a checkpoint appears in another folder without being copied."""

import os
import shutil
from pathlib import Path

from iar.methods.digest import digest_file


def tree_sizes(folder: Path) -> dict[str, int]:
    """Return relative path -> bytes of every file below `folder`."""
    return {
        path.relative_to(folder).as_posix(): path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()
    }


def tree_digests(folder: Path) -> dict[str, str]:
    """Return relative path -> SHA-256 of every file below `folder`, each read whole."""
    return {path: digest_file(folder / path) for path in tree_sizes(folder)}


def link_tree(source: Path, target: Path) -> None:
    """Make `target` hold exactly the files of `source`, as hard links, or as copies on another file system.

    The files must not be written in place afterwards: both folders would change.
    """
    shutil.rmtree(target, ignore_errors=True)
    for path in tree_sizes(source):
        link_file(source / path, target / path)


def link_file(source: Path, place: Path) -> None:
    """Give a file a second name where there is none yet, or a copy on another file system."""
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source.resolve(), place)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, place)
