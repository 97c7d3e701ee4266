// What `bench op` was asked for, shared between one size and the sweep over sizes.
#pragma once

#include <optional>
#include <string>

#include "apps/output.h"
#include "apps/parse.h"
#include "cyfa/ops/cases/op_case.h"

namespace cyfa::app {

struct BenchOptions {
  std::string op = "cyclic_flow";
  cases::OpShape shape;
  std::optional<int64_t> B;  // as given; the default depends on the op
  std::string dtype = "fp32";
  std::string backend = "auto";
  std::string device = "cpu";
  std::string pass = "both";
  int64_t chunk = 0;
  int64_t segment_chunks = 0;
  int repeats = 0;  // 0: at least 10 and one second
  int threads = 0;  // 0: torch's own choice
  bool scaling = false;
  std::string json;  // "": none, "-": standard output
};

// Times T = 4K .. 64K, each size in a process of its own, so that its peak memory is its own. Returns the rows.
Json bench_scaling(const BenchOptions& options);

}  // namespace cyfa::app
