// The windows in which a text of any length is scored by a model that sees max_length tokens.
#pragma once

#include "cyfa/eval/encoder.h"

namespace cyfa::eval {

// Every token of `ids` is scored once. The first window begins with `prefix`; a later full window has one token of context, and the last
// one as many as fit. These are the windows of lm-evaluation-harness; with a BOS token in front of ids, that token is scored too.
std::vector<TokenPair> rolling_windows(const std::vector<int64_t>& ids, int64_t prefix, int64_t max_length);

}  // namespace cyfa::eval
