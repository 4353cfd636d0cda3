#pragma once

// Verified before trusted. Compilers and systems have miscompiled kernels of this kind in ways that
// small probes miss, so the first use of a pipeline on a device is preceded by a comparison with
// the CPU kernels, bit by bit, on a small and on a large problem. Where it fails, or where the
// device's compiler refuses the kernel, MLX's op runs in its place. Verdicts by comparison are kept
// in the user's cache folder, for one system build, GPU and text of the kernel.
//
// It happens where the graph is built: an error while it is evaluated could not become another op.
// A graph that mx.compile(shapeless=True) runs for shapes unlike those it was traced with may reach
// a kernel that was not verified.
//
// MLX_TENSOROPS_VERIFY=0 in the environment turns it off.

#include <functional>
#include <string>
#include <vector>

#include "metal/encoder.h"
#include "metal/verdict_file.h"

namespace mto::metal {

// Why the kernels for a lazy array of one of our ops are not to run; empty where they may.
std::string distrust(const mx::array& a);

struct Verdict {
  Kernel kernel;
  std::string fault;  // in words; empty where the kernel is right
  bool remembered;    // by the cache folder, from another process
};
// Of this process, in no order.
std::vector<Verdict> verdicts();
void forget_verdicts();

// Whether this thread evaluates a graph in order to verify a kernel.
bool in_trial();

struct VerificationHost {
  Digest digest;
  // Tells the user of a kernel that is not used. May throw.
  std::function<void(const std::string&)> warn;
  // Calls a function without any lock that tasks of MLX might wait for.
  std::function<void(const std::function<void()>&)> unlocked;
};
void set_verification_host(VerificationHost host);

}  // namespace mto::metal
