#include "tutti/data/sources/detail/record_index.h"

#include <atomic>
#include <bit>
#include <chrono>
#include <cstring>
#include <mutex>
#include <utility>

#include "tutti/base/crc32c.h"
#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/folders.h"
#include "tutti/base/log.h"
#include "tutti/data/detail/in_parallel.h"

// An index file: magic | format, zero-padded to 16 bytes | size and time of its file | number of
// records | bytes of names | offsets | lengths | ends of names (when there are names) | names |
// CRC-32C of all before it, 4 bytes. Numbers are little-endian int64.

namespace tutti::data::detail {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr size_t kTextBytes = 16;  // of the magic and of the format
constexpr size_t kIndexHeadBytes = 2 * kTextBytes + 4 * sizeof(int64_t);

std::string padded(std::string_view text) {
  std::string all(text.substr(0, kTextBytes));
  all.resize(kTextBytes, '\0');
  return all;
}

std::string index_magic() { return padded("TUTTI-INDEX 1\n"); }

void put_numbers(std::string& bytes, const std::vector<int64_t>& numbers) {
  bytes.append(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(int64_t));
}

std::vector<int64_t> take_numbers(std::string_view& bytes, size_t count) {
  std::vector<int64_t> numbers(count);
  if (count > 0) std::memcpy(numbers.data(), bytes.data(), count * sizeof(int64_t));
  bytes.remove_prefix(count * sizeof(int64_t));
  return numbers;
}

// What a reader relies on: records inside of their file, names inside of the names.
void require_consistent(const RecordIndex& index, int64_t file_bytes) {
  for (size_t i = 0; i < index.offsets.size(); ++i)
    if (index.offsets[i] < 0 || index.bytes[i] < 0 || index.offsets[i] > file_bytes ||
        index.bytes[i] > file_bytes - index.offsets[i])
      throw DataError(fmt::format("record {} lies outside of its file", i));
  int64_t end = 0;
  for (const int64_t next : index.name_ends) {
    if (next < end || next > std::ssize(index.names)) throw DataError("its names are in disorder");
    end = next;
  }
}

// Keeps an index, or says aloud why not: it is made again by who reads the file next.
void keep(const std::filesystem::path& path, const std::string& bytes) {
  try {
    write_file_atomically(path, bytes);
  } catch (const Error& error) {
    log_once("index " + path.parent_path().string(), LogLevel::warning,
             "indexes of records in {} stay in memory and are made again by the next run: {}\n"
             "  index_folder names a folder that can be written",
             path.parent_path().string(), error.what());
  }
}

}  // namespace

std::string_view RecordIndex::name(int64_t record) const {
  const auto i = static_cast<size_t>(record);
  const int64_t begin = i == 0 ? 0 : name_ends[i - 1];
  return std::string_view(names).substr(static_cast<size_t>(begin),
                                        static_cast<size_t>(name_ends[i] - begin));
}

void RecordIndex::add(int64_t offset, int64_t num_bytes, std::string_view name) {
  add(offset, num_bytes);
  names += name;
  name_ends.push_back(std::ssize(names));
}

std::string encode_index(const RecordIndex& index, const FileInfo& info, std::string_view format) {
  std::string bytes = index_magic() + padded(format);
  put_numbers(bytes, {info.bytes, info.modified_ns, index.size(), std::ssize(index.names)});
  put_numbers(bytes, index.offsets);
  put_numbers(bytes, index.bytes);
  put_numbers(bytes, index.name_ends);
  bytes += index.names;
  const uint32_t checksum = crc32c(bytes);
  bytes.append(reinterpret_cast<const char*>(&checksum), sizeof checksum);
  return bytes;
}

RecordIndex decode_index(std::string_view bytes, std::string_view format, FileInfo& made_of) {
  if (!bytes.starts_with(index_magic())) throw DataError("it is no index, or of another version");
  if (bytes.size() < kIndexHeadBytes + sizeof(uint32_t)) throw DataError("it is cut off");
  uint32_t checksum = 0;
  std::memcpy(&checksum, bytes.data() + bytes.size() - sizeof checksum, sizeof checksum);
  bytes.remove_suffix(sizeof checksum);
  if (checksum != crc32c(bytes)) throw DataError("its checksum is wrong");
  if (bytes.substr(kTextBytes, kTextBytes) != padded(format))
    throw DataError(fmt::format("it is one of another format, expected \"{}\"", format));
  bytes.remove_prefix(2 * kTextBytes);
  const std::vector<int64_t> head = take_numbers(bytes, 4);
  made_of.bytes = head[0];
  made_of.modified_ns = head[1];
  const auto records = static_cast<uint64_t>(head[2]), name_bytes = static_cast<uint64_t>(head[3]);
  // Every record takes 16 bytes or, with a name, 24: only one of both fits.
  const uint64_t left = bytes.size();
  const bool fits = records <= left / 16 && name_bytes <= left - records * 16;
  const bool named = fits && records > 0 && left - name_bytes - records * 16 == records * 8;
  if (!fits || (!named && (name_bytes != 0 || left != records * 16)))
    throw DataError("its length is not what it says");
  RecordIndex index;
  index.offsets = take_numbers(bytes, records);
  index.bytes = take_numbers(bytes, records);
  if (named) index.name_ends = take_numbers(bytes, records);
  index.names = bytes;
  require_consistent(index, made_of.bytes);
  return index;
}

