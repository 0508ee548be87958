// Of a simulation: servers and workers that die, connections that break, and those who come after.
#include <iterator>

#include "tests/unit/ps/simulation.h"

namespace tutti::ps::testing {

// ---- deaths ----

int64_t Simulation::end_of(const Deaths& deaths) {
  return deaths.others_after < 0 ? -1 : deaths.after + deaths.others_after;
}

void Simulation::follow(const Deaths& deaths) {
  if (deaths.cut_every > 0 && moves_ % deaths.cut_every == 0 && !cut_in_progress_)
    begin_cut(Peer::Kind::worker);
  if (moves_ == deaths.after) {
    kill_worker(deaths.worker, deaths.delivers);
    if (!cut_in_progress_) begin_cut(Peer::Kind::worker);
  }
  if (moves_ == end_of(deaths))
    while (!workers_.empty()) kill_worker(workers_.begin()->first, deaths.delivers);
}

// ---- faults ----

std::vector<int> Simulation::living_servers() const {
  std::vector<int> numbers;
  for (const auto& [number, server] : servers_)
    if (views_.view().servers[number].alive) numbers.push_back(number);
  return numbers;
}

// Whether losing it leaves every partition with somebody who has all of it.
bool Simulation::can_lose(int lost) const {
  for (const PartitionView& partition : views_.view().partitions)
    if (partition.primary == lost && partition.backup < 0) return false;
  return views_.begun();
}

void Simulation::inject(Faults& left) {
  const auto living = living_servers();
  if (living.empty()) return;
  const int server = living[random_.below(living.size())];
  switch (random_.below(8)) {
    case 7:
      if (left.snapshots > 0 && views_.begun()) {
        --left.snapshots;
        begin_cut(Peer::Kind::worker);
      }
      break;
    case 0:
      if (left.server_crashes > 0 && can_lose(server)) crash_server(server, left.server_crashes);
      break;
    case 1:
      if (left.worker_crashes > 0 && workers_.size() > 1) crash_worker(left.worker_crashes);
      break;
    case 2:
      if (left.breaks > 0 && !pipes_.empty()) break_connection(left.breaks);
      break;
    case 3:
      if (left.zombies > 0 && can_lose(server)) make_zombie(server, left.zombies);
      break;
    case 4:
      if (left.cuts > 0) cut_off(server, left.cuts);
      break;
    case 5:
      if (left.questions-- > 0) workers_.at(any_of(workers_))->state.ask_who();
      break;
    default:
      if (left.newcomers > 0 && living.size() < servers_.size() + gone_) {
        --left.newcomers;
        add_server();
      }
  }
}

int Simulation::any_of(const std::map<int, std::unique_ptr<Worker>>& workers) {
  return std::next(workers.begin(), static_cast<int64_t>(random_.below(workers.size())))->first;
}

void Simulation::crash_server(int server, int& left) {
  --left;
  disconnect_all(server_peer(server));
  disconnect_all(primary_peer(server));
  servers_.erase(server);
  ++gone_;
  views_.lose_server(server, "was killed");
  tell_views();
}

void Simulation::make_zombie(int server, int& left) {
  --left;
  servers_.at(server)->hears_views = false;
  words_of_service_.erase(server_peer(server));
  ++gone_;
  views_.lose_server(server, "was silent");
  tell_views();
}

void Simulation::crash_worker(int& left) {
  --left;
  kill_worker(any_of(workers_), false);
}

void Simulation::kill_worker(int number, bool delivers) {
  if (!workers_.contains(number)) return;
  remove_worker(number, "was killed", delivers, false);
  lost_workers_.insert(number);
}

// As Client: who is waited for is lost with an error of its own; any other says goodbye.
void Simulation::fail_worker(int number) {
  remove_worker(number, workers_.at(number)->state.failure(), true,
                spec_.on_lost_worker != OnLostWorker::wait);
}

void Simulation::remove_worker(int number, const std::string& ending, bool delivers,
                               bool finished) {
  if (delivers)
    leave_behind(worker_peer(number));
  else
    disconnect_all(worker_peer(number));
  unsent_.erase(workers_.at(number).get());
  workers_.erase(number);
  words_of_service_.erase(worker_peer(number));
  if (finished)
    views_.finish_worker(number);
  else
    views_.lose_worker(number, ending);
  tell_views();
}

void Simulation::return_worker() {
  --returns_left_;
  add_worker(lost_workers_.extract(lost_workers_.begin()).value());
}

void Simulation::break_connection(int& left) {
  --left;
  auto place = pipes_.begin();
  std::advance(place, random_.below(pipes_.size()));
  const auto [a, b] = place->first;
  // Between servers a break is final: it is a cut.
  if (a.kind == Peer::Kind::primary || b.kind == Peer::Kind::primary) return;
  disconnect(a, b);
}

void Simulation::cut_off(int server, int& left) {
  for (const int follower : servers_.at(server)->state.followers()) {
    const Peer a = primary_peer(server);
    const Peer b = server_peer(follower);
    if (!connected(a, b)) continue;
    --left;
    cut_.insert({a, b});
    cut_.insert({primary_peer(follower), server_peer(server)});
    disconnect(a, b);
    disconnect(primary_peer(follower), server_peer(server));
    return;
  }
}

}  // namespace tutti::ps::testing
