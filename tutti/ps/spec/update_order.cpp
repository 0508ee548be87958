#include "tutti/ps/spec/update_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "tutti/base/agreed_lines.h"
#include "tutti/base/crc32c.h"
#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/json.h"
#include "tutti/base/sha256.h"
#include "tutti/ps/spec/detail/json_fields.h"

namespace tutti::ps {
namespace {

constexpr std::string_view kOrderMagic = "tuttiord";
constexpr uint32_t kOrderVersion = 1;
constexpr size_t kRecordBytes = 8, kCrcBytes = 4;
constexpr size_t kOrderHead = kOrderMagic.size() + 2 * sizeof(uint32_t);
constexpr uint64_t kMostHeader = uint64_t{64} << 20;
constexpr const char* kAskedName = "asked";
constexpr std::string_view kPartPrefix = "partition-";
// Behind the last record of a part: this kind, and how many records the partition has.
constexpr uint64_t kEndOfPart = 0xF;

template <class Number>
void put(std::string& bytes, Number number) {
  for (size_t i = 0; i < sizeof(Number); ++i)
    bytes.push_back(static_cast<char>(number >> (8 * i) & 0xFF));
}

template <class Number>
Number get(std::string_view bytes) {
  Number number = 0;
  for (size_t i = 0; i < sizeof(Number); ++i)
    number |= static_cast<Number>(static_cast<uint8_t>(bytes[i])) << (8 * i);
  return number;
}

[[noreturn]] void damaged(const std::filesystem::path& path, const std::string& what) {
  throw DataError(fmt::format(
      "{}: {}\n  an order of updates is whole or of no use: record it again (--record-order)",
      path.string(), what));
}

// What cannot be of such a training would be looked for beyond the ends of what a server has.
std::string objection_to(const OrderRecord& record, const Spec& spec, int partition) {
  using Kind = OrderRecord::Kind;
  if (record.worker >= spec.num_workers)
    return fmt::format("a record of worker {}, expected 0 to {}", record.worker,
                       spec.num_workers - 1);
  if (record.kind == Kind::push || record.kind == Kind::look) {
    if (record.piece >= std::ssize(spec.pieces))
      return fmt::format("a record of piece {}, expected 0 to {}", record.piece,
                         spec.pieces.size() - 1);
    if (const int owner = spec.pieces[static_cast<size_t>(record.piece)].partition;
        owner != partition)
      return fmt::format("a record of piece {} in partition {}, expected in {}", record.piece,
                         partition, owner);
    return "";
  }
  if (record.piece != 0) return fmt::format("a record of piece {}, expected 0", record.piece);
  if (partition != 0 && record.kind == Kind::lease)
    return fmt::format("a batch in partition {}, expected in 0", partition);
  if (record.kind == Kind::leave && record.number > 1)
    return fmt::format("a worker that goes with number {}, expected 0 or 1", record.number);
  return "";
}

void require_of(const Spec& spec, const UpdateOrder& order, const std::filesystem::path& path,
                size_t place) {
  for (size_t partition = 0; partition < order.partitions.size(); ++partition)
    for (const OrderRecord& record : order.partitions[partition]) {
      const std::string why = objection_to(record, spec, static_cast<int>(partition));
      if (!why.empty()) damaged(path, fmt::format("byte {}: {}", place, why));
      place += kRecordBytes;
    }
}

std::vector<OrderRecord> records_from(std::string_view bytes, const std::filesystem::path& path,
                                      size_t place) {
  std::vector<OrderRecord> records;
  records.reserve(bytes.size() / kRecordBytes);
  for (size_t at = 0; at + kRecordBytes <= bytes.size(); at += kRecordBytes) {
    try {
      records.push_back(order_record_from(get<uint64_t>(bytes.substr(at))));
    } catch (const DataError& error) {
      damaged(path, fmt::format("byte {}: {}", place + at, error.what()));
    }
  }
  return records;
}

Spec spec_in(const UpdateOrder& order, const std::filesystem::path& path) {
  try {
    return spec_from(order.spec);
  } catch (const Error& error) {
    damaged(path, fmt::format("byte {}: {}", kOrderHead, error.what()));
  }
}

}  // namespace

// kind 4 bits, worker 12, piece 20, number 28.
uint64_t bits_of(const OrderRecord& record) {
  return static_cast<uint64_t>(record.kind) | static_cast<uint64_t>(record.worker) << 4 |
         static_cast<uint64_t>(record.piece) << 16 |
         static_cast<uint64_t>(record.number % kOrderNumbers) << 36;
}

OrderRecord order_record_from(uint64_t bits) {
  const uint64_t kind = bits & 0xF;
  constexpr auto kLast = OrderRecord::Kind::comes;
  if (kind > static_cast<uint64_t>(kLast))
    throw DataError(
        fmt::format("a record of kind {}, expected 0 to {}", kind, static_cast<int>(kLast)));
  return {.kind = static_cast<OrderRecord::Kind>(kind),
          .worker = static_cast<int>(bits >> 4 & (kMostOrderedWorkers - 1)),
          .piece = static_cast<int>(bits >> 16 & (kMostOrderedPieces - 1)),
          .number = static_cast<int64_t>(bits >> 36)};
}

int UpdateOrder::num_workers() const { return spec_from(spec).num_workers; }

int64_t UpdateOrder::num_updates() const {
  int64_t count = 0;
  for (const auto& records : partitions)
    count += std::ranges::count(records, OrderRecord::Kind::push, &OrderRecord::kind);
  return count;
}

void write_order(const std::filesystem::path& path, const UpdateOrder& order) {
  Json header{{"spec", order.spec}, {"asked", order.asked}, {"records", Json::array()}};
  for (const auto& records : order.partitions) header["records"].push_back(records.size());
  if (order.interrupted) header["interrupted"] = true;
  const std::string text = dump_json(header);
  std::string bytes(kOrderMagic);
  put(bytes, kOrderVersion);
  put(bytes, static_cast<uint32_t>(text.size()));
  bytes += text;
  for (const auto& records : order.partitions)
    for (const OrderRecord& record : records) put(bytes, bits_of(record));
  put(bytes, crc32c(bytes));
  write_file_atomically(path, bytes);
}

UpdateOrder read_order(const std::filesystem::path& path) {
  const std::string bytes = read_file(path);
  const std::string_view all = bytes;
  if (all.size() < kOrderHead || !all.starts_with(kOrderMagic))
    damaged(path, fmt::format("byte 0: {} bytes that do not begin with \"{}\", expected an order "
                              "of updates",
                              all.size(), kOrderMagic));
  const auto version = get<uint32_t>(all.substr(kOrderMagic.size()));
  if (version != kOrderVersion)
    throw UsageError(fmt::format("{}: byte {}: an order of updates of version {}, expected {}",
                                 path.string(), kOrderMagic.size(), version, kOrderVersion));
  const uint64_t length = get<uint32_t>(all.substr(kOrderMagic.size() + sizeof(uint32_t)));
  if (length > kMostHeader || kOrderHead + length + kCrcBytes > all.size())
    damaged(path, fmt::format("byte {}: a header of {} bytes in a file of {}; it is cut off",
                              kOrderHead, length, all.size()));
  UpdateOrder order;
  std::vector<uint64_t> counts;
  const std::string_view header = all.substr(kOrderHead, length);
  try {
    detail::read_json(header, "its header", [&](const Json& text) {
      order.spec = text.at("spec").get<std::string>();
      order.asked = text.at("asked").get<std::string>();
      counts = text.at("records").get<std::vector<uint64_t>>();
      order.interrupted = text.value("interrupted", false);
    });
  } catch (const Error& error) {
    damaged(path, fmt::format("byte {}: {}", kOrderHead, error.what()));
  }
  uint64_t records = 0;
  for (const uint64_t count : counts) {
    if (count > all.size() / kRecordBytes)
      damaged(path, fmt::format("byte {}: {} records in a file of {} bytes; it is cut off",
                                kOrderHead, count, all.size()));
    records += count;
  }
  const uint64_t expected = kOrderHead + length + kRecordBytes * records + kCrcBytes;
  if (all.size() != expected)
    damaged(path, fmt::format("it has {} bytes, expected {} for its {} records{}", all.size(),
                              expected, records, all.size() < expected ? "; it is cut off" : ""));
  const auto crc = get<uint32_t>(all.substr(expected - kCrcBytes));
  if (const uint32_t is = crc32c(all.substr(0, expected - kCrcBytes)); is != crc)
    damaged(path, fmt::format("byte {}: its bytes have checksum {:08x}, expected {:08x}",
                              expected - kCrcBytes, is, crc));
  size_t place = kOrderHead + length;
  for (const uint64_t count : counts) {
    order.partitions.push_back(records_from(all.substr(place, count * kRecordBytes), path, place));
    place += count * kRecordBytes;
  }
  const Spec spec = spec_in(order, path);
  if (std::ssize(order.partitions) != spec.num_partitions)
    damaged(path, fmt::format("byte {}: orders of {} partitions, expected {}", kOrderHead,
                              order.partitions.size(), spec.num_partitions));
  require_of(spec, order, path, kOrderHead + length);
  order.sha256 = sha256_hex(all);
  return order;
}

std::string objection_to_order(const Spec& spec, std::string_view flag) {
  if (spec.staleness.synchronous())
    return fmt::format(
        "{} with --staleness 0: in step there is one order, and the bits are the same without",
        flag);
  if (!spec.tables.empty())
    return fmt::format(
        "{} with embedding table \"{}\": rows of an earlier moment are not kept; leave one of them "
        "out",
        flag, spec.tables[0].name);
  if (spec.delay_compensation > 0)
    return fmt::format("{} with --delay-compensation {}: leave one of them out", flag,
                       spec.delay_compensation);
  if (spec.num_workers > kMostOrderedWorkers)
    return fmt::format("{} of {} workers, at most {} are possible", flag, spec.num_workers,
                       kMostOrderedWorkers);
  if (std::ssize(spec.pieces) > kMostOrderedPieces)
    return fmt::format("{} of {} pieces of parameters, at most {} are possible", flag,
                       spec.pieces.size(), kMostOrderedPieces);
  return "";
}

std::string words_of_replay(const UpdateOrder& order) {
  return "--replay-order with sha256 " + order.sha256;
}

void require_same_training(const UpdateOrder& order, const Spec& spec) {
  const std::string differs = difference(spec_from(order.spec), spec);
  if (differs.empty()) return;
  throw UsageError(fmt::format(
      "--replay-order: the order is of another training than this job's: {}\n  repeat the command "
      "that recorded it, with --replay-order in place of --record-order",
      differs));
}

void require_same_program(const UpdateOrder& order, const std::string& asked) {
  const auto lines = first_difference(order.asked, asked);
  if (!lines) return;
  throw UsageError(fmt::format(
      "--replay-order: the order is of a job that was asked for something else\n  it has {}\n  "
      "this "
      "job has {}\n  repeat the command that recorded it, with --replay-order in place of "
      "--record-order",
      lines->first, lines->other));
}

// ---- what servers write ----

OrderPart::OrderPart(const std::filesystem::path& folder, int partition, int server, int64_t first,
                     const std::string& spec, const std::string& job)
    : path_(folder / fmt::format("{}{}.server-{}.from-{}", kPartPrefix, partition, server, first)),
      next_(first) {
  file_.open(path_, std::ios::binary | std::ios::trunc);
  file_ << dump_json(Json{{"partition", partition}, {"first", first}, {"job", job}, {"spec", spec}})
        << '\n';
  if (!file_) fail();
}

void OrderPart::add(const OrderRecord& record) {
  std::array<char, kRecordBytes> bytes{};
  const uint64_t bits = bits_of(record);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(bits >> (8 * i) & 0xFF);
  if (!file_.write(bytes.data(), bytes.size())) fail();
  ++next_;
}

void OrderPart::flush() {
  if (!file_.flush()) fail();
}

void OrderPart::end() {
  std::string bytes;
  put(bytes, kEndOfPart | static_cast<uint64_t>(next_) << 4);
  file_ << bytes;
  file_.close();
  if (!file_) fail();
}

void OrderPart::fail() const {
  throw WriteError(fmt::format(
      "{}: the order of updates cannot be written\n  is the disk full? without room for 8 bytes a "
      "gradient of a piece there is no order: leave --record-order out",
      path_.string()));
}

void write_asked(const std::filesystem::path& folder, const std::string& asked) {
  write_file_atomically(folder / kAskedName, asked);
}

void clear_parts(const std::filesystem::path& folder, std::string_view keeps, bool removes) {
  std::vector<std::filesystem::path> ours;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name == keeps) continue;
    if ((name != kAskedName && !name.starts_with(kPartPrefix)) || !entry.is_regular_file())
      throw UsageError(
          fmt::format("--record-order: {} has {}, expected nothing but what servers have written "
                      "there; it is the folder for their parts: give FILE another name, or move it",
                      folder.string(), name));
    ours.push_back(entry.path());
  }
  for (const auto& path : ours)
    if (removes) std::filesystem::remove(path);
}

