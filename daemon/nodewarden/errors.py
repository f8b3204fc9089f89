"""Every error that Nodewarden raises on purpose.

    NodewardenError
    ├── ConfigError          the configuration has mistakes; all of them, each with file, key path and what is allowed
    ├── AlreadyRunningError  another daemon owns this state directory or this helper (exit 75)
    ├── RefusedError         a request that is understood but not allowed: what was asked, what is allowed, what to do
    ├── HelperError          the GPU helper answered with an error, carries its code
    │   └── HelperGoneError  no helper, or it does not answer
    ├── DeviceError          a device or its library refused or failed, carries a reason from a small fixed set
    │   ├── NotSupportedError   the board or driver has no such quantity
    │   ├── NoPermissionError   the quantity or the write needs rights that this process lacks
    │   ├── DeviceLostError     the device fell off the bus or needs a reset
    │   └── DeviceTimeoutError  no answer in time
    └── ProtocolError        a peer sent what the protocol does not allow

Programming errors are never translated into these.
"""


class NodewardenError(Exception):
    """Root of all errors that Nodewarden raises on purpose."""


class ConfigError(NodewardenError):
    """The configuration has mistakes. `problems` holds one readable line for each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class AlreadyRunningError(NodewardenError):
    """Another process owns what this one asked for. `pid` is its process id where known, else None."""

    def __init__(self, message: str, pid: int | None = None) -> None:
        super().__init__(message)
        self.pid = pid


class RefusedError(NodewardenError):
    """A request that is understood but not allowed."""

    def __init__(self, message: str, code: str = "refused") -> None:
        super().__init__(message)
        self.code = code


class HelperError(NodewardenError):
    """The GPU helper answered with an error. `code` is one of `gpuhelper.wire.ErrorCode`."""

    def __init__(self, message: str, code: str = "failed") -> None:
        super().__init__(message)
        self.code = code


class HelperGoneError(HelperError):
    """No helper is there, or it does not answer."""


class DeviceError(NodewardenError):
    """A device or its library refused or failed. `reason` is short and from a small fixed set (a metric label)."""

    reason = "error"

    def __init__(self, message: str, reason: str | None = None) -> None:
        super().__init__(message)
        if reason is not None:
            self.reason = reason


class NotSupportedError(DeviceError):
    """The board or the driver has no such quantity."""

    reason = "not_supported"


class NoPermissionError(DeviceError):
    """The quantity or the write needs rights that this process lacks."""

    reason = "no_permission"


class DeviceLostError(DeviceError):
    """The device fell off the bus or needs a reset."""

    reason = "lost"


class DeviceTimeoutError(DeviceError):
    """The device did not answer in time."""

    reason = "timeout"


class ProtocolError(NodewardenError):
    """A peer sent what the protocol does not allow."""
