#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/event.h"

namespace tutti {
namespace {

// Keeps "name(field=value,...)" of every event.
class Recorder : public Sink {
 public:
  void on_event(const Event& event) noexcept override {
    std::string line = std::string(event.name) + "(";
    for (const Field& field : event.fields) {
      line += std::string(field.name) + "=";
      std::visit([&](const auto& value) { line += fmt::format("{}", value); }, field.value);
      line += ",";
    }
    std::lock_guard lock(mutex_);
    lines_.push_back(line + ")");
    last_when_ = event.when;
  }
  std::vector<std::string> lines() const {
    std::lock_guard lock(mutex_);
    return lines_;
  }
  TimePoint last_when() const { return last_when_; }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
  TimePoint last_when_;
};

TEST(Event, ReachesEverySinkUntilItIsRemoved) {
  const auto first = std::make_shared<Recorder>(), second = std::make_shared<Recorder>();
  EXPECT_FALSE(events_wanted());
  emit("nobody.listens");
  add_sink(first);
  EXPECT_TRUE(events_wanted());
  const TimePoint before = Clock::now();
  emit("sync.step", {{"step", 3}, {"wait_us", 1.5}, {"kind", "shared"}});
  EXPECT_GE(first->last_when(), before);
  EXPECT_LE(first->last_when(), Clock::now());
  add_sink(second);
  emit("comm.wait");
  remove_sink(first);
  emit("comm.end");
  remove_sink(second);
  remove_sink(second);  // unknown by now: ignored
  EXPECT_FALSE(events_wanted());
  emit("nobody.listens");
  EXPECT_EQ(first->lines(), (std::vector<std::string>{"sync.step(step=3,wait_us=1.5,kind=shared,)",
                                                      "comm.wait()"}));
  EXPECT_EQ(second->lines(), (std::vector<std::string>{"comm.wait()", "comm.end()"}));
}

TEST(Event, FindsFieldsByName) {
  const Field fields[] = {{"bytes", int64_t{64}}, {"us", 2.0}};
  const Event event{"comm.sent", Clock::now(), fields};
  ASSERT_NE(event.find("us"), nullptr);
  EXPECT_EQ(std::get<double>(event.find("us")->value), 2.0);
  EXPECT_EQ(event.find("rank"), nullptr);
}

TEST(Event, SinksMayEmitWithoutEnd) {
  class Echo : public Sink {
   public:
    void on_event(const Event&) noexcept override {
      ++calls;
      emit("echo");
    }
    int calls = 0;
  };
  const auto echo = std::make_shared<Echo>();
  add_sink(echo);
  emit("once");
  emit("twice");
  remove_sink(echo);
  EXPECT_EQ(echo->calls, 2);
}

TEST(Event, WrongUseOfSinksIsAnError) {
  EXPECT_THROW(add_sink(nullptr), Error);
  const auto sink = std::make_shared<Recorder>();
  add_sink(sink);
  EXPECT_THROW(add_sink(sink), Error);
  remove_sink(sink);

  class Leaver : public Sink {
   public:
    void on_event(const Event&) noexcept override {
      try {
        remove_sink(self);
      } catch (const Error&) {
        refused = true;
      }
    }
    std::shared_ptr<Sink> self;
    bool refused = false;
  };
  const auto leaver = std::make_shared<Leaver>();
  leaver->self = leaver;
  add_sink(leaver);
  emit("x");
  leaver->self.reset();
  remove_sink(leaver);
  EXPECT_TRUE(leaver->refused);
}

TEST(Event, ThreadsEmitWhileSinksComeAndGo) {
  class Counter : public Sink {
   public:
    void on_event(const Event&) noexcept override {
      ++calls;
      if (gone) ++late_calls;
    }
    std::atomic<int> calls = 0, late_calls = 0;
    std::atomic<bool> gone = false;
  };
  const auto always = std::make_shared<Counter>();
  add_sink(always);
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([] {
      for (int i = 0; i < 1000; ++i) emit("tick", {{"i", int64_t{i}}});
    });
  for (int i = 0; i < 50; ++i) {
    const auto visitor = std::make_shared<Counter>();
    add_sink(visitor);
    remove_sink(visitor);
    visitor->gone = true;
    EXPECT_EQ(visitor.use_count(), 1);
    EXPECT_EQ(visitor->late_calls, 0);
  }
  for (auto& thread : threads) thread.join();
  remove_sink(always);
  EXPECT_EQ(always->calls, 3000);
}

}  // namespace
}  // namespace tutti
