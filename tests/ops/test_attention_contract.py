"""scaled_dot_product_attention: what it refuses."""

import mlx.core as mx
import pytest
from attention_ops import operands

import mlx_tensorops as mto

attend = mto.scaled_dot_product_attention

KERNELS = ("cpu", "metal")

Q, K, V = mx.zeros((2, 4, 3, 8)), mx.zeros((2, 2, 5, 8)), mx.zeros((2, 2, 5, 6))
GOOD = {"q": Q, "k": K, "v": V, "scale": 1.0}
IDS = mx.zeros((2, 3), mx.int32)
BAD_INPUTS = {
    "q of 3 dimensions": ({"q": Q[0]}, "q must have 4 dimensions, got shape (4, 3, 8)."),
    "k of 5 dimensions": (
        {"k": K[None]},
        "k must have 4 dimensions, got shape (1, 2, 2, 5, 8).",
    ),
    "integers": (
        {"q": Q.astype(mx.int32), "k": K.astype(mx.int32), "v": V.astype(mx.int32)},
        "q, k and v must have a floating result type, got int32.",
    ),
    "complex": (
        {"q": Q.astype(mx.complex64)},
        "q, k and v must have a floating result type, got complex64.",
    ),
    "batch of k": (
        {"k": K[:1]},
        "k must have the batch size of q 2, got shape (1, 2, 5, 8).",
    ),
    "width of k": (
        {"k": K[..., :4]},
        "k must have the last dimension of q 8, got shape (2, 2, 5, 4).",
    ),
    "heads of v": (
        {"v": V[:, :1]},
        "v must have the number of heads of k 2, got shape (2, 1, 5, 6).",
    ),
    "length of v": (
        {"v": V[:, :, :4]},
        "v must have the number of keys 5, got shape (2, 2, 4, 6).",
    ),
    "heads of q": (
        {"q": Q[:, :3]},
        "q must have a multiple of the 2 heads of k, got shape (2, 3, 3, 8).",
    ),
    "no heads of k": (
        {"k": K[:, :0], "v": V[:, :0]},
        "q must have a multiple of the 0 heads of k, got shape (2, 4, 3, 8).",
    ),
    "unknown mask": ({"mask": "full"}, 'mask must be "causal" or an array, got "full".'),
    "complex mask": (
        {"mask": mx.zeros((3, 5), mx.complex64)},
        "mask must be real, got complex64.",
    ),
    "mask of kv heads": (
        {"mask": mx.zeros((2, 2, 3, 5))},
        "mask must broadcast to [B, Hq, Lq, Lk] (2, 4, 3, 5), got shape (2, 2, 3, 5).",
    ),
    "mask of 5 dimensions": (
        {"mask": mx.zeros((1, 1, 1, 3, 5))},
        "mask must broadcast to [B, Hq, Lq, Lk] (2, 4, 3, 5), got shape (1, 1, 1, 3, 5).",
    ),
    "no window": ({"window": 0}, "window must be at least 1, got 0."),
    "negative limit": ({"window": (-1, 2)}, "window must have limits of at least 0, got -1."),
    "no softcap": (
        {"softcap": 0.0},
        "softcap must be positive and finite in float32, got 0.",
    ),
    "softcap that rounds to nothing": (
        {"softcap": 1e-46},
        "softcap must be positive and finite in float32, got 1e-46.",
    ),
    "endless softcap": (
        {"softcap": float("inf")},
        "softcap must be positive and finite in float32, got inf.",
    ),
    "slopes": (
        {"alibi": mx.zeros((2,))},
        "alibi must have one value a query head, shape (4,), got shape (2,).",
    ),
    "sinks": (
        {"sinks": mx.zeros((4, 1))},
        "sinks must have one value a query head, shape (4,), got shape (4, 1).",
    ),
    "complex sinks": (
        {"sinks": mx.zeros((4,), mx.complex64)},
        "sinks must be real, got complex64.",
    ),
    "one array of segments": (
        {"segment_ids": IDS},
        "segment_ids must be a pair where Lq and Lk differ, got one array with Lq 3 and Lk 5.",
    ),
    "segments of keys": (
        {"segment_ids": (IDS, IDS)},
        "segment_ids must have shape (2, 5) for the keys, got shape (2, 3).",
    ),
    "segments of floats": (
        {"segment_ids": (IDS.astype(mx.float32), IDS)},
        "segment_ids must have an integer dtype, got float32.",
    ),
    "documents of a batch": (
        {"cu_seqlens": mx.array([0, 3])},
        "q must have batch size 1 where cu_seqlens is given, got shape (2, 4, 3, 8).",
    ),
    "documents and segments": (
        {"cu_seqlens": mx.array([0, 3]), "segment_ids": (IDS, IDS)},
        "segment_ids must be None where cu_seqlens is given, got both.",
    ),
    "no block size": (
        {"block_mask": mx.ones((1, 1), mx.bool_)},
        "block_size must be given with block_mask, got None.",
    ),
    "only a block size": (
        {"block_size": (8, 8)},
        "block_size must be None without block_mask, got a pair.",
    ),
    "empty blocks": (
        {"block_mask": mx.ones((1, 1), mx.bool_), "block_size": (8, 0)},
        "block_size must be at least 1, got 0.",
    ),
    "too many blocks": (
        {"block_mask": mx.ones((1, 3), mx.bool_), "block_size": (8, 4)},
        "block_mask must broadcast to [B, Hq, blocks, blocks] (2, 4, 1, 2), got shape (1, 3).",
    ),
    "blocks of floats": (
        {"block_mask": mx.ones((1, 1)), "block_size": (8, 8)},
        "block_mask must have dtype bool, got float32.",
    ),
    "precision": ({"precision": "bf16"}, 'precision must be None or "tf32", got "bf16".'),
    "route": ({"route": "best"}, 'route must be "ours", "mlx" or "auto", got "best".'),
    "forced to MLX": (
        {"route": "mlx", "force_fused": True},
        'route must be "ours" or "auto" where force_fused is set, got "mlx".',
    ),
    "wide heads, forced": (
        {"q": mx.zeros((1, 1, 1, 600)), "k": mx.zeros((1, 1, 1, 600)), "v": mx.zeros((1, 1, 1, 8))}
        | {"force_fused": True},
        "force_fused must be False where no kernel of this package covers the call, got head"
        " dimension 600.",
    ),
}