std::filesystem::path index_path(const std::filesystem::path& file,
                                 const std::filesystem::path& folder) {
  if (folder.empty()) return file.string() + ".tutti-index";
  const std::string whole = std::filesystem::absolute(file).lexically_normal().string();
  return folder /
         fmt::format("{}-{}.tutti-index", file.filename().string(), sha256_hex(whole).substr(0, 8));
}

KeptIndex kept_index(const std::filesystem::path& file, const FileInfo& info,
                     const IndexPlan& plan) {
  const std::filesystem::path path = index_path(file, plan.folder);
  try {
    if (!is_there(path)) return {};
    FileInfo made_of;
    RecordIndex index = decode_index(read_file(path), plan.format, made_of);
    if (made_of.bytes == info.bytes && made_of.modified_ns == info.modified_ns)
      return {.state = IndexState::up_to_date, .why = "", .index = std::move(index)};
    return {.state = IndexState::older,
            .why = fmt::format("was made of {} bytes of {}, which has {} now and another time",
                               made_of.bytes, file.string(), info.bytes),
            .index = {}};
  } catch (const Error& error) {
    return {.state = IndexState::damaged,
            .why = fmt::format("cannot be used: {}", error.what()),
            .index = {}};
  }
}

std::vector<IndexedFile> indexed_files(const std::vector<std::filesystem::path>& paths,
                                       const IndexPlan& plan) {
  const auto start = std::chrono::steady_clock::now();
  std::vector<IndexedFile> files(paths.size());
  std::atomic<int64_t> made{0};
  std::atomic<int64_t> records{0};
  in_parallel(std::ssize(paths), [&](int64_t i) {
    IndexedFile& file = files[static_cast<size_t>(i)];
    file.path = paths[static_cast<size_t>(i)];
    file.info = plan.files->info(file.path);
    const std::filesystem::path place = index_path(file.path, plan.folder);
    KeptIndex kept = kept_index(file.path, file.info, plan);
    if (kept.state == IndexState::up_to_date) {
      file.index = std::move(kept.index);
      return;
    }
    if (kept.state != IndexState::missing)
      log(LogLevel::warning, "{}: {}; it is made again", place.string(), kept.why);
    FileWindow window(*plan.files, file.path);
    file.index = plan.scan(window);
    keep(place, encode_index(file.index, file.info, plan.format));
    ++made;
    records += file.index.size();
  });
  if (made > 0)
    log(LogLevel::info, "{}: {} of {} files indexed, {} records, in {:.1f} s", plan.format,
        made.load(), paths.size(), records.load(),
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  return files;
}

namespace {

IndexReport make_index(const std::filesystem::path& path, const IndexPlan& plan, bool check) {
  const FileInfo info = plan.files->info(path);
  KeptIndex kept = kept_index(path, info, plan);
  IndexReport report{.file = path,
                     .index = index_path(path, plan.folder),
                     .before = kept.state,
                     .why = std::move(kept.why),
                     .records = kept.index.size()};
  if (check || kept.state == IndexState::up_to_date) return report;
  try {
    FileWindow window(*plan.files, path);
    const RecordIndex index = plan.scan(window);
    write_file_atomically(report.index, encode_index(index, info, plan.format));
    report.records = index.size();
    report.made = true;
  } catch (const DataError& error) {
    report.error = error.what();
  }
  return report;
}

}  // namespace

std::vector<IndexReport> make_indexes(const std::vector<std::filesystem::path>& paths,
                                      const IndexPlan& plan, const IndexOptions& options) {
  std::vector<int64_t> bytes;
  int64_t all_bytes = 0, done_bytes = 0;
  for (const auto& path : paths) all_bytes += bytes.emplace_back(plan.files->info(path).bytes);
  std::vector<IndexReport> reports(paths.size());
  std::mutex mutex;
  in_parallel(std::ssize(paths), [&](int64_t i) {
    const auto at = static_cast<size_t>(i);
    reports[at] = make_index(paths[at], plan, options.check);
    const std::lock_guard lock(mutex);
    done_bytes += bytes[at];
    if (options.progress) options.progress(done_bytes, all_bytes);
  });
  return reports;
}

}  // namespace tutti::data::detail
