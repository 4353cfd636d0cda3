#pragma once

#include <stddef.h>
#include <stdint.h>

#include "emulator/policies.h"

// What a host (Python through ctypes) calls in the shared library of a compiled kernel. One library
// holds its kernels and a runtime of its own. Nothing here ends the process: a faulty kernel gives
// a status and findings. The caller serialises all calls in a process, those of other libraries
// too, because a launch owns the handlers of SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGTRAP while it
// lasts.

#define EMU_ABI_VERSION 1

#pragma GCC visibility push(default)

extern "C" {

enum EmuStatus {
  EMU_OK = 0,     // every thread ran to its end; there may be findings
  EMU_FAULT = 1,  // the launch was given up; the last finding with severity "fault" says why
  EMU_UNKNOWN_KERNEL = 2,  // nothing ran from here on
  EMU_BAD_ARGUMENT = 3,    // a finding says which
  EMU_NO_MEMORY = 4,
};

uint32_t emu_abi_version(void);

// The names of all kernels, each followed by a newline, sorted. Valid until the next call.
const char* emu_kernels(void);

// Function constants by index. emu_constants lists them as JSON:
// [{"index": 3, "bytes": 1, "name": "has_mask", "set": false}, ...]. A constant that is not set is
// zero and is_function_constant_defined is false. emu_set_constant returns how many variables took
// the value: 0 if the library has no such index; -1 if the size differs from the variable's.
const char* emu_constants(void);
int emu_set_constant(int index, const void* value, size_t bytes);
void emu_clear_constants(void);

// The tensor that a buffer holds, for kernels with tensor_handle arguments: extents and strides in
// elements, outermost dimension first. They stay until they are cleared. Returns 0, or -1 if the
// index or the rank is too large.
int emu_set_tensor(int index, int rank, int element_bytes, const int64_t* extents,
                   const int64_t* strides);
void emu_clear_tensors(void);

// Where the stacks of GPU threads are kept between launches: zeroed memory, aligned to 16 bytes,
// that all libraries of the process may share. A library by itself keeps its own.
#define EMU_STACK_POOL_BYTES 4096
void emu_share_stacks(void* memory);

// Runs grid[0] * grid[1] * grid[2] threadgroups. Buffers are copied in, each against a guard page,
// and copied back after the launch, whatever its status.
// buffers[i] null: index i is not bound. threadgroup_bytes[i] is the size of [[threadgroup(i)]].
// threads_per_grid null: all threadgroups are full. Else the grid has that many threads, `grid` is
// ignored and the threadgroups at its far edges are smaller (Metal's dispatchThreads).
// policies null: all defaults. os_threads: how many threadgroups run at a time, at least 1.
int emu_launch(const char* kernel, int n_buffers, void* const* buffers, const size_t* buffer_bytes,
               int n_threadgroup, const size_t* threadgroup_bytes, const uint32_t* grid,
               const uint32_t* threadgroup, const uint32_t* threads_per_grid,
               const struct EmuPolicies* policies, int os_threads);

// Findings of the last launch, a JSON array in order of first occurrence. Each has "kind",
// "severity" ("note": legal; "error": the kernel is wrong; "fault": and the launch was given up),
// "message", "kernel", "count", and of the first occurrence: "threadgroup" [x, y, z], "lane"
// (thread_index_in_threadgroup), "simdgroup", "pcs" (addresses relative to the library, innermost
// first), "line" (of the kernel, where the shim knows it); and where they apply "buffer" (index),
// "byte" (offset in the buffer, negative before it), "buffer_bytes", "variable" (of threadgroup
// memory), "access" ("load", "store", "atomic" or "unknown"), "access_bytes"; of a race
// "other_lane" and "other_line"
// (where known) and "other_pcs" of the access before. Valid until the next call.
const char* emu_findings(void);

// Of the last launch. The layout of `out` is that of emu::Counters, n its size in 64-bit words;
// returns the number of words that the library has.
int emu_counters(uint64_t* out, int n);

// Trace build only, else zeros: bytes read and written through each buffer index in the last
// launch.
void emu_buffer_bytes(uint64_t read[31], uint64_t written[31]);

// 1 if the library was compiled with EMU_TRACE.
int emu_is_trace(void);
}

#pragma GCC visibility pop
