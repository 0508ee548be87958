#include "tutti/ps/server/server.h"

#include <map>
#include <memory>
#include <thread>

#include "tutti/base/host.h"
#include "tutti/base/threads.h"
#include "tutti/net/connect.h"
#include "tutti/ps/server/training_server.h"

namespace tutti::ps {
namespace {

Address own_address(const ServerOptions& options) {
  if (!options.interface.empty())
    return choose_local_address(options.interface, "the server's interface", local_interfaces());
  return local_address_towards(resolve(options.view_service, Deadline(options.limit)).at(0));
}

// The servers of this process: that of the first training in the caller's thread, one in a thread
// of its own for each other. What one of them throws ends all.
class ServerProcess {
 public:
  ServerProcess(const ServerOptions& options, const Credentials& credentials)
      : options_(options),
        credentials_(credentials),
        address_(own_address(options)),
        heap_(std::make_shared<SharedHeap>(options.memory_limit)),
        first_(options, credentials, {.number = options.number, .address = address_}, heap_,
               [this](int training, int number) { begin(training, number); }) {}

  ~ServerProcess() {
    for (const auto& later : later_)
      if (const auto server = later->server.lock()) server->stop();
    for (const auto& later : later_) later->thread.join();
  }

  void run() { first_.run(); }

 private:
  struct Later {
    std::weak_ptr<TrainingServer> server;  // its thread's
    std::atomic<bool> over{false};
    std::thread thread;
  };

  void begin(int training, int number) {
    std::erase_if(later_, [](const auto& later) {
      const bool over = later->over;
      if (over) later->thread.join();
      return over;
    });
    auto server = std::make_shared<TrainingServer>(
        options_, credentials_, TrainingServer::Place{training, number, address_}, heap_);
    later_.push_back(std::make_unique<Later>());
    later_.back()->server = server;
    later_.back()->thread =
        start_thread("a server of another training",
                     [this, own = later_.back().get(), server = std::move(server)]() mutable {
                       try {
                         server->run();
                       } catch (const std::exception&) {
                         first_.fail(std::current_exception());
                       }
                       server.reset();
                       own->over = true;
                     });
  }

  const ServerOptions options_;
  const Credentials credentials_;
  const Address address_;
  const std::shared_ptr<SharedHeap> heap_;
  TrainingServer first_;
  std::vector<std::unique_ptr<Later>> later_;
};

}  // namespace

void run_server(const ServerOptions& options, const Credentials& credentials) {
  ServerProcess(options, credentials).run();
}

}  // namespace tutti::ps
