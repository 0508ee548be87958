#include "tutti/plan/counted_machine.h"

#include <fmt/format.h>

#include "tutti/base/error.h"

namespace tutti::plan {

Machine counted_machine(const std::string& model, const Arithmetic& counted,
                        double operations_per_second) {
  if (!(operations_per_second > 0))
    throw UsageError(
        fmt::format("{} operations a second; expected more than 0", operations_per_second));
  constexpr double kMemoryRate = 1e12;
  constexpr double kUpdateBytes = 28;  // Adam: seven streams of float32
  const double sample = counted.operations() / operations_per_second;
  const auto parameters = static_cast<double>(counted.parameters);
  return {.name = fmt::format("{:g} GFLOP/s, by counting", 1e-9 * operations_per_second),
          .model = model,
          .parameters = counted.parameters,
          .bytes = 4 * counted.parameters,
          .largest_parameter = 4 * counted.largest_parameter,
          .compute = {{.batch = 1, .forward = sample / 3, .backward = sample * 2 / 3}},
          .update = kUpdateBytes * parameters / kMemoryRate,
          .core_memory_rate = kMemoryRate,
          .memory_rate = kMemoryRate,
          .memory = int64_t{1} << 50,
          .fixed_memory = 16 * parameters,
          .sample_memory = 8 * static_cast<double>(counted.values),
          .shm = {.latency = 1e-6, .bytes_per_second = 1e11},
          .tcp = {.latency = 1e-5, .bytes_per_second = 1e11},
          .compute_error = 0.2};
}

}  // namespace tutti::plan
