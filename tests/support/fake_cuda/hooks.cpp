// What LibTorch asks of CUDA that is neither an operator nor a guard: hooks, generators, settings
// of the allocator.
#include <ATen/ATen.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/AllocatorConfig.h>

#include <array>
#include <cstring>
#include <memory>
#include <unordered_set>

#include "tests/support/fake_cuda/fake_cuda.h"
#include "tests/support/fake_cuda/generators.h"
#include "tests/support/fake_cuda/guard.h"
#include "tests/support/fake_cuda/memory.h"

namespace tutti::test::fake_cuda {
namespace {

class Generator final : public c10::GeneratorImpl {
 public:
  explicit Generator(c10::Device device)
      : GeneratorImpl(device, c10::DispatchKeySet(c10::DispatchKey::CUDA)) {}

  // The numbers of CUDA's offset: four at least to an operator.
  uint64_t draw() {
    uint64_t mixed = seed_ + 0x9e3779b97f4a7c15 * (offset_ + 1);
    offset_ += 4;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;  // splitmix64
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
    return mixed ^ (mixed >> 31);
  }

  void set_current_seed(uint64_t seed) override {
    seed_ = seed;
    offset_ = 0;
  }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return seed_;
  }
  void set_offset(uint64_t offset) override {
    TORCH_CHECK(offset % 4 == 0, "offset must be a multiple of 4");
    offset_ = offset;
  }
  uint64_t get_offset() const override { return offset_; }

  void set_state(const c10::TensorImpl& state) override {
    TORCH_CHECK(state.numel() == kStateBytes && state.dtype() == caffe2::TypeMeta::Make<uint8_t>(),
                "RNG state is wrong size: ", state.numel(), " elements, expected ", kStateBytes,
                " bytes");
    const auto* const bytes = static_cast<const uint8_t*>(state.data());
    std::memcpy(&seed_, bytes, sizeof seed_);
    std::memcpy(&offset_, bytes + sizeof seed_, sizeof offset_);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    auto state = at::empty({kStateBytes}, at::kByte);
    std::memcpy(state.mutable_data_ptr(), &seed_, sizeof seed_);
    std::memcpy(state.mutable_data_ptr<uint8_t>() + sizeof seed_, &offset_, sizeof offset_);
    return state.getIntrusivePtr();
  }

 private:
  static constexpr int64_t kStateBytes = 16;  // as CUDA's: the seed, then the offset

  c10::GeneratorImpl* clone_impl() const override {
    auto copy = std::make_unique<Generator>(device());
    copy->seed_ = seed_;
    copy->offset_ = offset_;
    return copy.release();
  }

  uint64_t seed_ = c10::default_rng_seed_val;
  uint64_t offset_ = 0;
};

class Hooks final : public at::CUDAHooksInterface {
 public:
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return devices() > 0; }
  bool hasCUDA() const override { return devices() > 0; }
  bool hasCUDART() const override { return true; }
  int getNumGPUs() const override { return devices(); }
  long versionCUDART() const override { return 13000; }
  std::string showConfig() const override { return "a fake CUDA of the tests\n"; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(devices()); }
  c10::DeviceIndex current_device() const override { return getCurrentDevice(); }
  c10::DeviceIndex getCurrentDevice() const override {
    return static_cast<c10::DeviceIndex>(fake_cuda::current_device());
  }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory(); }
  c10::Allocator* getCUDADeviceAllocator() const override { return &device_memory(); }
  at::Device getDeviceFromPtr(void* data) const override {
    const int device = device_of_memory(data);
    TORCH_CHECK(device >= 0,
                "The specified pointer resides on host memory and is not registered "
                "with any CUDA device.");
    return {kCuda, static_cast<c10::DeviceIndex>(device)};
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(device < 0 ? fake_cuda::current_device() : device);
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return new_generator(device < 0 ? fake_cuda::current_device() : device);
  }
  void deviceSynchronize(c10::DeviceIndex device) const override {
    wait_for_device(device, "deviceSynchronize");
  }
};

// Those of CUDA's allocator alone; what all allocators know, LibTorch itself reads.
const std::unordered_set<std::string>& settings_of_cuda() {
  static const std::unordered_set<std::string> all{"backend",
                                                   "release_lock_on_cudamalloc",
                                                   "pinned_use_cuda_host_register",
                                                   "graph_capture_record_stream_reuse",
                                                   "per_process_memory_fraction",
                                                   "pinned_reserve_segment_size_mb",
                                                   "pinned_num_register_threads"};
  return all;
}

void read_settings(const std::string& text) {
  using c10::CachingAllocator::AcceleratorAllocatorConfig;
  const c10::CachingAllocator::ConfigTokenizer tokens(text);
  for (size_t at = 0; at < tokens.size(); ++at) {
    const auto& key = tokens[at];
    TORCH_CHECK_VALUE(AcceleratorAllocatorConfig::getKeys().contains(key), "Unrecognized key '",
                      key, "' in CUDA allocator config.");
    if (key == "per_process_memory_fraction") {
      const double fraction = tokens.toDouble(at + 2);
      TORCH_CHECK_VALUE(fraction >= 0 && fraction <= 1,
                        "per_process_memory_fraction is invalid, set it in [0.0, 1.0]");
      set_memory_fraction(fraction);
    }
    at = tokens.skipKey(at);
    if (at + 1 < tokens.size()) ++at;  // the comma
  }
}

const c10::CachingAllocator::DeviceConfigParserHookRegistry reads_settings(&read_settings,
                                                                           settings_of_cuda());

const bool is_the_allocator = [] {
  c10::SetAllocator(kCuda, &device_memory());
  return true;
}();

// What the macro below names without its namespace.
using at::CUDAHooksRegistry;
using at::RegistererCUDAHooksRegistry;
std::unique_ptr<at::CUDAHooksInterface> make_hooks(at::CUDAHooksArgs) {
  return std::make_unique<Hooks>();
}
C10_REGISTER_CREATOR(CUDAHooksRegistry, CUDAHooks, make_hooks)

}  // namespace

const at::Generator& default_generator(int device) {
  static const auto& all = *[] {
    auto made = std::make_unique<std::array<at::Generator, kMostDevices>>();
    for (int each = 0; each < kMostDevices; ++each) made->at(each) = new_generator(each);
    return made.release();
  }();
  return all.at(device);
}

at::Generator new_generator(int device) {
  return at::make_generator<Generator>(c10::Device(kCuda, static_cast<c10::DeviceIndex>(device)));
}

uint64_t draw_seed(const std::optional<at::Generator>& given, int device) {
  const bool is_given = given && given->defined();
  const at::Generator generator = is_given ? *given : default_generator(device);
  TORCH_CHECK(generator.device().type() == kCuda,
              "Expected a 'cuda' device type for generator but found '", generator.device().type(),
              "'");
  auto* const ours = static_cast<Generator*>(generator.unsafeGetGeneratorImpl());
  const std::lock_guard lock(ours->mutex_);
  return ours->draw();
}

}  // namespace tutti::test::fake_cuda
