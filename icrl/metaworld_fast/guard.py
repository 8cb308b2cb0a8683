"""Decides whether a domain's environment may be the fast one."""

import warnings
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import numpy as np

from icrl.domains import Environment, MetaWorldEnvironment
from icrl.metaworld_fast.environment import FastMetaWorldEnvironment

PROVED_VERSIONS = {"metaworld": "3.1.1", "mujoco": "3.3.0"}
"""The versions for which all domains were compared with MetaWorld itself."""

_SELF_TEST_SEED = 20
_SELF_TEST_STEPS = 20
_passed: set[str] = set()


def make_environment(name: str) -> MetaWorldEnvironment:
    """The fast environment of a MetaWorld domain, or, with a warning that says why, the plain one.

    On the first use of a domain in a process, a few steps of both are compared.
    """
    reason = version_mismatch()
    if reason is None:
        environment = FastMetaWorldEnvironment(name)
        if name in _passed:
            return environment
        reason = difference(environment, MetaWorldEnvironment(name))
        if reason is None:
            _passed.add(name)
            return environment
    warnings.warn(
        f"{name} is stepped by MetaWorld itself, several times slower: {reason}", RuntimeWarning, stacklevel=2
    )
    plain = MetaWorldEnvironment(name)
    plain.plain_because = reason
    return plain


def version_mismatch() -> str | None:
    """Which installed package is not the one that the fast environment was proved equal for; None if all are."""
    for package, proved in PROVED_VERSIONS.items():
        installed = version(package)
        if installed != proved:
            return f"{package} {installed} is installed, but the fast path was proved equal for {package} {proved}"
    return None


def difference(environment: Environment, reference: Environment) -> str | None:
    """What differs by a bit or more in a few noisy steps of two environments; None if nothing does."""
    for step, (mine, expected) in enumerate(zip(_noisy_steps(environment), _noisy_steps(reference), strict=True)):
        differing = [part for part, value in expected.items() if mine[part] != value]
        if differing:
            return f"the self-test differs from it in the {' and the '.join(differing)} of step {step}"
    return None


def _noisy_steps(environment: Environment) -> Iterator[dict[str, Any]]:
    """The first observation, then expert's action, observation, reward and success of each step, as Python numbers."""
    noise = np.random.default_rng(_SELF_TEST_SEED).standard_normal((_SELF_TEST_STEPS, 4))
    observation = environment.reset_task(_SELF_TEST_SEED)
    yield {"observation": observation.tolist()}
    for row in noise:
        wanted = environment.behaviour(observation)
        action = np.clip(wanted + row, -1, 1).astype(np.float32)
        observation, reward, _, success = environment.step(action)
        yield {
            "expert's action": wanted.tolist(),
            "observation": observation.tolist(),
            "reward": reward,
            "success": success,
        }
