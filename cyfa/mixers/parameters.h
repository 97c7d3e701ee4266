// The parameter table of a model: one row per parameter with its name, shape, initialisation, role and weight decay. It is the only source
// for construction, initialisation, optimizer groups, loading, saving and documentation.
#pragma once

#include <torch/types.h>

#include <string>
#include <unordered_set>
#include <vector>

namespace cyfa {

// How a parameter is initialised.
struct Init {
  enum class Kind {
    kNormal,  // normal with mean 0 and standard deviation `value`
    kZeros,
    kConstant,    // value
    kIdentity,    // an identity matrix for each leading index
    kLogUniform,  // log of U(low, value)
    kUniform,     // U(-value, value)
    kTimeStep,    // inverse softplus of max(exp(U(log .001, log .1)), 1e-4)
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

// What a parameter is used for; decides its type during computation.
enum class Role {
  kMatrix,  // operand of matrix products: converted to the compute type; has weight decay
  kOther,   // norms, biases, gates, convolutions: always computed in fp32
};

// One row of the table.
struct ParameterSpec {
  std::string name;  // in checkpoints
  std::vector<int64_t> shape;
  Init init;
  Role role = Role::kMatrix;
  bool weight_decay = true;

  int64_t numel() const;  // fits: ParameterTable::add refuses larger shapes
};

// A parameter's index in the table, and in every list of tensors in table order.
using ParameterId = size_t;

// Limit of a model's parameters, far beyond any real one, so that sizes in bytes do not overflow.
inline constexpr int64_t kMostParameters = int64_t{1} << 42;

// An append-only list of parameters with unique names.
class ParameterTable {
 public:
  // Throws std::logic_error for a duplicate name, and ConfigError for a parameter of more than kMostParameters elements.
  ParameterId add(ParameterSpec spec);
  // Appends the rows of another table with a common prefix; returns the id of the first.
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

  // A Role::kMatrix with weight decay, and a Role::kOther.
  ParameterId matrix(const std::string& name, std::vector<int64_t> shape, Init init) const;
  ParameterId other(const std::string& name, std::vector<int64_t> shape, Init init, bool weight_decay = false) const;
  ParameterScope sub(const std::string& name) const { return {table_, prefix_ + name + "."}; }

 private:
  ParameterTable& table_;
  std::string prefix_;
};

// Fills `parameter` in place with values drawn from `generator`.
void initialise(const Init& init, at::Tensor& parameter, at::Generator generator);

}  // namespace cyfa
