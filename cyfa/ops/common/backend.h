// Choice of an op's implementation: automatic, or forced by the caller. The ops report which backend ran, and nothing falls back silently.
// Used by cyclic_flow and the recurrences.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace cyfa::ops {

enum class Backend {
  kAuto,       // the fastest backend that supports the inputs
  kReference,  // fp64 token loop in plain C++, on the CPU: the definition
  kPortable,   // chunk-wise on ATen matrix products, any device
  kSm90,       // CUDA C++ for Hopper
};

const char* backend_name(Backend backend);     // "auto", "reference", "portable", "sm90"
Backend parse_backend(std::string_view name);  // throws ArgumentError with the valid names

// A backend's answer to a set of inputs: an empty refusal means that it supports them, otherwise it says why not.
struct BackendOffer {
  Backend backend;
  std::string refusal;
};

// The forced backend, or for kAuto the first of `offers`, fastest first, that does not refuse. Throws ArgumentError with the refusal if the
// forced backend refuses.
Backend choose_backend(const char* op, Backend wanted, const std::vector<BackendOffer>& offers);

}  // namespace cyfa::ops
