"""Faults for Metal kernels that only large problems show, and operands of calls of them."""

import mlx.core as mx


def replaced(text, with_text):
    """Plants a fault in whatever kernel has the text."""

    def edit(source):
        changed = source.replace(text, with_text)
        assert changed != source, f"no kernel has {text}"
        return changed

    return edit


# Right for the first 512 rows or columns, or the first 1024 of the inner axis; wrong beyond.
WRONG_ROWS = replaced("scale, bias));", "scale, bias) + (i >= 512 * 2048 / 8 ? 1.0f : 0.0f));")
WRONG_CODES = replaced(
    "if (!live) return;", "if (i >= 512 * 2048 / 8) run ^= 1; if (!live) return;"
)
WRONG_COLUMNS = replaced("sums[r] = Columns(0.0f);", "sums[r] = Columns(col >= 512 ? 1.0f : 0.0f);")
WRONG_DEPTH = replaced("n_steps = k / kStep;", "n_steps = k / kStep < 32 ? k / kStep : 32;")


def only_backward(source):
    """The product with the matrix as it is, not transposed, is wrong."""
    return source.replace("= Bundle(0.0f);", "= Bundle(group.x > 3 ? 1.0f : 0.0f);")


W = mx.random.normal((8, 512), key=mx.random.key(1))
PACKED = mx.quantize(W)
X = mx.random.normal((40, 512), key=mx.random.key(2))


def same(ours, theirs):
    return all(mx.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))
