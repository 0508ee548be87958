#include "tests/unit/ps/simulation.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "tutti/base/error.h"

namespace tutti::ps::testing {

bool Simulation::run(const Faults& faults, const Deaths& deaths) {
  Faults left = faults;
  returns_left_ = faults.returns;
  for (moves_ = 0; moves_ < 400'000; ++moves_) {
    if (done()) return true;
    if (!views_.view().failure.empty()) return false;
    if (moves_ > 40 && random_.below(40) == 0) inject(left);
    follow(deaths);
    const auto moves = possible();
    if (!moves.empty())
      moves[random_.below(moves.size())]();
    else if (moves_ < deaths.after || moves_ >= end_of(deaths))
      return false;
  }
  return false;
}

bool Simulation::done() const {
  return std::ranges::all_of(workers_, [](const auto& entry) {
    return entry.second->done() && entry.second->state.failure().empty();
  });
}

void Simulation::end() {
  while (!workers_.empty()) remove_worker(workers_.begin()->first, "has finished", true, true);
  move_on();
  begin_cut(Peer::Kind::server);
  move_on();
}

std::string Simulation::words() const {
  std::string all = views_.view().failure;
  for (const auto& [number, worker] : workers_)
    all += fmt::format("\nworker {} in step {}: {} {}", number, worker->step, worker->state.words(),
                       worker->state.failure());
  return all;
}

const PartitionState& Simulation::partition(int number) const {
  return servers_.at(views_.view().partitions.at(number).primary)->state.partition(number);
}

void Simulation::settle() {
  for (auto moves = possible(); !moves.empty(); moves = possible()) moves.front()();
}

const PartitionState* Simulation::backup(int number) const {
  const int server = views_.view().partitions.at(number).backup;
  return server < 0 ? nullptr : &servers_.at(server)->state.partition(number);
}

void Simulation::add_server() {
  const int number = next_server_++;
  servers_.emplace(number, std::make_unique<Server>(Server{ServerState(
                               number, Compute::plain(),
                               [this, number](Peer to, Message message) {
                                 put(server_peer(number), to, std::move(message));
                               },
                               [this, number](int partition, std::shared_ptr<PartitionCut> cut) {
                                 write(number, partition, std::move(cut));
                               })}));
  views_.add_server("simulated", "", -1);
  tell_views();
}

void Simulation::add_worker(int number) {
  auto& host = hosts_[Carriers(spec_).host_of(number)];
  if (!host) host = std::make_shared<SimulatedHost>(spec_.pieces.size());
  workers_.emplace(number, std::make_unique<Worker>(number, spec_, steps_, program_, host,
                                                    [this, number](int server, Message message) {
                                                      put(worker_peer(number), server_peer(server),
                                                          std::move(message));
                                                    }));
  views_.add_worker(number, "simulated");
  tell_views();
  if (cut_in_progress_) words_of_service_[worker_peer(number)].push_back({{}, told_cut_});
}

// The view service's connections never break: its loss is the job's.
void Simulation::tell_views() {
  for (const auto& [number, server] : servers_)
    if (server->hears_views) words_of_service_[server_peer(number)].push_back({views_.view(), {}});
  for (const auto& [number, worker] : workers_)
    words_of_service_[worker_peer(number)].push_back({views_.view(), {}});
  if (cut_in_progress_) cut_in_progress_->on_view(views_.view());
  end_cut_if_over();
}

void Simulation::put(Peer from, Peer to, Message message) {
  if (to.kind == Peer::Kind::view_service) {
    if (servers_.at(from.number)->hears_views) to_service_[from].push_back(std::move(message));
    return;
  }
  if (from.kind == Peer::Kind::server && to.kind == Peer::Kind::server)
    from = primary_peer(from.number);
  if (message.kind == Message::Kind::mark) note_mark(message);
  const auto pipe = pipes_.find({from, to});
  if (pipe != pipes_.end()) pipe->second.messages.push_back(std::move(message));
}

// What a server's writer does, but for the disk.
void Simulation::write(int server, int partition, std::shared_ptr<PartitionCut> cut) {
  Message written{
      .kind = Message::Kind::written, .partition = partition, .sequence = cut->number()};
  written.text = cut->objection();
  if (written.text.empty())
    written.text = to_text(cut->part(partition));
  else
    written.flags = Message::not_written;
  put(server_peer(server), Peer{}, std::move(written));
  parts_[cut->number()][partition] = std::move(cut);
}

void Simulation::note_mark(const Message& mark) {
  const auto [place, fresh] = marks_[mark.version].try_emplace(mark.worker, mark.step);
  EXPECT_TRUE(fresh || place->second == mark.step)
      << "worker " << mark.worker << " marks steps " << place->second << " and " << mark.step;
}

// Each of them hears of it at a time of its own. One that takes too long is given up before.
void Simulation::begin_cut(Peer::Kind of_whom) {
  if (!views_.begun()) return;
  if (cut_in_progress_) end_cut("the next begins");
  cut_in_progress_.emplace(next_cut_, views_.view());
  told_cut_ = {.kind = Message::Kind::cut,
               .view = views_.view().number,
               .sequence = next_cut_++,
               .text = "folder"};
  for (const auto& [number, worker] : workers_)
    if (of_whom == Peer::Kind::worker)
      words_of_service_[worker_peer(number)].push_back({{}, told_cut_});
  for (const auto& [number, server] : servers_)
    if (of_whom == Peer::Kind::server && server->hears_views)
      words_of_service_[server_peer(number)].push_back({{}, told_cut_});
}

void Simulation::end_cut_if_over() {
  if (!cut_in_progress_) return;
  if (!cut_in_progress_->failure().empty()) return end_cut(cut_in_progress_->failure());
  if (!cut_in_progress_->complete()) return;
  const int64_t number = cut_in_progress_->number();
  cuts_[number] = std::move(parts_[number]);
  end_cut("");
}

void Simulation::end_cut(const std::string& why) {
  if (!why.empty()) given_up_.push_back(why);
  parts_.erase(cut_in_progress_->number());
  cut_in_progress_.reset();
}

bool Simulation::connected(Peer a, Peer b) const {
  return pipes_.contains({a, b}) && !without_sender_.contains({a, b});
}

void Simulation::connect(Peer a, Peer b) {
  if (without_sender_.contains({a, b})) close_behind({a, b});
  pipes_[{a, b}];
  pipes_[{b, a}];
  told_connected(a, b);
  told_connected(b, a);
}

void Simulation::told_connected(Peer who, Peer other) {
  if (who.kind != Peer::Kind::worker)
    servers_.at(who.number)->state.on_connected(other);
  else
    workers_.at(who.number)->state.on_connected(other.number);
}

void Simulation::disconnect(Peer a, Peer b) {
  if (!connected(a, b)) return;
  pipes_.erase({a, b});
  pipes_.erase({b, a});
  told_closed(a, b);
  told_closed(b, a);
}

void Simulation::told_closed(Peer who, Peer other) {
  if (who.kind != Peer::Kind::worker && servers_.contains(who.number))
    servers_.at(who.number)->state.on_closed(other, "closed its connection");
  if (who.kind == Peer::Kind::worker && workers_.contains(who.number))
    workers_.at(who.number)->state.on_closed(other.number);
}

void Simulation::disconnect_all(Peer gone) {
  std::vector<Ends> ends;
  for (const auto& [pair, pipe] : pipes_)
    if (pair.first == gone || pair.second == gone) ends.push_back(pair);
  for (const auto& pair : ends)
    if (without_sender_.contains(pair))
      close_behind(pair);
    else
      disconnect(pair.first, pair.second);
}

// What a process had sent before it died comes in order, as far as it had left.
void Simulation::leave_behind(Peer gone) {
  std::vector<Ends> ends;
  for (const auto& [pair, pipe] : pipes_)
    if (pair.first == gone) ends.push_back(pair);
  for (const auto& [from, to] : ends) {
    pipes_.erase({to, from});
    without_sender_.insert({from, to});
  }
}

void Simulation::close_behind(const Ends& ends) {
  without_sender_.erase(ends);
  pipes_.erase(ends);
  told_closed(ends.second, ends.first);
}

// ---- what may happen next ----

std::vector<std::function<void()>> Simulation::possible() {
  std::vector<std::function<void()>> moves;
  for (auto& [peer, queue] : words_of_service_)
    if (!queue.empty()) moves.push_back([this, peer = peer] { deliver_word(peer); });
  for (auto& [peer, queue] : to_service_)
    if (!queue.empty()) moves.push_back([this, peer = peer] { deliver_to_service(peer); });
  for (auto& [ends, pipe] : pipes_)
    if (!pipe.messages.empty()) moves.push_back([this, ends = ends] { deliver(ends); });
  for (const Ends& ends : without_sender_)
    moves.push_back([this, ends = ends] { close_behind(ends); });
  for (auto& [number, worker] : workers_) {
    if (!worker->state.failure().empty()) {
      moves.push_back([this, number = number] { fail_worker(number); });
      continue;
    }
    for (const int server : worker->state.servers())
      if (servers_.contains(server) && !connected(worker_peer(number), server_peer(server)))
        moves.push_back(
            [this, number = number, server] { connect(worker_peer(number), server_peer(server)); });
    if (worker->ready()) moves.push_back([this, number = number] { act(number); });
    if (const auto piece = worker->to_carry())
      moves.push_back([this, number = number, piece = *piece] {
        workers_.at(number)->carry(piece);
        unsent_.insert(workers_.at(number).get());
      });
    moves_to_send(*worker, moves);
  }
  if (returns_left_ > 0 && !lost_workers_.empty()) moves.push_back([this] { return_worker(); });
  for (auto& [number, server] : servers_)
    for (const int follower : server->state.copies_to())
      moves.push_back([this, number = number, follower] {
        servers_.at(number)->state.continue_copies(follower);
      });
  for (auto& [number, server] : servers_)
    for (const int follower : server->state.followers()) {
      const Peer a = primary_peer(number);
      const Peer b = server_peer(follower);
      if (servers_.contains(follower) && !connected(a, b) && !cut_.contains({a, b}))
        moves.push_back([this, a, b] { connect(a, b); });
    }
  return moves;
}

void Simulation::moves_to_send(Worker& worker, std::vector<std::function<void()>>& moves) {
  for (const int server : worker.state.servers())
    if (worker.state.num_unsettled() > 0 && unsent_.contains(&worker))
      moves.push_back([this, &worker, server] {
        if (!worker.state.send_next(server)) maybe_all_sent(worker);
      });
}

// Offers to send are withdrawn once no server takes any; a new push or welcome brings them back.
void Simulation::maybe_all_sent(Worker& worker) {
  for (const int server : worker.state.servers())
    if (worker.state.send_next(server)) return;
  unsent_.erase(&worker);
}

void Simulation::act(int number) {
  Worker& worker = *workers_.at(number);
  if (worker.act()) unsent_.insert(&worker);
}

void Simulation::deliver_word(Peer to) {
  const Word word = std::move(words_of_service_.at(to).front());
  words_of_service_.at(to).pop_front();
  if (to.kind == Peer::Kind::server && servers_.contains(to.number)) {
    ServerState& server = servers_.at(to.number)->state;
    if (word.view)
      server.on_view(*word.view);
    else
      server.cut_all(word.cut.sequence, word.cut.text);
  }
  if (to.kind == Peer::Kind::worker && workers_.contains(to.number)) {
    SimulatedWorker& worker = *workers_.at(to.number);
    if (word.view)
      worker.state.on_view(*word.view);
    else
      worker.state.on_cut(word.cut);
    unsent_.insert(&worker);
  }
}

void Simulation::deliver_to_service(Peer from) {
  const Message message = std::move(to_service_.at(from).front());
  to_service_.at(from).pop_front();
  const auto server = static_cast<int>(message.sequence);
  if (message.kind == Message::Kind::synced) views_.synced(message.partition, from.number, server);
  if (message.kind == Message::Kind::suspect)
    views_.suspect(message.partition, from.number, server);
  if (message.kind != Message::Kind::written) return tell_views();
  if (cut_in_progress_) cut_in_progress_->on_written(message);
  end_cut_if_over();
}

void Simulation::deliver(Ends ends) {
  const Message message = std::move(pipes_.at(ends).messages.front());
  pipes_.at(ends).messages.pop_front();
  const auto& [from, to] = ends;
  if (to.kind != Peer::Kind::worker) {
    try {
      servers_.at(to.number)->state.on_message(from, message);
    } catch (const Mismatch&) {
      // What was refused of a worker that is dead leaves a gap before what comes after it.
      if (!without_sender_.contains(ends)) throw;
      close_behind(ends);
    }
    return;
  }
  Worker& worker = *workers_.at(to.number);
  const int64_t before = worker.state.counts().settled;
  worker.state.on_message(from.number, message);
  unsent_.insert(&worker);
  if (worker.state.counts().settled > before) settled_[to.number] = worker.state.counts().settled;
}

void Simulation::move_on() {
  for (auto moves = possible(); !moves.empty(); moves = possible())
    moves[random_.below(moves.size())]();
}

}  // namespace tutti::ps::testing
