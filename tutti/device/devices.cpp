#include "tutti/device/devices.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "tutti/base/detail/check.h"
#include "tutti/base/error.h"
#include "tutti/base/suggest.h"
#include "tutti/base/typed.h"

namespace tutti {
namespace {

constexpr std::string_view kGpu = "cuda:";

bool begins_with_digit(std::string_view word) {
  return !word.empty() && std::isdigit(static_cast<unsigned char>(word.front())) != 0;
}

// How many GPUs there are.
constexpr int kUnknown = -1;

/// One reading of a --device text.
class DeviceReader {
 public:
  DeviceReader(std::string_view text, int visible_gpus) : text_(text), gpus_(visible_gpus) {}

  std::vector<DeviceSpec> read() {
    if (text_ == "auto") {
      gpus_ > 0 ? add_all_gpus() : add({});
      return devices_;
    }
    bool after_gpu = false;
    for (const std::string_view word : parts_of(text_, ',')) {
      if (word == "cpu")
        add({});
      else if (word == "cuda")
        add_all_gpus();
      else if (word.starts_with(kGpu))
        add_gpu(word.substr(kGpu.size()));
      else if (after_gpu && begins_with_digit(word))
        add_gpu(word);
      else
        refuse_word(word);
      after_gpu = word != "cpu";
    }
    return devices_;
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    throw UsageError(fmt::format("--device {}: {}", text_, why));
  }

  [[noreturn]] void refuse_word(std::string_view word) const {
    const std::string_view name = word.substr(0, word.find(':'));
    if (name == "mps" || name == "rocm" || name == "hip")
      refuse(fmt::format("tutti does not compute on {}: on the CPU and on GPUs of CUDA it does",
                         name == "mps" ? "GPUs of Apple (mps)" : "GPUs of AMD (rocm)"));
    if (name == "cpu") refuse("there is one CPU, and it has no number: write cpu");
    if (name == "auto") refuse("auto stands alone: it is all GPUs, or the CPU where there is none");
    if (begins_with_digit(word)) refuse(fmt::format("{} of what? Write cuda:{}", word, word));
    const std::string known[] = {"cpu", "cuda", "cuda:0,1", "cuda:0x2", "auto"};
    refuse(unknown_message("device", word, known));
  }

  std::string what_is_visible() const {
    if (gpus_ == 0) return "no GPU is visible";
    return gpus_ == 1 ? "visible: 0" : fmt::format("visible: 0 to {}", gpus_ - 1);
  }

  void add_all_gpus() {
    if (gpus_ == 0) refuse(what_is_visible());
    for (int i = 0; i < std::max(gpus_, 1); ++i) add({DeviceKind::cuda, i});
  }

  // "0" or "0x2"
  void add_gpu(std::string_view word) {
    const size_t cross = std::min(word.find('x'), word.size());
    const auto index = number_in<int>(word.substr(0, cross));
    if (!index || *index < 0)
      refuse(
          fmt::format("\"{}\" is no number of a device; expected cuda:0, or cuda:0x2 for two "
                      "replicas on it",
                      word));
    if (*index >= gpus_ && gpus_ != kUnknown)
      refuse(fmt::format("there is no device {}; {}", *index, what_is_visible()));
    const auto parts = cross < word.size() ? number_in<int>(word.substr(cross + 1)) : 1;
    if (!parts || *parts < 1 || *parts > kMostParts)
      refuse(fmt::format("device {} in \"{}\" parts; expected 1 to {}", *index,
                         word.substr(cross + 1), kMostParts));
    add({DeviceKind::cuda, *index, 0, *parts});
  }

  // All parts of it.
  void add(DeviceSpec device) {
    const auto same = [&](const DeviceSpec& other) {
      return other.kind == device.kind && other.index == device.index;
    };
    if (std::ranges::any_of(devices_, same))
      refuse(fmt::format("{} is named twice{}", to_string({device.kind, device.index}),
                         device.kind == DeviceKind::cpu
                             ? ""
                             : fmt::format("; cuda:{}x2 is two replicas on it", device.index)));
    for (device.part = 0; device.part < device.parts; ++device.part) devices_.push_back(device);
  }

