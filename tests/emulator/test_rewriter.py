"""The rewriter by itself: text in, text out. What the text means is for the tests that compile."""

import re

import pytest

from mlx_tensorops.testing.emulator.rewriter import RewriteError, rewrite

ADAPTERS = '\n# 1 "<kernel adapters>"\n'


def rewritten(text, **instantiations):
    return rewrite(text, instantiations)


def body(text):
    """The rewritten text without adapters, white space made uniform."""
    out = rewrite(text).text.split(ADAPTERS)[0]
    return re.sub(r"\s+", " ", out).strip()


def test_plain_text_is_kept_to_the_letter():
    text = (
        '# 1 "a.metal"\nint f(int x) { return x >> 2 >= 3 ? a[b[x]] : \'"\'; }\n'
        '#pragma unroll\nfloat s = 1.0f, t = 0x1p-3f, u = 1e+5f;\nauto c = "[[not one]]";\n'
    )
    assert rewrite(text).text.split(ADAPTERS)[0] == text


def test_lines_stay_where_they_are():
    text = (
        '# 1 "a.metal"\n[[max_total_threads_per_threadgroup(\n64)]]\nkernel void f(\n'
        " device float* x [[\n buffer(0)]]) {\n threadgroup float\n a[2],\n b;\n}\nint last;\n"
    )
    lines = text.splitlines()
    out = rewrite(text).text.split(ADAPTERS)[0].splitlines()
    assert len(out) == len(lines)
    assert out[-1] == lines[-1]


def test_headers_of_the_system_are_left_alone():
    header = "struct A { int f() device; int f() thread; };\nkernel void g(texture2d t);\n"
    text = f'# 1 "k.metal"\n# 1 "/usr/metal_stdlib" 1 3\n{header}# 2 "k.metal" 2\nint x;\n'
    result = rewrite(text)
    assert header in result.text
    assert result.instances == ()


@pytest.mark.parametrize(
    ("literal", "expected"),
    [
        ("1.5h", "1.5f16"),
        ("1.5H", "1.5f16"),
        (".5e-3h", ".5e-3f16"),
        ("1h", "1.0f16"),
        ("0x1.8p+1h", "0x1.8p+1f16"),
        ("1.5bf", "::bfloat(1.5f)"),
        ("2.e1BF", "::bfloat(2.e1f)"),
        ("3bf", "::bfloat(3.0f)"),
        ("0x1.8p1bf", "::bfloat(0x1.8p1f)"),
        ("0x1bf", "0x1bf"),
        ("0xFFBF", "0xFFBF"),
        ("1.5f", "1.5f"),
        ("12u", "12u"),
        ("12L", "12L"),
        ("0x1e5l", "0x1e5l"),
    ],
)
def test_literals_of_16_bit_types(literal, expected):
    assert body(f"auto x = -{literal};") == f"auto x = -{expected};"


