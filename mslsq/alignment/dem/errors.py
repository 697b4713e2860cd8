"""The error of arguments that `coregister` cannot work with."""


class CoregistrationError(ValueError):
    """The arguments are wrong: names the argument, what was given, and what to try. Bad terrain is no error: the
    result's status and reason say what it is."""
