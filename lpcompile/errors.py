"""What lpcompile raises: each message says the fact, the values, and what to do next."""


class LpError(Exception):
    """Base of every error that lpcompile raises on purpose."""


class CaptureError(LpError):
    """The model cannot be captured as a graph."""


class PlanError(LpError):
    """No plan satisfies what was asked (too many stages, too little memory, pins that conflict).

    `most` is the largest number of stages that would work, where that is what was wrong.
    """

    def __init__(self, message: str, most: int | None = None) -> None:
        super().__init__(message)
        self.most = most


class GateError(LpError):
    """The compiled program and the user's model differ; the program is refused."""


class InputError(LpError):
    """The program was called with inputs that it was not compiled for."""


class UsageError(LpError):
    """An argument is wrong: a bad name, a bad value, a missing package."""


class ScheduleError(LpError):
    """A schedule that would hang, or use what is not there."""


class TrainingError(LpError):
    """Training cannot go on: values are not finite, a boundary collapsed, ranks do not agree."""


class EmitError(LpError):
    """A program cannot be written as code, or a folder is not what `emit` wrote."""
