#include "models/presets.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>

#include "models/checkpoints/new_folder.h"
#include "models/checkpoints/weights.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/options.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/text/add_token.h"
#include "vlmtrain/text/tokenizer.h"

namespace vlmtrain::models {

std::string tokenizer_source(const std::string& preset) {
  static const std::map<std::string, std::string> sources{
      {"llava-1.5-13b", "llava-hf/llava-1.5-13b-hf"},
      {"llava-1.5-7b", "llava-hf/llava-1.5-7b-hf"},
      {"brain-llava-7b", "microsoft/llava-med-v1.5-mistral-7b"},
      {"gemma-3-12b", "google/gemma-3-12b-it"},
      {"gemma-3-27b", "google/gemma-3-27b-it"},
      {"gemma-3-4b", "google/gemma-3-4b-it"},
      {"medgemma-4b", "google/medgemma-4b-it"},
      {"internvl3-1b", "OpenGVLab/InternVL3-1B-hf"},
      {"internvl3-2b", "OpenGVLab/InternVL3-2B-hf"},
      {"internvl3-8b", "OpenGVLab/InternVL3-8B-hf"},
      {"internvl3-14b", "OpenGVLab/InternVL3-14B-hf"},
      {"internvl3-38b", "OpenGVLab/InternVL3-38B-hf"},
      {"internvl3.5-1b", "OpenGVLab/InternVL3_5-1B-HF"},
      {"internvl3.5-2b", "OpenGVLab/InternVL3_5-2B-HF"},
      {"internvl3.5-4b", "OpenGVLab/InternVL3_5-4B-HF"},
      {"internvl3.5-8b", "OpenGVLab/InternVL3_5-8B-HF"},
      {"internvl3.5-14b", "OpenGVLab/InternVL3_5-14B-HF"},
      {"internvl3.5-38b", "OpenGVLab/InternVL3_5-38B-HF"},
      {"llava-med-7b", "microsoft/llava-med-v1.5-mistral-7b"},
      {"prs-med-7b", "microsoft/llava-med-v1.5-mistral-7b"},
      {"nanovlm-222m", "HuggingFaceTB/cosmo2-tokenizer"},
      {"nanovlm-460m", "HuggingFaceTB/SmolLM2-360M-Instruct"},
      {"qwen2-vl-2b", "Qwen/Qwen2-VL-2B-Instruct"},
      {"qwen2.5-vl-3b", "Qwen/Qwen2.5-VL-3B-Instruct"},
      {"qwen2.5-vl-7b", "Qwen/Qwen2.5-VL-7B-Instruct"},
      {"qwen3-vl-2b", "Qwen/Qwen3-VL-2B-Instruct"},
      {"qwen3-vl-4b", "Qwen/Qwen3-VL-4B-Instruct"},
      {"qwen3-vl-8b", "Qwen/Qwen3-VL-8B-Instruct"},
      {"qwen3-vl-32b", "Qwen/Qwen3-VL-32B-Instruct"},
      {"smolvlm2-2.2b", "HuggingFaceTB/SmolVLM2-2.2B-Instruct"},
      {"smolvlm2-256m-video", "HuggingFaceTB/SmolVLM2-256M-Video-Instruct"},
      {"smolvlm2-500m-video", "HuggingFaceTB/SmolVLM2-500M-Video-Instruct"},
      {"smolvlm-2.2b", "HuggingFaceTB/SmolVLM-Instruct"},
      {"smolvlm-256m", "HuggingFaceTB/SmolVLM-256M-Instruct"},
      {"smolvlm-500m", "HuggingFaceTB/SmolVLM-500M-Instruct"}};
  const auto found = sources.find(preset);
  return found == sources.end() ? "" : found->second;
}

namespace {

/// `given_as` is what the message calls the name.
void check_known(const std::string& preset, std::string_view given_as) {
  const auto names = preset_names();
  if (std::find(names.begin(), names.end(), preset) != names.end()) return;
  // A name on the Hub, or what stands behind its owner.
  std::string word = preset.substr(preset.rfind('/') + 1);
  std::ranges::transform(word, word.begin(), [](unsigned char letter) { return std::tolower(letter); });
  for (const std::string_view ending : {"-instruct", "-hf", "-it"}) {
    if (word.ends_with(ending)) word.resize(word.size() - ending.size());
  }
  const bool is_one = std::ranges::find(names, word) != names.end();
  const auto near = is_one ? std::optional(word) : nearest(preset, names);
  if (preset.find('/') != std::string::npos && !is_one) {
    throw usage_error(
        "{} {}: there is no such folder, and nothing is downloaded: fetch it first (`hf download`), or name a preset "
        "in "
        "its place: {}",
        given_as, preset, fmt::join(names, ", "));
  }
  throw usage_error("{} {}: unknown preset; {}the known ones are {}", given_as, preset,
                    near ? fmt::format("did you mean {}? ", *near) : "", fmt::join(names, ", "));
}

void write_files(const std::string& preset, const std::filesystem::path& folder) {
  for (const auto& [path, content] : resources()) {
    if (path.starts_with(preset + "/")) io::write_file(folder / path.substr(preset.size() + 1), content);
  }
}

/// Its config.json; an empty object where it has none.
nlohmann::ordered_json config_in(const std::string& preset) {
  const auto config = resources().find(preset + "/config.json");
  if (config == resources().end()) return nlohmann::ordered_json::object();
  return io::parse_ordered_json(config->second, config->first);
}

/// Of a preset whose model draws masks; null for another.
nlohmann::ordered_json masks_in(const std::string& preset) {
  return config_in(preset).value("mask_config", nlohmann::ordered_json());
}

/// A tokenizer.json as the preset wants it: with the tokens that stand for a mask and for a feature of a volume, where
/// its model has such.
std::string completed_tokenizer(const std::string& preset, std::string content, const std::string& source) {
  const auto config = config_in(preset);
  if (config.contains("image_token")) {
    content = text::with_token(content, io::get<std::string>(config, "image_token", "config.json"), source).json;
  }
  const auto masks = masks_in(preset);
  if (!masks.is_object()) return content;
  return text::with_token(content, io::get<std::string>(masks, "mask_token", "mask_config"), source).json;
}

/// Copies `tokenizer` into a preset's folder. data_error where it is none, or none for the preset.
void put_tokenizer(const std::string& preset, const std::filesystem::path& tokenizer,
                   const std::filesystem::path& folder) {
  const std::string content = io::read_file(tokenizer);
  text::Tokenizer::from_json(content, tokenizer.string());
  io::write_file(folder / "tokenizer.json", completed_tokenizer(preset, content, tokenizer.string()));
  // Its ids are those of the published tokenizer, which this need not be; tokenizer.json has all tokens.
  std::filesystem::remove(folder / "added_tokens.json");
  try {
    load_processor(folder, {});
  } catch (const UserError& error) {
    std::string reason = error.what();
    const std::string prefix = (folder / "").string();
    for (size_t at = reason.find(prefix); at != std::string::npos; at = reason.find(prefix)) {
      reason.erase(at, prefix.size());
    }
    throw data_error("--tokenizer {}: is no tokenizer for {}, which wants that of {}: {}", tokenizer.string(), preset,
                     tokenizer_source(preset), reason);
  }
}

}  // namespace

void write_preset(const std::string& preset, const std::filesystem::path& tokenizer, uint64_t seed,
                  const std::filesystem::path& out, at::ScalarType dtype) {
  check_known(preset, "--preset");
  prepare_new_folder(out);
  io::AtomicDirectory folder(out);
  write_preset_files(preset, tokenizer, folder.path());
  complete_with_initial_weights(folder.path(), seed, dtype);
  folder.commit();
}

void write_preset_files(const std::string& preset, const std::filesystem::path& tokenizer,
                        const std::filesystem::path& folder) {
  check_known(preset, "--preset");
  write_files(preset, folder);
  const bool has_own = std::filesystem::exists(folder / "tokenizer.json");
  if (has_own && !tokenizer.empty()) {
    throw usage_error("--tokenizer: preset {} comes with its own, whose ids its config.json names; leave it out",
                      preset);
  }
  if (!has_own && tokenizer.empty()) {
    throw usage_error("--preset {}: comes without a tokenizer; give the tokenizer.json of {} with --tokenizer", preset,
                      tokenizer_source(preset));
  }
  if (!has_own) put_tokenizer(preset, tokenizer, folder);
}

nlohmann::ordered_json config_of_preset(const std::string& preset) {
  check_known(preset, "--preset");
  return config_in(preset);
}

nlohmann::ordered_json mask_config_of_preset(const std::string& preset) {
  check_known(preset, "--preset");
  auto masks = masks_in(preset);
  if (masks.is_object()) return masks;
  auto names = preset_names();
  std::erase_if(names, [](const std::string& name) { return !masks_in(name).is_object(); });
  throw usage_error(
      "--preset {}: draws no masks, so nothing is put together with --text-model and --mask-model; these are for {}",
      preset, fmt::join(names, ", "));
}

void write_preset_config(const std::string& preset, const std::filesystem::path& folder) {
  check_known(preset, "model");
  write_files(preset, folder);
}

}  // namespace vlmtrain::models
