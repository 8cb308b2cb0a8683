"""What MetaWorld's own methods meet when they are traced: symbolic numpy, rewards, policies, environment and data.

A method is copied with other globals: where its module says ``np``, the copy finds `_Numpy`, and so on. Its code stays
as MetaWorld wrote it.
"""

import inspect
import math
import re
from collections.abc import Callable
from types import FunctionType, MethodType, SimpleNamespace
from typing import Any

import numpy as np
from metaworld.policies.action import Action
from metaworld.policies.policy import Policy, move
from metaworld.sawyer_xyz_env import SawyerMocapBase
from metaworld.utils import reward_utils
from scipy.spatial.transform import Rotation

from icrl.metaworld_fast import arithmetic
from icrl.metaworld_fast.tracing import Kind, Number, Trace, TraceError, Vector, promoted

RUNTIME: dict[str, Any] = {
    "inf": math.inf,
    "float32": np.float32,
    "hamacher_product": reward_utils.hamacher_product,
    **{
        name: getattr(arithmetic, name)
        for name in ("long_tail", "gaussian", "norm", "log", "sin", "cos", "quaternion", "in_prism", "touching_object")
    },
}
"""Names that traced code calls."""


class _Numpy:
    """The functions of numpy that MetaWorld's rewards, observations and experts use."""

    ndarray = Vector
    float64 = float
    pi = np.pi

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self.linalg = SimpleNamespace(norm=self._norm)

    def array(self, values: Any) -> Vector:
        return Vector(self._trace.double(value) for value in values)

    copy = array

    def zeros(self, length: int) -> Vector:
        return self.array([0.0] * length)

    def arange(self, length: int) -> range:
        return range(length)

    def hstack(self, parts: Any) -> Vector:
        return self.array([number for part in parts for number in (part if isinstance(part, Vector) else [part])])

    concatenate = hstack

    def split(self, vector: Vector, sections: int) -> list[Any]:
        size = len(vector) // sections
        return [vector[start : start + size] for start in range(0, len(vector), size)]

    def abs(self, values: Any) -> Any:
        return abs(values)

    def clip(self, values: Any, low: Any, high: Any) -> Any:
        if isinstance(values, Vector):
            lows, highs = (b if isinstance(b, Vector | np.ndarray) else [b] * len(values) for b in (low, high))
            return Vector(self.clip(*parts) for parts in zip(values, lows, highs, strict=True))
        value = self._trace.number(values)
        low, high = self._trace.number(low), self._trace.number(high)
        kind, bounded = promoted(value, low, high), value
        if kind is Kind.SINGLE:
            low, high = (self._trace.let(f"float32({bound.name})", kind) for bound in (low, high))
        if low.name != "(-inf)":
            bounded = self._trace.let(f"{low.name} if {bounded.name} < {low.name} else {bounded.name}", kind)
        if high.name != "inf":
            bounded = self._trace.let(f"{high.name} if {bounded.name} > {high.name} else {bounded.name}", kind)
        return bounded

    def all(self, conditions: Any) -> bool:
        return all(conditions)

    def isclose(self, a: Vector, b: Vector, rtol: float = 1e-05, atol: float = 1e-08) -> Any:
        return abs(a - b) <= atol + rtol * abs(b)

    def _norm(self, values: Any, ord: int = 2) -> Number:
        numbers = [self._trace.number(value) for value in (values if isinstance(values, Vector) else [values])]
        if ord != 2 or any(number.kind is Kind.SINGLE for number in numbers):
            raise TraceError("only Euclidean norms in double precision have a counterpart")
        return self._trace.let(f"norm({', '.join(number.name for number in numbers)})", Kind.DOUBLE)

    def log(self, value: Number) -> Number:
        return self._trace.let(f"log({value.name})", Kind.DOUBLE)

    def sin(self, values: Vector) -> Vector:
        return Vector(self._trace.let(f"sin({number.name})", Kind.DOUBLE) for number in values)

    def cos(self, values: Vector) -> Vector:
        return Vector(self._trace.let(f"cos({number.name})", Kind.DOUBLE) for number in values)


