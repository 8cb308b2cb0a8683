"""Picking transitions out of transition sets."""

from dataclasses import fields

from torch import Tensor

from icrl.types import Transitions


def take(transitions: Transitions, index: slice | Tensor) -> Transitions:
    """The transitions that `index` picks along the context axis, the same from each set."""
    return Transitions(**{field.name: getattr(transitions, field.name)[:, index] for field in fields(Transitions)})
