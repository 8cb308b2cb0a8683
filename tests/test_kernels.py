"""The contract that every kernel keeps."""

import math

import pytest
import torch
from torch import Tensor

from icrl.config import KernelName
from icrl.kernels import POSITIVE_SEMIDEFINITE_KERNELS, SYMMETRIC_KERNELS, gram, has_temperature

KERNELS: list[KernelName] = ["linear", "relu", "exp", "softmax", "rbf"]


def states(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


@pytest.mark.parametrize("kernel", KERNELS)
def test_matrix_worked_out_by_hand(kernel: KernelName) -> None:
    query = torch.tensor([[[1.0, 0.0], [1.0, 1.0]]], dtype=torch.float64)
    keys = torch.tensor([[[1.0, 0.0], [-1.0, 0.0]]], dtype=torch.float64)
    e = math.exp
    expected = {
        "linear": [[1, -1], [1, -1]],
        "relu": [[1, 0], [1, 0]],
        "exp": [[e(0.5), e(-0.5)], [e(0.5), e(-0.5)]],
        "softmax": [[e(1) / (e(1) + 1), 1 / (e(1) + 1)], [e(1) / (e(1) + 1), 1 / (e(1) + 1)]],
        "rbf": [[1, e(-1)], [e(-0.25), e(-1.25)]],
    }[kernel]
    assert torch.allclose(gram(kernel, query, keys, number(2.0)), torch.tensor([expected], dtype=torch.float64))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("leading", [(), (3,), (4, 1), (4, 3)])
def test_temperatures_broadcast(kernel: KernelName, leading: tuple[int, ...]) -> None:
    query, keys = states(3, 5, 2), states(3, 7, 2, seed=1)
    temperature = states(*leading, seed=2).abs() + 0.5
    together = gram(kernel, query, keys, temperature)
    assert together.shape == (*leading[:-1], 3, 5, 7)
    full = temperature.expand(*leading[:-1], 3).reshape(-1, 3)
    for t, of_contexts in enumerate(full):
        for b, delta in enumerate(of_contexts):
            alone = gram(kernel, query[b : b + 1], keys[b : b + 1], delta)[0]
            assert torch.allclose(together.reshape(-1, 3, 5, 7)[t, b], alone)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_precision_is_that_of_the_states(kernel: KernelName, dtype: torch.dtype) -> None:
    query, keys = states(2, 3, 4), states(2, 5, 4, seed=1)
    value = gram(kernel, query.to(dtype), keys.to(dtype), number(0.7).to(dtype))
    assert value.dtype == dtype
    assert torch.allclose(value.double(), gram(kernel, query, keys, number(0.7)), rtol=1e-4, atol=1e-6)


def test_nearby_states_far_from_the_origin_keep_their_distance_in_single_precision() -> None:
    keys = 100 + 0.01 * states(1, 6, 39)
    exact = gram("rbf", keys, keys, number(0.001))
    assert torch.allclose(gram("rbf", keys.float(), keys.float(), torch.tensor(0.001)).double(), exact, atol=0.02)


@pytest.mark.parametrize("kernel", SYMMETRIC_KERNELS)
def test_symmetry(kernel: KernelName) -> None:
    x = states(2, 8, 3)
    value = gram(kernel, x, x, number(0.9))
    assert torch.allclose(value, value.mT)


@pytest.mark.parametrize("kernel", POSITIVE_SEMIDEFINITE_KERNELS)
def test_positive_semidefinite(kernel: KernelName) -> None:
    x = states(5, 8, 3)
    eigenvalue = torch.linalg.eigvalsh(gram(kernel, x, x, number(0.9)))
    assert (eigenvalue >= -1e-10 * eigenvalue.amax(dim=-1, keepdim=True)).all()


def test_softmax_is_exp_normalised_over_keys() -> None:
    query, keys = states(2, 4, 3), states(2, 6, 3, seed=1)
    exponential = gram("exp", query, keys, number(0.8))
    expected = exponential / exponential.sum(dim=-1, keepdim=True)
    assert torch.allclose(gram("softmax", query, keys, number(0.8)), expected)
    assert not torch.allclose(gram("softmax", keys, keys, number(0.8)), gram("softmax", keys, keys, number(0.8)).mT)


@pytest.mark.parametrize("kernel", KERNELS)
def test_gradients(kernel: KernelName) -> None:
    query, keys = states(2, 3, 2).requires_grad_(), states(2, 4, 2, seed=1).requires_grad_()
    inputs: tuple[Tensor, ...] = (query, keys)
    if has_temperature(kernel):
        inputs = (*inputs, number(0.7).requires_grad_())
        assert torch.autograd.gradcheck(lambda x, y, delta: gram(kernel, x, y, delta), inputs)
    else:
        assert torch.autograd.gradcheck(lambda x, y: gram(kernel, x, y, number(1.0)), inputs)


@pytest.mark.parametrize("kernel", KERNELS)
def test_masked_keys_take_no_part(kernel: KernelName) -> None:
    query, keys = states(2, 5, 3), states(2, 7, 3, seed=1)
    mask = torch.tensor([[True] * 4 + [False] * 3, [False] * 2 + [True] * 5])
    value = gram(kernel, query, keys, number(0.7), mask)
    for b in range(2):
        alone = gram(kernel, query[b : b + 1], keys[b : b + 1, mask[b]], number(0.7))[0]
        assert torch.allclose(value[b][:, mask[b]], alone)
        assert (value[b][:, ~mask[b]] == 0).all()


@pytest.mark.parametrize("kernel", ["exp", "softmax", "rbf"])
def test_small_temperatures_do_not_overflow(kernel: KernelName) -> None:
    x = states(1, 6, 3).float()
    largest = x.square().sum(-1).amax(-1)
    value = gram(kernel, x, x, torch.tensor(1e-4), offset=largest)
    assert value.isfinite().all()
    assert value.amax() <= 1


def test_offset_multiplies_the_exp_kernel_by_a_constant() -> None:
    query, keys = states(2, 4, 3), states(2, 6, 3, seed=1)
    offset = torch.tensor([1.0, 2.0], dtype=torch.float64)
    scale = torch.exp(offset / 0.8)[:, None, None]
    shifted = gram("exp", query, keys, number(0.8), offset=offset)
    assert torch.allclose(shifted * scale, gram("exp", query, keys, number(0.8)))
