"""The two exceptions that say what to do: the input is wrong, or a run could not go on."""


class InputError(ValueError):
    """A value from outside (configuration, file, command line, data) cannot be used.

    The message is one line and says what was given, what was expected and what to do. The `icrl` command prints it
    without a traceback and exits with status 2.
    """


class RunStoppedError(RuntimeError):
    """A run could not go on although its input is right: a disk is full, machines are lost, a task keeps failing.

    The message is one line. What is finished is kept, so that the same command goes on once the cause is gone. The
    `icrl` command prints it without a traceback and exits with status 1.
    """


def one_line(error: BaseException) -> str:
    """The last line of an error's message, which in errors that come from another process is the cause itself."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
