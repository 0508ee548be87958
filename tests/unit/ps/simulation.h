/// A job of parameter servers in one thread: the real states of servers, workers and view service,
/// and between them connections that delay, break and are cut, driven by a seeded schedule.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/random.h"
#include "tutti/ps/server/server_state.h"
#include "tutti/ps/snapshot/cut_in_progress.h"
#include "tutti/ps/view/view.h"

#include "tests/unit/ps/simulated_worker.h"

namespace tutti::ps::testing {

/// How many of a test's seeds, or of what it counts over them, are wanted: all where
/// TUTTI_TEST_ALL_SEEDS is set, as in CI, else a quarter.
inline int seeds(int all) {
  static const bool kAll = std::getenv("TUTTI_TEST_ALL_SEEDS") != nullptr;
  return kAll ? all : (all + 3) / 4;
}

struct Faults {
  int server_crashes = 0;  ///< of servers, one after another
  int worker_crashes = 0;
  int returns = 0;    ///< of workers that have crashed
  int breaks = 0;     ///< of connections, which come back
  int zombies = 0;    ///< servers that the service loses though they live and hear nothing
  int cuts = 0;       ///< of a server from its follower, for good; both reach the workers
  int newcomers = 0;  ///< servers that come to replace lost ones
  int questions = 0;  ///< of workers: whom do they wait for
  int snapshots = 0;  ///< cuts of the whole job, one after another
};

/// When workers die, in moves of the schedule, and when cuts begin.
struct Deaths {
  int64_t cut_every = 0;      ///< a cut begins so often, as the one before is over; 0: none does
  int64_t after = -1;         ///< then `worker` dies, and a cut begins if none is made; -1: nobody
  int worker = 0;             ///< one that is there
  bool delivers = false;      ///< what it had sent may still come, up to some message
  int64_t others_after = -1;  ///< so much later all others die; -1: they do not
};

class Simulation {
 public:
  Simulation(Spec spec, int num_servers, int64_t steps, Program program, uint64_t seed)
      : spec_(std::move(spec)),
        steps_(steps),
        program_(std::move(program)),
        random_(random_key(seed, RandomPurpose::test)),
        views_(num_servers, spec_.num_workers) {
    for (int i = 0; i < num_servers; ++i) add_server();
    for (int i = 0; i < spec_.num_workers; ++i) add_worker(i);
  }

