"""patch, unpatch and patched: what is swapped, for how long, and the exact way back."""

import copy
import gc
import pickle
import threading
import weakref

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten
from tiny_models import VOCABULARY, TinyModel, state_of, tiny_llama

import mlx_tensorops as mto
from mlx_tensorops.patch import PatchWarning

TOKENS = mx.array([[3, 1, 4, 1, 5]])


@pytest.fixture(autouse=True)
def _fresh_counts():
    mto.reset_report()
    yield
    assert nn.QuantizedLinear.__call__.__module__ == "mlx.nn.layers.quantized"


def fused_calls() -> int:
    return mto.report().total_fused


def is_patched(module: nn.Module) -> bool:
    return type(module) not in (nn.QuantizedLinear, nn.QuantizedEmbedding)


def test_patch_routes_and_unpatch_restores_exactly():
    model = TinyModel()
    before, arrays = state_of(model), dict(tree_flatten(model))
    expected = model(TOKENS)

    mto.patch(model)
    assert isinstance(model.embedding, nn.QuantizedEmbedding) and is_patched(model.embedding)
    assert isinstance(model.layers[0], nn.QuantizedLinear) and is_patched(model.layers[0])
    assert mx.allclose(model(TOKENS), expected, atol=1e-4)
    # The embedding twice (look-up and head) and three layers.
    assert fused_calls() == 5

    mto.unpatch(model)
    assert state_of(model) == before
    assert all(array is arrays[name] for name, array in tree_flatten(model))
    assert mx.array_equal(model(TOKENS), expected)
    assert fused_calls() == 5


def test_shared_module_is_handled_once():
    model = TinyModel()
    report = mto.patch(model)
    assert model.layers[0] is model.layers[2]
    assert len(report.modules) == 3
    (shared,) = (row for row in report.modules if row.aliases)
    assert (shared.path, shared.aliases) == ("layers.0", ("layers.2",))
    mto.unpatch(model)
    assert not is_patched(model.layers[0])


def test_patching_twice_patches_once_and_needs_two_unpatches():
    model = TinyModel()
    before = state_of(model)
    mto.patch(model)
    once = [type(module) for module in model.modules()]
    mto.patch(model)
    assert [type(module) for module in model.modules()] == once
    model(TOKENS)
    assert fused_calls() == 5
    mto.unpatch(model)
    assert is_patched(model.embedding)
    mto.unpatch(model)
    assert state_of(model) == before
    mto.unpatch(model)
    assert state_of(model) == before


def test_module_shared_by_two_models_stays_until_both_let_go():
    one, other = TinyModel(), TinyModel()
    other.layers[1] = one.layers[1]
    mto.patch(one)
    mto.patch(other)
    mto.unpatch(one)
    assert is_patched(one.layers[1]) and not is_patched(one.layers[0])
    mto.unpatch(other)
    assert not is_patched(one.layers[1])


def test_nested_scopes_of_model_and_part():
    model = TinyModel()
    with mto.patched(model.layers[0]), mto.patched(model):
        assert is_patched(model.layers[0]) and is_patched(model.embedding)
    assert not is_patched(model.layers[0])
    with mto.patched(model) as same:
        assert same is model
        with mto.patched(model):
            pass
        assert is_patched(model.layers[0])


def test_root_module_itself():
    layer = nn.QuantizedLinear(64, 32)
    (row,) = mto.patch(layer).modules
    assert row.path == "(root)"
    mto.unpatch(layer)
    assert type(layer) is nn.QuantizedLinear


def test_exception_inside_patched_undoes():
    model = TinyModel()
    before = state_of(model)
    with pytest.raises(KeyError, match="mine"), mto.patched(model):
        assert is_patched(model.embedding)
        raise KeyError("mine")
    assert state_of(model) == before


def test_modules_that_left_the_model_are_restored():
    model = TinyModel()
    with mto.patched(model):
        removed = model.layers.pop(1)
        assert is_patched(removed)
    assert type(removed) is nn.QuantizedLinear


