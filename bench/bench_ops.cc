// Times of the ops for a few shapes, and of a plain matrix product to read them by:
//   build/bench_ops --benchmark_filter=cyclic_flow --benchmark_repetitions=5
// Nothing is checked here; `cyfa bench op` checks first.
#include <benchmark/benchmark.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include "cyfa/ops/cases/op_case.h"

namespace {

using benchmark::Counter;
using benchmark::State;
using namespace cyfa::cases;

// Arguments of every benchmark of an op: B, T, H, K = V, M.
OpShape shape_of(const State& state) {
  return {state.range(0), state.range(1), state.range(2), state.range(3), state.range(3), state.range(4)};
}

void count(State& state, double flops) {
  const auto runs = static_cast<double>(state.iterations());
  state.counters["FLOP/s"] = Counter(flops * runs, Counter::kIsRate);
  state.counters["tokens/s"] = Counter(static_cast<double>(state.range(0) * state.range(1)) * runs, Counter::kIsRate);
}

void forward(State& state, Op op) {
  const at::NoGradGuard no_grad;
  const OpShape shape = shape_of(state);
  const auto call = prepared_call(op, make_inputs(layer_case(op, shape, at::kFloat)));
  for (auto _ : state) benchmark::DoNotOptimize(call());
  count(state, op_flops(op, shape).forward);
}

void forward_backward(State& state, Op op) {
  const OpShape shape = shape_of(state);
  const Tensors in = with_gradients(make_inputs(layer_case(op, shape, at::kFloat)));
  const auto call = prepared_call(op, in);
  const at::Tensor grad = random_normal(in.at("v").sizes(), at::kFloat, at::kCPU, 2);
  for (auto _ : state) benchmark::DoNotOptimize(torch::autograd::grad({call()}, leaves(in), {grad}));
  const Flops flops = op_flops(op, shape);
  count(state, flops.forward + flops.backward);
}

// Small batches stay in the cache; 64 sequences of the 400M model's layer do not.
void cyclic_flow_step(State& state) {
  const OpShape shape = shape_of(state);
  const Tensors token = make_inputs(layer_case(Op::kCyclicFlow, shape, at::kFloat));
  const auto memory = first_state(token);
  const auto in = step_inputs(token, 0);
  for (auto _ : state) benchmark::DoNotOptimize(cyfa::ops::cyclic_flow_step(in, memory));
  const auto runs = static_cast<double>(state.iterations());
  state.counters["bytes/s"] = Counter(step_bytes(shape) * runs, Counter::kIsRate);
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

void add_benchmarks() {
  benchmark::RegisterBenchmark("sgemm", sgemm)->Arg(256)->UseRealTime()->Unit(benchmark::kMicrosecond);
  benchmark::RegisterBenchmark("cyclic_flow_forward", forward, Op::kCyclicFlow)->Apply(op_shapes);
  for (const Op op : all_ops()) {
    benchmark::RegisterBenchmark((op_name(op) + "_forward_backward").c_str(), forward_backward, op)->Apply(op_shapes);
  }
  benchmark::RegisterBenchmark("cyclic_flow_step", cyclic_flow_step)->Apply(step_shapes);
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  add_benchmarks();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