class StandIns:
    """Traceable copies of MetaWorld's functions and stand-ins for its objects, around one trace."""

    def __init__(self) -> None:
        self.trace = Trace()
        self.numpy = _Numpy(self.trace)
        self.views: dict[str, Any] = {}
        """Arrays of the simulation that traced code reads, by the name that it has for them."""
        self._copies: dict[FunctionType, FunctionType] = {}
        self._replacements = {
            id(np): self.numpy,
            id(reward_utils): SimpleNamespace(
                tolerance=self._tolerance, hamacher_product=self._hamacher_product, rect_prism_tolerance=self._prism
            ),
            id(reward_utils.tolerance): self._tolerance,
            id(Rotation): SimpleNamespace(from_matrix=self._from_matrix),
            id(move): _move,
            id(Action): lambda structure: _Action(self.numpy),
        }
        self._builtins = {
            "float": self._float,
            "bool": self._bool,
            "min": self._extreme("min"),
            "max": self._extreme("max"),
        }

    def of_object(self, instance: Any, name: str) -> Any:
        """A stand-in for `instance`, which the traced code knows as `name`."""
        return _Object(self, type(instance), instance, name)

    def copy_function(self, function: Any) -> FunctionType:
        """`function` without its checking decorators, on symbolic globals."""
        while function.__code__.co_freevars == ("func",):
            function = function.__closure__[0].cell_contents
        if function not in self._copies:
            symbols = {name: self._replace(value) for name, value in function.__globals__.items()}
            copy = FunctionType(
                function.__code__,
                symbols | self._builtins,
                function.__name__,
                function.__defaults__,
                function.__closure__,
            )
            copy.__kwdefaults__ = function.__kwdefaults__
            self._copies[function] = copy
        return self._copies[function]

    def array(self, expression: str, length: int, kind: Kind = Kind.DOUBLE) -> Vector:
        """The elements of the list or array that `expression` gives at run time."""
        name = self.trace.let(expression, kind).name if not expression.isidentifier() else expression
        return Vector((self.trace.let(f"{name}[{i}]", kind) for i in range(length)), frozen=True)

    def _replace(self, value: Any) -> Any:
        if isinstance(value, type) and issubclass(value, SawyerMocapBase | Policy):
            return self._replacements.get(id(value), _Object(self, value))
        return self._replacements.get(id(value), value)

    def _tolerance(self, x: Any, bounds: Any = (0.0, 0.0), margin: Any = 0.0, sigmoid: str = "gaussian") -> Number:
        arguments = [self.trace.number(argument) for argument in (x, *bounds, margin)]
        if sigmoid not in ("long_tail", "gaussian") or any(number.kind is Kind.SINGLE for number in arguments):
            raise TraceError(f"tolerance of a float32 or with sigmoid {sigmoid!r}")
        return self.trace.let(f"{sigmoid}({', '.join(number.name for number in arguments)})", Kind.PYTHON)

    def _hamacher_product(self, a: Any, b: Any) -> Number:
        a, b = self.trace.number(a), self.trace.number(b)
        if {a.kind, b.kind} == {Kind.SINGLE, Kind.DOUBLE}:
            a, b = self.trace.double(a), self.trace.double(b)
        return self.trace.let(f"hamacher_product({a.name}, {b.name})", promoted(a, b))

    def _prism(self, curr: Vector, zero: Vector, one: Vector) -> Any:
        lists = [f"[{', '.join(number.name for number in corner)}]" for corner in (curr, zero, one)]
        if not self.trace.let(f"in_prism({', '.join(lists)})", Kind.PYTHON):
            return 1.0
        x, y, z = (curr - zero) / (one - zero)
        return x * y * z

    def _from_matrix(self, matrix: Vector) -> SimpleNamespace:
        name = self.trace.let(f"quaternion([{', '.join(number.name for number in matrix)}])", Kind.DOUBLE).name
        return SimpleNamespace(as_quat=lambda: Vector(self.array(name, 4)))

    def _float(self, value: Any) -> Number:
        number = self.trace.number(value)
        return number.item() if number.kind is Kind.DOUBLE else self.trace.let(f"float({number.name})", Kind.PYTHON)

    def _bool(self, value: Any) -> Any:
        return self.trace.number(value)

    def _extreme(self, name: str) -> Callable[..., Number]:
        def extreme(*values: Any) -> Number:
            numbers = [self.trace.number(value) for value in (values if len(values) > 1 else values[0])]
            return self.trace.let(f"{name}({', '.join(number.name for number in numbers)})", promoted(*numbers))

        return extreme


