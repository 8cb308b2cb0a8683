"""Event files of a run's stages, all below one folder: ``tensorboard --logdir RUN/tensorboard``.

Every stage replaces the files that it wrote before. They are made in a temporary folder and copied, because an event
file grows while it is written, which an object store cannot do.
"""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from torch.utils.tensorboard import SummaryWriter

from icrl.config import ALL_TIERS
from icrl.storage import Folder

ROOT = "tensorboard"


def log_profiles(folder: Folder, profiles: pd.DataFrame, settings: Mapping[str, float | str]) -> None:
    """Write temperature profiles, one TensorBoard run a domain, and every temperature tried as a row of HPARAMS.

    A profile's step is the temperature's number in the search.

    Args:
        folder: the run folder.
        profiles: rows of `icrl.tables.PROFILES`.
        settings: hyper-parameters that all temperatures share.
    """
    metrics = ["td_loss", "td_ratio", "divergence_rate"]
    with _event_files(folder, "tune") as location, SummaryWriter(location / "trials") as trials:
        for domain, of_domain in profiles.groupby("domain"):
            with SummaryWriter(location / str(domain)) as writer:
                for kernel, rows in of_domain.groupby("kernel"):
                    by_temperature = (
                        rows.assign(divergence_rate=rows["diverged"].astype(float))
                        .groupby("temperature", dropna=False)[metrics]
                        .mean()
                        .reset_index()
                    )
                    _add_table(writer, str(kernel), by_temperature)
                    for outcome in by_temperature.to_dict("records"):
                        varied = {"kernel": str(kernel), "domain": str(domain), "temperature": outcome["temperature"]}
                        trials.add_hparams(
                            {**settings, **varied},
                            {metric: outcome[metric] for metric in metrics},
                            run_name=f"{domain}/{kernel}-{outcome['temperature']:.6g}",
                        )


def log_training(folder: Folder, training: pd.DataFrame) -> None:
    """Write training curves, one TensorBoard run a source domain.

    Args:
        folder: the run folder.
        training: rows of `icrl.tables.TRAINING`.
    """
    with _event_files(folder, "train") as location:
        for domain, of_domain in training.groupby("domain"):
            with SummaryWriter(location / str(domain)) as writer:
                for kernel, rows in of_domain.groupby("kernel"):
                    columns = ["train_loss", "validation_loss", "temperature"]
                    _add_table(writer, str(kernel), rows.set_index("step")[columns])


def log_transfer(folder: Folder, matrix: pd.DataFrame, figures: Mapping[str, Figure]) -> None:
    """Write the transfer gaps over all tiers, one TensorBoard run a source domain, and figures.

    Args:
        folder: the run folder.
        matrix: from `icrl.transfer.transfer_matrix`.
        figures: figures by name.
    """
    pooled = matrix[matrix["tier"] == ALL_TIERS]
    with _event_files(folder, "transfer") as location:
        for source, entries in pooled.groupby("source"):
            with SummaryWriter(location / str(source)) as writer:
                for entry in entries.to_dict("records"):
                    for metric in ("gap", "td_loss", "divergence_rate"):
                        writer.add_scalar(f"{entry['kernel']}_{metric}/{entry['target']}", entry[metric], 0)
        with SummaryWriter(location / "figures") as writer:
            for name, figure in figures.items():
                writer.add_figure(name, figure, close=False)


def _add_table(writer: SummaryWriter, kernel: str, table: pd.DataFrame) -> None:
    """Add the columns of a table as curves over its index; what is undefined leaves a gap in its curve."""
    for metric in table:
        for step, number in table[metric].dropna().items():
            writer.add_scalar(f"{kernel}/{metric}", number, step)


@contextmanager
def _event_files(folder: Folder, stage: str) -> Iterator[Path]:
    """A temporary folder whose files take the place of the stage's event files at the end."""
    with tempfile.TemporaryDirectory() as temporary:
        location = Path(temporary)
        yield location
        earlier = folder.list(f"{ROOT}/{stage}")
        for file in sorted(location.rglob("events.*")):
            folder.write(f"{ROOT}/{stage}/{file.relative_to(location).as_posix()}", file.read_bytes())
        for name in earlier:
            folder.delete(name)
