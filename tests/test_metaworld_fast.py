"""The fast environments against MetaWorld itself, bit by bit, on all domains."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from metaworld.env_dict import ALL_V3_ENVIRONMENTS
from metaworld.utils import reward_utils
from scipy.spatial.transform import Rotation

from icrl.domains import MetaWorldEnvironment, UnstableSimulationError, get_domain
from icrl.metaworld_fast import arithmetic, guard
from icrl.metaworld_fast.environment import FastMetaWorldEnvironment
from icrl.metaworld_fast.stand_ins import RUNTIME, StandIns
from icrl.metaworld_fast.tracing import Kind, TraceError, write_function

ACTION_BEYOND_LIMITS = 1.5


def play(environment: MetaWorldEnvironment, plan: list[tuple[int, float, list[int]]]) -> Iterator[tuple[str, Any]]:
    """Everything that tasks (variation seed, noise, steps of each episode) give, down to the float64 state."""
    for seed, noise_std, lengths in plan:
        noise = np.random.default_rng(seed)
        for episode, num_steps in enumerate(lengths):
            where = f"task {seed}, episode {episode}"
            observation = environment.reset() if episode else environment.reset_task(seed)
            yield f"{where}: first observation", observation.tolist()
            for step in range(num_steps):
                wanted = environment.behaviour(observation)
                yield f"{where}, step {step}: expert's action", wanted.tolist()
                limit = ACTION_BEYOND_LIMITS if step % 5 == 0 else 1.0
                noisy = np.clip(wanted + noise_std * noise.standard_normal(4), -limit, limit)
                observation, reward, terminated, success = environment.step(noisy.astype(np.float32))
                yield f"{where}, step {step}: observation", observation.tolist()
                yield f"{where}, step {step}: state in float64", state_of(environment)
                yield f"{where}, step {step}: reward", reward
                yield f"{where}, step {step}: flags", (terminated, success)


def state_of(environment: MetaWorldEnvironment) -> list[float]:
    if isinstance(environment, FastMetaWorldEnvironment):
        return environment._previous
    state: list[float] = environment._environment._prev_obs.tolist()
    return state


@pytest.mark.parametrize("name", list(ALL_V3_ENVIRONMENTS))
def test_every_domain_equals_metaworld_bit_for_bit(name: str) -> None:
    fast, plain = FastMetaWorldEnvironment(name), MetaWorldEnvironment(name)
    fast.reset_task(99)  # what an environment did before must not matter
    plan = [(1, 0.1, [45, 12]), (2, 1.0, [25])]
    for (what, value), (_, expected) in zip(play(fast, plan), play(plain, plan), strict=True):
        assert value == expected, what


def test_the_fast_environment_is_what_a_domain_makes() -> None:
    assert isinstance(get_domain("reach-v3").make_environment(), FastMetaWorldEnvironment)


def test_another_version_falls_back_to_metaworld_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(guard.PROVED_VERSIONS, "mujoco", "3.2.0")
    with pytest.warns(RuntimeWarning, match=r"mujoco 3\.\S+ is installed, but .* for mujoco 3\.2\.0"):
        environment = get_domain("reach-v3").make_environment()
    assert type(environment) is MetaWorldEnvironment


def test_a_failed_self_test_falls_back_to_metaworld_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = FastMetaWorldEnvironment.step

    def last_bit_wrong(self: FastMetaWorldEnvironment, action: Any) -> Any:
        observation, reward, terminated, success = exact(self, action)
        return observation, np.nextafter(reward, np.inf), terminated, success

    monkeypatch.setattr(FastMetaWorldEnvironment, "step", last_bit_wrong)
    monkeypatch.setattr(guard, "_passed", set())
    with pytest.warns(RuntimeWarning, match="the reward of step 1"):
        environment = get_domain("reach-v3").make_environment()
    assert type(environment) is MetaWorldEnvironment


def test_a_diverged_simulation_is_reported_and_forgotten_by_the_next_reset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where MuJoCo writes its log
    environment = FastMetaWorldEnvironment("reach-v3")
    for reset in (lambda: environment.reset_task(1), environment.reset):
        first = reset()
        action = environment.behaviour(first)
        environment.step(action)
        expected = environment.step(action)
        environment._data.qvel[:] = 1e30
        with pytest.raises(UnstableSimulationError):
            environment.step(action)
        np.testing.assert_array_equal(environment.reset(), first)
        environment.step(action)
        np.testing.assert_array_equal(environment.step(action)[0], expected[0])


@pytest.mark.parametrize("sigmoid", ["long_tail", "gaussian"])
def test_tolerance_equals_metaworlds(sigmoid: str) -> None:
    random = np.random.default_rng(0)
    mine = getattr(arithmetic, sigmoid)
    cases = [
        (0.0, 0.0, 0.0, 0.0),
        (1.0, 0.0, 0.5, 0.0),
        (0.5, 0.0, 0.5, 0.1),
        *random.uniform(-1, 1, (2000, 4)).tolist(),
    ]
    for x, lower, width, margin in cases:
        bounds = (lower, lower + abs(width))
        expected = reward_utils.tolerance(x, bounds=bounds, margin=abs(margin), sigmoid=sigmoid)
        assert mine(x, *bounds, abs(margin)) == expected
    for bounds, margin in (((1.0, 0.0), 1.0), ((0.0, 1.0), -1.0)):
        with pytest.raises(ValueError, match="margin"):
            mine(0.5, *bounds, margin)


def test_quaternion_equals_scipys_on_all_four_branches() -> None:
    rotations = Rotation.random(500, rng=np.random.default_rng(0))
    largest = {int(np.argmax([*np.diag(m), np.trace(m)])) for m in rotations.as_matrix()}
    assert largest == {0, 1, 2, 3}
    for matrix in rotations.as_matrix():
        assert list(arithmetic.quaternion(matrix.ravel().tolist())) == Rotation.from_matrix(matrix).as_quat().tolist()


def test_touching_equals_metaworlds_for_every_geom() -> None:
    environment = MetaWorldEnvironment("pick-place-v3")
    simulator = environment._environment
    pads = [simulator.data.geom(f"{side}pad_geom").id for side in ("left", "right")]
    observation = environment.reset_task(1)
    seen = set()
    for step in range(60):
        observation, *_ = environment.step(environment.behaviour(observation))
        for geom in range(simulator.model.ngeom) if step % 6 == 0 else ():
            expected = bool(simulator.touching_object(geom))
            seen.add(expected)
            assert arithmetic.touching_object(simulator.data, *pads, geom) == expected
    assert seen == {False, True}


def test_prism_equals_metaworlds() -> None:
    def traced(stand_ins: StandIns) -> Any:
        corners = [stand_ins.array(name, 3) for name in ("curr", "zero", "one")]
        return stand_ins.copy_function(prism)(*corners)

    def prism(curr: Any, zero: Any, one: Any) -> Any:
        return reward_utils.rect_prism_tolerance(curr, zero, one)

    mine = compiled(traced, "curr, zero, one")
    random = np.random.default_rng(0)
    inside = 0
    for _ in range(1000):
        curr, zero, one = random.uniform(-1, 1, (3, 3)) * [[0.5], [1], [1]]
        expected = prism(curr, zero, one)
        inside += expected != 1.0
        assert mine(curr.tolist(), zero.tolist(), one.tolist()) == expected
    assert inside > 20


def compiled(function: Callable[[StandIns], Any], parameters: str) -> Callable[..., Any]:
    stand_ins = StandIns()
    namespace = dict(RUNTIME)
    exec(write_function(stand_ins.trace, "written", parameters, lambda: function(stand_ins)), namespace)
    written: Callable[..., Any] = namespace["written"]
    return written


def short_circuit(v: Any, a: Any) -> Any:
    if v[0] > 0 and v[1] > 0:
        return v[0] / v[1]
    return -v[0] if v[2] > 0.5 or v[1] < -0.5 else abs(v[1]) ** 2


def slices_share_memory(v: Any, a: Any) -> Any:
    tail = v[1:]
    tail[0] -= 0.05
    kept = v[:2].copy()
    kept += 1.0
    return v[1] + tail[0] * kept[1] + v[[0, 2]][1]


def single_precision(v: Any, a: Any) -> Any:
    weak = min(max(0, a[-1]), 0.7) / 0.7
    return weak * v[0] + (weak + 0.1) * 2


def clipped_single_precision(v: Any, a: Any) -> Any:
    return (np.clip(a[:3], -0.3, 0.3) * 0.01 + v)[1] + np.clip(a[3], -0.5, 0.5) * 0.7


def norms(v: Any, a: Any) -> Any:
    return np.linalg.norm(v) * np.linalg.norm(v[:2], ord=2) - np.linalg.norm(v[2])


def arrays(v: Any, a: Any) -> Any:
    stacked = np.hstack((v, np.array([v[0], 2.0]), a[3]))
    return (np.clip(v[0], -0.5, 0.5) + np.log(abs(v[1])) - np.abs(stacked * 3 - 1)[3]) / np.pi


@pytest.mark.parametrize(
    "function", [short_circuit, slices_share_memory, single_precision, clipped_single_precision, norms, arrays]
)
def test_written_code_equals_the_function_it_was_traced_from(function: Callable[..., Any]) -> None:
    def traced(stand_ins: StandIns) -> Any:
        vector = stand_ins.array("v", 3).copy()
        return stand_ins.copy_function(function)(vector, stand_ins.array("a", 4, Kind.SINGLE))

    mine = compiled(traced, "v, a")
    random = np.random.default_rng(0)
    for _ in range(500):
        vector, action = random.uniform(-1, 1, 3), random.uniform(-1, 1, 4).astype(np.float32)
        assert mine(vector.tolist(), action) == function(vector.copy(), action)


def test_a_failed_check_of_the_function_fails_in_the_written_code_too() -> None:
    def traced(stand_ins: StandIns) -> Any:
        number = stand_ins.array("v", 1)[0]
        assert number > 0
        return number + 1

    mine = compiled(traced, "v")
    assert mine([1.0]) == 2.0
    with pytest.raises(AssertionError):
        mine([-1.0])


def writes_into_its_input(stand_ins: StandIns) -> Any:
    stand_ins.array("v", 3)[0] = 1.0


def takes_a_power_of_an_array(stand_ins: StandIns) -> Any:
    return stand_ins.array("v", 3) ** 2


def compares_for_equality(stand_ins: StandIns) -> Any:
    first, second, _ = stand_ins.array("v", 3)
    return 1.0 if first == second else 0.0


def mixes_precisions(stand_ins: StandIns) -> Any:
    return stand_ins.numpy.clip(stand_ins.array("v", 3, Kind.SINGLE), *stand_ins.array("w", 2))


def sets_an_attribute(stand_ins: StandIns) -> Any:
    stand_ins.of_object(SimpleNamespace(), "env").previous = 1.0


def has_too_many_paths(stand_ins: StandIns) -> Any:
    return sum(1 for number, other in itertools.combinations(stand_ins.array("v", 6), 2) if number < other)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (writes_into_its_input, "writes into its input"),
        (takes_a_power_of_an_array, "powers"),
        (compares_for_equality, "equality"),
        (mixes_precisions, "precision"),
        (sets_an_attribute, "sets attribute previous"),
        (has_too_many_paths, "paths"),
    ],
)
def test_what_cannot_be_traced_exactly_is_refused(function: Callable[[StandIns], Any], reason: str) -> None:
    with pytest.raises(TraceError, match=reason):
        compiled(function, "v, w")
