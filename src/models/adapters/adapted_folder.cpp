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

#include "models/adapters/auxiliary_files.h"
#include "models/checkpoints/companion_files.h"
#include "models/checkpoints/config_changes.h"
#include "models/checkpoints/read_model_config.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/unfinished.h"
#include "vlmtrain/models/adapter.h"
#include "vlmtrain/text/checkpoint_templates.h"

namespace vlmtrain::models {

namespace {

namespace fs = std::filesystem;

/// The base's files as links, and the files that take the places of some.
class FolderOfLinks {
 public:
  FolderOfLinks(const fs::path& base, const std::map<std::string, std::string>& files) {
    std::string name = (fs::temp_directory_path() / "vlmtrain-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) {
      throw run_error("{}: no temporary folder can be made: {}; set TMPDIR to a folder that can be written", name,
                      std::strerror(errno));
    }
    path_ = name;
    unfinished_.emplace(path_);
    const auto names = companion_file_names();
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
  ~FolderOfLinks() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  FolderOfLinks(const FolderOfLinks&) = delete;
  FolderOfLinks& operator=(const FolderOfLinks&) = delete;

  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
  std::optional<io::Unfinished> unfinished_;
};

void replace_all(std::string& text, const std::string& part, const std::string& other) {
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + other.size())) {
    text.replace(at, part.size(), other);
  }
}

/// A message about a folder of links, about the files instead.
std::string named_as_they_lie(std::string message, const fs::path& links, const fs::path& base, const fs::path& adapter,
                              const std::map<std::string, std::string>& files) {
  for (const auto& [name, content] : files) {
    const fs::path& folder = fs::exists(adapter / name) ? adapter : base;
    replace_all(message, (links / name).string(), (folder / name).string());
  }
  replace_all(message, links.string(), base.string());
  return message;
}

}  // namespace

void with_adapted_folder(const fs::path& base, const fs::path& adapter,
                         const std::function<void(const AdaptedFolder& folder)>& read) {
  AdaptedFolder adapted{.config = read_model_config(base),
                        .path = base,
                        .templates = text::templates_in(adapter).empty() ? fs::path() : adapter};
  const auto files = auxiliary_files(base, adapter);
  if (files == read_companion_files(base)) return read(adapted);
  if (adapted.templates.empty()) adapted.templates = base;
  if (const int64_t rows = read_adapter_settings(adapter, base).vocabulary_rows; rows > 0) {
    set_vocabulary(adapted.config, rows);
  }
  const FolderOfLinks links(base, files);
  adapted.path = links.path();
  try {
    read(adapted);
  } catch (const UserError& error) {
    throw UserError(error.code(), named_as_they_lie(error.what(), links.path(), base, adapter, files));
  }
}

}  // namespace vlmtrain::models
