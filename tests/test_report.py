"""One round through the report on a small run folder with known numbers."""

import io
from html.parser import HTMLParser
from pathlib import Path

import matplotlib.image
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from rich.console import Console

from distributed.report import summary_table, write_report
from icrl.adaptive_rows import OTHERS
from icrl.config import ExperimentConfig, ModelConfig, TransferConfig
from icrl.datasets import Shard, write_manifest
from icrl.errors import InputError
from icrl.storage import Folder
from icrl.tables import ADAPTIVE, BANK, CELLS, DEPTHS, PROFILES, TRAINING, WEIGHTS

DOMAINS = ("pick-place-v3", "shelf-place-v3", "button-press-v3")
BEST_STEP = {"pick-place-v3": 2, "shelf-place-v3": 2, "button-press-v3": 0}
TEMPERATURES = (0.1, 0.3, 0.9, 2.7)
STAGES = ("collect", "tune", "train", "transfer")


def make_run(location: Path, config: ExperimentConfig) -> Folder:
    """A run folder in which a task has TD loss 1 + task at its domain's best δ, twice that under foreign weights."""
    folder = Folder.open(location)
    rows: dict[str, list[tuple[object, ...]]] = {
        name: [] for name in ("profiles", "training", "weights", "cells", "depth", "adaptive", "bank")
    }
    for kernel in config.model.kernels:
        scale = 10.0 if kernel == "linear" else 1.0
        grid = (np.nan,) if kernel == "linear" else TEMPERATURES
        for domain in config.domains:
            best = np.nan if kernel == "linear" else TEMPERATURES[BEST_STEP[domain]]
            rows["weights"].append((kernel, domain, best, [1.0, 0.5]))
            rows["training"] += [(kernel, domain, step, 2.0, 1.5 if step else np.nan, best) for step in range(3)]
            for task in range(3):
                loss = scale * (1.0 + task)
                for step, temperature in enumerate(grid):
                    distance = 0 if kernel == "linear" else abs(step - BEST_STEP[domain])
                    rows["profiles"].append((kernel, domain, temperature, task, 0, loss * 3**distance, 0.5, False))
                for tier in config.collect.noise_tiers if kernel != "linear" else ():
                    of_task = (domain, tier, task, 0)
                    rows["adaptive"] += [
                        (kernel, "stacked", source, *of_task, best, 0.9 * loss, 0.5, 0.75, False)
                        for source in (OTHERS, *config.domains)
                    ]
                    for step, temperature in enumerate(grid):
                        excess = 3 ** abs(step - BEST_STEP[domain])
                        rows["bank"].append(
                            (kernel, *of_task, temperature, loss * excess, loss * excess, 1 / excess, excess, False)
                        )
                for tier in config.collect.noise_tiers:
                    rows["depth"] += [(kernel, domain, tier, task, depth, loss / depth, 0.5, False) for depth in (1, 2)]
                    rows["cells"] += [
                        (kernel, source, domain, tier, task, 0, best, loss * (1 + (source != domain)), 0.5, 0.75, False)
                        for source in config.domains
                    ]
    for name, columns, file in (
        ("profiles", PROFILES, "tune/profiles.parquet"),
        ("training", TRAINING, "train/metrics.parquet"),
        ("weights", WEIGHTS, "train/weights.parquet"),
        ("cells", CELLS, "transfer/cells.parquet"),
        ("depth", DEPTHS, "transfer/depth.parquet"),
        ("adaptive", ADAPTIVE, "transfer/adaptive.parquet"),
        ("bank", BANK, "transfer/bank.parquet"),
    ):
        frame = pd.DataFrame(rows[name], columns=list(columns))
        folder.write_table(file, pa.Table.from_pandas(frame, preserve_index=False))
    shard = Shard(
        path="shards/block.parquet",
        domain=config.domains[0],
        tier="high",
        first_task=0,
        task_seeds=(1, 2),
        successes=(1, 0),
        episodes=(1, 1),
        unstable={},
        rows=402,
        transitions=400,
        digest="0",
    )
    write_manifest(folder / "dataset", [shard], {})
    for stage in STAGES:
        folder.write_json(f"stages/{stage}.json", {"seconds": 12.5, "finished": "2030-01-01T00:00:00+00:00"})
    folder.write_json("run.json", {"commit": "<b>abc", "versions": {"torch": "9.9"}})
    return folder


CONFIG = ExperimentConfig(
    domains=DOMAINS, model=ModelConfig(kernels=("rbf", "linear")), transfer=TransferConfig(num_resamples=100)
)


