// The models that Python names by the text of their config.json: parsed once, kept for the life of the process. They have no parameters of
// their own; every call brings its own.
#pragma once

#include <memory>
#include <string>

#include "cyfa/model/causal_lm.h"

namespace cyfa::python {

// The model of a config. Throws ConfigError for a bad one. Safe to call from any thread.
std::shared_ptr<const CausalLM> registered_model(const std::string& config);

}  // namespace cyfa::python
