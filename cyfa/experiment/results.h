// The finished runs of an experiment: runs.json in its folder. From it alone the report is written again, and no run in it is repeated.
#pragma once

#include <deque>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "cyfa/mixers/config_reader.h"

namespace cyfa::experiment {

// Kinds of the runs that time something, in their keys.
inline constexpr const char* kTrainingSpeed = "training speed";
inline constexpr const char* kOperatorSpeed = "operator speed";
inline constexpr const char* kDecodingSpeed = "decoding speed";

// A run: what it computes, and where it stands in the experiment.
struct Run {
  std::string variant;
  double rate = 0;
  uint64_t seed = 0;
  Json key;  // all that decides its result; equal keys are the same run, in every experiment

  std::string hash() const;    // of the key, hexadecimal
  std::string label() const;   // "cyfa, rate 0.002, seed 1"
  std::string folder() const;  // a name for its files; a run that takes the model of another run ("run" in the key) has its folder
};

class Results {
 public:
  // The results in `folder`, none if it has no runs.json. Throws io::FileError if the file is damaged.
  explicit Results(const std::filesystem::path& folder);

  // What the experiment was started with: the scale, assignments and data. An empty object at first.
  Json settings = Json::object();

  // Also finds the runs of the experiments in the folders beside this one: they are taken over when they are asked for.
  void share_with_neighbours();

  // The result of a run; null if it has none.
  const Json* find(const Run& run);
  void add(const Run& run, const Json& result);  // and writes the file
  void write() const;

 private:
  void put(const Run& run, const Json& result);

  std::filesystem::path folder_;
  std::deque<Json> runs_;                // adding one leaves the others where they are
  std::map<std::string, size_t> index_;  // by hash
  std::map<std::string, Json> others_;   // results of other experiments, by hash
};

inline constexpr const char* kRunsFile = "runs.json";

}  // namespace cyfa::experiment
