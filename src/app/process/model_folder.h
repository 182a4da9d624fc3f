#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "vlmtrain/io/unfinished.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::app {

/// A new folder below the system's folder for temporary files, removed with the object, or where a
/// signal ends the process. Throws UserError (kFailed).
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

/// A preset's files, and a tokenizer, in a folder that lives as long as the object.
class PresetFolder {
 public:
  /// `tokenizer`: a tokenizer.json; empty: none, or the preset's own. Throws UserError (kUsage) for an unknown preset
  /// and for a tokenizer that it does not need.
  PresetFolder(std::string preset, std::string tokenizer);

  const std::filesystem::path& path() const { return folder_.path(); }
  /// Throws UserError (kUsage) that says which one to give.
  void require_tokenizer() const;
  /// The text with the preset's name, and the tokenizer's, instead of files in the folder.
  std::string replace_paths(std::string text) const;

 private:
  std::string preset_;
  std::string tokenizer_;
  TemporaryFolder folder_;
};

/// Calls `callback` with `config` whose model.path is a folder: its own, or, where it names a preset, that of `preset`,
/// which is null else. A UserError of `callback` comes out in the user's words. Throws UserError (kUsage) for a
/// `tokenizer` beside a folder.
void with_model_folder(train::Config config, const std::string& tokenizer,
                       const std::function<void(const train::Config& config, const PresetFolder* preset)>& callback);

}  // namespace vlmtrain::app
