#include "io/record/record_turns.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "io/record/json_values.h"
#include "io/record/turns.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"

namespace vlmtrain::io {
namespace {

std::optional<Role> parse_role(const RecordJson& name) {
  constexpr std::array<std::pair<std::string_view, Role>, 5> kRoleByName{{{"human", Role::kUser},
                                                                          {"user", Role::kUser},
                                                                          {"gpt", Role::kAssistant},
                                                                          {"assistant", Role::kAssistant},
                                                                          {"system", Role::kSystem}}};
  if (!name.is_string()) return std::nullopt;
  const auto& text = name.get_ref<const std::string&>();
  if (is_tool_output_role(text)) return Role::kTool;
  if (is_tool_call_role(text)) return Role::kAssistant;
  const auto* it = std::ranges::find(kRoleByName, text, &std::pair<std::string_view, Role>::first);
  return it == kRoleByName.end() ? std::nullopt : std::optional(it->second);
}

/// The role of a turn.
struct TurnRole {
  Role role;
  bool is_tool_call;     ///< true if the role means that the content is a tool call
  bool has_unread_role;  ///< true if the role is under "from", and "role" is not one
};

/// Returns the role of a turn, under "from" or "role". Throws data_error for a missing, unknown or
/// contradictory role.
TurnRole read_role(const RecordJson& turn, size_t turn_number) {
  const RecordJson* from = find_present_value(turn, {"from"});
  const RecordJson* role = find_present_value(turn, {"role"});
  const RecordJson* name = from != nullptr ? from : role;
  if (name == nullptr || !name->is_string()) {
    throw data_error("turn {} has no role: \"from\" or \"role\" is missing", turn_number);
  }
  const auto& role_name = name->get_ref<const std::string&>();
  const auto parsed_role = parse_role(*name);
  if (!parsed_role) {
    throw data_error("turn {} has the unknown role \"{}\"; supported are human, user, gpt, assistant, system and tool",
                     turn_number, make_excerpt(role_name));
  }
  const auto other_role = from != nullptr && role != nullptr ? parse_role(*role) : parsed_role;
  if (other_role && other_role != parsed_role) {
    throw data_error("turn {} is from \"{}\" and has the role \"{}\"; keep one, or set {}=[role]", turn_number,
                     role_name, make_value_excerpt(*role), keys::data::kIgnoreKeys);
  }
  return {.role = *parsed_role, .is_tool_call = is_tool_call_role(role_name), .has_unread_role = !other_role};
}

/// Returns the content of a turn: "value" or "content". Throws data_error if both have content and
/// differ, or if neither is present.
const RecordJson& get_turn_content(const RecordJson& turn, size_t turn_number) {
  const RecordJson* const value = find_present_value(turn, {"value"});
  const RecordJson* const content = find_present_value(turn, {"content"});
  if (value == nullptr && content == nullptr) throw data_error("turn {} is empty", turn_number);
  if (value == nullptr || content == nullptr) return value == nullptr ? *content : *value;
  if (is_blank(*value)) return *content;
  if (!is_blank(*content) && *value != *content) {
    throw data_error("turn {} has both \"value\" and \"content\", which differ; keep one, or set {}=[content]",
                     turn_number, keys::data::kIgnoreKeys);
  }
  return *value;
}

/// Returns the kind of media of a block type, or nullptr. The types are those of transformers
/// ("image", "video") and of OpenAI's APIs ("image_url", "input_image").
const MediaKind* find_media_kind(std::string_view type) {
  constexpr std::array<std::pair<std::string_view, const MediaKind*>, 7> kMediaKindByType{{{"image", &kImageKind},
                                                                                           {"image_url", &kImageKind},
                                                                                           {"input_image", &kImageKind},
                                                                                           {"volume", &kVolumeKind},
                                                                                           {"volume_url", &kVolumeKind},
                                                                                           {"video", &kVideoKind},
                                                                                           {"video_url", &kVideoKind}}};
  const auto* it = std::ranges::find(kMediaKindByType, type, &std::pair<std::string_view, const MediaKind*>::first);
  return it == kMediaKindByType.end() ? nullptr : it->second;
}

bool is_text_type(std::string_view type) {
  return type == "text" || type == "input_text" || type == "output_text";
}

/// Returns the type of a block. If "type" is missing, the type is the only key with content that is
/// named like one. Throws data_error if there is no such key or several.
std::string get_block_type(const RecordJson& block, size_t turn_number) {
  const auto type = block.is_object() ? block.find("type") : block.end();
  if (block.is_object() && type != block.end() && type->is_string()) return type->get<std::string>();
  std::string inferred_type;
  if (block.is_object() && (type == block.end() || type->is_null())) {
    for (const char* key : {"text", "image", "image_url", "video", "video_url", "volume"}) {
      if (find_non_blank_value(block, key) == nullptr) continue;
      if (!inferred_type.empty())
        throw data_error("turn {}: a content block has no \"type\", and both \"{}\" and \"{}\"", turn_number,
                         inferred_type, key);
      inferred_type = key;
    }
  }
  if (inferred_type.empty()) throw data_error("turn {}: a content block has no \"type\"", turn_number);
  return inferred_type;
}

/// Throws data_error unless "index" of a block, as in TRL's data sets, equals the position in the
/// record's list that the block gets.
void check_block_index(const RecordJson& block, const MediaSlots& media, size_t turn_number, const MediaKind& kind) {
  const auto index = block.find("index");
  if (index == block.end() || index->is_null()) return;
  if (index->is_number_integer() && std::cmp_equal(index->get<int64_t>(), media.num_unassigned_slots())) return;
  throw data_error(
      "turn {}: {} {} block has \"index\": {}, but blocks use the record's {}s in order, so it gets number {}; list "
      "them in this order, or set {}=[index]",
      turn_number, kind.indefinite_article(), kind.name, make_value_excerpt(*index), kind.name,
      media.num_unassigned_slots(), keys::data::kIgnoreKeys);
}

std::string get_block_text(const RecordJson& block, size_t turn_number) {
  const auto value = block.find("text");
  if (value == block.end()) throw data_error("turn {}: a text block has no \"text\"", turn_number);
  if (value->is_null()) return {};
  auto text = format_scalar(*value);
  if (!text) throw data_error("turn {}: a text block's \"text\" is neither a string nor a number", turn_number);
  return *std::move(text);
}

/// Position and role of a turn that is being read.
struct TurnContext {
  size_t index;    ///< in the conversation, from 0
  bool is_answer;  ///< true for a turn of the assistant
};

/// Appends the text or the placeholder of a block to `text`.
void read_block(const RecordJson& block, const TurnContext& turn, Conversation& conversation, std::string& text) {
  const size_t turn_number = turn.index + 1;
  const std::string type = get_block_type(block, turn_number);
  ReadObject object{.scope = KeyScope::kBlock, .json = &block, .turn_number = turn_number, .is_answer = turn.is_answer};
  if (is_text_type(type)) {
    object.block_type = "text";
    conversation.read_objects.push_back(std::move(object));
    const std::string block_text = get_block_text(block, turn_number);
    conversation.media.add_text_placeholders(block_text, turn.index, text.size());
    text += block_text;
    return;
  }
  const MediaKind* kind = find_media_kind(type);
  if (kind == nullptr) {
    throw data_error(
        "turn {}: a content block of type \"{}\" is not supported; supported are text, image, image_url, video, "
        "video_url and volume",
        turn_number, make_excerpt(type));
  }
  auto [media, file] = parse_block_media(block, turn_number, *kind);
  const bool is_video = kind == &kVideoKind;
  object.block_type = kind->name;
  object.needs_frame_rate = is_video && media && uses_frame_rate(*media);
  const bool needs_frame_rate = object.needs_frame_rate;
  if (file != nullptr && file != &block)
    conversation.read_objects.push_back({.scope = KeyScope::kMediaObject, .json = file});
  conversation.read_objects.push_back(std::move(object));
  MediaSlots& slots = is_video ? conversation.media.videos : conversation.media.images;
  if (!media) check_block_index(block, slots, turn_number, *kind);
  if (needs_frame_rate) set_frame_rates(block, {&*media, 1});
  slots.add(std::move(media));
  text += kind->placeholder;
}

/// Returns the text of a turn's content: a string, a number, a boolean or a list of content blocks.
/// Blocks with media become placeholders in the text, and their slots are added. Throws data_error
/// for other values and invalid blocks.
std::string read_content(const RecordJson& content, const TurnContext& turn, Conversation& conversation) {
  std::string text;
  if (content.is_array()) {
    for (const RecordJson& block : content) read_block(block, turn, conversation, text);
    return text;
  }
  std::optional<std::string> scalar_text = format_scalar(content);
  if (!scalar_text) {
    throw data_error("turn {}: its text is neither a string nor a list of content blocks", turn.index + 1);
  }
  conversation.media.add_text_placeholders(*scalar_text, turn.index, 0);
  return *std::move(scalar_text);
}

/// Assigns the media that a turn names to its placeholders, or inserts placeholders before its
/// text. `first_slot_indices` are the indices of the turn's first slots of images and of videos.
void read_turn_media(const RecordJson& turn_json, size_t index, std::pair<size_t, size_t> first_slot_indices,
                     ConversationMedia& media, std::string& text) {
  ListedMedia turn_media = parse_listed_media(turn_json);
  std::string placeholders;
  for (size_t i = media.images.assign_turn_media(std::move(turn_media.images), first_slot_indices.first, index); i > 0;
       --i)
    placeholders += kImagePlaceholder;
  for (size_t i = media.videos.assign_turn_media(std::move(turn_media.videos), first_slot_indices.second, index); i > 0;
       --i)
    placeholders += kVideoPlaceholder;
  if (placeholders.empty()) return;
  placeholders += "\n";
  media.shift_placeholders(index, placeholders.size());
  text.insert(0, placeholders);
}

/// Reads one turn and appends it to the conversation.
void read_turn(const RecordJson& turn_json, Conversation& conversation) {
  std::vector<Turn>& turns = conversation.turns;
  ConversationMedia& media = conversation.media;
  const size_t turn_number = turns.size() + 1;
  if (!turn_json.is_object()) throw data_error("turn {} is not a JSON object", turn_number);
  const auto [role, is_tool_call, has_unread_role] = read_role(turn_json, turn_number);
  const TurnContext context{.index = turns.size(), .is_answer = role == Role::kAssistant};
  Turn turn{.role = role, .text = {}, .fields = parse_message_fields(turn_json, role, turn_number)};
  ReadObject object{.scope = KeyScope::kTurn, .json = &turn_json, .turn_number = turn_number};
  object.has_unread_role = has_unread_role;
  for (const TemplateValue& field : turn.fields) object.read_fields.push_back(field.name);
  conversation.read_objects.push_back(std::move(object));
  if (context.is_answer) turn.loss_weight = parse_loss_weight(turn_json, turn_number);
  if (is_tool_call) {
    const TemplateValue calls = parse_tool_call_content(get_turn_content(turn_json, turn_number), turn_number);
    const bool continues_calls = !turns.empty() && !turns.back().has_content;
    if (continues_calls && turns.back().loss_weight != turn.loss_weight) {
      throw data_error(
          "turn {} continues the tool calls before it, and their weights in the loss differ; give all of them the same "
          "\"loss\"",
          turn_number);
    }
    if (!continues_calls) turns.push_back(std::move(turn));
    turns.back().has_content = false;
    append_tool_calls(calls, turns.back());
    return;
  }
  const std::pair first_slot_indices{media.images.size(), media.videos.size()};
  const bool may_lack_content =
      has_answer_fields(turn) && find_present_value(turn_json, {"value", "content"}) == nullptr;
  if (may_lack_content) {
    turn.has_content = false;
  } else {
    turn.text = read_content(get_turn_content(turn_json, turn_number), context, conversation);
  }
  read_turn_media(turn_json, context.index, first_slot_indices, media, turn.text);
  const bool may_be_empty = has_answer_fields(turn) || role == Role::kTool;
  if (!may_be_empty && turn.text.find_first_not_of(kJsonWhitespace) == std::string::npos) {
    throw data_error("turn {} is empty", turn_number);
  }
  turns.push_back(std::move(turn));
}

/// Reads the media that a record lists outside of its turns.
void read_listed_media(const RecordJson& record_json, Conversation& conversation) {
  conversation.listed_media = parse_listed_media(record_json);
  const std::vector<MediaRef>& images = conversation.listed_media.images;
  if (!images.empty() && images.front().is_volume) conversation.media.images.set_media_kind(kVolumeKind);
}

}  // namespace

void read_conversation(const RecordJson& record_json, const RecordJson& turns_json, Conversation& conversation) {
  if (const RecordJson* system_json = find_present_value(record_json, {"system"}); system_json != nullptr) {
    const TurnContext context{.index = 0, .is_answer = false};
    conversation.turns.push_back({Role::kSystem, read_content(*system_json, context, conversation)});
  }
  for (const RecordJson& turn_json : turns_json) read_turn(turn_json, conversation);
  read_listed_media(record_json, conversation);
}

void read_document(const RecordJson& record_json, const RecordJson& blocks, Conversation& conversation) {
  constexpr TurnContext kContext{.index = 0, .is_answer = false};
  constexpr size_t kTurnNumber = 1;  // for messages
  Turn document{.role = Role::kDocument, .text = {}};
  bool has_text = false;
  for (const RecordJson& block : blocks) {
    if (!is_text_type(get_block_type(block, kTurnNumber))) {
      read_block(block, kContext, conversation, document.text);
      continue;
    }
    conversation.read_objects.push_back({.scope = KeyScope::kBlock,
                                         .json = &block,
                                         .turn_number = kTurnNumber,
                                         .is_answer = true,
                                         .block_type = "text"});
    const Turn piece{.role = Role::kDocument, .text = get_block_text(block, kTurnNumber)};
    for (const MediaPlaceholder& placeholder : find_placeholders(piece))
      document.literal_placeholder_offsets.push_back(document.text.size() + placeholder.begin);
    has_text = has_text || piece.text.find_first_not_of(kJsonWhitespace) != std::string::npos;
    document.text += piece.text;
  }
  if (!has_text) throw data_error("has no text to learn: its document is empty");
  conversation.turns.push_back(std::move(document));
  read_listed_media(record_json, conversation);
}

}  // namespace vlmtrain::io
