"""What a domain is, the registry of domains, and MetaWorld's own environments with their scripted experts.

MetaWorld is imported on first use only: it costs more than a second.
"""

import difflib
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from icrl.errors import InputError
from icrl.seeds import derived_seed

Observation = NDArray[np.float32]
Action = NDArray[np.float32]


class UnstableSimulationError(RuntimeError):
    """The simulator left the range in which its numbers mean anything; the episode is worthless from here on."""


class Environment(Protocol):
    """A simulator of one domain together with the behaviour policy that is evaluated in it."""

    def reset_task(self, variation_seed: int) -> Observation:
        """Fix the variation that `variation_seed` names and return its first observation, ``[D]`` float32.

        The same integer gives the same bytes in any process, in any order and after any history.
        """
        ...

    def reset(self) -> Observation:
        """Return to the start of the same variation for another episode: ``[D]`` float32."""
        ...

    def step(self, action: Action) -> tuple[Observation, float, bool, bool]:
        """Apply an action ``[A]`` float32: (next observation ``[D]`` float32, reward, terminated, success).

        Raises:
            UnstableSimulationError: the simulator reports that its state has become unusable.
        """
        ...

    def behaviour(self, observation: Observation) -> Action:
        """The behaviour policy's action ``[A]`` float32 at `observation`, before noise and clipping.

        Leaves `observation` as it is.
        """
        ...


@dataclass(frozen=True)
class Domain:
    """A family of environments that differ in their variation only.

    Attributes:
        name: the name used in configurations, files and reports.
        make_environment: makes a fresh environment; picklable, since collectors call it in other processes.
        observation_size: numbers in an observation, D.
        action_size: numbers in an action, A.
    """

    name: str
    make_environment: Callable[[], Environment]
    observation_size: int = 39
    action_size: int = 4


_registered: dict[str, Domain] = {}


def register_domain(domain: Domain) -> None:
    """Make a domain of one's own known by its name.

    Raises:
        InputError: the name is taken.
    """
    if domain.name in domain_names():
        raise InputError(f"domain {domain.name!r} exists already; register it under another name")
    _registered[domain.name] = domain


def domain_names() -> list[str]:
    """Names of all known domains, sorted."""
    return sorted([*_metaworld_names(), *_registered])


def get_domain(name: str) -> Domain:
    """The domain called `name`.

    Raises:
        InputError: there is none; the message offers the nearest names.
    """
    if name in _registered:
        return _registered[name]
    if name in _metaworld_names():
        return Domain(name, partial(_make_metaworld_environment, name))
    nearest = difflib.get_close_matches(name, domain_names(), n=3)
    hint = f"did you mean {' or '.join(nearest)}?" if nearest else "use a MetaWorld v3 name such as pick-place-v3"
    raise InputError(f"unknown domain {name!r}; {hint}")


def task_seed(seed: int, domain: str, tier: str, index: int) -> int:
    """The integer below 2**31 that decides everything about one task.

    Args:
        seed: the experiment's seed.
        domain: name of the domain.
        tier: name of the noise tier.
        index: number of the task within domain and tier, from 0.
    """
    return derived_seed("task", seed, domain, tier, index) % 2**31


def variation_seed(task_seed: int) -> int:
    """The integer below 2**32 that decides a task's object and goal positions."""
    return int(np.random.SeedSequence(task_seed, spawn_key=(0,)).generate_state(1)[0])


def noise_generator(task_seed: int, episode: int) -> np.random.Generator:
    """The generator of one episode's action noise, independent of every other episode's."""
    return np.random.default_rng(np.random.SeedSequence(task_seed, spawn_key=(1, episode)))


def _metaworld_names() -> list[str]:
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS

    return list(ALL_V3_ENVIRONMENTS)


def _make_metaworld_environment(name: str) -> Environment:
    from icrl.metaworld_fast.guard import make_environment

    return make_environment(name)


