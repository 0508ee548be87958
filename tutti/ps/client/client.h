/// Client: a worker's end of the parameter servers: hands in gradients, gets parameters.
///
/// Everything is asynchronous: who waits here sends and receives meanwhile, and a thread of the
/// client's while nobody does. It survives the loss of servers that have backups: what was not
/// acknowledged is sent again to whoever took over. docs/design/parameter_server.md.
///
/// Thread rule: every function may be called from any thread.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "tutti/base/array.h"
#include "tutti/base/deadline.h"
#include "tutti/net/address.h"
#include "tutti/net/credentials.h"
#include "tutti/ps/client/client_state.h"
#include "tutti/ps/partition/partition_counts.h"

namespace tutti::ps {

struct ClientOptions {
  int worker = 0;
  int training = 0;  ///< of the job, from 0 on: the same of all workers; those before it first
  HostPort view_service;
  Millis limit{kDefaultTimeLimit};    ///< for all servers to be there
  Millis silence{kDefaultTimeLimit};  ///< without a word of the view service: it is lost
  std::chrono::microseconds poll{0};  ///< of who waits, before it sleeps: with a core of its own
  bool share_memory = true;           ///< with servers of this host; else payloads go as bytes
  /// Which worker's gradient of a piece is not finite, where this one pushes for others of its host
  /// too; asked by whatever thread waits here or the client's, and calls nothing here. Null: its
  /// own.
  std::function<int(int piece)> whose_gradient;
  std::shared_ptr<const UpdateOrder> replay{};  ///< a recorded order that the servers follow
  bool assigns = false;  ///< gives the first values though workers before it are there; those that
                         ///< come first count
};

/// What the servers have counted, over all partitions.
struct ServerCounts {
  PartitionCounts counts;    ///< updates: of the partition that has most
  int64_t bytes_pushed = 0;  ///< by this worker, of gradients
  int64_t bytes_pulled = 0;  ///< by this worker, of parameters
};

/// Rows of an embedding table that were asked for. Copies share them.
struct AskedRows {
  int64_t pull = 0;
  Array rows;  ///< [keys, width]; Client::sparse_fetch() says when they may be read
};

class Client {
 public:
  using Initial = ClientState::Initial;
  using Restore = ClientState::Restore;
  /// Joins the job. `initial` gives the values where each piece begins; asked of worker 0 alone, in
  /// a thread that waits or the client's; it calls nothing here. Nor does `restore`, where the job
  /// goes on from a snapshot: it is called in a thread of its own, and may take long. Throws
  /// Timeout, Mismatch, UsageError with the service's words.
  Client(const ClientOptions& options, const Credentials& credentials, const Spec& spec,
         Initial initial, Restore restore = {});
  /// Says goodbye, so that nobody takes this worker for lost. What was pushed and is not through is
  /// given up: wait_until_settled() before.
  ~Client();
  Client(const Client&) = delete;

  const Spec& spec() const noexcept;

  /// ClientState::enter(). Throws as push().
  int64_t enter(int64_t step, bool has_all);
  /// ClientState::mark_with_host(), once the view service has told this worker of that cut. Throws
  /// as fetch().
  void mark_with_host(int64_t cut, int64_t step, const Deadline& deadline);

  /// Memory for the payload of a push, which servers on this host read where it is.
  std::shared_ptr<std::byte> allocate(int64_t bytes);
  /// Hands in; returns at once. Throws Error when the worker cannot go on.
  void push(PushOrder order);
  /// Asks for parameters good for `step`; returns at once.
  void pull(int piece, int64_t step);

  /// Gives the parameters of `piece` good for `step`, which were asked for, to `take`, which copies
  /// them: afterwards they may change. It is called again when the server was lost meanwhile.
  /// Throws Timeout that names whom it waits for, and Error when the worker cannot go on.
  void fetch(int piece, int64_t step, const Deadline& deadline,
             const std::function<void(const Bytes& values)>& take);
  /// Where this worker begins, once it has fetched all parameters for the first time: synchronous,
  /// the step that comes next in the job, which may go on from a snapshot; else 0.
  int64_t first_step() const;
  /// Updates that the parameters of `piece` which came last have had.
  int64_t version(int piece) const;
  /// Whether fetch() would not wait.
  bool arrived(int piece, int64_t step) const;

  /// Asks for the rows of `keys` of an embedding table, good for `step`, from all servers at once;
  /// a key that comes more than once is asked for once. Returns at once. Synchronous: they have the
  /// gradients of all workers of the step before. Throws as push().
  AskedRows sparse_pull(int table, std::span<const uint64_t> keys, int64_t step);
  /// Waits for them. Throws as fetch().
  Array sparse_fetch(const AskedRows& asked, const Deadline& deadline);
  /// Hands in gradients of rows; returns at once. To be called once for every table in every step,
  /// also without keys: it counts as a push, under which rows age.
  ///
  /// gradients  [keys, width] of the table's dtype, read before this returns; those of a key that
  ///            comes more than once are added in the order in which they come
  ///
  /// Synchronous: the gradients of a row are added in the order of the workers, each worker's sum
  /// first, and the row is updated once. Throws as push(), and UsageError for gradients of another
  /// length or dtype.
  void sparse_push(int table, std::span<const uint64_t> keys, MemorySpan gradients, int64_t step,
                   double learning_rate);

  /// Throws Error when the worker cannot go on, and says why.
  void require_no_failure() const;
  /// Ends all that waits here, now and later, with an Error of these words, if nothing has before.
  void give_up(const std::string& why);

  /// Until all that was pushed is through. Throws as fetch().
  void wait_until_settled(const Deadline& deadline);

  /// Gives a batch back and gets the next (cursor.h). Throws as fetch().
  Lease lease(const LeaseRequest& request, const Deadline& deadline);

  /// Brings `value` to the next meeting of workers that have done `step` steps, and returns what
  /// each has brought, by worker: all that are there, and who was lost after it had come. All
  /// workers come to the same meetings in the same order. Not where a lost worker ends the job.
  /// Throws as fetch().
  Brought meet(int64_t step, std::span<const std::byte> value, const Deadline& deadline);

  ClientCounts counts() const;
  /// Asks all servers. Throws as fetch().
  ServerCounts server_counts(const Deadline& deadline);

 private:
  class Work;
  std::unique_ptr<Work> work_;
};

}  // namespace tutti::ps
