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

constexpr int64_t kRowsAtOnce = 64;  // by which a vocabulary grows: matrices stay aligned

/// The text model's tokenizer.json, or the one that is given in its stead.
fs::path tokenizer_of(const LanguageSource& text, const fs::path& given) {
  fs::path own = text.folder() / "tokenizer.json";
  if (given.empty()) {
    load_tokenizer(text.folder());  // says what to do where there is none
    return own;
  }
  if (fs::exists(own)) throw usage_error("--tokenizer: {} has its own; leave it out", text.folder().string());
  return given;
}

/// The text model's files in `folder`, with the token of a feature in tokenizer and vocabulary, and the text model in
/// `config`.
void put_text(const LanguageSource& text, const fs::path& given_tokenizer, ordered_json& config,
              const fs::path& folder) {
  const fs::path tokenizer = tokenizer_of(text, given_tokenizer);
  const auto token = io::get<std::string>(config, "image_token", "config.json");
  const auto added = text::with_token(io::read_file(tokenizer), token, tokenizer.string());
  for (const auto& [name, content] : text.companion_files()) io::write_file(folder / name, content);
  io::write_file(folder / "tokenizer.json", added.json);
  config["text_config"] = text.config();
  config["image_token_id"] = added.id;
  config["tie_word_embeddings"] = text.config().value("tie_word_embeddings", false);
  if (added.id < text.vocabulary()) return;
  const int64_t grown = (added.id + kRowsAtOnce) / kRowsAtOnce * kRowsAtOnce;
  config["text_config"]["vocab_size"] = grown;
  spdlog::info("vocabulary: {} rows become {}; the new ones are the mean of the others", text.vocabulary(), grown);
}

Assembly write_weights(const VisionLanguageModel& model, const std::optional<LanguageSource>& text,
                       const std::optional<TowerSource>& tower, uint64_t seed, const fs::path& folder) {
  const auto parameters = own_parameters(model);
  if (text) text->check(parameters);
  if (tower) tower->check(parameters);
  const std::vector<PartWeight> parts{
      [&](const nn::Parameter& parameter) { return tower ? tower->weight(parameter) : std::nullopt; },
      [&](const nn::Parameter& parameter) { return text ? text->weight(parameter) : std::nullopt; }};
  const auto made = weights_of_parts(model, parts, text ? text->dtype() : at::kFloat, seed);
  const int64_t of_tower = made.taken[0], of_text = made.taken[1];
  if (text) spdlog::info("text model: {} tensors of {}", of_text, text->folder().string());
  if (tower) spdlog::info("tower of volumes: {} tensors of {}", of_tower, tower->place().string());
  spdlog::info("at random: {} tensors ({}), from seed {}; writing {}", made.at_random,
               fmt::join(made.modules_at_random, ", "), seed, format_bytes(made.bytes()));
  io::write_checkpoint_tensors(folder, made.weights, io::kDefaultShardBytes);
  return {.from_text_model = of_text,
          .from_volume_tower = of_tower,
          .at_random = made.at_random,
          .vocabulary = model.output_weight().size(0)};
}

}  // namespace

Assembly assemble(const AssemblyParts& parts, const fs::path& out) {
  if (!parts.mask_model.empty()) {
    throw usage_error("--mask-model: {} draws no masks; leave it out, or name a prs-med preset", parts.preset);
  }
  ordered_json config = config_of_preset(parts.preset);
  std::optional<LanguageSource> text;
  if (!parts.text_model.empty()) text.emplace(parts.text_model);
  std::optional<TowerSource> tower;
  if (!parts.volume_tower.empty()) {
    tower.emplace(parts.volume_tower);
    config["vision_config"] = tower->config(std::move(config["vision_config"]),
                                            {.heads = parts.tower_heads, .volume_size = parts.volume_size});
  }
  prepare_new_folder(out);
  io::AtomicDirectory folder(out);
  if (text) {
    put_text(*text, parts.tokenizer, config, folder.path());
  } else {
    write_preset_files(parts.preset, parts.tokenizer, folder.path());
    config.erase("torch_dtype");
    config["dtype"] = "float32";
  }
  io::write_file(folder.path() / "config.json", io::json_text(config, 2) + "\n");
  load_processor(folder.path(), {});  // which says whether tokenizer and config.json go together
  const auto model = build_model(folder.path(), at::kMeta, at::kFloat);
  const Assembly made = write_weights(*model, text, tower, parts.seed, folder.path());
  folder.commit();
  return made;
}

}  // namespace vlmtrain::models::brain_llava
