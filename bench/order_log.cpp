// What recording the order of updates costs an asynchronous step of parameter servers.
//
//   bench_order_log FOLDER [ROUNDS [STEPS [ELEMENTS [WORKERS [SERVERS]]]]]
//
// FOLDER is where the servers' parts go. ROUNDS (15) with and without the log, one after the other,
// of STEPS (300) a worker; a step pushes and pulls ELEMENTS (200,000: an mlp) and computes nothing,
// so that a real one has a smaller share. WORKERS (2) and SERVERS (2, with backups) are threads
// that talk as processes do. Prints a line of JSON: the median step in ms without and with the log,
// the median, least and most ratio of two rounds beside each other, bytes an update, and what a
// record costs by itself, in ns, and as a share of the step.
#include <fmt/format.h>

#include <cstring>
#include <exception>
#include <filesystem>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include "tutti/base/clock.h"
#include "tutti/ps/client/client.h"
#include "tutti/ps/server/server.h"
#include "tutti/ps/server/view_service.h"
#include "tutti/ps/spec/update_order.h"

#include "bench/rounds.h"

namespace {

using namespace tutti;

constexpr Millis kPatience{60'000};

struct Setting {
  std::filesystem::path folder;
  int64_t rounds, steps, elements;
  int workers, servers;
};

ps::Spec spec_of(const Setting& setting) {
  ps::Spec spec{.rule = optim::adam()};
  spec.variables = {{"w", {setting.elements / 64, 64}, DType::float32}};
  spec.pieces = ps::pieces_of(
      spec.variables,
      ps::place(spec.variables, {.num_servers = setting.servers,
                                 .partitioner = ps::Partitioner::fixed(setting.servers)}),
      ps::kPieceBytes);
  spec.num_partitions = setting.servers;
  spec.staleness = ps::Staleness::unbounded();
  spec.num_workers = setting.workers;
  spec.shape = ReductionShape::flat(setting.workers);
  return spec;
}

void work(ps::Client& client, const Setting& setting, int worker) {
  const ps::Spec& spec = client.spec();
  const int pieces = static_cast<int>(spec.pieces.size());
  for (int piece = 0; piece < pieces; ++piece) client.pull(piece, 0);
  for (int64_t step = 0; step <= setting.steps; ++step)
    for (int piece = 0; piece < pieces; ++piece) {
      client.fetch(piece, step, Deadline(kPatience), [](const ps::Bytes&) {});
      if (step == setting.steps) continue;
      const ps::Piece& of = spec.pieces[static_cast<size_t>(piece)];
      const auto memory = client.allocate(of.num_bytes);
      std::memset(memory.get(), 0, static_cast<size_t>(of.num_bytes));
      client.push({.piece = piece,
                   .step = step,
                   .learning_rate = 1e-3,
                   .parts = {{worker, std::vector<uint8_t>(of.segments.size(), 1)}},
                   .payload = {{memory.get(), static_cast<size_t>(of.num_bytes)}, memory}});
    }
  client.wait_until_settled(Deadline(kPatience));
}

// In ms, a step of a worker.
double round_of(const Setting& setting, const std::filesystem::path& record) {
  const Credentials credentials{Token::random(), "bench", nullptr};
  auto service = std::make_unique<ps::ViewService>(
      ps::ViewServiceOptions{.num_servers = setting.servers, .num_workers = setting.workers},
      *Address::from_number("127.0.0.1", 0), credentials);
  const HostPort where{"127.0.0.1", service->address().port()};
  std::vector<std::thread> servers, workers;
  for (int i = 0; i < setting.servers; ++i)
    servers.emplace_back([&, i] {
      ps::run_server({.number = i, .view_service = where, .threads = 1, .record_order = record},
                     credentials);
    });
  const ps::Spec spec = spec_of(setting);
  std::vector<double> each(static_cast<size_t>(setting.workers));
  for (int worker = 0; worker < setting.workers; ++worker)
    workers.emplace_back([&, worker] {
      ps::Client client(
          {.worker = worker, .view_service = where}, credentials, spec, [&](int piece) {
            return ps::Bytes::copy_of(std::vector<std::byte>(
                static_cast<size_t>(spec.pieces[static_cast<size_t>(piece)].num_bytes)));
          });
      const TimePoint begin = Clock::now();
      work(client, setting, worker);
      each[static_cast<size_t>(worker)] =
          std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
    });
  for (std::thread& worker : workers) worker.join();
  service.reset();
  for (std::thread& server : servers) server.join();
  double sum = 0;
  for (const double one : each) sum += one;
  return sum / static_cast<double>(each.size()) / static_cast<double>(setting.steps);
}

double ns_of_a_record(const Setting& setting, const std::string& spec) {
  constexpr int64_t kRecords = 1'000'000;
  ps::OrderPart part(setting.folder, 0, 999, 0, spec);
  const TimePoint begin = Clock::now();
  for (int64_t i = 0; i < kRecords; ++i)
    part.add({.worker = static_cast<int>(i % 7), .piece = static_cast<int>(i % 50), .number = i});
  return std::chrono::duration<double, std::nano>(Clock::now() - begin).count() / kRecords;
}

void measure(const Setting& setting) {
  std::filesystem::create_directories(setting.folder);
  const auto times = bench::in_turn(
      setting.rounds, [&] { return round_of(setting, {}); },
      [&] {
        std::filesystem::remove_all(setting.folder);
        std::filesystem::create_directories(setting.folder);
        return round_of(setting, setting.folder);
      });
  const ps::UpdateOrder order = ps::merged_order(setting.folder, setting.servers);
  int64_t records = 0;
  for (const auto& partition : order.partitions) records += std::ssize(partition);
  const double updates = static_cast<double>(order.num_updates());
  const double ns = ns_of_a_record(setting, order.spec);
  // Primary and backup write each, and all workers' records come in a step of one.
  const double a_step = 2 * static_cast<double>(records) / static_cast<double>(setting.steps);
  std::filesystem::remove_all(setting.folder);
  const nlohmann::ordered_json json = {
      {"bench", "order_log"},
      {"workers", setting.workers},
      {"servers", setting.servers},
      {"elements", setting.elements},
      {"steps", setting.steps},
      {"rounds", setting.rounds},
      {"step_ms", times.one},
      {"step_ms_with_log", times.other},
      {"ratio", times.ratio},
      {"ratio_least_most", {times.least, times.most}},
      {"bytes_an_update", 8 * static_cast<double>(records) / updates},
      {"record_ns", ns},
      {"records_share_of_step", ns * a_step / (times.one * 1e6)}};
  fmt::print("{}\n", json.dump());
}

}  // namespace

int main(int argc, char** argv) {
  using bench::number_at;
  if (argc < 2) {
    fmt::print(stderr,
               "usage: bench_order_log FOLDER [ROUNDS [STEPS [ELEMENTS [WORKERS [SERVERS]]]]]\n");
    return 2;
  }
  try {
    measure({.folder = std::filesystem::path(argv[1]) / "bench_order_log",
             .rounds = number_at(argc, argv, 2, 15),
             .steps = number_at(argc, argv, 3, 300),
             .elements = number_at(argc, argv, 4, 200'000),
             .workers = static_cast<int>(number_at(argc, argv, 5, 2)),
             .servers = static_cast<int>(number_at(argc, argv, 6, 2))});
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
}
