"""What the backward pass of attention costs, counted by the emulator, beside its forward pass."""

from dataclasses import dataclass

import mlx.core as mx
from metal_attention_costs import AttentionShape, operands
from metal_costs import to_mlx

import mlx_tensorops as mto
from mlx_tensorops.testing import emulated_metal


@dataclass(frozen=True)
class BackwardCost:
    """Operations of matrices, and by which kernels."""

    forward: int
    by_queries: int
    by_keys: int
    kernels: tuple[str, ...]

    @property
    def backward(self) -> int:
        return self.by_queries + self.by_keys

    @property
    def ratio(self) -> float:
        return self.backward / self.forward


def backward_cost(shape: AttentionShape, **options: object) -> BackwardCost:
    """Of the gradients by queries, keys and values."""
    if shape.causal:
        options |= {"mask": "causal"}
    arrays = [to_mlx(a) for a in operands(shape)]

    def outputs(*arrays: mx.array) -> mx.array:
        return mto.scaled_dot_product_attention(
            *arrays, scale=shape.d**-0.5, force_fused=True, stream=mx.cpu, **options
        )

    with emulated_metal() as run:
        _, gradients = mx.vjp(outputs, arrays, [mx.ones_like(arrays[0])])
        mx.eval(gradients)
    owners = [n for n in run.launches if n.kernel.startswith("attention_grad<")]
    forward = sum(n.counters["matmul_flops"] for n in run.launches if "_vjp" not in n.op)
    flops = [launch.counters["matmul_flops"] for launch in owners]
    assert sum(flops) + forward == run.total("matmul_flops")
    return BackwardCost(forward, *flops, tuple(launch.kernel for launch in owners))
