#include "tutti/device/cuda_driver.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>

namespace tutti {
namespace {

// A library that stays loaded: drivers keep threads of their own.
class Library {
 public:
  explicit Library(const std::string& name) : handle_(dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ != nullptr) return;
    const char* const said = dlerror();
    why_ = said != nullptr ? said : name + " cannot be loaded";
  }

  bool loaded() const { return handle_ != nullptr; }
  const std::string& why() const { return why_; }

  /// Calls `name`; an error of its own where it is not there.
  template <class... Arguments>
  int call(const char* name, Arguments... arguments) const {
    constexpr int kNotThere = -1;
    using Function = int(Arguments...);
    void* const found = handle_ != nullptr ? dlsym(handle_, name) : nullptr;
    return found != nullptr ? reinterpret_cast<Function*>(found)(arguments...) : kNotThere;
  }

 private:
  void* handle_;
  std::string why_;
};

// Of cuda.h: CUdevice is an int, and so are results, 0 for success.
using Device = int;
constexpr int kCapabilityMajor = 75, kCapabilityMinor = 76;  // CU_DEVICE_ATTRIBUTE_...
using Uuid = std::array<unsigned char, 16>;
using Text = std::array<char, 256>;

// Of nvml.h.
struct NvmlMemory {
  unsigned long long total, free, used;
};
using NvmlDevice = void*;

std::string error_words(const Library& cuda, int error) {
  const char* name = nullptr;
  if (cuda.call("cuGetErrorName", error, &name) != 0 || name == nullptr)
    return fmt::format("error {}", error);
  return name;
}

std::string uuid_words(const char* kind, const Uuid& uuid) {
  std::string text = kind;
  for (size_t i = 0; i < uuid.size(); ++i)
    text += fmt::format("{}{:02x}", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
  return text;
}

/// The driver's other half, which knows what is free.
class Nvml {
 public:
  explicit Nvml(const std::string& name) : library_(name) {
    ready_ = library_.call("nvmlInit_v2") == 0;
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;
  ~Nvml() {
    if (ready_) library_.call("nvmlShutdown");
  }

  std::string version() const {
    Text text{};
    const auto size = static_cast<unsigned>(text.size());
    return ready_ && library_.call("nvmlSystemGetDriverVersion", text.data(), size) == 0
               ? text.data()
               : "";
  }

  /// By what the driver numbers in an order of its own: the UUID. Its kind is known here alone.
  void complete(DriverDevice& device, const Uuid& uuid) const {
    device.uuid = uuid_words("GPU-", uuid);
    if (!ready_) return;
    for (const char* const kind : {"GPU-", "MIG-"}) {
      const std::string name = uuid_words(kind, uuid);
      NvmlDevice found = nullptr;
      NvmlMemory memory{};
      if (library_.call("nvmlDeviceGetHandleByUUID", name.c_str(), &found) != 0) continue;
      device.uuid = name;
      if (library_.call("nvmlDeviceGetMemoryInfo", found, &memory) == 0)
        device.memory_free_bytes = static_cast<int64_t>(memory.free);
      return;
    }
  }

 private:
  Library library_;
  bool ready_ = false;
};

DriverDevice device_of(const Library& cuda, const Nvml& nvml, Device device) {
  DriverDevice facts;
  Text name{};
  size_t bytes = 0;
  int major = 0, minor = 0;
  Uuid uuid{};
  if (cuda.call("cuDeviceGetName", name.data(), static_cast<int>(name.size()), device) == 0)
    facts.name = name.data();
  if (cuda.call("cuDeviceTotalMem_v2", &bytes, device) == 0)
    facts.memory_total_bytes = static_cast<int64_t>(bytes);
  if (cuda.call("cuDeviceGetAttribute", &major, kCapabilityMajor, device) == 0 &&
      cuda.call("cuDeviceGetAttribute", &minor, kCapabilityMinor, device) == 0)
    facts.capability = fmt::format("{}.{}", major, minor);
  // The first one knows parts of a GPU; drivers before CUDA 11.4 have the second alone.
  if (cuda.call("cuDeviceGetUuid_v2", &uuid, device) == 0 ||
      cuda.call("cuDeviceGetUuid", &uuid, device) == 0)
    nvml.complete(facts, uuid);
  return facts;
}

void find_peers(const Library& cuda, const std::vector<Device>& devices, DriverFacts& facts) {
  for (size_t i = 0; i < devices.size(); ++i)
    for (size_t j = 0; j < devices.size(); ++j) {
      int can = 0;
      if (i != j && cuda.call("cuDeviceCanAccessPeer", &can, devices[i], devices[j]) == 0 &&
          can != 0)
        facts.devices[i].peers.push_back(static_cast<int>(j));
    }
}

}  // namespace

DriverFacts driver_facts(const DriverLibraries& libraries) {
  DriverFacts facts;
  const Library cuda(libraries.cuda);
  if (!cuda.loaded()) {
    facts.why = cuda.why();
    return facts;
  }
  const Nvml nvml(libraries.nvml);
  facts.version = nvml.version();
  if (int version = 0; cuda.call("cuDriverGetVersion", &version) == 0)
    facts.cuda_version = fmt::format("{}.{}", version / 1000, version % 1000 / 10);
  int count = 0;
  int error = cuda.call("cuInit", 0U);
  if (error == 0) error = cuda.call("cuDeviceGetCount", &count);
  if (error != 0) {
    facts.why = fmt::format("{} says {}", libraries.cuda, error_words(cuda, error));
    return facts;
  }
  std::vector<Device> devices;
  for (int i = 0; i < count; ++i) {
    Device device = 0;
    if (cuda.call("cuDeviceGet", &device, i) != 0) continue;
    devices.push_back(device);
    facts.devices.push_back(device_of(cuda, nvml, device));
  }
  find_peers(cuda, devices, facts);
  return facts;
}

}  // namespace tutti
