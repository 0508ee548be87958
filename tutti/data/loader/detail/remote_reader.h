/// Samples computed by another process: started, asked, and started again when it dies.
#pragma once

#include <sys/types.h>

#include <memory>
#include <set>
#include <string>

#include "tutti/data/detail/content.h"
#include "tutti/net/arena.h"
#include "tutti/net/descriptor_channel.h"

namespace tutti::data::detail {

/// The registered function that made a content, and what it was given.
struct Origin {
  std::string name;
  std::string arguments;
};

/// Thread rule: one thread; stop() from any.
class RemoteReader final : public RemoteSamples {
 public:
  /// `number` names it in the log.
  RemoteReader(Origin origin, int number) : origin_(std::move(origin)), number_(number) {}
  ~RemoteReader() override;
  RemoteReader(const RemoteReader&) = delete;
  RemoteReader& operator=(const RemoteReader&) = delete;

  /// The sample, in memory that is good until the call after the next. Throws what the content's
  /// read() throws there; DataError when the process dies of it again and again.
  Sample read(const Content& content, Ref ref, Reading& reading) override;

  /// 0 before it was started.
  pid_t process() const noexcept { return process_; }
  void stop() noexcept { stopping_ = true; }

 private:
  void start(const Content& content);
  std::string ask(const Content& content, const std::string& question);
  std::string how_it_ended();

  const Origin origin_;
  const int number_;
  std::atomic<bool> stopping_ = false;
  std::atomic<pid_t> process_ = 0;
  DescriptorChannel channel_;
  SharedFile files_[2];
  Mapping memory_[2];
  int turn_ = 0;
  std::set<std::string> stages_;
};

}  // namespace tutti::data::detail
