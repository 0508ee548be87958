// NVIDIA's driver, as far as driver_facts() asks it, libcuda and NVML in one library: a GPU, and a
// part of another whose memory the first one reads. NVML knows neither GPUs' parts by "GPU-" nor
// whole ones by "MIG-". With FAKE_DRIVER_FAILS set cuInit fails.
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

constexpr int kCount = 2;
constexpr int kNoDevice = 100, kInvalid = 101;

// Of the driver's handles, which are not its indices.
bool is_device(int device) { return device == 70 || device == 71; }

}  // namespace

extern "C" {

int cuInit(unsigned /*flags*/) {
  return std::getenv("FAKE_DRIVER_FAILS") != nullptr ? kNoDevice : 0;
}

int cuGetErrorName(int error, const char** name) {
  *name = error == kNoDevice ? "CUDA_ERROR_NO_DEVICE" : nullptr;
  return error == kNoDevice ? 0 : 1;
}

int cuDriverGetVersion(int* version) {
  *version = 12080;
  return 0;
}

int cuDeviceGetCount(int* count) {
  *count = kCount;
  return 0;
}

int cuDeviceGet(int* device, int index) {
  *device = 70 + index;
  return index < kCount ? 0 : kInvalid;
}

int cuDeviceGetName(char* name, int size, int device) {
  std::snprintf(name, static_cast<size_t>(size), "Made Up %d", device);
  return is_device(device) ? 0 : kInvalid;
}

int cuDeviceTotalMem_v2(size_t* bytes, int device) {
  *bytes = (size_t{1} << 33) * static_cast<size_t>(device - 69);
  return is_device(device) ? 0 : kInvalid;
}

int cuDeviceGetAttribute(int* value, int attribute, int device) {
  *value = attribute == 75 ? 9 : 0;
  return is_device(device) && (attribute == 75 || attribute == 76) ? 0 : kInvalid;
}

int cuDeviceGetUuid(unsigned char* uuid, int device) {
  std::memset(uuid, device, 16);
  return is_device(device) ? 0 : kInvalid;
}

int cuDeviceCanAccessPeer(int* can, int device, int peer) {
  *can = device == 70 && peer == 71 ? 1 : 0;
  return is_device(device) && is_device(peer) ? 0 : kInvalid;
}

int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }

int nvmlSystemGetDriverVersion(char* text, unsigned size) {
  std::snprintf(text, size, "570.86.15");
  return 0;
}

int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  static int first, second;
  if (std::string(uuid) == "GPU-46464646-4646-4646-4646-464646464646")
    *device = &first;
  else if (std::string(uuid) == "MIG-47474747-4747-4747-4747-474747474747")
    *device = &second;
  else
    return 6;  // NVML_ERROR_NOT_FOUND
  return 0;
}

int nvmlDeviceGetMemoryInfo(void* device, unsigned long long* total_free_used) {
  if (device == nullptr) return 2;
  total_free_used[1] = 1ULL << 32;
  return 0;
}
}
