// The table of a model's parameters: one row each, with all there is to know about it. Construction, initialisation, optimizer groups,
// loading, saving and documentation read this table and nothing else.
#pragma once

#include <torch/types.h>

#include <string>
#include <vector>

namespace cyfa {

// How a parameter begins.
struct Init {
  enum class Kind {
    kNormal,  // N(0, value)
    kZeros,
    kConstant,    // value
    kIdentity,    // an identity matrix per leading index
    kLogUniform,  // log of U(low, value)
    kUniform,     // U(-value, value)
    kTimeStep,    // inverse softplus of exp(U(log .001, log .1)), at least 1e-4
  };
  Kind kind = Kind::kZeros;
  double value = 0;
  double low = 0;

  static Init normal(double deviation) { return {Kind::kNormal, deviation, 0}; }
  static Init zeros() { return {Kind::kZeros, 0, 0}; }
  static Init constant(double value) { return {Kind::kConstant, value, 0}; }
  static Init ones() { return constant(1); }
  static Init identity() { return {Kind::kIdentity, 0, 0}; }
  static Init log_uniform(double low, double top) { return {Kind::kLogUniform, top, low}; }
  static Init uniform(double bound) { return {Kind::kUniform, bound, 0}; }
  static Init time_step() { return {Kind::kTimeStep, 0, 0}; }
};

enum class Role {
  kMatrix,  // an operand of matrix products: takes weight decay and the compute type
  kOther,   // norms, biases, gates, convolutions: stays in fp32 while computing
};

struct ParameterSpec {
  std::string name;  // in checkpoints
  std::vector<int64_t> shape;
  Init init;
  Role role = Role::kMatrix;
  bool weight_decay = true;

  int64_t numel() const;
};

// A parameter's place in the table, and in every list of tensors that follows it.
using ParameterId = size_t;

class ParameterTable {
 public:
  ParameterId add(ParameterSpec spec);  // throws std::logic_error for a name that is taken
  const std::vector<ParameterSpec>& specs() const { return specs_; }
  int64_t numel() const;

  // Matrices that are multiplied with the same input, or a parameter alone: a training step on a GPU finds them in Weights::packed and adds
  // their gradients there (cyfa/engine/sm90/packed.h). Only for parameters that are computed with in this way alone.
  void pack(std::vector<ParameterId> members) { packs_.push_back(std::move(members)); }
  const std::vector<std::vector<ParameterId>>& packs() const { return packs_; }

 private:
  std::vector<ParameterSpec> specs_;
  std::vector<std::vector<ParameterId>> packs_;
};

// Adds parameters under a common prefix: "model.layers.3.attn.".
class ParameterScope {
 public:
  ParameterScope(ParameterTable& table, std::string prefix) : table_(table), prefix_(std::move(prefix)) {}

  ParameterId matrix(const std::string& name, std::vector<int64_t> shape, Init init) const;  // weight decay
  ParameterId other(const std::string& name, std::vector<int64_t> shape, Init init, bool weight_decay = false) const;
  void pack(std::vector<ParameterId> members) const { table_.pack(std::move(members)); }
  ParameterScope sub(const std::string& name) const { return {table_, prefix_ + name + "."}; }

 private:
  ParameterTable& table_;
  std::string prefix_;
};

// Fills `parameter` in place; `generator` decides the draws.
void initialise(const Init& init, at::Tensor& parameter, at::Generator generator);

}  // namespace cyfa