def _move(from_xyz: Vector, to_xyz: Vector, p: float) -> Any:
    """`metaworld.policies.policy.move` without its warning."""
    return p * (to_xyz - from_xyz)


class _Action:
    """`metaworld.policies.action.Action`; every expert has one field of three numbers and then one of one."""

    def __init__(self, numpy: _Numpy) -> None:
        self._numpy = numpy
        self._fields: dict[str, Any] = {}

    def __setitem__(self, field: str, value: Any) -> None:
        self._fields[field] = value

    @property
    def array(self) -> Vector:
        position, effort = self._fields.values()
        return self._numpy.hstack([position, effort])


class _Object:
    """A class of MetaWorld or an object of it: attributes are read at run time, methods are traced."""

    _stand_ins: StandIns
    _class: type
    _instance: Any
    _name: str

    def __init__(self, stand_ins: StandIns, cls: type, instance: Any = None, name: str = "") -> None:
        vars(self).update(_stand_ins=stand_ins, _class=cls, _instance=instance, _name=name)

    def __setattr__(self, attribute: str, value: Any) -> None:
        raise TraceError(f"sets attribute {attribute}")

    def __getattr__(self, attribute: str) -> Any:
        if self._instance is not None and attribute in vars(self._instance):
            return self._read(attribute, getattr(self._instance, attribute))
        if attribute == "touching_object":
            return self._touching_object
        value = inspect.getattr_static(self._class, attribute)
        if isinstance(value, staticmethod):
            return self._stand_ins.copy_function(value.__func__)
        if isinstance(value, property):
            return self._stand_ins.copy_function(value.fget)(self)
        if isinstance(value, FunctionType):
            return MethodType(self._stand_ins.copy_function(value), self)
        return value

    def _read(self, attribute: str, value: Any) -> Any:
        expression = f"{self._name}.{attribute}"
        if attribute == "data":
            return _Data(self._stand_ins, value)
        if attribute == "model":
            return value
        if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype == np.float64:
            return self._stand_ins.array(f"{expression}.tolist()", len(value))
        if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype == np.float32:
            return self._stand_ins.array(expression, len(value), Kind.SINGLE)
        if isinstance(value, np.float64):
            return self._stand_ins.trace.let(f"float({expression})", Kind.DOUBLE)
        if isinstance(value, float):
            return self._stand_ins.trace.let(expression, Kind.PYTHON)
        # Sizes and modes, which never change once the environment has made a step.
        if value is None or isinstance(value, int | str):
            return value
        raise TraceError(f"attribute {attribute} is a {type(value).__name__}")

    def _touching_object(self, geom_id: int) -> Number:
        data = self._instance.data
        self._stand_ins.views["data"] = data
        pads = [data.geom(f"{side}pad_geom").id for side in ("left", "right")]
        return self._stand_ins.trace.let(f"touching_object(data, {pads[0]}, {pads[1]}, {geom_id})", Kind.PYTHON)


class _Data:
    """MuJoCo's data: named arrays, read at run time through views that are made once."""

    def __init__(self, stand_ins: StandIns, data: Any) -> None:
        self._stand_ins, self._data = stand_ins, data

    def __getattr__(self, kind: str) -> Callable[[str], SimpleNamespace]:
        if kind not in ("body", "geom", "site", "joint"):
            raise TraceError(f"reads {kind} of the simulation's data")
        return lambda name: self._named(kind, name)

    def _named(self, kind: str, name: str) -> Any:
        return _Named(self._stand_ins, getattr(self._data, kind)(name), re.sub(r"\W", "_", f"{kind}_{name}"))


class _Named:
    """One body, geom, site or joint."""

    def __init__(self, stand_ins: StandIns, accessor: Any, name: str) -> None:
        self._stand_ins, self._accessor, self._name = stand_ins, accessor, name

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(self._accessor, attribute)
        if not isinstance(value, np.ndarray):
            return value
        view = f"{self._name}_{attribute}"
        self._stand_ins.views[view] = value
        return self._stand_ins.array(f"{view}.tolist()", len(value))
