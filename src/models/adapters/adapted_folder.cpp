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
#include <vector>

#include "models/adapters/adapter_format.h"
#include "models/checkpoints/auxiliary_files.h"
#include "models/checkpoints/config_checks.h"
#include "models/checkpoints/saved_config.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/hub/settings.h"
#include "vlmtrain/hub/snapshot.h"
#include "vlmtrain/hub/snapshot_path.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/models/adapter.h"
#include "vlmtrain/text/chat_template.h"

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

namespace {

namespace fs = std::filesystem;

/// base_model_name_or_path of an adapter_config.json.
struct BaseReference {
  std::string path;
  std::optional<hub::Repo> repo{};  ///< if `path` is a name on the Hub
};

BaseReference read_base_reference(const fs::path& adapter) {
  const auto source = adapter / kAdapterConfigName;
  if (!is_adapter(adapter)) throw make_missing_adapter_error(source);
  const auto config = io::read_json(source);
  BaseReference base{.path = io::get<std::string>(config, "base_model_name_or_path", source.string())};
  base.repo = hub::find_model_reference(base.path);
  if (!base.repo) return base;
  base.repo->revision = io::get_or<std::string>(config, "revision", base.repo->revision, source.string());
  if (!hub::is_model_reference(base.repo->to_string()))
    throw data_error("{}: revision {} is invalid; correct it, or give the base with --base", source.string(),
                     make_excerpt(base.repo->revision));
  return base;
}

/// Returns the base on this machine: a folder or a snapshot in the Hugging Face cache. Returns
/// nothing if there is none.
std::optional<fs::path> find_local_base(const BaseReference& base) {
  if (base.repo) {
    const auto snapshot = hub::find_cached_model(hub::read_hub_settings(), *base.repo, hub::ModelFiles::kWithWeights);
    return snapshot ? std::optional(snapshot->folder) : std::nullopt;
  }
  std::error_code error;
  return fs::is_directory(base.path, error) ? std::optional<fs::path>(base.path) : std::nullopt;
}

/// Throws UserError if `base` is not a full checkpoint. `source` is the key or flag that gave it.
void check_full_checkpoint(const fs::path& base, const std::string& source) {
  if (is_adapter(base)) {
    throw data_error(
        "{}: {} is an adapter itself; merge it first (`vlmtrain merge --adapter {} --out FOLDER`), and use the result "
        "as the base",
        source, base.string(), base.string());
  }
  if (fs::exists(base / "config.json")) return;
  try {
    read_model_config(base);
  } catch (const UserError& error) {
    throw data_error("{}: {}", source, error.what());
  }
}

std::vector<fs::path> list_safetensors_files(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->path().extension() == ".safetensors") files.push_back(entry->path());
  }
  std::ranges::sort(files);
  return files;
}

/// Returns excerpts of a file, spread over the file.
std::string read_excerpts(const fs::path& path, uintmax_t bytes) {
  // Reading 256 KiB of a file of gigabytes is fast. It is enough, since any training step changes
  // nearly all weights.
  constexpr uintmax_t kNumExcerpts = 64;
  constexpr uintmax_t kExcerptBytes = 4096;
  std::ifstream file(path, std::ios::binary);
  std::string excerpts;
  std::string excerpt(kExcerptBytes, '\0');
  for (uintmax_t i = 0; i < kNumExcerpts && file; ++i) {
    const uintmax_t last_excerpt_offset = bytes > kExcerptBytes ? bytes - kExcerptBytes : 0;
    file.seekg(static_cast<std::streamoff>(last_excerpt_offset * i / (kNumExcerpts - 1)));
    file.read(excerpt.data(), static_cast<std::streamsize>(std::min(bytes, kExcerptBytes)));
    excerpts.append(excerpt, 0, static_cast<size_t>(file.gcount()));
  }
  return excerpts;
}

bool have_equal_excerpts(const fs::path& a, const fs::path& b) {
  std::error_code error;
  if (fs::equivalent(a, b, error)) return true;
  const auto bytes = fs::file_size(a, error);
  if (error || bytes != fs::file_size(b, error) || error) return false;
  return read_excerpts(a, bytes) == read_excerpts(b, bytes);
}

}  // namespace

bool is_adapter(const fs::path& folder) {
  return fs::exists(folder / kAdapterConfigName);
}

fs::path find_adapter_base(const fs::path& folder, const fs::path& base) {
  if (!base.empty()) {
    const std::string source = fmt::format("--base {}", base.string());
    if (!fs::is_directory(base)) throw usage_error("{}: is not a folder; give the adapter's base checkpoint", source);
    check_full_checkpoint(base, source);
    return base;
  }
  const std::string source = fmt::format("{}: base_model_name_or_path", (folder / kAdapterConfigName).string());
  const BaseReference reference = read_base_reference(folder);
  fs::path path = reference.path;
  if (reference.repo) {
    try {
      path = hub::fetch_model(hub::read_hub_settings(), *reference.repo, hub::ModelFiles::kWithWeights).folder;
    } catch (const UserError& error) {
      throw UserError(error.code(), fmt::format("{}; or give the adapter's base checkpoint with --base", error.what()));
    }
  } else if (!fs::is_directory(path)) {
    throw data_error("{} {} is not a folder on this machine; give the adapter's base checkpoint with --base", source,
                     reference.path);
  }
  check_full_checkpoint(path, source);
  return path;
}

bool has_local_base(const fs::path& adapter) {
  return find_local_base(read_base_reference(adapter)).has_value();
}

BaseAndAdapterFolders resolve_base_and_adapter(const fs::path& folder, const fs::path& base) {
  if (is_adapter(folder)) return {.base = find_adapter_base(folder, base), .adapter = folder};
  if (base.empty()) return {.base = folder, .adapter = {}};
  throw usage_error("--base {}: applies to adapters, and {} is not an adapter; omit it", base.string(),
                    folder.string());
}

bool are_equal_checkpoints(const fs::path& a, const fs::path& b) {
  std::error_code error;
  if (fs::equivalent(a, b, error)) return true;
  const auto files = list_safetensors_files(a);
  if (!std::ranges::equal(files, list_safetensors_files(b), have_equal_excerpts)) return false;
  return fs::exists(a / "config.json", error) && fs::exists(b / "config.json", error) &&
         io::read_file(a / "config.json") == io::read_file(b / "config.json");
}

void warn_on_base_folder_mismatch(const fs::path& adapter, const fs::path& base) {
  const BaseReference reference = read_base_reference(adapter);
  const auto base_path = find_local_base(reference);
  if (!base_path || are_equal_checkpoints(*base_path, base)) return;
  spdlog::warn(
      "{}: base_model_name_or_path {} exists and is not {}, the checkpoint in use; results are valid only if both have "
      "the same weights, so check which one the adapter belongs to",
      (adapter / kAdapterConfigName).string(), reference.path, base.string());
}

}  // namespace vlmtrain::models
