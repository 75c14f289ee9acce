"""Inject, Align, Recover: put a set of documents into a language model and keep its general ability."""

import os

__version__ = "0.1.0"

# Threads of torch on a CPU wait for each other after each operation, by default spinning until the last is done. When
# anything else wants a core, that one is the thread waited for: seen on two cores beside one idle-priority process, 13
# tokens/s of training where 300 are usual; 110 with short waits, which a quiet machine does not feel. libgomp reads
# this when torch is loaded, and our processes hand it on to theirs.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")
