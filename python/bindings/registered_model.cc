#include "python/bindings/registered_model.h"

#include <map>
#include <mutex>

#include "cyfa/io/json.h"

namespace cyfa::python {

std::shared_ptr<const CausalLM> registered_model(const std::string& config) {
  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<const CausalLM>, std::less<>> models;
  const std::lock_guard lock(mutex);
  std::shared_ptr<const CausalLM>& model = models[config];
  if (model == nullptr) {
    try {
      model = std::make_shared<const CausalLM>(ModelConfig::parse(io::parse_json(config, "config")));
    } catch (...) {
      models.erase(config);
      throw;
    }
  }
  return model;
}

}  // namespace cyfa::python
