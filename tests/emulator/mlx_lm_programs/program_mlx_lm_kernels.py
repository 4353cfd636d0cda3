"""Values of those kernels of mlx-lm that its own tests never evaluate, or never reach.

Run by test_mlx_lm_kernels.py, in a process that believes in Metal.
"""

import mlx.core as mx
import pytest
from mlx_lm.models import bitlinear_layers, gated_delta, kimi_k3, rwkv7

KIMI_K3 = {
    "model_type": "kimi_k3",
    "text_config": {
        "model_type": "kimi_linear",
        "vocab_size": 100,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "intermediate_size": 96,
        "rms_norm_eps": 1e-5,
        "hidden_act": "situ",
        "activation_situ_beta": 4.0,
        "activation_situ_linear_beta": 25.0,
        "linear_attn_config": {
            "kda_layers": [1],
            "full_attn_layers": [2],
            "num_heads": 2,
            "head_dim": 32,
            "short_conv_kernel_size": 4,
            "gate_lower_bound": -5.0,
            "use_full_rank_gate": True,
        },
        "num_experts": 8,
        "moe_intermediate_size": 32,
        "q_lora_rank": 24,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
        "mla_use_nope": True,
        "mla_use_output_gate": True,
        "num_experts_per_token": 2,
        "num_shared_experts": 1,
        "first_k_dense_replace": 1,
        "routed_expert_hidden_size": 32,
        "latent_moe_use_norm": True,
        "attn_res_block_size": 1,
    },
}


@pytest.fixture(autouse=True)
def _seeded():
    mx.random.seed(5)


@pytest.mark.parametrize("invert", [False, True])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=str)
def test_bitlinear(dtype, invert):
    n_in, n_out = 256, 24
    layer = bitlinear_layers.BitLinear(n_in, n_out, invert_weight_scales=invert)
    codes = mx.random.randint(0, 3, (4, n_out // 4, n_in)).astype(mx.uint8)
    layer.weight = codes[0] | codes[1] << 2 | codes[2] << 4 | codes[3] << 6
    layer.weight_scale = mx.array([0.37]).astype(dtype)
    layer.bias = mx.random.normal((n_out,)).astype(dtype)
    x = mx.random.normal((2, 5, n_in)).astype(dtype)

    ternary = codes.reshape(n_out, n_in).astype(mx.float32) - 1
    scale = layer.weight_scale.astype(mx.float32)
    product = (x.astype(mx.float32) @ ternary.T) * (1 / scale if invert else scale)
    expected = product.astype(dtype) + layer.bias
    y = layer(x)
    assert y.dtype == dtype
    tolerance = 1e-4 if dtype == mx.float32 else 3e-2
    assert mx.allclose(y, expected, rtol=tolerance, atol=tolerance)


def test_rwkv7():
    shape = (2, 7, 3, 64)
    r, k, v, a, b = (0.2 * mx.random.normal(shape) for _ in range(5))
    w = mx.random.uniform(0.5, 1.0, shape)
    state = mx.random.normal((2, 3, 64, 64))
    y, last = rwkv7.wkv7_kernel(r, w, k, v, a, b, state)
    for t in range(shape[1]):
        step = [array[:, t] for array in (r, w, k, v, a, b)]
        expected, state = rwkv7._wkv7_step_ops(*step, state)
        assert mx.allclose(y[:, t], expected.squeeze(-1), atol=1e-4)
    assert mx.allclose(last, state, atol=1e-4)


def test_gated_delta_with_a_vector_gate_and_a_mask():
    B, T, Hk, Hv, D = 2, 9, 2, 4, 64
    q, k = (D**-0.5 * mx.random.normal((B, T, Hk, D)) for _ in range(2))
    v = mx.random.normal((B, T, Hv, D))
    g = mx.random.uniform(0.8, 1.0, (B, T, Hv, D))
    beta = mx.random.uniform(shape=(B, T, Hv))
    state = mx.random.normal((B, Hv, D, D))
    mask = mx.arange(T)[None] < mx.array([[9], [5]])
    y, last = gated_delta.gated_delta_kernel(q, k, v, g, beta, state, mask)
    expected, expected_last = gated_delta.gated_delta_ops(q, k, v, g, beta, state, mask)
    valid = mask[..., None, None]
    assert mx.allclose(mx.where(valid, y, 0), mx.where(valid, expected, 0), atol=1e-4)
    assert mx.allclose(last, expected_last, atol=1e-4)


def test_gated_delta_sums_in_one_order():
    """What test_gated_delta.py asserts at sizes that take minutes: three kernels, the same bits."""
    B, T, Hk, Hv, D, Dv = 1, 5, 1, 2, 128, 16
    q, k = (D**-0.5 * mx.random.normal((B, T, Hk, D)) for _ in range(2))
    v = mx.random.normal((B, T, Hv, Dv))
    g = mx.random.uniform(0.8, 1.0, (B, T, Hv))
    arguments = [q, k, v, g, mx.random.uniform(shape=(B, T, Hv)), mx.random.normal((B, Hv, Dv, D))]
    packed = gated_delta.gated_delta_kernel(*arguments)
    for kernel in (gated_delta.gated_delta_kernel_xtree, gated_delta.gated_delta_kernel_unpacked):
        for ours, theirs in zip(packed, kernel(*arguments), strict=True):
            assert mx.array_equal(ours, theirs)


def test_kimi_k3_with_kernels_inside_compiled_functions(monkeypatch):
    model = kimi_k3.Model(kimi_k3.ModelArgs.from_dict(KIMI_K3))
    model.eval()
    tokens = mx.random.randint(0, 100, (2, 6))
    forward = model(tokens)
    cache = model.make_cache()
    steps = mx.concatenate([model(tokens[:, i : i + 1], cache) for i in range(6)], axis=1)
    assert mx.allclose(steps, forward, atol=1e-4)
    monkeypatch.setattr(mx.metal, "is_available", lambda: False)
    monkeypatch.setattr(kimi_k3, "_attn_res_kernel", None)
    without_kernels = model(tokens)
    assert mx.allclose(forward, without_kernels, atol=1e-4)
    assert mx.std(forward).item() > 0.01
