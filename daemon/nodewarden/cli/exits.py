"""How `nodectl` ends: exit codes, and the error that carries one to `main`."""

OK = 0
DEGRADED = 1  # status: something is stale, a cap is in force; other verbs: not (fully) done
CRITICAL = 2
NOT_RUNNING = 3
NOT_ANSWERING = 4
NO_RIGHTS = 5
USAGE = 64
INTERNAL = 70
CONFIG = 78
INTERRUPTED = 130

FOR_HELP = """\b
Exit codes:
  0 ok, done              1 degraded, not fully done    2 critical
  3 agent not running     4 agent not answering         5 no rights
  64 usage                70 internal error             78 configuration
"""


class CliError(Exception):
    """Ends the command with a message on stderr and an exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code
