/// DensePiece: the parameters and optimizer state of one piece, on the server that has it.
///
/// Memory is copied on write: whoever holds a share (a reply on its way, a snapshot, a copy for a
/// new backup) keeps the values of that moment, and the next update writes to fresh memory.
/// The same calls give the same bits, whatever the number of threads.
/// Thread rule: one thread, also for letting go of shares; functions of Compute may use others.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tutti/ps/spec/spec.h"
#include "tutti/ps/values/compute.h"
#include "tutti/ps/wire/message.h"

namespace tutti::ps {

class DensePiece {
 public:
  /// Zeros, and the optimizer's start.
  DensePiece(const Piece& piece, const optim::Rule& rule, const Compute& compute);

  int64_t num_bytes() const noexcept { return piece_.num_bytes; }
  int64_t version() const noexcept { return version_; }  ///< updates applied

  /// Parameters as they are now, by the piece's layout.
  Bytes parameters() const;
  /// Throws Error unless `values` has num_bytes().
  void assign(const Bytes& values);

  struct Update {
    std::span<const Part* const> parts;      ///< at most one a rank, below shape.replicas()
    std::span<const std::byte* const> data;  ///< of each part, by the piece's layout
    const ReductionShape* shape = nullptr;   ///< in whose order parts are added
    double scale = 1;                        ///< of the sum
    double learning_rate = 0;
    const std::byte* computed_on = nullptr;  ///< with compensation: parameters, by the layout
    double compensation = 0;                 ///< lambda: g + lambda g g (p - computed_on)
    /// One gradient that nothing is done to.
    bool as_it_came() const { return parts.size() == 1 && scale == 1 && computed_on == nullptr; }
  };
  /// Adds the parts and updates what any of them used; the version is one higher in any case.
  void update(const Update& update);
  /// Nothing is updated, the version is one higher.
  void skip() noexcept { ++version_; }

  /// The first variable of which `part` has a gradient that is not finite.
  std::optional<int> not_finite(const Part& part) const;

  const std::vector<optim::StepScalars>& scalars() const noexcept {
    return scalars_;
  }  ///< by
     ///< segment
  /// All that is known, and back: shares of the memory, and a text.
  std::vector<Bytes> memory() const;
  std::string facts() const { return facts_of(version_, scalars_); }
  static std::string facts_of(int64_t version, const std::vector<optim::StepScalars>& scalars);
  /// Throws Error for what memory() and facts() of the same piece did not give.
  void restore(std::string_view facts, const std::vector<Bytes>& memory);
  /// The same, but without changing anything.
  void check(std::string_view facts, const std::vector<Bytes>& memory) const;
  /// One payload as the blocks of memory(), one after the other.
  std::vector<Bytes> blocks_of(const Bytes& payload) const;

 private:
  using Facts = std::pair<int64_t, std::vector<optim::StepScalars>>;
  Facts parsed(std::string_view facts) const;
  struct Chunk {
    int segment = 0;
    int64_t begin = 0;  // elements, in the segment
    int64_t end = 0;
  };
  void apply(const Chunk& chunk, const Update& update, const std::vector<uint8_t>& used,
             const std::vector<std::shared_ptr<std::byte>>& next);
  std::vector<std::shared_ptr<std::byte>> writable() const;
  void clear_gaps(std::byte* block) const;

  Piece piece_;
  optim::Rule rule_;
  Compute compute_;
  std::vector<Chunk> chunks_;
  int64_t version_ = 0;
  std::vector<optim::StepScalars> scalars_;         // by segment
  std::vector<std::shared_ptr<std::byte>> memory_;  // parameters, then states
};

}  // namespace tutti::ps
