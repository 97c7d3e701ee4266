#pragma once

#include <string>

namespace cyfa::app {

struct DoctorModelOptions {
  std::string model;          // a checkpoint, or a config whose parameters are drawn
  std::string device, dtype;  // empty: the GPU in bf16 where there is one, otherwise the CPU in fp32
  std::string engine = "auto";
  std::string json;
};

// Reports on a model, and checks the engine that is chosen. Returns the exit status.
int run_doctor_model(const DoctorModelOptions& options);

}  // namespace cyfa::app
