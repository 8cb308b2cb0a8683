"""Covers of domains by fixed temperatures: worked by hand, and against every choice of grid temperatures."""

import itertools

import numpy as np
import pandas as pd
import pytest

from icrl.cover import cover, cover_sizes, tolerance_by_size

GRID = np.geomspace(0.01, 10, 13)


def profile(domain: str, loss: np.ndarray, kernel: str = "rbf") -> pd.DataFrame:
    temperature = GRID[: len(loss)]
    columns = {"kernel": kernel, "domain": domain, "temperature": temperature, "td_loss": loss, "divergence_rate": 0.0}
    return pd.DataFrame(columns)


def random_profiles(seed: int, num_domains: int = 7) -> pd.DataFrame:
    """Valleys with their bottom on the grid: log loss is linear in log δ on both sides."""
    rng = np.random.default_rng(seed)
    tables = []
    for index in range(num_domains):
        bottom, slopes = rng.integers(len(GRID)), rng.uniform(0.05, 0.6, 2)
        distance = np.log(GRID / GRID[bottom])
        tables.append(profile(f"d{index}", np.exp(np.where(distance < 0, -slopes[0], slopes[1]) * distance)))
    return pd.concat(tables)


def loss_at(summary: pd.DataFrame, domain: str, temperature: float) -> float:
    """Linear interpolation in log δ and log loss, which is exact for these profiles."""
    of_domain = summary[summary["domain"] == domain]
    return float(np.exp(np.interp(np.log(temperature), np.log(GRID), np.log(of_domain["td_loss"]))))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("tolerance", [0.05, 0.3])
def test_every_domain_is_within_the_tolerance_at_its_temperature(seed: int, tolerance: float) -> None:
    summary = random_profiles(seed)
    table = cover(summary, tolerance=tolerance)
    assert sorted(table["domain"]) == sorted(summary["domain"].unique())
    for domain, temperature in zip(table["domain"], table["group_temperature"], strict=True):
        assert loss_at(summary, domain, temperature) <= (1 + tolerance) * 1.0000001


@pytest.mark.parametrize("seed", range(4))
def test_no_smaller_set_of_temperatures_serves_all_domains(seed: int) -> None:
    tolerance, summary = 0.1, random_profiles(seed)
    num_models = cover_sizes(summary, [tolerance])["num_models"].item()
    # A smallest set of points may be chosen among the intervals' ends.
    ends = np.unique(cover(summary, tolerance=tolerance)[["low", "high"]].to_numpy())
    domains = summary["domain"].unique()
    served = [[loss_at(summary, d, end) <= (1 + tolerance) * 1.0000001 for d in domains] for end in ends]

    def serves_all(chosen: tuple[int, ...]) -> bool:
        return bool(np.any([served[index] for index in chosen], axis=0).all())

    assert not any(map(serves_all, itertools.combinations(range(len(ends)), num_models - 1)))
    assert any(map(serves_all, itertools.combinations(range(len(ends)), num_models)))


def test_sizes_and_tolerances_are_inverse_to_one_another() -> None:
    summary = random_profiles(1)
    table = tolerance_by_size(summary)
    assert len(table) > 2
    assert table["tolerance"].is_monotonic_decreasing
    for number, tolerance in zip(table["num_models"][:-1], table["tolerance"][:-1], strict=True):
        below, above = cover_sizes(summary, [0.998 * tolerance, 1.002 * tolerance])["num_models"]
        assert above <= number < below


def test_two_valleys_need_two_temperatures_until_the_tolerance_joins_them() -> None:
    # Losses double with each of the five steps between the two bottoms: at the middle both pay 2^2.5 − 1 = 4.66.
    left = np.array([1.0, 2, 4, 8, 16, 32])
    summary = pd.concat([profile("left", left), profile("right", left[::-1])])
    table = tolerance_by_size(summary).set_index("num_models")["tolerance"]
    assert list(table.index) == [1, 2]
    assert table[1] == pytest.approx(2**2.5 - 1, rel=2e-3)
    sizes = cover_sizes(summary, [1.0, 5.0])
    assert list(sizes["num_models"]) == [2, 1]
    assert sizes["temperatures"][1] == pytest.approx([np.sqrt(GRID[0] * GRID[5])])


def test_a_domain_that_diverged_everywhere_is_a_model_of_its_own() -> None:
    lost = profile("lost", np.full(3, np.nan)).assign(divergence_rate=1.0)
    summary = pd.concat([profile("well", np.array([2.0, 1, 2])), lost])
    assert tolerance_by_size(summary).set_index("num_models")["tolerance"][1] == np.inf
    assert cover_sizes(summary, [10.0])["num_models"].item() == 2
