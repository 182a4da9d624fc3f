#include "models/adapters/adapted_folder.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <system_error>

#include "models/checkpoints/auxiliary_files.h"
#include "models/checkpoints/read_model_config.h"
#include "models/checkpoints/saved_config.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/models/adapter.h"
#include "vlmtrain/text/template_source.h"

namespace vlmtrain::models {

namespace {

namespace fs = std::filesystem;

/// A temporary folder with symbolic links to the base's files, some of which are replaced by other
/// files. Removed by the destructor.
class SymlinkFolder {
 public:
  SymlinkFolder(const fs::path& base, const std::map<std::string, std::string>& files) {
    std::string name = (fs::temp_directory_path() / "vlmtrain-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) {
      throw run_error("{}: cannot create a temporary folder: {}; set TMPDIR to a writable folder", name,
                      std::strerror(errno));
    }
    path_ = name;
    cleanup_.emplace(path_);
    // All auxiliary files come from `files`; the rest, such as config.json, is linked.
    const auto names = get_auxiliary_file_names();
    for (const auto& entry : fs::directory_iterator(base)) {
      const std::string file = entry.path().filename().string();
      if (std::ranges::find(names, file) != names.end() || file == "additional_chat_templates") continue;
      fs::create_symlink(fs::absolute(entry.path()), path_ / file);
    }
    for (const auto& [file, content] : files) {
      fs::create_directories((path_ / file).parent_path());
      std::ofstream(path_ / file, std::ios::binary) << content;
    }
  }
  ~SymlinkFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  SymlinkFolder(const SymlinkFolder&) = delete;
  SymlinkFolder& operator=(const SymlinkFolder&) = delete;

  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
  std::optional<io::TempFileCleanup> cleanup_;
};

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  for (size_t pos = text.find(from); pos != std::string::npos; pos = text.find(from, pos + to.size())) {
    text.replace(pos, from.size(), to);
  }
}

/// Returns `message` with paths in the temporary folder replaced by the original ones.
std::string restore_original_paths(std::string message, const fs::path& link_folder, const fs::path& base,
                                   const fs::path& adapter, const std::map<std::string, std::string>& files) {
  for (const auto& [name, content] : files) {
    const fs::path& folder = fs::exists(adapter / name) ? adapter : base;
    replace_all(message, (link_folder / name).string(), (folder / name).string());
  }
  replace_all(message, link_folder.string(), base.string());
  return message;
}

}  // namespace

void call_with_adapted_folder(const fs::path& base, const fs::path& adapter,
                              const std::function<void(const AdaptedFolder& folder)>& callback) {
  AdaptedFolder adapted_folder{
      .config = read_model_config(base),
      .path = base,
      .chat_template_folder = text::load_checkpoint_templates(adapter).empty() ? fs::path() : adapter};
  const auto files = merge_auxiliary_files(base, adapter);
  if (files == read_auxiliary_files(base)) return callback(adapted_folder);
  if (adapted_folder.chat_template_folder.empty()) adapted_folder.chat_template_folder = base;
  if (const int64_t rows = read_adapter_settings(adapter, base).vocabulary_rows; rows > 0) {
    set_vocab_size(adapted_folder.config, rows);
  }
  const SymlinkFolder link_folder(base, files);
  adapted_folder.path = link_folder.path();
  try {
    callback(adapted_folder);
  } catch (const UserError& error) {
    throw UserError(error.code(), restore_original_paths(error.what(), link_folder.path(), base, adapter, files));
  }
}

}  // namespace vlmtrain::models
