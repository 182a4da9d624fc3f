#include "text/jinja/runtime/value.h"

#include <nlohmann/json.hpp>

#include <algorithm>

#include "text/jinja/runtime/budget.h"
#include "text/jinja/runtime/object.h"
#include "text/unicode/characters.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::text::jinja {

namespace {

/// Returns whether two dict keys are equal in Python. For example, 1, 1.0 and True are equal.
bool are_keys_equal(const Value& left_key, const Value& right_key) {
  if (left_key.text() != nullptr && right_key.text() != nullptr)
    return left_key.text()->view() == right_key.text()->view();
  if (left_key.is_none() || right_key.is_none()) return left_key.is_none() && right_key.is_none();
  const auto try_to_long_double = [](const Value& value, long double& out) {
    int64_t integer = 0;
    if (value.try_to_integer(integer)) out = static_cast<long double>(integer);
    if (value.float_value() != nullptr) out = *value.float_value();
    return value.try_to_integer(integer) || value.float_value() != nullptr;
  };
  long double left = 0;
  long double right = 0;
  return try_to_long_double(left_key, left) && try_to_long_double(right_key, right) && left == right;
}

/// Returns whether a value of this type can be a key of a dict.
bool is_hashable(const Value& value) {
  int64_t integer = 0;
  return value.text() != nullptr || value.is_none() || value.try_to_integer(integer) || value.float_value() != nullptr;
}

}  // namespace

int compute_container_depth(int depth) {
  if (depth >= kMaxValueDepth) throw evaluation_error("values are nested more than {} deep", kMaxValueDepth);
  return depth + 1;
}

TextValue::TextValue(TextWithOrigins text, bool escaped) : content(std::move(text)), is_escaped(escaped) {
  const std::string& bytes = content.bytes();
  length = static_cast<size_t>(std::count_if(
      bytes.begin(), bytes.end(), [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) != 0x80U; }));
  is_ascii = length == bytes.size();
}

Value Value::undefined(std::string message) {
  return Value(Variant(Undefined{std::make_shared<const std::string>(std::move(message))}));
}

Value Value::text(std::string bytes) {
  if (find_invalid_utf8(bytes)) bytes = replace_invalid_utf8(bytes);
  return text(TextWithOrigins(std::move(bytes)));
}

Value Value::text(std::string bytes, int origin) {
  if (find_invalid_utf8(bytes)) bytes = replace_invalid_utf8(bytes);
  return text(TextWithOrigins(std::move(bytes), origin));
}

Value Value::list(std::vector<Value> items) {
  return Value(std::make_shared<const Sequence>(Sequence::Type::kList, std::move(items)));
}

Value Value::tuple(std::vector<Value> items) {
  return Value(std::make_shared<const Sequence>(Sequence::Type::kTuple, std::move(items)));
}

Value Value::dict(std::vector<std::pair<std::string, Value>> entries) {
  std::vector<std::pair<Value, Value>> unique_entries;
  unique_entries.reserve(entries.size());
  for (auto& entry : entries) insert_or_assign(unique_entries, text(std::move(entry.first)), std::move(entry.second));
  return Value(std::make_shared<const Dict>(std::move(unique_entries)));
}

Value Value::from_json(const nlohmann::ordered_json& json, std::optional<int> origin) {
  switch (json.type()) {
    case nlohmann::json::value_t::boolean:
      return Value(json.get<bool>());
    case nlohmann::json::value_t::number_unsigned:
      if (json.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
        throw data_error("{} is not a 64-bit integer; chat templates support no larger ones", json.dump());
      }
      return Value(json.get<int64_t>());
    case nlohmann::json::value_t::number_integer:
      return Value(json.get<int64_t>());
    case nlohmann::json::value_t::number_float:
      return Value(json.get<double>());
    case nlohmann::json::value_t::string:
      return origin ? text(json.get<std::string>(), *origin) : text(json.get<std::string>());
    case nlohmann::json::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const auto& item : json) items.push_back(from_json(item, origin));
      return list(std::move(items));
    }
    case nlohmann::json::value_t::object: {
      // The keys of a JSON object are unique, so that insert_or_assign() and its search are not
      // needed.
      std::vector<std::pair<Value, Value>> entries;
      entries.reserve(json.size());
      for (const auto& [key, value] : json.items()) entries.emplace_back(text(key), from_json(value, origin));
      return Value(std::make_shared<const Dict>(std::move(entries)));
    }
    default:
      return none();
  }
}

bool Value::try_to_integer(int64_t& out) const {
  if (integer() != nullptr) out = *integer();
  if (boolean() != nullptr) out = *boolean() ? 1 : 0;
  return integer() != nullptr || boolean() != nullptr;
}

std::string Value::get_undefined_message() const {
  const auto& message = std::get<Undefined>(variant_).message;
  return message ? *message : "a value is undefined";
}

std::string_view Value::type_name() const {
  struct TypeNameVisitor {
    std::string_view operator()(const Undefined& /*value*/) const { return "Undefined"; }
    std::string_view operator()(const None& /*value*/) const { return "NoneType"; }
    std::string_view operator()(bool /*value*/) const { return "bool"; }
    std::string_view operator()(int64_t /*value*/) const { return "int"; }
    std::string_view operator()(double /*value*/) const { return "float"; }
    std::string_view operator()(const std::shared_ptr<const TextValue>& /*value*/) const { return "str"; }
    std::string_view operator()(const std::shared_ptr<const Sequence>& value) const {
      constexpr const char* kSequenceTypeNames[] = {"list",        "tuple",      "range",    "dict_keys",
                                                    "dict_values", "dict_items", "generator"};
      return kSequenceTypeNames[static_cast<size_t>(value->type)];
    }
    std::string_view operator()(const std::shared_ptr<const Dict>& /*value*/) const { return "dict"; }
    std::string_view operator()(const std::shared_ptr<Object>& value) const { return value->type_name(); }
  };
  return std::visit(TypeNameVisitor{}, variant_);
}

