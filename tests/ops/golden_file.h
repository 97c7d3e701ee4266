// Operator vectors in the format of shared/checkpoint-format.md (golden/): inputs, output gradients and all results of one cyclic_flow
// call. In the files, log_alpha is called g and the clock lambda.
#pragma once

#include <filesystem>
#include <string>

#include "tests/ops/cases.h"

namespace cyfa::test {

struct GoldenFile {
  Tensors inputs, gradients, results;
  double scale = 1.0;
  double norm_eps = 1e-6;
  std::string source;  // who computed it
};

GoldenFile read_golden(const std::filesystem::path& path);
void write_golden(const std::filesystem::path& path, const GoldenFile& golden);

}  // namespace cyfa::test
