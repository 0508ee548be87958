/// What the engines of this process have carried out, counted as they begin it: by it a job can say
/// what moved its data, and not only what was asked for.
/// Thread rule: EngineCounter as the engine that it is of; engine_counts() from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/comm/engine/engine.h"

namespace tutti {

namespace detail {
struct KnownCounters;
}

/// Collectives of one kind; none of messages (send, recv).
struct EngineCount {
  std::string engine;  ///< its name(); of hier, what its engines inside and between hosts carry out
                       ///< for it counts for these too
  Collective collective = Collective::barrier;
  std::string algorithm;  ///< of engine tcp; elsewhere ""
  int64_t calls = 0;
  int64_t bytes = 0;  ///< of what each was given: the longer one of input and output
};

/// In order of engine, collective and algorithm; those that were called. Engines that are gone
/// count; groups of one do not.
std::vector<EngineCount> engine_counts();

/// One engine's, which count() adds a few stores to.
class EngineCounter {
 public:
  /// `algorithms`: names by number; both outlive it. None: it tells of no
  /// algorithm.
  explicit EngineCounter(std::string_view engine,
                         std::span<const std::string_view> algorithms = {});
  ~EngineCounter();
  EngineCounter(const EngineCounter&) = delete;
  EngineCounter& operator=(const EngineCounter&) = delete;

  void count(const Operation& operation, size_t algorithm = 0) noexcept;

 private:
  friend std::vector<EngineCount> engine_counts();
  struct Cell {
    std::atomic<int64_t> calls{0}, bytes{0};
  };
  void add_to(std::vector<EngineCount>& all) const;

  const std::shared_ptr<detail::KnownCounters> known_;
  const std::string_view engine_;
  const std::span<const std::string_view> algorithms_;
  std::vector<Cell> cells_;  ///< by collective, then algorithm
};

}  // namespace tutti
