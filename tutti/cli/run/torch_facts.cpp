#include "tutti/cli/run/torch_facts.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <fmt/format.h>
#include <torch/version.h>

#include <algorithm>
#include <string_view>

#include "tutti/base/typed.h"
#include "tutti/nn/dense_kernel.h"

namespace tutti::cli {
namespace {

/// What stands behind `key` in a text, up to one of `ends`.
std::string value_after(std::string_view text, std::string_view key, std::string_view ends) {
  const size_t at = text.find(key);
  if (at == std::string_view::npos) return "";
  text.remove_prefix(at + key.size());
  return std::string(text.substr(0, std::min(text.find_first_of(ends), text.size())));
}

}  // namespace

TorchFacts torch_facts() {
  const std::string config = at::show_config();
  TorchFacts facts;
  facts.version = TORCH_VERSION;
  facts.tried = TUTTI_TRIED_LIBTORCH;
  facts.blas = value_after(config, "BLAS_INFO=", ",\n ");
  if (facts.blas.empty()) facts.blas = "unknown";
  facts.openmp = at::get_openmp_version();
  if (facts.openmp.empty() || config.find("OpenMP") == std::string::npos) facts.openmp = "none";
  facts.abi = _GLIBCXX_USE_CXX11_ABI != 0 ? "C++11" : "old";
  facts.cpu_capability = at::get_cpu_capability();
  facts.dense_kernel = nn::name_of(nn::dense_kernel());
  facts.cuda = value_after(config, "CUDA Runtime ", "\n");
  facts.threads = at::get_num_threads();
  return facts;
}

bool was_tried(std::string_view version, std::string_view tried) {
  const auto parts = parts_of(version, '.');
  if (parts.size() < 2) return false;
  const std::string minor = fmt::format("{}.{}", parts[0], parts[1]);
  const auto all = parts_of(tried, ',');
  return std::ranges::find(all, minor) != all.end();
}

}  // namespace tutti::cli
