// Which implementation of an op runs: automatic, forceable, and always said aloud.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace cyfa::ops {

enum class Backend {
  kAuto,       // the fastest that can take the inputs
  kReference,  // fp64 token loop in plain C++, on the CPU: the definition
  kPortable,   // chunk-wise on ATen matrix products, any device
  kSm90,       // CUDA C++ for Hopper
};

const char* backend_name(Backend backend);     // "auto", "reference", "portable", "sm90"
Backend parse_backend(std::string_view name);  // throws ArgumentError that lists the names

// What a backend says to a set of inputs: an empty refusal means that it takes them.
struct BackendOffer {
  Backend backend;
  std::string refusal;
};

// The forced backend, or for kAuto the first of `offers` (in order of speed) that does not refuse. Throws ArgumentError with
// the refusal if the forced one refuses.
Backend choose_backend(const char* op, Backend wanted, const std::vector<BackendOffer>& offers);

}  // namespace cyfa::ops
