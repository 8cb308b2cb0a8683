"""What a check reports."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Check:
    """One claim, measured.

    Attributes:
        claim: what is claimed, in words.
        figure: what was measured; NaN fails.
        bound: what the figure is compared with.
        at_least: whether the figure must reach the bound rather than stay within it.
        detail: further figures, for the reader.
    """

    claim: str
    figure: float
    bound: float
    at_least: bool = False
    detail: str = ""

    @property
    def passed(self) -> bool:
        """Whether the claim holds."""
        return self.figure >= self.bound if self.at_least else self.figure <= self.bound

    def to_dict(self) -> dict[str, Any]:
        """The record as JSON holds it."""
        return {
            "claim": self.claim,
            "figure": self.figure,
            "relation": ">=" if self.at_least else "<=",
            "bound": self.bound,
            "passed": self.passed,
            "detail": self.detail,
        }


def largest_relative_difference(value: Any, reference: Any) -> float:
    """Largest absolute difference over the largest magnitude of the reference; arguments are tensors of one shape."""
    return float((value - reference).abs().max() / reference.abs().max())
