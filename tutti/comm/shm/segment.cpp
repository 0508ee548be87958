#include "tutti/comm/shm/segment.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "tutti/base/detail/check.h"
#include "tutti/base/host.h"

namespace tutti {

using detail::Poison;
using detail::RankBlock;
using detail::SegmentFacts;

namespace {

// Up to here every rank reduces everything, which saves the barrier at the end; beyond, copying and
// pulling what others copied costs more than that. Measured at 2 ranks: equal at 1.5 KiB (cores
// near each other) to 4 KiB (far) when waits spin; where waits sleep a barrier costs 5 us or more.
constexpr int64_t kSmallBytesSpinning = 2 << 10;
constexpr int64_t kSmallBytesSleeping = 8 << 10;

// More ranks read more copies, so less is small.
int64_t small_bytes_for(int size, const ShmOptions& options) {
  const int cores = options.usable_cores > 0 ? options.usable_cores : host_facts().usable_cores;
  const int64_t of_two =
      options.pinned && size <= cores ? kSmallBytesSpinning : kSmallBytesSleeping;
  return std::clamp<int64_t>(of_two * 2 / size / 64 * 64, 512, of_two);
}

SegmentFacts make_facts(int size, const ShmOptions& options) {
  SegmentFacts facts{};
  facts.magic = detail::kSegmentMagic;
  facts.version = detail::kSegmentVersion;
  facts.size = size;
  // A staging slot holds at least one 64-byte line for each rank.
  facts.slot_bytes =
      round_up(std::max<int64_t>(options.slot_bytes, int64_t{64} * size), kPageBytes);
  facts.small_bytes = small_bytes_for(size, options);
  facts.small_slot_bytes = std::max(facts.small_bytes, round_up(int64_t{8} * size, 64));
  facts.channels_bytes = round_up(int64_t{8} * size, 64);
  facts.stride_bytes =
      detail::kBlockBytes +
      round_up(detail::kSlots * (facts.small_slot_bytes + facts.slot_bytes) + facts.channels_bytes,
               kPageBytes);
  facts.fixed_bytes = detail::kHeaderBytes + size * facts.stride_bytes;
  return facts;
}

SegmentFacts read_facts(const SharedFile& file) {
  SegmentFacts facts{};
  constexpr size_t kBytes = sizeof(SegmentFacts);
  const ssize_t got = pread(file.descriptor(), &facts, kBytes, 0);
  if (got != static_cast<ssize_t>(kBytes) || facts.magic != detail::kSegmentMagic)
    throw UsageError(fmt::format("descriptor {} is not a segment of tutti", file.descriptor()));
  if (facts.version != detail::kSegmentVersion)
    throw UsageError(
        fmt::format("the segment has version {}, this program {}: all ranks must run one build",
                    facts.version, detail::kSegmentVersion));
  return facts;
}

}  // namespace

ShmSegment::State::State(SharedFile shared, const ShmOptions& wanted)
    : own_file(std::move(shared)),
      own_locks(own_file.reopen()),
      fixed(own_file, 0, read_facts(own_file).fixed_bytes),
      options(wanted) {
  if (options.usable_cores <= 0) options.usable_cores = host_facts().usable_cores;
}

ShmSegment::State::State(std::shared_ptr<State> parent, int64_t offset, int64_t bytes)
    : root(std::move(parent)), fixed(root->own_file, offset, bytes), options(root->options) {
  options.first_rank = 0;
  options.job_ranks = 0;
}

int64_t ShmSegment::State::take(int64_t bytes) noexcept {
  State& owner = root == nullptr ? *this : *root;
  const int64_t before = owner.header().taken.fetch_add(round_up(bytes, kPageBytes));
  return round_up(owner.facts().fixed_bytes, kPageBytes) + before;
}

std::pair<int64_t, int64_t> ShmSegment::State::make_child(const std::shared_ptr<State>& root,
                                                          int size) {
  const SegmentFacts facts = make_facts(size, root->options);
  const int64_t offset = root->take(facts.fixed_bytes);
  if (!root->own_file.reserve(offset, facts.fixed_bytes)) return {-1, facts.fixed_bytes};
  constexpr size_t kBytes = sizeof(SegmentFacts);
  const ssize_t written = pwrite(root->own_file.descriptor(), &facts, kBytes, offset);
  TUTTI_CHECK(written == static_cast<ssize_t>(kBytes), "wrote {} of {} bytes", written, kBytes);
  return {offset, facts.fixed_bytes};
}

std::shared_ptr<ShmSegment::State> ShmSegment::State::open_child(const std::shared_ptr<State>& root,
                                                                 int64_t offset, int64_t bytes) {
  const std::scoped_lock lock(root->mutex_);
  std::weak_ptr<State>& known = root->children_[offset];
  std::shared_ptr<State> child = known.lock();
  if (child == nullptr) known = child = std::make_shared<State>(root, offset, bytes);
  return child;
}

void ShmSegment::State::leave(int64_t channel_bytes) noexcept {
  // Whoever is not the last touches nothing after this.
  const int size = facts().size;
  if (root == nullptr || header().left.fetch_add(1) + 1 != size) return;
  for (int from = 0; from < size; ++from)
    for (int to = 0; to < size; ++to)
      if (const int64_t offset = channel_table(from)[to].load(); offset != 0)
        file().give_back(offset, channel_bytes);
  file().give_back(fixed.offset(), fixed.num_bytes());
}

Mapping ShmSegment::State::extent(int64_t offset, int64_t bytes) {
  const std::scoped_lock lock(mutex_);
  Mapping& mapping = extents_[offset];
  if (mapping.num_bytes() == 0) mapping = Mapping(file(), offset, bytes);
  return mapping;
}

void ShmSegment::State::poison(FailureKind kind, int by, const char* text) noexcept {
  Poison& poison = header().poison;
  uint32_t expected = Poison::kNone;
  if (!poison.state.compare_exchange_strong(expected, Poison::kWriting)) return;
  poison.kind = kind;
  poison.by = by;
  std::strncpy(poison.text, text, sizeof poison.text - 1);
  poison.state.store(Poison::kSet, std::memory_order_seq_cst);
  for (int rank = 0; rank < facts().size; ++rank) wake_sleepers(rank);
}

void ShmSegment::State::wake_sleepers(int rank) noexcept {
  RankBlock& block = this->block(rank);
  const auto wake = [](Flag& flag) {
    if (flag.has_sleepers()) flag.wake();
  };
  for (auto& line : block.ring) wake(line.ticket);
  for (FlagLine* line : {&block.finished, &block.staged, &block.drained, &block.doorbell})
    wake(line->flag);
  wake(block.member.state);
}

ShmSegment ShmSegment::create(int size, const ShmOptions& options) {
  return create_in(SharedFile::create("tutti"), size, options);
}

ShmSegment ShmSegment::create_in(SharedFile file, int size, const ShmOptions& options) {
  if (size < 1 || size > kMaxRanks)
    throw UsageError(fmt::format("a segment of {} ranks: expected 1 to {}", size, kMaxRanks));
  if (options.slot_bytes < 0 || options.slot_bytes > (int64_t{1} << 30))
    throw UsageError(fmt::format("slot_bytes {}: expected 0 to {}", options.slot_bytes, 1 << 30));
  const SegmentFacts facts = make_facts(size, options);
  const std::string what = fmt::format("the segment of {} ranks", size);
  check_memory_for(facts.fixed_bytes, what);
  if (!file.reserve(0, facts.fixed_bytes))
    throw Error(fmt::format("{}: {} wanted, {} left", what, size_words(facts.fixed_bytes),
                            size_words(read_host_facts().memory_left_bytes())));
  // The rest of the header and all blocks start as zero bytes.
  constexpr size_t kBytes = sizeof(SegmentFacts);
  const ssize_t written = pwrite(file.descriptor(), &facts, kBytes, 0);
  TUTTI_CHECK(written == static_cast<ssize_t>(kBytes), "wrote {} of {} bytes", written, kBytes);
  ShmSegment segment;
  segment.state_ = std::make_shared<State>(std::move(file), options);
  return segment;
}

ShmSegment ShmSegment::open(int descriptor, const ShmOptions& options) {
  ShmSegment segment;
  segment.state_ = std::make_shared<State>(SharedFile::duplicate(descriptor), options);
  return segment;
}

int ShmSegment::descriptor() const noexcept { return state_->own_file.descriptor(); }
int ShmSegment::size() const noexcept { return state_->facts().size; }

}  // namespace tutti
