"""The one exception that means: the input is wrong, here is what to do about it."""


class InputError(ValueError):
    """A value from outside (configuration, file, command line, data) cannot be used.

    The message is one line and says what was given, what was expected and what to do. The `icrl` command prints it
    without a traceback and exits with status 2.
    """
