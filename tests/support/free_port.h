#pragma once

#include "tutti/net/connect.h"
#include "tutti/net/listener.h"

namespace tutti::test {

/// A port of 127.0.0.1 that nobody has just now.
inline uint16_t free_port() {
  const Deadline deadline(Millis{5'000});
  return Listener(resolve({"127.0.0.1", 0}, deadline).front(), {Token::random(), "port"})
      .address()
      .port();
}

}  // namespace tutti::test
