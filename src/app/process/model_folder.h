#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "vlmtrain/io/atomic.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::app {

/// A new folder in the system's folder for temporary files. It is removed with the object, or when
/// a signal ends the process. The constructor throws UserError (kFailed).
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

/// A temporary folder with a preset's files and a tokenizer.
class PresetFolder {
 public:
  /// `tokenizer`: path of a tokenizer.json; empty: none, or the preset's own. Throws UserError
  /// (kUsage) for an unknown preset and for a tokenizer that it does not need.
  PresetFolder(std::string preset, std::string tokenizer);

  const std::filesystem::path& path() const { return folder_.path(); }
  /// Throws UserError (kUsage) that names the missing tokenizer.
  void require_tokenizer() const;
  /// Replaces paths in the folder by the names that the user gave for preset and tokenizer.
  std::string replace_paths(std::string text) const;

 private:
  std::string preset_;
  std::string tokenizer_;
  TemporaryFolder folder_;
};

/// Calls `callback` with `config`, whose model.path becomes a folder: its own, or that of a preset.
/// `preset` is null for the first. Messages of a UserError name the preset, not the folder. Throws
/// UserError (kUsage) for a `tokenizer` without a preset.
void with_model_folder(train::Config config, const std::string& tokenizer,
                       const std::function<void(const train::Config& config, const PresetFolder* preset)>& callback);

}  // namespace vlmtrain::app