@pytest.mark.parametrize(
    ("text", "needed"),
    [
        ("kernel void f(device int* y) { y[0] = a; }", (1,)),
        ("int g() { return a; } kernel void f(device int* y) { y[0] = g(); }", (1,)),
        ("int g() { return a; } kernel void f(device int* y) { y[0] = 2; }", ()),
        (
            "struct S { int g() { return b; } }; kernel void f(device int* y) { y[0] = S().g(); }",
            (2,),
        ),
        ("struct S { int b; }; kernel void f(device int* y, constant S& s) { y[0] = s.b; }", ()),
        (
            "struct S { int g() { return a; } }; struct T { int g() { return 1; } };"
            " kernel void f(device int* y) { y[0] = T().g(); }",
            (),
        ),
        ("int g(int a) { return a; } kernel void f(device int* y) { y[0] = g(1); }", ()),
        ("kernel void f(device int* y [[function_constant(a)]]) {}", (1,)),
        ("constant bool c = a && b; kernel void f(device int* y) { if (c) y[0] = 1; }", (1, 2)),
        (
            "constant bool c = is_function_constant_defined(a) ? a : b;"
            " kernel void f(device int* y) { if (c) y[0] = 1; }",
            (2,),
        ),
        ("kernel void f(device int* y) { if (is_function_constant_defined(a)) y[0] = a; }", ()),
        ("using A = X<a>; kernel void f(device int* y) { y[0] = A::value; }", (1,)),
        (
            "constant int a_list[2] = {a, 1}; kernel void f(device int* y) { y[0] = a_list[1]; }",
            (1,),
        ),
    ],
)
def test_function_constants_that_a_kernel_needs(text, needed):
    constants = (
        "constant bool a [[function_constant(1)]]; constant bool b [[function_constant(2)]];"
    )
    (instance,) = rewrite(f"{constants}\n{text}").instances
    assert instance.needed_constants == needed


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("int x = t[i, 0];", "int x = t[emu::subscripts(i, 0)];"),
        ("int x = f(a)[g<1, 2>(), h(3, 4)][5];", None),
        ("int x = t[a[i, 1], b<c][d];", None),
        ("int x = t[f(i, j)] + u[g<1, 2>(x)];", "int x = t[f(i, j)] + u[g<1, 2>(x)];"),
        ("void f() { auto [a, b] = c; g([a, b](int x) { return x; }); }", ""),
        ("void f() { return [a, b](int x) { return x; }; }", ""),
    ],
)
def test_several_indices_become_one(source, expected):
    wrapped = source.replace("[g<1, 2>(), h(3, 4)]", "[emu::subscripts(g<1, 2>(), h(3, 4))]")
    wrapped = wrapped.replace("[a[i, 1], b<c]", "[emu::subscripts(a[emu::subscripts(i, 1)], b<c)]")
    assert body(source) == (wrapped if expected is None else expected or source)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("void f(device int* a, const constant A& b) {}", "void f( int* a, const A& b) {}"),
        ("auto p = (threadgroup float*)q;", "auto p = ( float*)q;"),
        ("void f(constant int& n, constant const A* a) {}", "void f(const int& n, const A* a) {}"),
        ("struct A { int f() constant { return 1; } };", "struct A { int f() { return 1; } };"),
        ("using P = const device vec<T, 4>*;", "using P = const vec<T, 4>*;"),
        ("int x = s.device + t->thread + N::constant;", None),
        ("void f() { thread float x[4]; }", "void f() { float x[4]; }"),
    ],
)
def test_address_spaces_are_erased_where_they_are_keywords(source, expected):
    assert body(source) == (source if expected is None else expected)


def test_overloads_on_the_address_space_of_this_are_merged():
    source = """
        template <typename T> struct A {
          A(T x) thread : v(x) {}
          A(T x) device : v(x) {}
          A(T x) constant : v(x) {}
          template <typename U> explicit A(U u) thread : v{T(u)}, w(1) {}
          template <typename U> explicit A(U u) device : v{T(u)}, w(1) {}
          operator float() const thread { return v; }
          operator float() const constant { return v; }
          T operator()(int i) const device { return v; }
          T operator()(int j) const threadgroup { return v; }
          T v; int w;
        };"""
    assert body(source) == (
        "template <typename T> struct A { A(T x) : v(x) {} "
        "template <typename U> explicit A(U u) : v{T(u)}, w(1) {} "
        "operator float() const { return v; } "
        "T operator()(int i) const { return v; } T v; int w; };"
    )


def test_overloads_on_the_address_space_of_a_parameter_are_merged():
    source = """
        namespace n {
        template <typename T> T load(const device T* p) { return *p; }
        template <typename T> T load(const threadgroup T* q) { return *q; }
        }
        namespace m { template <typename T> T load(const threadgroup T* q) { return *q; } }
        template <typename T> struct pointee<device T*> { using type = T; };
        template <typename T> struct pointee<threadgroup T*> { using type = T; };
        template <typename T> struct pointee<constant T*> { using type = T; };"""
    result = rewrite(source)
    assert body(source).count("load") == 2
    assert body(source).count("pointee") == 2
    assert "pointee<const T*>" in body(source)
    assert len(result.warnings) == 1  # the bodies name their parameters differently
    assert "in more than the address space" in result.warnings[0]


@pytest.mark.parametrize(
    "source",
    [
        "struct A { void f(device int* x) {} void f(device float* x) {} };",
        "struct A { void f(device int* x) {} }; struct B { void f(device int* x) {} };",
        "void f(device int* x) {} void f(device int* x, int n) {}",
        "struct A { int f(device int* x) const {} int f(device int* x) {} };",
        "template <class T> enable_if_t<(T::a > 1), int> f(device T* x) {} "
        "template <class T> enable_if_t<(T::a < 1), int> f(device T* x) {}",
        "void f(unsigned int, device int*) {} void f(unsigned char, device int*) {}",
    ],
)
def test_real_overloads_are_kept(source):
    kept = re.sub(r"\bdevice ?", "", source)
    assert body(source).replace(" ", "") == kept.replace(" ", "")


