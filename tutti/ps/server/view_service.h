/// ViewService: carries out what ViewState decides, for the servers and workers of one job.
///
/// It runs beside the rendezvous, in the launcher; its loss ends the job. A process is lost when
/// its connection ends without a farewell, or when it says nothing for the silence limit. Workers
/// of a job with a coordinator (tutti/coordinator) learn here where that listens. Thread rule:
/// every function may be called from any thread.
#pragma once

#include <condition_variable>
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
  SnapshotOptions snapshots{};        ///< of all servers, while they work and at the end
};

class ViewService {
 public:
  /// Listens at `at`. Throws UsageError and Error as Listener does, and as SnapshotSeries.
  ViewService(const ViewServiceOptions& options, const Address& at, const Credentials& credentials);
  /// Ends the job: servers that are still there end, after a last snapshot when all workers have
  /// gone (10 minutes at most).
  ~ViewService();
  ViewService(const ViewService&) = delete;

  Address address() const { return listener_.address(); }
  View view() const;
  /// Until `done` holds for the view, or it says why the job cannot go on; whether it does by then.
  bool wait_until(const std::function<bool(const View&)>& done, const Deadline& deadline) const;
  /// A worker has ended, as whoever started it says: of one that never came nobody else would. Of
  /// others their connections tell.
  void lose_worker(int worker, const std::string& ending);

 private:
  struct Member {
    Peer who;
    bool joined = false;
    bool left = false;
    TimePoint heard{};
    std::string last;  // what it did last
  };

  void work();
  void turn();
  void fail(const std::string& why) noexcept;
  void on_message(Peer from, const Message& message);
  void take(Peer from, const Message& message);
  void on_join(Peer from, Member& member, const Message& message);
  void on_meet(Peer from, const std::string& place);
  void on_finished(Peer from, Member& member);
  void on_closed(Peer from, const std::string& how);
  void lose(const Member& member, const std::string& how);
  void publish();
  void look_after(TimePoint now);
  void end_when_saved();
  void end_servers(const std::string& why);
  bool any_worker_came() const;
  bool all_workers_gone() const;
  void tell_cuts();

  const ViewServiceOptions options_;
  Listener listener_;
  mutable std::mutex mutex_;  // guards what follows
  mutable std::condition_variable changed_;
  ViewState state_;
  View told_;
  std::map<Peer, Member> members_;  // by connection
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
