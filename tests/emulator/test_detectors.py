"""NOTES.md names a planted fault for every finding and a test for every policy; some are here."""

import ast
import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
from tensorops_kernels import run

from mlx_tensorops.testing import emulator
from mlx_tensorops.testing.emulator import Policies, building

HERE = Path(__file__).parent
ROW = re.compile(r"^\| `(?P<name>\w+)` \|(?P<what>[^|]*)\| (?P<tests>[^|]*) \|$", re.M)
TEST = re.compile(r"`(?P<file>test_\w+\.py)::(?P<function>test_\w+)`")
# Where the sources name the kind of a finding: the first argument of a call, or an assignment.
CALL = re.compile(r'\b(?:report|note|fault|refuse)\(\s*"(\w+)"')
ASSIGNMENT = re.compile(r"\bkind\s*=([^;]*);")


def kinds_of_findings():
    kinds = set()
    for path in building.sources().rglob("*"):
        if path.suffix in (".cpp", ".h"):
            text = path.read_text()
            kinds |= set(CALL.findall(text))
            for assignment in ASSIGNMENT.findall(text):
                kinds |= set(re.findall(r'"(\w+)"', assignment))
    return kinds


def table(heading):
    notes = (HERE.parents[1] / "csrc" / "emulator" / "NOTES.md").read_text()
    section = notes.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return {row["name"]: TEST.findall(row["tests"]) for row in ROW.finditer(section)}


def functions(path):
    return {node.name for node in ast.parse(path.read_text()).body if hasattr(node, "name")}


def test_every_finding_has_a_planted_fault():
    rows = table("Findings, and a fault planted for each")
    # What runs out of memory is the host, not the kernel.
    assert rows.keys() == kinds_of_findings() - {"no_memory"}
    for kind, tests in rows.items():
        assert tests, kind
        for file, function in tests:
            assert function in functions(HERE / file), (kind, file, function)
            assert kind in (HERE / file).read_text(), (kind, file)


def test_every_policy_has_a_test():
    rows = table("Policies, and what tests each")
    assert rows.keys() == {field.name for field in dataclasses.fields(Policies)}
    for policy, tests in rows.items():
        assert tests, policy
        for file, function in tests:
            assert function in functions(HERE / file), (policy, file, function)
            assert policy in (HERE / file).read_text(), (policy, file)


MAPPED = """kernel void k(device float* C [[buffer(0)]], uint lane [[thread_index_in_simdgroup]]) {
  constexpr auto desc = matmul2d_descriptor(32, 32, 32);
  constexpr auto other = matmul2d_descriptor(32, 32, 16);
  matmul2d<desc, execution_simdgroup> op;
  matmul2d<REDUCED, execution_simdgroup> reduced;
  using in = view<half>;
  auto held = op.get_destination_cooperative_tensor<in, in, float>();
  view<float> c(C, ext(32, 32));
  held.load(c);
  auto by_row = reduced.get_row_reduction_destination_cooperative_tensor<in, in, float>();
  for (int i = 0; i < by_row.get_capacity(); i++) by_row[i] = 0;
  for (auto it = held.begin(); it != held.end(); ++it) {
    if (VALID) *it -= *by_row.map_iterator(it);
  }
}"""


def mapped(reduced, valid, policies):
    text = MAPPED.replace("REDUCED", reduced).replace("VALID", valid)
    run(text, [np.zeros((32, 32), np.float32)], policies=policies)


def test_iterators_are_mapped_with_care():
    policies = Policies(layout="random", seed=1)
    mapped("desc", "it.is_valid_element()", policies)
    with pytest.raises(emulator.Fault, match="map_iterator of a slot that is not valid"):
        mapped("desc", "true", policies)
    mapped("desc", "it.is_valid_element()", Policies(compatible=False))
    with pytest.raises(emulator.Fault, match="although is_iterator_compatible is false"):
        mapped("other", "it.is_valid_element()", Policies(compatible=False))


def test_values_of_lanes_that_are_not_there_are_noted():
    text = """kernel void k(device float* y [[buffer(0)]], uint i [[thread_index_in_simdgroup]]) {
      if (i >= 20) return;
      y[i] = simd_shuffle(float(i), ushort(i + 1));
    }"""
    y = np.zeros(20, np.float32)
    result = run(text, [y])
    notes = {finding.kind: finding for finding in result.findings}
    assert notes.keys() == {"inactive_lane", "simd_op_with_exited_threads"}
    assert {finding.severity for finding in notes.values()} == {"note"}
    assert y[:19].tolist() == list(range(1, 20)) and np.isnan(y[19])


def test_one_lane_may_own_a_row():
    text = MAPPED.replace("REDUCED", "desc").split("  for (auto it")[0] + (
        "for (int i = 0; i < by_row.get_capacity(); i++) C[lane] += by_row.is_valid_element(i); }"
    )
    copies = {}
    for row_owner in (False, True):
        counted = np.zeros((32, 32), np.float32)
        run(text, [counted], policies=Policies(row_owner=row_owner))
        copies[row_owner] = int(counted.sum())
    assert copies[True] == 32 < copies[False]


def test_a_guard_at_either_end():
    text = """kernel void k(device float* x [[buffer(0)]], constant int& at [[buffer(1)]]) {
      x[at] = 1;
    }"""
    for guard, at in (("end", 16), ("begin", -1)):
        with pytest.raises(emulator.Fault, match=f"device_out_of_bounds.*byte {4 * at} of 64"):
            run(text, [np.zeros(16, np.float32), at], policies=Policies(guard=guard))
        # Without the guard there, it is found when the launch has ended.
        other = Policies(guard={"end": "begin", "begin": "end"}[guard])
        with pytest.raises(emulator.Fault) as caught:
            run(text, [np.zeros(16, np.float32), at], policies=other)
        assert caught.value.findings[0].severity == "error"


def test_a_stack_as_large_as_it_has_to_be():
    text = """kernel void k(device float* y [[buffer(0)]], constant int& n [[buffer(1)]]) {
      volatile float many[100 * 1024];
      many[n] = 1;
      y[0] = many[n];
    }"""
    y = np.zeros(1, np.float32)
    with pytest.raises(emulator.Fault, match="stack_overflow"):
        run(text, [y, 3], threads=1)
    run(text, [y, 3], threads=1, policies=Policies(stack_kib=512))
    assert y == 1


def test_a_launch_has_a_time_limit():
    text = """kernel void k(volatile device int* x [[buffer(0)]]) {
      while (x[0] == 0) {}
    }"""
    with pytest.raises(emulator.Fault, match="time_limit: the launch took longer than 50 ms"):
        run(text, [np.zeros(1, np.int32)], policies=Policies(time_limit_ms=50))
