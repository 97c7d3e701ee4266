// Engines as classes of torch (torch.classes.cyfa): they keep prepared weights between calls, which ops cannot.
//
//   StepEngine   a model prepared for decoding; begin() gives a Decoding
//   Decoding     the states of a batch of sequences, stepped in place
//   TrainEngine  a model prepared for training: losses whose backward fills the parameters' grad
//
// The model of an engine is made of the tensors that Python hands over: nn.Parameters share their memory with it.
#include <torch/custom_class.h>

#include "cyfa/engine/engine.h"
#include "cyfa/ops/common/check.h"
#include "python/bindings/registered_model.h"

namespace cyfa::python {
namespace {

using at::Tensor;
using TensorVector = std::vector<Tensor>;

// ScalarType is an int to a class of torch.
std::optional<at::ScalarType> type_of(std::optional<int64_t> number) {
  return number ? std::optional(static_cast<at::ScalarType>(*number)) : std::nullopt;
}

std::unique_ptr<CausalLM> model_of(const std::string& config, const TensorVector& parameters) {
  auto model = std::make_unique<CausalLM>(registered_model(config)->config());
  const std::vector<ParameterSpec>& specs = model->table().specs();
  if (parameters.size() != specs.size()) {
    ops::check::fail("engine", "got " + std::to_string(parameters.size()) + " parameters, wanted " + std::to_string(specs.size()));
  }
  for (size_t i = 0; i < specs.size(); ++i) {
    if (parameters[i].is_meta()) {
      ops::check::fail("engine", specs[i].name + " is on the meta device and has no values; call to_empty(device=...), then set them");
    }
    if (parameters[i].sizes() != at::IntArrayRef(specs[i].shape)) {
      ops::check::fail("engine", specs[i].name + " has shape " + c10::str(parameters[i].sizes()) + ", wanted " +
                                     c10::str(at::IntArrayRef(specs[i].shape)));
    }
  }
  model->parameters() = parameters;
  return model;
}

TensorVector detached(TensorVector tensors) {
  for (Tensor& x : tensors) x = x.detach();
  return tensors;
}

// Steps of a batch of sequences. The engine outlives it.
struct Prepared {
  std::unique_ptr<CausalLM> model;
  std::unique_ptr<StepEngine> engine;
};

class Decoding : public torch::CustomClassHolder {
 public:
  Decoding(std::shared_ptr<Prepared> prepared, ModelState state) : prepared_(std::move(prepared)), state_(std::move(state)) {}

  Tensor step(const Tensor& ids) { return prepared_->engine->step(ids, state_); }

  int64_t sequences() { return state_.sequences(); }

  // Copies of these sequences, in this order, become the batch.
  void select(const std::vector<int64_t>& sequences) {
    for (const int64_t n : sequences) {
      if (n < 0 || n >= state_.sequences())
        ops::check::fail("select", "sequence is " + std::to_string(n) + ", wanted 0 .. " + std::to_string(state_.sequences() - 1));
    }
    state_ = state_.select(sequences);
  }

  // Copies of the states, layer by layer.
  TensorVector states() {
    TensorVector flat;
    for (const MixerState& layer : state_.clone().layers) flat.insert(flat.end(), layer.begin(), layer.end());
    return flat;
  }

 private:
  std::shared_ptr<Prepared> prepared_;
  ModelState state_;
};

class Steps : public torch::CustomClassHolder {
 public:
  Steps(const std::string& config, const TensorVector& parameters, std::optional<int64_t> compute, const std::string& engine, bool record)
      : prepared_(std::make_shared<Prepared>()) {
    const at::NoGradGuard no_grad;
    prepared_->model = model_of(config, detached(parameters));
    prepared_->engine = prepare_steps(*prepared_->model, {.compute = type_of(compute), .engine = engine, .record = record});
  }

  std::string name() { return prepared_->engine->name(); }
  std::string path(int64_t sequences) { return prepared_->engine->path(sequences); }
  std::vector<std::string> notes() { return prepared_->engine->notes(); }

  // Starts from the states of `sequences` sequences, layer by layer, which are copied; without any from an empty memory.
  c10::intrusive_ptr<Decoding> begin(int64_t sequences, const TensorVector& flat) {
    const CausalLM& model = *prepared_->model;
    ModelState state = model.initial_state(sequences);
    if (flat.empty()) return c10::make_intrusive<Decoding>(prepared_, std::move(state));
    size_t next = 0;
    for (MixerState& layer : state.layers) {
      for (Tensor& x : layer) {
        if (next == flat.size()) ops::check::fail("begin", "got " + std::to_string(flat.size()) + " state tensors, wanted more");
        x = flat[next++].detach().clone(at::MemoryFormat::Contiguous);
      }
    }
    if (next != flat.size())
      ops::check::fail("begin", "got " + std::to_string(flat.size()) + " state tensors, wanted " + std::to_string(next));
    model.check_state(state);
    return c10::make_intrusive<Decoding>(prepared_, std::move(state));
  }

 private:
  std::shared_ptr<Prepared> prepared_;
};

class Training : public torch::CustomClassHolder {
 public:
  Training(const std::string& config, const TensorVector& parameters, std::optional<int64_t> compute, const std::string& engine,
           bool recompute)
      : model_(model_of(config, parameters)),
        engine_(prepare_training(*model_, {.compute = type_of(compute), .engine = engine, .recompute = recompute})) {}

  std::string name() { return engine_->name(); }
  std::vector<std::string> notes() { return engine_->notes(); }
  void begin_step(std::optional<int64_t> noise) {
    engine_->begin_step(noise ? std::optional(static_cast<uint64_t>(*noise)) : std::nullopt);
    begun_ = true;
  }
  Tensor loss(const Tensor& inputs, const Tensor& targets, const std::optional<Tensor>& cu_seqlens) {
    if (!begun_) ops::check::fail("loss", "begin_step() was not called; call it before the losses of a step");
    return engine_->loss(inputs, targets, cu_seqlens);
  }

 private:
  std::unique_ptr<CausalLM> model_;
  std::unique_ptr<TrainEngine> engine_;
  bool begun_ = false;
};

// An op that calls a method of a class. As methods of the class they would lose the type of exceptions: torch makes all of them
// RuntimeError there, and bad arguments are a ValueError.
template <class Class, class Result, class... Arguments>
auto method(Result (Class::*function)(Arguments...)) {
  return [function](const c10::intrusive_ptr<Class>& self, std::decay_t<Arguments>... arguments) -> Result {
    return (self.get()->*function)(arguments...);
  };
}

TORCH_LIBRARY_FRAGMENT(cyfa, library) {
  library.class_<Decoding>("Decoding");
  library.class_<Steps>("StepEngine").def(torch::init<std::string, TensorVector, std::optional<int64_t>, std::string, bool>());
  library.class_<Training>("TrainEngine").def(torch::init<std::string, TensorVector, std::optional<int64_t>, std::string, bool>());
  library.def("decoding_step", method(&Decoding::step));
  library.def("decoding_sequences", method(&Decoding::sequences));
  library.def("decoding_select", method(&Decoding::select));
  library.def("decoding_states", method(&Decoding::states));
  library.def("steps_name", method(&Steps::name));
  library.def("steps_path", method(&Steps::path));
  library.def("steps_notes", method(&Steps::notes));
  library.def("steps_begin", method(&Steps::begin));
  library.def("training_name", method(&Training::name));
  library.def("training_notes", method(&Training::notes));
  library.def("training_begin_step", method(&Training::begin_step));
  library.def("training_loss", method(&Training::loss));
}

}  // namespace
}  // namespace cyfa::python