@pytest.mark.parametrize("name", BAD_INPUTS)
def test_bad_input(name):
    changes, message = BAD_INPUTS[name]
    with pytest.raises(ValueError) as error:
        attend(**(GOOD | changes))
    assert str(error.value) == f"[scaled_dot_product_attention] {message}"


ONE = {"q": Q[:1], "k": K[:1], "v": V[:1]}
BAD_DOCUMENTS = {
    "a matrix": (
        mx.zeros((1, 2), mx.int32),
        "have shape (n + 1,) for n documents, got shape (1, 2)",
    ),
    "nothing": (mx.zeros((0,), mx.int32), "have shape (n + 1,) for n documents, got shape (0,)"),
    "two counts": (
        (mx.array([0, 3]), mx.array([0, 2, 5])),
        "have as many documents for queries as for keys, got (2,) and (3,)",
    ),
    "floats": (mx.array([0.0, 3.0]), "have an integer dtype, got float32"),
}


@pytest.mark.parametrize("name", BAD_DOCUMENTS)
def test_bad_documents(name):
    value, rule = BAD_DOCUMENTS[name]
    with pytest.raises(ValueError) as error:
        attend(**(GOOD | ONE | {"cu_seqlens": value}))
    assert str(error.value) == f"[scaled_dot_product_attention] cu_seqlens must {rule}."


def test_checked_documents_are_an_error(monkeypatch):
    """MLX_TENSOROPS_CHECK=1 names the value; the stream goes on as if nothing had been."""
    q, k, v = operands(1, 5, 5, batch=1)
    monkeypatch.setenv("MLX_TENSOROPS_CHECK", "1")
    bad = attend(q, k, v, scale=1.0, cu_seqlens=mx.array([0, 4, 3]), stream=mx.cpu)
    message = r"\[scaled_dot_product_attention\] cu_seqlens must rise from 0 or more to at most 5, "
    with pytest.raises(ValueError, match=message + "got 3 at position 2."):
        mx.eval(bad)
    with pytest.raises(ValueError, match=message):
        mx.eval(bad)
    assert mx.add(1, 1, stream=mx.cpu).item() == 2
    good = attend(q, k, v, scale=1.0, cu_seqlens=mx.array([0, 3, 5]), stream=mx.cpu)
    assert mx.isfinite(good).all().item()


def test_without_heads():
    q = mx.zeros((2, 0, 5, 64))
    packed = [mx.zeros((2, 0, 5, n), dtype) for n, dtype in ((16, mx.uint32), (1, q.dtype))]
    packed = (*packed, packed[1])
    out, lse = mto.scaled_dot_product_attention(q, q, q, scale=1.0, return_lse=True)
    assert out.shape == q.shape and lse.shape == (2, 0, 5)
    mx.eval(out, lse)
    out = mto.quantized_scaled_dot_product_attention(q, packed, packed, 1.0)
    mx.eval(out)
    gradient = mx.grad(lambda q: mto.scaled_dot_product_attention(q, q, q, scale=1.0).sum())(q)
    assert out.shape == q.shape and gradient.shape == q.shape
    mx.eval(gradient)


def test_pairs_are_pairs():
    q = mx.zeros((1, 1, 4, 64))
    packed = mto.quantize(q, 64, 8)
    with pytest.raises(ValueError, match="bits must be a value or a pair of them, got"):
        mto.quantized_scaled_dot_product_attention(q, packed, packed, 1.0, bits=(8, 8, 8))
    with pytest.raises(ValueError, match=r"k_quantized must be \(w, scales, biases\), got array"):
        mto.quantized_scaled_dot_product_attention(q, q, packed, 1.0)
    with pytest.raises(ValueError, match="outs must be a list of arrays, got one array"):
        mto.merge_attention(q, q[..., 0])
