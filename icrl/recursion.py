"""The TD recursion on weights, batched, with a hand-written gradient.

Shape letters: M independent problems (contexts times temperatures), N transitions in a context, L depth.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def td_weights(operator_MNN: Tensor, reward_MN: Tensor, step_size_ML: Tensor) -> Tensor:
    """Weights ``[M, L, N]`` after each layer of w_{k+1} = w_k + α_k (r − A w_k), from w_0 = 0.

    Args:
        operator_MNN: A.
        reward_MN: r.
        step_size_ML: α_k of every layer.
    """
    weight_MLN: Tensor = _TDRecursion.apply(operator_MNN, reward_MN, step_size_ML)  # type: ignore[no-untyped-call]
    return weight_MLN


def _as_rows(step_size_ML: Tensor) -> Tensor:
    """Step sizes as ``[L, M, 1, 1]``, to scale row vectors ``[M, 1, N]`` layer by layer."""
    return step_size_ML.mT.contiguous()[:, :, None, None]


class _TDRecursion(torch.autograd.Function):
    """Autograd would keep an N × N outer product per layer; here the operator's gradient is one matrix multiply.

    Vectors are rows multiplied from the left, the orientation in which batched matrix-vector products are fast.
    """

    @staticmethod
    def forward(ctx: Any, operator_MNN: Tensor, reward_MN: Tensor, step_size_ML: Tensor) -> Tensor:
        num_problems, length = reward_MN.shape
        depth = step_size_ML.shape[1]
        transposed_MNN = operator_MNN.mT.contiguous()
        reward_M1N = reward_MN.unsqueeze(1)
        weight = reward_MN.new_zeros(depth + 1, num_problems, 1, length)
        residual = reward_MN.new_empty(depth, num_problems, 1, length)
        for layer, step_M11 in enumerate(_as_rows(step_size_ML)):
            torch.baddbmm(reward_M1N, weight[layer], transposed_MNN, alpha=-1, out=residual[layer])
            torch.addcmul(weight[layer], step_M11, residual[layer], out=weight[layer + 1])
        ctx.save_for_backward(operator_MNN, step_size_ML, weight, residual)
        return weight[1:].squeeze(2).transpose(0, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_MLN: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        operator_MNN, step_size_ML, weight, residual = ctx.saved_tensors
        step = _as_rows(step_size_ML)
        # adjoint[k] is the loss's gradient with respect to w_{k+1}, through all later layers.
        adjoint = gradient_MLN.transpose(0, 1).unsqueeze(2).clone(memory_format=torch.contiguous_format)
        scaled = torch.empty_like(adjoint)
        for layer in range(len(step) - 1, -1, -1):
            torch.mul(adjoint[layer], step[layer], out=scaled[layer])
            if layer:
                adjoint[layer - 1] += torch.baddbmm(adjoint[layer], scaled[layer], operator_MNN, alpha=-1)
        scaled_MLN = scaled.squeeze(2).transpose(0, 1)
        operator_gradient = -(scaled_MLN.mT @ weight[:-1].squeeze(2).transpose(0, 1))
        step_gradient = (adjoint * residual).sum(dim=(2, 3)).mT
        return operator_gradient, scaled_MLN.sum(dim=1), step_gradient
