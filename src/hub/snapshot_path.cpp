#include "vlmtrain/hub/snapshot_path.h"

#include <system_error>

#include "vlmtrain/base/error.h"

namespace vlmtrain::hub {

namespace fs = std::filesystem;

std::optional<Repo> parse_snapshot_path(const fs::path& folder) {
  const fs::path path = folder.has_filename() ? folder : folder.parent_path();
  const std::string commit = path.filename().string();
  const fs::path snapshots = path.parent_path();
  std::string name = snapshots.parent_path().filename().string();
  constexpr std::string_view kPrefix = "models--";
  if (!is_commit(commit) || snapshots.filename() != "snapshots" || !name.starts_with(kPrefix)) return std::nullopt;
  name.erase(0, kPrefix.size());
  const size_t separator = name.find("--");
  if (separator == std::string::npos) return std::nullopt;
  name.replace(separator, 2, "/");
  if (!is_model_reference(name)) return std::nullopt;
  return Repo{.type = RepoType::kModel, .id = name, .revision = commit};
}

std::optional<Repo> find_model_reference(const std::string& path) {
  if (has_hub_scheme(path)) return parse_model_reference(path);
  if (!is_model_reference(path)) return std::nullopt;
  const std::string parent = path.substr(0, path.find('/'));
  for (const std::string& folder : {path, parent}) {
    std::error_code error;
    if (fs::exists(folder, error)) return std::nullopt;
    if (fs::is_symlink(folder, error)) {
      throw usage_error("{}: links to {}, which does not exist; correct the link, or write hf://{} for the Hub", folder,
                        fs::read_symlink(folder, error).string(), path);
    }
  }
  return parse_model_reference(path);
}

}  // namespace vlmtrain::hub
