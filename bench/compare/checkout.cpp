#include "bench/compare/checkout.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <optional>
#include <system_error>

#include "tutti/base/error.h"
#include "tutti/base/folders.h"
#include "tutti/cli/bench/runs.h"

namespace tutti::bench {
namespace {

std::optional<uint32_t> owner_of(const std::filesystem::path& path) {
  struct stat facts{};
  if (stat(path.c_str(), &facts) != 0) return std::nullopt;
  return facts.st_uid;
}

}  // namespace

std::filesystem::path tutti_program() {
  const auto program = cli::own_program().parent_path() / "tutti";
  if (!std::filesystem::exists(program))
    throw UsageError(fmt::format("{} was not built; make bench builds it", program.string()));
  return program;
}

std::filesystem::path checkout_above(std::filesystem::path folder,
                                     const std::vector<uint32_t>& owners) {
  for (;; folder = folder.parent_path()) {
    const auto owner = owner_of(folder);
    if (std::filesystem::exists(folder / "bench/peer/step.py") && owner &&
        std::ranges::find(owners, *owner) != owners.end())
      return folder;
    if (folder == folder.parent_path()) return {};
  }
}

std::filesystem::path checkout() {
  const std::filesystem::path program = cli::own_program();
  std::vector<uint32_t> owners = {owner_of(program).value_or(geteuid())};
  auto found = checkout_above(program.parent_path(), owners);
  owners.push_back(geteuid());
  std::error_code removed;  // the working folder, maybe
  if (found.empty()) found = checkout_above(std::filesystem::current_path(removed), owners);
  if (found.empty())
    throw UsageError(
        "bench/peer was not found above this program or the working folder, in a folder of this "
        "user's: run it in a checkout of tutti");
  return found;
}

ScratchFile::ScratchFile() {
  std::string folder = (temporary_folder() / "tutti-bench-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr)
    throw Error(fmt::format("{} cannot be made: {}", folder, errno_words(errno)));
  folder_ = folder;
}

ScratchFile::~ScratchFile() {
  std::error_code gone_already;
  std::filesystem::remove_all(folder_, gone_already);
}

}  // namespace tutti::bench
