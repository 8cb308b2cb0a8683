"""Training of free weights, and measures of what emerges."""

import pytest
import torch

from icrl.constructions import td_layers
from icrl.emergence import measure_emergence
from icrl.free_training import FreeTraining, FreeTransformer, semi_gradient_loss, train_free
from icrl.mrps import random_kernel_processes
from icrl.selection import take
from icrl.tokens import Layout
from icrl.transformer import LayerWeights
from icrl.types import Transitions

DISCOUNT = 0.9
LENGTH = 12


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def tasks() -> tuple[Transitions, Transitions]:
    processes = random_kernel_processes(
        64, kernel="linear", temperature=1.0, discount=DISCOUNT, generator=rng(), step=1.0, dtype=torch.float32
    )
    transitions = processes.sample(2 * LENGTH, 1, rng(1)).context
    return take(transitions, slice(LENGTH)), take(transitions, slice(LENGTH, None))


def model(seed: int = 0) -> FreeTransformer:
    return FreeTransformer(2, depth=2, kernel="linear", temperature=1.0, context_length=LENGTH, generator=rng(seed))


def train(seed: int) -> tuple[FreeTransformer, list[float]]:
    context, heldout = tasks()
    learner = model()
    training = FreeTraining(num_steps=60, batch_size=16)
    return learner, train_free(learner, context, heldout, discount=DISCOUNT, training=training, generator=rng(seed))


def test_training_lowers_the_loss_and_a_seed_decides_it() -> None:
    learner, losses = train(3)
    again, same_losses = train(3)
    assert losses == same_losses
    assert torch.equal(learner.value, again.value)
    assert train(4)[1] != losses
    assert sum(losses[-10:]) < 0.7 * sum(losses[:10])


def test_free_weights_can_be_the_construction() -> None:
    """With the construction's weights the free model gives the construction's values, whatever its masks."""
    context, heldout = tasks()
    learner = model()
    (layer,) = td_layers(Layout("transition", 2), torch.ones(1), discount=DISCOUNT)
    padding = learner.layout.num_rows - 2
    with torch.no_grad():
        learner.value.copy_(layer.value)
        learner.query.copy_(torch.nn.functional.pad(layer.query, (0, 0, 0, padding)))
        learner.key.copy_(torch.nn.functional.pad(layer.key, (0, 0, 0, padding)))
        value = learner(context, heldout.observation)
    theta = torch.zeros(64, 2, 1)
    for _ in range(2):
        difference = context.observation - DISCOUNT * context.next_observation
        td_error = context.reward.unsqueeze(-1) - difference @ theta
        theta = theta + context.observation.mT @ td_error / LENGTH
    assert torch.allclose(value, (heldout.observation @ theta).squeeze(-1), atol=1e-5)


def test_gradient_takes_the_target_as_given() -> None:
    """A constant value c has TD error r − (1 − γ) c; the semi-gradient in c is −2 mean(r − (1 − γ) c)."""

    class Constant(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.level = torch.nn.Parameter(torch.tensor(3.0))

        def forward(self, context: Transitions, query: torch.Tensor) -> torch.Tensor:
            return self.level.expand(query.shape[:2])

    context, heldout = tasks()
    constant = Constant()
    semi_gradient_loss(constant, context, heldout, DISCOUNT).backward()
    expected = -2 * (heldout.reward - (1 - DISCOUNT) * 3.0).mean()
    assert constant.level.grad is not None
    assert float(constant.level.grad) == pytest.approx(float(expected), rel=1e-4)


def test_emergence_of_the_construction_itself_is_complete() -> None:
    """Whatever the scale and the order of its heads."""
    (layer,) = td_layers(Layout("transition", 3), torch.tensor([0.2]), discount=DISCOUNT)
    disguised = LayerWeights(layer.value.flip(0) * -3, layer.query.flip(0) / 3, layer.key.flip(0) * -1)
    for head, written in zip(measure_emergence(disguised, state_size=3, discount=DISCOUNT), ("v", "v'"), strict=True):
        assert head.written == written
        figures = head.value_cosine, head.attention_cosine, head.value_support, head.attention_support
        assert figures == pytest.approx((1, 1, 1, 1))


def test_random_weights_are_unlike_the_construction() -> None:
    for head in measure_emergence(model().layers()[0], state_size=2, discount=DISCOUNT):
        assert max(head.value_cosine, head.attention_cosine) < 0.6
        assert max(head.value_support, head.attention_support) < 0.5
