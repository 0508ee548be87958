#include "tutti/sync/before_use.h"

#include <ATen/record_function.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <ranges>
#include <span>
#include <utility>

#include "tutti/base/detail/check.h"
#include "tutti/base/event.h"

namespace tutti {
namespace detail {

struct BeforeUse::State {
  enum class Progress : uint8_t { ready, awaited, filling };

  State(std::vector<Range> ranges_in, int num_parts, Fill fill_in)
      : ranges(std::move(ranges_in)), parts(num_parts), fill(std::move(fill_in)) {}

  enum class Others : bool { wait, leave };  // for parts that another thread fills
  void require(int part, Others others = Others::wait);
  template <class Parts>
  void require_each(const Parts& parts);
  void require_in(const std::byte* begin, const std::byte* end);
  std::span<const Range> ranges_in(const std::byte* begin, const std::byte* end) const;
  void stop_expecting();

  std::vector<Range> ranges;  // by address; they do not overlap
  std::vector<std::atomic<Progress>> parts;
  const Fill fill;
  std::mutex mutex;  // guards what follows, and writing to parts
  std::condition_variable changed;
  int num_awaited = 0;
  std::exception_ptr failure;
};

namespace {

using State = BeforeUse::State;

// All that some thread's operators may meet. Never destroyed: threads may outlive main().
struct Watched {
  std::mutex mutex;
  std::vector<std::shared_ptr<State>> states;
  std::atomic<int> num_awaited{0};  // parts, of all
};

Watched& watched() {
  static Watched& instance = *std::make_unique<Watched>().release();
  return instance;
}

// What this thread's operator reads, or code that reads memory by itself has asked for since.
using Memory = std::pair<const std::byte*, const std::byte*>;
thread_local std::vector<Memory> read_by_thread;

bool nothing_awaited() { return watched().num_awaited.load(std::memory_order_acquire) == 0; }

// The storage of a tensor with memory on the CPU; null for all others.
c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.device().is_cpu() || !tensor.has_storage()) return nullptr;
  return tensor.storage().unsafeGetStorageImpl();
}

Memory memory_of(c10::StorageImpl& storage) {
  const auto* const begin =
      static_cast<const std::byte*>(storage._mutable_data_ptr_no_checks().get());
  return {begin, begin + storage.nbytes()};
}

void note_read(c10::StorageImpl& storage) {
  const Memory memory = memory_of(storage);
  if (memory.first != nullptr && std::ranges::find(read_by_thread, memory) == read_by_thread.end())
    read_by_thread.push_back(memory);
}

void note_reads(const c10::IValue& input) {
  if (input.isTensor()) {
    if (c10::StorageImpl* const storage = storage_of(input.toTensor())) note_read(*storage);
  } else if (input.isList()) {
    for (const c10::IValue& element : input.toListRef()) note_reads(element);
  }
}

void require_storage(c10::StorageImpl& storage) {
  const auto [begin, end] = memory_of(storage);
  if (begin == nullptr) return;
  std::vector<std::shared_ptr<State>> states;
  {
    const std::lock_guard lock(watched().mutex);
    states = watched().states;
  }
  for (const auto& state : states) state->require_in(begin, end);
}

// LibTorch logs what an observer throws and goes on. So the input is made one that no operator
// can read; the error itself is kept for whoever asks.
void fill_or_spoil(const at::Tensor& input) {
  c10::StorageImpl* const storage = storage_of(input);
  if (storage == nullptr) return;
  try {
    require_storage(*storage);
  } catch (const std::exception& error) {
    storage->release_data_and_set_meta_custom_data_ptr_error_msg_(
        fmt::format("parameters have not come: {}", error.what()));
  }
}

void fill_inputs(const c10::IValue& input) {
  if (input.isTensor()) {
    fill_or_spoil(input.toTensor());
  } else if (input.isList()) {
    for (const c10::IValue& element : input.toListRef()) fill_inputs(element);
  }
}

void stop_watching();

std::unique_ptr<at::ObserverContext> on_operator(const at::RecordFunction& function) {
  if (nothing_awaited()) {
    stop_watching();
    return nullptr;
  }
  read_by_thread.clear();
  for (const c10::IValue& input : function.inputs()) note_reads(input);
  for (const c10::IValue& input : function.inputs()) fill_inputs(input);
  return nullptr;
}

// This thread's observers travel with its state (at::ThreadLocalState) and are put back with it:
// only LibTorch knows whether ours is among them.
const at::RecordFunctionCallbacksEntry* own_observer() {
  const auto& all = at::get_record_function_tls_().sorted_tls_callbacks_;
  const auto found = std::ranges::find_if(
      all, [](const auto& entry) { return entry.callback_.start() == &on_operator; });
  return found == all.end() ? nullptr : &*found;
}

void stop_watching() {
  if (const auto* const own = own_observer()) at::removeCallback(own->handle_);
}

}  // namespace

