"""The presets that ship with the package."""

import pytest

from icrl.config import ExperimentConfig, preset_names, read_settings
from icrl.domains import domain_names, get_domain


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_is_a_valid_experiment_on_known_domains(name: str) -> None:
    config = ExperimentConfig.model_validate(read_settings(name))
    for domain in config.domains:
        get_domain(domain)


def test_the_atlas_holds_every_metaworld_domain() -> None:
    config = ExperimentConfig.model_validate(read_settings("atlas"))
    metaworld = [name for name in domain_names() if name.endswith("-v3")]
    assert sorted(config.domains) == metaworld
    assert len(metaworld) == 50
