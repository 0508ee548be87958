/// UpdateOrder: the order in which the servers of an asynchronous training took what decides its
/// bits, as `--record-order FILE` keeps it and `--replay-order FILE` follows it again.
///
/// Eight bytes a record, at most two records an update. docs/formats/update_order.md;
/// docs/design/parameter_server.md, *Replay*. Thread rule: plain values and free functions.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/ps/spec/spec.h"

namespace tutti::ps {

/// One order of a partition that changes what comes after it.
struct OrderRecord {
  enum class Kind : uint8_t {
    push,   ///< `worker`'s gradient of `piece`, computed on version `number` of it
    look,   ///< `worker` is given the parameters of `piece`, by its question `number` for them
    lease,  ///< `worker` gives a batch back, and asks for one; of partition 0
    leave,  ///< `worker` has gone: in order where `number` is 1, else it was lost
    comes,  ///< `worker`, which had left, is there again
  };
  Kind kind = Kind::push;
  int worker = 0;
  int piece = 0;
  int64_t number = 0;  ///< modulo 2^28, which follow each other by less

  bool operator==(const OrderRecord&) const = default;
};

inline constexpr int kMostOrderedWorkers = 1 << 12;
inline constexpr int kMostOrderedPieces = 1 << 20;
inline constexpr int64_t kOrderNumbers = int64_t{1} << 28;

uint64_t bits_of(const OrderRecord& record);
/// Throws DataError, without a place, for bits that bits_of() does not write.
OrderRecord order_record_from(uint64_t bits);

struct UpdateOrder {
  std::string spec;   ///< to_text() of what was trained
  std::string asked;  ///< LeaseRequest::agreed of the first; "": batches were not the servers'
  std::vector<std::vector<OrderRecord>> partitions;
  bool interrupted = false;  ///< its job failed, and nobody says that this was all
  std::string sha256{};      ///< of the file that it was read from

  int num_workers() const;
  /// Gradients among the records.
  int64_t num_updates() const;
};

/// Writes it atomically.
void write_order(const std::filesystem::path& path, const UpdateOrder& order);
/// Throws DataError with path, place, what was got and expected for a file that is none, cut off or
/// damaged; UsageError for one of another version.
UpdateOrder read_order(const std::filesystem::path& path);

/// Why such a job can have no order; "": it can. `flag` begins what is said.
std::string objection_to_order(const Spec& spec, std::string_view flag);
/// What a process does with orders, for comparisons between those of a job: this of one that
/// records; of one that replays the file's digest is in it.
inline constexpr const char* kRecordsOrder = "--record-order";
std::string words_of_replay(const UpdateOrder& order);
/// UsageError, with got and expected, where `order` is not of this training.
void require_same_training(const UpdateOrder& order, const Spec& spec);
/// The same of what workers were asked for (LeaseRequest::agreed), which is the whole program's.
void require_same_program(const UpdateOrder& order, const std::string& asked);

/// What one server saw of a partition's order, in a file of its own that grows: its primary and its
/// backup each have one, so that the loss of one loses nothing.
class OrderPart {
 public:
  /// `first`: number of the partition's records before these, from 0. `job`: its id.
  OrderPart(const std::filesystem::path& folder, int partition, int server, int64_t first,
            const std::string& spec, const std::string& job = {});
  /// Buffered: what a death of the process takes is in the other one's. Throws WriteError.
  void add(const OrderRecord& record);
  /// Nothing that was added goes with this process any more. Throws WriteError.
  void flush();
  /// These were the partition's last records, and all of them are in the file. Throws WriteError.
  void end();

 private:
  [[noreturn]] void fail() const;

  std::filesystem::path path_;
  std::ofstream file_;
  int64_t next_;  // record
};

/// Notes beside the parts what workers were asked for.
void write_asked(const std::filesystem::path& folder, const std::string& asked);

/// Removes what servers have written there. UsageError, with what is there, and nothing is removed,
/// where `folder` has anything else but a file of the name `keeps`. Not `removes`: looks alone.
void clear_parts(const std::filesystem::path& folder, std::string_view keeps, bool removes = true);

/// The order that the parts in `folder` have together: of each partition all records from the first
/// on that somebody has. Without a spec where no server has written one. Throws DataError where two
/// differ or are of two jobs, there is a gap, or no server says that a partition's records are all
/// of them; of a job that failed the order is then `interrupted`.
UpdateOrder merged_order(const std::filesystem::path& folder, int num_partitions,
                         bool job_failed = false);

}  // namespace tutti::ps
