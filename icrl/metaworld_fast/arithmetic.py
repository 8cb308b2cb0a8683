"""Scalar counterparts of the array functions in MetaWorld's rewards and observations, equal to them bit for bit.

Numbers are Python floats. Each function follows the order of operations of the function that it stands for.
"""

import math
from typing import Any

import numpy as np

_VALUE_AT_MARGIN = 0.1
_LONG_TAIL_SCALE = float(np.sqrt(1 / _VALUE_AT_MARGIN - 1))
_GAUSSIAN_SCALE = float(np.sqrt(-2 * np.log(_VALUE_AT_MARGIN)))


def _distance_outside(x: float, lower: float, upper: float, margin: float) -> float:
    """Distance of `x` from the interval in units of `margin`: 0 inside, infinite outside if there is no margin."""
    if lower > upper or margin < 0:
        raise ValueError(f"bounds ({lower}, {upper}) must be in order and the margin {margin} must not be negative")
    if lower <= x <= upper:
        return 0.0
    if margin == 0:
        return math.inf
    return (lower - x if x < lower else x - upper) / margin


def long_tail(x: float, lower: float, upper: float, margin: float) -> float:
    """`metaworld.utils.reward_utils.tolerance` with ``sigmoid="long_tail"``: 1 in the bounds, falling off outside."""
    distance = _distance_outside(x, lower, upper, margin)
    return 1 / ((distance * _LONG_TAIL_SCALE) ** 2 + 1) if distance != 0.0 else 1.0


def gaussian(x: float, lower: float, upper: float, margin: float) -> float:
    """`metaworld.utils.reward_utils.tolerance` with ``sigmoid="gaussian"``: 1 in the bounds, falling off outside."""
    distance = _distance_outside(x, lower, upper, margin)
    # numpy's exponential, whose last bit differs from math.exp's.
    return float(np.exp(-0.5 * (distance * _GAUSSIAN_SCALE) ** 2)) if distance != 0.0 else 1.0


def norm(*numbers: float) -> float:
    """Euclidean norm as numpy computes it.

    The sum of squares is left to the BLAS: which products it rounds before it adds them depends on the processor.
    """
    vector = np.array(numbers)
    return math.sqrt(vector.dot(vector))


def log(x: float) -> float:
    """Natural logarithm as numpy computes it."""
    return float(np.log(x))


def sin(x: float) -> float:
    """Sine as numpy computes it."""
    return float(np.sin(x))


def cos(x: float) -> float:
    """Cosine as numpy computes it."""
    return float(np.cos(x))


def quaternion(matrix: list[float]) -> tuple[float, float, float, float]:
    """``Rotation.from_matrix(matrix).as_quat()`` of scipy: (x, y, z, w) of a rotation matrix given row by row.

    Like scipy it divides by the largest of the diagonal and the trace, so that the sign is scipy's too.
    """
    m00, m01, m02, m10, m11, m12, m20, m21, m22 = matrix
    trace = m00 + m11 + m22
    largest = max(m00, m11, m22, trace)
    if largest == m00:
        x, y, z, w = 1 - trace + 2 * m00, m10 + m01, m20 + m02, m21 - m12
    elif largest == m11:
        x, y, z, w = m01 + m10, 1 - trace + 2 * m11, m21 + m12, m02 - m20
    elif largest == m22:
        x, y, z, w = m02 + m20, m12 + m21, 1 - trace + 2 * m22, m10 - m01
    else:
        x, y, z, w = m21 - m12, m02 - m20, m10 - m01, 1 + trace
    length = math.sqrt(x * x + y * y + z * z + w * w)
    return x / length, y / length, z / length, w / length


def in_prism(curr: list[float], zero: list[float], one: list[float]) -> bool:
    """Whether a point lies in the box between two opposite corners, in any order of the corners."""
    return all(min(start, end) <= x <= max(start, end) for x, start, end in zip(curr, zero, one, strict=True))


def touching_object(data: Any, left_pad: int, right_pad: int, object_geom: int) -> bool:
    """`SawyerXYZEnv.touching_object`: whether both pads of the gripper press on a geom, all given by their ids."""
    contacts = data.contact
    forces = {left_pad: 0.0, right_pad: 0.0}
    for pair, address in zip(contacts.geom.tolist(), contacts.efc_address.tolist(), strict=True):
        if object_geom in pair:
            other = pair[pair[0] == object_geom]
            if other in forces:
                forces[other] += data.efc_force[address]
    return all(force > 0 for force in forces.values())