  std::string_view text_;
  int gpus_;
  std::vector<DeviceSpec> devices_;
};

// How many of the first of `devices` are all parts of one device, in order; or 0.
size_t whole_device(std::span<const DeviceSpec> devices) {
  const auto parts = static_cast<size_t>(devices.front().parts);
  if (devices.size() < parts) return 0;
  for (size_t i = 0; i < parts; ++i)
    if (devices[i] != DeviceSpec{devices.front().kind, devices.front().index, static_cast<int>(i),
                                 static_cast<int>(parts)})
      return 0;
  return parts;
}

// How --device gives each of `replicas` a place on the same devices; empty where that is too many.
std::string shared_by(std::span<const DeviceSpec> devices, int64_t replicas) {
  std::vector<DeviceSpec> each;
  for (const DeviceSpec& device : devices)
    if (device.part == 0) each.push_back({device.kind, device.index});
  const auto gpus = std::ranges::count(each, DeviceKind::cuda, &DeviceSpec::kind);
  int64_t left = replicas - (static_cast<int64_t>(each.size()) - gpus);
  if (left > gpus * kMostParts) return "";
  std::vector<DeviceSpec> all;
  int64_t gpus_left = gpus;
  for (DeviceSpec device : each) {
    if (device.kind == DeviceKind::cuda) {
      device.parts = static_cast<int>((left + gpus_left - 1) / gpus_left);
      left -= device.parts;
      --gpus_left;
    }
    for (device.part = 0; device.part < device.parts; ++device.part) all.push_back(device);
  }
  return to_string(all);
}

[[noreturn]] void refuse_placement(std::span<const DeviceSpec> devices, int64_t replicas,
                                   int local_workers) {
  const std::string workers =
      local_workers == 1 ? "" : fmt::format(" of {} workers of this host", local_workers);
  const std::string shared = shared_by(devices, replicas);
  throw UsageError(fmt::format(
      "{} replicas{} on {} device{}: {}", replicas, workers, devices.size(),
      devices.size() == 1 ? "" : "s",
      shared.empty() ? fmt::format("that is too many; a device is shared by {} at most", kMostParts)
                     : fmt::format("write {} to let replicas share a device{}", shared,
                                   local_workers == 1 ? "" : ", or start fewer workers")));
}

// Each worker's, where one replica a device was asked for.
int replicas_of(std::span<const DeviceSpec> devices, int local_workers) {
  const int count = static_cast<int>(devices.size());
  if (count < local_workers) return 1;  // too few: refused as such
  if (count % local_workers != 0)
    throw UsageError(
        fmt::format("{} devices for {} workers of this host: some would be left over; name as many "
                    "as each worker's replicas together, or say how many these are (--replicas)",
                    count, local_workers));
  return count / local_workers;
}

}  // namespace

std::string_view name_of(DeviceKind kind) { return kind == DeviceKind::cpu ? "cpu" : "cuda"; }

std::string to_string(const DeviceSpec& device) {
  if (device.kind == DeviceKind::cpu) return "cpu";
  if (device.parts == 1) return fmt::format("cuda:{}", device.index);
  return fmt::format("cuda:{}#{}", device.index, device.part);
}

std::string to_string(std::span<const DeviceSpec> devices) {
  std::string text;
  bool after_gpu = false;
  while (!devices.empty()) {
    const DeviceSpec device = devices.front();
    const size_t whole = whole_device(devices);
    std::string word =
        whole > 1 ? fmt::format("cuda:{}x{}", device.index, device.parts) : to_string(device);
    devices = devices.subspan(std::max<size_t>(whole, 1));
    if (device.kind == DeviceKind::cpu && text.ends_with("cpu")) continue;
    if (after_gpu && device.kind == DeviceKind::cuda) word.erase(0, kGpu.size());
    after_gpu = device.kind == DeviceKind::cuda;
    text += text.empty() ? word : "," + word;
  }
  return text;
}

std::vector<DeviceSpec> parse_devices(std::string_view text, int visible_gpus) {
  return DeviceReader(text, visible_gpus).read();
}

void check_device_words(std::string_view text) { DeviceReader(text, kUnknown).read(); }

bool needs_gpus(std::string_view text) {
  return std::ranges::any_of(parts_of(text, ','), [](std::string_view word) {
    return word == "auto" || word == "cuda" || word.starts_with(kGpu);
  });
}

std::vector<DeviceSpec> place_replicas(std::span<const DeviceSpec> devices, int replicas,
                                       int local_worker, int local_workers) {
  TUTTI_CHECK(
      !devices.empty() && replicas >= 0 && local_worker >= 0 && local_worker < local_workers,
      "{} devices, {} replicas of local worker {} of {}", devices.size(), replicas, local_worker,
      local_workers);
  if (devices.size() == 1 && devices.front().kind == DeviceKind::cpu)
    return std::vector<DeviceSpec>(std::max(replicas, 1));
  if (replicas == 0) replicas = replicas_of(devices, local_workers);
  const int64_t of_all = int64_t{replicas} * local_workers;
  if (of_all > static_cast<int64_t>(devices.size()))
    refuse_placement(devices, of_all, local_workers);
  const auto mine = devices.subspan(static_cast<size_t>(local_worker) * replicas, replicas);
  return {mine.begin(), mine.end()};
}

}  // namespace tutti
