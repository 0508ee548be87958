/// Generators of the devices: a seed and an offset, as CUDA's Philox generators.
#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>
#include <optional>

namespace tutti::test::fake_cuda {

/// The device's default one.
const at::Generator& default_generator(int device);
at::Generator new_generator(int device);

/// What an operator needs of `given`, or of the device's default generator: a seed, drawn now, for
/// a generator of its own. So its numbers do not depend on when it runs. Throws c10::Error for a
/// generator of another device.
uint64_t draw_seed(const std::optional<at::Generator>& given, int device);

}  // namespace tutti::test::fake_cuda
