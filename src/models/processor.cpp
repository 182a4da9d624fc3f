#include "vlmtrain/models/processor.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "models/adapters/adapted_folder.h"
#include "models/checkpoints/auxiliary_files.h"
#include "models/checkpoints/config_checks.h"
#include "models/family.h"
#include "models/processing/preprocessor_config.h"
#include "vlmtrain/base/hash.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/models/adapter.h"
#include "vlmtrain/text/chat_template.h"

namespace vlmtrain::models {

namespace {

using nlohmann::ordered_json;
using JsonFileMap = std::map<std::string, ordered_json>;  // by file name

constexpr const char* kSeparateVideoFile = "video_preprocessor_config.json";

/// Returns the file's content, which is read once and edited in `documents`.
ordered_json& load_json_document(JsonFileMap& documents, const std::filesystem::path& folder, const std::string& file) {
  const auto [it, is_new] = documents.try_emplace(file);
  if (is_new) it->second = io::read_ordered_json(folder / file);
  return it->second;
}

/// Returns the settings that `copy` refers to: a section of the file, or the whole file.
ordered_json& get_settings_section(ordered_json& document, const ProcessorSettingsCopy& copy) {
  return copy.section.empty() ? document : document.at(copy.section);
}

/// Applies `edit` to all copies of a setting, so that they agree.
void edit_settings_copies(const std::vector<ProcessorSettingsCopy>& copies,
                          const ProcessorOverrides::EditFunction& edit, const std::filesystem::path& folder,
                          JsonFileMap& documents) {
  if (!edit) return;
  for (const ProcessorSettingsCopy& copy : copies) {
    ordered_json& settings = get_settings_section(load_json_document(documents, folder, copy.file), copy);
    for (const auto& key : find_differing_keys(copies.front().settings, copy.settings)) {
      settings[key] = ordered_json::parse(copies.front().settings.at(key).dump());
    }
    edit(settings);
  }
}

/// Applies `overrides` to the video settings. If these are in the image processor's file, writes
/// them to a file of their own, as transformers does.
void apply_video_overrides(const ProcessorOverrides& overrides, const std::filesystem::path& folder,
                           JsonFileMap& documents) {
  if (!overrides.edit_video_settings) return;
  const auto video_settings_copies = find_settings_copies(folder, MediaRole::kVideos);
  const bool uses_image_file =
      video_settings_copies.empty() || video_settings_copies.front().file == "preprocessor_config.json";
  if (!uses_image_file) {
    edit_settings_copies(video_settings_copies, overrides.edit_video_settings, folder, documents);
    return;
  }
  if (!overrides.creates_video_config) return;
  const auto copies =
      video_settings_copies.empty() ? find_settings_copies(folder, MediaRole::kImages) : video_settings_copies;
  if (copies.empty()) return;
  ordered_json settings = ordered_json::parse(copies.front().settings.dump());
  // These keys select the class of an image processor.
  for (const char* key : {"image_processor_type", "feature_extractor_type"}) settings.erase(key);
  settings["video_processor_type"] = overrides.video_processor_type;
  overrides.edit_video_settings(settings);
  documents[kSeparateVideoFile] = std::move(settings);
}

namespace fs = std::filesystem;

/// Returns whether the file may affect the processor: JSON, template, text and SentencePiece files,
/// but no index of weight files.
bool affects_samples(const fs::directory_entry& entry) {
  constexpr std::array<std::string_view, 4> kExtensions{".json", ".jinja", ".txt", ".model"};
  const std::string name = entry.path().filename().string();
  return entry.is_regular_file() && !name.ends_with(".index.json") &&
         std::ranges::any_of(kExtensions, [&](std::string_view extension) { return name.ends_with(extension); });
}

/// Adds the names and contents of the processor files in `folder`, in alphabetical order.
void hash_processor_files(ContentHash& hash, const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (affects_samples(entry)) files.push_back(entry.path());
  }
  std::ranges::sort(files);
  for (const auto& file : files) hash.add(file.filename().native()).add(io::read_file(file));
}

}  // namespace

ProcessorFiles make_processor_files(const std::filesystem::path& folder, const ProcessorSettings& settings,
                                    bool has_videos) {
  if (is_adapter(folder)) return make_processor_files(find_adapter_base(folder), settings, has_videos);
  if (const auto& adapter = settings.chat_template_folder; !adapter.empty() && is_adapter(adapter)) {
    ProcessorFiles result;
    call_with_adapted_folder(folder, adapter, [&](const AdaptedFolder& adapted_folder) {
      ProcessorSettings base_settings = settings;
      base_settings.chat_template_folder.clear();  // templates do not affect sizes
      result = make_processor_files(adapted_folder.path, base_settings, has_videos);
    });
    return result;
  }
  const auto config = read_model_config(folder);
  const Family& family = find_family(config, folder);
  if (family.make_processor_overrides == nullptr) return {};
  return rethrow_json_errors(folder, [&] {
    ProcessorOverrides overrides = family.make_processor_overrides(config, folder, settings, has_videos);
    JsonFileMap documents;
    apply_video_overrides(overrides, folder, documents);
    edit_settings_copies(find_settings_copies(folder, MediaRole::kImages), overrides.edit_image_settings, folder,
                         documents);
    ProcessorFiles result{.files = {}, .unsaved_settings = std::move(overrides.unsaved_settings)};
    for (const auto& [name, json] : documents) {
      const auto path = folder / name;
      if (std::filesystem::exists(path) && io::read_ordered_json(path) == json) continue;
      result.files.emplace(name, io::to_json_string(json, 2) + "\n");
    }
    return result;
  });
}

std::string compute_sample_shape_key(const fs::path& folder, const ProcessorSettings& settings) {
  if (is_adapter(folder)) return compute_sample_shape_key(find_adapter_base(folder), settings);
  ContentHash hash;
  hash_processor_files(hash, folder);
  // An external vision tower's config may give the image size.
  const nlohmann::json model_config = read_model_config(folder);
  for (const auto& [key, value] : model_config.items()) {
    if (!value.is_string() || value.get_ref<const std::string&>().empty()) continue;
    const auto config = folder / value.get<std::string>() / "config.json";
    if (std::error_code error; fs::is_regular_file(config, error)) hash.add(io::read_file(config));
  }
  hash.add(fmt::format("{} {} {} {} {} {} {} {} {} {}", settings.max_length, static_cast<int>(settings.on_too_long),
                       settings.max_images_per_sample.value_or(-1), settings.image_max_pixels.value_or(-1),
                       settings.video_fps, settings.video_max_frames, static_cast<int>(settings.video_layout),
                       static_cast<int>(settings.train_on), settings.chat_template, settings.chat_template_date));
  hash.add(static_cast<uint64_t>(settings.boxes.output)).add(static_cast<uint64_t>(settings.boxes.orientation));
  if (std::error_code error; fs::is_regular_file(settings.chat_template, error)) {
    hash.add(io::read_file(settings.chat_template));
  }
  if (!settings.chat_template_folder.empty()) {
    if (is_adapter(settings.chat_template_folder)) {
      const auto files = merge_auxiliary_files(folder, settings.chat_template_folder);
      if (files != read_auxiliary_files(folder)) {
        for (const auto& [name, content] : files) hash.add(name).add(content);
      }
    }
    for (const auto& [name, source] : text::load_checkpoint_templates(settings.chat_template_folder))
      hash.add(name).add(source.jinja_source);
  }
  return hash.to_hex();
}

}  // namespace vlmtrain::models
