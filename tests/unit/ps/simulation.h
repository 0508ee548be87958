/// A job of parameter servers in one thread: the real states of servers, workers and view service,
/// and between them connections that delay, break and are cut, driven by a seeded schedule.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tutti/base/random.h"
#include "tutti/ps/server/server_state.h"
#include "tutti/ps/snapshot/cut_in_progress.h"
#include "tutti/ps/view/view.h"

#include "tests/support/seeds.h"
#include "tests/unit/ps/simulated_worker.h"

namespace tutti::ps::testing {

using test::seeds;  // or of what a test counts over them

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
  bool run(const Faults& faults = {}, const Deaths& deaths = {});
  /// Whether all workers that are left have come to the end of theirs.
  bool done() const;
  /// Workers that died and did not come again.
  size_t num_dead() const { return lost_workers_.size(); }
  /// How long the last run() was.
  int64_t moves() const { return moves_; }

  /// The job is over: its workers end in order, and the last cut is made of what servers have.
  void end();

  std::string words() const;

  const View& view() const { return views_.view(); }
  const PartitionState& partition(int number) const;
  /// Delivers all that is on its way.
  void settle();
  /// The backup's; nullptr when there is none.
  const PartitionState* backup(int number) const;
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

  // The job: who is there, and what is said between them.
  void add_server();
  void add_worker(int number);
  void tell_views();
  void put(Peer from, Peer to, Message message);
  void write(int server, int partition, std::shared_ptr<PartitionCut> cut);
  void note_mark(const Message& mark);
  void begin_cut(Peer::Kind of_whom);
  void end_cut_if_over();
  void end_cut(const std::string& why);

  // Connections.
  bool connected(Peer a, Peer b) const;
  void connect(Peer a, Peer b);
  void told_connected(Peer who, Peer other);
  void disconnect(Peer a, Peer b);
  void told_closed(Peer who, Peer other);
  void disconnect_all(Peer gone);
  void leave_behind(Peer gone);
  void close_behind(const Ends& ends);

  // What may happen next.
  std::vector<std::function<void()>> possible();
  void moves_to_send(Worker& worker, std::vector<std::function<void()>>& moves);
  void maybe_all_sent(Worker& worker);
  void act(int number);
  void deliver_word(Peer to);
  void deliver_to_service(Peer from);
  void deliver(Ends ends);
  void move_on();

  // What is made to happen (simulation_faults.cpp).
  static int64_t end_of(const Deaths& deaths);
  void follow(const Deaths& deaths);
  std::vector<int> living_servers() const;
  bool can_lose(int lost) const;
  void inject(Faults& left);
  int any_of(const std::map<int, std::unique_ptr<Worker>>& workers);
  void crash_server(int server, int& left);
  void make_zombie(int server, int& left);
  void crash_worker(int& left);
  void kill_worker(int number, bool delivers);
  void fail_worker(int number);
  void remove_worker(int number, const std::string& ending, bool delivers, bool finished);
  void return_worker();
  void break_connection(int& left);
  void cut_off(int server, int& left);

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
