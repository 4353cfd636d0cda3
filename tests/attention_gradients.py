"""Gradients of attention by its Metal kernels in the emulator, and how far they may be off."""

from dataclasses import replace

import mlx.core as mx
import suite
from attention_cases import PLAIN, AttentionCase
from attention_ops import ScaledDotProductAttention

from mlx_tensorops.testing import emulated_metal

# Owners of rows that work apart need 32 rows to walk over; long rows make them work together.
APART = replace(PLAIN, n_q=40, n_k=70)
TOGETHER = replace(PLAIN, n_q=41, n_k=75, d=(144, 80), batch=1, heads=(2, 1))


class Gradients:
    """Those of a case by all of its inputs that have one, by their names."""

    def __init__(self, case: AttentionCase, edit_source=None, **emulation):
        self.case, self.op = case, ScaledDotProductAttention(case)
        self.arrays = self.op.arrays(case)
        positions = self.op.differentiable
        self.names = self.op.names()
        emulation = {"static_k": "trap"} | emulation
        with emulated_metal(edit_source=edit_source, **emulation) as self.run:

            def outputs(*values):
                arrays = suite.replaced(self.arrays, positions, values)
                results = self.op.call(case, arrays, mx.cpu)
                return [results[i] for i in self.op.float_outputs]

            primals = [self.arrays[i] for i in positions]
            self.cotangents = suite.random_like(outputs(*primals), case.rng(1))
            _, values = mx.vjp(outputs, primals, self.cotangents)
            mx.eval(values)
        self.values = dict(zip(self.names, values, strict=True))

    def check(self) -> "Gradients":
        """That they are right, and the emulator noticed nothing."""
        assert self.run.findings == ()
        budgets = self.op.expected_vjp(self.case, self.arrays, self.cotangents)
        for name, budget in zip(self.names, budgets, strict=True):
            budget.check(self.values[name], f"gradient of {name}")
        return self

    def launches(self, kernel: str = "") -> list:
        """Of the backward pass."""
        backward = [launch for launch in self.run.launches if "_vjp" in launch.op]
        return [launch for launch in backward if launch.kernel.startswith(kernel)]
