// How each token reads the memory of cyclic_flow, for pictures and analyses: the operator's formulas written out over all pairs of tokens,
// in double precision, without autograd. Time grows with T^2 m, memory with T^2.
#pragma once

#include "cyfa/ops/cyclic_flow/cyclic_flow.h"

namespace cyfa::ops {

struct CyclicFlowReads {
  at::Tensor clock;   // [B, T, H] after each token
  at::Tensor beta;    // [B, T, H]: how strongly each token writes
  at::Tensor slots;   // [B, T, H, m]: w_t = R^T softmax(R K_t q_t), the weights of the slots in o_t = V_t^T w_t
  at::Tensor writes;  // [B, T, H, T]: the weights of the written values in the same sum, o_t = sum_i writes_t,i v_i
};

// Inputs from an empty state and without packed sequences; throws ArgumentError for others.
CyclicFlowReads cyclic_flow_reads(const CyclicFlowInputs& inputs, const CyclicFlowOptions& options = {});

}  // namespace cyfa::ops
