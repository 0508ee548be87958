// A preloaded library: the folder that TUTTI_TEST_NFS names is, for each process, as an NFS client
// shows it to its host. What is written is in the file with fsync() or close() and not before, for
// the process itself neither; a name that was not there is not there until somebody opens its
// folder; no file is without a name.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace {

struct Written {
  off_t at;
  std::string bytes;
};

struct Client {
  const std::string folder = getenv("TUTTI_TEST_NFS") != nullptr ? getenv("TUTTI_TEST_NFS") : "";
  std::mutex mutex;
  std::map<int, std::vector<Written>> unsent;  // by descriptor
  std::set<std::string> absent;                // names that were not there

  bool has(const std::string& path) const { return !folder.empty() && path.starts_with(folder); }
};

Client& client() {
  static Client* const one =
      std::make_unique<Client>().release();  // until the last thread has ended
  return *one;
}

template <class Function>
Function* real(const char* name, Function* /*like*/) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}
#define REAL(name) real(#name, &::name)

bool is_shared(int fd) {
  if (client().folder.empty()) return false;
  char path[4096];
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t length = readlink(link.c_str(), path, sizeof path);
  struct stat status{};
  return length > 0 && client().has({path, static_cast<size_t>(length)}) &&
         fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
}

// The whole of it is taken, and is nowhere yet.
ssize_t keep(int fd, const void* bytes, size_t count, off_t at) {
  const std::lock_guard lock(client().mutex);
  client().unsent[fd].push_back({at, {static_cast<const char*>(bytes), count}});
  return static_cast<ssize_t>(count);
}

// Returns false where the real disk refuses it.
bool send(int fd) {
  std::vector<Written> all;
  {
    const std::lock_guard lock(client().mutex);
    const auto found = client().unsent.find(fd);
    if (found == client().unsent.end()) return true;
    all = std::move(found->second);
    client().unsent.erase(found);
  }
  const int flags = fcntl(fd, F_GETFL);
  fcntl(fd, F_SETFL, flags & ~O_DIRECT);
  for (const Written& one : all)
    if (REAL(pwrite)(fd, one.bytes.data(), one.bytes.size(), one.at) !=
        static_cast<ssize_t>(one.bytes.size()))
      return false;
  fcntl(fd, F_SETFL, flags);
  return true;
}

bool known_absent(const char* path) {
  const std::lock_guard lock(client().mutex);
  return client().absent.contains(path);
}

int remember(const char* path, int result) {
  if (result < 0 && errno == ENOENT && client().has(path)) {
    const std::lock_guard lock(client().mutex);
    client().absent.insert(path);
  }
  return result;
}

// Its names are asked for anew.
void opened(const std::string& folder) {
  const std::lock_guard lock(client().mutex);
  std::erase_if(client().absent, [&](const std::string& path) {
    return path.starts_with(folder) && path.find('/', folder.size() + 1) == path.npos;
  });
}

// This host has made it itself.
void made(const char* path) {
  const std::lock_guard lock(client().mutex);
  client().absent.erase(path);
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  mode_t mode = 0;
  const bool nameless = (flags & O_TMPFILE) == O_TMPFILE;
  if (nameless && client().has(path)) return errno = EOPNOTSUPP, -1;
  if (nameless || (flags & O_CREAT) != 0) {
    va_list more;
    va_start(more, flags);
    mode = va_arg(more, mode_t);
    va_end(more);
  }
  if ((flags & O_CREAT) == 0 && known_absent(path)) return errno = ENOENT, -1;
  const int fd = remember(path, REAL(open)(path, flags, mode));
  if (fd >= 0 && (flags & O_CREAT) != 0) made(path);
  if (fd >= 0 && (flags & O_DIRECTORY) != 0 && client().has(path)) opened(path);
  return fd;
}

DIR* opendir(const char* path) {
  if (client().has(path)) opened(path);
  return REAL(opendir)(path);
}

int stat(const char* path, struct stat* status) {
  if (known_absent(path)) return errno = ENOENT, -1;
  return remember(path, REAL(stat)(path, status));
}

int mkdir(const char* path, mode_t mode) {
  const int result = REAL(mkdir)(path, mode);
  made(path);
  return result;
}

int rename(const char* from, const char* to) {
  const int result = REAL(rename)(from, to);
  if (result == 0) made(to);
  return result;
}

ssize_t write(int fd, const void* bytes, size_t count) {
  if (!is_shared(fd)) return REAL(write)(fd, bytes, count);
  const off_t at = lseek(fd, 0, SEEK_CUR);
  lseek(fd, static_cast<off_t>(count), SEEK_CUR);
  return keep(fd, bytes, count, at);
}

ssize_t pwrite(int fd, const void* bytes, size_t count, off_t at) {
  return is_shared(fd) ? keep(fd, bytes, count, at) : REAL(pwrite)(fd, bytes, count, at);
}

int fsync(int fd) { return send(fd) ? REAL(fsync)(fd) : -1; }

int close(int fd) {
  const bool sent = send(fd);
  const int result = REAL(close)(fd);
  return sent ? result : -1;
}

}  // extern "C"
