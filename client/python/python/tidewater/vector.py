"""Vectors that live on the servers: a program combines them by functions, and only numbers travel.

    space = tidewater.VectorSpace(session, "solver", 1_000_000)
    x, y = space.filled(2.0), space.from_array(numpy.ones(1_000_000))
    y.axpy(3.0, x)                        # y += 3 x, on the servers
    z = (x + y) / 2                       # a new vector
    assert x @ y == 14_000_000.0          # inner product
    elements = y.pull()                   # numpy.ndarray of shape (1000000,)

Elements of one index of all vectors of a space lie on the same server thread, so that operations on several
vectors need no traffic between servers. An operation that gives a vector sends requests and waits for nothing.
One that gives a number waits for the servers. Operations of one session take effect in their order.
"""

from __future__ import annotations

import math
import numbers
import threading
from typing import Any, List, Optional, Sequence, Tuple, Union

import numpy as np
import numpy.typing as npt

from ._tidewater import PARTITIONS_DEFAULT, Session, Table

_Number = Union[int, float, np.floating, np.integer]


class VectorSpace:
    """Vectors of one dimension on the servers of a session.

    Its tables are named `NAME/0`, `NAME/1`, ...; one program at a time uses a name. A vector takes one table,
    which the space uses again when the vector is collected. `dtype` is float32 or float64.

    Raises ValueError for a dimension below 1 or another dtype.
    """

    def __init__(
        self,
        session: Session,
        name: str,
        dim: int,
        *,
        dtype: npt.DTypeLike = np.float64,
        partitions: int = PARTITIONS_DEFAULT,
    ) -> None:
        self._dtype = np.dtype(dtype)
        if self._dtype not in (np.dtype(np.float32), np.dtype(np.float64)):
            raise ValueError(f"vectors hold float32 or float64, not {self._dtype}")
        if dim < 1:
            raise ValueError(f"vectors of {dim} elements; give at least 1")
        self._session = session
        self._name = name
        self._dim = dim
        self._partitions = partitions
        self._lock = threading.Lock()
        self._slots: List[_Slot] = []
        self._free: List[int] = []
        self._peak = 0
        self._released = False

    @property
    def session(self) -> Session:
        """The session that operates on the vectors."""
        return self._session

    @property
    def name(self) -> str:
        """Name of the space: the beginning of its tables' names."""
        return self._name

    @property
    def dim(self) -> int:
        """Number of elements of each vector."""
        return self._dim

    @property
    def dtype(self) -> np.dtype:
        """Type of the elements."""
        return self._dtype

    @property
    def usage(self) -> Tuple[int, int]:
        """Numbers of vectors in use now, and at most so far. Each takes a table."""
        return len(self._slots) - len(self._free), self._peak

    def zeros(self) -> Vector:
        """A vector of zeroes. Raises tidewater.Error when a new table does not fit."""
        return self.filled(0.0)

    def filled(self, value: _Number) -> Vector:
        """A vector with all elements equal."""
        return Vector(self)._assign("p0", (), (value,))

    def from_array(self, values: npt.ArrayLike) -> Vector:
        """A vector with these elements, of shape (dim,). Raises ValueError for another shape, and TypeError for
        elements that are not real numbers.
        """
        values = self._elements(values)
        vector = Vector(self)
        vector.table.push(values, op="assign")
        return vector

    def table_of(self, id: Tuple[int, int]) -> Table:
        """The table of a vector by its number. Raises ValueError if the vector was dropped."""
        slot, generation = id
        held = self._slots[slot] if 0 <= slot < len(self._slots) else None
        if held is None or held.generation != generation or slot in self._free:
            raise ValueError(f'generation {generation} of "{self._name}/{slot}" was dropped')
        return held.table

    def release(self) -> None:
        """Ends the space: frees its tables on all servers. Raises ValueError while vectors are in use."""
        used = self.usage[0]
        if used > 0:
            raise ValueError(f'{used} vectors of the space "{self._name}" are in use; drop them')
        self._released = True
        while self._slots:
            self._slots[-1].table.release()
            self._slots.pop()
        self._free.clear()

    def __repr__(self) -> str:
        return f'<tidewater.VectorSpace "{self._name}", {self._dim} x {self._dtype}>'

    def __reduce__(self) -> Any:
        raise TypeError("a VectorSpace cannot be pickled: two processes would use the same tables")

    def _take(self) -> Tuple[int, int, Table]:
        """Slot, generation and table for a new vector."""
        with self._lock:
            if self._released:
                raise ValueError(f'the space "{self._name}" was released')
            try:
                slot = self._free.pop()
            except IndexError:
                slot = len(self._slots)
                self._slots.append(_Slot(self._table(str(slot))))
            held = self._slots[slot]
            held.generation += 1
            self._peak = max(self._peak, self.usage[0])
            return slot, held.generation, held.table

    def _table(self, name: str) -> Table:
        """Creates or opens a table that lies like the vectors."""
        return self._session.table(
            f"{self._name}/{name}",
            "range",
            dtype=self._dtype,
            rows=self._dim,
            cols=1,
            optimizer="none",
            allow_not_finite=True,
            partitions=self._partitions,
        )

    def _elements(self, values: npt.ArrayLike) -> np.ndarray:
        array = np.asarray(values)
        if not np.can_cast(array.dtype, self._dtype, "same_kind"):
            raise TypeError(f"values hold {array.dtype}, the vectors {self._dtype}")
        if array.shape != (self._dim,):
            raise ValueError(f"values have shape {array.shape}, the vectors ({self._dim},)")
        return np.ascontiguousarray(array, dtype=self._dtype)


