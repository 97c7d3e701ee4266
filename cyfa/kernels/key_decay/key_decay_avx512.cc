// key_decay for AVX512; see key_decay_impl.h. On another architecture isa_available() is false, and nobody calls this.
#include "cyfa/kernels/key_decay/key_decay_impl.h"

namespace cyfa::key_decay::impl {
namespace {

struct Avx512 {};
constexpr Table kTable = table_of<Avx512>();

}  // namespace

const Table& table_avx512() { return kTable; }

}  // namespace cyfa::key_decay::impl
