#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "models/checkpoints/auxiliary_files.h"
#include "models/checkpoints/config_checks.h"
#include "models/checkpoints/load_weights.h"
#include "models/checkpoints/tensor_source.h"
#include "models/family.h"
#include "models/llava/family.h"
#include "models/presets.h"
#include "models/processing/chat_encoder.h"
#include "models/prs_med/mask_source.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/safetensors.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/checkpoint_contents.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/text/tokenizer.h"

namespace vlmtrain::models::prs_med {

namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

/// Builds the LLaVA of `folder` on the meta device, without values. Throws UserError (kUsage) for
/// other families.
std::unique_ptr<VisionLanguageModel> build_llava_model(const fs::path& folder) {
  const auto config = read_model_config(folder);
  const auto supported_model_types = llava::make_family().model_types;
  const auto types = find_family(config, folder).model_types;
  if (types != supported_model_types) {
    throw usage_error("--text-model {}: is not a LLaVA (model_type {}); supported: {}", folder.string(),
                      config.value("model_type", types.empty() ? std::string("none") : std::string(types.front())),
                      fmt::join(supported_model_types, ", "));
  }
  return build_model(folder, at::kMeta, at::kFloat);
}

/// LLaVA checkpoint whose weights and files `init --text-model` copies to a model that predicts
/// masks.
class LlavaSource {
 public:
  /// Opens the checkpoint in `folder` and compares its weights with its config.json. Logs tensors
  /// that are not used. Throws UserError: kUsage for another family, kBadData for missing or
  /// damaged weights.
  explicit LlavaSource(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const { return base_weights_.folder(); }
  /// Returns the checkpoint's config.json, with the sizes of an external vision tower added.
  const nlohmann::ordered_json& config() const { return config_; }
  /// Returns the number of embedding rows.
  int64_t vocab_size() const { return model_->output_weight().size(0); }
  /// Returns the JSON path of vocab_size in config(), which depends on LLaVA's layout.
  nlohmann::ordered_json::json_pointer get_vocab_size_pointer() const;
  /// Returns the tokenizer, processor and template files: file name → content.
  std::map<std::string, std::string> load_auxiliary_files() const;
  /// Returns the stored dtype of most elements.
  at::ScalarType dtype() const { return base_weights_.dtype(); }
  /// Returns the stored weight for `parameter`, under its checkpoint key. Vocabulary rows are added
  /// to match the parameter. Returns nothing for parameters that LLaVA does not have.
  std::optional<io::LazyTensor> find_weight(const nn::Parameter& parameter) const;

 private:
  void check_weights() const;

  nlohmann::ordered_json config_;
  std::unique_ptr<VisionLanguageModel> model_;  ///< on the meta device
  BaseWeights base_weights_;
};

LlavaSource::LlavaSource(const fs::path& folder) : model_(build_llava_model(folder)), base_weights_(folder) {
  config_ = io::read_ordered_json(folder / "config.json");
  model_->add_saved_settings(config_);
  check_weights();
}

void LlavaSource::check_weights() const {
  std::vector<std::string> problems;
  std::set<std::string> expected;
  for (const auto& parameter : get_base_parameters(*model_)) {
    const std::string name = model_->get_checkpoint_tensor_name(parameter.name);
    expected.insert(name);
    const BaseWeights::BaseTensor* const entry = base_weights_.find_base_tensor(parameter);
    if (entry == nullptr) {
      problems.push_back("missing: " + name);
      continue;
    }
    for (std::string problem :
         {describe_unsupported_dtype(name, entry->info.dtype), describe_shape_mismatch(parameter, entry->info.shape)}) {
      if (!problem.empty()) problems.push_back(std::move(problem));
    }
  }
  throw_if_problems(fmt::format("{}: the weights do not match config.json", folder().string()), problems);
  std::vector<std::string> unexpected_names = io::read_checkpoint_tensor_names(folder());
  std::erase_if(unexpected_names,
                [&](const std::string& name) { return expected.contains(name) || may_be_unused(name); });
  if (unexpected_names.empty()) return;
  const size_t count = unexpected_names.size();
  spdlog::warn("{}: {} tensors are not part of a LLaVA and are skipped: {}", folder().string(), count,
               fmt::join(truncate_list(std::move(unexpected_names)), ", "));
}

nlohmann::ordered_json::json_pointer LlavaSource::get_vocab_size_pointer() const {
  const bool is_top_level =
      llava::Config::from_json(config_, folder()).checkpoint_format == llava::CheckpointFormat::kOriginal;
  return nlohmann::ordered_json::json_pointer(is_top_level ? "/vocab_size" : "/text_config/vocab_size");
}

std::map<std::string, std::string> LlavaSource::load_auxiliary_files() const {
  auto files = base_weights_.files();
  files.erase("config.json");
  return files;
}

std::optional<io::LazyTensor> LlavaSource::find_weight(const nn::Parameter& parameter) const {
  const BaseWeights::BaseTensor* const entry = base_weights_.find_base_tensor(parameter);
  if (entry == nullptr) return std::nullopt;
  const bool has_all_rows = parameter.sizes() == at::IntArrayRef(entry->info.shape);
  return io::LazyTensor{
      .name = model_->get_checkpoint_tensor_name(parameter.name),
      .dtype = entry->info.dtype,
      .shape = parameter.sizes().vec(),
      .materialize = [parameter, read = entry->read,
                      has_all_rows] { return has_all_rows ? read() : resize_table_rows(parameter, read()); },
      .on_written = entry->release};
}

constexpr int64_t kVocabularyMultiple = 64;  // growth step of a vocabulary; keeps matrices aligned for tensor cores

std::string get_mask_token(const ordered_json& mask_config) {
  return io::get<std::string>(mask_config, "mask_token", "mask_config");
}

void write_config_json(const fs::path& folder, const ordered_json& config) {
  io::write_file(folder / "config.json", io::to_json_string(config, 2) + "\n");
}

/// Returns the path of the tokenizer.json to use: `tokenizer_override` (--tokenizer) if it is not
/// empty, else the text model's. Throws UserError (kUsage) if both exist.
fs::path find_tokenizer_file(const LlavaSource& text, const fs::path& tokenizer_override) {
  fs::path text_tokenizer = text.folder() / "tokenizer.json";
  if (tokenizer_override.empty()) {
    load_tokenizer(text.folder());  // its error explains how to fix a missing file
    return text_tokenizer;
  }
  if (fs::exists(text_tokenizer))
    throw usage_error("--tokenizer: {} has its own; omit the option", text.folder().string());
  return tokenizer_override;
}

/// Writes the text model's files to `folder` and adds the mask token to tokenizer and vocabulary.
/// `mask_config` is added to config.json.
void write_model_files(const LlavaSource& text, const ordered_json& mask_config, const fs::path& tokenizer_override,
                       const fs::path& folder) {
  const fs::path tokenizer = find_tokenizer_file(text, tokenizer_override);
  const auto added_token = text::add_token(io::read_file(tokenizer), get_mask_token(mask_config), tokenizer.string());
  for (const auto& [name, content] : text.load_auxiliary_files()) io::write_file(folder / name, content);
  io::write_file(folder / "tokenizer.json", added_token.json);

  ordered_json config = text.config();
  config["architectures"] = {"PrsMedForConditionalGeneration"};
  config["base_model_type"] = config["model_type"];
  config["model_type"] = "prs_med";
  config["mask_config"] = mask_config;
  const int64_t new_vocab_size = (added_token.id + kVocabularyMultiple) / kVocabularyMultiple * kVocabularyMultiple;
  if (added_token.id >= text.vocab_size()) {
    config[text.get_vocab_size_pointer()] = new_vocab_size;
    spdlog::info("vocabulary: resized from {} to {} rows; new rows are the mean of the others", text.vocab_size(),
                 new_vocab_size);
  }
  write_config_json(folder, config);
}

/// Writes the preset's files to `folder`, with `mask_config` in config.json.
void write_model_files(const AssemblyOptions& options, const ordered_json& mask_config, const fs::path& folder) {
  write_preset_files(options.preset, options.tokenizer, folder);
  auto config = io::read_ordered_json(folder / "config.json");
  config["mask_config"] = mask_config;
  config[config.contains("torch_dtype") ? "torch_dtype" : "dtype"] = "float32";
  write_config_json(folder, config);
}

/// Writes the weights of the model in `folder`.
AssemblyResult write_weights(const VisionLanguageModel& model, const std::optional<LlavaSource>& text,
                             const std::optional<MaskSource>& mask_source, uint64_t seed, const fs::path& folder) {
  if (mask_source) mask_source->check_weights(get_base_parameters(model));
  const std::vector<FindWeightFunction> sources{
      [&](const nn::Parameter& parameter) { return mask_source ? mask_source->find_weight(parameter) : std::nullopt; },
      [&](const nn::Parameter& parameter) { return text ? text->find_weight(parameter) : std::nullopt; }};
  const auto combined_weights = combine_weights(model, sources, text ? text->dtype() : at::kFloat, seed);
  const int64_t num_mask_tensors = combined_weights.num_tensors[0], num_text_tensors = combined_weights.num_tensors[1];
  if (text) spdlog::info("text model: {} tensors of {}", num_text_tensors, text->folder().string());
  if (mask_source) {
    spdlog::info("mask model: {} tensors of {}, in the layout of {}", num_mask_tensors, mask_source->path().string(),
                 mask_source->format());
  }
  write_combined_weights(combined_weights, seed, folder);
  return {.num_text_tensors = num_text_tensors,
          .num_mask_tensors = num_mask_tensors,
          .num_random_tensors = combined_weights.num_random_tensors,
          .vocab_size = model.output_weight().size(0)};
}

}  // namespace

AssemblyResult assemble_checkpoint(const AssemblyOptions& options, const fs::path& out) {
  if (!options.volume_tower.empty()) {
    throw usage_error("--volume-tower: {} has no volume tower; omit the option, or use a brain-llava preset",
                      options.preset);
  }
  ordered_json mask_config = load_preset_mask_config(options.preset);
  std::optional<LlavaSource> text;
  if (!options.text_model.empty()) text.emplace(options.text_model);
  std::optional<MaskSource> mask_source;
  if (!options.mask_model.empty()) {
    mask_source.emplace(options.mask_model);
    mask_config = mask_source->make_mask_config(std::move(mask_config));
  }
  prepare_output_folder(out);
  io::AtomicDirectory folder(out);
  if (text) {
    write_model_files(*text, mask_config, options.tokenizer, folder.path());
  } else {
    write_model_files(options, mask_config, folder.path());
  }
  const std::string token = get_mask_token(mask_config);
  const auto token_id = load_processor(folder.path(), {})->tokenizer().token_to_id(token);
  VLMTRAIN_CHECK(token_id, "{} is not in the tokenizer", token);
  const auto model = build_model(folder.path(), at::kMeta, at::kFloat);
  AssemblyResult result = write_weights(*model, text, mask_source, options.seed, folder.path());
  result.mask_token_id = *token_id;
  folder.commit();
  return result;
}

}  // namespace vlmtrain::models::prs_med
