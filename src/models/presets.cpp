#include "models/presets.h"

#include <c10/core/ScalarType.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <optional>

#include "models/checkpoints/auxiliary_files.h"
#include "models/checkpoints/load_weights.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/options.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/processor.h"
#include "vlmtrain/text/tokenizer.h"

namespace vlmtrain::models {

namespace {

/// Throws UserError (kUsage) for an unknown preset; `source` names the option in the message, and
/// `problem` what is wrong with its value.
void check_preset_name(const std::string& preset, std::string_view source,
                       std::string_view problem = "unknown preset") {
  const auto names = list_presets();
  if (std::find(names.begin(), names.end(), preset) != names.end()) return;
  auto suggestion = find_hub_preset(preset);
  if (!suggestion) suggestion = find_nearest_word(preset, names);
  throw usage_error("{} {}: {}; {}available are {}", source, preset, problem,
                    suggestion ? fmt::format("did you mean {}? ", *suggestion) : "", fmt::join(names, ", "));
}

void write_embedded_files(const std::string& preset, const std::filesystem::path& folder) {
  for (const auto& [path, content] : resources()) {
    if (path.starts_with(preset + "/")) io::write_file(folder / path.substr(preset.size() + 1), content);
  }
}

/// Returns the preset's config.json; an empty object if it has none.
nlohmann::ordered_json read_embedded_config(const std::string& preset) {
  const auto config = resources().find(preset + "/config.json");
  if (config == resources().end()) return nlohmann::ordered_json::object();
  return io::parse_ordered_json(config->second, config->first);
}

/// Returns the preset's mask_config; null if its model predicts no masks.
nlohmann::ordered_json read_embedded_mask_config(const std::string& preset) {
  return read_embedded_config(preset).value("mask_config", nlohmann::ordered_json());
}

/// Returns the tokenizer.json in `content` with the mask token or the image token of the preset's
/// config.json added. Models assembled from a text model need these tokens, which the text model's
/// own tokenizer does not have. `source` names the file in errors.
std::string add_preset_tokens(const std::string& preset, std::string content, const std::string& source) {
  const auto config = read_embedded_config(preset);
  if (config.contains("image_token")) {
    content = text::add_token(content, io::get<std::string>(config, "image_token", "config.json"), source).json;
  }
  const auto mask_config = read_embedded_mask_config(preset);
  if (!mask_config.is_object()) return content;
  return text::add_token(content, io::get<std::string>(mask_config, "mask_token", "mask_config"), source).json;
}

/// Copies the file `tokenizer` into a preset's folder. Throws UserError (kBadData) if it is invalid
/// or belongs to another model.
void install_tokenizer(const std::string& preset, const std::filesystem::path& tokenizer,
                       const std::filesystem::path& folder) {
  const std::string content = io::read_file(tokenizer);
  text::Tokenizer::from_json(content, tokenizer.string());
  io::write_file(folder / "tokenizer.json", add_preset_tokens(preset, content, tokenizer.string()));
  // The preset's added_tokens.json has the ids of the published tokenizer, which may differ from
  // those of `tokenizer`. tokenizer.json has all tokens, so the file is not needed.
  std::filesystem::remove(folder / "added_tokens.json");
  try {
    load_processor(folder, {});
  } catch (const UserError& error) {
    // The message must not name the temporary folder that `folder` may be in.
    std::string reason = error.what();
    const std::string prefix = (folder / "").string();
    for (size_t pos = reason.find(prefix); pos != std::string::npos; pos = reason.find(prefix)) {
      reason.erase(pos, prefix.size());
    }
    throw data_error("--tokenizer {}: does not fit {}, which needs the tokenizer of {}: {}", tokenizer.string(), preset,
                     get_tokenizer_source(preset), reason);
  }
}

}  // namespace

void write_preset_checkpoint(const std::string& preset, const std::filesystem::path& tokenizer, uint64_t seed,
                             const std::filesystem::path& out, at::ScalarType dtype) {
  check_preset_name(preset, "--preset");
  prepare_output_folder(out);
  io::AtomicDirectory folder(out);
  write_preset_files(preset, tokenizer, folder.path());
  write_initial_weights(folder.path(), seed, dtype);
  folder.commit();
}

void write_preset_files(const std::string& preset, const std::filesystem::path& tokenizer,
                        const std::filesystem::path& folder) {
  check_preset_name(preset, "--preset");
  write_embedded_files(preset, folder);
  const bool has_tokenizer = std::filesystem::exists(folder / "tokenizer.json");
  if (has_tokenizer && !tokenizer.empty()) {
    throw usage_error("--tokenizer: preset {} has its own, whose ids are in its config.json; omit the option", preset);
  }
  if (!has_tokenizer && tokenizer.empty()) {
    throw usage_error("--preset {}: has no tokenizer; give the tokenizer.json of {} with --tokenizer", preset,
                      get_tokenizer_source(preset));
  }
  if (!has_tokenizer) install_tokenizer(preset, tokenizer, folder);
}

std::optional<std::string> find_hub_preset(const std::string& hub_name) {
  std::string name = hub_name.substr(hub_name.rfind('/') + 1);
  name.resize(std::min(name.find('@'), name.size()));
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const std::string_view suffix : {"-instruct", "-hf", "-it"}) {
    if (name.ends_with(suffix)) name.resize(name.size() - suffix.size());
  }
  const auto names = list_presets();
  return std::ranges::find(names, name) == names.end() ? std::nullopt : std::optional(name);
}

nlohmann::ordered_json load_preset_config(const std::string& preset) {
  check_preset_name(preset, "--preset");
  return read_embedded_config(preset);
}

nlohmann::ordered_json load_preset_mask_config(const std::string& preset) {
  check_preset_name(preset, "--preset");
  auto mask_config = read_embedded_mask_config(preset);
  if (mask_config.is_object()) return mask_config;
  auto names = list_presets();
  std::erase_if(names, [](const std::string& name) { return !read_embedded_mask_config(name).is_object(); });
  throw usage_error("--preset {}: predicts no masks; --text-model and --mask-model are for {}", preset,
                    fmt::join(names, ", "));
}

void write_preset_config(const std::string& preset, const std::filesystem::path& folder) {
  check_preset_name(preset, "model", "the folder does not exist, and it is an unknown preset");
  write_embedded_files(preset, folder);
}

}  // namespace vlmtrain::models
