#include "cyfa/mixers/parameters.h"

#include <array>
#include <cstdio>
#include <numeric>
#include <stdexcept>

#include "cyfa/mixers/config_reader.h"

namespace cyfa {
namespace {

// Throws ConfigError for a shape that is too large. Sizes are products of several keys of a config, each of which may be within its range.
void check_size(const ParameterSpec& spec) {
  double numbers = 1;
  std::string shape;
  for (const int64_t extent : spec.shape) {
    numbers *= static_cast<double>(extent);
    shape += (shape.empty() ? "" : ", ") + std::to_string(extent);
  }
  if (numbers > static_cast<double>(kMostParameters)) {
    throw ConfigError("config: the parameter " + spec.name + " would be [" + shape + "], more than 2^42 numbers; reduce the widths");
  }
}

}  // namespace

int64_t ParameterSpec::numel() const { return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>()); }

std::string Init::text() const {
  const auto number = [](double x) {
    std::array<char, 32> digits = {};
    std::snprintf(digits.data(), digits.size(), "%g", x);
    return std::string(digits.data());
  };
  switch (kind) {
    case Kind::kNormal: return "normal(" + number(value) + ")";
    case Kind::kZeros: return "zeros";
    case Kind::kConstant: return "constant(" + number(value) + ")";
    case Kind::kIdentity: return "identity";
    case Kind::kLogUniform: return "log_uniform(" + number(low) + ", " + number(value) + ")";
    case Kind::kUniform: return "uniform(" + number(value) + ")";
    case Kind::kTimeStep: return "time_step";
  }
  return "unknown";
}

ParameterId ParameterTable::add(ParameterSpec spec) {
  check_size(spec);
  if (!names_.insert(spec.name).second) throw std::logic_error("parameter " + spec.name + " is declared twice");
  specs_.push_back(std::move(spec));
  return specs_.size() - 1;
}

ParameterId ParameterTable::append(const std::string& prefix, const ParameterTable& other) {
  const ParameterId first = specs_.size();
  for (ParameterSpec spec : other.specs_) {
    spec.name = prefix + spec.name;
    add(std::move(spec));
  }
  return first;
}

int64_t ParameterTable::numel() const {
  return std::accumulate(specs_.begin(), specs_.end(), int64_t{0}, [](int64_t sum, const ParameterSpec& s) { return sum + s.numel(); });
}

ParameterId ParameterScope::matrix(const std::string& name, std::vector<int64_t> shape, Init init) const {
  return table_.add({prefix_ + name, std::move(shape), init, Role::kMatrix, true});
}

ParameterId ParameterScope::other(const std::string& name, std::vector<int64_t> shape, Init init, bool weight_decay) const {
  return table_.add({prefix_ + name, std::move(shape), init, Role::kOther, weight_decay});
}

void initialise(const Init& init, at::Tensor& parameter, at::Generator generator) {
  const at::NoGradGuard no_grad;
  // Draw in fp32 on the CPU, so that a seed gives the same model on every device and in every type.
  const at::Tensor values = at::empty(parameter.sizes(), at::kFloat);
  switch (init.kind) {
    case Init::Kind::kNormal: values.normal_(0, init.value, generator); break;
    case Init::Kind::kZeros: values.zero_(); break;
    case Init::Kind::kConstant: values.fill_(init.value); break;
    case Init::Kind::kIdentity: values.copy_(at::eye(values.size(-1)).expand_as(values)); break;
    case Init::Kind::kLogUniform: values.uniform_(init.low, init.value, generator).clamp_min_(1e-7).log_(); break;
    case Init::Kind::kUniform: values.uniform_(-init.value, init.value, generator); break;
    case Init::Kind::kTimeStep: {
      const double low = std::log(0.001), high = std::log(0.1);
      values.uniform_(low, high, generator).exp_().clamp_min_(1e-4);
      values.add_(at::log(-at::expm1(-values)));
      break;
    }
  }
  parameter.copy_(values);
}

}  // namespace cyfa
