#include "io/record/key_refusals.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/printable.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::io {
namespace {

/// Appends a value until the text exceeds the length of an excerpt.
void append_value_excerpt(const RecordJson& value, std::string& text) {
  if (text.size() > kMaxExcerptCharacters) return;
  if (value.is_string()) {
    text += to_json_string(RecordJson(make_excerpt(value.get_ref<const std::string&>())));
  } else if (value.is_binary()) {
    text += fmt::format("{} bytes", value.get_binary().size());
  } else if (value.is_structured()) {
    text += value.is_array() ? '[' : '{';
    bool is_first_entry = true;
    for (auto entry = value.begin(); entry != value.end() && text.size() <= kMaxExcerptCharacters; ++entry) {
      if (!std::exchange(is_first_entry, false)) text += ", ";
      if (value.is_object()) text += to_json_string(RecordJson(make_excerpt(entry.key()))) + ": ";
      append_value_excerpt(*entry, text);
    }
    text += value.is_array() ? ']' : '}';
  } else {
    text += value.dump();
  }
}

}  // namespace

std::string make_value_excerpt(const RecordJson& value) {
  std::string text;
  append_value_excerpt(value, text);
  return make_excerpt(text);
}

void reject_key(KeyRule rule, const std::string& prefix, const std::string& key, const RecordJson& value) {
  const std::string name = make_excerpt(key);
  switch (rule) {
    case KeyRule::kLossMask:
    case KeyRule::kInverseLossMask:
      throw data_error(
          "{}has \"{}\": {}, which is not true (1) or false (0) for a whole answer; fractions and masks of parts are "
          "not supported; write \"loss\": true or false into each answer, or set data.ignore_keys=[{}] to learn all of "
          "it",
          prefix, name, make_value_excerpt(value), name);
    case KeyRule::kSampleWeight:
      throw data_error(
          "{}has \"{}\": {}, and sample weights are not supported yet: every answer is learned; remove the record, or "
          "set data.ignore_keys=[{}] to learn it like the others",
          prefix, name, make_value_excerpt(value), name);
    case KeyRule::kPreferenceLabel:
      throw data_error(
          "{}has \"{}\": {}, which marks an answer as rejected; remove the record, or set data.ignore_keys=[{}] to "
          "learn it",
          prefix, name, make_value_excerpt(value), name);
    case KeyRule::kChosenAnswer:
      throw data_error(
          "{}has an answer under \"{}\", which is ignored, and its last turn is not the assistant's; append it to the "
          "turns, set data.columns={{answer: {}}} if the record has a \"question\", or set data.ignore_keys=[{}] to "
          "train without it",
          prefix, name, name, name);
    case KeyRule::kReasoning:
      throw data_error(
          "{}has reasoning under \"{}\", which is ignored; call it \"reasoning_content\" in the turn of the answer, or "
          "set data.ignore_keys=[{}] to train without it",
          prefix, name, name);
    case KeyRule::kTools:
      throw data_error(
          "{}has tools or tool calls under \"{}\", which are ignored; write \"tools\" into the record and "
          "\"tool_calls\" into the turn of the answer, or set data.ignore_keys=[{}] to train without them",
          prefix, name, name);
    case KeyRule::kBlockText:
      throw data_error(
          "{}has a text under \"{}\", which is ignored; put it into a block {{\"type\": \"text\", \"text\": …}}, or "
          "set data.ignore_keys=[{}] to train without it",
          prefix, name, name);
    case KeyRule::kAudio:
      throw data_error(
          "{}has the field \"{}\", which is not supported yet; remove it or the record, or set data.ignore_keys=[{}] "
          "to train without it",
          prefix, name, name);
    case KeyRule::kVideoSegment:
      throw data_error(
          "{}has \"{}\": {}, and selecting parts of a video is not supported yet; trim the file, or set "
          "data.ignore_keys=[{}] to train on the whole video",
          prefix, name, make_value_excerpt(value), name);
    default:
      throw InternalError("this rule does not make a key a problem");
  }
}

void reject_system_text(bool is_record_key, const std::string& prefix, const std::string& key) {
  const std::string name = make_excerpt(key);
  throw data_error(
      "{}has a system text under \"{}\", which is ignored; {}, or set data.ignore_keys=[{}] to train without it",
      prefix, name,
      is_record_key ? fmt::format("set data.columns={{system: {}}}", name)
                    : std::string("make it a turn with the role system"),
      name);
}

void reject_media_key(const std::string& prefix, const std::string& key, const char* media_type) {
  const std::string name = make_excerpt(key);
  throw data_error(
      "{}has {} {} under \"{}\", which is ignored; call it \"{}\", or set data.ignore_keys=[{}] to train without it",
      prefix, media_type == std::string_view("image") ? "an" : "a", media_type, name, media_type, name);
}

void reject_record_media_key(const std::string& key, const RecordJson& value, const char* media_type,
                             bool is_numbered) {
  const std::string name = make_excerpt(key);
  const auto is_url = [](const RecordJson& text) {
    return text.is_string() && text.get_ref<const std::string&>().starts_with("http");
  };
  const bool is_remote = is_url(value) || (value.is_array() && std::ranges::any_of(value, is_url));
  const std::string hint =
      is_numbered ? fmt::format("list all {0}s of a record under \"{0}s\"", media_type)
      : is_remote ? fmt::format("save it as a file and give its path under \"{}\"", media_type)
                  : fmt::format("set data.columns={{{}{}: {}}}", media_type, value.is_array() ? "s" : "", name);
  throw data_error("has {} {} under \"{}\", which is ignored; {}, or set data.ignore_keys=[{}] to train without it",
                   media_type == std::string_view("image") ? "an" : "a", media_type, name, hint, name);
}

}  // namespace vlmtrain::io
