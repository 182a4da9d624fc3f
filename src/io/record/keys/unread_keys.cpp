#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>

#include "io/record/json_values.h"
#include "io/record/keys/key_rules.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"

namespace vlmtrain::io {

void reject_key(KeyRule rule, const std::string& prefix, const std::string& key, const std::string& value) {
  const std::string name = make_excerpt(key);
  switch (rule) {
    case KeyRule::kLossMask:
    case KeyRule::kInverseLossMask:
      throw data_error(
          "{}has \"{}\": {}, but only whole answers have masks and weights; write \"loss\": true, false or a number "
          "from 0 to 1 into each answer, or set {}=[{}]",
          prefix, name, value, keys::data::kIgnoreKeys, name);
    case KeyRule::kSampleWeight:
      throw data_error(
          "{}has \"{}\": {}, and sample weights are not supported; write the weight into each answer, remove the "
          "record, or set {}=[{}] to learn it like the others",
          prefix, name, value, keys::data::kIgnoreKeys, name);
    case KeyRule::kPreferenceLabel:
      throw data_error(
          "{}has \"{}\": {}, which marks an answer as rejected; remove the record, or set {}=[{}] to learn it", prefix,
          name, value, keys::data::kIgnoreKeys, name);
    case KeyRule::kChosenAnswer:
      throw data_error(
          "{}has an answer under \"{}\", which is ignored; append it to the turns, set {}={{answer: {}}} if the record "
          "has a \"question\", or set {}=[{}] to train without it",
          prefix, name, keys::data::kColumns, name, keys::data::kIgnoreKeys, name);
    case KeyRule::kReasoning:
      throw data_error(
          "{}has reasoning under \"{}\", which is ignored; call it \"reasoning_content\" in the turn of the answer, or "
          "set {}=[{}] to train without it",
          prefix, name, keys::data::kIgnoreKeys, name);
    case KeyRule::kTools:
      throw data_error(
          "{}has tools or tool calls under \"{}\", which are ignored; write \"tools\" into the record and "
          "\"tool_calls\" into the turn of the answer, or set {}=[{}] to train without them",
          prefix, name, keys::data::kIgnoreKeys, name);
    case KeyRule::kBlockText:
      throw data_error(
          "{}has a text under \"{}\", which is ignored; put it into a block {{\"type\": \"text\", \"text\": …}}, or "
          "set {}=[{}] to train without it",
          prefix, name, keys::data::kIgnoreKeys, name);
    case KeyRule::kAudio:
      throw data_error(
          "{}has the field \"{}\", which is not supported; remove it or the record, or set {}=[{}] to train "
          "without it",
          prefix, name, keys::data::kIgnoreKeys, name);
    case KeyRule::kVideoSegment:
      throw data_error(
          "{}has \"{}\": {}, and selecting parts of a video is not supported; trim the file, or set {}=[{}] to "
          "train on the whole video",
          prefix, name, value, keys::data::kIgnoreKeys, name);
    default:
      throw InternalError("this rule does not make a key a problem");
  }
}

void reject_system_text(bool is_record_key, const std::string& prefix, const std::string& key) {
  const std::string name = make_excerpt(key);
  throw data_error("{}has a system text under \"{}\", which is ignored; {}, or set {}=[{}] to train without it", prefix,
                   name,
                   is_record_key ? fmt::format("set {}={{system: {}}}", keys::data::kColumns, name)
                                 : std::string("make it a turn with the role system"),
                   keys::data::kIgnoreKeys, name);
}

void reject_media_key(const std::string& prefix, const std::string& key, const char* media_type) {
  const std::string name = make_excerpt(key);
  throw data_error("{}has {} {} under \"{}\", which is ignored; call it \"{}\", or set {}=[{}] to train without it",
                   prefix, media_type == std::string_view("image") ? "an" : "a", media_type, name, media_type,
                   keys::data::kIgnoreKeys, name);
}

void reject_record_media_key(const std::string& key, const char* media_type, MediaForm form) {
  const std::string name = make_excerpt(key);
  const std::string hint =
      form == MediaForm::kNumbered ? fmt::format("list all {0}s of a record under \"{0}s\"", media_type)
      : form == MediaForm::kUrl
          ? fmt::format("save it as a file and give its path under \"{}\"", media_type)
          : fmt::format("rename it to \"{0}{1}\", or set {2}={{{0}{1}: {3}}} if all records have it", media_type,
                        form == MediaForm::kList ? "s" : "", keys::data::kColumns, name);
  throw data_error("has {} {} under \"{}\", which is ignored; {}, or set {}=[{}] to train without it",
                   media_type == std::string_view("image") ? "an" : "a", media_type, name, hint,
                   keys::data::kIgnoreKeys, name);
}

namespace {

bool matches_any(const RecordJson& value, std::initializer_list<std::string_view> values) {
  return value.is_string() && std::ranges::find(values, value.get_ref<const std::string&>()) != values.end();
}

bool is_true_value(const RecordJson& value) {
  return parse_switch(value) == true;
}

bool is_false_value(const RecordJson& value) {
  return parse_switch(value) == false;
}

}  // namespace

bool is_acceptable_value(KeyRule rule, const RecordJson& value) {
  if (is_blank(value)) return true;
  switch (rule) {
    case KeyRule::kRead:
    case KeyRule::kMedia:
    case KeyRule::kHarmless:
      return true;
    case KeyRule::kString:
      return value.is_string();
    case KeyRule::kStringOrNumber:
      return value.is_string() || value.is_number();
    case KeyRule::kNonNumeric:
      return !value.is_number() && !value.is_boolean();
    case KeyRule::kLossMask:
    case KeyRule::kPreferenceLabel:
    case KeyRule::kSampleWeight:
      return is_true_value(value);
    case KeyRule::kInverseLossMask:
      return is_false_value(value);
    case KeyRule::kTools:  // LLaMA-Factory and ms-swift write the list as a string
      return matches_any(value, {"[]", "{}", "null", "None"});
    default:
      return false;
  }
}

MediaForm find_media_form(const RecordJson& value) {
  const auto is_url = [](const RecordJson& text) {
    return text.is_string() && text.get_ref<const std::string&>().starts_with("http");
  };
  if (is_url(value) || (value.is_array() && std::ranges::any_of(value, is_url))) return MediaForm::kUrl;
  return value.is_array() ? MediaForm::kList : MediaForm::kSingle;
}

}  // namespace vlmtrain::io