void BeforeUse::State::require(int part, Others others) {
  std::atomic<Progress>& progress = parts.at(part);
  if (progress.load(std::memory_order_acquire) == Progress::ready) return;
  std::unique_lock lock(mutex);
  if (others == Others::leave && progress == Progress::filling) return;
  // Whoever fills has a deadline.
  changed.wait(lock, [&] { return progress != Progress::filling || failure; });
  if (progress == Progress::ready) return;
  if (failure) std::rethrow_exception(failure);
  progress = Progress::filling;
  lock.unlock();
  try {
    const TimedEvent filled("sync.fill", {"piece", int64_t{part}});
    fill(part);
  } catch (...) {
    lock.lock();
    if (!failure) failure = std::current_exception();
    progress = Progress::awaited;
    changed.notify_all();
    throw;
  }
  lock.lock();
  progress.store(Progress::ready, std::memory_order_release);
  --num_awaited;
  --watched().num_awaited;
  changed.notify_all();
}

// Threads that need the same parts share the filling.
template <class Parts>
void BeforeUse::State::require_each(const Parts& wanted) {
  for (const int part : wanted) require(part, Others::leave);
  for (const int part : wanted) require(part);
}

std::span<const BeforeUse::Range> BeforeUse::State::ranges_in(const std::byte* begin,
                                                              const std::byte* end) const {
  const auto first = std::ranges::upper_bound(ranges, begin, {}, &Range::end);
  auto last = first;
  while (last != ranges.end() && last->begin < end) ++last;
  return {first, last};
}

void BeforeUse::State::require_in(const std::byte* begin, const std::byte* end) {
  std::vector<int> wanted;
  for (const Range& range : ranges_in(begin, end))
    if (parts[range.part].load(std::memory_order_acquire) != Progress::ready)
      wanted.push_back(range.part);
  for (const int part : wanted) emit("sync.first_use", {{"piece", int64_t{part}}});
  require_each(wanted);
}

void BeforeUse::State::stop_expecting() {
  const std::lock_guard lock(mutex);
  watched().num_awaited -= std::exchange(num_awaited, 0);
  for (auto& progress : parts) progress = Progress::ready;
}

BeforeUse::BeforeUse(std::vector<Range> ranges, int num_parts, Fill fill)
    : state_(std::make_shared<State>(std::move(ranges), num_parts, std::move(fill))) {
  std::erase_if(state_->ranges, [](const Range& range) { return range.begin == range.end; });
  std::ranges::sort(state_->ranges, {}, &Range::begin);
  const std::lock_guard lock(watched().mutex);
  watched().states.push_back(state_);
}

BeforeUse::~BeforeUse() {
  state_->stop_expecting();
  const std::lock_guard lock(watched().mutex);
  std::erase(watched().states, state_);
}

void BeforeUse::expect() {
  const std::lock_guard lock(state_->mutex);
  TUTTI_CHECK(state_->num_awaited == 0 || state_->failure, "{} parts of {} have not come",
              state_->num_awaited, state_->parts.size());
  if (state_->failure) return;
  state_->num_awaited = static_cast<int>(state_->parts.size());
  watched().num_awaited += state_->num_awaited;
  for (auto& progress : state_->parts)
    progress.store(State::Progress::awaited, std::memory_order_release);
}

void BeforeUse::give_up(int part) {
  const std::lock_guard lock(state_->mutex);
  std::atomic<State::Progress>& progress = state_->parts.at(part);
  if (progress != State::Progress::ready) return;
  progress.store(State::Progress::awaited, std::memory_order_release);
  ++state_->num_awaited;
  ++watched().num_awaited;
}

std::vector<int> BeforeUse::read_together() const {
  std::vector<int> parts;
  for (const auto& [begin, end] : read_by_thread)
    for (const Range& range : state_->ranges_in(begin, end)) parts.push_back(range.part);
  return parts;
}

void BeforeUse::watch() {
  if (nothing_awaited()) return stop_watching();
  if (!at::isRecordFunctionEnabled()) return require_all();
  if (own_observer() != nullptr) return;
  at::addThreadLocalCallback(at::RecordFunctionCallback(&on_operator)
                                 .needsInputs(true)
                                 .scopes({at::RecordScope::FUNCTION}));
}

bool BeforeUse::ready(int part) const noexcept {
  return state_->parts[part].load(std::memory_order_acquire) == State::Progress::ready;
}

bool BeforeUse::all_ready() const {
  const std::lock_guard lock(state_->mutex);
  return state_->num_awaited == 0;
}

void BeforeUse::require(int part) { state_->require(part); }

void BeforeUse::require_all() {
  state_->require_each(std::views::iota(0, static_cast<int>(state_->parts.size())));
  rethrow_failure();
}

void BeforeUse::rethrow_failure() const {
  const std::lock_guard lock(state_->mutex);
  if (state_->failure) std::rethrow_exception(state_->failure);
}

}  // namespace detail

void require_ready(const at::Tensor& tensor) {
  if (detail::nothing_awaited()) return;
  if (c10::StorageImpl* const storage = detail::storage_of(tensor)) {
    detail::note_read(*storage);
    detail::require_storage(*storage);
  }
}

}  // namespace tutti
