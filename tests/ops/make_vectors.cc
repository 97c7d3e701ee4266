// Writes the project's own operator vectors: results of the fp64 reference on inputs that are exact in fp32.
//   make_vectors [folder]        (default: tests/vectors of the source tree)
#include <cmath>
#include <cstdio>
#include <exception>
#include <filesystem>

#include "tests/ops/golden_file.h"

namespace cyfa::test {
namespace {

struct NamedCase {
  const char* name;
  OpCase op_case;
};

const NamedCase kCases[] = {
    {"op_plain", {.B = 2, .T = 21, .H = 2, .K = 4, .V = 4, .M = 8, .initial_state = false, .seed = 101}},
    {"op_state", {.B = 1, .T = 19, .H = 3, .K = 4, .V = 6, .M = 16, .seed = 102}},
    {"op_packed", {.lengths = {7, 0, 1, 18}, .H = 2, .K = 6, .V = 4, .M = 8, .seed = 103}},
};

GoldenFile make_golden(const OpCase& c) {
  const auto widened = [](Tensors x) {
    for (auto& [name, t] : x) t = t.is_floating_point() ? t.to(at::kFloat).to(at::kDouble) : t;
    return x;
  };
  GoldenFile golden;
  golden.inputs = widened(make_inputs(c));
  golden.gradients = widened(make_output_gradients(c));
  golden.scale = 1.0 / std::sqrt(static_cast<double>(c.K));
  golden.norm_eps = 1e-5;
  golden.source = "fp64 reference of cyfa (cyfa/kernels/cyclic_flow/reference/reference.h), by tests/ops/make_vectors.cc";
  golden.results = judge(c.op, golden.inputs, golden.gradients, {.scale = golden.scale, .norm_eps = golden.norm_eps});
  return golden;
}

}  // namespace
}  // namespace cyfa::test

int main(int argc, char** argv) {
  try {
    const std::filesystem::path folder = argc > 1 ? argv[1] : CYFA_SOURCE_DIR "/tests/vectors";
    for (const auto& [name, op_case] : cyfa::test::kCases) {
      const std::filesystem::path path = folder / (std::string(name) + ".safetensors");
      cyfa::test::write_golden(path, cyfa::test::make_golden(op_case));
      std::printf("%s: %zu bytes\n", path.c_str(), static_cast<size_t>(std::filesystem::file_size(path)));
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "make_vectors: %s\n", error.what());
    return 1;
  }
}
