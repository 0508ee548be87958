// Our Adam beside torch's fused one (at::_fused_adam_), one thread, float32, the same tensors'
// sizes.
//
//   Ours/BLOCK/TOTAL    Rule::update in blocks     Torch/TOTAL    at::_fused_adam_ on the whole
//
// Run with --benchmark_repetitions=5 --benchmark_enable_random_interleaving=true, so that both see
// the same machine, and compare medians of the CPU time.
#include <benchmark/benchmark.h>
#include <torch/torch.h>

#include <algorithm>

#include "tutti/optim/rule.h"

namespace {

struct Tensors {
  at::Tensor p, g, m, v;

  explicit Tensors(int64_t n)
      : p(torch::ones({n})),
        g(torch::full({n}, 0.1f)),
        m(torch::zeros({n})),
        v(torch::zeros({n})) {}
};

void report(benchmark::State& state, int64_t total) {
  const double elements = static_cast<double>(state.iterations()) * static_cast<double>(total);
  state.SetBytesProcessed(static_cast<int64_t>(elements * 28));
  state.counters["per_element"] =
      benchmark::Counter(elements, benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void ours(benchmark::State& state) {
  const int64_t block = state.range(0), total = state.range(1);
  Tensors t(total);
  const auto rule = tutti::optim::adam({.learning_rate = 1e-6});
  tutti::optim::StepScalars scalars;
  auto* p = t.p.data_ptr<float>();
  const auto* g = t.g.data_ptr<float>();
  auto* m = t.m.data_ptr<float>();
  auto* v = t.v.data_ptr<float>();
  for (auto _ : state) {
    scalars = rule.next(scalars, 1e-6);
    for (int64_t at = 0; at < total; at += block) {
      void* const states[] = {m + at, v + at};
      rule.update(tutti::DType::float32, p + at, g + at, states, std::min(block, total - at),
                  scalars);
    }
  }
  report(state, total);
}

void torch_fused(benchmark::State& state) {
  const int64_t total = state.range(0);
  Tensors t(total);
  auto step = torch::zeros({});
  torch::NoGradGuard no_grad;
  for (auto _ : state) {
    step += 1;
    at::_fused_adam_({t.p}, {t.g}, {t.m}, {t.v}, {}, {step}, 1e-6, 0.9, 0.999, 0.0, 1e-8, false,
                     false);
  }
  report(state, total);
}

BENCHMARK(ours)->Args({1024, 1 << 14})->Args({1024, 1 << 20})->Args({1024, 1 << 24});
BENCHMARK(torch_fused)->Arg(1 << 14)->Arg(1 << 20)->Arg(1 << 24);

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
}
