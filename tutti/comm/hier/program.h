/// Program: what one operation of the hier engine does, written from top to bottom as a coroutine
/// that waits for operations of other engines.
///
/// Nothing runs by itself: advance() goes on as far as possible without waiting, and pending() says
/// what stands in the way. Thread rule: one thread.
#pragma once

#include <coroutine>
#include <exception>
#include <utility>

#include "tutti/comm/engine/engine.h"

namespace tutti::detail {

class Program {
 public:
  /// What it waits for.
  struct Pending {
    Engine* engine = nullptr;
    Ticket ticket = 0;
  };

  struct promise_type {
    Pending pending{};
    std::exception_ptr failure;

    Program get_return_object() {
      return Program(std::coroutine_handle<promise_type>::from_promise(*this));
    }
    std::suspend_always initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void return_void() noexcept { pending = {}; }
    void unhandled_exception() noexcept { failure = std::current_exception(); }
  };

  /// co_await Until{engine, ticket}: goes on when that is done.
  struct Until {
    Engine* engine;
    Ticket ticket;
    bool await_ready() const { return engine->poll(ticket); }
    void await_suspend(std::coroutine_handle<promise_type> program) const noexcept {
      program.promise().pending = {engine, ticket};
    }
    void await_resume() const noexcept {}
  };

  Program(Program&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Program& operator=(Program&&) = delete;
  ~Program() {
    if (handle_) handle_.destroy();
  }

  /// True when it is at its end. Throws what the operations that it waits for throw.
  bool advance() {
    while (!handle_.done()) {
      const Pending pending = handle_.promise().pending;
      if (pending.engine != nullptr && !pending.engine->poll(pending.ticket)) return false;
      handle_.promise().pending = {};
      handle_.resume();
      if (handle_.promise().failure) std::rethrow_exception(handle_.promise().failure);
    }
    return true;
  }

  const Pending& pending() const noexcept { return handle_.promise().pending; }

 private:
  explicit Program(std::coroutine_handle<promise_type> handle) : handle_(handle) {}
  std::coroutine_handle<promise_type> handle_;
};

}  // namespace tutti::detail
