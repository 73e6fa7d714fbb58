"""Embeddings and parameters of PyTorch models on the servers.

    import tidewater, tidewater.torch
    session = tidewater.Session(sync="bsp")
    model = torch.nn.Sequential(
        tidewater.torch.Embedding(session, "items", 1_000_000, 16, optimizer=("sgd", 0.1), effect="clock_sum"),
        torch.nn.Linear(16, 1),
    )
    optimizer = tidewater.torch.Optimizer(
        session, "model", model, optimizer=("sgd", 0.1), effect="clock_sum", average=True
    )
    for ids, labels in batches:
        optimizer.zero_grad()
        loss_of(model(ids), labels).backward()
        optimizer.step()                  # pushes gradients, ticks, pulls parameters

The servers apply the rule of each table, so that its state is theirs too. Tensors are on the CPU, and are pulled
into and pushed from where they are. Under `sync="bsp"` with tables of "clock_sum" and `average=True`, a step is
that of one process on the batches of all workers, with the mean as loss.

**Gradients that are not pushed.** Gradients of an `Embedding` stay in it until `Optimizer.step` (or
`Embedding.push`) pushes them, or `zero_grad` drops them; several backward passes add up, as in PyTorch. If the
session ticks meanwhile, the next pass raises tidewater.Error. An embedding that is collected with such gradients
warns (RuntimeWarning).

**Saving.** `Session.save` and `Session.load` save and load all tables with the state of their rules. A program that
goes on from a loaded model makes its optimizer with `resume=True`. `state_dict` of a model has no rows of an
`Embedding`.

Raises ImportError where PyTorch is not installed.
"""

from __future__ import annotations

import time
import warnings
from typing import Any, Callable, List, Optional, Tuple, Union

import numpy as np

try:
    import torch
    from torch.autograd.function import once_differentiable
except ImportError as missing:
    raise ImportError(
        "tidewater.torch needs PyTorch, which is not installed; its package for CPUs is enough: pip install torch, or "
        "on Debian apt-get install python3-torch"
    ) from missing

from ._tidewater import Error, PushBuffer, Session, Table, Ticket

__all__ = ["Embedding", "Optimizer"]

_DTYPES = {torch.float32: np.dtype(np.float32), torch.float64: np.dtype(np.float64)}
# Rows and bytes at which a push buffer would push by itself: never, since a step decides.
_NEVER = 2**62
# Bytes of a block of a range table, unless an option says otherwise, and most partitions.
_BLOCK_BYTES, _PARTITIONS = 16384, 64
# Most elements of a row of a table; a wider parameter is a column.
_COLS_MAX = 65_536
# Longest wait for other workers while the first values are stored.
_TICK_TIMEOUT_S = 600
_POLL_S = 0.001