def test_declared_and_defined_is_no_overload():
    source = "void f(device int* x); void f(device int* x) {}"
    assert body(source).count("void f") == 2


def test_defined_twice_is_left_to_the_compiler():
    source = "void f(device int* x) {} void f(device int* x) {}"
    assert body(source).count("void f") == 2


def test_what_is_dropped_is_dropped_with_its_threadgroup_variables():
    source = "void f(device int* x) {} void f(threadgroup int* x) { threadgroup int y; }"
    assert body(source) == "void f( int* x) {}"


def test_function_constants_are_left_to_the_runtime():
    source = """
        constant bool has_mask [[function_constant(300)]];
        static constant constexpr const int steps [[function_constant(4)]];
        constant int twice = steps * 2;
        constant int blocks = is_function_constant_defined(steps) ? steps : 1;
        constant int plain = 32;
        constant float table[2] = {1, 2};
        constant constexpr int width = 4;
        struct A { static constant constexpr const int n = 2; };"""
    result = rewrite(source)
    assert [(c.index, c.name, c.type) for c in result.constants] == [
        (300, "has_mask", "bool"),
        (4, "steps", "int"),
    ]
    assert body(source) == (
        'bool has_mask ; static emu::FcReg emu_constant_has_mask(300, &has_mask, "has_mask"); '
        'static int steps ; static emu::FcReg emu_constant_steps(4, &steps, "steps"); '
        "int twice = steps * 2; "
        "static emu::DerivedReg emu_derived_twice([] { twice = steps*2; }); "
        "int blocks = emu::fc_defined(&steps) ? steps : 1; static emu::DerivedReg "
        "emu_derived_blocks([] { blocks = emu::fc_defined(&steps)?steps:1; }); "
        "const int plain = 32; const float table[2] = {1, 2}; constexpr int width = 4; "
        "struct A { static constexpr const int n = 2; };"
    )


@pytest.mark.parametrize(
    ("declaration", "variables"),
    [
        ("threadgroup float x;", {"x": "float"}),
        ("threadgroup T x[N][a[b[1]] + 1];", {"x": "T[N][a[b[1]]+1]"}),
        ("threadgroup float a[2], b[3], c;", {"a": "float[2]", "b": "float[3]", "c": "float"}),
        ("threadgroup array<pair<int, T>, 4> x[2];", {"x": "array<pair<int,T>,4>[2]"}),
        ("alignas(16) threadgroup half x[4];", {"x": "half[4]"}),
        ("threadgroup alignas(16) half x[4];", {"x": "half[4]"}),
        ("threadgroup typename A::type x[2];", {"x": "typename A::type[2]"}),
        ("threadgroup unsigned int x;", {"x": "unsigned int"}),
    ],
)
def test_threadgroup_variables_come_from_the_runtime(declaration, variables):
    out = body(f"void f() {{ {declaration} }}")
    found = dict(re.findall(r"using emu_type_(\w+) = ([^;]*);", out))
    assert {name: kind.replace(", ", ",") for name, kind in found.items()} == variables
    for name in variables:
        assert f'emu::tg_variable(&emu_key_{name}, sizeof(emu_type_{name}), "{name}")' in out
    assert "threadgroup" not in out and "alignas" not in out


@pytest.mark.parametrize(
    "statement",
    [
        "threadgroup float* p = x;",
        "threadgroup const T& r = x[0];",
        "threadgroup float *p, *q;",
        "f((threadgroup float*)x);",
    ],
)
def test_pointers_into_threadgroup_memory_are_plain_variables(statement):
    source = f"void f() {{ {statement} }}"
    assert body(source).replace(" ", "") == source.replace("threadgroup ", "").replace(" ", "")


