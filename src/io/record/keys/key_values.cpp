#include "io/record/keys/key_values.h"

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>

#include "io/record/json_values.h"

namespace vlmtrain::io {
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
