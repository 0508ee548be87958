// What c10 calls a guard: current devices, streams, and events between them.
#include "tests/support/fake_cuda/guard.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <atomic>
#include <memory>

#include "tests/support/fake_cuda/fake_cuda.h"
#include "tests/support/fake_cuda/memory.h"

namespace tutti::test::fake_cuda {
namespace {

std::atomic<int> device_count{2};
thread_local int current_device_here = 0;
thread_local std::array<int, kMostDevices> current_streams_here{};

int index_of(c10::Device device) {
  return device.index() < 0 ? current_device_here : static_cast<int>(device.index());
}

c10::Stream stream_of(int device, int stream) {
  return c10::Stream(c10::Stream::UNSAFE, {kCuda, static_cast<c10::DeviceIndex>(device)}, stream);
}

const Mark& mark_of_event(void* event) { return *static_cast<const Mark*>(event); }

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kCuda; }

  c10::Device getDevice() const override {
    return {kCuda, static_cast<c10::DeviceIndex>(current_device_here)};
  }
  void setDevice(c10::Device to) const override {
    TORCH_CHECK(to.index() < devices(), "CUDA error: invalid device ordinal: ", to, " of ",
                devices(), " devices");
    uncheckedSetDevice(to);
  }
  void uncheckedSetDevice(c10::Device to) const noexcept override {
    if (to.index() >= 0) current_device_here = to.index();
  }
  c10::Device exchangeDevice(c10::Device to) const override {
    const auto before = getDevice();
    setDevice(to);
    return before;
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(devices());
  }

  c10::Stream getStream(c10::Device device) const noexcept override {
    return stream_of(index_of(device), current_stream(index_of(device)));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return stream_of(index_of(device), 0);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return getNewStream(device, 0);
  }
  // As CUDA's: two pools, of which each gives its streams in turn.
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    static std::array<std::array<std::atomic<unsigned>, kMostDevices>, 2> next{};
    const int index = index_of(device), pool = priority < 0 ? 1 : 0;
    const unsigned in_pool = next.at(pool).at(index)++ % kPoolStreams;
    return stream_of(index, 1 + pool * kPoolStreams + static_cast<int>(in_pool));
  }
  c10::Stream exchangeStream(c10::Stream to) const noexcept override {
    const auto before = getStream(to.device());
    current_streams_here.at(to.device_index()) = static_cast<int>(to.id());
    return before;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return &queue_of_stream(stream);
  }
  bool queryStream(const c10::Stream& stream) const override {
    return query(mark_of(queue_of_stream(stream)));
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    wait_for(mark_of(queue_of_stream(stream)), "synchronizeStream");
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    wait_for_device(index_of({kCuda, device}), "synchronizeDevice");
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    if (*event == nullptr) *event = std::make_unique<Mark>().release();
    const Lock lock(lock_of_all());
    *static_cast<Mark*>(*event) = mark_of(queue_of_stream(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr || block_is_left_out()) return;
    const Lock lock(lock_of_all());
    enqueue_wait(queue_of_stream(stream), mark_of_event(event));
  }
  bool queryEvent(void* event) const override {
    const Lock lock(lock_of_all());
    return event == nullptr || query(mark_of_event(event));
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    const auto mark = [&] {
      const Lock lock(lock_of_all());
      return mark_of_event(event);
    }();
    wait_for(mark, "synchronizeEvent");
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    const std::unique_ptr<Mark> ends(static_cast<Mark*>(event));
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    if (!record_is_left_out()) device_memory().recordStream(data, stream);
  }
};

C10_REGISTER_GUARD_IMPL(CUDA, Guard)

}  // namespace

int current_device() noexcept { return current_device_here; }
int current_stream(int device) noexcept { return current_streams_here.at(device); }
Queue& current_queue(int device) { return queue_of(device, current_stream(device)); }
Queue& queue_of_stream(const c10::Stream& stream) {
  return queue_of(stream.device_index(), static_cast<int>(stream.id()));
}

void set_devices(int devices) {
  TORCH_CHECK(devices >= 0 && devices <= kMostDevices, "set_devices(", devices, "): 0 to ",
              kMostDevices);
  device_count = devices;
}
int devices() { return device_count; }

}  // namespace tutti::test::fake_cuda
