/// ViewService: carries out what ViewState decides, for the servers and workers of one job.
///
/// It runs beside the rendezvous, in the launcher; its loss ends the job. A process is lost when
/// its connection ends without a farewell, or when it says nothing for the silence limit. Workers
/// of a job with a coordinator (tutti/coordinator) learn here where that listens.
///
/// A job has any number of trainings, one after the other or several at once: an optimizer of the
/// workers each, numbered as a worker's program makes them. Each has views, servers (threads of the
/// same processes) and an end of its own.
/// Thread rule: every function may be called from any thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "tutti/base/deadline.h"
#include "tutti/net/listener.h"
#include "tutti/ps/snapshot/snapshot_series.h"
#include "tutti/ps/view/view.h"
#include "tutti/ps/wire/streams.h"

namespace tutti::ps {

struct ViewServiceOptions {
  int num_servers = 1;
  int num_workers = 1;
  int reserved = 0;                   ///< servers below this number ask for theirs (ViewState)
  bool backups = true;                ///< of partitions, on the next server; never with one server
  Millis silence{kDefaultTimeLimit};  ///< a process that says nothing for so long is lost
  SnapshotOptions snapshots{};        ///< of all servers, while they work and at the end; then
                                      ///< there is one training
  std::string one_training{};         ///< a flag of the job's with which there is one; "": several
  /// What all do with the order of updates: kRecordsOrder, words_of_replay(), "": nothing; unset:
  /// as the first server. Who does something else is refused, and is told so.
  std::optional<std::string> order{};
};

class ViewService {
 public:
  /// Listens at `at`. Throws UsageError and Error as Listener does, and as SnapshotSeries.
  ViewService(const ViewServiceOptions& options, const Address& at, const Credentials& credentials);
  /// Ends the job, and with it its servers; after a last snapshot when all workers have gone (10
  /// minutes at most).
  ~ViewService();
  ViewService(const ViewService&) = delete;

  Address address() const { return listener_.address(); }
  /// Of the first training.
  View view() const;
  /// That have begun, those that are over among them.
  int num_trainings() const;
  /// Until `done` holds for the first training's view, or that says why the job cannot go on;
  /// whether it does by then.
  bool wait_until(const std::function<bool(const View&)>& done, const Deadline& deadline) const;
  /// A worker has ended, as whoever started it says: of one that is in no training now nobody else
  /// would. Of others their connections tell.
  void lose_worker(int worker, const std::string& ending);

 private:
  struct Training {
    int number = 0;
    ViewState state;
    View told{};
    bool over = false;
    // Servers that were there when it began and have yet to come: by number in the first training,
    // theirs in this one.
    std::map<int, int> expected{};
  };
  struct Member {
    Peer who;
    Training* training = nullptr;  // that it has joined
    bool refused = false;
    bool left = false;
    TimePoint heard{};
    std::string last{};  // what it did last
  };

  void work();
  void turn();
  void fail(const std::string& why) noexcept;
  void on_message(Peer from, const Message& message);
  void take(Peer from, const Message& message);
  void take_of_server(Training& training, int number, const Message& message);
  void on_join(Peer from, Member& member, const Message& message);
  void join(Training& training, Member& member, const std::string& process,
            const std::string& where);
  void require_same_order(Peer who, const std::string& order);
  Training& training_for(int64_t number, Peer who);
  Training& begin_training(int64_t number, int worker);
  void tell_of(const Training& training, Peer to, int server);
  void tell_over(const Training& training, Peer to);
  void tell_server_that_came(Peer from, const Member& member);
  void on_meet(Peer from, const std::string& place);
  void on_finished(Peer from, Member& member);
  void on_closed(Peer from, const std::string& how);
  void lose(const Member& member, const std::string& how);
  void lose_before_it_came(int server, const std::string& words);
  void publish(Training& training);
  void look_after(TimePoint now);
  void end_when_saved(Training& training);
  void end_job(const std::string& why);
  void tell_cuts();

  const ViewServiceOptions options_;
  Listener listener_;
  mutable std::mutex mutex_;  // guards what follows
  mutable std::condition_variable changed_;
  std::deque<Training> trainings_;    // by number; the first is there from the beginning
  std::map<Peer, Member> members_;    // by connection
  std::map<int, std::string> lost_;   // workers that have not come again: how they went
  std::optional<std::string> order_;  // ViewServiceOptions::order
  std::optional<SnapshotSeries> snapshots_;
  bool last_cut_ = false;  // has begun; servers take it, and workers all before it
  bool closing_ = false;   // the launcher waits for the end
  std::condition_variable ended_;
  std::string meeting_place_;    // of a coordinator and its workers; "": not known yet
  bool meeting_over_ = false;    // the coordinator has ended as it should
  std::vector<Peer> ask_where_;  // those who wait for it
  TimePoint next_beat_{};
  bool over_ = false;
  std::atomic<bool> ends_{false};
  std::unique_ptr<Streams> streams_;
  std::thread thread_;
};

}  // namespace tutti::ps
