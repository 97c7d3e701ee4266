// A file of operator vectors: inputs of cyclic_flow, gradients coming in, and what should come out.
//
//   inputs     q, k [B,T,H,K]; v [B,T,H,V]; g (log_alpha), delta, beta [B,T,H]; readout [H,m,m]
//   optional   q_norm_weight, k_norm_weight [K]; initial_k [N,H,K,M], initial_v [N,H,M,V], initial_lambda [N,H] (all three or none);
//              cu_seqlens [N+1] (I64 or I32), which packs N sequences into a batch of one; without it N = B
//   upstream   do [B,T,H,V]; d_final_k, d_final_v, d_final_lambda, as the final state: each optional
//   expected   o [B,T,H,V]; final_k, final_v, final_lambda; d_ and the name of an input: any of them, at least one
//   metadata   scale (default K^-1/2) and norm_eps (default 1e-6), as decimal text
#pragma once

#include <filesystem>

#include "apps/parse.h"
#include "cyfa/ops/cases/op_case.h"

namespace cyfa::app {

struct OpFile {
  cases::Tensors inputs, gradients;  // fp64, on the CPU; under the names of cyfa/ops/cases/op_case.h, as all here
  cases::NamedTensors expected;      // fp64, in the order above
  cases::RunOptions options;
};

// Throws io::FileError that names the file and the tensor.
OpFile read_op_file(const std::filesystem::path& path);

// Inputs or gradients as an op takes them, on a device: q, k, v and o in dtype, the clocks in fp64, the rest in fp32 (fp64 for fp64).
// cu_seqlens stays as it is.
cases::Tensors converted(const cases::Tensors& x, at::ScalarType dtype, at::Device device);

}  // namespace cyfa::app
