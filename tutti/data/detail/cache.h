/// What is kept of samples once computed: in memory that the processes of a host share, or in
/// files.
///
/// A cache never throws out: rows come once an epoch, so that a full one of x % of the samples
/// saves x % of the work, and one that throws out the oldest saves nothing. Thread rule: any thread
/// may use any of it at any time, but for adopt().
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "tutti/data/detail/content.h"
#include "tutti/net/arena.h"

namespace tutti::data::detail {

/// A sample as bytes: of each column its sizes, then its elements from a 64-byte line on.
int64_t packed_bytes(const Sample& sample);
void pack(const Sample& sample, std::byte* to);
/// Arrays that share the memory, which `owner` keeps. None where the sizes that `from` begins
/// with reach beyond it: another process has written them.
std::optional<Sample> unpacked(const std::vector<Column>& columns, std::span<std::byte> from,
                               const std::shared_ptr<const void>& owner);

/// Samples by id in a SharedFile: a table of places, then the samples in the order of their coming.
///
/// Invariant: a place is 0, or a claim of the process that computes the sample, or final. So each
/// is computed by one; who needs it meanwhile waits, and takes over when the one is dead.
class SharedCache {
 public:
  SharedCache(int64_t num_samples, int64_t most_bytes);

  /// The same memory for the processes of a host: one of them leads, and the others follow once it
  /// has. What was kept is let go of. Not while samples are read.
  void lead(SharedFile file);
  void follow(SharedFile file);
  /// What another process follows with.
  const SharedFile& file() const noexcept { return file_; }
  bool is_shared() const noexcept { return shared_; }
  int64_t num_samples() const noexcept { return num_samples_; }

  /// What is kept, or what `make` gives, kept where there is room.
  Sample get(int64_t id, const std::vector<Column>& columns, Turn* turn,
             const std::function<Sample()>& make);

  int64_t bytes() const;     ///< kept so far, of all processes
  int64_t computed() const;  ///< calls of `make` by all processes

 private:
  struct Header;
  Header& header() const;
  uint64_t& place(int64_t id) const;
  void begin();
  bool wait_for(int64_t id, uint64_t claim, Turn* turn);
  uint64_t keep(const Sample& sample);
  Mapping chunk_at(uint64_t offset);
  int64_t table_bytes() const;

  const int64_t num_samples_;
  const int64_t first_;  // offset of the first sample
  const int64_t most_bytes_;
  SharedFile file_;
  bool shared_ = false;
  Mapping table_;
  std::mutex mutex_;
  std::vector<Mapping> chunks_;  // GUARDED_BY(mutex_)
};

/// All that a dataset keeps in memory, in the same order in every process that has made it.
std::vector<SharedCache*> caches_of(const Dataset& dataset);
std::vector<SharedCache*> caches_of(const Content& content);

/// Samples by id in files of one folder: each process appends to one of its own, and reads all.
class FileCache {
 public:
  /// `folder` is of one fingerprint. Makes it. Throws UsageError when that cannot be.
  FileCache(std::filesystem::path folder, int64_t num_samples);
  ~FileCache();

  std::optional<Sample> find(int64_t id, const std::vector<Column>& columns);
  void keep(int64_t id, const Sample& sample);

 private:
  struct Place {
    int file = -1;
    int64_t offset = 0;
    int64_t bytes = 0;
  };
  struct Part;
  void look();
  void read_new(Part& part, int number);
  void drop(int64_t id, const Place& damaged);

  const std::filesystem::path folder_;
  std::mutex mutex_;  // of all that follows
  std::vector<Place> places_;
  std::multimap<int64_t, Place> others_;  // of samples that several processes have kept
  std::vector<std::unique_ptr<Part>> parts_;
  int own_ = -1;     // the part that is written here; -2: no more
  pid_t owner_ = 0;  // the process that made it
  std::chrono::steady_clock::time_point looked_{};
};

}  // namespace tutti::data::detail
