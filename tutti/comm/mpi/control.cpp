#include "tutti/comm/mpi/control.h"

#include <algorithm>
#include <cstring>
#include <thread>

namespace tutti::detail::mpi {
namespace {

constexpr int kControlTag = 1;
constexpr Millis kPush{20};

}  // namespace

Control::Control(MpiProcess& process, MPI_Comm comm) : process_(process), comm_(comm) {
  int size = 0;
  check_mpi(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(comm_, &size), "MPI_Comm_size");
  left_.resize(static_cast<size_t>(size));
  receive_next();
}

// Each member says one last thing, so nothing is left to receive once all have.
void Control::receive_next() {
  if (failure_ || all_have_left()) return;
  receive_.receive(comm_, incoming_.get(), sizeof *incoming_, MPI_ANY_SOURCE, kControlTag);
}

void Control::poll() {
  int from = -1;
  if (!receive_.test([&](const Requests::Done& done) { from = done.source; })) return;
  if (incoming_->kind == ControlMessage::left) {
    left_[from] = *incoming_;
    ++absent_;
  } else {
    failure_ = {.by = from, .kind = incoming_->failure, .text = incoming_->text};
  }
  receive_next();
}

// Most such messages are on their way when send() returns; the rest is pushed on for a moment,
// since this process may make no call of MPI for long after.
void Control::push(Requests sends, std::shared_ptr<void> memory) const {
  const Deadline deadline(kPush);
  for (sends.test(); !sends.idle() && !deadline.passed(); sends.test()) std::this_thread::yield();
  process_.keep(std::move(sends), std::move(memory));
}

void Control::tell_failure(FailureKind kind, const std::string& text) const {
  const auto message = std::make_shared<ControlMessage>();
  message->kind = ControlMessage::failed;
  message->failure = kind;
  std::memcpy(message->text, text.data(), std::min(text.size(), sizeof message->text - 1));
  Requests sends;
  for (int r = 0; r < static_cast<int>(left_.size()); ++r)
    if (r != rank_) sends.send(comm_, message.get(), sizeof *message, r, kControlTag);
  push(std::move(sends), message);
}

void Control::tell_leaving(uint64_t collectives, const std::vector<uint64_t>& messages) const {
  const auto all = std::make_shared<std::vector<ControlMessage>>(left_.size());
  Requests sends;
  for (int r = 0; r < static_cast<int>(left_.size()); ++r) {
    ControlMessage& message = (*all)[r];
    message.collectives = collectives;
    message.messages = messages[r];
    if (r != rank_) sends.send(comm_, &message, sizeof message, r, kControlTag);
  }
  push(std::move(sends), all);
}

}  // namespace tutti::detail::mpi
