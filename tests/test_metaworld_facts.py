"""What the project assumes about MetaWorld and MuJoCo. A failure here means an upgrade changed the ground below."""

from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
from metaworld.env_dict import ALL_V3_ENVIRONMENTS
from metaworld.policies import ENV_POLICY_MAP


def make(name: str) -> Any:
    environment = ALL_V3_ENVIRONMENTS[name]()
    environment._set_task_called = True
    environment._freeze_rand_vec = False
    return environment


def test_every_environment_has_a_scripted_expert() -> None:
    assert set(ALL_V3_ENVIRONMENTS) <= set(ENV_POLICY_MAP)


def test_reset_ignores_its_seed_but_seed_is_heeded() -> None:
    environment = make("reach-v3")
    first, second = (environment.reset(seed=5)[0] for _ in range(2))
    assert not np.array_equal(first, second)
    environment.seeded_rand_vec = True
    drawn = []
    for _ in range(2):
        environment.seed(5)
        environment.reset()
        drawn.append(environment._last_rand_vec)
    np.testing.assert_array_equal(drawn[0], drawn[1])


def test_observation_space_is_cached_with_a_hidden_goal() -> None:
    environment = make("reach-v3")
    environment._partially_observable = False
    np.testing.assert_array_equal(environment.sawyer_observation_space.high[36:], np.zeros(3))
    del environment.sawyer_observation_space
    assert (environment.sawyer_observation_space.high[36:] > 0).any()


@pytest.mark.filterwarnings("ignore:Constant")
@pytest.mark.parametrize("name", ["door-open-v3", "door-close-v3"])
def test_some_experts_write_into_their_observation(name: str) -> None:
    observation, _ = make(name).reset()
    before = observation.copy()
    policy: Any = ENV_POLICY_MAP[name]
    policy().get_action(observation)
    assert not np.array_equal(observation, before)


def test_environment_refuses_steps_beyond_its_own_limit_and_never_terminates() -> None:
    environment = make("reach-v3")
    environment.reset()
    environment.max_path_length = 3
    flags = [environment.step(np.zeros(4, np.float32))[2:4] for _ in range(3)]
    assert flags == [(False, False), (False, False), (False, True)]
    with pytest.raises(ValueError, match="reset"):
        environment.step(np.zeros(4, np.float32))


def test_mujoco_counts_a_divergence_and_goes_on_as_if_nothing_had_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # MuJoCo leaves a log file where it diverges.
    environment = make("reach-v3")
    environment.reset()
    environment.data.qvel[0] = 1e12
    observation, *_ = environment.step(np.zeros(4, np.float32))
    assert np.isfinite(observation).all()
    bad = slice(int(mujoco.mjtWarning.mjWARN_BADQPOS), int(mujoco.mjtWarning.mjWARN_BADCTRL) + 1)
    assert environment.data.warning.number[bad].sum() > 0
    environment.reset()
    assert environment.data.warning.number[bad].sum() == 0
