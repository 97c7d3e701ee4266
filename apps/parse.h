// The words by which the command line names types and devices.
#pragma once

#include <torch/types.h>

#include <string>

namespace cyfa::app {

at::ScalarType parse_dtype(const std::string& name);  // "fp32", "fp64", "bf16"
at::Device parse_device(const std::string& name);     // "cpu" or "cuda"; throws if there is no GPU

}  // namespace cyfa::app
