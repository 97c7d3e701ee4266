// The report of an experiment: report.md, metrics.json and pictures, written from the finished runs alone.
#pragma once

#include "cyfa/experiment/summary.h"

namespace cyfa::experiment {

// Writes the files to `folder`, replacing those of before. Returns their names, report.md first.
std::vector<std::string> write_report(const std::filesystem::path& folder, const Experiment& experiment, const Plan& plan,
                                      Results& results);

}  // namespace cyfa::experiment
