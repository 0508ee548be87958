#include "tutti/train/model/load_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/suggest.h"
#include "tutti/optim/recipe.h"
#include "tutti/train/model/detail/left_out.h"

namespace tutti {
namespace {

bool means(const std::string& pattern, const std::string& name) {
  return optim::fits(pattern, name) || optim::fits(pattern + ".*", name);
}

bool means_any_of(const std::vector<std::string>& patterns, const std::string& name) {
  return std::ranges::any_of(patterns, [&](const auto& pattern) { return means(pattern, name); });
}

void require_used(const std::vector<std::string>& patterns, std::vector<std::string> names,
                  const std::string& what) {
  for (const std::string& pattern : patterns)
    if (std::ranges::none_of(names, [&](const auto& name) { return means(pattern, name); }))
      throw UsageError(fmt::format("{}: skip: {}", what,
                                   unknown_message("tensor of model or file", pattern, names)));
}

// All of them would fill a screen.
std::string some(const std::vector<std::string>& names) {
  constexpr size_t kMost = 8;
  if (names.size() <= kMost) return fmt::format("{}", fmt::join(names, ", "));
  return fmt::format("{} and {} more", fmt::join(names.begin(), names.begin() + kMost, ", "),
                     names.size() - kMost);
}

}  // namespace

std::string LoadReport::to_string() const {
  std::string words = fmt::format("{} tensors", loaded.size());
  if (!skipped.empty()) words += "; skipped " + some(skipped);
  if (!missing.empty()) words += "; not in the file, and left as they are: " + some(missing);
  if (!unexpected.empty()) words += "; not in the model: " + some(unexpected);
  return words;
}

detail::LeftOut detail::left_out(const std::vector<std::string>& model,
                                 const std::vector<std::string>& file,
                                 const std::map<std::string, std::string>& also,
                                 const LoadOptions& options, const std::string& what) {
  std::vector<std::string> all = model;
  all.insert(all.end(), file.begin(), file.end());
  require_used(options.skip, std::move(all), what);
  const std::set<std::string> in_model(model.begin(), model.end()),
      in_file(file.begin(), file.end());
  LeftOut out;
  const auto leave = [&](const std::string& name, std::vector<std::string>& why) {
    if (out.names.insert(name).second) why.push_back(name);
  };
  for (const std::string& name : model)
    if (means_any_of(options.skip, name))
      leave(name, out.report.skipped);
    else if (!in_file.contains(name) && !options.strict)
      leave(name, out.report.missing);
    else
      out.report.loaded.push_back(name);
  for (const std::string& name : file) {
    const auto tied = also.find(name);
    if (means_any_of(options.skip, name) ||
        (tied != also.end() && means_any_of(options.skip, tied->second)))
      leave(name, out.report.skipped);
    else if (!in_model.contains(name) && tied == also.end() && !options.strict)
      leave(name, out.report.unexpected);
  }
  return out;
}

}  // namespace tutti