namespace {

// What parts have together.
struct OrderParts {
  std::filesystem::path folder;
  std::vector<std::map<int64_t, OrderRecord>> records;  // by partition and number
  std::vector<std::set<int64_t>> ends;  // of each partition how many there are, as servers say
  std::string spec, job;
  bool any = false;
};

// The count behind the last record, which is taken off; none: its server did not end in order.
std::optional<int64_t> end_of_part(std::string_view& records) {
  if (records.size() < kRecordBytes || records.size() % kRecordBytes != 0) return std::nullopt;
  const auto last = get<uint64_t>(records.substr(records.size() - kRecordBytes));
  if ((last & 0xF) != kEndOfPart) return std::nullopt;
  records.remove_suffix(kRecordBytes);
  return static_cast<int64_t>(last >> 4);
}

// Records of a part, behind those that are known; a death may have cut off its last.
void add_part(const std::filesystem::path& path, OrderParts& parts) {
  const std::string bytes = read_file(path);
  const size_t end = bytes.find('\n');
  if (end == std::string::npos) return;  // it died before its first record
  detail::read_json(std::string_view(bytes).substr(0, end), path.string(), [&](const Json& text) {
    const auto partition = text.at("partition").get<size_t>();
    if (partition >= parts.records.size())
      damaged(path, fmt::format("partition {} of {}", partition, parts.records.size()));
    const auto job = text.at("job").get<std::string>();
    if (std::exchange(parts.any, true) && job != parts.job)
      damaged(path,
              fmt::format("it is of job {}, and other parts there are of job {}", job, parts.job));
    parts.job = job;
    parts.spec = text.at("spec").get<std::string>();
    auto number = text.at("first").get<int64_t>();
    std::string_view behind = std::string_view(bytes).substr(end + 1);
    const auto count = end_of_part(behind);
    for (const OrderRecord& record : records_from(behind, path, end + 1)) {
      const auto [place, fresh] = parts.records[partition].emplace(number, record);
      if (!fresh && place->second != record)
        damaged(path, fmt::format("record {} of partition {} is another one than another server's",
                                  number, partition));
      ++number;
    }
    if (!count) return;
    if (*count != number)
      damaged(path, fmt::format("it ends with record {}, and says that there are {}", number - 1,
                                *count));
    parts.ends[partition].insert(number);
  });
}

std::vector<OrderRecord> all_records(const OrderParts& parts, size_t partition) {
  std::vector<OrderRecord> records;
  for (const auto& [number, record] : parts.records[partition]) {
    if (number != std::ssize(records))
      damaged(parts.folder, fmt::format("partition {}: record {} comes after {}", partition, number,
                                        std::ssize(records) - 1));
    records.push_back(record);
  }
  return records;
}

}  // namespace

UpdateOrder merged_order(const std::filesystem::path& folder, int num_partitions, bool job_failed) {
  const auto count = static_cast<size_t>(num_partitions);
  OrderParts parts{.folder = folder, .records = {}, .ends = {}, .spec = {}, .job = {}};
  parts.records.resize(count);
  parts.ends.resize(count);
  UpdateOrder order;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name == kAskedName) order.asked = read_file(entry.path());
    if (name.starts_with(kPartPrefix)) add_part(entry.path(), parts);
  }
  order.spec = parts.spec;
  if (!parts.any) return order;
  for (size_t partition = 0; partition < count; ++partition) {
    order.partitions.push_back(all_records(parts, partition));
    const auto& ends = parts.ends[partition];
    auto& known = order.partitions.back();
    if (!ends.empty()) {
      // The backup has what the primary had no time to carry out: somebody's leaving, at the end.
      known.resize(static_cast<size_t>(*ends.rbegin()));
      continue;
    }
    if (!job_failed)
      damaged(folder,
              fmt::format("partition {}: {} records, and no server says that these are all: one "
                          "could not write its last, or is a `tutti ps` without --record-order",
                          partition, known.size()));
    order.interrupted = true;
  }
  return order;
}

}  // namespace tutti::ps
