"""Bad and borderline input: a clear error, or a result that is documented here."""

from collections.abc import Callable
from dataclasses import replace

import torch

from icrl.engine import Evaluation, evaluate
from icrl.errors import InputError
from icrl.selection import take
from icrl.types import Transitions
from icrl.verification.check import Check
from icrl.verification.problems import KERNELS


def small_context() -> Transitions:
    """Two contexts of four transitions of three numbers."""
    state = torch.linspace(-1, 1, 2 * 5 * 3, dtype=torch.float64).sin().reshape(2, 5, 3)
    return Transitions(
        observation=state[:, :-1],
        reward=torch.ones(2, 4, dtype=torch.float64),
        next_observation=state[:, 1:],
        terminated=torch.zeros(2, 4, dtype=torch.bool),
        mask=torch.ones(2, 4, dtype=torch.bool),
    )


def values(
    context: Transitions,
    query: torch.Tensor | None = None,
    *,
    kernel: str = "rbf",
    temperature: float = 1.0,
    discount: float = 0.9,
) -> Evaluation:
    """Values at the given input, everything else being ordinary."""
    assert kernel in KERNELS
    return evaluate(
        context,
        context.observation if query is None else query,
        kernel=kernel,
        temperature=torch.full((1, 1), temperature, dtype=torch.float64),
        step_fraction=torch.ones(8, dtype=torch.float64),
        discount=discount,
    )


def _with(value: float, name: str) -> Transitions:
    context = small_context()
    changed: torch.Tensor = getattr(context, name).clone()
    changed.view(-1)[3] = value
    return replace(context, **{name: changed})


def _empty() -> Transitions:
    return take(small_context(), slice(0))


REFUSED: dict[str, Callable[[], Evaluation]] = {
    "NaN observation": lambda: values(_with(torch.nan, "observation"), small_context().observation),
    "infinite observation": lambda: values(_with(torch.inf, "observation"), small_context().observation),
    "NaN successor": lambda: values(_with(torch.nan, "next_observation")),
    "NaN reward": lambda: values(_with(torch.nan, "reward")),
    "infinite reward": lambda: values(_with(-torch.inf, "reward")),
    "NaN query": lambda: values(small_context(), torch.full((2, 1, 3), torch.nan, dtype=torch.float64)),
    "empty context": lambda: values(_empty(), small_context().observation),
    "context of padding alone": lambda: values(replace(small_context(), mask=torch.tensor([[True] * 4, [False] * 4]))),
    "wrong state dimension": lambda: values(small_context(), small_context().observation[..., :2]),
    "wrong number of query sets": lambda: values(small_context(), small_context().observation[:1]),
    "temperature 0": lambda: values(small_context(), temperature=0.0),
    "negative temperature": lambda: values(small_context(), temperature=-1.0),
    "NaN temperature": lambda: values(small_context(), kernel="softmax", temperature=torch.nan),
    "discount 1": lambda: values(small_context(), discount=1.0),
    "negative discount": lambda: values(small_context(), discount=-0.1),
    "NaN discount": lambda: values(small_context(), discount=torch.nan),
}
"""Input that raises `InputError`."""


def _one_transition() -> bool:
    """A single transition: one weight, so v ∝ κ(·, s), finite and not diverged."""
    context = small_context()
    one = take(context, slice(1))
    results = [values(one, context.observation, kernel=kernel) for kernel in KERNELS]
    return all(bool(result.value.isfinite().all()) and not bool(result.diverged.any()) for result in results)


def _zero_norm() -> bool:
    """A kernel that is 0 on the whole context, such as the linear one at the origin: the operator is 0, and so is v."""
    context = small_context()
    origin = torch.zeros_like(context.observation)
    nowhere = replace(context, observation=origin, next_observation=origin)
    results = [values(nowhere, small_context().observation, kernel=kernel) for kernel in ("linear", "relu")]
    return all(bool((result.value == 0).all()) and not bool(result.diverged.any()) for result in results)


def _zero_reward() -> bool:
    """No reward anywhere: v is 0 and has not diverged, although the limit of divergence is 0 as well."""
    context = small_context()
    unpaid = replace(context, reward=torch.zeros_like(context.reward))
    results = [values(unpaid, kernel=kernel) for kernel in KERNELS]
    return all(bool((result.value == 0).all()) and not bool(result.diverged.any()) for result in results)


def _tiny_temperature() -> bool:
    """A temperature so small that exp(⟨x, y⟩ / δ) would overflow: finite values all the same."""
    results = [values(small_context(), kernel=kernel, temperature=1e-6) for kernel in ("exp", "softmax", "rbf")]
    return all(bool(result.value.isfinite().all()) for result in results)


DEFINED: dict[str, Callable[[], bool]] = {
    "one-transition context": _one_transition,
    "kernel of norm 0": _zero_norm,
    "no reward": _zero_reward,
    "tiny temperature": _tiny_temperature,
}
"""Borderline input with a documented result; each says whether it came out."""


def check_inputs_refused() -> list[Check]:
    """All of the above."""
    accepted = [name for name, attempt in REFUSED.items() if not _raises(attempt)]
    wrong = [name for name, holds in DEFINED.items() if not holds()]
    return [
        Check(
            f"bad input is refused with one line ({len(REFUSED)} cases; accepted)",
            len(accepted),
            0,
            detail=", ".join(accepted) or ", ".join(REFUSED),
        ),
        Check(
            f"borderline input has its documented result ({len(DEFINED)} cases; wrong)",
            len(wrong),
            0,
            detail=", ".join(wrong) or ", ".join(DEFINED),
        ),
    ]


def _raises(attempt: Callable[[], Evaluation]) -> bool:
    try:
        attempt()
    except InputError as error:
        return "\n" not in str(error)
    return False
