#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <string>

#include "app/commands/commands.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/hub/settings.h"
#include "vlmtrain/hub/snapshot.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/train/config.h"
#include "vlmtrain/train/hub_references.h"

namespace vlmtrain::app {

namespace {

using Json = nlohmann::ordered_json;

Json download_dataset(const std::string& reference) {
  const auto snapshot =
      hub::fetch_dataset(hub::read_hub_settings(), hub::parse_dataset_reference(reference), hub::Freshness::kNewest);
  Json files = Json::array();
  for (const auto& file : snapshot.files) files.push_back(file.string());
  spdlog::info("{}: commit {}, {}", reference, snapshot.repo.revision,
               pluralize(static_cast<int64_t>(snapshot.files.size()), "file"));
  return {{"reference", reference}, {"commit", snapshot.repo.revision}, {"files", std::move(files)}};
}

Json download_model(const std::string& reference, hub::ModelFiles files) {
  const auto snapshot =
      hub::fetch_model(hub::read_hub_settings(), hub::parse_model_reference(reference), files, hub::Freshness::kNewest);
  spdlog::info("{}: commit {} in {}", reference, snapshot.repo.revision, snapshot.folder.string());
  return {{"reference", reference}, {"commit", snapshot.repo.revision}, {"folder", snapshot.folder.string()}};
}

/// Downloads what the configuration names, at the commits that a run would use.
Json download_config(const DownloadArguments& arguments, hub::ModelFiles files) {
  train::Config config;
  train::declare_options(config).read(arguments.config, {});
  train::fetch_hub_models(config, files, hub::Freshness::kVerified);
  train::fetch_hub_data(config, hub::Freshness::kVerified);
  if (config.hub.commits.empty()) spdlog::info("{}: names nothing on the Hub", arguments.config);
  Json downloads = Json::array();
  for (const auto& [reference, commit] : config.hub.commits)
    downloads.push_back({{"reference", reference}, {"commit", commit}});
  return downloads;
}

}  // namespace

ExitCode download(const DownloadArguments& arguments) {
  init_logging(/*quiet=*/false);
  if (arguments.references.empty() && arguments.config.empty())
    throw usage_error("download: names nothing to download; give ORG/NAME, hf://datasets/ORG/NAME, or --config FILE");
  const auto files = arguments.no_weights ? hub::ModelFiles::kConfig : hub::ModelFiles::kWithWeights;
  Json downloads = arguments.config.empty() ? Json::array() : download_config(arguments, files);
  for (const std::string& reference : arguments.references) {
    downloads.push_back(hub::is_dataset_reference(reference) ? download_dataset(reference)
                                                             : download_model(reference, files));
  }
  if (arguments.json) fmt::print("{}\n", io::to_json_string(Json{{"downloads", std::move(downloads)}}));
  return ExitCode::kSuccess;
}

}  // namespace vlmtrain::app
