#include "tutti/queues/runtime.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>
#include <torch/types.h>
#include <torch/version.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <string_view>
#include <typeinfo>

#include "tutti/base/error.h"

#if __has_include(<c10/core/AllocatorConfig.h>) && \
    __has_include(<c10/core/CachingDeviceAllocator.h>)
#include <c10/core/AllocatorConfig.h>
#include <c10/core/CachingDeviceAllocator.h>
#define TUTTI_TORCH_KNOWS_ALLOCATORS 1
#else
#define TUTTI_TORCH_KNOWS_ALLOCATORS 0
#endif

namespace tutti {
namespace {

constexpr const char* kLibrary = "libtorch_cuda.so";

const c10::impl::DeviceGuardImplInterface* cuda_guard() {
  return c10::impl::device_guard_impl_registry[static_cast<size_t>(c10::DeviceType::CUDA)].load();
}

/// Beside the LibTorch that this program runs on.
std::string beside_libtorch() {
  Dl_info facts{};
  if (dladdr(reinterpret_cast<void*>(&at::globalContext), &facts) == 0) return kLibrary;
  return std::filesystem::path(facts.dli_fname).parent_path() / kLibrary;
}

std::string path_of(void* library) {
  link_map* map = nullptr;
  return dlinfo(library, RTLD_DI_LINKMAP, static_cast<void*>(&map)) == 0 ? map->l_name : kLibrary;
}

// Hooks are looked up once in a process; without CUDA's library it keeps those that have nothing.
bool looked_too_early() {
  const at::CUDAHooksInterface& hooks = at::detail::getCUDAHooks();
  return typeid(hooks) == typeid(at::CUDAHooksInterface);
}

/// Where the library was found; or why there is none, in words.
bool load_library(std::string& library, std::string& why) {
  if (TUTTI_TORCH_KNOWS_ALLOCATORS == 0) {
    why = fmt::format("this LibTorch ({}) is older than what devices need: 2.11 or newer does",
                      TORCH_VERSION);
    return false;
  }
  for (const std::string& name : {std::string(kLibrary), beside_libtorch()}) {
    if (void* const opened = dlopen(name.c_str(), RTLD_NOW | RTLD_GLOBAL)) {
      library = path_of(opened);
      return true;
    }
    const char* const said = dlerror();
    why = said != nullptr ? said : "dlopen failed";
  }
  if (!std::filesystem::exists(beside_libtorch()))
    why = fmt::format(
        "this LibTorch ({}) has no CUDA\n  set Torch_DIR to a CUDA build (tools/setup --cuda "
        "installs "
        "one: torch===2.13.0 of pip) and configure again",
        TORCH_VERSION);
  else
    why = fmt::format(
        "{}\n  a library that LibTorch's CUDA needs is missing or another one: "
        "tools/setup --cuda installs them all",
        why);
  return false;
}

}  // namespace

DeviceRuntime* DeviceRuntime::try_load(std::string* why) {
  static std::mutex mutex;
  static DeviceRuntime runtime;
  static bool loaded = false;
  static std::string failure;
  const std::lock_guard lock(mutex);
  if (!loaded && failure.empty()) {
    loaded = load_library(runtime.library_, failure);
    if (loaded && looked_too_early()) {
      loaded = false;
      failure =
          "LibTorch had looked for CUDA before it was loaded; make the strategy (or call "
          "list_physical_devices()) before the first tensor";
    }
  }
  if (loaded) return &runtime;
  if (why != nullptr) *why = failure;
  return nullptr;
}

DeviceRuntime& DeviceRuntime::load() {
  std::string why;
  if (DeviceRuntime* const runtime = try_load(&why)) return *runtime;
  throw UsageError("device cuda: " + why);
}

int DeviceRuntime::count() const { return cuda_guard()->deviceCount(); }

void DeviceRuntime::require_any() const {
  if (count() > 0) return;
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  throw UsageError(fmt::format(
      "device cuda: LibTorch sees no device{}\n  `nvidia-smi` says whether there is a GPU and a "
      "driver; in a container it must be given one (--gpus all)",
      visible == nullptr
          ? ""
          : fmt::format(", and CUDA_VISIBLE_DEVICES is \"{}\", which may hide all", visible)));
}

// cuBLAS splits a product over streams unless each has a workspace of its own, of a fixed size.
void DeviceRuntime::be_deterministic() {
  constexpr const char* kBig = ":4096:8";
  constexpr const char* kSmall = ":16:8";
  const char* const chosen = std::getenv("CUBLAS_WORKSPACE_CONFIG");
  if (chosen == nullptr)
    ::setenv("CUBLAS_WORKSPACE_CONFIG", kBig, 0);
  else if (const std::string_view value = chosen; value != kBig && value != kSmall)
    throw UsageError(fmt::format(
        "deterministic: CUBLAS_WORKSPACE_CONFIG is \"{}\", with which cuBLAS is not; unset it, or "
        "set it to {} or {}",
        value, kBig, kSmall));
  at::Context& context = at::globalContext();
  context.setDeterministicCuDNN(true);
  context.setBenchmarkCuDNN(false);
  context.setDeterministicAlgorithms(true, /*warn_only=*/false);
  context.setDeterministicFillUninitializedMemory(false);  // ours is all written before it is read
}

#if TUTTI_TORCH_KNOWS_ALLOCATORS

namespace {

c10::DeviceAllocator& allocator() { return *at::getDeviceAllocator(c10::DeviceType::CUDA); }

}  // namespace

DeviceMemory DeviceRuntime::memory(int device) const {
  const auto index = static_cast<c10::DeviceIndex>(device);
  DeviceMemory memory;
  const auto ask = [&](auto& of) {
    if constexpr (requires { of.getMemoryInfo(index); }) {
      const auto [free, total] = of.getMemoryInfo(index);
      memory.free = static_cast<int64_t>(free);
      memory.total = static_cast<int64_t>(total);
    }
  };
  ask(allocator());
  if (fraction_ < 1) memory.limit = std::llround(fraction_ * static_cast<double>(memory.total));
  if (allocator().initialized()) {
    const auto bytes = allocator().getDeviceStats(index).allocated_bytes[0];
    memory.used = bytes.current;
    memory.peak = bytes.peak;
  }
  return memory;
}

void DeviceRuntime::limit_memory(double fraction) {
  if (!(fraction > 0) || fraction > 1)
    throw UsageError(
        fmt::format("a part of a device's memory is {}; expected more than 0, up to 1", fraction));
  c10::CachingAllocator::setAllocatorSettings(
      fmt::format("per_process_memory_fraction:{:.6f}", fraction));
  fraction_ = fraction;
}

#else

DeviceMemory DeviceRuntime::memory(int) const { return {}; }
void DeviceRuntime::limit_memory(double) { load(); }

#endif

// The allocator keeps what a tensor has freed.
void DeviceRuntime::take_memory(int device, int64_t bytes) {
  const at::Device where(at::kCUDA, static_cast<c10::DeviceIndex>(device));
  at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(where));
}

}  // namespace tutti
