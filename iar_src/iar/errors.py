"""Errors and the exit codes they end a command with.

The type decides what happens next: a user error is shown and stops, a temporary error may be
retried, anything else is a bug and keeps its traceback.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of every `iar` command."""

    DONE = 0
    BUG = 1
    USER_ERROR = 2
    NO_FEASIBLE_CANDIDATE = 3
    TEMPORARY = 4


class IarError(Exception):
    """Base of all expected errors: one line that says what, where, which value and the fix."""

    exit_code = ExitCode.BUG


class UserError(IarError):
    """The input, the run file or the environment is wrong; a retry without a change cannot help."""

    exit_code = ExitCode.USER_ERROR


class TemporaryError(IarError):
    """Something outside failed (server, network, preemption); the same command may succeed later."""

    exit_code = ExitCode.TEMPORARY


class PermanentError(IarError):
    """The computation itself failed (a non-finite loss, a corrupt artifact); retrying repeats it."""

    exit_code = ExitCode.BUG


class NoFeasibleCandidate(IarError):
    """The selection rule left no candidate: a result, not a failure of the software."""

    exit_code = ExitCode.NO_FEASIBLE_CANDIDATE
