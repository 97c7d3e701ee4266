// A machine-readable description of a model, for front ends in other languages, documentation and analysis.
#pragma once

#include "cyfa/model/causal_lm.h"

namespace cyfa {

// {"model_type", "architecture", "config": every key with its value or default,
//  "layout": tensor names of the parts in a checkpoint,
//  "layers": [{"type", "flops_per_token", "draws_noise", "parameters": first and count, "states": [{"name", "shape", "dtype", "memory",
//  "grows", "narrow"}]}], "parameters": [{"name", "shape", "role", "weight_decay", "init"}], "parameter_count", "state_bytes",
//  "forward_flops_per_token"}
Json describe(const CausalLM& model);

}  // namespace cyfa
