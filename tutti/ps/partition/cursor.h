/// Cursor: which worker takes which batch of an epoch, where workers are not in step.
///
/// Each batch is leased to one worker, which gives it back with what it has counted on it. The
/// leases of a worker that is gone are given out again: every batch is trained at least once, and
/// repeats are counted. An epoch ends when all its leases have been given back.
/// Thread rule: one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tutti::ps {

/// What a worker asks for, and gives back in the same breath.
struct LeaseRequest {
  int dataset = 0;           ///< several may be read in one program
  int64_t epoch = 0;         ///< from 0 on, one after another
  int64_t num_batches = 0;   ///< of the epoch
  int64_t returned = -1;     ///< batch that is done; -1: none
  std::vector<double> sums;  ///< counted on it; equally many in each request of an epoch
  /// What the worker was asked for (AgreedLines): all that ask for batches of an epoch must have
  /// been asked for the same. "": it has said so before.
  std::string agreed = {};
};

struct Lease {
  int64_t batch = -1;        ///< -1: the epoch is over
  bool repeated = false;     ///< it was another worker's before
  std::vector<double> sums;  ///< when over: of all batches
  int64_t repeats = 0;       ///< when over: batches that were leased again
  bool past = false;         ///< over before this cursor went on from a snapshot, or long ago: its
                             ///< sums are not known any more
};

std::string to_text(const LeaseRequest& request);
std::string to_text(const Lease& lease);
/// Throw Error for a text that is none.
LeaseRequest lease_request_from(std::string_view text);
Lease lease_from(std::string_view text);

class Cursor {
 public:
  /// A worker asks. One that asks for a later epoch begins it, when the one before is over.
  /// Throws Error for a request that cannot be: an epoch further on, another number of batches.
  void ask(int worker, const LeaseRequest& request);
  /// Why that request cannot be; "": it can.
  std::string objection(const LeaseRequest& request) const;
  /// Those who asked and can be answered now. A batch is given only to a worker that `may` begin a
  /// step: whoever held one and waited for a slower worker would keep it from that worker.
  std::vector<std::pair<int, Lease>> answers(const std::function<bool(int worker)>& may);
  /// Whether `worker` has asked and waits for others.
  bool waits(int worker) const { return asked_.contains(worker); }
  void leave(int worker);
  /// Takes note of what a request gives back, whoever had it, and answers nothing: the cursor of a
  /// cut, which gives no batches out.
  void record(const LeaseRequest& request);
  /// Nobody has a batch or waits for one. How many batches an epoch has may be said anew: a job
  /// that goes on from a snapshot may go on for longer.
  void reopen();

  std::string to_text() const;
  void restore(std::string_view text);

 private:
  struct Epoch {
    int64_t num_batches = 0;  // -1: as many as the next who asks says
    int64_t next = 0;
    std::map<int64_t, int> out;  // batch: worker
    std::deque<int64_t> again;   // whose worker is gone
    std::vector<double> sums;
    int64_t repeats = 0;
    std::string agreed;  // by the first who said; not copied, since whoever asks next says it

    bool over() const {
      return num_batches >= 0 && next >= num_batches && out.empty() && again.empty();
    }
  };
  using Key = std::pair<int, int64_t>;  // dataset and epoch

  static void add(Epoch& epoch, const std::vector<double>& sums);
  bool is_past(const Key& key) const;
  std::optional<Lease> answer(int worker, const Key& key);

  std::map<Key, Epoch> epochs_;  // of each dataset the last two
  std::map<int, Key> asked_;     // by worker
};

}  // namespace tutti::ps
