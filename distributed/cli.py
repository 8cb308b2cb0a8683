"""The `icrl` command: arguments in, one clear error line out, and nothing else; the stages do the work."""

import difflib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    CliSubCommand,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    get_subcommand,
)

from icrl.config import ExperimentConfig, read_settings
from icrl.errors import InputError, RunStoppedError
from icrl.storage import Folder

DEFAULT_PRESET = "demo"


class StageCommand(ExperimentConfig):
    """A stage and the experiment it belongs to."""

    config: str | None = None
    """Preset (demo, paper) or YAML file; default: what the run folder was made with, else the preset demo."""
    run_dir: str | None = None
    """Folder of the run, a local path or s3://… or gs://…; default: runs/ and the name of the config."""

    def experiment(self) -> ExperimentConfig:
        """The experiment without the options that only this command has."""
        return ExperimentConfig.model_validate(self.model_dump(include=set(ExperimentConfig.model_fields)))

    def folder(self) -> Folder:
        """The run folder."""
        return Folder.open(run_location(self.config, self.run_dir))


class CollectCommand(StageCommand):
    """Collect trajectories of the scripted experts as Parquet shards."""


class TuneCommand(StageCommand):
    """Search temperatures: the profile of TD loss against δ for every domain and kernel."""


class TrainCommand(StageCommand):
    """Fit the structured transformer on every source domain (Ray Train, DDP)."""


class TransferCommand(StageCommand):
    """Apply every source's frozen weights to every target's held-out tasks."""


class ReportCommand(StageCommand):
    """Write report.html, figures and all tables from what the other stages left."""


class StatusCommand(StageCommand):
    """Show what each stage of a run has done and what remains."""


class RunCommand(StageCommand):
    """Run all stages in order; finished work is kept."""


class VerifyCommand(BaseModel):
    """Check every claim of the theory against an independent computation; status 1 if one fails."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Decides all random draws."""
    out: str = "runs/verify"
    """Folder for verify.json and verify.png."""


class Icrl(BaseSettings):
    """Evaluate policies across domains with one fixed transformer whose forward pass is kernel TD learning."""

    model_config = SettingsConfigDict(
        cli_prog_name="icrl",
        cli_kebab_case=True,
        cli_avoid_json=True,
        cli_hide_none_type=True,
        cli_exit_on_error=False,
        use_attribute_docstrings=True,
        extra="forbid",
    )

    collect: CliSubCommand[CollectCommand]
    tune: CliSubCommand[TuneCommand]
    train: CliSubCommand[TrainCommand]
    transfer: CliSubCommand[TransferCommand]
    report: CliSubCommand[ReportCommand]
    status: CliSubCommand[StatusCommand]
    run: CliSubCommand[RunCommand]
    verify: CliSubCommand[VerifyCommand]

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The command line over the chosen configuration file; environment variables take no part."""
        return (ChosenConfiguration(settings_cls),)


class ChosenConfiguration(PydanticBaseSettingsSource):
    """Settings of the configuration that the command line names, underneath the command line's own."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """Not used: this source answers as a whole."""
        raise NotImplementedError

    def __call__(self) -> dict[str, Any]:
        """Settings by command, for the one command that was given."""
        given = {
            name: options
            for name, options in self.current_state.items()
            if isinstance(options, dict) and name != "verify"
        }
        return {name: base_settings(options.get("config"), options.get("run_dir")) for name, options in given.items()}


def base_settings(config: str | None, run_dir: str | None) -> dict[str, Any]:
    """Settings underneath the command line: the named configuration, else the run folder's own, else the default."""
    if config is not None:
        return read_settings(config)
    stored = Folder.open(run_location(config, run_dir))
    if stored.exists("run.json"):
        settings: dict[str, Any] = stored.read_json("run.json")["config"]
        return settings
    return read_settings(DEFAULT_PRESET)


def run_location(config: str | None, run_dir: str | None) -> str:
    """Where the run folder lies: as given, else named after the configuration."""
    return run_dir or f"runs/{Path(config or DEFAULT_PRESET).stem}"


def parse(arguments: Sequence[str]) -> tuple[str, StageCommand | VerifyCommand]:
    """Name and validated options of the command that was given.

    Raises:
        InputError: an unknown command, option or setting, or a value that is impossible.
    """
    try:
        settings = Icrl(_cli_parse_args=list(arguments))  # type: ignore[call-arg]
        command = get_subcommand(settings)
    except SettingsError as error:
        raise InputError(_without_prefix(str(error))) from None
    except ValidationError as error:
        raise InputError(describe(error)) from None
    assert isinstance(command, StageCommand | VerifyCommand)
    return next(name for name in Icrl.model_fields if getattr(settings, name) is command), command


