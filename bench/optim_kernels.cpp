// What an optimizer update costs, in CPU time an element and bytes a second; one thread.
//
//   Update/RULE/VARIANT/BLOCK/TOTAL   one rule on one instruction set over TOTAL float32 elements,
//   called
//                                     with BLOCK elements at a time, as the fused step does with
//                                     1,024
//
// TOTAL of 16 K lives in the cache: it shows arithmetic and the cost of a call. 16 M lives in
// memory.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tutti/optim/kernels/dispatch.h"

namespace {

using tutti::CpuVariant;
using tutti::optim::Rule;

void update(benchmark::State& state, const Rule& rule, CpuVariant variant) {
  const int64_t block = state.range(0), total = state.range(1);
  const auto length = static_cast<size_t>(total);
  std::vector<float> p(length, 1.0f), g(length, 0.1f), m(length, 0.0f), v(length, 0.0f);
  const auto& kernels = tutti::optim::detail::kernels_for(variant);
  const auto num_states = static_cast<size_t>(rule.num_states());
  // Far into training, so that the first step's shortcut is not what is measured.
  auto scalars = rule.next({}, 1e-6);
  for (int step = 0; step < 10; ++step) scalars = rule.next(scalars, 1e-6);
  for (auto _ : state) {
    for (int64_t at = 0; at < total; at += block) {
      void* const states[] = {m.data() + at, v.data() + at};
      tutti::optim::detail::update_with(kernels, rule.options(), tutti::DType::float32,
                                        p.data() + at, g.data() + at, std::span(states, num_states),
                                        std::min(block, total - at), scalars);
    }
    benchmark::ClobberMemory();
  }
  const double elements = static_cast<double>(state.iterations()) * static_cast<double>(total);
  // Read p, g and the states, write p and the states.
  state.SetBytesProcessed(static_cast<int64_t>(elements * (3.0 + 2.0 * double(num_states)) * 4));
  state.counters["per_element"] =
      benchmark::Counter(elements, benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

}  // namespace

int main(int argc, char** argv) {
  const std::pair<std::string, Rule> rules[] = {
      {"sgd_momentum", tutti::optim::sgd({.momentum = 0.9})},
      {"adam", tutti::optim::adam()},
      {"adamw", tutti::optim::adamw()},
  };
  for (const auto& [name, rule] : rules)
    for (CpuVariant variant : tutti::runnable_variants())
      benchmark::RegisterBenchmark(
          ("Update/" + name + "/" + std::string(tutti::name_of(variant))).c_str(),
          [rule = rule, variant](benchmark::State& state) { update(state, rule, variant); })
          ->Args({1024, 1 << 14})
          ->Args({1 << 14, 1 << 14})
          ->Args({1024, 1 << 24})
          ->Args({1 << 24, 1 << 24});
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
}
