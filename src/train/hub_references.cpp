#include "vlmtrain/train/hub_references.h"

#include <spdlog/spdlog.h>

#include <system_error>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/hub/settings.h"
#include "vlmtrain/hub/snapshot_path.h"
#include "vlmtrain/models/adapter.h"

namespace vlmtrain::train {

namespace {

/// Adds the commits in the configuration that the run in output.dir saved.
void add_saved_commits(Config& config) {
  std::error_code error;
  const auto file = std::filesystem::path(config.output.dir) / "config.yaml";
  if (config.output.dir.empty() || !std::filesystem::is_regular_file(file, error)) return;
  Config saved;
  try {
    declare_options(saved).read(file, {});
  } catch (const UserError&) {
    // It has a key of another version. Valid keys are set even so.
  }
  config.hub.commits.insert(saved.hub.commits.begin(), saved.hub.commits.end());
}

/// Sets repo.revision to commits[name] if it exists. Throws UserError (kUsage) if that is not a
/// commit.
void pin(hub::Repo& repo, const std::string& name, const std::map<std::string, std::string>& commits) {
  const auto commit = commits.find(name);
  if (commit == commits.end()) return;
  if (!hub::is_commit(commit->second)) {
    throw usage_error("{}: {} of {} is not a commit; write its 40 hexadecimal digits, or remove the entry",
                      keys::hub::kCommits, make_excerpt(commit->second), name);
  }
  repo.revision = commit->second;
}

/// See fetch_model_folder().
std::string fetch_folder(const std::string& path, hub::ModelFiles files, std::map<std::string, std::string>& commits,
                         hub::Freshness freshness) {
  auto repo = hub::find_model_reference(path);
  // A run that read a commit keeps it, even if a folder of this name exists now.
  if (!repo && commits.contains(path)) repo = hub::parse_model_reference(path);
  if (!repo) {
    if (hub::is_model_reference(path)) spdlog::info("{}: a folder on this machine; the Hub is not used", path);
    return path;
  }
  pin(*repo, path, commits);
  const auto snapshot = hub::fetch_model(hub::read_hub_settings(), *repo, files, freshness);
  spdlog::info("{}: commit {} in {}", path, snapshot.repo.revision, snapshot.folder.string());
  commits[path] = snapshot.repo.revision;
  return snapshot.folder.string();
}

}  // namespace

std::string fetch_model_folder(const std::string& path, hub::ModelFiles files,
                               std::map<std::string, std::string>& commits) {
  return fetch_folder(path, files, commits, hub::Freshness::kCached);
}

std::string fetch_model_folder(const std::string& path, hub::ModelFiles files) {
  std::map<std::string, std::string> commits;
  return fetch_model_folder(path, files, commits);
}

void check_is_model(const std::string& path, const std::filesystem::path& snapshot) {
  if (snapshot.empty() || !models::is_adapter(snapshot) || std::filesystem::exists(snapshot / "config.json")) return;
  throw data_error("{}: {} is an adapter; set {} to it, and {} to its base model", keys::model::kPath, path,
                   keys::model::kAdapter, keys::model::kPath);
}

void fetch_hub_models(Config& config, hub::ModelFiles files, hub::Freshness freshness) {
  add_saved_commits(config);
  const auto fetch = [&](const std::string& path, hub::ModelFiles requested) {
    const std::string folder = fetch_folder(path, requested, config.hub.commits, freshness);
    return folder == path ? "" : folder;
  };
  config.model.path_in_cache = fetch(config.model.path, files);
  check_is_model(config.model.path, config.model.path_in_cache);
  config.model.adapter_in_cache = fetch(config.model.adapter, hub::ModelFiles::kAdapter);
}

hub::DatasetSnapshot fetch_hub_dataset(const std::string& reference, const std::map<std::string, std::string>& commits,
                                       hub::Freshness freshness) {
  auto dataset = hub::parse_dataset_reference(reference);
  pin(dataset.repo, reference, commits);
  return hub::fetch_dataset(hub::read_hub_settings(), dataset, freshness);
}

void fetch_hub_data(Config& config, hub::Freshness freshness) {
  add_saved_commits(config);
  const auto fetch = [&commits = config.hub.commits, freshness](const std::string& path) {
    if (hub::has_hub_scheme(path)) commits[path] = fetch_hub_dataset(path, commits, freshness).repo.revision;
  };
  for (const auto& source : config.data.train.sources()) fetch(source.path);
  fetch(config.data.eval);
}

}  // namespace vlmtrain::train