class Embedding(torch.nn.Module):
    """Rows of a table as torch.nn.Embedding gives those of a matrix.

    `table` is a name, or a Table of kind "sparse" or "rows". By a name, a sparse table of `dtype` (float32 or
    float64) is created, or the equal one is opened; `options` are those of `Session.table`, such as `optimizer`,
    `init`, `seed` and `effect`. `num_embeddings` bounds the ids; None: any id from 0 to 2**63 - 1. Rows exist from
    the first use in training, so that an unused id takes no memory.

    `padding_idx` is an id with zeroes as row: it is neither pulled nor pushed. Negative, it counts from the end.
    """

    def __init__(
        self,
        session: Session,
        table: Union[str, Table],
        num_embeddings: Optional[int],
        embedding_dim: int,
        *,
        padding_idx: Optional[int] = None,
        dtype: Optional[torch.dtype] = None,
        **options: Any,
    ) -> None:
        super().__init__()
        if isinstance(table, str):
            dtype = torch.float32 if dtype is None else dtype
            if dtype not in _DTYPES:
                raise TypeError(f"dtype is {dtype}; embeddings hold torch.float32 or torch.float64")
            table = session.table(table, "sparse", dtype=_DTYPES[dtype], cols=embedding_dim, **options)
        else:
            _check_table(session, table, num_embeddings, embedding_dim, dtype, options)
        if padding_idx is not None:
            if num_embeddings is not None and not -num_embeddings <= padding_idx < num_embeddings:
                raise ValueError(f"padding_idx is {padding_idx}; there are {num_embeddings} embeddings")
            if padding_idx < 0:
                if num_embeddings is None:
                    raise ValueError(f"padding_idx is {padding_idx}, and the number of embeddings is not limited")
                padding_idx += num_embeddings
        self.table = table
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.padding_idx = padding_idx
        self.dtype = next(of for of, name in _DTYPES.items() if name == table.dtype)
        self._session = session
        self._factor = 1.0
        # Clock of the session at the first gradient in the buffer.
        self._clock = 0
        self._buffer = PushBuffer(table, "gradient", rows_max=_NEVER, bytes_max=_NEVER)

    @property
    def unpushed(self) -> int:
        """Number of rows with gradients that were neither pushed nor dropped."""
        return self._buffer.rows

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows of `ids`, an integer tensor of any shape: a tensor of that shape and `embedding_dim`.

        In training mode with gradients enabled, new rows are created and a backward pass collects the gradient.
        In evaluation mode, or under torch.no_grad(), nothing is created, and unknown rows have their first
        values. Raises IndexError for an id out of range; ValueError for a tensor that is not on the CPU;
        tidewater.Error if the session has ticked with gradients that no step has pushed.
        """
        _on_cpu("ids", ids)
        if ids.dtype not in (torch.int64, torch.int32):
            raise TypeError(f"ids hold {ids.dtype}; they are torch.int64 or torch.int32")
        learns = self.training and torch.is_grad_enabled()
        if learns:
            self._check_clock()
        keys, places = torch.unique(ids, return_inverse=True)  # sorted
        keys = keys.to(torch.int64)
        if len(keys) > 0:
            self._check_range(int(keys[0]), int(keys[-1]))
        padded = None
        if self.padding_idx is not None:
            at = int(torch.searchsorted(keys, self.padding_idx))
            if at < len(keys) and int(keys[at]) == self.padding_idx:
                # The row of zeroes comes last, so that those of the table stand together.
                padded = len(keys) - 1
                places = torch.where(places == at, padded, places - (places > at).to(places.dtype))
                keys = torch.cat((keys[:at], keys[at + 1 :]))
        rows = torch.zeros(len(keys) + (padded is not None), self.embedding_dim, dtype=self.dtype)
        keys = keys.numpy().view(np.uint64)
        if len(keys) > 0:
            missing = "create" if learns else "initial"
            self.table.pull(keys, out=rows.numpy()[: len(keys)], missing=missing)
        if learns:
            rows = _Rows.apply(torch.empty(0, requires_grad=True), self, keys, rows)
        return torch.nn.functional.embedding(places, rows, padding_idx=padded)

    def push(self) -> Optional[Ticket]:
        """Pushes the collected gradients, one for each row; None without any. `Optimizer.step` calls it.

        After an exception the rows that were not passed on are still there, and a repeated call pushes them.
        """
        return self._buffer.flush_all() if self._buffer.rows > 0 else None

    def discard(self) -> int:
        """Drops the collected gradients; returns the number of their rows. `Optimizer.zero_grad` calls it."""
        return self._buffer.clear()

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f'"{self.table.name}", {self.num_embeddings}, {self.embedding_dim}{padding}'

    def __reduce__(self) -> Any:
        raise TypeError(
            "an Embedding is not copied or pickled: its rows are on the servers. Make another one over the same table; "
            "Session.save saves the rows"
        )

    def __del__(self) -> None:
        buffer = getattr(self, "_buffer", None)
        try:
            rows = 0 if buffer is None else buffer.rows
        except Error:  # a forked child: the gradients are its parent's
            return
        if rows > 0:
            warnings.warn(
                f'the embedding "{self.table.name}" was dropped with gradients of {rows} rows that no step has pushed',
                RuntimeWarning,
                stacklevel=2,
            )

    def _collect(self, keys: np.ndarray, gradient: torch.Tensor) -> None:
        """Adds the gradient of pulled rows, in the order of `keys`, to the buffer."""
        self._check_clock()
        if self._buffer.rows == 0:
            self._clock = self._session.clock
        gradient = _scaled(gradient.detach()[: len(keys)], self._factor)
        self._buffer.add(gradient.contiguous().numpy(), keys)

    def _check_clock(self) -> None:
        if self._buffer.rows > 0 and self._session.clock != self._clock:
            raise Error(
                f'the embedding "{self.table.name}" has gradients of {self._buffer.rows} rows from iteration '
                f"{self._clock}, and the session is in iteration {self._session.clock}: call Optimizer.step() before "
                "Session.tick(), or zero_grad() to drop them"
            )

    def _check_range(self, first: int, last: int) -> None:
        end = self.num_embeddings
        if first < 0 or (end is not None and last >= end):
            wrong = first if first < 0 else last
            limit = "" if end is None else f" to {end - 1}"
            raise IndexError(f'id {wrong}; those of the embedding "{self.table.name}" are from 0{limit}')


class _Rows(torch.autograd.Function):
    """Pulled rows in the graph: the backward pass gives their gradient to the embedding."""

    @staticmethod
    def forward(ctx: Any, _anchor: torch.Tensor, module: Embedding, keys: np.ndarray, rows: torch.Tensor) -> torch.Tensor:
        ctx.module, ctx.keys = module, keys
        return rows

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Tuple[None, None, None, None]:
        ctx.module._collect(ctx.keys, gradient)
        return None, None, None, None


class Optimizer:
    """The step of a model: pushes gradients, ticks, and pulls the parameters.

    Each parameter of `module` with `requires_grad` gets a table by ranges, named `NAME/PARAMETER`, with the rule
    `optimizer`; `effect` and `options` are those of `Session.table`. Gradients of each `Embedding` in `module` are
    pushed to its own table, with the rule of that. All workers make an optimizer of the same name and model:
    the parameters begin with the values of rank 0, or of the tables with `resume=True` (after `Session.load`).
    With tables that take effect at ticks, this takes a tick of the session.

    `tick`: whether a step ends with `Session.tick()`. Without it, a program ticks when it wants, or never.
    `average` divides gradients by the number of workers: with "clock_sum" a step uses the mean of the workers'
    gradients, whichever of them use a row. ("clock_mean" divides by the number of workers that pushed the row.)

    Rates change by `Table.set_optimizer` and `Table.schedule` of `tables`. The schedulers of PyTorch have no effect
    on the servers, and refuse this optimizer.

    Raises ValueError for parameters that are not on the CPU, contiguous and of float32 or float64.
    """

    def __init__(
        self,
        session: Session,
        name: str,
        module: torch.nn.Module,
        *,
        optimizer: Any = ("sgd", 0.01),
        effect: str = "immediate",
        average: bool = False,
        tick: bool = True,
        resume: bool = False,
        **options: Any,
    ) -> None:
        if "domain" in options:
            raise ValueError("the tables of an Optimizer are of domain 0, which its steps end")
        self._session = session
        self._tick = tick
        if average and session.workers == 0:
            raise ValueError("average=True needs a fixed number of workers; in a job of open size use effect=\"clock_mean\"")
        self._factor = 1.0 / session.workers if average else 1.0
        self._embeddings = [part for part in module.modules() if isinstance(part, Embedding)]
        for embedding in self._embeddings:
            if embedding._session is not session:
                raise ValueError(f'the embedding "{embedding.table.name}" is of another session')
            embedding._factor = self._factor
        self._parameters: List[Tuple[torch.nn.Parameter, Table]] = []
        trained = [(of, p) for of, p in module.named_parameters() if p.requires_grad and p.numel() > 0]
        for of, parameter in trained:
            _check_parameter(of, parameter)
        for of, parameter in trained:
            rows = parameter.shape[0] if parameter.dim() > 1 else 1
            if parameter.numel() // rows > _COLS_MAX:
                rows = parameter.numel()
            size = parameter.numel() * parameter.element_size()
            blocks = -(-size // options.get("block_bytes", _BLOCK_BYTES))
            kept = {"partitions": min(blocks, _PARTITIONS), **options}
            table = session.table(
                f"{name}/{of}",
                "range",
                dtype=_DTYPES[parameter.dtype],
                rows=rows,
                cols=parameter.numel() // rows,
                optimizer=optimizer,
                effect=effect,
                **kept,
            )
            self._parameters.append((parameter, table))
        self._begin(name, effect, resume)

    @property
    def tables(self) -> List[Table]:
        """Tables of the parameters, in the order of the module, then those of the embeddings."""
        return [table for _, table in self._parameters] + [part.table for part in self._embeddings]

    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """Pushes all gradients, waits until the servers have them, ticks, and pulls the parameters in place.

        Returns the result of `closure`, which is called first, if given. Parameters without a gradient are not
        pushed. After an exception gradients may be pushed in part: end the run, or drop them by `zero_grad`.
        """
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        tickets = []
        for parameter, table in self._parameters:
            if parameter.grad is not None:
                tickets.append(table.push(self._values_of(parameter.grad, table), op="gradient"))
        for embedding in self._embeddings:
            tickets.append(embedding.push())
        for ticket in tickets:
            if ticket is not None:
                ticket.wait()
        if self._tick:
            self._session.tick()
        self.pull()
        return result

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients of parameters, or sets them to 0, and drops those of embeddings."""
        for parameter, _ in self._parameters:
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.detach_().zero_()
        for embedding in self._embeddings:
            embedding.discard()

    def pull(self) -> None:
        """Pulls the parameters into their tensors. Each step ends with it."""
        for parameter, table in self._parameters:
            table.pull(out=parameter.detach().numpy())

    def state_dict(self) -> Any:
        """Raises TypeError: the state is on the servers."""
        raise TypeError(
            "the state of a tidewater.torch.Optimizer is on the servers: save it by Session.save, load it by Session.load, "
            "and make the optimizer with resume=True"
        )

    def load_state_dict(self, state_dict: Any) -> Any:
        """Raises TypeError: the state is on the servers."""
        self.state_dict()

    def _begin(self, name: str, effect: str, resume: bool) -> None:
        """Stores the first values, those of rank 0, and pulls them on all workers."""
        session = self._session
        if not resume:
            at_ticks = effect != "immediate"
            clocks = session.all_gather(np.array([session.clock])).ravel().tolist()
            if at_ticks and len(set(clocks)) > 1:
                raise ValueError(
                    f"the workers are in iterations {clocks}; all make an optimizer with tables that take effect at "
                    "ticks in the same iteration"
                )
            if session.rank == 0:
                tickets = [table.push(parameter.detach().numpy(), op="assign") for parameter, table in self._parameters]
                for ticket in tickets:
                    ticket.wait()
            if at_ticks:
                session.tick()
            session.barrier(f"{name}/parameters")
            # Under ssp and asp a pull may show earlier iterations. All workers have ticked, so this ends, unless
            # siblings are open that have not.
            until = time.monotonic() + _TICK_TIMEOUT_S
            while at_ticks and session.global_clock() < session.clock:
                if time.monotonic() > until:
                    raise TimeoutError(
                        f"a thread of a worker has not ticked within {_TICK_TIMEOUT_S} s; open siblings after the "
                        "optimizer is made"
                    )
                session.progress()
                time.sleep(_POLL_S)
        self.pull()

    def _values_of(self, gradient: torch.Tensor, table: Table) -> np.ndarray:
        """A gradient as an array, of the same memory where that is possible."""
        _on_cpu(f'the gradient of "{table.name}"', gradient)
        if gradient.layout != torch.strided:
            raise ValueError(
                f'the gradient of "{table.name}" is {gradient.layout}; use tidewater.torch.Embedding, or sparse=False'
            )
        return _scaled(gradient.detach(), self._factor).contiguous().numpy()


