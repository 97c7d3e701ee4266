// The table of a model's parameters: one row each, with all there is to know about it. Construction, initialisation, optimizer groups,
// loading, saving and documentation read this table and nothing else.
#pragma once

#include <torch/types.h>

#include <string>
#include <unordered_set>
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

  std::string text() const;  // "normal(0.02)", "zeros"
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
  // The rows of another table under a common prefix; returns the place of the first.
  ParameterId append(const std::string& prefix, const ParameterTable& other);
  const std::vector<ParameterSpec>& specs() const { return specs_; }
  int64_t numel() const;

 private:
  std::vector<ParameterSpec> specs_;
  std::unordered_set<std::string> names_;
};

// Adds parameters under a common prefix: "attn.q_proj.".
class ParameterScope {
 public:
  ParameterScope(ParameterTable& table, std::string prefix) : table_(table), prefix_(std::move(prefix)) {}

  ParameterId matrix(const std::string& name, std::vector<int64_t> shape, Init init) const;  // weight decay
  ParameterId other(const std::string& name, std::vector<int64_t> shape, Init init, bool weight_decay = false) const;
  ParameterScope sub(const std::string& name) const { return {table_, prefix_ + name + "."}; }

 private:
  ParameterTable& table_;
  std::string prefix_;
};

// Fills `parameter` in place; `generator` decides the draws.
void initialise(const Init& init, at::Tensor& parameter, at::Generator generator);

}  // namespace cyfa
