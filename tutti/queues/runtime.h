/// DeviceRuntime: LibTorch's CUDA in this process, loaded when a device is first asked for.
///
/// Written on c10's generic classes, so that one binary serves LibTorch with and without CUDA: the
/// linker drops libtorch.so, and CUDA comes by dlopen, which must precede LibTorch's first look at
/// its accelerator. docs/design/devices.md.
#pragma once

#include <cstdint>
#include <string>

namespace tutti {

/// Of one device, in bytes.
struct DeviceMemory {
  int64_t total = 0;  ///< of the device
  int64_t limit = 0;  ///< the most that tensors of this process may take; 0: all
  int64_t free = 0;   ///< of the device, for all processes
  int64_t used = 0;   ///< by tensors of this process
  int64_t peak = 0;   ///< the most that `used` has been
};

/// Thread rule: load() and limit_memory() from one thread, before replicas are made; the rest from
/// any.
class DeviceRuntime {
 public:
  /// The one of this process, loaded where it is not yet. Throws UsageError with the cure where
  /// this LibTorch has no CUDA or is too old for it, and where its CUDA library cannot be loaded.
  static DeviceRuntime& load();

  /// The same without an error: null, and `why` in words.
  static DeviceRuntime* try_load(std::string* why = nullptr);

  /// GPUs that LibTorch sees (CUDA_VISIBLE_DEVICES counts); 0 where there is no driver.
  int count() const;

  /// Throws UsageError where there is none, else nothing: driver, CUDA_VISIBLE_DEVICES.
  void require_any() const;

  DeviceMemory memory(int device) const;

  /// The most of each device's memory that tensors of this process may take, as a part of it, in
  /// (0, 1]. LibTorch has one number for all devices. Before the first tensor on a device.
  void limit_memory(double fraction);

  /// From now on devices give the same bits in every run: cuDNN and cuBLAS by choosing so, and an
  /// operator that cannot is an error of LibTorch's that names it. Of the whole process, for good.
  /// Before the first tensor on a device. UsageError where CUBLAS_WORKSPACE_CONFIG says otherwise.
  static void be_deterministic();

  /// Takes so many bytes of a device now, for later use by tensors.
  void take_memory(int device, int64_t bytes);

  /// Where LibTorch's library was found, for `tutti doctor`.
  const std::string& library() const noexcept { return library_; }

 private:
  DeviceRuntime() = default;
  std::string library_;
  double fraction_ = 1;  ///< of limit_memory()
};

}  // namespace tutti
