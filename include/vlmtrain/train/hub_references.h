#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "vlmtrain/hub/snapshot.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::train {

/// Returns the folder of a model: `path` itself, or its snapshot in the Hugging Face cache if it is
/// a reference to the Hub, after downloading what is missing. The commit is commits[path] if that
/// exists, and stored there if not. Throws as hub::fetch_model().
std::string fetch_model_folder(const std::string& path, hub::ModelFiles files,
                               std::map<std::string, std::string>& commits);
/// Same at the commit that the reference has in the cache or on the Hub.
std::string fetch_model_folder(const std::string& path, hub::ModelFiles files = hub::ModelFiles::kWithWeights);

/// Throws data_error if `snapshot`, the folder of model.path `path` in the cache, is an adapter.
void check_is_model(const std::string& path, const std::filesystem::path& snapshot);

/// Makes model.path and model.adapter available in the Hugging Face cache if they are references to
/// the Hub. Sets `path_in_cache` and `adapter_in_cache`, and stores the commits in hub.commits. A
/// reference in hub.commits of output.dir/config.yaml has that commit, so a resumed run reads what
/// it read before. Throws as hub::fetch_model(), and data_error if the model is an adapter.
void fetch_hub_models(Config& config, hub::ModelFiles files, hub::Freshness freshness = hub::Freshness::kCached);

/// Makes the split of a reference such as hf://datasets/ORG/NAME available at commits[reference] or,
/// if that does not exist, at the commit in the cache or on the Hub. Throws as hub::fetch_dataset().
hub::DatasetSnapshot fetch_hub_dataset(const std::string& reference, const std::map<std::string, std::string>& commits,
                                       hub::Freshness freshness = hub::Freshness::kCached);

/// Same as fetch_hub_models() for data.train and data.eval. Throws as hub::fetch_dataset().
void fetch_hub_data(Config& config, hub::Freshness freshness = hub::Freshness::kCached);

}  // namespace vlmtrain::train
