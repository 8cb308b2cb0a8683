"""How large a TD step may be: a bound per context, kernel and temperature, and what it guarantees.

Kernel TD iterates w ← w + α_k (r − A w) with the TD operator A = K_ss − γ K_s's, which is not symmetric. A step is given
as a fraction f_k of a bound, α_k = f_k · bound. Three bounds are in use in the literature and here:

* 1/‖K_ss‖₂ — contracts for γ = 0 (gradient descent on a least-squares problem) with every f in (0, 2). It says nothing
  about A: contexts exist on which the recursion grows without limit, and where s' ≈ s it is up to 1/(1 − γ) times too
  small, because there ‖A‖ ≈ (1 − γ) ‖K_ss‖.
* 1/‖A‖₂ — every eigenvalue λ of A satisfies |λ| · bound ≤ 1, so no mode with a real positive λ grows for f in (0, 2).
  Off-policy samples can still give A eigenvalues with a negative real part; such modes grow at any step size, slowly.
* the *probed* bound of this module — 1/‖A‖₂, halved until a recursion at the constant fraction f = 2 keeps every value at
  the context's states and successors within half the divergence limit at each of L layers.

The probe is a proof for every schedule, not a sample of them. The value v_L(x) is affine in each of f_1, …, f_L (each
layer is affine in its own step), so over the cube [0, 2]^L the largest |v_L(x)| is reached at a corner. At a corner the
layers with f = 0 change nothing, so the corner's value is that of the constant schedule f = 2 after some m ≤ L layers,
and exactly those values were probed. Hence, up to rounding, with step fractions in [0, 2] *no schedule of at most L layers can
diverge at a state of the context*, whatever the eigenvalues of A. Queries are other states; half the limit is kept as a
margin for them. Halving ends because values vanish with the step size.
"""

import torch
from torch import Tensor

DIVERGENCE_FACTOR = 10.0
"""A value has diverged when it leaves this many times max|r| / (1 − γ)."""

PROBED_FRACTION = 2.0
PROBE_MARGIN = 0.5
MAX_HALVINGS = 100


def divergence_limit(reward_BN: Tensor, discount: float) -> Tensor:
    """``[B]``: the absolute value above which a context counts as diverged, 10 max|r| / (1 − γ)."""
    return DIVERGENCE_FACTOR * reward_BN.abs().amax(dim=-1) / (1 - discount)


def operator_norm(operator: Tensor, num_iterations: int = 12) -> Tensor:
    """Spectral norm ‖A‖₂ of ``[..., N, N]`` operators by power iteration on AᵀA.

    The singular vectors are found without gradient; the returned uᵀ A v carries the exact gradient of a simple largest
    singular value. It never exceeds the true norm, and equals it once the iteration has converged.
    """
    with torch.no_grad():
        size = operator.shape[-1]
        index = torch.arange(size, device=operator.device, dtype=operator.dtype)
        # Mostly constant, as kernels have positive entries, but orthogonal to no likely singular vector.
        right = (1 + 0.1 * torch.cos(index * index + 1)).expand(*operator.shape[:-2], size).unsqueeze(-1)
        left = operator @ right
        for _ in range(num_iterations):
            right = torch.nn.functional.normalize(operator.mT @ left, dim=-2)
            left = operator @ right
        left = torch.nn.functional.normalize(left, dim=-2)
    return (left.mT @ (operator @ right)).squeeze(-1).squeeze(-1)


def td_weights(operator: Tensor, reward: Tensor, step_size: Tensor) -> Tensor:
    """Weights after each layer, w_{k+1} = w_k + α_k (r − A w_k) from w_0 = 0.

    Args:
        operator: ``[M, N, N]``, A.
        reward: ``[M, N]``, r.
        step_size: ``[M, L]``, α_k.

    Returns:
        ``[M, L, N]``.
    """
    reward_MN1 = reward.unsqueeze(-1)
    weight_MN1 = torch.zeros_like(reward_MN1)
    history = []
    for step_M in step_size.unbind(-1):
        residual_MN1 = torch.baddbmm(reward_MN1, operator, weight_MN1, alpha=-1)
        weight_MN1 = torch.addcmul(weight_MN1, step_M[:, None, None], residual_MN1)
        history.append(weight_MN1.squeeze(-1))
    return torch.stack(history, dim=1)


def probed_bound(operator: Tensor, state_gram: Tensor, reward: Tensor, limit: Tensor, depth: int) -> Tensor:
    """The probed bound of the module's docstring.

    Args:
        operator: ``[M, N, N]``, A.
        state_gram: ``[M, S, N]``, gram rows of the states at which values must stay within the limit.
        reward: ``[M, N]``.
        limit: ``[M]``, the divergence limit.
        depth: layers L for which the guarantee holds.

    Returns:
        ``[M]``; 0 where the operator is zero (then no step changes anything). It carries the gradient of 1/‖A‖₂.
    """
    norm = operator_norm(operator)
    bound = torch.where(norm > torch.finfo(norm.dtype).tiny, 1 / norm, 0)
    shrink = torch.ones_like(bound)
    with torch.no_grad():
        pending = torch.arange(len(bound), device=bound.device)
        for _ in range(MAX_HALVINGS):
            step = (PROBED_FRACTION * shrink * bound)[pending]
            weight = td_weights(operator[pending], reward[pending], step[:, None].expand(-1, depth))
            reach = (weight @ state_gram[pending].mT).abs().amax(dim=(-2, -1))
            pending = pending[~(reach <= PROBE_MARGIN * limit[pending])]
            if len(pending) == 0:
                break
            shrink[pending] /= 2
    return shrink * bound
