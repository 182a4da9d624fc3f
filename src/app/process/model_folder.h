#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "vlmtrain/base/error.h"
#include "vlmtrain/io/atomic.h"

namespace vlmtrain::app {

/// A new folder in the system's folder for temporary files ($TMPDIR). The destructor removes it
/// with its content, and so does a signal that ends the process. The constructor throws UserError
/// (kFailed).
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  std::optional<io::TempFileCleanup> cleanup_;
};

/// A temporary folder with the files of a preset, without weights, and possibly a tokenizer.
class PresetFolder {
 public:
  /// `tokenizer` is the path of a tokenizer.json that is copied; if empty, the folder has only the
  /// tokenizer that the preset may include. Throws UserError (kUsage) for an unknown preset and for
  /// a `tokenizer` if the preset includes one.
  PresetFolder(std::string preset, std::string tokenizer);

  const std::filesystem::path& path() const { return folder_.path(); }
  /// Throws UserError (kUsage) if the folder has no tokenizer.json.
  void check_has_tokenizer() const;
  /// Returns `text` with the folder's paths replaced by the preset and tokenizer as the user wrote
  /// them, for messages.
  std::string replace_temporary_paths(std::string text) const;

 private:
  std::string preset_name_;
  std::string tokenizer_file_;
  TemporaryFolder folder_;
};

/// The folder of a model: an existing one, one in the Hugging Face cache or, for the name of a
/// preset, a PresetFolder. It may lack weights.
class ModelFolder {
 public:
  /// `model` is a folder, a reference to the Hub, or the name of a preset. Throws as PresetFolder and
  /// train::fetch_model_folder(), which also describes `commits`, and UserError (kUsage) if
  /// `tokenizer` (see PresetFolder) is given without a preset.
  ModelFolder(const std::string& model, const std::string& tokenizer, std::map<std::string, std::string>& commits);

  std::string path() const;
  /// Returns null if the model is an existing folder.
  const PresetFolder* preset() const { return preset_.get(); }

  /// Returns the result of `function`. A UserError is passed on with the preset's name in place of the
  /// temporary folder.
  template <class Function>
  auto name_in_errors(const Function& function) const {
    try {
      return function();
    } catch (const UserError& error) {
      if (!preset_) throw;
      throw UserError(error.code(), preset_->replace_temporary_paths(error.what()));
    }
  }

 private:
  std::string model_;
  std::unique_ptr<PresetFolder> preset_;
};

}  // namespace vlmtrain::app
