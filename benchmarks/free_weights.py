"""Free weights trained by multi-task TD on MetaWorld contexts: what they reach, how like the construction they become.

    python benchmarks/free_weights.py --run-dir runs/paper

One looped two-head transformer a kernel is trained from random weights on contexts of the source tier's fitting tasks
of all domains together, and judged on held-out tasks against the construction of the same depth with its best
temperature and step size. `icrl verify` does the same on synthetic processes.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

import torch
import yaml

from distributed.evaluate import heldout_tasks
from icrl.batches import task_contexts
from icrl.config import ExperimentConfig, KernelName
from icrl.contexts import split_tasks
from icrl.emergence import measure_emergence
from icrl.engine import evaluate_at_step_sizes
from icrl.free_training import FreeTraining, FreeTransformer, semi_gradient_loss, train_free
from icrl.kernels import has_temperature
from icrl.metrics import td_loss
from icrl.storage import Folder
from icrl.types import Transitions, concatenate

CONTEXTS_PER_TASK = 8
DEPTH = 4


def contexts_of(
    config: ExperimentConfig, run: Folder, tasks: Sequence[int], purpose: str
) -> tuple[Transitions, Transitions]:
    """Contexts of the given tasks of every domain at the source tier, and transitions held out of them."""
    drawn = [
        (context, heldout.transitions)
        for domain in config.domains
        for _, context, heldout in task_contexts(config, run / "dataset", domain, config.source_tier, tasks, purpose)
    ]
    contexts, heldouts = zip(*drawn, strict=True)
    return concatenate(list(contexts)), concatenate(list(heldouts))


def best_construction(
    context: Transitions, heldout: Transitions, kernel: KernelName, discount: float
) -> tuple[float, float]:
    """Smallest mean TD loss of the construction over temperatures and step sizes, and the temperature that has it.

    Chosen on the contexts that are judged, so the bound is one that no trained model knows.
    """
    temperatures = torch.logspace(-2, 1, 13) if has_temperature(kernel) else torch.ones(1)
    scale = 1.0 if kernel == "softmax" else 1 / context.length
    step_sizes = scale * torch.logspace(-2, 1.5, 30)
    candidates = torch.cartesian_prod(temperatures, step_sizes)
    evaluation = evaluate_at_step_sizes(
        context,
        torch.cat([heldout.observation, heldout.next_observation], dim=1),
        kernel=kernel,
        temperature=candidates[:, 0, None],
        step_size=candidates[:, 1, None, None].expand(-1, -1, DEPTH),
        discount=discount,
    )
    at_state, at_successor = evaluation.value.split(heldout.length, dim=-1)
    losses = td_loss(heldout.reward, at_state, at_successor, heldout.terminated, heldout.mask, discount).mean(dim=-1)
    best = int(losses.argmin())
    return float(losses[best]), float(candidates[best, 0])


def main() -> None:
    """Train, judge and print one block a kernel."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run-dir", required=True, help="run folder with a collected dataset")
    parser.add_argument("--kernels", nargs="+", choices=get_args(KernelName), default=["linear", "softmax", "rbf"])
    parser.add_argument("--steps", type=int, default=600, help="optimiser steps")
    parser.add_argument("--learning-rate", type=float, default=2e-3, help="Adam's, before it falls")
    arguments = parser.parse_args()
    run = Folder.open(arguments.run_dir)
    stored = ExperimentConfig.model_validate(yaml.safe_load(run.read("config.yaml")))
    sampling = stored.contexts.model_copy(update={"contexts_per_task": CONTEXTS_PER_TASK})
    config = stored.model_copy(update={"contexts": sampling})
    fit, *_ = split_tasks(config.collect.tasks_per_tier)
    train = contexts_of(config, run, fit, "free")
    test = contexts_of(config, run, heldout_tasks(config, config.source_tier), "free-test")
    # TD is linear in rewards, and so are its values; random weights, which also compare rewards, need numbers near 1.
    unit = float(train[1].reward.std())
    train, test = (tuple(replace(part, reward=part.reward / unit) for part in parts) for parts in (train, test))
    constant = float(test[1].reward.var(dim=-1, correction=0).mean())
    print(
        f"{train[0].batch_size} training and {test[0].batch_size} held-out contexts of {len(config.domains)} domains; "
        f"TD losses in units of the reward's variance"
    )
    for kernel in arguments.kernels:
        generator = torch.Generator().manual_seed(config.seed)
        constructed, temperature = best_construction(*test, kernel, config.discount)
        model = FreeTransformer(
            train[0].observation.shape[-1],
            depth=DEPTH,
            kernel=kernel,
            temperature=temperature,
            context_length=config.contexts.context_length,
            generator=generator,
        )
        training = FreeTraining(num_steps=arguments.steps, learning_rate=arguments.learning_rate)
        train_free(model, *train, discount=config.discount, training=training, generator=generator)
        with torch.no_grad():
            free = float(semi_gradient_loss(model, *test, config.discount))
        print(
            f"{kernel}, depth {DEPTH}: held-out TD loss {free:.3g} free, {constructed:.3g} constructed with the best "
            f"α and δ, {constant:.3g} best constant; free / constructed {free / constructed:.2f}"
        )
        for head in measure_emergence(
            model.layers()[0], state_size=train[0].observation.shape[-1], discount=config.discount
        ):
            print(f"  head of {head.written}: |cos| P {head.value_cosine:.2f}, Q {head.attention_cosine:.2f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
