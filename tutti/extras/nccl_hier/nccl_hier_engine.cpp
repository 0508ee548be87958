// all_reduce over the devices of H hosts with L each, for each chunk: NCCL leaves with every local
// rank the host's sum of its part, in its place; that is copied to pinned memory, added up over the
// hosts by the rail, and copied back; NCCL shares the parts out. 2 (H-1)/H S bytes leave a host,
// through L ranks at a time.
//
// All that a rank does on its device is in one order on NCCL's stream, the same on every rank of a
// host: chunk c + 1 is added up before chunk c is shared out, since c crosses meanwhile, and an
// operation begins once the last chunk of the one before is queued. So two pinned buffers are
// enough, and nothing waits for them: the copy into one is behind the copy out of it.
#include "tutti/extras/nccl_hier/detail/nccl_hier_engine.h"

#include <algorithm>
#include <thread>

#include "tutti/base/detail/check.h"
#include "tutti/base/log.h"
#include "tutti/comm/engine/detail/spans.h"

namespace tutti {
namespace detail::nccl {
namespace {

constexpr auto kNap = std::chrono::microseconds(50);
// Rounds before a wait naps, and looks what others have learnt.
constexpr int kPolls = 200;
// Parts begin on a line, as far as the data does.
constexpr int64_t kLineBytes = 64;

Millis left_of(const Deadline& deadline) { return std::max(Millis{1}, deadline.left()); }

}  // namespace

NcclHierEngine::NcclHierEngine(NcclHierParts parts, std::shared_ptr<NcclEngine> inside, int device)
    : parts_(std::move(parts)),
      shape_(ReductionShape::flat(parts_.size)),
      device_(device),
      inside_(std::move(inside)) {
  const OnDevice here(device_);
  for (auto& staged : staged_)
    staged = std::make_unique<Pinned>(parts_.chunk_bytes / inside_->size() + kLineBytes);
}

NcclHierEngine::~NcclHierEngine() {
  if (!entries_.empty())
    abort(FailureKind::peer_lost,
          fmt::format("rank {} left the group in the middle of {} #{}", parts_.rank,
                      name_of(entries_.front().operation.collective), queued_ + 1));
}

void NcclHierEngine::refuse_what_is_not_here(const Operation& operation) const {
  const bool adds = operation.reduce == ReduceOp::sum || operation.reduce == ReduceOp::min ||
                    operation.reduce == ReduceOp::max || operation.reduce == ReduceOp::product;
  if (operation.collective == Collective::barrier) return;
  if (operation.collective != Collective::all_reduce || !adds)
    throw UsageError(fmt::format(
        "{} ({}), rank {} of {}: engine \"hier\" for devices has all_reduce of sum, min, max and "
        "product, and barrier; use engine nccl",
        name_of(operation.collective), name_of(operation.reduce), parts_.rank, parts_.size));
  inside_->refuse_what_nccl_has_not(operation);
}

// ---- what an operation does ----

// Whole lines for every local rank.
int64_t NcclHierEngine::elements_of_chunk(DType dtype) const {
  const int64_t line = std::max<int64_t>(1, kLineBytes / size_of(dtype)) * inside_->size();
  return std::max<int64_t>(1, parts_.chunk_bytes / size_of(dtype) / line) * line;
}

NcclHierEngine::Chunk NcclHierEngine::chunk_at(const MemorySpan& data, int64_t begin,
                                               int turn) const {
  const int here = inside_->size();
  const int64_t count = std::min(elements_of_chunk(data.dtype), data.num_elements - begin);
  Chunk chunk{.all = part_of(data, begin, count)};
  for (int r = 0; r < here; ++r) chunk.counts.push_back(count * (r + 1) / here - count * r / here);
  chunk.mine = part_of(chunk.all, count * inside_->rank() / here,
                       chunk.counts[static_cast<size_t>(inside_->rank())]);
  chunk.staged = {staged_[static_cast<size_t>(turn)]->data(), chunk.mine.num_elements, data.dtype};
  return chunk;
}

Ticket NcclHierEngine::add_inside(Entry& entry, const Chunk& chunk) {
  const bool equal = chunk.all.num_elements % inside_->size() == 0;
  const Operation sum{.collective = Collective::reduce_scatter,
                      .reduce = entry.operation.reduce,
                      .input = chunk.all,
                      .output = chunk.mine,
                      .input_counts = equal ? std::vector<int64_t>{} : chunk.counts,
                      .limit = left_of(entry.deadline)};
  inside_->submit_after({&sum, 1}, std::exchange(entry.ready, {}));
  return inside_->copy(chunk.staged, chunk.mine, left_of(entry.deadline));
}

Program::Until NcclHierEngine::add_between(const Entry& entry, const Chunk& chunk) {
  if (chunk.staged.num_elements == 0) return {parts_.rail.get(), 0};  // so on the whole rail
  const Operation sum{.collective = Collective::all_reduce,
                      .reduce = entry.operation.reduce,
                      .output = chunk.staged,
                      .limit = left_of(entry.deadline)};
  return {parts_.rail.get(), parts_.rail->submit({&sum, 1})};
}

void NcclHierEngine::share_inside(const Entry& entry, const Chunk& chunk) {
  const bool equal = chunk.all.num_elements % inside_->size() == 0;
  const Operation all{.collective = Collective::all_gather,
                      .input = chunk.mine,
                      .output = chunk.all,
                      .output_counts = equal ? std::vector<int64_t>{} : chunk.counts,
                      .limit = left_of(entry.deadline)};
  inside_->copy(chunk.mine, chunk.staged, left_of(entry.deadline));
  last_inside_ = inside_->submit_after({&all, 1}, {});
}

Program NcclHierEngine::all_reduce(Entry& entry) {
  const MemorySpan data = entry.operation.output;
  const int64_t per_chunk = elements_of_chunk(data.dtype);
  if (data.num_elements == 0) co_return;
  int turn = 0;
  Chunk next = chunk_at(data, 0, turn);
  Ticket next_staged = add_inside(entry, next);
  for (int64_t begin = 0; begin < data.num_elements; begin += per_chunk) {
    const Chunk chunk = next;
    const Ticket staged = next_staged;
    if (begin + per_chunk < data.num_elements) {
      turn = 1 - turn;
      next = chunk_at(data, begin + per_chunk, turn);
      next_staged = add_inside(entry, next);
    }
    co_await Program::Until{inside_.get(), staged};
    co_await add_between(entry, chunk);
    share_inside(entry, chunk);
  }
}

Program NcclHierEngine::barrier(Entry& entry) {
  for (Engine* const engine : {static_cast<Engine*>(inside_.get()), parts_.rail.get(),
                               static_cast<Engine*>(inside_.get())}) {
    Operation operation = entry.operation;
    operation.limit = left_of(entry.deadline);
    co_await Program::Until{engine, engine->submit({&operation, 1})};
  }
}

// ---- the queue ----

Ticket NcclHierEngine::submit(std::span<const Operation> batch) {
  throw_if_failed();
  for (const Operation& operation : batch) refuse_what_is_not_here(operation);
  if (batch.empty()) return submitted_;
  for (const Operation& operation : batch) {
    entries_.push_back({operation, inside_->mark_of(operation), Deadline(operation.limit), {}});
    ++submitted_;
  }
  advance();
  return submitted_;
}

// As far as it goes without waiting.
void NcclHierEngine::advance() {
  throw_if_failed();
  try {
    inside_->nudge();
    for (; !entries_.empty(); entries_.pop_front(), ++queued_) {
      Entry& entry = entries_.front();
      if (!entry.program)
        entry.program.emplace(
            entry.operation.collective == Collective::barrier ? barrier(entry) : all_reduce(entry));
      if (!entry.program->advance()) break;
      ends_.push_back(last_inside_);
    }
    for (; !ends_.empty() && inside_->poll(ends_.front()); ends_.pop_front()) ++completed_;
  } catch (const Error& error) {
    fail(error);
  }
}

void NcclHierEngine::wait(const std::function<bool()>& reached, const Deadline& deadline) {
  for (int polls = 0; !reached(); ++polls) {
    advance();
    if (reached()) return;
    if (deadline.passed() || is_late()) give_up();
    if (polls < kPolls) continue;
    try {
      parts_.rail->nudge();  // NCCL may not learn what ended the other part
      parts_.look();
    } catch (const Error& error) {
      fail(error);
    }
    std::this_thread::sleep_for(kNap);
  }
}

// What stands in the way says whom it waits for.
void NcclHierEngine::give_up() {
  try {
    const Program::Pending pending =
        entries_.empty() || !entries_.front().program
            ? Program::Pending{inside_.get(), ends_.empty() ? last_inside_ : ends_.front()}
            : entries_.front().program->pending();
    if (pending.engine != nullptr) pending.engine->progress(pending.ticket, Deadline(Millis{0}));
  } catch (const Error& error) {
    fail(error);
  }
}

void NcclHierEngine::progress(Ticket ticket, const Deadline& deadline) {
  wait([&] { return completed_ >= ticket; }, deadline);
}

bool NcclHierEngine::poll(Ticket ticket) {
  advance();
  if (is_late()) give_up();
  return completed_ >= ticket;
}

void NcclHierEngine::run(const Operation& operation) {
  progress(submit({&operation, 1}), Deadline(operation.limit));
}

void NcclHierEngine::wait_on(Ticket ticket, Stream stream) {
  wait([&] { return queued_ >= ticket; }, Deadline(kLongestLimit));
  if (completed_ >= ticket) return;
  try {
    inside_->wait_on(ends_[ticket - completed_ - 1], stream);
  } catch (const Error& error) {
    fail(error);
  }
}

// ---- failing ----

std::string NcclHierEngine::words() const {
  const std::string what =
      entries_.empty()
          ? fmt::format("after operation #{}", submitted_)
          : fmt::format("{} #{}", name_of(entries_.front().operation.collective), queued_ + 1);
  return fmt::format("{}, rank {} of {} (hier): ", what, parts_.rank, parts_.size);
}

// The first failure of a part ends the other too, here and, through them, everywhere.
void NcclHierEngine::fail(const std::exception& error) {
  abort(kind_of(error), error.what());
  throw_if_failed();
  check_failed(__FILE__, __LINE__, "failure_", error.what());
}

void NcclHierEngine::throw_if_failed() const {
  failure_.rethrow([this] {
    inside_->give_up_buffers();  // copies of this engine's stand there behind NCCL's kernels
    return words();
  });
}

void NcclHierEngine::abort(FailureKind kind, const std::string& text) noexcept {
  try {
    if (!failure_.keep(kind, text)) return;
    parts_.rail->abort(kind, text);
    inside_->abort(kind, text);
  } catch (const std::exception& error) {
    log(LogLevel::error, "rank {} of {}, abort: {}", parts_.rank, size(), error.what());
  }
}

std::shared_ptr<Engine> NcclHierEngine::split(int /*color*/, int /*key*/, Millis /*limit*/) {
  throw UsageError(
      fmt::format("split, rank {} of {}: engine \"hier\" for devices has no parts; split the group "
                  "of the hosts, or use engine nccl",
                  parts_.rank, parts_.size));
}

SharedParts NcclHierEngine::allocate(int64_t /*bytes*/, Millis /*limit*/) {
  throw UsageError(fmt::format("allocate, rank {} of {}: devices of several hosts share no memory",
                               parts_.rank, parts_.size));
}

}  // namespace detail::nccl

std::shared_ptr<Engine> make_nccl_hier(NcclHierParts parts, const NcclOptions& options) {
  auto inside =
      std::static_pointer_cast<detail::nccl::NcclEngine>(make_nccl(*parts.inside, options));
  if (parts.rank == 0)
    log(LogLevel::info,
        "engine hier: NCCL adds up on the {} devices of each host, engine {} between {} hosts",
        inside->size(), parts.rail->name(), parts.rail->size());
  return std::make_shared<detail::nccl::NcclHierEngine>(std::move(parts), std::move(inside),
                                                        options.device);
}

}  // namespace tutti
