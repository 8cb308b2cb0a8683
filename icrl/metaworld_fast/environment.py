"""A MetaWorld environment whose step costs little more than its physics."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter
from typing import Any

import mujoco
import numpy as np
from gymnasium.envs.mujoco import MujocoEnv

from icrl.domains import Action, MetaWorldEnvironment, Observation, SimulatorState, UnstableSimulationError
from icrl.metaworld_fast.scalar_code import STATE_SIZE, compile_expert, compile_outcome, compile_target

_STATE = mujoco.mjtState.mjSTATE_INTEGRATION
"""All that a physics step starts from; everything else in MuJoCo's data follows from it."""


class FastMetaWorldEnvironment(MetaWorldEnvironment):
    """`MetaWorldEnvironment` with equal bits in less time.

    A step moves the hand's target, runs the physics and calls one function of flat scalar code. A new task runs one of
    the four hand motions that MetaWorld runs, the last, since nothing of the others survives it. Later episodes of the
    task restore the state that was kept after it.

    Attributes:
        physics_seconds: seconds that all steps but the first of each episode have spent in MuJoCo: what the same steps
            would take if nothing else cost anything.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.physics_seconds: float = 0.0
        environment = self._environment
        self._expert = compile_expert(self._policy)
        self._target = compile_target(environment)
        self._outcome: Callable[..., Any] | None = None
        self._model, self._data = environment.model, environment.data
        self._warnings = self._data.warning.number[self._divergence_warnings]
        self._no_warnings = bytes(self._warnings.nbytes)
        self._position, self._control = self._data.mocap_pos[0], self._data.ctrl
        self._start_state = np.empty(mujoco.mj_stateSize(self._model, _STATE))
        self._start_attributes: dict[str, Any] = {}
        self._start_observation: Observation
        # The state before the next step; empty after a reset.
        self._previous: list[float] = []

    def reset_task(self, variation_seed: int) -> Observation:
        """See `Environment.reset_task`."""
        environment = self._environment
        with self._without_hand_motion():
            self._draw_variation(variation_seed)
            environment.reset_model()
        # What is left of `SawyerXYZEnv.reset` after its first pass over `reset_model`.
        environment.curr_path_length = 0
        observation, _ = MujocoEnv.reset(environment)
        environment._prev_obs = observation[:STATE_SIZE].copy()
        observation[STATE_SIZE : 2 * STATE_SIZE] = environment._prev_obs
        self._start_observation = np.asarray(observation, dtype=np.float32)
        self._start_attributes = dict(vars(environment))
        mujoco.mj_getState(self._model, self._data, self._start_state, _STATE)
        self._previous = []
        return self._start_observation.copy()

    def reset(self) -> Observation:
        """See `Environment.reset`."""
        mujoco.mj_resetData(self._model, self._data)
        mujoco.mj_setState(self._model, self._data, self._start_state, _STATE)
        vars(self._environment).clear()
        vars(self._environment).update(self._start_attributes)
        self._previous = []
        return self._start_observation.copy()

    @contextmanager
    def _without_hand_motion(self) -> Iterator[None]:
        """Within it, MetaWorld's resets leave out the physics that moves the hand to its start."""
        environment = self._environment

        def stay(steps: int = 0) -> None:
            # Poses must be rotations at least, or MetaWorld cannot make quaternions of them.
            mujoco.mj_kinematics(self._model, self._data)
            environment.init_tcp = environment.tcp_center

        environment._reset_hand = stay
        try:
            yield
        finally:
            del environment._reset_hand

    def step(self, action: Action) -> tuple[Observation, float, bool, bool]:
        """See `Environment.step`."""
        if not self._previous:
            return self._first_step(action)
        assert self._outcome is not None
        environment = self._environment
        self._position[:] = self._target(environment, self._position.tolist(), action)
        effort = float(action[3])
        self._control[:] = (effort, -effort)
        start = perf_counter()
        mujoco.mj_step(self._model, self._data, nstep=environment.frame_skip)
        mujoco.mj_forward(self._model, self._data)
        self.physics_seconds += perf_counter() - start
        if self._warnings.tobytes() != self._no_warnings:
            raise UnstableSimulationError("MuJoCo reported a diverged state")
        self._previous, observation, reward, success = self._outcome(environment, self._previous, action)
        return np.array(observation, np.float32), float(reward), False, bool(success)

    def _first_step(self, action: Action) -> tuple[Observation, float, bool, bool]:
        """MetaWorld's own step: some rewards set up attributes in it, which the scalar code then reads."""
        result = super().step(action)
        self._previous = self._environment._prev_obs.tolist()
        if self._outcome is None:
            self._outcome = compile_outcome(self._environment)
        return result

    def save_state(self) -> SimulatorState:
        """See `icrl.ground_truth.RestorableEnvironment.save_state`."""
        return replace(super().save_state(), previous=tuple(self._previous))

    def restore_state(self, state: SimulatorState) -> None:
        """See `icrl.ground_truth.RestorableEnvironment.restore_state`."""
        super().restore_state(state)
        self._previous = list(state.previous)

    def behaviour(self, observation: Observation) -> Action:
        """See `Environment.behaviour`."""
        return np.array(self._expert(observation.tolist()), np.float32)
