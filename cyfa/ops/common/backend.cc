// See backend.h.
#include "cyfa/ops/common/backend.h"

#include "cyfa/ops/common/check.h"

namespace cyfa::ops {

const char* backend_name(Backend backend) {
  switch (backend) {
    case Backend::kAuto: return "auto";
    case Backend::kReference: return "reference";
    case Backend::kPortable: return "portable";
    case Backend::kSm90: return "sm90";
  }
  return "?";
}

Backend parse_backend(std::string_view name) {
  for (const Backend b : {Backend::kAuto, Backend::kReference, Backend::kPortable, Backend::kSm90}) {
    if (name == backend_name(b)) return b;
  }
  throw ArgumentError("backend is '" + std::string(name) + "', wanted auto, reference, portable or sm90");
}

Backend choose_backend(const char* op, Backend wanted, const std::vector<BackendOffer>& offers) {
  for (const BackendOffer& offer : offers) {
    if (wanted == Backend::kAuto && offer.refusal.empty()) return offer.backend;
    if (wanted == offer.backend) {
      if (offer.refusal.empty()) return offer.backend;
      check::fail(op, "backend " + std::string(backend_name(wanted)) + " refuses: " + offer.refusal);
    }
  }
  check::fail(op, "no backend takes these inputs");
}

}  // namespace cyfa::ops
