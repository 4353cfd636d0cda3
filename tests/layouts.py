"""The same values in other memory layouts, as views of arrays whose other elements are junk."""

from collections.abc import Iterator

import mlx.core as mx


def _junk(shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
    """NaN; for integers all bits set; True. A kernel that reads it has a wrong result."""
    if dtype == mx.bool_:
        return mx.ones(shape, dtype)
    if mx.issubdtype(dtype, mx.floating):
        return mx.full(shape, float("nan"), dtype)
    return mx.full(shape, mx.iinfo(dtype).max, dtype)


def _surrounded(array: mx.array, axis: int, before: int, after: int) -> mx.array:
    """The array as a slice of one that is longer along the axis."""
    n = array.shape[axis]
    sides = [list(array.shape), list(array.shape)]
    sides[0][axis], sides[1][axis] = before, after
    parts = [_junk(tuple(sides[0]), array.dtype), array, _junk(tuple(sides[1]), array.dtype)]
    whole = mx.concatenate(parts, axis)
    mx.eval(whole)
    inside = [slice(None)] * array.ndim
    inside[axis] = slice(before, before + n)
    return whole[tuple(inside)]


def _guarded(array: mx.array) -> mx.array:
    """Contiguous, but at an odd address and between junk."""
    return _surrounded(array.flatten(), 0, 5, 67).reshape(array.shape)


def _columns(array: mx.array) -> mx.array:
    return _surrounded(array, -1, 3, 2)


def _rows(array: mx.array) -> mx.array:
    return _surrounded(array, 0, 1, 2)


def _every_other_column(array: mx.array) -> mx.array:
    pairs = mx.stack([array, _junk(array.shape, array.dtype)], -1)
    whole = pairs.reshape(*array.shape[:-1], 2 * array.shape[-1])
    mx.eval(whole)
    return whole[..., ::2]


def _every_third_row(array: mx.array) -> mx.array:
    junk = _junk(array.shape, array.dtype)
    whole = mx.stack([array, junk, junk], 1).flatten(0, 1)
    mx.eval(whole)
    return whole[::3]


def _transposed(array: mx.array) -> mx.array:
    whole = mx.contiguous(array.transpose())
    mx.eval(whole)
    return whole.transpose()


def _reversed(array: mx.array) -> mx.array:
    whole = mx.contiguous(array[..., ::-1])
    mx.eval(whole)
    return whole[..., ::-1]


_LAYOUTS = {
    "guarded": _guarded,
    "columns of a wider one": _columns,
    "rows of a longer one": _rows,
    "every other column": _every_other_column,
    "every third row": _every_third_row,
    "transposed": _transposed,
    "reversed": _reversed,
}
NAMES = tuple(_LAYOUTS)


def view(array: mx.array, layout: str) -> mx.array:
    result = _LAYOUTS[layout](array)
    mx.eval(result)
    return result


def views(array: mx.array) -> Iterator[tuple[str, mx.array]]:
    return ((layout, view(array, layout)) for layout in NAMES)


def broadcast(array: mx.array) -> tuple[mx.array, mx.array]:
    """The first row everywhere: a contiguous array, and one of stride 0."""
    first = array[:1]
    mx.eval(first)
    view = mx.broadcast_to(first, array.shape)
    same = mx.contiguous(mx.concatenate([first] * array.shape[0], 0))
    mx.eval(view, same)
    return same, view
