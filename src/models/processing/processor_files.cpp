#include "vlmtrain/models/processor_files.h"

#include <algorithm>

#include "models/adapters/adapted_folder.h"
#include "models/checkpoints/from_settings.h"
#include "models/checkpoints/read_model_config.h"
#include "models/processing/processor_changes.h"
#include "models/processing/processor_copies.h"
#include "models/registry.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/json_text.h"
#include "vlmtrain/models/adapter.h"

namespace vlmtrain::models {

namespace {

using nlohmann::ordered_json;
using Documents = std::map<std::string, ordered_json>;  // by file name

constexpr const char* kVideoFile = "video_preprocessor_config.json";

ordered_json& load_document(Documents& documents, const std::filesystem::path& folder, const std::string& file) {
  const auto [it, is_new] = documents.try_emplace(file);
  if (is_new) it->second = io::read_ordered_json(folder / file);
  return it->second;
}

ordered_json& get_settings(ordered_json& document, const ProcessorCopy& copy) {
  return copy.section.empty() ? document : document.at(copy.section);
}

/// Copies that say something else than the one that counts are brought in line with it.
void edit_copies(const std::vector<ProcessorCopy>& copies, const ProcessorChanges::Edit& edit,
                 const std::filesystem::path& folder, Documents& documents) {
  if (!edit) return;
  for (const ProcessorCopy& copy : copies) {
    ordered_json& settings = get_settings(load_document(documents, folder, copy.file), copy);
    for (const auto& key : find_differing_keys(copies.front().settings, copy.settings)) {
      settings[key] = ordered_json::parse(copies.front().settings.at(key).dump());
    }
    edit(settings);
  }
}

/// The settings of videos that stand in the images' file get a file of their own, as transformers writes it.
void edit_videos(const ProcessorChanges& changes, const std::filesystem::path& folder, Documents& documents) {
  if (!changes.videos) return;
  const auto video_copies = find_copies(folder, MediaRole::kVideos);
  const bool uses_image_file = video_copies.empty() || video_copies.front().file == "preprocessor_config.json";
  if (!uses_image_file) {
    edit_copies(video_copies, changes.videos, folder, documents);
    return;
  }
  if (!changes.videos_need_file) return;
  const auto copies = video_copies.empty() ? find_copies(folder, MediaRole::kImages) : video_copies;
  if (copies.empty()) return;
  ordered_json settings = ordered_json::parse(copies.front().settings.dump());
  for (const char* key : {"image_processor_type", "feature_extractor_type"}) settings.erase(key);
  settings["video_processor_type"] = changes.video_processor_type;
  changes.videos(settings);
  documents[kVideoFile] = std::move(settings);
}

}  // namespace

ProcessorFiles make_processor_files(const std::filesystem::path& folder, const ProcessorSettings& settings,
                                    bool has_videos) {
  if (is_adapter(folder)) return make_processor_files(find_adapter_base(folder), settings, has_videos);
  if (const auto& adapter = settings.template_folder; !adapter.empty() && is_adapter(adapter)) {
    ProcessorFiles result;
    visit_adapted_folder(folder, adapter, [&](const AdaptedFolder& adapted) {
      ProcessorSettings base_settings = settings;
      base_settings.template_folder.clear();  // templates do not matter here
      result = make_processor_files(adapted.path, base_settings, has_videos);
    });
    return result;
  }
  const auto config = read_model_config(folder);
  const Family& family = find_family(config, folder);
  if (family.make_processor_changes == nullptr) return {};
  return rethrow_json_errors(folder, [&] {
    ProcessorChanges changes = family.make_processor_changes(config, folder, settings, has_videos);
    Documents documents;
    edit_videos(changes, folder, documents);
    edit_copies(find_copies(folder, MediaRole::kImages), changes.images, folder, documents);
    ProcessorFiles result{.files = {}, .unsaved_settings = std::move(changes.unsaved_settings)};
    for (const auto& [name, json] : documents) {
      const auto path = folder / name;
      if (std::filesystem::exists(path) && io::read_ordered_json(path) == json) continue;
      result.files.emplace(name, io::to_json_string(json, 2) + "\n");
    }
    return result;
  });
}

}  // namespace vlmtrain::models
