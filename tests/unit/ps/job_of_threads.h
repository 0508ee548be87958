/// A job of parameter servers in one process, over real connections.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <thread>
#include <vector>

#include "tutti/ps/client/client.h"
#include "tutti/ps/server/server.h"
#include "tutti/ps/server/view_service.h"

namespace tutti::ps {

/// What its servers do with the order of updates.
struct JobOrder {
  std::filesystem::path record{};  ///< folder for their parts
  std::filesystem::path replay{};
};

/// A job whose servers are threads.
class Job {
 public:
  Job(int servers, int workers, bool share_memory = true,
      Credentials credentials = {Token::random(), "test", nullptr}, const JobOrder& order = {})
      : share_memory_(share_memory),
        credentials_(std::move(credentials)),
        service_(std::make_unique<ViewService>(
            ViewServiceOptions{.num_servers = servers, .num_workers = workers},
            *Address::from_number("127.0.0.1", 0), credentials_)) {
    for (int i = 0; i < servers; ++i)
      servers_.emplace_back([this, i, order] {
        try {
          run_server({.number = i,
                      .view_service = where(),
                      .threads = 2,
                      .share_memory = share_memory_,
                      .record_order = order.record,
                      .replay_order = order.replay},
                     credentials_);
        } catch (const std::exception& error) {
          ADD_FAILURE() << "server " << i << ": " << error.what();
        }
      });
  }
  ~Job() {
    service_->wait_until([](const View& view) { return view.number > 0; },
                         Deadline(Millis{10'000}));  // who comes later would look for it long
    service_.reset();
    for (std::thread& server : servers_) server.join();
  }

  bool has_begun(int training) const { return service_->num_trainings() > training; }
  HostPort where() const { return {"127.0.0.1", service_->address().port()}; }
  const Credentials& credentials() const { return credentials_; }
  ClientOptions options(int worker) const {
    return {.worker = worker, .view_service = where(), .share_memory = share_memory_};
  }

 private:
  const bool share_memory_;
  const Credentials credentials_;
  std::unique_ptr<ViewService> service_;
  std::vector<std::thread> servers_;
};

}  // namespace tutti::ps
