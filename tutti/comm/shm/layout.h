/// What lies in a segment, byte by byte; every process of the group compiles this same file.
///
/// A header, then one block a rank. A rank writes only its own block (and the poison, once, by
/// compare-and-swap, and doorbells); all others read it. Zero bytes are a valid start of
/// everything. A *root* segment begins its memfd. Behind it lie extents, taken in turn: what
/// allocate() gave, channels of messages, and *child* segments of groups made by split.
/// docs/design/shm_engine.md explains the protocol.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "tutti/comm/engine/engine.h"
#include "tutti/comm/shm/shm.h"
#include "tutti/net/flag.h"

namespace tutti::detail {

/// Operations that a rank may have published and not finished.
constexpr uint32_t kRingLines = 64;
/// Data up to this size travels in the line that announces the operation.
constexpr int64_t kInlineBytes = 40;
/// Slots of each kind that a rank uses in turn.
constexpr uint32_t kSlots = 2;

/// One announced operation: number, what was called, and where the data lies or the data itself.
/// Peers wait on the line itself, so a small operation costs one transfer of one line.
struct alignas(64) CallLine {
  Flag ticket;                        ///< number of the operation + 1
  uint32_t finished;                  ///< its writer's finished count when it was written
  std::atomic<uint32_t> call;         ///< collective, reduction, dtype, root: see pack_call()
  std::atomic<int64_t> num_elements;  ///< as in Announced
  union {
    struct {
      uint64_t input;  ///< 0: memory that peers cannot see
      uint64_t output;
      uint64_t counts;  ///< fingerprint of the list that all ranks give alike
    } places;
    std::byte payload[kInlineBytes];
  };
};
static_assert(sizeof(CallLine) == 64);

enum MemberState : uint32_t { kAbsent, kJoined, kLeft };

struct alignas(64) MemberLine {
  Flag state;                     ///< a MemberState
  std::atomic<uint32_t> claimed;  ///< nonzero once an engine was made for this rank
  std::atomic<int32_t> pid;
  std::atomic<uint32_t> busy;  ///< nonzero while it touches memory of other ranks
  /// In a root: whom it waits for in any group, as a rank of the root, + 1; 0: nobody.
  std::atomic<int32_t> waits_for;
};

struct RankBlock {
  CallLine ring[kRingLines];
  FlagLine finished;  ///< operations whose memory of others this rank needs no more
  FlagLine staged;    ///< chunks that it has put into its staging slots
  FlagLine drained;   ///< chunks that it has read from all others' staging slots
  FlagLine doorbell;  ///< rung by peers that wrote into a channel to this rank, or made room in one
  /// Who has opened a channel of messages to this rank, a bit each; set by them.
  alignas(64) std::atomic<uint64_t> channels_from[kMaxRanks / 64];
  MemberLine member;
};

/// The first failure of the group; the first writer wins.
struct Poison {
  enum State : uint32_t { kNone, kWriting, kSet };
  std::atomic<uint32_t> state;
  FailureKind kind;
  int32_t by;  ///< the rank that wrote it
  char text[2036];
};

/// Written once by who makes the segment, constant afterwards.
struct SegmentFacts {
  uint64_t magic;
  uint32_t version;
  int32_t size;              ///< ranks
  int64_t slot_bytes;        ///< of a staging slot
  int64_t small_bytes;       ///< up to here data is copied when it is announced
  int64_t small_slot_bytes;  ///< of the slot for it, or for a list of counts
  int64_t channels_bytes;    ///< of a rank's list of the channels that it has opened
  int64_t stride_bytes;      ///< from one rank's block to the next
  int64_t fixed_bytes;       ///< header and blocks
};

struct SegmentHeader {
  SegmentFacts facts;
  alignas(64) Poison poison;
  alignas(64) std::atomic<int64_t> taken;  ///< bytes behind fixed_bytes that are in use; of a root
  std::atomic<int32_t> left;               ///< members that are gone; of a child
};

constexpr uint64_t kSegmentMagic = 0x6974'7475'742d'6d73;  // "sm-tutti"
constexpr uint32_t kSegmentVersion = 3;
constexpr int64_t kHeaderBytes = 4096;
constexpr int64_t kBlockBytes = 8192;
static_assert(sizeof(SegmentHeader) <= kHeaderBytes && sizeof(RankBlock) <= kBlockBytes);

}  // namespace tutti::detail