def test_unpatch_of_a_part_warns_and_leaves_it():
    model = TinyModel()
    with mto.patched(model):
        with pytest.warns(PatchWarning, match=r"\[unpatch\] model must be the module that patch"):
            mto.unpatch(model.layers[0])
        assert is_patched(model.layers[0])
    assert not is_patched(model.layers[0])


def test_class_changed_by_somebody_else_is_left_alone():
    class Theirs(nn.QuantizedLinear):
        pass

    model = TinyModel()
    mto.patch(model)
    model.layers[1].__class__ = Theirs
    with pytest.warns(PatchWarning, match=r"layers.1 \(now a Theirs\) changed after"):
        mto.unpatch(model)
    assert type(model.layers[1]) is Theirs and not is_patched(model.layers[0])


class Subclass(nn.QuantizedLinear):
    def __call__(self, x):
        return 2 * super().__call__(x)


class Packed(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = mx.zeros((4, 8), mx.uint32)


def test_other_quantized_classes_are_left_alone_and_listed():
    model = TinyModel()
    model.subclass, model.packed, model.both = Subclass(64, 64), Packed(), nn.QQLinear(64, 64)
    report = mto.patch(model)
    assert {(row.path, row.class_name, row.reason) for row in report.left_alone} == {
        ("subclass", "Subclass", "a subclass of nn.QuantizedLinear keeps its own code"),
        ("packed", "Packed", "no patch for this class"),
        ("both", "QQLinear", "no patch for this class"),
    }
    assert type(model.subclass) is Subclass
    model.subclass(mx.ones((1, 64)))
    assert fused_calls() == 0
    mto.unpatch(model)
    assert {row.path for row in mto.report().left_alone} == {"subclass", "packed", "both"}


def test_strict_refuses_before_anything_changes():
    model = TinyModel()
    model.subclass = Subclass(64, 64)
    before = state_of(model)
    with pytest.raises(ValueError, match=r"\[patch\] model must have no module .* got 1"):
        mto.patch(model, strict=True)
    assert state_of(model) == before
    del model.subclass
    with mto.patched(model, strict=True):
        assert is_patched(model.embedding)


def test_nothing_to_patch():
    model = nn.Linear(4, 4)
    with pytest.warns(PatchWarning, match=r"\[patch\] model must hold .* got none"):
        mto.patch(model)
    mto.unpatch(model)
    with pytest.raises(ValueError, match=r"\[patch\] model must hold .* got none"):
        mto.patch(model, strict=True)


@pytest.mark.parametrize("model", [7, "model", TinyModel], ids=repr)
def test_model_must_be_a_module(model):
    with pytest.raises(ValueError, match=r"\[patch\] model must be an mlx.nn.Module, got"):
        mto.patch(model)


def test_strict_needs_a_model():
    with pytest.raises(ValueError, match=r"\[patch\] strict must be False without a model"):
        mto.patch(strict=True)


def test_process_wide_patch_reaches_every_exact_module():
    old, methods = TinyModel(), dict(vars(nn.QuantizedEmbedding))
    subclass = Subclass(64, 64)
    expected = old(TOKENS)
    mto.patch()
    new = TinyModel()
    assert mx.allclose(old(TOKENS), expected, atol=1e-4)
    new(TOKENS)
    assert fused_calls() == 10
    x = mx.ones((1, 64))
    assert mx.allclose(subclass(x), 2 * nn.QuantizedLinear.__call__(subclass, x))
    assert fused_calls() == 10
    mto.unpatch()
    assert dict(vars(nn.QuantizedEmbedding)) == methods
    old(TOKENS)
    assert fused_calls() == 10


def test_process_wide_patch_nests_and_combines_with_a_model():
    model = TinyModel()
    with mto.patched(), mto.patched(), mto.patched(model):
        model(TOKENS)
        assert fused_calls() == 5
    assert mto.report().total_fallbacks == 0
    model(TOKENS)
    assert fused_calls() == 5


def test_process_wide_method_replaced_since_is_left_alone():
    def theirs(self, x):
        return x

    original = nn.QuantizedLinear.__call__
    mto.patch()
    nn.QuantizedLinear.__call__ = theirs
    with pytest.warns(PatchWarning, match=r"QuantizedLinear.__call__ changed after patch"):
        mto.unpatch()
    assert nn.QuantizedLinear.__call__ is theirs
    nn.QuantizedLinear.__call__ = original


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_are_plain_modules(protocol):
    model = TinyModel()
    expected = model(TOKENS)
    with mto.patched(model):
        data = pickle.dumps(model, protocol)
    assert b"mlx_tensorops" not in data
    loaded = pickle.loads(data)
    assert [entry[1] for entry in state_of(loaded)] == [entry[1] for entry in state_of(model)]
    assert mx.array_equal(loaded(TOKENS), expected)


@pytest.mark.parametrize("copier", [copy.deepcopy, copy.copy], ids=["deepcopy", "copy"])
def test_copies_are_plain_modules(copier):
    layer = TinyModel()
    expected = layer(TOKENS)
    with mto.patched(layer):
        part = copier(layer.layers[0])
        whole = copy.deepcopy(layer)
        created = type(layer.layers[0]).from_linear(nn.Linear(64, 64), bits=8)
    assert type(part) is type(created) is type(whole.layers[0]) is nn.QuantizedLinear
    assert vars(part) == vars(layer.layers[0])
    assert whole.layers[0] is whole.layers[2]
    assert mx.array_equal(whole(TOKENS), expected)
    mto.patch(whole)
    mto.unpatch(whole)


def test_model_is_not_kept_alive():
    model = TinyModel()
    mto.patch(model)
    model(TOKENS)
    gone = weakref.ref(model.layers[0])
    del model
    gc.collect()
    assert gone() is None
    assert fused_calls() == 5
    with mto.patched(TinyModel()):
        mto.reset_report()
        assert {row.fused for row in mto.report().modules} == {0}
    mto.reset_report()
    assert mto.report().modules == ()


def test_module_behaves_as_before_while_patched(tmp_path):
    model, reloaded = tiny_llama(), tiny_llama(seed=1)
    text = repr(model)
    names = [name for name, _ in tree_flatten(model.parameters())]
    with mto.patched(model), mto.patched(reloaded):
        assert repr(model) == text
        assert [name for name, _ in tree_flatten(model.parameters())] == names
        assert dict(tree_flatten(model.trainable_parameters())).keys() == {
            name for name in names if name.endswith("norm.weight")
        }
        model.freeze()
        assert not tree_flatten(model.trainable_parameters())
        model.train()
        assert model.layers[0].self_attn.q_proj.training
        model.eval()
        assert not model.layers[0].self_attn.q_proj.training
        model.save_weights(str(tmp_path / "weights.safetensors"))
        reloaded.load_weights(str(tmp_path / "weights.safetensors"))
        assert mx.array_equal(reloaded(TOKENS), model(TOKENS))
        model.set_dtype(mx.float16)
        assert model(TOKENS).dtype == mx.float16
    assert mto.report().total_fallbacks == 0


def test_threads_share_a_patched_model():
    model = TinyModel()
    expected = model(TOKENS)
    # An array that is still a graph can only be evaluated by the thread of its stream.
    mx.eval(model.parameters(), expected, TOKENS)
    n_threads, n_calls, failures = 4, 25, []

    def run():
        with mx.stream(mx.new_stream(mx.cpu)):
            for _ in range(n_calls):
                if not mx.allclose(model(TOKENS), expected, atol=1e-4):
                    failures.append(threading.get_ident())

    with mto.patched(model):
        threads = [threading.Thread(target=run) for _ in range(n_threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures
    assert fused_calls() == n_threads * n_calls * 5


def test_patching_while_other_threads_run():
    model = TinyModel()
    before, expected = state_of(model), model(TOKENS)
    mx.eval(model.parameters(), expected, TOKENS)
    stop, failures = threading.Event(), []

    def run():
        with mx.stream(mx.new_stream(mx.cpu)):
            while not stop.is_set():
                try:
                    if not mx.allclose(model(TOKENS), expected, atol=1e-4):
                        failures.append("other values")
                except Exception as error:
                    failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(100):
        with mto.patched(model):
            pass
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures
    assert state_of(model) == before


def test_vocabulary_of_the_tiny_models():
    assert TinyModel().embedding.num_embeddings == tiny_llama().args.vocab_size == VOCABULARY
