#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "vlmtrain/hub/repo.h"
#include "vlmtrain/hub/settings.h"

namespace vlmtrain::hub {

/// The files of a model that are needed.
enum class ModelFiles {
  kConfig,       ///< configuration, tokenizer, chat templates
  kWithWeights,  ///< these and the weights, of a model or an adapter
  kAdapter,      ///< same, but a model is an error
};

/// How the cache is used.
enum class Freshness {
  kCached,    ///< its commit of a branch or tag is used, without network if it has all files
  kVerified,  ///< same, but the hashes of the files are checked, and damaged files replaced
  kNewest,    ///< same as kVerified, but the network, unless it fails, gives the commit of a branch or tag
};

/// A commit of a repository in the local cache.
struct Snapshot {
  Repo repo;                     ///< its revision is the commit
  std::filesystem::path folder;  ///< snapshots/COMMIT of the cache; has the requested files
};

/// Makes the files of a model available in the cache and returns their commit. Downloads what is
/// missing, unless the settings forbid the network.
///
/// Throws UserError: kUsage if the repository or revision does not exist or needs another token,
/// kBadData if it has no model in a known layout, if the server sends other content than it lists,
/// or if the network is forbidden and the cache lacks a file; kFailed if the network fails or the disk is full.
/// Thread-safe; several processes may share a cache.
Snapshot fetch_model(const HubSettings& settings, const Repo& repo, ModelFiles files,
                     Freshness freshness = Freshness::kCached);

/// Returns the same commit if the cache has all of these files, without network; else nothing.
std::optional<Snapshot> find_cached_model(HubSettings settings, const Repo& repo, ModelFiles files);

/// A split of a data set in the local cache.
struct DatasetSnapshot {
  Repo repo;                                 ///< its revision is the commit
  std::vector<std::filesystem::path> files;  ///< in natural order; at least one
};

/// Same for the data files of a split. The files of configurations and splits are those in the
/// metadata of README.md, else those whose names or folders name the split, as in `datasets`
/// (https://huggingface.co/docs/datasets/repository_structure). Throws UserError (kUsage) also if
/// the data set has no such configuration or split.
DatasetSnapshot fetch_dataset(const HubSettings& settings, const DatasetReference& reference,
                              Freshness freshness = Freshness::kCached);

}  // namespace vlmtrain::hub
