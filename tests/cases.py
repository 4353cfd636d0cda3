"""What is tested: a backend, a case (data), and what the checks have to know of an op."""

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np
from tolerance import Budget, Exact

Arrays = list[mx.array]


@dataclass(frozen=True)
class Backend:
    name: str
    device: mx.Device
    kernels: str
    "Whose kernels run there, as the counters say it."
    rows_alone: bool = True
    "Whether a row has the same bits alone as among any others."
    few_rows: float = np.inf
    "Products of more rows than these may take weights of x's dtype."
    emulation: Mapping[str, object] = field(default_factory=dict, hash=False, compare=False)

    def __str__(self) -> str:
        return self.name

    @contextmanager
    def active(self) -> Iterator[None]:
        """Everything that has to be on while the backend is tested."""
        from mlx_tensorops.testing import emulated_metal

        token = _IN_USE.set(self)
        try:
            with emulated_metal(**self.emulation) if self.emulation else nullcontext():
                yield
        finally:
            _IN_USE.reset(token)


def backend_in_use() -> Backend:
    """The backend that is `active`: what is expected of a result may depend on it."""
    return _IN_USE.get()


CPU = mx.Device(mx.cpu, 0)
METAL = {"kernels": "metal", "rows_alone": False, "few_rows": 32}
BACKENDS = {
    "cpu": Backend("cpu", CPU, "cpu"),
    "metal": Backend("metal", mx.Device(mx.gpu, 0), **METAL),
    **{
        f"metal-emulated-{layout}-{order}": Backend(
            f"metal-emulated-{layout}-{order}",
            CPU,
            **METAL,
            # The longest launch, of 2^32 weights, takes minutes.
            emulation={"layout": layout, "order": order, "seed": 1, "time_limit_ms": 1_200_000},
        )
        for layout in ("m5", "grid", "random")
        for order in ("forward", "reverse", "random")
    },
}

_IN_USE = ContextVar("backend", default=BACKENDS["cpu"])


@dataclass(frozen=True)
class Case:
    """Shapes, dtypes and options of a call; its repr seeds its inputs."""

    @property
    def seed(self) -> int:
        return zlib.crc32(repr(self).encode())

    def __str__(self) -> str:
        values = (
            "x".join(map(str, v)) if isinstance(v, tuple) else str(v) for v in vars(self).values()
        )
        return "-".join(value for value in values if value)

    def rng(self, variant: int = 0) -> np.random.Generator:
        return np.random.default_rng([self.seed, variant])


class Op:
    """What the checks have to know of an op."""

    name: str
    inputs: tuple[str, ...]
    differentiable: tuple[int, ...]
    "Positions of the inputs that have a derivative."
    float_outputs: tuple[int, ...] = (0,)
    "Positions of the outputs that have one."

    def mappable(self) -> tuple[int, ...]:
        """Positions of the inputs that vmap may map; the others do not differ between variants."""
        return tuple(range(len(self.inputs)))

    def arrays(self, case: Case, variant: int = 0) -> Arrays:
        """Random inputs; another ``variant`` gives other values."""
        raise NotImplementedError

    def call(self, case: Case, arrays: Sequence[mx.array], stream: object) -> tuple[mx.array, ...]:
        """The op itself, not allowed to fall back."""
        raise NotImplementedError

    def expected(self, case: Case, arrays: Arrays) -> list[Budget | Exact]:
        """Every output."""
        raise NotImplementedError

    def expected_jvp(self, case: Case, arrays: Arrays, tangents: Arrays) -> list[Budget]:
        """Tangents of the float outputs, given those of the differentiable inputs."""
        raise NotImplementedError

    def expected_vjp(self, case: Case, arrays: Arrays, cotangents: Arrays) -> list[Budget]:
        """Gradients of the differentiable inputs, given the cotangents of the float outputs."""
        raise NotImplementedError

    def resized(self, case: Case, n_rows: int) -> Case:
        """The case with another number of rows, for compiled functions that take any."""
        raise NotImplementedError

    def empty(self, case: Case) -> Iterable[Case]:
        """The case with each dimension that may be 0 set to it."""
        raise NotImplementedError


@contextmanager
def fused_only(op: Op, backend: Backend):
    """Fails unless the op ran, and ran in the backend's own kernel each time."""
    from mlx_tensorops import _ext

    _ext.reset_counters()
    yield
    seen = {
        (where, how) for name, where, how, count in _ext.counters() if name == op.name and count
    }
    assert seen == {(backend.kernels, "fused")}, f"{op.name} ran as {sorted(seen)}"
