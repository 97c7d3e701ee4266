#include "cyfa/mixers/registry.h"

#include "cyfa/mixers/cyclic_flow.h"

namespace cyfa {

const std::vector<MixerKind>& mixer_kinds() {
  static const std::vector<MixerKind> kinds = {
      {"cyclic_flow_attention", "CyclicFlowAttentionForCausalLM", "Cyclic Flow Attention", {}, read_cyclic_flow},
  };
  return kinds;
}

const MixerKind& mixer_kind(const std::string& model_type) {
  std::string known;
  for (const MixerKind& kind : mixer_kinds()) {
    if (kind.model_type == model_type) return kind;
    known += (known.empty() ? "" : ", ") + kind.model_type;
  }
  throw ConfigError("config: model_type is " + Json(model_type).dump(-1, ' ', true, Json::error_handler_t::replace) + ", wanted one of " + known);
}

}  // namespace cyfa
