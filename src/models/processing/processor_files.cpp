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

ordered_json& document(Documents& documents, const std::filesystem::path& folder, const std::string& file) {
  const auto [found, is_new] = documents.try_emplace(file);
  if (is_new) found->second = io::read_ordered_json(folder / file);
  return found->second;
}

ordered_json& settings_of(ordered_json& document, const ProcessorCopy& copy) {
  return copy.section.empty() ? document : document.at(copy.section);
}

/// Copies that say something else than the one that counts are brought in line with it.
void edit_copies(const std::vector<ProcessorCopy>& copies, const ProcessorChanges::Edit& edit,
                 const std::filesystem::path& folder, Documents& documents) {
  if (!edit) return;
  for (const ProcessorCopy& copy : copies) {
    ordered_json& settings = settings_of(document(documents, folder, copy.file), copy);
    for (const auto& key : differing_keys(copies.front().settings, copy.settings)) {
      settings[key] = ordered_json::parse(copies.front().settings.at(key).dump());
    }
    edit(settings);
  }
}

/// The settings of videos that stand in the images' file get a file of their own, as transformers writes it.
void edit_videos(const ProcessorChanges& changes, const std::filesystem::path& folder, Documents& documents) {
  if (!changes.videos) return;
  const auto own = find_copies(folder, MediaRole::kVideos);
  const bool are_images = own.empty() || own.front().file == "preprocessor_config.json";
  if (!are_images) {
    edit_copies(own, changes.videos, folder, documents);
    return;
  }
  if (!changes.videos_need_file) return;
  const auto copies = own.empty() ? find_copies(folder, MediaRole::kImages) : own;
  if (copies.empty()) return;
  ordered_json settings = ordered_json::parse(copies.front().settings.dump());
  for (const char* key : {"image_processor_type", "feature_extractor_type"}) settings.erase(key);
  settings["video_processor_type"] = changes.video_processor_type;
  changes.videos(settings);
  documents[kVideoFile] = std::move(settings);
}

}  // namespace

ProcessorFiles processor_files_to_save(const std::filesystem::path& folder, const ProcessorSettings& settings,
                                       bool has_videos) {
  if (is_adapter(folder)) return processor_files_to_save(base_of_adapter(folder), settings, has_videos);
  if (const auto& adapter = settings.template_folder; !adapter.empty() && is_adapter(adapter)) {
    ProcessorFiles saved;
    with_adapted_folder(folder, adapter, [&](const AdaptedFolder& adapted) {
      ProcessorSettings chosen = settings;
      chosen.template_folder.clear();  // templates do not matter here
      saved = processor_files_to_save(adapted.path, chosen, has_videos);
    });
    return saved;
  }
  const auto config = read_model_config(folder);
  const Family& family = family_of(config, folder);
  if (family.processor_changes == nullptr) return {};
  return from_settings(folder, [&] {
    ProcessorChanges changes = family.processor_changes(config, folder, settings, has_videos);
    Documents documents;
    edit_videos(changes, folder, documents);
    edit_copies(find_copies(folder, MediaRole::kImages), changes.images, folder, documents);
    ProcessorFiles saved{.files = {}, .not_saved = std::move(changes.not_saved)};
    for (const auto& [name, json] : documents) {
      const auto path = folder / name;
      if (std::filesystem::exists(path) && io::read_ordered_json(path) == json) continue;
      saved.files.emplace(name, io::json_text(json, 2) + "\n");
    }
    return saved;
  });
}

}  // namespace vlmtrain::models
