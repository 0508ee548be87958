/// The calling thread's current device and streams.
#pragma once

#include <c10/core/Stream.h>

#include "tests/support/fake_cuda/queues.h"

namespace tutti::test::fake_cuda {

constexpr auto kCuda = c10::DeviceType::CUDA;

int current_device() noexcept;
/// The number of the calling thread's current stream on a device.
int current_stream(int device) noexcept;
/// The queue of that stream.
Queue& current_queue(int device);
Queue& queue_of_stream(const c10::Stream& stream);

}  // namespace tutti::test::fake_cuda
