#include "io/record/keys/key_rules.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"

namespace vlmtrain::io {
namespace {
namespace key_tables {

constexpr std::string_view kDetailStart = "an option of the chat service; ", kDetailEnd = " limits the pixels";

using enum KeyRule;

// Sources of the keys: LLaMA-Factory (`tools`, `kto_tag`, `chosen`), ms-swift (`loss`, `objects`,
// `rejected_response`), axolotl (`train`, `training`, `train_detail`, `weight`), TRL (`tools`,
// `chat_template_kwargs`, `assistant_masks`), OpenAI's and Mistral's fine-tuning files (`weight`,
// `tool_calls`), xtuner (`output_with_loss`), torchtune (`masked`), qwen-vl-utils (`video_start`,
// `sample_fps`), DeepSeek, Ollama and OpenRouter (`reasoning_content`, `thinking`,
// `reasoning_details`).

// Keys of records, turns and blocks.
// "picture" and "photo" are common names of image columns.
constexpr std::array kSharedKeys = std::to_array<KeyEntry>({
    {"audio", kAudio},       {"audio_file", kAudio},  {"audio_path", kAudio},   {"audio_paths", kAudio},
    {"audio_url", kAudio},   {"audio_urls", kAudio},  {"audios", kAudio},       {"fps", kFrameRate},
    {"frames", kVideo},      {"image_bytes", kImage}, {"image_file", kImage},   {"image_files", kImage},
    {"image_name", kImage},  {"image_names", kImage}, {"image_path", kImage},   {"image_paths", kImage},
    {"image_urls", kImage},  {"images_path", kImage}, {"img", kImage},          {"img_path", kImage},
    {"img_url", kImage},     {"imgs", kImage},        {"loss_mask", kLossMask}, {"photo", kImage},
    {"photos", kImage},      {"picture", kImage},     {"pictures", kImage},     {"video_file", kVideo},
    {"video_files", kVideo}, {"video_path", kVideo},  {"video_paths", kVideo},  {"video_urls", kVideo},
});

// Keys of records and turns.
constexpr std::array kRecordAndTurnKeys = std::to_array<KeyEntry>({
    {"function_call", kTools},
    {"functions", kTools},
    {"image", kMedia},
    {"image_b64", kImage},
    {"image_base64", kImage},
    {"image_url", kImage},
    {"images", kMedia},
    {"loss_scale", kLossMask},
    {"loss_weight", kLossMask},
    {"output_with_loss", kLossMask},
    {"system_prompt", kSystemText},
    {"video", kMedia},
    {"video_url", kVideo},
    {"videos", kMedia},
    {"volumes", kMedia},
});

// Keys of blocks and of media objects.
constexpr std::array kFileKeys = std::to_array<KeyEntry>({
    {"b64", kRead},
    {"base64", kRead},
    {"bytes", kRead},
    {"data", kRead},
    {"detail", kHarmless, JoinedText<kDetailStart, keys::data::kImageMaxPixels, kDetailEnd>::value},
    {"format", kHarmless, "read from the file"},
    {"height", kHarmless, "read from the file"},
    {"media_type", kHarmless, "read from the file"},
    {"mime_type", kHarmless, "read from the file"},
    {"path", kRead},
    {"url", kRead},
    {"width", kHarmless, "read from the file"},
});

constexpr std::array kRecordOnlyKeys = std::to_array<KeyEntry>({
    {"__index_level_0__", kHarmless, "identifies the record"},
    {"__key__", kHarmless, "identifies the record"},
    {"__local_path__", kHarmless, "identifies the record"},
    {"__url__", kHarmless, "identifies the record"},
    {"_id", kHarmless, "identifies the record"},
    {"answer_type", kString},
    {"assistant_masks", kLossMask},
    {"author", kHarmless, "origin of the record"},
    {"bbox", kBoxes},
    {"bbox_type", kBoxes},
    {"bboxes", kBoxes},
    {"boxes", kBoxes},
    {"category", kString},
    {"chat_template_kwargs", kRead},
    {"chosen", kChosenAnswer},
    {"chosen_response", kChosenAnswer},
    {"completion_mask", kLossMask},
    {"conversations", kTurns},
    {"created_at", kHarmless, "origin of the record"},
    {"data_source", kHarmless, "origin of the record"},
    {"dataset", kHarmless, "origin of the record"},
    {"dataset_name", kHarmless, "origin of the record"},
    {"date", kHarmless, "origin of the record"},
    {"generator", kHarmless, "origin of the record"},
    {"height", kHarmless, "sizes are read from the files"},
    {"id", kRead},
    {"idx", kHarmless, "identifies the record"},
    {"image_height", kHarmless, "sizes are read from the files"},
    {"image_size", kHarmless, "sizes are read from the files"},
    {"image_width", kHarmless, "sizes are read from the files"},
    {"index", kHarmless, "identifies the record"},
    {"kind", kString},
    {"kto_tag", kPreferenceLabel},
    {"lang", kHarmless, "origin of the record"},
    {"language", kHarmless, "origin of the record"},
    {"learn", kSampleWeight},
    {"length", kHarmless, "sizes are read from the files"},
    {"license", kHarmless, "origin of the record"},
    {"loss", kSampleWeight},
    {"loss_masks", kLossMask},
    {"loss_weights", kLossMask},
    {"mask", kRead},
    {"masks", kRead},
    {"messages", kTurns},
    {"modality", kRead},
    {"model", kHarmless, "origin of the record"},
    {"num_tokens", kHarmless, "sizes are read from the files"},
    {"objects", kBoxes},
    {"qid", kHarmless, "identifies the record"},
    {"question_id", kHarmless, "identifies the record"},
    {"reasoning", kReasoning},
    {"reasoning_content", kReasoning},
    {"sample_fps", kFrameRate},
    {"sample_id", kHarmless, "identifies the record"},
    {"sample_weight", kLossMask},
    {"source", kHarmless, "origin of the record"},
    {"split", kHarmless, "origin of the record"},
    {"subject_id", kRead},
    {"subset", kHarmless, "origin of the record"},
    {"sys", kSystemText},
    {"sys_prompt", kSystemText},
    {"system", kRead},
    {"system_instruction", kSystemText},
    {"system_message", kSystemText},
    {"task", kStringOrNumber},
    {"task_type", kStringOrNumber},
    {"thinking", kReasoning},
    {"timestamp", kHarmless, "origin of the record"},
    {"token_count", kHarmless, "sizes are read from the files"},
    {"tool_calls", kTools},
    {"tools", kRead},
    {"train", kSampleWeight},
    {"train_on_input", kLossMask},
    {"train_on_inputs", kLossMask},
    {"trainable", kSampleWeight},
    {"uid", kHarmless, "identifies the record"},
    {"uuid", kHarmless, "identifies the record"},
    {"version", kHarmless, "origin of the record"},
    {"video_fps", kFrameRate},
    {"volume", kNonNumeric},
    {"weight", kSampleWeight},
    {"width", kHarmless, "sizes are read from the files"},
});

constexpr std::array kTurnOnlyKeys = std::to_array<KeyEntry>({
    {"calculate_loss", kLossMask},
    {"compute_loss", kLossMask},
    {"content", kRead},
    {"do_train", kLossMask},
    {"from", kRead},
    {"has_loss", kLossMask},
    {"id", kHarmless, "identifies the turn"},
    {"ignore", kInverseLossMask},
    {"ignore_loss", kInverseLossMask},
    {"index", kHarmless, "identifies the turn"},
    {"is_label", kLossMask},
    {"is_masked", kInverseLossMask},
    {"is_train", kLossMask},
    {"label_mask", kLossMask},
    {"learn", kLossMask},
    {"learnable", kLossMask},
    {"loss", kLossMask},
    {"mask", kInverseLossMask},
    {"mask_loss", kInverseLossMask},
    {"masked", kInverseLossMask},
    {"message_id", kHarmless, "identifies the turn"},
    {"name", kRead},
    {"no_loss", kInverseLossMask},
    {"reasoning", kRead},
    {"reasoning_content", kRead},
    {"reasoning_details", kReasoning},
    {"role", kRead},
    {"skip_loss", kInverseLossMask},
    {"source", kHarmless, "origin of the turn"},
    {"supervised", kLossMask},
    {"system", kSystemText},
    {"think", kReasoning},
    {"thinking", kRead},
    {"thought", kReasoning},
    {"thoughts", kReasoning},
    {"timestamp", kHarmless, "identifies the turn"},
    {"to_train", kLossMask},
    {"tool_call", kTools},
    {"tool_call_id", kRead},
    {"tool_calls", kRead},
    {"tool_responses", kTools},
    {"tools", kTools},
    {"train", kLossMask},
    {"train_detail", kLossMask},
    {"train_details", kLossMask},
    {"train_on_turn", kLossMask},
    {"trainable", kLossMask},
    {"training", kLossMask},
    {"training_detail", kLossMask},
    {"training_details", kLossMask},
    {"turn_id", kHarmless, "identifies the turn"},
    {"untrainable", kInverseLossMask},
    {"use_loss", kLossMask},
    {"value", kRead},
    {"volume", kMedia},
    {"weight", kLossMask},
    {"with_loss", kLossMask},
});

constexpr std::array kBlockOnlyKeys = std::to_array<KeyEntry>({
    {"cache_control", kHarmless, "an option of the chat service"},
    {"caption", kBlockText},
    {"content", kBlockText},
    {"id", kHarmless, "identifies the block"},
    {"image", kRead},
    {"image_b64", kRead},
    {"image_base64", kRead},
    {"image_url", kRead},
    {"images", kImage},
    {"index", kRead},
    {"input_audio", kAudio},
    {"loss", kLossMask},
    {"reasoning", kReasoning},
    {"sample_fps", kFrameRate},
    {"source", kRead},
    {"text", kRead},
    {"thinking", kReasoning},
    {"train", kLossMask},
    {"type", kRead},
    {"value", kBlockText},
    {"video", kRead},
    {"video_end", kVideoSegment},
    {"video_start", kVideoSegment},
    {"video_url", kRead},
    {"videos", kVideo},
    {"volume", kRead},
    {"volume_url", kRead},
    {"weight", kLossMask},
});

constexpr std::array kMediaOnlyKeys = std::to_array<KeyEntry>({
    {"id", kHarmless, "identifies the file"},
    {"mode", kHarmless, "read from the file"},
    {"size", kHarmless, "read from the file"},
});

}  // namespace key_tables

using KeyEntryList = std::vector<KeyEntry>;

/// Concatenates tables and sorts the result by name. REQUIRES: no key is in two of them.
KeyEntryList merge_key_tables(std::initializer_list<std::span<const KeyEntry>> tables) {
  KeyEntryList keys;
  for (const auto& table : tables) keys.insert(keys.end(), table.begin(), table.end());
  std::ranges::sort(keys, {}, &KeyEntry::name);
  return keys;
}

KeyEntryList make_key_entry_list(KeyScope scope) {
  switch (scope) {
    case KeyScope::kRecord:
      return merge_key_tables({key_tables::kSharedKeys, key_tables::kRecordAndTurnKeys, key_tables::kRecordOnlyKeys});
    case KeyScope::kTurn:
      return merge_key_tables({key_tables::kSharedKeys, key_tables::kRecordAndTurnKeys, key_tables::kTurnOnlyKeys});
    case KeyScope::kBlock:
      return merge_key_tables({key_tables::kSharedKeys, key_tables::kFileKeys, key_tables::kBlockOnlyKeys});
    case KeyScope::kMediaObject:
      return merge_key_tables({key_tables::kFileKeys, key_tables::kMediaOnlyKeys});
  }
  throw InternalError("unknown scope of a key");
}

}  // namespace

std::span<const KeyEntry> get_key_entries(KeyScope scope) {
  static const std::array<KeyEntryList, 4> key_entry_lists{
      make_key_entry_list(KeyScope::kRecord), make_key_entry_list(KeyScope::kTurn),
      make_key_entry_list(KeyScope::kBlock), make_key_entry_list(KeyScope::kMediaObject)};
  return key_entry_lists.at(static_cast<size_t>(scope));
}

KeyRule get_key_rule(KeyScope scope, std::string_view name) {
  const std::span<const KeyEntry> entries = get_key_entries(scope);
  const auto it = std::ranges::lower_bound(entries, name, {}, &KeyEntry::name);
  return it != entries.end() && it->name == name ? it->rule : KeyRule::kUnknown;
}

}  // namespace vlmtrain::io
