#include "tutti/checkpoint/state.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>

#include "tutti/base/error.h"
#include "tutti/checkpoint/detail/names.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kScalarsOfParameter = 5;  // rate, three powers, count
constexpr int64_t kTotalsHeader = 2;        // samples, signal; the rest is of the model's outputs

struct Ranked {
  int rank = 0;
  std::string_view rest;  // of the name; "" where it ends with the rank
};

// "buffers/3/conv.bias" of "buffers": 3 and "conv.bias".
std::optional<Ranked> ranked(std::string_view name, std::string_view which) {
  if (!name.starts_with(which) || name.size() <= which.size() || name[which.size()] != '/')
    return {};
  name.remove_prefix(which.size() + 1);
  Ranked found;
  const std::string_view number = name.substr(0, name.find('/'));
  const auto [stop, failure] =
      std::from_chars(number.data(), number.data() + number.size(), found.rank);
  // One spelling for each: not "00", not "-1", and nothing after it.
  if (failure != std::errc{} || number != fmt::to_string(found.rank) || found.rank < 0) return {};
  if (number.size() < name.size()) found.rest = name.substr(number.size() + 1);
  return found;
}

bool counts(double number) {
  return number >= 0 && number <= static_cast<double>(kMostCounted) && number == std::floor(number);
}

class StateCheck {
 public:
  StateCheck(const CheckpointManifest& manifest, const CheckpointTensors& tensors,
             const fs::path& path)
      : manifest_(manifest), tensors_(tensors), path_(path) {}

  void run() const {
    for (const auto& [name, array] : tensors_) check(name, array);
    manifest_.loop.empty() ? check_fit() : check_loop();
  }

 private:
  // What fit() writes always.
  void check_fit() const {
    const auto& history = need(detail::kHistoryRows);
    if (manifest_.first_epoch + history.shape()[0] > manifest_.epoch)
      throw damaged(
          detail::kHistoryRows, fmt::format("{} epochs", history.shape()[0]),
          fmt::format("{} at most, those from {} to {}", manifest_.epoch - manifest_.first_epoch,
                      manifest_.first_epoch, manifest_.epoch));
    for (int rank = 0; rank < manifest_.replicas; ++rank) {
      need(detail::totals_name(rank));
      need(detail::replica_generator_name(rank));
      check_alike(rank, detail::kBuffers);
      check_alike(rank, detail::kKeptBuffers);
    }
    need_generators();
    check_kept();
  }

  // What each worker of a loop of one's own writes.
  void check_loop() const {
    need_generators();
    for (int rank = 0; rank < manifest_.replicas; ++rank) {
      check_alike(rank, detail::kBuffers);
      check_alike(rank, detail::kOwn);
    }
  }

  void need_generators() const {
    for (int worker = 0; worker < manifest_.workers; ++worker) need(detail::generator_name(worker));
  }

  DataError damaged(std::string_view tensor, std::string_view got,
                    std::string_view expected) const {
    return DataError(fmt::format("checkpoint {}: tensor \"{}\": got {}, expected {}",
                                 path_.string(), tensor, got, expected));
  }

