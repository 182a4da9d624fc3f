#pragma once

#include <nlohmann/json_fwd.hpp>

#include <concepts>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "text/jinja/runtime/tracked_text.h"

namespace vlmtrain::text::jinja {

class Object;
struct Sequence;
struct Dict;

/// A string value, with properties that are computed once.
struct Text {
  /// `is_escaped`: the text is HTML.
  explicit Text(TrackedText text, bool is_escaped = false);
  std::string_view view() const { return content.bytes(); }

  TrackedText content;
  bool is_ascii;
  size_t length;    ///< in code points
  bool is_escaped;  ///< by the filters escape and safe; `+` then escapes the other operand
};

/// A value of the template language, with Python's types. Cheap to copy: data is shared and
/// immutable.
class Value {
 public:
  /// The value of an unassigned name. `message` is the text of errors about it; null: a default
  /// text.
  struct Undefined {
    std::shared_ptr<const std::string> message;
  };
  /// The value `none`.
  struct None {};

  Value() = default;  // undefined
  static Value undefined() { return {}; }
  /// Returns an undefined value whose errors have the text `message`.
  static Value undefined(std::string message);
  static Value none() { return Value(Data(None{})); }
  explicit Value(std::same_as<bool> auto value) : data_(value) {}
  explicit Value(double value) : data_(value) {}
  template <std::integral T>
  requires(!std::same_as<T, bool>) explicit Value(T value) : data_(static_cast<int64_t>(value)) {}
  explicit Value(std::shared_ptr<const Text> text) : data_(std::move(text)) {}
  explicit Value(std::shared_ptr<const Sequence> sequence) : data_(std::move(sequence)) {}
  explicit Value(std::shared_ptr<const Dict> dict) : data_(std::move(dict)) {}
  explicit Value(std::shared_ptr<Object> object) : data_(std::move(object)) {}

  /// Returns a text without origin. Invalid UTF-8 becomes U+FFFD.
  static Value text(std::string bytes);
  /// Returns a text whose characters all have the origin `origin`. REQUIRES origin >= 0.
  static Value text(std::string bytes, int origin);
  /// Returns a text with the origins of `text`.
  static Value text(TrackedText text, bool is_escaped = false) {
    return Value(std::make_shared<const Text>(std::move(text), is_escaped));
  }
  /// Each returns the container of its arguments. Throws EvaluationError above kMaxValueDepth.
  static Value list(std::vector<Value> items);
  static Value tuple(std::vector<Value> items);
  static Value dict(std::vector<std::pair<std::string, Value>> entries);
  /// Returns the JSON value, with texts without origin. Throws UserError (bad data) for numbers
  /// beyond 64 bits.
  static Value from_json(const nlohmann::ordered_json& json);

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  /// Each returns the value if it has this type, else null.
  const bool* boolean() const { return std::get_if<bool>(&data_); }
  const int64_t* integer() const { return std::get_if<int64_t>(&data_); }
  const double* real() const { return std::get_if<double>(&data_); }
  const Text* text() const { return get_shared<Text>(); }
  const Sequence* sequence() const { return get_shared<Sequence>(); }
  const Dict* dict() const { return get_shared<Dict>(); }
  Object* object() const {
    const auto* object = std::get_if<std::shared_ptr<Object>>(&data_);
    return object != nullptr ? object->get() : nullptr;
  }
  std::shared_ptr<const Sequence> shared_sequence() const { return std::get<std::shared_ptr<const Sequence>>(data_); }
  /// Stores an int or bool in `out`. Returns whether the value is one.
  bool to_integer(int64_t& out) const;

  /// Returns the message of errors about this value. REQUIRES is_undefined().
  std::string get_undefined_message() const;
  /// Returns Python's name of the type, such as "str".
  std::string_view type_name() const;
  /// Returns the depth of nested containers, 0 for scalars.
  int depth() const;
  /// Returns whether both are the same object or equal scalars, as Python's `is`.
  bool is_same(const Value& other) const;

 private:
  using Data = std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const Text>,
                            std::shared_ptr<const Sequence>, std::shared_ptr<const Dict>, std::shared_ptr<Object>>;
  explicit Value(Data data) : data_(std::move(data)) {}
  template <class T>
  const T* get_shared() const {
    const auto* pointer = std::get_if<std::shared_ptr<const T>>(&data_);
    return pointer != nullptr ? pointer->get() : nullptr;
  }

  Data data_;
};

/// Returns the depth of a container of values of depth `depth`. Throws EvaluationError above
/// kMaxValueDepth.
int get_container_depth(int depth);

/// A list or another iterable that is not a text or a dict.
struct Sequence {
  /// The Python type of the sequence.
  enum class Type { kList, kTuple, kRange, kKeys, kValues, kItems, kGenerator };

  /// Throws EvaluationError above kMaxValueDepth.
  Sequence(Type type, std::vector<Value> items);
  bool has_length() const { return type != Type::kGenerator; }
  bool can_index() const { return type == Type::kList || type == Type::kTuple || type == Type::kRange; }

  Type type;
  std::vector<Value> items;
  int depth;
  bool is_group = false;              ///< result of groupby: a tuple whose items are also attributes
  mutable bool is_exhausted = false;  ///< of a generator, which yields its items once
};

/// A dict. Keys are texts, numbers, booleans or None, without duplicates, in the order of
/// insertion.
struct Dict {
  /// Throws EvaluationError above kMaxValueDepth. REQUIRES entries without duplicate keys.
  explicit Dict(std::vector<std::pair<Value, Value>> entries);
  /// Returns the value of `key`, or null.
  const Value* find(std::string_view key) const;
  const Value* find(const Value& key) const;

  std::vector<std::pair<Value, Value>> entries;
  int depth;
};

/// Sets `key` to `value`. Throws EvaluationError for unhashable and unsupported keys.
void insert_or_assign(std::vector<std::pair<Value, Value>>& entries, Value key, Value value);

}  // namespace vlmtrain::text::jinja
