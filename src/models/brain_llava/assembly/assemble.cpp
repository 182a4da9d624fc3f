#include "models/brain_llava/assembly/assemble.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "models/brain_llava/assembly/language_source.h"
#include "models/brain_llava/assembly/tower_source.h"
#include "models/checkpoints/new_folder.h"
#include "models/checkpoints/weights.h"
#include "models/checkpoints/weights_of_parts.h"
#include "models/presets.h"
#include "models/processing/conversation_processor.h"
#include "vlmtrain/base/bytes.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/json_text.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/text/add_token.h"

namespace vlmtrain::models::brain_llava {

namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr int64_t kVocabularyMultiple = 64;  // by which a vocabulary grows: matrices stay aligned

/// The text model's tokenizer.json, or the one that is given in its stead.
fs::path find_tokenizer(const LanguageSource& text, const fs::path& tokenizer_override) {
  fs::path text_tokenizer = text.folder() / "tokenizer.json";
  if (tokenizer_override.empty()) {
    load_tokenizer(text.folder());  // says what to do where there is none
    return text_tokenizer;
  }
  if (fs::exists(text_tokenizer))
    throw usage_error("--tokenizer: {} has its own; leave it out", text.folder().string());
  return tokenizer_override;
}

/// The text model's files in `folder`, with the token of a feature in tokenizer and vocabulary, and the text model in
/// `config`.
void add_text_model(const LanguageSource& text, const fs::path& tokenizer_override, ordered_json& config,
                    const fs::path& folder) {
  const fs::path tokenizer = find_tokenizer(text, tokenizer_override);
  const auto token = io::get<std::string>(config, "image_token", "config.json");
  const auto added = text::add_token(io::read_file(tokenizer), token, tokenizer.string());
  for (const auto& [name, content] : text.auxiliary_files()) io::write_file(folder / name, content);
  io::write_file(folder / "tokenizer.json", added.json);
  config["text_config"] = text.config();
  config["image_token_id"] = added.id;
  config["tie_word_embeddings"] = text.config().value("tie_word_embeddings", false);
  if (added.id < text.vocab_size()) return;
  const int64_t new_vocab_size = (added.id + kVocabularyMultiple) / kVocabularyMultiple * kVocabularyMultiple;
  config["text_config"]["vocab_size"] = new_vocab_size;
  spdlog::info("vocabulary: {} rows become {}; the new ones are the mean of the others", text.vocab_size(),
               new_vocab_size);
}

AssemblyResult write_weights(const VisionLanguageModel& model, const std::optional<LanguageSource>& text,
                             const std::optional<TowerSource>& tower, uint64_t seed, const fs::path& folder) {
  const auto parameters = get_base_parameters(model);
  if (text) text->check(parameters);
  if (tower) tower->check(parameters);
  const std::vector<WeightSource> sources{
      [&](const nn::Parameter& parameter) { return tower ? tower->weight(parameter) : std::nullopt; },
      [&](const nn::Parameter& parameter) { return text ? text->weight(parameter) : std::nullopt; }};
  const auto combined = combine_weights(model, sources, text ? text->dtype() : at::kFloat, seed);
  const int64_t num_tower = combined.num_tensors[0], num_text = combined.num_tensors[1];
  if (text) spdlog::info("text model: {} tensors of {}", num_text, text->folder().string());
  if (tower) spdlog::info("tower of volumes: {} tensors of {}", num_tower, tower->path().string());
  spdlog::info("at random: {} tensors ({}), from seed {}; writing {}", combined.num_random_tensors,
               fmt::join(combined.random_modules, ", "), seed, format_bytes(combined.bytes()));
  io::write_checkpoint_tensors(folder, combined.weights, io::kDefaultShardBytes);
  return {.num_text_tensors = num_text,
          .num_volume_tensors = num_tower,
          .num_random_tensors = combined.num_random_tensors,
          .vocab_size = model.output_weight().size(0)};
}

}  // namespace

AssemblyResult assemble(const AssemblyOptions& options, const fs::path& out) {
  if (!options.mask_model.empty()) {
    throw usage_error("--mask-model: {} draws no masks; leave it out, or name a prs-med preset", options.preset);
  }
  ordered_json config = load_preset_config(options.preset);
  std::optional<LanguageSource> text;
  if (!options.text_model.empty()) text.emplace(options.text_model);
  std::optional<TowerSource> tower;
  if (!options.volume_tower.empty()) {
    tower.emplace(options.volume_tower);
    config["vision_config"] = tower->config(std::move(config["vision_config"]),
                                            {.heads = options.tower_heads, .volume_size = options.volume_size});
  }
  prepare_output_folder(out);
  io::AtomicDirectory folder(out);
  if (text) {
    add_text_model(*text, options.tokenizer, config, folder.path());
  } else {
    write_preset_files(options.preset, options.tokenizer, folder.path());
    config.erase("torch_dtype");
    config["dtype"] = "float32";
  }
  io::write_file(folder.path() / "config.json", io::to_json_string(config, 2) + "\n");
  load_processor(folder.path(), {});  // which says whether tokenizer and config.json go together
  const auto model = build_model(folder.path(), at::kMeta, at::kFloat);
  const AssemblyResult result = write_weights(*model, text, tower, options.seed, folder.path());
  folder.commit();
  return result;
}

}  // namespace vlmtrain::models::brain_llava
