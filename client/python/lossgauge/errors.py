"""Exceptions of lossgauge: what the library refuses, by its code."""

INVALID_ARGUMENT = 3
FAILED_PRECONDITION = 9
UNIMPLEMENTED = 12


class Error(RuntimeError):
    """A call that failed. `code` is an lg_code (the numbers of google.rpc.Code)."""

    def __init__(self, message, code=None):
        super().__init__(message)
        self.code = code


class InvalidArgument(Error, ValueError):
    """An argument that cannot be right; the message names it, what was expected and what was got."""

    def __init__(self, message, code=INVALID_ARGUMENT):
        super().__init__(message, code)


class FailedPrecondition(Error):
    """A call at the wrong time: a closed gauge, a gradient that is used up, a value that would have to wait for a device."""

    def __init__(self, message, code=FAILED_PRECONDITION):
        super().__init__(message, code)


class Unimplemented(Error, NotImplementedError):
    """Not in this build, for example CUDA tensors in a library built for the CPU."""

    def __init__(self, message, code=UNIMPLEMENTED):
        super().__init__(message, code)


_BY_CODE = {INVALID_ARGUMENT: InvalidArgument, FAILED_PRECONDITION: FailedPrecondition, UNIMPLEMENTED: Unimplemented}


def from_code(code, message):
    """The exception of a failed call."""
    return _BY_CODE.get(code, Error)(message, code)
