#include "text/jinja/value.h"

#include <nlohmann/json.hpp>

#include <algorithm>

#include "text/jinja/limits.h"
#include "text/jinja/object.h"
#include "text/utf8.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::text::jinja {
namespace {

/// Python's ==, for keys.
bool is_same_key(const Value& a, const Value& b) {
  if (a.text() != nullptr && b.text() != nullptr) return a.text()->view() == b.text()->view();
  if (a.is_none() || b.is_none()) return a.is_none() && b.is_none();
  const auto number = [](const Value& value, long double& out) {
    int64_t whole = 0;
    if (value.is_whole(whole)) out = static_cast<long double>(whole);
    if (value.real() != nullptr) out = *value.real();
    return value.is_whole(whole) || value.real() != nullptr;
  };
  long double left = 0;
  long double right = 0;
  return number(a, left) && number(b, right) && left == right;
}

bool can_be_key(const Value& value) {
  int64_t whole = 0;
  return value.text() != nullptr || value.is_none() || value.is_whole(whole) || value.real() != nullptr;
}

}  // namespace

int depth_around(int depth) {
  if (depth >= kMaxValueDepth) throw failure("values lie more than {} deep in each other", kMaxValueDepth);
  return depth + 1;
}

Text::Text(MarkedText text, bool its_escaped) : marked(std::move(text)), is_escaped(its_escaped) {
  const std::string& bytes = marked.bytes();
  length = static_cast<size_t>(std::count_if(
      bytes.begin(), bytes.end(), [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) != 0x80U; }));
  ascii = length == bytes.size();
}

Value Value::undefined(std::string why) {
  return Value(Data(Undefined{std::make_shared<const std::string>(std::move(why))}));
}

Value Value::text(std::string bytes) {
  if (find_invalid_utf8(bytes)) bytes = replace_invalid_utf8(bytes);
  return text(MarkedText(std::move(bytes)));
}

Value Value::text(std::string bytes, int origin) {
  if (find_invalid_utf8(bytes)) bytes = replace_invalid_utf8(bytes);
  return text(MarkedText(std::move(bytes), origin));
}

Value Value::list(std::vector<Value> items) {
  return Value(std::make_shared<const Sequence>(Sequence::Form::kList, std::move(items)));
}

Value Value::tuple(std::vector<Value> items) {
  return Value(std::make_shared<const Sequence>(Sequence::Form::kTuple, std::move(items)));
}

Value Value::dict(std::vector<std::pair<std::string, Value>> entries) {
  std::vector<std::pair<Value, Value>> put_entries;
  put_entries.reserve(entries.size());
  for (auto& entry : entries) put(put_entries, text(std::move(entry.first)), std::move(entry.second));
  return Value(std::make_shared<const Dict>(std::move(put_entries)));
}

Value Value::of_json(const nlohmann::ordered_json& json) {
  switch (json.type()) {
    case nlohmann::json::value_t::boolean:
      return Value(json.get<bool>());
    case nlohmann::json::value_t::number_unsigned:
      if (json.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
        throw data_error("{} is a number beyond 64 bits, which chat templates cannot be given", json.dump());
      }
      return Value(json.get<int64_t>());
    case nlohmann::json::value_t::number_integer:
      return Value(json.get<int64_t>());
    case nlohmann::json::value_t::number_float:
      return Value(json.get<double>());
    case nlohmann::json::value_t::string:
      return text(json.get<std::string>());
    case nlohmann::json::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const auto& item : json) items.push_back(of_json(item));
      return list(std::move(items));
    }
    case nlohmann::json::value_t::object: {
      // Keys of a JSON object are each there once.
      std::vector<std::pair<Value, Value>> entries;
      entries.reserve(json.size());
      for (const auto& [key, value] : json.items()) entries.emplace_back(text(key), of_json(value));
      return Value(std::make_shared<const Dict>(std::move(entries)));
    }
    default:
      return none();
  }
}

bool Value::is_whole(int64_t& out) const {
  if (integer() != nullptr) out = *integer();
  if (boolean() != nullptr) out = *boolean() ? 1 : 0;
  return integer() != nullptr || boolean() != nullptr;
}

std::string Value::why_undefined() const {
  const auto& why = std::get<Undefined>(data_).why;
  return why ? *why : "a value is undefined";
}

std::string_view Value::type_name() const {
  struct Names {
    std::string_view operator()(const Undefined& /*value*/) const { return "Undefined"; }
    std::string_view operator()(const None& /*value*/) const { return "NoneType"; }
    std::string_view operator()(bool /*value*/) const { return "bool"; }
    std::string_view operator()(int64_t /*value*/) const { return "int"; }
    std::string_view operator()(double /*value*/) const { return "float"; }
    std::string_view operator()(const std::shared_ptr<const Text>& /*value*/) const { return "str"; }
    std::string_view operator()(const std::shared_ptr<const Sequence>& value) const {
      constexpr const char* kNames[] = {"list",        "tuple",      "range",    "dict_keys",
                                        "dict_values", "dict_items", "generator"};
      return kNames[static_cast<size_t>(value->form)];
    }
    std::string_view operator()(const std::shared_ptr<const Dict>& /*value*/) const { return "dict"; }
    std::string_view operator()(const std::shared_ptr<Object>& value) const { return value->type_name(); }
  };
  return std::visit(Names{}, data_);
}

int Value::depth() const {
  if (sequence() != nullptr) return sequence()->depth;
  if (dict() != nullptr) return dict()->depth;
  return object() != nullptr ? object()->depth : 0;
}

bool Value::is_same(const Value& other) const {
  if (data_.index() != other.data_.index()) return false;
  if (boolean() != nullptr) return *boolean() == *other.boolean();
  if (integer() != nullptr) return *integer() == *other.integer();
  if (real() != nullptr) return *real() == *other.real();
  if (text() != nullptr) return text() == other.text();
  if (sequence() != nullptr) return sequence() == other.sequence();
  if (dict() != nullptr) return dict() == other.dict();
  return object() == other.object();
}

Sequence::Sequence(Form its_form, std::vector<Value> its_items) : form(its_form), items(std::move(its_items)) {
  int deepest = 0;
  for (const Value& item : items) deepest = std::max(deepest, item.depth());
  depth = depth_around(deepest);
}

Dict::Dict(std::vector<std::pair<Value, Value>> its_entries) : entries(std::move(its_entries)) {
  int deepest = 0;
  for (const auto& [key, value] : entries) deepest = std::max(deepest, value.depth());
  depth = depth_around(deepest);
}

const Value* Dict::find(std::string_view key) const {
  for (const auto& [name, value] : entries) {
    if (name.text() != nullptr && name.text()->view() == key) return &value;
  }
  return nullptr;
}

const Value* Dict::find(const Value& key) const {
  for (const auto& [name, value] : entries) {
    if (is_same_key(name, key)) return &value;
  }
  return nullptr;
}

void put(std::vector<std::pair<Value, Value>>& entries, Value key, Value value) {
  if (!can_be_key(key)) throw failure("a dict's key must be a text, number, boolean or None, not {}", key.type_name());
  for (auto& [name, old] : entries) {
    if (is_same_key(name, key)) {
      old = std::move(value);
      return;
    }
  }
  entries.emplace_back(std::move(key), std::move(value));
}

}  // namespace vlmtrain::text::jinja
