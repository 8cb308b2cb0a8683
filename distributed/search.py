"""Ways to spend fewer trials than a whole grid: Optuna's proposals, and ending the weaker temperatures early.

Losses of different kernels and domains are not comparable, so each pair of them is a search of its own; one Tuner runs
them all. Nothing here is saved: a search goes on from the files that its finished trials left.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import optuna
from ray.tune.experiment import Trial
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler
from ray.tune.search import Searcher

from icrl.config import KERNELS_WITHOUT_TEMPERATURE
from icrl.seeds import derived_seed

Pair = tuple[str, str]
"""A kernel and a domain."""


class TemperatureProposer(Searcher):
    """Proposes temperatures by TPE (Bergstra et al., NeurIPS 2011), log-uniform at first, one study a pair.

    Kernels without a temperature get one trial, at NaN.

    Args:
        bounds: smallest and largest temperature.
        num_trials: trials that each pair still gets.
        finished: temperature and loss of every earlier trial of a pair.
        seed: the experiment's seed. Proposals also depend on the order in which trials finish.
    """

    def __init__(
        self,
        bounds: tuple[float, float],
        num_trials: Mapping[Pair, int],
        finished: Mapping[Pair, Iterable[tuple[float, float]]],
        seed: int,
    ) -> None:
        super().__init__(metric="td_loss", mode="min")
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._range: dict[str, optuna.distributions.BaseDistribution] = {
            "temperature": optuna.distributions.FloatDistribution(*bounds, log=True)
        }
        self._missing = Counter(dict(num_trials))
        self._asked: dict[str, tuple[Pair, optuna.Trial]] = {}
        self._studies = {pair: self._make_study(pair, finished.get(pair, ()), seed) for pair in num_trials}

    def _make_study(self, pair: Pair, finished: Iterable[tuple[float, float]], seed: int) -> optuna.Study:
        known = [(temperature, loss) for temperature, loss in finished if np.isfinite(temperature)]
        sampler = optuna.samplers.TPESampler(
            # With the number of known trials, or a search that goes on would draw its first proposals again.
            seed=derived_seed(seed, *pair, len(known)) % 2**32,
            # Trials that run count as poor, so that workers that ask at the same time get different answers.
            constant_liar=True,
        )
        study = optuna.create_study(sampler=sampler)
        for temperature, loss in known:
            outcome: dict[str, Any] = {"value": loss} if np.isfinite(loss) else {"state": optuna.trial.TrialState.FAIL}
            study.add_trial(
                optuna.create_trial(params={"temperature": temperature}, distributions=self._range, **outcome)
            )
        return study

    def suggest(self, trial_id: str) -> Any:
        """A trial of the pair that lacks most, or `Searcher.FINISHED`."""
        pair, missing = max(self._missing.items(), key=lambda item: item[1])
        if missing == 0:
            return Searcher.FINISHED
        self._missing[pair] -= 1
        trial = self._studies[pair].ask(self._range)
        self._asked[trial_id] = (pair, trial)
        kernel, domain = pair
        temperature = float("nan") if kernel in KERNELS_WITHOUT_TEMPERATURE else trial.params["temperature"]
        return {"trial": {"kernel": kernel, "domain": domain, "temperatures": (temperature,)}}

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Learn a trial's loss; one that failed or diverged has none."""
        pair, trial = self._asked.pop(trial_id)
        loss = result["td_loss"] if result and not error else np.nan
        if np.isfinite(loss):
            self._studies[pair].tell(trial, loss)
        else:
            self._studies[pair].tell(trial, state=optuna.trial.TrialState.FAIL)

    def save(self, checkpoint_path: str) -> None:
        """Nothing: the files of finished trials are the state."""

    def restore(self, checkpoint_path: str) -> None:
        """Not used: a search starts from the files of finished trials."""
        raise NotImplementedError


class AshaForEachPair(FIFOScheduler):
    """Asynchronous successive halving (Li et al., arXiv 1810.05934) within each pair; its resource is the depth.

    Args:
        rungs: depths at which trials report, the last of them the full depth; half of the trials pass each.
    """

    def __init__(self, rungs: tuple[int, ...]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._rungs = rungs
        self._by_pair: dict[Pair, ASHAScheduler] = {}

    def _of(self, trial: Trial) -> ASHAScheduler:
        parameters = trial.config["trial"]
        pair = (parameters["kernel"], parameters["domain"])
        if pair not in self._by_pair:
            self._by_pair[pair] = ASHAScheduler(
                time_attr="depth",
                metric="td_loss",
                mode="min",
                max_t=self._rungs[-1],
                grace_period=self._rungs[0],
                reduction_factor=2,
            )
        return self._by_pair[pair]

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        """A trial has been created."""
        self._of(trial).on_trial_add(tune_controller, trial)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """A trial has reached a rung: go on or stop."""
        # A diverged temperature must not pass as the smallest loss, which comparisons with NaN would let it.
        loss = result["td_loss"] if np.isfinite(result["td_loss"]) else np.inf
        decision: str = self._of(trial).on_trial_result(tune_controller, trial, {**result, "td_loss": loss})
        return decision

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        """A trial has ended."""
        self._of(trial).on_trial_complete(tune_controller, trial, result)

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None:
        """A trial has been taken out."""
        self._of(trial).on_trial_remove(tune_controller, trial)
