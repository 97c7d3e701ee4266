// Times of the ops for a few shapes, and of a plain matrix product to read them by:
//   build/bench_ops --benchmark_filter=cyclic_flow --benchmark_repetitions=5
// Nothing is checked here; `cyfa bench op` checks first.
#include <benchmark/benchmark.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include "apps/op_case.h"
#include "cyfa/ops/cyclic_flow/cyclic_flow.h"
#include "cyfa/ops/recurrence/table.h"

namespace {

using benchmark::Counter;
using benchmark::State;
using cyfa::app::OpShape;

// Arguments of every benchmark of an op: B, T, H, K = V, M.
OpShape shape_of(const State& state) {
  return {state.range(0), state.range(1), state.range(2), state.range(3), state.range(3), state.range(4)};
}

void count(State& state, double flops) {
  const auto runs = static_cast<double>(state.iterations());
  state.counters["FLOP/s"] = Counter(flops * runs, Counter::kIsRate);
  state.counters["tokens/s"] = Counter(static_cast<double>(state.range(0) * state.range(1)) * runs, Counter::kIsRate);
}

void cyclic_flow_forward(State& state) {
  const at::NoGradGuard no_grad;
  const OpShape shape = shape_of(state);
  const auto in = cyfa::app::random_cyclic_flow(shape, at::kFloat, at::kCPU);
  for (auto _ : state) benchmark::DoNotOptimize(cyfa::ops::cyclic_flow(in).o);
  count(state, cyfa::app::cyclic_flow_flops(shape).forward);
}

void cyclic_flow_forward_backward(State& state) {
  const OpShape shape = shape_of(state);
  const auto in = cyfa::app::with_gradients(cyfa::app::random_cyclic_flow(shape, at::kFloat, at::kCPU));
  const at::Tensor grad = cyfa::app::random_normal(in.v.sizes(), at::kFloat, at::kCPU, 2);
  for (auto _ : state) benchmark::DoNotOptimize(torch::autograd::grad({cyfa::ops::cyclic_flow(in).o}, cyfa::app::leaves(in), {grad}));
  const cyfa::app::Flops flops = cyfa::app::cyclic_flow_flops(shape);
  count(state, flops.forward + flops.backward);
}

void recurrence_forward_backward(State& state, const char* op) {
  const cyfa::ops::Recurrence& r = cyfa::ops::recurrence_of(op);
  const OpShape shape = shape_of(state);
  const auto in = cyfa::app::with_gradients(cyfa::app::random_recurrence(r, shape, at::kFloat, at::kCPU));
  const at::Tensor grad = cyfa::app::random_normal(in.v.sizes(), at::kFloat, at::kCPU, 2);
  for (auto _ : state)
    benchmark::DoNotOptimize(torch::autograd::grad({cyfa::ops::run_recurrence(r, in, {}).o}, cyfa::app::leaves(in), {grad}));
  const cyfa::app::Flops flops = cyfa::app::recurrence_flops(r, shape);
  count(state, flops.forward + flops.backward);
}

// Small batches stay in the cache; 64 sequences of the 400M model's layer do not.
void cyclic_flow_step(State& state) {
  const OpShape shape = shape_of(state);
  const auto token = cyfa::app::random_cyclic_flow(shape, at::kFloat, at::kCPU);
  const auto memory = cyfa::app::first_state(token);
  const auto in = cyfa::app::step_inputs(token, 0);
  for (auto _ : state) benchmark::DoNotOptimize(cyfa::ops::cyclic_flow_step(in, memory));
  const auto runs = static_cast<double>(state.iterations());
  state.counters["bytes/s"] = Counter(cyfa::app::step_bytes(shape) * runs, Counter::kIsRate);
  state.counters["tokens/s"] = Counter(static_cast<double>(shape.B) * runs, Counter::kIsRate);
}

void sgemm(State& state) {
  const int64_t n = state.range(0);
  const at::Tensor a = at::randn({n, n});
  const at::Tensor b = at::randn({n, n});
  at::Tensor out = at::empty({n, n});
  for (auto _ : state) at::mm_out(out, a, b);
  const auto size = static_cast<double>(n);
  state.counters["FLOP/s"] = Counter(2 * size * size * size * static_cast<double>(state.iterations()), Counter::kIsRate);
}

void op_shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"B", "T", "H", "D", "M"})->Args({1, 2048, 4, 256, 128})->Args({4, 512, 4, 256, 128})->Args({1, 1024, 4, 64, 64});
  b->UseRealTime()->Unit(benchmark::kMillisecond);
}

void step_shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"B", "T", "H", "D", "M"})->Args({1, 1, 4, 256, 128})->Args({8, 1, 4, 256, 128})->Args({64, 1, 4, 256, 128});
  b->UseRealTime()->Unit(benchmark::kMicrosecond);
}

BENCHMARK(sgemm)->Arg(256)->UseRealTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(cyclic_flow_forward)->Apply(op_shapes);
BENCHMARK(cyclic_flow_forward_backward)->Apply(op_shapes);
BENCHMARK_CAPTURE(recurrence_forward_backward, la, "la")->Apply(op_shapes);
BENCHMARK_CAPTURE(recurrence_forward_backward, fixed_scalar_gated_la, "fixed_scalar_gated_la")->Apply(op_shapes);
BENCHMARK_CAPTURE(recurrence_forward_backward, scalar_gated_la, "scalar_gated_la")->Apply(op_shapes);
BENCHMARK_CAPTURE(recurrence_forward_backward, row_gated_la, "row_gated_la")->Apply(op_shapes);
BENCHMARK_CAPTURE(recurrence_forward_backward, column_gated_la, "column_gated_la")->Apply(op_shapes);
BENCHMARK_CAPTURE(recurrence_forward_backward, delta_rule, "delta_rule")->Apply(op_shapes);
BENCHMARK_CAPTURE(recurrence_forward_backward, scalar_gated_delta_rule, "scalar_gated_delta_rule")->Apply(op_shapes);
BENCHMARK_CAPTURE(recurrence_forward_backward, row_gated_delta_rule, "row_gated_delta_rule")->Apply(op_shapes);
BENCHMARK(cyclic_flow_step)->Apply(step_shapes);

}  // namespace

BENCHMARK_MAIN();
