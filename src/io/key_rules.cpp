#include "io/key_rules.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <unordered_map>
#include <vector>

#include "vlmtrain/base/error.h"

namespace vlmtrain::io {
namespace {
namespace key_tables {

using enum KeyRule;

// The spellings are those of LLaMA-Factory (`tools`, `kto_tag`, `chosen`), ms-swift (`loss`, `objects`,
// `rejected_response`), axolotl (`train`, `training`, `train_detail`, `weight`), TRL (`tools`, `chat_template_kwargs`,
// `assistant_masks`), OpenAI's and Mistral's fine-tuning files (`weight`, `tool_calls`), xtuner (`output_with_loss`),
// torchtune (`masked`), qwen-vl-utils (`video_start`, `sample_fps`), DeepSeek, Ollama and OpenRouter
// (`reasoning_content`, `thinking`, `reasoning_details`).

// Of records, turns and blocks.
constexpr std::array kOfAllTexts = std::to_array<KeyEntry>({
    {"audio", kAudio},        {"audio_file", kAudio},  {"audio_path", kAudio},   {"audio_paths", kAudio},
    {"audio_url", kAudio},    {"audio_urls", kAudio},  {"audios", kAudio},       {"fps", kFrameRate},
    {"frames", kVideo},       {"image_bytes", kImage}, {"image_file", kImage},   {"image_files", kImage},
    {"image_name", kImage},   {"image_names", kImage}, {"image_path", kImage},   {"image_paths", kImage},
    {"image_urls", kImage},   {"images_path", kImage}, {"img", kImage},          {"img_path", kImage},
    {"img_url", kImage},      {"imgs", kImage},        {"loss_mask", kLossMask}, {"photo", kImage},
    {"photos", kImage},       {"picture", kImage},     {"pictures", kImage},     {"reasoning", kReasoning},
    {"thinking", kReasoning}, {"video_file", kVideo},  {"video_files", kVideo},  {"video_path", kVideo},
    {"video_paths", kVideo},  {"video_urls", kVideo},
});

// Of records and turns.
constexpr std::array kOfConversations = std::to_array<KeyEntry>({
    {"function_call", kTool},
    {"functions", kTool},
    {"image", kMedia},
    {"image_b64", kImage},
    {"image_base64", kImage},
    {"image_url", kImage},
    {"images", kMedia},
    {"loss_scale", kLossMask},
    {"loss_weight", kLossMask},
    {"output_with_loss", kLossMask},
    {"reasoning_content", kReasoning},
    {"system_prompt", kSystemText},
    {"tool_calls", kTool},
    {"tools", kTool},
    {"video", kMedia},
    {"video_url", kVideo},
    {"videos", kMedia},
    {"volumes", kMedia},
});

// Of blocks and of objects that stand for media.
constexpr std::array kOfFiles = std::to_array<KeyEntry>({
    {"b64", kEncoded},
    {"base64", kEncoded},
    {"bytes", kRead},
    {"data", kEncoded},
    {"detail", kHarmless, "of the service that the messages were sent to: pixels are those of data.image_max_pixels"},
    {"format", kHarmless, "the file has it"},
    {"height", kHarmless, "the file has it"},
    {"media_type", kHarmless, "the file has it"},
    {"mime_type", kHarmless, "the file has it"},
    {"path", kRead},
    {"url", kRead},
    {"width", kHarmless, "the file has it"},
});

constexpr std::array kOfRecordsAlone = std::to_array<KeyEntry>({
    {"__index_level_0__", kHarmless, "names the record"},
    {"__key__", kHarmless, "names the record"},
    {"__local_path__", kHarmless, "names the record"},
    {"__url__", kHarmless, "names the record"},
    {"_id", kHarmless, "names the record"},
    {"answer_type", kWord},
    {"assistant_masks", kLossMask},
    {"author", kHarmless, "where the record is from"},
    {"bbox", kBoxes},
    {"bboxes", kBoxes},
    {"boxes", kBoxes},
    {"category", kWord},
    {"chat_template_kwargs", kTemplate},
    {"chosen", kChosen},
    {"chosen_response", kChosen},
    {"completion_mask", kLossMask},
    {"conversations", kTurns},
    {"created_at", kHarmless, "where the record is from"},
    {"data_source", kHarmless, "where the record is from"},
    {"dataset", kHarmless, "where the record is from"},
    {"dataset_name", kHarmless, "where the record is from"},
    {"date", kHarmless, "where the record is from"},
    {"generator", kHarmless, "where the record is from"},
    {"height", kHarmless, "sizes, which are measured"},
    {"id", kRead},
    {"idx", kHarmless, "names the record"},
    {"image_height", kHarmless, "sizes, which are measured"},
    {"image_size", kHarmless, "sizes, which are measured"},
    {"image_width", kHarmless, "sizes, which are measured"},
    {"index", kHarmless, "names the record"},
    {"kind", kWord},
    {"kto_tag", kDesirable},
    {"lang", kHarmless, "where the record is from"},
    {"language", kHarmless, "where the record is from"},
    {"learn", kSampleWeight},
    {"length", kHarmless, "sizes, which are measured"},
    {"license", kHarmless, "where the record is from"},
    {"loss", kSampleWeight},
    {"loss_masks", kLossMask},
    {"loss_weights", kLossMask},
    {"mask", kRead},
    {"masks", kRead},
    {"messages", kTurns},
    {"modality", kRead},
    {"model", kHarmless, "where the record is from"},
    {"num_tokens", kHarmless, "sizes, which are measured"},
    {"objects", kBoxes},
    {"qid", kHarmless, "names the record"},
    {"question_id", kHarmless, "names the record"},
    {"sample_fps", kFrameRate},
    {"sample_id", kHarmless, "names the record"},
    {"sample_weight", kLossMask},
    {"source", kHarmless, "where the record is from"},
    {"split", kHarmless, "where the record is from"},
    {"subject_id", kRead},
    {"subset", kHarmless, "where the record is from"},
    {"sys", kSystemText},
    {"sys_prompt", kSystemText},
    {"system", kRead},
    {"system_instruction", kSystemText},
    {"system_message", kSystemText},
    {"task", kName},
    {"task_type", kName},
    {"timestamp", kHarmless, "where the record is from"},
    {"token_count", kHarmless, "sizes, which are measured"},
    {"train", kSampleWeight},
    {"train_on_input", kLossMask},
    {"train_on_inputs", kLossMask},
    {"trainable", kSampleWeight},
    {"uid", kHarmless, "names the record"},
    {"uuid", kHarmless, "names the record"},
    {"version", kHarmless, "where the record is from"},
    {"video_fps", kFrameRate},
    {"volume", kAmount},
    {"weight", kSampleWeight},
    {"width", kHarmless, "sizes, which are measured"},
});

constexpr std::array kOfTurnsAlone = std::to_array<KeyEntry>({
    {"calculate_loss", kLossMask},
    {"compute_loss", kLossMask},
    {"content", kRead},
    {"do_train", kLossMask},
    {"from", kRead},
    {"has_loss", kLossMask},
    {"id", kHarmless, "names the turn"},
    {"ignore", kLossMaskOff},
    {"ignore_loss", kLossMaskOff},
    {"index", kHarmless, "names the turn"},
    {"is_label", kLossMask},
    {"is_masked", kLossMaskOff},
    {"is_train", kLossMask},
    {"label_mask", kLossMask},
    {"learn", kLossMask},
    {"learnable", kLossMask},
    {"loss", kLossMask},
    {"mask", kLossMaskOff},
    {"mask_loss", kLossMaskOff},
    {"masked", kLossMaskOff},
    {"message_id", kHarmless, "names the turn"},
    {"no_loss", kLossMaskOff},
    {"reasoning_details", kReasoning},
    {"role", kRead},
    {"skip_loss", kLossMaskOff},
    {"source", kHarmless, "where the turn is from"},
    {"supervised", kLossMask},
    {"system", kSystemText},
    {"think", kReasoning},
    {"thought", kReasoning},
    {"thoughts", kReasoning},
    {"timestamp", kHarmless, "names the turn"},
    {"to_train", kLossMask},
    {"tool_call", kTool},
    {"tool_call_id", kTool},
    {"tool_responses", kTool},
    {"train", kLossMask},
    {"train_detail", kLossMask},
    {"train_details", kLossMask},
    {"train_on_turn", kLossMask},
    {"trainable", kLossMask},
    {"training", kLossMask},
    {"training_detail", kLossMask},
    {"training_details", kLossMask},
    {"turn_id", kHarmless, "names the turn"},
    {"untrainable", kLossMaskOff},
    {"use_loss", kLossMask},
    {"value", kRead},
    {"volume", kMedia},
    {"weight", kLossMask},
    {"with_loss", kLossMask},
});

constexpr std::array kOfBlocksAlone = std::to_array<KeyEntry>({
    {"cache_control", kHarmless, "of the service that the messages were sent to"},
    {"caption", kText},
    {"content", kText},
    {"id", kHarmless, "names the block"},
    {"image", kRead},
    {"image_b64", kEncoded},
    {"image_base64", kEncoded},
    {"image_url", kRead},
    {"images", kImage},
    {"index", kRead},
    {"input_audio", kAudio},
    {"loss", kLossMask},
    {"sample_fps", kFrameRate},
    {"source", kEncoded},
    {"text", kRead},
    {"train", kLossMask},
    {"type", kRead},
    {"value", kText},
    {"video", kRead},
    {"video_end", kSegment},
    {"video_start", kSegment},
    {"video_url", kRead},
    {"videos", kVideo},
    {"volume", kRead},
    {"volume_url", kRead},
    {"weight", kLossMask},
});

constexpr std::array kOfMediaAlone = std::to_array<KeyEntry>({
    {"id", kHarmless, "names the file"},
    {"mode", kHarmless, "the file has it"},
    {"size", kHarmless, "the file has it"},
});

}  // namespace key_tables

using Rules = std::unordered_map<std::string_view, KeyRule>;
using Keys = std::vector<KeyEntry>;

Keys joined(std::initializer_list<std::span<const KeyEntry>> tables) {
  Keys keys;
  for (const auto& table : tables) keys.insert(keys.end(), table.begin(), table.end());
  std::ranges::sort(keys, {}, &KeyEntry::name);
  return keys;
}

Keys keys_of(KeyPlace place) {
  using namespace key_tables;
  switch (place) {
    case KeyPlace::kRecord:
      return joined({kOfAllTexts, kOfConversations, kOfRecordsAlone});
    case KeyPlace::kTurn:
      return joined({kOfAllTexts, kOfConversations, kOfTurnsAlone});
    case KeyPlace::kBlock:
      return joined({kOfAllTexts, kOfFiles, kOfBlocksAlone});
    case KeyPlace::kMedium:
      return joined({kOfFiles, kOfMediaAlone});
  }
  throw InternalError("unknown place of a key");
}

Rules rules_of(KeyPlace place) {
  Rules rules;
  for (const KeyEntry& key : known_keys(place)) rules.emplace(key.name, key.rule);
  return rules;
}

}  // namespace

std::span<const KeyEntry> known_keys(KeyPlace place) {
  static const std::array<Keys, 4> kKeys{keys_of(KeyPlace::kRecord), keys_of(KeyPlace::kTurn),
                                         keys_of(KeyPlace::kBlock), keys_of(KeyPlace::kMedium)};
  return kKeys.at(static_cast<size_t>(place));
}

KeyRule rule_of_key(KeyPlace place, std::string_view name) {
  static const std::array<Rules, 4> kRules{rules_of(KeyPlace::kRecord), rules_of(KeyPlace::kTurn),
                                           rules_of(KeyPlace::kBlock), rules_of(KeyPlace::kMedium)};
  const Rules& rules = kRules[static_cast<size_t>(place)];
  const auto found = rules.find(name);
  return found == rules.end() ? KeyRule::kUnknown : found->second;
}

}  // namespace vlmtrain::io