class Page(HTMLParser):
    """What the tests look at: addresses, anchors, visible text and table cells."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.anchors: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]
        self.anchors += [value or "" for name, value in attrs if name == "id"]

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Folder, list[str]]:
    folder = make_run(tmp_path_factory.mktemp("run"), CONFIG)
    return folder, write_report(folder, CONFIG)


def page_of(folder: Folder) -> Page:
    return Page(folder.read("report/report.html").decode())


def test_every_named_file_exists_and_the_page_comes_first(run: tuple[Folder, list[str]]) -> None:
    folder, files = run
    assert files[:2] == ["report/report.html", "report/matrix.png"]
    assert sorted(files) == folder.list("report")


def test_page_is_self_contained(run: tuple[Folder, list[str]]) -> None:
    page = page_of(run[0])
    assert {"link", "iframe"}.isdisjoint(page.tags)
    pictures = [address for address in page.addresses if not address.startswith("#")]
    assert len(pictures) == 2 + 1 + 5, "a matrix a kernel, a profile a kernel with temperature, five more"
    assert all(address.startswith("data:image/svg+xml;base64,") for address in pictures)
    links = [address[1:] for address in page.addresses if address.startswith("#")]
    assert links
    assert set(links) <= set(page.anchors)


@pytest.mark.parametrize(
    "sentence",
    [
        "one for each group: button-press-v3 (δ ≈ 0.11); pick-place-v3 and shelf-place-v3 (δ ≈ 0.9)",
        "comes from rbf on 3 of 3 domains",
        "The TD loss of the linear kernel is 10 times that of rbf",
        "None of the 162 evaluations behind the transfer matrix diverged",
        "a TD loss of 0.90 times (median) and at worst 0.90 times",
        "With rbf, 2 fixed temperatures keep every domain within 20% of its best.",
        "Code: <b>abc.",
    ],
)
def test_page_says_what_was_found(run: tuple[Folder, list[str]], sentence: str) -> None:
    assert sentence in page_of(run[0]).text


def test_picture_is_a_png(run: tuple[Folder, list[str]]) -> None:
    pixels = matplotlib.image.imread(io.BytesIO(run[0].read("report/matrix.png")), format="png")
    assert pixels.shape[0] > 300
    assert pixels.std() > 0.05


def test_tables_are_equal_as_parquet_and_csv(run: tuple[Folder, list[str]]) -> None:
    folder, files = run
    names = [name.removesuffix(".csv") for name in files if name.endswith(".csv")]
    assert len(names) == 21
    for name in names:
        stored = folder.read_table(f"{name}.parquet").to_pandas()
        text = pd.read_csv(io.BytesIO(folder.read(f"{name}.csv")))
        assert list(stored) == list(text)
        for column in stored.select_dtypes("number"):
            assert text[column].to_numpy() == pytest.approx(stored[column].to_numpy(), nan_ok=True), (name, column)


def test_matrix_table_holds_the_gaps(run: tuple[Folder, list[str]]) -> None:
    matrix = run[0].read_table("report/tables/transfer_matrix.parquet").to_pandas()
    own = matrix["source"] == matrix["target"]
    assert set(matrix.loc[own, "gap"]) == {1.0}
    assert set(matrix.loc[~own, "gap"]) == {2.0}
    assert len(matrix) == 2 * 4 * 9


def test_event_files_lie_beside_those_of_the_other_stages(run: tuple[Folder, list[str]]) -> None:
    runs = {name.split("/")[2] for name in run[0].list("tensorboard/transfer")}
    assert runs == {*DOMAINS, "figures"}


def test_summary_for_the_terminal_fits_eighty_columns(run: tuple[Folder, list[str]]) -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(summary_table(run[0], CONFIG))
    lines = console.export_text().splitlines()
    row = next(line for line in lines if "button-press" in line)
    assert row.split() == ["rbf", "0.11", "button-press", "0.5", "–", "2.00", "0.0%"]
    assert all(len(line) <= 80 for line in lines)


def test_one_domain_and_the_linear_kernel_alone_give_the_same_page_twice(tmp_path: Path) -> None:
    config = CONFIG.model_copy(update={"domains": DOMAINS[:1], "model": ModelConfig(kernels=("linear",))})
    folder = make_run(tmp_path, config)
    write_report(folder, config)
    first = folder.read("report/report.html")
    write_report(folder, config)
    assert folder.read("report/report.html") == first


@pytest.mark.parametrize(
    ("file", "stage"),
    [
        ("tune/profiles.parquet", "tune"),
        ("train/metrics.parquet", "train"),
        ("train/weights.parquet", "train"),
        ("transfer/cells.parquet", "transfer"),
        ("transfer/depth.parquet", "transfer"),
        ("transfer/adaptive.parquet", "transfer"),
        ("transfer/bank.parquet", "transfer"),
        ("stages/train.json", "train"),
        ("run.json", "collect"),
        ("dataset/manifest.json", "collect"),
    ],
)
def test_missing_result_names_the_stage_to_run(tmp_path: Path, file: str, stage: str) -> None:
    folder = make_run(tmp_path, CONFIG)
    folder.delete(file)
    with pytest.raises(InputError, match=rf"{file.split('/')[-1]}.*`icrl {stage}") as caught:
        write_report(folder, CONFIG)
    assert "\n" not in str(caught.value)


def test_empty_run_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="icrl tune"):
        write_report(Folder.open(tmp_path), CONFIG)


def test_table_of_another_version_is_refused(tmp_path: Path) -> None:
    folder = make_run(tmp_path, CONFIG)
    folder.write_table("transfer/cells.parquet", folder.read_table("transfer/cells.parquet").drop_columns("diverged"))
    with pytest.raises(InputError, match=r"transfer/cells.parquet lacks the column\(s\) diverged"):
        write_report(folder, CONFIG)
