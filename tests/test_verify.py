"""The checks: cheap groups in full, what a record says, and the figure."""

import json
from collections.abc import Callable

import pytest
import torch

from icrl import verify
from icrl.emergence import measure_emergence
from icrl.free_training import FreeTransformer
from icrl.verification.check import Check
from icrl.verification.learning import Emergence, check_structured_weights
from icrl.verification.limits import Curve, check_depth, median_interval
from icrl.verify import Evidence, Verification, plot_verification, run_checks

GROUPS: dict[str, Callable[[torch.Generator], list[Check]]] = {
    "depth": lambda generator: check_depth(generator, {}),
    "structured": check_structured_weights,
}


@pytest.mark.parametrize("name", GROUPS)
def test_claims_hold_for_another_seed(name: str) -> None:
    checks = GROUPS[name](torch.Generator().manual_seed(12345))
    assert checks
    assert [check.claim for check in checks if not check.passed] == []


@pytest.mark.parametrize(
    ("figure", "at_least", "passed"),
    [(1.0, False, True), (2.0, False, True), (2.1, False, False), (2.1, True, True), (1.9, True, False)],
)
def test_a_check_compares_its_figure_with_its_bound(figure: float, at_least: bool, passed: bool) -> None:
    assert Check("claim", figure, 2.0, at_least=at_least).passed == passed


def test_a_figure_that_is_no_number_fails() -> None:
    assert not Check("claim", float("nan"), 1.0).passed
    assert not Check("claim", float("nan"), 1.0, at_least=True).passed


def test_median_interval_covers_the_median() -> None:
    values = torch.arange(101, dtype=torch.float64)
    median, low, high = median_interval(values, torch.Generator().manual_seed(0))
    assert median == 50
    assert 30 < low < 50 < high < 70


def small_verification() -> Verification:
    evidence = Evidence(
        depth={"rbf": Curve([1, 10], [1.0, 0.1])},
        length={"rbf": Curve([10, 20], [1.0, 0.1], [0.5, 0.05], [2.0, 0.2])},
        matching={"rbf": {"rbf": 1e-5, "linear": 0.3}},
        offsets={"exp": (0.4, 0.1), "rbf": (0.2, 0.2)},
    )
    generator = torch.Generator().manual_seed(0)
    model = FreeTransformer(2, depth=1, kernel="rbf", temperature=1.0, context_length=5, generator=generator)
    heads = measure_emergence(model.layers()[0], state_size=2, discount=0.9)
    evidence.emergences.append(Emergence("rbf", heads, heads, [1.0, 0.5], 1.5))
    return Verification([Check("claim", 0.5, 1.0)], evidence, 1.0)


def test_figure_and_document() -> None:
    verification = small_verification()
    figure = plot_verification(verification)
    titles = [axes.get_title(loc="left") for axes in figure.get_axes()]
    assert titles[0].startswith("Depth")
    assert len(titles) == 9
    figure.canvas.draw()
    document = json.loads(json.dumps(verification.to_dict()))
    assert document["passed"]
    assert document["checks"][0].keys() == {"claim", "figure", "relation", "bound", "passed", "detail"}


def test_all_groups_run_and_one_failure_fails_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every group once, the costly ones replaced by a record each."""
    replaced = [name for name in vars(verify) if name.startswith("check_")]
    for name in replaced:
        monkeypatch.setattr(verify, name, lambda *args, claim=name: [Check(claim, float(claim == "check_depth"), 0.0)])
    names: list[str] = []
    verification = run_checks(progress=names.append)
    assert sorted(check.claim for check in verification.checks) == sorted(replaced)
    assert len(names) == len(replaced)
    assert not verification.passed
    assert [check.claim for check in verification.checks if not check.passed] == ["check_depth"]