def test_kernels_become_launchable():
    source = """
        template <typename T, int N = (3 > 2)>
        [[kernel, max_total_threads_per_threadgroup(64)]] void scale(
            const device T* in, device T* out [[buffer(0)]], constant int& n [[buffer(2)]],
            const constant int64_t strides[2],
            const device T* mask [[buffer(7), function_constant(m)]],
            threadgroup float* shared [[threadgroup(1)]],
            uint3 tid [[threadgroup_position_in_grid]], ushort2 size [[threads_per_grid]],
            uint i [[thread_position_in_grid]],
            uint lane [[thread_index_in_simdgroup]]) {}
        template [[host_name("scale_f")]] [[kernel]] decltype(scale<float, 4>) scale<float, 4>;
        template [[host_name("scale_h")]] [[kernel]] void scale<half>(
            const device half*, device half* [[buffer(0)]]);
        namespace inner { kernel void plain(device atomic<int>* x) {} }"""
    result = rewritten(source, given="scale<int, 1>")
    names = {instance.host_name: instance.function for instance in result.instances}
    assert names == {
        "scale_f": "scale<float,4>",
        "scale_h": "scale<half>",
        "plain": "inner::plain",
        "given": "scale<int, 1>",
    }
    first = result.instances[0]
    assert "constexpr int emu_limit_" in result.text
    assert [(a.kind, a.index, a.name, a.writable, a.optional) for a in first.arguments] == [
        ("buffer", 1, "in", False, False),
        ("buffer", 0, "out", True, False),
        ("buffer", 2, "n", False, False),
        ("buffer", 3, "strides", False, False),
        ("buffer", 7, "mask", False, True),
        ("threadgroup", 1, "shared", True, False),
    ]
    adapters = result.text.split(ADAPTERS)[1]
    assert (
        "scale<float,4>(emu::ArgPtr{bindings[1]}, emu::ArgPtr{bindings[0]}, "
        "emu::ArgRef{bindings[2]}, emu::ArgPtr{bindings[3]}, emu::ArgPtr{bindings[7]}, "
        "emu::ArgThreadgroup{1}, uint3(emu::input::threadgroup_position_in_grid(0), "
        "emu::input::threadgroup_position_in_grid(1), "
        "emu::input::threadgroup_position_in_grid(2)), "
        "ushort2(emu::input::threads_per_grid(0), emu::input::threads_per_grid(1)), "
        "uint(emu::input::thread_position_in_grid(0)), emu::input::thread_index_in_simdgroup());"
    ) in adapters
    assert 'emu_register_2("plain", emu_kernel_2)' in adapters
    assert "[[" not in result.text and "kernel void" not in result.text


K = '# 7 "k.metal"\n'


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            K + "kernel void f(texture2d<float> t [[texture(0)]]) {}",
            "k.metal:7: kernel f: [[texture]]",
        ),
        (
            K + "kernel void f(Big x [[buffer(0)]]) {}",
            "parameter Big x[[buffer(0)]] must be a pointer",
        ),
        (K + "kernel void f(uint3 i [[thread_index_in_simdgroup]]) {}", "cannot be of type uint3"),
        (K + "kernel void f(float i [[thread_position_in_grid]]) {}", "cannot be of type float"),
        (K + "kernel void f(device int* x [[buffer(31)]]) {}", "must be below 31, got 31"),
        (K + "[[vertex]] float4 f() { return 0; }", "k.metal:7: [[vertex]] functions"),
        (K + "void f() { threadgroup float x = 1; }", "k.metal:7: a threadgroup variable cannot"),
        (K + "constant int x [[function_constant(N)]];", "k.metal:7: [[function_constant(N)]]"),
        (K + "void f() { g(1]; }", "k.metal:7: ']' does not close the '(' of line 7"),
        (K + "\nvoid f() { ", "k.metal:8: '{' is never closed"),
        (K + "void f() } ", "k.metal:7: '}' closes nothing"),
        (K + "void f(threadgroup_imageblock int* x) {}", "threadgroup_imageblock is not supported"),
        (K + "void f() { auto x = double(1); }", "k.metal:7: Metal has no double"),
        (K + "void f() { auto x = 1.5L; }", "k.metal:7: Metal has no double"),
        (K + "void f() { auto x = 1e3l; }", "k.metal:7: Metal has no double"),
        (K + "void f(long double x) {}", "k.metal:7: Metal has no double"),
        (
            K + "template <int N> kernel void f() {}"
            'template [[host_name("a")]] [[kernel]] decltype(f<1>) f<1>;'
            'template [[host_name("a")]] [[kernel]] decltype(f<2>) f<2>;',
            'host_name "a" is given twice',
        ),
    ],
)
def test_what_is_not_supported_is_refused_with_its_line(source, message):
    with pytest.raises(RewriteError, match=re.escape(message)):
        rewrite(source)


def test_instantiations_must_name_kernels():
    with pytest.raises(RewriteError, match="there is no kernel g; the source has a::f, b::f"):
        rewritten("namespace a { kernel void f() {} } namespace b { kernel void f() {} }", x="g<1>")
    with pytest.raises(RewriteError, match="kernel f is ambiguous"):
        rewritten("namespace a { kernel void f() {} } namespace b { kernel void f() {} }", x="f")