  /// Runs until all living workers have done their steps and everything is settled. False when
  /// nothing moves any more or it takes too long; words() says who waits for what.
  bool run(const Faults& faults = {}, const Deaths& deaths = {}) {
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
  /// Whether all workers that are left have come to the end of theirs.
  bool done() const {
    return std::ranges::all_of(workers_, [](const auto& entry) {
      return entry.second->done() && entry.second->state.failure().empty();
    });
  }
  /// Workers that died and did not come again.
  size_t num_dead() const { return lost_workers_.size(); }
  /// How long the last run() was.
  int64_t moves() const { return moves_; }

  /// The job is over: its workers end in order, and the last cut is made of what servers have.
  void end() {
    while (!workers_.empty()) remove_worker(workers_.begin()->first, "has finished", true, true);
    move_on();
    begin_cut(Peer::Kind::server);
    move_on();
  }

  std::string words() const {
    std::string all = views_.view().failure;
    for (const auto& [number, worker] : workers_)
      all += fmt::format("\nworker {} in step {}: {} {}", number, worker->step,
                         worker->state.words(), worker->state.failure());
    return all;
  }

  const View& view() const { return views_.view(); }
  const PartitionState& partition(int number) const {
    return servers_.at(views_.view().partitions.at(number).primary)->state.partition(number);
  }
  /// Delivers all that is on its way.
  void settle() {
    for (auto moves = possible(); !moves.empty(); moves = possible()) moves.front()();
  }
  /// The backup's; nullptr when there is none.
  const PartitionState* backup(int number) const {
    const int server = views_.view().partitions.at(number).backup;
    return server < 0 ? nullptr : &servers_.at(server)->state.partition(number);
  }
  bool alive(int worker) const { return workers_.contains(worker); }
  const ClientState& worker(int number) const { return workers_.at(number)->state; }
  int64_t step_of(int number) const { return workers_.at(number)->step; }
  /// Cuts that the view service took for complete, by number, with their partitions; and the step
  /// at which each worker that marked the cut began behind its mark.
  using Cuts = std::map<int64_t, std::map<int, std::shared_ptr<PartitionCut>>>;
  const Cuts& cuts() const { return cuts_; }
  /// Why others were given up.
  const std::vector<std::string>& given_up() const { return given_up_; }
  const std::map<int64_t, std::map<int, int64_t>>& marks() const { return marks_; }
  /// Pushes of a worker, dead or not, that it was told were through.
  const std::map<int, int64_t>& settled() const { return settled_; }

 private:
  struct Server {
    ServerState state;
    bool hears_views = true;
  };
  using Worker = SimulatedWorker;
  struct Pipe {  // one direction of a connection
    std::deque<Message> messages;
  };
  struct Word {  // of the view service: a view, or a cut
    std::optional<View> view;
    Message cut;
  };
  using Ends = std::pair<Peer, Peer>;  // from, to

  // The two ends of a connection between servers: whose log it is, and who follows.
  static Peer primary_peer(int n) { return {Peer::Kind::primary, n}; }
  static Peer server_peer(int n) { return {Peer::Kind::server, n}; }
  static Peer worker_peer(int n) { return {Peer::Kind::worker, n}; }

  void add_server() {
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

  void add_worker(int number) {
    auto& host = hosts_[Carriers(spec_).host_of(number)];
    if (!host) host = std::make_shared<SimulatedHost>(spec_.pieces.size());
    workers_.emplace(number, std::make_unique<Worker>(number, spec_, steps_, program_, host,
                                                      [this, number](int server, Message message) {
                                                        put(worker_peer(number),
                                                            server_peer(server),
                                                            std::move(message));
                                                      }));
    views_.add_worker(number, "simulated");
    tell_views();
    if (cut_in_progress_) words_of_service_[worker_peer(number)].push_back({{}, told_cut_});
  }

  // The view service's connections never break: its loss is the job's.
  void tell_views() {
    for (const auto& [number, server] : servers_)
      if (server->hears_views)
        words_of_service_[server_peer(number)].push_back({views_.view(), {}});
    for (const auto& [number, worker] : workers_)
      words_of_service_[worker_peer(number)].push_back({views_.view(), {}});
    if (cut_in_progress_) cut_in_progress_->on_view(views_.view());
    end_cut_if_over();
  }

  void put(Peer from, Peer to, Message message) {
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
  void write(int server, int partition, std::shared_ptr<PartitionCut> cut) {
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

  void note_mark(const Message& mark) {
    const auto [place, fresh] = marks_[mark.version].try_emplace(mark.worker, mark.step);
    EXPECT_TRUE(fresh || place->second == mark.step)
        << "worker " << mark.worker << " marks steps " << place->second << " and " << mark.step;
  }

  // Each of them hears of it at a time of its own. One that takes too long is given up before.
  void begin_cut(Peer::Kind of_whom) {
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

  void end_cut_if_over() {
    if (!cut_in_progress_) return;
    if (!cut_in_progress_->failure().empty()) return end_cut(cut_in_progress_->failure());
    if (!cut_in_progress_->complete()) return;
    const int64_t number = cut_in_progress_->number();
    cuts_[number] = std::move(parts_[number]);
    end_cut("");
  }

  void end_cut(const std::string& why) {
    if (!why.empty()) given_up_.push_back(why);
    parts_.erase(cut_in_progress_->number());
    cut_in_progress_.reset();
  }

  bool connected(Peer a, Peer b) const {
    return pipes_.contains({a, b}) && !without_sender_.contains({a, b});
  }

  void connect(Peer a, Peer b) {
    if (without_sender_.contains({a, b})) close_behind({a, b});
    pipes_[{a, b}];
    pipes_[{b, a}];
    told_connected(a, b);
    told_connected(b, a);
  }

  void told_connected(Peer who, Peer other) {
    if (who.kind != Peer::Kind::worker)
      servers_.at(who.number)->state.on_connected(other);
    else
      workers_.at(who.number)->state.on_connected(other.number);
  }

  void disconnect(Peer a, Peer b) {
    if (!connected(a, b)) return;
    pipes_.erase({a, b});
    pipes_.erase({b, a});
    told_closed(a, b);
    told_closed(b, a);
  }

  void told_closed(Peer who, Peer other) {
    if (who.kind != Peer::Kind::worker && servers_.contains(who.number))
      servers_.at(who.number)->state.on_closed(other, "closed its connection");
    if (who.kind == Peer::Kind::worker && workers_.contains(who.number))
      workers_.at(who.number)->state.on_closed(other.number);
  }

  void disconnect_all(Peer gone) {
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
  void leave_behind(Peer gone) {
    std::vector<Ends> ends;
    for (const auto& [pair, pipe] : pipes_)
      if (pair.first == gone) ends.push_back(pair);
    for (const auto& [from, to] : ends) {
      pipes_.erase({to, from});
      without_sender_.insert({from, to});
    }
  }

  void close_behind(const Ends& ends) {
    without_sender_.erase(ends);
    pipes_.erase(ends);
    told_closed(ends.second, ends.first);
  }

  // ---- what may happen next ----

  std::vector<std::function<void()>> possible() {
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
          moves.push_back([this, number = number, server] {
            connect(worker_peer(number), server_peer(server));
          });
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

  void moves_to_send(Worker& worker, std::vector<std::function<void()>>& moves) {
    for (const int server : worker.state.servers())
      if (worker.state.num_unsettled() > 0 && unsent_.contains(&worker))
        moves.push_back([this, &worker, server] {
          if (!worker.state.send_next(server)) maybe_all_sent(worker);
        });
  }

  // Offers to send are withdrawn once no server takes any; a new push or welcome brings them back.
  void maybe_all_sent(Worker& worker) {
    for (const int server : worker.state.servers())
      if (worker.state.send_next(server)) return;
    unsent_.erase(&worker);
  }

  void act(int number) {
    Worker& worker = *workers_.at(number);
    if (worker.act()) unsent_.insert(&worker);
  }

  void deliver_word(Peer to) {
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

  void deliver_to_service(Peer from) {
    const Message message = std::move(to_service_.at(from).front());
    to_service_.at(from).pop_front();
    const auto server = static_cast<int>(message.sequence);
    if (message.kind == Message::Kind::synced)
      views_.synced(message.partition, from.number, server);
    if (message.kind == Message::Kind::suspect)
      views_.suspect(message.partition, from.number, server);
    if (message.kind != Message::Kind::written) return tell_views();
    if (cut_in_progress_) cut_in_progress_->on_written(message);
    end_cut_if_over();
  }

  void deliver(Ends ends) {
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

  void move_on() {
    for (auto moves = possible(); !moves.empty(); moves = possible())
      moves[random_.below(moves.size())]();
  }

  // ---- deaths ----

  static int64_t end_of(const Deaths& deaths) {
    return deaths.others_after < 0 ? -1 : deaths.after + deaths.others_after;
  }

  void follow(const Deaths& deaths) {
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

  std::vector<int> living_servers() const {
    std::vector<int> numbers;
    for (const auto& [number, server] : servers_)
      if (views_.view().servers[number].alive) numbers.push_back(number);
    return numbers;
  }

  // Whether losing it leaves every partition with somebody who has all of it.
  bool can_lose(int lost) const {
    for (const PartitionView& partition : views_.view().partitions)
      if (partition.primary == lost && partition.backup < 0) return false;
    return views_.begun();
  }

  void inject(Faults& left) {
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

  int any_of(const std::map<int, std::unique_ptr<Worker>>& workers) {
    return std::next(workers.begin(), static_cast<int64_t>(random_.below(workers.size())))->first;
  }

  void crash_server(int server, int& left) {
    --left;
    disconnect_all(server_peer(server));
    disconnect_all(primary_peer(server));
    servers_.erase(server);
    ++gone_;
    views_.lose_server(server, "was killed");
    tell_views();
  }

  void make_zombie(int server, int& left) {
    --left;
    servers_.at(server)->hears_views = false;
    words_of_service_.erase(server_peer(server));
    ++gone_;
    views_.lose_server(server, "was silent");
    tell_views();
  }

  void crash_worker(int& left) {
    --left;
    kill_worker(any_of(workers_), false);
  }

  void kill_worker(int number, bool delivers) {
    if (!workers_.contains(number)) return;
    remove_worker(number, "was killed", delivers, false);
    lost_workers_.insert(number);
  }

  // As Client: who is waited for is lost with an error of its own; any other says goodbye.
  void fail_worker(int number) {
    remove_worker(number, workers_.at(number)->state.failure(), true,
                  spec_.on_lost_worker != OnLostWorker::wait);
  }

  void remove_worker(int number, const std::string& ending, bool delivers, bool finished) {
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

  void return_worker() {
    --returns_left_;
    add_worker(lost_workers_.extract(lost_workers_.begin()).value());
  }

  void break_connection(int& left) {
    --left;
    auto place = pipes_.begin();
    std::advance(place, random_.below(pipes_.size()));
    const auto [a, b] = place->first;
    // Between servers a break is final: it is a cut.
    if (a.kind == Peer::Kind::primary || b.kind == Peer::Kind::primary) return;
    disconnect(a, b);
  }

  void cut_off(int server, int& left) {
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

  const Spec spec_;
  const int64_t steps_;
  const Program program_;
  RandomStream random_;
  ViewState views_;
  std::map<int, std::unique_ptr<Server>> servers_;
  std::map<int, std::unique_ptr<Worker>> workers_;
  std::map<int, std::shared_ptr<SimulatedHost>> hosts_;
  std::map<Ends, Pipe> pipes_;
  std::set<Ends> without_sender_;  // pipes of which the sender is dead
  std::map<Peer, std::deque<Word>> words_of_service_;
  std::map<Peer, std::deque<Message>> to_service_;
  std::set<Ends> cut_;
  std::set<Worker*> unsent_;
  std::map<int, int64_t> settled_;
  int64_t next_cut_ = 1;
  std::optional<CutInProgress> cut_in_progress_;
  Message told_cut_;
  Cuts parts_;  // of cuts that are not complete
  Cuts cuts_;
  std::vector<std::string> given_up_;
  int64_t moves_ = 0;
  std::map<int64_t, std::map<int, int64_t>> marks_;
  std::set<int> lost_workers_;
  int returns_left_ = 0;
  size_t gone_ = 0;
  int next_server_ = 0;
};

}  // namespace tutti::ps::testing
