// The fixture of tests that need a GPU: they are skipped where there is none.
#pragma once

#include <gtest/gtest.h>
#include <torch/cuda.h>

namespace cyfa::test {

// Base: testing::Test, or testing::TestWithParam of some type.
template <class Base = testing::Test>
class OnGpu : public Base {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device, or a torch without CUDA";
  }
};

}  // namespace cyfa::test
