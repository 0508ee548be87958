/// Which devices there are, which of them replicas compute on, and how both are written.
///
/// Pure functions and values: what is really there is asked by queues. A *device* here is the
/// CPU, a GPU, or one part of a GPU that several replicas share (a logical device): "cuda:0x2" is
/// two of them, with queues of work of their own, on one GPU's memory.
/// Thread rule: all may be called from any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tutti {

enum class DeviceKind : uint8_t { cpu, cuda };

/// "cpu" or "cuda".
std::string_view name_of(DeviceKind kind);

/// Logical devices that one device can be.
inline constexpr int kMostParts = 64;

/// Where one replica computes.
struct DeviceSpec {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;  ///< among the visible devices of its kind, from 0; 0 for the CPU
  int part = 0;   ///< among the logical devices of this one, from 0
  int parts = 1;  ///< how many logical devices it is
  bool operator==(const DeviceSpec&) const = default;
};

/// "cpu", "cuda:1", "cuda:0#1" (the second of several parts).
std::string to_string(const DeviceSpec& device);
/// As parse_devices() reads them: "cuda:0x2,1". The CPU several times in a row is "cpu"; some parts
/// of a device, which parse_devices() does not read, are "cuda:0#1".
std::string to_string(std::span<const DeviceSpec> devices);

/// Reads what --device takes, in order:
///
///   cpu            the CPU
///   cuda           every visible GPU
///   cuda:0,1       these
///   cuda:0x2,1x2   each shared by two replicas
///   cpu,cuda:0     one replica on the CPU, one on a GPU
///   auto           every visible GPU, or the CPU where there is none
///
/// visible_gpus  how many there are; of no meaning where needs_gpus() says no
/// Throws UsageError with the text, what is wrong in it, and what there is: no number, a device
/// that is not there or is named twice, parts out of 1 to 64, "mps" and "rocm" by name.
std::vector<DeviceSpec> parse_devices(std::string_view text, int visible_gpus);

/// Throws what parse_devices() would whatever GPUs there are.
void check_device_words(std::string_view text);

/// Whether parse_devices() has to know the GPUs of this machine: "cuda" in any form needs some,
/// "auto" only asks how many there are.
bool needs_gpus(std::string_view text);

/// The devices of one worker's replicas, in order of their rank.
///
/// devices        of this host, as parse_devices() gave them
/// replicas       of this worker; 0: one a device, the devices in equal shares for the workers
/// local_worker   this worker's number among the `local_workers` of this host, which take the
///                devices in turn: worker i has the i-th `replicas` of them
/// One CPU alone holds any number of replicas. What is left over stays unused. Throws UsageError
/// when there are too few devices (how to write logical ones, or fewer workers), and when
/// `replicas` is 0 and there are no equal shares.
std::vector<DeviceSpec> place_replicas(std::span<const DeviceSpec> devices, int replicas,
                                       int local_worker = 0, int local_workers = 1);

}  // namespace tutti
