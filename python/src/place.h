/// Which line of the Python program called an operation.
#pragma once

#include "tutti/comm/flight/flight_log.h"

namespace tutti::python {

/// With TUTTI_DEBUG=1, and when called from Python, the innermost line outside of torch; else
/// `title` alone: to ask the interpreter can mean to wait for its lock. Any thread, without the
/// interpreter's lock.
CallPlace place_of_caller(const char* title);

}  // namespace tutti::python
