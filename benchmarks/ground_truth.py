"""How well the values of a run explain Monte-Carlo ground truth, beside the single return that a dataset holds.

    python benchmarks/ground_truth.py --run-dir runs/paper --states 10 --rollouts 16

For a few held-out tasks of each domain the simulator is put back into states of the recorded episode and the behaviour
policy is rolled out from them. The values are those of the domain's own fitted weights and of the adaptive model, from
a context of the same task without those states. Prints one line a domain and kernel; `--output` keeps the rows.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import yaml

from distributed.evaluate import heldout_tasks
from icrl.adaptive import evaluate_adaptive, fit_gate, log_excess
from icrl.config import ExperimentConfig
from icrl.contexts import context_generator, transitions_of
from icrl.datasets import read_tasks
from icrl.domains import get_domain
from icrl.engine import evaluate
from icrl.ground_truth import MonteCarloValues, monte_carlo_values, rollout_horizon
from icrl.kernels import has_temperature
from icrl.metrics import value_error
from icrl.storage import Folder
from icrl.types import Episode, Transitions
from icrl.weights import FittedWeights


def chosen_steps(episode: Episode, num_states: int, discount: float, generator: np.random.Generator) -> list[int]:
    """Random steps of an episode, ascending, early enough for their recorded return to be complete."""
    last = episode.num_steps - rollout_horizon(discount)
    return sorted(int(step) for step in generator.choice(last, size=num_states, replace=False))


def context_without(
    episode: Episode, steps: list[int], length: int, discount: float, generator: np.random.Generator
) -> Transitions:
    """One context of the episode's transitions that do not start in the chosen states."""
    task = transitions_of([episode], discount)
    index = generator.permutation(np.setdiff1d(np.arange(episode.num_steps), steps))[:length]
    return Transitions(
        observation=torch.from_numpy(task.observation[index])[None],
        reward=torch.from_numpy(task.reward[index]).float()[None],
        next_observation=torch.from_numpy(task.next_observation[index])[None],
        terminated=torch.from_numpy(task.terminated[index])[None],
        mask=torch.ones(1, length, dtype=torch.bool),
    )


def predictions(
    config: ExperimentConfig,
    weights: FittedWeights,
    profiles: pd.DataFrame,
    domain: str,
    context: Transitions,
    query: torch.Tensor,
) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Kernel, model and values ``[Q]``."""
    own = config.domains.index(domain)
    for k, kernel in enumerate(weights.kernels):
        fitted = evaluate(
            context,
            query,
            kernel=kernel,
            temperature=weights.temperature[k, own].reshape(1, 1),
            step_fraction=weights.step_fraction[k, own][None, None],
            discount=config.discount,
        )
        yield kernel, "own weights", fitted.value[0, 0]
        if has_temperature(kernel):
            excess = log_excess(profiles, kernel, config.tune.grid)
            adaptive = evaluate_adaptive(
                context,
                query,
                kernel=kernel,
                gate=fit_gate(excess, [name for name in config.domains if name != domain]),
                step_fraction=torch.full((config.model.depth,), config.tune.step_fraction),
                discount=config.discount,
            )
            yield kernel, "adaptive", adaptive.value[0]


def task_rows(
    config: ExperimentConfig,
    weights: FittedWeights,
    profiles: pd.DataFrame,
    episode: Episode,
    truth: MonteCarloValues,
    generator: np.random.Generator,
) -> list[dict[str, Any]]:
    """Explained variance of the truth and of the recorded returns by every model, for one task."""
    steps = truth.step.tolist()
    context = context_without(episode, steps, config.contexts.context_length, config.discount, generator)
    query = torch.from_numpy(episode.observation[steps])[None]
    value = torch.from_numpy(truth.value)
    returns = torch.from_numpy(transitions_of([episode], config.discount).monte_carlo_return[steps])
    everywhere = torch.ones(len(steps), dtype=torch.bool)
    common = {
        "domain": episode.domain,
        "tier": episode.tier,
        "task_seed": episode.task_seed,
        "num_states": len(steps),
        "num_rollouts": truth.num_rollouts,
        "standard_error": float(np.sqrt(np.mean(truth.standard_error**2))),
        "spread": float(truth.value.std()),
        "return_explained": float(value_error(returns, value, everywhere)),
    }
    return [
        common
        | {
            "kernel": kernel,
            "model": model,
            "truth_explained": float(value_error(predicted.double(), value, everywhere)),
            "trajectory_explained": float(value_error(predicted.double(), returns, everywhere)),
        }
        for kernel, model, predicted in predictions(config, weights, profiles, episode.domain, context, query)
    ]


def main() -> None:
    """Parse the command line, sample, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run-dir", required=True, help="a run folder whose stage train is finished")
    parser.add_argument("--tasks", type=int, default=1, help="held-out tasks of each domain and noise tier")
    parser.add_argument("--states", type=int, default=10, help="states of each task")
    parser.add_argument("--rollouts", type=int, default=16, help="rollouts from each state")
    parser.add_argument("--output", type=Path, help="Parquet file for the rows")
    arguments = parser.parse_args()
    run = Folder.open(arguments.run_dir)
    config = ExperimentConfig.model_validate(yaml.safe_load(run.read("config.yaml")))
    weights = FittedWeights.load(run, "train/weights.safetensors")
    profiles = run.read_table("tune/profiles.parquet").to_pandas()
    rows = []
    for name in config.domains:
        domain = get_domain(name)
        environment = domain.make_environment()
        for tier, noise_std in config.collect.noise_tiers.items():
            wanted = heldout_tasks(config, tier)[: arguments.tasks]
            for index, (episode, *_) in read_tasks(run / "dataset", name, tier, wanted):
                generator = context_generator(config.seed, name, tier, index, "ground-truth")
                truth = monte_carlo_values(
                    domain,
                    environment,
                    episode,
                    noise_std=noise_std,
                    steps=chosen_steps(episode, arguments.states, config.discount, generator),
                    num_rollouts=arguments.rollouts,
                    discount=config.discount,
                    generator=generator,
                )
                rows += task_rows(config, weights, profiles, episode, truth, generator)
    table = pd.DataFrame(rows)
    if arguments.output:
        table.to_parquet(arguments.output)
    figures = ["truth_explained", "trajectory_explained", "return_explained", "standard_error", "spread"]
    summary = table.groupby(["domain", "kernel", "model"], sort=False)[figures].median()
    print(summary.to_string(float_format=lambda number: f"{number:.3f}"))
    tasks = table.drop_duplicates(["domain", "tier", "task_seed"])
    num_states = tasks["num_states"].sum()
    print(f"medians over tasks; {num_states} states of {len(tasks)} tasks, {arguments.rollouts} rollouts each")


if __name__ == "__main__":
    main()
