#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "models/brain_llava/tower_checkpoint.h"
#include "models/checkpoints/auxiliary_files.h"
#include "models/checkpoints/config_checks.h"
#include "models/checkpoints/load_weights.h"
#include "models/checkpoints/quantized_weights.h"
#include "models/checkpoints/tensor_names.h"
#include "models/checkpoints/tensor_source.h"
#include "models/family.h"
#include "models/network/llama.h"
#include "models/presets.h"
#include "models/processing/chat_encoder.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/safetensors.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/nn/weights/parameters.h"
#include "vlmtrain/text/tokenizer.h"

namespace vlmtrain::models::brain_llava {

namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

// Prefixes of this model's parameter names, then of the names in supported checkpoints.
constexpr std::string_view kTextModelPrefix = "language_model.model.", kOutputPrefix = "language_model.lm_head.";
constexpr std::array<std::string_view, 3> kStoredTextModelPrefixes{"language_model.model.", "model.language_model.",
                                                                   "model."};
constexpr std::array<std::string_view, 2> kStoredOutputPrefixes{"language_model.lm_head.", "lm_head."};

/// Returns a map from supported model types to that of the text model, for configs with the text
/// model's keys at the top level. A LLaVA in its original layout has them there.
const std::map<std::string, std::string>& get_text_model_types() {
  static const std::map<std::string, std::string> text_model_types{
      {"llama", "llama"}, {"mistral", "mistral"},   {"qwen2", "qwen2"},
      {"llava", "llama"}, {"llava_llama", "llama"}, {"llava_mistral", "mistral"}};
  return text_model_types;
}

/// Returns true for keys of LLaVA's original config.json that do not belong to the text model.
bool is_non_text_key(const std::string& key) {
  constexpr std::array<std::string_view, 6> kNonTextKeyPrefixes{"mm_",     "image_",  "tune_",
                                                                "freeze_", "use_mm_", "tokenizer_"};
  constexpr std::array<std::string_view, 5> kNonTextKeys{"architectures", "auto_map", "vision_config", "torch_dtype",
                                                         "dtype"};
  return std::ranges::any_of(kNonTextKeyPrefixes, [&](auto prefix) { return key.starts_with(prefix); }) ||
         std::ranges::find(kNonTextKeys, key) != kNonTextKeys.end();
}

/// Sets tie_word_embeddings to false if the files contain an output projection whose values differ
/// from the embedding's.
void untie_if_weights_differ(ordered_json& text, const std::filesystem::path& folder) {
  if (!text.value("tie_word_embeddings", false)) return;
  const auto tensors = find_output_tensor_names(io::read_checkpoint_tensor_names(folder));
  if (!tensors || are_output_tensors_equal(*tensors, folder)) return;
  spdlog::warn("{}: config.json ties {} to {} (tie_word_embeddings), but their values differ; both are used",
               folder.string(), tensors->output, tensors->embedding);
  text["tie_word_embeddings"] = false;
}

ordered_json read_text_config(const std::filesystem::path& folder) {
  // read_model_config() throws if the folder is not a checkpoint.
  reject_quantized_weights(read_model_config(folder), folder);
  const std::string file = (folder / "config.json").string();
  const auto config = io::read_ordered_json(folder / "config.json");
  const auto type = io::get_or<std::string>(config, "model_type", "", file);
  const auto match = get_text_model_types().find(type);
  if (match == get_text_model_types().end()) {
    throw usage_error("--text-model {}: model_type {} is not supported; supported: LLaVA, Llama, Mistral, Qwen2",
                      folder.string(), type.empty() ? "none" : type);
  }
  if (const auto section = config.find("text_config"); section != config.end() && section->is_object()) {
    ordered_json text = *section;
    if (!text.contains("model_type")) text["model_type"] = "llama";
    if (config.value("tie_word_embeddings", false)) text["tie_word_embeddings"] = true;
    text.erase("quantization_config");
    untie_if_weights_differ(text, folder);
    return text;
  }
  ordered_json text = ordered_json::object();
  for (const auto& [key, value] : config.items()) {
    if (!is_non_text_key(key)) text[key] = value;
  }
  text["model_type"] = match->second;
  text.erase("quantization_config");
  untie_if_weights_differ(text, folder);
  return text;
}

TensorSourceErrorMessages make_text_source_error_messages() {
  return {
      .not_found_message = "is not a text model folder; give one with config.json, tokenizer.json and *.safetensors",
      .choose_file_hint = "give the folder of a checkpoint"};
}

/// The text model of a checkpoint that `init --text-model` copies: a Llama, Mistral or Qwen2, or
/// the text model of a LLaVA in transformers' layout or in that of LLaVA's own code.
class TextModelSource {
 public:
  /// Opens the checkpoint in `folder`. Throws UserError: kUsage for other models, kBadData for
  /// damaged files.
  explicit TextModelSource(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const { return tensors_.path(); }
  /// Returns the text model's config, in the form of a `text_config` of transformers.
  const nlohmann::ordered_json& config() const { return config_; }
  int64_t vocab_size() const { return text_config_.vocab_size; }
  /// Reads the tokenizer and template files: file name → content. Image settings are omitted.
  std::map<std::string, std::string> load_auxiliary_files() const;
  /// Returns the stored dtype of the embedding, which new weights of the model get, too.
  at::ScalarType dtype() const;
  /// Compares the stored tensors with `parameters`, the parameters of the new model; ignores those
  /// outside of the text model. Throws UserError (kBadData) with a list of missing tensors and of
  /// unsupported dtypes and shapes. The number of vocabulary rows may differ.
  void check_weights(const std::vector<nn::Parameter>& parameters) const;
  /// Returns the stored weight for `parameter`, in the stored dtype and under the parameter's name.
  /// Vocabulary rows are added or removed to match the parameter. Returns nothing for parameters
  /// outside of the text model. The tensor is read when it is materialized, also after this object
  /// is destroyed.
  std::optional<io::LazyTensor> find_weight(const nn::Parameter& parameter) const;

 private:
  /// Returns the stored tensor's name; nothing for parameters outside of the text model.
  std::optional<std::string> find_stored_tensor_name(const nn::Parameter& parameter) const;

  nlohmann::ordered_json config_;
  TensorSource tensors_;
  LlamaConfig text_config_;
  std::string model_prefix_, output_prefix_;  // prefixes of stored names of the model and of the output projection
};

TextModelSource::TextModelSource(const std::filesystem::path& folder)
    : config_(read_text_config(folder)),
      tensors_(folder, make_text_source_error_messages()),
      text_config_(LlamaConfig::from_json(nlohmann::json(config_), (folder / "config.json").string())) {
  for (const auto prefix : kStoredTextModelPrefixes) {
    if (tensors_.find(std::string(prefix) + "embed_tokens.weight") == nullptr) continue;
    model_prefix_ = prefix;
    break;
  }
  if (model_prefix_.empty()) {
    throw data_error("{}: has no tensor model.embed_tokens.weight, neither at the top level nor below language_model",
                     folder.string());
  }
  for (const auto prefix : kStoredOutputPrefixes) {
    if (tensors_.has_prefix(prefix)) output_prefix_ = prefix;
  }
}

std::map<std::string, std::string> TextModelSource::load_auxiliary_files() const {
  auto files = read_auxiliary_files(folder());
  for (const char* file : {"preprocessor_config.json", "video_preprocessor_config.json", "processor_config.json",
                           "image_processor_config.json"}) {
    files.erase(file);
  }
  return files;
}

at::ScalarType TextModelSource::dtype() const {
  return tensors_.find(model_prefix_ + "embed_tokens.weight")->dtype;
}

std::optional<std::string> TextModelSource::find_stored_tensor_name(const nn::Parameter& parameter) const {
  if (parameter.name.starts_with(kTextModelPrefix))
    return model_prefix_ + parameter.name.substr(kTextModelPrefix.size());
  if (parameter.name.starts_with(kOutputPrefix)) return output_prefix_ + parameter.name.substr(kOutputPrefix.size());
  return std::nullopt;
}

void TextModelSource::check_weights(const std::vector<nn::Parameter>& parameters) const {
  std::vector<std::string> problems;
  for (nn::Parameter parameter : parameters) {
    const auto name = find_stored_tensor_name(parameter);
    if (!name) continue;
    parameter.name = *name;  // error messages name the stored tensor
    const StoredTensor* const tensor = tensors_.find(*name);
    if (tensor == nullptr) {
      problems.push_back("missing: " + *name);
      continue;
    }
    if (auto problem = describe_unsupported_dtype(*name, tensor->dtype); !problem.empty())
      problems.push_back(std::move(problem));
    const bool is_vocabulary_weight = name->ends_with("embed_tokens.weight") || name->ends_with("lm_head.weight");
    if (is_vocabulary_weight && differs_only_in_rows(parameter, tensor->shape)) continue;
    if (auto problem = describe_shape_mismatch(parameter, tensor->shape); !problem.empty())
      problems.push_back(std::move(problem));
  }
  throw_if_problems(fmt::format("{}: the weights do not match config.json", folder().string()), problems);
}

std::optional<io::LazyTensor> TextModelSource::find_weight(const nn::Parameter& parameter) const {
  const auto name = find_stored_tensor_name(parameter);
  const StoredTensor* const tensor = name ? tensors_.find(*name) : nullptr;
  if (tensor == nullptr) return std::nullopt;
  const bool has_all_rows = parameter.sizes() == at::IntArrayRef(tensor->shape);
  return io::LazyTensor{
      .name = parameter.name,
      .dtype = tensor->dtype,
      .shape = parameter.sizes().vec(),
      .materialize = [parameter, read = tensor->read,
                      has_all_rows] { return has_all_rows ? read() : resize_table_rows(parameter, read()); },
      .on_written = tensor->release};
}

constexpr int64_t kVocabSizeMultiple = 64;  // growth step of a vocabulary; keeps matrices aligned for tensor cores

/// Returns the path of the tokenizer.json to use: `tokenizer_override` (--tokenizer) if it is not
/// empty, else the text model's. Throws UserError (kUsage) if both exist.
fs::path find_tokenizer_file(const TextModelSource& text, const fs::path& tokenizer_override) {
  fs::path text_tokenizer = text.folder() / "tokenizer.json";
  if (tokenizer_override.empty()) {
    load_tokenizer(text.folder());  // its error explains how to fix a missing file
    return text_tokenizer;
  }
  if (fs::exists(text_tokenizer))
    throw usage_error("--tokenizer: {} has its own; omit the option", text.folder().string());
  return tokenizer_override;
}

/// Writes the text model's files to `folder` and adds the image token to its tokenizer. Sets the
/// keys of the text model in `config`; enlarges the vocabulary if it has no free row for the token.
void add_text_model(const TextModelSource& text, const fs::path& tokenizer_override, ordered_json& config,
                    const fs::path& folder) {
  const fs::path tokenizer = find_tokenizer_file(text, tokenizer_override);
  const auto token = io::get<std::string>(config, "image_token", "config.json");
  const auto added_token = text::add_token(io::read_file(tokenizer), token, tokenizer.string());
  for (const auto& [name, content] : text.load_auxiliary_files()) io::write_file(folder / name, content);
  io::write_file(folder / "tokenizer.json", added_token.json);
  config["text_config"] = text.config();
  config["image_token_id"] = added_token.id;
  config["tie_word_embeddings"] = text.config().value("tie_word_embeddings", false);
  if (added_token.id < text.vocab_size()) return;
  const int64_t new_vocab_size = (added_token.id + kVocabSizeMultiple) / kVocabSizeMultiple * kVocabSizeMultiple;
  config["text_config"]["vocab_size"] = new_vocab_size;
  spdlog::info("vocabulary: resized from {} to {} rows; new rows are the mean of the others", text.vocab_size(),
               new_vocab_size);
}

AssemblyResult write_weights(const VisionLanguageModel& model, const std::optional<TextModelSource>& text_source,
                             const std::optional<TowerCheckpoint>& tower_checkpoint, uint64_t seed,
                             const fs::path& folder) {
  const auto parameters = get_base_parameters(model);
  if (text_source) text_source->check_weights(parameters);
  if (tower_checkpoint) tower_checkpoint->check_weights(parameters);
  const std::vector<FindWeightFunction> sources{
      [&](const nn::Parameter& parameter) {
        return tower_checkpoint ? tower_checkpoint->find_weight(parameter) : std::nullopt;
      },
      [&](const nn::Parameter& parameter) { return text_source ? text_source->find_weight(parameter) : std::nullopt; }};
  const auto combined_weights = combine_weights(model, sources, text_source ? text_source->dtype() : at::kFloat, seed);
  const int64_t num_tower_tensors = combined_weights.num_tensors[0], num_text_tensors = combined_weights.num_tensors[1];
  if (text_source) spdlog::info("text model: {} tensors of {}", num_text_tensors, text_source->folder().string());
  if (tower_checkpoint)
    spdlog::info("volume tower: {} tensors of {}", num_tower_tensors, tower_checkpoint->path().string());
  write_combined_weights(combined_weights, seed, folder);
  return {.num_text_tensors = num_text_tensors,
          .num_volume_tensors = num_tower_tensors,
          .num_random_tensors = combined_weights.num_random_tensors,
          .vocab_size = model.output_weight().size(0)};
}

}  // namespace

AssemblyResult assemble_checkpoint(const AssemblyOptions& options, const fs::path& out) {
  if (!options.mask_model.empty()) {
    throw usage_error("--mask-model: {} predicts no masks; omit the option, or use a prs-med preset", options.preset);
  }
  ordered_json config = load_preset_config(options.preset);
  std::optional<TextModelSource> text_source;
  if (!options.text_model.empty()) text_source.emplace(options.text_model);
  std::optional<TowerCheckpoint> tower_checkpoint;
  if (!options.volume_tower.empty()) {
    tower_checkpoint.emplace(options.volume_tower);
    config["vision_config"] = tower_checkpoint->config(
        std::move(config["vision_config"]), {.num_heads = options.num_tower_heads, .volume_size = options.volume_size});
  }
  prepare_output_folder(out);
  io::AtomicDirectory folder(out);
  if (text_source) {
    add_text_model(*text_source, options.tokenizer, config, folder.path());
  } else {
    write_preset_files(options.preset, options.tokenizer, folder.path());
    config.erase("torch_dtype");
    config["dtype"] = "float32";
  }
  io::write_file(folder.path() / "config.json", io::to_json_string(config, 2) + "\n");
  load_processor(folder.path(), {});  // checks that tokenizer and config.json agree
  const auto model = build_model(folder.path(), at::kMeta, at::kFloat);
  const AssemblyResult result = write_weights(*model, text_source, tower_checkpoint, options.seed, folder.path());
  folder.commit();
  return result;
}

}  // namespace vlmtrain::models::brain_llava
