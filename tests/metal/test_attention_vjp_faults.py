"""Faults planted in the Metal kernels of attention's gradients: each has to be noticed."""

from dataclasses import replace

import pytest
from attention_gradients import APART, TOGETHER, Gradients

ALL = APART.with_options("causal", "alibi", "softcap")
SHARED = TOGETHER.with_options("causal", "alibi")
MASKED = replace(APART, mask="float32", mask_axes="HK", batch=2)
BARRIER = "simdgroup_barrier(mem_flags::mem_threadgroup);"

# What is replaced, by what, and the case that shows it.
WRONG_NUMBERS = {
    "rows of the step before count again": ("Queries ? step.n_done : 0;", "0;", ALL),
    "queries of the step before": ("row_begin = Queries ? 0 : step.n_done", "row_begin = 0", ALL),
    "one query too few": ("row_end = n_queries;", "row_end = n_queries - 1;", ALL),
    "one key too few": ("Queries ? step.n : walk.n;", "Queries ? step.n - 1 : walk.n;", ALL),
    "one head of a group": (": group) * ((walk.n_walked", ": 1) * ((walk.n_walked", ALL),
    "heads of another group": ("head : head * group;", "head : head;", ALL),
    "no scale": ("bad ? NAN : params.scale", "bad ? NAN : 1.0f", ALL),
    "no slope of the cap": ("1.0f - capped_at * capped_at", "1.0f", ALL),
    "no delta": ("(d_scores[slot] - queries.constants[r])", "d_scores[slot]", ALL),
    "no d_lse": ("- d_lse[row_at(mto::kAttentionDLse)]", "", replace(ALL, lse=True)),
    "sign of d_alibi": ("NAN : -moment", "NAN : moment", ALL),
    "parts of d_alibi": ("Simdgroups + simdgroup : owner", "Simdgroups : owner", SHARED),
    "columns of a simdgroup": ("simdgroup * NFirst, first)", "0, first)", SHARED),
    "columns of values": ("simdgroup * NValues, values)", "0, values)", SHARED),
    "steps of another simdgroup": ("(at + i, walk.first_head", "(at, walk.first_head", SHARED),
    "coordinates": ("[at[1] * stride + at[0]] = H", "[at[0] % 16 * stride + at[1]] = H", SHARED),
    "weights of half": ("is_same_v<T, bfloat>, bfloat, float>", "true, T, float>", "half"),
    "tiles with some visible": ("query, query + n_queries)", "query, query + 1)", "blocks"),
    "one row of a mask": ("one_row ? kRows : 1", "1", MASKED),
    "one key of a mask": ("one_key ? kKeys : 1", "1", replace(MASKED, mask_axes="HQ")),
    "one part of a mask": ("part < mto::kGradMaskSimdgroups", "part < 1", MASKED),
    "batch of a mask": ("element.of[0] + shared.of[0]", "element.of[0]", MASKED),
    "heads of a mask": ("along(index, params.n_heads)", "0", replace(MASKED, mask_axes="K")),
    "cap of a mask": ("!OfMask", "true", replace(MASKED, softcap=1.5)),
}  # fmt: skip
CASES = {
    "half": replace(TOGETHER, dtype="float16", alibi=True, magnitude=6),
    "blocks": TOGETHER.with_options("block mask"),
}
THREADGROUP_BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"
# Barriers, by the text before or behind them.
RACES = {
    "facts were read": (f"{BARRIER}  // facts of the step", "// facts", ALL),
    "facts are there": (f"{BARRIER}\n\n  const int head =", "const int head =", ALL),
    "a tile is there": (f"tile.store(left);\n    {BARRIER}", "tile.store(left);", ALL),
    "a tile was read": (f"{BARRIER}  // before the memory", "// before the memory", ALL),
    "tiles are there": (
        f"{THREADGROUP_BARRIER}\n      add_all",
        f"if (at == 0) {THREADGROUP_BARRIER} add_all",
        SHARED,
    ),
    "tiles were read": (f"{THREADGROUP_BARRIER}  // before", "// before", SHARED),
    "facts of a mask were read": (f"{BARRIER}  // facts of the place", "// facts", MASKED),
    "facts of a mask are there": (f"{BARRIER}\n  const auto of_q", "const auto of_q", MASKED),
    "parts are there": (f"{THREADGROUP_BARRIER}\n\n  const bool bad", "const bool bad", MASKED),
}


def planted(text, with_text):
    """An edit for the kernels that have the text, and the names of those it was made in."""
    done = []

    def edit(source):
        if text in source:
            done.append(text)
        return source.replace(text, with_text)

    return edit, done


@pytest.mark.parametrize("name", WRONG_NUMBERS)
def test_wrong_numbers(name):
    text, with_text, case = WRONG_NUMBERS[name]
    edit, done = planted(text, with_text)
    gradients = Gradients(CASES.get(case, case), edit_source=edit, layout="random", seed=2)
    assert done
    with pytest.raises(AssertionError):
        gradients.check()


@pytest.mark.parametrize("name", RACES)
def test_every_barrier_is_needed(name):
    text, with_text, case = RACES[name]
    edit, done = planted(text, with_text)
    with pytest.raises(Exception, match="race|never written|out_of_bounds") as caught:
        policies = {"order": "reverse", "compatible": not name.startswith("a tile")}
        Gradients(case, edit_source=edit, trace=True, **policies).check()
    assert done and type(caught.value).__name__ in ("Fault", "AssertionError")
