/// Snapshot: what a consistent cut of the parameter servers left on disk, as one model.
///
/// The servers write one while training goes on (`--snapshots DIR`); any number of servers may go
/// on from it, and anybody may read the variables: a side-car that evaluates, a notebook
/// (docs/formats/snapshot.md). A folder of the name cut-000012 is complete: it appears whole.
/// Thread rule: const functions may be called from any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/data/safetensors.h"
#include "tutti/ps/spec/spec.h"
#include "tutti/ps/wire/message.h"

namespace tutti::ps {

/// Complete cuts in `folder`, the oldest first; none when it is not there or empty.
/// Throws IoError when it cannot be listed just now, UsageError when this user may not.
std::vector<std::filesystem::path> snapshots_in(const std::filesystem::path& folder);

/// The newest complete cut in `folder`, or `folder` itself when it is one. One whose partitions are
/// not of one moment of the job is none; the log says which are passed over. Throws UsageError
/// naming `what` ("--restore") when there is none.
std::filesystem::path find_snapshot(const std::filesystem::path& folder, std::string_view what);

class Snapshot {
 public:
  /// Reads the manifest, and all files against it: each is there, of the length and digest that it
  /// says. Variables are mapped. Throws DataError naming the file, what was got and expected; and
  /// for partitions that are not of one moment of the job.
  explicit Snapshot(const std::filesystem::path& cut);
  ~Snapshot();
  Snapshot(Snapshot&&) noexcept;

  const std::filesystem::path& path() const noexcept;
  std::string name() const { return path().filename().string(); }  ///< "cut-000012"
  int64_t number() const noexcept;
  /// Updates in it: steps of all workers (synchronous), else of any.
  int64_t step() const noexcept;
  const Spec& spec() const noexcept;  ///< of the job that wrote it

  /// Dense variables, whole, in the order of the specification; copies.
  std::vector<data::NamedArray> variables() const;

  /// Throws DataError naming the first variable, embedding table or option of the optimizer that
  /// differs, what the snapshot has and what `spec` expects. The learning rate may differ: workers
  /// say it with every push.
  void require_same_model(const Spec& spec) const;

  /// Gives all of `partition` of `spec`, whose model is the same though its servers and pieces need
  /// not be, as assigns (ClientState::Restore). A range that is put together from some that have
  /// had different numbers of updates, for gradients that were not finite, counts as the one that
  /// had most.
  void assign(const Spec& spec, int partition, const std::function<void(Message)>& assign) const;

 private:
  struct Impl;
  std::unique_ptr<const Impl> impl_;
};

}  // namespace tutti::ps
