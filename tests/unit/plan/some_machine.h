#pragma once

#include "tutti/plan/machine.h"

namespace tutti::test {

/// 1 ms of forward and 2 of backward for 8 samples, ten times that for 80; 1 M parameters.
inline plan::Machine some_machine() {
  plan::Machine machine;
  machine.name = "here";
  machine.model = "net";
  machine.parameters = 1'000'000;
  machine.bytes = 4'000'000;
  machine.largest_parameter = 40'000;
  machine.compute = {{8, 1e-3, 2e-3}, {80, 10e-3, 20e-3}};
  machine.update = 0.5e-3;
  machine.input = 1e-6;
  machine.cores = 4;
  machine.core_memory_rate = 1e10;
  machine.memory_rate = 2e10;
  machine.memory = int64_t{16} << 30;
  machine.fixed_memory = 16e6;
  machine.sample_memory = 1e5;
  machine.shm = {1e-6, 1e10};
  machine.tcp = {1e-5, 2e9};
  return machine;
}

}  // namespace tutti::test
