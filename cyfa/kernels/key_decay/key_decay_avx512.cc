// key_decay_impl.h compiled for AVX-512. On other architectures isa_available() is false and the table is not used.
#include "cyfa/kernels/key_decay/key_decay_impl.h"

namespace cyfa::key_decay::impl {
namespace {

struct Avx512 {};
constexpr Table kTable = table_of<Avx512>();

}  // namespace

const Table& table_avx512() { return kTable; }

}  // namespace cyfa::key_decay::impl
