#include "vlmtrain/hub/snapshot_path.h"

#include <system_error>

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
  if (path.starts_with("hf://")) return parse_model_reference(path);
  std::error_code error;
  if (!is_model_reference(path) || fs::exists(path, error) || fs::exists(path.substr(0, path.find('/')), error))
    return std::nullopt;
  return parse_model_reference(path);
}

}  // namespace vlmtrain::hub
