// Messages: matched by sender and tag, in order within these, whatever the collectives do.
//
// A message begins with a *head*, its length. What is short follows it in the same MPI message,
// from memory of the engine's own: the sender is done at once, so two ranks may send to each other
// before either receives. What is long follows in MPI messages of their own, straight from the
// sender's memory to the receiver's; their receives are posted before the next head is looked for,
// so MPI matches them first.
#include <algorithm>
#include <cstring>

#include "tutti/comm/mpi/mpi_engine.h"

namespace tutti::detail::mpi {
namespace {

constexpr int64_t kHeadBytes = sizeof(int64_t);
// As long a message as is kept for a receiver that has not asked for it.
constexpr int64_t kShortBytes = 64 << 10;

int most_tag(MPI_Comm comm) {
  void* value = nullptr;
  int found = 0;
  check_mpi(MPI_Comm_get_attr(comm, MPI_TAG_UB, static_cast<void*>(&value), &found),
            "MPI_Comm_get_attr");
  return found != 0 ? *static_cast<int*>(value) : 32767;
}

std::shared_ptr<std::vector<std::byte>> packed(const MemorySpan& data) {
  const int64_t bytes = data.num_bytes();
  const int64_t inside = bytes <= kShortBytes ? bytes : 0;
  auto message = std::make_shared<std::vector<std::byte>>(static_cast<size_t>(kHeadBytes + inside));
  std::memcpy(message->data(), &bytes, sizeof bytes);
  if (inside > 0) std::memcpy(message->data() + kHeadBytes, data.data, static_cast<size_t>(inside));
  return message;
}

}  // namespace

void MpiEngine::add_message(const Operation& operation, Ticket batch) {
  if (const int most = most_tag(comms_.messages); operation.tag < 0 || operation.tag > most)
    throw UsageError(fmt::format("{}, rank {} of {}: tag {}; this MPI library takes 0 to {}",
                                 name_of(operation.collective), rank_, size_, operation.tag, most));
  Message message;
  message.batch = batch;
  message.number = ++message_numbers_;
  message.operation = operation;
  message.deadline = time_after(operation.limit);
  if (operation.collective == Collective::send) {
    const int to = operation.root;
    const MemorySpan& data = operation.input;
    const auto head = packed(data);
    Requests sends;
    sends.send(comms_.messages, head->data(), static_cast<int64_t>(head->size()), to,
               operation.tag);
    if (sends.test(); !sends.idle()) {
      process_.poll();
      process_.keep(std::move(sends), head);
    }
    ++sent_[to];
    if (data.num_bytes() <= kShortBytes) return;
    message.moving.send(comms_.messages, data.data, data.num_bytes(), to, operation.tag,
                        options_.message_bytes);
  }
  ++open_batches_[batch];
  messages_.push_back(std::move(message));
}

bool MpiEngine::advance_messages() {
  bool moved = false;
  for (auto message = messages_.begin(); message != messages_.end();) {
    if (!advance_message(*message)) {
      ++message;
      continue;
    }
    moved = true;
    if (message->operation.source != nullptr) *message->operation.source = message->source;
    const auto batch = open_batches_.find(message->batch);
    if (--batch->second == 0) open_batches_.erase(batch);
    message = messages_.erase(message);
  }
  return moved;
}

// True when it is done.
bool MpiEngine::advance_message(Message& message) {
  if (message.operation.collective == Collective::recv && message.stage != Message::opened &&
      !open_message(message))
    return false;
  message.moving.test();
  return message.moving.idle();
}

// A receive waits behind an older one that the same message could be for, and until that one has
// posted the receives of what follows its head.
bool MpiEngine::stands_behind_another(const Message& message) const {
  const auto older = [&](const Message& other) {
    const int theirs = other.operation.root;
    const int own = message.operation.root;
    return other.number < message.number && other.stage != Message::opened &&
           other.operation.collective == Collective::recv &&
           other.operation.tag == message.operation.tag &&
           (theirs == own || theirs == kAnyRank || own == kAnyRank);
  };
  return std::any_of(messages_.begin(), messages_.end(), older);
}

// True once the message is found, its length is known, and what is still to come has a place.
bool MpiEngine::open_message(Message& message) {
  if (message.stage == Message::waiting) {
    if (stands_behind_another(message)) return false;
    const int from = message.operation.root;
    const Probe found =
        probe(comms_.messages, from == kAnyRank ? MPI_ANY_SOURCE : from, message.operation.tag);
    if (!found.here) return false;
    message.stage = Message::found;
    message.source = found.source;
    ++taken_[found.source];
    message.room.resize(static_cast<size_t>(found.bytes));
    message.moving.receive(found, message.room.data());
  }
  message.moving.test();
  if (!message.moving.idle()) return false;
  int64_t bytes = 0;
  std::memcpy(&bytes, message.room.data(), sizeof bytes);
  const MemorySpan& data = message.operation.output;
  if (bytes != data.num_bytes())
    fail(FailureKind::mismatch,
         fmt::format("{} sent {} bytes under tag {}, rank {} has room for {}\n"
                     "  a message is received into as many bytes as were sent",
                     rank_words(message.source), bytes, message.operation.tag, rank_,
                     data.num_bytes()),
         message_words(message));
  if (bytes > kShortBytes)
    message.moving.receive(comms_.messages, data.data, bytes, message.source, message.operation.tag,
                           options_.message_bytes);
  else if (bytes > 0)
    std::memcpy(data.data, message.room.data() + kHeadBytes, static_cast<size_t>(bytes));
  message.stage = Message::opened;
  return true;
}

}  // namespace tutti::detail::mpi
