"""Run a function on symbolic numbers and write what it computes as flat Python on plain floats.

The function runs once for every path through its conditions. On each run, arithmetic on `Number` and `Vector` records
lines such as ``t7 = t3 - t5``, and a condition on a symbolic number takes the outcome that the run was told to take.
The recorded runs are then merged into one tree of ``if`` and ``else``. Lines whose result nobody uses are left out.

Equal bits are the point, so the recorded arithmetic is what numpy does: element by element, in numpy's order, and with
numpy's type promotion, which `Kind` follows where single precision is involved.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum, auto
from typing import Any

import numpy as np

MAX_PATHS = 2000


class TraceError(Exception):
    """The function does something that has no symbolic counterpart here."""


class Kind(IntEnum):
    """What numpy's type promotion takes a number for; at run time doubles are plain floats too."""

    PYTHON = auto()
    """A Python number, which adapts to the precision of what it meets."""
    DOUBLE = auto()
    """A numpy float64."""
    SINGLE = auto()
    """A numpy float32; stays one at run time, or is a Python number that `min` or `max` preferred to it."""


class Trace:
    """The recording of one run after another.

    An expression has the same name on every path, so that equal branches are recognised as equal.
    """

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self.begin([])

    def begin(self, outcomes: list[bool]) -> None:
        """Start another run; its first conditions take `outcomes`, the later ones are true."""
        self.outcomes = outcomes
        self.events: list[tuple[str, str | bool]] = []
        self._recorded: set[str] = set()
        self._decided: dict[str, bool] = {}

    def let(self, expression: str, kind: Kind) -> "Number":
        """The number that `expression` computes; computed once on a path, however often it is asked for."""
        name = self._names.setdefault(expression, f"t{len(self._names)}")
        if name not in self._recorded:
            self._recorded.add(name)
            self.events.append((name, expression))
        return Number(self, name, kind)

    def decide(self, name: str) -> bool:
        """The outcome of the condition `name` on this path."""
        if name not in self._decided:
            if len(self._decided) == len(self.outcomes):
                self.outcomes = [*self.outcomes, True]
            self._decided[name] = self.outcomes[len(self._decided)]
            self.events.append((name, self._decided[name]))
        return self._decided[name]

    def number(self, value: Any) -> "Number":
        """`value` itself if it is symbolic, the element of an array that has only one, or the constant."""
        if isinstance(value, Vector):
            value = value.only()
        if isinstance(value, Number):
            return value
        if isinstance(value, bool | int | float | np.floating):
            kind = Kind.DOUBLE if isinstance(value, np.float64) else Kind.PYTHON
            text = repr(float(value)) if isinstance(value, np.floating) else repr(value)
            return Number(self, text if value >= 0 else f"({text})", kind)
        raise TraceError(f"cannot trace a {type(value).__name__}")

    def double(self, value: Any) -> "Number":
        """The element of a float64 array that `value` becomes."""
        number = self.number(value)
        if number.kind is Kind.SINGLE:
            return self.let(f"float({number.name})", Kind.DOUBLE)
        return Number(self, number.name, Kind.DOUBLE)

    def operate(self, symbol: str, left: Any, right: Any) -> "Number":
        """``left symbol right`` for two scalars."""
        left, right = self.number(left), self.number(right)
        kinds = {left.kind, right.kind}
        if kinds == {Kind.SINGLE, Kind.DOUBLE}:
            left, right = self.double(left), self.double(right)
        return self.let(f"{left.name} {symbol} {right.name}", promoted(left, right))


def promoted(*numbers: "Number") -> Kind:
    """The kind of a result that depends on all of `numbers`.

    Raises:
        TraceError: single and double precision meet; which one the result has is for the caller to say.
    """
    if {Kind.SINGLE, Kind.DOUBLE} <= {number.kind for number in numbers}:
        raise TraceError("single and double precision meet")
    return max(number.kind for number in numbers)


def _binary(symbol: str, *, reflected: bool = False) -> Callable[[Any, Any], Any]:
    def method(self: "Number | Vector", other: Any) -> Any:
        left, right = (other, self) if reflected else (self, other)
        if not isinstance(left, Vector) and not isinstance(right, Vector):
            return self.trace.operate(symbol, left, right)
        if symbol == "**":
            raise TraceError("numpy computes powers of arrays in its own way")
        length = len(self) if isinstance(self, Vector) else len(other)
        columns = [side if isinstance(side, Vector | list) else [side] * length for side in (left, right)]
        return Vector(self.trace.operate(symbol, a, b) for a, b in zip(*columns, strict=True))

    return method


class _Arithmetic:
    trace: Trace

    __add__, __radd__ = _binary("+"), _binary("+", reflected=True)
    __sub__, __rsub__ = _binary("-"), _binary("-", reflected=True)
    __mul__, __rmul__ = _binary("*"), _binary("*", reflected=True)
    __truediv__, __rtruediv__ = _binary("/"), _binary("/", reflected=True)
    __pow__ = _binary("**")
    __lt__, __le__, __gt__, __ge__ = _binary("<"), _binary("<="), _binary(">"), _binary(">=")

    def __eq__(self, other: object) -> bool:
        raise TraceError("compares for equality")

    __hash__ = None  # type: ignore[assignment]


