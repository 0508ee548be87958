#include "tutti/exported/from_export.h"

#include <utility>

#include "tutti/exported/detail/loaded.h"
#include "tutti/exported/module.h"

namespace tutti {

using exported::detail::Loaded;
using exported::detail::ProgramFile;

FromExport::FromExport(std::shared_ptr<const Loaded> loaded) : loaded_(std::move(loaded)) {}

std::shared_ptr<ExportedModule> FromExport::operator()() const {
  return std::make_shared<ExportedModule>(loaded_);
}
const pt2::Program& FromExport::program() const { return loaded_->training.program; }
const pt2::Program* FromExport::evaluation() const {
  return loaded_->evaluation ? &loaded_->evaluation->program : nullptr;
}
const std::filesystem::path& FromExport::path() const { return loaded_->training.archive.path(); }
std::filesystem::path FromExport::evaluation_path() const {
  return loaded_->evaluation ? loaded_->evaluation->archive.path() : std::filesystem::path();
}
void FromExport::require_evaluation() const { exported::detail::require_evaluation(*loaded_); }

FromExport from_export(const std::filesystem::path& path, const FromExportOptions& options) {
  Loaded loaded{.training = ProgramFile(path), .evaluation = std::nullopt};
  if (!options.eval.empty()) {
    loaded.evaluation.emplace(options.eval);
    exported::detail::require_same_model(loaded.training, *loaded.evaluation);
    exported::detail::say_if_not_of_evaluation(*loaded.evaluation);
  }
  return FromExport(std::make_shared<const Loaded>(std::move(loaded)));
}

}  // namespace tutti
