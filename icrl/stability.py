"""How large a TD step may be: a bound per context, kernel and temperature, and what it guarantees.

Kernel TD iterates w ← w + α_k (r − A w) with the TD operator A = K_ss − γ K_s's, which is not symmetric. A step is
given as a fraction f_k of a bound, α_k = f_k · bound. What the candidates guarantee:

* 1/‖K_ss‖₂ contracts for γ = 0 (gradient descent on a least-squares problem) with every f in (0, 2). It says nothing
  about A: some contexts grow without limit, and where s' ≈ s it is up to 1/(1 − γ) times smaller than it need be,
  because there ‖A‖ ≈ (1 − γ) ‖K_ss‖.
* 1/‖A‖₂ keeps |λ| · bound ≤ 1 for every eigenvalue λ of A, so that no mode with a real positive λ grows for f in
  (0, 2). Samples of an episode can still give A eigenvalues with a negative real part; those modes grow at any step
  size, the faster the larger it is.
* the *probed* bound, which the project uses, is 1/‖A‖₂, halved until a recursion at the constant fraction f = 2 stays
  within its limit at each of L layers.

The probe covers every schedule, not a sample of them. Each layer is affine in its own step, so w_L is affine in each
of f_1, …, f_L, and a norm of w_L, or of the values, is convex in each. Over the cube [0, 2]^L it is therefore largest
at a corner. At a corner the layers with f = 0 change nothing, which leaves the constant schedule f = 2 after some
m ≤ L layers: exactly what was probed. So no schedule of at most L layers with fractions in [0, 2] leaves the limit,
whatever the eigenvalues of A. Halving ends, because values vanish with the step size.

What is probed depends on the kernel. For linear, exp and rbf it is the norm of the value function in the kernel's
RKHS, √(wᵀ K_ss w); as |v(x)| ≤ ‖v‖ √κ(x, x), no *query* x diverges either, unless κ(x, x) exceeds the context's
largest (it cannot for rbf). Softmax and relu are no reproducing kernels; for them the values at the context's states
and successors are probed, within a quarter of the divergence limit, the rest being a margin for other queries.
"""

import torch
from torch import Tensor

from icrl.config import KernelName
from icrl.kernels import POSITIVE_SEMIDEFINITE_KERNELS
from icrl.recursion import td_weights

DIVERGENCE_FACTOR = 10.0
"""A value has diverged when it leaves this many times max|r| / (1 − γ)."""

PROBED_FRACTION = 2.0
VALUE_MARGIN = 0.25
MAX_HALVINGS = 100


def divergence_limit(reward: Tensor, discount: float) -> Tensor:
    """The absolute value above which a context counts as diverged, 10 max|r| / (1 − γ), over the last axis."""
    return DIVERGENCE_FACTOR * reward.abs().amax(dim=-1) / (1 - discount)


def operator_norm(operator_MNN: Tensor, num_iterations: int = 16) -> Tensor:
    """Spectral norms ``[M]`` of a batch of matrices, by power iteration on AᵀA.

    Never above the true norm, and equal to it once the iteration has converged. The singular vectors u, v are found
    without gradient; the returned uᵀ A v carries the gradient of a simple largest singular value.
    """
    with torch.no_grad():
        transposed_MNN = operator_MNN.mT.contiguous()
        index = torch.arange(operator_MNN.shape[-1], device=operator_MNN.device, dtype=operator_MNN.dtype)
        # Mostly constant, as kernels have positive entries, yet orthogonal to no likely singular vector.
        right_M1N = (1 + 0.1 * torch.cos(index * index + 1)).expand(len(operator_MNN), 1, -1)
        left_M1N = right_M1N @ transposed_MNN
        for _ in range(num_iterations):
            right_M1N = torch.nn.functional.normalize(left_M1N @ operator_MNN, dim=-1)
            left_M1N = right_M1N @ transposed_MNN
        left_M1N = torch.nn.functional.normalize(left_M1N, dim=-1)
    return ((left_M1N @ operator_MNN) * right_M1N).sum(dim=(1, 2))


def _reach(kernel: KernelName, weight_MLN: Tensor, state_gram: Tensor, radius: Tensor) -> Tensor:
    """``[M]``: the largest probed quantity over layers, in units of a value."""
    length = weight_MLN.shape[-1]
    if kernel in POSITIVE_SEMIDEFINITE_KERNELS:
        square_ML = ((weight_MLN @ state_gram[:, :length]) * weight_MLN).sum(dim=-1)
        return square_ML.amax(dim=-1).clamp_min(0).sqrt() * radius
    return (weight_MLN @ state_gram.mT).abs().amax(dim=(-2, -1)) / VALUE_MARGIN


def probed_bound(
    kernel: KernelName,
    operator_MNN: Tensor,
    state_gram: Tensor,
    reward_MN: Tensor,
    *,
    radius: Tensor,
    limit: Tensor,
    depth: int,
) -> Tensor:
    """The probed bound of the module's docstring.

    Args:
        kernel: name of the kernel, which decides what is probed.
        operator_MNN: A.
        state_gram: ``[M, 2 N, N]``, gram rows of the context's states, then of their successors; masked rows are 0.
        reward_MN: r.
        radius: ``[M]``, the context's largest √κ(x, x).
        limit: ``[M]``, the divergence limit.
        depth: layers L for which the guarantee holds.

    Returns:
        ``[M]``; 0 where the operator is zero, since then no step changes anything. It carries the gradient of 1/‖A‖₂.
    """
    norm_M = operator_norm(operator_MNN)
    bound_M = torch.where(norm_M > torch.finfo(norm_M.dtype).tiny, 1 / norm_M, 0)
    shrink_M = torch.ones_like(bound_M)
    with torch.no_grad():
        pending = torch.arange(len(bound_M), device=bound_M.device)
        for _ in range(MAX_HALVINGS):
            # Indexing with a slice does not copy; the first round is for everyone and usually the last.
            chosen = pending if len(pending) < len(bound_M) else slice(None)
            step_ML = (PROBED_FRACTION * shrink_M * bound_M)[chosen, None].expand(-1, depth)
            weight_MLN = td_weights(operator_MNN[chosen], reward_MN[chosen], step_ML)
            reach = _reach(kernel, weight_MLN, state_gram[chosen], radius[chosen])
            pending = pending[~(reach <= limit[chosen])]
            if len(pending) == 0:
                break
            shrink_M[pending] /= 2
    return shrink_M * bound_M