def describe(error: ValidationError) -> str:
    """One line for a failed validation: each setting, what was given, what was expected."""
    lines = []
    for problem in error.errors(include_url=False):
        path = [str(part) for part in problem["loc"][1:]]
        given = problem["input"]
        if problem["type"] == "extra_forbidden":
            lines.append(f"unknown setting {'.'.join(path)}{_nearest(path)}")
        elif problem["type"] == "value_error":
            place = ".".join(path)
            lines.append(f"{place + ': ' if place else ''}{problem['msg'].removeprefix('Value error, ')}")
        else:
            lines.append(f"{'.'.join(path)}: {problem['msg'].lower()}, got {given!r}")
    return "; ".join(lines)


def _nearest(path: list[str]) -> str:
    """The known setting that an unknown one was probably meant to be."""
    model: type[BaseModel] = ExperimentConfig
    for part in path[:-1]:
        annotation = model.model_fields[part].annotation
        assert isinstance(annotation, type)
        model = annotation
    matches = difflib.get_close_matches(path[-1], model.model_fields, n=1)
    known = ".".join([*path[:-1], matches[0]]) if matches else ""
    return f"; did you mean {known}?" if known else f"; known here: {', '.join(model.model_fields)}"


def _without_prefix(message: str) -> str:
    text = message.removeprefix("error parsing CLI: ").removeprefix("Error: ")
    return f"{text}; see `icrl --help` or `icrl COMMAND --help`"


def execute(name: str, command: StageCommand | VerifyCommand) -> int:
    """Run one command and return the exit status."""
    if isinstance(command, VerifyCommand):
        return _verify(command)
    # Imported here: Ray and torch take seconds that a wrong argument need not wait for.
    from icrl.domains import get_domain

    config, folder = command.experiment(), command.folder()
    for domain in config.domains:
        get_domain(domain)

    if name == "status":
        _print_status(config, folder)
        return 0

    from distributed.pipeline import STAGE_NAMES, run_stages

    run_stages(STAGE_NAMES if name == "run" else (name,), config, folder)
    if name in ("report", "run"):
        _print_result(config, folder)
    return 0


def _verify(command: VerifyCommand) -> int:
    from rich.console import Console
    from rich.table import Table

    from distributed.report_page import figure_png
    from icrl.verify import plot_verification, run_checks

    folder = Folder.open(command.out)
    outcome = run_checks(command.seed, lambda group: print(f"[verify] {group}", file=sys.stderr, flush=True))
    table = Table(title=f"{sum(check.passed for check in outcome.checks)} of {len(outcome.checks)} claims hold")
    for heading in ("claim", "figure", "bound", ""):
        table.add_column(heading, justify="left" if heading == "claim" else "right")
    for check in outcome.checks:
        relation = "≥" if check.at_least else "≤"
        verdict = "pass" if check.passed else "[bold red]FAIL[/]"
        table.add_row(check.claim, f"{check.figure:.3g}", f"{relation} {check.bound:.3g}", verdict)
    folder.write_json("verify.json", outcome.to_dict())
    folder.write("verify.png", figure_png(plot_verification(outcome)))
    Console().print(table)
    print(f"{outcome.seconds:.0f} s; written: {folder / 'verify.json'}, {folder / 'verify.png'}")
    return 0 if outcome.passed else 1


def _print_status(config: ExperimentConfig, folder: Folder) -> None:
    if not folder.exists("run.json"):
        raise InputError(f"{folder} is not a run folder: it has no run.json; give the --run-dir of a run")
    from rich.console import Console

    from distributed.status import run_status, status_table

    Console().print(status_table(run_status(config, folder)))


def _print_result(config: ExperimentConfig, folder: Folder) -> None:
    from rich.console import Console

    from distributed.report import PAGE, PICTURE, TABLES, summary_table

    console = Console()
    console.print(summary_table(folder, config))
    console.print(f"Report       {folder / PAGE}", highlight=False, soft_wrap=True)
    console.print(f"Picture      {folder / PICTURE}", highlight=False, soft_wrap=True)
    console.print(f"Tables       {folder / TABLES} (Parquet and CSV)", highlight=False, soft_wrap=True)
    console.print(f"TensorBoard  tensorboard --logdir {folder / 'tensorboard'}", highlight=False, soft_wrap=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status: 0 done, 2 wrong input, 1 stopped or a claim failed."""
    try:
        return execute(*parse(sys.argv[1:] if arguments is None else arguments))
    except InputError as error:
        print(f"icrl: error: {error}", file=sys.stderr)
        return 2
    except (RunStoppedError, OSError) as error:
        print(f"icrl: stopped: {error}; finished work is kept and the same command goes on", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
