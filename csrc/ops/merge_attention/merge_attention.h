#pragma once

#include "common/check.h"

namespace mto {

// Attention over several sets of keys from that over each: the whole output and its logsumexp.
std::pair<mx::array, mx::array> merge_attention(const std::vector<mx::array>& outs,
                                                const std::vector<mx::array>& lses,
                                                mx::StreamOrDevice s);

}  // namespace mto