class _Slot:
    """A table of a space, and the number of its uses."""

    __slots__ = ("table", "generation")

    def __init__(self, table: Table) -> None:
        self.table = table
        self.generation = 0


class Vector:
    """A vector on the servers. `VectorSpace.zeros`, `filled` and `from_array` make one.

    Operators `+ - * /` take vectors of the same space and numbers, `**` a number; `x @ y` is the inner product.
    `+=` and its like change the vector in place. When the vector is collected, the space uses its table again.

    Raises ValueError for a vector of another space. A refusal of the servers is an exception of the next
    operation that waits, or of `Session.flush`.
    """

    __slots__ = ("_space", "_id", "_table", "__weakref__")
    # numpy's operators leave vectors to the methods below.
    __array_ufunc__ = None

    def __init__(self, space: VectorSpace) -> None:
        self._space = space
        slot, generation, self._table = space._take()
        self._id = (slot, generation)

    def __del__(self) -> None:
        # A vector that got no table has no number.
        id = getattr(self, "_id", None)
        if id is not None:
            self._space._free.append(id[0])

    @property
    def space(self) -> VectorSpace:
        """The space of the vector."""
        return self._space

    @property
    def dim(self) -> int:
        """Number of elements."""
        return self._space._dim

    @property
    def dtype(self) -> np.dtype:
        """Type of the elements."""
        return self._space._dtype

    @property
    def shape(self) -> Tuple[int]:
        """Shape of the array that `pull` returns: (dim,)."""
        return (self._space._dim,)

    @property
    def id(self) -> Tuple[int, int]:
        """Slot of the vector in its space, and use of the slot from 1: a stale number is noticed."""
        return self._id

    @property
    def table(self) -> Table:
        """The range table with the elements, valid while the vector is."""
        return self._table

    # Copies between the vector and the program.

    def pull(self, out: Optional[np.ndarray] = None) -> np.ndarray:
        """Copies the elements to `out`, of shape (dim,) and the vector's dtype, or to a new array.

        Waits for earlier operations; raises tidewater.Error if one was refused.
        """
        if out is None:
            out = np.empty(self.dim, dtype=self.dtype)
        elif np.shape(out) != self.shape:
            raise ValueError(f"out has shape {np.shape(out)}, the vector {self.shape}")
        self._space._session.flush()
        return self._table.pull(out=out)

    def push(self, values: npt.ArrayLike) -> None:
        """Replaces all elements. Errors are those of `VectorSpace.from_array`."""
        self._table.push(self._space._elements(values), op="assign")

    def __array__(self, dtype: Optional[npt.DTypeLike] = None, copy: Optional[bool] = None) -> np.ndarray:
        if copy is False:
            raise ValueError("a vector on the servers is not converted to an array without a copy")
        array = self.pull()
        return array if dtype is None else array.astype(dtype, copy=False)

    def __len__(self) -> int:
        return self.dim

    def copy(self) -> Vector:
        """A vector with the same elements."""
        return Vector(self._space)._assign("x", (self,))

    def __copy__(self) -> Vector:
        return self.copy()

    def __deepcopy__(self, memo: Any) -> Vector:
        return self.copy()

    def __reduce__(self) -> Any:
        raise TypeError("a Vector cannot be pickled; send the array of pull()")

    def __repr__(self) -> str:
        return f'<tidewater.Vector "{self._space._name}/{self._id[0]}", {self.dim} x {self.dtype}>'

    # Operations in place.

    def fill(self, value: _Number) -> None:
        """Sets all elements to a number."""
        self._assign("p0", (), (value,))

    def axpy(self, factor: _Number, x: Vector) -> None:
        """Adds a multiple of another vector: `self += factor * x`."""
        self._assign("x + p0 * y", (self, x), (factor,))

    def map(self, expression: str, inputs: Sequence[Vector] = (), parameters: Sequence[_Number] = ()) -> None:
        """Sets each element to the value of an expression, such as "p0 * x + y".

        `x`, `y` and `z` are the elements of `inputs`, `p0`, `p1`, ... the parameters, `index` the element's index.
        Without inputs, `x` is this vector. Raises ValueError with the byte of a wrong expression.
        """
        self._assign(expression, inputs, parameters)

    # Element by element, with a new vector as result.

    def scaled_add(self, other: Vector, factor: _Number) -> Vector:
        """`self + factor * other`."""
        return self._new("x + p0 * y", (self, other), (factor,))

    def minimum(self, other: Vector) -> Vector:
        """Smaller elements of two vectors; NaN if either is."""
        return self._new("min(x, y)", (self, other))

    def maximum(self, other: Vector) -> Vector:
        """Larger elements of two vectors; NaN if either is."""
        return self._new("max(x, y)", (self, other))

    def clip(self, low: _Number, high: _Number) -> Vector:
        """Elements limited to [low, high]; NaN stays."""
        return self._new("max(p0, min(x, p1))", (self,), (low, high))

    def soft_threshold(self, threshold: _Number) -> Vector:
        """Elements moved towards 0 by `threshold`, and 0 if they are nearer to it; NaN stays."""
        return self._new("if(x > p0, x - p0, if(x < -p0, x + p0, if(x == x, 0, x)))", (self,), (threshold,))

    def sign(self) -> Vector:
        """Signs: -1, 0 or 1; NaN stays."""
        return self._new("sign(x)", (self,))

    def sqrt(self) -> Vector:
        """Square roots."""
        return self._new("sqrt(x)", (self,))

    def exp(self) -> Vector:
        """Exponentials."""
        return self._new("exp(x)", (self,))

    def expm1(self) -> Vector:
        """Exponentials minus 1, exact near 0."""
        return self._new("expm1(x)", (self,))

    def log(self) -> Vector:
        """Natural logarithms."""
        return self._new("log(x)", (self,))

    def log1p(self) -> Vector:
        """Natural logarithms of 1 plus each element, exact near 0."""
        return self._new("log1p(x)", (self,))

    def zeros_like(self) -> Vector:
        """A vector of zeroes in the same space."""
        return self._space.zeros()

    # Operations with a number as result.

    def dot(self, other: Vector) -> float:
        """Inner product. Products are rounded in the element type (float32 ends at 3.4e38 and at 1e-45), and summed in
        float64 with compensation: the same bits on any number of servers."""
        return self._number("x * y", "sum", self, other)

    def sum(self) -> float:
        """Sum of the elements."""
        return self._number("x", "sum", self)

    def norm(self, ord: float = 2) -> float:
        """Norm L2, or L1 or L-infinity: `ord` is 2, 1 or math.inf. Raises ValueError for another one. L2 squares in the
        element type: with float32 an element above 1.8e19 makes it infinite, and those below 1e-23 do not count."""
        if ord == 2:
            return math.sqrt(self._number("x * x", "sum", self))
        if ord == 1:
            return self._number("abs(x)", "sum", self)
        if ord == math.inf:
            return self._number("abs(x)", "max", self)
        raise ValueError(f"ord is {ord}; it is 1, 2 or inf")

    def min(self) -> float:
        """Smallest element; NaN if one is."""
        return self._number("x", "min", self)

    def max(self) -> float:
        """Largest element; NaN if one is."""
        return self._number("x", "max", self)

    def nnz(self) -> int:
        """Number of elements that are not 0."""
        return int(self._number("if(x != 0, 1, 0)", "sum", self))

    def distance(self, other: Vector) -> float:
        """Largest difference of two elements of one index."""
        return self._number("abs(x - y)", "max", self, other)

    def is_near(self, other: Vector, tolerance: float) -> bool:
        """Whether elements of equal index differ by less than `tolerance`. NaN is equal to nothing."""
        return self.distance(other) < tolerance

    # Operators.

    def __add__(self, other: Any) -> Vector:
        return self._binary(other, "x + y", "x + p0")

    def __radd__(self, other: Any) -> Vector:
        return self._binary(other, None, "p0 + x")

    def __iadd__(self, other: Any) -> Vector:
        return self._binary(other, "x + y", "x + p0", self)

    def __sub__(self, other: Any) -> Vector:
        return self._binary(other, "x - y", "x - p0")

    def __rsub__(self, other: Any) -> Vector:
        return self._binary(other, None, "p0 - x")

    def __isub__(self, other: Any) -> Vector:
        return self._binary(other, "x - y", "x - p0", self)

    def __mul__(self, other: Any) -> Vector:
        return self._binary(other, "x * y", "x * p0")

    def __rmul__(self, other: Any) -> Vector:
        return self._binary(other, None, "p0 * x")

    def __imul__(self, other: Any) -> Vector:
        return self._binary(other, "x * y", "x * p0", self)

    def __truediv__(self, other: Any) -> Vector:
        return self._binary(other, "x / y", "x / p0")

    def __rtruediv__(self, other: Any) -> Vector:
        return self._binary(other, None, "p0 / x")

    def __itruediv__(self, other: Any) -> Vector:
        return self._binary(other, "x / y", "x / p0", self)

    def __pow__(self, exponent: Any) -> Vector:
        return self._binary(exponent, None, "pow(x, p0)")

    def __neg__(self) -> Vector:
        return self._new("-x", (self,))

    def __abs__(self) -> Vector:
        return self._new("abs(x)", (self,))

    def __matmul__(self, other: Any) -> float:
        return self.dot(other) if isinstance(other, Vector) else NotImplemented

    def _binary(self, other: Any, by_vector: Optional[str], by_number: str, into: Optional[Vector] = None) -> Any:
        """The result of an operator, in a new vector or in `into`."""
        if isinstance(other, Vector) and by_vector is not None:
            expression, inputs, parameters = by_vector, (self, other), ()
        elif isinstance(other, numbers.Real):
            expression, inputs, parameters = by_number, (self,), (other,)
        elif isinstance(other, np.ndarray):
            raise TypeError("an array is not on the servers; make a vector of it by VectorSpace.from_array")
        else:
            return NotImplemented
        target = Vector(self._space) if into is None else into
        return target._assign(expression, inputs, parameters)

    def _new(self, expression: str, inputs: Sequence[Vector], parameters: Sequence[_Number] = ()) -> Vector:
        return Vector(self._space)._assign(expression, inputs, parameters)

    def _assign(self, expression: str, inputs: Sequence[Vector], parameters: Sequence[_Number] = ()) -> Vector:
        """Sets the elements. Later operations see the result, so that nothing waits for the ticket."""
        self._space._session.update(
            self._table, expression, inputs=self._tables(inputs), parameters=[float(p) for p in parameters]
        )
        return self

    def _number(self, expression: str, reduction: Any, *inputs: Vector) -> Any:
        session = self._space._session
        value = session.reduce(self._table, expression, reduction, inputs=self._tables(inputs))
        session.flush()  # raises the refusal of an earlier operation
        return value

    def _tables(self, vectors: Sequence[Vector]) -> List[Table]:
        for other in vectors:
            if other._space is not self._space:
                raise ValueError(
                    f'a vector of the space "{other._space._name}" does not lie where those of '
                    f'"{self._space._name}" do; copy it by pull and push'
                )
        return [other._table for other in vectors]
