"""The cluster files that ship: valid against Ray's own schema and defaults, without any cloud account."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

ROOT = Path(__file__).parents[2]
FILES = {"aws": ROOT / "cluster.yaml", "local": ROOT / "docs" / "cluster.local.yaml"}


def load(name: str) -> dict[str, Any]:
    settings: dict[str, Any] = yaml.safe_load(FILES[name].read_text())
    return settings


@pytest.mark.parametrize("name", FILES)
def test_ray_accepts_the_file(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    config = prepare_config(load(name))
    validate_config(config)
    assert config["head_node_type"] in config["available_node_types"]


@pytest.mark.parametrize("name", FILES)
def test_every_node_installs_the_lock_and_joins_the_cluster(name: str) -> None:
    settings = load(name)
    set_up = "\n".join(settings["setup_commands"])
    mounted = next(target for target, source in settings["file_mounts"].items() if source == ".")
    assert f"--constraint {mounted}/constraints.txt --editable {mounted}" in set_up
    assert "RAY_ADDRESS=auto RAY_AUTH_MODE=token" in set_up
    # Without the common token anyone in the network could run code on the cluster.
    assert settings["file_mounts"]["~/.ray/auth_token"] == "~/.ray/auth_token"
    # A folder in the home directory with a package's name would hide the package from a submitted script.
    assert not (ROOT / Path(mounted).name).exists()
    head, worker = settings["head_start_ray_commands"][-1], settings["worker_start_ray_commands"][-1]
    assert "--autoscaling-config=~/ray_bootstrap_config.yaml" in head
    assert "--dashboard-host=127.0.0.1" in head
    (port,) = re.findall(r"--port=(\d+)", head)
    assert f"--address=$RAY_HEAD_IP:{port}" in worker


def test_node_types_scale_from_none_and_only_trainers_have_gpus() -> None:
    settings = load("aws")
    types = dict(settings["available_node_types"])
    head = types.pop(settings["head_node_type"])
    assert head["resources"]["CPU"] == 0
    assert {name: kind["min_workers"] for name, kind in types.items()} == {"collector": 0, "trainer": 0}
    assert sum(kind["max_workers"] for kind in types.values()) == settings["max_workers"]
    assert types["collector"]["resources"]["GPU"] == 0
    assert types["collector"]["node_config"]["InstanceMarketOptions"] == {"MarketType": "spot"}
    assert types["trainer"]["resources"]["GPU"] > 1
    assert "InstanceMarketOptions" not in types["trainer"]["node_config"]