class MetaWorldEnvironment:
    """One MetaWorld v3 environment, goal visible, stepped by MetaWorld itself, with its scripted expert.

    The expert acts on the float32 observation that is recorded, so the behaviour policy is a function of the recorded
    state.

    Attributes:
        physics_seconds: seconds that steps have spent in MuJoCo itself, or None where that is not measured.
        plain_because: why it is not the fast environment of `icrl.metaworld_fast`, where that was wanted.
    """

    physics_seconds: float | None = None
    plain_because: str | None = None

    def __init__(self, name: str) -> None:
        from metaworld.env_dict import ALL_V3_ENVIRONMENTS
        from metaworld.policies import ENV_POLICY_MAP
        from mujoco import mjtWarning

        self._divergence_warnings = slice(int(mjtWarning.mjWARN_BADQPOS), int(mjtWarning.mjWARN_BADCTRL) + 1)
        # The experts ask for more than an action can hold on purpose, and MetaWorld would say so at every step.
        warnings.filterwarnings("ignore", message=r"Constant\(s\) may be too high")
        policy_class: Any = ENV_POLICY_MAP[name]
        self._policy = policy_class()
        self._environment: Any = ALL_V3_ENVIRONMENTS[name]()
        self._environment._partially_observable = False
        # Cached while the goal was hidden, with bounds that would clip the goal to zero.
        del self._environment.sawyer_observation_space
        self._environment._set_task_called = True
        # The length of an episode is the caller's to decide.
        self._environment.max_path_length = sys.maxsize

    def reset_task(self, variation_seed: int) -> Observation:
        """See `Environment.reset_task`."""
        self._draw_variation(variation_seed)
        return self.reset()

    def _draw_variation(self, variation_seed: int) -> None:
        """Draw the variation and hold it fixed for the resets that follow."""
        environment = self._environment
        # MetaWorld ignores reset(seed=...): the variation is drawn inside a reset, from the generator seeded here.
        environment.seeded_rand_vec = True
        environment._freeze_rand_vec = False
        environment.seed(variation_seed)
        environment.reset()
        environment._freeze_rand_vec = True

    def reset(self) -> Observation:
        """See `Environment.reset`."""
        observation, _ = self._environment.reset()
        return np.asarray(observation, dtype=np.float32)

    def step(self, action: Action) -> tuple[Observation, float, bool, bool]:
        """See `Environment.step`."""
        observation, reward, terminated, _, info = self._environment.step(action)
        # MuJoCo answers a diverged state by a silent return to its initial state; only this counter tells.
        if self._environment.data.warning.number[self._divergence_warnings].any():
            raise UnstableSimulationError("MuJoCo reported a diverged state")
        return np.asarray(observation, dtype=np.float32), float(reward), bool(terminated), bool(info["success"])

    def save_state(self) -> "SimulatorState":
        """See `icrl.ground_truth.RestorableEnvironment.save_state`."""
        from mujoco import mj_getState, mj_stateSize, mjtState

        environment = self._environment
        physics = np.empty(mj_stateSize(environment.model, mjtState.mjSTATE_INTEGRATION))
        mj_getState(environment.model, environment.data, physics, mjtState.mjSTATE_INTEGRATION)
        return SimulatorState(physics, dict(vars(environment)))

    def restore_state(self, state: "SimulatorState") -> None:
        """See `icrl.ground_truth.RestorableEnvironment.restore_state`."""
        from mujoco import mj_setState, mjtState

        environment = self._environment
        mj_setState(environment.model, environment.data, state.physics, mjtState.mjSTATE_INTEGRATION)
        vars(environment).clear()
        vars(environment).update(state.attributes)

    def behaviour(self, observation: Observation) -> Action:
        """See `Environment.behaviour`."""
        # Some experts write into the observation they are given: the conversion gives them one of their own.
        action = self._policy.get_action(observation.astype(np.float64))
        return np.asarray(action, dtype=np.float32)


@dataclass(frozen=True, eq=False)
class SimulatorState:
    """Everything that the steps to come in a MetaWorld environment depend on.

    Attributes:
        physics: MuJoCo's integration state.
        attributes: the environment's attributes, not copied: steps replace them, and some are views of the physics.
        previous: what the fast environment keeps of the last observation; empty before an episode's first step.
    """

    physics: NDArray[np.float64]
    attributes: dict[str, Any]
    previous: tuple[float, ...] = ()
