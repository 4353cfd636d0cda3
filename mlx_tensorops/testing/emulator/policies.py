"""Choices that Metal leaves open. A kernel is right if it is right under all of them."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass


@dataclass(frozen=True)
class Policies:
    """How a launch decides what Metal leaves open.

    Attributes:
        order: of threads in a threadgroup and of threadgroups: "forward", "reverse", "random".
        seed: of the random order and the random layout.
        layout: of cooperative tensors: "m5", "grid8", "random".
        multiply: what matmul2d's mode multiply does to a destination in memory: "overwrite" or
            "accumulate".
        fresh: what a new cooperative tensor holds: "nan" or "zero".
        compatible: what is_compatible_as_left_input and its like answer.
        static_k: an operand shorter than a static K is "masked", or a "trap".
        truncate_relaxed: whether relaxed_precision cuts float inputs to 11 significant bits.
        row_owner: whether only one lane's copy of a row in a reduction result is valid.
        guard: the inaccessible page is at the "end" of each buffer, or at its "begin".
        handle_extents: which extent of a tensor_handle argument of more than two dimensions comes
            first: "innermost" or "outermost".
        subscript: along which dimension of a tensor_handle the first index of `t[i, j]`, `load`
            and `store` counts: "innermost" or "outermost".
        stack_kib: stack of each GPU thread, 0 for the default.
        time_limit_ms: a launch that takes longer is given up; 0 for no limit.
    """

    order: str = "forward"
    seed: int = 0
    layout: str = "m5"
    multiply: str = "overwrite"
    fresh: str = "nan"
    compatible: bool = True
    static_k: str = "masked"
    truncate_relaxed: bool = False
    row_owner: bool = False
    guard: str = "end"
    handle_extents: str = "innermost"
    subscript: str = "innermost"
    stack_kib: int = 0
    time_limit_ms: int = 300_000

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                wanted = ", ".join(f'"{choice}"' for choice in choices)
                raise ValueError(f"[Policies] {name} must be one of {wanted}, got {value!r}.")


_CHOICES = {
    "order": ("forward", "reverse", "random"),
    "layout": ("m5", "grid8", "random"),
    "multiply": ("overwrite", "accumulate"),
    "fresh": ("nan", "zero"),
    "static_k": ("masked", "trap"),
    "guard": ("end", "begin"),
    "handle_extents": ("innermost", "outermost"),
    "subscript": ("innermost", "outermost"),
}


class EmuPolicies(ctypes.Structure):
    """struct EmuPolicies of emulator/policies.h."""

    _fields_ = [
        (name, ctypes.c_int32)
        for name in (
            "order",
            "seed",
            "layout",
            "multiply_accumulates",
            "fresh_zero",
            "incompatible",
            "static_k_traps",
            "relaxed_truncates",
            "row_owner",
            "guard_begin",
            "stack_kib",
            "handle_outermost",
            "subscript_outermost",
            "time_limit_ms",
        )
    ]

    @classmethod
    def of(cls, policies: Policies) -> EmuPolicies:
        """The C form of the policies."""

        def index(name: str) -> int:
            return _CHOICES[name].index(getattr(policies, name))

        return cls(
            index("order"),
            policies.seed,
            index("layout"),
            index("multiply"),
            index("fresh"),
            not policies.compatible,
            index("static_k"),
            policies.truncate_relaxed,
            policies.row_owner,
            index("guard"),
            policies.stack_kib,
            index("handle_extents"),
            index("subscript"),
            policies.time_limit_ms,
        )