  const Array& need(const std::string& name) const {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) throw damaged(name, "none", "one, as each training has written");
    return found->second;
  }

  // The name is one of ours, of a replica or worker that there is, and the tensor what it must be.
  void check(const std::string& name, const Array& array) const {
    if (name == detail::kHistoryRows) {
      const auto columns = std::ssize(manifest_.columns);
      if (array.dtype() != DType::float64 || array.shape().size() != 2 ||
          array.shape()[1] != columns)
        throw damaged(name, array.to_string(), fmt::format("float64 [epochs, {}]", columns));
    } else if (is_scalars(name)) {
      check_scalars(name, array);
    } else if (const auto totals = ranked(name, detail::kTotals)) {
      require_of(name, *totals, manifest_.replicas, true);
      check_totals(name, array);
    } else if (const auto generator = ranked(name, detail::kReplicaGenerators)) {
      require_of(name, *generator, manifest_.replicas, true);
      require_bytes(name, array);
    } else if (const auto on_device = ranked(name, detail::kDeviceGenerators)) {
      require_of(name, *on_device, manifest_.replicas, true);
      require_bytes(name, array);
    } else if (const auto worker = ranked(name, detail::kGenerators)) {
      require_of(name, *worker, manifest_.workers, true);
      require_bytes(name, array);
    } else if (const auto kept = ranked(name, detail::kKeptBack)) {
      require_of(name, *kept, manifest_.replicas, false);
      if (kept->rest == "steps") check_steps(name, array);
    } else if (const auto buffer = ranked(name, detail::kBuffers)) {
      require_of(name, *buffer, manifest_.replicas, false);
    } else if (const auto buffer = ranked(name, detail::kKeptBuffers)) {
      require_of(name, *buffer, manifest_.replicas, false);
    } else if (const auto own = ranked(name, detail::kOwn); own && !manifest_.loop.empty()) {
      require_of(name, *own, manifest_.replicas, false);
    } else if (is_named(name, detail::kValues) && !manifest_.loop.empty()) {
      return;
    } else if (is_named(name, detail::kAverage) && manifest_.loop.empty()) {
      require_like(detail::kParameters + name.substr(std::string_view(detail::kAverage).size()),
                   array);
    } else if (!is_named(name, detail::kParameters) && !is_named(name, detail::kOptimizer) &&
               !is_named(name, detail::kKeptParameters) && !is_of_a_table(name)) {
      throw damaged(name, "this name", "one of docs/formats/checkpoint.md");
    }
  }

  // A loop has several optimizers, each under its name: "optimizer/adam/scalars".
  bool is_scalars(std::string_view name) const {
    if (name == detail::kScalars) return true;
    constexpr std::string_view begin = detail::kOptimizer, end = "/scalars";
    if (manifest_.loop.empty() || !name.starts_with(begin) || !name.ends_with(end)) return false;
    const std::string_view between =
        name.substr(begin.size(), name.size() - begin.size() - end.size());
    return !between.empty() && between.find('/') == std::string_view::npos;
  }

  static bool is_named(std::string_view name, std::string_view prefix) {
    return name.starts_with(prefix) && name.size() > prefix.size();
  }

  // What is in one knows whoever has the tables.
  bool is_of_a_table(std::string_view name) const {
    constexpr std::string_view tables = detail::kTables;
    const auto table = ranked(name, tables.substr(0, tables.size() - 1));
    return table && table->rank < std::ssize(manifest_.tables) && !table->rest.empty();
  }

  void require_of(const std::string& name, const Ranked& part, int count, bool ends) const {
    if (part.rank >= count || part.rest.empty() != ends)
      throw damaged(name, "this name", fmt::format("one of {} replicas or workers", count));
  }

  void require_bytes(const std::string& name, const Array& array) const {
    if (array.dtype() != DType::uint8 || array.shape().size() != 1 || array.num_elements() == 0)
      throw damaged(name, array.to_string(), "uint8 [bytes]");
  }

  void check_scalars(const std::string& name, const Array& array) const {
    if (array.dtype() != DType::float64 || array.shape().size() != 2 ||
        array.shape()[1] != kScalarsOfParameter)
      throw damaged(name, array.to_string(),
                    fmt::format("float64 [parameters, {}]", kScalarsOfParameter));
    const auto numbers = array.as<double>();
    for (size_t i = 0; i < numbers.size(); ++i) {
      const bool is_count = i % kScalarsOfParameter == kScalarsOfParameter - 1;
      if (!std::isfinite(numbers[i]) || (is_count && !counts(numbers[i])))
        throw damaged(name, fmt::format("{} at {}", numbers[i], i),
                      is_count ? "a number of updates" : "a finite number");
    }
  }

  void check_totals(const std::string& name, const Array& array) const {
    if (array.dtype() != DType::float64 || array.shape().size() != 1 ||
        array.num_elements() < kTotalsHeader)
      throw damaged(name, array.to_string(), "float64 [numbers]");
    const auto numbers = array.as<double>();
    if (!counts(numbers[0]) || numbers[1] != 0)
      throw damaged(name, fmt::format("{} samples and signal {}", numbers[0], numbers[1]),
                    "a number of samples and no signal");
  }

  void check_steps(const std::string& name, const Array& array) const {
    if (array.dtype() != DType::int64 || !array.shape().empty())
      throw damaged(name, array.to_string(), "int64 []");
    if (const int64_t steps = array.as<int64_t>()[0]; steps < 0 || steps > kMostCounted)
      throw damaged(name, fmt::to_string(steps), "a number of steps");
  }

  // A replica has the same ones as the first, of the same form: others add buffers up.
  void check_alike(int rank, const char* which) const {
    const std::string first = detail::buffer_name(0, "", which);
    const std::string own = detail::buffer_name(rank, "", which);
    int64_t there = 0;
    for (auto at = tensors_.lower_bound(first);
         at != tensors_.end() && at->first.starts_with(first); ++at, ++there)
      require_like(own + at->first.substr(first.size()), at->second);
    const auto begin = tensors_.lower_bound(own);
    const auto end = std::find_if(begin, tensors_.end(),
                                  [&](const auto& entry) { return !entry.first.starts_with(own); });
    if (std::distance(begin, end) != there)
      throw damaged(own, fmt::format("{} {}", std::distance(begin, end), which),
                    fmt::format("{}, as replica 0 has", there));
  }

  void require_like(const std::string& name, const Array& other) const {
    const Array& array = need(name);
    if (array.dtype() != other.dtype() || array.shape() != other.shape())
      throw damaged(name, array.to_string(), other.to_string());
  }

  // Weights that a callback remembers are those of a whole model.
  void check_kept() const {
    const std::string_view kept = detail::kKeptParameters, used = detail::kParameters;
    bool some = false;
    for (const auto& [name, array] : tensors_) {
      if (!name.starts_with(kept)) continue;
      some = true;
      require_like(std::string(used) + name.substr(kept.size()), array);
    }
    for (const auto& [name, array] : tensors_) {
      if (!some && name.starts_with(detail::kKeptBuffers))
        throw damaged(name, "buffers alone", fmt::format("\"{}...\", too", kept));
      if (!some) continue;
      if (name.starts_with(used)) need(std::string(kept) + name.substr(used.size()));
      if (const auto buffer = ranked(name, detail::kBuffers))
        require_like(detail::buffer_name(buffer->rank, buffer->rest, detail::kKeptBuffers), array);
    }
  }

  const CheckpointManifest& manifest_;
  const CheckpointTensors& tensors_;
  const fs::path& path_;
};

}  // namespace

void require_sound_state(const CheckpointManifest& manifest, const CheckpointTensors& tensors,
                         const fs::path& path) {
  StateCheck(manifest, tensors, path).run();
}

}  // namespace tutti
