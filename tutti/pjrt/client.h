/// A PJRT plugin at work: its devices, memory there, programs compiled for them.
///
///   auto client = pjrt::Client::open(pjrt::find_plugin("cpu"), {.options =
///   pjrt::options_for("cpu", 2)}); auto program = client.compile(stablehlo_text, {.replicas = 2});
///   auto results = program.run({{&a0, &b0}, {&a1, &b1}});   // arguments of each device
///   results.wait(Deadline(limit));
///   Array loss = results.outputs[0][0].to_host(Deadline(limit));
///
/// What the interface gives no way to wait for with a limit, a plugin's own work when a copy or a
/// program is handed over (not when it runs), has none. Errors name the plugin, its version and the
/// function: "PJRT plugin xla_cpu_pjrt.so (API 0.81),
/// PJRT_Client_Compile: ...". Thread rule: handles are cheap to copy or move, and may be used from
/// any thread; one Program is run by one thread at a time.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/array.h"
#include "tutti/base/deadline.h"
#include "tutti/net/key_values.h"
#include "tutti/pjrt/plugin.h"

namespace tutti::pjrt {

namespace detail {
struct ClientState;
struct BufferState;
struct ProgramState;
struct EventState;
}  // namespace detail

/// What main() of a program takes or gives.
struct ArrayType {
  DType dtype = DType::float32;
  std::vector<int64_t> shape;  ///< empty: a scalar
  bool operator==(const ArrayType&) const = default;
};
std::string words_of(const ArrayType& type);  ///< "float32 [2, 3]"

/// An array in a device's memory, or on its way there. Never written to: programs make new ones.
class Buffer {
 public:
  DType dtype() const;
  std::vector<int64_t> shape() const;  ///< empty: a scalar

  /// Its elements, when they are there. Timeout after the limit; Error where what should have made
  /// it failed.
  Array to_host(const Deadline& deadline) const;

 private:
  friend class Client;
  friend class Program;
  explicit Buffer(std::shared_ptr<detail::BufferState> state) : state_(std::move(state)) {}
  std::shared_ptr<detail::BufferState> state_;
};

/// What a program makes on each device: outputs[device][number].
struct Results {
  std::vector<std::vector<Buffer>> outputs;

  /// Returns when every device is done. Timeout names the devices that are not; Error: what a
  /// device said.
  void wait(const Deadline& deadline) const;

  std::vector<std::shared_ptr<detail::EventState>> done;  ///< of each device
};

/// Compiled for as many devices as it has replicas.
class Program {
 public:
  int replicas() const;     ///< on devices of this process: as many lists as run() takes
  int num_outputs() const;  ///< of each device

  /// Of each output, in order. Error for types that tutti has not.
  std::vector<ArrayType> output_types() const;
  /// Of each argument, in order, from the program that the plugin made: it asks for a copy of that,
  /// constants and all. None where the plugin does not give it away.
  std::optional<std::vector<ArrayType>> argument_types() const;

  /// Starts it on its devices here and returns; arguments[replica] are what main() takes there, and
  /// may go once it has returned: the plugin keeps what it still reads. One that is given away
  /// (hlo::Program::give_away) can be used no more. UsageError for other counts of lists. One for
  /// devices of several processes goes on once each of these has started it: all start the same
  /// ones in one order. Of such a client: Timeout where the plugin does not return within `limit`,
  /// PeerLost where another process is lost meanwhile (ClientOptions::key_values); a plugin of one
  /// process is called directly, and to be back is its promise.
  Results run(const std::vector<std::vector<const Buffer*>>& arguments,
              Millis limit = Millis{600'000}) const;

 private:
  friend class Client;
  explicit Program(std::shared_ptr<detail::ProgramState> state) : state_(std::move(state)) {}
  std::shared_ptr<detail::ProgramState> state_;
};

struct ClientOptions {
  Options options;
  /// For the plugin to be loaded and to find its devices, here and in the process that tries first.
  Millis limit{60'000};
  /// Where the plugins of several processes find each other: those that make one client of them
  /// put there what the others get. With it the process that tries first makes no client, for the
  /// others would take it for this one; and who waits for a device asks it whether all processes
  /// are there (KeyValues::require_all): PeerLost. Never let go of: a plugin's threads may ask at
  /// any time.
  std::shared_ptr<KeyValues> key_values{};
};

struct CompileOptions {
  /// From 1 to num_devices(): the first ones run it, replica r device r; or all_devices().size():
  /// those of all processes run it, replica r the one at place r.
  int replicas = 1;
  Millis limit{600'000};  ///< Timeout after it
};

class Client {
 public:
  /// Tries the plugin in a process of its own (probe_plugin), then loads it here. A plugin stays
  /// loaded until the process ends; the same path with the same options is one client, with the
  /// key_values of whoever opened it first.
  static Client open(const std::string& path, const ClientOptions& options = {});

  const PluginFacts& facts() const;
  int num_devices() const;  ///< of this process
  int process() const;      ///< this one's number among those that share the client
  /// Of all processes, by process, those of one in the order of their ids.
  const std::vector<DeviceFacts>& all_devices() const;

  /// Copies the array; what it holds may be changed when this has returned.
  Buffer to_device(const Array& array, int device) const;

  /// Compiles StableHLO as text or bytecode. UsageError where there are fewer devices than
  /// replicas, or the text says another number of them; Error with the plugin's words for a program
  /// that it refuses.
  Program compile(std::string_view stablehlo, const CompileOptions& options = {}) const;

 private:
  explicit Client(std::shared_ptr<detail::ClientState> state) : state_(std::move(state)) {}
  std::shared_ptr<detail::ClientState> state_;
};

}  // namespace tutti::pjrt