class Number(_Arithmetic):
    """One number of the code being written: a name or a constant there, and what numpy takes it for."""

    def __init__(self, trace: Trace, name: str, kind: Kind) -> None:
        self.trace, self.name, self.kind = trace, name, kind

    def __bool__(self) -> bool:
        return self.trace.decide(self.name)

    def __neg__(self) -> "Number":
        return self.trace.let(f"-{self.name}", self.kind)

    def __abs__(self) -> "Number":
        return self.trace.let(f"abs({self.name})", self.kind)

    def item(self) -> "Number":
        """The same as a Python number."""
        return Number(self.trace, self.name, Kind.PYTHON)


class Vector(_Arithmetic):
    """A one-dimensional float64 array of symbolic numbers; slices share memory, as in numpy."""

    ndim = 1

    def __init__(self, numbers: Iterable[Number], *, frozen: bool = False) -> None:
        self._memory = list(numbers)
        self._positions = list(range(len(self._memory)))
        self._frozen = frozen

    @property
    def trace(self) -> Trace:  # type: ignore[override]
        """The trace that the elements belong to."""
        return self._memory[0].trace

    def __len__(self) -> int:
        return len(self._positions)

    def __iter__(self) -> Iterator[Number]:
        return (self._memory[position] for position in self._positions)

    def __getitem__(self, index: int | slice | list[int]) -> "Number | Vector":
        if isinstance(index, list):
            return Vector(self._memory[self._positions[i]] for i in index)
        if isinstance(index, slice):
            view = Vector(self._memory, frozen=self._frozen)
            view._memory, view._positions = self._memory, self._positions[index]
            return view
        return self._memory[self._positions[index]]

    def __setitem__(self, index: int | slice, value: Any) -> None:
        if self._frozen:
            raise TraceError("the function writes into its input")
        positions = self._positions[index] if isinstance(index, slice) else [self._positions[index]]
        values = list(value) if isinstance(value, Vector) else [value] * len(positions)
        for position, element in zip(positions, values, strict=True):
            self._memory[position] = self._memory[position].trace.double(element)

    def __iadd__(self, other: Any) -> "Vector":
        self[:] = self + other
        return self

    def __isub__(self, other: Any) -> "Vector":
        self[:] = self - other
        return self

    def __imul__(self, other: Any) -> "Vector":
        self[:] = self * other
        return self

    def __neg__(self) -> "Vector":
        return Vector(-number for number in self)

    def __abs__(self) -> "Vector":
        return Vector(abs(number) for number in self)

    def __bool__(self) -> bool:
        return bool(self.only())

    def only(self) -> Number:
        """The element, if there is one only."""
        if len(self) != 1:
            raise TraceError(f"needs an array of one element, got {len(self)}")
        return self._memory[self._positions[0]]

    def item(self) -> Number:
        """The only element as a Python number."""
        return self.only().item()

    def reshape(self, *shape: int) -> "Vector":
        """The vector itself: a matrix stays flat, since nothing but a conversion to a quaternion takes one."""
        return self

    def copy(self) -> "Vector":
        """The same numbers in memory of their own."""
        return Vector(self)


def write_function(trace: Trace, name: str, parameters: str, function: Callable[[], Any]) -> str:
    """Source of a function ``name(parameters)`` that computes what `function` returns.

    Args:
        trace: what the symbolic numbers in `function` belong to.
        name: the name of the function to write.
        parameters: its parameter list, as source; recorded expressions may refer to it.
        function: called once for each path; returns numbers, vectors, constants or a tuple of them.

    Raises:
        TraceError: too many paths, or something without a symbolic counterpart.
    """
    pending: list[list[bool]] = [[]]
    paths: list[list[tuple[str, str | bool]]] = []
    while pending:
        given = pending.pop()
        trace.begin(given)
        try:
            ending = f"return {_render(function())}"
        except AssertionError:
            # The function checks what it computes, and this path is the one on which the check fails.
            ending = "raise AssertionError"
        paths.append([*trace.events, ("", ending)])
        pending += [[*trace.outcomes[:known], False] for known in range(len(given), len(trace.outcomes))]
        if len(paths) > MAX_PATHS:
            raise TraceError(f"{name} has more than {MAX_PATHS} paths")
    body, _ = _merge(paths)
    return "\n".join([f"def {name}({parameters}):", *_indented(body)]) + "\n"


def _render(result: Any) -> str:
    if isinstance(result, Number):
        return result.name
    if isinstance(result, Vector):
        return f"[{', '.join(number.name for number in result)}]"
    if isinstance(result, tuple):
        return f"({', '.join(_render(part) for part in result)})"
    return repr(result)


def _merge(paths: list[list[tuple[str, str | bool]]]) -> tuple[list[str], set[str]]:
    """Lines that do what `paths` recorded, and the names that they need from before."""
    events = paths[0]
    fork = next(i for i, (name, value) in enumerate(events) if isinstance(value, bool) or not name)
    name, value = events[fork]
    if not name:
        lines, needed = [str(value)], _names_in(str(value))
    else:
        then, then_needs = _merge([path[fork + 1 :] for path in paths if path[fork][1]])
        otherwise, otherwise_needs = _merge([path[fork + 1 :] for path in paths if not path[fork][1]])
        if then == otherwise:
            lines, needed = then, then_needs
        else:
            # Every branch returns, so what follows the `if` is its else.
            lines = [f"if {name}:", *_indented(then), *otherwise]
            needed = then_needs | otherwise_needs | {name}
    for name, expression in reversed(events[:fork]):
        if name in needed:
            lines = [f"{name} = {expression}", *lines]
            needed = (needed - {name}) | _names_in(str(expression))
    return lines, needed


def _names_in(expression: str) -> set[str]:
    return set(re.findall(r"\bt\d+\b", expression))


def _indented(lines: list[str]) -> list[str]:
    return ["    " + line for line in lines]