int Value::depth() const {
  if (sequence() != nullptr) return sequence()->depth;
  if (dict() != nullptr) return dict()->depth;
  return object() != nullptr ? object()->depth : 0;
}

bool Value::is_identical(const Value& other) const {
  if (variant_.index() != other.variant_.index()) return false;
  if (boolean() != nullptr) return *boolean() == *other.boolean();
  if (integer() != nullptr) return *integer() == *other.integer();
  if (float_value() != nullptr) return *float_value() == *other.float_value();
  if (text() != nullptr) return text() == other.text();
  if (sequence() != nullptr) return sequence() == other.sequence();
  if (dict() != nullptr) return dict() == other.dict();
  return object() == other.object();
}

Sequence::Sequence(Type sequence_type, std::vector<Value> sequence_items)
    : type(sequence_type), items(std::move(sequence_items)) {
  int max_child_depth = 0;
  for (const Value& item : items) max_child_depth = std::max(max_child_depth, item.depth());
  depth = compute_container_depth(max_child_depth);
}

Dict::Dict(std::vector<std::pair<Value, Value>> dict_entries) : entries(std::move(dict_entries)) {
  int max_child_depth = 0;
  for (const auto& [key, value] : entries) max_child_depth = std::max(max_child_depth, value.depth());
  depth = compute_container_depth(max_child_depth);
}

const Value* Dict::find(std::string_view key) const {
  for (const auto& [name, value] : entries) {
    if (name.text() != nullptr && name.text()->view() == key) return &value;
  }
  return nullptr;
}

const Value* Dict::find(const Value& key) const {
  for (const auto& [name, value] : entries) {
    if (are_keys_equal(name, key)) return &value;
  }
  return nullptr;
}

void insert_or_assign(std::vector<std::pair<Value, Value>>& entries, Value key, Value value) {
  if (!is_hashable(key))
    throw evaluation_error("a dict key must be a string, number, boolean or None, not {}", key.type_name());
  for (auto& [name, stored_value] : entries) {
    if (are_keys_equal(name, key)) {
      stored_value = std::move(value);
      return;
    }
  }
  entries.emplace_back(std::move(key), std::move(value));
}

void TextWithOrigins::add_origin_span(OriginSpan origin_span) {
  // Visits the spans that end where the new one begins: empty spans, then at most one span with
  // characters. An empty span next to another span of its own origin is redundant and is dropped.
  // Empty spans of other origins remain, so that their position is kept.
  for (size_t i = origin_spans_.size(); i-- > 0 && origin_spans_[i].end == origin_span.begin;) {
    if (origin_spans_[i].origin == origin_span.origin) {
      if (origin_span.empty()) return;
      if (origin_spans_[i].empty()) {
        origin_spans_.erase(origin_spans_.begin() + static_cast<std::ptrdiff_t>(i));
        continue;
      }
      if (i + 1 == origin_spans_.size()) {  // no empty span of another origin between them
        origin_spans_[i].end = origin_span.end;
        return;
      }
    }
    if (!origin_spans_[i].empty()) break;
  }
  origin_spans_.push_back(origin_span);
}

void TextWithOrigins::mark_as_generated() {
  generated_spans_.clear();
  if (!empty()) generated_spans_.push_back({0, size()});
}

TextWithOrigins TextWithOrigins::slice(size_t begin, size_t end) const {
  TextWithOrigins result;
  result.append(*this, begin, end);
  return result;
}

void TextWithOrigins::append(const TextWithOrigins& other, size_t begin, size_t end) {
  const size_t offset = bytes_.size();
  bytes_.append(other.bytes_, begin, end - begin);
  const auto ends_before = [](const OriginSpan& origin_span, size_t pos) { return origin_span.end < pos; };
  for (auto origin_span = std::lower_bound(other.origin_spans_.begin(), other.origin_spans_.end(), begin, ends_before);
       origin_span != other.origin_spans_.end() && origin_span->begin <= end; ++origin_span) {
    const size_t span_begin = std::max(origin_span->begin, begin);
    const size_t span_end = std::min(origin_span->end, end);
    // A slice with characters gets no empty spans for the origins next to it.
    if (span_begin == span_end && !origin_span->empty() && begin < end) continue;
    add_origin_span({offset + span_begin - begin, offset + span_end - begin, origin_span->origin});
  }
  for (const GeneratedSpan& generated_span : other.generated_spans_) {
    const size_t span_begin = std::max(generated_span.begin, begin);
    const size_t span_end = std::min(generated_span.end, end);
    if (span_begin < span_end) generated_spans_.push_back({offset + span_begin - begin, offset + span_end - begin});
  }
}

void TextWithOrigins::inherit_origins(const TextWithOrigins& source) {
  if (!empty()) return;
  for (const OriginSpan& origin_span : source.origin_spans_) add_origin_span({0, 0, origin_span.origin});
}

}  // namespace vlmtrain::text::jinja
