/// MPI in this process: started once, ended in order, and who its ranks are.
///
/// Thread rule: every function may be called from any thread.
#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tutti/base/file_descriptor.h"
#include "tutti/comm/mpi/calls.h"

namespace tutti::detail::mpi {

/// Tags on the communicator of the whole world, one for each use.
enum WorldTag : int { kFactsTag = 1, kGroupTag, kMeetingTag };

class MpiProcess {
 public:
  /// Initialises MPI at the first call, unless the program has. Collective then. Throws Timeout
  /// when not all ranks come, UsageError where MPI allows calls from its first thread only.
  static MpiProcess& start(Millis limit);

  /// Ends MPI in order when this object started it and no group failed (process.cpp says how).
  ~MpiProcess();
  MpiProcess(const MpiProcess&) = delete;
  MpiProcess& operator=(const MpiProcess&) = delete;

  MPI_Comm world() const noexcept { return world_; }
  int rank() const noexcept { return rank_; }
  int size() const noexcept { return static_cast<int>(members_.size()); }
  /// Equal for ranks that share a host; the lowest rank there.
  int host_of(int world_rank) const { return members_[world_rank].host; }
  bool serialized() const noexcept { return serialized_; }
  /// Polls before a wait sleeps: few where ranks outnumber cores.
  int spins() const noexcept { return spins_; }

  /// "pid 4711 on node1".
  std::string words(int world_rank) const;
  /// Whether that process has ended; known of this host's alone.
  bool is_dead(int world_rank) const;
  /// Whether that process is stopped (SIGSTOP); known of this host's alone.
  bool is_stopped(int world_rank) const;

  /// Calls `step` now and then, from any thread, until it returns true: transfers and communicators
  /// that outlive their group. At the end of the process it may be dropped.
  void keep(std::function<bool()> step);
  /// Keeps transfers going, and `memory` alive, until they are done.
  void keep(Requests requests, std::shared_ptr<void> memory);
  /// Advances what is kept.
  void poll() noexcept;

  /// A group failed: MPI will not be finalised.
  void note_failure() noexcept { failed_.store(true); }

 private:
  struct Member {
    int host = 0;
    int pid = 0;
    uint64_t pid_namespace = 0;
    std::string host_name;
    FileDescriptor process;  ///< a pidfd, of this host's other ranks
  };

  explicit MpiProcess(Millis limit);
  void initialise();
  void duplicate_world(const Deadline& deadline);
  void exchange_facts(const Deadline& deadline);
  std::string facts_of_this_rank() const;
  bool is_visible(int world_rank) const;
  bool nothing_kept();
  void say_goodbye() noexcept;
  bool wait_for_all_to_end();

  bool ours_ = false;  ///< this object initialised MPI
  bool serialized_ = false;
  MPI_Comm world_ = MPI_COMM_NULL;
  int rank_ = 0;
  int spins_ = 0;
  std::vector<Member> members_;
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::list<std::function<bool()>> kept_;  // guarded by mutex_
};

/// How ranks of a communicator swap texts: everybody's in rank order, on a tag of its own.
struct TextExchange {
  MPI_Comm comm;
  int tag;
  std::string what;                                   ///< begins every error: "split, rank 1 of 4"
  std::function<void(const std::vector<int>&)> look;  ///< called now and then with who is missing
  std::function<std::string(int)> rank_words;         ///< "rank 3 (pid 4711 on node1)"
};
/// Throws Timeout naming the ranks that did not come, and whatever `look` throws.
std::vector<std::string> exchange_texts(MpiProcess& process, const TextExchange& how,
                                        const std::string& mine, const Deadline& deadline);

}  // namespace tutti::detail::mpi
