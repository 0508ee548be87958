/// View: which server has which partition now, and who is there. ViewState: the one that decides.
///
/// Views come from one view service alone, beside the rendezvous of the job, whose loss ends the
/// job. No server promotes itself, and none goes on without its backup, before a new view says so;
/// whoever was replaced never comes back under its old number. Pure: no sockets, no clock.
/// Thread rule: one thread.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/ps/wire/message.h"

namespace tutti::ps {

/// Servers of one partition, by number; -1: none.
struct PartitionView {
  int primary = -1;   ///< -1: its parameters are lost
  int backup = -1;    ///< has all orders of the log
  int joining = -1;   ///< is catching up; becomes the backup then
  int64_t epoch = 0;  ///< number of the view that said so first
  bool operator==(const PartitionView&) const = default;
};

struct ProcessView {
  std::string name;     ///< "server 1 (host b, pid 77)"
  std::string address;  ///< where it listens
  bool alive = false;
  std::string ending;     ///< how it went, in words
  bool finished = false;  ///< in order: it was not lost
  int comings = 0;        ///< of a worker: how often one of its number has come
  bool operator==(const ProcessView&) const = default;
};

struct View {
  int64_t number = 0;  ///< 0: not all have come yet
  std::vector<PartitionView> partitions;
  std::vector<ProcessView> servers;  ///< by number, also those that are gone
  std::vector<ProcessView> workers;
  std::string failure;  ///< why the job cannot go on; "": it can

  bool operator==(const View&) const = default;
};

std::string to_text(const View& view);
/// Throws Error for a text that is none.
View view_from(std::string_view text);

/// Whether every partition has the same primary.
bool same_primaries(const View& before, const View& after);

/// Whether `worker` is there in both, and was lost and came again between them: a view that a peer
/// brought may leave others out.
bool was_lost_between(const View& before, const View& after, int worker);

/// For people: a line a change from `before` to `after`; {} when nothing did.
std::vector<std::string> changes(const View& before, const View& after);

/// Which servers of the first training are those of one that begins now, by number there; -1: none
/// is left. Who can keeps its number.
std::vector<int> servers_for_later(const View& first, int num_servers);

class ViewState {
 public:
  /// Views begin when so many servers have come. Partition p is server p's at first, its backup the
  /// next one's; with one server there are none. In place of one that has died by then is one that
  /// came beyond these; without such a spare its death is the end. Numbers below `reserved` are for
  /// those that ask for theirs: a launcher starts them. Of a `later` training the partitions of
  /// servers that have died by then are those of the others.
  ViewState(int num_servers, int num_workers, bool backups = true, int reserved = 0,
            bool later = false);

  /// A server comes, also later to replace one. `process`: "host b, pid 77". `wanted`: its number
  /// among the first; -1: any. Returns the number. Throws UsageError when it is taken or beyond the
  /// first.
  int add_server(const std::string& process, const std::string& address, int wanted = -1);
  /// Throws UsageError for a worker that is alive or a number beyond num_workers.
  void add_worker(int worker, const std::string& process);

  /// Somebody is gone, a worker maybe before it came; `ending` is a predicate: "was killed by
  /// SIGKILL". Idempotent.
  void lose_server(int server, const std::string& ending);
  /// Of a later training: that server of the first ones has died, and will not come.
  void miss_server(int server, const std::string& name, const std::string& ending);
  void lose_worker(int worker, const std::string& ending);
  /// A worker has done what there was to do.
  void finish_worker(int worker);

  /// The primary of `partition`, server `from`, says that `server` has caught up, or that it does
  /// not reach it: it goes on alone then, and the two are not put together again. What is not true
  /// any more changes nothing. Throws Mismatch for a partition that is none.
  void synced(int partition, int from, int server);
  void suspect(int partition, int from, int server);
  /// The job cannot go on; the first reason stays.
  void fail(const std::string& why);

  const View& view() const noexcept { return view_; }
  bool begun() const noexcept { return view_.number > 0; }

 private:
  void end_worker(int worker, const std::string& ending, bool finished);
  void begin_if_all_here();
  bool any_alive() const;
  int alive_after(int server) const;
  int spare_after(int server) const;
  int backup_of(const std::vector<int>& first, int partition) const;
  bool too_few() const;
  PartitionView& named(int partition);
  void take_from(PartitionView& partition, int server);
  void find_joining();
  void publish(const std::vector<PartitionView>& before);

  const int num_servers_;
  const int reserved_;
  const bool backups_;
  const bool later_;
  View view_;
  std::set<std::pair<int, int>> cut_off_;  // primaries, and servers that they do not reach
};

}  // namespace tutti::ps
