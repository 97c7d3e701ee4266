// key_decay for AVX2; see key_decay_impl.h. On another architecture isa_available() is false, and nobody calls this.
#include "cyfa/kernels/key_decay/key_decay_impl.h"

namespace cyfa::key_decay::impl {
namespace {

struct Avx2 {};
constexpr Table kTable = table_of<Avx2>();

}  // namespace

const Table& table_avx2() { return kTable; }

}  // namespace cyfa::key_decay::impl
