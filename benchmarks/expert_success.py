"""Success of the scripted experts by noise tier, as the Markdown table of docs/experts.md.

    python benchmarks/expert_success.py [DOMAIN ...]

Every task has a variation and noise of its own, as in a collected dataset; an episode has 500 steps.
"""

import sys

from metaworld.env_dict import ALL_V3_ENVIRONMENTS

from icrl.config import CollectConfig
from icrl.domains import UnstableSimulationError, get_domain, task_seed
from icrl.rollouts import rollout_task

SEED = 0
TASKS = 10
STEPS = 500


def success_cell(name: str, tier: str, noise_std: float) -> str:
    """Tasks with success at some step and, after a slash, at the last step; unstable tasks are named."""
    domain = get_domain(name)
    environment = domain.make_environment()
    reached, kept, unstable = 0, 0, 0
    for index in range(TASKS):
        try:
            (episode,) = rollout_task(
                domain,
                environment,
                tier=tier,
                noise_std=noise_std,
                task_seed=task_seed(SEED, name, tier, index),
                num_episodes=1,
                num_steps=STEPS,
            )
        except UnstableSimulationError:
            unstable += 1
            continue
        reached += bool(episode.success.any())
        kept += bool(episode.success[-1])
    return f"{reached} / {kept}" + (f" ({unstable} unstable)" if unstable else "")


def main(names: list[str]) -> None:
    tiers = CollectConfig().noise_tiers
    print(f"| domain | {' | '.join(f'{tier} ({noise_std:.1f})' for tier, noise_std in tiers.items())} |")
    print("|---|" + "---|" * len(tiers))
    for name in names or sorted(ALL_V3_ENVIRONMENTS):
        cells = [success_cell(name, tier, noise_std) for tier, noise_std in tiers.items()]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
