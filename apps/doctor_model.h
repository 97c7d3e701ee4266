#pragma once

#include <string>

namespace cyfa::app {

struct DoctorModelOptions {
  std::string model;  // a checkpoint, or a config, which gets random parameters
  std::string device = "cpu";
  std::string dtype;  // empty: as stored; of a config, bf16 on a GPU and fp32 on a CPU
  std::string engine = "auto";
  std::string json;
};

// Reports on a model, and checks the engine that is chosen. Returns the exit status.
int run_doctor_model(const DoctorModelOptions& options);

}  // namespace cyfa::app
