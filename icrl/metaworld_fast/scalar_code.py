"""The functions that a step needs besides the physics, written from MetaWorld's own methods."""

from collections.abc import Callable
from typing import Any

from icrl.metaworld_fast.stand_ins import RUNTIME, StandIns
from icrl.metaworld_fast.tracing import Kind, Vector, write_function

STATE_SIZE = 18
"""Numbers of an observation that describe one point in time."""
OBSERVATION_SIZE = 39
ACTION_SIZE = 4


def compile_target(environment: Any) -> Callable[..., Any]:
    """Where `SawyerXYZEnv.set_xyz_action` moves the target that the hand is drawn to.

    Returns:
        ``target(env, position, action)`` -> list of 3 floats, from the target's position as a list of 3 and a float32
        action.
    """
    stand_ins = StandIns()
    symbolic, numpy = stand_ins.of_object(environment, "env"), stand_ins.numpy

    def target() -> Any:
        action = stand_ins.array("action", ACTION_SIZE, Kind.SINGLE)
        shift = numpy.clip(action[:3], -1, 1) * symbolic.action_scale
        return numpy.clip(stand_ins.array("position", 3) + shift, environment.mocap_low, environment.mocap_high)

    return _compile(stand_ins, "target", "env, position, action", target)


def compile_outcome(environment: Any) -> Callable[..., Any]:
    """What follows the physics in `SawyerXYZEnv.step`: observation, reward and success.

    Args:
        environment: a MetaWorld environment that has made a step since its reset; it is left as it is.

    Returns:
        ``outcome(env, previous, action)`` -> (state, observation, reward, success): lists of 18 and 39 floats and two
        numbers. `previous` is the state before the step, `action` a float32 array. The docstring is the source.
    """
    stand_ins = StandIns()
    symbolic, numpy = stand_ins.of_object(environment, "env"), stand_ins.numpy
    bounds = environment.sawyer_observation_space

    def outcome() -> Any:
        state = symbolic._get_curr_obs_combined_no_goal()
        previous = stand_ins.array("previous", STATE_SIZE)
        stacked = numpy.hstack([state, previous, symbolic._get_pos_goal()])
        observation = Vector(numpy.clip(stacked, bounds.low, bounds.high), frozen=True)
        reward, info = symbolic.evaluate_state(observation, stand_ins.array("action", ACTION_SIZE, Kind.SINGLE))
        return state, observation, reward, info["success"]

    return _compile(stand_ins, "outcome", "env, previous, action", outcome)


def compile_expert(policy: Any) -> Callable[..., Any]:
    """`get_action` of a scripted policy.

    Returns:
        ``expert(observation)`` -> list of the action's 4 floats, from the list of the observation's 39.
    """
    stand_ins = StandIns()
    symbolic = stand_ins.of_object(policy, "policy")

    def expert() -> Any:
        # A copy: some policies write into the observation they are given.
        return symbolic.get_action(stand_ins.array("observation", OBSERVATION_SIZE).copy())

    return _compile(stand_ins, "expert", "observation", expert)


def _compile(stand_ins: StandIns, name: str, parameters: str, function: Callable[[], Any]) -> Callable[..., Any]:
    source = write_function(stand_ins.trace, name, parameters, function)
    namespace = RUNTIME | stand_ins.views
    exec(compile(source, f"<{name}>", "exec"), namespace)
    compiled: Callable[..., Any] = namespace[name]
    compiled.__doc__ = source
    return compiled
