"""Cases of attention: one an option, and one a pair of options."""

import itertools
from dataclasses import dataclass, fields, replace

from cases import Case


@dataclass(frozen=True)
class AttentionCase(Case):
    n_q: int = 17
    n_k: int = 33
    heads: tuple[int, int] = (4, 2)
    "Of queries, and of keys and values."
    d: tuple[int, int] = (16, 16)
    "Of queries and keys, and of values."
    dtype: str = "float32"
    batch: int = 2
    mask: str = ""
    '"causal", "bool", or the dtype of an additive one.'
    mask_axes: str = "BHQK"
    "Those that the mask does not broadcast."
    window: int | tuple[int | None, int | None] | None = None
    softcap: float | None = None
    alibi: bool = False
    sinks: bool = False
    per_head: str = "float32"
    "The dtype of alibi and sinks."
    segments: str = ""
    '"sorted" or "mixed"; both have padding.'
    documents: bool = False
    blocks: tuple[int, int] = ()
    magnitude: float = 1
    "Of queries and keys."
    lse: bool = False

    def __str__(self) -> str:
        changed = [(f.name, getattr(self, f.name)) for f in fields(self)]
        named = [
            f"{name}={'x'.join(map(str, v)) if isinstance(v, tuple) else v}"
            for (name, v), f in zip(changed, fields(self), strict=True)
            if v != f.default
        ]
        return ",".join(named) or "plain"

    @property
    def scale(self) -> float:
        return max(self.d[0], 1) ** -0.5

    def with_options(self, *names: str) -> "AttentionCase":
        changes: dict[str, object] = {}
        for name in names:
            changes |= OPTIONS[name]
        return replace(self, **changes)


# What an option changes. Two that change one field are not combined.
OPTIONS: dict[str, dict[str, object]] = {
    "causal": {"mask": "causal"},
    "bool mask": {"mask": "bool"},
    "shared bool mask": {"mask": "bool", "mask_axes": "BK"},
    "added": {"mask": "float32"},
    "added a head": {"mask": "bfloat16", "mask_axes": "HQK"},
    "added a key": {"mask": "float16", "mask_axes": "K"},
    "window": {"window": 7},
    "two-sided window": {"window": (3, 5)},
    "open window": {"window": (None, 2)},
    "softcap": {"softcap": 1.5},
    "alibi": {"alibi": True},
    "sinks": {"sinks": True},
    "segments": {"segments": "sorted"},
    "mixed segments": {"segments": "mixed"},
    "documents": {"documents": True, "batch": 1},
    "block mask": {"blocks": (8, 16)},
    "lse": {"lse": True},
}

PLAIN = AttentionCase()


def combine(*names: str) -> bool:
    """Whether the options can be had together."""
    changed = [set(OPTIONS[name]) for name in names]
    together = set().union(*changed)
    return sum(map(len, changed)) == len(together) and not {"segments", "documents"} <= together


def single_cases() -> list[AttentionCase]:
    """Every option alone; dtypes and heads take turns."""
    dtypes, heads = ("float32", "bfloat16", "float16"), ((4, 2), (3, 3), (6, 1))
    cases = [PLAIN]
    for i, name in enumerate(OPTIONS):
        case = PLAIN.with_options(name)
        cases.append(replace(case, dtype=dtypes[i % 3], heads=heads[i // 2 % 3]))
    return cases


def shape_cases() -> list[AttentionCase]:
    """Tile edges, single rows, more queries than keys, head dimensions (R7)."""
    causal = PLAIN.with_options("causal", "lse")
    sizes = [(1, 1), (1, 200), (8, 32), (64, 64), (65, 63), (33, 17), (130, 257)]
    cases = [replace(causal, n_q=n_q, n_k=n_k) for n_q, n_k in sizes]
    dims = [(40, 40), (72, 72), (80, 80), (96, 64), (128, 128), (192, 128), (256, 256)]
    large = [(512, 512), (576, 512), (1, 3), (7, 33)]
    for i, d in enumerate(dims + large):
        dtype = ("float32", "bfloat16", "float16")[i % 3]
        cases.append(replace(PLAIN, d=d, dtype=dtype, n_q=9, n_k=21, batch=1, heads=(2, 1)))
    return cases


def pair_cases() -> list[AttentionCase]:
    cases = []
    for i, names in enumerate(itertools.combinations(OPTIONS, 2)):
        if combine(*names):
            dtype = ("float32", "float32", "bfloat16", "float16")[i % 4]
            n_q = (17, 1, 40)[i % 3]
            cases.append(replace(PLAIN.with_options(*names), dtype=dtype, n_q=n_q))
    return cases


def further_cases() -> list[AttentionCase]:
    """Large scores (R6, R19), wide windows, dtypes that differ, everything at once."""
    return [
        AttentionCase(magnitude=100, dtype="float16", mask="causal", d=(64, 64), lse=True),
        AttentionCase(magnitude=5, softcap=30.0, d=(64, 64)),
        AttentionCase(n_q=65, n_k=65, window=1),
        AttentionCase(n_q=65, n_k=65, window=500, dtype="bfloat16"),
        AttentionCase(n_q=40, n_k=130, window=(None, None)),
        AttentionCase(n_q=40, n_k=130, window=(0, 0)),
        AttentionCase(n_q=130, n_k=130, segments="sorted", window=9, lse=True),
        AttentionCase(alibi=True, sinks=True, per_head="float16", dtype="bfloat16"),
        AttentionCase(mask="int32", lse=True),
        AttentionCase(
            mask="float32",
            mask_axes="HK",
            window=(9, 3),
            softcap=2.0,
            alibi=True,
            sinks=True,
            segments="sorted",
            blocks=(5, 7),
            lse=True,
        ),
    ]


def random_case(rng) -> AttentionCase:
    """Any combination of options, shapes and dtypes."""

    def pick(*values):
        return values[rng.integers(len(values))]

    def maybe(value, rate=0.3):
        return value if rng.random() < rate else type(value)()

    documents = bool(rng.random() < 0.2)
    n_kv_heads = int(rng.integers(1, 4))
    axes = "".join(axis for axis in "BHQK" if rng.random() < 0.6)
    limits = [None if rng.random() < 0.3 else int(rng.integers(0, 40)) for _ in range(2)]
    return AttentionCase(
        n_q=int(rng.integers(1, 100)),
        n_k=int(rng.integers(1, 100)),
        heads=(n_kv_heads * int(rng.integers(1, 4)), n_kv_heads),
        d=(int(rng.integers(1, 70)), int(rng.integers(1, 70))),
        dtype=pick("float32", "bfloat16", "float16"),
        batch=1 if documents else int(rng.integers(1, 3)),
        mask=pick("", "", "causal", "bool", "float32", "float16", "bfloat16"),
        mask_axes=axes,
        window=pick(None, None, int(rng.integers(1, 60)), tuple(limits)),
        softcap=pick(None, None, round(0.5 + rng.random(), 3)),
        alibi=maybe(True),
        sinks=maybe(True),
        segments="" if documents else pick("", "", "sorted", "mixed"),
        documents=documents,
        blocks=pick((), (), (int(rng.integers(1, 40)), int(rng.integers(1, 40)))),
        lse=maybe(True, 0.5),
    )
