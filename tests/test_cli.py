"""The command line: what is accepted, where settings come from, and one clear line for everything else."""

import json
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from distributed.cli import main, parse
from icrl.config import ExperimentConfig, preset_names, read_settings
from icrl.verification.check import Check
from icrl.verify import Evidence, Verification


def test_presets_are_valid_and_differ() -> None:
    configs = [ExperimentConfig.model_validate(read_settings(name)) for name in preset_names()]
    assert {"demo", "paper"} <= set(preset_names())
    assert len({config.model_dump_json() for config in configs}) == len(configs)


def test_the_command_line_wins_over_the_config_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("seed: 3\ncollect: {tasks_per_tier: 6, steps_per_episode: 300}\n")
    name, command = parse(["tune", "--config", str(file), "--collect.tasks-per-tier", "5", "--domains", "reach-v3"])
    assert name == "tune"
    assert command.experiment().collect.tasks_per_tier == 5
    assert command.experiment().collect.steps_per_episode == 300
    assert command.experiment().seed == 3
    assert command.experiment().domains == ("reach-v3",)
    assert str(command.folder()).endswith("runs/mine")


def test_a_run_folder_remembers_its_settings(tmp_path: Path) -> None:
    config = ExperimentConfig(seed=7)
    (tmp_path / "run.json").write_text(f'{{"config": {config.model_dump_json()}}}')
    _, command = parse(["transfer", "--run-dir", str(tmp_path)])
    assert command.experiment() == config


BAD = {
    "no command": ([], "subcommand is required"),
    "unknown command": (["colect"], "invalid choice: 'colect'"),
    "unknown option": (["run", "--modle.depth", "3"], "unrecognized arguments: --modle.depth"),
    "unknown config": (["run", "--config", "papr"], "neither a preset ("),
    "unknown domain": (["run", "--domains", "pick-plac-v3"], "pick-place-v3"),
    "wrong type": (["run", "--model.depth", "deep"], "model.depth: input should be a valid integer"),
    "negative temperature": (["tune", "--tune.min-temperature", "-1"], "tune.min_temperature: input should be greater"),
    "empty range": (["tune", "--tune.min-temperature", "20"], "min_temperature 20 must be below max_temperature 10"),
    "discount of one": (["run", "--discount", "1"], "discount: input should be less than 1"),
    "unknown kernel": (["run", "--model.kernels", "cosine"], "'linear', 'relu', 'exp', 'softmax' or 'rbf'"),
    "kernel twice": (["run", "--model.kernels", "rbf", "--model.kernels", "rbf"], "none twice"),
    "unknown tier": (["run", "--source-tier", "huge"], "source_tier: 'huge' is not a noise tier"),
    "reserved tier": (["run", "--collect.noise-tiers", "all=1.0"], "cannot be named 'all'"),
    "too few steps": (["run", "--collect.steps-per-episode", "50"], "200 transitions, but a task has 50"),
    "unusable run folder": (["run", "--run-dir", "ftp://x/y"], "give a local path"),
}


@pytest.mark.parametrize(("arguments", "message"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_one_line_and_status_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("icrl: error: ")
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_verify_exits_with_1_when_a_claim_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    claims = [Check("one and one is two", 0.0, 1e-10), Check("enough is reached", 0.5, 0.9, at_least=True)]
    monkeypatch.setattr("icrl.verify.run_checks", lambda seed, progress: Verification(claims, Evidence(), 0.1))
    monkeypatch.setattr("icrl.verify.plot_verification", lambda outcome: Figure())
    assert main(["verify", "--out", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert "1 of 2 claims hold" in printed
    assert [check["passed"] for check in json.loads((tmp_path / "verify.json").read_text())["checks"]] == [True, False]
    assert (tmp_path / "verify.png").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tune: {num_temperaturs: 3}", "unknown setting tune.num_temperaturs; did you mean tune.num_temperatures?"),
        ("domain: reach-v3", "unknown setting domain; did you mean domains?"),
        ("tune: [", "is not valid YAML"),
        ("- 1", "must be a mapping"),
    ],
)
def test_a_wrong_config_file_is_one_line(
    text: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(text)
    assert main(["run", "--config", str(file), "--run-dir", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("stage", ["tune", "train", "transfer", "report"])
def test_an_empty_run_folder_names_the_stage_to_run(
    stage: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main([stage, "--run-dir", str(tmp_path)]) == 2
    assert "no finished 'collect' stage" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
