"""Evaluates Metal expressions on the emulator, many in one kernel, an element a thread."""

import numpy as np

from mlx_tensorops.testing import emulator

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
TYPES = {
    "float": np.float32,
    "half": np.float16,
    "bfloat": np.uint16,
    "bool": np.bool_,
    "char": np.int8,
    "uchar": np.uint8,
    "short": np.int16,
    "ushort": np.uint16,
    "int": np.int32,
    "uint": np.uint32,
    "long": np.int64,
    "ulong": np.uint64,
}


def evaluate(type, expressions, inputs, helpers="", threads=None, **launch):
    """The expressions' values as an array (expression, element).

    Expressions see the element of each input under its name, and its index as `i`.
    """
    names = list(inputs)
    arrays = [np.ascontiguousarray(inputs[name]) for name in names]
    n = len(arrays[0])
    metal = {np.dtype(v): k for k, v in TYPES.items() if k != "bfloat"}
    parameters = [
        f"device const {metal[array.dtype]}* in_{name} [[buffer({b})]]"
        for b, (name, array) in enumerate(zip(names, arrays, strict=True))
    ]
    parameters.append(f"device {type}* out [[buffer({len(names)})]]")
    parameters.append("uint i [[thread_position_in_grid]]")
    loads = [f"  auto {name} = in_{name}[i];" for name in names]
    stores = [f"  out[{j * n} + i] = {expression};" for j, expression in enumerate(expressions)]
    source = "\n".join(
        [HEAD, helpers, f"kernel void evaluate({', '.join(parameters)}) {{", *loads, *stores, "}"]
    )
    out = np.zeros((len(expressions), n), TYPES[type])
    kernel = emulator.compile(source).pipeline("evaluate")
    threads = threads or min(n, 1024)
    assert n % threads == 0
    kernel.launch(
        dict(enumerate([*arrays, out])), (n // threads,), (threads,), os_threads=1, **launch
    )
    return out
