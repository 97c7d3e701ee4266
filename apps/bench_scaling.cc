#include <iostream>
#include <stdexcept>

#include "apps/bench_op.h"
#include "apps/child.h"
#include "apps/program.h"
#include "cyfa/io/json.h"

namespace cyfa::app {
namespace {

constexpr int64_t kFirstTokens = 4096;
constexpr int64_t kLastTokens = 65536;
constexpr int kScalingRepeats = 7;

std::vector<std::string> child_arguments(const BenchOptions& o, int64_t T) {
  const int repeats = o.repeats > 0 ? o.repeats : kScalingRepeats;
  std::vector<std::string> words = start_words();
  words.insert(words.end(), {"bench", "op", "--json", "-"});
  const auto add_word = [&](const char* option, const std::string& word) { words.insert(words.end(), {option, word}); };
  const auto add_number = [&](const char* option, int64_t number) { add_word(option, std::to_string(number)); };
  add_word("--op", o.op);
  add_number("--B", o.shape.B);
  add_number("--T", T);
  add_number("--H", o.shape.H);
  add_number("--K", o.shape.K);
  add_number("--V", o.shape.V);
  add_number("--M", o.shape.M);
  add_word("--dtype", o.dtype);
  add_word("--backend", o.backend);
  add_word("--device", o.device);
  add_word("--pass", o.pass);
  add_number("--chunk", o.chunk);
  add_number("--segment-chunks", o.segment_chunks);
  add_number("--repeats", repeats);
  add_number("--threads", o.threads);
  return words;
}

double sum_of(const Json& rows, const char* key) {
  double sum = 0;
  for (const Json& row : rows) sum += row.at(key).get<double>();
  return sum;
}

}  // namespace

Json bench_scaling(const BenchOptions& options) {
  if (options.op == "step") throw std::invalid_argument("--scaling sweeps T, and a step has one token; use cyclic_flow or a recurrence");
  const bool quiet = options.json == "-";
  if (!quiet) {
    std::cout << text("%s  B%lld, pass %s: time and memory while T doubles\n", options.op.c_str(), static_cast<long long>(options.shape.B),
                      options.pass.c_str());
    std::cout << text("%8s %12s %8s %12s %8s\n", "T", "ms", "ratio", "memory MB", "ratio");
  }
  Json all = Json::array();
  double last_ms = 0;
  double last_memory = 0;
  for (int64_t T = kFirstTokens; T <= kLastTokens; T *= 2) {
    Json rows = io::parse_json(output_of(child_arguments(options, T)), "output of a run");
    // The ratio is that of the fastest runs, which other processes disturbed least.
    const double ms = sum_of(rows, "ms_p10");
    const Json& peak = rows.front().at("peak_memory_mb");
    const double memory = peak.is_null() ? 0 : peak.get<double>();
    if (!quiet) {
      std::cout << text("%8lld %12.1f %8s %12.0f %8s\n", static_cast<long long>(T), ms,
                        last_ms > 0 ? text("%.2f", ms / last_ms).c_str() : "-", memory,
                        last_memory > 0 ? text("%.2f", memory / last_memory).c_str() : "-")
                << std::flush;
    }
    for (Json& row : rows) {
      row["time_ratio"] = last_ms > 0 ? Json(ms / last_ms) : Json(nullptr);
      row["memory_ratio"] = last_memory > 0 ? Json(memory / last_memory) : Json(nullptr);
      all.push_back(row);
    }
    last_ms = ms;
    last_memory = memory;
  }
  return all;
}

}  // namespace cyfa::app
