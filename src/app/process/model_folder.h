#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "vlmtrain/io/atomic.h"
#include "vlmtrain/train/config.h"

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

/// Calls `callback` with a `config` whose model.path is a folder. If model.path names a preset, it
/// becomes a temporary folder, `preset_folder`, which exists during the call; otherwise
/// `preset_folder` is null. A UserError of `callback` is passed on with the preset's name in place
/// of the folder. Throws UserError (kUsage) if `tokenizer` (see PresetFolder) is given without a
/// preset.
void call_with_model_folder(
    train::Config config, const std::string& tokenizer,
    const std::function<void(const train::Config& config, const PresetFolder* preset_folder)>& callback);

}  // namespace vlmtrain::app
