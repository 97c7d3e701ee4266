// torch.autocast and the ops: every function that computes switches autocast off for its own duration. The ops choose their types
// themselves (fp32 sums, an fp64 clock), and a product that autocast rounds to bf16 would change their results without a warning. So they
// give the same bits inside and outside of autocast, also in a backward that is called inside of it.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

namespace cyfa::ops {

// Switches autocast off on this thread, for all devices, until the end of the scope.
class WithoutAutocast {
  c10::impl::ExcludeDispatchKeyGuard guard_{c10::autocast_dispatch_keyset};
};

}  // namespace cyfa::ops