def _scaled(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    return tensor if factor == 1.0 else tensor * factor


def _on_cpu(what: str, tensor: torch.Tensor) -> None:
    if tensor.device.type != "cpu":
        raise ValueError(f"{what} is on {tensor.device}, not on the CPU; a copy is: its cpu()")


def _check_parameter(name: str, parameter: torch.Tensor) -> None:
    _on_cpu(f'the parameter "{name}"', parameter)
    if parameter.dtype not in _DTYPES:
        raise ValueError(f'the parameter "{name}" holds {parameter.dtype}; tables hold torch.float32 or torch.float64')
    if parameter.layout != torch.strided or not parameter.is_contiguous():
        raise ValueError(
            f'the parameter "{name}" is not contiguous; make it so: parameter.data = parameter.data.contiguous()'
        )


def _check_table(
    session: Session,
    table: Table,
    num_embeddings: Optional[int],
    embedding_dim: int,
    dtype: Optional[torch.dtype],
    options: Any,
) -> None:
    """Checks a table that the program made."""
    if options:
        raise ValueError(f'{", ".join(options)}: options of a new table; "{table.name}" exists')
    if table.session is not session:
        raise ValueError(f'the table "{table.name}" is of another session')
    if table.kind == "range" or table.dtype not in _DTYPES.values() or table.cols != embedding_dim:
        raise ValueError(
            f'the table "{table.name}" is of kind {table.kind}, {table.cols} x {table.dtype}; an embedding of dimension '
            f"{embedding_dim} needs that many columns of float32 or float64, and kind sparse or rows"
        )
    if dtype is not None and _DTYPES.get(dtype) != table.dtype:
        raise ValueError(f'dtype is {dtype}, and the table "{table.name}" holds {table.dtype}')
    if table.rows is not None and (num_embeddings is None or num_embeddings > table.rows):
        raise ValueError(f'num_embeddings is {num_embeddings}, and the table "{table.name}" has {table.rows} rows')
