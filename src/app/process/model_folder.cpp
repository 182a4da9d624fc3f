#include "app/process/model_folder.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/train/hub_references.h"

namespace vlmtrain::app {

TemporaryFolder::TemporaryFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "vlmtrain-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) {
    throw run_error("{}: cannot create a temporary folder: {}; set TMPDIR to a folder with free space", name,
                    std::strerror(errno));
  }
  path_ = name;
  cleanup_.emplace(path_);
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored_error;
  std::filesystem::remove_all(path_, ignored_error);
}

namespace {

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  for (size_t position = text.find(from); position != std::string::npos;
       position = text.find(from, position + to.size())) {
    text.replace(position, from.size(), to);
  }
}

/// Returns the folder of train::fetch_model_folder(). If a download fails, the message suggests the
/// preset of the model.
std::string fetch_config(const std::string& model, std::map<std::string, std::string>& commits) {
  try {
    std::string folder = train::fetch_model_folder(model, hub::ModelFiles::kConfig, commits);
    if (folder != model) train::check_is_model(model, folder);
    return folder;
  } catch (const UserError& error) {
    const auto preset = models::find_hub_preset(model);
    if (error.code() == ExitCode::kUsage || !preset) throw;
    throw UserError(error.code(), fmt::format("{}; or use the preset {}", error.what(), *preset));
  }
}

}  // namespace

PresetFolder::PresetFolder(std::string preset, std::string tokenizer)
    : preset_name_(std::move(preset)), tokenizer_file_(std::move(tokenizer)) {
  models::write_preset_config(preset_name_, folder_.path());
  if (tokenizer_file_.empty()) return;
  const auto file = folder_.path() / "tokenizer.json";
  if (std::filesystem::exists(file)) {
    throw usage_error("--tokenizer: preset {} includes a tokenizer, and its config.json uses the ids; omit the option",
                      preset_name_);
  }
  if (!std::filesystem::is_regular_file(tokenizer_file_)) {
    throw usage_error("--tokenizer {}: does not exist or is not a file; give a tokenizer.json", tokenizer_file_);
  }
  std::filesystem::copy_file(tokenizer_file_, file);
  // The preset's added_tokens.json belongs to the tokenizer of the published model. The given
  // tokenizer may be another one, and its tokenizer.json has all tokens.
  std::filesystem::remove(folder_.path() / "added_tokens.json");
}

void PresetFolder::check_has_tokenizer() const {
  if (std::filesystem::exists(folder_.path() / "tokenizer.json")) return;
  throw usage_error(
      "preset {} has no tokenizer for {}; give the tokenizer.json of {} with --tokenizer FILE, or a checkpoint folder "
      "as {}. Or describe the samples, such as --images 1 --text-tokens 256",
      preset_name_, keys::data::kTrain, models::get_tokenizer_source(preset_name_), keys::model::kPath);
}

std::string PresetFolder::replace_temporary_paths(std::string text) const {
  if (!tokenizer_file_.empty()) replace_all(text, (folder_.path() / "tokenizer.json").string(), tokenizer_file_);
  replace_all(text, folder_.path().string(), preset_name_);
  return text;
}

ModelFolder::ModelFolder(const std::string& model, const std::string& tokenizer,
                         std::map<std::string, std::string>& commits)
    : model_(fetch_config(model, commits)) {
  if (!std::filesystem::exists(model_)) {
    preset_ = std::make_unique<PresetFolder>(model_, tokenizer);
  } else if (!tokenizer.empty()) {
    throw usage_error("--tokenizer: {} is a folder, whose tokenizer.json is used; omit the option", model_);
  }
}

std::string ModelFolder::path() const {
  return preset_ ? preset_->path().string() : model_;
}

}  // namespace vlmtrain::app
