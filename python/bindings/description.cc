// What Python asks the library about itself and about models: versions, the description of a config, initial values of parameters.
#include <ATen/CPUGeneratorImpl.h>
#include <torch/library.h>

#include "cyfa/model/describe.h"
#include "cyfa/ops/common/check.h"
#include "cyfa/ops/recurrence/table.h"
#include "python/bindings/registered_model.h"

namespace cyfa::python {
namespace {

using at::Tensor;

std::string described(c10::string_view config) { return describe(*registered_model(std::string(config))).dump(); }

// [{"model_type", "architecture", "about"}]
std::string model_types() {
  Json all = Json::array();
  for (const MixerKind& kind : mixer_kinds()) {
    all.push_back({{"model_type", kind.model_type}, {"architecture", kind.architecture}, {"about", kind.facts.about}});
  }
  return all.dump();
}

// [{"op", "definition", "arguments": [{"name", "shape"}]}]
std::string recurrence_table() {
  Json all = Json::array();
  for (const ops::Recurrence& r : ops::recurrences()) {
    Json arguments = Json::array();
    for (const ops::RecurrenceArgument& a : r.arguments) arguments.push_back({{"name", a.name}, {"shape", a.shape}});
    all.push_back({{"op", r.op}, {"definition", r.definition}, {"arguments", arguments}});
  }
  return all.dump();
}

// All parameters, as `cyfa init` draws them: the same seed gives the same model.
std::vector<Tensor> initial_parameters(c10::string_view config, int64_t seed, at::ScalarType dtype, at::Device device) {
  CausalLM model(registered_model(std::string(config))->config());
  model.initialise(static_cast<uint64_t>(seed), dtype, device);
  return model.parameters();
}

// Draws one parameter anew, in place.
void initialise_parameter(const Tensor& parameter, c10::string_view config, int64_t id, int64_t seed) {
  const std::shared_ptr<const CausalLM> model = registered_model(std::string(config));
  const std::vector<ParameterSpec>& specs = model->table().specs();
  const auto place = static_cast<size_t>(id);  // a negative one becomes too large
  if (place >= specs.size())
    ops::check::fail("initialise", "parameter is " + std::to_string(id) + ", wanted 0 .. " + std::to_string(specs.size() - 1));
  if (parameter.sizes() != at::IntArrayRef(specs[place].shape)) {
    ops::check::fail("initialise", specs[place].name + " has shape " + c10::str(parameter.sizes()) + ", wanted " +
                                       c10::str(at::IntArrayRef(specs[place].shape)));
  }
  const at::NoGradGuard no_grad;
  Tensor values = at::empty(specs[place].shape, at::kFloat);
  initialise(specs[place].init, values, at::detail::createCPUGenerator(static_cast<uint64_t>(seed)));
  const ModelConfig& c = model->config();
  if (place == model->embedding_weight() && c.kind->layout.zeroes_padding && c.pad) values[*c.pad].zero_();
  parameter.copy_(values);
}

bool built_with_cuda() {
#ifdef CYFA_CUDA
  return true;
#else
  return false;
#endif
}

TORCH_LIBRARY_FRAGMENT(cyfa, library) {
  library.def("version() -> str", [] { return std::string(CYFA_VERSION); });
  library.def("built_with() -> str", [] { return std::string(CYFA_TORCH_VERSION); });
  library.def("built_with_cuda() -> bool", built_with_cuda);
  library.def("describe(str config) -> str", described);
  library.def("model_types() -> str", model_types);
  library.def("recurrence_table() -> str", recurrence_table);
  library.def("initial_parameters(str config, int seed, ScalarType dtype, Device device) -> Tensor[]", initial_parameters);
  library.def("initialise_parameter(Tensor(a!) parameter, str config, int id, int seed) -> ()", initialise_parameter);
}

}  // namespace
}  // namespace cyfa::python
