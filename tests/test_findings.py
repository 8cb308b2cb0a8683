"""Findings say what the tables hold and nothing else."""

import numpy as np
import pandas as pd
import pytest

from icrl.findings import Summaries, describe, group_table
from icrl.rkhs import group_domains

KERNELS = ("rbf", "linear")
GAPS = {("a", "b"): 1.1, ("b", "a"): 1.0, ("a", "c"): 2.0, ("b", "c"): 8.0, ("c", "a"): 3.0, ("c", "b"): 27.0}


def summaries(*, diverged: int = 0, at_edge: bool = False) -> Summaries:
    intervals = pd.DataFrame(
        {"kernel": "rbf", "domain": ["a", "b", "c"], "low": [1.0, 2.0, 9.0], "high": [4.0, 8.0, 9.0], "at_edge": False}
    )
    intervals.loc[2, "at_edge"] = at_edge
    matrix = [
        {"kernel": kernel, "tier": tier, "source": source, "target": target, "num_contexts": 10}
        | {"gap": GAPS.get((source, target), 1.0), "num_diverged": diverged if source != target else 0}
        for kernel in KERNELS
        for tier in ("all", "high")
        for source in "abc"
        for target in "abc"
    ]
    own = [
        {"kernel": kernel, "domain": domain, "tier": "all", "td_loss": loss, "td_ratio": loss / 10}
        for kernel, losses in (("rbf", (1.0, 2.0, 6.0)), ("linear", (4.0, 6.0, 3.0)))
        for domain, loss in zip("abc", losses, strict=True)
    ]
    profiles = pd.DataFrame({"divergence_rate": [0.0, 0.0, 0.1 if diverged else 0.0]})
    empty = pd.DataFrame()
    return Summaries(profiles, intervals, group_domains(intervals), pd.DataFrame(matrix), pd.DataFrame(own), empty)


def test_group_table_separates_gaps_inside_and_outside() -> None:
    table = group_table(summaries(diverged=1), KERNELS)
    assert table["domains"].tolist() == [["a", "b"], ["c"], ["a", "b", "c"]]
    assert table["gap_inside"].tolist() == pytest.approx(
        [np.sqrt(1.1), np.nan, (1.1 * 2 * 8 * 81) ** (1 / 6)], nan_ok=True
    )
    assert table["gap_outside"].tolist() == pytest.approx([9.0, 4.0, np.nan], nan_ok=True)
    assert table["temperature"].tolist() == pytest.approx([np.sqrt(8), 9.0, np.nan], nan_ok=True)
    assert table["td_ratio"].tolist() == pytest.approx([0.15, 0.6, 13 / 30])
    assert table["divergence_rate"].tolist() == pytest.approx([4 / 60, 2 / 30, 6 / 90])


def test_findings_of_a_worked_example() -> None:
    assert describe(summaries(), KERNELS) == [
        "With the rbf kernel the 3 domains need 2 temperatures, one for each group: a and b (δ ≈ 2.8); c (δ ≈ 9).",
        "The lowest TD loss with a domain's own weights comes from rbf on 2 of 3 domains.",
        "The TD loss of the linear kernel is 0.5 to 4 times that of rbf.",
        "Transfer gaps with rbf have the median 2.50; they range from 1.00 (b on a) to 27.00 (c on b).",
        "Transfer gaps with linear have the median 2.50; they range from 1.00 (b on a) to 27.00 (c on b).",
        "None of the 180 evaluations behind the transfer matrix diverged; none of the 3 searched temperatures had a "
        "context that did.",
    ]


def test_findings_count_divergence_and_name_a_search_that_ends_too_early() -> None:
    found = describe(summaries(diverged=2, at_edge=True), KERNELS)
    assert (
        "24 of the 180 evaluations behind the transfer matrix diverged; 1 of the 3 searched temperatures had a "
        "context that did." in found
    )
    assert "The δ-interval of c with rbf reaches an end of the searched range, so it may be wider than shown." in found


def test_weights_no_better_than_a_constant_are_named() -> None:
    tables = summaries()
    own = tables.own.assign(td_ratio=tables.own["td_ratio"].where(tables.own["domain"] != "b", 1.25))
    found = describe(Summaries(**{**vars(tables), "own": own}), ("rbf",))
    assert (
        "With rbf a constant value function does as well as the own weights of b (TD ratio 1 or more), so gaps to "
        "them and their temperatures say little." in found
    )


def test_one_group_is_said_to_share_its_temperature() -> None:
    tables = summaries()
    shared = tables.groups.assign(group=1, group_temperature=0.5)
    first = describe(Summaries(**{**vars(tables), "groups": shared}), KERNELS)[0]
    assert first == "With the rbf kernel one temperature serves all 3 domains: a, b and c (δ ≈ 0.5)."
