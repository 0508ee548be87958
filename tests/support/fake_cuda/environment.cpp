// How it starts: what the environment says to a program that cannot call us.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>

#include "tests/support/fake_cuda/fake_cuda.h"
#include "tests/support/fake_cuda/memory.h"

namespace tutti::test::fake_cuda {
namespace {

std::string variable(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? "" : text;
}

uint64_t number(const char* name, const std::string& text) {
  size_t read = 0;
  uint64_t found = 0;
  try {
    found = std::stoull(text, &read);
  } catch (const std::exception&) {
    read = 0;
  }
  if (read == 0 || read != text.size()) {
    throw std::runtime_error(std::string(name) + ": expected a whole number, got \"" + text + "\"");
  }
  return found;
}

// DEVICE:NUMBER, for `use`.
template <class Use>
void read_pair(const char* name, Use use) {
  const auto text = variable(name);
  if (text.empty()) return;
  const auto colon = text.find(':');
  if (colon == std::string::npos) {
    throw std::runtime_error(std::string(name) + ": expected DEVICE:NUMBER, got \"" + text + "\"");
  }
  use(static_cast<int>(number(name, text.substr(0, colon))), number(name, text.substr(colon + 1)));
}

void read_order() {
  constexpr const char* kName = "FAKE_CUDA_ORDER";
  const auto text = variable(kName);
  if (text == "eager") {
    set_order(Order::eager);
  } else if (text.starts_with("seed:")) {
    set_order(Order::random, number(kName, text.substr(5)));
  } else if (!text.empty() && text != "lazy") {
    throw std::runtime_error("FAKE_CUDA_ORDER: expected eager, lazy or seed:N, got \"" + text +
                             "\"");
  }
}

void report() {
  std::ofstream out(variable("FAKE_CUDA_REPORT"));
  const auto all = counts();
  out << "tasks " << all.tasks << "\ndeferred " << all.deferred << "\nsynchronous "
      << all.synchronous << "\ncopies " << all.copies << "\nhost_waits " << all.host_waits << '\n';
  for (const auto& name : synchronous_operators()) out << name << '\n';
}

void read_environment() {
  if (const auto text = variable("FAKE_CUDA_DEVICES"); !text.empty()) {
    set_devices(static_cast<int>(number("FAKE_CUDA_DEVICES", text)));
  }
  if (const auto text = variable("FAKE_CUDA_MEMORY_MB"); !text.empty()) {
    const auto bytes = number("FAKE_CUDA_MEMORY_MB", text) << 20;
    for (int device = 0; device < devices(); ++device) set_memory(device, bytes);
  }
  read_order();
  read_pair("FAKE_CUDA_STICK", stick);
  read_pair("FAKE_CUDA_FAIL_ALLOCATION", fail_allocation);
  if (!variable("FAKE_CUDA_REPORT").empty()) std::atexit(report);
}

// Nobody above could catch what the loader's constructors throw.
const bool is_read = [] {
  try {
    read_environment();
  } catch (const std::exception& wrong) {
    std::fprintf(stderr, "fake_cuda: %s\n", wrong.what());
    std::_Exit(2);
  }
  return true;
}();

}  // namespace

bool available() { return true; }

void reset() {
  leave_out_blocks({});
  leave_out_records({});
  set_memory_fraction(1);
  for (int device = 0; device < kMostDevices; ++device) {
    unstick(device);
    fail_allocation(device, 0);
    set_memory(device, kMemory);
  }
  set_order(Order::lazy);
}

}  // namespace tutti::test::fake_cuda
