"""What is said where a foreign operator does not keep its contract."""

from mslsq.problem import ProblemError


class OperatorError(ProblemError):
    """A foreign operator was wrapped or called wrongly, or does not keep its contract; the message says what to do."""
