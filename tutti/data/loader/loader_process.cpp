// Loader processes, from their own side; and the names by which both know a dataset.

#include "tutti/data/loader/detail/loader_process.h"

#include <fcntl.h>
#include <sys/prctl.h>

#include <csignal>
#include <cstdlib>
#include <map>
#include <new>
#include <stdexcept>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/json.h"
#include "tutti/base/suggest.h"
#include "tutti/data/detail/cache.h"
#include "tutti/data/detail/epoch_state.h"
#include "tutti/data/loader/registered.h"

namespace tutti::data {
namespace {

// Made at first use: registrations come before main(), in any order.
std::map<std::string, Registered::Make>& functions() {
  static std::map<std::string, Registered::Make> all;
  return all;
}

Dataset make(const std::string& name, const std::string& arguments) {
  const auto known = functions().find(name);
  if (known == functions().end()) {
    std::vector<std::string> names;
    for (const auto& [each, function] : functions()) names.push_back(each);
    throw UsageError(unknown_message("registered dataset", name, names));
  }
  const detail::AloneAtWork alone;
  return known->second(arguments);
}

/// The content as it is, with a name.
class Named final : public detail::OverOne {
 public:
  Named(detail::ContentHandle below, detail::Origin origin)
      : OverOne(std::move(below)), origin_(std::move(origin)) {}
  Sample read(detail::Ref ref, detail::Reading& reading) const override {
    return below_->read(ref, reading);
  }
  const Source* plain() const override { return below_->plain(); }
  detail::SharedCache* cache() const override { return nullptr; }
  bool for_one_thread() const override { return true; }
  const detail::Origin& origin() const noexcept { return origin_; }

 private:
  const detail::Origin origin_;
};

Json error_answer(const char* kind, const std::exception& error, const detail::Reading& reading) {
  std::string what = plain_words(error.what());
  if (reading.stage != nullptr) what = *reading.stage + ": " + what;
  // A message has 16 KiB.
  constexpr size_t kMostWords = 4096;
  return {{"error", kind}, {"what", what.substr(0, kMostWords)}};
}

Json answer_to(const Json& question, const detail::Content& content, detail::Session& session,
               SharedFile* files, Mapping* memory) {
  detail::Reading reading(session);
  detail::StageTimes times;
  reading.times = &times;
  try {
    const Sample sample =
        content.read({.id = question.at("id"), .epoch = question.at("epoch")}, reading);
    const auto turn = question.at("turn").get<size_t>();
    const int64_t bytes = detail::packed_bytes(sample);
    if (memory[turn].num_bytes() < bytes) {
      const int64_t rounded = round_up(bytes + bytes / 4, kPageBytes);
      if (!files[turn].reserve(0, rounded))
        throw Error(fmt::format("no memory for a sample of {} bytes", bytes));
      memory[turn] = Mapping(files[turn], 0, rounded);
    }
    detail::pack(sample, memory[turn].data());
    Json stages = Json::array();
    for (const auto& entry : times.entries)
      stages.push_back({*entry.stage, entry.time.count(), entry.samples});
    return {{"bytes", bytes}, {"stages", stages}};
  } catch (const UsageError& error) {
    return error_answer("usage", error, reading);
  } catch (const IoError& error) {
    return error_answer("io", error, reading);
  } catch (const DataError& error) {
    return error_answer("data", error, reading);
  } catch (const Error& error) {
    return error_answer("other", error, reading);
  } catch (const std::bad_alloc& error) {
    return error_answer("other", error, reading);
  } catch (const std::exception& error) {
    return error_answer("data", error, reading);
  } catch (...) {
    return error_answer("data", std::runtime_error("threw what is no std::exception"), reading);
  }
}

// Until the loader closes the channel, by its death too.
void serve(DescriptorChannel channel) {
  constexpr Millis kForever = std::chrono::hours(24);
  DescriptorChannel::Message hello = channel.receive(Deadline(kForever));
  const Json origin = parse_json(hello.text);
  SharedFile files[2] = {SharedFile::duplicate(hello.descriptors.at(0).get()),
                         SharedFile::duplicate(hello.descriptors.at(1).get())};
  Mapping memory[2];
  const Dataset dataset = make(origin.at("name"), origin.at("arguments"));
  const detail::ContentHandle content = detail::Combining::content(dataset);
  for (detail::SharedCache* cache : detail::caches_of(*content)) {
    hello = channel.receive(Deadline(kForever));
    cache->follow(SharedFile::duplicate(hello.descriptors.at(0).get()));
  }
  std::unique_ptr<detail::Session> session;
  for (;;) {
    const Json question = parse_json(channel.receive(Deadline(kForever)).text);
    const uint64_t seed = question.at("seed");
    if (!session || session->seed() != seed) session = std::make_unique<detail::Session>(seed);
    const Json answer = answer_to(question, *content, *session, files, memory);
    channel.send(dump_json(answer), {}, Deadline(kForever));
  }
}

}  // namespace

std::optional<detail::Origin> detail::origin_of(const Content& content) {
  const auto* const named = dynamic_cast<const Named*>(&content);
  if (named == nullptr) return std::nullopt;
  return named->origin();
}

Registered::Registered(std::string name, Make make) : name_(std::move(name)) {
  if (!functions().emplace(name_, std::move(make)).second)
    throw UsageError(fmt::format("registered dataset \"{}\" is there twice", name_));
}

Dataset Registered::operator()(const std::string& arguments) const {
  serve_if_loader();
  const Dataset made = make(name_, arguments);
  return detail::Combining::with_content(
      made,
      std::make_shared<Named>(detail::Combining::content(made), detail::Origin{name_, arguments}));
}

void serve_if_loader() {
  const char* const channel = std::getenv(detail::kLoaderVariable);
  if (channel == nullptr) return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::unsetenv(detail::kLoaderVariable);  // what it starts itself is none, and does not hold it
  ::fcntl(std::atoi(channel), F_SETFD, FD_CLOEXEC);
  std::signal(SIGINT, SIG_IGN);  // the loader ends it
  try {
    serve(DescriptorChannel(std::atoi(channel), "the loader"));
  } catch (const PeerLost&) {
    std::_Exit(0);
  } catch (const std::exception& error) {
    std::fputs(fmt::format("loader process: {}\n", error.what()).c_str(), stderr);
    std::_Exit(1);
  }
}

}  // namespace tutti::data
