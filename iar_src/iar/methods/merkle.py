"""The Merkle root of a set of names: one digest that says which they are, and by which one of them can be proven.

The tree of RFC 6962 (Certificate Transparency), section 2.1: a leaf is hashed behind a 0 byte, a node behind a 1 byte,
so that no node can pass for a leaf.
"""

import hashlib
from collections.abc import Iterable


def merkle_root(names: Iterable[str]) -> str:
    """Return the root over the sorted names, as 64 hexadecimal digits; of none it is the SHA-256 of nothing."""
    level = [hashlib.sha256(b"\0" + name.encode()).digest() for name in sorted(names)]
    if not level:
        return hashlib.sha256().hexdigest()
    while len(level) > 1:
        # A last one without a neighbour moves up as it is: the split of RFC 6962, level by level.
        pairs = [hashlib.sha256(b"\1" + level[at] + level[at + 1]).digest() for at in range(0, len(level) - 1, 2)]
        level = pairs + level[len(level) - len(level) % 2 :]
    return level[0].hex()
