// Which requests of workers a partition can carry out, and what is wrong with others.
#include <fmt/format.h>

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/ps/partition/partition_state.h"

namespace tutti::ps {
namespace {

using Kind = Message::Kind;

std::string push_words(const Message& push) {
  return fmt::format("worker {}, push {} of {} {} in step {}", push.worker, push.sequence,
                     push.kind == Kind::push ? "piece" : "table", push.piece, push.step);
}

std::string words_of_leaver(int worker) {
  return fmt::format(
      "worker {} has left before, and its steps cannot be done again (on_lost_worker end); start "
      "the job anew, from a snapshot if there is one",
      worker);
}

}  // namespace

std::vector<const std::byte*> data_of_parts(const Message& push, int64_t num_bytes,
                                            size_t num_segments, int replicas) {
  std::set<int> ranks;
  std::vector<const std::byte*> data;
  if (push.payload.size() != num_bytes * static_cast<int64_t>(push.parts.size()))
    throw Error(fmt::format("{}: {} bytes for {} parts of {}", push_words(push),
                            push.payload.size(), push.parts.size(), num_bytes));
  for (const Part& part : push.parts) {
    if (part.rank < 0 || part.rank >= replicas || !ranks.insert(part.rank).second)
      throw Error(
          fmt::format("{}: a part of rank {} of {}", push_words(push), part.rank, replicas));
    if (part.used.size() != num_segments)
      throw Error(fmt::format("{}: {} marks for {} segments", push_words(push), part.used.size(),
                              num_segments));
    data.push_back(push.payload.span.data() + num_bytes * static_cast<int64_t>(data.size()));
  }
  return data;
}

bool ranks_clash(const Message& push, const Message& other) {
  return std::ranges::any_of(push.parts, [&](const Part& part) {
    return std::ranges::find(other.parts, part.rank, &Part::rank) != other.parts.end();
  });
}

std::string PartitionState::objection(const Message& request, const Names& name_of) const {
  try {
    if (request.kind == Kind::hello) return objection_to_hello(request, name_of);
    if (!registered()) return "no worker has registered yet";
    if (request.kind == Kind::counts) return "";
    if (request.kind == Kind::lease) {
      const LeaseRequest wanted = lease_request_from(request.text);
      return unassigned_.contains(Message::kRest) ? "" : cursor_.objection(wanted);
    }
    if (request.worker < 0 || request.worker >= spec_->num_workers)
      return fmt::format("worker {} of {}", request.worker, spec_->num_workers);
    if (has_left_for_good(request.worker)) return words_of_leaver(request.worker);
    if (request.step < 0 || request.step > Staleness::kMost)
      return fmt::format("worker {} is in step {}", request.worker, request.step);
    if (request.kind == Kind::begins) return "";
    if (request.kind == Kind::bring) return objection_to_bring(request);
    if (request.kind == Kind::sparse_push || request.kind == Kind::sparse_pull)
      return objection_to_rows(request);
    if (request.kind == Kind::mark) return objection_to_mark(request);
    if (request.kind == Kind::assign) return objection_to_assign(request);
    piece(request.piece);  // is one of this partition
    if ((request.flags & Message::exactly) != 0) values_of_version(request.piece, request.step);
    return request.kind == Kind::push ? objection_to_push(request) : "";
  } catch (const Error& error) {
    return error.what();
  }
}

std::string PartitionState::objection_to_push(const Message& push) const {
  const DensePiece& wanted = piece(push.piece);
  data_of_parts(push, wanted.num_bytes(), spec_->pieces[push.piece].segments.size(),
                spec_->shape.replicas());
  if (unassigned_.contains(push.piece))
    return fmt::format("{}: it has no values yet", push_words(push));
  std::string why = objection_to_carrier(push);
  if (why.empty()) why = objection_to_ranks(push);
  return why.empty() ? objection_to_number(push) : why;
}

std::string PartitionState::objection_to_carrier(const Message& push) const {
  const int carrier = carriers_->carrier(carriers_->host_of(push.worker), push.piece);
  if (push.worker == carrier) return "";
  return fmt::format("{}: worker {} carries that piece for their host", push_words(push), carrier);
}

// Of synchronous pushes: each replica's gradient counts once.
std::string PartitionState::objection_to_ranks(const Message& push) const {
  const auto round = rounds_.find(target_of(push));
  if (round == rounds_.end()) return "";
  for (const auto& [worker, other] : round->second)
    if (worker != push.worker && other.step == push.step && ranks_clash(push, other))
      return fmt::format("{}: worker {} has pushed a part of the same rank", push_words(push),
                         worker);
  return "";
}

std::string PartitionState::objection_to_bring(const Message& bring) const {
  if (spec_->on_lost_worker == OnLostWorker::end || bring.sequence < 1)
    return fmt::format("worker {} comes to meeting {}, with on_lost_worker {}", bring.worker,
                       bring.sequence, name_of(spec_->on_lost_worker));
  if (const int64_t most = most_bytes_brought(spec_->num_workers); bring.payload.size() > most)
    return fmt::format("worker {} brings {} bytes to meeting {}; at most {} are possible by each",
                       bring.worker, bring.payload.size(), bring.sequence, most);
  return meetings_.objection({bring.step, bring.sequence});
}

std::string PartitionState::objection_to_mark(const Message& mark) const {
  if (mark.sequence >= 1 && mark.version >= 1 && !mark.text.empty()) return "";
  return fmt::format("worker {} marks cut {} as push {} for folder \"{}\"", mark.worker,
                     mark.version, mark.sequence, mark.text);
}

std::string PartitionState::objection_to_assign(const Message& request) const {
  if (request.piece == Message::kRest) {
    if (spec_->goes_on_from.empty())
      return fmt::format("worker {} goes on from a snapshot, the job does not", request.worker);
    if (request.sequence == 0 &&
        std::ssize(restored_from(request.text).tables) != tables_->num_tables())
      return fmt::format("worker {} goes on with other embedding tables", request.worker);
    return "";
  }
  const DensePiece& wanted = piece(request.piece);
  if (!request.text.empty()) {
    wanted.check(request.text, wanted.blocks_of(request.payload));
  } else if (request.payload.size() != wanted.num_bytes()) {
    return fmt::format("worker {} gives {} bytes for piece {}, which has {}", request.worker,
                       request.payload.size(), request.piece, wanted.num_bytes());
  }
  return "";
}

std::string PartitionState::objection_to_hello(const Message& request, const Names& name_of) const {
  const Spec spec = spec_from(request.text);
  if (request.worker < 0 || request.worker >= spec.num_workers)
    return fmt::format("worker {} of {}", request.worker, spec.num_workers);
  const std::string differs = registered() ? difference(spec, *spec_) : "";
  if (differs.empty() && registered() && has_left_for_good(request.worker))
    return words_of_leaver(request.worker);
  if (differs.empty()) return "";
  const auto who = [&](int worker) {
    return name_of ? name_of(worker) : fmt::format("worker {}", worker);
  };
  return fmt::format("{} does not train what {} does: {}", who(request.worker), who(registrant_),
                     differs);
}

std::string PartitionState::objection_to_rows(const Message& request) const {
  if (std::string why = tables().objection(request); !why.empty()) return why;
  if (request.kind == Kind::sparse_push) return objection_to_number(request);
  return request.sequence < 1 ? fmt::format("worker {} asks for rows under number {}",
                                            request.worker, request.sequence)
                              : "";
}

std::string PartitionState::objection_to_number(const Message& push) const {
  spec_->rule.next({}, push.learning_rate);
  const int64_t version = version_of(push);
  if (push.sequence < 1 || push.version < 0)
    return fmt::format("{}: computed on version {} of {}", push_words(push), push.version, version);
  // Whoever is right has pulled that version, from a primary whose log this one has.
  if (spec_->staleness.synchronous() && push.step > version)
    return fmt::format("{}: step {} is not over", push_words(push), version);
  return "";
}

}  // namespace tutti::ps
