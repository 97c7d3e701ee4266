// Dispatch of the key_decay.h functions to the widest instruction set, and their baseline version.
#include "cyfa/kernels/key_decay/key_decay.h"

#include "cyfa/kernels/cpu/isa.h"
#include "cyfa/kernels/key_decay/key_decay_impl.h"

#ifdef __SSE__
#include <xmmintrin.h>
#endif

namespace cyfa::key_decay {
namespace {

struct Baseline {};
constexpr impl::Table kBaseline = impl::table_of<Baseline>();

const impl::Table& table() {
  static const impl::Table& best = [&]() -> const impl::Table& {
    switch (cpu::best_isa()) {
      case cpu::Isa::kAvx512: return impl::table_avx512();
      case cpu::Isa::kAvx2: return impl::table_avx2();
      case cpu::Isa::kBaseline: break;
    }
    return impl::table_baseline();
  }();
  return best;
}

// Products of many gates become denormal numbers, with which x86 computes about a hundred times as slowly. While an object of this class
// lives, this thread treats them as zero.
class FlushDenormals {
 public:
#ifdef __SSE__
  FlushDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }  // flush to zero (FTZ), denormals are zeros (DAZ)
  ~FlushDenormals() { _mm_setcsr(before_); }

 private:
  unsigned int before_;
#else
  FlushDenormals() {}
#endif
};

}  // namespace

const impl::Table& impl::table_baseline() { return kBaseline; }

void from_start(const Stretches& s, int64_t begin, int64_t end, int64_t width, const float* x, const float* alpha, float* out) {
  const FlushDenormals flush;
  table().from_start(s, begin, end, width, x, alpha, out);
}

void to_end(const Stretches& s, int64_t begin, int64_t end, int64_t width, const float* x, const float* alpha, float* out) {
  const FlushDenormals flush;
  table().to_end(s, begin, end, width, x, alpha, out);
}

void from_start_backward(const Stretches& s, int64_t begin, int64_t end, int64_t width, const float* grad, const float* out,
                         const float* alpha, float* grad_x, float* grad_log) {
  const FlushDenormals flush;
  table().from_start_backward(s, begin, end, width, grad, out, alpha, grad_x, grad_log);
}

void to_end_backward(const Stretches& s, int64_t begin, int64_t end, int64_t width, const float* grad, const float* out, const float* alpha,
                     float* grad_x, float* grad_log) {
  const FlushDenormals flush;
  table().to_end_backward(s, begin, end, width, grad, out, alpha, grad_x, grad_log);
}

void block_scores(int64_t size, int64_t width, const float* x, const float* y, const float* alpha, float* weights, int64_t stride) {
  const FlushDenormals flush;
  table().block_scores(size, width, x, y, alpha, weights, stride);
}

void block_apply(int64_t size, int64_t width, const float* weights, int64_t stride, const float* y, const float* alpha, float* out) {
  const FlushDenormals flush;
  table().block_apply(size, width, weights, stride, y, alpha, out);
}

void block_backward(int64_t size, int64_t width, const float* weights, int64_t stride, const float* x, const float* y, const float* alpha,
                    float* grad_x, float* grad_y, float* grad_log) {
  const FlushDenormals flush;
  table().block_backward(size, width, weights, stride, x, y, alpha, grad_x, grad_y, grad_log);
}

}  // namespace cyfa::key_decay
