// Switches torch.autocast on or off for a scope.
#pragma once

#include <ATen/autocast_mode.h>

namespace cyfa::test {

class Autocast {
 public:
  explicit Autocast(at::DeviceType device, bool on = true) : device_(device), before_(at::autocast::is_autocast_enabled(device)) {
    at::autocast::set_autocast_dtype(device, at::kBFloat16);
    at::autocast::set_autocast_enabled(device, on);
  }
  ~Autocast() { at::autocast::set_autocast_enabled(device_, before_); }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  at::DeviceType device_;
  bool before_;
};

}  // namespace cyfa::test
