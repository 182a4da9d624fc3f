#include "vlmtrain/models/sample_key.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "models/adapters/auxiliary_files.h"
#include "models/checkpoints/companion_files.h"
#include "models/checkpoints/read_model_config.h"
#include "vlmtrain/base/content_hash.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/models/adapter.h"
#include "vlmtrain/text/checkpoint_templates.h"

namespace vlmtrain::models {

namespace {

namespace fs = std::filesystem;

/// Any file but the weights may be one of a family's processor: which, only the family knows.
bool affects_samples(const fs::directory_entry& entry) {
  constexpr std::array<std::string_view, 4> kExtensions{".json", ".jinja", ".txt", ".model"};
  const std::string name = entry.path().filename().string();
  return entry.is_regular_file() && !name.ends_with(".index.json") &&
         std::ranges::any_of(kExtensions, [&](std::string_view extension) { return name.ends_with(extension); });
}

void add_folder(ContentHash& hash, const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (affects_samples(entry)) files.push_back(entry.path());
  }
  std::ranges::sort(files);
  for (const auto& file : files) hash.add(file.filename().native()).add(io::read_file(file));
}

}  // namespace

std::string compute_sample_key(const fs::path& folder, const ProcessorSettings& settings) {
  if (is_adapter(folder)) return compute_sample_key(find_adapter_base(folder), settings);
  ContentHash hash;
  add_folder(hash, folder);
  // A tower that lies in a folder of its own may say how large its pictures are.
  const nlohmann::json model_config = read_model_config(folder);
  for (const auto& [key, value] : model_config.items()) {
    if (!value.is_string() || value.get_ref<const std::string&>().empty()) continue;
    const auto config = folder / value.get<std::string>() / "config.json";
    if (std::error_code error; fs::is_regular_file(config, error)) hash.add(io::read_file(config));
  }
  hash.add(fmt::format("{} {} {} {} {} {} {} {} {}", settings.max_length, static_cast<int>(settings.on_too_long),
                       settings.max_images_per_sample.value_or(-1), settings.image_max_pixels.value_or(-1),
                       settings.video_fps, settings.video_max_frames, static_cast<int>(settings.video_layout),
                       settings.chat_template, settings.chat_template_date));
  if (std::error_code error; fs::is_regular_file(settings.chat_template, error)) {
    hash.add(io::read_file(settings.chat_template));
  }
  if (!settings.template_folder.empty()) {
    if (is_adapter(settings.template_folder)) {
      const auto files = merge_auxiliary_files(folder, settings.template_folder);
      if (files != read_auxiliary_files(folder)) {
        for (const auto& [name, content] : files) hash.add(name).add(content);
      }
    }
    for (const auto& [name, source] : text::load_checkpoint_templates(settings.template_folder))
      hash.add(name).add(source.jinja);
  }
  return hash.hex();
}

}  // namespace vlmtrain::models
