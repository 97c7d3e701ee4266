// cyclic_flow_reads writes the operator out: its weights, summed over the written values, must give the operator's output.
#include "cyfa/ops/cyclic_flow/reads.h"

#include <gtest/gtest.h>

#include "cyfa/ops/common/check.h"

namespace cyfa::ops {
namespace {

CyclicFlowInputs random_inputs(bool norms) {
  at::manual_seed(3);
  const int64_t B = 2, T = 37, H = 3, K = 8, V = 5, m = 7;
  const auto real = at::TensorOptions(at::kDouble);
  CyclicFlowInputs in;
  in.q = at::randn({B, T, H, K}, real) * 3;
  in.k = at::randn({B, T, H, K}, real);
  in.v = at::randn({B, T, H, V}, real);
  in.log_alpha = -0.2 * at::rand({B, T, H}, real);
  in.delta = at::rand({B, T, H}, real);
  in.beta = at::rand({B, T, H}, real);
  in.readout = at::eye(m, real).repeat({H, 1, 1}) + 0.2 * at::randn({H, m, m}, real);
  if (norms) {
    in.q_norm_weight = at::rand({K}, real) + 0.5;
    in.k_norm_weight = at::rand({K}, real) + 0.5;
  }
  return in;
}

TEST(CyclicFlowReads, TheWeightsGiveTheOutput) {
  for (const bool norms : {false, true}) {
    CyclicFlowInputs in = random_inputs(norms);
    in.log_alpha.index_put_({at::tensor(0), at::tensor(5)}, -1e5);  // forgets everything
    const CyclicFlowReads reads = cyclic_flow_reads(in);
    const at::Tensor o = at::einsum("bthi,bihv->bthv", {reads.writes, in.v});
    EXPECT_LT((o - cyclic_flow(in).o).norm().item<double>(), 1e-9 * o.norm().item<double>());
    EXPECT_LT(reads.writes[0].slice(0, 5).slice(2, 0, 5).abs().max().item<double>(), 1e-12);
    EXPECT_EQ(reads.writes.transpose(1, 2).triu(1).abs().max().item<double>(), 0);  // nobody reads the future
    EXPECT_TRUE(at::allclose(reads.clock.select(1, 36), in.delta.sum(1)));
  }
}

TEST(CyclicFlowReads, RefusesAStateAndPackedSequences) {
  CyclicFlowInputs in = random_inputs(false);
  in.cu_seqlens = at::tensor({0, 37}, at::kLong);
  EXPECT_THROW(cyclic_flow_reads(in), ArgumentError);
}

}  // namespace
}  // namespace cyfa::ops
