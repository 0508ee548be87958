#include "tutti/data/files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "tutti/base/file.h"
#include "tutti/base/file_descriptor.h"
#include "tutti/data/sample.h"

namespace tutti::data {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const fs::path& path, const char* doing, int error) {
  const std::string words = fmt::format("{}: {}: {}", path.string(), doing, errno_words(error));
  if (error == ENOENT || error == ENOTDIR || error == ELOOP) throw DataError(words);
  if (error == EACCES || error == EPERM) throw UsageError(words + "\n  check its permissions");
  throw IoError(words);
}

FileInfo info_of(std::string name, const struct stat& facts) {
  return {.name = std::move(name),
          .bytes = facts.st_size,
          .modified_ns = facts.st_mtim.tv_sec * int64_t{1'000'000'000} + facts.st_mtim.tv_nsec,
          .folder = S_ISDIR(facts.st_mode)};
}

class LocalFiles final : public Files {
 public:
  std::vector<FileInfo> list(const fs::path& folder) const override {
    std::error_code error;
    std::vector<FileInfo> all;
    auto entries = fs::directory_iterator(folder, error);
    for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
      const std::string name = entries->path().filename().string();
      if (!name.starts_with('.')) all.push_back(info(entries->path()));
    }
    if (error) fail(folder, "cannot be listed", error.value());
    std::ranges::sort(all, {}, &FileInfo::name);
    return all;
  }

  FileInfo info(const fs::path& path) const override {
    struct stat facts{};
    if (::stat(path.c_str(), &facts) != 0) fail(path, "cannot be found", errno);
    return info_of(path.filename().string(), facts);
  }

  Array read(const fs::path& path, int64_t offset, int64_t bytes) const override {
    const FileDescriptor file = open_to_read(path);
    struct stat facts{};
    if (::fstat(file.get(), &facts) != 0) fail(path, "cannot be read", errno);
    const int64_t wanted = bytes < 0 ? std::max<int64_t>(0, facts.st_size - offset) : bytes;
    if (offset + wanted > facts.st_size) ends_before(path, facts.st_size, offset, wanted);
    Array all = make_array(DType::uint8, {wanted});
    for (int64_t done = 0; done < wanted;) {
      const ssize_t got = ::pread(file.get(), static_cast<char*>(all.data()) + done,
                                  static_cast<size_t>(wanted - done), offset + done);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail(path, "cannot be read", errno);
      if (got == 0) ends_before(path, offset + done, offset, wanted);
      done += got;
    }
    return all;
  }

 private:
  [[noreturn]] static void ends_before(const fs::path& path, int64_t there, int64_t offset,
                                       int64_t wanted) {
    throw DataError(
        fmt::format("{}: has {} bytes, expected {} or more (bytes {} to {})\n"
                    "  fetch the file again",
                    path.string(), there, offset + wanted, offset, offset + wanted));
  }
};

}  // namespace

FilesHandle local_files() {
  static const FilesHandle kLocal = std::make_shared<LocalFiles>();
  return kLocal;
}

std::string fingerprint_of(const std::vector<FileInfo>& files) {
  Sha256 digest;
  for (const FileInfo& file : files)
    digest.update(fmt::format("{}\n{} {}\n", file.name, file.bytes, file.modified_ns));
  return digest.hex();
}

}  // namespace tutti::data
