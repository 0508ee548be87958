/// The devices' memory, and pinned memory of the host.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <string>

#include "tests/support/fake_cuda/queues.h"

namespace tutti::test::fake_cuda {

/// Of a device, in bytes, unless told.
constexpr size_t kMemory = size_t{1} << 30;

/// Allocates on the calling thread's current device, for its current stream there. Registered as
/// the allocator of CUDA tensors.
c10::DeviceAllocator& device_memory();

/// The block that holds this address. -1: none does.
int device_of_memory(const void* data);

/// Of each device: at most this part of its memory may be in use, 0 to 1.
void set_memory_fraction(double fraction);

/// Page-locked memory. A block that is freed while a copy that was queued needs it stays until
/// then.
c10::Allocator& pinned_memory();
bool is_pinned(const void* data);
/// What was queued before the mark reads or writes the block at this address.
void record_pinned_use(const void* data, const Mark& mark);

}  // namespace tutti::test::fake_cuda
